/* SPDX-License-Identifier: Apache-2.0
 * The picture of a plan, from reports as text. */
#ifndef INVONNX_PYTHON_DRAW_PLAN_H
#define INVONNX_PYTHON_DRAW_PLAN_H

#include <stdbool.h>

/** Reports of the step with all values stored, and as planned, JSON each; `curve` and `explanation` may be NULL
 *  (pictures/picture.h). @return an svg element, or a page; the caller frees it. NULL: out of memory */
char *invonnx_draw_plan(const char *heading, const char *stored, const char *planned, const char *curve,
                        const char *explanation, bool page);

#endif
