#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What preset `arm64` needs: Debian's cross compiler and qemu, which are installed if they are missing, and Debian's
# libraries for arm64, which are unpacked into .arm64 (download 22 MB, 140 MB on disk) and not installed.
set -euo pipefail
cd "$(dirname "$0")/.."

libraries=(
    libc6-dev libopenblas-openmp-dev liblapacke-dev libdnnl-dev libjansson-dev libpopt-dev libminizip-dev zlib1g-dev
    libprotobuf-c-dev libcmocka-dev libxxhash-dev
)
tools/setup.sh --packages gcc-aarch64-linux-gnu g++-aarch64-linux-gnu qemu-user-static

# The stamp holds what was unpacked, so that a changed list is noticed.
if [ "$(cat .arm64/done 2>/dev/null)" = "${libraries[*]}" ]; then
    echo "setup: libraries for arm64 are there"
    exit 0
fi
echo "setup: unpacking ${libraries[*]} for arm64 into .arm64"
rm -rf .arm64 .arm64.part
trap 'rm -rf "$PWD/.arm64.part"' EXIT
apt=$PWD/.arm64.part/apt root=$PWD/.arm64.part/root
mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$root/usr/lib"
: >"$apt/status"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian bookworm main" \
    >"$apt/sources.list"
# An apt of its own: another architecture, nothing installed, the lists and the archives beside them.
options=(
    -q -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Sandbox::User=
    -o Dir::State="$apt" -o Dir::State::lists="$apt/lists" -o Dir::State::status="$apt/status"
    -o Dir::Cache="$apt/cache" -o Dir::Etc::sourceparts=/dev/null -o Dir::Etc::sourcelist="$apt/sources.list"
)
if ! { apt-get "${options[@]}" update && apt-get "${options[@]}" install -y --download-only \
    --no-install-recommends "${libraries[@]}"; } >"$apt/log" 2>&1; then
    cat "$apt/log" >&2
    exit 1
fi
for archive in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$archive" "$root"; done

# What an installation would do: one folder lib, links within the tree, OpenBLAS for the alternatives of BLAS and LAPACK.
cp -a "$root/lib/." "$root/usr/lib/"
rm -rf "$root/lib"
ln -s usr/lib "$root/lib"
find "$root" -type l -lname '/*' | while read -r link; do
    ln -sfnr "$root$(readlink "$link")" "$link"
done
lib=$root/usr/lib/aarch64-linux-gnu
ln -s openblas-openmp/{libopenblas.so,libopenblas.so.0,libblas.so,libblas.so.3,liblapack.so,liblapack.so.3} "$lib"
for name in blas lapack; do ln -s "../openblas-openmp/pkgconfig/$name-openblas.pc" "$lib/pkgconfig/$name.pc"; done
ln -s ../openblas-openmp/pkgconfig/openblas.pc "$lib/pkgconfig"
rm -rf "$apt"
mv "$root" .arm64
rmdir .arm64.part
echo "${libraries[*]}" >.arm64/done
trap - EXIT
