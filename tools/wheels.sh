#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unpacks the wheels that a list of pinned requirements names into a folder, unless it holds them already. They are not
# installed, and what they depend on is not looked at. Needs python3 with pip, or .venv.
#   tools/wheels.sh LIST FOLDER
set -euo pipefail
cd "$(dirname "$0")/.."
list=$1 folder=$2

# The stamp holds what was unpacked, so that a changed list is noticed.
cmp -s "$list" "$folder/requirements.done" && exit 0
echo "wheels: unpacking $list into $folder" >&2
python=.venv/bin/python3
[ -x $python ] || python=python3
rm -rf "$folder" "$folder.part"
mkdir -p "$folder.part/wheels"
trap 'rm -rf "$folder.part"' EXIT
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --no-cache-dir \
    -d "$folder.part/wheels" -r "$list" >&2
for wheel in "$folder.part"/wheels/*.whl; do
    "$python" -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extractall(sys.argv[2])' "$wheel" "$folder.part"
done
rm -rf "$folder.part/wheels"
cp "$list" "$folder.part/requirements.done"
mv "$folder.part" "$folder"
trap - EXIT
