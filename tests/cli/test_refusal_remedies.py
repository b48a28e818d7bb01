# SPDX-License-Identifier: Apache-2.0
"""What was refused without need, and refusals that name the remedy. Values are held to ONNX Runtime's."""
import os
import tempfile
import unittest

import numpy as np
import onnx
import onnxruntime
from common import call
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node as node

rng = np.random.default_rng(3)


def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)


class Refused(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name

    def file(self, name):
        return os.path.join(self.folder, name)

    def save(self, **arrays):
        for name, array in arrays.items():
            np.save(self.file(name + ".npy"), array)

    def model(self, nodes, inputs, rank, opset=20, **inits):
        ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()]
        out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)
        graph = helper.make_graph(nodes, "g", ports, [out], [numpy_helper.from_array(v, k) for k, v in inits.items()])
        path = self.file("m.onnx")
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9), path)
        return path

    def same_as_runtime(self, path, feeds, tolerance=1e-5):
        self.save(**feeds)
        status, _, err = call("run", path, *(f"--feed={n}={self.file(n)}.npy" for n in feeds), "--dump", self.folder)
        self.assertEqual(status, 0, err)
        want = onnxruntime.InferenceSession(path).run(None, feeds)[0]
        np.testing.assert_allclose(np.load(self.file("out_y.npy")), want, rtol=tolerance, atol=tolerance)

    def refused(self, *args, says):
        status, _, err = call(*args)
        self.assertEqual(status, 1, err)
        for text in says:
            self.assertIn(text, err)

    def test_what_one_processor_runs(self):
        """Of a file that onnxruntime has optimized for a processor, how to have another is said."""
        path = self.model([node("Conv", ["x", "w"], ["y"], domain="com.microsoft.nchwc")], {"x": [1, 8, 4, 4]}, 4,
                          w=np.ones((8, 8, 1, 1), np.float32))
        model = onnx.load(path)
        model.opset_import.append(helper.make_opsetid("com.microsoft.nchwc", 1))
        onnx.save(model, path)
        self.refused("explain", path, says=["ORT_ENABLE_EXTENDED, not ORT_ENABLE_ALL"])

    def test_pieces_of_what_is_turned_round(self):
        """As PyTorch exports the backward direction of a bidirectional RNN: the first piece has a reader before the second
        one is seen to be of the same value."""
        ints = {"m": np.array([-1]), "far": np.array([-2**63]), "a": np.array([0]), "b": np.array([1]), "c": np.array([2])}
        nodes = [node("Slice", ["x", "m", "far", "a", "m"], ["flip"]), node("Slice", ["flip", "a", "b", "a"], ["p"]),
                 node("Squeeze", ["p", "a"], ["p0"]), node("Slice", ["flip", "b", "c", "a"], ["q"]),
                 node("Squeeze", ["q", "a"], ["q0"]), node("Tanh", ["p0"], ["h"]), node("Sub", ["q0", "h"], ["y"])]
        path = self.model(nodes, {"x": [2, 3, 4]}, 2, **ints)
        self.same_as_runtime(path, {"x": floats(2, 3, 4)})

    def norms(self, stored):
        nodes = [node("ReduceMean", ["x", "axes"], ["m"], keepdims=0), node("Mul", ["x", "x"], ["xx"]),
                 node("ReduceMean", ["xx", "axes"], ["v"], keepdims=0),
                 node("BatchNormalization", ["x", "s", "b", "m", "v"], ["h"], name="computed"),
                 node("BatchNormalization", ["h", "s2", "b2", "m2", "v2"], ["y"], name="stored") if stored
                 else node("Identity", ["h"], ["y"])]
        more = {"s2": floats(3), "b2": floats(3), "m2": floats(3), "v2": floats(3) ** 2} if stored else {}
        return self.model(nodes, {"x": [4, 3, 5]}, 3, axes=np.array([0, 2]), s=floats(3), b=floats(3), **more)

    def test_computed_statistics_beside_stored_ones(self):
        path = self.norms(True)
        self.save(x=floats(4, 3, 5), t=floats(4, 3, 5))
        status, _, err = call("grad", path, "--feed", self.file("x.npy"), "--target", self.file("t.npy"), "--loss", "mse",
                              "--train-bn", "--dump", self.folder)
        self.assertEqual(status, 0, err)
        self.assertEqual(err.count("'computed' stays as it is"), 1, err)
        old = {i.name: numpy_helper.to_array(i) for i in onnx.load(path).graph.initializer}
        self.assertFalse(np.allclose(np.load(self.file("state_m2.npy")), old["m2"]))
        self.refused("plan", self.norms(False), "--loss", "mse", "--train-bn", says=["'computed' are not initializers"])

    def test_targets_without_an_axis_of_one(self):
        path = self.model([node("MatMul", ["x", "w"], ["y0"]), node("Identity", ["y0"], ["y"])], {"x": ["N", 3]}, 2,
                          w=floats(3, 1))
        self.save(x=floats(8, 3), t=floats(8), t3=floats(8, 3))
        args = ("train", path, "--data", self.file("x.npy"), "--loss", "mse", "-o", self.file("o.onnx"), "--batch", 4)
        self.refused(*args, "--target", self.file("t.npy"), says=["y.reshape(-1, 1)", "output 'y'"])
        status, _, err = call(*args, "--target", self.file("t3.npy"))
        self.assertEqual(status, 1)
        self.assertNotIn("reshape", err)

    def test_labels_with_an_axis_of_one(self):
        path = self.model([node("MatMul", ["x", "w"], ["y"])], {"x": ["N", 5, 3]}, 3, w=floats(3, 7))
        self.save(x=floats(4, 5, 3), t=np.zeros((4, 5, 1), np.int64))
        self.refused("train", path, "--data", self.file("x.npy"), "--target", self.file("t.npy"), "--loss", "cross_entropy",
                     "-o", self.file("o.onnx"), says=["y.reshape(-1, 5)"])

    def test_class_weights(self):
        path = self.model([node("MatMul", ["x", "w"], ["y"])], {"x": ["N", 3]}, 2, w=floats(3, 2))
        self.save(x=floats(4, 3), t=np.array([0, 1, 1, 0]))
        for weights, says in ([1, np.nan], "class 1 is nan"), ([-1, 1], "class 0 is -1"), ([0, 0], "all class weights are 0"):
            self.save(cw=np.array(weights, np.float32))
            self.refused("grad", path, "--feed", self.file("x.npy"), "--target", self.file("t.npy"), "--loss",
                         "cross_entropy", "--class-weights", self.file("cw.npy"), says=[says])

    def test_projections(self):
        nodes = [node("LSTM", ["x", "w", "r", "b", "", "h", "c"], ["y"], hidden_size=3)]
        path = self.model(nodes, {"x": [5, 1, 4]}, 4, w=floats(1, 12, 4), r=floats(1, 12, 3), b=floats(1, 24),
                          h=floats(1, 1, 3), c=floats(1, 1, 6))
        self.refused("explain", path, says=["LSTM", "projections", "proj_size"])

    def test_cubic_sampling_beyond_the_border(self):
        """Pixels are repeated, as ONNX Runtime and PyTorch do; ONNX's reference holds the point instead."""
        for corners in 0, 1:
            nodes = [node("GridSample", ["x", "p"], ["y"], mode="cubic", padding_mode="border", align_corners=corners)]
            path = self.model(nodes, {"x": [1, 2, 5, 4], "p": [1, 6, 7, 2]}, 4)
            self.same_as_runtime(path, {"x": floats(1, 2, 5, 4), "p": 2 * floats(1, 6, 7, 2)}, 1e-4)


if __name__ == "__main__":
    unittest.main()
