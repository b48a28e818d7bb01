# SPDX-License-Identifier: Apache-2.0
"""The package is typed: mypy --strict finds nothing in it, knows what it gives, and refuses what it does not take."""
import importlib.util
import inspect
import os
import re
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
log = t.fit([(np.zeros(3), np.zeros(3))], epochs=2)
rate: float = invonnx.Schedule("cosine", 1.0, total=10, warmup="5%")(3)
shapes: dict[str, tuple[str, tuple[object, ...] | None]] = m.inputs
m.trainer(loss="mse", average="ema:0.9", accumulate=4, weights="bf16", groups=["*.bias:lr=2"], modes=["block:*=store"])
t.evaluate_all([(np.zeros(3), None)]).rows + m.parameters
t.save("x.onnx", layout="inline")
with t.modes("store", {"*": "recompute"}), t.averages():
    t.outputs()["y"].shape
found: dict[str, object] = m.add_lora(["*"], rank=4)
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

    def test_everything_public_is_described(self):
        """Docstrings are there, of arguments each is named, arrays have shapes, and what can fail says how."""
        without = {"Session": {"names", "report", "explain", "plan"}, "Result": {"count", "index"}}
        arrays = {"Trainer": {"step"}}
        for name in invonnx.__all__:
            each = getattr(invonnx, name)
            self.assertTrue(inspect.getdoc(each), name)
            self.assertIsNone(re.search(r"^\w+\(.*\)$", inspect.getdoc(each)), name)  # one that a dataclass makes
            members = vars(each) if inspect.isclass(each) and not issubclass(each, Exception) else {}
            for member, f in members.items():
                if member.startswith("_") or not (callable(f) or isinstance(f, property)):
                    continue
                said = inspect.getdoc(f) or ""
                with self.subTest(name=f"{name}.{member}"):
                    self.assertTrue(said)
                    if callable(f) and member not in without.get(name, ()):
                        self.assertIn("Raises\n------\n", said)
                    if member in arrays.get(name, ()):
                        self.assertIn("shape [rows, ...]", said)
                    hints = inspect.signature(f.fget if isinstance(f, property) else f)
                    self.assertIsNot(hints.return_annotation, inspect.Signature.empty)


if __name__ == "__main__":
    unittest.main()
