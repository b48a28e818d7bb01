# SPDX-License-Identifier: Apache-2.0
"""Models that are large in one way take time and memory in proportion: an initializer that very many nodes read, many
functions, chains of calls, and a weight that is only looked at. The limits are such that a walk over all pairs exceeds
them many times over."""
import os
import resource
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import common
import hostile

SECONDS = 40  # of processor time; each took 1 or 2, a walk over all pairs takes minutes


def model(path, nodes, inits=(), functions=(), y="y"):
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
                              [helper.make_tensor_value_info(y, TensorProto.FLOAT, [4])], inits)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    onnx.save(helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=8), path)
    return path


def limit():
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


def header(number, nbytes):
    return hostile.varint(number << 3 | 2) + hostile.varint(nbytes)


def function(name, nodes, inputs=("x",), outputs=("y",)):
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    return helper.make_function("f", name, inputs, outputs, nodes, opsets)


def ones(name="w"):
    return numpy_helper.from_array(np.ones(4, np.float32), name)


class Large(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "m.onnx")

    def call(self, *args, **more):
        done = subprocess.run([common.PROGRAM, *args], capture_output=True, **{"preexec_fn": limit, **more})
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    def muls(self, n):
        nodes = [helper.make_node("Mul", [f"o{i - 1}" if i else "x", "w"], [f"o{i}"]) for i in range(n)]
        return model(self.path, nodes, [ones()], y=f"o{n - 1}")

    def test_uses_of_one_initializer(self):
        status, out, err = self.call("inspect", self.muls(100000))
        self.assertEqual(status, 0, err)
        self.assertIn("merged_initializer", out)

    def test_refusal_and_separation(self):
        status, _, err = self.call("plan", self.muls(10000), "--loss", "mse")
        self.assertEqual(status, 1)
        self.assertIn("operand of 'o0' (Mul), operand of 'o1' (Mul), operand of 'o2' (Mul) and 9997 more", err)
        status, _, err = self.call("plan", self.path, "--loss", "mse", "--untie", "--memory", "store")
        self.assertEqual(status, 0, err)

    def test_skips_over_skips(self):
        """Each level's gradients wait for those of all levels inside. What they wait for is found in little stack."""
        nodes, inits, skips, x = [], [], [], "x"

        def add(op, *inputs, **attributes):
            nodes.append(helper.make_node(op, inputs, [f"v{len(nodes)}"], **attributes))
            return nodes[-1].output[0]

        def conv(x):
            weight = np.full((2, 2, 3), 0.1 + 1e-5 * len(inits), np.float32)
            inits.append(numpy_helper.from_array(weight, f"w{len(inits)}"))
            return add("Conv", x, inits[-1].name, pads=[1, 1])

        for _ in range(350):
            x = add("Tanh", conv(x))
            skips.append(x)
        while skips:
            x = add("Add", add("Tanh", conv(x)), conv(skips.pop()))
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 2, 8]) for name in ("x", x)]
        onnx.save(helper.make_model(helper.make_graph(nodes, "g", infos[:1], infos[1:], inits),
                                    opset_imports=[helper.make_opsetid("", 17)], ir_version=8), self.path)
        stack = (1 << 17, 1 << 17)
        status, _, err = self.call("plan", self.path, "--loss", "mse", "--memory", "store", "--threads", "1",
                                   env={"INVONNX_COST": "flops"},
                                   preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, stack))
        self.assertEqual(status, 0, err)

    def test_many_functions(self):
        n = 20000
        functions = [function(f"f{i}", [helper.make_node("Relu", ["x"], ["y"], doc_string="-" * 500)]) for i in range(n)]
        nodes = [helper.make_node(f"f{n - 1}", ["x"], [f"o{i}"], domain="f") for i in range(n)]
        status, _, err = self.call("inspect", model(self.path, nodes, functions=functions, y="o0"))
        self.assertEqual(status, 0, err)

    def test_chain_of_functions(self):
        """Each calls the next of the file: what is done with the input is known only from the last one."""
        n = 4000
        functions = [function(f"f{i}", [helper.make_node(f"f{i + 1}", ["x", "w"], ["y"], domain="f")], ("x", "w"))
                     for i in range(n)]
        functions.append(function(f"f{n}", [helper.make_node("MatMul", ["x", "w"], ["y"])], ("x", "w")))
        nodes = [helper.make_node("f0", ["x", "w"], ["y"], domain="f")]
        w = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
        status, _, err = self.call("inspect", model(self.path, nodes, [w], functions))
        self.assertEqual(status, 0, err)

    def test_search_that_is_cut_is_said(self):
        """Deeper than the search for merged initializers goes, which must not look like none."""
        n = 1100
        functions = [function(f"f{i}", [helper.make_node(f"f{i + 1}", ["x", "w"], ["y"], domain="f")], ("x", "w"))
                     for i in range(n)]
        functions.append(function(f"f{n}", [helper.make_node("Mul", ["x", "w"], ["t"], name="first"),
                                            helper.make_node("Add", ["t", "w"], ["y"], name="second")], ("x", "w")))
        path = model(self.path, [helper.make_node("f0", ["x", "w"], ["y"], domain="f")], [ones()], functions)
        status, out, err = self.call("inspect", path)
        self.assertEqual(status, 0, err)
        self.assertIn("merges_unknown", out)
        status, _, err = self.call("plan", path, "--loss", "mse")
        self.assertEqual(status, 1)
        self.assertIn("Inline the model's functions first", err)

    def test_a_weight_is_not_read(self):
        """Of a large weight whose elements are all equal, only some pages are looked at."""
        nbytes = 1 << 30  # a hole in the file
        nodes = hostile.field(1, helper.make_node("Gather", ["w", "i"], ["t"]).SerializeToString()) + \
            hostile.field(1, helper.make_node("Neg", ["t"], ["y"]).SerializeToString())
        ends = hostile.field(11, helper.make_tensor_value_info("i", TensorProto.INT64, [4]).SerializeToString()) + \
            hostile.field(12, helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 1024]).SerializeToString())
        weight = TensorProto(name="w", dims=[nbytes // 4096, 1024], data_type=1).SerializeToString() + header(9, nbytes)
        head = nodes + header(5, len(weight) + nbytes) + weight
        opset = hostile.field(8, helper.make_opsetid("", 17).SerializeToString())
        with open(self.path, "wb") as f:
            f.write(b"\x08\x08" + opset + header(7, len(head) + nbytes + len(ends)) + head)
            f.seek(nbytes, os.SEEK_CUR)
            f.write(ends)
        probe = ("import resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL);"
                 "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)")
        done = subprocess.run([sys.executable, "-c", probe, common.PROGRAM, "inspect", self.path], capture_output=True,
                              preexec_fn=limit, check=True)
        self.assertLess(int(done.stdout.split()[-1]), nbytes // 4)


if __name__ == "__main__":
    unittest.main()
