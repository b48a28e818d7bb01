# SPDX-License-Identifier: Apache-2.0
"""Runs the program on models with golden training results and holds every memory mode to them.

    run.py [--invonnx PROGRAM] [--families PREFIX,...] [--device NAME] [--precision NAME] [--budgets] [--jobs N]
           [--verbose] [ROOT...]

A ROOT holds one folder per model: model.onnx, golden.txt and the .npy files that it names (goldens computed in
float64 by PyTorch). Per model, with e = the smaller of the manifest's two float32 errors, tol = 10 max(e, 1e-6), and
every error normalised by max(max|golden|, 1e-4 gmax), gmax the largest gradient entry of the model:

  store, recompute,   every gradient within tol
  auto if it inverts nothing
  recompute, offload  loss, outputs, gradients and running statistics equal to store's bit for bit
  invert, auto        per parameter relative L2 error at most max(3 tol, 5 x store's own, 1e-3)
  --float64           every mode within 3e-7 (the goldens are rounded to float32)
  running statistics  equal bit for bit in all modes, and to the golden within 1e-5
  ten SGD steps       follow the golden losses
  explain             finds the blocks of the manifest (0 exactly, others at least); ..._not_invertible is refused
  peak_bytes          at most planned_peak_bytes, and within 1 % of it

On another device than the CPU the modes are store, recompute, invert and offload, which is auto with every value that
backward reads in host memory meanwhile, and the structure is not looked at. With --precision the program is given that,
tol is 10 max(e, ten roundings of a factor), gradients are held to it in relative L2, and there is no float64.

With --budgets, instead of all that: mode auto within the budget that the refusal of one byte names, within less and
less until that is refused, too, within two between that and what store takes, and within the latter. The peak is
within the budget, gradients are held to what auto's are, and loss, outputs and running statistics equal store's bit
for bit. With store's own peak nothing is computed twice. What a refusal names is at most 1.1 of the smallest that does.

Where the larger of the two float32 errors is above tol, a value is so near zero that rounding decides about a ReLU
(revnet_deep: 7e-8 in front of the last one, rounding error 7e-7): whether float32 meets tol is then luck, and depends
on the BLAS kernel. There float32 gradients have to be within that larger error in relative L2, and float64 judges."""
import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter

import numpy as np

NO_FALLBACK = ("nice_", "revnet8")
# Their exporters have folded log-determinants into constants, with which `train` refuses to go on unless it is told to.
FOLDED_LOGDET = ("glow_nodet_", "nice_scale_folded_")
# In them rows of a batch act on each other, which `train` refuses unless it is meant.
ROWS_MIX = ("hz_broadcast_",)
MODES = ("store", "recompute", "invert", "auto")
DEVICE_MODES = ("store", "recompute", "invert", "offload")
DEVICE_FAMILIES = ("linear_chain_ts17,linear_chain_3d_ts17,linear_square_ts17,linear_tall_ts13,mlp_lrelu_seq_ts17,"
                   "mlp_monotone_acts_ts17,nice_chunk_ts17,nice_dynbatch_ts17,plain_lenet_ts17,revnet8_ts17,"
                   "revnet8_evalbn_ts17,revnet_down_ts17,hz_dropout_train_ts17,hz_tied_weights_ts17")
# Of a factor; ten of it, since a gate that opens by one changes gradients by more.
ROUNDING = {"full": 1e-6, "tf32": 10 * 2**-11, "bf16": 10 * 2**-8}
HERE = os.path.dirname(os.path.abspath(__file__))


class Manifest:
    """golden.txt as a list of rows per key, escapes undone."""

    def __init__(self, folder):
        self.folder = folder
        self.rows = {}
        with open(os.path.join(folder, "golden.txt"), encoding="utf-8") as f:
            for line in f:
                key, *fields = [self.unescape(x) for x in line.rstrip("\n").split("\t")]
                self.rows.setdefault(key, []).append(fields)

    @staticmethod
    def unescape(text):
        return re.sub(r"\\(.)", lambda m: {"t": "\t", "n": "\n"}.get(m.group(1), m.group(1)), text)

    def one(self, key, default=None):
        return self.rows[key][0][0] if key in self.rows else default

    def all(self, key):
        return self.rows.get(key, [])

    def load(self, file):
        return np.load(os.path.join(self.folder, file)).astype(np.float64)


class Checker:
    """All checks of one model; `problems` says what does not hold."""

    def __init__(self, program, folder, device=None, precision="full"):
        self.program = program
        self.device = device
        self.precision = precision
        self.folder = folder
        self.name = os.path.basename(folder)
        self.m = Manifest(folder)
        self.problems = []
        self.path = os.path.join(folder, "model.onnx")
        errors = [float(self.m.one(k)) for k in ("torch_f32_grad_relerr", "graph_f32_grad_relerr") if self.m.one(k)]
        self.tol = 10 * max(min(errors), ROUNDING[precision])
        self.flips = max(errors) if max(errors) > self.tol else None
        self.golden = {f"grad:{row[0]}": self.m.load(row[1]) for row in self.m.all("train")}
        self.gmax = max((np.abs(g).max(initial=0) for g in self.golden.values()), default=1)
        self.golden.update({f"gradin:{row[0]}": self.m.load(row[1]) for row in self.m.all("gradin")})

    def expect(self, holds, message):
        if not holds:
            self.problems.append(message)

    # --- calling the program ---

    def start(self, what, *args):
        """One call that has ended."""
        command = [self.program, args[0], self.path, *args[1:], "--json"]
        if self.device and args[0] != "explain":
            command += ["--device", self.device]
        if self.precision != "full":
            command += ["--precision", self.precision]
        environment = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
        return subprocess.run(command, capture_output=True, env=environment)

    def call(self, what, *args):
        """One call; its JSON, or None after noting the failure."""
        done = self.start(what, *args)
        if done is None:
            return None
        if done.returncode != 0:
            # The message is at the end, but what a sanitizer or a crash says comes first.
            error = done.stderr.decode(errors="replace").strip()
            self.problems.append(f"{what}: exit {done.returncode}: {error[:1500]}")
            return None
        try:
            return json.loads(done.stdout)
        except ValueError as e:
            self.problems.append(f"{what}: stdout is not one JSON object: {e}")
            return None

    def loss_options(self):
        kind, *rest = self.m.all("loss")[0]
        if kind == "nll":
            options = ["--loss", "nll"]
            for z in rest[2:]:
                options += ["--loss-output", z]
            return options + ([] if rest[0] == "-" else ["--logdet", rest[0]])
        options = ["--loss", kind, "--loss-output", rest[0], "--target", os.path.join(self.folder, rest[-1])]
        return options + (["--class-axis", rest[1]] if kind == "cross_entropy" else [])

    def common_options(self):
        options = self.loss_options()
        for row in self.m.all("train"):
            options += ["--train-only", row[0]]
        return options + (["--no-dropout"] if self.m.one("stochastic") == "1" else [])

    def arrays(self, option):
        options = []
        for row in self.m.all("input"):
            options += [option, f"{row[0]}={os.path.join(self.folder, row[1])}"]
        return options

    def grad_options(self, mode, budget=None):
        limit = ["--budget", str(budget)] if budget else []
        return ["grad", *self.arrays("--feed"), *self.common_options(), *self.mode_options(mode), *limit]

    @staticmethod
    def mode_options(mode):
        return ["--mode", "*=offload"] if mode == "offload" else ["--memory", mode]

    def grad(self, mode, float64=False, budget=None):
        """(report, {kind:name -> array}) of one `invonnx grad`."""
        what = f"grad {mode}{' float64' if float64 else ''}{f' --budget {budget}' if budget else ''}"
        with tempfile.TemporaryDirectory() as folder:
            report = self.call(what, *self.grad_options(mode, budget), "--dump", folder,
                               *(["--float64"] if float64 else []))
            if report is None:
                return None, None
            wanted = {"loss:": "loss.npy"}
            for kind, prefix, names in (
                    ("out", "out_", [r[0] for r in self.m.all("output")]),
                    ("grad", "grad_", [r[0] for r in self.m.all("train")]),
                    ("gradin", "gradin_", [r[0] for r in self.m.all("gradin")]),
                    ("state", "state_", [n for r in self.m.all("bn") for n in r[:2]])):
                wanted.update({f"{kind}:{n}": prefix + file_name(n) + ".npy" for n in names})
            got = {}
            for key, file in wanted.items():
                path = os.path.join(folder, file)
                if os.path.exists(path):
                    got[key] = np.load(path)
                else:
                    self.problems.append(f"{what}: no {file}")
            extra = {f for f in os.listdir(folder) if f.startswith("grad_")} - set(wanted.values())
            self.expect(not extra, f"{what}: gradients of what is not trained: {sorted(extra)}")
            return report, got

    # --- what has to hold ---

    def scale(self, golden):
        return max(np.abs(golden).max(initial=0), 1e-4 * self.gmax)

    def distance(self, got, golden):
        """Largest error, normalised as the manifest's README says; infinity if shapes differ or NaN came out."""
        if got.shape != golden.shape or not np.isfinite(got).all():
            return np.inf
        return np.abs(got - golden).max(initial=0) / self.scale(golden)

    def distance_l2(self, got, golden):
        if got.shape != golden.shape or not np.isfinite(got).all():
            return np.inf
        floor = 1e-4 * self.gmax * np.sqrt(golden.size)
        return np.linalg.norm(got - golden) / max(np.linalg.norm(golden), floor)

    def check_gradients(self, what, got, limit):
        by_norm = limit == self.flips or self.precision != "full"
        distance = self.distance_l2 if by_norm else self.distance
        worst = {k: distance(got[k], g) for k, g in self.golden.items() if k in got}
        bad = {k: d for k, d in worst.items() if not d <= limit}
        self.expect(not bad, f"{what}: {len(bad)} of {len(worst)} gradients over {limit:.1e}, worst "
                             f"{max(bad, key=bad.get, default='')} {max(bad.values(), default=0):.2e}")

    def check_inverted(self, what, got, store):
        bad = {}
        for key, golden in self.golden.items():
            if key in got and key in store:
                limit = max(3 * self.tol, 5 * self.distance_l2(store[key], golden), 1e-3, self.flips or 0)
                d = self.distance_l2(got[key], golden)
                if not d <= limit:
                    bad[key] = d
        self.expect(not bad, f"{what}: {len(bad)} gradients too far, worst {max(bad, key=bad.get, default='')} "
                             f"{max(bad.values(), default=0):.2e}")

    def check_forward(self, what, got, limit):
        for row in self.m.all("output"):
            golden = self.m.load(row[1])
            key = f"out:{row[0]}"
            if key in got:
                d = np.inf
                if got[key].shape == golden.shape:
                    d = np.abs(got[key] - golden).max(initial=0) / max(np.abs(golden).max(initial=0), 1e-30)
                self.expect(d <= limit, f"{what}: output {row[0]} off by {d:.2e}")
        value = float(self.m.one("loss_value"))
        loss = float(got["loss:"].reshape(-1)[0]) if "loss:" in got else value
        self.expect(abs(loss - value) <= limit * max(1, abs(value)), f"{what}: loss {loss}, golden {value}")

    def check_states(self, what, got):
        for mean, var, mean_file, var_file, *_ in self.m.all("bn"):
            for name, file in ((mean, mean_file), (var, var_file)):
                key = f"state:{name}"
                if key in got:
                    golden = self.m.load(file)
                    d = np.abs(got[key] - golden).max(initial=0) / max(np.abs(golden).max(initial=0), 1e-3)
                    self.expect(d <= max(1e-5, self.tol), f"{what}: running statistic {name} off by {d:.2e}")

    def check_equal(self, what, got, store, kinds):
        differ = [k for k in store if k.split(":")[0] in kinds and k in got and got[k].tobytes() != store[k].tobytes()]
        self.expect(not differ, f"{what}: not equal to store bit for bit: {len(differ)}, as {differ[:3]}")

    def check_report(self, what, mode, report):
        planned, peak = report.get("planned_peak_bytes", 0), report.get("peak_bytes", 0)
        self.expect(0.99 * planned <= peak <= planned, f"{what}: peak {peak} bytes, planned {planned}")
        fallbacks = report.get("fallbacks")
        count = len(fallbacks) if isinstance(fallbacks, list) else fallbacks
        if self.name.startswith(NO_FALLBACK):
            self.expect(count == 0, f"{what}: fallbacks {fallbacks}")
        inverted = report.get("values", {}).get("inverted", -1)
        if mode in ("store", "recompute", "offload"):
            self.expect(inverted == 0, f"{what}: {inverted} values inverted")
        if mode == "offload":
            values, host = report["values"], report["host_bytes"]
            self.expect(values["offloaded"] > 0 and values["recomputed"] == 0, f"{what}: {values}")
            self.expect(host > 0, f"{what}: nothing in host memory")
        elif mode == "invert" and self.name.startswith(NO_FALLBACK):
            self.expect(inverted > 0, f"{what}: nothing was inverted")

    def check_grads(self, float64):
        store = None
        for mode in DEVICE_MODES if self.device else MODES[:3] if float64 else MODES:
            what = f"grad {mode}{' float64' if float64 else ''}"
            report, got = self.grad(mode, float64)
            if report is None:
                continue
            self.check_report(what, mode, report)
            self.check_states(what, got)
            if mode == "store":
                store = got
            if float64:
                self.check_gradients(what, got, 3e-7)
                self.check_forward(what, got, 3e-7)
            elif mode == "invert" or (mode == "auto" and report.get("values", {}).get("inverted", 0)):
                if store is not None:
                    self.check_inverted(what, got, store)
                self.check_forward(what, got, self.tol)
            else:
                self.check_gradients(what, got, self.flips or self.tol)
                self.check_forward(what, got, self.tol)
            if store is not None and mode != "store":
                self.check_equal(what, got, store, {"state", "out", "loss"})
                if mode in ("recompute", "offload"):
                    self.check_equal(what, got, store, {"grad", "gradin"})

    def refusal(self, budget):
        """(the bytes that the refusal of a budget names, None) or (None, the peak within it)."""
        what = f"grad auto --budget {budget}"
        done = self.start(what, *self.grad_options("auto", budget))
        if done is None:
            return None, None
        if done.returncode == 0:
            return None, json.loads(done.stdout)["peak_bytes"]
        named = re.search(rb"budget of \d+ bytes cannot be met: .* needs (\d+)", done.stderr)
        self.expect(done.returncode == 1 and named, f"{what}: exit {done.returncode}: {done.stderr.decode()[:1500]}")
        return int(named.group(1)) if named else None, None

    def smallest_budgets(self):
        """(what the refusal of one byte names, the least that was got by asking for less than got)."""
        named, _ = self.refusal(1)
        least, peak = named, named
        while peak:
            least = peak
            _, peak = self.refusal(peak - 1)
        return named, least

    def check_budget(self, budget, store):
        what = f"grad auto --budget {budget}"
        report, got = self.grad("auto", budget=budget)
        if report is None:
            return
        self.check_report(what, "auto", report)
        self.expect(report["peak_bytes"] <= budget, f"{what}: peak {report['peak_bytes']} bytes")
        self.check_states(what, got)
        plan = report["plan"]
        self.expect(plan["bound"] <= plan["overhead"] + 1e-9, f"{what}: bound {plan['bound']}, plan {plan['overhead']}")
        self.check_forward(what, got, self.tol)
        self.check_equal(what, got, store, {"state", "out", "loss"})
        if report["values"]["inverted"]:
            self.check_inverted(what, got, store)
        else:
            self.check_gradients(what, got, self.flips or self.tol)
            self.check_equal(what, got, store, {"grad", "gradin"})
        if budget == report["store_peak_bytes"]:
            self.expect(report["plan"]["overhead"] <= 0, f"{what}: overhead {report['plan']['overhead']:.2e} for nothing")

    def check_budgets(self):
        report, store = self.grad("store")
        named, least = self.smallest_budgets()
        if report is None or named is None:
            self.expect(named is not None, "grad auto --budget 1: no smallest budget is named")
            return
        most = report["store_peak_bytes"]
        self.expect(named <= 1.1 * least, f"grad auto --budget 1: {named} bytes are said to be needed, {least} do")
        self.expect(named <= most, f"grad auto --budget 1: {named} bytes are said to be needed, store takes {most}")
        for budget in sorted({least, named, least + (most - least) // 3, most - (most - least) // 3, most}):
            self.check_budget(budget, store)

    def check_training(self, mode, float64):
        what = f"train {mode}{' float64' if float64 else ''}"
        golden = [float(row[1]) for row in self.m.all("traj")]
        if not golden:
            return
        rows = int(self.m.all("input")[0][4])
        trust = ["--trust-logdet"] if self.name.startswith(FOLDED_LOGDET) else []
        trust += ["--rows-mix"] if self.name.startswith(ROWS_MIX) else []
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "out.onnx")
            report = self.call(what, "train", *self.arrays("--data"), *self.common_options(), *self.mode_options(mode),
                               "--optimizer", "sgd", "--lr", self.m.one("lr"), "--steps", "10", "--batch", str(rows),
                               "--no-shuffle", "-o", out, *trust, *(["--float64"] if float64 else []))
            if report is None:
                return
            self.expect(os.path.exists(out), f"{what}: no output file")
        losses = report.get("steps")
        if not isinstance(losses, list) or len(losses) != 10:
            self.problems.append(f"{what}: `steps` does not have the ten losses")
            return
        # The first ten golden values are the losses before each step.
        limit = 1e-6 if float64 else max(1e-4, 10 * self.tol)
        worst = max(abs(a - b) / max(1, abs(b)) for a, b in zip(losses, golden))
        self.expect(worst <= limit, f"{what}: losses off by {worst:.2e}: {losses}")

    def check_structure(self):
        report = self.call("explain", "explain")
        if report is None:
            return
        found = Counter(b["kind"] for b in report["blocks"])
        refused = Counter(r.get("kind") for r in report["refusals"])
        for kind, count in self.m.all("structure"):
            count = int(count)
            if kind.endswith("_not_invertible"):
                self.expect(refused[kind] >= count, f"explain: {refused[kind]} refusals of kind {kind}, not {count}")
                self.expect(found[kind] == 0, f"explain: found {kind} as a block")
            elif count == 0:
                self.expect(found[kind] == 0, f"explain: {found[kind]} of {kind}, should be none")
            else:
                self.expect(found[kind] >= count, f"explain: {found[kind]} of {kind}, at least {count} expected")

    def run(self, budgets=False):
        if budgets:
            self.check_budgets()
            return self.problems
        if not self.device:
            self.check_structure()
        self.check_grads(float64=False)
        self.check_training("store", float64=False)
        self.check_training("invert", float64=False)
        if self.precision == "full":
            self.check_grads(float64=True)
            self.check_training("invert", float64=True)
        if self.device:
            self.check_training("offload", float64=False)
        return self.problems


def file_name(name):
    """As the program names dumped files: every byte outside [A-Za-z0-9._-] as %XX."""
    return "".join(chr(b) if re.match(rb"[A-Za-z0-9._-]", bytes([b])) else f"%{b:02X}" for b in name.encode())


def folders_of(roots, families):
    found = []
    for root in roots:
        for name in sorted(os.listdir(root)):
            if os.path.exists(os.path.join(root, name, "golden.txt")) and name.startswith(tuple(families)):
                found.append(os.path.join(root, name))
    return found


def show(problems, verbose=False):
    """One line per kind of problem, with the calls that have it."""
    calls = {}
    for p in problems:
        what, _, text = p.partition(": ")
        calls.setdefault(text, []).append(what)
    for text, what in list(calls.items())[: None if verbose else 8]:
        print(f"     {', '.join(what)}: {text}")
    if len(calls) > 8 and not verbose:
        print(f"     ... {len(calls) - 8} more (--verbose)")


def run_all(program, folders, jobs, verbose=False, device=None, budgets=False, precision="full"):
    """Prints a line per model and the summary. Exit status."""
    def one(folder):
        checker = Checker(program, folder, device, precision)
        try:
            return checker.name, checker.run(budgets)
        except Exception as e:  # a bug here, or a report without what it must have
            return checker.name, checker.problems + [f"{type(e).__name__}: {e}"]

    bad = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for name, problems in pool.map(one, folders):
            bad += bool(problems)
            print(f"{'FAIL' if problems else 'PASS'} {name}", flush=True)
            show(problems, verbose)
    print(f"{len(folders) - bad} passed, {bad} failed")
    return int(bad > 0 or not folders)


def default_program():
    build = os.path.join(HERE, "..", "..", "build")
    candidates = [os.path.join(build, preset, "invonnx") for preset in ("release", "dev")]
    return os.environ.get("INVONNX") or next(filter(os.path.exists, candidates), candidates[0])


def arguments(doc):
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", nargs="*", metavar="ROOT")
    parser.add_argument("--invonnx", default=default_program(), help="the program")
    parser.add_argument("--families", help="prefixes of model names, by commas (default: those that have to pass)")
    parser.add_argument("--device", help="where to compute; with fewer models, if --families does not say which")
    parser.add_argument("--precision", choices=ROUNDING, default="full", help="of products and convolutions on a device")
    parser.add_argument("--budgets", action="store_true", help="only steps within budgets")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="all problems of a model, not the first eight")
    return parser


def default_roots():
    roots = [os.path.join(HERE, "..", "data", "models"), os.path.join(HERE, "..", "..", "..", "shared", "models")]
    return [os.path.normpath(r) for r in roots if os.path.isdir(r)]


def main():
    args = arguments(__doc__).parse_args()
    families = args.families or (DEVICE_FAMILIES if args.device and not args.budgets else "")
    return run_all(args.invonnx, folders_of(args.roots or default_roots(), families.split(",")), args.jobs,
                   args.verbose, args.device, args.budgets, args.precision)


if __name__ == "__main__":
    sys.exit(main())
