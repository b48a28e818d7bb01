# SPDX-License-Identifier: Apache-2.0
"""--weights bf16: a table that is the head, too, products on either side and a convolution train as with float32 from
the same numbers, in all modes with equal bits; what is written has those numbers in float32; a run goes on with equal
bits. Fails if an operator reads the wrong half, or if small parameters are rounded."""
import os
import shutil
import subprocess
import tempfile
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import common

WORDS, WIDTH, LENGTH = 128, 64, 64


def rounded(x):
    """To the nearest bfloat16."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000).astype(np.uint32).view(np.float32)


def model(path):
    rng, held = np.random.default_rng(0), []

    def weight(name, *shape):
        held.append(numpy_helper.from_array(rounded(rng.standard_normal(shape) / 8), name))
        return name

    nodes = [helper.make_node("Gather", [weight("table", WORDS, WIDTH), "x"], ["e"]),
             helper.make_node("MatMul", [weight("mix", LENGTH, LENGTH), "e"], ["m"]),
             helper.make_node("Transpose", ["m"], ["t"], perm=[0, 2, 1]),
             helper.make_node("Conv", ["t", weight("filter", WIDTH, WIDTH, 3), weight("bias", WIDTH)], ["c"], pads=[1, 1]),
             helper.make_node("Relu", ["c"], ["r"]),
             helper.make_node("Transpose", ["r"], ["s"], perm=[0, 2, 1]),
             helper.make_node("Transpose", ["table"], ["head"], perm=[1, 0]),
             helper.make_node("MatMul", ["s", "head"], ["y"])]
    graph = helper.make_graph(nodes, "small", [helper.make_tensor_value_info("x", TensorProto.INT64, ["N", LENGTH])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", LENGTH, WORDS])], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


class Weights(unittest.TestCase):
    def setUp(self):
        self.top = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.top)
        rng = np.random.default_rng(1)
        np.save(self.at("x.npy"), rng.integers(0, WORDS, (10, LENGTH)))
        np.save(self.at("y.npy"), rng.integers(0, WORDS, (10, LENGTH)))
        model(self.at("m.onnx"))

    def at(self, name):
        return os.path.join(self.top, name)

    def command(self, out, *more):
        return ("train", self.at("m.onnx"), "--data", self.at("x.npy"), "--target", self.at("y.npy"), "--loss",
                "cross_entropy", "--class-axis", "2", "--batch", "4", "--seed", "3", "-o", self.at(out), *more)

    def losses(self, out, *more):
        return [e["train_loss"] for e in common.report(*self.command(out, "--json", *more))["epochs"]]

    def weights(self, name):
        return {t.name: numpy_helper.to_array(t) for t in onnx.load(self.at(name)).graph.initializer}

    def test_follows_float32(self):
        for optimizer, lr in ("sgd", "0.01"), ("adamw8", "1e-4"):
            how = "--optimizer", optimizer, "--lr", lr, "--epochs", "5"
            exact = self.losses("exact.onnx", *how)
            small = self.losses("small.onnx", *how, "--weights", "bf16")
            self.assertLess(exact[-1], exact[0])
            np.testing.assert_allclose(small, exact, rtol=2e-3)
            self.assertLess(abs(small[0] - exact[0]), 2e-4 * exact[0])
        before, after = self.weights("m.onnx"), self.weights("small.onnx")
        for name in "table", "mix", "filter":
            self.assertEqual(after[name].dtype, np.float32)
            np.testing.assert_array_equal(after[name], rounded(after[name]))
            self.assertGreater(np.mean(after[name] != before[name]), 0.01)
        self.assertTrue((after["bias"] != rounded(after["bias"])).any())

    def test_modes_have_equal_bits(self):
        seen = set()
        for mode in "store", "recompute", "invert", "auto":
            for more in [], ["--early-update"]:
                if mode == "invert" and more:
                    continue  # guards and early updates exclude each other
                self.losses("out.onnx", "--epochs", "2", "--memory", mode, "--weights", "bf16", *more)
                with open(self.at("out.onnx"), "rb") as f:
                    seen.add(f.read())
        self.assertEqual(len(seen), 1)

    def test_accumulation_and_resumed(self):
        how = "--epochs", "3", "--optimizer", "adamw8", "--weights", "bf16", "--accumulate", "2"
        self.losses("whole.onnx", *how)
        self.losses("part.onnx", *how, "--checkpoint", self.at("ck"), "--every", "2")
        for name in os.listdir(self.at("ck")):
            if name.startswith("step-") and not name.startswith("step-000000002"):
                os.unlink(os.path.join(self.at("ck"), name))
        os.unlink(self.at("part.onnx"))
        self.losses("part.onnx", *how, "--checkpoint", self.at("ck"), "--resume")
        with open(self.at("whole.onnx"), "rb") as f, open(self.at("part.onnx"), "rb") as g:
            self.assertEqual(f.read(), g.read())

    def test_large_tables_resumed(self):
        """A table that is updated some rows at a time, which parts of it and of its states are values by themselves for."""
        words = 36000
        rng = np.random.default_rng(2)
        held = [numpy_helper.from_array((rng.standard_normal((words, WIDTH)) / 8).astype(np.float32), "table")]
        nodes = [helper.make_node("Gather", ["table", "x"], ["e"]), helper.make_node("Tanh", ["e"], ["t"]),
                 helper.make_node("Transpose", ["table"], ["head"], perm=[1, 0]),
                 helper.make_node("MatMul", ["t", "head"], ["y"])]
        graph = helper.make_graph(nodes, "large", [helper.make_tensor_value_info("x", TensorProto.INT64, ["N", 16])],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 16, words])], held)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), self.at("m.onnx"))
        for name in "xy":
            np.save(self.at(f"{name}.npy"), rng.integers(0, words, (10, 16)))
        for more in ["--optimizer", "adamw8", "--weights", "bf16"], ["--optimizer", "momentum", "--accumulate", "2"]:
            shutil.rmtree(self.at("ck"), ignore_errors=True)
            how = [*more, "--early-update", "--lr", "0.01"]
            whole = common.report(*self.command("whole.onnx", *how, "--steps", "4"))
            self.losses("part.onnx", *how, "--steps", "2", "--checkpoint", self.at("ck"))
            self.losses("part.onnx", *how, "--steps", "4", "--checkpoint", self.at("ck"), "--resume")
            with open(self.at("whole.onnx"), "rb") as f, open(self.at("part.onnx"), "rb") as g:
                self.assertEqual(f.read(), g.read())
            late = common.report("plan", self.at("m.onnx"), "--loss", "cross_entropy", "--class-axis", "2", "--batch", "4",
                                 *[o for o in how if o not in ("--early-update", "--lr", "0.01")])
            self.assertLess(whole["planned_peak_bytes"], late["planned_peak_bytes"])

    def test_refused(self):
        for more, words in ((["--optimizer", "muon"], "the optimizer of 'table'"), (["--float64"], "--float64"),
                            (["--average", "ema:0.9"], "--average"), (["--device", "sim"], "--device cpu")):
            status, _, err = common.call(*self.command("out.onnx", "--weights", "bf16", *more))
            self.assertIn(status, (1, 2), err)
            self.assertIn("--weights", err)
            self.assertIn(words, err)
            self.assertFalse(os.path.exists(self.at("out.onnx")))


if __name__ == "__main__":
    unittest.main()
