# SPDX-License-Identifier: Apache-2.0
"""What exporters do to models that stands in the way of training: found by inspect, refused, and put right.

train_bn   a model with batch normalization in inference form trains, with --train-bn, bit for bit as one in training form;
           written back, its nodes are as they were and its statistics are the trained ones
untie      initializers that look merged are refused, by name, role and remedy, for training only; with --untie the model
           trains bit for bit as one whose initializers were never merged, and is written so. What is shared on purpose
           stays shared
functions  and what is merged inside of functions ...
bodies     ... and of bodies of control flow
inspect    names each trap, and says what is trained
types      float16, bfloat16 and float64 initializers train in float32 masters and are written back in their own type;
           types that cannot be computed with are left alone off the trained path and named on it
through    weights behind Identity, Transpose, Reshape, Cast and arithmetic on parameters are trained"""
import os
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import common

RNG = np.random.default_rng(7)
ROWS = 8
LOSS = ("--loss", "cross_entropy")


# --- models ---

def node(op, inputs, outputs, name=None, **attributes):
    outputs = outputs if isinstance(outputs, list) else [outputs]
    return helper.make_node(op, inputs, outputs, name=name or outputs[0], **attributes)


def save(path, nodes, initializers, x_shape, y, y_shape, opset=17, x_type=TensorProto.FLOAT, y_type=TensorProto.FLOAT):
    tensors = [numpy_helper.from_array(np.asarray(v), k) if not isinstance(v, onnx.TensorProto) else v
               for k, v in initializers.items()]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", x_type, x_shape)],
                              [helper.make_tensor_value_info(y, y_type, y_shape)], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.save(model, path)
    return path


def f32(*shape):
    return RNG.standard_normal(shape).astype(np.float32) * 0.3


def two_blocks(path, merged, training=False, identities=False):
    """Conv-BN-Relu twice and a head. Merged: one vector of zeros for all biases and means, one of ones for all scales
    and variances."""
    nodes, init = [], {"w1": W1, "w2": W2, "wh": WH, "bh": BH}

    def vector(value, name):
        shared = "zeros" if value == 0 else "ones"
        init[shared if merged else name] = np.full(4, value, np.float32)
        if not (merged and identities):
            return shared if merged else name
        nodes.append(node("Identity", [shared], name))
        return name

    last = "x"
    for i in (1, 2):
        conv = [last, f"w{i}", vector(0, f"b{i}")]
        bn = [f"c{i}", vector(1, f"s{i}"), vector(0, f"t{i}"), vector(0, f"m{i}"), vector(1, f"v{i}")]
        nodes += [node("Conv", conv, f"c{i}", f"conv{i}", pads=[1, 1, 1, 1]),
                  node("BatchNormalization", bn, [f"n{i}", f"m{i}.new", f"v{i}.new"] if training else f"n{i}", f"bn{i}",
                       **({"training_mode": 1} if training else {})),
                  node("Relu", [f"n{i}"], f"r{i}")]
        last = f"r{i}"
    nodes += [node("GlobalAveragePool", [last], "p"), node("Flatten", ["p"], "f"),
              node("Gemm", ["f", "wh", "bh"], "y", transB=1)]
    return save(path, nodes, init, ["N", 3, 6, 6], "y", ["N", 5])


def tensors(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def nodes_of(path):
    return [n.SerializeToString() for n in onnx.load(path).graph.node]


# --- calls ---

def refused(*args, words=()):
    status, _, err = common.call(*args)
    assert status == 1, f"exit {status}: {args}\n{err}"
    for word in words:
        assert word in err, f"{word!r} is not in: {err}"


def train(model, out, x, t, *options, steps=3, loss=LOSS):
    status, _, err = common.call("train", model, "--data", x, "--target", t, *loss, "--steps", steps, "--lr", 0.1,
                                 "--optimizer", "momentum", "--no-shuffle", "-o", out, *options)
    assert status == 0, f"exit {status}: {err}"
    return tensors(out)


def traps(model):
    said = common.report("inspect", model)
    found = {}
    for trap in said["traps"]:
        found.setdefault(trap["kind"], []).append(trap)
    return found, {i["name"]: i for i in said["initializers"]}


def equal(a, b, what):
    assert a.dtype == b.dtype and np.array_equal(a, b), f"{what} differs: {a.ravel()[:4]} {b.ravel()[:4]}"


# --- checks; each gets a folder and the data ---

def check_train_bn(at, x, t):
    told, plain = two_blocks(at("told.onnx"), False, training=True), two_blocks(at("plain.onnx"), False)
    found, _ = traps(plain)
    assert "--train-bn" in found["batch_norm_eval"][0]["text"]
    assert found["batch_norm_eval"][0]["nodes"] == ["bn1", "bn2"]
    assert "batch_norm_eval" not in traps(told)[0]
    want = train(told, at("told.out.onnx"), x, t)
    got = train(plain, at("plain.out.onnx"), x, t, "--train-bn")
    for name in want:
        equal(got[name], want[name], name)
    assert not np.array_equal(got["m1"], np.zeros(4)) and not np.array_equal(got["v2"], np.ones(4))
    assert nodes_of(at("plain.out.onnx")) == nodes_of(plain)
    left = train(plain, at("left.out.onnx"), x, t)
    equal(left["v1"], tensors(plain)["v1"], "a statistic that nobody trains")
    # older operator sets tell training by the number of outputs
    nodes = [node("BatchNormalization", ["x", "s", "b", "m", "v"], "n"), node("Flatten", ["n"], "f"),
             node("MatMul", ["f", "w"], "y")]
    init = {"s": np.ones(3, np.float32), "b": f32(3), "m": f32(3), "v": np.full(3, 2, np.float32), "w": f32(108, 5)}
    old = save(at("old.onnx"), nodes, init, ["N", 3, 6, 6], "y", ["N", 5], opset=13)
    assert "batch_norm_eval" in traps(old)[0]
    assert not np.array_equal(train(old, at("old.out.onnx"), x, t, "--train-bn")["m"], init["m"])
    # those in Constant nodes are written back as well, those that are computed cannot be
    fixed = onnx.load(old)
    mean = next(i for i in fixed.graph.initializer if i.name == "m")
    fixed.graph.initializer.remove(mean)
    fixed.graph.node.insert(0, helper.make_node("Constant", [], ["m"], value=mean))
    onnx.save(fixed, at("constant.onnx"))
    train(at("constant.onnx"), at("constant.out.onnx"), x, t, "--train-bn")
    assert onnx.load(at("constant.out.onnx")).graph.node[0] != fixed.graph.node[0]
    fixed.graph.node[0].output[0] = "m0"
    fixed.graph.node.insert(1, helper.make_node("Abs", ["m0"], ["m"]))
    onnx.save(fixed, at("fixed.onnx"))
    refused("train", at("fixed.onnx"), "--data", x, "--target", t, *LOSS, "-o", at("no.onnx"), "--train-bn",
            words=("mean and variance", "initializer"))


def check_untie(at, x, t):
    apart = two_blocks(at("apart.onnx"), False)
    assert "merged_initializer" not in traps(apart)[0]
    want = train(apart, at("apart.out.onnx"), x, t, "--train-bn")
    base = ("--data", x, "--target", t, *LOSS)
    for identities in (False, True):
        merged = two_blocks(at("merged.onnx"), True, identities=identities)
        found, initializers = traps(merged)
        assert {m["initializer"] for m in found["merged_initializer"]} == {"zeros", "ones"}
        assert "--untie" in found["merged_initializer"][0]["text"]
        assert not initializers["ones"]["trainable"]  # a statistic among other things
        words = ("'zeros'", "bias of 'conv1' (Conv)", "'ones'", "scale of 'bn1'", "--untie")
        refused("train", merged, *base, "-o", at("no.onnx"), words=words)
        refused("grad", merged, "--feed", x, "--target", t, *LOSS, words=words)
        common.report("run", merged, "--feed", x)
        common.report("eval", merged, *base)
        out = at("merged.out.onnx")
        got = train(merged, out, x, t, "--train-bn", "--untie")
        # in execution order: zeros are b1 t1 m1 b2 t2 m2, ones s1 v1 s2 v2
        for shared, names in (("zeros", "b1 t1 m1 b2 t2 m2".split()), ("ones", "s1 v1 s2 v2".split())):
            for k, name in enumerate(names):
                equal(got[f"{shared}_untied_{k}" if k else shared], want[name], f"{shared} {k}")
        for name in ("w1", "w2", "wh", "bh"):
            equal(got[name], want[name], name)
        model = onnx.load(out)
        onnx.checker.check_model(model, full_check=True)
        feed = {"x": np.load(x)}
        values = [onnxruntime.InferenceSession(p).run(None, feed)[0] for p in (out, at("apart.out.onnx"))]
        equal(values[0], values[1], "what onnxruntime gives")
        assert "merged_initializer" not in traps(out)[0]
        train(out, at("again.onnx"), x, t, "--train-bn")
    # frozen, nothing can be tied
    train(merged, at("frozen.onnx"), x, t, "--freeze", "zeros", "--freeze", "ones")


def check_statistics_only(at, x, t):
    """Statistics that are shared are harmless until they are updated."""
    nodes = [node("BatchNormalization", ["x", "s1", "t1", "m", "v"], "a"),
             node("BatchNormalization", ["a", "s2", "t2", "m", "v"], "b"), node("Flatten", ["b"], "f"),
             node("MatMul", ["f", "w"], "y")]
    init = {k: f32(3) for k in ("s1", "t1", "s2", "t2")}
    init |= {"m": np.zeros(3, np.float32), "v": np.ones(3, np.float32), "w": f32(108, 5)}
    model = save(at("statistics.onnx"), nodes, init, ["N", 3, 6, 6], "y", ["N", 5])
    train(model, at("s1.onnx"), x, t)
    refused("train", model, "--data", x, "--target", t, *LOSS, "-o", at("no.onnx"), "--train-bn",
            words=("running mean of 'a'", "running variance of 'b'", "--tied does not help where one use is a running"))
    got = train(model, at("s2.onnx"), x, t, "--train-bn", "--untie")
    assert not np.array_equal(got["m"], got["m_untied_1"])


def check_shared_on_purpose(at, x, t):
    zeros = np.zeros(6, np.float32)
    table = f32(11, 6)
    ids = at("ids.npy")
    np.save(ids, RNG.integers(0, 11, (ROWS, 4)))
    tied = save(at("tied.onnx"), [node("Gather", ["e", "x"], "g"), node("Transpose", ["e"], "et", perm=[1, 0]),
                                  node("MatMul", ["g", "et"], "h"), node("ReduceMean", ["h"], "y", axes=[1],
                                                                         keepdims=0)],
                {"e": table}, ["N", 4], "y", ["N", 11], x_type=TensorProto.INT64)
    assert "merged_initializer" not in traps(tied)[0]
    assert not np.array_equal(train(tied, at("tied.out.onnx"), ids, t)["e"], table)
    # one layer three times: weight and bias together
    steps = [node("Gemm", [a, "w", "b"], b) for a, b in (("f", "h1"), ("h1", "h2"), ("h2", "h3"))]
    again = save(at("again.onnx"), [node("Flatten", ["x"], "f0"), node("MatMul", ["f0", "win"], "f"), *steps,
                                    node("MatMul", ["h3", "wout"], "y")],
                 {"win": f32(108, 6), "w": f32(6, 6), "b": zeros, "wout": f32(6, 5)}, ["N", 3, 6, 6], "y", ["N", 5])
    assert "merged_initializer" not in traps(again)[0]
    assert set(train(again, at("again.out.onnx"), x, t, "--untie")) == {"win", "w", "b", "wout"}
    # two layers, and one bias: merged, unless somebody says otherwise
    steps = [node("MatMul", ["f", "wa"], "h1"), node("Add", ["h1", "b"], "h2"), node("Relu", ["h2"], "h3"),
             node("MatMul", ["h3", "wb"], "h4"), node("Add", ["b", "h4"], "h5")]
    both = save(at("both.onnx"), [node("Flatten", ["x"], "f0"), node("MatMul", ["f0", "win"], "f"), *steps,
                                  node("MatMul", ["h5", "wout"], "y")],
                {"win": f32(108, 6), "wa": f32(6, 6), "wb": f32(6, 6), "b": zeros, "wout": f32(6, 5)},
                ["N", 3, 6, 6], "y", ["N", 5])
    refused("train", both, "--data", x, "--target", t, *LOSS, "-o", at("no.onnx"), words=("'b'", "'h2' (Add)", "--tied"))
    assert set(train(both, at("b1.onnx"), x, t, "--untie")) == {"win", "wa", "wb", "b", "b_untied_1", "wout"}
    assert set(train(both, at("b2.onnx"), x, t, "--tied", "b")) == {"win", "wa", "wb", "b", "wout"}


def check_views(at, x, t):
    """A merged bias that reaches its nodes by other nodes: these are copied too."""
    def build(name, merged):
        a, b = ("b", "b") if merged else ("b", "c")
        nodes = [node("Flatten", ["x"], "f"), node("MatMul", ["f", "w1"], "h1"), node("Exp", [a], "e1"),
                 node("Mul", ["h1", "e1"], "h2"), node("MatMul", ["h2", "w2"], "h3")]
        if not merged:
            nodes.append(node("Exp", [b], "e2"))
        nodes += [node("Mul", ["h3", "e1" if merged else "e2"], "h4"), node("MatMul", ["h4", "w3"], "y")]
        init = {"w1": W1.reshape(108, 1)[:, [0] * 6] + ARANGE[:108], "w2": ARANGE[:6], "w3": ARANGE[:6, :5],
                "b": np.zeros(6, np.float32)}
        if not merged:
            init["c"] = np.zeros(6, np.float32)
        return save(at(name), nodes, init, ["N", 3, 6, 6], "y", ["N", 5])
    merged, apart = build("views.onnx", True), build("views.apart.onnx", False)
    got = train(merged, at("v1.onnx"), x, t, "--untie")
    want = train(apart, at("v2.onnx"), x, t)
    equal(got["b"], want["b"], "b")
    equal(got["b_untied_1"], want["c"], "c")
    onnx.checker.check_model(onnx.load(at("v1.onnx")), full_check=True)
    values = [onnxruntime.InferenceSession(at(p)).run(None, {"x": np.load(x)})[0] for p in ("v1.onnx", "v2.onnx")]
    equal(values[0], values[1], "what onnxruntime gives")


def with_functions(path, *functions):
    model = onnx.load(path)
    model.functions.extend(functions)
    model.opset_import.append(helper.make_opsetid("my", 1))
    onnx.save(model, path)
    return path


def check_functions(at, x, t):
    """Roles are told inside of functions, call by call. What calls are given can be told apart; names inside cannot."""
    plain = onnx.load(two_blocks(at("inner.onnx"), True))
    body = [n for n in plain.graph.node if n.op_type in ("Conv", "BatchNormalization", "Relu")]
    inputs = ["x", "w1", "w2", "zeros", "ones"]
    function = helper.make_function("my", "Blocks", inputs, ["r2"], body, [helper.make_opsetid("", 17)])
    rest = [n for n in plain.graph.node if n not in body]
    del plain.graph.node[:]
    plain.graph.node.extend([helper.make_node("Blocks", inputs, ["r2"], "call", domain="my"), *rest])
    onnx.save(plain, at("inner.onnx"))
    with_functions(at("inner.onnx"), function)
    found, initializers = traps(at("inner.onnx"))
    assert {m["initializer"] for m in found["merged_initializer"]} == {"zeros", "ones"}
    assert "bias of 'call/conv1' (Conv)" in found["merged_initializer"][0]["uses"] + found["merged_initializer"][1]["uses"]
    assert not initializers["ones"]["trainable"]
    base = ("train", at("inner.onnx"), "--data", x, "--target", t, *LOSS, "-o", at("no.onnx"))
    refused(*base, words=("'zeros'", "bias of 'call/conv1' (Conv)"))
    refused(*base, "--untie", words=("--untie", "'zeros'", "bias of 'call/conv1'", "inside of functions"))
    # one function, two calls, one merged bias; and a function inside of a function
    linear = helper.make_function("my", "Linear", ["a", "w", "b"], ["r"],
                                  [node("MatMul", ["a", "w"], "m"), node("Add", ["m", "b"], "r")],
                                  [helper.make_opsetid("", 17)])
    outer = helper.make_function("my", "Outer", ["a", "w", "b"], ["r"],
                                 [helper.make_node("Linear", ["a", "w", "b"], ["r"], "inner", domain="my")],
                                 [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)])
    init = {"w0": f32(108, 6), "w1": f32(6, 6), "w2": f32(6, 5), "b": np.zeros(6, np.float32)}

    def calls(name, second, weights):
        nodes = [node("Flatten", ["x"], "f"), helper.make_node("Linear", ["f", "w0", "b"], ["h1"], "one", domain="my"),
                 node("Relu", ["h1"], "r1"),
                 helper.make_node("Outer", ["r1", "w1", second], ["h2"], "two", domain="my"),
                 node("MatMul", ["h2", "w2"], "y")]
        return with_functions(save(at(name), nodes, weights, ["N", 3, 6, 6], "y", ["N", 5]), linear, outer)

    merged = calls("calls.onnx", "b", init)
    apart = calls("calls.apart.onnx", "c", {**init, "c": np.zeros(6, np.float32)})
    assert "merged_initializer" not in traps(apart)[0]
    uses = traps(merged)[0]["merged_initializer"][0]["uses"]
    assert uses == ["operand of 'one/r' (Add)", "operand of 'two/inner/r' (Add)"], uses
    base = ("train", merged, "--data", x, "--target", t, *LOSS, "-o", at("no.onnx"))
    refused(*base, words=("'b'", "'two/inner/r' (Add)"))
    got, want = train(merged, at("c1.onnx"), x, t, "--untie"), train(apart, at("c2.onnx"), x, t)
    for a, c in (("b", "b"), ("b_untied_1", "c"), ("w0", "w0"), ("w1", "w1"), ("w2", "w2")):
        equal(got[a], want[c], a)
    written = onnx.load(at("c1.onnx"))
    onnx.checker.check_model(written, full_check=True)
    assert [f.SerializeToString() for f in written.functions] == [f.SerializeToString() for f in onnx.load(merged).functions]
    values = [onnxruntime.InferenceSession(at(p)).run(None, {"x": np.load(x)})[0] for p in ("c1.onnx", "c2.onnx")]
    equal(values[0], values[1], "what onnxruntime gives")
    # one layer called twice is one layer
    again = calls("calls.again.onnx", "b", {**init, "w0": f32(108, 108), "b": np.zeros(108, np.float32)})
    model = onnx.load(again)
    model.graph.node[3].input[1] = "w0"
    del model.graph.initializer[1]
    model.graph.initializer[1].CopyFrom(numpy_helper.from_array(f32(108, 5), "w2"))
    onnx.save(model, again)
    assert "merged_initializer" not in traps(again)[0]


def check_bodies(at, x, t):
    """The same inside of control flow: bodies keep the name that they read, the others change theirs."""
    def branch(name, *nodes):
        return helper.make_graph(list(nodes), name, [], [helper.make_tensor_value_info(nodes[-1].output[0],
                                                                                      TensorProto.FLOAT, None)])

    def build(name, outside):
        nodes = [node("Flatten", ["x"], "f"), node("MatMul", ["f", "w1"], "m"), node("Add", ["m", outside], "h"),
                 helper.make_node("If", ["yes"], ["k"], "if", then_branch=branch("then", node("Add", ["h", "b"], "h2")),
                                  else_branch=branch("else", node("Identity", ["h"], "h3"))),
                 node("MatMul", ["k", "w2"], "y")]
        init = {"w1": W, "w2": ARANGE[:6, :5], "b": np.zeros(6, np.float32), "yes": np.array(True)}
        return save(at(name), nodes, init | ({"c": np.zeros(6, np.float32)} if outside == "c" else {}),
                    ["N", 3, 6, 6], "y", ["N", 5])

    W = f32(108, 6)
    merged, apart = build("inside.onnx", "b"), build("inside.apart.onnx", "c")
    uses = traps(merged)[0]["merged_initializer"][0]["uses"]
    assert uses == ["operand of 'h' (Add)", "operand of 'if/h2' (Add)"], uses
    base = ("train", merged, "--data", x, "--target", t, *LOSS, "-o", at("no.onnx"))
    refused(*base, words=("'b'", "'if/h2' (Add)"))
    got, want = train(merged, at("i1.onnx"), x, t, "--untie"), train(apart, at("i2.onnx"), x, t)
    for a, c in (("b", "b"), ("b_untied_1", "c"), ("w1", "w1"), ("w2", "w2")):
        equal(got[a], want[c], a)
    onnx.checker.check_model(onnx.load(at("i1.onnx")), full_check=True)
    train(merged, at("i3.onnx"), x, t, "--tied", "b")
    # two roles inside of one body
    nodes = [node("Flatten", ["x"], "f"), node("MatMul", ["f", "w1"], "m"),
             helper.make_node("If", ["yes"], ["k"], "if",
                              then_branch=branch("then", node("Add", ["m", "b"], "h1"), node("MatMul", ["h1", "w"], "h2"),
                                                 node("Add", ["h2", "b"], "h3")),
                              else_branch=branch("else", node("Identity", ["m"], "h4"))),
             node("MatMul", ["k", "w2"], "y")]
    both = save(at("both_inside.onnx"), nodes, {"w1": W, "w": f32(6, 6), "w2": f32(6, 5), "b": np.zeros(6, np.float32),
                                                "yes": np.array(True)}, ["N", 3, 6, 6], "y", ["N", 5])
    uses = traps(both)[0]["merged_initializer"][0]["uses"]
    assert uses == ["operand of 'if/h1' (Add)", "operand of 'if/h3' (Add)"], uses
    base = ("train", both, "--data", x, "--target", t, *LOSS, "-o", at("no.onnx"))
    refused(*base, words=("'b'", "'if/h1' (Add)", "'if/h3' (Add)"))
    refused(*base, "--untie", words=("--untie", "'if/h1' (Add)", "'if/h3' (Add)", "--tied"))


def check_signs(at, x, t):
    """Marks that exporters leave."""
    plain = two_blocks(at("marked.onnx"), False)
    model = onnx.load(plain)
    entry = model.graph.node[0].metadata_props.add()
    entry.key, entry.value = "pkg.onnxscript.rewriter.rule_name", "A, FuseBatchNormIntoConv"
    entry = model.graph.metadata_props.add()
    entry.key = "pkg.torch.export.ExportedProgram.graph_signature"
    entry.value = "\n# inputs\np_w1: PARAMETER target='w1'\np_g: PARAMETER target='bn.weight'\nx: USER_INPUT\n"
    onnx.save(model, at("marked.onnx"))
    found, _ = traps(at("marked.onnx"))
    assert found["batch_norm_folded"][0]["nodes"] == [model.graph.node[0].name]
    assert found["parameters_changed"][0]["parameters"] == ["bn.weight"] and found["parameters_changed"][0]["of"] == 2
    assert "optimize=False" in found["parameters_changed"][0]["text"]
    del model.graph.node[0].metadata_props[:] # nothing shows that the optimizer ran
    onnx.save(model, at("marked.onnx"))
    assert "tied" in traps(at("marked.onnx"))[0]["parameters_changed"][0]["text"]
    assert "optimize=False" not in traps(at("marked.onnx"))[0]["parameters_changed"][0]["text"]
    old = save(at("older.onnx"), [node("Conv", ["x", "onnx::Conv_17", "onnx::Conv_18"], "c"),
                                  node("Dropout", ["c"], "d"), node("Flatten", ["d"], "y")],
               {"onnx::Conv_17": f32(4, 3, 3, 3), "onnx::Conv_18": f32(4)}, ["N", 3, 6, 6], "y", ["N", 64])
    found, _ = traps(old)
    assert found["batch_norm_folded"][0]["nodes"] == ["c"] and found["dropout_off"][0]["nodes"] == ["d"]
    # integer weights are constants, and their scale is no weight: nothing is left to train, unless somebody names it
    nodes = [node("Flatten", ["x"], "f"), node("DequantizeLinear", ["q", "s", "z"], "w", axis=1),
             node("MatMul", ["f", "w"], "y")]
    init = {"q": RNG.integers(-9, 9, (108, 5)).astype(np.int8), "s": np.full(5, 0.02, np.float32),
            "z": np.array([1, 0, -2, 0, 3], np.int8)}
    quantized = save(at("quantized.onnx"), nodes, init, ["N", 3, 6, 6], "y", ["N", 5])
    found, initializers = traps(quantized)
    assert found["quantized_weight"][0]["nodes"] == ["w"] and initializers["s"]["reason"] == "quantization"
    for options in ((), ("--train-only", "*")):
        refused("train", quantized, "--data", x, "--target", t, *LOSS, "-o", at("no.onnx"), *options,
                words=("nothing to train", "1 scale of quantization ('s')", "before quantization"))
    got = train(quantized, at("quantized.out.onnx"), x, t, "--train-only", "s")
    equal(got["q"], init["q"], "q")
    assert not np.array_equal(got["s"], init["s"])
    want = np.load(x).reshape(ROWS, -1) @ ((init["q"].astype(np.float32) - init["z"]) * init["s"])
    out = at("quantized.run")
    common.report("run", quantized, "--feed", x, "--dump", out)
    np.testing.assert_allclose(np.load(os.path.join(out, "out_y.npy")), want, rtol=1e-5, atol=1e-5)
    # one number in several formulas is no parameter, unless somebody names it
    nodes = [node("Flatten", ["x"], "f"), node("Mul", ["f", "k"], "a"), node("MatMul", ["a", "w"], "h"),
             node("Mul", ["h", "k"], "y")]
    number = save(at("number.onnx"), nodes, {"k": np.full(1, 0.5, np.float32), "w": f32(108, 5)}, ["N", 3, 6, 6], "y",
                  ["N", 5])
    found, initializers = traps(number)
    assert not found and not initializers["k"]["trainable"] and "formula" in initializers["k"]["why"]
    got = train(number, at("number.out.onnx"), x, t)
    assert got["k"][0] == 0.5 and not np.array_equal(got["w"], tensors(number)["w"])
    assert train(number, at("number.out.onnx"), x, t, "--train-only", "k")["k"][0] != 0.5


def check_detached(at, x, t):
    """A straight-through estimator without its detach, in either order and behind an Identity; a step from one value to another
    is none."""
    first = [node("Flatten", ["x"], "f"), node("MatMul", ["f", "w"], "h"), node("Round", ["h"], "q"), node("Sub", ["q", "h"], "d")]
    init = {"w": f32(108, 5), "k": np.full(1, 0.5, np.float32), "m": np.full(1, 0.9, np.float32)}
    for last, lost in (([node("Add", ["h", "d"], "y")], True), ([node("Add", ["d", "h"], "y")], True),
                       ([node("Identity", ["d"], "i"), node("Add", ["h", "i"], "y")], True), ([node("Add", ["q", "d"], "y")], False),
                       ([node("Mul", ["d", "k"], "e"), node("Add", ["h", "e"], "y")], False)):
        model = save(at("detached.onnx"), first + last, init, ["N", 3, 6, 6], "y", ["N", 5])
        assert [trap["nodes"] for trap in traps(model)[0].get("lost_detach", [])] == [["y"]] * lost, last
        said = common.call("train", model, "--data", x, "--target", t, *LOSS, "--steps", 1, "-o", at("out.onnx"))[2]
        assert ("'y': x + (q - x), where the exporter lost" in said) == lost, said
    # of places in a tensor, whose type the file does not tell
    places = [node("Shape", ["x"], "s"), node("ReduceMax", ["s"], "h", keepdims=0), node("Sub", ["s", "h"], "d"), node("Add", ["h", "d"], "s2"),
              node("Gather", ["s2", "zero"], "n"), node("Concat", ["n", "all"], "to", axis=0), node("Reshape", ["x", "to"], "f"),
              node("MatMul", ["f", "w"], "y")]
    init = {"w": f32(108, 5), "zero": np.array([0]), "all": np.array([-1])}
    assert not traps(save(at("places.onnx"), places, init, ["N", 3, 6, 6], "y", ["N", 5]))[0]


def typed(name, kind, array):
    return helper.make_tensor(name, kind, array.shape, np.asarray(array, np.float32).ravel())


def check_types(at, x, t):
    """Weights w (trained) in every type, beside a bias in float32 and tensors that nobody computes with."""
    w, b = f32(108, 5), f32(5)
    idle = [helper.make_tensor("idle8", TensorProto.FLOAT8E4M3FN, [2], b"\x01\x02", raw=True),
            helper.make_tensor("idle4", TensorProto.INT4, [3], b"\x21\x03", raw=True),
            helper.make_tensor("words", TensorProto.STRING, [2], [b"a", b"b"])]
    for kind in (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE, TensorProto.FLOAT):
        name = TensorProto.DataType.Name(kind).lower()
        nodes = [node("Flatten", ["x"], "f"), node("Cast", ["w"], "wf", to=TensorProto.FLOAT),
                 node("MatMul", ["f", "wf"], "h"), node("Add", ["h", "b"], "y")]
        model = save(at(f"{name}.onnx"), nodes,
                     {"w": typed("w", kind, w), "b": b, **{k.name: k for k in idle}}, ["N", 3, 6, 6], "y", ["N", 5],
                     opset=21)
        before, out = onnx.load(model), at(f"{name}.out.onnx")
        train(model, out, x, t)
        after = onnx.load(out)
        for a, c in zip(before.graph.initializer, after.graph.initializer):
            assert a.data_type == c.data_type and a.name == c.name
            if a.name not in ("w", "b"):
                assert a.SerializeToString() == c.SerializeToString(), a.name
        # the master is float32: the trained weight is that of the same start in float32, rounded once
        start = numpy_helper.to_array(before.graph.initializer[0]).astype(np.float32)
        same = save(at("same.onnx"), nodes[:1] + [node("MatMul", ["f", "w"], "h"), nodes[3]], {"w": start, "b": b},
                    ["N", 3, 6, 6], "y", ["N", 5])
        master = train(same, at("same.out.onnx"), x, t)["w"]
        got = numpy_helper.to_array(after.graph.initializer[0])
        equal(got, master.astype(got.dtype), f"{name} weights")
        assert not np.array_equal(got.astype(np.float32), start)
    # constants where they are on the path, and said to be
    for kind in (TensorProto.FLOAT8E4M3FN, TensorProto.INT4):
        nodes = [node("Flatten", ["x"], "f"), node("Cast", ["w8"], "wf", to=TensorProto.FLOAT),
                 node("MatMul", ["f", "wf"], "y")]
        size = 540 if kind == TensorProto.FLOAT8E4M3FN else 270
        bad = save(at("bad.onnx"), nodes, {"w8": helper.make_tensor("w8", kind, [108, 5], b"\x11" * size, raw=True)},
                   ["N", 3, 6, 6], "y", ["N", 5], opset=21)
        refused("train", bad, "--data", x, "--target", t, *LOSS, "-o", at("no.onnx"), words=("nothing to train",))
        assert not traps(bad)[1]["w8"]["trainable"] and traps(bad)[1]["w8"]["why"]


def check_integers(at, x, t):
    """Integers and booleans of every width that a graph computes with on the way."""
    w = f32(108, 5)
    for kind in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64, np.bool_):
        nodes = [node("Flatten", ["x"], "f"), node("Cast", ["k"], "kf", to=TensorProto.FLOAT),
                 node("Mul", ["w", "kf"], "wk"), node("MatMul", ["f", "wk"], "y")]
        model = save(at("integer.onnx"), nodes, {"w": w, "k": np.array([1, 0, 1, 1, 1], kind)}, ["N", 3, 6, 6], "y",
                     ["N", 5])
        got = train(model, at("integer.out.onnx"), x, t)
        equal(got["k"], np.array([1, 0, 1, 1, 1], kind), str(kind))
        assert np.array_equal(got["w"][:, 1], w[:, 1]) and not np.array_equal(got["w"][:, 0], w[:, 0])


def check_through(at, x, t):
    """The same step, whether a weight is read directly or as its transpose, its copy or what arithmetic makes of it."""
    w = f32(108, 5)
    plain = save(at("direct.onnx"), [node("Flatten", ["x"], "f"), node("MatMul", ["f", "w"], "y")], {"w": w},
                 ["N", 3, 6, 6], "y", ["N", 5])
    want = train(plain, at("direct.out.onnx"), x, t)["w"] - w
    half = np.float32(2)
    ways = {
        "identity": ([node("Identity", ["w"], "v")], {"w": w}, lambda d: d["w"] - w),
        "transpose": ([node("Transpose", ["w"], "v", perm=[1, 0])], {"w": w.T.copy()}, lambda d: d["w"].T - w),
        "cast": ([node("Cast", ["w"], "v", to=TensorProto.FLOAT)], {"w": w.astype(np.float64)},
                 lambda d: d["w"].astype(np.float32) - w),
        "arithmetic": ([node("Mul", ["w", "two"], "v0"), node("Div", ["v0", "two"], "v")], {"w": w, "two": half},
                       lambda d: d["w"] - w),
        "reshape": ([node("Reshape", ["w", "s"], "v")], {"w": w.ravel(), "s": np.array([108, 5])},
                    lambda d: d["w"].reshape(108, 5) - w),
    }
    for name, (nodes, init, moved) in ways.items():
        model = save(at(f"{name}.onnx"), [node("Flatten", ["x"], "f"), *nodes, node("MatMul", ["f", "v"], "y")], init,
                     ["N", 3, 6, 6], "y", ["N", 5])
        assert traps(model)[1]["w"]["trainable"], name
        np.testing.assert_allclose(moved(train(model, at(f"{name}.out.onnx"), x, t)), want, rtol=0, atol=1e-6,
                                   err_msg=name)


W1, W2, WH, BH = f32(4, 3, 3, 3), f32(4, 4, 3, 3), f32(5, 4), f32(5)
ARANGE = np.cos(np.arange(108 * 6, dtype=np.float32)).reshape(108, 6) * 0.3


def main():
    wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        def at(name):
            return os.path.join(folder, name)
        x, t = at("x.npy"), at("t.npy")
        np.save(x, RNG.standard_normal((ROWS, 3, 6, 6)).astype(np.float32))
        np.save(t, RNG.integers(0, 5, ROWS))
        for name, check in list(globals().items()):
            if name.startswith("check_") and (not wanted or name.removeprefix("check_") in wanted):
                check(at, x, t)
                print(name.removeprefix("check_"), "ok", flush=True)


if __name__ == "__main__":
    main()
