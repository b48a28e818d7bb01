# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/flows.md, to the letter but for fewer steps: the loss of the flow falls, samples drawn through
its inverse lie where the data do, they come back through the flow, and the picture is drawn."""
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime

import common

STEPS = 1200


def commands():
    with open(os.path.join(common.ROOT, "docs", "flows.md"), encoding="utf-8") as f:
        block = re.search(r"\n((?:    .*\n)+)", f.read()).group(1)
    return [shlex.split(line) for line in block.replace("\\\n", " ").splitlines()]


def run(words, folder):
    words = [common.PROGRAM if w == "invonnx" else sys.executable if w == "python3" else w for w in words]
    words = [os.path.join(common.ROOT, w) if w.startswith("examples/") else w for w in words]
    if "--steps" in words: words[words.index("--steps") + 1] = str(STEPS)
    done = subprocess.run(words + (["--json"] if words[0] == common.PROGRAM else []), cwd=folder, capture_output=True,
                          text=True)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done


def session(path):
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def main():
    train, rewrite, sample = commands()
    data = np.load(os.path.join(common.EXAMPLES, "data", "moons.npy"))
    with tempfile.TemporaryDirectory() as folder:
        report = json.loads(run(train, folder).stdout)
        inverse = json.loads(run(rewrite, folder).stdout)["inverse_direction"]
        assert inverse["inputs"] == ["z"] and inverse["outputs"] == ["x", "logdet_inverse"], inverse
        run(sample, folder)
        with open(os.path.join(folder, "moons.svg"), encoding="utf-8") as f:
            assert f.read().count("M") > 900, "points are missing from the picture"
        losses = []
        for model in os.path.join(common.EXAMPLES, "realnvp_moons.onnx"), os.path.join(folder, "moons.onnx"):
            z, logdet = session(model).run(["z", "logdet"], {"x": data})
            losses.append(float(np.mean((z ** 2).sum(1) / 2 + np.log(2 * np.pi) - logdet)))
        assert np.isfinite(report["loss"]) and losses[1] < losses[0] - 1, losses
        z = np.random.default_rng(0).standard_normal((1000, 2)).astype(np.float32)
        x, back = session(os.path.join(folder, "moons_inverse.onnx")).run(["x", "logdet_inverse"], {"z": z})
        again, there = session(os.path.join(folder, "moons.onnx")).run(["z", "logdet"], {"x": x})
        assert np.abs(again - z).max() < 1e-3 and np.abs(there + back).max() < 1e-3
        share, of_noise = (np.mean(((p[:, None] - data[None]) ** 2).sum(2).min(1) < 0.1 ** 2) for p in (x, z))
        assert share > of_noise + 0.2, (share, of_noise)
        print(f"nll {losses[0]:.2f} -> {losses[1]:.2f} in {STEPS} steps; {share:.0%} of the samples near data")


if __name__ == "__main__":
    main()
