# SPDX-License-Identifier: Apache-2.0
"""`check`: numbers of the report against what is known of the models, suggestions where a number calls for one and none
elsewhere. It fails if an inverse is not compared with what it frees, if float64 is not computed in float64, if gains or
condition numbers are not those of the weights, or if what the guard keeps in training is not what is reported."""
import os
import tempfile
import unittest

import numpy as np
import onnx
from common import ROOT, call, model, report
from onnx import TensorProto, helper, numpy_helper

SHARED = os.path.join(ROOT, "..", "shared", "models")


def check(folder, *args):
    return report("check", os.path.join(folder, "model.onnx"), "--feed", os.path.join(folder, "in_x.npy"), *args)


def weights(folder):
    m = onnx.load(os.path.join(folder, "model.onnx"))
    return {t.name: numpy_helper.to_array(t) for t in m.graph.initializer}


def by_node(r, node, rule):
    rows = [i for i in r["inverses"] if i["node"] == node and i["rule"] == rule]
    assert rows, f"no inverse {rule} of {node}"
    return rows[0]


def texts(r):
    return "\n".join(s["text"] for s in r["suggestions"])


class Built(unittest.TestCase):
    """Models made here, of which everything is known."""

    def setUp(self):
        self.dir = tempfile.TemporaryDirectory()
        self.addCleanup(self.dir.cleanup)
        self.rng = np.random.default_rng(5)

    def make(self, nodes, initializers, x, out):
        graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
                                  [helper.make_tensor_value_info(out, TensorProto.FLOAT, None)],
                                  [numpy_helper.from_array(np.asarray(a, np.float32), n)
                                   for n, a in initializers.items()])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
                  os.path.join(self.dir.name, "model.onnx"))
        np.save(os.path.join(self.dir.name, "in_x.npy"), x.astype(np.float32))
        return self.dir.name

    def orthogonal(self, n):
        return np.linalg.qr(self.rng.normal(size=(n, n)))[0]

    def matrix(self, least):
        """Singular values from 1 down to `least`."""
        return self.orthogonal(8) @ np.diag(np.geomspace(1, least, 8)) @ self.orthogonal(8)

    def linear(self, w):
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "lin"),
                 helper.make_node("LeakyRelu", ["y"], ["z"], "act", alpha=0.5)]
        return self.make(nodes, {"w": w}, self.rng.normal(size=(64, 8)), "z")

    def test_condition(self):
        w = self.matrix(1e-3)
        r = check(self.linear(w))
        row = by_node(r, "lin", "linear_square")
        self.assertAlmostEqual(row["condition"] / 1e3, 1, delta=0.01)
        self.assertAlmostEqual(row["gain"] / 1e3, 1, delta=0.01)
        # the outputs are moved in all directions alike: root of the mean square of the inverse's singular values
        expected = np.sqrt(np.mean(1 / np.linalg.svd(w, compute_uv=False) ** 2))
        self.assertAlmostEqual(row["gain_measured"] / expected, 1, delta=0.35)
        self.assertLess(row["gain_measured"], row["gain"])
        self.assertGreater(row["float32"]["relative"], 1e-6)
        self.assertLess(row["float64"]["relative"], 1e-7 * row["float32"]["relative"])
        self.assertIn("orthogonal initialisation", texts(r))
        self.assertIn("condition number 1e+03", texts(r))

    def test_well_conditioned(self):
        r = check(self.linear(self.orthogonal(8)))
        self.assertAlmostEqual(by_node(r, "lin", "linear_square")["condition"], 1, delta=1e-4)
        self.assertAlmostEqual(by_node(r, "lin", "linear_square")["gain_measured"], 1, delta=1e-4)
        self.assertAlmostEqual(by_node(r, "act", "leaky_relu")["gain_measured"], np.sqrt((1 + 4) / 2), delta=0.2)
        self.assertEqual(r["suggestions"], [])
        self.assertTrue(all(b["refused"] is None for b in r["blocks"]))

    def test_singular_is_refused(self):
        r = check(self.linear(self.matrix(1e-7)))
        self.assertFalse([i for i in r["inverses"] if i["rule"] == "linear_square"])
        self.assertRegex(texts(r), r"lin is not inverted: 'w' has condition number (1e\+07|9\.9\de\+06)")

    def test_limit(self):
        folder = self.linear(self.matrix(1e-3))
        r = check(folder, "--max-drift", "1e-6")
        self.assertEqual(by_node(r, "lin", "linear_square")["refused"], "the error is over the limit")
        self.assertIn("--keep 'x'", texts(r))
        self.assertIn("--float64", texts(r))
        self.assertEqual(r["max_drift"]["float32"], 1e-6)
        wide = check(folder, "--float64")
        self.assertIsNone(by_node(wide, "lin", "linear_square")["refused"])
        self.assertEqual(wide["computed_in"], "float64")

    def test_small_factor(self):
        scale = np.linspace(1, 2, 6)
        scale[2] = 0.004
        nodes = [helper.make_node("LeakyRelu", ["x"], ["h"], "act", alpha=0.9),
                 helper.make_node("BatchNormalization", ["h", "scale", "bias", "mean", "var"], ["y"], "bn",
                                  epsilon=0.0)]
        folder = self.make(nodes, {"scale": scale, "bias": np.zeros(6), "mean": np.zeros(6), "var": np.ones(6)},
                           self.rng.normal(size=(32, 6)), "y")
        row = by_node(check(folder), "bn", "batchnorm_eval")
        self.assertAlmostEqual(row["gain"], 250, delta=0.1)
        self.assertGreater(row["gain_measured"], 60)
        self.assertLess(row["gain_measured"], 250)
        self.assertIn("a factor as small as 0.004", texts(check(folder)))

    def test_normalised(self):
        """By their own statistics: the bound is of absolute errors, so it grows with the data's spread."""
        one = np.array([0.5, 1, 2, 1, 1, 1])
        rows = (("batchnorm", ["scale", "bias", "mean", "var"], {"training_mode": 1}, 0),
                ("layer_norm", ["scale", "bias"], {}, 1))
        for rule, names, attributes, axis in rows:
            op = "BatchNormalization" if rule == "batchnorm" else "LayerNormalization"
            out = ["y", "m", "v"] if rule == "batchnorm" else ["y"]
            all_of = {"scale": one, "bias": np.zeros(6), "mean": np.zeros(6), "var": np.ones(6)}
            for size in 1, 1000:
                nodes = [helper.make_node("LeakyRelu", ["x"], ["h"], "act", alpha=0.9),
                         helper.make_node(op, ["h", *names], out, "norm", **attributes)]
                x = size * self.rng.normal(size=(32, 6))
                r = check(self.make(nodes, {n: all_of[n] for n in names}, x, "y"))
                row = by_node(r, "norm", rule)
                spread = np.where(x < 0, 0.9 * x, x).std(axis).max()
                self.assertAlmostEqual(row["gain"], 2, places=5)
                self.assertAlmostEqual(row["gain_bound"] / (2 * spread), 1, delta=1e-4)
                self.assertLess(row["gain_measured"], row["gain_bound"])
                self.assertGreater(row["gain_measured"], row["gain_bound"] / 8)
                self.assertLess(row["relative_gain_measured"], 2)
                self.assertEqual("scale the data to a spread near 1" in texts(r), size == 1000)

    def test_saturated(self):
        for factor, flat in ((0.3, False), (12, True)):
            nodes = [helper.make_node("Mul", ["x", "f"], ["h"], "mul"), helper.make_node("Tanh", ["h"], ["y"], "act")]
            r = check(self.make(nodes, {"f": np.full(8, factor)}, self.rng.normal(size=(64, 8)), "y"))
            self.assertEqual(by_node(r, "act", "tanh")["refused"] is None, False)
            self.assertEqual("Tanh act saturates" in texts(r), flat, texts(r))
        self.assertGreater(by_node(r, "act", "tanh")["float32"]["nonfinite"], 0)
        self.assertEqual(by_node(r, "act", "tanh")["float32"]["relative"], None)
        self.assertEqual(by_node(r, "act", "tanh")["refused"], "the restored value is not finite")

    def couplings(self, blocks, gain):
        """y = x1, x2 + F(x1), halves swapped, F two layers of spectral norm near `gain`."""
        nodes, init = [helper.make_node("Split", ["x", "sizes"], ["a0", "b0"], "split", axis=1)], {}
        for i in range(blocks):
            a, b, name = f"a{i}", f"b{i}", f"c{i}"
            for k in "uv":
                init[f"{name}{k}"] = self.orthogonal(16) * np.sqrt(gain)
            nodes += [helper.make_node("MatMul", [a, name + "u"], [name + "h"], name + "_in"),
                      helper.make_node("Tanh", [name + "h"], [name + "t"], name + "_act"),
                      helper.make_node("MatMul", [name + "t", name + "v"], [name + "f"], name + "_out"),
                      helper.make_node("Add", [b, name + "f"], [f"a{i + 1}"], name)]
            nodes += [helper.make_node("Identity", [a], [f"b{i + 1}"])]
        nodes.append(helper.make_node("Concat", [f"a{blocks}", f"b{blocks}"], ["y"], "join", axis=1))
        folder = self.make(nodes, init, 0.3 * self.rng.normal(size=(16, 32)), "y")
        m = onnx.load(os.path.join(folder, "model.onnx"))
        m.graph.initializer.append(numpy_helper.from_array(np.array([16, 16], np.int64), "sizes"))
        onnx.save(m, os.path.join(folder, "model.onnx"))
        return folder

    def test_errors_grow_with_depth(self):
        folder = self.couplings(32, 9)
        np.save(os.path.join(folder, "target.npy"), np.zeros((16, 32), np.float32))
        loss = ("--loss", "mse", "--target", os.path.join(folder, "target.npy"))
        r = check(folder, *loss)
        chain = r["chain"]
        self.assertTrue(all(b["float32"] < 1e-5 for b in r["blocks"] if b["kind"] == "additive_coupling"))
        self.assertGreater(len(chain["values"]), 16)
        self.assertGreater(chain["growth"], 1.2)
        errors = [v["float32"] for v in chain["values"] if "float32" in v]
        self.assertGreater(max(errors), r["max_drift"]["float32"])
        wide = [v["float64"] for v in chain["values"] if "float64" in v]
        self.assertLess(max(wide), 1e-6 * max(errors))
        self.assertTrue(chain["kept_by_guard"])
        self.assertIn("Tanh c1_act and 30 more saturate", texts(r))
        keep = chain["kept_by_guard"][0]
        self.assertIn(f"--keep '{keep}'", texts(r))
        grad = ("grad", os.path.join(folder, "model.onnx"), "--feed", os.path.join(folder, "in_x.npy"), *loss,
                "--memory", "invert")
        self.assertGreater(report(*grad)["fallbacks"], 0)
        kept = [x for name in chain["kept_by_guard"] for x in ("--keep", name)]
        self.assertEqual(report(*grad, *kept)["fallbacks"], 0)
        distance = r["gradient_distance"]  # what rounding gives of itself is another on each kind of processor
        self.assertLess(distance["invert"], 1.2 * distance["store"])
        self.assertGreater(distance["invert_unguarded"], distance["invert"])
        calm = check(self.couplings(24, 0.2))
        self.assertEqual(calm["chain"]["kept_by_guard"], [])
        self.assertNotIn("add up", texts(calm))


class Committed(unittest.TestCase):
    def test_flow(self):
        folder = model("nice_chunk_ts17")
        r = check(folder)
        self.assertEqual(sum(b["kind"] == "additive_coupling" for b in r["blocks"]), 4)
        w = weights(folder)
        for i in range(4):
            row = by_node(r, f"/m.{i}/m.{i}.0/Gemm", "linear_tall")
            self.assertAlmostEqual(row["condition"] / np.linalg.cond(w[f"m.{i}.0.weight"].astype(float)), 1, delta=1e-3)
            self.assertLess(row["gain_measured"], row["gain"] * 1.0001)
        for row in r["inverses"]:
            self.assertLess(row["float32"]["relative"], 1e-6)
            self.assertLess(row["float64"]["relative"], 1e-14)
            self.assertEqual(row["float32"]["nonfinite"], 0)
        self.assertGreater(max(i["float32"]["relative"] for i in r["inverses"]), 1e-9)  # something was computed
        self.assertEqual(r["suggestions"], [])
        self.assertEqual(r["gradient_distance"], None)

    def test_revnet(self):
        folder = model("revnet8_ts17")
        r = check(folder, "--loss", "cross_entropy", "--target", os.path.join(folder, "target.npy"))
        self.assertEqual(sum(b["kind"] == "additive_coupling" for b in r["blocks"]), 16)
        # What only the plan in float64 rebuilds comes behind.
        chain = [v["value"] for v in r["chain"]["values"] if "/Add_" in v["value"] and "float32" in v]
        self.assertGreater(len(chain), 8)
        self.assertEqual(chain, sorted(chain, reverse=True))  # from the last block to the first
        self.assertGreater(r["chain"]["growth"], 1.02)
        self.assertEqual(r["chain"]["kept_by_guard"], [])
        distance = r["gradient_distance"]
        self.assertLess(distance["store"], 1e-2)
        self.assertGreater(distance["invert"], 0)
        self.assertLess(distance["invert"], 1e-2)

    def test_activations(self):
        r = check(model("mlp_monotone_acts_ts17"))
        leaky = by_node(r, "/LeakyRelu", "leaky_relu")
        self.assertAlmostEqual(leaky["gain"], 100, delta=0.01)
        self.assertGreater(leaky["gain_measured"], 32)
        self.assertLess(leaky["gain_measured"], 100)
        self.assertIn("its slope is 0.01", texts(r))
        self.assertEqual(by_node(r, "/Tanh", "tanh")["refused"], "its gain has no bound")
        self.assertEqual(len(r["suggestions"]), 1)

    def test_text(self):
        folder = model("mlp_monotone_acts_ts17")
        status, out, err = call("check", os.path.join(folder, "model.onnx"), "--feed", os.path.join(folder, "in_x.npy"))
        self.assertEqual((status, err), (0, ""))
        for part in ("blocks: 8", "leaky_relu  /LeakyRelu", "not used, its gain has no bound", "suggestions",
                     "limit (--max-drift): 2e-05 in float32, 1e-08 in float64"):
            self.assertIn(part, out)

    def test_devices_agree(self):
        folder = model("nice_split_uneven_ts17")
        host = check(folder)
        for device in ("checked", "sim"):
            r = check(folder, "--device", device)
            self.assertEqual(len(r["inverses"]), len(host["inverses"]))
            for a, b in zip(r["inverses"], host["inverses"]):
                self.assertLess(a["float32"]["relative"], 1e-6)
                if b["gain_measured"] is not None:
                    self.assertAlmostEqual(a["gain_measured"], b["gain_measured"], places=5)

    def test_usage(self):
        path = os.path.join(model("nice_chunk_ts17"), "model.onnx")
        status, _, err = call("check", path)
        self.assertEqual(status, 2)
        self.assertIn("--feed", err)
        status, _, err = call("check", path, "--feed", os.path.join(model("nice_chunk_ts17"), "in_x.npy"), "--loss",
                              "mse")
        self.assertNotEqual(status, 0)
        self.assertIn("--target", err)


@unittest.skipUnless(os.path.isdir(SHARED), "the golden models are not beside the repository")
class Shared(unittest.TestCase):
    def test_flows(self):
        for name in ("realnvp_ts17", "glow_ts17"):
            r = check(os.path.join(SHARED, name))
            self.assertGreaterEqual(len(r["chain"]["values"]), 4)  # a value for each coupling
            for row in r["inverses"]:
                self.assertLess(row["float64"]["relative"], 1e-12, row)
            for row in r["blocks"]:
                self.assertLess(row["float32"], 1e-5, row)
                if row["float32"] > 0:
                    self.assertLess(row["float64"], 1e-6 * row["float32"], row)

    def test_ill_conditioned(self):
        self.assertRegex(texts(check(os.path.join(SHARED, "hz_ill_conditioned_ts17"))),
                         "/b/Gemm is not inverted: 'b.weight' has condition number")

    def test_zero_gamma(self):
        self.assertRegex(texts(check(os.path.join(SHARED, "hz_bn_zero_gamma_ts17"))),
                         r"bn/BatchNormalization is not inverted: 'bn.weight' comes as near to zero as 0, in entry \d+; "
                         "remedy: ")

    def test_slope(self):
        r = check(os.path.join(SHARED, "hz_leaky_slopes_ts17"))
        self.assertIn("its slope is 1e-12", texts(r))
        self.assertEqual(r["chain"]["kept_by_guard"], [])  # recovery leaves it alone by itself


if __name__ == "__main__":
    unittest.main()
