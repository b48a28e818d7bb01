# SPDX-License-Identifier: Apache-2.0
"""What the program says to people, and where: the lines of a run in one stream, a bar no longer than the terminal is
wide, -q and -v, summaries last. Needs numpy. Fails if a line is wider than the terminal, goes elsewhere, or is not there."""
import json
import os
import re
import select
import struct
import subprocess
import tempfile
import time
import unittest

import numpy as np

import common

try:
    import fcntl
    import pty
    import termios
except ImportError:
    pty = None

MODEL = os.path.join(common.model("nice_dynbatch_ts17"), "model.onnx")


class Talk(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        rng = np.random.default_rng(1)
        np.save(self.at("x.npy"), rng.standard_normal((24, 8)).astype(np.float32))
        np.save(self.at("y.npy"), rng.standard_normal((24, 8)).astype(np.float32))
        self.train = ["train", MODEL, "--data", self.at("x.npy"), "--target", self.at("y.npy"), "--loss", "mse",
                      "--batch", "8", "-o", self.at("out.onnx")]

    def at(self, name):
        return os.path.join(self.folder.name, name)

    def call(self, *args):
        status, out, err = common.call(*args)
        self.assertEqual(status, 0, err)
        return out, err

    def test_run_is_in_one_stream(self):
        out, err = self.call(*self.train, "--epochs", "2")
        self.assertEqual(err, "")
        lines = out.splitlines()
        self.assertRegex(out, r"(?m)^24 rows, batch 8, 6 steps; planned peak [0-9.]+ KiB \(storing all: ")
        self.assertEqual([line.split()[1] for line in lines if line.startswith("epoch")], ["1/2", "2/2"])
        self.assertRegex(out, r"6 steps in .* weights saved to ")
        self.assertNotIn("bound", out)  # the planner's figures
        self.assertLessEqual(max(map(len, lines[:4])), 80)

    def test_json_has_stdout_alone(self):
        out, err = self.call(*self.train, "--json")
        self.assertEqual(json.loads(out)["steps_done"], 3)
        self.assertRegex(err, r"24 rows, batch 8, 3 steps(.|\n)*epoch 1/1(.|\n)*weights saved")

    def test_profile(self):
        for guard, wanted in (("on", self.assertTrue), ("off", self.assertFalse)):
            more = ("--profile", "--memory", "invert", "--guard", guard)
            wanted(re.search(r"profile: .* ms a step(.|\n)*guards are [0-9.]+ ms of it, [0-9.]+ %", self.call(*self.train, *more)[0]))
            rows = json.loads(self.call(*self.train, *more, "--json")[0])["timeline"]
            self.assertTrue(all(row["seconds"] >= 0 for row in rows if "seconds" in row))
            wanted(any(row.get("guard") for row in rows))
        rows = json.loads(self.call(*self.train, "--profile", "--device", "sim", "--json")[0])["timeline"]
        self.assertTrue(all(row["seconds"] >= 0 for row in rows if row["op"] != "Feed"))  # a feed is no kernel

    def test_verbose_and_quiet(self):
        out, _ = self.call(*self.train, "-v")
        self.assertRegex(out, r"bound \+(.|\n)*epoch 1/1(.|\n)*planned peak(.|\n)*values for backward")
        self.assertEqual(self.call(*self.train, "-q"), ("", ""))
        out, err = self.call(*self.train, "-q", "--json")
        self.assertEqual((json.loads(out)["steps_done"], err), (3, ""))
        status, out, err = common.call(*self.train, "-q", "--batch", "x")
        self.assertEqual((status, out), (2, ""))
        self.assertIn("whole number", err)

    def test_plan_ends_with_its_summary(self):
        out, _ = self.call("plan", MODEL, "--loss", "mse", "--batch", "8")
        self.assertLess(len(out.splitlines()), 24)
        self.assertTrue(out.startswith("memory"), out)
        out, _ = self.call("plan", MODEL, "--loss", "mse", "--batch", "8", "--curve", "-v")
        at = [out.index(word) for word in ("\n  stored", "curve\n", "planned peak")]
        self.assertEqual(at, sorted(at), out)

    def test_only_the_inverse_is_written(self):
        os.symlink(MODEL, self.at("m.onnx"))
        before = set(os.listdir(self.folder.name))
        out, _ = self.call("rewrite", self.at("m.onnx"), "--inverse-out", self.at("i.onnx"))
        self.assertEqual(set(os.listdir(self.folder.name)) - before, {"i.onnx"})
        self.assertIn("i.onnx: ", out)
        report = common.report("rewrite", self.at("m.onnx"), "--inverse-out", self.at("i.onnx"))
        self.assertGreater(report["inverse_direction"]["inverses"], 0)
        self.call("rewrite", self.at("m.onnx"), "--inverse-out", self.at("i.onnx"), "-o", self.at("o.onnx"))
        self.assertTrue(os.path.exists(self.at("o.onnx")))

    def test_budget_out_of_reach(self):
        """Said before any search, in units; then what the smallest plan needs, and what would help, the best first."""
        status, out, err = common.call("plan", MODEL, "--loss", "mse", "--batch", "512", "--budget", "1KiB",
                                       "--optimizer", "adam")
        lines = [line for line in err.splitlines() if "searching for a plan" not in line]
        self.assertEqual((status, out, len(lines)), (1, "", 2), err)
        self.assertRegex(lines[0], r"a budget of 1.00 KiB cannot be met: parameters and optimizer state alone take [0-9.]+ KiB")
        self.assertRegex(lines[1], r"1.00 KiB is too little, [0-9.]+ KiB is enough. .* 1024 bytes .* needs \d{5,} ")
        known = r"Remedies, in this order: --early-update \(\S+ KiB at least\), --optimizer sgd \(\S+ KiB at least\), --early-update with " \
                r"--optimizer sgd \(\S+ KiB at least\), a smaller batch$"
        self.assertRegex(lines[1], known)
        least = [float(x) for x in re.findall(r"\((\S+) KiB at least", lines[1])]
        self.assertLess(least[2], min(least[:2]))
        status, _, err = common.call("plan", MODEL, "--loss", "mse", "--batch", "512", "--budget", "10KiB")
        self.assertRegex(err.splitlines()[0], r"a budget of 10.0 KiB cannot be met: .*, a step [0-9.]+ KiB or more")
        status, _, err = common.call("plan", MODEL, "--loss", "mse", "--batch", "512", "--budget", "1KiB",
                                     "--early-update")
        self.assertRegex(err, r"Remedies: a smaller batch\n") # and not what is done already

    def failed(self, status, *args):
        """(message on stderr, the JSON object) of a call that has to fail."""
        got, out, err = common.call(*args, "--json")
        self.assertEqual(got, status, err)
        found = json.loads(out)
        self.assertEqual(found["status"], status)
        self.assertIn(found["error"], err)
        return found["error"], found

    def test_failures_as_json(self):
        loss = ("--loss", "mse")
        self.failed(1, "inspect", self.at("none.onnx"))
        self.failed(2, "inspect")
        self.failed(2, "plan", MODEL, "--batch", "x")
        self.failed(2, "nosuch")
        _, found = self.failed(1, "plan", MODEL, *loss, "--batch", "512", "--budget", "1000")
        self.assertEqual(found["budget_bytes"], 1000)
        self.assertIn(f"needs {found['needed_bytes']} ", found["error"])
        self.assertEqual(found["remedies"][0]["option"], "early_update")
        for memory in ("store", "invert"):
            _, found = self.failed(1, "plan", MODEL, *loss, "--batch", "512", "--budget", "1000", "--memory", memory)
            self.assertEqual((found["remedies"][0]["option"], found["remedies"][0]["value"]), ("memory", "auto"))
            self.assertIn("in this order: --memory auto (", found["error"])
            stored = memory == "store"
            self.assertEqual("the plan that stores everything needs" in found["error"], stored)
            self.assertEqual(found["remedies"][1]["option"], "memory, early_update" if stored else "early_update")
        _, found = self.failed(1, "eval", MODEL, *loss, "--data", self.at("x.npy"), "--target", self.at("y.npy"), "--batch", "512",
                               "--budget", "1000")
        self.assertEqual([r["option"] for r in found["remedies"]], ["batch"])  # evaluation has no modes
        _, out, err = common.call("inspect", self.at("none.onnx"))
        self.assertEqual((out, err.count("none.onnx") > 0), ("", True))

    def test_did_you_mean(self):
        """Commands, options, and globs that fit nothing; what is like nothing has no suggestion."""
        weight = common.report("inspect", MODEL)["initializers"][0]["name"]
        plan = ("plan", MODEL, "--loss", "mse")
        for args, meant in ((("trian", MODEL), "train"), (("plan", MODEL, "--lss", "mse"), "--loss"),
                            (("plan", MODEL, "--optimzer=adam"), "--optimizer"),
                            ((*plan, "--freeze", weight[:-1] + "~"), weight),
                            ((*plan, "--train-only", "*" + weight[-3:-1] + "~"), weight[-3:-1]),
                            ((*plan, "--mode", "block:aditive_couplin=store"), "additive_coupling")):
            _, _, err = common.call(*args)
            self.assertRegex(err, "did you mean .*" + re.escape(meant))
        for args in (("qqqqqqqq",), ("plan", "--qqqqqqqq"), (*plan, "--freeze", "qqqqqqqqqqqq")):
            status, _, err = common.call(*args)
            self.assertTrue(status and "did you mean" not in err, err)

    def test_words_of_other_trainers(self):
        """Each row of cli/options/other_words.inc is told with what it is here, and names an option that there is."""
        with open(os.path.join(common.ROOT, "cli", "options", "other_words.inc"), encoding="utf-8") as f:
            rows = re.findall(r'^WORD\("([^"]+)", (?:NULL|"([^"]+)"), (?:NULL|"([^"]*)")\)$', f.read(), re.M)
        self.assertGreater(len(rows), 120)
        known = {word for command in ("train", "eval") for word in common.call("help", command)[1].replace(",", " ").split()}
        for theirs, ours, more in rows:
            status, _, err = common.call("train", MODEL, "--" + theirs)
            self.assertEqual(status, 2)
            self.assertIn(f"unknown option --{theirs}; {'invonnx calls it ' + ours if ours else more}", err)
            self.assertIn(more, err)
            if ours.startswith("-"):
                self.assertIn(ours.split()[0], known, theirs)
        self.assertIn("calls it --lr, which does not apply to `inspect`", common.call("inspect", MODEL, "--learning-rate=1")[2])

    @unittest.skipUnless(pty, "no pseudo-terminals")
    def terminal(self, width, words):
        """What the program writes on a terminal so many columns wide."""
        mine, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        child = subprocess.Popen([common.PROGRAM, *words], stdin=its, stdout=its, stderr=its)
        os.close(its)
        text, end = b"", time.monotonic() + 100
        while time.monotonic() < end and select.select([mine], [], [], 100)[0]:
            try:
                more = os.read(mine, 65536)
            except OSError:  # the other side has closed it
                break
            text += more
        os.close(mine)
        self.assertEqual(child.wait(), 0, text)
        return text.decode()

    def test_timed_steps_show_how_far_they_are(self):
        """Once those of a mode take longer than that, whatever the machine; erased before what comes on the same terminal."""
        model = os.path.join(common.DATA, "revnet_c64.onnx")
        np.save(self.at("i.npy"), np.zeros((8, 1, 16, 16), np.float32))
        np.save(self.at("l.npy"), np.zeros(8, np.int64))
        repeat, seconds, text = 8, 0, ""
        while seconds < 3 and "timing steps" not in text:
            repeat *= 2
            text = self.terminal(80, ["compare", model, "--feed", self.at("i.npy"), "--target", self.at("l.npy"), "--loss",
                                      "cross_entropy", "--memory", "recompute", "--repeat", str(repeat)])
            rows = re.findall(r"(?m)^(?:store|recompute) .*", text)
            seconds = repeat * max(float(row.split()[-2]) for row in rows)
        self.assertRegex(text, r"\r\[=*> *\] timing steps, (store|recompute): \d+ %\x1b\[K")
        self.assertRegex(text, r"\r\x1b\[Kmemory ")

    def test_bar_fits(self):
        """Between two ends of lines there is what was written over itself; each of it in the columns there are."""
        for width in (80, 40):
            text = self.terminal(width, [*self.train, "--epochs", "200", "--batch", "1"])
            drawn = [part for line in text.split("\n") for part in re.split(r"\r", line) if "step" in part]
            drawn = [re.sub(r"\x1b\[K", "", part) for part in drawn if not part.startswith("24 rows")]
            bars = [part for part in drawn if re.match(r"(\[=*> *\] )?epoch \d+/200  step ", part)]
            self.assertGreater(len(bars), 1, text[-300:])
            self.assertLess(max(map(len, bars)), width)
            self.assertRegex(text, r"\r\x1b\[Kepoch 1/200  train loss")  # erased before a line


if __name__ == "__main__":
    unittest.main()
