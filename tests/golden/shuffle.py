# SPDX-License-Identifier: Apache-2.0
"""Nodes in another order, operands swapped: the same blocks must be found and the gradients stay right.

    shuffle.py [--invonnx PROGRAM] [--seeds N] [ROOT...]

Rewrites each model: a random topological order of its nodes, and swapped operands of Add and Mul; then holds it to its
goldens in all modes as run.py does, and its blocks to those of the original."""
import os
import random
import sys
import tempfile
from collections import Counter

import onnx
import run

FAMILIES = ("nice_chunk_ts17,nice_slice_ts17,nice_split_uneven,revnet8_slice_ts17,linear_chain_3d_ts17,"
            "mlp_lrelu_seq_ts17")


def shuffled(graph, rng):
    """The nodes in a random order in which every one comes after what it reads."""
    made_by = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    waits = [len({made_by[n] for n in node.input if n in made_by}) for node in graph.node]
    readers = [[] for _ in graph.node]
    for i, node in enumerate(graph.node):
        for j in {made_by[n] for n in node.input if n in made_by}:
            readers[j].append(i)
    ready = [i for i, w in enumerate(waits) if w == 0]
    order = []
    while ready:
        i = ready.pop(rng.randrange(len(ready)))
        order.append(i)
        for j in readers[i]:
            waits[j] -= 1
            if waits[j] == 0:
                ready.append(j)
    return [graph.node[i] for i in order]


def rewrite(source, target, rng):
    model = onnx.load(source)
    nodes = shuffled(model.graph, rng)
    moved = sum(a is not b for a, b in zip(nodes, model.graph.node))
    for node in nodes:
        if node.op_type in ("Add", "Mul") and rng.random() < 0.5:
            first, second = node.input
            node.input[0], node.input[1] = second, first
    nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, target)
    return moved


class ShuffleChecker(run.Checker):
    original = None

    def check_structure(self):
        super().check_structure()
        there = self.call("explain", "explain")
        self.path, path = self.original, self.path
        here = self.call("explain of the original", "explain")
        self.path = path
        if here and there:
            kinds = [Counter(b["kind"] for b in report["blocks"]) for report in (here, there)]
            self.expect(kinds[0] == kinds[1], f"explain: blocks {dict(kinds[1])}, before {dict(kinds[0])}")


def main():
    parser = run.arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.set_defaults(families=FAMILIES)
    args = parser.parse_args()
    seen, passed, failed = set(), 0, 0
    for folder in run.folders_of(args.roots or run.default_roots(), args.families.split(",")):
        name = os.path.basename(folder)
        if name in seen:
            continue
        seen.add(name)
        for seed in range(args.seeds):
            with tempfile.TemporaryDirectory() as top:
                copy = os.path.join(top, name)
                os.mkdir(copy)
                for file in os.listdir(folder):
                    if file != "model.onnx":
                        os.symlink(os.path.abspath(os.path.join(folder, file)), os.path.join(copy, file))
                moved = rewrite(os.path.join(folder, "model.onnx"), os.path.join(copy, "model.onnx"),
                                random.Random(f"{name} {seed}"))
                checker = ShuffleChecker(args.invonnx, copy)
                checker.original = os.path.join(folder, "model.onnx")
                problems = checker.run()
            passed, failed = passed + (not problems), failed + bool(problems)
            print(f"{'FAIL' if problems else 'PASS'} {name} seed {seed}, {moved} nodes moved", flush=True)
            run.show(problems, args.verbose)
    print(f"{passed} passed, {failed} failed")
    return int(failed > 0 or not seen)


if __name__ == "__main__":
    sys.exit(main())
