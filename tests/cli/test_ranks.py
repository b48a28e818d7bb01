# SPDX-License-Identifier: Apache-2.0
"""Training by several processes: mpirun starts 1 to 4 on this machine, more than it has cores. Fails if their model has
other bits than that of one process with as many micro-batches, if random numbers or validation hang on their number, if
a rank that is killed, hangs or meets NaN leaves others alive or says something twice, or if a checkpoint of some ranks
is not gone on from by others."""
import glob
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import textwrap
import time
import unittest

import numpy as np
import yaml
from onnx import load, numpy_helper, parser, save

import common

# Shared memory alone: containers may have no network, and forbid to read other processes' memory.
MPIRUN = ["mpirun", "--quiet", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,vader",
          "--mca", "btl_vader_single_copy_mechanism", "none"]
KILLS = 50 if os.environ.get("INVONNX_FULL") else 1  # of each --shard
ROWS = 23

# One of what ranks have to share: batch statistics, dropout, weights.
NETWORK = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,8] x) => (float[N,4] y) <float[8,6] w, float[6] s, float[6] b, float[6] m, float[6] v, float[6,4] u,
   float r = {0.5}, bool t = {1}> {
  h = MatMul(x, w)
  n, m2, v2 = BatchNormalization<training_mode = 1>(h, s, b, m, v)
  a = Tanh(n)
  d = Dropout(a, r, t)
  y = MatMul(d, u)
}"""


# Of Slurm's four nodes with two tasks each: what it puts into the environment, and no more of mpirun's.
SRUN = """while [[ $1 == --* ]]; do shift; done
exec mpirun -n 8 env -u OMPI_COMM_WORLD_RANK -u OMPI_COMM_WORLD_SIZE -u OMPI_COMM_WORLD_LOCAL_RANK SLURM_NTASKS=8 SLURM_LOCALID=0 "$@\""""


def missing():
    """Why nothing here can run; None: it can."""
    if not shutil.which("mpirun"):
        return "there is no mpirun (Debian: openmpi-bin)"
    done = subprocess.run([*MPIRUN, "-n", "2", common.PROGRAM, "train", os.devnull], capture_output=True, text=True)
    return "this build has no MPI" if "has no MPI" in done.stderr else None


WHY_NOT = missing()


class Planned(common.InFolder):
    """Ranks that are not there, also without MPI."""

    def test_plan(self):
        """What a rank exchanges are its gradients, whatever the number of ranks, and the plan counts their bytes."""
        model = os.path.join(common.model("nice_dynbatch_ts17"), "model.onnx")
        words = ["plan", model, "--loss", "mse", "--batch", 4, "--memory", "store"]
        alone = common.report(*words)
        self.assertIsNone(alone["ranks"])
        gradients = 4 * alone["trained_elements"]
        for ranks in (2, 64):
            r = common.report(*words, "--ranks", ranks, "--network", "1e-5:1e9", "--shard", "none")
            self.assertEqual(r["ranks"]["size"], ranks)
            self.assertGreaterEqual(r["ranks"]["gradient_bytes"], gradients)
            self.assertLess(r["ranks"]["gradient_bytes"], gradients + 64 * (ranks + 100))
            want = 2 * (ranks - 1) * (1e-5 * r["ranks"]["buckets"] + r["ranks"]["gradient_bytes"] / ranks / 1e9)
            self.assertAlmostEqual(r["ranks"]["predicted_seconds"], want, places=12)
            self.assertGreater(r["planned_peak_bytes"], alone["planned_peak_bytes"])
        # what the rank's own processor moves is not hidden: half of it costs half of it at least
        times = []
        for share in ("", ":0", ":0.5", ":1"):
            r = common.report(*words, "--ranks", 4, "--network", "1e-6:1e6" + share, "--shard", "none", "--cost", "time")["ranks"]
            self.assertEqual(r["busy_share"], float(share[1:] or 0))
            self.assertGreaterEqual(r["exposed_seconds"], r["busy_share"] * r["predicted_seconds"])
            times.append(r["step_seconds"])
        self.assertEqual(times[0], times[1])
        self.assertEqual(sorted(times), times)
        # a network that costs much beside its bytes has fewer messages
        fast, slow = (common.report(*words, "--ranks", 2, "--network", n, "--shard", "none")["ranks"]["buckets"] for n in ("0:1e9", "1:1e9"))
        self.assertGreaterEqual(fast, slow)
        self.assertEqual(slow, 1)

    def test_shard(self):
        """What ranks share: states and gradients by their number, messages as counted, the best of them recommended."""
        lines = "".join(f"h{i + 1} = MatMul(h{i}, w{i})\n" for i in range(8))
        model = parser.parse_model('<ir_version: 8, opset_import: ["" : 17]>\ng (float[N,128] h0) => (float[N,128] h8) <' +
                                   ", ".join(f"float[128,128] w{i}" for i in range(8)) + "> {\n" + lines + "}")
        zeros = np.zeros((128, 128), np.float32)
        model.graph.initializer.extend(numpy_helper.from_array(zeros, f"w{i}") for i in range(8))
        save(model, self.at("deep.onnx"))
        words = ["plan", self.at("deep.onnx"), "--loss", "mse", "--batch", 4, "--optimizer", "adam", "--ranks", 8]
        network = ["--network", "1e-7:1e9"]  # with it a matrix is a bucket
        r = common.report(*words, *network)
        none, optimizer, gradients = choices = r["ranks"]["choices"]
        self.assertEqual([c["shard"] for c in choices], ["none", "optimizer", "gradients"])
        for c in (optimizer, gradients):
            self.assertEqual(c["optimizer_bytes"], none["optimizer_bytes"] / 8)
            self.assertEqual(c["planned_peak_bytes"], common.report(*words, *network, "--shard", c["shard"])["planned_peak_bytes"])
        self.assertLess(gradients["planned_peak_bytes"], optimizer["planned_peak_bytes"])
        self.assertLess(optimizer["planned_peak_bytes"], none["planned_peak_bytes"])
        # 2 (n - 1) / n of the bytes to reduce, half of it for each half
        self.assertAlmostEqual(optimizer["sent_bytes"] / none["sent_bytes"], 1.5, delta=0.1)
        self.assertAlmostEqual(gradients["sent_bytes"] / none["sent_bytes"], 1, delta=0.1)
        quick = 1.05 * min(c["predicted_seconds"] for c in choices)  # rates of nodes are not known here
        best = min((c for c in choices if c["predicted_seconds"] <= quick), key=lambda c: c["planned_peak_bytes"])
        self.assertEqual(r["ranks"]["shard"], best["shard"])
        lamb = common.report(*words[:-4], "--optimizer", "lamb", "--ranks", 8)["ranks"]
        self.assertEqual(lamb["shard"], "none")
        self.assertIn("needs the whole tensor", lamb["choices"][1]["refused"])

    def test_accumulated(self):
        """A step is its batches and the update, so that what batches take counts when one is recommended, and of two
        that take as many bytes the quicker one is."""
        words = ["plan", os.path.join(common.EXAMPLES, "revnet_digits.onnx"), "--loss", "cross_entropy", "--batch", 8,
                 "--memory", "store", "--optimizer", "adamw", "--ranks", 2, "--weights", "bf16", "--cost", "time", "--network", "1e-6:1e9"]
        for batches in (2, 50):
            ranks = common.report(*words, "--accumulate", batches)["ranks"]
            parts = ranks["accumulated"]
            self.assertGreater(parts["batch_seconds"], 0)
            self.assertGreater(parts["update_seconds"], 0)
            self.assertAlmostEqual(ranks["step_seconds"], batches * parts["batch_seconds"] + parts["update_seconds"], places=9)
            none, *others = ranks["choices"]
            quick = [c for c in ranks["choices"] if c["step_seconds"] <= 1.05 * min(c["step_seconds"] for c in ranks["choices"])]
            best = min(quick, key=lambda c: (c["planned_peak_bytes"], c["step_seconds"]))
            self.assertEqual(ranks["shard"], best["shard"])
            self.assertLess(max(c["planned_peak_bytes"] for c in others), none["planned_peak_bytes"])
        self.assertNotEqual(ranks["shard"], "none")  # of fifty batches the exchange is nothing
        self.assertIsNone(common.report(*words)["ranks"]["accumulated"])

    def test_ranks_per_host(self):
        """More threads than a machine has processors wait for each other."""
        model = os.path.join(common.model("nice_dynbatch_ts17"), "model.onnx")
        words = ["plan", model, "--loss", "mse", "--batch", 4, "--memory", "store", "--cost", "time", "--threads", 1, "--ranks", 64,
                 "--shard", "none"]
        environment = {**os.environ, "XDG_CACHE_HOME": self.at("cache")}  # in which nothing was seen
        alone, crowded = (common.report(*words, *more, env=environment) for more in ((), ("--ranks-per-host", 64)))
        self.assertEqual([r["ranks"]["on_host"] for r in (alone, crowded)], [1, 64])
        waits = max(64 / os.sysconf("SC_NPROCESSORS_ONLN"), 1)
        self.assertAlmostEqual(crowded["predicted_seconds"] / alone["predicted_seconds"], waits, places=6)
        self.assertEqual(crowded["planned_peak_bytes"], alone["planned_peak_bytes"])

    def test_refused(self):
        model = os.path.join(common.model("nice_dynbatch_ts17"), "model.onnx")
        for more, why in ((["--ranks-per-host", 2], "it needs --ranks N"), (["--ranks", 2, "--ranks-per-host", 0], "must be at least 1"),
                          (["--network", "1:2"], "it needs --ranks N"), (["--ranks", 2, "--network", "1:0"], "a rank sends 0 bytes a second"),
                          (["--ranks", 2, "--network", "inf:1"], "is inf seconds a message"),
                          (["--ranks", 2, "--network", "1:inf"], "a rank sends inf bytes a second"),
                          (["--ranks", 2, "--network", "1e308:1e9"], "--network is 1e+308 seconds a message"),
                          (["--ranks", 2, "--network", "1:1e-300"], "a rank sends 1e-300 bytes a second"),
                          (["--ranks", 2, "--network", ""], "wants S:B"),
                          (["--ranks", 2, "--network", "1:1:2"], "the share of the rank's processor is 2"),
                          (["--ranks", 2, "--network", "1:1:"], "a share from 0 to 1"),
                          (["--ranks", 2, "--network", "1:1:0:"], "a share from 0 to 1"),
                          (["--shard", "gradients"], "for `plan`, --ranks N"),
                          (["--sync-bn"], "for `plan`, --ranks N"),
                          (["--ranks", 0], "--ranks 0: must be at least 1"), (["--ranks", "two"], "--ranks two: wants a whole"),
                          (["--ranks", 2**30], f"--ranks {2**30}: there can be 1 to 1048576 ranks"),
                          (["--ranks", 2, "--early-update"], "it needs one process")):
            status, _, err = common.call("plan", model, "--loss", "mse", *more)
            self.assertNotEqual(status, 0)
            self.assertIn(why, err)


def blocks():
    """Commands and files of docs/scaling.md."""
    with open(os.path.join(common.ROOT, "docs", "scaling.md"), encoding="utf-8") as f:
        return [textwrap.dedent(b.strip("\n")) for b in re.findall(r"(?:^    .*\n|^\n(?=    ))+", f.read(), re.M)]


class Documents(unittest.TestCase):
    """The job script and the manifest of docs/scaling.md are what their readers take, with options that there are."""

    def check_options(self, words):
        known = common.call("train", "--help")[1]
        for word in words:
            if word.startswith("--"):
                self.assertRegex(known, rf"{word}\b")

    def test_job_script(self):
        script = next(b for b in blocks() if b.startswith("#!/bin/bash"))
        self.assertEqual(subprocess.run(["bash", "-n"], input=script, text=True).returncode, 0)
        self.check_options(script[script.index("invonnx train"):].split())

    def test_manifest(self):
        job = yaml.safe_load(next(b for b in blocks() if b.startswith("apiVersion")))
        replicas = job["spec"]["mpiReplicaSpecs"]
        pods = {name: r["template"]["spec"]["containers"][0] for name, r in replicas.items()}
        command = pods["Launcher"]["command"]
        self.assertTrue(all(isinstance(word, str) for word in command), command)
        self.assertEqual(command[:4], ["mpirun", "--allow-run-as-root", "-n", str(job["spec"]["slotsPerWorker"] * replicas["Worker"]["replicas"])])
        self.check_options(command[command.index("train"):])
        mounted = {m["name"] for m in pods["Worker"]["volumeMounts"]}
        self.assertEqual(mounted, {v["name"] for v in replicas["Worker"]["template"]["spec"]["volumes"]})


@unittest.skipIf(WHY_NOT, WHY_NOT)
class Ranks(common.InFolder):
    def setUp(self):
        super().setUp()
        rng = np.random.default_rng(3)
        model = parser.parse_model(NETWORK)
        for name, shape in {"w": (8, 6), "u": (6, 4), "s": (6,), "b": (6,), "m": (6,), "v": (6,)}.items():
            values = np.abs(rng.standard_normal(shape)).astype(np.float32)
            model.graph.initializer.append(numpy_helper.from_array(values, name))
        save(model, self.at("net.onnx"))
        text = NETWORK.replace("n, m2, v2 = BatchNormalization<training_mode = 1>(h, s, b, m, v)", "n = Mul(h, s)")
        plain = parser.parse_model(text.replace(", float[6] b, float[6] m, float[6] v", ""))
        plain.graph.initializer.extend(i for i in model.graph.initializer if i.name in ("w", "u", "s"))
        save(plain, self.at("plain.onnx"))
        np.save(self.at("x.npy"), rng.standard_normal((ROWS, 8)).astype(np.float32))
        np.save(self.at("y.npy"), rng.standard_normal((ROWS, 4)).astype(np.float32))
        np.save(self.at("labels.npy"), rng.integers(0, 4, ROWS))
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1", "ASAN_OPTIONS": "detect_leaks=0", "TMPDIR": self.folder.name}

    def words(self, *more, model=None, target="y.npy", loss="mse"):
        return [common.PROGRAM, "train", model or self.at("net.onnx"), "--data", self.at("x.npy"), "--target",
                self.at(target), "--loss", loss, "--threads", "1", "--deterministic", "-o", self.at("out.onnx"),
                *map(str, more)]

    def run_it(self, ranks, *more, status=0, **of):
        """What was said, of a run that has to end so."""
        start = [*MPIRUN, "-n", str(ranks)] if ranks > 1 else []
        done = subprocess.run([*start, *self.words(*more, **of)], capture_output=True, text=True, env=self.environment,
                              timeout=300)
        said = done.stdout + done.stderr
        self.assertEqual(done.returncode != 0, status != 0, said)
        return said

    def weights(self, name="out.onnx"):
        return {i.name: numpy_helper.to_array(i) for i in load(self.at(name)).graph.initializer}

    def trained(self, ranks, *more, **of):
        self.run_it(ranks, *more, **of)
        return self.weights()

    def assert_close(self, a, b, limit, what=""):
        for name, values in a.items():
            if values.dtype.kind == "f":
                np.testing.assert_allclose(values, b[name], rtol=limit, atol=limit, err_msg=f"{what} {name}")

    def assert_same(self, a, b, what):
        for name, values in a.items():
            self.assertEqual(values.tobytes(), b[name].tobytes(), f"{what}: {name}")

    def plan(self, words):
        """What is to be inverted is a choice, which hangs on what else is in memory: both are given the same."""
        shape = ["--batch", "3"] if "--batch" in words else []
        losses = words[words.index("--loss"):words.index("--loss") + 2]
        done = subprocess.run([common.PROGRAM, "plan", words[1], *losses, "--memory", "invert", *shape, "--deterministic",
                               "--plan", self.at("plan.json")], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return self.at("plan.json")

    def test_same_bits(self):
        """As one process with a micro-batch for each rank: families, memory modes, optimizers, 1 to 4 ranks."""
        revnet = os.path.join(common.model("revnet8_ts17"), "model.onnx")
        coupling = os.path.join(common.model("nice_dynbatch_ts17"), "model.onnx")
        rng = np.random.default_rng(5)
        for name, data in {"image.npy": rng.standard_normal((16, 3, 32, 32)), "wide.npy": rng.standard_normal((24, 8))}.items():
            np.save(self.at(name), data.astype(np.float32))
        np.save(self.at("image_y.npy"), rng.integers(0, 10, 16))
        image = ["train", revnet, "--data", self.at("image.npy"), "--target", self.at("image_y.npy"), "--loss",
                 "cross_entropy", "--steps", "1", "--lr", "0.1", "--optimizer", "sgd"]
        wide = ["train", coupling, "--data", self.at("wide.npy"), "--target", self.at("wide.npy"), "--loss", "mse",
                "--batch", "3", "--steps", "2", "--optimizer", "adamw", "--clip-norm", "0.1"]
        plain = self.words("--batch", "3", "--steps", "2", "--lr", "0.1", "--optimizer", "momentum")[1:]
        for words, mode, ranks in ((plain, "recompute", 4), (wide, "invert", 2), (wide, "store", 3), (image, "invert", 2)):
            with self.subTest(model=words[1], mode=mode, ranks=ranks):
                alike = [common.PROGRAM, *words, "--memory", mode, "--threads", "1", "--deterministic", "--no-shuffle"]
                if mode == "invert":
                    alike += ["--plan", self.plan(words)]
                for start, more, out in (([], ["--accumulate", str(ranks)], "one.onnx"),
                                         ([*MPIRUN, "-n", str(ranks)], [], "several.onnx")):
                    done = subprocess.run([*start, *alike, *more, "-o", self.at(out)], capture_output=True, text=True,
                                          env=self.environment, timeout=300)
                    self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assert_same(self.weights("one.onnx"), self.weights("several.onnx"), f"{mode} on {ranks}")

    def test_shard(self):
        """Equal bits whatever is shared, on 2, 3 and 4 ranks, with micro-batches, stages and values that are inverted, and
        when a run goes on that shared something else."""
        rows = ["--batch", 3, "--optimizer", "adamw", "--lr", 0.01]
        cases = ((2, [], {}), (3, ["--accumulate", 2, "--average", "ema:0.9"], {}), (4, ["--weights", "bf16"], {}),
                 (2, ["--unfreeze-after", 1, "w"], {"model": self.at("plain.onnx")}))
        for ranks, more, of in cases:
            more = [*rows, "--epochs", 2, *more]
            want = self.trained(ranks, *more, **of)
            for shard in ("optimizer", "gradients"):
                self.assert_same(want, self.trained(ranks, *more, "--shard", shard, **of), f"{shard} on {ranks} {more}")
        kept = ["--checkpoint", self.at("kept"), "--every", 2]
        want = self.trained(3, "--steps", 4, *rows)
        self.run_it(3, "--steps", 2, *rows, *kept, "--shard", "gradients")
        self.assert_same(want, self.trained(3, "--steps", 4, *rows, *kept, "--shard", "optimizer", "--resume"), "gone on")

    def test_last_batch(self):
        """Of rows that do not fill all ranks each has what it would have as a micro-batch, down to none: every row counts, and
        all bits are those of one process, running statistics among them. So it is of data that do not fill one step, and
        where labels of a rank do not count."""
        labels = np.load(self.at("labels.npy"))
        labels[:5] = labels[20:22] = -100
        np.save(self.at("few.npy"), labels)
        names = ("x.npy", "y.npy", "few.npy")
        arrays = [np.load(self.at(name)) for name in names]
        few = {"target": "few.npy", "loss": "cross_entropy"}
        ignored = ["--ignore-index", -100, "--no-shuffle"]
        for ranks, batch, rows, more, own, of in (
                (4, 4, 23, [], [], {}), (2, 8, 23, ["--drop-last"], [], {}), (4, 5, 23, ignored, ["--shard", "gradients"], few),
                (4, 3, 8, ["--optimizer", "adamw"], ["--shard", "optimizer"], {}), (3, 4, 2, [], [], {})):
            for name, array in zip(names, arrays):
                np.save(self.at(name), array[:rows])
            words = ["--batch", batch, "--epochs", 2, "--lr", 0.1, "--memory", "store", *more]
            several = self.trained(ranks, *words, *own, **of)
            self.assert_same(self.trained(1, *words, "--accumulate", ranks, **of), several, f"{rows} rows on {ranks}")
        for name, array in zip(names, arrays):
            np.save(self.at(name), array)
        said = self.run_it(4)  # an even share, where nobody says how many rows a rank has
        self.assertIn("23 rows, batch 6 on each of 4 ranks, 1 step", said)

    def test_steps_are_timed(self):
        """Where rates are known, the first steps tell what a step takes among so many ranks; plans and weights are as without."""
        def plan(*more):
            return common.report("plan", self.at("net.onnx"), "--loss", "mse", "--batch", 3, "--memory", "store", "--cost", "time",
                                 "--threads", 1, *more, env=self.environment)

        self.environment["XDG_CACHE_HOME"] = self.at("cache")
        self.environment.pop("INVONNX_COST", None)
        more = ["--batch", 3, "--steps", 24, "--memory", "store", "--json"]
        words = [w for w in self.words(*more) if w != "--deterministic"]
        want = self.trained(2, *more)
        times = []
        for _ in range(2):
            done = subprocess.run([*MPIRUN, "-n", "2", *words], capture_output=True, text=True, env=self.environment)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assert_same(want, self.weights(), "timed")
            report = json.loads(done.stdout[done.stdout.index("{"):done.stdout.rindex("}") + 1])
            self.assertEqual((report["ranks"]["on_host"], report["plans_taken"]), (2, 0))
            times.append((report["timed_seconds"], report["ranks"]["step_seconds"]))
            plan()  # measures the rates, for the second time round
        self.assertEqual(times[0], (None, None))
        self.assertGreater(times[1][0], 0)
        self.assertGreater(times[1][1], 0.9 * times[1][0])  # and the exchange
        ranks = ["--ranks", 2, "--shard", "none"]
        self.assertNotEqual(plan(*ranks)["predicted_seconds"], plan(*ranks, "--ranks-per-host", 2)["predicted_seconds"])

    def test_one_is_alone(self):
        """mpirun -n 1 is no other path."""
        alone = self.trained(1, "--batch", 4, "--epochs", 2)
        done = subprocess.run([*MPIRUN, "-n", "1", *self.words("--batch", 4, "--epochs", 2)], capture_output=True,
                              text=True, env=self.environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("ranks", done.stdout)
        self.assert_same(alone, self.weights(), "under mpirun")

    def test_number_of_ranks(self):
        """Without batch statistics, a global batch is one whatever it is split into: order, dropout, unequal last
        batches of 23 rows (11 of them on 3 ranks: 4, 4, 3), and those of which some labels do not count."""
        labels = np.load(self.at("labels.npy"))
        labels[:8] = -100
        np.save(self.at("few.npy"), labels)
        for of in ({"target": "y.npy", "loss": "mse"}, {"target": "few.npy", "loss": "cross_entropy"}):
            of["model"] = self.at("plain.onnx")
            more = ["--float64", "--epochs", 2, "--optimizer", "adam", "--lr", "0.01"]
            more += ["--ignore-index", "-100", "--no-shuffle"] if of["loss"] == "cross_entropy" else ["--seed", 7]
            one = self.trained(1, *more, "--batch", 12, **of)
            self.assert_close(one, self.trained(1, *more, "--batch", 4, "--accumulate", 3, **of), 2e-6, "accumulated")
            for ranks in (2, 3, 4):
                self.assert_close(one, self.trained(ranks, *more, "--batch", 12 // ranks, **of), 2e-6, ranks)

    def test_sync_bn(self):
        """Batch statistics of all ranks: as one process with the whole batch, running statistics and unequal last batches
        among it, in every mode; the same bits again; with labels that count on some ranks only, and accumulated."""
        alike = ["--float64", "--epochs", 2, "--optimizer", "adam", "--lr", 0.01, "--seed", 7]
        one = self.trained(1, *alike, "--batch", 12)
        for ranks, mode in ((2, "store"), (3, "invert"), (4, "recompute"), (4, "auto")):
            more = [*alike, "--batch", 12 // ranks, "--memory", mode]
            several = self.trained(ranks, *more, "--sync-bn")
            self.assert_close(one, several, 2e-6, f"{mode} on {ranks}")
            if mode == "store":
                self.assert_same(several, self.trained(ranks, *more, "--sync-bn"), "again")
                with self.assertRaises(AssertionError):  # that of one rank is something else
                    self.assert_close(one, self.trained(ranks, *more), 2e-6)
        self.assert_close(self.trained(1, *alike, "--batch", 6, "--accumulate", 2),
                          self.trained(3, *alike, "--batch", 2, "--accumulate", 2, "--sync-bn"), 2e-6, "accumulated")
        self.assert_close(self.trained(1, *alike, "--batch", 20),  # of 3 rows at the end two ranks have none
                          self.trained(4, *alike, "--batch", 5, "--shard", "gradients", "--sync-bn"), 2e-6, "ranks without rows")
        labels = np.load(self.at("labels.npy"))
        labels[:8] = -100
        np.save(self.at("few.npy"), labels)
        few = [*alike, "--ignore-index", -100, "--no-shuffle"]
        of = {"target": "few.npy", "loss": "cross_entropy"}
        self.assert_close(self.trained(1, *few, "--batch", 12, **of), self.trained(4, *few, "--batch", 3, "--sync-bn", **of),
                          2e-6, "ranks whose rows do not count")
        said = self.run_it(2, *alike, "--sync-bn", model=self.at("plain.onnx"), status=1)
        self.assertIn("no batch normalization that trains", said)

    def test_sync_bn_inverted(self):
        """Couplings whose branches normalize by all ranks' statistics are inverted: the gradients of everything stored."""
        rng = np.random.default_rng(5)
        np.save(self.at("x.npy"), rng.standard_normal((8, 3, 32, 32)).astype(np.float32))
        np.save(self.at("y.npy"), rng.integers(0, 10, 8))
        of = {"model": os.path.join(common.model("revnet8_ts17"), "model.onnx"), "loss": "cross_entropy"}
        alike = ["--float64", "--steps", 1, "--lr", 0.1, "--optimizer", "sgd"]
        one = self.trained(1, *alike, "--batch", 8, "--memory", "store", **of)
        said = self.run_it(2, *alike, "--batch", 4, "--memory", "invert", "--sync-bn", "--json", **of)
        report = json.loads(said[said.index("{\n"):said.rindex("}") + 1])
        self.assertGreater(report["inverted"] if isinstance(report.get("inverted"), int) else 1, 0)
        self.assert_close(one, self.weights(), 2e-6, "inverted")

    def test_sim(self):
        """Device sim: collectives on its queue; the bits of one process with as many micro-batches."""
        for more in (["--optimizer", "adam"], ["--sync-bn"]):
            alike = ["--device", "sim", "--steps", 3, *more]
            several = self.trained(2, *alike, "--batch", 3)
            if "--sync-bn" in more:
                self.assert_close(self.trained(1, "--steps", 3, "--batch", 6, model=self.at("net.onnx")), several, 1e-5)
            else:
                self.assert_same(self.trained(1, *alike, "--batch", 3, "--accumulate", 2, model=self.at("net.onnx")),
                                 several, "sim")

    def test_validation_nan(self):
        """Rows of another rank than 0 that make the loss of validation NaN are told, once, and training goes on."""
        x = np.load(self.at("x.npy"))
        np.save(self.at("clean.npy"), x)
        x[12] = np.nan
        np.save(self.at("held.npy"), x[:14])
        np.save(self.at("held_y.npy"), np.load(self.at("y.npy"))[:14])
        said = self.run_it(2, "--batch", 5, "--steps", 2, "--val-data", self.at("held.npy"), "--val-target",
                           self.at("held_y.npy"), "--no-shuffle", model=self.at("plain.onnx"))
        self.assertEqual(said.count("validation: the loss is nan"), 1, said)
        self.assertRegex(said, "row 12")

    def test_validation(self):
        """Is split and joined: the same numbers, also on more ranks than it has batches, and with the best model."""
        held = ["--val-data", self.at("few_x.npy"), "--batch", 5, "--steps", 1, "--lr", 0, "--json"]
        for name in ("x.npy", "y.npy", "labels.npy"):
            np.save(self.at("few_" + name), np.load(self.at(name))[:14])
        for loss, target, metrics in (("mse", "y.npy", ["mae", "rmse", "r2"]),
                                      ("cross_entropy", "labels.npy", ["top2", "f1", "confusion", "auc"])):
            more = [*held, "--val-target", self.at("few_" + target), *(w for m in metrics for w in ("--metric", m))]
            of = {"target": target, "loss": loss, "model": self.at("plain.onnx")}
            said = {}
            for ranks in (1, 2, 4):
                text = self.run_it(ranks, *more, **of)
                said[ranks] = json.loads(text[text.index("{\n"):text.rindex("}") + 1])
            for ranks in (2, 4):
                self.assertEqual(said[1]["val_loss"], said[ranks]["val_loss"])
                for metric in metrics:
                    np.testing.assert_allclose(said[1]["val_" + metric], said[ranks]["val_" + metric], rtol=1e-12)

    def test_refused(self):
        """By name, once, and no model is there."""
        for more, why in ((["--early-update"], "it needs one process"), (["--metric", "x"], "--metric"),
                          (["--batch", "x"], "--batch"),
                          (["--shard", "gradients", "--device", "sim"], "several processes on device cpu"),
                          (["--shard", "optimizer", "--optimizer", "lamb"], "--shard: the optimizer of 'w' needs the whole tensor")):
            said = self.run_it(2, "-q", *more, status=1)
            self.assertEqual(said.count("invonnx: "), 1, said)
            self.assertIn(why, said)
        self.assertFalse(os.path.exists(self.at("out.onnx")))
        done = subprocess.run([*MPIRUN, "-n", "2", common.PROGRAM, "inspect", self.at("net.onnx")], capture_output=True,
                              text=True, env=self.environment)
        self.assertIn("Only `train` uses several", done.stderr)

    def test_other_models(self):
        """Ranks that have not the same weights do not begin."""
        other = load(self.at("net.onnx"))
        w = next(i for i in other.graph.initializer if i.name == "w")
        w.CopyFrom(numpy_helper.from_array(np.zeros((8, 6), np.float32), "w"))
        save(other, self.at("other.onnx"))
        words = [*MPIRUN, "-n", "1", *self.words("--batch", 4), ":", "-n", "1",
                 *self.words("--batch", 4, model=self.at("other.onnx"))]
        done = subprocess.run(words, capture_output=True, text=True, env=self.environment)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("rank 1 has other weights than rank 0", done.stderr)

    def test_log(self):
        """Has the norm of the gradients, which all ranks compute then, and rank 0 writes."""
        self.run_it(2, "--batch", 3, "--log", self.at("log.jsonl"))
        with open(self.at("log.jsonl"), encoding="utf-8") as f:
            steps = [r for r in map(json.loads, f) if "grad_norm" in r]
        self.assertEqual(len(steps), 4)

    def test_other_data(self):
        """Ranks whose files or options count otherwise do not begin."""
        for name in ("x.npy", "y.npy"):
            np.save(self.at("less_" + name), np.load(self.at(name))[:12])
        for more, why in (([], "rank 1 has rows of data: 12, and rank 0 23"), (["--lr", 0.5], "rank 1 has --lr 0.5"),
                          (["--schedule", "cosine"], "rank 1 has --schedule cosine"), (["--clip-norm", 1], "rank 1 has --clip-norm 1"),
                          (["--checkpoint", self.at("kept")], "rank 1 has --checkpoint given"),
                          (["--group", "w:lr=0.5"], "rank 1 has --group  w:lr=0.5")):
            other = self.words("--batch", 3, *more)
            if not more:
                other = [w.replace("/x.npy", "/less_x.npy").replace("/y.npy", "/less_y.npy") for w in other]
            done = subprocess.run([*MPIRUN, "-n", "1", *self.words("--batch", 3), ":", "-n", "1", *other],
                                  capture_output=True, text=True, env=self.environment)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(why, done.stderr)

    def test_other_checkpoints(self):
        """Ranks that have read other states do not go on."""
        for name, lr in (("a", 0.1), ("b", 0.2)):
            self.run_it(1, "--batch", 6, "--steps", 2, "--lr", lr, "--checkpoint", self.at(name))
        words = [self.words("--batch", 3, "--lr", 0.1, "--resume", "--checkpoint", self.at(name)) for name in "ab"]
        done = subprocess.run([*MPIRUN, "-n", "1", *words[0], ":", "-n", "1", *words[1]], capture_output=True, text=True,
                              env=self.environment)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("rank 1 has other weights than rank 0", done.stderr)

    def test_damaged_checkpoint_of_one(self):
        """Where one rank's newest file is damaged, all go on from an older one, with the bits of a run that did not stop."""
        more = ["--seed", 1, "--optimizer", "adam", "--memory", "store"]
        self.run_it(2, "--batch", 3, "--steps", 4, "--checkpoint", self.at("a"), "--every", 2, *more)
        whole = self.weights()
        shutil.copytree(self.at("a"), self.at("b"))
        newest = self.at("b/step-000000004.safetensors")
        with open(newest, "r+b") as f:
            f.seek(-2, os.SEEK_END)
            byte = f.read(1)[0]
            f.seek(-1, os.SEEK_CUR)
            f.write(bytes([byte ^ 4]))
        words = [self.words("--batch", 3, "--steps", 4, "--resume", "--checkpoint", self.at(name), *more) for name in "ab"]
        start = [*MPIRUN, "-n", "1", *words[0], ":", "-n", "1", *words[1]]
        done = subprocess.run(start, capture_output=True, text=True, env=self.environment)
        self.assertEqual(done.returncode, 0, done.stderr)
        said = done.stdout + done.stderr
        self.assertIn("step-000000004.safetensors' is damaged: the tensor '", said)
        self.assertRegex(said, "resumes from .*step-000000002")
        self.assert_same(whole, self.weights(), "resumed")
        os.remove(self.at("b/step-000000002.safetensors"))
        done = subprocess.run(start, capture_output=True, text=True, env=self.environment)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("none of the 2 checkpoints in " + self.at("a is complete on all ranks"), done.stderr)

    def test_stages(self):
        """A stage begins on all ranks, also where rank 0 saves a state before its first step; and as alone."""
        more = ["--batch", 4, "--epochs", 2, "--drop-last", "--unfreeze-after", 1, "w"]
        of = {"model": self.at("plain.onnx")}
        several = self.trained(2, *more, "--rank-timeout", 20, "--checkpoint", self.at("kept"), "--every", 1, **of)
        self.assert_same(self.trained(1, *more, "--accumulate", 2, **of), several, "stages")

    def test_nan(self):
        """In rows of one rank ends all, before anything is committed, with one message that says which."""
        x = np.load(self.at("x.npy"))
        x[7] = np.nan
        np.save(self.at("x.npy"), x)
        said = self.run_it(4, "-q", "--batch", 3, "--no-shuffle", status=1)
        self.assertEqual(said.count("invonnx: "), 1, said)
        self.assertIn("x (the data fed) on rank 2", said)
        self.assertIn("its batch was rows 6 to 8; row 7 of", said)
        self.assertIn("holds NaN. Mend these rows or leave them out; nothing was saved", said)

    def test_no_label_counts(self):
        """A batch of which no label counts is named with the rows of all ranks, by one message."""
        labels = np.load(self.at("labels.npy"))
        of = {"target": "few.npy", "loss": "cross_entropy", "status": 1}
        for more in (["--batch", 3], ["--batch", 2, "--accumulate", 2, "--drop-last"]):
            few = labels.copy()
            few[slice(9, 18) if more[1] == 3 else slice(12, 24)] = -100
            np.save(self.at("few.npy"), few)
            said = self.run_it(3, "-q", "--no-shuffle", "--ignore-index", -100, *more, **of)
            self.assertEqual(said.count("no label of the batch counts"), 1, said)
            rows = "its batch was rows 9 to 17" if more[1] == 3 else "its batch was rows 18 to 21"
            self.assertRegex(said, "step 2 of [23]: no label of the batch counts")
            self.assertIn(rows + ". Leave them out, or take larger batches (--batch)", said)

    def test_guards(self):
        """A reconstruction that is refused on one rank, whichever it is, is kept by all; the step is made once, as it is
        with everything stored."""
        coupling = os.path.join(common.model("nice_dynbatch_ts17"), "model.onnx")
        x = np.random.default_rng(0).standard_normal((6, 8)).astype(np.float32)
        x[3:, :4] *= 3e4  # what is added to the others is so large that their digits are lost in the sum
        np.save(self.at("y.npy"), np.zeros((6, 8), np.float32))
        more = ["--batch", "3", "--no-shuffle", "--loss", "mse", "--lr", 1e-9, "--steps", 1]
        plan = ["--memory", "invert", "--plan", self.plan([common.PROGRAM, coupling, *more])]
        for rows, shard in ((x, "none"), (np.concatenate([x[3:], x[:3]]), "gradients")):
            np.save(self.at("x.npy"), rows)
            said = self.run_it(2, *more, *plan, "--shard", shard, model=coupling)
            self.assertEqual(said.count("planned again"), 1, said)
            refused = self.weights()
            self.assert_close(self.trained(2, *more, "--memory", "store", model=coupling), refused, 1e-5)

    def test_log_of_each(self):
        """With %r in its name every rank writes its own, with the same losses."""
        self.run_it(3, "--batch", 3, "--log", self.at("log-%r.jsonl"))
        losses = []
        for rank in range(3):
            with open(self.at(f"log-{rank}.jsonl"), encoding="utf-8") as f:
                losses.append([r["loss"] for r in map(json.loads, f) if "grad_norm" in r])
        self.assertEqual(len(losses[0]), 3)
        self.assertEqual(losses[0], losses[1])
        self.assertEqual(losses[0], losses[2])

    def test_like_slurm(self):
        """What srun puts into the environment of PMIx, and no more of mpirun's."""
        names = [f"-u{n}" for n in ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")]
        done = subprocess.run([*MPIRUN, "-n", "2", "env", *names, "SLURM_NTASKS=2", "SLURM_LOCALID=0",
                               *self.words("--batch", 3, "--steps", 2)], capture_output=True, text=True,
                              env=self.environment, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("on each of 2 ranks", done.stdout)
        several = self.weights()
        self.assert_same(self.trained(2, "--batch", 3, "--steps", 2), several, "under mpirun")

    def test_documents(self):
        """Commands of docs/scaling.md, with its numbers of ranks, and its job script, whose `srun` is mpirun here. Cores
        are not asked for, nor GPUs."""
        for name, text in {"srun": SRUN, "invonnx": f'exec {common.PROGRAM} "$@"'}.items():
            with open(self.at(name), "w", encoding="utf-8") as f:
                f.write(f"#!/bin/bash\n{text}\n")
            os.chmod(self.at(name), 0o755)
        os.rename(self.at("plain.onnx"), self.at("model.onnx"))
        os.replace(self.at("labels.npy"), self.at("y.npy"))
        oversubscribed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_btl": "self,vader",
                          "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
                          "OMPI_MCA_hwloc_base_binding_policy": "none", "PATH": f"{self.folder.name}:{os.environ['PATH']}"}
        commands = [b for b in blocks() if re.match("mpirun|invonnx|#!/bin/bash", b)]
        self.assertGreaterEqual(len(commands), 6)
        for command in commands:
            for there, here in ((" ...", " model.onnx --data x.npy --target y.npy --loss cross_entropy --batch 2 -o out.onnx"),
                                ("--device cuda", "--device sim"), ("--map-by slot:PE=4 --bind-to core", "")):
                command = command.replace(there, here)
            with self.subTest(command=command):
                done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, cwd=self.folder.name,
                                      env={**self.environment, **oversubscribed})
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(len(glob.glob(self.at("log-*.jsonl"))), 8)  # of each rank of the job

    def test_first_word(self):
        """Where each rank fails by itself, and at once, one tells why."""
        for more in (["--data", self.at("none.npy")], ["--lr", "x"], ["--freeze", "nothing"], ["--optimizer", "none_such"]):
            said = self.run_it(4, "-q", *more, status=1)
            self.assertEqual(said.count("invonnx: "), 1, said)
        done = subprocess.run([*MPIRUN, "-n", "2", *self.words("-q", "--batch", 3), ":", "-n", "1",
                               *self.words("-q", "--batch", 3, "--freeze", "nothing")], capture_output=True, text=True,
                              env=self.environment, timeout=60)
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stderr.count("invonnx: "), 1, done.stderr)

    def processes(self):
        """The ranks that are alive, by their numbers; they name this test's folder."""
        found = {}
        for path in glob.glob("/proc/[0-9]*/environ"):
            try:
                with open(path, "rb") as f, open(path.replace("environ", "cmdline"), "rb") as g:
                    words, line = f.read().split(b"\0"), g.read()
            except OSError:
                continue
            rank = [w for w in words if w.startswith(b"OMPI_COMM_WORLD_RANK=")]
            if rank and self.folder.name.encode() in line and b"invonnx" in line.split(b"\0")[0]:
                found[int(rank[0].split(b"=")[1])] = int(path.split("/")[2])
        return found

    def start(self, ranks, *more):
        """A run that would take long, once there is a checkpoint."""
        mpirun = [word for word in MPIRUN if word != "--quiet"]
        child = subprocess.Popen([*mpirun, "-n", str(ranks), *self.words("--epochs", 10 ** 6, "--checkpoint",
                                                                        self.at("kept"), "--every", 5, "--keep", 3, *more)],
                                 stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.environment)
        until = time.monotonic() + 180
        while time.monotonic() < until:
            if len(self.processes()) == ranks and glob.glob(self.at("kept/step-*.safetensors")):
                break
            time.sleep(0.02)
        return child

    def assert_all_end(self):
        until = time.monotonic() + 10
        while self.processes() and time.monotonic() < until:
            time.sleep(0.02)
        self.assertEqual(self.processes(), {})

    def kill_one(self, *more):
        """Of four ranks at a random time, also while they begin. What is said is said once, by mpirun."""
        child = self.start(4, "-q", *more)
        time.sleep(random.random() * 0.3)
        until = time.monotonic() + 30
        while not self.processes() and time.monotonic() < until:
            time.sleep(0.01)
        alive = self.processes()
        os.kill(alive[random.choice(sorted(alive))], signal.SIGKILL)
        self.assert_all_end()
        try:
            said = child.communicate(timeout=10)[0]
        except subprocess.TimeoutExpired:  # Open MPI 4.1's mpirun may lock itself up once all its processes are gone
            child.kill()
            said = child.communicate()[0]
        self.assertNotEqual(child.returncode, 0)
        self.assertEqual((said.count("job has been aborted"), said.count("invonnx: ")), (1, 0), said)

    def newest(self):
        """The step of the newest checkpoint, which is whole, and has no half-written one beside it."""
        names = sorted(os.listdir(self.at("kept")))
        path = self.at(os.path.join("kept", [n for n in names if re.fullmatch(r"step-\d+\.safetensors", n)][-1]))
        with open(path, "rb") as f:
            head = json.loads(f.read(int.from_bytes(f.read(8), "little")))
            ends = [e["data_offsets"][1] for name, e in head.items() if name != "__metadata__"]
            self.assertEqual(os.path.getsize(path), f.tell() + max(ends))
        return int(os.path.basename(path)[5:14])

    def test_kills(self):
        """All end within seconds, and once for all; what is kept is whole. The run that goes on, and was killed again and
        again, has the bits of one that was not, of one process with as many micro-batches. Others go on, too."""
        alike = ["--seed", 1, "--optimizer", "adam", "--memory", "store"]
        kept = ["--checkpoint", self.at("kept")]
        for shard in ("none", "optimizer", "gradients"):
            for i in range(KILLS):
                self.kill_one("--batch", 3, *alike, "--shard", shard, *(["--resume"] if i else []))
                done = self.newest()
            again = [*alike, *kept, "--resume", "--steps"]
            four = self.trained(4, "--batch", 3, *again, done + 4, "--shard", shard)
            self.assert_same(self.trained(1, "--batch", 3, "--accumulate", 4, *alike, "--steps", done + 4), four, shard)
            self.run_it(3, "--batch", 4, *again, done + 6, "--shard", shard)
            one = self.trained(1, "--batch", 12, *again, done + 8)
            self.assertEqual(self.newest(), done + 8)
            self.assertTrue(all(np.isfinite(v).all() for v in one.values() if v.dtype.kind == "f"))
            shutil.rmtree(self.at("kept"))

    def test_goes_on(self):
        """4 ranks as 3, and these as one, without batch statistics: as if they had not stopped."""
        coupling = os.path.join(common.model("nice_dynbatch_ts17"), "model.onnx")
        np.save(self.at("y.npy"), np.load(self.at("x.npy")))
        of = {"model": coupling}
        more = ["--optimizer", "adam", "--checkpoint", self.at("kept")]
        self.run_it(4, "--batch", 3, "--steps", 3, "--shard", "optimizer", *more, **of)
        self.run_it(3, "--batch", 4, "--steps", 6, "--shard", "gradients", "--resume", *more, **of)
        resumed = self.trained(1, "--batch", 12, "--steps", 9, "--resume", *more, **of)
        shutil.rmtree(self.at("kept"))
        self.assert_close(self.trained(1, "--batch", 12, "--steps", 9, *more, **of), resumed, 1e-5)
        said = self.run_it(2, "--batch", 3, "--steps", 12, "--resume", *more, status=1, **of)
        self.assertIn("its run used other rows: rows of a step 12 there, 6 here", said)

    def test_goes_on_as_micro_batches(self):
        """Ranks as micro-batches of one process and the other way round, within an epoch and behind one, unequal last batches
        among it: the bits of a run that did not stop; what is left out has to be the same."""
        more = ["--optimizer", "adam", "--checkpoint", self.at("kept"), "--batch", 3, "--memory", "store"]
        for extra in ([], ["--drop-last"]):
            steps = 0
            for ranks, batches in ((4, 1), (1, 4), (4, 1), (1, 4)):  # of 2 steps an epoch
                steps += 1 if batches > 1 else 2
                several = self.trained(ranks, *more, *extra, "--accumulate", batches, "--steps", steps, *(["--resume"] if steps > 2 else []))
            shutil.rmtree(self.at("kept"))
            self.assert_same(self.trained(1, *more, *extra, "--accumulate", 4, "--steps", steps), several, extra)
            shutil.rmtree(self.at("kept"))
        self.run_it(2, *more, "--accumulate", 2, "--steps", 1, "--drop-last")
        said = self.run_it(1, *more, "--batch", 12, "--steps", 2, "--drop-last", "--resume", status=1)
        self.assertIn("its run used other rows: rows left out 2 there, 11 here", said)
        said = self.run_it(2, "--batch", 3, "--resume", "--checkpoint", self.at("kept"), "--sync-bn", "--accumulate", 2,
                           "--drop-last", model=self.at("plain.onnx"), status=1)
        self.assertEqual(said.count("no batch normalization that trains"), 1, said)

    def test_goes_on_with_all_rows(self):
        """Steps of all rows are the same whatever they would have room for: where nobody says --batch, one process has 23
        rows in one, and two ranks have room for 12 each."""
        more = ["--checkpoint", self.at("kept"), "--memory", "store"]
        for ranks, done in ((1, 1), (2, 2), (3, 3), (1, 4)):
            said = self.run_it(ranks, *more, "--steps", done, *(["--resume"] if done > 1 else []), model=self.at("plain.onnx"))
            self.assertIn(f"{done}/{done}  train loss", said)
        resumed = self.weights()
        shutil.rmtree(self.at("kept"))
        self.assert_close(self.trained(1, *more, "--steps", 4, model=self.at("plain.onnx")), resumed, 1e-5)

    def test_hangs(self):
        """Ranks that stand still: the others wait so long, and no longer; one says for what, and for whom. Also rank 0,
        which would tell who says it, and which the launcher wakes to end it."""
        for still in ([2], [0], [1, 3]):
            child = self.start(4, "-q", "--batch", 3, "--rank-timeout", 3)  # more than mpirun takes to end it
            for rank, process in self.processes().items():
                if rank in still:
                    os.kill(process, signal.SIGSTOP)
            stopped, come = int(0 in still), [str(r) for r in range(4) if r not in still]
            began = time.monotonic()
            said = child.communicate(timeout=60)[0]
            self.assertLess(time.monotonic() - began, 30)
            self.assertEqual(said.count("timed out at"), 1, said)
            self.assertRegex(said, rf"rank {stopped} of 4, step \d+: timed out at .*, after waiting 3 s for others \(--rank-timeout\): ")
            late = f"rank {still[0]} does not respond: it" if len(still) == 1 else "ranks 1, 3 do not respond: they"
            self.assertIn(late, said)
            self.assertIn(f"; ranks {', '.join(come)} have arrived", said)
            self.assertEqual(said.count("invonnx: "), 2 - stopped, said)  # rank 0 alone says where the weights are
            self.assert_all_end()
            shutil.rmtree(self.at("kept"))

    def end_by_full_disk(self, rank, limit, *more):
        """What is said when that rank can write no longer files; all end by themselves."""
        child = self.start(3, "-q", "--batch", 3, "--optimizer", "adam", *more)
        newest = sorted(glob.glob(self.at("kept/step-*.safetensors")))[-1]
        limit = limit or os.path.getsize(newest) - 1
        resource.prlimit(self.processes()[rank], resource.RLIMIT_FSIZE, (limit, limit))
        began = time.monotonic()
        said = child.communicate(timeout=60)[0]
        self.assertLess(time.monotonic() - began, 30)
        self.assertEqual(self.processes(), {})
        self.assertNotEqual(child.returncode, 0, said)
        done = self.newest()
        self.run_it(1, "--batch", 9, "--optimizer", "adam", "--steps", done + 1, "--resume", "--checkpoint", self.at("kept"))
        shutil.rmtree(self.at("kept"))
        return said

    def test_full_disk(self):
        """A file that cannot be written ends all, whichever rank's it is, with one message, and with all written that can
        be; what was kept is whole."""
        for rank, more, why in ((0, [], "no checkpoint: cannot write"), (0, ["--shard", "gradients"], "no checkpoint: cannot write"),
                                (1, ["--log", self.at("log-%r.jsonl")], "rank 1: --log " + self.at("log-1.jsonl: cannot be written"))):
            said = self.end_by_full_disk(rank, 4096 if rank else 0, *more)
            self.assertEqual((said.count(why), said.count("invonnx: ")), (1, 1), said)
            self.assertTrue(os.path.exists(self.at("out.onnx")))
            os.remove(self.at("out.onnx"))
        said = self.end_by_full_disk(0, 64)
        self.assertEqual(said.count(f"cannot write '{self.at('out.onnx')}'"), 1, said)

    def test_interrupt(self):
        """Of one rank ends all behind a step, with the model written."""
        child = self.start(2, "--batch", 3)
        os.kill(self.processes()[1], signal.SIGTERM)
        said = child.communicate(timeout=60)[0]
        self.assertIn("stopped after step", said)
        self.assertTrue(os.path.exists(self.at("out.onnx")), said)


if __name__ == "__main__":
    unittest.main()
