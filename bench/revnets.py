# SPDX-License-Identifier: Apache-2.0
"""Planned and resident memory of the RevNets and ResNets of the MemCNN paper (van de Leemput et al., JOSS 4(39) 1576; the
networks are those of Gomez et al., arXiv 1707.04585) at its batch of 100 images of 32x32, and of RevNets of up to 1,000
couplings. Needs onnx and numpy; Linux for resident memory. README.md says how it is measured.

    python3 bench/revnets.py [-o bench/results/revnets.md]      the tables; 1 if an aim is missed
    python3 bench/revnets.py --write DIR                        the networks alone"""
import argparse
import collections
import datetime
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from statistics import median

import numpy as np

import compare
import cost
import rss

BATCH, CLASSES = 100, 10
MB = 1e6

# blocks per stage; channels of the stem and of the stages; whether blocks are bottlenecks, and reversible; then what the
# paper gives: parameters (table 3) and MB of activations.
Row = collections.namedtuple("Row", "blocks channels bottleneck reversible parameters activations")
PAPER = {
    "ResNet-32": Row((5, 5, 5), (16, 16, 32, 64), False, False, 466906, 238.6),
    "ResNet-110": Row((18, 18, 18), (16, 16, 32, 64), False, False, 1730714, 810.7),
    "ResNet-164": Row((18, 18, 18), (16, 16, 32, 64), True, False, 1704154, 2452.8),
    "RevNet-38": Row((3, 3, 3), (32, 32, 64, 112), False, True, 573994, 85.6),
    "RevNet-110": Row((9, 9, 9), (32, 32, 64, 128), False, True, 1854890, 85.7),
    "RevNet-164": Row((9, 9, 9), (32, 32, 64, 128), True, True, 1983786, 432.7),
}
COUPLINGS = (38, 110, 300, 1000)
LOOSE = 1e-3  # a drift at which no value has to be stored because errors of a thousand inverses add up


def branch(n, x, cin, planes, bottleneck, stride=1, activated=True):
    """A residual branch: batch norm, ReLU and convolution, two or three times, the first without the former two where its
    input comes activated. A bottleneck gives 4 * planes channels."""
    convs = ((cin, planes, 1, 1), (planes, planes, 3, stride), (planes, 4 * planes, 1, 1))
    if not bottleneck:
        convs = ((cin, planes, 3, stride), (planes, planes, 3, 1))
    for i, (a, b, k, s) in enumerate(convs):
        if i or not activated:
            x = n.op("Relu", n.norm(x, a))
        x = n.bare_conv(x, a, b, k, s)
    return x


def coupling_pair(n, x, width, planes, bottleneck, activated):
    """Two additive couplings of the halves of x's channels. (The very first has no batch norm before its convolutions,
    neither in the paper's code.)"""
    a, b = n.op("Split", x, n.constant([width // 2] * 2), axis=1, results=2)
    a = n.op("Add", a, branch(n, b, width // 2, planes // 2, bottleneck, activated=activated))
    b = n.op("Add", b, branch(n, a, width // 2, planes // 2, bottleneck, activated=activated))
    return n.op("Concat", a, b, axis=1)


def build(path, row):
    """Writes the network; its number of trained parameters."""
    n, width = cost.Network(), row.channels[0]
    x = n.op("Relu", n.conv("x", 3, width, 3))
    for stage, (blocks, planes) in enumerate(zip(row.blocks, row.channels[1:])):
        wide = planes * (4 if row.bottleneck else 1)
        for i in range(blocks):
            stride, first = 2 if stage and not i else 1, not stage and not i
            if stride == 1 and width == wide:
                if row.reversible:
                    x = coupling_pair(n, x, width, planes, row.bottleneck, first)
                else:
                    x = n.op("Add", branch(n, x, width, planes, row.bottleneck, 1, first), x)
            else:
                y = branch(n, x, width, planes, row.bottleneck, stride, first)
                x = n.op("Add", y, n.conv(x, width, wide, 1, stride))
            width = wide
    n.save(path, [3, 32, 32], n.head(n.op("Relu", n.norm(x, width)), width, CLASSES))
    running = {name for node in n.nodes if node.op_type == "BatchNormalization" for name in node.input[3:5]}
    return sum(int(np.prod(w.dims)) for w in n.weights if w.name not in running)


def of_couplings(count):
    """A RevNet-38 with `count` couplings, spread over its three stages."""
    pairs = count // 2
    third = pairs // 3  # and the first block of the second and of the third stage halves the extents: no coupling
    row = PAPER["RevNet-38"]
    return row._replace(blocks=(pairs - 2 * third, third + 1, third + 1), parameters=None, activations=None)


def run(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{shlex.join(command)}\n{done.stderr}")
    return done.stdout


def plan(args, path, mode, *more):
    began = time.monotonic()
    report = json.loads(run([args.invonnx, "plan", path, "--loss", "cross_entropy", "--batch", str(BATCH), "--cost", "flops",
                             "--threads", str(args.threads), "--memory", mode, "--json", *more]))
    return report, time.monotonic() - began


def train(args, path, folder, mode):
    """(peak resident bytes, peak that the device counted, median seconds of a step but the first)"""
    command = [args.invonnx, "train", path, "--data", f"{folder}/x.npy", "--target", f"{folder}/y.npy", "--loss",
               "cross_entropy", "--batch", str(BATCH), "--steps", str(args.steps), "--cost", "flops", "--memory", mode,
               "--threads", str(args.threads), "-o", f"{folder}/out.onnx", "--json"]
    with open(f"{folder}/report", "w+") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE)
        peak = rss.watch(child)
        if child.returncode:
            sys.exit(f"exit status {child.returncode}: {shlex.join(command)}\n{child.stderr.read().decode()}")
        out.seek(0)
        report = json.load(out)
    if report["peak_bytes"] > report["planned_peak_bytes"]:
        sys.exit(f"{report['peak_bytes']} bytes were counted, {report['planned_peak_bytes']} planned: {shlex.join(command)}")
    # One batch is the whole data set, so an epoch is a step.
    return peak, report["peak_bytes"], median(epoch["seconds"] for epoch in report["epochs"][1:])


def paper_rows(args, folder):
    rows, missed = [], []
    np.save(f"{folder}/x.npy", np.random.default_rng(0).standard_normal((BATCH, 3, 32, 32)).astype(np.float32))
    np.save(f"{folder}/y.npy", np.random.default_rng(1).integers(0, CLASSES, BATCH))
    for name, row in PAPER.items():
        path = f"{folder}/{name}.onnx"
        count = build(path, row)
        if count != row.parameters:
            missed.append(f"{name} has {count} parameters, {row.parameters} in the paper")
        for mode in ("invert", "auto") if row.reversible else ("store", "auto"):
            report, _ = plan(args, path, mode)
            resident, peak, seconds = train(args, path, folder, mode) if args.steps else (0, 0, 0)
            planned, active = report["planned_peak_bytes"], report["activation_peak_bytes"] / MB
            if peak > planned:
                missed.append(f"{name}, {mode}: the device counted {peak} bytes, {planned} were planned")
            if row.reversible and mode == "invert" and active > row.activations / 2:
                missed.append(f"{name}: {active:.1f} MB of activations, more than half of {row.activations}")
            store = report["store_peak_bytes"] / MB
            rows.append(f"| {name} | {mode} | {row.activations} | **{active:.1f}** | {active / row.activations:.2f} | "
                        f"{planned / MB:.1f} | {store:.1f} | +{100 * report['plan']['overhead']:.1f} % | {peak / MB:.1f} | "
                        f"{resident / MB:.0f} | {seconds:.2f} |")
            compare.say(rows[-1])
    return rows, missed


def depth_rows(args, folder):
    rows, least, most = [], np.inf, 0
    for count in COUPLINGS:
        path = f"{folder}/depth{count}.onnx"
        parameters = build(path, of_couplings(count))
        report, seconds = plan(args, path, "invert")
        active = report["activation_peak_bytes"]
        loose = plan(args, path, "invert", "--max-drift", str(LOOSE))[0]["activation_peak_bytes"]
        least, most = min(least, active), max(most, active)
        rows.append(f"| {count} | {parameters / 1e6:.2f} | **{active / MB:.3f}** | {loose / MB:.3f} | "
                    f"{report['store_peak_bytes'] / MB:.0f} | {report['planned_peak_bytes'] / MB:.1f} | "
                    f"+{100 * report['plan']['overhead']:.1f} % | {seconds:.1f} |")
        compare.say(rows[-1])
        os.remove(path)
    return rows, [] if most <= 1.01 * least else [f"activations grow by {100 * (most / least - 1):.1f} % with depth"]


def text_of(args, paper, depth, missed):
    command = f"python3 bench/revnets.py --threads {args.threads} --steps {args.steps} -o bench/results/revnets.md"
    return ["# RevNets and ResNets of the MemCNN paper", "",
            f"- processor: {compare.processor()}, {os.cpu_count()} cores, shared with other programs; {args.threads} threads",
            f"- date: {datetime.date.today()}", f"- commit: {compare.output_of('git', 'rev-parse', '--short', 'HEAD')}",
            f"- command: `{command}`", "- method and reading: [README.md](../README.md)", "",
            f"Batch {BATCH}, 32x32, MB of 10^6 bytes. Aims: RevNets in mode invert within half of the paper's activations, flat "
            "within 1 % over depth. " + ("**Missed: " + "; ".join(missed) + ".**" if missed else "**Both are met.**"), "",
            "| network | memory | paper, activations | planned activations | of the paper's | planned peak | peak of store "
            "| overhead | counted peak | resident | s per step |", "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
            *paper, "", "RevNet-38 with more couplings, mode invert:", "",
            f"| couplings | parameters, M | planned activations | with --max-drift {LOOSE} | peak of store | planned peak | overhead "
            "| seconds to plan |", "|---:|---:|---:|---:|---:|---:|---:|---:|", *depth]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--invonnx", default=os.path.join(cost.HERE, "..", "build", "release", "invonnx"))
    parser.add_argument("--write", metavar="DIR", help="only write the networks there")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3, help="real ones per network, at least 2; 0: plans alone")
    parser.add_argument("-o", "--out", help="file for the tables")
    args = parser.parse_args()
    if args.write:
        for name, row in {**PAPER, **{f"couplings-{n}": of_couplings(n) for n in COUPLINGS}}.items():
            build(os.path.join(args.write, name + ".onnx"), row)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        depth, deeper = depth_rows(args, folder)
        paper, missed = paper_rows(args, folder)
    lines = text_of(args, paper, depth, missed + deeper)
    if args.out:
        with open(args.out, "w") as f:
            f.write("\n".join(lines) + "\n")
    print("\n".join(lines))
    return int(bool(missed + deeper))


if __name__ == "__main__":
    sys.exit(main())
