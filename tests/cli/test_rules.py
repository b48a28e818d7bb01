# SPDX-License-Identifier: Apache-2.0
"""`rules new` and `rules test`, and the rules of examples/rules: each holds, and does in a model what the library's own rules
cannot. INVONNX_BUILD names the build, which has the shared objects among them."""
import json
import os
import shutil
import subprocess
import unittest

import common
import numpy as np
from onnx import TensorProto, helper, load, numpy_helper, save

RULES = os.path.join(common.EXAMPLES, "rules")
SHARED = os.path.join(os.environ.get("INVONNX_BUILD") or os.path.join(common.ROOT, "build", "dev"), "example-rules")
HEAD = "rule mine\n    kind mine\n    priority 70\n    frees x\n"
CASE = "    case g(float[4,6] in) => (z) { param float[6,5] B; x = LeakyRelu<alpha = 0.9>(in); %s; z = MatMul(y, B) }\n"
rng = np.random.default_rng(3)


def path_of(name):
    return os.path.join(SHARED, f"example_{name[:-2]}.so") if name.endswith(".c") else os.path.join(RULES, name)


class NewRule(common.InFolder):
    def setUp(self):
        super().setUp()
        old = os.getcwd()
        os.chdir(self.folder.name)
        self.addCleanup(os.chdir, old)

    def text(self, **changes):
        """The text of a new rule, with lines of it changed."""
        self.assertEqual(common.call("rules", "new", "mine")[0], 0)
        with open("mine.rules", encoding="utf-8") as f:
            lines = f.read().splitlines(True)
        os.remove("mine.rules")
        return "".join(f"    {line.split()[0]} {changes[line.split()[0]]}\n" if line.split()[0] in changes else line for line in lines)

    def try_rule(self, text, *options):
        with open("changed.rules", "w", encoding="utf-8") as f:
            f.write(text)
        return common.call("rules", "test", "changed.rules", *options)

    def test_new(self):
        status, out, err = common.call("rules", "new", "mine")
        self.assertEqual((status, out), (0, "mine.rules is written: change it, then `invonnx rules test mine.rules`\n"), err)
        status, out, err = common.call("rules", "test", "mine.rules")
        self.assertEqual(status, 0, out + err)
        self.assertTrue(out.startswith("rule mine: holds (1 case, "), out)
        for word in ("forward   float32 within", "inverse   the freed value is restored within", "logdet    0.1178 stated, 0.1178 by differences",
                     "gain      4 stated, 4 measured", "domain    inputs times 0.001 to 1e+06 come back", "training  gradients differ from --memory store by"):
            self.assertIn(word, out)
        self.assertLessEqual(len(out.splitlines()), 10)
        with open("mine.rules", "rb") as f:
            before = f.read()
        self.assertIn("is there already", common.call("rules", "new", "mine")[2])
        with open("mine.rules", "rb") as f:
            self.assertEqual(f.read(), before)
        status, _, err = common.call("rules", "new", "scale")
        self.assertEqual(status, 1)
        self.assertIn("'scale' already, of the library", err)
        self.assertFalse(os.path.exists("scale.rules"))
        self.assertEqual(common.report("rules", "new", "other"), {"rule": "other", "file": "other.rules"})

    def test_usage(self):
        for words, said in ((["new"], "wants a NAME"), (["test"], "wants a FILE"), (["old", "x"], "new NAME or test FILE"),
                            (["new", "Mine"], "lower-case"), (["new", "a/b"], "lower-case"), (["new", "a", "b"], "unexpected")):
            status, _, err = common.call("rules", *words)
            self.assertEqual(status, 2, words)
            self.assertIn(said, err)
        status, _, err = common.call("rules", "test", "absent.rules")
        self.assertEqual(status, 1)
        self.assertIn("No such file", err)

    def test_wrong(self):
        """Each mistake is found, although the case's own numbers hide some of them, and something that would help is said."""
        for changes, check, how, message, remedy in (
                ({"gain": "times(2)"}, "gain", "", "magnified 4 times, the rule says at most 2", "times(4)"),
                ({"gain": "times(4)"}, "gain", "'s' with 1.001e-06 as its first entry", "the rule says at most 4", "max_inv"),
                ({"when": "same_shape(x, y)"}, "domain", "'s' with 0 as its first entry", "not finite", "away_from_zero of 's'"),
                ({"logdet": "-log_abs(s)"}, "log-determinant", "", "by differences, the rule says", "other sign"),
                ({"logdet": "0"}, "log-determinant", "", "the rule says 0", "one term for each factor"),
                ({"logdet": "log_abs(s); log_abs(s)"}, "log-determinant", "", "the rule says 0.2355", "`logdet` has log_abs(s) twice"),
                ({"solve": "q = Div(y, s); x = Add(q, b)"}, "round trip", "", "off by", "solve gives"),
                ({"exactness": "exact", "kind": "\"\"\n    exactness exact"}, "round trip", "", "it is called exact", "leave `exactness` out"),
                ({"solve": "a1 = Abs(s); q = Div(y, a1); x = Sub(q, b)"}, "round trip", "", "off by", "solve gives")):
            with self.subTest(**changes):
                status, out, _ = self.try_rule(self.text(**changes))
                self.assertEqual(status, 1)
                self.assertIn("rule mine: does not hold", out)
                wrong = [line for line in out.splitlines() if line.startswith(f"  wrong     {check}")]
                self.assertTrue(wrong, out)
                self.assertIn(how, wrong[0])
                self.assertIn(message, wrong[0])
                self.assertIn(remedy, out)
                self.assertLessEqual(len(out.splitlines()), 14)
                failures = json.loads(self.try_rule(self.text(**changes), "--json")[1])["reports"][0]["failures"]
                self.assertTrue(all(f["check"] and "help" in f for f in failures))

    def test_negative(self):
        """A parameter that must be positive, in a rule that does not say so: the case has only such ones."""
        case = ("g(float[4,6] in) => (z) { param float[6,5] B; param float[6] s = {1.5, 2, 0.5, 1, 3, 0.5}; "
                "x = LeakyRelu<alpha = 0.9>(in); a = Abs(s); y = Mul(x, a); z = MatMul(y, B) }")
        rule = ("rule mine\n    kind \"\"\n    priority 70\n    match a = Abs(param(s)); y = Mul(x, a)\n    solve x = Div(y, s)\n    frees x\n"
                "    when same_shape(x, y); away_from_zero(s, 1e-6)@\n    gain max_inv(s)\n    case " + case + "\n")
        status, out, _ = self.try_rule(rule.replace("@", ""))
        self.assertEqual(status, 1, out)
        self.assertIn("'s' times -1", out)
        self.assertIn("ask for positive of 's' in `when`", out)
        status, out, _ = self.try_rule(rule.replace("@", "; positive(s)"))
        self.assertEqual(status, 0, out)

    def test_constants(self):
        """A rule that holds for the numbers of its case alone: constants of the pattern are changed, and `number` is advised."""
        rule = (HEAD + "    match a = Exp(x); n = Neg(x); b = Exp(n); d = Sub(a, b); y = Mul(d, param(half))\n    solve x = Asinh(y)\n@"
                + CASE % "a = Exp(x); n = Neg(x); b = Exp(n); d = Sub(a, b); y = Div(d, float[] {2})")
        for gain in ("times(1)", "unbounded"):
            with self.subTest(gain=gain):
                status, out, _ = self.try_rule(rule.replace("@", f"    gain {gain}\n"))
                self.assertEqual(status, 1, out)
                self.assertIn("wrong     domain on cpu, float64, -2 in place of the case's 2, case 1: the freed value is restored with an error of", out)
                self.assertIn("help      ask for number(half) == 0.5 in `when`", out)
                status, out, _ = self.try_rule(rule.replace("@", f"    gain {gain}\n    when number(half) == 0.5\n"), "--json")
                self.assertEqual(status, 0, out)
                result = json.loads(out)["reports"][0]["results"][0]
                self.assertEqual((result["changes"], result["changes_in_domain"]), (5, 0))
        flips = HEAD + "    match y = Mul(x, param(s))\n    solve x = Mul(y, s)\n" + CASE % "const float[6] s = {1, -1, 1, 1, -1, 1}; y = Mul(x, s)"
        status, out, _ = self.try_rule(flips)
        self.assertEqual(status, 1, out)
        self.assertIn("wrong     domain on cpu, float64, 's' plus 1, case 1: the freed value is restored with an error of", out)
        self.assertIn("say in `when` how large or small 's' may be", out)
        apart = CASE % "n = Neg(x); y = Mul(n, float[] {3})"  # the pattern does not take this number
        status, out, _ = self.try_rule(HEAD + "    match y = Neg(x)\n    solve x = Neg(y)\n" + apart, "--json")
        self.assertEqual((status, json.loads(out)["reports"][0]["results"][0]["changes"]), (0, 0))

    def test_priority(self):
        """An inverse direction takes the rule of a plugin before those of lower priority, and else the one with the least gain."""
        b, s, x = np.arange(6), np.array([1.5, -2, .25, 1, 3, -.5]), np.random.default_rng(1).normal(size=(3, 6)).astype(np.float32)
        save(helper.make_model(helper.make_graph([N("Add", "x b", "a"), N("Mul", "a s", "y")], "g", [V("x", ["N", 6])], [V("y", ["N", 6])],
                                                 [tensor("b", b), tensor("s", s)]), opset_imports=OPSETS, ir_version=8), "m.onnx")
        np.save("y.npy", ((x + b) * s).astype(np.float32))
        changes = {"gain": "unbounded", "solve": "r = Div(1, s); q = Mul(y, r); x = Sub(q, b)"}
        for priority, ops in ((70, ["Constant", "Div", "Mul", "Sub"]), (-20, ["Div", "Sub"])):
            with self.subTest(priority=priority):
                text = self.text(priority=priority, **changes)
                with open("mine.rules", "w", encoding="utf-8") as f:
                    f.write(text)
                status, _, err = common.call("rewrite", "m.onnx", "--inverse-out", "i.onnx", "--plugin", "mine.rules")
                self.assertEqual(status, 0, err)
                nodes = [n.op_type for n in load("i.onnx").graph.node if n.op_type != "Identity"]
                self.assertEqual(nodes, ops)
                status, _, err = common.call("rewrite", "m.onnx", "--inverse-out", "i.onnx", "--with-logdet", "l", "--plugin", "mine.rules")
                self.assertEqual(status, 0, err)
                status, _, err = common.call("run", "i.onnx", "--feed", "y=y.npy", "--dump", "d")
                self.assertEqual(status, 0, err)
                np.testing.assert_allclose(np.load("d/out_x.npy"), x, rtol=1e-5, atol=1e-5)
                np.testing.assert_allclose(np.load("d/out_l.npy"), np.full(3, -np.log(np.abs(s)).sum()), rtol=1e-5)
                os.remove("mine.rules")

    def test_why_not(self):
        """`explain` names a plugin's rule whose pattern is there and whose condition fails, whatever the library says of the node."""
        nodes, inits = sinh(0)
        inits[0] = tensor("two0", 2.5)
        save(helper.make_model(helper.make_graph(nodes, "g", [V("x0", [4, 6])], [V("y0", [4, 6])], inits), opset_imports=OPSETS, ir_version=8),
             "m.onnx")
        chain = (HEAD + "    match a = Exp(x); n = Neg(x); b = Exp(n); d = Sub(a, b); y = Div(d, param(c))\n    solve x = Asinh(y)\n"
                 "    when number(c) == 2\n")
        one = HEAD + "    match y = Div(x, param(c))\n    solve x = Mul(y, 2)\n    when number(c) == 2\n"
        for rule, value in ((chain, "x0"), (one, "d0")):
            with open("mine.rules", "w", encoding="utf-8") as f:
                f.write(rule)
            for alone in ((), ("--no-rules",)):
                with self.subTest(value=value, alone=alone):
                    refusals = common.report("explain", "m.onnx", *alone, "--plugin", "mine.rules")["refusals"]
                    said = [r for r in refusals if r["rule"] == "mine"]
                    self.assertEqual([(r["value"], r["reason"], r["condition"], r["seen"]) for r in said],
                                     [(value, "rule mine: 'two0' is 2.5, so number(c) == 2 does not hold", "number(c) == 2", "'two0' is 2.5")])
                    if not alone and rule == chain:
                        self.assertIn("additive_coupling", {r["kind"] for r in refusals})

    def test_stated_norm(self):
        """A condition on a norm is judged, and told where it fails."""
        save(helper.make_model(helper.make_graph([N("MatMul", "in W", "y")], "g", [V("in", [4, 3])], [V("y", [4, 3])],
                                                 [tensor("W", np.eye(3) * 2)]), opset_imports=OPSETS, ir_version=8), "m.onnx")
        for limit, blocks in (("2.1", 1), ("1.9", 0)):
            with open("norm.rules", "w", encoding="utf-8") as f:
                f.write("rule bounded\n    priority 90\n    match y = MatMulT(x, param(W))\n    solve x = LinearSolve<*>(y, W)\n    frees x\n"
                        f"    when same_shape(x, y); square(W); norm(W) < {limit}\n    gain inv_norm(W)\n")
            r = common.report("explain", "m.onnx", "--no-rules", "--plugin", "norm.rules")
            self.assertEqual(len(r["blocks"]), blocks)
            if not blocks:
                self.assertIn("'W' has norm 2, the limit is 1.9", json.dumps(r["refusals"]))


# --- models with the pieces ---

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("com.example", 1)]


def N(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def V(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def tensor(name, value, kind=np.float32):
    return numpy_helper.from_array(np.asarray(value).astype(kind), name)


def own(op, inputs, output):
    return N(op, inputs, output, domain="com.example")


def dct(i):
    return [own("DCT", f"x{i}", f"y{i}")], []


def cayley(i):
    return [own("Cayley", f"x{i} S{i}", f"y{i}")], [tensor(f"S{i}", rng.normal(size=(6, 6)))]


def planar(i):
    nodes = [N("MatMul", f"x{i} w{i}", f"e{i}"), N("Add", f"e{i} b{i}", f"a{i}"), N("Tanh", f"a{i}", f"t{i}"),
             N("MatMul", f"t{i} u{i}", f"d{i}"), N("Add", f"x{i} d{i}", f"y{i}")]
    return nodes, [tensor(f"w{i}", rng.normal(size=(6, 1)) / 6), tensor(f"u{i}", rng.normal(size=(1, 6)) / 6), tensor(f"b{i}", [0.3])]


def householder(i):
    nodes = [N("Mul", f"v x{i}", f"m{i}"), N("ReduceSum", f"m{i} last{i}", f"d{i}"), N("Mul", "v v", f"q{i}"),
             N("ReduceSum", f"q{i} last{i}", f"n{i}"), N("Div", f"d{i} n{i}", f"c{i}"), N("Mul", f"v c{i}", f"w{i}"),
             N("Mul", f"w{i} two{i}", f"t{i}"), N("Sub", f"x{i} t{i}", f"y{i}")]
    return nodes, [tensor(f"last{i}", [-1], np.int64), tensor(f"two{i}", 2)]


def shuffle(i):
    return [N("TopK", f"r n{i}", f"k{i} order{i}"), N("Gather", f"x{i} order{i}", f"y{i}", axis=1)], [tensor(f"n{i}", [6], np.int64)]


def leapfrog(i):
    nodes = [N("Split", f"x{i}", f"q{i} p{i}", axis=1), N("Cos", f"a{i}", f"c{i}"), N("Sin", f"a{i}", f"s{i}"),
             N("Mul", f"q{i} c{i}", f"qc{i}"), N("Mul", f"p{i} s{i}", f"ps{i}"), N("Add", f"qc{i} ps{i}", f"Q{i}"),
             N("Mul", f"p{i} c{i}", f"pc{i}"), N("Mul", f"q{i} s{i}", f"qs{i}"), N("Sub", f"pc{i} qs{i}", f"P{i}"),
             N("Concat", f"Q{i} P{i}", f"y{i}", axis=1)]
    return nodes, [tensor(f"a{i}", rng.normal(size=3))]


def matrix_exp(i):
    return [own("SkewExp", "S", f"R{i}"), N("MatMul", f"x{i} R{i}", f"y{i}")], []


def spline(i):
    nodes = [N("CumSum", f"W{i} one{i}", f"A{i}"), N("Sub", f"A{i} l{i}", f"X{i}"), N("CumSum", f"H{i} one{i}", f"C{i}"),
             N("Sub", f"C{i} l{i}", f"Y{i}"), own("Spline", f"x{i} X{i} Y{i} D{i}", f"y{i}")]
    return nodes, [tensor(f"one{i}", [1], np.int64), tensor(f"l{i}", np.full((6, 1), 2.5)),
                   *(tensor(f"{name}{i}", rng.uniform(0.5, 1.5, size=(6, 4))) for name in "WHD")]


def sinh(i):
    nodes = [N("Exp", f"x{i}", f"a{i}"), N("Neg", f"x{i}", f"n{i}"), N("Exp", f"n{i}", f"b{i}"), N("Sub", f"a{i} b{i}", f"d{i}"),
             N("Div", f"d{i} two{i}", f"y{i}")]
    return nodes, [tensor(f"two{i}", 2)]


def softsign(i):
    nodes = [N("Abs", f"x{i}", f"a{i}"), N("Add", f"a{i} two{i}", f"b{i}"), N("Div", f"x{i} b{i}", f"y{i}")]
    return nodes, [tensor(f"two{i}", 2)]


# file, its rules, what builds the piece from x0 to y0, further inputs, shape of x
TRAINED = [("dct.c", ["dct"], dct, {}, (8, 6)), ("cayley.c", ["cayley"], cayley, {}, (8, 6)),
           ("planar.c", ["planar_flow"], planar, {}, (8, 6)),
           ("householder.rules", ["conditional_householder"], householder, {"v": (8, 6)}, (8, 6)),
           ("channel_shuffle.rules", ["channel_shuffle"], shuffle, {"r": (6,)}, (8, 6)),
           ("leapfrog.rules", ["oscillator_position", "oscillator_momentum"], leapfrog, {}, (8, 6)),
           ("matrix_exp.c", ["matrix_exp"], matrix_exp, {"S": (8, 6, 6)}, (8, 2, 6))]
REWRITTEN = [("spline.c", ["rational_quadratic_spline"], spline), ("sinh.onnx", ["SpelledSinh"], sinh),
             ("softsign.onnx", ["WideSoftsign"], softsign), ("planar.c", ["planar_flow"], planar), ("dct.c", ["dct"], dct),
             ("cayley.c", ["cayley"], cayley)]
ALL = sorted({row[0] for row in TRAINED + REWRITTEN})


class Examples(common.InFolder):
    def network(self, piece, further, shape, layers=3, trained=True):
        """`layers` times: a matrix and LeakyReLU (for training, so that backward wants x), and the piece."""
        nodes, inits, x = [], [], "in"
        for i in range(layers):
            if trained:
                inits.append(tensor(f"M{i}", np.linalg.qr(rng.normal(size=(6, 6)))[0]))
                nodes += [N("MatMul", f"{x} M{i}", f"h{i}"), N("LeakyRelu", f"h{i}", f"x{i}", alpha=.9)]
            else:
                nodes.append(N("Identity", x, f"x{i}"))
            more = piece(i)
            nodes += more[0]
            inits += more[1]
            x = f"y{i}"
        inputs = [V("in", shape), *(V(name, s) for name, s in further.items())]
        save(helper.make_model(helper.make_graph(nodes, "g", inputs, [V(x, shape)], inits), opset_imports=OPSETS, ir_version=8),
             self.at("m.onnx"))
        feeds = []
        for name, s in [("in", shape), *further.items()]:
            np.save(self.at(f"{name}.npy"), rng.uniform(-1, 1, size=s).astype(np.float32))
            feeds += ["--feed", f"{name}={self.at(name + '.npy')}"]
        np.save(self.at("target.npy"), rng.normal(size=shape).astype(np.float32))
        return x, feeds

    def test_files(self):
        """Ten of them, of each kind two or more, all named by the README."""
        files = sorted(f for f in os.listdir(RULES) if f.endswith((".c", ".rules", ".onnx")))
        self.assertEqual(files, ALL)
        self.assertEqual(len(files), 10)
        for end in (".c", ".rules", ".onnx"):
            self.assertGreaterEqual(sum(f.endswith(end) for f in files), 2)
        with open(os.path.join(RULES, "README.md"), encoding="utf-8") as f:
            text = f.read()
        for name in files:
            self.assertIn(f"`{name}`", text)

    def test_hold(self):
        for name in ALL:
            with self.subTest(rule=name):
                status, out, err = common.call("rules", "test", path_of(name), "--json")
                self.assertEqual(status, 0, out + err)
                report = json.loads(out)["reports"][0]
                self.assertEqual(report["failed"], 0)
                for r in report["results"]:
                    if r["kind"] == "rule":
                        self.assertLess(r["inverse_error"]["float32"], 1e-6)
                        self.assertLess(r["inverse_error"]["float64"], 1e-14)
                        self.assertLess(r["gradient_error"], 1e-6)
                        self.assertGreaterEqual(r["largest_input"]["float32"], 1e4)

    def test_pairs_are_written(self):
        """The files are what make_pairs.py writes."""
        subprocess.run([os.environ.get("INVONNX_PYTHON") or "python3", os.path.join(RULES, "make_pairs.py")], cwd=self.folder.name, check=True)
        for name in ("sinh.onnx", "softsign.onnx"):
            rules = [common.call("rules", "--no-rules", "--plugin", at)[1].splitlines()[1:] for at in (path_of(name), self.at(name))]
            self.assertEqual(*rules)

    def test_trained(self):
        """x is rebuilt by the rule, as no other is there, and gradients are those of storing it. Without the rule the library
        cannot solve for x."""
        for name, rules, piece, further, shape in TRAINED:
            with self.subTest(rule=name):
                y, feeds = self.network(piece, further, shape)
                call = [self.at("m.onnx"), "--loss", "mse"]
                modes = [word for i in range(2) for start in ("qp" if name == "leapfrog.rules" else "x")
                         for word in ("--mode", f"{start}{i}=invert")]
                mine = ["--memory", "invert", *modes, "--no-rules", "--plugin", path_of(name)]
                choices = common.report("plan", *call, *mine)["choices"]
                self.assertEqual({c["by"] for c in choices if c["choice"] == "inverted"}, set(rules))
                if not name.endswith(".c") or name == "planar.c":  # other models have operators of the plugin
                    status, _, err = common.call("rewrite", self.at("m.onnx"), "--inverse-out", self.at("none.onnx"),
                                                 *(word for other in further for word in ("--given", other)))
                    self.assertEqual(status, 1)
                    self.assertIn("cannot be", err)
                call += [*feeds, "--target", self.at("target.npy")]
                grads = {}
                for memory in ("store", "invert"):
                    folder = self.at(memory)
                    shutil.rmtree(folder, ignore_errors=True)
                    words = mine if memory == "invert" else ["--memory", "store", "--plugin", path_of(name)]
                    status, _, err = common.call("grad", *call, *words, "--dump", folder)
                    self.assertEqual(status, 0, err)
                    self.assertNotIn("is stored from now on", err)
                    grads[memory] = {f: np.load(os.path.join(folder, f)) for f in sorted(os.listdir(folder))}
                self.assertEqual(list(grads["store"]), list(grads["invert"]))
                for f, g in grads["store"].items():
                    np.testing.assert_allclose(grads["invert"][f], g, rtol=1e-4, atol=1e-5 * np.abs(g).max(), err_msg=f)

    def test_rewritten(self):
        """The inverse direction gives the inputs back, by the rule alone; pairs need no plugin to run it."""
        for name, rules, piece in REWRITTEN:
            with self.subTest(rule=name):
                y, feeds = self.network(piece, {}, (8, 6), layers=2, trained=False)
                plugin = ["--plugin", path_of(name)]
                report = common.report("explain", self.at("m.onnx"), *plugin)
                self.assertEqual({b["rule"] for b in report["blocks"]}, set(rules))
                logdet = ["--with-logdet", "change"] if name.endswith(".c") else []
                status, _, err = common.call("rewrite", self.at("m.onnx"), "-o", self.at("r.onnx"), "--inverse-out", self.at("i.onnx"), *logdet, *plugin)
                self.assertEqual(status, 0, err)
                if not name.endswith(".c") or name == "planar.c":  # other models have operators of the plugin
                    self.assertEqual(common.call("rewrite", self.at("m.onnx"), "--inverse-out", self.at("none.onnx"))[0], 1)
                status, _, err = common.call("run", self.at("m.onnx"), *feeds, "--dump", self.at("f"), *plugin)
                self.assertEqual(status, 0, err)
                z = os.path.join(self.at("f"), f"out_{y}.npy")
                for model in ("i.onnx", "r.onnx"):
                    given = ["--feed", f"{y}={z}"] if model == "i.onnx" else feeds
                    status, _, err = common.call("run", self.at(model), *given, "--dump", self.at("b"), *(plugin if name.endswith(".c") else []))
                    self.assertEqual(status, 0, err)
                x = np.load(self.at("in.npy"))
                np.testing.assert_allclose(np.load(os.path.join(self.at("b"), "out_in.npy")), x, rtol=1e-4, atol=1e-4)
                np.testing.assert_allclose(np.load(os.path.join(self.at("b"), f"out_{y}.npy")), np.load(z), rtol=1e-6, atol=1e-6)
                if name in ("dct.c", "cayley.c"):
                    np.testing.assert_allclose(np.load(os.path.join(self.at("b"), "out_change.npy")), 0, atol=1e-6)


if __name__ == "__main__":
    unittest.main()
