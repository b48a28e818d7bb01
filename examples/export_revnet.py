# SPDX-License-Identifier: Apache-2.0
"""Exports an untrained RevNet from PyTorch to ONNX, as a user of PyTorch would: this is where revnet_digits.onnx
and tests/data/revnet_c*.onnx come from. Needs torch and onnx; nothing else in this repository does.

    python3 examples/export_revnet.py                                   examples/revnet_digits.onnx
    python3 examples/export_revnet.py --tests                           tests/data/revnet_c{4,16,64}.onnx

Gomez et al. 2017, The Reversible Residual Network: a block of two additive couplings,
    y1 = x1 + F(x2)     y2 = x2 + G(y1)
with F and G = batch norm, ReLU, 3x3 convolution. The two halves of the channels are the two streams."""
import argparse
import os

import torch
from torch import nn


def branch(channels):
    return nn.Sequential(
        nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1, bias=False))


class Block(nn.Module):
    """Two couplings. The spelling of the halves is one of those that exporters turn into different nodes."""

    def __init__(self, channels, spelling):
        super().__init__()
        self.half = channels // 2
        self.spelling = spelling
        self.f = branch(self.half)
        self.g = branch(self.half)

    def forward(self, x):
        x1, x2 = x.chunk(2, dim=1) if self.spelling == "chunk" else x.split(self.half, dim=1)
        y1 = x1 + self.f(x2)
        y2 = x2 + self.g(y1)
        return torch.cat([y1, y2], dim=1)


class RevNet(nn.Module):
    def __init__(self, couplings, channels, planes=1, classes=10, spelling="chunk"):
        super().__init__()
        assert couplings % 2 == 0 and channels % 2 == 0
        self.stem = nn.Conv2d(planes, channels, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(*[Block(channels, spelling) for _ in range(couplings // 2)])
        self.bn = nn.BatchNorm2d(channels)
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        x = torch.relu(self.bn(self.blocks(self.stem(x))))
        return self.head(x.mean(dim=(2, 3)))


def export(path, size, batch, **shape):
    torch.manual_seed(1)
    model = RevNet(**shape).train()
    x = torch.randn(batch, shape.get("planes", 1), size, size)
    # Folding constants would merge batch norm into its neighbours; training mode keeps it as it trains.
    torch.onnx.export(
        model, (x,), path, dynamo=False, opset_version=17, training=torch.onnx.TrainingMode.TRAINING,
        do_constant_folding=False, input_names=["x"], output_names=["logits"],
        dynamic_axes={"x": {0: "N"}, "logits": {0: "N"}})
    print(f"{path}: {os.path.getsize(path)} bytes")


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", default=os.path.join(here, "revnet_digits.onnx"))
    parser.add_argument("--couplings", type=int, default=16)
    parser.add_argument("--channels", type=int, default=32)
    parser.add_argument("--size", type=int, default=8, help="height and width of the image")
    parser.add_argument("--spelling", choices=["chunk", "split"], default="chunk")
    parser.add_argument("--tests", action="store_true", help="write the models of tests/data instead")
    args = parser.parse_args()
    if args.tests:
        data = os.path.join(here, "..", "tests", "data")
        for couplings in (4, 16, 64):
            export(os.path.join(data, f"revnet_c{couplings}.onnx"), 16, 8,
                   couplings=couplings, channels=24, spelling="split")
    else:
        export(args.out, args.size, 8, couplings=args.couplings, channels=args.channels, spelling=args.spelling)


if __name__ == "__main__":
    main()
