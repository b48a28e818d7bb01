# SPDX-License-Identifier: Apache-2.0
"""Flows of normflows: all of normflows.flows, and normflows.transforms. Its forward goes from noise to data, and training
takes the other direction; Reverse(...) is that one, of layers whose two directions are written differently."""
import normflows
import torch
from normflows import flows as f
from normflows import nets, transforms
from torch import nn

from flow_layer import FEATURES, PIXELS, Layer, cnn, mlp, normal, per_sample, uniform


class Normflows(nn.Module):
    """All inputs go in as one, or as a list (couplings, Merge); so does what comes out."""

    def __init__(self, flow, listed=False, conditions=0):
        super().__init__()
        self.flow, self.listed, self.conditions = flow, listed, conditions

    def call(self, function, values):
        k = len(values) - self.conditions
        z, logdet = function(list(values[:k]) if self.listed or k > 1 else values[0], *values[k:])
        return (tuple(z) if isinstance(z, (list, tuple)) else (z,)), logdet

    def forward(self, *values):
        z, logdet = self.call(self.flow.forward, values)
        return (*z, per_sample(logdet, values[0].shape[0]))

    def undo(self, *values):
        return self.call(self.flow.inverse, values)[0]


def made(make, *args, conditions=0, **kwargs):
    return lambda: Normflows(make(*args, **kwargs), conditions=conditions)


def begun(make, *args, shape=(FEATURES,)):
    """Of a layer that takes its parameters from the first batch. That this is done has to be no tensor: the exporter that
    does not trace would take it for a condition on data."""
    def build():
        layer = Normflows(make(*args))
        layer(0.5 + 2 * torch.randn(64, *shape))
        for part in layer.modules():
            if hasattr(part, "data_dep_init_done"):
                del part.data_dep_init_done
                part.data_dep_init_done = 1.0
        return layer
    return build


def both(name, build, draw=None):
    return [Layer(name, build, draw), Layer(f"Reverse({name})", lambda: Normflows(f.Reverse(build().flow)), draw)]


def spline(name, *args):
    return both(name, made(getattr(f, name), D, 1, 16, *args, num_bins=4))


def residual():
    return Normflows(f.Residual(nets.LipschitzMLP([D, 16, D], init_zeros=False), reduce_memory=False))


D, H = FEATURES, FEATURES // 2
HALVES = normal((H,), (H,))
IMAGE = normal(PIXELS)
MASK = (torch.arange(D) % 2).float()


def coupling_maps():
    for scale_map in ("exp", "sigmoid", "sigmoid_inv"):
        yield Layer(f"AffineCoupling, {scale_map}",
                    lambda m=scale_map: Normflows(f.AffineCoupling(mlp(H, D), scale_map=m), True), HALVES)


def modes(make, name, draw):
    for mode in ("channel", "channel_inv", "checkerboard", "checkerboard_inv"):
        yield Layer(f"{name}, {mode}", made(make, mode), draw(mode))


def blocks():
    for mode in ("channel", "channel_inv", "checkerboard"):
        first = 4 if "checkerboard" in mode else 2
        yield Layer(f"AffineCouplingBlock, {mode}",
                    lambda m=mode, c=first: Normflows(f.AffineCouplingBlock(cnn(c, 2 * c), split_mode=m)), IMAGE)


def merged(mode):
    return normal((4, 4, 2), (4, 4, 2)) if "checkerboard" in mode else normal((2, 4, 4), (2, 4, 4))


LAYERS = [
    *both("ActNorm", begun(f.ActNorm, (D,)), normal()),
    Layer("ActNorm, images", begun(f.ActNorm, (4, 1, 1), shape=PIXELS), IMAGE),
    Layer("AffineConstFlow", made(f.AffineConstFlow, (D,))),
    *coupling_maps(),
    Layer("AffineCoupling, no scale", lambda: Normflows(f.AffineCoupling(mlp(H, H), scale=False), True), HALVES),
    *blocks(),
    Layer("BatchNorm", made(f.BatchNorm)),
    Layer("CCAffineConst", made(f.CCAffineConst, (D,), 3, conditions=1), normal((D,), (3,)), ("c",)),
    *both("Composite", lambda: Normflows(f.Composite(
        [f.MaskedAffineFlow(MASK, mlp(D, D), mlp(D, D)), f.LULinearPermute(D)]))),
    *both("GlowBlock", begun(f.GlowBlock, 4, 8, shape=PIXELS), IMAGE),
    *both("GlowBlock, 3 channels", begun(f.GlowBlock, 3, 8, shape=(3, 4, 4)), normal((3, 4, 4))),
    Layer("HamiltonianMonteCarlo", lambda: Normflows(f.HamiltonianMonteCarlo(
        normflows.distributions.DiagGaussian(D, trainable=False), 2, torch.zeros(D) - 1, torch.zeros(D)))),
    *both("Invertible1x1Conv", made(f.Invertible1x1Conv, 4), IMAGE),
    *both("Invertible1x1Conv, use_lu", made(f.Invertible1x1Conv, 4, True), IMAGE),
    *both("InvertibleAffine", made(f.InvertibleAffine, D)),
    *both("InvertibleAffine, no LU", made(f.InvertibleAffine, D, False)),
    *both("LULinearPermute", made(f.LULinearPermute, D)),
    *both("MaskedAffineAutoregressive", made(f.MaskedAffineAutoregressive, D, 16)),
    *both("MaskedAffineFlow", lambda: Normflows(f.MaskedAffineFlow(MASK, mlp(D, D), mlp(D, D)))),
    Layer("MaskedAffineFlow, no scale", lambda: Normflows(f.MaskedAffineFlow(MASK, mlp(D, D)))),
    *modes(f.Merge, "Merge", merged),
    Layer("MetropolisHastings", lambda: Normflows(f.MetropolisHastings(
        normflows.distributions.DiagGaussian(D, trainable=False),
        normflows.distributions.DiagGaussianProposal((D,), 0.1), 2))),
    Layer("PeriodicShift", made(f.PeriodicShift, [0, 2], 1.0, 0.3), uniform(-1, 1)),
    *both("PeriodicWrap", made(f.PeriodicWrap, [0, 2], 1.0), uniform(-1, 1)),
    Layer("Permute, shuffle", made(f.Permute, D)),
    Layer("Permute, swap", made(f.Permute, D, "swap")),
    *both("Planar, leaky_relu", made(f.Planar, (D,), "leaky_relu")),
    Layer("Planar, tanh", made(f.Planar, (D,))),
    Layer("Radial", made(f.Radial, (D,))),
    Layer("Residual", residual),
    *modes(f.Split, "Split", lambda mode: IMAGE),
    *both("Squeeze", made(f.Squeeze), IMAGE),
    *spline("CoupledRationalQuadraticSpline"),
    *spline("AutoregressiveRationalQuadraticSpline"),
    *spline("CircularCoupledRationalQuadraticSpline", [0, 2]),
    *spline("CircularAutoregressiveRationalQuadraticSpline", [0, 2]),
    Layer("transforms.Logit", made(transforms.Logit)),
    Layer("Reverse(transforms.Logit)", lambda: Normflows(f.Reverse(transforms.Logit())), uniform(0, 1)),
    Layer("transforms.Shift", made(transforms.Shift)),
]
