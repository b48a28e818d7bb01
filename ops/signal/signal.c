/* SPDX-License-Identifier: Apache-2.0
 * Signals. DFT is a matrix product with a constant matrix, STFT a convolution with windowed waves as filters and the
 * step as stride, so both have gradients (of the window, too) and device kernels; windows and mel filters are
 * constants. For signals of some thousand points; there is no fast transform. Sources: ONNX DFT-17, -20, STFT-17,
 * BlackmanWindow-17, HannWindow-17, HammingWindow-17, MelWeightMatrix-17. */
#include "ops/base/families.h"
#include "ops/base/rows.h"
#include "ops/base/util.h"

#define PI 3.14159265358979323846
#define MATRIX_MOST ((int64_t)1 << 26) /* elements of a constant matrix */

/* A constant of n doubles in type t. */
static inv_status constant_doubles(inv_graph *g, inv_dtype t, const inv_shape *s, const double *v, inv_id *out)
{
    const size_t n = (size_t)inv_shape_nelem(s);
    if (inv_dtype_is_float(t)) t = g->real;
    char *bytes = inv_arena_alloc(&g->arena, n * 8 + 8);
    if (bytes == NULL) return INV_E_NOMEM;
    for (size_t i = 0; i < n; i++) inv_put_int(bytes, t, (int64_t)i, (int64_t)v[i]);
    if (inv_dtype_is_float(t) && !inv_convert(bytes, t, v, INV_F64, n)) return INV_E_INTERNAL;
    *out = inv_graph_const(g, t, s, bytes);
    return inv_done(g);
}

/* The constant number of input i, `dflt` if that is not given. */
static inv_status constant_number(const inv_graph *g, const inv_node *n, uint32_t i, double dflt, double *out)
{
    *out = dflt;
    if (!inv_has_in(n, i)) return INV_OK;
    const inv_value *v = inv_val(g, n->in[i]);
    const bool known = v->role == INV_ROLE_CONST || v->role == INV_ROLE_PARAM;
    if (!known || v->data.bytes == NULL) return inv_node_fail_varying(g, n, n->in[i], "input", NULL);
    if (inv_shape_nelem(&v->shape) != 1) return inv_node_fail(g, n, INV_E_SHAPE, "input %u must be one number", i);
    *out = inv_elem_double(v->data.bytes, v->data.dtype, 0);
    return INV_OK;
}

/* --- transforms --- */

/* y_k = factor sum_j weight_j x_j e^(sign 2 pi i j k / length): real and imaginary parts, or the real part alone. */
typedef struct transform {
    int64_t length, n, k; /* period, inputs, outputs */
    int64_t in, out;      /* numbers per input and output: 1 real, 2 complex */
    double sign, factor;
    bool half; /* inputs stand for their mirror images, too */
} transform;

/* What number `a` of input j gives to number `b` of output k. */
static double entry(const transform *t, int64_t j, int64_t a, int64_t k, int64_t b)
{
    const double angle = 2 * PI * (double)(j % t->length * (k % t->length) % t->length) / (double)t->length;
    const double twice = t->half && j > 0 && 2 * j != t->length ? 2 : 1;
    const double wave = a == b ? cos(angle) : b == 1 ? t->sign * sin(angle) : -t->sign * sin(angle);
    return t->factor * twice * wave;
}

static inv_status dft_shape(const inv_graph *g, const inv_node *n, const inv_shape *x, int axis, double length,
                            transform *t)
{
    const bool inverse = inv_attr_int(n, "inverse", 0) != 0, onesided = inv_attr_int(n, "onesided", 0) != 0;
    const bool back = inverse && onesided;
    *t = (transform){.in = x->dim[x->rank - 1], .out = back ? 1 : 2, .sign = inverse ? 1 : -1, .half = back};
    const int64_t have = x->dim[axis];
    if (t->in != 1 && t->in != 2)
        return inv_node_fail(g, n, INV_E_SHAPE, "the last extent must be 1 (real) or 2 (complex)");
    t->length = length > 0 ? (int64_t)length : back ? 2 * (have - 1) : have;
    if (!(length >= 0 && length < 1e9) || t->length < 1 || have < 1)
        return inv_node_fail(g, n, INV_E_SHAPE, "a transform of length %lld", (long long)t->length);
    t->factor = inverse ? 1 / (double)t->length : 1;
    t->k = onesided && !inverse ? t->length / 2 + 1 : t->length;
    t->n = back ? t->length / 2 + 1 : t->length;
    if (t->n > have) t->n = have; /* zeros behind add nothing */
    if (t->n * t->in > MATRIX_MOST / (t->k * t->out))
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "%lld points are too many for a matrix", (long long)t->length);
    return INV_OK;
}

static inv_status matrix(inv_graph *g, const transform *t, inv_id *out)
{
    const inv_shape s = inv_shape_of(2, (int64_t[]){t->n * t->in, t->k * t->out});
    double *v = INV_ARENA_NEW(&g->arena, double, (size_t)inv_shape_nelem(&s)), *at = v;
    if (v == NULL) return INV_E_NOMEM;
    for (int64_t j = 0; j < t->n * t->in; j++)
        for (int64_t k = 0; k < t->k * t->out; k++) *at++ = entry(t, j / t->in, j % t->in, k / t->out, k % t->out);
    return constant_doubles(g, INV_F32, &s, v, out);
}

static inv_status dft(inv_graph *g, const inv_node *n, double axis_given, inv_id *out)
{
    double length;
    int axis;
    transform t;
    inv_id w;
    INV_TRY(inv_need_real(g, n, 0));
    inv_shape x = *inv_in_shape(g, n, 0);
    INV_TRY(inv_axis(g, n, (int64_t)axis_given, x.rank, &axis));
    if (axis == x.rank - 1) return inv_node_fail(g, n, INV_E_SHAPE, "the last axis holds real and imaginary parts");
    INV_TRY(constant_number(g, n, 1, 0, &length));
    INV_TRY(dft_shape(g, n, &x, axis, length, &t));
    INV_TRY(matrix(g, &t, &w));
    inv_id v = n->in[0];
    if (t.n < x.dim[axis]) {
        x.dim[axis] = t.n;
        v = inv_emit_part(g, v, axis, 0, t.n);
    }
    int64_t perm[INV_MAX_RANK]; /* swaps the axis with the last but one */
    for (int i = 0; i < x.rank; i++) perm[i] = i == axis ? x.rank - 2 : i == x.rank - 2 ? axis : i;
    v = inv_emit_transpose(g, v, x.rank, perm);
    const int64_t others = inv_prod(&x, 0, x.rank - 1) / t.n;
    const inv_shape flat = inv_shape_of(2, (int64_t[]){others, t.n * t.in});
    v = inv_emit1(g, "MatMulT", INV_IN(inv_emit_view(g, v, &flat), w), INV_NOATTR);
    inv_shape y = x;
    for (int i = 0; i < x.rank; i++) y.dim[i] = x.dim[perm[i]];
    y.dim[x.rank - 2] = t.k;
    y.dim[x.rank - 1] = t.out;
    out[0] = inv_emit_transpose(g, inv_emit_view(g, v, &y), x.rank, perm);
    return inv_done(g);
}
static inv_status dft_17_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    return dft(g, n, (double)inv_attr_int(n, "axis", 1), out);
}
static inv_status dft_20_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    double axis;
    INV_TRY(constant_number(g, n, 2, -2, &axis));
    return dft(g, n, axis, out);
}

/* Filters [k * 2, in, length], windowed. */
static inv_status filters(inv_graph *g, const inv_node *n, const transform *t, inv_id *out)
{
    const inv_shape s = inv_shape_of(3, (int64_t[]){t->k * 2, t->in, t->length});
    const inv_shape row = inv_shape_of(3, (int64_t[]){1, 1, t->length});
    double *v = INV_ARENA_NEW(&g->arena, double, (size_t)inv_shape_nelem(&s)), *at = v;
    if (v == NULL) return INV_E_NOMEM;
    for (int64_t k = 0; k < t->k * 2; k++)
        for (int64_t a = 0; a < t->in; a++)
            for (int64_t j = 0; j < t->length; j++) *at++ = entry(t, j, a, k / 2, k % 2);
    INV_TRY(constant_doubles(g, INV_F32, &s, v, out));
    if (inv_has_in(n, 2)) *out = inv_emit1(g, "Mul", INV_IN(*out, inv_emit_view(g, n->in[2], &row)), INV_NOATTR);
    return inv_done(g);
}

static inv_status stft_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    double step, length;
    inv_id w;
    INV_TRY(inv_need_real(g, n, 0));
    inv_shape x = *inv_in_shape(g, n, 0);
    if (x.rank == 2) x.dim[x.rank++] = 1;
    if (x.rank != 3 || (x.dim[2] != 1 && x.dim[2] != 2))
        return inv_node_fail(g, n, INV_E_SHAPE, "the signal must be [batch, length, 1 or 2]");
    INV_TRY(constant_number(g, n, 1, 0, &step));
    const double window = inv_has_in(n, 2) ? (double)inv_shape_nelem(inv_in_shape(g, n, 2)) : (double)x.dim[1];
    INV_TRY(constant_number(g, n, 3, window, &length));
    if (!(step >= 1 && step < 1e9) || !(length >= 1 && length <= (double)x.dim[1]) ||
        (inv_has_in(n, 2) && length != window))
        return inv_node_fail(g, n, INV_E_SHAPE, "frames of %g every %g points, window of %g", length, step, window);
    transform t = {.length = (int64_t)length, .in = x.dim[2], .out = 2, .sign = -1, .factor = 1};
    t.k = inv_attr_int(n, "onesided", 1) ? t.length / 2 + 1 : t.length;
    if (t.k * 2 * t.in > MATRIX_MOST / t.length)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_OP, "frames of %g points are too long for a matrix", length);
    INV_TRY(filters(g, n, &t, &w));
    const int64_t perm[3] = {0, 2, 1}, stride = (int64_t)step;
    inv_id v = inv_emit_view(g, n->in[0], &x);
    const inv_shape one = inv_shape_of(3, (int64_t[]){x.dim[0], 1, x.dim[1]});
    v = t.in == 1 ? inv_emit_view(g, v, &one) : inv_emit_transpose(g, v, 3, perm);
    v = inv_emit1(g, "ConvN", INV_IN(v, w), INV_ATTRS(inv_attr_of_ints("strides", 1, &stride)));
    v = inv_emit_transpose(g, v, 3, perm);
    if (v == INV_NONE) return g->failed;
    const inv_shape y = inv_shape_of(4, (int64_t[]){x.dim[0], inv_shape_of_value(g, v)->dim[1], t.k, 2});
    out[0] = inv_emit_view(g, v, &y);
    return inv_done(g);
}

/* --- windows: a + b cos(x) + c cos(2 x), x once around --- */
static inv_status window(inv_graph *g, const inv_node *n, double a, double b, double c, inv_id *out)
{
    double size;
    INV_TRY(constant_number(g, n, 0, 0, &size));
    const inv_dtype t = (inv_dtype)inv_attr_int(n, "output_datatype", INV_F32);
    if (!(size >= 0 && size <= (double)MATRIX_MOST)) return inv_node_fail(g, n, INV_E_SHAPE, "a window of %g", size);
    if (inv_dtype_size(t) == 0 || t == INV_C64 || t == INV_C128)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "output_datatype %s", inv_dtype_name(t));
    const int64_t count = (int64_t)size;
    const double around = inv_attr_int(n, "periodic", 1) ? size : size - 1;
    const inv_shape s = inv_shape_of(1, &count);
    double *v = INV_ARENA_NEW(&g->arena, double, (size_t)count + 1);
    if (v == NULL) return INV_E_NOMEM;
    for (int64_t i = 0; i < count; i++) {
        const double x = around > 0 ? 2 * PI * (double)i / around : PI; /* a single point is the middle */
        v[i] = a + b * cos(x) + c * cos(2 * x);
    }
    return constant_doubles(g, t, &s, v, out);
}
static inv_status hann_lower(inv_graph *g, const inv_node *n, inv_id *out) { return window(g, n, 0.5, -0.5, 0, out); }
static inv_status hamming_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    return window(g, n, 25.0 / 46, -21.0 / 46, 0, out);
}
static inv_status blackman_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    return window(g, n, 0.42, -0.5, 0.08, out);
}

/* --- MelWeightMatrix: triangles between neighbouring edges, which are even on the mel scale --- */
static double mel(double hertz) { return 2595 * log10(1 + hertz / 700); }

static inv_status mel_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    double bands, length, rate, low, high;
    INV_TRY(constant_number(g, n, 0, 0, &bands));
    INV_TRY(constant_number(g, n, 1, 0, &length));
    INV_TRY(constant_number(g, n, 2, 0, &rate));
    INV_TRY(constant_number(g, n, 3, 0, &low));
    INV_TRY(constant_number(g, n, 4, 0, &high));
    const inv_dtype t = (inv_dtype)inv_attr_int(n, "output_datatype", INV_F32);
    if (!(bands >= 0 && length >= 0 && rate > 0 && low >= 0 && high >= low) ||
        bands * (length / 2 + 1) > (double)MATRIX_MOST)
        return inv_node_fail(g, n, INV_E_SHAPE, "%g bands of %g points from %g to %g Hz at %g Hz", bands, length, low,
                             high, rate);
    if (inv_dtype_size(t) == 0 || t == INV_C64 || t == INV_C128)
        return inv_node_fail(g, n, INV_E_UNSUPPORTED_TYPE, "output_datatype %s", inv_dtype_name(t));
    const int64_t m = (int64_t)bands, bins = (int64_t)length / 2 + 1;
    const inv_shape s = inv_shape_of(2, (int64_t[]){bins, m});
    double *v = INV_ARENA_NEW(&g->arena, double, (size_t)(bins * m) + 1);
    int64_t *edge = INV_ARENA_NEW(&g->arena, int64_t, (size_t)m + 2);
    if (v == NULL || edge == NULL) return INV_E_NOMEM;
    const double step = (mel(high) - mel(low)) / (bands + 2);
    for (int64_t i = 0; i < m + 2; i++) {
        const double hertz = 700 * (pow(10, (mel(low) + (double)i * step) / 2595) - 1);
        edge[i] = (int64_t)floor(((double)(int64_t)length + 1) * hertz / rate);
    }
    for (int64_t i = 0; i < m; i++) {
        const int64_t a = edge[i], b = edge[i + 1], c = edge[i + 2];
        for (int64_t j = a; j <= b && j < bins; j++) v[j * m + i] = b > a ? (double)(j - a) / (double)(b - a) : 1;
        for (int64_t j = b; j < c && j < bins; j++) v[j * m + i] = (double)(c - j) / (double)(c - b);
    }
    return constant_doubles(g, t, &s, v, out);
}

/* --- rows --- */
#define REAL_NUMBER(name, v) name " = Constant<value_float = " v ">()\n"
INV_LOWERED_BY(dft_17_lower, 19, 0, dft_17, "DFT", 17, "input dft_length?", "y",
               "discrete Fourier transform along the attribute `axis`", "y = DFT(float[2,5,1] x)",
               "y = DFT<axis = 0, onesided = 1>(float[4,3,1] x)")
INV_LOWERED(dft_20, "DFT", 20, "input dft_length? axis?", "y",
            "discrete Fourier transform, real or complex, one- or two-sided", "y = DFT(float[2,5,1] x)",
            INV_INT("a", "0") "y = DFT<inverse = 1>(float[4,3,2] x,, a)",
            INV_INT("l", "7") INV_INT("a", "1") "y = DFT<onesided = 1>(float[2,4,3,1] x, l, a)",
            INV_INT("l", "3") "y = DFT(float[5,2] x, l)", "y = DFT<inverse = 1, onesided = 1>(float[2,4,2] x)",
            INV_INT("l", "5") "y = DFT<inverse = 1, onesided = 1>(float[1,3,2] x, l)")
INV_LOWERED(stft, "STFT", 17, "signal frame_step window? frame_length?", "y", "Fourier transforms of windowed frames",
            INV_INT("s", "2") "y = STFT(float[2,9,1] x, s, float[4] w)",
            INV_INT("s", "3") INV_INT("f", "5") "y = STFT<onesided = 0>(float[1,11,2] x, s,, f)",
            INV_INT("s", "1") INV_INT("f", "1") "y = STFT(float[1,1,1] x, s,, f)")
INV_LOWERED(hann, "HannWindow", 17, "size", "y", "a constant window, 0.5 - 0.5 cos",
            INV_INT("n", "10") "y = HannWindow(n)", INV_INT("n", "1") "y = HannWindow<periodic = 0>(n)")
INV_LOWERED(hamming, "HammingWindow", 17, "size", "y", "a constant window, 25/46 - 21/46 cos",
            INV_INT("n", "10") "y = HammingWindow(n)", INV_INT("n", "3") "y = HammingWindow<periodic = 0>(n)")
INV_LOWERED(blackman, "BlackmanWindow", 17, "size", "y", "a constant window, 0.42 - 0.5 cos + 0.08 cos of twice",
            INV_INT("n", "10") "y = BlackmanWindow(n)", INV_INT("n", "3") "y = BlackmanWindow<periodic = 0>(n)")
/* clang-format off */
INV_LOWERED(mel, "MelWeightMatrix", 17, "num_mel_bins dft_length sample_rate lower_edge_hertz upper_edge_hertz", "y",
    "constant weights that take a spectrum to mel bands",
    INV_INT("m", "8") INV_INT("l", "16") INV_INT("r", "8192") REAL_NUMBER("a", "0.0") REAL_NUMBER("b", "4096.0")
    "y = MelWeightMatrix(m, l, r, a, b)",
    INV_INT("m", "1") INV_INT("l", "4") INV_INT("r", "100") REAL_NUMBER("a", "1.0") REAL_NUMBER("b", "40.0")
    "y = MelWeightMatrix(m, l, r, a, b)")
/* clang-format on */

const inv_op_def *const inv_ops_signal[] = {&dft_17_row,  &dft_20_row,   &stft_row, &hann_row,
                                            &hamming_row, &blackman_row, &mel_row,  NULL};
