# SPDX-License-Identifier: Apache-2.0
"""invonnx.torch.wrap around the middle of a network, beside plain PyTorch and torch.utils.checkpoint: memory, processor
time and the losses of a hundred steps. Needs torch, onnx and the installed package; Linux only.

    bench/wrap.py [-o bench/results/wrap.md] [--steps N] [--threads N]

Each contestant is a process of its own, which makes a step of a small network first, so that what libraries take for
themselves is there before it is measured. Memory is the most that is resident during the steps behind the first one,
less what was resident before the first: activations, gradients, the optimizer's state, and of the session all of it,
parameters included. Threads that wait sleep. Time is processor time, the least of five stretches of the steps behind
the first. A second run of plain PyTorch, which sums in another order (one thread), shows what losses differ by when
nothing but rounding does."""
import argparse
import gc
import json
import os
import subprocess
import sys
import time
import warnings

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "examples"))

CONTESTANTS = {
    "PyTorch": ("plain", {}),
    "PyTorch, one thread": ("plain", {}),
    "checkpoint of each block": ("checkpoint", {}),
    "wrap, auto": ("wrap", {}),
    "wrap, smallest": ("wrap", {"budget": "smallest"}),
}


def resnet(torch, small):
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.conv1, self.norm1 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
            self.conv2, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)

        def forward(self, x):
            y = torch.relu(self.norm1(self.conv1(x)))
            return torch.relu(x + self.norm2(self.conv2(y)))

    class ResNet(nn.Module):
        def __init__(self, width=16, blocks=1 if small else 8):
            super().__init__()
            self.stem, self.head = nn.Conv2d(3, width, 3, padding=1), nn.Linear(width, 10)
            self.middle = nn.Sequential(*[Block(width) for _ in range(blocks)])

        def begin(self, x):
            return self.stem(x)

        def end(self, x):
            return self.head(x.mean((2, 3)))

    n = 2 if small else 64
    return ResNet(), torch.randn(n, 3, 16, 16), torch.randint(0, 10, (n,)), 1e-4


def gpt(torch, small):
    from torch import nn

    from export_gpt import Block

    class GPT(nn.Module):
        def __init__(self, width=64, layers=1 if small else 6, context=64):
            super().__init__()
            self.embedding, self.position = nn.Embedding(256, width), nn.Embedding(context, width)
            self.middle = nn.Sequential(*[Block(width, 4) for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

        def begin(self, x):
            return self.embedding(x) + self.position(torch.arange(x.shape[1]))

        def end(self, x):
            return self.head(self.norm(x)).flatten(0, 1)

    n = 2 if small else 32
    tokens = torch.randint(0, 256, (n, 65))
    return GPT(), tokens[:, :-1].contiguous(), tokens[:, 1:].flatten(), 1e-2


def resident(key):
    with open("/proc/self/status", encoding="ascii") as f:
        return next(1024 * int(line.split()[1]) for line in f if line.startswith(key))


def stepper(torch, net, x, y, lr, how, options):
    """A function that makes a step, and what of the network's middle it runs by."""
    from torch.utils.checkpoint import checkpoint

    middle = net.middle
    if how == "wrap":
        import invonnx.torch

        with torch.no_grad():
            example = net.begin(x)
        if options.get("budget") == "smallest":
            plan = invonnx.torch.wrap(middle, example).model.plan(
                loss="outside", optimizer=None, inputs={"x": tuple(example.shape)}, input_grads=True)
            options = {"budget": int(1.02 * plan.try_budget()["peak_bytes"])}
            del plan
            gc.collect()
        net.middle = middle = invonnx.torch.wrap(middle, example, **options)
    optimizer = torch.optim.SGD(net.parameters(), lr, momentum=0.9)

    def step():
        optimizer.zero_grad()
        h = net.begin(x)
        if how == "checkpoint":
            for block in middle:
                h = checkpoint(block, h, use_reentrant=False)
        else:
            h = middle(h)
        loss = torch.nn.functional.cross_entropy(net.end(h), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def serve(network, how, options, steps, threads):
    import torch

    warnings.filterwarnings("ignore")
    torch.set_num_threads(threads)
    make = {"resnet": resnet, "gpt": gpt}[network]
    torch.manual_seed(1)
    stepper(torch, *make(torch, True), how, {})()
    gc.collect()
    torch.manual_seed(0)
    net, x, y, lr = make(torch, False)
    before = resident("VmRSS")
    step = stepper(torch, net, x, y, lr, how, options)
    losses = [step()]
    with open("/proc/self/clear_refs", "w", encoding="ascii") as f:
        f.write("5")  # the most that was resident begins anew
    times = []
    for _ in range(5):
        began = time.process_time()
        losses += [step() for _ in range((steps - 1) // 5)]
        times.append((time.process_time() - began) / ((steps - 1) // 5))
    print(json.dumps({"losses": losses, "bytes": resident("VmHWM") - before, "seconds": min(times),
                      "torch": torch.__version__.split("+")[0]}))


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        return next((line.split(":")[1].strip() for line in f if line.startswith("model name")), "unknown processor")


def measured(network, name, args):
    how, options = CONTESTANTS[name]
    threads = 1 if "one thread" in name else args.threads
    done = subprocess.run([sys.executable, os.path.abspath(__file__), "--serve", network, how, json.dumps(options),
                           "--steps", str(args.steps), "--threads", str(threads)], stdout=subprocess.PIPE, check=True,
                          env={**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive"})
    return json.loads(done.stdout)


def table(args):
    lines = []
    for network, title in (("resnet", "ResNet, 8 blocks of 16 channels, 64 pictures of 16 x 16"),
                           ("gpt", "GPT, 6 blocks of width 64, 32 rows of 64 tokens")):
        lines += [f"## {title}", "", "| middle by | memory | processor time of a step | largest difference of a loss |",
                  "| --- | ---: | ---: | ---: |"]
        first = None
        for name in CONTESTANTS:
            r = measured(network, name, args)
            first = first or r
            off = max(abs(a - b) for a, b in zip(r["losses"], first["losses"]))
            lines.append(f"| {name} | {r['bytes'] / 2**20:.0f} MiB | {1000 * r['seconds']:.0f} ms | "
                         f"{'' if r is first else f'{off:.1e}'} |")
            print(lines[-1], file=sys.stderr, flush=True)
        lines += ["", f"Losses from {first['losses'][0]:.3f} to {first['losses'][-1]:.3f} in {len(first['losses'])} "
                  "steps.", ""]
    return [f"# wrap beside PyTorch {first['torch']}", "",
            f"Made by `bench/wrap.py` with {args.threads} threads on {time.strftime('%Y-%m-%d')}, on {os.cpu_count()} "
            f"cores that others used, too ({processor()}); how is said there.", "",
            "With rates at which a network trains faster, batch normalization makes rounding grow: at 1e-3 the losses "
            "of PyTorch with one thread and with two differ by 3.5e-4 in the ResNet.", "", *lines]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out")
    parser.add_argument("--steps", type=int, default=101)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        network, how, options = args.serve
        serve(network, how, json.loads(options), args.steps, args.threads)
        return
    text = "\n".join(table(args))
    if args.out:
        with open(args.out, "w", encoding="utf-8") as f:
            f.write(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
