/* SPDX-License-Identifier: Apache-2.0
 * Operators that are gathers, scatters, slices or comparisons with indices that are counted out here: OneHot,
 * ReverseSequence, TensorScatter, CenterCropPad, Col2Im, AffineGrid. Sources: the ONNX operator specifications. */
#include "ops/base/emit.h"
#include "ops/base/families.h"
#include "ops/base/rows.h"

static inv_id constant(inv_graph *g, int64_t v)
{
    const inv_shape scalar = inv_shape_scalar();
    return inv_graph_const(g, INV_I64, &scalar, &v);
}

/* 0, 1, .., n - 1 along `axis` of a tensor of that rank; its other extents are 1. */
static inv_id counted(inv_graph *g, int64_t n, int rank, int axis)
{
    int64_t *v = INV_ARENA_NEW(&g->arena, int64_t, (size_t)n + 1);
    inv_shape s = {.rank = rank};
    if (v == NULL) return INV_NONE;
    for (int64_t i = 0; i < n; i++) v[i] = i;
    for (int i = 0; i < rank; i++) s.dim[i] = i == axis ? n : 1;
    return inv_emit_view(g, inv_graph_const_ints(g, (size_t)n, v), &s);
}

/* Indices (each broadcasts to s) side by side, as tuples along a new last axis. */
static inv_id tuples(inv_graph *g, const inv_shape *s, uint32_t count, inv_id *index)
{
    inv_shape column = *s;
    column.dim[column.rank++] = 1;
    for (uint32_t i = 0; i < count; i++) {
        if (index[i] == INV_NONE) return INV_NONE;
        if (!inv_shape_equal(inv_shape_of_value(g, index[i]), s))
            index[i] = inv_emit1(g, "BroadcastTo", INV_IN(index[i]), INV_ATTRS(inv_attr_of_shape("shape", s)));
        index[i] = inv_emit_view(g, index[i], &column);
    }
    return inv_emit1(g, "Concat", count, index, INV_ATTRS(inv_attr_of_int("axis", s->rank)));
}

/* --- OneHot: where the index equals the count along the new axis --- */
static inv_id part_of_pair(inv_graph *g, inv_id pair, int64_t at)
{
    const inv_shape scalar = inv_shape_scalar();
    const int64_t one = 1;
    inv_id v = inv_emit1(g, "SliceRange", INV_IN(pair),
                         INV_ATTRS(inv_attr_of_ints("starts", 1, &at), inv_attr_of_ints("steps", 1, &one),
                                   inv_attr_of_ints("sizes", 1, &one)));
    return inv_emit_view(g, v, &scalar);
}

static inv_status one_hot_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int axis;
    const inv_shape in = *inv_in_shape(g, n, 0), pair = *inv_in_shape(g, n, 2);
    const inv_value *d = inv_val(g, n->in[1]);
    INV_TRY(inv_node_need_const(g, n, n->in[1], "depth"));
    if (d->data.bytes == NULL || inv_shape_nelem(&d->shape) != 1)
        return inv_node_fail(g, n, INV_E_SHAPE, "the depth (input 1) must be one number");
    const double depth = inv_elem_double(d->data.bytes, d->data.dtype, 0);
    if (!(depth >= 1 && depth < 0x1p40)) return inv_node_fail(g, n, INV_E_SHAPE, "depth is not positive");
    if (in.rank == INV_MAX_RANK) return inv_node_fail(g, n, INV_E_SHAPE, "rank above %d", INV_MAX_RANK);
    if (pair.rank != 1 || pair.dim[0] != 2)
        return inv_node_fail(g, n, INV_E_SHAPE, "values must be two numbers, off and on");
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", -1), in.rank + 1, &axis));
    inv_shape wide = in;
    for (int i = wide.rank++; i > axis; i--) wide.dim[i] = wide.dim[i - 1];
    wide.dim[axis] = 1;
    const inv_id i = inv_cast(g, n->in[0], INV_I64), negative = inv_emit_pair(g, "Less", i, constant(g, 0));
    const inv_id at =
        inv_emit1(g, "Where", INV_IN(negative, inv_emit_pair(g, "Add", i, constant(g, (int64_t)depth)), i), INV_NOATTR);
    const inv_id hit =
        inv_emit_pair(g, "Equal", inv_emit_view(g, at, &wide), counted(g, (int64_t)depth, wide.rank, axis));
    out[0] = inv_emit1(g, "Where", INV_IN(hit, part_of_pair(g, n->in[2], 1), part_of_pair(g, n->in[2], 0)), INV_NOATTR);
    return inv_done(g);
}

/* --- ReverseSequence: GatherNDN by (time, batch) --- */
static inv_status reverse_sequence_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_shape s = *inv_in_shape(g, n, 0), lens = *inv_in_shape(g, n, 1);
    const int64_t time = inv_attr_int(n, "time_axis", 0), batch = inv_attr_int(n, "batch_axis", 1);
    if (s.rank < 2 || (time != 0 && time != 1) || batch != 1 - time)
        return inv_node_fail(g, n, INV_E_SHAPE, "time_axis and batch_axis must be 0 and 1, in either order");
    if (lens.rank != 1 || lens.dim[0] != s.dim[batch])
        return inv_node_fail(g, n, INV_E_SHAPE, "sequence_lens needs one number per sequence of the batch");
    INV_TRY(inv_takes_lengths(g, n, 1, 0, s.dim[time]));
    const inv_shape both = inv_shape_of(2, s.dim);
    inv_shape row = both;
    row.dim[time] = 1;
    const inv_id t = counted(g, s.dim[time], 2, (int)time);
    const inv_id len = inv_emit_view(g, inv_cast(g, n->in[1], INV_I64), &row);
    const inv_id back = inv_emit_pair(g, "Sub", inv_emit_pair(g, "Sub", len, constant(g, 1)), t);
    inv_id index[2];
    index[time] = inv_emit1(g, "Where", INV_IN(inv_emit_pair(g, "Less", t, len), back, t), INV_NOATTR);
    index[batch] = counted(g, s.dim[batch], 2, (int)batch);
    out[0] = inv_emit1(g, "GatherNDN", INV_IN(n->in[0], tuples(g, &both, 2, index)), INV_NOATTR);
    return inv_done(g);
}

/* --- TensorScatter: ScatterNDN by (batch, what lies before the axis, place along the axis) --- */
static inv_status tensor_scatter_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int axis;
    const inv_shape cache = *inv_in_shape(g, n, 0), update = *inv_in_shape(g, n, 1);
    INV_TRY(inv_axis(g, n, inv_attr_int(n, "axis", -2), cache.rank, &axis));
    const char *mode = inv_attr_string(n, "mode", "linear");
    const bool circular = strcmp(mode, "circular") == 0;
    inv_shape want = cache;
    want.dim[axis] = update.rank == cache.rank ? update.dim[axis] : -1;
    if (axis < 1 || !inv_shape_equal(&want, &update) || update.dim[axis] > cache.dim[axis])
        return inv_node_fail(g, n, INV_E_SHAPE,
                             "the update must have the shape of the cache, but may be shorter along the axis; and "
                             "the axis must not be the first");
    if (!circular && strcmp(mode, "linear") != 0)
        return inv_node_fail(g, n, INV_E_GRAPH, "mode must be linear or circular");
    const int64_t len = update.dim[axis], rest = inv_prod(&cache, axis + 1, cache.rank);
    const inv_shape places = inv_shape_of(3, (int64_t[]){cache.dim[0], inv_prod(&cache, 1, axis), len});
    const inv_shape to = inv_shape_of(4, (int64_t[]){places.dim[0], places.dim[1], cache.dim[axis], rest});
    const inv_shape from = inv_shape_of(4, (int64_t[]){places.dim[0], places.dim[1], len, rest});
    const inv_shape column = inv_shape_of(3, (int64_t[]){places.dim[0], 1, 1});
    inv_id index[3] = {counted(g, places.dim[0], 3, 0), counted(g, places.dim[1], 3, 1), counted(g, len, 3, 2)};
    if (inv_has_in(n, 2)) {
        if (inv_in_shape(g, n, 2)->rank != 1 || inv_in_shape(g, n, 2)->dim[0] != cache.dim[0])
            return inv_node_fail(g, n, INV_E_SHAPE, "write_indices needs one number per sample of the batch");
        INV_TRY(inv_takes_lengths(g, n, 2, 0, cache.dim[axis] - (circular ? 1 : len)));
        index[2] = inv_emit_pair(g, "Add", index[2], inv_emit_view(g, inv_cast(g, n->in[2], INV_I64), &column));
        if (circular) index[2] = inv_emit_pair(g, "ModFloor", index[2], constant(g, cache.dim[axis]));
    }
    const inv_id y = inv_emit1(
        g, "ScatterNDN",
        INV_IN(inv_emit_view(g, n->in[0], &to), tuples(g, &places, 3, index), inv_emit_view(g, n->in[1], &from)),
        INV_NOATTR);
    out[0] = inv_emit_view(g, y, &cache);
    return inv_done(g);
}

/* --- CenterCropPad: SliceRange, then PadRange --- */
static inv_status center_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int64_t want[INV_MAX_RANK * 2], starts[INV_MAX_RANK] = {0}, steps[INV_MAX_RANK], places[INV_MAX_RANK] = {0};
    size_t count, naxes;
    bool given, cut = false, padded = false;
    const inv_shape s = *inv_in_shape(g, n, 0);
    inv_shape kept = s, result = s;
    INV_TRY(inv_ints_of(g, n, "shape", 1, want, &count, &given));
    const int64_t *axes = inv_attr_ints(n, "axes", &naxes);
    if (count != (axes ? naxes : (size_t)s.rank))
        return inv_node_fail(g, n, INV_E_SHAPE, "shape needs one number for each of the axes");
    for (int i = 0; i < s.rank; i++) steps[i] = 1;
    for (size_t k = 0; k < count; k++) {
        int a;
        INV_TRY(inv_axis(g, n, axes ? axes[k] : (int64_t)k, s.rank, &a));
        if (want[k] < 0) return inv_node_fail(g, n, INV_E_SHAPE, "negative extent for axis %d", a);
        result.dim[a] = want[k];
        kept.dim[a] = want[k] < s.dim[a] ? want[k] : s.dim[a];
        starts[a] = (s.dim[a] - kept.dim[a]) / 2;
        places[a] = (want[k] - kept.dim[a]) / 2;
        cut = cut || kept.dim[a] < s.dim[a];
        padded = padded || kept.dim[a] < want[k];
    }
    const size_t rank = (size_t)s.rank;
    out[0] = n->in[0];
    if (cut)
        out[0] = inv_emit1(g, "SliceRange", INV_IN(out[0]),
                           INV_ATTRS(inv_attr_of_ints("starts", rank, starts), inv_attr_of_ints("steps", rank, steps),
                                     inv_attr_of_shape("sizes", &kept)));
    if (padded)
        out[0] = inv_emit1(g, "PadRange", INV_IN(out[0]),
                           INV_ATTRS(inv_attr_of_shape("shape", &result), inv_attr_of_ints("starts", rank, places),
                                     inv_attr_of_float("value", 0)));
    return inv_done(g);
}

/* --- Col2Im: what gathering columns from an image would be the gradient of --- */
typedef struct columns {
    int rank;
    int64_t image[INV_MAX_RANK], block[INV_MAX_RANK], stride[INV_MAX_RANK], dilation[INV_MAX_RANK], pad[INV_MAX_RANK],
        steps[INV_MAX_RANK];
    int64_t pixels, taps, places; /* of the image, of a block, of the block in the image */
} columns;

static inv_status columns_of(const inv_graph *g, const inv_node *n, columns *c)
{
    int64_t image[INV_MAX_RANK * 2], block[INV_MAX_RANK * 2];
    size_t rank, nblock, ns, nd, np;
    bool given;
    *c = (columns){.pixels = 1, .taps = 1, .places = 1};
    INV_TRY(inv_ints_of(g, n, "image_shape", 1, image, &rank, &given));
    INV_TRY(inv_ints_of(g, n, "block_shape", 2, block, &nblock, &given));
    const int64_t *s = inv_attr_ints(n, "strides", &ns), *d = inv_attr_ints(n, "dilations", &nd),
                  *p = inv_attr_ints(n, "pads", &np);
    if (rank < 1 || rank > INV_MAX_RANK - 2 || nblock != rank || (s && ns != rank) || (d && nd != rank) ||
        (p && np != 2 * rank))
        return inv_node_fail(g, n, INV_E_SHAPE,
                             "image_shape, block_shape, strides and dilations need one number per "
                             "axis of space, pads two");
    c->rank = (int)rank;
    for (size_t i = 0; i < rank; i++) {
        c->image[i] = image[i];
        c->block[i] = block[i];
        c->stride[i] = s ? s[i] : 1;
        c->dilation[i] = d ? d[i] : 1;
        c->pad[i] = p ? p[i] : 0;
        const int64_t room = image[i] + c->pad[i] + (p ? p[rank + i] : 0) - (block[i] - 1) * c->dilation[i] - 1;
        if (image[i] < 1 || block[i] < 1 || c->stride[i] < 1 || c->dilation[i] < 1 || room < 0 ||
            image[i] > INT32_MAX || block[i] > INT32_MAX)
            return inv_node_fail(g, n, INV_E_SHAPE, "a block does not fit into the image along axis %zu", i);
        c->steps[i] = room / c->stride[i] + 1;
        c->pixels *= image[i];
        c->taps *= block[i];
        c->places *= c->steps[i];
        if (c->pixels > INT32_MAX || c->taps * c->places > INT32_MAX)
            return inv_node_fail(g, n, INV_E_SHAPE, "the image is too large");
    }
    return INV_OK;
}

/* The pixel of tap k at place l; `pixels` for one in the padding. */
static int64_t pixel_of(const columns *c, int64_t k, int64_t l)
{
    int64_t at = 0, unit = 1;
    for (int a = c->rank - 1; a >= 0; a--) {
        const int64_t x = l % c->steps[a] * c->stride[a] + k % c->block[a] * c->dilation[a] - c->pad[a];
        if (x < 0 || x >= c->image[a]) return c->pixels;
        at += x * unit;
        unit *= c->image[a];
        k /= c->block[a];
        l /= c->steps[a];
    }
    return at;
}

static inv_status col2im_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    columns c;
    INV_TRY(columns_of(g, n, &c));
    const inv_shape s = *inv_in_shape(g, n, 0);
    if (s.rank != 3 || s.dim[1] % c.taps != 0 || s.dim[2] != c.places)
        return inv_node_fail(g, n, INV_E_SHAPE, "an input of batch, channels x %lld, %lld is wanted", (long long)c.taps,
                             (long long)c.places);
    const int64_t count = c.taps * c.places, rows = s.dim[0] * (s.dim[1] / c.taps);
    int64_t *index = INV_ARENA_NEW(&g->arena, int64_t, (size_t)count + 1);
    if (index == NULL) return INV_E_NOMEM;
    int64_t most = 0;
    for (int64_t i = 0; i < count; i++) {
        index[i] = pixel_of(&c, i / c.places, i % c.places);
        if (index[i] > most) most = index[i];
    }
    const int64_t padded = most == c.pixels ? c.pixels + 1 : c.pixels;
    const inv_shape flat = inv_shape_of(2, (int64_t[]){rows, count}),
                    cells = inv_shape_of(2, (int64_t[]){rows, padded});
    inv_id v = inv_emit1(g, "GatherGrad",
                         INV_IN(inv_emit_view(g, n->in[0], &flat), inv_graph_const_ints(g, (size_t)count, index)),
                         INV_ATTRS(inv_attr_of_int("axis", 1), inv_attr_of_shape("shape", &cells)));
    if (padded > c.pixels)
        v = inv_emit1(g, "SliceRange", INV_IN(v),
                      INV_ATTRS(inv_attr_of_ints("starts", 2, (int64_t[]){0, 0}),
                                inv_attr_of_ints("steps", 2, (int64_t[]){1, 1}),
                                inv_attr_of_ints("sizes", 2, (int64_t[]){rows, c.pixels})));
    inv_shape image = inv_shape_of(2, (int64_t[]){s.dim[0], s.dim[1] / c.taps});
    for (int i = 0; i < c.rank; i++) image.dim[image.rank++] = c.image[i];
    out[0] = inv_emit_view(g, v, &image);
    return inv_done(g);
}

/* --- AffineGrid: MatMulT of the places of all pixels, in homogeneous coordinates, and theta --- */
static double place_of(int64_t i, int64_t extent, bool corners)
{
    if (corners) return extent > 1 ? 2.0 * (double)i / (double)(extent - 1) - 1 : -1;
    return (2.0 * (double)i + 1) / (double)extent - 1;
}

static inv_status affine_grid_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int64_t size[INV_MAX_RANK * 2], pixels = 1;
    size_t count;
    bool given;
    INV_TRY(inv_need_real(g, n, 0));
    INV_TRY(inv_ints_of(g, n, "size", 1, size, &count, &given));
    const int64_t rank = (int64_t)count - 2;
    const inv_shape theta = *inv_in_shape(g, n, 0);
    if ((rank != 2 && rank != 3) || theta.rank != 3 || theta.dim[0] != size[0] || theta.dim[1] != rank ||
        theta.dim[2] != rank + 1)
        return inv_node_fail(g, n, INV_E_SHAPE, "theta must be [N,2,3] for size [N,C,H,W], or [N,3,4] for [N,C,D,H,W]");
    const bool corners = inv_attr_int(n, "align_corners", 0) != 0, wide = inv_in_dtype(g, n, 0) == INV_F64;
    inv_shape grid = inv_shape_of(1, size);
    for (int64_t a = 0; a < rank; a++) {
        if (size[2 + a] < 0 || size[2 + a] > INT32_MAX || (pixels *= size[2 + a]) > INT32_MAX)
            return inv_node_fail(g, n, INV_E_SHAPE, "size is out of range");
        grid.dim[grid.rank++] = size[2 + a];
    }
    grid.dim[grid.rank++] = rank;
    const inv_shape base = inv_shape_of(3, (int64_t[]){1, pixels, rank + 1});
    char *place = inv_arena_alloc(&g->arena, (size_t)inv_shape_nelem(&base) * sizeof(double) + 8);
    if (place == NULL) return INV_E_NOMEM;
    for (int64_t i = 0; i < pixels; i++) {
        int64_t left = i;
        for (int64_t a = 0; a <= rank; a++) { /* the last axis of space comes first */
            const int64_t extent = a < rank ? size[1 + rank - a] : 1;
            const double v = a < rank ? place_of(left % extent, extent, corners) : 1;
            if (wide) ((double *)(void *)place)[i * (rank + 1) + a] = v;
            else ((float *)(void *)place)[i * (rank + 1) + a] = (float)v;
            left /= extent;
        }
    }
    const inv_id all = inv_graph_const(g, wide ? INV_F64 : INV_F32, &base, place);
    out[0] = inv_emit_view(g, inv_emit1(g, "MatMulT", INV_IN(all, n->in[0]), INV_ATTRS(inv_attr_of_int("transB", 1))),
                           &grid);
    return inv_done(g);
}

/* clang-format off */
/* --- rows --- */
/* clang-format on */

INV_LOWERED(
    one_hot, "OneHot", 9, "indices depth values", "y",
    "on where the count along a new axis equals the index, else off; depth must be constant. ONNX OneHot-9, -11",
    INV_INT("d", "3") INV_INTS("i", "0, -1, 5, -4") "y = OneHot(i, d, float[2] v)",
    INV_INTS("d", "2") "y = OneHot<axis = 1>(float[2,3] x, d, int32[2] v)",
    INV_INT("d", "1") "y = OneHot<axis = 0>(int32[1] x, d, float[2] v)",
    INV_INT("d", "4") "y = OneHot(int64[0] x, d, float[2] v)")
INV_LOWERED(reverse_sequence, "ReverseSequence", 10, "input sequence_lens", "y",
            "the first elements of each sequence backwards; to GatherNDN. ONNX ReverseSequence-10",
            INV_INTS("l", "1, 3, 0") "y = ReverseSequence(float[4,3,2] x, l)",
            INV_INTS("l", "2, 4") "y = ReverseSequence<time_axis = 1, batch_axis = 0>(float[2,4] x, l)",
            INV_INTS("l", "1") "y = ReverseSequence(float[1,1] x, l)")
INV_LOWERED(tensor_scatter, "TensorScatter", 24, "past_cache update write_indices?", "y",
            "the cache with the update written at an index per sample; to ScatterNDN. ONNX TensorScatter-24",
            INV_INTS("w", "1, 0") "y = TensorScatter(float[2,2,4,3] x, float[2,2,2,3] u, w)",
            INV_INTS("w", "3, 1") "y = TensorScatter<mode = \"circular\", axis = 1>(float[2,4,1] x, float[2,3,1] u, w)",
            "y = TensorScatter<axis = -1>(float[1,2,3] x, float[1,2,1] u)")
INV_LOWERED(center, "CenterCropPad", 18, "input_data shape", "y",
            "cut or padded on both sides alike to a constant shape. ONNX CenterCropPad-18",
            INV_INTS("s", "2, 5") "y = CenterCropPad(float[5,2] x, s)",
            INV_INTS("s", "4") "y = CenterCropPad<axes = [-1]>(float[3,1] x, s)",
            INV_INTS("s", "1, 3") "y = CenterCropPad<axes = [2,0]>(float[3,2,4] x, s)")
INV_LOWERED(col2im, "Col2Im", 18, "input image_shape block_shape", "y",
            "blocks of pixels added up where they overlap; the shapes must be constant; to GatherGrad. ONNX Col2Im-18",
            INV_INTS("i", "5, 5")
                INV_INTS("b", "2, 3") "y = Col2Im<strides = [2,1], pads = [1,0,0,1]>(float[2,12,12] x, i, b)",
            INV_INTS("i", "6") INV_INTS("b", "3") "y = Col2Im<dilations = [2]>(float[1,3,2] x, i, b)",
            INV_INTS("i", "1, 1, 1") INV_INTS("b", "1, 1, 1") "y = Col2Im(float[1,1,1] x, i, b)")
INV_LOWERED(affine_grid, "AffineGrid", 20, "theta size", "y",
            "places of pixels after an affine map; size must be constant; to MatMulT. ONNX AffineGrid-20",
            INV_INTS("s", "2, 1, 2, 3") "y = AffineGrid(float[2,2,3] x, s)",
            INV_INTS("s", "1, 2, 2, 1, 3") "y = AffineGrid<align_corners = 1>(float[1,3,4] x, s)")

/* clang-format off */
const inv_op_def *const inv_ops_index[] = {&one_hot_row, &reverse_sequence_row, &tensor_scatter_row, &center_row,
                                           &col2im_row,  &affine_grid_row,      NULL};
/* clang-format on */
