# SPDX-License-Identifier: Apache-2.0
"""Writes the rules that are ONNX files: NAME and NAME_inverse as local functions, and a graph that calls NAME once. What it gives
as initializers are parameters."""
import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

DOMAIN = "com.example"


def function(name, inputs, output, nodes):
    nodes = [helper.make_node("Constant", [], n[:1], value_float=float(n[1])) if len(n) == 2 else helper.make_node(n[1], n[2].split(), n[:1])
             for n in nodes]
    return helper.make_function(DOMAIN, name, inputs.split(), [output], nodes, [helper.make_opsetid("", 17)])


def pair(path, name, forward, inverse, inputs, parameters):
    """forward and inverse: (inputs, output, nodes), a node being (what it gives, operator, operands), or (name, number)"""
    given = forward[0].split()
    graph = helper.make_graph(
        [helper.make_node(name, given, ["z"], domain=DOMAIN)], "example",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 6]) for n in inputs],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [4, 6])],
        [numpy_helper.from_array(np.asarray(value), n) for n, value in parameters.items()])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    functions = [function(name, *forward), function(name + "_inverse", *inverse)]
    save(helper.make_model(graph, functions=functions, ir_version=8, opset_imports=opsets), path)


# y = x / (2 + |x|), so x = 2 y / (1 - |y|). With a 1 the library takes it for Softsign, which it knows.
pair("softsign.onnx", "WideSoftsign",
     ("x", "y", [("a", "Abs", "x"), ("two", 2), ("b", "Add", "a two"), ("y", "Div", "x b")]),
     ("y", "x", [("a", "Abs", "y"), ("one", 1), ("b", "Sub", "one a"), ("d", "Add", "y y"), ("x", "Div", "d b")]),
     ["x"], {})
# y = (e^x - e^-x) / 2, so x = asinh(y)
pair("sinh.onnx", "SpelledSinh",
     ("x", "y", [("a", "Exp", "x"), ("n", "Neg", "x"), ("b", "Exp", "n"), ("d", "Sub", "a b"), ("two", 2), ("y", "Div", "d two")]),
     ("y", "x", [("x", "Asinh", "y")]),
     ["x"], {})
