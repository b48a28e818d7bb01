# SPDX-License-Identifier: Apache-2.0
"""invonnx.torch beside PyTorch: gradients and parameters of modules that are wrapped, wholly or in part, are PyTorch's.
Skipped where there is no torch; INVONNX_TORCH may name a Python that has it, with onnx and cffi."""
import copy
import os
import sys
import unittest
import warnings

try:
    import torch
except ImportError:
    other = os.environ.get("INVONNX_TORCH")
    if other:
        os.execv(other, [other, *sys.argv])
    print("no torch here: INVONNX_TORCH may name a Python that has it")
    sys.exit(77)

import invonnx
import invonnx.torch
from torch import nn
from torch.nn import functional as F

warnings.filterwarnings("error")  # what PyTorch remarks about its exporter is nobody's business


class Residual(nn.Module):
    def __init__(self, width, dropout=0.0):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return F.relu(x + self.dropout(self.norm(self.conv(x))))


class Pictures(nn.Module):
    def __init__(self, width=8, blocks=3, dropout=0.0):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.Sequential(*[Residual(width, dropout) for _ in range(blocks)])
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean((2, 3)))


class Coupling(nn.Module):
    """Two streams in and out."""

    def __init__(self, width):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(width, width), nn.Tanh())
        self.g = nn.Sequential(nn.Linear(width, width), nn.Tanh())

    def forward(self, a, b):
        a = a + self.f(b)
        return a, b + self.g(a)


def pictures(n=6, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, 8, 8, generator=rng), torch.randint(0, 5, (n,), generator=rng)


def pair(**options):
    """A network, and a copy whose middle runs here."""
    torch.manual_seed(0)
    a = Pictures(**options)
    b = copy.deepcopy(a)
    return a, b


class Wrap(unittest.TestCase):
    def same(self, a, b, limit=1e-5):
        for x, y in zip(a, b):
            self.assertLess((x - y).norm() / x.norm().clamp_min(1e-12), limit)

    def backward(self, net, x, y):
        x = x.clone().requires_grad_()
        net.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        return loss.item(), x.grad, [p.grad for p in net.parameters()]

    def test_gradients_in_each_mode(self):
        x, y = pictures()
        for memory in ("auto", "store", "recompute", "invert"):
            a, b = pair()
            b.body = invonnx.torch.wrap(b.body, b.stem(x), memory=memory)
            loss, gx, gp = self.backward(a, x, y)
            other, ox, op = self.backward(b, x, y)
            self.assertAlmostEqual(loss, other, places=6)
            self.same([gx, *gp], [ox, *op], 1e-4 if memory in ("auto", "invert") else 1e-5)

    def test_names_and_training(self):
        x, y = pictures()
        a, b = pair()
        b.body = invonnx.torch.wrap(b.body, b.stem(x))
        self.assertEqual(list(a.state_dict()), list(b.state_dict()))
        steps = [torch.optim.SGD(net.parameters(), 1e-3, momentum=0.9) for net in (a, b)]
        for i in range(4):
            n = 4 if i == 3 else 6  # the last batch is smaller
            losses = []
            for net, step in zip((a, b), steps):
                losses.append(self.backward(net, x[:n], y[:n])[0])
                step.step()
            self.assertAlmostEqual(*losses, places=5)
        counts = [n for n in a.state_dict() if n.endswith("num_batches_tracked")]
        self.assertTrue(counts)
        for name, value in a.state_dict().items():
            # The running variance is of the biased one here: 8 x 8 pictures.
            limit = 1e-2 if name.endswith("running_var") else 1e-4
            self.same([value.double()], [b.state_dict()[name].double()], limit)
        self.same([a.eval()(x)], [b.eval()(x)], 1e-2)

    def test_modes_of_modules(self):
        """A normalization that is left in evaluation mode while the rest trains, as is usual in fine-tuning; all of a fresh
        module in evaluation mode, whose scales and variances are equal."""
        x, y = pictures()
        for whole in (False, True):
            a, b = pair()
            for net in (a, b):
                for m in net.body.modules():
                    if isinstance(m, nn.BatchNorm2d):
                        m.eval()
                if whole:
                    net.body.eval()
            b.body = invonnx.torch.wrap(b.body, b.stem(x), memory="store")
            loss, gx, gp = self.backward(a, x, y)
            other, ox, op = self.backward(b, x, y)
            self.assertAlmostEqual(loss, other, places=6)
            self.same([gx, *gp], [ox, *op])
            self.assertTrue(torch.equal(b.state_dict()["body.0.norm.running_mean"], torch.zeros(8)))

    def test_arguments_with_defaults(self):
        """Arguments that are not given have their defaults, not tensors of these."""
        class Flagged(nn.Linear):
            def forward(self, x, twice=False):
                return super().forward(x) * 2 if twice is not False else super().forward(x)

        x = torch.randn(4, 5, 8, generator=torch.Generator().manual_seed(0))
        for module in (Flagged(8, 3), nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)):
            wrapped = invonnx.torch.wrap(copy.deepcopy(module), x, memory="store")
            want, got = x.clone().requires_grad_(), x.clone().requires_grad_()
            module(want).pow(3).sum().backward()
            wrapped(got).pow(3).sum().backward()
            self.same([want.grad], [got.grad])

    def test_dropout_is_the_same_in_backward(self):
        """Against differences: PyTorch's masks are others."""
        x, y = pictures()
        _, b = pair(dropout=0.5)
        b.body = invonnx.torch.wrap(b.body, b.stem(x), memory="recompute")
        weight, e = b.body.module[0].conv.weight, 1e-2

        def loss():
            b.body._number = 0
            return F.cross_entropy(b(x), y)

        loss().backward()
        found = weight.grad[0, 0, 1, 1].item()
        with torch.no_grad():
            weight[0, 0, 1, 1] += e
        more = loss().item()
        with torch.no_grad():
            weight[0, 0, 1, 1] -= 2 * e
        self.assertAlmostEqual((more - loss().item()) / (2 * e), found, places=2)

    def test_two_forwards_before_a_backward(self):
        (x, y), (x2, y2) = pictures(), pictures(seed=1)
        a, b = pair()
        b.body = invonnx.torch.wrap(b.body, b.stem(x))
        for net in (a, b):
            (F.cross_entropy(net(x), y) + F.cross_entropy(net(x2), y2)).backward()
        self.same([p.grad for p in a.parameters()], [p.grad for p in b.parameters()], 1e-4)

    def test_changed_between_forward_and_backward(self):
        x, y = pictures()
        _, b = pair()
        b.body = invonnx.torch.wrap(b.body, b.stem(x))
        loss = F.cross_entropy(b(x), y)
        with torch.no_grad():
            b.body.module[0].conv.weight.mul_(2)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()

    def test_several_inputs_and_outputs(self):
        torch.manual_seed(0)
        a = Coupling(6)
        u, v = torch.randn(4, 6), torch.randn(4, 6)
        b = invonnx.torch.wrap(copy.deepcopy(a), (u, v), memory="invert")
        for net in (a, b):
            p, q = net(u, v)
            p.square().sum().backward()  # of q there is no gradient
        self.same([p.grad for n, p in a.named_parameters() if n[0] == "f"],
                  [p.grad for n, p in b.named_parameters() if n[0] == "f"])
        self.assertEqual(float(b.module.g[0].weight.grad.abs().max()), 0)
        back = invonnx.torch.inverse(a, (u, v))
        self.same([u, v], back(*a(u, v)), 1e-5)

    def test_frozen_and_modes(self):
        x, y = pictures()
        a, b = pair()
        for net in (a, b):
            net.body[0].conv.weight.requires_grad_(False)
        b.body = invonnx.torch.wrap(b.body, b.stem(x), budget="4MiB")
        _, gx, _ = self.backward(a, x, y)
        self.same([gx], [self.backward(b, x, y)[1]], 1e-4)
        self.assertIsNone(b.body.module[0].conv.weight.grad)
        with b.body.modes("store"):
            self.same([gx], [self.backward(b, x, y)[1]])
        self.assertIn("inverses", b.body.check(b.stem(x)))

    def test_moved_parameters_are_found(self):
        x, y = pictures()
        a, b = pair()
        b.body = invonnx.torch.wrap(b.body, b.stem(x))
        self.backward(b, x, y)
        state = {n: v * 0.9 if v.is_floating_point() else v for n, v in a.state_dict().items()}
        a.load_state_dict(state)
        b.load_state_dict({n: v.clone() for n, v in state.items()}, assign=True)
        b.body.module[0].conv.weight.data = b.body.module[0].conv.weight.data.clone()
        self.same([self.backward(a, x, y)[1]], [self.backward(b, x, y)[1]], 1e-4)


class Step(unittest.TestCase):
    def test_weights_are_those_of_the_module(self):
        x, y = pictures()
        a, b = pair()
        step = invonnx.torch.train_step(b, x, loss="cross_entropy", optimizer="momentum", momentum=0.9, lr=1e-3)
        sgd = torch.optim.SGD(a.parameters(), 1e-3, momentum=0.9)
        for _ in range(5):
            a.zero_grad()
            loss = F.cross_entropy(a(x), y)
            loss.backward()
            sgd.step()
            self.assertAlmostEqual(step(x, y).loss, loss.item(), places=5)
        self.assertEqual(list(a.state_dict()), list(b.state_dict()))
        for name, value in a.state_dict().items():
            limit = 1e-2 if name.endswith("running_var") else 1e-4
            self.assertLess((value - b.state_dict()[name]).double().norm() / value.double().norm(), limit, name)


if __name__ == "__main__":
    unittest.main()
