# SPDX-License-Identifier: Apache-2.0
# Arrays in and out: every kind of .npy and .npz that is taken gives the same result, the others are refused in words.
. "$(dirname "$0")/common.bash"
folder=$models/nice_dynbatch_ts17
model=$folder/model.onnx
cp "$folder/in_x.npy" "$work/x.npy"

python "
x = np.load('x.npy')
np.save('f8.npy', x.astype('<f8'))
for v in ((2, 0), (3, 0)):
    with open(f'v{v[0]}.npy', 'wb') as f: np.lib.format.write_array(f, x, version=v)
np.savez('stored.npz', x=x, y=x[:1])
np.savez_compressed('packed.npz', y=x[:1], x=x)
np.savez('alone.npz', other=x)
raw = open('x.npy', 'rb').read()
odd = raw.replace(b\"{'descr': '<f4', 'fortran_order': False,\", b'{\"fortran_order\":False ,\"descr\":\"<f4\",  ', 1)
assert odd != raw
open('odd.npy', 'wb').write(odd[:len(raw)])
np.save('fortran.npy', np.asfortranarray(x))
np.save('big.npy', x.astype('>f4'))
np.save('complex.npy', x.astype('c8'))
np.save('struct.npy', np.zeros(x.shape, [('a', 'f4')]))
np.save('rank.npy', x[0])
np.save('extent.npy', np.concatenate([x, x], -1))
open('short.npy', 'wb').write(raw[:-1])
open('long.npy', 'wb').write(raw + b'0')
open('head.npy', 'wb').write(raw[:40])
open('empty.npy', 'wb').write(b'')
open('text.npy', 'wb').write(b'hello, this is no array at all')
open('huge.npy', 'wb').write(raw.replace(b\"'shape': (\", b\"'shape': (99999999999999999999, \", 1)[:len(raw)])
open('product.npy', 'wb').write(raw.replace(b\"'shape': (\", b\"'shape': (4294967296, 4294967296, 8, \", 1)[:len(raw)])
open('negative.npy', 'wb').write(raw.replace(b\"'shape': (\", b\"'shape': (-\", 1)[:len(raw)])
np.savez('two.npz', a=x, b=x)
z = bytearray(open('packed.npz', 'rb').read()); z[200] ^= 255; z[300] ^= 255; open('damaged.npz', 'wb').write(z)
open('cut.npz', 'wb').write(open('stored.npz', 'rb').read()[:200])
"

expect 0 run "$model" --feed "$work/x.npy" --dump "$work/base"
for good in f8.npy v2.npy v3.npy stored.npz packed.npz alone.npz odd.npy; do
    expect 0 run "$model" --feed "x=$work/$good" --dump "$work/other"
    diff -r "$work/base" "$work/other" >"$work/err" || wrong "$good gives another result"
    rm -rf "$work/other"
done
for refused in fortran:Fortran big:big-endian complex:c8 struct:structured rank:shape extent:shape short:promises \
    long:promises head:header empty:empty text:"not a .npy" huge:large product:large negative:shape; do
    expect 1 run "$model" --feed "$work/${refused%%:*}.npy" --dump "$work/none"; says "${refused%%:*}.npy" "${refused#*:}" "'x'"
done
expect 1 run "$model" --feed "$work/two.npz" --dump "$work/none"; says two.npz a.npy b.npy
expect 1 run "$model" --feed "$work/damaged.npz" --dump "$work/none"; says damaged.npz
expect 1 run "$model" --feed "$work/cut.npz" --dump "$work/none"; says cut.npz
expect 1 run "$model" --feed "$work/absent.npy" --dump "$work/none"; says absent.npy
expect 2 run "$model"; says "'x'"
expect 2 run "$model" --feed "nosuch=$work/x.npy"; says nosuch "'x'"
expect 2 run "$model" --feed "$work/x.npy" --feed "x=$work/x.npy"; says twice
[ -e "$work/none" ] && wrong "a refused call wrote files"

# all files of grad, their types, and the names
expect 0 grad "$model" --feed "$work/x.npy" --target "$folder/target.npy" --loss mse --dump "$work/deep/er" --json
python "
r = report()
d = 'deep/er/'
files = sorted(os.listdir(d))
assert sorted(os.path.basename(f) for f in r['files']) == files
assert 'out_y.npy' in files and 'gradin_x.npy' in files, files
loss = np.load(d + 'loss.npy')
assert loss.dtype == np.float64 and loss.shape == (1,) and loss[0] == r['loss']
assert all(np.load(d + f).dtype == np.float32 for f in files if f != 'loss.npy')
assert not any(set(f) - set('ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-%') for f in files)
"
expect 0 grad "$model" --feed "$work/x.npy" --target "$folder/target.npy" --loss mse --dump "$work/wide" --float64
python "assert all(np.load('wide/' + f).dtype == np.float64 for f in os.listdir('wide'))"
expect 0 grad "$model" --feed "$work/x.npy" --target "$folder/target.npy" --loss mse; prints loss gradients "planned peak"
: >"$work/file"
expect 1 grad "$model" --feed "$work/x.npy" --target "$folder/target.npy" --loss mse --dump "$work/file/sub"; says file/sub
finish
