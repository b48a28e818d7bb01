# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C between any two instructions of the package: KeyboardInterrupt is raised at the first, the second, the third ... of a
call, and after each one the trainer goes on as a training that was not interrupted. Fails if something that the call had
begun is left behind."""
import os
import sys
import unittest

import numpy as np

import invonnx
from test_package import Case, digits, revnet

PACKAGE = os.path.dirname(invonnx.__file__)
FINALIZERS = ("drop", "destroy", "__del__")  # what is raised there the interpreter drops


def interrupted(n, call):
    """Calls with KeyboardInterrupt at the n-th instruction of the package. Returns False if there are fewer."""
    left = n

    def each(frame, event, argument):
        nonlocal left
        if event == "opcode":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return each

    def enter(frame, event, argument):
        if not frame.f_code.co_filename.startswith(PACKAGE) or frame.f_code.co_name in FINALIZERS:
            return None
        frame.f_trace_opcodes = True
        return each

    former = sys.gettrace()
    sys.settrace(enter)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(former)
    return False


def interrupt_everywhere(call, then, each=1):
    n = 1
    while interrupted(n, call):
        then()
        n += each
    return n


class Interrupts(Case):
    def test_steps(self):
        """Weights are those of as many steps as the trainer has counted, and it can be saved."""
        x, y = digits(4)
        plain = {"optimizer": "sgd", "memory": "store", "cost": "flops", "threads": 1}
        t, other = revnet(**plain), revnet(**plain)
        t.step(x, y)

        def check():
            while other.steps < t.steps:
                other.step(x, y)
            np.testing.assert_array_equal(t.parameters["stem.weight"], other.parameters["stem.weight"])
            t.save_state(self.at("state"))

        self.assertGreater(interrupt_everywhere(lambda: t.step(x, y), check), 100)
        t.step(x, y)
        check()

    def test_averages(self):
        """While the weights get their place back: the next call gives it to them."""
        x, y = digits(4)

        def trainer():
            t = revnet(optimizer="sgd", memory="store", cost="flops", threads=1, average="ema:0.9")
            for _ in range(2):
                t.step(x, y)
            return t

        t, n, former = trainer(), 1, []  # none of which is destroyed while it is interrupted
        while True:
            scope = t.averages()
            scope.__enter__()
            if not interrupted(n, lambda: scope.__exit__(None, None, None)):
                break
            if t._averages:  # the first instructions: the end of the scope has not been noted
                former.append(t)
                self.assertLess(len(former), 12)
                t = trainer()
            t.step(x, y)
            n += 1
        self.assertGreater(n, 50)
        t.step(x, y)

    def test_remarks(self):
        """While a callback of the library is at work, and behind it."""
        said = []
        m = invonnx.load(revnet().model.path, progress=lambda stage, share: said.append(share))
        plan = lambda: m.plan(loss="cross_entropy", batch=2, cost="flops", memory="store")
        self.assertGreater(interrupt_everywhere(plan, lambda: m.inspect(), each=3), 100)
        plan()
        self.assertTrue(said)


if __name__ == "__main__":
    unittest.main()
