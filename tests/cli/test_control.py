# SPDX-License-Identifier: Apache-2.0
"""Control flow that is known before the run is unrolled: outputs as onnxruntime's, gradients as finite differences of
onnxruntime in double precision. What depends on data is refused by name. Files with control flow are written back as
they were, and rewriting them changes no output."""
import os
import shutil
import tempfile
import unittest

import numpy as np
import onnx
import onnxruntime
from common import call, report
from onnx import numpy_helper, parser

HEAD = """<ir_version: 8, opset_import: ["" : 17]>
g (float[4,3] x) => (float[4,3] y)
<float[3,3] w = {0.5, -0.2, 0.1, 0.3, 0.4, -0.6, 0.2, 0.1, -0.3}, float[3] b = {0.1, -0.2, 0.3}>
"""
BODIES = {
    # a condition that is a constant; the branch that is not taken holds what nobody has
    "if_true": """{
        yes = Constant<value = bool {1}>()
        y = If(yes) <then_branch = t () => (float[4,3] r) {
                h = MatMul(x, w)
                r = Tanh(h) },
            else_branch = e () => (float[4,3] s) { s = my.domain.Unknown(x) }>
    }""",
    # shape arithmetic, and an outer value as the branch's result
    "if_shape": """{
        shape = Shape(x)
        four = Constant<value = int64[1] {4}>()
        zero = Constant<value = int64 {0}>()
        rows = Gather(shape, zero)
        n = Unsqueeze(rows, zero1)
        is = Equal(n, four)
        h = MatMul(x, w)
        not = Not(is)
        y = If(not) <then_branch = t () => (float[4,3] r) { r = Relu(h) },
            else_branch = e () => (float[4,3] s) { s = Add(h, b) }>
    }""",
    "if_nested": """{
        yes = Constant<value = bool {1}>()
        no = Constant<value = bool {0}>()
        k = Constant<value = float {2}>()
        y = If(yes) <then_branch = t () => (float[4,3] r) {
                a = Mul(x, k)
                r = If(no) <then_branch = tt () => (float[4,3] q) { q = Exp(a) },
                    else_branch = te () => (float[4,3] q2) {
                        m = MatMul(a, w)
                        q2 = Add(m, b) }>
            },
            else_branch = e () => (float[4,3] s) { s = Identity(x) }>
    }""",
    # initializers inside; twice the same node names
    "if_twice": """{
        yes = Constant<value = bool {1}>()
        h = If(yes) <then_branch = t () => (float[4,3] r)
                <float[3] k1 = {2.0, 3.0, 4.0}> {
                [inner] r = Mul(x, k1) },
            else_branch = e () => (float[4,3] s) { s = Identity(x) }>
        y = If(yes) <then_branch = t2 () => (float[4,3] r2) {
                [inner] r2 = MatMul(h, w) },
            else_branch = e2 () => (float[4,3] s2) { s2 = Identity(x) }>
    }""",
    # trip count and condition are constant; carried and scan outputs; the counter is read
    "loop": """{
        n = Constant<value = int64 {3}>()
        yes = Constant<value = bool {1}>()
        last, all = Loop(n, yes, x) <body = body (int64 i, bool c, float[4,3] v) => (bool c2, float[4,3] v2, float[4,3] o) {
                c2 = Identity(c)
                m = MatMul(v, w)
                t = Tanh(m)
                f = CastLike(i, b)
                p = Mul(t, f)
                v2 = Add(p, x)
                o = Add(v2, b) }>
        axes = Constant<value = int64[1] {0}>()
        s = ReduceMean<axes = [0], keepdims = 0>(all)
        y = Add(s, last)
    }""",
    # the count is shape arithmetic and no condition is given
    "loop_for": """{
        shape = Shape(x)
        one = Constant<value = int64 {1}>()
        n = Gather(shape, one)
        y = Loop(n, , x) <body = body (int64 i, bool c, float[4,3] v) => (bool c2, float[4,3] v2) {
                c2 = Identity(c)
                m = MatMul(v, w)
                v2 = Tanh(m) }>
    }""",
    # a condition that becomes false after some trips, with no count
    "loop_while": """{
        yes = Constant<value = bool {1}>()
        zero = Constant<value = int64 {0}>()
        one = Constant<value = int64 {1}>()
        three = Constant<value = int64 {3}>()
        y, k = Loop( , yes, x, zero) <body = body (int64 i, bool c, float[4,3] v, int64 k) => (bool c2, float[4,3] v2, int64 k2) {
                k2 = Add(k, one)
                c2 = Less(k2, three)
                m = MatMul(v, w)
                v2 = Add(m, b) }>
    }""",
    # no trip at all
    "loop_never": """{
        n = Constant<value = int64 {0}>()
        h = MatMul(x, w)
        y = Loop(n, , h) <body = body (int64 i, bool c, float[4,3] v) => (bool c2, float[4,3] v2) {
                c2 = Identity(c)
                v2 = Exp(v) }>
    }""",
    "loop_in_if_in_loop": """{
        n = Constant<value = int64 {2}>()
        zero = Constant<value = int64 {0}>()
        y = Loop(n, , x) <body = outer (int64 i, bool c, float[4,3] v) => (bool c2, float[4,3] v2) {
                c2 = Identity(c)
                first = Equal(i, zero)
                v2 = If(first) <then_branch = t () => (float[4,3] r) {
                        r = Loop(n, , v) <body = inner (int64 j, bool d, float[4,3] u) => (bool d2, float[4,3] u2) {
                                d2 = Identity(d)
                                m = MatMul(u, w)
                                u2 = Add(m, v) }>
                    },
                    else_branch = e () => (float[4,3] s) { s = Mul(v, b) }>
            }>
    }""",
    "scan": """{
        h0 = Constant<value = float[3] {0.0, 0.1, 0.2}>()
        last, y = Scan<num_scan_inputs = 1, body = body (float[3] h, float[3] row) => (float[3] h2, float[3] o) {
                m = MatMul(h, w)
                s = Add(m, row)
                h2 = Tanh(s)
                o = Mul(h2, b) }>(h0, x)
    }""",
    # an additive coupling whose branch is a loop over what an If gives
    "coupling": """{
        n = Constant<value = int64 {2}>()
        yes = Constant<value = bool {1}>()
        x1, x2 = Split<axis = 0>(x)
        a = If(yes) <then_branch = t () => (float[2,3] r) { r = MatMul(x2, w) },
            else_branch = e () => (float[2,3] s) { s = Identity(x2) }>
        f = Loop(n, , a) <body = body (int64 i, bool c, float[2,3] v) => (bool c2, float[2,3] v2) {
                c2 = Identity(c)
                m = MatMul(v, w)
                v2 = Add(m, b) }>
        y1 = Add(x1, f)
        y = Concat<axis = 0>(y1, x2)
    }""",
    # backwards, along another axis
    "scan_back": """{
        h0 = Constant<value = float[3] {0.0, 0.1, 0.2}>()
        xt = Transpose<perm = [1, 0]>(x)
        last, yt = Scan<num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
                scan_output_axes = [-1], scan_output_directions = [1],
                body = body (float[3] h, float[3] row) => (float[3] h2, float[3] o) {
                m = MatMul(h, w)
                s = Add(m, row)
                h2 = Tanh(s)
                o = Mul(h2, b) }>(h0, xt)
        y = Transpose<perm = [1, 0]>(yt)
    }""",
}
# Constants are also what follows from initializers of integers, of bool and of single numbers. More of them: name -> text.
CONSTANTS = {
    "if_size": ("int64 k = {12}", "size = Size(x)\nyes = Equal(size, k)"),
    "if_size_of_rank_1": ("int64[1] k = {12}", "size = Size(x)\nyes = Equal(size, k)"),
    "if_not": ("bool k = {0}", "yes = Not(k)"),
    "if_greater": ("int64 k = {12}, int64 k2 = {13}", "yes = Greater(k2, k)"),
    "if_cast": ("int64 k = {11}", "size = Size(x)\nd = Sub(size, k)\nyes = Cast<to = 9>(d)"),
    "if_float": ("float k = {2.0}, float k2 = {3.0}", "yes = Greater(k2, k)"),
    "loop_while_less": ("int64 k = {2}, int64 most = {9}, bool go = {1}", """h = Loop(most, go, x) <body = body (int64 i, bool c,
            float[4,3] v) => (bool c2, float[4,3] v2) {
        c2 = Less(i, k)
        v2 = Add(v, b) }>"""),
    "reshape_sub": ("int64[2] k = {7, 3}, int64[2] k2 = {1, 1}", "to = Sub(k, k2)\nh = Reshape(x, to)"),
    "reshape_mul": ("int64[2] k = {3, 2}, int64[2] k2 = {2, 1}", "to = Mul(k, k2)\nh = Reshape(x, to)"),
    "reshape_where": ("bool[2] q = {1, 0}, int64[2] k = {3, 9}, int64[2] k2 = {8, 4}",
                      "to = Where(q, k, k2)\nh = Reshape(x, to)"),
    "expand_where": ("int64[3] k = {2, -1, -1}, int64[3] k2 = {-1, -1, -1}, int64[3] one = {1, 1, 1}",
                     "q = Equal(k, k2)\nto = Where(q, one, k)\nh = Expand(x, to)"),
    "slice_div": ("int64[1] k = {5}, int64[1] k2 = {2}, int64[1] none = {0}", "e = Div(k, k2)\nh = Slice(x, none, e)"),
    "compress_not": ("bool[3] k = {1, 0, 0}", "q = Not(k)\nh = Compress<axis = 1>(x, q)"),
    "range": ("float k = {0.5}, float k2 = {3.0}, float k3 = {1.0}", "r = Range(k, k2, k3)\nh = Add(x, r)"),
    "clip_swapped": ("float k = {0.5}, float k2 = {-0.25}", "h = Clip(x, k, k2)"),
}


def constant_text(name):
    inits, nodes = CONSTANTS[name]
    taken = """h = If(yes) <then_branch = t () => (float[4,3] r) { r = Mul(x, b) },
        else_branch = e () => (float[4,3] s) { s = Identity(x) }>""" if "yes =" in nodes else ""
    return f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[4,3] x) => (float y)
<float[3] b = {{0.1, -0.2, 0.3}}, {inits}>
{{ {nodes}
{taken}
y = ReduceSum<keepdims = 0>(h) }}"""


FUNCTION = """<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
g (float[4,3] x) => (float[4,3] y)
<float[3,3] w = {0.5, -0.2, 0.1, 0.3, 0.4, -0.6, 0.2, 0.1, -0.3}, float[3] b = {0.1, -0.2, 0.3}>
{
    yes = Constant<value = bool {1}>()
    h = my.leaky<slope = 0.3>(x, w)
    y = If(yes) <then_branch = t () => (float[4,3] r) { r = my.leaky<slope = 0.2>(h, w) },
        else_branch = e () => (float[4,3] s) { s = my.leaky<slope = 0.1>(h, w) }>
}
<domain: "my", opset_import: ["" : 17]>
leaky <slope> (a, v) => (r) {
    yes = Constant<value = bool {1}>()
    m = MatMul(a, v)
    r = If(yes) <then_branch = t () => (q) { q = LeakyRelu<alpha: float = @slope>(m) },
        else_branch = e () => (p) { p = Identity(a) }>
}
"""


def text_of(name):
    text = FUNCTION if name == "function" else HEAD + BODIES[name]
    if name == "if_true":
        text = text.replace('["" : 17]', '["" : 17, "my.domain" : 1]')
    if name == "if_shape":
        text = text.replace("float[3] b =", "int64[1] zero1 = {0}, float[3] b =")
    return text


def parse(name, double=False):
    text = text_of(name)
    if double:
        text = text.replace("float[", "double[").replace("= float {", "= double {")
    return parser.parse_model(text)


def forward(model, x, out="y"):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run([out], {"x": x})[0]


def oracle_form(name, double=False):
    """onnxruntime wants to know the operators of branches that are not taken, too."""
    model = parse(name, double)
    if name == "if_true":
        for node in model.graph.node:
            for attribute in node.attribute:
                if attribute.name == "else_branch":
                    attribute.g.node[0].domain, attribute.g.node[0].op_type = "", "Identity"
    return model


NAMES = [*BODIES, "function"]


class Control(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        random = np.random.default_rng(3)
        self.x = random.standard_normal((4, 3)).astype(np.float32)
        self.t = random.standard_normal((4, 3)).astype(np.float32)
        np.save(self.file("x.npy"), self.x)
        np.save(self.file("t.npy"), self.t)
        self.model = self.file("m.onnx")

    def file(self, name):
        return os.path.join(self.folder, name)

    def save(self, model):
        onnx.save(model, self.model)

    def run_y(self, path, *options):
        out = self.file("out")
        report("run", path, "--feed", self.file("x.npy"), "--dump", out, *options)
        return np.load(os.path.join(out, "out_y.npy"))

    def grad(self, path, *options):
        out = self.file("grad")
        shutil.rmtree(out, ignore_errors=True)
        report("grad", path, "--feed", self.file("x.npy"), "--target", self.file("t.npy"), "--loss", "mse",
               "--loss-output", "y", "--dump", out, *options)
        return {n: np.load(os.path.join(out, n)) for n in sorted(os.listdir(out)) if n.startswith("grad")}

    def test_outputs(self):
        for name in NAMES:
            with self.subTest(name):
                self.save(parse(name))
                want = forward(oracle_form(name), self.x)
                np.testing.assert_allclose(self.run_y(self.model), want, rtol=2e-6, atol=2e-6)
                np.testing.assert_allclose(self.run_y(self.model, "--float64"), want, rtol=2e-6, atol=2e-6)

    def test_what_follows_from_initializers_that_nothing_trains_is_constant(self):
        for name in CONSTANTS:
            with self.subTest(name):
                model = parser.parse_model(constant_text(name))
                self.save(model)
                want = forward(model, self.x)
                np.testing.assert_allclose(self.run_y(self.model), want, rtol=2e-6, atol=2e-6)
                np.testing.assert_allclose(self.run_y(self.model, "--float64"), want, rtol=2e-6, atol=2e-6)

    def test_no_trip_with_open_extents(self):
        model = parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
            g (float[4,3] x) => (float[r,p,q] y) <int64 n = {0}> {
            last, y = Loop(n, , x) <body = body (int64 i, bool c, float[] v) => (bool c2, float[] v2, float[a,b] o) {
                c2 = Identity(c)
                v2 = Tanh(v)
                o = Identity(v2) }> }""")
        self.save(model)
        self.assertEqual(self.run_y(self.model).shape, forward(model, self.x).shape)

    def test_scan_of_opset_8_is_refused_by_name(self):
        model = parser.parse_model("""<ir_version: 3, opset_import: ["" : 8]>
            g (float[2,4,3] x, float[2,3] h) => (float[2,4,3] y) {
            last, y = Scan( , h, x) <num_scan_inputs = 1, body = body (float[3] s, float[3] r) => (float[3] t, float[3] o) {
                t = Add(s, r)
                o = Tanh(t) }> }""")
        self.save(model)
        status, _, err = call("plan", self.model, "--loss", "mse")
        self.assertEqual(status, 1)
        self.assertIn("Scan of opset 8", err)
        self.assertIn("opset 9 or later", err)

    def test_a_number_to_compare_with_leaves_the_input_to_blame(self):
        text = constant_text("if_float").replace("yes = Greater(k2, k)", "sum = ReduceSum<keepdims = 0>(x)\nyes = Greater(sum, k)")
        model = parser.parse_model(text)
        self.save(model)
        np.testing.assert_allclose(self.run_y(self.model), forward(model, self.x), rtol=2e-6, atol=2e-6)
        status, _, err = call("train", self.model, "--data", self.file("x.npy"), "--loss", "output", "--steps", 1,
                              "-o", self.file("out.onnx"))
        self.assertEqual(status, 1)
        self.assertIn("it depends on input 'x'. ", err)

    def differences(self, name):
        """dLoss/dw and dLoss/db of mean((y - t)^2)."""
        model = oracle_form(name, double=True)
        result = {}
        for init in model.graph.initializer:
            if init.name not in ("w", "b"):
                continue
            value = onnx.numpy_helper.to_array(init).copy()
            gradient = np.zeros_like(value)
            for at in np.ndindex(*value.shape):
                loss = []
                for step in (1e-6, -1e-6):
                    moved = value.copy()
                    moved[at] += step
                    other = onnx.ModelProto()
                    other.CopyFrom(model)
                    for i in other.graph.initializer:
                        if i.name == init.name:
                            i.CopyFrom(onnx.numpy_helper.from_array(moved, init.name))
                    loss.append(np.mean((forward(other, self.x.astype(np.float64)) - self.t) ** 2))
                gradient[at] = (loss[0] - loss[1]) / 2e-6
            result[f"grad_{init.name}.npy"] = gradient
        return result

    def test_gradients(self):
        for name in ("if_nested", "loop", "loop_while", "loop_in_if_in_loop", "scan", "function", "coupling"):
            with self.subTest(name):
                self.save(parse(name))
                want = self.differences(name)
                for mode in ("store", "recompute", "invert", "auto"):
                    got = self.grad(self.model, "--float64", "--memory", mode)
                    for n in want:
                        np.testing.assert_allclose(got.get(n, np.zeros(3)), want[n], rtol=1e-5, atol=1e-7, err_msg=f"{n} {mode}")

    def test_training_writes_the_file_back(self):
        for name in ("loop", "function", "if_twice"):
            with self.subTest(name):
                self.save(parse(name))
                out = self.file("out.onnx")
                status, _, err = call("train", self.model, "--data", self.file("x.npy"), "--target",
                                      self.file("t.npy"), "--loss", "mse", "--loss-output", "y", "--batch", 4,
                                      "--steps", 2, "--optimizer", "sgd", "--lr", 0.1, "-o", out)
                self.assertEqual(status, 0, err)
                before, after = onnx.load(self.model), onnx.load(out)
                names = [i.name for i in before.graph.initializer]
                self.assertNotEqual(before.graph.initializer[names.index("w")],
                                    after.graph.initializer[names.index("w")])
                for a, b in zip(before.graph.initializer, after.graph.initializer):
                    b.CopyFrom(a)
                for a, b in zip(before.graph.node, after.graph.node):
                    if name == "if_twice" and a.op_type == "If":
                        for old, new in zip(a.attribute[0].g.initializer, b.attribute[0].g.initializer):
                            self.assertNotEqual(numpy_helper.to_array(old).tolist(), numpy_helper.to_array(new).tolist())
                            new.CopyFrom(old)
                self.assertEqual(before.SerializeToString(deterministic=True),
                                 after.SerializeToString(deterministic=True))

    def test_rewriting(self):
        for name in NAMES:
            with self.subTest(name):
                self.save(parse(name))
                out = self.file("out.onnx")
                report("rewrite", self.model, "-o", out)
                if name != "if_true":
                    onnx.checker.check_model(out)
                    np.testing.assert_array_equal(forward(onnx.load(out), self.x), forward(parse(name), self.x))
                np.testing.assert_array_equal(self.run_y(out), self.run_y(self.model))

    def test_blocks(self):
        self.save(parse("coupling"))
        out = self.file("out.onnx")
        blocks = report("rewrite", self.model, "-o", out)["blocks"]
        block, = [b for b in blocks if b["kind"] == "additive_coupling"]
        self.assertEqual(block["function"]["inputs"], ["x1", "x2", "w", "b"])  # parameters as in the file
        self.assertEqual(block["inverse"]["outputs"], ["x1"])
        # the inverse runs the If and the Loop again, with what their bodies read
        model = onnx.load(out)
        name, inputs = block["inverse"]["name"], block["inverse"]["inputs"]
        self.assertIn("Loop", [n.op_type for f in model.functions if f.name == name for n in f.node])
        model.graph.node.add(op_type=name, domain="ai.invonnx", input=inputs, output=["back"])
        model.graph.node.add(op_type="Concat", input=["back", "x2"], output=["whole"]).attribute.append(
            onnx.helper.make_attribute("axis", 0))
        model.graph.output[0].name = "whole"
        np.testing.assert_allclose(forward(model, self.x, "whole"), self.x, rtol=1e-5, atol=1e-6)

    def refused(self, text, *words, command="run"):
        self.save(parser.parse_model(text))
        options = {"run": ("--feed", self.file("x.npy")),
                   "train": ("--data", self.file("x.npy"), "--target", self.file("t.npy"), "--loss", "mse", "-o",
                             self.file("out.onnx"))}
        status, _, err = call(command, self.model, *options[command])
        self.assertEqual(status, 1, err)
        for word in words:
            self.assertIn(word, err)

    def test_refusals(self):
        self.refused(HEAD + """{
            n = Constant<value = int64 {3}>()
            yes = Constant<value = bool {1}>()
            zero = Constant<value = float {0}>()
            [walk] y = Loop(n, yes, x) <body = body (int64 i, bool c, float[4,3] v) => (bool go_on, float[4,3] v2) {
                    v2 = MatMul(v, w)
                    s = ReduceSum<keepdims = 0>(v2)
                    [test] go_on = Greater(s, zero) }>
            }""", "node 'walk' (Loop)", "condition 'go_on'", "'walk/0/test'", "parameter 'w'")
        counted = HEAD + """{
            s = ReduceMax<keepdims = 0>(x)
            many = Cast<to = 7>(s)
            [count] y = Loop(many, , x) <body = body (int64 i, bool c, float[4,3] v) => (bool c2, float[4,3] v2) {
                    c2 = Identity(c)
                    v2 = MatMul(v, w) }>
            }"""
        self.refused(counted, "node 'count' (Loop)", "trip count 'many'", "input 'x'", "a fixed value (--feed", command="train")
        self.refused(HEAD + """{
            p = MatMul(w, w)
            s = ReduceSum<keepdims = 0>(p)
            zero = Constant<value = float {0}>()
            up = Greater(s, zero)
            [choose] y = If(up) <then_branch = t () => (float[4,3] r) { r = Relu(x) },
                else_branch = e () => (float[4,3] q) { q = Tanh(x) }>
            }""", "node 'choose' (If)", "condition 'up'", "parameter 'w'")
        self.refused(HEAD + """{
            yes = Constant<value = bool {1}>()
            [forever] y = Loop( , yes, x) <body = body (int64 i, bool c, float[4,3] v) => (bool c2, float[4,3] v2) {
                    c2 = Identity(c)
                    v2 = Identity(v) }>
            }""", "node 'forever' (Loop)", "more than 100000 nodes")

    def test_constant_inputs(self):
        """What an input's values decide is decided when the session is made, as far as one call goes."""
        self.save(parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
            g (float[4,3] x, int64 n, int64[2] s) => (float[?,?] y) <float[3,3] w = {0.5, -0.2, 0.1, 0.3, 0.4, -0.6, 0.2,
                0.1, -0.3}> {
            h = Loop(n, , x) <body = body (int64 i, bool c, float[4,3] v) => (bool c2, float[4,3] v2) {
                    c2 = Identity(c)
                    v2 = MatMul(v, w) }>
            y = Reshape(h, s)
            }"""))
        w = np.array([0.5, -0.2, 0.1, 0.3, 0.4, -0.6, 0.2, 0.1, -0.3], np.float32).reshape(3, 3)
        np.save(self.file("n.npy"), np.array(2))
        np.save(self.file("s.npy"), np.array([2, 6]))
        feeds = [x for name in "xns" for x in ("--feed", f"{name}={self.file(name + '.npy')}")]
        out = self.file("out")
        seen = report("run", self.model, *feeds, "--dump", out)
        self.assertEqual(sorted(seen["constant_inputs"]), ["n", "s"])
        np.testing.assert_allclose(np.load(os.path.join(out, "out_y.npy")), (self.x @ w @ w).reshape(2, 6), rtol=1e-5,
                                   atol=1e-6)
        np.save(self.file("t.npy"), np.zeros((2, 6), np.float32))
        seen = report("grad", self.model, *feeds, "--target", self.file("t.npy"), "--loss", "mse", "--dump", out)
        self.assertEqual(sorted(seen["constant_inputs"]), ["n", "s"])

    def test_inspect(self):
        self.save(parse("if_twice"))
        seen = report("inspect", self.model)
        self.assertEqual(seen["missing"], [])
        self.assertEqual(seen["operators"]["If"], 2)
        self.assertEqual(seen["operators"]["MatMul"], 1)
        self.assertEqual(seen["traps"], [])
        self.assertIn("h/then_branch/k1", [i["name"] for i in seen["initializers"] if i["trainable"]])


if __name__ == "__main__":
    unittest.main()
