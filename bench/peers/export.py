# SPDX-License-Identifier: Apache-2.0
"""Writes a workload of the peers' harness, or that of plain.py, for this program: model.onnx, x.npy and target.npy
(x.bin and target.bin: the same without header) and case.json, all in the folder given. Runs in the environment with
torch.

    python export.py --peers DIR --workload W1 --depth 64 --out FOLDER [options of the harness, as --gain 0.3]

The model is the harness's own, exported in training mode; the loss is left to the trainer, which knows it by name. So
a flow ends in its two halves, joined, and its log-determinant, and logits of a sequence keep their axes."""
import argparse
import functools
import json
import os
import sys

import numpy as np
import torch

import plain


def rows(net, x):
    return net.out(net.trunk(net.stem(x)))


def sequence(net, x):
    """Logits [batch, place, class]: the harness flattens them for its loss."""
    return net.last(net.norm(sum(net.trunk(net.stem(x)))))


def flow(net, x):
    *halves, logdet = net.trunk(net.stem(x))
    return torch.cat(halves, 1), logdet


# What follows the blocks; what the trainer is told of the loss.
ENDS = {"W1": (rows, {"loss": "cross_entropy"}), "W2": (rows, {"loss": "cross_entropy"}),
        "W3": (sequence, {"loss": "cross_entropy", "axis": 2}),
        "R": (rows, {"loss": "cross_entropy"}), "W4": (flow, {"loss": "nll", "output": "z", "logdet": "logdet"})}


def write(folder, name, tensor):
    """NAME.npy, and NAME.bin with the bare elements, as bench_step reads them: TYPE:DIMS:FILE."""
    array, path = tensor.numpy(), os.path.join(folder, name)
    np.save(path + ".npy", array)
    array.tofile(path + ".bin")
    kind = "f32" if array.dtype == np.float32 else "i64"
    return f"{kind}:{'x'.join(map(str, array.shape))}:{path}.bin"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", required=True, help="folder of the harness")
    parser.add_argument("--workload", required=True, choices=sorted(ENDS))
    parser.add_argument("--depth", type=int, required=True)
    parser.add_argument("--batch", type=int, help="the first so many rows; default: the harness's")
    parser.add_argument("--out", required=True)
    parser.add_argument("--opset", type=int, default=17)
    known, _ = parser.parse_known_args()
    sys.path.insert(0, known.peers)
    import workloads
    workloads.add_options(parser)
    args = parser.parse_args()

    net, x, target = plain.build(workloads, args)
    end, told = ENDS[args.workload]
    os.makedirs(args.out, exist_ok=True)
    net.forward = functools.partial(end, net)
    outputs = [told["output"], told["logdet"]] if "logdet" in told else ["out"]
    torch.onnx.export(net, (x,), os.path.join(args.out, "model.onnx"), dynamo=False, opset_version=args.opset,
                      input_names=["x"], output_names=outputs, training=torch.onnx.TrainingMode.PRESERVE,
                      do_constant_folding=False)
    case = {"told": told, "input": "x:" + write(args.out, "x", x), "target": None,
            "first": workloads.first_layer(net)}
    if told["loss"] == "cross_entropy":
        labels = target.reshape(x.shape) if args.workload == "W3" else target
        case["target"] = write(args.out, "target", labels)
    with open(os.path.join(args.out, "case.json"), "w") as f:
        json.dump(case, f)


if __name__ == "__main__":
    main()
