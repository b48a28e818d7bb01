# SPDX-License-Identifier: Apache-2.0
"""Bad files: a verdict with a clear message, in under a second and 200 MB, no crash, nothing written, nothing on the
terminal that rules it."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy as np
from common import PROGRAM, sanitized

SECONDS, MEGABYTES = 5.0, 240  # ten times what the slowest takes, of processor time; 100,000 nodes take 221
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f\x80-\x9f\u200e\u200f\u202a-\u202e\udc80-\udc9f]")

# A small process starts the program, for all calls: what a child has taken counts from its fork on, and this one is
# large. Per line: arguments, folder, files for what it says; then exit status, seconds, megabytes.
MEASURE = """
import json, os, subprocess, sys
for line in sys.stdin:
    args, folder, out, err = json.loads(line)
    with open(out, "wb") as o, open(err, "wb") as e:
        child = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=o, stderr=e, cwd=folder)
        _, status, usage = os.wait4(child.pid, 0)
    print(json.dumps([os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]),
          flush=True)
"""


def content(path, **how):
    with open(path, encoding="utf-8", newline="", **how) as f:
        return f.read()


def files_below(folder):
    return sorted(os.path.join(at, f) for at, _, names in os.walk(folder) for f in names)


class BadFile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        env = {"ASAN_OPTIONS": "allocator_may_return_null=1:detect_leaks=1", "OMP_NUM_THREADS": "2", **os.environ}
        cls.starter = subprocess.Popen([sys.executable, "-IS", "-c", MEASURE], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, text=True, env=env)

    @classmethod
    def tearDownClass(cls):
        cls.starter.communicate()

    def setUp(self):
        self.top = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.top)
        self.folder = os.path.join(self.top, "model")
        os.mkdir(self.folder)
        self.said = [os.path.join(self.top, name) for name in ("stdout", "stderr")]

    def call(self, *args, limits=True):
        """(status, stdout, stderr) of the program, within the limits."""
        print(json.dumps([[PROGRAM, *args], self.folder, *self.said]), file=self.starter.stdin, flush=True)
        status, seconds, megabytes = json.loads(self.starter.stdout.readline())
        out, err = (content(path, errors="surrogateescape") for path in self.said)
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
