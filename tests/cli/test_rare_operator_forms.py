# SPDX-License-Identifier: Apache-2.0
"""Forms of operators that few files have: old opsets, new types, quantizers below 8 bits, ai.onnx.ml in front of a
network. Fails if one is refused or gives other numbers than its definition, and if gradients end in it."""
import os
import unittest

import numpy as np
import onnx
from common import InFolder, call
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

ML = "ai.onnx.ml"


def f32(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def node(op, ins, outs, domain="", **attr):
    return h.make_node(op, ins.split(","), outs.split(), domain=domain, **attr)


class Forms(InFolder):
    def model(self, nodes, x, outs, consts=(), opset=17, kind=T.FLOAT):
        graph = h.make_graph(nodes, "g", [h.make_tensor_value_info("x", kind, x.shape)],
                             [h.make_tensor_value_info(k, t, None) for k, t in outs.items()],
                             [v if isinstance(v, T) else nh.from_array(np.asarray(v), k) for k, v in dict(consts).items()])
        onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", opset), h.make_opsetid(ML, 1)], ir_version=8),
                  self.at("m.onnx"))
        np.save(self.at("f.npy"), x)

    def run_one(self, nodes, x, consts=(), opset=17, out=T.FLOAT, kind=T.FLOAT):
        self.model(nodes, x, {"y": out}, consts, opset, kind)
        status, _, err = call("run", self.at("m.onnx"), "--feed", "x=" + self.at("f.npy"), "--dump", self.at("r"))
        self.assertEqual(status, 0, err)
        return np.load(self.at("r/out_y.npy"))

    # --- opset 7 and before ---

    def test_variadic_of_opset_7(self):
        x, k = f32(3), {"b": f32(3, seed=1), "c": f32(3, seed=2)}
        parts = np.stack([x, k["b"], k["c"]])
        for op, right in (("Sum", parts.sum(0)), ("Mean", parts.mean(0)), ("Max", parts.max(0)), ("Min", parts.min(0))):
            np.testing.assert_allclose(self.run_one([node(op, "x,b,c", "y")], x, k, 7), right, rtol=1e-6)
            np.testing.assert_array_equal(self.run_one([node(op, "x", "y")], x, {}, 7), x)

    def test_thresholded_relu_of_opset_7(self):
        x = f32(9)
        np.testing.assert_array_equal(self.run_one([node("ThresholdedRelu", "x", "y", alpha=.5)], x, {}, 7),
                                      np.where(x > .5, x, 0))

    def test_files_of_opset_6_are_told_the_way(self):
        self.model([node("Add", "x,b", "y", axis=0, broadcast=1)], f32(3), {"y": T.FLOAT}, {"b": f32(3)}, 6)
        status, _, err = call("run", self.at("m.onnx"), "--feed", "x=" + self.at("f.npy"))
        self.assertEqual(status, 1)
        for word in ("Add", "opset 7", "convert_version"):
            self.assertIn(word, err)

    def batch_norm(self, shape, spatial=0):
        p = [f32(*shape[1:], seed=i) for i in range(1, 5)]
        p[3] = np.abs(p[3]) + .5
        return [node("BatchNormalization", "x,s,b,m,v", "y", spatial=spatial)], dict(zip("sbmv", p))

    def test_batch_norm_by_element(self):
        for shape in ((4, 5), (4, 3, 2), (4, 3, 2, 2)):
            x, (nodes, p) = f32(*shape), self.batch_norm(shape)
            right = (x - p["m"]) / np.sqrt(p["v"] + 1e-5) * p["s"] + p["b"]
            np.testing.assert_allclose(self.run_one(nodes, x, p, 8), right, rtol=1e-4, atol=1e-5)
        _, p = self.batch_norm((4, 3))
        self.model(nodes, f32(4, 3, 2, 2), {"y": T.FLOAT}, p, 8)
        status, _, err = call("run", self.at("m.onnx"), "--feed", "x=" + self.at("f.npy"))
        self.assertEqual(status, 1)
        self.assertIn("spatial = 0", err)

    def test_batch_norm_by_element_is_trained(self):
        shape = (20, 3, 2, 2)
        nodes, p = self.batch_norm(shape)
        self.model(nodes, f32(*shape), {"y": T.FLOAT}, p, 7)
        np.save(self.at("t.npy"), f32(*shape, seed=9))
        status, _, err = call("grad", self.at("m.onnx"), "--feed", "x=" + self.at("f.npy"), "--target", self.at("t.npy"),
                              "--loss", "mse", "--dump", self.at("g"))
        self.assertEqual(status, 0, err)
        x = f32(*shape)
        slope = (x - p["m"]) / np.sqrt(p["v"] + 1e-5)
        d = 2 * (slope * p["s"] + p["b"] - f32(*shape, seed=9)) / x.size
        np.testing.assert_allclose(np.load(self.at("g/grad_b.npy")), d.sum(0), rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(np.load(self.at("g/grad_s.npy")), (d * slope).sum(0), rtol=1e-4, atol=1e-6)
        status, _, err = call("grad", self.at("m.onnx"), "--feed", "x=" + self.at("f.npy"), "--target", self.at("t.npy"),
                              "--loss", "mse", "--train-bn")
        self.assertIn(status, (0, 1, 2), err)

    # --- Resize ---

    def test_lengths_by_scales(self):
        for length, scale, right in ((20, 1.4, 28), (20, 1.8, 36), (20, .7, 14), (20, 1.3, 26), (10, 2.6, 26),
                                     (30, .1, 3), (7, 1.5, 10)):
            x = np.arange(length, dtype=np.float32).reshape(1, 1, length)
            for op, ins, version in (("Resize", "x,,s", 19), ("Resize", "x,,s", 13), ("Resize", "x,s", 10),
                                     ("Upsample", "x,s", 9)):
                if op == "Upsample" and scale < 1:
                    continue
                y = self.run_one([node(op, ins, "y", mode="linear")], x, {"s": np.float32([1, 1, scale])}, version)
                self.assertEqual(y.shape, (1, 1, right), (op, version, length, scale))
        x = np.arange(20, dtype=np.float32).reshape(1, 1, 20)
        for mode in ("cubic", "nearest"):
            y = self.run_one([node("Resize", "x,,s", "y", mode=mode)], x, {"s": np.float32([1, 1, 1.4])}, 19)
            self.assertEqual(y.shape, (1, 1, 28))

    def test_neighbours_by_scales(self):
        for scale, length in ((1.6, 20), (1.4, 20), (.7, 40), (3.3, 9)):
            x = np.arange(length, dtype=np.float32).reshape(1, 1, length)
            y = self.run_one([node("Resize", "x,,s", "y", mode="nearest", nearest_mode="floor",
                                   coordinate_transformation_mode="asymmetric")], x, {"s": np.float32([1, 1, scale])}, 13)
            at = np.floor(np.arange(y.size, dtype=np.float32) / np.float32(scale))
            np.testing.assert_array_equal(y.ravel(), np.minimum(at, length - 1))

    def test_neighbours_of_opset_10(self):
        """onnxruntime 1.32.0 has these, and for 0.6 the node tests of ONNX 1.5."""
        x = np.arange(20, dtype=np.float32).reshape(1, 1, 4, 5)
        for scales, rows, columns in (((.6, .6), [0, 2], [0, 2, 4]), ((2, .6), [0, 0, 1, 1, 2, 2, 3, 3], [0, 2, 4]),
                                      ((.5, 1.5), [0, 2], [0, 0, 1, 2, 2, 3, 4])):
            y = self.run_one([node("Resize", "x,s", "y")], x, {"s": np.float32([1, 1, *scales])}, 10)
            np.testing.assert_array_equal(y[0, 0], x[0, 0][rows][:, columns])

    def test_bytes(self):
        x = np.uint8([[[[0, 10, 255, 3]]]])
        sizes = {"s": np.int64([1, 1, 1, 9])}
        for mode, right in (("nearest", [0, 0, 10, 10, 10, 255, 255, 3, 3]), ("linear", [0, 2, 6, 24, 132, 241, 157, 45, 3]),
                            ("cubic", [0, 0, 0, 22, 157, 254, 187, 43, 0])):
            y = self.run_one([node("Resize", "x,,,s", "y", mode=mode)], x, sizes, 19, T.UINT8, T.UINT8)
            np.testing.assert_array_equal(y.ravel(), np.uint8(right), mode)

    # --- numbers at the edge ---

    def test_arg_of_nan(self):
        x = np.float32([[3, np.nan, 1], [2, 1, 1], [np.nan, 0, np.nan], [0., -0., 0]])
        for op, last, right in (("ArgMin", 0, [1, 1, 0, 0]), ("ArgMax", 0, [1, 0, 0, 0]), ("ArgMin", 1, [1, 2, 2, 2])):
            y = self.run_one([node(op, "x", "y", axis=1, keepdims=0, select_last_index=last)], x, {}, 13, T.INT64)
            np.testing.assert_array_equal(y, right, op)
        ints = np.int32([[3, -5, 1]])
        y = self.run_one([node("ArgMin", "x", "y", axis=1, keepdims=0)], ints, {}, 13, T.INT64, T.INT32)
        np.testing.assert_array_equal(y, [1])

    def test_zero_has_the_sign_of_the_divisor(self):
        y = self.run_one([node("Mod", "x,b", "y")], np.float32([-0., 0, 6, -6, 5, -5]),
                         {"b": np.float32([3, -3, -3, 3, -3, 3])}, 28)
        np.testing.assert_array_equal(y, [0, 0, 0, 0, -1, 1])
        np.testing.assert_array_equal(np.signbit(y), [False, True, True, False, True, False])

    def test_hard_swish_at_infinity(self):
        y = self.run_one([node("HardSwish", "x", "y")], np.float32([-np.inf, np.inf, -5, 5]), {}, 14)
        np.testing.assert_array_equal(y, [np.nan, np.inf, 0, 5])

    # --- types of 6 bits ---

    def test_float6(self):
        x = np.float32([7.5, 7.6, 28, 30, 100, -0.3, 1.1, 3.3, .19, -np.inf, np.nan])
        right = {"FLOAT6E2M3": [7.5, 7.5, 7.5, 7.5, 7.5, -.25, 1.125, 3.25, .25, -7.5, 0],
                 "FLOAT6E3M2": [8, 8, 28, 28, 28, -.3125, 1, 3.5, .1875, -28, 0]}
        for number, (name, want) in zip((27, 28), right.items()):
            y = self.run_one([node("Cast", "x", "q", to=number), node("Cast", "q", "y", to=T.FLOAT)], x, {}, 28)
            np.testing.assert_array_equal(y, want, name)

    def test_initializers_of_6_bits(self):
        """Elements lie across bytes in raw data, and one to a number in int32_data."""
        codes = [1, 8, 48, 31, 63]
        raw = sum(c << 6 * i for i, c in enumerate(codes)).to_bytes(4, "little")
        right = np.float32([.125, 1, -2, 7.5, -7.5])
        for extra in ({"raw_data": raw}, {"int32_data": codes}):
            w = T(name="w", data_type=27, dims=[5], **extra)
            y = self.run_one([node("Cast", "w", "v", to=T.FLOAT), node("Add", "x,v", "y")], np.zeros(5, np.float32),
                             {"w": w}, 28)
            np.testing.assert_array_equal(y, right)
        status, _, err = call("rewrite", self.at("m.onnx"), "-o", self.at("o.onnx"))
        self.assertEqual(status, 0, err)
        self.assertEqual(onnx.load(self.at("o.onnx")).graph.initializer[0].SerializeToString(), w.SerializeToString())

    # --- quantizers of fewer than 8 bits ---

    def quantized(self, between, consts, axis=None):
        q = {} if axis is None else {"axis": axis}
        nodes = [node("QuantizeLinear", "W,s,z", "q", **q), *between, node("DequantizeLinear", "c,s,z", "d", **q),
                 node("MatMul", "x,d", "y")]
        self.model(nodes, f32(32, 5), {"y": T.FLOAT}, {"W": f32(5, 6, seed=1), "z": np.int8(0), **consts}, 15)
        np.save(self.at("t.npy"), f32(32, 6, seed=2))

    def gradient(self, *options):
        status, _, err = call("grad", self.at("m.onnx"), "--feed", "x=" + self.at("f.npy"), "--target", self.at("t.npy"),
                              "--loss", "mse", "--dump", self.at("g"), *options)
        return status, np.load(self.at("g/grad_W.npy")) if status == 0 else err

    def test_clipped_quantizers(self):
        w, x, t = f32(5, 6, seed=1), f32(32, 5), f32(32, 6, seed=2)
        s = np.float32(.3)
        cases = {
            "clip": [node("Clip", "q,lo,hi", "c")],
            "max and min": [node("Max", "q,lo", "m"), node("Min", "m,hi", "c")],
            "moved": [node("Reshape", "q,flat", "r"), node("Clip", "r,lo,hi", "k"), node("Reshape", "k,back", "c")],
            "bounds first": [node("Max", "lo,q", "m"), node("Min", "hi,m", "c")],
            "in 32 bits": [node("Cast", "q", "i", to=T.INT32), node("Clip", "i,lo32,hi32", "k"),
                           node("Cast", "k", "c", to=T.INT8)],
            "lower bound only": [node("Clip", "q,lo", "c")],
        }
        for name, between in cases.items():
            lo, hi = -3, 127 if "only" in name else 2
            self.quantized(between, {"s": s, "lo": np.int8(lo), "hi": np.int8(hi), "flat": np.int64([30]),
                                     "back": np.int64([5, 6]), "lo32": np.int32(lo), "hi32": np.int32(hi)})
            status, err = self.gradient()
            self.assertEqual(status, 1, name)
            self.assertIn("through-quantization", err)
            status, got = self.gradient("--through-quantization")
            self.assertEqual(status, 0, (name, got))
            steps = np.clip(np.round(w / s), lo, hi)
            inside = (np.round(w / s) >= lo) & (np.round(w / s) <= hi)
            right = 2 * x.T @ (x @ (steps * s) - t) / t.size * inside
            np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-6, err_msg=name)

    # --- ai.onnx.ml in front ---

    def ml(self, op, x, consts=(), out=T.FLOAT, kind=T.FLOAT, **attr):
        return self.run_one([node(op, "x", "y", ML, **attr)], x, consts, 17, out, kind)

    def test_scaler(self):
        x = f32(6, 4)
        offset, scale = [1., 2., 3., 4.], [.5, 1., 2., 4.]
        np.testing.assert_allclose(self.ml("Scaler", x, offset=offset, scale=scale),
                                   (x - np.float32(offset)) * np.float32(scale), rtol=1e-6)
        np.testing.assert_allclose(self.ml("Scaler", x, offset=[2.], scale=[3.]), (x - 2) * 3, rtol=1e-6)
        ints = np.arange(8).reshape(2, 4)
        np.testing.assert_allclose(self.ml("Scaler", ints, kind=T.INT64, offset=offset, scale=scale),
                                   (ints - offset) * scale, rtol=1e-6)
        self.model([node("Scaler", "x", "y", ML, offset=[1., 2.], scale=scale)], x, {"y": T.FLOAT})
        status, _, err = call("run", self.at("m.onnx"), "--feed", "x=" + self.at("f.npy"))
        self.assertEqual(status, 1)
        self.assertIn("offset has 2 numbers; 4 are wanted", err)

    def test_imputer(self):
        x = np.float32([[1, np.nan, 3], [0, 5, np.nan]])
        np.testing.assert_array_equal(self.ml("Imputer", x, imputed_value_floats=[7., 8., 9.],
                                              replaced_value_float=float("nan")), [[1, 8, 3], [0, 5, 9]])
        np.testing.assert_array_equal(self.ml("Imputer", np.nan_to_num(x), imputed_value_floats=[4.],
                                              replaced_value_float=0.), [[1, 4, 3], [4, 5, 4]])
        ints = np.int64([[1, -1], [-1, 4]])
        np.testing.assert_array_equal(self.ml("Imputer", ints, out=T.INT64, kind=T.INT64, imputed_value_int64s=[6, 7],
                                              replaced_value_int64=-1), [[1, 7], [6, 4]])

    def test_normalizer(self):
        x = np.float32([[3, -4], [0, 0], [-5, -1]])
        right = {"MAX": [[1, -4 / 3], [0, 0], [5, 1]], "L1": [[3 / 7, -4 / 7], [0, 0], [-5 / 6, -1 / 6]],
                 "L2": [[.6, -.8], [0, 0], [-5 / 26 ** .5, -1 / 26 ** .5]]}
        for norm, want in right.items():
            np.testing.assert_allclose(self.ml("Normalizer", x, norm=norm), want, rtol=1e-5)

    def test_linear(self):
        x, w, b = f32(6, 2), [.1, .2, -.3, .4, .1, 0.], [.1, .2, -.1]
        scores = x @ np.float32(w).reshape(3, 2).T + np.float32(b)
        np.testing.assert_allclose(self.ml("LinearRegressor", x, coefficients=w, intercepts=b, targets=3), scores, rtol=1e-5)
        e = np.exp(scores)
        for transform, right in (("NONE", scores), ("LOGISTIC", 1 / (1 + np.exp(-scores))),
                                 ("SOFTMAX", e / e.sum(1, keepdims=True))):
            self.model([node("LinearClassifier", "x", "l y", ML, coefficients=w, intercepts=b, classlabels_ints=[5, 7, 9],
                             post_transform=transform)], x, {"l": T.INT64, "y": T.FLOAT})
            status, _, err = call("run", self.at("m.onnx"), "--feed", "x=" + self.at("f.npy"), "--dump", self.at("r"))
            self.assertEqual(status, 0, err)
            np.testing.assert_allclose(np.load(self.at("r/out_y.npy")), right, rtol=1e-5)
            np.testing.assert_array_equal(np.load(self.at("r/out_l.npy")), np.array([5, 7, 9])[scores.argmax(1)])

    def test_one_score_of_two_classes(self):
        x = f32(6, 2)
        score = x @ np.float32([.5, -1]) + .25
        self.model([node("LinearClassifier", "x", "l y", ML, coefficients=[.5, -1.], intercepts=[.25], classlabels_ints=[3, 8],
                         post_transform="LOGISTIC")], x, {"l": T.INT64, "y": T.FLOAT})
        status, _, err = call("run", self.at("m.onnx"), "--feed", "x=" + self.at("f.npy"), "--dump", self.at("r"))
        self.assertEqual(status, 0, err)
        p = 1 / (1 + np.exp(-score))
        np.testing.assert_allclose(np.load(self.at("r/out_y.npy")), np.stack([1 - p, p], 1), rtol=1e-5)
        np.testing.assert_array_equal(np.load(self.at("r/out_l.npy")), np.where(score > 0, 8, 3))

    def test_labels_that_are_strings_are_left_out(self):
        x = f32(6, 2)
        linear = node("LinearClassifier", "x", "l y", ML, coefficients=[.5, -1., 2., 1.], intercepts=[.25, 0.],
                      classlabels_strings=["a", "b"])
        for more, outs in (([], {"l": T.STRING, "y": T.FLOAT}), ([], {"y": T.FLOAT}),
                           ([node("Identity", "l", "same")], {"same": T.STRING, "y": T.FLOAT})):
            self.model([linear, *more], x, outs)
            status, _, err = call("run", self.at("m.onnx"), "--feed", "x=" + self.at("f.npy"), "--dump", self.at("r"))
            self.assertEqual(status, 0, err)
            np.testing.assert_allclose(np.load(self.at("r/out_y.npy")),
                                       x @ np.float32([[.5, 2], [-1, 1]]) + np.float32([.25, 0]), rtol=1e-5, atol=1e-6)

    def test_networks_behind_them_are_trained(self):
        front = [node("Imputer", "x", "i", ML, imputed_value_floats=[0.], replaced_value_float=float("nan")),
                 node("Scaler", "i", "s", ML, offset=[1.] * 8, scale=[2.] * 8), node("Normalizer", "s", "n", ML, norm="L2"),
                 node("LinearRegressor", "n", "r", ML, coefficients=f32(64, seed=3).tolist(), targets=8)]
        self.model([*front, node("MatMul", "r,W", "y")], f32(20, 8), {"y": T.FLOAT}, {"W": f32(8, 8, seed=4)})
        status, _, err = call("train", self.at("m.onnx"), "--data", self.at("x.npy"), "--target", self.at("y.npy"),
                              "--loss", "mse", "--epochs", "1", "-o", self.at("o.onnx"))
        self.assertEqual(status, 0, err)

    def test_gradients_go_through_them(self):
        """A trained layer before them, whose gradient is compared with differences."""
        x, w = f32(4, 3), f32(3, 3, seed=4)
        for op, attr in (("Scaler", {"offset": [1., 2., 3.], "scale": [.5, 2., 3.]}), ("Normalizer", {"norm": "L2"}),
                         ("Normalizer", {"norm": "L1"}), ("LinearRegressor", {"coefficients": [1., 2., -1.]})):
            def loss(weights):
                self.model([node("MatMul", "x,W", "h"), node(op, "h", "v", ML, **attr), node("Mul", "v,v", "v2"),
                            node("Mul", "v2,k", "u"), node("ReduceSum", "u", "y", keepdims=0)], x, {"y": T.FLOAT},
                           {"W": weights.astype(np.float32), "k": np.float32([[1], [2], [-1], [3]]) * np.ones((1, 1 if
                            op == "LinearRegressor" else 3), np.float32) * np.float32([1, 2, 3][:1 if op == "LinearRegressor" else 3])})
                status, _, err = call("grad", self.at("m.onnx"), "--feed", "x=" + self.at("f.npy"), "--loss", "output",
                                      "--loss-output", "y", "--dump", self.at("g"), "--float64")
                self.assertEqual(status, 0, err)
                return float(np.load(self.at("g/out_y.npy"))), np.load(self.at("g/grad_W.npy"))
            _, got = loss(w)
            step = np.zeros_like(w)
            step[1, 2] = 2 ** -7
            difference = (loss(w + step)[0] - loss(w - step)[0]) / 2 ** -6
            self.assertAlmostEqual(float(got[1, 2]), difference, delta=2e-2 * max(1, abs(difference)), msg=op)

    # --- data ---

    def test_arrays_of_bfloat16(self):
        for descr, word in (("<V2", "bfloat16"), ("|V2", "bfloat16"), ("<V1", "ml_dtypes")):
            header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': (2, 8), }}".ljust(117) + "\n"
            with open(self.at("b.npy"), "wb") as f:
                f.write(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + bytes(32))
            self.model([node("MatMul", "x,W", "y")], f32(20, 8), {"y": T.FLOAT}, {"W": f32(8, 8)})
            status, _, err = call("run", self.at("m.onnx"), "--feed", "x=" + self.at("b.npy"))
            self.assertEqual(status, 1)
            self.assertIn(word, err)
            self.assertIn("astype(numpy.float32)", err)


if __name__ == "__main__":
    unittest.main()
