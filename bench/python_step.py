# SPDX-License-Identifier: Apache-2.0
"""What a training step costs more from Python than from C: t.step of a model that has next to nothing to compute, less
the bare inv_session_step with arguments that are ready. Needs the installed package and onnx.

    bench/python_step.py [--steps N]"""
import argparse
import os
import tempfile
import time

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

import invonnx
from invonnx._native import lib


def tiny(path):
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "tiny",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 4])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 2])],
                              [numpy_helper.from_array(np.ones((4, 2), np.float32), "w")])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    n = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        tiny(os.path.join(folder, "tiny.onnx"))
        m = invonnx.load(os.path.join(folder, "tiny.onnx"))
    t = m.trainer(loss="mse", optimizer="sgd", threads=1, cost="flops")
    x, y = np.ones((4, 4), np.float32), np.zeros((4, 2), np.float32)
    t.step(x, y)
    least = {"Python": float("inf"), "C": float("inf")}
    for _ in range(20):  # by turns, so that both see the same disturbances
        began = time.process_time()
        for _ in range(n):
            t.step(x, y)
        least["Python"] = min(least["Python"], (time.process_time() - began) / n)
        frame, target, session = t._bind(x, y, "batch")
        arguments = session.pointer, frame.arrays, 1, target, 1e-3, session._result
        began = time.process_time()
        for _ in range(n):
            lib.inv_session_step(*arguments)
        least["C"] = min(least["C"], (time.process_time() - began) / n)
    python, c = (1e6 * least[name] for name in ("Python", "C"))
    print(f"t.step {python:.1f} us, inv_session_step {c:.1f} us: {python - c:.1f} us more")


if __name__ == "__main__":
    main()
