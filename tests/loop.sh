#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The example with a training loop of its own trains, with weights that are frozen at first and gradients that it changes
# itself; stopped half-way and gone on with, it writes the same bytes as in one go.  $1: the built example.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# Threads that wait for each other do not take the time of other programs.
export OMP_WAIT_POLICY=passive OMP_NUM_THREADS=2
loop() { # OUT STATE [STOP]
    "$example" examples/revnet_digits.onnx x examples/data/digits_val_x.npy examples/data/digits_val_y.npy 'stem*' \
        "$folder/$1" "$folder/$2" 60 "${@:3}"
}
example=$1
loop a.onnx a.state | tee "$folder/log"
awk '$3 == "loss" { last = $4; if (!first) first = $4 } $1 == "accuracy" { accuracy = $2 + 0 }
     END { exit !(last < 0.5 * first && accuracy > 0.85) }' "$folder/log"
loop b.onnx b.state 31 | grep -x "stopped after step 31"
[ ! -e "$folder/b.onnx" ]
loop b.onnx b.state
cmp "$folder/a.onnx" "$folder/b.onnx"
cmp "$folder/a.state" "$folder/b.state"
