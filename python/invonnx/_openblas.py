# SPDX-License-Identifier: Apache-2.0
"""Loads the library with the kernels of OpenBLAS that the program has (set_environment in cli/main.c): 0.3.21 does not
know newer cores, and takes the slowest there, with other bits. It reads the environment while it is loaded; what is
loaded later, as numpy's own copy, is to find that as it was."""
import os

_NAME, _WIDE = "OPENBLAS_CORETYPE", {"avx512f", "avx512bw", "avx512dq", "avx512vl"}


def _flags() -> set[str]:
    """Of the processor, as Linux calls them; none where nobody says."""
    try:
        with open("/proc/cpuinfo") as f:
            return next((set(line.split()) for line in f if line.startswith("flags")), set())
    except OSError:
        return set()


def _load() -> None:
    known = _NAME in os.environ or not _WIDE <= _flags()
    if not known:
        os.environ[_NAME] = "SkylakeX"
    try:
        from . import _native  # noqa: F401
    finally:
        if not known:
            del os.environ[_NAME]


_load()
