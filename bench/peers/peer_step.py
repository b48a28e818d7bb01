# SPDX-License-Identifier: Apache-2.0
"""A peer for curve.py: a contestant of the harness, whole or on a share of the blocks, that steps when it is asked to.
Runs in the environment with torch.

    python peer_step.py --peers DIR --workload W1 --depth 8 --batch 32 --contestant NAME[@SHARE] --steps N --lr X

NAME: the harness's, or compile_B for torch.compile with the activation_memory_budget B. With @0.5 it works on the first
half of the blocks, and autograd keeps what the others need. Gradients are dropped before every step, so they are
memory of the step. Prints the losses of the first N steps, then answers as the harness's worker does."""
import argparse
import json
import os
import sys
import time

import torch


class Front:
    """The net with the first n of its blocks for all of them, the others being a part of the loss."""

    def __init__(self, net, n):
        self.net, self.blocks, self.rest = net, net.blocks[:n], net.blocks[n:]
        self.split_dim, self.has_logdet, self.stem = net.split_dim, net.has_logdet, net.stem

    def trunk(self, state):
        for block in self.blocks:
            state = block(*state)
        return state

    def loss(self, state, target):
        for block in self.rest:
            state = block(*state)
        return self.net.loss(state, target)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", required=True)
    known, _ = parser.parse_known_args()
    sys.path[:0] = [known.peers, os.path.dirname(os.path.abspath(__file__))]
    import contestants
    import plain
    import procmem
    import worker
    import workloads
    for option, kind in (("workload", str), ("depth", int), ("contestant", str), ("steps", int), ("lr", float)):
        parser.add_argument("--" + option, type=kind, required=True)
    parser.add_argument("--batch", type=int)
    workloads.add_options(parser)
    args = parser.parse_args()

    name, _, share = args.contestant.partition("@")
    if name.startswith("compile_"):
        contestants.CONTESTANTS[name] = contestants.compiled(float(name.removeprefix("compile_")))
    if name in ("memcnn", "invtorch", "revtorch"):
        __import__(name)
    idle = procmem.rss()
    net, x, target = plain.build(workloads, args)
    front = Front(net, round(float(share) * len(net.blocks))) if share else net
    loss_of = contestants.CONTESTANTS[name](front)
    optimizer = torch.optim.SGD(net.parameters(), lr=args.lr)

    def step():
        optimizer.zero_grad()
        loss = loss_of(x, target)
        loss.backward()
        optimizer.step()
        return loss.item()

    began = time.perf_counter()
    losses = [step()]
    first = time.perf_counter() - began
    losses += [step() for _ in range(args.steps - 1)]
    worker.serve(step, {"losses": losses, "first_call_s": first, "idle": idle})


if __name__ == "__main__":
    main()
