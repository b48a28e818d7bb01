# SPDX-License-Identifier: Apache-2.0
"""Bad files: a verdict with a clear message, in under a second and 200 MB, no crash, nothing written, nothing on the
terminal that rules it. tests/data/bad holds malformed files with their list, hostile.py makes those of an attacker."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import hostile
import numpy as np
from common import DATA, PROGRAM, ROOT

SHARED = os.path.join(ROOT, "..", "shared", "models", "bad")
SECONDS, MEGABYTES = 5.0, 200  # ten times what the slowest takes; of processor time
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\u200e\u200f\u202a-\u202e\udc80-\udc9f]")

# A small process starts the program: what a child has taken counts from its fork on, and this one is large.
MEASURE = """
import json, os, subprocess, sys
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
_, status, usage = os.wait4(child.pid, 0)
print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]),
      file=open(os.environ["MEASURED"], "w"))
"""


def content(path):
    with open(path) as f:
        return f.read()


def sanitized():
    cache = os.path.join(os.environ.get("INVONNX_BUILD", ""), "CMakeCache.txt")
    return os.path.exists(cache) and re.search(r"^INVONNX_SANITIZE:\w+=.", content(cache), re.M) is not None


def files_below(folder):
    return sorted(os.path.join(at, f) for at, _, names in os.walk(folder) for f in names)


class Bad(unittest.TestCase):
    def setUp(self):
        self.top = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.top)
        self.folder = os.path.join(self.top, "model")
        os.mkdir(self.folder)
        self.measured = os.path.join(self.top, "measured")

    def call(self, *args, limits=True):
        """(status, stdout, stderr) of the program, within the limits."""
        env = {"ASAN_OPTIONS": "allocator_may_return_null=1:detect_leaks=1", "OMP_NUM_THREADS": "2", **os.environ,
               "MEASURED": self.measured}
        done = subprocess.run([sys.executable, "-IS", "-c", MEASURE, PROGRAM, *args], capture_output=True, env=env,
                              cwd=self.folder)
        status, seconds, megabytes = json.loads(content(self.measured))
        out, err = (text.decode("utf-8", "surrogateescape") for text in (done.stdout, done.stderr))
        if sanitized():  # of an allocation that is refused
            err = re.sub("^==[0-9]+==WARNING: AddressSanitizer failed to allocate .*\n", "", err, flags=re.M)
        what = f"{args[0]}: exit {status}\n{err[:2000]}"
        self.assertIn(status, (0, 1), what)
        self.assertTrue(status == 0 or err.startswith("invonnx: "), what)
        self.assertLess(len(err), 40_000, args[0])
        for text in (out, err):
            self.assertIsNone(CONTROL.search(text), f"{args[0]}: control characters: {text[:2000]!r}")
        if limits and not sanitized():
            self.assertLess(seconds, SECONDS, what)
            self.assertLess(megabytes, MEGABYTES, what)
        return status, out, err

    def feeds(self, inspection):
        """Zeros for every input; None if one is too large or open."""
        args = []
        for k, port in enumerate(inspection["inputs"]):
            shape = port["shape"]
            if not isinstance(shape, list) or not all(isinstance(d, int) for d in shape):
                return None
            if np.prod(shape, dtype=float) > 1e6:
                return None
            path = os.path.join(self.top, f"in_{k}.npy")
            np.save(path, np.zeros(shape, np.int64 if port["dtype"] == "int64" else np.float32))
            args += ["--feed", f"{port['name']}={path}"]
        return args

    def verdict(self, model, limits=True):
        """("accept" or "reject", message): whether the model runs, after everything else has been tried on it."""
        before = files_below(self.folder)
        status, out, err = self.call("inspect", model, "--json", limits=limits)
        feeds = None
        if status == 0:
            feeds = self.feeds(json.loads(out))
            if not sanitized():
                self.call("inspect", model, limits=limits)
            self.call("plan", model, "--loss", "mse", limits=limits)
        self.assertEqual(files_below(self.folder), before)
        rewritten = os.path.join(self.folder, "rewritten.onnx")
        status, _, err = self.call("rewrite", model, "-o", rewritten, limits=limits)
        self.assertEqual(os.path.exists(rewritten), status == 0)
        for path in set(files_below(self.folder)) - set(before):
            os.unlink(path)
        if feeds is not None:
            status, _, err = self.call("run", model, *feeds, limits=limits)
        self.assertEqual(files_below(self.folder), before)
        return "accept" if status == 0 else "reject", err

    def check(self, model, expected, words):
        verdict, err = self.verdict(model, limits=expected != "large")
        if expected in ("accept", "reject"):
            self.assertEqual(verdict, expected, err[:2000])
        for word in words:
            self.assertIn(word, err)


# What the message has to name, per file of the list.
WORDS = {
    "empty": ["empty"], "truncated_half": ["longer than what is left"], "garbage": ["not a readable ONNX file"],
    "length_too_long": ["longer than what is left"], "cycle": ["cycle", "'h'"],
    "missing_initializer": ["'w'", "nothing defines"], "raw_data_short": ["'w'", "59 bytes", "64"],
    "wrong_weight_shape": ["'w'", "64 bytes", "80"], "gemm_mismatch": ["Gemm", "[2,4]", "[7,3]"],
    "huge_dims_overflow": ["'w'", "addressed"], "negative_dim": ["'w'", "negative"], "unknown_op": ["FrobnicateV2"],
    "unknown_domain": ["com.acme.custom::Relu"], "opset_9999": ["9999"], "duplicate_output": ["'h'", "already defined"],
    "output_undefined": ["'nope'"], "string_tensor": ["'w'", "string"], "axis_out_of_range": ["'y' (Concat)", "axis 7"],
    "negative_axis_out_of_range": ["Softmax", "axis -9"], "conv_group_zero": ["Conv", "group"],
    "bomb_expand": ["bytes", "the largest of its values, 'y'", "[2097152,2097152]"],
    "external_missing_file": ["not_there.bin"], "function_recursive": ["'F'", "calls itself"],
}


def listed(path, expected, words):
    def test(self):
        copy = os.path.join(self.folder, os.path.basename(path))
        shutil.copy(path, copy)
        self.check(copy, expected, words)
    return test


def made(name, expected, words, write):
    def test(self):
        write(self.folder)
        self.check(os.path.join(self.folder, "model.onnx"), expected, words)
    return test


def add_tests():
    for folder in (os.path.join(DATA, "bad"), SHARED):
        if not os.path.isdir(folder) or (folder == SHARED and (sanitized() or "INVONNX_FULL" not in os.environ)):
            continue  # those are the same files
        for line in content(os.path.join(folder, "bad.txt")).splitlines():
            file, expected = line.split("\t")[:2]
            name = file.removesuffix(".onnx")
            where = "" if folder.startswith(DATA) else "shared_"
            setattr(Bad, f"test_{where}{name}", listed(os.path.join(folder, file), expected, WORDS.get(name, [])))
    for name, expected, words, write in hostile.CASES:
        if expected == "large" and sanitized():
            continue
        assert not hasattr(Bad, f"test_hostile_{name}"), name
        setattr(Bad, f"test_hostile_{name}", made(name, expected, words, write))


add_tests()

if __name__ == "__main__":
    unittest.main()
