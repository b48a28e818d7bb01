/* SPDX-License-Identifier: Apache-2.0
 * What callers give, looked at before it is used (options.c). */
#ifndef INV_CORE_OPTIONS_H
#define INV_CORE_OPTIONS_H

#include "core/base/mem.h"

enum { INV_MOST_THREADS = 4096, INV_MOST_EFFORT = 1000 };

/* A struct that begins with its size: not empty, not larger than what is known. `what`: for the message. */
inv_status inv_size_check(inv_context *ctx, const char *what, size_t size, size_t known);
/* Copies options whose fields are of 8 bytes each, of a caller who may know fewer of them. INV_E_ABI. */
inv_status inv_options_take(inv_context *ctx, const char *what, void *to, size_t known, const void *given, size_t size);
/* Options of a session, whole: fields that the caller's version does not have are zero. INV_E_ABI, or INV_E_ARG,
 * INV_E_SHAPE, INV_E_UNSUPPORTED_TYPE with the name of the field. */
inv_status inv_options_read(inv_context *ctx, const inv_session_options *given, inv_session_options *out);
/* The same of options whose inputs may have extents below 0: open ones. */
inv_status inv_options_read_open(inv_context *ctx, const inv_session_options *given, inv_session_options *out);
/* All that is about updates, ranks and the course of a training is left out: what remains makes gradients. */
void inv_options_of_gradients(inv_session_options *o);
inv_status inv_modes_check(inv_context *ctx, const inv_mode_rule *rules, size_t n);
inv_status inv_arrays_check(inv_context *ctx, const inv_array *inputs, size_t n, const inv_array *target);

/* Rows of such arrays: of the target, else of the first input; `none`: neither has axes. */
int64_t inv_arrays_rows(const inv_array *inputs, size_t n, const inv_array *target, int64_t none);

/* A batch that has a loss has rows. INV_E_SHAPE */
inv_status inv_rows_check(inv_context *ctx, const inv_array *inputs, size_t n, const inv_array *target);

/* Whether the values of this input, one of the options', are constants of the session. */
bool inv_input_is_constant(const inv_session_options *o, const inv_array *a);

/* The largest relative error of a reconstruction where the options name none. docs/numerics.md: above that a
 * reconstruction moves float32 gradients by more than a few 1e-3. */
double inv_default_max_drift(bool float64);
const char *inv_precision_name(inv_precision precision); /* as `--precision` has it */

/* Whether a device's name says kind, or kind:N, and then which of its kind: 0 where it does not say. */
bool inv_device_is(const char *name, const char *kind, int *index);
/* Whether what is computed there is queued: cuda, sim. NULL is cpu. */
bool inv_device_queues(const char *name);

#endif
