# SPDX-License-Identifier: Apache-2.0
"""Training in stages (`--unfreeze-after`): frozen up to an epoch, then as if training of these parameters began there. By numpy
in float64, resumed with equal bits, with all that has a state of its own."""
import re
import unittest

import numpy as np
import onnx
from common import InFolder, call, report
from onnx import TensorProto, helper, numpy_helper

RNG = np.random.default_rng(11)


def weight(name, *shape, scale=0.3):
    return numpy_helper.from_array((RNG.standard_normal(shape) * scale).astype(np.float32), name)


def tensors(path):
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


class Stages(InFolder):
    """tanh(x W0 + b0) W1 + b1, 12 rows in batches of 4: three steps an epoch."""
    batch = 4

    def setUp(self):
        super().setUp()
        nodes = [helper.make_node("Gemm", ["x", "W0", "b0"], ["h"], "body"), helper.make_node("Tanh", ["h"], ["t"]),
                 helper.make_node("Gemm", ["t", "W1", "b1"], ["y"], "fc")]
        graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 6])],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
                                  [weight("W0", 6, 7), weight("b0", 7), weight("W1", 7, 3), weight("b1", 3)])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), self.at("m.onnx"))
        self.x, self.y = (RNG.standard_normal((12, n)).astype(np.float32) for n in (6, 3))
        np.save(self.at("in.npy"), self.x)
        np.save(self.at("out.npy"), self.y)

    def arguments(self, out, *more, loss="mse"):
        return ("train", self.at("m.onnx"), "--data", self.at("in.npy"), "--target", self.at("out.npy"), "--loss", loss,
                "--batch", self.batch, "--no-shuffle", "--deterministic", "-o", self.at(out), *more)

    def train(self, *more, out="out.onnx"):
        return report(*self.arguments(out, *more))

    def numpy(self, stages, epochs, lr, rule):
        """rule(state, t, gradient) -> what is taken from a parameter, lr times; t counts its own steps from 1 on."""
        w = {n: v.astype(np.float64) for n, v in tensors(self.at("m.onnx")).items()}
        states = {n: {} for n in w}
        steps = 0
        for _ in range(epochs):
            for at in range(0, 12, self.batch):
                x, y = self.x[at:at + self.batch].astype(np.float64), self.y[at:at + self.batch].astype(np.float64)
                t = np.tanh(x @ w["W0"] + w["b0"])
                d = 2 * (t @ w["W1"] + w["b1"] - y) / y.size
                dh = d @ w["W1"].T * (1 - t * t)
                grads = {"W1": t.T @ d, "b1": d.sum(0), "W0": x.T @ dh, "b0": dh.sum(0)}
                for name, grad in grads.items():
                    begin = 3 * stages.get(name, 0)
                    if steps >= begin:
                        w[name] = w[name] - lr * rule(states[name], steps - begin + 1, grad)
                steps += 1
        return w

    def compare(self, expected, atol=2e-6):
        got = tensors(self.at("out.onnx"))
        for name, value in expected.items():
            np.testing.assert_allclose(got[name], value, atol=atol, err_msg=name)


def momentum(state, t, grad):
    state["v"] = grad if t == 1 else 0.9 * state["v"] + grad
    return state["v"]


def adam(state, t, grad):
    state["m"] = 0.9 * state.get("m", 0) + 0.1 * grad
    state["v"] = 0.999 * state.get("v", 0) + 0.001 * grad * grad
    return state["m"] / (1 - 0.9**t) / (np.sqrt(state["v"] / (1 - 0.999**t)) + 1e-8)


class Rules(Stages):
    def test_sgd_and_momentum(self):
        for name, rule in (("sgd", lambda s, t, g: g), ("momentum", momentum)):
            self.train("--optimizer", name, "--lr", 0.1, "--epochs", 3, "--unfreeze-after", 1, "b0", "--unfreeze-after", 2, "W0")
            self.compare(self.numpy({"b0": 1, "W0": 2}, 3, 0.1, rule))

    def test_adam(self):
        """Corrections of its moments count a parameter's own steps, in every form of the update."""
        stages = ("--unfreeze-after", 2, "*0")
        expected = self.numpy({"W0": 2, "b0": 2}, 3, 0.02, adam)
        for more in ((), ("--early-update",), ("--memory", "store"), ("--group", "W0:lr=0.02")):
            self.train("--optimizer", "adam", "--lr", 0.02, "--epochs", 3, *stages, *more)
            self.compare(expected)
        parts = ("--batch", 2, "--accumulate", 2)
        report(*self.arguments("out.onnx", "--optimizer", "adam", "--lr", 0.02, "--epochs", 3, *stages, *parts))
        self.compare(expected)

    def test_first_counts(self):
        """Of several globs that fit; one that is due from the start freezes nothing; as one word, too."""
        self.train("--lr", 0.1, "--epochs", 3, "--unfreeze-after", 1, "W0", "--unfreeze-after", "2 *0", "--unfreeze-after", 0, "*1")
        self.compare(self.numpy({"W0": 1, "b0": 2}, 3, 0.1, lambda s, t, g: g))

    def test_others(self):
        """Optimizers of several nodes; moments in 8 bits; weights in bfloat16: frozen ones do not move, later they do."""
        for more in (("--optimizer", "lamb"), ("--optimizer", "adafactor"), ("--optimizer", "muon"), ("--optimizer", "adamw8"),
                     ("--optimizer", "lion"), ("--weights", "bf16", "--optimizer", "adamw")):
            old = tensors(self.at("m.onnx"))
            for epochs, moves in ((2, False), (3, True)):
                self.train(*more, "--lr", 0.01, "--epochs", epochs, "--unfreeze-after", 2, "W0")
                got = tensors(self.at("out.onnx"))
                self.assertEqual(np.array_equal(got["W0"], old["W0"]), not moves, more)
                self.assertTrue(np.isfinite(got["W0"]).all())
                self.assertFalse(np.array_equal(got["W1"], old["W1"]), more)

    def test_average(self):
        """The average of a frozen weight is the weight; afterwards it goes on."""
        self.train("--optimizer", "sgd", "--lr", 0.1, "--epochs", 3, "--unfreeze-after", 2, "W0", "--average", "ema:0.5")
        w = {n: v.astype(np.float64) for n, v in tensors(self.at("m.onnx")).items()}
        mean = None
        for steps in range(1, 10):  # the weights after each step, by runs of so many
            self.train("--optimizer", "sgd", "--lr", 0.1, "--steps", steps, "--unfreeze-after", 2, "W0", out=f"{steps}.onnx")
            w = {n: v.astype(np.float64) for n, v in tensors(self.at(f"{steps}.onnx")).items()}
            mean = w if mean is None else {n: 0.5 * mean[n] + 0.5 * w[n] for n in w}
        self.compare(mean)

    def test_average_of_mapped(self):
        """So it is of one that was read where its file is mapped while it was frozen."""
        path = self.at("m.onnx")
        graph = helper.make_graph([helper.make_node("Gemm", ["x", "W", "b"], ["y"])], "g",
                                  [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 512])],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 512])],
                                  [weight("W", 512, 512), weight("b", 512)])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path,
                  save_as_external_data=True, location="m.data")
        for name in "in.npy", "out.npy":
            np.save(self.at(name), RNG.standard_normal((12, 512)).astype(np.float32))
        self.train("--optimizer", "sgd", "--lr", 0, "--epochs", 3, "--unfreeze-after", 2, "W", "--average", "ema:0.5")
        np.testing.assert_array_equal(tensors(self.at("out.onnx"))["W"], tensors(path)["W"])


class Runs(Stages):
    def test_resumed(self):
        """Stopped in a stage, at its end, and in the next: the same bits."""
        options = ("--optimizer", "adamw", "--lr", 0.02, "--unfreeze-after", 1, "b0", "--unfreeze-after", 2, "W0")
        self.train(*options, "--epochs", 3)
        whole = tensors(self.at("out.onnx"))
        for i, stop in enumerate((2, 3, 4, 6, 7)):
            self.train(*options, "--steps", stop, "--checkpoint", self.at(f"c{i}"), out="half.onnx")
            self.train(*options, "--epochs", 3, "--checkpoint", self.at(f"c{i}"), "--resume", out="resumed.onnx")
            for name, value in tensors(self.at("resumed.onnx")).items():
                np.testing.assert_array_equal(value, whole[name], f"{name} {stop}")
            with open(self.at(f"c{i}/options"), encoding="utf-8") as f:
                self.assertIn("unfreeze-after 2 W0", f.read())
        report("train", "--options", self.at("c0/options"), "--resume", "-o", self.at("again.onnx"))

    def test_said(self):
        """Stages are told, and the first needs less memory than the last."""
        status, _, err = call(*self.arguments("out.onnx", "--epochs", 2, "--unfreeze-after", 1, "W0"))
        self.assertEqual(status, 0)
        self.assertIn("step 4: a stage begins, with 4 trained parameters in place of 3", err)
        last = int(re.search(r"in the last stage, from step 4 on, the planned peak is (\d+) bytes", err).group(1))
        first = self.train("--epochs", 1, "--unfreeze-after", 1, "W0")["planned_peak_bytes"]
        self.assertLess(first, last)

    def test_budget(self):
        """What the last stage needs is known before the first step."""
        options = ("--optimizer", "adam", "--unfreeze-after", 1, "W0")
        first = self.train(*options, "--epochs", 1)["planned_peak_bytes"]
        status, _, err = call(*self.arguments("no.onnx", *options, "--epochs", 2, "--budget", first))
        self.assertEqual(status, 1)
        self.assertIn("budget", err)
        self.train(*options, "--epochs", 2, "--budget", 2 * first)

    def test_head(self):
        """A new head by itself, then all: `*` is of the model's own parameters."""
        np.save(self.at("out.npy"), RNG.integers(0, 2, 12))
        report(*self.arguments("out.onnx", "--head", 2, "--unfreeze-after", 1, "*", "--epochs", 1, "--lr", 0.1, loss="cross_entropy"))
        old, new = tensors(self.at("m.onnx")), tensors(self.at("out.onnx"))
        for name in ("W0", "b0"):
            np.testing.assert_array_equal(old[name], new[name])
        report(*self.arguments("more.onnx", "--head", 2, "--unfreeze-after", 1, "*", "--epochs", 2, "--lr", 0.1, loss="cross_entropy"))
        for name in ("W0", "b0"):
            self.assertGreater(np.abs(tensors(self.at("more.onnx"))[name] - old[name]).max(), 0)
        self.assertGreater(np.abs(tensors(self.at("more.onnx"))["W1"] - new["W1"]).max(), 0)

    def test_refused(self):
        for given, text in ((("--unfreeze-after", 1, "W9"), "fits no initializer"), (("--unfreeze-after", "x", "W0"), "wants a number of epochs"),
                            (("--unfreeze-after", "1"), "--unfreeze-after"), (("--unfreeze-after", 1, "*"), "trained later")):
            status, _, err = call(*self.arguments("no.onnx", "--epochs", 2, *given))
            self.assertNotEqual(status, 0, given)
            self.assertIn(text, err)


if __name__ == "__main__":
    unittest.main()
