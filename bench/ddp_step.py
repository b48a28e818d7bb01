# SPDX-License-Identifier: Apache-2.0
"""A rank of ranks.py's training by PyTorch's DistributedDataParallel over gloo. RANK, MASTER_ADDR and MASTER_PORT say who
it is and where the others are.

    python3 bench/ddp_step.py FOLDER RANKS ROWS STEPS THREADS      prints seconds and private bytes as JSON"""
import json
import os
import sys
import time

import numpy as np
import torch


def private_bytes():
    with open("/proc/self/status", encoding="ascii") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("RssAnon"))


def main():
    folder, ranks, rows, steps, threads = sys.argv[1], *map(int, sys.argv[2:6])
    rank = int(os.environ["RANK"])
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    x, y = (torch.from_numpy(np.load(os.path.join(folder, name), mmap_mode="c")) for name in ("x.npy", "y.npy"))
    width, layers = x.shape[1], []
    for _ in range(6):
        layers += [torch.nn.Linear(width, width, bias=False), torch.nn.Tanh()]
    model = torch.nn.Sequential(*layers[:-1])
    if ranks > 1:
        torch.distributed.init_process_group("gloo", rank=rank, world_size=ranks)
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    began, most = time.monotonic(), 0
    for step in range(steps):
        at = (step * ranks + rank) * rows
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.mse_loss(model(x[at:at + rows]), y[at:at + rows]).backward()
        optimizer.step()
        most = max(most, private_bytes())
    print(json.dumps({"seconds": time.monotonic() - began, "private": most}))
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
