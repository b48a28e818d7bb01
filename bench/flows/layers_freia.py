# SPDX-License-Identifier: Apache-2.0
"""Modules of FrEIA: all that FrEIA.modules offers."""
import FrEIA.modules as m
import torch
from torch import nn

from flow_layer import FEATURES, PIXELS, Layer, cnn, mlp, normal, per_sample, uniform


class Freia(nn.Module):
    def __init__(self, module, conditions=0):
        super().__init__()
        self.module, self.conditions = module, conditions

    def call(self, values, rev):
        k = len(values) - self.conditions
        condition = {"c": list(values[k:])} if self.conditions else {}
        return self.module(list(values[:k]), rev=rev, jac=True, **condition)

    def forward(self, *values):
        z, logdet = self.call(values, False)
        return (*z, per_sample(logdet, values[0].shape[0]))

    def undo(self, *values):
        return tuple(self.call(values, True)[0])


class Mixture(Freia):
    """The last of its conditions says which components are meant; here all."""

    def call(self, values, rev):
        return self.module([values[0]], [*values[1:], None], rev=rev)


def made(name, *shapes, conditions=(), **kwargs):
    def build():
        dims = [tuple(s) for s in shapes or ((FEATURES,),)]
        more = {"dims_c": list(conditions)} if conditions else {}
        return Freia(getattr(m, name)(dims, **more, **kwargs), len(conditions))
    return build


def begun(name, shape):
    """Of a layer that takes its parameters from the first batch."""
    def build():
        layer = made(name, shape)()
        layer(0.5 + 2 * torch.randn(64, *shape))
        return layer
    return build


D, H = FEATURES, FEATURES // 2
IMAGE = normal(PIXELS)
CONDITION = normal((D,), (3,))
COUPLINGS = ("NICECouplingBlock", "RNVPCouplingBlock", "GLOWCouplingBlock", "GINCouplingBlock",
             "AffineCouplingOneSided")


def couplings(name):
    yield Layer(name, made(name, subnet_constructor=mlp))
    yield Layer(f"{name}, images", made(name, PIXELS, subnet_constructor=cnn), IMAGE)
    yield Layer(f"{name}, condition", made(name, conditions=[(3,)], subnet_constructor=mlp), CONDITION, ("c",))
    yield Layer(f"{name}, 5 features", made(name, (5,), subnet_constructor=mlp), normal((5,)))


def all_in_one():
    for said, more in (("", {}), (", gin_block", {"gin_block": True}), (", permute_soft", {"permute_soft": True}),
                       (", learned_householder_permutation", {"learned_householder_permutation": 2}),
                       (", reverse_permutation", {"reverse_permutation": True})):
        yield Layer("AllInOneBlock" + said, made("AllInOneBlock", subnet_constructor=mlp, **more))
    yield Layer("AllInOneBlock, images", made("AllInOneBlock", PIXELS, subnet_constructor=cnn), IMAGE)


def square(n):
    return torch.randn(n, n)


LAYERS = [
    Layer("ActNorm", begun("ActNorm", (D,))),
    Layer("ActNorm, images", begun("ActNorm", PIXELS), IMAGE),
    *all_in_one(),
    *(layer for name in COUPLINGS for layer in couplings(name)),
    Layer("Concat", made("Concat", (4,), (2,)), normal((4,), (2,))),
    Layer("ConcatChannel", made("ConcatChannel", (2, 4, 4), (2, 4, 4)), normal((2, 4, 4), (2, 4, 4))),
    Layer("ConditionalAffineTransform", made("ConditionalAffineTransform", conditions=[(3,)], subnet_constructor=mlp),
          CONDITION, ("c",)),
    Layer("Fixed1x1Conv", made("Fixed1x1Conv", PIXELS, M=square(4)), IMAGE),
    Layer("FixedLinearTransform", made("FixedLinearTransform", M=square(D), b=torch.randn(D))),
    Layer("Flatten", made("Flatten", PIXELS), IMAGE),
    Layer("GaussianMixtureModel, one component", lambda: Mixture(m.GaussianMixtureModel(
        [(D,)], [(1,), (1, D), (1, D * (D + 1) // 2)]), 3), normal((1, D), (1,), (1, D), (1, D * (D + 1) // 2)),
          ("weights", "means", "factors")),
    Layer("HaarDownsampling", made("HaarDownsampling", PIXELS), IMAGE),
    Layer("HaarDownsampling, order_by_wavelet", made("HaarDownsampling", PIXELS, order_by_wavelet=True), IMAGE),
    Layer("HaarUpsampling", made("HaarUpsampling", PIXELS), IMAGE),
    Layer("HouseholderPerm", made("HouseholderPerm", n_reflections=3)),
    Layer("HouseholderPerm, fixed", made("HouseholderPerm", n_reflections=3, fixed=True)),
    Layer("IResNetLayer", made("IResNetLayer")),
    Layer("IRevNetDownsampling", made("IRevNetDownsampling", PIXELS), IMAGE),
    Layer("IRevNetUpsampling", made("IRevNetUpsampling", PIXELS), IMAGE),
    Layer("InvAutoAct", made("InvAutoAct")),
    Layer("InvAutoActFixed", made("InvAutoActFixed")),
    Layer("InvAutoActTwoSided", made("InvAutoActTwoSided")),
    Layer("InvAutoConv2D", made("InvAutoConv2D", PIXELS), IMAGE),
    Layer("InvAutoFC", made("InvAutoFC")),
    Layer("InvertibleSigmoid", made("InvertibleSigmoid")),
    Layer("LearnedElementwiseScaling", made("LearnedElementwiseScaling")),
    Layer("OrthogonalTransform", made("OrthogonalTransform"), jitter=0.0),
    Layer("PermuteRandom", made("PermuteRandom", seed=1)),
    Layer("Reshape", made("Reshape", PIXELS, output_dims=(16, 2, 2)), IMAGE),
    Layer("Split", made("Split")),
    Layer("Split, sections 2 and 4", made("Split", section_sizes=[2, 4])),
    Layer("SplitChannel", made("SplitChannel", PIXELS), IMAGE),
]
