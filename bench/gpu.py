# SPDX-License-Identifier: Apache-2.0
"""Time of a training step and memory on a device, values stored, inverted and offloaded, and the same network in
PyTorch (eager, and with MemCNN's couplings) where this Python has them. The method is described in README.md.

    python3 bench/gpu.py --invonnx build/cuda/invonnx              prints the table
    python3 bench/gpu.py --json FILE --seconds 120                 also as JSON; begins nothing new after 120 s

The network: tests/data/revnet_c*.onnx, 24 channels, 16x16 images, float32 without TF32, plain SGD."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SIZES = ((16, 256), (16, 2048), (64, 256), (64, 2048))
WARM = 3  # steps that are not timed: plans, graphs and caches are made in them


def own(args, couplings, batch, memory):
    """One training run; one batch is all the data, so that an epoch is a step."""
    mode = ("--mode", "*=offload") if memory == "offload" else ("--memory", memory)
    with tempfile.TemporaryDirectory() as folder:
        rng = np.random.default_rng(0)
        x, y, out = (os.path.join(folder, f) for f in ("x.npy", "y.npy", "out.onnx"))
        np.save(x, rng.standard_normal((batch, 1, 16, 16)).astype(np.float32))
        np.save(y, rng.integers(0, 10, batch))
        done = subprocess.run(
            [args.invonnx, "train", os.path.join(ROOT, "tests", "data", f"revnet_c{couplings}.onnx"), "--data", x,
             "--target", y, "--loss", "cross_entropy", "--batch", str(batch), "--steps", str(args.steps + WARM),
             *mode, "--no-shuffle", "--device", args.device, "-o", out, "--json"],
            capture_output=True, text=True, timeout=args.limit)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1][:200])
    report = json.loads(done.stdout)
    # An epoch is one step here, and the report has the seconds of each.
    return {"seconds": [e["seconds"] for e in report["epochs"]][WARM:], "planned": report["planned_peak_bytes"],
            "peak": report["peak_bytes"], "inverted": report["values"]["inverted"]}


def torch_step(device, couplings, batch, memcnn):
    """A function that starts one step on `device`."""
    import torch
    from torch import nn
    sys.path.insert(0, os.path.join(ROOT, "examples"))
    import export_revnet
    torch.manual_seed(1)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    net = export_revnet.RevNet(couplings=couplings, channels=24, spelling="split").train()
    if memcnn:
        from memcnn import AdditiveCoupling, InvertibleModuleWrapper
        net.blocks = nn.Sequential(*[
            InvertibleModuleWrapper(fn=AdditiveCoupling(Fm=b.f, Gm=b.g), keep_input=False, keep_input_inverse=False)
            for b in net.blocks])
    net.to(device)
    rule = torch.optim.SGD(net.parameters(), lr=1e-3)
    x = torch.randn(batch, 1, 16, 16, device=device)
    y = torch.randint(0, 10, (batch,), device=device)
    loss_of = nn.CrossEntropyLoss()

    def step():
        rule.zero_grad(set_to_none=True)
        loss_of(net(x), y).backward()
        rule.step()
    return step


def peer(args, couplings, batch, memcnn):
    import torch
    device = "cuda" if args.device == "cuda" else "cpu"
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    step = torch_step(device, couplings, batch, memcnn)
    for _ in range(WARM):
        step()
    wait()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = []
    for _ in range(args.steps):
        begin = time.perf_counter()
        step()
        wait()
        seconds.append(time.perf_counter() - begin)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    del step
    if device == "cuda":
        torch.cuda.empty_cache()
    return {"seconds": seconds, "peak": peak}


def contestants():
    yield "invonnx store", lambda a, c, b: own(a, c, b, "store")
    yield "invonnx invert", lambda a, c, b: own(a, c, b, "invert")
    yield "invonnx offload", lambda a, c, b: own(a, c, b, "offload")
    yield "PyTorch eager", lambda a, c, b: peer(a, c, b, False)
    yield "PyTorch MemCNN", lambda a, c, b: peer(a, c, b, True)


def measure(args):
    end, rows, absent = time.monotonic() + args.seconds, [], set()
    for couplings, batch in args.sizes:
        for name, run in contestants():
            row = {"couplings": couplings, "batch": batch, "what": name}
            if name in absent:
                continue
            if time.monotonic() > end:
                rows.append(dict(row, error="no time left"))
                continue
            try:
                row.update(run(args, couplings, batch))
                if not row["seconds"]:
                    row["error"] = "no step was timed"
            except ImportError as e:
                absent.add(name)
                row["error"] = f"not here ({e.name})"
            except Exception as e:  # a benchmark goes on with the next one
                row["error"] = f"{type(e).__name__}: {e}"[:300]
            rows.append(row)
            print(f"bench: {couplings} couplings, batch {batch}, {name}: "
                  + (row.get("error") or f"{statistics.median(row['seconds']) * 1e3:.2f} ms"), file=sys.stderr)
    return rows


def table(rows):
    lines = ["| couplings | batch | what | ms per step | (fastest .. slowest) | against own store | peak MiB | planned MiB |",
             "|---:|---:|---|---:|---|---:|---:|---:|"]
    for r in rows:
        head = f"| {r['couplings']} | {r['batch']} | {r['what']} "
        if "error" in r:
            lines.append(head + f"| {r['error']} | | | | |")
            continue
        ms = [s * 1e3 for s in r["seconds"]]
        base = [q for q in rows if q["what"] == "invonnx store" and "seconds" in q
                and (q["couplings"], q["batch"]) == (r["couplings"], r["batch"])]
        ratio = f"{statistics.median(ms) / 1e3 / statistics.median(base[0]['seconds']):.2f}" if base else ""
        mib = [f"{r[k] / 2**20:.1f}" if r.get(k) else "" for k in ("peak", "planned")]
        lines.append(head + f"| {statistics.median(ms):.2f} | {min(ms):.2f} .. {max(ms):.2f} | {ratio} "
                            f"| {mib[0]} | {mib[1]} |")
    return lines


def size(text):
    couplings, _, batch = text.partition("x")
    return int(couplings), int(batch)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--invonnx", default=os.path.join(ROOT, "build", "cuda", "invonnx"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", type=size, nargs="+", default=SIZES, metavar="COUPLINGSxBATCH",
                        help="of 4, 16, 64 couplings, as 16x256")
    parser.add_argument("--steps", type=int, default=20, help="timed steps")
    parser.add_argument("--seconds", type=float, default=600, help="begin nothing new after these")
    parser.add_argument("--limit", type=float, default=120, help="seconds for one run of the program")
    parser.add_argument("--json", help="file for the raw numbers")
    args = parser.parse_args()
    rows = measure(args)
    print("\n".join(table(rows)))
    if args.json:
        with open(args.json, "w") as f:
            json.dump(rows, f)
    return int(any("error" in r for r in rows if r["what"].startswith("invonnx")))


if __name__ == "__main__":
    sys.exit(main())
