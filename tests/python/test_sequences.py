# SPDX-License-Identifier: Apache-2.0
"""Calls of the package in any order, beside a training of a few lines of NumPy in float64. After each call both have the
same weights, averages and number of steps, and a call that fails has changed nothing.

INVONNX_SEQUENCES=20000 tries as many sequences in place of 300; INVONNX_SEED draws others."""
import os
import shutil
import tempfile
import unittest
from contextlib import ExitStack

import numpy as np
import onnx
from hypothesis import HealthCheck, Phase, note, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from onnx import TensorProto, helper, numpy_helper

import invonnx

SEQUENCES = int(os.environ.get("INVONNX_SEQUENCES", "300"))
INPUTS, HIDDEN, OUTPUTS = 3, 4, 2
TOTAL, RATE, DECAY = 12, 0.05, 0.75
MODES = ("store", "recompute", "invert", "auto")
rows = st.integers(1, 7)
number = st.integers(0, 2**32 - 1)


def write_model(path, weights):
    nodes = [helper.make_node("MatMul", ["x", "w0"], ["a"]), helper.make_node("Tanh", ["a"], ["h"]),
             helper.make_node("Gemm", ["h", "w1", "b1"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["N", INPUTS])],
        [helper.make_tensor_value_info("y", TensorProto.DOUBLE, ["N", weights["w1"].shape[1]])],
        [numpy_helper.from_array(w, name) for name, w in weights.items()])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def weights_of(path):
    return {i.name: numpy_helper.to_array(i) for i in onnx.load(path).graph.initializer}


class Twin:
    """What a training is, in NumPy: x -> tanh(x w0) w1 + b1, with the mean of the squared error."""

    def __init__(self, weights, optimizer, trained_from, lr):
        self.w = {name: w.copy() for name, w in weights.items()}
        self.optimizer, self.trained_from, self.lr = optimizer, trained_from, lr
        self.m = {name: np.zeros_like(w) for name, w in weights.items()}
        self.v = {name: np.zeros_like(w) for name, w in weights.items()}
        self.average = {name: w.copy() for name, w in weights.items()}
        self.steps, self.factor = 0, 1.0
        self.sum, self.rows = {}, 0

    def copy(self):
        other = Twin(self.w, self.optimizer, self.trained_from, self.lr)
        for name in ("m", "v", "average"):
            setattr(other, name, {key: x.copy() for key, x in getattr(self, name).items()})
        other.steps, other.factor = self.steps, self.factor
        return other

    def loss(self, x, y, w):
        h = np.tanh(x @ w["w0"])
        error = h @ w["w1"] + w["b1"] - y
        g = 2 * error / error.size
        return (error**2).mean(), {"w0": x.T @ ((g @ w["w1"].T) * (1 - h * h)), "w1": h.T @ g, "b1": g.sum(0)}

    def accumulate(self, x, y):
        loss, gradients = self.loss(x, y, self.w)
        for name, g in gradients.items():
            self.sum[name] = self.sum.get(name, 0) + g * len(x)
        self.rows += len(x)
        return loss

    def update(self):
        lr = self.lr(self.steps) * self.factor
        for name in self.w:
            begins = self.trained_from.get(name, 0)
            if self.steps < begins:
                continue
            self.change(name, self.sum[name] / self.rows, lr, self.steps - begins + 1)
            keep = DECAY if self.steps > 0 else 0
            self.average[name] = keep * self.average[name] + (1 - keep) * self.w[name]
        for name, begins in self.trained_from.items():
            if self.steps < begins:
                self.average[name] = self.w[name].copy()
        self.steps += 1
        self.sum, self.rows = {}, 0

    def change(self, name, g, lr, t):
        if self.optimizer == "momentum":
            self.m[name] = 0.9 * self.m[name] + g
            g = self.m[name]
        elif self.optimizer == "adam":
            self.m[name] = 0.9 * self.m[name] + 0.1 * g
            self.v[name] = 0.999 * self.v[name] + 0.001 * g * g
            g = self.m[name] / (1 - 0.9**t) / (np.sqrt(self.v[name] / (1 - 0.999**t)) + 1e-8)
        self.w[name] = self.w[name] - lr * g


class Sequences(RuleBasedStateMachine):
    @initialize(optimizer=st.sampled_from(("sgd", "momentum", "adam")), memory=st.sampled_from(MODES), average=st.booleans(),
                accumulate=st.booleans(), staged=st.sampled_from((None, "w0", "w1")), scheduled=st.booleans(),
                tail=st.sampled_from((0, 2)), evaluated=st.sampled_from((0, 3)), key=number)
    def begin(self, optimizer, memory, average, accumulate, staged, scheduled, tail, evaluated, key):
        self.folder = tempfile.mkdtemp()
        self.path = os.path.join(self.folder, "m.onnx")
        rng = np.random.default_rng(key)
        weights = {"w0": rng.normal(size=(INPUTS, HIDDEN)), "w1": rng.normal(size=(HIDDEN, OUTPUTS)),
                   "b1": rng.normal(size=OUTPUTS)}
        write_model(self.path, weights)
        self.stages = {staged: 2} if staged else {}
        self.options = dict(
            loss="mse", optimizer=optimizer, float64=True, cost="flops", threads=1, average=average, average_decay=DECAY,
            accumulate=accumulate, tail_batch=tail, eval_batch=evaluated, groups=[invonnx.Group("*")],
            lr=invonnx.Schedule("cosine", lr=RATE, total=TOTAL) if scheduled else RATE, stages=self.stages or None)
        rate = (lambda i: RATE * (1 + np.cos(np.pi * min(i, TOTAL) / TOTAL)) / 2) if scheduled else (lambda i: RATE)
        self.states, self.scopes, self.averages = [], [], 0
        self.model = invonnx.load(self.path)
        self.trainer = self.model.trainer(memory=memory, **self.options)
        self.twin = Twin(weights, optimizer, self.stages, rate)
        self.seen = False  # a batch, so that there is a session
        self.outputs, self.heads = OUTPUTS, 0

    def teardown(self):
        if hasattr(self, "folder"):
            self.leave_scopes()
            shutil.rmtree(self.folder)

    def leave_scopes(self):
        while self.scopes:
            self.scopes.pop()[1].close()
        self.averages = 0

    def batch(self, n, key):
        rng = np.random.default_rng(key)
        return rng.normal(size=(n, INPUTS)), rng.normal(size=(n, self.outputs))

    def refused(self, call, *arguments):
        """The call fails, by an error of the package."""
        try:
            call(*arguments)
        except (invonnx.Error, ValueError, RuntimeError) as error:
            note(f"refused: {error}")
            assert str(error)
            return
        raise AssertionError(f"{call} was not refused")

    def present(self):
        return self.twin.average if self.averages and self.twin.steps else self.twin.w

    # --- training ---

    @rule(n=rows, key=number)
    def step(self, n, key):
        x, y = self.batch(n, key)
        if self.averages or self.twin.rows:
            self.refused(self.trainer.step, x, y)
            self.seen = True  # the session is made before that is seen
            return
        result = self.trainer.step(x, y)
        loss = self.twin.accumulate(x, y)
        self.twin.update()
        self.seen = True
        np.testing.assert_allclose(result.loss, loss, rtol=1e-9)

    @precondition(lambda self: self.options["accumulate"])
    @rule(n=rows, key=number)
    def accumulate(self, n, key):
        x, y = self.batch(n, key)
        if self.averages:
            self.refused(self.trainer.accumulate, x, y)
            self.seen = True
            return
        result = self.trainer.accumulate(x, y)
        self.seen = True
        np.testing.assert_allclose(result.loss, self.twin.accumulate(x, y), rtol=1e-9)

    @precondition(lambda self: self.options["accumulate"])
    @rule()
    def update(self):
        if self.averages or not self.twin.rows:
            self.refused(self.trainer.update)
            return
        self.trainer.update()
        self.twin.update()

    @rule(n=st.integers(1, 4), key=number)
    def step_that_is_not_finite(self, n, key):
        x, y = self.batch(n, key)
        x[0, 0] = np.nan
        self.refused(self.trainer.step, x, y)
        self.seen = True

    @rule(n=st.integers(0, 4), key=number)
    def step_of_another_shape(self, n, key):
        x, y = self.batch(n, key)
        self.refused(self.trainer.step, x[:, :2] if n else x, y)
        self.seen = self.seen or self.trainer._session is not None

    @rule(n=rows, key=number)
    def evaluate(self, n, key):
        x, y = self.batch(n, key)
        result = self.trainer.evaluate(x, y)
        self.seen = True
        np.testing.assert_allclose(result.loss, self.twin.loss(x, y, self.present())[0], rtol=1e-9)

    # --- settings ---

    @rule(memory=st.sampled_from(MODES), replace=st.booleans())
    def set_modes(self, memory, replace):
        self.trainer.set_modes(memory, replace=replace)

    @rule()
    def set_modes_of_nothing(self):
        if self.seen:
            self.refused(self.trainer.set_modes, "auto", {"no such value": "store"})

    @precondition(lambda self: len(self.scopes) < 3)
    @rule(memory=st.sampled_from(MODES))
    def enter_modes(self, memory):
        stack = ExitStack()
        stack.enter_context(self.trainer.modes(memory))
        self.scopes.append(("modes", stack))

    @precondition(lambda self: len(self.scopes) < 3)
    @rule()
    def enter_averages(self):
        stack = ExitStack()
        if not self.options["average"]:
            self.refused(stack.enter_context, self.trainer.averages())
            return
        stack.enter_context(self.trainer.averages())
        self.scopes.append(("averages", stack))
        self.averages += 1

    @precondition(lambda self: self.scopes)
    @rule()
    def leave(self):
        kind, stack = self.scopes.pop()
        stack.close()
        self.averages -= kind == "averages"

    @rule(factor=st.sampled_from((0.5, 1.0, 2.0)))
    def set_group_lr(self, factor):
        self.trainer.set_group_lr(0, factor)
        self.twin.factor = factor

    @rule()
    def set_group_lr_of_nothing(self):
        self.refused(self.trainer.set_group_lr, 1, 0.5)

    # --- files ---

    @rule()
    def save_state(self):
        path = os.path.join(self.folder, f"state{len(self.states)}")
        if not self.seen or self.averages or self.twin.rows:
            self.refused(self.trainer.save_state, path)
            assert not os.path.exists(path)
            return
        self.trainer.save_state(path, f"note {len(self.states)}")
        self.states.append((path, self.twin.copy(), self.heads))

    @precondition(lambda self: self.states)
    @rule(which=st.integers(0, 99))
    def load_state(self, which):
        path, twin, heads = self.states[which % len(self.states)]
        if heads != self.heads:  # of another model
            return
        if self.averages or self.twin.rows:
            self.refused(self.trainer.load_state, path)
            return
        assert self.trainer.load_state(path) == f"note {which % len(self.states)}"
        self.twin = twin.copy()

    @rule(damaged=st.booleans(), key=number)
    def load_state_that_does_not_fit(self, damaged, key):
        """Of another optimizer, and maybe of another stage; or cut off. Without a session it is not read in full."""
        if not damaged and not self.seen:
            return
        path = os.path.join(self.folder, "other")
        optimizer = "sgd" if self.options["optimizer"] == "adam" else "adam"
        other = self.model.trainer(**{**self.options, "optimizer": self.options["optimizer"] if damaged else optimizer})
        x, y = self.batch(2, key)
        if self.options["accumulate"]:
            other.accumulate(x, y)
            other.update()
        else:
            other.step(x, y)
        other.save_state(path)
        if damaged:
            with open(path, "r+b") as f:
                f.truncate(os.path.getsize(path) - 1)
        self.refused(self.trainer.load_state, path)

    @rule(which=st.integers(0, 99), memory=st.sampled_from(MODES), tail=st.sampled_from((0, 3)), loaded=st.booleans())
    def go_on_in_a_new_trainer(self, which, memory, tail, loaded):
        states = [s for s in self.states if s[2] == self.heads]
        if not states:
            return
        self.leave_scopes()
        path, twin, _ = states[which % len(states)]
        self.options["tail_batch"] = tail
        self.trainer = self.model.trainer(memory=memory, **self.options)
        self.trainer.load_state(path)
        self.twin, self.seen = twin.copy(), False
        if loaded:
            x, y = self.batch(2, which)
            self.trainer.open(x, y)
            self.seen = True

    @precondition(lambda self: self.seen)
    @rule()
    def save(self):
        path = os.path.join(self.folder, "saved.onnx")
        self.trainer.save(path)
        for name, w in weights_of(path).items():
            np.testing.assert_allclose(w, self.present()[name], rtol=1e-9, atol=1e-12)

    @rule(classes=st.integers(1, 3), key=number)
    def set_head(self, classes, key):
        """Another model: the trainer is of no use any more, and says so; a new one trains the model as it is now."""
        self.leave_scopes()
        former = self.trainer
        self.model.set_head(classes, seed=key % 1000)
        x, y = self.batch(2, key)
        for call in (lambda: former.step(x, y), lambda: former.evaluate(x, y), lambda: former.save_state("state")):
            self.refused(call)
        self.outputs, self.heads = classes, self.heads + 1
        self.trainer = self.model.trainer(memory="auto", **self.options)
        x, y = self.batch(2, key)
        self.trainer.open(x, y)
        self.seen = True
        weights = {name: np.array(self.trainer.parameters[name]) for name in ("w0", "w1", "b1")}
        np.testing.assert_array_equal(weights["w0"], weights_of(self.path)["w0"])
        assert weights["w1"].shape == (HIDDEN, classes) and weights["b1"].shape == (classes,)
        self.twin = Twin(weights, self.twin.optimizer, self.stages, self.twin.lr)

    # --- both agree ---

    @invariant()
    def agrees(self):
        if not hasattr(self, "trainer"):
            return
        assert self.trainer.steps == self.twin.steps, (self.trainer.steps, self.twin.steps)
        if not self.seen:
            return
        parameters = self.trainer.parameters
        for name, w in self.present().items():
            np.testing.assert_allclose(parameters[name], w, rtol=1e-9, atol=1e-12, err_msg=name)
        state = self.trainer.optimizer_state
        for name in self.twin.w:
            if self.options["average"] and self.twin.steps > 0 and f"{name}/average" in state:
                np.testing.assert_allclose(state[f"{name}/average"], self.twin.average[name], rtol=1e-9, atol=1e-12, err_msg=name)


class Test(unittest.TestCase):
    def test_sequences(self):
        machine = seed(int(os.environ.get("INVONNX_SEED", "1")))(Sequences)
        run_state_machine_as_test(machine, settings=settings(
            max_examples=SEQUENCES, stateful_step_count=14, deadline=None, database=None, print_blob=False,
            suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink)))


if __name__ == "__main__":
    unittest.main()
