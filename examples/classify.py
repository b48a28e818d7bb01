# SPDX-License-Identifier: Apache-2.0
"""What a classifier takes pictures for, in onnxruntime. Needs numpy and onnxruntime.

    python3 examples/classify.py MODEL PICTURE...

The pictures are those of examples/digits_to_png.py, in folders by class; of each 8 x 8 pixels are cut out of the
middle and scaled to -1..1, as --normalize 0.5/0.5 does."""
import os
import sys

import numpy as np
import onnxruntime

import digits_to_png


def read(path, size=8):
    with open(path, "rb") as f:
        rows = np.array(digits_to_png.pixels(f.read()), dtype=np.float32)
    top, left = (np.array(rows.shape) - size) // 2
    return (rows[None, top:top + size, left:left + size] / 255 - 0.5) / 0.5


def main():
    if len(sys.argv) < 3: sys.exit(__doc__)
    model, *pictures = sys.argv[1:]
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    logits, = session.run(None, {session.get_inputs()[0].name: np.stack([read(p) for p in pictures])})
    right = 0
    for path, row in zip(pictures, logits):
        share = np.exp(row - row.max())
        found, wanted = int(row.argmax()), os.path.basename(os.path.dirname(path))
        right += str(found) == wanted
        print(f"{path}: {found} ({share.max() / share.sum():.0%})" + ("" if str(found) == wanted else f", not {wanted}"))
    print(f"{right} of {len(pictures)} right")


if __name__ == "__main__":
    main()
