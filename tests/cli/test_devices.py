# SPDX-License-Identifier: Apache-2.0
"""Device sim against the host where tensors are integers, joint element-wise nodes against single ones, and what a
device cannot do: refused by name before a step, or reported by the node that met it."""
import os
import shutil
import tempfile
import unittest

import numpy as np
import onnx
from common import DATA, call, report
from onnx import TensorProto, helper, numpy_helper

INTEGERS = {TensorProto.INT64: np.int64, TensorProto.INT32: np.int32, TensorProto.INT8: np.int8,
            TensorProto.UINT8: np.uint8}


class Devices(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def file(self, name):
        return os.path.join(self.folder, name)

    def model(self, nodes, kind, shape=(6,), **params):
        """i [shape] -> y, with the nodes and parameters."""
        graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("i", kind, shape)],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                                  [numpy_helper.from_array(v, k) for k, v in params.items()])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8),
                  self.file("m.onnx"))

    def run_on(self, device, i):
        np.save(self.file("i.npy"), i)
        dump = self.file(device)
        status, _, err = call("run", self.file("m.onnx"), "--feed", self.file("i.npy"), "--device", device, "--dump",
                              dump)
        return status, err, np.load(os.path.join(dump, "out_y.npy")) if status == 0 else None

    def test_integer_arithmetic(self):
        for kind, dtype in INTEGERS.items():
            for op in ("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min"):
                nodes = [helper.make_node(op, ["i", "k"], ["a"]), helper.make_node("Cast", ["a"], ["f"], to=1),
                         helper.make_node("Mul", ["f", "w"], ["y"])]
                self.model(nodes, kind, k=np.array([1, 2, 3, 1, 2, 5], dtype), w=np.ones(6, np.float32))
                i = np.array([7, 100, 3, 0, 5, 9], dtype)
                host, device = self.run_on("cpu", i), self.run_on("sim", i)
                self.assertEqual((host[0], device[0]), (0, 0), host[1] + device[1])
                np.testing.assert_array_equal(host[2], device[2], f"{op} of {dtype.__name__}")

    def test_convolutions_of_some_images_at_a_time(self):
        """Where all of a batch go into chunks of equal size, too."""
        w = np.ones((32, 32, 3, 3), np.float32)
        for batch in (0, 1, 2, 3, 4, 6):
            self.model([helper.make_node("Conv", ["i", "w"], ["y"], pads=[1, 1, 1, 1])], TensorProto.FLOAT,
                       (batch, 32, 32, 32), w=w)
            for device, *precision in (("sim",), ("sim", "--precision", "tf32"), ("cuda",)):
                status, _, err = call("plan", self.file("m.onnx"), "--loss", "mse", "--device", device, *precision)
                self.assertEqual(status, 0, f"{batch} images, {device} {precision}: {status} {err}")

    def test_joint_nodes(self):
        """What is trained is the same file, in bytes that were planned; a plan has fewer nodes, and as few for cuda."""
        chain = (("Gemm", "i", "w"), ("Tanh", 0), ("Exp", 1), ("Mul", 2, "i"), ("Add", 3, "b"), ("Gemm", 4, "u"), ("Relu", 5))
        names = [f"v{k}" for k in range(len(chain) - 1)] + ["y"]
        nodes = [helper.make_node(op, [names[x] if isinstance(x, int) else x for x in of], [name])
                 for (op, *of), name in zip(chain, names)]
        rng = np.random.default_rng(3)
        w, u, b, rows = (rng.standard_normal(s, np.float32) for s in ((30, 30), (30, 30), (30,), (64, 30)))
        self.model(nodes, TensorProto.FLOAT, (64, 30), w=w, u=u, b=b)
        np.save(self.file("x.npy"), rows)
        for memory in ("store", "recompute"):
            seen = []
            for env in (None, dict(os.environ, INVONNX_NO_FUSE="1")):
                options = (self.file("m.onnx"), "--loss", "mse", "--memory", memory, "--device")
                out, data = self.file("out.onnx"), self.file("x.npy")
                made = report("train", *options, "sim", "--data", data, "--target", data, "--epochs", 2, "-o", out,
                              env=env)
                self.assertEqual(made["peak_bytes"], made["planned_peak_bytes"])
                plans = [report("plan", *options, device, env=env) for device in ("sim", "cuda")]
                for plan in plans:
                    self.assertEqual(plan["planned_peak_bytes"], plans[0]["planned_peak_bytes"])
                with open(out, "rb") as f:
                    seen.append((f.read(), [len(plan["timeline"]) for plan in plans], made["planned_peak_bytes"]))
            (joint, few, less), (single, many, bytes_then) = seen
            self.assertEqual(joint, single)
            self.assertLessEqual(less, bytes_then)
            for a, b in zip(few, many):
                self.assertLess(a, b)

    def test_outputs_within_joint_nodes(self):
        """Outputs that the loss is not of, read by others or by none."""
        rng = np.random.default_rng(3)
        np.save(self.file("x.npy"), rng.standard_normal((8, 5), np.float32))
        for last in (("Mul", "b", "a"), ("Sin", "h")):
            nodes = [helper.make_node("MatMul", ["i", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["a"]),
                     helper.make_node("Exp", ["a"], ["b"]), helper.make_node(last[0], last[1:], ["y"])]
            self.model(nodes, TensorProto.FLOAT, (8, 5), w=rng.standard_normal((5, 5), np.float32))
            model = onnx.load(self.file("m.onnx"))
            model.graph.output.extend(helper.make_tensor_value_info(k, TensorProto.FLOAT, None) for k in "ab")
            onnx.save(model, self.file("m.onnx"))
            for device, memory in (("cpu", "store"), ("cpu", "recompute"), ("sim", "store"), ("sim", "recompute")):
                made = []
                for env in (None, dict(os.environ, INVONNX_NO_FUSE="1")):
                    status, _, err = call("train", self.file("m.onnx"), "--data", self.file("x.npy"), "--target", self.file("x.npy"),
                                          "--loss", "mse", "--loss-output", "y", "--device", device, "--memory", memory,
                                          "--steps", 2, "-o", self.file("out.onnx"), env=env)
                    self.assertEqual(status, 0, err)
                    with open(self.file("out.onnx"), "rb") as out:
                        made.append(out.read())
                self.assertEqual(*made)

    def test_what_is_not_finite_is_named(self):
        """Data that a queue of its own brings are looked at when they are there."""
        for nodes, i, word in (([helper.make_node("Sqrt", ["i"], ["a"]), helper.make_node("Mul", ["a", "w"], ["y"])],
                                [1, -1, 1, 1, 1, 1], "(Sqrt"), ([helper.make_node("Mul", ["i", "w"], ["y"])],
                                                              [1, np.nan, 1, 1, 1, 1], "i (the data fed)")):
            self.model(nodes, TensorProto.FLOAT, w=np.ones(6, np.float32))
            np.save(self.file("i.npy"), np.array(i, np.float32))
            for device in ("cpu", *["sim"] * 6):
                status, _, err = call("grad", self.file("m.onnx"), "--feed", self.file("i.npy"), "--target",
                                      self.file("i.npy"), "--loss", "mse", "--device", device)
                self.assertEqual(status, 1)
                self.assertIn(word, err, device)

    def test_bad_index_and_division_are_named(self):
        gather = [helper.make_node("Gather", ["w", "i"], ["y"], "look")]
        divide = [helper.make_node("Div", ["k", "i"], ["a"], "look"), helper.make_node("Cast", ["a"], ["f"], to=1),
                  helper.make_node("Mul", ["f", "w"], ["y"])]
        for nodes, bad in ((gather, [0, 1, 2, 6, 0, 0]), (divide, [1, 1, 0, 1, 1, 1])):
            self.model(nodes, TensorProto.INT64, k=np.ones(6, np.int64), w=np.ones(6, np.float32))
            for device in ("cpu", "sim"):
                self.assertEqual(self.run_on(device, np.array([0, 1, 2, 3, -1, 5]) if nodes is gather
                                             else np.ones(6, np.int64))[0], 0)
                status, err, _ = self.run_on(device, np.array(bad))
                self.assertEqual(status, 1)
                self.assertIn("'look'", err)
                self.assertIn("outside", err)

    def test_types_without_kernel_are_named_by_the_plan(self):
        nodes = [helper.make_node("ReduceMax", ["i"], ["a"], "most", keepdims=0),
                 helper.make_node("Cast", ["a"], ["f"], to=1), helper.make_node("Mul", ["f", "w"], ["y"])]
        self.model(nodes, TensorProto.INT64, w=np.ones(6, np.float32))
        for device, want in (("cpu", 0), ("cuda", 1), ("sim", 1)):
            status, _, err = call("plan", self.file("m.onnx"), "--loss", "mse", "--device", device)
            self.assertEqual(status, want, err)
            if want:
                self.assertIn("int64 (most)", err)

    def test_a_stride_beyond_what_a_device_counts_is_named(self):
        nodes = [helper.make_node("Mul", ["i", "w"], ["a"]),
                 helper.make_node("MaxPool", ["a"], ["y"], "pool", kernel_shape=[2], strides=[2 ** 30])]
        self.model(nodes, TensorProto.FLOAT, (4, 3, 8), w=np.ones((3, 8), np.float32))
        for device, want in (("cpu", 0), ("cuda", 1)):
            status, _, err = call("plan", self.file("m.onnx"), "--loss", "mse", "--device", device)
            self.assertEqual(status, want, err)
            if want:
                self.assertIn("strides", err)

    def test_peak_does_not_grow_with_depth(self):
        """As planned for a GPU, scratch memory of its kernels included; no GPU is needed."""
        options = ("--loss", "cross_entropy", "--batch", 8, "--device", "cuda", "--memory", "invert")
        peaks = [report("plan", os.path.join(DATA, f"revnet_c{n}.onnx"), *options)["activation_peak_bytes"]
                 for n in (4, 16, 64)]
        self.assertLess(peaks[2], 1.01 * peaks[1])
        half = 8 * 12 * 16 * 16 * 4  # half of a state, which a coupling in the middle takes, and four couplings need not
        self.assertLess(peaks[1], 1.1 * peaks[0] + half)


if __name__ == "__main__":
    unittest.main()
