# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime training's side of models.py: trains the file that torch_step.py has exported, in the forms of ort_forms.py.
Needs onnxruntime-training.

    ort_step.py check NETWORK DIR [--threads N]   losses on the batches that PyTorch's losses in NETWORK.json are of, beside
                                                  them; of a momentum network only the first is to agree: see OPTIMIZERS
    ort_step.py serve NETWORK DIR [--threads N]   answers as bench_step does: a step timed for each line"""
import argparse
import json
import os
import sys
import tempfile
import time

import numpy as np
import onnx
import onnxruntime
from onnxruntime.training import artifacts, onnxblock
from onnxruntime.training.api import CheckpointState, Module, Optimizer

import ort_forms
from peers.contestant import machine_busy

# There are only SGD, which has no momentum, and AdamW: the one cheaper than PyTorch's, the other Adam with these options.
OPTIMIZERS = {"momentum": artifacts.OptimType.SGD, "adam": onnxblock.optim.AdamW(eps=1e-8, weight_decay=0.0)}


class Loss(onnxblock.Block):
    """Cross entropy of logits whose classes are on axis 1, or on the last one: then of rows of logits."""

    def __init__(self, class_axis, labels):
        super().__init__()
        self.last, self.labels = class_axis > 1, list(labels.shape)

    def build(self, logits):
        graph, labels = self.base.graph, "labels"
        graph.input.append(onnx.helper.make_tensor_value_info(labels, onnx.TensorProto.INT64, self.labels))
        if self.last:
            classes = graph.output[0].type.tensor_type.shape.dim[-1].dim_value
            logits, labels = self.reshaped(logits, [-1, classes]), self.reshaped(labels, [-1])
        graph.node.append(onnx.helper.make_node("SoftmaxCrossEntropyLoss", [logits, labels], ["loss", "log_prob"], "loss"))
        return "loss"

    def reshaped(self, value, dims):
        graph, rows = self.base.graph, value + ".rows"
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(dims, np.int64), value + ".dims"))
        graph.node.append(onnx.helper.make_node("Reshape", [value, value + ".dims"], [rows], rows))
        return rows


def parameters(graph):
    """What PyTorch trains: every float initializer but the running statistics of batch norm."""
    buffers = {name for n in graph.node if n.op_type == "BatchNormalization" for name in n.input[3:]}
    return [i.name for i in graph.initializer if i.data_type == onnx.TensorProto.FLOAT and i.name not in buffers]


def made(stem, known, target, threads):
    """A function of a batch that makes a step and returns the loss."""
    model = onnx.load(stem + ".onnx")
    ort_forms.adapt(model)
    trained = parameters(model.graph)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # as OMP_WAIT_POLICY=passive
    with tempfile.TemporaryDirectory() as folder:
        path = lambda name: os.path.join(folder, name)
        artifacts.generate_artifacts(model, requires_grad=trained, loss=Loss(known["class_axis"], target),
                                     frozen_params=[i.name for i in model.graph.initializer if i.name not in trained],
                                     optimizer=OPTIMIZERS[known["optimizer"]], artifact_directory=folder)
        state = CheckpointState.load_checkpoint(path("checkpoint"))
        module = Module(path("training_model.onnx"), state, device="cpu", session_options=options)
        optimizer = Optimizer(path("optimizer_model.onnx"), module)
    optimizer.set_learning_rate(known["lr"])
    module.train()

    def step(x, target):
        module.lazy_reset_grad()
        loss = module(x, target)
        optimizer.step()
        return float(np.asarray(loss).reshape(-1)[0])
    return step


def resident(key):
    with open("/proc/self/status") as f:
        return next(1024 * int(line.split()[1]) for line in f if line.startswith(key))


def serve(step, batch, idle):
    print(json.dumps({"loss": step(*batch)}), flush=True)
    for _ in sys.stdin:
        busy, wall, cpu = machine_busy(), time.perf_counter(), time.process_time()
        step(*batch)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(json.dumps({"s": wall, "cpu": cpu, "others": max(0, (machine_busy() - busy - cpu) / wall),
                          "peak": resident("VmHWM"), "idle": idle}), flush=True)


def check(step, batches, known):
    for batch, want in zip(batches, known["losses"]):
        print(f"{step(*batch):.6f} {want:.6f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("check", "serve"))
    parser.add_argument("network")
    parser.add_argument("dir")
    parser.add_argument("--threads", type=int, default=2)
    o = parser.parse_args()
    stem = os.path.join(o.dir, o.network)
    with open(stem + ".json") as f:
        known = json.load(f)
    x, target = (np.load(f"{stem}.{name}.npy", mmap_mode="r") for name in ("x", "target"))
    batches = [(np.array(x[i:i + known["batch"]]), np.array(target[i:i + known["batch"]]))
               for i in range(0, len(x), known["batch"])]
    idle = resident("VmRSS")
    step = made(stem, known, batches[0][1], o.threads)
    check(step, batches, known) if o.what == "check" else serve(step, batches[0], idle)


if __name__ == "__main__":
    main()
