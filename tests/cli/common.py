# SPDX-License-Identifier: Apache-2.0
"""What the tests of the program share: calling it. INVONNX names the program."""
import json
import os
import re
import subprocess
import tempfile
import unittest

import numpy as np

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
DATA = os.path.join(ROOT, "tests", "data")
EXAMPLES = os.path.join(ROOT, "examples")
full = unittest.skipUnless(os.environ.get("INVONNX_FULL"), "for ./test --full")  # what takes long
PROGRAM = os.environ.get("INVONNX") or os.path.join(ROOT, "build", "dev", "invonnx")


def sanitized():
    """Whether the program is built with sanitizers, which take memory of their own."""
    cache = os.path.join(os.environ.get("INVONNX_BUILD", ""), "CMakeCache.txt")
    if not os.path.exists(cache):
        return False
    with open(cache, encoding="utf-8") as f:
        return re.search(r"^INVONNX_SANITIZE:\w+=.", f.read(), re.M) is not None


def call(*args, env=None):
    """(exit status, stdout, stderr)"""
    done = subprocess.run([PROGRAM, *map(str, args)], capture_output=True, env=env)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def report(*args, env=None):
    """The JSON of a call that has to succeed."""
    status, out, err = call(*args, "--json", env=env)
    assert status == 0, f"exit {status}: {args}\n{err}"
    return json.loads(out)


class InFolder(unittest.TestCase):
    """A folder of its own, with 20 rows of inputs x.npy and targets y.npy for models of 8 numbers."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        rng = np.random.default_rng(1)
        for name in ("x.npy", "y.npy"):
            np.save(self.at(name), rng.standard_normal((20, 8)).astype(np.float32))

    def at(self, name):
        return os.path.join(self.folder.name, name)


def called_too_early(model):
    """Calls within functions of an ONNX model of functions that are listed further down: ["F calls G", ...]"""
    def calls(nodes):
        for n in nodes:
            yield n.domain, n.op_type
            for a in n.attribute:
                for g in [a.g, *a.graphs]:
                    yield from calls(g.node)

    at = {(f.domain, f.name): i for i, f in enumerate(model.functions)}
    return [f"{f.name} calls {c[1]}" for i, f in enumerate(model.functions) for c in calls(f.node) if at.get(c, -1) >= i]


def model(name):
    return os.path.join(DATA, "models", name)
