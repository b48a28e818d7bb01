# SPDX-License-Identifier: Apache-2.0
"""Two moons: the points of examples/data/moons.npy, and the picture of what a flow makes of noise. Drawing needs numpy
and onnxruntime, making the points scikit-learn.

    python3 examples/moons.py data                           examples/data/moons.npy, 2000 points
    python3 examples/moons.py sample INV.onnx moons.svg      500 of them, and 500 samples of the flow beside them"""
import argparse
import os

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "data", "moons.npy")
SIZE, RANGE = 300, 2.6  # of a panel, in pixels and in units of the data


def make():
    from sklearn.datasets import make_moons
    points, _ = make_moons(2000, noise=0.06, random_state=0)
    np.save(DATA, ((points - points.mean(0)) / points.std(0)).astype(np.float32))


def sample(inverse, n, seed=0):
    """Points from noise, through the inverse direction of the flow."""
    import onnxruntime
    session = onnxruntime.InferenceSession(inverse, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return session.run(None, {name: np.random.default_rng(seed).standard_normal((n, 2)).astype(np.float32)})[0]


def panel(points, left, title, colour):
    at = (points * [1, -1] / RANGE + 1) * SIZE / 2
    inside = at[((at > 0) & (at < SIZE)).all(1)]
    dots = " ".join(f"M{x + left:.1f} {y + 30:.1f}h0" for x, y in inside)
    return (f'<text x="{left + SIZE / 2:.0f}" y="20" text-anchor="middle">{title}</text>'
            f'<rect x="{left}" y="30" width="{SIZE}" height="{SIZE}" fill="none" stroke="#bbb"/>'
            f'<path d="{dots}" stroke="{colour}" stroke-width="3" stroke-linecap="round" fill="none"/>\n')


def draw(inverse, path):
    n = 500
    with open(path, "w", encoding="utf-8") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * SIZE + 40}" height="{SIZE + 40}" '
                'font-family="sans-serif" font-size="14" fill="#333">\n'
                '<rect width="100%" height="100%" fill="white"/>\n'
                + panel(np.load(DATA)[:n], 10, "data", "#4878a8")
                + panel(sample(inverse, n), SIZE + 30, "samples", "#c06030") + "</svg>\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("data", "sample"))
    parser.add_argument("files", nargs="*")
    args = parser.parse_args()
    if args.what == "data": return make()
    if len(args.files) != 2: parser.error("sample wants INV.onnx and the picture to write")
    draw(*args.files)


if __name__ == "__main__":
    main()
