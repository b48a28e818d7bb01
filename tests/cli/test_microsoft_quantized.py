# SPDX-License-Identifier: Apache-2.0
"""Operators on quantized tensors and weights (domain com.microsoft): outputs as onnxruntime's. Where these are quantized
themselves, one in fifty may be one step off: sums in another order may round to the other side."""
import unittest

import ml_dtypes
import numpy as np
import onnx
from common import report
from microsoft import Case, Held, Nodes, by_onnxruntime, feed_options
from onnx import helper

TYPES = (np.uint8, np.int8)


class Quantized(Case):
    def integers(self, dtype, *shape):
        info = np.iinfo(dtype)
        return self.rng.integers(info.min, info.max + 1, shape).astype(dtype)

    def weights(self, dtype, *shape):
        """Of a product. Signed ones have 7 bits: on processors without instructions for products of 8 bits, onnxruntime
        adds up two of them in 16 bits, which are too few for 255 * -128 twice."""
        return self.rng.integers(-64, 64, shape).astype(dtype) if dtype == np.int8 else self.integers(dtype, *shape)

    def scale(self, *shape):
        return self.rng.uniform(0.01, 0.05, shape).astype(np.float32)

    def tensor(self, dtype, *shape):
        """A quantized tensor with its scale and zero point."""
        return [self.integers(dtype, *shape), self.scale(), np.array(3, dtype)]

    def compare_steps(self, nodes, want=None):
        model = nodes.model()
        got, want = self.run_model(model, nodes.feeds), want or by_onnxruntime(model, nodes.feeds)
        for name in nodes.outputs:
            with self.subTest(name):
                self.assertEqual((got[name].shape, got[name].dtype), (want[name].shape, want[name].dtype))
                off = np.abs(got[name].astype(np.int32) - want[name].astype(np.int32))
                self.assertLessEqual(off.max(), 1)
                self.assertLessEqual(np.count_nonzero(off), off.size / 50)

    def test_element_wise(self):
        n, t = Nodes(), self.tensor
        for dtype in TYPES:
            out = [self.scale(), np.array(7, dtype)]
            for op in ("QLinearAdd", "QLinearMul"):
                n.add(op, [*t(dtype, 2, 3, 16), *t(dtype, 2, 3, 16), *out])
                n.add(op, [*t(dtype, 2, 3, 16), *t(dtype, 16), np.float32(0.9), out[1]])
            n.add("QLinearSigmoid", [*t(dtype, 2, 40), np.float32(1 / 256), out[1]])
            n.add("QLinearLeakyRelu", [*t(dtype, 2, 40), *out], alpha=0.1)
            n.add("QLinearSoftmax", [*t(dtype, 2, 40), np.float32(1 / 256), np.array(np.iinfo(dtype).min, dtype)], opset=13)
            n.add("QLinearSoftmax", [*t(dtype, 2, 5, 3), np.float32(1 / 256), np.array(np.iinfo(dtype).min, dtype)], axis=1,
                  opset=13)
            n.add("QLinearWhere", [self.rng.random((2, 3, 16)) > 0.5, *t(dtype, 2, 3, 16), *t(dtype, 16), *out])
            n.add("QLinearConcat", [*out, *t(dtype, 2, 3, 4), *t(dtype, 2, 5, 4), *t(dtype, 2, 1, 4)], axis=1)
        self.compare_steps(n)

    def test_zero_points_that_are_left_out(self):
        """onnxruntime does not load such nodes, though its schema allows them: the same with zeros."""
        n, zeros = Nodes(), Nodes()
        for dtype in TYPES:
            a, b = self.tensor(dtype, 2, 8), self.tensor(dtype, 2, 8)
            zero = np.array(0, dtype)
            n.add("QLinearAdd", [*a[:2], None, *b[:2], None, np.float32(0.1)])
            zeros.add("QLinearAdd", [*a[:2], zero, *b[:2], zero, np.float32(0.1), zero])
        self.compare_steps(n, by_onnxruntime(zeros.model(), zeros.feeds))

    def test_pools(self):
        n, t = Nodes(), self.tensor
        for dtype in TYPES:
            out = [self.scale(), np.array(7, dtype)]
            n.add("QLinearAveragePool", [*t(dtype, 2, 3, 6, 6), *out], kernel_shape=[3, 3], strides=[2, 1], pads=[1, 0, 1, 2])
            n.add("QLinearAveragePool", [*t(dtype, 2, 3, 6, 6), *out], kernel_shape=[2, 2], pads=[1, 1, 1, 1],
                  count_include_pad=1)
            n.add("QLinearAveragePool", [*t(dtype, 2, 6, 6, 3), *out], kernel_shape=[2, 2], channels_last=1)
            n.add("QLinearGlobalAveragePool", [*t(dtype, 2, 3, 6, 6), *out])
            n.add("QLinearGlobalAveragePool", [*t(dtype, 2, 6, 6, 3), *out], channels_last=1)
        self.compare_steps(n)

    def test_products(self):
        n, steps = Nodes(), Nodes()
        for b_type in TYPES:
            a = self.tensor(np.uint8, 5, 24)
            b = [self.weights(b_type, 24, 7), self.scale(), np.array(3, b_type)]
            columns = [Held(b[0]), Held(self.scale(7)), Held(self.integers(b_type, 7))]
            bias = self.rng.integers(-500, 500, 7).astype(np.int32)
            n.add("QGemm", [*a, *map(Held, b)])
            n.add("QGemm", [*a, Held(b[0].T.copy()), *map(Held, b[1:]), Held(bias)], transB=1, alpha=0.5)
            n.add("QGemm", [a[0].T.copy(), *a[1:], *columns], transA=1)
            steps.add("QGemm", [*a, *columns, Held(bias), np.float32(2.0), np.array(120, np.uint8)])
            n.add("MatMulIntegerToFloat", [a[0], Held(b[0]), a[1], Held(b[1]), a[2], Held(b[2])])
            n.add("MatMulIntegerToFloat", [a[0], columns[0], a[1], columns[1], a[2], columns[2], self.normal(7)])
            n.add("DynamicQuantizeMatMul", [self.normal(2, 5, 24), *map(Held, b)])
            n.add("DynamicQuantizeMatMul", [self.normal(5, 24), *columns, self.normal(7)])
        n.add("DynamicQuantizeMatMul", [np.abs(self.normal(5, 24)), Held(self.weights(np.int8, 24, 7)), Held(self.scale())])
        self.compare(n)
        self.compare_steps(steps)

    def test_attention(self):
        n = Nodes()
        x = [self.integers(np.uint8, 2, 5, 8), self.normal(24), np.float32(0.02)]
        for w_type in TYPES:
            w = Held(self.weights(w_type, 8, 24))
            for scale, zero in ((self.scale(), np.array(3, w_type)), (self.scale(24), self.integers(w_type, 24))):
                for mask, more in ((None, {}), (np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32), {}),
                                   (np.array([3, 5], np.int32), {"unidirectional": 1})):
                    n.add("QAttention", [x[0], w, x[1], x[2], Held(scale), mask, np.array(120, np.uint8), Held(zero)],
                          num_heads=2, **more)
        w = Held(self.weights(np.int8, 8, 24))
        n.add("QAttention", [x[0], w, x[1], x[2], Held(self.scale()), None, np.array(120, np.uint8), Held(np.array(0, np.int8)),
                             self.normal(2, 2, 2, 3, 4)], 2, num_heads=2, unidirectional=1)
        self.compare(n)

    def lstm(self, dtype, directions, per_channel, x, h=4):
        """Weights and the rest, as operands."""
        d = directions
        scale = (d, 4 * h) if per_channel else (d,)
        w, r = (Held(self.weights(dtype, d, n, 4 * h)) for n in (x.shape[2], h))
        zero = np.full(scale, 128 if dtype == np.uint8 else 0, dtype) if per_channel else self.integers(dtype, *scale) // 8
        return w, r, [Held(0.2 * self.scale(*scale)), Held(zero)] * 2

    def test_lstm(self):
        n, x = Nodes(), self.normal(5, 2, 3)
        for dtype in TYPES:
            for direction, d in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
                for per_channel in (False, True):
                    w, r, numbers = self.lstm(dtype, d, per_channel, x)
                    rest = [self.normal(d, 32), None, self.normal(d, 2, 4), self.normal(d, 2, 4), self.normal(d, 12)]
                    n.add("DynamicQuantizeLSTM", [x, w, r, *(rest if per_channel else [None] * 5), *numbers], 3, hidden_size=4,
                          direction=direction)
        self.compare(n, atol=2e-5)

    def test_lstm_gradients(self):
        """Straight through the rounding: near those of an LSTM with the numbers that the integers stand for."""
        x = self.normal(6, 2, 3)
        w, r, numbers = self.lstm(np.int8, 1, False, x)
        quantized, plain = Nodes(), Nodes()
        scale, zero = numbers[0].array, numbers[1].array.astype(np.float32)
        floats = [((m.array.astype(np.float32) - zero) * scale).transpose(0, 2, 1) for m in (w, r)]
        bias = Held(self.normal(1, 32))
        quantized.add("DynamicQuantizeLSTM", [x, w, r, bias, None, None, None, None, *numbers], hidden_size=4)
        plain.add("LSTM", [x, *map(Held, floats), bias], domain="", hidden_size=4)
        grads = []
        for k, nodes in enumerate((quantized, plain)):
            nodes.nodes.append(helper.make_node("ReduceSumSquare", [nodes.outputs[0]], ["loss"], keepdims=0))
            nodes.outputs = ["loss"]
            onnx.save(nodes.model(), self.at(f"{k}.onnx"))
            out = self.at(f"g{k}")
            report("grad", self.at(f"{k}.onnx"), *feed_options(self.folder, nodes.feeds), "--loss", "output", "--dump", out,
                   "--through-quantization")
            grads.append(np.load(f"{out}/grad_{nodes.nodes[0].input[3]}.npy").ravel())
        cosine = grads[0] @ grads[1] / np.linalg.norm(grads[0]) / np.linalg.norm(grads[1])
        self.assertGreater(cosine, 0.999)

    def test_refused(self):
        a = self.tensor(np.uint8, 5, 24)
        x = self.normal(5, 2, 3)
        w, r, numbers = self.lstm(np.int8, 1, False, x)
        for named, more in (("Relu", {"activations": ["Relu", "Tanh", "Tanh"]}), ("clip", {"clip": 3.0}),
                            ("input_forget", {"input_forget": 1})):
            self.refused(named, op="DynamicQuantizeLSTM", operands=[x, w, r, *[None] * 5, *numbers], hidden_size=4, **more)
        self.refused("sequence_lens", op="DynamicQuantizeLSTM", hidden_size=4,
                     operands=[x, w, r, None, np.array([5, 3], np.int32), *[None] * 3, *numbers])
        self.refused("before operator set 13", op="QLinearSoftmax",
                     operands=[*self.tensor(np.uint8, 2, 3, 4), np.float32(0.1), np.uint8(0)], axis=1, opset=11)
        self.refused("input 1 (scale)", op="QLinearSigmoid",
                     operands=[a[0], self.scale(24), None, np.float32(0.1), None])


class Packed(Case):
    def test_matmul(self):
        n = Nodes()
        for bits in (2, 4, 8):
            for k, block in ((64, 16), (40, 32), (128, 128)):
                rows, blocks = 6, -(-k // block)
                b = Held(self.rng.integers(0, 256, (rows, blocks, block * bits // 8)).astype(np.uint8))
                scales = Held((0.1 * self.normal(rows, blocks)).astype(np.float32))
                zeros = Held(self.rng.integers(0, 256, (rows, -(-blocks * bits // 8))).astype(np.uint8))
                fixed = {"K": k, "N": rows, "bits": bits, "block_size": block}
                n.add("MatMulNBits", [self.normal(3, k), b, scales], **fixed)
                n.add("MatMulNBits", [self.normal(2, 3, k), b, scales, zeros], **fixed)
                n.add("MatMulNBits", [self.normal(3, k), b, scales, zeros, None, Held(self.normal(rows))], **fixed)
        b = Held(self.rng.integers(0, 256, (6, 2, 8)).astype(np.uint8))
        n.add("MatMulNBits", [self.normal(3, 32), b, Held(self.normal(6, 2)), Held(8 + self.normal(6, 2))], K=32, N=6, bits=4,
              block_size=16)
        self.compare(n)

    def test_gather(self):
        n = Nodes()
        ids = np.array([[0, 4, 2], [3, 3, 1]], np.int64)
        for bits in (2, 4, 8):
            data = Held(self.rng.integers(0, 256, (5, 64 * bits // 8)).astype(np.uint8))
            scales, zeros = Held(self.normal(5, 4)), Held(self.rng.integers(0, 256, (5, 4 * bits // 8)).astype(np.uint8))
            n.add("GatherBlockQuantized", [data, ids, scales], bits=bits, block_size=16)
            n.add("GatherBlockQuantized", [data, ids[0], scales, zeros], bits=bits, block_size=16, gather_axis=0,
                  quantize_axis=-1)
        for dtype in (ml_dtypes.int4, ml_dtypes.uint4):
            low = int(ml_dtypes.iinfo(dtype).min)

            def small(*shape, dtype=dtype, low=low):
                return Held(self.rng.integers(low, low + 16, shape).astype(dtype))

            n.add("GatherBlockQuantized", [small(5, 64), ids, Held(self.normal(5, 4)), small(5, 4)], block_size=16)
            n.add("GatherBlockQuantized", [small(5, 64), ids, Held(self.normal(5, 4))], block_size=16)
            for gather in (0, 1):
                n.add("GatherBlockQuantized", [small(64, 5), ids, Held(self.normal(4, 5))], block_size=16, gather_axis=gather,
                      quantize_axis=0)
        for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn):
            data = Held(self.normal(5, 64).astype(dtype))
            n.add("GatherBlockQuantized", [data, ids, Held(self.normal(5, 4))], block_size=16)
            for rows in (1, 5):  # of scales, one for a row of the table
                n.add("GatherBlockQuantized", [data, ids, Held(self.normal(rows, 1))], block_size=0)
        self.compare(n)

    def test_refused(self):
        b, s = np.zeros((6, 2, 8), np.uint8), self.normal(6, 2)
        fixed = {"op": "MatMulNBits", "K": 32, "N": 6, "block_size": 16}
        a = self.normal(3, 32)
        self.refused("bits is 5", operands=[a, Held(b), Held(s)], bits=5, **fixed)
        self.refused("g_idx", "act_order", operands=[a, Held(b), Held(s), None, Held(np.zeros(32, np.int32))], **fixed)
        self.refused("weight_prepacked is 1", operands=[a, Held(b), Held(s)], weight_prepacked=1, **fixed)
        self.refused("B has 96 bytes", operands=[a, Held(b), Held(s)], bits=8, **fixed)


if __name__ == "__main__":
    unittest.main()
