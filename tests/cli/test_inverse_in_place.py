# SPDX-License-Identifier: Apache-2.0
"""Couplings that are written in place, `x[:, :4] += t(x[:, 4:])`, as exporters write them out: their inverse direction
and its log-determinant are right, for every way to read a half and to write it.

    test_inverse_in_place.py [--verbose]

A row is a model: how halves lie, how they are read and written, and what is done, a word each:
  add sub mul affine  half 0, or half 1 with "'" behind, by a network of the other one, and written back
  same                read and written back as it is
  zeros               what is written into from here on is new, and halves come from x until they are written
  empty               ... and a constant that lies as it is written, as exporters leave of torch.empty_like
  old                 the next word reads each half from where it was written last, not from what is whole by now
The truth is the forward direction in float64, and the determinant of its Jacobian by central differences.
"""
import argparse
import functools
import itertools
import os
import tempfile

import numpy as np
import onnx

from test_inverse import Made, invert, off, ort, run, within

VERBOSE = False
HALVES = {"front": ([0, 1], [2, 3]), "back": ([2, 3], [0, 1]), "odd": ([1, 3], [0, 2]), "middle": ([1, 2], [0, 3]),
          "mixed": ([3, 0], [2, 1]), "uneven": ([0], [1, 2, 3])}
SHAPES = {"rank 2": ([4], 1), "rank 3": ([4, 3], 1), "rank 3, last": ([2, 4], 2), "rank 4": ([4, 2, 1], 1),
          "rank 4, last": ([1, 2, 4], 3)}


class Writer(Made):
    """A model that writes in place. The ways to read and to write take turns: along the axis turned to the front, or
    swapped with the first one, by tuples of all places up to it, or element by element; the last two know the batch."""

    def __init__(self, shape, axis, read="slice", way="turned", seed=0):
        super().__init__(opset=18, seed=seed)
        self.shape, self.axis, self.rank = shape, axis, len(shape) + 1
        self.hows, self.ways = itertools.cycle(read.split()), itertools.cycle(way.split())
        self.open = not {"tuples", "elements"} & set(way.split())
        self.batch = 2 * int(np.prod(shape))
        self.empty = None
        self.last, self.swapped = list(range(self.rank)), list(range(self.rank))
        self.last[axis], self.last[-1] = self.last[-1], axis
        self.swapped[axis], self.swapped[0] = 0, axis
        self.first = [axis, *(d for d in range(self.rank) if d != axis)]

    def turn(self, v, perm, back=False):
        if list(perm) == sorted(perm): return v
        if v == self.empty: return self.param(np.zeros([[self.batch, *self.shape][d] for d in perm]))
        return self.op("Transpose", v, perm=[int(p) for p in (np.argsort(perm) if back else perm)])

    def read(self, v, places):
        how = next(self.hows)
        if how == "slice" and np.all(np.diff(places) == 1):
            return self.op("Slice", v, *(self.param(np.array([n])) for n in (places[0], places[-1] + 1, self.axis)))
        if how == "tuples":
            places = self.param(np.array(places)[:, None])
            return self.turn(self.op("GatherND", self.turn(v, self.swapped), places), self.swapped)
        return self.op("Gather", v, self.param(np.array(places)), axis=self.axis)

    def write(self, v, places, u):
        way, size = next(self.ways), [self.batch, *self.shape]
        size[self.axis] = len(places)
        at = np.moveaxis(np.broadcast_to(np.array(places), [*np.delete(size, self.axis), len(places)]), -1, self.axis)
        if way == "elements": return self.op("ScatterElements", v, self.param(at), u, axis=self.axis)
        if way in ("turned", "swapped"):
            places, front = self.param(np.array(places)[:, None]), self.first if way == "turned" else self.swapped
            done = self.op("ScatterND", self.turn(v, front), places, self.turn(u, front))
            return self.turn(done, front, True)
        grids = [np.array(places) if d == self.axis else np.arange(size[d]) for d in range(self.axis + 1)]
        return self.op("ScatterND", v, self.param(np.stack(np.meshgrid(*grids, indexing="ij"), -1)), u)

    def net(self, v, n, to):
        h = self.op("Tanh", self.op("MatMul", self.turn(v, self.last), self.param(self.random.normal(size=(n, 5)))))
        return self.turn(self.op("MatMul", h, self.param(self.random.normal(size=(5, to)) / 3)), self.last, True)

    def run(self, v, halves, words):
        """What x is after these words."""
        last, whole, old = [v, v], True, False  # where each half was written last
        for word in words.split():
            k, word = int(word.endswith("'")), word.rstrip("'")
            if word == "zeros": v, whole = self.op("Mul", v, self.param(0.0)), False
            if word == "empty":
                v = self.empty = self.param(np.zeros([self.batch, *self.shape]))
                whole = self.open = False
            before, old = old, word == "old"
            if word in ("zeros", "empty", "old"): continue
            mine, other = halves[k], halves[1 - k]
            a, b = (self.read(v if whole and not before else last[i], p) for i, p in ((k, mine), (1 - k, other)))
            net = functools.partial(self.net, b, len(other), len(mine))
            if word in ("mul", "affine"): a = self.op("Mul", a, self.op("Exp", self.op("Tanh", net())))
            if word in ("add", "affine"): a = self.op("Add", a, net())
            if word == "sub": a = self.op("Sub", net(), a)
            v = last[k] = self.write(v, mine, a)
            whole = whole or last[1 - k] != "x"
        return v

    def save(self, path, z):
        super().save(path, [("x", self.shape)], [("z", z, self.shape)])
        if self.open: return
        model = onnx.load(path)
        for v in [*model.graph.input, *model.graph.output]: v.type.tensor_type.shape.dim[0].dim_value = self.batch
        onnx.save(model, path)


def jacobian_logdet(path, x, folder):
    """log |det| of the forward direction at each of a few rows x, by central differences."""
    d, h = x[0].size, 1e-6
    sums = []
    for row in x:
        moved = row.reshape(1, d) + h * np.concatenate([np.eye(d), -np.eye(d)])
        z = run(path, {"x": moved.reshape(-1, *row.shape)}, folder, "--float64")["z"].reshape(2, d, d)
        sums.append(np.linalg.slogdet((z[0] - z[1]) / (2 * h))[1])
    return np.array(sums)


def check(name, m, z):
    with tempfile.TemporaryDirectory() as tmp:
        model = os.path.join(tmp, "m.onnx")
        m.save(model, z)
        inverse, _ = invert(model, tmp, "--with-logdet", "ld")
        x = np.random.default_rng(1).normal(size=(m.batch, *m.shape))
        z = run(model, {"x": x}, tmp, "--float64")["z"]
        back = run(inverse, {"z": z}, tmp, "--float64")
        errors = [within(f"{name}: x", off(back["x"], x), 1e-10)]
        want = -jacobian_logdet(model, x[:2], tmp)
        errors.append(within(f"{name}: log det", np.abs(back["ld"][:2] - want).max(), 1e-6))
        got = ort(inverse, {"z": z.astype(np.float32)})
        within(f"{name}: onnxruntime", np.abs(got["ld"] - back["ld"]).max(), 1e-3)
        if VERBOSE: print(name, *(f"{e:.1e}" for e in errors))


ROWS = (  # shape, halves, ways to read, ways to write, words
    *(("rank 2", "front", "slice", "turned", words) for words in (
        "add add'", "affine", "affine same", "same affine same' same affine' same'", "affine old affine' old affine",
        "add mul", "mul add mul'", "affine affine affine'", "sub sub'", "zeros affine same'", "zeros same affine'",
        "zeros same' affine add' same old mul", "zeros mul same' add same' affine")),
    *(("rank 2", halves, read, "turned", "affine same add'") for halves in HALVES for read in ("gather", "tuples slice")),
    *(("rank 2", halves, "slice", way, "affine add'") for halves in HALVES for way in ("tuples", "elements")),
    *((shape, halves, "slice gather tuples", ways, "add same affine' same'") for shape in SHAPES
      for halves, ways in (("back", "turned swapped"), ("mixed", "elements tuples"))),
    *((shape, "odd", "tuples", "turned", "zeros affine same' add'") for shape in SHAPES),
    *((shape, "uneven", read, "turned", "empty same affine'") for shape in SHAPES for read in ("tuples", "slice")),
    ("rank 4", "uneven", "gather", "swapped", "empty affine same' mul'"),
    ("rank 3", "back", "gather", "swapped turned", "zeros mul' same add' affine"))


def main():
    global VERBOSE
    parser = argparse.ArgumentParser()
    parser.add_argument("--verbose", action="store_true")
    VERBOSE = parser.parse_args().verbose
    for i, (shape, halves, read, way, words) in enumerate(ROWS):
        m = Writer(*SHAPES[shape], read, way, seed=i)
        check(f"{shape}, {halves}, read by {read}, written by {way}: {words}", m, m.run("x", HALVES[halves], words))


if __name__ == "__main__":
    main()
