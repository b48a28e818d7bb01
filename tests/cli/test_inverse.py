# SPDX-License-Identifier: Apache-2.0
"""Writes the inverse direction of models (`rewrite --inverse-out`) and holds it to what docs/rewriting.md promises.

    test_inverse.py [--verbose] [MODEL-PREFIX...]

  flows      of tests/data/models and ../shared/models: onnx.checker accepts INV; the round trip through it gives the
             input again, within 1e-5 in float32 (by `run` and by onnxruntime) and 1e-12 with `run --float64`; the
             log-determinant by rules, and that from the model's own output, are the negative of the model's own
  Jacobian   of small models that are made here, one per invertible operator and compositions of them: the
             log-determinant is that of the Jacobian by central differences in float64, for every row of a batch
  made       conditions (--given), dynamic batches, float64 models, rewritten models, batch normalization in training
             mode; open batches that extents equal, log-determinants of each sample of a fixed batch, names, slopes
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


def activation(kind, **attributes):
    return lambda m, x: m.op(kind, x, **attributes)


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


STEPS = {
    "leaky_relu": activation("LeakyRelu", alpha=0.3), "elu": activation("Elu", alpha=0.7), "selu": activation("Selu"),
    "celu": activation("Celu", alpha=1.5), "tanh": activation("Tanh"), "sigmoid": activation("Sigmoid"),
    "softplus": activation("Softplus"), "exp": activation("Exp"),
    "prelu": lambda m, x: m.op("PRelu", x, m.param(np.array([.2, .5, 1.5, .8]))),
    "negated": lambda m, x: m.op("Neg", x),
    "reversed": lambda m, x: m.op("Gather", x, m.param(np.array([3, 1, 0, 2])), axis=1),
    "scaled": scaled, "divided": lambda m, x: m.op("Div", x, m.param(np.array([[2.0]]))), "normalized": normalized,
    "gemm": lambda m, x: m.op("Gemm", x, m.param(m.square(4)), m.param(m.random.normal(size=4)), transB=1),
    "matmul": lambda m, x: m.op("MatMul", x, m.param(m.square(4))), "convolution": mixed,
    "additive": lambda m, x: couple(m, x, "additive"), "affine": lambda m, x: couple(m, x, "exp"),
    "shifted": lambda m, x: couple(m, x, "sigmoid"), "divided_coupling": lambda m, x: couple(m, x, "divide"),
    "summed": lambda m, x: m.op("CumSum", x, m.param(np.array(1))),
}
CHAINS = (("affine", "gemm", "leaky_relu", "shifted", "reversed", "normalized", "additive"),
          ("scaled", "convolution", "divided_coupling", "affine", "prelu", "matmul", "reversed"))


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
    for s in STEPS: check_jacobian([s])
    for chain in CHAINS: check_jacobian(chain)
    check_jacobian(("affine", "gemm", "leaky_relu"), opset=13)
    check_jacobian(("affine", "matmul", "scaled", "shifted"), double=True)
    check_jacobian(("scaled", "convolution", "prelu"), opset=18)


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


def check_names():
    """The name of the log-determinant is nobody else's."""
    w = np.linalg.qr(np.random.default_rng(6).normal(size=(4, 4)))[0].astype(np.float32)
    with tempfile.TemporaryDirectory() as tmp:
        path = small(os.path.join(tmp, "m.onnx"), "float[N,4] x", "float[N,4] z", "z = MatMul(x, W)", {"W": 2 * w})
        for name in "W_logdet", "W_inv", "_v0", "_v1", "_v5":
            inverse, _ = invert(path, tmp, "--with-logdet", name)
            within(name, off(ort(inverse, {"z": w})[name], np.full(4, -4 * np.log(2))), 1e-6)
        refused(path, tmp, "'W'.*a value of the model has that name", "--with-logdet", "W")


def check_precision():
    """Slopes are not rounded on the way into the file."""
    with tempfile.TemporaryDirectory() as tmp:
        for real in "float", "double":
            for op in "LeakyRelu<alpha = 0.1>", "Selu":
                path = small(os.path.join(tmp, "m.onnx"), f"{real}[N,4] x", f"{real}[N,4] z", f"z = {op}(x)")
                inverse, _ = invert(path, tmp)
                x = np.random.default_rng(7).normal(size=(5, 4))
                z = run(path, {"x": x}, tmp, "--float64")
                within(f"{op} of {real}", off(run(inverse, z, tmp, "--float64")["x"], x), 1e-12)


def check_reasons():
    ones = np.ones(4, dtype=np.float32)
    w = np.linalg.qr(np.random.default_rng(8).normal(size=(4, 4)))[0].astype(np.float32)
    rows = (("float[N,4]", "z = LayerNormalization(x, s)", r"LayerNormalization.*not known in this direction"),
            ("float[N,4]", "n = Shape(x) e = Expand(s, n) z = Mul(x, e)", r"\(Mul\).*Expand"),
            ("float[N,4]", "z = Gemm<beta = 2.0, transB = 1>(x, W, s)", r"\(Gemm\).*beta of Gemm"),
            ("float[N,4,2,2]", "z = Conv<group = 4>(x, D)", r"\(Conv\).*FilterInverse.*no form in ONNX"))
    with tempfile.TemporaryDirectory() as tmp:
        for shape, body, want in rows:
            refused(small(os.path.join(tmp, "m.onnx"), f"{shape} x", f"{shape} z", body,
                          {"s": 2 * ones, "W": w, "D": 2 * ones.reshape(4, 1, 1, 1)}), tmp, want)


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
    for check in (check_jacobians, check_given, check_rewritten, check_training_mode, check_batches, check_samples,
                  check_names, check_precision, check_reasons, check_refusals):
        check()
        print(check.__name__.removeprefix("check_"))


if __name__ == "__main__":
    main()
