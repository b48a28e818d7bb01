# SPDX-License-Identifier: Apache-2.0
"""Files of options: how lines are read, who wins, what errors name, and that the copy which a run keeps beside its
checkpoints repeats it. Fails if a value is read otherwise than on the command line, or if a copy loses one."""
import os
import shutil
import subprocess
import unittest

import common

MODEL = os.path.join(common.model("nice_dynbatch_ts17"), "model.onnx")


class OptionsFile(common.InFolder):
    def run_it(self, *args, status=0, command="train"):
        r = subprocess.run([common.PROGRAM, command, *args], capture_output=True, text=True, check=False,
                           cwd=self.folder.name)
        self.assertEqual(r.returncode, status, r.stdout + r.stderr)
        return r.stdout + r.stderr

    def write(self, name, *lines):
        with open(self.at(name), "w", encoding="utf-8") as f:
            f.write("\n".join(lines))
        return name

    def read(self, name):
        with open(self.at(name), "rb") as f:
            return f.read()

    def test_forms(self):
        """Every way to write a line gives what the command line gives; paths are relative to where the program runs."""
        os.mkdir(self.at("a folder"))
        shutil.copy(self.at("x.npy"), self.at("a folder/the #1 x.npy"))
        file = self.write("a folder/run.options", "# a comment", "", f"model = {MODEL}",
                          'data "a folder/the #1 x.npy"  # quoted: a blank and # are in it', "  --target = y.npy\r",
                          "loss=mse", "batch\t3   # of 20", "--lr 0.02", "no-shuffle", "-o 'out of it.onnx'",
                          "checkpoint ck", "keep = 2", "every 2", r'group "*weight*:lr=1e-3"')
        self.run_it("--options", file)
        self.run_it(MODEL, "--data", "a folder/the #1 x.npy", "--target", "y.npy", "--loss", "mse", "--batch", "3",
                    "--lr", "0.02", "--no-shuffle", "-o", "b.onnx", "--group", "*weight*:lr=1e-3")
        self.assertEqual(self.read("out of it.onnx"), self.read("b.onnx"))
        self.assertEqual(len([n for n in os.listdir(self.at("ck")) if n.startswith("step-")]), 2)  # keep

    def test_who_wins(self):
        """Single values: the command line, then the later file. Lists go on."""
        self.write("a", f"model {MODEL}", "data x.npy", "target y.npy", "loss huber", "batch 4", "log 1.jsonl", "seed 1")
        self.write("b", "model nowhere.onnx", "loss mse", "seed 2", "steps 3")
        self.run_it("--options", "b", "--options", "a", "--loss", "mse", "--seed", "3", "--log", "2.jsonl", "-o", "o.onnx",
                    "--checkpoint", "ck")
        kept = self.read("ck/options").decode().splitlines()
        self.assertEqual(kept[1:], [f"model {MODEL}", "steps 3", "data x.npy", "target y.npy", "batch 4", "log 1.jsonl",
                                    "loss mse", "seed 3", "log 2.jsonl", "out o.onnx", "checkpoint ck"])
        self.assertEqual(self.read("1.jsonl").count(b"\n"), 3)
        self.assertEqual(self.read("2.jsonl").count(b"\n"), 3)
        self.assertIn("nowhere.onnx", self.run_it("nowhere.onnx", "--options", "a", "-o", "c.onnx", status=1))

    def test_errors(self):
        for line, words in (("lrr 1", "unknown option lrr; did you mean lr?"), ("--lrr=1", "did you mean --lr?"),
                            ("lr x", "--lr x: wants a number"), ("lr", "lr wants a value"), ("lr =", "no value follows '='"),
                            ("shuffle yes", "shuffle takes no value"), ("feed x.npy", "does not apply to `train`"),
                            ("options b", "names no other"), ('out "o.onnx', "the closing quote is missing"),
                            ('out "o" x', "text follows the closing quote"), ("= 3", "wants NAME VALUE"), ("-- 1", "unknown option --"), ("-", "unknown option -"),
                            ("optimizer fast", "one of sgd|"), ("precision half", "one of full|tf32|bf16")):
            with self.subTest(line=line):
                said = self.run_it("--options", self.write("run.options", "# head", "epochs 1", line, "lr 1"), status=2)
                self.assertIn("invonnx: run.options:3: ", said)
                self.assertIn(words, said)
        self.assertIn("absent: cannot be read", self.run_it("--options", "absent", status=2))
        self.assertIn("model", self.run_it("--options", self.write("m", "model x"), status=2, command="rules"))
        self.assertIn("which --options reads", self.run_it(
            MODEL, "--options", self.write("m", "loss mse"), "--data", "x.npy", "--target", "y.npy", "-o", "m", status=1))

    def test_every_command(self):
        self.write("plan.options", f"model {MODEL}", "loss mse", "batch 4")
        self.assertIn("peak", self.run_it("--options", "plan.options", command="plan"))

    def test_copy_goes_on(self):
        """`train --options DIR/options --resume` goes on with equal bits, and the copy has what counts now."""
        odd = 'odd " name\\ #.npy'
        shutil.copy(self.at("x.npy"), self.at(odd))
        more = ["--data", odd, "--target", "y.npy", "--loss", "mse", "--batch", "3", "--optimizer", "adamw", "--lr", "3e-3",
                "--weight-decay", "0.1", "--schedule", "cosine", "--steps", "9", "--average", "ema:0.9"]
        self.run_it(MODEL, *more, "-o", "a.onnx")
        keep = ["--checkpoint", "ck", "--every", "2", "--keep", "3", "-o", "b.onnx"]
        self.run_it(MODEL, *more, *keep, "--dry-run")
        self.assertFalse(os.path.exists(self.at("ck")))
        self.run_it(MODEL, *more, *keep)
        for step in (6, 8, 9):
            if step > 6:
                os.unlink(self.at(f"ck/step-{step:09d}.safetensors"))
        os.unlink(self.at("b.onnx"))
        copy = self.read("ck/options")
        said = self.run_it("--options", "ck/options", "--resume", "--html", "page.html")
        self.assertIn("step-000000006", said)
        self.assertEqual(self.read("a.onnx"), self.read("b.onnx"))
        self.assertEqual(self.read("ck/options"), copy + b"resume\nhtml page.html\n")
        self.assertIn(b"keep-checkpoints 3", copy)
        self.assertIn(b"; lr 3e-3; ", self.read("page.html"))  # the page has them, too

    def test_file_of_somebody_else(self):
        os.mkdir(self.at("ck"))
        file = self.write("ck/options", "# mine", f"model {MODEL}", "data x.npy", "target y.npy", "loss mse", "out o.onnx",
                          "checkpoint ck")
        before = self.read(file)
        self.assertIn("not written by a run", self.run_it("--options", file, status=1))
        self.assertEqual(self.read(file), before)


if __name__ == "__main__":
    unittest.main()
