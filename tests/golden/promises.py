# SPDX-License-Identifier: Apache-2.0
"""Who names a number of bytes has the plan for it.

    promises.py [--invonnx PROGRAM] [--graphs N] [--seed N] [--jobs N] [--seconds N]
                [--families PREFIX,...] [ROOT...]

Of random graphs, and of the models of a ROOT (folders with model.onnx and golden.txt), with options drawn for each:

  a refusal       the same command with its needed_bytes is accepted, and takes no more
  plan --curve    --budget with the bytes of a point is accepted, takes no more, and costs no more time than is shown
  a plan          --budget with its planned_peak_bytes, or with its store_peak_bytes, is accepted, and takes no more

Plans are compared by arithmetic, so that each repeats. INVONNX_PROMISES=N tries so many graphs. A run as long as you
like, with other graphs than those of the tests:

    INVONNX=build/dev/invonnx INVONNX_PROMISES=1000 python3 tests/golden/promises.py --seed 7 tests/data/models"""
import argparse
import concurrent.futures
import json
import os
import random
import subprocess
import sys
import tempfile
import time

import numpy as np
import run
from onnx import TensorProto, helper, numpy_helper, save

# A graph whose smallest plan needs its nodes joined, in which a budget and the curve once differed.
JOINED = os.path.join(run.HERE, "..", "data", "fused_peak.onnx")
UNARY = ("Tanh", "Sigmoid", "Relu", "LeakyRelu", "Softplus", "Elu", "Abs", "Sin", "Erf", "Neg", "Softsign")


class Graph:
    """A random graph of operators over rows of a few numbers, or over images of a few channels, and its loss."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.inits, self.trained = [], [], []
        self.images = bool(self.rng.integers(3) == 0)
        self.shape = (3, 4, 5) if self.images else (int(self.rng.integers(4, 13)),)
        self.rows = int(self.rng.integers(2, 7))
        pool = ["x"]
        for _ in range(int(self.rng.integers(4, 25))):
            pool.append(self.step(pool))
        self.y = self.linear(pool[-1])
        for v in pool[-4:-1]:
            self.y = self.emit("Add", [self.y, v]) if self.rng.integers(2) else self.y
        self.emit("ReduceMean", [self.emit("Mul", [self.y, self.y])], out="loss", keepdims=0)

    def emit(self, op, ins, out=None, **attributes):
        out = out or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, ins, [out], **attributes))
        return out

    def initializer(self, array, train=False):
        name = f"{'w' if train else 'c'}{len(self.inits)}"
        self.inits.append(numpy_helper.from_array(array, name))
        self.trained += [name] if train else []
        return name

    def weight(self, *shape):
        return self.initializer((self.rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32), True)

    def linear(self, x):
        n = self.shape[0]
        if self.images:
            return self.emit("Conv", [x, self.weight(n, n, 3, 3)], pads=[1, 1, 1, 1])
        return self.emit("MatMul", [x, self.weight(n, n)])

    def couple(self, x):
        """y1 = x1, y2 = x2 + f(x1) or the like, which an inverse undoes."""
        n = self.shape[0]
        at = int(self.rng.integers(1, n))
        sizes = self.initializer(np.array([at, n - at], np.int64))
        a, b = f"v{len(self.nodes)}a", f"v{len(self.nodes)}b"
        self.nodes.append(helper.make_node("Split", [x, sizes], [a, b], axis=1))
        f = self.emit("Conv", [a, self.weight(n - at, at, 1, 1)]) if self.images else \
            self.emit("MatMul", [a, self.weight(at, n - at)])
        f = self.emit(str(self.rng.choice(["Tanh", "Sigmoid"])), [f])
        if self.rng.integers(3) == 0:
            b = self.emit("Mul", [b, self.emit("Exp", [f])])
        else:
            b = self.emit(str(self.rng.choice(["Add", "Sub"])), [b, f])
        return self.emit("Concat", [a, b], axis=1)

    def step(self, pool):
        x = pool[-1] if self.rng.integers(3) else pool[int(self.rng.integers(len(pool)))]
        kind = int(self.rng.integers(12))
        if kind < 4:
            return self.emit(str(self.rng.choice(UNARY)), [x])
        if kind < 6:
            return self.couple(x)
        if kind == 6:
            return self.linear(x)
        if kind == 7:
            mean = self.emit("ReduceMean", [x, self.initializer(np.array([1], np.int64))])
            return self.emit("Sub", [x, mean])
        other = pool[int(self.rng.integers(len(pool)))]
        y = self.emit(str(self.rng.choice(["Add", "Sub", "Mul"])), [x, other])
        return self.emit("Tanh", [y]) if self.nodes[-1].op_type == "Mul" else y

    def save(self, path):
        values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", *self.shape])]
        loss = [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])]
        graph = helper.make_graph(self.nodes, "promises", values, loss, self.inits)
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), path)


class Promises:
    """A model with options, and what was found wrong with the numbers that are named for it."""

    def __init__(self, program, how):
        self.program, self.how = program, [*map(str, how)]
        self.problems, self.asked = [], 0

    def call(self, *args):
        """The report, or what was said of a budget that cannot be met."""
        args = [*self.how, *map(str, args)]
        done = subprocess.run([self.program, *args, "--cost", "flops", "--threads", "1", "--json", "-q"], capture_output=True)
        try:
            return json.loads(done.stdout)
        except ValueError:
            self.problems.append(f"exit {done.returncode}: {' '.join(args)}: {done.stderr.decode()[-500:]}")
            return {}

    def hold(self, what, nbytes, overhead=float("inf")):
        """A budget that something has named."""
        self.asked += 1
        said = self.call("--budget", nbytes)
        plan, peak = said.get("plan", {}), said.get("planned_peak_bytes", 0)
        words = f"{' '.join(self.how)} --budget {nbytes}, which {what} names"
        if "error" in said:
            self.problems.append(f"{words}: {said['error'][:200]}")
        elif peak > nbytes:
            self.problems.append(f"{words}: takes {peak}")
        elif plan.get("overhead", 0) > overhead + 1e-9:
            self.problems.append(f"{words}: {plan['overhead']:.4f} of a plain step, not {overhead:.4f}")

    def refused(self, budget):
        """Asks for too few bytes; True if that was refused."""
        said = self.call("--budget", max(1, int(budget)))
        if "error" not in said:
            return False
        needed = (said.get("details") or said).get("needed_bytes")
        if needed:
            self.hold(f"the refusal of {int(budget)}", needed)
        else:
            self.problems.append(f"{' '.join(self.how)} --budget {int(budget)}: {said['error'][:200]}")
        return True

    def check(self, rng, curve):
        plain = self.call()
        if "planned_peak_bytes" not in plain:
            self.problems.append(f"{' '.join(self.how)}: {plain.get('error', '?')[:200]}")
            return
        peak, store = plain["planned_peak_bytes"], plain["store_peak_bytes"]
        self.hold("the plan", peak)
        self.hold("the plan, of what storing everything takes,", store)
        for share in (0, rng.uniform(.2, .6), rng.uniform(.6, .95)):
            if not self.refused(share * peak):
                break
        points = self.call("--curve").get("curve", []) if curve else []
        for point in points:
            self.hold("the curve", point["peak_bytes"], point["overhead"])


def draw(rng, what):
    """One of several lists of options."""
    return list(rng.choice(what))


def try_graph(program, seed):
    """What is wrong with a graph with options drawn for it; how many numbers were asked for again."""
    rng = random.Random(seed)
    graph = Graph(seed)
    memory = rng.choice(("auto", "recompute", "invert"))
    with tempfile.TemporaryDirectory() as folder:
        path, data = os.path.join(folder, "m.onnx"), os.path.join(folder, "x.npy")
        graph.save(path)
        loss = ["--loss", "output", "--loss-output", "loss", "--memory", memory]
        loss += [w for name in graph.trained for w in ("--tied", name)]
        loss += draw(rng, ([], [], [], ["--effort", 2], ["--device", "checked"], ["--device", "sim"], ["--early-update"],
                           ["--float64"]))
        loss += draw(rng, ([], ["--guard", "full"], ["--max-drift", 1])) if memory != "recompute" else []
        optimizer = draw(rng, (["--optimizer", "sgd"], ["--optimizer", "adam"]))
        if rng.random() < .7:
            how, curve = ["plan", path, "--batch", graph.rows, *loss, *optimizer], rng.random() < .5
        else:
            np.save(data, np.random.default_rng(1).standard_normal((2 * graph.rows + 1, *graph.shape)).astype(np.float32))
            more = draw(rng, ([], ["--val-data", f"x={data}"], ["--accumulate", 2]))
            how, curve = ["train", path, "--data", f"x={data}", "--batch", graph.rows, "--epochs", 1, "-o",
                          os.path.join(folder, "o.onnx"), *loss, *optimizer, *more], False
        return check(program, f"graph {seed}", how, curve, rng)


def try_model(program, folder, seed):
    """The same of a model with goldens."""
    rng = random.Random(f"{seed} {os.path.basename(folder)}")
    checker = run.Checker(program, folder)
    memory, rows = rng.choice(("auto", "recompute", "invert")), checker.m.all("input")[0][4]
    how = ["plan", os.path.join(folder, "model.onnx"), *checker.common_options(), "--memory", memory, "--batch", rows]
    return check(program, checker.name, how, True, rng)


def try_joined(program):
    return check(program, "fused_peak", ["plan", JOINED, "--loss", "output", "--loss-output", "v118", "--train-only", "w*",
                                         "--tied", "w*", "--optimizer", "sgd"], True, random.Random(1))


def check(program, name, how, curve, rng):
    it = Promises(program, how)
    it.check(rng, curve)
    return name, it.problems, it.asked


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", nargs="*", metavar="ROOT")
    parser.add_argument("--invonnx", default=run.default_program(), help="the program")
    parser.add_argument("--families", default="", help="prefixes of model names, by commas")
    parser.add_argument("--graphs", type=int, default=int(os.environ.get("INVONNX_PROMISES", 4)))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no graph is begun after so many")
    args = parser.parse_args()
    until = time.monotonic() + args.seconds
    folders = run.folders_of(args.roots, args.families.split(","))

    def one(k):
        if time.monotonic() > until:
            return None
        if k == 0:
            return try_joined(args.invonnx)
        if k <= len(folders):
            return try_model(args.invonnx, folders[k - 1], args.seed)
        return try_graph(args.invonnx, 100000 * args.seed + k - 1 - len(folders))

    bad = asked = n = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for done in filter(None, pool.map(one, range(1 + len(folders) + args.graphs))):
            name, problems, more = done
            n += 1
            asked += more
            bad += bool(problems)
            if problems:
                print(f"FAIL {name}", *(f"     {p}" for p in problems), sep="\n", flush=True)
    print(f"{n} graphs and models, {asked} numbers asked for again, {bad} failed")
    return int(bad > 0 or not n)


if __name__ == "__main__":
    sys.exit(main())
