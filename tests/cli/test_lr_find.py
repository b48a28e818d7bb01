# SPDX-License-Identifier: Apache-2.0
"""`train --lr-find`: on a convex problem whose largest stable rate is known the suggested rate is below it, by no more than a
factor, and the search ends once the loss explodes. Fails if weights are written, or an option that is about a training is
taken without a word."""
import os
import subprocess
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import common


class LrFind(common.InFolder):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(3)
        x = rng.standard_normal((64, 8)).astype(np.float32)
        y = x @ rng.standard_normal((8, 4)).astype(np.float32)
        np.save(self.at("x.npy"), x)
        np.save(self.at("y.npy"), y)
        # mean of (x W - y)^2: descent on it is stable for rates below 2 / (largest eigenvalue of its Hessian)
        self.limit = 2 / (2 / y.size * np.linalg.eigvalsh((x.T @ x).astype(np.float64))[-1])
        graph = helper.make_graph([helper.make_node("MatMul", ["x", "W"], ["y"])], "linear",
                                  [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8])],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])],
                                  [numpy_helper.from_array(np.zeros((8, 4), np.float32), "W")])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), self.at("m.onnx"))
        self.data = ["train", "m.onnx", "--data", "x.npy", "--target", "y.npy", "--loss", "mse"]

    def run_it(self, *more, status=0):
        r = subprocess.run([common.PROGRAM, *self.data, *more], capture_output=True, text=True, check=False,
                           cwd=self.folder.name)
        self.assertEqual(r.returncode, status, r.stdout + r.stderr)
        return r.stdout + r.stderr

    def report(self, *more):
        os.chdir(self.folder.name)
        return common.report(*self.data, *more)

    def check(self, r, limit):
        self.assertLess(r["suggested_lr"], limit)
        self.assertGreater(r["suggested_lr"], limit / 60)
        rates = [s["lr"] for s in r["steps"]]
        self.assertEqual(len(rates), r["steps_done"])
        self.assertTrue(all(a < b for a, b in zip(rates, rates[1:])))
        self.assertGreater(rates[-1], limit)  # it went past the limit,
        self.assertLess(rates[-1], 100 * limit)  # and ended soon

    def test_known_limit(self):
        with open(self.at("m.onnx"), "rb") as f:
            before = f.read()
        for more, factor in (([], 1), (["--batch", "16", "--accumulate", "4"], 1), (["--batch", "64", "--float64"], 1),
                             # a group's rate is that many times the step's
                             (["--batch", "64", "--lr", "0.1", "--group", "W:lr=0.5"], 5)):
            with self.subTest(more=more):
                r = self.report("--batch", "64", *more, "--lr-find", "lr.svg", "--lr-range", "1e-4:1e4")
                self.check(r, self.limit / factor)
                self.assertEqual(r["ended"], "the loss rose")
        with open(self.at("lr.svg"), encoding="utf-8") as f:
            picture = f.read()
        self.assertIn("suggested: ", picture)
        with open(self.at("m.onnx"), "rb") as f:
            self.assertEqual(f.read(), before)
        self.assertEqual(sorted(os.listdir(self.folder.name)), ["lr.svg", "m.onnx", "x.npy", "y.npy"])

    def test_words(self):
        said = self.run_it("--batch", "5", "--steps", "200", "--lr-find", "lr.html")
        self.assertRegex(said, r"suggested: --lr [0-9.e+-]+, where the loss falls fastest; .* of 200 steps.*lr\.html")
        self.assertNotIn("saved", said)
        for batch in ("64", "4"):  # nothing happens at such rates but that batches differ
            said = self.run_it("--lr-find", "lr.html", "--lr-range", "1e-30:1e-20", "--batch", batch)
            self.assertIn("no learning rate is suggested", said)
            self.assertIn("100 of 100 steps", said)
        # not finite at once, and with the file's own weights
        r = self.report("--lr-find", "lr.svg", "--lr-range", "1e30:1e36", "--steps", "10")
        self.assertIn(r["ended"], ("the loss rose", "the loss was not finite any more"))
        self.assertIsNone(r["suggested_lr"])
        x = np.load(self.at("x.npy"))
        x[7, 3] = np.nan
        np.save(self.at("x.npy"), x)
        self.assertIn("Mend these rows", self.run_it("--lr-find", "lr.svg", "--batch", "16", status=1))

    def test_refused(self):
        for option in (["-o", "o.onnx"], ["--checkpoint", "ck"], ["--best", "loss"], ["--patience", "2"], ["--schedule", "cosine"],
                       ["--warmup", "3"], ["--epochs", "2"], ["--val-data", "x.npy"], ["--log", "l.jsonl"],
                       ["--average", "ema:0.9"], ["--time-limit", "1h"], ["--min-lr", "1"], ["--resume"], ["--html", "p.html"]):
            said = self.run_it("--lr-find", "lr.svg", *option, status=2)
            name = option[0] if option[0] != "-o" else "--out"
            self.assertIn(f"{name} has no effect with --lr-find", said)
        for text in ("1", "1:", ":1", "0:1", "1:1", "2:1", "-1:1", "1:inf", "1:2x", "nan:1"):
            self.assertIn("FROM:TO", self.run_it("--lr-find", "lr.svg", "--lr-range", text, status=2))
        self.assertIn("it needs --lr-find", self.run_it("--lr-range", "1:2", "-o", "o.onnx", status=2))
        self.assertIn("10 at least", self.run_it("--lr-find", "lr.svg", "--steps", "9", status=2))
        self.assertIn("nowhere", self.run_it("--lr-find", "nowhere/lr.svg", status=1))
        self.assertIn("overwrite", self.run_it("--lr-find", "x.npy", status=1))
        self.assertFalse(os.path.exists(self.at("lr.svg")))

    def test_options_of_a_run(self):
        """A file of options is of the training that the rate is for: what is about that alone is passed over."""
        with open(self.at("run.options"), "w", encoding="utf-8") as f:
            f.write("out o.onnx\nepochs 3\nschedule cosine\nwarmup 2%\ncheckpoint ck\nkeep 3\nresume\nlog l.csv\nbatch 64\n")
        self.run_it("--options", "run.options", "--lr-find", "lr.svg")
        self.assertEqual(sorted(os.listdir(self.folder.name)), ["lr.svg", "m.onnx", "run.options", "x.npy", "y.npy"])


if __name__ == "__main__":
    unittest.main()
