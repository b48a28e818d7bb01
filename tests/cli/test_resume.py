# SPDX-License-Identifier: Apache-2.0
"""Runs that are left alone: checkpoints, going on from them with equal bits, kills at random times, folders that go
away, limits of time and patience, the best model. Fails if a resumed run ends with other bits than one that did not
stop, if a kill costs more than the steps since the newest checkpoint, or if a file is half there."""
import glob
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time
import unittest

import numpy as np
from onnx import load, numpy_helper, parser, save

import common

MODEL = os.path.join(common.model("nice_dynbatch_ts17"), "model.onnx")
KILLS = 200 if os.environ.get("INVONNX_FULL") else 30


class Resume(common.InFolder):
    def setUp(self):
        super().setUp()
        self.data = ["--data", self.at("x.npy"), "--target", self.at("y.npy"), "--loss", "mse", "--batch", "3"]
        self.held = ["--val-data", self.at("x.npy"), "--val-target", self.at("y.npy")]

    def command(self, *more):
        return [common.PROGRAM, "train", MODEL, *self.data, *more]

    def run_it(self, *more, status=0):
        r = subprocess.run(self.command(*more), capture_output=True, text=True, check=False)
        self.assertEqual(r.returncode, status, r.stdout + r.stderr)
        return r.stdout + r.stderr

    def bytes_of(self, name):
        with open(self.at(name), "rb") as f:
            return f.read()

    def steps(self, name):
        return sorted(int(os.path.basename(p)[5:14]) for p in glob.glob(self.at(name) + "/step-*.safetensors"))

    def check_files(self, name):
        """Every checkpoint is whole: its header says how long it is."""
        for path in glob.glob(self.at(name) + "/step-*.safetensors"):
            with open(path, "rb") as f:
                data = f.read()
            n = int.from_bytes(data[:8], "little")
            header = json.loads(data[8:8 + n])
            end = max(row["data_offsets"][1] for key, row in header.items() if key != "__metadata__")
            self.assertEqual(len(data), 8 + n + end)

    @staticmethod
    def rewrite_note(path, change):
        """With another note, as an earlier version wrote it, without checksums."""
        with open(path, "rb") as f:
            data = f.read()
        n = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + n])
        metadata = header["__metadata__"]
        note = json.loads(metadata["note"])
        change(note)
        metadata["note"] = json.dumps(note)
        metadata["format"] = "invonnx-state-1"
        del metadata["checksums"]
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(path, "wb") as f:
            f.write(len(text).to_bytes(8, "little") + text + data[8 + n:])

    def test_matrix(self):
        """Optimizer x accumulation x mode x early update x average, each stopped once within an epoch; the last batch of
        an epoch is smaller."""
        kinds = [("sgd", []), ("momentum", ["--nesterov"]), ("adam", ["--clip-norm", "0.5"]),
                 ("adamw", ["--weight-decay", "0.1", "--group", "*weight*:lr=1e-3,weight-decay=0"]),
                 ("lion", ["--clip-value", "0.1"]), ("rmsprop", ["--average", "swa:2:2"]),
                 ("lamb", ["--weight-decay", "0.1", "--average", "ema:0.9"]),
                 ("adafactor", ["--group", "*bias*:optimizer=sgd"]), ("muon", ["--weight-decay", "0.1", "--decay-all"])]
        for i, (kind, more) in enumerate(kinds):
            for accumulate in (1, 3):
                for mode in ("store", "recompute", "invert", "auto"):
                    early = ["--early-update"] if (mode in ("store", "recompute") and "--clip-norm" not in more and
                                                   i % 2 == accumulate % 2) else []
                    options = ["--optimizer", kind, "--lr", "0.005", "--memory", mode, "--accumulate", str(accumulate),
                               "--schedule", "cosine", "--warmup", "2", "--steps", "9", *more, *early]
                    with self.subTest(options=options):
                        shutil.rmtree(self.at("ck"), ignore_errors=True)
                        self.run_it(*options, "-o", self.at("a.onnx"))
                        self.run_it(*options, "-o", self.at("b.onnx"), "--checkpoint", self.at("ck"), "--every", "4")
                        for step in self.steps("ck"):
                            if step > 4:
                                os.unlink(self.at("ck") + f"/step-{step:09d}.safetensors")
                        os.unlink(self.at("b.onnx"))
                        said = self.run_it(*options, "-o", self.at("b.onnx"), "--checkpoint", self.at("ck"), "--resume")
                        self.assertIn("step-000000004", said)
                        self.assertEqual(self.bytes_of("a.onnx"), self.bytes_of("b.onnx"))

    def test_kills(self):
        options = ["--optimizer", "adamw", "--lr", "0.002", "--steps", "1500", "--accumulate", "2", "--cost", "flops"]
        self.run_it(*options, "-o", self.at("a.onnx"))
        rng = random.Random(5)
        newest = 0
        kept = ["--checkpoint", self.at("ck"), "--every", "3", "--keep", "2", "-o", self.at("b.onnx"), "--resume",
                "--log", self.at("log.jsonl")]
        for _ in range(KILLS):
            with subprocess.Popen(self.command(*options, *kept), stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) as p:
                time.sleep(rng.uniform(0.005, 0.2))
                p.send_signal(signal.SIGKILL)
            self.check_files("ck")
            now = max(self.steps("ck"), default=0)
            self.assertGreaterEqual(now, newest)
            newest = now
        self.assertGreater(newest, 0)
        self.run_it(*options, *kept)
        self.assertEqual(self.bytes_of("a.onnx"), self.bytes_of("b.onnx"))
        self.assertEqual(len(self.steps("ck")), 2)
        with open(self.at("log.jsonl"), encoding="utf-8") as f:
            logged = [json.loads(line)["step"] for line in f]
        self.assertEqual(logged, list(range(1, 1501)))

    def test_killed_before_old_ones_are_dropped(self):
        keep = ["--checkpoint", self.at("ck"), "-o", self.at("b.onnx"), "--steps", "4", "--every", "1"]
        self.run_it(*keep)
        self.run_it(*keep, "--keep", "2", "--resume")
        self.assertEqual(self.steps("ck"), [3, 4])

    def test_signals(self):
        options = ["--steps", "100000", "--checkpoint", self.at("ck"), "-o", self.at("b.onnx")]
        with subprocess.Popen(self.command(*options), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as p:
            deadline = time.monotonic() + 60
            while not self.steps("ck") and p.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
                if os.path.exists(self.at("ck/run.lock")):
                    time.sleep(0.3)
                    p.send_signal(signal.SIGUSR1)
            first = self.steps("ck")
            self.assertTrue(first)
            # another run in the same folder, meanwhile
            said = self.run_it("--steps", "1", "--checkpoint", self.at("ck"), "-o", self.at("c.onnx"), "--resume",
                               status=1)
            self.assertIn("another run", said)
            p.send_signal(signal.SIGTERM)
            p.wait(60)
            self.assertEqual(p.returncode, 128 + signal.SIGTERM)
        self.assertGreater(max(self.steps("ck")), max(first))
        self.assertTrue(os.path.exists(self.at("b.onnx")))

    def test_other_runs_are_refused(self):
        keep = ["--checkpoint", self.at("ck"), "-o", self.at("b.onnx"), "--steps", "4"]
        self.run_it(*keep)
        self.assertIn("--resume", self.run_it(*keep, status=1))
        for option, words in ((["--batch", "4"], "batch"), (["--seed", "7"], "seed"), (["--accumulate", "2"], "acc"),
                              (["--no-shuffle"], "no-shuffle"), (["--optimizer", "adam"], "optimizer")):
            self.assertIn(words, self.run_it(*keep, "--resume", *option, status=1))
        path = self.at("ck") + "/step-000000004.safetensors"
        with open(path, "r+b") as f:
            f.truncate(100)
        said = self.run_it(*keep, "--resume", status=1)
        self.assertIn("none of the 1 checkpoints", said)
        self.assertIn("step-000000004.safetensors", said)

    def test_note_of_another_version(self):
        """Which counted batches where this one counts rows: that is said, and not that rows are others."""
        self.run_it("--steps", "2", "--checkpoint", self.at("k"), "-o", self.at("b.onnx"))
        path = glob.glob(self.at("k") + "/step-*.safetensors")[-1]
        self.rewrite_note(path, lambda note: note.update(batch=note.pop("row")))
        said = self.run_it("--steps", "4", "--checkpoint", self.at("k"), "--resume", "-o", self.at("b.onnx"), status=1)
        self.assertIn("Another version of invonnx wrote it", said)

    def test_other_frozen_weights_are_refused(self):
        """A base that was replaced under its name by one with other elements."""
        model = load(MODEL)
        frozen = model.graph.initializer[0].name
        save(model, self.at("base.onnx"))
        keep = ["train", self.at("base.onnx"), *self.data, "--freeze", frozen, "--checkpoint", self.at("ck"), "-o",
                self.at("b.onnx"), "--steps"]
        self.assertEqual(common.call(*keep, 2)[0], 0)
        self.assertEqual(common.call(*keep, 3, "--resume")[0], 0)
        values = numpy_helper.to_array(model.graph.initializer[0])
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(values * np.float32(1.01), frozen))
        save(model, self.at("base.onnx"))
        status, _, err = common.call(*keep, 4, "--resume")
        self.assertEqual(status, 1)
        self.assertIn(f"the frozen '{frozen}' had other elements", err)

    def test_a_folder_that_goes_away(self):
        with subprocess.Popen(self.command("--steps", "3000", "--checkpoint", self.at("ck"), "--every", "10", "-o",
                                           self.at("b.onnx")), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) as p:
            deadline = time.monotonic() + 60
            while len(self.steps("ck")) < 3 and p.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
            os.rename(self.at("ck"), self.at("elsewhere"))
            _, err = p.communicate(timeout=120)
        self.assertEqual(p.returncode, 1, err)
        self.assertTrue(os.path.exists(self.at("b.onnx")))  # the run went on to its end
        failed = re.findall(r"step (\d+): no checkpoint", err)
        self.assertEqual(failed[-1], "3000")
        self.assertEqual(len(failed), len(set(failed)))  # each is tried once, the last one, too

    def test_best_and_patience(self):
        said = self.run_it(*self.held, "--optimizer", "adam", "--lr", "0.3", "--epochs", "60", "--best", "loss",
                           "--patience", "4", "--log", self.at("log.jsonl"), "-o", self.at("b.onnx"))
        self.assertIn("--patience", said)
        with open(self.at("log.jsonl"), encoding="utf-8") as f:
            held = [r for r in map(json.loads, f) if r["split"] == "val"]
        losses = [r["loss"] for r in held]
        self.assertEqual(len(losses) - 1 - int(np.argmin(losses)), 4)
        best = held[int(np.argmin(losses))]
        self.assertRegex(said, rf"(?m)^stopped after step {held[-1]['step']} of 420 \(--patience\) in \d.* s(, .* of memory)?; "
                         rf"the best weights, of step {best['step']} \(validation loss {best['loss']:.5g}\), saved to ")
        r = subprocess.run([common.PROGRAM, "eval", self.at("b.onnx"), *self.data[:6], "--json"], capture_output=True,
                           text=True, check=True)
        self.assertAlmostEqual(json.loads(r.stdout)["loss"], min(losses), places=4)

    def test_where_validations_are(self):
        """7 steps an epoch: behind which of them."""
        for options, steps in (([], [7, 14, 21, 28, 35]), (["--val-epochs", "2"], [14, 28, 35]),
                               (["--val-epochs", "9"], [35]), (["--val-epochs", "0", "--val-every", "10"], [10, 20, 30, 35]),
                               (["--val-every", "14"], [7, 14, 21, 28, 35]),
                               (["--val-epochs", "0", "--val-every", "14"], [14, 28, 35])):
            said = self.run_it(*self.held, *options, "--epochs", "5", "--log", self.at("l.jsonl"), "-o", self.at("b.onnx"))
            with open(self.at("l.jsonl"), encoding="utf-8") as f:
                self.assertEqual([r["step"] for r in map(json.loads, f) if r["split"] == "val"], steps)
            self.assertEqual(len(re.findall(r"(?m)^epoch \d/5  train loss .* s$", said)), 5)
            self.assertEqual(said.count("validation loss"), len(steps))
        self.assertIn("it needs validation", self.run_it("--val-epochs", "2", "-o", self.at("b.onnx"), status=2))

    def test_stopped_at_validations(self):
        """A validation that a signal has cut short is made by the run that goes on, and --patience counts it."""
        rng = np.random.default_rng(2)
        held = ["--val-data", self.at("vx.npy"), "--val-target", self.at("vy.npy")]
        for name in ("vx.npy", "vy.npy"):
            np.save(self.at(name), rng.standard_normal((30000, 8)).astype(np.float32))
        options = [*held, "--epochs", "4", "--val-every", "3", "--patience", "5", "--best", "loss", "--lr", "0.3",
                   "--optimizer", "adam"]
        self.run_it(*options, "-o", self.at("a.onnx"), "--log", self.at("a.jsonl"))
        more = ["-o", self.at("b.onnx"), "--log", self.at("b.jsonl"), "--checkpoint", self.at("ck"), "--resume"]
        stops = 0
        for delay in (0.15, 0.2, 0.25, 0.3, 0.2, 0.25):
            with subprocess.Popen(self.command(*options, *more), stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL) as p:
                time.sleep(delay)
                p.send_signal(signal.SIGTERM)
            stops += p.returncode == 128 + signal.SIGTERM
        self.assertGreater(stops, 0)
        self.run_it(*options, *more)
        said = self.run_it(*options, *more)  # there is nothing left to do
        self.assertNotIn("epoch ", said)
        logs = []
        for name in ("a.jsonl", "b.jsonl"):
            with open(self.at(name), encoding="utf-8") as f:
                logs.append([(r["split"], r["step"], r["loss"]) for r in map(json.loads, f)])
        self.assertEqual(*logs)
        self.assertEqual(self.bytes_of("a.onnx"), self.bytes_of("b.onnx"))

    def test_place_behind_an_epoch(self):
        """A run that was stopped at the validation of its first epoch goes on without validation; so it does from a
        place that cannot be."""
        path = self.at("ck/step-000000007.safetensors")
        self.run_it("--epochs", "2", "-o", self.at("a.onnx"))
        self.run_it("--steps", "7", "--checkpoint", self.at("ck"), "-o", self.at("b.onnx"))
        with open(path, "rb") as f:
            data = f.read()

        def behind(note):
            self.assertEqual((note["epoch"], note["row"]), (2, 0))
            note.update(epoch=1, row=row or note["rows_of_steps"]["rows"])
        for row in (None, 10**18):
            with open(path, "wb") as f:
                f.write(data)
            self.rewrite_note(path, behind)
            self.run_it("--epochs", "2", "--checkpoint", self.at("ck"), "--resume", "-o", self.at("b.onnx"))
            self.assertEqual(self.bytes_of("a.onnx"), self.bytes_of("b.onnx"))
            os.unlink(self.at("ck/step-000000014.safetensors"))

    def test_rates_are_those_of_the_command(self):
        keep = ["--checkpoint", self.at("ck"), "-o", self.at("b.onnx")]
        self.run_it(*keep, "--steps", "2", "--group", "*:lr=0.01")
        before = self.bytes_of("b.onnx")
        self.run_it(*keep, "--steps", "4", "--group", "*:lr=0", "--resume")
        self.assertEqual(before, self.bytes_of("b.onnx"))

    def test_odd_names(self):
        """Averages are found whatever parameters are called; a name that no state can hold is said."""
        def named(name):
            save(parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g (float[N,8] x) => (float[N,2] y) '
                                    f'<float[8,2] {name} = {{{", ".join(["1.0"] * 16)}}}> {{ y = MatMul(x, {name}) }}'),
                 self.at("m.onnx"))
        np.save(self.at("t.npy"), np.random.default_rng(3).standard_normal((20, 2)).astype(np.float32))
        train = [common.PROGRAM, "train", self.at("m.onnx"), "--data", self.at("x.npy"), "--target", self.at("t.npy"),
                 "--loss", "mse", "--lr", "0.5", "--steps", "5", "-o", self.at("o.onnx"), "--average", "swa"]
        weights = []
        for name in ("w", "w" * 600):
            named(name)
            subprocess.run(train, capture_output=True, check=True)
            weights.append(numpy_helper.to_array(load(self.at("o.onnx")).graph.initializer[0]))
        np.testing.assert_array_equal(*weights)
        named("__metadata__")
        r = subprocess.run([*train, "--checkpoint", self.at("ck")], capture_output=True, text=True, check=False)
        self.assertEqual(r.returncode, 1)
        self.assertIn("'__metadata__' cannot be kept in a state", r.stderr)

    def test_damaged_newest(self):
        """It is passed over, and does not count as one that is kept."""
        keep = ["--checkpoint", self.at("ck"), "-o", self.at("b.onnx")]
        self.run_it(*keep, "--steps", "6", "--every", "2")
        newest = self.at("ck/step-000000006.safetensors")
        with open(newest, "r+b") as f:
            f.truncate(os.path.getsize(newest) - 8)  # its header is whole
        with open(self.at("ck/step-000000006.safetensors.tmp-12-0"), "wb") as f:
            f.write(b"half")
        said = self.run_it(*keep, "--steps", "5", "--every", "1", "--keep", "1", "--resume")
        self.assertIn("cut short", said)
        self.assertEqual(self.steps("ck"), [5, 6])
        self.assertFalse(glob.glob(self.at("ck") + "/*.tmp-*"))

    def flip(self, path, at, mask=0x20):
        with open(path, "r+b") as f:
            f.seek(at, os.SEEK_END if at < 0 else os.SEEK_SET)
            byte = f.read(1)[0]
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte ^ mask]))

    def test_damage(self):
        """A bit, a block of zeros, a pipe: named, and an older checkpoint is gone on from, with the same bits."""
        keep = ["--checkpoint", self.at("ck"), "-o", self.at("b.onnx"), "--optimizer", "adam", "--deterministic"]
        self.run_it(*keep, "--steps", "8", "--every", "2")
        whole = self.bytes_of("b.onnx")
        shutil.copytree(self.at("ck"), self.at("saved"))
        paths = [self.at(f"ck/step-{step:09d}.safetensors") for step in (2, 4, 6, 8)]
        self.flip(paths[3], -2)
        self.flip(paths[2], 8 + 400)
        said = self.run_it(*keep, "--steps", "8", "--resume")
        self.assertIn("step-000000008.safetensors' is damaged: the tensor '", said)
        self.assertIn("step-000000006.safetensors' is damaged: its header", said)
        self.assertRegex(said, "resumes from .*step-000000004")
        self.assertEqual(self.bytes_of("b.onnx"), whole)

        with open(paths[3], "r+b") as f:
            f.seek(-64, os.SEEK_END)
            f.write(bytes(64))
        os.unlink(paths[2])
        os.mkfifo(paths[2])
        shutil.copy(self.at("saved/step-000000002.safetensors"), paths[1])
        with open(paths[1], "ab") as f:
            f.write(b" ")
        said = self.run_it(*keep, "--steps", "7", "--resume")
        for words in ("damaged: the tensor", "not a regular file", "bytes after the last tensor", "resumes from"):
            self.assertIn(words, said)
        self.flip(paths[0], 0, 1)
        os.unlink(self.at("ck/step-000000007.safetensors"))
        status, out, err = common.call(*self.command(*keep, "--steps", "9", "--resume", "--json")[1:])
        self.assertEqual(status, 1, err)
        self.assertIn("none of the 4 checkpoints", json.loads(out)["error"])
        for step in (2, 4, 6, 8):
            self.assertIn(f"step-{step:09d}", json.loads(out)["error"])

    def test_verify(self):
        """`checkpoint --verify` reads what --resume would."""
        self.run_it("--checkpoint", self.at("ck"), "-o", self.at("b.onnx"), "--steps", "3", "--every", "1")
        verify = ["checkpoint", "--verify", self.at("ck")]
        status, out, err = common.call(*verify)
        self.assertEqual((status, err), (0, ""))
        self.assertRegex(out, r"^step 1: whole: .*\nstep 2: whole: .*\nstep 3: whole: .*\n$")
        report = common.report(*verify)["checkpoints"]
        self.assertEqual([(c["step"], c["whole"], c["checksums"]) for c in report], [(i, True, True) for i in (1, 2, 3)])
        self.flip(report[1]["file"], -1)
        self.rewrite_note(report[0]["file"], lambda note: None)
        status, out, err = common.call(*verify)
        self.assertEqual(status, 1)
        self.assertIn("1 of 3 checkpoints in", err)
        self.assertRegex(out, r"step 1: whole: .* without checksums.*\nstep 2: not whole: .*the tensor .*\nstep 3: whole: ")
        status, out, _ = common.call(*verify, "--json")
        found = json.loads(out)
        self.assertEqual((status, found["status"], [c["whole"] for c in found["checkpoints"]]), (1, 1, [True, False, True]))
        self.assertIn("does not agree", found["checkpoints"][1]["error"])
        self.assertEqual(common.call("checkpoint", report[2]["file"], "--verify")[0], 0)
        self.assertEqual(common.call("checkpoint", "--verify", report[1]["file"])[0], 1)
        os.mkdir(self.at("empty"))
        for path, words in (("empty", "no checkpoint"), ("nowhere", "No such file"), ("x.npy", "1 of 1 checkpoints")):
            status, _, err = common.call("checkpoint", "--verify", self.at(path))
            self.assertEqual(status, 1)
            self.assertIn(words, err)
        self.assertEqual(common.call("checkpoint", self.at("ck"))[0], 2)
        self.assertEqual(common.call("checkpoint", "--verify")[0], 2)

    def test_best_model_that_is_gone(self):
        options = [*self.held, "--checkpoint", self.at("ck"), "-o", self.at("b.onnx"), "--resume", "--lr", "0.5",
                   "--optimizer", "adam"]
        self.run_it(*options, "--epochs", "3", "--best", "loss")
        os.unlink(self.at("b.onnx"))
        self.assertIn("has no best model", self.run_it(*options, "--epochs", "4", "--best", "loss"))
        self.assertTrue(os.path.exists(self.at("b.onnx")))
        said = self.run_it(*options, "--epochs", "5", "--best", "mae", "--metric", "mae")  # another metric
        self.assertIn("has no best model", said)
        self.assertIn("of step 35", said)

    def test_early_signal(self):
        """SIGUSR1 before the first step ends nothing."""
        with subprocess.Popen(self.command("--steps", "5", "--checkpoint", self.at("ck"), "-o", self.at("b.onnx")),
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as p:
            while not os.path.exists(self.at("b.onnx.lock")) and p.poll() is None:
                time.sleep(0.001)
            p.send_signal(signal.SIGUSR1)
        self.assertEqual(p.returncode, 0)

    def test_limits_and_looks(self):
        said = self.run_it("--steps", "100000000", "--time-limit", "1s", "-o", self.at("b.onnx"))
        self.assertRegex(said, r"(?m)^stopped after step \d+ of 100000000 \(--time-limit\) in 1.* s(, .* of memory)?; weights")
        said = self.run_it("--dry-run")
        self.assertIn("planned peak", said)
        for wrong in (["--every", "5"], ["--resume"], ["--warmup", "200%"], ["--schedule", "step"],
                      ["--average", "ema:2"], ["--group", "x"], ["--group", "*:lr=-1"], ["--min-lr", "3"],
                      ["--best", "loss"], ["--keep", "2", "--checkpoint", self.at("k"), "--keep", "0"]):
            self.run_it("-o", self.at("c.onnx"), *wrong, status=2)
        said = self.run_it("-o", self.at("c.onnx"), *self.held, "--best", "rmse", "--log", self.at("l.jsonl"), status=2)
        self.assertIn("--metric rmse", said)
        for average, step in (("swa:1000", 5), ("swa:5", 5), ("swa:3:3", 3), ("swa:0:6", 0)):
            said = self.run_it("-o", self.at("c.onnx"), "--steps", "5", "--average", average, status=2)
            self.assertIn("OUT would have", said)
            self.assertIn("would have no mean" if step == 5 else f"the weights of step {step}", said)
        for average in "swa:4", "swa:3:2":
            said = self.run_it("-o", self.at("c.onnx"), "--steps", "5", "--average", average)
            self.assertIn("averages of weights saved", said)
        said = self.run_it("--steps", "100000000", "--time-limit", "1s", "--average", "swa:99999998", "-o", self.at("b.onnx"))
        self.assertRegex(said, r"; weights saved[^;]*\n.*--average swa:99999998: there was no mean after step \d+")
        self.assertFalse(os.path.exists(self.at("l.jsonl")) and os.path.getsize(self.at("l.jsonl")))  # no step was made
        self.assertIn("clip_norm", self.run_it("-o", self.at("c.onnx"), "--clip-norm", "1", "--early-update", status=2)
                      .replace("--clip-norm", "clip_norm"))


if __name__ == "__main__":
    unittest.main()
