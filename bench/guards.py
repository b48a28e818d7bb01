# SPDX-License-Identifier: Apache-2.0
"""What guards cost: their nodes' share of a step in mode invert, by --profile, on networks of usual extents that this script
makes. Needs a release build, onnx and numpy; the method is described in README.md.

    python3 bench/guards.py --invonnx build/release/invonnx [-o bench/results/guards.md]"""
import argparse
import datetime
import json
import os
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


# with the steps of a run
NETWORKS = {"RealNVP, 8 couplings, batch 512": (flow, 60), "RevNet-38, batch 100": (revnet, 4)}


def seconds(args, model, steps):
    """Of a step: of guards, of the rest."""
    done = subprocess.run([args.invonnx, "train", model + ".onnx", "--data", model + ".x.npy", "--target", model + ".y.npy",
                           "--loss", args.loss, "--batch", str(args.batch), "--steps", str(steps), "--lr", "1e-5",
                           "--memory", "invert", "--cost", "flops", "--threads", "1", "--profile", "--json", "-o",
                           model + ".out.onnx"], check=True, capture_output=True, text=True)
    nodes = json.loads(done.stdout)["timeline"]
    guards = sum(t.get("seconds", 0) for t in nodes if t.get("guard"))
    return guards, sum(t.get("seconds", 0) for t in nodes) - guards


def measure(args, name, folder):
    make, steps = NETWORKS[name]
    model, rng = os.path.join(folder, make.__name__), np.random.default_rng(0)
    args.batch, kind, x, y, args.loss = make(model + ".onnx")
    np.save(model + ".x.npy", rng.standard_normal(x).astype(np.float32))
    np.save(model + ".y.npy", rng.integers(0, 10, y) if kind == np.int64 else rng.standard_normal(y).astype(kind))
    took = [seconds(args, model, steps) for _ in range(args.rounds)]
    share = sorted(guards / rest for guards, rest in took)
    return (f"| {name} | {1e3 * median(rest for _, rest in took):.2f} | {1e3 * median(guards for guards, _ in took):.2f} | "
            f"{100 * median(share):.1f} % | {100 * share[0]:.1f} to {100 * share[-1]:.1f} % |")


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
        f"`python3 bench/guards.py`, {datetime.date.today()}, {compare.processor()}, one thread, {args.rounds} rounds. "
        "Milliseconds of a step in mode invert, by the times of its nodes, and the guards' share of what the rest takes.", "",
        "| network | the rest | guards | share | spread |", "| --- | --- | --- | --- | --- |", *rows, ""])
    if args.out:
        with open(args.out, "w") as f:
            f.write(text)
    print(text)


if __name__ == "__main__":
    sys.exit(main())
