# SPDX-License-Identifier: Apache-2.0
"""What users write and models bring that once ended a command: names that no file system takes, units of budgets,
images of bytes."""
import json
import os
import shutil
import tempfile
import unittest

import numpy as np
import onnx
from common import call, report
from onnx import TensorProto, helper, numpy_helper

LONG = "StatefulPartitionedCall/" + "/".join(f"model/layer_{i}/Conv2D/ReadVariableOp" for i in range(9))


def save(path, names, dtype=TensorProto.FLOAT):
    random = np.random.default_rng(5)
    nodes, value = [], "x"
    if dtype != TensorProto.FLOAT:
        nodes, value = [helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT)], "f"
    for i, name in enumerate(names):
        result = "y" if i + 1 == len(names) else f"h{i}"
        nodes.append(helper.make_node("MatMul", [value, name], [result]))
        value = result
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", dtype, ["N", 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(random.standard_normal((3, 3)).astype(np.float32), n) for n in names])
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)


class Names(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.model = self.file("m.onnx")
        self.x = np.arange(12, dtype=np.float32).reshape(4, 3)
        np.save(self.file("x.npy"), self.x)
        np.save(self.file("t.npy"), np.ones((4, 3), np.float32))

    def file(self, name):
        return os.path.join(self.folder, name)

    def grad(self, *options):
        return report("grad", self.model, "--feed", self.file("x.npy"), "--target", self.file("t.npy"), "--loss", "mse",
                      *options)

    def test_long_names_are_cut(self):
        # equal for more bytes than are kept; of the greatest length that fits; one more; a cut within %XX
        fits, over = "w" * (245 - len("grad_.npy")), "v" * (246 - len("grad_.npy"))
        names = [LONG + "/a", LONG + "/b", fits, over, "é/" * 90]
        save(self.model, names)
        folder = self.file("dump")
        seen = self.grad("--dump", folder)
        files = {e["name"]: os.path.basename(e["file"]) for e in seen["gradients"]}
        self.assertEqual(set(files), set(names))
        self.assertEqual(len(set(files.values())), len(names))
        self.assertEqual(files[fits], f"grad_{fits}.npy")
        for name in set(names) - {fits}:
            self.assertLessEqual(len(files[name]), 245)
            self.assertRegex(files[name], r"^grad_([A-Za-z0-9._-]|%[0-9A-F]{2})*-[0-9a-f]{16}\.npy$")
        with open(os.path.join(folder, "index.json"), encoding="utf-8") as f:
            index = json.load(f)
        self.assertEqual({e["name"]: e["file"] for e in index["gradients"]}, files)
        self.assertEqual(index["outputs"], [{"name": "y", "file": "out_y.npy"}])
        for e in seen["gradients"]:
            l2 = np.linalg.norm(np.load(os.path.join(folder, files[e["name"]])).astype(np.float64))
            self.assertAlmostEqual(e["l2"] / l2, 1, delta=1e-6)
        self.assertEqual(set(os.listdir(folder)) - set(files.values()), {"out_y.npy", "loss.npy", "index.json",
                                                                        "gradin_x.npy"})
        self.assertEqual({os.path.basename(f) for f in seen["files"]}, set(os.listdir(folder)))

    def test_names_that_fit_have_no_index(self):
        save(self.model, ["a/b"])
        self.grad("--dump", self.file("dump"))
        self.assertEqual(set(os.listdir(self.file("dump"))), {"out_y.npy", "loss.npy", "gradin_x.npy", "grad_a%2Fb.npy"})

    def test_open_sizes_without_names(self):
        """PaddlePaddle's converter calls every open size "?", others "None"."""
        for word in ("?", "None", "-1"):
            graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g",
                                      [helper.make_tensor_value_info("x", TensorProto.FLOAT, [word, word])],
                                      [helper.make_tensor_value_info("y", TensorProto.FLOAT, [word, word])])
            onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), self.model)
            report("run", self.model, "--feed", self.file("x.npy"))

    def test_units(self):
        save(self.model, ["w"])
        peak = self.grad("--cost", "flops")["planned_peak_bytes"]
        self.assertLess(peak, 1000)
        for text in ("1M", "1MiB", "1m", "1MB", "1mb", "1.5K", "1 kB", "1000B", "1g", "1GB", "2G", "1T", "1TiB"):
            status, _, err = call("plan", self.model, "--loss", "mse", "--budget", text)
            self.assertEqual(status, 0, f"{text}: {err}")
        # 1 MB is less than 1 M: the refusal names the bytes
        big = self.file("big.onnx")
        graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
                                  [helper.make_tensor_value_info("x", 1, [1, 500])],
                                  [helper.make_tensor_value_info("y", 1, [1, 255])],
                                  [numpy_helper.from_array(np.zeros((500, 255), np.float32), "w")])
        onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), big)
        self.assertEqual(call("plan", big, "--loss", "mse", "--budget", "1M")[0], 0)
        self.assertEqual(call("plan", big, "--loss", "mse", "--budget", "1MB")[0], 1)

    def test_bytes_for_a_floating_point_input(self):
        save(self.model, ["w"])
        images = np.array([[0, 128, 255], [1, 2, 3], [9, 8, 7], [4, 5, 6]], np.uint8)
        want, got = [], []
        for dtype, results in ((np.float32, want), (np.uint8, got)):
            np.save(self.file("x.npy"), images.astype(dtype))
            data = ("--data", self.file("x.npy"), "--target", self.file("t.npy"), "--loss", "mse")
            results.append(self.grad()["loss"])
            results.append(report("eval", self.model, *data)["loss"])
            report("run", self.model, "--feed", self.file("x.npy"), "--dump", self.file("d"))
            results.append(np.load(self.file("d/out_y.npy")).tolist())
            results.append(report("train", self.model, *data, "--steps", 3, "--lr", 1e-6, "-o", self.file("o.onnx"))["loss"])
            status, _, err = call("compare", self.model, "--feed", self.file("x.npy"), *data[2:])
            self.assertEqual(status, 0, err)
            self.assertEqual("0 to 255" in err, dtype == np.uint8)
            self.assertLessEqual(err.count("0 to 255"), 1)
        self.assertEqual(want, got)
        save(self.model, ["w"], TensorProto.INT32)
        np.save(self.file("x.npy"), self.x)
        status, _, err = call("run", self.model, "--feed", self.file("x.npy"))
        self.assertEqual(status, 1)
        self.assertIn("int32", err)


if __name__ == "__main__":
    unittest.main()
