# SPDX-License-Identifier: Apache-2.0
"""One training by 1, 2 and 4 processes with the same rows in a step, beside PyTorch's DistributedDataParallel (gloo) on as many
processes: memory of a rank, processor time and wall time of a step, the share of the exchange that is hidden. Needs
onnx, numpy and mpirun; Linux. README.md says how it is measured.

    python3 bench/ranks.py --python PYTHON_WITH_TORCH [-o bench/results/ranks.md]
    python3 bench/ranks.py --tables DIR --environments ENV [-o docs/scaling.md]      plans for 8 to 1,024 ranks
DIR gets the networks of the tables; what is there already is taken, and then ENV (compare.py --setup) is not wanted."""
import argparse
import datetime
import json
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from statistics import median

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import remat
import revnets

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WIDTH, LAYERS, ROWS, OPTIMIZER = 1024, 6, 64, "adam"
FEW, MANY = 4, 32  # steps; what starting takes is the same in both, and goes out
MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,vader", "--mca",
          "btl_vader_single_copy_mechanism", "none"]
NETWORK = ("latency_seconds", "bytes_per_second", "busy_share")  # what `plan --network` wants
MIB = 2**20


def build(folder):
    """LAYERS matrices of WIDTH x WIDTH with Tanh between, and rows to train them on."""
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array((rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32), f"w{i}")
               for i in range(LAYERS)]
    nodes, last = [], "x"
    for i in range(LAYERS):
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"h{i}"]))
        last = f"h{i}"
        if i < LAYERS - 1:
            nodes.append(helper.make_node("Tanh", [last], [f"a{i}"]))
            last = f"a{i}"
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", WIDTH]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8),
              os.path.join(folder, "model.onnx"))
    for name in ("x.npy", "y.npy"):
        np.save(os.path.join(folder, name), rng.standard_normal((ROWS * MANY, WIDTH)).astype(np.float32))


def timed(start):
    """Wall and processor seconds of a call, children included, and what it gave."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    result = start()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.monotonic() - began, used, result


def report_in(text):
    return json.loads(text[text.index("{"):text.rindex("}") + 1])


def words_of(args, ranks, shard="none"):
    return ["model.onnx", "--loss", "mse", "--optimizer", OPTIMIZER, "--batch", ROWS // ranks, "--threads",
            max(1, args.threads // ranks), "--memory", "store", "--shard", shard]


def ours(args, folder, ranks, steps, shard="none"):
    words = [args.invonnx, "train", *words_of(args, ranks, shard), "--data", "x.npy", "--target", "y.npy", "--steps", steps,
             "--json", "-q", "-o", "out.onnx"]
    start = [*MPIRUN, "-n", str(ranks)] if ranks > 1 else []
    words += [] if ranks > 1 else ["--cost", "time"]
    done = subprocess.run([*start, *map(str, words)], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    report = report_in(done.stdout)
    return {"private": report["private_bytes"], "planned": report["planned_peak_bytes"], "process": report["process_bytes"],
            "ranks": report["ranks"], "seconds": report["seconds"],
            "predicted": report["ranks"]["step_seconds"] if ranks > 1 else report["predicted_seconds"]}


def planned(args, folder, ranks, shard, network):
    """Of a plan for ranks that are not there, with the network as it was measured: seconds of a step, and bytes. It measures
    the rates, where there are none."""
    words = [args.invonnx, "plan", *words_of(args, ranks, shard), "--cost", "time", "--json"]
    if ranks > 1:
        words += ["--ranks", ranks, "--ranks-per-host", ranks, "--network", ":".join(f"{x:.9g}" for x in network)]
    else:
        words = [w for w in words if w not in ("--shard", shard)]
    done = subprocess.run(list(map(str, words)), cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    report = report_in(done.stdout)
    seconds = report["ranks"]["step_seconds"] if ranks > 1 else report["predicted_seconds"]
    return seconds, report["planned_peak_bytes"]


def theirs(args, folder, ranks, steps):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    words = [args.python, os.path.join(ROOT, "bench", "ddp_step.py"), folder, ranks, ROWS // ranks, steps,
             max(1, args.threads // ranks)]
    processes = []
    for rank in range(ranks):
        env = {**os.environ, "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        processes.append(subprocess.Popen([*map(str, words)], env=env, stdout=subprocess.PIPE, text=True))
    out = [p.communicate()[0] for p in processes]
    if any(p.returncode for p in processes):
        sys.exit("ddp_step.py failed")
    return json.loads(out[0].splitlines()[-1])


def measure(args, folder, starts):
    """Of each, in turns: the median over rounds of a step's wall and processor seconds, of what is predicted after the first
    steps of the longer call, and what the last one of these gave."""
    found = [[] for _ in starts]
    for _ in range(args.rounds):
        for k, start in enumerate(starts):
            few, many = (timed(lambda n=n: start(n)) for n in (FEW, MANY))
            found[k].append(((many[2]["seconds"] - few[2]["seconds"]) / (MANY - FEW), (many[1] - few[1]) / (MANY - FEW), many[2]))
    return [(median(w for w, _, _ in f), median(u for _, u, _ in f), median(r.get("predicted") or 0 for _, _, r in f), f[-1][2])
            for f in found]


def table(args, folder):
    lines = ["| processes | | memory of a rank, MiB | planned, MiB | processor s / step | wall s / step | predicted by rates "
             "| by the first steps | off by | by a plan after the runs | processor moves bytes | under way | hidden |",
             "|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for ranks in args.ranks:
        shards = ("none", "optimizer", "gradients") if ranks > 1 else ("none",)
        network = [ours(args, folder, ranks, 1)["ranks"][name] for name in NETWORK] if ranks > 1 else None
        before = {shard: planned(args, folder, ranks, shard, network)[0] for shard in shards}
        starts = [lambda n, r=ranks, s=shard: ours(args, folder, r, n, s) for shard in shards]
        if args.python:
            starts.append(lambda n, r=ranks: theirs(args, folder, r, n))
        for name, (wall, used, after, r) in zip([*shards, "PyTorch DDP"], measure(args, folder, starts)):
            line = f"| {ranks} | {name if name[0] == 'P' else 'invonnx, shard ' + name} | {r['private'] / MIB:.1f} | "
            if "planned" not in r:
                lines.append(line + f"- | {used:.4f} | {wall:.4f} | - | - | - | - | - | - | - |")
                continue
            x = r["ranks"] or {}
            network = [x[name] for name in NETWORK] if x else None
            seconds, peak = planned(args, folder, ranks, name, network)
            if peak != r["planned"]:
                print(f"planned for {ranks} ranks that are not there: {peak}, for those that are: {r['planned']}", file=sys.stderr)
            under = f"{x['under_way_seconds'] / MANY:.4f}" if x else "-"
            busy = f"{100 * x['busy_share']:.0f} %" if x else "-"
            hidden = f"{100 * (1 - x['waited_seconds'] / x['under_way_seconds']):.0f} %" if x else "-"
            lines.append(line + f"{r['process'] / MIB:.1f} | {used:.4f} | {wall:.4f} | {before[name]:.4f} | {after:.4f} | "
                         f"{100 * (after / wall - 1):+.0f} % | {seconds:.4f} | {busy} | {under} | {hidden} |")
    return lines


# --- tables of ranks that are not there ---

TABLE_RANKS = (8, 128, 1024)


def network_of(args):
    """What `--network` wants, as two ranks on this machine measure them: the median of some runs."""
    with tempfile.TemporaryDirectory() as folder:
        build(folder)
        seen = [ours(args, folder, 2, 1)["ranks"] for _ in range(5)]
    return [median(x[name] for x in seen) for name in NETWORK]


def networks(args):
    """(title, words for `plan`) of each; made now if it is not there."""
    os.makedirs(args.tables, exist_ok=True)
    resnet, gpt, revnet = (os.path.join(args.tables, n + ".onnx") for n in ("resnet50", "gpt2_small", "RevNet-110"))
    if not os.path.exists(resnet):
        remat.build(resnet)
    if not os.path.exists(gpt):
        subprocess.run([os.path.join(args.environments or "", "torch", "bin", "python"), os.path.join(ROOT, "bench", "torch_step.py"),
                        "export", "gpt2_small", args.tables, "--steps", "1"], check=True, stdout=subprocess.DEVNULL)
    if not os.path.exists(revnet):
        revnets.build(revnet, revnets.PAPER["RevNet-110"])
    common = ["--loss", "cross_entropy", "--threads", args.threads]
    yield "ResNet-50, 16 images of 224 x 224 on each rank, momentum, all values stored", [
        resnet, *common, "--batch", 16, "--optimizer", "momentum", "--memory", "store"]
    yield "GPT-2 small, 2 rows of 128 tokens on each rank, adamw, all values stored", [
        gpt, *common, "--class-axis", 2, "--optimizer", "adamw", "--memory", "store"]
    yield "RevNet-110, 100 images of 32 x 32 on each rank, adamw, values inverted", [
        revnet, *common, "--batch", 100, "--optimizer", "adamw", "--memory", "invert"]


def rows_of(args, words, network):
    lines = ["| ranks | none: MiB | waits, s | step, s | optimizer: MiB | waits, s | step, s | gradients: MiB | waits, s | step, s | recommended |",
             "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|"]
    for ranks in TABLE_RANKS:
        done = subprocess.run([args.invonnx, "plan", *map(str, words), "--cost", "time", "--json", "--ranks", str(ranks),
                               "--network", ":".join(f"{x:.9g}" for x in network)], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        r = report_in(done.stdout)["ranks"]
        cells = [f"{c['planned_peak_bytes'] / MIB:.0f} | {c['exposed_seconds']:.3f} | {c['step_seconds']:.3f}" for c in r["choices"]]
        lines.append(f"| {ranks:,} | {' | '.join(cells)} | {r['shard']} |")
    return lines


def tables(args):
    """The text of a section."""
    here = network_of(args)
    lines = [TABLES, "", f"Made by `python3 bench/ranks.py --tables DIR --environments ENV -o docs/scaling.md`, {datetime.date.today()}, "
             f"{args.threads} threads of {processor()}.", "", *ASSUMED, ""]
    for title, words in networks(args):
        for name, network in ((f"as measured here, {1e6 * here[0]:.1f} microseconds and {here[1] / 1e9:.2f} GB/s, a share of {here[2]:.2f} by the "
                               "processor", here),
                              ("10 Gbit/s Ethernet as assumed, 50 microseconds and 1.25 GB/s", (5e-5, 1.25e9, 0))):
            lines += [f"**{title}**; network {name}:", "", *rows_of(args, words, network), ""]
            print("\n".join(lines[-len(TABLE_RANKS) - 5:]), flush=True)
    return lines


TABLES = "## Tables"
ASSUMED = ["The prediction assumes:", "",
           "- Every rank computes at the rates that were measured on this processor.",
           "- A rank has the same number of rows for any number of ranks.",
           "- A bucket is exchanged in two halves, reduce-scatter and all-gather.",
           "  Each half takes N - 1 messages of 1/N of the bucket, one after the other, at full speed during computation.",
           "- All ranks run at one speed.",
           "- Nothing else uses the network, and the network card moves the bytes.", "",
           "Columns:", "",
           "- *MiB*: the planned peak of a rank (parameters, gradients, optimizer states, activations, buckets).",
           "- *waits*: the part of the exchange that is not hidden.",
           "- *step*: the predicted time of a step.", "",
           "The network *as measured here* is two ranks on one machine, which exchange through its memory.",
           "It is not like a network of machines."]


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        return next((line.split(":", 1)[1].strip() for line in f if line.startswith("model name")), "an unknown processor")


def put_section(path, lines):
    """In place of the section of that title, or at the end."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    before, _, rest = text.partition(TABLES + "\n")
    after = rest[rest.index("\n## ") + 1:] if "\n## " in rest else ""
    with open(path, "w", encoding="utf-8") as f:
        f.write(before.rstrip("\n") + "\n\n" + "\n".join(lines) + ("\n" + after if after else ""))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--invonnx", default=os.path.join(ROOT, "build", "release", "invonnx"))
    parser.add_argument("--python", help="one that has PyTorch; without, nothing is compared")
    parser.add_argument("--threads", type=int, default=2, help="of all processes together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=(1, 2, 4))
    parser.add_argument("--tables", metavar="DIR", help="plans for 8 to 1,024 ranks instead; where their networks are")
    parser.add_argument("--environments", metavar="ENV")
    parser.add_argument("-o", "--out")
    args = parser.parse_args()
    args.invonnx = os.path.abspath(args.invonnx)
    if args.tables:
        lines = tables(args)
        if args.out:
            put_section(args.out, lines)
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = os.path.join(folder, "cache")  # rates of this machine now, and nothing of earlier runs
        build(folder)
        lines = table(args, folder)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    head = ["# Several processes", "", f"- date: {datetime.date.today()}; commit: {commit}; load when it ended: "
            f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", f"- {LAYERS} products of {WIDTH} x {WIDTH} with Tanh between, "
            f"{ROWS} rows in a step of all processes, {OPTIMIZER}, {args.threads} threads in all (one at least in each process), the "
            f"median of {args.rounds} rounds, all in turns", "- method and reading: [README.md](../README.md)", ""]
    text = "\n".join(head + lines) + "\n"
    if args.out:
        with open(args.out, "w", encoding="utf-8") as f:
            f.write(text)
    print(text)


if __name__ == "__main__":
    main()
