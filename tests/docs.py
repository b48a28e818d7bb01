#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Follows a page of documentation to the letter, in a folder of its own: blocks with a file's name are written
(```c shift.c), those of sh are run, and so are indented ones that begin with a command; blocks of python are run one
after the other in one interpreter, and so are indented ones that begin with an import. Every line of an output block has
to be in what the run before it printed; ... in it is anything. An indented block with MODEL or ... is a form, and is not
run. What is in the folder of --in is copied there before.
usage: docs.py [--in FOLDER] PAGE.md ..."""
import argparse
import contextlib
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import traceback
from pathlib import Path

FENCED = r"^```(?P<info>.*)\n(?P<body>(?:.*\n)*?)```$"
INDENTED = r"(?<=\n\n)(?P<lines>(?:    .*\n|\n(?=    ))+)"
SHELL, PYTHON = ("invonnx ", "generate "), ("import invonnx", "import numpy")


PATH = os.environ["PATH"]


def blocks(text):
    """(words of the info line, body) of each block."""
    for found in re.finditer(f"{FENCED}|{INDENTED}", text, re.M):
        if found["lines"] is None:
            yield found["info"].split(), found["body"]
            continue
        body = textwrap.dedent(found["lines"])
        if body.startswith(SHELL + PYTHON) and not re.search(r"\bMODEL\b|\.\.\.", body):
            yield ["python" if body.startswith(PYTHON) else "sh"], body


def run_python(body, names):
    """(whether it went well, what was printed)"""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            exec(compile(body, "page", "exec"), names)
        except Exception:
            traceback.print_exc(file=out)
            return False, out.getvalue()
    return True, out.getvalue()


def follow(page, source):
    printed, ran, wrong, names = None, 0, 0, {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder:
        if source:
            shutil.copytree(source, folder, dirs_exist_ok=True)
        os.chdir(folder)
        os.environ["PATH"] = f"{folder}/bin:{Path(sys.executable).parent}:{PATH}"
        for words, body in blocks(page.read_text()):
            well = True
            if words == ["sh"]:
                run = subprocess.run(["bash", "-euo", "pipefail", "-c", body], text=True, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT)
                well, printed = run.returncode == 0, run.stdout
            elif words == ["python"] and "import invonnx.torch" in body and not importlib.util.find_spec("torch"):
                print(f"{page}: not run, there is no PyTorch:\n{body}")
            elif words == ["python"]:
                well, printed = run_python(body, names)
            elif words == ["output"]:
                for line in body.splitlines():
                    wanted = ".*".join(re.escape(" ".join(part.split())) for part in line.split("..."))
                    if not re.search(wanted, " ".join(printed.split())):
                        print(f"{page}: not printed: {line}\nbut:\n{printed}")
                        wrong += 1
            elif len(words) == 2:
                Path(words[1]).write_text(body)
            else:
                sys.exit(f"{page}: what is to be done with the block ```{' '.join(words)}")
            ran += words in (["sh"], ["python"])
            if not well:
                print(f"{page}: this failed:\n{body}{printed}")
                wrong += 1
        names.clear()
        os.chdir("/")
    if not ran:
        sys.exit(f"{page}: no command in it")
    print(f"{page}: {ran} blocks")
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--in", dest="source", type=lambda s: Path(s).resolve())
    parser.add_argument("pages", nargs="+", type=lambda s: Path(s).resolve())
    args = parser.parse_args()
    return 1 if sum([follow(page, args.source) for page in args.pages]) else 0


sys.exit(main())
