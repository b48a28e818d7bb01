# SPDX-License-Identifier: Apache-2.0
"""The log-determinant that a flow's loss takes. Where an exporter has folded it into a constant, training by it is refused
with both numbers, though they are equal for the weights of the file; `--logdet rules` trains to the losses of the
model that has it whole, and rebuilds what it inverts; what differs by one number for all weights trains, and is told."""
import os
import re
import tempfile

import numpy as np
from onnx import TensorProto, checker, helper, load, numpy_helper, save

import common

WIDTH, STEPS = 4, 3
HALF = WIDTH // 2


def flow(path, folded=(), offset=0.0):
    """ActNorm, an invertible matrix and an affine coupling, three times. `folded`: steps whose share of the
    log-determinant that only depends on parameters is a constant."""
    rng, nodes, inits = np.random.default_rng(0), [], {"axes": np.array([1], np.int64)}

    def node(op, inputs, out, **attributes):
        nodes.append(helper.make_node(op, inputs, [out] if isinstance(out, str) else out, **attributes))
        return out
    x, terms, constant = "x", [], offset
    for i in range(STEPS):
        w = np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0] @ np.diag(np.exp(0.2 * rng.normal(size=WIDTH)))
        inits |= {f"s{i}": np.exp(0.3 * rng.normal(size=WIDTH)), f"b{i}": 0.1 * rng.normal(size=WIDTH), f"W{i}": w,
                  f"A{i}": 0.5 * rng.normal(size=(HALF, 8)), f"C{i}": 0.5 * rng.normal(size=(8, HALF)),
                  f"E{i}": 0.5 * rng.normal(size=(8, HALF))}
        a = node("Mul", [node("Add", [x, f"b{i}"], f"n{i}"), f"s{i}"], f"a{i}")
        node("MatMul", [a, f"W{i}"], f"w{i}")
        if i in folded:
            constant += np.log(np.abs(inits[f"s{i}"])).sum() + np.linalg.slogdet(w)[1]
        else:
            log = node("Log", [node("Abs", [f"s{i}"], f"abs{i}")], f"log{i}")
            terms.append(node("ReduceSum", [log], f"sum{i}", keepdims=0))
            terms.append(node("Log", [node("Abs", [node("Det", [f"W{i}"], f"det{i}")], f"size{i}")], f"logdet{i}"))
        node("Split", [f"w{i}"], [f"p{i}", f"q{i}"], axis=1)
        h = node("Tanh", [node("MatMul", [f"p{i}", f"A{i}"], f"f{i}")], f"h{i}")
        scale = node("Tanh", [node("MatMul", [h, f"C{i}"], f"g{i}")], f"l{i}")
        m = node("Mul", [f"q{i}", node("Exp", [scale], f"e{i}")], f"m{i}")
        y = node("Add", [m, node("MatMul", [h, f"E{i}"], f"t{i}")], f"y{i}")
        terms.append(node("ReduceSum", [scale, "axes"], f"own{i}", keepdims=0))
        x = node("Concat", [y, f"p{i}"], "z" if i == STEPS - 1 else f"z{i}", axis=1)
    inits["constant"] = np.array(constant)
    node("Sum", terms + ["constant"], "logdet")
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
            for n, s in (("x", ["N", WIDTH]), ("z", ["N", WIDTH]), ("logdet", ["N"]))]
    graph = helper.make_graph(nodes, "flow", info[:1], info[1:], [
        numpy_helper.from_array(v if v.dtype == np.int64 else v.astype(np.float32), k) for k, v in inits.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    save(model, path)


def one_for_all(path, shape, folded):
    """z = x exp(s) + b, whose log-determinant is the same for all samples: one number."""
    g = np.random.default_rng(7)
    s, b = (g.normal(size=WIDTH).astype(np.float32) for _ in range(2))
    nodes = [helper.make_node("Exp", ["s"], ["e"]), helper.make_node("Mul", ["x", "e"], ["m"]),
             helper.make_node("Add", ["m", "b"], ["z"]),
             helper.make_node("Identity", ["sum"], ["logdet"]) if folded else
             helper.make_node("ReduceSum", ["s"], ["logdet"], keepdims=len(shape))]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, d)
            for n, d in (("x", ["N", WIDTH]), ("z", ["N", WIDTH]), ("logdet", shape))]
    inits = {"s": s, "b": b, **({"sum": s.sum().reshape(shape)} if folded else {})}
    graph = helper.make_graph(nodes, "flow", info[:1], info[1:], [numpy_helper.from_array(v, k) for k, v in inits.items()])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def losses(model, logdet, *words):
    r = common.report("train", model, "--data", "x.npy", "--loss", "nll", "--logdet", logdet, "--batch", 20, "--epochs", 2,
                      "--lr", 0.01, "--val-data", "x.npy", "--cost", "flops", "-o", "out.onnx", *words)
    return [*r["steps"], r["val_loss"]], r


def refused(model, *words):
    status, out, err = common.call("train", model, "--data", "x.npy", "--loss", "nll", "--logdet", "logdet", "--batch", 20,
                                   "--cost", "flops", "-o", "none.onnx", *words)
    assert status == 1 and not os.path.exists("none.onnx"), (status, err)
    numbers = re.search(r"'logdet' is (\S+) on average over the first batch, and (\S+) by the rules", err)
    assert numbers and np.isclose(*map(float, numbers.groups())) and "'rules'" in err and "--trust-logdet" in err, err
    return err


def additive(path):
    """z = (x1, x2 + f(x1)), which keeps volumes, and a norm of each sample beside it."""
    g = np.random.default_rng(3)
    w = g.normal(size=(HALF, HALF)).astype(np.float32)
    nodes = [helper.make_node("Split", ["x"], ["a", "b"], axis=1), helper.make_node("MatMul", ["a", "w"], ["m"]),
             helper.make_node("Tanh", ["m"], ["t"]), helper.make_node("Add", ["b", "t"], ["c"]),
             helper.make_node("Concat", ["c", "a"], ["z"], axis=1),
             helper.make_node("ReduceL2", ["z"], ["norm"], axes=[1], keepdims=0)]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, d)
            for n, d in (("x", ["N", WIDTH]), ("z", ["N", WIDTH]), ("norm", ["N"]))]
    graph = helper.make_graph(nodes, "flow", info[:1], info[1:], [numpy_helper.from_array(w, "w")])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def counted_as_zero():
    """Without --logdet it counts as zero: right where volumes are kept, else refused with the rules' number."""
    run = ["--data", "x.npy", "--loss", "nll", "--batch", 20]
    train = ["train", "whole.onnx", *run, "--cost", "flops", "-o", "none.onnx"]
    status, _, err = common.call(*train)
    assert status == 1 and "log-determinant with --logdet" in err, err
    for words in (train, ["eval", "whole.onnx", *run]):
        status, _, err = common.call(*words, "--loss-output", "z")
        assert status == 1 and "counts as 0" in err and "'logdet'" in err and "--trust-logdet" in err, err
        number = float(re.search("but it is (\\S+) on average", err)[1])
        assert abs(number) > 0.1, err
    status, _, err = common.call(*train, "--loss-output", "z", "--loss-output", "logdet")
    assert status == 1 and "'logdet'" in err and "determined by the others" in err, err
    one_for_all("one.onnx", [], False)
    status, _, err = common.call("eval", "one.onnx", *run, "--loss-output", "z")  # by the weights alone
    assert status == 1 and "changes with the weights ('s'" in err, err
    got = common.report("eval", "whole.onnx", *run, "--loss-output", "z", "--trust-logdet")["loss"]
    want = common.report("eval", "whole.onnx", *run, "--logdet", "logdet")["loss"]
    assert abs(got - want) > 0.1, (got, want)
    additive("additive.onnx")
    quiet = common.call("eval", "additive.onnx", *run, "--loss-output", "z")
    assert quiet[0] == 0 and "log-determinant" not in quiet[2], quiet
    # the metric is of the outputs that the loss has found
    metric = ["--metric", "bits_per_dim", "--logdet", "rules"]
    r = common.report("eval", "whole.onnx", *run, *metric)
    assert np.isclose(r["bits_per_dim"], r["loss"] / WIDTH / np.log(2)), r
    r = common.report(*train[:-2], "-o", "out.onnx", *metric, "--val-split", 0.2, "--best", "bits_per_dim")
    assert np.isclose(r["val_bits_per_dim"], r["best"]), r


def main():
    flow("whole.onnx")
    flow("folded.onnx", folded=range(STEPS))
    flow("partly.onnx", folded=[1])
    flow("offset.onnx", offset=-20.0)
    np.save("x.npy", np.random.default_rng(5).normal(size=(60, WIDTH)).astype(np.float32))
    want, _ = losses("whole.onnx", "logdet", "--memory", "store")
    assert want[-1] < want[0] - 1, want

    counted_as_zero()
    refused("folded.onnx")
    assert "'s1'" in refused("partly.onnx") or "'W1'" in refused("partly.onnx")
    refused("partly.onnx", "--train-only", "W1")
    losses("partly.onnx", "logdet", "--freeze", "W1", "--freeze", "s1")  # then it is the constant that it is
    for model, memory in (("whole", "auto"), ("folded", "store"), ("folded", "recompute"), ("folded", "invert")):
        got, r = losses(model + ".onnx", "rules", "--memory", memory)
        assert np.allclose(got, want, rtol=1e-4), (model, memory, got, want)
    assert r["values"]["inverted"], r["values"]
    # the output that is wrong from now on is told, and the file's inverse direction has the right one
    for name, stale in ("whole", []), ("partly", ["logdet"]), ("folded", ["logdet"]):
        _, r = losses(name + ".onnx", "rules", "--memory", "store")
        assert r["stale_outputs"] == stale, (name, r["stale_outputs"])
    _, _, err = common.call("train", "folded.onnx", "--data", "x.npy", "--loss", "nll", "--logdet", "rules", "-o", "out.onnx")
    assert "output 'logdet' of out.onnx is not the log-determinant" in err and "--with-logdet" in err, err

    # trained by the constant, the loss is no likelihood any more, and evaluation says so
    wrong, _ = losses("folded.onnx", "logdet", "--trust-logdet")
    os.rename("out.onnx", "wrong.onnx")
    args = ["eval", "wrong.onnx", "--data", "x.npy", "--loss", "nll", "--logdet"]
    status, _, err = common.call(*args, "logdet")
    assert status == 1 and "by the rules" in err, err
    right = common.report(*args, "rules")["loss"]
    assert abs(right - wrong[-1]) > 0.1, (right, wrong)
    losses("whole.onnx", "logdet")
    got = common.report("eval", "out.onnx", "--data", "x.npy", "--loss", "nll", "--logdet", "rules")["loss"]
    assert np.isclose(got, want[-1], rtol=1e-4), (got, want)
    assert [o.name for o in load("out.onnx").graph.output] == ["z", "logdet"]

    for shape in [], [1]:
        one_for_all("one.onnx", shape, False)
        got = [losses("one.onnx", logdet, "--memory", "store")[0] for logdet in ("logdet", "rules")]
        assert np.allclose(*got, rtol=1e-5) and got[0][-1] < got[0][0], got
        one_for_all("one.onnx", shape, True)
        refused("one.onnx")

    status, _, err = common.call("train", "offset.onnx", "--data", "x.npy", "--loss", "nll", "--logdet", "logdet", "--batch",
                                 20, "--cost", "flops", "-o", "out.onnx")
    assert status == 0 and "differ by -20 for all samples" in err, err
    status, _, err = common.call("train", common.model("mlp_lrelu_seq_ts17/model.onnx"), "--data",
                                 common.model("mlp_lrelu_seq_ts17/in_x.npy"), "--loss", "nll", "--logdet", "rules", "-o",
                                 "none.onnx")
    assert status == 1 and "the rules give no log-determinant" in err, err


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        main()
        os.chdir("/")
    print("all good")
