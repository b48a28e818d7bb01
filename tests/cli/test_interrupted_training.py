# SPDX-License-Identifier: Apache-2.0
"""Training that ends before its time loses nothing: the weights are somewhere, the cause is named, and no two runs write
one file. It fails if a NaN in the last rows throws the steps before it away, if the row is not named, if a signal does
not show in the exit status, or if a second run starts on the output of the first."""
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import numpy as np
import onnx
from common import PROGRAM, call, model
from onnx import TensorProto, helper, numpy_helper

ROWS, BATCH = 40, 4


def content(path):
    with open(path) as f:
        return f.read()


def weights(path):
    return {i.name: numpy_helper.to_array(i) for i in onnx.load(path).graph.initializer}


class Lost(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.model = self.file("m.onnx")
        shutil.copy(os.path.join(model("nice_dynbatch_ts17"), "model.onnx"), self.model)
        g = np.random.default_rng(3)
        self.x = g.standard_normal((ROWS, 8)).astype(np.float32)
        self.y = np.tanh(self.x @ g.standard_normal((8, 8)).astype(np.float32))
        np.save(self.file("x.npy"), self.x)
        np.save(self.file("y.npy"), self.y)
        self.out, self.err = self.file("stdout"), self.file("stderr")
        for path in (self.out, self.err):
            open(path, "w").close()
        self.before = sorted(os.listdir(self.folder))

    def file(self, name):
        return os.path.join(self.folder, name)

    def arguments(self, *options, x="x.npy", y="y.npy", out="out.onnx"):
        return ["train", self.model, "--data", self.file(x), "--target", self.file(y), "--loss", "mse", "--lr", "0.05",
                "--batch", str(BATCH), "-o", self.file(out), *options]

    def start(self, *options, **files):
        """A run that would take hours, once its first steps are done: it is ended whatever happens. What it says is
        in self.out and self.err."""
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            run = subprocess.Popen([PROGRAM, *self.arguments("--epochs", "100000000", *options, **files)],
                                   stdout=out, stderr=err)
        self.addCleanup(lambda: (run.kill(), run.wait()))
        while not re.search(r"epoch\D{1,2}[3-9]", content(self.out) + content(self.err)):
            self.assertIsNone(run.poll(), content(self.err))
            time.sleep(0.02)
        return run

    def added(self):
        return sorted(set(os.listdir(self.folder)) - set(self.before))

    def test_nan_in_the_last_rows(self):
        for name, value, says in (("x", np.nan, "NaN"), ("y", -np.inf, "-inf")):
            with self.subTest(name):
                a = {"x": self.x, "y": self.y}[name].copy()
                a[ROWS - 2, 3] = value
                np.save(self.file(f"bad_{name}.npy"), a)
                self.before = sorted(os.listdir(self.folder))
                status, _, err = call(*self.arguments("--no-shuffle", **{name: f"bad_{name}.npy"}))
                self.assertEqual(status, 1, err)
                self.assertIn(f"rows {ROWS - BATCH} to {ROWS - 1}", err)
                self.assertIn(f"row {ROWS - 2} of {self.file(f'bad_{name}.npy')} holds {says}", err)
                self.assertIn(f"step {ROWS // BATCH} of {ROWS // BATCH}", err)
                (rescued,) = self.added() # and not out.onnx
                self.assertIn(f"saved to {self.file(rescued)}", err)
                self.assertEqual(call(*self.arguments("--no-shuffle", "--steps", str(ROWS // BATCH - 1),
                                                      out="good.onnx"))[0], 0)
                want, got = weights(self.file("good.onnx")), weights(self.file(rescued))
                for key, w in want.items():
                    np.testing.assert_array_equal(got[key], w, key)
                os.remove(self.file(rescued))
                os.remove(self.file("good.onnx"))

    def test_every_input_is_searched(self):
        """Rows of a shuffled batch are numbers of the file's rows."""
        self.x[17, 0] = np.inf
        np.save(self.file("x.npy"), self.x)
        status, _, err = call(*self.arguments("--batch", str(ROWS)))
        self.assertEqual(status, 1)
        self.assertIn("its batch was rows 0 to 39; row 17 of", err)
        self.assertIn("nothing was saved", err)
        self.assertEqual(self.added(), [])
        status, _, err = call(*self.arguments("--lr", "1e30", y="y.npy", x="y.npy"))
        self.assertEqual(status, 1)
        numbers = re.search(r"its batch was rows ([^.]*)\. A smaller --lr", err)
        self.assertTrue(numbers, err)
        self.assertLess(max(map(int, re.findall(r"\d+", numbers[1]))), ROWS)

    def test_signals(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number):
                run = self.start("--json")
                run.send_signal(number)
                self.assertEqual(run.wait(), 128 + number, content(self.err))
                report = json.loads(content(self.out))
                self.assertIs(report["interrupted"], True)
                self.assertGreater(report["steps_done"], ROWS // BATCH)
                self.assertEqual(self.added(), ["out.onnx"])
                onnx.checker.check_model(self.file("out.onnx"))
                os.remove(self.file("out.onnx"))

    def test_nobody_reads_any_more(self):
        """Behind `| tee` Ctrl-C ends the reader as well; the lines that follow go nowhere."""
        read, write = os.pipe()
        with open(self.err, "wb") as err:
            run = subprocess.Popen([PROGRAM, *self.arguments("--epochs", "100000000")], stdout=write, stderr=err)
        self.addCleanup(lambda: (run.kill(), run.wait()))
        os.close(write)
        said = b""
        while b"epoch 1/" not in said:
            said += os.read(read, 4096)
        os.close(read)
        time.sleep(1.5)  # the next line is said after a second
        self.assertIsNone(run.poll(), content(self.err))
        run.send_signal(signal.SIGINT)
        self.assertEqual(run.wait(), 130, content(self.err))
        self.assertEqual(self.added(), ["out.onnx"])

    def test_nan_in_validation(self):
        held_out = self.x.copy()
        held_out[7, 0] = np.nan
        np.save(self.file("held.npy"), held_out)
        held = ["--val-data", self.file("held.npy"), "--val-target", self.file("y.npy")]
        status, _, err = call(*self.arguments("--epochs", "1", *held))
        self.assertEqual(status, 0, err)
        self.assertIn(f"row 7 of {self.file('held.npy')} holds NaN", err)
        status, _, err = call("eval", self.model, "--data", self.file("held.npy"), "--target", self.file("y.npy"),
                              "--loss", "mse", "--batch", str(BATCH))
        self.assertEqual(status, 1)
        self.assertIn(f"rows 4 to 7; row 7 of {self.file('held.npy')} holds NaN", err)

    def test_two_runs_one_output(self):
        run = self.start()
        os.symlink(".", self.file("here"))
        for out in ("out.onnx", os.path.join(".", "out.onnx"), os.path.join("here", "out.onnx")):
            status, _, err = call(*self.arguments(out=out))
            self.assertEqual(status, 1)
            self.assertIn(f"process {run.pid}", err)
        for wants in (["rewrite", "-o"], ["rewrite", "--inverse-out"], ["plan", "--loss", "mse", "--html"]):
            status, _, err = call(wants[0], self.model, *wants[1:], self.file("out.onnx"))
            self.assertEqual(status, 1)
            self.assertIn("another run", err)
        status, _, err = call(*self.arguments(out="other.onnx"))
        self.assertEqual(status, 0, err)
        run.kill()
        run.wait()
        status, _, err = call(*self.arguments()) # what a killed run has left is in nobody's way
        self.assertEqual(status, 0, err)
        self.assertEqual(self.added(), ["here", "other.onnx", "out.onnx"])

    def test_data_cut_short(self):
        """The step that reads what is gone does not count; what was trained before it is saved."""
        for name in ("x.npy", "y.npy"):
            with self.subTest(name):
                for a, path in ((self.x, "x.npy"), (self.y, "y.npy")):
                    np.save(self.file(path), np.tile(a, (500, 1)))
                run = self.start("--epochs", "1000000", "--no-shuffle")
                os.truncate(self.file(name), 4096)
                self.assertEqual(run.wait(), 1)
                err = content(self.err)
                self.assertIn(f"'{self.file(name)}' was cut short", err)
                rescued = self.file(f"out.onnx.rescued-{run.pid}.onnx")
                self.assertIn(rescued, err)
                onnx.checker.check_model(rescued)
                for key, w in weights(rescued).items():
                    self.assertTrue(np.isfinite(w).all(), key)
                self.assertEqual(self.added(), [os.path.basename(rescued)])
                os.remove(rescued)

    def test_model_cut_short(self):
        """Trained weights are in memory, what else a model needs was in the file: they are saved as arrays. A model that
        another file takes the place of is none of it."""
        run = self.start()
        shutil.copy(self.model, self.file("copy.onnx"))
        os.rename(self.file("copy.onnx"), self.model)
        run.send_signal(signal.SIGINT)
        self.assertEqual(run.wait(), 130, content(self.err))
        os.remove(self.file("out.onnx"))
        for change in (lambda: os.truncate(self.model, 0), lambda: shutil.copy(self.file("again"), self.model)):
            shutil.copy(self.model, self.file("again"))
            names = set(weights(self.model))
            run = self.start()
            change()
            run.send_signal(signal.SIGINT)
            self.assertEqual(run.wait(), 1)
            err = content(self.err)
            self.assertIn(f"another program changed '{self.model}'", err)
            rescued = self.file(f"out.onnx.rescued-{run.pid}.npz")
            self.assertIn(rescued, err)
            with np.load(rescued) as arrays:
                old = weights(self.file("again"))
                self.assertEqual(set(arrays), names)
                for key in names:
                    self.assertEqual(arrays[key].shape, old[key].shape)
                    self.assertTrue((arrays[key] != old[key]).any(), key)
            self.assertEqual(self.added(), ["again", os.path.basename(rescued)])
            os.remove(rescued)
            shutil.copy(self.file("again"), self.model)

    def test_adapters_over_the_model(self):
        """Nor do adapters, or the model that takes them, go where the model comes from."""
        before = weights(self.model)
        for arguments in (self.arguments("--lora", "*", "--rank", "1", "--adapter-out", self.model),
                          ["adapter", "extract", self.model, "-o", self.file("a"), "--model-out", self.model]):
            status, _, err = call(*arguments)
            self.assertEqual(status, 1)
            self.assertIn("would overwrite", err)
        self.assertEqual(set(weights(self.model)), set(before))

    def test_frozen_weights_cut_short(self):
        """What is frozen is read in the model's file: what was trained before that was cut short is saved, and it alone."""
        g = np.random.default_rng(5)
        held = [numpy_helper.from_array((g.standard_normal(shape) / 16).astype(np.float32), name)
                for name, shape in (("first", (8, 512)), ("frozen", (512, 512)), ("last", (512, 8)))]
        nodes = [helper.make_node("MatMul", [x, w], [y]) for x, w, y in
                 (("x", "first", "a"), ("a", "frozen", "b"), ("b", "last", "y"))]
        ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 8])] for name in "xy"]
        onnx.save(helper.make_model(helper.make_graph(nodes, "g", *ends, held), ir_version=8,
                                    opset_imports=[helper.make_opsetid("", 17)]), self.model, save_as_external_data=True,
                  location="m.data", size_threshold=0)
        run = self.start("--freeze", "frozen", "--lr", "1e-3")
        os.truncate(self.file("m.data"), 4096)
        self.assertEqual(run.wait(), 1)
        err = content(self.err)
        self.assertIn("m.data' was cut short", err)
        with np.load(self.file(f"out.onnx.rescued-{run.pid}.npz")) as arrays:
            self.assertEqual(set(arrays), {"first", "last"})
            for name in arrays:
                self.assertTrue(np.isfinite(arrays[name]).all() and arrays[name].any(), name)

    def test_evaluation(self):
        """Nothing is made of data that are no longer there."""
        for a, path in ((self.x, "x.npy"), (self.y, "y.npy")):
            np.save(self.file(path), np.tile(a, (50000, 1)))
        with open(self.out, "wb") as out, open(self.err, "wb") as err:
            run = subprocess.Popen([PROGRAM, "eval", self.model, "--data", self.file("x.npy"), "--target",
                                    self.file("y.npy"), "--loss", "mse", "--batch", "1"], stdout=out, stderr=err)
        self.addCleanup(lambda: (run.kill(), run.wait()))
        while self.file("y.npy") not in content(f"/proc/{run.pid}/maps"):
            self.assertIsNone(run.poll(), content(self.err))
        os.truncate(self.file("y.npy"), 8192)
        self.assertEqual(run.wait(), 1)
        self.assertEqual(content(self.out), "")
        self.assertIn(f"'{self.file('y.npy')}' was cut short", content(self.err))

    def test_damaged_archive(self):
        path = self.file("xy.npz")
        np.savez(path, x=self.x, y=self.y)
        with open(path, "r+b") as f:
            f.seek(600)
            byte = f.read(1)
            f.seek(600)
            f.write(bytes([byte[0] ^ 1]))
        status, _, err = call("train", self.model, "--data", path, "--loss", "mse", "-o", self.file("out.onnx"))
        self.assertEqual(status, 1)
        self.assertIn("xy.npz: the archive is damaged: the member's bytes do not have its checksum", err)

    def test_pipes(self):
        """Nobody writes into it: whoever opened it to read would wait forever."""
        os.mkfifo(self.file("f.npy"))
        x, y, f = (self.file(n) for n in ("x.npy", "y.npy", "f.npy"))
        p = self.file("p.npy")
        np.save(p, np.eye(np.load(y).shape[1], dtype=np.float32)[np.zeros(len(np.load(y)), int)])
        self.before += ["f.npy", "p.npy"]
        for data, target, more in ((f, y, ()), (x, y, ("--val-data", f)), (x, y, ("--plan", f)), (x, y, ("--plugin", f)),
                                   (x, p, ("--loss", "cross_entropy", "--class-weights", f))):
            status, _, err = call("train", self.model, "--data", data, "--target", target, "--loss", "mse", "-o",
                                  self.file("out.onnx"), *more)
            self.assertEqual(status, 1, err)
            rows = data == f or more[0] == "--val-data" # which may come from a pipe
            self.assertIn("nobody opened for writing within 5 s" if rows else "not a regular file", err)
            self.assertEqual(self.added(), [])
        self.assertEqual(call("inspect", f)[0], 1)

    def test_names_of_files_make_no_lines(self):
        with open(self.file("bad.npy"), "wb") as f:
            text = b"{'descr': '<f4', 'a\nforged': False, 'shape': (1,), }"
            f.write(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
        _, _, err = call(*self.arguments(x="bad.npy"))
        self.assertIn("unknown key 'a\\u000aforged'", err)
        np.savez(self.file("bad.npz"), **{"b\nforged": self.x, "c": self.x})
        _, _, err = call(*self.arguments(x="bad.npz"))
        self.assertIn("no member named 'x'; it has 'b\\u000aforged.npy', 'c.npy'", err)

    def test_no_litter(self):
        """A signal before the first step leaves nothing; a file of somebody else's stays, whatever it is."""
        with open(self.file("out.onnx.lock"), "w") as f:
            f.write("mine")
        self.assertEqual(call(*self.arguments())[0], 0)
        self.assertEqual(self.added(), ["out.onnx", "out.onnx.lock"])
        os.remove(self.file("out.onnx.lock"))
        os.mkfifo(self.file("out.onnx.lock")) # such a name must not hang
        self.assertEqual(call(*self.arguments())[0], 0)
        os.remove(self.file("out.onnx.lock"))
        os.remove(self.file("out.onnx"))
        run = subprocess.Popen([PROGRAM, *self.arguments("--epochs", "100000000")], stderr=subprocess.DEVNULL)
        while "out.onnx.lock" not in os.listdir(self.folder):
            self.assertIsNone(run.poll())
        for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT):
            run.send_signal(number)
        run.wait()
        self.assertIn(run.returncode, (-signal.SIGTERM, 128 + signal.SIGTERM)) # before the first step, or behind it
        self.assertEqual(self.added(), [] if run.returncode < 0 else ["out.onnx"])


if __name__ == "__main__":
    unittest.main()
