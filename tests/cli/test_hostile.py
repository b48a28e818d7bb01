# SPDX-License-Identifier: Apache-2.0
"""The files of an attacker, which hostile.py makes (see file_verdict.py)."""
import os
import unittest

import hostile
from common import sanitized
from file_verdict import BadFile


class Hostile(BadFile):
    pass


def made(expected, words, write):
    def test(self):
        write(self.folder)
        self.check(os.path.join(self.folder, "model.onnx"), expected, words)
    return test


for name, expected, words, write in hostile.CASES:
    if expected == "large" and sanitized():
        continue
    assert not hasattr(Hostile, f"test_{name}"), name
    setattr(Hostile, f"test_{name}", made(expected, words, write))

if __name__ == "__main__":
    unittest.main()
