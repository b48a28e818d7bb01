# SPDX-License-Identifier: Apache-2.0
"""A new head (`--head`): the last weight begins anew with another number of classes. What is written is checked by
onnx.checker, run by onnxruntime, and trained as numpy says; what cannot be is refused with its node."""
import os
import unittest
import unittest.mock

import numpy as np
import onnx
import onnxruntime
from common import InFolder, call, model, report
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization

RNG = np.random.default_rng(5)
F = TensorProto.FLOAT


def weight(name, *shape, scale=0.3):
    return numpy_helper.from_array((RNG.standard_normal(shape) * scale).astype(np.float32), name)


def constant(name, value, dtype):
    return numpy_helper.from_array(np.array(value, dtype), name)


def node(op, inputs, outputs, name=None, **more):
    return helper.make_node(op, inputs.split(), outputs.split(), name=name, **more)


def save(path, nodes, tensors, x, y, opset=17, infos=(), more=(), listed=False):
    """One input x and outputs y, given by their shapes behind the batch; axis 0 is open. `listed`: initializers are inputs."""
    inputs = [helper.make_tensor_value_info("x", F, ["N", *x])]
    if listed:
        inputs += [helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in tensors]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info(n, t, ["N", *s]) for n, t, s in y], tensors,
                              value_info=[helper.make_tensor_value_info(n, F, ["N", *s]) for n, s in infos])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *more], ir_version=3 if listed else 8), path)


def tensors(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


class Head(InFolder):
    classes, rows = 3, 12

    def feed(self, *shape):
        np.save(self.at("in.npy"), RNG.standard_normal((self.rows, *shape)).astype(np.float32))
        np.save(self.at("label.npy"), RNG.integers(0, self.classes, self.rows))

    def train(self, *more, head=None, out="out.onnx", source="m.onnx"):
        return report("train", self.at(source), "--data", self.at("in.npy"), "--target", self.at("label.npy"), "--loss",
                      "cross_entropy", "--batch", self.rows, "--deterministic", "-o", self.at(out), "--head",
                      head or self.classes, *more)

    def refused(self, *more, head=None):
        status, _, err = call("train", self.at("m.onnx"), "--data", self.at("in.npy"), "--target", self.at("label.npy"), "--loss",
                              "cross_entropy", "-o", self.at("no.onnx"), "--steps", 1, "--head", head or self.classes, *more)
        self.assertNotEqual(status, 0)
        return err

    def ort(self, path="out.onnx", output=0):
        # As the file says: processors without VNNI saturate in onnxruntime's fused products of 8 bits otherwise.
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.x64quantprecision", "1")
        session = onnxruntime.InferenceSession(self.at(path), options, providers=["CPUExecutionProvider"])
        return session.run(None, {"x": np.load(self.at("in.npy"))})[output]

    def check(self, changed, *more, fan_in, head=None, output=0, evaluates=True):
        """At a rate of 0 nothing but the head is new; it is drawn as it should be; the file is whole, and evaluates as
        onnxruntime computes. changed: names and shapes of what is new."""
        self.train("--steps", 1, "--lr", 0, *more, head=head, out="start.onnx")
        self.train("--steps", 3, "--lr", 0.1, *more, head=head)
        onnx.checker.check_model(self.at("out.onnx"), full_check=True)
        old, new = tensors(self.at("m.onnx")), tensors(self.at("start.onnx"))
        for name, shape in changed.items():
            self.assertEqual(new[name].shape, shape, name)
            self.assertEqual(new[name].dtype, np.float32)
            self.assertLessEqual(np.abs(new[name]).max(), 1 / np.sqrt(fan_in), name)
            self.assertGreater(np.abs(new[name]).max(), 0.3 / np.sqrt(fan_in), name)
            self.assertGreater(np.abs(tensors(self.at("out.onnx"))[name] - new[name]).max(), 0, name)
        for name in old.keys() & new.keys() - changed.keys():
            np.testing.assert_array_equal(old[name], new[name], name)
        result = self.ort(output=output)
        self.assertEqual(result.shape, (self.rows, self.classes))
        if evaluates:
            logits = result.reshape(self.rows, self.classes)
            label = np.load(self.at("label.npy"))
            expected = np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(self.rows), label])
            said = report("eval", self.at("out.onnx"), "--data", self.at("in.npy"), "--target", self.at("label.npy"), "--loss",
                          "cross_entropy", "--batch", self.rows)
            self.assertAlmostEqual(said["loss"], expected, places=4)
        return new


class Products(Head):
    def hidden(self, name="W0"):
        return [node("MatMul", f"x {name}", "h0"), node("Relu", "h0", "h")], [weight(name, 8, 16)]

    def write(self, nodes, more, y=(("y", F, [5]),), **others):
        first, w = self.hidden()
        save(self.at("m.onnx"), first + nodes, w + more, [8], y, **others)
        self.feed(8)

    def test_gemm(self):
        for opset in (9, 13, 21):
            for trans in (0, 1):
                shape = (lambda n: (n, 16)) if trans else (lambda n: (16, n))
                self.write([node("Gemm", "h W b", "y", "fc", transB=trans)], [weight("W", *shape(5)), weight("b", 5)], opset=opset)
                self.check({"W": shape(3), "b": (3,)}, fan_in=16)
        out = onnx.load(self.at("out.onnx")).graph.output[0].type.tensor_type.shape
        self.assertEqual([d.dim_param or d.dim_value for d in out.dim], ["N", 3])

    def test_first_step(self):
        """The gradient of head and body, by numpy."""
        self.write([node("Gemm", "h W b", "y", "fc", transB=1)], [weight("W", 5, 16), weight("b", 5)])
        self.train("--steps", 1, "--lr", 0, out="start.onnx")
        self.train("--steps", 1, "--lr", 0.5)
        a, b = ({k: v.astype(np.float64) for k, v in tensors(self.at(f)).items()} for f in ("start.onnx", "out.onnx"))
        x, label = np.load(self.at("in.npy")).astype(np.float64), np.load(self.at("label.npy"))
        h0 = x @ a["W0"]
        h = np.maximum(h0, 0)
        z = h @ a["W"].T + a["b"]
        p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
        p[np.arange(self.rows), label] -= 1
        p /= self.rows
        for name, grad in (("W", p.T @ h), ("b", p.sum(0)), ("W0", x.T @ (p @ a["W"] * (h0 > 0)))):
            np.testing.assert_allclose(b[name], a[name] - 0.5 * grad, atol=1e-6, err_msg=name)

    def test_without_bias(self):
        self.write([node("MatMul", "h W", "y", "fc")], [weight("W", 16, 5)])
        self.check({"W": (16, 3)}, fan_in=16)

    def test_sum_behind(self):
        for order in ("z b", "b z"):
            self.write([node("MatMul", "h W", "z", "fc"), node("Add", order, "y")], [weight("W", 16, 5), weight("b", 5)],
                       infos=[("z", [5])])
            self.check({"W": (16, 3), "b": (3,)}, fan_in=16)
        self.assertNotIn("z", [v.name for v in onnx.load(self.at("out.onnx")).graph.value_info])

    def test_one_hot(self):
        """How many classes the largest one is said among follows."""
        for depth in (constant("d", 5, np.int64), constant("d", [5], np.int64)):
            self.write([node("MatMul", "h W", "y", "fc"), node("ArgMax", "y", "k", axis=1, keepdims=0), node("OneHot", "k d v", "z")],
                       [weight("W", 16, 5), depth, constant("v", [0, 1], np.float32)], y=(("y", F, [5]), ("z", F, [5])))
            self.check({"W": (16, 3)}, "--loss-output", "y", fan_in=16, evaluates=False)
            self.assertEqual(self.ort(output=1).shape, (self.rows, 3))

    def test_transposed(self):
        """As some exporters leave it: the weight goes through Transpose and Identity."""
        self.write([node("Transpose", "W", "Wt"), node("Identity", "Wt", "Wi"), node("MatMul", "h Wi", "z", "fc"),
                    node("Add", "z b", "y")], [weight("W", 5, 16), weight("b", 1, 5)])
        self.check({"W": (3, 16), "b": (1, 3)}, fan_in=16)

    def test_listed_and_constant(self):
        """Initializers that are listed as inputs; weights in Constant nodes."""
        self.write([node("Gemm", "h W b", "y", "fc")], [weight("W", 16, 5), weight("b", 5)], opset=8, listed=True)
        self.check({"W": (16, 3), "b": (3,)}, fan_in=16)
        self.write([helper.make_node("Constant", [], ["W"], value=weight("", 16, 5)), node("MatMul", "h W", "z", "fc"),
                    helper.make_node("Constant", [], ["b"], value=weight("", 5)), node("Add", "z b", "y")], [])
        self.check({"fc.weight": (16, 3), "fc.bias": (3,)}, fan_in=16)
        self.assertEqual([n.op_type for n in onnx.load(self.at("out.onnx")).graph.node], ["MatMul", "Relu", "MatMul", "Add"])

    def test_behind_it(self):
        """Softmax, and shapes with the number of classes; the other output follows."""
        self.write([node("Gemm", "h W b", "z", "fc"), node("Reshape", "z s", "r"), node("Softmax", "r", "y", axis=1),
                    node("ArgMax", "y", "top", axis=1, keepdims=0)],
                   [weight("W", 16, 5), weight("b", 5), constant("s", [-1, 5], np.int64)],
                   y=(("y", F, [5]), ("top", TensorProto.INT64, [])))
        self.check({"W": (16, 3), "b": (3,)}, fan_in=16, evaluates=False)
        np.testing.assert_array_equal(self.ort(output=1), self.ort().argmax(1))
        first = [node("Shape", "x", "shape"), node("Gather", "shape zero", "rows"), node("Concat", "rows five", "s", axis=0)]
        self.write([node("Gemm", "h W b", "z", "fc"), *first, node("Reshape", "z s", "y")],
                   [weight("W", 16, 5), weight("b", 5), constant("zero", [0], np.int64), constant("five", [5], np.int64)])
        self.check({"W": (16, 3), "b": (3,)}, fan_in=16)

    def test_behind_a_softmax_spelled_out(self):
        """As exporters of TensorFlow and JAX have it."""
        more = [weight("W", 16, 5), weight("b", 5), constant("one", [1], np.int64), constant("low", [-np.inf], np.float32)]
        least = [node("Gemm", "h W b", "z", "fc"), node("ReduceMax", "z", "m", axes=[1], keepdims=1)]
        most = [node("Exp", "d", "e"), node("ReduceSum", "e one", "s", keepdims=1)]
        self.write([*least, node("Sub", "z m", "d"), *most, node("Div", "e s", "y")], more[:3])
        self.check({"W": (16, 3), "b": (3,)}, fan_in=16, evaluates=False)
        shape = [node("Shape", "x", "shape"), node("Gather", "shape zero", "rows"), node("Concat", "rows one", "place", axis=0)]
        self.write([*shape, *least, node("Max", "low m", "t"), node("Expand", "t place", "w"), node("Sub", "z w", "d"), *most,
                    node("Reshape", "s place", "r"), node("Expand", "r place", "v"), node("Div", "e v", "y")],
                   [*more, constant("zero", [0], np.int64)])
        self.check({"W": (16, 3), "b": (3,)}, fan_in=16, evaluates=False)

    def test_shared(self):
        """A weight that others read, too, stays with them."""
        self.write([node("Gemm", "h W b", "z", "first"), node("Tanh", "z", "t"), node("Gemm", "t W b", "y", "last")],
                   [weight("W", 16, 16), weight("b", 16)], y=(("y", F, [16]),))
        new = self.check({"last.weight": (16, 3), "last.bias": (3,)}, fan_in=16)
        self.assertIn("W", new)

    def test_named(self):
        y = (("a", F, [5]), ("b", F, [4]))
        self.write([node("Gemm", "h W b1", "a", "one"), node("Gemm", "h V b2", "b", "two")],
                   [weight("W", 16, 5), weight("b1", 5), weight("V", 16, 4), weight("b2", 4)], y=y)
        self.assertIn("2 floating-point outputs", self.refused())
        self.assertIn("did you mean 'two'", self.refused(head="twoo=3"))
        self.check({"V": (16, 3), "b2": (3,)}, "--loss-output", "b", head="two=3", fan_in=16, output=1, evaluates=False)
        self.check({"W": (16, 3), "b1": (3,)}, "--loss-output", "a", fan_in=16, evaluates=False)

    def test_same_number(self):
        """As many classes as before: it begins anew all the same. Of one class."""
        self.write([node("Gemm", "h W b", "y", "fc")], [weight("W", 16, 3), weight("b", 3)], y=(("y", F, [3]),))
        before = tensors(self.at("m.onnx"))["W"]
        self.assertGreater(np.abs(self.check({"W": (16, 3), "b": (3,)}, fan_in=16)["W"] - before).max(), 0)
        self.write([node("MatMul", "h W", "z", "fc"), node("Add", "z b", "y")], [weight("W", 16, 1), weight("b", 1)],
                   y=(("y", F, [1]),))
        self.check({"W": (16, 3), "b": (3,)}, fan_in=16)

    def test_seed(self):
        self.write([node("Gemm", "h W b", "y", "fc")], [weight("W", 16, 5), weight("b", 5)])
        w = []
        for seed in (1, 1, 2):
            self.train("--steps", 1, "--lr", 0, "--seed", seed)
            w.append(tensors(self.at("out.onnx"))["W"])
        np.testing.assert_array_equal(w[0], w[1])
        self.assertGreater(np.abs(w[0] - w[2]).max(), 0)

    def test_beside_others(self):
        """The head alone; beside adapters, of which it gets none; resumed."""
        self.write([node("Gemm", "h W b", "y", "fc")], [weight("W", 16, 5), weight("b", 5)])
        self.check({"W": (16, 3), "b": (3,)}, "--train-only", "W", "--train-only", "b", fan_in=16)
        np.testing.assert_array_equal(tensors(self.at("m.onnx"))["W0"], tensors(self.at("out.onnx"))["W0"])
        self.check({"W": (16, 3), "b": (3,)}, "--lora", "*", "--rank", 2, fan_in=16)
        new = tensors(self.at("out.onnx"))
        np.testing.assert_array_equal(tensors(self.at("m.onnx"))["W0"], new["W0"])
        self.assertEqual(sorted(n for n in new if "lora" in n), ["W0.lora_A", "W0.lora_B", "W0.lora_scale"])
        self.train("--steps", 4, "--optimizer", "adam")
        self.train("--steps", 2, "--optimizer", "adam", "--checkpoint", self.at("c"), out="half.onnx")
        self.train("--steps", 4, "--optimizer", "adam", "--checkpoint", self.at("c"), "--resume", out="resumed.onnx")
        for name, value in tensors(self.at("out.onnx")).items():
            np.testing.assert_array_equal(value, tensors(self.at("resumed.onnx"))[name], name)

    def test_refused(self):
        w = [weight("W", 16, 5), weight("b", 5)]
        self.write([node("Gemm", "h W b", "z", "fc"), node("Mul", "z t", "y", "temper")], [*w, weight("t", 5)])
        self.assertIn("node 'temper' (Mul) after the head 'fc' computes with 't' [5]", self.refused())
        self.write([node("Gemm", "h W b", "z", "fc"), node("MatMul", "h W2", "u", "other"), node("Concat", "z u", "y", "join", axis=1)],
                   [*w, weight("W2", 16, 5)], y=(("y", F, [10]),))
        self.assertIn("the search ends at node 'join' (Concat)", self.refused())
        self.write([node("Reshape", "h s", "r"), node("Softmax", "r", "y")], [constant("s", [-1, 16], np.int64)],
                   y=(("y", F, [16]),))
        self.assertIn("node", self.refused(head="Relu=3"))
        self.write([node("Gemm", "h W b", "z", "fc"), node("Reshape", "z s", "y", "square")],
                   [weight("W", 16, 25), weight("b", 25), constant("s", [-1, 25, 25], np.int64)], y=(("y", F, [25, 25]),))
        self.assertIn("'square' (Reshape) after the head has 25 twice", self.refused())
        # the way back from a sum of h and h W is neither to W nor past it, to the layer that gives h
        for last, more in ((node("MatMul", "h W2", "u", "last"), weight("W2", 16, 16)),
                           (node("Einsum", "h W2", "u", "last", equation="ni,oi->no"), weight("W2", 16, 16))):
            self.write([last, node("Add", "h u", "y", "residual")], [more], y=(("y", F, [16]),))
            self.assertIn("the search ends at node 'residual' (Add)", self.refused())
        # names of the former classes, as files of scikit-learn have them behind the probabilities
        def named(last, *names):
            first, hidden = self.hidden()
            nodes = [*first, node("Gemm", "h W b", "z", "fc"), node("Softmax", "z", "y"), node("ArgMax", "y", "k", "most", axis=1, keepdims=0), last]
            label = helper.make_tensor_value_info("label", TensorProto.STRING, None)
            save(self.at("m.onnx"), nodes, [*hidden, *w, *names], [8], (("y", F, [5]),), more=[helper.make_opsetid("ai.onnx.ml", 1)])
            model = onnx.load(self.at("m.onnx"))
            model.graph.output.append(label)
            onnx.save(model, self.at("m.onnx"))

        names = helper.make_tensor("names", TensorProto.STRING, [5], [b"a", b"b", b"c", b"d", b"e"])
        for last, more in ((node("ArrayFeatureExtractor", "names k", "label", "look", domain="ai.onnx.ml"), [names]),
                           (node("Gather", "names k", "label", "look"), [names]), (node("GatherND", "names k", "label", "look"), [names]),
                           (node("LabelEncoder", "k", "label", "look", domain="ai.onnx.ml", classes_strings=list("abcde")), []),
                           (node("ZipMap", "y", "label", "look", domain="ai.onnx.ml", classlabels_int64s=[1, 2, 3, 4, 5]), [])):
            named(last, *more)
            self.assertIn(f"node 'look' ({last.op_type}) after the head 'fc' maps to the old 5 class names", self.refused("--loss-output", "y"))
        self.train("--loss-output", "y", head=5)  # as many as before: the names stay
        for wrong in ("0", "x", "=3", "fc=", "3.5"):
            self.assertIn("--head", self.refused(head=wrong))


class Others(Head):
    def test_convolution(self):
        """Of 1 x 1, with what squeezes its axes behind it (SqueezeNet); the bias apart."""
        self.feed(4, 6, 6)
        w = [weight("W0", 8, 4, 3, 3), weight("W", 5, 8, 1, 1)]
        first = [node("Conv", "x W0", "h0"), node("Relu", "h0", "h")]
        save(self.at("m.onnx"), [*first, node("Conv", "h W b", "z", "cls"), node("Relu", "z", "r"),
                                 node("GlobalAveragePool", "r", "p"), node("Flatten", "p", "y")],
             [*w, weight("b", 5)], [4, 6, 6], [("y", F, [5])], infos=[("z", [5, 4, 4]), ("p", [5, 1, 1]), ("h", [8, 4, 4])])
        self.check({"W": (3, 8, 1, 1), "b": (3,)}, fan_in=8)
        self.assertEqual([v.name for v in onnx.load(self.at("out.onnx")).graph.value_info], ["h"])
        save(self.at("m.onnx"), [*first, node("GlobalAveragePool", "h", "p"), node("Conv", "p W", "z", "cls"),
                                 node("Add", "z b", "s"), node("Reshape", "s shape", "y")],
             [*w, weight("b", 5, 1, 1), constant("shape", [0, 5], np.int64)], [4, 6, 6], [("y", F, [5])])
        self.check({"W": (3, 8, 1, 1), "b": (3, 1, 1)}, fan_in=8)

    def quantized(self, name, axis, *shape):
        values = RNG.integers(-100, 100, shape).astype(np.int8)
        return ([numpy_helper.from_array(values, f"{name}_q"),
                 numpy_helper.from_array(np.full(shape[axis], 0.01, np.float32), f"{name}_s"),
                 numpy_helper.from_array(np.zeros(shape[axis], np.int8), f"{name}_z")],
                node("DequantizeLinear", f"{name}_q {name}_s {name}_z", name, axis=axis))

    def test_resized(self):
        """Of a segmentation: what enlarges its maps, as many scales as there were classes, or sizes with their number."""
        for sizes in (False, True):
            behind = ["l", "", "", "sizes"] if sizes else ["l", "", "scales"]
            nodes = [helper.make_node("Conv", ["x", "w", "b"], ["l"], name="head"),
                     helper.make_node("Resize", behind, ["y"], mode="linear")]
            held = [weight("w", 4, 3, 1, 1), weight("b", 4),
                    numpy_helper.from_array(np.array([6, 4, 8, 8]), "sizes") if sizes else
                    numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")]
            graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [6, 3, 4, 4])],
                                      [helper.make_tensor_value_info("y", TensorProto.FLOAT, [6, 4, 8, 8])], held)
            onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), self.at("m.onnx"))
            np.save(self.at("in.npy"), RNG.standard_normal((6, 3, 4, 4)).astype(np.float32))
            np.save(self.at("label.npy"), RNG.integers(0, 7, (6, 8, 8)))
            report("train", self.at("m.onnx"), "--data", self.at("in.npy"), "--target", self.at("label.npy"), "--loss",
                   "cross_entropy", "--batch", 6, "--head", 7, "-o", self.at("out.onnx"))
            onnx.checker.check_model(self.at("out.onnx"), full_check=True)
            session = onnxruntime.InferenceSession(self.at("out.onnx"), providers=["CPUExecutionProvider"])
            self.assertEqual(session.run(None, {"x": np.load(self.at("in.npy"))})[0].shape, (6, 7, 8, 8))

    def test_quantized(self):
        """Behind DequantizeLinear: a plain head, without the quantizers behind it, on a base that stays quantized."""
        self.feed(8)
        t0, n0 = self.quantized("W0", 1, 8, 16)
        t1, n1 = self.quantized("W", 0, 5, 16)
        scale = [constant("s", 0.05, np.float32), constant("z", 0, np.int8), constant("b_q", [3] * 5, np.int32),
                 constant("b_s", 0.001, np.float32)]
        save(self.at("m.onnx"), [n0, n1, node("MatMul", "x W0", "h0"), node("Relu", "h0", "h"), node("DequantizeLinear", "b_q b_s", "b"),
                                 node("Gemm", "h W b", "f", "fc", transB=1), node("QuantizeLinear", "f s z", "q"),
                                 node("DequantizeLinear", "q s z", "y")], t0 + t1 + scale, [8], [("y", F, [5])])
        new = self.check({"fc.weight": (3, 16), "fc.bias": (3,)}, fan_in=16)
        self.assertEqual(sorted(new), ["W0_q", "W0_s", "W0_z", "fc.bias", "fc.weight"])
        self.assertEqual([n.op_type for n in onnx.load(self.at("out.onnx")).graph.node],
                         ["DequantizeLinear", "MatMul", "Relu", "Gemm"])

    def quantized_by_tools(self, form, kind):
        """What onnxruntime's quantizers make of a network with that head; the name of the head's node."""
        nodes = [node("Conv", "x c", "h0", "conv", kernel_shape=[3, 3]), node("Relu", "h0", "h", "relu"),
                 node("GlobalAveragePool", "h", "p", "pool")]
        held = [weight("c", 8, 3, 3, 3)]
        if form == "Conv":
            nodes += [node("Conv", "p W b", "f", "fc", kernel_shape=[1, 1]), node("Flatten", "f", "y", "flat")]
            held += [weight("W", 10, 8, 1, 1), weight("b", 10)]
        else:
            nodes += [node("Flatten", "p", "f", "flat"), *{
                "Gemm": [node("Gemm", "f W b", "y", "fc", transB=1)],
                "MatMul": [node("MatMul", "f W", "m", "fc"), node("Add", "m b", "y", "sum")],
                "Softmax": [node("Gemm", "f W b", "m", "fc", transB=1), node("Softmax", "m", "y", "soft")]}[form]]
            held += [weight("W", *((8, 10) if form == "MatMul" else (10, 8))), weight("b", 10)]
        save(self.at("whole.onnx"), nodes, held, [3, 6, 6], [("y", F, [10])])
        np.save(self.at("in.npy"), RNG.standard_normal((self.rows, 3, 6, 6)).astype(np.float32))
        np.save(self.at("label.npy"), RNG.integers(0, self.classes, self.rows))
        if kind == "dynamic":
            quantization.quantize_dynamic(self.at("whole.onnx"), self.at("m.onnx"))
            onnx.save(onnx.shape_inference.infer_shapes(onnx.load(self.at("m.onnx"))), self.at("m.onnx"))
        else:
            reader = unittest.mock.Mock(spec=["get_next"])
            reader.get_next.side_effect = [{"x": np.load(self.at("in.npy"))}, None]
            quantization.quantize_static(self.at("whole.onnx"), self.at("m.onnx"), reader, quant_format=getattr(quantization.QuantFormat, kind))
        return next(n.name for n in onnx.load(self.at("m.onnx")).graph.node
                    if "fc" in n.name and n.op_type in ("Conv", "Gemm", "MatMul", "QLinearConv", "QGemm", "QLinearMatMul",
                                                        "MatMulInteger", "ConvInteger"))

    def test_quantized_by_tools(self):
        """In onnxruntime's three forms: the head is a plain one, and nothing quantizes behind it."""
        shapes = {"Gemm": (3, 8), "MatMul": (8, 3), "Conv": (3, 8, 1, 1), "Softmax": (3, 8)}
        for form, shape in shapes.items():
            for kind in ("QOperator", "QDQ", "dynamic"):
                with self.subTest(form=form, kind=kind):
                    head = self.quantized_by_tools(form, kind)
                    if kind == "dynamic" and form != "Conv":
                        shape = (8, 3) # onnxruntime makes a product of a Gemm
                    bias = "b" if kind == "dynamic" else f"{head}.bias"
                    self.check({f"{head}.weight": shape, bias: (3,)}, fan_in=8, evaluates=form != "Softmax")
                    self.train("--steps", 1, "--lr", 0, head=f"{head}=3", out="named.onnx")
                    for name, values in tensors(self.at("start.onnx")).items():
                        np.testing.assert_array_equal(values, tensors(self.at("named.onnx"))[name])
                    ops = [n.op_type for n in onnx.load(self.at("out.onnx")).graph.node]
                    at = max(i for i, op in enumerate(ops) if op in ("Gemm", "MatMul", "Conv"))
                    self.assertLessEqual(set(ops[at:]), {"Gemm", "MatMul", "Conv", "Add", "Flatten", "Softmax"})

    def test_quantized_products(self):
        """What is given must be dequantized again, and what is added be a bias."""
        self.feed(8)
        held = [constant("s", 0.05, np.float32), constant("z", 0, np.int8), constant("W", RNG.integers(-60, 60, (8, 5)), np.int8),
                constant("scalar", 3, np.int8)]
        domain, first = "com.microsoft", node("QuantizeLinear", "x s z", "q")
        product = helper.make_node("QGemm", ["q", "s", "z", "W", "s", "z", "", "s", "z"], ["p"], "fc", domain=domain)
        write = lambda nodes: save(self.at("m.onnx"), [first, product, *nodes], held, [8], [("y", F, [5])],  # noqa: E731
                                   more=[helper.make_opsetid(domain, 1)])
        write([node("DequantizeLinear", "p s z", "y"), node("DequantizeLinear", "p s z", "other")])
        self.assertIn("the output of the head 'fc' is quantized, but no DequantizeLinear follows", self.refused(head="fc=3"))
        write([helper.make_node("QLinearAdd", "p s z scalar s z s z".split(), ["a"], "plus", domain=domain),
               node("DequantizeLinear", "a s z", "y")])
        self.assertIn("node 'plus' (QLinearAdd) after the head 'fc' does not add a bias of 5 classes", self.refused())
        write([helper.make_node("QLinearMul", "p s z scalar s z s z".split(), ["a"], "times", domain=domain),
               node("DequantizeLinear", "a s z", "y")])
        self.assertIn("the search ends at node 'times' (QLinearMul)", self.refused())
        self.assertIn("'times' (QLinearMul) is not a head. A head is a Gemm, MatMul", self.refused(head="times=3"))
        self.assertIn("node 'times' (QLinearMul) after the head 'fc' needs quantized tensors", self.refused(head="fc=3"))

    def test_in_blocks(self):
        self.feed(32)
        for bias in (False, True):
            t = [weight("W0", 32, 32), numpy_helper.from_array(RNG.integers(0, 255, (5, 2, 8)).astype(np.uint8), "B"),
                 weight("scales", 10), weight("bias", 5)]
            inputs = "h B scales" if not bias else ["h", "B", "scales", "", "", "bias"]
            n = helper.make_node("MatMulNBits", inputs.split() if not bias else inputs, ["y"], "fc", domain="com.microsoft", K=32, N=5,
                                 bits=4, block_size=16)
            save(self.at("m.onnx"), [node("MatMul", "x W0", "h0"), node("Relu", "h0", "h"), n], t[:3] + t[3:] * bias, [32],
                 [("y", F, [5])], more=[helper.make_opsetid("com.microsoft", 1)])
            new = self.check({"fc.weight": (32, 3), **({"bias": (3,)} if bias else {})}, fan_in=32)
            self.assertNotIn("B", new)

    def test_files(self):
        """Of exporters."""
        for name in ("plain_lenet_ts17", "revnet8_evalbn_ts17", "linear_tall_dy18"):
            path = model(os.path.join(name, "model.onnx"))
            source = onnx.load(path)
            shape = [d.dim_value for d in source.graph.input[0].type.tensor_type.shape.dim]
            x = RNG.standard_normal(shape).astype(np.float32)
            np.save(self.at("in.npy"), x)
            np.save(self.at("label.npy"), RNG.integers(0, 3, shape[0]))
            said = report("train", path, "--data", self.at("in.npy"), "--target", self.at("label.npy"), "--loss", "cross_entropy",
                          "--head", 3, "--steps", 2, "-o", self.at("out.onnx"))
            onnx.checker.check_model(self.at("out.onnx"), full_check=True)
            session = onnxruntime.InferenceSession(self.at("out.onnx"), providers=["CPUExecutionProvider"])
            result = session.run(None, {source.graph.input[0].name: x})[0]
            self.assertEqual(result.shape, (shape[0], 3), (name, said["loss"]))


if __name__ == "__main__":
    unittest.main()
