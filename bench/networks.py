# SPDX-License-Identifier: Apache-2.0
"""The networks of exports.py and models.py, with random weights, and batches to train them on. Needs torch, torchvision."""
import dataclasses
from typing import Callable

import torch
import torchvision.models as tv
from torch import nn


class UNet(nn.Module):
    """Four levels, batch norm, transposed convolutions on the way up; logits per pixel."""

    def __init__(self, width=32, classes=4):
        super().__init__()
        w = [width << k for k in range(4)]
        self.down = nn.ModuleList(self.double(a, b) for a, b in zip([3, *w], w))
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(w, w[1:]))
        self.join = nn.ModuleList(self.double(2 * a, a) for a in w[:-1])
        self.head = nn.Conv2d(width, classes, 1)

    @staticmethod
    def double(a, b):
        return nn.Sequential(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(),
                             nn.Conv2d(b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU())

    def forward(self, x):
        kept = []
        for block in self.down:
            x = block(x if not kept else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        for k in (2, 1, 0):
            x = self.join[k](torch.cat((kept[k], self.up[k](x)), 1))
        return self.head(x)


class Block(nn.Module):
    def __init__(self, width, heads, causal=True, gelu="tanh"):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate=gelu), nn.Linear(4 * width, width))

    def forward(self, x):
        n, t, w = x.shape
        q, k, v = (a.view(n, t, self.heads, w // self.heads).transpose(1, 2) for a in
                   self.qkv(self.before(x)).split(w, 2))
        a = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(a.transpose(1, 2).reshape(n, t, w))
        return x + self.mlp(self.between(x))


class GPT(nn.Module):
    """The shape of GPT-2 small; the head is the embedding."""

    def __init__(self, vocabulary=50257, places=1024, width=768, layers=12, heads=12, **block):
        super().__init__()
        self.token, self.place = nn.Embedding(vocabulary, width), nn.Embedding(places, width)
        self.blocks = nn.ModuleList(Block(width, heads, **block) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, x):
        x = self.token(x) + self.place.weight[:x.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.token.weight.t()


class Tagger(nn.Module):
    def __init__(self, vocabulary=20000, width=128, hidden=256, tags=20):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * hidden, tags)

    def forward(self, x):
        return self.out(self.lstm(self.token(x))[0])


@dataclasses.dataclass
class Network:
    build: Callable[[], nn.Module]
    shape: tuple  # of a batch
    classes: int = 1000
    vocabulary: int = 0  # of inputs that are words; else they are images
    class_axis: int = 1
    optimizer: str = "momentum"
    lr: float = 1e-3

    def rows(self, n):
        """n rows of inputs and labels."""
        dims = (n, *self.shape[1:])
        places = (n,) if len(dims) == 4 and self.classes == 1000 else (n, *dims[2:]) if len(dims) == 4 else dims
        x = torch.randint(self.vocabulary, dims) if self.vocabulary else torch.randn(dims)
        return x, torch.randint(self.classes, places)


def images(build, n, size=224, **more):
    return Network(build, (n, 3, size, size), **more)


def words(build, n, length, vocabulary, classes):
    return Network(build, (n, length), classes, vocabulary, class_axis=2, optimizer="adam", lr=1e-4)


NETWORKS = {
    "resnet18": images(tv.resnet18, 8),
    "mobilenet_v3_large": images(tv.mobilenet_v3_large, 8),
    "mobilenet_v3_small": images(tv.mobilenet_v3_small, 16),
    "efficientnet_b0": images(tv.efficientnet_b0, 8),
    "vit_ti_16": images(lambda: tv.VisionTransformer(224, 16, 12, 3, 192, 768), 8, optimizer="adam", lr=1e-4),
    "swin_t": images(tv.swin_t, 4, optimizer="adam", lr=1e-4),
    "convnext_tiny": images(tv.convnext_tiny, 4, optimizer="adam", lr=1e-4),
    "densenet121": images(tv.densenet121, 4),
    "unet": images(UNet, 4, 128, classes=4),
    "gpt2_small": words(GPT, 2, 128, 50257, 50257),
    "lstm_tagger": words(Tagger, 32, 64, 20000, 20),
}


def without_dropout(net):
    """Nothing random left in training: dropout and stochastic depth at probability 0."""
    for m in net.modules():
        if isinstance(m, (nn.Dropout,)) or type(m).__name__ == "StochasticDepth":
            m.p = 0.0
        if isinstance(m, nn.MultiheadAttention):
            m.dropout = 0.0
    return net
