# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of models.py: exports a network for it and makes the same training steps. Needs torch, torchvision, onnx.

    torch_step.py export NETWORK DIR [--steps N] [--threads N]   DIR/NETWORK.onnx, .x.npy, .target.npy (bare elements in
                                                                 .bin: the first batch), and .json: what the trainer is
                                                                 to be told, and the losses of N steps here
    torch_step.py serve NETWORK DIR [--threads N] [--compile]    answers as bench_step does: a step timed for each line;
                                                                 --compile: of torch.compile's network"""
import argparse
import json
import os
import sys
import time
import warnings

import numpy as np
import torch

import networks
from peers.contestant import machine_busy

RECIPE = {"dynamo": False, "training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}


def made(name):
    torch.manual_seed(0)
    known = networks.NETWORKS[name]
    return known, networks.without_dropout(known.build()).train()


def stepper(known, net):
    kind = {"momentum": lambda p: torch.optim.SGD(p, known.lr, momentum=0.9),
            "adam": lambda p: torch.optim.Adam(p, known.lr)}[known.optimizer]
    optimizer = kind(net.parameters())

    def step(x, target):
        optimizer.zero_grad()
        out = net(x)
        loss = torch.nn.functional.cross_entropy(out.movedim(known.class_axis, 1), target)
        loss.backward()
        optimizer.step()
        return loss.item()
    return step


def write(stem, name, tensor, batch):
    """STEM.NAME.npy with all rows, STEM.NAME.bin with the first batch's elements; its TYPE:DIMS:FILE for bench_step."""
    array = tensor.numpy()
    np.save(f"{stem}.{name}.npy", array)
    array[:batch].tofile(f"{stem}.{name}.bin")
    kind = "f32" if array.dtype == np.float32 else "i64"
    return f"{kind}:{'x'.join(map(str, array[:batch].shape))}:{os.path.basename(stem)}.{name}.bin"


def export(name, folder, steps):
    known, net = made(name)
    batch, stem = known.shape[0], os.path.join(folder, name)
    x, target = known.rows(steps * batch)
    torch.onnx.export(net, (x[:batch],), stem + ".onnx", input_names=["x"], output_names=["out"], **RECIPE)
    net = made(name)[1]  # the exporter's forward has moved its running statistics
    step, losses = stepper(known, net), []
    for i in range(0, steps * batch, batch):
        losses.append(step(x[i:i + batch], target[i:i + batch]))
    told = {"network": name, "torch": torch.__version__.split("+")[0], "batch": batch, "shape": known.shape,
            "class_axis": known.class_axis, "optimizer": known.optimizer, "lr": known.lr,
            "parameters": sum(p.numel() for p in net.parameters()), "losses": losses,
            "input": "x:" + write(stem, "x", x, batch), "target": write(stem, "target", target, batch)}
    with open(stem + ".json", "w") as f:
        json.dump(told, f, indent=1)
    print(name, losses[0], losses[-1], flush=True)


def resident(key):
    with open("/proc/self/status") as f:
        return next(1024 * int(line.split()[1]) for line in f if line.startswith(key))


def serve(name, folder, compiled):
    known, net = made(name)
    net = torch.compile(net) if compiled else net
    stem = os.path.join(folder, name)
    batch = [torch.from_numpy(np.load(f"{stem}.{n}.npy", mmap_mode="c")[:known.shape[0]].copy()) for n in ("x", "target")]
    idle, step = resident("VmRSS"), stepper(known, net)
    print(json.dumps({"loss": step(*batch)}), flush=True)
    for _ in sys.stdin:
        busy, wall, cpu = machine_busy(), time.perf_counter(), time.process_time()
        step(*batch)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(json.dumps({"s": wall, "cpu": cpu, "others": max(0, (machine_busy() - busy - cpu) / wall),
                          "peak": resident("VmHWM"), "idle": idle}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("export", "serve"))
    parser.add_argument("network", choices=networks.NETWORKS)
    parser.add_argument("dir")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compile", action="store_true")
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    warnings.filterwarnings("ignore")
    export(o.network, o.dir, o.steps) if o.what == "export" else serve(o.network, o.dir, o.compile)


if __name__ == "__main__":
    main()
