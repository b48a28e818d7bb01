#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the path of a CUDA compiler: $NVCC, that of the PATH, of /usr/local/cuda, else one unpacked from PyPI's wheels
# (tests/nvcc-requirements.txt, 130 MB) into .nvcc, which is made when it is not there. Needs python3 with pip or .venv.
set -euo pipefail
cd "$(dirname "$0")/.."

works() { [ -n "$1" ] && command -v "$1" >/dev/null && "$1" --version >/dev/null 2>&1; }

if [ -n "${NVCC:-}" ]; then
    works "$NVCC" || { echo "nvcc: NVCC=$NVCC does not run" >&2; exit 1; }
    command -v "$NVCC"
    exit 0
fi
if [ "${1:-}" != --wheels ]; then # to test the way below where a toolkit is installed
    for nvcc in nvcc /usr/local/cuda/bin/nvcc; do
        if works "$nvcc"; then
            command -v "$nvcc"
            exit 0
        fi
    done
fi

tools/wheels.sh tests/nvcc-requirements.txt .nvcc
chmod +x .nvcc/nvidia/cu*/bin/* .nvcc/nvidia/cu*/nvvm/bin/*
for nvcc in .nvcc/nvidia/cu*/bin/nvcc; do
    if works "$nvcc"; then
        echo "$PWD/$nvcc"
        exit 0
    fi
done
echo "nvcc: what .nvcc holds does not run; remove it and try again" >&2
exit 1
