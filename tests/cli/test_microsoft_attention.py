# SPDX-License-Identifier: Apache-2.0
"""onnxruntime's attentions (domain com.microsoft): outputs as onnxruntime's in each form of masks, biases, heads and
past; what is for generating alone is refused by name."""
import unittest

import numpy as np
from microsoft import Case, Held, Nodes, by_onnxruntime

B, S, H, D = 2, 5, 4, 16


def ints(*rows):
    return np.array(rows, np.int32)


def caches(rows=16, half=D // 2):
    angle = np.outer(np.arange(rows), 10.0 ** -(np.arange(half) / half)).astype(np.float32)
    return np.cos(angle), np.sin(angle)


class Attention(Case):
    def test_attention(self):
        n, x = Nodes(), self.normal
        raw = ints([1, 1, 1, 0, 0], [1, 0, 1, 1, 1])
        rows = self.rng.integers(0, 2, (B, S, S)).astype(np.int32)
        rows[:, :, 0] = 1

        def add(mask=None, past=None, bias=None, outputs=1, w=None, **more):
            w = x(8, 24) if w is None else w
            n.add("Attention", [x(B, S, 8), w, x(w.shape[1]), mask, past, bias], outputs, num_heads=2, **more)

        add()
        add(unidirectional=1, scale=0.3)
        add(raw)
        add(raw, unidirectional=1, mask_filter_value=-5.0)
        add(rows, unidirectional=1)
        add(ints(3, 5).reshape(2))
        add(ints(4, 5, 0, 2).reshape(4))
        add(bias=x(1, 2, S, S))
        add(raw, bias=x(B, 1, S, S), outputs=2)
        add(past=x(2, B, 2, 3, 4), outputs=2, unidirectional=1)
        add(ints([1] * 8, [0] + [1] * 7), past=x(2, B, 2, 3, 4), outputs=2)
        add(w=x(8, 28), qkv_hidden_sizes=[8, 8, 12])
        self.compare(n)

    def test_without_bias(self):
        """onnxruntime crashes without one, in 1.31: the same with zeros."""
        n, zeros = Nodes(), Nodes()
        n.add("Attention", [self.normal(B, S, 8), self.normal(8, 24), None], num_heads=2)
        zeros.add("Attention", [*n.feeds.values(), np.zeros(24, np.float32)], num_heads=2)
        self.compare(n, by_onnxruntime(zeros.model(), zeros.feeds))

    def test_multi_head(self):
        n, x = Nodes(), self.normal

        def add(q, k=None, v=None, bias=None, mask=None, score=None, past=(None, None), outputs=1, **more):
            n.add("MultiHeadAttention", [q, k, v, bias, mask, score, *past], outputs, num_heads=2, **more)

        three = [x(B, S, 8), x(B, 7, 8), x(B, 7, 12)]
        add(*three)
        add(*three, x(28), outputs=3)
        add(*three, mask=ints([1] * 7, [1, 0, 0, 1, 1, 1, 0]), mask_filter_value=-4.0)
        add(*three, mask=ints(7, 2).reshape(2))
        add(*three, mask=self.rng.integers(0, 2, (B, S, 7)).astype(np.int32), score=x(1, 1, S, 7), scale=0.5)
        add(x(B, S, 8), x(B, S, 8), x(B, S, 8), x(24), unidirectional=1)
        add(x(B, S, 8), x(B, S, 8), x(B, S, 8), past=(x(B, 2, 3, 4), x(B, 2, 3, 4)), outputs=3)
        add(x(B, S, 8), x(B, S, 8), x(B, S, 8), past=(x(B, 2, 3, 4), x(B, 2, 3, 4)), outputs=3, unidirectional=1,
            score=x(B, 2, S, 8))
        add(x(B, S, 8), x(B, 2, 7, 4), x(B, 2, 7, 4))
        self.compare(n)

    def test_packed(self):
        """onnxruntime has no kernel for these on the CPU: the same with tensors apart."""
        packed, apart, x = Nodes(), Nodes(), self.normal
        qkv, kv = x(B, S, 2, 3, 4), x(B, 7, 2, 2, 4)
        q = x(B, S, 8)
        packed.add("MultiHeadAttention", [qkv], num_heads=2)
        packed.add("MultiHeadAttention", [q, kv], num_heads=2)
        apart.add("MultiHeadAttention", [qkv[:, :, :, i].reshape(B, S, 8) for i in range(3)], num_heads=2)
        apart.add("MultiHeadAttention", [q, *(kv[:, :, :, i].reshape(B, 7, 8) for i in range(2))], num_heads=2)
        self.compare(packed, self.run_model(apart.model(), apart.feeds))

    def test_refused(self):
        x = self.normal
        basic = [x(B, S, 8), x(8, 24), x(24)]
        self.refused("do_rotary", "RotaryEmbedding as a node", op="Attention", operands=basic, num_heads=2, do_rotary=1)
        self.refused("past_present_share_buffer", op="Attention", operands=basic, num_heads=2,
                     past_present_share_buffer=1)
        self.refused("input 3", "other forms", op="Attention", num_heads=2,
                     operands=[*basic, np.ones((B, 1, 9, 9), np.int32)])
        self.refused("equal heads", op="Attention", operands=basic, num_heads=3)
        self.refused("output 3 (qk)", op="MultiHeadAttention", operands=[x(B, S, 8)] * 3, outputs=4, num_heads=2)
        self.refused("input 8 (past_sequence_length)", op="MultiHeadAttention", num_heads=2,
                     operands=[x(B, S, 8)] * 3 + [None] * 5 + [ints(0).reshape(1)])


class GroupQuery(Case):
    def setUp(self):
        super().setUp()
        x = self.normal
        self.operands = [x(B, S, H * D), x(B, S, 2 * D), x(B, S, 2 * D)]
        self.fixed = {"num_heads": H, "kv_num_heads": 2}

    def all_of(self, qkv=None, past=(None, None), lengths=(S - 1, S - 1), positions=None, bias=None, sink=None, norm=()):
        return [*(qkv or self.operands), *past, np.array(lengths, np.int32), np.array(S, np.int32),
                *map(Held, caches()), positions, bias, sink, None, None, *norm]

    def test_forms(self):
        n, x = Nodes(), self.normal
        nothing = np.zeros((B, 2, 0, D), np.float32)
        packed = [np.concatenate(self.operands, axis=2), None, None]

        def add(outputs=1, more=None, **operands):
            n.add("GroupQueryAttention", self.all_of(**operands), outputs, **self.fixed, **(more or {}))

        add()
        add(3, {"do_rotary": 1})
        add(3, {"do_rotary": 1, "rotary_interleaved": 1}, qkv=packed)
        add(3, {"do_rotary": 1}, past=(nothing, nothing))
        add(3, {"do_rotary": 1}, positions=np.array([[3, 4, 5, 6, 7], [0, 1, 2, 3, 4]], np.int64))
        for window in (1, 3):
            add(more={"local_window_size": window})
        add(more={"scale": 0.2, "softcap": 1.5})
        add(more={"causal": 0})
        add(more={"causal": 0}, lengths=(2, 4))
        add(bias=x(1, H, S, S))
        add(bias=x(B, 1, S, S), more={"local_window_size": 2, "do_rotary": 1})
        add(more={"smooth_softmax": 1})
        add(3, sink=x(H), more={"local_window_size": 2, "do_rotary": 1})
        self.compare(n)

    def test_norms_of_heads(self):
        """onnxruntime has no kernel for these on the CPU: the same with a node before the rotation."""
        inside, apart = Nodes(), Nodes()
        weights = self.normal(D), self.normal(D)
        fixed = {"do_rotary": 1, **self.fixed}
        inside.add("GroupQueryAttention", self.all_of(norm=weights), 3, qk_norm_epsilon=1e-2, **fixed)
        qkv = self.operands[:]
        for i, w in enumerate(weights):
            v = qkv[i].reshape(B, S, -1, D)
            v = v / np.sqrt((v.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-2) * w
            qkv[i] = v.reshape(B, S, -1).astype(np.float32)
        apart.add("GroupQueryAttention", self.all_of(qkv=qkv), 3, **fixed)
        self.compare(inside, by_onnxruntime(apart.model(), apart.feeds))

    def test_rows_of_a_short_sequence(self):
        """Behind its end onnxruntime leaves rows unspecified."""
        n = Nodes()
        n.add("GroupQueryAttention", self.all_of(lengths=(2, 4)), do_rotary=1, **self.fixed)
        full = Nodes()
        full.add("GroupQueryAttention", self.all_of(), do_rotary=1, **self.fixed)
        got, want = (self.run_model(m.model(), m.feeds) for m in (n, full))
        np.testing.assert_array_equal(*(list(r.values())[0] for r in (got, want)))

    def test_rotary(self):
        n, x = Nodes(), self.normal
        at = self.rng.integers(0, 16, (B, S)).astype(np.int64)
        cs = [Held(c) for c in caches()]
        n.add("RotaryEmbedding", [x(B, S, H * D), at, *cs])
        n.add("RotaryEmbedding", [x(B, S, H * D), np.array([3], np.int64), *cs], interleaved=1)
        n.add("RotaryEmbedding", [x(B, H, S, D), at, *cs], interleaved=1)
        n.add("RotaryEmbedding", [x(B, S, H * 2 * D), at, *cs], num_heads=H, rotary_embedding_dim=D)
        self.compare(n)

    def test_refused(self):
        op = {"op": "GroupQueryAttention"}
        past = (self.normal(B, 2, 3, D),) * 2
        self.refused("3 positions came before (input 3)", "[batch, heads, 0, head size]", **op, **self.fixed,
                     operands=self.all_of(past=past))
        self.refused("output 3 (output_qk)", **op, outputs=4, operands=self.all_of(), qk_output=1, **self.fixed)
        self.refused("k_quant_type", "PER_TENSOR", **op, operands=self.all_of(), k_quant_type="PER_TENSOR", **self.fixed)
        self.refused("sliding_window_cache", **op, operands=self.all_of(), sliding_window_cache=1, **self.fixed)
        self.refused("num_heads is 3", **op, operands=self.all_of(), num_heads=3, kv_num_heads=2)
        self.refused("attribute scale", op="RotaryEmbedding", scale=2.0,
                     operands=[self.normal(B, S, H * D), np.array([0], np.int64), *caches()])


if __name__ == "__main__":
    unittest.main()
