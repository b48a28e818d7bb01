# SPDX-License-Identifier: Apache-2.0
"""Loss curves of GPT-2 small, fine-tuned with 8-bit states and bfloat16 weights, beside AdamW in float32.

    python3 bench/adapt_curve.py DIR --python PYTHON [--steps 200] [--length 512] [--lr 3e-4]

PYTHON is as for adapt.py; DIR gets the model. Each step has LENGTH words of the documentation of this repository, numbered by a hash. Both run at once, with one thread.
Prints a table; returns 1 where the means of ten steps part by more than 2 %. Needs numpy."""
import argparse
import csv
import os
import re
import subprocess
import sys
import zlib

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
WORDS, MEAN = 50257, 10
STYLES = {"adamw": ["--optimizer", "adamw"],
          "adamw8, bf16, early": ["--optimizer", "adamw8", "--weights", "bf16", "--early-update"]}


def rows(steps, length):
    """Words that follow each other, and their successors: [steps, length] each."""
    files = subprocess.run(["git", "ls-files", "*.md", "*.py", "*.c"], cwd=ROOT, check=True, capture_output=True, text=True)
    ids = []
    for name in sorted(files.stdout.split(), key=lambda n: (not n.endswith(".md"), n)):
        with open(os.path.join(ROOT, name), encoding="utf-8") as f:
            ids += [zlib.crc32(w.encode()) % WORDS for w in re.findall(r"\w+|[^\w\s]", f.read())]
        if len(ids) > steps * length:
            break
    ids = np.array(ids[:steps * length + 1], np.int64)
    order = np.random.default_rng(0).permutation(steps)
    return ids[:-1].reshape(steps, length)[order], ids[1:].reshape(steps, length)[order]


def start(args, name, options):
    stem = os.path.join(args.dir, re.sub(r"\W+", "_", name))
    command = [args.invonnx, "train", args.model, "--data", f"{args.dir}/curve.x.npy", "--target",
               f"{args.dir}/curve.y.npy", "--loss", "cross_entropy", "--class-axis", "2", "--batch", "1", "--no-shuffle",
               "--steps", str(args.steps), "--lr", str(args.lr), "--warmup", "20", "--threads", "1", "-q", "--log",
               stem + ".csv", "-o", stem + ".onnx", *options]
    return stem + ".csv", subprocess.Popen(command)


def losses(log):
    with open(log, newline="") as f:
        return np.array([float(r["loss"]) for r in csv.DictReader(f) if r["loss"]])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir")
    parser.add_argument("--invonnx", default=os.path.join(ROOT, "build", "release", "invonnx"))
    parser.add_argument("--python", required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--lr", type=float, default=3e-4)
    args = parser.parse_args()
    os.makedirs(args.dir, exist_ok=True)
    args.model = f"{args.dir}/gpt2_{args.length}.onnx"
    if not os.path.exists(args.model):
        subprocess.run([args.python, os.path.join(HERE, "adapt_step.py"), "export", "gpt2", args.dir, "--length",
                        str(args.length)], check=True)
    for name, values in zip("xy", rows(args.steps, args.length)):
        np.save(f"{args.dir}/curve.{name}.npy", values)
    runs = {name: start(args, name, options) for name, options in STYLES.items()}
    for _, run in runs.values():
        if run.wait():
            return 2
    exact, small = (losses(log)[:args.steps // MEAN * MEAN].reshape(-1, MEAN) for log, _ in runs.values())
    print("| steps | " + " | ".join(STYLES) + " | parted by |\n|---|---:|---:|---:|")
    parted = np.abs(small.mean(1) / exact.mean(1) - 1)
    for k, (a, b, d) in enumerate(zip(exact.mean(1), small.mean(1), parted)):
        print(f"| {k * MEAN + 1} to {(k + 1) * MEAN} | {a:.4f} | {b:.4f} | {d:.2%} |")
    print(f"\nlargest: {parted.max():.2%} of means of {MEAN} steps, {np.abs(small / exact - 1).max():.2%} of a step")
    return int(parted.max() > 0.02)


if __name__ == "__main__":
    sys.exit(main())
