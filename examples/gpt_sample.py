# SPDX-License-Identifier: Apache-2.0
"""Text written by a GPT over bytes (examples/export_gpt.py), in onnxruntime. Needs numpy and onnxruntime.

    python3 examples/gpt_sample.py MODEL [--prompt TEXT] [--bytes N] [--temperature X] [--seed N]"""
import argparse

import numpy as np
import onnxruntime


def write(model, prompt, n, temperature, seed, context):
    """`prompt` and `n` bytes behind it, each drawn from what the model expects after the last `context` ones."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    name, random, text = session.get_inputs()[0].name, np.random.default_rng(seed), list(prompt)
    for _ in range(n):
        logits, = session.run(None, {name: np.array([text[-context:]], dtype=np.int64)})
        p = np.exp((logits[0, -1] - logits[0, -1].max()).astype(np.float64) / temperature)
        text.append(int(random.choice(256, p=p / p.sum())))
    return bytes(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prompt", default="\n")
    parser.add_argument("--bytes", type=int, default=400)
    parser.add_argument("--temperature", type=float, default=0.7, help="below 1: likely bytes more often")
    parser.add_argument("--context", type=int, default=128, help="the model has positions for so many bytes")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not args.prompt: parser.error("--prompt wants a byte at least")
    print(write(args.model, args.prompt.encode(), args.bytes, args.temperature, args.seed, args.context).decode("utf-8", "replace"))


if __name__ == "__main__":
    main()
