# SPDX-License-Identifier: Apache-2.0
"""Small models for the tests of the domain com.microsoft: an encoder as exporters write it and as onnxruntime's optimizer
for transformers joins it, and a decoder as its exporter of language models writes it."""
import zlib

import numpy as np
from onnx import TensorProto, helper, numpy_helper

MS = "com.microsoft"


class Builder:
    """Nodes one after the other; a weight is the same wherever it has the same name."""

    def __init__(self):
        self.nodes, self.held = [], {}

    def hold(self, name, array):
        self.held[name] = numpy_helper.from_array(np.asarray(array), name)
        return name

    def drawn(self, name, *shape, scale=0.3, offset=0.0):
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        return (scale * rng.standard_normal(shape) + offset).astype(np.float32)

    def weight(self, name, *shape, **how):
        return self.hold(name, self.drawn(name, *shape, **how))

    def node(self, op, ins, outs=None, domain="", **attributes):
        """Its first result: named as given, or a name of its own."""
        name = f"{op}_{len(self.nodes)}"
        outs = outs or [f"{name}_out"]
        self.nodes.append(helper.make_node(op, ins, outs, name=name, domain=domain, **attributes))
        return outs[0]

    def ms(self, op, ins, outs=None, **attributes):
        return self.node(op, ins, outs, MS, **attributes)

    def model(self, inputs, outputs, opset=17):
        graph = helper.make_graph(self.nodes, "g", inputs, outputs, list(self.held.values()))
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)]
        return helper.make_model(graph, ir_version=8, opset_imports=opsets)


WORDS, WIDTH, HEADS, LENGTH, LAYERS = 23, 16, 2, 6, 2


def dense(b, x, name, ins, outs):
    y = b.node("MatMul", [x, b.weight(f"{name}.weight", ins, outs)])
    return b.node("Add", [b.weight(f"{name}.bias", outs), y])


def scales(b, name):
    return [b.weight(f"{name}.scale", WIDTH, offset=1), b.weight(f"{name}.shift", WIDTH)]


def spelled_embedding(b):
    """What the layers read, and the mask that they add."""
    axes = [b.hold(f"axis_{k}", np.array([k], np.int64)) for k in (1, 2)]
    mask = b.node("Unsqueeze", [b.node("Unsqueeze", ["mask", axes[0]]), axes[1]])
    mask = b.node("Sub", [b.hold("one", np.float32(1)), b.node("Cast", [mask], to=TensorProto.FLOAT)])
    mask = b.node("Mul", [mask, b.hold("far", np.float32(-10000))])
    places = b.hold("places", np.arange(LENGTH, dtype=np.int64)[None])
    x = b.node("Add", [b.node("Gather", [b.weight("words", WORDS, WIDTH), "ids"]),
                       b.node("Gather", [b.weight("places_table", LENGTH, WIDTH), places])])
    x = b.node("Add", [x, b.node("Gather", [b.weight("segments_table", 2, WIDTH), "segments"])])
    return b.node("LayerNormalization", [x, *scales(b, "embeddings")], axis=-1, epsilon=1e-5), mask


def spelled_layer(b, x, mask, k):
    def heads(v, perm):
        shape = b.hold(f"shape_{len(b.nodes)}", np.array([0, 0, HEADS, WIDTH // HEADS], np.int64))
        return b.node("Transpose", [b.node("Reshape", [v, shape])], perm=perm)

    def norm(v, name):
        return b.node("LayerNormalization", [v, *scales(b, name)], axis=-1, epsilon=1e-5)

    q, key, v = (dense(b, x, f"{k}.{name}", WIDTH, WIDTH) for name in ("query", "key", "value"))
    scores = b.node("MatMul", [heads(q, [0, 2, 1, 3]), heads(key, [0, 2, 3, 1])])
    scores = b.node("Div", [scores, b.hold(f"{k}.root", np.float32((WIDTH // HEADS) ** 0.5))])
    p = b.node("Softmax", [b.node("Add", [scores, mask])], axis=-1)
    y = b.node("Transpose", [b.node("MatMul", [p, heads(v, [0, 2, 1, 3])])], perm=[0, 2, 1, 3])
    y = b.node("Reshape", [y, b.hold(f"{k}.flat", np.array([0, 0, WIDTH], np.int64))])
    x = norm(b.node("Add", [dense(b, y, f"{k}.output", WIDTH, WIDTH), x]), f"{k}.norm1")
    y = dense(b, x, f"{k}.up", WIDTH, 2 * WIDTH)
    erf = b.node("Erf", [b.node("Div", [y, b.hold(f"{k}.two", np.float32(2**0.5))])])
    y = b.node("Mul", [y, b.node("Add", [erf, b.hold(f"{k}.plus", np.float32(1))])])
    y = b.node("Mul", [y, b.hold(f"{k}.half", np.float32(0.5))])
    return norm(b.node("Add", [dense(b, y, f"{k}.down", 2 * WIDTH, WIDTH), x]), f"{k}.norm2")


def joined_embedding(b):
    tables = [b.weight("words", WORDS, WIDTH), b.weight("places_table", LENGTH, WIDTH), b.weight("segments_table", 2, WIDTH)]
    ids, segments, mask = (b.node("Cast", [name], to=TensorProto.INT32) for name in ("ids", "segments", "mask"))
    x = b.ms("EmbedLayerNormalization", [ids, segments, *tables, *scales(b, "embeddings"), mask], ["embedded", "lengths"],
             epsilon=1e-5)
    return x, "lengths"


def joined_layer(b, x, mask, k):
    names = [f"{k}.{name}" for name in ("query", "key", "value")]
    w = b.hold(f"{k}.qkv.weight", np.concatenate([b.drawn(f"{n}.weight", WIDTH, WIDTH) for n in names], axis=1))
    bias = b.hold(f"{k}.qkv.bias", np.concatenate([b.drawn(f"{n}.bias", WIDTH) for n in names]))
    y = b.ms("Attention", [x, w, bias, mask], num_heads=HEADS)
    y = b.node("MatMul", [y, b.weight(f"{k}.output.weight", WIDTH, WIDTH)])
    x = b.ms("SkipLayerNormalization", [y, x, *scales(b, f"{k}.norm1"), b.weight(f"{k}.output.bias", WIDTH)], epsilon=1e-5)
    y = b.node("MatMul", [x, b.weight(f"{k}.up.weight", WIDTH, 2 * WIDTH)])
    y = b.ms("BiasGelu", [y, b.weight(f"{k}.up.bias", 2 * WIDTH)])
    y = b.node("MatMul", [y, b.weight(f"{k}.down.weight", 2 * WIDTH, WIDTH)])
    return b.ms("SkipLayerNormalization", [y, x, *scales(b, f"{k}.norm2"), b.weight(f"{k}.down.bias", WIDTH)], epsilon=1e-5)


def encoder(joined, classes=3):
    """BERT in small, ids, mask and segments to logits of the first word: as exporters of PyTorch write it, or as
    onnxruntime's optimizer joins that (onnxruntime.transformers, model type bert)."""
    b = Builder()
    x, mask = joined_embedding(b) if joined else spelled_embedding(b)
    for k in range(LAYERS):
        x = (joined_layer if joined else spelled_layer)(b, x, mask, k)
    first = b.node("Gather", [x, b.hold("first", np.array(0, np.int64))], axis=1)
    b.node("Gemm", [first, b.weight("head.weight", classes, WIDTH), b.weight("head.bias", classes)], ["logits"], transB=1)
    ids = [helper.make_tensor_value_info(n, TensorProto.INT64, ["N", LENGTH]) for n in ("ids", "mask", "segments")]
    return b.model(ids, [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", classes])])


def quantized(b, name, outs, ins, block=16):
    """A weight [outs, ins] of 4 bits: names of its bytes and scales, and what it stands for."""
    w = b.drawn(f"{name}.weight", outs, ins // block, block)
    scale = (np.abs(w).max(axis=2, keepdims=True) / 7).astype(np.float16).astype(np.float32)  # products are exact so
    q = np.clip(np.rint(w / scale) + 8, 0, 15).astype(np.uint8)
    packed = q[..., 0::2] | q[..., 1::2] << 4
    names = [b.hold(f"{name}.weight_Q4", packed), b.hold(f"{name}.weight_scales", scale[..., 0])]
    return names, ((q.astype(np.float32) - 8) * scale).reshape(outs, ins)


D, KV, QUERIES, FEATURES, UP = 16, 1, 2, 32, 64


def linear(b, x, name, outs, ins, bits):
    """MatMul, or MatMulNBits of 4 bits; the former with the numbers that the latter's bits stand for."""
    names, values = quantized(b, name, outs, ins)
    if bits:
        return b.ms("MatMulNBits", [x, *names], K=ins, N=outs, bits=4, block_size=16, accuracy_level=0)
    for held in names:
        del b.held[held]
    return b.node("MatMul", [x, b.hold(f"{name}.weight", values.T.copy())])


def decoder(bits=True):
    """A decoder as onnxruntime's exporter of language models writes it: ids, mask and an empty past to logits."""
    b = Builder()
    angle = np.outer(np.arange(32), 10.0 ** -(np.arange(D // 2) / D)).astype(np.float32)
    b.hold("cos_cache", np.cos(angle)), b.hold("sin_cache", np.sin(angle))
    total = b.node("ReduceSum", ["attention_mask", b.hold("axis", np.array([1], np.int64))], keepdims=0)
    lengths = b.node("Cast", [b.node("Sub", [total, b.hold("one", np.array(1, np.int64))])], to=TensorProto.INT32)
    total = b.node("Gather", [b.node("Shape", ["attention_mask"]), b.hold("second", np.array(1, np.int64))], axis=0)
    total = b.node("Cast", [total], to=TensorProto.INT32)
    if bits:
        names, _ = quantized(b, "embed", WORDS, FEATURES)
        flat = numpy_helper.to_array(b.held[names[0]]).reshape(WORDS, -1)
        b.hold(names[0], flat)
        x = b.ms("GatherBlockQuantized", [names[0], "input_ids", names[1]], bits=4, block_size=16)
    else:
        names, values = quantized(b, "embed", WORDS, FEATURES)
        for held in names:
            del b.held[held]
        x = b.node("Gather", [b.hold("embed.weight", values), "input_ids"])
    y = b.node("SimplifiedLayerNormalization", [x, b.weight("0.norm1", FEATURES, offset=1)], axis=-1, epsilon=1e-6, stash_type=1)
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, ["N", "T"]) for n in ("input_ids", "attention_mask")]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", "T", WORDS])]
    for k in range(LAYERS):
        q, key, v = (linear(b, y, f"{k}.{n}", outs, FEATURES, bits)
                     for n, outs in (("q", QUERIES * D), ("k", KV * D), ("v", KV * D)))
        past = [f"past_key_values.{k}.{n}" for n in ("key", "value")]
        present = [f"present.{k}.{n}" for n in ("key", "value")]
        inputs += [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", KV, "P", D]) for n in past]
        outputs += [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", KV, "S", D]) for n in present]
        y = b.ms("GroupQueryAttention", [q, key, v, *past, lengths, total, "cos_cache", "sin_cache"], [f"attended_{k}", *present],
                 num_heads=QUERIES, kv_num_heads=KV, do_rotary=1, scale=D**-0.5)
        y = linear(b, y, f"{k}.o", FEATURES, QUERIES * D, bits)
        y = b.ms("SkipSimplifiedLayerNormalization", [x, y, b.weight(f"{k}.norm2", FEATURES, offset=1)],
                 [f"normed_{k}", "", "", f"sum_{k}"], epsilon=1e-6)
        gate, up = (linear(b, y, f"{k}.{n}", UP, FEATURES, bits) for n in ("gate", "up"))
        y = b.node("Mul", [b.node("Mul", [gate, b.node("Sigmoid", [gate])]), up])
        y = linear(b, y, f"{k}.down", FEATURES, UP, bits)
        outs = [f"normed_{k}_out", "", "", f"sum_{k}_out"] if k + 1 < LAYERS else [f"normed_{k}_out"]
        y = b.ms("SkipSimplifiedLayerNormalization", [f"sum_{k}", y, b.weight(f"{k}.norm3", FEATURES, offset=1)], outs,
                 epsilon=1e-6)
        x = f"sum_{k}_out"
    b.node("MatMul", [y, b.weight("lm_head.weight", FEATURES, WORDS)], ["logits"])
    return b.model(inputs, outputs, 21)
