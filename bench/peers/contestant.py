# SPDX-License-Identifier: Apache-2.0
"""The contestants of bench/compare.py: each a process that makes a training step when it is asked to.

All speak as the harness's worker does: a line of JSON when warm, then one per order, `mem` or `time`."""
import json
import os
import select
import subprocess
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
OWN = "invonnx "


class Failed(Exception):
    """With the last words of a contestant."""


def environment(threads):
    """Malloc that gives freed blocks back at once; waiting threads that take no CPU time; OpenBLAS's kernels for
    AVX-512 on any processor that has it, as the program (but not bench_step) asks for."""
    with open("/proc/cpuinfo") as f:
        wide = {"OPENBLAS_CORETYPE": "SkylakeX"} if "avx512f" in f.read() else {}
    return dict({**wide, **os.environ}, OMP_NUM_THREADS=str(threads), OMP_WAIT_POLICY="passive",
                PYTHONDONTWRITEBYTECODE="1", MALLOC_MMAP_THRESHOLD_="65536", MALLOC_TRIM_THRESHOLD_="0",
                TORCHINDUCTOR_COMPILE_THREADS=str(threads))


class Process:
    def __init__(self, command, env, timeout):
        self.timeout = timeout
        self.log = tempfile.TemporaryFile("w+")
        self.child = subprocess.Popen(list(map(str, command)), env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=self.log, text=True, bufsize=1)

    def answer(self):
        """The next line of JSON."""
        while select.select([self.child.stdout], [], [], self.timeout)[0]:
            line = self.child.stdout.readline()
            if not line:
                self.child.wait()
                self.log.seek(0)
                said = [x.strip() for x in self.log.read().splitlines() if x.strip() and "Warning" not in x]
                raise Failed(" ".join(said[-2:])[-300:] or f"exit status {self.child.returncode}")
            if line.startswith("{"):
                return json.loads(line)
        raise Failed(f"no answer in {self.timeout} s")

    def ask(self, order):
        try:
            self.child.stdin.write(order + "\n")
        except OSError:
            pass  # it has ended: the answer says why
        return self.answer()

    def stop(self):
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        self.log.close()


class Peer:
    """One of the harness's. `held`: memory that it holds on to from the first step on, where there is such a thing. In
    all it takes its parameters and as many bytes of gradients besides."""

    def __init__(self, case, name):
        self.case = case
        command = case.harness(name)
        if name.startswith("ort"):
            command = [case.args.ort_python, os.path.join(case.args.peers, "ort_worker.py"),
                       "--onnx", case.path("ort.onnx"), "--ref", case.path("ref.npz")]
            command += ["--arena"] if name == "ort_arena" else []
        self.process = Process(command, case.env, case.args.timeout)
        try:
            self.info = self.process.answer()
        except Failed:
            self.process.stop()
            raise
        self.held = self.info.get("growth", 0) if name == "ort_arena" else 0

    def mem(self):
        got = self.process.ask("mem")
        step = got["bytes"] + self.held
        return {"bytes": step, "in_all": step + 2 * self.case.initializer_bytes, "s_trim": got["s_trim"]}

    def time(self):
        return self.process.ask("time")

    def stop(self):
        self.process.stop()


class Own:
    """This program. Its arena lies ready before the first step, so bench_step gives the pages of a step's part back and
    counts those that come again, gradients among them. What is taken off for the gradients is what they add to the
    plan's peak, never more than their size: so the figure is that of a plan with the gradients in memory of their own,
    as the others have them, plus all that was seen beyond the plan. Constants made by compiling count, too."""

    def __init__(self, case, name):
        self.memory = name.removeprefix(OWN)
        self.case = case
        command = [case.args.step, case.path("model.onnx"), "input=" + case.told["input"],
                   *(f"{k}={v}" for k, v in case.told["told"].items()), f"memory={self.memory}",
                   f"threads={case.args.threads}", "cost=time"]
        command += ["target=" + case.told["target"]] if case.told["target"] else []
        self.process = Process(command, case.env, case.args.timeout)
        try:
            self.info = self.process.answer()
            self.info["error"] = self.error()
        except (Failed, OSError):
            self.process.stop()
            raise

    def command(self, verb, *more):
        told = self.case.told["told"]
        names = {"loss": "--loss", "axis": "--class-axis", "output": "--loss-output", "logdet": "--logdet"}
        return [self.case.args.invonnx, verb, self.case.path("model.onnx"), "--feed", "x=" + self.case.path("x.npy"),
                *(["--target", self.case.path("target.npy")] if self.case.told["target"] else []),
                *(str(w) for k, v in told.items() for w in (names[k], v)), "--memory", self.memory,
                "--threads", str(self.case.args.threads), *more]

    def error(self):
        """Of its gradients, by the program: the session that steps keeps none."""
        with tempfile.TemporaryDirectory() as folder:
            output_of(self.command("grad", "--dump", folder), self.case.env, self.case.args.timeout)
            text = output_of([self.case.args.python, os.path.join(HERE, "error.py"), self.case.path("ref.npz"), folder,
                              self.case.told["first"]], self.case.env, self.case.args.timeout)
        return json.loads(text)

    def mem(self):
        report = self.process.ask("report")
        held = report["classes"]["parameters"] + report["classes"]["optimizer"]
        got = self.process.ask(f"mem {report['planned_peak_bytes'] - held}")
        if got["fallbacks"]:
            raise Failed("planned again in the middle of a measurement")
        load = max(t["live_bytes"] for t in report["timeline"])
        peak = max(report["timeline"], key=lambda t: t["live_bytes"] - t["gradient_bytes"])
        apart = peak["live_bytes"] - peak["gradient_bytes"]
        made = max(0, held - self.case.initializer_bytes)
        self.info["predicted"] = report["predicted_seconds"]
        self.info["plan"] = {"peak": peak, "alive": [v["bytes"] for v in report["alive_at_activation_peak"]],
                             "values": report["values"], "refused": report["fallbacks"],
                             "arithmetic": report["flops"] / report["store_flops"]}
        beyond = max(0, got["growth"] - load)
        return {"bytes": apart + beyond + made, "in_all": report["planned_peak_bytes"] + beyond,
                "s_trim": got["s_trim"], "growth": got["growth"],
                "load_bytes": load, "planned_bytes": apart, "made_bytes": made, "drift": got["drift"]}

    def time(self):
        return self.process.ask("time")

    def stop(self):
        self.process.stop()


def output_of(command, env, timeout):
    try:
        done = subprocess.run(list(map(str, command)), env=env, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired as e:
        raise Failed(f"no answer in {timeout} s: {command[0]}") from e
    if done.returncode:
        raise Failed(" ".join((done.stderr.strip().splitlines() or ["no message"])[-2:])[-300:])
    return done.stdout


class Case:
    """A workload at a depth: its files, made in a folder by the harness and by export.py."""

    def __init__(self, args, workload, depth, folder, names):
        self.args, self.workload, self.depth, self.folder = args, workload, depth, folder
        self.env = environment(args.threads)
        run = lambda command: output_of(command, self.env, 4 * args.timeout)  # float64 takes its time
        run(self.harness("ref"))
        if any(n.startswith("ort") for n in names):
            run(self.harness("export"))
        run([args.python, os.path.join(HERE, "export.py"), "--peers", args.peers, "--workload", workload,
             "--depth", depth, "--out", folder, *self.options()])
        with open(self.path("case.json")) as f:
            self.told = json.load(f)
        model = json.loads(run([args.invonnx, "inspect", self.path("model.onnx"), "--json"]))
        self.initializer_bytes = sum((i["bytes"] + 63) // 64 * 64 for i in model["initializers"])

    def path(self, name):
        return os.path.join(self.folder, name)

    def options(self):
        """The harness's own advice: the flow blows up in any implementation with the plain initialisation."""
        return ["--gain", "0.3"] if self.workload == "W4" else []

    def harness(self, contestant):
        return [self.args.python, os.path.join(self.args.peers, "worker.py"), "--workload", self.workload,
                "--depth", self.depth, "--contestant", contestant, "--ref", self.path("ref.npz"),
                "--onnx", self.path("ort.onnx"), *self.options()]

    def start(self, name):
        return (Own if name.startswith(OWN) else Peer)(self, name)


def machine_busy():
    """CPU seconds of all programs since the start of the machine."""
    with open("/proc/stat") as f:
        v = list(map(int, f.readline().split()[1:9]))
    return (sum(v) - v[3] - v[4]) / os.sysconf("SC_CLK_TCK")


def quiet_time(contestant, args):
    """A timed measurement, made again while other programs take CPU time from it; the least disturbed one."""
    best = None
    for _ in range(args.retries):
        for _ in range(20):  # up to 2 s for an idle machine
            before = machine_busy()
            time.sleep(0.1)
            if machine_busy() - before < 0.03:
                break
        got = contestant.time()
        if best is None or got["others"] < best["others"]:
            best = got
        if best["others"] < 0.1:
            break
    return best
