# SPDX-License-Identifier: Apache-2.0
"""How near predicted times of a step come to measured ones: by rates that were measured once, and by what the first steps of a
run correct. README.md says how it is measured.

    python3 bench/cost.py [-o bench/results/cost.md]                        what needs no PyTorch
    python3 bench/cost.py --networks DIR --environments ENV [-o ...]        and the networks of compare.py and models.py

DIR gets the networks; what is there already is taken, so a second time ENV is not wanted."""
import argparse
import datetime
import json
import os
import tempfile
from statistics import median

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import compare
import models
import plans
from peers import contestant
from peers.report import spread

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



class Job:
    """A model with a batch, and what bench_step is told of its loss."""

    def __init__(self, title, model, inputs, target, loss, optimizer="sgd"):
        self.title, self.model, self.inputs, self.target, self.loss, self.optimizer = title, model, inputs, target, loss, optimizer

    def words(self):
        name, path = self.inputs.split("=")
        target = ["target=" + bare(self.target)] if self.target else []
        return [self.model, f"input={name}:" + bare(path), *target, f"optimizer={self.optimizer}",
                *(f"{k}={v}" for k, v in self.loss.items())]


def quartile(seconds):
    """The lower one, which is what a session takes of the steps that it times."""
    return sorted(seconds)[len(seconds) // 4]


def one_round(process):
    """One session corrects the rates; the next one, planned by these, makes steps in turn with one of the first plan."""
    answer = process.ask("correct")
    first, again = quartile(answer["first"]), quartile(answer["again"])
    corrected = answer["report"]["predicted_seconds"]
    return {"rates": answer["rated"] / answer["timed"], "first": first, "again": again, "corrected": corrected / again,
            "timed": answer["timed"], "should": corrected / answer["timed"],
            "does": median(b / a for a, b in zip(answer["first"], answer["again"]))}


def measure(args, env, job, memory):
    """The rounds of a row. Rates are measured anew for each: the cache has nothing of other models, and nothing of what the
    machine was like before."""
    with tempfile.TemporaryDirectory() as cache:
        process = contestant.Process([args.step, *job.words(), f"memory={memory}", f"threads={args.threads}", "lr=1e-9"],
                                     dict(env, XDG_CACHE_HOME=cache), 3600)
        try:
            process.answer()
            rounds = [one_round(process) for _ in range(args.rounds)]
        finally:
            process.stop()
    return {"title": job.title, "memory": memory, "rounds": rounds}


def made_jobs(where):
    for title, make in MADE.items():
        folder = os.path.join(where, title.split()[0])
        os.mkdir(folder)
        dtype, dims, target = make(f"{folder}/model.onnx")
        random = np.random.default_rng(1)
        x = random.integers(0, 100, dims) if dtype == np.int64 else random.standard_normal(dims)
        np.save(f"{folder}/x.npy", x.astype(dtype))
        np.save(f"{folder}/y.npy", random.standard_normal(target).astype(np.float32))
        yield Job(title, f"{folder}/model.onnx", f"x={folder}/x.npy", f"{folder}/y.npy", {"loss": "mse"})


def shared_jobs(args, where):
    for title, rows in SHARED.items():
        folder = os.path.join(where, title)
        os.mkdir(folder)
        model, name, output = shared(os.path.join(args.models, title), rows, folder)
        yield Job(f"{title}, {rows}", model, f"{name}={folder}/x.npy", f"{folder}/y.npy", {"loss": "mse", "output": output})


def harness_jobs(args):
    """The workloads of the peers' harness."""
    for name, depth in plans.HARNESS.items():
        folder = os.path.join(args.networks, f"{name}-{depth}")
        if not os.path.exists(f"{folder}/case.json"):
            gain = ["--gain", "0.3"] if name == "W4" else []
            contestant.output_of([args.python, os.path.join(HERE, "peers", "export.py"), "--peers", args.peers, "--workload",
                                  name, "--depth", depth, "--out", folder, *gain], dict(os.environ), 3600)
        with open(f"{folder}/case.json") as f:
            case = json.load(f)
        target = f"{folder}/target.npy" if case["target"] else None
        yield Job(f"{name}, {depth} blocks", f"{folder}/model.onnx", f"x={folder}/x.npy", target, case["told"])


def network_jobs(args):
    """The networks of models.py, one batch of each."""
    for name in models.MODELS:
        stem = os.path.join(args.networks, name)
        if not os.path.exists(stem + ".json"):
            contestant.output_of([args.python, os.path.join(HERE, "torch_step.py"), "export", name, args.networks, "--steps", 1,
                                  "--threads", args.threads], dict(os.environ), 3600)
        with open(stem + ".json") as f:
            known = json.load(f)
        for part in ("x", "target"):
            np.save(f"{stem}.first.{part}.npy", np.load(f"{stem}.{part}.npy", mmap_mode="r")[:known["batch"]])
        yield Job(f"{name}, {known['batch']}", stem + ".onnx", f"{known['input'].split(':')[0]}={stem}.first.x.npy",
                  f"{stem}.first.target.npy", {"loss": "cross_entropy", "axis": known["class_axis"]}, known["optimizer"])


def of_rounds(row, key):
    return [r[key] for r in row["rounds"]]


def off(row):
    """Of the rounds: the plan's step by the prediction over what it takes, both in steps of the first plan."""
    return [r["should"] / r["does"] for r in row["rounds"]]


def cells(row):
    first, again = ([1e3 * s for s in of_rounds(row, key)] for key in ("first", "again"))
    return [row["title"], row["memory"], spread(first, ".1f"), f"{median(of_rounds(row, 'rates')):.2f}", spread(again, ".1f"),
            spread(of_rounds(row, "corrected"), ".2f"),
            f"{median(of_rounds(row, 'should')):.3f}", f"{median(of_rounds(row, 'does')):.3f}", f"**{median(off(row)):.2f}**"]


def said_of(ratios):
    ratios = sorted(ratios)
    return (f"median {median(ratios):.2f}, from {ratios[0]:.2f} to {ratios[-1]:.2f}, {sum(abs(x - 1) <= 0.05 for x in ratios)} "
            f"of {len(ratios)} within 5 %")


def text_of(args, rows):
    state = compare.output_of("git", "rev-parse", "--short", "HEAD")
    clock = "CPU" if args.threads == 1 else "wall"
    rates, corrected = ([median(of_rounds(r, key)) for r in rows] for key in ("rates", "corrected"))
    same = [r["first"] / r["timed"] for row in rows for r in row["rounds"]]
    lines = ["# Predicted against measured times of a step", "",
             f"- processor: {compare.processor()}, {os.cpu_count()} cores; {args.threads} threads; load average "
             f"{os.getloadavg()[1]:.1f}", f"- date: {datetime.date.today()}", f"- commit: {state}",
             f"- command: `python3 bench/cost.py{' --networks DIR' if args.networks else ''} --what {' '.join(args.what)} --modes "
             f"{' '.join(args.modes)} --threads {args.threads} --rounds {args.rounds}`",
             "- method and reading: [README.md](../README.md)", "", "Predicted over measured seconds of a step:", "",
             f"- by rates alone: {said_of(rates)};", f"- corrected by a run: {said_of(corrected)};",
             f"- the same where both are in steps of the first plan, made by turns: {said_of([median(off(r)) for r in rows])}.", "",
             f"How steady the machine was: the same plan in two sessions one after the other, {said_of(same)}.", "",
             f"| model, batch | mode | first plan, {clock} ms (rounds) | rates / that | planned again, {clock} ms (rounds) | corrected "
             "/ that (rounds) | again / first, predicted | measured | predicted / measured |",
             "|---|---|---:|---:|---:|---:|---:|---:|---:|"]
    return lines + ["| " + " | ".join(cells(r)) + " |" for r in rows]


def jobs_of(args, where):
    if "made" in args.what:
        yield from made_jobs(where)
    if "shared" in args.what:
        yield from shared_jobs(args, where)
    if "harness" in args.what:
        yield from harness_jobs(args)
    if "networks" in args.what:
        yield from network_jobs(args)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=os.path.join(HERE, "..", "..", "shared", "models"), metavar="DIR")
    parser.add_argument("--networks", metavar="DIR", help="where the harness's workloads and the networks of models.py are")
    parser.add_argument("--environments", metavar="DIR", help="what compare.py --setup has made, to make those that are not there")
    parser.add_argument("--peers", default=os.path.join(compare.ROOT, "..", "shared", "peers"), help="folder of the harness")
    parser.add_argument("--what", nargs="+", help="of made, shared, harness, networks; default: all, without --networks the "
                        "first two")
    parser.add_argument("--modes", nargs="+", default=["store", "auto"])
    parser.add_argument("--step", default=os.path.join(HERE, "..", "build", "release", "bench_step"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--out", help="file for the table")
    args = parser.parse_args()
    args.what = args.what or ["made", "shared"] + (["harness", "networks"] if args.networks else [])
    args.python = os.path.join(args.environments or "", "torch", "bin", "python")
    env, rows = contestant.environment(args.threads), []
    for name in [n for n in env if n.startswith("MALLOC_")]:  # as users have it
        del env[name]
    with tempfile.TemporaryDirectory() as where:
        for job in jobs_of(args, where):
            for memory in args.modes:
                rows.append(measure(args, env, job, memory))
                compare.say(" | ".join(cells(rows[-1])))
    lines = text_of(args, rows)
    if args.out:
        with open(args.out, "w") as f:
            f.write("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
