#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Follows a page of documentation to the letter: blocks with a file's name are written (```c shift.c), those of sh are run,
and every line of an output block has to be in what the run before it printed. With --in FOLDER in a copy of that folder.
usage: docs.py [--in FOLDER] PAGE.md ..."""
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path


def follow(page, source):
    printed, ran, wrong = None, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        if source:
            shutil.copytree(source, folder, dirs_exist_ok=True)
        for info, body in re.findall(r"^```(.*)\n((?:.*\n)*?)```$", page.read_text(), re.M):
            words = info.split()
            if words == ["sh"]:
                run = subprocess.run(["bash", "-euo", "pipefail", "-c", body], cwd=folder, text=True,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                printed = run.stdout
                ran += 1
                if run.returncode:
                    print(f"{page}: exit status {run.returncode} of\n{body}{printed}")
                    wrong += 1
            elif words == ["output"]:
                for line in body.splitlines():
                    if " ".join(line.split()) not in " ".join(printed.split()):
                        print(f"{page}: not printed: {line}\nbut:\n{printed}")
                        wrong += 1
            elif len(words) == 2:
                (Path(folder) / words[1]).write_text(body)
            else:
                sys.exit(f"{page}: what is to be done with the block ```{info}")
    if not ran:
        sys.exit(f"{page}: no command in it")
    return wrong


pages = sys.argv[1:]
source = pages.pop(1) if pages[0] == "--in" else None
pages = pages[1:] if source else pages
sys.exit(1 if sum(follow(Path(page).resolve(), source) for page in pages) else 0)
