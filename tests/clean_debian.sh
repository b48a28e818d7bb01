#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packages as tools/packages.sh makes them: two builds, in folders of different names, have equal bytes, and on a bare
# Debian 12 they install, train, are compiled against, and go again. Needs root, mmdebstrap and Debian's archive; 77 without.
#   clean_debian.sh [FOLDER]   FOLDER: packages that are made already; only these are tried
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "$(id -u)" -ne 0 ] || ! command -v mmdebstrap >/dev/null; then
    echo "needs root and mmdebstrap"
    exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder" # apt reads the packages as a user of its own
packages=${1:-}

if [ -z "$packages" ]; then
    export SOURCE_DATE_EPOCH=1700000000
    for tree in a another/folder; do
        mkdir -p "$folder/$tree"
        git ls-files -z | xargs -0 cp --parents -t "$folder/$tree"
    done
    for tree in a another/folder; do
        "$folder/$tree/tools/packages.sh" "$folder/$tree/made" >"$folder/log" 2>&1 || { tail -n 40 "$folder/log"; exit 1; }
    done
    for package in "$folder"/a/made/*.deb; do
        cmp "$package" "$folder/another/folder/made/$(basename "$package")"
    done
    packages=$folder/a/made
fi

mkdir "$folder/given"
cp "$packages"/*.deb "$folder/given"
cp -r examples "$folder/given/examples"
cat >"$folder/given/try.sh" <<'END'
set -eux
cd /tmp/given
export DEBIAN_FRONTEND=noninteractive
apt-get install -y --no-install-recommends ./invonnx_*.deb
invonnx --version
test -s /usr/share/man/man1/invonnx-train.1.gz
test -s /usr/share/doc/invonnx/copyright
cd examples
invonnx train revnet_digits.onnx --data data/digits_val_x.npy --target data/digits_val_y.npy --loss cross_entropy \
    --steps 5 -o /tmp/out.onnx
invonnx eval /tmp/out.onnx --data data/digits_val_x.npy --target data/digits_val_y.npy --loss cross_entropy
cd ..
apt-get install -y --no-install-recommends ./libinvonnx*.deb gcc libc6-dev cmake make pkg-config
cc -std=c17 examples/train.c -o train $(pkg-config --cflags --libs invonnx)
ldd train | grep '/libinvonnx.so.0 '
./train examples/revnet_digits.onnx x examples/data/digits_val_x.npy examples/data/digits_val_y.npy out.onnx 1
mkdir project
cat >project/CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(loop LANGUAGES C)
find_package(invonnx REQUIRED)
add_executable(loop ../examples/loop.c)
target_link_libraries(loop PRIVATE invonnx::invonnx m)
CMAKE
cmake -S project -B project/build
cmake --build project/build
apt-get purge -y invonnx libinvonnx0 libinvonnx-dev
if find / -xdev -name '*invonnx*' -not -path '/tmp/*' -not -path '/root/.cache/*' -not -path '/var/log/*' | grep .; then
    echo "something stays"
    exit 1
fi
END
# shellcheck disable=SC2016  # the folder is told by mmdebstrap
mmdebstrap --variant=apt --quiet --customize-hook="copy-in $folder/given /tmp" \
    --customize-hook='chroot "$1" sh /tmp/given/try.sh' bookworm /dev/null
