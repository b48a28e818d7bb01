# SPDX-License-Identifier: Apache-2.0
"""The Python package, as a wheel installs it: that steps are those of the program, that arrays are not copied, that
what is read are views, checkpoints, scopes, errors, threads and signals."""
import filecmp
import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
import unittest
import weakref

import numpy as np

import invonnx
from invonnx._arrays import Frame, as_array
from invonnx._native import ffi
from onnx import TensorProto, helper, numpy_helper

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
REVNET = os.path.join(ROOT, "examples", "revnet_digits.onnx")
FLOW = os.path.join(ROOT, "examples", "realnvp_moons.onnx")
DROPOUT = os.path.join(ROOT, "tests", "data", "models", "hz_dropout_train_ts17", "model.onnx")
PROGRAM = os.environ.get("INVONNX") or os.path.join(ROOT, "build", "dev", "invonnx")


def text_of(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def digits(n=16, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random((n, 1, 8, 8), dtype=np.float32), rng.integers(0, 10, n)


def revnet(**options):
    return invonnx.load(REVNET).trainer(**{"loss": "cross_entropy", "optimizer": "adamw", "lr": 1e-2, **options})


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def at(self, name):
        return os.path.join(self.folder, name)


class Alone(Case):
    """From Python every process trains alone. Who expects otherwise is told."""

    def test_options_of_ranks(self):
        for name, value in (("sync_bn", True), ("shard", "gradients"), ("world", None), ("world", 4)):
            if value is None:
                revnet(**{name: value})  # the default
                continue
            with self.assertRaisesRegex(TypeError, f"{name}: from Python each process trains alone. Only `mpirun invonnx train`"):
                revnet(**{name: value})

    def test_launched(self):
        code = f"import invonnx; invonnx.load({REVNET!r}).trainer(loss='cross_entropy')"
        for size, told in (("4", True), ("1", False)):
            environment = {**os.environ, "OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": size}
            said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True).stderr
            self.assertEqual("4 processes were started, but from Python each trains" in said, told, said)
            self.assertEqual("<string>:1: UserWarning" in said, told, said)  # where the caller is

    def test_launchers_without_mpi(self):
        """Program and package know them; what one process may have as well is no launcher."""
        np.save(self.at("x.npy"), digits()[0])
        np.save(self.at("y.npy"), digits()[1])
        code = f"import invonnx; invonnx.load({REVNET!r}).trainer(loss='cross_entropy')"
        train = [PROGRAM, "train", REVNET, "--data", self.at("x.npy"), "--target", self.at("y.npy"), "--loss",
                 "cross_entropy", "--dry-run"]
        torch = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
        known = {name: value for name, value in os.environ.items()
                 if not name.startswith(("RANK", "WORLD_SIZE", "LOCAL_RANK", "OMPI_", "PMI", "ACCELERATE_", "HOROVOD_"))}
        for more, name in (({**torch, "TORCHELASTIC_RUN_ID": "none"}, "torchrun"),
                           ({**torch, "TORCHELASTIC_RUN_ID": "none", "ACCELERATE_MIXED_PRECISION": "no"}, "accelerate launch"),
                           ({**torch, "CROSS_RANK": "0"}, "deepspeed"), (torch, "a launcher like torchrun"),
                           ({"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2"}, "horovodrun"),
                           ({"WORLD_SIZE": "2"}, None), ({"RANK": "0", "WORLD_SIZE": "2"}, None),
                           ({**torch, "RANK": "0", "WORLD_SIZE": "1"}, None), ({**torch, "WORLD_SIZE": "x"}, None)):
            for command in ([sys.executable, "-c", code], train):
                done = subprocess.run(command, env={**known, **more}, capture_output=True, text=True, check=True)
                self.assertEqual("mpirun -n 2 invonnx train" in done.stderr, name is not None, (more, done.stderr))
                self.assertIn(name or "", done.stderr)


class Looking(Case):
    def test_says_what_the_program_says(self):
        m = invonnx.load(REVNET)
        self.assertEqual(m.inputs, {"x": ("float", ("N", 1, 8, 8))})
        for command, found in (("inspect", m.inspect()), ("explain", m.explain(batch=4))):
            more = ["--batch", "4"] if command == "explain" else []
            out = subprocess.run([PROGRAM, command, REVNET, "--json", *more], capture_output=True, check=True).stdout
            said = json.loads(out)
            self.assertEqual({k: v for k, v in found.items() if k != "path"},
                             {k: said[k] for k in found if k != "path"})

    def test_plan(self):
        m = invonnx.load(REVNET)
        plan = m.plan(loss="cross_entropy", batch=64, optimizer="adam", budget="3MiB")
        self.assertLessEqual(plan.peak_bytes, 3 << 20)
        self.assertGreater(plan.store_peak_bytes, 3 << 20)
        self.assertLess(plan.try_budget()["peak_bytes"], plan.peak_bytes)
        self.assertIn("blocks", plan.explain())
        picture = plan._repr_html_()
        self.assertTrue(picture.startswith("<svg ") and picture.endswith("</svg>\n"))
        plan.save(self.at("plan.html"))
        self.assertIn("Time against memory", text_of(self.at("plan.html")))
        with self.assertRaises(invonnx.OutOfMemory) as e:
            m.plan(loss="cross_entropy", batch=64, budget=1000)
        self.assertGreater(e.exception.details["needed_bytes"], 1000)

    def test_picture_is_that_of_the_program(self):
        plan = invonnx.load(REVNET).plan(loss="cross_entropy", batch=8)
        plan._heading = REVNET
        subprocess.run([PROGRAM, "plan", REVNET, "--loss", "cross_entropy", "--batch", "8", "--html", self.at("p.svg")],
                       check=True, capture_output=True)
        self.assertEqual(plan.svg(curve=True), text_of(self.at("p.svg")))

    def test_rewrite_reverse_check(self):
        m = invonnx.load(FLOW)
        found = m.rewrite(self.at("rewritten.onnx"))
        self.assertTrue(found["blocks"])
        x = np.random.default_rng(0).standard_normal((7, 2)).astype(np.float32)
        z = m.run(x)
        (name,) = (n for n, a in z.items() if a.shape == (7, 2))
        logdet = [n for n in z if n != name][0]
        back = m.reverse(logdet=logdet).run(z[name])
        np.testing.assert_allclose(next(iter(back.values())), x, atol=1e-4)
        np.testing.assert_array_equal(invonnx.load(self.at("rewritten.onnx")).run(x)[name], z[name])
        self.assertIn("inverses", m.check(x))


    def test_what_the_file_does_not_tell(self):
        """Inputs and outputs of which it tells no shape, and such as are carried along: a model of them is trained."""
        def value(name, kind=TensorProto.FLOAT):
            return helper.make_value_info(name, helper.make_tensor_type_proto(kind, None))

        scores = helper.make_sequence_type_proto(helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(1, [])))
        nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Identity", ["words"], ["said"]),
                 helper.make_node("ZipMap", ["y"], ["scores"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2])]
        graph = helper.make_graph(nodes, "g", [value("words", TensorProto.STRING), value("x")],
                                  [value("y"), value("said", TensorProto.STRING), helper.make_value_info("scores", scores)],
                                  [numpy_helper.from_array(np.ones((4, 3), np.float32), "w")])
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
        with open(self.at("m.onnx"), "wb") as f:
            f.write(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
        m = invonnx.load(self.at("m.onnx"))
        self.assertEqual(m.inputs, {"x": ("float", None)})
        self.assertEqual(m.outputs["y"], ("float", None))
        self.assertIn("x: float)", repr(m))
        with self.assertRaisesRegex(ValueError, "no shape for the input 'x'"):
            m.plan(loss="mse")
        self.assertGreater(m.plan(loss="cross_entropy", inputs={"x": (6, 4)}, target=np.zeros(6, np.int64)).peak_bytes, 0)
        self.assertAlmostEqual(m.trainer(loss="cross_entropy").step(np.ones((6, 4), np.float32), np.arange(6) % 3).loss, np.log(3), places=6)


class Steps(Case):
    def test_losses_are_those_of_the_program(self):
        x, y = digits(48)
        np.save(self.at("x.npy"), x)
        np.save(self.at("y.npy"), y)
        subprocess.run([PROGRAM, "train", REVNET, "--data", self.at("x.npy"), "--target", self.at("y.npy"), "--loss",
                        "cross_entropy", "--optimizer", "adamw", "--lr", "0.01", "--batch", "16", "--no-shuffle",
                        "--schedule", "cosine", "--clip-norm", "1", "--log", self.at("log.jsonl"), "-o",
                        self.at("out.onnx")], check=True, capture_output=True)
        lines = [json.loads(line) for line in text_of(self.at("log.jsonl")).splitlines()]
        losses = [line["loss"] for line in lines if "lr" in line]
        t = revnet(lr=invonnx.Schedule("cosine", 1e-2, total=3), clip_norm=1.0, weight_decay=0.0)
        log = t.fit([(x[i:i + 16], y[i:i + 16]) for i in (0, 16, 32)])
        self.assertEqual(list(log["loss"]), losses)
        self.assertEqual(list(log["step"]), [0, 1, 2])
        t.save(self.at("ours.onnx"))
        self.assertTrue(filecmp.cmp(self.at("ours.onnx"), self.at("out.onnx"), shallow=False))

    def test_nothing_is_copied(self):
        frame = Frame(("x",))
        x = np.arange(24, dtype=np.float32).reshape(4, 6)

        class Tensor:  # as others speak DLPack
            def __dlpack__(self, **options):
                return x.__dlpack__(**options)

            def __dlpack_device__(self):
                return x.__dlpack_device__()

        for given in (x, x[1:3], Tensor()):
            frame.put(0, given)
            self.assertTrue(np.shares_memory(as_array(given), x))
            self.assertEqual(int(ffi.cast("uintptr_t", frame.arrays[0].data)), as_array(given).ctypes.data)
        self.assertFalse(np.shares_memory(as_array(x[:, ::2]), x))
        np.testing.assert_array_equal(as_array(x.astype(">f4")), x)

    def test_tensors_that_numpy_cannot_read(self):
        """NumPy has no bfloat16: the numbers are never taken for others."""
        class Tensor:
            dtype, device = "torch.bfloat16", "cpu"

            def __dlpack__(self, **options):
                raise RuntimeError("Unsupported dtype in DLTensor.")

            def __dlpack_device__(self):
                return 1, 0

            def __array__(self, *args, **options):
                raise TypeError("Got unsupported ScalarType BFloat16")

        with self.assertRaisesRegex(TypeError, r"torch.bfloat16 on cpu.*x.float\(\)"):
            as_array(Tensor())

    def test_a_step_allocates_no_array(self):
        t = revnet()
        x, y = digits(64)
        t.step(x, y)
        tracemalloc.start()
        t.step(x, y)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        self.assertLess(peak, x.nbytes / 2)

    def test_inputs(self):
        t = revnet()
        x, y = digits()
        a = t.step(x.astype(np.float64), y.astype(np.int32))
        b = revnet().step({"x": x}, list(y))
        self.assertEqual(a.loss, b.loss)
        with self.assertRaisesRegex(ValueError, "no input 'z'; it has x"):
            t.step({"x": x, "z": x}, y)
        with self.assertRaisesRegex(invonnx.ShapeError, "'x'"):
            t.step({}, y)
        with self.assertRaisesRegex(TypeError, "complex64"):
            t.step(x.astype(np.complex64), y)
        with self.assertRaises(invonnx.ShapeError):
            t.step(x[:, :, :4], y)
        with self.assertRaises(invonnx.ArgumentError):
            t.step(x, y + 100)

    def test_batches_of_other_sizes(self):
        x, y = digits(40)
        known, other = revnet(tail_batch=8, eval_batch=16, eval_tail=8), revnet()
        for t in (known, other):
            for i in (0, 16, 32):
                t.step(x[i:i + 16], y[i:i + 16])
            t.result = t.evaluate_all([(x[i:i + 16], y[i:i + 16]) for i in (0, 16, 32)])
        self.assertEqual(list(known.log["loss"]), list(other.log["loss"]))
        self.assertEqual(known.result.loss, other.result.loss)
        self.assertEqual(known.result.rows, 40)

    def test_accumulation_and_groups(self):
        x, y = digits(16)
        t = revnet(accumulate=True, optimizer="sgd", groups=[invonnx.Group("stem.*", lr=0.0)])
        t.accumulate(x[:8], y[:8])
        t.accumulate(x[8:], y[8:])
        stem = t.parameters["stem.weight"].copy()
        self.assertGreater(abs(t.gradients()["stem.weight"]).max(), 0)
        self.assertEqual(t.update().weight, 16)
        np.testing.assert_array_equal(t.parameters["stem.weight"], stem)
        t.set_group_lr(0, 1.0)
        t.step(x[:8], y[:8])
        self.assertGreater(abs(t.parameters["stem.weight"] - stem).max(), 0)

    def test_stages(self):
        x, y = digits()
        t = revnet(stages={"stem.*": 1})
        t.step(x, y)
        stem = t.parameters["stem.weight"]
        before = stem.copy()
        t.step(x, y)
        np.testing.assert_array_equal(stem, before)  # the memory that it had
        self.assertGreater(abs(t.parameters["stem.weight"] - before).max(), 0)

    def test_callbacks_end_fit(self):
        t = revnet(callbacks=[lambda trainer, result: trainer.steps == 2])
        self.assertEqual(len(t.fit([digits()] * 5)["loss"]), 2)

    def test_next_batch(self):
        """A batch that has been named is sent while the step in front of it computes, so what is written into it behind
        that comes too late; losses are those of a trainer that sends each with its own step, also of batches of another
        size, whose session is made anew, and of arrays that have to be copied."""
        batches = [digits(8, seed) for seed in range(4)] + [digits(5, 9)]
        turned = [(np.asfortranarray(x), y) for x, y in batches]
        plain = {"device": "sim", "memory": "store", "optimizer": "sgd", "cost": "flops"}
        want = revnet(**plain).fit(batches, epochs=2)["loss"]
        for data in (batches, turned, iter(batches * 2)):
            t = revnet(**plain, send_ahead=True)
            t.fit(data, epochs=1 if iter(data) is data else 2)
            np.testing.assert_array_equal(t.log["loss"], want)
        losses = []
        for late in (False, True):
            t = revnet(**plain, send_ahead=True)
            t.next(*batches[1])  # there is no session yet
            t.step(*batches[0])
            x, y = batches[2][0].copy(), batches[2][1].copy()
            t.next(x, y)
            t.step(*batches[1])
            if late:
                x[:] = 0
            losses.append(t.step(x, y).loss)
        self.assertEqual(losses, [want[2]] * 2)
        # a batch that was named and had no step: its arrays are the caller's again when `fit` has ended, and nobody
        # else's before that
        x, y = batches[2][0].copy(), batches[2][1].copy()
        t = revnet(**plain, send_ahead=True, callbacks=[lambda trainer, result: trainer.steps == 2])
        t.fit([batches[0], batches[1], (x, y)])
        x[:], y[:] = batches[3]
        other = revnet(**plain)
        losses = [other.step(*batches[k]).loss for k in (0, 1, 3)]
        self.assertEqual(t.step(x, y).loss, losses[2])
        x = batches[1][0].copy()
        held = weakref.ref(x)
        t.next(x, batches[1][1])
        t.step(*batches[0])
        del x
        for _ in range(2):
            t.next(*batches[2])
        self.assertIsNotNone(held())
        t.step(*batches[2])
        self.assertIsNone(held())
        t = revnet(send_ahead=True, memory="store")  # on the CPU there is nowhere to send it to
        t.fit(batches)
        np.testing.assert_array_equal(t.log["loss"], revnet(memory="store").fit(batches)["loss"])

    def test_lora(self):
        m = invonnx.load(os.path.join(ROOT, "examples", "gpt_bytes.onnx"))
        found = m.add_lora(["*.qkv.weight", "blocks.*qkv*"], rank=2)
        self.assertTrue(found)
        t = m.trainer(loss="cross_entropy", class_axis=2, optimizer="adam")
        tokens = np.zeros((1, 8), np.int64)
        t.step(tokens, tokens)
        self.assertTrue(all("lora" in name for name in t.optimizer_state))

    def test_head(self):
        """Another number of classes; the rest of the weights is the file's, and trained from a later step on."""
        m = invonnx.load(REVNET)
        said = m.set_head(2, seed=3)
        self.assertEqual((said["classes"], m.outputs["logits"][1][1]), (2, 2))
        with self.assertRaisesRegex(invonnx.ArgumentError, "nosuch"):
            invonnx.load(REVNET).set_head(2, node="nosuch")
        x, y = digits()
        t = m.trainer(loss="cross_entropy", optimizer="adam", lr=1e-2, stages={"*": 2}, cost="flops")
        t.step(x, y % 2)
        stem, head = t.parameters["stem.weight"].copy(), t.parameters["head.weight"].copy()
        self.assertEqual(head.shape[0], 2)
        t.step(x, y % 2)
        np.testing.assert_array_equal(t.parameters["stem.weight"], stem)
        self.assertFalse(np.array_equal(t.parameters["head.weight"], head))
        t.step(x, y % 2)
        self.assertFalse(np.array_equal(t.parameters["stem.weight"], stem))
        t.save(self.at("head.onnx"))
        self.assertEqual(invonnx.load(self.at("head.onnx")).run(x)["logits"].shape, (16, 2))

    def test_adapter_files(self):
        """Adapters go into a file, onto the base, and into its weights, with the outputs of the trained model each time."""
        base = os.path.join(ROOT, "examples", "gpt_bytes.onnx")
        tokens = np.arange(16, dtype=np.int64).reshape(2, 8)
        m = invonnx.load(base)
        plain = m.run(tokens)["logits"]
        m.add_lora(["*.qkv.weight", "blocks.*qkv*"], rank=2)
        t = m.trainer(loss="cross_entropy", class_axis=2, optimizer="adam", lr=0.1, cost="flops")
        for _ in range(2):
            t.step(tokens, tokens)
        t.save(self.at("adapted.onnx"))
        t.save_adapters(self.at("a.onnx_adapter"))
        adapted = invonnx.load(self.at("adapted.onnx"))
        wanted = adapted.run(tokens)["logits"]
        self.assertGreater(np.abs(wanted - plain).max(), 1e-2)
        held = {p["name"] for p in invonnx.read_adapters(self.at("a.onnx_adapter"))["parameters"]}
        self.assertEqual(len(held), 3 * len(adapted.adapters()["adapters"]))
        on_base = invonnx.load(base)
        on_base.load_adapters(self.at("a.onnx_adapter"))
        np.testing.assert_allclose(on_base.run(tokens)["logits"], wanted, rtol=1e-5, atol=1e-5)
        on_base.save_adapters(self.at("b.onnx_adapter"))
        self.assertTrue(filecmp.cmp(self.at("a.onnx_adapter"), self.at("b.onnx_adapter"), shallow=False))
        adapted.merge_adapters()
        with self.assertRaises(invonnx.ArgumentError):
            adapted.save_adapters(self.at("c.onnx_adapter"))
        np.testing.assert_allclose(adapted.run(tokens)["logits"], wanted, rtol=1e-3, atol=1e-3)
        on_base.free_adapters()
        on_base.save(self.at("free.onnx"))
        free = invonnx.load(self.at("free.onnx"))
        self.assertEqual(set(free.inputs) - {"tokens"}, set())
        np.testing.assert_allclose(free.run(tokens)["logits"], plain, rtol=1e-5, atol=1e-5)

    def test_adapters_after_a_merge(self):
        """A merged model has no adapters, takes new ones of another rank, also from a file, and is written without traces
        of the former."""
        x, y = digits()
        m = invonnx.load(REVNET)
        m.add_lora(["head.weight", "stem.weight"])
        m.merge_adapters()
        self.assertEqual(m.adapters(), {"adapters": []})
        with self.assertRaisesRegex(invonnx.ArgumentError, "has no adapters"):
            m.merge_adapters()
        m.add_lora(["head.weight"], rank=3)
        t = m.trainer(loss="cross_entropy", lr=0.1, cost="flops")
        t.step(x, y)
        t.step(x, y)
        t.save(self.at("second.onnx"))
        t.save_adapters(self.at("second.onnx_adapter"))
        of_file = invonnx.load(self.at("second.onnx"))  # the same with adapters that the file has
        wanted = of_file.run(x)["logits"]
        self.assertEqual([each["rank"] for each in of_file.adapters()["adapters"]], [3])
        of_file.free_adapters()
        of_file.load_adapters(self.at("second.onnx_adapter"))
        of_file.merge_adapters()
        of_file.save(self.at("merged.onnx"))
        np.testing.assert_allclose(invonnx.load(self.at("merged.onnx")).run(x)["logits"], wanted, rtol=1e-5, atol=1e-5)
        of_file.load_adapters(self.at("second.onnx_adapter"))
        of_file.save(self.at("twice.onnx"))
        twice = invonnx.load(self.at("twice.onnx"))
        self.assertEqual([each["rank"] for each in twice.adapters()["adapters"]], [3])
        self.assertGreater(np.abs(twice.run(x)["logits"] - wanted).max(), 1e-4)

    def test_trainers_of_before_a_change(self):
        x, y = digits()
        m = invonnx.load(REVNET)
        t = m.trainer(loss="cross_entropy", cost="flops")
        t.step(x, y)
        m.set_head(2)
        for use in (lambda: t.step(x, y), lambda: t.evaluate(x[:8], y[:8]), lambda: t.save(self.at("x.onnx")),
                    lambda: t.parameters):
            with self.assertRaisesRegex(RuntimeError, "head or the adapters"):
                use()
        m.trainer(loss="cross_entropy", cost="flops").step(x, y % 2)

    def test_rates(self):
        """Numbers of NumPy are numbers; a function gives the rate by the step."""
        x, y = digits()
        for lr in (np.float32(0.5), np.array(0.5), lambda step: np.float32(0.5), 0.5):
            t = revnet(lr=lr, cost="flops")
            t.step(x, y)
            self.assertEqual(t.log["lr"].tolist(), [0.5])

    def test_not_finite(self):
        t = revnet()
        x, y = digits()
        x[0] = np.nan
        with self.assertRaisesRegex(invonnx.NumericError, "the data fed"):
            t.step(x, y)
        self.assertEqual(t.steps, 0)


class Views(Case):
    def test_targets_that_miss_entries(self):
        """... do not count where `ignore_index` is given, and are an error where it is not."""
        x, y = np.random.default_rng(2).standard_normal((2, 4, 3)).astype(np.float32)
        y[0], y[1, 2], y[2, 0] = np.nan, np.nan, -9
        path = self.at("m.onnx")
        graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"])], "g",
                                  [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
                                  [numpy_helper.from_array(np.float32([1, 2, 3]), "w")])
        with open(path, "wb") as f:
            f.write(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
        model = invonnx.load(path)
        counts = ~np.isnan(y) & (y != -9)
        self.assertAlmostEqual(model.trainer(loss="mse", lr=0.0, ignore_index=-9).step(x, y).loss,
                               float(np.mean((x * np.float32([1, 2, 3]) - y)[counts] ** 2)), places=5)
        with self.assertRaisesRegex(invonnx.NumericError, "no label of the batch counts"):
            model.trainer(loss="mse", lr=0.0, ignore_index=-9).step(x, np.full_like(y, np.nan))
        with self.assertRaisesRegex(invonnx.NumericError, "the target"):
            model.trainer(loss="mse", lr=0.0).step(x, y)

    def test_gradients(self):
        t = revnet(optimizer=None)
        x, y = digits()
        t.grad(x, y)
        gradients = t.gradients()
        g = gradients["stem.weight"]
        self.assertFalse(g.flags.writeable or g.flags.owndata)
        w, e = t.parameters["stem.weight"], 1e-2
        w[0, 0, 1, 1] += e
        more = t.grad(x, y).loss
        w[0, 0, 1, 1] -= 2 * e
        less = t.grad(x, y).loss
        w[0, 0, 1, 1] += e
        t.grad(x, y)
        self.assertAlmostEqual((more - less) / (2 * e), float(gradients["stem.weight"][0, 0, 1, 1]), places=3)
        with self.assertRaises(KeyError):
            gradients["no such"]
        with self.assertRaisesRegex(RuntimeError, "accumulate"):
            trained = revnet()
            trained.step(x, y)
            trained.gradients()

    def test_views_outlive_their_trainer(self):
        t = revnet(optimizer=None, memory="recompute")
        t.grad(*digits())
        g = t.gradients()["stem.weight"]
        kept = g.copy()
        with t.modes("store"):
            np.testing.assert_array_equal(g, kept)
        del t
        np.testing.assert_array_equal(g, kept)

    def test_parameters(self):
        t = revnet()
        t.step(*digits())
        t.parameters["stem.weight"][:] = 0.5
        self.assertTrue((t.parameters["stem.weight"] == 0.5).all())
        t.parameters["stem.weight"] = np.float64(0.25)
        t.save(self.at("m.onnx"))
        again = invonnx.load(self.at("m.onnx")).trainer(loss="cross_entropy")
        again.open(*digits())
        self.assertTrue((again.parameters["stem.weight"] == 0.25).all())

    def test_halves(self):
        x, y = digits()
        t = revnet(loss="outside", optimizer=None)
        out = t.forward(x)["logits"].astype(np.float64)
        p = np.exp(out - out.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        p[np.arange(16), y] -= 1
        t.backward({"logits": p / 16})
        whole = revnet(optimizer=None)
        whole.grad(x, y)
        for name, g in whole.gradients().items():
            np.testing.assert_allclose(t.gradients()[name], g, rtol=1e-3, atol=1e-5)


class Going(Case):
    def test_resumed_bit_by_bit(self):
        x, y = digits(16)
        t = revnet(average=True, average_decay=0.5)
        for _ in range(3):
            t.step(x, y)
        t.save_state(self.at("state"), note="after three")
        for _ in range(3):
            t.step(x, y)
        for again in (revnet(average=True, average_decay=0.5), t):
            self.assertEqual(again.load_state(self.at("state")), "after three")
            losses = [again.step(x, y).loss for _ in range(3)]
            self.assertEqual(losses, list(t.log["loss"][3:6]))
        with t.averages():
            averaged = t.parameters["stem.weight"].copy()
        self.assertGreater(abs(averaged - t.parameters["stem.weight"]).max(), 0)
        with self.assertRaises(invonnx.FileError):
            t.load_state(self.at("nothing"))
        with self.assertRaises(invonnx.ArgumentError):
            other = revnet(optimizer="lion")
            other.load_state(self.at("state"))
            other.step(x, y)

    def test_modes_within_a_scope(self):
        a, b = (invonnx.load(DROPOUT).trainer(loss="mse", optimizer="sgd", memory="recompute") for _ in range(2))
        (_, (_, shape)), = a.model.inputs.items()
        (_, (_, out)), = a.model.outputs.items()
        rng = np.random.default_rng(0)
        x, y = (rng.standard_normal([d if isinstance(d, int) else 4 for d in s]).astype(np.float32)
                for s in (shape, out))
        for _ in range(2):
            first = a.step(x, y).loss
            self.assertEqual(first, b.step(x, y).loss)
            peak = b.report()["planned_peak_bytes"]
            with b.modes("store"):
                self.assertGreaterEqual(b.report()["planned_peak_bytes"], peak)
                self.assertEqual(a.step(x, y).loss, b.step(x, y).loss)
            self.assertEqual(b.report()["planned_peak_bytes"], peak)

    def test_modes_said_within_a_scope(self):
        """They end with it, before the first batch and behind it."""
        for opened in (False, True):
            t, x, y = revnet(optimizer="sgd", memory="store", cost="flops", threads=1), *digits()
            if opened:
                t.open(x, y)
            with t.modes("recompute"):
                t.set_modes("auto")
            t.step(x, y)
            self.assertEqual(t.report()["memory"], "store")


class Around(Case):
    def test_errors(self):
        with self.assertRaises(invonnx.FileError):
            invonnx.load(self.at("nothing.onnx"))
        with open(self.at("bad.onnx"), "wb") as f:
            f.write(b"\xff" * 40)
        with self.assertRaises(invonnx.FormatError) as e:
            invonnx.load(self.at("bad.onnx"))
        self.assertEqual(e.exception.status, "E_PARSE")
        with self.assertRaisesRegex(ValueError, "loss is 'msee': there are"):
            invonnx.load(REVNET).plan(loss="msee")
        with self.assertRaisesRegex(TypeError, "no option 'bugdet'"):
            invonnx.load(REVNET).plan(loss="mse", bugdet=1)
        with self.assertRaisesRegex(TypeError, "no option 'bugdet'"):
            invonnx.load(REVNET).trainer(loss="mse", bugdet=1)  # and not in the first step
        with self.assertRaisesRegex(ValueError, "512MiB"):
            invonnx.load(REVNET).plan(loss="mse", budget="much")
        with self.assertRaisesRegex(RuntimeError, "no session yet"):
            revnet().report()

    def test_what_a_callback_raises(self):
        def progress(stage, share):
            raise LookupError(stage)

        with self.assertRaises(LookupError):
            invonnx.load(REVNET, progress=progress).plan(loss="cross_entropy", batch=8)

    def test_remarks_are_logged(self):
        with self.assertLogs("invonnx", logging.INFO) as caught:
            invonnx.load(os.path.join(ROOT, "examples", "gpt_bytes.onnx")).plan(loss="cross_entropy", batch=1)
        self.assertIn("classes are along axis", "".join(caught.output))

    def test_other_threads_go_on(self):
        """While a plan is searched for, this thread counts: it could not with the GIL taken."""
        m = invonnx.load(REVNET)
        ended = threading.Event()
        thread = threading.Thread(target=lambda: (m.plan(loss="cross_entropy", batch=64, budget="3MiB", effort=20),
                                                  ended.set()))
        count = 0
        thread.start()
        while not ended.is_set():
            time.sleep(0.001)
            count += 1
        thread.join()
        self.assertGreater(count, 10)

    def test_threads_take_turns(self):
        t = revnet(threads=1)
        x, y = digits(4)
        t.step(x, y)
        losses = []
        threads = [threading.Thread(target=lambda: losses.extend(t.evaluate(x, y).loss for _ in range(20)))
                   for _ in range(3)]
        first = t.evaluate(x, y).loss
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(losses, 60 * [first])

    def test_interrupt_ends_a_search(self):
        code = ("import invonnx, sys\nm = invonnx.load(sys.argv[1])\nprint('go', flush=True)\n"
                "try: m.plan(loss='cross_entropy', batch=64, budget='2500KiB', effort=1000)\n"
                "except KeyboardInterrupt: print('stopped')\n"
                "print(m.plan(loss='cross_entropy', batch=4).peak_bytes > 0)\n")
        child = subprocess.Popen([sys.executable, "-c", code, REVNET], stdout=subprocess.PIPE, text=True)
        self.assertEqual(child.stdout.readline(), "go\n")
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        self.assertEqual(child.communicate()[0], "stopped\nTrue\n")
        self.assertEqual(child.returncode, 0)

    def test_schedules(self):
        s = invonnx.Schedule("linear", 1.0, total=10, warmup=1, min_lr=0.0)
        self.assertEqual([s(0), s(1), s(10)], [0.5, 1.0, 0.0])

    def test_version(self):
        header = text_of(os.path.join(ROOT, "include", "invonnx", "invonnx.h"))
        self.assertEqual(".".join(re.findall(r"VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header)), invonnx.__version__)


if __name__ == "__main__":
    unittest.main()
