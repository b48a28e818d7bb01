# SPDX-License-Identifier: Apache-2.0
"""The files that a run is logged to: JSON lines, CSV, and event files as TensorBoard itself reads them; what is on disk
when the run is killed; a disk that is full. Fails if a number is not the one that --json reports, if a step is missing,
or if training ends because of its log."""
import csv
import glob
import json
import os
import shutil
import signal
import subprocess
import time
import unittest
import xml.etree.ElementTree as ElementTree

import numpy as np

import common

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    EventAccumulator = None

MODEL = os.path.join(common.model("nice_dynbatch_ts17"), "model.onnx")


class Log(common.InFolder):
    def setUp(self):
        super().setUp()
        data = [self.at("x.npy"), "--target", self.at("y.npy"), "--val-data", self.at("x.npy"), "--val-target",
                self.at("y.npy")]
        self.train = ["train", MODEL, "--data", *data, "--loss", "mse", "--batch", "8", "-o", self.at("out.onnx")]

    def lines(self, name):
        with open(self.at(name), encoding="utf-8") as f:
            return [json.loads(line) for line in f]

    def test_all_files_say_the_same(self):
        r = common.report(*self.train, "--epochs", "2", "--lr", "0.01", "--log", self.at("log.jsonl"), "--log",
                          self.at("log.csv"), "--tensorboard", self.at("a/b"))
        lines = self.lines("log.jsonl")
        steps = [line for line in lines if line["split"] == "train"]
        held = [line for line in lines if line["split"] == "val"]
        self.assertEqual([s["loss"] for s in steps], r["steps"])  # every digit
        self.assertEqual([s["step"] for s in steps], [1, 2, 3, 4, 5, 6])
        self.assertEqual([s["samples"] for s in steps], [8, 16, 20, 28, 36, 40])
        self.assertEqual([(v["step"], v["epoch"], v["loss"]) for v in held],
                         [(3, 1, r["epochs"][0]["val_loss"]), (6, 2, r["epochs"][1]["val_loss"])])
        self.assertTrue(all(s["lr"] == 0.01 and s["drift"] >= 0 and s["fallbacks"] == 0 for s in steps))
        self.assertTrue(all(s["memory_bytes"] > 1e5 for s in steps) or "memory_bytes" not in steps[0])
        self.assertEqual([s["seconds"] for s in lines], sorted(s["seconds"] for s in lines))
        with open(self.at("log.csv"), encoding="utf-8", newline="") as f:
            rows = list(csv.DictReader(f))
        self.assertEqual([(row["split"], int(row["step"]), float(row["loss"])) for row in rows],
                         [(line["split"], line["step"], line["loss"]) for line in lines])
        self.assertEqual({row["lr"] for row in rows}, {"0.01", ""})

    @unittest.skipUnless(EventAccumulator, "without tensorboard")
    def test_tensorboard_reads_the_events(self):
        r = common.report(*self.train, "--epochs", "2", "--tensorboard", self.at("tb"))
        events = EventAccumulator(self.at("tb")).Reload()
        self.assertLessEqual({"train/loss", "train/lr", "train/drift", "val/loss"}, set(events.Tags()["scalars"]))
        loss = events.Scalars("train/loss")
        self.assertEqual([e.step for e in loss], [1, 2, 3, 4, 5, 6])
        np.testing.assert_allclose([e.value for e in loss], r["steps"], rtol=1e-6)
        self.assertLess(abs(loss[0].wall_time - time.time()), 600)
        self.assertEqual([e.step for e in events.Scalars("val/loss")], [3, 6])
        # another run in the folder takes the place of the first, and says so
        status, _, err = common.call(*self.train, "--lr", "0.02", "--tensorboard", self.at("tb"))
        self.assertEqual(status, 0)
        self.assertIn("another run", err)
        self.assertEqual(len(glob.glob(self.at("tb/*"))), 2)
        rates = EventAccumulator(self.at("tb")).Reload().Scalars("train/lr")
        self.assertEqual([(e.step, round(e.value, 6)) for e in rates], [(1, 0.02), (2, 0.02), (3, 0.02)])

    def test_gradient_norm(self):
        np.save(self.at("x8.npy"), np.load(self.at("x.npy"))[:8])
        np.save(self.at("y8.npy"), np.load(self.at("y.npy"))[:8])
        common.report("grad", MODEL, "--feed", self.at("x8.npy"), "--target", self.at("y8.npy"), "--loss", "mse", "--dump",
                      self.at("g"))
        norm = np.sqrt(sum((np.load(f).astype(float) ** 2).sum() for f in glob.glob(self.at("g/grad_*"))))
        run = [*self.train, "--no-shuffle", "--steps", "1", "--log", self.at("l.jsonl")]
        common.report(*run)
        self.assertAlmostEqual(self.lines("l.jsonl")[0]["grad_norm"] / norm, 1, places=5)
        common.report(*run, "--early-update", "--memory", "store")
        self.assertNotIn("grad_norm", self.lines("l.jsonl")[0])

    def page(self, name):
        """(text, charts by title, numbers)"""
        with open(self.at(name), encoding="utf-8") as f:
            text = f.read()
        self.assertTrue(text.rstrip().endswith("</html>"))
        charts = {}
        for part in text.split("<svg ")[1:]:
            chart = ElementTree.fromstring("<svg " + part.split("</svg>")[0] + "</svg>")
            charts["".join(next(chart.iter("{http://www.w3.org/2000/svg}text")).itertext()).split(" (")[0]] = chart
        numbers = text.split('id="curves">')[1].split("</script>")[0]
        return text, charts, {(c["split"], c["name"]): c for c in json.loads(numbers)}

    def test_page(self):
        r = common.report(*self.train, "--epochs", "2", "--html", self.at("run.html"), "--metric", "rmse")
        text, charts, numbers = self.page("run.html")
        for word in ("nice_dynbatch", "trains ", "20 rows, 8 a step", "held out", "planned for a step", "sgd, loss mse",
                     "step 6 of 6", "; ended", "prefers-color-scheme"):
            self.assertIn(word, text)
        self.assertNotIn("http-equiv", text)  # of pages that will change
        self.assertLessEqual({"loss", "learning rate", "gradient norm", "rmse"}, set(charts))
        self.assertNotIn("fallbacks", charts)  # there were none
        spans = numbers["train", "loss"]["spans"]
        self.assertEqual([s[0] for s in spans], [1, 2, 3, 4, 5, 6])
        np.testing.assert_allclose([s[2] for s in spans], r["steps"], rtol=1e-7)
        self.assertEqual([s[0] for s in numbers["val", "loss"]["spans"]], [3, 6])
        titles = " ".join(charts["loss"].itertext())
        self.assertIn("training: last", titles)
        self.assertIn("step 6: training", titles.replace("\n", " "))
        status, _, err = common.call(*self.train, "--html", self.at("run.svg"))
        self.assertEqual(status, 2)
        self.assertIn(".html", err)

    def test_page_shows_confusion(self):
        np.save(self.at("y.npy"), np.arange(20) % 8)
        args = [("cross_entropy" if a == "mse" else a) for a in self.train]
        common.report(*args, "--html", self.at("run.html"), "--metric", "confusion")
        text, charts, _ = self.page("run.html")
        self.assertIn("accuracy", charts)
        matrix = text.split("Confusion matrix")[1].split("</table>")[0]
        self.assertEqual(matrix.count("<td "), 64)

    def test_every_nth(self):
        common.report(*self.train, "--epochs", "3", "--log-every", "4", "--log", self.at("l"))
        self.assertEqual([(line["split"], line["step"]) for line in self.lines("l")],
                         [("val", 3), ("train", 4), ("val", 6), ("train", 8), ("val", 9)])

    def test_killed(self):
        """Written as the run goes: what is more than a second old is there."""
        command = [common.PROGRAM, *self.train, "--epochs", "1000000", "-q", "--log", self.at("log.jsonl"), "--html",
                   self.at("run.html")]
        run = subprocess.Popen(command)
        try:
            until = time.time() + 60
            written = [self.at("log.jsonl"), self.at("run.html")]
            while time.time() < until and not all(os.path.exists(f) and os.path.getsize(f) for f in written):
                time.sleep(0.05)
        finally:
            run.send_signal(signal.SIGKILL)
            run.wait()
        steps = [line["step"] for line in self.lines("log.jsonl") if line["split"] == "train"]
        self.assertGreater(len(steps), 0)
        self.assertEqual(steps, list(range(1, len(steps) + 1)))
        text, charts, _ = self.page("run.html")
        self.assertIn("http-equiv", text)
        self.assertIn("loss", charts)

    @unittest.skipUnless(os.path.exists("/dev/full"), "wants /dev/full")
    def test_full_disk_does_not_end_the_run(self):
        limited = ["bash", "-c", 'ulimit -f 32; exec "$@"', "-", common.PROGRAM]
        done = subprocess.run([*limited, *self.train, "--epochs", "200", "--log", self.at("log.jsonl")],
                              capture_output=True)
        err = done.stderr.decode()
        self.assertIn("log.jsonl: cannot be written: File too large; training continues without it", err)
        self.assertEqual(err.count("training continues"), 1)
        self.assertEqual(done.returncode, 0)
        self.assertTrue(all("loss" in line for line in self.lines("log.jsonl")))
        self.assertTrue(os.path.exists(self.at("out.onnx")))

    def test_folder_goes_away(self):
        os.mkdir(self.at("d"))
        run = subprocess.Popen([common.PROGRAM, *self.train, "--epochs", "1000000", "--log", self.at("d/log.jsonl"), "--html",
                                self.at("d/run.html"), "--tensorboard", self.at("d/tb")], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE)
        try:
            until = time.time() + 60
            while time.time() < until and not os.path.exists(self.at("d/run.html")):
                time.sleep(0.05)
            os.rename(self.at("d"), self.at("e"))  # at once, while files are made
            shutil.rmtree(self.at("e"))
            time.sleep(2.5)
            self.assertIsNone(run.poll())
        finally:
            run.send_signal(signal.SIGINT)
            err = run.communicate()[1].decode()
        self.assertEqual(run.returncode, 130, err)
        for name in "log.jsonl", "run.html", "tb":
            self.assertEqual(err.count(name + ": cannot be written: No such file or directory; training continues"), 1, err)
        self.assertTrue(os.path.exists(self.at("out.onnx")))

    def test_two_runs_in_one_folder(self):
        log = ["--tensorboard", self.at("tb")]
        run = subprocess.Popen([common.PROGRAM, *self.train, "--epochs", "1000000", "-q", *log])
        try:
            until = time.time() + 60
            while time.time() < until and not glob.glob(self.at("tb/*")):
                time.sleep(0.05)
            status, _, err = common.call(*self.train, "-o", self.at("other.onnx"), *log)
        finally:
            run.kill()
            run.wait()
        self.assertEqual(status, 1)
        self.assertIn("another run", err)

    def test_refused(self):
        for options, word in ((["--log", self.at("x.npy")], "which --data reads"),
                              (["--log", self.at("out.onnx")], "which -o writes"),
                              (["--log", self.at("l"), "--log", self.at("l")], "which --log writes"),
                              (["--log", self.at("no/such/l")], "folder"), (["--tensorboard", MODEL], "directory"),
                              (["--log-every", 2], "--log, --tensorboard or --html"),
                              (["--log", self.at("l"), "--log-every", 0], "at least 1")):
            status, _, err = common.call(*self.train, *options)
            self.assertIn(status, (1, 2), options)
            self.assertIn(word, err)
        self.assertFalse(os.path.exists(self.at("out.onnx")))


if __name__ == "__main__":
    unittest.main()
