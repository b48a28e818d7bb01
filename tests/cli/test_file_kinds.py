# SPDX-License-Identifier: Apache-2.0
"""Files that are not what they are called: fails if what is given as a model is not called by name with a remedy, if
links of a cache are not followed or others are, or if one data file that is not there is told once per tensor."""
import gzip
import io
import lzma
import os
import pickle
import tarfile
import unittest
import zipfile

import numpy as np
import onnx
from common import InFolder, call
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper as nh

LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"


def zipped(*names):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for name in names:
            z.writestr(name, b"{}")
    return out.getvalue()


def tarred():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as t:
        t.addfile(tarfile.TarInfo("model.onnx"))
    return out.getvalue()


def array_file(save, *args):
    out = io.BytesIO()
    save(out, *args)
    return out.getvalue()


def tensor_file():
    return nh.from_array(np.ones((2, 3), np.float32), "x").SerializeToString()


SOME = bytes(range(1, 200))
KINDS = {
    "lfs": (LFS, "git lfs pull"),
    "html": (b"\n<!doctype HTML>\n<html>", "HTML"),
    "html_with_a_mark": (b"\xef\xbb\xbf<!DOCTYPE html>", "HTML"),
    "xml_error": (b"<?xml version='1.0'?><Error><Code>AccessDenied</Code></Error>", "XML"),
    "openvino": (b'<?xml version="1.0"?>\n<net name="m" version="11">\n', "OpenVINO"),
    "gzip": (gzip.compress(SOME), "gzip"),
    "xz": (lzma.compress(SOME), "xz"),
    "zstd": (b"\x28\xb5\x2f\xfd" + SOME, "zstd"),
    "tar": (tarred(), "tar"),
    "zip": (zipped("model.onnx"), "zip"),
    "pt": (zipped("archive/data.pkl", "archive/byteorder"), "PyTorch"),
    "pt2": (zipped("m/archive_format"), "PyTorch"),
    "keras": (zipped("metadata.json", "config.json"), "Keras"),
    "npz": (zipped("x.npy"), "NumPy"),
    "npy": (array_file(np.save, np.ones(3)), "NumPy"),
    "pt_old": (pickle.dumps(0x1950a86a20f9469cfc6c, 2) + SOME, "PyTorch"),
    "pickle": (pickle.dumps({"coef_": [1.0]}), "pickle"),
    "h5": (b"\x89HDF\r\n\x1a\n" + SOME, "Keras"),
    "ort": (b"\x24\0\0\0ORTM" + bytes(60), "ORT"),
    "tflite": (b"\x1c\0\0\0TFL3" + bytes(60), "TensorFlow Lite"),
    "executorch": (b"\x1c\0\0\0ET12" + bytes(60), "ExecuTorch"),
    "gguf": (b"GGUF\3\0\0\0" + bytes(60), "GGUF"),
    "safetensors": (b"\x40\0\0\0\0\0\0\0" + b'{"a":{}}'.ljust(64), "safetensors"),
    "png": (b"\x89PNG\r\n\x1a\n" + SOME, "PNG"),
    "jpeg": (b"\xff\xd8\xff\xe0" + SOME, "JPEG"),
    "elf": (b"\x7fELF\2\1\1" + SOME, "ELF"),
    "tensorrt": (b"ftrt" + SOME, "TensorRT"),
    "paddle": (b"\x0a\x40\x08\0\x10" + b"\xff" * 9 + b"\1\x1a\2\x0a\0" + bytes(60), "PaddlePaddle"),
    "coreml": (b"\x08\x04\x12\x02\x0a\0\xa2\x1f\x02\x08\1", "Core ML"),
    "saved_model": (b"\x08\1\x12\x20\x0a\x07\x22\x05serve" + b"\x12\x15" + b"a" * 21, "SavedModel"),
    "tensor": (tensor_file(), "TensorProto"),
    "json": (b'{"error": "Repository not found"}', "begins with '{\"error\": \"Repository not found\"}'"),
    "not_found": (b"Entry not found", "begins with 'Entry not found'"),
    "not_found_in_german": ("Datei f\xfcr Sie nicht gefunden".encode(), "begins with 'Datei f'"),
    "onnx_json": (b'{\n  "ir_version": "8"\n}\n', "format='json'"),
    "textproto": (b"ir_version: 8\ngraph {\n}\n", "textproto"),
    "onnxtxt": (b"<\n  ir_version: 8\n>\n", "onnxtxt"),
    "utf16": ("\x08\x09".encode("utf-16"), "UTF-16"),
    "zeros": (bytes(5000), "only zeros"),
    "empty": (b"", "empty"),
}


def layers(n, location=None):
    """n products in a chain."""
    nodes = [h.make_node("MatMul", [f"v{i}" if i else "x", f"w{i}"], [f"v{i + 1}" if i < n - 1 else "y"])
             for i in range(n)]
    weights = [nh.from_array(np.eye(8, dtype=np.float32) * (i + 1), f"w{i}") for i in range(n)]
    graph = h.make_graph(nodes, "g", [h.make_tensor_value_info("x", T.FLOAT, ["N", 8])],
                         [h.make_tensor_value_info("y", T.FLOAT, ["N", 8])], weights)
    return h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)


class Kinds(InFolder):
    def refused(self, path, *words):
        status, _, err = call("inspect", path)
        self.assertEqual(status, 1, err)
        for word in words:
            self.assertIn(word, err)
        return err

    def test_cut_off(self):
        data = layers(3).SerializeToString()
        for n in (10, len(data) // 2, len(data) - 1):
            with open(self.at("m.onnx"), "wb") as f:
                f.write(data[:n])
            self.refused(self.at("m.onnx"), "not finished" if n > 10 else "'")

    def test_folder(self):
        self.refused(self.folder.name, "folder")

    def test_a_sound_model_is_not_looked_at(self):
        m = layers(1)
        m.producer_name = LFS.decode()
        onnx.save(m, self.at("m.onnx"))
        self.assertEqual(call("inspect", self.at("m.onnx"))[0], 0)


def kind(content, word):
    def test(self):
        with open(self.at("model.onnx"), "wb") as f:
            f.write(content)
        self.refused(self.at("model.onnx"), word)
    return test


for name, row in KINDS.items():
    setattr(Kinds, f"test_{name}", kind(*row))


class Links(InFolder):
    """What huggingface_hub leaves, and what is nearly that."""

    def cache(self, repository="models--a--b", model="model.onnx", data="model.onnx_data"):
        top = self.at(repository)
        at, blobs = os.path.join(top, "snapshots", "0a1b", "onnx"), os.path.join(top, "blobs")
        os.makedirs(at)
        os.makedirs(blobs)
        onnx.save(layers(2), os.path.join(at, model), save_as_external_data=True, location=data, size_threshold=0)
        for name, blob in ((model, "c6ed"), (data, "b879")):
            os.rename(os.path.join(at, name), os.path.join(blobs, blob))
            os.symlink(f"../../../blobs/{blob}", os.path.join(at, name))
        return at

    def test_cache_is_read_and_written(self):
        at = self.cache()
        model, out = os.path.join(at, "model.onnx"), os.path.join(at, "out.onnx")
        self.assertEqual(call("inspect", model), (0, *call("inspect", model)[1:]))
        # OUT is no link, so onnxruntime would not follow the link beside it: it has its own data, trained or not.
        status, _, err = call("train", model, "--data", self.at("x.npy"), "--target", self.at("y.npy"), "--loss", "mse",
                              "--train-only", "w0", "--epochs", "1", "-o", out)
        self.assertEqual(status, 0, err)
        self.assertTrue(os.path.exists(out + ".data") and not os.path.islink(out + ".data"))
        self.assertEqual(call("inspect", out)[0], 0)
        status, _, err = call("rewrite", model, "-o", os.path.join(at, "same.onnx"))
        self.assertEqual(status, 0, err)
        self.assertEqual(call("inspect", os.path.join(at, "same.onnx"))[0], 0)
        self.assertTrue(os.path.islink(os.path.join(at, "model.onnx_data")))

    def test_the_model_s_file_is_a_copy(self):
        at = self.cache()
        model = os.path.join(at, "model.onnx")
        blob = os.path.realpath(model)
        os.unlink(model)
        os.rename(blob, model)
        status, _, err = call("inspect", model)
        self.assertEqual(status, 1)
        for word in ("'model.onnx_data'", "symbolic link", "blobs/b879", "cp -rL"):
            self.assertIn(word, err)

    def test_another_repository(self):
        at, other = self.cache(), self.cache("models--other--one")
        link = os.path.join(at, "model.onnx_data")
        os.unlink(link)
        os.symlink(os.path.realpath(os.path.join(other, "model.onnx_data")), link)
        status, _, err = call("inspect", os.path.join(at, "model.onnx"))
        self.assertEqual(status, 1)
        self.assertIn("cp -rL", err)

    def test_leads_nowhere(self):
        at = self.cache()
        os.unlink(os.path.realpath(os.path.join(at, "model.onnx_data")))
        status, _, err = call("inspect", os.path.join(at, "model.onnx"))
        self.assertEqual(status, 1)
        self.assertIn("broken symbolic link", err)

    def test_in_a_circle(self):
        at = self.cache()
        link = os.path.join(at, "model.onnx_data")
        os.unlink(link)
        os.symlink("model.onnx_data", link)
        status, _, err = call("inspect", os.path.join(at, "model.onnx"))
        self.assertEqual(status, 1)
        self.assertIn("cannot be opened", err)

    def test_links_that_stay_in_the_folder(self):
        os.mkdir(self.at("sub"))
        onnx.save(layers(2), self.at("m.onnx"), save_as_external_data=True, location="m.data", size_threshold=0)
        os.rename(self.at("m.data"), self.at("sub/w"))
        os.symlink("sub/w", self.at("one"))
        os.symlink("one", self.at("m.data"))
        self.assertEqual(call("inspect", self.at("m.onnx"))[0], 0)

    def test_a_link_to_a_pipe(self):
        at = self.cache()
        blob = os.path.realpath(os.path.join(at, "model.onnx_data"))
        os.unlink(blob)
        os.mkfifo(blob)
        status, _, err = call("inspect", os.path.join(at, "model.onnx"))
        self.assertEqual(status, 1)
        self.assertIn("regular", err)


class Data(InFolder):
    """One data file of many tensors."""

    def setUp(self):
        super().setUp()
        onnx.save(layers(112), self.at("m.onnx"), save_as_external_data=True, location="m.data", size_threshold=0)

    def told(self, *words):
        status, _, err = call("inspect", self.at("m.onnx"))
        self.assertEqual(status, 1)
        self.assertEqual(len(err.strip().splitlines()), 1, err)
        for word in words:
            self.assertIn(word, err)

    def test_missing(self):
        os.unlink(self.at("m.data"))
        self.told("'w0' and 111 more tensors", "'m.data'", "missing", "folder")

    def test_pointer(self):
        for pointer in (LFS, LFS.replace(b"git-lfs.github", b"hawser.github")):  # as it was called before
            with open(self.at("m.data"), "wb") as f:
                f.write(pointer.ljust(300))
            self.told("111 more tensors", "git lfs pull")

    def test_cut_off(self):
        with open(self.at("m.data"), "r+b") as f:
            f.truncate(256 * 12 + 7)
        self.told("'w12' and 99 more tensors", "only 3079", "incomplete")

    def test_empty(self):
        with open(self.at("m.data"), "wb"):
            pass
        self.told("111 more tensors", "only 0")

    def test_location_that_is_not_allowed(self):
        m = onnx.load(self.at("m.onnx"), load_external_data=False)
        for w in m.graph.initializer:
            for e in w.external_data:
                if e.key == "location":
                    e.value = "../m.data"
        onnx.save(m, self.at("m.onnx"))
        self.told("'w0' and 111 more tensors", "'..'")

    def test_two_files_are_two_defects(self):
        m = onnx.load(self.at("m.onnx"), load_external_data=False)
        for i, w in enumerate(m.graph.initializer):
            for e in w.external_data:
                if e.key == "location":
                    e.value = ("a.data", "b.data")[i % 2]
        onnx.save(m, self.at("m.onnx"))
        status, _, err = call("inspect", self.at("m.onnx"))
        self.assertEqual((status, len(err.strip().splitlines())), (1, 3), err)


if __name__ == "__main__":
    unittest.main()
