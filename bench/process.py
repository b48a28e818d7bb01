# SPDX-License-Identifier: Apache-2.0
"""What a training process takes against what it promises: ResNet-50, GPT-2 small and a RevNet, made here with random weights.
Needs onnx and numpy; Linux. README.md says how it is measured.

    python3 bench/process.py [-o bench/results/process.md]      the table; 1 if an aim is missed"""
import argparse
import collections
import datetime
import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading

import numpy as np

import compare
import cost
import remat
import revnets

MIB = 2**20
AIM = 0.03
WORDS, LENGTH = 50257, 128

# How it is made, shape and type of a batch, shape of its labels and their number, optimizer, further options.
Run = collections.namedtuple("Run", "build batch words labels classes options")
RUNS = {
    "ResNet-50, 224x224": Run(remat.build, (8, 3, 224, 224), 0, (8,), 1000, ("--optimizer", "momentum")),
    "GPT-2 small, 128 words": Run(lambda path: cost.gpt(path, 12, 768, 12, LENGTH, WORDS, tied=True), (2, LENGTH), WORDS,
                                  (2, LENGTH), WORDS, ("--optimizer", "adam", "--class-axis", "2")),
    "RevNet-164, 32x32": Run(lambda path: revnets.build(path, revnets.PAPER["RevNet-164"]), (100, 3, 32, 32), 0, (100,), 10,
                             ("--optimizer", "momentum")),
}


class Watch(threading.Thread):
    """The largest values of /proc/PID/status until it is told to stop, by name, in bytes."""

    def __init__(self, pid):
        super().__init__()
        self.path, self.most, self.stop = f"/proc/{pid}/status", collections.Counter(), threading.Event()
        self.start()

    def run(self):
        while not self.stop.wait(0.002):
            try:
                with open(self.path) as f:
                    for line in f:
                        if line.startswith(("RssAnon", "RssFile", "VmHWM")):
                            name, kib = line.split()[:2]
                            self.most[name[:-1]] = max(self.most[name[:-1]], 1024 * int(kib))
            except OSError:  # it has ended
                return


def train(args, run, folder, memory):
    """(the program's report, what was seen until the weights were saved)"""
    rows = run.batch[0]
    command = [args.invonnx, "train", f"{folder}/model.onnx", "--data", f"{folder}/x.npy", "--target", f"{folder}/y.npy",
               "--loss", "cross_entropy", "--batch", str(rows), "--steps", str(args.steps), "--memory", memory,
               "--threads", str(args.threads), "-o", f"{folder}/out.onnx", "--lr", "1e-4", "--json", *run.options]
    with open(f"{folder}/report", "w+") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.PIPE, text=True)
        watch, said = Watch(child.pid), []
        for line in child.stderr:
            said.append(line)
            if "weights saved" in line:  # what follows is the report for this script
                watch.stop.set()
        watch.stop.set()
        if child.wait():
            sys.exit(f"exit status {child.returncode}: {shlex.join(command)}\n{''.join(said)}")
        out.seek(0)
        return json.load(out), watch.most


def measure(args, name, folder):
    run, random = RUNS[name], np.random.default_rng(0)
    run.build(f"{folder}/model.onnx")
    dims = (2 * run.batch[0], *run.batch[1:])
    np.save(f"{folder}/x.npy", random.integers(0, run.words, dims) if run.words else
            random.standard_normal(dims).astype(np.float32))
    np.save(f"{folder}/y.npy", random.integers(0, run.classes, (2 * run.labels[0], *run.labels[1:])))
    rows, missed = [], []
    for memory in ("store", "auto"):
        os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(dir=folder)  # rates of operators are measured by this process, too
        report, most = train(args, run, folder, memory)
        promised, seen = report["process_bytes"], most["RssAnon"]
        if abs(seen / promised - 1) > AIM:
            missed.append(f"{name}, {memory}: {100 * (seen / promised - 1):+.1f} %")
        cells = [report["planned_peak_bytes"], report["beside_bytes"], promised, seen, report["private_bytes"]]
        rows.append(f"| {name}, batch {run.batch[0]} | {memory} | " + " | ".join(f"{c / MIB:.1f}" for c in cells) +
                    f" | **{100 * (seen / promised - 1):+.2f} %** | {most['VmHWM'] / MIB:.1f} | {most['RssFile'] / MIB:.1f} |")
        compare.say(rows[-1])
    return rows, missed


def text_of(args, rows, missed):
    command = f"python3 bench/process.py --threads {args.threads} --steps {args.steps} -o bench/results/process.md"
    return ["# What a process takes", "",
            f"- processor: {compare.processor()}, {os.cpu_count()} cores; {args.threads} threads",
            f"- date: {datetime.date.today()}", f"- commit: {compare.output_of('git', 'rev-parse', '--short', 'HEAD')}",
            f"- command: `{command}`", "- method and reading: [README.md](../README.md)", "",
            f"MiB. The aim is private memory within {100 * AIM:.0f} % of what is promised. " +
            ("**Missed: " + "; ".join(missed) + ".**" if missed else "**It is met.**"), "",
            "| network | memory | planned peak | beside it | promised | private, seen from outside | as the program tells "
            "| off | resident | mapped files |", "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|", *rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--invonnx", default=os.path.join(cost.HERE, "..", "build", "release", "invonnx"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("-o", "--out", help="file for the table")
    args = parser.parse_args()
    rows, missed = [], []
    for name in RUNS:
        with tempfile.TemporaryDirectory() as folder:
            more, wrong = measure(args, name, folder)
        rows += more
        missed += wrong
    lines = text_of(args, rows, missed)
    if args.out:
        with open(args.out, "w") as f:
            f.write("\n".join(lines) + "\n")
    print("\n".join(lines))
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
