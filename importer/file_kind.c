/* SPDX-License-Identifier: Apache-2.0
 * What a file is that is no ONNX model, in words, with what to do. Asked only when reading it as ONNX has failed, and
 * answered from its first bytes alone: nothing of another format is read any further. Sources: the formats' own
 * specifications. */
#define _GNU_SOURCE /* memmem */
#include <ctype.h>
#include <string.h>

#include "importer/importer.h"

typedef struct magic {
    size_t at;
    const char *bytes;
    size_t n;
    const char *is;
} magic;
/* clang-format off */
#define MAGIC(at, bytes, is) {at, bytes, sizeof(bytes) - 1, is}
/* clang-format on */

static const char lfs_pointer[] =
    "a Git LFS pointer, not the file itself: fetch that with 'git lfs pull', or download it";
static const char ggml[] = "a GGML file of weights: export the model that it was made of to ONNX";
static const char tensorrt[] = "an engine of TensorRT, made for one GPU: take the ONNX file that it was made of";
#define UNPACK(what) "compressed (" what "): unpack it first"
/* clang-format off */
static const magic magics[] = {
    MAGIC(0, "version https://git-lfs.github.com/spec/", lfs_pointer),
    MAGIC(0, "version https://hawser.github.com/spec/", lfs_pointer),
    MAGIC(0, "\x1f\x8b", UNPACK("gzip")),
    MAGIC(0, "BZh", UNPACK("bzip2")),
    MAGIC(0, "\xfd" "7zXZ\0", UNPACK("xz")),
    MAGIC(0, "\x28\xb5\x2f\xfd", UNPACK("zstd")),
    MAGIC(0, "\x04\x22\x4d\x18", UNPACK("lz4")),
    MAGIC(0, "7z\xbc\xaf\x27\x1c", UNPACK("7z")),
    MAGIC(0, "Rar!\x1a\x07", UNPACK("rar")),
    MAGIC(257, "ustar", "an archive (tar), as .nemo files are, too: unpack it first"),
    MAGIC(0, "\x80\x02\x8a\x0al\xfc\x9c", "a PyTorch file (.pt, .pth) of an old version, a Python pickle: load it in "
          "PyTorch and write the model with torch.onnx.export"),
    MAGIC(4, "ORTM", "a model in ORT format (.ort) of onnxruntime, not ONNX: take the .onnx file that it was made of"),
    MAGIC(4, "TFL3", "a TensorFlow Lite model (.tflite): convert it with tf2onnx (python -m tf2onnx.convert --tflite)"),
    MAGIC(4, "ET12", "an ExecuTorch program (.pte): export the PyTorch model with torch.onnx.export"),
    MAGIC(0, "GGUF", "a GGUF file of weights (llama.cpp): export the model that it was made of to ONNX"),
    MAGIC(0, "lmgg", ggml),
    MAGIC(0, "tjgg", ggml),
    MAGIC(0, "fmgg", ggml),
    MAGIC(0, "\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras writes (.h5): convert it with tf2onnx, or Keras's "
          "model.export(..., format='onnx')"),
    MAGIC(0, "\x93NUMPY", "an array of NumPy (.npy): data for a model, not a model"),
    MAGIC(0, "\x89PNG\r\n\x1a\n", "a picture (PNG)"),
    MAGIC(0, "\xff\xd8\xff", "a picture (JPEG)"),
    MAGIC(0, "GIF8", "a picture (GIF)"),
    MAGIC(0, "RIFF", "a sound, film or picture (RIFF)"),
    MAGIC(0, "%PDF", "a document (PDF)"),
    MAGIC(0, "PAR1", "a table (Parquet)"),
    MAGIC(0, "SQLite format 3", "a database (SQLite)"),
    MAGIC(0, "\x7f" "ELF", "a program or library (ELF)"),
    MAGIC(0, "MZ", "a program or library of Windows"),
    MAGIC(0, "\xcf\xfa\xed\xfe", "a program or library of macOS"),
    MAGIC(0, "\xca\xfe\xba\xbe", "a program of macOS or Java"),
    MAGIC(0, "ftrt", tensorrt),
    MAGIC(0, "ptrt", tensorrt),
    MAGIC(0, "RKNN", "a model of Rockchip (RKNN): take the ONNX file that it was made of"),
    MAGIC(0, "7767517\n", "a model of ncnn (.param): take the ONNX file that it was made of"),
    MAGIC(0, "\x12\x01\0\0\0\0\0\0", "parameters of MXNet (.params): export the model with mx.onnx"),
    MAGIC(0, "BC\xc0\xde", "code of LLVM, as in compiled models"),
    MAGIC(0, "\xff\xfe", "text in UTF-16: '>' of PowerShell has destroyed the file; download it again"),
};
/* clang-format on */

static const char *magic_kind(const uint8_t *base, size_t n)
{
    for (const magic *m = magics; m < magics + sizeof magics / sizeof *magics; m++)
        if (n >= m->at + m->n && !memcmp(base + m->at, m->bytes, m->n)) return m->is;
    return NULL;
}

bool inv_is_lfs_pointer(const uint8_t *base, size_t n) { return magic_kind(base, n) == lfs_pointer; }

static bool has(const uint8_t *base, size_t n, const char *what)
{
    return n && memmem(base, n, what, strlen(what)) != NULL;
}

static bool begins(const uint8_t *base, size_t n, const char *what) /* in letters of any case */
{
    for (size_t i = 0; what[i]; i++)
        if (i >= n || tolower(base[i]) != what[i]) return false;
    return true;
}

/* By the name of its first member. */
static const char *zip_kind(const uint8_t *base, size_t n)
{
    if (n < 4 || memcmp(base, "PK", 2) != 0 || base[2] > 8 || base[3] > 9) return NULL;
    const size_t head = n < 512 ? n : 512;
    if (has(base, head, "data.pkl") || has(base, head, "archive_format") || has(base, head, "/data/"))
        return "a PyTorch file (a zip archive, .pt, .pth or .pt2): load it in PyTorch and write the model with "
               "torch.onnx.export";
    if (has(base, head, "metadata.json"))
        return "a Keras model (a zip archive, .keras): load it in Keras and write it by model.export(..., "
               "format='onnx')";
    if (has(base, head, ".npy")) return "arrays of NumPy (.npz, a zip archive): data for a model, not a model";
    return "a zip archive: unpack it first; if PyTorch wrote it, export the model with torch.onnx.export";
}

static const char *xml_kind(const uint8_t *base, size_t n)
{
    const size_t head = n < 1024 ? n : 1024;
    while (n && isspace(*base)) base++, n--;
    if (begins(base, n, "<!doctype html") || begins(base, n, "<html") || begins(base, n, "<head") ||
        begins(base, n, "<!--"))
        return "a web page (HTML), as after a login or an error: download the file itself";
    if (!begins(base, n, "<?xml") && !begins(base, n, "<net") && !begins(base, n, "<error")) return NULL;
    return has(base, head < n ? head : n, "<net")
               ? "a model of OpenVINO (.xml): take the ONNX file that it was made of"
               : "a text in XML, as servers send for an error: download the file itself";
}

/* Protobuf messages of others, by the fields they begin with. */
static const char *message_kind(const uint8_t *base, size_t n)
{
    static const uint8_t no_parent[] = {8, 0, 16, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1};
    const size_t head = n < 64 ? n : 64;
    if (n && *base == 0x0a && memmem(base, head, no_parent, sizeof no_parent))
        return "a model of PaddlePaddle (.pdmodel): convert it with paddle2onnx";
    if (n > 3 && base[0] == 0x0a && has(base, n < 65536 ? n : 65536, "Placeholder"))
        return "a graph of TensorFlow (.pb): convert it with tf2onnx (python -m tf2onnx.convert --graphdef)";
    if (has(base, n < 65536 ? n : 65536, "saved_model") || has(base, n < 65536 ? n : 65536, "\x22\x05serve"))
        return "a model of TensorFlow (SavedModel): convert its folder with tf2onnx (python -m tf2onnx.convert "
               "--saved-model)";
    inv_field f;
    bool dims = false;
    for (size_t pos = 0; pos < n && !inv_wire_field(base, pos, n, &f); pos = f.end) {
        if (f.id >= 200 && f.id < 4000 && f.wire == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED)
            return "a model of Core ML (.mlmodel): take the ONNX file, or the model, that it was made of";
        if (f.id == 2 && f.wire == PROTOBUF_C_WIRE_TYPE_VARINT && dims)
            return "one tensor of ONNX (TensorProto), as test data are, not a model";
        dims = f.id == 1;
    }
    return NULL;
}

/* Its first line, up to what is no ASCII, for messages; NULL if it is no text. */
static const char *first_line(inv_arena *a, const uint8_t *base, size_t n)
{
    enum { LONGEST = 60, LOOK = 512, WORD = 4 };
    size_t end = 0, shown;
    for (; end < n && end < LOOK; end++)
        if (base[end] < 32 && !isspace(base[end])) return NULL;
    while (n && isspace(*base)) base++, n--, end--;
    for (shown = 0; shown < end && shown < LONGEST && base[shown] >= 32 && base[shown] < 127; shown++) {
    }
    if (shown < end && base[shown] >= 127 && shown < WORD) return NULL; /* hardly a text */
    return shown ? inv_arena_strndup(a, (const char *)base, shown) : NULL;
}

const char *inv_file_kind(inv_arena *a, const uint8_t *base, size_t n)
{
    const char *is = zip_kind(base, n);
    if (!is) is = magic_kind(base, n);
    if (!is && n > 8 && base[8] == '{' && !base[5] && !base[6] && !base[7])
        is = "a safetensors file: weights without the network; export the model that they belong to to ONNX";
    if (!is && n > 1 && base[0] == 0x80 && base[1] >= 2 && base[1] <= 5)
        is = "a Python pickle (PyTorch, scikit-learn, joblib): load it there and export the model to ONNX";
    if (n >= 3 && !memcmp(base, "\xef\xbb\xbf", 3)) base += 3, n -= 3; /* the mark of UTF-8 in front of a text */
    if (!is) is = xml_kind(base, n);
    if (!is) is = message_kind(base, n);
    if (is) return is;
    size_t zeros = 0;
    while (zeros < n && zeros < 4096 && !base[zeros]) zeros++;
    if (n && zeros == (n < 4096 ? n : 4096)) return "only zeros at its beginning: a download that was not finished";
    const char *line = first_line(a, base, n);
    if (!line) return NULL;
    const size_t head = n < 512 ? n : 512;
    if (*line == '{' && (has(base, head, "irVersion") || has(base, head, "ir_version")))
        return "ONNX in JSON: convert it in Python with onnx.save(onnx.load(PATH, format='json'), OUT)";
    if (has(base, head, "ir_version"))
        return *line == '<' ? "ONNX in its text form: convert it in Python with onnx.save(onnx.load(PATH, "
                              "format='onnxtxt'), OUT)"
                            : "ONNX in the text form of protobuf: convert it in Python with onnx.save(onnx.load(PATH, "
                              "format='textproto'), OUT)";
    return inv_arena_printf(a, "a text that begins with '%s', not a model", line);
}
