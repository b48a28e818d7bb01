# SPDX-License-Identifier: Apache-2.0
"""Layers of zuko, nflows, normflows and FrEIA: which have an inverse and a log-determinant, and why not.

    flow_layers.py make DIR [LIBRARY...]       exports them; needs bench/flows/requirements.txt
    flow_layers.py report DIR [--invonnx PROGRAM] [--into docs/flow-layers.md]    judges the files; needs onnxruntime

`make` writes DIR/LIBRARY_NUMBER_WAY.onnx. Beside it are a .json of what became of the export, and an .npz of values:
inputs, and what the library makes of them in both directions. Ways are both exporters of torch.onnx.export, dynamo and
script (dynamo=False). The batch is open, or fixed where the exporter cannot do that.
`report` derives inverses and log-determinants by `invonnx rewrite` and runs them in onnxruntime. It writes the tables
between two markers of a page."""
import argparse
import concurrent.futures
import datetime
import glob
import json
import multiprocessing
import os
import re
import subprocess
import sys
import warnings

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
LIBRARIES = ("zuko", "nflows", "normflows", "freia")
WAYS = ("dynamo", "script")
SECONDS = 240  # that an export may take
CLOSE = 1e-3  # what counts as equal, in float32


# --- making the files ---

class Failed(RuntimeError):
    """What a process of its own said of its failure."""


def first_line(error):
    """What an exporter or a runtime says, without its codes, its advice and where in C++ it was."""
    text = " ".join(str(error).split("\n\n")[0].split(" Exception raised from")[0].split())
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    return (text if isinstance(error, Failed) else f"{type(error).__name__}: {text}")[:200]


def root_cause(error):
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def apart(who, function):
    """What the function gives, in a process of its own: exporters and runtimes may crash, or take too long."""
    def child(end):
        try:
            end.send((function(), None))
        except Exception as error:  # what fails is a result too
            end.send((None, first_line(root_cause(error))))

    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    process = fork.Process(target=child, args=(there,))
    process.start()
    there.close()
    made, said = None, f"{who} has not finished after {SECONDS} s"
    try:
        if here.poll(SECONDS):
            made, said = here.recv()
    except EOFError:
        said = f"{who} crashes"
    process.kill()
    process.join()
    if said:
        raise Failed(said)
    return made


def names_of(layer, inputs, outputs):
    given = list(layer.given)
    plain = len(inputs) - len(given)
    numbered = lambda name, n: [name] if n == 1 else [f"{name}{i + 1}" for i in range(n)]
    return numbered("x", plain) + given, numbered("z", len(outputs) - 1) + ["logdet"]


def build(layer):
    import torch
    torch.manual_seed(0)
    module = layer.build()
    module.eval()
    with torch.no_grad():
        for p in (p for p in module.parameters() if p.requires_grad):
            p.add_(layer.jitter * torch.randn_like(p))
    return module


class Attempt:
    """One call of an exporter."""

    def __init__(self, way, batch_open, with_logdet):
        self.way, self.open, self.with_logdet = way, batch_open, with_logdet

    def export(self, module, inputs, names, path):
        import torch

        class Whole(torch.nn.Module):
            def __init__(self, keep):
                super().__init__()
                self.inside, self.keep = module, keep

            def forward(self, *values):
                results = self.inside(*(v.clone() for v in values))  # some layers write into what they take
                return results if self.keep else results[:-1]

        outputs = names[1] if self.with_logdet else names[1][:-1]
        more = {"input_names": names[0], "output_names": outputs, "dynamo": self.way == "dynamo", "verbose": False}
        if self.way == "dynamo":
            more["external_data"] = False
        if self.open and self.way == "dynamo":
            more["dynamic_shapes"] = (tuple({0: torch.export.Dim.DYNAMIC} for _ in inputs),)
        elif self.open:
            more["dynamic_axes"] = {name: {0: "batch"} for name in names[0] + outputs}
        torch.onnx.export(Whole(self.with_logdet).eval(), inputs, path, **more)


def judge_values(module, layer, names, batch, stem):
    """Inputs, and what the library makes of them: z, the log-determinant, x again. The file has to compute the same."""
    import numpy
    import torch
    torch.manual_seed(1)
    inputs = layer.draw(batch)
    results = [r.detach() for r in module(*(v.clone() for v in inputs))]
    made = run(stem + ".onnx", {n: v.numpy() for n, v in zip(names[0], inputs)})
    names[1][:len(made)] = made  # an exporter may call a constant something else
    for name, value, want in zip(made, made.values(), (r.numpy() for r in results)):
        off = distance(numpy.broadcast_to(value, want.shape) if value.size == 1 else value, want)
        if off > CLOSE:
            raise ValueError(f"the exported file computes something else: {name} differs by {off:.1g}")
    values = {f"in_{i}": v for i, v in enumerate(inputs)} | {f"out_{i}": v for i, v in enumerate(results)}
    plain = len(inputs) - len(layer.given)
    said = None
    try:
        again = module.undo(*(v.clone() for v in (*results[:-1], *inputs[plain:])))
        again = again if isinstance(again, (tuple, list)) else (again,)
        values |= {f"undone_{i}": v.detach() for i, v in enumerate(again)}
    except Exception as error:  # that a library has no inverse is what the table tells
        said = first_line(error)
    numpy.savez(stem + ".npz", **{k: v.numpy() for k, v in values.items()})
    return said


def make_once(layer, attempt, stem):
    import torch
    try:
        module = build(layer)
        torch.manual_seed(2)
        inputs = layer.draw(7)
        names = names_of(layer, inputs, module(*(v.clone() for v in inputs)))
    except Exception as error:
        return {"failed": "the library: " + first_line(error)}
    attempt.export(module, inputs, names, stem + ".onnx")
    no_undo = judge_values(module, layer, names, 5 if attempt.open else 7, stem)
    return {"failed": None, "names": names, "no_undo": no_undo, "open": attempt.open,
            "with_logdet": attempt.with_logdet}


def make_one(layer, way, stem):
    known = {"name": layer.name, "way": way, "given": list(layer.given)}
    failed = []
    for with_logdet in (True, False):
        for batch_open in (True, False):
            try:
                attempt = Attempt(way, batch_open, with_logdet)
                return known | apart("the exporter", lambda: make_once(layer, attempt, stem)) | {"failures": failed}
            except Failed as error:  # an export that fails is a result too
                failed.append(str(error).replace(stem + ".onnx", "the file"))
    return known | {"failed": failed[-1], "failures": failed}


def make(folder, wanted):
    import importlib
    import logging
    import torch
    sys.path.insert(0, os.path.join(ROOT, "bench", "flows"))
    from flow_layer import normal
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.manual_seed(0)  # some lists draw weights when they are read
    os.makedirs(folder, exist_ok=True)
    for way in WAYS:  # loads what the exporters need, before processes part
        Attempt(way, False, False).export(lambda x: (x + 1, x), normal()(2), (["x"], ["z", "logdet"]),
                                          os.path.join(folder, "first.onnx"))
    for library in wanted or LIBRARIES:
        for i, layer in enumerate(importlib.import_module("layers_" + library).LAYERS):
            layer.draw = layer.draw or normal()
            for way in WAYS:
                stem = os.path.join(folder, f"{library}_{i:03d}_{way}")
                if os.path.exists(stem + ".json"):
                    continue
                known = make_one(layer, way, stem)
                with open(stem + ".json", "w") as f:
                    json.dump({"library": library, **known}, f, indent=1)
                print(stem, layer.name, known["failed"] or "", flush=True)


# --- judging them ---

def rewrite(program, model, out, known, *more):
    """None, or what the program says."""
    given = [o for name in known["given"] for o in ("--given", name)]
    command = [program, "rewrite", model, "--inverse-out", out, *given, *more]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    said = [line for line in done.stderr.splitlines() if line.startswith("invonnx: ")]
    text = said[-1].removeprefix("invonnx: ") if said else done.stderr.strip() or f"exit status {done.returncode}"
    return text.replace(model + ": ", "").replace(model, "the file")


def run_here(model, feed):
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    taken = {i.name: feed[i.name] for i in session.get_inputs()}
    return dict(zip((o.name for o in session.get_outputs()), session.run(None, taken)))


def run(model, feed):
    """Outputs by onnxruntime."""
    return apart("onnxruntime", lambda: run_here(model, feed))


def distance(a, b):
    """The largest difference, relative to the largest value where that is above 1."""
    import numpy
    if a.shape != b.shape or not numpy.isfinite(a).all():
        return float("inf")
    return float(numpy.abs(a.astype("f8") - b).max() / max(1.0, numpy.abs(b).max())) if a.size else 0.0


class Judged:
    """What the program makes of one file, and what onnxruntime makes of that."""

    def __init__(self, program, stem):
        import numpy
        self.known = json.load(open(stem + ".json"))
        self.program, self.model, self.reason = program, stem + ".onnx", None
        self.inverse = self.undo = self.by_rules = self.by_output = None
        self.no_rules = self.no_output = None
        if self.known["failed"]:
            return
        inputs, outputs = self.known["names"]
        values = numpy.load(stem + ".npz")
        self.x = {n: values[f"in_{i}"] for i, n in enumerate(inputs)}
        self.logdet = values[f"out_{len(outputs) - 1}"]
        self.undone = {n: values[f"undone_{i}"] for i, n in enumerate(inputs) if f"undone_{i}" in values}
        self.judge()

    def judge(self):
        feed = self.x | run(self.model, self.x)
        self.reason, got = self.derive(feed)
        if got is None:
            return
        self.inverse = max(distance(got[n], self.x[n]) for n in got)
        if self.undone:
            self.undo = max(distance(got[n], self.undone[n]) for n in got)
        self.no_rules, got = self.derive(feed, "--with-logdet", "logdet_of_inverse")
        self.by_rules = got and self.logdet_off(got)
        if self.known["with_logdet"]:
            name = self.known["names"][1][-1]
            self.no_output, got = self.derive(feed, "--with-logdet", "logdet_of_inverse", "--logdet", name)
            self.by_output = got and self.logdet_off(got)

    def logdet_off(self, got):
        """How far the inverse's is from the library's, which may be one number for all samples."""
        import numpy
        derived = -got["logdet_of_inverse"].ravel()
        return distance(derived, numpy.broadcast_to(self.logdet.ravel(), derived.shape))

    def derive(self, feed, *more):
        out = self.model[:-5] + ".inverse.onnx"
        said = rewrite(self.program, self.model, out, self.known, *more)
        if said:
            return said, None
        try:
            return None, run(out, feed)
        except Exception as error:
            return "onnxruntime does not run the inverse: " + str(error), None


# --- the tables ---

BEGIN, END = "<!-- flow layers: begin -->", "<!-- flow layers: end -->"
COUNT_HEAD = ("| library | layers | dynamo: exported | inverse | log-determinant "
              "| script: exported | inverse | log-determinant |", "| --- | --- | --- | --- | --- | --- | --- | --- |")
ROW_HEAD = ("| layer | inverse: dynamo | script | log-determinant: dynamo | script | the library's inverse | why not |",
            "| --- | --- | --- | --- | --- | --- | --- |")
TITLES = {"zuko": "zuko", "nflows": "nflows", "normflows": "normflows", "freia": "FrEIA"}


def number(error):
    if error > CLOSE:
        return f"**differs by {error:.0e}**"
    return f"{error:.0e}" if error else "0"


def inverse_cell(j):
    if j.known["failed"]:
        return "not exported"
    if j.inverse is None:
        return "no"
    return number(j.inverse) + ("" if j.known["open"] else ", batch fixed")


def logdet_cell(j):
    if j.inverse is None:
        return ""
    if j.by_rules is not None:
        return number(j.by_rules)
    return "no" if j.by_output is None else f"{number(j.by_output)}, as output"


def own_cell(pair):
    j = pair[0] if not pair[0].known["failed"] else pair[1]
    if j.known["failed"]:
        return ""
    if j.known["no_undo"]:
        return "none"
    found = [p.undo for p in pair if p.undo is not None]
    if not found:
        return "yes"
    return number(max(found))


def first_cause(text):
    """Of what the program says: the operator at which it stops first, and why."""
    text = text.removesuffix(". Inputs that are conditions can be given (--given)")
    at = re.search(r"node '[^']*' \((\w+)\) cannot be solved for '[^']*': (.*)", text, re.S)
    if at:
        text = f"{at[1]}: {at[2].split('; node ')[0].split('; and ')[0]}"
    text = text.split(". ")[0]
    return text.replace("|", "\\|").replace("\n", " ")


def why(j):
    if j.known["failed"]:
        return "not exported: " + j.known["failed"].replace("|", "\\|")
    if j.reason:
        return first_cause(j.reason)
    if j.by_rules is None:
        return "log-determinant: " + first_cause(j.no_rules)
    return ""


def reason_cell(pair):
    said = [why(j) for j in pair]
    if re.sub("'[^']*'", "", said[0]) == re.sub("'[^']*'", "", said[1]):  # but for names of values
        return said[0]
    return "; ".join(f"{way}: {text}" for way, text in zip(WAYS, said) if text)


def counts(pairs):
    cells = []
    for k in range(len(WAYS)):
        judged = [pair[k] for pair in pairs]
        right = [j for j in judged if j.inverse is not None and j.inverse <= CLOSE]
        logdets = sum((j.by_rules if j.by_rules is not None else j.by_output or 1) <= CLOSE for j in right)
        cells += [sum(not j.known["failed"] for j in judged), len(right), logdets]
    return cells


def tables(folder, program):
    text, rows = [], []
    for library in LIBRARIES:
        stems = sorted(f[:-len("_dynamo.json")] for f in glob.glob(os.path.join(folder, library + "_*_dynamo.json")))
        with concurrent.futures.ThreadPoolExecutor(8) as several:
            files = [f"{stem}_{way}" for stem in stems for way in WAYS]
            judged = list(several.map(lambda file: Judged(program, file), files))
        pairs = list(zip(judged[::2], judged[1::2]))
        rows.append("| " + " | ".join(map(str, [TITLES[library], len(pairs), *counts(pairs)])) + " |")
        text += ["", f"### {TITLES[library]}", "", *ROW_HEAD]
        for pair in pairs:
            cells = [pair[0].known["name"], *map(inverse_cell, pair), *map(logdet_cell, pair), own_cell(pair),
                     reason_cell(pair)]
            text.append("| " + " | ".join(cells) + " |")
    return "\n".join([*COUNT_HEAD, *rows, *text])


def versions():
    pins = open(os.path.join(ROOT, "bench", "flows", "requirements.txt")).read().split()
    return ", ".join(p.replace("==", " ") for p in pins)


def report(folder, program, page):
    import onnxruntime  # noqa: F401  before processes part
    said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout.split("\n")[0]
    date = datetime.date.today().isoformat()
    made = f"Made on {date} by `bench/flow_layers.py`: {said}; {versions()}."
    text = f"{BEGIN}\n\n{made}\n\n{tables(folder, program)}\n\n{END}"
    if not page:
        return print(text)
    old = open(page).read()
    if old.count(BEGIN) != 1 or old.count(END) != 1:
        sys.exit(f"{page}: has no place for the tables, which stand between '{BEGIN}' and '{END}'")
    with open(page, "w") as f:
        f.write(old[:old.index(BEGIN)] + text + old[old.index(END) + len(END):])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("make", "report"))
    parser.add_argument("dir")
    parser.add_argument("libraries", nargs="*", metavar="LIBRARY", help=", ".join(LIBRARIES))
    parser.add_argument("--invonnx", default=os.path.join(ROOT, "build", "dev", "invonnx"))
    parser.add_argument("--into", metavar="PAGE")
    o = parser.parse_args()
    make(o.dir, o.libraries) if o.what == "make" else report(o.dir, o.invonnx, o.into)


if __name__ == "__main__":
    main()
