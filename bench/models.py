# SPDX-License-Identifier: Apache-2.0
"""Networks that people fine-tune: does training follow PyTorch's loss, and what does a step take beside PyTorch eager,
ONNX Runtime training and torch.compile? The networks, their inputs and optimizers are those of networks.py. Linux. README.md says how
it is measured.

    python3 bench/models.py DIR --environments ENV                          prints the tables
    python3 bench/models.py DIR --environments ENV -o bench/results/models.md   writes them; what stands in the file
                                                         from the heading "What limits it" on is kept
DIR gets the exported models, their data and PyTorch's losses; what is there already is taken. ENV is what
`compare.py --setup` has made, and torchvision and onnxscript in its environment torch.

Returns 1 if a loss curve is off by more than 1e-3, or a model does not train."""
import argparse
import datetime
import json
import os
import re
import sys
import tempfile
from statistics import median

import compare
from peers import contestant
from peers.report import MIB, spread

HERE = os.path.dirname(os.path.abspath(__file__))
MODELS = ["resnet18", "mobilenet_v3_large", "efficientnet_b0", "vit_ti_16", "convnext_tiny", "swin_t", "unet",
          "gpt2_small", "densenet121", "lstm_tagger"]
PARITY = 1e-3  # largest |loss - PyTorch's| / |PyTorch's| over the steps
MODES = ("store", "auto")


def made(args, model):
    """What there is to know of a model; made now if it is not there."""
    stem = os.path.join(args.dir, model)
    if not os.path.exists(stem + ".json"):
        os.makedirs(args.dir, exist_ok=True)
        contestant.output_of([args.python, os.path.join(HERE, "torch_step.py"), "export", model, args.dir, "--threads",
                              args.threads], dict(os.environ), 4 * args.timeout)
    with open(stem + ".json") as f:
        return dict(json.load(f), stem=stem)


def parity(args, known, mode):
    """Relative distances of the loss curves, step by step."""
    stem = known["stem"]
    with tempfile.TemporaryDirectory() as folder:
        text = contestant.output_of(
            [args.invonnx, "train", stem + ".onnx", "--data", stem + ".x.npy", "--target", stem + ".target.npy",
             "--batch", known["batch"], "--no-shuffle", "--steps", len(known["losses"]), "--loss", "cross_entropy",
             "--class-axis", known["class_axis"], "--optimizer", known["optimizer"], "--lr", known["lr"], "--memory", mode,
             "--threads", args.threads, "--json", "-o", os.path.join(folder, "out.onnx")], dict(os.environ), args.timeout)
    return [abs(a - b) / abs(b) for a, b in zip(json.loads(text)["steps"], known["losses"], strict=True)]


def started(command, env, args, known):
    """A contestant that has made its first steps: from the same weights, on the same batch."""
    process = contestant.Process(command, env, args.timeout)
    try:
        loss, want = process.answer()["loss"], known["losses"][0]
        if not abs(loss - want) <= PARITY * abs(want):
            raise contestant.Failed(f"its first loss is {loss:.6g}, PyTorch's was {want:.6g}")
        process.time = lambda: process.ask("time")
        process.time()  # warm
    except contestant.Failed:
        process.stop()
        raise
    return process


def speed(args, known):
    """Each a process; they take turns, a step each. Of those that cannot train the network, why."""
    stem, env = known["stem"], dict(os.environ, OMP_NUM_THREADS=str(args.threads), OMP_WAIT_POLICY="passive")
    beside = lambda told: told.rsplit(":", 1)[0] + ":" + os.path.join(args.dir, told.rsplit(":", 1)[1])
    peer = lambda python, script: [python, os.path.join(HERE, script), "serve", os.path.basename(stem), args.dir,
                                   "--threads", args.threads]
    commands = {"torch": peer(args.python, "torch_step.py"), "ort": peer(args.ort_python, "ort_step.py"),
                "compile": [*peer(args.python, "torch_step.py"), "--compile"],
                "invonnx": [args.step, stem + ".onnx", "input=" + beside(known["input"]),
                            "target=" + beside(known["target"]), "loss=cross_entropy", f"axis={known['class_axis']}",
                            "memory=store", "cost=time", f"optimizer={known['optimizer']}", f"threads={args.threads}"]}
    live, rows, cannot = {}, {}, {}
    try:
        for name, command in commands.items():
            try:
                live[name] = started(command, env, args, known)
                rows[name] = []
            except contestant.Failed as e:
                if name not in ("ort", "compile"):
                    raise
                cannot[name] = str(e)
        for _ in range(args.rounds):
            for name, process in live.items():
                rows[name].append(contestant.quiet_time(process, args))
        rows["invonnx"][-1]["predicted"] = live["invonnx"].ask("report")["predicted_seconds"]
    finally:
        for process in live.values():
            process.stop()
    return rows, cannot


def measure(args, model):
    row = {"model": model}
    try:
        known = row["known"] = made(args, model)
        if "parity" in args.what:
            row["parity"] = {mode: parity(args, known, mode) for mode in MODES}
        if "speed" in args.what:
            row["speed"], row["cannot"] = speed(args, known)
    except contestant.Failed as e:
        row["failed"] = str(e)
    return row


def cells(row):
    known = row.get("known")
    shape = "x".join(map(str, known["shape"])) + f", {known['optimizer']}" if known else ""
    off = ["-", "-"] if "parity" not in row else [f"{max(row['parity'][m]):.1e}" for m in MODES]
    if "speed" not in row:
        return [row["model"], shape, *off, row.get("failed", "-").replace("|", " "), *8 * [""]]
    own, torch = row["speed"]["invonnx"], row["speed"]["torch"]
    ms = {n: spread([1e3 * t["s"] for t in x], ".0f") for n, x in row["speed"].items()}
    name, faster = min((x for x in row["speed"].items() if x[0] in ("torch", "ort")),
                       key=lambda x: median(t["s"] for t in x[1]))
    ms[name] = f"**{ms[name]}**"
    ratio = lambda key, other: spread([a[key] / b[key] for a, b in zip(own, other)], ".2f")
    compiled, predicted = row["speed"].get("compile"), own[-1]["predicted"]
    return [row["model"], shape, *off, ms["torch"], ms.get("ort", "cannot"), ms.get("compile", "cannot"), ms["invonnx"],
            f"{1e3 * predicted:.0f} ({predicted / median(t['s'] for t in own):.2f})",
            f"**{ratio('s', faster)}**", ratio("cpu", faster), ratio("cpu", compiled) if compiled else "-", f"{torch[-1]['peak'] / MIB:.0f} ({torch[-1]['idle'] / MIB:.0f}), {own[-1]['peak'] / MIB:.0f}"]


def text_of(args, rows):
    state = compare.output_of("git", "rev-parse", "--short", "HEAD")
    if compare.output_of("git", "status", "--porcelain", "--untracked-files=no"):
        state += " with changes that are not committed"
    torch = next((r["known"]["torch"] for r in rows if "known" in r), "?")
    ort = compare.PACKAGES["ort"][0].removeprefix("onnxruntime-training==")
    disturbed = [r["model"] for r in rows if "speed" in r and
                 max(median(t["others"] for t in x) for x in r["speed"].values()) >= 0.1]
    lines = ["# Beside PyTorch eager, ONNX Runtime training and torch.compile: networks that people fine-tune", "",
             f"- processor: {compare.processor()}, {os.cpu_count()} cores; {args.threads} threads each",
             f"- date: {datetime.date.today()}", f"- commit: {state}", f"- PyTorch {torch}, onnxruntime-training {ort}",
             f"- command: `python3 bench/models.py DIR --environments ENV --rounds {args.rounds}`",
             "- method and reading: [README.md](../README.md)"]
    if disturbed:
        lines.append("- other programs took more than a tenth of a core, in the median: " + ", ".join(disturbed))
    lines += ["", "| model | batch, optimizer | loss off, store | auto | PyTorch, ms a step | ONNX Runtime, ms "
              "| torch.compile, ms | invonnx store, ms | predicted (over measured) | wall / the faster's of PyTorch and ONNX Runtime | CPU / its CPU "
              "| CPU / torch.compile's | resident MiB: PyTorch (of it before the network), invonnx |",
              "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]
    lines += ["| " + " | ".join(cells(r)) + " |" for r in rows] + [""]
    reason = lambda message: re.split(r" was false\. |: [A-Z_]+ : ", message)[-1]
    names = {"ort": "ONNX Runtime", "compile": "torch.compile"}
    cannot = [f"- {names[n]}, {r['model']}: {reason(why)}" for r in rows for n, why in r.get("cannot", {}).items()]
    return lines + (["What cannot train:", "", *cannot, ""] if cannot else [])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", help="where models are, or are made")
    parser.add_argument("--environments", metavar="DIR", required=True)
    parser.add_argument("--build", default=os.path.join(HERE, "..", "build", "release"), help="folder of a release build")
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="NAME")
    parser.add_argument("--what", nargs="+", default=["parity", "speed"], choices=("parity", "speed"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--retries", type=int, default=2, help="attempts at a disturbed measurement")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one answer")
    parser.add_argument("--json", help="file for all numbers")
    parser.add_argument("-o", "--out", help="file for the tables")
    args = parser.parse_args()
    args.invonnx, args.step = (os.path.abspath(os.path.join(args.build, p)) for p in ("invonnx", "bench_step"))
    args.python, args.ort_python = (os.path.abspath(os.path.join(args.environments, e, "bin", "python"))
                                    for e in ("torch", "ort"))
    for path in (args.invonnx, args.step, args.python, args.ort_python):
        if not os.path.exists(path):
            parser.error(f"{path} is missing: see bench/README.md")
    rows, lines = [], []
    for model in args.models:
        rows.append(measure(args, model))
        compare.say(" | ".join(cells(rows[-1])))
        lines = text_of(args, rows)
        if args.json:
            with open(args.json, "w") as f:
                json.dump(rows, f)
        if args.out:
            lines += compare.kept(args.out)
            os.makedirs(os.path.dirname(os.path.abspath(args.out)), exist_ok=True)
            with open(args.out, "w") as f:
                f.write("\n".join(lines).rstrip("\n") + "\n")
    print("\n".join(lines))
    return int(any("failed" in r or max(max(p) for p in r.get("parity", {"": [0]}).values()) > PARITY for r in rows))


if __name__ == "__main__":
    sys.exit(main())
