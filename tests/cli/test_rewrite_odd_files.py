# SPDX-License-Identifier: Apache-2.0
"""`rewrite`, and `train` of what it wrote, for files that are odd: metadata that lie, names that functions would take,
functions that others put into the domain, types that are mixed, matrices without an inverse.

    test_rewrite_odd_files.py [NAME...]

The models are made here, small, with fixed seeds. What is common is held to by test_rewrite.py."""
import json
import os
import stat
import sys
import tempfile

import numpy as np
import onnx
import onnx.inliner
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node as node
from onnx.reference import ReferenceEvaluator

import common
from test_rewrite import DOMAIN, all_values, call_function, error_of, functions_of, session

N = 6  # columns of the linear models
CASES = {}


def case(f):
    CASES[f.__name__] = f
    return f


def expect(holds, message):
    assert holds, message


# --- models ---

def random(*shape, seed=0, dtype=np.float32):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.5).astype(dtype)


def orthogonal(seed):
    return np.linalg.qr(random(N, N, seed=seed, dtype=np.float64))[0].astype(np.float32)


def value(name, *dims, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, dims)


def make(nodes, inputs, outputs, weights, functions=(), domains=(), metadata=None):
    """weights: {name: array}"""
    tensors = [numpy_helper.from_array(np.asarray(a), k) for k, a in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    model = helper.make_model(graph, opset_imports=opsets(*domains), functions=list(functions), ir_version=8)
    helper.set_model_props(model, metadata or {})
    return model


def opsets(*domains):
    return [helper.make_opsetid("", 17)] + [helper.make_opsetid(d, 1) for d in domains]


def function(domain, name, inputs, outputs, nodes, attributes=(), domains=()):
    return helper.make_function(domain, name, inputs, outputs, nodes, opsets(*domains), attributes)


def linear(extra=None, metadata=None):
    """h = x Wa, r = leaky(h), y = r Wb + b"""
    nodes = [node("MatMul", ["x", "Wa"], ["h"]), node("LeakyRelu", ["h"], ["r"], alpha=0.3),
             node("Gemm", ["r", "Wb", "b"], ["y"])]
    weights = {"Wa": orthogonal(1), "Wb": orthogonal(2), "b": np.zeros(N, np.float32), **(extra or {})}
    return make(nodes, [value("x", "n", N)], [value("y", "n", N)], weights, metadata=metadata)


COUPLING = {"W1": random(2, 8, seed=3), "b1": random(8, seed=4), "W2": random(8, 2, seed=5), "b2": random(2, seed=6)}


def coupling(x="x", y="y"):
    return [node("Split", [x], ["x2", "x1"], axis=1), node("Gemm", ["x2", "W1", "b1"], ["h"], name="first"),
            node("Relu", ["h"], ["r"]), node("Gemm", ["r", "W2", "b2"], ["t"]),
            node("Add", ["x1", "t"], ["y1"], name="sum"), node("Concat", ["x2", "y1"], [y], axis=1)]


def coupled(nodes, weights=None, **more):
    return make(nodes, [value("x", 3, 4)], [value("y", 3, 4)], {**COUPLING, **(weights or {})}, **more)


FEEDS = {"x": random(3, 4, seed=7)}


# --- what is done with them ---

class Place:
    """A folder for the files of one case."""

    def __init__(self, top):
        self.top = top

    def at(self, name):
        return os.path.join(self.top, name)

    def save(self, model, name="model.onnx"):
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, self.at(name))
        return self.at(name)

    def rewrite(self, model, out="out.onnx"):
        """(the rewritten model, {kind: block of the report}); checked, and of the outputs of the original"""
        path = self.save(model)
        report = common.report("rewrite", path, "-o", self.at(out))
        onnx.checker.check_model(self.at(out), full_check=True)
        return onnx.load(self.at(out)), {b["kind"]: b for b in report["blocks"]}

    def same_outputs(self, feeds):
        a, b = session(self.at("model.onnx")), session(self.at("out.onnx"))
        for x, y in zip(a.run(None, feeds), b.run(None, feeds)):
            expect(x.dtype == y.dtype and x.tobytes() == y.tobytes(), "outputs are not the same bit for bit")

    def inverses(self, model, feeds, limit=1e-5):
        """Runs all inverses; how many there are."""
        values, count = all_values(self.at("out.onnx"), feeds), 0
        for name, facts in functions_of(model).items():
            if "inverse" not in facts:
                continue
            count += 1
            for v, x in call_function(model, facts["inverse"], values).items():
                error = error_of(x, values[v])
                expect(error <= limit * max(1, min(float(facts["gain"]), 100)), f"{name}: {v} is off by {error:.1e}")
        return count

    def train(self, path, *more):
        """(initializers of the trained model, stderr)"""
        data, target = self.at("data.npy"), self.at("target.npy")
        np.save(data, random(32, N, seed=10)), np.save(target, random(32, N, seed=11))
        status, _, err = common.call("train", path, "--data", "x=" + data, "--target", target, "--loss", "mse",
                                     "--loss-output", "y", "--batch", 16, "--lr", 0.1, "--seed", 1, "--threads", 1,
                                     *more, "-o", self.at("trained.onnx"))
        expect(status == 0, f"train: exit {status}: {err[:400]}")
        onnx.checker.check_model(self.at("trained.onnx"), full_check=True)
        return arrays(onnx.load(self.at("trained.onnx"))), err

    def refused(self, *args, says):
        status, _, err = common.call(*args)
        expect(status != 0, f"accepted: {args}")
        expect(says in err, f"no {says!r} in: {err[:300]}")


def arrays(model):
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def untouched(before, after, name):
    expect(before[name].dtype == after[name].dtype and before[name].tobytes() == after[name].tobytes(),
           f"{name} has changed")


def is_inverse(weights, name, of, limit=1e-5):
    error = np.abs(weights[name].astype(float) - np.linalg.pinv(weights[of].astype(float))).max()
    expect(error < limit, f"{name} is off from the inverse of {of} by {error:.1e}")


# --- training ---

@case
def facts_that_lie(p):
    """Only an initializer that can be the inverse is taken for it."""
    eye = np.eye(N, dtype=np.float32)
    for what, z, of in (("another shape", eye[0], "Wa"), ("integers", eye.astype(np.int64), "Wa"),
                        ("other columns", np.ones((N, N - 1), np.float32), "Wa"),
                        ("not a matrix", np.ones((N, 1), np.float32), "b"), ("of an input", eye, "x"),
                        ("depends on inputs", eye, "h"), ("of nothing", eye, "nowhere")):
        model = linear({"Z": z}, {DOMAIN + ".inv.Z": of})
        got, _ = p.train(p.save(model))
        try:
            untouched(arrays(model), got, "Z")
        except AssertionError as e:
            raise AssertionError(f"{what}: {e}") from e
        expect((got["Wa"] != arrays(model)["Wa"]).any(), "nothing was trained")
    for real in (np.float32, np.float64):
        got, _ = p.train(p.save(linear({"Z": eye.astype(real)}, {DOMAIN + ".inv.Z": "Wa"})))
        expect(got["Z"].dtype == real, f"Z has become {got['Z'].dtype}")
        is_inverse(got, "Z", "Wa")


@case
def mixed_types(p):
    """A float64 part beside the rewritten model; then the rewritten model in float16. Inverses keep their type."""
    rewritten, _ = p.rewrite(linear())
    expect({"Wa_inv", "Wb_inv"} <= set(arrays(rewritten)), "no inverses of matrices")
    model = onnx.ModelProto.FromString(rewritten.SerializeToString())
    model.graph.initializer.append(numpy_helper.from_array(np.arange(2.0), "side"))
    model.graph.node.append(node("Neg", ["side"], ["negative"]))
    model.graph.output.append(value("negative", 2, kind=TensorProto.DOUBLE))
    got, _ = p.train(p.save(model, "mixed.onnx"))
    is_inverse(got, "Wa_inv", "Wa")
    untouched(arrays(model), got, "side")
    model = onnx.ModelProto.FromString(rewritten.SerializeToString())
    for t in model.graph.initializer:
        t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float16), t.name))
    for v in (*model.graph.input, *model.graph.output):
        v.type.tensor_type.elem_type = TensorProto.FLOAT16
    got, _ = p.train(p.save(model, "half.onnx"))
    expect(got["Wa_inv"].dtype == np.float16, f"Wa_inv has become {got['Wa_inv'].dtype}")
    is_inverse(got, "Wa_inv", "Wa", 1e-2)
    expect((got["Wa"] != arrays(model)["Wa"]).any(), "nothing was trained")
    expect((got["Wa_inv"] != arrays(model)["Wa_inv"]).any(), "Wa_inv was not made anew")


@case
def judged_across_blocks(p):
    """What tells that a tensor is no weight, or is one, is in another block than the node that reads it: the columns of the
    model's input are moved before it is normalized; a product with one result is divided before its bias is added."""
    kept = {"order": np.array([3, 1, 0, 2, 5, 4]), "Wa": orthogonal(1), "mean": random(N, seed=3), "deviation": np.abs(random(N, seed=4)) + 1}
    moved = [node("Gather", ["x", "order"], ["m"], axis=1), node("Sub", ["m", "mean"], ["d"]), node("Div", ["d", "deviation"], ["n"]),
             node("MatMul", ["n", "Wa"], ["y"])]
    halves = {"sizes": np.array([5, 1]), "Wb": random(5, 1, seed=5), "lone": np.float32(.5)}
    lone = [node("Split", ["y", "sizes"], ["a", "b"], axis=1), node("MatMul", ["a", "Wb"], ["t"]), node("Add", ["t", "lone"], ["u"]),
            node("Sub", ["b", "u"], ["v"]), node("Concat", ["v", "a"], ["z"], axis=1)]
    half = function("their", "Half", ["y", *halves], ["z"], lone)
    for last, functions in (lone, ()), ([node("Half", ["y", *halves], ["z"], domain="their")], (half,)):
        p.rewrite(make(moved + last, [value("x", "n", N)], [value("z", "n", N)], {**kept, **halves}, functions, ("their",)))
        said = [{t["name"]: (t["trainable"], t["evidence"]) for t in common.report("inspect", p.at(f))["initializers"]}
                for f in ("model.onnx", "out.onnx")]
        expect(said[0]["mean"] == said[0]["deviation"] == (False, "input") and said[0]["lone"] == (True, "lone_bias"), f"{said[0]}")
        for name, was in said[0].items():
            expect(said[1][name] == was, f"{name} is {said[1][name]}, was {was}")


@case
def parameters_in_the_order_of_the_file(p):
    """Not in that of the nodes, which is another one when a rewritten model is rewritten again."""
    for names in ("W1", "b1", "W2", "b2"), ("b2", "W1", "W2", "b1"):
        model = make(coupling(), [value("x", 3, 4)], [value("y", 3, 4)], {n: COUPLING[n] for n in names})
        rewritten, _ = p.rewrite(model)
        (f,) = (f for f in rewritten.functions if f.name == "AdditiveCoupling_0")
        expect(tuple(f.input) == ("x1", "x2", *names), f"{f.input}")


@case
def untied_when_inlined(p):
    model = linear()
    model.graph.node[0].CopyFrom(node("Gemm", ["x", "Wa", "b"], ["h"]))
    rewritten, _ = p.rewrite(model)
    path = p.save(onnx.inliner.inline_local_functions(rewritten), "inlined.onnx")
    got, _ = p.train(path, "--untie")
    expect(len(got) == len(arrays(rewritten)) + 1, f"the bias has not been untied: {sorted(got)}")
    for of in ("Wa", "Wb"):
        expect((got[of] != arrays(rewritten)[of]).any(), f"{of} was not trained")
        is_inverse(got, of + "_inv", of)


@case
def singular(p):
    """Two equal columns, which stay equal since nothing trains them."""
    model, _ = p.rewrite(linear())
    weights = arrays(model)
    twice = weights["Wa"].copy()
    twice[:, 1] = twice[:, 0]
    next(t for t in model.graph.initializer if t.name == "Wa").CopyFrom(numpy_helper.from_array(twice, "Wa"))
    got, err = p.train(p.save(model, "singular.onnx"), "--freeze", "Wa")
    expect(np.isnan(got["Wa_inv"]).all() and got["Wa_inv"].shape == (N, N), "Wa_inv is not NaN")
    expect("'Wa' has no inverse any more: 'Wa_inv'" in err, f"it is not said: {err[:300]}")
    expect(err.count("no inverse any more") == 1, "it is said of others")
    untouched({"Wa": twice}, got, "Wa")
    is_inverse(got, "Wb_inv", "Wb")


@case
def grouped_filters(p):
    """The inverse of each group, side by side; made anew when weights are trained."""
    weights = {"W": random(N, 2, 1, seed=12) + np.tile(np.eye(2, dtype=np.float32), (3, 1))[:, :, None], "b": random(N),
               "P": random(2, 1, 2, seed=13), "to": np.array([0, N, 1]), "flat": np.array([0, N])}
    nodes = [node("Reshape", ["x", "to"], ["h"]), node("Conv", ["h", "W", "b"], ["g"], group=3),
             node("Reshape", ["g", "line"], ["l"]), node("Conv", ["l", "P"], ["c"], strides=[2]),
             node("Reshape", ["c", "flat"], ["y"])]
    model, _ = p.rewrite(make(nodes, [value("x", "n", N)], [value("y", "n", N)],
                              {**weights, "line": np.array([0, 1, N])}))
    expect(p.inverses(model, {"x": random(5, N)}) == 2, "an inverse is missing")

    def hold(got):
        expect(got["W_inv"].shape == (3, 2, 2) and got["P_inv"].shape == (2, 2), "shapes of the inverses")
        for name, groups in ("W", 3), ("P", 1):
            want = np.linalg.pinv(got[name].reshape(groups, -1, 2).astype(float)).reshape(got[name + "_inv"].shape)
            expect(np.abs(got[name + "_inv"] - want).max() < 1e-4 * np.abs(want).max(), f"{name}_inv is off")

    before, after = arrays(model), p.train(p.at("out.onnx"))[0]
    hold(before), hold(after)
    expect(np.abs(before["W"] - after["W"]).max() > 1e-3, "nothing was trained")


@case
def open_batches(p):
    """Inverses run for batches that they were not made for; one that could not is not written, with the reason."""
    weights = {"W": orthogonal(1), "at": np.array([-1]), "to": np.array([-1000]), "axis": np.array([0]),
               "by": np.array([-1])}
    nodes = [node("MatMul", ["x", "W"], ["h"]), node("Slice", ["h", "at", "to", "axis", "by"], ["r"]),
             node("LeakyRelu", ["r"], ["y"], alpha=0.3)]
    for batch, made in ("n", 2), (3, 3):
        model, blocks = p.rewrite(make(nodes, [value("x", batch, N)], [value("y", batch, N)], weights))
        for rows in (1, 2, 7, 77, 91) if batch == "n" else (3,):
            expect(p.inverses(model, {"x": random(rows, N)}) == made, f"batch {batch}: other inverses")
        p.same_outputs({"x": random(3, N)})
        turned = blocks["permutation"]
        expect(turned["function"] and bool(turned["inverse"]) == (batch == 3), f"{turned}")
        expect(batch == 3 or "constants that hold for one size only" in turned["reason"], f"{turned}")


@case
def open_lengths(p):
    """The same of another open axis: what is turned round there has an inverse for one length only, the others run at any."""
    weights = {"W": orthogonal(1), "at": np.array([-1]), "to": np.array([-1000]), "axis": np.array([1]),
               "by": np.array([-1])}
    nodes = [node("MatMul", ["x", "W"], ["h"]), node("Slice", ["h", "at", "to", "axis", "by"], ["r"]),
             node("LeakyRelu", ["r"], ["y"], alpha=0.3)]
    for length, made in ("t", 2), (3, 3):
        x, y = (onnx.helper.make_tensor_value_info(v, 1, [2, length, N]) for v in "xy")
        model, blocks = p.rewrite(make(nodes, [x], [y], weights))
        for n in (1, 3, 8, 88) if length == "t" else (3,):
            expect(p.inverses(model, {"x": random(2, n, N)}) == made, f"length {length}: other inverses")
        turned = blocks["permutation"]
        expect(bool(turned["inverse"]) == (length == 3), f"{turned}")
        expect(length == 3 or "hold for one size only" in turned["reason"], f"{turned}")


# --- where the report goes ---

def content(path):
    with open(path, "rb") as f:
        return f.read()


def keeps(p, model, out, report, *, says="choose another name", given=True):
    """The call is refused, and leaves all files as they were, and no others."""
    before = {name: content(p.at(name)) for name in os.listdir(p.top) if os.path.isfile(p.at(name))}
    try:
        p.refused("rewrite", model, *(("-o", out) if given else ()), "--report", report, says=says)
    finally:
        after = {name: content(p.at(name)) for name in os.listdir(p.top) if os.path.isfile(p.at(name))}
    expect(before == after, f"{report}: files have changed: {[k for k in after if after[k] != before.get(k)]}")


@case
def report_over_the_model(p):
    model, out = p.save(linear()), p.at("out.onnx")
    os.symlink(model, p.at("to_model"))
    os.link(model, p.at("also_model"))
    for report in (model, p.at("to_model"), p.at("also_model")):
        keeps(p, model, out, report)


@case
def report_over_what_is_there(p):
    model, out = p.save(linear()), p.at("out.onnx")
    default = p.at("model.inv.onnx")
    for path in (out, default):
        with open(path, "wb") as f:
            f.write(b"older")
    os.symlink(out, p.at("to_out"))
    keeps(p, model, out, out)
    keeps(p, model, out, p.at("to_out"))
    keeps(p, model, None, default, given=False)
    keeps(p, model, p.at("to_out"), out)


@case
def report_over_what_is_to_come(p):
    """OUT is not there yet, so only its name can be compared."""
    model, out = p.save(linear()), p.at("out.onnx")
    keeps(p, model, out, out)
    keeps(p, model, None, p.at("model.inv.onnx"), given=False)
    keeps(p, model, out, p.at("./out.onnx"))
    inverse = p.at("inverse.onnx")
    status, _, err = common.call("rewrite", model, "-o", out, "--inverse-out", inverse, "--report", p.at("./inverse.onnx"))
    expect(status == 1 and "choose another name" in err, f"exit {status}: {err[:300]}")
    expect(not os.path.exists(out) and not os.path.exists(inverse), "something was written")


@case
def report_over_external_weights(p):
    onnx.save(linear(), p.at("outside.onnx"), save_as_external_data=True, location="weights.bin", size_threshold=16)
    keeps(p, p.at("outside.onnx"), p.at("out.onnx"), p.at("weights.bin"))


@case
def report_that_cannot_be_written(p):
    model, out = p.save(linear()), p.at("out.onnx")
    keeps(p, model, out, p.at("nowhere/report.json"), says="nowhere/report.json: cannot be written")


@case
def report_that_is_a_folder(p):
    os.mkdir(p.at("folder"))
    keeps(p, p.save(linear()), p.at("out.onnx"), p.at("folder"), says="folder")


@case
def report_to_a_pipe(p):
    """Whether it is written to or refused: what is no regular file is not replaced by one."""
    os.mkfifo(p.at("pipe"))
    reader = os.open(p.at("pipe"), os.O_RDWR | os.O_NONBLOCK)
    try:
        common.call("rewrite", p.save(linear()), "-o", p.at("out.onnx"), "--report", p.at("pipe"))
    finally:
        os.close(reader)
    expect(stat.S_ISFIFO(os.lstat(p.at("pipe")).st_mode), "the pipe has been replaced by a file")


@case
def report_when_all_is_well(p):
    """The cases above are not refused for another reason."""
    model = p.save(linear())
    os.symlink(model, p.at("link.onnx"))
    status, _, err = common.call("rewrite", p.at("link.onnx"), "-o", p.at("out.onnx"), "--report", p.at("report.json"))
    expect(status == 0, f"exit {status}: {err}")
    with open(p.at("report.json"), encoding="utf-8") as f:
        expect(json.load(f)["functions"] == 3, "not the report")


@case
def out_without_a_name(p):
    p.refused("rewrite", p.save(linear()), "-o", "", says="--out is given nothing: wants OUT.onnx")


# --- what is in the file ---

@case
def names_of_values_between(p):
    """Inverses of several steps, of models whose values have the names that steps are given."""
    for op in ("Sigmoid", "Softplus", "Elu", "Selu", "Celu"):
        for x, y in (("_v0", "y"), ("x", "_v0"), ("_v1", "_v0"), ("_v2", "_v1")):
            model = make([node(op, [x], [y])], [value(x, 3, 4)], [value(y, 3, 4)], {})
            out, _ = p.rewrite(model)
            feeds = {x: FEEDS["x"]}
            p.same_outputs(feeds)
            expect(p.inverses(out, feeds) == 1, f"{op}: no inverse")
            inner = next(f for f in out.functions if f.name.endswith("_inverse"))
            expect(any(v.startswith("_v") and v not in (x, y) for n in inner.node for v in n.output),
                   f"{op}: nothing is called _v..., so nothing is tested")
    for k in range(3):
        names = dict(zip(("t", "h", "x1", "s0", "b2"), (f"_v{(k + i) % 5}" for i in range(5))))
        out, blocks = p.rewrite(renamed(affine(), names))
        p.same_outputs(FEEDS)
        p.inverses(out, FEEDS)
        expect(blocks["affine_coupling"]["inverse"], "the coupling has no inverse")


@case
def nested_blocks_run_by_onnx(p):
    """ONNX's own evaluator knows only functions that are listed before."""
    nodes = [node("Split", ["x"], ["a", "b"], axis=1)]
    weights = {}
    for i, (a, b) in enumerate((("a", "b"), ("b1", "a"))):
        weights |= {f"w{i}": random(2, 2, seed=20 + i), f"v{i}": random(2, 2, seed=30 + i)}
        nodes += [node("MatMul", [a, f"w{i}"], [f"p{i}"]), node("LeakyRelu", [f"p{i}"], [f"q{i}"]),
                  node("MatMul", [f"q{i}", f"v{i}"], [f"r{i}"]), node("Add", [b, f"r{i}"], [b + "1"])]
    nodes.append(node("Concat", ["a1", "b1"], ["y"], axis=1))
    model = make(nodes, [value("x", "n", 4)], [value("y", "n", 4)], weights)
    out, _ = p.rewrite(model)
    expect(any(n.domain == DOMAIN for f in out.functions for n in f.node), "no block is in another")
    got, want = (ReferenceEvaluator(m).run(None, FEEDS)[0] for m in (out, model))
    expect(error_of(got, want) < 1e-6, "ONNX's evaluator has other numbers")


def affine():
    """x1 exp(tanh(...)) + t"""
    nodes = coupling()
    nodes[4:5] = [node("Gemm", ["r", "W3", "b2"], ["s0"]), node("Tanh", ["s0"], ["s1"]), node("Exp", ["s1"], ["s"]),
                  node("Mul", ["x1", "s"], ["m"]), node("Add", ["m", "t"], ["y1"])]
    return coupled(nodes, {"W3": random(8, 2, seed=8)})


def renamed(model, names):
    for n in model.graph.node:
        for part in (n.input, n.output):
            for i, v in enumerate(part):
                part[i] = names.get(v, v)
    for t in model.graph.initializer:
        t.name = names.get(t.name, t.name)
    return model


@case
def gain_is_a_bound(p):
    out, blocks = p.rewrite(affine())
    gain = blocks["affine_coupling"]["gain"]
    expect(gain is not None and abs(gain - np.e) < 1e-4, f"gain is {gain}, not e")
    facts = functions_of(out)[blocks["affine_coupling"]["function"]["name"]]
    values = all_values(p.at("out.onnx"), FEEDS)
    step, moved = np.float32(0.25), dict(values)
    moved["y1"] = values["y1"] + step
    a, b = (call_function(out, facts["inverse"], v)["x1"] for v in (values, moved))
    ratio = np.abs(b - a).max() / step
    expect(1 < ratio <= gain * (1 + 1e-5), f"an error is magnified {ratio:.4f} times, the gain is {gain}")
    expect(abs(float(facts["gain"]) - gain) < 1e-4, "metadata and report differ")


@case
def functions_of_others(p):
    """In the domain, but not of a rewriting: kept as they are, wherever they are called from."""
    leaky = node("LeakyRelu", ["a"], ["c"])
    leaky.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    one = [node("Neg", ["a"], ["c"])]
    theirs = [function(DOMAIN, "WithSlope", ["a"], ["c"], [leaky], ["slope"]),
              function(DOMAIN, "Uncalled", ["a"], ["c"], [node("Relu", ["a"], ["c"])]),
              function(DOMAIN, "InBody", ["a"], ["c"], one),
              function(DOMAIN, "InFunction", ["a"], ["c"], one),
              function("user", "Outer", ["a"], ["c"], [node("InFunction", ["a"], ["c"], domain=DOMAIN)],
                       domains=[DOMAIN])]
    taken = helper.make_graph([node("InBody", ["u"], ["k"], domain=DOMAIN)], "then", [], [value("k", 3, 4)])
    other = helper.make_graph([node("Neg", ["u"], ["j"])], "else", [], [value("j", 3, 4)])
    nodes = [node("WithSlope", ["x"], ["u"], domain=DOMAIN, slope=0.4),
             node("If", ["yes"], ["w"], then_branch=taken, else_branch=other),
             node("Outer", ["w"], ["z"], domain="user"), *coupling("z")]
    model = coupled(nodes, {"yes": np.array(True)}, functions=theirs, domains=[DOMAIN, "user"],
                    metadata={DOMAIN + ".user": "mine", DOMAIN: "theirs"})
    out, blocks = p.rewrite(model)
    p.same_outputs(FEEDS)
    expect(blocks["additive_coupling"]["inverse"], "the coupling has no inverse")
    kept = {(f.domain, f.name): f.SerializeToString(deterministic=True) for f in out.functions}
    for f in theirs:
        expect(kept.get((f.domain, f.name)) == f.SerializeToString(deterministic=True), f"{f.name} is lost or changed")
    props = {q.key: q.value for q in out.metadata_props}
    expect(props.get(DOMAIN + ".user") == "mine" and props.get(DOMAIN) == "theirs", "metadata of others are lost")


@case
def functions_called_like_ours(p):
    for name in ("AdditiveCoupling_0", "AdditiveCoupling_0_inverse"):
        theirs = function(DOMAIN, name, ["a"], ["c"], [node("Neg", ["a"], ["c"])])
        out, blocks = p.rewrite(coupled([node(name, ["x"], ["z"], domain=DOMAIN), *coupling("z")], functions=[theirs],
                                        domains=[DOMAIN]))
        p.same_outputs(FEEDS)
        names = [f.name for f in out.functions]
        expect(names.count(name) == 1, f"several functions are called {name}: {names}")
        expect(blocks["additive_coupling"]["inverse"], "the coupling has no inverse")


@case
def functions_used_otherwise(p):
    """Functions of a rewriting that somebody calls in a way that no rewriting does."""
    first, _ = p.rewrite(coupled(coupling()))
    name = next(f for f, facts in functions_of(first).items() if facts["rule"] == "additive_coupling")
    call = next(n for n in first.graph.node if n.op_type == name)
    again = node(name, call.input, ["y1_again"], name="again", domain=DOMAIN)
    shape = value("y1_again", 3, 2)

    def edited(*nodes, functions=(), domains=()):
        model = onnx.ModelProto.FromString(first.SerializeToString())
        model.graph.node.extend(nodes)
        model.graph.output.append(shape)
        model.graph.initializer.append(numpy_helper.from_array(np.array(True), "yes"))
        model.functions.extend(functions)
        model.opset_import.extend(helper.make_opsetid(d, 1) for d in domains)
        return model

    branch = helper.make_graph([node(name, call.input, ["k"], domain=DOMAIN)], "then", [], [value("k", 3, 2)])
    other = helper.make_graph([node("Neg", ["x2"], ["j"])], "else", [], [value("j", 3, 2)])
    inputs = [f"i{i}" for i in range(len(call.input))]
    outer = function("user", "Outer", inputs, ["o"], [node(name, inputs, ["o"], domain=DOMAIN)], domains=[DOMAIN])
    for what, model in (
            ("twice", edited(again)),
            ("If", edited(node("If", ["yes"], ["y1_again"], then_branch=branch, else_branch=other))),
            ("function", edited(node("Outer", call.input, ["y1_again"], domain="user"), functions=[outer],
                                domains=["user"]))):
        path = p.save(model, what + ".onnx")
        session(path).run(None, FEEDS)
        p.refused("rewrite", path, "-o", p.at("refused.onnx"), says="onnx.inliner")
        expect(not os.path.exists(p.at("refused.onnx")), f"{what}: a file has been written")
    inlined = onnx.inliner.inline_local_functions(onnx.load(p.at("twice.onnx")))
    out, _ = p.rewrite(inlined)
    expect(p.inverses(out, FEEDS) >= 2, "what the message advises does not help")


@case
def casts_inside(p):
    """What is of another type inside of a branch is computed in that type again."""
    for kind, limit in (TensorProto.DOUBLE, 1e-5), (TensorProto.FLOAT16, 1e-3):
        nodes = coupling()
        nodes[4:5] = [node("Cast", ["t"], ["wide"], to=kind), node("Sigmoid", ["wide"], ["squashed"]),
                      node("Cast", ["squashed"], ["back"], to=TensorProto.FLOAT),
                      node("Add", ["x1", "back"], ["y1"], name="sum")]
        out, blocks = p.rewrite(coupled(nodes))
        p.same_outputs(FEEDS)
        expect(blocks["additive_coupling"]["inverse"], f"reason: {blocks['additive_coupling']['reason']}")
        inverse = next(f for f in out.functions if f.name == blocks["additive_coupling"]["inverse"]["name"])
        expect(sum(n.op_type == "Cast" for n in inverse.node) == 2, "more Casts than the branch has")
        expect(p.inverses(out, FEEDS, limit) >= 1, "no inverse was run")  # onnxruntime rounds halves where it pleases


@case
def parts_of_a_node(p):
    """Blocks in an If body, in a function where it is not worth opening it up, in an operator."""
    taken = helper.make_graph(coupling(), "then", [], [value("y", 3, 4)])
    other = helper.make_graph([node("Neg", ["x"], ["j"])], "else", [], [value("j", 3, 4)])
    body = coupled([node("If", ["yes"], ["z"], name="choice", then_branch=taken, else_branch=other),
                    node("Relu", ["z"], ["y"])], {"yes": np.array(True)})
    body.graph.node[0].attribute[0].g.output[0].name = "inner"
    body.graph.node[0].attribute[0].g.node[-1].output[0] = "inner"
    names = ["x", *COUPLING]
    called = coupled([node("Whole", names, ["y"], domain="user", name="whole")], domains=["user"],
                     functions=[function("user", "Whole", names, ["y"], coupling()[:-2] + [node("Concat", ["x2", "t"], ["y"], axis=1)])])
    mean = coupling()
    mean[4] = node("Mean", ["x1", "t"], ["y1"], name="half")  # the factor is a block; the sum before it is no value of the file
    for model, said, kind in ((body, "'choice' (If)", "additive_coupling"),
                              (called, "'whole' (Whole)", "linear_tall"),
                              (coupled(mean), "'half' (Mean)", "scale")):
        out, blocks = p.rewrite(model)
        p.same_outputs(FEEDS)
        reason = blocks[kind]["reason"] or ""
        expect(blocks[kind]["function"] is None, f"{said}: a function was made of it")
        expect(f"only a part of node {said}" in reason, f"{said}: reason is {reason!r}")
        expect(not any(f["rule"] == kind for f in functions_of(out).values()), f"{said}: metadata name it")


@case
def control_flow_twice(p):
    """Rewriting a rewritten model gives the same file, also with control flow in it."""
    taken = helper.make_graph([node("Mul", ["x", "two"], ["k"])], "then", [], [value("k", 3, 4)])
    other = helper.make_graph([node("Neg", ["x"], ["j"])], "else", [], [value("j", 3, 4)])
    out, _ = p.rewrite(coupled([node("If", ["yes"], ["z"], then_branch=taken, else_branch=other), *coupling("z")],
                               {"yes": np.array(True), "two": np.float32(2)}))
    p.same_outputs(FEEDS)
    expect(p.inverses(out, FEEDS) >= 2, "no inverses")
    status, _, err = common.call("rewrite", p.at("out.onnx"), "-o", p.at("again.onnx"))
    expect(status == 0, f"exit {status}: {err[:300]}")
    expect(content(p.at("out.onnx")) == content(p.at("again.onnx")), "rewriting twice gives other bytes")


@case
def versions_of_operators(p):
    """ONNX's evaluator takes a function Unsqueeze_1 for Unsqueeze of operator set 1, whatever its domain."""
    nodes, x = [], "x"
    for k in range(3):
        nodes += [node("SpaceToDepth", [x], [f"s{k}"], blocksize=2), node("LeakyRelu", [f"s{k}"], [f"l{k}"], alpha=0.5),
                  node("DepthToSpace", [f"l{k}"], [f"d{k}"], blocksize=2), node("Softsign", [f"d{k}"], [f"x{k}"])]
        x = f"x{k}"
    out, _ = p.rewrite(make([*nodes, node("Neg", [x], ["y"])], [value("x", 3, 1, 4, 4)], [value("y", 3, 1, 4, 4)], {}))
    feeds = {"x": random(3, 1, 4, 4)}
    p.same_outputs(feeds)
    expect(sum(f["rule"] == "unsqueeze" for f in functions_of(out).values()) == 3, f"functions: {sorted(functions_of(out))}")
    got, want = (ReferenceEvaluator(p.at(name)).run(None, feeds)[0] for name in ("out.onnx", "model.onnx"))
    expect((got == want).all(), "ONNX's evaluator gives other outputs")


@case
def deep_branch_in_a_body(p):
    """Each value of a branch is looked at once, however many ways lead to it: here 2 to the 40th."""
    nodes, t = [node("Split", ["s"], ["a", "b"], axis=1), node("MatMul", ["b", "W"], ["t0"])], "t0"
    for k in range(40):
        nodes += [node("Tanh", [t], [f"u{k}"]), node("Add", [t, f"u{k}"], [f"t{k + 1}"])]
        t = f"t{k + 1}"
    nodes += [node("Add", ["a", t], ["c"]), node("Concat", ["c", "b"], ["e"], axis=1), node("Identity", ["go"], ["on"])]
    body = helper.make_graph(nodes, "step", [value("i", kind=TensorProto.INT64), value("go", kind=TensorProto.BOOL), value("s", 3, 4)],
                             [value("on", kind=TensorProto.BOOL), value("e", 3, 4)])
    p.save(make([node("Loop", ["two", "yes", "x"], ["z"], body=body), node("LeakyRelu", ["z"], ["y"], alpha=0.5)], [value("x", 3, 4)],
                [value("y", 3, 4)], {"W": random(2, 2, seed=1), "two": np.array(2), "yes": np.array(True)}))
    common.report("rewrite", p.at("model.onnx"), "-o", p.at("out.onnx"), "--inverse-out", p.at("inverse.onnx"))
    p.same_outputs(FEEDS)
    back = session(p.at("inverse.onnx")).run(None, {"y": session(p.at("model.onnx")).run(None, FEEDS)[0]})[0]
    expect(error_of(back, FEEDS["x"]) < 1e-4, f"the inverse direction is off by {error_of(back, FEEDS['x']):.1e}")


@case
def blocks_in_a_circle(p):
    """Of two couplings of which each adds what the other's branch gives, as in a recurrent cell, one is a function."""
    nodes = [node("Gemm", ["u", "A"], ["g"]), node("Gemm", ["v", "B"], ["h"]), node("Split", ["g"], ["g1", "g2"], axis=1),
             node("Split", ["h"], ["h1", "h2"], axis=1), node("Add", ["h1", "g1"], ["y1"], name="one"),
             node("Add", ["g2", "h2"], ["y2"], name="two"), node("Identity", ["u"], ["s"]), node("Identity", ["v"], ["t"])]
    model = make(nodes, [value("u", 3, 4), value("v", 3, 4)], [value(v, 3, 4) for v in ("y1", "y2", "s", "t")],
                 {"A": random(4, 8, seed=3), "B": random(4, 8, seed=4)})
    feeds = {"u": random(3, 4, seed=7), "v": random(3, 4, seed=8)}
    report = common.report("rewrite", p.save(model), "-o", p.at("out.onnx"))
    onnx.checker.check_model(p.at("out.onnx"), full_check=True)
    p.same_outputs(feeds)
    made = [b["function"] for b in report["blocks"] if b["kind"] == "additive_coupling"]
    expect(len(made) == 2 and made.count(None) == 1, f"functions of the two couplings: {made}")
    expect(p.inverses(onnx.load(p.at("out.onnx")), feeds) == 3, "not three inverses")
    common.report("rewrite", p.at("out.onnx"), "-o", p.at("again.onnx"))
    expect(content(p.at("out.onnx")) == content(p.at("again.onnx")), "rewriting twice gives other bytes")


@case
def weights_in_constant_nodes(p):
    """What Constant nodes beside a block hold is trained as it was, one number, too; and rewriting again changes nothing."""
    def held(name, *shape):
        return node("Constant", [], [name], value=numpy_helper.from_array(random(*shape, seed=len(name))))
    one = [held("b", 1)]
    ways = {"one number": (one, "MatMul", 1, ["W", "b"]),
            "all of them": ([held("W", 1, 1), *one], "MatMul", 1, ["W", "b"]),
            "turned": ([node("Transpose", ["W"], ["V"]), *one], "MatMul", 1, ["W", "b"]),
            "scaled": ([held("W", 2, 2), held("s", 2), held("b", 1, 2)], "MatMul", 2, ["W", "b", "s"]),
            "in a chain": (one, "twice", 1, ["U", "W", "b"])}
    for way, (first, op, half, names) in ways.items():
        matrix = "V" if way == "turned" else "W"
        body = [node("MatMul", ["x2", matrix], ["q"]), *([node("Mul", ["q", "s"], ["k"])] if "s" in names else []),
                node("Add", ["k" if "s" in names else "q", "b"], ["t"])]
        more = [node("MatMul", ["y1", "U"], ["u"]), node("Add", ["u", "b"], ["v"]), node("Add", ["x2", "v"], ["y2"])]
        nodes = [*first, node("Split", ["x"], ["x1", "x2"], axis=1), *body, node("Add", ["x1", "t"], ["y1"]),
                 *(more if op == "twice" else []),
                 node("Concat", ["y1", "y2" if op == "twice" else "x2"], ["y"], axis=1)]
        weights = {} if any("W" in n.output for n in first) else {"W": random(half, half, seed=1)}
        weights |= {"U": random(half, half, seed=4)} if op == "twice" else {}
        p.rewrite(make(nodes, [value("x", 3, 2 * half)], [value("y", 3, 2 * half)], weights))
        np.save(p.at("x.npy"), random(3, 2 * half, seed=2)), np.save(p.at("t.npy"), random(3, 2 * half, seed=3))
        common.report("rewrite", p.at("out.onnx"), "-o", p.at("again.onnx"))
        expect(content(p.at("out.onnx")) == content(p.at("again.onnx")), f"{way}: rewriting twice gives other bytes")
        got = []
        for name in ("model", "out"):
            to = tempfile.mkdtemp(dir=p.top)
            status, _, err = common.call("grad", p.at(name + ".onnx"), "--feed", p.at("x.npy"), "--target",
                                         p.at("t.npy"), "--loss", "mse", "--dump", to)
            expect(status == 0, f"{way}: grad: exit {status}: {err[:300]}")
            got.append({n: content(f"{to}/grad_{n}.npy") for n in names if os.path.exists(f"{to}/grad_{n}.npy")})
        expect(sorted(got[0]) == names, f"{way}: gradients of {sorted(got[0])}")
        expect(got[0] == got[1], f"{way}: the rewritten model has other gradients, of {sorted(got[1])}")


@case
def equal_nodes_in_a_block(p):
    """Nodes that are equal go with the block together, and rewriting again gives the same bytes."""
    weights = {"W": random(2, 2, seed=1)}
    for nodes in ([node("Relu", ["x2"], ["a"]), node("Relu", ["x2"], ["b"]), node("MatMul", ["a", "W"], ["c"]),
                   node("MatMul", ["b", "W"], ["d"]), node("Add", ["c", "d"], ["t"])],
                  [node("Tanh", ["x2"], ["b"]), node("Tanh", ["x2"], ["a"]), node("Tanh", ["x2"], ["c"]),
                   node("Mul", ["a", "b"], ["d"]), node("Mul", ["c", "d"], ["t"])]):
        nodes = [node("Split", ["x"], ["x1", "x2"], axis=1), *nodes, node("Add", ["x1", "t"], ["y1"]),
                 node("Concat", ["y1", "x2"], ["y"], axis=1)]
        model = make(nodes, [value("x", 3, 4)], [value("y", 3, 4)],
                     weights if any("W" in n.input for n in nodes) else {})
        out, _ = p.rewrite(model)
        p.same_outputs(FEEDS)
        expect(p.inverses(out, FEEDS) >= 2, "no inverses")
        expect(len(out.graph.node) == 3, f"beside the block: {[n.op_type for n in out.graph.node]}")
        common.report("rewrite", p.at("out.onnx"), "-o", p.at("again.onnx"))
        expect(content(p.at("out.onnx")) == content(p.at("again.onnx")), "rewriting twice gives other bytes")


@case
def equal_pieces_behind_a_block(p):
    """Pieces that stand for one split, once in a block and once in the next step, whose branch is the same."""
    weights = {"W": random(2, 4, seed=1), "first": np.array([0, 1]), "last": np.array([2, 3])}
    nodes = []
    for i, (x, y) in enumerate((("x", "z"), ("z", "y"))):
        v = {k: f"{k}{i}" for k in "abhpqetn"}
        nodes += [node("Split", [x], [v["a"], v["b"]], axis=1), node("MatMul", [v["b"], "W"], [v["h"]]),
                  node("Gather", [v["h"], "first"], [v["p"]], axis=1), node("Gather", [v["h"], "last"], [v["q"]], axis=1),
                  node("Tanh", [v["p"]], [v["e"]]), node("Add", [v["q"], v["e"]], [v["t"]]),
                  node("Sub", [v["t"], v["a"]], [v["n"]]), node("Concat", [v["n"], v["b"]], [y], axis=1)]
    out, _ = p.rewrite(make(nodes, [value("x", 3, 4)], [value("y", 3, 4)], weights))
    p.same_outputs(FEEDS)
    expect(p.inverses(out, FEEDS) >= 1, "no inverses")
    common.report("rewrite", p.at("out.onnx"), "-o", p.at("again.onnx"))
    expect(content(p.at("out.onnx")) == content(p.at("again.onnx")), "rewriting twice gives other bytes")


def main():
    bad = 0
    unknown = set(sys.argv[1:]) - set(CASES)
    assert not unknown, f"no cases called {unknown}"
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as top:
            try:
                CASES[name](Place(top))
                print(f"PASS {name}", flush=True)
            except Exception as e:  # what a checker or a runtime says of a file
                bad += 1
                print(f"FAIL {name}: {type(e).__name__}: {str(e)[:600]}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
