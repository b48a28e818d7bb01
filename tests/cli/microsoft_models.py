# SPDX-License-Identifier: Apache-2.0
"""Small models for the tests of the domain com.microsoft: an encoder as exporters write it, which onnxruntime's
optimizer then joins."""
import numpy as np
from onnx import TensorProto, helper, numpy_helper


class Builder:
    """Nodes one after the other, weights drawn as they come."""

    def __init__(self, seed=5):
        self.nodes, self.held = [], []
        self.rng = np.random.default_rng(seed)

    def hold(self, name, array):
        self.held.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def weight(self, name, *shape, scale=0.3, offset=0.0):
        values = scale * self.rng.standard_normal(shape) + offset
        return self.hold(name, values.astype(np.float32))

    def node(self, op, ins, outs=None, domain="", **attributes):
        """Its results: names that are given, or one of its own."""
        name = f"{op}_{len(self.nodes)}"
        outs = outs or [f"{name}_out"]
        self.nodes.append(helper.make_node(op, ins, outs, name=name, domain=domain, **attributes))
        return outs[0]

    def model(self, inputs, outputs, opset=17):
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, self.held)
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, ir_version=8, opset_imports=opsets)


WORDS, WIDTH, HEADS, LENGTH, LAYERS = 23, 16, 2, 6, 2


def encoder(classes=3):
    """BERT in small, as exporters of PyTorch write it: ids, mask and segments to logits of the first word."""
    b = Builder()

    def dense(x, name, ins, outs):
        y = b.node("MatMul", [x, b.weight(f"{name}.weight", ins, outs)])
        return b.node("Add", [b.weight(f"{name}.bias", outs), y])

    def norm(x, name):
        return b.node("LayerNormalization", [x, b.weight(f"{name}.scale", WIDTH, offset=1), b.weight(f"{name}.shift", WIDTH)],
                      axis=-1, epsilon=1e-5)

    def heads(x, perm):
        shape = b.hold(f"shape_{len(b.nodes)}", np.array([0, 0, HEADS, WIDTH // HEADS], np.int64))
        return b.node("Transpose", [b.node("Reshape", [x, shape])], perm=perm)

    axes = [b.hold("axis_1", np.array([1], np.int64)), b.hold("axis_2", np.array([2], np.int64))]
    mask = b.node("Unsqueeze", [b.node("Unsqueeze", ["mask", axes[0]]), axes[1]])
    mask = b.node("Sub", [b.hold("one", np.float32(1)), b.node("Cast", [mask], to=TensorProto.FLOAT)])
    mask = b.node("Mul", [mask, b.hold("far", np.float32(-10000))])
    places = b.hold("places", np.arange(LENGTH, dtype=np.int64)[None])
    x = b.node("Add", [b.node("Gather", [b.weight("words", WORDS, WIDTH), "ids"]),
                       b.node("Gather", [b.weight("segments_table", 2, WIDTH), "segments"])])
    x = b.node("Add", [x, b.node("Gather", [b.weight("places_table", LENGTH, WIDTH), places])])
    x = norm(x, "embeddings")
    for k in range(LAYERS):
        q, key, v = (dense(x, f"{k}.{name}", WIDTH, WIDTH) for name in ("query", "key", "value"))
        scores = b.node("MatMul", [heads(q, [0, 2, 1, 3]), heads(key, [0, 2, 3, 1])])
        scores = b.node("Div", [scores, b.hold(f"{k}.root", np.float32((WIDTH // HEADS) ** 0.5))])
        p = b.node("Softmax", [b.node("Add", [scores, mask])], axis=-1)
        y = b.node("Transpose", [b.node("MatMul", [p, heads(v, [0, 2, 1, 3])])], perm=[0, 2, 1, 3])
        y = b.node("Reshape", [y, b.hold(f"{k}.flat", np.array([0, 0, WIDTH], np.int64))])
        x = norm(b.node("Add", [dense(y, f"{k}.output", WIDTH, WIDTH), x]), f"{k}.norm1")
        y = dense(x, f"{k}.up", WIDTH, 2 * WIDTH)
        erf = b.node("Erf", [b.node("Div", [y, b.hold(f"{k}.two", np.float32(2**0.5))])])
        y = b.node("Mul", [y, b.node("Add", [erf, b.hold(f"{k}.plus", np.float32(1))])])
        y = b.node("Mul", [y, b.hold(f"{k}.half", np.float32(0.5))])
        x = norm(b.node("Add", [dense(y, f"{k}.down", 2 * WIDTH, WIDTH), x]), f"{k}.norm2")
    first = b.node("Gather", [x, b.hold("first", np.array(0, np.int64))], axis=1)
    b.node("Gemm", [first, b.weight("head.weight", classes, WIDTH), b.weight("head.bias", classes)], ["logits"], transB=1)
    ids = [helper.make_tensor_value_info(n, TensorProto.INT64, ["N", LENGTH]) for n in ("ids", "mask", "segments")]
    return b.model(ids, [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", classes])])
