# SPDX-License-Identifier: Apache-2.0
"""Exports an untrained GPT over bytes from PyTorch to ONNX: this is where gpt_bytes.onnx comes from. Needs torch and
onnx.

    python3 examples/export_gpt.py                           examples/gpt_bytes.onnx

Radford et al. 2019, Language Models are Unsupervised Multitask Learners (GPT-2): learned positions, normalisation
before attention and before the MLP, and the embedding once more as the last layer. Input: tokens, int64 [N, T] with T
up to 128. Output: logits, float32 [N, T, 256], of the byte that follows each."""
import argparse
import os

import torch
import torch.nn.functional as F
from torch import nn

HERE = os.path.dirname(os.path.abspath(__file__))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, width = x.shape
        q, k, v = (y.view(n, t, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    def __init__(self, vocabulary, context, width, heads, layers):
        super().__init__()
        self.embedding, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for name, p in self.named_parameters():
            if p.ndim == 2:  # as GPT-2 has it: what is added to the stream is smaller the more layers there are
                nn.init.normal_(p, std=0.02 / (2 * layers) ** 0.5 if "out." in name or "down." in name else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.embedding.weight.t()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", default=os.path.join(HERE, "gpt_bytes.onnx"))
    for name, default in (("vocabulary", 256), ("context", 128), ("width", 64), ("heads", 4), ("layers", 4)):
        parser.add_argument("--" + name, type=int, default=default)
    args = vars(parser.parse_args())
    path = args.pop("out")
    torch.manual_seed(1)
    # Without folding of constants the embedding stays one tensor, and biases that are zero stay apart.
    torch.onnx.export(
        GPT(**args).train(), (torch.zeros(2, args["context"], dtype=torch.int64),), path, dynamo=False, opset_version=17,
        training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False, input_names=["tokens"],
        output_names=["logits"], dynamic_axes={"tokens": {0: "N", 1: "T"}, "logits": {0: "N", 1: "T"}})
    print(f"{path}: {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()
