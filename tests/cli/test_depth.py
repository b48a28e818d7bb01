# SPDX-License-Identifier: Apache-2.0
"""Memory must not grow with depth when values are inverted, at no more than a third more arithmetic. INVONNX_DEVICE
names the device that plans are made for and steps run on; without it, the CPU. Where a claim is of arithmetic, plans
are by arithmetic: by time, a device may rather compute twice what takes no longer than starting it."""
import os
import unittest

import common
import numpy as np
from common import DATA, EXAMPLES, model

DEPTHS = (4, 16, 64)
DEVICE = ["--device", os.environ["INVONNX_DEVICE"]] if os.environ.get("INVONNX_DEVICE") else []


def report(*args):
    return common.report(*args, *DEVICE)


def plan(couplings, memory):
    return report("plan", os.path.join(DATA, f"revnet_c{couplings}.onnx"), "--loss", "cross_entropy", "--batch", 8,
                  "--memory", memory, "--cost", "flops")


class Depth(unittest.TestCase):
    def test_inverted_peak_is_flat(self):
        # Kept whatever the mode: mean and variance of 12 channels of the two batch normalisations of a coupling.
        statistics = 2 * 2 * 12 * 4
        plans = {c: plan(c, "invert") for c in DEPTHS}
        peaks = {c: p["activation_peak_bytes"] for c, p in plans.items()}
        for c in DEPTHS:
            if c > 16:  # fewer have more that need not be kept at all
                self.assertLessEqual(peaks[c] - peaks[16], statistics * (c - 16), f"activation peaks: {peaks}")
            self.assertLess(peaks[c], 1.04 * peaks[16], f"activation peaks by couplings: {peaks}")
            # The halves of a state and of its gradient, and two values of a branch; beside them what convolutions work
            # in, which is another on each kind of processor.
            values = peaks[c] - plans[c]["classes"]["workspace"]
            self.assertLess(values, 6.1 * 8 * 12 * 16 * 16 * 4, f"activation peaks by couplings: {peaks}")

    def test_stored_peak_grows(self):
        # Else the test above would hold for a program that measures nothing.
        plans = {c: plan(c, "store") for c in DEPTHS}
        peaks = {c: p["activation_peak_bytes"] - p["classes"]["workspace"] for c, p in plans.items()}
        self.assertGreater(peaks[64], 8 * peaks[4], f"activation peaks by couplings: {peaks}")

    def test_arithmetic(self):
        for c in DEPTHS:
            for memory in ("invert", "auto"):
                p = plan(c, memory)
                # F and G twice in all: forward, and once more for the inverse and their gradient together.
                self.assertLessEqual(p["flops"], (4 / 3 + 0.01) * p["store_flops"], f"{c} couplings, {memory}")
            p = plan(c, "store")
            self.assertEqual(p["flops"], p["store_flops"])

    def test_auto_is_no_worse_than_store(self):
        for c in DEPTHS:
            p = plan(c, "auto")
            self.assertLessEqual(p["planned_peak_bytes"], p["store_peak_bytes"])

    def test_planned_is_what_is_used(self):
        x, y = (os.path.join(EXAMPLES, "data", f"digits_val_{k}.npy") for k in "xy")
        for memory in ("store", "recompute", "invert", "auto"):
            p = report("grad", os.path.join(EXAMPLES, "revnet_digits.onnx"), "--feed", x, "--target", y,
                       "--loss", "cross_entropy", "--memory", memory)
            self.assertLessEqual(p["peak_bytes"], p["planned_peak_bytes"], memory)
            self.assertGreaterEqual(p["peak_bytes"], 0.99 * p["planned_peak_bytes"], memory)

    def test_deep_gradients_stay_near(self):
        """64 couplings: inverted against stored, median over seeds of the data (a ReLU may flip by rounding)."""
        import tempfile
        path = os.path.join(DATA, "revnet_c64.onnx")
        distances = []
        for seed in range(3):
            rng = np.random.default_rng(seed)
            with tempfile.TemporaryDirectory() as folder:
                np.save(os.path.join(folder, "x.npy"), rng.standard_normal((8, 1, 16, 16)).astype(np.float32))
                np.save(os.path.join(folder, "y.npy"), rng.integers(0, 10, 8))
                grads = []
                for memory in ("store", "invert"):
                    dump = os.path.join(folder, memory)
                    p = report("grad", path, "--feed", os.path.join(folder, "x.npy"), "--target",
                               os.path.join(folder, "y.npy"), "--loss", "cross_entropy", "--memory", memory,
                               "--dump", dump)
                    grads.append({f: np.load(os.path.join(dump, f)).ravel() for f in sorted(os.listdir(dump))
                                  if f.startswith("grad_")})
                self.assertEqual(p["fallbacks"] if isinstance(p["fallbacks"], int) else len(p["fallbacks"]), 0)
                self.assertGreater(p["values"]["inverted"], 48)
                stored, inverted = (np.concatenate(list(g.values())) for g in grads)
                distances.append(np.linalg.norm(stored - inverted) / np.linalg.norm(stored))
        self.assertLessEqual(np.median(distances), 1e-3, distances)


class Evaluations(unittest.TestCase):
    """Every convolution of a branch runs twice in all: once in forward, once for the inverse and the gradient together."""

    def test_branches_of_a_revnet(self):
        path = os.path.join(DATA, "revnet_c16.onnx")
        p = report("plan", path, "--loss", "cross_entropy", "--memory", "invert", "--batch", "8",
                   "--cost", "flops")
        runs = {"forward": [], "backward": []}
        for row in p["timeline"]:
            if row["op"] == "ConvN":
                runs[row["phase"]].append(row["node"])
        self.assertEqual(len(set(runs["forward"])), 17)  # the stem and 16 branches
        for nodes in runs.values():  # one that ends in an inverse goes by the name of what is solved
            nodes[:] = [name for name in nodes if name != "/stem/Conv"]
            self.assertEqual(len(set(nodes)), len(nodes), nodes)
        self.assertTrue(12 <= len(runs["backward"]) <= 16, runs["backward"])  # not those at both ends


class Seed(unittest.TestCase):
    """A 3-to-5 linear map, batch 10: its input is freed after forward and reconstructed in backward."""

    def test_tall_linear(self):
        folder = model("linear_tall_ts13")
        x = os.path.join(folder, "in_x.npy")
        before = open(x, "rb").read()
        p = report("grad", os.path.join(folder, "model.onnx"), "--feed", x, "--target",
                   os.path.join(folder, "target.npy"), "--loss", "mse", "--memory", "invert")
        by = {c["value"]: (c["choice"], c["by"]) for c in p["choices"]}
        self.assertEqual(by["x"], ("inverted", "linear_tall"))
        self.assertEqual([b["kind"] for b in p["blocks"]], ["linear_tall"])
        drift = p["drift"]["largest"] if isinstance(p["drift"], dict) else p["drift"]
        self.assertTrue(0 < drift < 1e-4, drift)
        self.assertEqual(open(x, "rb").read(), before)


class Dropout(unittest.TestCase):
    def test_masks_are_equal_in_all_modes(self):
        import tempfile
        folder = model("hz_dropout_train_ts17")
        got = {}
        with tempfile.TemporaryDirectory() as top:
            for name, options in (("store", []), ("recompute", []), ("invert", []), ("other", ["--seed", "7"]),
                                  ("off", ["--no-dropout"])):
                dump = os.path.join(top, name)
                report("grad", os.path.join(folder, "model.onnx"), "--feed", os.path.join(folder, "in_x.npy"),
                       "--target", os.path.join(folder, "target.npy"), "--loss", "mse", "--dump", dump, "--memory",
                       name if name in ("store", "recompute", "invert") else "store", *options)
                got[name] = np.concatenate([np.load(os.path.join(dump, f)).ravel() for f in sorted(os.listdir(dump))
                                            if f.startswith("grad_")])
        np.testing.assert_array_equal(got["recompute"], got["store"])
        self.assertLess(np.linalg.norm(got["invert"] - got["store"]), 1e-4 * np.linalg.norm(got["store"]))
        # The masks are there, and the seed makes them.
        for name in ("other", "off"):
            self.assertGreater(np.linalg.norm(got[name] - got["store"]), 1e-2 * np.linalg.norm(got["store"]), name)


if __name__ == "__main__":
    unittest.main()
