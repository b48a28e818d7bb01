# SPDX-License-Identifier: Apache-2.0
"""Nodes of onnxruntime's operators beside each other in one model, which this program and onnxruntime run: what the
tests of the domain com.microsoft share."""
import os
import tempfile
import unittest

import numpy as np
import onnx
import onnxruntime
from common import call, report
from onnx import helper, numpy_helper

MS = "com.microsoft"
OPSETS = [helper.make_opsetid("", 20), helper.make_opsetid(MS, 1)]


class Held:
    """An operand that the file holds."""

    def __init__(self, array):
        self.array = np.asarray(array)


def info(name, array):
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)


class Nodes:
    """One node after the other, each with operands of its own."""

    def __init__(self):
        self.nodes, self.inputs, self.held, self.outputs, self.feeds = [], [], [], [], {}

    def add(self, op, operands, outputs=1, domain=MS, **attributes):
        """Operands: arrays are fed, Held are in the file, None is omitted. Outputs: how many, or which."""
        n = len(self.nodes)
        names = []
        for i, operand in enumerate(operands):
            name = "" if operand is None else f"{op}_{n}_in{i}"
            names.append(name)
            if isinstance(operand, Held):
                self.held.append(numpy_helper.from_array(operand.array, name))
            elif operand is not None:
                self.feeds[name] = np.asarray(operand)
                self.inputs.append(info(name, self.feeds[name]))
        while not names[-1]:
            names.pop()
        wanted = range(outputs) if isinstance(outputs, int) else outputs
        results = [f"{op}_{n}_out{i}" if i in wanted else "" for i in range(max(wanted) + 1)]
        self.outputs += [name for name in results if name]
        self.nodes.append(helper.make_node(op, names, results, name=f"{op}_{n}", domain=domain, **attributes))

    def model(self):
        outputs = [onnx.ValueInfoProto(name=name) for name in self.outputs]
        graph = helper.make_graph(self.nodes, "g", self.inputs, outputs, self.held)
        return helper.make_model(graph, ir_version=10, opset_imports=OPSETS)


def bare():
    """onnxruntime as it computes nodes one by one."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1  # DynamicQuantizeLSTM rounds states by the range of those of one thread
    return options


def by_onnxruntime(model, feeds):
    data = model if isinstance(model, (str, bytes)) else model.SerializeToString()
    session = onnxruntime.InferenceSession(data, bare(), providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds)))


def feed_options(folder, feeds):
    options = []
    for name, array in feeds.items():
        path = os.path.join(folder, f"{name}.npy")
        np.save(path, array)
        options += ["--feed", f"{name}={path}"]
    return options


class Case(unittest.TestCase):
    """A folder, and comparisons."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.rng = np.random.default_rng(3)

    def at(self, name):
        return os.path.join(self.folder, name)

    def normal(self, *shape):
        return self.rng.standard_normal(shape).astype(np.float32)

    def run_model(self, model, feeds, *options):
        """Results by name, of this program."""
        if not isinstance(model, str):
            onnx.save(model, self.at("m.onnx"))
            model = self.at("m.onnx")
        out = tempfile.mkdtemp(dir=self.folder)
        report("run", model, *feed_options(self.folder, feeds), "--dump", out, *options)
        return {name[len("out_"):-len(".npy")]: np.load(os.path.join(out, name)) for name in os.listdir(out)}

    def compare(self, nodes, want=None, rtol=1e-5, atol=1e-5):
        """Outputs are those of onnxruntime, or those given."""
        model = nodes.model()
        got = self.run_model(model, nodes.feeds)
        want = want or by_onnxruntime(model, nodes.feeds)
        for name in nodes.outputs:
            with self.subTest(name):
                self.assertEqual(got[name].shape, want[name].shape)
                size = max(1, np.abs(want[name].astype(np.float64)).max(initial=0))
                np.testing.assert_allclose(got[name], want[name], rtol=rtol, atol=atol * size)

    def refused(self, *words, op, operands, outputs=1, domain=MS, **attributes):
        """The node is refused with a message that has all the words, and its name."""
        nodes = Nodes()
        nodes.add(op, operands, outputs, domain, **attributes)
        onnx.save(nodes.model(), self.at("refused.onnx"))
        status, _, err = call("run", self.at("refused.onnx"), *feed_options(self.folder, nodes.feeds))
        self.assertEqual(status, 1, err)
        for word in (f"{op}_0", op, *words):
            self.assertIn(word, err)
