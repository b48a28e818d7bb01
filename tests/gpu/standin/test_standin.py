# SPDX-License-Identifier: Apache-2.0
"""What device cuda does on the stand-in for a GPU (standin.h), beyond goldens and operators: steps in all their kinds,
failures, and that defects which are put into copies of its sources are found."""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.normpath(os.path.join(HERE, "..", "..", ".."))
BUILD = os.environ.get("INVONNX_BUILD") or os.path.join(ROOT, "build", "dev")
MODELS = os.path.join(ROOT, "tests", "data", "models")
STANDIN = os.path.join(BUILD, "tests", "standin_program")
MISUSE = (96, 97, 98)  # STANDIN_UNDEFINED and those after it


def call(program, *args, **environment):
    """(exit status, report, stderr)"""
    env = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", **{k: str(v) for k, v in environment.items()})
    done = subprocess.run([program, *map(str, args), "--json"], capture_output=True, env=env, timeout=300)
    report = json.loads(done.stdout) if done.returncode == 0 else None
    return done.returncode, report, done.stderr.decode()


class Data:
    """Models with rows to train on: 20 of them, so that batches of 8 leave a last smaller one."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        rng = np.random.default_rng(1)
        for name, rows, labels in (("linear_tall_ts13", (20, 3), (20, 5)), ("plain_lenet_ts17", None, None)):
            folder = os.path.join(MODELS, name)
            x, y = (np.load(os.path.join(folder, f)) for f in (self.feed(folder), "target.npy"))
            rows = (20, *x.shape[1:])
            self.save(name, "x", rng.standard_normal(rows).astype(np.float32))
            self.save(name, "y", rng.standard_normal((20, *y.shape[1:])).astype(np.float32)
                      if y.dtype.kind == "f" else rng.integers(0, 10, (20, *y.shape[1:])))

    @staticmethod
    def feed(folder):
        return next(f for f in sorted(os.listdir(folder)) if f.startswith("in_") and f.endswith(".npy"))

    def at(self, *names):
        return os.path.join(self.folder.name, "-".join(names) + ".npy")

    def save(self, model, what, a):
        np.save(self.at(model, what), a)

    def train(self, model, loss):
        return ["train", os.path.join(MODELS, model, "model.onnx"), "--data", self.at(model, "x"), "--target",
                self.at(model, "y"), "--loss", loss, "--batch", "8", "--lr", "0.01", "-o",
                os.path.join(self.folder.name, "out.onnx")]


    def revnet(self):
        rng = np.random.default_rng(2)
        self.save("revnet", "x", rng.standard_normal((8, 1, 16, 16)).astype(np.float32))
        self.save("revnet", "y", rng.integers(0, 10, 8))
        return ["train", os.path.join(MODELS, "..", "revnet_c4.onnx"), "--data", self.at("revnet", "x"), "--target",
                self.at("revnet", "y"), "--loss", "cross_entropy", "--batch", "4", "-o",
                os.path.join(self.folder.name, "out.onnx")]


    def refused(self):
        """Inputs far smaller than what couplings add to them, which a guard refuses to rebuild."""
        self.save("nice", "x", (1e-4 * np.random.default_rng(0).standard_normal((6, 8))).astype(np.float32))
        return ["train", os.path.join(MODELS, "nice_chunk_ts17", "model.onnx"), "--data", self.at("nice", "x"), "--loss",
                "nll", "--loss-output", "z", "--logdet", "logdet", "--steps", "3", "--lr", "0.1", "--memory", "invert",
                "--mode", "x=invert", "--device", "cuda", "-o", os.path.join(self.folder.name, "out.onnx")]


DATA = Data()
LENET = DATA.train("plain_lenet_ts17", "cross_entropy")
TALL = DATA.train("linear_tall_ts13", "mse")
REFUSED = DATA.refused()
NICE = [*DATA.revnet(), "--memory", "invert"]
STORED = [*DATA.revnet(), "--memory", "store"]
STEPS = ["--steps", "5", "--optimizer", "adam", "--val-split", "0.2", "--device", "cuda"]


def losses(report):
    return [report["loss"], report["val_loss"]] if "val_loss" in report else [report["loss"]]


def differs(program, seed, *args):
    """What a run of the program has other than the CPU's, or how it failed; None: nothing."""
    status, there, said = call(program, *args, STANDIN_SEED=seed)
    if status:
        return f"exit {status}: {said.strip().splitlines()[-1]}"
    host = [a if a != "cuda" else "cpu" for a in args]
    _, here, _ = call(os.path.join(BUILD, "invonnx"), *host)
    a, b = np.array(numbers(there)), np.array(numbers(here))
    return None if a.shape == b.shape and np.allclose(a, b, rtol=1e-4, atol=1e-6) else f"{a} for {b}"


def differs_in_gradients(seed, model, feed, target, memory="store", program=STANDIN, **environment):
    """How gradients on the stand-in differ from the CPU's; None: they do not."""
    with tempfile.TemporaryDirectory() as folder:
        args = ["grad", model, "--feed", feed, "--target", target, "--loss", "mse", "--memory", memory]
        precision = environment.get("STANDIN_PRECISION", "full")
        for name, of, more in (("there", program, ["--device", "cuda", "--precision", precision]),
                               ("here", os.path.join(BUILD, "invonnx"), [])):
            status, _, said = call(of, *args, *more, "--dump", os.path.join(folder, name), STANDIN_SEED=seed, **environment)
            if status:
                return f"exit {status}: {said.strip().splitlines()[-1]}"
        for name in os.listdir(os.path.join(folder, "here")):
            here, there = (np.load(os.path.join(folder, p, name)) for p in ("here", "there"))
            if not np.linalg.norm(here - there) <= 1e-4 * np.linalg.norm(here):
                return name
    return None


def turned_network(folder):
    """Model, input and target: convolutions of all kinds, which have their channels last where they go to matrix units."""
    rng = np.random.default_rng(7)
    w = {"v": (8, 3, 7, 7), "u": (8, 4, 5, 5), "p": (16, 8, 1, 1), "s": (16, 8, 1, 1), "b": (16,), "t": (16, 4, 2, 2), "g": (8,),
         "h": (8,)}
    nodes = [("Conv", "x v", "a", {"strides": [2, 2], "pads": [3, 3, 3, 3]}), ("InstanceNormalization", "a g h", "n", {}),
             ("Relu", "n", "r", {}), ("MaxPool", "r", "m", {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
             ("Conv", "m u", "c", {"group": 2, "pads": [2, 2, 2, 2]}), ("Tanh", "c", "d", {}), ("Conv", "d p b", "e", {}),
             ("Conv", "m s", "f", {}), ("Add", "e f", "i", {}), ("ConvTranspose", "i t", "y", {"strides": [2, 2]})]
    graph = helper.make_graph(
        [helper.make_node(op, i.split(), [o], **more) for op, i, o, more in nodes], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3, 22, 21))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 4, 12, 12))],
        [numpy_helper.from_array((0.3 * rng.standard_normal(s)).astype(np.float32), k) for k, s in w.items()])
    at = [os.path.join(folder, name) for name in ("m.onnx", "x.npy", "y.npy")]
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), at[0])
    for file, shape in ((at[1], (2, 3, 22, 21)), (at[2], (2, 4, 12, 12))):
        np.save(file, rng.standard_normal(shape).astype(np.float32))
    return at


def numbers(report):
    """Losses, wherever a report has them."""
    found = []
    for key, value in sorted(report.items()):
        if "loss" in key and isinstance(value, (int, float)):
            found.append(value)
        if "loss" in key and isinstance(value, list):
            found += [x for x in value if isinstance(x, (int, float))]
    assert found, sorted(report)
    return found


class Steps(unittest.TestCase):
    def test_train_with_a_last_batch_and_evaluation(self):
        for seed in range(1, 6):
            for memory in ("store", "invert"):
                for args in (LENET, TALL):
                    self.assertIsNone(differs(STANDIN, seed, *args, *STEPS, "--memory", memory))
            self.assertIsNone(differs(STANDIN, seed, *DATA.revnet(), "--steps", "4", "--device", "cuda"))

    def test_the_second_device(self):
        self.assertIsNone(differs(STANDIN, 1, *LENET, *STEPS[:-1], "cpu"))
        status, report, said = call(STANDIN, *LENET, *STEPS[:-1], "cuda:1")
        self.assertEqual(status, 0, said)
        self.assertEqual(report["device"], "cuda:1")
        status, _, said = call(STANDIN, *LENET, *STEPS[:-1], "cuda:7")
        self.assertEqual(status, 1)
        self.assertIn("cuda:7", said)

    def test_report(self):
        folder = os.path.join(MODELS, "plain_lenet_ts17")
        grad = ["grad", os.path.join(folder, "model.onnx"), "--feed", os.path.join(folder, DATA.feed(folder)), "--target",
                os.path.join(folder, "target.npy"), "--loss", "cross_entropy", "--device", "cuda"]
        status, report, said = call(STANDIN, *grad)
        self.assertEqual(status, 0, said)
        self.assertEqual(report["convolutions"], "cuDNN")
        memory = report["device_memory"]
        self.assertGreater(memory["beside_bytes"], 0)
        self.assertLess(memory["used_bytes"], memory["total_bytes"])
        facts = report["device_facts"]
        self.assertEqual((facts["name"], facts["compute_capability"]), ("stand-in", 90))
        self.assertTrue(all(facts[name] > 0 for name in ("driver", "runtime", "cublaslt", "cudnn")), facts)
        for environment in ({"STANDIN_NO_CUDNN": 1}, {"STANDIN_FAIL": "cudnnCreate:1"}):
            status, report, said = call(STANDIN, *grad, **environment)
            self.assertEqual(status, 0, said)
            self.assertIn("column matrices", report["convolutions"])
            self.assertRegex(said, "device cuda: .*column matrices.*libcudnn")
            self.assertEqual(report["device_facts"]["cudnn"], 0)

    def test_convolutions_of_some_images_at_a_time(self):
        """For which cuDNN has scratch memory; in every precision, and where it cannot be asked."""
        rng = np.random.default_rng(4)
        x, y, *w = (rng.standard_normal(s).astype(np.float32)
                    for s in ((3, 32, 32, 32), (3, 32, 32, 32), (32, 32, 32), (32, 32, 3, 3)))
        with tempfile.TemporaryDirectory() as folder:
            at = [os.path.join(folder, name) for name in ("m.onnx", "x.npy", "y.npy")]
            np.save(at[1], x)
            np.save(at[2], y)
            for pads, precisions in (([1, 1, 1, 1], ("full", "tf32", "bf16")), ([0, 0, 2, 2], ("full",))):
                graph = helper.make_graph(
                    [helper.make_node("Add", ["x", "p"], ["q"]), helper.make_node("Conv", ["q", "w"], ["y"], pads=pads)], "g",
                    [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
                    [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                    [numpy_helper.from_array(v, k) for v, k in zip(w, "pw")])
                onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), at[0])
                for precision in precisions:
                    self.assertIsNone(differs_in_gradients(1, *at, STANDIN_PRECISION=precision), f"{pads}, {precision}")

    def test_channels_last(self):
        """Where convolutions go to matrix units: by cuDNN, in its order of the filter, and without it."""
        with tempfile.TemporaryDirectory() as folder:
            at = turned_network(folder)
            for seed, (precision, memory, more) in enumerate((("tf32", "store", {}), ("tf32", "recompute", {}), ("bf16", "invert", {}),
                                                              ("tf32", "store", {"STANDIN_NO_CUDNN": 1}))):
                self.assertIsNone(differs_in_gradients(seed, *at, memory=memory, STANDIN_PRECISION=precision, **more), (seed, more))
            status, _, said = call(STANDIN, "plan", at[0], "--loss", "mse", "--device", "cuda", "--precision", "tf32", "--dump-passes",
                                   folder)
            self.assertEqual(status, 0, said)
            file = next(f for f in os.listdir(folder) if f.endswith("-layout.txt"))
            with open(os.path.join(folder, file), encoding="utf-8") as f:
                self.assertGreater(f.read().count("channels_last"), 10)

    def test_couplings_in_every_precision(self):
        """Whose convolutions, recomputed to invert them, and gradients are cuDNN's, in the type of arithmetic that was asked for."""
        rng = np.random.default_rng(5)
        x, v, w = (0.1 * rng.standard_normal(s).astype(np.float32) for s in ((2, 64, 8, 8), (32, 32, 3, 3), (32, 32, 3, 3)))
        nodes = [helper.make_node("Split", ["x"], ["a", "b"], axis=1, num_outputs=2)]
        for w_name, kept, changed, out in (("v", "b", "a", "c"), ("w", "c", "b", "d")):
            nodes += [helper.make_node("Conv", [kept, w_name], [f"f{out}"], pads=[1, 1, 1, 1]),
                      helper.make_node("Tanh", [f"f{out}"], [f"t{out}"]), helper.make_node("Add", [changed, f"t{out}"], [out])]
        nodes.append(helper.make_node("Concat", ["c", "d"], ["y"], axis=1))
        graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, x.shape)],
                                  [numpy_helper.from_array(v, "v"), numpy_helper.from_array(w, "w")])
        with tempfile.TemporaryDirectory() as folder:
            at = [os.path.join(folder, name) for name in ("m.onnx", "x.npy", "y.npy")]
            onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), at[0])
            np.save(at[1], x)
            np.save(at[2], np.roll(x, 1))
            for precision in ("full", "tf32", "bf16"):
                self.assertIsNone(differs_in_gradients(2, *at, memory="invert", STANDIN_PRECISION=precision), precision)

    def test_recorded_nodes(self):
        """A step is one graph, whose updates of all parameters are one node, and so are averages."""
        _, report, _ = call(STANDIN, *TALL, *STEPS)
        self.assertGreater(report["recorded_nodes"], 0)
        nodes = []
        for more in (["sgd"], ["adam"], ["sgd", "--average", "ema:0.9"], ["adamw8"]):
            args = [*LENET, "--memory", "store", "--steps", "3", "--device", "cuda", "--optimizer", *more]
            nodes.append(call(STANDIN, *args)[1]["recorded_nodes"])
            self.assertIsNone(differs(STANDIN, 1, *args))
        # adamw8 has two kinds of parameters: large ones, and others, which are adamw's
        self.assertEqual(nodes, [nodes[0], nodes[0], nodes[0] + 1, nodes[0] + 1])
        _, report, _ = call(STANDIN, *TALL, *STEPS, CUDA_LAUNCH_BLOCKING=1)
        self.assertEqual(report["recorded_nodes"], 0)

    def test_refused_steps(self):
        """A guard refuses, and the update that is queued behind it does nothing."""
        self.assertGreater(call(STANDIN, *REFUSED)[1]["fallbacks"], 0)
        for seed in range(1, 4):
            self.assertIsNone(differs(STANDIN, seed, *REFUSED))

    def test_gradients_that_are_not_finite(self):
        """The node is looked for one by one, as on the CPU, also when the steps before were replayed."""
        rng = np.random.default_rng(6)
        w = [(0.3 * rng.random((16, 16))).astype(np.float32) for _ in range(4)]
        nodes = [helper.make_node("MatMul", ["x", "w0"], ["h0"]), helper.make_node("Sqrt", ["h0"], ["t0"])]
        for i in range(1, 4):
            nodes += [helper.make_node("MatMul", [f"t{i - 1}", f"w{i}"], [f"h{i}"]), helper.make_node("Tanh", [f"h{i}"], [f"t{i}"])]
        ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 16])] for name in ("x", "t3")]
        graph = helper.make_graph(nodes, "g", *ends, [numpy_helper.from_array(v, f"w{i}") for i, v in enumerate(w)])
        with tempfile.TemporaryDirectory() as folder:
            at = [os.path.join(folder, name) for name in ("m.onnx", "x.npy", "y.npy", "out.onnx")]
            onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8), at[0])
            np.save(at[2], rng.standard_normal((24, 16)).astype(np.float32))
            args = ["train", at[0], "--data", at[1], "--target", at[2], "--loss", "mse", "--batch", "8", "--no-shuffle", "-o", at[3]]
            for step in range(3):  # node by node, recorded, replayed
                x = rng.random((24, 16)).astype(np.float32)
                x[8 * step] = 0
                np.save(at[1], x)
                said = [call(STANDIN, *args, "--device", device, STANDIN_SEED=step) for device in ("cpu", "cuda")]
                self.assertEqual([s[0] for s in said], [1, 1], said)
                host, there = ([line for line in s[2].splitlines() if "not finite" in line] for s in said)
                self.assertRegex("".join(host), "gradients are not; .*first output that is not finite")
                self.assertEqual(host, there)

    def test_the_next_batch_is_sent_ahead(self):
        """Where a budget has no room for that, all numbers are the same and the plan is smaller by its bytes."""
        for args in (LENET, TALL):
            for more in ((), ("--accumulate", 2), ("--data-threads", 2), ("--data-threads", 0), ("--no-shuffle", "--drop-last")):
                args_of = [*args, *STEPS, "--memory", "store", *more]
                status, ahead, said = call(STANDIN, *args_of, STANDIN_SEED=3)
                self.assertEqual(status, 0, said)
                planned, landing = ahead["planned_peak_bytes"], ahead["classes"]["next_batch"]
                self.assertGreater(landing, 0)
                self.assertEqual(planned, ahead["peak_bytes"])
                status, none, said = call(STANDIN, *args_of, "--budget", planned - 1, STANDIN_SEED=3)
                self.assertEqual(status, 0, said)
                self.assertEqual((none["classes"]["next_batch"], none["planned_peak_bytes"]), (0, planned - landing))
                self.assertEqual(numbers(none), numbers(ahead))

    def test_profile(self):
        """Every node has its time, of the stand-in's clock, and the numbers are those without."""
        for args in (LENET, TALL):
            _, plain, _ = call(STANDIN, *args, *STEPS)
            status, report, said = call(STANDIN, *args, *STEPS, "--profile")
            self.assertEqual(status, 0, said)
            self.assertEqual(numbers(report), numbers(plain))
            seconds = [t["seconds"] for t in report["timeline"] if "seconds" in t]
            self.assertEqual(len(seconds), sum(t["op"] not in ("Feed", "Offload", "Fetch") for t in report["timeline"]))
            self.assertTrue(all(s >= 1e-3 for s in seconds), seconds)

    def test_links(self):
        status, _, said = call(os.path.join(BUILD, "tests", "cuda_program"), *TALL, *STEPS)
        if status:
            self.assertRegex(said, "driver|GPU")


class Failures(unittest.TestCase):
    """Every failure has a message and an exit status, and nothing is written."""

    def fails(self, args, pattern, **environment):
        status, _, said = call(STANDIN, *args, **environment)
        self.assertEqual(status, 1, f"{environment}: {said}")
        self.assertRegex(said, pattern)
        self.assertFalse(os.path.exists(args[args.index("-o") + 1]))

    def setUp(self):
        if os.path.exists(os.path.join(DATA.folder.name, "out.onnx")):
            os.remove(os.path.join(DATA.folder.name, "out.onnx"))

    def test_out_of_memory(self):
        self.fails([*LENET, *STEPS], "out of device memory", STANDIN_MEMORY=20000)

    def test_a_device_that_fails_for_good(self):
        status, _, said = call(STANDIN, *LENET, *STEPS, STANDIN_CALLS=1)
        self.assertEqual(status, 0, said)
        os.remove(os.path.join(DATA.folder.name, "out.onnx"))
        calls = int(re.search(r"(\d+) calls", said).group(1))
        for n in (1, 2, 7, 30, *(calls * k // 8 for k in range(1, 7))):
            self.fails([*LENET, *STEPS], "invonnx: .*(device|cuBLASLt|cuDNN|memory|cuda)", STANDIN_FAIL=n)

    def test_no_library_of_products(self):
        self.fails([*TALL, *STEPS], "libcublasLt.so.*LD_LIBRARY_PATH", STANDIN_NO_CUBLASLT=1)

    def test_a_function_that_fails(self):
        for name in ("cudaMalloc:1", "cudaMalloc:2", "cudaHostAlloc:1", "cudaStreamCreateWithFlags:2", "cudaEventRecord:3",
                     "cudaStreamBeginCapture:1", "cudaGraphInstantiate:1", "cudaGraphLaunch:2", "cublasLtCreate:1"):
            self.fails([*LENET, *STEPS], "invonnx: ", STANDIN_FAIL=name)

    def test_the_first_message_of_a_recording_stays(self):
        for n in range(1, 6):  # of the first step, which is not recorded, and of the second
            self.fails([*TALL, *STEPS], "cuBLASLt", STANDIN_FAIL=f"cublasLtMatmul:{n}")


# A name, the source, what stands there, what is put in its place, and the training that shows it.
PLANTED = (
    ("no waiting for copies", "executor/device/cuda.c", "cudaStreamWaitEvent(d->stream[queue], e, 0)", "cudaSuccess", LENET),
    ("pageable staging memory", "executor/device/cuda.c", "cudaHostAlloc(out, nbytes ? nbytes : 1, cudaHostAllocDefault)",
     "(*out = malloc(nbytes + 1)) ? cudaSuccess : cudaErrorUnknown", LENET),
    ("the legacy stream", "executor/device/cuda.c", "d->gpu.stream = d->stream[INV_QUEUE_COMPUTE]", "d->gpu.stream = NULL", TALL),
    ("results read too early", "executor/device/cuda.c", "INV_TRY(waited(d, cudaStreamSynchronize(d->stream[q])));",
     "INV_TRY(q == 0 ? INV_OK : waited(d, cudaStreamSynchronize(d->stream[q])));", TALL),
    ("control bytes in memory of the host", "executor/device/cuda.c", "inv_gpu_bind(&d->gpu, control)",
     "static unsigned char host[4096]; (void)control; inv_gpu_bind(&d->gpu, host)", TALL),
    ("events of the wrong stream", "executor/device/cuda.c", "cudaEventRecord(e, d->stream[queue])",
     "cudaEventRecord(e, d->stream[INV_QUEUE_COMPUTE])", LENET),
    ("a graph that is not given back", "executor/device/cuda.c", "(void)cudaGraphExecDestroy((cudaGraphExec_t)graph);",
     "(void)graph;", TALL),
    ("a wrong transposition", "executor/device/cuda_lt.c", "first = g->tb ? CUBLAS_OP_T : CUBLAS_OP_N",
     "first = g->ta ? CUBLAS_OP_T : CUBLAS_OP_N", TALL),
    ("operands that are swapped", "executor/device/cuda_lt.c", "g->b, &p.b, g->a, &p.a,", "g->a, &p.a, g->b, &p.b,", TALL),
    ("TF32 in products", "executor/device/cuda_lt.c", "[INV_PRECISION_FULL] = CUBLAS_COMPUTE_32F,",
     "[INV_PRECISION_FULL] = CUBLAS_COMPUTE_32F_FAST_TF32,", TALL),
    ("a gradient of a weight that nobody waits for", "executor/run/transfer.c", "r->ntransfer + r->nbeside; i++)", "r->ntransfer; i++)",
     NICE),
    ("convolutions in the stream of another node", "executor/device/cuda_dnn.c",
     "s = d->cudnnSetStream(d->handle, (cudaStream_t)gpu->stream);", "s = CUDNN_STATUS_SUCCESS;", LENET),
    ("bytes that are taken from a gradient of a weight", "executor/run/transfer.c", "writes(f, k, buffer_of(f->g, n->in[j]))",
     "false", STORED),
    ("a sum with what was there", "executor/device/cuda_lt.c", "inv_factors_of(g->onto,", "inv_factors_of(INV_ADDED_TO,", TALL),
    ("tensor cores in convolutions", "executor/device/cuda_dnn.c", "less ? perf[i].mathType : CUDNN_FMA_MATH, 0}",
     "CUDNN_DEFAULT_MATH, 0}", LENET),
    ("more scratch memory than there is", "executor/device/cuda_dnn.c", "to->ws <= ws_nbytes)", "to->ws <= ws_nbytes + (1 << 30))", LENET),
    ("recording what has not run", "executor/run/queue.c", "!r->warm || s->program->options.profile", "false", TALL),
    ("results that are taken as they are", "executor/run/queue.c",
     "memcmp(s->pinned + word_at(s, what), not_yet, sizeof not_yet) == 0", "false", TALL),
    ("a batch that nobody waits for", "executor/run/ahead.c", "s->device->wait(s->self, INV_QUEUE_COMPUTE, LANDED)", "INV_OK",
     LENET),
    ("a batch that is sent over the one before", "executor/run/ahead.c", "INV_TRY(inv_queues_hear(s, INV_TOLD_FED));", "", LENET),
    ("an update that is not told of a refusal", "ops/train/optim.cu",
     "if (s->refused || (bad && *bad > 0)) return; /* all", "if (bad && *bad > 0) return; /* all", REFUSED),
    ("a reduction without a barrier", "ops/gpu/device.cuh",
     "part[threadIdx.x / 32] = v;\n    __syncthreads();\n    T sum = 0;", "part[threadIdx.x / 32] = v;\n    T sum = 0;",
     LENET),
)


# Of images that have their channels last: name, source, what stands there, what is put in its place.
PLANTED_LAST = (
    ("a filter in the model's order", "ops/conv/conv_gpu.c", "turned && !grad ? j->ws : j->second", "j->second"),
    ("its gradient in the library's", "ops/conv/conv_gpu.c", "outs, kvol, c->cg, j->ws, onto", "outs, c->cg, kvol, j->ws, onto"),
    ("a filter's descriptor of the other order", "executor/device/cuda_dnn.c", "c->last ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW",
     "CUDNN_TENSOR_NCHW"),
    ("tensors that are described in the other order", "executor/device/cuda_dnn.c", "!last || k == 0 ? k", "true ? k"),
)


def compile_command(source):
    """By which this build makes the object of a source, of a CUDA build if there is one."""
    with open(os.path.join(BUILD, "compile_commands.json"), encoding="utf-8") as f:
        rows = [r for r in json.load(f) if r["file"].endswith(source)]
    rows.sort(key=lambda r: "invonnx_cuda_objects" not in r["command"])
    return [a for a in shlex.split(rows[0]["command"]) if not a.endswith("ccache")]


class Planted(unittest.TestCase):
    """Each defect is found on one of a few seeds, and without it nothing is."""

    def link(self, folder, objects):
        ninja = subprocess.run(["ninja", "-C", BUILD, "-t", "commands", "-s", "tests/standin_program"],
                               capture_output=True, text=True, check=True).stdout
        line = next(x for x in ninja.splitlines() if "-o tests/standin_program " in x)
        # The first of several definitions is the one that counts.
        compiler, rest = line.split("&&")[1].strip().split(" ", 1)
        rest = rest.replace("-o tests/standin_program ", f"-o {folder}/program ")
        line = f"{compiler} -z muldefs {' '.join(objects)} {rest}"
        subprocess.run(line, shell=True, check=True, cwd=BUILD, capture_output=True)
        return os.path.join(folder, "program")

    def plant(self, folder, source, old, new):
        with open(os.path.join(ROOT, source), encoding="utf-8") as f:
            text = f.read()
        self.assertEqual(text.count(old), 1, f"{source} has not just one: {old}")
        copy = os.path.join(folder, source)
        os.makedirs(os.path.dirname(copy))
        with open(copy, "w", encoding="utf-8") as f:
            f.write(text.replace(old, new))
        # A header's defect is in the kernels of one source.
        kernels = source if source.endswith(".cu") else "ops/train/loss.cu"
        of = source if source.endswith(".c") else f"emulated/{kernels}.cpp"
        command = compile_command(of)
        at = command.index("-c")
        given = copy if of == source else command[at + 1]
        out = os.path.join(folder, "planted.o")
        command = [command[0], f"-I{folder}", *command[1:command.index("-o")], "-o", out, "-Wno-error", "-c", given]
        done = subprocess.run(command, capture_output=True, text=True, cwd=BUILD)
        self.assertEqual(done.returncode, 0, done.stderr)
        return self.link(folder, [out])

    def find(self, name, source, old, new, differs_on):
        with self.subTest(name), tempfile.TemporaryDirectory() as folder:
            program = self.plant(folder, source, old, new)
            found = next(filter(None, (differs_on(program, seed, folder) for seed in range(1, 6))), None)
            self.assertIsNotNone(found, f"nobody noticed: {name}")
            print(f"{name}: {found[:150]}", file=sys.stderr)

    def test_each_is_found(self):
        for *defect, args in PLANTED:
            more = () if args is REFUSED else STEPS
            self.find(*defect, lambda program, seed, folder: differs(program, seed, *args, *more))
        for defect in PLANTED_LAST:
            self.find(*defect, lambda program, seed, folder: differs_in_gradients(seed, *turned_network(folder), program=program,
                                                                                  STANDIN_PRECISION="tf32"))


MPIRUN = ["mpirun", "--quiet", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "btl", "self,vader",
          "--mca", "btl_vader_single_copy_mechanism", "none"]


def no_ranks():
    """Why there are none here; None: there are."""
    if not shutil.which("mpirun"):
        return "there is no mpirun (Debian: openmpi-bin)"
    done = subprocess.run([*MPIRUN, "-n", "2", STANDIN, "train", os.devnull], capture_output=True, text=True)
    return "this build has no MPI" if "has no MPI" in done.stderr else None


# Of a model with a normalization: name, source, what stands there, what is put in its place.
PLANTED_RANKS = (
    ("sending before it is computed", "executor/device/cuda_nccl.c", "cudaStreamWaitEvent(d->stream, d->ready, 0)", "cudaSuccess"),
    ("using before it is there", "executor/device/cuda_nccl.c", "cudaStreamWaitEvent(gpu->stream, d->done[d->first], 0)",
     "cudaSuccess"),
    ("a chunk at the wrong place", "executor/device/cuda_nccl.c", "(size_t)d->base.rank * r->chunk_nbytes",
     "(size_t)(d->base.size - 1 - d->base.rank) * r->chunk_nbytes"),
)


class Ranks(Planted):
    """Two ranks, a device each, by the stand-in's NCCL: the bits of one with two micro-batches."""

    def setUp(self):
        why = no_ranks()
        if why:
            self.skipTest(why)

    def train(self, ranks, program, *more, **environment):
        """(exit status, stderr, bits of the weights)"""
        out = DATA.revnet()[-1]
        if os.path.exists(out):
            os.remove(out)
        words = [*DATA.revnet(), "--steps", "3", "--optimizer", "adam", "--device", "cuda", "--memory", "store",
                 "--deterministic", "--no-shuffle", "--threads", "1", "-q", *more]
        words += ["--rank-timeout", "30"] if ranks > 1 else []
        words[words.index("--batch") + 1] = "2"
        env = dict(os.environ, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", **{k: str(v) for k, v in environment.items()})
        start = [*MPIRUN, "-n", str(ranks)] if ranks > 1 else []
        done = subprocess.run([*start, program, *words], capture_output=True, env=env, timeout=300)
        weights = None
        if os.path.exists(out):
            weights = {i.name: numpy_helper.to_array(i) for i in onnx.load(out).graph.initializer}
        return done.returncode, done.stderr.decode(), weights

    def same(self, program, seed):
        status, said, several = self.train(2, program, STANDIN_SEED=seed)
        if status:
            return f"exit {status}: {said.strip()}"
        one = self.train(1, STANDIN, "--accumulate", "2", STANDIN_SEED=seed)[2]
        return next((n for n in one if one[n].tobytes() != several[n].tobytes()), None)

    def test_each_is_found(self):
        for seed in (1, 2):
            self.assertIsNone(self.same(STANDIN, seed))
        for name, source, old, new in PLANTED_RANKS:
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                program = self.plant(folder, source, old, new)
                found = next(filter(None, (self.same(program, seed) for seed in range(1, 6))), None)
                self.assertIsNotNone(found, f"nobody noticed: {name}")
                print(f"{name}: {found[:150]}", file=sys.stderr)

    def test_sync_bn(self):
        """One with the whole batch, within rounding."""
        status, said, several = self.train(2, STANDIN, "--sync-bn", STANDIN_SEED=3)
        self.assertEqual(status, 0, said)
        one = self.train(1, STANDIN, "--batch", "4", STANDIN_SEED=3)[2]
        for name, values in one.items():
            if values.dtype.kind == "f":
                np.testing.assert_allclose(values, several[name], rtol=1e-3, atol=1e-4, err_msg=name)

    def test_failures(self):
        """One message, beside where the weights are; the model is not written."""
        for environment, pattern in (({"STANDIN_NO_NCCL": 1}, "libnccl.so.2.*LD_LIBRARY_PATH"),
                                     ({"STANDIN_FAIL": "ncclCommInitRank:1"}, "NCCL"),
                                     ({"STANDIN_FAIL": "ncclAllGather:2"}, "NCCL"),
                                     ({"STANDIN_FAIL": "ncclGroupEnd:2"}, "NCCL")):
            status, said, weights = self.train(2, STANDIN, "--rank-timeout", "20", **environment)
            self.assertNotEqual(status, 0)
            told = [x for x in said.splitlines() if x.startswith("invonnx: ") and "trained weights" not in x]
            self.assertEqual(len(told), 1, said)
            self.assertRegex(said, pattern)
            self.assertIsNone(weights)


if __name__ == "__main__":
    unittest.main()
