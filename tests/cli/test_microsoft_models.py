# SPDX-License-Identifier: Apache-2.0
"""Models of onnxruntime's operators: an encoder as its optimizers join it, a decoder as its exporter of language models
writes it. Gradients are those of the same model without such operators, in float64 and in all memory modes; what is
written has the same nodes, and runs in onnxruntime."""
import os
import tempfile
import unittest

import numpy as np
import onnx
import onnxruntime
from common import call, report
from microsoft import Case, by_onnxruntime, feed_options
from microsoft_models import HEADS, KV, LAYERS, LENGTH, WIDTH, WORDS, D, decoder, encoder
from onnx import numpy_helper

ROWS = 8
SPELLED = 1e-6  # spelled models have roots of 2 and 8 as numbers in float32


class Model(Case):
    """One model: self.feeds, self.target and options of the loss."""

    def save(self, name, model):
        path = self.at(name)
        onnx.save(model, path)
        return path

    def given(self, option):
        options = feed_options(self.folder, self.feeds)
        np.save(self.at("target.npy"), self.target)
        return [option if o == "--feed" else o for o in options] + ["--target", self.at("target.npy"), *self.loss]

    def gradients(self, path, *options):
        out = tempfile.mkdtemp(dir=self.folder)
        report("grad", path, *self.given("--feed"), "--dump", out, *options)
        return {n[len("grad_"):-len(".npy")]: np.load(os.path.join(out, n)) for n in os.listdir(out) if n.startswith("grad_")}

    def same_gradients(self, got, want, rtol=1e-9):
        self.assertEqual(set(got), set(want))
        for name, values in want.items():
            with self.subTest(name):
                np.testing.assert_allclose(got[name], values, rtol=rtol, atol=rtol * max(1e-3, np.abs(values).max()))

    def in_all_modes(self, path):
        """And on the devices that look for what a GPU would not have, or not forgive."""
        want = self.gradients(path, "--memory", "store", "--float64")
        for mode in ("recompute", "invert", "auto"):
            self.same_gradients(self.gradients(path, "--memory", mode, "--float64"), want, rtol=1e-6)
        for device in ("checked", "sim"):
            self.same_gradients(self.gradients(path, "--device", device, "--float64"), want, rtol=1e-6)

    def trains(self, path):
        """It learns, and what is written has the file's nodes and computes in onnxruntime what it computes here."""
        out = self.at("trained.onnx")
        done = report("train", path, *self.given("--data"), "--epochs", 30, "--batch", 4, "--optimizer", "adam", "--lr", 0.01,
                      "-o", out)
        losses = [e["train_loss"] for e in done["epochs"]]
        self.assertLess(losses[-1], 0.7 * losses[0])
        before, after = onnx.load(path), onnx.load(out)
        self.assertEqual([n.SerializeToString() for n in before.graph.node], [n.SerializeToString() for n in after.graph.node])
        self.assertEqual(list(before.opset_import), list(after.opset_import))
        self.runs(out)

    def runs(self, path):
        want, got = by_onnxruntime(path, self.feeds), self.run_model(path, self.feeds)
        for name, values in want.items():
            np.testing.assert_allclose(got[name], values, rtol=1e-4, atol=1e-4)

    def rewritten(self, path):
        out = self.at("rewritten.onnx")
        self.assertEqual(call("rewrite", path, "-o", out)[0], 0)
        self.assertEqual([n.SerializeToString() for n in onnx.load(path).graph.node if n.domain and n.op_type != "MatMulNBits"],
                         [n.SerializeToString() for n in self.all_nodes(out) if n.domain == "com.microsoft" and
                          n.op_type != "MatMulNBits"])
        self.runs(out)

    @staticmethod
    def all_nodes(path):
        """In the order of the file, calls of blocks opened up."""
        model = onnx.load(path)
        functions = {(f.domain, f.name): f for f in model.functions}

        def opened(nodes):
            for n in nodes:
                called = functions.get((n.domain, n.op_type))
                yield from opened(called.node) if called else [n]

        return list(opened(model.graph.node))


class Encoder(Model):
    def setUp(self):
        super().setUp()
        lengths = self.rng.integers(3, LENGTH + 1, ROWS)
        self.feeds = {"ids": self.rng.integers(0, WORDS, (ROWS, LENGTH)), "segments": self.rng.integers(0, 2, (ROWS, LENGTH)),
                      "mask": (np.arange(LENGTH) < lengths[:, None]).astype(np.int64)}
        self.target = self.rng.integers(0, 3, ROWS)
        self.loss = ["--loss", "cross_entropy"]
        self.spelled = self.save("spelled.onnx", encoder(False))

    def test_joined(self):
        """As onnxruntime.transformers.optimizer writes it."""
        joined = self.save("joined.onnx", encoder(True))
        want, got = self.gradients(self.spelled, "--float64"), self.gradients(joined, "--float64")
        for k in range(LAYERS):
            for part in ("weight", "bias"):
                want[f"{k}.qkv.{part}"] = np.concatenate(
                    [want.pop(f"{k}.{name}.{part}") for name in ("query", "key", "value")], axis=-1)
        self.same_gradients(got, want, SPELLED)
        self.in_all_modes(joined)
        self.trains(joined)
        self.rewritten(joined)

    def test_optimized(self):
        """As onnxruntime's own optimizers write it, which are part of its library."""
        path = self.at("optimized.onnx")
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = path
        onnxruntime.InferenceSession(self.spelled, options, providers=["CPUExecutionProvider"])
        used = {n.op_type for n in onnx.load(path).graph.node if n.domain == "com.microsoft"}
        self.assertLessEqual({"SkipLayerNormalization", "BiasGelu"}, used)
        got, want = self.gradients(path, "--float64"), self.gradients(self.spelled, "--float64")
        got["places_table"] = got.pop("Gather_6_out")[0]  # looked up by the optimizer
        self.same_gradients(got, want, SPELLED)
        self.trains(path)

    def test_optimized_for_transformers(self):
        from onnxruntime.transformers import optimizer
        path = self.at("optimized.onnx")
        optimizer.optimize_model(self.spelled, model_type="bert", num_heads=HEADS, hidden_size=WIDTH,
                                 opt_level=0).save_model_to_file(path)
        used = {n.op_type for n in onnx.load(path).graph.node if n.domain == "com.microsoft"}
        self.assertLessEqual({"Attention", "SkipLayerNormalization", "BiasGelu"}, used)
        self.in_all_modes(path)
        self.trains(path)


class Decoder(Model):
    def setUp(self):
        super().setUp()
        self.feeds = {"input_ids": self.rng.integers(0, WORDS, (ROWS, 7)), "attention_mask": np.ones((ROWS, 7), np.int64)}
        for k in range(LAYERS):
            for name in ("key", "value"):
                self.feeds[f"past_key_values.{k}.{name}"] = np.zeros((ROWS, KV, 0, D), np.float32)
        self.target = self.rng.integers(0, WORDS, (ROWS, 7))
        self.loss = ["--loss", "cross_entropy", "--loss-output", "logits", "--class-axis", "2"]
        self.bits = self.save("bits.onnx", decoder(True))

    def test_packed_weights(self):
        """Gradients are those of the model with the numbers that the bits stand for, which are not trained."""
        floating = self.save("float.onnx", decoder(False))
        got, want = self.gradients(self.bits, "--float64"), self.gradients(floating, "--float64")
        self.same_gradients(got, {name: want[name] for name in got})
        self.assertEqual(set(got), {"lm_head.weight", "0.norm1"} | {f"{k}.norm{i}" for k in range(LAYERS) for i in (2, 3)})
        self.assertLessEqual({"0.q.weight", "1.down.weight", "embed.weight"}, set(want))
        self.in_all_modes(self.bits)
        self.in_all_modes(floating)

    def test_trains(self):
        self.trains(self.bits)
        before, after = (onnx.load(self.at(name)) for name in ("bits.onnx", "trained.onnx"))
        changed = {a.name for a, b in zip(before.graph.initializer, after.graph.initializer)
                   if not np.array_equal(numpy_helper.to_array(a), numpy_helper.to_array(b))}
        self.assertEqual(changed, {"lm_head.weight", "0.norm1"} | {f"{k}.norm{i}" for k in range(LAYERS) for i in (2, 3)})

    def test_trains_in_floating_point(self):
        self.trains(self.save("float.onnx", decoder(False)))

    def test_without_data(self):
        """The length of what came before is open, and taken for 0."""
        self.rewritten(self.bits)
        plan = report("plan", self.bits, *self.loss, "--batch", 4)
        self.assertGreater(plan["planned_peak_bytes"], 0)

    def test_short_sequences(self):
        """Labels that do not count, where a sequence has ended: gradients are those of the sequence by itself."""
        lengths = np.array([3, 7])
        for name in self.feeds:
            self.feeds[name] = self.feeds[name][:2]
        self.feeds["attention_mask"] = (np.arange(7) < lengths[:, None]).astype(np.int64)
        self.target = np.where(self.feeds["attention_mask"] > 0, self.target[:2], -100)
        self.loss += ["--ignore-index", "-100"]
        both = self.gradients(self.bits, "--float64")
        feeds, target, total = self.feeds, self.target, {}
        for row, n in enumerate(lengths):
            self.feeds = {name: v[row:row + 1] if name.startswith("past") else v[row:row + 1, :n] for name, v in feeds.items()}
            self.target = target[row:row + 1, :n]
            for name, g in self.gradients(self.bits, "--float64").items():
                total[name] = total.get(name, 0) + g * n / lengths.sum()
        self.same_gradients(both, total)


if __name__ == "__main__":
    unittest.main()
