# SPDX-License-Identifier: Apache-2.0
"""Transforms of nflows: all that nflows.transforms offers."""
import torch
from nflows import transforms as t
from nflows.nn.nets import ResidualNet
from torch import nn

from flow_layer import FEATURES, PIXELS, Layer, normal, uniform


class Nflows(nn.Module):
    def __init__(self, transform):
        super().__init__()
        self.transform = transform

    def forward(self, x, c=None):
        return self.transform(x, c)

    def undo(self, z, c=None):
        return self.transform.inverse(z, c)[0]


def made(make, *args, **kwargs):
    return lambda: Nflows(make(*args, **kwargs))


def begun(make, *args, shape=(FEATURES,)):
    """Of a layer that takes its parameters from the first batch."""
    def build():
        layer = Nflows(make(*args))
        layer.train()
        layer(0.5 + 2 * torch.randn(64, *shape))
        return layer
    return build


def net(features_in, features_out):
    return ResidualNet(features_in, features_out, 16, num_blocks=1)


def multiscale():
    whole = t.MultiscaleCompositeTransform(2)
    rest = whole.add_transform(t.LULinear(D), (D,))
    whole.add_transform(t.LULinear(rest[0]), rest)
    return Nflows(whole)


D = FEATURES
MASK = torch.arange(D) % 2
ODD = torch.arange(5) % 2
INSIDE = uniform(0, 1)
TAILS = {"tails": "linear", "tail_bound": 3.0}
LU = t.LULinear


def couplings(kind):
    make = getattr(t, f"Piecewise{kind}CouplingTransform")
    return [Layer(f"Piecewise{kind}CouplingTransform", made(make, MASK, net, num_bins=4), INSIDE),
            Layer(f"Piecewise{kind}CouplingTransform, tails", made(make, MASK, net, num_bins=4, **TAILS))]


def functions(kind):
    make = getattr(t, f"Piecewise{kind}CDF")
    return [Layer(f"Piecewise{kind}CDF", made(make, [D], num_bins=4), INSIDE),
            Layer(f"Piecewise{kind}CDF, tails", made(make, [D], num_bins=4, **TAILS))]


def masked(kind):
    name = f"MaskedPiecewise{kind}AutoregressiveTransform"
    return [Layer(name, made(getattr(t, name), features=D, hidden_features=16, num_bins=4), INSIDE)]


KINDS = ("Linear", "Quadratic", "Cubic", "RationalQuadratic")

LAYERS = [
    Layer("ActNorm", begun(t.ActNorm, D)),
    Layer("ActNorm, images", begun(t.ActNorm, 4, shape=PIXELS), normal(PIXELS)),
    Layer("AdditiveCouplingTransform", made(t.AdditiveCouplingTransform, MASK, net)),
    Layer("AffineCouplingTransform", made(t.AffineCouplingTransform, MASK, net)),
    Layer("AffineCouplingTransform, 5 features", made(t.AffineCouplingTransform, ODD, net), normal((5,))),
    Layer("AffineScalarTransform", made(t.AffineScalarTransform, 0.5, 2.0)),
    Layer("AffineTransform", made(t.AffineTransform, 0.5, 2.0)),
    Layer("BatchNorm", begun(t.BatchNorm, D)),
    Layer("CompositeCDFTransform", lambda: Nflows(
        t.CompositeCDFTransform(t.Sigmoid(), t.PiecewiseRationalQuadraticCDF([D], num_bins=4)))),
    Layer("CompositeTransform", lambda: Nflows(
        t.CompositeTransform([LU(D), t.AffineCouplingTransform(MASK, net), t.ReversePermutation(D)]))),
    Layer("GatedLinearUnit", made(t.GatedLinearUnit), normal((1,), (1,)), ("c",)),  # its sum is over one feature
    Layer("HouseholderSequence", made(t.HouseholderSequence, D, 3)),
    Layer("IdentityTransform", made(t.IdentityTransform)),
    Layer("InverseTransform", lambda: Nflows(t.InverseTransform(t.AffineCouplingTransform(MASK, net)))),
    Layer("LULinear", made(LU, D)),
    Layer("LeakyReLU", made(t.LeakyReLU)),
    Layer("LogTanh", made(t.LogTanh), normal()),
    Layer("Logit", made(t.Logit), INSIDE),
    Layer("MaskedAffineAutoregressiveTransform", made(t.MaskedAffineAutoregressiveTransform, D, 16)),
    *(layer for kind in KINDS for layer in masked(kind)),
    Layer("MultiscaleCompositeTransform", multiscale),
    Layer("NaiveLinear", made(t.NaiveLinear, D, orthogonal_initialization=False)),
    Layer("OneByOneConvolution", made(t.OneByOneConvolution, 4), normal(PIXELS)),
    Layer("Permutation", made(t.Permutation, torch.tensor([3, 1, 4, 0, 5, 2]))),
    *(layer for kind in KINDS for layer in functions(kind)),
    *(layer for kind in KINDS for layer in couplings(kind)),
    Layer("PointwiseAffineTransform", made(t.PointwiseAffineTransform, torch.randn(D), torch.rand(D) + 0.5)),
    Layer("QRLinear", made(t.QRLinear, D, 3)),
    Layer("RandomPermutation", made(t.RandomPermutation, D)),
    Layer("ReversePermutation", made(t.ReversePermutation, D)),
    Layer("SVDLinear", made(t.SVDLinear, D, 4)),
    Layer("Sigmoid", made(t.Sigmoid)),
    Layer("SqueezeTransform", made(t.SqueezeTransform), normal(PIXELS)),
    Layer("Tanh", made(t.Tanh)),
]
