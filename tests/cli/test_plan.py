# SPDX-License-Identifier: Apache-2.0
"""Plans that are saved and used again, and what `plan` draws. A plan from `plan` gives `train` the same plan and the same
bits as the search does; what does not fit (another mode, shape or model, an edited or shortened file) is refused by name
and nothing is computed. The curve falls as memory grows and ends at storing all, and a budget on it gives what it says;
pictures are well-formed and name what is alive at both peaks."""
import copy
import json
import os
import re
import resource
import shutil
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree as xml

import numpy as np
import onnx
from onnx import helper, numpy_helper

import common
import test_guard_random_networks

REVNET = os.path.join(common.model("revnet8_ts17"), "model.onnx")
LOSS = ("--loss", "cross_entropy")


def couplings(path):
    """A linear map of x [N, 64], six additive couplings by networks of one hidden layer, the halves joined, a head."""
    rng, weights, nodes = np.random.default_rng(0), [numpy_helper.from_array(np.array([32, 32]), "sizes")], []

    def op(kind, operands, *results, **attributes):
        nodes.append(helper.make_node(kind, operands, results, **attributes))
        return results[0]

    def linear(x, name, *shape):
        weights.append(numpy_helper.from_array((rng.standard_normal(shape) / 8).astype(np.float32), "w." + name))
        return op("MatMul", [x, "w." + name], name)

    a, b = op("Split", [linear("x", "stem", 64, 64), "sizes"], "a", "b", axis=1), "b"
    for i in range(6):
        branch = linear(op("Relu", [linear(a, f"hidden{i}", 32, 48)], f"relu{i}"), f"branch{i}", 48, 32)
        a, b = op("Add", [b, branch], f"sum{i}"), a
    linear(op("LeakyRelu", [op("Concat", [a, b], "joined", axis=1)], "leaky", alpha=0.5), "y", 64, 10)
    ends = [[helper.make_tensor_value_info(k, onnx.TensorProto.FLOAT, ["N", n])] for k, n in (("x", 64), ("y", 10))]
    graph = helper.make_graph(nodes, "couplings", *ends, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)


class Plans(unittest.TestCase):
    def setUp(self):
        self.top = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.top)
        random = np.random.default_rng(3)
        np.save(self.at("x.npy"), random.standard_normal((4, 3, 32, 32)).astype(np.float32))
        np.save(self.at("y.npy"), np.array([1, 0, 3, 2]))

    def at(self, name):
        return os.path.join(self.top, name)

    def plan(self, *more, model=REVNET):
        common.report("plan", model, *LOSS, "--batch", 4, "--plan", self.at("plan"), *more)
        with open(self.at("plan")) as f:
            return json.load(f)

    def train(self, out, *more, model=REVNET):
        return ("train", model, "--data", self.at("x.npy"), "--target", self.at("y.npy"), *LOSS, "--batch", 4,
                "--epochs", 2, "-o", self.at(out), *more)

    def refused(self, saved, *more, says):
        with open(self.at("edited"), "w") as f:
            f.write(saved if isinstance(saved, str) else json.dumps(saved))
        status, out, err = common.call(*self.train("none.onnx", "--plan", self.at("edited"), *more))
        self.assertEqual((status, out), (1, ""), err)
        self.assertIn(says, err)
        self.assertFalse(os.path.exists(self.at("none.onnx")))
        return err

    def test_round_trip(self):
        offload = ("--device", "sim", "--mode", "*=offload")
        for more in ((), ("--memory", "invert"), ("--budget", 3 << 20), ("--memory", "store"), offload):
            with self.subTest(more):
                saved = self.plan(*more)
                found = common.report(*self.train("a.onnx", *more))
                used = common.report(*self.train("b.onnx", *more, "--plan", self.at("plan")))
                for key in ("plan", "planned_peak_bytes", "flops", "choices", "values", "timeline", "steps"):
                    self.assertEqual(used[key], found[key], key)
                a, b = (onnx.load(self.at(name)).graph.initializer for name in ("a.onnx", "b.onnx"))
                self.assertTrue(all(p == q for p, q in zip(a, b, strict=True)))
                firings = saved["plans"][0]["firings"]
                self.assertEqual(firings == [], "store" in more)
                self.assertEqual({f["how"] for f in firings} == {"offload"}, more == offload)

    def test_one_firing_for_both_halves(self):
        # Without convolutions: what those work in is another on each kind of processor, and so is the plan.
        couplings(self.at("m.onnx"))
        np.save(self.at("x.npy"), np.random.default_rng(4).standard_normal((4, 64)).astype(np.float32))
        saved = self.plan("--memory", "invert", model=self.at("m.onnx"))
        halves = [f for f in saved["plans"][0]["firings"] if f.get("rule") == "concat" and len(f["values"]) == 2]
        self.assertTrue(halves)
        found = common.report(*self.train("a.onnx", "--memory", "invert", "--plan", self.at("plan"),
                                          model=self.at("m.onnx")))
        self.assertGreaterEqual(found["values"]["inverted"], 2 * len(halves))

    def test_results(self):
        """What `plan` computes again or copies back, `grad` may have as a result: it does without that."""
        path = common.model("plain_lenet_ts17")
        model, step = os.path.join(path, "model.onnx"), ("--loss", "cross_entropy", "--device", "sim")
        feed = ("--feed", os.path.join(path, "in_x.npy"), "--target", os.path.join(path, "target.npy"))
        common.report("plan", model, *step, *feed, "--mode", "*=offload", "--plan", self.at("plan"))
        with open(self.at("plan")) as f:
            given = {v["name"] for firing in json.load(f)["plans"][0]["firings"] for v in firing["values"]}
        used = common.report("grad", model, *step, *feed, "--plan", self.at("plan"), "--dump", self.at("a"))
        fate = {c["value"]: c["choice"] for c in used["choices"]}
        self.assertIn("y", given)
        self.assertEqual({v for v in fate if fate[v] == "offloaded"}, given - {"y"})
        common.report("grad", model, *step, *feed, "--memory", "store", "--dump", self.at("b"))
        for file in os.listdir(self.at("b")):
            with open(self.at("a/" + file), "rb") as a, open(self.at("b/" + file), "rb") as b:
                self.assertEqual(a.read(), b.read(), file)

    def recovered(self, memory, edit):
        """What the recover pass makes of a plan whose firings have been edited."""
        path = common.model("linear_chain_3d_ts17")
        model, mode = os.path.join(path, "model.onnx"), ("--loss", "mse", "--memory", memory, "--cost", "flops")
        common.report("plan", model, *mode, "--plan", self.at("plan"))
        with open(self.at("plan")) as f:
            saved = json.load(f)
        edit(saved["plans"][0]["firings"])
        saved["checksum"] = "edited"
        with open(self.at("edited"), "w") as f:
            json.dump(saved, f)
        common.report("grad", model, *mode, "--feed", os.path.join(path, "in_x.npy"), "--target",
                      os.path.join(path, "target.npy"), "--plan", self.at("edited"), "--dump-passes", self.at("passes"))
        name = next(n for n in os.listdir(self.at("passes")) if n.endswith("-recover.txt"))
        with open(os.path.join(self.at("passes"), name)) as f:
            return f.read()

    def test_views_of_backward(self):
        """What is computed again between a view that backward makes of it and the view's reader is what that reads."""
        def give_again(firings):
            self.assertEqual((firings[-1]["node"], firings[-1]["before"]["op"]), ("x", "View"))
            firings.append({**firings[-1], "before": {"op": "MatMulT", "node": "/a/MatMul", "which": 0}})
        text = self.recovered("recompute", give_again)
        given = re.findall(r"float\[2,5,3\] (x\.\d+) = Feed", text)
        self.assertEqual(len(given), 3)
        for clone in given:
            self.assertRegex(text, rf"\({re.escape(clone)}[,)]")

    def test_views_of_backward_are_guarded(self):
        """So is what is computed again from an inverse, there as where backward makes the view."""
        def give_again(firings):
            self.assertEqual([(f["node"], f["how"], f["before"]["op"]) for f in firings[:2]],
                             [("/c/Add", "invert", "View"), ("/c/Add", "recompute", "View")])
            firings[2:2] = [{**f, "before": {"op": "MatMulT", "node": "/d/MatMul", "which": 0}} for f in firings[:2]]
        text = self.recovered("invert", give_again)
        rebuilt = re.findall(r" (/c/Add_output_0\.\d+) = Add\(Sub", text)
        self.assertEqual(len(rebuilt), 2)
        for clone in rebuilt:
            self.assertRegex(text, rf"View<.*>\({re.escape(clone)}\)")
            self.assertRegex(text, rf"GuardCheck<.*>\({re.escape(clone)},")

    def test_is_used(self):
        """A firing fewer: what it gave is stored instead, which a search would not have found."""
        saved = self.plan("--memory", "recompute")
        took = saved["plans"][0]["firings"].pop(0)
        saved["checksum"] = "edited"
        with open(self.at("edited"), "w") as f:
            json.dump(saved, f)
        step = ("--feed", self.at("x.npy"), "--target", self.at("y.npy"), *LOSS, "--memory", "recompute")
        used = common.report("grad", REVNET, *step, "--plan", self.at("edited"), "--dump", self.at("a"))
        common.report("grad", REVNET, *step, "--dump", self.at("b"))
        name = took["values"][0]["name"]
        self.assertIn((name, "stored"), {(c["value"], c["choice"]) for c in used["choices"]})
        for file in os.listdir(self.at("a")):
            with open(self.at("a/" + file), "rb") as a, open(self.at("b/" + file), "rb") as b:
                self.assertEqual(a.read(), b.read(), file)
        compared = common.report("compare", REVNET, *step, "--plan", self.at("edited"))["modes"]
        self.assertEqual([m["memory"] for m in compared], ["store", "recompute"])

    def test_compare_within_a_budget(self):
        """The reference stores everything, whatever the budget is."""
        store = common.report("plan", REVNET, *LOSS, "--batch", 4, "--memory", "store")["planned_peak_bytes"]
        step = ("--feed", self.at("x.npy"), "--target", self.at("y.npy"), *LOSS, "--repeat", 1)
        modes = common.report("compare", REVNET, *step, "--budget", store * 3 // 4)["modes"]
        within = [m["planned_peak_bytes"] <= store * 3 // 4 for m in modes]
        self.assertEqual(within, [False] + [True] * (len(modes) - 1))
        self.assertGreater(len(modes), 1)

    def test_guard(self):
        """What the guard refuses is planned again, by search."""
        self.plan("--memory", "invert", "--max-drift", 1e-4)
        used = common.report(*self.train("a.onnx", "--memory", "invert", "--plan", self.at("plan"), "--max-drift", 3e-7))
        self.assertGreater(used["fallbacks"], 0)

    def test_refused(self):
        saved = self.plan()
        text = json.dumps(saved)
        firings = saved["plans"][0]["firings"]
        inverted = next(i for i, f in enumerate(firings) if f["how"] == "invert")

        def edited(change):
            other = {**copy.deepcopy(saved), "checksum": "edited"}
            change(other["plans"][0]["firings"])
            return other

        self.refused(text[:2000], says="cut short")
        self.refused("", says="cut short")
        self.refused("[1, 2]", says="no saved plan")
        self.refused("{}", says="no saved plan")
        self.refused(text, "--memory", "invert", says="made with --memory auto, the session is in mode invert")
        self.refused(text, "--keep", firings[0]["values"][0]["name"], says="which is stored")
        says = self.refused(text, "--max-drift", "1e-30", says="there is no way to invert")
        which = int(re.search(r"firing (\d+): there is no way to invert", says).group(1))
        self.assertEqual(firings[which]["how"], "invert")  # the first that rounds; exact ones are still open
        self.refused(text, "--budget", 1 << 19, says="the saved plan needs")
        self.refused(edited(lambda f: f[0]["values"][0].update(name="nobody")), says="'nobody', which is no value")
        self.refused(edited(lambda f: f[0]["values"][0].update(which=-1)), says="which is no value")
        self.refused(edited(lambda f: f[0].update(values=[])), says="firing 0 names no value")
        self.refused(edited(lambda f: f[inverted].update(rule="none")), says="and rule none here")
        self.refused(edited(lambda f: f[0]["before"].update(node="nowhere")), says="'nowhere'")
        self.refused(edited(lambda f: f[0]["before"].update(which=2 ** 40)), says="which is not there")
        self.refused(edited(lambda f: f.reverse()), says="comes earlier")
        self.refused(edited(lambda f: f.insert(0, f[0])), says="give what nothing reads")
        self.refused(edited(lambda f: f.clear() or f.append(7)), says="firing 0 names no value")
        self.refused({**saved, "plans": [], "checksum": "edited"}, says="it was made for inputs of no shape")
        other = {**saved, "plans": [{**saved["plans"][0], "forward": 3}], "checksum": "edited"}
        self.refused(other, says="with 3 steps in forward")
        self.refused(saved, "--batch", 2, says="it was made for inputs of")
        for made, why in ((("--float64",), "arithmetic float64 (here float32)"),
                          (("--device", "sim", "--mode", "*=offload"), "--device sim (here cpu)"),
                          (("--freeze", "*blocks.0.*"), "--freeze '*blocks.0.*' (here none)")):
            other = {**self.plan(*made), "checksum": "edited"}
            other["plans"][0]["forward"] = 3  # that they differ by themselves is so on some processors only
            self.refused(other, says=f"this one has {saved['plans'][0]['forward']}. It was made with {why}\n")
            self.refused({**other, "made_with": 7}, says=f"this one has {saved['plans'][0]['forward']}\n")
        self.refused(self.plan(model=os.path.join(common.model("revnet8_slice_ts17"), "model.onnx")), says="does not fit")
        status, _, err = common.call(*self.train("none.onnx", "--plan", self.at("missing")))
        self.assertEqual(status, 1)
        self.assertIn("missing: cannot be read", err)
        # lest a program that reads on takes all there is; sanitizers take it at once
        limit = (resource.RLIM_INFINITY, ) * 2 if common.sanitized() else (1 << 32, 1 << 32)
        done = subprocess.run([common.PROGRAM, *map(str, self.train("none.onnx", "--plan", "/dev/zero"))],
                              capture_output=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit))
        self.assertEqual((done.returncode, b"/dev/zero: cannot be read: not a regular file" in done.stderr), (1, True))

    def test_huge_batches(self):
        """A peak that grows with the batch, or a refusal; never a number that has wrapped around."""
        model = os.path.join(common.model("nice_dynbatch_ts17"), "model.onnx")
        peaks, refused = [0], 0
        for rows in (n * 10**k for k in range(6, 19) for n in (1, 2, 5)):
            for memory in ("store", "invert"):
                status, out, err = common.call("plan", model, "--loss", "mse", "--memory", memory, "--batch", rows, "--json")
                self.assertIn(status, (0, 1), err)
                if status:
                    refused += 1
                    self.assertRegex(err, "larger than memory can be|too large to address|out of memory")
                elif memory == "store":
                    peaks.append(json.loads(out)["planned_peak_bytes"])
        self.assertEqual(peaks, sorted(peaks))
        self.assertTrue(len(peaks) > 10 and refused > 10, (peaks, refused))

    def test_damaged(self):
        """Any byte that changes is found. What was edited says so, and is used; so is a plan in other lines, and one of
        the version before, which had no checksum."""
        np.save(self.at("x.npy"), np.random.default_rng(4).standard_normal((4, 64)).astype(np.float32))
        couplings(self.at("m.onnx"))
        model = self.at("m.onnx")
        saved = self.plan("--memory", "recompute", model=model)
        text = json.dumps(saved).encode()
        step = ("grad", model, *LOSS, "--memory", "recompute", "--feed", self.at("x.npy"), "--target", self.at("y.npy"))

        def use(data):
            with open(self.at("edited"), "wb") as f:
                f.write(data)
            return common.call(*step, "--plan", self.at("edited"))

        random = np.random.default_rng(5)
        for at in random.choice(len(text), min(len(text), 150), replace=False):
            data = bytearray(text)
            data[at] ^= 1 << random.integers(8)
            status, _, err = use(data)
            self.assertEqual(status, 1, (at, data[at]))
            self.assertRegex(err, "checksum|is no JSON, or cut short|is no saved plan")
        other = {**saved, "made_with": {**saved["made_with"], "device": "other"}}
        self.assertIn("does not agree with its checksum", use(json.dumps(other).encode())[2])
        earlier = {k: v for k, v in {**saved, "invonnx_plan": 1}.items() if k != "checksum"}
        for good in (other | {"checksum": "edited"}, dict(reversed(saved.items())), earlier):
            self.assertEqual(use(json.dumps(good, indent=3).encode())[0], 0)
        for bad in ({**saved, "invonnx_plan": 1}, {**earlier, "invonnx_plan": 2}, {**saved, "checksum": 7},
                    {**earlier, "checksum": "edited"}):
            self.assertIn("does not agree with its checksum", use(json.dumps(bad).encode())[2])

    @common.full
    def test_budget_that_is_refused(self):
        """Whatever is asked for, the refusal names all that the smallest plan takes, and that much is enough."""
        named = set()
        for budget in (1, 200_000):
            status, _, err = common.call("plan", REVNET, *LOSS, "--batch", 4, "--budget", budget)
            found = re.search(r"smallest plan found needs (\d+) \((\d+) of them parameters", err)
            self.assertTrue(status == 1 and found, err)
            self.assertGreater(int(found[1]), int(found[2]))
            named.add(int(found[1]))
        self.assertEqual(len(named), 1)
        smallest = common.report("plan", REVNET, *LOSS, "--batch", 4, "--budget", *named)
        self.assertLessEqual(smallest["planned_peak_bytes"], max(named))

    def test_constants_of_guards_count(self):
        """What a refusal names is enough, too, where guards and inverses bring constants that the model has not."""
        test_guard_random_networks.Net(5021).write(self.at("net.onnx"))
        plan = ("plan", self.at("net.onnx"), "--loss", "mse", "--mode", "*=invert", "--cost", "flops", "--budget")
        _, _, err = common.call(*plan, 1)
        needs = int(re.search(r"smallest plan found needs (\d+)", err)[1])
        self.assertLessEqual(common.report(*plan, needs)["planned_peak_bytes"], needs)

    def test_more_drift_needs_no_more(self):
        """What a refusal names hardly grows with the drift that is allowed: whatever less of it allows, more does, too.
        The search is by chance, which is why it may grow by a percent."""
        deep = os.path.join(common.DATA, "revnet_c64.onnx")
        least = None
        for drift in (1e-8, 3e-7, 1e-5):
            _, _, err = common.call("plan", deep, *LOSS, "--batch", 8, "--budget", 1, "--cost", "flops", "--max-drift",
                                    drift)
            found = re.search(r"smallest plan found needs (\d+)", err)
            self.assertTrue(found, err)
            if least:
                self.assertLess(int(found[1]), 1.01 * least, f"--max-drift {drift}")
            least = int(found[1])

    def test_modes_cost_apart(self):
        """What single values are asked for may cost more than all else may: that is planned as ever then."""
        plan = ("plan", REVNET, *LOSS, "--batch", 2, "--device", "sim", "--mode", "/blocks.3*=offload")
        alone = common.report(*plan, "--budget", 1 << 30)["plan"]["overhead"]
        self.assertGreater(alone, 1)
        took = common.report(*plan)
        self.assertLess(took["planned_peak_bytes"], 0.6 * took["store_peak_bytes"])
        self.assertLess(took["plan"]["overhead"], alone + 1 / 3 + 0.02)

    def test_store_but_what_modes_name(self):
        store, some, blocks = (common.report("plan", REVNET, *LOSS, "--batch", 4, "--memory", "store", *mode)
                               for mode in ((), ("--mode", "*Relu*=recompute"), ("--mode", "block:*=invert")))
        self.assertEqual(store["values"]["recomputed"] + store["values"]["inverted"], 0)
        self.assertGreater(some["values"]["recomputed"], 0)
        self.assertEqual(some["values"]["inverted"], 0)
        self.assertGreater(blocks["values"]["inverted"], 0)
        self.assertLess(blocks["planned_peak_bytes"], store["planned_peak_bytes"])

    def test_store_computes_again_what_is_named(self):
        """Each of them, wherever backward reads it; nothing else, so that all of the rest is as in a plain step."""
        couplings(self.at("m.onnx"))
        saved = self.plan("--memory", "store", "--mode", "relu*=recompute", model=self.at("m.onnx"))
        given = [firing["values"] for firing in saved["plans"][0]["firings"]]
        self.assertEqual(sorted(values[0]["name"] for values in given), [f"relu{i}" for i in range(6)])
        self.assertEqual({len(values) for values in given}, {1})

    def test_mode_of_a_view(self):
        """What is asked of a view is asked of what it views, and the other way round."""
        random = np.random.default_rng(0)
        weights = [numpy_helper.from_array((random.standard_normal((64, 64)) / 8).astype(np.float32), "w"),
                   numpy_helper.from_array(np.array([-1, 8, 8]), "shape")]
        nodes = [helper.make_node(*n) for n in (("MatMul", ["x", "w"], ["h"]), ("Sigmoid", ["h"], ["root"]),
                                                ("Reshape", ["root", "shape"], ["view"]), ("LeakyRelu", ["view"], ["t"]),
                                                ("Mul", ["t", "t"], ["y"]))]
        ends = [[helper.make_tensor_value_info(k, onnx.TensorProto.FLOAT, ["N", *dims])] for k, dims in (("x", [64]), ("y", [8, 8]))]
        onnx.save(helper.make_model(helper.make_graph(nodes, "g", *ends, weights), opset_imports=[helper.make_opsetid("", 17)]),
                  self.at("view.onnx"))
        for mode in ("store", "recompute", "invert"):
            of_view, of_root = (common.report("plan", self.at("view.onnx"), "--loss", "mse", "--batch", 64, "--cost", "flops",
                                              "--mode", f"{name}={mode}")["choices"] for name in ("view", "root"))
            self.assertEqual(of_view, of_root, mode)
            if mode == "invert":
                self.assertNotIn(("root", "recomputed"), [(c["value"], c["choice"]) for c in of_view])
        for name in ("view", "root"):  # the last that fits counts
            for what in (("--keep", name), ("--mode", f"{name}=store")):
                kept = common.report("plan", self.at("view.onnx"), "--loss", "mse", "--batch", 64, "--cost", "flops",
                                     "--memory", "store", "--mode", "*=recompute", *what)["choices"]
                self.assertEqual({c["value"] for c in kept if c["choice"] == "stored"}, {"view", "root"}, what)

    def test_auto_by_its_own_measure(self):
        """No plan of another mode that takes at most 4/3 of a plain step has less bytes times time than auto's."""
        couplings(self.at("m.onnx"))
        for model in (self.at("m.onnx"), REVNET, os.path.join(common.model("revnet8_evalbn_ts17"), "model.onnx"),
                      os.path.join(common.model("plain_lenet_ts17"), "model.onnx")):
            product = {}
            for mode in ("auto", "recompute", "invert"):
                report = common.report("plan", model, *LOSS, "--batch", 4, "--memory", mode, "--cost", "flops")
                if report["plan"]["overhead"] <= 1 / 3 + 1e-9:
                    product[mode] = report["planned_peak_bytes"] * (1 + report["plan"]["overhead"])
            self.assertEqual(min(product.values()), product["auto"], (model, product))

    def test_what_is_promised(self):
        """auto and recompute cost at most 4/3 of a plain step, guards included, in time as in arithmetic; a report has one
        number for that; and invert takes no more activations than auto, but for a percent."""
        for cost, device, modes in (("time", "cuda", ("auto", "recompute")), ("time", "cpu", ("auto", "recompute")),
                                    ("flops", "cpu", ("auto", "recompute", "invert"))):
            taken = {}
            for mode in modes:
                r = common.report("plan", REVNET, *LOSS, "--batch", 64, "--memory", mode, "--cost", cost, "--device", device)
                over = r["plan"]["overhead"]
                taken[mode] = r["activation_peak_bytes"]
                if mode != "invert":
                    self.assertLessEqual(over, 1 / 3 + 1e-9, (cost, device, mode))
                if cost == "time":
                    self.assertAlmostEqual(r["predicted_seconds"] / r["store_predicted_seconds"], 1 + over, 6, (device, mode))
                elif cost == "flops":
                    self.assertAlmostEqual((r["flops"] + r["guard_flops"]) / r["store_flops"], 1 + over, 6, (device, mode))
            if "invert" in taken:
                self.assertLessEqual(taken["invert"], 1.01 * min(taken.values()), taken)

    def test_one_number_for_the_cost(self):
        """The text has guards in both: what the plan costs over storing all, and arithmetic in plain steps."""
        status, out, err = common.call("plan", REVNET, *LOSS, "--batch", 64, "--memory", "invert", "--cost", "flops", "-q")
        self.assertEqual(status, 0, err)
        percent, times = (float(re.search(form, out)[1]) for form in (r"plan \+([0-9.]+) %", r"\(([0-9.]+) times a plain step, guards"))
        self.assertAlmostEqual(1 + percent / 100, times, delta=0.001)

    def test_threads_change_no_plan(self):
        """Where operators need no scratch memory for each thread, the plan is the same for any number of them."""
        couplings(self.at("m.onnx"))
        one, two = (self.plan("--cost", "flops", "--threads", threads, model=self.at("m.onnx")) for threads in (1, 2))
        self.assertEqual(one, two)

    def test_early_beside_a_saved_plan(self):
        """The last, smaller batch is planned apart, with early updates too, and so takes no more than the saved plan."""
        random = np.random.default_rng(1)
        weights = [onnx.numpy_helper.from_array((random.standard_normal((64, 64)) / 8).astype(np.float32), f"w{i}")
                   for i in range(6)]
        nodes = []
        for i in range(6):
            nodes += [onnx.helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"y{i}"]),
                      onnx.helper.make_node("Tanh", [f"y{i}"], [f"x{i + 1}"])]
        infos = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", 64]) for name in ("x0", "x6")]
        graph = onnx.helper.make_graph(nodes, "g", infos[:1], infos[1:], weights)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, self.at("m.onnx"))
        np.save(self.at("rows.npy"), random.standard_normal((15, 64)).astype(np.float32))
        step = (self.at("m.onnx"), "--loss", "mse", "--batch", 8, "--early-update")
        common.report("plan", *step, "--plan", self.at("plan"))
        train = ("train", *step, "--data", self.at("rows.npy"), "--target", self.at("rows.npy"), "-o", self.at("o.onnx"))
        found, used = common.report(*train), common.report(*train, "--plan", self.at("plan"))
        self.assertEqual(used["planned_peak_bytes"], found["planned_peak_bytes"])

    def test_early_or_guarded(self):
        """Where updates wait for guards, that is said once, for all plans together."""
        np.save(self.at("x.npy"), np.random.default_rng(3).standard_normal((60, 3, 32, 32)).astype(np.float32))
        np.save(self.at("y.npy"), np.arange(60) % 10)
        status, _, err = common.call("train", REVNET, *LOSS, "--data", self.at("x.npy"), "--target", self.at("y.npy"),
                                     "--batch", 32, "--steps", 2, "-o", self.at("o.onnx"), "--early-update")
        self.assertEqual((status, err.count("not updated early")), (0, 1), err)

    def test_budget_over_all_plans(self):
        """A budget is for all plans of a session: constants of each batch's shape are there for every one of them, and
        evaluation computes an output of its own, which is the largest of all. What is refused first names enough."""
        nodes, x = [onnx.helper.make_node("Shape", ["x"], ["shape"]),
                    onnx.helper.make_node("ConstantOfShape", ["shape"], ["ones"],
                                          value=onnx.numpy_helper.from_array(np.ones(1, np.float32))),
                    onnx.helper.make_node("CumSum", ["ones", "axis"], ["steps"])], "x"
        for i in range(4):
            nodes += [onnx.helper.make_node("Conv", [x, "w"], [f"c{i}"], pads=[1, 1, 1, 1]),
                      onnx.helper.make_node("Tanh", [f"c{i}"], [f"t{i}"]),
                      onnx.helper.make_node("Mul", [f"t{i}", "steps"], [f"m{i}"])]
            x = f"m{i}"
        nodes += [onnx.helper.make_node("Conv", [x, "wide"], ["z0"]), onnx.helper.make_node("Tanh", ["z0"], ["z"])]
        random = np.random.default_rng(7)
        weights = {"w": 0.1 * random.standard_normal((8, 8, 3, 3)), "wide": random.standard_normal((64, 8, 1, 1))}
        inits = [onnx.numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()]
        inits.append(onnx.numpy_helper.from_array(np.int64(0), "axis"))
        infos = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N", c, 8, 8])
                 for name, c in (("x", 8), (x, 8), ("z", 64))]
        graph = onnx.helper.make_graph(nodes, "g", infos[:1], infos[1:], inits)
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, self.at("m.onnx"))
        np.save(self.at("in.npy"), random.standard_normal((11, 8, 8, 8)).astype(np.float32))
        train = ("train", self.at("m.onnx"), "--data", self.at("in.npy"), "--target", self.at("in.npy"), "--loss", "mse",
                 "--loss-output", x, "--batch", 4, "-o", self.at("o.onnx"))
        needs = []
        for more in ((), ("--val-data", self.at("in.npy"), "--val-target", self.at("in.npy"))):
            with self.subTest(more):
                status, _, err = common.call(*train, *more, "--budget", 1)
                named = re.search(r"smallest plan found needs (\d+)", err)
                self.assertTrue(status == 1 and named, err)
                needs.append(int(named[1]))
                for budget in (needs[-1], needs[-1] + 3000):
                    self.assertLessEqual(common.report(*train, *more, "--budget", budget)["peak_bytes"], budget)
        self.assertGreater(needs[-1], needs[0])

    def test_nothing_is_overwritten(self):
        model = self.at("m.onnx")
        shutil.copy(REVNET, model)
        for args in (("--plan", model), ("--plan", self.at("p"), "--html", self.at("p"))):
            status, _, err = common.call("plan", model, *LOSS, *args)
            self.assertEqual(status, 1)
            self.assertIn("choose another name", err)
        self.assertFalse(os.path.exists(self.at("p")))

    @common.full
    def test_curve(self):
        plain = common.report("plan", REVNET, *LOSS, "--batch", 4)
        self.assertNotIn("curve", plain)
        status, out, err = common.call("plan", REVNET, *LOSS, "--batch", 4, "--curve", "--json", "--html",
                                       self.at("p.html"), "--plan", self.at("after"))
        self.assertEqual(status, 0, err)
        with open(self.at("after")) as f:
            self.assertEqual(json.load(f), self.plan(), "trying budgets leaves the plan as it was")
        self.assertRegex(err, r"\A(invonnx: (curve|searching for a plan): \d+ %\n)*\Z")  # nothing, where it is quick
        report = json.loads(out)
        curve = report.pop("curve")
        for key in ("beside_bytes", "process_bytes"):  # measured, in each process
            report.pop(key), plain.pop(key)
        self.assertEqual(report, plain)
        self.assertGreaterEqual(len(curve), 6)
        for a, b in zip(curve, curve[1:]):
            self.assertLess(a["peak_bytes"], b["peak_bytes"])
            self.assertGreater(a["overhead"], b["overhead"])
        self.assertTrue(all(0 <= p["bound"] <= p["overhead"] for p in curve))
        self.assertEqual(curve[-1], {"peak_bytes": plain["store_peak_bytes"], "overhead": 0, "bound": 0})
        self.assertTrue(any(p["peak_bytes"] <= plain["planned_peak_bytes"] and p["overhead"] <= plain["plan"]["overhead"]
                            for p in curve), "the plan itself is on the curve, or the curve is below it")
        _, _, err = common.call("plan", REVNET, *LOSS, "--batch", 4, "--budget", 1)
        named = int(re.search(r"smallest plan found needs (\d+)", err).group(1))
        self.assertLessEqual(curve[0]["peak_bytes"], named, "the curve begins with the smallest plan")
        middle = curve[len(curve) // 2]
        again = common.report("plan", REVNET, *LOSS, "--batch", 4, "--budget", middle["peak_bytes"])
        self.assertAlmostEqual(again["plan"]["overhead"], middle["overhead"], delta=0.02)
        self.assertLessEqual(again["planned_peak_bytes"], middle["peak_bytes"])

    @common.full
    def test_picture(self):
        report = common.report("plan", REVNET, *LOSS, "--batch", 4, "--html", self.at("p.html"))
        common.report("plan", REVNET, *LOSS, "--batch", 4, "--html", self.at("p.svg"))
        svg = xml.parse(self.at("p.svg")).getroot()
        with open(self.at("p.html")) as f:
            page = f.read()
        text = ["".join(t.itertext()) for t in svg.iter("{http://www.w3.org/2000/svg}text")]
        for wanted in ("all values stored", "as planned", "Time against memory"):
            self.assertIn(wanted, text)
            self.assertIn(wanted, page)
        self.assertLess(text.index("all values stored"), text.index("as planned"))
        self.assertEqual(sum(t.startswith("alive at the peak: ") for t in text), 2)
        self.assertEqual(sum(t.startswith("this plan: ") for t in text), 1)
        points = [c for c in svg.iter("{http://www.w3.org/2000/svg}circle") if c.get("class") == "a"]
        self.assertEqual(len(points), len(report["curve"]))
        table = xml.fromstring(page[page.index("<tbody>"):page.index("</tbody>") + 8])
        rows = [["".join(c.itertext()) for c in row] for row in table]
        self.assertEqual([r[0] for r in rows], [b["name"] for b in report["blocks"]])
        self.assertTrue(any(r[4] for r in rows), "some block inverts")

    def test_deterministic_plans_measure_nothing(self):
        environment = {k: v for k, v in os.environ.items() if k != "INVONNX_COST"} | {"XDG_CACHE_HOME": self.top}
        told = {}
        for flag in ("--deterministic", "--seed=0"):
            report = common.report("plan", REVNET, *LOSS, "--batch", 4, flag, env=environment)
            told[flag] = report["cost"] == "time"
            self.assertEqual(os.path.isdir(self.at("invonnx")), told[flag])
        self.assertEqual(told, {"--deterministic": False, "--seed=0": True})

    def test_rates_of_a_gpu(self):
        """They need no GPU and are not measured. Small batches are bound by launches there, whatever their size."""
        environment = {k: v for k, v in os.environ.items() if k != "INVONNX_COST"} | {"XDG_CACHE_HOME": self.top}
        took = {}
        for batch in (2, 8, 4096):
            report = common.report("plan", REVNET, *LOSS, "--batch", batch, "--memory", "invert", "--device", "cuda",
                                   env=environment)
            self.assertEqual(report["cost"], "time")
            self.assertGreater(report["predicted_seconds"], report["store_predicted_seconds"])
            took[batch] = report["predicted_seconds"]
        self.assertLess(took[8], 1.5 * took[2])
        self.assertGreater(took[4096], 5 * took[8])
        self.assertFalse(os.path.isdir(self.at("invonnx")))
        status, _, said = common.call("plan", REVNET, *LOSS, "--cost", "time", "--device", "sim", env=environment)
        self.assertEqual(status, 2)
        self.assertIn("cpu and cuda, not of sim", said)

    def test_picture_without_gain(self):
        report = common.report("plan", REVNET, *LOSS, "--batch", 4, "--memory", "store", "--html", self.at("p.svg"))
        self.assertEqual(len(report["curve"]), 1)
        svg = xml.parse(self.at("p.svg")).getroot()
        text = ["".join(t.itertext()) for t in svg.iter("{http://www.w3.org/2000/svg}text")]
        self.assertEqual(sum(t.startswith("No plan that was found takes less memory") for t in text), 1)
        self.assertFalse(any(t.startswith(("this plan: ", "all values stored: ")) for t in text), text)
        self.assertFalse([c for c in svg.iter("{http://www.w3.org/2000/svg}circle") if c.get("class") == "a"])

    def test_says_when_nothing_is_gained(self):
        store = common.report("plan", REVNET, *LOSS, "--batch", 4, "--memory", "store")["planned_peak_bytes"]
        budget = ("--budget", store + 1)
        for args in (("plan", REVNET, *LOSS, "--batch", 4, *budget), self.train("a.onnx", *budget)):
            status, out, err = common.call(*args)
            self.assertEqual(status, 0, err)
            self.assertIn("saves nothing here", out, args)
        status, out, err = common.call("plan", REVNET, *LOSS, "--batch", 4, "--budget", store // 2)
        self.assertNotIn("saves nothing", out)

    def resnet(self, blocks=(8, 16, 16, 32, 32)):
        """A few residual blocks without normalisation, of which each halves the image."""
        nodes, weights, x, c = [], [], "x", 3

        def conv(x, c, n, size, stride):
            name = f"w{len(weights)}"
            weights.append(onnx.numpy_helper.from_array(np.full((n, c, size, size), 0.01, np.float32), name))
            nodes.append(onnx.helper.make_node("Conv", [x, name], [name + ".y"], strides=[stride] * 2, pads=[size // 2] * 4))
            return name + ".y"

        def op(kind, *args):
            nodes.append(onnx.helper.make_node(kind, args, [f"{kind}{len(nodes)}"]))
            return nodes[-1].output[0]

        for n in blocks:
            branch = conv(op("Relu", conv(x, c, n, 3, 2)), n, n, 3, 1)
            x, c = op("Relu", op("Add", branch, conv(x, c, n, 1, 2))), n
        nodes.append(onnx.helper.make_node("GlobalAveragePool", [x], ["g"]))
        nodes.append(onnx.helper.make_node("Flatten", ["g"], ["y"]))
        value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
                 for name, shape in (("x", [4, 3, 32, 32]), ("y", [4, c]))]
        graph = onnx.helper.make_graph(nodes, "resnet", value[:1], value[1:], weights)
        path = self.at("resnet.onnx")
        onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
        return path

    def test_auto_balances_memory_and_time(self):
        """Fails where some budget has a plan whose product of memory and time is clearly smaller than auto's."""
        how = ("plan", self.resnet(), *LOSS, "--cost", "flops")
        _, _, refusal = common.call(*how, "--budget", 1)
        least = int(re.search(r"plan found needs (\d+)", refusal).group(1))

        def product(*more):
            report = common.report(*how, *more)
            return report["planned_peak_bytes"] * (1 + report["plan"]["overhead"])

        chosen = product()
        for percent in (100, 105, 112, 120, 135, 150, 200):
            self.assertLessEqual(chosen, 1.01 * product("--budget", least * percent // 100), percent)

    def test_sum_of_gradients_is_in_place(self):
        """The gradient of a weight that is read twice is the sum of two parts, and lies where one of them was."""
        w = numpy_helper.from_array(np.zeros((256, 256), np.float32), "w")
        nodes = [helper.make_node("MatMul", [a, "w"], [b]) for a, b in (("x", "h"), ("h", "y"))]
        ends = [[helper.make_tensor_value_info(k, onnx.TensorProto.FLOAT, [2, 256])] for k in "xy"]
        model = helper.make_model(helper.make_graph(nodes, "twice", *ends, [w]),
                                  opset_imports=[helper.make_opsetid("", 17)])
        onnx.save(model, self.at("twice.onnx"))
        report = common.report("plan", self.at("twice.onnx"), "--tied", "w", "--loss", "mse", "--memory", "store")
        self.assertLess(max(t["live_bytes"] for t in report["timeline"]), 2.1 * 4 * 256 * 256)

    def test_auto_is_no_worse_than_recompute(self):
        """It may do all that recompute may; hz_tied_weights has been a model where it ended at a worse plan."""
        for name in "hz_tied_weights_ts17", "plain_lenet_ts17", "revnet8_slice_ts17", "revnet8_evalbn_ts17", "resnet":
            model = self.resnet() if name == "resnet" else os.path.join(common.model(name), "model.onnx")

            def report(memory, *more):
                got = common.report("plan", model, "--loss", "mse", "--memory", memory, "--cost", "flops", *more)
                return got["planned_peak_bytes"], 1 + got["plan"]["overhead"]

            (peak, time), (recompute_peak, recompute_time) = report("auto"), report("recompute")
            self.assertLessEqual(peak * time, 1.000001 * recompute_peak * recompute_time, name)
            budget = "--budget", recompute_peak
            self.assertLessEqual(report("auto", *budget)[1], 1.01 * report("recompute", *budget)[1], name)


if __name__ == "__main__":
    unittest.main()
