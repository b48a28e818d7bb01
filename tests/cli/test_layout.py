# SPDX-License-Identifier: Apache-2.0
"""--layout: where the tensors of a written model go. Whatever it says, the model stays the same."""
import os
import shutil
import tempfile
import unittest

import numpy as np
import onnx
from common import call, report
from onnx import TensorProto, external_data_helper, helper, numpy_helper


def array(name, *shape, dtype=np.float32):
    return numpy_helper.from_array(np.arange(np.prod(shape)).reshape(shape).astype(dtype) / 1000, name)


def typed(name, *shape):
    return helper.make_tensor(name, TensorProto.FLOAT, shape, [0.25] * int(np.prod(shape)))


def read(path):
    with open(path, "rb") as f:
        return f.read()


def build():
    """Large and small initializers, raw and typed, in the graph, in a body, in an attribute, in training_info."""
    inner = helper.make_graph([helper.make_node("Mul", ["h", "inner"], ["r"])], "t", [],
                              [helper.make_tensor_value_info("r", 1, None)], [array("inner", 4, 100)])
    other = helper.make_graph([helper.make_node("Identity", ["h"], ["s"])], "e", [],
                              [helper.make_tensor_value_info("s", 1, None)])
    nodes = [
        helper.make_node("MatMul", ["x", "big"], ["a"], name="first"),
        helper.make_node("Add", ["a", "small"], ["b"]),
        helper.make_node("Add", ["b", "typed"], ["c"]),
        helper.make_node("Constant", [], ["k"], value=array("", 4, 100)),
        helper.make_node("Add", ["c", "k"], ["h"]),
        helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True))),
        helper.make_node("If", ["yes"], ["y"], then_branch=inner, else_branch=other),
        helper.make_node("Identity", ["words"], ["words_out"]),
    ]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [4, 3])],
                              [helper.make_tensor_value_info("y", 1, [4, 100]),
                               helper.make_tensor_value_info("words_out", TensorProto.STRING, [300])],
                              [array("big", 3, 100), array("small", 100, dtype=np.float16), typed("typed", 4, 100),
                               helper.make_tensor("words", TensorProto.STRING, [300], [b"word"] * 300),
                               helper.make_tensor("q", TensorProto.INT4, [3000], bytes(range(250)) * 6, raw=True),
                               array("empty", 0, 4)])
    graph.initializer[1].CopyFrom(array("small", 100))
    m = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    info = m.training_info.add()
    info.algorithm.name = "algorithm"
    info.algorithm.initializer.append(array("big", 3, 100))
    return m


def tensors(m):
    """name -> tensor, of all places."""
    found = {i.name: i for i in m.graph.initializer}
    branches = next(n for n in m.graph.node if n.op_type == "If").attribute
    body = next(a for a in branches if a.name == "then_branch").g
    found.update({i.name: i for i in body.initializer})
    found.update({n.output[0]: n.attribute[0].t for n in m.graph.node if n.op_type == "Constant"})
    found["training"] = m.training_info[0].algorithm.initializer[0]
    return found


def outside(m):
    return {name for name, t in tensors(m).items() if t.data_location == TensorProto.EXTERNAL}


def place(t):
    return {e.key: e.value for e in t.external_data}


class Layout(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        np.save(self.file("x.npy"), np.linspace(-1, 1, 12).reshape(4, 3).astype(np.float32))
        np.save(self.file("t.npy"), np.ones((4, 100), np.float32))

    def file(self, name):
        return os.path.join(self.folder, name)

    def save(self, name, external=False):
        m = build()
        if external:
            external_data_helper.convert_model_to_external_data(m, location=name + ".weights", convert_attribute=True,
                                                                size_threshold=0)
        onnx.save(m, self.file(name))
        return self.file(name)

    def train(self, path, layout, out="out.onnx"):
        status, _, err = call("train", path, "--data", "x=" + self.file("x.npy"), "--target", self.file("t.npy"),
                              "--loss", "mse", "--batch", 4, "--steps", 1, "--lr", 0.1, "--tied", "*", "-o",
                              self.file(out), *(["--layout", layout] if layout else []))
        self.assertEqual(status, 0, err)
        return self.file(out)

    def assert_same(self, a, b, trained=()):
        """Equal but for where tensors lie, and for the elements of what was trained."""
        a, b = onnx.load(a), onnx.load(b)
        for x, y in zip(tensors(a).values(), tensors(b).values()):
            if x.data_type == TensorProto.STRING:
                continue
            equal = np.array_equal(numpy_helper.to_array(x), numpy_helper.to_array(y))
            in_model = x.name == "inner" or any(x is i for i in a.graph.initializer)  # not in training_info
            self.assertEqual(equal, not (in_model and x.name in trained), x.name)
            for t in (x, y):
                t.ClearField("float_data")
                t.ClearField("int32_data")
                t.ClearField("raw_data")
                t.ClearField("external_data")
                t.ClearField("data_location")
        self.assertEqual(str(a), str(b))

    def loaded(self, path):
        return onnx.load(path, load_external_data=False)

    TRAINED = ("big", "small", "typed", "inner")

    def test_external(self):
        want = {"big", "typed", "inner", "q"} # not in training_info, where other tools do not look
        for source in (False, True):
            with self.subTest(external_before=source):
                path = self.save("m.onnx", source)
                out = self.train(path, "external")
                m = self.loaded(out)
                self.assertEqual(outside(m), want | ({"small", "k", "yes", "empty"} if source else set()))
                size = os.path.getsize(out + ".data")
                for name in outside(m):
                    p = place(tensors(m)[name])
                    self.assertEqual(p["location"], "out.onnx.data")
                    self.assertEqual(int(p["offset"]) % 4096, 0)
                    self.assertLessEqual(int(p["offset"]) + int(p["length"]), size)
                self.assert_same(path, out, self.TRAINED)
                onnx.checker.check_model(out)

    def test_inline(self):
        path = self.save("m.onnx", True)
        before = {n: read(self.file(n)) for n in os.listdir(self.folder)}
        out = self.train(path, "inline")
        self.assertEqual(outside(self.loaded(out)), set())
        self.assertEqual(sorted(os.listdir(self.folder)), sorted([*before, "out.onnx"]))
        self.assertEqual(before, {n: read(self.file(n)) for n in before})
        os.rename(self.file("m.onnx.weights"), self.file("elsewhere")) # it needs none of it
        onnx.load(out)
        os.rename(self.file("elsewhere"), self.file("m.onnx.weights"))
        self.assert_same(path, out, self.TRAINED)

    def test_keep(self):
        path = self.save("m.onnx", True)
        for layout in (None, "keep"):
            out = self.train(path, layout)
            self.assertEqual(outside(self.loaded(out)), outside(self.loaded(path)))
        path = self.save("inside.onnx")
        out = self.train(path, None, "second.onnx")
        self.assertEqual(outside(self.loaded(out)), set())
        self.assertFalse(os.path.exists(out + ".data"))

    def test_nothing_to_put_outside(self):
        graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g",
                                  [helper.make_tensor_value_info("x", 1, [4, 3])],
                                  [helper.make_tensor_value_info("y", 1, [4, 3])], [array("w", 3)])
        m = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
        onnx.save(m, self.file("m.onnx"))
        report("rewrite", self.file("m.onnx"), "--layout", "external", "-o", self.file("out.onnx"))
        self.assertFalse(os.path.exists(self.file("out.onnx.data")))

    def test_round_trip(self):
        """Out and in again: the bytes of the model as they were, if its tensors were raw."""
        m = build()
        for t in tensors(m).values():
            if t.data_type != TensorProto.STRING:
                t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t), t.name))
        onnx.save(m, self.file("m.onnx"))
        report("rewrite", self.file("m.onnx"), "-o", self.file("a.onnx"))
        report("rewrite", self.file("m.onnx"), "--layout", "external", "-o", self.file("b.onnx"))
        report("rewrite", self.file("b.onnx"), "--layout", "inline", "-o", self.file("c.onnx"))
        self.assertEqual(read(self.file("a.onnx")), read(self.file("c.onnx")))

    def test_inverses_go_outside(self):
        graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
                                  [helper.make_tensor_value_info("x", 1, ["N", 20])],
                                  [helper.make_tensor_value_info("y", 1, ["N", 20])],
                                  [numpy_helper.from_array(np.eye(20, dtype=np.float32) * 2, "w")])
        m = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
        onnx.save(m, self.file("m.onnx"))
        report("rewrite", self.file("m.onnx"), "--layout", "external", "-o", self.file("out.onnx"))
        got = self.loaded(self.file("out.onnx")).graph.initializer
        self.assertEqual([(i.name, i.data_location) for i in got], [("w", 1), ("w_inv", 1)])
        full = onnx.load(self.file("out.onnx")).graph.initializer
        np.testing.assert_allclose(numpy_helper.to_array(full[1]), np.eye(20) / 2, atol=1e-6)

    def test_files_that_are_read_are_safe(self):
        path = self.save("m.onnx")
        m = self.loaded(path)
        external_data_helper.convert_model_to_external_data(m, location="out.onnx.data", size_threshold=0)
        onnx.save(m, path)
        before = read(self.file("out.onnx.data"))
        status, _, err = call("rewrite", path, "--layout", "external", "-o", self.file("out.onnx"))
        self.assertEqual(status, 1)
        self.assertIn("out.onnx.data, which MODEL reads; choose another name", err)
        status, _, err = call("rewrite", path, "--layout", "inline", "-o", self.file("out.onnx"), "--report",
                              self.file("out.onnx.data"))
        self.assertEqual(status, 1)
        self.assertEqual(read(self.file("out.onnx.data")), before)
        self.assertFalse(os.path.exists(self.file("out.onnx")))

    def test_data_files_are_refused_before_training(self):
        m = build()
        external_data_helper.convert_model_to_external_data(m, location="out.onnx.data", size_threshold=0)
        onnx.save(m, self.file("m.onnx"))
        before = {n: read(self.file(n)) for n in os.listdir(self.folder)}
        for out, layout, refused in (("out.onnx", "keep", True), ("out.onnx", "external", True),
                                     ("out.onnx.data", "inline", True), ("out.onnx", "inline", False)):
            with self.subTest(out=out, layout=layout):
                status, _, err = call("train", self.file("m.onnx"), "--data", "x=" + self.file("x.npy"), "--target",
                                      self.file("t.npy"), "--loss", "mse", "--batch", 4, "--steps", 1, "--tied", "*",
                                      "-o", self.file(out), "--layout", layout)
                self.assertEqual(status, int(refused), err)
                if refused:
                    self.assertRegex(err, "would overwrite .*out.onnx.data, which MODEL reads; choose another name")
                    self.assertNotIn("planned peak", err)
                    self.assertEqual(sorted(os.listdir(self.folder)), sorted(before))
                self.assertEqual(before, {n: read(self.file(n)) for n in before})

    def test_two_gigabytes_do_not_go_inside(self):
        path = self.file("m.onnx")
        graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
                                  [helper.make_tensor_value_info("x", 1, ["N", 1])],
                                  [helper.make_tensor_value_info("y", 1, ["N", 1 << 29])])
        t = graph.initializer.add(name="w", data_type=1, dims=[1, 1 << 29], data_location=TensorProto.EXTERNAL)
        for k, v in (("location", "w.bin"), ("offset", "0"), ("length", str(1 << 31))):
            t.external_data.add(key=k, value=v)
        onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)
        with open(self.file("w.bin"), "wb") as f:
            f.truncate(1 << 31) # a hole
        status, _, err = call("rewrite", path, "--layout", "inline", "-o", self.file("out.onnx"))
        self.assertEqual(status, 1)
        self.assertIn("limited to 2 GiB", err)
        self.assertEqual(sorted(os.listdir(self.folder)), ["m.onnx", "t.npy", "w.bin", "x.npy"])

    def test_words(self):
        status, _, err = call("train", self.save("m.onnx"), "--layout", "outside")
        self.assertEqual(status, 2)
        self.assertIn("keep", err)


if __name__ == "__main__":
    unittest.main()
