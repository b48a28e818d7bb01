#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The example for the C API trains, its loss falls, and it writes a model: for inference, so a little smaller, since batch
# normalization has one output then.  $1: the built example.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"$1" examples/revnet_digits.onnx x examples/data/digits_val_x.npy examples/data/digits_val_y.npy "$folder/out.onnx" 3 |
    tee "$folder/log"
first=$(sed -n 's/^epoch 1 loss //p' "$folder/log")
last=$(sed -n 's/^epoch 3 loss //p' "$folder/log")
awk -v a="$first" -v b="$last" 'BEGIN { exit !(b + 0 < 0.8 * a && b > 0) }'
before=$(wc -c <examples/revnet_digits.onnx) after=$(wc -c <"$folder/out.onnx")
[ "$after" -lt "$before" ] && [ "$after" -gt $((before * 9 / 10)) ]
