# SPDX-License-Identifier: Apache-2.0
"""One tensor, its reshape, or a slice of it that is all of it, for two operands of operators that may be written in place: in every
memory mode, in both types and on device checked, loss and gradient are those of numpy's float64. Fails where an operator
overwrites what it still reads."""
import os
import unittest

import common
import numpy as np
from onnx import helper, numpy_helper, save

INDEX = np.array([[1, 0, 3, 2], [3, 2, 1, 0], [0, 1, 3, 2], [2, 3, 0, 1]])
ROWS = np.array([[2], [0], [3], [1]])
JOIN = {"none": lambda a, b: b, "add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def elements(how):
    def scatter(a, b):
        y = a.copy()
        np.put_along_axis(y, INDEX, JOIN[how](np.take_along_axis(a, INDEX, 1), b), 1)  # no element twice
        return y
    return scatter


def parts(how):
    def scatter(a, b):
        y = a.copy()
        y[ROWS[:, 0]] = JOIN[how](a[ROWS[:, 0]], b)
        return y
    return scatter


# name: (node of a, b and y, what it computes, its constants)
CASES = {
    **{f"ScatterElements {how}": (("ScatterElements", ["a", "i", "b"], {"axis": 1, "reduction": how}), elements(how), {"i": INDEX})
       for how in JOIN},
    **{f"ScatterND {how}": (("ScatterND", ["a", "i", "b"], {"reduction": how}), parts(how), {"i": ROWS}) for how in JOIN},
    "Add": (("Add", ["a", "b"], {}), np.add, {}), "Mul": (("Mul", ["a", "b"], {}), np.multiply, {}),
    "Where": (("Where", ["m", "a", "b"], {}), lambda a, b: a, {"m": INDEX > 1}),
    "Sum": (("Sum", ["a", "b", "a"], {}), lambda a, b: a + b + a, {}),
    "MatMul": (("MatMul", ["a", "b"], {}), np.matmul, {}),
    "Gemm": (("Gemm", ["a", "b", "a"], {"transB": 1}), lambda a, b: a @ b.T + a, {}),
    "PRelu": (("PRelu", ["a", "b"], {}), lambda a, b: np.where(a < 0, a * b, a), {}),
}
FORMS = {"same": [], "reshape": [("Reshape", ["a", "flat"], ["f"]), ("Reshape", ["f", "square"], ["b"])],
         "slice": [("Slice", ["a", "zero", "four", "zero"], ["b"])]}


class SameOperand(common.InFolder):
    def write(self, case, form):
        """The model; the weight and the gradient of the mean square of what it gives."""
        (op, ins, attributes), _, constants = CASES[case]
        nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), *(helper.make_node(*n) for n in FORMS[form])]
        ins = ["a" if name == "b" and form == "same" else name for name in ins]
        nodes += [helper.make_node(op, ins, ["y"], **attributes)]
        inits = {"w": self.w, "flat": np.array([16]), "square": np.array([4, 4]), "zero": np.array([0]), "four": np.array([4]),
                 **constants}
        used = {name for n in nodes for name in n.input}
        graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [4, 4])],
                                  [helper.make_tensor_value_info("y", 1, [4, 4])],
                                  [numpy_helper.from_array(a, n) for n, a in inits.items() if n in used])
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), self.at("m.onnx"))

    def want(self, case):
        """The loss, and its gradient by central differences."""
        function, x, w, h = CASES[case][1], self.x.astype(np.float64), self.w.astype(np.float64), 1e-5

        def loss(w):
            a = x @ w
            return (function(a, a) ** 2).mean()
        grad = np.zeros((4, 4))
        for k in np.ndindex(4, 4):
            step = np.zeros((4, 4))
            step[k] = h
            grad[k] = (loss(w + step) - loss(w - step)) / (2 * h)
        return loss(w), grad

    def test_all_pairs_in_all_modes(self):
        rng = np.random.default_rng(0)
        self.x, self.w = (rng.standard_normal((4, 4)).astype(np.float32) for _ in range(2))
        np.save(self.at("x.npy"), self.x)
        np.save(self.at("t.npy"), np.zeros((4, 4), np.float32))
        for case in CASES:
            want, slope = self.want(case)
            for form in FORMS:
                self.write(case, form)
                for mode in ("store", "recompute", "invert", "auto"):
                    for more in ([], ["--float64"], ["--device", "checked"]):
                        with self.subTest(case=case, form=form, mode=mode, more=more):
                            done = common.report("grad", self.at("m.onnx"), "--feed", self.at("x.npy"), "--target", self.at("t.npy"),
                                                 "--loss", "mse", "--memory", mode, "--cost", "flops", "--train-only", "w",
                                                 "--dump", self.at("g"), *more)
                            grad = np.load(os.path.join(self.at("g"), "grad_w.npy"))
                            self.assertLess(abs(done["loss"] - want), 1e-5 * want)
                            self.assertLess(np.abs(grad - slope).max(), 1e-5 * np.abs(slope).max())


if __name__ == "__main__":
    unittest.main()
