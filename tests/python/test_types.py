# SPDX-License-Identifier: Apache-2.0
"""The package is typed: mypy --strict finds nothing in it, knows what it gives, and refuses what it does not take."""
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

import invonnx

PACKAGE = os.path.dirname(invonnx.__file__)

RIGHT = """
import numpy as np
import invonnx

m = invonnx.load("model.onnx")
t = m.trainer(loss="mse", optimizer="adamw", budget="1GiB", groups=[invonnx.Group("*.bias", lr=2.0)])
r: float = t.step(np.zeros(3), np.zeros(3)).loss
peak: int = m.plan(loss="mse", batch=4).peak_bytes
t.parameters["w"][:] = 0
"""
WRONG = {'m.trainer(loss="msee")': "Literal", "m.trainer(loss='mse', bugdet=1)": "bugdet", "m.plan()": "loss"}


def mypy(*args, cache):
    done = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, *args], capture_output=True,
                          text=True)
    return done.returncode, done.stdout + done.stderr


class Types(unittest.TestCase):
    def test_package_and_its_users(self):
        with tempfile.TemporaryDirectory() as folder:
            cache = os.path.join(folder, "cache")
            files = [f for f in os.listdir(PACKAGE) if f.endswith((".py", ".pyi"))]
            if importlib.util.find_spec("torch") is None:
                files.remove("torch.py")
            else:
                files = ["."]
            status, out = mypy(*[os.path.join(PACKAGE, f) for f in files], cache=cache)
            self.assertEqual(status, 0, out)
            user = os.path.join(folder, "user.py")
            for more, word in {"": None, **WRONG}.items():
                with open(user, "w", encoding="utf-8") as f:
                    f.write(RIGHT + more + "\n")
                status, out = mypy(user, cache=cache)
                self.assertEqual(status, 0 if word is None else 1, out)
                self.assertIn(word or "", out)


if __name__ == "__main__":
    unittest.main()
