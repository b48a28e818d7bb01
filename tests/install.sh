#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts down is enough to compile and link the examples by pkg-config and by CMake, statically and
# shared, to build the example plugins and to follow the pages about plugins.  $1: build folder.
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

# The same by find_package, of both libraries where both are there.
mkdir "$folder/by_cmake"
cat >"$folder/by_cmake/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(by_cmake LANGUAGES C)
find_package(invonnx 0.1 REQUIRED)
foreach(kind IN ITEMS invonnx static shared)
    if(TARGET invonnx::\${kind})
        add_executable(train_\${kind} $PWD/examples/train.c)
        target_link_libraries(train_\${kind} PRIVATE invonnx::\${kind} m)
    endif()
endforeach()
END
cmake -S "$folder/by_cmake" -B "$folder/by_cmake/build" -DCMAKE_PREFIX_PATH="$folder/usr" >/dev/null
cmake --build "$folder/by_cmake/build" >/dev/null
for kind in invonnx static $([ ! -e "$1/libinvonnx.so" ] || echo shared); do
    status=0
    "$folder/by_cmake/build/train_$kind" 2>/dev/null || status=$?
    [ $status -eq 2 ]
    wanted=$(ldd "$folder/by_cmake/build/train_$kind" | grep -c 'libinvonnx\.so\.0 ' || true)
    case $kind in shared) [ "$wanted" -eq 1 ] ;; static) [ "$wanted" -eq 0 ] ;; esac
done

# Pages that the program writes of itself.
for page in man/man1/invonnx.1 man/man1/invonnx-train.1 bash-completion/completions/invonnx \
    zsh/site-functions/_invonnx fish/vendor_completions.d/invonnx.fish; do
    [ -s "$folder/usr/share/$page" ] || { echo "$page is not installed"; exit 1; }
done

# Pages that messages name.
doc=$folder/usr/share/doc/invonnx
grep -rhoE 'docs/[a-z-]+\.md' --include='*.[ch]' --include='*.inc' cli data core importer passes executor ops inverses | sort -u | while read -r page; do
    [ -s "$doc/$page" ] || { echo "$page is not installed"; exit 1; }
done
[ -s "$doc/README.md" ]

# Plugins, far from the source tree.
PATH=$folder/usr/bin:$PATH
cp -r examples/plugin "$folder/plugin"
mkdir "$folder/plugin/examples" && cp -r examples/rules "$folder/plugin/examples/rules"
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
"${INVONNX_PYTHON:-python3}" "$follow" --in "$folder/plugin" $pages
