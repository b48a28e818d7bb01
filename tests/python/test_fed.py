# SPDX-License-Identifier: Apache-2.0
"""What steps behind the first one are fed: another kind of elements, places outside of a table; and what dropout draws in a
step of several batches. Fails if a step takes what the first one refuses, if a refused step ends the training, or if draws
depend on batches of before."""
import os
import tempfile
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import invonnx

ROWS, WORDS, CLASSES = 4, 7, 3


def network(path, dropout=False):
    """A table of words, then a product: k -> logits."""
    rng = np.random.default_rng(3)
    nodes = [helper.make_node("Gather", ["table", "k"], ["e"])]
    if dropout:
        nodes.append(helper.make_node("Dropout", ["e", "ratio", "training"], ["d"]))
    nodes.append(helper.make_node("MatMul", ["d" if dropout else "e", "w"], ["y"]))
    inits = [numpy_helper.from_array(rng.normal(size=(WORDS, 5)), "table"),
             numpy_helper.from_array(rng.normal(size=(5, CLASSES)), "w")]
    if dropout:
        inits += [numpy_helper.from_array(np.float32(0.5), "ratio"), numpy_helper.from_array(np.bool_(True), "training")]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("k", TensorProto.INT64, ["N"])],
                              [helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["N", CLASSES])], inits)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


class Fed(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        rng = np.random.default_rng(1)
        self.k, self.labels = rng.integers(0, WORDS, ROWS), rng.integers(0, CLASSES, ROWS)
        self.shares = np.full((ROWS, CLASSES), 1 / CLASSES)

    def trainer(self, dropout=False, **options):
        path = os.path.join(self.folder.name, "m.onnx")
        network(path, dropout)
        return invonnx.load(path).trainer(loss="cross_entropy", float64=True, cost="flops", threads=1, lr=0.1, **options)

    def weights(self, t):
        return {name: np.array(t.parameters[name]) for name in ("table", "w")}

    def refused(self, t, k, target, says):
        before, steps = self.weights(t), t.steps
        for call in (t.step, t.evaluate):
            with self.assertRaisesRegex(invonnx.ShapeError, says):
                call(k, target)
        self.assertEqual(t.steps, steps)
        for name, w in self.weights(t).items():
            np.testing.assert_array_equal(w, before[name])

    def test_another_kind_of_target(self):
        t = self.trainer(optimizer="sgd", eval_batch=ROWS)
        t.step(self.k, self.labels)
        self.refused(t, self.k, self.labels.astype(np.float32), "target wants elements of type int64, got float.*labels")
        t = self.trainer(optimizer="sgd", eval_batch=ROWS)
        t.step(self.k, self.shares)
        for value in (0, 1):
            self.refused(t, self.k, np.full((ROWS, CLASSES), value), "target wants elements of type double, got int64.*soft targets")

    def test_another_kind_of_input(self):
        t = self.trainer(optimizer="sgd", eval_batch=ROWS)
        t.step(self.k, self.labels)
        for k in (self.k + 0.6, self.k * np.nan):
            self.refused(t, k, self.labels, "input 'k' wants elements of type int64, got double")

    def test_outside_of_a_table(self):
        """With early updates, too: nothing has been updated when the table is read."""
        for memory in ("store", "recompute", "auto"):
            for options in ({}, {"accumulate": True}):
                for early in (False, True):
                    with self.subTest(memory=memory, early=early, **options):
                        plain, mine = (self.trainer(optimizer="adam", memory=memory, early_update=early, **options) for _ in range(2))
                        for t in (plain, mine):
                            t.step(self.k, self.labels)
                        with self.assertRaises(invonnx.NumericError):
                            mine.step(self.k + WORDS, self.labels)
                        for t in (plain, mine):
                            t.step(self.k, self.labels)
                        for name, w in self.weights(plain).items():
                            np.testing.assert_array_equal(w, self.weights(mine)[name])

    def test_draws_of_a_step(self):
        """A row's number in its step decides, whatever batches were before, and however the step is cut."""
        t = self.trainer(dropout=True, optimizer="sgd", accumulate=True)
        more = np.arange(2 * ROWS) % WORDS
        t.step(more, more % CLASSES)  # a larger batch, which the session is planned for from now on
        path = os.path.join(self.folder.name, "state")
        t.save_state(path)
        new = self.trainer(dropout=True, optimizer="sgd", accumulate=True)
        new.load_state(path)
        whole = self.trainer(dropout=True, optimizer="sgd", accumulate=True)
        whole.load_state(path)
        for each in (t, new):
            for part in (more[:ROWS], more[ROWS:]):
                each.accumulate(part, part % CLASSES)
            each.update()
        whole.step(more, more % CLASSES)
        for name, w in self.weights(t).items():
            np.testing.assert_array_equal(w, self.weights(new)[name])
            np.testing.assert_allclose(w, self.weights(whole)[name], rtol=1e-12)
            self.assertFalse(np.array_equal(w, numpy_helper.to_array(next(
                i for i in onnx.load(os.path.join(self.folder.name, "m.onnx")).graph.initializer if i.name == name))))


if __name__ == "__main__":
    unittest.main()
