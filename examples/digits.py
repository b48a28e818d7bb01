# SPDX-License-Identifier: Apache-2.0
"""Writes examples/data/digits_{train,val}_{x,y}.npy from the handwritten digits that ship with scikit-learn.

x: float32 [N, 1, 8, 8] in -1..1;  y: int64 [N];  a fixed 80/20 split, stratified by digit.
The data: E. Alpaydin, C. Kaynak, Optical Recognition of Handwritten Digits, UCI Machine Learning Repository,
CC BY 4.0."""
import os

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def main():
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
    os.makedirs(folder, exist_ok=True)
    digits = load_digits()
    x = (digits.images / 8 - 1).astype("<f4")[:, None]
    y = digits.target.astype("<i8")
    train_x, val_x, train_y, val_y = train_test_split(x, y, test_size=0.2, stratify=y, random_state=0)
    for name, array in (("train_x", train_x), ("train_y", train_y), ("val_x", val_x), ("val_y", val_y)):
        np.save(os.path.join(folder, f"digits_{name}.npy"), np.ascontiguousarray(array))
        print(name, array.dtype, array.shape)


if __name__ == "__main__":
    main()
