/* SPDX-License-Identifier: Apache-2.0
 * Movement of whole tensors: View (Reshape, Flatten, Squeeze, Unsqueeze, Identity), Transpose, BroadcastTo (Expand,
 * Tile), DepthToSpace and SpaceToDepth. Gradients read shapes only. Sources: the ONNX operator specifications. */
#include "core/edits/onnx_body.h"
#include "ops/base/bounds.h"
#include "ops/base/families.h"
#include "ops/base/rows.h"
#include "ops/base/strided_copy.h"

/* --- View<shape>(x): the same bytes --- */
static inv_status view_infer(inv_graph *g, inv_node *n)
{
    INV_TRY(inv_infer_attr_shape(g, n));
    inv_shape s = inv_attr_shape(n, "shape");
    if (inv_shape_nelem(&s) != inv_shape_nelem(inv_in_shape(g, n, 0)))
        return inv_node_fail(g, n, INV_E_SHAPE, "shape has %lld elements, the input %lld",
                             (long long)inv_shape_nelem(&s), (long long)inv_shape_nelem(inv_in_shape(g, n, 0)));
    return INV_OK;
}

static inv_status view_grad(inv_grad *b)
{
    inv_grad_set(b, 0, inv_emit_view(b->g, inv_GO(b, 0), inv_shape_of_value(b->g, inv_I(b, 0))));
    return inv_grad_done(b);
}

/* --- lowerings to View --- */
static inv_status lower_to_view(inv_graph *g, const inv_node *n, const inv_shape *s, inv_id *out)
{
    if (inv_shape_nelem(s) != inv_shape_nelem(inv_in_shape(g, n, 0))) {
        char text[INV_SHAPE_TEXT];
        inv_note_misfit(g, 1, inv_shape_nelem(inv_in_shape(g, n, 0)), inv_shape_nelem(s));
        return inv_node_fail(g, n, INV_E_SHAPE, "the input cannot take the shape %s: another number of elements",
                             inv_shape_text(s, text));
    }
    out[0] = inv_emit_view(g, n->in[0], s);
    return inv_done(g);
}

static inv_status reshape_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int64_t want[INV_MAX_RANK * 2], known = 1;
    size_t count;
    bool given, allowzero = inv_attr_int(n, "allowzero", 0) != 0;
    int free_axis = -1;
    INV_TRY(inv_ints_of(g, n, "shape", 1, want, &count, &given));
    const inv_shape in = *inv_in_shape(g, n, 0);
    if (count > INV_MAX_RANK) return inv_node_fail(g, n, INV_E_SHAPE, "rank above %d", INV_MAX_RANK);
    for (size_t i = 0; i < count; i++) {
        if (want[i] == 0 && !allowzero) {
            if ((int)i >= in.rank) return inv_node_fail(g, n, INV_E_SHAPE, "0 at axis %zu, which the input lacks", i);
            want[i] = in.dim[i];
        }
        if (want[i] < -1 || (want[i] == -1 && free_axis >= 0))
            return inv_node_fail(g, n, INV_E_SHAPE, "the wanted shape has a wrong extent at axis %zu", i);
        if (want[i] == -1) {
            free_axis = (int)i;
            continue;
        }
        if (want[i] != 0 && known > INT64_MAX / want[i])
            return inv_node_fail(g, n, INV_E_SHAPE, "the wanted shape is larger than memory can be");
        known *= want[i];
    }
    if (free_axis >= 0) {
        if (known == 0 || inv_shape_nelem(&in) % known != 0) {
            /* where the first axis is left open, it stands for the rows, each of which is to have that many */
            const int64_t rows = free_axis == 0 && in.rank && in.dim[0] > 0 ? in.dim[0] : 1;
            inv_note_misfit(g, 1, inv_shape_nelem(&in) / rows, known);
            return inv_node_fail(g, n, INV_E_SHAPE, "%lld elements are no multiple of %lld",
                                 (long long)inv_shape_nelem(&in), (long long)known);
        }
        want[free_axis] = inv_shape_nelem(&in) / known;
    }
    inv_shape s = count ? inv_shape_of((int)count, want) : inv_shape_scalar();
    return lower_to_view(g, n, &s, out);
}

static inv_status flatten_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_shape in = *inv_in_shape(g, n, 0);
    int64_t axis = inv_attr_int(n, "axis", 1);
    if (axis < -in.rank || axis > in.rank)
        return inv_node_fail(g, n, INV_E_SHAPE, "axis %lld is outside rank %d", (long long)axis, in.rank);
    if (axis < 0) axis += in.rank;
    const int64_t dim[2] = {inv_prod(&in, 0, (int)axis), inv_prod(&in, (int)axis, in.rank)};
    inv_shape s = inv_shape_of(2, dim);
    return lower_to_view(g, n, &s, out);
}

/* Marks of the given axes of a tensor of rank `rank`. */
static inv_status mark_axes(const inv_graph *g, const inv_node *n, const int64_t *axes, size_t count, int rank,
                            bool *mark)
{
    for (size_t i = 0; i < count; i++) {
        int a;
        INV_TRY(inv_axis(g, n, axes[i], rank, &a));
        if (mark[a]) return inv_node_fail(g, n, INV_E_SHAPE, "axis %d is given twice", a);
        mark[a] = true;
    }
    return INV_OK;
}

static inv_status squeeze_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int64_t axes[INV_MAX_RANK * 2];
    size_t count;
    bool given, drop[INV_MAX_RANK] = {false};
    INV_TRY(inv_ints_of(g, n, "axes", 1, axes, &count, &given));
    const inv_shape in = *inv_in_shape(g, n, 0);
    INV_TRY(mark_axes(g, n, axes, count, in.rank, drop));
    inv_shape s = inv_shape_scalar();
    for (int i = 0; i < in.rank; i++) {
        if (drop[i] && in.dim[i] != 1)
            return inv_node_fail(g, n, INV_E_SHAPE, "axis %d has extent %lld, only 1 can go", i, (long long)in.dim[i]);
        if (given ? !drop[i] : in.dim[i] != 1) s.dim[s.rank++] = in.dim[i];
    }
    return lower_to_view(g, n, &s, out);
}

static inv_status unsqueeze_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int64_t axes[INV_MAX_RANK * 2];
    size_t count;
    bool given, fresh[INV_MAX_RANK] = {false};
    INV_TRY(inv_ints_of(g, n, "axes", 1, axes, &count, &given));
    const inv_shape in = *inv_in_shape(g, n, 0);
    if (!given) return inv_node_fail(g, n, INV_E_GRAPH, "axes are required");
    if ((size_t)in.rank + count > INV_MAX_RANK) return inv_node_fail(g, n, INV_E_SHAPE, "rank above %d", INV_MAX_RANK);
    inv_shape s = inv_shape_scalar();
    s.rank = in.rank + (int)count;
    INV_TRY(mark_axes(g, n, axes, count, s.rank, fresh));
    for (int i = 0, k = 0; i < s.rank; i++) s.dim[i] = fresh[i] ? 1 : in.dim[k++];
    return lower_to_view(g, n, &s, out);
}

static inv_status identity_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    (void)g;
    out[0] = n->in[0];
    return INV_OK;
}

/* --- Transpose --- */
static inv_status perm_of(const inv_graph *g, const inv_node *n, int64_t perm[INV_MAX_RANK])
{
    const int rank = inv_in_shape(g, n, 0)->rank;
    size_t count;
    const int64_t *p = inv_attr_ints(n, "perm", &count);
    bool seen[INV_MAX_RANK] = {false};
    if (inv_attr_find(n, "perm") != NULL && count != (size_t)rank)
        return inv_node_fail(g, n, INV_E_SHAPE, "perm has %zu entries, the input rank %d", count, rank);
    for (int i = 0; i < rank; i++) {
        int a;
        INV_TRY(inv_axis(g, n, count ? p[i] : rank - 1 - i, rank, &a));
        if (seen[a]) return inv_node_fail(g, n, INV_E_SHAPE, "perm is no permutation");
        seen[a] = true;
        perm[i] = a;
    }
    return INV_OK;
}

static inv_status transpose_infer(inv_graph *g, inv_node *n)
{
    int64_t perm[INV_MAX_RANK];
    INV_TRY(perm_of(g, n, perm));
    inv_shape s = *inv_in_shape(g, n, 0);
    for (int i = 0; i < s.rank; i++) s.dim[i] = inv_in_shape(g, n, 0)->dim[perm[i]];
    inv_set_out(g, n, 0, inv_in_dtype(g, n, 0), &s);
    return INV_OK;
}

static inv_status transpose_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int64_t perm[INV_MAX_RANK], last = -1;
    bool moves = false;
    INV_TRY(perm_of(g, n, perm));
    inv_shape s = *inv_in_shape(g, n, 0);
    const inv_shape in = s;
    for (int i = 0; i < s.rank; i++) {
        s.dim[i] = in.dim[perm[i]];
        if (s.dim[i] == 1) continue;
        moves = moves || perm[i] < last;
        last = perm[i];
    }
    out[0] = moves ? inv_emit_transpose(g, n->in[0], s.rank, perm) : inv_emit_view(g, n->in[0], &s);
    return inv_done(g);
}

static inv_status transpose_grad(inv_grad *b)
{
    int64_t perm[INV_MAX_RANK], back[INV_MAX_RANK] = {0};
    const inv_node *n = inv_nod(b->g, b->node);
    const int rank = inv_in_shape(b->g, n, 0)->rank;
    INV_TRY(perm_of(b->g, n, perm));
    for (int i = 0; i < rank; i++) back[perm[i]] = i;
    inv_grad_set(b, 0, inv_emit_transpose(b->g, inv_GO(b, 0), rank, back));
    return inv_grad_done(b);
}

static inv_status transpose_run(const inv_call *c)
{
    size_t count;
    const int64_t *perm = inv_attr_ints(c->node, "perm", &count);
    int64_t in[INV_MAX_RANK], sd[INV_MAX_RANK], ss[INV_MAX_RANK];
    const inv_shape *s = &c->out[0].shape;
    inv_strides(&c->in[0].shape, in);
    inv_strides(s, sd);
    for (int i = 0; i < s->rank; i++) {
        int64_t a = count ? perm[i] : s->rank - 1 - i;
        ss[i] = in[a < 0 ? a + s->rank : a];
    }
    return inv_copy_strided(c, c->out[0].data, sd, c->in[0].data, ss, s, inv_dtype_size(c->out[0].dtype));
}

/* --- BroadcastTo<shape> --- */
static inv_status broadcast_infer(inv_graph *g, inv_node *n)
{
    inv_shape s, want;
    INV_TRY(inv_infer_attr_shape(g, n));
    want = inv_attr_shape(n, "shape");
    if (!inv_shape_broadcast(inv_in_shape(g, n, 0), &want, &s) || !inv_shape_equal(&s, &want)) {
        char text[INV_SHAPE_TEXT];
        return inv_node_fail(g, n, INV_E_SHAPE, "the input does not broadcast to %s", inv_shape_text(&want, text));
    }
    return INV_OK;
}

static inv_status broadcast_grad(inv_grad *b)
{
    inv_grad_set(b, 0, inv_emit_sum_to(b->g, inv_GO(b, 0), inv_I(b, 0)));
    return inv_grad_done(b);
}

static inv_status broadcast_run(const inv_call *c)
{
    int64_t sd[INV_MAX_RANK], ss[INV_MAX_RANK];
    inv_strides(&c->out[0].shape, sd);
    inv_broadcast_strides(&c->in[0].shape, &c->out[0].shape, ss);
    return inv_copy_strided(c, c->out[0].data, sd, c->in[0].data, ss, &c->out[0].shape,
                            inv_dtype_size(c->out[0].dtype));
}

static void repeat_f32(void *out, const void *const *in, int64_t n, const void *real)
{
    (void)real;
    memmove(out, in[0], (size_t)n * sizeof(float));
}
static void repeat_f64(void *out, const void *const *in, int64_t n, const void *real)
{
    (void)real;
    memmove(out, in[0], (size_t)n * sizeof(double));
}
static const inv_pieces repeat_piece = {repeat_f32, repeat_f64, 0};

static inv_status expand_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int64_t want[INV_MAX_RANK * 2];
    size_t count;
    bool given;
    inv_shape s;
    INV_TRY(inv_ints_of(g, n, "shape", 1, want, &count, &given));
    if (count > INV_MAX_RANK) return inv_node_fail(g, n, INV_E_SHAPE, "rank above %d", INV_MAX_RANK);
    const inv_shape to = count ? inv_shape_of((int)count, want) : inv_shape_scalar();
    if (!inv_shape_broadcast(inv_in_shape(g, n, 0), &to, &s)) {
        char text[INV_SHAPE_TEXT];
        inv_note_shapes(g, 1, inv_in_shape(g, n, 0), &to, true);
        return inv_node_fail(g, n, INV_E_SHAPE, "the input does not broadcast to %s", inv_shape_text(&to, text));
    }
    out[0] = inv_emit_broadcast(g, n->in[0], &s);
    return inv_done(g);
}

/* One axis at a time, as View, BroadcastTo over a new axis, View. */
static inv_status tile_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    int64_t times[INV_MAX_RANK * 2];
    size_t count;
    bool given;
    INV_TRY(inv_ints_of(g, n, "repeats", 1, times, &count, &given));
    inv_shape s = *inv_in_shape(g, n, 0);
    if (count != (size_t)s.rank)
        return inv_node_fail(g, n, INV_E_SHAPE, "repeats has %zu entries, the input rank %d", count, s.rank);
    inv_id v = n->in[0];
    for (int i = s.rank - 1; i >= 0; i--) {
        if (times[i] == 1) continue;
        if (times[i] < 0 || (s.dim[i] > 0 && times[i] > INT64_MAX / s.dim[i]))
            return inv_node_fail(g, n, INV_E_SHAPE, "repeats is out of range at axis %d", i);
        const int64_t in[3] = {inv_prod(&s, 0, i), 1, inv_prod(&s, i, s.rank)}, wide[3] = {in[0], times[i], in[2]};
        const inv_shape before = inv_shape_of(3, in), after = inv_shape_of(3, wide);
        s.dim[i] *= times[i];
        v = inv_emit_broadcast(g, inv_emit_view(g, v, &before), &after);
    }
    out[0] = inv_emit_view(g, v, &s);
    return inv_done(g);
}

/* --- DepthToSpace, SpaceToDepth: View, Transpose, View --- */
static inv_status rearrange(inv_graph *g, const inv_node *n, const int64_t split[6], const int64_t perm[6],
                            const int64_t final[4], inv_id *out)
{
    const inv_shape in = inv_shape_of(6, split), to = inv_shape_of(4, final);
    out[0] = inv_emit_view(g, inv_emit_transpose(g, inv_emit_view(g, n->in[0], &in), 6, perm), &to);
    return inv_done(g);
}

static inv_status depth_to_space_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_shape in = *inv_in_shape(g, n, 0);
    const int64_t *d = in.dim, k = inv_attr_int(n, "blocksize", 0);
    const char *mode = inv_attr_string(n, "mode", "DCR");
    if (in.rank != 4 || k < 1 || k > INT32_MAX || d[1] % (k * k) != 0 || d[2] > INT32_MAX || d[3] > INT32_MAX)
        return inv_node_fail(g, n, INV_E_SHAPE, "needs rank 4 and channels divisible by the square of blocksize, %lld",
                             (long long)k);
    const int64_t c = d[1] / (k * k), final[4] = {d[0], c, d[2] * k, d[3] * k};
    const int64_t dcr[6] = {d[0], k, k, c, d[2], d[3]}, crd[6] = {d[0], c, k, k, d[2], d[3]};
    const int64_t dcr_perm[6] = {0, 3, 4, 1, 5, 2}, crd_perm[6] = {0, 1, 4, 2, 5, 3};
    bool is_crd = strcmp(mode, "CRD") == 0;
    return rearrange(g, n, is_crd ? crd : dcr, is_crd ? crd_perm : dcr_perm, final, out);
}

static inv_status space_to_depth_lower(inv_graph *g, const inv_node *n, inv_id *out)
{
    const inv_shape in = *inv_in_shape(g, n, 0);
    const int64_t *d = in.dim, k = inv_attr_int(n, "blocksize", 0);
    const int64_t dcr_perm[6] = {0, 3, 5, 1, 2, 4}, crd_perm[6] = {0, 1, 3, 5, 2, 4};
    const bool is_crd = strcmp(inv_attr_string(n, "mode", "DCR"), "CRD") == 0;
    if (in.rank != 4 || k < 1 || d[2] % k != 0 || d[3] % k != 0)
        return inv_node_fail(g, n, INV_E_SHAPE, "needs rank 4 and extents divisible by blocksize %lld", (long long)k);
    const int64_t split[6] = {d[0], d[1], d[2] / k, k, d[3] / k, k},
                  final[4] = {d[0], d[1] * k * k, d[2] / k, d[3] / k};
    return rearrange(g, n, split, is_crd ? crd_perm : dcr_perm, final, out);
}

/* --- forms in ONNX --- */

/* Leading extents that agree are copied, the next one is inferred, so that whatever axis the batch is on need not be
 * known. */
static bool view_raise(const inv_raising *b)
{
    const inv_shape *in = inv_raising_shape(b, 0), *out = &inv_val(b->r->g, b->n->out[0])->shape;
    int64_t want[INV_MAX_RANK];
    int same = 0;
    bool infer = false, ambiguous = false;
    while (same < out->rank && same < in->rank && in->dim[same] == out->dim[same]) same++;
    for (int i = 0; i < out->rank; i++) {
        want[i] = i < same ? 0 : i == same ? -1 : out->dim[i];
        infer = infer || want[i] == -1;
    }
    for (int i = 0; i < out->rank; i++) ambiguous = ambiguous || (infer && out->dim[i] == 0);
    if (ambiguous) return inv_onnx_refuse(b->r, "an extent of 0 makes the shape ambiguous");
    const char *shape = inv_onnx_ints(b->r, (size_t)out->rank, want);
    return inv_onnx_node(b->r, b->out[0], "Reshape", INV_NAMES(b->in[0], shape), INV_NOATTR) != NULL;
}

/* --- rows --- */

INV_CASE_LIST(view, "y = View<shape = [3,2]>(float[2,3] x)", "y = View<shape = [1,1]>(float[1] x)",
              "y = View<shape = [0,4]>(float[4,0] x)")
static const inv_op_def view_row = {.size = sizeof(inv_op_def),
                                    .domain = INV_IR,
                                    .name = "View",
                                    .since = 1,
                                    .in = "x",
                                    .out = "y",
                                    .flags = INV_OP_VIEW,
                                    .infer = view_infer,
                                    .grad = view_grad,
                                    .raise = view_raise,
                                    .bounds = inv_bounds_first,
                                    .flops = inv_flops_none,
                                    .cases = view_cases,
                                    .doc = "the bytes of x with another shape"};

INV_CASE_LIST(transpose, "y = ai.invonnx.ir.Transpose<perm = [2,0,1]>(float[2,3,4] x)",
              "y = ai.invonnx.ir.Transpose<perm = [1,0]>(float[1,5] x)",
              "y = ai.invonnx.ir.Transpose<perm = [0,2,1,3]>(float[2,3,0,2] x)",
              "y = ai.invonnx.ir.Transpose<perm = [0,2,3,1]>(float[2,3,4,5] x)",
              "y = ai.invonnx.ir.Transpose<perm = [0,2,1,3]>(float[2,3,4,6] x)",
              "y = ai.invonnx.ir.Transpose<perm = [2,1,0]>(float[17,2,18] x)",
              "y = ai.invonnx.ir.Transpose<perm = [1,0]>(bool[33,18] x)")
/* clang-format off */
static const inv_op_def transpose_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "Transpose", .since = 1, .in = "x", .out = "y",
    .onnx = "", .infer = transpose_infer, .grad = transpose_grad, .run = transpose_run, .bounds = inv_bounds_first,
    .work = inv_work_move,
    .flops = inv_flops_none, .cases = transpose_cases, .doc = "axes of x in the order perm"};
/* clang-format on */

INV_CASE_LIST(broadcast, "y = BroadcastTo<shape = [4,2,3]>(float[2,1] x)", "y = BroadcastTo<shape = [2,3]>(float x)",
              "y = BroadcastTo<shape = [0,3]>(float[1,3] x)", "y = BroadcastTo<shape = [1]>(float[1] x)",
              "y = BroadcastTo<shape = [3,8]>(float[8] x)")
/* clang-format off */
static const inv_op_def broadcast_row = {
    .size = sizeof(inv_op_def), .domain = INV_IR, .name = "BroadcastTo", .since = 1, .in = "x", .out = "y",
    .images = INV_IMAGES(1, 1, {"shape", INV_PER_AXIS}),
    .infer = broadcast_infer, .grad = broadcast_grad, .run = broadcast_run, .piece = &repeat_piece,
    .bounds = inv_bounds_first, .work = inv_work_move,
    .flops = inv_flops_none, .cases = broadcast_cases,
    .doc = "x repeated along axes where its extent is 1 or missing"};
/* clang-format on */

INV_LOWERED(reshape, "Reshape", 1, "x shape?", "y", "to View. ONNX Reshape-1, -5, -14",
            INV_INTS("s", "-1, 2") "y = Reshape(float[2,3] x, s)",
            INV_INTS("s", "0, 1, -1") "y = Reshape(float[2,3] x, s)", "y = Reshape<shape = [3,2]>(float[2,3] x)",
            INV_INTS("s", "1") "y = Reshape(float x, s)")
INV_LOWERED(flatten, "Flatten", 1, "x", "y", "to View. ONNX Flatten-1, -9, -11, -13", "y = Flatten(float[2,3,4] x)",
            "y = Flatten<axis = -1>(float[2,3,4] x)", "y = Flatten<axis = 0>(float[1,2] x)")
INV_LOWERED(squeeze, "Squeeze", 1, "x axes?", "y", "to View. ONNX Squeeze-1, -11, -13",
            "y = Squeeze<axes = [0]>(float[1,3,1] x)", INV_INTS("a", "-1") "y = Squeeze(float[1,3,1] x, a)",
            "y = Squeeze(float[1,3,1] x)")
INV_LOWERED(unsqueeze, "Unsqueeze", 1, "x axes?", "y", "to View. ONNX Unsqueeze-1, -11, -13",
            "y = Unsqueeze<axes = [0, 2]>(float[2,3] x)", INV_INTS("a", "-1") "y = Unsqueeze(float[3] x, a)")
INV_LOWERED(identity, "Identity", 1, "x", "y", "the input itself. ONNX Identity-1", "y = Identity(float[2,3] x)",
            "y = Identity(float[1] x)")
INV_CASE_LIST(onnx_transpose, "y = Transpose(float[2,3,4] x)", "y = Transpose<perm = [1,0]>(float[1,5] x)")
/* clang-format off */
static const inv_op_def onnx_transpose_row = {
    .size = sizeof(inv_op_def), .domain = "", .name = "Transpose", .since = 1, .in = "x", .out = "y",
    .onnx = "", .infer = transpose_infer, .lower = transpose_lower, .cases = onnx_transpose_cases,
    .doc = "axes permuted; a View where only extents of 1 move. ONNX Transpose-1"};
/* clang-format on */
INV_LOWERED(expand, "Expand", 8, "x shape", "y", "to BroadcastTo. ONNX Expand-8",
            INV_INTS("s", "4, 1, 3") "y = Expand(float[2,1] x, s)", INV_INTS("s", "1") "y = Expand(float[2,3] x, s)")
INV_LOWERED(tile, "Tile", 6, "x repeats", "y", "to View, BroadcastTo, View. ONNX Tile-6",
            INV_INTS("r", "2, 3") "y = Tile(float[2,2] x, r)", INV_INTS("r", "1, 1") "y = Tile(float[1,2] x, r)")
INV_LOWERED(depth_to_space, "DepthToSpace", 1, "x", "y", "to View, Transpose, View. ONNX DepthToSpace-1, -11",
            "y = DepthToSpace<blocksize = 2>(float[1,8,2,3] x)",
            "y = DepthToSpace<blocksize = 2, mode = \"CRD\">(float[1,8,2,3] x)")
INV_LOWERED(space_to_depth, "SpaceToDepth", 1, "x", "y", "to View, Transpose, View. ONNX SpaceToDepth-1, -28",
            "y = SpaceToDepth<blocksize = 2, mode = \"CRD\">(float[1,2,4,6] x)",
            "y = SpaceToDepth<blocksize = 2>(float[1,2,4,6] x)", "y = SpaceToDepth<blocksize = 1>(float[1,2,1,1] x)")

/* clang-format off */
const inv_op_def *const inv_ops_move[] = {
    &view_row,    &transpose_row, &broadcast_row,      &reshape_row, &flatten_row, &squeeze_row,        &unsqueeze_row,
    &identity_row, &onnx_transpose_row, &expand_row,   &tile_row,    &depth_to_space_row, &space_to_depth_row, NULL};
/* clang-format on */
