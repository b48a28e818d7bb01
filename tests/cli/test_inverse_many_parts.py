# SPDX-License-Identifier: Apache-2.0
"""`rewrite --inverse-out` of models that have many of one thing: pieces, terms, streams, steps, conditions, operators
that a weight is computed by, couplings. Round trips in onnxruntime; what is not followed is named.

    test_inverse_many_parts.py"""
import os
import tempfile
import unittest

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnx.helper import make_node as node

import common

RNG = np.random.RandomState(3)


def ints(*numbers):
    return np.array(numbers, np.int64)


class Graph:
    """Nodes and initializers of a model of float x [N, features] and y."""

    def __init__(self, features):
        self.features, self.nodes, self.inits = features, [], {}

    def add(self, op, inputs, out, **attrs):
        names = []
        for i, v in enumerate(inputs):
            names.append(v if isinstance(v, str) else f"{out}_{i}")
            if not isinstance(v, str):
                self.inits[names[-1]] = np.asarray(v)
        self.nodes.append(node(op, names, [out] if isinstance(out, str) else out, **attrs))
        return out

    def parts(self, v, sizes, outs):
        self.inits[f"{outs[0]}_sizes"] = ints(*sizes)
        self.nodes.append(node("Split", [v, f"{outs[0]}_sizes"], outs, axis=1))
        return outs

    def net(self, v, n_in, n_out, out):
        """A layer of 6 units."""
        self.add("MatMul", [v, (RNG.randn(n_in, 6) * .5).astype(np.float32)], f"{out}_g")
        self.add("Relu", [f"{out}_g"], f"{out}_r")
        return self.add("MatMul", [f"{out}_r", (RNG.randn(6, n_out) * .3).astype(np.float32)], out)

    def model(self):
        info = [helper.make_tensor_value_info(v, 1, ["N", self.features]) for v in "xy"]
        inits = [numpy_helper.from_array(a, k) for k, a in self.inits.items()]
        graph = helper.make_graph(self.nodes, "many", info[:1], info[1:], inits)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(path, name, x):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {name: x})[0]


class Many(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.model, self.inverse = (os.path.join(self.folder.name, f) for f in ("m.onnx", "inverse.onnx"))

    def invert(self, graph):
        onnx.save(graph.model(), self.model)
        return common.call("rewrite", self.model, "--inverse-out", self.inverse)

    def round_trip(self, graph):
        status, _, err = self.invert(graph)
        self.assertEqual(status, 0, err)
        x = RNG.randn(3, graph.features).astype(np.float32)
        y = run(self.model, "x", x)
        self.assertGreater(np.abs(y - x).max(), 1e-3)
        np.testing.assert_allclose(run(self.inverse, "y", y), x, atol=2e-4)

    def test_pieces(self):
        for op, k in (("Slice", 70), ("Gather", 70), ("Split", 70)):
            with self.subTest(op=op):
                g = Graph(k)
                if op == "Split":
                    g.parts("x", [1] * k, [f"s{i}" for i in range(k)])
                for i in range(k):
                    if op == "Slice":
                        g.add("Slice", ["x", ints(i), ints(i + 1), ints(1)], f"s{i}")
                    elif op == "Gather":
                        g.add("Gather", ["x", ints(i)], f"s{i}", axis=1)
                    g.add("LeakyRelu", [f"s{i}"], f"o{i}", alpha=.5)
                g.add("Concat", [f"o{i}" for i in range(k)][::-1], "y", axis=1)
                self.round_trip(g)

    def test_reflections(self):
        for k in (20, 100):
            with self.subTest(reflections=k):
                g = Graph(4)
                eye = np.eye(4, dtype=np.float32)
                q = eye
                for i in range(k):
                    g.inits[f"v{i}"] = RNG.randn(4, 1).astype(np.float32)
                    g.add("Transpose", [f"v{i}"], f"t{i}", perm=[1, 0])
                    g.add("MatMul", [f"v{i}", f"t{i}"], f"outer{i}")
                    g.add("MatMul", [f"t{i}", f"v{i}"], f"norm{i}")
                    g.add("Div", [f"outer{i}", f"norm{i}"], f"d{i}")
                    g.add("Mul", [f"d{i}", np.float32(2)], f"m{i}")
                    g.add("Sub", [eye, f"m{i}"], f"h{i}")
                    q = g.add("MatMul", [q, f"h{i}"], f"q{i}")
                g.add("MatMul", ["x", q], "y")
                self.round_trip(g)

    def test_terms_of_a_sum(self):
        for k in (4, 8, 40):
            with self.subTest(terms=k):
                g = Graph(4)
                g.parts("x", [2, 2], ["p", "q"])
                terms = [g.net("q", 2, 2, f"t{i}") for i in range(k)]
                g.add("Sum", [*terms[:k // 2], "p", *terms[k // 2:]], "u")
                g.add("Concat", ["q", "u"], "y", axis=1)
                self.round_trip(g)

    def test_streams(self):
        """Each stream gets a function of all others."""
        for k in (6, 14):
            with self.subTest(streams=k):
                g = Graph(k)
                v = g.parts("x", [1] * k, [f"a{i}" for i in range(k)])[:]
                for i in range(k):
                    g.add("Concat", v[:i] + v[i + 1:], f"others{i}", axis=1)
                    v[i] = g.add("Add", [v[i], g.net(f"others{i}", k - 1, 1, f"t{i}")], f"b{i}")
                g.add("Concat", v, "y", axis=1)
                self.round_trip(g)

    def test_steps_of_a_masked_coupling(self):
        for k in (3, 40):
            with self.subTest(steps=k):
                g = Graph(4)
                g.add("Mul", ["x", np.array([1, 1, 0, 0], np.float32)], "h")
                v = "x"
                for i in range(k):
                    v = g.add("Add", [v, g.net("h", 4, 4, f"t{i}")], f"u{i}")
                g.add("Mul", [v, np.array([0, 0, 1, 1], np.float32)], "d")
                g.add("Add", ["h", "d"], "y")
                self.round_trip(g)

    def test_deep_couplings(self):
        """Scales that are positive by the operator that gives them, behind all couplings before."""
        g = Graph(4)
        v = "x"
        for i in range(40):
            p, q = g.parts(v, [2, 2], [f"p{i}", f"q{i}"])
            g.add("Sigmoid", [g.net(q, 2, 2, f"n{i}")], f"s{i}")
            g.add("Add", [np.float32(.6), f"s{i}"], f"e{i}")
            g.add("Mul", [p, f"e{i}"], f"z{i}")
            v = g.add("Concat", [q, f"z{i}"], "y" if i == 39 else f"x{i}", axis=1)
        self.round_trip(g)

    def nest(self, k):
        """A scale that only the conditions show to be positive, k of them in one another."""
        g = Graph(4)
        g.parts("x", [2, 2], ["p", "q"])
        g.net("q", 2, 2, "h")
        v = np.float32(.5)
        for i in range(k):
            g.add("Greater", ["h", np.float32(.1 + .01 * i)], f"c{i}")
            v = g.add("Where", [f"c{i}", "h", v], f"w{i}")
        g.add("Mul", ["p", v], "u")
        g.add("Concat", ["q", "u"], "y", axis=1)
        return g

    def test_conditions(self):
        for k in (1, 12, 60):
            with self.subTest(conditions=k):
                self.round_trip(self.nest(k))
        status, _, err = self.invert(self.nest(300))
        self.assertEqual(status, 1)
        self.assertIn("its conditions are nested too deeply to be followed", err)

    def test_conditions_joined(self):
        """One condition of many: only the first of them bounds the scale."""
        g = Graph(4)
        g.parts("x", [2, 2], ["p", "q"])
        g.net("q", 2, 2, "h")
        v = g.add("Greater", ["h", np.float32(.2)], "above")
        for i in range(300):
            g.add("Greater", ["h", np.float32(-9)], f"c{i}")
            v = g.add("And", [v, f"c{i}"], f"a{i}")
        g.add("Where", [v, "h", np.float32(.5)], "w")
        g.add("Mul", ["p", "w"], "u")
        g.add("Concat", ["q", "u"], "y", axis=1)
        self.round_trip(g)


if __name__ == "__main__":
    unittest.main()
