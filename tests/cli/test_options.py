# SPDX-License-Identifier: Apache-2.0
"""Every option of every command: where it has no effect it is refused, before anything is read, said or written, and
where it has one it is not. Fails if an option is passed over without a word, and for a new option until the table here
says in which runs it has an effect."""
import os
import re
import unittest

import numpy as np
import onnx
import onnx.parser

import common

MODEL = os.path.join(common.model("nice_dynbatch_ts17"), "model.onnx")
ABSENT = "absent.onnx"  # options are looked at before the model is

# What every run of a command has.
BASE = {"train": "--data x.npy --target y.npy --loss mse -o out.onnx", "eval": "--data x.npy --target y.npy --loss mse",
        "compare": "--data x.npy --target y.npy --loss mse", "plan": "--loss mse", "grad": "--feed x.npy --target y.npy --loss mse",
        "run": "--feed x.npy", "explain": "", "check": "--feed x.npy", "rewrite": "", "inspect": "", "rules": "", "ops": "",
        "selftest": "", "checkpoint": ""}
CE = "--loss cross_entropy"
PICTURES, TABLE, TOKENS = "--data pics", "--data t.csv", "--data t.bin"
FOLD = "--data x.npy --target t.csv"  # what counts is any of the files
PIPES = ["--data p.fifo", "--data -", "--data x=p.fifo", "--data p.f*o", "--data x.npy --target p.fifo"]
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "adamw8", "lion", "rmsprop", "lamb", "adafactor", "muon")
SCHEDULES = ("constant", "linear", "cosine", "polynomial", "step", "one-cycle", "wsd")


def optimizers(*names):
    """With these it has an effect, with the others none."""
    return [f"--optimizer {n}" for n in names], [f"--optimizer {n}" for n in OPTIMIZERS if n not in names]


def schedules(*names):
    return [f"--schedule {n}" for n in names], ["", *(f"--schedule {n}" for n in SCHEDULES if n not in names)]


ADAMS = ("adam", "adamw", "adamw8", "lamb", "muon")
VALIDATES = ["--val-data x.npy --val-target y.npy", "--val-split 0.2"], [""]
STORES = ["", "--memory invert", "--memory recompute", "--memory store --mode W=invert"], ["--memory store"]
INVERTS = ["", "--memory invert", "--memory store --mode W=invert"], ["--memory store", "--memory recompute", "--memory store --mode W=store"]

# option, its value, commands, what beside BASE gives it an effect, what does not. Later words of a command win.
ROWS = [
    ("target", "y.npy", "train eval compare plan grad", ["", CE, "--loss bce", "--loss huber"], ["--loss nll", "--loss output"]),
    ("target", "y.npy", "explain check", ["--loss mse"], ["", "--loss nll"]),
    ("val-target", "y.npy", "train", ["--val-data x.npy"], ["", "--val-split 0.2"]),
    ("val-split", "0.2", "train", ["", "--data x=gone.fifo"], PIPES),
    ("shuffle", None, "train", ["", "--val-data p.fifo"], PIPES),
    ("epochs", "2", "train", ["", PICTURES], [*PIPES, "--val-data p.fifo", "--val-data x.npy --val-target -"]),
    ("epochs", "1", "train", PIPES, []),
    ("stacked", None, "compare", [""], ["FEED"]),
    ("batch", "4", "train eval", [""], ["--stacked"]),
    ("batch", "4", "compare", [""], ["FEED", "--stacked"]),
    ("drop-last", None, "train", [""], ["--stacked"]),
    ("rows-mix", None, "train eval", [""], ["--stacked"]),
    ("tokens", "uint16", "train eval", [TOKENS, "--data text.txt", TABLE], ["", PICTURES]),
    ("window", "4", "train eval", [TOKENS, "--val-data t.bin"], ["", PICTURES, TABLE]),
    ("windows", "sequential", "train", [TOKENS, TOKENS + " --no-shuffle", "--val-data x=t.bin"], ["", PICTURES]),
    ("windows", "random", "train", [TOKENS], ["", TOKENS + " --no-shuffle"]),
    ("target-column", "b", "train eval", [TABLE, FOLD, "--data x=t.csv"], ["", PICTURES, TOKENS]),
    ("columns", "a", "train eval", [TABLE], ["", PICTURES, TOKENS]),
    ("resize", "72", "train eval", [PICTURES, "--data x=pics", "--data gone"], ["", TABLE, TOKENS, "--data x*.npy"]),
    ("resize", "72", "train", ["--val-data pics"], ["--val-data x.npy"]),
    ("normalize", "imagenet", "train eval compare", [PICTURES], ["", TABLE, TOKENS]),
    ("normalize", "imagenet", "compare", [PICTURES], ["FEED"]),
    ("augment", "flip", "train", [PICTURES], ["", "--val-data pics", TABLE]),
    ("skip-bad", None, "train eval", [PICTURES, TABLE], ["", TOKENS]),
    ("class", "cat", "train eval", [PICTURES, TABLE], ["", TOKENS]),
    ("data-threads", "1", "compare", [""], ["FEED"]),
    ("loss-output", "y", "explain check", ["--loss nll"], [""]),
    ("probabilities", None, "train eval plan grad", [CE, "--loss bce"], ["", "--loss nll"]),
    ("metric", "mae", "train", *VALIDATES),
    ("class-axis", "1", "train eval plan grad", [CE], ["", "--loss bce"]),
    ("class-weights", "w.npy", "train eval plan grad", [CE], ["", "--loss bce"]),
    ("label-smoothing", "0.1", "train plan grad", [CE], ["", "--loss bce"]),
    ("huber-delta", "1", "train eval plan grad", ["--loss huber"], [""]),
    ("logdet", "l", "train eval plan grad", ["--loss nll"], [""]),
    ("logdet", "l", "rewrite", ["--inverse-out i.onnx"], [""]),
    ("trust-logdet", None, "train eval plan grad", ["--loss nll --logdet l", "--loss nll", "--loss nll --logdet rules"], [""]),
    ("momentum", "0.9", "train plan", *optimizers("sgd", "momentum", "muon")),
    ("momentum", "0.9", "train plan", [""], []),
    ("nesterov", None, "train plan", ["--momentum 0.9", "--optimizer momentum", "--optimizer sgd --momentum 0.5", "--optimizer adam --group *:optimizer=momentum"],
     ["", "--momentum 0", *optimizers("sgd", "momentum")[1]]),
    ("beta1", "0.9", "train plan", *optimizers(*ADAMS, "lion")),
    ("beta2", "0.9", "train plan", *optimizers(*ADAMS, "lion", "rmsprop", "adafactor")),
    ("epsilon", "1e-8", "train plan", *optimizers(*ADAMS, "rmsprop", "adafactor")),
    ("decay-all", None, "train plan", ["--optimizer adamw --weight-decay 0.1", "--weight-decay 0.1 --group *:optimizer=lion"],
     ["", "--weight-decay 0.1", "--optimizer adamw", "--optimizer adam --weight-decay 0.1"]),
    ("min-lr", "1e-5", "train", *schedules(*SCHEDULES[1:])),
    ("power", "2", "train", *schedules("polynomial")),
    ("step-every", "2", "train", *schedules("step")),
    ("step-factor", "0.5", "train", ["--schedule step --step-every 2"], schedules("step")[1]),
    ("decay-steps", "2", "train", *schedules("wsd")),
    ("lr-range", "1e-5:1", "train", ["LR-FIND"], [""]),
    ("precision", "tf32", "train eval plan grad run check compare", ["--device cuda:1", "--device sim"], ["", "--device cpu", "--device checked"]),
    ("precision", "full", "train eval plan grad run explain check compare", ["", "--device cpu"], []),
    ("rank-timeout", "9", "train", [], [""]),
    ("shard", "optimizer", "train", [], [""]),
    ("shard", "optimizer", "plan", ["--ranks 2"], ["", "--ranks 2 --device sim"]),
    ("shard", "none", "plan", ["--ranks 2", "--ranks 2 --device sim"], [""]),
    ("early-update", None, "plan", ["", "--ranks 1"], ["--ranks 2", "--ranks 4 --shard optimizer"]),
    ("early-update", None, "train", [""], []),
    ("weights", "bf16", "train plan", ["", "--device cpu", "--device checked"], ["--device cuda", "--device cuda:1", "--device sim"]),
    ("weights", "f32", "train plan", ["", "--device cuda"], []),
    ("cost", "time", "train plan grad compare", [""], ["--deterministic"]),
    ("cost", "flops", "train plan grad compare", ["", "--deterministic"], []),
    ("sync-bn", None, "train", [], [""]),
    ("sync-bn", None, "plan", ["--ranks 2"], [""]),
    ("ranks-per-host", "2", "plan", ["--ranks 2"], ["", "--ranks 1"]),
    ("network", "1:2", "plan", ["--ranks 2"], ["", "--ranks 1"]),
    ("val-epochs", "2", "train", *VALIDATES), ("val-every", "2", "train", *VALIDATES), ("best", "loss", "train", *VALIDATES),
    ("patience", "2", "train", *VALIDATES),
    ("every", "2", "train", ["--checkpoint ck"], [""]), ("keep-checkpoints", "2", "train", ["--checkpoint ck"], [""]),
    ("resume", None, "train", ["--checkpoint ck"], [""]),
    ("rank", "2", "train plan grad explain check compare", ["--lora *"], [""]),
    ("alpha", "2", "train plan grad explain check compare", ["--lora *"], [""]),
    ("lora-dropout", "0.1", "train plan grad explain check compare", ["--lora *"], [""]),
    ("adapter-out", "a.onnx_adapter", "train", ["--lora *"], [""]),
    *((name, value, "explain", ["--loss nll"], [""]) for name, value in
      (("train-only", "W"), ("freeze", "W"), ("hold-zeros", "W"), ("hold-rows", "W:0"), ("no-hold", "W"), ("through-quantization", None), ("memory", "invert"), ("keep", "W"),
       ("mode", "W=store"), ("effort", "2"), ("max-drift", "1e-3"), ("guard", "full"))),
    ("mode", "W=offload", "train plan grad check compare", ["--device cuda", "--device cuda:1", "--device sim"],
     ["", "--device cpu", "--device checked", "--mode W=store"]),
    ("mode", "W=offload", "explain", ["--loss mse --device cuda"], ["--device cuda", "--loss mse"]),
    ("mode", "W=invert", "train plan grad check compare", [""], []),
    ("keep", "W", "train plan grad", *STORES),
    ("max-drift", "1e-3", "train plan grad", *INVERTS), ("guard", "full", "train plan grad", *INVERTS),
    ("given", "x", "rewrite", ["--inverse-out i.onnx"], [""]),
    ("with-logdet", "l", "rewrite", ["--inverse-out i.onnx"], [""]),
    ("log-every", "2", "train", ["--log l.csv", "--tensorboard tb", "--html p.html"], [""]),
    ("adapter", "a", "adapter", ["merge"], ["extract", "show"]),
    ("model-out", "m", "adapter", ["extract"], ["merge", "show"]),
    ("out", "o.onnx", "adapter", ["merge", "extract"], ["show"]),
    ("layout", "inline", "adapter", ["merge", "extract --model-out m.onnx"], ["show", "extract"]),
]
# What has an effect in every run of a command that has it, states what is so by default as well, or is held by the
# library, which knows the model: --train-bn without batch normalization, --keep of no value.
ALWAYS = """feed data val-data dim loss optimizer lr weight-decay group clip-norm clip-value accumulate average
schedule warmup lr-find steps no-shuffle time-limit ranks checkpoint dry-run unfreeze-after head
lora train-bn untie tied budget plan device threads seed deterministic float64 no-dropout
keep-training-mode for-inference report inverse-out html curve log tensorboard dump profile repeat dump-passes json verbose verify
quiet plugin no-rules options help version ignore-index""".split()
# Those of the table, in commands where they always have an effect.
ALSO = {"stacked": "train eval", "batch": "explain rewrite plan", "data-threads": "train eval", "loss-output": "train eval plan grad compare",
        "metric": "eval", "tokens": "compare", "window": "compare", "target-column": "compare", "columns": "compare",
        "resize": "compare", "skip-bad": "compare", "class": "compare", "probabilities": "explain check compare",
        "class-axis": "explain check compare", "class-weights": "explain check compare", "label-smoothing": "explain check compare",
        "huber-delta": "explain check compare", "logdet": "explain check compare", "trust-logdet": "explain check compare",
        **{name: "check grad plan train compare" for name in ("train-only", "freeze", "hold-zeros", "hold-rows", "no-hold")},
        "through-quantization": "check grad plan train compare", "memory": "grad plan train compare", "keep": "check compare",
        "effort": "check compare train plan grad", "max-drift": "check compare", "guard": "compare",
        "out": "train rewrite", "layout": "train rewrite"}


def options_of(command):
    _, out, _ = common.call(command, "--help")
    return re.findall(r"^ +(?:-\w, )?--([a-z0-9-]+)", out, re.M)


class Options(common.InFolder):
    def setUp(self):
        super().setUp()
        for folder in ("pics/a", "pics/b"):
            os.makedirs(self.at(folder))
        for name, data in (("t.csv", b"a,b\n1,2\n"), ("t.bin", b"\0" * 64), ("text.txt", b"words of a text")):
            with open(self.at(name), "wb") as f:
                f.write(data)
        np.save(self.at("w.npy"), np.ones(8, np.float32))
        os.mkfifo(self.at("p.fifo"))  # nobody opens it
        self.before = self.listing()

    def listing(self):
        return sorted(os.path.join(at, name) for at, _, files in os.walk(self.folder.name) for name in files)

    def call(self, *args):
        here = os.getcwd()
        os.chdir(self.folder.name)
        try:
            return common.call(*args)
        finally:
            os.chdir(here)

    def run_with(self, command, name, value, more):
        words = more.split()
        option = [f"--{name}"] + ([] if value is None else [value])
        if command == "adapter":
            return self.call("adapter", words[0], ABSENT, *words[1:], *(["-o", "a"] if words[0] != "show" and name != "out" else []), *option)
        base = BASE[command].split()
        if more == "FEED":
            base, words = BASE["grad"].split(), []
        if more == "LR-FIND":
            base, words = base[:-2], ["--lr-find", "f.svg"]
        if "--data" in words:
            base = base[base.index("--loss"):]
        if re.search("--loss (nll|output)", more) and "--target" in base and name != "target":
            del base[base.index("--target"):base.index("--target") + 2]
        return self.call(command, ABSENT, *base, *words, *option)

    def test_every_option(self):
        for name, value, commands, useful, useless in ROWS:
            for command in commands.split():
                for more in useful:
                    with self.subTest(command=command, option=name, useful=more):
                        status, _, err = self.run_with(command, name, value, more)
                        self.assertNotIn("has no effect", err)
                        self.assertNotEqual(status, 0)
                for more in useless:
                    with self.subTest(command=command, option=name, useless=more):
                        status, out, err = self.run_with(command, name, value, more)
                        self.assertEqual((status, out), (2, ""), err)
                        shown = f"--{name}{'' if value is None else ' ' + value}"
                        self.assertIn(f"{shown}: has no effect here; it needs ", err)
        self.assertEqual(self.listing(), self.before)

    def test_none_is_missing(self):
        """A new option says here in which runs it has an effect."""
        known = {(name, command) for name, _, commands, _, _ in ROWS for command in commands.split()}
        known |= {(name, command) for name, commands in ALSO.items() for command in commands.split()}
        for command in [*BASE, "adapter"]:
            for name in options_of(command):
                with self.subTest(command=command, option=name):
                    self.assertTrue(name in ALWAYS or (name, command) in known,
                                    f"say in ROWS of this file in which runs of `{command}` --{name} has an effect")

    def test_files_of_options(self):
        with open(self.at("run.options"), "w", encoding="utf-8") as f:
            f.write(f"model {ABSENT}\nloss mse\nmomentum 0.9\n")
        status, _, err = self.call("train", "--options", "run.options", "--optimizer", "adam", "--data", "x.npy", "-o", "o")
        self.assertEqual(status, 2)
        self.assertIn("run.options:3: --momentum 0.9: has no effect here; it needs --optimizer sgd, momentum or muon", err)

    def test_values(self):
        """What is no value of an option, whatever the model and the data are."""
        base = [MODEL, *BASE["train"].split()]
        for option, values in (("augment", ("foo", "", "crop,", "flip flip", "crop,flip,crop")),
                               ("normalize", ("foo", "", "0.5", "0.5/0", "1,2/3", "1,2,3/4,5", "0.5/x", "1,2,3,4/1")),
                               ("device", ("tpu", "", "cuda:", "cuda:x", "cuda:-1", "cpu:1")),
                               ("warmup", ("foo", "-1", "101%")), ("time-limit", ("foo", "0")), ("average", ("foo", "ema:2")),
                               ("group", ("foo", "*:lr=x", "*:rate=1")), ("mode", ("foo", "*=fast")), ("head", ("0", "x", "=3")),
                               ("unfreeze-after", ("W", "-1 W")), ("class-axis", ("0", "x")), ("val-split", ("1", "-1", "nan", "x")),
                               *((name, ("1", "-0.1", "nan", "x", "")) for name in ("label-smoothing", "lora-dropout")),
                               *((name, ("0", "-1", "nan", "inf", "x", "")) for name in ("alpha", "huber-delta", "rank-timeout", "max-drift")),
                               ("tied", ("=W", "W=", "")), ("hold-rows", ("W", ":0", "W:", "W:a", "W:0,", "W:0-2", "")),
                               *((name, ("",)) for name in ("checkpoint", "log", "tensorboard", "out", "keep", "freeze", "seed", "lr"))):
            for value in values:
                with self.subTest(option=option, value=value):
                    data = ["--data", "pics", "--loss", "cross_entropy", "-o", "out.onnx"]
                    pictures = option in ("augment", "normalize", "class-axis")
                    status, out, err = self.call("train", *([MODEL, *data] if pictures else base), f"--{option}", value)
                    if option == "class-axis" and value == "0":
                        continue  # data come first
                    self.assertEqual((status, out), (2, ""), err)
                    self.assertNotIn("has no effect", err)
        self.assertEqual(self.listing(), self.before)

    def test_extents_that_files_decide(self):
        """--batch and --dim are for inputs that no file feeds."""
        for command, more in (("plan", ["--loss", "mse"]), ("explain", []), ("rewrite", ["-o", "o.onnx"])):
            for option in (["--batch", "4"], ["--dim", "N=4"]):
                status, _, err = self.call(command, MODEL, *more, "--feed", "x.npy", *option)
                self.assertEqual(status, 2, err)
                self.assertIn("no effect", err)

    def test_batch_gives_the_first_dimension(self):
        """--dim of the same dimension would be passed over; of another one it counts."""
        graph = """<ir_version: 8, opset_import: ["" : 17]> g (float[N, T] x) => (float[N, T] y)
            <float[1] W = {2}> {y = Mul(x, W)}"""
        onnx.save(onnx.parser.parse_model(graph), self.at("free.onnx"))
        for command, more in (("plan", ["--loss", "mse"]), ("explain", []), ("rewrite", ["-o", "o.onnx"])):
            for dims, status in ((["N=8", "T=3"], 2), (["T=3"], 0)):
                options = [word for dim in dims for word in ("--dim", dim)]
                got, _, err = self.call(command, "free.onnx", *more, "--batch", "4", *options)
                self.assertEqual(got, status, err)
                self.assertEqual("--dim N=8: has no effect here; --batch 4 gives that dimension" in err, status == 2, err)

    def test_what_never_has_an_effect(self):
        """A command does not have an option that does nothing in any of its runs."""
        for command, *option in (("eval", "--label-smoothing", "0.1"), ("eval", "--no-dropout"), ("check", "--memory", "invert"),
                                 ("check", "--guard", "full")):
            status, _, err = self.call(command, ABSENT, *BASE[command].split(), *option)
            self.assertEqual(status, 2)
            self.assertIn(f"{option[0]} does not apply to `{command}`", err)
            self.assertNotIn(option[0][2:], options_of(command))

    def test_remedies_that_another_command_has(self):
        """Of these the message says which command that is."""
        graph = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
            g (float[N, 8] x) => (float[N, 8] y)
            <float[8] s = {1,1,1,1,1,1,1,1}, float[8] b = {0,0,0,0,0,0,0,0}, float[8] m = {0,0,0,0,0,0,0,0},
             float[8] v = {1,1,1,1,1,1,1,1}> {y, rm, rv = BatchNormalization <training_mode = 1> (x, s, b, m, v)}""")
        onnx.save(graph, self.at("bn.onnx"))
        np.save(self.at("row.npy"), np.ones((1, 8), np.float32))
        for command, data, name in (("train", "--data", "--drop-last"), ("compare", "--data", "--drop-last of `train`"),
                                    ("grad", "--feed", "--drop-last of `train`")):
            status, _, err = self.call(command, "bn.onnx", data, "row.npy", "--target", "row.npy", "--loss", "mse",
                                       *(["-o", "o.onnx"] if command == "train" else []))
            self.assertEqual(status, 1, err)
            self.assertIn(f"({name})", err)

    def test_nothing_is_said_before(self):
        """A new head is told of when the options are right."""
        graph = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
            g (float[N, 8] x) => (float[N, 4] y) <float[8, 4] W = {%s}> {y = MatMul(x, W)}""" % ", ".join(["1"] * 32))
        onnx.save(graph, self.at("m.onnx"))
        np.save(self.at("labels.npy"), np.arange(20) % 3)
        head = ["--head", "3", "--loss", "cross_entropy", "--data", "x.npy", "--target", "labels.npy", "-o", "o.onnx"]
        for more in (["--warmup", "foo"], ["--mode", "foo"], ["--class-axis", "0"], ["--normalize", "imagenet"],
                     ["--unfreeze-after", "foo"], ["--group", "foo"], ["--budget", "10Q"], ["--clip-norm", "1", "--clip-value", "1"]):
            status, _, err = self.call("train", "m.onnx", *head, *more)
            self.assertEqual(status, 2, err)
            self.assertNotIn("new head", err)
        status, _, err = self.call("train", "m.onnx", *head)
        self.assertEqual((status, err.count("new head")), (0, 1), err)
        for command, more in (("plan", ["--batch", "4"]), ("plan", ["--batch", "4", "--ranks", "2"]), ("compare", head[4:8])):
            status, _, err = self.call(command, "m.onnx", *head[:4], *more)
            self.assertEqual((status, err.count("new head")), (0, 1), err)


class Momentum(common.InFolder):
    def trained(self, *options):
        common.report("train", MODEL, "--data", self.at("x.npy"), "--target", self.at("y.npy"), "--loss", "mse", "--batch", "5",
                      "--lr", "0.05", "--epochs", "3", "--deterministic", "-o", self.at("o.onnx"), *options)
        with open(self.at("o.onnx"), "rb") as f:
            return f.read()

    def test_sgd(self):
        """sgd with momentum is momentum, with its state; groups of the same optimizer have it, too."""
        plain = self.trained()
        momentum = self.trained("--optimizer", "momentum", "--momentum", "0.8")
        self.assertNotEqual(plain, momentum)
        self.assertEqual(self.trained("--momentum", "0"), plain)
        for options in ([], ["--optimizer", "sgd"], ["--group", "*:optimizer=sgd"]):
            self.assertEqual(self.trained(*options, "--momentum", "0.8"), momentum)
        self.assertEqual(self.trained("--momentum", "0.8", "--nesterov"),
                         self.trained("--optimizer", "momentum", "--momentum", "0.8", "--nesterov"))
        self.assertEqual(self.trained("--optimizer", "adam", "--group", "*:optimizer=sgd"), plain)

    def test_bytes(self):
        """The plan counts the state, and a budget that is too small names what would do without it."""
        peak = {m: common.report("plan", MODEL, "--loss", "mse", "--memory", "store", *m.split())["planned_peak_bytes"]
                for m in ("", "--momentum 0.9", "--optimizer momentum")}
        self.assertEqual(peak["--momentum 0.9"], peak["--optimizer momentum"])
        self.assertGreater(peak["--momentum 0.9"], peak[""])
        for options, remedy in ((["--momentum", "0.9"], "--momentum 0 ("), (["--optimizer", "momentum"], "--optimizer sgd without momentum (")):
            status, _, err = common.call("plan", MODEL, "--loss", "mse", "--batch", "512", "--budget", "1KiB", *options)
            self.assertEqual(status, 1)
            self.assertIn(remedy, err)


if __name__ == "__main__":
    unittest.main()
