# SPDX-License-Identifier: Apache-2.0
"""Batches of other sizes and other extents, such as longer sequences, in any order, beside the same training in NumPy. Fails if
one is refused, changes what the training has become, or is taken by another rule than its neighbour; or if Ctrl-C leaves the
trainer with sizes that its session does not have."""
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import invonnx
from test_interrupts import interrupt_everywhere
from test_package import Case


class Twin:
    """x [N, T, 3] -> tanh(x a) b, with the mean of the squared error, and sgd."""

    def __init__(self):
        rng = np.random.default_rng(3)
        self.a, self.b = rng.normal(size=(3, 4)), rng.normal(size=(4, 2))

    def write(self, path):
        nodes = [helper.make_node("MatMul", ["x", "a"], ["h"]), helper.make_node("Tanh", ["h"], ["t"]),
                 helper.make_node("MatMul", ["t", "b"], ["y"])]
        graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["N", "T", 3])],
                                  [helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["N", "T", 2])],
                                  [numpy_helper.from_array(w, name) for name, w in (("a", self.a), ("b", self.b))])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)

    def loss(self, x, y):
        return ((np.tanh(x @ self.a) @ self.b - y)**2).mean()

    def step(self, x, y, lr):
        h = np.tanh(x @ self.a)
        error = h @ self.b - y
        g = 2 * error / error.size
        of_a = np.einsum("nti,nth->ih", x, (g @ self.b.T) * (1 - h * h))
        self.b = self.b - lr * np.einsum("nth,nto->ho", h, g)
        self.a = self.a - lr * of_a
        return (error**2).mean()


def batch(n, length, seed=0):
    rng = np.random.default_rng((n, length, seed))
    return rng.normal(size=(n, length, 3)), rng.normal(size=(n, length, 2))


class Sizes(Case):
    def trainer(self, **options):
        twin = Twin()
        twin.write(self.at("m.onnx"))
        return invonnx.load(self.at("m.onnx")).trainer(**{
            "loss": "mse", "optimizer": "sgd", "lr": 0.1, "float64": True, "cost": "flops", "threads": 1, **options}), twin

    def test_any_order(self):
        for memory in ("store", "auto"):
            t, twin = self.trainer(memory=memory)
            rng = np.random.default_rng(5)
            for i in range(40):
                x, y = batch(rng.integers(1, 6), rng.integers(1, 5), i)
                if rng.random() < 0.6:
                    np.testing.assert_allclose(t.step(x, y).loss, twin.step(x, y, 0.1), rtol=1e-9)
                else:
                    np.testing.assert_allclose(t.evaluate(x, y).loss, twin.loss(x, y), rtol=1e-9)
                np.testing.assert_allclose(t.parameters["a"], twin.a, rtol=1e-9)
                np.testing.assert_allclose(t.parameters["b"], twin.b, rtol=1e-9)

    def test_inputs_without_rows(self):
        """Beside x [N, 4] an input [3] has no rows, also where a batch has 3 or where it comes first; so has one beside
        x [8, 4] once a batch of 4 has told."""
        for declared, sizes in (("N", (4, 3, 4, 3, 5, 3)), ("N", (3, 4, 2, 3)), (8, (4, 3, 4, 2))):
            rng = np.random.default_rng(7)
            w = rng.normal(size=(4, 3))
            nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Add", ["h", "c"], ["y"])]
            graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.DOUBLE, [declared, 4]),
                                                   helper.make_tensor_value_info("c", TensorProto.DOUBLE, [3])],
                                      [helper.make_tensor_value_info("y", TensorProto.DOUBLE, [declared, 3])],
                                      [numpy_helper.from_array(w, "w")])
            onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), self.at("c.onnx"))
            for names in ("xc", "cx") if declared == "N" else ("xc",):
                t = invonnx.load(self.at("c.onnx")).trainer(loss="mse", optimizer="sgd", lr=0.0, float64=True, cost="flops",
                                                            threads=1, memory="store")
                for n in sizes:
                    given = {"x": rng.normal(size=(n, 4)), "c": rng.normal(size=3)}
                    y = rng.normal(size=(n, 3))
                    loss = ((given["x"] @ w + given["c"] - y)**2).mean()
                    for call in (t.step, t.evaluate):
                        with self.subTest(declared=declared, sizes=sizes, names=names, n=n, call=call.__name__):
                            self.assertAlmostEqual(call({name: given[name] for name in names}, y).loss, loss, places=9)

    @unittest.skipUnless(hasattr(unittest.TestCase, "assertNoLogs"), "assertNoLogs is of Python 3.10")
    def test_known_sizes_are_not_planned_again(self):
        t, _ = self.trainer(memory="store", tail_batch=2, eval_batch=4, eval_tail=1)
        t.step(*batch(4, 5))
        with self.assertNoLogs("invonnx"):
            for n in (2, 4, 2):
                t.step(*batch(n, 5))
            for n in (1, 4):
                t.evaluate(*batch(n, 5))

    def test_wrong_batches_change_nothing(self):
        t, twin = self.trainer(memory="store", eval_batch=4)
        x, y = batch(4, 5)
        t.step(x, y)
        twin.step(x, y, 0.1)
        wrong = ((x[:, :, :2], y, r"input 'x' wants .*3\], got \[4,5,2\]"), (x, y[:3], r"target.*\[3,5,2\].*'y'.*\[4,5,2\]"),
                 (x, y[:, :4], r"target.*\[4,4,2\].*'y'.*\[4,5,2\]"), (x[:, 0], y[:, 0], r"input 'x' wants .*, got \[4,3\]"),
                 (x, None, "target"), (x[:0], y[:0], "without rows"))
        for a, b, message in wrong:
            for call in (t.step, t.evaluate):
                with self.assertRaisesRegex(invonnx.Error, message):
                    call(a, b)
                for rows in (4, 2):
                    x2, y2 = batch(rows, 5)
                    self.assertAlmostEqual(t.evaluate(x2, y2).loss, twin.loss(x2, y2), places=9)
        self.assertEqual(t.steps, 1)
        self.assertAlmostEqual(t.step(x, y).loss, twin.step(x, y, 0.1), places=9)

    def test_interrupted(self):
        for lengths, each in (((5, 5, 5), 3), ((5, 3, 4), 11)):
            t, twin = self.trainer(memory="store")
            batches = [batch(n, length) for n, length in zip((4, 2, 8), lengths)]
            for x, y in batches[:2]:
                t.step(x, y)
                twin.step(x, y, 0.1)
            t.evaluate(*batches[0])

            def begin():
                t._planned = None  # each time it is planned again
                t.evaluate(*batches[2])

            def check():
                for x, y in batches:
                    self.assertAlmostEqual(t.evaluate(x, y).loss, twin.loss(x, y), places=9)

            self.assertGreater(interrupt_everywhere(begin, check, each), 100)
            for x, y in batches:
                self.assertAlmostEqual(t.step(x, y).loss, twin.step(x, y, 0.1), places=9)


if __name__ == "__main__":
    unittest.main()
