# SPDX-License-Identifier: Apache-2.0
"""Exports an untrained RealNVP for points in the plane from PyTorch to ONNX: this is where realnvp_moons.onnx comes
from. Needs torch and onnx.

    python3 examples/export_realnvp.py                       examples/realnvp_moons.onnx

Dinh et al. 2017, Density estimation using Real NVP (arXiv 1605.08803): couplings y1 = x1 exp(s(x2)) + t(x2), the halves
changing places from one to the next. Outputs: z, and logdet, the sum of s, per sample."""
import os

import torch
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))


class Coupling(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(),
                                 nn.Linear(hidden, 2))

    def forward(self, x):
        x1, x2 = x.chunk(2, dim=1)
        s, t = self.net(x2).chunk(2, dim=1)
        s = 2 * torch.tanh(s)
        return torch.cat([x2, x1 * torch.exp(s) + t], dim=1), s.sum(dim=1)


class RealNVP(nn.Module):
    def __init__(self, couplings=8, hidden=64):
        super().__init__()
        self.couplings = nn.ModuleList(Coupling(hidden) for _ in range(couplings))

    def forward(self, x):
        logdet = 0
        for c in self.couplings:
            x, more = c(x)
            logdet = logdet + more
        return x, logdet


def main():
    torch.manual_seed(1)
    torch.onnx.export(
        RealNVP(), (torch.randn(4, 2),), os.path.join(HERE, "realnvp_moons.onnx"), dynamo=False, opset_version=17,
        input_names=["x"], output_names=["z", "logdet"],
        dynamic_axes={"x": {0: "batch"}, "z": {0: "batch"}, "logdet": {0: "batch"}})


if __name__ == "__main__":
    main()
