# SPDX-License-Identifier: Apache-2.0
"""--precision tf32 and bf16 on device sim: factors rounded to so many bits, the numbers that modes share, what is left
uninverted, and where it is refused."""
import os
import shutil
import tempfile
import unittest

import numpy as np
import onnx
from common import DATA, call, report
from onnx import TensorProto, helper, numpy_helper

BITS = {"tf32": 11, "bf16": 8}
MODELS = os.path.join(DATA, "models")


def rounded(x, bits):
    """To the nearest number with so many bits, in float64."""
    mantissa, exponent = np.frexp(x.astype(np.float64))
    return np.ldexp(np.round(np.ldexp(mantissa, bits)), exponent - bits)


class Precision(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def file(self, name):
        return os.path.join(self.folder, name)

    def product(self, *options):
        rng = np.random.default_rng(3)
        x, w = (rng.standard_normal(s).astype(np.float32) for s in ((5, 40), (40, 7)))
        x[4, 0] = np.uint32(0x7f800001).view(np.float32)  # a NaN of which the rounded bits say nothing
        graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
                                  [helper.make_tensor_value_info("x", TensorProto.FLOAT, (5, 40))],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                                  [numpy_helper.from_array(w, "w")])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), self.file("m.onnx"))
        np.save(self.file("x.npy"), x)
        status, _, err = call("run", self.file("m.onnx"), "--feed", self.file("x.npy"), "--dump", self.folder, *options)
        return status, err, x, w

    def test_factors_are_rounded(self):
        for name, bits in BITS.items():
            status, err, x, w = self.product("--device", "sim", "--precision", name)
            self.assertEqual(status, 0, err)
            y, exact = np.load(self.file("out_y.npy")), x.astype(np.float64) @ w
            self.assertTrue(np.isnan(y[4]).all())
            y, exact, x = y[:4], exact[:4], x[:4]
            np.testing.assert_allclose(y, rounded(x, bits) @ rounded(w, bits), rtol=0, atol=1e-5)
            self.assertGreater(np.abs(y - exact).max(), 1e-4)

    def test_refused(self):
        for options, why in ((("--precision", "tf32"), "has no effect here"),
                             (("--precision", "bf16", "--device", "checked"), "has no effect here"),
                             (("--precision", "tf32", "--device", "sim", "--float64"), "--float64")):
            status, err, *_ = self.product(*options)
            self.assertNotEqual(status, 0)
            self.assertIn("--precision", err)
            self.assertIn(why, err)

    def gradients(self, model, *options):
        """(the report, gradients) of a golden model on device sim."""
        feed = ["--feed", os.path.join(MODELS, model, "in_x.npy"), "--device", "sim", *options]
        out = self.file("-".join(options))
        r = report("grad", os.path.join(MODELS, model, "model.onnx"), *feed, "--loss", "nll", "--loss-output", "z",
                   "--logdet", "logdet", "--dump", out)
        return r, {f: np.load(os.path.join(out, f)) for f in sorted(os.listdir(out)) if f.startswith("grad_")}

    def test_couplings_are_inverted_as_in_float32(self):
        exact, want = self.gradients("nice_chunk_ts17", "--float64", "--memory", "store")
        full, _ = self.gradients("nice_chunk_ts17", "--memory", "invert")
        for name, least, most in (("tf32", 1e-5, 3e-3), ("bf16", 1e-4, 3e-2)):
            store, kept = self.gradients("nice_chunk_ts17", "--memory", "store", "--precision", name)
            invert, rebuilt = self.gradients("nice_chunk_ts17", "--memory", "invert", "--precision", name)
            self.assertEqual(invert["values"]["inverted"], full["values"]["inverted"])
            self.assertLess(invert["drift"]["largest"], 2e-6)  # that of float32
            norm = np.sqrt(sum((g ** 2).sum() for g in want.values()))
            off = [np.sqrt(sum(((g[k] - want[k]) ** 2).sum() for k in want)) / norm for g in (kept, rebuilt)]
            self.assertTrue(all(least < x < most for x in off), f"{name}: {off}")
            self.assertAlmostEqual(off[0], off[1], delta=0.02 * off[0])

    def test_channels_last(self):
        """Convolutions whose images have their channels last are as near to float32 as others, and give the same bits in all modes."""
        folder = os.path.join(MODELS, "plain_lenet_ts17")
        args = ["grad", os.path.join(folder, "model.onnx"), "--feed", os.path.join(folder, "in_x.npy"), "--target",
                os.path.join(folder, "target.npy"), "--loss", "cross_entropy", "--device", "sim"]
        runs = {"float32": (), "second": ("--precision", "tf32"), "last": ("--precision", "tf32"),
                "again": ("--precision", "tf32", "--memory", "recompute")}
        got, turned = {}, {}
        for name, options in runs.items():
            env = dict(os.environ, INVONNX_CHANNELS_SECOND="1") if name == "second" else None
            out, passes = self.file(name), self.file(name + "-passes")
            report(*args, *options, "--dump", out, "--dump-passes", passes, env=env)
            got[name] = {f: np.load(os.path.join(out, f)) for f in sorted(os.listdir(out)) if f.startswith("grad_")}
            with open(os.path.join(passes, next(f for f in os.listdir(passes) if f.endswith("-layout.txt"))), encoding="utf-8") as f:
                turned[name] = "channels_last" in f.read()
        self.assertEqual(turned, {"float32": False, "second": False, "last": True, "again": True})
        for f, want in got["float32"].items():
            off = {name: np.linalg.norm(got[name][f] - want) / np.linalg.norm(want) for name in ("second", "last")}
            self.assertLess(off["last"], 3 * off["second"] + 1e-3, f)
            self.assertEqual(got["again"][f].tobytes(), got["last"][f].tobytes(), f)

    def test_maps_are_not_solved(self):
        folder = os.path.join(MODELS, "linear_square_ts17")
        inverted = [report("grad", os.path.join(folder, "model.onnx"), "--feed", os.path.join(folder, "in_x.npy"), "--target",
                           os.path.join(folder, "target.npy"), "--loss", "mse", "--memory", "invert", "--device", "sim",
                           *options)["values"]["inverted"]
                    for options in ((), ("--precision", "tf32"), ("--precision", "tf32", "--max-drift", 0.5))]
        self.assertGreater(inverted[0], 0)
        self.assertEqual(inverted, [inverted[0], 0, inverted[0]])


if __name__ == "__main__":
    unittest.main()
