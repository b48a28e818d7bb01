# SPDX-License-Identifier: Apache-2.0
"""Tables of numbers and classes. It fails if training on them is not training on the arrays that they are, if a class
gets another number than its place in the alphabet, or if a bad cell is not named with line and column."""
import os
import shutil
import tempfile
import unittest

import numpy as np
import onnx
from common import call, report
from onnx import numpy_helper, parser

ROWS = 30
LINEAR = """<ir_version: 8, opset_import: ["" : 17]>
g (TYPE[N,SHAPE] x) => (float[N,OUT] y) <float[4,OUT] w = {W}> { c = Cast<to = 1>(x) f = Flatten(c) y = MatMul(f, w) }"""
KINDS = ["setosa", "versicolor", "virginica, wild"]


class Tables(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        g = np.random.default_rng(4)
        self.x = g.standard_normal((ROWS, 4)).astype(np.float32)
        self.label = g.integers(0, 3, ROWS)
        self.label[:3] = 2, 0, 1
        self.value = (self.x @ [1, -2, 0.5, 3]).astype(np.float32)
        self.model = self.make_model()
        np.save(self.file("x.npy"), self.x)
        np.save(self.file("label.npy"), self.label)
        np.save(self.file("value.npy"), self.value[:, None])

    def make_model(self, name="m.onnx", dtype="float", shape="4", out=3):
        w = ", ".join(f"{v:.3f}" for v in np.linspace(-1, 1, 4 * out))
        text = LINEAR.replace("TYPE", dtype).replace("SHAPE", shape).replace("OUT", str(out)).replace("{W}", "{" + w + "}")
        onnx.save(parser.parse_model(text), self.file(name))
        return self.file(name)

    def file(self, name):
        return os.path.join(self.folder, name)

    def lines(self, name):
        with open(self.file(name)) as f:
            return f.read().split("\n")

    def write(self, name, header, columns, separator=",", end="\n"):
        """Columns of numbers or texts; texts with separators in quotes."""
        def cell(v):
            text = v if isinstance(v, str) else f"{v:.9g}"
            return f'"{text}"' if separator in text or '"' in text else text

        rows = [separator.join(map(cell, row)) for row in zip(*columns)]
        with open(self.file(name), "w", newline="") as f:
            f.write(end.join(([separator.join(header)] if header else []) + rows) + end)
        return self.file(name)

    def iris(self, name="t.csv", **options):
        kind = [KINDS[i] for i in self.label]
        a, b, c, d = self.x.T
        return self.write(name, ["a", "b", "kind", "c", "d"], [a, b, kind, c, d], **options)

    def arguments(self, data, *options, loss="cross_entropy", model=None):
        return ["train", model or self.model, "--data", data, "--loss", loss, "--lr", 0.1, "--batch", 4, "--epochs", 2,
                "-o", self.file("out.onnx"), *options]

    def trained(self, data, *options, **more):
        said = report(*self.arguments(data, *options, **more))
        return said, numpy_helper.to_array(onnx.load(self.file("out.onnx")).graph.initializer[0])

    def refused(self, data, *options, says, **more):
        status, _, err = call(*self.arguments(data, *options, **more))
        self.assertEqual(status, 1, err)
        self.assertIn(says, err)

    def test_tables_are_the_arrays(self):
        _, want = self.trained(self.file("x.npy"), "--target", self.file("label.npy"))
        kind = [KINDS[i] for i in self.label]
        a, b, c, d = self.x.T
        for data, target in ((self.iris(), "kind"), (self.iris("t.tsv", separator="\t"), "kind"), (self.iris(end="\r\n"), "3"),
                             (self.write("bare.csv", None, [a, b, c, d, kind]), "5"),
                             (self.write("number.csv", ["l", *"abcd"], [self.label.astype(float), a, b, c, d]), "l"),
                             (self.write("b.csv", None, [self.label.astype(float), a, b, c, d]), "1")):
            with self.subTest(data=data, target=target):
                said, got = self.trained(data, "--target-column", target)
                np.testing.assert_array_equal(got, want)
                self.assertEqual(said.get("class_names"), KINDS if "number" not in data and "/b." not in data else None)
        self.write("mixed.csv", ["d", "c", "kind", "junk", "b", "a"], [d, c, kind, kind, b, a])
        _, got = self.trained(self.file("mixed.csv"), "--target-column", "kind", "--columns", "a,b,c,d", "--threads", 1)
        np.testing.assert_array_equal(got, want)
        square = self.make_model("square.onnx", shape="2,2")
        np.testing.assert_array_equal(self.trained(self.iris(), "--target-column", "kind", model=square)[1], want)
        self.iris("p1.csv")
        lines = self.lines("p1.csv")
        for name, part in (("p1.csv", lines[:11]), ("p2.csv", lines[:1] + lines[11:12]), ("p10.csv", lines[:1] + lines[12:])):
            with open(self.file(name), "w") as f:
                f.write("\n".join(part))
        np.testing.assert_array_equal(self.trained(self.file("p*.csv"), "--target-column", "kind")[1], want)

    def test_values(self):
        model = self.make_model("one.onnx", out=1)
        _, want = self.trained(self.file("x.npy"), "--target", self.file("value.npy"), loss="mse", model=model)
        self.write("v.csv", ["y", *"abcd"], [self.value, *self.x.T])
        _, got = self.trained(self.file("v.csv"), "--target-column", "y", loss="mse", model=model)
        np.testing.assert_array_equal(got, want)
        three = np.stack([self.value, self.x[:, 0], self.x[:, 1]], 1)
        np.save(self.file("three.npy"), three)
        _, want = self.trained(self.file("x.npy"), "--target", self.file("three.npy"), loss="mse")
        _, got = self.trained(self.file("v.csv"), "--target-column", "y,a,b", "--columns", "a,b,c,d", loss="mse")
        np.testing.assert_array_equal(got, want)
        whole = self.make_model("whole.onnx", "int64")
        x = (10 * self.x).astype(np.int64)
        np.save(self.file("whole.npy"), x)
        _, want = self.trained(self.file("whole.npy"), "--target", self.file("three.npy"), loss="mse", model=whole)
        self.write("w.csv", [*"xyzabcd"], [*three.T, *x.T.astype(float)])
        _, got = self.trained(self.file("w.csv"), "--target-column", "x,y,z", loss="mse", model=whole)
        np.testing.assert_array_equal(got, want)
        self.refused(self.file("v.csv"), "--target-column", "y,a,b", "--columns", "a,b,c,d", loss="mse", model=whole,
                     says="is no whole number")

    def test_classes_of_others(self):
        """Classes of validation count by those of training; `eval` is told."""
        self.iris()
        two = self.write("two.csv", [*"abcd", "kind"], [*self.x[:2].T, ["versicolor", "versicolor"]])
        said, _ = self.trained(self.file("t.csv"), "--target-column", "kind", "--val-data", two)
        found = report("eval", self.file("out.onnx"), "--data", two, "--target-column", "kind", "--loss", "cross_entropy",
                       *[o for k in KINDS for o in ("--class", k)])
        self.assertAlmostEqual(said["val_loss"], found["loss"], 6)
        other = self.write("other.csv", [*"abcd", "kind"], [*self.x[:2].T, ["versicolor", "rose"]])
        self.refused(self.file("t.csv"), "--target-column", "kind", "--val-data", other,
                     says="other.csv: line 3, column 'kind': 'rose' is none of the classes")
        self.assertIn("val_loss", self.trained(self.file("t.csv"), "--target-column", "kind", "--val-split", 0.2)[0])

    def test_bad_cells(self):
        self.iris()
        good = self.lines("t.csv")
        bad = self.file("bad.csv")
        for line, says in (("1,2,setosa,x,4", "line 7, column 'c': 'x' is no number"),
                           ("1,2,setosa,,4", "line 7, column 'c': it is empty"), ("1,2,,3,4", "column 'kind': it is empty"),
                           ("1,2,setosa,3", "line 7 has 4 columns, the first one 5"),
                           ("1,2,setosa,3,4,5", "line 7 has 6 columns, the first one 5")):
            with self.subTest(line):
                with open(bad, "w") as f:
                    f.write("\n".join(good[:6] + [line] + good[6:]))
                self.refused(bad, "--target-column", "kind", says=says)
                self.refused(bad, "--target-column", "kind", says="bad.csv: ")
                _, want = self.trained(self.file("t.csv"), "--target-column", "kind")
                status, _, err = call(*self.arguments(bad, "--target-column", "kind", "--skip-bad"))
                self.assertEqual(status, 0, err)
                self.assertIn(f"{says}; left out", err)
                got = numpy_helper.to_array(onnx.load(self.file("out.onnx")).graph.initializer[0])
                np.testing.assert_array_equal(got, want)
        with open(bad, "w") as f:  # each line has its own message, of whatever length
            f.write("\n".join(good[:6] + ["1,2,setosa," + 3000 * "x" + ",4", "1,2,setosa,,4", "1,2,setosa,y,4"] + good[6:]))
        status, _, err = call(*self.arguments(bad, "--target-column", "kind", "--skip-bad"))
        said = [line.split("bad.csv: ")[1] for line in err.splitlines() if "; left out" in line]
        self.assertEqual((status, len(said)), (0, 3), err)
        self.assertEqual(said, [f"line 7, column 'c': '{100 * 'x'}...' is no number; left out",
                                "line 8, column 'c': it is empty; left out", "line 9, column 'c': 'y' is no number; left out"])
        with open(bad, "w") as f:
            f.write("\n".join(good[:6] + ["", '1,2,"seto', 'sa",3,4', "1,nan,setosa,3,4"] + good[6:]))
        self.refused(bad, "--target-column", "kind", says="its target has 4 classes")
        self.refused(bad, "--target-column", "1", "--columns", "a,b,c,d", loss="mse", model=self.make_model("1.onnx", out=1),
                     says="line 10 of")
        with open(bad, "w") as f:
            f.write("\n".join(good[:6] + ['1,2,"setosa,3,4']))
        self.refused(bad, "--target-column", "kind", says="line 7: a quote is not closed")
        with open(bad, "w", encoding="utf-16") as f:
            f.write("\n".join(good))
        self.refused(bad, "--target-column", "5", says="line 1: has a byte 0; if the table is UTF-16")

    def test_bad_tables(self):
        table = self.iris()
        self.refused(table, says="is not a number. Name the target with --target-column")
        self.refused(table, "--columns", "a,b,c,d", says="or --target-column NAME of a table")
        self.refused(table, "--target-column", "colour", says="no column 'colour'; its columns are a, b, kind, c, d")
        self.refused(table, "--target-column", "9", says="no column '9'")
        self.refused(table, "--target-column", "a", "--columns", "a,b,c", loss="mse", says="the model wants [rows, 4]")
        self.refused(table, "--target-column", "kind", loss="mse", says="'virginica, wild' is no number")
        self.refused(table, "--target-column", "kind,a", says="labels are in one column")
        self.refused(table, "--target-column", "kind", model=self.make_model("two.onnx", out=2), says="has 3 classes")
        self.refused(table, "--target", table, "--columns", "a,b,c,d", says="brings its target, by --target-column")
        for name, text, says in (("empty.csv", "", "no lines"), ("head.csv", "a,b,c,d,kind\n", "it has no rows")):
            with open(self.file(name), "w") as f:
                f.write(text)
            self.refused(self.file(name), "--target-column", "kind", says=says)
        self.iris("q1.csv")
        self.write("q2.csv", ["a", "b", "kind", "c", "e"], [*self.x.T, self.value])
        self.refused(self.file("q*.csv"), "--target-column", "kind", says="q2.csv: column 5 is 'e', in")
        status, _, err = call(*self.arguments(table, "--target-column", "kind"), env={**os.environ, "TMPDIR": "/nowhere"})
        self.assertEqual(status, 1)
        self.assertIn("a temporary file in /nowhere", err)


if __name__ == "__main__":
    unittest.main()
