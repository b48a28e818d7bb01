# SPDX-License-Identifier: Apache-2.0
"""Writes the digits of the examples as folders of pictures by class, as people have theirs:

    python3 examples/digits_to_png.py FOLDER [SIZE [MARGIN]]

gives FOLDER/train/0/0000.png and on, FOLDER/val/..., of SIZE x SIZE grey pixels (default 8, as the digits are; larger
ones repeat pixels) with MARGIN black ones (default 0) on each side. Needs nothing but Python."""
import array
import ast
import os
import struct
import sys
import zlib

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")


def read_npy(path):
    """(shape, numbers) of a file of float32 or int64."""
    with open(path, "rb") as f:
        content = f.read()
    start = 10 + struct.unpack_from("<H", content, 8)[0]
    header = ast.literal_eval(content[10:start].decode("latin1"))
    numbers = array.array({"<f4": "f", "<i8": "q"}[header["descr"]])
    numbers.frombytes(content[start:])
    if sys.byteorder == "big":
        numbers.byteswap()
    return header["shape"], numbers


def png(rows):
    """The content of a file of 8-bit grey pixels."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">2I5B", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + bytes(row) for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def pixels(content):
    """The rows of what png() wrote. Of other files use a library for pictures, such as Pillow."""
    width, height = struct.unpack_from(">2I", content, 16)
    length, = struct.unpack_from(">I", content, 33)
    data = zlib.decompress(content[41:41 + length])
    return [list(data[r * (width + 1) + 1:(r + 1) * (width + 1)]) for r in range(height)]


def main():
    if len(sys.argv) not in (2, 3, 4):
        sys.exit(__doc__)
    size, margin = list(map(int, sys.argv[2:])) + [8, 0][len(sys.argv) - 2:]
    beside, above = [0] * margin, [[0] * (size + 2 * margin)] * margin
    for part in ("train", "val"):
        shape, x = read_npy(os.path.join(DATA, f"digits_{part}_x.npy"))
        _, y = read_npy(os.path.join(DATA, f"digits_{part}_y.npy"))
        height, width = shape[-2:]
        for i in range(shape[0]):
            digit = [round((v + 1) / 2 * 255) for v in x[i * height * width:(i + 1) * height * width]]
            folder = os.path.join(sys.argv[1], part, str(y[i]))
            os.makedirs(folder, exist_ok=True)
            rows = [beside + [digit[r * height // size * width + c * width // size] for c in range(size)] + beside
                    for r in range(size)]
            with open(os.path.join(folder, f"{i:04}.png"), "wb") as f:
                f.write(png(above + rows + above))
        print(f"{shape[0]} pictures in {os.path.join(sys.argv[1], part)}")


if __name__ == "__main__":
    main()
