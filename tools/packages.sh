#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the packages for Debian: program, library, headers. The same tree gives the same bytes, in whatever folder: times in
# them are that of the last commit, or SOURCE_DATE_EPOCH.
#   tools/packages.sh FOLDER
set -euo pipefail
folder=$(realpath -m "$1")
cd "$(dirname "$(realpath "$0")")/.."
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
umask 022
cmake --preset package
cmake --build --preset package -j "$(nproc)"
mkdir -p "$folder"
cpack --config build/package/CPackConfig.cmake -B "$folder"
rm -rf "$folder/_CPack_Packages"
