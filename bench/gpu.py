# SPDX-License-Identifier: Apache-2.0
"""Time of a training step and memory on a device, values stored, inverted and offloaded, and the same networks in PyTorch
(eager, as a CUDA graph, and with MemCNN's couplings) where this Python has them. README.md says how it is measured.

    python3 bench/gpu.py --invonnx build/cuda/invonnx              prints the table
    python3 bench/gpu.py --json FILE --seconds 120                 also as JSON; begins nothing new after 120 s
    python3 bench/gpu.py --cases revnet:64x2048 resnet50:64        RevNets of 4, 16, 64 couplings, ResNet-50, GPT-2 small
    python3 bench/gpu.py --cases flow:32x1024                      32 affine couplings, with and without joint nodes"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
WARM = 3  # epochs that are not timed: plans, graphs and caches are made in them
BATCHES = 4  # of an epoch of ours: rows come from files, in another order each time, and are sent while steps compute


# --- the networks: a file for invonnx, a module for PyTorch ---

class RevNet:
    """tests/data/revnet_c*.onnx: 24 channels, 16x16 images; SGD."""
    classes, words, optimizer, class_axis = 10, 0, "sgd", 1
    own = {"store": ("--memory", "store"), "invert": ("--memory", "invert"),
           "invert, one queue": ("--memory", "invert", "INVONNX_ONE_QUEUE=1"), "offload": ("--mode", "*=offload")}
    peers = {"eager": {}, "eager, TF32": {"tf32": True}, "CUDA graph": {"graph": True},
             "MemCNN": {"memcnn": True}}

    def __init__(self, size):
        self.couplings, batch = map(int, size.split("x"))
        self.name, self.x, self.y = f"RevNet, {self.couplings} couplings", (batch, 1, 16, 16), (batch,)

    def file(self, _):
        return os.path.join(ROOT, "tests", "data", f"revnet_c{self.couplings}.onnx")

    def module(self, memcnn=False):
        from torch import nn
        sys.path.insert(0, os.path.join(ROOT, "examples"))
        import export_revnet
        net = export_revnet.RevNet(couplings=self.couplings, channels=24, spelling="split")
        if memcnn:
            from memcnn import AdditiveCoupling, InvertibleModuleWrapper
            net.blocks = nn.Sequential(*[
                InvertibleModuleWrapper(fn=AdditiveCoupling(Fm=b.f, Gm=b.g), keep_input=False, keep_input_inverse=False)
                for b in net.blocks])
        return net


class ResNet50:
    """Images of 224x224; SGD."""
    classes, words, optimizer, class_axis = 1000, 0, "sgd", 1
    own = {"store": ("--memory", "store"), "auto": ("--memory", "auto"),
           "store, TF32": ("--memory", "store", "--precision", "tf32"),
           "store, TF32, channels second": ("--memory", "store", "--precision", "tf32", "INVONNX_CHANNELS_SECOND=1")}
    peers = {"eager": {}, "eager, TF32": {"tf32": True}, "CUDA graph": {"graph": True}}

    def __init__(self, batch):
        self.name, self.x, self.y = "ResNet-50", (int(batch), 3, 224, 224), (int(batch),)

    def file(self, folder):
        import remat
        remat.build(os.path.join(folder, "model.onnx"))
        return os.path.join(folder, "model.onnx")

    def module(self):
        import torchvision
        return torchvision.models.resnet50()


class GPT2:
    """The shape of GPT-2 small, every word attending to all, head and embedding one; Adam."""
    classes, words, optimizer, class_axis = 50257, 50257, "adam", 2
    own = {"store": ("--memory", "store"), "auto": ("--memory", "auto"),
           "store, TF32": ("--memory", "store", "--precision", "tf32"),
           "store, bfloat16": ("--memory", "store", "--precision", "bf16")}
    peers = {"eager": {}, "eager, TF32": {"tf32": True}, "CUDA graph": {"graph": True}}

    def __init__(self, size):
        self.name, self.x = "GPT-2 small", tuple(map(int, size.split("x")))
        self.y = self.x

    def file(self, folder):
        import cost
        cost.gpt(os.path.join(folder, "model.onnx"), 12, 768, 12, self.x[1], self.words, tied=True)
        return os.path.join(folder, "model.onnx")

    def module(self):
        import networks
        return networks.GPT(places=self.x[1], causal=False, gelu="none")


class Flow:
    """Affine couplings of three small matrices each: launches, more than arithmetic. nll; Adam."""
    optimizer = "adam"
    own = {f"{mode}{told}": ("--memory", mode, *more) for mode in ("store", "invert")
           for told, more in (("", ()), (", single nodes", ("INVONNX_NO_FUSE=1",)))}
    peers = {}

    def __init__(self, size):
        self.couplings, batch = map(int, size.split("x"))
        self.name, self.x, self.y, self.words = f"flow, {self.couplings} couplings", (batch, 64), None, 0

    def file(self, folder):
        import onnx
        from onnx import TensorProto, helper, numpy_helper
        rng, nodes, weights, halves = np.random.default_rng(1), [], [], ["a", "b"]

        def put(kind, *inputs):
            nodes.append(helper.make_node(kind, inputs, [f"v{len(nodes)}"]))
            return nodes[-1].output[0]

        def linear(x, size):
            array = rng.standard_normal(size).astype(np.float32) / np.float32(size[0] ** 0.5)
            weights.extend([numpy_helper.from_array(array, f"w{len(weights)}"),
                            numpy_helper.from_array(np.zeros(size[1], np.float32), f"b{len(weights)}")])
            return put("Gemm", x, weights[-2].name, weights[-1].name)

        nodes.append(helper.make_node("Split", ["x"], halves, axis=1, num_outputs=2))
        for _ in range(self.couplings):
            hidden = put("Relu", linear(halves[0], (32, 128)))
            scaled = put("Mul", halves[1], put("Exp", put("Tanh", linear(hidden, (128, 32)))))
            halves = [put("Add", scaled, linear(hidden, (128, 32))), halves[0]]
        nodes.append(helper.make_node("Concat", halves, ["z"], axis=1))
        io = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 64]) for name in "xz"]
        graph = helper.make_graph(nodes, "flow", io[:1], io[1:], weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), os.path.join(folder, "model.onnx"))
        return os.path.join(folder, "model.onnx")


NETWORKS = {"revnet": RevNet, "resnet50": ResNet50, "gpt2": GPT2, "flow": Flow}
CASES = ("revnet:16x256", "revnet:64x256", "revnet:64x2048", "resnet50:64", "gpt2:4x1024")


def case_of(text):
    kind, _, size = text.partition(":")
    return NETWORKS[kind](size)


def training(case, folder):
    """Arguments of `train`; the files are made the first time."""
    if not hasattr(case, "path"):
        for name, array in zip("xy", rows_of(case, BATCHES)):
            np.save(f"{folder}/{name}.npy", array)
        case.path = case.file(folder)
    loss = ("--loss", "nll", "--logdet", "rules")
    if case.y:
        loss = ("--target", f"{folder}/y.npy", "--loss", "cross_entropy", "--class-axis", str(case.class_axis))
    return [case.path, "--data", f"{folder}/x.npy", *loss, "--batch", str(case.x[0]), "--optimizer", case.optimizer,
            "--lr", "1e-4"]


def rows_of(case, batches=1):
    """Inputs, and labels where there are any."""
    rng = np.random.default_rng(0)
    x = (batches * case.x[0], *case.x[1:])
    numbers = rng.integers(0, case.words, x) if case.words else rng.standard_normal(x, np.float32)
    return (numbers, rng.integers(0, case.classes, (batches * case.y[0], *case.y[1:]))) if case.y else (numbers,)


# --- the contestants ---

def own(args, case, folder, options):
    """One training run, as users make it; a step counts as its part of an epoch. NAME=VALUE goes into the environment."""
    environment = dict(o.split("=", 1) for o in options if o.startswith("INVONNX_"))
    options = [o for o in options if not o.startswith("INVONNX_")]
    done = subprocess.run(
        [args.invonnx, "train", *training(case, folder), "--epochs", str(-(-args.steps // BATCHES) + WARM), *options,
         "--device", args.device, "-o", f"{folder}/out.onnx", "--json"], capture_output=True, text=True, timeout=args.limit,
        env=dict(os.environ, **environment))
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["no message"])[-1][:200])
    report = json.loads(done.stdout)
    return {"seconds": [e["seconds"] / BATCHES for e in report["epochs"]][WARM:], "planned": report["planned_peak_bytes"],
            "peak": report["peak_bytes"], "inverted": report["values"]["inverted"]}


def peer_step(case, device, tf32=False, graph=False, **module):
    """A function that starts one step on `device`."""
    import torch
    torch.manual_seed(1)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
    net = case.module(**module).train().to(device)
    rule = torch.optim.SGD(net.parameters(), lr=1e-4) if case.optimizer == "sgd" else \
        torch.optim.Adam(net.parameters(), lr=1e-4, capturable=graph)
    x, y = (torch.from_numpy(a).to(device) for a in rows_of(case))
    loss_of = torch.nn.CrossEntropyLoss()

    def step():
        rule.zero_grad(set_to_none=True)
        loss_of(net(x).movedim(case.class_axis, 1), y).backward()
        rule.step()
    if not graph:
        return step
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(WARM):
            step()
    torch.cuda.current_stream().wait_stream(side)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        step()
    recorded.step = step  # holds the tensors that the graph reads
    return recorded.replay


def peer(args, case, options):
    import torch
    device = "cuda" if args.device == "cuda" else "cpu"
    if device == "cpu" and options.get("graph"):
        raise RuntimeError("only on a GPU")
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    step = peer_step(case, device, **options)
    for _ in range(WARM):
        step()
    wait()
    seconds = []
    for _ in range(args.steps):
        begin = time.perf_counter()
        step()
        wait()
        seconds.append(time.perf_counter() - begin)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    return {"seconds": seconds, "peak": peak}


def contestants(case, folder):
    for name, options in case.own.items():
        yield f"invonnx {name}", lambda args, options=options: own(args, case, folder, options)
    for name, options in case.peers.items():
        yield f"PyTorch {name}", lambda args, options=options: peer(args, case, options)


def measure(args):
    end, rows, absent = time.monotonic() + args.seconds, [], set()
    for text in args.cases:
        case = case_of(text)
        with tempfile.TemporaryDirectory() as folder:
            for name, run in contestants(case, folder):
                if name in absent or not name.startswith(args.only):
                    continue
                row = {"case": text, "network": case.name, "batch": "x".join(map(str, case.x)), "what": name}
                rows.append(row)
                try:
                    if time.monotonic() > end:
                        raise RuntimeError("no time left")
                    row.update(run(args))
                    if not row["seconds"]:
                        raise RuntimeError("no step was timed")
                except ImportError as e:
                    absent.add(name)
                    row["error"] = f"not here ({e.name})"
                except Exception as e:  # a benchmark goes on with the next one
                    row["error"] = f"{type(e).__name__}: {e}"[:300]
                print(f"bench: {text}, {name}: "
                      + (row.get("error") or f"{statistics.median(row['seconds']) * 1e3:.2f} ms"), file=sys.stderr, flush=True)
    return rows


def table(rows):
    lines = ["| network | batch | what | ms per step | (fastest .. slowest) | against own store | peak MiB | planned MiB |",
             "|---|---:|---|---:|---|---:|---:|---:|"]
    for r in rows:
        head = f"| {r['network']} | {r['batch']} | {r['what']} "
        if "error" in r:
            lines.append(head + f"| {r['error']} | | | | |")
            continue
        ms = [s * 1e3 for s in r["seconds"]]
        base = [q for q in rows if q["what"] == "invonnx store" and "error" not in q and q["case"] == r["case"]]
        ratio = f"{statistics.median(ms) / 1e3 / statistics.median(base[0]['seconds']):.2f}" if base else ""
        mib = [f"{r[k] / 2**20:.1f}" if r.get(k) else "" for k in ("peak", "planned")]
        lines.append(head + f"| {statistics.median(ms):.2f} | {min(ms):.2f} .. {max(ms):.2f} | {ratio} "
                            f"| {mib[0]} | {mib[1]} |")
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--invonnx", default=os.path.join(ROOT, "build", "cuda", "invonnx"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cases", nargs="+", default=CASES, metavar="NETWORK:SIZE")
    parser.add_argument("--only", default="", help="contestants whose name begins so")
    parser.add_argument("--steps", type=int, default=20, help="timed steps")
    parser.add_argument("--seconds", type=float, default=600, help="begin nothing new after these")
    parser.add_argument("--limit", type=float, default=120, help="seconds for one run of the program")
    parser.add_argument("--json", help="file for the raw numbers")
    parser.add_argument("--write", metavar="DIR", help="write the first case's files; print the arguments of its training")
    args = parser.parse_args()
    if args.write:
        print(json.dumps(training(case_of(args.cases[0]), args.write)))
        return 0
    warnings.filterwarnings("ignore")
    rows = measure(args)
    print("\n".join(table(rows)))
    if args.json:
        with open(args.json, "w") as f:
            json.dump(rows, f)
    return int(any("error" in r for r in rows if r["what"].startswith("invonnx")))


if __name__ == "__main__":
    sys.exit(main())
