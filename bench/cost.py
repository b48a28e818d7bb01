# SPDX-License-Identifier: Apache-2.0
"""How near predicted times of a step come to measured ones: whole steps, values stored and recomputed, and single kinds of
operators. README.md says how it is measured.

    python3 bench/cost.py [--models DIR] [-o bench/results/cost.md]

DIR has the models of the repository's neighbour `shared/models`. Networks of usual extents are made by this script (it needs
onnx and numpy), the RevNet is of tests/data."""
import argparse
import collections
import datetime
import json
import os
import subprocess
import sys
import tempfile
from statistics import median

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import compare
from peers import contestant

HERE = os.path.dirname(os.path.abspath(__file__))


class Network:
    """A graph that grows node by node; weights are random."""

    def __init__(self):
        self.nodes, self.weights, self.random = [], [], np.random.default_rng(0)

    def name(self, letter):
        return f"{letter}{len(self.nodes) + len(self.weights)}"

    def weight(self, *dims, scale=None):
        scale = scale or float(np.prod(dims[1:])) ** -0.5
        return self.keep((self.random.standard_normal(dims) * scale).astype(np.float32))

    def keep(self, array):
        self.weights.append(numpy_helper.from_array(array, self.name("w")))
        return self.weights[-1].name

    def constant(self, values, dtype=np.int64):
        return self.op("Constant", value=numpy_helper.from_array(np.array(values, dtype)))

    def op(self, kind, *inputs, results=1, **attributes):
        first = self.name("v")
        names = [f"{first}_{i}" for i in range(results)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=first, **attributes))
        return names[0] if results == 1 else names

    def bare_conv(self, x, cin, cout, k, stride=1, group=1):
        return self.op("Conv", x, self.weight(cout, cin // group, k, k), kernel_shape=[k, k], pads=[k // 2] * 4,
                       strides=[stride, stride], group=group)

    def norm(self, x, width):
        ones = np.ones(width, np.float32)
        return self.op("BatchNormalization", x, self.keep(ones), self.keep(0 * ones), self.keep(0 * ones), self.keep(ones),
                       results=3, training_mode=1)[0]

    def conv(self, x, cin, cout, k, stride=1, group=1):
        return self.norm(self.bare_conv(x, cin, cout, k, stride, group), cout)

    def linear(self, x, cin, cout):
        return self.op("Add", self.op("MatMul", x, self.weight(cin, cout, scale=cin ** -0.5)), self.weight(cout, scale=0.1))

    def head(self, x, width, classes=100):
        return self.linear(self.op("Flatten", self.op("GlobalAveragePool", x)), width, classes)

    def save(self, path, dims, output, dtype=TensorProto.FLOAT):
        graph = helper.make_graph(self.nodes, "network", [helper.make_tensor_value_info("x", dtype, ["N", *dims])],
                                  [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        model.ir_version = 8
        onnx.save(model, path)


def resnet(path):
    n, c = Network(), 64
    x = n.op("MaxPool", n.op("Relu", n.conv("x", 3, 64, 7, 2)), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for width, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        y = n.conv(n.op("Relu", n.conv(x, c, width, 3, stride)), width, width, 3)
        x = n.op("Relu", n.op("Add", y, x if c == width else n.conv(x, c, width, 1, stride)))
        c = width
    n.save(path, [3, 112, 112], n.head(x, 512))
    return np.float32, (8, 3, 112, 112), (8, 100)


def mobilenet(path):
    n, c = Network(), 16
    x = n.op("HardSwish", n.conv("x", 3, 16, 3, 2))
    for width, expand, stride in ((24, 4, 2), (24, 3, 1), (40, 3, 2), (40, 3, 1), (80, 6, 2), (80, 3, 1), (112, 6, 1),
                                  (160, 6, 2), (160, 6, 1)):
        wide = c * expand
        y = n.op("HardSwish", n.conv(x, c, wide, 1))
        y = n.conv(n.op("HardSwish", n.conv(y, wide, wide, 5 if width > 80 else 3, stride, wide)), wide, width, 1)
        x = n.op("Add", x, y) if stride == 1 and c == width else y
        c = width
    n.save(path, [3, 160, 160], n.head(x, c))
    return np.float32, (8, 3, 160, 160), (8, 100)


def gpt(path, layers=4, width=256, heads=4, length=128, words=2000, tied=False):
    """With `tied` the head is the embedding, as in GPT-2."""
    n = Network()
    norm = lambda x: n.op("LayerNormalization", x, n.keep(np.ones(width, np.float32)), n.weight(width, scale=0.1), axis=-1)
    split = lambda x: n.op("Transpose", n.op("Reshape", x, n.constant([0, 0, heads, width // heads])), perm=[0, 2, 1, 3])
    table = n.weight(words, width, scale=0.02)
    x = n.op("Add", n.op("Gather", table, "x"), n.weight(length, width, scale=0.02))
    for _ in range(layers):
        q, k, v = map(split, n.op("Split", n.linear(norm(x), width, 3 * width), n.constant([width] * 3), results=3, axis=2))
        q = n.op("Mul", q, n.constant((width / heads) ** -0.5, np.float32))
        a = n.op("MatMul", n.op("Softmax", n.op("MatMul", q, n.op("Transpose", k, perm=[0, 1, 3, 2])), axis=-1), v)
        a = n.op("Reshape", n.op("Transpose", a, perm=[0, 2, 1, 3]), n.constant([0, 0, width]))
        x = n.op("Add", x, n.linear(a, width, width))
        u = n.linear(norm(x), width, 4 * width)
        e = n.op("Erf", n.op("Div", u, n.constant(2 ** 0.5, np.float32)))
        u = n.op("Mul", n.op("Mul", u, n.constant(0.5, np.float32)), n.op("Add", e, n.constant(1, np.float32)))
        x = n.op("Add", x, n.linear(u, 4 * width, width))
    head = n.op("Transpose", table, perm=[1, 0]) if tied else n.weight(width, words, scale=0.05)
    n.save(path, [length], n.op("MatMul", norm(x), head), TensorProto.INT64)
    return np.int64, (8, length), (8, length, words)


def mlp(path):
    n, x = Network(), "x"
    for cin, cout in ((784, 1024), (1024, 1024), (1024, 1024)):
        x = n.op("Tanh", n.linear(x, cin, cout))
    n.save(path, [784], n.linear(x, 1024, 10))
    return np.float32, (128, 784), (128, 10)


MADE = {"resnet18 112x112, 8": resnet, "mobilenet 160x160, 8": mobilenet, "gpt 4x256, 8x128": gpt, "mlp 1024, 128": mlp}
SHARED = {"plain_lenet_ts17": 128, "plain_resnet_ts17": 128, "plain_mobilenet_ts17": 128, "plain_unet_ts17": 128,
          "realnvp_ts17": 4096, "revnet8_ts17": 128, "revvit_ts17": 2, "glow_ts17": 3}


def repeated(array, rows):
    return np.concatenate([array] * -(-rows // len(array)))[:rows]


def shared(folder, rows, where):
    """The model's own batch, repeated; its outputs set the shape of a target."""
    with open(os.path.join(folder, "golden.txt")) as f:
        facts = [line.rstrip("\n").split("\t") for line in f]
    (_, name, x, *_), (_, output, y, *_) = (next(f for f in facts if f[0] == what) for what in ("input", "output"))
    for array, into in ((x, "x"), (y, "y")):
        np.save(os.path.join(where, into + ".npy"), repeated(np.load(os.path.join(folder, array)), rows))
    return os.path.join(folder, "model.onnx"), name, output


def bare(path):
    """For bench_step: TYPE:DIMS:FILE."""
    array = np.load(path)
    array.tofile(path + ".raw")
    return f"{'i64' if array.dtype == np.int64 else 'f32'}:{'x'.join(map(str, array.shape))}:{path}.raw"


def predicted(args, model, output, where, memory, command="plan", more=()):
    """The program's report of the plan that bench_step runs."""
    batch = len(np.load(f"{where}/y.npy", mmap_mode="r"))
    command = [args.invonnx, command, model, "--loss", "mse", "--cost", "time", "--threads", str(args.threads), "--json",
               "--batch", str(batch), "--optimizer", "sgd", "--memory", memory, *more]
    done = subprocess.run(command + (["--loss-output", output] if output else []), capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return json.loads(done.stdout)


def started(args, model, name, output, where, memory):
    command = [args.step, model, f"input={name}:" + bare(f"{where}/x.npy"), "target=" + bare(f"{where}/y.npy"), "loss=mse",
               f"memory={memory}", f"threads={args.threads}"] + ([f"output={output}"] if output else [])
    process = contestant.Process(command, dict(os.environ, OMP_WAIT_POLICY="passive"), 600)
    process.answer()
    process.ask("time")
    return process


def whole_steps(args, model, name, output, where):
    """(measured, predicted, least, most) CPU seconds of a step per thread, by memory mode; the two take turns."""
    modes = ("store", "recompute")
    live = {m: started(args, model, name, output, where, m) for m in modes}
    took = {m: [] for m in modes}
    for _ in range(args.rounds):
        for m in modes:
            took[m].append(live[m].ask("time")["cpu"] / args.threads)
    for process in live.values():
        process.stop()
    told = {m: predicted(args, model, output, where, m)["predicted_seconds"] for m in modes}
    return {m: (median(took[m]), told[m], min(took[m]), max(took[m])) for m in modes}


def operators(args, model, name, output, where):
    """(measured, predicted) seconds per operator of a step with values stored."""
    more = ["--data", f"{name}={where}/x.npy", "--target", f"{where}/y.npy", "--steps", str(args.steps), "--no-shuffle",
            "--lr", "1e-9", "--profile", "-o", f"{where}/out.onnx"]
    kinds = collections.defaultdict(lambda: [0.0, 0.0])
    for row in predicted(args, model, output, where, "store", "train", more)["timeline"]:
        kinds[row["op"]][0] += row.get("seconds", 0)
        kinds[row["op"]][1] += row["predicted_seconds"]
    return kinds


def measure(args, where):
    rows, kinds = [], collections.defaultdict(lambda: [0.0, 0.0])
    jobs = []
    for title, make in MADE.items():
        folder = os.path.join(where, title.split()[0])
        os.mkdir(folder)
        dtype, dims, target = make(f"{folder}/model.onnx")
        random = np.random.default_rng(1)
        x = random.integers(0, 100, dims) if dtype == np.int64 else random.standard_normal(dims)
        np.save(f"{folder}/x.npy", x.astype(dtype))
        np.save(f"{folder}/y.npy", random.standard_normal(target).astype(np.float32))
        jobs.append((title, f"{folder}/model.onnx", "x", None, folder))
    for title, rows_of in SHARED.items():
        folder = os.path.join(where, title)
        os.mkdir(folder)
        jobs.append((f"{title}, {rows_of}", *shared(os.path.join(args.models, title), rows_of, folder), folder))
    for title, model, name, output, folder in jobs:
        row = {"title": title, **whole_steps(args, model, name, output, folder)}
        for op, (took, told) in operators(args, model, name, output, folder).items():
            kinds[op][0] += took
            kinds[op][1] += told
        rows.append(row)
        compare.say(" | ".join(cells(row)))
    return rows, kinds


def cells(row):
    out = [row["title"]]
    for memory in ("store", "recompute"):
        took, told, least, most = row[memory]
        out += [f"{1e3 * took:.2f} ({1e3 * least:.2f}-{1e3 * most:.2f})", f"{1e3 * told:.2f}", f"**{told / took:.2f}**"]
    told, took = (row["recompute"][i] / row["store"][i] for i in (1, 0))
    return out + [f"{took:.3f}", f"{told:.3f}"]


def text_of(args, rows, kinds):
    state = compare.output_of("git", "rev-parse", "--short", "HEAD")
    ratios = sorted(r[m][1] / r[m][0] for r in rows for m in ("store", "recompute"))
    over = [abs(r["recompute"][1] / r["store"][1] - r["recompute"][0] / r["store"][0]) for r in rows]
    whole = sum(k[0] for k in kinds.values())
    lines = ["# Predicted against measured times of a step", "",
             f"- processor: {compare.processor()}, {os.cpu_count()} cores; {args.threads} threads; load average "
             f"{os.getloadavg()[1]:.1f}", f"- date: {datetime.date.today()}", f"- commit: {state}",
             f"- command: `python3 bench/cost.py --threads {args.threads} --rounds {args.rounds} --steps {args.steps}`",
             "- method and reading: [README.md](../README.md)", "",
             f"Predicted / measured of {len(ratios)} steps: median {median(ratios):.2f}, from {ratios[0]:.2f} to {ratios[-1]:.2f}. "
             f"What recomputing adds to a step (the last two columns) is off by {median(over):.3f} of a plain step in the "
             f"median, {max(over):.3f} at most.", "",
             "| model, batch | store, CPU ms (rounds) | predicted | ratio | recompute, CPU ms (rounds) | predicted | ratio "
             "| recompute / store | predicted |", "|---|---:|---:|---:|---:|---:|---:|---:|---:|"]
    lines += ["| " + " | ".join(cells(r)) + " |" for r in rows]
    told = sum(k[1] for k in kinds.values())
    lines += ["", "By operator, all models with values stored: its share of the measured time of nodes, those of half a "
              "percent and more, and of the predicted.", "", "| operator | measured | predicted |", "|---|---:|---:|"]
    lines += [f"| {op} | {100 * k[0] / whole:.1f} % | {100 * k[1] / told:.1f} % |" for op, k in
              sorted(kinds.items(), key=lambda k: -k[1][0]) if k[0] >= 0.005 * whole]
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=os.path.join(HERE, "..", "..", "shared", "models"), metavar="DIR")
    parser.add_argument("--invonnx", default=os.path.join(HERE, "..", "build", "release", "invonnx"))
    parser.add_argument("--step", default=os.path.join(HERE, "..", "build", "release", "bench_step"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("-o", "--out", help="file for the tables")
    args = parser.parse_args()
    with open("/proc/cpuinfo") as f:
        if "avx512f" in f.read():  # as the program does for itself
            os.environ.setdefault("OPENBLAS_CORETYPE", "SkylakeX")
    with tempfile.TemporaryDirectory() as where:
        os.environ["XDG_CACHE_HOME"] = where  # measured now, on this machine as busy as it is now
        rows, kinds = measure(args, where)
    lines = text_of(args, rows, kinds)
    if args.out:
        with open(args.out, "w") as f:
            f.write("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
