# SPDX-License-Identifier: Apache-2.0
"""What a plain ResNet-50 costs within less memory, values stored or computed again, none inverted: the table of MONeT
(Shah et al., arXiv 2010.14501). Needs onnx and numpy. README.md says how it is measured.

    python3 bench/remat.py [-o bench/results/remat.md]      the table; 1 if an aim is missed
    python3 bench/remat.py --write FILE.onnx                the network alone"""
import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time

import compare
import cost

# Percent of the memory that storing everything takes, and of its time that MONeT adds there.
MONET = ((66, 3.2), (53, 5.6), (40, 9.3), (33, 12.0))


def build(path):
    """ResNet-50 with the stride in the middle of a bottleneck; batch norm takes the batch's statistics."""
    n, c = cost.Network(), 64
    x = n.op("MaxPool", n.op("Relu", n.conv("x", 3, c, 7, 2)), kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    for stage, blocks in enumerate((3, 4, 6, 3)):
        planes = 64 << stage
        for i in range(blocks):
            stride = 2 if stage and not i else 1
            y = n.op("Relu", n.conv(x, c, planes, 1))
            y = n.conv(n.op("Relu", n.conv(y, planes, planes, 3, stride)), planes, 4 * planes, 1)
            x = n.op("Relu", n.op("Add", y, x if i else n.conv(x, c, 4 * planes, 1, stride)))
            c = 4 * planes
    n.save(path, [3, 224, 224], n.head(x, c, 1000))


def plan(args, path, by, batch, *more):
    """The report, or what the refusal says; seconds."""
    began = time.monotonic()
    done = subprocess.run([args.invonnx, "plan", path, "--loss", "cross_entropy", "--batch", str(batch), "--cost", by,
                           "--threads", str(args.threads), "--json", *more], capture_output=True, text=True)
    if done.returncode:
        return None, done.stderr.strip().splitlines()[0]
    return json.loads(done.stdout), time.monotonic() - began


def rows_of(args, path, by, batch):
    rows, missed = [], []
    store, _ = plan(args, path, by, batch, "--memory", "store")
    if store is None:
        sys.exit("the network cannot be planned with everything stored")
    peak = store["planned_peak_bytes"]
    for percent, monet in MONET:
        report, took = plan(args, path, by, batch, "--memory", "recompute", "--budget", str(peak * percent // 100))
        head = f"| {batch} | {by} | {percent} | {monet} % |"
        if report is None:
            missed.append(f"batch {batch}, {by}: {percent} % is refused")
            rows.append(f"{head} {took} | | | | |")
        else:
            over, bound, gap = (100 * report["plan"][k] for k in ("overhead", "bound", "gap"))
            if over > monet:
                missed.append(f"batch {batch}, {by}: +{over:.2f} % at {percent} % of memory, not {monet} %")
            rows.append(f"{head} **+{over:.2f} %** | +{bound:.2f} % | {gap:.2f} % | "
                        f"{100 * report['planned_peak_bytes'] / peak:.1f} | {took:.1f} |")
        compare.say(rows[-1])
    parts = store["classes"]
    facts = (f"| {batch} | {peak / 1e6:.1f} | " +
             " | ".join(f"{parts[k] / 1e6:.1f}" for k in ("activations", "parameters", "gradients", "workspace")) + " |")
    return rows, missed, facts


def text_of(args, rows, facts, missed):
    batches = " ".join(map(str, args.batch))
    return ["# ResNet-50 within less memory, stored and recomputed", "",
            f"- processor: {compare.processor()}, {os.cpu_count()} cores, shared with other programs; {args.threads} threads",
            f"- date: {datetime.date.today()}", f"- commit: {compare.output_of('git', 'rev-parse', '--short', 'HEAD')}",
            f"- command: `python3 bench/remat.py --batch {batches} --cost {' '.join(args.cost)} --threads {args.threads} "
            "-o bench/results/remat.md`", "- method and reading: [README.md](../README.md)", "",
            "The aim is to add no more time than MONeT. " + ("**Missed: " + "; ".join(missed) + ".**" if missed else
                                                            "**It is met.**"), "",
            "| batch | cost by | budget, % of store | MONeT adds | plan adds | bound | gap | peak, % of store | s to plan |",
            "|---:|---|---:|---:|---:|---:|---:|---:|---:|", *rows, "",
            "Peak with everything stored, and what each class has of it, MB:", "",
            "| batch | peak | activations | parameters | gradients | workspace |", "|---:|---:|---:|---:|---:|---:|", *facts]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--invonnx", default=os.path.join(cost.HERE, "..", "build", "release", "invonnx"))
    parser.add_argument("--write", metavar="FILE", help="only write the network there")
    parser.add_argument("--batch", type=int, nargs="+", default=[16, 184], help="184 is MONeT's")
    parser.add_argument("--cost", nargs="+", default=["flops", "time"], choices=["flops", "time"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("-o", "--out", help="file for the table")
    args = parser.parse_args()
    if args.write:
        build(args.write)
        return 0
    rows, facts, missed = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "resnet50.onnx")
        build(path)
        for batch in args.batch:
            for by in args.cost:
                more, bad, fact = rows_of(args, path, by, batch)
                rows, missed = rows + more, missed + bad
            facts.append(fact)
    lines = text_of(args, rows, facts, missed)
    if args.out:
        with open(args.out, "w") as f:
            f.write("\n".join(lines) + "\n")
    print("\n".join(lines))
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
