# SPDX-License-Identifier: Apache-2.0
"""`adapter`: adapters merged into their weights, by numpy in float64; taken out into a file that onnxruntime reads, with the
model that takes them; and put back."""
import os
import unittest

import numpy as np
import onnx
import onnxruntime
from common import call, model, report
from onnx import TensorProto, helper, numpy_helper
from test_lora import Adapters, quantized, save, tensors, weight

RNG = np.random.default_rng(3)


def delta(new, name, group=1):
    """scale P Q of a weight of the written model, in float64."""
    a, b, s = (new[f"{name}.lora_{p}"].astype(np.float64) for p in ("A", "B", "scale"))
    w = new[name]
    if w.ndim == 2:
        return s * a @ b if a.shape[1] == b.shape[0] and a.shape[0] == w.shape[0] else s * b @ a
    p, q = b, a
    rank, out = p.shape[1], w.shape[0] // group
    parts = [s * p[g * out:(g + 1) * out].reshape(out, rank) @ q[g * rank:(g + 1) * rank].reshape(rank, -1) for g in range(group)]
    return np.concatenate(parts).reshape(w.shape)


ACTIVATIONS = {"Tanh": {}, "LeakyRelu": {"alpha": 0.2}}


def spelled_out(model):
    """The model in ONNX's own operators: FusedGemm and FusedConv, and Attention of two heads without a mask."""
    def put(op, ins, out, **attributes):
        nodes.append(helper.make_node(op, ins, [out], **attributes))
        return out

    def hold(name, *values):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(values if len(values) > 1 else values[0]), name))
        return name

    nodes = []
    for n in model.graph.node:
        if n.domain != "com.microsoft":
            nodes.append(n)
        elif n.op_type == "Attention":
            width = next(t.dims[0] for t in model.graph.initializer if t.name == n.input[2]) // 3
            shape, scale = hold("split_heads", 0, 0, 2, width // 2), hold("scale", (width / 2) ** -0.5)
            put("Add", [put("MatMul", n.input[:2], "xW"), n.input[2]], "qkv")
            nodes.append(helper.make_node("Split", ["qkv"], ["q", "k", "v"], axis=2))
            q, k, v = (put("Transpose", [put("Reshape", [i, shape], i + "4")], i + "t", perm=perm)
                       for i, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])))
            p = put("Softmax", [put("Mul", [put("MatMul", [q, k], "s"), scale], "scaled")], "p", axis=-1)
            put("Reshape", [put("Transpose", [put("MatMul", [p, v], "pv")], "joined", perm=[0, 2, 1, 3]),
                            hold("join_heads", 0, 0, width)], n.output[0])
        else:
            own = {a.name: helper.get_attribute_value(a) for a in n.attribute}
            kind = own.pop("activation").decode()
            plain = {k: v for k, v in own.items() if not k.startswith("activation")}
            put(kind, [put(n.op_type.removeprefix("Fused"), n.input, n.name + ".plain", **plain)], n.output[0], **ACTIVATIONS[kind])
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


class Files(Adapters):
    def adapter(self, *args):
        return report("adapter", *args)

    def with_adapter(self, file, path, x):
        """What onnxruntime gives for the model with the adapter of a file active; and its parameters."""
        session = onnxruntime.InferenceSession(self.at(path), providers=["CPUExecutionProvider"])
        options = onnxruntime.RunOptions()
        adapter = onnxruntime.LoraAdapter()
        adapter.Load(self.at(file))
        options.add_active_adapter(adapter)
        return session.run(None, {"x": x}, options)[0]

    def check(self, rank, *lora, groups=None, atol=1e-5):
        """Trains adapters, and takes them through all that there is."""
        self.train("--lora", *lora, "--rank", rank, "--alpha", 3, "--steps", 3, "--lr", 0.5, "--adapter-out", self.at("t.onnx_adapter"))
        x, new = np.load(self.at("in.npy")), tensors(self.at("out.onnx"))
        y = self.ort()
        self.assertGreater(np.abs(y - self.ort("m.onnx")).max(), 1e-3)
        names = sorted(n[:-len(".lora_A")] for n in new if n.endswith(".lora_A"))
        shown = self.adapter("show", self.at("out.onnx"))["adapters"]
        self.assertEqual(sorted(a["weight"] for a in shown), names)
        for a in shown:
            self.assertEqual((a["rank"], a["scale"]), (rank, np.float32(3 / rank)))
            self.assertEqual(a["A"], list(new[a["weight"] + ".lora_A"].shape))

        # merged: the original graph with other weights
        self.adapter("merge", self.at("out.onnx"), "-o", self.at("merged.onnx"))
        onnx.checker.check_model(self.at("merged.onnx"), full_check=True)
        merged, original = onnx.load(self.at("merged.onnx")), onnx.load(self.at("m.onnx"))
        self.assertEqual(list(merged.graph.node), list(original.graph.node))
        self.assertEqual(list(merged.graph.output), list(original.graph.output))
        old, got = tensors(self.at("m.onnx")), tensors(self.at("merged.onnx"))
        self.assertEqual(sorted(old), sorted(got))
        for name, value in old.items():
            if name in names:
                value = (value.astype(np.float64) + delta(new, name, (groups or {}).get(name, 1))).astype(value.dtype)
            np.testing.assert_array_equal(got[name], value, name)
        np.testing.assert_allclose(self.ort("merged.onnx"), y, atol=atol)
        self.round_trip(names, new, x, y, atol)

        # put back on the original
        self.adapter("merge", self.at("m.onnx"), "--adapter", self.at("a.onnx_adapter"), "-o", self.at("again.onnx"))
        for name, value in got.items():
            np.testing.assert_array_equal(tensors(self.at("again.onnx"))[name], value, name)
        self.adapter("merge", self.at("free.onnx"), "--adapter", self.at("a.onnx_adapter"), "-o", self.at("third.onnx"))
        for name, value in got.items():
            np.testing.assert_array_equal(tensors(self.at("third.onnx"))[name], value, name)

    def round_trip(self, names, new, x, y, atol):
        """Into a file of its own, and into onnxruntime with the model that takes it."""
        self.adapter("extract", self.at("out.onnx"), "-o", self.at("a.onnx_adapter"), "--model-out", self.at("free.onnx"))
        with open(self.at("a.onnx_adapter"), "rb") as a, open(self.at("t.onnx_adapter"), "rb") as t:
            self.assertEqual(a.read(), t.read())
        read = onnxruntime.AdapterFormat.read_adapter(self.at("a.onnx_adapter")).get_parameters()
        self.assertEqual(sorted(read), sorted(f"{n}.lora_{p}" for n in names for p in ("A", "B", "scale")))
        shown = {p["name"]: p for p in self.adapter("show", self.at("a.onnx_adapter"))["parameters"]}
        for name, value in read.items():
            np.testing.assert_array_equal(value.numpy().reshape(new[name].shape), new[name], name)
            self.assertEqual(shown[name]["shape"], list(value.numpy().shape))
            self.assertEqual(shown[name]["bytes"], value.numpy().nbytes)
        onnx.checker.check_model(self.at("free.onnx"), full_check=True)
        np.testing.assert_allclose(self.ort("free.onnx"), self.ort("m.onnx"), atol=atol)
        np.testing.assert_allclose(self.with_adapter("a.onnx_adapter", "free.onnx", x), y, atol=atol)


class Weights(Files):
    def test_products(self):
        """MatMul and Gemm, either side, transposed, shared, with alpha."""
        save(self.at("m.onnx"), [
            helper.make_node("MatMul", ["x", "W1"], ["h1"], name="fc1"), helper.make_node("Tanh", ["h1"], ["t1"]),
            helper.make_node("Gemm", ["t1", "W2", "b2"], ["h2"], name="fc2", transB=1, alpha=0.5), helper.make_node("Tanh", ["h2"], ["t2"]),
            helper.make_node("MatMul", ["t2", "W5"], ["h6"], name="shared1"), helper.make_node("Transpose", ["W5"], ["W5t"], perm=[1, 0]),
            helper.make_node("MatMul", ["h6", "W5t"], ["h8"], name="shared2"), helper.make_node("Transpose", ["h8"], ["h9"], perm=[1, 0]),
            helper.make_node("Gemm", ["W7", "h9", "b7"], ["h12"], name="left", transA=1),
            helper.make_node("Transpose", ["h12"], ["y"], perm=[1, 0]),
        ], [weight("W1", 8, 12), weight("W2", 10, 12), weight("b2", 10), weight("W5", 10, 9), weight("W7", 10, 5), weight("b7", 5, 1)],
            (TensorProto.FLOAT, 8), (5,))
        self.feed(RNG.standard_normal((6, 8)).astype(np.float32), RNG.standard_normal((6, 5)).astype(np.float32))
        self.check(2, "W*")
        self.check(3, "fc1")

    def test_convolutions(self):
        save(self.at("m.onnx"), [helper.make_node("Conv", ["x", "W1"], ["h"], group=3, pads=[1, 1, 1, 1]), helper.make_node("Tanh", ["h"], ["t"]),
                                 helper.make_node("Conv", ["t", "W2", "b2"], ["y"], strides=[2, 2])],
             [weight("W1", 12, 2, 3, 3), weight("W2", 8, 12, 2, 2), weight("b2", 8)], (TensorProto.FLOAT, 6, 6, 6), (8, 3, 3))
        self.feed(RNG.standard_normal((3, 6, 6, 6)).astype(np.float32), RNG.standard_normal((3, 8, 3, 3)).astype(np.float32))
        self.check(2, "W*", groups={"W1": 3})

    def test_in_one(self):
        """Operators that give no plain product: they read the sum of weight and adapter. A sum that is in the file is
        none of these."""
        def node(kind, operands, y, **attributes):
            return helper.make_node(kind, operands, [y], name=y + ".node", domain="com.microsoft", **attributes)

        more = [helper.make_opsetid("com.microsoft", 1)]
        save(self.at("m.onnx"), [node("FusedGemm", ["x", "W1", "b1"], "h", activation="Tanh"),
                                 node("FusedGemm", ["h", "W2", "b2"], "y", activation="LeakyRelu", activation_alpha=0.2, transB=1, alpha=0.5)],
             [weight("W1", 8, 12), weight("b1", 12), weight("W2", 5, 12), weight("b2", 5)], (TensorProto.FLOAT, 8), (5,), more=more)
        self.feed(RNG.standard_normal((6, 8)).astype(np.float32), RNG.standard_normal((6, 5)).astype(np.float32))
        self.check(2, "W*")
        self.check_gradients(3, spelled_out)
        status, _, err = call("train", self.at("m.onnx"), "--data", self.at("in.npy"), "--target", self.at("out.npy"), "--loss", "mse",
                              "--lora", "W1", "--lora-dropout", 0.1, "-o", self.at("out.onnx"))
        self.assertEqual(status, 1)
        self.assertIn("the adapter has no input to drop", err)
        save(self.at("m.onnx"), [node("FusedConv", ["x", "W1", "b1"], "h", activation="Tanh", group=3, pads=[1, 1, 1, 1]),
                                 node("FusedConv", ["h", "W2"], "y", activation="LeakyRelu", activation_params=[0.2], strides=[2, 2])],
             [weight("W1", 12, 2, 3, 3), weight("b1", 12), weight("W2", 8, 12, 2, 2)], (TensorProto.FLOAT, 6, 6, 6), (8, 3, 3), more=more)
        self.feed(RNG.standard_normal((3, 6, 6, 6)).astype(np.float32), RNG.standard_normal((3, 8, 3, 3)).astype(np.float32))
        self.check(2, "W*", groups={"W1": 3})
        self.check_gradients(3, spelled_out)
        save(self.at("m.onnx"), [node("Attention", ["x", "W", "b"], "y", num_heads=2)],
             [weight("W", 8, 24), weight("b", 24)], (TensorProto.FLOAT, 5, 8), (5, 8), more=more)
        self.feed(RNG.standard_normal((3, 5, 8)).astype(np.float32), RNG.standard_normal((3, 5, 8)).astype(np.float32))
        self.check(2, "W")
        self.check_gradients(6, spelled_out)
        save(self.at("m.onnx"), [helper.make_node("Add", ["W", "D"], ["S"]), node("Attention", ["x", "S", "b"], "y", num_heads=2)],
             [weight("W", 8, 24), weight("D", 8, 24), weight("b", 24)], (TensorProto.FLOAT, 5, 8), (5, 8), more=more)
        status, _, err = call("train", self.at("m.onnx"), "--data", self.at("in.npy"), "--target", self.at("out.npy"), "--loss", "mse",
                              "--lora", "W", "-o", self.at("out.onnx"))
        self.assertEqual(status, 1)
        self.assertIn("'W' matches neither", err)

    def test_table(self):
        save(self.at("m.onnx"), [
            helper.make_node("Gather", ["E", "x"], ["e"], name="embed"), helper.make_node("Tanh", ["e"], ["t"]),
            helper.make_node("Transpose", ["E"], ["Et"], perm=[1, 0]), helper.make_node("MatMul", ["t", "Et"], ["y"], name="head"),
        ], [weight("E", 13, 6)], (TensorProto.INT64, 4), (4, 13))
        self.feed(RNG.integers(0, 13, (5, 4)), RNG.standard_normal((5, 4, 13)).astype(np.float32))
        self.check(4, "E")

    def test_read_for_its_type(self):
        """What looks at shape or type of the weight alone is nothing that would want the sum: as in files of PyTorch's
        newer exporter, where numbers become what a table is of (EmbeddingBag)."""
        save(self.at("m.onnx"), [
            helper.make_node("CastLike", ["half", "W"], ["c"], name="like"), helper.make_node("MatMul", ["x", "W"], ["h"], name="fc"),
            helper.make_node("Mul", ["h", "c"], ["y"])], [weight("W", 8, 5), onnx.numpy_helper.from_array(np.array([0.5]), "half")],
            (TensorProto.FLOAT, 8), (5,))
        self.feed(RNG.standard_normal((6, 8)).astype(np.float32), RNG.standard_normal((6, 5)).astype(np.float32))
        self.check(2, "W")

    def test_constant(self):
        """A weight in a Constant node is an initializer when it is merged; so nodes are the others."""
        save(self.at("m.onnx"), [helper.make_node("Constant", [], ["W"], value=weight("", 8, 5)), helper.make_node("MatMul", ["x", "W"], ["y"])],
             [], (TensorProto.FLOAT, 8), (5,))
        self.feed(RNG.standard_normal((6, 8)).astype(np.float32), RNG.standard_normal((6, 5)).astype(np.float32))
        self.train("--lora", "W", "--rank", 2, "--steps", 3, "--lr", 0.1)
        self.adapter("merge", self.at("out.onnx"), "-o", self.at("merged.onnx"))
        self.assertEqual([n.op_type for n in onnx.load(self.at("merged.onnx")).graph.node], ["MatMul"])
        np.testing.assert_allclose(self.ort("merged.onnx"), self.ort(), atol=1e-5)

    def test_half(self):
        """Weights in float16: the sum is rounded once."""
        w = weight("W", 8, 5)
        half = onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(w).astype(np.float16), "W")
        save(self.at("m.onnx"), [helper.make_node("Cast", ["W"], ["Wf"], to=TensorProto.FLOAT), helper.make_node("MatMul", ["x", "Wf"], ["y"])],
             [half], (TensorProto.FLOAT, 8), (5,))
        self.feed(RNG.standard_normal((6, 8)).astype(np.float32), RNG.standard_normal((6, 5)).astype(np.float32))
        self.check(2, "W", atol=2e-2)

    def test_external(self):
        """The weight is in a file of external data."""
        save(self.at("m.onnx"), [helper.make_node("MatMul", ["x", "W"], ["y"])], [weight("W", 8, 500)], (TensorProto.FLOAT, 8), (500,))
        onnx.save(onnx.load(self.at("m.onnx")), self.at("m.onnx"), save_as_external_data=True, location="w.data", size_threshold=0)
        self.feed(RNG.standard_normal((6, 8)).astype(np.float32), RNG.standard_normal((6, 500)).astype(np.float32))
        self.train("--lora", "W", "--rank", 2, "--steps", 3, "--lr", 1)
        self.adapter("merge", self.at("out.onnx"), "-o", self.at("merged.onnx"))
        self.assertEqual(onnx.load(self.at("merged.onnx")).graph.node, onnx.load(self.at("m.onnx")).graph.node)
        np.testing.assert_allclose(self.ort("merged.onnx"), self.ort(), atol=1e-5)
        self.assertGreater(np.abs(self.ort() - self.ort("m.onnx")).max(), 1e-3)


    def test_exported(self):
        """Files of exporters, one of which says of its initializers which are parameters: that stays. Shapes of weights are read,
        too."""
        for name in ("linear_tall_dy18", "plain_lenet_ts17", "nice_slice_dy21", "nice_external_data", "revnet8_ts17"):
            path = model(os.path.join(name, "model.onnx"))
            original = onnx.load(path)
            x, y = (os.path.join(os.path.dirname(path), f"{f}.npy") for f in ("in_x", "out_y"))
            report("train", path, "--data", x, "--target", y, "--loss", "mse", "--lora", "*", "--rank", 1, "--steps", 2, "--lr", 0.1,
                   "--batch", len(np.load(x)), "-o", self.at("out.onnx"))
            self.adapter("merge", self.at("out.onnx"), "-o", self.at("merged.onnx"))
            merged = onnx.load(self.at("merged.onnx"))
            for field in ("input", "output", "value_info", "node") if "BatchNormalization" not in str(original) else ("input", "output"):
                self.assertEqual(list(getattr(merged.graph, field)), list(getattr(original.graph, field)), (name, field))
            a, b = self.ort(x=np.load(x)), self.ort("merged.onnx", x=np.load(x))
            np.testing.assert_allclose(a, b, atol=1e-5 * np.abs(a).max())
            said = [{p["name"] for p in report("inspect", p)["initializers"] if p.get("trainable")} for p in (path, self.at("merged.onnx"))]
            self.assertEqual(*said)


class Quantized(Files):
    def test_quantized(self):
        """Not merged, and said why; taken out as any other."""
        t, nodes = quantized("W", 1, 0, 8, 5)
        save(self.at("m.onnx"), [nodes, helper.make_node("MatMul", ["x", "W"], ["y"], name="fc")], t, (TensorProto.FLOAT, 8), (5,), opset=21)
        self.feed(RNG.standard_normal((6, 8)).astype(np.float32), RNG.standard_normal((6, 5)).astype(np.float32))
        self.train("--lora", "fc", "--rank", 2, "--alpha", 3, "--steps", 3, "--lr", 0.5, "--adapter-out", self.at("t.onnx_adapter"))
        status, _, err = call("adapter", "merge", self.at("out.onnx"), "-o", self.at("no.onnx"))
        self.assertEqual(status, 1)
        name = self.adapter("show", self.at("out.onnx"))["adapters"][0]["weight"]
        self.assertIn(f"'{name}' is quantized", err)
        self.assertFalse(os.path.exists(self.at("no.onnx")))
        self.round_trip([name], tensors(self.at("out.onnx")), np.load(self.at("in.npy")), self.ort(), 1e-5)


class Refused(Files):
    def setUp(self):
        super().setUp()
        save(self.at("m.onnx"), [helper.make_node("MatMul", ["x", "W"], ["h"], name="fc"), helper.make_node("MatMul", ["h", "V"], ["y"], name="out")],
             [weight("W", 8, 6), weight("V", 6, 5)], (TensorProto.FLOAT, 8), (5,))
        self.feed(RNG.standard_normal((6, 8)).astype(np.float32), RNG.standard_normal((6, 5)).astype(np.float32))
        self.train("--lora", "*", "--rank", 2, "--steps", 2, "--adapter-out", self.at("a.onnx_adapter"))

    def refused(self, *args, status=1):
        got, _, err = call("adapter", *args)
        self.assertEqual(got, status, err)
        self.assertFalse(os.path.exists(self.at("no")))
        return err

    def test_usage(self):
        self.assertIn("merge|extract|show FILE", self.refused(status=2))
        self.assertIn("merge|extract|show FILE", self.refused("merge", status=2))
        self.assertIn("not 'mix'", self.refused("mix", self.at("out.onnx"), status=2))
        self.assertIn("-o", self.refused("merge", self.at("out.onnx"), status=2))
        status, _, err = call("train", self.at("m.onnx"), "--data", self.at("in.npy"), "--loss", "mse", "-o", self.at("no"),
                              "--adapter-out", self.at("a"))
        self.assertEqual(status, 2)
        self.assertIn("it needs --lora", err)

    def test_models(self):
        self.assertIn("has no adapters", self.refused("merge", self.at("m.onnx"), "-o", self.at("no")))
        self.assertIn("has no adapters", self.refused("extract", self.at("m.onnx"), "-o", self.at("no")))
        model = onnx.load(self.at("out.onnx"))
        model.graph.node.append(helper.make_node("ReduceSum", ["W"], ["s"], name="more"))
        model.graph.output.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, None))
        onnx.save(model, self.at("more.onnx"))
        self.assertIn("node 'more' (ReduceSum) also reads it", self.refused("merge", self.at("more.onnx"), "-o", self.at("no")))
        model = onnx.load(self.at("out.onnx"))
        for n in model.graph.node:
            if n.op_type == "Add" and n.output[0] == "h":
                n.op_type = "Sub"
        onnx.save(model, self.at("sub.onnx"))
        self.assertIn("the file was changed after", self.refused("merge", self.at("sub.onnx"), "-o", self.at("no")))

    def test_files(self):
        """Files of adapters that are none, are cut short anywhere, or belong to another model."""
        for p in ("m.onnx", "in.npy"):
            self.assertIn("is no file of adapters", self.refused("merge", self.at("m.onnx"), "--adapter", self.at(p), "-o", self.at("no")))
        with open(self.at("a.onnx_adapter"), "rb") as f:
            whole = f.read()
        for n in range(8, len(whole) - 8, 7):
            with open(self.at("cut"), "wb") as f:
                f.write(whole[:n])
            self.refused("merge", self.at("m.onnx"), "--adapter", self.at("cut"), "-o", self.at("no"))
        for i in range(8, 120):
            with open(self.at("odd"), "wb") as f:
                f.write(whole[:i] + bytes([whole[i] ^ 0xff]) + whole[i + 1:])
            status, _, err = call("adapter", "show", self.at("odd"))
            self.assertIn(status, (0, 1), err)
        save(self.at("other.onnx"), [helper.make_node("MatMul", ["x", "W"], ["y"])], [weight("W", 8, 5)], (TensorProto.FLOAT, 8), (5,))
        self.assertIn("no weight 'V'", self.refused("merge", self.at("other.onnx"), "--adapter", self.at("a.onnx_adapter"), "-o", self.at("no")))
        save(self.at("other.onnx"), [helper.make_node("MatMul", ["x", "W"], ["h"]), helper.make_node("MatMul", ["h", "V"], ["y"])],
             [weight("W", 8, 7), weight("V", 7, 5)], (TensorProto.FLOAT, 8), (5,))
        self.assertIn("[2,6]", self.refused("merge", self.at("other.onnx"), "--adapter", self.at("a.onnx_adapter"), "-o", self.at("no")))

    def test_given_out(self):
        """A weight that the model gives out as well, however, is not merged; where all outputs stay as they are, it is."""
        x, plain = (TensorProto.FLOAT, 8), helper.make_node("MatMul", ["x", "W"], ["y"], name="fc")
        for name, more in (("W", []), ("table", [helper.make_node("Identity", ["W"], ["table"])]),
                           ("turned", [helper.make_node("Transpose", ["W"], ["turned"])]),
                           ("double", [helper.make_node("Cast", ["W"], ["double"], to=TensorProto.DOUBLE)]),
                           ("far", [helper.make_node("Identity", ["W"], ["near"]), helper.make_node("Transpose", ["near"], ["far"])])):
            save(self.at("m.onnx"), [plain, *more], [weight("W", 8, 5)], x, (5,))
            m = onnx.load(self.at("m.onnx"))
            shape = (5, 8) if name in ("turned", "far") else (8, 5)
            m.graph.output.append(helper.make_tensor_value_info(name, TensorProto.DOUBLE if name == "double" else TensorProto.FLOAT, shape))
            onnx.save(m, self.at("m.onnx"))
            self.train("--lora", "W", "--rank", 2, "--steps", 2, "--loss-output", "y")
            self.assertIn(f"it is also the output '{name}'", self.refused("merge", self.at("out.onnx"), "-o", self.at("no")))

    def test_base(self):
        """Put on other weights than it was trained beside, which it says; a copy of the base, and what is written of it, are none."""
        file, other = self.at("a.onnx_adapter"), self.at("other.onnx")

        def said(model):
            status, _, err = call("adapter", "merge", model, "--adapter", file, "-o", self.at("merged.onnx"))
            self.assertEqual(status, 0, err)
            return "was trained with another base than" in err

        self.assertFalse(said(self.at("m.onnx")))
        self.adapter("extract", self.at("out.onnx"), "-o", self.at("again.onnx_adapter"), "--model-out", self.at("base.onnx"))
        with open(file, "rb") as a, open(self.at("again.onnx_adapter"), "rb") as b:
            self.assertEqual(a.read(), b.read())
        self.assertFalse(said(self.at("base.onnx")))
        m = onnx.load(self.at("m.onnx"))
        onnx.save(m, other, save_as_external_data=True, location="other.data", size_threshold=0)
        self.assertFalse(said(other))
        for i in range(2):  # one element of one weight; two weights with each other's elements would do as well
            m = onnx.load(self.at("m.onnx"))
            changed = numpy_helper.to_array(m.graph.initializer[i]).copy()
            changed[0, 0] += 1e-6
            m.graph.initializer[i].CopyFrom(numpy_helper.from_array(changed, m.graph.initializer[i].name))
            onnx.save(m, other)
            self.assertTrue(said(other), i)
        m = onnx.load(self.at("m.onnx"))
        m.graph.initializer.append(weight("b", 5))  # what no adapter is beside
        m.graph.node[1].output[0] = "s"
        m.graph.node.append(helper.make_node("Add", ["s", "b"], ["y"]))
        onnx.save(m, other)
        self.assertTrue(said(other))
        self.assertIn("fingerprint of the base", call("adapter", "show", file)[1])

    def test_read(self):
        """A file that onnxruntime writes."""
        source = onnxruntime.AdapterFormat.read_adapter(self.at("a.onnx_adapter"))
        file = onnxruntime.AdapterFormat()
        file.set_adapter_version(5)
        file.set_model_version(7)
        file.set_parameters(source.get_parameters())
        file.export_adapter(self.at("ort.onnx_adapter"))
        said = self.adapter("show", self.at("ort.onnx_adapter"))
        self.assertEqual((said["format_version"], said["adapter_version"], said["model_version"]), (1, 5, 7))
        for i, a in enumerate(("a.onnx_adapter", "ort.onnx_adapter")):
            self.adapter("merge", self.at("m.onnx"), "--adapter", self.at(a), "-o", self.at(f"{i}.onnx"))
        for name, value in tensors(self.at("0.onnx")).items():
            np.testing.assert_array_equal(value, tensors(self.at("1.onnx"))[name])


if __name__ == "__main__":
    unittest.main()
