# SPDX-License-Identifier: Apache-2.0
"""Which parameters are one, and which an exporter has only stored as one: told by the signs that exporters leave.

listed     the newer exporter of PyTorch lists parameters and says which module a node is of: what it has merged is
           refused, and parted by --untie into the parameters that it lists, with the biases of zeros that it left out,
           bit for bit as in a file that keeps them
given      a call says which parameters it was given: of one module, of parts that a Split gives, merged with a constant
on_purpose what the model ties, uses twice or cuts up is trained as it is, also if it is all zeros
called     the older one writes an Identity with the name of what it merged, and none where the model ties
changed    in files that a simplifier has gone over, modules that read the same throughout are copies
stripped   where that has left no module, what is read twice is refused, with both remedies
parts      a bias of zeros that is cut into parts is one, of two layers it was two, where nothing else tells
copies     one weight that the file holds twice is said, and trained as one with --tied A=B"""
import os
import sys
import tempfile

import numpy as np
import onnx
import onnx.compose
from onnx import TensorProto, helper, numpy_helper

import common

RNG = np.random.default_rng(11)
KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
FOLDED = "pkg.onnxscript.optimizer.folded_from"
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
SCOPES = "pkg.torch.onnx.name_scopes"
CALL = "pkg.torch.onnx.fx_node"
ROWS = 6


def f32(*shape):
    return (RNG.standard_normal(shape) * 0.4).astype(np.float32)


def zeros(*shape):
    return np.zeros(shape, np.float32)


def put(props, key, value):
    entry = props.add()
    entry.key, entry.value = key, value


def node(op, inputs, output, scope=None, name=None, **attributes):
    """scope: path of the module, as the newer exporter writes it."""
    made = helper.make_node(op, inputs, [output], name=name or f"node_{output}", **attributes)
    if scope is not None:
        parts = scope.split(".") if scope else []
        paths = [""] + [".".join(parts[:k + 1]) for k in range(len(parts))]
        put(made.metadata_props, SCOPES, str(paths + [output]))
    return made


def save(path, nodes, init, listed=None, folded=None, producer="pytorch", x=("N", 4), y=("N", 4), types=(), meta=None):
    """listed: all parameters of the program; folded: initializer -> of what it was computed."""
    graph = helper.make_graph(nodes, "main_graph", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
                              [numpy_helper.from_array(np.asarray(v), k) for k, v in init.items()])
    told = [(n, KIND, "PARAMETER") for n in init if n in (listed or ())]
    for name, key, text in told + [(n, FOLDED, str(of)) for n, of in (folded or {}).items()]:
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, init[name].shape)
        put(value.metadata_props, key, text)
        graph.value_info.append(value)
    for name, shape in types:
        graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
    if listed:
        lines = [f"p_{n.replace('.', '_')}: PARAMETER target='{n}'" for n in listed]
        put(graph.metadata_props, SIGNATURE, "\n# inputs\n" + "\n".join(lines) + "\nx: USER_INPUT\n")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10, producer_name=producer)
    for key, value in (meta or {}).items():
        put(model.metadata_props, key, value)
    onnx.save(model, path)
    return path


def chain(*layers, scope=True):
    """Gemm with Relu between: (module, weight, bias or None), each on what the one before gives."""
    nodes, last = [], "x"
    for k, (module, weight, bias) in enumerate(layers):
        end = k == len(layers) - 1
        name = None if scope else f"/{module}/Gemm".replace("//", "/")
        nodes.append(node("Gemm", [last, weight] + ([bias] if bias else []), "y" if end else f"h{k}",
                          module if scope else None, name, transB=1))
        if not end:
            nodes.append(node("Relu", [f"h{k}"], f"r{k}", "" if scope else None, None if scope else f"/Relu_{k}"))
        last = f"r{k}"
    return nodes


def merged(model):
    traps = common.report("inspect", model)["traps"]
    return {t["initializer"]: t["count"] for t in traps if t["kind"] == "merged_initializer"}


def train(at, model, *options):
    status, out, err = common.call("train", model, "--data", at("x.npy"), "--target", at("t.npy"), "--loss", "mse",
                                   "--steps", 4, "--batch", 3, "--lr", 0.1, "--no-shuffle", "-o", at("out.onnx"), *options)
    assert status == 0, f"{model} {options}: {err}"
    onnx.checker.check_model(onnx.load(at("out.onnx")), full_check=True)
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(at("out.onnx")).graph.initializer}


def refused(at, model, *options, words=(), status=1):
    got, _, err = common.call("train", model, "--data", at("x.npy"), "--target", at("t.npy"), "--loss", "mse", "--steps",
                              1, "-o", at("no.onnx"), *options)
    assert got == status, f"exit {got}: {err}"
    for word in words:
        assert word in err, f"{word!r} is not in: {err}"


def same(got, want, names):
    for a, b in names.items():
        assert np.array_equal(got[a], want[b]), f"{a} is not {b}: {got[a].ravel()[:4]} {want[b].ravel()[:4]}"


def data(at, x=(ROWS, 4), y=(ROWS, 4)):
    np.save(at("x.npy"), f32(*x))
    np.save(at("t.npy"), f32(*y))


# --- the newer exporter ---

def check_listed(at):
    data(at)
    w, v, c = f32(4, 4), f32(4, 4), f32(4)
    listed = ["a.weight", "a.bias", "b.weight", "b.bias", "c.weight", "c.bias"]
    whole = {"a.weight": w, "a.bias": c, "b.weight": w, "b.bias": c, "c.weight": v, "c.bias": zeros(4)}
    apart = save(at("apart.onnx"), chain(*[(m, f"{m}.weight", f"{m}.bias") for m in "abc"]), whole, listed)
    assert not merged(apart) and "equal_copy" not in [t["kind"] for t in common.report("inspect", apart)["traps"]]
    want = train(at, apart)
    # deep copies; c's bias of zeros was left out
    both = chain(("a", "a.weight", "a.bias"), ("b", "a.weight", "a.bias"), ("c", "c.weight", None))
    init = {"a.weight": w, "a.bias": c, "c.weight": v}
    copies = save(at("copies.onnx"), both, init, listed)
    assert merged(copies) == {"a.weight": 2, "a.bias": 2}
    refused(at, copies, words=("'a.weight'", "where the file names 'b.weight'", "--untie", "--tied"))
    got = train(at, copies, "--untie")
    assert set(got) == set(want)
    same(got, want, {n: n for n in want})
    os.replace(at("out.onnx"), at("again.onnx"))
    assert not merged(at("again.onnx")) and set(train(at, at("again.onnx"))) == set(want)
    assert set(train(at, copies, "--tied", "a.*")) == set(init)
    # the copy is read first: the name stays with its own reader
    turned = chain(("b", "a.weight", "a.bias"), ("a", "a.weight", "a.bias"), ("c", "c.weight", None))
    got = train(at, save(at("turned.onnx"), turned, init, listed), "--untie")
    same(got, want, {"a.weight": "b.weight", "b.weight": "a.weight", "a.bias": "b.bias", "c.bias": "c.bias"})
    # stored transposed, by a name of the exporter's own
    folded = [node("MatMul", ["x", "val_0"], "h", "a"), node("Relu", ["h"], "r", ""), node("MatMul", ["r", "val_0"], "y", "b")]
    model = save(at("folded.onnx"), folded, {"val_0": w}, ["a.weight", "b.weight"], {"val_0": ["a.weight", "val_7"]})
    assert merged(model) == {"val_0": 2} and set(train(at, model, "--untie")) == {"val_0", "val_0_untied_1"}
    # deeper, and in a module that the weight's name does not begin with: batch norm that was folded
    for own, other, first, second in (("net.0.conv", "net.1.conv", "net.0.norm", "net.1.norm"),
                                      ("enc.l.0.fc", "enc.l.3.fc", "enc.l.0.fc", "enc.l.3.fc")):
        init = {f"{own}.weight": w, "c.weight": v}
        nodes = chain((first, f"{own}.weight", None), (second, f"{own}.weight", None), ("c", "c.weight", None))
        model = save(at("deep.onnx"), nodes, init, [f"{own}.weight", f"{other}.weight", "c.weight"])
        assert merged(model) == {f"{own}.weight": 2}, first
        assert set(train(at, model, "--untie")) == {f"{own}.weight", f"{other}.weight", "c.weight"}
    # nothing merged, but a bias left out of a convolution; --freeze knows its name
    conv = [node("Conv", ["x", "c.weight"], "h", "c"), node("GlobalAveragePool", ["h"], "y", "")]
    model = save(at("conv.onnx"), conv, {"c.weight": f32(5, 3, 2, 2)}, ["c.weight", "c.bias"], x=("N", 3, 4, 4),
                 y=("N", 5, 1, 1))
    data(at, (ROWS, 3, 4, 4), (ROWS, 5, 1, 1))
    assert set(train(at, model)) == {"c.weight"}
    got = train(at, model, "--untie")
    assert got["c.bias"].shape == (5,) and got["c.bias"].all()
    assert not train(at, model, "--untie", "--freeze", "c.bias")["c.bias"].any()


def called(made, *given):
    """The call that became a node, with its arguments, as the newer exporter writes it."""
    put(made.metadata_props, CALL, "%y : [num_users=1] = call_function[target=torch.ops.aten.mul.Tensor](args = (%x, " +
        ", ".join(f"%p_{name.replace('.', '_')}" for name in given) + "), kwargs = {})")
    return made


def check_given(at):
    data(at)
    w = f32(4, 4)
    # two gates of one module, one number each, that were merged
    def gated(second):
        return [called(node("MatMul", ["x", "w"], "h", ""), "w"), called(node("Mul", ["h", "g1"], "i", ""), "g1"),
                called(node("Mul", ["x", second], "j", ""), "g2"), node("Add", ["i", "j"], "y", "")]
    one = np.full(1, 0.5, np.float32)
    want = train(at, save(at("gates.onnx"), gated("g2"), {"w": w, "g1": one, "g2": one}, ["w", "g1", "g2"]))
    model = save(at("gate.onnx"), gated("g1"), {"w": w, "g1": one}, ["w", "g1", "g2"])
    refused(at, model, words=("'g1'", "where the file names 'g2'"))
    same(train(at, model, "--untie"), want, {n: n for n in want})
    # a packed bias: Split says nothing, what reads the parts does
    def packed(*bias):
        nodes, last = [], "x"
        for k, name in enumerate(bias):
            nodes += [node("Split", [name, "two"], f"p{k}", axis=0), called(node("MatMul", [last, f"w{k}"], f"h{k}", f"m.{k}"), f"w{k}"),
                      called(node("Add", [f"h{k}", f"p{k}"], f"a{k}", f"m.{k}")), called(node("Add", [f"a{k}", f"q{k}"], f"b{k}", f"m.{k}"))]
            nodes[-4].output.append(f"q{k}")
            last = f"b{k}"
        return nodes + [node("Identity", [last], "y", "")]
    init = {"w0": w, "w1": f32(4, 4), "m.0.bias": zeros(8), "two": np.array([4, 4])}
    listed = ["w0", "w1", "m.0.bias", "m.1.bias"]
    want = train(at, save(at("packs.onnx"), packed("m.0.bias", "m.1.bias"), init | {"m.1.bias": zeros(8)}, listed))
    model = save(at("pack.onnx"), packed("m.0.bias", "m.0.bias"), init, listed)
    assert merged(model) == {"m.0.bias": 2}
    got = train(at, model, "--untie")
    same(got, want, {n: n for n in want})
    assert np.abs(got["m.1.bias"]).max() > 0 and not np.array_equal(got["m.0.bias"], got["m.1.bias"])
    # the scale of a norm that was merged with the ones of a norm that has none: of ["val_1"] alone, by the file
    norms = [called(node("Mul", ["x", "val_27"], "h", "1")), node("MatMul", ["h", "w"], "i", "2"),
             called(node("Mul", ["i", "val_27"], "y", "3"), "3.weight")]
    model = save(at("norms.onnx"), norms, {"w": w, "val_27": np.ones((4,), "f4")}, ["w", "3.weight"], {"val_27": ["val_1"]})
    assert merged(model) == {"val_27": 2}
    got = train(at, model, "--untie")
    assert np.all(got["val_27"] == 1) and np.all(got["val_27_untied_1"] != 1), got
    # two weights of one module: none is called like the other
    two = [called(node("MatMul", ["x", "val_3"], "h", "a"), "a.in_proj_weight"),
           called(node("Gemm", ["h", "a.out_proj.weight"], "y", "a", transB=1), "a.out_proj.weight")]
    model = save(at("two.onnx"), two, {"val_3": w, "a.out_proj.weight": f32(4, 4)}, ["a.in_proj_weight", "a.out_proj.weight"],
                 {"val_3": ["a.in_proj_weight"]})
    named = {i["name"]: i.get("module") for i in common.report("inspect", model)["initializers"]}
    assert named == {"val_3": "a.in_proj_weight", "a.out_proj.weight": None}, named
    # an exponent of a parameter is computed, its transpose is not
    for name, computed in (("exp", True), ("softplus_1", True), ("t_2", False), ("transpose", False), ("val_9", False)):
        model = save(at("made.onnx"), [node("MatMul", ["x", name], "y", "")], {name: w}, ["s"], {name: ["s"]})
        kinds = [t["kind"] for t in common.report("inspect", model)["traps"]]
        assert ("computed_initializer" in kinds) == computed, (name, kinds)


def check_on_purpose(at):
    data(at)
    w, v = f32(4, 4), f32(4, 4)
    # of tied ones the exporter keeps the last
    tied = chain(("a", "b.weight", "a.bias"), ("b", "b.weight", "b.bias"))
    init = {"b.weight": w, "a.bias": f32(4), "b.bias": f32(4)}
    model = save(at("tied.onnx"), tied, init, ["a.weight", "a.bias", "b.weight", "b.bias"])
    assert not merged(model) and set(train(at, model, "--untie")) == set(init)
    # no trainable value is lost: zeros that the model uses twice, in one module and from another
    twice = [node("Gemm", ["x", "l.weight"], "h", "l", transB=1), node("Exp", ["s"], "e", ""),
             node("Mul", ["h", "e"], "m", ""), node("Add", ["m", "s"], "y", "")]
    init = {"l.weight": w, "s": zeros(4)}
    model = save(at("twice.onnx"), twice, init, ["s", "l.weight"])
    assert not merged(model) and set(train(at, model)) == set(init)
    # something is lost, but in another module
    model = save(at("elsewhere.onnx"), twice, init, ["s", "l.weight", "l.bias"])
    assert not merged(model) and set(train(at, model, "--untie")) == set(init) | {"l.bias"}
    # in the same one: it may have been that
    model = save(at("maybe.onnx"), twice, init, ["s", "s2", "l.weight"])
    assert merged(model) == {"s": 2}
    # a packed bias, cut up
    cuts = [node("Split", ["m.q"], "q0", "m", num_outputs=2), node("Add", ["x", "q0"], "h0", "m"),
            node("Mul", ["h0", "q1"], "h1", "m"), node("Add", ["h1", "x"], "y", "m")]
    cuts[0].output.append("q1")
    model = save(at("cut.onnx"), cuts, {"m.q": zeros(8)}, ["m.q"])
    assert not merged(model) and set(train(at, model)) == {"m.q"}
    # a module that is called twice, and its weight read by the model itself
    calls = chain(("l", "l.weight", "l.bias"), ("l", "l.weight", "l.bias"), ("", "l.weight", None), ("c", "c.weight", None))
    init = {"l.weight": w, "l.bias": zeros(4), "c.weight": v}
    model = save(at("calls.onnx"), calls, init, ["l.weight", "l.bias", "c.weight", "c.bias"])
    assert not merged(model) and set(train(at, model, "--untie")) == set(init) | {"c.bias"}
    # the head of an embedding, stored transposed: the file says of what, or the caller does
    nodes = [node("Gemm", ["x", "e.weight"], "h", "e", transB=1), node("Relu", ["h"], "r", ""),
             node("MatMul", ["r", "val_9"], "y", "o")]
    init = {"e.weight": w, "val_9": np.ascontiguousarray(w.T)}
    for folded, options, one in ((["e.weight"], (), True), ([], (), False), ([], ("--tied", "e.*"), True)):
        told = {"listed": ["e.weight"], "folded": {"val_9": folded}} if folded else {}
        got = train(at, save(at("head.onnx"), nodes, init, **told), "--untie", *options)
        assert np.array_equal(got["e.weight"], got["val_9"].T) == one, (folded, options)


# --- the older exporter ---

def identity(of, name, k):
    return node("Identity", [of], name, name=f"Identity_{k}")


def check_called(at):
    data(at)
    w, c = f32(4, 4), f32(4)
    whole = {"a.weight": w, "a.bias": c, "b.weight": w, "b.bias": c, "n": zeros(4)}
    layers = chain(("a", "a.weight", "a.bias"), ("b", "b.weight", "b.bias"), scope=False)
    layers[-1].output[0] = "h"
    layers += [node("Mul", ["h", "n"], "m", name="/Mul"), node("Add", ["m", "n"], "y", name="/Add")]
    apart = save(at("apart.onnx"), layers, whole)
    assert not merged(apart)  # n, all zeros, is read twice, by the model itself
    want = train(at, apart)
    names = [identity("a.bias", "b.bias", 0), identity("a.weight", "b.weight", 1)]
    init = {k: v for k, v in whole.items() if k[0] != "b"}
    copies = save(at("copies.onnx"), names + layers, init)
    assert merged(copies) == {"a.weight": 2, "a.bias": 2}
    refused(at, copies, words=("where the file names 'b.weight'", "--untie"))
    got = train(at, copies, "--untie")
    same(got, want, {"a.weight": "a.weight", "a.weight_untied_1": "b.weight", "a.bias_untied_1": "b.bias", "n": "n"})
    # no Identity: the model ties them; one of the model's own is no name
    for last in ("a.weight", "/b/Identity_output_0", "17"):
        tied = chain(("a", "a.weight", "a.bias"), ("b", last, "b.bias"), scope=False)
        own = [] if last == "a.weight" else [node("Identity", ["a.weight"], last, name="/b/Identity")]
        init = {"a.weight": w, "a.bias": c, "b.bias": c}
        model = save(at("tied.onnx"), own + tied, init)
        assert not merged(model) and set(train(at, model, "--untie")) == set(init), last
    # zeros behind products are a bias, whatever the exporter calls them; of three products they were three
    for count in (1, 3):
        nodes = [node("MatMul", ["x", f"onnx::MatMul_{k}"], f"p{k}") for k in range(count)]
        nodes += [node("Add", [f"p{k}", "onnx::Add_9"], f"q{k}") for k in range(count)]
        nodes.append(node("Sum", [f"q{k}" for k in range(count)], "y"))
        init = {f"onnx::MatMul_{k}": f32(4, 4) for k in range(count)} | {"onnx::Add_9": zeros(4)}
        model = save(at("bias.onnx"), nodes, init)
        assert merged(model) == ({"onnx::Add_9": 3} if count == 3 else {})
        assert train(at, model, "--untie")["onnx::Add_9"].any()


# --- files that others have gone over ---

def check_transposed(at):
    """A table and the head's transpose of it, which the older exporter has made, stay one with --untie; a twin does not."""
    data(at)
    table = f32(4, 4)
    for copy, apart in (("onnx::MatMul_9", False), ("head.weight", True)):
        nodes = [node("MatMul", ["x", "e.weight"], "h", name="/e/MatMul"), node("MatMul", ["h", copy], "y", name="/head/MatMul")]
        got = train(at, save(at("twin.onnx"), nodes, {"e.weight": table, copy: np.ascontiguousarray(table.T)}), "--untie")
        assert np.array_equal(got["e.weight"], got[copy].T) != apart, copy


def check_changed(at):
    data(at)
    w, c, types = f32(4, 4), f32(4), [("h0", ("N", 4))]
    for module, bias, want in (("b", "a.bias", {"a.weight": 2, "a.bias": 2}), ("b", "b.bias", {}), ("a_1", "a.bias", {})):
        init = {"a.weight": w, bias: c, "a.bias": f32(4)}
        nodes = chain(("a", "a.weight", "a.bias"), (module, "a.weight", bias), scope=False)
        model = save(at("changed.onnx"), nodes, init, types=types)
        assert merged(model) == want, (module, bias)
        assert len(train(at, model, "--untie")) == len(init) + len(want)
    # a module that is called like a second call: parameters have its name
    nodes = chain(("a", "a.weight", "a.bias"), ("a_1", "a.weight", "a.bias"), ("a_1.c", "a_1.c.weight", None), scope=False)
    nodes[-1].name = "/a_1/c/Gemm"
    model = save(at("named.onnx"), nodes, {"a.weight": w, "a.bias": c, "a_1.c.weight": f32(4, 4)}, types=types)
    assert not merged(model)  # it reads more than a does
    # sequences say their name twice; zeros that were read twice may have been merged by now
    nodes = chain(("c/c.0", "c.0.weight", "c.0.bias"), ("d/d.0", "c.0.weight", "c.0.bias"), scope=False)
    assert merged(save(at("sequence.onnx"), nodes, {"c.0.weight": w, "c.0.bias": c}, types=types)) == \
        {"c.0.weight": 2, "c.0.bias": 2}
    nodes = [node("MatMul", ["x", "w"], "h", name="/MatMul"), node("Mul", ["h", "n"], "m", name="/Mul"),
             node("Add", ["m", "n"], "y", name="/Add")]
    assert merged(save(at("zeros.onnx"), nodes, {"w": w, "n": zeros(4)}, types=types)) == {"n": 2}


def check_stripped(at):
    data(at)
    nodes = chain(("a", "a.weight", "a.bias"), ("b", "a.weight", "a.bias"))
    for n in nodes:
        del n.metadata_props[:]
    init = {"a.weight": f32(4, 4), "a.bias": f32(4)}
    signed = {"producer": "other", "meta": {"onnxsim.constant_folding": "1"}}
    for how in ({}, signed):
        model = save(at("stripped.onnx"), nodes, init, **how)
        refused(at, model, words=("'a.weight'", "--untie", "--tied"))
        assert set(train(at, model, "--tied", "a.*")) == set(init)
        assert len(train(at, model, "--untie")) == 4
    assert not merged(save(at("other.onnx"), nodes, init, producer="other"))


def check_parts(at):
    """What is cut out by a node of its own, of a length that is computed from the bias or not."""
    data(at)
    init = {"b": zeros(8), "w": f32(4, 4), "v": f32(4, 4), "u": f32(4, 4), "t": f32(4, 4), "0": np.array([0]), "8": np.array([8]),
            "two": np.array(2)}
    for sized in (False, True):
        for layers in (["w", "v"], ["w", "v", "u", "t"]):
            nodes = [node("Shape", ["b"], "all"), node("Div", ["all", "two"], "half")] if sized else \
                [node("Constant", [], "half", value_ints=[4])]
            last = "x"
            for k, w in enumerate(layers):
                ends = ["0", "half"] if k % 2 == 0 else ["half", "8"]
                nodes += [node("Slice", ["b", *ends], f"b{k}"), node("MatMul", [last, w], f"p{k}"),
                          node("Add", [f"p{k}", f"b{k}"], f"h{k}"), node("Relu", [f"h{k}"], f"r{k}")]
                last = f"r{k}"
            nodes[-1].output[0] = "y"
            model = save(at("parts.onnx"), nodes, init, producer="other")
            assert merged(model) == ({"b": 2} if len(layers) == 4 else {}), (sized, layers)
            got = train(at, model, "--untie")
            assert got["b"].any() and ("b_untied_1" in got) == (len(layers) == 4)


# --- one weight, twice in the file ---

def copy_traps(model):
    return [(t["initializer"], t["of"]) for t in common.report("inspect", model)["traps"] if t["kind"] == "equal_copy"]


def check_copies(at):
    data(at)
    w, c = f32(4, 4), f32(4)
    init = {"w": w, "b": c, "w2": w, "b2": c, "z": zeros(4), "z2": zeros(4)}
    layers = chain(("a", "w", "b"), ("b", "w2", "b2"), scope=False)
    layers[-1].output[0] = "h"
    layers += [node("Add", ["h", "z"], "m"), node("Relu", ["m"], "n"), node("Add", ["n", "z2"], "y")]
    model = save(at("twice.onnx"), layers, init, producer="other")
    assert sorted(copy_traps(model)) == [("b2", "b"), ("w2", "w")]
    once = onnx.load(model)
    for n in once.graph.node:
        for k, name in enumerate(n.input):
            n.input[k] = name.replace("w2", "w").replace("b2", "b")
    onnx.save(once, at("once.onnx"))
    assert not copy_traps(save(at("mine.onnx"), layers, init))  # PyTorch names both
    want = train(at, at("once.onnx"))
    got = train(at, model, "--tied", "w=w2", "--tied", "b=b2")
    assert set(got) == {"w", "b", "z", "z2"}
    same(got, want, {n: n for n in got})
    got = train(at, model, "--tied", "?2=?")  # the first is kept; zeros were named as well
    same(got, train(at, at("once.onnx"), "--tied", "z=z2"), {"w2": "w", "b2": "b", "z2": "z"})
    for pair, words in (("w=v2", ("no initializer 'v2'", "w2")), ("w=b", ("equal, bit for bit", "--tied w=b"))):
        refused(at, model, "--tied", pair, words=words)
    assert len(train(at, model)) == 6
    # two files, joined, of which each has the encoder
    part = save(at("part.onnx"), chain(("e", "e.weight", "e.bias"), scope=False), {"e.weight": w, "e.bias": c})
    whole = onnx.compose.merge_models(onnx.compose.add_prefix(onnx.load(part), "one/"),
                                      onnx.compose.add_prefix(onnx.load(part), "two/"), [("one/y", "two/x")])
    onnx.save(whole, at("joined.onnx"))
    assert sorted(copy_traps(at("joined.onnx"))) == [("two/e.bias", "one/e.bias"), ("two/e.weight", "one/e.weight")]
    assert set(train(at, at("joined.onnx"), "--tied", "one/*=two/*")) == {"one/e.weight", "one/e.bias"}


def main():
    wanted = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        for name, check in list(globals().items()):
            if name.startswith("check_") and (not wanted or name.removeprefix("check_") in wanted):
                check(lambda f: os.path.join(folder, f))
                print(name.removeprefix("check_"), "ok", flush=True)


if __name__ == "__main__":
    main()
