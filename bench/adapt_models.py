# SPDX-License-Identifier: Apache-2.0
"""Models of adapt.py whose products have weights of 4 bits, as onnxruntime's tools write them (MatMulNBits). Needs onnx.

    adapt_models.py int4 FROM TO     every MatMul with a constant matrix becomes a MatMulNBits of 4 bits, blocks of 32
    adapt_models.py qwen TO          a decoder of Qwen2-0.5B's shape, random bits: ids [1, 256] to logits
                                     (TO without .onnx and .x.npy, .y.npy: a row of inputs and labels)"""
import os
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BLOCK, OPSETS = 32, [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]


def packed(w):
    """A matrix [inputs, outputs] as MatMulNBits has it: bytes [outputs, blocks, BLOCK / 2] and scales, without zeros."""
    ins, outs = w.shape
    blocks = (ins + BLOCK - 1) // BLOCK
    parts = np.pad(w, ((0, blocks * BLOCK - ins), (0, 0))).T.reshape(outs, blocks, BLOCK)
    scale = np.abs(parts).max(axis=2) / 7 + 1e-12
    q = np.clip(np.rint(parts / scale[..., None]) + 8, 0, 15).astype(np.uint8)
    return q[..., 0::2] | q[..., 1::2] << 4, scale.reshape(-1).astype(np.float32)


def matmul4(x, y, name, ins, outs):
    return helper.make_node("MatMulNBits", [x, f"{name}_Q4", f"{name}_scales"], [y], name, domain="com.microsoft", K=ins,
                            N=outs, bits=4, block_size=BLOCK)


def int4(source, target):
    model = onnx.load(source)
    graph = model.graph
    held = {t.name: t for t in graph.initializer}
    turned = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "Transpose" and n.input[0] in held}
    for i, node in enumerate(graph.node):
        name = node.input[1] if node.op_type == "MatMul" else ""
        if name not in held and name not in turned:
            continue
        w = numpy_helper.to_array(held[turned.get(name, name)])
        w = w.T if name in turned else w
        graph.node[i].CopyFrom(matmul4(node.input[0], node.output[0], name, *w.shape))
        for kind, values in zip(("Q4", "scales"), packed(w)):
            graph.initializer.append(numpy_helper.from_array(values, f"{name}_{kind}"))
    read = {name for node in graph.node for name in node.input}
    for node in [n for n in graph.node if n.output[0] in turned and n.output[0] not in read]:
        graph.node.remove(node)
    read = {name for node in graph.node for name in node.input}
    for t in [t for t in graph.initializer if t.name not in read]:
        graph.initializer.remove(t)
    model.opset_import.append(OPSETS[1])
    onnx.save(model, target)


class Decoder:
    """24 layers of width 896, 14 heads of 64 that share 2 of keys and values, 4,864 hidden, 151,936 words."""
    width, heads, pairs, head, hidden, layers, words, length = 896, 14, 2, 64, 4864, 24, 151936, 256

    def __init__(self):
        self.nodes, self.held, self.random = [], [], np.random.default_rng(0)

    def hold(self, name, values):
        self.held.append(numpy_helper.from_array(values, name))
        return name

    def op(self, kind, operands, name, **attributes):
        self.nodes.append(helper.make_node(kind, operands, [name], name, **attributes))
        return name

    def linear(self, x, name, ins, outs):
        blocks = ins // BLOCK
        self.hold(f"{name}_Q4", self.random.integers(0, 256, (outs, blocks, BLOCK // 2), np.uint8))
        self.hold(f"{name}_scales", np.full(outs * blocks, 0.003, np.float32))
        self.nodes.append(matmul4(x, name, name, ins, outs))
        return name

    def norm(self, x, name):
        return self.op("RMSNormalization", [x, self.hold(f"{name}.weight", np.ones(self.width, np.float32))], name,
                       axis=-1, epsilon=1e-6)

    def attention(self, x, k):
        d = self.head
        q, key, v = (self.linear(x, f"{k}.{n}", self.width, heads * d)
                     for n, heads in (("q", self.heads), ("k", self.pairs), ("v", self.pairs)))
        q, key = (self.op("RotaryEmbedding", [n, "cos", "sin", "places"], f"{n}.turned", num_heads=heads)
                  for n, heads in ((q, self.heads), (key, self.pairs)))
        a = self.op("Attention", [q, key, v], f"{k}.attended", is_causal=1, q_num_heads=self.heads,
                    kv_num_heads=self.pairs)
        return self.linear(a, f"{k}.o", self.heads * d, self.width)

    def write(self, stem):
        angle = np.outer(np.arange(self.length), 1e6 ** -(np.arange(self.head // 2) * 2 / self.head)).astype(np.float32)
        self.hold("cos", np.cos(angle)), self.hold("sin", np.sin(angle))
        self.hold("places", np.arange(self.length)[None])
        blocks = self.width // BLOCK
        self.hold("embed_Q4", self.random.integers(0, 256, (self.words, self.width // 2), np.uint8))
        self.hold("embed_scales", np.full((self.words, blocks), 0.003, np.float32))
        x = self.op("GatherBlockQuantized", ["embed_Q4", "x", "embed_scales"], "embedded", domain="com.microsoft",
                    bits=4, block_size=BLOCK)
        for k in range(self.layers):
            x = self.op("Add", [x, self.attention(self.norm(x, f"{k}.norm1"), k)], f"{k}.sum1")
            y = self.norm(x, f"{k}.norm2")
            gate, up = (self.linear(y, f"{k}.{n}", self.width, self.hidden) for n in ("gate", "up"))
            y = self.op("Mul", [self.op("Mul", [gate, self.op("Sigmoid", [gate], f"{k}.sigmoid")], f"{k}.silu"), up],
                        f"{k}.product")
            x = self.op("Add", [x, self.linear(y, f"{k}.down", self.hidden, self.width)], f"{k}.sum2")
        self.linear(self.norm(x, "norm"), "out", self.width, self.words)
        ends = [helper.make_tensor_value_info("x", TensorProto.INT64, [1, self.length])], [
            helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, self.length, self.words])]
        graph = helper.make_graph(self.nodes, "decoder", *ends, self.held)
        onnx.save(helper.make_model(graph, opset_imports=OPSETS, ir_version=11), stem + ".onnx")
        for name in "x", "y":
            np.save(f"{stem}.{name}.npy", self.random.integers(0, self.words, (1, self.length)))


if __name__ == "__main__":
    if sys.argv[1:2] == ["int4"] and len(sys.argv) == 4:
        int4(*sys.argv[2:])
    elif sys.argv[1:2] == ["qwen"] and len(sys.argv) == 3:
        Decoder().write(os.path.splitext(sys.argv[2])[0])
    else:
        sys.exit(__doc__)
