# SPDX-License-Identifier: Apache-2.0
"""What a device reaches at most, through invonnx itself, and the share of that which each operator of a training
reaches. Needs NumPy only.

    python3 bench/roofline.py --invonnx build/cuda/invonnx [--device cuda] [--small] [MODEL --train ARGUMENTS ...]

The ceilings: products of square matrices in float32, and sums of long vectors, chained in a model that is written here,
each node timed by --profile. A node's share is its arithmetic over the ceiling of products or its operands' bytes over
that of sums, whichever is more: below 1 it is the distance from the roofline. Times of a device are between events of
its queue, so what takes less than queuing it (some 5 us) shows the latter."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

CHAIN = 6


# --- ONNX's protobuf messages, as far as two chains need them ---

def number(field, value):
    out = bytes([field << 3])
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def nested(field, *parts):
    body = b"".join(p.encode() if isinstance(p, str) else p for p in parts)
    return bytes([field << 3 | 2]) + number(0, len(body))[1:] + body


def tensor(field, name, dims):
    shape = nested(2, *(nested(1, number(1, d)) for d in dims))
    return nested(field, nested(1, name), nested(2, nested(1, number(1, 1), shape)))


def chain(op, dims):
    """y = op(op(op(x, z), z), z)... of float32."""
    names = ["x", *(f"y{i}" for i in range(CHAIN))]
    nodes = [nested(1, nested(1, a), nested(1, "z"), nested(2, b), nested(4, op)) for a, b in zip(names, names[1:])]
    graph = nested(7, *nodes, nested(2, "chain"), tensor(11, "x", dims), tensor(11, "z", dims),
                   tensor(12, names[-1], dims))
    return number(1, 8) + graph + nested(8, number(2, 17))


# --- measuring ---

def report(args, *command, **environment):
    done = subprocess.run([args.invonnx, *map(str, command), "--profile", "--json", "--device", args.device],
                          capture_output=True, text=True, timeout=args.limit, env={**os.environ, **environment})
    if done.returncode:
        raise SystemExit(f"roofline: {(done.stderr.strip().splitlines() or ['no message'])[-1][:200]}")
    return json.loads(done.stdout)


def timed(r):
    return [t for t in r["timeline"] if t.get("seconds", 0) > 0]


def ceiling(args, op, dims, per_second):
    """The most that a node of the chain reaches; the first of them loads what is loaded once."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        model, data = os.path.join(folder, "chain.onnx"), os.path.join(folder, "data.npy")
        with open(model, "wb") as f:
            f.write(chain(op, dims))
        np.save(data, (rng.standard_normal(dims) / dims[-1] ** 0.5).astype(np.float32))
        rows = timed(report(args, "run", model, "--feed", f"x={data}", "--feed", f"z={data}", INVONNX_NO_FUSE="1"))[1:]
    return max(per_second(t) / t["seconds"] for t in rows)


def shares(rows, flops, bandwidth):
    """Per operator and phase: nodes, seconds, share of the roofline; those first that take most."""
    groups = {}
    for t in rows:
        g = groups.setdefault((t["op"], t["phase"]), [0, 0.0, 0.0])
        g[0] += 1
        g[1] += t["seconds"]
        g[2] += max(t["flops"] / flops if t["op"] in PRODUCTS else 0, t["operand_bytes"] / bandwidth)
    return sorted(groups.items(), key=lambda item: -item[1][1])


PRODUCTS = {"MatMulT", "ConvN", "ConvGradX", "ConvGradW", "AttentionCore", "AttentionGrad", "MatMulPacked"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--invonnx", default="build/cuda/invonnx")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="to test this script")
    parser.add_argument("--limit", type=float, default=60, help="seconds for one run")
    parser.add_argument("--json", help="file for the numbers")
    parser.add_argument("train", nargs=argparse.REMAINDER, help="a training: MODEL and the options of `train`")
    args = parser.parse_args()
    side, length = (64, 1 << 12) if args.small else (4096, 1 << 26)
    flops = ceiling(args, "MatMul", (side, side), lambda t: t["flops"])
    bandwidth = ceiling(args, "Add", (length,), lambda t: t["operand_bytes"])
    print(f"ceilings: products {flops / 1e12:.3g} TFLOP/s in float32, sums {bandwidth / 1e9:.4g} GB/s")
    out = {"flops": flops, "bandwidth": bandwidth}
    if args.train:
        with tempfile.TemporaryDirectory() as folder:
            r = report(args, "train", *args.train, "-o", os.path.join(folder, "out.onnx"))
        rows = timed(r)
        all_seconds = sum(t["seconds"] for t in rows)
        print(f"a step: {1e3 * all_seconds:.3f} ms in {len(rows)} nodes\n\n"
              "| operator | phase | nodes | ms | % | of the roofline |\n|---|---|---:|---:|---:|---:|")
        table = shares(rows, flops, bandwidth)
        for (op, phase), (n, seconds, least) in table[:20]:
            print(f"| {op} | {phase} | {n} | {1e3 * seconds:.3f} | {100 * seconds / all_seconds:.1f} | "
                  f"{100 * least / seconds:.0f} % |")
        out["operators"] = [{"op": op, "phase": phase, "nodes": n, "seconds": s, "share": least / s}
                            for (op, phase), (n, s, least) in table]
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(out, f, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
