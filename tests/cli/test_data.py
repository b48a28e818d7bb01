# SPDX-License-Identifier: Apache-2.0
"""Data as people have them: shards of arrays, rows held out. It fails if the same rows give other weights when they come
from several files, by other threads or in another order than seed and epoch say, or if a bad file is not named."""
import os
import re
import shutil
import tempfile
import unittest

import numpy as np
import onnx
from common import call, model, report
from onnx import numpy_helper

ROWS = 60


def weights(path):
    return {i.name: numpy_helper.to_array(i) for i in onnx.load(path).graph.initializer}


class Data(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.model = os.path.join(model("nice_dynbatch_ts17"), "model.onnx")
        g = np.random.default_rng(5)
        self.x = g.standard_normal((ROWS, 8)).astype(np.float32)
        self.y = np.tanh(self.x @ g.standard_normal((8, 8)).astype(np.float32))
        self.save("x.npy", self.x)
        self.save("y.npy", self.y)
        for i, (a, b) in enumerate(((0, 7), (7, 8), (8, 30), (30, 60))):
            self.save(f"part-x-{(2, 9, 10, 11)[i]}.npy", self.x[a:b])
            self.save(f"part-y-{(2, 9, 10, 11)[i]}.npy", self.y[a:b])
            np.savez(self.file(f"pair{i}.npz"), x=self.x[a:b], y=self.y[a:b])

    def file(self, name):
        return os.path.join(self.folder, name)

    def save(self, name, array):
        np.save(self.file(name), array)
        return self.file(name)

    def arguments(self, *options, x="x.npy", y="y.npy"):
        return ["train", self.model, "--data", self.file(x), "--target", self.file(y), "--loss", "mse", "--lr", "0.05",
                "--batch", "8", "--epochs", "2", "-o", self.file("out.onnx"), *options]

    def trained(self, *options, **files):
        said = report(*self.arguments(*options, **files))
        return said, weights(self.file("out.onnx"))

    def refused(self, *options, says, **files):
        status, _, err = call(*self.arguments(*options, **files))
        self.assertEqual(status, 1, err)
        for text in says if isinstance(says, list) else [says]:
            self.assertIn(text, err)

    def test_shards_are_one_array(self):
        _, want = self.trained()
        for files in (dict(x="part-x-*.npy", y="part-y-*.npy"), dict(x="x.npy", y="part-y-[0-9]*.npy"),
                      dict(x="pair?.npz", y="pair?.npz")):
            for threads in (["--threads", "1"], ["--data-threads", "0"], ["--data-threads", "3"]):
                with self.subTest(files=files, threads=threads):
                    _, got = self.trained(*threads, **files)
                    for name, w in want.items():
                        np.testing.assert_array_equal(got[name], w, name)
        found = report("eval", self.model, "--data", self.file("part-x-*.npy"), "--target", self.file("part-y-*.npy"),
                       "--loss", "mse")
        self.assertEqual(found["samples"], ROWS)

    def test_shards_that_differ(self):
        self.save("part-x-3.npy", self.x[:4].astype(np.float64))
        self.refused(x="part-x-*.npy", y="part-y-*.npy",
                     says=["part-x-3.npy has rows [8] of f8", "part-x-2.npy has rows [8] of f4"])
        self.save("part-x-3.npy", self.x[:4, :7])
        self.refused(x="part-x-*.npy", says="part-x-3.npy has rows [7] of f4")
        with open(self.file("part-x-3.npy"), "wb") as f:
            f.write(b"no array")
        self.refused(x="part-x-*.npy", says="part-x-3.npy: not a .npy file")
        self.refused(x="none-*.npy", says="none-*.npy: No such file")
        shutil.copy(self.file("part-x-3.npy"), self.file("text.txt"))
        self.refused(x="text.txt", says=["text.txt: not a .npy file", "--tokens uint8"])

    def test_a_shard_is_not_overwritten(self):
        shutil.copy(self.file("part-x-2.npy"), self.file("out.onnx"))
        self.refused(x="*.onnx", says="would overwrite")

    def test_a_row_of_a_shard_is_named(self):
        self.x[9, 2] = np.nan
        self.x[29, 0] = np.nan
        self.x[31, 0] = np.nan
        self.save("part-x-10.npy", self.x[8:30])
        self.save("part-x-11.npy", self.x[30:])
        self.refused("--batch", str(ROWS), x="part-x-*.npy",
                     says=f"rows 1 and 21 of {self.file('part-x-10.npy')}, row 1 of {self.file('part-x-11.npy')} hold NaN")

    def test_held_out(self):
        """Rows held out are evaluated and not trained on: their loss is the one of these rows alone, and changing
        their values changes no weight."""
        said, want = self.trained("--val-split", "0.25", "--seed", "3")
        self.assertEqual(len(said["epochs"]), 2)
        self.assertIn("val_loss", said)
        changed = 0
        for row in range(12): # of each block of four one is held out
            y = self.y.copy()
            y[row] += 1
            self.save("other.npy", y)
            _, got = self.trained("--val-split", "0.25", "--seed", "3", y="other.npy")
            changed += any((got[name] != w).any() for name, w in want.items())
        self.assertEqual(changed, 9)
        status, out, _ = call(*self.arguments("--val-split", "0.25"))
        self.assertEqual(status, 0)
        self.assertIn("15 of 60 rows are held out", out)
        self.refused("--val-split", "0.001", says="0 for validation and 60 for training")
        self.assertEqual(call(*self.arguments("--val-split", "1"))[0], 2)
        self.assertEqual(call(*self.arguments("--val-split", "0.5", "--val-data", self.file("x.npy")))[0], 2)

    def test_waits_are_said(self):
        status, out, _ = call(*self.arguments("-v", x="part-x-*.npy"))
        self.assertEqual(status, 0)
        self.assertTrue(re.search(r"data: prepared by 1 thread; the step waited [0-9.]+ s for them, and they [0-9.]+ s "
                                  r"for the step", out), out)


if __name__ == "__main__":
    unittest.main()
