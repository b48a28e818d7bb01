# SPDX-License-Identifier: Apache-2.0
"""Files of tokens, raw and with llm.c's header. It fails if training on windows of them is not training on the arrays
that the windows are, if the type of a file is guessed, or if a token that the model does not have is not named."""
import os
import shutil
import struct
import tempfile
import unittest

import numpy as np
import onnx
from common import call, report
from onnx import numpy_helper, parser

VOCABULARY, T, LENGTH = 11, 6, 200
BIGRAMS = """<ir_version: 8, opset_import: ["" : 17]>
g (TYPE[N,WINDOW] x) => (float[N,WINDOW,11] y) <float[11,11] w = {W}> { y = Gather(w, x) }"""
# as many positions as there are rows of p
POSITIONS = """<ir_version: 8, opset_import: ["" : 17]>
g (int64[N,T] x) => (float[N,T,11] y) <float[5,11] p = {W}, float[11,11] w = {V}, int64 zero = {0}, int64 one = {1}> {
    e = Gather(w, x) s = Shape(x) t = Gather(s, one) r = Range(zero, t, one) q = Gather(p, r) y = Add(e, q) }"""
POSITIONS = POSITIONS.replace("{W}", "{" + "0.5, " * 54 + "0}").replace("{V}", "{" + "0.1, " * 120 + "0}")


class Tokens(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        g = np.random.default_rng(2)
        self.tokens = g.integers(0, VOCABULARY, LENGTH)
        self.w = g.standard_normal((VOCABULARY, VOCABULARY)).astype(np.float32)
        self.model = self.make_model()
        self.tokens.astype("<u2").tofile(self.file("raw.bin"))
        n = (LENGTH - 1) // T
        np.save(self.file("x.npy"), self.tokens[:n * T].reshape(n, T))
        np.save(self.file("y.npy"), self.tokens[1:n * T + 1].reshape(n, T))

    def make_model(self, dtype="int64", window="T", name="m.onnx"):
        text = BIGRAMS.replace("TYPE", dtype).replace("WINDOW", str(window))
        text = text.replace("{W}", "{" + ", ".join(f"{v:.6f}" for v in self.w.ravel()) + "}")
        onnx.save(parser.parse_model(text), self.file(name))
        return self.file(name)

    def file(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, content):
        with open(self.file(name), "wb") as f:
            f.write(content)
        return name

    def llm_c(self, name, magic, tokens, dtype, promised=None):
        header = struct.pack("<3i", magic, 1, len(tokens) if promised is None else promised)
        return self.write(name, header.ljust(1024, b"\0") + tokens.astype(dtype).tobytes())

    def arguments(self, data, *options, model=None):
        return ["train", model or self.model, "--data", self.file(data), "--loss", "cross_entropy", "--class-axis", 2,
                "--lr", 0.5, "--batch", 4, "--epochs", 2, "-o", self.file("out.onnx"), *options]

    def trained(self, data, *options, model=None):
        said = report(*self.arguments(data, *options, model=model))
        return said, numpy_helper.to_array(onnx.load(self.file("out.onnx")).graph.initializer[0])

    def refused(self, data, *options, says, model=None, status=1):
        got, _, err = call(*self.arguments(data, *options, model=model))
        self.assertEqual(got, status, err)
        self.assertIn(says, err)

    def test_windows_are_the_arrays(self):
        _, ordered = self.trained("x.npy", "--target", self.file("y.npy"), "--no-shuffle")
        _, shuffled = self.trained("x.npy", "--target", self.file("y.npy"))
        self.llm_c("new.bin", 20240520, self.tokens, "<u2")
        self.llm_c("wide.bin", 20240801, self.tokens, "<u4")
        self.write("text", self.tokens.astype("u1").tobytes())
        narrow = self.make_model("int32", T, "narrow.onnx")
        for data, options, model in (("raw.bin", ["--tokens", "uint16", "--window", T], None),
                                     ("raw.bin", ["--tokens", "uint16"], narrow),
                                     ("new.bin", ["--window", T], None),
                                     ("wide.bin", ["--window", T, "--data-threads", 0], None),
                                     ("text", ["--tokens", "uint8", "--window", T, "--threads", 1], None)):
            with self.subTest(data=data, options=options):
                _, got = self.trained(data, *options, "--no-shuffle", model=model)
                np.testing.assert_array_equal(got, ordered)
                _, got = self.trained(data, *options, "--windows", "sequential", model=model)
                np.testing.assert_array_equal(got, shuffled)

    def test_random_windows(self):
        """Others than the sequential ones, the same for one seed; what is evaluated is not drawn."""
        options = ["--tokens", "uint16", "--window", T]
        said, one = self.trained("raw.bin", *options, "--val-data", self.file("raw.bin"))
        again, two = self.trained("raw.bin", *options, "--threads", 1)
        _, other = self.trained("raw.bin", *options, "--seed", 1)
        _, sequential = self.trained("raw.bin", *options, "--windows", "sequential")
        np.testing.assert_array_equal(one, two)
        self.assertEqual(said["steps"], again["steps"])
        self.assertGreater(np.abs(one - other).max(), 1e-4)
        self.assertGreater(np.abs(one - sequential).max(), 1e-4)
        found = report("eval", self.file("out.onnx"), "--data", self.file("raw.bin"), "--loss", "cross_entropy",
                       "--class-axis", 2, *options)
        want = report("eval", self.file("out.onnx"), "--data", self.file("x.npy"), "--target", self.file("y.npy"),
                      "--loss", "cross_entropy", "--class-axis", 2)
        self.assertEqual(found["loss"], want["loss"])

    def test_several_files(self):
        """A window does not go over the end of a file."""
        parts = [self.tokens[:50], self.tokens[50:61], self.tokens[61:]]
        for i, part in enumerate(parts):
            part.astype("<u2").tofile(self.file(f"p{9 + i}.bin"))
        rows = [part[k:k + T + 1] for part in parts for k in range(0, len(part) - T, T)]
        np.save(self.file("x.npy"), np.array(rows)[:, :-1])
        np.save(self.file("y.npy"), np.array(rows)[:, 1:])
        _, want = self.trained("x.npy", "--target", self.file("y.npy"))
        _, got = self.trained("p*.bin", "--tokens", "uint16", "--window", T, "--windows", "sequential")
        np.testing.assert_array_equal(got, want)

    def test_held_out_windows_are_not_read(self):
        """Of a file whose windows are each of one token, those held out are tokens that no training step sees, as the
        weights of what was seen change."""
        tokens = np.repeat(np.arange(VOCABULARY), 5 * T)
        tokens.astype("<u2").tofile(self.file("raw.bin"))
        said, got = self.trained("raw.bin", "--tokens", "uint16", "--window", T, "--val-split", 2 / VOCABULARY,
                                 "--seed", 1)
        self.assertIn("val_loss", said)
        before = numpy_helper.to_array(onnx.load(self.model).graph.initializer[0])
        unseen = (got == before).all(axis=1).sum() # a run of 10 windows has one or two tokens for itself
        self.assertIn(unseen, (1, 2))

    def test_what_is_refused(self):
        options = ["--tokens", "uint16", "--window", T]
        bad = self.tokens.copy()
        bad[93] = 4711
        bad.astype("<u2").tofile(self.file("bad.bin"))
        self.refused("bad.bin", *options, says="bad.bin: token 4711 at place 93, but the model has 11 classes")
        self.refused("raw.bin", "--window", T, says="Give --tokens uint16")
        self.refused("raw.bin", "--tokens", "uint16", says="give --window T")
        fixed = self.make_model("int64", 5, "fixed.onnx")
        self.refused("raw.bin", *options, model=fixed, says="--window 6, but the model wants 5 tokens")
        onnx.save(parser.parse_model(POSITIONS), self.file("positions.onnx"))
        self.trained("raw.bin", "--tokens", "uint16", "--window", 5, model=self.file("positions.onnx"))
        self.refused("raw.bin", *options, model=self.file("positions.onnx"),
                     says="index 5 is outside axis 0, which has 5; rows are windows of 6 tokens: a smaller --window may fit")
        self.write("odd.bin", b"abc")
        self.refused("odd.bin", *options, says="3 bytes are no whole number of tokens of 2 bytes")
        self.write("short.bin", b"\0" * 12)
        self.refused("short.bin", *options, says="6 tokens are fewer than a window of 6")
        self.llm_c("cut.bin", 20240520, self.tokens, "<u2", 1000)
        self.refused("cut.bin", "--window", T, says="promises 1000 tokens, there are 200")
        self.llm_c("new.bin", 20240520, self.tokens, "<u2")
        self.refused("new.bin", "--window", T, "--tokens", "uint32", says="its header says uint16, --tokens says uint32")
        self.write("empty.bin", b"")
        self.refused("empty.bin", *options, says="the file is empty")
        self.refused("raw.bin", "--tokens", "int16", says="uint8|uint16|uint32", status=2)
        shutil.copy(self.file("raw.bin"), self.file("z1.bin"))
        np.save(self.file("z2.npy"), self.tokens)
        self.refused("z*", *options, says="z1.bin is tokens, but")


if __name__ == "__main__":
    unittest.main()
