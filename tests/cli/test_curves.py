# SPDX-License-Identifier: Apache-2.0
"""Losses of 100 steps beside PyTorch's (tests/data/curves.json, made by tests/data/make_curves.py): every optimizer, with
and without weight decay, Nesterov, clipping, micro-batches of which the last is smaller, averages of weights, label
smoothing, schedules. Fails if a definition differs: in float64 all are equal but for the last of the eight digits that
are kept there."""
import json
import os
import shutil
import sys
import tempfile
import unittest

import numpy as np
from common import call
from onnx import parser, save

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data"))
import make_curves  # noqa: E402

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,6] x) => (float[N,4] y) <float[6,8] w = {W}, float[8] b = {B}, float[8,4] v = {V}, float[4] c = {C}> {
    h = MatMul(x, w)
    i = Add(h, b)
    j = Tanh(i)
    k = MatMul(j, v)
    y = Add(k, c)
}"""

FILTER = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,6] x) => (float[N,4] y)
<float[5,1,2,2] w = {W}, float[5] b = {B}, float[10,4] v = {V}, float[4] c = {C}, int64[4] image = {-1, 1, 2, 3}, int64[2] flat = {-1, 10}> {
    a = Reshape(x, image)
    h = Conv(a, w, b)
    i = Tanh(h)
    j = Reshape(i, flat)
    k = MatMul(j, v)
    y = Add(k, c)
}"""


class Curves(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        for model, text, weights in (("plain", MODEL, make_curves.weights()),
                                     ("filter", FILTER, make_curves.filter_weights())):
            for name, a in weights.items():
                text = text.replace("{" + name.upper() + "}",
                                    "{" + ", ".join(f"{v:.9g}" for v in a.ravel().tolist()) + "}")
            save(parser.parse_model(text), cls.file(model + ".onnx"))
        for name, a in make_curves.data().items():
            np.save(cls.file(name + ".npy"), a)
            np.save(cls.file(name + "_micro.npy"), a[:make_curves.MICRO_ROWS])
        with open(os.path.join(os.path.dirname(make_curves.__file__), "curves.json"), encoding="ascii") as f:
            cls.curves = json.load(f)["runs"]

    @classmethod
    def file(cls, name):
        return os.path.join(cls.folder, name)

    def losses(self, options, *more):
        """(of the steps, of validations)"""
        suffix = "_micro.npy" if "accumulate" in options else ".npy"
        target, loss = ("labels", "cross_entropy") if "label-smoothing" in options else ("y", "mse")
        rows = make_curves.MICRO_ROWS if "accumulate" in options else make_curves.ROWS
        each = 1 if "accumulate" in options else rows // make_curves.BATCH
        log = self.file("log.jsonl")
        args = ["train", self.file(options.get("model", "plain") + ".onnx"), "-o", self.file("out.onnx"), "--data", self.file("x" + suffix), "--target",
                self.file(target + suffix), "--loss", loss, "--batch", make_curves.BATCH, "--no-shuffle", "--epochs",
                make_curves.STEPS // each, "--log", log, *more]
        if "average" in options:
            args += ["--val-data", self.file("x.npy"), "--val-target", self.file("y.npy")]
        for name, value in options.items():
            if name == "model":
                continue
            args += ["--" + name] if value is True else ["--" + name, value]
        status, _, err = call(*args)
        self.assertEqual(status, 0, err)
        with open(log, encoding="utf-8") as f:
            records = [json.loads(line) for line in f]
        return [[r["loss"] for r in records if r["split"] == split] for split in ("train", "val")]

    def close(self, got, want, limit, name):
        self.assertEqual(len(got), len(want), name)
        apart = np.abs(np.array(got) / np.array(want) - 1)
        self.assertLess(apart.max(), limit, f"{name}: step {apart.argmax() + 1} of {len(want)}")

    def test_float64(self):
        self.assertEqual(list(self.curves), list(make_curves.runs()))
        for name, options in make_curves.runs().items():
            steps, averages = self.losses(options, "--float64")
            self.close(steps, self.curves[name]["float64"], 1e-7, name)
            if "average" in self.curves[name]:
                self.close(averages, self.curves[name]["average"], 1e-7, name)

    def test_float32(self):
        for name, options in make_curves.runs().items():
            if "float32" in self.curves[name]:
                self.close(self.losses(options)[0], self.curves[name]["float32"], 1e-5, name)

    def test_device(self):
        """What is made of several nodes, with what each of their kernels is asked for."""
        for name in ("lamb_clip_norm", "muon_clip_value", "accumulate_clip_norm", "adafactor_decay", "label_smoothing",
                     "lamb_filter", "adafactor_filter", "muon_filter"):
            steps, _ = self.losses(make_curves.runs()[name], "--float64", "--device", "sim")
            self.close(steps, self.curves[name]["float64"], 1e-7, name)


if __name__ == "__main__":
    unittest.main()
