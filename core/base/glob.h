/* SPDX-License-Identifier: Apache-2.0
 * Globs of names, and what somebody may have meant by one that fits nothing: the nearest of the names that there are.
 * */
#ifndef INV_CORE_GLOB_H
#define INV_CORE_GLOB_H

#include "invonnx/invonnx.h"

/* Whether a name is the glob to the letter, or fits it. */
bool inv_glob_fits(const char *glob, const char *name);
bool inv_glob_fits_any(const char *const *globs, size_t n, const char *name);

typedef struct inv_near {
    const char *glob, *name; /* name: the nearest so far, borrowed; NULL: none is near */
    size_t off;
} inv_near;

inv_near inv_near_to(const char *glob);
/* Looks at one of the names. */
void inv_near_look(inv_near *n, const char *name);
/* For messages: "; did you mean '", the name, "'?", or three empty texts. */
#define INV_NEAR_FORMAT "%s%s%s"
#define INV_NEAR_ARGS(n) (n).name ? "; did you mean '" : "", (n).name ? (n).name : "", (n).name ? "'?" : ""

#endif
