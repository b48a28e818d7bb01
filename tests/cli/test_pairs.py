# SPDX-License-Identifier: Apache-2.0
"""A plugin that is an ONNX file with pairs of functions: models that call NAME get its body, and its block is found there and
where an exporter has inlined it, in other sizes too, but not with other attributes; pairs that make no rule are refused by
name."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, inliner, load, numpy_helper, save

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
        refused(work, "pair 'F': the inverse takes what is neither output nor input of the function, q", back=("q", "s"),
                inverse=(("Div", ["q", "s"], ["x"]),))
        refused(work, "pair 'F': the inverse gives what is no input of the function, w", freed=("w",),
                inverse=(("Div", ["y", "s"], ["w"]),))
        refused(work, "a constant in it, which a rule cannot compare", body=(
            ("Constant", [], ["k"], {"value_float": 2.0}), ("Mul", ["x", "k"], ["y"])))
        refused(work, "an attribute that is no number cannot be compared, perm", body=(
            ("Mul", ["x", "s"], ["h"]), ("Transpose", ["h"], ["y"], {"perm": [1, 0]})), inverse=(
                ("Transpose", ["y"], ["h"], {"perm": [1, 0]}), ("Div", ["h", "s"], ["x"])))
        refused(work, "pair 'F': the inverse computes nothing", inverse=(("Div", ["y", "s"], ["h"]), ("Mul", ["h", "s"], ["k"]),
                                                                         ("Identity", ["y"], ["x"])), body=(
            ("Identity", ["x"], ["y"]),))
    print("all good" if not bad else f"{bad} failed")
    return 1 if bad else 0


sys.exit(main())
