# SPDX-License-Identifier: Apache-2.0
"""Exports of well-known networks with random weights: do they load, and is what inspect says of them true?

    exports.py make DIR [MODEL...]                     needs torch, torchvision, onnx, onnxscript
    exports.py report DIR [--invonnx PROGRAM] [--out FILE]    needs none of them

`make` writes DIR/MODEL_WAY.onnx, and beside each a .json with what PyTorch knows: its parameters, batch norms, dropouts.
Ways dynamo and legacy are what torch.onnx.export does with a model in evaluation mode when nothing but the exporter is
chosen; dynamo-plain and legacy-training are the recipes of docs/exporting.md.
`report` asks inspect, then plans a training step, and writes one row per file (bench/results/exports.md)."""
import argparse
import collections
import glob
import json
import math
import os
import subprocess
import sys

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
HEAD = """# Exports of PyTorch

Made by `bench/exports.py`: torchvision's networks with random weights, PyTorch {torch}. Ways dynamo and legacy are the
default exports in evaluation mode; dynamo-plain and legacy-training are the recipes of docs/exporting.md. Trainable is
what `inspect` calls so: in the file as it is, and with --untie, which the elements are counted with. torch: the model's
`parameters()`. The numbers of traps count what is named by them. docs/exporting.md says where differences come from, and
what to do about each trap. A training step is planned with --memory store.

| model | way | loads | operators lacking | trainable tensors: as it is, untied / torch | elements / torch | traps | a training step |
| --- | --- | --- | --- | --- | --- | --- | --- |
"""


# --- making them ---

EXPORTED = ("resnet18", "mobilenet_v3_small", "efficientnet_b0", "vit_ti_16", "swin_t", "convnext_tiny", "densenet121")


def networks():
    from networks import NETWORKS
    return {name: NETWORKS[name].build for name in EXPORTED}


def facts(net):
    import torch
    from torch.nn.modules.batchnorm import _BatchNorm
    parameters = list(net.named_parameters())
    return {
        "torch": torch.__version__.split("+")[0],
        "tensors": len(parameters),
        "elements": sum(p.numel() for _, p in parameters),
        "batch_norms": sum(isinstance(m, _BatchNorm) for m in net.modules()),
        "dropouts": sum(isinstance(m, torch.nn.Dropout) and m.p > 0 for m in net.modules()),
        "names": [n for n, _ in parameters],
    }


def ways():
    import torch
    training = {"training": torch.onnx.TrainingMode.TRAINING, "do_constant_folding": False}
    return {  # way: (model in training mode, arguments of torch.onnx.export)
        "legacy": (False, {"dynamo": False}),
        "dynamo": (False, {"dynamo": True}),
        "legacy-training": (True, {"dynamo": False, **training}),
        "dynamo-plain": (False, {"dynamo": True, "optimize": False}),
    }


def make(folder, wanted):
    import torch
    os.makedirs(folder, exist_ok=True)
    for name, build in networks().items():
        if wanted and name not in wanted:
            continue
        torch.manual_seed(0)
        net = build()
        for way, (training, arguments) in ways().items():
            stem = os.path.join(folder, f"{name}_{way}")
            said = None
            if os.path.exists(stem + ".json"):
                continue
            try:
                torch.onnx.export(net.train(training), (torch.randn(2, 3, 224, 224),), stem + ".onnx", **arguments)
            except Exception as error:  # an export that fails is a result too
                said = f"{type(error).__name__}: {error}".splitlines()[0][:200]
            with open(stem + ".json", "w") as f:
                json.dump({"name": name, "way": way, "failed": said, **facts(net)}, f, indent=1)
            print(stem, said or "", flush=True)


# --- judging them ---

def call(program, *args):
    done = subprocess.run([program, *args], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr.strip()


def step(program, model, traps):
    """What a training plan says: as it is, and with the remedies that inspect names."""
    remedies = [o for o in ("--train-bn", "--untie") if any(o in t["text"] for t in traps)]
    said = []
    for options in ([], remedies) if remedies else ([],):
        code, out, err = call(program, "plan", model, "--loss", "cross_entropy", "--memory", "store", "--json", *options)
        what = " ".join(options) or "as it is"
        if code == 0:
            peaks = json.loads(out)
            said.append(f"{what}: planned, {peaks['planned_peak_bytes'] / 2**20:.0f} MiB")
        else:
            reason = err.removeprefix("invonnx: ").split(":")[0]
            said.append(f"{what}: refused, {reason}")
    return "; ".join(said)


def row(program, stem):
    known = json.load(open(stem + ".json"))
    name = f"| {known['name']} | {known['way']} "
    if known["failed"]:
        return name + f"| not exported: {known['failed']} | | | | | |\n"
    code, out, err = call(program, "inspect", stem + ".onnx", "--json")
    if code:
        return name + f"| no: {err} | | | | | |\n"
    said = json.loads(out)
    size = {i["name"]: math.prod(i["shape"]) for i in said["initializers"]}
    merged = {t["initializer"]: t["count"] for t in said["traps"] if t["kind"] == "merged_initializer"}
    statistics = {t["initializer"]: sum("running" in u for u in t["uses"]) for t in said["traps"]
                  if t["kind"] == "merged_initializer"}
    trained = [i["name"] for i in said["initializers"] if i["trainable"]]
    untied = {n: 1 for n in trained} | {n: k - statistics[n] for n, k in merged.items()}
    lacking = ", ".join(sorted(f"{m['op']} ({m['what']})" for m in said["missing"])) or "none"
    return name + (f"| yes | {lacking} | {len(trained)}, {sum(untied.values())} / {known['tensors']} "
                   f"| {sum(size[n] * k for n, k in untied.items())} / {known['elements']} "
                   f"| {traps_text(said['traps'])} | {step(program, stem + '.onnx', said['traps'])} |\n")


def traps_text(traps):
    count = collections.Counter()
    for t in traps:
        n = t.get("nodes") or t.get("parameters") or t.get("initializers") or [t]
        count[t["kind"]] += len(n)
    return ", ".join(f"{kind} {n}" for kind, n in count.items()) or "none"


def report(folder, program, out):
    stems = sorted(f[:-5] for f in glob.glob(os.path.join(folder, "*.json")))
    if not stems:
        sys.exit(f"{folder}: no exports; make them first")
    text = HEAD.format(torch=json.load(open(stems[0] + ".json"))["torch"]) + "".join(row(program, s) for s in stems)
    if out:
        with open(out, "w") as f:
            f.write(text)
    else:
        print(text, end="")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("make", "report"))
    parser.add_argument("dir")
    parser.add_argument("models", nargs="*")
    parser.add_argument("--invonnx", default=os.path.join(ROOT, "build", "dev", "invonnx"))
    parser.add_argument("--out")
    o = parser.parse_args()
    make(o.dir, o.models) if o.what == "make" else report(o.dir, o.invonnx, o.out)


if __name__ == "__main__":
    main()
