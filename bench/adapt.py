# SPDX-License-Identifier: Apache-2.0
"""Memory and time of fine-tuning steps beside PyTorch 2 and peft. Linux; the method is described in README.md.

    python3 bench/adapt.py DIR --python PYTHON                               prints the table
    python3 bench/adapt.py DIR --python PYTHON -o bench/results/adapt.md     writes it; what stands in the file from the
                                                                             heading "What limits it" on is kept

PYTHON is one with torch, torchvision, peft and onnx. DIR gets the models, once. Returns 1 if a goal is missed."""
import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import threading

import compare
from peers.contestant import Process
from process import Watch

HERE = os.path.dirname(os.path.abspath(__file__))
MIB = 1 << 20
EARLY = ["--early-update"]
LORA = ["--optimizer", "adamw", "--rank", "8", "--alpha", "16", "--lora"]
PEERS = {"PyTorch, AdamW": ["full"], "PyTorch, AdamW, checkpointed": ["full", "--checkpoint"]}
PEFT = {"peft, LoRA": ["lora"], "peft, LoRA, checkpointed": ["lora", "--checkpoint"]}
# title: model, PyTorch's side, this program's, and the most memory: of the best of PyTorch's, or MiB.
STYLES = {
    "All weights": ("gpt2", PEERS, {"adamw": ["--optimizer", "adamw"], "adamw, early": ["--optimizer", "adamw", *EARLY]},
                    0.45),
    "All weights, small states and weights": (
        "gpt2", PEERS, {"adamw8, bf16, early": ["--optimizer", "adamw8", "--weights", "bf16", *EARLY]}, 0.25),
    "LoRA on float32": ("gpt2", PEFT, {"LoRA": [*LORA, "/blocks*"]}, 0.5),
    "LoRA on int4": ("gpt2_int4", PEFT, {"LoRA": [*LORA, "/blocks*"]}, 350),
    "LoRA on int4, Qwen2-0.5B's shape": ("qwen", {}, {"LoRA": [*LORA, "[0-9]*"]}, 1.2 * 1024),
}


def made(args):
    os.makedirs(args.dir, exist_ok=True)
    for name, command in (("gpt2", ["adapt_step.py", "export", "gpt2", args.dir]),
                          ("gpt2_int4", ["adapt_models.py", "int4", args.dir + "/gpt2.onnx", args.dir + "/gpt2_int4.onnx"]),
                          ("qwen", ["adapt_models.py", "qwen", args.dir + "/qwen.onnx"])):
        if not os.path.exists(f"{args.dir}/{name}.onnx"):
            subprocess.run([args.python, os.path.join(HERE, command[0]), *command[1:]], check=True)


class Peer:
    def __init__(self, args, model, style):
        command = [args.python, os.path.join(HERE, "adapt_step.py"), "serve", model.removesuffix("_int4"), *style,
                   "--threads", str(args.threads)]
        self.process = Process(command, dict(os.environ, OMP_WAIT_POLICY="passive"), args.timeout)
        self.process.answer()
        self.process.ask("step")  # the first one allocates

    def step(self):
        got = self.process.ask("step")
        return {"s": got["s"], "cpu": got["cpu"], "bytes": got["peak"]}

    def stop(self):
        self.process.stop()


class StepClock(threading.Thread):
    """Processor time of a process, all threads, whenever its log has one line more."""
    TICK = os.sysconf("SC_CLK_TCK")

    def __init__(self, pid, log):
        super().__init__()
        self.pid, self.log, self.at, self.stop = pid, log, [], threading.Event()
        self.start()

    def run(self):
        size = 0
        while not self.stop.wait(0.002):
            try:
                now = os.path.getsize(self.log)
                if now != size:
                    with open(f"/proc/{self.pid}/stat") as f:
                        fields = f.read().rpartition(")")[2].split()
                    self.at.append((int(fields[11]) + int(fields[12])) / self.TICK)
                size = now
            except OSError:
                continue  # not there yet, or not any more


class Own:
    """A run of the program for each round: its largest resident memory but for the program itself, and the steps
    behind the first two, which measure rates or touch memory for the first time."""
    STEPS = 6

    def __init__(self, args, model, options):
        data = f"{args.dir}/{model.removesuffix('_int4')}"
        self.log = f"{args.dir}/steps.csv"
        self.command = [args.invonnx, "train", f"{args.dir}/{model}.onnx", "--data", data + ".x.npy", "--target",
                        data + ".y.npy", "--loss", "cross_entropy", "--class-axis", "2", "--batch", "1", "--steps",
                        str(self.STEPS), "--lr", "1e-4", "--threads", str(args.threads), "--json", "-q", "-o",
                        f"{args.dir}/out.onnx", "--log", self.log, *options]
        self.idle = self.run([args.invonnx, "rules"])[1]
        self.run([*self.command, "--dry-run"])  # refuses what it cannot do, and measures rates, before anything is timed

    def run(self, command):
        if os.path.exists(self.log):
            os.remove(self.log)
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        watch, clock = Watch(child.pid), StepClock(child.pid, self.log)
        out, err = child.communicate()
        for thread in watch, clock:
            thread.stop.set()
            thread.join()
        if child.returncode:
            raise OSError((err.strip().splitlines() or ["no message"])[0][-300:])
        return out, watch.most["VmHWM"], clock.at

    def step(self):
        out, peak, at = self.run(self.command)
        steps, at = json.loads(out)["epochs"][2:], at[-self.STEPS:][1:]
        return {"s": statistics.median(e["seconds"] for e in steps), "bytes": peak - self.idle,
                "cpu": statistics.median(b - a for a, b in zip(at, at[1:]))}

    def stop(self):
        pass


def measure(args, title):
    model, peers, own, _ = STYLES[title]
    live, rows = {}, {}
    for name, how in {**peers, **own}.items():
        try:
            live[name] = (Peer if name in peers else Own)(args, model, how)
            rows[name] = []
        except OSError as e:
            rows[name] = str(e)
        compare.say(f"{title}: {name}: {rows[name] or 'ready'}")
    for _ in range(args.rounds):
        for name, one in live.items():
            rows[name].append(one.step())
            compare.say(f"{title}: {name}: {rows[name][-1]}")
    for one in live.values():
        one.stop()
    return rows


def spread(values, form):
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def section(title, rows):
    """Lines, and whether the goal is met."""
    _, peers, own, goal = STYLES[title]
    memory = {n: max(r["bytes"] for r in row) / MIB for n, row in rows.items() if isinstance(row, list)}
    least = min((memory[n] for n in peers if n in memory), default=None)
    quickest = min((n for n in peers if n in memory), key=lambda n: statistics.median(r["cpu"] for r in rows[n]),
                   default=None)
    lines = [f"### {title}", "", "| | memory above idle MiB | of the best of PyTorch's | s a step | of the quickest of "
             "PyTorch's | processor time, s a step | of the same |", "|---|---:|---:|---:|---:|---:|---:|"]
    for name, row in rows.items():
        if name not in memory:
            lines.append(f"| {name} | {row} | | | | | |")
            continue
        ratio, busy = ([r[k] / q[k] for r, q in zip(row, rows[quickest])] if quickest else [] for k in ("s", "cpu"))
        lines.append(f"| {name} | {memory[name]:.0f} | {f'{memory[name] / least:.2f}' if least else ''} "
                     f"| {spread([r['s'] for r in row], '.2f')} | {spread(ratio, '.2f') if ratio else ''} "
                     f"| {spread([r['cpu'] for r in row], '.2f')} | {spread(busy, '.2f') if busy else ''} |")
    best = min((memory[n] for n in own if n in memory), default=float("inf"))
    most = goal if goal > 1 else goal * (least or 0)
    lines += ["", f"Goal: {f'{goal:.0f} MiB' if goal > 1 else f'{goal} of the best of PyTorch'}: "
              f"{'met' if best <= most else f'missed, {best:.0f} MiB'}.", ""]
    return lines, best <= most


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir")
    parser.add_argument("--python", required=True)
    parser.add_argument("--invonnx", default=os.path.join(compare.ROOT, "build", "release", "invonnx"))
    parser.add_argument("--styles", nargs="+", default=list(STYLES), choices=STYLES, metavar="TITLE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=600)
    parser.add_argument("-o", "--out")
    args = parser.parse_args()
    made(args)
    lines, met = [], True
    for title in args.styles:
        more, good = section(title, measure(args, title))
        lines, met = lines + more, met and good
    commit = compare.output_of("git", "rev-parse", "--short", "HEAD")
    head = ["# Fine-tuning beside PyTorch and peft", "", f"- processor: {compare.processor()}, {os.cpu_count()} cores",
            f"- date: {datetime.date.today()}", f"- commit: {commit}",
            f"- command: `python3 bench/adapt.py DIR --python PYTHON --rounds {args.rounds} --threads {args.threads}`",
            "- GPT-2 small (124M parameters, random), 1 x 512 tokens; method and reading: [README.md](../README.md)", ""]
    text = "\n".join(head + lines)
    print(text)
    if args.out:
        kept = ""
        if os.path.exists(args.out):
            with open(args.out) as f:
                kept = "".join(f.read().partition(compare.KEPT)[1:])
        with open(args.out, "w") as f:
            f.write(text + kept)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
