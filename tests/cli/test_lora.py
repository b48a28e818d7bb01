# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters (`--lora`): what is computed and trained is a second way beside a frozen weight, by numpy, by ONNX's
reference implementation in float64 and by onnxruntime, which runs what is written."""
import os
import unittest

import numpy as np
import onnx
import onnxruntime
from common import InFolder, call, report
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

RNG = np.random.default_rng(7)


def weight(name, *shape):
    return numpy_helper.from_array((RNG.standard_normal(shape) * 0.3).astype(np.float32), name)


def save(path, nodes, tensors, x, y, opset=17, more=()):
    """A model of one input x and one output y, given by their shapes behind the batch; axis 0 is open."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", x[0], ["N", *x[1:]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", *y])], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *more], ir_version=8)
    onnx.save(model, path)


def tensors(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def in_float64(path):
    """The model with all that is float32 in float64."""
    model = onnx.load(path)
    for t in model.graph.initializer:
        if t.data_type == TensorProto.FLOAT:
            t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float64), t.name))
    for v in (*model.graph.input, *model.graph.output):
        if v.type.tensor_type.elem_type == TensorProto.FLOAT:
            v.type.tensor_type.elem_type = TensorProto.DOUBLE
    return model


class Adapters(InFolder):
    def feed(self, x, y):
        np.save(self.at("in.npy"), x)
        np.save(self.at("out.npy"), y)

    def train(self, *more, out="out.onnx"):
        return report("train", self.at("m.onnx"), "--data", self.at("in.npy"), "--target", self.at("out.npy"), "--loss", "mse",
                      "--batch", len(np.load(self.at("in.npy"))), "--deterministic", "-o", self.at(out), *more)

    def ort(self, path="out.onnx", x=None):
        session = onnxruntime.InferenceSession(self.at(path), providers=["CPUExecutionProvider"])
        return session.run(None, {"x": np.load(self.at("in.npy")) if x is None else x})[0]

    def check_written(self, targets, base=1e-5):
        """Nothing but the adapters changed; at the start the outputs are those of the model; plain ONNX."""
        self.train("--lora", *targets, "--steps", 1, "--lr", 0, out="start.onnx")
        np.testing.assert_allclose(self.ort("start.onnx"), self.ort("m.onnx"), atol=base)
        onnx.checker.check_model(self.at("out.onnx"), full_check=True)
        old, new = tensors(self.at("m.onnx")), tensors(self.at("out.onnx"))
        for name, value in old.items():
            np.testing.assert_array_equal(value, new[name], name)
        added = sorted(set(new) - set(old))
        for name in added:
            self.assertRegex(name, r"\.lora_(A|B|scale)$")
            if name.endswith("lora_B"):
                self.assertGreater(np.abs(new[name]).max(), 0, name)
                self.assertEqual(np.abs(tensors(self.at("start.onnx"))[name]).max(), 0)
        self.assertNotIn("Dropout", [n.op_type for n in onnx.load(self.at("out.onnx")).graph.node])
        return added

    def check_gradients(self, samples=6, change=lambda model: model):
        """Of the trained factors, against central differences of the reference implementation in float64."""
        if not os.path.exists(self.at("g")):
            os.mkdir(self.at("g"))
        report("grad", self.at("out.onnx"), "--feed", self.at("in.npy"), "--target", self.at("out.npy"), "--loss", "mse",
               "--float64", "--train-only", "*.lora_[AB]", "--dump", self.at("g"))
        model = change(in_float64(self.at("out.onnx")))
        x, y = np.load(self.at("in.npy")), np.load(self.at("out.npy")).astype(np.float64)
        x = x.astype(np.float64) if x.dtype == np.float32 else x

        def loss():
            return np.mean((ReferenceEvaluator(model).run(None, {"x": x})[0] - y) ** 2)

        for t in model.graph.initializer:
            if not t.name.endswith((".lora_A", ".lora_B")):
                continue
            grad = np.load(self.at("g") + f"/grad_{t.name}.npy")
            value = numpy_helper.to_array(t).copy()
            self.assertGreater(np.abs(grad).max(), 0, t.name)
            for i in RNG.choice(value.size, min(samples, value.size), replace=False):
                diff = 0
                for step in (1e-5, -1e-5):
                    moved = value.copy()
                    moved.ravel()[i] += step
                    t.CopyFrom(numpy_helper.from_array(moved, t.name))
                    diff += loss() / (2 * step)
                t.CopyFrom(numpy_helper.from_array(value, t.name))
                self.assertAlmostEqual(grad.ravel()[i], diff, delta=1e-6 * max(1, abs(diff)), msg=(t.name, i))

    def check_modes(self, targets, *more):
        losses = [[s["train_loss"] for s in self.train("--lora", *targets, "--epochs", 4, "--memory", mode, "--optimizer", "adam",
                                                 "--lr", 0.02, "--lora-dropout", 0.2, *more)["epochs"]]
                  for mode in ("store", "recompute", "invert", "auto")]
        for other in losses[1:]:
            np.testing.assert_allclose(other, losses[0], rtol=1e-5)


class Products(Adapters):
    """MatMul and Gemm, with the weight on either side, transposed or not, and shared."""

    def setUp(self):
        super().setUp()
        self.write()
        self.feed(RNG.standard_normal((6, 8)).astype(np.float32), RNG.standard_normal((6, 5)).astype(np.float32))

    def write(self, opset=17):
        alpha = {"alpha": 0.5} if opset >= 11 else {}
        save(self.at("m.onnx"), [
            helper.make_node("MatMul", ["x", "W1"], ["h1"], name="fc1"),
            helper.make_node("Tanh", ["h1"], ["t1"]),
            helper.make_node("Gemm", ["t1", "W2", "b2"], ["h2"], name="fc2", transB=1, **alpha),
            helper.make_node("Tanh", ["h2"], ["t2"]),
            helper.make_node("Gemm", ["t2", "W3", "b3"], ["h3"], name="fc3"),
            helper.make_node("Transpose", ["h3"], ["h4"], perm=[1, 0]),
            helper.make_node("Gemm", ["h4", "W4", "b4"], ["h5"], name="fc4", transA=1, transB=1),
            helper.make_node("MatMul", ["h5", "W5"], ["h6"], name="shared1"),
            helper.make_node("Tanh", ["h6"], ["h7"]),
            helper.make_node("Transpose", ["W5"], ["W5t"], perm=[1, 0]),
            helper.make_node("MatMul", ["h7", "W5t"], ["h8"], name="shared2"),
            helper.make_node("Transpose", ["h8"], ["h9"], perm=[1, 0]),
            helper.make_node("MatMul", ["W6", "h9"], ["h10"], name="left"),
            helper.make_node("Tanh", ["h10"], ["h11"]),
            helper.make_node("Gemm", ["W7", "h11", "b7"], ["h12"], name="gleft", transA=1),
            helper.make_node("Transpose", ["h12"], ["y"], perm=[1, 0]),
        ], [weight("W1", 8, 12), weight("W2", 10, 12), weight("b2", 10), weight("W3", 10, 7), weight("b3", 7), weight("W4", 9, 7),
            weight("b4", 9), weight("W5", 9, 9), weight("W6", 11, 9), weight("W7", 11, 5), weight("b7", 5, 1)],
            (TensorProto.FLOAT, 8), (5,), opset)

    def test_products(self):
        for opset in (17, 9):
            self.write(opset)
            self.train("--lora", "W*", "--rank", 2, "--alpha", 6, "--steps", 3, "--lr", 0.5, "--lora-dropout", 0.1)
            added = self.check_written(["W*", "--rank", 2])
            self.assertEqual(len(added), 21)
            self.check_gradients()

    def test_fused(self):
        """The product with a transposed weight that onnxruntime's optimizers write."""
        nodes = [helper.make_node("FusedMatMul", ["x", "W"], ["h"], domain="com.microsoft", transB=1, name="fused"),
                 helper.make_node("FusedMatMul", ["h", "V"], ["y"], domain="com.microsoft", alpha=0.5, name="scaled")]
        x = (RNG.standard_normal((6, 2, 5))).astype(np.float32)
        self.feed(x, RNG.standard_normal((6, 2, 4)).astype(np.float32))
        save(self.at("m.onnx"), nodes, [weight("W", 3, 5), weight("V", 3, 4)], [TensorProto.FLOAT, 2, 5], [2, 4],
             more=[helper.make_opsetid("com.microsoft", 1)])
        before = self.ort("m.onnx")
        self.train("--lora", "*", "--rank", "2", "--lr", "0")
        np.testing.assert_allclose(self.ort(), before, rtol=1e-5, atol=1e-6)
        self.train("--lora", "*", "--rank", "2", "--lr", "0.1")
        self.assertIn("W.lora_A", tensors(self.at("out.onnx")))
        self.assertNotIn("V.lora_A", tensors(self.at("out.onnx")))
        report("adapter", "merge", self.at("out.onnx"), "-o", self.at("merged.onnx"))
        np.testing.assert_allclose(self.ort("merged.onnx"), self.ort(), rtol=1e-4, atol=1e-5)

    def test_modes(self):
        self.check_modes(["W*", "--rank", 3])

    def test_by_node_and_with_more(self):
        """A node's name stands for its weight; with --train-only others are trained besides."""
        said = self.train("--lora", "fc[12]", "--lora", "shared2", "--rank", 2, "--train-only", "b3", "--steps", 1)
        names = {"W1", "W2", "W5"}
        self.assertEqual({n for n in tensors(self.at("out.onnx")) if ".lora_" in n},
                         {f"{w}.lora_{p}" for w in names for p in ("A", "B", "scale")})
        old, new = tensors(self.at("m.onnx")), tensors(self.at("out.onnx"))
        self.assertEqual([n for n in old if not np.array_equal(old[n], new[n])], ["b3"], said)

    def test_seed(self):
        """A is a function of the seed and its name, within the bounds of Kaiming's rule."""
        drawn = []
        for seed in (0, 0, 1):
            self.train("--lora", "*", "--rank", 4, "--steps", 1, "--lr", 0, "--seed", seed)
            drawn.append(tensors(self.at("out.onnx")))
        extent = {"W1": 8, "W2": 12, "W3": 10, "W4": 7, "W5": 9, "W6": 9, "W7": 11}
        for w, n in extent.items():
            a = [d[f"{w}.lora_A"] for d in drawn]
            np.testing.assert_array_equal(a[0], a[1])
            self.assertGreater(np.abs(a[0] - a[2]).max(), 0)
            self.assertLessEqual(np.abs(a[0]).max(), 1 / np.sqrt(n))
            self.assertGreater(np.abs(a[0]).max(), 0.7 / np.sqrt(n))
            self.assertIn(n, a[0].shape)

    def test_refused(self):
        for given, expected in (
                (["--lora", "W9*"], ["'W9*' matches neither", "'W1' [8,12] of MatMul 'fc1'", "'W7' [11,5] of Gemm 'gleft'"]),
                (["--lora", "b2"], ["'b2' matches neither"]),
                (["--lora", "W7", "--rank", 6], ["--rank 6", "'W7'", "at most 5"]),
                (["--lora", "W7", "--rank", 0], ["--rank"]),
                (["--lora", "W7", "--alpha", 0], ["--alpha 0: wants a number above 0"]),
                (["--lora", "W7", "--lora-dropout", 1], ["--lora-dropout 1: wants a share"])):
            status, _, err = call("train", self.at("m.onnx"), "--data", self.at("in.npy"), "--target", self.at("out.npy"),
                                  "--loss", "mse", "--steps", 1, "-o", self.at("no.onnx"), *given)
            self.assertNotEqual(status, 0, given)
            for text in expected:
                self.assertIn(text, err)
        self.train("--lora", "W1", "--rank", 2, "--steps", 1)
        status, _, err = call("train", self.at("out.onnx"), "--data", self.at("in.npy"), "--target", self.at("out.npy"),
                              "--loss", "mse", "--lora", "W1", "--rank", 2, "-o", self.at("no.onnx"))
        self.assertIn("has an adapter already", err)

    def test_narrow(self):
        """A pattern passes over what is too narrow for the rank, and says so; what is named so is refused."""
        status, _, err = call("train", self.at("m.onnx"), "--data", self.at("in.npy"), "--target", self.at("out.npy"),
                              "--loss", "mse", "--steps", 1, "--lora", "W*", "--rank", 6, "-o", self.at("out.onnx"))
        self.assertEqual(status, 0, err)
        new = tensors(self.at("out.onnx"))
        kept = [n for n in new if n + ".lora_A" in new]
        left = [n for n, t in tensors(self.at("m.onnx")).items() if n[0] == "W" and n not in kept]
        self.assertTrue(all(min(new[n].shape) >= 6 for n in kept) and all(min(new[n].shape) < 6 for n in left))
        self.assertTrue(kept and "W7" in left)
        self.assertIn(f"--rank 6: {len(left)} weights that --lora matches are too narrow for it and stay unchanged", err)
        status, _, err = call("train", self.at("m.onnx"), "--data", self.at("in.npy"), "--target", self.at("out.npy"),
                              "--loss", "mse", "--steps", 1, "--lora", "W*", "--rank", 99, "-o", self.at("no.onnx"))
        self.assertEqual(status, 1)
        self.assertIn("--rank 99: the weight 'W1'", err)
        model = onnx.load(self.at("m.onnx"))
        for names in [i.input for i in model.graph.node]:
            names[:] = ["W[7]" if name == "W7" else name for name in names]
        next(i for i in model.graph.initializer if i.name == "W7").name = "W[7]"
        onnx.save(model, self.at("brackets.onnx"))
        status, _, err = call("train", self.at("brackets.onnx"), "--data", self.at("in.npy"), "--target", self.at("out.npy"),
                              "--loss", "mse", "--steps", 1, "--lora", "W1", "--lora", "W[7]", "--rank", 6, "-o", self.at("no.onnx"))
        self.assertEqual(status, 1)
        self.assertIn("--rank 6: the weight 'W[7]'", err)

    def test_no_weights(self):
        """A pattern passes over what a product reads and is no weight, here a permutation that is called a buffer, and says
        so; by its whole name it gets its adapter."""
        turn = numpy_helper.from_array(np.eye(8, dtype=np.float32)[::-1].copy(), "turn_buffer")
        save(self.at("m.onnx"), [helper.make_node("MatMul", ["x", "turn_buffer"], ["h"], name="turn"),
                                 helper.make_node("MatMul", ["h", "W"], ["y"], name="fc")],
             [turn, weight("W", 8, 5)], (TensorProto.FLOAT, 8), (5,))
        self.feed(RNG.standard_normal((6, 8)).astype(np.float32), RNG.standard_normal((6, 5)).astype(np.float32))
        for globs, expected in ((["*"], ["W"]), (["*", "turn_buffer"], ["W", "turn_buffer"]), (["turn_*"], ""), (["tu?n"], "")):
            status, _, err = call("train", self.at("m.onnx"), "--data", self.at("in.npy"), "--target", self.at("out.npy"), "--loss",
                                  "mse", "--rank", 2, "--steps", 1, *(a for g in globs for a in ("--lora", g)), "-o", self.at("out.onnx"))
            if isinstance(expected, str):
                self.assertEqual(status, 1)
                self.assertIn("--lora matches no weights: 'turn_buffer' is a buffer of the model", err)
                continue
            self.assertEqual(status, 0, err)
            self.assertEqual(sorted(n[:-7] for n in tensors(self.at("out.onnx")) if n.endswith(".lora_A")), expected)
            self.assertEqual("1 matches of --lora are not weights and stay unchanged ('turn_buffer')" in err, len(globs) == 1)

    def test_norms(self):
        """What a weight gives for a vector of the file is about the weight: under spectral normalization an adapter there
        would change the norm and nothing else."""
        sigma = [helper.make_node("MatMul", ["W", "v"], ["Wv"], name="mv"), helper.make_node("MatMul", ["u", "Wv"], ["sigma"], name="dot"),
                 helper.make_node("Div", ["W", "sigma"], ["Wn"], name="norm"), helper.make_node("MatMul", ["x", "Wn"], ["h"], name="fc")]
        save(self.at("m.onnx"), [*sigma, helper.make_node("MatMul", ["h", "V"], ["y"], name="last")],
             [weight("W", 8, 7), weight("v", 7), weight("u", 8), weight("V", 7, 5)], (TensorProto.FLOAT, 8), (5,))
        self.feed(RNG.standard_normal((6, 8)).astype(np.float32), RNG.standard_normal((6, 5)).astype(np.float32))
        self.train("--lora", "*", "--rank", 2, "--steps", 1)
        self.assertEqual([n for n in tensors(self.at("out.onnx")) if n.endswith(".lora_A")], ["V.lora_A"])

    def test_resumed(self):
        """Four steps, and two and two: the same bits."""
        options = ["--lora", "W*", "--rank", 2, "--lora-dropout", 0.3, "--optimizer", "adamw", "--lr", 0.01]
        self.train(*options, "--steps", 4)
        self.train(*options, "--steps", 2, "--checkpoint", self.at("c"), out="half.onnx")
        self.train(*options, "--steps", 4, "--checkpoint", self.at("c"), "--resume", out="resumed.onnx")
        whole, resumed = tensors(self.at("out.onnx")), tensors(self.at("resumed.onnx"))
        self.assertEqual(whole.keys(), resumed.keys())
        for name, value in whole.items():
            np.testing.assert_array_equal(value, resumed[name], name)

    def test_accumulated(self):
        options = ["--lora", "W*", "--rank", 2, "--lr", 0.1, "--steps", 2]
        self.train(*options)
        self.train(*options, "--batch", 3, "--accumulate", 2, "--no-shuffle", out="parts.onnx")
        for name, value in tensors(self.at("out.onnx")).items():
            np.testing.assert_allclose(tensors(self.at("parts.onnx"))[name], value, atol=1e-6)


class Convolutions(Adapters):
    """Of one to three axes, in groups, strided, dilated and padded."""

    def check(self, nodes, tensors_, x, targets, rank):
        shape = RNG.standard_normal((3, *x)).astype(np.float32)
        save(self.at("m.onnx"), nodes, tensors_, (TensorProto.FLOAT, *x), [None] * len(x))
        y = self.ort("m.onnx", shape)
        self.feed(shape, RNG.standard_normal(y.shape).astype(np.float32))
        self.train("--lora", *targets, "--rank", rank, "--steps", 3, "--lr", 0.5, "--lora-dropout", 0.1)
        added = self.check_written([*targets, "--rank", rank])
        self.check_gradients(4)
        self.check_modes([*targets, "--rank", rank])
        return added

    def test_axes(self):
        for axes in (1, 2, 3):
            nodes = [helper.make_node("Conv", ["x", "W1", "b1"], ["h"], name="first", dilations=[2] * axes, pads=[2] * 2 * axes),
                     helper.make_node("Tanh", ["h"], ["t"]),
                     helper.make_node("Conv", ["t", "W2"], ["y"], strides=[2] * axes, auto_pad="SAME_UPPER")]
            added = self.check(nodes, [weight("W1", 6, 4, *[3] * axes), weight("b1", 6), weight("W2", 5, 6, *[2] * axes)],
                               (4, *[7] * axes), ["first", "--lora", "W2"], 3)
            self.assertEqual(len(added), 6)

    def test_groups(self):
        """Each group has factors of its own; depthwise, with a multiplier, too."""
        nodes = [helper.make_node("Conv", ["x", "W1"], ["h"], group=3, pads=[1, 1, 1, 1]),
                 helper.make_node("Tanh", ["h"], ["t"]), helper.make_node("Conv", ["t", "W2", "b2"], ["y"], group=12)]
        self.check(nodes, [weight("W1", 12, 2, 3, 3), weight("W2", 24, 1, 2, 2), weight("b2", 24)], (6, 6, 6), ["*"], 2)
        shapes = {n: v.shape for n, v in tensors(self.at("out.onnx")).items()}
        self.assertEqual([shapes[f"{w}.lora_{p}"] for w in ("W1", "W2") for p in "AB"],
                         [(6, 2, 3, 3), (12, 2, 1, 1), (24, 1, 2, 2), (24, 2, 1, 1)])
        status, _, err = call("train", self.at("m.onnx"), "--data", self.at("in.npy"), "--target", self.at("out.npy"), "--loss",
                              "mse", "--lora", "W2", "--rank", 3, "-o", self.at("no.onnx"))
        self.assertEqual(status, 1)
        self.assertIn("matrices of 2 x 4", err)


class Tables(Adapters):
    def test_tied(self):
        """An embedding, which is the last layer's weight as well: one adapter."""
        save(self.at("m.onnx"), [
            helper.make_node("Gather", ["E", "x"], ["e"], name="embed"), helper.make_node("Tanh", ["e"], ["t"]),
            helper.make_node("Transpose", ["E"], ["Et"], perm=[1, 0]), helper.make_node("MatMul", ["t", "Et"], ["y"], name="head"),
        ], [weight("E", 13, 6)], (TensorProto.INT64, 4), (4, 13))
        self.feed(RNG.integers(-13, 13, (5, 4)), RNG.standard_normal((5, 4, 13)).astype(np.float32))
        for glob in ("E", "head"):
            self.train("--lora", glob, "--rank", 4, "--steps", 3, "--lr", 0.5, "--lora-dropout", 0.1)
            self.assertEqual(self.check_written([glob, "--rank", 4]), ["E.lora_A", "E.lora_B", "E.lora_scale"])
        self.assertEqual(tensors(self.at("out.onnx"))["E.lora_B"].shape, (13, 4))
        self.check_gradients()
        self.check_modes(["E", "--rank", 4])


def quantized(name, axis, block, *shape):
    """int8 per channel, or uint4 in blocks: the initializers and the node that gives `name`."""
    rows = list(shape)
    rows[axis] = -(-rows[axis] // block) if block else rows[axis]
    kind, values = (TensorProto.UINT4, RNG.integers(0, 16, shape)) if block else (TensorProto.INT8, RNG.integers(-99, 99, shape))
    scale = RNG.uniform(0.002, 0.004, rows if block else [shape[axis]]).astype(np.float32) * (8 if block else 1)
    held = [helper.make_tensor(f"{name}_q", kind, shape, values.ravel().tolist()), numpy_helper.from_array(scale, f"{name}_s")]
    if block:
        held.append(helper.make_tensor(f"{name}_z", kind, rows, [8] * int(np.prod(rows))))
    attributes = {"axis": axis, **({"block_size": block} if block else {})}
    return held, helper.make_node("DequantizeLinear", [t.name for t in held], [name], **attributes)


class Quantized(Adapters):
    """Beside weights that stay packed."""

    def test_dequantized(self):
        parts = [quantized("W1", 1, 0, 8, 12), quantized("W2", 1, 4, 10, 12), quantized("W3", 0, 4, 10, 9), quantized("C", 0, 0, 4, 3, 3)]
        nodes = [*(n for _, n in parts),
                 helper.make_node("MatMul", ["x", "W1"], ["h1"]), helper.make_node("Tanh", ["h1"], ["t1"]),
                 helper.make_node("Gemm", ["t1", "W2", "b2"], ["h2"], transB=1), helper.make_node("Tanh", ["h2"], ["t2"]),
                 helper.make_node("MatMul", ["t2", "W3"], ["h3"]), helper.make_node("Reshape", ["h3", "to"], ["h4"]),
                 helper.make_node("Conv", ["h4", "C"], ["y"])]
        save(self.at("m.onnx"), nodes, [t for held, _ in parts for t in held] +
             [weight("b2", 10), numpy_helper.from_array(np.array([0, 3, 3]), "to")], (TensorProto.FLOAT, 8), (4, 1), 21)
        self.feed(RNG.standard_normal((6, 8)).astype(np.float32), RNG.standard_normal((6, 4, 1)).astype(np.float32))
        self.train("--lora", "*_q", "--rank", 2, "--steps", 3, "--lr", 0.5)
        self.assertEqual(len(self.check_written(["*_q", "--rank", 2], 1e-4)), 12)
        self.check_gradients()
        self.check_modes(["*_q", "--rank", 2])

    def save_blocks(self):
        """GatherBlockQuantized and MatMulNBits; gives the numbers that their bits stand for."""
        ms, real, held = "com.microsoft", {}, []
        for name, n, k in (("E", 11, 32), ("W", 6, 32)):
            q = RNG.integers(0, 16, (n, k // 16, 16))
            s = RNG.uniform(0.02, 0.06, (n, k // 16)).astype(np.float32)
            real[name] = ((q - 8) * s[..., None]).reshape(n, k)
            packed = (q[..., ::2] | q[..., 1::2] << 4).astype(np.uint8)
            held += [numpy_helper.from_array(packed, name) if name == "W" else
                     helper.make_tensor(name, TensorProto.UINT4, (n, k), q.ravel().tolist()),
                     numpy_helper.from_array(s, f"{name}_s")]
            if name == "E":
                held.append(helper.make_tensor("E_z", TensorProto.UINT4, s.shape, [8] * s.size))
        save(self.at("m.onnx"), [
            helper.make_node("GatherBlockQuantized", ["E", "x", "E_s", "E_z"], ["e"], domain=ms, gather_axis=0, quantize_axis=1,
                             block_size=16),
            helper.make_node("Tanh", ["e"], ["t"]),
            helper.make_node("MatMulNBits", ["t", "W", "W_s"], ["y"], domain=ms, K=32, N=6, bits=4, block_size=16, name="nbits"),
        ], held, (TensorProto.INT64, 3), (3, 6), 21, [helper.make_opsetid(ms, 1)])
        return real

    def test_blocks(self):
        real = self.save_blocks()
        self.feed(RNG.integers(0, 11, (5, 3)), RNG.standard_normal((5, 3, 6)).astype(np.float32))
        self.train("--lora", "nbits", "--lora", "E", "--rank", 3, "--steps", 3, "--lr", 0.5)
        self.assertEqual(len(self.check_written(["nbits", "--lora", "E", "--rank", 3], 1e-4)), 6)
        self.check_gradients(change=lambda model: self.expand(model, real))
        self.check_modes(["*", "--rank", 3])

    @staticmethod
    def expand(model, real):
        """With the numbers, for who does not know these operators."""
        for name, value in real.items():
            model.graph.initializer.append(numpy_helper.from_array(value if name == "E" else value.T.copy(), f"{name}_real"))
        for node in model.graph.node:
            if node.op_type == "GatherBlockQuantized":
                node.CopyFrom(helper.make_node("Gather", ["E_real", node.input[1]], node.output))
            if node.op_type == "MatMulNBits":
                node.CopyFrom(helper.make_node("MatMul", [node.input[0], "W_real"], node.output))
        return model


class ByHand(Adapters):
    """Steps of a linear layer, by LoRA's formula."""

    def test_steps(self):
        save(self.at("m.onnx"), [helper.make_node("Gemm", ["x", "W", "b"], ["y"], transB=1)], [weight("W", 5, 8), weight("b", 5)],
             (TensorProto.FLOAT, 8), (5,))
        x, y = RNG.standard_normal((6, 8)).astype(np.float32), RNG.standard_normal((6, 5)).astype(np.float32)
        self.feed(x, y)
        rank, alpha, lr, steps = 3, 12, 0.2, 3
        options = ["--lora", "W", "--rank", rank, "--alpha", alpha]
        self.train(*options, "--steps", 1, "--lr", 0, out="start.onnx")
        start = {n: v.astype(np.float64) for n, v in tensors(self.at("start.onnx")).items()}
        w, bias, a, b, s = (start[n] for n in ("W", "b", "W.lora_A", "W.lora_B", "W.lora_scale"))
        self.assertEqual((a.shape, b.shape, float(s)), ((rank, 8), (5, rank), alpha / rank))
        for _ in range(steps):
            e = 2 * (x @ (w + s * b @ a).T + bias - y) / y.size
            a, b = a - lr * s * b.T @ e.T @ x, b - lr * s * e.T @ x @ a.T
        said = self.train(*options, "--steps", steps, "--lr", lr)
        new = tensors(self.at("out.onnx"))
        np.testing.assert_allclose(new["W.lora_A"], a, atol=1e-6, err_msg=str(said))
        np.testing.assert_allclose(new["W.lora_B"], b, atol=1e-6)
        np.testing.assert_array_equal(new["W"], start["W"].astype(np.float32))


if __name__ == "__main__":
    unittest.main()
