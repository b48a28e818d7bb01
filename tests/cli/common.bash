# SPDX-License-Identifier: Apache-2.0
# What the shell tests share. INVONNX names the program, INVONNX_PYTHON a Python with numpy.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
models=$here/../data/models
INVONNX=${INVONNX:-$here/../../build/dev/invonnx}
INVONNX_PYTHON=${INVONNX_PYTHON:-$here/../../.venv/bin/python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0

wrong() { echo "FAILED: $*"; sed 's/^/    /' "$work/err"; bad=1; }

# expect STATUS ARGUMENT...: the exit status; results stay in $work/out and $work/err
expect() {
    local wanted=$1 got
    shift
    "$INVONNX" "$@" >"$work/out" 2>"$work/err"
    got=$?
    [ $got = "$wanted" ] || wrong "exit $got, not $wanted: invonnx $*"
    if [ "$wanted" != 0 ]; then
        # what a run has said until then stays, and --json has an object for what went wrong
        [[ "${1-} $*" != train\ * && "$*" != *--json* ]] && [ -s "$work/out" ] && wrong "wrote to stdout though it failed: invonnx $*"
        grep -q '^invonnx: ' "$work/err" || wrong "no message: invonnx $*"
    fi
}

# says WORD...: each is in the messages of the last call
says() {
    local word
    for word; do grep -qF -- "$word" "$work/err" || wrong "does not say '$word'"; done
}

# prints WORD...: likewise on stdout
prints() {
    local word
    for word; do grep -qF -- "$word" "$work/out" || wrong "does not print '$word'"; done
}

# python CODE: with json loaded from the last call's stdout as `r`, numpy as np
python() {
    (cd "$work" && "$INVONNX_PYTHON" -c "
import json, os, sys
import numpy as np
def report(name='out'): return json.load(open(name))
$1") >"$work/py" 2>&1 || { wrong "python: $1"; sed 's/^/    /' "$work/py"; }
}

finish() { [ $bad = 0 ] && echo "all good"; exit $bad; }
