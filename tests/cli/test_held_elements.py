# SPDX-License-Identifier: Apache-2.0
"""Elements that are held stay as they are, to the bit, whatever the optimizer does; all others are trained.

optimizers  each of them, with weight decay, momentum and clipping, on rows that are zero and rows that are not
ways        accumulated, updated early, averaged, in bfloat16, in stages, by two ranks, of a table that is large
found       zeros that a mask has left, by what the file or the older exporter's name says; a table's row of padding
told        `train` and `inspect` say it, --no-hold takes it back, and what holds nothing is refused"""
import os
import shutil
import subprocess
import unittest

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper, numpy_helper

import common

RNG = np.random.default_rng(4)
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "adamw8", "lion", "rmsprop", "lamb", "adafactor", "muon")
DECAYING = ("adamw", "adamw8", "lion", "lamb", "adafactor", "muon")
FOLDED = "pkg.onnxscript.optimizer.folded_from"
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"

MPIRUN = ["mpirun", "--quiet", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,vader",
          "--mca", "btl_vader_single_copy_mechanism", "none"]


def no_ranks():
    if not shutil.which("mpirun"):
        return "there is no mpirun"
    done = subprocess.run([*MPIRUN, "-n", "2", common.PROGRAM, "train", os.devnull], capture_output=True, text=True)
    return "this build has no MPI" if "has no MPI" in done.stderr else ""


NO_RANKS = no_ranks()


def f32(*shape):
    return (RNG.standard_normal(shape) * 0.4).astype(np.float32)


def node(op, inputs, output, **attributes):
    return helper.make_node(op, inputs.split(), [output], name=output, **attributes)


def masked(rows, columns):
    """A triangle, as of an autoregressive network."""
    return np.tril(f32(rows, columns), -1)


class Held(common.InFolder):
    def save(self, nodes, tensors, x_type=T.FLOAT, x=("N", 4), y=("N", 4), producer="", folded=None, signature=""):
        graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", x_type, x)],
                                  [helper.make_tensor_value_info("y", T.FLOAT, y)],
                                  [numpy_helper.from_array(v, k) for k, v in tensors.items()])
        for name, text in (folded or {}).items():
            value = helper.make_tensor_value_info(name, T.FLOAT, tensors[name].shape)
            entry = value.metadata_props.add()
            entry.key, entry.value = FOLDED, text
            graph.value_info.append(value)
        if signature:
            entry = graph.metadata_props.add()
            entry.key, entry.value = SIGNATURE, signature
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10,
                                    producer_name=producer), self.at("m.onnx"))

    def table(self, rows=12, width=16, zero=0):
        """Embeddings of three ids each, and a product; the ids of the zero row are among them."""
        emb, w = f32(rows, width), f32(width, 4)
        if zero is not None:
            emb[zero] = 0
        nodes = [node("Gather", "emb x", "e"), node("ReduceMean", "e", "m", axes=[1], keepdims=0), node("MatMul", "m W", "y")]
        nodes[1] = node("ReduceMean", "e axes", "m", keepdims=0)
        self.save(nodes, {"emb": emb, "W": w, "axes": np.array([1])}, T.INT64, ("N", 3))
        np.save(self.at("x.npy"), np.concatenate([np.zeros((12, 1), int), RNG.integers(0, rows, (12, 2))], 1))
        np.save(self.at("t.npy"), f32(12, 4))
        return {"emb": emb, "W": w}

    def train(self, *options, optimizer="adamw", epochs=3, model="m.onnx"):
        report = common.report("train", self.at(model), "--data", self.at("x.npy"), "--target", self.at("t.npy"), "--loss",
                               "mse", "--epochs", epochs, "--lr", 0.05, "--optimizer", optimizer, "--batch", 4, "-o",
                               self.at("o.onnx"), *options)
        return report, {t.name: numpy_helper.to_array(t) for t in onnx.load(self.at("o.onnx")).graph.initializer}

    def rows_stay(self, before, after, rows):
        """To the bit; all others have moved."""
        np.testing.assert_array_equal(after["emb"][rows].view(np.int32) << 1, before["emb"][rows].view(np.int32) << 1)
        moved = (after["emb"] != before["emb"]).any(axis=1)
        self.assertFalse(moved[rows].any())
        self.assertGreater(moved.sum(), 3)
        self.assertFalse(np.array_equal(after["W"], before["W"]))

    def test_optimizers(self):
        for optimizer in OPTIMIZERS:
            with self.subTest(optimizer=optimizer):
                before = self.table()
                decay = ("--weight-decay", 0.1, "--decay-all") if optimizer in DECAYING else ()
                report, after = self.train("--hold-rows", "emb:0,5", *decay, "--clip-norm", 0.5, optimizer=optimizer)
                self.rows_stay(before, after, [0, 5])
                self.assertEqual([(h["name"], h["rows"], h["elements"]) for h in report["held"]], [("emb", [0, 5], 32)])

    def test_zeros(self):
        """Zeros of a weight stay, and all that is not zero is trained."""
        for optimizer in OPTIMIZERS:
            with self.subTest(optimizer=optimizer):
                w = masked(48, 48)  # enough elements for states in 8 bits
                self.save([node("MatMul", "x W", "a"), node("Tanh", "a", "b"), node("MatMul", "b V", "y")],
                          {"W": w, "V": f32(48, 4)}, x=("N", 48))
                np.save(self.at("x.npy"), f32(12, 48))
                np.save(self.at("t.npy"), f32(12, 4))
                _, after = self.train("--hold-zeros", "W", "--weight-decay", 0.1, optimizer=optimizer)
                self.assertTrue((after["W"][w == 0] == 0).all())
                self.assertTrue((after["W"][w != 0] != w[w != 0]).mean() > 0.9)

    def test_ways(self):
        for options in (("--accumulate", 3), ("--early-update",), ("--average", "ema:0.9"), ("--weights", "bf16"),
                        ("--accumulate", 2, "--early-update"), ("--memory", "recompute"), ("--float64",),
                        ("--unfreeze-after", "1 emb")):
            with self.subTest(options=options):
                before = self.table(rows=600)
                if "bf16" in options:
                    before["emb"] = (before["emb"].view(np.int32) & ~0xffff).view(np.float32)
                    model = onnx.load(self.at("m.onnx"))
                    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(before["emb"], "emb"))
                    onnx.save(model, self.at("m.onnx"))
                _, after = self.train("--hold-rows", "emb:-1,0", "--weight-decay", 0.1, "--decay-all", *options)
                self.rows_stay(before, after, [0, -1])

    @unittest.skipIf(NO_RANKS, NO_RANKS)
    def test_shard(self):
        """Two ranks, each of which updates half of every parameter."""
        for shard in ("optimizer", "gradients"):
            before = self.table()
            done = subprocess.run([*MPIRUN, "-n", "2", common.PROGRAM, "train", self.at("m.onnx"), "--data", self.at("x.npy"),
                                   "--target", self.at("t.npy"), "--loss", "mse", "--epochs", "3", "--lr", "0.05",
                                   "--optimizer", "adamw", "--batch", "4", "--weight-decay", "0.1", "--decay-all",
                                   "--hold-rows", "emb:0,5", "--shard", shard, "-o", self.at("o.onnx")],
                                  capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
            self.assertEqual(done.returncode, 0, done.stderr)
            after = {t.name: numpy_helper.to_array(t) for t in onnx.load(self.at("o.onnx")).graph.initializer}
            self.rows_stay(before, after, [0, 5])

    def test_sections(self):
        """A table whose gradient comes some rows at a time."""
        rows = 40000
        emb = f32(rows, 64)
        self.save([node("Gather", "emb x", "e"), node("MatMul", "e W", "y")], {"emb": emb, "W": f32(64, 4)}, T.INT64, ("N",))
        ids = np.array([0, 1, 7, 20000, 20001, rows - 1, rows - 2, 5, 9, 11, 12, 13])
        np.save(self.at("x.npy"), ids)
        np.save(self.at("t.npy"), f32(12, 4))
        _, after = self.train("--hold-rows", f"emb:7,20000,{rows - 1}", "--early-update", "--weight-decay", 0.1, epochs=1)
        still = np.flatnonzero((after["emb"] == emb).all(axis=1))
        self.assertEqual(list(still), [7, 20000, rows - 1])

    def test_found(self):
        """A mask that the exporter has folded, by the file's words and by the older exporter's name."""
        w = masked(6, 6)
        layers = [node("Gemm", "x W", "a", transB=1), node("Tanh", "a", "b"), node("MatMul", "b V", "y")]
        signature = "p_w: PARAMETER target='l.weight'\nb_m: BUFFER target='l.mask'\np_v: PARAMETER target='V'\nx: USER_INPUT\n"
        for name, how in (("mul", {"folded": {"mul": "['l.weight', 'l.mask']"}, "signature": signature}),
                          ("onnx::Gemm_12", {})):
            layers[0].input[1] = name
            self.save(layers, {name: w, "V": f32(6, 4)}, x=("N", 6), producer="pytorch", **how)
            np.save(self.at("x.npy"), f32(12, 6))
            np.save(self.at("t.npy"), f32(12, 4))
            _, after = self.train()
            self.assertTrue((after[name][w == 0] == 0).all(), name)
            self.assertTrue((after[name][w != 0] != w[w != 0]).all(), name)
            _, after = self.train("--no-hold", name)
            self.assertTrue((after[name] != w).mean() > 0.9, name)
            traps = {t["kind"]: t for t in common.report("inspect", self.at("m.onnx"))["traps"]}
            self.assertEqual(traps["held_elements"]["initializers"], [name])

    def held(self):
        """Names of what is held."""
        traps = common.report("inspect", self.at("m.onnx"))["traps"]
        return [n for t in traps if t["kind"] == "held_elements" for n in t["initializers"]]

    def test_no_mask(self):
        """Zeros of what is added, and filters that a folded batch normalization has scaled by 0."""
        table = f32(7, 4)
        table[0] = 0
        self.save([node("MatMul", "x W", "a"), node("Add", "a onnx::Add_9", "y")], {"W": f32(4, 4), "onnx::Add_9": table},
                  x=("N", 7, 4), y=("N", 7, 4), producer="pytorch")
        self.assertEqual(self.held(), [])
        w = f32(4, 3, 3, 3)
        w[1] = 0
        for masked_too, bias, held in ((False, "onnx::Conv_6", []), (False, "c.bias", ["onnx::Conv_5"]),
                                       (True, "onnx::Conv_6", ["onnx::Conv_5"])):
            if masked_too:
                w[:, :, 0] = 0
            self.save([node("Conv", f"x onnx::Conv_5 {bias}", "y")], {"onnx::Conv_5": w, bias: f32(4)}, x=("N", 3, 8, 8),
                      y=("N", 4, 6, 6), producer="pytorch")
            self.assertEqual(self.held(), held, bias)

    def test_padding_that_is_told(self):
        """PyTorch's newer exporter writes the call with its row of padding, or without."""
        for call, row in (("", None), (", -1", None), (", 2", 2), (", 2, False, False", 2)):
            before = self.table()  # row 0 is zero, row 2 is not
            model = onnx.load(self.at("m.onnx"))
            entry = model.graph.node[0].metadata_props.add()
            entry.key = "pkg.torch.onnx.fx_node"
            entry.value = "%e : [num_users=1] = call_function[target=torch.ops.aten.embedding.default]" \
                          f"(args = (%p_emb, %x{call}), kwargs = {{}})"
            onnx.save(model, self.at("m.onnx"))
            np.save(self.at("x.npy"), np.tile([0, 2, 3], (12, 1)))
            report, after = self.train(optimizer="sgd")
            self.assertEqual([h["rows"] for h in report["held"]], [] if row is None else [[row]], call)
            moved = (after["emb"] != before["emb"]).any(axis=1)
            self.assertEqual((moved[0], moved[2], moved[3]), (True, row is None, True), call)
        # rows that are looked up by constants are positions
        table = f32(7, 4)
        table[0] = 0
        self.save([node("Gather", "P i", "p"), node("MatMul", "x W", "a"), node("Add", "a p", "y")],
                  {"P": table, "i": np.arange(7), "W": f32(4, 4)}, x=("N", 7, 4), y=("N", 7, 4))
        self.assertEqual(self.held(), [])

    def test_padding(self):
        before = self.table()
        report, after = self.train()
        self.rows_stay(before, after, [0])
        self.assertEqual(report["held"][0]["rows"], [0])
        _, after = self.train("--no-hold", "emb")
        self.assertTrue((after["emb"][0] != 0).all())
        # two rows of zeros, and a table that is a weight as well
        before = self.table(zero=[0, 3])
        self.assertEqual(self.train()[0]["held"], [])
        emb = f32(12, 4)
        emb[0] = 0
        self.save([node("Gather", "emb x", "e"), node("Transpose", "emb", "t"), node("MatMul", "e t", "a"),
                   node("MatMul", "a W", "y")], {"emb": emb, "W": f32(12, 4)}, T.INT64, ("N",))
        np.save(self.at("x.npy"), RNG.integers(0, 12, 12))
        self.assertEqual(self.train()[0]["held"], [])

    def test_told(self):
        self.table()
        status, out, err = common.call("train", self.at("m.onnx"), "--data", self.at("x.npy"), "--target", self.at("t.npy"),
                                       "--loss", "mse", "--steps", 1, "-o", self.at("o.onnx"))
        self.assertEqual(status, 0, err)
        self.assertIn("holds 16 elements of 'emb' as they are: row 0 (the row of padding", out)
        self.assertIn("1 trap of the export, which `inspect` explains: held_elements (1)", out)
        for options, words in ((("--hold-rows", "emb:99"), "has 12 rows, there is no row 99"),
                               (("--hold-rows", "emb"), "no list of rows"), (("--hold-rows", "emb:a"), "no list of rows"),
                               (("--hold-rows", "nobody:1"), "fits no initializer"),
                               (("--hold-zeros", "W"), "fits no initializer that is trained and has zeros"),
                               (("--no-hold", "nobody"), "fits no initializer")):
            status, _, err = common.call("train", self.at("m.onnx"), "--data", self.at("x.npy"), "--target",
                                         self.at("t.npy"), "--loss", "mse", "-o", self.at("o.onnx"), *options)
            self.assertEqual(status, 2 if "no list" in words else 1, options)
            self.assertIn(words, err)
            self.assertNotIn("did you mean", err)

    def test_traps(self):
        """A pruned weight, and a bias that was repeated for each row, are told."""
        w = f32(8, 8) * (RNG.random((8, 8)) < 0.5)
        self.save([node("MatMul", "x W", "a"), node("Add", "a b", "y")], {"W": w, "b": np.tile(f32(1, 8), (4, 1))},
                  x=(4, 8), y=(4, 8))
        traps = {t["kind"]: t["initializers"] for t in common.report("inspect", self.at("m.onnx"))["traps"]}
        self.assertEqual(traps, {"sparse_weight": ["W"], "repeated_rows": ["b"]})


if __name__ == "__main__":
    unittest.main()
