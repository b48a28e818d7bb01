# SPDX-License-Identifier: Apache-2.0
"""What the process takes, on a model with 60 MiB of weights. Fails if pages of the model's file stay in memory beside the
arena, if the weights are there twice while it is filled, or if the process takes more than it says. Nothing is timed."""
import collections
import os
import re
import signal
import subprocess
import tempfile
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import common

MIB = 2**20
LAYERS, WIDTH = 15, 1024  # parts of 16 MiB are given back, and then the rest
WEIGHTS = 4 * LAYERS * WIDTH * WIDTH
# Buffers that libraries take in the first step, on one thread, and what the system is off by in counting.
LIBRARIES = 32 * MIB


def write_model(path):
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for i in range(LAYERS):
        nodes += [helper.make_node("MatMul", [f"x{i}" if i else "x", f"w{i}"], [f"m{i}"]),
                  helper.make_node("Tanh", [f"m{i}"], [f"x{i + 1}"])]
        weights.append(numpy_helper.from_array(rng.standard_normal((WIDTH, WIDTH), np.float32) / 32, f"w{i}"))
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", WIDTH])],
                              [helper.make_tensor_value_info(f"x{LAYERS}", TensorProto.FLOAT, ["N", WIDTH])], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@unittest.skipUnless(os.path.exists("/proc/self/smaps"), "no /proc")
class Process(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = os.path.join(cls.folder.name, "model.onnx")
        write_model(cls.model)
        rng = np.random.default_rng(1)
        for name in "xy":
            np.save(cls.at(f"{name}.npy"), rng.standard_normal((64, WIDTH)).astype(np.float32))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def at(cls, name):
        return os.path.join(cls.folder.name, name)

    def words(self, command, *more):
        out = ["-o", self.at("out.onnx"), "--memory", "store"] if command == "train" else []
        return [common.PROGRAM, command, self.model, "--data", self.at("x.npy"), "--target", self.at("y.npy"), "--loss", "mse",
                "--batch", "8", "--threads", "1", *out, *more]

    def watched(self, words):
        """stdout, and the largest of what /proc/PID/status said by name; of RssFile the last, too."""
        most, last = collections.Counter(), 0
        with tempfile.TemporaryFile() as out:
            child = subprocess.Popen(words, stdout=out, stderr=subprocess.DEVNULL)
            while child.poll() is None:
                try:
                    with open(f"/proc/{child.pid}/status") as f:
                        seen = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in f if line.startswith(("Rss", "VmHWM"))}
                except OSError:
                    continue
                most.update({name: max(0, n - most[name]) for name, n in seen.items()})
                last = seen.get("RssFile", last)
            self.assertEqual(child.returncode, 0, words)
            out.seek(0)
            return out.read().decode(), most, last

    def resident_of_file(self, pid, path=None):
        """Bytes of a file, the model's, that are in the process's memory."""
        total, counts = 0, False
        with open(f"/proc/{pid}/smaps") as f:
            for line in f:
                if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                    counts = line.rstrip("\n").endswith(os.path.basename(path or self.model))
                elif counts and line.startswith("Rss:"):
                    total += 1024 * int(line.split()[1])
        return total

    def resident_within(self, path, words):
        """The same while a training stands still, somewhere in its steps."""
        child = subprocess.Popen([*words, "--epochs", "1000000"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        try:
            for line in child.stdout:
                if line.startswith(b"epoch"):  # by now an interrupt ends it as it should
                    break
            child.send_signal(signal.SIGSTOP)
            os.waitpid(child.pid, os.WUNTRACED)
            return self.resident_of_file(child.pid, path)
        finally:
            child.send_signal(signal.SIGCONT)
            child.send_signal(signal.SIGINT)
            child.stdout.read()
            child.stdout.close()
            self.assertEqual(child.wait(), 130)

    def test_pages_of_the_model_are_given_back(self):
        self.assertLess(self.resident_within(self.model, self.words("train")), WEIGHTS // 8)

    def test_frozen_weights_stay_in_the_file(self):
        """Where it has them aligned: of those that no node is about to read the pages go back. What is trained beside them
        is the same."""
        beside, lora = self.at("beside.onnx"), ["--lora", "*", "--rank", "2"]
        onnx.save(onnx.load(self.model), beside, save_as_external_data=True, location="beside.data")
        words = {path: [path if w == self.model else w for w in self.words("train", *lora)] for path in (self.model, beside)}
        self.assertLess(self.resident_within(self.at("beside.data"), words[beside]), WEIGHTS // 2)
        adapters = []
        for path, command in words.items():
            told = common.report(*command[1:], "--adapter-out", self.at("a.onnx_adapter"), "--steps", "3", "--deterministic")
            with open(self.at("a.onnx_adapter"), "rb") as f:
                adapters.append(f.read())
        self.assertGreater(told["mapped_bytes"], 0.99 * WEIGHTS)
        self.assertEqual(*adapters)
        if not common.sanitized():
            self.assertLess(told["private_bytes"], WEIGHTS)

    def test_weights_are_not_there_twice(self):
        """What was resident at most is the arena, files that are still mapped, and a part of the weights. Steps enough that
        the program is seen after it was filled; it is not seen at its highest, but the system notes that."""
        _, most, last = self.watched(self.words("eval", "--batch", "1"))
        self.assertGreater(most["RssAnon"], WEIGHTS)
        self.assertLess(most["VmHWM"], most["RssAnon"] + last + WEIGHTS // 2)

    @unittest.skipIf(common.sanitized(), "sanitizers take memory of their own")
    def test_promise_is_kept(self):
        report = common.report(*self.words("train", "--steps", "3")[1:])
        promised = report["process_bytes"]
        self.assertEqual(promised, report["planned_peak_bytes"] + report["beside_bytes"])
        self.assertGreater(report["private_bytes"], report["planned_peak_bytes"])
        self.assertLess(report["private_bytes"], 1.1 * promised + LIBRARIES)
        self.assertLess(report["beside_bytes"], WEIGHTS)
        out, most, _ = self.watched(self.words("train", "--steps", "3"))
        self.assertLess(most["RssAnon"], 1.1 * promised + LIBRARIES)
        self.assertRegex(out, r"\nthe process takes about [0-9.]+ MiB \([0-9.]+ MiB for program and libraries\)\n")
        self.assertRegex(out, r"\n3 steps in [0-9.]+ s, [0-9.]+ MiB of memory; weights saved to ")

    @unittest.skipIf(common.sanitized(), "sanitizers take memory of their own")
    def test_looking_at_rows_is_within_it(self):
        """Before the first step a few rows are run, with weights that are read in the file where it has them aligned."""
        path = self.at("rows.onnx")
        onnx.save(onnx.load(self.model), path, save_as_external_data=True, location="rows.data")
        for more in ["--lora", "*", "--rank", "2"], ["--weights", "bf16", "--early-update"]:
            words = [path if w == self.model else w for w in self.words("train", "--steps", "1", *more)]
            _, least, _ = self.watched([*words, "--rows-mix"])
            _, most, _ = self.watched(words)
            with self.subTest(more=more):
                self.assertLess(most["RssAnon"], least["RssAnon"] + WEIGHTS // 4)

    def test_plan_says_it(self):
        words = ("plan", self.model, "--loss", "mse", "--batch", "8", "--threads", "1", "--memory", "store")
        report = common.report(*words)
        self.assertEqual(report["process_bytes"], report["planned_peak_bytes"] + report["beside_bytes"])
        _, out, _ = common.call(*words)
        self.assertRegex(out, r"\n  program and libraries +[0-9.]+ MiB   \(the process takes about [0-9.]+ MiB\)\n")
        report = common.report(*words, "--device", "cuda")  # whose memory is not the process's
        self.assertIsNone(report["process_bytes"])


if __name__ == "__main__":
    unittest.main()
