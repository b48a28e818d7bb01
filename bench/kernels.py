# SPDX-License-Identifier: Apache-2.0
"""How fast kernels are: matrix products beside those of OpenBLAS and oneDNN on one thread, and the share of the
roofline that each operator of a training step reaches. Linux.

    cmake --preset release && cmake --build --preset release
    python3 bench/kernels.py [DIR NETWORK ...]                                prints the tables
    python3 bench/kernels.py [DIR NETWORK ...] -o bench/results/kernels.md    writes them; what stands in the file from
                                                                              the heading "What was measured once" on
                                                                              is kept
DIR has the networks' files, as bench/models.py makes them."""
import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile

import compare

KEPT = "## What was measured once"
LEAST_SHARE = 0.01  # of a step, for an operator to get a row


def lines_of(*command, **more):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, **more)
    if done.returncode:
        raise SystemExit(f"kernels: {command[0]}: {(done.stderr.strip().splitlines() or ['no message'])[-1][:300]}")
    return done.stdout.splitlines()


def products(args):
    env = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive")
    rows = [json.loads(x) for x in lines_of(os.path.join(args.build, "bench_products"), args.rounds, env=env)]
    others = [n for n in ("openblas", "onednn") if n in rows[0]]
    names = {"openblas": "OpenBLAS", "onednn": "oneDNN"}
    out = ["## Products", "", "GFLOP/s of the quickest of the rounds by processor time, in which the contestants take turns; "
           "x W, the gradient of x and that of W.", "",
           "| from | m x n x k | turned | ours | " + " | ".join(names[n] for n in others) + " | ours / the best other |",
           "|---|---|---|---:|" + "---:|" * len(others) + "---:|"]
    for r in rows:
        cells = [r["from"], f"{r['m']} x {r['n']} x {r['k']}", r["turned"], f"{r['ours']:.0f}",
                 *(f"{r[n]:.0f}" for n in others), f"{r['ours'] / max(r[n] for n in others):.2f}"]
        out.append("| " + " | ".join(cells) + " |")
    return out + [""]


def operators(args, network):
    stem = os.path.join(args.dir, network)
    with open(stem + ".json") as f:
        known = json.load(f)
    with tempfile.TemporaryDirectory() as folder:
        text = lines_of(os.path.join(args.build, "invonnx"), "train", stem + ".onnx", "--data", stem + ".x.npy", "--target",
                        stem + ".target.npy", "--batch", known["batch"], "--steps", args.steps, "--loss", "cross_entropy",
                        "--class-axis", known["class_axis"], "--optimizer", known["optimizer"], "--memory", "store",
                        "--threads", args.threads, "--profile", "--json", "-o", os.path.join(folder, "out.onnx"))
    kinds, whole = {}, 0
    for node in json.loads("\n".join(text))["timeline"]:
        kind = kinds.setdefault((node["op"], node["phase"]), [0, 0, 0])
        for i, more in enumerate((1, node.get("seconds", 0), node.get("least_seconds", 0))):
            kind[i] += more
        whole += node.get("seconds", 0)
    out = [f"### {network}", "", "| operator | phase | nodes | ms | % of the step | % of the roofline |", "|---|---|---:|---:|---:|---:|"]
    for (op, phase), (n, took, least) in sorted(kinds.items(), key=lambda x: -x[1][1]):
        if took >= LEAST_SHARE * whole:
            out.append(f"| {op} | {phase} | {n} | {1e3 * took:.1f} | {100 * took / whole:.1f} | {100 * least / took:.0f} |")
    return out + [""]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", nargs="?", help="folder with the networks' files")
    parser.add_argument("networks", nargs="*", help="whose operators are timed")
    parser.add_argument("--build", default=os.path.join(compare.ROOT, "build", "release"), help="folder of a release build")
    parser.add_argument("--rounds", type=int, default=7, help="measurements of each product")
    parser.add_argument("--steps", type=int, default=6, help="training steps that are timed")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-o", "--out", help="file for the tables")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    out = products(args)
    if args.networks:
        out += ["## Operators", "", f"Of a training step (store) by `--profile`, {args.threads} threads, wall time: on a busy machine too "
                "much. The roofline: arithmetic at the measured pace of products, bytes at those of cache and memory; above 100 where a node touches less than its operands have.", ""]
    for network in args.networks:
        out += operators(args, network)
    state = compare.output_of("git", "rev-parse", "--short", "HEAD")
    words = " ".join(["python3 bench/kernels.py", *(["DIR", *args.networks] if args.dir else [])])
    head = ["# Kernels", "", f"- processor: {compare.processor()}, {os.cpu_count()} cores; load {load:.1f} to {os.getloadavg()[0]:.1f}",
            f"- date: {datetime.date.today()}", f"- commit: {state}", f"- command: `{words}`", ""]
    text = "\n".join(head + out + (compare.kept(args.out, KEPT) if args.out else [])).rstrip("\n") + "\n"
    if args.out:
        with open(args.out, "w") as f:
            f.write(text)
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
