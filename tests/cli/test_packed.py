# SPDX-License-Identifier: Apache-2.0
"""Quantized constants are read packed: outputs and gradients of what reads them are those of the numbers that they stand
for, in float64, and of onnxruntime where it has the form; and no float copy of a weight is made, in the plan or in the
process."""
import math
import os
import subprocess
import sys
import unittest

import numpy as np
import onnx
import onnxruntime
from common import PROGRAM, call, report, sanitized
from microsoft import MS, Case, bare, feed_options
from onnx import TensorProto, helper, numpy_helper

OPSETS = [helper.make_opsetid("", 23), helper.make_opsetid(MS, 1)]
BITS = {TensorProto.INT4: 4, TensorProto.UINT4: 4, TensorProto.FLOAT4E2M1: 4}
RANGE = {TensorProto.INT8: (-128, 128), TensorProto.UINT8: (0, 256), TensorProto.INT4: (-8, 8), TensorProto.UINT4: (0, 16),
         TensorProto.INT16: (-32768, 32768), TensorProto.UINT16: (0, 65536)}
INTEGERS = tuple(RANGE)
FLOATS = (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT4E2M1)


def pack(values, bits):
    """Integers of so many bits, the first one in the low bits of a byte."""
    flat = values.ravel().astype(np.int64) & ((1 << bits) - 1)
    per = 8 // bits
    flat = np.concatenate([flat, np.zeros(-len(flat) % per, np.int64)]).reshape(-1, per)
    return (flat << (bits * np.arange(per))).sum(1).astype(np.uint8).tobytes()


class Weight:
    """A quantized initializer with its scale and zero point, and the numbers that it stands for (`real`, float64)."""

    def __init__(self, rng, kind, shape, scale=(), axis=0, block=0, zero=True):
        self.kind, self.axis, self.block = kind, axis, block
        if kind in RANGE:
            values = rng.integers(*RANGE[kind], shape)
            raw = pack(values, 4) if kind in BITS else values.astype(helper.tensor_dtype_to_np_dtype(kind)).tobytes()
        else:
            raw = rng.integers(0, 256, (math.prod(shape) * BITS.get(kind, 8) + 7) // 8).astype(np.uint8)
            if kind not in BITS:
                raw &= 0xbb  # neither infinities nor NaN
                raw[raw == 0x80] = 0
            raw = raw.tobytes()
        self.tensors = [TensorProto(name="w", data_type=kind, dims=shape, raw_data=raw)]
        if kind not in RANGE:
            values = numpy_helper.to_array(self.tensors[0])
        values = values.astype(np.float64)
        scales = rng.uniform(0.01, 0.1, scale).astype(np.float32)
        self.tensors.append(numpy_helper.from_array(scales, "scale"))
        zeros = np.zeros(scale)
        if zero and kind in RANGE:
            zeros = rng.integers(*RANGE[kind], scale) // 2
            dtype = helper.tensor_dtype_to_np_dtype(kind)
            zraw = pack(np.asarray(zeros), 4) if kind in BITS else np.asarray(zeros, dtype).tobytes()
            self.tensors.append(TensorProto(name="zero", data_type=kind, dims=scale, raw_data=zraw))
        self.real = (values - self.spread(zeros, shape)) * self.spread(scales.astype(np.float64), shape)

    def spread(self, part, shape):
        if np.ndim(part) == 0:
            return part
        if self.block:
            return np.take(part.repeat(self.block, self.axis), range(shape[self.axis]), self.axis)
        return part.reshape([-1 if d == self.axis else 1 for d in range(len(shape))])

    def node(self, output="W"):
        attributes = {"axis": self.axis, **({"block_size": self.block} if self.block else {})}
        return helper.make_node("DequantizeLinear", [t.name for t in self.tensors], [output], name="dequantize", **attributes)


def forms(rng, rows, columns, **kinds):
    """Scales of a matrix: per tensor, channel of either axis, blocks of either axis."""
    for zero in (False, True):
        yield Weight(rng, shape=(rows, columns), zero=zero, **kinds)
        for axis, n in enumerate((rows, columns)):
            yield Weight(rng, shape=(rows, columns), scale=(n,), axis=axis, zero=zero, **kinds)
            for block in (2, 16):
                scale = (-(-rows // block), columns) if axis == 0 else (rows, -(-columns // block))
                yield Weight(rng, shape=(rows, columns), scale=scale, axis=axis, block=block, zero=zero, **kinds)


class Packed(Case):
    def save(self, name, weight, nodes, feeds, shape, external=False):
        """A model of the outputs y, and loss = sum(y c) for numbers c."""
        c = self.rng.standard_normal(shape).astype(np.float32)
        more = [helper.make_node("Mul", ["y", "c"], ["p"]), helper.make_node("ReduceSum", ["p"], ["loss"], keepdims=0)]
        inputs = [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in feeds.items()]
        outputs = [onnx.ValueInfoProto(name=k) for k in ("y", "loss")]
        graph = helper.make_graph([*nodes, *more], "g", inputs, outputs, [*weight.tensors, numpy_helper.from_array(c, "c")])
        model = helper.make_model(graph, ir_version=10, opset_imports=OPSETS)
        onnx.save(model, self.at(name), save_as_external_data=external, size_threshold=0)
        return c.astype(np.float64)

    def check(self, weight, nodes, f, feeds, oracle=True, dequantize=True, modes=("auto",)):
        """y = f(x, W) and the gradients of sum(y c), by float64 differences: y is linear in x."""
        x = feeds["x"].astype(np.float64)
        want = f(x, weight.real)
        nodes = [weight.node(), *nodes] if dequantize else nodes
        c = self.save("m.onnx", weight, nodes, feeds, want.shape)
        step = np.zeros_like(x)
        slope = np.zeros_like(x)
        for i in np.ndindex(*x.shape):
            step[i] = 1
            slope[i] = np.sum((f(x + step, weight.real) - f(x - step, weight.real)) * c) / 2
            step[i] = 0
        got = []
        for mode in modes:
            for more, tol in (((), 2e-6), (("--float64",), 1e-12)):
                out = os.path.join(self.folder, "out")
                report("grad", self.at("m.onnx"), *feed_options(self.folder, feeds), "--loss", "output", "--loss-output", "loss",
                       "--memory", mode, "--dump", out, *more)
                y, dx = np.load(f"{out}/out_y.npy"), np.load(f"{out}/gradin_x.npy")
                for have, wanted in ((y, want), (dx, slope)):
                    self.assertEqual(have.shape, wanted.shape)
                    np.testing.assert_allclose(have, wanted, rtol=0, atol=tol * max(1, np.abs(wanted).max(initial=0)) * 8)
            got.append(dx)
        for other in got[1:]:
            np.testing.assert_array_equal(other, got[0])
        if oracle:
            session = onnxruntime.InferenceSession(self.at("m.onnx"), bare(), providers=["CPUExecutionProvider"])
            by = session.run(["y"], feeds)[0]
            np.testing.assert_allclose(by, want, rtol=0, atol=1e-4 * max(1, np.abs(want).max()))

    def test_types_and_scales(self):
        """W on the right of MatMul: every type, scales per tensor, channel and block, zero points, odd extents."""
        node = helper.make_node("MatMul", ["x", "W"], ["y"])
        for kind in (*INTEGERS, *FLOATS):
            for weight in forms(self.rng, 19, 7, kind=kind):
                with self.subTest(kind=kind, axis=weight.axis, block=weight.block, tensors=len(weight.tensors)):
                    self.check(weight, [node], np.matmul, {"x": self.normal(3, 19)}, oracle=kind in INTEGERS[:4])
                if kind in FLOATS and weight.block:
                    break

    def test_products(self):
        """Both sides, both transpositions, ranks and Gemm; a Transpose behind the weight."""
        rng, normal = self.rng, self.normal
        int4 = {"kind": TensorProto.UINT4, "axis": 1, "block": 4, "scale": (9, 4)}
        matmul, left = (helper.make_node("MatMul", names, ["y"]) for names in (["x", "W"], ["W", "x"]))
        turned = [helper.make_node("Transpose", ["W"], ["T"], perm=[1, 0])]
        on = lambda names: [*turned, helper.make_node("MatMul", names, ["y"])]
        for nodes, f, x in (([matmul], np.matmul, normal(2, 3, 9)),
                            ([left], lambda x, w: w @ x, normal(13, 5)),
                            ([left], lambda x, w: w @ x, normal(2, 2, 13, 3)),
                            (on(["x", "T"]), lambda x, w: x @ w.T, normal(1, 13)),
                            (on(["T", "x"]), lambda x, w: w.T @ x, normal(4, 9, 1)),
                            ([helper.make_node("Gemm", ["x", "W"], ["y"], transB=1)], lambda x, w: x @ w.T, normal(5, 13)),
                            ([helper.make_node("Gemm", ["x", "W"], ["y"], transA=1, alpha=0.5)],
                             lambda x, w: 0.5 * x.T @ w, normal(9, 5))):
            with self.subTest(ops=[n.op_type for n in nodes], inputs=nodes[-1].input):
                self.check(Weight(rng, shape=(9, 13), **int4), nodes, f, {"x": x}, modes=("store", "recompute", "invert"))
        for shape, x in (((3, 5, 6), (2, 3, 4, 5)), ((3, 5, 6), (4, 5)), ((2, 1, 5, 6), (3, 4, 5))):
            for kind in (TensorProto.INT8, TensorProto.INT4):
                axis = len(shape) - 1
                weight = Weight(rng, kind, shape, (*shape[:-1], 2), axis=axis, block=4)
                self.check(weight, [matmul], np.matmul, {"x": normal(*x)}, oracle=False)

    def test_nbits(self):
        """MatMulNBits: bits, sizes of blocks that end within a row's padding, zero points of each kind."""
        for bits, block, k, n, zeros in ((4, 16, 35, 5, None), (4, 32, 96, 7, "packed"), (4, 64, 100, 4, "real"),
                                         (4, 128, 130, 3, "packed"), (4, 256, 256, 6, None), (8, 16, 35, 5, "packed"),
                                         (8, 32, 70, 3, None), (8, 64, 64, 3, "real"), (2, 16, 36, 5, "packed"), (2, 32, 64, 4, None)):
            with self.subTest(bits=bits, block=block, k=k, n=n, zeros=zeros):
                per_row = -(-k // block)
                values = self.rng.integers(0, 1 << bits, (n, per_row * block))
                scale = self.rng.uniform(0.01, 0.1, (n, per_row)).astype(np.float32)
                zero = np.full((n, per_row), 1 << (bits - 1))
                held = {"w": np.frombuffer(pack(values, bits), np.uint8).reshape(n, per_row, -1), "scale": scale.ravel()}
                if zeros == "packed":
                    zero = self.rng.integers(0, 1 << bits, (n, per_row))
                    held["zero"] = np.stack([np.frombuffer(pack(row, bits), np.uint8) for row in zero]).ravel()
                elif zeros == "real":
                    zero = self.rng.uniform(0, 1 << bits, (n, per_row)).astype(np.float32)
                    held["zero"] = zero
                weight = Weight.__new__(Weight)
                weight.tensors = [numpy_helper.from_array(a, name) for name, a in held.items()]
                spread = lambda part: np.asarray(part, np.float64).repeat(block, 1)
                weight.real = ((values - spread(zero)) * spread(scale))[:, :k]
                node = helper.make_node("MatMulNBits", ["x", *held], ["y"], domain=MS, K=k, N=n, bits=bits, block_size=block)
                self.check(weight, [node], lambda x, w: x @ w.T, {"x": self.normal(2, k)}, oracle=False, dequantize=False)

    def test_threads(self):
        """As many as there are: the same bits."""
        weight = Weight(self.rng, TensorProto.INT8, (300, 2100), (2100,), axis=1)
        feeds = {"x": self.normal(70, 300)}
        self.save("m.onnx", weight, [weight.node(), helper.make_node("MatMul", ["x", "W"], ["y"])], feeds, (70, 2100))
        got = []
        for threads in (1, 2, 5):
            out = self.at(f"out{threads}")
            report("grad", self.at("m.onnx"), *feed_options(self.folder, feeds), "--loss", "output", "--loss-output", "loss",
                   "--threads", threads, "--dump", out)
            got.append([np.load(f"{out}/{name}.npy").tobytes() for name in ("out_y", "gradin_x")])
        self.assertEqual(got[0], got[1])
        self.assertEqual(got[0], got[2])

    def test_tiles(self):
        """Extents over those of tiles, and blocks that do not end where these do."""
        for nodes, f, x in (([helper.make_node("MatMul", ["x", "W"], ["y"])], np.matmul, (1, 1100)),
                            ([helper.make_node("MatMul", ["W", "x"], ["y"])], lambda x, w: w @ x, (150, 1))):
            weight = Weight(self.rng, TensorProto.INT4, (1100, 150), (1100, 4), axis=1, block=48)
            self.check(weight, nodes, f, {"x": self.normal(*x)})

    def test_rows(self):
        """Gather along any axis, and leading rows."""
        index = np.array([[2, -1, 0], [5, 5, -6]], np.int64)
        add = helper.make_node("Mul", ["x", "rows"], ["y"])
        for axis, x in ((0, (2, 3, 7)), (1, (6, 2, 3))):
            for block in ({}, {"axis": 1, "block": 4, "scale": (6, 2)}, {"axis": 0, "scale": (6,)}):
                for kind in (TensorProto.INT8, TensorProto.UINT4):
                    weight = Weight(self.rng, kind, (6, 7), **block)
                    nodes = [helper.make_node("Gather", ["W", "index"], ["rows"], axis=axis), add]
                    self.check(weight, nodes, lambda x, w: x * np.take(w, index, axis), {"x": self.normal(*x), "index": index})
        weight = Weight(self.rng, TensorProto.INT4, (9, 7), axis=1, block=4, scale=(9, 2))
        for name, value in (("from", 2), ("to", 7)):
            weight.tensors.append(numpy_helper.from_array(np.array([value], np.int64), name))
        nodes = [helper.make_node("Slice", ["W", "from", "to"], ["rows"]), add]
        weight.node = lambda node=weight.node(): helper.make_node(
            "DequantizeLinear", ["w", "scale", "zero"], ["W"], axis=1, block_size=4)
        self.check(weight, nodes, lambda x, w: x * w[2:7], {"x": self.normal(5, 7)})

    def test_other_readers(self):
        """What has no kernel for packed constants: convolution and element-wise arithmetic."""
        def conv(x, w, group=1):
            n, m, k = x.shape[0], w.shape[0], w.shape[2]
            y = np.zeros((n, m, x.shape[2] - k + 1))
            for o in range(m):
                of = w.shape[1] * (o // (m // group))
                for t in range(y.shape[2]):
                    y[:, o, t] = (x[:, of:of + w.shape[1], t:t + k] * w[o]).sum((1, 2))
            return y
        for group in (1, 2):
            weight = Weight(self.rng, TensorProto.INT8, (4, 6 // group, 3), (4,))
            node = helper.make_node("Conv", ["x", "W"], ["y"], group=group)
            self.check(weight, [node], lambda x, w: conv(x, w, group), {"x": self.normal(2, 6, 7)},
                       modes=("store", "recompute", "invert"))
        weight = Weight(self.rng, TensorProto.UINT8, (3, 5), (5,), axis=1)
        self.check(weight, [helper.make_node("Mul", ["x", "W"], ["y"])], lambda x, w: x * w, {"x": self.normal(2, 3, 5)})

    def test_no_float_copy_in_the_process(self):
        """Eight weights of 4 bits, 64 MiB together, which are 512 MiB in float32: what is resident at most in a training of
        what comes before them is the packed weights and little else, and the plan counts no more."""
        size, count, block, rows = 4096, 8, 128, 8
        nodes, held = [helper.make_node("Mul", ["x", "gain"], ["y0"])], [numpy_helper.from_array(self.normal(size), "gain")]
        for i in range(count):
            bits = self.rng.integers(0, 256, size * size // 2, np.uint8)
            scale = np.full(size * size // block, 0.001, np.float32)
            if i % 2:
                names = [f"w{i}", f"s{i}"]
                held += [numpy_helper.from_array(a, n) for a, n in zip((bits.reshape(size, -1, block // 2), scale), names)]
                nodes.append(helper.make_node("MatMulNBits", [f"y{i}", *names], [f"y{i + 1}"], domain=MS, K=size, N=size, bits=4,
                                              block_size=block))
            else:
                held += [TensorProto(name=f"w{i}", data_type=TensorProto.UINT4, dims=(size, size), raw_data=bits.tobytes()),
                         numpy_helper.from_array(scale.reshape(-1, size), f"s{i}"),
                         TensorProto(name=f"z{i}", data_type=TensorProto.UINT4, dims=(size // block, size),
                                     raw_data=b"\x88" * (size // block * size // 2))]
                nodes += [helper.make_node("DequantizeLinear", [f"w{i}", f"s{i}", f"z{i}"], [f"d{i}"], axis=0, block_size=block),
                          helper.make_node("MatMul", [f"y{i}", f"d{i}"], [f"y{i + 1}"])]
        graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", size])],
                                  [helper.make_tensor_value_info(f"y{count}", TensorProto.FLOAT, ["N", size])], held)
        onnx.save(helper.make_model(graph, ir_version=10, opset_imports=OPSETS), self.at("big.onnx"), save_as_external_data=True)
        packed = count * size * size // 2
        for name in "xt":
            np.save(self.at(f"{name}.npy"), self.normal(2 * rows, size))
        words = ["train", self.at("big.onnx"), "--data", self.at("x.npy"), "--target", self.at("t.npy"), "--loss", "mse",
                 "--batch", rows, "--steps", "2", "--memory", "store", "-o", self.at("out.onnx")]
        told = report(*words)
        self.assertGreater(told["classes"]["parameters"], packed)
        self.assertLess(told["planned_peak_bytes"], 1.2 * packed)
        self.assertGreater(told["mapped_bytes"], 0.99 * packed)
        # by a process of its own: what this one has would count in what its child had
        watch = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, capture_output=True); "
                 "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)")
        most = int(subprocess.check_output([sys.executable, "-c", watch, PROGRAM, *map(str, words)]))
        if not sanitized():
            self.assertLess(most, packed + (96 << 20))

    def test_activations_that_are_quantized(self):
        """Gradients pass them where that is asked for; else they are named, unless none would have to pass."""
        w, s, z = (numpy_helper.from_array(a, name) for name, a in (
            ("w", self.normal(4, 3)), ("s", np.float32(0.05)), ("z", np.array(3, np.uint8))))
        v = numpy_helper.from_array(self.normal(3, 2), "v")
        quantize = [helper.make_node("MatMul", ["x", "w"], ["h"]),
                    helper.make_node("QuantizeLinear", ["h", "s", "z"], ["q"], name="rounds"),
                    helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"])]
        dynamic = [helper.make_node("MatMul", ["x", "w"], ["h"]),
                   helper.make_node("DynamicQuantizeLinear", ["h"], ["q", "qs", "qz"], name="rounds"),
                   helper.make_node("DequantizeLinear", ["q", "qs", "qz"], ["d"])]
        last = [helper.make_node("MatMul", ["d", "v"], ["y"]), helper.make_node("ReduceSum", ["y"], ["loss"], keepdims=0)]
        x = self.normal(5, 4)
        for nodes in (quantize, dynamic):
            graph = helper.make_graph([*nodes, *last], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
                                      [onnx.ValueInfoProto(name="loss")], [w, s, z, v])
            onnx.save(helper.make_model(graph, ir_version=10, opset_imports=OPSETS), self.at("q.onnx"))
            fed = ["grad", self.at("q.onnx"), *feed_options(self.folder, {"x": x}), "--loss", "output"]
            status, _, err = call(*fed)
            self.assertEqual(status, 1)
            for word in (nodes[1].op_type, "'rounds'", "--through-quantization", "--freeze"):
                self.assertIn(word, err)
            report("plan", self.at("q.onnx"), "--loss", "output", "--freeze", "w")  # which wants no gradient of the input
            report(*fed, "--through-quantization", "--dump", self.at("out"))
            h = x @ numpy_helper.to_array(w)
            low, high = min(h.min(), 0), max(h.max(), 0)
            scale, zero = (0.05, 3) if nodes is quantize else ((high - low) / 255, np.round(-low / ((high - low) / 255)))
            at = np.round(h / scale) + zero
            dh = np.ones((5, 2)) @ numpy_helper.to_array(v).T * ((at >= 0) & (at <= 255))
            np.testing.assert_allclose(np.load(self.at("out/grad_w.npy")), x.T @ dh, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    unittest.main()
