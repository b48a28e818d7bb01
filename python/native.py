# SPDX-License-Identifier: Apache-2.0
"""Writes the C source of `invonnx._native`: the whole C API as its headers declare it, for cffi.

    native.py FOLDER_OF_HEADERS OUT.c
"""
import pathlib
import re
import sys

from cffi import FFI

HEADERS = ("status.h", "invonnx.h", "world.h", "session.h")

# What Python implements, and what the headers beside this file have.
MORE = """
extern "Python" void invonnx_log(void *opaque, const char *line);
extern "Python" void invonnx_progress(void *opaque, const char *stage, double share);
typedef struct invonnx_caller { void *python; int depth; } invonnx_caller;
void invonnx_call_log(void *opaque, const char *line);
void invonnx_call_progress(void *opaque, const char *stage, double share);
static volatile int invonnx_stop;
int invonnx_watch(void);
void invonnx_unwatch(void);
void invonnx_end(int now);
char *invonnx_draw_plan(const char *heading, const char *stored, const char *planned, const char *curve,
                        const char *explanation, bool page);
void free(void *p);
"""


def declarations(text):
    """A header without what cffi does not read: comments, the preprocessor's lines, attributes."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
    rows = re.findall(r"X\((\w+), (\d+), ", text)
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.S)
    text = re.sub(r"^#.*?[^\\]$", "", text, flags=re.M | re.S)
    if rows:  # the map of status codes, which the preprocessor makes an enum of
        return "typedef enum inv_status { " + ", ".join(f"INV_{n} = {v}" for n, v in rows) + " } inv_status;\n"
    return re.sub(r"\b(INV_API|INV_NODISCARD)\b", "", text)


def main():
    folder, out = pathlib.Path(sys.argv[1]), sys.argv[2]
    ffi = FFI()
    ffi.cdef("".join(declarations((folder / name).read_text(encoding="utf-8")) for name in HEADERS) + MORE)
    ffi.set_source("invonnx._native", '#include "invonnx/invonnx.h"\n#include "callbacks.h"\n#include "draw_plan.h"\n'
                   '#include "interrupt.h"\n#include <stdlib.h>\n')
    ffi.emit_c_code(out)


if __name__ == "__main__":
    main()
