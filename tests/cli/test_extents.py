# SPDX-License-Identifier: Apache-2.0
"""Models with open heights, widths, lengths and channels that not every number fits: `explain`, `plan` and `rewrite` find
numbers that do, and say which."""
import os
import re
import tempfile
import unittest

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from common import call

rng = np.random.default_rng(1)


def weight(name, *shape):
    return numpy_helper.from_array((rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1)).astype(np.float32), name)


def ints(name, *n):
    return numpy_helper.from_array(np.array(n, np.int64), name)


def save(path, nodes, x, inits, opset=17, rank=4):
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in x.items()]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)], inits)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return path


def unet(path):
    """Halved four times, joined with the halves doubled again: multiples of 16."""
    nodes, inits, skips, at, width = [], [], [], "x", 3
    for i in range(4):
        inits.append(weight(f"d{i}", 4, width, 3, 3))
        nodes += [helper.make_node("Conv", [at, f"d{i}"], [f"c{i}"], pads=[1] * 4),
                  helper.make_node("MaxPool", [f"c{i}"], [f"p{i}"], kernel_shape=[2, 2], strides=[2, 2])]
        skips.append(f"c{i}")
        at, width = f"p{i}", 4
    inits.append(numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"))
    for i in reversed(range(4)):
        nodes += [helper.make_node("Resize", [at, "", "scales"], [f"u{i}"], mode="nearest"),
                  helper.make_node("Add", [f"u{i}", skips[i]], [f"y{i}" if i else "y"])]
        at = f"y{i}"
    return save(path, nodes, {"x": ["N", 3, "height", "width"]}, inits)


def classifier(path):
    """Ends in a matrix, so one size alone; all four dimensions are open, the channels too."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"], strides=[8, 8], kernel_shape=[8, 8]),
             helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Flatten", ["b"], ["c"]),
             helper.make_node("Gemm", ["c", "v"], ["y"])]
    return save(path, nodes, {"x": ["N", "C", "H", "W"]}, [weight("w", 2, 3, 8, 8), weight("v", 2 * 28 * 28, 5)], rank=2)


def decoder(path):
    """A mask as long as past and present together; positions up to 20."""
    nodes = [helper.make_node("Concat", ["past", "x"], ["all"], axis=1),
             helper.make_node("MatMul", ["all", "w"], ["k"]), helper.make_node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
             helper.make_node("MatMul", ["x", "kt"], ["s"]), helper.make_node("Add", ["s", "mask"], ["m"]),
             helper.make_node("Softmax", ["m"], ["p"]), helper.make_node("MatMul", ["p", "all"], ["o"]),
             helper.make_node("Shape", ["x"], ["n"], start=1, end=2), helper.make_node("Slice", ["table", "zero", "n", "zero"], ["pos"]),
             helper.make_node("Add", ["o", "pos"], ["y"])]
    return save(path, nodes, {"x": ["N", "T", 4], "past": ["N", "P", 4], "mask": ["N", 1, "past + present"]},
                [weight("w", 4, 4), weight("table", 20, 4), ints("zero", 0)],
                rank=3)


def window(path):
    """A signal that is cut into frames of 96: no customary number, but one of the model's own."""
    nodes = [helper.make_node("Reshape", ["x", "frames"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["y"])]
    return save(path, nodes, {"x": ["N", "samples"]}, [ints("frames", 0, 11, 23), weight("w", 23, 5)], rank=3)


def fixed(path):
    """Exported for a batch of 1, whatever the first axis is called."""
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["y"])]
    return save(path, nodes, {"x": ["N", 4, "L"]}, [ints("shape", 1, 32), weight("w", 32, 5)], rank=2)


class Extents(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name

    def test_found(self):
        expected = {unet: "[1, 3, 16, 16]", classifier: "[1, 3, 224, 224]", window: "[1, 253]", fixed: "[1, 4, 8]"}
        for make, shape in expected.items():
            path = make(os.path.join(self.folder, make.__name__ + ".onnx"))
            for args in (("explain", path), ("plan", path, "--loss", "mse")):
                status, _, err = call(*args)
                assert status == 0, (make.__name__, args, err)
                assert shape in err, (make.__name__, args, err)
            out = os.path.join(self.folder, "out.onnx")
            assert call("rewrite", path, "-o", out)[0] == 0, make.__name__
            onnx.checker.check_model(out)


    def test_sums(self):
        path = decoder(os.path.join(self.folder, "decoder.onnx"))
        status, _, err = call("explain", path)
        assert status == 0, err
        took = [[int(n) for n in shape.split(", ")] for shape in re.findall(r"': \[([^]]*)\] is taken", err)]
        assert len(took) == 3 and took[0][1] > 1 and took[2][2] == took[0][1] + took[1][1], err


    def test_given(self):
        path = unet(os.path.join(self.folder, "u.onnx"))
        status, _, err = call("explain", path, "--dim", "height=64")
        assert status == 0 and "[1, 3, 64, 16]" in err, err
        status, _, err = call("explain", path, "--dim", "height=20")
        assert status == 1 and "no numbers were found" in err and "[1,3,20," in err and "Add" in err, err
        assert call("explain", path, "--dim", "height=64", "--dim", "width=32")[2] == ""


    def test_every_size(self):
        """What is written runs at sizes other than the one that was looked at, and its inverses undo it there."""
        nodes = [helper.make_node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2),
                 helper.make_node("Conv", ["b", "w"], ["f"], pads=[1] * 4), helper.make_node("Add", ["a", "f"], ["y1"]),
                 helper.make_node("Concat", ["y1", "b"], ["y"], axis=1)]
        path = save(os.path.join(self.folder, "c.onnx"), nodes, {"x": ["N", 4, "H", "W"]}, [weight("w", 2, 2, 3, 3)], opset=18)
        out = os.path.join(self.folder, "c.inv.onnx")
        status, _, err = call("rewrite", path, "-o", out)
        assert status == 0, err
        for size in ((1, 4, 8, 8), (2, 4, 13, 9)):
            x = rng.standard_normal(size).astype(np.float32)
            a, b = (ort.InferenceSession(p).run(None, {"x": x})[0] for p in (path, out))
            assert np.array_equal(a, b)


if __name__ == "__main__":
    unittest.main()
