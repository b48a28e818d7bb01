/* SPDX-License-Identifier: Apache-2.0
 * What the elements of an initializer betray, whatever reads it (trained.h). */
#include <math.h>
#include <string.h>

#include "core/graph/node.h"
#include "core/weights/trained.h"

/* Whether its elements are finite. Of large ones the beginning tells, where a mask has some that are not, and so has
 * a weight that went wrong; what a step makes of one that is elsewhere is seen by the step. */
bool inv_holds_finite(const inv_data *d)
{
    enum { LOOKED_AT = 64 << 20 }; /* bytes */
    const size_t size = inv_dtype_size(d->dtype), seen = d->nbytes < LOOKED_AT ? d->nbytes : LOOKED_AT;
    const size_t n = d->bytes && size ? seen / size : 0;
    const char *p = d->bytes;
    uint32_t special = 0; /* no bool, of which the compiler makes no vectors */
#define LOOK(type, exponent)                       \
    for (size_t i = 0; i < n; i++) {               \
        type u;                                    \
        memcpy(&u, p + i * sizeof u, sizeof u);    \
        special |= (u & (exponent)) == (exponent); \
    }                                              \
    break
    switch (d->dtype) {
    case INV_F64: LOOK(uint64_t, 0x7ff0000000000000u);
    case INV_F32: LOOK(uint32_t, 0x7f800000u);
    case INV_F16: LOOK(uint16_t, 0x7c00u);
    case INV_BF16: LOOK(uint16_t, 0x7f80u);
    default: break;
    }
#undef LOOK
    return !special;
}

/* A weight that a quantizer has made, and an exporter's optimizer has given floating point: a constant of tests or of a
 * formula has fewer elements, or fewer values. */
bool inv_holds_whole_numbers(const inv_data *d)
{
    enum { FEWEST = 64, FEWEST_VALUES = 12, BIAS = 128 };
    const size_t n = d->bytes && inv_dtype_is_float(d->dtype) ? inv_data_count(d) : 0;
    bool seen[2 * BIAS] = {false};
    int values = 0;
    for (size_t i = 0; i < n; i++) {
        const double x = inv_elem_double(d->bytes, d->dtype, i);
        if (!(x >= -BIAS && x < BIAS) || x != floor(x)) return false;
        values += !seen[(int)x + BIAS];
        seen[(int)x + BIAS] = true;
    }
    return n >= FEWEST && values >= FEWEST_VALUES;
}

bool inv_holds_filter(const inv_data *d)
{
    const size_t n = d->bytes && inv_dtype_is_float(d->dtype) ? inv_data_count(d) : 0;
    const inv_shape *s = &d->shape;
    if (n == 0 || s->rank < 3 || s->dim[1] != 1) return false;
    const size_t filters = (size_t)s->dim[0], extent = n / filters;
    const double first = inv_elem_double(d->bytes, d->dtype, 0);
    bool even = true, zero = true, alike = true;
    for (size_t i = 0; i < n && (even || alike); i++) {
        const double x = inv_elem_double(d->bytes, d->dtype, i);
        even = even && x == first;
        zero = zero && x == 0;
        alike = alike && x == inv_elem_double(d->bytes, d->dtype, i % extent);
    }
    if (extent < 2 || zero) return false;
    return (filters > 1 && alike) || (even && (first == 1 || fabs(first * (double)extent - 1) < 1e-5));
}

/* Whether all that reads value v would be infinite, or no number, at zero. */
static bool is_kept_from_zero(const inv_graph *g, inv_id v)
{
    static const char *const roots[] = {"Sqrt", "Log", "Reciprocal", "Pow", NULL};
    bool any = false;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nin; k++) {
            if (n->in[k] != v) continue;
            if (!(k == 0 && inv_node_is_any(n, roots)) && !(k == 1 && inv_node_is(n, "Div"))) return false;
            any = true;
        }
    }
    return any;
}

bool inv_is_epsilon(const inv_graph *g, inv_id v)
{
    static const double LARGEST = 1e-2;
    static const char *const sums[] = {"Add", "Max", "Sum", NULL};
    const inv_data *d = &inv_val(g, v)->data;
    const bool one = d->bytes && inv_dtype_is_float(d->dtype) && inv_data_count(d) == 1;
    const double x = one ? inv_elem_double(d->bytes, d->dtype, 0) : 0;
    bool any = false;
    if (!(x > 0 && x <= LARGEST)) return false;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nin; k++) {
            if (n->in[k] != v) continue;
            if (!inv_node_is_any(n, sums) || !n->nout || !is_kept_from_zero(g, n->out[0])) return false;
            any = true;
        }
    }
    return any;
}
