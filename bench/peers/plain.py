# SPDX-License-Identifier: Apache-2.0
"""Beside the harness's workloads a plain residual network, in which nothing is reversible, of the same shape: a stem,
blocks that take and give a tuple of tensors, and what follows; and smaller batches of all."""
import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, a, b, stride):
        super().__init__()
        def conv(a, b, size, stride):
            return nn.Sequential(nn.Conv2d(a, b, size, stride, size // 2, bias=False), nn.BatchNorm2d(b))
        self.branch = nn.Sequential(conv(a, b, 3, stride), nn.ReLU(), conv(b, b, 3, 1))
        self.skip = nn.Identity() if stride == 1 and a == b else conv(a, b, 1, stride)

    def forward(self, x):
        return (torch.relu(self.branch(x) + self.skip(x)),)


def make(net_class):
    class ResNet(net_class):
        """Three stages of 32, 64 and 128 channels, `depth` blocks in all; 64 images of 32x32."""
        has_logdet = False

        def __init__(self, depth, _):
            super().__init__()
            third = depth // 3
            counts = [depth - 2 * third, third, third]
            widths, strides = [32] + [32 << s for s, n in enumerate(counts) for _ in range(n)], [1] * depth
            for start in (counts[0], counts[0] + third):
                strides[start] = 2
            self.first = nn.Conv2d(3, 32, 3, padding=1)
            self.blocks = nn.ModuleList(map(Residual, widths, widths[1:], strides))
            self.last = nn.Linear(128, 10)

        def stem(self, x):
            return (self.first(x),)

        def out(self, state):
            return self.last(state[0].mean((2, 3)))

        def data(self):
            return torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))
    return ResNet


def build(workloads, args):
    """(net, x, target): of the harness, or the plain network; the first args.batch rows, if it says so."""
    workloads.WORKLOADS["R"] = make(workloads.Net)
    net, x, target = workloads.build(args.workload, args.depth, args)
    rows = args.batch or len(x)
    return net, x[:rows], target[:len(target) * rows // len(x)]
