/* SPDX-License-Identifier: Apache-2.0
 * What the library calls back, on its way to Python. That a call of a context is at work is known here, where no
 * exception of the interpreter comes between: not even that of Ctrl-C can leave it behind. */
#ifndef INVONNX_PYTHON_CALLBACKS_H
#define INVONNX_PYTHON_CALLBACKS_H

static void invonnx_log(void *opaque, const char *line);
static void invonnx_progress(void *opaque, const char *stage, double share);

/* One per context. Calls of a context come one at a time, so nobody else counts meanwhile. */
typedef struct invonnx_caller {
    void *python; /* the object that callbacks find */
    int depth;    /* callbacks that have not returned */
} invonnx_caller;

static void invonnx_call_log(void *opaque, const char *line)
{
    invonnx_caller *c = opaque;
    c->depth++;
    invonnx_log(c->python, line);
    c->depth--;
}

static void invonnx_call_progress(void *opaque, const char *stage, double share)
{
    invonnx_caller *c = opaque;
    c->depth++;
    invonnx_progress(c->python, stage, share);
    c->depth--;
}

#endif
