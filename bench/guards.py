# SPDX-License-Identifier: Apache-2.0
"""What guards cost: processor time of a step in mode invert with them and without, in turns, on networks of usual extents
that this script makes. Needs a release build, onnx and numpy; the method is described in README.md.

    python3 bench/guards.py --invonnx build/release/invonnx [-o bench/results/guards.md]"""
import argparse
import datetime
import os
import resource
import subprocess
import sys
import tempfile
from statistics import median

import numpy as np

import compare
import cost
import revnets

FLOW = (512, 64, 256, 8)  # rows, features of a half, hidden units, couplings


def flow(path):
    """Affine couplings with scales exp(tanh(...)), by two networks of one hidden layer each."""
    rows, half, hidden, blocks = FLOW
    n = cost.Network()
    a, b = n.op("Split", "x", n.constant([half] * 2), axis=1, results=2)
    for _ in range(blocks):
        s, t = (n.linear(n.op("Relu", n.linear(a, half, hidden)), hidden, half) for _ in range(2))
        a, b = n.op("Add", n.op("Mul", b, n.op("Exp", n.op("Tanh", s))), t), a
    n.save(path, [2 * half], n.op("Concat", a, b, axis=1))
    return rows, np.float32, (rows, 2 * half), (rows, 2 * half), "mse"


def revnet(path):
    revnets.build(path, revnets.PAPER["RevNet-38"])
    return revnets.BATCH, np.int64, (revnets.BATCH, 3, 32, 32), (revnets.BATCH,), "cross_entropy"


# steps of a short and of a long run: what is measured is the difference
NETWORKS = {"RealNVP, 8 couplings, batch 512": (flow, 20, 120), "RevNet-38, batch 100": (revnet, 1, 4)}


def seconds(args, model, steps, guard):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([args.invonnx, "train", model + ".onnx", "--data", model + ".x.npy", "--target", model + ".y.npy",
                    "--loss", args.loss, "--batch", str(args.batch), "--steps", str(steps), "--lr", "1e-5", "--memory",
                    "invert", "--guard", guard, "--cost", "flops", "--threads", "1", "-q", "-o", model + ".out.onnx"],
                   check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(args, name, folder):
    make, few, many = NETWORKS[name]
    model, rng = os.path.join(folder, make.__name__), np.random.default_rng(0)
    args.batch, kind, x, y, args.loss = make(model + ".onnx")
    np.save(model + ".x.npy", rng.standard_normal(x).astype(np.float32))
    np.save(model + ".y.npy", rng.integers(0, 10, y) if kind == np.int64 else rng.standard_normal(y).astype(kind))
    took = {"on": [], "off": []}
    for _ in range(args.rounds):
        for guard, list_ in took.items():
            list_.append((seconds(args, model, many, guard) - seconds(args, model, few, guard)) / (many - few))
    extra = sorted(a / b - 1 for a, b in zip(took["on"], took["off"]))
    return (f"| {name} | {1e3 * median(took['off']):.2f} | {1e3 * median(took['on']):.2f} | {100 * median(extra):+.1f} % | "
            f"{100 * extra[0]:+.1f} to {100 * extra[-1]:+.1f} % |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--invonnx", default="build/release/invonnx")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("-o", "--out")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(args, name, folder) for name in NETWORKS]
    text = "\n".join([
        "# What guards cost", "",
        f"`python3 bench/guards.py`, {datetime.date.today()}, {compare.processor()}, one thread, {args.rounds} rounds. Processor "
        "time of a step in mode invert, in milliseconds; added is the median over rounds, each with and without in turn.", "",
        "| network | without | with | added | spread |", "| --- | --- | --- | --- | --- |", *rows, ""])
    if args.out:
        with open(args.out, "w") as f:
            f.write(text)
    print(text)


if __name__ == "__main__":
    sys.exit(main())
