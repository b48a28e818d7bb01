# SPDX-License-Identifier: Apache-2.0
"""`rewrite` gives inverse functions whatever form the file has: in old operator sets, in which attributes stand for what
are inputs today; inside of the file's own functions; in half precision. Each result is accepted by onnx.checker, gives
the outputs of the file in onnxruntime, and each inverse function gives back what it frees of values of the forward run."""
import os
import shutil
import tempfile
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import common
from test_rewrite import DOMAIN, all_values, call_function, error_of, functions_of, session

node = helper.make_node


def random(*shape, seed=0, dtype=np.float32):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.5).astype(dtype)


def orthogonal(n, seed):
    return np.linalg.qr(random(n, n, seed=seed, dtype=np.float64))[0].astype(np.float32)


class Forms(unittest.TestCase):
    def setUp(self):
        self.top = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.top)

    def at(self, name):
        return os.path.join(self.top, name)

    def save(self, model, name="model.onnx"):
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, self.at(name))
        return self.at(name)

    def rewrite(self, model, *options):
        """(the rewritten model, the report's blocks); checked, and with the outputs of the original"""
        report = common.report("rewrite", self.save(model), "-o", self.at("out.onnx"), *options)
        onnx.checker.check_model(self.at("out.onnx"), full_check=True)
        again = common.report("rewrite", self.at("out.onnx"), "-o", self.at("again.onnx"), *options)
        self.assertEqual(sorted(b["kind"] for b in again["blocks"]), sorted(b["kind"] for b in report["blocks"]))
        with open(self.at("out.onnx"), "rb") as a, open(self.at("again.onnx"), "rb") as b:
            self.assertEqual(a.read(), b.read(), "rewriting a rewritten model gives another file")
        return onnx.load(self.at("out.onnx")), report["blocks"]

    def hold(self, model, feeds, limit=1e-5):
        """Outputs are those of the file; every inverse, run, gives what it frees. {rule: inverses}"""
        a, b = session(self.at("model.onnx")), session(self.at("out.onnx"))
        for x, y in zip(a.run(None, feeds), b.run(None, feeds)):
            self.assertEqual((x.dtype, x.tobytes()), (y.dtype, y.tobytes()))
        values, run = all_values(self.at("out.onnx"), feeds), {}
        for name, facts in functions_of(model).items():
            if "inverse" not in facts:
                continue
            run[facts["rule"]] = run.get(facts["rule"], 0) + 1
            for v, got in call_function(model, facts["inverse"], values).items():
                self.assertEqual((got.dtype, got.shape), (values[v].dtype, values[v].shape), (name, v))
                gain = min(float(facts["gain"]), 1e3)
                self.assertLessEqual(error_of(got, values[v]), limit * max(1, gain), (name, v))
        return run


# --- old operator sets ---

def old(opset, listed):
    """Couplings of two halves, cut by Slice and joined, and what ONNX can write in today's operators only, between them.
    listed: as in IR version 3, initializers are inputs, too."""
    w = {"Wp": random(2, 8, seed=1), "bp": random(8, seed=2), "Wt": random(8, 2, seed=3), "bt": random(2, seed=4),
         "Ws": random(8, 2, seed=5), "bs": random(2, seed=6), "Wa": orthogonal(4, 7), "Wc": orthogonal(4, 8).reshape(4, 4, 1, 1),
         "shape": np.array([0, 4, 1, 1]), "flat": np.array([0, 4]), "order": np.array([2, 0, 3, 1]),
         "mask": np.float32([1, 0, 1, 0]), "rest": np.float32([0, 1, 0, 1]), "Wk": random(4, 4, seed=13),
         "slope": np.array([0.5], np.float32), "gamma": 1 + random(4, seed=9) ** 2, "beta": random(4, seed=10),
         "mean": random(4, seed=11), "var": 1 + random(4, seed=12) ** 2}
    slices = [node("Slice", ["a"], ["a1"], axes=[1], starts=[0], ends=[2]),
              node("Slice", ["a"], ["a2"], axes=[1], starts=[2], ends=[4])]
    if opset >= 10:
        w.update(nought=np.array([0]), two=np.array([2]), four=np.array([4]), one=np.array([1]))
        slices = [node("Slice", ["a", "nought", "two", "one"], ["a1"]), node("Slice", ["a", "two", "four", "one"], ["a2"])]
    nodes = [node("LeakyRelu", ["x"], ["l"], alpha=0.3, name="leaky"), node("MatMul", ["l", "Wa"], ["a"]), *slices,
             node("Gemm", ["a2", "Wp", "bp"], ["h"]), node("Tanh", ["h"], ["i"]), node("Gemm", ["i", "Wt", "bt"], ["t"]),
             node("Gemm", ["i", "Ws", "bs"], ["u"]), node("Tanh", ["u"], ["v"]), node("Exp", ["v"], ["s"]),
             node("Mul", ["a1", "s"], ["m"]), node("Add", ["m", "t"], ["n"]), node("Concat", ["n", "a2"], ["c"], axis=1),
             node("Gather", ["c", "order"], ["o"], axis=1), node("Reshape", ["o", "shape"], ["r"]),
             node("Conv", ["r", "Wc"], ["k"]),
             node("BatchNormalization", ["k", "gamma", "beta", "mean", "var"], ["b"], epsilon=1e-3),
             node("PRelu", ["b", "slope"], ["p"]), node("Elu", ["p"], ["e"]), node("Reshape", ["e", "flat"], ["f"]),
             node("Split", ["f"], ["f1", "f2"], axis=1, split=[3, 1]), node("Concat", ["f2", "f1"], ["g"], axis=1),
             node("Tanh", ["g"], ["d"]), node("Split", ["d"], ["d1", "d2"], axis=1),
             node("Gemm", ["d1", "Wp", "bp"], ["q"]), node("Relu", ["q"], ["z"]), node("Gemm", ["z", "Wt", "bt"], ["j"]),
             node("Add", ["d2", "j"], ["y2"]), node("Concat", ["d1", "y2"], ["w"], axis=1),
             node("Mul", ["w", "mask"], ["kept"]), node("MatMul", ["kept", "Wk"], ["us"]), node("Tanh", ["us"], ["vs"]),
             node("Exp", ["vs"], ["es"]), node("MatMul", ["kept", "Wa"], ["ts"]), node("Mul", ["w", "es"], ["ms"]),
             node("Add", ["ms", "ts"], ["as"]), node("Mul", ["as", "rest"], ["rs"]), node("Add", ["kept", "rs"], ["y"])]
    tensors = [numpy_helper.from_array(a, k) for k, a in w.items()]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])]
    if listed:
        inputs += [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in tensors]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])]
    return helper.make_model(helper.make_graph(nodes, "g", inputs, outputs, tensors),
                             opset_imports=[helper.make_opsetid("", opset)], ir_version=3 if listed else 8)


class OldOperatorSets(Forms):
    def test_inverses(self):
        feeds = {"x": random(5, 4, seed=20)}
        for opset, listed in ((7, True), (8, True), (8, False), (9, True), (9, False), (10, False), (11, False)):
            with self.subTest(opset=opset, listed=listed):
                out, blocks = self.rewrite(old(opset, listed))
                self.assertEqual([(o.domain, o.version) for o in out.opset_import], [("", opset), (DOMAIN, 1)])
                self.assertEqual(out.ir_version, 8)
                for f in out.functions:
                    self.assertIn(("", opset), [(o.domain, o.version) for o in f.opset_import])
                self.assertEqual([b["kind"] for b in blocks if not b["inverse"]], [])
                run = self.hold(out, feeds)
                self.assertLessEqual({"leaky_relu", "tanh", "prelu", "elu", "batchnorm_eval", "affine_coupling",
                                      "additive_coupling", "linear_square", "masked_affine_coupling"}, set(run))

    def test_inverse_direction(self):
        x, said = random(5, 4, seed=20), []
        for opset in (7, 8, 9, 11):
            path = self.save(old(opset, False))
            common.report("rewrite", path, "--inverse-out", self.at("inv.onnx"), "--with-logdet", "log det")
            onnx.checker.check_model(self.at("inv.onnx"), full_check=True)
            y, = session(path).run(None, {"x": x})
            back, logdet = session(self.at("inv.onnx")).run(["x", "log det"], {"y": y})
            self.assertLessEqual(error_of(back, x), 1e-5)
            said.append(logdet)
            self.assertLessEqual(error_of(logdet, said[0]), 1e-5)


if __name__ == "__main__":
    unittest.main()
