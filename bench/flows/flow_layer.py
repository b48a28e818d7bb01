# SPDX-License-Identifier: Apache-2.0
"""What the lists of layers are made of: a layer with its inputs, and the networks inside of couplings."""
import dataclasses
import typing

import torch
from torch import nn

FEATURES = 6
PIXELS = (4, 4, 4)


@dataclasses.dataclass
class Layer:
    name: str
    build: typing.Callable  # makes a module: forward(*inputs) gives z, or several, and the log-determinant
    draw: typing.Callable = None  # of a batch: the inputs
    given: tuple = ()  # which of the inputs are conditions
    jitter: float = 0.2  # added to all parameters, so that none is at its start


def normal(*shapes):
    shapes = shapes or ((FEATURES,),)
    return lambda n: tuple(torch.randn(n, *s) for s in shapes)


def uniform(low, high, shape=(FEATURES,)):
    return lambda n: (low + (high - low) * (0.02 + 0.96 * torch.rand(n, *shape)),)


def mlp(features_in, features_out, hidden=16):
    return nn.Sequential(nn.Linear(features_in, hidden), nn.ReLU(), nn.Linear(hidden, features_out))


def cnn(channels_in, channels_out, hidden=8):
    return nn.Sequential(nn.Conv2d(channels_in, hidden, 3, padding=1), nn.ReLU(),
                         nn.Conv2d(hidden, channels_out, 3, padding=1))


def per_sample(logdet, batch):
    """A log-determinant as a number per sample: libraries give a number, one number for all, or one per element."""
    if not torch.is_tensor(logdet):
        return torch.full((batch,), float(logdet))
    if logdet.dim() > 1:
        return logdet.flatten(1).sum(1)
    return logdet
