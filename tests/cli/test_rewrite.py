# SPDX-License-Identifier: Apache-2.0
"""Rewrites models and holds the results to what docs/rewriting.md promises, judged by ONNX's own tools.

    test_rewrite.py [--all] [--jobs N] [--verbose] [MODEL-PREFIX...]

Per model, OUT being the rewritten file:

  valid      onnx.checker accepts OUT, with shape inference
  forward    onnxruntime gives bit-identical outputs for both files
  inverses   every inverse function, called with the values of the forward run, gives what it frees: relative L2 error
             at most 1e-5 max(1, gain). Where the gain has no bound, flat parts of the function cannot be asked for:
             1e-3 where |x| <= 4, and the forward function of what came out gives its outputs within 1e-5
  batch      both of these hold for a batch that functions were not made for, where the model can take another one
  blocks     explain lists the same blocks for both files, and those of the same kinds in the same order for OUT with
             all functions inlined by ONNX's inliner; rewriting OUT gives the same bytes, rewriting the inlined form the
             same functions
  unknown    fields that no schema knows, doc strings and metadata of others survive
  grad       the gradients of both files are equal bit for bit (GRAD_MODELS)

Models with active dropout are not run by onnxruntime, whose masks differ from call to call. INVONNX_MODELS names a
further folder of models; ../shared/models is taken where it exists."""
import argparse
import concurrent.futures
import json
import os
import re
import sys
import tempfile
import urllib.parse
from collections import Counter

import numpy as np
import onnx
import onnx.inliner
import onnxruntime

import common

sys.path.insert(0, os.path.join(common.ROOT, "tests", "golden"))
from run import Checker, Manifest  # noqa: E402

DOMAIN = "ai.invonnx"
SUBSET = ("abn_conv_ts17 glow_ts17 hz_dropout_train_ts17 hz_intermediate_is_output_ts17 hz_tied_weights_ts17 "
          "irevnet_ts17 linear_chain_3d_ts17 linear_tall_dy18 linear_tall_ts13 mlp_monotone_acts_ts17 nice_chunk_ts17 "
          "nice_dynbatch_ts17 nice_external_data plain_lenet_ts17 realnvp_dy18 revnet8_evalbn_ts17 revvit_ts17 "
          "s2d_op17 tf_nice_op13").split()
GRAD_MODELS = ("linear_tall_ts13", "mlp_monotone_acts_ts17", "nice_dynbatch_ts17", "revnet8_evalbn_ts17", "tf_cnn_op15")
FLAT = 4  # from here on tanh and its kin have lost most digits of x


# --- models ---

def roots():
    named = [os.environ.get("INVONNX_MODELS"), os.path.join(common.DATA, "models"),
             os.path.join(common.ROOT, "..", "shared", "models")]
    return [r for r in named if r and os.path.isdir(r)]


def folders(wanted):
    """The first folder of each name that is wanted."""
    found = {}
    for root in roots():
        for name in sorted(os.listdir(root)):
            if wanted(name) and name not in found and os.path.exists(os.path.join(root, name, "golden.txt")):
                found[name] = os.path.join(root, name)
    return [found[name] for name in sorted(found)]


# --- running models ---

def session(model):
    """model: a path, or a ModelProto."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(model if isinstance(model, str) else model.SerializeToString(), options,
                                        providers=["CPUExecutionProvider"])


def flat(model):
    """The model with the calls of blocks expanded; other than ONNX's inliner, the model's values keep their names."""
    functions = {f.name: f for f in model.functions if f.domain == DOMAIN}
    taken = set()

    def expand(nodes, names):
        for node in nodes:
            for v in node.output:
                if v and v not in names:
                    names[v] = v if v not in taken else f"{v} {len(taken)}"  # _v0 of several functions
                    taken.add(names[v])
            inputs, outputs = ([names.get(v, v) for v in part] for part in (node.input, node.output))
            if node.domain == DOMAIN and node.op_type in functions:
                f = functions[node.op_type]
                yield from expand(f.node, dict(zip([*f.input, *f.output], [*inputs, *outputs])))
            else:
                copy = onnx.NodeProto.FromString(node.SerializeToString())
                copy.ClearField("input"), copy.ClearField("output")
                copy.input.extend(inputs), copy.output.extend(outputs)
                yield copy

    out = onnx.ModelProto.FromString(model.SerializeToString())
    nodes = list(expand(model.graph.node, {}))
    out.graph.ClearField("node")
    out.graph.node.extend(nodes)
    return out


def all_values(path, feeds):
    """{name: array} of a run: inputs, initializers, and what every node gives."""
    model = flat(onnx.load(path))
    have = {v.name for v in model.graph.output}
    names = [v for n in model.graph.node for v in n.output if v and v not in have]
    model.graph.output.extend(onnx.ValueInfoProto(name=v) for v in names)
    s = session(model)
    names = [v.name for v in s.get_outputs()]
    values = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    values.update(feeds)
    values.update(zip(names, s.run(names, feeds)))
    return values


def call_function(model, name, values):
    """Outputs by name of one function of the model, its inputs taken from values by name."""
    f = next(f for f in model.functions if f.domain == DOMAIN and f.name == name)
    inputs = [onnx.helper.make_tensor_value_info(
        v, onnx.helper.np_dtype_to_tensor_dtype(values[v].dtype), values[v].shape) for v in f.input]
    node = onnx.helper.make_node(name, f.input, f.output, domain=DOMAIN)
    outputs = [onnx.ValueInfoProto(name=v) for v in f.output]
    graph = onnx.helper.make_graph([node], "call", inputs, outputs)
    one = onnx.helper.make_model(graph, opset_imports=model.opset_import, functions=model.functions,
                                 ir_version=model.ir_version)
    return dict(zip(f.output, session(one).run(list(f.output), {v: values[v] for v in f.input})))


def functions_of(model):
    """{function: {key: value}} of the metadata."""
    found = {}
    for p in model.metadata_props:
        prefix = DOMAIN + ".fn."
        if p.key.startswith(prefix):
            facts = dict(part.split("=", 1) for part in p.value.split(";"))
            for key in ("free", "aux"):
                facts[key] = [urllib.parse.unquote(v) for v in facts.get(key, "").split(",") if v]
            found[urllib.parse.unquote(p.key[len(prefix):])] = facts
    return found


def error_of(got, want):
    got, want = (np.asarray(x, dtype=np.float64).ravel() for x in (got, want))
    return np.linalg.norm(got - want) / max(np.linalg.norm(want), 1e-30) if want.size else 0.0


# --- unknown fields ---

def unknown_field(payload):
    """Field 1999, a string, as protobuf writes it."""
    tag = 1999 << 3 | 2
    return bytes([tag & 127 | 128, tag >> 7, len(payload)]) + payload


class Rewritten:
    """All checks of one model; `problems` says what does not hold, `notes` what was not looked at, and why."""

    def __init__(self, folder, top):
        self.name = os.path.basename(folder)
        self.m = Manifest(folder)
        self.path = os.path.join(folder, "model.onnx")
        self.out = os.path.join(top, "out.onnx")
        self.top = top
        self.problems, self.notes = [], []
        self.seen = Counter()

    def expect(self, holds, message):
        if not holds:
            self.problems.append(message)
        return holds

    def rewrite(self, source, out):
        report = os.path.join(self.top, "report.json")
        os.makedirs(os.path.dirname(out), exist_ok=True)
        status, text, err = common.call("rewrite", source, "-o", out, "--report", report, "--json")
        if not self.expect(status == 0, f"rewrite {os.path.basename(source)}: exit {status}: {err[:500]}"):
            return None
        with open(report, encoding="utf-8") as f:
            written = json.load(f)
        self.expect(json.loads(text) == written, "rewrite: stdout and the report differ")
        return written

    # --- onnxruntime ---

    def feeds(self):
        return {row[0]: np.load(os.path.join(self.m.folder, row[1])) for row in self.m.all("input")}

    def check_forward(self, what, path, out, feeds):
        a, b = session(path), session(out)
        names = [v.name for v in a.get_outputs()]
        self.expect(names == [v.name for v in b.get_outputs()], "outputs have other names")
        for name, x, y in zip(names, a.run(names, feeds), b.run(names, feeds)):
            self.expect(x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes(),
                        f"{what}output {name} is not the same bit for bit")

    def check_inverse(self, what, model, name, facts, values):
        gain = float(facts["gain"])
        missing = [v for f in model.functions if f.name in (name, facts["inverse"]) for v in f.input if v not in values]
        if not self.expect(not missing, f"{what}{facts['inverse']}: no values called {missing}"):
            return
        got = call_function(model, facts["inverse"], values)
        self.expect(list(got) == facts["free"], f"{what}{facts['inverse']} gives {list(got)}, not {facts['free']}")
        for v, x in got.items():
            want = values[v]
            if not self.expect(x.shape == want.shape and x.dtype == want.dtype,
                               f"{what}{facts['inverse']}: {v} is {x.dtype}{x.shape}, not {want.dtype}{want.shape}"):
                continue
            at = np.abs(want) <= FLAT if np.isinf(gain) else np.ones(want.shape, bool)
            limit = 1e-3 if np.isinf(gain) else 1e-5 * max(1, gain)
            error = error_of(x[at], want[at])
            self.expect(error <= limit, f"{what}{facts['inverse']}: {v} is off by {error:.1e}, limit {limit:.1e}")
            self.seen["worst"] = max(self.seen["worst"], error / limit)
        if np.isinf(gain):
            for v, y in call_function(model, name, {**values, **got}).items():
                if v not in facts["aux"]:
                    error = error_of(y, values[v])
                    self.expect(error <= 1e-5, f"{what}{name} of {facts['inverse']}: {v} is off by {error:.1e}")
        self.seen["inverses"] += 1

    def check_values(self, what, path, out, feeds):
        self.check_forward(what, path, out, feeds)
        model, values = onnx.load(out), all_values(out, feeds)
        for name, facts in functions_of(model).items():
            if "inverse" in facts:
                self.check_inverse(what, model, name, facts, values)

    def check_batch(self):
        """The model with a symbolic batch, if nothing in it needs the one that it has: the functions then run for a
        size that they were not made for."""
        path, out = (os.path.join(self.top, "batch", f) for f in ("model.onnx", "out.onnx"))
        model, feeds = onnx.load(self.path), self.feeds()
        model.graph.ClearField("value_info")
        for v in [v for v in model.graph.input if v.name in feeds] + list(model.graph.output):
            if v.type.tensor_type.shape.dim:
                v.type.tensor_type.shape.dim[0].dim_param = "rows"
        feeds = {name: np.concatenate([x, x[::-1], x])[: x.shape[0] + 1] for name, x in feeds.items()}
        os.makedirs(os.path.dirname(path))
        onnx.save(model, path)
        try:
            session(path).run(None, feeds)
        except Exception:  # of ONNX Runtime: it has many kinds
            return
        if self.rewrite(path, out) is not None:
            self.check_values("another batch: ", path, out, feeds)
            self.seen["rebatched"] += 1

    # --- structure ---

    def check_metadata(self, report):
        model = onnx.load(self.out, load_external_data=False)
        props = {p.key: p.value for p in model.metadata_props}
        defined = {f.name for f in model.functions if f.domain == DOMAIN}
        functions = functions_of(model)
        said = {b["function"]["name"]: b for b in report["blocks"] if b["function"]}
        self.expect(functions == {} or props.get(DOMAIN + ".version") == "1", "metadata has no version 1")
        self.expect(set(functions) == set(said), f"metadata and report differ: {set(functions) ^ set(said)}")
        late = common.called_too_early(model)
        self.expect(not late, f"functions stand before those that they call: {late}")
        inverses = {f["inverse"] for f in functions.values() if "inverse" in f}
        self.expect(defined == set(functions) | inverses, f"functions without facts: {defined - set(functions)}")
        for name, facts in functions.items():
            row = said.get(name, {})
            self.expect(facts["rule"] == row.get("rule"), f"{name}: rule {facts['rule']}, report {row.get('rule')}")
            self.expect(facts.get("inverse") in (None, name + "_inverse"), f"{name}: inverse {facts.get('inverse')}")
            self.expect(("inverse" in facts) == bool(row.get("inverse")), f"{name}: inverse in one of two places")
            self.expect(bool(row.get("inverse")) != bool(row.get("reason")), f"{name}: an inverse or a reason why not")
        self.seen["functions"] = len(functions)

    def explain(self, path):
        status, text, err = common.call("explain", path, "--json")
        if not self.expect(status == 0, f"explain {os.path.basename(path)}: exit {status}: {err[:300]}"):
            return []
        return json.loads(text)["blocks"]

    def block_texts(self, path):
        """The blocks as texts. Values that the file does not have are called after those that it has, with a number
        that depends on how many there are: it is left out."""
        graph = onnx.load(self.path, load_external_data=False).graph
        named = {v.name for part in (graph.input, graph.initializer) for v in part}
        named.update(v for n in graph.node for v in n.output)
        rows = []
        for b in self.explain(path):
            values = [[v if v in named else re.sub(r"\.\d+$", "", v) for v in b[k]] for k in ("inputs", "outputs")]
            rows.append(f"{b['kind']} {b['name']}: {sorted(b['nodes'])}, {values[0]} -> {values[1]}")
        return rows

    def check_blocks(self):
        before, after = (Counter(self.block_texts(p)) for p in (self.path, self.out))
        self.expect(before == after, f"explain: lost {sorted(before - after)[:2]}, new {sorted(after - before)[:2]}")
        again = os.path.join(self.top, "again", "out.onnx")
        if self.rewrite(self.out, again) is not None:
            with open(self.out, "rb") as a, open(again, "rb") as b:
                self.expect(a.read() == b.read(), "rewriting twice gives other bytes")
        inlined = os.path.join(self.top, "inlined.onnx")
        onnx.save(onnx.inliner.inline_local_functions(onnx.load(self.out)), inlined)
        kinds, found = ([(b["kind"], len(b["nodes"])) for b in self.explain(p)] for p in (self.out, inlined))
        self.expect(kinds == found, f"explain of the inlined form: {Counter(kinds) - Counter(found)} lost, "
                                    f"{Counter(found) - Counter(kinds)} new, or in another order")
        third = os.path.join(self.top, "third", "out.onnx")
        if self.rewrite(inlined, third) is not None:
            was, now = ({k: f["rule"] for k, f in functions_of(onnx.load(p, load_external_data=False)).items()}
                        for p in (self.out, third))
            self.expect(was == now, f"rewriting the inlined form: functions {set(was.items()) ^ set(now.items())}")

    def check_unknown(self):
        out = onnx.load(self.out, load_external_data=False)
        bodies = [f.node for f in out.functions if f.domain == DOMAIN]
        node = next((n for nodes in bodies for n in nodes if n.domain != DOMAIN and n.name), None)
        if node is None:
            self.notes.append("unknown fields: no block that holds a named node")
            return
        model = onnx.load(self.path)
        marked = next(n for n in model.graph.node if n.name == node.name)
        marked.MergeFromString(unknown_field(b"of a node"))
        marked.doc_string = "said of a node"
        model.graph.MergeFromString(unknown_field(b"of the graph"))
        model.MergeFromString(unknown_field(b"of the model"))
        model.metadata_props.add(key="their.key", value="their value")
        source, target = (os.path.join(self.top, f) for f in ("marked.onnx", "marked-out.onnx"))
        onnx.save(model, source)
        if self.rewrite(source, target) is None:
            return
        got = onnx.load(target, load_external_data=False)
        held = [n for f in got.functions for n in f.node if n.name == node.name and not f.name.endswith("_inverse")]
        self.expect(len(held) == 1 and unknown_field(b"of a node") in held[0].SerializeToString()
                    and held[0].doc_string == "said of a node", "an unknown field or doc string of a node is lost")
        for what, part in ((b"of the graph", got.graph), (b"of the model", got)):
            self.expect(unknown_field(what) in part.SerializeToString(), f"an unknown field {what.decode()} is lost")
        self.expect(any(p.key == "their.key" and p.value == "their value" for p in got.metadata_props),
                    "metadata of others is lost")

    def check_grad(self):
        golden = Checker(common.PROGRAM, self.m.folder)
        dumps = []
        for i, path in enumerate((self.path, self.out)):
            dumps.append(os.path.join(self.top, f"grad{i}"))
            status, _, err = common.call("grad", path, *golden.arrays("--feed"), *golden.common_options(),
                                         "--dump", dumps[i])
            if not self.expect(status == 0, f"grad of {os.path.basename(path)}: exit {status}: {err[:300]}"):
                return
        files = [sorted(os.listdir(d)) for d in dumps]
        self.expect(files[0] == files[1] and any(f.startswith("grad_") for f in files[0]),
                    f"grad: other files: {set(files[0]) ^ set(files[1])}")
        for f in set(files[0]) & set(files[1]):
            a, b = (open(os.path.join(d, f), "rb").read() for d in dumps)
            self.expect(a == b, f"grad: {f} is not the same bit for bit")

    def run(self):
        report = self.rewrite(self.path, self.out)
        if report is None:
            return
        onnx.checker.check_model(self.out, full_check=True)
        self.check_metadata(report)
        if self.m.one("stochastic") == "1":
            self.notes.append("values: its dropout draws another mask at every call of onnxruntime")
        else:
            self.check_values("", self.path, self.out, self.feeds())
            self.check_batch()
        self.check_blocks()
        self.check_unknown()
        if self.name in GRAD_MODELS:
            self.check_grad()


def check(folder):
    with tempfile.TemporaryDirectory() as top:
        r = Rewritten(folder, top)
        try:
            r.run()
        except Exception as e:  # what a checker or a runtime says of a file
            r.problems.append(f"{type(e).__name__}: {re.sub(chr(10), ' ', str(e))[:800]}")
        return r


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefixes", nargs="*", metavar="MODEL-PREFIX")
    parser.add_argument("--all", action="store_true", help="all models, not one per family")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="all problems of a model, not the first eight")
    args = parser.parse_args()
    chosen = folders(lambda name: name.startswith(tuple(args.prefixes)) if args.prefixes
                     else args.all or name in SUBSET)
    bad, total = 0, Counter()
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for r in pool.map(check, chosen):
            bad += bool(r.problems)
            total.update({k: n for k, n in r.seen.items() if k != "worst"})
            print(f"{'FAIL' if r.problems else 'PASS'} {r.name}: {r.seen['functions']} functions, "
                  f"{r.seen['inverses']} inverses run, worst error {r.seen['worst']:.2g} of its limit", flush=True)
            for p in r.problems[: None if args.verbose else 8] + [f"({n})" for n in r.notes]:
                print(f"     {p}")
    print(f"{len(chosen) - bad} passed, {bad} failed; {total['functions']} functions, {total['inverses']} inverses "
          f"run, {total['rebatched']} models with another batch")
    return int(bad > 0 or not total["inverses"])


if __name__ == "__main__":
    sys.exit(main())
