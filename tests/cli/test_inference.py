# SPDX-License-Identifier: Apache-2.0
"""The form for inference, in which trained models are written.

everywhere  batch normalization and dropout in training mode, in the main graph, in a function, in a branch: what `train`
            writes differs from the model by the edits that are spelled out here and by its weights, byte for byte; other
            runtimes compute for every batch what evaluation computes here, and each row by itself
kept        --keep-training-mode writes every node as it was
old         the forms of opsets 9 (further outputs) and 6 (is_test)
fed         a Dropout that an input switches stays as it is, and that is said; a model that cannot be compiled is settled,
            too
depth       dropout written out, as PyTorch's exporter does for stochastic depth, lets everything through; what only looks like
            it stays
used        new statistics with which the model itself computes are results, and are written beside that
blocks      functions of a rewriting have inverses that fit the form, whichever comes first, training or rewriting"""
import os
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import common

RNG = np.random.default_rng(3)
C = 4


def f32(*shape):
    return (RNG.standard_normal(shape) * 0.4).astype(np.float32)


def node(op, inputs, outputs, name, **attributes):
    return helper.make_node(op, inputs, outputs, name=name, **attributes)


def value(name, shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def norm(name, x, y, prefix, extra, **attributes):
    return node("BatchNormalization", [x, *(f"{prefix}.{k}" for k in "sbmv")], [y, *extra], name,
                momentum=0.5, epsilon=1e-3, **attributes)


def weights(prefix):
    return {f"{prefix}.s": 1 + f32(C) ** 2, f"{prefix}.b": f32(C), f"{prefix}.m": f32(C), f"{prefix}.v": 1 + f32(C) ** 2}


TRUE = numpy_helper.from_array(np.array(True))
RATIO = np.array(0.3, np.float32)


def everywhere(settled=False):
    """The model, or what is wanted of it."""
    off = {"training_mode": 0} if settled else {"training_mode": 1}

    def extra(*names):
        return [] if settled else list(names)

    def drop(name, x, y, mode):
        return node("Dropout", [x, "ratio"] + ([] if settled else [mode]), [y], name)

    def passed(pair):
        return [helper.make_node("Identity", [pair[0]], [pair[1]])] if settled else []

    inner = norm("bn_inner", "h", "h1", "p3", extra("u3", "w3"), **off)
    then = helper.make_graph([inner, drop("drop_inner", "h1", "h2", "on")], "then", [], [value("h2", None)])
    other = helper.make_graph([node("Identity", ["h"], ["h3"], "same")], "else", [], [value("h3", None)])
    ref = node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"] if settled else ["y", "mean", "var"], "bn_function",
               momentum=0.5, epsilon=1e-3, **({"training_mode": 0} if settled else {}))
    if not settled:
        ref.attribute.append(onnx.AttributeProto(name="training_mode", ref_attr_name="train",
                                                 type=onnx.AttributeProto.INT))
    body = [ref, *passed(("m", "mean")), *passed(("v", "var"))]
    body.append(node("Relu", ["y"], ["z"], "relu_function"))
    function = helper.make_function("its.own", "Norm", ["x", "s", "b", "m", "v"], ["z", "mean", "var"], body,
                                    [helper.make_opsetid("", 17)], attributes=["train"])
    flag = [] if settled else [node("Constant", [], ["on2"], "flag", value=TRUE)]
    nodes = [node("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
             norm("bn1", "c", "n1", "p1", extra("u1", "w1"), **off)]
    if not settled: nodes.append(node("Identity", ["w1"], ["told"], "told"))
    nodes += [drop("drop1", "n1", "d1", "on"),
              node("Norm", ["d1", *(f"p2.{k}" for k in "sbmv")], ["h", "fm", "fv"], "call", domain="its.own", train=1),
              node("If", ["yes"], ["k"], "branch", then_branch=then, else_branch=other),
              norm("bn4", "k", "n4", "p4", extra("u4", "w4"), **off),
              node("GlobalAveragePool", ["n4"], ["p"], "pool"), node("Flatten", ["p"], ["f"], "flat"), *flag,
              drop("drop2", "f", "f2", "on2"), drop("drop3", "f2", "f3", "on2"),
              node("Gemm", ["f3", "wh", "bh"], ["y"], "head", transB=1)]
    init = {"w": f32(C, 3, 3, 3), **weights("p1"), **weights("p2"), **weights("p3"), **weights("p4"), "ratio": RATIO,
            "wh": f32(5, C), "bh": f32(5), "yes": np.array(True)}
    if not settled: init["on"] = np.array(True)
    outputs = [value("y", ["N", 5])] + ([] if settled else [value("u1", [C]), value("told", [C])])
    infos = [value("n1", ["N", C, 6, 6])] + ([] if settled else [value("w1", [C])])
    graph = helper.make_graph(nodes, "g", [value("x", ["N", 3, 6, 6])], outputs,
                              [numpy_helper.from_array(v, k) for k, v in init.items()], value_info=infos)
    return helper.make_model(graph, functions=[function], producer_name="somebody", ir_version=8, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("its.own", 1)])


def tensors(model):
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def give(model, values):
    for t in model.graph.initializer:
        t.CopyFrom(numpy_helper.from_array(values[t.name], t.name))
    return model


def session(path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def elsewhere(path, x):
    return session(path).run(["y"], {"x": x})[0]


def here(path, x, folder):
    feed, dump = os.path.join(folder, "feed.npy"), os.path.join(folder, "dump")
    np.save(feed, x)
    common.report("run", path, "--feed", feed, "--dump", dump)
    return np.load(os.path.join(dump, "out_y.npy"))


def near(a, b, what):
    assert a.shape == b.shape and np.abs(a - b).max() <= 2e-5 * (1 + np.abs(b).max()), (what, np.abs(a - b).max())


def check_batches(path, x, folder):
    """Row by row the same, here and elsewhere, whatever stands beside it."""
    wanted = here(path, x, folder)
    for n in (1, 4, 50):
        near(elsewhere(path, x[:n]), wanted[:n], (path, n))


def train(model, out, folder, *options):
    status, _, err = common.call("train", model, "--data", os.path.join(folder, "x.npy"), "--target",
                                 os.path.join(folder, "t.npy"), "--loss", "cross_entropy", "--loss-output", "y", "--steps",
                                 6, "--batch", 10, "--lr", 0.1, "-o", out, *options)
    assert status == 0, err
    return err


def score(model, folder):
    return common.report("eval", model, "--data", os.path.join(folder, "x.npy"), "--target", os.path.join(folder, "t.npy"),
                         "--loss", "cross_entropy", "--loss-output", "y")["loss"]


def check_everywhere(folder, x):
    path, out, kept = (os.path.join(folder, f"{k}.onnx") for k in ("modes", "out", "kept"))
    wanted = everywhere(settled=True)
    given = everywhere()
    for k, v in tensors(given).items():
        if k in tensors(wanted): give(wanted, {**tensors(wanted), k: v})
    onnx.save(given, path)
    onnx.checker.check_model(path)
    said = train(path, out, folder)
    assert "4 batch normalizations and 4 dropouts in evaluation mode" in said, said
    onnx.checker.check_model(out, full_check=True)
    written = onnx.load(out)
    assert written.SerializeToString() == give(wanted, tensors(written)).SerializeToString(), written
    moved = [k for k, v in tensors(written).items() if not np.array_equal(v, tensors(given)[k])]
    assert {"w", "p1.m", "p2.v", "p3.m", "p4.v", "wh"} <= set(moved), moved
    check_batches(out, x, folder)
    train(path, kept, folder, "--keep-training-mode")
    assert give(onnx.load(kept), tensors(given)).SerializeToString() == given.SerializeToString()
    for k, v in tensors(written).items(): assert np.array_equal(v, tensors(onnx.load(kept))[k]), k
    assert score(kept, folder) == score(out, folder)
    assert np.abs(elsewhere(kept, x[:4]) - elsewhere(kept, x)[:4]).max() > 1e-3  # there the batch matters
    settled = os.path.join(folder, "settled.onnx")
    common.report("rewrite", kept, "-o", settled, "--for-inference")
    check_batches(settled, x, folder)
    near(elsewhere(settled, x), elsewhere(out, x), "rewrite")


def check_old(folder, x):
    path, out = os.path.join(folder, "old.onnx"), os.path.join(folder, "old_out.onnx")
    nodes = [node("Conv", ["x", "w"], ["c"], "conv"), norm("bn", "c", "n", "p", ["u", "v", "su", "sv"]),
             node("Dropout", ["n"], ["d"], "drop", ratio=0.4), node("GlobalAveragePool", ["d"], ["g"], "pool"),
             node("Flatten", ["g"], ["f"], "flat"), node("Gemm", ["f", "wh", "bh"], ["y"], "head", transB=1)]
    init = {"w": f32(C, 3, 3, 3), **weights("p"), "wh": f32(5, C), "bh": f32(5)}
    graph = helper.make_graph(nodes, "g", [value("x", ["N", 3, 6, 6])], [value("y", ["N", 5])],
                              [numpy_helper.from_array(v, k) for k, v in init.items()])
    model = helper.make_model(graph, ir_version=4, opset_imports=[helper.make_opsetid("", 9)])
    onnx.save(model, path)
    train(path, out, folder)
    del model.graph.node[1].output[1:]
    written = onnx.load(out)
    assert written.SerializeToString() == give(model, tensors(written)).SerializeToString()
    check_batches(out, x, folder)

    # Opset 6: nothing here computes with these forms; they are settled all the same.
    model.opset_import[0].version = 6
    model.graph.node[1].output.extend(["u", "v", "su", "sv"])
    onnx.save(model, path)
    said = common.report("rewrite", path, "-o", out, "--for-inference")
    assert said["functions"] == 0 and "BatchNormalization" in said["reason"], said
    del model.graph.node[1].output[1:]
    for n in model.graph.node[1:3]: n.attribute.append(helper.make_attribute("is_test", 1))
    assert onnx.load(out).SerializeToString() == model.SerializeToString()


def check_fed(folder):
    path, out = os.path.join(folder, "fed.onnx"), os.path.join(folder, "fed_out.onnx")
    bn = norm("bn", "x", "n", "p", ["u", "v"], training_mode=1)
    nodes = [bn, node("Mul", ["u", "ratio"], ["scaled"], "reads"), node("Not", ["flag"], ["mode"], "not"), node("Dropout", ["n", "ratio", "mode"], ["a"], "fed"),
             node("Dropout", ["a", "ratio", "off"], ["b"], "off"), node("Dropout", ["b", "", "on"], ["y"], "on")]
    init = {**weights("p"), "ratio": RATIO, "off": np.array(False), "on": np.array(True)}
    graph = helper.make_graph(nodes, "g", [value("x", ["N", C]), value("flag", [], TensorProto.BOOL)],
                              [value("y", ["N", C]), value("scaled", [C]), value("u", [C])], [numpy_helper.from_array(v, k) for k, v in init.items()])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, path)
    status, _, err = common.call("rewrite", path, "-o", out, "--for-inference")
    assert status == 0 and "'fed' (Dropout) is written as it was: input 'flag' decides" in err, err
    del model.graph.node[5].input[1:]
    del model.graph.initializer[6]
    del bn.output[1:]
    bn.attribute[2].i = 0
    model.graph.node[0].CopyFrom(bn)
    model.graph.node.insert(1, helper.make_node("Identity", ["p.m"], ["u"]))
    assert onnx.load(out).SerializeToString() == model.SerializeToString()


def check_depth(folder):
    """x + mask h(x): the mask is float(u < c) / c of each row; or floor(u + c), and h(x) is divided by c, as transformers and
    earlier timm have it. At a second place the divisor is another number."""
    def drop(low, divisor):
        return mask("m", low, divisor) + [node("Mul", ["h", "m.d"], ["d"], "drop")]

    def floored(low, divisor, order=slice(None)):
        return [node("RandomUniformLike", ["rows"], ["u"], "u", dtype=1), node("Add", ["u", low][order], ["a"], "a"), node("Floor", ["a"], ["f"], "f"),
                node("Div", ["h", divisor], ["hc"], "hc"), node("Mul", ["hc", "f"], ["d"], "drop")]

    def mask(name, low, divisor):
        return [node("RandomUniformLike", ["rows"], [f"{name}.u"], f"{name}.u", dtype=1), node("Less", [f"{name}.u", low], [f"{name}.l"], f"{name}.l"),
                node("Cast", [f"{name}.l"], [f"{name}.c"], f"{name}.c", to=1), node("Div", [f"{name}.c", divisor], [f"{name}.d"], f"{name}.d")]
    first = [node("MatMul", ["x", "w"], ["h"], "product"), node("Shape", ["x"], ["shape"], "shape", end=1), node("Concat", ["shape", "one"], ["s"], "s", axis=0),
             node("ConstantOfShape", ["s"], ["rows"], "rows", value=numpy_helper.from_array(np.zeros(1, np.float32)))]
    init = {"w": f32(C, C), "one": np.array([1], np.int64), "keep": np.array(0.5, np.float32), "other": np.array(0.25, np.float32),
            "two": np.array(2, np.float32), "less": np.array(-1, np.float32), "more": np.array(1.5, np.float32)}
    path, out = os.path.join(folder, "depth.onnx"), os.path.join(folder, "depth_out.onnx")

    def write(nodes):
        graph = helper.make_graph(nodes, "g", [value("x", ["N", C])], [value("y", ["N", C])], [numpy_helper.from_array(v, k) for k, v in init.items()])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)

    x, t = f32(24, C), f32(24, C)
    np.save(os.path.join(folder, "dx.npy"), x)
    np.save(os.path.join(folder, "dt.npy"), t)
    data = ("--data", os.path.join(folder, "dx.npy"), "--target", os.path.join(folder, "dt.npy"), "--loss", "mse", "--batch", 24)
    end = [node("Add", ["x", "d"], ["y"], "sum")]
    for nodes, identities in ((drop("keep", "keep"), 1), (floored("keep", "keep"), 2), (floored("keep", "keep", slice(None, None, -1)), 2)):
        write(first + nodes + end)
        near(np.float64(common.report("eval", path, *data)["loss"]), np.mean((x + x @ init["w"] - t) ** 2), "evaluation drops nothing")
        losses = {common.report("train", path, *data, "--steps", 1, "--lr", 0, "--seed", k, "-o", out)["loss"] for k in range(3)}
        assert len(losses) == 3, losses
        near(np.float64(common.report("train", path, *data, "--steps", 1, "--no-dropout", "-o", out)["loss"]), np.mean((x + x @ init["w"] - t) ** 2),
             "--no-dropout")
        written = onnx.load(out)
        assert [n.op_type for n in written.graph.node] == ["MatMul", *["Identity"] * identities, "Add"], written.graph.node
        near(elsewhere(out, x), x + x @ tensors(written)["w"], "written")
    # another divisor; h(x) / c is wanted elsewhere, too; no probability: u < 2 is always true, floor(u + 1.5) 1 or 2
    for nodes, last in ((drop("keep", "other"), "x"), (floored("keep", "other"), "x"), (floored("keep", "keep"), "hc"), (drop("two", "two"), "x"),
                        (drop("less", "less"), "x"), (floored("more", "more"), "x")):
        write(first + nodes + [node("Add", [last, "d"], ["y"], "sum")])
        common.report("train", path, *data, "--steps", 1, "-o", out)
        assert [n.op_type for n in onnx.load(out).graph.node][-2:] == ["Mul", "Add"]


def check_used(folder):
    """Another normalization may start from them, and what is not normalized may be put off by them."""
    init = {"w": f32(C, C)} | weights("p1") | weights("p2")
    nodes = [node("MatMul", ["x", "w"], ["h"], "product"), norm("bn1", "h", "h1", "p1", ["m1", "v1"], training_mode=1),
             node("Sub", ["h1", "m1"], ["h2"], "off"), node("BatchNormalization", ["h2", "p2.s", "p2.b", "m1", "p2.v"],
                                                            ["y", "m2", "v2"], "bn2", training_mode=1)]
    graph = helper.make_graph(nodes, "g", [value("x", ["N", C])], [value("y", ["N", C])],
                              [numpy_helper.from_array(v, k) for k, v in init.items() if k != "p2.m"])
    path, out = os.path.join(folder, "used.onnx"), os.path.join(folder, "used_out.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    x = f32(8, C)
    np.save(os.path.join(folder, "ux.npy"), x)
    np.save(os.path.join(folder, "ut.npy"), f32(8, C))
    report = common.report("train", path, "--data", os.path.join(folder, "ux.npy"), "--target",
                           os.path.join(folder, "ut.npy"), "--loss", "mse", "--steps", 1, "-o", out)
    assert report["steps_done"] == 1
    after, h = tensors(onnx.load(out)), x @ init["w"]
    near(after["p1.m"], 0.5 * init["p1.m"] + 0.5 * h.mean(0), "mean")
    near(after["p1.v"], 0.5 * init["p1.v"] + 0.5 * h.var(0), "variance")
    check_batches(out, x, folder)


def check_blocks(folder):
    """Residual blocks with batch normalization inside, and one that is a block by itself."""
    def path(name): return os.path.join(folder, f"{name}.onnx")
    nodes, init, last = [], {}, "x"
    for i in (1, 2):
        init.update(weights(f"p{i}"))
        init[f"w{i}"] = f32(C, C, 3, 3)
        nodes += [norm(f"bn{i}", last, f"n{i}", f"p{i}", [f"u{i}", f"v{i}"], training_mode=1),
                  node("LeakyRelu", [f"n{i}"], [f"r{i}"], f"relu{i}")]
        last = f"r{i}"
    nodes += [node("GlobalAveragePool", [last], ["g"], "pool"), node("Flatten", ["g"], ["f"], "flat"),
              node("Gemm", ["f", "wh", "bh"], ["y"], "head", transB=1)]
    init.update({"wh": f32(5, C), "bh": f32(5)})
    del init["w1"], init["w2"]
    graph = helper.make_graph(nodes, "g", [value("x", ["N", C, 6, 6])], [value("y", ["N", 5])],
                              [numpy_helper.from_array(v, k) for k, v in init.items()])
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path("b"))
    x = f32(50, C, 6, 6)
    np.save(os.path.join(folder, "x.npy"), x)
    inverses = common.report("rewrite", path("b"), "-o", path("b_rewritten"))["inverses"]
    train(path("b_rewritten"), path("b_then"), folder)
    train(path("b"), path("b_first"), folder)
    assert common.report("rewrite", path("b_first"), "-o", path("b_first_rewritten"))["inverses"] == inverses > 0
    train(path("b"), path("b_kept"), folder, "--keep-training-mode")
    common.report("rewrite", path("b_kept"), "-o", path("b_kept_rewritten"), "--for-inference")
    for name in ("b_then", "b_kept_rewritten"):
        a, b = onnx.load(path(name)), onnx.load(path("b_first_rewritten"))
        assert [f.SerializeToString() for f in a.functions] == [f.SerializeToString() for f in b.functions], name
        assert sorted(map(str, a.graph.node)) == sorted(map(str, b.graph.node)), name
        onnx.checker.check_model(path(name), full_check=True)
        check_batches(path(name), x, folder)
        near(elsewhere(path(name), x), elsewhere(path("b_first"), x), name)


def main():
    with tempfile.TemporaryDirectory() as folder:
        x = f32(50, 3, 6, 6)
        np.save(os.path.join(folder, "x.npy"), x)
        np.save(os.path.join(folder, "t.npy"), RNG.integers(0, 5, 50))
        check_everywhere(folder, x)
        check_old(folder, x)
        check_fed(folder)
        check_depth(folder)
        check_used(folder)
        check_blocks(folder)


if __name__ == "__main__":
    sys.exit(main())
