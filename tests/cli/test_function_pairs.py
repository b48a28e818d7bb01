# SPDX-License-Identifier: Apache-2.0
"""A plugin that is an ONNX file with pairs of functions: models that call NAME get its body, and its block is found there and
where an exporter has inlined it, in other sizes too, but not with other attributes, be they said or left out; an inverse of another shape is refused, as is a factor of
zero, and pairs that make no rule are, by name."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from onnx import AttributeProto, TensorProto, defs, helper, inliner, load, numpy_helper, save

INVONNX = os.environ.get("INVONNX", "build/dev/invonnx")
PAIR = Path(__file__).resolve().parents[2] / "examples" / "plugin" / "pair.onnx"
DOMAIN = "com.example"
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
bad = 0


def check(fine, what):
    global bad
    if not fine:
        bad += 1
        print("FAILED:", what)


def run(*words):
    done = subprocess.run([INVONNX, *map(str, words)], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def network(path, functions=(), width=5):
    """Two couplings and a scaling, called; `a` is read again by what is behind them."""
    rng = np.random.default_rng(2)

    def array(name, *shape):
        return numpy_helper.from_array((0.4 * rng.normal(size=shape)).astype(np.float32), name)
    nodes = [helper.make_node("Tanh", ["u"], ["a"]), helper.make_node("Tanh", ["v"], ["b"]),
             helper.make_node("GatedCoupling", ["a", "b", "W0"], ["c"], domain=DOMAIN),
             helper.make_node("GatedCoupling", ["b", "c", "W1"], ["d"], domain=DOMAIN),
             helper.make_node("ShiftedScale", ["d", "shift", "scale"], ["e"], domain=DOMAIN),
             helper.make_node("Concat", ["c", "e"], ["f"], axis=1), helper.make_node("MatMul", ["f", "B"], ["y"])]
    graph = helper.make_graph(
        nodes, "network", [helper.make_tensor_value_info(n, TensorProto.FLOAT, [6, width]) for n in "uv"],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [6, 2])],
        [array("W0", width, width), array("W1", width, width), array("shift", width), array("B", 2 * width, 2),
         numpy_helper.from_array(np.linspace(1, 3, width).astype(np.float32), "scale")])
    save(helper.make_model(graph, functions=list(functions), opset_imports=OPSETS, ir_version=8), path)


def kinds(model, *words):
    status, out, err = run("plan", model, "--loss", "mse", "--memory", "invert", "--json", *words)
    check(status == 0, f"plan {model}: {err}")
    return sorted(b["kind"] for b in json.loads(out)["blocks"]) if status == 0 else []


def pair_file(path, name="F", inputs=("x", "s"), outputs=("y",), body=(("Mul", ["x", "s"], ["y"]),), back=("y", "s"),
              freed=("x",), inverse=(("Div", ["y", "s"], ["x"]),), call=True, partner="F_inverse"):
    def function(title, ins, outs, nodes):
        return helper.make_function(DOMAIN, title, ins, outs, [helper.make_node(*n[:3], **(n[3] if len(n) > 3 else {}))
                                                               for n in nodes], [helper.make_opsetid("", 17)])
    nodes = [helper.make_node(name, ["x", "s"][:len(inputs)], ["y"], domain=DOMAIN)] if call else [
        helper.make_node("Mul", ["x", "s"], ["y"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                              [numpy_helper.from_array(np.float32([1, 2, 3]), "s")])
    save(helper.make_model(graph, functions=[function(name, inputs, outputs, body),
                                             function(partner, back, freed, inverse)],
                           opset_imports=OPSETS, ir_version=8), path)


def refused(work, says, **how):
    path = work / "refused.onnx"
    pair_file(path, **how)
    status, _, err = run("rules", "--plugin", path)
    check(status == 1 and says in err and str(path) in err, f"wanted '{says}', got {status}: {err}")


OPSET = 24


def applied(path, op, extra=(), attrs=(), call=None):
    """y = s op(x), as a pair of functions or, `call`, as a model: op called with these attributes."""
    def body(**also):
        return [helper.make_node(op.name, ["x"], ["h"], **dict(attrs), **also), helper.make_node("Cast", ["h"], ["r"], to=1),
                helper.make_node("Mul", ["r", "s"], ["y"])]
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1)]
    functions = [] if call else [
        helper.make_function(DOMAIN, "F", ["x", "s"], ["y"], body(), opsets[:1]),
        helper.make_function(DOMAIN, "F_inverse", ["y", "s"], ["x"], [helper.make_node("Div", ["y", "s"], ["x"])], opsets[:1])]
    nodes = body() if call else [helper.make_node("F", ["x", "s"], ["y"], domain=DOMAIN)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                              [numpy_helper.from_array(np.float32([1, 2, 3]), "s")])
    save(helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=10), path)


def defaults(work):
    """What the body of a pair leaves out has to be at its default: for every number of every operator of one operand that
    stays as it is."""
    _, out, _ = run("ops", "--json")
    kept = {o["name"] for o in json.loads(out)["ops"] if o["domain"] == "" and o["forward"] == "yes"}
    numbers, seen = (AttributeProto.FLOAT, AttributeProto.INT), 0
    for name in sorted(kept):
        op = defs.get_schema(name, OPSET)
        for attr in op.attributes.values():
            if len(op.inputs) != 1 or attr.default_value.type not in numbers:
                continue
            seen += 1
            usual = helper.get_attribute_value(attr.default_value)
            other = usual + 0.25 if attr.default_value.type == numbers[0] else 0
            applied(work / "pair.onnx", op)
            for value, found in ((None, True), (usual, name != "IsInf"), (other, False)):
                applied(work / "model.onnx", op, attrs=() if value is None else ((attr.name, value),), call=True)
                got = "F" in kinds(work / "model.onnx", "--plugin", work / "pair.onnx")
                check(got == found, f"{name}, {attr.name} = {value}: the pair is {'found' if got else 'not found'}")
    check(seen >= 14, f"{seen} attributes")


def references(work):
    """Attributes of NAME that its body refers to: NAME_inverse gets the same, a default of NAME too."""
    def function(name, ins, outs, op, default):
        node = helper.make_node(op, ins[:1], ["h"])
        node.attribute.add(name="alpha", ref_attr_name="a", type=AttributeProto.FLOAT)
        kept = [helper.make_attribute("a", default)] if default else []
        return helper.make_function(DOMAIN, name, ins, outs, [node, helper.make_node("Mul", ["h", "s"], outs)],
                                    [helper.make_opsetid("", 17)], [] if default else ["a"], kept)
    for given, of_name, of_inverse in ((0.3, None, None), (0.3, 0.5, 0.6), (None, 0.3, None), (None, 0.3, 0.6),
                                       (None, None, 0.6)):
        graph = helper.make_graph(
            [helper.make_node("F", ["x", "s"], ["y"], domain=DOMAIN, **({"a": given} if given else {}))], "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 3])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.float32([1, 2, 3]), "s")])
        save(helper.make_model(graph, functions=[function("F", ["x", "s"], ["y"], "LeakyRelu", of_name),
                                                 function("F_inverse", ["y", "s"], ["x"], "Elu", of_inverse)],
                               opset_imports=OPSETS, ir_version=9), work / "pair.onnx")
        status, out, err = run("rules", "--no-rules", "--plugin", work / "pair.onnx")
        if given is None and of_name is None:
            check(status == 1 and "has a default in the inverse only, a" in err, f"defaults apart: {err}")
            continue
        alpha = repr(float(np.float32(0.3)))
        check(status == 0 and f".alpha) == {alpha}" in out and f"Elu<alpha = {alpha}>" in out,
              f"{given}, {of_name}, {of_inverse}: {out}{err}")


def zeros(work):
    """There is no inverse where a factor is zero: a pair says so, as the library's own rule does."""
    opsets = OPSETS

    def value(name, *numbers):
        return numpy_helper.from_array(np.float32(numbers), name)

    def apart(path, op, example, *factor):
        node = helper.make_node(op, ["u", "s"], ["y"])
        functions = [helper.make_function(DOMAIN, name, [a, "s"], [b], [helper.make_node(o, [a, "s"], [b])], opsets[:1])
                     for name, a, b, o in (("Scale", "x", "y", op), ("Scale_inverse", "y", "x", {"Mul": "Div", "Div": "Mul"}[op]))]
        node = helper.make_node("Scale", ["u", "s"], ["y"], domain=DOMAIN) if example else node
        feeds = [helper.make_tensor_value_info("u", TensorProto.FLOAT, [2, 3])]
        if not factor:
            feeds.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, [3]))
        graph = helper.make_graph([node], "g", feeds, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3])],
                                  [value("s", *factor)] if factor else [])
        save(helper.make_model(graph, functions=functions if example else [], opset_imports=opsets, ir_version=8), path)
    for op in ("Mul", "Div"):
        for example, says in (((), "which is not above zero"), ((1, 2, 3), "as near to zero as 0")):
            apart(work / "pair.onnx", op, True, *example)
            status, out, _ = run("selftest", "--plugin", work / "pair.onnx")
            check(status == 0, f"{op}: {out}")
            for factor, fine in (((1, 2, 3), True), ((1, 0, 3), False)):
                apart(work / "model.onnx", op, False, *factor)
                status, _, err = run("rewrite", work / "model.onnx", "-o", work / "out.onnx", "--inverse-out",
                                     work / "back.onnx", "--no-rules", "--plugin", work / "pair.onnx")
                check(status == 0 if fine else status == 1 and says in err, f"{op} by {factor}, {example}: {err}")


def constants(work):
    """A constant of one number is part of the pattern, and the inverse may have others, and compute with parameters alone."""
    two = ("Constant", [], ["k"], {"value_float": 2.0})
    pair_file(work / "pair.onnx", body=(two, ("Mul", ["x", "k"], ["h"]), ("Tanh", ["h"], ["t"]), ("Add", ["t", "s"], ["y"])),
              inverse=(("Atan", ["s"], ["e"]), ("Tan", ["e"], ["l"]), ("Sub", ["y", "l"], ["t"]), ("Atanh", ["t"], ["h"]),
                       ("Constant", [], ["half"], {"value_float": 0.5}), ("Mul", ["h", "half"], ["x"])))
    status, out, err = run("rules", "--no-rules", "--plugin", work / "pair.onnx")
    check(status == 0 and " == 2.0" in out and " = Atan(v" in out.split("solve")[1] and ", 0.5)" in out, f"constants: {out}{err}")
    status, out, err = run("selftest", "--plugin", work / "pair.onnx")
    check(status == 0, f"constants: {out}{err}")
    for number, found in ((2, True), (3, False)):
        nodes = [helper.make_node(*n) for n in (("Mul", ["x", "k"], ["h"]), ("Tanh", ["h"], ["t"]), ("Add", ["t", "s"], ["y"]))]
        graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                                  [numpy_helper.from_array(np.float32([1, 2, 3]), "s"), numpy_helper.from_array(np.float32(number), "k")])
        save(helper.make_model(graph, opset_imports=OPSETS[:1], ir_version=8), work / "model.onnx")
        check(("F" in kinds(work / "model.onnx", "--plugin", work / "pair.onnx")) == found, f"a factor of {number}")


def shapes(work):
    """An inverse that gives another shape than what would be freed: refused with both, in a block and as an operator."""
    opsets = OPSETS
    rng = np.random.default_rng(5)

    def value(name, *shape):
        return numpy_helper.from_array(rng.normal(size=shape).astype(np.float32), name)

    def shift(path, rows, functions):
        nodes = [helper.make_node("Tanh", ["u"], ["x"]), helper.make_node("Shift", ["x", "b"], ["y"], domain=DOMAIN),
                 helper.make_node("MatMul", ["y", "B"], ["z"])]
        graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("u", TensorProto.FLOAT, [rows, 6])],
                                  [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)],
                                  [value("b", 4, 6), value("B", 6, 6)])
        save(helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=8), path)
    np.save(work / "u.npy", rng.normal(size=(1, 6)).astype(np.float32))
    np.save(work / "t.npy", np.zeros((4, 6), np.float32))
    for name, there, back in (("one", [("Add", ["x", "b"], ["y"])], [("Sub", ["y", "b"], ["x"])]),
                              ("two", [("Add", ["x", "b"], ["h"]), ("Neg", ["h"], ["y"])],
                               [("Neg", ["y"], ["h"]), ("Sub", ["h", "b"], ["x"])])):
        plugin = work / f"{name}.onnx"
        shift(plugin, 4, [helper.make_function(DOMAIN, "Shift" + end, [first, "b"], [last], [helper.make_node(*n) for n in body],
                                               opsets[:1])
                          for end, first, last, body in (("", "x", "y", there), ("_inverse", "y", "x", back))])
        shift(work / "narrow.onnx", 1, [])
        says = "its solve text gives float[4,6] for 'x', which is float[1,6]"
        status, out, err = run("explain", work / "narrow.onnx", "--plugin", plugin, "--json")
        report = json.loads(out) if status == 0 else {"blocks": [], "refusals": []}
        check([r["reason"] for r in report["refusals"] if r["rule"] == "Shift"] == [says], f"{name}: {err} {report['refusals']}")
        check("Shift" not in [b["kind"] for b in report["blocks"]], f"{name}: it is called a block")
        grads = []
        for memory in ("invert", "store"):
            dump = work / f"{name}_{memory}"
            status, out, err = run("grad", work / "narrow.onnx", "--feed", work / "u.npy", "--target", work / "t.npy", "--loss",
                                   "mse", "--memory", memory, "--plugin", plugin, "--dump", dump, "--json")
            check(status == 0 and json.loads(out)["fallbacks"] == 0, f"{name}: {err}{out}")
            grads.append([np.load(p) for p in sorted(dump.glob("grad_*.npy"))])
        check(len(grads[0]) >= 2 and all(np.allclose(a, b, rtol=1e-5) for a, b in zip(*grads)), f"{name}: gradients differ")
        status, _, err = run("rewrite", work / "narrow.onnx", "-o", work / "out.onnx", "--inverse-out", work / "back.onnx",
                             "--plugin", plugin)
        check(status == 1 and says.replace("float", "double") in err, f"{name}: {err}")


def main():
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        status, out, _ = run("selftest", "--plugin", PAIR)
        check(status == 0 and "2 rules" in out and "GatedCoupling" in out and "ShiftedScale" in out, f"selftest: {out}")
        network(work / "calls.onnx")
        network(work / "own.onnx", load(PAIR).functions)
        save(inliner.inline_local_functions(load(work / "own.onnx")), work / "inlined.onnx")
        check(not load(work / "inlined.onnx").functions, "the inliner leaves functions")
        want = ["GatedCoupling", "GatedCoupling", "ShiftedScale"]
        for name in ("calls", "own", "inlined"):
            got = kinds(work / f"{name}.onnx", "--plugin", PAIR)
            check([k for k in got if k in want] == want, f"{name}: {got}")
        check(not set(kinds(work / "inlined.onnx")) & set(want), "found without the plugin")
        status, _, err = run("plan", work / "calls.onnx", "--loss", "mse")
        check(status == 1 and "GatedCoupling" in err, f"calls without the plugin: {err}")

        rng = np.random.default_rng(3)
        for n in "uv":
            np.save(work / f"{n}.npy", rng.normal(size=(6, 5)).astype(np.float32))
        np.save(work / "t.npy", np.zeros((6, 2), np.float32))
        grads = {}
        for name, memory in (("calls", "invert"), ("inlined", "invert"), ("inlined", "store")):
            dump = work / f"{name}_{memory}"
            status, out, err = run("grad", work / f"{name}.onnx", "--feed", f"u={work}/u.npy", "--feed", f"v={work}/v.npy",
                                   "--loss", "mse", "--target", work / "t.npy", "--memory", memory, "--plugin", PAIR,
                                   "--dump", dump, "--json")
            check(status == 0, err)
            if status == 0:
                check(json.loads(out)["fallbacks"] == 0, "fallbacks")
                grads[name, memory] = np.concatenate([np.load(p).ravel() for p in sorted(dump.glob("grad_W*.npy"))])
        values = list(grads.values())
        check(len(values) == 3 and all(np.allclose(v, values[2], rtol=1e-4, atol=1e-6) for v in values), "gradients differ")

        refused(work, "no local functions in pairs", partner="G")
        refused(work, "pair 'F': the graph of the file does not call it", call=False)
        refused(work, "pair 'F': the inverse takes a value that is neither output nor input of the function, q", back=("q", "s"),
                inverse=(("Div", ["q", "s"], ["x"]),))
        refused(work, "pair 'F': the inverse gives a value that is not an input of the function, w", freed=("w",),
                inverse=(("Div", ["y", "s"], ["w"]),))
        refused(work, "a constant of several numbers, which a rule cannot compare", body=(
            ("Constant", [], ["k"], {"value_floats": [2.0, 3.0, 4.0]}), ("Mul", ["x", "k"], ["y"])))
        refused(work, "an attribute that is no number cannot be compared, perm", body=(
            ("Mul", ["x", "s"], ["h"]), ("Transpose", ["h"], ["y"], {"perm": [1, 0]})), inverse=(
                ("Transpose", ["y"], ["h"], {"perm": [1, 0]}), ("Div", ["h", "s"], ["x"])))
        refused(work, "pair 'F': the inverse computes nothing", inverse=(("Div", ["y", "s"], ["h"]), ("Mul", ["h", "s"], ["k"]),
                                                                         ("Identity", ["y"], ["x"])), body=(
            ("Identity", ["x"], ["y"]),))
        defaults(work)
        references(work)
        shapes(work)
        zeros(work)
        constants(work)
    print("all good" if not bad else f"{bad} failed")
    return 1 if bad else 0


sys.exit(main())
