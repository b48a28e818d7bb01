# SPDX-License-Identifier: Apache-2.0
"""Writes pair.onnx, a plugin that is an ONNX file: a coupling and a scaling, each as a local function NAME with
NAME_inverse beside it. The graph calls each NAME once: what it gives as initializers are parameters, and its shapes serve the
lowering."""
import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

DOMAIN = "com.example"


def function(name, inputs, outputs, nodes):
    return helper.make_function(DOMAIN, name, inputs, outputs, [helper.make_node(*n) for n in nodes],
                                [helper.make_opsetid("", 17)])


branch = [("MatMul", ["x2", "W"], ["h"]), ("Tanh", ["h"], ["t"])]
functions = [
    function("GatedCoupling", ["x1", "x2", "W"], ["y1"], branch + [("Sub", ["t", "x1"], ["d"]), ("Neg", ["d"], ["y1"])]),
    function("GatedCoupling_inverse", ["y1", "x2", "W"], ["x1"], branch + [("Add", ["y1", "t"], ["x1"])]),
    function("ShiftedScale", ["x", "b", "s"], ["y"], [("Sub", ["x", "b"], ["c"]), ("Div", ["c", "s"], ["y"])]),
    function("ShiftedScale_inverse", ["y", "b", "s"], ["x"], [("Mul", ["y", "s"], ["c"]), ("Add", ["c", "b"], ["x"])]),
]
rng = np.random.default_rng(1)
graph = helper.make_graph(
    [helper.make_node("GatedCoupling", ["a", "b", "W"], ["c"], domain=DOMAIN),
     helper.make_node("ShiftedScale", ["c", "shift", "scale"], ["d"], domain=DOMAIN)],
    "example",
    [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 3]) for n in "ab"],
    [helper.make_tensor_value_info("d", TensorProto.FLOAT, [4, 3])],
    [numpy_helper.from_array(rng.normal(size=(3, 3)).astype(np.float32), "W"),
     numpy_helper.from_array(np.float32([0.5, -1, 2]), "shift"),
     numpy_helper.from_array(np.float32([1, 2, -4]), "scale")])
model = helper.make_model(graph, functions=functions, ir_version=8,
                          opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)])
save(model, "pair.onnx")
