# SPDX-License-Identifier: Apache-2.0
"""Why an initializer is taken for a weight, or for none: `inspect` says by which evidence, and `train` moves only weights.

operands   by the operand that it is: exponents, OneHot's values, bases, states, filters, windows; and what is a weight
steers     what decides sizes or what is computed is a constant, in `run` as well, in functions and bodies too
names      by the names that exporters give: Paddle, TensorFlow, Brevitas, PyTorch's tensors of forward
whole      weights that a quantizer has made whole numbers of, and their scales
input      mean and deviation of the model's input, and what only looks so
lost       a weight that has lost its name is told in place of the parameter"""
import os
import tempfile

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper, numpy_helper

import common

RNG = np.random.default_rng(3)
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"


def f32(*shape):
    return (RNG.standard_normal(shape) * 0.4).astype(np.float32)


def full(value, *shape):
    return np.full(shape, value, np.float32)


def node(op, inputs, output, **attributes):
    return helper.make_node(op, inputs.split(), output.split(), name=output.split()[0], **attributes)


def save(path, nodes, tensors, x, y, opset=18, producer="", signature="", x_type=T.FLOAT, functions=()):
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", x_type, x)],
                              [helper.make_tensor_value_info("y", T.FLOAT, y)],
                              [numpy_helper.from_array(np.asarray(v), k) for k, v in tensors.items()])
    if signature:
        entry = graph.metadata_props.add()
        entry.key, entry.value = SIGNATURE, signature
    imports = [helper.make_opsetid("", opset)] + [helper.make_opsetid("own", 1)] * bool(functions)
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10, producer_name=producer,
                                functions=functions), path)
    return path


def evidence(path):
    return {i["name"]: i["evidence"] for i in common.report("inspect", path)["initializers"]}


class Evidence(common.InFolder):
    def holds(self, nodes, tensors, x, y, wanted, **how):
        """Initializers have this evidence; `weight` and the like are trained, the others are not."""
        path = save(self.at("m.onnx"), nodes, tensors, x, y, **how)
        seen = evidence(path)
        self.assertEqual({k: seen[k] for k in wanted}, wanted)
        return {i["name"]: i for i in common.report("inspect", path)["initializers"]}

    def moved(self, x, y, *options):
        """Names of the initializers that two steps have moved."""
        np.save(self.at("x.npy"), x)
        np.save(self.at("t.npy"), RNG.standard_normal(y).astype(np.float32))
        common.report("train", self.at("m.onnx"), "--data", self.at("x.npy"), "--target", self.at("t.npy"), "--loss", "mse",
                      "--epochs", 2, "--lr", 0.1, "-o", self.at("o.onnx"), *options)
        new = {t.name: numpy_helper.to_array(t) for t in onnx.load(self.at("o.onnx")).graph.initializer}
        return {t.name for t in onnx.load(self.at("m.onnx")).graph.initializer
                if not np.array_equal(numpy_helper.to_array(t), new[t.name])}

    def test_exponent(self):
        nodes = [node("MatMul", "x W", "a"), node("Abs", "a", "b"), node("Reshape", "p s", "q"), node("Pow", "b q", "y")]
        self.holds(nodes, {"W": f32(5, 6), "p": full(2, 1), "s": np.array([1])}, ["N", 5], ["N", 6],
                   {"W": "weight", "p": "operand"})
        self.assertEqual(self.moved(f32(8, 5), (8, 6)), {"W"})

    def test_values_of_one_hot(self):
        nodes = [node("Concat", "off on", "v", axis=0), node("OneHot", "x d v", "o"), node("MatMul", "o W", "y")]
        self.holds(nodes, {"W": f32(7, 4), "d": full(7, 1), "off": full(0, 1), "on": full(1, 1)}, ["N"], ["N", 4],
                   {"W": "weight", "d": "steers", "off": "operand", "on": "operand"}, x_type=T.INT64)
        self.assertEqual(self.moved(RNG.integers(0, 7, 8), (8, 4)), {"W"})

    def test_bases_of_scatters(self):
        index = np.array([[0], [1], [0], [2], [1]])
        for op, reduction, value, tensor in (("ScatterND", "add", 0, index), ("ScatterND", "mul", 1, index),
                                             ("ScatterElements", "add", 0, np.tile(index, (1, 4))),
                                             ("ScatterElements", "max", -1e30, np.tile(index, (1, 4)))):
            nodes = [node("MatMul", "x W", "h"), node(op, "c i h", "y", reduction=reduction)]
            self.holds(nodes, {"W": f32(6, 4), "c": full(value, 3, 4), "i": tensor}, [5, 6], [3, 4],
                       {"W": "weight", "c": "base"})
        self.holds(nodes, {"W": f32(6, 4), "c": f32(3, 4), "i": tensor}, [5, 6], [3, 4], {"c": "shape"})

    def test_states(self):
        """What a recurrent layer begins with has rows; a state that is learned is repeated for them."""
        for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
            tensors = {"W": f32(1, gates * 4, 3), "R": f32(1, gates * 4, 4), "h": f32(1, 2, 4), "c": f32(1, 2, 4)}
            more = " c" if op == "LSTM" else ""
            nodes = [node(op, "x W R   ".replace("   ", " ") + "", "o k", hidden_size=4), node("Identity", "k", "y")]
            nodes[0].input.extend(["", "", "h"] + (["c"] if more else []))
            wanted = {"W": "weight", "R": "weight", "h": "state"} | ({"c": "state"} if more else {})
            self.holds(nodes, tensors, [5, 2, 3], [1, 2, 4], wanted)
        nodes = [node("Expand", "h s", "e"), node("RNN", "x W R", "o k", hidden_size=4), node("Identity", "k", "y")]
        nodes[1].input.extend(["", "", "e"])
        self.holds(nodes, {"W": f32(1, 4, 3), "R": f32(1, 4, 4), "h": f32(1, 1, 4), "s": np.array([1, 2, 4])}, [5, 2, 3],
                   [1, 2, 4], {"h": "shape"})

    def test_filters(self):
        """A mean, a blur, and what a network may begin with."""
        blur = np.outer([1, 2, 1], [1, 2, 1]).astype(np.float32) / 16
        for filters, key in ((full(1 / 9, 4, 1, 3, 3), "filter"), (full(1, 1, 1, 2, 2), "filter"),
                             (np.tile(blur, (4, 1, 1, 1)), "filter"), (f32(4, 1, 3, 3), "weight"),
                             (full(0, 4, 1, 3, 3), "weight"), (full(1, 4, 1, 1, 1), "weight"),
                             (f32(4, 2, 3, 3), "weight")):
            group = 4 // filters.shape[1] if filters.shape[0] == 4 else 1
            channels = filters.shape[1] * group
            self.holds([node("Conv", "x F", "y", group=group)], {"F": filters}, ["N", channels, 8, 8], None, {"F": key})

    def test_filters_that_are_learned(self):
        """In PyTorch's files a layer's own weight is a parameter, however it begins; so is the exponent of GeM."""
        bilinear = np.tile(np.outer([1, 3, 3, 1], [1, 3, 3, 1]).astype(np.float32) / 16, (3, 1, 1, 1))
        nodes = [node("ConvTranspose", "x up.weight", "a", group=3, strides=[2, 2]), node("Clip", "a low", "b"),
                 node("Pow", "b pool.p", "c"), node("GlobalAveragePool", "c", "d"), node("Reciprocal", "pool.p", "r"),
                 node("Pow", "d r", "y")]
        tensors = {"up.weight": bilinear, "low": full(1e-6), "pool.p": full(3, 1)}
        for producer, filter_, exponent in (("pytorch", "weight", "shape"), ("other", "filter", "operand")):
            self.holds(nodes, tensors, ["N", 3, 4, 4], None, {"up.weight": filter_, "pool.p": exponent},
                       producer=producer)

    def test_filters_of_forward(self):
        """In files of PyTorch's older exporter parameters are initializers, and Constant nodes are what forward makes."""
        kernel = numpy_helper.from_array(f32(2, 3, 3, 3), "k")
        nodes = [helper.make_node("Constant", [], ["k"], value=kernel), node("Conv", "x k", "a"), node("Conv", "a W", "y")]
        save(self.at("m.onnx"), nodes, {"W": f32(2, 2, 3, 3)}, ["N", 3, 8, 8], None, producer="pytorch")
        self.assertEqual(evidence(self.at("m.onnx")), {"W": "weight"})
        save(self.at("m.onnx"), nodes, {"W": f32(2, 2, 3, 3)}, ["N", 3, 8, 8], None, producer="other")
        self.assertEqual(evidence(self.at("m.onnx")), {"W": "weight", "k": "weight"})

    def test_compared_and_windows(self):
        nodes = [node("Greater", "x t", "g"), node("MatMul", "x W", "a"), node("Where", "g a z", "y")]
        self.holds(nodes, {"W": f32(4, 4), "t": f32(4), "z": f32(4)}, ["N", 4], ["N", 4],
                   {"W": "weight", "t": "operand", "z": "shape"})
        nodes = [node("STFT", "x step w", "y")]
        self.holds(nodes, {"step": np.array(4), "w": f32(8)}, [2, 32, 1], [2, 8, 5, 2], {"w": "operand"})
        nodes = [node("SoftmaxCrossEntropyLoss", "x l c", "y")]
        self.holds(nodes, {"l": np.array([0, 2]), "c": f32(3)}, [2, 3], [], {"c": "operand"})

    def test_weights_of_rank_0(self):
        """A slope, a bias of the one result, what a variable holds; the number of a formula is none."""
        nodes = [node("MatMul", "x W", "a"), node("PRelu", "a s", "b"), node("MatMul", "b V", "c"), node("Add", "c d", "e"),
                 node("Mul", "e scale/ReadVariableOp:0", "f"), node("Mul", "f half", "y")]
        seen = self.holds(nodes, {"W": f32(4, 4), "s": np.float32(0.25), "V": f32(4, 1), "d": np.float32(0.5),
                                  "scale/ReadVariableOp:0": np.float32(2), "half": np.float32(0.5)}, ["N", 4], ["N", 1],
                          {"s": "slope", "d": "lone_bias", "scale/ReadVariableOp:0": "variable", "half": "scalar"})
        self.assertEqual({n for n, i in seen.items() if i["trainable"]}, {"W", "s", "V", "d", "scale/ReadVariableOp:0"})
        self.assertEqual(self.moved(f32(8, 4), (8, 1)), {"W", "s", "V", "d", "scale/ReadVariableOp:0"})
        # several results: a number that is added to all of them
        nodes = [node("MatMul", "x W", "a"), node("Add", "a d", "y")]
        self.holds(nodes, {"W": f32(4, 4), "d": np.float32(1)}, ["N", 4], ["N", 4], {"d": "scalar"})

    def test_steers(self):
        """Thresholds, values, sizes and conditions are known before the run, and `train` leaves them alone."""
        nodes = [node("Shape", "x", "e"), node("Cast", "e", "f", to=T.FLOAT), node("Mul", "f n", "m"),
                 node("Cast", "m", "i", to=T.INT64), node("Tile", "one i", "big"), node("ReduceMax", "big", "r", keepdims=0),
                 node("Pad", "x p v", "w"), node("MatMul", "w W", "a"), node("Add", "a r", "y")]
        tensors = {"n": full(1, 2), "one": full(1, 1, 1), "p": np.array([0, 0, 0, 1]), "v": full(7, 1), "W": f32(5, 2)}
        self.holds(nodes, tensors, ["N", 4], ["N", 2], {"n": "steers", "v": "steers", "W": "weight"})
        self.assertEqual(self.moved(f32(8, 4), (8, 2)) - {"one"}, {"W"})

    def run_on(self, x):
        np.save(self.at("in.npy"), x)
        common.report("run", self.at("m.onnx"), "--feed", self.at("in.npy"), "--dump", self.at("out"))
        return np.load(self.at("out/out_y.npy"))

    def test_steers_in_bodies(self):
        """... in a body and in a function, too."""
        pad = helper.make_function("own", "Wider", ["u", "p", "v"], ["w"], [node("Pad", "u p v", "w")],
                                   [helper.make_opsetid("", 18)])
        body = helper.make_graph([node("Pad", "x p v", "o")], "b", [], [helper.make_tensor_value_info("o", T.FLOAT, None)])
        for nodes in ([helper.make_node("Wider", ["x", "p", "v"], ["y"], domain="own")],
                      [node("Less", "a v", "c"), node("If", "c", "y", then_branch=body, else_branch=body)]):
            self.holds(nodes, {"p": np.array([0, 0, 0, 1]), "v": full(7, 1), "a": full(2, 1)}, [2, 3], [2, 4],
                       {"v": "steers"}, functions=[pad])
            got = self.run_on(np.ones((2, 3), np.float32))
            np.testing.assert_array_equal(got, [[1, 1, 1, 7], [1, 1, 1, 7]])

    def test_used_besides(self):
        """What decides a size together with data's sizes is a constant wherever else it is read."""
        nodes = [node("Pad", "x p v", "w"), node("MatMul", "w W", "a"), node("Mul", "a v", "y")]
        self.holds(nodes, {"p": np.array([0, 0, 0, 1]), "v": full(7, 1), "W": f32(5, 2)}, ["N", 4], ["N", 2],
                   {"v": "steers", "W": "weight"})

    def test_names(self):
        rows = (("auto.cast.4", "name"), ("helper.constant.7", "name"), ("p2o.pd_op.full.0.0", "name"),
                ("model/mul/y:0", "name"), ("model/Const_1:0", "name"), ("l.export_handler.lifted_tensor_4", "name"),
                ("lifted_tensor_0", "name"), ("_tensor_constant0", "name"), ("auto.cast.gain", "shape"),
                ("gain", "shape"), ("head/mul/ReadVariableOp:0", "variable"), ("learned/y_scale", "shape"))
        nodes = [node("MatMul", "x d/MatMul/ReadVariableOp:0", "v0")]
        nodes += [helper.make_node("Mul", [f"v{i}", name], [f"v{i + 1}"]) for i, (name, _) in enumerate(rows)]
        nodes += [node("Identity", f"v{len(rows)}", "y")]
        tensors = {name: f32(4) for name, _ in rows} | {"d/MatMul/ReadVariableOp:0": f32(4, 4)}
        self.holds(nodes, tensors, ["N", 4], ["N", 4], dict(rows))
        # TensorFlow's words mean nothing in other files, and a matrix is a matrix whatever it is called
        nodes = [node("MatMul", "x auto.cast.1", "a"), node("Mul", "a m/y", "y")]
        self.holds(nodes, {"auto.cast.1": f32(4, 4), "m/y": f32(4)}, ["N", 4], ["N", 4],
                   {"auto.cast.1": "weight", "m/y": "shape"})

    def test_defaults_of_paddle(self):
        nodes = [node("GroupNormalization", "x helper.constant.0 helper.constant.1", "a", num_groups=2),
                 node("Mul", "a g", "y")]
        self.holds(nodes, {"helper.constant.0": full(1, 2), "helper.constant.1": full(0, 2), "g": f32(4, 1)},
                   ["N", 4, 3], ["N", 4, 3], {"helper.constant.0": "name", "helper.constant.1": "name", "g": "shape"})

    def test_whole_numbers(self):
        """torchao's small layers: whole numbers of 8 bits in floating point, and a scale of each row."""
        whole = RNG.integers(-128, 128, (16, 16)).astype(np.float32)
        nodes = [node("MatMul", "x W", "a"), node("Mul", "a s", "b"), node("Add", "b c", "y")]
        self.holds(nodes, {"W": whole, "s": np.abs(f32(16)), "c": f32(16)}, ["N", 16], ["N", 16],
                   {"W": "whole_numbers", "s": "quantization"})
        self.holds(nodes, {"W": np.eye(16, dtype=np.float32), "s": f32(16), "c": f32(16)}, ["N", 16], ["N", 16],
                   {"W": "weight", "s": "shape"})

    def test_input(self):
        shift, deviation = full(0.4, 1, 3, 1, 1) + f32(1, 3, 1, 1) / 9, full(0.2, 1, 3, 1, 1)
        conv = {"W": f32(2, 3, 3, 3)}
        for second, value in (("Div", deviation), ("Mul", 1 / deviation)):
            nodes = [node("Sub", "x m", "a"), node(second, "a s", "b"), node("Conv", "b W", "y")]
            self.holds(nodes, {"m": shift, "s": value} | conv, ["N", 3, 8, 8], None,
                       {"m": "input", "s": "input", "W": "weight"})
            nodes = [node("Div", "x b255", "x1")] + nodes
            nodes[1].input[0] = "x1"
            self.holds(nodes, {"m": shift, "s": value, "b255": full(255, 1)} | conv, ["N", 3, 8, 8], None,
                       {"m": "input", "s": "input"})
        # behind a weight, without a deviation, and under a name that parameters have
        nodes = [node("Conv", "x W", "c"), node("Sub", "c m", "a"), node("Div", "a s", "y")]
        self.holds(nodes, {"m": shift, "s": deviation, "W": f32(3, 3, 3, 3)}, ["N", 3, 8, 8], None,
                   {"m": "shape", "s": "shape"})
        nodes = [node("Sub", "x b_dec", "a"), node("MatMul", "a W", "y")]
        self.holds(nodes, {"b_dec": f32(4), "W": f32(4, 3)}, ["N", 4], ["N", 3], {"b_dec": "shape"})
        nodes = [node("Sub", "x l.bias", "a"), node("Mul", "a l.weight", "y")]
        self.holds(nodes, {"l.bias": f32(4), "l.weight": f32(4)}, ["N", 4], ["N", 4],
                   {"l.bias": "shape", "l.weight": "shape"})

    def older(self, nodes, tensors, wanted, y=("N", 4)):
        """In a file of PyTorch's older exporter, whose nodes are called after their modules."""
        for n in nodes:
            n.name = n.name if n.name.startswith("/") else f"/{n.op_type}_{n.output[0]}"
        found = self.holds(nodes, tensors, ["N", 6], list(y), wanted, producer="pytorch")
        moved = self.moved(f32(8, 6), (8, 4), "--untie")
        for name, key in wanted.items():
            self.assertEqual(found[name]["trainable"], name in moved, name)

    def test_names_of_the_older_exporter(self):
        """Single numbers with names of their own are learned, of rank 0 too; numbers of formulas have none."""
        nodes = [node("MatMul", "x fc.weight", "a"), node("Mul", "a alpha", "b"), node("Mul", "b onnx::Mul_7", "c"),
                 node("Mul", "c g.gate", "d"), node("Add", "d /g/Sqrt_output_0", "e"), node("Mul", "e 12", "y")]
        self.older(nodes, {"fc.weight": f32(6, 4), "alpha": full(0.7), "onnx::Mul_7": full(0.5), "g.gate": full(0.3, 1),
                           "/g/Sqrt_output_0": full(2), "12": full(1.5)},
                   {"fc.weight": "weight", "alpha": "named", "g.gate": "named", "onnx::Mul_7": "scalar",
                    "/g/Sqrt_output_0": "scalar", "12": "scalar"})
        traps = {t["kind"]: t for t in common.report("inspect", self.at("m.onnx"))["traps"]}
        self.assertEqual(traps["named_alone"]["initializers"], ["alpha", "g.gate"])
        self.assertIn("buffers", traps["named_alone"]["text"])

    def untold(self):
        traps = {t["kind"]: t for t in common.report("inspect", self.at("m.onnx"))["traps"]}
        return {k: traps.get(k, {}).get("initializers", []) for k in ("named_alone", "numbers_alone")}

    def test_weights_that_may_be_buffers(self):
        """Queues, filter banks and codebooks have the operand of a weight, but not the name; layers' own names are known."""
        nodes = [node("MatMul", "x bank", "a"), node("Add", "a expert_bias", "b"), node("MatMul", "b enc.fc.weight", "c"),
                 node("Add", "c enc.fc.bias", "d"), node("MatMul", "d attn.q_proj_weight", "e"), node("Add", "e attn.in_proj_bias", "f"),
                 node("MatMul", "f _v_7", "y")]
        tensors = {"bank": f32(6, 5), "expert_bias": f32(5), "enc.fc.weight": f32(5, 3), "enc.fc.bias": f32(3),
                   "attn.q_proj_weight": f32(3, 4), "attn.in_proj_bias": f32(4), "_v_7": f32(4, 4)}
        self.older(nodes, tensors, {"bank": "weight", "expert_bias": "bias", "_v_7": "weight"})
        self.assertEqual(self.untold(), {"named_alone": ["bank", "expert_bias"], "numbers_alone": []})
        for n in nodes:
            n.name = ""
        self.holds(nodes, tensors, ["N", 6], ["N", 4], {"bank": "weight"})  # of an exporter that is not PyTorch's
        self.assertEqual(self.untold()["named_alone"], [])

    def test_simplified(self):
        """A simplifier has left the newer exporter's names of nodes and nothing else that tells buffers from parameters."""
        nodes = [node("MatMul", "x fc.weight", "a"), node("Sub", "a prototypes", "b"), node("Mul", "b gain", "c"),
                 node("Mul", "c _v_3", "d"), node("Mul", "d val_2", "e"), node("Add", "e scalar_tensor_default", "f"),
                 node("Mul", "f val_4", "y")]
        for n in nodes:
            n.name = f"node_{n.op_type}_{n.output[0]}"
        tensors = {"fc.weight": f32(6, 4), "prototypes": f32(1, 4), "gain": full(0.7), "_v_3": full(2), "val_2": full(3),
                   "scalar_tensor_default": full(0), "val_4": f32(4)}
        found = self.holds(nodes, tensors, ["N", 6], ["N", 4], {"prototypes": "shape", "gain": "scalar"}, producer="pytorch")
        self.assertEqual(self.untold(), {"named_alone": ["prototypes"], "numbers_alone": ["gain"]})
        self.assertEqual({k for k, v in found.items() if v["trainable"]}, self.moved(f32(8, 6), (8, 4)))
        self.assertEqual(self.moved(f32(8, 6), (8, 4), "--train-only", "gain"), {"gain"})

    def test_transposed_by_a_function(self):
        """`x @ embed.t()` is stored as "t"; two layers that were begun alike stay two."""
        table = f32(8, 4)
        for name, tied in (("t", True), ("dec.weight", False)):
            nodes = [node("Gather", "embed.weight x", "e"), node("MatMul", f"e {name}", "y")]
            for n in nodes:
                n.name = f"node_{n.op_type}_{n.output[0]}"
            self.holds(nodes, {"embed.weight": table, name: table.T.copy()}, ["N"], ["N", 8], {"embed.weight": "weight"},
                       producer="pytorch", x_type=T.INT64)
            kinds = [t["kind"] for t in common.report("inspect", self.at("m.onnx"))["traps"]]
            self.assertEqual("transposed_copy" in kinds, tied, name)

    def test_epsilon(self):
        """A small number of rank 1 that keeps a root, logarithm or quotient finite; a bias or a shift is none."""
        for after in ("Sqrt", "Log", "Reciprocal", "Div"):
            nodes = [node("MatMul", "x fc.weight", "a"), node("Mul", "a a", "b"), node("Add" if after != "Log" else "Max", "b e", "c"),
                     node(after, "x1 c" if after == "Div" else "c", "d"), node("Add", "d f", "y")]
            tensors = {"fc.weight": f32(6, 4), "e": full(1e-5, 1), "f": full(1e-5, 1), "x1": full(1, 4)}
            tensors = {k: v for k, v in tensors.items() if k != "x1" or after == "Div"}
            self.holds(nodes, tensors, ["N", 6], ["N", 4], {"e": "epsilon", "f": "shape"})
            self.assertEqual(self.moved(f32(8, 6), (8, 4)) - {"x1"}, {"fc.weight", "f"})
        nodes = [node("MatMul", "x fc.weight", "a"), node("Add", "a e", "b"), node("Tanh", "b", "c"), node("Exp", "b", "d"),
                 node("Log", "d", "g"), node("Add", "c g", "y")]
        self.holds(nodes, {"fc.weight": f32(6, 4), "e": full(1e-5, 1)}, ["N", 6], ["N", 4], {"e": "bias"})

    def test_gates_that_were_merged(self):
        """Two new gates of zero, of one number or of none: the Identity tells that they are two."""
        for shape in ((), (1,)):
            nodes = [node("Identity", "g1", "g2"), node("MatMul", "x fc.weight", "a"), node("Mul", "a g1", "b"),
                     node("Tanh", "a", "c"), node("Mul", "c g2", "d"), node("Add", "b d", "y")]
            self.older(nodes, {"fc.weight": f32(6, 4), "g1": full(0, *shape)}, {"fc.weight": "weight", "g1": "named"})
            new = {t.name: numpy_helper.to_array(t) for t in onnx.load(self.at("o.onnx")).graph.initializer}
            gates = [float(v.ravel()[0]) for n, v in new.items() if v.size == 1]
            self.assertEqual(len(gates), 2, new.keys())
            self.assertNotEqual(gates[0], gates[1])

    def test_new_gains_of_a_norm(self):
        """What a group normalization scales and shifts each channel by, new yet; what InstanceNormalization has is none."""
        nodes = [node("MatMul", "x fc.weight", "a"), node("Reshape", "a s", "r"), node("InstanceNormalization", "r o z", "n"),
                 node("Reshape", "n t", "m"), node("Mul", "m onnx::Mul_39", "b"), node("Add", "b onnx::Add_40", "c"),
                 node("Mul", "c onnx::Mul_41", "y")]
        self.older(nodes, {"fc.weight": f32(6, 4), "s": np.array([0, 2, 2]), "t": np.array([0, 4]), "o": full(1, 2),
                           "z": full(0, 2), "onnx::Mul_39": full(1, 4), "onnx::Add_40": full(0, 4), "onnx::Mul_41": full(1, 1)},
                   {"onnx::Mul_39": "shape", "onnx::Add_40": "shape", "onnx::Mul_41": "default"})

    def test_lost(self):
        """Through QuantizeLinear and DequantizeLinear a weight is a weight, and stands for the one that is missing."""
        nodes = [node("QuantizeLinear", "slice_1 s z", "q"), node("DequantizeLinear", "q s z", "d"),
                 node("Gemm", "x d l.bias", "y", transB=1)]
        tensors = {"slice_1": f32(8, 4), "s": np.float32(0.01), "z": np.int8(0), "l.bias": f32(8)}
        signature = "p_w: PARAMETER target='l.weight'\np_b: PARAMETER target='l.bias'\nx: USER_INPUT\n"
        self.holds(nodes, tensors, ["N", 4], ["N", 8], {"slice_1": "stands_in", "l.bias": "file_parameter"},
                   producer="pytorch", signature=signature)
        trap = next(t for t in common.report("inspect", self.at("m.onnx"))["traps"] if t["kind"] == "parameters_changed")
        self.assertEqual(trap["initializers"], ["slice_1"])
        self.assertNotIn("No trainable value is lost", trap["text"])
        self.assertEqual(self.moved(f32(8, 4), (8, 8), "--through-quantization"), {"slice_1", "l.bias"})

    def test_text(self):
        """The text of `inspect` says why of each, of those that are trained, too."""
        save(self.at("m.onnx"), [node("MatMul", "x W", "a"), node("Pow", "a two", "y")], {"W": f32(3, 3), "two": full(2, 1)},
             ["N", 3], ["N", 3])
        status, out, _ = common.call("inspect", self.at("m.onnx"))
        self.assertEqual(status, 0)
        self.assertIn("trained: a weight, bias or table, by its operand", out)
        self.assertIn("not trained: an operand that no framework trains", out)


if __name__ == "__main__":
    import unittest
    unittest.main()
