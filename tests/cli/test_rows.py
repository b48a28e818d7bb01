# SPDX-License-Identifier: Apache-2.0
"""What a batch is: axis 0 of inputs and outputs, rows that do not act on each other, batches that can be normalized."""
import unittest

import numpy as np
import onnx
from common import InFolder, call, report
from onnx import numpy_helper, parser

RNG = np.random.default_rng(5)
HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
R = lambda *shape: RNG.standard_normal(shape).astype(np.float32)


class Base(InFolder):
    def model(self, text, **weights):
        m = parser.parse_model(HEAD + text)
        for name, value in weights.items():
            m.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        onnx.save(m, self.at("m.onnx"))
        return self.at("m.onnx")

    def file(self, name, array):
        np.save(self.at(name + ".npy"), array)
        return self.at(name + ".npy")

    def args(self, x, y, loss, *more):
        data = [a for n, v in x.items() for a in ("--data", n + "=" + self.file("in_" + n, v))]
        return [*data, *([] if y is None else ["--target", self.file("target", y)]), "--loss", loss, *more]

    def says(self, path, x, y, loss, *more, commands=("train", "eval")):
        """What the commands say; all of them the same way."""
        texts = []
        for command in commands:
            out = ["-o", self.at("out.onnx")] if command == "train" else []
            status, stdout, err = call(command, path, *self.args(x, y, loss, *more), *out)
            texts.append(err if status else "")
            self.assertIn(status, (0, 1), err)
            self.assertEqual(bool(texts[0]), bool(texts[-1]), texts)
        return texts[0]

    def refused(self, *args, word, **more):
        text = self.says(*args, **more)
        self.assertRegex(text, word)
        self.assertIn("--stacked", text)
        self.assertIn("--rows-mix", text)

    def taken(self, *args, **more):
        self.assertEqual(self.says(*args, **more), "")


class Rows(Base):
    """Whether axis 0 is the batch."""

    # --- another axis is the batch ---

    TIME = """g (float[batch,time,3] x) => (float[time,batch,5] y) {
        t = Transpose<perm = [1, 0, 2]>(x)
        y = MatMul(t, w) }"""

    def test_time_major_output(self):
        """Also where time and batch are equal, where the file fixes extents, and with a batch of one row."""
        w = R(3, 5)
        for names in ("batch,time", "12,6"):
            text = self.TIME.replace("batch,time", names).replace("time,batch", ",".join(names.split(",")[::-1]))
            x, t = R(12, 6, 3), RNG.integers(0, 5, (12, 6))
            for batch in (12,) if names == "12,6" else (1, 3, 4, 6, 12):
                with self.subTest(names=names, batch=batch):
                    self.refused(self.model(text, w=w), {"x": x}, t, "cross_entropy", "--batch", str(batch),
                                 word="axis 1 of output 'y' .* is the batch")
        fixed = self.TIME.replace("batch,time", "6,6").replace("time,batch", "6,6")
        self.refused(self.model(fixed, w=w), {"x": R(12, 6, 3)}, RNG.integers(0, 5, (12, 6)), "cross_entropy",
                     word="axis 1 of output 'y'")

    def test_one_row(self):
        """A batch that the file fixes at 1: the target's shape does not fit, and the remedy is named."""
        text = self.TIME.replace("batch,time", "1,6").replace("time,batch", "6,1")
        args = self.args({"x": R(12, 6, 3)}, RNG.integers(0, 5, (12, 6)), "cross_entropy")
        status, _, err = call("eval", self.model(text, w=R(3, 5)), *args)
        self.assertEqual(status, 1)
        self.assertRegex(err, "[Aa]xis 1 of (the )?output.*--stacked")

    def test_log_determinant(self):
        """That of a flow is one of each row, too."""
        text = """g (float[N,3] x) => (float[N,3] z, float[K] logdet) {
            z = Mul(x, w)
            q = Mul(x, x)
            logdet = ReduceSum<keepdims = 0>(q, axes) }"""
        for axes, right in ([1], True), ([0], False):
            path = self.model(text, w=R(3), axes=np.array(axes))
            more = {"x": R(12, 3)}, None, "nll", "--logdet", "logdet", "--trust-logdet", "--batch", "3"
            if right:
                self.taken(path, *more)
            else:
                self.refused(path, *more, word="affect each other|axis 1")

    def test_only_other_outputs(self):
        """A state whose batch is axis 1, beside what the loss is of."""
        text = """g (float[N,6,3] x) => (float[N,5] y, float[1,N,4] h) {
            t = Transpose<perm = [1, 0, 2]>(x)
            all, h = LSTM<hidden_size = 4>(t, w, r)
            last = Squeeze(h, zero)
            y = MatMul(last, v) }"""
        path = self.model(text, w=R(1, 16, 3), r=R(1, 16, 4), v=R(4, 5), zero=np.array([0]))
        for batch in "1", "3", "12":
            self.taken(path, {"x": R(12, 6, 3)}, RNG.integers(0, 5, 12), "cross_entropy", "--loss-output", "y", "--batch",
                       batch)

    # --- rows act on each other ---

    def test_recurrence_along_rows(self):
        for direction, n in ("forward", 1), ("reverse", 1), ("bidirectional", 2):
            text = f"""g (float[time,batch,3] x) => (float[time,batch,5] y) {{
                h = GRU<hidden_size = 4, direction = "{direction}">(x, w, r)
                t = Transpose<perm = [0, 2, 1, 3]>(h)
                s = Reshape(t, flat)
                y = MatMul(s, v) }}"""
            path = self.model(text, w=R(n, 12, 3), r=R(n, 12, 4), v=R(4 * n, 5), flat=np.array([0, 0, -1]))
            for batch in "2", "4":
                with self.subTest(direction=direction, batch=batch):
                    self.refused(path, {"x": R(12, 6, 3)}, RNG.integers(0, 5, (12, 6)), "cross_entropy", "--batch", batch,
                                 "--class-axis", "2", word="affect each other")

    ATTENTION = """g (float[time,batch,4] x) => (float[time,batch,4] y) {
        q = Transpose<perm = [1, 0, 2]>(x)
        k = Transpose<perm = [1, 2, 0]>(x)
        p = MatMul(q, k)
        a = Softmax<axis = -1>(p)
        o = MatMul(a, q)
        b = Transpose<perm = [1, 0, 2]>(o)
        y = MatMul(b, w) }"""

    def test_attention_along_rows(self):
        path, x, y = self.model(self.ATTENTION, w=R(4, 4)), {"x": R(8, 4, 4)}, R(8, 4, 4)
        self.refused(path, x, y, "mse", "--batch", "4", word="affect each other")
        self.taken(path, x, y, "mse", "--batch", "4", "--rows-mix")
        self.taken(path, {"x": x["x"][None]}, y[None], "mse", "--stacked")
        # data of equal rows do not tell, but their elements turned round do
        self.refused(path, {"x": np.tile(R(1, 4, 4), (8, 1, 1))}, y, "mse", "--batch", "4", word="affect each other")

    def test_tokens(self):
        """Integer rows: of each batch by itself, and along it."""
        text = """g (int64[batch,5] ids) => (float[batch,5,7] y) {
            e = Gather(table, ids)
            m = ReduceMean<axes = [AXIS], keepdims = 1>(e)
            s = Add(e, m)
            y = MatMul(s, w) }"""
        ids, t = RNG.integers(0, 9, (12, 5)), RNG.integers(0, 7, (12, 5))
        weights = {"table": R(9, 4), "w": R(4, 7)}
        self.taken(self.model(text.replace("AXIS", "1"), **weights), {"ids": ids}, t, "cross_entropy", "--batch", "5")
        self.refused(self.model(text.replace("AXIS", "0"), **weights), {"ids": ids}, t, "cross_entropy", "--batch", "5",
                     word="affect each other")

    # --- nothing is wrong ---

    def test_evaluation_mode(self):
        """Batch statistics of a training form, dropout and noise are no reason."""
        text = """g (float[N,3] x) => (float[N,4] y) {
            n, m1, v1 = BatchNormalization<training_mode = 1>(x, g, b, m, v)
            yes = Constant<value = bool {1}>()
            ratio = Constant<value = float {0.5}>()
            d = Dropout(n, ratio, yes)
            r = RandomNormalLike(d)
            s = Add(d, r)
            y = MatMul(s, w) }"""
        path = self.model(text, g=R(3), b=R(3), m=R(3), v=np.ones(3, "f"), w=R(3, 4))
        self.taken(path, {"x": R(12, 3)}, RNG.integers(0, 4, 12), "cross_entropy", "--batch", "5")

    def test_rows_in_front_of_other_axes(self):
        """[N, T] folded into one axis, and a row that is not a number."""
        text = """g (float[N,6,3] x) => (float[M,5] y) {
            s = Reshape(x, flat)
            y = MatMul(s, w) }"""
        path = self.model(text, w=R(3, 5), flat=np.array([-1, 3]))
        self.taken(path, {"x": R(12, 1, 3).repeat(6, 1)}, None, "nll", "--batch", "4")
        small = self.model("g (float[N,3] x) => (float[N,2] y) { y = MatMul(x, w) }", w=R(3, 2))
        bad = R(12, 3)
        bad[2] = np.nan
        err = self.says(small, {"x": bad}, R(12, 2), "mse", "--no-shuffle", commands=("train",))
        self.assertIn("row 2", err)

    def test_largest_of_all(self):
        """What all rows share for the sake of rounding, and scales of dynamic quantization."""
        text = """g (float[N,4] x) => (float[N,4] y) {
            h = MatMul(x, w)
            m = ReduceMax<keepdims = 0>(h)
            d = Sub(h, m)
            e = Exp(d)
            s = ReduceSum<keepdims = 1>(e, one)
            y = Div(e, s) }"""
        self.taken(self.model(text, w=R(4, 4), one=np.array([1])), {"x": R(12, 4)}, R(12, 4), "mse", "--batch", "4")

    def test_batch_inside(self):
        """A batch that is open, and stands in a reshape all the same: it is looked at as it is."""
        text = """g (float[N,2,3] x) => (float[N,5] y) {
            s = Reshape(x, four)
            y = MatMul(s, w) }"""
        path = self.model(text, w=R(6, 5), four=np.array([4, 6]))
        self.taken(path, {"x": R(12, 2, 3)}, RNG.integers(0, 5, 12), "cross_entropy", "--batch", "4")

    def test_rows_in_another_order(self):
        """Each row acts on one row alone, which is another one."""
        for axis in "0", "1":
            text = f"""g (float[N,3] x) => (float[N,3] y) {{
                r = Slice(x, last, first, axis, back)
                y = Mul(r, w) }}"""
            path = self.model(text, w=R(3), last=np.array([-1]), first=np.array([-1000]), axis=np.array([int(axis)]),
                              back=np.array([-1]))
            for batch in "2", "3", "4", "7":
                args = path, {"x": R(12, 3)}, R(12, 3), "mse", "--batch", batch
                if axis == "0":
                    self.refused(*args, word="affect each other")
                else:
                    self.taken(*args)

    def test_pairs_of_the_batch(self):
        """A contrastive loss: rows are meant to act on each other."""
        text = """g (float[N,3] x) => (float[N,N] y) {
            h = MatMul(x, w)
            t = Transpose<perm = [1, 0]>(h)
            y = MatMul(h, t) }"""
        path, x, y = self.model(text, w=R(3, 4)), {"x": R(4, 3)}, np.arange(4)
        self.refused(path, x, y, "cross_entropy", "--batch", "4", word="affect each other")
        self.taken(path, x, y, "cross_entropy", "--batch", "4", "--rows-mix")


class Norms(Base):
    """Normalizations of one value."""
    BATCH = """g (float[N,3] x) => (float[N,2] y) {
        h = Gemm(x, w, b)
        n, m1, v1 = BatchNormalization<training_mode = 1, momentum = 0.75>(h, g, be, m, v)
        y = MatMul(n, u) }"""

    def batch_model(self, text=None):
        return self.model(text or self.BATCH, w=R(3, 4), b=R(4), g=np.ones(4, "f"), be=R(4), m=np.zeros(4, "f"),
                          v=np.ones(4, "f"), u=R(4, 2))

    def train(self, path, rows, *more):
        x, y = {"x": rows}, RNG.integers(0, 2, len(rows))
        status, out, err = call("train", path, *self.args(x, y, "cross_entropy", *more), "--lr", "0.001", "-o",
                                self.at("out.onnx"))
        return status, err

    def statistics(self):
        return {i.name: numpy_helper.to_array(i) for i in onnx.load(self.at("out.onnx")).graph.initializer}

    def test_batch_norm(self):
        for text in self.BATCH, self.BATCH.replace("h = Gemm", "h2 = Gemm").replace(
                "n, m1", "a = Unsqueeze(h2, two)\n h = Unsqueeze(a, two)\n k, m1").replace(
                    "y = M", "n = Flatten(k)\n y = M"):
            m = self.batch_model(text)
            if "two" in text:
                model = onnx.load(m)
                model.graph.initializer.append(numpy_helper.from_array(np.array([2]), "two"))
                onnx.save(model, m)
            for args in ["--batch", "3"], ["--batch", "1"], ["--batch", "1", "--accumulate", "4"]:
                with self.subTest(args=args):
                    status, err = self.train(m, R(10, 3), *args)
                    self.assertEqual(status, 1, err)
                    self.assertRegex(err, "one value per channel(.|\n)*--drop-last")
                    self.assertRegex(err, "'(n|k|m1|)[^']*' has")
            self.assertEqual(self.train(m, R(10, 3), "--batch", "3", "--drop-last")[0], 0)
            self.assertEqual(self.train(m, R(10, 3), "--batch", "4")[0], 0)

    def test_train_bn(self):
        m = self.batch_model(self.BATCH.replace("n, m1, v1", "n").replace("training_mode = 1, ", ""))
        self.assertEqual(self.train(m, R(10, 3), "--batch", "3")[0], 0)  # by stored statistics
        status, err = self.train(m, R(10, 3), "--batch", "3", "--train-bn")
        self.assertEqual(status, 1)
        self.assertIn("--drop-last", err)

    def test_groups(self):
        """Instance and group normalization; evaluation does not ask."""
        for node in "InstanceNormalization(c, g, be)", "GroupNormalization<num_groups = 4>(c, g, be)":
            text = f"""g (float[N,3] x) => (float[N,2] y) {{
                h = Gemm(x, w, b)
                c = Unsqueeze(h, two)
                k = {node}
                n = Flatten(k)
                y = MatMul(n, u) }}"""
            m = self.model(text, w=R(3, 4), b=R(4), g=np.ones(4, "f"), be=R(4), u=R(4, 2), two=np.array([2]))
            if "Group" in node:
                model = onnx.load(m)
                model.opset_import[0].version = 21
                model.ir_version = 10
                onnx.save(model, m)
            with self.subTest(node=node):
                status, err = self.train(m, R(10, 3), "--batch", "5")
                self.assertEqual(status, 1, err)
                self.assertIn("one value per channel", err)
                report("eval", m, *self.args({"x": R(10, 3)}, RNG.integers(0, 2, 10), "cross_entropy", "--batch", "5"))

    def test_cumulative(self):
        """Momentum 0 and 1 stand for the mean over all batches, also of micro-batches, and of a run that goes on."""
        x = R(12, 3) * 3 + 5
        for momentum in "0.0", "1.0":
            text = """g (float[N,3] x) => (float[N,2] y) {
                n, m1, v1 = BatchNormalization<training_mode = 1, momentum = M>(x, g, be, m, v)
                y = MatMul(n, u) }""".replace("M>", momentum + ">")
            path = self.model(text, g=np.ones(3, "f"), be=R(3), m=np.zeros(3, "f"), v=np.ones(3, "f"), u=R(3, 2))
            parts = x.reshape(4, 3, 3)
            want = parts.mean(1).mean(0), parts.var(1).mean(0)
            for args in [], ["--accumulate", "2"], ["--accumulate", "3"], ["--epochs", "2"]:
                with self.subTest(momentum=momentum, args=args):
                    status, err = self.train(path, x, "--batch", "3", "--no-shuffle", *args)
                    self.assertEqual(status, 0, err)
                    self.assertRegex(err, "momentum 0 or 1(.|\n)*means")
                    got = self.statistics()
                    np.testing.assert_allclose(got["m"], want[0], rtol=1e-5)
                    np.testing.assert_allclose(got["v"], want[1], rtol=1e-5)
            folder = self.at("runs" + momentum)
            more = ["--batch", "3", "--no-shuffle", "--accumulate", "2", "--checkpoint", folder]
            self.assertEqual(self.train(path, x, *more, "--epochs", "1")[0], 0)
            status, err = self.train(path, x, *more, "--epochs", "2", "--resume")
            self.assertEqual(status, 0, err)
            np.testing.assert_allclose(self.statistics()["m"], want[0], rtol=1e-5)
            # evaluation computes with what is stored, and other momenta are as they were
        status, err = self.train(self.batch_model(), x, "--batch", "3")
        self.assertNotIn("momentum", err)


class LossInside(Base):
    """Micro-batches of a loss that the model computes give the step of one batch."""
    V, T = 5, 4

    def step(self, path, x, t, *args):
        return self.step_of(path, {"x": x, "t": t}, *args)

    def step_of(self, path, fed, *args):
        data = [a for n, v in fed.items() for a in ("--data", n + "=" + self.file("in_" + n, v))]
        status, out, err = call("train", path, *data, "--loss", "output", "--lr", "1", "--no-shuffle", "-o",
                                self.at("out.onnx"), *args)
        self.assertEqual(status, 0, err)
        w = next(i for i in onnx.load(self.at("out.onnx")).graph.initializer if i.name == "w")
        return numpy_helper.to_array(w), err

    TEXT = """g (float[N,4,3] x, int64[N,4] t) => (float loss) {
        l = MatMul(x, w)
        l2 = Reshape(l, s)
        t2 = Reshape(t, one)
        LOSS }"""

    def labels(self):
        t = RNG.integers(0, self.V, (6, self.T))
        t[1, 1:] = t[3, :3] = t[4] = -100
        return t

    def holds(self, loss, told=False, **weights):
        path = self.model(self.TEXT.replace("LOSS", loss), w=R(3, self.V), s=np.array([-1, self.V]), one=np.array([-1]),
                          **weights)
        x, t = R(6, self.T, 3), self.labels()
        if "ignore_index" not in loss and "mask" not in loss:
            t = np.abs(t) % self.V
        want, _ = self.step(path, x, t, "--batch", "6")
        for args in ["--batch", "1", "--accumulate", "6"], ["--batch", "2", "--accumulate", "3"], ["--batch", "4",
                                                                                                  "--accumulate", "2"]:
            with self.subTest(loss=loss, args=args):
                if told:
                    self.assertIn("--accumulate", self.step(path, x, t, *args)[1])
                    continue
                got, err = self.step(path, x, t, *args)
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
                self.assertNotIn("--accumulate", err)

    CE = "SoftmaxCrossEntropyLoss"

    def test_operators(self):
        self.holds(f'loss = {self.CE}<ignore_index = -100, reduction = "mean">(l2, t2)')
        self.holds(f'loss = {self.CE}<ignore_index = -100, reduction = "mean">(l2, t2, cw)', cw=np.abs(R(self.V)))
        self.holds(f'loss = {self.CE}<reduction = "mean">(l2, t2, cw)', cw=np.abs(R(self.V)))
        self.holds(f'loss = {self.CE}<reduction = "mean">(l2, t2)')
        self.holds(f'loss = {self.CE}<ignore_index = -100, reduction = "sum">(l2, t2)')
        self.holds('p = LogSoftmax<axis = 1>(l2)\n'
                   'loss = NegativeLogLikelihoodLoss<ignore_index = -100, reduction = "mean">(p, t2)')
        self.holds('p = LogSoftmax<axis = 1>(l2)\n'
                   'loss = NegativeLogLikelihoodLoss<ignore_index = -100, reduction = "sum">(p, t2, cw)',
                   cw=np.abs(R(self.V)))

    def test_around_operators(self):
        """Scaled, and beside a penalty of the weights."""
        self.holds(f'a = {self.CE}<ignore_index = -100, reduction = "mean">(l2, t2)\nloss = Mul(a, half)',
                   half=np.float32(0.5))
        self.holds(f'a = {self.CE}<ignore_index = -100, reduction = "mean">(l2, t2)\nq = Mul(w, w)\n'
                   'b = ReduceMean<keepdims = 0>(q)\nloss = Add(a, b)')

    def test_reductions(self):
        each = f'e = {self.CE}<ignore_index = -100, reduction = "none">(l2, t2)\n'
        self.holds(each + "loss = ReduceMean<keepdims = 0>(e)")
        self.holds(each + "loss = ReduceSum<keepdims = 0>(e)")
        counted = "no = Equal(t2, skip)\nm0 = Not(no)\nmask = Cast<to = 1>(m0)\nn = ReduceSum<keepdims = 0>(mask)\n"
        some = {"skip": np.array(-100)}
        count = counted + each + "a = ReduceSum<keepdims = 0>(e)\nn1 = Max(n, tiny)\nloss = Div(a, n1)"
        self.holds(count, tiny=np.float32(1e-3), **some)
        self.holds(counted + each + "n1 = Max(n, tiny)\nd = Div(e, n1)\nloss = ReduceSum<keepdims = 0>(d)",
                   tiny=np.float32(1e-3), **some)

    def test_labels_of_each_row(self):
        """The mean of what each row's labels give is a mean over rows, of one row, too."""
        self.holds(f'e = {self.CE}<ignore_index = -100, reduction = "none">(l2, t2)\n'
                   "no = Equal(t2, skip)\nm0 = Not(no)\nmask = Cast<to = 1>(m0)\n"
                   "ee = Reshape(e, nt)\nmm = Reshape(mask, nt)\n"
                   "a = ReduceSum<keepdims = 0>(ee, a1)\nn = ReduceSum<keepdims = 0>(mm, a1)\nn1 = Max(n, least)\n"
                   "r = Div(a, n1)\nloss = ReduceMean<keepdims = 0>(r)", skip=np.array(-100), nt=np.array([-1, self.T]),
                   a1=np.array([1]), least=np.float32(1))

    def test_of_shapes_and_axes(self):
        """A sum that is divided by a number made of shapes, or a mean along rows before or behind a sum."""
        start = "x0 = Reshape(x, flat)\ny = MatMul(x0, w)\nq = Mul(y, y)\n"
        weights = {"w": R(12, self.V), "flat": np.array([0, 12])}
        axes = {"a0": np.array([0]), "a1": np.array([1])}
        rows = "sh = Shape(x)\nn0 = Gather(sh, zero)\nn = Cast<to = 1>(n0)\na = ReduceSum<keepdims = 0>(q)\n"
        sums = "r = ReduceSum(q, a1)\nt9 = Transpose(r)\no = Shape(r)\n" \
               "ones = ConstantOfShape<value = float[1] {1.0}>(o)\nm = MatMul(t9, ones)\nloss = Reshape(m, none)"
        for loss, more in ((rows + "loss = Div(a, n)", {"zero": np.array(0)}),
                           (rows + "r = Reciprocal(n)\nloss = Mul(a, r)", {"zero": np.array(0)}),
                           (rows + "b = Mul(a, n)\nloss = Div(b, n)", {"zero": np.array(0)}),
                           ("a = ReduceMean<keepdims = 0>(q)\nsh = Shape(x)\nn0 = Gather(sh, zero)\n"
                            "n = Cast<to = 1>(n0)\nloss = Mul(a, n)", {"zero": np.array(0)}),
                           ("a = ReduceMean<axes = [0], keepdims = 0>(q)\nloss = ReduceSum<keepdims = 0>(a)", {}),
                           ("a = ReduceSum<keepdims = 0>(q, a1)\nloss = ReduceMean<keepdims = 0>(a)", axes),
                           ("a = ReduceSum<keepdims = 0>(q, a0)\nloss = ReduceMean<keepdims = 0>(a)", axes),
                           ("a = ReduceSum<keepdims = 0>(q)\nloss = Mul(a, scale)", {"scale": np.float32(0.25)}),
                           (sums, {**axes, "none": np.zeros(0, np.int64)})):
            self.steps_are_equal("g (float[N,4,3] x, int64[N,4] t) => (float loss) {\n" + start + loss + "}",
                                 {**weights, **more})

    def steps_are_equal(self, text, weights, rows=6, told=False, labels=None):
        path = self.model(text, **weights)
        x, t = R(rows, self.T, 3), np.zeros((rows, self.T), np.int64) if labels is None else labels
        want, _ = self.step(path, x, t, "--batch", str(rows))
        for args in ["--batch", "1", "--accumulate", "7"], ["--batch", "2", "--accumulate", "4"], ["--batch", "4",
                                                                                                  "--accumulate", "2"]:
            with self.subTest(text=text, args=args):
                got, err = self.step(path, x, t, *args)
                if told:
                    self.assertIn("--accumulate", err)
                    continue
                np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
                self.assertNotIn("--accumulate", err)

    WEIGHED = """g (float[N,4,3] x, int64[N,4] t) => (float loss) {
        v = Cast<to = 1>(t)
        y = MatMul(x, w)
        q0 = ReduceSum<keepdims = 0>(y, last)
        q1 = Mul(q0, q0)
        q = Mul(q1, v)
        """
    COUNTED = WEIGHED + """a = ReduceSum<keepdims = 0>(q)
        n = ReduceSum<keepdims = 0>(v)
        """

    def test_what_counts_in_parts(self):
        """A count with a bound below, of batches of which one counts nothing; and totals that do not add up."""
        t = RNG.integers(0, 2, (7, self.T))
        t[0], t[1], t[6] = 1, 0, [1, 0, 0, 1]
        w = {"w": R(3, self.V), "last": np.array([2]), "one": np.float32(1), "none": np.float32(0)}
        for end in ("b = Max(n, one)\nloss = Div(a, b)", "b = Clip(n, one)\nloss = Div(a, b)",
                    "z = Equal(n, none)\nb = Where(z, one, n)\nloss = Div(a, b)"):
            self.steps_are_equal(self.COUNTED + end + "}", w, rows=7, labels=t)
        t[1, 0] = 1
        for end in ("b = ReduceMean<keepdims = 0>(v)\nloss = Div(a, b)", "b = Add(n, one)\nloss = Div(a, b)",
                    "b = Sqrt(n)\nloss = Div(a, b)", "b = ReduceMax<keepdims = 0>(v)\nloss = Div(a, b)",
                    "b = Mul(n, n)\nloss = Div(a, b)"):
            self.steps_are_equal(self.COUNTED + end + "}", w, rows=7, labels=t, told=True)

    def test_what_is_left_of_rows(self):
        """A last batch of one row, and a count of what comparisons of trained values hold for."""
        text = """g (float[N,4,3] x, int64[N,4] t) => (float loss) {
            v0 = Cast<to = 1>(t)
            v = ReduceSum<keepdims = 0>(v0, one)
            x0 = Reshape(x, flat)
            y = MatMul(x0, w)
            q = Mul(y, y)
            e = ReduceMean<axes = [1], keepdims = 0>(q)
            END }"""
        w = {"w": R(12, self.V), "flat": np.array([0, 12]), "one": np.array([1])}
        t = np.repeat(np.arange(1, 8)[:, None], self.T, 1)
        for end in ("z = Mul(e, v)\na = ReduceSum<keepdims = 0>(z)\nb = ReduceSum<keepdims = 0>(v)\nloss = Div(a, b)",
                    "z = Sub(e, least)\nr = Relu(z)\nm = Greater(r, none)\nc = Cast<to = 1>(m)\n"
                    "a = ReduceSum<keepdims = 0>(r)\nb0 = ReduceSum<keepdims = 0>(c)\nb = Add(b0, tiny)\n"
                    "loss = Div(a, b)"):
            more = {k: v for k, v in (("least", np.float32(5)), ("none", np.float32(0)), ("tiny", np.float32(1e-8)))
                    if k in end}
            self.steps_are_equal(text.replace("END", end), {**w, **more}, rows=7, labels=t)

    def test_losses_of_nothing_at_first(self):
        """Where the first rows give 0, or a part does, numbers do not tell; what nodes say holds."""
        text = self.WEIGHED + "END }"
        w = {"w": R(3, self.V), "last": np.array([2])}
        t = np.ones((7, self.T), np.int64)
        t[:4] = 0
        for end in ("loss = ReduceMean<keepdims = 0>(q)", "loss = ReduceSum<keepdims = 0>(q)",
                    "a = ReduceMean<axes = [0], keepdims = 0>(q)\nloss = ReduceSum<keepdims = 0>(a)"):
            self.steps_are_equal(text.replace("END", end), w, rows=7, labels=t)
        share = "sh = Shape(x)\nn0 = Gather(sh, i0)\nn = Cast<to = 1>(n0)\na = ReduceSum<keepdims = 0>(q)\n" \
                "loss = Div(a, n)"
        self.steps_are_equal(text.replace("END", share), {**w, "i0": np.array(0)}, rows=7, labels=t, told=True)
        t[0] = 1
        most = "r = ReduceSum<keepdims = 0>(q, last1)\nloss = ReduceMax<keepdims = 0>(r)"
        self.steps_are_equal(text.replace("END", most), {**w, "last1": np.array([1])}, rows=7, labels=t, told=True)
        zero = "y2 = MatMul(x, k)\na = ReduceMean<keepdims = 0>(y2)\nb = ReduceSum<keepdims = 0>(q)\nloss = Add(a, b)"
        self.steps_are_equal(text.replace("END", zero), {**w, "k": np.zeros((3, 2), np.float32)}, rows=7, labels=t + 1,
                             told=True)
        two = "d = Abs(q)\na = ReduceSum<keepdims = 0>(d)\nb = ReduceSum<keepdims = 0>(q)\nloss = Add(a, b)"
        self.steps_are_equal(text.replace("END", two), w, rows=7, labels=t + 1)

    def test_a_number_that_is_fed(self):
        """It is the same for all rows: how many labels the whole batch has, or the weight of a part."""
        for end in ("a = ReduceSum<keepdims = 0>(q)\nloss = Div(a, k)",
                    "a = ReduceMean<keepdims = 0>(q)\nloss = Mul(a, k)"):
            path = self.model("g (float[N,3] x, float k) => (float loss) {\ny = MatMul(x, w)\nq = Mul(y, y)\n" + end +
                              "}", w=R(3, self.V))
            x, k = R(7, 3), np.array(11, np.float32)
            want, _ = self.step_of(path, {"x": x, "k": k}, "--batch", "7")
            for batch in "1", "2", "4":
                got, err = self.step_of(path, {"x": x, "k": k}, "--batch", batch, "--accumulate", "7")
                np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
                self.assertNotIn("--accumulate", err)

    def test_weights_of_rows(self):
        """Rows that count for a share of the weights of all: that is not found, and told."""
        path = self.model("""g (float[N,4,3] x, int64[N,4] t) => (float loss) {
            v0 = Cast<to = 1>(t)
            v = ReduceMean<axes = [1], keepdims = 0>(v0)
            b = ReduceSum<keepdims = 0>(v)
            s = Div(v, b)
            x0 = Reshape(x, flat)
            y = MatMul(x0, w)
            q = Mul(y, y)
            e = ReduceMean<axes = [1], keepdims = 0>(q)
            z = Mul(e, s)
            loss = ReduceSum<keepdims = 0>(z) }""", w=R(12, self.V), flat=np.array([0, 12]))
        x, t = R(6, self.T, 3), np.repeat(np.arange(1, 7)[:, None], self.T, 1)
        for batch in 1, 2, 4:
            self.assertIn("--accumulate", self.step(path, x, t, "--batch", str(batch), "--accumulate", "2")[1])

    def test_noise_is_not_measured(self):
        """A mean of what is noisy is a mean, without a word."""
        path = self.model("""g (float[N,4,3] x, int64[N,4] t) => (float loss) {
            e0 = RandomNormalLike(x)
            xn = Add(x, e0)
            y = MatMul(xn, w)
            q = Mul(y, y)
            loss = ReduceMean<keepdims = 0>(q) }""", w=R(3, self.V))
        x, t = R(6, self.T, 3), np.zeros((6, self.T), np.int64)
        self.assertNotIn("--accumulate", self.step(path, x, t, "--batch", "2", "--accumulate", "3")[1])

    def test_what_cannot_be_told(self):
        each = f'e = {self.CE}<ignore_index = -100, reduction = "none">(l2, t2)\n'
        self.holds(each + "loss = ReduceMax<keepdims = 0>(e)", told=True)
        self.holds(each + "a = ReduceMean<keepdims = 0>(e)\nloss = Sqrt(a)", told=True)

    def test_evaluation(self):
        """The mean over batches counts labels, too."""
        path = self.model(self.TEXT.replace("LOSS", f"loss = {self.CE}<ignore_index = -100>(l2, t2)"), w=R(3, self.V),
                          s=np.array([-1, self.V]), one=np.array([-1]))
        x, t = R(6, self.T, 3), self.labels()
        losses = [report("eval", path, *self.args({"x": x, "t": t}, None, "output", "--batch", str(b)))["loss"]
                  for b in (6, 2, 1)]
        np.testing.assert_allclose(losses, losses[0], rtol=1e-5)


if __name__ == "__main__":
    unittest.main()
