# SPDX-License-Identifier: Apache-2.0
"""Writes curves.json: the losses of 100 steps of a small network by PyTorch, for each optimizer, clipping, accumulation,
averages of weights, label smoothing and each schedule. tests/cli/test_curves.py trains the same with invonnx and has the
numbers (data, weights, sizes of batches) from here. Wants torch, 2.9 or later for Muon; tests do not run it.

    python3 tests/data/make_curves.py
"""
import json
import math
import os

import numpy as np

STEPS, ROWS, BATCH, WIDE, HIDDEN, CLASSES = 100, 80, 8, 6, 8, 4
MICRO_ROWS = 22  # of a step of three micro-batches: 8, 8 and 6 rows
WARMUP = 10


def waves(rows, columns, a, b):
    """Numbers that are the same everywhere: waves, as float32."""
    at = np.arange(rows * columns).reshape(rows, columns)
    return np.sin(a * at + b * at % 7).astype(np.float32)


def data():
    x = waves(ROWS, WIDE, 1.3, 0.4)
    return {"x": x, "y": 0.5 * waves(ROWS, CLASSES, 0.9, 0.7) + 0.3, "labels": np.arange(ROWS) * 7 % 11 % CLASSES}


def filter_weights():
    return {"w": 0.5 * waves(5, 4, 2.1, 0.3).reshape(5, 1, 2, 2), "b": 0.1 * waves(1, 5, 1.1, 0.2)[0],
            "v": 0.5 * waves(10, CLASSES, 1.7, 0.6), "c": 0.1 * waves(1, CLASSES, 0.8, 0.1)[0]}


def weights():
    return {"w": 0.5 * waves(WIDE, HIDDEN, 2.1, 0.3), "b": 0.1 * waves(1, HIDDEN, 1.1, 0.2)[0],
            "v": 0.5 * waves(HIDDEN, CLASSES, 1.7, 0.6), "c": 0.1 * waves(1, CLASSES, 0.8, 0.1)[0]}


def runs():
    """name: options of `invonnx train`, and which model if it is the one with a convolution. What PyTorch does for them is in `torch_run`."""
    out = {}
    for name, lr, decay in (("sgd", 0.1, 0.01), ("momentum", 0.03, 0.01), ("adam", 0.01, 0.01), ("adamw", 0.01, 0.1),
                            ("lion", 0.003, 0.1), ("rmsprop", 0.003, 0.01), ("lamb", 0.01, 0.1),
                            ("adafactor", 0.05, 0.1), ("muon", 0.01, 0.1)):
        out[name] = {"optimizer": name, "lr": lr}
        decoupled = {} if name in ("sgd", "momentum", "adam", "rmsprop") else {"decay-all": True}
        out[name + "_decay"] = {"optimizer": name, "lr": lr, "weight-decay": decay, **decoupled}
    out["nesterov"] = {"optimizer": "momentum", "lr": 0.03, "nesterov": True}
    out["clip_norm"] = {"optimizer": "adamw", "lr": 0.01, "clip-norm": 0.2}
    out["clip_value"] = {"optimizer": "momentum", "lr": 0.05, "clip-value": 0.02}
    out["lamb_clip_norm"] = {"optimizer": "lamb", "lr": 0.01, "clip-norm": 0.2}
    out["muon_clip_value"] = {"optimizer": "muon", "lr": 0.01, "clip-value": 0.02}
    out["accumulate"] = {"optimizer": "adamw", "lr": 0.01, "accumulate": 3}
    out["accumulate_clip_norm"] = {"optimizer": "adafactor", "lr": 0.05, "accumulate": 3, "clip-norm": 0.2}
    out["label_smoothing"] = {"optimizer": "adamw", "lr": 0.01, "label-smoothing": 0.1}
    out["ema"] = {"optimizer": "sgd", "lr": 0.1, "average": "ema:0.9"}
    out["swa"] = {"optimizer": "sgd", "lr": 0.1, "average": "swa:50:3"}
    for name, options in (("linear", {"min-lr": 0.01}), ("cosine", {"min-lr": 0.01, "warmup": WARMUP}),
                          ("polynomial", {"power": 2}), ("step", {"step-every": 30, "step-factor": 0.5}),
                          ("one-cycle", {}), ("wsd", {"warmup": WARMUP, "decay-steps": 20})):
        out["schedule_" + name] = {"optimizer": "sgd", "lr": 0.1, "schedule": name, **options}
    for name in ("lamb", "adafactor", "muon"):
        out[name + "_filter"] = {**out[name + "_decay"], "model": "filter"}
    return out


def torch_schedule(lrs, optimizer, o):
    """PyTorch's schedule for the same options, and how it is called there."""
    lr, least, warm = o["lr"], o.get("min-lr", 0), o.get("warmup", 0)

    def behind_warmup(rest):
        up = lrs.LinearLR(optimizer, start_factor=1 / (warm + 1), end_factor=1, total_iters=warm)
        return lrs.SequentialLR(optimizer, [up, rest], milestones=[warm])

    def wsd(i):
        if i < warm:
            return (i + 1) / (warm + 1)
        return 1 if i < STEPS - o["decay-steps"] else (STEPS - i) / o["decay-steps"]

    made = {
        "linear": lambda: lrs.LinearLR(optimizer, start_factor=1, end_factor=least / lr, total_iters=STEPS),
        "cosine": lambda: behind_warmup(lrs.CosineAnnealingLR(optimizer, T_max=STEPS - warm, eta_min=least)),
        "polynomial": lambda: lrs.PolynomialLR(optimizer, total_iters=STEPS, power=o["power"]),
        "step": lambda: lrs.StepLR(optimizer, step_size=o["step-every"], gamma=o["step-factor"]),
        "one-cycle": lambda: lrs.OneCycleLR(optimizer, max_lr=lr, total_steps=STEPS, cycle_momentum=False),
        "wsd": lambda: lrs.LambdaLR(optimizer, wsd),
    }
    return made[o["schedule"]]() if "schedule" in o else None


class ByPaper:
    """Lion and LAMB, which PyTorch does not have, by their papers."""

    def __init__(self, torch, params, name, lr, decay):
        self.torch, self.params, self.name, self.decay, self.t = torch, list(params), name, decay, 0
        self.param_groups = [{"lr": lr}]
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    def step(self):
        self.t += 1
        for p, m, v in zip(self.params, self.m, self.v):
            with self.torch.no_grad():
                getattr(self, self.name)(p, p.grad, m, v, self.param_groups[0]["lr"])

    def lion(self, p, g, m, _, lr):
        c = 0.9 * m + 0.1 * g
        p -= lr * (c.sign() + self.decay * p)
        m.mul_(0.99).add_(g, alpha=0.01)

    def lamb(self, p, g, m, v, lr):
        m.mul_(0.9).add_(g, alpha=0.1)
        v.mul_(0.999).add_(g * g, alpha=0.001)
        r = m / (1 - 0.9**self.t) / ((v / (1 - 0.999**self.t)).sqrt() + 1e-6) + self.decay * p
        own, of = p.norm(), r.norm()
        p -= lr * (own / of if own > 0 and of > 0 else 1) * r


class Pair:
    """Muon for matrices, AdamW for vectors."""

    def __init__(self, *optimizers):
        self.optimizers = optimizers

    def zero_grad(self):
        for o in self.optimizers:
            o.zero_grad()

    def step(self):
        for o in self.optimizers:
            o.step()


def torch_optimizer(torch, params, o):
    lr, decay, opt = o["lr"], o.get("weight-decay", 0), torch.optim
    matrices, vectors = [p for p in params if p.ndim > 1], [p for p in params if p.ndim < 2]
    made = {
        "sgd": lambda: opt.SGD(params, lr, weight_decay=decay),
        "momentum": lambda: opt.SGD(params, lr, momentum=0.9, weight_decay=decay, nesterov=o.get("nesterov", False)),
        "adam": lambda: opt.Adam(params, lr, weight_decay=decay),
        "adamw": lambda: opt.AdamW(params, lr, weight_decay=decay),
        "rmsprop": lambda: opt.RMSprop(params, lr, weight_decay=decay),
        "adafactor": lambda: opt.Adafactor(params, lr, weight_decay=decay),
        "muon": lambda: Pair(opt.Muon(matrices, lr, weight_decay=decay), opt.AdamW(vectors, lr, weight_decay=decay)),
    }
    return made.get(o["optimizer"], lambda: ByPaper(torch, params, o["optimizer"], lr, decay))()


def torch_run(torch, o, dtype):
    """(losses of the steps, losses of all rows by the averages after every tenth step)"""
    from torch.optim import swa_utils
    start = filter_weights() if "model" in o else weights()
    if "model" in o and o["optimizer"] == "muon":  # PyTorch's wants the matrix that a filter is
        start["w"] = start["w"].reshape(5, 4)
    p = torch.nn.ParameterDict({n: torch.nn.Parameter(torch.tensor(a).to(dtype)) for n, a in start.items()})
    x, y, labels = (torch.tensor(a) for a in data().values())
    x, y = x.to(dtype), y.to(dtype)
    functional = torch.nn.functional

    def loss_of(p, rows):
        if "model" in o:
            images = functional.conv2d(x[rows].reshape(-1, 1, 2, 3), p["w"].reshape(5, 1, 2, 2), p["b"])
            out = images.tanh().reshape(-1, 10) @ p["v"] + p["c"]
        else:
            out = (x[rows] @ p["w"] + p["b"]).tanh() @ p["v"] + p["c"]
        if "label-smoothing" in o:
            return functional.cross_entropy(out, labels[rows], label_smoothing=o["label-smoothing"])
        return functional.mse_loss(out, y[rows])

    params = [p[n] for n in start]
    optimizer = torch_optimizer(torch, params, o)
    schedule = torch_schedule(torch.optim.lr_scheduler, optimizer, o)
    kind, *numbers = o.get("average", "none").split(":")
    average = None
    if kind == "ema":
        average = swa_utils.AveragedModel(p, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(float(numbers[0])))
    elif kind == "swa":
        average = swa_utils.AveragedModel(p)
    losses, of_average = [], []
    for i in range(STEPS):
        optimizer.zero_grad()
        if "accumulate" in o:
            total = 0
            for at in range(0, MICRO_ROWS, BATCH):
                n = min(BATCH, MICRO_ROWS - at)
                part = loss_of(p, slice(at, at + n)) * n / MICRO_ROWS
                part.backward()
                total += part.item()
        else:
            at = i * BATCH % ROWS
            loss = loss_of(p, slice(at, at + BATCH))
            loss.backward()
            total = loss.item()
        losses.append(total)
        if "clip-norm" in o:
            torch.nn.utils.clip_grad_norm_(params, o["clip-norm"])
        if "clip-value" in o:
            torch.nn.utils.clip_grad_value_(params, o["clip-value"])
        optimizer.step()
        if schedule:
            schedule.step()
        # until `from` the average is the weights themselves: then it starts with them
        if kind == "ema" or (kind == "swa" and i >= int(numbers[0]) and (i - int(numbers[0])) % int(numbers[1]) == 0):
            average.update_parameters(p)
        if average and i % 10 == 9:
            shown = average.module if average.n_averaged > 0 else p
            with torch.no_grad():
                of_average.append(loss_of(shown, slice(0, ROWS)).item())
    return losses, of_average


def main():
    import torch
    torch.set_num_threads(1)

    # PyTorch's own casts to bfloat16; this is the same iteration in the parameter's type
    def orthogonal(g, coefficients, steps, eps):
        a, b, c = coefficients
        x = g.T if g.size(0) > g.size(1) else g
        x = x / x.norm().clamp(min=eps)
        for _ in range(steps):
            gram = x @ x.T
            x = a * x + (b * gram + c * gram @ gram) @ x
        return x.T if g.size(0) > g.size(1) else x

    torch.optim._muon._zeropower_via_newtonschulz = orthogonal
    out = {"torch": torch.__version__, "runs": {}}
    for name, o in runs().items():
        losses, of_average = torch_run(torch, o, torch.float64)
        single, _ = torch_run(torch, o, torch.float32)
        assert losses[-1] < losses[0] and all(map(math.isfinite, losses)), name
        run = {"float64": [float(f"{v:.8g}") for v in losses]}
        if not o.keys() & {"schedule", "weight-decay", "average", "clip-value"}:
            run["float32"] = [float(f"{v:.7g}") for v in single]
        if of_average:
            run["average"] = [float(f"{v:.8g}") for v in of_average]
        out["runs"][name] = run
        print(f"{name:24} {losses[0]:.6f} {losses[-1]:.6f}  float32 apart {max(abs(a / b - 1) for a, b in zip(single, losses)):.1e}")
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "curves.json")
    with open(path, "w", encoding="ascii") as f:
        json.dump(out, f, separators=(",", ":"))
        f.write("\n")
    print(path, os.path.getsize(path))


if __name__ == "__main__":
    main()
