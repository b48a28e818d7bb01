# SPDX-License-Identifier: Apache-2.0
"""How long plans take, and what they come to: processor time of `invonnx plan`, the whole program, beside that of an
earlier one if asked. The networks are those of models.py, remat.py, revnets.py and the peers' harness. README.md says
how it is measured.

    python3 bench/plans.py DIR --environments ENV --peers HARNESS                 prints the table
    python3 bench/plans.py DIR ... --before PROGRAM -o bench/results/plans.md     writes it, beside PROGRAM's
DIR gets the networks; what is there already is taken, so a second time neither ENV nor HARNESS is wanted."""
import argparse
import datetime
import json
import os
import resource
import subprocess
import sys

import compare
import remat
import revnets
from peers import contestant

HERE = os.path.dirname(os.path.abspath(__file__))
NETWORKS = {"resnet18": 8, "mobilenet_v3_large": 8, "convnext_tiny": 4, "vit_ti_16": 8, "densenet121": 4}  # rows of a batch
HARNESS = {"W1": 16, "W2": 64, "W3": 16, "W4": 32}  # blocks
REVNETS = ("ResNet-164", "RevNet-110", "couplings-110", "couplings-1000")
LOSS = ["--loss", "cross_entropy"]
TOLD = {"W3": ["--class-axis", "2"], "W4": ["--loss", "nll", "--logdet", "logdet"]}


def made(args):
    """(name, words for the program) of each network; made now if it is not there."""
    os.makedirs(args.dir, exist_ok=True)
    python = os.path.join(args.environments or "", "torch", "bin", "python")

    def path(name, make):
        file = os.path.join(args.dir, name)
        if not os.path.exists(file):
            make(file)
        return file

    for name, batch in NETWORKS.items():
        yield name, [path(name + ".onnx", lambda _, n=name: contestant.output_of(
            [python, os.path.join(HERE, "torch_step.py"), "export", n, args.dir, "--steps", "1"], dict(os.environ), 3600)),
                     *LOSS, "--batch", str(batch)]
    yield "resnet50", [path("resnet50.onnx", remat.build), *LOSS, "--batch", "16"]
    for name, depth in HARNESS.items():
        folder = os.path.join(args.dir, f"{name}-{depth}")
        model = path(os.path.join(folder, "model.onnx"), lambda _, n=name, d=depth, f=folder: contestant.output_of(
            [python, os.path.join(HERE, "peers", "export.py"), "--peers", args.peers, "--workload", n, "--depth", str(d),
             "--out", f], dict(os.environ), 3600))
        yield f"{name}, {depth} blocks", [model, *LOSS, *TOLD.get(name, [])]
    rows = {**revnets.PAPER, **{f"couplings-{n}": revnets.of_couplings(n) for n in revnets.COUPLINGS}}
    for name in REVNETS:
        yield name, [path(name + ".onnx", lambda f, n=name: revnets.build(f, rows[n])), *LOSS, "--batch", "100"]


def planned(program, words, mode, more):
    """The report and the processor seconds; of a program that fails, what it said."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([program, "plan", *words, "--memory", mode, "--cost", "flops", "--threads", "1", "--json", *more],
                          capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"{program} {' '.join(words)}: {done.stderr.strip()}")
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(done.stdout), seconds


def row(args, name, words, mode):
    report, seconds = planned(args.invonnx, words, mode, args.more.split())
    peak, added = report["planned_peak_bytes"], report["plan"]["overhead"]
    text = f"| {name} | {mode} | {seconds:.2f} | {peak / 1e6:.1f} | {100 * peak / report['store_peak_bytes']:.1f} | +{100 * added:.1f} |"
    if args.before:
        was, took = planned(args.before, words, mode, [])
        text += (f" {took:.2f} | {100 * (peak / was['planned_peak_bytes'] - 1):+.1f} | "
                 f"{100 * ((1 + added) / (1 + was['plan']['overhead']) - 1):+.1f} |")
    compare.say(text)
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir")
    parser.add_argument("--environments")
    parser.add_argument("--peers")
    parser.add_argument("--invonnx", default=os.path.join(compare.ROOT, "build", "release", "invonnx"))
    parser.add_argument("--before", help="an earlier program")
    parser.add_argument("--modes", default="auto,recompute,invert")
    parser.add_argument("--more", default="", help="further options, as '--effort 8'")
    parser.add_argument("-o", "--out")
    args = parser.parse_args()
    head = "| network | mode | s | peak MB | % of store | time % |"
    if args.before:
        head += " s before | peak, % | time, % |"
    lines = ["# How long plans take", "", f"- processor: {compare.processor()}; one thread; processor time of the whole program; "
             f"{os.getloadavg()[0]:.0f} other programs running as it began, which makes times longer, and one row uncertain by a third",
             f"- date: {datetime.date.today()}", f"- commit: {compare.output_of('git', 'rev-parse', '--short', 'HEAD')}",
             "- method and reading: [README.md](../README.md)", "", head, "|---|---|" + "---:|" * (head.count("|") - 3)]
    lines += [row(args, name, words, mode) for name, words in made(args) for mode in args.modes.split(",")]
    print("\n".join(lines))
    if args.out:
        with open(args.out, "w") as f:
            f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
