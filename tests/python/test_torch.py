# SPDX-License-Identifier: Apache-2.0
"""invonnx.torch beside PyTorch: gradients and parameters of modules that are wrapped, wholly or in part, are PyTorch's.
Skipped where there is no torch; INVONNX_TORCH may name a Python that has it, with onnx and cffi."""
import copy
import os
import pickle
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


class Layer(nn.Module):
    """Called by names and with a tuple, as Hugging Face's layers are."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, hidden, mask=None, position=None, use_cache=False):
        scale, shift = position
        h = self.b(torch.tanh(self.a(hidden))) * scale + shift
        return (h if mask is None else h * mask) + hidden, None


class Calls(unittest.TestCase):
    """What PyTorch's users do to a module besides calling it with tensors of float32."""

    def setUp(self):
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3))
        self.twin = copy.deepcopy(self.net)
        self.x, self.y = torch.randn(4, 8), torch.randint(0, 3, (4,))

    def gradients(self, net, x):
        loss = F.cross_entropy(net(x).float(), self.y)
        loss.backward()
        return loss.item()

    def near(self, a, b, limit):
        for p, q in zip(a.parameters(), b.parameters()):
            self.assertLess((p.grad - q.grad).norm() / q.grad.norm(), limit)

    def test_types_of_autocast(self):
        """The numbers of bfloat16 and float16 tensors, and gradients in their type."""
        for dtype, limit in ((torch.bfloat16, 2e-2), (torch.float16, 3e-3)):
            net = copy.deepcopy(self.net)
            wrapped, twin = invonnx.torch.wrap(net, self.x, memory="store"), copy.deepcopy(self.net)
            x = self.x.to(dtype).requires_grad_()
            self.assertAlmostEqual(self.gradients(wrapped, x), self.gradients(twin, x.detach().float()), places=6)
            self.assertEqual(x.grad.dtype, dtype)
            self.near(net, twin, 1e-5)
            with torch.autocast("cpu", dtype=dtype):
                h = F.linear(self.x, torch.eye(8))
                self.assertEqual(h.dtype, dtype)
                self.assertAlmostEqual(self.gradients(wrapped, h), self.gradients(twin, h), delta=limit)
            self.near(net, twin, limit)

    def test_steps_of_bfloat16(self):
        step = invonnx.torch.train_step(self.net, self.x, loss="cross_entropy", lr=0.0)
        self.assertAlmostEqual(step(self.x.bfloat16(), self.y).loss,
                               F.cross_entropy(self.twin(self.x.bfloat16().float()), self.y).item(), places=6)
        with self.assertRaisesRegex(TypeError, r"torch.bfloat16.*x.float"):
            step.trainer.step(self.x.bfloat16(), self.y)

    def test_arguments_by_name(self):
        net = Layer()
        twin, (mask, scale, shift) = copy.deepcopy(net), torch.rand(3, 4, 8)
        wrapped = invonnx.torch.wrap(net, {"hidden": self.x, "position": (scale, shift), "mask": mask})
        for args, named in (((self.x,), {"mask": mask, "position": (scale, shift)}),
                            ((self.x, mask, (scale, shift), False), {})):
            results = [each(*args, **named) for each in (wrapped, twin)]
            self.assertIsNone(results[0][1])
            for each in results:
                each[0].square().sum().backward()
        self.near(net, twin, 1e-5)
        for named, word in (({}, "mask=None"), ({"mask": mask, "use_cache": True}, "use_cache=True")):
            with self.assertRaisesRegex(TypeError, f"{word}.*the example was"):
                wrapped(self.x, position=(scale, shift), **named)

    def test_a_result_in_two_places_and_arguments_unread(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.a = nn.Linear(8, 8)

            def forward(self, unread, x, also=None):
                h = torch.tanh(self.a(x))
                return {"last": h, "all": [x, (h, h * 2)], "none": None}

        net, u = Net(), torch.randn(4, 8)
        twin = copy.deepcopy(net)
        wrapped = invonnx.torch.wrap(net, (self.x, self.x, u), memory="store")
        step = invonnx.torch.train_step(copy.deepcopy(self.net), {"input": self.x}, loss="cross_entropy")
        for each in (wrapped, twin):
            result = each(u, self.x, u * 2)
            (result["last"].square() + result["all"][1][0] + result["all"][1][1]).sum().backward()
        self.near(net, twin, 1e-5)
        self.assertAlmostEqual(step({"input": self.x}, self.y).loss, F.cross_entropy(self.net(self.x), self.y).item(), places=6)

    def test_every_parameter_is_trained(self):
        """... as it is in PyTorch, also a single number, which a file does not tell from a constant."""
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale, self.power = nn.Parameter(torch.tensor(1.0)), nn.Parameter(torch.tensor(2.0))
                self.blur = nn.Parameter(torch.ones(1, 1, 3) / 3)

            def forward(self, x):
                return F.conv1d(x[:, None].abs().pow(self.power), self.blur)[:, 0] * self.scale

        net, twin = Net(), Net()
        wrapped = invonnx.torch.wrap(net, self.x, memory="store")
        for each in (wrapped, twin):
            each(self.x).square().sum().backward()
        self.near(net, twin, 1e-5)

    def test_wrapped_under_autocast(self):
        """The export is of float32; an output that forward makes bfloat16 has its numbers."""
        with torch.autocast("cpu", dtype=torch.bfloat16):
            wrapped = invonnx.torch.wrap(self.net, self.x, memory="store")
        self.assertLess((wrapped(self.x) - self.twin(self.x)).abs().max(), 1e-6)

        class Narrow(nn.Linear):
            def forward(self, x):
                return super().forward(x).bfloat16()

        net = Narrow(8, 3)
        y = invonnx.torch.wrap(net, self.x, memory="store")(self.x)
        self.assertEqual((y.dtype, y.shape), (torch.bfloat16, (4, 3)))
        self.assertLess((y - net(self.x)).abs().max(), 1e-2)

    def test_what_cannot_be_served_is_told(self):
        wrapped = invonnx.torch.wrap(self.net, self.x, memory="store")
        x = self.x.clone().requires_grad_()
        with self.assertRaisesRegex(RuntimeError, "no second derivatives"):
            torch.autograd.grad(wrapped(x).sum(), x, create_graph=True)
        self.net.double()
        with self.assertRaisesRegex(TypeError, "is of type torch.float64 now"):
            wrapped(self.x)
        self.twin[1].register_full_backward_hook(lambda *a: None)
        with self.assertRaisesRegex(TypeError, "backward hook of '1'"):
            invonnx.torch.wrap(self.twin, self.x)

        class Counts(nn.Linear):
            def forward(self, x):
                self.mean.mul_(0.9).add_(0.1 * x.detach().mean())
                return super().forward(x - self.mean)

        net = Counts(8, 3)
        net.register_buffer("mean", torch.zeros(()))
        with self.assertWarnsRegex(UserWarning, "changes the buffer 'mean'"):
            invonnx.torch.wrap(net, self.x)

    def test_a_step_of_a_module_that_has_changed(self):
        for change, word in ((lambda net: net[0].requires_grad_(False), "'0.weight' was trained"),
                             (lambda net: net.append(nn.Tanh()), "submodule '3'")):
            net = copy.deepcopy(self.net)
            step = invonnx.torch.train_step(net, self.x, loss="cross_entropy")
            step(self.x, self.y)
            change(net)
            with self.assertRaisesRegex(RuntimeError, f"since its step was made: {word}.*train_step"):
                step(self.x, self.y)

    def test_a_parameter_that_is_another_tensor(self):
        """The first call gives the new one its gradient."""
        wrapped = invonnx.torch.wrap(self.net, self.x, memory="store")
        weight = nn.Parameter(self.net[0].weight.detach() * 2)
        self.net[0].weight, self.twin[0].weight = weight, nn.Parameter(weight.detach().clone())
        self.gradients(wrapped, self.x), self.gradients(self.twin, self.x)
        self.near(self.net, self.twin, 1e-5)

    def test_compile_breaks_the_graph(self):
        wrapped = invonnx.torch.wrap(self.net, self.x, memory="store")
        compiled = torch.compile(nn.Sequential(nn.Tanh(), wrapped, nn.Tanh()), backend="eager")
        twin = nn.Sequential(nn.Tanh(), self.twin, nn.Tanh())
        self.assertAlmostEqual(self.gradients(compiled, self.x), self.gradients(twin, self.x), places=6)
        self.near(self.net, self.twin, 1e-5)

    def test_copies_have_weights_of_their_own(self):
        wrapped = invonnx.torch.wrap(self.net, self.x, memory="store")
        self.gradients(wrapped, self.x)
        with torch.no_grad():
            self.net[0].weight.mul_(2)
        other = copy.deepcopy(wrapped)
        with torch.no_grad():
            self.net[0].weight.mul_(0)
            self.twin[0].weight.mul_(2)
        other.zero_grad()
        self.assertAlmostEqual(self.gradients(other, self.x), self.gradients(self.twin, self.x), places=6)
        self.near(other, self.twin, 1e-5)
        average = torch.optim.swa_utils.AveragedModel(wrapped)
        average.update_parameters(wrapped)
        self.assertLess((average(self.x) - self.net(self.x)).abs().max(), 1e-5)
        with self.assertRaisesRegex(TypeError, "state_dict"):
            pickle.dumps(wrapped)

    def test_modules_that_have_changed(self):
        def unfreeze(net):
            net[2].weight.requires_grad_(True)

        def replace(net):
            net[0] = nn.Linear(8, 8)

        def append(net):
            net.append(nn.Tanh())

        def hook(net):
            net[1].register_forward_hook(lambda *a: None)

        def backward_hook(net):
            net[1].register_full_backward_hook(lambda *a: None)

        def parametrize(net):
            nn.utils.parametrizations.weight_norm(net[0])

        for change, word in ((unfreeze, "'2.weight' was frozen"), (replace, "submodule '0'"), (append, "submodule '3'"),
                             (hook, "hook of '1'"), (backward_hook, "hook of '1'"), (parametrize, "submodule '0.param")):
            net = copy.deepcopy(self.net)
            net[2].weight.requires_grad_(False)
            wrapped = invonnx.torch.wrap(net, self.x, memory="store")
            self.gradients(wrapped, self.x)
            change(net)
            with self.assertRaisesRegex(RuntimeError, f"has changed since it was wrapped: .*{word}"):
                wrapped(self.x)

    def test_modes_that_have_changed(self):
        """A module inside in another mode than it was exported in: PyTorch's own, in that mode."""
        net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
        twin = copy.deepcopy(net)
        wrapped = invonnx.torch.wrap(net, self.x, memory="store")
        for each in (net, twin):
            each[1].eval()
        self.assertTrue(torch.equal(wrapped(self.x), twin(self.x)))


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
