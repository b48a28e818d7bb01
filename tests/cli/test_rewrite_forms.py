# SPDX-License-Identifier: Apache-2.0
"""`rewrite` gives inverse functions whatever form the file has: in old operator sets, in which attributes stand for what
are inputs today; inside of the file's own functions; in half precision, and converted to it later. Each result is accepted by onnx.checker, gives
the outputs of the file in onnxruntime, and each inverse function gives back what it frees of values of the forward run."""
import os
import shutil
import tempfile
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.transformers import float16

import common
from test_rewrite import DOMAIN, all_values, call_function, error_of, flat, functions_of, session

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

    def hold(self, model, feeds, limit=1e-5, exact=True):
        """Outputs are those of the file; every inverse, run, gives what it frees. {rule: inverses}"""
        a, b = session(self.at("model.onnx")), session(self.at("out.onnx"))
        for x, y in zip(a.run(None, feeds), b.run(None, feeds)):
            self.assertEqual(x.dtype, y.dtype)
            self.assertLessEqual(error_of(x, y), 0 if exact else limit)
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


# --- the file's own functions ---

MLP = {f"{k}{i}": a for i in range(4) for k, a in (("W", random(2, 8, seed=30 + i)), ("b", random(8, seed=40 + i)),
                                                   ("V", random(8, 2, seed=50 + i)), ("c", random(2, seed=60 + i)))}


def weights(i):
    return [f"{k}{i}" for k in "WbVc"]


def opsets(*domains, opset=17):
    return [helper.make_opsetid("", opset)] + [helper.make_opsetid(d, 1) for d in domains]


def reference(n, attribute, name):
    """The attribute of a node in a function that is an attribute of the call."""
    n.attribute.append(onnx.AttributeProto(name=attribute, ref_attr_name=name, type=onnx.AttributeProto.FLOAT))
    return n


def mlp():
    """One of a domain that the main graph does not import, with an attribute that a node takes over."""
    nodes = [node("Gemm", ["x", "W", "b"], ["h"], name="in"), reference(node("LeakyRelu", ["h"], ["r"]), "alpha", "slope"),
             node("Gemm", ["r", "V", "c"], ["y"], name="out")]
    return helper.make_function("test.inner", "Mlp", ["x", "W", "b", "V", "c"], ["y"], nodes, opsets(), ["slope"])


def coupling(opset=17, inside=None):
    """x1, x2 -> x2, x1 + Mlp(x2), and what was added"""
    nodes = [node("Split", ["x"], ["x1", "x2"], axis=1, name="split"),
             node("Mlp", ["x2", "W", "b", "V", "c"], ["t"], domain="test.inner", slope=0.2, name="mlp"),
             *(inside or []),
             node("Add", ["x1", "t"], ["y1"], name="sum"), node("Concat", ["x2", "y1"], ["y"], axis=1)]
    return helper.make_function("test", "Coupling", ["x", "W", "b", "V", "c"], ["y", "t"], nodes,
                                opsets("test.inner", opset=opset))


def flow():
    """Two of them."""
    nodes = [node("Coupling", ["x", "W", "b", "V", "c"], ["m", "same"], domain="test", name="first"),
             node("Coupling", ["m", "X", "d", "Y", "e"], ["y", "other"], domain="test", name="second")]
    return helper.make_function("test", "Flow", ["x", "W", "b", "V", "c", "X", "d", "Y", "e"], ["y"], nodes, opsets("test"))


def modular(functions, nodes, domains=("test", "test.inner")):
    tensors = [numpy_helper.from_array(a, k) for k, a in MLP.items()]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 4]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], tensors)
    return helper.make_model(graph, opset_imports=opsets(*domains), functions=functions, ir_version=8)


def one_call(function):
    return modular([mlp(), function], [node("Coupling", ["x", *weights(0)], ["y", "t"], domain="test", name="call")])


class OwnFunctions(Forms):
    FEEDS = {"x": random(5, 4, seed=21)}

    def nested(self, *domains):
        nodes = [node("Flow", ["x", *weights(0), *weights(1)], ["a"], domain="test", name="flow"),
                 node("Tanh", ["a"], ["b"], name="tanh"), node("Soft", ["b"], ["s"], domain="test"),
                 node("Coupling", ["s", *weights(2)], ["y", "unread"], domain="test", name="last")]
        soft = helper.make_function("test", "Soft", ["x"], ["y"], [node("Softmax", ["x"], ["y"])], opsets())
        soft.doc_string = "holds no block"
        return modular([mlp(), soft, coupling(), flow()], nodes, domains)

    def test_nested(self):
        """Couplings in a function that is called once by the graph and twice by another one, its branch in a third, of a
        domain that only functions import: onnxruntime wants the model to."""
        out, blocks = self.rewrite(self.nested("test"))
        couplings = [b for b in blocks if b["kind"] == "additive_coupling"]
        self.assertEqual(sorted(n for b in couplings for n in b["nodes"] if n.endswith("sum")),
                         ["flow/first/sum", "flow/second/sum", "last/sum"])
        self.assertTrue(all(b["inverse"] for b in couplings), couplings)
        self.save(self.nested("test", "test.inner"))
        self.assertEqual(self.hold(out, self.FEEDS)["additive_coupling"], 3)
        self.assertEqual([(f.name, f.doc_string) for f in out.functions if f.domain != DOMAIN],
                         [("Mlp", ""), ("Soft", "holds no block")])

    def test_inverse_direction(self):
        nodes = [node("Flow", ["x", *weights(0), *weights(1)], ["y"], domain="test", name="flow")]
        path = self.save(modular([mlp(), coupling(), flow()], nodes))
        common.report("rewrite", path, "--inverse-out", self.at("inv.onnx"), "--with-logdet", "ld")
        onnx.checker.check_model(self.at("inv.onnx"), full_check=True)
        y, = session(path).run(None, self.FEEDS)
        back, logdet = session(self.at("inv.onnx")).run(["x", "ld"], {"y": y})
        self.assertLessEqual(error_of(back, self.FEEDS["x"]), 1e-5)
        self.assertEqual(np.abs(logdet).max(), 0)

    def test_weights_inside(self):
        """Constant nodes of a function that is called twice are one weight before and after."""
        inside = [helper.make_node("Constant", [], [k], value=numpy_helper.from_array(MLP[k + "0"])) for k in "WbVc"]
        nodes = [*inside, node("Split", ["x"], ["x1", "x2"], axis=1), node("Gemm", ["x2", "W", "b"], ["h"]),
                 node("Relu", ["h"], ["r"]), node("Gemm", ["r", "V", "c"], ["t"]), node("Add", ["x1", "t"], ["y1"], name="sum"),
                 node("Concat", ["x2", "y1"], ["y"], axis=1)]
        f = helper.make_function("test", "Whole", ["x"], ["y"], nodes, opsets())
        calls = [node("Whole", ["x"], ["m"], domain="test", name="one"), node("Whole", ["m"], ["y"], domain="test", name="two")]
        out, blocks = self.rewrite(modular([f], calls, ["test"]))
        self.assertEqual(self.hold(out, self.FEEDS), {"additive_coupling": 2, "additive_block_fg": 1, "linear_tall": 2})
        before, after = ([(t["name"], t["shape"]) for t in common.report("inspect", self.at(p))["initializers"]
                          if "Whole/" in t["name"] and not t["name"].endswith("_inv")] for p in ("model.onnx", "out.onnx"))
        self.assertEqual(len(before), 4)
        self.assertEqual(before, after)

    def test_what_stays_shut(self):
        """A function of another operator set, and one with bodies: the reason names function, node and cause."""
        yes = helper.make_graph([node("Identity", ["t"], ["same"])], "g", [], [helper.make_tensor_value_info(
            "same", TensorProto.FLOAT, ["N", 2])])
        true = helper.make_node("Constant", [], ["true"], value=numpy_helper.from_array(np.array(True)))
        branch = node("If", ["true"], ["u"], name="branch", then_branch=yes, else_branch=yes)
        for function, why in ((coupling(opset=16), "it is of operator set 16, the model of 17"),
                              (coupling(inside=[true, branch]), "its node 'branch' (If) has a body, which names what it")):
            _, blocks = self.rewrite(one_call(function))
            reason, = [b["reason"] for b in blocks if b["kind"] == "additive_coupling"]
            self.assertIn("function 'Coupling', which node 'call' calls, cannot be opened up: " + why, reason)


# --- half precision ---

def converted(model, kind, ends=False):
    """All of it in that type; ends: between Casts, its inputs and outputs as they were."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    np_kind = helper.tensor_dtype_to_np_dtype(kind)
    tensors = list(model.graph.initializer) + [a.t for n in model.graph.node for a in n.attribute if a.type == a.TENSOR]
    for t in tensors:
        a = numpy_helper.to_array(t)
        if a.dtype == np.float32:
            t.CopyFrom(numpy_helper.from_array(a.astype(np_kind), t.name))
    ports = [*model.graph.input, *model.graph.output]
    if not ends:
        for p in ports:
            p.type.tensor_type.elem_type = kind
        return model
    renamed = {p.name: p.name + " half" for p in ports}
    for n in model.graph.node:
        for names in (n.input, n.output):
            names[:] = [renamed.get(v, v) for v in names]
    into = [node("Cast", [p.name], [renamed[p.name]], to=kind) for p in model.graph.input]
    out = [node("Cast", [renamed[p.name]], [p.name], to=TensorProto.FLOAT) for p in model.graph.output]
    nodes = [*into, *model.graph.node, *out]
    model.graph.ClearField("node")
    model.graph.node.extend(nodes)
    return model


def compressed(model):
    """Weights in float16, each cast to float32 where it is read."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    casts = []
    for t in model.graph.initializer:
        a = numpy_helper.to_array(t)
        if a.dtype == np.float32:
            casts.append(node("Cast", [t.name + " half"], [t.name], to=TensorProto.FLOAT))
            t.CopyFrom(numpy_helper.from_array(a.astype(np.float16), t.name + " half"))
    nodes = [*casts, *model.graph.node]
    model.graph.ClearField("node")
    model.graph.node.extend(nodes)
    return model


def small(batchnorm=False):
    """Few operators, of those that are there for bfloat16, and batch normalization by the statistics of the batch."""
    w = {"W": random(2, 8, seed=1), "b": random(8, seed=2), "V": random(8, 2, seed=3), "c": random(2, seed=4),
         "A": orthogonal(4, 5), "s": 1 + random(4, seed=6) ** 2, "o": random(4, seed=7)}
    nodes = [node("MatMul", ["x", "A"], ["a"]), node("Split", ["a"], ["a1", "a2"], axis=1),
             node("Gemm", ["a2", "W", "b"], ["h"]), node("Tanh", ["h"], ["i"]), node("Gemm", ["i", "V", "c"], ["t"]),
             node("Add", ["a1", "t"], ["y1"]), node("Concat", ["a2", "y1"], ["m"], axis=1), node("Mul", ["m", "s"], ["n"]),
             node("Tanh", ["n"], ["y"])]
    if batchnorm:
        w.update(mean=np.zeros(4, np.float32), var=np.ones(4, np.float32))
        nodes[-2] = node("BatchNormalization", ["m", "s", "o", "mean", "var"], ["n", "mean'", "var'"], training_mode=1)
    tensors = [numpy_helper.from_array(a, k) for k, a in w.items()]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 4]) for n in "xy"]
    return helper.make_model(helper.make_graph(nodes, "g", ports[:1], ports[1:], tensors), opset_imports=opsets(),
                             ir_version=8)


class HalfPrecision(Forms):
    X = random(5, 4, seed=20)
    RULES = {"leaky_relu", "tanh", "prelu", "elu", "batchnorm_eval", "affine_coupling", "additive_coupling", "linear_square",
             "masked_affine_coupling"}

    def every(self, model, feed, limit, exact=True):
        out, blocks = self.rewrite(model)
        self.assertEqual([(b["kind"], b["reason"]) for b in blocks if not b["inverse"]], [])
        return out, self.hold(out, {"x": feed}, limit, exact)

    def test_float16(self):
        """A whole model in float16, one whose ends are float32, one of which the weights alone are float16."""
        for opset in (8, 11):
            _, run = self.every(converted(old(opset, False), TensorProto.FLOAT16), self.X.astype(np.float16), 2e-3)
            self.assertLessEqual(self.RULES, set(run))
        _, run = self.every(converted(old(11, False), TensorProto.FLOAT16, ends=True), self.X, 2e-3)
        self.assertLessEqual(self.RULES, set(run))
        _, run = self.every(compressed(old(11, False)), self.X, 1e-5)
        self.assertLessEqual(self.RULES, set(run))

    def test_saved_statistics(self):
        """What forward saves for the inverse is float32. onnxruntime computes halves in float32 and leaves out a rounding
        where something reads both."""
        out, run = self.every(converted(small(batchnorm=True), TensorProto.FLOAT16), self.X.astype(np.float16), 2e-3, False)
        self.assertIn("batchnorm", run)
        saved = [f for f in functions_of(out).values() if f["aux"]]
        self.assertEqual(len(saved), 1)
        values = all_values(self.at("out.onnx"), {"x": self.X.astype(np.float16)})
        self.assertEqual({values[v].dtype for v in saved[0]["aux"]}, {np.dtype(np.float32)})

    def test_bfloat16(self):
        """By ONNX's reference, since onnxruntime has few operators for the type."""
        path = self.save(converted(small(), TensorProto.BFLOAT16))
        common.report("rewrite", path, "-o", self.at("out.onnx"))
        out = onnx.load(self.at("out.onnx"))
        onnx.checker.check_model(out, full_check=True)
        whole = flat(out)
        names = [v for n in whole.graph.node for v in n.output if v]
        whole.ClearField("functions"), whole.graph.ClearField("output")
        whole.graph.output.extend(helper.make_tensor_value_info(v, TensorProto.BFLOAT16, None) for v in names)
        values = {t.name: numpy_helper.to_array(t) for t in out.graph.initializer}
        values["x"] = self.X.astype(helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16))
        values.update(zip(names, ReferenceEvaluator(whole).run(None, {"x": values["x"]})))
        found = functions_of(out)
        self.assertEqual({f["rule"] for f in found.values() if "inverse" in f},
                         {"linear_square", "linear_tall", "tanh", "additive_coupling", "scale"})
        for name, facts in found.items():
            f = next(f for f in out.functions if f.name == facts["inverse"])
            ports = [[helper.make_tensor_value_info(v, helper.np_dtype_to_tensor_dtype(values[v].dtype), values[v].shape)
                      for v in part]
                     for part in (f.input, f.output)]
            call = node(f.name, list(f.input), list(f.output), domain=DOMAIN)
            one = helper.make_model(helper.make_graph([call], "call", *ports), opset_imports=out.opset_import, functions=[f],
                                    ir_version=8)
            onnx.checker.check_model(one, full_check=True)
            got = ReferenceEvaluator(one).run(None, {v: values[v] for v in f.input})
            for v, x in zip(f.output, got):
                self.assertEqual(x.dtype, values[v].dtype)
                self.assertLessEqual(error_of(x, values[v]), 2e-2, (name, v))

    def test_inverse_direction(self):
        """Log-determinants are float32 then."""
        said = []
        for model, x in ((old(11, False), self.X), (converted(old(11, False), TensorProto.FLOAT16), self.X.astype(np.float16)),
                         (compressed(old(11, False)), self.X)):
            path = self.save(model)
            common.report("rewrite", path, "--inverse-out", self.at("inv.onnx"), "--with-logdet", "ld")
            onnx.checker.check_model(self.at("inv.onnx"), full_check=True)
            y, = session(path).run(None, {"x": x})
            back, logdet = session(self.at("inv.onnx")).run(["x", "ld"], {"y": y})
            self.assertEqual((back.dtype, logdet.dtype), (x.dtype, np.dtype(np.float32)))
            self.assertLessEqual(error_of(back, x), 1e-2 if x.dtype == np.float16 else 1e-5)
            said.append(logdet)
            self.assertLessEqual(error_of(logdet, said[0]), 1e-2)

    def test_trained(self):
        """Inverses of trained weights are made anew, in float64 as they were."""
        path = self.save(converted(small(), TensorProto.FLOAT16))
        common.report("rewrite", path, "-o", self.at("out.onnx"))
        np.save(self.at("x.npy"), random(8, 4, seed=8)), np.save(self.at("t.npy"), random(8, 4, seed=9))
        status, _, err = common.call("train", self.at("out.onnx"), "--data", "x=" + self.at("x.npy"), "--target",
                                     self.at("t.npy"), "--loss", "mse", "--batch", 8, "--steps", 3, "--lr", 0.5, "-o",
                                     self.at("trained.onnx"))
        self.assertEqual(status, 0, err)
        got = {t.name: numpy_helper.to_array(t) for t in onnx.load(self.at("trained.onnx")).graph.initializer}
        self.assertEqual((got["A"].dtype, got["A_inv"].dtype), (np.dtype(np.float16), np.dtype(np.float64)))
        self.assertGreater(np.abs(got["A"] - orthogonal(4, 5)).max(), 1e-2)
        self.assertLess(error_of(got["A_inv"], np.linalg.inv(got["A"].astype(float))), 2e-3)


# --- converted to half precision afterwards ---

def by_onnxruntime(model, keep):
    return float16.convert_float_to_float16(model, keep_io_types=keep)


def by_others(model, keep):
    """As onnxconverter-common does it, which cuts numbers and leaves every Cast what it is. Casts that it puts in for
    inputs are called by their readers, outputs that are read inside keep their type there."""
    def half(t):
        if t.data_type == TensorProto.FLOAT:
            a = numpy_helper.to_array(t)
            a = np.sign(a) * np.clip(np.abs(a), 1e-7, 1e4)
            t.CopyFrom(numpy_helper.from_array(a.astype(np.float16), t.name))

    def cast(source, target, to):
        graph.node.append(node("Cast", [source], [target], target, to=to))

    graph = model.graph
    for t in [*graph.initializer, *(a.t for n in graph.node for a in n.attribute)]:
        half(t)
    for v in graph.input:
        for n in [n for n in graph.node if keep and v.name in n.input]:
            cast(v.name, f"{v.name}_to_{n.name}", TensorProto.FLOAT16)
            n.input[:] = [f"{v.name}_to_{n.name}" if x == v.name else x for x in n.input]
    for v in graph.output:
        for n in [n for n in graph.node if keep and v.name in n.output]:
            cast(n.name + "_to_" + v.name, v.name, TensorProto.FLOAT)
            n.output[:] = [n.name + "_to_" + v.name if y == v.name else y for y in n.output]
    for v in [] if keep else [*graph.input, *graph.output]:
        v.type.tensor_type.elem_type = TensorProto.FLOAT16
    known, nodes = {v.name for v in [*graph.input, *graph.initializer]} | {""}, list(graph.node)
    graph.ClearField("node")
    while nodes:
        n = next(n for n in nodes if set(n.input) <= known)
        nodes.remove(n)
        graph.node.append(n)
        known.update(n.output)
    return model


class ConvertedToHalf(Forms):
    """Matrices that were solved hold in what float16 converters make of the written files."""
    WEIGHTS = {"A": orthogonal(4, 1) * np.float32(3e-5), "B": orthogonal(4, 2) * np.float32(2),
               "Wt": random(2, 2, seed=3), "Ws": random(2, 2, seed=4)}

    def chain(self):
        nodes = [node("MatMul", ["x", "B"], ["b"], "first"), node("MatMul", ["b", "A"], ["y"], "second")]
        return self.model(nodes, "AB")

    def flow(self):
        nodes = [node("LeakyRelu", ["x"], ["l"], "leaky", alpha=0.3), node("MatMul", ["l", "B"], ["b"], "linear"),
                 node("Split", ["b"], ["b1", "b2"], "split", axis=1), node("MatMul", ["b1", "Wt"], ["t"], "shift"),
                 node("MatMul", ["b1", "Ws"], ["s0"], "scale"), node("Tanh", ["s0"], ["s1"], "bound"),
                 node("Exp", ["s1"], ["s"], "exp"), node("Mul", ["b2", "s"], ["m"], "mul"),
                 node("Add", ["m", "t"], ["a"], "add"), node("Concat", ["b1", "a"], ["c"], "join", axis=1),
                 node("Softplus", ["c"], ["y"], "softplus")]
        return self.model(nodes, ["B", "Wt", "Ws"])

    def model(self, nodes, names):
        ports = [helper.make_tensor_value_info(v, TensorProto.FLOAT, ["N", 4]) for v in "xy"]
        graph = helper.make_graph(nodes, "g", ports[:1], ports[1:],
                                  [numpy_helper.from_array(self.WEIGHTS[k], k) for k in names])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)

    def test_inverse_direction(self):
        for model in self.chain(), self.flow():
            common.report("rewrite", self.save(model), "--inverse-out", self.at("inv.onnx"), "--with-logdet", "ld")
            x = random(5, 4, seed=5)
            y, = session(model).run(None, {"x": x})
            names = ["x", "ld"]
            want = session(self.at("inv.onnx")).run(names, {"y": y})
            self.assertLessEqual(error_of(want[0], x), 1e-5)
            for convert in by_onnxruntime, by_others:
                for keep in True, False:
                    with self.subTest(nodes=len(model.graph.node), convert=convert.__name__, keep=keep):
                        converted = convert(onnx.load(self.at("inv.onnx")), keep)
                        got = session(converted).run(names, {"y": y if keep else y.astype(np.float16)})
                        for a, b in zip(got, want):
                            self.assertLessEqual(error_of(a, b), 1e-2)

    def test_functions(self):
        model = self.chain()
        out, _ = self.rewrite(model)
        self.hold(out, {"x": random(5, 4, seed=5)})
        for convert in by_onnxruntime, by_others:
            with self.subTest(convert=convert.__name__):
                converted = convert(onnx.load(self.at("out.onnx")), False)
                onnx.checker.check_model(converted, full_check=True)
                onnx.save(converted, self.at("half.onnx"))
                values = all_values(self.at("half.onnx"), {"x": random(5, 4, seed=5, dtype=np.float16)})
                for name, facts in functions_of(converted).items():
                    for v, got in call_function(converted, facts["inverse"], values).items():
                        self.assertLessEqual(error_of(got, values[v]), 1e-2, (name, v))


if __name__ == "__main__":
    unittest.main()
