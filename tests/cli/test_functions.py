# SPDX-License-Identifier: Apache-2.0
"""Adapters and new heads inside of model-local functions, those of rewritten models among them: functions give way to their
nodes. What is written is checked by onnx.checker and computes in onnxruntime what it computes here."""
import os
import unittest

import numpy as np
import onnx
import onnxruntime
from common import EXAMPLES, InFolder, call, called_too_early, report
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

RNG = np.random.default_rng(5)
OPSETS = [helper.make_opsetid("", 17)]
MY = helper.make_opsetid("my", 1)


def normal(*shape):
    return (RNG.standard_normal(shape) * 0.4).astype(np.float32)


def function(name, inputs, nodes, opsets=OPSETS, attributes=()):
    return helper.make_function("my", name, inputs, ["y"], nodes, opsets, attributes)


def call_of(name, inputs, output, label, **attributes):
    return helper.make_node(name, inputs, [output], domain="my", name=label, **attributes)


def product():
    """Gemm, whose transB is the call's."""
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="gemm")
    node.attribute.append(onnx.AttributeProto(name="transB", ref_attr_name="transB", type=onnx.AttributeProto.INT))
    return function("Product", ["x", "w", "b"], [node], attributes=["transB"])


def mixed():
    """x W with W in the function, which is called twice."""
    constant = helper.make_node("Constant", [], ["mix"], value=numpy_helper.from_array(normal(6, 6)))
    return function("Mixed", ["x"], [constant, helper.make_node("MatMul", ["x", "mix"], ["y"], name="product")])


def block():
    """A function that calls another, and has an operator set of its own."""
    nodes = [call_of("Product", ["x", "w", "b"], "h", "inner", transB=0),
             helper.make_node("FastGelu", ["h"], ["y"], domain="com.microsoft")]
    return function("Block", ["x", "w", "b"], nodes, [*OPSETS, MY, helper.make_opsetid("com.microsoft", 1)])


class Functions(InFolder):
    def setUp(self):
        super().setUp()
        self.x = normal(12, 6)
        np.save(self.at("in.npy"), self.x)
        np.save(self.at("label.npy"), RNG.integers(0, 3, 12))
        self.weights = {"w": normal(6, 6), "b": normal(6), "head": normal(4, 6), "bias": normal(4)}
        self.nodes = [call_of("Mixed", ["x"], "m0", "first"), call_of("Mixed", ["m0"], "m1", "second"),
                      call_of("Block", ["m1", "w", "b"], "h", "block"),
                      call_of("Product", ["h", "head", "bias"], "logits", "classes", transB=1)]
        self.functions = [product(), mixed(), block()]

    def save(self, opsets=(*OPSETS, MY)):
        graph = helper.make_graph(self.nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 6])],
                                  [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 4])],
                                  [numpy_helper.from_array(w, name) for name, w in self.weights.items()])
        onnx.save(helper.make_model(graph, opset_imports=opsets, functions=self.functions, ir_version=9), self.at("m.onnx"))

    def words(self, path, *more):
        return ["train", path, "--data", self.at("in.npy"), "--target", self.at("label.npy"), "--loss", "cross_entropy",
                "--batch", 4, *more]

    def ort(self, path, x=None):
        session = onnxruntime.InferenceSession(self.at(path), providers=["CPUExecutionProvider"])
        return session.run(None, {session.get_inputs()[0].name: self.x if x is None else x})[0]

    def trained(self, *more):
        self.save()
        report(*self.words(self.at("m.onnx"), *more), "-o", self.at("out.onnx"))
        written = onnx.load(self.at("out.onnx"))
        onnx.checker.check_model(written)
        self.assertFalse(written.functions)
        y = self.ort("out.onnx")
        report("run", self.at("out.onnx"), "--feed", f"x={self.at('in.npy')}", "--dump", self.folder.name)
        np.testing.assert_allclose(np.load(self.at("out_logits.npy")), y, rtol=1e-4, atol=1e-5)
        return {t.name: numpy_helper.to_array(t) for t in written.graph.initializer}, y

    def test_adapters(self):
        """Of a weight that is given to a call, of one in a function, by the name of a node inside; merged, and taken out."""
        for targets, weights in ((["w"], {"w"}), (["first/product"], {"Mixed/mix"}), (["*"], {"w", "Mixed/mix", "head"})):
            options = [o for t in targets for o in ("--lora", t)] + ["--rank", 2]
            self.save()
            before = self.ort("m.onnx")
            _, y = self.trained(*options, "--lr", 0)
            np.testing.assert_allclose(y, before, rtol=1e-5, atol=1e-6)
            made, y = self.trained(*options, "--lr", 0.1)
            self.assertEqual({n[:-len(".lora_A")] for n in made if n.endswith(".lora_A")}, weights)
            self.assertGreater(np.abs(y - before).max(), 1e-3)
            report("adapter", "merge", self.at("out.onnx"), "-o", self.at("merged.onnx"))
            report("adapter", "extract", self.at("out.onnx"), "-o", self.at("a.onnx_adapter"))
            report("adapter", "merge", self.at("m.onnx"), "--adapter", self.at("a.onnx_adapter"), "-o", self.at("again.onnx"))
            for name in "merged.onnx", "again.onnx":
                np.testing.assert_allclose(self.ort(name), y, rtol=1e-4, atol=1e-5)

    def test_head(self):
        made, y = self.trained("--head", 3, "--lr", 0.1)
        self.assertEqual((y.shape, made["head"].shape, made["bias"].shape), ((12, 3), (3, 6), (3,)))
        self.trained("--head", "classes/gemm=3", "--lr", 0.1)

    def test_names(self):
        """A node of the file may be called what a node inside of a call is called, and so may one of another call."""
        self.nodes[1].name = ""  # so it is called by its result, as the call behind it is
        self.nodes[2].name = "m1"
        self.functions[2].node[0].name = "product"
        self.functions[2].node[1].name = "product/gemm"
        self.nodes[3] = helper.make_node("Gemm", ["h", "head", "bias"], ["logits"], transB=1, name="first/product")
        self.trained("--lora", "*", "--rank", 2, "--lr", 0.1)
        names = [n.name for n in onnx.load(self.at("out.onnx")).graph.node if n.name]
        self.assertEqual(len(names), len(set(names)))
        made, _ = self.trained("--head", "first/product=3", "--lr", 0.1)
        self.assertEqual(made["head"].shape, (3, 6))

    def test_operator_sets(self):
        """Functions bring operator sets along that the model has not, of each domain one version."""
        own = [[helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("ReduceSum", ["h"], ["s"], axes=[1])],
               [helper.make_node("Constant", [], ["axes"], value=numpy_helper.from_array(np.array([1]))),
                helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("ReduceSum", ["h", "axes"], ["s"])]]
        add = helper.make_node("Add", ["h", "s"], ["y"])
        self.functions = [function(f"Of{v}", ["x", "w"], [*nodes, add], [helper.make_opsetid("", v)])
                          for v, nodes in zip((11, 17), own)]
        self.nodes = [call_of("Of11", ["x", "w"], "h", "a"), call_of("Of17", ["h", "v"], "logits", "b")]
        self.weights = {"w": normal(6, 6), "v": normal(6, 4)}
        self.save([MY])
        report(*self.words(self.at("m.onnx"), "--lora", "*", "--rank", 2, "-o", self.at("out.onnx")))
        written = onnx.load(self.at("out.onnx"))
        self.assertEqual([f.name for f in written.functions], ["Of17"])
        self.assertIn(("", 11), [(o.domain, o.version) for o in written.opset_import])
        status, _, err = call(*self.words(self.at("m.onnx"), "--lora", "v", "-o", self.at("out.onnx")))
        self.assertEqual(status, 1)
        self.assertIn("'Of17' was not searched: it is of operator set 17, function Of11 of 11", err)

    def test_training_mode(self):
        """The form for inference is found inside, too."""
        bn = helper.make_node("BatchNormalization", ["x", "s", "t", "m", "v"], ["y", "rm", "rv"], training_mode=1)
        self.functions.append(function("Norm", ["x", "s", "t", "m", "v"], [bn]))
        self.nodes.insert(3, call_of("Norm", ["h", "scale", "b", "mean", "var"], "n", "norm"))
        self.nodes[4].input[0] = "n"
        self.weights |= {"scale": normal(6) + 1, "mean": normal(6), "var": normal(6) ** 2 + 1}
        self.trained("--head", 3, "--lr", 0.1)
        attributes = [a for n in onnx.load(self.at("out.onnx")).graph.node for a in n.attribute if a.name == "training_mode"]
        self.assertEqual([a.i for a in attributes], [0])

    def test_shut(self):
        """With a body of control flow inside it stays shut, which is said."""
        branch = [helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["t"])], name, [], [onnx.ValueInfoProto(name="t")])
                  for name in ("then", "else")]
        nodes = [helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True))),
                 helper.make_node("If", ["c"], ["y"], then_branch=branch[0], else_branch=branch[1])]
        self.functions = [function("Either", ["x", "w"], nodes)]
        self.weights = {"w": normal(6, 4)}
        self.nodes = [call_of("Either", ["x", "w"], "logits", "only")]
        self.save()
        for more in ["--head", 3], ["--lora", "w"]:
            status, _, err = call(*self.words(self.at("m.onnx"), *more, "-o", self.at("out.onnx")))
            self.assertEqual(status, 1)
            for word in "Either", "has a body":
                self.assertIn(word, err)

    def test_order(self):
        """In what is written a function stands behind those that it calls, in bodies of control flow, too."""
        branch = [helper.make_graph([call_of("Mixed", ["x"], t, t)], t, [], [onnx.ValueInfoProto(name=t)]) for t in "uv"]
        nodes = [helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(np.array(True))),
                 helper.make_node("If", ["c"], ["y"], then_branch=branch[0], else_branch=branch[1])]
        self.functions = [function("Either", ["x"], nodes, [*OPSETS, MY]), block(), mixed(), product()]
        self.nodes[0] = call_of("Either", ["x"], "m0", "first")
        self.save()
        self.assertTrue(called_too_early(onnx.load(self.at("m.onnx"))))
        report(*self.words(self.at("m.onnx"), "-o", self.at("trained.onnx")))
        report("rewrite", self.at("m.onnx"), "-o", self.at("blocks.onnx"))
        report("rewrite", self.at("m.onnx"), "--for-inference", "-o", self.at("inference.onnx"))
        for name in "trained", "blocks", "inference":
            written = onnx.load(self.at(name + ".onnx"))
            onnx.checker.check_model(written)
            self.assertEqual(called_too_early(written), [], name)
            self.assertIn("Either", [f.name for f in written.functions])
        self.functions = [function("Twice", ["x"], [call_of("Mixed", ["x"], "h", "a"), call_of("Mixed", ["h"], "y", "b")],
                                   [*OPSETS, MY]), mixed()]
        self.nodes = [call_of("Twice", ["x"], "h", "first"), helper.make_node("Gemm", ["h", "head", "bias"], ["logits"], transB=1)]
        self.save()
        report(*self.words(self.at("m.onnx"), "-o", self.at("out.onnx")))
        written = onnx.load(self.at("out.onnx"))
        self.assertEqual([f.name for f in written.functions], ["Mixed", "Twice"])
        np.testing.assert_allclose(ReferenceEvaluator(written).run(None, {"x": self.x})[0], self.ort("out.onnx"), rtol=1e-4, atol=1e-5)

    def test_blocks(self):
        """A rewritten model is one no more, and can be rewritten again."""
        path, x = os.path.join(EXAMPLES, "revnet_digits.onnx"), np.load(os.path.join(EXAMPLES, "data", "digits_val_x.npy"))[:8]
        np.save(self.at("in.npy"), x)
        np.save(self.at("label.npy"), np.load(os.path.join(EXAMPLES, "data", "digits_val_y.npy"))[:8] % 2)
        report("rewrite", path, "-o", self.at("blocks.onnx"))
        self.assertTrue(onnx.load(self.at("blocks.onnx")).functions)
        report(*self.words(self.at("blocks.onnx"), "--lora", "blocks.*", "--rank", 1, "--head", 2, "-o", self.at("out.onnx")))
        written = onnx.load(self.at("out.onnx"))
        onnx.checker.check_model(written, full_check=True)
        self.assertFalse(written.functions)
        self.assertFalse([p.key for p in written.metadata_props if p.key.startswith("ai.invonnx.")])
        report("rewrite", self.at("out.onnx"), "-o", self.at("again.onnx"))
        np.testing.assert_allclose(self.ort("again.onnx", x), self.ort("out.onnx", x), rtol=1e-3, atol=1e-4)


if __name__ == "__main__":
    unittest.main()
