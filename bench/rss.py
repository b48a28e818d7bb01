# SPDX-License-Identifier: Apache-2.0
"""Growth of the process's resident memory over training against the planned peak, and the time of a step, stored
against inverted. Needs a release build and numpy; the method is described in README.md.

    python3 bench/rss.py --invonnx build/release/invonnx                prints the table
    python3 bench/rss.py --invonnx build/release/invonnx -o FILE        writes it with machine and command, too"""
import argparse
import datetime
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MODES = ("store", "invert")


def write_data(folder, batch):
    rng = np.random.default_rng(0)
    np.save(os.path.join(folder, f"x{batch}.npy"), rng.standard_normal((batch, 1, 16, 16)).astype(np.float32))
    np.save(os.path.join(folder, f"y{batch}.npy"), rng.integers(0, 10, batch))


def watch(child):
    """Waits; the high-water mark of the child's resident memory in bytes. (ru_maxrss will not do: it begins with what
    the parent had when it started the child, and numpy alone is more than a small run.)"""
    peak = 0
    while child.poll() is None:
        try:
            with open(f"/proc/{child.pid}/status") as f:
                marks = [int(line.split()[1]) for line in f if line.startswith("VmHWM:")]
        except OSError:
            marks = []
        peak = max([peak, *marks])
        time.sleep(0.002)
    return peak * 1024


def train(args, folder, couplings, batch, memory):
    """Peak resident bytes, planned peak, seconds of each step but the first."""
    command = [
        args.invonnx, "train", os.path.join(ROOT, "tests", "data", f"revnet_c{couplings}.onnx"),
        "--data", os.path.join(folder, f"x{batch}.npy"), "--target", os.path.join(folder, f"y{batch}.npy"),
        "--loss", "cross_entropy", "--batch", str(batch), "--steps", str(args.steps), "--memory", memory,
        "--threads", str(args.threads), "-o", os.path.join(folder, "out.onnx"), "--json"]
    with open(os.path.join(folder, "report"), "w+") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        peak = watch(child)
        if child.returncode != 0:
            sys.exit(f"exit status {child.returncode}: {shlex.join(command)}")
        out.seek(0)
        report = json.load(out)
    # One batch is the whole data set, so an epoch is a step.
    seconds = [epoch["seconds"] for epoch in report["epochs"]]
    return peak, report["planned_peak_bytes"], seconds[1:]


def measure(args, folder, couplings):
    runs = {m: {"growth": [], "seconds": []} for m in MODES}
    for _ in range(args.runs):
        for m in MODES:  # interleaved, so that both see the same disturbances
            small, small_plan, _ = train(args, folder, couplings, 1, m)
            large, plan, seconds = train(args, folder, couplings, args.batch, m)
            runs[m]["plan"] = plan
            runs[m]["growth"].append(large - (small - small_plan))
            runs[m]["seconds"].append(statistics.median(seconds))
    return runs


def table(results):
    mib = 1 << 20
    lines = ["| couplings | memory | planned peak MiB | growth of resident memory MiB | ratio | (of all runs) "
             "| s per step | (of all runs) | against store |",
             "|---:|---|---:|---:|---:|---|---:|---|---:|"]
    far = 0
    for couplings, runs in results:
        base = statistics.median(runs["store"]["seconds"])
        for m in MODES:
            r = runs[m]
            growth, ratios = statistics.median(r["growth"]), [g / r["plan"] for g in r["growth"]]
            ratio, seconds = growth / r["plan"], statistics.median(r["seconds"])
            far += abs(ratio - 1) > 0.1
            lines.append(
                f"| {couplings} | {m} | {r['plan'] / mib:.1f} | {growth / mib:.1f} | {ratio:.3f} "
                f"| {min(ratios):.3f} .. {max(ratios):.3f} | {seconds:.2f} "
                f"| {min(r['seconds']):.2f} .. {max(r['seconds']):.2f} | {seconds / base:.2f} |")
    return lines, far


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def processor():
    with open("/proc/cpuinfo") as f:
        names = [line.split(":", 1)[1].strip() for line in f if line.startswith("model name")]
    return names[0] if names else "unknown"


def header(args):
    state = output_of("git", "rev-parse", "--short", "HEAD")
    if output_of("git", "status", "--porcelain", "--untracked-files=no"):
        state += " with changes that are not committed"
    given = [f"--batch {args.batch}", f"--runs {args.runs}", f"--steps {args.steps}", f"--threads {args.threads}"]
    return ["# Resident memory and time of a step", "",
            f"- processor: {processor()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start",
            f"- date: {datetime.date.today()}", f"- commit: {state}",
            f"- command: `python3 bench/rss.py --invonnx build/release/invonnx {' '.join(given)}`",
            f"- medians of {args.runs} interleaved runs; method and reading: [README.md](../README.md)", ""]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--invonnx", default=os.path.join(ROOT, "build", "release", "invonnx"))
    parser.add_argument("--couplings", type=int, nargs="+", default=[4, 16, 64], choices=[4, 16, 64])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="of each run, 2 or more; the first is not timed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-o", "--out", help="file for the table")
    args = parser.parse_args()
    if args.steps < 2 or args.runs < 1:
        parser.error("2 steps and 1 run are needed at least")
    lines = header(args)
    with tempfile.TemporaryDirectory() as folder:
        for batch in (1, args.batch):
            write_data(folder, batch)
        rows, far = table([(c, measure(args, folder, c)) for c in args.couplings])
    lines += rows
    print("\n".join(lines))
    if args.out:
        os.makedirs(os.path.dirname(os.path.abspath(args.out)), exist_ok=True)
        with open(args.out, "w") as f:
            f.write("\n".join(lines) + "\n")
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())
