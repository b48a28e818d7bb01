# SPDX-License-Identifier: Apache-2.0
"""Formulas that are right where their parts are not: fails if the gradient of a norm at the zero vector is not 0, in
whatever spelling, or if a logarithm of sums of powers of e, of a sigmoid or of a softmax overflows, or is lost, where
its result is an ordinary number. References: the formulas in float64."""
import os
import unittest

import numpy as np
import onnx
from common import InFolder, call
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

INF = np.inf


def const(a, t=np.float32):
    return np.asarray(a, t)


class Formula(InFolder):
    def graph(self, nodes, x, consts, opset, out):
        """The sum of what `nodes` make of a = x w is the loss; w is ones."""
        body = [h.make_node("Mul", ["x", "w"], ["a"])]
        body += [h.make_node(op, ins.split(), outs.split(), **attr) for op, ins, outs, attr in nodes]
        body.append(h.make_node("ReduceSum", [out], ["loss"], keepdims=0))
        graph = h.make_graph(body, "g", [h.make_tensor_value_info("x", T.FLOAT, ["N", *x.shape[1:]])],
                             [h.make_tensor_value_info("loss", T.FLOAT, []),
                              h.make_tensor_value_info(out, T.FLOAT, None)],
                             [nh.from_array(np.ones(x.shape[1:], np.float32), "w")] +
                             [nh.from_array(v, k) for k, v in consts.items()])
        onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", opset)], ir_version=8), self.at("m.onnx"))
        np.save(self.at("f.npy"), x.astype(np.float32))

    def value(self, out):
        status, _, err = call("run", self.at("m.onnx"), "--feed", "x=" + self.at("f.npy"), "--dump", self.at("r"))
        self.assertEqual(status, 0, err)
        return np.load(self.at(f"r/out_{out}.npy"))

    def gradient(self):
        status, _, err = call("grad", self.at("m.onnx"), "--feed", "x=" + self.at("f.npy"), "--loss", "output",
                              "--loss-output", "loss", "--dump", self.at("g"))
        self.assertEqual(status, 0, err)
        return np.load(self.at("g/grad_w.npy"))


# --- norms: rows, one of them zero, and their values and gradients by x ---

def n(op, ins, outs, **attr):
    return op, ins, outs, attr


SUMS = {
    "mul": [n("Mul", "a a", "q"), n("ReduceSum", "q ax", "s", keepdims=0)],
    "pow": [n("Pow", "a two", "q"), n("ReduceSum", "q ax", "s", keepdims=1)],
    "sum_square": [n("ReduceSumSquare", "a", "s", axes=[1], keepdims=0)],
    "abs_pow": [n("Abs", "a", "b"), n("Pow", "b two", "q"), n("ReduceSum", "q ax", "s", keepdims=0)],
    "mean_times_n": [n("Mul", "a a", "q"), n("ReduceMean", "q", "t", axes=[1], keepdims=0), n("Mul", "t four", "s")],
    "einsum": [n("Einsum", "a a", "s", equation="bi,bi->b")],
    "matmul": [n("Unsqueeze", "a ax", "r"), n("Unsqueeze", "a ax2", "c"), n("MatMul", "r c", "s")],
    "halves": [n("Split", "a", "u v", axis=1), n("Mul", "u u", "uu"), n("Mul", "v v", "vv"), n("Add", "uu vv", "q"),
               n("ReduceSum", "q ax", "s", keepdims=0)],
    "not_below_zero": [n("Mul", "a a", "q"), n("ReduceSum", "q ax", "t", keepdims=0), n("Relu", "t", "s")],
    "clipped": [n("Mul", "a a", "q"), n("ReduceSum", "q ax", "t", keepdims=0), n("Clip", "t zero", "s")],
}
ROOTS = {"sqrt": [n("Sqrt", "s", "y")], "pow": [n("Pow", "s half", "y")],
         "power_of_a_sixth": [n("Mul", "s s", "s2"), n("Mul", "s2 s", "s3"), n("Pow", "s3 sixth", "y")]}
WHOLE = {
    "l2": (2, [n("ReduceL2", "a", "y", axes=[1], keepdims=0)]),
    "lp_pool": (2, [n("Unsqueeze", "a ax", "r"), n("LpPool", "r", "y", kernel_shape=[4], p=2)]),
    "lp_pool_3": (3, [n("Unsqueeze", "a ax", "r"), n("LpPool", "r", "y", kernel_shape=[4], p=3)]),
    "global_lp_pool": (2, [n("Unsqueeze", "a ax", "r"), n("GlobalLpPool", "r", "y", p=2)]),
    "global_lp_pool_3": (3, [n("Unsqueeze", "a ax", "r"), n("GlobalLpPool", "r", "y", p=3)]),
    "order_4": (4, [n("Mul", "a a", "q"), n("Mul", "q q", "q2"), n("ReduceSum", "q2 ax", "s"), n("Pow", "s quarter", "y")]),
    "order_1_5": (1.5, [n("Abs", "a", "b"), n("Pow", "b p15", "q"), n("ReduceSum", "q ax", "s"), n("Pow", "s r15", "y")]),
}
CONSTS = {"ax": const([1], np.int64), "ax2": const([2], np.int64), "two": const(2), "four": const(4), "half": const(.5),
          "zero": const(0), "sixth": const(1 / 6), "quarter": const(.25), "p15": const(1.5), "r15": const(1 / 1.5),
          "eps": const(1e-12)}


class Norms(Formula):
    def setUp(self):
        super().setUp()
        self.rows = np.random.default_rng(0).standard_normal((5, 4))
        self.rows[2] = 0

    def check_norm(self, nodes, p=2, tail=(), out="y"):
        x = self.rows
        self.graph([*nodes, *tail], x, CONSTS, 17, out)
        norm = (np.abs(x) ** p).sum(1) ** (1 / p)
        np.testing.assert_allclose(self.value(out).ravel(), norm, rtol=1e-5, atol=1e-6)
        with np.errstate(invalid="ignore"):
            by_row = np.nan_to_num(np.abs(x) ** (p - 1) * np.sign(x) / norm[:, None] ** (p - 1))
        np.testing.assert_allclose(self.gradient(), (by_row * x).sum(0), rtol=1e-4, atol=1e-5)

    def test_lp_normalization(self):
        for p in (1, 2):
            self.graph([n("LpNormalization", "a", "y", axis=1, p=p), n("Mul", "y k", "z")], self.rows,
                       {"k": const([1, 2, 3, 4])}, 17, "z")
            y = self.value("z")
            self.assertTrue((y[2] == 0).all())
            self.assertTrue(np.isfinite(self.gradient()).all())

    def test_a_root_of_anything_else_has_its_slope(self):
        self.graph([n("Sqrt", "a", "y")], np.zeros((1, 4)), {}, 17, "y")
        status, _, err = call("grad", self.at("m.onnx"), "--feed", "x=" + self.at("f.npy"), "--loss", "output",
                              "--loss-output", "loss", "--dump", self.at("g"))
        self.assertEqual(status, 1, err)

    def test_normalized(self):
        """x over its norm, which is held off zero: as F.normalize and cosine_similarity are written."""
        for tail in ([n("Clip", "y eps", "m")], [n("Max", "y eps", "m")]):
            self.graph([n("Mul", "a a", "q"), n("ReduceSum", "q ax", "s", keepdims=1), n("Sqrt", "s", "y"), *tail,
                        n("Div", "a m", "d"), n("Mul", "d d", "z")], self.rows, CONSTS, 17, "z")
            self.assertTrue((self.value("z")[2] == 0).all())
            np.testing.assert_allclose(self.gradient()[2:], [0, 0], atol=2)

    def test_product_of_two(self):
        """As the older exporter writes cosine_similarity, with the squares of a constant folded."""
        squares = self.rows[:3] ** 2
        self.graph([n("Mul", "a a", "q"), n("ReduceSum", "q ax", "s", keepdims=1), n("ReduceSum", "k ax", "t", keepdims=0),
                    n("Mul", "s t", "u"), n("Sqrt", "u", "v"), n("Max", "v eps", "y")], self.rows,
                   {**CONSTS, "k": const(squares)}, 17, "y")
        self.assertTrue(np.isfinite(self.gradient()).all())


def norm_of(p, nodes):
    return lambda self: self.check_norm(nodes, p)


for s_name, s_nodes in SUMS.items():
    for r_name, r_nodes in ROOTS.items():
        setattr(Norms, f"test_{s_name}_{r_name}", norm_of(2, s_nodes + r_nodes))
for w_name, (w_p, w_nodes) in WHOLE.items():
    setattr(Norms, f"test_{w_name}", norm_of(w_p, w_nodes))


# --- logarithms ---

LOGS = {
    # name: nodes from a to y, the right values, their derivative
    "log_sigmoid": ([n("Sigmoid", "a", "s"), n("Log", "s", "y")], "logsigmoid"),
    "log_sigmoid_shared": ([n("Sigmoid", "a", "s"), n("Log", "s", "y"), n("Mul", "s s", "also")], "logsigmoid"),
    "log_reciprocal": ([n("Neg", "a", "m"), n("Exp", "m", "e"), n("Add", "e one", "t"), n("Reciprocal", "t", "s"),
                        n("Log", "s", "y")], "logsigmoid"),
    "log_quotient": ([n("Neg", "a", "m"), n("Exp", "m", "e"), n("Add", "one e", "t"), n("Div", "one t", "s"),
                      n("Log", "s", "y")], "logsigmoid"),
    "log_of_e_over_1_plus_e": ([n("Exp", "a", "e"), n("Add", "e one", "t"), n("Div", "e t", "s"), n("Log", "s", "y")],
                               "logsigmoid"),
    "minus_log_1_plus_e": ([n("Neg", "a", "m"), n("Exp", "m", "e"), n("Add", "one e", "t"), n("Log", "t", "l"),
                            n("Neg", "l", "y")], "logsigmoid"),
    "log_1_minus_sigmoid": ([n("Sigmoid", "a", "s"), n("Sub", "one s", "d"), n("Log", "d", "y")], "log1msigmoid"),
    "log_1_minus_sigmoid_shared": ([n("Sigmoid", "a", "s"), n("Sub", "one s", "d"), n("Log", "d", "y"),
                                    n("Mul", "s d", "also")], "log1msigmoid"),
    "log_of_one_over_1_plus_e": ([n("Exp", "a", "e"), n("Add", "e one", "t"), n("Reciprocal", "t", "s"),
                                  n("Log", "s", "y")], "log1msigmoid"),
    "log_of_sigmoid_of_minus": ([n("Neg", "a", "m"), n("Sigmoid", "m", "s"), n("Log", "s", "y")], "log1msigmoid"),
    "softplus": ([n("Exp", "a", "e"), n("Add", "one e", "t"), n("Log", "t", "y")], "softplus"),
    "softplus_shared": ([n("Exp", "a", "e"), n("Add", "e one", "t"), n("Log", "t", "y"), n("Mul", "t one", "also")],
                        "softplus"),
    "softplus_of_two_powers": ([n("Exp", "a", "e"), n("Mul", "a zero", "z"), n("Exp", "z", "f"), n("Add", "e f", "t"),
                                n("Log", "t", "y")], "softplus"),
    "softplus_by_where": ([n("Exp", "a", "e"), n("Add", "e one", "t"), n("Log", "t", "l"), n("Greater", "a twenty", "c"),
                           n("Where", "c a l", "y")], "softplus"),
    "log_of_e_plus_3": ([n("Exp", "a", "e"), n("Add", "e three", "t"), n("Log", "t", "y")], "plus3"),
    "log_of_1_plus_3_e": ([n("Exp", "a", "e"), n("Mul", "three e", "t"), n("Add", "one t", "u"), n("Log", "u", "y")],
                          "times3"),
    "log_cosh": ([n("Neg", "a", "m"), n("Exp", "a", "e"), n("Exp", "m", "f"), n("Add", "e f", "s"), n("Div", "s two", "t"),
                  n("Log", "t", "y")], "logcosh"),
    "log_of_e": ([n("Exp", "a", "e"), n("Log", "e", "y")], "itself"),
}
RIGHT = {
    "logsigmoid": (lambda x: -np.logaddexp(0, -x), lambda x: np.exp(-np.logaddexp(0, x))),
    "log1msigmoid": (lambda x: -np.logaddexp(0, x), lambda x: -np.exp(-np.logaddexp(0, -x))),
    "softplus": (lambda x: np.logaddexp(0, x), lambda x: np.exp(-np.logaddexp(0, -x))),
    "plus3": (lambda x: np.logaddexp(np.log(3), x), lambda x: np.exp(-np.logaddexp(0, np.log(3) - x))),
    "times3": (lambda x: np.logaddexp(0, x + np.log(3)), lambda x: np.exp(-np.logaddexp(0, -x - np.log(3)))),
    "logcosh": (lambda x: np.logaddexp(x, -x) - np.log(2), np.tanh),
    "itself": (lambda x: x, np.ones_like),
}
NUMBERS = {"one": const(1), "two": const(2), "zero": const(0), "three": const(3), "twenty": const(20),
           "ax": const([1], np.int64), "i0": const([0], np.int64), "i1": const([1], np.int64)}


def log_of(nodes, right):
    def test(self):
        x = np.array([[-300, -110, -100, -88, -20, -.5, 0, .5, 20, 88, 100, 300]], np.float64)
        value, slope = RIGHT[right]
        self.graph(nodes, x, NUMBERS, 17, "y")
        np.testing.assert_allclose(self.value("y"), value(x), rtol=2e-6, atol=1e-6)
        np.testing.assert_allclose(self.gradient(), (slope(x) * x)[0], rtol=1e-5, atol=1e-5)
        infinite = [0] if right == "softplus_of_two_powers" else [-INF, INF]
        self.graph(nodes, np.array([infinite]), NUMBERS, 17, "y")
        if not any(op == "Mul" for op, *_ in nodes):
            np.testing.assert_array_equal(self.value("y"), value(np.array([infinite])).astype(np.float32))
    return test


class Logs(Formula):
    pass


for l_name, row in LOGS.items():
    setattr(Logs, f"test_{l_name}", log_of(*row))

PARTS = [n("Split", "a sizes", "u v", axis=1)]
TAIL = [n("Exp", "a", "e")]
SUM_LOGS = {
    "operator": ([n("ReduceLogSumExp", "a", "y", axes=[1], keepdims=0)], 0),
    "plain": ([n("Exp", "a", "e"), n("ReduceSum", "e ax", "s", keepdims=0), n("Log", "s", "y")], 0),
    "plain_kept": ([n("Exp", "a", "e"), n("ReduceSum", "e ax", "s", keepdims=1), n("Log", "s", "y")], 0),
    "log_sum": ([n("Exp", "a", "e"), n("ReduceLogSum", "e", "y", axes=[1], keepdims=0)], 0),
    "shared": ([n("Exp", "a", "e"), n("ReduceSum", "e ax", "s", keepdims=1), n("Log", "s", "y"), n("Div", "e s", "p")], 0),
    "by_maximum": ([n("ReduceMax", "a", "m", axes=[1], keepdims=1), n("Sub", "a m", "d"), n("Exp", "d", "e"),
                    n("ReduceSum", "e ax", "s", keepdims=1), n("Log", "s", "l"), n("Add", "m l", "y")], 0),
    "by_maximum_flat": ([n("ReduceMax", "a", "m", axes=[1], keepdims=1), n("Sub", "a m", "d"), n("Exp", "d", "e"),
                         n("ReduceSum", "e ax", "s", keepdims=0), n("Log", "s", "l"), n("Squeeze", "m ax", "f"),
                         n("Add", "l f", "y")], 0),
    "of_parts": ([n("Split", "a sizes", "u v", axis=1), n("Exp", "u", "p"), n("Exp", "v", "q"),
                  n("ReduceSum", "q ax", "r", keepdims=1), n("Add", "p r", "s"), n("Log", "s", "y")], 0),
    "of_three": ([n("Split", "a ones", "u v t", axis=1), n("Exp", "u", "p"), n("Exp", "v", "q"), n("Exp", "t", "r"),
                  n("Add", "p q", "pq"), n("Add", "pq r", "s"), n("Log", "s", "y")], 0),
    "of_three_by_sum": ([n("Split", "a ones", "u v t", axis=1), n("Exp", "u", "p"), n("Exp", "v", "q"),
                         n("Exp", "t", "r"), n("Sum", "p q r", "s"), n("Log", "s", "y")], 0),
    "times_a_number": ([n("Exp", "a", "e"), n("ReduceSum", "e ax", "s", keepdims=0), n("Mul", "three s", "t"),
                        n("Log", "t", "y")], np.log(3)),
    "over_a_number": ([n("Exp", "a", "e"), n("ReduceSum", "e ax", "s", keepdims=0), n("Div", "s twenty", "t"),
                       n("Log", "t", "y")], -np.log(20)),
    "mean": ([n("Exp", "a", "e"), n("ReduceMean", "e", "s", axes=[1], keepdims=0), n("Log", "s", "y")], -np.log(3)),
}


def sum_log_of(nodes, more):
    def test(self):
        consts = {**NUMBERS, "sizes": const([1, 2], np.int64), "ones": const([1, 1, 1], np.int64)}
        x = np.array([[1, 2, 3], [200, 199, -500], [-200, -201, -300], [0, 0, 0], [90, -90, 89]], np.float64)
        top = x.max(1, keepdims=True)
        right = (np.log(np.exp(x - top).sum(1)) + top[:, 0]) + more
        slope = np.exp(x - right[:, None] + more)
        self.graph(nodes, x, consts, 17, "y")
        np.testing.assert_allclose(self.value("y").ravel(), right, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(self.gradient(), (slope * x).sum(0), rtol=1e-5, atol=1e-4)
        rows = np.array([[-INF, -INF, -INF], [1, INF, 0], [-INF, 1, -INF], [INF, INF, -INF]])
        self.graph(nodes, rows, consts, 17, "y")
        np.testing.assert_allclose(self.value("y").ravel(), [-INF, INF, 1 + more, INF], rtol=1e-6)
    return test


class SumLogs(Formula):
    def test_masked_rows_have_no_gradient(self):
        """Of a row of -infinity, whose result is not counted."""
        self.graph([n("Add", "a mask", "b"), n("ReduceLogSumExp", "b", "l", axes=[1], keepdims=0),
                    n("Max", "l low", "y")], np.ones((3, 3)),
                   {"mask": const([[0, 0, 0], [-INF] * 3, [0, -INF, 0]]), "low": const(-10)}, 17, "y")
        right = np.array([1 / 3 + 1 / 2, 1 / 3, 1 / 3 + 1 / 2])
        np.testing.assert_allclose(self.gradient(), right, rtol=1e-5)

    def test_log_softmax(self):
        x = np.array([[1, 2, 3], [200, 100, -500], [-200, -201, -300]], np.float64)
        top = x.max(1, keepdims=True)
        right = x - top - np.log(np.exp(x - top).sum(1, keepdims=True))
        for nodes in ([n("Softmax", "a", "p", axis=1), n("Log", "p", "y")],
                      [n("Softmax", "a", "p", axis=1), n("Log", "p", "y"), n("Mul", "p y", "also")],
                      [n("Exp", "a", "e"), n("ReduceSum", "e ax", "s", keepdims=1), n("Div", "e s", "p"), n("Log", "p", "y")],
                      [n("Exp", "a", "e"), n("ReduceSum", "e ax", "s", keepdims=1), n("Log", "s", "l"), n("Sub", "a l", "y")],
                      [n("ReduceLogSumExp", "a", "l", axes=[1]), n("Sub", "a l", "y")],
                      [n("ReduceLogSumExp", "a", "f", axes=[1], keepdims=0), n("Unsqueeze", "f ax", "l"), n("Sub", "a l", "y")]):
            self.graph(nodes, x, NUMBERS, 17, "y")
            np.testing.assert_allclose(self.value("y"), right, rtol=1e-6, atol=1e-6)
            self.assertTrue(np.isfinite(self.gradient()).all())

    def test_share_of_one_among_others(self):
        """ln(e^u / (e^u + sum e^v)), as losses of pairs write it."""
        x = np.array([[200, 100, 90], [-200, -100, -150], [1, 2, 3]], np.float64)
        top = x.max(1)
        right = x[:, 0] - top - np.log(np.exp(x - top[:, None]).sum(1))
        self.graph([n("Split", "a sizes", "u v", axis=1), n("Exp", "u", "p"), n("Exp", "v", "q"),
                    n("ReduceSum", "q ax", "r", keepdims=1), n("Add", "p r", "s"), n("Div", "p s", "t"), n("Log", "t", "y")],
                   x, {**NUMBERS, "sizes": const([1, 2], np.int64)}, 17, "y")
        np.testing.assert_allclose(self.value("y").ravel(), right, rtol=1e-6, atol=1e-6)
        self.assertTrue(np.isfinite(self.gradient()).all())


for s_name, row in SUM_LOGS.items():
    setattr(SumLogs, f"test_{s_name}", sum_log_of(*row))

if __name__ == "__main__":
    unittest.main()
