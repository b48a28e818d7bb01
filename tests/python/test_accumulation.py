# SPDX-License-Identifier: Apache-2.0
"""What an update tells is of the micro-batches that it was made from. Fails if one counts that the step has dropped, or if
`update` tells of others than the library does."""
import unittest

import numpy as np

import invonnx
from test_package import Case, digits, revnet


class Results(Case):
    def trainer(self, **options):
        return revnet(**{"optimizer": "sgd", "memory": "store", "cost": "flops", "threads": 1, "accumulate": True, **options})

    def same(self, t, other, result, wanted):
        self.assertEqual(result, wanted._replace(grad_norm=result.grad_norm))
        self.assertEqual(list(t.log["loss"]), list(other.log["loss"]))
        for name, w in other.parameters.items():
            if "running" not in name:  # statistics move with each micro-batch
                np.testing.assert_array_equal(t.parameters[name], w, name)

    def test_mean(self):
        t = self.trainer()
        parts = [t.accumulate(*digits(n, n)) for n in (4, 2, 5)]
        result = t.update()
        self.assertEqual(result.weight, 11)
        self.assertAlmostEqual(result.loss, sum(p.loss * p.weight for p in parts) / 11, places=12)
        one = self.trainer()
        part = one.accumulate(*digits(4))
        self.assertEqual(one.update().loss, part.loss)
        self.assertEqual(self.trainer().step(*digits(4)).loss, part.loss)

    def test_drift(self):
        t = self.trainer(memory="invert", guard="full")
        parts = [t.accumulate(*digits(4, n)) for n in range(3)]
        self.assertGreater(parts[0].drift, 0)
        self.assertEqual(t.update().drift, max(p.drift for p in parts))
        self.assertGreater(t.step(*digits(4)).drift, 0)

    def test_steps_that_begin_anew(self):
        x, y = digits(4, 9)
        x[0] = np.nan

        def fails(t):
            with self.assertRaises(invonnx.NumericError):
                t.accumulate(x, y)

        for early, begin_anew in ((False, lambda t: t.set_step(0)), (True, fails)):
            t, other = self.trainer(early_update=early), self.trainer(early_update=early)
            t.accumulate(*digits(4, 1))
            begin_anew(t)
            results = []
            for each in (t, other):
                each.accumulate(*digits(4, 2))
                results.append(each.update())
            self.assertEqual(results[0].weight, 4)
            self.same(t, other, *results)


class Fit(Case):
    """A step that an exception ends in its middle is not made later, of batches of another fit."""

    def test_broken_steps(self):
        batches = [digits(4, n) for n in range(8)]
        x, y = digits(4, 9)
        x[0] = np.nan

        def broken():
            yield from batches[:3]
            raise LookupError

        def interrupted():
            yield from batches[:3]
            raise KeyboardInterrupt

        for data, error in ((broken(), LookupError), (interrupted(), KeyboardInterrupt),
                            (batches[:2] + [(x, y), batches[3]], invonnx.NumericError),
                            (batches[:2] + [(x[:, :, :4], y), batches[3]], invonnx.ShapeError)):
            t, other = (revnet(memory="store", cost="flops", threads=1, accumulate=4) for _ in range(2))
            other.open(*batches[0])
            with self.assertRaises(error):
                t.fit(data)
            self.assertEqual(t.steps, 0)
            t.save_state(self.at("state"))
            for name in t.parameters:  # statistics have moved, as with any micro-batch
                other.parameters[name] = t.parameters[name]
            for each in (t, other):
                each.fit(batches[4:])
                self.assertEqual(each.steps, 1)
            self.assertEqual(list(t.log["loss"]), list(other.log["loss"]))
            for name, w in other.parameters.items():
                np.testing.assert_array_equal(t.parameters[name], w, name)

    def test_accumulated_before(self):
        """What the caller has accumulated is no step of a fit that begins none."""
        t, other = (revnet(memory="store", cost="flops", threads=1, accumulate=2) for _ in range(2))
        for each in (t, other):
            each.accumulate(*digits(4))
        with self.assertRaisesRegex(ValueError, "no batches"):
            t.fit([])
        self.assertEqual(t.update().loss, other.update().loss)


if __name__ == "__main__":
    unittest.main()
