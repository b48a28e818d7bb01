# SPDX-License-Identifier: Apache-2.0
"""Time of a training step against its memory: `--memory auto` over budgets beside torch.utils.checkpoint,
torch.compile's activation_memory_budget, RevTorch, InvTorch and MemCNN, on the same models. Linux. README.md says how
it is measured; the workloads and the peers are those of the harness in --peers, and plain.py.

    python3 bench/curve.py --environments DIR -o bench/results/curve.md --picture docs/curve.svg

With --json FILE the numbers of other models are taken from there, so that each may be measured when the machine is
quiet; without --environments nothing is run, and tables and picture are of what FILE has. What stands in the file of
tables from the heading "Reading" on is kept.
DIR is what compare.py --setup has made; its environment torch is enough. Returns 1 if a contestant failed."""
import argparse
import datetime
import json
import os
import sys
import tempfile

import compare
from peers import contestant, curve_picture
from peers.report import MIB, median, spread

# What it is, by depth; the rate of the steps whose losses are compared.
CASES = {"W1": ("RevNet, {} couplings", 0.01), "W3": ("reversible transformer, {} blocks", 0.1),
         "R": ("plain ResNet, {} blocks", 0.01)}
CHECKPOINT = ["ckpt@0.5", "ckpt", "ckpt_sqrt"]
INVERTING = ["revtorch", "invtorch", "memcnn"]
COMPILED = ["compile", "compile_0.5", "compile_0.1"]
SHARES = (0.6, 0.35, 0.2, 0.1, 0.04, 0)  # of the way from the smallest peak to that of storing everything
TOLERANCE = 1e-3


class Peer:
    def __init__(self, case, name):
        args = case.args
        self.planned = None
        self.process = contestant.Process(
            [args.python, os.path.join(contestant.HERE, "peer_step.py"), "--peers", args.peers, *case.words,
             "--contestant", name, "--steps", args.steps, "--lr", case.lr], case.env, args.timeout)

    def start(self):
        self.info = self.process.answer()

    def mem(self):
        return self.process.ask("mem")["bytes"]


class Own(Peer):
    """bench_step with some more words to it. What it gives back before the measured step comes again, gradients among
    it; constants that compiling made are there before, and are added."""

    def __init__(self, case, *words):
        args = case.args
        self.made_from = case.initializer_bytes
        told = [f"{k}={v}" for k, v in case.told["told"].items()]
        self.process = contestant.Process(
            [args.step, case.path("model.onnx"), "input=" + case.told["input"], "target=" + case.told["target"], *told,
             f"steps={args.steps}", f"lr={case.lr}", f"threads={args.threads}", *words], case.env, args.timeout)

    def mem(self):
        report = self.process.ask("report")
        held = report["classes"]["parameters"] + report["classes"]["optimizer"]
        got = self.process.ask(f"mem {report['planned_peak_bytes'] - held}")
        self.planned = report["planned_peak_bytes"]
        self.info["plan"] = {"overhead": report["plan"]["overhead"], "values": report["values"],
                             "refused": report["fallbacks"], "store": report["store_peak_bytes"]}
        return got["growth"] + max(0, held - self.made_from)


class Case:
    """A workload at a depth and a batch, exported into a folder."""

    def __init__(self, args, which, folder):
        self.args, self.folder = args, folder
        self.workload, depth, batch = which.split(":")
        self.title, self.lr = CASES[self.workload]
        self.title = f"{self.title.format(depth)}, batch {batch}"
        self.words = ["--workload", self.workload, "--depth", depth, "--batch", batch]
        self.env = contestant.environment(args.threads)
        run = lambda command: contestant.output_of(command, self.env, args.timeout)
        export = os.path.join(contestant.HERE, "export.py")
        run([args.python, export, "--peers", args.peers, *self.words, "--out", folder])
        with open(self.path("case.json")) as f:
            self.told = json.load(f)
        model = json.loads(run([args.invonnx, "inspect", self.path("model.onnx"), "--json"]))
        self.initializer_bytes = sum((i["bytes"] + 63) // 64 * 64 for i in model["initializers"])
        axis = ["--class-axis", self.told["told"]["axis"]] if "axis" in self.told["told"] else []
        plan = json.loads(run([args.invonnx, "plan", self.path("model.onnx"), "--loss", self.told["told"]["loss"],
                               *axis, "--threads", args.threads, "--cost", "flops", "--curve", "--json"]))
        self.least, self.most = plan["curve"][0]["peak_bytes"], plan["store_peak_bytes"]

    def path(self, name):
        return os.path.join(self.folder, name)

    def contestants(self):
        """Pairs of a name and what starts it."""
        pairs = [("invonnx store", lambda: Own(self, "memory=store")),
                 ("invonnx auto", lambda: Own(self, "memory=auto"))]
        for share in SHARES:
            budget = int(self.least + share * (self.most - self.least))
            pairs.append((f"invonnx budget {budget}", lambda b=budget: Own(self, "memory=auto", f"budget={b}")))
        names = CHECKPOINT + (INVERTING if self.workload != "R" else []) + COMPILED
        pairs += [(n, lambda n=n: Peer(self, n)) for n in names if not self.args.only_own]
        return pairs


def resident(child):
    with open(f"/proc/{child.pid}/status") as f:
        return next(1024 * int(line.split()[1]) for line in f if line.startswith("VmHWM"))


def apart(losses, wanted):
    return max(abs(a - b) / abs(b) for a, b in zip(losses, wanted))


def measure(args, one, plain, wanted):
    """One contestant against eager PyTorch: memory first, then time, a step of each in turns."""
    one.start()
    losses = one.info["losses"]
    row = {"apart": apart(losses, wanted) if wanted else 0, "losses": losses, "mem": [], "pairs": []}
    if row["apart"] > TOLERANCE:
        raise contestant.Failed(f"its losses are off by {row['apart']:.1e}")
    row["mem"] = [one.mem() for _ in range(args.mem_rounds)]
    row["resident"] = resident(one.process.child) - one.info["idle"]
    for _ in range(args.rounds if plain else 0):
        row["pairs"].append((plain.process.ask("time"), one.process.ask("time")))
    if one.planned:  # after the timed steps once more: a guard that refuses makes a plan larger
        row["mem"].append(one.mem())
    row.update(planned=one.planned, plan=one.info.get("plan"), first_call_s=one.info["first_call_s"])
    return row


def run_case(args, which):
    with tempfile.TemporaryDirectory() as folder:
        case = Case(args, which, folder)
        result = {"which": which, "title": case.title, "least": case.least, "most": case.most, "rows": {}}
        result.update(load=[os.getloadavg()[0]], about=about(args))
        plain = Peer(case, "plain")
        try:
            result["rows"]["plain"] = measure(args, plain, None, None)
            for name, make in case.contestants():
                result["rows"][name] = attempt(args, make, plain, result["rows"]["plain"]["losses"])
                compare.say(which, name, *words_of(result["rows"][name], result["rows"]["plain"]))
        finally:
            plain.process.stop()
        result["load"].append(os.getloadavg()[0])
    return result


def attempt(args, make, plain, wanted):
    one = make()
    try:
        return measure(args, one, plain, wanted)
    except contestant.Failed as e:
        return {"failed": str(e)}
    finally:
        one.process.stop()


def ratios(row, key):
    return [b[key] / a[key] for a, b in row["pairs"]] or [1.0]


def words_of(row, plain):
    """Cells of the table after the name."""
    if "failed" in row:
        return [f"not shown: {row['failed']}".replace("|", " "), *[""] * 6]
    mem = [m / MIB for m in row["mem"]]
    planned = f"{row['planned'] / MIB:.1f}" if row["planned"] else ""
    return [f"{max(mem):.1f}", f"{max(mem) * MIB / max(plain['mem']):.3f}", spread(ratios(row, "cpu"), ".2f"),
            spread(ratios(row, "s"), ".2f"), f"{row['resident'] / MIB:.0f}", planned, f"{row['apart']:.0e}"]


def points(result):
    """{series: [(share of eager PyTorch's memory, time over its)]} for the picture."""
    rows = {n: r for n, r in result["rows"].items() if "failed" not in r}
    series = {}
    for name, row in rows.items():
        kind = name.split("_")[0].split("@")[0].split(" ")[0]
        if name != "invonnx auto":  # it is a point of the same curve
            share = max(row["mem"]) / max(rows["plain"]["mem"])
            series.setdefault(kind, []).append((share, median(ratios(row, "cpu"))))
    return series


def about(args):
    ask = ("import importlib.metadata as m; "
           "print(', '.join(f'{p} {m.version(p)}' for p in ('torch', 'revtorch', 'invtorch', 'memcnn')))")
    return {"date": str(datetime.date.today()), "commit": compare.output_of("git", "rev-parse", "--short", "HEAD"),
            "processor": f"{compare.processor()}, {os.cpu_count()} cores, shared with other programs",
            "peers": compare.output_of(args.python, "-c", ask),
            "options": f"--rounds {args.rounds} --mem-rounds {args.mem_rounds} --threads {args.threads}"}


def text_of(results):
    known, cases = results[-1]["about"], " ".join(r["which"] for r in results)
    lines = ["# Time of a step against its memory", "",
             f"- processor: {known['processor']}",
             f"- date: {known['date']}", f"- commit: {known['commit']}", f"- peers: {known['peers']}",
             f"- command: `python3 bench/curve.py --environments DIR --cases {cases} --json FILE "
             "-o bench/results/curve.md --picture docs/curve.svg`, or a model at a time",
             "- method and reading: [README.md](../README.md)", "",
             "![Time of a step against its memory](../../docs/curve.svg)"]
    for r in results:
        lines += section(r)
    return lines


def section(r):
    rows, plain = r["rows"], r["rows"]["plain"]
    cpu = [1e3 * a["cpu"] for row in rows.values() for a, _ in row.get("pairs", [])]
    lines = ["", f"## {r['title'][0].upper() + r['title'][1:]} ({r['which']})", "",
             f"A step of eager PyTorch: {spread(cpu, '.0f')} ms of CPU time. invonnx by its plans: everything stored "
             f"{r['most'] / MIB:.1f} MiB, the least {r['least'] / MIB:.1f} MiB, parameters and gradients included. "
             f"Measured with `{r['about']['options']}`; load average {r['load'][0]:.1f} before, {r['load'][1]:.1f} "
             "after.", "",
             "| contestant | memory of a step, MiB | of eager's | CPU time / eager | wall / eager | above idle, MiB "
             "| planned peak, MiB | losses off |", "|---|---:|---:|---:|---:|---:|---:|---:|"]
    return lines + [f"| {label(n)} | " + " | ".join(words_of(row, plain)) + " |" for n, row in rows.items()]


def label(name):
    words = name.split(" budget ")
    return f"invonnx, budget {int(words[1]) / MIB:.1f} MiB" if len(words) == 2 else name


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", metavar="DIR", help="what compare.py --setup has made")
    parser.add_argument("--peers", default=os.path.join(compare.ROOT, "..", "shared", "peers"),
                        help="folder of the harness")
    parser.add_argument("--build", default=os.path.join(compare.ROOT, "build", "release"),
                        help="folder of a release build")
    parser.add_argument("--cases", nargs="+", default=["W1:8:32", "W3:4:8", "R:9:32"], metavar="W:N:B",
                        help="workload, depth and batch")
    parser.add_argument("--only-own", action="store_true", help="no peer but eager PyTorch")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that measure time")
    parser.add_argument("--mem-rounds", type=int, default=1, help="rounds that measure memory")
    parser.add_argument("--steps", type=int, default=3, help="steps whose losses are compared")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one answer")
    parser.add_argument("--json", help="file for all numbers")
    parser.add_argument("--picture", help="file for the picture, .svg")
    parser.add_argument("-o", "--out", help="file for the tables")
    args = parser.parse_args()
    if not args.environments and not args.json:
        parser.error("--environments is needed, or --json with what is to be drawn")
    args.peers = os.path.abspath(args.peers)
    args.invonnx, args.step = (os.path.abspath(os.path.join(args.build, p)) for p in ("invonnx", "bench_step"))
    args.python = os.path.abspath(os.path.join(args.environments or ".", "torch", "bin", "python"))
    needed = (args.invonnx, args.step, args.python, os.path.join(args.peers, "worker.py"))
    for path in needed if args.environments else ():
        if not os.path.exists(path):
            parser.error(f"{path} is missing: see bench/README.md")
    return args


def write(path, text):
    with open(path, "w") as f:
        f.write(text.rstrip("\n") + "\n")


def main():
    args = arguments()
    results = []
    if args.json and os.path.exists(args.json):
        with open(args.json) as f:
            results = json.load(f)
    for which in args.cases if args.environments else ():
        results = [r for r in results if r["which"] != which] + [run_case(args, which)]
        results.sort(key=lambda r: list(CASES).index(r["which"].split(":")[0]))
        if args.json:
            write(args.json, json.dumps(results))
    if args.picture:
        write(args.picture, curve_picture.draw([(r["title"], points(r)) for r in results]))
    lines = text_of(results)
    if args.out:
        write(args.out, "\n".join(lines + ["", *compare.kept(args.out, "## Reading")]))
    print("\n".join(lines))
    failed = [f"{r['which']} {n}: {row['failed']}" for r in results for n, row in r["rows"].items() if "failed" in row]
    for line in failed:
        compare.say("failed:", line)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
