# SPDX-License-Identifier: Apache-2.0
# The command line itself: help, versions, wrong usage.
. "$(dirname "$0")/common.bash"
model=$models/nice_chunk_ts17/model.onnx

expect 0 --version; prints "invonnx 0."
expect 0 --help
prints inspect explain check rewrite run grad plan train eval compare rules ops selftest checkpoint "Exit status"
for command in inspect explain check rewrite run grad plan train eval compare rules ops selftest checkpoint; do
    expect 0 $command --help; prints "usage: invonnx $command" Example --json
    expect 2 $command --nosuch; says "--nosuch" "invonnx $command --help"
    expect 2 $command "$model" a b c; says unexpected
done
expect 0 help train; prints --optimizer
expect 2 help nosuch; says nosuch

expect 2; says "--help"
expect 2 nosuch; says nosuch
expect 2 --nosuch; says --nosuch
for command in inspect explain check rewrite run grad plan train eval compare; do expect 2 $command; says MODEL; done
expect 2 inspect "$model" --precision bf16; says --precision "does not apply"
expect 2 grad "$model" --epochs 3; says "does not apply"
expect 2 grad "$model" --memory less; says less store recompute invert auto
expect 2 grad "$model" --loss; says "wants an argument"
for drift in 0 0.0 -1e-3 x nan inf 1e-999; do expect 2 grad "$model" --max-drift $drift; says "above 0" 2e-5; done
for size in 0 -3 1.5 0x2000 1MBit 2xib GiB x 1Mi 5K5; do expect 2 plan "$model" --loss mse --budget $size; says 512MiB; done
nll=(--loss nll --loss-output z --logdet logdet)
expect 1 plan "$model" "${nll[@]}" --budget 100; says "budget of 100 bytes" parameters
expect 0 plan "$model" "${nll[@]}" --device cuda --budget 2GiB --json
python "r = report(); assert r['device'] == 'cuda' and 0 < r['planned_peak_bytes'] <= 2**31 and r['peak_bytes'] == 0"
expect 1 plan "$model" "${nll[@]}" --device cuda --budget 5KiB; says "smallest plan found needs"
expect 2 grad "$model" --feed "$models/nice_chunk_ts17/in_x.npy" "${nll[@]}" --device abacus; says "--device abacus: there are"
expect 2 plan "$model" "${nll[@]}" --device abacus; says "--device abacus: there are"
expect 2 grad "$model" --threads 0; says "at least 1"
for n in 5000 4294967298; do # before rates are measured, and not cut to an int
    expect 2 plan "$model" --loss mse --cost time --threads $n; says "at most 4096"
done
expect 2 plan "$model" --loss mse --batch -3; says "at least 1"
expect 2 plan "$model"; says --loss
expect 2 plan "$model" --loss mse --mode "x=maybe"; says "GLOB=store|recompute|invert"
expect 2 plan "$model" --loss mse --dim nosuch=3; says nosuch
expect 2 grad "$model" --feed "$models/nice_chunk_ts17/in_x.npy" --loss mse; says --target
expect 2 grad "$model" --feed "$models/nice_chunk_ts17/in_x.npy" --loss nll --target x.npy; says "others take no target"
expect 2 train "$model" --loss mse; says "-o"
expect 2 train "$model" --loss mse -o "$work/o.onnx" --epochs 1 --steps 2; says exclude
expect 2 train "$model" --loss mse -o "$work/o.onnx"; says --data
expect 1 inspect "$work/absent.onnx"; says absent.onnx

for what in ops rules; do
    expect 0 $what --json
    python "r = report()['$what']; assert len(r) > 5 and all(e['name'] for e in r)"
    expect 0 $what
done
expect 0 inspect "$model" --json
python "r = report(); assert [i['name'] for i in r['inputs']] == ['x'] and r['initializers'] and r['operators']"
expect 0 inspect "$model"; prints inputs initializers
expect 0 inspect "$models/nice_dynbatch_ts17/model.onnx"; prints "shape [batch,"

# a full disk or a closed pipe is not success
if [ -w /dev/full ]; then
    "$INVONNX" ops --json >/dev/full 2>"$work/err" && wrong "success though stdout is full"
    says "cannot be written"
fi
finish
