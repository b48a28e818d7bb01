# SPDX-License-Identifier: Apache-2.0
# train, eval, compare and plan: batches and their rest, order, archives, interruption, pictures.
. "$(dirname "$0")/common.bash"
model=$models/nice_dynbatch_ts17/model.onnx
out=$work/out.onnx

python "
g = np.random.default_rng(3)
x = g.standard_normal((37, 8)).astype('f4'); y = np.tanh(x @ g.standard_normal((8, 8)).astype('f4')).astype('f4')
np.save('x.npy', x); np.save('y.npy', y); np.savez('xy.npz', x=x, y=y); np.savez_compressed('packed.npz', x=x, target=y)
np.save('short.npy', y[:36]); np.save('none.npy', x[:0])
x[5, 2] = np.nan; np.save('nan.npy', x)
"
xy="--data $work/x.npy --target $work/y.npy --loss mse -o $out"

expect 0 train "$model" $xy --batch 8 --epochs 2 --seed 4 --json --val-data "$work/xy.npz" --optimizer momentum
cp "$work/out" "$work/first"
python "
r = report()
assert len(r['steps']) == 10 and r['steps_done'] == 10 and len(r['epochs']) == 2
weights = np.array([8, 8, 8, 8, 5]) / 37
for e in (0, 1):
    assert abs(np.dot(weights, r['steps'][5 * e:5 * e + 5]) - r['epochs'][e]['train_loss']) < 1e-9
assert r['epochs'][1]['val_loss'] < r['epochs'][0]['val_loss']
assert r['peak_bytes'] <= r['planned_peak_bytes'] and r['blocks']
"
expect 0 eval "$out" --data "$work/xy.npz" --loss mse --batch 8 --json
python "assert abs(report()['loss'] - report('first')['epochs'][1]['val_loss']) < 1e-6 and report()['samples'] == 37"
expect 0 eval "$out" --data "$work/xy.npz" --loss mse --batch 37; prints loss "37 samples"

# the same rows from elsewhere, the same numbers; another seed or order, others
for data in "--data $work/xy.npz" "--data x=$work/packed.npz"; do
    expect 0 train "$model" $data --loss mse -o "$out" --batch 8 --epochs 2 --seed 4 --json --optimizer momentum
    python "assert report()['steps'] == report('first')['steps']"
done
for other in "--seed 5" "--seed 4 --no-shuffle"; do
    expect 0 train "$model" $xy --batch 8 --epochs 2 $other --json --optimizer momentum
    python "assert report()['steps'] != report('first')['steps']"
done
expect 0 train "$model" $xy --batch 8 --drop-last --json
python "assert len(report()['steps']) == 4"
expect 0 train "$model" $xy --batch 8 --steps 7 --json --optimizer adamw --weight-decay 0.01
python "assert len(report()['steps']) == 7 and [e['epoch'] for e in report()['epochs']] == [1, 2]"
expect 0 train "$model" $xy --lr 0 --no-shuffle --epochs 2 --batch 37 --json
python "assert report()['steps'][0] == report()['steps'][1]"

# nothing is written when something is wrong
rm -f "$out"
expect 1 train "$model" --data "$work/x.npy" --target "$work/short.npy" --loss mse -o "$out"; says short.npy 36 37
expect 1 train "$model" --data "$work/none.npy" --target "$work/y.npy" --loss mse -o "$out"; says none.npy rows
expect 1 train "$model" --data "$work/x.npy" --loss mse -o "$out"; says --target
expect 1 train "$model" --data "$work/nan.npy" --target "$work/y.npy" --loss mse -o "$out" --batch 8 --no-shuffle; says "nothing was saved"
expect 1 train "$model" $xy -o "$work/no/such/folder/out.onnx"; says folder
[ -e "$out" ] && wrong "a failed training wrote a model"

# -o: what cannot be written, or is read, is refused before the first step and left alone
cp "$model" "$work/in.onnx"; ln -s x.npy "$work/soft"; ln "$work/y.npy" "$work/hard"; ln -s nowhere "$work/broken"
mkdir "$work/folder"; sha256sum "$work"/*.np? "$work/in.onnx" >"$work/sums"
mse="--data x=$work/x.npy --target $work/y.npy --val-data $work/xy.npz --loss mse --epochs 1000000 -o"
for bad_out in x.npy y.npy xy.npz in.onnx soft hard folder/../x.npy ./folder/.././in.onnx; do
    expect 1 train "$work/in.onnx" $mse "$work/$bad_out"; says "$bad_out" reads
    grep -qs "planned peak" "$work/out" "$work/err" && wrong "trained before it looked at -o $bad_out"
done
expect 1 train "$work/in.onnx" $mse "$work/folder"; says "is a folder"
expect 1 train "$work/in.onnx" $mse "$work/no/out.onnx"; says "its folder" "No such file"
expect 1 train "$work/in.onnx" $mse "$work/x.npy/out.onnx"; says "x.npy/out.onnx"
expect 1 train "$work/in.onnx" $mse "$work/broken"; says "leads nowhere"
expect 1 train "$work/in.onnx" $mse /dev/null; says "not a regular file"
expect 2 train "$work/in.onnx" $mse "$work/folder/"; says "is a folder"
expect 2 train "$work/in.onnx" $mse ""; says "wants OUT.onnx"
sha256sum -c --quiet "$work/sums" >"$work/py" 2>&1 || wrong "a file that is read was changed"
[ -z "$(ls -A "$work/folder")" ] || wrong "something was left in a folder"

# a link stays, what it points to is written
echo old >"$work/folder/real.onnx"; ln -s folder/real.onnx "$work/link.onnx"
expect 0 train "$model" $xy --steps 1 -o "$work/link.onnx"
[ -L "$work/link.onnx" ] || wrong "the link was replaced"
expect 0 inspect "$work/folder/real.onnx"

# over the limit of file sizes: said, not killed; nothing half-written stays
net=$models/revnet8_ts17
limited() { "$INVONNX_PYTHON" -c "
import os, resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
os.execv(sys.argv[1], sys.argv[1:])" "$INVONNX" "$@" >"$work/out" 2>"$work/err"; }
limited train "$net/model.onnx" --data "$net/in_x.npy" --target "$net/target.npy" --loss cross_entropy -o "$work/folder/big.onnx"
[ $? = 1 ] || wrong "over the limit of file sizes: not exit 1"
says "File too large" "big.onnx" "elsewhere"
limited grad "$net/model.onnx" --feed "$net/in_x.npy" --target "$net/target.npy" --loss cross_entropy --dump "$work/dump"
[ $? = 1 ] || wrong "a dump over the limit of file sizes: not exit 1"
says "File too large"
[ -e "$work/dump" ] && wrong "half a dump stayed"
[ "$(ls "$work/folder")" = real.onnx ] || wrong "a temporary file stayed"

# Returns when the training in the background has begun, however busy the machine is.
under_way() {
    while kill -0 $pid && ! grep -qs "planned peak" "$work/out" "$work/err"; do sleep 0.1; done
    sleep 1
}

# what cannot be saved where it should is saved beside it
"$INVONNX" train "$model" $xy --batch 1 --epochs 1000000 -o "$work/folder/late.onnx" >"$work/out" 2>"$work/err" &
pid=$!
under_way
mkdir "$work/folder/late.onnx"
kill -HUP $pid
wait $pid && wrong "success though the model could not be saved"
says "rescued-$pid.onnx"
expect 0 inspect "$work/folder/late.onnx.rescued-$pid.onnx"

# the losses of the first 1000 steps are listed
expect 0 train "$model" $xy --steps 1001 --json
python "assert len(report()['steps']) == 1000 and report()['steps_truncated'] is True"

# an interrupt ends after the step and saves
"$INVONNX" train "$model" $xy --batch 1 --epochs 1000000 --json >"$work/out" 2>"$work/err" &
pid=$!
under_way
kill -INT $pid
wait $pid
[ $? = 130 ] || wrong "an interrupted training: not exit 130"
says "stopped after step"
python "assert report()['interrupted'] is True and report()['steps_done'] > 0"
expect 0 inspect "$out"

# labels that cannot be
digits=$here/../../examples/data/digits_val
if [ -e "${digits}_x.npy" ]; then
    python "y = np.load('${digits}_y.npy'); np.save('over.npy', y + 1); np.save('under.npy', y - 1); np.save('bytes.npy', y.astype('u1'))"
    net=$here/../../examples/revnet_digits.onnx
    expect 1 eval "$net" --data "${digits}_x.npy" --target "$work/over.npy" --loss cross_entropy; says 10
    expect 1 eval "$net" --data "${digits}_x.npy" --target "$work/under.npy" --loss cross_entropy; says -1
    expect 0 eval "$net" --data "${digits}_x.npy" --target "$work/bytes.npy" --loss cross_entropy --json
    python "assert 0 <= report()['accuracy'] <= 1 and report()['rows'] == report()['samples']"
fi

# modes side by side, and pictures that stand alone
net=$models/revnet8_ts17
expect 0 compare "$net/model.onnx" --feed "$net/in_x.npy" --target "$net/target.npy" --loss cross_entropy --repeat 1 --json \
    --html "$work/compare.svg"
python "
import xml.etree.ElementTree as tree
m = {r['memory']: r for r in report()['modes']}
assert list(m) == ['store', 'recompute', 'invert']
assert m['recompute']['gradient_distance'] == 0 and m['recompute']['loss'] == m['store']['loss']
assert 0 < m['invert']['gradient_distance'] < 1e-2
assert m['invert']['activation_peak_bytes'] < m['store']['activation_peak_bytes']
text = open('compare.svg').read()
assert len(tree.fromstring(text).findall('.//{*}path')) > 15
assert 'http' not in text.replace('http://www.w3.org/2000/svg', '') and 'prefers-color-scheme' in text and '<title>' in text
"
expect 0 plan "$models/nice_chunk_ts17/model.onnx" --loss mse --loss-output z --batch 4 --html "$work/plan.html" --json
python "
r = report()
assert r['planned_peak_bytes'] > r['activation_peak_bytes'] > 0 and r['timeline'] and r['values']
text = open('plan.html').read()
assert text.startswith('<!doctype html>') and 'forward' in text and 'backward' in text and 'peak' in text
"
expect 0 plan "$net/model.onnx" --loss cross_entropy; prints "planned peak" parameters choices
expect 1 plan "$net/model.onnx" --loss cross_entropy --html "$work/no/such/plan.html"; says plan.html
expect 0 explain "$net/model.onnx" --json
python "r = report(); assert any(b['kind'] == 'additive_coupling' for b in r['blocks']); open('node', 'w').write(r['blocks'][0]['nodes'][0])"
expect 0 explain "$net/model.onnx" "$(cat "$work/node")"; prints "$(cat "$work/node")"
expect 1 explain "$net/model.onnx" nosuchnode; says nosuchnode
finish
