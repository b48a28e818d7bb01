# SPDX-License-Identifier: Apache-2.0
"""Folders of pictures by class. It fails if training on them is not training on the arrays that they are, resized and
cropped by the formulas below, if the number of threads or a second run changes a bit, or if a broken file is not
named."""
import io
import json
import os
import shutil
import struct
import tempfile
import unittest
import warnings
import zlib

import numpy as np
import onnx
from common import DATA, call, report
from onnx import numpy_helper, parser

try:
    from PIL import Image, ImageOps
except ImportError:
    Image = None

LINEAR = """<ir_version: 8, opset_import: ["" : 17]>
g (TYPE[N,SHAPE] x) => (float[N,3] y) <float[SIZE,3] w = {W}> { f = CAST(x) t = Flatten(f) y = MatMul(t, w) }"""
MEANS = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,3,H,W] x) => (float[N,3] y) <float[3,3] w = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}> {
    m = GlobalAveragePool(x) t = Flatten(m) y = MatMul(t, w) }"""
CLASSES = ["cat", "dog", "fish"]


def png(pixels, depth=8, palette=None):
    """A PNG file: [H, W], [H, W, 3] or, with transparency, [H, W, 2 or 4]."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    channels = pixels.shape[2] if pixels.ndim == 3 else 1
    colour = 3 if palette is not None else {1: 0, 2: 4, 3: 2, 4: 6}[channels]
    rows = pixels.astype(">u2" if depth == 16 else "u1").reshape(len(pixels), -1)
    data = b"".join(b"\0" + row.tobytes() for row in rows)
    head = struct.pack(">2I5B", pixels.shape[1], pixels.shape[0], depth, colour, 0, 0, 0)
    table = chunk(b"PLTE", palette.astype("u1").tobytes()) if palette is not None else b""
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + table + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def resized(pixels, height, width):
    """Bilinear with antialias."""
    def matrix(extent, size):
        step = extent / size
        reach = max(step, 1)
        place = (np.arange(size)[:, None] + 0.5) * step
        m = np.maximum(0, 1 - np.abs(np.arange(extent)[None] + 0.5 - place) / reach)
        return m / m.sum(1, keepdims=True)

    return np.einsum("yh,hwc,xw->yxc", matrix(pixels.shape[0], height), pixels.astype(float), matrix(pixels.shape[1], width))


class Pictures(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)
        self.random = np.random.default_rng(7)
        self.root = self.file("photos")

    def file(self, name):
        return os.path.join(self.folder, name)

    def make_model(self, shape, dtype="float", name="m.onnx"):
        sizes = [s for s in shape if isinstance(s, int)]
        size = int(np.prod(sizes))
        w = np.random.default_rng(1).standard_normal((size, 3)) / size
        text = LINEAR.replace("TYPE", dtype).replace("SHAPE", ",".join(map(str, shape))).replace("SIZE", str(size))
        text = text.replace("CAST", "Cast<to = 1>" if dtype != "float" else "Identity")
        onnx.save(parser.parse_model(text.replace("{W}", "{" + ", ".join(f"{v:.6f}" for v in w.ravel()) + "}")),
                  self.file(name))
        return self.file(name)

    def put(self, label, name, content):
        os.makedirs(os.path.join(self.root, CLASSES[label]), exist_ok=True)
        with open(os.path.join(self.root, CLASSES[label], name), "wb") as f:
            f.write(content)

    def put_random(self, n, shape):
        """So many pictures of all classes; the arrays in the order in which they are listed."""
        x = [self.random.integers(0, 256, shape, dtype=np.uint8) for _ in range(n)]
        y = np.sort(np.arange(n) % 3)
        for i in range(n):
            self.put(y[i], f"{i:03}.png", png(x[i]))
        return np.array(x), y

    def save(self, x, y):
        np.save(self.file("x.npy"), x)
        np.save(self.file("y.npy"), y)
        return ["--data", self.file("x.npy"), "--target", self.file("y.npy")]

    def arguments(self, model, *options):
        return ["train", model, "--loss", "cross_entropy", "--lr", 0.1, "--batch", 4, "--epochs", 2,
                "-o", self.file("out.onnx"), *options]

    def trained(self, model, *options):
        said = report(*self.arguments(model, *options))
        return said, numpy_helper.to_array(onnx.load(self.file("out.onnx")).graph.initializer[0])

    def refused(self, model, *options, says, status=1):
        got, _, err = call(*self.arguments(model, "--data", self.root, *options))
        self.assertEqual(got, status, err)
        self.assertIn(says, err)

    def test_pictures_are_the_arrays(self):
        x, y = self.put_random(18, (6, 5, 3))
        model = self.make_model((3, 6, 5))
        arrays = self.save((x.astype(np.float32) / np.float32(255)).transpose(0, 3, 1, 2), y)
        said, want = self.trained(model, *arrays)
        for options in ([], ["--threads", 1], ["--data-threads", 0], ["--data-threads", 5]):
            said, got = self.trained(model, "--data", self.root, *options)
            np.testing.assert_array_equal(got, want)
        self.assertEqual(said["class_names"], CLASSES)
        for normalize, mean, deviation in (("imagenet", [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
                                           ("0.5/0.25", 0.5, 0.25), ("0.1,0.2,0.3/2", [0.1, 0.2, 0.3], 2)):
            f = (x.astype(np.float32) / np.float32(255) - np.float32(mean)) / np.float32(deviation)
            _, want = self.trained(model, *self.save(f.transpose(0, 3, 1, 2), y))
            _, got = self.trained(model, "--data", self.root, "--normalize", normalize)
            np.testing.assert_array_equal(got, want)
        last = self.make_model((6, 5, 3), name="last.onnx")
        _, want = self.trained(last, *self.save(x.astype(np.float32) / np.float32(255), y))
        np.testing.assert_array_equal(self.trained(last, "--data", self.root)[1], want)
        luma = (x @ [0.299, 0.587, 0.114]).astype(np.float32) / 255
        for shape in ((1, 6, 5), (6, 5)):
            grey = self.make_model(shape, name="grey.onnx")
            _, want = self.trained(grey, *self.save(luma.reshape(18, *shape), y))
            np.testing.assert_allclose(self.trained(grey, "--data", self.root)[1], want, atol=1e-6)
        bytes_ = self.make_model((6, 5, 3), "uint8", "bytes.onnx")
        _, want = self.trained(bytes_, *self.save(x, y), "--lr", 1e-5)
        np.testing.assert_array_equal(self.trained(bytes_, "--data", self.root, "--lr", 1e-5)[1], want)

    def test_resize_and_crop(self):
        shapes = [(9, 30), (30, 9), (11, 13), (7, 7), (40, 41), (6, 80)]
        arrays = {"none": [], "9": []}
        for i, shape in enumerate(shapes):
            pixels = self.random.integers(0, 256, (*shape, 3), dtype=np.uint8)
            self.put(i % 3 if i < 3 else 2, f"{i}.png", png(pixels))
            h, w = shape
            to = {"none": (round(h * max(6 / h, 8 / w)), round(w * max(6 / h, 8 / w))),
                  "9": (9 * h // min(h, w), 9 * w // min(h, w))}
            for name, (height, width) in to.items():
                top, left = round((height - 6) / 2), round((width - 8) / 2)
                arrays[name].append(resized(pixels, height, width)[top:top + 6, left:left + 8])
        model = self.make_model((6, 8, 3))
        y = np.array([0, 1, 2, 2, 2, 2])
        for name, x in arrays.items():
            _, want = self.trained(model, *self.save((np.array(x) / 255).astype(np.float32), y), "--no-shuffle")
            options = [] if name == "none" else ["--resize", name]
            _, got = self.trained(model, "--data", self.root, "--no-shuffle", *options)
            np.testing.assert_allclose(got, want, atol=1e-6)
        onnx.save(parser.parse_model(MEANS), self.file("open.onnx"))
        self.refused(self.file("open.onnx"), says="Give --resize N")
        x, y = self.put_random(6, (9, 9, 3))
        shutil.rmtree(self.root)
        for i in range(6):
            self.put(i % 3, f"{i}.png", png(x[i]))
        order = [0, 3, 1, 4, 2, 5]
        want = self.trained(self.file("open.onnx"),
                            *self.save(x[order].transpose(0, 3, 1, 2).astype(np.float32) / np.float32(255), y))
        got = self.trained(self.file("open.onnx"), "--data", self.root, "--resize", 9)
        np.testing.assert_array_equal(got[1], want[1])
        self.refused(model, "--resize", 5, says="--resize 5 is less than the model's 8 x 6")

    def test_forms_of_files(self):
        """Grey, palette, transparency, 16 bits, JPEG: all are the same picture."""
        x, y = np.meshgrid(np.arange(24), np.arange(16))
        grey = (10 * x).astype(np.uint8)
        colour = np.stack([10 * x, 15 * y, 255 - 10 * x], 2).astype(np.uint8)
        pixel = np.arange(24 * 16).reshape(16, 24) % 24
        palette = np.stack([10 * np.arange(24)] * 3, 1)
        spread = np.stack([grey] * 3, 2)
        full = np.full((16, 24, 1), 255, np.uint8)
        pictures = os.path.join(DATA, "pictures")
        model = self.make_model((16, 24, 3))
        for name, content, want, near in (
                ("grey.png", png(grey), spread, 0), ("alpha.png", png(np.concatenate([grey[:, :, None], full], 2)), spread, 0),
                ("rgba.PNG", png(np.concatenate([colour, full], 2)), colour, 0),
                ("deep.png", png(colour.astype(np.uint16) * 257, 16), colour, 0),
                ("palette.png", png(pixel, palette=palette), spread, 0),
                ("colour.jpg", None, colour, 4), ("progressive.jpg", None, colour, 4), ("grey.jpg", None, spread, 4)):
            with self.subTest(name):
                shutil.rmtree(self.root, ignore_errors=True)
                if content is None:
                    with open(os.path.join(pictures, name), "rb") as f:
                        content = f.read()
                for label in range(3):
                    self.put(label, name, content)
                arrays = self.save(np.array([want] * 3).astype(np.float32) / np.float32(255), np.arange(3))
                _, one = self.trained(model, *arrays)
                _, two = self.trained(model, "--data", self.root)
                np.testing.assert_allclose(two, one, atol=near * 2e-4, rtol=0)

    @unittest.skipUnless(Image, "without Pillow")
    def test_orientation(self):
        """JPEG files lie as their EXIF says; damaged EXIF is as good as none."""
        height, width = 16, 24
        x, y = np.meshgrid(np.arange(width), np.arange(height))
        lying = io.BytesIO()
        Image.fromarray(np.stack([10 * x, 15 * y, 255 - 5 * x - 5 * y], 2).astype(np.uint8)).save(lying, "JPEG", quality=95)
        lying = lying.getvalue()

        def segment(exif):
            return b"\xff\xd8\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + lying[2:]

        def exif(orientation, order="<", kind=3, entries=2, directory=8):
            value = struct.pack(order + ("HH" if kind == 3 else "I"), *([orientation, 0] if kind == 3 else [orientation]))
            return (b"Exif\0\0" + (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "IH", directory, entries) +
                    struct.pack(order + "HHII", 0x0100, 4, 1, 77) + struct.pack(order + "HHI", 0x0112, kind, 1) + value)

        cases = [(f"{order}3 {k}", exif(k, order)) for order in "<>" for k in range(10)]
        cases += [(f"{order}4 {k}", exif(k, order, 4)) for order in "<>" for k in (6, 9)]
        cases += [("many entries", exif(6, entries=65535)), ("no entries", exif(6, entries=0)),
                  ("far", exif(6, directory=0xffffffff)), ("at the end", exif(6, directory=32)),
                  ("over the end", exif(6, directory=33))]
        cases += [(f"cut at {n}", exif(6)[:n]) for n in (0, 4, 5, 6, 8, 13, 14, 15, 16, 28, 31, len(exif(6)) - 3)]
        for name, bytes_ in cases:
            with self.subTest(name):
                content = segment(bytes_)
                whole = name[0] in "<>m"  # others Pillow may refuse
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    want = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content if whole else lying))))
                black = np.zeros_like(want)
                for label in range(3):
                    self.put(label, "a.png" if label else "a.jpg", png(black) if label else content)
                model = self.make_model(want.shape)
                arrays = self.save(np.stack([want, black, black]).astype(np.float32) / np.float32(255), np.arange(3))
                _, one = self.trained(model, *arrays)
                _, two = self.trained(model, "--data", self.root)
                np.testing.assert_allclose(two, one, atol=4e-4, rtol=0)  # decoders may differ by a bit

    def test_augment(self):
        """Drawn by seed, epoch and row, and only in training; a flip of a symmetric picture is none."""
        x, y = self.put_random(12, (10, 10, 3))
        model = self.make_model((3, 8, 8))
        same = ["--data", self.root, "--resize", 10]
        _, plain = self.trained(model, *same)
        _, crop = self.trained(model, *same, "--augment", "crop,flip", "--val-data", self.root)
        _, again = self.trained(model, *same, "--augment", "crop,flip", "--threads", 1)
        _, other = self.trained(model, *same, "--augment", "crop,flip", "--seed", 2)
        np.testing.assert_array_equal(crop, again)
        self.assertGreater(np.abs(crop - plain).max(), 1e-5)
        self.assertGreater(np.abs(crop - other).max(), 1e-5)
        self.refused(model, "--augment", "crop", says="--augment crop wants --resize N")
        self.refused(model, "--augment", "turn", says="--augment turn: wants crop, flip", status=2)
        shutil.rmtree(self.root)
        for i in range(6):
            half = self.random.integers(0, 256, (8, 4, 3), dtype=np.uint8)
            self.put(i % 3, f"{i}.png", png(np.concatenate([half, half[:, ::-1]], 1)))
        np.testing.assert_array_equal(self.trained(model, "--data", self.root)[1],
                                      self.trained(model, "--data", self.root, "--augment", "flip")[1])

    def test_classes(self):
        """Labels of validation count by the names of what is trained on."""
        self.put_random(9, (4, 4, 3))
        model = self.make_model((3, 4, 4))
        held = self.file("held")
        shutil.copytree(self.root, held)
        shutil.rmtree(os.path.join(held, "cat"))
        self.trained(model, "--data", self.root)
        right = report("eval", self.file("out.onnx"), "--data", held, "--loss", "cross_entropy", "--class", "cat",
                       "--class", "dog", "--class", "fish")
        alone = report("eval", self.file("out.onnx"), "--data", held, "--loss", "cross_entropy")  # the file has the names
        status, _, err = call("eval", self.file("out.onnx"), "--data", held, "--loss", "cross_entropy", "--class", "dog", "--class",
                              "fish")
        self.assertIn("--class: the model was trained on 3 classes", err)
        said, _ = self.trained(model, "--data", self.root, "--val-data", held)
        self.assertAlmostEqual(said["val_loss"], right["loss"], 6)
        self.assertEqual(alone["loss"], right["loss"])
        os.rename(os.path.join(held, "dog"), os.path.join(held, "dodo"))
        self.refused(model, "--val-data", held, says="folder 'dodo' is none of the 3 classes")
        status, out, _ = call(*self.arguments(model, "--data", self.root, "--val-split", 0.34))
        self.assertEqual(status, 0)
        self.assertIn("3 classes, labels from 0 on: cat, dog, fish", out)
        self.assertIn("3 of 9 rows are held out", out)

    def test_what_was_trained_on_is_in_the_file(self):
        """Preprocessing and names of classes go into the file, and are what is done without options; others are told."""
        self.put_random(9, (7, 9, 3))
        model = self.make_model((3, 4, 4))
        run = ["--data", self.root, "--loss", "cross_entropy"]
        form = ["--resize", 6, "--normalize", "0.4/0.3"]
        report("train", model, *run, *form, "-o", self.file("out.onnx"))
        facts = {p.key: p.value for p in onnx.load(self.file("out.onnx")).metadata_props}
        self.assertEqual(facts, {"ai.invonnx.picture.resize": "6", "ai.invonnx.picture.normalize": "0.4/0.3",
                                 "ai.invonnx.picture.channels": "RGB", "ai.invonnx.classes": json.dumps(CLASSES, separators=(",", ":"))})
        evaluate = ["eval", self.file("out.onnx"), *run]
        want, got = report(*evaluate, *form), report(*evaluate)
        plain = self.file("plain.onnx")  # the same weights without a word of what they were trained on
        bare = onnx.load(self.file("out.onnx"))
        del bare.metadata_props[:]
        onnx.save(bare, plain)
        self.assertEqual(got["loss"], want["loss"])
        self.assertEqual(got["class_names"], CLASSES)
        self.assertEqual(report("eval", plain, *run, *form)["loss"], want["loss"])
        for words, told in ((["--resize", 5], ["--resize 5: the model was trained with 6"]),
                            (["--normalize", "none"], ["--normalize none: the model was trained with 0.4/0.3"]), (form, []), ([], [])):
            status, out, err = call(*evaluate, *words)
            self.assertEqual(status, 0, err)
            self.assertEqual([line for line in err.splitlines() if "was trained with" in line],
                             ["invonnx: " + t + ", as its file says" for t in told])
            self.assertEqual("made as in training" in out, words != form)
        other = report(*evaluate, "--resize", 5, "--normalize", "imagenet")
        self.assertEqual(other["loss"], report("eval", plain, *run, "--resize", 5, "--normalize", "imagenet")["loss"])
        # training goes on by them, and says what it did
        again = ["train", self.file("out.onnx"), *run, "-o", self.file("again.onnx"), "--epochs", 2]
        self.assertEqual(report(*again)["steps"], report("train", plain, *run, *form, "--epochs", 2, "-o", self.file("p.onnx"))["steps"])
        self.assertEqual({p.key: p.value for p in onnx.load(self.file("again.onnx")).metadata_props}, facts)
        report(*again, "--normalize", "imagenet")
        after = {p.key: p.value for p in onnx.load(self.file("again.onnx")).metadata_props}
        self.assertEqual(after, {**facts, "ai.invonnx.picture.normalize": "imagenet"})
        call("rewrite", self.file("out.onnx"), "-o", self.file("rewritten.onnx"))
        self.assertLessEqual(facts.items(), {p.key: p.value for p in onnx.load(self.file("rewritten.onnx")).metadata_props}.items())
        os.rename(os.path.join(self.root, "fish"), os.path.join(self.root, "bird"))
        status, _, err = call(*evaluate)
        self.assertEqual(status, 1)
        for word in "folder 'bird'", "cat, dog, fish", "--head", "--class":
            self.assertIn(word, err)
        report(*again, "--head", 3)
        after = {p.key: p.value for p in onnx.load(self.file("again.onnx")).metadata_props}
        self.assertEqual(json.loads(after["ai.invonnx.classes"]), ["bird", "cat", "dog"])

    def test_names_of_a_table(self):
        """Names of a table's classes are in the file, too; whole numbers are labels all the same."""
        model = self.file("t.onnx")
        onnx.save(parser.parse_model('''<ir_version: 8, opset_import: ["" : 17]>
            g (float[N,2] x) => (float[N,3] y) <float[2,3] w = {1, 2, 3, 3, 2, 1}> { y = MatMul(x, w) }'''), model)
        def table(labels):
            with open(self.file("t.csv"), "w", encoding="utf-8") as f:
                f.write("a,b,kind\n" + "".join(f"{i},{-i},{label}\n" for i, label in enumerate(labels)))
            return ["--data", self.file("t.csv"), "--target-column", "kind", "--loss", "cross_entropy"]
        report("train", model, *table(["oak", "elm", "ash", "oak"]), "-o", self.file("o.onnx"))
        want = report("eval", self.file("o.onnx"), *table([1, 2, 2, 1]))["loss"]
        self.assertEqual(report("eval", self.file("o.onnx"), *table(["elm", "oak", "oak", "elm"]))["loss"], want)
        status, _, err = call("eval", self.file("o.onnx"), *table(["elm", "fir"]))
        self.assertEqual(status, 1)
        self.assertIn("'fir'", err)

    def test_confusion_has_names(self):
        """On the terminal, in the page and in the log; also of `eval` of a folder that lacks a class."""
        self.put_random(9, (4, 4, 3))
        os.rename(os.path.join(self.root, "dog"), os.path.join(self.root, "a<b & c"))
        model, held = self.make_model((3, 4, 4)), self.file("held")
        names = ["a<b & c", "cat", "fish"]
        status, out, _ = call(*self.arguments(model, "--data", self.root, "--val-data", self.root, "--metric", "confusion",
                                              "--log", self.file("l.jsonl"), "--log", self.file("l.csv"), "--html",
                                              self.file("l.html")))
        self.assertEqual(status, 0)
        table = r"what its rows were taken for\n +0 +1 +2\n" + "".join(rf" +{i}( +\d+){{3}}  {n}\n" for i, n in enumerate(names))
        self.assertRegex(out, table)
        with open(self.file("l.jsonl"), encoding="utf-8") as f:
            held_out = [r for r in map(json.loads, f) if r["split"] == "val"]
        self.assertEqual([r["class_names"] for r in held_out], [names, names])
        self.assertEqual(len(held_out[0]["confusion"]), 3)
        with open(self.file("l.html"), encoding="utf-8") as f:
            matrix = f.read().split("Confusion matrix")[1].split("</table>")[0]
        for name in ("a&lt;b &amp; c", "cat", "fish"):
            self.assertEqual(matrix.count(f"<th>{name}</th>"), 2)
        shutil.copytree(self.root, held)
        shutil.rmtree(os.path.join(held, names[0]))
        _, out, _ = call("eval", self.file("out.onnx"), "--data", held, "--loss", "cross_entropy", "--metric", "confusion",
                         *[word for name in names for word in ("--class", name)])
        self.assertRegex(out, table)

    def test_fewer_classes(self):
        """Than the model has: the option that gives it a head for them is named, once, until it is given."""
        self.put_random(9, (4, 4, 3))
        shutil.rmtree(os.path.join(self.root, "cat"))
        model, text = self.make_model((3, 4, 4)), "the data have 2 classes, output 'y' has 3"
        for more in ((), ("--val-data", self.root), ("--val-split", 0.34)):
            status, _, err = call(*self.arguments(model, "--data", self.root, *more))
            self.assertEqual((status, err.count(text)), (0, 1), err)
            self.assertIn("Add --head 2 to `train` for a head with the data's classes", err)
        for more in (("--head", 2), [word for name in CLASSES for word in ("--class", name)]):
            status, _, err = call(*self.arguments(model, "--data", self.root, *more))
            self.assertEqual((status, err.count("the data have")), (0, 0), err)
        status, _, err = call("eval", model, "--data", self.root, "--loss", "cross_entropy")
        self.assertEqual((status, err.count(text)), (0, 1), err)

    def test_bad_files(self):
        self.put_random(9, (4, 4, 3))
        model = self.make_model((3, 4, 4))
        good = png(np.zeros((4, 4, 3)))
        with open(os.path.join(DATA, "pictures", "colour.jpg"), "rb") as f:
            jpeg = f.read()
        with open(os.path.join(DATA, "pictures", "cmyk.jpg"), "rb") as f:
            cmyk = f.read()
        for name, content, says in (("a.png", good[:60], "the file ends within the picture"), ("b.png", b"", "is empty"),
                                    ("c.png", good[:45] + b"x" + good[46:], "data check"), ("d.jpg", jpeg[:300], "JPEG"),
                                    ("e.jpeg", b"hello, world", "neither JPEG nor PNG"), ("f.jpg", cmyk, "CMYK")):
            with self.subTest(name):
                self.put(1, name, content)
                self.refused(model, says=f"photos/dog/{name}: ")
                self.refused(model, says=says)
                _, want = self.trained(model, "--data", self.root, "--skip-bad")
                status, _, err = call(*self.arguments(model, "--data", self.root, "--skip-bad"))
                self.assertIn(f"{name}: ", err)
                self.assertIn("1 of 10 pictures are left out", err)
                os.remove(os.path.join(self.root, "dog", name))
                np.testing.assert_array_equal(self.trained(model, "--data", self.root)[1], want)

    def test_bad_folders(self):
        self.put_random(9, (4, 4, 3))
        model = self.make_model((3, 4, 4))
        self.refused(self.make_model((48,), name="flat.onnx"), says="pictures fill [N,C,H,W]")
        self.refused(self.make_model((2, 4, 4), name="two.onnx"), says="2 channels")
        self.refused(model, "--normalize", "1/0", says="--normalize 1/0: wants none", status=2)
        self.refused(model, "--target", self.file("y.npy"), says="y.npy")
        os.makedirs(os.path.join(self.root, "empty"))
        self.refused(model, says="photos/empty has no .jpg")
        shutil.rmtree(os.path.join(self.root, "empty"))
        shutil.copytree(os.path.join(self.root, "cat"), os.path.join(self.root, "zebra"))
        self.refused(model, says="it has 4 classes, but the model's output has 3")
        shutil.rmtree(self.root)
        os.makedirs(self.root)
        self.refused(model, says="it has no folders")


if __name__ == "__main__":
    unittest.main()
