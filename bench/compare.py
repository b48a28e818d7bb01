# SPDX-License-Identifier: Apache-2.0
"""Memory and CPU time of a training step beside the tools that one would otherwise use, in one interleaved run. Linux.
The method is described in README.md; the workloads and the peers are those of the harness in --peers.

    python3 bench/compare.py --setup DIR                                   makes the two Python environments, once
    python3 bench/compare.py --environments DIR                            prints the tables
    python3 bench/compare.py --environments DIR -o bench/results/peers.md  writes them; what stands in the file from
                                                                           the heading "What limits it" on is kept

Returns 1 if `--memory auto` takes more memory in all (with parameters and gradients), or more time, than the best
peer that inverts, on any of the workloads."""
import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time

from peers import contestant, report

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CASES = ["W1:64", "W2:128", "W3:16", "W4:32"]
OWN = [contestant.OWN + mode for mode in ("auto", "invert", "store")]
CONTESTANTS = ["plain", "ckpt", "ckpt_sqrt", "memcnn", "invtorch", "revtorch", "ort", "ort_arena", *OWN]
KEPT = "## What limits it"
PACKAGES = {"torch": ["torch==2.15.0", "numpy", "onnx", "memcnn==1.5.2", "invtorch==0.5.0", "revtorch==0.2.4"],
            "ort": ["onnxruntime-training==1.19.2", "onnx==1.16.2", "numpy<2", "cerberus", "h5py"]}


def say(*words):
    print(*words, file=sys.stderr, flush=True)


def setup(folder):
    """onnxruntime-training wants an older numpy, so it has an environment of its own; and a torch, any: it sees that of
    the other one, at the end of its path."""
    python = {}
    for name, packages in PACKAGES.items():
        home = os.path.join(folder, name)
        python[name] = os.path.join(home, "bin", "python")
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        say(name + ":", *packages)
        subprocess.run([python[name], "-m", "pip", "install", "--quiet", *packages], check=True)
    site = {n: subprocess.run([p, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], check=True,
                              capture_output=True, text=True).stdout.strip() for n, p in python.items()}
    with open(os.path.join(site["ort"], "torch_at_the_end.pth"), "w") as f:
        f.write(site["torch"] + "\n")
    subprocess.run([python["ort"], "-c", "import onnxruntime.training"], check=True)


def start(case, names):
    live, rows = {}, {}
    for name in names:
        began = time.monotonic()
        rows[name] = {"mem": [], "time": []}
        try:
            live[name] = case.start(name)
            rows[name]["info"] = live[name].info
            say(f"{case.workload} {case.depth} {name}: ready in {time.monotonic() - began:.0f} s, "
                f"loss {live[name].info['loss']:.6g}, error {live[name].info['error']['all']:.1e}")
        except (contestant.Failed, OSError) as e:
            rows[name]["failed"] = str(e)
            say(f"{case.workload} {case.depth} {name}: failed: {e}")
    return live, rows


def rounds(case, live, rows, args):
    """All take turns, a step each: first for memory, then for time."""
    for i in range(args.mem_rounds + args.rounds):
        kind = "mem" if i < args.mem_rounds else "time"
        for name, process in list(live.items()):
            try:
                rows[name][kind].append(process.mem() if kind == "mem" else contestant.quiet_time(process, args))
            except contestant.Failed as e:
                rows[name]["failed"] = str(e)
                live.pop(name).stop()
                say(f"{case.workload} {case.depth} {name}: failed: {e}")
        said = [f"{n} {report.memory(rows[n]) / report.MIB:.1f}" if kind == "mem" else
                f"{n} {1e3 * rows[n]['time'][-1]['cpu']:.0f}" for n in live]
        say(f"{case.workload} {case.depth} {kind} round {i + 1}:", ", ".join(said))
    for name, process in live.items():
        if name.startswith(contestant.OWN):  # its plan may have changed since
            try:
                rows[name]["mem_after"] = process.mem()
            except contestant.Failed as e:
                rows[name]["failed"] = str(e)


def bench(args, workload, depth):
    result = {"workload": workload, "depth": depth, "load_before": os.getloadavg()[0]}
    names = [n for n in args.contestants if not (n == "revtorch" and workload == "W4")]
    with tempfile.TemporaryDirectory() as folder:
        try:
            case = contestant.Case(args, workload, depth, folder, names)
        except contestant.Failed as e:
            say(f"{workload} {depth}: {e}")
            rows = {n: {"failed": f"not prepared: {e}"} for n in names}
            return dict(result, rows=rows, load_after=os.getloadavg()[0])
        live, result["rows"] = start(case, names)
        try:
            rounds(case, live, result["rows"], args)
        finally:
            for process in live.values():
                process.stop()
    if "revtorch" in args.contestants and workload == "W4":
        result["rows"]["revtorch"] = {"failed": "it has additive couplings only"}
    result["load_after"] = os.getloadavg()[0]
    return result


def output_of(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def processor():
    with open("/proc/cpuinfo") as f:
        names = [line.split(":", 1)[1].strip() for line in f if line.startswith("model name")]
    return names[0] if names else "unknown"


def header(args, cases):
    state = output_of("git", "rev-parse", "--short", "HEAD")
    if output_of("git", "status", "--porcelain", "--untracked-files=no"):
        state += " with changes that are not committed"
    versions = output_of(args.python, "-c", "import importlib.metadata as m; print(', '.join(f'{p} {m.version(p)}' "
                         "for p in ('torch', 'memcnn', 'invtorch', 'revtorch')))")
    given = [f"--cases {' '.join(args.cases)}", f"--rounds {args.rounds}", f"--mem-rounds {args.mem_rounds}",
             f"--threads {args.threads}"]
    loads = ", ".join(f"{c['load_before']:.1f} to {c['load_after']:.1f}" for c in cases)
    return ["# Beside its peers", "",
            f"- processor: {processor()}, {os.cpu_count()} cores; load before and after each workload: {loads}",
            f"- date: {datetime.date.today()}", f"- commit: {state}",
            f"- peers: {versions}, {PACKAGES['ort'][0].replace('==', ' ')}",
            f"- command: `python3 bench/compare.py --environments DIR {' '.join(given)}`",
            "- method and reading: [README.md](../README.md); W4 with `--gain 0.3`", ""]


def kept(path, heading=KEPT):
    """What was written by hand into an earlier file."""
    try:
        with open(path) as f:
            text = f.read()
    except OSError:
        return []
    at = ("\n" + text).find("\n" + heading)
    return text[at:].rstrip("\n").split("\n") if at >= 0 else []


def text_of(args, cases):
    lines, behind = report.summary(cases)
    lines = header(args, cases) + lines
    for case in cases:
        lines += report.case_table(case)
    return lines + ["## The plans", ""] + report.limits(cases), behind


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setup", metavar="DIR", help="make the environments in DIR, and end")
    parser.add_argument("--environments", metavar="DIR", help="what --setup has made")
    parser.add_argument("--peers", default=os.path.join(ROOT, "..", "shared", "peers"), help="folder of the harness")
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"), help="folder of a release build")
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="W:N", help="workload and depth")
    parser.add_argument("--contestants", nargs="+", default=CONTESTANTS, metavar="NAME")
    parser.add_argument("--rounds", type=int, default=5, help="rounds that measure time")
    parser.add_argument("--mem-rounds", type=int, default=2, help="rounds that measure memory")
    parser.add_argument("--retries", type=int, default=2, help="attempts at a disturbed measurement")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300, help="seconds for one answer")
    parser.add_argument("--json", help="file for all numbers")
    parser.add_argument("-o", "--out", help="file for the tables")
    args = parser.parse_args()
    if args.setup:
        setup(args.setup)
        return 0
    if not args.environments or args.rounds < 1 or args.mem_rounds < 1:
        parser.error("--environments is needed, and a round of each kind at least")
    args.peers = os.path.abspath(args.peers)
    args.invonnx, args.step = (os.path.abspath(os.path.join(args.build, p)) for p in ("invonnx", "bench_step"))
    args.python, args.ort_python = (os.path.abspath(os.path.join(args.environments, e, "bin", "python"))
                                    for e in ("torch", "ort"))
    for path in (args.invonnx, args.step, args.python, os.path.join(args.peers, "worker.py")):
        if not os.path.exists(path):
            parser.error(f"{path} is missing: see bench/README.md")
    cases = []
    for which in args.cases:
        workload, depth = which.split(":")
        cases.append(bench(args, workload, int(depth)))
        lines, behind = text_of(args, cases)
        if args.json:
            with open(args.json, "w") as f:
                json.dump(cases, f)
        if args.out:
            lines += kept(args.out)
            os.makedirs(os.path.dirname(os.path.abspath(args.out)), exist_ok=True)
            with open(args.out, "w") as f:
                f.write("\n".join(lines).rstrip("\n") + "\n")
    print("\n".join(lines))
    if behind:
        say("a peer takes less memory or time, or the run did not finish: " + "; ".join(behind))
    return 1 if behind else 0


if __name__ == "__main__":
    sys.exit(main())
