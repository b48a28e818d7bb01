# SPDX-License-Identifier: Apache-2.0
"""One training by 1, 2 and 4 processes with the same rows in a step, beside PyTorch's DistributedDataParallel (gloo) on as many
processes: memory of a rank, processor time and wall time of a step, the share of the exchange that is hidden. Needs
onnx, numpy and mpirun; Linux. README.md says how it is measured.

    python3 bench/ranks.py --python PYTHON_WITH_TORCH [-o bench/results/ranks.md]"""
import argparse
import datetime
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WIDTH, LAYERS, ROWS = 1024, 6, 64
FEW, MANY = 4, 16  # steps; what starting takes is the same in both, and goes out
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,vader", "--mca",
          "btl_vader_single_copy_mechanism", "none"]
MIB = 2**20


def build(folder):
    """LAYERS matrices of WIDTH x WIDTH with Tanh between, and rows to train them on."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array((rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32), f"w{i}")
               for i in range(LAYERS)]
    nodes, last = [], "x"
    for i in range(LAYERS):
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"h{i}"]))
        last = f"h{i}"
        if i < LAYERS - 1:
            nodes.append(helper.make_node("Tanh", [last], [f"a{i}"]))
            last = f"a{i}"
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", WIDTH]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              os.path.join(folder, "model.onnx"))
    for name in ("x.npy", "y.npy"):
        np.save(os.path.join(folder, name), rng.standard_normal((ROWS * MANY, WIDTH)).astype(np.float32))


def timed(start):
    """Wall and processor seconds of a call, children included, and what it gave."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    result = start()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, used, result


def ours(args, folder, ranks, steps):
    words = [args.invonnx, "train", "model.onnx", "--data", "x.npy", "--target", "y.npy", "--loss", "mse", "--optimizer",
             "momentum", "--batch", ROWS // ranks, "--steps", steps, "--threads", max(1, args.threads // ranks), "--memory",
             "store", "--deterministic", "--json", "-q", "-o", "out.onnx"]
    start = [*MPIRUN, "-n", str(ranks)] if ranks > 1 else []
    done = subprocess.run([*start, *map(str, words)], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    report = json.loads(done.stdout[done.stdout.index("{"):done.stdout.rindex("}") + 1])
    return {"private": report["private_bytes"], "planned": report["planned_peak_bytes"], "ranks": report["ranks"],
            "seconds": report["seconds"]}


def theirs(args, folder, ranks, steps):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    words = [args.python, os.path.join(ROOT, "bench", "ddp_step.py"), folder, ranks, ROWS // ranks, steps,
             max(1, args.threads // ranks)]
    processes = []
    for rank in range(ranks):
        env = {**os.environ, "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        processes.append(subprocess.Popen([*map(str, words)], env=env, stdout=subprocess.PIPE, text=True))
    out = [p.communicate()[0] for p in processes]
    if any(p.returncode for p in processes):
        sys.exit("ddp_step.py failed")
    return json.loads(out[0].splitlines()[-1])


def measure(args, folder, start, ranks):
    """Of the quickest round: seconds of a step on the wall and of processors, and what the longer call gave."""
    best = None
    for _ in range(args.rounds):
        few, many = (timed(lambda n=n: start(args, folder, ranks, n)) for n in (FEW, MANY))
        wall = (many[2]["seconds"] - few[2]["seconds"]) / (MANY - FEW)
        found = (wall, (many[1] - few[1]) / (MANY - FEW), many[2])
        if best is None or found[1] < best[1]:
            best = found
    return best


def table(args, folder):
    lines = ["| processes | | memory of a rank, MiB | planned, MiB | processor s / step | wall s / step | exchange, predicted s / step "
             "| under way | hidden |", "|---:|---|---:|---:|---:|---:|---:|---:|---:|"]
    for ranks in (1, 2, 4):
        wall, used, r = measure(args, folder, ours, ranks)
        exchange = r["ranks"] or {}
        under = exchange.get("under_way_seconds", 0) / MANY
        hidden = 1 - exchange["waited_seconds"] / exchange["under_way_seconds"] if exchange else 0
        lines.append(f"| {ranks} | invonnx | {r['private'] / MIB:.1f} | {r['planned'] / MIB:.1f} | {used:.4f} | {wall:.4f} | "
                     + (f"{exchange['predicted_seconds']:.4f} | {under:.4f} | {100 * hidden:.0f} % |" if exchange else "- | - | - |"))
        if args.python:
            wall, used, r = measure(args, folder, theirs, ranks)
            lines.append(f"| {ranks} | PyTorch DDP | {r['private'] / MIB:.1f} | - | {used:.4f} | {wall:.4f} | - | - | - |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--invonnx", default=os.path.join(ROOT, "build", "release", "invonnx"))
    parser.add_argument("--python", help="one that has PyTorch; without, nothing is compared")
    parser.add_argument("--threads", type=int, default=2, help="of all processes together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--out")
    args = parser.parse_args()
    args.invonnx = os.path.abspath(args.invonnx)
    with tempfile.TemporaryDirectory() as folder:
        build(folder)
        lines = table(args, folder)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    head = ["# Several processes", "", f"- date: {datetime.date.today()}; commit: {commit}; load when it ended: "
            f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", f"- {LAYERS} products of {WIDTH} x {WIDTH} with Tanh between, "
            f"{ROWS} rows in a step of all processes, momentum, {args.threads} threads in all (one at least in each process), the "
            f"round with the least processor time of {args.rounds}", "- method and reading: [README.md](../README.md)", ""]
    text = "\n".join(head + lines) + "\n"
    if args.out:
        with open(args.out, "w", encoding="utf-8") as f:
            f.write(text)
    print(text)


if __name__ == "__main__":
    main()
