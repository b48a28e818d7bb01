# SPDX-License-Identifier: Apache-2.0
"""Arrays from pipes. It fails if rows from a pipe train otherwise than the same rows from a file, if more than one
pass or another order is tried, or if anything waits that nobody writes to."""
import io
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest

import numpy as np
import onnx
from common import PROGRAM, call, model
from onnx import numpy_helper

ROWS = 50


def encoded(array):
    f = io.BytesIO()
    np.save(f, array)
    return f.getvalue()


class Pipes(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.model = os.path.join(model("nice_dynbatch_ts17"), "model.onnx")
        g = np.random.default_rng(5)
        self.x = g.standard_normal((ROWS, 8)).astype(np.float32)
        self.y = np.tanh(self.x @ g.standard_normal((8, 8)).astype(np.float32))
        for name, a in (("x", self.x), ("y", self.y)):
            np.save(self.file(f"{name}.npy"), a)
            os.mkfifo(self.file(f"{name}.fifo"))

    def file(self, name):
        return os.path.join(self.folder, name)

    def arguments(self, x, y, *options, command="train"):
        a = [PROGRAM, command, self.model, "--data", x, "--target", y, "--loss", "mse", "--batch", "8", *options]
        return a + ["--lr", "0.05", "-o", self.file("out.onnx")] if command == "train" else a

    def run_it(self, arguments, given=None):
        done = subprocess.run(arguments, input=given, capture_output=True, timeout=60)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def weights(self):
        return [numpy_helper.to_array(i) for i in onnx.load(self.file("out.onnx")).graph.initializer]

    def feed(self, name, content, pause=0):
        """Writes to a pipe, a bit at a time."""
        def write():
            try:
                with open(self.file(name), "wb", buffering=0) as f:
                    for k in range(0, len(content), 100):
                        f.write(content[k:k + 100])
                        time.sleep(pause)
            except BrokenPipeError:
                pass

        thread = threading.Thread(target=write, daemon=True)
        thread.start()
        return thread

    def test_rows_are_those_of_the_file(self):
        self.assertEqual(call(*self.arguments(self.file("x.npy"), self.file("y.npy"), "--no-shuffle")[1:])[0], 0)
        want = self.weights()
        for threads in (["--threads", "1"], ["--data-threads", "0"]):
            for x, y, given in (("-", self.file("y.npy"), encoded(self.x)), (self.file("x.npy"), "-", encoded(self.y)),
                                (self.file("x.fifo"), self.file("y.fifo"), None), ("-", self.file("y.fifo"), encoded(self.x))):
                if x.endswith("fifo"):
                    self.feed("x.fifo", encoded(self.x), 0.001)
                if y.endswith("fifo"):
                    self.feed("y.fifo", encoded(self.y))
                status, _, err = self.run_it(self.arguments(x, y, *threads), given)
                self.assertEqual(status, 0, err)
                for a, b in zip(self.weights(), want):
                    np.testing.assert_array_equal(a, b)
        self.feed("x.fifo", encoded(self.x))
        status, piped, err = self.run_it(self.arguments(self.file("x.fifo"), self.file("y.npy"), command="eval"))
        self.assertEqual(status, 0, err)
        status, filed, _ = self.run_it(self.arguments(self.file("x.npy"), self.file("y.npy"), command="eval"))
        self.assertEqual(piped.split()[1], filed.split()[1])

    def test_what_is_refused(self):
        for option in (["--shuffle"], ["--epochs", "2"], ["--val-split", "0.5"]):
            status, _, err = self.run_it(self.arguments("-", self.file("y.npy"), *option), encoded(self.x))
            self.assertEqual(status, 2, err)
            self.assertIn(" ".join(option) + ": has no effect here; it needs files", err)
        for options, given, says in ((["--steps", "8"], encoded(self.x), "not for 2 epochs"),
                                     ([], b"hello", "it ended within the header"), ([], b"hello, world", "not a .npy array"),
                                     ([], encoded(self.x)[:100], "it ended within the header"), ([], b"", "it ended"),
                                     ([], encoded(self.x)[:128 + 32 * 41], "standard input: it ended after 41 of 50 rows"),
                                     ([], encoded(self.x[:, :7]), "the model wants"), ([], encoded(self.x[0, 0]), "no rows"),
                                     ([], encoded(self.x[:7]), "50 rows")):
            status, _, err = self.run_it(self.arguments("-", self.file("y.npy"), *options), given)
            self.assertEqual(status, 1, err)
            self.assertIn(says, err)
        kept = ["--checkpoint", self.file("ck"), "--resume"]
        for status, options in ((0, ["--steps", "2"]), (1, [])):
            is_status, _, err = self.run_it(self.arguments("-", self.file("y.npy"), *kept, *options), encoded(self.x))
            self.assertEqual(is_status, status, err)
        self.assertIn("--resume: - is a pipe", err)
        status, _, err = self.run_it(self.arguments("-", "-"), encoded(self.x))
        self.assertEqual(status, 1)
        self.assertIn("standard input can be read for one option only", err)
        bad = self.x.copy()
        bad[19, 3] = np.nan
        status, _, err = self.run_it(self.arguments("-", self.file("y.npy")), encoded(bad))
        self.assertEqual(status, 1)
        self.assertIn("its batch was rows 16 to 23; row 19 of standard input holds NaN", err)

    def test_nobody_waits_for_nothing(self):
        """A run whose steps are done ends though more could come; one whose writer takes its time waits, and can be ended."""
        read, write = os.pipe()
        os.write(write, encoded(np.tile(self.x, (10, 1)))[:128 + 32 * 100])
        self.addCleanup(os.close, write)
        np.save(self.file("y.npy"), np.tile(self.y, (10, 1)))
        run = subprocess.run(self.arguments("-", self.file("y.npy"), "--steps", "5"), stdin=read, capture_output=True,
                             timeout=60)
        self.assertEqual(run.returncode, 0, run.stderr)
        os.close(read)
        opened = os.open(self.file("x.fifo"), os.O_RDWR) # a writer that writes nothing
        self.addCleanup(os.close, opened)
        environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}  # it starts itself again
        run = subprocess.Popen(self.arguments(self.file("x.fifo"), self.file("y.npy")), stderr=subprocess.PIPE, env=environment)
        self.addCleanup(run.stderr.close)
        self.addCleanup(lambda: (run.kill(), run.wait()))
        with self.assertRaises(subprocess.TimeoutExpired):
            run.wait(7)
        if os.path.exists("/proc/self/comm"):  # pkill and top know it by its name all the same
            with open(f"/proc/{run.pid}/comm", encoding="utf-8") as f:
                self.assertEqual(f.read().strip(), os.path.basename(PROGRAM)[:15])
        run.send_signal(signal.SIGINT)
        self.assertEqual(run.wait(30), -signal.SIGINT)


if __name__ == "__main__":
    unittest.main()
