# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of adapt.py: exports networks and fine-tunes them. Needs torch, torchvision, peft, onnx.

    adapt_step.py export NETWORK DIR [--length N]
                                         DIR/NETWORK.onnx, NETWORK.x.npy and .y.npy: one row of inputs and labels; of
                                         another length NETWORK_N
    adapt_step.py serve NETWORK STYLE [--checkpoint] [--threads N]
                                         says that it is ready, then makes a timed step for each line
STYLE is full (AdamW on all weights) or lora (peft, rank 8, on the products of all blocks)."""
import argparse
import json
import os
import sys
import time
import warnings

import numpy as np
import onnx
import torch
from torch.utils.checkpoint import checkpoint

import networks
from torch_step import RECIPE, resident

NETWORKS = {"gpt2": (networks.GPT, 512, 50257)}
RANK = 8


def made(name, length=None):
    torch.manual_seed(0)
    build, usual, words = NETWORKS[name]
    length = length or usual
    net = networks.without_dropout(build()).train()
    x, y = (torch.randint(words, (1, length)) for _ in range(2))
    return net, x, y


def export(name, folder, length):
    net, x, y = made(name, length)
    name += f"_{length}" if length else ""
    stem = os.path.join(folder, name)
    torch.onnx.export(net, (x,), stem + ".onnx", input_names=["x"], output_names=["out"], **RECIPE)
    # weights beside the model, where this program can read them
    onnx.save(onnx.load(stem + ".onnx"), stem + ".onnx", save_as_external_data=True, location=name + ".onnx.data")
    np.save(stem + ".x.npy", x.numpy())
    np.save(stem + ".y.npy", y.numpy())


def with_checkpoints(net):
    for block in net.blocks:
        forward = block.forward
        block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False)


def with_adapters(net):
    import peft

    names = sorted({n.split(".", 2)[2] for n, m in net.named_modules() if n.startswith("blocks.") and
                    isinstance(m, torch.nn.Linear)})
    return peft.get_peft_model(net, peft.LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=names))


def serve(name, style, checkpoints):
    if style == "lora":
        import peft  # noqa: F401, loaded before idle is measured
    idle = resident("VmRSS")
    net, x, y = made(name)
    if checkpoints:
        with_checkpoints(net)
    if style == "lora":
        net = with_adapters(net)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], 1e-4)
    print(json.dumps({"idle": idle}), flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(x).movedim(2, 1), y)
        loss.backward()
        optimizer.step()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(json.dumps({"loss": loss.item(), "s": wall, "cpu": cpu, "peak": resident("VmHWM") - idle}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("export", "serve"))
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("how", help="DIR, or STYLE")
    parser.add_argument("--checkpoint", action="store_true")
    parser.add_argument("--length", type=int)
    parser.add_argument("--threads", type=int, default=2)
    o = parser.parse_args()
    torch.set_num_threads(o.threads)
    warnings.filterwarnings("ignore")
    export(o.network, o.how, o.length) if o.what == "export" else serve(o.network, o.how, o.checkpoint)


if __name__ == "__main__":
    main()
