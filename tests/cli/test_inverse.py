# SPDX-License-Identifier: Apache-2.0
"""Writes the inverse direction of models (`rewrite --inverse-out`) and holds it to what docs/rewriting.md promises.

    test_inverse.py [--verbose] [MODEL-PREFIX...]

  flows      of tests/data/models and ../shared/models: onnx.checker accepts INV; the round trip through it gives the
             input again, within 1e-5 in float32 (by `run` and by onnxruntime) and 1e-12 with `run --float64`; the
             log-determinant by rules, and that from the model's own output, are the negative of the model's own
  Jacobian   of small models that are made here, one per invertible operator and compositions of them: the
             log-determinant is that of the Jacobian by central differences in float64, for every row of a batch
  maps       convolutions of patches and groups, transposed ones, Gemm with factors: round trips as above
  made       conditions (--given), dynamic batches, float64 models, rewritten models, batch normalization in training
             mode; open batches that extents equal, log-determinants of each sample of a fixed batch, under a condition
             that all samples share, for open extents, and from outputs of several shapes, names, slopes
  refusals   name the value, the node and the reason, end with exit status 1, and write nothing
"""
import argparse
import os
import re
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import common

sys.path.insert(0, os.path.join(common.ROOT, "tests", "golden"))
from run import Manifest  # noqa: E402

FLOWS = ("nice_", "realnvp", "glow", "tf_nice", "linear_square", "hz_identity_cast", "hz_inplace", "hz_add_swapped")
NO_DETERMINANT = ("glow_nodet",)  # their log-determinant leaves out that of the convolutions
FOLDED = ("nice_scale_folded",)   # the logarithm of a scale that was rounded
VERBOSE = False


def session(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def ort(path, feeds):
    s = session(path)
    return dict(zip([o.name for o in s.get_outputs()], s.run(None, feeds)))


def run(path, feeds, folder, *options):
    """{output: array} of `invonnx run`."""
    args = []
    for i, (name, array) in enumerate(feeds.items()):
        file = os.path.join(folder, f"feed{i}.npy")
        np.save(file, array)
        args += ["--feed", f"{name}={file}"]
    dump = os.path.join(folder, "dump")
    common.report("run", path, *args, "--dump", dump, *options)
    names = [o.name for o in onnx.load(path, load_external_data=False).graph.output]
    escaped = [re.sub(rb"[^A-Za-z0-9._-]", lambda m: b"%%%02X" % m[0][0], n.encode()).decode() for n in names]
    return {n: np.load(os.path.join(dump, f"out_{e}.npy")) for n, e in zip(names, escaped)}


def invert(model, folder, *options, name="inv.onnx"):
    """Path and report of the inverse direction."""
    path = os.path.join(folder, name)
    report = common.report("rewrite", model, "-o", os.path.join(folder, "functions.onnx"), "--inverse-out", path,
                           *options)["inverse_direction"]
    onnx.checker.check_model(path, full_check=True)
    return path, report


def off(got, want):
    got, want = (np.asarray(x, dtype=np.float64).ravel() for x in (got, want))
    assert got.shape == want.shape and np.isfinite(got).all()
    return np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-300)


def within(what, error, limit):
    assert error <= limit, f"{what}: {error:.2e}, at most {limit:g}"
    return error


# --- flows ---

def roots():
    found = [os.path.join(common.DATA, "models"), os.path.join(common.ROOT, "..", "shared", "models")]
    return [r for r in found if os.path.isdir(r)]


def flows(prefixes):
    found = {}
    for root in roots():
        for name in sorted(os.listdir(root)):
            if name.startswith(tuple(prefixes) or FLOWS) and os.path.exists(os.path.join(root, name, "golden.txt")):
                found.setdefault(name, os.path.join(root, name))
    return [found[n] for n in sorted(found)]


def check_shape_of_file(path, original):
    inv, model = onnx.load(path), onnx.load(original, load_external_data=False)
    old = {t.name: t.data_type for t in model.graph.initializer}
    for t in inv.graph.initializer:
        assert t.name in old or re.search(r"_(inv|logdet)(_\d+)?$", t.name), f"initializer {t.name} is new"
    assert [(o.domain, o.version) for o in inv.opset_import] == [(o.domain, o.version) for o in model.opset_import]
    assert inv.metadata_props == model.metadata_props and not inv.functions
    assert {n.domain for n in inv.graph.node} <= {"", "ai.onnx"}


def check_flow(folder):
    model, name = os.path.join(folder, "model.onnx"), os.path.basename(folder)
    manifest = Manifest(folder)
    feeds = {row[0]: np.load(os.path.join(folder, row[1])) for row in manifest.all("input")}
    with tempfile.TemporaryDirectory() as tmp:
        path, _ = invert(model, tmp, "--with-logdet", "log det")
        check_shape_of_file(path, model)
        taken = [i.name for i in session(path).get_inputs()]
        errors = []
        for options, limit in ((), 1e-5), (("--float64",), 1e-12):
            out = run(model, feeds, tmp, *options)
            z = {n: out[n] for n in taken}
            results = [run(path, z, tmp, *options)] + ([] if options else [ort(path, z)])
            own = out.get("logdet")
            if own is not None:
                told, _ = invert(model, tmp, "--with-logdet", "log det", "--logdet", "logdet", name="told.onnx")
                within(f"{name}: --logdet", off(run(told, z, tmp, *options)["log det"], -own), limit)
            for back in results:
                for n in feeds:
                    errors.append(within(f"{name}: {n} {options}", off(back[n], feeds[n]), limit))
                if own is None or name.startswith(NO_DETERMINANT): continue
                fits = max(limit, 1e-6) if name.startswith(FOLDED) else limit
                errors.append(within(f"{name}: log det {options}", off(back["log det"], -own), fits))
        if VERBOSE: print(f"{name}: " + " ".join(f"{e:.1e}" for e in errors))


# --- models made here ---

class Made:
    """A model under construction, of one floating-point type, with a dynamic batch."""

    def __init__(self, double=False, opset=17, seed=0):
        self.double, self.opset = double, opset
        self.random = np.random.default_rng(seed)
        self.nodes, self.tensors, self.n = [], [], 0

    def param(self, value, name=None):
        name = name or f"p{len(self.tensors)}"
        kind = np.int64 if np.asarray(value).dtype.kind == "i" else np.float64 if self.double else np.float32
        self.tensors.append(numpy_helper.from_array(np.asarray(value, dtype=kind), name))
        return name

    def op(self, kind, *inputs, outputs=1, **attributes):
        names = [f"v{self.n + i}" for i in range(outputs)]
        self.n += outputs
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=f"{kind}_{self.n}", **attributes))
        return names[0] if outputs == 1 else names

    def linear(self, x, n_in, n_out):
        return self.op("Gemm", x, self.param(self.random.normal(size=(n_out, n_in)) / n_in ** 0.5),
                       self.param(self.random.normal(size=n_out)), transB=1)

    def square(self, n):
        return np.linalg.qr(self.random.normal(size=(n, n)))[0] * np.exp(self.random.normal(size=n) / 4)

    def save(self, path, inputs, outputs):
        real = TensorProto.DOUBLE if self.double else TensorProto.FLOAT
        for node in self.nodes:
            for names in (node.input, node.output):
                for i, n in enumerate(names): names[i] = dict((v, k) for k, v, _ in outputs).get(n, n)
        graph = helper.make_graph(
            self.nodes, "made", [helper.make_tensor_value_info(n, real, ["N", *s]) for n, s in inputs],
            [helper.make_tensor_value_info(n, real, ["N", *s]) for n, _, s in outputs], self.tensors)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, path)


def couple(m, x, how, width=4, condition=None):
    """One coupling of a value of that width."""
    half = width // 2
    a, b = m.op("Split", x, outputs=2, axis=1)
    inner = m.op("Concat", b, condition, axis=1) if condition else b
    h = m.op("Tanh", m.linear(inner, half + (3 if condition else 0), 5))
    t, s = m.linear(h, 5, half), m.linear(h, 5, half)
    if how == "exp": y = m.op("Add", m.op("Mul", a, m.op("Exp", m.op("Tanh", s))), t)
    elif how == "sigmoid": y = m.op("Mul", m.op("Add", a, t), m.op("Sigmoid", m.op("Add", s, m.param(2.0))))
    elif how == "divide": y = m.op("Div", m.op("Sub", a, t), m.op("Exp", s))
    else: y = m.op("Sub", t, a)
    return m.op("Concat", b, y, axis=1)


def masked(m, x, how):
    """A coupling whose halves are told by a mask, with the scale behind the mask, inside of it, or none. Inside, by one
    network, or two and these operators."""
    mask = np.array([0., 1, 0, 1])
    b, c = m.param(mask), m.op("Sub", m.param(1.0), m.param(mask))
    h = m.op("Mul", x, b)
    inner = m.op("Tanh", m.linear(h, 4, 5))
    t, s = m.linear(inner, 5, 4), m.linear(inner, 5, 4)
    if how == "underflow": how, s = "affine", m.op("Sub", s, m.param(2000 * mask))  # e^s is 0 under the mask
    if how == "inside":
        moved = m.op("Add", x, m.op("Mul", t, c))
        return m.op("Mul", moved, m.op("Exp", m.op("Mul", s, c)))
    if isinstance(how, tuple):
        k, t = m.op("Tanh", m.linear(h, 4, 4)), m.linear(h, 4, 4)
        return m.op(how[1], m.op(how[0], x, m.op("Mul", t, c)), m.op("Exp", m.op("Mul", k, c)))
    moved = m.op("Add", m.op("Mul", x, m.op("Exp", s)) if how == "affine" else x, t)
    return m.op("Add", h, m.op("Mul", moved, c))


ARRANGED = {  # x, t, s > 0 and m = b x, with c = 1 - b; whatever order the mask comes in
    "b x + c (x - t) / s": lambda o, v: o("Add", v.m, o("Mul", v.c, o("Div", o("Sub", v.x, v.t), v.s))),
    "c (x - t) s + b x": lambda o, v: o("Add", o("Mul", o("Mul", v.c, o("Sub", v.x, v.t)), v.s), v.m),
    "b x + c x s + c t": lambda o, v: o("Add", o("Add", v.m, o("Mul", o("Mul", v.x, v.c), v.s)), o("Mul", v.t, v.c)),
    "b x + c (t - x s)": lambda o, v: o("Add", v.m, o("Mul", v.c, o("Sub", v.t, o("Mul", v.x, v.s)))),
    "b x - c (x - t) s": lambda o, v: o("Sub", v.m, o("Mul", o("Mul", o("Sub", v.x, v.t), v.s), v.c)),
    "x e^(c k) + c t": lambda o, v: o("Add", o("Mul", v.x, o("Exp", o("Mul", v.k, v.c))), o("Mul", v.c, v.t)),
    "x + c t": lambda o, v: o("Add", o("Mul", v.c, v.t), v.x),
    "x - tanh(c t)": lambda o, v: o("Sub", v.x, o("Tanh", o("Mul", v.c, v.t))),
    "Where(b, x, x s + t)": lambda o, v: o("Where", v.B, v.x, o("Add", o("Mul", v.x, v.s), v.t)),
    "Where(c, (x - t) / s, x)": lambda o, v: o("Where", v.C, o("Div", o("Sub", v.x, v.t), v.s), v.x),
    "Where(b, m, x s) + Where(c, t, 0)": lambda o, v: o("Add", o("Where", v.B, v.m, o("Mul", v.x, v.s)),
                                                     o("Where", v.C, v.t, v.zero)),
    "x (b + c s) + c t": lambda o, v: o("Add", o("Mul", v.x, o("Add", v.b, o("Mul", v.c, v.s))), o("Mul", v.c, v.t)),
    "(x - c t) / (c s + b)": lambda o, v: o("Div", o("Sub", v.x, o("Mul", v.c, v.t)), o("Add", o("Mul", v.s, v.c), v.b)),
    "x (c s) + b x": lambda o, v: o("Add", o("Mul", v.x, o("Mul", v.c, v.s)), v.m),
    "x (1 - b + 2 c) + c t + b x": lambda o, v: o("Add", o("Add", o("Mul", v.x, o("Add", o("Sub", v.one, v.b), o(
        "Add", v.c, v.c))), o("Mul", v.c, v.t)), v.m),
    "x s' + t', s' 1 and t' 0 under b": lambda o, v: o("Add", o("Mul", v.x, o("Where", v.B, v.one, v.s)),
                                                      o("Where", v.B, v.zero, v.t)),
}


def arranged(how, chosen=False):
    """A coupling by a mask in the given arrangement; its network reads b x, or Where(b, x, 0)."""
    def step(m, x):
        v, mask = argparse.Namespace(x=x), np.array([1., 0, 0, 1])
        v.b, v.c, v.one, v.zero = m.param(mask), m.param(1 - mask), m.param(1.0), m.param(0.0)
        for name, of in ("B", mask), ("C", 1 - mask):
            setattr(v, name, f"{name}{len(m.tensors)}")
            m.tensors.append(numpy_helper.from_array(of > 0, getattr(v, name)))
        v.m = m.op("Where", v.B, x, v.zero) if chosen else m.op("Mul", x, v.b)
        inner = m.op("Tanh", m.linear(v.m, 4, 5))
        v.t, v.k = m.linear(inner, 5, 4), m.linear(inner, 5, 4)
        v.s = m.op("Exp", v.k)
        return how(m.op, v)
    return step


def in_rows(pixels):
    """Pixels or tokens folded into rows: a matrix over the channels, a coupling of each row, a slope and a scale."""
    def step(m, x):
        shape = np.array([-1, 2, 2, 1] if pixels else [-1, 2, 2])
        v = m.op("Reshape", x, m.param(shape))
        if pixels: v = m.op("Transpose", v, perm=[0, 2, 3, 1])
        y = m.op("MatMul", m.op("Reshape", v, m.param(np.array([-1, 2]))), m.param(m.square(2)))
        y = m.op("Asinh", couple(m, y, "exp", width=2))
        y = m.op("Reshape", m.op("Mul", y, m.param(np.array([2., -.3]))), m.param(shape[[0, 2, 3, 1]] if pixels else shape))
        return m.op("Flatten", m.op("Transpose", y, perm=[0, 3, 1, 2]) if pixels else y)
    return step


SUMS = {  # of linear maps of x: w and v matrices, b a term, c factors of the columns
    "x + x W": lambda o, x, p: o("Add", x, o("MatMul", x, p.w)),
    "(x W + b) - x": lambda o, x, p: o("Sub", o("Gemm", x, p.w, p.b), x),
    "x W - x V": lambda o, x, p: o("Sub", o("MatMul", x, p.w), o("MatMul", x, p.v)),
    "x W + b + x V' + x": lambda o, x, p: o("Add", o("Add", o("Gemm", x, p.w, p.b), o("Gemm", x, p.v, p.b, transB=1)), x),
    "x - (x W + b) c": lambda o, x, p: o("Sub", x, o("Mul", o("Gemm", x, p.w, p.b, transB=1), p.c)),
    "-(x W) + x c": lambda o, x, p: o("Add", o("Neg", o("MatMul", x, p.w)), o("Mul", x, p.c)),
    "x W + (x + b) / c": lambda o, x, p: o("Add", o("MatMul", x, p.w), o("Div", o("Add", x, p.b), p.c)),
    "x - 2 (x u) u'": lambda o, x, p: o("Sub", x, o("MatMul", o("Mul", o("MatMul", x, p.u), p.two), p.row)),
    "x - ((x u) u') 2": lambda o, x, p: o("Sub", x, o("Mul", o("Mul", o("MatMul", x, p.u), p.row), p.two)),
    "x - (x q) q' 2": lambda o, x, p: o("Sub", x, o("Mul", o("Mul", o("Unsqueeze", o("MatMul", x, p.q), p.one), p.q), p.two)),
    "x - 2 (x q) q' / (q q)": lambda o, x, p: o("Sub", x, o("Div", o("Mul", o("Mul", o("Unsqueeze", o("MatMul", x, p.q), p.one), p.two),
                                                                  p.q), o("MatMul", p.q, p.q))),
    "x - 2 (x u) u' / sum(u^2)": lambda o, x, p: o("Sub", x, o("Div", o("MatMul", o("Mul", o("MatMul", x, p.u), p.two), p.row),
                                                               o("ReduceSum", o("Pow", p.u, p.two), keepdims=0))),
    "x - sum(x q) q' 2": lambda o, x, p: o("Sub", x, o("Mul", o("Mul", o("ReduceSum", o("Mul", x, p.q), p.one), p.q), p.two)),
    "x - (x q) (q 2)'": lambda o, x, p: o("Sub", x, o("Mul", o("Reshape", o("MatMul", x, p.q), p.to), o("Mul", p.q, p.two))),
}


def summed(how):
    def step(m, x):
        r = m.random
        u = r.normal(size=(4, 1))
        u /= np.linalg.norm(u)
        p = argparse.Namespace(w=m.param(3 * m.square(4)), v=m.param(r.normal(size=(4, 4)) / 8), b=m.param(r.normal(size=4)),
                               c=m.param(r.uniform(.5, .8, size=4)), u=m.param(u), row=m.param(u.T), two=m.param(2.0),
                               q=m.param(u[:, 0]), one=m.param(np.array([1])), to=m.param(np.array([-1, 1])))
        return how(m.op, m.op("Asinh", x), p)
    return step


def activation(kind, **attributes):
    return lambda m, x: m.op(kind, x, **attributes)


def of_positive(kind, *values):
    return lambda m, x: m.op(kind, m.op("Softplus", x), *(m.param(v) for v in values))


def cubed(m, x):
    """Away from zero, where the inverse has no derivative."""
    return m.op("Pow", m.op("Add", x, m.param(np.array([4., -4, 5, -5]))), m.param(np.array(3.0)))


def from_left(m, x):
    image = m.op("Reshape", x, m.param(np.array([-1, 2, 2])))
    return m.op("Flatten", m.op("MatMul", m.param(m.square(2)), image))


def turned(left):
    """The square turned by a transposition, which becomes part of the product."""
    def step(m, x):
        t = m.op("Transpose", m.op("Reshape", x, m.param(np.array([-1, 2, 2]))), perm=[0, 2, 1])
        w = m.param(m.square(2))
        return m.op("Flatten", m.op("MatMul", *((w, t) if left else (t, w))))
    return step


def scaled(m, x):
    shifted = m.op("Add", x, m.param(m.random.normal(size=(1, 4))))
    return m.op("Mul", shifted, m.op("Exp", m.param(m.random.normal(size=4))))


def normalized(m, x):
    r = m.random
    return m.op("BatchNormalization", x, m.param(r.uniform(.5, 2, 4)), m.param(r.normal(size=4)),
                m.param(r.normal(size=4)), m.param(r.uniform(.5, 2, 4)), epsilon=0.01)


def mixed(m, x):
    """A 1x1 convolution over an image of one channel per two features."""
    image = m.op("Reshape", x, m.param(np.array([-1, 2, 2, 1])))
    y = m.op("Conv", image, m.param(m.square(2).reshape(2, 2, 1, 1)))
    return m.op("Flatten", y)


# How libraries and exporters put halves back at indices: each ends in a value of the columns `i` (kept) and `j`.
def written(how):
    def step(m, x):
        i, j = np.array([0, 3]), np.array([1, 2])
        if how == "three": i, j = np.array([3, 0]), np.array([2, 1])
        take = lambda k: m.op("Gather", x, m.param(k), axis=1)
        if how == "GatherND":
            turned_x = m.op("Transpose", x, perm=[1, 0])
            take = lambda k: m.op("Transpose", m.op("GatherND", turned_x, m.param(k[:, None])), perm=[1, 0])
        a, b = take(i), take(j)
        h = m.op("Tanh", m.linear(a, 2, 5))
        y = m.op("Add", m.op("Mul", b, m.op("Exp", m.op("Tanh", m.linear(h, 5, 2)))), m.linear(h, 5, 2))
        turn = lambda v: m.op("Transpose", v, perm=[1, 0])
        if how == "ScatterElements":  # of indices for all rows, as Expand of the batch gives them for a fixed one
            wide = lambda k: m.param(np.tile(k, (7, 1)))
            return m.op("ScatterElements", m.op("ScatterElements", x, wide(i), a, axis=1), wide(j), y, axis=1)
        if how in ("add", "mul"):  # to what is there
            update = m.op("Exp" if how == "mul" else "Neg", m.linear(h, 5, 2))
            return turn(m.op("ScatterND", turn(x), m.param(j[:, None]), turn(update), reduction=how))
        if how == "into x": return turn(m.op("ScatterND", turn(x), m.param(j[:, None]), turn(y)))
        zeros = turn(m.op("Mul", x, m.param(0.0)))
        if how == "three":  # single columns, and negative places
            first, last = m.op("Split", y, axis=1, outputs=2)
            v = m.op("ScatterND", zeros, m.param(j[:1, None] - 4), turn(first))
            v = m.op("ScatterND", v, m.param(j[1:, None]), turn(last))
            return turn(m.op("ScatterND", v, m.param(i[:, None]), turn(a)))
        v = m.op("ScatterND", zeros, m.param(i[:, None]), turn(a))
        return turn(m.op("ScatterND", v, m.param(j[:, None]), turn(y)))
    return step


# What is joined to all of x, and changes its columns `j` only: elsewhere it is 0, or 1.
def joined(how):
    def step(m, x):
        i, j = (np.array([0, 3]), np.array([1, 2])) if how == "scattered" else (np.array([2, 3]), np.array([0, 1]))
        if how in ("padded", "turned"): i, j = j, i
        a = m.op("Gather", x, m.param(i), axis=1)
        u = m.linear(m.op("Tanh", m.linear(a, 2, 5)), 5, 2)
        still = m.op("ConstantOfShape", m.op("Shape", a),
                     value=numpy_helper.from_array(np.array([how == "times"], np.float32)))
        turn = lambda v: m.op("Transpose", v, perm=[1, 0])
        if how == "times": return m.op("Mul", m.op("Concat", m.op("Exp", m.op("Tanh", u)), still, axis=1), x)
        if how == "minus": return m.op("Sub", x, m.op("Concat", u, still, axis=1))
        if how == "padded": return m.op("Add", x, m.op("Pad", u, m.param(np.array([0, 2, 0, 0]))))
        if how == "turned": return m.op("Add", x, turn(m.op("Concat", turn(still), turn(u), axis=0)))
        zeros = m.op("ConstantOfShape", m.op("Shape", x))
        return m.op("Add", x, turn(m.op("ScatterND", turn(zeros), m.param(j[:, None]), turn(u))))
    return step


def in_turns():
    """Columns of x itself are overwritten, each half in its turn."""
    halves = [np.array([0, 3]), np.array([1, 2])]

    def step(m, x):
        i, j = halves
        halves.reverse()
        a, b = (m.op("Gather", x, m.param(k), axis=1) for k in (i, j))
        y = m.op("Add", m.op("Mul", b, m.op("Exp", m.op("Tanh", m.linear(a, 2, 2)))), m.linear(a, 2, 2))
        t, u = (m.op("Transpose", v, perm=[1, 0]) for v in (x, y))
        return m.op("Transpose", m.op("ScatterND", t, m.param(j[:, None]), u), perm=[1, 0])
    return step


def scaled_by(scale):
    """A coupling whose scale is `scale` of what comes of the other half."""
    def step(m, x):
        a, b = m.op("Split", x, outputs=2, axis=1)
        return m.op("Concat", b, m.op("Mul", a, scale(m.op, m.param, m.linear(b, 2, 2), b)), axis=1)
    return step


SCALES = {  # s > 0 by what gives it
    "silu": lambda o, p, v, b: o("Add", o("Mul", v, o("Sigmoid", v)), p(0.3)),
    "gelu": lambda o, p, v, b: o("Add", o("Mul", o("Mul", v, p(0.5)), o("Add", o("Erf", o("Div", v, p(2 ** 0.5))),
                                                                  p(1.0))), p(0.2)),
    "mish": lambda o, p, v, b: o("Add", o("Mul", v, o("Tanh", o("Softplus", v))), p(0.35)),
    "squares": lambda o, p, v, b: o("Add", o("ReduceSum", o("Mul", v, v), p(np.array([1])), keepdims=1), p(0.1)),
    "norm": lambda o, p, v, b: o("Add", o("ReduceL2", v, axes=[1], keepdims=1), p(0.1)),
    "elu plus one": lambda o, p, v, b: o("Where", o("Greater", v, p(0.0)), o("Add", v, p(1.0)), o("Exp", v)),
    "where small": lambda o, p, v, b: o("Where", o("Less", v, p(0.5)), p(0.5), v),
    "not below": lambda o, p, v, b: o("Where", o("Not", o("LessOrEqual", o("Mul", v, p(-2.0)), p(-0.5))), p(2.0), v),
    "both": lambda o, p, v, b: o("Where", o("And", o("Greater", v, p(0.1)), o("Less", v, p(3.0))),
                              o("Sub", p(4.0), v), p(1.0)),
    "negative": lambda o, p, v, b: o("Div", p(-1.0), o("Sub", p(-0.5), o("Mul", v, v))),
    "threshold": lambda o, p, v, b: o("Add", o("Where", o("Greater", v, p(20.0)), v, o("Softplus", v)), p(0.01)),
}


def folded(m, x):
    """x + x g, with g above -1, in three spellings."""
    a, b = m.op("Split", x, outputs=2, axis=1)
    g = m.op("Mul", m.op("Tanh", m.linear(b, 2, 2)), m.param(0.9))
    y = m.op("Add", a, m.op("Mul", g, a))
    y = m.op("Sub", y, m.op("Mul", y, g))
    return m.op("Concat", b, m.op("Add", m.op("Mul", y, g), y), axis=1)


def logit(how):
    def step(m, x):
        p = m.op("Add", m.op("Mul", m.op("Sigmoid", x), m.param(0.9)), m.param(0.05))  # the squeeze of pixels
        rest = m.op("Sub", m.param(1.0), p)
        if how == "logs": return m.op("Sub", m.op("Log", p), m.op("Log", rest))
        if how == "odds": return m.op("Log", m.op("Div", p, rest))
        if how == "negated": return m.op("Sub", m.op("Log", rest), m.op("Log", p))
        return m.op("Neg", m.op("Log", m.op("Sub", m.op("Reciprocal", p), m.param(1.0))))
    return step


def cut(of):
    """Scale and shift cut apart where the width of a half says, also that of the half that is changed."""
    def step(m, x):
        a, b = m.op("Split", x, outputs=2, axis=1)
        both = m.linear(b, 2, 4)
        n = m.op("Gather", m.op("Shape", a if of == "changed" else b), m.param(np.array([1])))
        zero, end, axis = m.param(np.array([0])), m.param(np.array([99])), m.param(np.array([1]))
        s, t = m.op("Slice", both, zero, n, axis), m.op("Slice", both, n, end, axis)
        spread = m.op("Expand", m.op("Tanh", t), m.op("Shape", a)) if of == "changed" else t
        return m.op("Concat", b, m.op("Add", m.op("Mul", a, m.op("Exp", s)), spread), axis=1)
    return step


def heun(within):
    def step(m, x):
        y, z = m.op("Split", x, outputs=2, axis=1)
        w, h, two = m.param(m.random.normal(size=(2, 2))), m.param(0.1), m.param(2.0)
        f = lambda v: m.op("Tanh", m.op("MatMul", v, w))
        if within: f = lambda v, f=f: m.op("Mul", f(v), h)
        f0 = f(z)
        z1 = m.op("Add", m.op("Sub", m.op("Mul", y, two), z), f0 if within else m.op("Mul", f0, h))
        half = m.param(0.5 if within else 0.05)
        return m.op("Concat", m.op("Add", y, m.op("Mul", m.op("Add", f0, f(z1)), half)), z1, axis=1)
    return step


STEPS = {
    "leaky_relu": activation("LeakyRelu", alpha=0.3), "elu": activation("Elu", alpha=0.7), "selu": activation("Selu"),
    "celu": activation("Celu", alpha=1.5), "tanh": activation("Tanh"), "sigmoid": activation("Sigmoid"),
    "softplus": activation("Softplus"), "exp": activation("Exp"), "atan": activation("Atan"),
    "softsign": activation("Softsign"), "sinh": activation("Sinh"), "asinh": activation("Asinh"),
    "log": of_positive("Log"), "sqrt": of_positive("Sqrt"), "power": of_positive("Pow", 1.5), "cubed": cubed,
    "prelu": lambda m, x: m.op("PRelu", x, m.param(np.array([.2, .5, 1.5, .8]))),
    "negated": lambda m, x: m.op("Neg", x),
    "reversed": lambda m, x: m.op("Gather", x, m.param(np.array([3, 1, 0, 2])), axis=1),
    "scaled": scaled, "divided": lambda m, x: m.op("Div", x, m.param(np.array([[2.0]]))), "normalized": normalized,
    "gemm": lambda m, x: m.op("Gemm", x, m.param(m.square(4)), m.param(m.random.normal(size=4)), transB=1),
    "matmul": lambda m, x: m.op("MatMul", x, m.param(m.square(4))), "convolution": mixed,
    "additive": lambda m, x: couple(m, x, "additive"), "affine": lambda m, x: couple(m, x, "exp"),
    "shifted": lambda m, x: couple(m, x, "sigmoid"), "divided_coupling": lambda m, x: couple(m, x, "divide"),
    "masked": lambda m, x: masked(m, x, "affine"), "masked_underflow": lambda m, x: masked(m, x, "underflow"),
    "masked_additive": lambda m, x: masked(m, x, "additive"),
    "masked_inside": lambda m, x: masked(m, x, "inside"), "from_left": from_left,
    **{f"masked_inside_{shift}_{scale}": lambda m, x, how=(shift, scale): masked(m, x, how)
       for shift in ("Add", "Sub") for scale in ("Mul", "Div")},
    **{name: arranged(how) for name, how in ARRANGED.items()},
    **{f"{name}, of Where": arranged(ARRANGED[name], True) for name in ("x + c t", "b x + c (x - t) / s")},
    **{f"joined to a part, {how}": joined(how) for how in ("times", "minus", "padded", "turned", "scattered")},
    **{f"written, {how}": written(how) for how in ("ScatterND", "GatherND", "into x", "three", "add", "mul")},
    **{f"scale, {name}": scaled_by(scale) for name, scale in SCALES.items()}, "factor": folded,
    **{f"logit, {how}": logit(how) for how in ("logs", "odds", "negated", "reciprocal")},
    **{name: summed(how) for name, how in SUMS.items()},
    "tokens in rows": in_rows(False), "pixels in rows": in_rows(True),
    "cut, kept": cut("kept"), "cut, changed": cut("changed"),
    "turned": turned(False), "from_left_of_turned": turned(True),
    "summed": lambda m, x: m.op("CumSum", x, m.param(np.array(1))),
}
TRAINED = ("x (b + c s)", "written, ", "logit, logs", "x e^(c k)", "Where(b, x, x s + t)", "b x + c (x - t) / s", "scale, threshold",
           "scale, mish", "factor", "pixels", "cut, changed")
CHAINS = (("affine", "gemm", "leaky_relu", "shifted", "reversed", "normalized", "additive"),
          ("scaled", "convolution", "divided_coupling", "affine", "prelu", "matmul", "reversed"),
          ("masked", "reversed", "masked_inside", "from_left", "masked_additive"),
          ("x e^(c k) + c t", "reversed", "c (x - t) s + b x", "gemm", "Where(b, x, x s + t)"))


def make(path, steps, **options):
    m = Made(**options)
    y = x = "x"
    for s in steps: y = STEPS[s](m, y)
    assert y != x
    m.save(path, [("x", [4])], [("z", y, [4])])
    return m


def jacobian_logdet(path, z, folder, **given):
    """log |det| per row of z, by central differences."""
    n, d, h = *z.shape, 1e-5
    moved = np.stack([z[:, None] + sign * h * np.eye(d)[None] for sign in (1, -1)], 1)  # [n, 2, d, d]
    feeds = {"z": moved.reshape(-1, d), **{k: np.repeat(v, 2 * d, 0) for k, v in given.items()}}
    x = run(path, feeds, folder, "--float64")["x"].reshape(n, 2, d, d)
    return np.linalg.slogdet((x[:, 0] - x[:, 1]) / (2 * h))[1]


def check_jacobian(steps, **options):
    with tempfile.TemporaryDirectory() as tmp:
        model = os.path.join(tmp, "m.onnx")
        m = make(model, steps, **options)
        kind = np.float64 if m.double else np.float32
        path, _ = invert(model, tmp, "--with-logdet", "ld")
        for rows in 1, 5:  # the batch is free
            x = m.random.normal(size=(rows, 4))
            z = run(model, {"x": x}, tmp, "--float64")["z"]
            back = run(path, {"z": z}, tmp, "--float64")
            # 1 / slope is a float32 in the file; and nearly flat pieces magnify
            limit = 1e-7 if {"leaky_relu", "selu", "celu"} & set(steps) else 1e-10
            within(f"{steps}: x", off(back["x"], x), limit)
            want = jacobian_logdet(path, z, tmp)
            within(f"{steps}: log det", np.abs(back["ld"] - want).max(), 1e-6)
            got = ort(path, {"z": z.astype(kind)})
            within(f"{steps}: onnxruntime", np.abs(got["ld"] - want).max(), 1e-3)


def check_jacobians():
    for s in STEPS:
        if VERBOSE: print(s)
        check_jacobian([s])
    for chain in CHAINS: check_jacobian(chain)
    for inside in True, False: check_round_trip(heun(inside), ["N", 4])
    check_round_trip(written("ScatterElements"), [7, 4])
    check_round_trip(in_turns(), ["N", 4])
    for name in STEPS:
        if name.startswith(TRAINED): check_round_trip(STEPS[name], ["N", 4])
    check_jacobian(("affine", "gemm", "leaky_relu"), opset=13)
    check_jacobian(("affine", "matmul", "scaled", "shifted"), double=True)
    check_jacobian(("scaled", "convolution", "prelu"), opset=18)


def check_round_trip(step, shape):
    """There and back, of a model of that input, and the gradients that are computed with the inverses are those without."""
    with tempfile.TemporaryDirectory() as tmp:
        m, model = Made(), os.path.join(tmp, "m.onnx")
        y = scaled(m, "x")
        for _ in range(3): y = step(m, y)
        m.save(model, [("x", shape[1:])], [("z", y, shape[1:])])
        if shape[0] != "N":
            fixed = onnx.load(model)
            for v in [*fixed.graph.input, *fixed.graph.output]: v.type.tensor_type.shape.dim[0].dim_value = shape[0]
            onnx.save(fixed, model)
        path, _ = invert(model, tmp)
        x = m.random.normal(size=(7, *shape[1:]))
        z = run(model, {"x": x}, tmp, "--float64")["z"]
        within("there and back", off(run(path, {"z": z}, tmp, "--float64")["x"], x), 1e-10)
        same_gradients(model, x, tmp)


def gradients(model, x, folder, *options):
    """Report and {name: array} of a step whose loss is the sum of squares."""
    feed, out = os.path.join(folder, "feed.npy"), os.path.join(folder, "gradients")
    np.save(feed, x)
    report = common.report("grad", model, "--feed", feed, "--loss", "nll", "--trust-logdet", "--dump", out, *options)
    return report, {n: np.load(os.path.join(out, n)) for n in os.listdir(out) if n.startswith("grad_")}


def same_gradients(model, x, folder):
    """Gradients by inverses are those without, in float64, and in float32 but for what is rounded."""
    x = x.astype(np.float32)
    _, want = gradients(model, x, folder, "--memory", "store", "--float64")
    for options, limit in (("--float64",), 1e-9), ((), 1e-4):
        report, got = gradients(model, x, folder, "--memory", "invert", *options)
        assert report["values"]["inverted"] > 0 and got.keys() == want.keys() and want, report["values"]
        for n in want: within(f"{n} {options}", off(got[n], want[n]), limit)


def check_given():
    with tempfile.TemporaryDirectory() as tmp:
        m, model = Made(), os.path.join(tmp, "m.onnx")
        y = couple(m, m.op("Gather", couple(m, "x", "exp", condition="c"), m.param(np.array([2, 3, 0, 1])), axis=1),
                   "sigmoid", condition="c")
        m.save(model, [("x", [4]), ("c", [3])], [("z", y, [4])])
        status, _, err = common.call("rewrite", model, "-o", os.path.join(tmp, "o.onnx"), "--inverse-out",
                                     os.path.join(tmp, "i.onnx"))
        assert status == 1 and "input '" in err and "--given" in err, err
        assert sorted(os.listdir(tmp)) == ["m.onnx"], "a refusal has written something"
        path, report = invert(model, tmp, "--given", "c", "--with-logdet", "ld")
        assert report["inputs"] == ["z", "c"] and report["outputs"] == ["x", "ld"]
        x, c = m.random.normal(size=(3, 4)), m.random.normal(size=(3, 3))
        z = run(model, {"x": x, "c": c}, tmp, "--float64")["z"]
        back = run(path, {"z": z, "c": c}, tmp, "--float64")
        within("given: x", off(back["x"], x), 1e-12)
        within("given: log det", np.abs(back["ld"] - jacobian_logdet(path, z, tmp, c=c)).max(), 1e-6)


def check_rewritten():
    with tempfile.TemporaryDirectory() as tmp:
        model = os.path.join(tmp, "m.onnx")
        make(model, CHAINS[0])
        first, _ = invert(model, tmp, "--with-logdet", "ld")
        rewritten = os.path.join(tmp, "rewritten.onnx")
        os.rename(os.path.join(tmp, "functions.onnx"), rewritten)
        again, _ = invert(rewritten, tmp, "--with-logdet", "ld", name="again.onnx")
        z = {"z": np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)}
        a, b = ort(first, z), ort(again, z)
        for n in a: assert off(a[n], b[n]) < 1e-6, n


def check_training_mode():
    """By running statistics, as evaluation takes them; and the report says so."""
    with tempfile.TemporaryDirectory() as tmp:
        twins = []
        for training in 0, 1:
            m, model = Made(), os.path.join(tmp, f"m{training}.onnx")
            y = STEPS["affine"](m, "x")
            r = m.random
            parts = [m.param(r.uniform(.5, 2, 4), "scale"), m.param(r.normal(size=4)),
                     m.param(r.normal(size=4), "mean"), m.param(r.uniform(.5, 2, 4), "var")]
            if training: y = m.op("BatchNormalization", y, *parts, outputs=3, training_mode=1)[0]
            else: y = m.op("BatchNormalization", y, *parts)
            m.save(model, [("x", [4])], [("z", y, [4])])
            twins.append(invert(model, tmp, "--with-logdet", "ld", name=f"i{training}.onnx"))
        z = {"z": np.random.default_rng(1).normal(size=(4, 4))}
        a, b = (run(path, z, tmp, "--float64") for path, _ in twins)
        for n in a: assert off(a[n], b[n]) < 1e-14, n
        assert not twins[0][1]["notes"] and "running statistics" in twins[1][1]["notes"][0]


def small(path, inputs, outputs, body, tensors=(), opset=18):
    """A model from the text form: inputs and outputs as 'float[N,4] x', tensors {name: array}."""
    head = f'<ir_version: 8, opset_import: ["" : {opset}]>'
    model = onnx.parser.parse_model(f"{head} g ({inputs}) => ({outputs}) {{ {body} }}")
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in dict(tensors).items())
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


def refused(model, tmp, want, *options):
    status, _, err = common.call("rewrite", model, "-o", os.path.join(tmp, "o.onnx"), "--inverse-out",
                                 os.path.join(tmp, "i.onnx"), *options)
    assert status == 1 and re.search(want, err), f"exit {status}, {err}"
    assert not os.path.exists(os.path.join(tmp, "i.onnx")), "a refusal has written something"


def check_batches():
    """An inverse of an open batch holds for every batch, whatever extents equal the one it was made with."""
    w = np.linalg.qr(np.random.default_rng(3).normal(size=(7, 7)))[0].astype(np.float32)
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "m.onnx")
        small(path, "float[N,4,7] x", "float[N,4,7] z",
              "t = Transpose<perm = [1,0,2]>(x) v = Reshape(t, to) u = MatMul(v, W) s = Shape(t) w = Reshape(u, s) "
              "z = Transpose<perm = [1,0,2]>(w)", {"W": w, "to": np.array([-1, 7])})
        for options in (), ("--batch", "5"): refused(path, tmp, "batch is open.*'t'.*fixed batch", *options)
        small(path, "float[N,7] x", "float[N,7] z",
              "t = Transpose<perm = [1,0]>(x) l = LeakyRelu<alpha = 0.5>(t) z = Transpose<perm = [1,0]>(l)")
        for options in (), ("--batch", "5"):
            refused(path, tmp, "first axis is not the batch", "--with-logdet", "ld", *options)
        inverse, _ = invert(path, tmp)
        x = np.random.default_rng(4).normal(size=(3, 7)).astype(np.float32)
        within("transposed", off(ort(inverse, ort(path, {"x": x}))["x"], x), 1e-6)
        for extent in 7, 11, 77, 91:
            small(path, f"float[N,{extent},7] x", f"float[N,{7 * extent}] z",
                  "y = MatMul(x, W) l = LeakyRelu<alpha = 0.5>(y) z = Flatten(l)", {"W": w})
            inverse, _ = invert(path, tmp, "--with-logdet", "ld")
            for batch in 1, 7, 11, 4:
                x = np.random.default_rng(batch).normal(size=(batch, extent, 7)).astype(np.float32)
                z = ort(path, {"x": x})["z"]
                back = ort(inverse, {"z": z})
                within(f"batch {batch}, extent {extent}", off(back["x"], x), 1e-5)
                within("log det", off(back["ld"], np.log(2) * (z < 0).sum(1)), 1e-5)


BRANCHES = {  # of t, the product of a half and a weight: u, by operators that are written anew, as a body's nodes are no nodes of the file
    "gelu": "h = Mul(t, half) q = Mul(t, root) e = Erf(q) f = Add(e, one) u = Mul(h, f)",
    "silu": "e = Sigmoid(t) u = Mul(t, e)",
    "mish": "e = Softplus(t) f = Tanh(e) u = Mul(t, f)",
    "chosen": "e = Greater(t, half) f = Not(e) g = Where(f, t, half) u = Tanh(g)",
    "gathered": "g = Gather<axis = 1>(t, twice) u = Tanh(g)",
    "constant": "c = Constant<value = float[2] {0.5, 2.0}>() u = Mul(t, c)",
}
BODIES = {  # control flow that is known before the run; W holds a weight of each trip
    "If": "z = If<then_branch = yes () => (float[N,4] y) {{ w = Constant<value = float[2,2] {{0.5, -1.0, 0.25, 0.75}}>() {0} }}, "
          "else_branch = no () => (float[N,4] other) {{ other = Neg(s) }}>(true)",
    "Loop": "z = Loop<body = step (int64 i, bool go, float[N,4] s) => (bool on, float[N,4] y) "
            "{{ on = Identity(go) w = Gather<axis = 0>(W, i) {0} }}>(three, true, s)",
    "Scan": "z = Scan<num_scan_inputs = 1, body = step (float[N,4] s, float[2,2] w) => (float[N,4] y) {{ {0} }}>(s, W)",
}


def check_bodies():
    """Couplings in control flow, whose nodes are written by what they were lowered to."""
    tensors = {"W": random(3, 2, 2), "true": np.array(True), "three": np.array(3), "half": np.float32(.5), "one": np.float32(1),
               "root": np.float32(.5 ** .5), "twice": np.array([1, 1]), "sizes": np.array([2, 2])}
    with tempfile.TemporaryDirectory() as tmp:
        path, x = os.path.join(tmp, "m.onnx"), random(5, 4)
        for body in BODIES.values():
            for branch in BRANCHES.values():
                step = f"a, b = Split<axis = 1>(s, sizes) t = MatMul(a, w) {branch} d = Add(b, u) y = Concat<axis = 1>(d, a)"
                text = "s = LeakyRelu<alpha = 0.5>(x) " + body.format(step)
                used = {k: v for k, v in tensors.items() if re.search(rf"\b{k}\b", text)}
                small(path, "float[N,4] x", "float[N,4] z", text, used, opset=13)
                inverse, _ = invert(path, tmp)
                within(text, off(ort(inverse, {"z": ort(path, {"x": x})["z"]})["x"], x), 1e-5)


def check_extents():
    """What holds for the extents alone that open dimensions were given says so, and declares them."""
    said = "dimensions other than the batch are open"
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "m.onnx")
        for batch, body, notes in (("N", "SpaceToDepth<blocksize = 2>(x)", 1), ("2", "SpaceToDepth<blocksize = 2>(x)", 1),
                                   ("N", "LeakyRelu(x)", 0), ("N", "Conv(x, W)", 0)):
            small(path, f"float[{batch},1,H,V] x", f"float[{batch},C,P,Q] z", f"z = {body}",
                  {"W": np.full((1, 1, 1, 1), 2, np.float32)})
            inverse, report = invert(path, tmp, "--dim", "H=4", "--dim", "V=6")
            assert [said in n and "--dim" in n for n in report["notes"]] == [True] * notes, f"{body}: {report['notes']}"
            for extent in (4, 6), *(((2, 8),) if not notes else ()):
                x = random(2, 1, *extent)
                within(body, off(ort(inverse, ort(path, {"x": x}))["x"], x), 1e-6)
            if notes:
                graph = onnx.load(inverse).graph
                dims = [[d.dim_param or str(d.dim_value) for d in v.type.tensor_type.shape.dim]
                        for v in (*graph.input, *graph.output)]
                assert dims == [[batch, "4", "2", "3"], [batch, "1", "4", "6"]], dims
                try:
                    ort(inverse, ort(path, {"x": random(2, 1, 2, 8)}))
                except Exception as e:
                    assert "Expected: 2" in str(e), e
                else:
                    raise AssertionError("the inverse takes extents that it does not hold for")


def check_places():
    """Log-determinants count the places that a run has, not those that open extents were given."""
    w, scale = random(4, 2, 1, 1), np.array([[[2.]], [[-3.]], [[.5]], [[.3]]], np.float32)
    groups = np.linalg.slogdet(w.reshape(2, 2, 2))[1].sum()
    last = random(3, 3)
    rows = (("4,H,V", "z = Mul(x, s)", lambda h, v: h * v * np.log(np.abs(scale)).sum()),
            ("4,H,V", "z = Conv<group = 2>(x, W)", lambda h, v: h * v * groups),
            ("4,H,V", "z = Div(x, t)", lambda h, v: -h * v * 4 * np.log(3)),
            *(("H,V,3", f"z = {product}", lambda h, v: h * v * np.linalg.slogdet(last)[1]) for product in (
                "MatMul(x, M)", 'Einsum<equation = "nhvi,ij->nhvj">(x, M)', 'Einsum<equation = "ij,nhvj->nhvi">(M, x)')),
            ("4,H,V", "y = LeakyRelu<alpha = 0.5>(x) z = Neg(y)", None))
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "m.onnx")
        for kind, body, want in rows:
            small(path, f"float[N,{kind}] x", f"float[N,{kind}] z", body,
                  {"s": scale, "W": w, "M": last, "t": np.float32(3)})
            for made in (1, 1), (4, 6):
                extents = "--dim", f"H={made[0]}", "--dim", f"V={made[1]}"
                inverse, report = invert(path, tmp, *extents, "--with-logdet", "ld")
                assert not report["notes"], report["notes"]
                for h, v in (1, 1), (4, 6), (2, 5):
                    x = random(3, *((4, h, v) if kind[0] == "4" else (h, v, 3)))
                    z = ort(path, {"x": x})
                    log = want(h, v) if want else np.log(.5) * (x < 0).reshape(3, -1).sum(1)
                    for back in ort(inverse, z), run(inverse, z, tmp):
                        within(f"{body}, {h} x {v}", off(back["ld"], np.broadcast_to(-log, 3)), 1e-5)


def check_samples():
    """Log-determinants of a fixed batch are each sample's own."""
    s = np.array([[2.], [3.], [5.]], dtype=np.float32)
    full = np.exp(np.random.default_rng(5).normal(size=(3, 4))).astype(np.float32)
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "m.onnx")
        for scale in s, full, full[:1]:
            small(path, "float[3,4] x", "float[3,4] z", "z = Mul(x, s)", {"s": scale})
            inverse, _ = invert(path, tmp, "--with-logdet", "ld")
            want = -np.log(np.broadcast_to(scale, (3, 4))).sum(1)
            within("scales", off(ort(inverse, {"z": full})["ld"], want), 1e-6)
        leak = "y = LeakyRelu<alpha = 0.2>(x) "
        for body in ("z = Transpose<perm = [1,0,2]>(y)", "z = MatMul(W, y)", "z = Gather<axis = 0>(y, p)"):
            shape = "4,4" if "W" in body else "4,4,2"
            small(path, f"float[{shape}] x", f"float[{shape}] z", leak + body,
                  {"W": 2 * np.eye(4, dtype=np.float32), "p": np.array([2, 0, 1, 3])})
            refused(path, tmp, "first axis is not the batch", "--with-logdet", "ld")


def check_shared():
    """A condition that all samples share: one number for all of them; what the batch itself makes is none."""
    r = np.random.default_rng(9)
    w = r.normal(size=(3, 4)).astype(np.float32)
    scale = "h = MatMul(c, W) t = Tanh(h) s = Exp(t) "
    rows = (("float[N,4]", "float[1,3]", scale + "y = LeakyRelu<alpha = 0.5>(x) z = Mul(y, s)"),
            ("float[N,4]", "float[3]", scale + "y = Mul(x, s) z = LeakyRelu<alpha = 0.5>(y)"),
            ("float[N,2,4]", "float[3]", scale + "y = Mul(x, s) z = LeakyRelu<alpha = 0.5>(y)"),
            ("float[4,4]", "float[3]", scale + "z = Mul(x, s)"), ("float[N,4]", "float[N,3]", scale + "z = Div(x, s)"))
    with tempfile.TemporaryDirectory() as tmp:
        path = os.path.join(tmp, "m.onnx")
        for kind, condition, body in rows:
            small(path, f"{kind} x, {condition} c", f"{kind} z", body, {"W": w})
            inverse, _ = invert(path, tmp, "--given", "c", "--with-logdet", "ld")
            n = 1 if "1" in condition else 4 if "N" in condition else None
            c = r.normal(size=(3,) if n is None else (n, 3)).astype(np.float32)
            x = r.normal(size=(4, 2, 4) if "2" in kind else (4, 4)).astype(np.float32)
            z = ort(path, {"x": x, "c": c})["z"]
            back = ort(inverse, {"z": z, "c": c})
            within(f"{condition}: x", off(back["x"], x), 1e-6)
            log_s = np.broadcast_to(np.tanh(c @ w), x.shape) * (-1 if "Div" in body else 1)
            want = -(log_s + np.log(0.5) * ((z < 0) & ("Leaky" in body))).reshape(4, -1).sum(1)
            assert back["ld"].shape == (4,)
            within(f"{condition}: log det", off(back["ld"], want), 1e-6)
        small(path, "float[N,4] x", "float[N,4] z",
              "a, b = Split<axis = 1, num_outputs = 2>(x) i = ReduceMean<keepdims = 1>(b, zero) t = Tanh(i) s = Exp(t) "
              "y = Mul(a, s) z = Concat<axis = 1>(y, b)", {"zero": np.array([0])})
        refused(path, tmp, r"\(Mul\).*depends on the batch as a whole.*--logdet", "--with-logdet", "ld")


def check_own():
    """The model's own log-determinants, however they are shaped, are a number per sample in the inverse direction."""
    r = np.random.default_rng(8)
    w, logs = r.normal(size=(3, 3)).astype(np.float32), r.normal(size=6).astype(np.float32)
    coupling = ("a, q = Split<axis = 1, num_outputs = 2>(x) t = MatMul(a, W) k = Tanh(t) s = Exp(k) c = Mul(q, s) "
                "z = Concat<axis = 1>(c, a) l = ReduceSum<keepdims = {}>(k, one)")
    scale = "s = Exp(v) z = Mul(x, s) l = ReduceSum<keepdims = {}>(v)"
    rows = (("[N]", coupling.format(0)), ("[N,1]", coupling.format(1)), ("", scale.format(0)), ("[1]", scale.format(1)))
    with tempfile.TemporaryDirectory() as tmp:
        for batch in "N", "1", "3":
            for shape, body in rows:
                path = small(os.path.join(tmp, "m.onnx"), f"float[{batch},6] x",
                             f"float[{batch},6] z, float{shape.replace('N', batch)} l", body,
                             {"W": w, "v": logs, "one": np.array([1])})
                inverse, _ = invert(path, tmp, "--logdet", "l", "--with-logdet", "ld")
                x = r.normal(size=(int(batch.replace("N", "4")), 6)).astype(np.float32)
                out = ort(path, {"x": x})
                back = ort(inverse, {"z": out["z"]})["ld"]
                assert back.shape == (len(x),), f"{shape}: {back.shape}"
                within(f"{shape}: log det", off(back, np.broadcast_to(-out["l"].ravel(), len(x))), 1e-5)
        path = small(path, "float[N,6] x", "float[N,6] z, float[N,6] l", "l = Tanh(x) z = Exp(x)")
        refused(path, tmp, r"'l'.*number per sample.*--logdet", "--logdet", "l", "--with-logdet", "ld")


def check_names():
    """The name of the log-determinant is nobody else's."""
    w = np.linalg.qr(np.random.default_rng(6).normal(size=(4, 4)))[0].astype(np.float32)
    with tempfile.TemporaryDirectory() as tmp:
        path = small(os.path.join(tmp, "m.onnx"), "float[N,4] x", "float[N,4] z", "z = MatMul(x, W)", {"W": 2 * w})
        for name in "W_logdet", "W_inv", "_v0", "_v1", "_v5":
            inverse, _ = invert(path, tmp, "--with-logdet", name)
            within(name, off(ort(inverse, {"z": w})[name], np.full(4, -4 * np.log(2))), 1e-6)
        refused(path, tmp, "'W'.*a value of the model has that name", "--with-logdet", "W")
        refused(path, tmp, "to start from besides the log-determinants 'z'", "--logdet", "z")
        small(path, "float[N,4,3] x, float[N,2,3] y", "float[N,4,3] z, float[N,4,3] v",
              "z = Conv<group = 2>(x, K) v = Conv(y, K)", {"K": random(4, 2, 1)})
        inverse, report = invert(path, tmp)
        assert report["initializers_added"] == ["K_inv", "K_inv_1"], report
        feeds = {"x": random(2, 4, 3), "y": random(2, 2, 3, seed=11)}
        for name, back in ort(inverse, ort(path, feeds)).items(): within(name, off(back, feeds[name]), 1e-5)


def check_precision():
    """Slopes are not rounded on the way into the file; reflections come back by what they are, not what is meant."""
    with tempfile.TemporaryDirectory() as tmp:
        for real in "float", "double":
            for op in "LeakyRelu<alpha = 0.1>", "Selu":
                path = small(os.path.join(tmp, "m.onnx"), f"{real}[N,4] x", f"{real}[N,4] z", f"z = {op}(x)")
                inverse, _ = invert(path, tmp)
                x = np.random.default_rng(7).normal(size=(5, 4))
                z = run(path, {"x": x}, tmp, "--float64")
                within(f"{op} of {real}", off(run(inverse, z, tmp, "--float64")["x"], x), 1e-12)
        v = random(6, 2)
        v = np.linalg.qr(v.astype(np.float64))[0]
        for columns in 1, 2:
            for product in "MatMul(d, T)", "Mul(d, T)":
                if columns > 1 and product.startswith("Mul"): continue
                # as far off as the rule takes it
                factors = {"V": v[:, :columns].astype(np.float32), "T": (2 + 4e-6) * v[:, :columns].T.astype(np.float32)}
                path = small(os.path.join(tmp, "m.onnx"), "float[N,6] x", "float[N,6] z",
                             f"d = MatMul(x, V) o = {product} z = Sub(x, o)", factors)
                inverse, _ = invert(path, tmp)
                x = np.random.default_rng(7).normal(size=(5, 6))
                z = run(path, {"x": x}, tmp, "--float64")
                within(f"reflection by {product}", off(run(inverse, z, tmp, "--float64")["x"], x), 1e-10)


def check_not_injective():
    bounds = {"lo": np.float32(1e-6), "hi": np.float32(1 - 1e-6)}
    with tempfile.TemporaryDirectory() as tmp:
        for body, tensors, why in (
                ("s = Sigmoid(x) z = Clip(s, lo, hi)", bounds, r"\(Clip\) cannot be solved for 's': every input beyond a bound gives the bound"),
                ("z = Sin(x)", {}, r"\(Sin\) cannot be solved for 'x': it repeats itself")):
            refused(small(os.path.join(tmp, "m.onnx"), "float[N,4] x", "float[N,4] z", body, tensors), tmp, why)


def check_reasons():
    ones = np.ones(4, dtype=np.float32)
    rows = (("4", "4", "z = LayerNormalization(x, s)",
             r"\(LayerNormalization\).*mean and variance.*ActNorm.*BatchNormalization"),
            ("4,3,3", "4,3,3", "z = InstanceNormalization(x, s, s)", r"\(InstanceNormalization\).*mean and variance"),
            ("1,4,6", "3,2,3", "z = Conv<strides = [2, 2]>(x, P)", r"\(Conv\).*each patch gives fewer numbers"),
            ("3,2", "1,4", "z = ConvTranspose<strides = [2]>(x, R)",
             r"\(ConvTranspose\).*each patch gives fewer numbers"),
            ("4,2,2", "4,2,2", "z = Conv<group = 2>(x, F)", r"\(Conv\).*'F' has condition number (inf|\d.*e\+1\d)"))
    with tempfile.TemporaryDirectory() as tmp:
        for given, made, body, want in rows:
            refused(small(os.path.join(tmp, "m.onnx"), f"float[N,{given}] x", f"float[N,{made}] z", body,
                          {"s": 2 * ones, "P": random(3, 1, 2, 2), "R": random(3, 1, 2),
                           "F": np.ones((4, 2, 1, 1), np.float32)}), tmp, want)
        # of several operators at which it stops the one that is the cause is told first
        first = r"derived from the outputs; node '[^']*' \(Relu\) cannot be solved for '[ah]': every negative input gives 0"
        halves = ("a, b = Split<axis = 1, num_outputs = 2>(x) t = MatMul(a, V) r = Relu(a) d = Add(b, t) "
                  "z = Concat<axis = 1>(r, d)")
        refused(small(os.path.join(tmp, "m.onnx"), "float[N,4] x", "float[N,4] z", halves, {"V": random(2, 2)}), tmp,
                first + r"; node '[^']*' \(Add\)")
        summed = "h = MatMul(x, W) z = Relu(h) ld = ReduceSum<keepdims = 0>(h, one)"
        refused(small(os.path.join(tmp, "m.onnx"), "float[N,4] x", "float[N,4] z, float[N] ld", summed,
                      {"W": random(4, 4), "one": np.array([1])}), tmp, first + r"\. Inputs")


def random(*shape, seed=9):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


# Shapes of x and z without the batch, statement, shapes of its parameters.
LINEAR_MAPS = (
    ("1,4,6", "4,2,3", "Conv<strides = [2, 2]>(x, W, b)", (4, 1, 2, 2), 4),
    ("1,3,5", "4,2,3", "Conv<strides = [2, 2], pads = [0, 0, 1, 1]>(x, W)", (4, 1, 2, 2), 4),
    ("1,5", "2,3", "Conv<strides = [2], pads = [1, 1]>(x, W)", (2, 1, 2), 2),
    ("4,4,2", "8,2,2", "Conv<strides = [2, 1], group = 2>(x, W)", (8, 2, 2, 1), 8),
    ("4,5", "4,5", "Conv(x, W, b)", (4, 4, 1), 4),
    ("4,2,3", "4,2,3", "Conv<group = 4>(x, W, b)", (4, 1, 1, 1), 4),
    ("2,4,2,2", "3,4,2,2", "Conv(x, W)", (3, 2, 1, 1, 1), 3),
    ("1,4,3", "6,2,3", "Conv<strides = [2, 1]>(x, W, b)", (6, 1, 2, 1), 6),
    ("4,2,3", "1,4,6", "ConvTranspose<strides = [2, 2]>(x, W, b)", (4, 1, 2, 2), 1),
    ("4,2,3", "4,2,6", "ConvTranspose<strides = [1, 2], group = 2>(x, W)", (4, 2, 1, 2), 4),
    ("2,4", "1,9", "ConvTranspose<strides = [2], output_padding = [1]>(x, W)", (2, 1, 2), 1),
    ("4", "4", "Gemm<beta = 2.0, transB = 1>(x, W, b)", (4, 4), 4),
    ("4", "4", "Gemm<alpha = 0.5, beta = -2.0>(x, W, b)", (4, 4), 4))


def check_convolutions():
    """Linear maps whose inverse is a filter of several axes or groups, and those with factors of their own."""
    with tempfile.TemporaryDirectory() as tmp:
        for given, made, body, w, b in LINEAR_MAPS:
            path = small(os.path.join(tmp, "m.onnx"), f"float[N,{given}] x", f"float[N,{made}] z", f"z = {body}",
                         {"W": random(*w), **({"b": random(b, seed=10)} if ", b)" in body else {})})
            sizes = [int(np.prod([int(n) for n in text.split(",")])) for text in (given, made)]
            inverse, _ = invert(path, tmp, *(("--with-logdet", "ld") if sizes[0] == sizes[1] else ()))
            check_shape_of_file(inverse, path)
            for batch in 1, 4:
                x = random(batch, *map(int, given.split(",")), seed=batch)
                within(body, off(ort(inverse, {"z": ort(path, {"x": x})["z"]})["x"], x), 1e-5)
                z = run(path, {"x": x}, tmp, "--float64")
                back = run(inverse, z, tmp, "--float64")
                within(f"{body}, float64", off(back["x"], x), 1e-12)
            if sizes[0] != sizes[1]: continue
            moves = np.concatenate([np.zeros((1, sizes[0])), np.eye(sizes[0])]).reshape(-1, *x.shape[1:])
            rows = run(path, {"x": moves}, tmp, "--float64")["z"].reshape(-1, sizes[0])
            want = -np.linalg.slogdet(rows[1:] - rows[:1])[1]
            within(f"{body}: log det", np.abs(back["ld"] - want).max(), 1e-10)


def check_refusals():
    data = os.path.join(common.DATA, "models")
    rows = (("plain_lenet_ts17", (), r"input 'x'.*node '.*' \(Gemm\).*fewer features"),
            ("hz_plain_residual_ts17", (), r"node '/Add_2' \(Add\) cannot be solved for '.*': the branch reads"),
            ("linear_chain_ts17", (), r"node '/d/Gemm' \(Gemm\).*gives fewer features than it takes"),
            ("linear_tall_ts13", ("--with-logdet", "ld"), r"node '.*'.*no bijection"),
            ("nice_chunk_ts17", ("--with-logdet", "z"), r"'z'.*has that name"),
            ("nice_chunk_ts17", ("--logdet", "no"), r"no output 'no'; it has 'z', 'logdet'"))
    for name, options, want in rows:
        with tempfile.TemporaryDirectory() as tmp:
            status, _, err = common.call("rewrite", os.path.join(data, name, "model.onnx"), "-o",
                                         os.path.join(tmp, "o.onnx"), "--inverse-out", os.path.join(tmp, "i.onnx"),
                                         *options)
            assert status == 1 and re.search(want, err), f"{name}: exit {status}, {err}"
            assert not os.listdir(tmp), f"{name}: a refusal has written something"
    for scale in ("Tanh", "Relu"):  # where the mask is 0 the factor may be 0; it is 1 elsewhere
        how = arranged(lambda o, v, of=scale: o("Mul", v.x, o("Add", v.b, o("Mul", v.c, o(of, v.k)))))
        with tempfile.TemporaryDirectory() as tmp:
            m = Made()
            m.save(os.path.join(tmp, "m.onnx"), [("x", [4])], [("z", how(m, "x"), [4])])
            status, _, err = common.call("rewrite", os.path.join(tmp, "m.onnx"), "-o", os.path.join(tmp, "o.onnx"),
                                         "--inverse-out", os.path.join(tmp, "i.onnx"))
            assert status == 1 and "input 'x' cannot be derived" in err, err
    status, _, err = common.call("rewrite", os.path.join(data, "nice_chunk_ts17", "model.onnx"), "--given", "x")
    assert status == 2 and "--inverse-out" in err, err


def main():
    global VERBOSE
    parser = argparse.ArgumentParser()
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("prefix", nargs="*")
    args = parser.parse_args()
    VERBOSE = args.verbose
    folders = flows(args.prefix)
    assert folders, "no such models"
    for folder in folders: check_flow(folder)
    print(f"{len(folders)} flows: round trip and log-determinants")
    if args.prefix: return
    for check in (check_jacobians, check_given, check_rewritten, check_training_mode, check_batches, check_bodies, check_extents,
                  check_places, check_samples, check_shared, check_own, check_names, check_precision, check_not_injective,
                  check_reasons, check_convolutions, check_refusals):
        check()
        print(check.__name__.removeprefix("check_"))


if __name__ == "__main__":
    main()
