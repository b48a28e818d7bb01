# SPDX-License-Identifier: Apache-2.0
"""The runs of examples/, as small as they go. It fails if one does not end well, if its loss does not fall, if
onnxruntime computes something else with the file it wrote than `invonnx run` does, or if a missing program, or a Python
without onnxruntime, is not told."""
import glob
import json
import os
import subprocess
import sys
import unittest

import numpy as np
import onnxruntime
from common import EXAMPLES, PROGRAM, ROOT, InFolder, call


class Examples(InFolder):
    def start(self, name, *arguments, **environment):
        environment = {"INVONNX": PROGRAM, "INVONNX_PYTHON": sys.executable, **environment}
        return subprocess.run([os.path.join(EXAMPLES, "run_" + name), *arguments], env={**os.environ, **environment},
                              cwd=self.folder.name, capture_output=True, text=True)

    def train(self, name):
        """(what the small run printed, its losses)"""
        done = self.start(name, "--small", "out")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(self.at("out/run.jsonl"), encoding="utf-8") as f:
            return done.stdout, [r["loss"] for r in map(json.loads, f) if r["split"] == "train"]

    def agree(self, model, x):
        """What the program and onnxruntime compute with a file is the same; it is given back by name."""
        np.save(self.at("feed.npy"), x)
        status, _, err = call("run", self.at(model), "--feed", self.at("feed.npy"), "--dump", self.at("dump"))
        self.assertEqual(status, 0, err)
        session = onnxruntime.InferenceSession(self.at(model), providers=["CPUExecutionProvider"])
        names = [y.name for y in session.get_outputs()]
        results = dict(zip(names, session.run(names, {session.get_inputs()[0].name: x})))
        for name, wanted in results.items():
            got = np.load(self.at(f"dump/out_{name}.npy"))
            self.assertLess(np.abs(got - wanted).max(), 1e-4 * np.abs(wanted).max(), f"{model}: {name}")
        return results

    def test_pictures(self):
        out, losses = self.train("pictures")
        self.assertLess(np.mean(losses[-10:]), losses[0] / 1.5)
        self.assertRegex(out, r"accuracy 0\.[5-9]\d+ \(\d+ of 360\)(.|\n)*png: \d \(\d+%\)(.|\n)*[5-9] of 10 right")
        sys.path.insert(0, EXAMPLES)
        import classify
        pictures = sorted(glob.glob(self.at("out/val/*/*.png")))
        logits = self.agree("out/digits.onnx", np.stack([classify.read(p) for p in pictures]))["logits"]
        right = sum(str(k) == p.split("/")[-2] for k, p in zip(logits.argmax(1), pictures))
        self.assertIn(f"({right} of 360)", out)  # what was read here is what `eval` had read
        self.assertEqual(np.load(os.path.join(EXAMPLES, "data", "digits_val_x.npy")).shape[0], len(pictures))

    def test_gpt(self):
        out, losses = self.train("gpt")
        self.assertGreater(losses[0], 5.4)  # log 256 is 5.55
        self.assertLess(np.mean(losses[-10:]), 3.6)
        self.assertRegex(out, r"bits_per_token +[2-4]\.\d+(.|\n)*\nThe licensee may ")
        with open(self.at("out/val.txt"), "rb") as f:
            tokens = np.frombuffer(f.read(300), np.uint8).astype(np.int64).reshape(3, 100)
        self.assertEqual(self.agree("out/gpt.onnx", tokens)["logits"].shape, (3, 100, 256))

    def test_flow(self):
        out, losses = self.train("flow")
        self.assertLess(np.mean(losses[-10:]), losses[0] - 1)
        self.assertRegex(out, r"\nloss 2\.\d+ .*2000 samples(.|\n)*moons_inverse\.onnx: z -> x, logdet_inverse")
        self.assertTrue(os.path.exists(self.at("out/moons.svg")))
        x = np.load(os.path.join(EXAMPLES, "data", "moons.npy"))
        z = self.agree("out/moons.onnx", x)["z"]
        self.assertLess(np.abs(self.agree("out/moons_inverse.onnx", z)["x"] - x).max(), 1e-3)

    def test_what_is_missing_is_told(self):
        done = self.start("flow", INVONNX="/nowhere/invonnx")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "run_flow: /nowhere/invonnx is not there.*cmake --preset release")
        for wrong in (["--smal"], ["a", "b"]):
            done = self.start("gpt", *wrong)
            self.assertEqual((done.returncode, done.stderr.split(":")[0]), (2, "usage"))
        with open(self.at("python"), "w", encoding="utf-8") as f:
            f.write("#!/bin/sh\nexit 1\n")
        os.chmod(self.at("python"), 0o755)
        done = self.start("flow", "--small", "out", INVONNX_PYTHON=self.at("python"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, "skipped, as .*python has no onnxruntime.*moons.py sample")
        self.assertTrue(os.path.exists(self.at("out/moons_inverse.onnx")))


if __name__ == "__main__":
    unittest.main()
