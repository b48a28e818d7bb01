# SPDX-License-Identifier: Apache-2.0
"""What is trained at all, of models written as exporters write them; what is not stays as it was to the byte.

told       a file of PyTorch's newer exporter says which initializers are parameters, in the metadata of each and of the
           graph: buffers and what was lifted or computed from constants are not trained; what was computed from
           parameters is, and so is what stands for parameters that are in the file nowhere else
behind     masks are seen through what stands between them and the scores: slices, lookups, arithmetic with numbers
untold     where nothing is said: masks, spectral normalization's vectors, statistics in arithmetic are not trained;
           tables, scales, starts of sequences and relative positions are
fourier    neither are tables of Fourier transforms, by their values, and what is called a buffer
positions  nor are sinusoidal positions, or their frequencies
named      --train-only trains what would not be; what is not finite is refused by name, and no pattern reaches it
quantized  scales of quantization are no weights, however they are used; what is rounded is said to be passed through
tied       a weight that is stored once more, transposed, is trained as one: bit for bit as in a model that transposes
           it, and both are written back
apart      ... but not what only looks so
standard   a weight that is normalized by a BatchNormalization whose statistics are computed from it, as networks without
           normalizers do (arXiv 2102.06171), is one weight with the gradient through all of that"""
import os
import sys
import tempfile

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import common

RNG = np.random.default_rng(5)
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
FOLDED = "pkg.onnxscript.optimizer.folded_from"
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"


def f32(*shape):
    return (RNG.standard_normal(shape) * 0.4).astype(np.float32)


def node(op, inputs, outputs, **attributes):
    outputs = outputs if isinstance(outputs, list) else [outputs]
    return helper.make_node(op, inputs, outputs, name=outputs[0], **attributes)


def put(props, key, value):
    entry = props.add()
    entry.key, entry.value = key, value


def save(path, nodes, tensors, x_shape, y_shape, producer="pytorch", kinds=None, folded=None, parameters=(), opset=18,
         x_type=TensorProto.FLOAT, on_tensor=False):
    """kinds, folded: name -> text, as PyTorch writes them beside each value; on_tensor: beside the tensor instead.
    parameters: all of the program's."""
    initializers = [numpy_helper.from_array(np.asarray(v), k) for k, v in tensors.items()]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", x_type, x_shape)],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, y_shape)], initializers)
    for name, key, text in [(n, KIND, k) for n, k in (kinds or {}).items()] + \
                           [(n, FOLDED, k) for n, k in (folded or {}).items()]:
        if on_tensor:
            put(next(t for t in graph.initializer if t.name == name).metadata_props, key, text)
            continue
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, tensors[name].shape)
        put(value.metadata_props, key, text)
        graph.value_info.append(value)
    if parameters:
        lines = [f"p_{n.replace('.', '_')}: PARAMETER target='{n}'" for n in parameters]
        put(graph.metadata_props, SIGNATURE, "\n# inputs\n" + "\n".join(lines) + "\nx: USER_INPUT\n")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10,
                                producer_name=producer), path)
    return path


def tensors_of(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def train(at, model, *options, steps=3, loss="mse", optimizer="sgd"):
    """(report, weights) of a few steps."""
    out = at("out.onnx")
    report = common.report("train", model, "--data", at("x.npy"), "--target", at("t.npy"), "--loss", loss, "--steps",
                           steps, "--lr", 0.1, "--optimizer", optimizer, "--no-shuffle", "-o", out, *options)
    return report, tensors_of(out)


def refused(at, model, *options, words=()):
    status, _, err = common.call("train", model, "--data", at("x.npy"), "--target", at("t.npy"), "--loss", "mse",
                                 "-o", at("no.onnx"), *options)
    assert status == 1, f"exit {status}: {err}"
    for word in words:
        assert word in err, f"{word!r} is not in: {err}"


def data(at, x, y_shape):
    np.save(at("x.npy"), x)
    np.save(at("t.npy"), RNG.standard_normal(y_shape).astype(np.float32))


def holds(at, model, reasons, *options):
    """Initializers of floating point are trained unless `reasons` has them; the report, the file and `inspect` agree."""
    before = tensors_of(model)
    report, after = train(at, model, *options)
    frozen = {f["name"]: f["reason"] for f in report["frozen"] if f["reason"] != "type"}
    assert frozen == reasons, (frozen, reasons)
    floats = {n for n, v in before.items() if v.dtype.kind == "f"}
    assert set(report["trained"]) == floats - set(reasons), report["trained"]
    assert report["trainable"] == report["trained"]
    assert report["trained_elements"] == sum(before[n].size for n in report["trained"])
    assert {r["reason"]: r["count"] for r in report["not_trained"] if r["reason"] != "type"} == \
        {r: list(reasons.values()).count(r) for r in reasons.values()}
    for name, value in before.items():
        assert np.array_equal(value, after[name], equal_nan=value.dtype.kind == "f") == \
            (name not in report["trained"]), name
        assert not np.isnan(after[name].astype(np.float64)).any(), name
    if not options:
        seen = {i["name"]: i.get("reason") for i in common.report("inspect", model)["initializers"]}
        assert {n: r for n, r in seen.items() if r and r != "type"} == reasons, seen
    return report


# --- models ---

def attention(mask, bias=None):
    """Scores of one head, a mask and perhaps a bias added to them; x is [N,4,6]."""
    nodes = [node("MatMul", ["x", "q"], "a"), node("Transpose", ["a"], "at", perm=[0, 2, 1]),
             node("MatMul", ["a", "at"], "s0")]
    nodes += [node("Add", ["s0", bias], "s1")] if bias else [node("Identity", ["s0"], "s1")]
    return nodes + [node("Add", ["s1", mask], "s2"), node("Softmax", ["s2"], "p"), node("MatMul", ["p", "a"], "o")]


def below(value):
    return np.triu(np.full((4, 4), value, np.float32), 1)


# --- checks ---

def check_computed_operand(at):
    """What the exporter has computed of a parameter is trained, whatever operand it is: a learned state, an exponent."""
    nodes = [helper.make_node("RNN", ["x", "W", "R", "", "", "expand"], ["o", "k"], hidden_size=4),
             helper.make_node("Abs", ["k"], ["a"]), helper.make_node("Pow", ["a", "mul"], ["y"])]
    init = {"W": f32(1, 4, 3), "R": f32(1, 4, 4), "expand": f32(1, 2, 4), "mul": np.full(1, 1 / 3, np.float32)}
    model = save(at("operand.onnx"), nodes, init, [5, 2, 3], [1, 2, 4],
                 folded={"expand": "['h0', 'val_1']", "mul": "['p', 'val_2']"}, parameters=["W", "R", "h0", "p"])
    rows = {i["name"]: i["evidence"] for i in common.report("inspect", model)["initializers"]}
    assert (rows["expand"], rows["mul"]) == ("computed", "computed"), rows


def check_told(at):
    data(at, f32(8, 4, 6), (8, 4, 6))
    nodes = attention("unsqueeze_5", "bias_4") + [
        node("Mul", ["o", "scale"], "o1"), node("InstanceNormalization", ["o1", "val_3", "val_7"], "o2"),
        node("LayerNormalization", ["o2", "n.weight", "n.bias"], "o3"), node("MatMul", ["o3", "val_76"], "o4"),
        node("Mul", ["o4", "val_9"], "o5"), node("Add", ["o5", "gamma"], "y")]
    init = {"q": f32(6, 6), "unsqueeze_5": below(-np.inf), "bias_4": f32(4, 4), "scale": f32(6) + 1,
            "val_3": np.ones(4, np.float32), "val_7": np.zeros(4, np.float32), "n.weight": f32(6) + 1,
            "n.bias": np.zeros(6, np.float32), "val_76": f32(6, 6), "val_9": np.full((4, 1), 0.5, np.float32),
            "gamma": np.ones(6, np.float32)}
    kinds = {"q": "PARAMETER", "scale": "BUFFER", "n.weight": "PARAMETER", "n.bias": "PARAMETER", "gamma": "PARAMETER"}
    folded = {"unsqueeze_5": "['m', 'val_0']", "bias_4": "['idx', 't', 'val_2']", "val_3": "['conv2d', 'val_0']",
              "val_7": "['conv2d', 'val_4']", "val_76": "['l.weight']"}
    parameters = ["q", "n.weight", "n.bias", "gamma", "t", "l.weight"]
    reasons = {"unsqueeze_5": "constant", "scale": "buffer", "val_3": "constant", "val_7": "constant",
               "val_9": "constant"}
    for on_tensor in (False, True):
        model = save(at("told.onnx"), nodes, init, ["N", 4, 6], ["N", 4, 6], kinds=kinds, folded=folded,
                     parameters=parameters, on_tensor=on_tensor)
        holds(at, model, reasons)
    traps = {t["kind"]: t for t in common.report("inspect", model)["traps"]}
    assert traps["computed_initializer"]["initializers"] == ["bias_4"], traps
    assert traps["parameters_changed"]["parameters"] == ["t", "l.weight"]
    status, said, _ = common.call("train", model, "--data", at("x.npy"), "--target", at("t.npy"), "--loss", "mse",
                                  "--steps", 1, "-o", at("out.onnx"))
    line = "trains 6 tensors (106 numbers); not trained: 1 buffer ('scale'), 4 constants ('unsqueeze_5', ...)"
    assert status == 0 and line in said.splitlines(), said
    # the graph's metadata alone say it as well
    model = save(at("graph.onnx"), nodes, init, ["N", 4, 6], ["N", 4, 6], folded=folded, parameters=parameters)
    holds(at, model, reasons | {"scale": "constant"})
    # where a parameter is nowhere, a weight that nothing is said of stands for it
    model = save(at("lost.onnx"), nodes, init, ["N", 4, 6], ["N", 4, 6], kinds=kinds, parameters=parameters,
                 folded={k: v for k, v in folded.items() if k != "val_76"})
    holds(at, model, reasons)
    # ... and so does a bias behind it, where a tool has given all of them new names; a gain may be anything
    model = save(at("renamed.onnx"), [node("MatMul", ["x", "A"], "h"), node("Add", ["h", "B"], "i"),
                                      node("Mul", ["i", "C"], "y")], {"A": f32(6, 6), "B": f32(6), "C": f32(6)},
                 ["N", 4, 6], ["N", 4, 6], parameters=["l.weight", "l.bias"])
    holds(at, model, {"C": "constant"})
    # constants of a program without parameters may be its weights (Keras)
    model = save(at("none.onnx"), [node("MatMul", ["x", "lifted_tensor_0"], "y")], {"lifted_tensor_0": f32(6, 6)},
                 ["N", 4, 6], ["N", 4, 6], kinds={"lifted_tensor_0": "CONSTANT_TENSOR"})
    holds(at, model, {})
    # a number that the file calls a parameter is one
    model = save(at("number.onnx"), [node("MatMul", ["x", "w"], "h"), node("Mul", ["h", "logit"], "y")],
                 {"w": f32(6, 6), "logit": np.array(1.5, np.float32)}, ["N", 4, 6], ["N", 4, 6],
                 kinds={"w": "PARAMETER", "logit": "PARAMETER"}, parameters=["w", "logit"])
    holds(at, model, {})
    # ... and so is what was computed from one
    model = save(at("exp.onnx"), [node("MatMul", ["x", "w"], "h"), node("Mul", ["h", "exp"], "i"),
                                  node("Div", ["i", "val_3"], "y")],
                 {"w": f32(6, 6), "exp": np.array(1.5, np.float32), "val_3": np.array(2, np.float32)}, ["N", 4, 6],
                 ["N", 4, 6], kinds={"w": "PARAMETER"}, folded={"exp": "['logit']"}, parameters=["w", "logit"])
    holds(at, model, {"val_3": "scalar"})


def check_untold(at):
    data(at, f32(8, 4, 6), (8, 4, 6))
    tables = [node("Gather", ["table", "where"], "r0"), node("Reshape", ["r0", "shape"], "bias")]
    nodes = tables + attention("mask", "bias") + [
        node("Add", ["o", "pos"], "o1"), node("Mul", ["o1", "keep"], "o2"), node("Mul", ["o2", "gamma"], "o3"),
        node("MatMul", ["l.weight_orig", "l.weight_v"], "o4"), node("MatMul", ["l.weight_u", "o4"], "o5"),
        node("Div", ["l.weight_orig", "o5"], "o6"), node("MatMul", ["o3", "o6"], "o7"),
        node("Mul", ["o7", "g.weight_v"], "o8"), node("Mul", ["o8", "g.weight_g"], "o9"),
        node("Sub", ["o9", "n.running_mean"], "oa"), node("Div", ["oa", "n.running_var"], "ob"),
        node("Mul", ["ob", "n.weight"], "oc"), node("Add", ["oc", "n.bias"], "od"),
        node("LayerNormalization", ["od", "s.weight", "s.bias"], "y")]
    init = {"table": f32(7), "where": (np.arange(4)[:, None] - np.arange(4) + 3).reshape(-1),
            "shape": np.array([1, 4, 4]), "q": f32(6, 6), "pos": f32(4, 6), "keep": np.array([1, 0, 1, 1, 0, 1], "f4"),
            "gamma": np.full(6, 1, np.float32), "l.weight_v": f32(6), "l.weight_u": np.abs(f32(6)) + 1,
            "l.weight_orig": f32(6, 6), "g.weight_v": f32(6), "g.weight_g": f32(6), "n.running_mean": f32(6),
            "n.running_var": np.abs(f32(6)) + 1, "n.weight": f32(6), "n.bias": f32(6), "s.weight": f32(6) + 1,
            "s.bias": np.zeros(6, np.float32)}
    never = {"keep": "mask", "l.weight_v": "buffer", "l.weight_u": "buffer", "n.running_mean": "buffer",
             "n.running_var": "buffer", "n.weight": "buffer", "n.bias": "buffer"}
    for value in (-np.inf, -1e4, -100):
        model = save(at("untold.onnx"), nodes, init | {"mask": below(value)}, ["N", 4, 6], ["N", 4, 6])
        holds(at, model, never | {"mask": "mask"})
    # infinities betray what is no pattern, and whatever is multiplied
    model = save(at("odd.onnx"), nodes, init | {"mask": below(-np.inf) + below(1).T, "pos": np.full((4, 6), np.nan, "f4")},
                 ["N", 4, 6], ["N", 4, 6])
    seen = {i["name"]: i.get("reason") for i in common.report("inspect", model)["initializers"]}
    assert seen["mask"] == seen["pos"] == "not_finite", seen
    # a scale of ones and a shift of zeros that PyTorch has made up, and those of anybody else
    plain = [node("MatMul", ["x", "w"], "h"), node("InstanceNormalization", ["h", "val_3", "onnx::Add_7"], "y")]
    init = {"w": f32(6, 6), "val_3": np.ones(4, np.float32), "onnx::Add_7": np.zeros(4, np.float32)}
    holds(at, save(at("habit.onnx"), plain, init, ["N", 4, 6], ["N", 4, 6]), {"val_3": "default", "onnx::Add_7": "default"})
    holds(at, save(at("other.onnx"), plain, init, ["N", 4, 6], ["N", 4, 6], producer="other"), {})
    # cosines and sines of positions, and two gains that are none
    angle = np.arange(4)[:, None] / 10 ** np.arange(6)[None]
    turn = [node("MatMul", ["x", "w"], "h"), node("Mul", ["h", "a"], "i"), node("Neg", ["h"], "j"),
            node("Mul", ["j", "b"], "k"), node("Add", ["i", "k"], "y")]
    for a, b, no in ((np.cos(angle), np.sin(angle), {"a": "rotation", "b": "rotation"}), (f32(4, 6), f32(4, 6), {}),
                     (np.ones((4, 6)), np.zeros((4, 6)), {})):
        init = {"w": f32(6, 6), "a": a.astype("f4"), "b": b.astype("f4")}
        holds(at, save(at("turn.onnx"), turn, init, ["N", 4, 6], ["N", 4, 6]), no)
    # the 1 of a GELU, which TensorFlow's exporter has given another rank, and a bias of one number
    gelu = [node("MatMul", ["x", "w"], "h"), node("Add", ["h", "const_fold_opt__7"], "i"), node("Tanh", ["i"], "j"),
            node("Add", ["const_fold_opt__9", "j"], "k"), node("Mul", ["k", "i"], "y")]
    init = {"w": f32(6, 6), "const_fold_opt__7": f32(1), "const_fold_opt__9": np.ones((1, 1, 1), "f4")}
    holds(at, save(at("gelu.onnx"), gelu, init, ["N", 4, 6], ["N", 4, 6], producer="tf2onnx"), {"const_fold_opt__9": "number"})
    # names that only look so
    like = [node("MatMul", ["x", "l.weight"], "h"), node("Add", ["h", "l.bias_u"], "i"), node("Mul", ["i", "l.weight_v"], "j"),
            node("Add", ["j", "l.bias_v"], "k"), node("Mul", ["k", "b.ConstantGain.weight"], "l"),
            node("Mul", ["l", "/b/Constant_3_output_0"], "y")]
    init = {"l.weight": f32(6, 6), "l.bias_u": f32(6), "l.bias_v": f32(6), "l.weight_v": f32(6),
            "b.ConstantGain.weight": np.ones(6, "f4"), "/b/Constant_3_output_0": np.ones(6, "f4")}
    holds(at, save(at("like.onnx"), like, init, ["N", 4, 6], ["N", 4, 6]), {"/b/Constant_3_output_0": "default"})


def check_fourier(at):
    """Tables of Fourier transforms, which are not trained, and weights that only begin as such or are smooth."""
    turn = 2 * np.pi * np.arange(33)[:, None] * np.arange(64)[None] / 64
    both = np.concatenate([np.cos(turn), -np.sin(turn)]) * (0.5 - 0.5 * np.cos(2 * np.pi * (np.arange(64) + 0.5) / 64))
    smooth = np.cos(np.arange(66)[:, None] / 50 + np.arange(64) / 20)
    nodes = [node("MatMul", ["x", "w"], "h"), node("Mul", ["h", "g"], "y")]
    data(at, f32(8, 4, 64), (8, 4, 66))
    for table, no in ((both, {"w": "fourier"}), (both + 0.05 * f32(66, 64), {}), (f32(66, 64), {}), (smooth, {})):
        init = {"w": table.T.astype("f4"), "g": f32(66)}
        holds(at, save(at("dft.onnx"), nodes, init, ["N", 4, 64], ["N", 4, 66]), no)
    data(at, f32(8, 1, 96), (8, 66, 3))
    for name, table, no in (("w", both, "fourier"), ("stft.w_buffer", f32(66, 64), "buffer"), ("buffer_w", f32(66, 64), "")):
        nodes = [node("Conv", ["x", name], "h", strides=[16]), node("Mul", ["h", "g"], "y")]
        init = {name: table[:, None].astype("f4"), "g": f32(66, 1)}
        holds(at, save(at("stft.onnx"), nodes, init, ["N", 1, 96], ["N", 66, 3]), {name: no} if no else {})


def check_positions(at):
    """Sinusoidal positions, as a table or by their frequencies; what only begins as such, or gives one of the two, is trained."""
    data(at, f32(8, 12, 6), (8, 12, 6))
    series = 10000 ** (-np.arange(3) / 3)
    angles = np.arange(20)[:, None] * series
    apart, turns = np.concatenate([np.sin(angles), np.cos(angles)], 1), np.stack([np.sin(angles), np.cos(angles)], 2)
    own = {"z": np.array([0]), "t": np.array([12]), "one": np.array([1]), "at": np.arange(12), "q": f32(6, 6)}
    product = [node("MatMul", ["x", "q"], "h")]
    added = [node("Slice", ["pe", "z", "t", "one"], "p"), *product, node("Add", ["h", "p"], "y")]
    looked_up = [node("Gather", ["pe", "at"], "p"), *product, node("Add", ["h", "p"], "y")]
    padded, shifted = apart.copy(), np.concatenate([np.zeros((1, 6)), apart[:19]])
    padded[1] = 0  # as fairseq has it
    for table, no in ((apart, True), (turns.reshape(20, 6), True), (padded, True), (shifted, True), (apart + 0.01 * f32(20, 6), False), (0.02 * f32(20, 6), False)):
        for nodes, shape, used in ((added, (1, 20, 6), "zt one q"), (looked_up, (20, 6), "at q")):
            init = {k: v for k, v in own.items() if k in used} | {"pe": table.reshape(shape).astype("f4")}
            holds(at, save(at("pe.onnx"), nodes, init, ["N", 12, 6], ["N", 12, 6]), {"pe": "positions"} if no else {})
    place = np.arange(12)[:, None]
    for op in ("Mul", "Div"):
        for values, other, no in ((series, "Cos", True), (f32(3), "Cos", False), (0.9 * series, "Cos", False), (series, "Tanh", False)):
            nodes = [node("Cast", ["place"], "reals", to=TensorProto.FLOAT), node(op, ["reals", "freq"], "a"),
                     node("Sin", ["a"], "sin"), node(other, ["a"], "cos"), node("Concat", ["sin", "cos"], "p", axis=-1),
                     *product, node("Mul", ["h", "p"], "y")]
            init = {"place": place, "freq": (1 / values if op == "Div" else values).astype("f4"), "q": own["q"]}
            holds(at, save(at("freq.onnx"), nodes, init, ["N", 12, 6], ["N", 12, 6]), {"freq": "positions"} if no else {})


def check_behind(at):
    """Scores s0, and what becomes of the mask before a softmax; each is trained, too, where its values are no mask's."""
    data(at, f32(8, 4, 6), (8, 4, 6))
    down, keep, wide = below(-1e4), 1 - below(1), np.pad(below(-1e4), (0, 3))
    numbers = {"one": np.array(1, "f4"), "far": np.array([-1e4], "f4"), "part": np.array(0.4, "f4"), "z": np.array([0, 0]),
               "four": np.array([4, 4]), "shape": np.array([1, 4, 4]), "last": np.array([-1]),
               "where": np.triu(np.ones((4, 4), np.int64), 1), "flags": np.triu(np.ones((4, 4), bool), 1)}
    add, soft = node("Add", ["s0", "m"], "s2"), node("Softmax", ["s2"], "p")
    times = [node("Softmax", ["s0"], "p0"), node("Mul", ["p0", "m"], "p")]
    forms = [
        (wide, [node("Slice", ["mask", "z", "four"], "m"), add, soft]),
        (down, [node("Expand", ["mask", "shape"], "m"), add, soft]),
        (np.array([0, -1e4], "f4"), [node("Gather", ["mask", "where"], "m"), add, soft]),
        (down, [node("Add", ["s0", "mask"], "s1"), node("Mul", ["s1", "part"], "s2"), soft]),
        (down, [node("Add", ["s0", "mask"], "s1"), node("Div", ["s1", "part"], "s2"), soft]),
        (keep, [node("Sub", ["one", "mask"], "m1"), node("Mul", ["m1", "far"], "m"), add, soft]),
        (-down, [node("Sub", ["s0", "mask"], "s2"), soft]),
        (np.full((4, 4), -1e9, "f4"), [node("Where", ["flags", "mask", "s0"], "s2"), soft]),
        (down + f32(4, 4), [node("Identity", ["mask"], "m"), add, soft]),
        (np.pad(keep, (0, 3)), [node("Slice", ["mask", "z", "four"], "m"), *times]),
        (down, [node("Identity", ["mask"], "m"), add, node("ReduceMax", ["s2", "last"], "top"),
                node("Sub", ["s2", "top"], "s3"), node("Exp", ["s3"], "e"), node("ReduceSum", ["e", "last"], "sum"),
                node("Div", ["e", "sum"], "p")])]
    for i, (mask, how) in enumerate(forms):
        nodes = attention("mask")[:3] + how + [node("MatMul", ["p", "a"], "y")]
        used = {n: v for n, v in numbers.items() if any(n in h.input for h in how)}
        scalars = {n: "scalar" for n, v in used.items() if v.dtype == np.float32 and not v.shape} | \
            ({"far": "mask"} if "far" in used else {})
        for learned in (False, True):
            value = f32(*mask.shape) if learned else mask
            model = save(at(f"behind{i}.onnx"), nodes, {"q": f32(6, 6), "mask": value} | used, ["N", 4, 6], ["N", 4, 6])
            holds(at, model, scalars | ({} if learned else {"mask": "mask"}), "--train-only", "q",
                  *(("--train-only", "mask") if learned else ()))
            seen = {n["name"]: n.get("reason") for n in common.report("inspect", model)["initializers"]}
            assert seen["mask"] == (None if learned else "mask"), (i, seen)
    # single numbers that masks are made with, of rank 1
    numbers = {"flags": numbers["flags"], "one": np.ones(1, "f4"), "zero": np.zeros(1, "f4"), "far": np.array([-1e4], "f4")}
    for how in ([node("Where", ["flags", "far", "zero"], "m"), add], [node("Where", ["flags", "far", "s0"], "s2")],
                [node("Sub", ["one", "keep"], "m1"), node("Mul", ["m1", "far"], "m"), add]):
        nodes = attention("mask")[:3] + how + [soft, node("MatMul", ["p", "a"], "y")]
        used = {n: v for n, v in (numbers | {"keep": keep}).items() if any(n in h.input for h in how)}
        holds(at, save(at("numbers.onnx"), nodes, {"q": f32(6, 6)} | used, ["N", 4, 6], ["N", 4, 6]),
              {n: "number" if n in ("one", "zero") else "mask" for n in used if n != "flags"})
    # the operand of an Attention is what its values say
    nodes = [node("MatMul", ["x", "q"], "a"), node("Attention", ["a", "a", "a", "mask"], "y", q_num_heads=2, kv_num_heads=2)]
    for value, reason in ((down, {"mask": "mask"}), (f32(4, 4), {})):
        holds(at, save(at("op.onnx"), nodes, {"q": f32(6, 6), "mask": value}, ["N", 4, 6], ["N", 4, 6], opset=23), reason)


def check_named(at):
    data(at, f32(8, 4, 6), (8, 4, 6))
    nodes = attention("mask") + [node("Mul", ["o", "scale"], "o1"), node("MatMul", ["o1", "w"], "y")]
    init = {"q": f32(6, 6), "mask": below(-np.inf), "scale": f32(6), "w": f32(6, 6)}
    model = save(at("named.onnx"), nodes, init, ["N", 4, 6], ["N", 4, 6], kinds={"q": "PARAMETER", "scale": "BUFFER"},
                 parameters=["q", "w"])
    holds(at, model, {"mask": "constant", "scale": "buffer"})
    holds(at, model, {"mask": "constant", "q": "not_named"}, "--train-only", "scale", "--train-only", "w")
    holds(at, model, {"mask": "not_finite"}, "--train-only", "*")
    holds(at, model, {"mask": "not_finite", "w": "frozen"}, "--train-only", "*", "--freeze", "w")
    refused(at, model, "--train-only", "mask", words=("'mask'", "non-finite"))
    holds(at, save(at("large.onnx"), nodes, init | {"mask": below(-100)}, ["N", 4, 6], ["N", 4, 6]),
          {"q": "not_named", "w": "not_named", "scale": "not_named"}, "--train-only", "mask")
    # nor is a table trained that holds such a number
    nodes.insert(0, node("Gather", ["table", "where"], "mask"))
    init = {n: v for n, v in init.items() if n != "mask"}
    init |= {"table": np.array([0, -np.inf], "f4"), "where": np.triu(np.ones((4, 4), np.int64), 1)}
    table = save(at("table.onnx"), nodes, init, ["N", 4, 6], ["N", 4, 6])
    assert {n["name"]: n.get("reason") for n in common.report("inspect", table)["initializers"]}["table"] == "mask"
    holds(at, table, {"table": "not_finite"}, "--train-only", "*")
    refused(at, table, "--train-only", "table", words=("'table'", "non-finite"))
    init["table"] = np.array([0.5, -np.inf], "f4")
    holds(at, save(at("table.onnx"), nodes, init, ["N", 4, 6], ["N", 4, 6]), {"table": "not_finite"})


def check_quantized(at):
    data(at, f32(8, 6), (8, 6))
    around = [node("QuantizeLinear", ["x", "sx", "zx"], "xq"), node("DequantizeLinear", ["xq", "sx", "zx"], "xd")]
    scales = {"sx": np.full(1, 0.02, "f4"), "zx": np.zeros(1, np.int8), "sw": np.abs(f32(6)) / 50,
              "zw": np.zeros(6, np.int8), "sb": np.full(6, 0.001, "f4"), "zb": np.zeros(6, np.int32)}
    integers = {"wq": RNG.integers(-99, 99, (6, 6)).astype(np.int8), "bq": RNG.integers(-99, 99, 6).astype(np.int32)}
    weights = [node("DequantizeLinear", ["wq", "sw", "zw"], "w", axis=1),
               node("DequantizeLinear", ["bq", "sb", "zb"], "b", axis=0), node("MatMul", ["xd", "w"], "h")]
    whole = save(at("qdq.onnx"), around + weights + [node("Add", ["h", "b"], "y")], scales | integers, ["N", 6], ["N", 6])
    refused(at, whole, words=("nothing to train", "3 scales of quantization ('sx', ...)", "before quantization"))
    ranks = {"sx": np.array(0.02, "f4"), "zx": np.array(0, np.int8), "sw": np.array(0.01, "f4"), "zw": np.array(0, np.int8)}
    refused(at, save(at("scalars.onnx"), around + weights[:1] + [node("MatMul", ["xd", "w"], "y")],
                     ranks | {"wq": integers["wq"]}, ["N", 6], ["N", 6]),
            words=("nothing to train", "2 scales of quantization ('sx', ...)", "before quantization"))
    norm = [node("Add", ["h", "b"], "n"), node("LayerNormalization", ["n", "g", "s"], "y")]
    part = save(at("part.onnx"), around + weights + norm, scales | integers | {"g": f32(6) + 1, "s": f32(6)}, ["N", 6],
                ["N", 6])
    no = {"sx": "quantization", "sw": "quantization", "sb": "quantization"}
    holds(at, part, no)
    holds(at, part, no, "--train-only", "*")
    holds(at, part, {k: v for k, v in no.items() if k != "sw"} | {"g": "not_named", "s": "not_named"}, "--train-only",
          "sw")
    assert {t["kind"]: t for t in common.report("inspect", part)["traps"]}["straight_through"]["nodes"] == ["xq"]
    status, _, err = common.call("train", part, "--data", at("x.npy"), "--target", at("t.npy"), "--loss", "mse",
                                 "--steps", 1, "-o", at("out.onnx"))
    assert status == 0 and "'xq': " in err and "passes gradients through" in err, err
    # by blocks; and what onnxruntime makes of a model by quantize_dynamic
    blocks = [node("DequantizeLinear", ["wq", "sw"], "w", axis=0, block_size=3), node("MatMul", ["x", "w"], "h"),
              node("Add", ["h", "b"], "y")]
    model = save(at("blocks.onnx"), blocks, {"wq": integers["wq"], "sw": np.abs(f32(2, 6)) / 50, "b": f32(6)}, ["N", 6],
                 ["N", 6], opset=21)
    holds(at, model, {"sw": "quantization"})
    dynamic = [node("MatMul", ["x", "v"], "h0"), node("DynamicQuantizeLinear", ["h0"], ["q", "qs", "qz"]),
               node("Mul", ["qs", "sw"], "both"), node("MatMulInteger", ["q", "wq", "qz", "zw"], "i"),
               node("Cast", ["i"], "f", to=TensorProto.FLOAT), node("Mul", ["f", "both"], "h"),
               node("Add", ["h", "b"], "y")]
    model = save(at("dynamic.onnx"), dynamic, {"wq": integers["wq"], "sw": scales["sw"], "zw": np.zeros(6, np.int8),
                                               "b": f32(6), "v": f32(6, 6)}, ["N", 6], ["N", 6])
    seen = {i["name"]: i.get("reason") for i in common.report("inspect", model)["initializers"]}
    assert seen["sw"] == "quantization" and not seen["b"] and not seen["v"], seen
    status, _, err = common.call("train", model, "--data", at("x.npy"), "--target", at("t.npy"), "--loss", "mse",
                                 "--steps", 1, "-o", at("out.onnx"), "--freeze", "v")
    assert status == 0 and np.array_equal(tensors_of(at("out.onnx"))["sw"], scales["sw"]), err


def check_dequantized(at):
    """Scales in arithmetic; what else is multiplied is trained."""
    data(at, f32(8, 6), (8, 6))
    wq = RNG.integers(-99, 99, (6, 6)).astype(np.int8)
    scale, plain = np.abs(f32(6)) / 50, {"b": f32(6)}
    weights = [node("Cast", ["wq"], "wf", to=1), node("Sub", ["wf", "zero"], "wz"), node("Mul", ["wz", "scale"], "w"),
               node("MatMul", ["x", "w"], "h")]
    end = [node("Add", ["h", "b"], "y")]
    init = plain | {"wq": wq, "scale": scale, "zero": np.ones(6, "f4")}
    no = {"scale": "quantization", "zero": "quantization"}
    holds(at, save(at("cast.onnx"), weights + end, init, ["N", 6], ["N", 6]), no)
    gain = [node("Mul", ["h", "gain"], "i"), node("Add", ["i", "b"], "y")]
    holds(at, save(at("gain.onnx"), weights + gain, init | {"gain": f32(6)}, ["N", 6], ["N", 6]), no)
    integers = [node("DynamicQuantizeLinear", ["x"], ["q", "qs", "qz"]), node("MatMulInteger", ["q", "wq", "qz"], "n"),
                node("Cast", ["n"], "f", to=1), node("Mul", ["f", "qs"], "h0")]
    for op, value in (("Mul", scale), ("Div", 1 / scale)):
        model = save(at("chain.onnx"), integers + [node(op, ["h0", "scale"], "h")] + gain,
                     plain | {"wq": wq, "scale": value, "gain": f32(6)}, ["N", 6], ["N", 6])
        holds(at, model, {"scale": "quantization"})
    # of the product with integers, and by rows of a table of integers
    after = [node("Cast", ["wq"], "wf", to=1), node("MatMul", ["x", "wf"], "h0"), node("Mul", ["h0", "scale"], "h")]
    holds(at, save(at("after.onnx"), after + gain, plain | {"wq": wq, "scale": scale, "gain": f32(6)}, ["N", 6], ["N", 6]),
          {"scale": "quantization"})
    rows = [node("Gather", ["wq", "rows"], "eq"), node("Cast", ["eq"], "ef", to=1), node("Gather", ["scale", "rows"], "es"),
            node("Mul", ["ef", "es"], "w"), node("MatMul", ["x", "w"], "h")]
    rowwise = {"wq": wq, "scale": scale[:, None], "rows": np.array([5, 3, 1, 2, 0, 4])}
    holds(at, save(at("rows.onnx"), rows + end, plain | rowwise, ["N", 6], ["N", 6]), {"scale": "quantization"})
    # four bits of a byte each
    nibbles = [node("BitwiseAnd", ["packed", "low"], "lo"), node("BitShift", ["packed", "four"], "hi", direction="RIGHT"),
               node("Concat", ["lo", "hi"], "wq", axis=0), *weights]
    packed = {"packed": RNG.integers(0, 255, (3, 6)).astype(np.uint8), "low": np.uint8(15), "four": np.uint8(4)}
    holds(at, save(at("nibbles.onnx"), nibbles + end, plain | packed | {"scale": scale, "zero": np.full(6, 8, "f4")},
                   ["N", 6], ["N", 6], opset=18), no)
    # a bias, in 32 bits
    bias = [node("Cast", ["bq"], "bf", to=1), node("Mul", ["bf", "scale"], "b"), node("MatMul", ["x", "v"], "h")]
    init = {"bq": RNG.integers(-9999, 9999, 6).astype(np.int32), "scale": scale / 100, "v": f32(6, 6)}
    holds(at, save(at("bias.onnx"), bias + end, init, ["N", 6], ["N", 6]), {"scale": "quantization"})
    # integers that are no weights: of zeros and ones
    flags = {"wq": (wq > 0).astype(np.uint8), "scale": f32(6), "b": f32(6)}
    mask = [node("Cast", ["wq"], "wf", to=1), node("Mul", ["wf", "scale"], "w"), node("MatMul", ["x", "w"], "h")]
    holds(at, save(at("flags.onnx"), mask + end, flags, ["N", 6], ["N", 6]), {})


def tied(path, stored, e, v, **how):
    """Embedding, layer, head by the embedding's weights, which are stored once more or transposed in the graph."""
    nodes = [node("Gather", ["e", "x"], "a"), node("MatMul", ["a", "v"], "b"), node("Tanh", ["b"], "c")]
    nodes += [] if stored else [node("Transpose", ["e"], "val_9")]
    init = {"e": e, "v": v} | ({"val_9": np.ascontiguousarray(e.T)} if stored else {})
    return save(path, nodes + [node("MatMul", ["c", "val_9"], "y")], init, ["N", 5], ["N", 5, 11],
                x_type=TensorProto.INT64, **how)


def check_tied(at):
    data(at, RNG.integers(0, 11, (8, 5)), (8, 5, 11))
    e, v = f32(11, 6), f32(6, 6)
    once, twice = tied(at("once.onnx"), False, e, v), tied(at("twice.onnx"), True, e, v)
    traps = [t for t in common.report("inspect", twice)["traps"] if t["kind"] == "transposed_copy"]
    assert [(t["initializer"], t["of"]) for t in traps] == [("val_9", "e")] and "--untie" in traps[0]["text"]
    seen = {i["name"]: i.get("reason") for i in common.report("inspect", twice)["initializers"]}
    assert seen == {"e": None, "v": None, "val_9": "tied"}, seen
    for optimizer, options in (("sgd", ()), ("adamw", ("--memory", "recompute")), ("momentum", ("--float64",))):
        want, weights = train(at, once, *options, optimizer=optimizer)
        got, both = train(at, twice, *options, optimizer=optimizer)
        assert got["steps"] == want["steps"], optimizer
        assert got["tied"] == [{"name": "val_9", "of": "e"}] and got["trained"] == ["e", "v"]
        assert [f["reason"] for f in got["frozen"]] == ["tied"]
        assert np.array_equal(both["e"], weights["e"]) and np.array_equal(both["v"], weights["v"])
        assert np.array_equal(both["val_9"], both["e"].T) and not np.array_equal(both["e"], e)
    # the file that was written trains on, and is what onnx calls valid
    os.replace(at("out.onnx"), at("again.onnx"))
    onnx.checker.check_model(onnx.load(at("again.onnx")), full_check=True)
    assert train(at, at("again.onnx"))[0]["tied"]
    # half precision, and a tensor outside of the file
    half = onnx.load(twice)
    for t in half.graph.initializer:
        cast = numpy_helper.to_array(t).astype(np.float16)
        t.CopyFrom(numpy_helper.from_array(cast, t.name))
    for vi in list(half.graph.input) + list(half.graph.output):
        if vi.type.tensor_type.elem_type == TensorProto.FLOAT:
            vi.type.tensor_type.elem_type = TensorProto.FLOAT16
    onnx.save(half, at("half.onnx"), save_as_external_data=True, location="half.data", size_threshold=0)
    both = train(at, at("half.onnx"))[1]
    assert both["e"].dtype == np.float16 and np.array_equal(both["val_9"], both["e"].T)
    assert not np.array_equal(both["e"], e.astype(np.float16))
    # naming one of them names the pair
    for named, other in (("e", "val_9"), ("val_*", "e")):
        report, weights = train(at, twice, "--train-only", named)
        assert [(t["name"], t["of"] != other) for t in report["tied"]] == [(other, True)], report["tied"]
        assert np.array_equal(weights["val_9"], weights["e"].T) and not np.array_equal(weights["e"], e)
        assert np.array_equal(weights["v"], v)
    assert not train(at, twice, "--train-only", "v")[0]["tied"]
    # each for itself, where that is asked for
    for options in (("--untie",), ("--train-only", "e", "--train-only", "val_9")):
        report, weights = train(at, twice, *options)
        assert not report["tied"] and not np.array_equal(weights["val_9"], weights["e"].T), options
    report, weights = train(at, twice, "--freeze", "val_9")
    assert not report["tied"] and np.array_equal(weights["val_9"], e.T)
    # the newer exporter says what the copy was made of
    kinds = {"kinds": {"e": "PARAMETER", "v": "PARAMETER"}, "parameters": ["e", "v"]}
    told = tied(at("told.onnx"), True, e, v, folded={"val_9": "['e']"}, **kinds)
    assert train(at, told)[0]["steps"] == train(at, once)[0]["steps"]
    # what several layers read, and another transposed copy of it
    assert train(at, tied(at("other.onnx"), True, e, v, producer="other"))[0]["tied"]


def check_apart(at):
    data(at, RNG.integers(0, 11, (8, 5)), (8, 5, 11))
    e, v = f32(11, 6), f32(6, 6)
    kinds = {"e": "PARAMETER", "v": "PARAMETER", "val_9": "PARAMETER"}
    both = tied(at("both.onnx"), True, e, v, kinds=kinds, parameters=list(kinds))
    zeros = tied(at("zeros.onnx"), True, np.zeros((11, 6), np.float32), v)
    nodes = [node("Gather", ["e", "x"], "a"), node("MatMul", ["a", "val_1"], "b"), node("MatMul", ["b", "val_2"], "c"),
             node("MatMul", ["c", "w"], "y")]
    near = f32(6, 6)
    init = {"e": e, "w": f32(6, 11)}
    eyes = save(at("eyes.onnx"), nodes, init | {"val_1": np.eye(6, dtype="f4"), "val_2": np.eye(6, dtype="f4")},
                ["N", 5], ["N", 5, 11], x_type=TensorProto.INT64)
    off = near.T.copy()
    off[5, 4] = np.nextafter(off[5, 4], np.float32(9))
    bit = save(at("bit.onnx"), nodes, init | {"val_1": near, "val_2": off}, ["N", 5], ["N", 5, 11],
               x_type=TensorProto.INT64)
    for model in (both, zeros, eyes, bit):
        report, _ = train(at, model, "--untie" if model == zeros else "--json")
        assert not report["tied"] and len(report["trained"]) > 2, model
        assert not [t for t in common.report("inspect", model)["traps"] if t["kind"] == "transposed_copy"], model


def check_standard(at):
    n, i = 5, 7
    w, gain, x, t = f32(n, i), 1 + f32(n), f32(9, i), f32(9, n)
    np.save(at("in.npy"), x)
    np.save(at("t.npy"), t)
    init = {"w": w, "gain": gain, "rows": np.array([1, n, i]), "back": np.array([n, i]), "axes": np.array([0, 2]), "zero": np.zeros(n, np.float32)}
    nodes = [node("Reshape", ["w", "rows"], "v"), node("ReduceMean", ["v", "axes"], "m", keepdims=0), node("ReduceMean", ["v", "axes"], "k", keepdims=1),
             node("Sub", ["v", "k"], "d"), node("Mul", ["d", "d"], "q"), node("ReduceMean", ["q", "axes"], "s", keepdims=0),
             node("BatchNormalization", ["v", "gain", "zero", "m", "s"], "b", epsilon=1e-3), node("Reshape", ["b", "back"], "r"),
             node("Gemm", ["x", "r"], "y", transB=1)]
    model = save(at("standard.onnx"), nodes, init, ["N", i], ["N", n])

    def loss(w, gain):
        d = w - w.mean(1, keepdims=True)
        return np.mean((x.astype(float) @ (d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-3) * gain[:, None]).T - t) ** 2)

    assert not [k for k in common.report("inspect", model)["traps"] if k["kind"] == "merged_initializer"]
    common.report("grad", model, "--feed", at("in.npy"), "--target", at("t.npy"), "--loss", "mse", "--float64", "--dump", at("dump"))
    for name, of in (("w", w), ("gain", gain)):
        got = np.load(os.path.join(at("dump"), f"grad_{name}.npy"))
        for place in np.ndindex(of.shape):
            step = np.zeros_like(of, float)
            step[place] = 1e-5
            both = [loss(*((a + k * step if m == name else a).astype(float) for m, a in (("w", w), ("gain", gain)))) for k in (1, -1)]
            assert abs(got[place] - (both[0] - both[1]) / 2e-5) < 1e-7, (name, place)


def main():
    wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        def at(name):
            return os.path.join(folder, name)
        for name, check in list(globals().items()):
            if name.startswith("check_") and (not wanted or name.removeprefix("check_") in wanted):
                check(at)
                print(name.removeprefix("check_"), "ok", flush=True)


if __name__ == "__main__":
    main()
