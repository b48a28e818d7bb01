# SPDX-License-Identifier: Apache-2.0
"""Random networks of couplings that are nested in halves of couplings: Split of a Split, Gather between, halves swapped, halves of
one element. Each has its gradients from reverse mode in numpy's float64. As a program it is the long run:
    INVONNX=build/dev/invonnx python3 tests/cli/nested.py 0:1500 [FOLDER]
tries these seeds in all modes and types and on device checked, and prints what failed."""
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
from onnx import helper, numpy_helper, save

MODES = ("store", "recompute", "invert", "auto")
ALPHA = float(np.float32(.01))  # attributes of ONNX are float32


class Network:
    """Nodes of ONNX, and the same in float64: values by name, and how each node passes its gradient on."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.inits, self.value, self.back, self.trained = [], [], {}, [], []
        width = int(self.rng.integers(2, 13))
        rows = int(self.rng.choice([1, 1, 2, 5]))
        self.x = self.rng.standard_normal((rows, width)).astype(np.float32)
        self.value["x"] = self.x.astype(np.float64)
        self.build(self.couple("x", int(self.rng.integers(1, 4))))

    def name(self, stem):
        return f"{stem}{len(self.value)}"

    def initializer(self, array, train=False):
        name = self.name("w" if train else "c")
        self.inits.append(numpy_helper.from_array(array, name))
        self.value[name] = array.astype(np.float64) if array.dtype == np.float32 else array
        if train:
            self.trained.append(name)
        return name

    def emit(self, op, ins, results, back, **attributes):
        outs = []
        for result in results:
            outs.append(self.name("v"))
            self.value[outs[-1]] = result
        self.nodes.append(helper.make_node(op, ins, outs, **attributes))
        self.back.append((ins, outs, back))
        return outs

    def unary(self, op, x):
        v = self.value[x]
        y, slope = {"Tanh": lambda: (np.tanh(v), 1 - np.tanh(v) ** 2),
                    "Sigmoid": lambda: (1 / (1 + np.exp(-v)), np.exp(-v) / (1 + np.exp(-v)) ** 2),
                    "Exp": lambda: (np.exp(v), np.exp(v)),
                    "LeakyRelu": lambda: (np.where(v < 0, ALPHA * v, v), np.where(v < 0, ALPHA, 1.0))}[op]()
        return self.emit(op, [x], [y], lambda g: [g[0] * slope])[0]

    def binary(self, op, a, b):
        x, y = self.value[a], self.value[b]

        def to(g, shape):
            for axis in range(g.ndim - len(shape)):
                g = g.sum(0)
            for axis, n in enumerate(shape):
                if n == 1 and g.shape[axis] != 1:
                    g = g.sum(axis, keepdims=True)
            return g
        result, back = {"Add": (x + y, lambda g: [to(g[0], x.shape), to(g[0], y.shape)]),
                        "Sub": (x - y, lambda g: [to(g[0], x.shape), to(-g[0], y.shape)]),
                        "Mul": (x * y, lambda g: [to(g[0] * y, x.shape), to(g[0] * x, y.shape)])}[op]
        return self.emit(op, [a, b], [result], back)[0]

    def matmul(self, x, width):
        w = self.initializer((self.rng.standard_normal((self.width(x), width)) / np.sqrt(self.width(x)))
                             .astype(np.float32), True)
        a, b = self.value[x], self.value[w]
        return self.emit("MatMul", [x, w], [a @ b], lambda g: [g[0] @ b.T, a.T @ g[0]])[0]

    def split(self, x, at):
        v = self.value[x]
        sizes = self.initializer(np.array([at, v.shape[1] - at], np.int64))
        return self.emit("Split", [x, sizes], [v[:, :at], v[:, at:]], lambda g: [np.concatenate(g, 1), None], axis=1)

    def concat(self, a, b):
        at = self.width(a)
        return self.emit("Concat", [a, b], [np.concatenate([self.value[a], self.value[b]], 1)],
                         lambda g: [g[0][:, :at], g[0][:, at:]], axis=1)[0]

    def gather(self, x, index):
        v = self.value[x]

        def back(g):
            out = np.zeros_like(v)
            np.add.at(out, (slice(None), index), g[0])
            return [out, None]
        return self.emit("Gather", [x, self.initializer(np.array(index, np.int64))], [v[:, index]], back, axis=1)[0]

    def width(self, x):
        return self.value[x].shape[1]

    def branch(self, x, width):
        """A function of x of that width; no more than 1 in size, so that nothing grows."""
        kind = self.rng.integers(4)
        if kind == 0 and width <= self.width(x):
            x = self.gather(x, [int(i) for i in self.rng.integers(0, self.width(x), width)])
        else:
            x = self.matmul(x, width)
        return self.unary(str(self.rng.choice(["Tanh", "Sigmoid"])), x)

    def couple(self, x, depth):
        """Couplings of the width of x, by halves that may be coupled themselves."""
        for _ in range(int(self.rng.integers(1, 4))):
            n = self.width(x)
            if n < 2:
                return self.unary("Tanh", x) if self.rng.integers(2) else x
            kind = self.rng.integers(8)
            if kind == 0:
                x = self.gather(x, [int(i) for i in self.rng.permutation(n)])
            elif kind == 1:
                x = self.binary("Mul", x, self.initializer(self.rng.uniform(.5, 1.5, n).astype(np.float32), True))
            elif kind == 2:
                x = self.unary(str(self.rng.choice(["LeakyRelu", "Tanh", "Sigmoid"])), x)
            a, b = self.split(x, int(self.rng.integers(1, n)))
            if depth and self.rng.integers(2):
                b = self.couple(b, depth - 1)
            op = str(self.rng.choice(["Add", "Sub", "Mul"]))
            f = self.branch(b, 1 if self.rng.integers(4) == 0 else self.width(a))
            if op == "Mul":
                f = self.unary("Exp", f)
            a = self.binary(op, a, f)
            if depth and self.rng.integers(2):
                a = self.couple(a, depth - 1)
            x = self.concat(*((b, a) if self.rng.integers(2) else (a, b)))
        return x

    def build(self, y):
        y = self.matmul(y, int(self.rng.integers(1, 4))) if self.rng.integers(2) else y
        y = self.binary("Mul", y, y) if self.rng.integers(2) else y
        size = self.value[y].size
        self.loss = self.emit("ReduceMean", [y], [self.value[y].mean()],
                              lambda g: [np.full(self.value[y].shape, g[0] / size)], keepdims=0)[0]
        if not self.trained:
            raise ValueError("no weights")

    def gradients(self):
        total = {self.loss: np.float64(1)}
        for ins, outs, back in reversed(self.back):
            if not any(o in total for o in outs):
                continue
            for name, g in zip(ins, back([total.get(o, np.zeros_like(self.value[o])) for o in outs])):
                if g is not None:
                    total[name] = total.get(name, 0) + g
        return {w: total.get(w, np.zeros_like(self.value[w])) for w in self.trained}

    def save(self, folder):
        graph = helper.make_graph(self.nodes, "nested", [helper.make_tensor_value_info("x", 1, list(self.x.shape))],
                                  [helper.make_tensor_value_info(self.loss, 1, [])], self.inits)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
        save(model, os.path.join(folder, "m.onnx"))
        np.save(os.path.join(folder, "x.npy"), self.x)


def network(seed):
    """The first network with weights from that seed on, times 1000."""
    for k in range(1000):
        try:
            return Network(1000 * seed + k)
        except ValueError:
            pass
    raise AssertionError(seed)


def distance(a, b):
    """Relative, over all gradients together."""
    size = sum((b[w] ** 2).sum() for w in b)
    return np.sqrt(sum(((a[w] - b[w]) ** 2).sum() for w in b) / (size or 1))


def run(program, folder, net, mode, *more):
    """(gradients by name, what is wrong)"""
    out = os.path.join(folder, "g")
    words = [w for name in net.trained for w in ("--train-only", name, "--tied", name)]
    done = subprocess.run([program, "grad", os.path.join(folder, "m.onnx"), "--feed", os.path.join(folder, "x.npy"), "--loss",
                           "output", "--memory", mode, "--cost", "flops", "--threads", "1", "--dump", out, "--json", *words, *more],
                          capture_output=True, text=True)
    if done.returncode:
        return None, f"exit status {done.returncode}: {done.stderr.strip()[-200:]}"
    choices = json.loads(done.stdout).get("choices") or []
    lost = [c for c in choices if c.get("why") == "proof"]
    if lost:
        return None, f"a plan was wrong and had to be made again: {lost}"
    return {w: np.load(os.path.join(out, f"grad_{w}.npy")) for w in net.trained}, ""


def try_seed(program, seed, modes=MODES, kinds=((), ("--float64",), ("--device", "checked"))):
    """What is wrong with this network, in words; the number of runs."""
    net, bad, n = network(seed), [], 0
    want = net.gradients()
    with tempfile.TemporaryDirectory() as folder:
        net.save(folder)
        for more in kinds:
            stored = None
            for mode in modes:
                n += 1
                have, why = run(program, folder, net, mode, *more)
                if why:
                    bad.append(f"{mode} {' '.join(more)}: {why}")
                    continue
                stored = have if mode == "store" else stored
                limit = 1e-9 if "--float64" in more else 2e-3 if mode in ("invert", "auto") else 1e-4
                for what, other in (("float64", want), ("store", stored)):
                    if other is not None and not distance(have, other) < limit:
                        bad.append(f"{mode} {' '.join(more)}: {distance(have, other):.2g} from {what}")
    return bad, n


def main():
    first, last = map(int, sys.argv[1].split(":"))
    program, wrong, runs = os.environ.get("INVONNX", "invonnx"), 0, 0
    for seed in range(first, last):
        bad, n = try_seed(program, seed)
        runs += n
        wrong += bool(bad)
        for line in bad:
            print(f"seed {seed}: {line}", flush=True)
        if (seed + 1) % 100 == 0:
            print(f"{seed + 1 - first} networks, {runs} runs, {wrong} networks wrong", flush=True)
    print(f"{last - first} networks, {runs} runs, {wrong} networks wrong")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
