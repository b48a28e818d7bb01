# SPDX-License-Identifier: Apache-2.0
"""Sequences, optionals, maps, strings and tensors of types that nothing computes with: off the trained path they are
carried along, on it they are named. Sequences and optionals that are known while compiling are computed."""
import os
import shutil
import tempfile
import unittest

import numpy as np
import onnx
import onnxruntime
from common import call, report
from onnx import TensorProto, helper, numpy_helper, parser

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING
ML = "ai.onnx.ml"


def tensor(name, dtype, shape):
    return helper.make_tensor_value_info(name, dtype, shape)


def value(name, type_proto):
    return helper.make_value_info(name, type_proto)


def floats(shape=None):
    return helper.make_tensor_type_proto(FLOAT, shape)


def weights():
    random = np.random.default_rng(5)
    return [numpy_helper.from_array(random.standard_normal((3, 4)).astype(np.float32), "w"),
            numpy_helper.from_array(np.array([0.1, -0.2, 0.3, 0.4], np.float32), "b")]


def model(nodes, inputs, outputs, initializers=(), sparse=(), opset=18):
    graph = helper.make_graph(nodes, "g", inputs, outputs, [*weights(), *initializers], sparse_initializer=list(sparse))
    return helper.make_model(graph, ir_version=9, opset_imports=[
        helper.make_opsetid("", opset), helper.make_opsetid(ML, 3), helper.make_opsetid("my.domain", 1)])


HEAD = [helper.make_node("Gemm", ["x", "w", "b"], ["logits"], name="head")]
X = tensor("x", FLOAT, ["N", 3])
LOGITS = tensor("logits", FLOAT, ["N", 4])


def classifier():
    """What classifiers end in, and everything else that is carried along."""
    nodes = HEAD + [
        helper.make_node("Softmax", ["logits"], ["p"], axis=-1),
        helper.make_node("ArgMax", ["p"], ["class"], axis=1, keepdims=0),
        helper.make_node("LabelEncoder", ["class"], ["label"], domain=ML, keys_int64s=[0, 1], values_strings=["a", "b"]),
        helper.make_node("ZipMap", ["p"], ["scores"], domain=ML, classlabels_int64s=[0, 1, 2, 3]),
        helper.make_node("StringNormalizer", ["words"], ["upper"], case_change_action="UPPER"),
        helper.make_node("Identity", ["q8"], ["q8_out"]),
        helper.make_node("Identity", ["strings"], ["strings_out"]),
        helper.make_node("Constant", [], ["c8"], value=helper.make_tensor("c", TensorProto.FLOAT8E4M3FN, [2], [1., 2.])),
        helper.make_node("Identity", ["c8"], ["c8_out"]),
        helper.make_node("Spread", ["sparse"], ["spread"], domain="my.domain"),
        helper.make_node("Code", ["p"], ["code"], domain="my.domain"),
        helper.make_node("OptionalHasElement", ["maybe"], ["there"]),
        helper.make_node("SequenceConstruct", ["logits", "p"], ["both"]),
        helper.make_node("Identity", ["list"], ["list_out"]),
    ]
    sequence = helper.make_sequence_type_proto(floats())
    outputs = [
        value("scores", helper.make_sequence_type_proto(helper.make_map_type_proto(INT64, floats()))),
        tensor("label", STRING, ["N"]), LOGITS, tensor("upper", STRING, ["N"]),
        tensor("q8_out", TensorProto.FLOAT8E5M2, [2]), tensor("strings_out", STRING, [2]),
        tensor("c8_out", TensorProto.FLOAT8E4M3FN, [2]), value("spread", helper.make_sparse_tensor_type_proto(FLOAT, [5])),
        tensor("code", INT64, ["N"]), tensor("there", TensorProto.BOOL, []), value("both", sequence),
        value("list_out", sequence),
    ]
    inputs = [tensor("words", STRING, ["M"]), X, value("maybe", helper.make_optional_type_proto(sequence)),
              value("list", sequence)]
    sparse = helper.make_sparse_tensor(helper.make_tensor("sparse", FLOAT, [2], [1., 2.]),
                                       helper.make_tensor("at", INT64, [2], [1, 3]), [5])
    return model(nodes, inputs, outputs,
                 [helper.make_tensor("q8", TensorProto.FLOAT8E5M2, [2], [1., 2.]),
                  helper.make_tensor("strings", STRING, [2], [b"one", b"two"])], [sparse])


def run_only():
    """The same without the tensors that need operators that nobody has, so that `run` can give all tensors."""
    m = classifier()
    for name in ("code", "there"):
        m.graph.output.remove(next(o for o in m.graph.output if o.name == name))
    return m


class Types(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        random = np.random.default_rng(3)
        self.x = random.standard_normal((6, 3)).astype(np.float32)
        np.save(self.file("x.npy"), self.x)
        np.save(self.file("t.npy"), np.array([0, 1, 2, 3, 0, 1]))
        self.model = self.file("m.onnx")

    def file(self, name):
        return os.path.join(self.folder, name)

    def save(self, m):
        with open(self.model, "wb") as f:
            f.write(m.SerializeToString())

    def train(self, *options):
        return call("train", self.model, "--data", "x=" + self.file("x.npy"), "--target", self.file("t.npy"), "--loss",
                    "cross_entropy", "--batch", 3, "--val-data", "x=" + self.file("x.npy"), "--val-target",
                    self.file("t.npy"), "-o", self.file("out.onnx"), *options)

    def test_inspect_tells_the_types(self):
        self.save(classifier())
        r = report("inspect", self.model)
        self.assertEqual({i["name"]: i["dtype"] for i in r["inputs"]}, {
            "words": "string", "x": "float", "maybe": "optional(seq(tensor(float)))", "list": "seq(tensor(float))"})
        self.assertEqual({o["name"]: o["dtype"] for o in r["outputs"]}, {
            "scores": "seq(map(int64,tensor(float)))", "label": "string", "logits": "float", "upper": "string",
            "q8_out": "float8e5m2", "strings_out": "string", "c8_out": "float8e4m3fn", "spread": "sparse_tensor(float)",
            "code": "int64", "there": "bool", "both": "seq(tensor(float))", "list_out": "seq(tensor(float))"})
        self.assertEqual({i["name"]: (i["dtype"], i["trainable"]) for i in r["initializers"]}, {
            "w": ("float", True), "b": ("float", True), "q8": ("float8e5m2", False), "strings": ("string", False),
            "sparse": ("sparse_tensor(float)", False)})
        self.assertEqual([i["name"] for i in r["inputs"] if i.get("carried")], ["words", "maybe", "list"])
        status, out, err = call("inspect", self.model)
        self.assertEqual(status, 0, err)
        self.assertIn("seq(map(int64,tensor(float)))", out)

    def test_training_leaves_them_alone(self):
        m = classifier()
        self.save(m)
        status, _, err = self.train("--loss-output", "logits")
        self.assertEqual(status, 0, err)
        out = onnx.ModelProto()
        with open(self.file("out.onnx"), "rb") as f:
            out.ParseFromString(f.read())
        for a, b in zip(m.graph.initializer, out.graph.initializer):
            self.assertEqual(a == b, a.name not in ("w", "b"), a.name)
            b.CopyFrom(a)
        self.assertEqual(m.SerializeToString(), out.SerializeToString())

    def test_the_loss_output_may_be_found(self):
        """logits is the only output of a floating-point type that is computed and not quantized."""
        self.save(classifier())
        status, _, err = self.train()
        self.assertEqual(status, 0, err)

    def test_no_loss_output(self):
        """All that the file gives is named where none of it can have a loss, as of a classifier of scikit-learn with its
        default end, and what to do."""
        m = classifier()
        m.graph.output.remove(next(o for o in m.graph.output if o.name == "logits"))
        self.save(m)
        for more in ([], ["--loss-output", "logits"]):
            status, _, err = self.train(*more)
            self.assertEqual(status, 1)
            self.assertIn("'scores' (carried along, not computed: seq(map(int64,tensor(float))))", err)
            self.assertIn("'label' (carried along, not computed: string)", err)
            self.assertIn("'code' (needs operators that are missing)", err)
            self.assertIn("called logits" if more else "make it an output of the model", err)

    def test_run_writes_what_it_can(self):
        self.save(run_only())
        status, out, err = call("run", self.model, "--feed", self.file("x.npy"), "--dump", self.file("out"))
        self.assertEqual(status, 0, err)
        self.assertEqual(sorted(n for n in os.listdir(self.file("out")) if n.startswith("out_")),
                         ["out_c8_out.npy", "out_logits.npy", "out_q8_out.npy"])
        for name in ("c8", "q8"):  # in float32, which carries them
            np.testing.assert_array_equal(np.load(self.file(f"out/out_{name}_out.npy")), np.array([1, 2], np.float32))
        w, b = (numpy_helper.to_array(i) for i in weights())
        np.testing.assert_allclose(np.load(self.file("out/out_logits.npy")), self.x @ w + b, rtol=1e-5, atol=1e-6)
        for name, kind in (("scores", "seq(map(int64,tensor(float)))"), ("label", "string"),
                           ("both", "seq(tensor(float))"), ("spread", "sparse_tensor(float)")):
            self.assertIn(f"output '{name}' is left out: it is of type {kind}", err)

    def test_rewriting_carries_them_along(self):
        m = run_only()
        self.save(m)
        r = report("rewrite", self.model, "-o", self.file("out.onnx"))
        self.assertEqual(r["functions"], 1) # Gemm
        out = onnx.ModelProto()
        with open(self.file("out.onnx"), "rb") as f:
            out.ParseFromString(f.read())
        self.assertEqual(out.graph.initializer.pop().name, "w_inv")
        for field in ("input", "output", "initializer", "sparse_initializer"):
            self.assertEqual(list(getattr(m.graph, field)), list(getattr(out.graph, field)), field)
        self.assertEqual(list(m.graph.node)[1:], list(out.graph.node)[1:])

    def refused(self, m, *words, command=None):
        self.save(m)
        feed = ["--feed", "x=" + self.file("x.npy")] if any(i.name == "x" for i in m.graph.input) else []
        status, out, err = command() if command else call("run", self.model, *feed)
        self.assertEqual(status, 1, err)
        for word in words:
            self.assertIn(word, err)

    def test_named_on_the_path(self):
        sequence = helper.make_sequence_type_proto(floats([2, 3]))
        at = helper.make_node("Constant", [], ["at"], value_int=0)
        with self.subTest("a sequence input"):
            self.refused(model([at, helper.make_node("SequenceAt", ["list", "at"], ["x"], name="first"), *HEAD],
                               [value("list", sequence)], [LOGITS]),
                         "'first' (SequenceAt)", "'list'", "seq(tensor(float))")
        with self.subTest("an optional input"):
            self.refused(model([helper.make_node("OptionalGetElement", ["maybe"], ["x"], name="get"), *HEAD],
                               [value("maybe", helper.make_optional_type_proto(floats()))], [LOGITS]),
                         "'get' (OptionalGetElement)", "'maybe'", "optional(tensor(float))")
        with self.subTest("a string input"):
            self.refused(model([*HEAD, helper.make_node("Cast", ["s"], ["n"], to=FLOAT, name="parse"),
                                helper.make_node("Add", ["logits", "n"], ["y"])],
                               [X, tensor("s", STRING, [1])], [tensor("y", FLOAT, ["N", 4])]),
                         "'parse' (Cast)", "'s'", "string")
        with self.subTest("a string initializer"):
            self.refused(model([helper.make_node("Gemm", ["x", "w", "s"], ["logits"], name="strange")], [X], [LOGITS],
                               [helper.make_tensor("s", STRING, [1], [b"a"])]), "'strange' (Gemm)", "'s'", "string")
        with self.subTest("a sparse initializer"):
            sparse = helper.make_sparse_tensor(helper.make_tensor("s", FLOAT, [1], [1.]),
                                               helper.make_tensor("at", INT64, [1], [1]), [4])
            self.refused(model([helper.make_node("Gemm", ["x", "w", "s"], ["logits"], name="bias")], [X], [LOGITS],
                               sparse=[sparse]), "'bias' (Gemm)", "'s'", "sparse_tensor(float)")
        with self.subTest("a sequence read as a tensor"):
            self.refused(model([*HEAD, helper.make_node("SequenceConstruct", ["logits"], ["q"]),
                                helper.make_node("Relu", ["q"], ["y"], name="wrong")], [X],
                               [tensor("y", FLOAT, ["N", 4])]), "'wrong' (Relu)", "seq(tensor(float))")
        with self.subTest("nothing is left"):
            self.refused(model([helper.make_node("StringNormalizer", ["s"], ["t"])], [tensor("s", STRING, [1])],
                               [tensor("t", STRING, [1])]), "'t'", "string")
        with self.subTest("the loss"):
            self.refused(classifier(), "'label'", "string", command=lambda: self.train("--loss-output", "label"))
        with self.subTest("an operator that nobody has, on the way to a tensor"):
            self.refused(model([*HEAD, helper.make_node("Code", ["logits"], ["code"], domain="my.domain", name="c")],
                               [X], [LOGITS, tensor("code", INT64, ["N"])]), "my.domain::Code (node 'c'")

    def test_sequences_and_optionals(self):
        text = """<ir_version: 9, opset_import: ["" : 18]> g (float[N,3] x) => (float[N,14] y, seq(float) q)
        <float[3,4] w, float[4] b> {
            logits = Gemm(x, w, b)
            none = SequenceEmpty()
            one = SequenceInsert(none, logits)
            zero = Constant<value_int = 0>()
            two = SequenceInsert(one, x, zero)
            last = Constant<value_int = -1>()
            three = SequenceInsert(two, x, last)
            four = SequenceInsert(three, x)
            q = SequenceErase(four)
            all = ConcatFromSequence<axis = 1>(q)
            o = Optional(q)
            has = OptionalHasElement(o)
            h = If(has) <then_branch = t () => (float[N,3] r) {
                    e = OptionalGetElement(o)
                    f = SequenceErase(e, zero)
                    r = SequenceAt(f, zero) },
                else_branch = e () => (float[N,3] s) { s = my.Unknown(x) }>
            n = SequenceLength(q)
            nf = Cast<to = 1>(n)
            rest = Mul(h, nf)
            pair = Slice(rest, zero1, two1, two1)
            y = Concat<axis = 1>(all, rest, b1)
        }"""
        text = text.replace("            pair = Slice(rest, zero1, two1, two1)\n", "")
        text = text.replace("y = Concat<axis = 1>(all, rest, b1)", "b1 = Softmax<axis = 1>(x)\n g1 = Relu(b1)\n"
                            "first = Gather<axis = 1>(g1, ids)\n y = Concat<axis = 1>(all, rest, first)")
        text = text.replace("zero = Constant", "ids = Constant<value_ints = [0]>()\n zero = Constant")
        m = parser.parse_model(text)
        del m.graph.initializer[:]
        m.graph.initializer.extend(weights())
        self.save(m)
        w, b = (numpy_helper.to_array(i) for i in weights())
        status, _, err = call("run", self.model, "--feed", self.file("x.npy"), "--dump", self.file("out"))
        self.assertEqual(status, 0, err)
        soft = np.exp(self.x) / np.exp(self.x).sum(1, keepdims=True)
        want = np.concatenate([self.x, self.x, self.x @ w + b, self.x * 3, soft[:, :1]], 1)
        np.testing.assert_allclose(np.load(self.file("out/out_y.npy")), want, rtol=1e-5, atol=1e-6)
        self.assertIn("output 'q' is left out", err)

    def test_a_sequence_that_a_loop_makes(self):
        self.save(parser.parse_model("""<ir_version: 9, opset_import: ["" : 18]> g (float[N,3] x) => (float[N,9] y) {
            three = Constant<value_int = 3>()
            yes = Constant<value = bool {1}>()
            none = SequenceEmpty()
            q, last = Loop(three, yes, none, x) <body = body (int64 i, bool c, seq(float) s, float[N,3] v)
                => (bool c2, seq(float) s2, float[N,3] v2) {
                    c2 = Identity(c)
                    two = Constant<value = float {2.0}>()
                    v2 = Mul(v, two)
                    s2 = SequenceInsert(s, v2) }>
            y = ConcatFromSequence<axis = 1>(q)
        }"""))
        status, _, err = call("run", self.model, "--feed", self.file("x.npy"), "--dump", self.file("out"))
        self.assertEqual(status, 0, err)
        np.testing.assert_array_equal(np.load(self.file("out/out_y.npy")),
                                      np.concatenate([self.x * 2, self.x * 4, self.x * 8], 1))


HALF, DOUBLE = TensorProto.FLOAT16, TensorProto.DOUBLE
S = [2, 4, 4]  # of most operands


def mix(op, types, shapes=None, nout=1, opset=22, **attributes):
    """A node with an initializer of each type, the first of them added to an input of that type."""
    shapes = shapes or [S] * len(types)
    names = [f"v{i}" if t else "" for i, t in enumerate(types)]
    dtypes = [helper.tensor_dtype_to_np_dtype(t) if t else None for t in types]
    init = [numpy_helper.from_array(np.ones(s, d), n) for n, s, d in zip(names, shapes, dtypes) if n]
    first = next(i for i, t in enumerate(types) if t in (FLOAT, HALF, DOUBLE))
    nodes = [helper.make_node("Mul", ["x", names[first]], ["fed"], name="feed")]
    inputs = ["fed" if i == first else n for i, n in enumerate(names)]
    nodes.append(helper.make_node(op, inputs, [f"y{i}" for i in range(nout)], name="mixed", **attributes))
    outputs = [helper.make_empty_tensor_value_info("y0")]
    graph = helper.make_graph(nodes, "g", [tensor("x", types[first], shapes[first])], outputs, init)
    return helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", opset)])


class Mixed(unittest.TestCase):
    """Operands of several floating-point types: what ONNX refuses is refused, by node, operands and types; what it allows
    is not. ONNX's own type inference and onnxruntime are asked whether they refuse."""

    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.path = os.path.join(self.folder, "m.onnx")

    def refusal(self, m):
        onnx.save(m, self.path)
        status, _, err = call("rewrite", self.path, "-o", os.path.join(self.folder, "out.onnx"))
        return err if status else ""

    def invalid(self, m):
        try:
            onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"])
        except Exception as e:  # several kinds, none of them public
            return any(word in str(e) for word in ("Type Error", "bound to different types", "inconsistent type"))
        return False

    def test_one_type(self):
        weights_of = [[4, 4, 1, 1]]
        cases = [("Add", [FLOAT, HALF]), ("Mul", [HALF, FLOAT]), ("Div", [FLOAT, DOUBLE]), ("Sub", [DOUBLE, HALF]),
                 ("MatMul", [FLOAT, HALF]), ("Gemm", [FLOAT, FLOAT, HALF], [[4, 4]] * 3),
                 ("Conv", [FLOAT, HALF], [[1, 4, 4, 4], *weights_of]),
                 ("ConvTranspose", [HALF, FLOAT], [[1, 4, 4, 4], *weights_of]),
                 ("Where", [TensorProto.BOOL, FLOAT, HALF]), ("Sum", [FLOAT, FLOAT, HALF]), ("Max", [FLOAT, HALF]),
                 ("Min", [HALF, FLOAT]), ("PRelu", [FLOAT, HALF]), ("Clip", [FLOAT, HALF], [S, []]),
                 ("LayerNormalization", [FLOAT, HALF, HALF], [S, [4], [4]]),
                 ("InstanceNormalization", [FLOAT, FLOAT, HALF], [S, [4], [4]]),
                 ("BatchNormalization", [FLOAT, FLOAT, HALF, FLOAT, FLOAT], [S] + [[4]] * 4),
                 ("BatchNormalization", [FLOAT, FLOAT, FLOAT, FLOAT, HALF], [S] + [[4]] * 4)]
        for op, types, *shapes in cases:
            m = mix(op, types, *shapes)
            self.assertTrue(self.invalid(m), op)
            err = self.refusal(m)
            self.assertIn(f"node 'mixed' ({op})", err, (op, types))
            self.assertIn("Cast", err)
        for op, options in (("Concat", {"axis": 0}), ("Einsum", {"equation": "bij,bjk->bik"})):
            m = mix(op, [FLOAT, HALF], **options)
            self.assertTrue(self.invalid(m), op)
            self.assertIn(f"({op}): input 0, 'fed', is float and input 1, 'v1', is float16", self.refusal(m))
        for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
            m = mix(op, [FLOAT, FLOAT, HALF], [[2, 4, 4], [1, gates * 4, 4], [1, gates * 4, 4]], hidden_size=4)
            self.assertTrue(self.invalid(m), op)
            self.assertIn(f"node 'mixed' ({op}): input 0", self.refusal(m))

    def test_several_types(self):
        """Type variables of their own, and operands of one fixed type."""
        cases = [("Pow", [FLOAT, HALF]), ("Pow", [HALF, FLOAT]), ("Dropout", [HALF, FLOAT], [S, []]),
                 ("BatchNormalization", [HALF, FLOAT, FLOAT, FLOAT, FLOAT], [S] + [[4]] * 4),
                 ("BatchNormalization", [FLOAT, FLOAT, FLOAT, HALF, HALF], [S] + [[4]] * 4),
                 ("CastLike", [FLOAT, HALF]), ("Where", [TensorProto.BOOL, HALF, HALF])]
        for op, types, *shapes in cases:
            m = mix(op, types, *shapes)
            self.assertFalse(self.invalid(m), (op, types))
            self.assertEqual(self.refusal(m), "", (op, types))
        self.assertEqual(self.refusal(mix("LayerNormalization", [HALF, HALF, HALF], [S, [4], [4]], nout=3)), "")
        scaled = mix("Resize", [HALF, 0, FLOAT], [[1, 1, 2, 2], [], [4]], mode="nearest")
        self.assertEqual((self.invalid(scaled), self.refusal(scaled)), (False, ""))

    def test_through(self):
        """Types go through Cast, Constant, operators that keep them, functions and branches."""
        text = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
            g (float[2,4] x) => (REAL[2,4] y) <float16[4,4] w = {W}, bool yes = {1}, float16[2,4] one = {O}> { BODY }
            <domain: "f", opset_import: ["" : 17]> Product (a, b) => (c) { t = Relu(a)  c = MatMul(t, b) }"""
        text = text.replace("{W}", "{" + ",".join(["14336"] * 16) + "}").replace("{O}", "{" + ",".join(["15360"] * 8) + "}")
        bad = {"h = Cast<to = 10>(x)  r = Relu(h)  y = Add(r, x)": "(Add)",
               "y = f.Product(x, w)": "(MatMul)",
               "c = Constant<value = float16[1] {15360}>()  s = Softmax(c)  y = Mul(x, s)": "(Mul)",
               "y = If(yes) <then_branch = t () => (p) { p = Sub(x, one) }, else_branch = e () => (q) "
               "{ q = Identity(x) }>": "(Sub)",
               "i = If(yes) <then_branch = t () => (p) { p = Identity(one) }, else_branch = e () => (q) "
               "{ q = Neg(one) }>  y = Div(x, i)": "(Div)"}
        for body, word in bad.items():
            m = parser.parse_model(text.replace("BODY", body).replace("REAL", "float"))
            self.assertTrue(self.invalid(m), body)
            self.assertIn(word, self.refusal(m), body)
        for body in ("h = Cast<to = 10>(x)  r = MatMul(h, w)  z = Cast<to = 1>(r)  y = Add(z, x)",
                     "h = CastLike(x, w)  y = f.Product(h, w)"):
            m = parser.parse_model(text.replace("BODY", body).replace("REAL", "float16" if "f." in body else "float"))
            self.assertFalse(self.invalid(m), body)
            self.assertEqual(self.refusal(m), "", body)

    def test_all_of_them_and_training(self):
        text = """<ir_version: 8, opset_import: ["" : 17]>
            g (float[2,4] x) => (float[2,4] y) <float16[4,4] w = {W}, float16[4,4] v = {W}> {
            a = MatMul(x, w)  b = Tanh(a)  y = MatMul(b, v) }""".replace("{W}", "{" + ",".join(["14336"] * 16) + "}")
        onnx.save(parser.parse_model(text), self.path)
        np.save(os.path.join(self.folder, "x.npy"), np.ones((2, 4), np.float32))
        x = os.path.join(self.folder, "x.npy")
        status, _, err = call("train", self.path, "--data", x, "--target", x, "--loss", "mse", "-o", self.path + ".out")
        self.assertEqual(status, 1)
        self.assertIn("'x', is float and input 1, 'w', is float16", err)
        self.assertIn("'b', is float and input 1, 'v', is float16", err)
        self.assertFalse(os.path.exists(self.path + ".out"))


if __name__ == "__main__":
    unittest.main()
