# SPDX-License-Identifier: Apache-2.0
"""Losses and their options against formulas in NumPy: cross entropy with class weights and a label to be ignored, Huber's
loss, and ONNX's loss operators as the model's own. Normalisations and pooling give the same gradients whether their
results are kept or computed again. The operator Gradient, against the derivative by hand."""
import json
import os
import shutil
import tempfile
import unittest

import numpy as np
from common import call, report
from onnx import parser, save

LINEAR = """<ir_version: 8, opset_import: ["" : 17]>
g (float[6,3] x) => (float[6,4] y) <float[3,4] w = {W}> { y = MatMul(x, w) }"""
TOKENS = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,T,3] x) => (float[N,T,4] y) <float[3,4] w = {W}> { y = MatMul(x, w) }"""
IMAGES = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,T,3] x) => (float[N,4,T] y) <float[3,4] w = {W}> { m = MatMul(x, w) y = Transpose<perm = [0,2,1]>(m) }"""
OWN_LOSS = """<ir_version: 8, opset_import: ["" : 17]>
g (float[6,3] x, int64[6] t) => (float l) <float[3,4] w = {W}, float[4] k = {0.5, 2.0, 1.0, 0.25}> {
    y = MatMul(x, w)
    BODY
}"""
POOLED = """<ir_version: 10, opset_import: ["" : 23]>
g (float[2,2,6,6] x) => (float[2,4,3,3] y)
<float[4,2,3,3] w = {F}, float[4] s = {0.5, 2.0, 1.0, 0.7}, float[4] b = {0.1, 0.2, -0.1, 0.0}, float[3] r = {1.0, 0.5, 2.0}> {
    c = Conv<pads = [1,1,1,1]>(x, w)
    i = InstanceNormalization(c, s, b)
    t = Tanh(i)
    p = MaxPool<kernel_shape = [2,2], strides = [2,2]>(t)
    n = GroupNormalization<num_groups = 2>(p, s, b)
    m = RMSNormalization(n, r)
    y = Sin(m)
}"""
GRADIENT = """<ir_version: 8, opset_import: ["" : 17, "ai.onnx.preview.training" : 1]>
g (float[3] a, float[3] b) => (float[3] c, float[3] da, float[3] db) {
    s = Sin(a)
    m = Mul(s, b)
    c = Add(m, a)
    da, db = ai.onnx.preview.training.Gradient<xs = ["a", "b"], y = "c">(a, b)
}"""
K = np.array([0.5, 2.0, 1.0, 0.25])


def numbers(values):
    return ", ".join(f"{v:.6f}" for v in np.ravel(values))


def softmax(y):
    e = np.exp(y - y.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


class Losses(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        random = np.random.default_rng(5)
        self.x = random.standard_normal((6, 3)).astype(np.float32).astype(float)
        self.w = np.round(random.standard_normal((3, 4)), 6).astype(np.float32).astype(float)
        self.labels = np.array([0, 3, 1, 2, 1, 0])
        self.save(x=self.x, labels=self.labels, k=K)

    def file(self, name):
        return os.path.join(self.folder, name)

    def save(self, **arrays):
        for name, array in arrays.items():
            np.save(self.file(name + ".npy"), array)

    def model(self, text):
        path = self.file("m.onnx")
        save(parser.parse_model(text.replace("{W}", "{" + numbers(self.w) + "}")), path)
        return path

    def grad(self, text, *options):
        """(loss, gradients by name)"""
        out = self.file("out")
        shutil.rmtree(out, ignore_errors=True)
        r = report("grad", self.model(text), "--dump", out, *options)
        return r["loss"], {n[5:-4]: np.load(os.path.join(out, n)) for n in os.listdir(out) if n.startswith("grad_")}

    def linear(self, target, *options):
        self.save(t=target)
        return self.grad(LINEAR, "--feed", self.file("x.npy"), "--target", self.file("t.npy"), "--float64", *options)

    def close(self, got, loss, dy):
        self.assertAlmostEqual(got[0], loss, places=12)
        np.testing.assert_allclose(got[1]["w"], self.x.T @ dy, rtol=1e-10, atol=1e-12)

    def expected(self, weight, ignore):
        """Cross entropy with labels: mean over the weights of the rows that count."""
        y = self.x @ self.w
        row = np.where(self.labels == ignore, 0, weight[self.labels])
        p = softmax(y)
        loss = -(row * np.log(p[np.arange(6), self.labels])).sum() / row.sum()
        return loss, row[:, None] / row.sum() * (p - np.eye(4)[self.labels])

    def test_class_weights_and_ignored_labels(self):
        weights = ["--class-weights", self.file("k.npy")]
        self.close(self.linear(self.labels, "--loss", "cross_entropy", *weights), *self.expected(K, None))
        for device in ("cpu", "sim"):
            self.close(self.linear(self.labels, "--loss", "cross_entropy", *weights, "--ignore-index", 1, "--device",
                                   device), *self.expected(K, 1))
        labels, self.labels = np.where(self.labels == 1, -100, self.labels), np.where(self.labels == 1, 1, self.labels)
        self.close(self.linear(labels, "--loss", "cross_entropy", "--ignore-index=-100"), *self.expected(np.ones(4), 1))

    def test_eval_is_the_mean_over_labels_that_count(self):
        """... of all batches, some of which have few of them or none."""
        labels = np.array([0, 3, -100, 1, -100, 0])
        self.save(t=labels, none=np.full(6, -100))
        self.labels = np.where(labels < 0, 1, labels)
        model = self.model(LINEAR.replace("[6,", "[N,"))
        common = ["--data", self.file("x.npy"), "--loss", "cross_entropy", "--ignore-index=-100", "--float64"]
        weights = K * (np.arange(4) != 1)
        self.save(k=weights)
        for kind, options in ((np.ones(4), []), (weights, ["--class-weights", self.file("k.npy")])):
            y = self.x @ self.w
            row = np.where(labels < 0, 0, kind[self.labels])
            loss = -(row * np.log(softmax(y)[np.arange(6), self.labels])).sum() / row.sum()
            for batch, device in ((1, "cpu"), (2, "sim"), (4, "cpu"), (6, "cpu")):
                got = report("eval", model, *common, *options, "--target", self.file("t.npy"), "--batch", batch,
                             "--device", device)
                self.assertAlmostEqual(got["loss"], loss, places=12)
                self.assertEqual(got["rows"], 4)
        status, _, err = call("eval", model, *common, "--target", self.file("none.npy"))
        self.assertEqual(status, 1)
        self.assertIn("no label counts", err)
        # training says so, and no word of learning rates
        status, _, err = call("train", model, *common, "--target", self.file("t.npy"), "--batch", 1, "--no-shuffle", "-o",
                              self.file("o.onnx"))
        self.assertEqual(status, 1)
        for word in ("step 3 of 6: no label of the batch counts", "--ignore-index", "row 2", "--batch"):
            self.assertIn(word, err)
        self.assertNotIn("--lr", err)
        # of a step of several batches only one has to have labels that count
        train = ["train", model, *common, "-o", self.file("o.onnx"), "--lr", 0.5, "--epochs", 3, "--no-shuffle"]
        one, six = (report(*train, "--target", self.file("t.npy"), *more)["steps"]
                    for more in (["--batch", 6], ["--batch", 1, "--accumulate", 6]))
        np.testing.assert_allclose(one, six, rtol=1e-12)
        status, _, err = call(*train, "--target", self.file("none.npy"), "--batch", 2, "--accumulate", 3)
        self.assertEqual(status, 1)
        self.assertIn("no label of the batch counts", err)

    def test_labels_that_are_not_integers(self):
        self.save(t=self.labels.astype(np.float32))
        status, _, err = call("grad", self.model(LINEAR), "--feed", self.file("x.npy"), "--target", self.file("t.npy"),
                              "--loss", "cross_entropy")
        self.assertEqual(status, 1)
        self.assertIn("y.astype(numpy.int64)", err)
        self.save(t=np.eye(4, dtype=np.int64)[self.labels])
        status, _, err = call("grad", self.model(LINEAR), "--feed", self.file("x.npy"), "--target", self.file("t.npy"),
                              "--loss", "cross_entropy", "--class-axis", 1)
        self.assertEqual(status, 1)
        self.assertIn("y.argmax(1) in NumPy makes labels", err)

    def test_soft_targets_with_class_weights(self):
        t = softmax(np.random.default_rng(6).standard_normal((6, 4)))
        p = softmax(self.x @ self.w)
        got = self.linear(t, "--loss", "cross_entropy", "--class-weights", self.file("k.npy"))
        self.close(got, -(t * K * np.log(p)).sum() / 6, ((t * K).sum(1, keepdims=True) * p - t * K) / 6)

    def smoothed(self, target, counts, weight, share):
        """Cross entropy as PyTorch smooths it: a share of each row's target goes to all classes alike; what a row counts
        is not changed by that. target: per row and class; counts: what rows count in the mean, 0: they do not."""
        p = softmax(self.x @ self.w)
        q = ((1 - share) * target + share / 4) * weight * (counts > 0)[:, None]
        return -(q * np.log(p)).sum() / counts.sum(), (q.sum(1, keepdims=True) * p - q) / counts.sum()

    def test_single_numbers_that_are_trained(self):
        """... are no constants of formulas, though they are 1, 0 or 2 now: no rewriting takes them away."""
        for value, body in ((2, "y = Pow(a, p)"), (1, "y = Mul(a, p)"), (0, "y = Add(a, p)"), (1, "y = Div(p, a)"),
                            (1, "b = Mul(a, p) c = Sigmoid(b) y = Mul(a, c)"), (1, "b = Exp(a) c = Add(b, p) y = Log(c)")):
            text = """<ir_version: 8, opset_import: ["" : 17]>
g (float[6,3] x) => (float[6,3] y) <floatR p = {V}, float[3] k = {0.9, 1.1, 1.2}> { s = Mul(x, k) a = Exp(s) BODY }"""
            self.save(t=np.zeros((6, 3)))
            one, row = (self.grad(text.replace("BODY", body).replace("R p", rank + " p").replace("V", str(value)), "--feed",
                                  self.file("x.npy"), "--target", self.file("t.npy"), "--loss", "mse", "--float64",
                                  "--train-only", "p", "--train-only", "k")[1] for rank in ("", "[1]"))
            self.assertGreater(abs(one["p"]), 1e-3)
            np.testing.assert_allclose(one["p"], row["p"][0], rtol=1e-12)
            np.testing.assert_allclose(one["k"], row["k"], rtol=1e-12)

    def test_an_index_outside(self):
        """... is told with its rows, and without what is to be done about labels."""
        text = LINEAR.replace("float[6,3] x", "int64[6] x").replace("MatMul(x, w)", "Gather<axis = 0>(w, x)")
        self.save(x=np.array([0, 1, 99, 2, 1, 0]), t=self.labels)
        status, _, err = call("train", self.model(text), "--data", self.file("x.npy"), "--target", self.file("t.npy"), "--loss",
                              "cross_entropy", "--no-shuffle", "-o", self.file("o.onnx"))
        self.assertEqual(status, 1)
        self.assertIn("(Gather): index 99 is outside its axis, which has 3", err)
        self.assertRegex(err, r"its batch was rows 0 to 5; nothing was saved")

    def test_which_index_is_outside(self):
        """Of several axes the one that it is of; with the extent of that."""
        for text, index, extent in (("y = GatherND(x, i)", [[1, -5]], 3), ("y = GatherElements<axis = 1>(x, i)", [[2, 3]], 3),
                                    ("u = Constant<value = float[1] {1.0}>() y = ScatterND(x, i, u)", [[6, 1]], 6)):
            self.save(x=self.x, i=np.array(index))
            model = self.model(f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[6,3] x, int64[1,2] i) => (float y) {{ {text} }}""".replace("float y", "float[M,K] y" if "Elements" in text or "Scatter" in text
                                                                   else "float[M] y"))
            status, _, err = call("run", model, "--feed", "x=" + self.file("x.npy"), "--feed", "i=" + self.file("i.npy"))
            at = next(k for k in index[0] if not -extent <= k < extent)
            self.assertEqual(status, 1)
            self.assertIn(f"index {at} is outside its axis, which has {extent}", err)

    def test_small_and_large_are_told(self):
        """Losses as they are, however small or large."""
        for scale, word in ((1e-5, r"e-1\d"), (1e15, r"e\+3\d")):
            self.save(x=scale * self.x, t=np.zeros((6, 4)))
            words = ["--data", self.file("x.npy"), "--target", self.file("t.npy"), "--loss", "mse", "--lr", 0]
            self.assertRegex(call("eval", self.model(LINEAR), *words[:-2])[1], rf"loss \d\.\d+{word} ")
            said = call("train", self.model(LINEAR), *words, "-o", self.file("o.onnx"))[1]
            self.assertRegex(said, rf"train loss \d\.\d+{word} ")

    def test_label_smoothing(self):
        hard = np.eye(4)[self.labels]
        soft = softmax(np.random.default_rng(6).standard_normal((6, 4)))
        weights = ["--class-weights", self.file("k.npy")]
        common = ["--loss", "cross_entropy", "--label-smoothing", 0.3]
        for device in ("cpu", "sim"):
            on = [*common, "--device", device]
            self.close(self.linear(self.labels, *on), *self.smoothed(hard, np.ones(6), np.ones(4), 0.3))
            row = np.where(self.labels == 1, 0, K[self.labels])
            self.close(self.linear(self.labels, *on, *weights, "--ignore-index", 1), *self.smoothed(hard, row, K, 0.3))
            self.close(self.linear(soft, *on, *weights), *self.smoothed(soft, np.ones(6), K, 0.3))
        self.save(t=self.labels)
        model = self.model(LINEAR)
        for command, data, loss, says in (("eval", "--data", "cross_entropy", "does not apply to `eval`"),
                                          ("grad", "--feed", "mse", "it needs --loss cross_entropy")):
            status, _, err = call(command, model, data, self.file("x.npy"), "--target", self.file("t.npy"), "--loss", loss,
                                  "--label-smoothing", 0.1)
            self.assertEqual(status, 2, err)
            self.assertIn(says, err)

    def test_probabilities(self):
        """The loss of a Softmax, also one that is spelled out, or of a Sigmoid: of the logits that this reads."""
        y, rows = self.x @ self.w, np.arange(6)
        loss = -np.log(softmax(y)[rows, self.labels]).mean()
        bits = (y + 0.3 > 0).astype(float)
        once = 1 / (1 + np.exp(-y))
        spelled = "m = ReduceMax<axes = [1]>(h) d = Sub(h, m) e = Exp(d) s = ReduceSum<keepdims = 1>(e, one) y = Div(e, s)"
        self.save(t=self.labels, bits=bits.astype(np.float32))
        data = ["--data", self.file("x.npy"), "--float64", "--batch", 6]
        view = "c = Reshape(h, columns) p = %s(c) y = Reshape(p, back)"
        shapes = "> {", ", int64[1] one = {1}, int64[3] columns = {6, 4, 1}, int64[3] two = {6, 2, 2}, int64[2] back = {6, 4}> {"
        for given in ("y = Softmax<axis = -1>(h)", spelled, view % "Softmax<axis = 1>"):
            text = LINEAR.replace("y = MatMul(x, w)", "h = MatMul(x, w) " + given).replace(*shapes)
            options = ["--feed", self.file("x.npy"), "--target", self.file("t.npy"), "--float64", "--loss", "cross_entropy"]
            self.close(self.grad(text, *options, "--probabilities"), loss, (softmax(y) - np.eye(4)[self.labels]) / 6)
            said = call("grad", self.model(text), *options)[2]
            self.assertIn("output 'y' comes from a Softmax, but the loss takes it as logits. With --probabilities", said)
            r = report("eval", self.model(text), *data, "--target", self.file("t.npy"), "--loss", "cross_entropy", "--probabilities",
                       "--metric", "auc")
            plain = report("eval", self.model(LINEAR), *data, "--target", self.file("t.npy"), "--loss", "cross_entropy", "--metric",
                           "auc")
            for key in ("loss", "accuracy", "auc"):
                self.assertAlmostEqual(r[key], plain[key], places=12)
        text = LINEAR.replace("y = MatMul(x, w)", "h = MatMul(x, w) y = Sigmoid(h)")
        options = ["--feed", self.file("x.npy"), "--target", self.file("bits.npy"), "--float64", "--loss", "bce"]
        self.close(self.grad(text, *options, "--probabilities"), -np.log(np.where(bits > 0, once, 1 - once)).mean(),
                   (once - bits) / 24)
        self.assertIn("comes from a Sigmoid", call("grad", self.model(text), *options)[2])
        behind = LINEAR.replace("y = MatMul(x, w)", "h = MatMul(x, w) " + view % "Sigmoid").replace(*shapes)
        self.close(self.grad(behind, *options, "--probabilities"), -np.log(np.where(bits > 0, once, 1 - once)).mean(),
                   (once - bits) / 24)
        halves = "c = Reshape(h, two) p = Softmax<axis = 2>(c) y = Reshape(p, back)"
        halves = LINEAR.replace("y = MatMul(x, w)", "h = MatMul(x, w) " + halves).replace(*shapes)
        r = report("eval", self.model(text), *data, "--target", self.file("bits.npy"), "--loss", "bce", "--probabilities", "--metric",
                   "accuracy")
        self.assertAlmostEqual(r["accuracy"], ((once > 0.5) == (bits > 0.5)).mean())
        for model, more, word in ((LINEAR, ["cross_entropy"], "'y' does not come from a Softmax along the axis of the classes"),
                                  (text, ["cross_entropy"], "comes from a Sigmoid, as probabilities of any number of classes, each by "
                                   "itself. Their loss is bce, not cross_entropy"),
                                  (halves, ["cross_entropy"], "does not come from a Softmax"), (LINEAR, ["mse"], "cross_entropy or bce")):
            self.save(shares=softmax(self.x @ self.w))
            feed = [*options[:3], self.file("shares.npy" if more == ["cross_entropy"] else "bits.npy"), options[4]]
            status, _, err = call("grad", self.model(model), *feed, "--probabilities", "--loss", *more)
            self.assertNotEqual(status, 0)
            self.assertIn(word, err)
        # probabilities of the other loss are told of, too, and computed with as they are
        soft = LINEAR.replace("y = MatMul(x, w)", "h = MatMul(x, w) y = Softmax<axis = -1>(h)")
        for model, target, loss, word in ((text, "t", "cross_entropy", "Sigmoid, as probabilities of any number of classes, each by itself, but "
                                           "loss cross_entropy takes it as logits. Use bce with --probabilities"),
                                          (soft, "bits", "bce", "Softmax, as probabilities of one class of several, but loss bce takes it "
                                           "as logits. Use cross_entropy with --probabilities")):
            status, _, err = call("grad", self.model(model), *options[:2], "--target", self.file(target + ".npy"), "--loss", loss)
            self.assertEqual(status, 0)
            self.assertIn("output 'y' comes from a " + word, err)
        status, _, err = call("grad", self.model(soft), *options, "--probabilities")
        self.assertEqual(status, 1)
        self.assertIn("Their loss is cross_entropy, not bce", err)
        self.save(wide=np.zeros((6, 5)), few=np.ones(3))
        model = self.model(LINEAR.replace("y = MatMul(x, w)", "h = MatMul(x, w) y = Softmax<axis = -1>(h)"))
        for target, more, word in (("wide", [], "does not fit output 'y'"), ("shares", ["--ignore-index", 1], "the target for 'y'"),
                                   ("t", ["--class-weights", self.file("few.npy")], "output 'y' has 4 classes")):
            status, _, err = call("grad", model, *options[:2], "--target", self.file(target + ".npy"), "--loss", "cross_entropy",
                                  "--probabilities", *more)
            self.assertNotEqual(status, 0)
            self.assertIn(word, err)
        status, _, err = call("grad", self.model(text), *options[:2], "--target", self.file("wide.npy"), *options[4:], "--probabilities")
        self.assertIn("does not fit output 'y'", err)

    def test_huber(self):
        t = np.random.default_rng(7).standard_normal((6, 4))
        d = self.x @ self.w - t
        far = np.abs(d) > 0.7
        self.assertTrue(0 < far.sum() < far.size)
        loss = np.where(far, 0.7 * (np.abs(d) - 0.35), d * d / 2).mean()
        self.close(self.linear(t, "--loss", "huber", "--huber-delta", 0.7), loss, np.clip(d, -0.7, 0.7) / d.size)

    def test_losses_of_the_model(self):
        forms = {
            "l = SoftmaxCrossEntropyLoss<ignore_index = 1>(y, t, k)": (K, 1),
            "l, p = SoftmaxCrossEntropyLoss(y, t)": (np.ones(4), None),
            "p = LogSoftmax(y) l = NegativeLogLikelihoodLoss(p, t, k)": (K, None),
            "n = SoftmaxCrossEntropyLoss<reduction = \"none\">(y, t) l = ReduceMean<keepdims = 0>(n)": (np.ones(4), None),
        }
        for body, (weight, ignore) in forms.items():
            for options in (("--memory", "store"), ("--memory", "recompute"), ("--device", "sim")):
                got = self.grad(OWN_LOSS.replace("BODY", body), "--feed", "x=" + self.file("x.npy"), "--feed",
                                "t=" + self.file("labels.npy"), "--loss", "output", "--loss-output", "l", "--float64",
                                *options)
                self.close(got, *self.expected(weight, ignore))

    def test_wrong_options(self):
        model = self.model(LINEAR)
        self.save(t=self.labels)
        feed = ["grad", model, "--feed", self.file("x.npy"), "--target", self.file("t.npy")]
        for options, word in ((["--loss", "output", "--loss-output", "y", "--ignore-index", 1], ""),
                              (["--loss", "huber", "--huber-delta", 0], "above 0"),
                              (["--loss", "cross_entropy", "--class-weights", self.file("x.npy")], "one axis"),
                              (["--loss", "cross_entropy", "--class-weights", self.file("none.npy")], "none.npy")):
            status, _, err = call(*feed, *options)
            self.assertIn(status, (1, 2), err)
            self.assertIn(word, err)
        self.save(few=K[:2])
        status, _, err = call(*feed, "--loss", "cross_entropy", "--class-weights", self.file("few.npy"))
        self.assertEqual(status, 1)
        self.assertIn("4 classes", err)

    def test_missing_entries(self):
        """NaN and --ignore-index mark entries that do not count, for all losses of values: loss and gradients are means
        over the others, also of a target of integers."""
        y, random = self.x @ self.w, np.random.default_rng(9)
        t = random.random((6, 4))
        holes = np.array([[1, 0, 0, 0], [0] * 4, [1, 1, 1, 1], [0, 1, 0, 0], [0] * 4, [0, 0, 1, 1]], bool)
        n, d = (~holes).sum(), y - t
        p = 1 / (1 + np.exp(-y))
        for loss, each, dy in (("mse", d * d, 2 * d), ("bce", -t * np.log(p) - (1 - t) * np.log(1 - p), p - t),
                               ("huber", np.where(abs(d) < 1, d * d / 2, abs(d) - 0.5), np.clip(d, -1, 1))):
            want, slope = each[~holes].mean(), np.where(holes, 0, dy) / n
            self.close(self.linear(np.where(holes, np.nan, t), "--loss", loss), want, slope)
            self.close(self.linear(np.where(holes, -7, t), "--loss", loss, "--ignore-index", -7), want, slope)
            self.close(self.linear(np.where(holes, [-7, np.nan, -7, np.nan], t), "--loss", loss, "--ignore-index", -7), want,
                       slope)
        whole = np.where(holes, 255, random.integers(0, 2, (6, 4)))
        self.save(whole=whole)
        each = np.logaddexp(0, y) - whole * y
        r = report("eval", self.model(LINEAR), "--data", self.file("x.npy"), "--target", self.file("whole.npy"), "--loss", "bce",
                   "--ignore-index", 255, "--batch", 4, "--metric", "accuracy", "--metric", "f1", "--metric", "auc", "--float64")
        self.assertAlmostEqual(r["loss"], each[~holes].mean(), places=12)
        self.assertAlmostEqual(r["accuracy"], ((y > 0) == (whole == 1))[~holes].mean())
        areas = []
        for k in range(4):
            s, l = y[~holes[:, k], k], whole[~holes[:, k], k]
            if 0 < l.sum() < len(l):
                areas.append(np.mean([(a > b) + (a == b) / 2 for a in s[l == 1] for b in s[l == 0]]))
        self.assertAlmostEqual(r["auc"], np.mean(areas))
        self.save(t=np.where(holes, np.nan, t))
        data = ["--data", self.file("x.npy"), "--target", self.file("t.npy"), "--loss", "mse", "--float64"]
        r = report("eval", self.model(LINEAR), *data, "--batch", 4, "--metric", "mae", "--metric", "rmse", "--metric", "r2")
        r2 = [1 - (d[m, k] ** 2).sum() / ((t[m, k] - t[m, k].mean()) ** 2).sum() for k, m in enumerate(~holes.T)]
        np.testing.assert_allclose([r["loss"], r["mae"], r["rmse"], r["r2"]],
                                   [(d[~holes] ** 2).mean(), abs(d[~holes]).mean(), (d[~holes] ** 2).mean() ** 0.5, np.mean(r2)])
        # what a micro-batch counts for is how many entries it has
        steps = ["train", self.model(LINEAR), *data, "--no-shuffle", "--lr", 0.1, "-o", self.file("o.onnx"), "--epochs", 2]
        whole, parts = (report(*steps, "--batch", b, "--accumulate", 6 // b)["steps"] for b in (6, 2))
        np.testing.assert_allclose(parts, whole, rtol=1e-12)
        status, out, _ = call(*steps)
        self.assertIn("the target: 8 of 24 entries are missing (NaN)", out)
        with open(self.file("t.csv"), "w", encoding="utf-8") as f:  # a table is looked at batch by batch
            f.write("a,b,c,y\n" + "\n".join(",".join(map(str, [*x, v])) for x, v in zip(self.x, [0.5, "nan", 1, 2, 3, 4])))
        one = self.model(LINEAR.replace("[N,4] y", "[N,1] y").replace("[3,4] w = {W}", "[3,1] w = {1, 2, 3}"))
        r = report("eval", one, "--data", self.file("t.csv"), "--target-column", "y", "--loss", "mse", "--float64", "--batch", 3)
        off = np.delete(self.x @ [1, 2, 3] - [0.5, 0, 1, 2, 3, 4], 1)
        self.assertAlmostEqual(r["loss"], (off ** 2).mean(), places=6)

    def test_labels_that_are_not_shifted(self):
        """Labels that equal the token at the same place wherever they count are told; others, and shifted ones, not."""
        text = """<ir_version: 8, opset_import: ["" : 17]>
g (int64[N,5] ids, float[N,5] mask) => (float[N,5,7] y) <float[7,7] w> { y = Gather(w, ids) }"""
        path = self.file("d.onnx")
        m = parser.parse_model(text.replace("<float[7,7] w>", "<float[7,7] w = {" + ",".join(["0.5"] * 49) + "}>"))
        save(m, path)
        ids = np.random.default_rng(1).integers(1, 7, (6, 5))
        prompt = np.where(np.arange(5) < 2, -100, ids)
        shifted = np.concatenate([ids[:, 1:], np.full((6, 1), -100)], 1)
        few = ids.copy()
        few[5, 4] = ids[5, 4] % 6 + 1
        self.save(ids=ids, mask=np.ones((6, 5), np.float32))
        for labels, told in ((ids, True), (prompt, True), (ids.astype(np.int32), True), (shifted, False), (few, False)):
            self.save(t=labels)
            for command in "train", "eval":
                status, _, err = call(command, path, "--data", "ids=" + self.file("ids.npy"), "--data", "mask=" + self.file("mask.npy"),
                                      "--target", self.file("t.npy"), "--loss", "cross_entropy", "--ignore-index", -100,
                                      *(["-o", self.file("o.onnx")] if command == "train" else []))
                self.assertEqual(status, 0, err)
                self.assertEqual("equal input 'ids' at the same position" in err, told, err)

    def test_targets_that_no_loss_takes(self):
        """They are refused before the first step, with row, value and range."""
        model, good = self.model(LINEAR), softmax(self.x @ self.w)
        run = ["train", model, "--data", self.file("x.npy"), "--target", self.file("t.npy"), "-o", self.file("o.onnx"), "--loss"]
        less, more, negative, mask = (good.copy() for _ in range(4))
        less[4] *= 0.5
        more[3, 2] = 1.5
        negative[2, :2] += [-1, 1]
        mask[5, 1] = -1
        for t, loss, words in ((less, "cross_entropy", ("row 4", "sum to 0.5", "1 over the classes")),
                               (negative, "cross_entropy", ("row 2", "for class 0", "0 to 1")),
                               (more, "bce", ("row 3", "has 1.5", "0 to 1")),
                               (mask, "bce", ("row 5", "has -1", "0 to 1", "--ignore-index -1")),
                               ((good > 0.3).astype(np.uint8) * 255, "bce", ("has 255", "0 to 1"))):
            self.save(t=t.astype(np.float32) if t.dtype == float else t)
            status, _, err = call(*run, loss)
            self.assertEqual(status, 1, err)
            for word in words:
                self.assertIn(word, err)
        for t in good.astype(np.float16), good.astype(np.float32):
            self.save(t=t)
            self.assertEqual(call(*run, "cross_entropy")[0], 0)

    def test_lengths(self):
        """Lengths that are fed are those that the model can have: else row, value and range are named."""
        from onnx import TensorProto, helper, numpy_helper
        random = np.random.default_rng(3)
        def made(nodes, x, lens, inits=(), kind=TensorProto.INT32):
            graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x),
                                                   helper.make_tensor_value_info("lens", kind, lens)],
                                      [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                                      [numpy_helper.from_array(a.astype(np.float32), n) for n, a in inits])
            save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=10), self.file("l.onnx"))
        w = [("W", random.normal(size=(1, 12, 3))), ("R", random.normal(size=(1, 12, 3)))]
        lstm = helper.make_node("LSTM", ["xt", "W", "R", "", "lens"], ["h"], hidden_size=3)
        turn, back = (helper.make_node("Transpose", [a], [b], perm=p) for a, b, p in
                      (("x", "xt", [1, 0, 2]), ("h", "y", [2, 0, 1, 3])))
        reverse = [helper.make_node("Mul", ["x", "s"], ["m"]), helper.make_node("Cast", ["lens"], ["l"], to=TensorProto.INT64),
                   helper.make_node("ReverseSequence", ["m", "l"], ["y"], batch_axis=0, time_axis=1)]
        attend = [helper.make_node("Mul", ["x", "s"], ["m"]), helper.make_node("Attention", ["m", "m", "m", "", "", "", "lens"],
                                                                               ["y"], q_num_heads=1, kv_num_heads=1)]
        gru = helper.make_node("GRU", ["xt", "W9", "R9", "", "lens"], ["h"], hidden_size=3)
        scale = [("s", np.ones(3))]
        np.save(self.file("x.npy"), random.normal(size=(8, 5, 3)).astype(np.float32))
        for what, nodes, inits, kind in (("LSTM", [turn, lstm, back], w, np.int32),
                                         ("GRU", [turn, gru, back], [(n + "9", a[:, :9]) for n, a in w], np.int32),
                                         ("ReverseSequence", reverse, scale, np.int32), ("Attention", attend, scale, np.int64)):
            made(nodes, ["N", 5, 3], ["N"], inits, TensorProto.INT32 if kind == np.int32 else TensorProto.INT64)
            for wrong in (9, -2, None):
                lens = np.array([1, 5, 3, 2, 4, 5, 1, 2], kind)
                if wrong is not None:
                    lens[6] = wrong
                np.save(self.file("lens.npy"), lens)
                np.save(self.file("t.npy"), np.zeros((8, 5, 1, 3) if "RU" in what or "LSTM" in what else (8, 5, 3), np.float32))
                status, _, err = call("train", self.file("l.onnx"), "--data", "x=" + self.file("x.npy"), "--data",
                                      "lens=" + self.file("lens.npy"), "--target", self.file("t.npy"), "--loss", "mse", "--batch", 4,
                                      "-o", self.file("o.onnx"))
                if wrong is None:
                    self.assertEqual(status, 0, (what, err))
                    continue
                self.assertEqual(status, 1, (what, err))
                for word in "'lens'", "row 6", f"holds {wrong}", what, "0 to 5":
                    self.assertIn(word, err)

    def test_memory_modes_agree(self):
        random = np.random.default_rng(8)
        text = POOLED.replace("{F}", "{" + numbers(random.standard_normal((4, 2, 3, 3))) + "}")
        self.save(x=random.standard_normal((2, 2, 6, 6)), t=random.standard_normal((2, 4, 3, 3)))
        common = ("--feed", self.file("x.npy"), "--target", self.file("t.npy"), "--loss", "mse")
        for form in (text, text.replace("Tanh(i)", "Relu(i)")):
            kept = self.grad(form, *common, "--memory", "store")
            for options in (("--memory", "recompute"), ("--memory", "invert"), ("--memory", "auto"),
                            ("--memory", "store", "--device", "sim")):
                again = self.grad(form, *common, *options)
                self.assertEqual(sorted(kept[1]), sorted(again[1]))
                for name, gradient in kept[1].items():
                    if "--device" in options or "invert" in options:
                        np.testing.assert_allclose(again[1][name], gradient, rtol=1e-4, atol=1e-6)
                    else:
                        self.assertEqual(gradient.tobytes(), again[1][name].tobytes(), name)

    def test_activation_behind_its_pooling(self):
        """A Relu that only a MaxPool reads is taken of the pooled values: the same bits, less memory."""
        random = np.random.default_rng(9)
        text = POOLED.replace("{F}", "{" + numbers(random.standard_normal((4, 2, 3, 3))) + "}")
        self.save(x=random.standard_normal((2, 2, 6, 6)), t=random.standard_normal((2, 4, 3, 3)))
        for name in ("Relu", "Clip"):
            results = []
            for outputs in ("", ", float[2,4,6,6] t"):  # an output stays as it is
                one = text.replace("Tanh(i)", name + ("(i)" if name == "Relu" else "(i, low, high)"))
                one = one.replace("float[2,4,3,3] y)", "float[2,4,3,3] y" + outputs + ")")
                one = one.replace("float[3] r =", "float low = {-0.5}, float high = {0.5}, float[3] r =")
                out = self.file("out")
                shutil.rmtree(out, ignore_errors=True)
                r = report("grad", self.model(one), "--feed", self.file("x.npy"), "--target", self.file("t.npy"), "--loss",
                           "mse", "--loss-output", "y", "--memory", "store", "--dump", out)
                results.append((r["peak_bytes"], {n: np.load(os.path.join(out, n)) for n in sorted(os.listdir(out))
                                                  if n.startswith("grad_")}))
            self.assertLess(results[0][0], results[1][0])
            self.assertTrue(any(np.any(v) for v in results[0][1].values()))
            for n, gradient in results[0][1].items():
                self.assertEqual(gradient.tobytes(), results[1][1][n].tobytes(), f"{name} {n}")

    def test_gradient_as_an_operator(self):
        a, b = np.array([0.1, 0.7, -1.2]), np.array([1.0, -2.0, 0.5])
        self.save(a=a, b=b)
        out = self.file("out")
        report("run", self.model(GRADIENT), "--feed", "a=" + self.file("a.npy"), "--feed", "b=" + self.file("b.npy"),
               "--float64", "--dump", out)
        for name, want in (("da", np.cos(a) * b + 1), ("db", np.sin(a))):
            np.testing.assert_allclose(np.load(os.path.join(out, f"out_{name}.npy")), want, rtol=1e-12)
        other = GRADIENT.replace("Gradient<xs = [\"a\", \"b\"], y = \"c\">(a, b)",
                                 "Gradient<xs = [\"a\", \"b\"], y = \"c\">(b, a)")
        status, _, err = call("run", self.model(other), "--feed", "a=" + self.file("a.npy"), "--feed",
                              "b=" + self.file("b.npy"))
        self.assertEqual(status, 1)
        self.assertIn("other points", err)


class ClassAxis(unittest.TestCase):
    """Which axis the classes are along: what the target leaves, or what is said; never a guess."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.random = np.random.default_rng(8)
        self.w = self.random.standard_normal((3, 4)).astype(np.float32)

    def file(self, name):
        return os.path.join(self.folder, name)

    def call(self, command, text, times, target, *options):
        """(exit status, loss, stderr)"""
        x = np.random.default_rng(times).standard_normal((6, times, 3)).astype(np.float32)
        np.save(self.file("x.npy"), x)
        np.save(self.file("t.npy"), target)
        save(parser.parse_model(text.replace("{W}", "{" + numbers(self.w) + "}")), self.file("m.onnx"))
        feed = {"plan": ["--batch", 6, "--dim", f"T={times}"], "grad": ["--feed", self.file("x.npy")],
                "compare": ["--feed", self.file("x.npy"), "--repeat", 1]}.get(command, ["--data", self.file("x.npy")])
        out = ["-o", self.file("out.onnx"), "--batch", 4] if command == "train" else []
        status, said, err = call(command, self.file("m.onnx"), *feed, "--target", self.file("t.npy"), "--loss",
                                 "cross_entropy", "--json", *out, *options)
        return status, (json.loads(said).get("loss") if status == 0 else None), err

    def labels(self, *shape):
        return self.random.integers(0, 4, shape)

    def test_labels_decide(self):
        t = self.labels(6, 5)
        for text, axis in ((TOKENS, 2), (IMAGES, 1)):
            for command in ("grad", "train", "eval", "compare"):
                status, loss, err = self.call(command, text, 5, t)
                self.assertEqual(status, 0, err)
                self.assertEqual("classes are along axis 2 of output 'y'" in err, axis == 2, err)
                self.assertEqual(self.call(command, text, 5, t, "--class-axis", axis)[:2], (0, loss))
        x = np.random.default_rng(5).standard_normal((6, 5, 3)).astype(np.float32)
        p = softmax((x @ self.w).reshape(-1, 4))
        self.assertAlmostEqual(self.call("grad", TOKENS, 5, t)[1], -np.log(p[np.arange(30), t.ravel()]).mean(), places=5)

    def test_two_fit(self):
        """As many times as there are classes."""
        t = self.labels(6, 4)
        for command in ("grad", "train", "eval", "compare", "plan"):
            status, _, err = self.call(command, TOKENS, 4, t)
            self.assertEqual(status, 1, command)
            self.assertIn("--class-axis", err)
            self.assertIn("may be 1 or 2", err)
        over_time, over_classes = (self.call("grad", TOKENS, 4, t, "--class-axis", k)[1] for k in (1, -1))
        self.assertNotEqual(over_time, over_classes)
        x = np.random.default_rng(4).standard_normal((6, 4, 3)).astype(np.float32)
        p = softmax((x @ self.w).reshape(-1, 4))
        self.assertAlmostEqual(over_classes, -np.log(p[np.arange(24), t.ravel()]).mean(), places=5)

    def test_none_fits(self):
        status, _, err = self.call("grad", TOKENS, 5, self.labels(6, 3))
        self.assertEqual(status, 1)
        self.assertIn("does not fit output 'y'", err)

    def test_soft_targets(self):
        t = softmax(self.random.standard_normal((30, 4))).reshape(6, 5, 4).astype(np.float32)
        status, _, err = self.call("grad", TOKENS, 5, t)
        self.assertEqual(status, 1)
        self.assertIn("--class-axis", err)
        self.assertEqual(self.call("grad", TOKENS, 5, t, "--class-axis", 2)[0], 0)
        save(parser.parse_model(TOKENS.replace("[N,T,", "[6,").replace("{W}", "{" + numbers(self.w) + "}")),
             self.file("flat.onnx"))
        np.save(self.file("flat.npy"), t[:, 0])
        status, _, err = call("plan", self.file("flat.onnx"), "--target", self.file("flat.npy"), "--loss", "cross_entropy")
        self.assertEqual(status, 0, err)
        self.assertNotIn("along axis", err)

    def test_no_target(self):
        """A plan may be made without one: said what was assumed."""
        save(parser.parse_model(TOKENS.replace("{W}", "{" + numbers(self.w) + "}")), self.file("m.onnx"))
        plan = ("plan", self.file("m.onnx"), "--loss", "cross_entropy", "--batch", 2, "--dim", "T=4", "--json")
        status, _, err = call(*plan)
        self.assertEqual(status, 0, err)
        self.assertIn("classes are along axis 1 of output 'y' [2,4,4], as long as no target", err)
        self.assertNotIn("along axis", call(*plan, "--class-axis", 2)[2])


if __name__ == "__main__":
    unittest.main()
