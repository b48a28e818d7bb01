# SPDX-License-Identifier: Apache-2.0
"""Random invertible networks that try to fool the guard: gradients with everything rebuilt are never off by more than ten
times what the report says, or the gradient with everything kept moves as far when the input moves by that much, as it
does where an element lies so near a bend that rounding puts it on the other side. INVONNX_FULL=1: 500 of them; else a few dozen.

By hand: test_guard_random_networks.py FROM TO prints a line per network."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import onnx
from onnx import helper, numpy_helper

PROGRAM = os.environ.get("INVONNX", "build/dev/invonnx")
NETWORKS = 500 if os.environ.get("INVONNX_FULL") else 40
ROUNDING = 2e-6  # of float32 gradients in networks of this size, whatever is kept


class Net:
    """Draws a network of couplings, maps and gates on [batch, 2 half] from one seed."""

    def __init__(self, seed):
        self.rng, self.nodes, self.weights = np.random.default_rng(seed), [], []
        self.batch, self.half = int(self.rng.integers(8, 200)), int(self.rng.integers(2, 24))
        self.steep = float(self.rng.choice([0.5, 1, 1, 3, 10, 40]))

    def op(self, kind, *args, n=1, **attributes):
        out = [f"v{len(self.nodes)}_{i}" for i in range(n)]
        self.nodes.append(helper.make_node(kind, list(args), out, **attributes))
        return out[0] if n == 1 else out

    def weight(self, array):
        self.weights.append(numpy_helper.from_array(np.asarray(array), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def constant(self, x):
        return self.weight(np.float32(x))

    def linear(self, x, rows, columns, gain):
        w = self.rng.standard_normal((rows, columns)) * gain / np.sqrt(rows)
        y = self.op("MatMul", x, self.weight(w.astype("f")))
        if self.rng.random() < 0.5:
            y = self.op("Add", y, self.weight((self.rng.standard_normal(columns) * 0.3).astype("f")))
        return y

    def bend(self, x):
        kind = self.rng.choice(["Relu", "Tanh", "Sigmoid", "Abs", "Max", "Clip", "LeakyRelu", "Softplus", "Min", "Elu",
                                "PRelu"])
        if kind in ("Max", "Min"):
            return self.op(kind, x, self.op("Neg", x) if self.rng.random() < 0.5 else self.constant(0.1))
        if kind == "Clip":
            return self.op(kind, x, self.constant(-1), self.constant(1))
        if kind == "PRelu":
            return self.op(kind, x, self.constant(0.2))
        return self.op(kind, x)

    def branch(self, x, gain):
        wide = int(self.rng.integers(2, 48))
        h = self.bend(self.linear(x, self.half, wide, gain))
        for _ in range(int(self.rng.integers(0, 2))):
            h = self.bend(self.linear(h, wide, wide, gain))
        return self.linear(h, wide, self.half, gain)

    def scale(self, s):
        """Positive, and known to be so: from harmless to nearly saturated."""
        kind = self.rng.choice(["exp", "sigmoid", "wide", "softplus"])
        if kind == "exp":
            return self.op("Exp", self.op("Tanh", s))
        if kind == "wide":
            k = self.constant(float(self.rng.choice([0.5, 2, 3])))
            return self.op("Exp", self.op("Mul", self.op("Tanh", s), k))
        half = self.constant(0.5)
        if kind == "sigmoid":
            return self.op("Add", self.op("Sigmoid", self.op("Add", s, self.constant(2))), half)
        return self.op("Add", self.op("Softplus", s), half)

    def block(self, a, b):
        kind = self.rng.choice(["add", "add", "affine", "affine", "raw", "both"])
        gain = float(self.rng.choice([0.3, 1, 2, 5])) if kind == "add" else 1.0
        if kind in ("affine", "both"):
            steep = self.linear(a, self.half, self.half, self.steep)
            b = self.op("Mul", b, self.scale(steep))
        if kind == "raw":
            b = self.op("Mul", b, self.scale(self.branch(a, 1.0)))
        if kind in ("add", "both", "affine"):
            b = self.op("Add", b, self.branch(a, gain))
        if self.rng.random() < 0.3:  # a chain of factors and shifts, one per channel
            for _ in range(int(self.rng.integers(1, 4))):
                b = self.op("Mul", b, self.weight(np.exp(self.rng.standard_normal(self.half)).astype("f")))
                b = self.op("Add", b, self.weight((self.rng.standard_normal(self.half) * 3).astype("f")))
        if self.rng.random() < 0.2:
            b = self.op("LeakyRelu", b, alpha=float(self.rng.choice([0.1, 0.3, 0.7])))
        return b, a

    def write(self, path):
        a, b = self.op("Split", "x", self.weight(np.array([self.half] * 2)), n=2, axis=1)
        for _ in range(int(self.rng.integers(1, 10))):
            a, b = self.block(a, b)
            if self.rng.random() < 0.2:
                q, _ = np.linalg.qr(self.rng.standard_normal((2 * self.half,) * 2))
                both = self.op("MatMul", self.op("Concat", a, b, axis=1), self.weight(q.astype("f")))
                a, b = self.op("Split", both, self.weights[0].name, n=2, axis=1)
        self.nodes.append(helper.make_node("Concat", [a, b], ["y"], axis=1))
        value = [helper.make_tensor_value_info(n, 1, [self.batch, 2 * self.half]) for n in "xy"]
        graph = helper.make_graph(self.nodes, "net", value[:1], value[1:], self.weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def gradients(top, mode, *options):
    """Gradients by name and the report."""
    out = os.path.join(top, mode)
    r = subprocess.run([PROGRAM, "grad", os.path.join(top, "m.onnx"), "--feed", os.path.join(top, "x.npy"), "--target",
                        os.path.join(top, "y.npy"), "--loss", "mse", "--dump", out, "--memory", mode, "--json", *options],
                       capture_output=True, text=True)
    if r.returncode:
        raise RuntimeError(r.stdout + r.stderr)
    return {f: np.load(os.path.join(out, f)).astype("d") for f in sorted(os.listdir(out)) if f.startswith("grad_")}, \
        json.loads(r.stdout)


def distance(a, b):
    norm = np.sqrt(sum(np.sum(g ** 2) for g in b.values()))
    return np.sqrt(sum(np.sum((a[f] - g) ** 2) for f, g in b.items())) / norm


def moves_by(relative, wanted, top):
    """How far gradients with everything kept move when the input moves at random by so much, the most of some draws."""
    x, rng, most = np.load(os.path.join(top, "x.npy")), np.random.default_rng(1), 0
    for _ in range(16):
        noise = rng.standard_normal(x.shape) * np.sqrt(np.mean(x.astype("d") ** 2)) * relative
        np.save(os.path.join(top, "x.npy"), (x + noise).astype("f"))
        most = max(most, distance(gradients(top, "store")[0], wanted))
    return most


def ratio_of(seed, top, *options):
    """How many times what is expected the gradients are off, with what the report says; None: there are no gradients."""
    net = Net(seed)
    net.write(os.path.join(top, "m.onnx"))
    rng = np.random.default_rng(seed + 1000000)
    for name in "xy":
        np.save(os.path.join(top, name + ".npy"), rng.standard_normal((net.batch, 2 * net.half)).astype("f"))
    try:
        wanted, _ = gradients(top, "store")
    except RuntimeError as e:
        if "not finite" in str(e):
            return None
        raise
    got, report = gradients(top, "invert", *options)
    off = distance(got, wanted)
    says = report["drift"]["largest"]
    says = np.inf if says is None else says
    expected = max(says, ROUNDING)
    if off > 10 * expected:
        expected = max(expected, moves_by(expected, wanted, top))
    return off / expected, off, says, report


class Fooled(unittest.TestCase):
    def test_gradients_are_off_by_no_more_than_the_report_says(self):
        rebuilt = 0
        for seed in range(NETWORKS):
            with tempfile.TemporaryDirectory() as top:
                found = ratio_of(seed, top)
            if found is None:
                continue
            ratio, off, says, report = found
            rebuilt += report["values"]["inverted"] > 0
            self.assertLessEqual(ratio, 10, f"seed {seed}: gradients are off by {off:.3g}, the report says {says:.3g}")
        self.assertGreater(rebuilt, NETWORKS // 2)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1].isdigit():
        for number in range(int(sys.argv[1]), int(sys.argv[2])):
            with tempfile.TemporaryDirectory() as folder:
                row = ratio_of(number, folder)
            print(number, *(["no gradients"] if row is None else [
                f"ratio {row[0]:.3g} off {row[1]:.3g} says {row[2]:.3g} fallbacks {row[3]['fallbacks']}",
                f"inverted {row[3]['values']['inverted']}"]), flush=True)
    else:
        unittest.main()
