# SPDX-License-Identifier: Apache-2.0
"""What cannot be served: exit 1, one message that names it, no output file touched."""
import os
import shutil
import tempfile
import unittest

import numpy as np
import onnx
from common import EXAMPLES, call, model, report
from onnx import TensorProto, helper, numpy_helper


def write(path, nodes, params, out="y"):
    """A model x float32[4, 3] -> y with the given nodes and parameters."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3])],
        [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(v, np.float32), k) for k, v in params.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("my", 1)],
                                ir_version=8), path)


class Failures(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.model = self.file("m.onnx")
        self.x, self.y = self.file("x.npy"), self.file("t.npy")
        np.save(self.x, np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32))
        np.save(self.y, np.zeros((4, 3), np.float32))

    def file(self, name):
        return os.path.join(self.folder, name)

    def grad(self, *options):
        return call("grad", self.model, "--feed", self.x, "--target", self.y, "--loss", "mse", *options)

    def refused(self, result, *words):
        status, out, err = result
        self.assertEqual(status, 1, err)
        for line in out.splitlines():  # what `train` was about to do, at most
            self.assertRegex(line, "^(trains|[0-9]+ rows|the process takes)")
        for word in words:
            self.assertIn(word, err)

    def test_good_one(self):
        write(self.model, [helper.make_node("Mul", ["x", "w"], ["y"], "mul")], {"w": [1, 2, 3]})
        status, _, err = self.grad()
        self.assertEqual(status, 0, err)

    def test_unknown_operators_all_named(self):
        write(self.model, [helper.make_node("Frobnicate", ["x"], ["a"], "first", domain="my"),
                           helper.make_node("Mul", ["a", "w"], ["b"], "mul"),
                           helper.make_node("Twiddle", ["b"], ["y"], "second", domain="my")], {"w": [1, 2, 3]})
        self.refused(self.grad(), "Frobnicate", "first", "Twiddle", "second")

    def test_wrong_feed_shape(self):
        write(self.model, [helper.make_node("Mul", ["x", "w"], ["y"], "mul")], {"w": [1, 2, 3]})
        np.save(self.x, np.zeros((4, 5), np.float32))
        self.refused(self.grad(), "x", "5", "3")

    def test_wrong_feed_name(self):
        write(self.model, [helper.make_node("Mul", ["x", "w"], ["y"], "mul")], {"w": [1, 2, 3]})
        status, out, err = call("grad", self.model, "--feed", f"nosuch={self.x}", "--target", self.y, "--loss", "mse")
        self.assertIn(status, (1, 2))
        self.assertEqual(out, "")
        self.assertIn("nosuch", err)

    def test_wrong_target_shape(self):
        write(self.model, [helper.make_node("Mul", ["x", "w"], ["y"], "mul")], {"w": [1, 2, 3]})
        np.save(self.y, np.zeros((4, 2), np.float32))
        self.refused(self.grad())

    def test_nothing_to_train(self):
        write(self.model, [helper.make_node("Relu", ["x"], ["y"], "relu")], {})
        out = self.file("out.onnx")
        self.refused(call("train", self.model, "--data", self.x, "--target", self.y, "--loss", "mse", "-o", out))
        self.assertFalse(os.path.exists(out))

    def test_nan_data(self):
        write(self.model, [helper.make_node("Mul", ["x", "w"], ["h"], "mul"),
                           helper.make_node("Relu", ["h"], ["y"], "relu")], {"w": [1, 2, 3]})
        x = np.load(self.x)
        x[2, 1] = np.nan
        np.save(self.x, x)
        out = self.file("out.onnx")
        with open(out, "w") as f:
            f.write("as it was")
        self.refused(call("train", self.model, "--data", self.x, "--target", self.y, "--loss", "mse", "-o", out),
                     "data fed")
        self.assertEqual(open(out).read(), "as it was")

    def test_first_bad_node_is_named(self):
        write(self.model, [helper.make_node("Mul", ["x", "w"], ["h"], "good_mul"),
                           helper.make_node("Log", ["h"], ["l"], "bad_log"),
                           helper.make_node("Abs", ["l"], ["y"], "abs")], {"w": [1, 2, 3]})
        out = self.file("out.onnx")
        self.refused(call("train", self.model, "--data", self.x, "--target", self.y, "--loss", "mse", "-o", out),
                     "bad_log")
        self.assertFalse(os.path.exists(out))

    def test_missing_external_file(self):
        shutil.copy(os.path.join(model("nice_external_data"), "model.onnx"), self.model)
        self.refused(call("inspect", self.model), "weights.bin")

    def test_not_a_model(self):
        for content in (b"", b"hello", os.urandom(2000)):
            with open(self.model, "wb") as f:
                f.write(content)
            self.refused(call("inspect", self.model), "m.onnx")
        self.refused(call("inspect", self.file("absent.onnx")), "absent.onnx")

    def test_usage(self):
        for args in ([], ["nosuch"], ["grad"], ["plan", self.model, "--nosuch"], ["plan", self.model, "--memory", "x"]):
            status, out, err = call(*args)
            self.assertEqual((status, out), (2, ""), args)
            self.assertNotEqual(err, "", args)


class Weights(unittest.TestCase):
    def test_only_trained_initializers_differ(self):
        with tempfile.TemporaryDirectory() as folder:
            source, out = os.path.join(EXAMPLES, "revnet_digits.onnx"), os.path.join(folder, "out.onnx")
            data = os.path.join(EXAMPLES, "data", "digits_val_")
            status, _, err = call("train", source, "--data", data + "x.npy", "--target", data + "y.npy", "--loss",
                                  "cross_entropy", "--batch", 40, "--steps", 2, "--train-only", "head.*", "-o", out)
            self.assertEqual(status, 0, err)
            before, after = onnx.load(source), onnx.load(out)
            onnx.checker.check_model(after, full_check=True)
            changed = {a.name for a, b in zip(after.graph.initializer, before.graph.initializer) if a != b}
            norms = [node for node in before.graph.node if node.op_type == "BatchNormalization"]
            statistics = {name for node in norms for name in node.input[3:]}
            self.assertEqual(changed - statistics, {"head.weight", "head.bias"})
            self.assertEqual(changed & statistics, statistics)
            for node in norms:  # written for inference
                del node.output[1:]
                next(a for a in node.attribute if a.name == "training_mode").i = 0
            del before.graph.initializer[:], after.graph.initializer[:]
            self.assertEqual(before, after)


class Lines(unittest.TestCase):
    """Names in a file make no lines of their own in messages and listings."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.model = self.file("m.onnx")

    def file(self, name):
        return os.path.join(self.folder, name)

    def assert_no_forged_line(self, text):
        self.assertFalse([line for line in text.splitlines() if line.startswith("forged")], text)
        self.assertIn("\\u000aforged\\u0009tab\\u000d", text)

    def test_names(self):
        evil = "a\nforged\ttab\r"
        write(self.model, [helper.make_node("Relu", ["x" + evil], ["h"], name="n"),
                           helper.make_node("Relu", ["z" + evil], ["y"], name=evil)], {})
        status, out, err = call("inspect", self.model) # two defects, on a line each
        self.assertEqual(status, 1)
        self.assertEqual(len(err.splitlines()), 3)
        self.assert_no_forged_line(err)
        write(self.model, [helper.make_node(evil, ["x"], ["y"], domain="my", name=evil)], {})
        status, out, err = call("plan", self.model, "--loss", "mse")
        self.assertEqual(status, 1)
        self.assert_no_forged_line(err)
        write(self.model, [helper.make_node("Mul", ["x", evil], ["y"], name=evil)], {evil: np.ones(3)})
        for command in ("inspect", "explain"):
            status, out, err = call(command, self.model)
            self.assertEqual(status, 0, err)
            self.assert_no_forged_line(out)
        names = [i["name"] for i in report("inspect", self.model)["initializers"]] # in JSON it is itself
        self.assertEqual(names, [evil])

    def test_locations(self):
        evil = "a\nforged\ttab\r"
        write(self.model, [helper.make_node("Mul", ["x", "w"], ["y"])], {"w": np.ones(3)})
        m = onnx.load(self.model)
        w = m.graph.initializer[0]
        w.ClearField("raw_data")
        w.data_location = TensorProto.EXTERNAL
        w.external_data.add(key="location", value=evil)
        with open(self.model, "wb") as f:
            f.write(m.SerializeToString())
        status, _, err = call("inspect", self.model)
        self.assertEqual(status, 1)
        self.assert_no_forged_line(err)
        np.ones(3, np.float32).tofile(self.file(evil))
        status, out, _ = call("inspect", self.model)
        self.assertEqual(status, 0)
        self.assert_no_forged_line(out)


if __name__ == "__main__":
    unittest.main()
