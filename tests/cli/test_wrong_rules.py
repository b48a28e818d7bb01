# SPDX-License-Identifier: Apache-2.0
"""Rules of plugins that are wrong, whatever they claim of themselves: gradients are those of a training without inverses.
Fails if a value that such a rule gives is used without a comparison."""
import os
import unittest

import common
import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

RULE = """rule mine
    kind       mine
    priority   200
    match      {match}
    solve      {solve}
    frees      x
    when       same_shape(x, y)
    gain       {gain}
    exactness  {exactness}
    doc        wrong on purpose
    case       g(float[4,6] in) => (z) {{ param float[6,6] B; param float[6] s = {{1, 1, 2, 1, 1, 1}};
             | x = LeakyRelu<alpha = 0.9>(in); {case}; z = MatMul(y, B) }}
"""
SCALE = {"match": "y = Mul(x, param(s))", "case": "y = Mul(x, s)"}
WRONG = {
    "another operation": {**SCALE, "solve": "x = Sub(y, s)"},
    "a factor": {**SCALE, "solve": "x = Mul(y, s)"},
    "what it starts from": {**SCALE, "solve": "x = View<shape = shape(x)>(y)"},
    "a rearrangement": {"match": "y = Transpose(x)", "solve": "x = View<shape = shape(x)>(y)", "case": "y = Transpose<perm = [1, 0]>(x)"},
}


class WrongRules(common.InFolder):
    def network(self, transposed):
        """Six layers of six features and as many rows, each undone by the library's own rules, too."""
        rng = np.random.default_rng(0)
        nodes, inits, x = [], [], "in"
        for i in range(6):
            inits += [numpy_helper.from_array(np.linalg.qr(rng.normal(size=(6, 6)))[0].astype(np.float32), f"W{i}"),
                      numpy_helper.from_array(np.linspace(.5, 2, 6).astype(np.float32), f"s{i}")]
            nodes += [helper.make_node("MatMul", [x, f"W{i}"], [f"h{i}"]),
                      helper.make_node("LeakyRelu", [f"h{i}"], [f"a{i}"], alpha=.9),
                      helper.make_node("Transpose", [f"a{i}"], [f"y{i}"], perm=[1, 0]) if transposed
                      else helper.make_node("Mul", [f"a{i}", f"s{i}"], [f"y{i}"])]
            x = f"y{i}"
        shape = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [6, 6]) for name in ("in", x)]
        save(helper.make_model(helper.make_graph(nodes, "g", shape[:1], shape[1:], inits),
                               opset_imports=[helper.make_opsetid("", 17)], ir_version=8), self.at("m.onnx"))
        for name in "xt":
            np.save(self.at(f"{name}.npy"), rng.normal(size=(6, 6)).astype(np.float32))

    def gradients(self, memory):
        folder = self.at(memory)
        status, _, err = common.call("grad", self.at("m.onnx"), "--feed", self.at("x.npy"), "--target", self.at("t.npy"), "--loss",
                                     "mse", "--memory", memory, "--mode", "a*=invert", "--plugin", self.at("mine.rules"), "--dump", folder)
        self.assertEqual(status, 0, err)
        return {name: np.load(os.path.join(folder, name)) for name in sorted(os.listdir(folder))}, err

    def test_gradients(self):
        for what, rule in WRONG.items():
            self.network("Transpose" in rule["match"])
            for exactness in ("bounded", "exact"):
                for gain in ("times(1)", "times(2)"):
                    with self.subTest(what=what, exactness=exactness, gain=gain):
                        with open(self.at("mine.rules"), "w", encoding="utf-8") as f:
                            f.write(RULE.format(exactness=exactness, gain=gain, **rule))
                        right, _ = self.gradients("store")
                        mine, said = self.gradients("invert")
                        self.assertIn("is stored from now on", said)  # the rule was tried
                        for name, g in right.items():
                            np.testing.assert_allclose(mine[name], g, rtol=1e-4, atol=1e-4 * np.abs(g).max(), err_msg=name)

    def likelihood(self, logdet, *options, rows=5):
        """Of a flow with a coupling and a scale, which the plugin's rule inverts."""
        rng = np.random.default_rng(2)
        of = {"W": rng.normal(size=(3, 3)), "s": np.linspace(.5, 2, 6)}
        nodes = [helper.make_node("Split", ["in"], ["p", "q"], axis=1), helper.make_node("MatMul", ["p", "W"], ["h"]),
                 helper.make_node("Tanh", ["h"], ["k"]), helper.make_node("Exp", ["k"], ["e"]),
                 helper.make_node("Mul", ["q", "e"], ["r"]), helper.make_node("Concat", ["r", "p"], ["c"], axis=1),
                 helper.make_node("Mul", ["c", "s"], ["z"])]
        shape = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 6]) for name in ("in", "z")]
        inits = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in of.items()]
        save(helper.make_model(helper.make_graph(nodes, "g", shape[:1], shape[1:], inits),
                               opset_imports=[helper.make_opsetid("", 13)], ir_version=8), self.at("flow.onnx"))
        np.save(self.at("rows.npy"), rng.normal(size=(rows, 6)).astype(np.float32))
        with open(self.at("mine.rules"), "w", encoding="utf-8") as f:
            f.write(RULE.format(exactness="bounded", gain="max_inv(s)", solve="x = Div(y, s)", **SCALE).replace(
                "    doc ", f"    logdet     {logdet}\n    doc "))
        return common.call("eval", self.at("flow.onnx"), "--data", self.at("rows.npy"), "--batch", rows, "--loss", "nll", "--logdet",
                           "rules", "--plugin", self.at("mine.rules"), *options)

    def test_log_determinants(self):
        """What a plugin's rule states is compared with differences of the outputs before it is used."""
        for rows in (1, 5):
            status, _, err = self.likelihood("log_abs(s)", rows=rows)
            self.assertEqual(status, 0, err)
            for wrong in ("-log_abs(s)", "log_abs(s); log_abs(s)"):
                with self.subTest(wrong=wrong, rows=rows):
                    status, _, err = self.likelihood(wrong, rows=rows)
                    self.assertEqual(status, 1)
                    self.assertIn("by differences of the outputs: rule 'mine' of plugin", err)
                    status, _, err = self.likelihood(wrong, "--trust-logdet", rows=rows)
                    self.assertEqual(status, 0, err)


if __name__ == "__main__":
    unittest.main()
