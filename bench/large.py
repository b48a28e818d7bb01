# SPDX-License-Identifier: Apache-2.0
"""Anonymous memory of the program on a model of 2.5 GB, whose weights are in the file or beside it: what it allocates
beyond what the step itself needs. Method in README.md. Needs numpy, three times the model's size on the disk, and for
`run` and `train` its size as memory.

    python3 bench/large.py --invonnx build/release/invonnx [--folder DIR]      prints the table
    python3 bench/large.py --invonnx build/release/invonnx -o FILE             writes it with machine and command, too"""
import argparse
import datetime
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
MIB = 2**20
LIMIT = 150 * MIB
WIDTH, WORDS = 1024, 64
FLOAT, INT64 = 1, 7


# --- a model, written field by field: libraries for protobuf stop at 2 GiB ---

def varint(n):
    out = b""
    while n >= 0x80:
        out += bytes([n & 0x7F | 0x80])
        n >>= 7
    return out + bytes([n])


def integer(field, n):
    return varint(field << 3) + varint(n)


def header(field, length):
    return varint(field << 3 | 2) + varint(length)


def chunk(field, data):
    data = data.encode() if isinstance(data, str) else data
    return header(field, len(data)) + data


def attribute(name, n):
    return chunk(5, chunk(1, name) + integer(3, n) + integer(20, 2))


def node(op, inputs, output, attributes=b""):
    return chunk(1, b"".join(chunk(1, i) for i in inputs) + chunk(2, output) + chunk(3, output) + chunk(4, op) +
                 attributes)


def typed(field, name, dtype, dims):
    shape = b"".join(chunk(1, integer(1, d)) for d in dims)
    return chunk(field, chunk(1, name) + chunk(2, chunk(1, integer(1, dtype) + chunk(2, shape))))


def weights(rows):
    """name -> dims: an embedding, wide layers, and small square ones inside of couplings, which have inverses."""
    dims = {"words": (rows, WIDTH)}
    for i in range(2):
        dims[f"up{i}"] = (WIDTH, 64 * WIDTH)
        dims[f"down{i}"] = (64 * WIDTH, WIDTH)
    for i in range(4):
        dims[f"branch{i}"] = (WIDTH // 2, WIDTH // 2)
        dims[f"square{i}"] = (WIDTH // 2, WIDTH // 2)
    dims["bias"] = (WIDTH,)
    return dims


def nodes():
    """The embedding of words, two wide layers around the residual, four couplings."""
    out, x = [node("Gather", ["words", "ids"], "x")], "x"
    for i in range(2):
        out += [node("MatMul", [x, f"up{i}"], f"wide{i}"), node("Relu", [f"wide{i}"], f"relu{i}"),
                node("MatMul", [f"relu{i}", f"down{i}"], f"narrow{i}"), node("Add", [x, f"narrow{i}"], f"res{i}")]
        x = f"res{i}"
    out.append(node("Split", [x], "a0", chunk(2, "b0") + attribute("axis", 1)))
    for i in range(4):
        out += [node("MatMul", [f"a{i}", f"branch{i}"], f"f{i}"), node("Tanh", [f"f{i}"], f"t{i}"),
                node("Add", [f"b{i}", f"t{i}"], f"a{i + 1}"),
                node("MatMul", [f"a{i}", f"square{i}"], f"b{i + 1}")]
    return out + [node("Concat", ["a4", "b4"], "joined", attribute("axis", 1)), node("Add", ["joined", "bias"], "y")]


def values(dims, block=np.random.default_rng(0).standard_normal(4 * MIB, np.float32)):
    """Bytes of a tensor, piece by piece, of the scale that keeps activations as they are."""
    left, scale = int(np.prod(dims)), np.float32(1 / np.sqrt(dims[0]) if len(dims) > 1 else 0.1)
    while left:
        n = min(left, block.size)
        yield (block[:n] * scale).tobytes()
        left -= n


def head(name, dims):
    return b"".join(integer(1, d) for d in dims) + integer(2, FLOAT) + chunk(8, name)


def tensor_length(dims):
    return 4 * int(np.prod(dims))


def inline_parts(dims):
    """Initializers as (bytes before the data, dims or None)."""
    for name, d in dims.items():
        h, n = head(name, d), tensor_length(d)
        raw = header(9, n)
        yield header(5, len(h) + len(raw) + n) + h + raw, d


def external_parts(dims):
    offset = 0
    for name, d in dims.items():
        n = tensor_length(d)
        entries = b"".join(chunk(13, chunk(1, k) + chunk(2, str(v)))
                           for k, v in (("location", "weights.bin"), ("offset", offset), ("length", n)))
        yield chunk(5, head(name, d) + entries + integer(14, 1)), None
        offset += n


def write_model(path, dims, external):
    parts = list(external_parts(dims) if external else inline_parts(dims))
    front = b"".join(nodes()) + chunk(2, "large")
    back = typed(11, "ids", INT64, [WORDS]) + typed(12, "y", FLOAT, [WORDS, WIDTH])
    length = len(front) + len(back) + sum(len(p) + (tensor_length(d) if d else 0) for p, d in parts)
    with open(path, "wb") as f:
        f.write(integer(1, 8) + header(7, length) + front)
        for prefix, d in parts:
            f.write(prefix)
            for piece in values(d) if d else ():
                f.write(piece)
        f.write(back + chunk(8, chunk(1, "") + integer(2, 13)))
    if external:
        with open(os.path.join(os.path.dirname(path), "weights.bin"), "wb") as f:
            for d in dims.values():
                for piece in values(d):
                    f.write(piece)


# --- measuring ---

def watch(child):
    """Waits; peaks of the child's anonymous memory and of its file mappings in bytes."""
    anonymous = mapped = 0
    while child.poll() is None:
        try:
            with open(f"/proc/{child.pid}/status") as f:
                fields = dict(line.split(":", 1) for line in f)
            anonymous = max(anonymous, int(fields["RssAnon"].split()[0]))
            mapped = max(mapped, int(fields["RssFile"].split()[0]))
        except (OSError, KeyError, ValueError):
            pass
        time.sleep(0.001)
    return anonymous * 1024, mapped * 1024


def measure(args, name, *options):
    """(anonymous bytes, mapped bytes, seconds, report)"""
    command = [args.invonnx, name, *options, "--json"]
    begin = time.monotonic()
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL)
        anonymous, mapped = watch(child)
        seconds = time.monotonic() - begin
        if child.returncode != 0:
            sys.exit(f"exit status {child.returncode}: {shlex.join(command)}")
        out.seek(0)
        return anonymous, mapped, seconds, json.load(out)


def calls(folder, model):
    """What is called, by name."""
    out = os.path.join(folder, "out.onnx")
    step = ["--threads", "2", "--batch", str(WORDS)]
    return {
        "inspect": ("inspect", model),
        "rewrite": ("rewrite", model, "-o", out),
        "run": ("run", model, "--feed", os.path.join(folder, "ids.npy"), "--threads", "2"),
        "train": ("train", model, "--data", os.path.join(folder, "ids.npy"), "--target", os.path.join(folder, "t.npy"),
                  "--loss", "mse", "--train-only", "bias", "--train-only", "branch*", "--steps", "1", "-o", out, *step),
    }


def clean(folder):
    for name in os.listdir(folder):
        if name.startswith("out.onnx"):
            os.unlink(os.path.join(folder, name))


def table(args, folder):
    rows = ["| weights | command | anonymous MiB | needed by the step MiB | beyond MiB | mapped MiB | s |",
            "|---|---|---:|---:|---:|---:|---:|"]
    dims, good = weights(int(args.rows)), True
    for external in (False, True):
        model = os.path.join(folder, "model.onnx")
        write_model(model, dims, external)
        for name, call in calls(folder, model).items():
            anonymous, mapped, seconds, report = measure(args, *call)
            clean(folder)
            needed = report.get("planned_peak_bytes", 0) if name in ("run", "train") else 0
            beyond = anonymous - needed
            good = good and beyond <= LIMIT
            rows.append(f"| {'beside' if external else 'in the file'} | {name} | {anonymous / MIB:.1f} | "
                        f"{needed / MIB:.1f} | {beyond / MIB:.1f} | {mapped / MIB:.0f} | {seconds:.1f} |")
            print(rows[-1], file=sys.stderr)
    return rows, sum(tensor_length(d) for d in dims.values()), good


def processor():
    with open("/proc/cpuinfo") as f:
        names = [line.split(":", 1)[1].strip() for line in f if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else "unknown"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--invonnx", default=os.path.join(ROOT, "build", "release", "invonnx"))
    parser.add_argument("--folder", help="where the model is written (default: the system's folder for such)")
    parser.add_argument("--rows", default=400000, help="of the embedding (default 400000: 2.5 GiB in all)")
    parser.add_argument("-o", "--output")
    args = parser.parse_args()
    folder = tempfile.mkdtemp(dir=args.folder)
    try:
        free, size = shutil.disk_usage(folder).free, sum(map(tensor_length, weights(int(args.rows)).values()))
        if free < 4 * size:
            sys.exit(f"{free / MIB:.0f} MiB are free in {folder}, {4 * size / MIB:.0f} MiB are needed")
        np.save(os.path.join(folder, "ids.npy"), np.random.default_rng(1).integers(0, int(args.rows), WORDS))
        np.save(os.path.join(folder, "t.npy"), np.zeros((WORDS, WIDTH), np.float32))
        rows, nbytes, good = table(args, folder)
    finally:
        shutil.rmtree(folder)
    commit = subprocess.run(["git", "-C", ROOT, "describe", "--always", "--dirty"], capture_output=True, text=True)
    text = "\n".join([
        "# Anonymous memory on a large model", "",
        f"- processor: {processor()}, load {os.getloadavg()[0]:.1f} at the end",
        f"- date: {datetime.date.today()}",
        f"- commit: {commit.stdout.strip() or 'unknown'}",
        f"- weights: {nbytes / MIB:.0f} MiB; limit of `beyond`: {LIMIT / MIB:.0f} MiB",
        f"- command: `{shlex.join(['python3', *sys.argv])}`",
        "- method and reading: [README.md](../README.md)", "", *rows, ""])
    if args.output:
        with open(args.output, "w") as f:
            f.write(text)
    else:
        print(text)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
