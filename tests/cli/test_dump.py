# SPDX-License-Identifier: Apache-2.0
"""--dump-passes: a file per pass and plan, numbered in the order of the pipeline, for every command that compiles; a
folder that cannot be written is refused by name. Needs numpy. What stands in the files is held by tests/passes."""
import os
import tempfile
import unittest

import numpy as np

import common

MODEL = os.path.join(common.model("nice_dynbatch_ts17"), "model.onnx")
FRONT = ["import", "inline", "sort", "reach", "bind", "real", "lower", "reach", "simplify", "spelling"]
BASE = ["loss", "split_head", "sync_norms", "grad", "unpack_again", "place_head", "sum_in_place", "grad_rows", "hold",
        "reduce_gradients", "update", "prune", "layout"]
SEARCH = ["recover", "fuse", "memplan"]
RUN = FRONT + ["match"] + BASE + ["order"] + SEARCH
TRAIN = FRONT + ["match"] + BASE + ["fuse_inverse", "order"] + SEARCH
EVAL = FRONT + BASE + ["order"] + SEARCH  # nothing is recovered, so nothing is matched


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


class Dump(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        rng = np.random.default_rng(1)
        for name in "xy":
            np.save(self.at(f"{name}.npy"), rng.standard_normal((20, 8)).astype(np.float32))
        self.data = [MODEL, "--data", self.at("x.npy"), "--target", self.at("y.npy"), "--loss", "mse", "--batch", 8]
        self.fed = [MODEL, "--feed", self.at("x.npy"), "--target", self.at("y.npy"), "--loss", "mse"]

    def at(self, *names):
        return os.path.join(self.folder, *names)

    def dump(self, command, *args):
        """What the command has written, by folder."""
        folder = self.at(command)
        status, _, err = common.call(command, *args, "-q", "--dump-passes", os.path.join(folder, "deep"))
        self.assertEqual(status, 0, err)
        found = {}
        for at, _, names in os.walk(os.path.join(folder, "deep")):
            found[os.path.relpath(at, os.path.join(folder, "deep"))] = sorted(names)
        return found

    def expect(self, names, passes):
        self.assertEqual(names, [f"{i + 1:03}-{name}.txt" for i, name in enumerate(passes)])

    def test_plan(self):
        found = self.dump("plan", MODEL, "--loss", "mse", "--batch", 8)
        self.assertEqual(set(found), {"."})
        self.expect(found["."], TRAIN)
        last = read(self.at("plan", "deep", found["."][-1]))
        for text in ("# backward\n", "# commit\n", "  # at ", "Feed<", "}\n"):
            self.assertIn(text, last)
        self.assertNotIn("# at ", read(self.at("plan", "deep", found["."][-2])))
        self.assertIn("# block: additive_coupling, ", read(self.at("plan", "deep", "011-match.txt")))

    def test_train_has_several_plans(self):
        found = self.dump("train", *self.data, "--val-data", self.at("x.npy"), "--val-target", self.at("y.npy"), "-o",
                          self.at("out.onnx"))
        self.assertEqual(set(found), {".", "tail", "eval", "eval_tail"})
        for name, passes in ((".", TRAIN), ("tail", TRAIN), ("eval", EVAL), ("eval_tail", EVAL)):
            self.expect(found[name], passes)

    def test_other_commands(self):
        self.expect(self.dump("run", MODEL, "--feed", self.at("x.npy"))["."], RUN)
        self.expect(self.dump("explain", MODEL)["."], RUN)
        self.expect(self.dump("grad", *self.fed)["."], TRAIN)
        self.assertEqual(set(self.dump("eval", *self.data)), {".", "tail"})

    def test_rewrite(self):
        found = self.dump("rewrite", MODEL, "-o", self.at("rewritten.onnx"), "--inverse-out", self.at("inverse.onnx"))
        self.assertEqual(set(found), {".", "inverse"})
        passes = FRONT + ["match"]
        for names in found.values():
            self.expect(names, passes * (len(names) // len(passes)))  # once more where it tries another batch

    def test_compiled_more_than_once(self):
        # A memory mode after the other: the numbers go on.
        names = self.dump("compare", *self.fed, "--repeat", 1)["."]
        self.expect(names, TRAIN * (len(names) // len(TRAIN)))
        self.assertGreater(len(names), len(TRAIN))
        self.assertIn("check", "".join(self.dump("check", *self.fed)["."]))

    def test_trials_of_a_curve_are_not_told(self):
        self.expect(self.dump("plan", MODEL, "--loss", "mse", "--batch", 8, "--curve")["."], TRAIN)

    def refused(self, folder, *says):
        before = sorted(os.listdir(self.folder))
        status, _, err = common.call("train", *self.data, "-o", self.at("out.onnx"), "--dump-passes", folder)
        self.assertEqual(status, 1)
        for text in says:
            self.assertIn(text, err)
        self.assertEqual(sorted(os.listdir(self.folder)), before)

    def test_folder_cannot_be_made(self):
        self.refused(self.at("x.npy"), self.at("x.npy"), "directory cannot be made")
        self.refused(self.at("x.npy", "deep"), self.at("x.npy", "deep"), "directory cannot be made")
        if os.geteuid() != 0:
            os.mkdir(self.at("shut"), 0o555)
            self.refused(self.at("shut"), self.at("shut", "001-import.txt"), "Permission denied")

    def test_file_cannot_be_written(self):
        # What was written before is whole; compiling ends there, and nothing is trained.
        os.makedirs(self.at("passes", "003-sort.txt"))
        self.refused(self.at("passes"), self.at("passes", "003-sort.txt"), "not a regular file", "ends after pass 'sort'")
        self.assertEqual(sorted(os.listdir(self.at("passes"))), ["001-import.txt", "002-inline.txt", "003-sort.txt"])
        for name in ("001-import.txt", "002-inline.txt"):
            self.assertTrue(read(self.at("passes", name)).endswith("}\n"))


if __name__ == "__main__":
    unittest.main()
