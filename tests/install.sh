#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts down is enough to compile and link the example by pkg-config, to build the example plugins
# and to follow the pages about plugins.  $1: build folder.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cmake --install "$1" --prefix "$folder/usr" >/dev/null
PKG_CONFIG_PATH=$(dirname "$(find "$folder/usr" -name invonnx.pc)")
LD_LIBRARY_PATH=$(dirname "$PKG_CONFIG_PATH"):${LD_LIBRARY_PATH:-}
export PKG_CONFIG_PATH LD_LIBRARY_PATH
# shellcheck disable=SC2046  # the flags are words
cc -std=c17 examples/train.c -o "$folder/train" $(pkg-config --cflags --libs --static invonnx)
# shellcheck disable=SC2046
cc -std=c17 examples/loop.c -o "$folder/loop" $(pkg-config --cflags --libs --static invonnx) -lm
status=0
"$folder/train" 2>/dev/null || status=$?
[ $status -eq 2 ]
"$folder/usr/bin/invonnx" --version

# Pages that messages name.
doc=$folder/usr/share/doc/invonnx
grep -rhoE 'docs/[a-z-]+\.md' --include='*.[ch]' --include='*.inc' cli data core importer passes executor ops inverses | sort -u | while read -r page; do
    [ -s "$doc/$page" ] || { echo "$page is not installed"; exit 1; }
done
[ -s "$doc/README.md" ]

# Plugins, far from the source tree.
PATH=$folder/usr/bin:$PATH
cp -r examples/plugin "$folder/plugin"
pages="$PWD/docs/adding-an-inverse.md $PWD/docs/plugin-abi.md"
follow=$PWD/tests/docs.py
cd "$folder/plugin"
# shellcheck disable=SC2046
cc -std=c17 -Wall -Wextra -Werror -shared -fPIC -DINV_PLUGIN_SHARED $(pkg-config --cflags invonnx) bent.c -o bent.so -lm
if nm -D --undefined-only bent.so | grep inv_; then
    echo "the plugin wants to be linked with the library"
    exit 1
fi
invonnx selftest --plugin bent.so | tee out
grep -q 'operator BentIdentityInverse' out
invonnx selftest --plugin affine.rules
invonnx selftest --plugin pair.onnx
# shellcheck disable=SC2086
"${INVONNX_PYTHON:-python3}" "$follow" $pages
