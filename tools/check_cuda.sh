#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compiles every .cu file of ops/ for sm_80, sm_90 and sm_100; warnings are errors, and so are registers that are spilled to
# memory. Needs no device.
#   tools/check_cuda.sh [BUILD_DIR]
# Objects go to BUILD_DIR/cuda-check (default: build); one is made again only when the compiler, the options or a file
# that it includes has changed.
set -euo pipefail
cd "$(dirname "$0")/.."

nvcc=$(tools/nvcc.sh)
out=${1:-build}/cuda-check
# shellcheck disable=SC2054  # the commas are nvcc's
options=(-c -O2 -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 -gencode arch=compute_100,code=sm_100
    -std=c++17 --fmad=false -DINV_HAVE_CUDA=1 -I. -Iinclude
    -Werror all-warnings -Xptxas -warn-spills -Xcompiler -Wall,-Wextra,-fno-exceptions,-fno-rtti,-fPIC)
mkdir -p "$out"
how="$("$nvcc" --version) ${options[*]}"
[ "$(cat "$out/how" 2>/dev/null)" = "$how" ] || echo "$how" >"$out/how"

# Is the object newer than all that it was made from? A file that is gone counts as changed.
fresh() {
    local -a from
    [ -f "$out/$1.o" ] && [ -f "$out/$1.d" ] || return 1
    mapfile -t from < <(sed -e 's/^[^:]*: //' -e 's/\\$//' -e 's/^ *//; s/ *$//' "$out/$1.d" | grep .)
    [ -z "$(find "${from[@]}" "$out/how" -newer "$out/$1.o" 2>&1 | head -n 1)" ]
}

todo=()
n=0
for file in ops/*/*.cu; do
    n=$((n + 1))
    fresh "$(basename "$file" .cu)" || todo+=("$file")
done
if [ ${#todo[@]} -gt 0 ]; then
    # The object appears only when all went well; after a failure the next call tries again.
    # shellcheck disable=SC2016
    printf '%s\n' "${todo[@]}" | xargs -P "$(nproc)" -I FILE bash -c '
        out=$1/$(basename FILE .cu) nvcc=$2
        shift 2
        rm -f "$out.o"
        "$nvcc" "$@" -MD -MF "$out.d" FILE -o "$out.part.o" && mv "$out.part.o" "$out.o" ||
            { echo "FILE: does not compile"; exit 1; }' compile "$out" "$nvcc" "${options[@]}"
fi
# The backend's C files, as far as the headers are there (the wheels have none of cuBLAS and cuDNN).
include=$(dirname "$(dirname "$(readlink -f "$nvcc")")")/include
for dir in "$include" "$(dirname "$include")"/targets/*/include; do [ -f "$dir/cuda_runtime_api.h" ] && include=$dir; done
c=(executor/device/cuda.c)
[ -f "$include/cublasLt.h" ] && c+=(executor/device/cuda_libs.c executor/device/cuda_lt.c executor/device/cuda_dnn.c)
{
    printf '%s\n' "${c[@]}"
    grep -lE 'INV_GPU\(|INV_HAVE_CUDA' ops/*/*.c executor/device/devices.c
} | xargs -P "$(nproc)" -n 8 gcc -std=c17 -D_XOPEN_SOURCE=700 -DINV_HAVE_CUDA=1 -Wall -Wextra -Wshadow -Wconversion -Werror \
    -fopenmp -fsyntax-only -I. -Iinclude -isystem "$include"
echo "backend: ${c[*]} and the operators compile with CUDA"
echo "device code: $n files compile for sm_80, sm_90 and sm_100 (${#todo[@]} compiled now)"
