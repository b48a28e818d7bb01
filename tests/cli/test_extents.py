# SPDX-License-Identifier: Apache-2.0
"""Models with open heights, widths, lengths and channels that not every number fits: `explain`, `plan` and `rewrite` find
numbers that do, and say which."""
import os
import re
import tempfile
import time
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


def vit(path, patch, grid, sizes):
    """Patches, and positions for one number of them."""
    width = 4
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], strides=[patch] * 2), helper.make_node("Reshape", ["c", "rows"], ["r"]),
             helper.make_node("Transpose", ["r"], ["t"], perm=[0, 2, 1]), helper.make_node("Shape", ["x"], ["n"], start=0, end=1),
             helper.make_node("Concat", ["n", "token"], ["as"], axis=0), helper.make_node("Expand", ["cls", "as"], ["first"]),
             helper.make_node("Concat", ["first", "t"], ["all"], axis=1), helper.make_node("Add", ["all", "positions"], ["y"])]
    inits = [weight("w", width, 3, patch, patch), ints("rows", 0, width, -1), ints("token", 1, width), weight("cls", 1, 1, width),
             weight("positions", 1, grid * grid + 1, width)]
    return save(path, nodes, {"x": sizes}, inits, rank=3)


OPEN = ["batch", "channels", "height", "width"]  # as exporters for whole hubs declare images


def vit16(path):
    return vit(path, 16, 14, OPEN)


def vit14(path):
    return vit(path, 14, 24, ["N", 3, "H", "W"])


def vit37(path):
    return vit(path, 14, 37, OPEN)


def stem(path):
    """A filter larger than what is tried first, and its channels open."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], strides=[4, 4]), helper.make_node("GlobalAveragePool", ["c"], ["y"])]
    return save(path, nodes, {"x": OPEN}, [weight("w", 6, 3, 11, 11)])


def places(path):
    """Patches without a token of their own: a single one would fit all positions by being repeated."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], strides=[16, 16]), helper.make_node("Reshape", ["c", "rows"], ["r"]),
             helper.make_node("Add", ["positions", "r"], ["y"])]
    return save(path, nodes, {"x": OPEN}, [weight("w", 4, 3, 16, 16), ints("rows", 0, 4, -1), weight("positions", 1, 4, 196)], rank=3)


def spread(path):
    """Numbers that are repeated for a constant, whatever the sizes are."""
    nodes = [helper.make_node("Unsqueeze", ["x", "last"], ["u"]), helper.make_node("Mul", ["u", "w"], ["y"])]
    return save(path, nodes, {"x": ["N", "T"]}, [ints("last", 2), weight("w", 7)], rank=3)


def windows(path):
    """Patches of 16 in windows of 11 x 11."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"], strides=[16, 16]), helper.make_node("Shape", ["c"], ["s"]),
             helper.make_node("Gather", ["s", "at"], ["hw"], axis=0), helper.make_node("Div", ["hw", "side"], ["n"]),
             helper.make_node("Split", ["n"], ["nh", "nw"], axis=0, num_outputs=2), helper.make_node("Gather", ["s", "lead"], ["bc"]),
             helper.make_node("Concat", ["bc", "nh", "side", "nw", "side"], ["cut"], axis=0), helper.make_node("Reshape", ["c", "cut"], ["r"]),
             helper.make_node("ReduceMean", ["r", "inner"], ["y"], keepdims=0)]
    inits = [weight("w", 4, 3, 16, 16), ints("at", 2, 3), ints("lead", 0, 1), ints("side", 11), ints("inner", 3, 5)]
    return save(path, nodes, {"x": ["N", 3, "H", "W"]}, inits, opset=18)


def flattened(path, height, width):
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"], strides=[2, 2], pads=[1] * 4),
             helper.make_node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2], strides=[2, 2]),
             helper.make_node("Flatten", ["b"], ["c"]), helper.make_node("Gemm", ["c", "v"], ["y"])]
    return save(path, nodes, {"x": ["N", 3, "H", "W"]}, [weight("w", 4, 3, 3, 3), weight("v", 4 * height * width, 5)], rank=2)


def oblong(path):
    """One number of pixels, that of no square."""
    return flattened(path, 13, 21)


def square(path):
    return flattened(path, 17, 17)


def wave(path):
    """A second of sound."""
    nodes = [helper.make_node("Conv", ["x", "w"], ["a"], strides=[320]), helper.make_node("Flatten", ["a"], ["c"]),
             helper.make_node("MatMul", ["c", "v"], ["y"])]
    return save(path, nodes, {"x": ["N", 1, "samples"]}, [weight("w", 8, 1, 400), weight("v", 49 * 8, 4)], rank=2)


def nowhere(path, length=1000):
    """Long, and of a number of pixels that no image has: a prime, in four channels."""
    nodes, at = [helper.make_node("Conv", ["x", "w"], ["h0"], pads=[1] * 4)], "h0"
    for i in range(length):
        nodes += [helper.make_node("Relu", [at], [f"r{i}"]), helper.make_node("Neg", [f"r{i}"], [f"n{i}"]),
                  helper.make_node("Add", [f"n{i}", at], [f"h{i + 1}"])]
        at = f"h{i + 1}"
    nodes += [helper.make_node("Concat", [at, at], ["c"], axis=3), helper.make_node("Flatten", ["c"], ["f"]),
              helper.make_node("MatMul", ["f", "v"], ["y"])]
    return save(path, nodes, {"x": ["N", 3, "H", "W"]}, [weight("w", 4, 3, 3, 3), weight("v", 4 * 1093, 5)], rank=2)


def turns(path, length=400):
    """A loop whose body means to repeat what is computed for what is stored, in every turn anew: any size will do."""
    nodes, at = [helper.make_node("Gather", ["x", "i"], ["now"], axis=1)], "h"
    for k in range(length):
        nodes += [helper.make_node("Mul", ["now", "row"], [f"m{k}"]), helper.make_node("Add", [at, f"m{k}"], [f"a{k}"])]
        at = f"a{k}"
    nodes.append(helper.make_node("Identity", ["go"], ["on"]))
    scalar = [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("go", TensorProto.BOOL, [])]
    h, out = (helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("h", at))
    body = helper.make_graph(nodes, "body", [*scalar, h], [helper.make_tensor_value_info("on", TensorProto.BOOL, []), out])
    nodes = [helper.make_node("Shape", ["x"], ["n"], start=1, end=2), helper.make_node("Squeeze", ["n"], ["times"]),
             helper.make_node("Slice", ["x", "zero", "one", "axis"], ["first"]), helper.make_node("Squeeze", ["first", "axis"], ["f"]),
             helper.make_node("MatMul", ["f", "row"], ["start"]), helper.make_node("Loop", ["times", "", "start"], ["y"], body=body)]
    return save(path, nodes, {"x": ["N", "T", 1]}, [weight("row", 1, 4), ints("zero", 0), ints("one", 1), ints("axis", 1)], rank=2)


def recurrent(path):
    """A weight of a wrong shape, which no batch mends."""
    nodes = [helper.make_node("LSTM", ["x", "W", "R"], ["y"], hidden_size=3)]
    return save(path, nodes, {"x": [7, "N", 4]}, [weight("W", 1, 20, 4), weight("R", 1, 20, 3)])


class Extents(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = scratch.name

    def test_found(self):
        expected = {unet: "[1, 3, 16, 16]", classifier: "[1, 3, 224, 224]", window: "[1, 253]", fixed: "[1, 4, 8]",
                    vit16: "[1, 3, 224, 224]", vit14: "[1, 3, 336, 336]", vit37: "[1, 3, 518, 518]", stem: "[1, 3, 12, 12]",
                    places: "[1, 3, 224, 224]", spread: "[1, 8]",
                    windows: "[1, 3, 176, 176]", oblong: "[1, 3, 52, 84]", square: "[1, 3, 68, 68]", wave: "[1, 1, 16000]"}
        for make, shape in expected.items():
            path = make(os.path.join(self.folder, make.__name__ + ".onnx"))
            for args in (("explain", path), ("plan", path, "--loss", "mse")):
                status, _, err = call(*args)
                assert status == 0, (make.__name__, args, err)
                assert shape in err, (make.__name__, args, err)
            out = os.path.join(self.folder, "out.onnx")
            assert call("rewrite", path, "-o", out)[0] == 0, make.__name__
            onnx.checker.check_model(out)


    def test_turns(self):
        """What one turn of a loop repeats, all do. Who asks anew for each has soon done all the work that may be done."""
        status, _, err = call("explain", turns(os.path.join(self.folder, "turns.onnx")))
        assert status == 0 and "[1, 8, 1]" in err, err
        assert all(int(n) < 50 for n in re.findall(r"finding sizes: (\d+) %", err)), err


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
        assert status == 1 and "no sizes were found" in err and "[1,3,20," in err and "Add" in err, err
        assert "--dim" in err, err
        wide = oblong(os.path.join(self.folder, "o.onnx"))
        status, _, err = call("explain", wide, "--dim", "H=52")
        assert status == 0 and "[1, 3, 52, 84]" in err, err
        assert call("explain", path, "--dim", "height=64", "--dim", "width=32")[2] == ""


    def test_refused(self):
        """A search that takes long shows that it does, and how far it is."""
        began = time.monotonic()
        status, _, err = call("explain", nowhere(os.path.join(self.folder, "n.onnx")))
        assert status == 1 and "no sizes were found" in err and "float[4372,5]" in err, err
        assert time.monotonic() - began < 4 or re.search(r"finding sizes: \d+ %", err), err


    def test_other_fault(self):
        """What no number mends is not blamed on the numbers."""
        status, _, err = call("explain", recurrent(os.path.join(self.folder, "r.onnx")))
        assert status == 1 and "must be [1,12,4]" in err, err
        assert "no numbers" not in err and "accepts" not in err, err


    def same_at(self, path, out, *sizes):
        for size in sizes:
            x = rng.standard_normal(size).astype(np.float32)
            a, b = (ort.InferenceSession(p).run(None, {"x": x})[0] for p in (path, out))
            assert np.array_equal(a, b)

    def test_deciding_input(self):
        """An input whose value chooses the branch, and with it the width: fed, the width is found for that value."""
        branches = [helper.make_graph([helper.make_node("MatMul", ["x", f"w{n}"], [f"y{n}"])], f"g{n}", [],
                                      [helper.make_tensor_value_info(f"y{n}", TensorProto.FLOAT, None)]) for n in (48, 20)]
        nodes = [helper.make_node("Equal", ["rate", "fast"], ["is"]),
                 helper.make_node("If", ["is"], ["h"], then_branch=branches[0], else_branch=branches[1]),
                 helper.make_node("Split", ["h", "halves"], ["a", "b"], axis=1), helper.make_node("Tanh", ["a"], ["f"]),
                 helper.make_node("Add", ["b", "f"], ["c"]), helper.make_node("Concat", ["a", "c"], ["y"], axis=1)]
        fast = numpy_helper.from_array(np.array(16, np.int64), "fast")
        path = save(os.path.join(self.folder, "m.onnx"), nodes, {"x": ["N", "W"]},
                    [weight("w48", 48, 4), weight("w20", 20, 4), ints("halves", 2, 2), fast], rank=2)
        m = onnx.load(path)
        m.graph.input.append(helper.make_tensor_value_info("rate", TensorProto.INT64, []))
        onnx.save(m, path)
        out = os.path.join(self.folder, "out.onnx")
        for rate, width in ((16, 48), (8, 20)):
            np.save(os.path.join(self.folder, "rate.npy"), np.array(rate, np.int64))
            feed = ("--feed", "rate=" + os.path.join(self.folder, "rate.npy"))
            for args in (("explain", path), ("plan", path, "--loss", "mse"), ("rewrite", path, "-o", out)):
                with self.subTest(args=args, rate=rate):
                    status, said, err = call(*args, *feed)
                    self.assertEqual(status, 0, err)
                    self.assertRegex(err, rf"input 'x': \[\d, {width}\] is taken for \[N, W\]")
            self.assertRegex(said, "2 functions, 2 of them with an inverse\n.*hold only for the given values of rate,")
            for n in (48, 20):  # the written model still takes both
                fed = {"x": rng.standard_normal((3, n)).astype("f"), "rate": np.array(16 if n == 48 else 8)}
                was, now = (ort.InferenceSession(p).run(None, fed)[0] for p in (path, out))
                np.testing.assert_allclose(now, was, rtol=1e-6)
        for args in (("explain", path), ("plan", path, "--loss", "mse"), ("rewrite", path, "-o", out)):
            status, _, err = call(*args)
            self.assertEqual(status, 1)
            self.assertIn("it depends on input 'rate'", err)
            self.assertNotIn("is taken for", err)

    def test_every_size(self):
        """What is written runs at sizes other than the one that was looked at, and its inverses undo it there."""
        nodes = [helper.make_node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2),
                 helper.make_node("Conv", ["b", "w"], ["f"], pads=[1] * 4), helper.make_node("Add", ["a", "f"], ["y1"]),
                 helper.make_node("Concat", ["y1", "b"], ["y"], axis=1)]
        path = save(os.path.join(self.folder, "c.onnx"), nodes, {"x": ["N", 4, "H", "W"]}, [weight("w", 2, 2, 3, 3)], opset=18)
        out = os.path.join(self.folder, "c.inv.onnx")
        status, _, err = call("rewrite", path, "-o", out)
        assert status == 0, err
        self.same_at(path, out, (1, 4, 8, 8), (2, 4, 13, 9))

    def test_every_multiple(self):
        path, out = windows(os.path.join(self.folder, "w.onnx")), os.path.join(self.folder, "w.out.onnx")
        status, _, err = call("rewrite", path, "-o", out)
        assert status == 0, err
        self.same_at(path, out, (1, 3, 176, 176), (2, 3, 352, 176))


if __name__ == "__main__":
    unittest.main()
