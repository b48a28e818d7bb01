# SPDX-License-Identifier: Apache-2.0
"""Transformations of zuko: those of zuko.transforms, and those of its lazy flows."""
import math

import torch
import zuko
from torch import nn
from zuko import transforms as t

from flow_layer import FEATURES, Layer, mlp, normal, per_sample, uniform


class Zuko(nn.Module):
    def __init__(self, lazy):
        super().__init__()
        self.lazy = lazy

    def forward(self, x, c=None):
        z, logdet = self.lazy(c).call_and_ladj(x)
        return z, per_sample(logdet, x.shape[0])

    def undo(self, z, c=None):
        return self.lazy(c).inv(z)


class Made(nn.Module):
    """A transformation made of parameters, or of modules, by a function."""

    def __init__(self, make, *parts):
        super().__init__()
        self.make = make
        self.parts = nn.ParameterList(p for p in parts if torch.is_tensor(p))
        self.nets = nn.ModuleList(p for p in parts if isinstance(p, nn.Module))

    def forward(self, c=None):
        return self.make(*self.parts, *self.nets)


def made(make, *shapes, nets=()):
    return lambda: Zuko(Made(make, *(torch.randn(s) for s in shapes), *(n() for n in nets)))


def lazy(make, *args, **kwargs):
    def build():
        flow = make(*args, **kwargs)
        return Zuko(flow.transform if isinstance(flow, zuko.lazy.Flow) else flow)
    return build


def affine(net):
    """What a network makes of features: shift and scale of others."""
    return lambda x: t.MonotonicAffineTransform(*net(x).unflatten(-1, (-1, 2)).unbind(-1))


def vector(transform):
    return lambda net: t.DependentTransform(transform(net), 1)


D, H = FEATURES, FEATURES // 2
MASK = torch.arange(D) % 2 == 0
FLOW = {"transforms": 2, "hidden_features": (16, 16)}

LAYERS = [
    Layer("AdditiveTransform", made(t.AdditiveTransform, (D,))),
    Layer("AutoregressiveTransform", made(
        lambda net: t.AutoregressiveTransform(affine(net), D),
        nets=[lambda: zuko.nn.MaskedMLP(torch.arange(D * 2)[:, None] // 2 > torch.arange(D), [16])])),
    Layer("BernsteinTransform", made(t.BernsteinTransform, (D, 8))),
    Layer("BoundedBernsteinTransform", made(t.BoundedBernsteinTransform, (D, 8))),
    Layer("CircularShiftTransform", made(t.CircularShiftTransform), uniform(-1, 1)),
    Layer("ComposedTransform", made(
        lambda a, b: t.ComposedTransform(t.MonotonicAffineTransform(a, b), t.SoftclipTransform(5.0)), (D,), (D,))),
    Layer("CosTransform", made(t.CosTransform), uniform(0, math.pi)),
    Layer("CouplingTransform", made(lambda net: t.CouplingTransform(affine(net), MASK), nets=[lambda: mlp(H, D)])),
    Layer("DependentTransform", made(
        lambda a, b: t.DependentTransform(t.MonotonicAffineTransform(a, b), 1), (D,), (D,))),
    Layer("FreeFormJacobianTransform", made(
        lambda net: t.FreeFormJacobianTransform(lambda time, x: net(x)), nets=[lambda: mlp(D, D)])),
    Layer("GaussianizationTransform", made(t.GaussianizationTransform, (D, 4), (D, 4))),
    Layer("IdentityTransform", made(t.IdentityTransform)),
    Layer("LULinearTransform", made(lambda a: t.LULinearTransform(torch.eye(D) + 0.3 * a), (D, D))),
    Layer("MonotonicAffineTransform", made(t.MonotonicAffineTransform, (D,), (D,))),
    Layer("MonotonicRQSTransform", made(t.MonotonicRQSTransform, (D, 8), (D, 8), (D, 7))),
    Layer("MonotonicTransform", made(lambda: t.MonotonicTransform(lambda x: x + 0.5 * torch.tanh(x)))),
    Layer("PermutationTransform", made(lambda: t.PermutationTransform(torch.tensor([3, 1, 4, 0, 5, 2])))),
    Layer("RotationTransform", made(t.RotationTransform, (D, D))),
    Layer("SOSPolynomialTransform", made(t.SOSPolynomialTransform, (D, 3, 4))),
    Layer("SignedPowerTransform", made(t.SignedPowerTransform, (D,))),
    Layer("SinTransform", made(t.SinTransform), uniform(-math.pi / 2, math.pi / 2)),
    Layer("SoftclipTransform", made(t.SoftclipTransform)),
    Layer("UnconstrainedMonotonicTransform", made(lambda: t.UnconstrainedMonotonicTransform(lambda x: 1 + x ** 2))),
    Layer("AffineTransform (of torch)", made(t.AffineTransform, (D,), (D,))),
    Layer("ExpTransform (of torch)", made(t.ExpTransform)),
    Layer("PowerTransform (of torch)", made(lambda: t.PowerTransform(torch.tensor(3.0))), uniform(0.2, 2)),
    Layer("SigmoidTransform (of torch)", made(t.SigmoidTransform)),
    Layer("SoftplusTransform (of torch)", made(t.SoftplusTransform)),
    Layer("TanhTransform (of torch)", made(t.TanhTransform)),
    Layer("flows.BPF", lazy(zuko.flows.BPF, D, **FLOW)),
    Layer("flows.CNF", lazy(zuko.flows.CNF, D, hidden_features=(16,))),
    Layer("flows.ElementWiseTransform", lazy(zuko.flows.ElementWiseTransform, D)),
    Layer("flows.ElementWiseTransform, context", lazy(zuko.flows.ElementWiseTransform, D, 3), normal((D,), (3,)),
          ("c",)),
    Layer("flows.FFJTransform", lazy(zuko.flows.FFJTransform, D, hidden_features=(16,))),
    Layer("flows.GeneralCouplingTransform", lazy(zuko.flows.GeneralCouplingTransform, D, hidden_features=(16,))),
    Layer("flows.GF", lazy(zuko.flows.GF, D, transforms=2)),
    Layer("flows.MAF", lazy(zuko.flows.MAF, D, **FLOW)),
    Layer("flows.MAF, passes=2", lazy(zuko.flows.MAF, D, passes=2, **FLOW)),
    Layer("flows.MaskedAutoregressiveTransform", lazy(zuko.flows.MaskedAutoregressiveTransform, D)),
    Layer("flows.NAF", lazy(zuko.flows.NAF, D, transforms=2)),
    Layer("flows.NCSF", lazy(zuko.flows.NCSF, D, **FLOW), uniform(-math.pi, math.pi)),
    Layer("flows.NICE", lazy(zuko.flows.NICE, D, **FLOW)),
    Layer("flows.NSF", lazy(zuko.flows.NSF, D, **FLOW)),
    Layer("flows.NSF, passes=2", lazy(zuko.flows.NSF, D, passes=2, **FLOW)),
    Layer("flows.RealNVP", lazy(zuko.flows.RealNVP, D, **FLOW)),
    Layer("flows.RealNVP, context", lazy(zuko.flows.RealNVP, D, 3, **FLOW), normal((D,), (3,)), ("c",)),
    Layer("flows.RealNVP, 5 features", lazy(zuko.flows.RealNVP, 5, **FLOW), normal((5,))),
    Layer("flows.SOSPF", lazy(zuko.flows.SOSPF, D, **FLOW)),
    Layer("flows.UNAF", lazy(zuko.flows.UNAF, D, transforms=2)),
    Layer("flows.LazyInverse", lambda: Zuko(zuko.flows.GeneralCouplingTransform(D, hidden_features=(16,)).inv)),
]
