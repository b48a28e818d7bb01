#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the shared library exports is what the headers declare with INV_API and api/invonnx.map lists, each under its
version, and nothing else. Fails if a function is missing in one of the three, or the library has another soname than its
major version.

    symbols.py libinvonnx.so"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def lines(*command):
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout.splitlines()


def main():
    library = sys.argv[1]
    declared, text = set(), ""
    for header in sorted((ROOT / "include" / "invonnx").glob("*.h")):
        text += re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.S)
    declared = set(re.findall(r"INV_API\b[^;]*?\b(inv_\w+)\s*\(", text))
    node, body = re.search(r"(\w+) \{\nglobal:\n((?: {4}\w+;\n)+)local:\n {4}\*;\n\};\n$", (ROOT / "api" / "invonnx.map").read_text()).groups()
    listed = re.findall(r"\w+", body)
    wrong = 0
    if listed != sorted(set(listed)):
        print("api/invonnx.map: not in order, or something twice")
        wrong = 1
    exported = {line.split()[-1] for line in lines("nm", "-D", "--defined-only", library)} - {node}
    for name in sorted(declared ^ set(listed)):
        print(f"{name}: {'not in api/invonnx.map' if name in declared else 'in api/invonnx.map, but no header has it'}")
        wrong = 1
    for name in sorted({f"{name}@@{node}" for name in listed} ^ exported):
        print(f"{name}: {'exported, but not listed' if name in exported else 'not exported'}")
        wrong = 1
    (soname,) = re.findall(r"soname: \[(.*)\]", "\n".join(lines("readelf", "-d", library)))
    major = re.search(r"INV_VERSION_MAJOR (\d+)", text).group(1)
    if soname != f"libinvonnx.so.{major}" or node != f"INVONNX_{major}":
        print(f"{library}: soname {soname}, version {node}, but the major version is {major}")
        wrong = 1
    print(f"symbols: {len(listed)} functions" if not wrong else "symbols: wrong")
    return wrong


sys.exit(main())
