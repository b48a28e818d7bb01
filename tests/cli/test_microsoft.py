# SPDX-License-Identifier: Apache-2.0
"""Operators that onnxruntime's optimizers join (domain com.microsoft): outputs as onnxruntime's, in several forms each.
Those that it has no kernel for on the CPU are compared with the nodes of ONNX that their schemas describe. What is not
supported is refused by name."""
import unittest

import numpy as np
from microsoft import Case, Held, Nodes, by_onnxruntime
from onnx import helper


class Fused(Case):
    def test_activations(self):
        n, x = Nodes(), self.normal
        n.add("Gelu", [x(2, 3, 4)])
        n.add("BiasGelu", [x(2, 3, 8), x(8)])
        n.add("FastGelu", [x(2, 3, 8), x(8)])
        n.add("FastGelu", [x(2, 5)])
        n.add("QuickGelu", [x(2, 5)])
        n.add("QuickGelu", [x(2, 5)], alpha=0.7)
        self.compare(n)

    def test_products(self):
        n, x = Nodes(), self.normal
        n.add("FusedMatMul", [x(2, 3, 4), x(2, 4, 5)], alpha=0.25)
        n.add("FusedMatMul", [x(2, 4, 3), x(2, 5, 4)], transA=1, transB=1)
        n.add("FusedMatMul", [x(6, 3, 4), x(4, 5)], alpha=-2.0)
        n.add("FusedMatMul", [x(3, 2, 4), x(2, 4, 5)], transBatchA=1)
        n.add("FusedMatMul", [x(2, 3, 4, 5), x(3, 4, 2, 6)], transBatchA=1, transA=1)
        n.add("FusedMatMul", [x(3, 2, 4), x(5, 2, 4)], transBatchA=1, transBatchB=1, transB=1)
        n.add("FusedMatMul", [x(4), x(4, 5)])
        for activation, more in (("Relu", {}), ("LeakyRelu", {"activation_alpha": 0.3}), ("Tanh", {}), ("Sigmoid", {}),
                                 ("Elu", {"activation_alpha": 0.7}), ("Softplus", {}), ("Softsign", {}),
                                 ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.6}),
                                 ("Selu", {"activation_alpha": 1.5, "activation_gamma": 1.1}),
                                 ("ThresholdedRelu", {"activation_alpha": 0.4})):
            n.add("FusedGemm", [x(3, 4), x(5, 4), x(5)], transB=1, alpha=0.5, beta=2.0, activation=activation, **more)
        n.add("FusedGemm", [x(4, 3), x(4, 5)], transA=1, activation="Relu")
        n.add("Inverse", [x(4, 4) + 4 * np.eye(4, dtype=np.float32)])
        n.add("Inverse", [x(2, 3, 3, 3) + 4 * np.eye(3, dtype=np.float32)])
        self.compare(n)

    def test_convolutions(self):
        n, x = Nodes(), self.normal
        for activation, params in (("Relu", None), ("Tanh", None), ("Sigmoid", None), ("HardSwish", None),
                                   ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.5]), ("HardSigmoid", [0.3, 0.4])):
            more = {} if params is None else {"activation_params": params}
            n.add("FusedConv", [x(2, 4, 6, 6), x(6, 2, 3, 3), x(6)], group=2, strides=[2, 1], pads=[1, 0, 1, 2],
                  activation=activation, **more)
        n.add("FusedConv", [x(1, 2, 5, 5), x(3, 2, 3, 3), x(3), x(1, 3, 3, 3)], activation="Relu")
        n.add("FusedConv", [x(1, 2, 5, 5), x(3, 2, 3, 3)], auto_pad="SAME_UPPER", activation="Relu")
        self.compare(n)

    def test_without_a_kernel_on_the_cpu(self):
        n, m, x = Nodes(), Nodes(), self.normal

        def same(node, of_onnx):
            """The nodes that give output 0 of `node`, last of the model, from its operands."""
            made = n.nodes[-1]
            values = dict(zip("abcde", made.input))
            for k, (op, ins, attributes) in enumerate(of_onnx):
                out = made.output[0] if k + 1 == len(of_onnx) else f"{made.name}_v{k}"
                ins = [values.get(i, i if i.startswith(node) else f"{made.name}_{i}") for i in ins]
                m.nodes.append(helper.make_node(op, ins, [out], **attributes))

        to, back = {"perm": [0, 3, 1, 2]}, {"perm": [0, 2, 3, 1]}
        n.add("NhwcConv", [x(2, 6, 5, 4), x(6, 2, 3, 3), x(6)], group=2, strides=[2, 1], pads=[1, 0, 1, 2])
        same("NhwcConv", [("Transpose", ["a"], to),
                          ("Conv", ["v0", "b", "c"], {"group": 2, "strides": [2, 1], "pads": [1, 0, 1, 2]}),
                          ("Transpose", ["v1"], back)])
        n.add("GroupNorm", [x(2, 3, 4, 6), x(6), x(6)], groups=3, activation=1, epsilon=1e-3)
        same("GroupNorm", [("Transpose", ["a"], to), ("GroupNormalization", ["v0", "b", "c"], {"num_groups": 3, "epsilon": 1e-3}),
                           ("Transpose", ["v1"], back), ("Sigmoid", ["v2"], {}), ("Mul", ["v2", "v3"], {})])
        n.add("GroupNorm", [x(2, 6, 3, 4), x(6), x(6)], groups=2, activation=0, channels_last=0)
        same("GroupNorm", [("GroupNormalization", ["a", "b", "c"], {"num_groups": 2})])
        n.add("SkipGroupNorm", [x(2, 3, 4, 6), x(6), x(6), x(2, 1, 1, 6), x(6)], groups=2, activation=0)
        same("SkipGroupNorm", [("Add", ["a", "d"], {}), ("Add", ["v0", "e"], {}), ("Transpose", ["v1"], to),
                               ("GroupNormalization", ["v2", "b", "c"], {"num_groups": 2}), ("Transpose", ["v3"], back)])
        n.add("BiasSplitGelu", [x(2, 3, 8), x(8)])
        same("BiasSplitGelu", [("Add", ["a", "b"], {}), ("Split", ["v0"], {"axis": 2, "num_outputs": 2})])
        split = m.nodes.pop()
        m.nodes += [helper.make_node("Split", [split.input[0]], ["left", "right"], axis=2, num_outputs=2),
                    helper.make_node("Gelu", ["right"], ["gelu"]),
                    helper.make_node("Mul", ["left", "gelu"], [n.outputs[-1]])]
        m.inputs, m.outputs, m.feeds = n.inputs, n.outputs, n.feeds
        reference = m.model()
        reference.opset_import[0].version = 21
        self.compare(n, by_onnxruntime(reference, n.feeds))


class Norms(Case):
    def test_skip(self):
        n, x = Nodes(), self.normal
        for eps in (1e-12, 1e-2):
            n.add("SkipLayerNormalization", [x(2, 3, 8), x(2, 3, 8), x(8), x(8), x(8)], outputs=[0, 3], epsilon=eps)
            n.add("SkipLayerNormalization", [x(2, 3, 8), x(2, 3, 8), x(8)], epsilon=eps)
            n.add("SkipSimplifiedLayerNormalization", [x(2, 3, 8), x(2, 3, 8), x(8), x(8)], outputs=[0, 3], epsilon=eps)
            n.add("SkipSimplifiedLayerNormalization", [x(6, 8), x(6, 8), x(8)], outputs=[0, 3], epsilon=eps)
        n.add("SkipLayerNormalization", [x(2, 3, 8), x(1, 3, 8), x(8), x(8)])
        n.add("SkipLayerNormalization", [x(2, 3, 8), x(3, 8), x(8), x(8), x(8)])
        n.add("SimplifiedLayerNormalization", [x(2, 3, 8), x(8)], domain="")
        n.add("SimplifiedLayerNormalization", [x(2, 3, 8), x(8)], domain="", axis=-1, epsilon=1e-2, stash_type=1)
        self.compare(n)

    def test_embed(self):
        n, x = Nodes(), self.normal

        def ids(top, *shape):
            return self.rng.integers(0, top, shape).astype(np.int32)

        tables = [Held(x(11, 8)), Held(x(6, 8))]
        n.add("EmbedLayerNormalization", [ids(11, 2, 5), ids(2, 2, 5), *tables, Held(x(2, 8)), x(8), x(8),
                                          np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)], outputs=3)
        n.add("EmbedLayerNormalization", [ids(11, 2, 5), None, *tables, None, x(8), x(8)], outputs=3, epsilon=1e-3)
        n.add("EmbedLayerNormalization", [ids(11, 2, 5), None, *tables, None, x(8), x(8), None, ids(6, 2, 5)], outputs=2)
        n.add("EmbedLayerNormalization", [ids(11, 2, 5), None, *tables, None, x(8), x(8), None, ids(6, 1, 5)], outputs=2)
        self.compare(n)

    def test_refused(self):
        x = self.normal
        self.refused("output 1 (mean)", op="SkipLayerNormalization", operands=[x(2, 3, 8), x(2, 3, 8), x(8)], outputs=2)
        self.refused("skip does not broadcast", op="SkipLayerNormalization", operands=[x(2, 3, 8), x(2, 2, 8), x(8)])
        self.refused("activation 2", op="GroupNorm", operands=[x(2, 3, 4, 6), x(6), x(6)], groups=3, activation=2)
        self.refused("Softmax", "node of its own", op="FusedGemm", operands=[x(2, 3), x(3, 4)], activation="Softmax")
        self.refused("QuickGelu", op="FusedConv", operands=[x(1, 2, 4, 4), x(3, 2, 1, 1)], activation="QuickGelu")
        self.refused("square", op="Inverse", operands=[x(2, 3)])
        self.refused("only 6", op="EmbedLayerNormalization",
                     operands=[np.zeros((1, 7), np.int32), None, x(9, 8), x(6, 8), None, x(8), x(8)])


if __name__ == "__main__":
    unittest.main()
