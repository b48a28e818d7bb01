#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Executes the notebooks of examples/notebooks in Jupyter's kernel, each from its own folder. Fails if a cell fails, or has
no results in the file, as what was edited and not run has.

    notebooks.py [--write]   --write: keep the results in the files"""
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "notebooks"


def main():
    wrong = 0
    for path in sorted(FOLDER.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        kept = [bool(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(FOLDER)}}).execute()
        now = [bool(cell.outputs) for cell in notebook.cells if cell.cell_type == "code"]
        if "--write" in sys.argv:
            for cell in notebook.cells:
                cell.metadata.pop("execution", None)
            notebook.metadata.pop("language_info", None)
            nbformat.write(notebook, path)
        elif kept != now:
            print(f"{path.name}: cells give results that the file does not have: tests/notebooks.py --write")
            wrong = 1
        print(f"{path.name}: {len(now)} cells")
    return wrong


sys.exit(main())
