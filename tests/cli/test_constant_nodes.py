# SPDX-License-Identifier: Apache-2.0
"""Weights that a file keeps in Constant nodes (PaddlePaddle's converter and spox write all of theirs so), in functions
and in bodies of control flow are trained like initializers, and written back where they were; constants of formulas are
not, and are listed."""
import os
import shutil
import tempfile
import unittest

import numpy as np
import onnx
import onnxruntime
from common import call, report
from onnx import TensorProto, helper, numpy_helper

onnxruntime.set_default_logger_severity(3)
random = np.random.default_rng(3)


def noise(*shape, dtype=np.float32):
    return (random.standard_normal(shape) * 0.4).astype(dtype)


def constant(name, value, typed=False):
    value = np.asarray(value)
    tensor = numpy_helper.from_array(value)
    if typed:
        tensor = helper.make_tensor("", tensor.data_type, value.shape, value.ravel().tolist())
    return helper.make_node("Constant", [], [name], value=tensor)


def info(name, *shape, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, list(shape) or (None if dtype == TensorProto.FLOAT else []))


def body(node, attribute):
    return next(a.g for a in node.attribute if a.name == attribute)


def data(node):
    """The tensor of a Constant node."""
    return node.attribute[0].t


WEIGHTS = {"conv_w": (4, 3, 3, 3), "scale": (4,), "shift": (4,), "mean": (4,), "variance": (4,), "conv2_w": (5, 4, 1, 1),
           "conv2_b": (5,), "fc_w": (5, 6), "fc_b": (6,)}
FORMULAS = {"three", "sixth", "up", "roi", "low", "high"}


def paddle(opset, typed=False):
    """As PaddlePaddle's converter writes it: all weights first, in Constant nodes; biases added by nodes of their own."""
    values = {n: noise(*s) for n, s in WEIGHTS.items()}
    values["variance"] = np.abs(values["variance"]) + 0.5
    head = [constant(n, v, typed) for n, v in values.items()]
    head += [constant("three", np.full(1, 3, np.float32)), constant("sixth", np.full(1, 1 / 6, np.float32)),
             constant("up", np.array([1, 1, 2, 2], np.float32)), constant("bias_shape", np.array([1, 5, 1, 1]))]
    node = helper.make_node
    clip = [node("Clip", ["a"], ["b"], min=0.0, max=6.0)]
    if opset >= 11:
        clip = [constant("low", np.float32(0)), constant("high", np.float32(6)), node("Clip", ["a", "low", "high"], ["b"])]
    if opset >= 11:
        head.append(constant("roi", np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32)))
    resize = node("Resize", ["f", "roi", "up"], ["u"], mode="nearest") if opset >= 11 else node(
        "Upsample", ["f"], ["u"], mode="nearest", scales=[1.0, 1.0, 2.0, 2.0])
    nodes = head + [
        node("Conv", ["x", "conv_w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("BatchNormalization", ["c", "scale", "shift", "mean", "variance"], ["n"], epsilon=1e-5),
        node("Add", ["n", "three"], ["a"])] + clip + [
        node("Mul", ["b", "n"], ["d"]), node("Mul", ["d", "sixth"], ["e"]),
        node("Conv", ["e", "conv2_w"], ["e2"]), node("Reshape", ["conv2_b", "bias_shape"], ["b2"]),
        node("Add", ["e2", "b2"], ["f"]), resize,
        node("GlobalAveragePool", ["u"], ["g"]), node("Flatten", ["g"], ["h"]),
        node("MatMul", ["h", "fc_w"], ["m"]), node("Add", ["m", "fc_b"], ["y"])]
    graph = helper.make_graph(nodes, "paddle", [info("x", "N", 3, "H", "W")], [info("y", "N", 6)])
    return helper.make_model(graph, ir_version=7, opset_imports=[helper.make_opsetid("", opset)])


def as_initializers(m, names):
    """The same model with these Constants as initializers."""
    out = onnx.ModelProto()
    out.CopyFrom(m)
    del out.graph.node[:]
    for n in m.graph.node:
        if n.op_type == "Constant" and n.output[0] in names:
            tensor = out.graph.initializer.add()
            tensor.CopyFrom(n.attribute[0].t)
            tensor.name = n.output[0]
        else:
            out.graph.node.add().CopyFrom(n)
    return out


def nested(small=np.float16, large=np.float64):
    """Weights in a function that is called twice, in one that it calls, in both branches of an If, in a Loop's body."""
    node = helper.make_node
    inner = helper.make_function("my", "Shift", ["a"], ["b"], [
        node("Constant", [], ["s"], value_floats=[0.1, -0.2, 0.3, 0.4]), node("Add", ["a", "s"], ["b"])],
        [helper.make_opsetid("", 17)])
    layer = helper.make_function("my", "Layer", ["a"], ["b"], [
        constant("w", noise(4, 4)), node("MatMul", ["a", "w"], ["t"]), node("Shift", ["t"], ["u"], domain="my"),
        node("Tanh", ["u"], ["b"])], [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)])
    then = helper.make_graph([constant("w", noise(4, 4)), node("MatMul", ["l2", "w"], ["r"])], "then", [], [info("r")])
    other = helper.make_graph([node("MatMul", ["l2", "w2"], ["s"])], "else", [], [info("s")],
                              [numpy_helper.from_array(noise(4, 4), "w2")])
    loop = helper.make_graph(
        [constant("k", noise(4, 4, dtype=large)), node("Cast", ["k"], ["k32"], to=1),
         node("MatMul", ["v", "k32"], ["m"]), node("Tanh", ["m"], ["v2"]), node("Identity", ["go"], ["go2"])], "body",
        [info("i", dtype=7), info("go", dtype=9), info("v")], [info("go2", dtype=9), info("v2")])
    graph = helper.make_graph([
        constant("yes", np.array(True)), constant("trips", np.array(2)),
        node("Layer", ["x"], ["l1"], domain="my"), node("Layer", ["l1"], ["l2"], domain="my"),
        node("If", ["yes"], ["b"], name="choice", then_branch=then, else_branch=other),
        node("Loop", ["trips", "", "b"], ["l"], name="walk", body=loop),
        constant("half", noise(4, 3, dtype=small)), node("Cast", ["half"], ["h32"], to=1),
        node("MatMul", ["l", "h32"], ["y"])], "nested", [info("x", "N", 4)], [info("y", "N", 3)])
    m = helper.make_model(graph, ir_version=8, functions=[inner, layer],
                          opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("my", 1)])
    onnx.checker.check_model(m)
    return m


def read(path):
    with open(path, "rb") as f:
        return f.read()


class Constants(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.model, self.out = self.file("m.onnx"), self.file("out.onnx")

    def file(self, name):
        return os.path.join(self.folder, name)

    def save(self, m, *shape, results=6):
        onnx.save(m, self.model)
        self.x = noise(*shape)
        np.save(self.file("x.npy"), self.x)
        np.save(self.file("t.npy"), noise(shape[0], results))

    def train(self, *options, model=None, out=None):
        return report("train", model or self.model, "--data", self.file("x.npy"), "--target", self.file("t.npy"), "--loss",
                      "mse", "--steps", 3, "--batch", 4, "--optimizer", "adam", "--lr", 0.01, "-o", out or self.out,
                      *options)

    def grad(self, folder, model, *options):
        report("grad", model, "--feed", self.file("x.npy"), "--target", self.file("t.npy"), "--loss", "mse", "--dump",
               self.file(folder), *options)
        return {n: np.load(self.file(os.path.join(folder, n))) for n in os.listdir(self.file(folder))
                if n.endswith(".npy")}

    def same_as_onnxruntime(self, path):
        report("run", path, "--feed", self.file("x.npy"), "--dump", self.file("d"))
        want = onnxruntime.InferenceSession(path).run(None, {"x": self.x})[0]
        np.testing.assert_allclose(np.load(self.file("d/out_y.npy")), want, rtol=1e-4, atol=1e-5)
        return want

    def initializers(self, model=None):
        return {i["name"]: i for i in report("inspect", model or self.model)["initializers"]}

    def test_put_together_inside(self):
        """A weight around a body, whose parts the body brings into another order, as cells of LSTM are exported."""
        parts = [constant("zero", np.array([0])), constant("two", np.array([2])), constant("four", np.array([4])),
                 helper.make_node("Slice", ["w", "zero", "two", "zero"], ["a"]),
                 helper.make_node("Slice", ["w", "two", "four", "zero"], ["b"]),
                 helper.make_node("Concat", ["b", "a"], ["turned"], axis=0),
                 helper.make_node("MatMul", ["x", "turned"], ["r"])]
        then = helper.make_graph(parts, "then", [], [info("r")])
        other = helper.make_graph([helper.make_node("Neg", ["x"], ["s"])], "else", [], [info("s")])
        graph = helper.make_graph([
            constant("yes", np.array(True)), constant("w", noise(4, 4)),
            helper.make_node("If", ["yes"], ["l"], then_branch=then, else_branch=other),
            constant("v", noise(4, 3)), helper.make_node("MatMul", ["l", "v"], ["y"])], "parts", [info("x", "N", 4)],
            [info("y", "N", 3)])
        m = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
        self.save(m, 8, 4, results=3)
        self.assertEqual(set(self.train()["trained"]), {"w", "v"})
        before, after = ({n.output[0]: numpy_helper.to_array(n.attribute[0].t) for n in onnx.load(f).graph.node
                          if n.op_type == "Constant"} for f in (self.model, self.out))
        self.assertTrue((before["w"] != after["w"]).all())

    def test_all_weights_in_constant_nodes(self):
        for opset, typed in ((7, False), (9, True), (11, False), (13, True)):
            with self.subTest(opset=opset):
                m = paddle(opset, typed)
                self.save(m, 4, 3, 8, 8)
                seen = self.initializers()
                self.assertEqual(set(seen), set(WEIGHTS))
                self.assertEqual({n for n, i in seen.items() if not i["trainable"]}, {"mean", "variance"})
                self.assertEqual({c["name"] for c in report("inspect", self.model)["constants"]},
                                 FORMULAS & {n.output[0] for n in m.graph.node})
                onnx.save(as_initializers(m, set(WEIGHTS)), self.file("plain.onnx"))
                want = self.grad("plain", self.file("plain.onnx"), "--train-bn")
                got = self.grad("own", self.model, "--train-bn")
                self.assertEqual(set(want), set(got))
                self.assertIn("grad_fc_w.npy", got)
                for n, g in want.items():
                    np.testing.assert_array_equal(got[n], g, err_msg=n)

    def test_they_are_written_where_they_were(self):
        m = paddle(11)
        self.save(m, 4, 3, 8, 8)
        losses = {mode: self.train("--train-bn", "--memory", mode)["loss"] for mode in ("recompute", "invert", "store")}
        self.assertEqual(losses["recompute"], losses["store"])
        self.assertAlmostEqual(losses["invert"], losses["store"], places=5)
        before, after = read(self.model), read(self.out)
        self.assertEqual(len(before), len(after))
        for old, new in zip(m.graph.node, onnx.load(self.out).graph.node):
            if old.op_type != "Constant" or old.output[0] not in WEIGHTS:
                self.assertEqual(old, new)
                continue
            a, b = old.attribute[0].t.raw_data, new.attribute[0].t.raw_data
            self.assertNotEqual(a, b, old.output[0])
            self.assertEqual(after.count(b), 1)
            after = after.replace(b, a)
        self.assertEqual(before, after)
        self.same_as_onnxruntime(self.out)

    def test_options_know_their_names(self):
        self.save(paddle(11), 4, 3, 8, 8)
        self.train("--freeze", "fc_*")
        changed = {a.output[0] for a, b in zip(onnx.load(self.model).graph.node, onnx.load(self.out).graph.node) if a != b}
        self.assertEqual(changed, set(WEIGHTS) - {"fc_w", "fc_b", "mean", "variance"})
        self.train("--train-only", "conv2_b")
        changed = {a.output[0] for a, b in zip(onnx.load(self.model).graph.node, onnx.load(self.out).graph.node) if a != b}
        self.assertEqual(changed, {"conv2_b"})

    def test_functions_and_bodies(self):
        m = nested()
        self.save(m, 4, 4, results=3)
        names = {"half", "Layer/w", "Shift/s", "choice/then_branch/w", "choice/else_branch/w2", "walk/k"}
        seen = self.initializers()
        self.assertEqual({n for n, i in seen.items() if i["trainable"]}, names)
        self.train()
        before, after = read(self.model), read(self.out)
        self.assertEqual(len(before), len(after))
        t = onnx.load(self.out)
        a, b = m.functions, t.functions
        places = [(data(f.functions[1].node[0]), data(body(f.graph.node[4], "then_branch").node[0]),
                   data(body(f.graph.node[5], "body").node[0]), data(f.graph.node[6])) for f in (m, t)]
        for old, new in zip(*places):
            self.assertNotEqual(old.raw_data, new.raw_data)
            after = after.replace(new.raw_data, old.raw_data)
        old, new = a[0].node[0].attribute[0].floats, b[0].node[0].attribute[0].floats
        self.assertTrue(all(x != y for x, y in zip(old, new)))
        for x, y in zip(old, new):
            after = after.replace(np.float32(y).tobytes(), np.float32(x).tobytes())
        self.assertEqual(before, after)
        self.same_as_onnxruntime(self.out)
        self.train("--freeze", "*/w", "--freeze", "Shift/*", "--freeze", "half")
        self.assertEqual(m.functions[1], onnx.load(self.out).functions[1])
        self.assertNotEqual(m.graph.node[5], onnx.load(self.out).graph.node[5])

    def test_gradients_inside(self):
        self.save(nested(), 4, 4, results=3)
        got = self.grad("d", self.model, "--float64")
        report("run", self.model, "--feed", self.file("x.npy"), "--dump", self.file("r"), "--float64")
        target = np.load(self.file("t.npy")).astype(float)

        def loss(change):
            m = onnx.load(self.model)
            change(m)
            onnx.save(m, self.file("n.onnx"))
            report("run", self.file("n.onnx"), "--feed", self.file("x.npy"), "--dump", self.file("r"), "--float64")
            return np.mean((np.load(self.file("r/out_y.npy")) - target) ** 2)

        def moved(d):
            def change(m):
                t = m.functions[1].node[0].attribute[0].t
                v = numpy_helper.to_array(t).astype(np.float64)
                v[1, 2] += d
                t.CopyFrom(numpy_helper.from_array(v.astype(np.float32)))
            return change
        d = 2 ** -10
        want = (loss(moved(d)) - loss(moved(-d))) / (2 * d)
        np.testing.assert_allclose(got["grad_Layer%2Fw.npy"][1, 2], want, rtol=1e-3)

    def test_what_is_no_weight(self):
        """Of a file whose weights are initializers, and before the first weight, factors and summands are formulas."""
        node = helper.make_node
        for weights in ("initializer", "constant"):
            w = noise(3, 3)
            nodes = [constant("std", noise(3)), node("Mul", ["x", "std"], ["a"]), node("MatMul", ["a", "w"], ["b"]),
                     node("Tanh", ["b"], ["c"]), constant("gain", noise(3)), node("Mul", ["c", "gain"], ["d"]),
                     constant("other", noise(3)), node("Sub", ["d", "other"], ["e"]),
                     constant("bias", noise(3)), node("MatMul", ["e", "w"], ["f"]), node("Add", ["f", "bias"], ["y"])]
            if weights == "constant":
                nodes.insert(0, constant("w", w))
            graph = helper.make_graph(nodes, "g", [info("x", "N", 3)], [info("y", "N", 3)],
                                      [numpy_helper.from_array(w, "w")] if weights == "initializer" else [])
            self.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), 4, 3, results=3)
            kept = {c["name"]: c["why"] for c in report("inspect", self.model)["constants"]}
            self.assertEqual(set(kept), {"std", "other", "gain"} if weights == "initializer" else {"std", "other"})
            self.assertIn("Sub", kept["other"])
            self.assertIn("bias", self.initializers())
            _, said, _ = call("train", self.model, "--data", self.file("x.npy"), "--target", self.file("t.npy"), "--loss",
                             "mse", "--steps", 1, "-o", self.out)
            self.assertIn("'std'", said)

    def test_named_in_full(self):
        """What is no weight by the part it plays is one by its name; patterns reach none of these."""
        node = helper.make_node
        then = helper.make_graph([constant("k", noise(3)), node("Sub", ["a", "k"], ["r"])], "then", [], [info("r")])
        other = helper.make_graph([node("Identity", ["a"], ["z"])], "else", [], [info("z")])
        rows = helper.make_function("my", "Half", ["v"], ["r"], [
            constant("half", np.float32(0.5)), node("Mul", ["v", "half"], ["r"])], [helper.make_opsetid("", 17)])
        graph = helper.make_graph([
            constant("s", noise(3) + 1), constant("w", noise(3, 3)), constant("g", noise(3) + 2),
            constant("size", np.array([1, 1], np.float32)), constant("yes", np.array(True)),
            node("Mul", ["x", "s"], ["a"]), node("If", ["yes"], ["b"], name="if", then_branch=then, else_branch=other),
            node("MatMul", ["b", "w"], ["c"]), node("Div", ["c", "g"], ["d"]),
            node("Resize", ["d", "", "size"], ["e"], mode="nearest"), node("Half", ["e"], ["y"], domain="my")],
            "g", [info("x", "N", 3)], [info("y", "N", 3)])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
        self.save(helper.make_model(graph, opset_imports=opsets, functions=[rows], ir_version=8), 4, 3, results=3)
        names = {"s", "g", "size", "if/then_branch/k", "Half/half"}
        self.assertEqual({c["name"] for c in report("inspect", self.model)["constants"]}, names)
        self.assertEqual(report("inspect", self.model)["operators"]["Constant"], 7)
        self.assertEqual(self.train("--train-only", "*")["trained"], ["w"])
        before = read(self.model)
        for name in names - {"size"}:
            self.assertEqual(self.train("--train-only", name)["trained"], [name])
            self.assertEqual(len(read(self.out)), len(before))
            self.assertNotEqual(read(self.out), before)
            self.same_as_onnxruntime(self.out)
            frozen = self.train("--freeze", name)
            self.assertEqual((frozen["trained"], frozen["frozen"][0]["name"]), (["w"], name))
        status, _, err = call("train", self.model, "--data", self.file("x.npy"), "--target", self.file("t.npy"), "--loss",
                              "mse", "-o", self.out, "--train-only", "size")
        self.assertEqual(status, 1)
        self.assertIn("no initializer of that name", err)

    def test_formulas_in_functions(self):
        """What a function does with data that have met no weight is a formula, as it is outside; behind one, a part."""
        node = helper.make_node
        scale = helper.make_function("my", "Scale", ["a"], ["b"], [
            constant("s", noise(3)), node("Mul", ["a", "s"], ["b"])], [helper.make_opsetid("", 17)])
        for behind in (False, True):
            layer = [node("MatMul", ["x" if behind else "v", "w"], ["h" if behind else "y"])]
            call = [node("Scale", ["h" if behind else "x"], ["y" if behind else "v"], domain="my")]
            nodes = [constant("w", noise(3, 3))] + (layer + call if behind else call + layer)
            graph = helper.make_graph(nodes, "g", [info("x", "N", 3)], [info("y", "N", 3)])
            opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
            self.save(helper.make_model(graph, opset_imports=opsets, functions=[scale], ir_version=8), 4, 3, results=3)
            self.assertEqual(set(self.initializers()), {"w", "Scale/s"} if behind else {"w"})

    def test_biases_in_functions(self):
        """What is added to a product is a bias in a function, too, where the weight or the product is given to it."""
        node, opset = helper.make_node, [helper.make_opsetid("", 17)]
        layer = helper.make_function("my", "Layer", ["a", "m"], ["c"], [
            constant("b", noise(1)), node("MatMul", ["a", "m"], ["p"]), node("Add", ["p", "b"], ["c"])], opset)
        shift = helper.make_function("my", "Shift", ["a"], ["c"], [constant("b", noise(4)), node("Add", ["a", "b"], ["c"])], opset)
        for columns, behind, want in ((1, "u", {"Layer/b", "Shift/b"}), (2, "u", {"Shift/b"}), (1, "x", {"Layer/b"})):
            nodes = [node("MatMul", ["x", "v"], ["u"]), node("Shift", [behind], ["h"], domain="my"),
                     node("Layer", ["h", "w"], ["y"], domain="my")]
            graph = helper.make_graph(nodes, "g", [info("x", "N", 4)], [info("y", "N", columns)],
                                      [numpy_helper.from_array(noise(4, 4), "v"), numpy_helper.from_array(noise(4, columns), "w")])
            m = helper.make_model(graph, opset_imports=[*opset, helper.make_opsetid("my", 1)], functions=[layer, shift], ir_version=8)
            self.save(m, 4, 4, results=columns)
            self.assertEqual(set(self.initializers()) - {"v", "w"}, want)

    def test_single_numbers(self):
        """A net of one channel: what plays a weight's part is trained, statistics move, other numbers are formulas."""
        node = helper.make_node
        values = {"w": noise(1, 1, 3, 3), "b": noise(1), "s": np.ones(1, "f4"), "h": np.zeros(1, "f4"),
                  "m": np.zeros(1, "f4"), "v": np.ones(1, "f4"), "slope": np.full(1, 0.25, "f4"), "w2": noise(1, 1, 1, 1),
                  "b2": noise(1), "w3": noise(2, 1, 1, 1)}
        nodes = [constant(n, v) for n, v in values.items()] + [
            constant("three", np.full(1, 3, "f4")), constant("half", np.float32(0.5)), constant("four", np.full(1, 4, "f4")),
            node("Conv", ["x", "w", "b"], ["c"], pads=[1] * 4),
            node("BatchNormalization", ["c", "s", "h", "m", "v"], ["d", "m2", "v2"], training_mode=1),
            node("PRelu", ["d", "slope"], ["e"]), node("Add", ["e", "three"], ["e3"]), node("Mul", ["e3", "half"], ["e4"]),
            node("Conv", ["e4", "w2"], ["f"]), node("Add", ["f", "b2"], ["f2"]), node("Conv", ["f2", "w3"], ["f3"]),
            node("Add", ["f3", "four"], ["y"])]
        graph = helper.make_graph(nodes, "g", [info("x", "N", 1, 4, 4)], [info("y", "N", 2, 4, 4)])
        m = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        plain, other = self.file("plain.onnx"), self.file("other.onnx")
        onnx.save(as_initializers(m, set(values)), plain)
        onnx.save(m, self.model)
        self.x = noise(8, 1, 4, 4) + 2
        np.save(self.file("x.npy"), self.x)
        np.save(self.file("t.npy"), noise(8, 2, 4, 4))
        self.assertEqual({n for n, i in self.initializers().items() if i["trainable"]}, set(values) - {"m", "v"})
        got, want = self.train(), self.train(model=plain, out=other)
        self.assertEqual(got["steps"], want["steps"])
        trained = {n.output[0]: numpy_helper.to_array(data(n)) for n in onnx.load(self.out).graph.node
                   if n.op_type == "Constant"}
        for t in onnx.load(other).graph.initializer:
            np.testing.assert_array_equal(trained[t.name], numpy_helper.to_array(t), err_msg=t.name)
            self.assertTrue((trained[t.name] != values[t.name]).any(), t.name)
        np.testing.assert_array_equal(self.same_as_onnxruntime(self.out), self.same_as_onnxruntime(other))
        _, said, _ = call("inspect", self.model)
        self.assertIn("single numbers: three, half, four", said)
        _, said, _ = call("train", self.model, "--data", self.file("x.npy"), "--target", self.file("t.npy"), "--loss",
                          "mse", "--steps", 1, "-o", self.out)
        self.assertIn("trains 8 tensors (17 numbers), updates 2 running statistics\n", said)
        self.assertIn("constants of formulas are not trained: 3 single numbers ('three', ...)", said)

    def test_transposed_copies_inside(self):
        """A copy in a function or a branch follows what it is a copy of, which may be inside as well."""
        node, w = helper.make_node, noise(3, 4)
        for inside in ("function", "branch", "both"):
            product = [constant("wt", w.T.copy()), node("MatMul", ["h", "wt"], ["r"])]
            head = helper.make_function("my", "Head", ["h"], ["r"], product, [helper.make_opsetid("", 17)])
            first = helper.make_function("my", "First", ["h"], ["r"], [
                constant("w", w), node("MatMul", ["h", "w"], ["r"])], [helper.make_opsetid("", 17)])
            layer = [node("First", ["x"], ["g"], domain="my")] if inside == "both" else [
                constant("w", w), node("MatMul", ["x", "w"], ["g"])]
            call = [node("Head", ["h"], ["y"], domain="my")] if inside != "branch" else [
                constant("yes", np.array(True)), node(
                    "If", ["yes"], ["y"], name="if", then_branch=helper.make_graph(product, "t", [], [info("r")]),
                    else_branch=helper.make_graph([node("Identity", ["x"], ["z"])], "e", [], [info("z")]))]
            graph = helper.make_graph(layer + [node("Tanh", ["g"], ["h"])] + call, "g", [info("x", "N", 3)],
                                      [info("y", "N", 3)])
            opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
            with self.subTest(inside):
                self.save(helper.make_model(graph, opset_imports=opsets, functions=[head, first], ir_version=8), 4, 3,
                          results=3)
                got = self.train()
                self.assertEqual((len(got["tied"]), len(got["trained"])), (1, 1), got["tied"])
                t = onnx.load(self.out)
                copy = body(t.graph.node[-1], "then_branch").node[0] if inside == "branch" else t.functions[0].node[0]
                master = t.functions[1].node[0] if inside == "both" else t.graph.node[0]
                copy, master = (numpy_helper.to_array(data(n)) for n in (copy, master))
                np.testing.assert_array_equal(copy.T, master)
                self.assertTrue((master != w).any())
                self.same_as_onnxruntime(self.out)

    def test_equal_ones_are_merged_like_initializers(self):
        node = helper.make_node
        graph = helper.make_graph([
            constant("zero", np.zeros(3, np.float32)), constant("w", noise(3, 3)), constant("v", noise(3, 3)),
            node("Gemm", ["x", "w", "zero"], ["h"]), node("Tanh", ["h"], ["t"]), node("Gemm", ["t", "v", "zero"], ["y"])],
            "g", [info("x", "N", 3)], [info("y", "N", 3)])
        self.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), 4, 3, results=3)
        self.assertIn("merged_initializer", [t["kind"] for t in report("inspect", self.model)["traps"]])
        self.train("--untie")
        t = onnx.load(self.out)
        self.assertEqual([i.name for i in t.graph.initializer], ["zero_untied_1"])
        self.assertEqual([n.output[0] for n in t.graph.node if n.op_type == "Constant"], ["zero", "w", "v"])
        self.same_as_onnxruntime(self.out)

    def test_external_data(self):
        m = paddle(11)
        onnx.save(m, self.model, save_as_external_data=True, convert_attribute=True, location="m.data", size_threshold=64)
        np.save(self.file("x.npy"), noise(4, 3, 8, 8))
        np.save(self.file("t.npy"), noise(4, 6))
        self.train()
        old, new = onnx.load(self.model), onnx.load(self.out)
        self.assertTrue(os.path.exists(self.out + ".data"))
        for a, b in zip(old.graph.node, new.graph.node):
            if a.op_type == "Constant" and a.output[0] in ("conv_w", "fc_w"):
                self.assertTrue((numpy_helper.to_array(a.attribute[0].t) != numpy_helper.to_array(b.attribute[0].t)).all())

    def test_rewritten(self):
        for m, shape, results in ((paddle(13), (4, 3, 8, 8), 6), (nested(np.float32, np.float32), (4, 4), 3)):
            self.save(m, *shape, results=results)
            before = self.same_as_onnxruntime(self.model)
            inverse, again, trained = self.file("inv.onnx"), self.file("again.onnx"), self.file("trained.onnx")
            dims = ("--dim", "H=8", "--dim", "W=8") if results == 6 else ()
            report("rewrite", self.model, "-o", inverse, *dims)
            onnx.checker.check_model(inverse)
            np.testing.assert_array_equal(self.same_as_onnxruntime(inverse), before)
            self.assertEqual(set(self.initializers()), {n for n in self.initializers(inverse) if not n.endswith("_inv")})
            report("rewrite", inverse, "-o", again, *dims)
            self.assertEqual(read(inverse), read(again))
            loss = self.train("--memory", "store")["loss"]
            self.assertEqual(self.train("--memory", "store", model=inverse, out=trained)["loss"], loss)
            np.testing.assert_array_equal(self.same_as_onnxruntime(trained), self.same_as_onnxruntime(self.out))
            values = {i.name: numpy_helper.to_array(i) for i in onnx.load(trained).graph.initializer}
            made = [n for n in values if n.endswith("_inv")]
            self.assertTrue(made)
            if results == 3: # the branch, which a function may hold now, and the inverse that was made anew
                w = onnx.load(trained)
                nodes = [*w.graph.node, *(n for f in w.functions for n in f.node)]
                of = numpy_helper.to_array(data(body(next(n for n in nodes if n.op_type == "If"), "then_branch").node[0]))
                got = values["choice/then_branch/w_inv"]
                self.assertLess(min(abs(of @ v - np.eye(4)).max() for v in (got, got.T)), 1e-3)


if __name__ == "__main__":
    unittest.main()
