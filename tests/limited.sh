#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a test. None of its processes may use more than SECONDS of processor time, however busy the machine is; what all of
# them have used is the last line of the output.
#   tests/limited.sh SECONDS COMMAND...
ulimit -t "$1" || exit 1
shift
TIMEFORMAT="limited: %U s + %S s of processor time"
time "$@"
