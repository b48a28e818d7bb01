#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what a build needs on Debian 12, makes the virtual environment .venv of the tests, and sees to oneDNN 3 in
# .onednn, which the tests run beside Debian's 2, and to a CUDA compiler (tools/nvcc.sh) for the test that device code
# compiles.
# Does nothing, quickly, when all is there. Needs root or sudo only if something is missing.
#   tools/setup.sh            everything
#   tools/setup.sh --no-venv  what the library and the program need
#   tools/setup.sh --packages NAME...  these Debian packages and nothing else
#   tools/setup.sh --notebooks  .notebooks, an environment that executes those of examples/, and nothing else
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(
    gcc g++ libc6-dev cmake ninja-build pkg-config
    protobuf-c-compiler libprotobuf-c-dev libonnx-dev
    libopenblas-openmp-dev liblapacke-dev libdnnl-dev libjansson-dev libxxhash-dev libpopt-dev libminizip-dev zlib1g-dev
    libjpeg-dev libpng-dev libopenmpi-dev openmpi-bin
    libcmocka-dev libonnx-testdata python3 python3-dev python3-venv ca-certificates dpkg-dev file
)

if [ "${1:-}" = --packages ]; then
    packages=("${@:2}")
fi

# environment FOLDER LIST WHAT: with the packages of the list. The stamp holds what was installed, so that a changed list
# is noticed.
environment() {
    if [ -x "$1/bin/python3" ] && cmp -s "$2" "$1/requirements.done"; then
        echo "setup: $1 is there"
        return
    fi
    # Any python3 that can make a virtual environment and is one of the versions that the pinned wheels exist for.
    for python in python3 /usr/bin/python3; do
        if "$python" -c 'import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
            >/dev/null 2>&1; then
            break
        fi
    done
    echo "setup: making $1 ($3)"
    rm -rf "$1"
    "$python" -m venv "$1"
    "$1/bin/python3" -m pip install --quiet --disable-pip-version-check -r "$2"
    cp "$2" "$1/requirements.done"
}

if [ "${1:-}" = --notebooks ]; then
    environment .notebooks tests/notebook-requirements.txt "Jupyter's kernel: for the notebooks only"
    exit 0
fi

as_root() {
    if [ "$(id -u)" -eq 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        echo "setup: not root, and no sudo; as root run: $*" >&2
        exit 1
    fi
}

missing=()
for package in "${packages[@]}"; do
    state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [ "$state" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    echo "setup: installing ${missing[*]}"
    log=$(mktemp)
    if ! { as_root apt-get update && as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y \
        --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
        cat "$log" >&2
        echo "setup: apt-get failed, see above" >&2
        exit 1
    fi
    rm -f "$log"
else
    echo "setup: Debian packages are there"
fi

[ "${1:-}" = --no-venv ] || [ "${1:-}" = --packages ] && exit 0

environment .venv tests/requirements.txt "numpy, onnx, onnxruntime, clang-format and the like: for the tests only"

if [ "$(uname -m)" = x86_64 ]; then # there are no wheels of it for others
    tools/wheels.sh tests/onednn-requirements.txt .onednn
    echo "setup: oneDNN 3 is there"
fi

nvcc=$(tools/nvcc.sh)
echo "setup: CUDA compiler $nvcc"
toolkit=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
if [ -n "$(find "$toolkit" -follow -name cublasLt.h -print -quit 2>/dev/null)" ]; then
    echo "setup: cuBLASLt is the toolkit's"
elif [ "$(uname -m)" = x86_64 ] && tools/wheels.sh tests/cudalibs-requirements.txt .cudalibs; then
    echo "setup: cuBLASLt and cuDNN are there"
else
    echo "setup: no cuBLASLt: the tests on a stand-in for a GPU will be skipped"
fi
