# SPDX-License-Identifier: Apache-2.0
"""Globs of parameters fit what the modules call them, which exporters write into nodes: into their metadata, or into
their names. It fails if an option that takes such a glob trains, freezes or adapts other tensors than those of the
modules; if a glob that leaves out a part of a module does so without a word; or if `inspect` does not show the names.
The files are like those that exporters write, with folded weights that have names of their own."""
import unittest

import numpy as np
import onnx
from common import InFolder, call, report
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(47)
F = TensorProto.FLOAT
LAYERS = ("body.0.query", "body.0.out", "body.1.query", "body.1.out")


def tensor(name, *shape, value=None):
    return numpy_helper.from_array((RNG.standard_normal(shape) if value is None else np.full(shape, value)).astype(np.float32), name)


def tensors(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def props(of, **pairs):
    for key, value in pairs.items():
        entry = of.metadata_props.add()
        entry.key, entry.value = key, value


def by_scopes(node, module):
    """PyTorch's newer exporter."""
    parts = module.split(".")
    entry = node.metadata_props.add()
    entry.key = "pkg.torch.onnx.name_scopes"
    entry.value = str(["", *(".".join(parts[:i + 1]) for i in range(len(parts))), "linear_3"])


def by_namespace(node, module):
    """The same before it wrote lists."""
    props(node, namespace=f": pkg.Model/body: pkg.Body/{module}: torch.nn.Linear/linear: aten.linear.default")


def by_name(node, module):
    """PyTorch's older exporter; children of a container have its name in front of theirs."""
    first, number, last = module.split(".")
    node.name = f"/{first}/{first}.{number}/{last}/{node.op_type}"


def by_slashes(node, module):
    """tf2onnx."""
    node.name = f"StatefulPartitionedCall/{module.replace('.', '/')}/{node.op_type}"


def chain(path, mark, prefix="", listed=None, bias=True, cut=(), norm=False, classes=4, external=False):
    """Four layers of width 6, their weights transposed by the exporter, with a name of its own each; then a classifier."""
    nodes, weights, last = [], [], "x"
    for i, module in enumerate(LAYERS):
        layer = [helper.make_node("MatMul", [last, f"val_{i}"], [f"p{i}"], f"node_MatMul_{i}"),
                 helper.make_node("Add", [f"p{i}", f"{prefix}{module}.bias"], [f"s{i}"], f"node_linear_{i}")]
        weights += [tensor(f"val_{i}", 6, 6), tensor(f"{prefix}{module}.bias", 6)]
        if norm:
            layer.append(helper.make_node("LayerNormalization", [f"s{i}", "body.0.query.norm.weight"], [f"n{i}"], f"node_norm_{i}"))
            mark(layer[-1], f"{module}.norm")
        for n in layer[:2]:
            if module not in cut or n.op_type == "Add":
                mark(n, module)
        nodes += [*layer, helper.make_node("Tanh", [layer[-1].output[0]], [f"t{i}"])]
        last = f"t{i}"
    head = helper.make_node("Gemm", [last, "classifier.weight", *(["classifier.bias"] if bias else [])], ["y"], "node_Gemm_9", transB=1)
    props(head, **{"pkg.torch.onnx.name_scopes": "['', 'classifier', 'linear_4']"})
    weights += [tensor("classifier.weight", classes, 6), *([tensor("classifier.bias", classes)] if bias else [])]
    weights += [tensor("body.0.query.norm.weight", 6, value=1)] if norm else []
    graph = helper.make_graph([*nodes, head], "main_graph", [helper.make_tensor_value_info("x", F, ["N", 6])],
                              [helper.make_tensor_value_info("y", F, ["N", classes])], weights)
    if listed is not None:
        props(graph, **{"pkg.torch.export.ExportedProgram.graph_signature":
                        "\n".join(f"p_{i}: PARAMETER target='{name}'" for i, name in enumerate(listed))})
        for i, module in enumerate(LAYERS):
            info = graph.value_info.add()
            info.CopyFrom(helper.make_tensor_value_info(f"val_{i}", F, [6, 6]))
            name = next(n for n in listed if n.startswith(module) and n.endswith("weight"))
            props(info, **{"pkg.onnxscript.optimizer.folded_from": f"['{name}']"})
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10, producer_name="pytorch")
    onnx.save(made, path, save_as_external_data=external, location=path.rsplit("/", 1)[1] + ".data", size_threshold=0)


ALL = [f"{m}.{part}" for m in LAYERS for part in ("weight", "bias")] + ["classifier.weight", "classifier.bias"]


class Base(InFolder):
    def setUp(self):
        super().setUp()
        np.save(self.at("x.npy"), RNG.standard_normal((8, 6)).astype(np.float32))
        np.save(self.at("y.npy"), RNG.integers(0, 3, 8))

    def data(self):
        return ("--data", self.at("x.npy"), "--target", self.at("y.npy"), "--loss", "cross_entropy", "--batch", 4, "-o",
                self.at("out.onnx"))

    def train(self, *more, model="m.onnx"):
        return report("train", self.at(model), *self.data(), "--steps", 2, "--lr", 0.1, *more)

    def said(self, *more, model="m.onnx"):
        status, out, err = call("train", self.at(model), *self.data(), "--steps", 1, *more)
        self.assertEqual(status, 0, err)
        return out + err

    def moved(self, model="m.onnx"):
        old, new = tensors(self.at(model)), tensors(self.at("out.onnx"))
        return {name for name in old if not np.array_equal(old[name], new[name])}


class Modules(Base):
    def test_every_option(self):
        """Of all exporters; the names are those of the modules, whatever tf2onnx puts in front."""
        for mark, front in ((by_scopes, ""), (by_namespace, ""), (by_name, ""), (by_slashes, "StatefulPartitionedCall.")):
            with self.subTest(mark.__name__):
                chain(self.at("m.onnx"), mark, front)
                every = set(tensors(self.at("m.onnx")))
                first = {"val_0", "val_1", f"{front}body.0.query.bias", f"{front}body.0.out.bias"}
                self.train("--freeze", f"{front}body.0.*")
                self.assertEqual(self.moved(), every - first)
                self.train("--train-only", f"{front}body.0.*")
                self.assertEqual(self.moved(), first)
                self.train("--train-only", f"{front}body.1.query.weight")
                self.assertEqual(self.moved(), {"val_2"})
                self.train("--group", f"{front}body.0.*:lr=0")
                self.assertEqual(self.moved(), every - first)
                self.train("--unfreeze-after", 1, f"{front}body.*")
                self.assertEqual(self.moved(), {"classifier.weight", "classifier.bias"})
                made = self.train("--lora", "*query*", "--rank", 2)
                self.assertEqual({n.split(".lora")[0] for n in made["trained"]}, {"val_0", "val_2"})
                made = self.train("--lora", f"{front}body.1.out.weight", "--rank", 2)
                self.assertEqual({n.split(".lora")[0] for n in made["trained"]}, {"val_3"})

    def test_inspect(self):
        for mark in (by_scopes, by_namespace, by_name):
            chain(self.at("m.onnx"), mark)
            found = {i["name"]: i for i in report("inspect", self.at("m.onnx"))["initializers"]}
            self.assertEqual([found[f"val_{i}"]["module"] for i in range(4)], [f"{m}.weight" for m in LAYERS])
            self.assertNotIn("module", found["body.0.query.bias"])  # it is called so
            self.assertIn("module body.1.out.weight", call("inspect", self.at("m.onnx"))[1])

    def test_mistakes(self):
        """A glob that fits nothing is still refused, and asks for the module's name."""
        chain(self.at("m.onnx"), by_scopes)
        status, _, err = call("train", self.at("m.onnx"), *self.data(), "--freeze", "body.0.querry.weight")
        self.assertNotEqual(status, 0)
        self.assertIn("did you mean 'body.0.query.weight'?", err)
        status, _, err = call("train", self.at("m.onnx"), *self.data(), "--lora", "*nothing*")
        self.assertNotEqual(status, 0)
        self.assertIn("'body.0.query.weight' [6,6]", err)

    def test_listed(self):
        """Where the file lists parameters: a part that has another name there is called so."""
        names = [n for n in ALL if n != "body.0.query.weight"] + ["body.0.query.in_proj_weight"]
        chain(self.at("m.onnx"), by_scopes, listed=names)
        found = {i["name"]: i.get("module") for i in report("inspect", self.at("m.onnx"))["initializers"]}
        self.assertEqual((found["val_0"], found["val_1"]), ("body.0.query.in_proj_weight", "body.0.out.weight"))
        self.train("--train-only", "*.in_proj_weight")
        self.assertEqual(self.moved(), {"val_0"})

    def test_read_by_several(self):
        """One scale of four norms, which the exporter has merged: every module's name fits; untied, each has its own."""
        chain(self.at("m.onnx"), by_scopes, norm=True)
        found = {i["name"]: i.get("modules") for i in report("inspect", self.at("m.onnx"))["initializers"]}
        self.assertEqual(found["body.0.query.norm.weight"], [f"{m}.norm.weight" for m in LAYERS[1:]])
        made = self.train("--tied", "body.1.out.norm.*", "--freeze", "body.1.*")
        self.assertNotIn("body.0.query.norm.weight", self.moved())
        self.assertIn("1 tensor that it matches is also read by other modules ('body.0.query.norm.weight')", made["globs"][0]["text"])
        for frozen, kept in (("body.1.*", (2, 3)), ("body.0.*", (0, 1)), ("body.0.out.*", (1,))):
            self.train("--untie", "--freeze", frozen)
            new = tensors(self.at("out.onnx"))
            scales = ["body.0.query.norm.weight", *(f"body.0.query.norm.weight_untied_{i}" for i in (1, 2, 3))]
            still = tuple(i for i, name in enumerate(scales) if np.all(new[name] == 1))
            self.assertEqual(still, kept, frozen)

    def test_left_out(self):
        """A weight that no module's name is known of is told of, once, and only where a whole module is meant."""
        chain(self.at("m.onnx"), by_scopes, cut=("body.0.out",))
        text = "invonnx: --freeze 'body.0.*': 1 trained tensor is not matched, and the file does not name its module ('val_1')"
        self.assertEqual(self.said("--freeze", "body.0.*").count(text), 1)
        self.assertNotIn("not meant", self.said("--freeze", "*.bias"))
        chain(self.at("m.onnx"), by_scopes)
        self.assertNotIn("not meant", self.said("--freeze", "body.0.*"))
        text = "--train-only 'body.0.query.b*': 1 tensor of the same modules"
        self.assertNotIn(text, self.said("--train-only", "body.0.query.b*"))  # it is named alone
        self.assertIn("--freeze 'body.0.query.b*': 1 tensor of the same modules is not matched ('val_0')",
                      self.said("--freeze", "body.0.query.b*"))

    def test_constants_are_no_parts(self):
        """Frequencies of positions and the like are not called as a weight is."""
        chain(self.at("m.onnx"), by_scopes, listed=ALL)
        m = onnx.load(self.at("m.onnx"))
        scale = helper.make_node("Mul", ["x", "val_77"], ["x0"], "node_mul")
        by_scopes(scale, "body.0.query")
        m.graph.initializer.append(tensor("val_77", 6))
        m.graph.node[0].input[0] = "x0"
        m.graph.node.insert(0, scale)
        onnx.save(m, self.at("m.onnx"))
        found = {i["name"]: i for i in report("inspect", self.at("m.onnx"))["initializers"]}
        self.assertEqual(found["val_77"]["module"], "body.0.query.val_77")
        self.assertFalse(found["val_77"]["trainable"])
        self.assertEqual(found["val_0"]["module"], "body.0.query.weight")


class Heads(Base):
    def head(self, *more, head=3):
        made = self.train("--head", head, *more)
        return {n: t.shape for n, t in tensors(self.at("out.onnx")).items() if n.startswith("classifier")}, made

    def test_bias(self):
        """A head whose bias the exporter has left out, as it was zero, has one again; one that had none has none."""
        both = {"classifier.weight": (3, 6), "classifier.bias": (3,)}
        for listed in (None, ALL):
            chain(self.at("m.onnx"), by_scopes, listed=listed, bias=False)
            self.assertEqual(self.head()[0], both)
            new = tensors(self.at("out.onnx"))
            self.assertGreater(np.abs(new["classifier.bias"]).max(), 0)
            onnx.checker.check_model(self.at("out.onnx"), full_check=True)
        chain(self.at("m.onnx"), by_scopes, listed=[n for n in ALL if n != "classifier.bias"], bias=False)
        self.assertEqual(self.head()[0], {"classifier.weight": (3, 6)})
        chain(self.at("m.onnx"), by_scopes, listed=ALL)
        self.assertEqual(self.head()[0], both)

    def test_by_module(self):
        chain(self.at("m.onnx"), by_scopes)
        self.assertEqual(self.head(head="classifier=3")[0], {"classifier.weight": (3, 6), "classifier.bias": (3,)})
        status, _, err = call("train", self.at("m.onnx"), *self.data(), "--head", "klassifier=3")
        self.assertNotEqual(status, 0)
        self.assertIn("no node 'klassifier', and no module of that name", err)

    def test_files(self):
        """What reads the base's data says so, and which files it is."""
        chain(self.at("m.onnx"), by_scopes, external=True)
        base = self.at("m.onnx.data")
        text = self.said("--head", 3, "--train-only", "classifier.*")
        self.assertEqual(text.count("reads unchanged weights from"), 1, text)
        self.assertEqual(self.head("--train-only", "classifier.*")[1]["files"], [self.at("out.onnx"), base])
        for layout, files in (("inline", []), ("external", [self.at("out.onnx.data")])):
            more = "--head", 3, "--train-only", "classifier.*", "--layout", layout
            self.assertNotIn("unchanged weights", self.said(*more))
            self.assertEqual(self.train(*more)["files"], [self.at("out.onnx"), *files])
        self.assertNotIn("unchanged weights", self.said())
        self.assertEqual(self.train()["files"], [self.at("out.onnx"), self.at("out.onnx.data")])


def paths(path, *layers):
    """Linear layers as PyTorch's older exporter writes them: (path in names of nodes, module, transposed by the exporter);
    module None: without bias."""
    nodes, weights, last = [], [], "x"
    for i, (scope, module, turned) in enumerate(layers):
        w, b = f"onnx::MatMul_{i}" if turned else f"{module}.weight", f"{module}.bias"
        if module is None:
            nodes.append(helper.make_node("MatMul", [last, w], [f"s{i}"], f"{scope}/MatMul"))
            weights.append(tensor(w, 6, 6))
            last = f"s{i}"
            continue
        if turned:
            nodes += [helper.make_node("MatMul", [last, w], [f"{scope}/MatMul_output_{i}"], f"{scope}/MatMul"),
                      helper.make_node("Add", [b, f"{scope}/MatMul_output_{i}"], [f"s{i}"], f"{scope}/Add")]
        else:
            nodes.append(helper.make_node("Gemm", [last, w, b], [f"s{i}"], f"{scope}/Gemm", transB=1))
        weights += [t for t in (tensor(w, 6, 6), tensor(b, 6)) if t.name not in {x.name for x in weights}]
        last = f"s{i}"
    graph = helper.make_graph(nodes, "main_graph", [helper.make_tensor_value_info("x", F, ["N", 6])],
                              [helper.make_tensor_value_info(last, F, ["N", 6])], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10, producer_name="pytorch"), path)


class Paths(Base):
    """In names of nodes of PyTorch's older exporter."""

    def test_containers_that_are_left_out(self):
        """Children of a ModuleDict, which the model calls itself."""
        paths(self.at("m.onnx"), ("/layers.0/up", "layers.0.ff.up", True), ("/layers.0/down", "layers.0.ff.down", True),
              ("/e1", "experts.e1", False), ("/e2", "experts.e2", False))
        said = self.said("--freeze", "layers.0.ff.*", "--freeze", "experts.e1.*")
        self.assertEqual(self.moved(), {"experts.e2.weight", "experts.e2.bias"})
        self.assertNotIn("other modules", said)
        self.assertNotIn("layers.0.up", said)

    def named(self):
        return {i["name"]: i.get("module") for i in report("inspect", self.at("m.onnx"))["initializers"]}

    def test_siblings(self):
        """A layer without bias is where its siblings are; numbers behind names tell which of several containers it is."""
        paths(self.at("m.onnx"), ("/ff/up", None, True), ("/ff/gate", "l.0.ff.d.gate", False), ("/ff/up_1", None, True),
              ("/ff/gate_1", "l.1.ff.d.gate", False), ("/mlp/fc", "mlp.fc", False), ("/mlp/out", None, True))
        found = self.named()
        self.assertEqual([found[f"onnx::MatMul_{i}"] for i in (0, 2, 5)],
                         ["l.0.ff.d.up.weight", "l.1.ff.d.up.weight", "mlp.out.weight"])
        self.train("--freeze", "l.0.*")
        self.assertEqual(self.moved(), {n for n in found if not (found[n] or n).startswith("l.0.")})

    def test_bodies(self):
        """What a Loop's body reads is called as its nodes are; what a function reads is not called after the call."""
        inner = helper.make_graph(
            [helper.make_node("MatMul", ["h", "20"], ["m"], "/net/k/MatMul"), helper.make_node("MatMul", ["m", "21"], ["o"], "/net/j/MatMul"),
             helper.make_node("Identity", ["c"], ["d"])], "body",
            [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("c", TensorProto.BOOL, []),
             helper.make_tensor_value_info("h", F, ["N", 6])],
            [helper.make_tensor_value_info("d", TensorProto.BOOL, []), helper.make_tensor_value_info("o", F, ["N", 6])],
            [tensor("21", 6, 6)])
        linear = helper.make_function("own", "Linear", ["a", "w", "b"], ["y"], [helper.make_node("Gemm", ["a", "w", "b"], ["y"], "Gemm_2")],
                                      [helper.make_opsetid("", 18)])
        nodes = [helper.make_node("Loop", ["n", "", "x"], ["l"], "/net/Loop", body=inner),
                 helper.make_node("Linear", ["l", "0.weight", "0.bias"], ["y"], "/1/Linear", domain="own")]
        graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", F, ["N", 6])],
                                  [helper.make_tensor_value_info("y", F, ["N", 6])],
                                  [numpy_helper.from_array(np.array(2), "n"), tensor("20", 6, 6), tensor("0.weight", 6, 6), tensor("0.bias", 6)])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid("own", 1)], ir_version=10,
                                    functions=[linear], producer_name="pytorch"), self.at("m.onnx"))
        found = self.named()
        self.assertEqual((found["20"], found["0.weight"], found["0.bias"]), ("net.k.weight", None, None))
        self.assertIn("net.j.weight", found.values())
        self.train("--freeze", "net.k.*", "--freeze", "0.*")
        self.assertEqual(self.moved(), set())  # of the main graph; the body's own moves

    def test_siblings_that_differ(self):
        """Siblings in two containers tell nothing; and a glob says that it may miss what has a short path."""
        paths(self.at("m.onnx"), ("/ff/a", "l.ff.d.a", False), ("/ff/b", "l.ff.e.b", False), ("/ff/c", None, True),
              ("/h", None, True))
        self.assertEqual([self.named()[f"onnx::MatMul_{i}"] for i in (2, 3)], ["ff.c.weight", "h.weight"])
        self.assertIn("2 trained tensors are not matched, and the file does not name their modules",
                      self.said("--freeze", "l.ff.*"))

    def test_like_names_elsewhere(self):
        """A path that is another module's own stays: what is shared with that one is of both."""
        paths(self.at("m.onnx"), ("/enc/proj", "enc.proj", True), ("/proj", "proj", True), ("/dec/proj", "dec.up.proj", False))
        self.train("--freeze", "enc.*", "--freeze", "dec.up.*")
        self.assertEqual(self.moved(), {"onnx::MatMul_1", "proj.bias"})

    def test_slashes(self):
        """Where names have slashes, as those of TensorFlow, globs with slashes mean modules, too."""
        def rename(name):
            return name.replace("StatefulPartitionedCall.", "net/").replace("body.0.", "body/0/").replace("body.1.", "body/1/")
        chain(self.at("m.onnx"), by_slashes, "StatefulPartitionedCall.")
        m = onnx.load(self.at("m.onnx"))
        for n in m.graph.node:
            n.name = n.name.replace("StatefulPartitionedCall", "net")
            n.input[:] = [rename(i) for i in n.input]
        for t in m.graph.initializer:
            t.name = rename(t.name)
        m.producer_name = "tf2onnx"
        onnx.save(m, self.at("m.onnx"))
        said = self.said("--freeze", "net/body/0/*")
        self.assertEqual(self.moved(), set(tensors(self.at("m.onnx"))) - {"val_0", "val_1", "net/body/0/query.bias", "net/body/0/out.bias"})
        self.assertNotIn("other modules", said)

    def test_second_call(self):
        paths(self.at("m.onnx"), ("/fc", "fc", False), ("/fc_1", "fc", False), ("/out_1", "out_1", False), ("/out", "out", False))
        said = self.said("--freeze", "fc.*", "--freeze", "out.*")
        self.assertEqual(self.moved(), {"out_1.weight", "out_1.bias"})
        self.assertNotIn("other modules", said)


if __name__ == "__main__":
    unittest.main()
