# SPDX-License-Identifier: Apache-2.0
"""Models whose axis 0 is not the batch everywhere: time first, states of recurrent layers, graphs, numbers. With
--stacked files have one more axis in front, and a step takes one entry of each; what has no rows goes whole into every
step."""
import os
import tempfile
import unittest

import numpy as np
import onnx
from common import call, report
from onnx import numpy_helper, parser

RNG = np.random.default_rng(3)
LR = 0.5
# what recurrent networks of PyTorch give: time first
TIME = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch,3,time] x) => (float[time,batch,2] y)
<float[3,2] w = {0.5, -0.2, 0.1, 0.3, 0.4, -0.6}> {
    t = Transpose<perm = [2, 0, 1]>(x)
    y = MatMul(t, w)
}"""
# a state with the batch on its second axis, and a number that chooses the network
STATE = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch,3] x, float[2,batch,2] state, int64 rate) => (float[batch,2] y)
<float[3,2] w = {0.5, -0.2, 0.1, 0.3, 0.4, -0.6}, int64 fast = {16}, int64 one = {1}> {
    is = Equal(rate, fast)
    h = Gather<axis = 0>(state, one)
    y = If(is) <then_branch = a () => (float[batch,2] r) {
            m = MatMul(x, w)
            r = Add(m, h) },
        else_branch = b () => (float[batch,2] q) { q = Neg(h) }>
}"""
# an open batch, and an input that is made for one
GIVEN = """<ir_version: 8, opset_import: ["" : 17]>
g (float[batch,3] x, float[2,1,2] h0) => (float[batch,2] y)
<float[3,2] w = {0.5, -0.2, 0.1, 0.3, 0.4, -0.6}, int64 one = {1}> {
    m = MatMul(x, w)
    h = Gather<axis = 0>(h0, one)
    y = Add(m, h)
}"""
GRAPH = """<ir_version: 8, opset_import: ["" : 17]>
g (float[nodes,3] x, int64[2,edges] edge) => (float[nodes,2] y)
<float[3,2] w = {0.5, -0.2, 0.1, 0.3, 0.4, -0.6}, int64 zero = {0}, int64 one = {1}, float nil = {0},
 int64[1] axis = {1}, int64[2] pair = {1, 2}> {
    from = Gather<axis = 0>(edge, zero)
    to = Gather<axis = 0>(edge, one)
    h = MatMul(x, w)
    sent = Gather<axis = 0>(h, from)
    last = Unsqueeze(to, axis)
    where = Expand(last, pair)
    none = Mul(h, nil)
    y = ScatterElements<axis = 0, reduction = "add">(none, where, sent)
}"""

def weight(path):
    return numpy_helper.to_array(next(i for i in onnx.load(path).graph.initializer if i.name == "w"))


class Stacked(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.tmp = folder.name

    def file(self, name, array):
        path = os.path.join(self.tmp, name + ".npy")
        np.save(path, array)
        return path

    def model(self, text):
        path = os.path.join(self.tmp, "m.onnx")
        onnx.save(parser.parse_model(text), path)
        return path

    def gradient(self, path, feeds, target):
        """Of w, of one step that `grad` is given as it is."""
        dump = os.path.join(self.tmp, "dump")
        args = [a for n, v in feeds.items() for a in ("--feed", n + "=" + self.file("feed_" + n, v))]
        report("grad", path, *args, "--target", self.file("feed_y", target), "--loss", "mse", "--dump", dump)
        return np.load(os.path.join(dump, "grad_w.npy"))

    def trains(self, text, feeds, whole, target, mode):
        """Two steps, each of one entry, are two steps down the gradient that `grad` gives of these entries."""
        path, out = self.model(text), os.path.join(self.tmp, "out.onnx")
        args = [a for n, v in {**feeds, **whole}.items() for a in ("--data", n + "=" + self.file(n, v))]
        args += ["--target", self.file("y", target), "--loss", "mse", "--stacked"]
        got = report("train", path, *args, "--no-shuffle", "--lr", LR, "--memory", mode, "-o", out)
        self.assertEqual(got["steps_done"], len(target))
        here = onnx.load(path)
        for i, entry in enumerate(target):
            grad = self.gradient(path, {**{n: v[i] for n, v in feeds.items()}, **whole}, entry)
            w = weight(path) - LR * grad
            for t in here.graph.initializer:
                if t.name == "w":
                    t.CopyFrom(numpy_helper.from_array(w.astype(np.float32), "w"))
            onnx.save(here, path)
        np.testing.assert_allclose(weight(out), weight(path), rtol=1e-5, atol=1e-6)
        return out, args

    def test_time_first(self):
        x = RNG.standard_normal((2, 5, 3, 4)).astype(np.float32)
        y = RNG.standard_normal((2, 4, 5, 2)).astype(np.float32)
        for mode in "store", "invert", "auto":
            with self.subTest(mode=mode):
                self.trains(TIME, {"x": x}, {}, y, mode)

    def test_state_and_choice(self):
        x = RNG.standard_normal((2, 5, 3)).astype(np.float32)
        state = RNG.standard_normal((2, 2, 5, 2)).astype(np.float32)
        y = RNG.standard_normal((2, 5, 2)).astype(np.float32)
        out, args = self.trains(STATE, {"x": x, "state": state}, {"rate": np.array(16)}, y, "auto")
        self.assertIn("samples", report("eval", out, *args))
        got = report("train", out, *args, "-o", os.path.join(self.tmp, "again.onnx"), "--val-data",
                     "x=" + self.file("vx", x[:1]), "--val-data", "state=" + self.file("vs", state[:1]), "--val-data",
                     "rate=" + self.file("vr", np.array(16)), "--val-target", self.file("vy", y[:1]))
        self.assertGreater(got["val_loss"], 0)
        self.assertEqual(report("compare", out, *args)["modes"][0]["memory"], "store")

    def test_graph(self):
        x = RNG.standard_normal((3, 6, 3)).astype(np.float32)
        edge = RNG.integers(0, 6, (3, 2, 9))
        y = RNG.standard_normal((3, 6, 2)).astype(np.float32)
        self.trains(GRAPH, {"x": x, "edge": edge}, {}, y, "auto")

    def test_rows_beside_what_is_given(self):
        """With an open batch an input of a declared extent goes whole into every step, without --stacked."""
        path, out = self.model(GIVEN), os.path.join(self.tmp, "out.onnx")
        x, y = RNG.standard_normal((6, 3)).astype(np.float32), RNG.standard_normal((6, 2)).astype(np.float32)
        h0 = RNG.standard_normal((2, 1, 2)).astype(np.float32)
        got = report("train", path, "--data", "x=" + self.file("x", x), "--data", "h0=" + self.file("h", h0),
                     "--target", self.file("y", y), "--loss", "mse", "--batch", "6", "--lr", LR, "-o", out)
        self.assertEqual(got["steps_done"], 1)
        grad = self.gradient(path, {"x": x, "h0": h0}, y)
        np.testing.assert_allclose(weight(out), weight(path) - LR * grad, rtol=1e-5, atol=1e-6)
        # as many rows as its extent, and fewer in the last batch
        for command in "train", "eval":
            args = ["--data", "x=" + self.file("x", x[:5]), "--data", "h0=" + self.file("h", h0), "--target",
                    self.file("y", y[:5]), "--loss", "mse", "--batch", "2"]
            got = report(command, path, *args, *(["-o", out] if command == "train" else []))
            self.assertEqual(got["steps_done" if command == "train" else "samples"], 3 if command == "train" else 5)

    def refused(self, path, *args, status=1):
        got, _, err = call("train", path, *args, "--loss", "mse", "-o", os.path.join(self.tmp, "out.onnx"))
        self.assertEqual(got, status, err)
        return err

    def test_refusals(self):
        path = self.model(TIME)
        x, y = self.file("x", np.ones((2, 5, 3, 4), "f")), self.file("y", np.ones((2, 4, 5, 2), "f"))
        one_x, one_y = self.file("one_x", np.ones((5, 3, 4), "f")), self.file("one_y", np.ones((4, 5, 2), "f"))
        err = self.refused(path, "--data", one_x, "--target", one_y)
        self.assertRegex(err, "4 rows, the data has 5(.|\n)*--stacked")
        self.assertIn("--stacked", self.refused(path, "--data", x, "--target", y, "--stacked", "--batch", "2", status=2))
        self.assertIn("rows", self.refused(path, "--data", x, "--target", one_y, "--stacked"))
        err = self.refused(path, "--data", self.file("bad", np.ones((2, 5, 2, 4), "f")), "--target", y, "--stacked")
        self.assertIn("shape [5, 2, 4], but the model wants [batch, 3, time]", err)
        bad = np.ones((2, 5, 3, 4), "f")
        bad[1, 2, 1, 3] = np.nan
        self.assertIn("row 1 of", self.refused(path, "--data", self.file("nan", bad), "--target", y, "--stacked",
                                               "--no-shuffle", "--memory", "store"))


if __name__ == "__main__":
    unittest.main()
