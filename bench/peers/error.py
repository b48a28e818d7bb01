# SPDX-License-Identifier: Apache-2.0
"""Relative L2 distance of the gradients that `invonnx grad --dump DIR` wrote from those of ref.npz (float64): over all
parameters, and of one. Needs numpy.

    python error.py REF.npz DIR PARAMETER"""
import json
import os
import sys

import numpy as np


def main():
    ref, folder, first = np.load(sys.argv[1]), sys.argv[2], sys.argv[3]
    off = whole = 0.0
    for name in ref.files:
        want = ref[name]
        got = np.load(os.path.join(folder, f"grad_{name}.npy")).astype(np.float64)
        square, size = np.sum((got - want) ** 2), np.sum(want ** 2)
        off, whole = off + square, whole + size
        if name == first:
            of_first = (square / size) ** 0.5
    print(json.dumps({"all": (off / whole) ** 0.5, "first": of_first}))


if __name__ == "__main__":
    main()
