#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts down is enough to compile and link the example by pkg-config.  $1: build folder.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cmake --install "$1" --prefix "$folder/usr" >/dev/null
PKG_CONFIG_PATH=$(dirname "$(find "$folder/usr" -name invonnx.pc)")
LD_LIBRARY_PATH=$(dirname "$PKG_CONFIG_PATH"):${LD_LIBRARY_PATH:-}
export PKG_CONFIG_PATH LD_LIBRARY_PATH
# shellcheck disable=SC2046  # the flags are words
cc -std=c17 examples/train.c -o "$folder/train" $(pkg-config --cflags --libs --static invonnx)
status=0
"$folder/train" 2>/dev/null || status=$?
[ $status -eq 2 ]
"$folder/usr/bin/invonnx" --version
