# SPDX-License-Identifier: Apache-2.0
"""No command writes over a file that it reads: model, external data, and what --feed, --data, --target and others name,
whatever the name that it is written by. Refused before anything is done; all files are as they were."""
import os
import shutil
import tempfile
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import common

LOSS = ("--loss", "mse")


def content(path):
    with open(path, "rb") as f:
        return f.read()


class Overwrite(unittest.TestCase):
    def setUp(self):
        self.top = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.top)
        w = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
        graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"], name="m")], "g",
                                  [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])], [w])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, self.at("m.onnx"))
        onnx.save(model, self.at("outside.onnx"), save_as_external_data=True, location="weights.bin", size_threshold=16)
        for name in ("x.npy", "y.npy", "vx.npy", "vy.npy", "out_y.npy", "grad_w.npy", "loss.npy"):
            np.save(self.at(name), np.ones((2, 4), np.float32))

    def at(self, name):
        return os.path.join(self.top, name)

    def files(self):
        return {name: content(self.at(name)) for name in os.listdir(self.top) if os.path.isfile(self.at(name))}

    def refused(self, *args, says):
        before = self.files()
        status, out, err = common.call(*args)
        self.assertEqual((status, out), (1, ""), f"{args}\n{err}")
        self.assertIn(says, err)
        self.assertIn("choose another name", err)
        self.assertEqual(self.files(), before, args)

    def step(self, command, model="m.onnx", feed="x.npy", target="y.npy"):
        return (command, self.at(model), "--feed", self.at(feed), "--target", self.at(target), *LOSS)

    def train(self, *more, model="m.onnx"):
        return ("train", self.at(model), "--data", self.at("x.npy"), "--target", self.at("y.npy"), "--val-data",
                "x=" + self.at("vx.npy"), "--val-target", self.at("vy.npy"), *LOSS, *more)

    def test_pictures(self):
        os.symlink(self.at("m.onnx"), self.at("link"))
        os.link(self.at("m.onnx"), self.at("also"))
        os.mkdir(self.at("sub"))
        for html in ("m.onnx", "link", "also", "sub/../m.onnx"):
            self.refused("plan", self.at("m.onnx"), *LOSS, "--html", self.at(html), says="which MODEL reads")
        self.refused("plan", self.at("outside.onnx"), *LOSS, "--html", self.at("weights.bin"), says="which MODEL reads")
        self.refused(*self.step("compare"), "--html", self.at("x.npy"), says="which --feed reads")
        self.refused(*self.step("compare"), "--html", self.at("y.npy"), says="which --target reads")
        self.refused(*self.step("compare"), "--loss", "cross_entropy", "--class-weights", self.at("vx.npy"), "--html", self.at("vx.npy"),
                     says="which --class-weights reads")

    def test_models(self):
        self.refused("rewrite", self.at("m.onnx"), "-o", self.at("x.npy"), "--feed", self.at("x.npy"),
                     says="which --feed reads")
        self.refused("rewrite", self.at("outside.onnx"), "-o", self.at("weights.bin"), says="which MODEL reads")
        os.rename(self.at("x.npy"), self.at("n.onnx.data"))
        self.refused("rewrite", self.at("m.onnx"), "-o", self.at("n.onnx"), "--layout", "external",
                     "--feed", "x=" + self.at("n.onnx.data"), says="which --feed reads")

    def test_train(self):
        for name, option in (("m.onnx", "MODEL"), ("x.npy", "--data"), ("y.npy", "--target"), ("vx.npy", "--val-data"),
                             ("vy.npy", "--val-target")):
            self.refused(*self.train("-o", self.at(name)), says=f"which {option} reads")
        self.refused(*self.train("-o", self.at("weights.bin"), model="outside.onnx"), says="which MODEL reads")

    def test_dump(self):
        for name in ("out_y.npy", "grad_w.npy", "loss.npy"):
            self.refused(*self.step("grad", feed=name), "--dump", self.top, says="which --feed reads")
        self.refused("run", self.at("m.onnx"), "--feed", self.at("out_y.npy"), "--dump", self.top,
                     says="which --feed reads")

    def test_others_are_written(self):
        """What is only near what is read is no reason to refuse."""
        for args in (("run", self.at("m.onnx"), "--feed", self.at("loss.npy"), "--dump", self.top),
                     (*self.step("grad"), "--dump", self.top),
                     ("plan", self.at("m.onnx"), *LOSS, "--html", self.at("plan.html")),
                     self.train("-o", self.at("trained.onnx"))):
            status, _, err = common.call(*args)
            self.assertEqual(status, 0, err)
        self.assertTrue({"plan.html", "trained.onnx"} <= set(self.files()))


if __name__ == "__main__":
    unittest.main()
