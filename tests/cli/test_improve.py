# SPDX-License-Identifier: Apache-2.0
"""What a run of `train` learns of its operators' times, and when it leaves that alone: not where plans are to hang on the
model alone. Fails if rates are not corrected, if a later run does not begin with that, if weights hang on it where all is
recomputed or kept, or if an interrupt finds a search that does not end."""
import json
import os
import signal
import subprocess
import unittest

import common
import numpy as np

REVNET = os.path.join(common.model("revnet8_ts17"), "model.onnx")


class TestImprove(common.InFolder):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(2)
        np.save(self.at("x.npy"), rng.standard_normal((16, 3, 32, 32)).astype(np.float32))
        np.save(self.at("y.npy"), np.arange(16) % 10)
        self.environment = {k: v for k, v in os.environ.items() if k != "INVONNX_COST"} | {"XDG_CACHE_HOME": self.at("cache")}

    def words(self, *more, out="out.onnx"):
        return ("train", REVNET, "--data", self.at("x.npy"), "--target", self.at("y.npy"), "--loss", "cross_entropy",
                "--batch", 4, "-o", self.at(out), *more)

    def train(self, *more, out="out.onnx", env=None):
        return common.report(*self.words("--steps", 20, *more, out=out), env=env or self.environment)

    def plan(self, *more):
        return common.report("plan", REVNET, "--loss", "cross_entropy", "--batch", 4, "--memory", "recompute", *more,
                             env=self.environment)

    def corrections(self):
        """What the file of rates has of them; None: there is no file."""
        folder = self.at("cache/invonnx")
        names = os.listdir(folder) if os.path.isdir(folder) else []
        self.assertLessEqual(len(names), 1)
        for name in names:
            with open(os.path.join(folder, name)) as f:
                return json.load(f)["seen"]
        return None

    def test_steps_correct_the_rates(self):
        before = self.plan("--threads", 1)
        self.assertIsNone(before["timed_seconds"])
        self.assertIsNone(before["uncorrected_seconds"])
        self.assertEqual(self.corrections(), {})
        report = self.train("--memory", "recompute", "--threads", 1)
        self.assertGreater(report["timed_seconds"], 0)
        self.assertGreater(report["uncorrected_seconds"], 0)
        seen = self.corrections()
        self.assertGreater(len(seen), 20)
        self.assertIn("0" * 16, seen)  # of all nodes together
        self.assertNotEqual(self.plan("--threads", 1)["store_predicted_seconds"], before["store_predicted_seconds"])
        if not report["plans_taken"]:  # else it is another plan's time
            self.assertLess(abs(report["predicted_seconds"] / report["timed_seconds"] - 1), 0.02)

    def test_what_leaves_it_alone(self):
        self.plan("--cost", "flops", "--plan", self.at("plan.json"))
        weights = set()
        for how, env in ((("--deterministic",), {}), (("--cost", "flops"), {}), ((), {"INVONNX_COST": "flops"}),
                         (("--plan", self.at("plan.json"), "--cost", "time"), {}), (None, {})):
            report = self.train("--memory", "recompute", *(how or ()), env={**self.environment, **env})
            if how is not None:
                self.assertEqual((report["timed_seconds"], report["plans_taken"]), (None, 0), how)
                self.assertFalse(self.corrections(), how)
            with open(self.at("out.onnx"), "rb") as f:
                weights.add(f.read())
        self.assertTrue(self.corrections())  # the last one is not told to leave it alone
        self.assertEqual(len(weights), 1, "weights hang on it")

    def test_an_interrupt_ends_it(self):
        """While a thread searches, or is about to."""
        words = self.words("--epochs", 10 ** 6, "--threads", 2)
        child = subprocess.Popen([common.PROGRAM, *map(str, words)], env=self.environment, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE)
        for line in child.stdout:
            if line.startswith(b"epoch ") and int(line.split(b"/")[0][6:]) >= 10:
                break
        child.send_signal(signal.SIGINT)
        out, err = child.communicate()
        self.assertEqual(child.returncode, 130, err)
        self.assertIn(b"weights saved to", out)
        self.assertTrue(os.path.exists(self.at("out.onnx")))


if __name__ == "__main__":
    unittest.main()
