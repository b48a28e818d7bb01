# SPDX-License-Identifier: Apache-2.0
"""Options of the package: whatever kind of value one is given, an error names the option. Fails if a value goes on to
where only its type is told, if a spelling of the command line is not taken, or if it means something else there."""
import filecmp
import os
import re
import subprocess
import unittest
import warnings

import numpy as np

import invonnx
from invonnx import _options, _other_words
from test_package import PROGRAM, REVNET, ROOT, Case, digits, revnet, text_of

#: What nobody means, or what no number of C holds.
ODD = ("", "x", "1", "1e3", "\0", "\ud800", b"x", -1, 2**31, 2**63, 2**64, -2**63 - 1, 10**400, 0.5, -0.5, 1e308, float("nan"),
       float("inf"), float("-inf"), True, False, [], [1], ["x"], [None], [[]], (), (1, 2), {}, {"x": 1}, {1: "x"}, {"x": "store"},
       {"x": []}, set(), object(), lambda: 0, type, 1j, np.float32(0.5), np.int8(-1), np.zeros(3), np.zeros(0), np.array("x"),
       range(3), iter([1]), invonnx.Group("*"), [invonnx.Group(1)], [invonnx.Group("*", lr="x")],
       [invonnx.Group("*", weight_decay=[])], [invonnx.Group("*", optimizer=3)], ["*:lr=x"], ["*"])
NAMES = sorted({*_options._ENUMS, *_options._LISTS, *_options._TEXTS, *_options._OF_THEIR_OWN, *_options._OF_RANKS, "cost", "average", "lr", "callbacks",
                "tail_batch", "eval_batch", "eval_tail",
                *(n for n, f in _options._FIELDS.items() if n not in _options._HIDDEN and f.type.kind == "primitive")})


def revnet_goes_on(options, state, x, y):
    """The loss of the step behind a state."""
    t = revnet(**options)
    t.load_state(state)
    return t.step(x, y).loss


class Options(Case):
    def test_every_option_with_every_kind(self):
        model, n = invonnx.load(REVNET), 0
        for name in NAMES:
            for value in ODD:
                try:
                    model.trainer(**{"loss": "cross_entropy", "optimizer": "adamw", name: value})
                except (TypeError, ValueError) as error:
                    self.assertIn(name, str(error), (name, value))
                    n += 1
        self.assertGreater(n, 30 * len(NAMES) / 2)

    def test_other_arguments(self):
        """Those of what changes a model, of schedules and of plans."""
        model = invonnx.load(REVNET)
        plan = model.plan(loss="cross_entropy", batch=2, cost="flops")
        t = revnet(cost="flops")
        calls = {
            "rank": lambda v: model.add_lora(["stem.weight"], rank=v), "alpha": lambda v: model.add_lora(["stem.weight"], alpha=v),
            "dropout": lambda v: model.add_lora(["stem.weight"], dropout=v), "targets": lambda v: model.add_lora(v),
            "classes": lambda v: model.set_head(v), "node": lambda v: model.set_head(2, node=v),
            "batch": lambda v: model.plan(loss="mse", batch=v), "inputs": lambda v: model.plan(loss="mse", inputs=v),
            "given": lambda v: model.reverse(given=v), "layout": lambda v: model.save(self.at("x"), layout=v),
            "budget": lambda v: plan.try_budget(v), "points": lambda v: plan.curve(v), "path": lambda v: invonnx.load(v),
            "epochs": lambda v: t.fit([digits()], epochs=v), "data": lambda v: t.fit(v), "lr": lambda v: t.step(*digits(), lr=v),
            "total": lambda v: invonnx.Schedule("cosine", 1.0, total=v), "warmup": lambda v: invonnx.Schedule("constant", 1.0, warmup=v),
            "every": lambda v: invonnx.Schedule("step", 1.0, every=v), "schedule": lambda v: invonnx.Schedule(v, 1.0),
            "min_lr": lambda v: invonnx.Schedule("constant", 1.0, min_lr=v), "rules": lambda v: t.set_modes(rules=v),
            "progress": lambda v: invonnx.load(REVNET, progress=v)}
        t.step(*digits())
        each_object = object()
        for name, call in calls.items():
            for value in ("no", each_object, 1j, [each_object]):
                if (name, value) in (("path", "no"), ("rules", "no")) or (name == "data" and value == [each_object]):
                    continue  # a file, a rule, or a batch
                with self.subTest(name=name, value=value), self.assertRaises((TypeError, ValueError, invonnx.Error)) as e:
                    call(value)
                self.assertRegex(str(e.exception), {"rules": "modes"}.get(name, name), (name, value))

    def test_spellings_of_the_program(self):
        for name, value in (("average", "ema:0.9"), ("average", "swa:2:3"), ("average", "swa"), ("weights", "bf16"),
                            ("weights", "f32"), ("budget", "512MiB"), ("loss", "cross-entropy"), ("precision", "full"),
                            ("modes", ["block:*=recompute"]), ("groups", ["*.bias:lr=0.1,weight-decay=0"]), ("accumulate", 4)):
            revnet(**{"optimizer": "adamw", name: value})
        self.assertEqual(invonnx.Schedule("one-cycle", 1.0, total=10), invonnx.Schedule("one-cycle", 1.0, total=10))
        self.assertEqual(invonnx.Schedule("linear", 1.0, total=100, warmup="10%")(4), 5 / 11)
        for value in ("ema", "ema:1", "ema:x", "swa:x", "swa:1:2:3", "mean"):
            with self.assertRaisesRegex(ValueError, "average is .*ema:0.999"):
                revnet(average=value)
        with self.assertRaisesRegex(ValueError, "average_decay"):
            revnet(average="ema:0.9", average_decay=0.5)

    def test_averages_that_are_no_mean(self):
        """A mean that never begins is refused where the number of steps is known, and told where it is asked for else."""
        x, y = digits()
        for value, total in (("swa:1000", 5), ("swa:5", 5), ("swa:3:3", 5), ("swa:0:6", 5)):
            with self.assertRaisesRegex(ValueError, f"average: .* Schedule of {total} steps"):
                revnet(average=value, lr=invonnx.Schedule("cosine", 0.1, total=total))
        for value in "swa:4", "swa:3:2", "swa", "ema:0.9":
            revnet(average=value, lr=invonnx.Schedule("cosine", 0.1, total=5))
        t = revnet(average="swa:2:2")
        for begun in False, True:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                t.fit([(x, y)] * 2)
                with t.averages():
                    t.evaluate(x, y)
            said = [w for w in caught if "averages are the weights of a single step" in str(w.message)]
            self.assertEqual([os.path.basename(w.filename) for w in said], [] if begun else ["test_options.py"] * 2)

    def test_accumulate_is_that_of_the_program(self):
        """Steps of several batches, and one of what is left at the end of an epoch, give the program's file."""
        x, y = digits(40)
        np.save(self.at("x.npy"), x)
        np.save(self.at("y.npy"), y)
        subprocess.run([PROGRAM, "train", REVNET, "--data", self.at("x.npy"), "--target", self.at("y.npy"), "--loss", "cross_entropy",
                        "--optimizer", "adam", "--lr", "0.01", "--batch", "8", "--no-shuffle", "--accumulate", "2", "--epochs", "2",
                        "--memory", "store", "--average", "ema:0.9", "-o", self.at("out.onnx")], check=True, capture_output=True)
        t = revnet(optimizer="adam", memory="store", accumulate=2, average="ema:0.9")
        log = t.fit([(x[i:i + 8], y[i:i + 8]) for i in range(0, 40, 8)], epochs=2)
        self.assertEqual(len(log["loss"]), 6)
        with t.averages():
            t.save(self.at("ours.onnx"))
        self.assertTrue(filecmp.cmp(self.at("ours.onnx"), self.at("out.onnx"), shallow=False))

    def test_what_trained_nothing_in_silence(self):
        x, y = digits()
        t = revnet(cost="flops")
        with self.assertRaisesRegex(ValueError, "epochs is 3.*list or a DataLoader"):
            t.fit(((x, y) for _ in range(2)), epochs=3)
        for data in ([], iter([])):
            with self.assertRaisesRegex(ValueError, "no batches in epoch 1"):
                t.fit(data)
        with self.assertRaisesRegex(ValueError, "no batches"):
            t.evaluate_all([])
        self.assertEqual(len(t.fit(((x, y) for _ in range(2)))["loss"]), 2)
        for kind in ("linear", "cosine", "polynomial", "one_cycle", "wsd"):
            with self.assertRaisesRegex(ValueError, "total=STEPS"):
                invonnx.Schedule(kind, 1.0)
        for new in (True, False):
            t = revnet(cost="flops")
            if not new:
                t.step(x, y)
            for call in (t.step, t.evaluate):
                with self.assertRaisesRegex(invonnx.ShapeError, "batch without rows"):
                    call(x[:0], y[:0])

    def test_function_of_the_step(self):
        x, y = digits()
        t = revnet(cost="flops")
        for rate in (lambda step: None, lambda step: "fast", lambda step: [0.1, 0.2]):
            t.lr = rate
            with self.assertRaisesRegex(TypeError, "lr is .*a number for each step"):
                t.step(x, y)
        t.lr = lambda step: np.float32(0.1)
        t.step(x, y)
        self.assertEqual(t.steps, 1)

    def test_settings(self):
        """What is wrong with a setting is said at once, alike before the first batch and behind it, and changes nothing."""
        x, y = digits()
        for opened in (False, True):
            t, other = (revnet(optimizer="sgd", memory="store", cost="flops", groups=[invonnx.Group("*")]) for _ in range(2))
            if opened:
                t.step(x, y)
                other.step(x, y)
            for call, arguments, message in (
                    (t.set_step, (-1,), "step is -1"), (t.set_step, ("a",), "step is 'a'"), (t.set_step, (1.5,), "step is 1.5"),
                    (t.set_step, (2**63,), f"step is {2**63}: .*{2**63 - 1} at most"), (t.set_step, (None,), "step is None"),
                    (t.set_step, (0, -1), "micro is -1"), (t.set_step, (0, 0.5), "micro is 0.5"),
                    (t.set_group_lr, (0, "x"), "factor is 'x'"), (t.set_group_lr, (0, float("nan")), "factor is nan"),
                    (t.set_group_lr, (0, -1), "factor is -1"), (t.set_group_lr, (0, float("inf")), "factor is inf"),
                    (t.set_group_lr, (0.5, 1.0), "group is 0.5"), (t.set_group_lr, ("0", 1), "group is '0'"),
                    (t.set_group_lr, (-1, 1), "group is -1"), (t.set_group_lr, (1, 1), "no group 1: this trainer has 1"),
                    (t.set_modes, ("offload",), "memory='offload'.*single values.*memory of its own"),
                    (t.set_modes, ("x",), "memory is 'x'"), (t.set_modes, (None, {"*": "x"}), r"modes\['\*'\] is 'x'"),
                    (t.set_modes, (None, {"*": "offload"}), r"modes\['\*'\]: 'offload'.*memory of its own.*cpu"),
                    (t.modes("offload").__enter__, (), "memory='offload'")):
                with self.subTest(opened=opened, message=message), self.assertRaisesRegex((TypeError, ValueError), message):
                    call(*arguments)
            self.assertEqual(t.steps, opened)
            for _ in range(2):
                self.assertEqual(t.step(x, y).loss, other.step(x, y).loss)
        with self.assertRaisesRegex(ValueError, "memory='offload'"):
            revnet(memory="offload")
        for step in (3, np.int64(3), 2**63 - 1):
            t = revnet(cost="flops")
            t.set_step(step)
            self.assertEqual(t.steps, step)

    def test_loading_within_averages(self):
        """It is refused before the first batch as it is behind it, and the trainer goes on."""
        x, y = digits()
        options = {"optimizer": "sgd", "memory": "store", "cost": "flops", "average": "ema:0.5"}
        other = revnet(**options)
        for _ in range(2):
            other.step(x, y)
        other.save_state(self.at("state"))
        for opened in (False, True):
            t = revnet(**options)
            if opened:
                t.step(x, y)
            with t.averages():
                with self.assertRaisesRegex(invonnx.ArgumentError, "averages .* Switch back first .the end of `with Trainer.averages"):
                    t.load_state(self.at("state"))
                t.evaluate(x, y)
                self.assertEqual(t.steps, opened)
            t.load_state(self.at("state"))
            self.assertEqual(t.steps, 2)
            self.assertEqual(t.step(x, y).loss, revnet_goes_on(options, self.at("state"), x, y))

    def test_messages_name_what_is_here(self):
        """No message names a function of C; each that the library's messages name has its word."""
        literal = re.compile(r'"(?:[^"\\\n]|\\.)*"')
        for folder in ("core", "importer", "ops", "inverses", "passes", "executor", "api"):
            for path, _, files in os.walk(os.path.join(ROOT, folder)):
                for name in files:
                    if not name.endswith((".c", ".h", ".inc")):
                        continue
                    for line in text_of(os.path.join(path, name)).splitlines():
                        for word in re.findall(r"\binv_(?:session|model|context|state|world)_[a-z_]+", " ".join(literal.findall(line))):
                            self.assertIn(word, _other_words._OF_C, (name, line))
        x, y = digits(4)
        t = revnet(memory="store", cost="flops", average=True, accumulate=True)
        t.accumulate(x, y)
        for call, message in ((lambda: t.step(x, y), "Finish the step with Trainer.update, or restart it with Trainer.set_step"),
                              (lambda: t.save_state(self.at("s")), "not applied. Call Trainer.update"),
                              (lambda: t.accumulate({}, y), r"planned for this batch: 'x' wants \[4,1,8,8\], got nothing. Give .*Trainer.open"),
                              (lambda: t.backward({}), "loss outside")):
            with self.assertRaisesRegex(invonnx.Error, message) as e:
                call()
            self.assertNotIn("inv_", str(e.exception))
            self.assertNotIn("'target'", str(e.exception))

    def test_parameters_of_another_shape(self):
        t = revnet(optimizer="adam", cost="flops")
        t.step(*digits(4))
        for tensors, name in ((t.parameters, "head.bias"), (t.optimizer_state, "head.bias/moment1")):
            with self.assertRaisesRegex(invonnx.ShapeError, rf"'{name}' is of shape \[10\]: .* shape \[7\]"):
                tensors[name] = np.zeros(7)
            tensors[name] = 0.5

    def test_factors_have_no_adapters(self):
        """Neither those that were just added nor those of a file; and none is offered one."""
        m = invonnx.load(REVNET)
        m.add_lora(["head.weight"])
        m.save(self.at("m.onnx"))
        for each in (m, invonnx.load(self.at("m.onnx"))):
            for glob in ("nix*", "*.lora_A", "head.weight.lora_B"):
                with self.assertRaisesRegex(invonnx.ArgumentError, "matches neither.*'head.weight'") as e:
                    each.add_lora([glob])
                self.assertNotIn("lora_A'", str(e.exception).split("there are:")[1])

    def test_words_of_others(self):
        """Each word that the program knows is known here, too."""
        rows = re.findall(r'^WORD\("([^"]+)"', text_of(os.path.join(ROOT, "cli", "options", "other_words.inc")), re.M)
        for word in rows:
            name = word.replace("-", "_")
            self.assertIn(name, _other_words._WORDS)
            self.assertNotIn(name, NAMES)
            with self.assertRaisesRegex(TypeError, f"no option '{name}': here it is "):
                invonnx.load(REVNET).trainer(loss="mse", **{name: 1}) if name != "model" else revnet(**{name: 1})
        with self.assertRaisesRegex(TypeError, "did you mean 'budget'"):
            revnet(bugdet=1)

    def test_repr(self):
        m = invonnx.load(REVNET)
        self.assertRegex(repr(m), r"^<invonnx.Model .*revnet_digits.onnx: \(x: float\[N, 1, 8, 8\]\) -> \(logits.*38058 parameters>$")
        self.assertRegex(repr(m.plan(loss="mse", batch=4, cost="time")), "a step of 4 rows: memory auto, peak .*KiB.* ms a step>")
        t = revnet(cost="flops")
        self.assertRegex(repr(t), "loss cross_entropy, optimizer adamw, memory auto, 0 steps; no plan yet")
        t.step(*digits())
        self.assertRegex(repr(t), "1 steps; <invonnx.Session: memory auto, peak .* 38058 numbers are trained")


if __name__ == "__main__":
    unittest.main()
