# SPDX-License-Identifier: Apache-2.0
# What the runs of this folder share. They are called with [--small] [FOLDER]: with --small a run takes seconds instead
# of minutes, and its model is not worth much; FOLDER is where all is written, by default build/examples/NAME.
# Sets small (empty or yes), out, program and python, and goes to the root of the repository.
say() { printf '\n== %s\n' "$*"; }
show() { # a command as it can be typed, then what it does
    local word line=
    for word; do
        [[ $word =~ ^[A-Za-z0-9_.,:=/%@+-]+$ ]] || word=\"$word\"
        line+=" $word"
    done
    printf '$%s\n' "$line"
    "$@"
}

root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
named() { realpath -ms --relative-base="$root" "$1"; } # from the root, where it is below that

small=
if [ "${1:-}" = --small ]; then
    small=yes
    shift
fi
if [ $# -gt 1 ] || [[ "${1:-}" == -* ]]; then
    echo "usage: $0 [--small] [FOLDER]" >&2
    exit 2
fi
out=$(named "${1:-$root/build/examples/${0##*/run_}${small:+_small}}")

program=${INVONNX:-}
for built in "$root/build/native/invonnx" "$root/build/release/invonnx" "$(command -v invonnx || true)"; do
    [ -z "$program" ] && [ -x "$built" ] && program=$built
done
if ! [ -x "$program" ]; then
    echo "$0: ${program:-invonnx} is not there. ./demo builds it; so does: cmake --preset release && cmake --build --preset release" >&2
    exit 1
fi
program=$(named "$program")

# The Python of the tests has numpy and onnxruntime, where ./test has made it.
python=${INVONNX_PYTHON:-$root/.venv/bin/python3}
[ -x "$python" ] && python=$(named "$python") || python=python3

cd "$root" || exit 1
mkdir -p "$out"

# Runs a script of this folder that needs onnxruntime, where there is one.
in_onnxruntime() {
    if "$python" -c 'import numpy, onnxruntime' 2>/dev/null; then
        show "$python" "$@"
    else
        echo "skipped, as $python has no onnxruntime (pip install onnxruntime): $python $*"
    fi
}
