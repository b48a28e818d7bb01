# SPDX-License-Identifier: Apache-2.0
"""Networks of nested couplings (nested.py) train in every memory mode, in both types and on device checked, with the gradients of
float64; no plan is wrong on the way. Fails where a mode refuses a network, or where a gradient is off."""
import unittest

import common
from nested import try_seed


class Nested(unittest.TestCase):
    def hold(self, seeds):
        for seed in seeds:
            with self.subTest(seed=seed):
                self.assertEqual(try_seed(common.PROGRAM, seed)[0], [])

    def test_fixed_seeds(self):
        # guards of slopes of single numbers: 3 7 8 13 17 21 31; LeakyRelu among the couplings: 164 829
        self.hold([*range(4), 7, 8, 13, 17, 21, 31, 164, 829])

    @common.full
    def test_many_seeds(self):
        self.hold(range(2000, 2150))


if __name__ == "__main__":
    unittest.main()
