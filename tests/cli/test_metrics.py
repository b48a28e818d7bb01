# SPDX-License-Identifier: Apache-2.0
"""Metrics of `eval` and of validation against formulas in NumPy, over batches with a smaller last one: labels along any
axis, some ignored; several labels per row; values; flows. Fails if a number is another, or if a metric is taken that
does not go with the loss."""
import json
import os
import tempfile
import unittest

import numpy as np
from onnx import parser, save

import common

LINEAR = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3] x) => (float[N,K] y) <float[3,K] w = {W}> { y = MatMul(x, w) }"""
TOKENS = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,T,3] x) => (float[N,T,K] y) <float[3,K] w = {W}> { y = MatMul(x, w) }"""
IMAGES = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,T,3] x) => (float[N,K,T] y) <float[3,K] w = {W}> { m = MatMul(x, w) y = Transpose<perm = [0,2,1]>(m) }"""
TWO = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3] x) => (float[N,K] y, float[N,3] z) <float[3,K] w = {W}> { y = MatMul(x, w) z = Tanh(x) }"""


def auc(score, inside):
    """Pairs counted one by one."""
    a, b = score[inside], score[~inside]
    if not len(a) or not len(b):
        return None
    return ((a[:, None] > b).sum() + 0.5 * (a[:, None] == b).sum()) / (len(a) * len(b))


def per_class(hit, predicted, actual):
    with np.errstate(invalid="ignore", divide="ignore"):
        return [np.nan_to_num(hit / predicted), np.nan_to_num(hit / actual), np.nan_to_num(2 * hit / (predicted + actual))]


def of_classes(logits, labels):
    """What cross entropy's metrics are of logits [rows, classes]."""
    n = logits.shape[1]
    taken, p = logits.argmax(1), np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    matrix = np.zeros((n, n), int)
    np.add.at(matrix, (labels, taken), 1)
    hit, predicted, actual = matrix.diagonal(), matrix.sum(0), matrix.sum(1)
    present = predicted + actual > 0
    precision, recall, f1 = (v[present].mean() for v in per_class(hit, predicted, actual))
    place = (logits > logits[np.arange(len(labels)), labels][:, None]).sum(1)
    areas = [auc(p[:, k], labels == k) for k in range(n)]
    return {"accuracy": (taken == labels).mean(), "top2": (place < 2).mean(), "f1": f1, "f1_micro": (taken == labels).mean(),
            "precision": precision, "recall": recall, "confusion": matrix.tolist(),
            "auc": np.mean([a for a in areas if a is not None]),
            "perplexity": np.exp(-np.log(p[np.arange(len(labels)), labels]).mean())}


def of_labels(logits, target):
    """... of binary cross entropy's logits [rows, labels]."""
    predicted, actual = logits > 0, target > 0.5
    hit = (predicted & actual).sum(0)
    precision, recall, f1 = (v.mean() for v in per_class(hit, predicted.sum(0), actual.sum(0)))
    return {"accuracy": (predicted == actual).mean(), "f1": f1, "precision": precision, "recall": recall,
            "f1_micro": 2 * hit.sum() / (predicted.sum() + actual.sum()), "precision_micro": hit.sum() / predicted.sum(),
            "recall_micro": hit.sum() / actual.sum(),
            "auc": np.mean([auc(logits[:, k], actual[:, k]) for k in range(logits.shape[1])])}


class Metrics(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.random = np.random.default_rng(3)

    def at(self, name):
        return os.path.join(self.folder.name, name)

    def model(self, text, classes):
        self.w = self.random.standard_normal((3, classes)).astype(np.float32)
        text = text.replace("K]", f"{classes}]").replace("K,T", f"{classes},T")
        save(parser.parse_model(text.replace("{W}", "{" + ", ".join(f"{v:.9g}" for v in self.w.ravel()) + "}")),
             self.at("m.onnx"))

    def rows(self, *shape):
        x = np.round(self.random.standard_normal(shape), 1).astype(np.float32)  # some scores are equal
        np.save(self.at("x.npy"), x)
        return x.astype(np.float64) @ self.w

    def evaluate(self, target, *options, command="eval"):
        np.save(self.at("t.npy"), target)
        return common.call(command, self.at("m.onnx"), "--data", self.at("x.npy"), "--target", self.at("t.npy"), "--batch",
                           4, "--json", *options)

    def agree(self, wanted, target, *options):
        asked = [word for name in wanted for word in ("--metric", name)]
        status, out, err = self.evaluate(target, *options, *asked, "--float64")
        self.assertEqual(status, 0, err)
        got = json.loads(out)
        for name, value in wanted.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-9, err_msg=name)
        return got

    def test_classes(self):
        ce = ("--loss", "cross_entropy")
        self.model(LINEAR, 5)
        y, t = self.rows(30, 3), self.random.integers(0, 4, 30)  # no row is of the last class
        self.agree(of_classes(y, t), t, *ce)
        some = np.where(np.arange(30) % 3 == 0, -100, t)
        self.agree(of_classes(y[some >= 0], some[some >= 0]), some, *ce, "--ignore-index=-100")
        self.model(LINEAR, 2)
        y, t = self.rows(30, 3), self.random.integers(0, 2, 30)
        wanted = of_classes(y, t)
        self.assertAlmostEqual(wanted["auc"], auc(y[:, 1] - y[:, 0], t == 1))
        self.agree({k: wanted[k] for k in ("auc", "f1", "confusion")}, t, *ce)

    def test_equal_probabilities_tie(self):
        """Logits in another order, or all larger by one number, give a class the same probability to the last bit."""
        w = np.array([[1, -1, 0, 0, 0], [0, 0, 1, -1, 0], [1, 1, 1, 1, 1]], np.float32)
        text = LINEAR.replace("K]", "5]").replace("{W}", "{" + ", ".join(f"{v:.9g}" for v in w.ravel()) + "}")
        save(parser.parse_model(text), self.at("m.onnx"))
        x = self.random.integers(-19, 19, (40, 3)) / 8  # logits a, -a, b, -b, 0, and to all of them c
        x = np.concatenate([x, x[:, [1, 0, 2]], x * [-1, 1, 2]]).astype(np.float32, "C")
        np.save(self.at("x.npy"), x)
        t = self.random.integers(0, 5, len(x))
        y = x.astype(np.float64) @ w
        p = np.exp(y) / np.exp(y).sum(1, keepdims=True)
        exact = np.mean([auc(np.round(p[:, k], 12), t == k) for k in range(5)])
        status, out, err = self.evaluate(t, "--loss", "cross_entropy", "--metric", "auc")
        self.assertEqual(status, 0, err)
        self.assertAlmostEqual(json.loads(out)["auc"], exact, 12)

    def test_class_axis(self):
        for text in TOKENS, IMAGES:
            self.model(text, 4)
            for times, options in ((6, ()), (4, ("--class-axis", 2 if text is TOKENS else 1))):
                y, t = self.rows(5, times, 3), self.random.integers(0, 4, (5, times))
                self.agree(of_classes(y.reshape(-1, 4), t.ravel()), t, "--loss", "cross_entropy", *options)

    def test_perplexity_and_bits_are_of_the_loss(self):
        """... with its weights of classes."""
        self.model(LINEAR, 3)
        self.rows(10, 3)
        np.save(self.at("k.npy"), np.array([0.2, 1, 3]))
        got = self.agree({}, self.random.integers(0, 3, 10), "--loss", "cross_entropy", "--class-weights", self.at("k.npy"),
                         "--metric", "perplexity", "--metric", "bits_per_token")
        self.assertAlmostEqual(got["perplexity"], np.exp(got["loss"]))
        self.assertAlmostEqual(got["bits_per_token"], got["loss"] / np.log(2))

    def test_labels(self):
        bce = ("--loss", "bce")
        self.model(LINEAR, 3)
        y, t = self.rows(30, 3), self.random.integers(0, 2, (30, 3))
        self.agree(of_labels(y, t), t.astype(np.float32), *bce)
        self.model(LINEAR, 1)
        y, t = self.rows(30, 3), self.random.integers(0, 2, (30, 1))
        wanted = of_labels(y, t)
        wanted["confusion"] = [[int(((y > 0) == b)[t == a].sum()) for b in (0, 1)] for a in (0, 1)]
        self.agree(wanted, t.astype(np.float32), *bce)

    def test_values(self):
        self.model(LINEAR, 3)
        y = self.rows(30, 3)
        t = self.random.standard_normal((30, 3)) * [1, 5, 0] + [0, 1e4, 7]
        off = y - t
        spread = ((t - t.mean(0)) ** 2).sum(0)
        r2 = [1 - (off[:, k] ** 2).sum() / spread[k] for k in (0, 1)] + [0]  # the last one is the same everywhere
        wanted = {"mae": np.abs(off).mean(), "rmse": np.sqrt((off ** 2).mean()), "r2": np.mean(r2)}
        for loss in "mse", "huber":
            self.agree(wanted, t, "--loss", loss)
        half = np.float16([-1.5, 6e-8, 65504])  # the smallest and the largest there are
        off = y - half
        self.agree({"mae": np.abs(off).mean()}, np.tile(half, (30, 1)), "--loss", "mse")

    def test_flow(self):
        moons = os.path.join(common.EXAMPLES, "realnvp_moons.onnx")
        r = common.report("eval", moons, "--data", os.path.join(common.EXAMPLES, "data", "moons.npy"), "--loss", "nll",
                          "--logdet", "logdet", "--batch", 500, "--metric", "bits_per_dim")
        self.assertAlmostEqual(r["bits_per_dim"], r["loss"] / 2 / np.log(2))

    def test_validation(self):
        """What training says of the rows that are held out is what `eval` says of the file that was written."""
        self.model(LINEAR, 3)
        self.rows(10, 3)
        t = self.random.integers(0, 3, 10)
        metrics = ("--metric", "f1", "--metric", "auc", "--metric", "confusion", "--metric", "top2")
        held = ("--val-data", self.at("x.npy"), "--val-target", self.at("t.npy"))
        log = ("--log", self.at("l.jsonl"), "--log", self.at("l.csv"))
        status, out, err = self.evaluate(t, "--loss", "cross_entropy", *metrics, *held, *log, "--epochs", 2, "--lr", 0.1,
                                         "-o", self.at("o.onnx"), command="train")
        self.assertEqual(status, 0, err)
        self.assertRegex(err, r"(?m)^epoch 2/2  train loss .*  accuracy 0\.\d{4}  f1 0\.\d{4}  auc .*  top2 ")
        last = json.loads(out)["epochs"][1]
        os.replace(self.at("o.onnx"), self.at("m.onnx"))
        status, out, err = self.evaluate(t, "--loss", "cross_entropy", *metrics)
        got = json.loads(out)
        with open(self.at("l.jsonl"), encoding="utf-8") as f:
            logged = [json.loads(line) for line in f][-1]
        with open(self.at("l.csv"), encoding="utf-8") as f:
            self.assertTrue(f.readline().endswith(",fallbacks,accuracy,f1,auc,top2\n"))
        for name in "loss", "accuracy", "f1", "auc", "top2", "confusion":
            np.testing.assert_allclose(last["val_" + name], got[name], rtol=1e-5)
            self.assertEqual(last["val_" + name], logged[name])
        status, out, err = common.call("train", self.at("m.onnx"), "--data", self.at("x.npy"), "--target", self.at("t.npy"),
                                       "--loss", "cross_entropy", *metrics, *held, "-o", self.at("o.onnx"))
        self.assertRegex(out, r"weights saved(.|\n)*what its rows were taken for\n +0 +1 +2\n +0( +\d+){3}\n")
        status, out, _ = common.call("eval", self.at("m.onnx"), "--data", self.at("x.npy"), "--target", self.at("t.npy"),
                                     "--loss", "cross_entropy", *metrics)
        self.assertRegex(out, r"loss .* accuracy .* of 10\)(.|\n)*f1 +0\.(.|\n)*what its rows were taken for")

    def test_best_is_what_is_said(self):
        """At the end table and JSON tell of the weights that were saved, also of a run that goes on from a checkpoint."""
        self.model(LINEAR, 3)
        self.rows(30, 3)
        t = self.random.integers(0, 3, 30)
        np.save(self.at("t.npy"), t)
        metrics = ("--loss", "cross_entropy", "--metric", "f1", "--metric", "confusion")
        data = ("--data", self.at("x.npy"), "--target", self.at("t.npy"))
        held = ("--val-data", self.at("x.npy"), "--val-target", self.at("t.npy"))
        run = (*data, *held, *metrics, "--best", "loss", "--lr", 9, "--batch", 30, "--cost", "flops", "-o", self.at("o.onnx"))
        r = common.report("train", self.at("m.onnx"), *run, "--epochs", 5)
        self.assertLess(r["best_step"], r["steps_done"])
        _, table, _ = common.call("train", self.at("m.onnx"), *run, "--epochs", 5)
        _, want, _ = common.call("eval", self.at("o.onnx"), *data, *metrics)
        self.assertEqual(table.split("class, and")[1], want.split("class, and")[1])
        got = common.report("eval", self.at("o.onnx"), *data, *metrics)
        for name in "loss", "accuracy", "f1", "confusion":
            np.testing.assert_allclose(r["val_" + name], got[name], rtol=1e-5)
        self.assertEqual(r["best"], r["val_loss"])
        self.assertIn(f"(validation loss {r['val_loss']:.5g}, accuracy {r['val_accuracy']:.5g}, f1 {r['val_f1']:.5g})", table)
        keep = (*run, "--checkpoint", self.at("c"))
        common.report("train", self.at("m.onnx"), *keep, "--epochs", 3)
        again = common.report("train", self.at("m.onnx"), *keep, "--resume", "--epochs", 5)
        self.assertEqual([again[k] for k in ("best", "best_step", "val_f1", "val_confusion")],
                         [r[k] for k in ("best", "best_step", "val_f1", "val_confusion")])

    def test_output_is_named(self):
        self.model(TWO, 3)
        y, t = self.rows(9, 3), self.random.integers(0, 3, 9)
        self.agree(of_classes(y, t), t, "--loss", "cross_entropy", "--loss-output", "y")

    def test_refused(self):
        self.model(LINEAR, 3)
        self.rows(9, 3)
        labels, values = self.random.integers(0, 3, 9), np.full((9, 3), 1 / 3, np.float32)
        for target, loss, metric, word in ((values, "mse", "accuracy", "cannot be used with --loss mse, which has mae, rmse, r2"),
                                           (labels, "cross_entropy", "r2", "cannot be used with --loss cross_entropy"),
                                           (labels, "cross_entropy", "f_1", "did you mean f1?"),
                                           (labels, "cross_entropy", "top0", "no such metric"),
                                           (labels, "cross_entropy", "topK", "top5"),
                                           (values, "cross_entropy", "f1", "wants integer labels"),
                                           (values, "bce", "confusion", "3 labels")):
            status, _, err = self.evaluate(target, "--loss", loss, "--metric", metric)
            self.assertIn(status, (1, 2), metric)
            self.assertIn(word, err)
            self.assertIn("--metric " + metric, err)
        status, _, err = self.evaluate(labels, "--loss", "cross_entropy", "--metric", "f1", "-o", self.at("o"), command="train")
        self.assertEqual(status, 2)
        self.assertIn("--val-data", err)


if __name__ == "__main__":
    unittest.main()
