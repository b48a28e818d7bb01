/* SPDX-License-Identifier: Apache-2.0
 * The parameters of a session as numbers. */
#ifndef INVONNX_PARAMS_H
#define INVONNX_PARAMS_H

#include "core/graph/model.h"
#include "executor/executor.h"

/* Behind the first n numbers in `out`, which has room for `most`. What there is then. */
static inline size_t add_params(inv_session *s, double *out, size_t n, size_t most)
{
    const char *name;
    for (size_t i = 0; (name = inv_session_name(s, INV_GET_PARAM, i)); i++) {
        const void *data;
        inv_dtype t;
        int rank;
        int64_t dims[INV_MAX_RANK], count = 1;
        if (inv_session_get(s, INV_GET_PARAM, name, &data, &t, &rank, dims) != INV_OK) continue;
        for (int d = 0; d < rank; d++) count *= dims[d];
        for (int64_t k = 0; k < count && n < most; k++) out[n++] = inv_elem_double(data, t, (size_t)k);
    }
    return n;
}

#endif
