# SPDX-License-Identifier: Apache-2.0
"""Random models (random_models.py) are rewritten, and all that docs/rewriting.md promises holds for each:

  outputs     of the rewritten file are those of the model, bit for bit in onnxruntime and in ONNX's evaluator, and close
              in OpenVINO where that is installed (outside of CI, inlined); and so is what this package computes of both
  inverses    every inverse function gives what it frees
  back        the inverse direction gives the inputs, in float64, and as the file is in onnxruntime
  logdet      is that of the Jacobian by differences in float64, by rules and from the model's own output
  gradients   of both files are the same, but for the order of sums; those by inverses are those of stored values
  trainables  are the same
  again       rewriting the rewritten file gives its bytes

INVONNX_MODELS=10000 tries as many models in place of 300, from seed INVONNX_SEED on. One by itself, kept in a folder:
    python3 tests/python/test_random_models.py SEED FOLDER"""
import os
import sys
import tempfile
import time
import unittest
from collections import Counter

import numpy as np
import onnx
import onnx.inliner
from onnx import helper
from onnx.reference import ReferenceEvaluator

import invonnx
from random_models import Model

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "cli"))
from test_rewrite import DOMAIN, FLAT, all_values, error_of, functions_of, session  # noqa: E402

try:
    import openvino
except ImportError:
    openvino = None

COUNT = os.environ.get("INVONNX_MODELS", "300")
COUNT = int(COUNT) if COUNT.isdigit() else 300  # elsewhere it names a folder
FIRST = int(os.environ.get("INVONNX_SEED", "0"))
MORE = (22264,)  # seeds outside that found what none of these does: a masked coupling of one operator beside functions
ROWS = 4
LEFT = {}  # what is known and not mended: kinds of problems by seed
QUICK = {"threads": 1, "cost": "flops"}


def call_all(functions, model, values):
    """What functions of the model give, by FUNCTION/OUTPUT, of values by name: in one graph, as a session takes a while."""
    nodes = [helper.make_node(f.name, f.input, [f"{f.name}/{v}" for v in f.output], domain=DOMAIN) for f in functions]
    names = sorted({v for f in functions for v in f.input})
    graph = helper.make_graph(
        nodes, "calls", [helper.make_tensor_value_info(v, helper.np_dtype_to_tensor_dtype(values[v].dtype), values[v].shape) for v in names],
        [onnx.ValueInfoProto(name=v) for n in nodes for v in n.output])
    one = helper.make_model(graph, opset_imports=model.opset_import, functions=model.functions, ir_version=model.ir_version)
    return dict(zip([v for n in nodes for v in n.output], session(one).run(None, {v: values[v] for v in names})))


class Checked:
    """All checks of one model. `problems`: (kind, words)."""

    def __init__(self, seed, folder):
        self.seed, self.folder, self.problems, self.seen = seed, folder, [], Counter()
        self.began = time.process_time()
        self.rng = np.random.default_rng(seed + 10**6)
        self.m = Model(seed)
        self.feeds = self.m.feeds(ROWS, self.rng)
        self.path, self.out, self.back = (os.path.join(folder, f) for f in ("model.onnx", "out.onnx", "inverse.onnx"))
        onnx.save(self.m.model, self.path)
        self.eps = 1e-12 if self.m.double else 1e-6
        self.quick = {**QUICK, "float64": self.m.double}

    def expect(self, kind, holds, words):
        if not holds:
            self.problems.append((kind, words))
        return holds

    def same(self, kind, words, got, want, limit):
        for i, (a, b) in enumerate(zip(got, want)):
            a, b = np.asarray(a), np.asarray(b)
            if a.shape != b.shape:
                self.expect(kind, False, f"{words} {i}: shape {a.shape}, not {b.shape}")
            elif limit is None:
                self.expect(kind, a.dtype == b.dtype and a.tobytes() == b.tobytes(), f"{words} {i}: not the same bit for bit")
            else:
                self.expect(kind, error_of(a, b) <= limit, f"{words} {i}: off by {error_of(a, b):.1e}, at most {limit:.1e}")

    # --- the rewritten file ---

    def outputs(self, mine, rewritten):
        self.values = session(self.path).run(None, self.feeds)
        self.same("outputs", "onnxruntime", session(self.out).run(None, self.feeds), self.values, None)
        a, b = (ReferenceEvaluator(p).run(None, self.feeds) for p in (self.path, self.out))
        self.same("outputs", "ONNX's evaluator", b, a, None)
        self.same("outputs", "ONNX's evaluator and onnxruntime", a, self.values, 2e3 * self.eps)
        a, b = (list(m.run(self.feeds, **self.quick).values()) for m in (mine, rewritten))
        self.same("outputs", "invonnx", b, a, None)
        self.same("outputs", "invonnx and onnxruntime", a, self.values, 2e3 * self.eps)
        if openvino:
            self.in_openvino()

    def in_openvino(self):
        try:
            a = self.run_openvino(self.path)
        except Exception:  # it cannot run the model itself
            self.seen["not in OpenVINO"] += 1
            return
        self.same("outputs", "OpenVINO", self.run_openvino(self.out), a, 1e-4)
        self.seen["in OpenVINO"] += 1

    def run_openvino(self, path):
        core, flat = openvino.Core(), os.path.join(self.folder, "flat.onnx")
        onnx.save(onnx.inliner.inline_local_functions(onnx.load(path)), flat)  # it has no functions of a model
        compiled = core.compile_model(core.read_model(flat), "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1})
        found = compiled(self.feeds)
        return [found[i] for i in range(len(self.values))]

    def inverses(self):
        model = onnx.load(self.out)
        facts = functions_of(model)
        self.seen["functions"] += len(facts)
        values = all_values(self.out, self.feeds)
        rows = [(name, f) for name, fact in facts.items() for f in model.functions
                if f.domain == DOMAIN and f.name == fact.get("inverse")]
        self.seen["inverses"] += len(rows)
        found = call_all([f for _, f in rows], model, values) if rows else {}
        for name, f in rows:
            gain = float(facts[name]["gain"])
            limit = 1e-2 if np.isinf(gain) else min(20 * self.eps * max(1, gain), 1e-2)
            for v in f.output:
                want, got = values[v], found[f"{f.name}/{v}"]
                if np.isinf(gain):  # flat parts cannot be asked for
                    got = np.where(np.abs(want) <= FLAT, got, want)
                self.same("inverses", f"{f.name}: {v}, gain {gain:.1e},", [got], [want], limit)

    # --- the inverse direction ---

    def reverse(self, mine):
        given = ["c"] if self.m.condition else []
        how = {"logdet": self.m.logdet} if self.m.logdet else {}
        report = mine.write_inverse(self.back, given=given, **how)
        if self.m.told:
            report = mine.write_inverse(self.back, given=given, with_logdet="ld", **how)
        onnx.checker.check_model(self.back, full_check=True)
        feeds = {k: v.astype(np.float64) for k, v in self.feeds.items()}
        there = mine.run(feeds, float64=True, **QUICK)
        inverse = invonnx.load(self.back)
        back = inverse.run(self.taken(report, there), float64=True, **QUICK)
        for k in self.m.inputs:
            self.same("back", f"{k} in float64", [back[k]], [feeds[k]], 1e-5)
        outs = dict(zip([*self.m.outputs, *([self.m.logdet] if self.m.logdet else [])], self.values))
        s = session(self.back)
        got = dict(zip([o.name for o in s.get_outputs()], s.run(None, self.taken(report, outs))))
        for k in self.m.inputs:
            limit = 1e-2 if self.m.squashed or not self.m.double else 1e-5
            self.same("back", f"{k} in onnxruntime", [got[k]], [self.feeds[k]], limit)
        if self.m.told:
            self.logdet(mine, given, there, back)

    def determinant(self, words, got, want):
        got = np.broadcast_to(got, want.shape)
        error = np.abs(got - want).max()
        self.expect("logdet", error <= 1e-4 * max(1, np.abs(want).max()), f"{words}: {got}, not {want}")

    def taken(self, report, values):
        return {k: self.feeds[k].astype(values[list(values)[0]].dtype) if k == "c" else values[k] for k in report["inputs"]}

    def logdet(self, mine, given, there, back):
        """By the Jacobian of the twin in float64, by rules, and by the model's own output."""
        want = self.jacobian(mine)
        if self.m.logdet:
            self.determinant("the model's own", there[self.m.logdet], want)
        self.determinant("told", back["ld"], -want)
        path = os.path.join(self.folder, "rules.onnx")
        try:
            report = mine.write_inverse(path, given=given, with_logdet="ld")
        except invonnx.Error as e:
            self.expect("rules", False, f"logdet by rules: {e}")
            return
        ld = invonnx.load(path).run(self.taken(report, there), float64=True, **QUICK)["ld"]
        self.determinant("by rules", ld, -want)

    def jacobian(self, mine):
        """Of all rows in one run where the batch is open, else a batch for each direction; the logarithm of its determinant."""
        h, rows = 1e-5, len(self.feeds["x0"])
        widths = [v[0].size for k, v in self.feeds.items() if k in self.m.inputs]
        d = sum(widths)
        step = np.concatenate([np.eye(d), -np.eye(d)]) * h
        x = np.concatenate([self.feeds[k].reshape(rows, -1) for k in self.m.inputs], 1).astype(np.float64)
        moved = (x[None] + step[:, None]).reshape(-1, d)  # [2 d rows, d]
        parts = dict(zip(self.m.inputs, np.split(moved, np.cumsum(widths)[:-1], 1)))
        feeds = {k: p.reshape(-1, *self.feeds[k].shape[1:]) for k, p in parts.items()}
        if self.m.condition:
            feeds["c"] = np.tile(self.feeds["c"].astype(np.float64), (2 * d, 1))
        size = len(moved) if self.m.open_batch else rows
        t = [mine.run({k: v[i:i + size] for k, v in feeds.items()}, float64=True, **QUICK) for i in range(0, len(moved), size)]
        y = np.concatenate([np.concatenate([out[k].reshape(size, -1) for k in self.m.outputs], 1) for out in t])
        y = y.reshape(2, d, rows, d)
        return np.linalg.slogdet(((y[0] - y[1]) / (2 * h)).transpose(1, 2, 0))[1]

    # --- training ---

    def gradients(self, mine, rewritten):
        y = list(self.m.outputs)[0]
        target = np.zeros_like(self.values[0])
        found = []
        modes = [(mine, "store"), (rewritten, "store")]
        if self.seed % 9 == 0:  # it searches for a plan
            modes.append((rewritten if self.seed % 2 else mine, "invert"))
        for model, memory in modes:
            t = model.trainer(loss="mse", optimizer=None, memory=memory, loss_outputs=[y], rows_mix=True, **self.quick,
                              **({"tied": ["*"]} if self.m.tensors else {}))
            try:
                t.grad(self.feeds, target)
            except invonnx.Error as e:
                if "nothing to train" not in str(e):
                    raise
                self.seen["nothing to train"] += 1
                found.append({})
                continue
            found.append({k: np.array(v) for k, v in t.gradients().items()})
        self.expect("gradients", found[0].keys() == found[1].keys(), f"of other tensors: {found[0].keys() ^ found[1].keys()}")
        for k in found[0].keys() & found[1].keys():
            self.same("gradients", f"of {k}", [found[1][k]], [found[0][k]], 1e2 * self.eps)
        a, b = ([np.concatenate([np.zeros(1), *(f[k].ravel() for k in sorted(f))])] for f in (found[-1], found[0]))
        self.same("gradients", "by inverses", a, b, 1e-9 if self.m.double else 2e-3)

    def trainables(self, model):
        return sorted((t["name"], tuple(t["shape"])) for part in ("initializers", "constants")
                      for t in model.inspect()[part] if t.get("trainable"))

    def run(self):
        onnx.checker.check_model(self.path, full_check=True)
        mine = invonnx.load(self.path)
        try:
            mine.rewrite(self.out)
            onnx.checker.check_model(self.out, full_check=True)
            rewritten = invonnx.load(self.out)
            self.lap("make")
            self.outputs(mine, rewritten)
            self.lap("outputs")
            self.inverses()
            self.lap("inverses")
            a, b = self.trainables(mine), self.trainables(rewritten)
            self.expect("trainables", a == b, f"other than before: {set(a) ^ set(b)}")
            again = os.path.join(self.folder, "again.onnx")
            rewritten.rewrite(again)
            with open(self.out, "rb") as f, open(again, "rb") as g:
                self.expect("again", f.read() == g.read(), "rewriting the rewritten file gives other bytes")
        except Exception as e:
            self.expect("rewrite", False, f"{type(e).__name__}: {e}")
            return
        self.lap("rewrite")
        for kind, check in ("back", self.reverse), ("gradients", lambda m: self.gradients(m, rewritten)):
            try:
                check(mine)
            except Exception as e:
                self.expect(kind, False, f"{type(e).__name__}: {e}")
            self.lap(kind)

    def lap(self, what):
        now = time.process_time()
        self.seen[f"ms {what}"] += int(1e3 * (now - self.began))
        self.began = now


def try_seed(seed, folder=None):
    if folder:
        os.makedirs(folder, exist_ok=True)
        one = Checked(seed, folder)
        one.run()
        return one
    with tempfile.TemporaryDirectory() as top:
        one = Checked(seed, top)
        one.run()
        return one


class Test(unittest.TestCase):
    def test_models(self):
        seen, bad, began = Counter(), [], time.process_time()
        for seed in (*range(FIRST, FIRST + COUNT), *MORE):
            one = try_seed(seed)
            seen.update(one.seen)
            seen.update(set(one.m.used))
            one.problems = [p for p in one.problems if LEFT.get(seed) != p[0]]
            if one.problems:
                bad.append(seed)
                print(f"seed {seed}, repeat by: {sys.argv[0]} {seed} FOLDER", flush=True)
                for kind, words in one.problems[:4]:
                    print(f"    {kind}: {words[:600]}", flush=True)
            if (seed + 1 - FIRST) % 100 == 0:
                print(f"{seed + 1 - FIRST} models, {len(bad)} wrong, {time.process_time() - began:.0f} s", flush=True)
        print(", ".join(f"{k} {n}" for k, n in sorted(seen.items())))
        self.assertEqual(bad, [])
        self.assertGreater(seen["inverses"], COUNT)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        sys.exit(bool([print(f"{k}: {w}") for k, w in try_seed(int(sys.argv[1]), sys.argv[2]).problems]))
    unittest.main()
