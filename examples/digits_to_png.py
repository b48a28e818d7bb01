# SPDX-License-Identifier: Apache-2.0
"""Writes the digits of the examples as folders of pictures by class, as people have theirs:

    python3 examples/digits_to_png.py FOLDER [SIZE]

gives FOLDER/train/0/0000.png and on, FOLDER/val/..., of SIZE x SIZE grey pixels (default 8, as the digits are; larger
ones repeat pixels). Needs nothing but Python."""
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
    """A file of 8-bit grey pixels."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">2I5B", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + bytes(row) for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    size = int(sys.argv[2]) if len(sys.argv) == 3 else 8
    for part in ("train", "val"):
        shape, x = read_npy(os.path.join(DATA, f"digits_{part}_x.npy"))
        _, y = read_npy(os.path.join(DATA, f"digits_{part}_y.npy"))
        height, width = shape[-2:]
        for i in range(shape[0]):
            pixels = [round((v + 1) / 2 * 255) for v in x[i * height * width:(i + 1) * height * width]]
            folder = os.path.join(sys.argv[1], part, str(y[i]))
            os.makedirs(folder, exist_ok=True)
            rows = [[pixels[r * height // size * width + c * width // size] for c in range(size)] for r in range(size)]
            with open(os.path.join(folder, f"{i:04}.png"), "wb") as f:
                f.write(png(rows))
        print(f"{shape[0]} pictures in {os.path.join(sys.argv[1], part)}")


if __name__ == "__main__":
    main()
