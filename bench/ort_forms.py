# SPDX-License-Identifier: Apache-2.0
"""The same network in operators that ONNX Runtime 1.19 has gradients for on the CPU, where that is a matter of form."""
import numpy as np
import onnx


class Nodes:
    """Nodes in the place of one; names of their own begin with its output's."""

    def __init__(self, node, shapes):
        self.node, self.shapes, self.list, self.prefix = node, shapes, [], node.output[0] + "."

    def attribute(self, name, default=None):
        return next((onnx.helper.get_attribute_value(a) for a in self.node.attribute if a.name == name), default)

    def constant(self, array):
        name = f"{self.prefix}{len(self.list)}"
        self.list.append(onnx.helper.make_node("Constant", [], [name], value=onnx.numpy_helper.from_array(array)))
        return name

    def put(self, op, inputs, outputs=1, **attributes):
        """Inputs may be lists of integers. Returns the output's name, or all names."""
        inputs = [self.constant(np.array(x, np.int64)) if isinstance(x, list) else x for x in inputs]
        names = [f"{self.prefix}{len(self.list)}.{k}" for k in range(outputs)]
        self.list.append(onnx.helper.make_node(op, inputs, names, names[0], **attributes))
        return names[0] if outputs == 1 else names

    def end(self):
        """The last one made gives what the node gave."""
        self.list[-1].output[0] = self.node.output[0]
        return self.list


def hard_sigmoid(n):
    """And HardSwish, which is x times one."""
    x, number = n.node.input[0], lambda v: n.constant(np.array(v, np.float32))
    swish = n.node.op_type == "HardSwish"
    alpha, beta = (1 / 6, 0.5) if swish else (n.attribute("alpha", 0.2), n.attribute("beta", 0.5))
    moved = n.put("Add", [n.put("Mul", [x, number(alpha)]), number(beta)])
    gate = n.put("Clip", [moved, number(0), number(1)])
    if swish:
        n.put("Mul", [x, gate])
    return n.end()


def layer_norm(n):
    """The gradient reads the outputs that are optional."""
    n.node.output.extend(n.prefix + name for name in ("mean", "scale")[len(n.node.output) - 1:])
    return [n.node]


def lstm(n):
    """Two directions as an LSTM each: there are kernels for the one direction only."""
    if n.attribute("direction", b"forward") != b"bidirectional":
        return [n.node]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in n.node.attribute if a.name != "direction"}
    backwards = lambda x: n.put("Slice", [x, [-1], [-2**62], [0], [-1]])
    x, halves = n.node.input[0], {}
    for k, name in enumerate(n.node.input):
        if name and k not in (0, 4):  # of the weights and of the states
            halves[k] = n.put("Split", [name], 2, axis=0, num_outputs=2)
    ys = []
    for way in (0, 1):
        ins = [halves[k][way] if k in halves else "" for k in range(1, len(n.node.input))]
        y = n.put("LSTM", [backwards(x) if way else x, *ins], 3, **attributes)[0]
        ys.append(backwards(y) if way else y)
    n.put("Concat", ys, axis=1)
    return n.end()


def conv_transpose(n):
    """Where windows do not overlap: a product per place, whose rows are then laid out. ConvTransposeGrad has no kernel."""
    x, w, *bias = n.node.input
    (_, _, height, width), (_, m, kh, kw) = n.shapes[x], n.shapes[w]
    if n.attribute("strides") != [kh, kw] or any(n.attribute("pads", [])) or n.attribute("group", 1) != 1:
        return [n.node]
    rows = n.put("MatMul", [n.put("Transpose", [x], perm=[0, 2, 3, 1]), n.put("Reshape", [w, [0, -1]])])
    blocks = n.put("Reshape", [rows, [0, 0, 0, m, kh, kw]])
    y = n.put("Reshape", [n.put("Transpose", [blocks], perm=[0, 3, 1, 4, 2, 5]), [0, 0, height * kh, width * kw]])
    if bias:
        n.put("Add", [y, n.put("Reshape", [bias[0], [1, -1, 1, 1]])])
    return n.end()


FORMS = {"HardSigmoid": hard_sigmoid, "HardSwish": hard_sigmoid, "LayerNormalization": layer_norm, "LSTM": lstm,
         "ConvTranspose": conv_transpose}


def adapt(model):
    graph = onnx.shape_inference.infer_shapes(model).graph
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in [*graph.value_info, *graph.input]}
    shapes.update((i.name, list(i.dims)) for i in graph.initializer)
    nodes = [made for n in graph.node for made in (FORMS[n.op_type](Nodes(n, shapes)) if n.op_type in FORMS else [n])]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
