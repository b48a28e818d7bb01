#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The files that the pages of docs/ speak of, as small as the commands there work with, for tests/docs.py.
usage: docs_folder.py FOLDER"""
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
rng = np.random.default_rng(1)


def weight(name, *shape):
    return numpy_helper.from_array((rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32), name)


def save(path, inputs, output, nodes, weights):
    values = [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs]
    out = helper.make_tensor_value_info(output[0], TensorProto.FLOAT, output[1])
    graph = helper.make_graph(nodes, "g", values, [out], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def layers(path, columns, classes, inputs=("x",)):
    """A layer per input, their sum, another layer."""
    nodes = [helper.make_node("MatMul", [n, f"embed.{n}"], [f"h.{n}"]) for n in inputs]
    nodes += [helper.make_node("Sum", [f"h.{n}" for n in inputs], ["h"]), helper.make_node("Tanh", ["h"], ["t"]),
              helper.make_node("MatMul", ["t", "head.weight"], ["y"])]
    weights = [weight(f"embed.{n}", columns, 8) for n in inputs] + [weight("head.weight", 8, classes)]
    save(path, [(n, TensorProto.FLOAT, ["N", columns]) for n in inputs], ("y", ["N", classes]), nodes, weights)


def arrays():
    x, y = rng.standard_normal((96, 4)).astype(np.float32), rng.integers(0, 3, 96)
    layers("model.onnx", 4, 3)
    np.save("x.npy", x)
    np.save("y.npy", y)
    np.save("vx.npy", x[:32])
    np.save("vy.npy", y[:32])
    shutil.copy("y.npy", "labels of x.npy")
    np.savez("xy.npz", x=x, y=y)
    layers("pair.onnx", 4, 2, ("a", "b"))
    for name, columns in (("left", 4), ("right", 4), ("sums", 2)):
        np.save(f"{name}.npy", rng.standard_normal((64, columns)).astype(np.float32))
    os.mkdir("shards")
    for i in range(3):
        np.save(f"shards/x-{i}.npy", x[:32])
        np.save(f"shards/y-{i}.npy", rng.standard_normal((32, 3)).astype(np.float32))


def tokens():
    nodes = [helper.make_node("Gather", ["wte", "tokens"], ["e"]), helper.make_node("MatMul", ["e", "head"], ["y"])]
    save("gpt.onnx", [("tokens", TensorProto.INT64, ["N", "T"])], ("y", ["N", "T", 256]), nodes,
         [weight("wte", 256, 4), weight("head", 4, 256)])
    text = rng.integers(32, 127, 8192)
    text.astype(np.uint16).tofile("train.bin")
    for name in ("book.txt", "text.txt"):
        text.astype(np.uint8).tofile(name)
    os.mkdir("fineweb")
    header = np.zeros(256, np.int32)
    header[:3] = 20240520, 1, len(text)
    for name in ("train_000001", "train_000002", "val_000000"):
        Path(f"fineweb/{name}.bin").write_bytes(header.tobytes() + text.astype(np.uint16).tobytes())


def pictures():
    nodes = [helper.make_node("Conv", ["x", "stem"], ["c"], strides=[32, 32], kernel_shape=[8, 8]),
             helper.make_node("GlobalAveragePool", ["c"], ["p"]), helper.make_node("Flatten", ["p"], ["f"]),
             helper.make_node("MatMul", ["f", "fc"], ["y"])]
    save("resnet.onnx", [("x", TensorProto.FLOAT, ["N", 3, 224, 224])], ("y", ["N", 2]), nodes,
         [weight("stem", 8, 3, 8, 8), weight("fc", 8, 2)])
    for kind in ("cat", "dog"):
        os.makedirs(f"photos/{kind}")
        for i in range(8):
            Image.fromarray(rng.integers(0, 256, (270, 300, 3), np.uint8)).save(f"photos/{kind}/{i}.png")


def tables():
    rows = rng.random((60, 4)).round(2)
    names = rng.choice(["setosa", "versicolor", "virginica"], 60)
    Path("iris.csv").write_text("a,b,c,d,species\n" + "".join(f"{','.join(map(str, r))},{n}\n" for r, n in zip(rows, names)))
    Path("houses.csv").write_text("rooms,area,year,price\n" + "".join(",".join(map(str, r)) + "\n" for r in rows))
    layers("houses.onnx", 3, 1)


def programs():
    os.mkdir("bin")  # on the path of the commands
    Path("bin/generate").write_text('#!/bin/sh\nexec cat "${1:-x}.npy"\n')
    os.chmod("bin/generate", 0o755)


def main():
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    os.makedirs(sys.argv[1])
    os.chdir(sys.argv[1])
    for make in (arrays, tokens, pictures, tables, programs):
        make()
    shutil.copytree(EXAMPLES, "examples")
    shutil.copy(EXAMPLES / "realnvp_moons.onnx", "flow.onnx")


main()
