#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cpack makes three packages of a build, with the same bytes whenever it does, each with what belongs to it and what it
# depends on. Unpacked, the program runs.  $1: build folder.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export SOURCE_DATE_EPOCH=1700000000
for time in first second; do
    cpack --config "$1/CPackConfig.cmake" -B "$folder/$time" >"$folder/log" || { cat "$folder/log"; exit 1; }
done
shopt -s nullglob
cd "$folder/first"
packages=(*.deb)
[ "${packages[*]}" = "$(echo invonnx_*.deb libinvonnx-dev_*.deb libinvonnx0_*.deb)" ]
for package in "${packages[@]}"; do
    cmp "$package" "../second/$package"
    dpkg-deb -x "$package" "$folder/root"
    dpkg-deb -c "$package" | awk '{ print $6 }' >"$folder/$(dpkg-deb -f "$package" Package)"
done
cd "$folder"

# has PACKAGE PATTERN...: each is a file of it
has() {
    local package=$1 pattern
    shift
    for pattern; do grep -Eq "/$pattern\$" "$package" || { echo "$package has no $pattern"; exit 1; }; done
}
has invonnx bin/invonnx man1/invonnx.1 man1/invonnx-train.1 doc/invonnx/docs/runs.md bash-completion/completions/invonnx
has libinvonnx0 'libinvonnx\.so\.0' 'libinvonnx\.so\.0\.[0-9]+\.[0-9]+'
has libinvonnx-dev include/invonnx/invonnx.h 'libinvonnx\.so' 'libinvonnx\.a' pkgconfig/invonnx.pc invonnxConfig.cmake
sort invonnx libinvonnx0 libinvonnx-dev | grep -v '/$' | uniq -d | grep . && { echo "in two packages"; exit 1; }

depends() { dpkg-deb -f "first/$1"_*.deb Depends; }
depends invonnx | grep -q 'libopenblas0.*libpopt0'
depends libinvonnx0 | grep -q 'libprotobuf-c1'
depends libinvonnx0 | grep -q libpopt0 && { echo "the library depends on what the program needs"; exit 1; }
[ "$(depends libinvonnx-dev)" = "libinvonnx0 (= $(dpkg-deb -f first/invonnx_*.deb Version))" ]
program=$(find root -path '*bin/invonnx')
"./$program" --version
