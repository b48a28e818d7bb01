# SPDX-License-Identifier: Apache-2.0
"""The arena of a plan is hardly more than the bytes that live at once, for every model here and every memory mode; and
what is planned is what the arena takes. Updates in backward take less."""
import glob
import os
import unittest

from common import DATA, EXAMPLES, report

MODELS = {os.path.join(DATA, "revnet_c64.onnx"): ["--loss", "cross_entropy", "--batch", "8"],
          os.path.join(EXAMPLES, "revnet_digits.onnx"): ["--loss", "cross_entropy", "--batch", "32"]}


def manifest(folder):
    """The loss options of a model with goldens."""
    with open(os.path.join(folder, "golden.txt"), encoding="utf-8") as f:
        rows = [line.rstrip("\n").split("\t") for line in f]
    kind, *rest = next(r[1:] for r in rows if r[0] == "loss")
    options = ["--loss", kind]
    if kind == "nll":
        for z in rest[2:]:
            options += ["--loss-output", z]
        options += [] if rest[0] == "-" else ["--logdet", rest[0]]
    else:
        options += ["--loss-output", rest[0], "--target", os.path.join(folder, rest[-1])]
        options += ["--class-axis", rest[1]] if kind == "cross_entropy" else []
    for r in rows:
        if r[0] == "input":
            options += ["--feed", f"{r[1]}={os.path.join(folder, r[2])}"]
    return options


class Arena(unittest.TestCase):
    def test_arena_is_what_lives(self):
        for golden in glob.glob(os.path.join(DATA, "models", "*", "golden.txt")):
            folder = os.path.dirname(golden)
            MODELS[os.path.join(folder, "model.onnx")] = manifest(folder)
        self.assertGreater(len(MODELS), 20)
        for path, options in MODELS.items():
            for memory in ("store", "recompute", "invert", "auto"):
                p = report("plan", path, *options, "--memory", memory)
                self.assertGreaterEqual(p["arena_bytes"], p["live_bytes"], f"{path} {memory}")
                self.assertLessEqual(p["arena_bytes"], 1.005 * p["live_bytes"], f"{path} {memory}")
                self.assertEqual(p["live_bytes"], max(t["live_bytes"] for t in p["timeline"]))
                self.assertEqual(p["planned_peak_bytes"], sum(p["classes"].values()))
                at = max(p["timeline"], key=lambda t: t["live_bytes"])
                for name, key in (("gradients", "gradient_bytes"), ("data", "data_bytes")):
                    self.assertEqual(p["classes"][name], at[key], f"{path} {memory} {name}")
                self.assertEqual(p["classes"]["activations"] + p["classes"]["workspace"], at["activation_bytes"])
                kept = p["classes"]["parameters"] + p["classes"]["optimizer"] + p["classes"]["control"]
                self.assertEqual(p["planned_peak_bytes"], kept + p["arena_bytes"])

    def test_early_updates_take_less(self):
        path = os.path.join(DATA, "models", "plain_lenet_ts17")
        options = [os.path.join(path, "model.onnx"), *manifest(path)]
        for memory in ("store", "recompute"):
            late = report("plan", *options, "--memory", memory)
            early = report("plan", *options, "--memory", memory, "--early-update")
            # Without what convolutions work in: on some processors that is most of it.
            arena = [p["arena_bytes"] - p["classes"]["workspace"] for p in (early, late)]
            self.assertLess(arena[0], 0.9 * arena[1], memory)
            most = [max(t["gradient_bytes"] for t in p["timeline"]) for p in (early, late)]
            self.assertLess(most[0], 0.9 * most[1], memory)


if __name__ == "__main__":
    unittest.main()
