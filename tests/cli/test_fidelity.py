# SPDX-License-Identifier: Apache-2.0
"""What nobody asked to change comes back byte for byte: training information, functions, sparse initializers,
quantization annotations, metadata, documentation, and fields of schemas that are yet to come, in every kind of message.
With `train -o` the files differ in the elements of trained initializers and nowhere else."""
import os
import shutil
import tempfile
import unittest

import numpy as np
import onnx
from common import call, report
from onnx import TensorProto, helper, numpy_helper

FUTURE = 1900


def future(message, depth=0):
    """Puts a text into a field that no schema has, here and in every message inside."""
    for field, v in message.ListFields():
        if field.message_type:
            for item in ([v] if hasattr(v, "ListFields") else v):
                future(item, depth + 1)
    text = f"{type(message).__name__} {depth}".encode()
    tag = FUTURE << 3 | 2
    message.MergeFromString(bytes([tag & 0x7f | 0x80, tag >> 7, len(text)]) + text)


def array(name, *shape):
    return numpy_helper.from_array(np.random.default_rng(len(name)).standard_normal(shape).astype(np.float32), name)


def build():
    scale = helper.make_function(
        "lib", "Scaled", ["a", "k"], ["r"], [helper.make_node("Mul", ["a", "k"], ["m"], doc_string="inside"),
                                             helper.make_node("Tanh", ["m"], ["r"])],
        [helper.make_opsetid("", 19)], ["unused"])
    scale.doc_string = "a function"
    unused = helper.make_function("lib", "Unused", ["a"], ["r"], [helper.make_node("Abs", ["a"], ["r"])],
                                  [helper.make_opsetid("", 18)])
    body = helper.make_graph([helper.make_node("Add", ["g", "inner"], ["t"])], "then", [],
                             [helper.make_tensor_value_info("t", 1, None)], [array("inner", 4)])
    other = helper.make_graph([helper.make_node("Identity", ["g"], ["e"])], "else", [],
                              [helper.make_tensor_value_info("e", 1, None)])
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"], name="gemm", doc_string="a node", alpha=1.0),
        helper.make_node("Scaled", ["h", "scale"], ["g"], domain="lib", unused=3),
        helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True), "yes")),
        helper.make_node("If", ["yes"], ["y"], then_branch=body, else_branch=other),
        helper.make_node("Spread", ["sparse"], ["far"], domain="lib"),
    ]
    sparse = helper.make_sparse_tensor(helper.make_tensor("sparse", 1, [2], [1., 2.]),
                                       helper.make_tensor("", TensorProto.INT64, [2], [1, 3]), [5])
    x, y = (helper.make_tensor_value_info(n, 1, ["N", k], "a doc", ["batch", "features"]) for n, k in (("x", 3), ("y", 4)))
    far = helper.make_value_info("far", helper.make_sparse_tensor_type_proto(1, [5]))
    graph = helper.make_graph(nodes, "graph", [x], [y, far], [array("w", 3, 4), array("b", 4), array("scale", 1, 4),
                              array("nobody", 300), helper.make_tensor("words", TensorProto.STRING, [2], [b"a", b"\xff"])],
                              "a graph", [helper.make_tensor_value_info("h", 1, ["N", 4])], sparse_initializer=[sparse])
    graph.initializer[0].doc_string = "a tensor"
    note = graph.quantization_annotation.add(tensor_name="h")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    graph.metadata_props.add(key="graph", value="fact")
    graph.node[0].metadata_props.add(key="node", value="fact")
    m = helper.make_model(graph, ir_version=10, producer_name="somebody", producer_version="7", domain="org.example",
                          model_version=12, doc_string="a model", functions=[scale, unused], opset_imports=[
                              helper.make_opsetid("", 19), helper.make_opsetid("lib", 1)])
    m.metadata_props.add(key="model", value="fact")
    info = m.training_info.add()
    info.algorithm.CopyFrom(helper.make_graph(
        [helper.make_node("Sub", ["w", "step"], ["w_new"])], "algorithm", [],
        [helper.make_tensor_value_info("w_new", 1, [3, 4])], [array("step", 3, 4), array("b", 4)]))
    info.initialization.CopyFrom(helper.make_graph(
        [helper.make_node("Identity", ["w"], ["w_start"])], "initialization", [],
        [helper.make_tensor_value_info("w_start", 1, [3, 4])], [array("w", 3, 4)]))
    info.update_binding.add(key="w", value="w_new")
    info.initialization_binding.add(key="w", value="w_start")
    future(m)
    return m


def read(path):
    with open(path, "rb") as f:
        return f.read()


class Fidelity(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        np.save(self.file("x.npy"), np.linspace(-1, 1, 12).reshape(4, 3).astype(np.float32))
        np.save(self.file("t.npy"), np.ones((4, 4), np.float32))
        self.m = build()
        self.model = self.file("m.onnx")
        with open(self.model, "wb") as f:
            f.write(self.m.SerializeToString())

    def file(self, name):
        return os.path.join(self.folder, name)

    def train(self, *options):
        status, _, err = call("train", self.model, "--data", "x=" + self.file("x.npy"), "--target", self.file("t.npy"),
                              "--loss", "mse", "--loss-output", "y", "--batch", 4, "--steps", 2, "--lr", 0.1, "-o",
                              self.file("out.onnx"), *options)
        self.assertEqual(status, 0, err)
        return err

    def loaded(self):
        m = onnx.ModelProto()
        m.ParseFromString(read(self.file("out.onnx")))
        return m

    def test_the_model_is_odd_in_every_message(self):
        seen = set()

        def look(message):
            self.assertIn(f"{type(message).__name__} ".encode(), message.SerializeToString())
            seen.add(type(message).__name__)
            for field, v in message.ListFields():
                if field.message_type:
                    for item in ([v] if hasattr(v, "ListFields") else v):
                        look(item)

        look(self.m)
        self.assertLessEqual({"ModelProto", "GraphProto", "NodeProto", "TensorProto", "FunctionProto", "AttributeProto",
                              "ValueInfoProto", "TypeProto", "TrainingInfoProto", "SparseTensorProto",
                              "TensorAnnotation", "StringStringEntryProto", "OperatorSetIdProto", "Dimension"}, seen)

    def test_training_changes_elements_only(self):
        err = self.train()
        before, after = read(self.model), read(self.file("out.onnx"))
        self.assertEqual(len(before), len(after))
        def all_initializers(graph):
            return [*graph.initializer, *(i for a in graph.node[3].attribute for i in a.g.initializer)] # of bodies too
        trained = {"w", "b", "scale", "inner"}
        for name in trained:
            old = next(i for i in all_initializers(self.m.graph) if i.name == name).raw_data
            new = next(i for i in all_initializers(self.loaded().graph) if i.name == name).raw_data
            self.assertNotEqual(old, new, name)
            at = after.index(new) # those of the same name and elements in training_info are as they were
            self.assertEqual(before[at:at + len(old)], old)
            after = after[:at] + old + after[at + len(old):]
        self.assertEqual(before, after)
        self.assertIn("its own training algorithm", err)

    def test_frozen_parts_stay(self):
        self.train("--freeze", "w")
        self.assertEqual(self.m.graph.initializer[0], self.loaded().graph.initializer[0])

    def test_training_info_is_told(self):
        trap, = [t for t in report("inspect", self.model)["traps"] if t["kind"] == "training_info"]
        self.assertEqual(trap["initializers"], ["w"])

    def same_but(self, out, nodes, moved=()):
        """Nodes of these numbers became calls, what a rewriting adds was added, data of these initializers went outside;
        all else is as it was."""
        m = onnx.ModelProto()
        m.CopyFrom(self.m)
        for a, b in zip(m.graph.initializer, out.graph.initializer):
            self.assertEqual(b.data_location == TensorProto.EXTERNAL, a.name in moved)
            if a.name in moved:
                for t in (a, b):
                    for field in ("raw_data", "external_data", "data_location"):
                        t.ClearField(field)
        self.assertEqual([out.graph.node[i].SerializeToString() for i in range(len(out.graph.node)) if i not in nodes],
                         [m.graph.node[i].SerializeToString() for i in range(len(m.graph.node)) if i not in nodes])
        functions = [f for f in out.functions if f.domain != "ai.invonnx"]
        self.assertEqual([f.SerializeToString() for f in functions], [f.SerializeToString() for f in m.functions])
        facts = [f for f in out.metadata_props if not f.key.startswith("ai.invonnx")]
        self.assertEqual([f.SerializeToString() for f in facts], [f.SerializeToString() for f in m.metadata_props])
        opsets = [o for o in out.opset_import if o.domain != "ai.invonnx"]
        self.assertEqual([o.SerializeToString() for o in opsets], [o.SerializeToString() for o in m.opset_import])
        initializers = list(out.graph.initializer)[:len(m.graph.initializer)]
        self.assertEqual([i.SerializeToString() for i in initializers],
                         [i.SerializeToString() for i in m.graph.initializer])
        a, b = onnx.ModelProto(), onnx.ModelProto()
        for to, source in ((a, m), (b, out)):
            to.CopyFrom(source)
            for field in ("functions", "metadata_props", "opset_import"):
                to.ClearField(field)
            to.graph.ClearField("node")
            to.graph.ClearField("initializer")
        self.assertEqual(a.SerializeToString(), b.SerializeToString())

    def test_rewriting_adds_only(self):
        r = report("rewrite", self.model, "-o", self.file("out.onnx"))
        self.assertEqual(r["functions"], 1)
        self.same_but(self.loaded(), {0})

    def test_layout_moves_only(self):
        report("rewrite", self.model, "--layout", "external", "-o", self.file("out.onnx"))
        self.assertIn(next(i.raw_data for i in self.m.graph.initializer if i.name == "nobody"),
                      read(self.file("out.onnx.data")))
        self.same_but(self.loaded(), {0}, {"nobody"})


if __name__ == "__main__":
    unittest.main()
