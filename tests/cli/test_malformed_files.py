# SPDX-License-Identifier: Apache-2.0
"""The malformed files of tests/data/bad, with their list (see file_verdict.py)."""
import os
import shutil
import unittest

from common import DATA, ROOT, sanitized
from file_verdict import BadFile, content

SHARED = os.path.join(ROOT, "..", "shared", "models", "bad")

# What the message has to name, per file of the list.
WORDS = {
    "empty": ["empty"], "truncated_half": ["longer than the rest"], "garbage": ["not a readable ONNX file"],
    "length_too_long": ["longer than the rest"], "cycle": ["cycle", "'h'"],
    "missing_initializer": ["'w'", "nothing defines"], "raw_data_short": ["'w'", "59 bytes", "64"],
    "wrong_weight_shape": ["'w'", "64 bytes", "80"], "gemm_mismatch": ["Gemm", "[2,4]", "[7,3]"],
    "huge_dims_overflow": ["'w'", "addressed"], "negative_dim": ["'w'", "negative"], "unknown_op": ["FrobnicateV2"],
    "unknown_domain": ["com.acme.custom::Relu"], "opset_9999": ["9999"], "duplicate_output": ["'h'", "already defined"],
    "output_undefined": ["'nope'"], "string_tensor": ["'w'", "string"], "axis_out_of_range": ["'y' (Concat)", "axis 7"],
    "negative_axis_out_of_range": ["Softmax", "axis -9"], "conv_group_zero": ["Conv", "group"],
    "bomb_expand": ["bytes", "the largest of its values, 'y'", "[2097152,2097152]"],
    "external_missing_file": ["not_there.bin"], "function_recursive": ["'F'", "calls itself"],
}


class Bad(BadFile):
    pass


def listed(path, expected, words):
    def test(self):
        copy = os.path.join(self.folder, os.path.basename(path))
        shutil.copy(path, copy)
        self.check(copy, expected, words)
    return test


for folder in (os.path.join(DATA, "bad"), SHARED):
    if not os.path.isdir(folder) or (folder == SHARED and (sanitized() or "INVONNX_FULL" not in os.environ)):
        continue  # those are the same files
    for line in content(os.path.join(folder, "bad.txt")).splitlines():
        file, expected = line.split("\t")[:2]
        name = file.removesuffix(".onnx")
        where = "" if folder.startswith(DATA) else "shared_"
        setattr(Bad, f"test_{where}{name}", listed(os.path.join(folder, file), expected, WORDS.get(name, [])))

if __name__ == "__main__":
    unittest.main()
