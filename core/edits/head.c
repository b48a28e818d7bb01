/* SPDX-License-Identifier: Apache-2.0
 * New heads (head.h). */
#include "core/edits/head.h"

#include <math.h>
#include <string.h>

#include "core/edits/edited.h"
#include "core/edits/head_find.h"
#include "core/graph/node.h"
#include "core/weights/exported.h"
#include "core/weights/weight_origin.h"

typedef struct maker {
    inv_graph *g;
    const inv_head *o;
    inv_arena *a;
    bool *fixed; /* per value: it depends on no input */
    bool *below; /* per value: it depends on the head */
    size_t room; /* values that the two have room for */
    inv_head_site site;
    inv_head_made *made;
    int64_t before;
    double bound;
} maker;

static inv_status find_fixed(maker *x)
{
    inv_graph *g = x->g;
    x->room = 2 * g->value.n + 64; /* those that are made here, too */
    x->fixed = INV_ARENA_NEW(x->a, bool, x->room);
    x->below = INV_ARENA_NEW(x->a, bool, x->room);
    if (!x->fixed || !x->below) return INV_E_NOMEM;
    for (size_t v = 0; v < g->value.n; v++) {
        const uint8_t role = inv_val(g, (inv_id)v)->role;
        x->fixed[v] = role == INV_ROLE_PARAM || role == INV_ROLE_CONST;
    }
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        bool all = true;
        for (uint32_t k = 0; k < n->nin; k++) all = all && (n->in[k] == INV_NONE || x->fixed[n->in[k]]);
        for (uint32_t k = 0; k < n->nout; k++)
            if (n->out[k] != INV_NONE) x->fixed[n->out[k]] = all;
    }
    return INV_OK;
}

/* --- weight and bias --- */

/* Whether the weight behind an operand is of floating point and read for this operand alone. */
static inv_status is_own(const maker *x, inv_id operand, const inv_origin *o, bool *own)
{
    const inv_graph *g = x->g;
    uint32_t *readers;
    INV_TRY(inv_added_readers(g, x->a, &readers));
    const inv_value *w = inv_val(g, o->weight);
    *own = !o->quantized && w->role == INV_ROLE_PARAM && inv_dtype_is_float(w->dtype) && w->source == INV_NONE;
    for (inv_id v = operand; *own; v = inv_nod(g, inv_val(g, v)->def)->in[0]) {
        *own = readers[v] == 1;
        if (v == o->weight) break;
    }
    return INV_OK;
}

/* What nothing reads any more goes. */
static inv_status forget(maker *x, inv_id v)
{
    uint32_t *readers;
    INV_TRY(inv_added_readers(x->g, x->a, &readers));
    inv_value *of = inv_val(x->g, v);
    if (readers[v]) return INV_OK;
    if (of->def != INV_NONE) return inv_added_remove(x->g, of->def);
    of->dropped = of->role == INV_ROLE_PARAM;
    return INV_OK;
}

static inv_status drawn(maker *x, inv_id v)
{
    inv_value *w = inv_val(x->g, v);
    w->said = INV_SAID_PARAMETER;
    w->added = true;
    inv_added_draw(w, x->o->seed, x->bound);
    return INV_OK;
}

/* The name of a parameter of the head's own; NULL: no memory. */
static const char *head_name(const maker *x, const char *what)
{
    return inv_arena_printf(x->a, "%s.%s", inv_node_called(x->g, inv_nod(x->g, x->site.node)), what);
}

/* A parameter of the head's own, drawn. */
static inv_status new_parameter(maker *x, const inv_shape *shape, inv_dtype dtype, const char *name, inv_id *made)
{
    inv_graph *g = x->g;
    const char *own = name ? inv_arena_strdup(&g->arena, name) : NULL;
    *made = own ? inv_added_initializer(g, own, dtype, shape) : INV_NONE;
    if (*made == INV_NONE) return INV_E_NOMEM;
    x->fixed[*made] = true;
    return drawn(x, *made);
}

/* Input k of the node becomes a new parameter of that shape: under its own name, or as "HEAD.what". */
static inv_status new_operand(maker *x, inv_id node, uint32_t k, inv_shape shape, inv_dtype dtype, const char *what,
                              inv_id *made)
{
    inv_graph *g = x->g;
    const inv_id operand = inv_nod(g, node)->in[k];
    const inv_origin o = inv_weight_origin(g, operand);
    bool own;
    INV_TRY(is_own(x, operand, &o, &own));
    *made = o.weight;
    if (own) {
        if (o.turned) shape = inv_shape_of(2, (int64_t[]){shape.dim[1], shape.dim[0]});
        if (!inv_added_renew(g, o.weight, &shape)) return INV_E_NOMEM;
        return drawn(x, o.weight);
    }
    INV_TRY(new_parameter(x, &shape, dtype, head_name(x, what), made));
    inv_nod(g, node)->in[k] = *made;
    return forget(x, operand);
}

/* The whole numbers of an initializer or a Constant node; *n: how many, at most `cap` of which are given. false: it is
 * neither. */
static bool whole_numbers(const inv_graph *g, inv_id v, size_t cap, int64_t *out, size_t *n)
{
    const inv_data *d = inv_weight_data(g, v);
    const inv_id def = inv_val(g, v)->def;
    if (d && (d->dtype != INV_I64 || !d->bytes)) return false;
    if (d) {
        *n = (size_t)inv_shape_nelem(&d->shape);
        for (size_t i = 0; i < *n && i < cap; i++) out[i] = inv_elem_int(d->bytes, d->dtype, i);
        return *n <= cap;
    }
    const inv_node *c = def == INV_NONE ? NULL : inv_nod(g, def);
    const int64_t *list = c && inv_node_is(c, "Constant") ? inv_attr_ints(c, "value_ints", n) : NULL;
    for (size_t i = 0; list && i < *n && i < cap; i++) out[i] = list[i];
    return list && *n <= cap;
}

/* Input k of a node is a shape, or an extent or some of one: where it has the former number of classes, the new one. */
static inv_status patch_shape(maker *x, inv_id node, uint32_t k)
{
    inv_graph *g = x->g;
    int64_t number[INV_MAX_RANK];
    size_t n = 0, hits = 0;
    const inv_id v = inv_nod(g, node)->in[k];
    if (v == INV_NONE || !whole_numbers(g, v, INV_MAX_RANK, number, &n)) return INV_OK;
    for (size_t i = 0; i < n; i++) hits += number[i] == x->before;
    if (!hits) return INV_OK;
    INV_CHECK(hits == 1, g->ctx, INV_E_ARG,
              "{head}: node '%s' (%s) after the head has %lld twice in its target shape, so it is unclear which is "
              "the number of classes. Export the model with -1 there",
              inv_node_called(g, inv_nod(g, node)), inv_nod(g, node)->op_type, (long long)x->before);
    for (size_t i = 0; i < n; i++)
        if (number[i] == x->before) number[i] = x->o->classes;
    const inv_shape shape = inv_shape_of(1, (int64_t[]){(int64_t)n});
    const char *name = inv_arena_printf(&g->arena, "%s.shape", inv_node_called(g, inv_nod(g, node)));
    const inv_id fresh = name ? inv_added_initializer(g, name, INV_I64, &shape) : INV_NONE;
    if (fresh == INV_NONE) return INV_E_NOMEM;
    memcpy(inv_added_bytes(inv_val(g, fresh)), number, n * sizeof *number);
    x->fixed[fresh] = true;
    inv_nod(g, node)->in[k] = fresh;
    return forget(x, v);
}

/* Whether it is a number for each class: of as many elements as there are classes, along one axis. */
static bool is_per_class(const maker *x, const inv_origin *o)
{
    return o->weight != INV_NONE && inv_dtype_is_float(o->dtype) && inv_shape_nelem(&o->shape) == x->before;
}

/* Input k of a node, if it is a number for each class: the bias. */
static inv_status new_bias(maker *x, inv_id node, uint32_t k)
{
    const inv_node *n = inv_nod(x->g, node);
    if (n->nin <= k || n->in[k] == INV_NONE || !x->fixed[n->in[k]]) return INV_OK;
    const inv_id def = inv_val(x->g, n->in[k])->def;
    if (def != INV_NONE && inv_node_is(inv_nod(x->g, def), "Reshape")) {
        INV_TRY(new_bias(x, def, 0));
        if (x->made->bias == INV_NONE) return INV_OK;
        x->below[inv_nod(x->g, def)->out[0]] = true; /* what the file says of its extents changes, too */
        return patch_shape(x, def, 1);
    }
    const inv_origin o = inv_weight_origin(x->g, n->in[k]);
    if (!is_per_class(x, &o)) return INV_OK;
    inv_shape shape = o.shape;
    if (o.turned) shape = inv_shape_of(2, (int64_t[]){o.shape.dim[1], o.shape.dim[0]});
    if (shape.rank == 0) shape = inv_shape_of(1, (int64_t[]){1});
    int axis = shape.rank - 1;
    for (int i = 0; i < shape.rank; i++)
        if (shape.dim[i] == x->before && x->before > 1) axis = i;
    shape.dim[axis] = x->o->classes;
    return new_operand(x, node, k, shape, o.dtype, "bias", &x->made->bias);
}

/* --- a product of quantized operands --- */

/* The nodes come where the old one was, which goes; what that gave is one's of theirs. */
static inv_status take_place(inv_graph *g, inv_id old, const inv_id *node, size_t n)
{
    inv_ids order = {0};
    for (size_t i = 0; i < g->order.n; i++) {
        for (size_t k = 0; k < n && g->order.at[i] == old; k++) {
            if (node[k] == INV_NONE || !inv_vec_push(&g->arena, &order, node[k])) return INV_E_NOMEM;
            inv_nod(g, node[k])->source = INV_NONE;
        }
        if (!inv_vec_push(&g->arena, &order, g->order.at[i])) return INV_E_NOMEM;
    }
    g->order = order;
    inv_nod(g, old)->out[0] = INV_NONE;
    return inv_added_remove(g, old);
}

static inv_status put_behind(inv_graph *g, inv_id first, inv_id second)
{
    inv_ids order = {0};
    for (size_t i = 0; i < g->order.n; i++) {
        if (!inv_vec_push(&g->arena, &order, g->order.at[i])) return INV_E_NOMEM;
        if (g->order.at[i] == first && !inv_vec_push(&g->arena, &order, second)) return INV_E_NOMEM;
    }
    inv_nod(g, second)->source = INV_NONE;
    g->order = order;
    g->edited = true;
    return INV_OK;
}

static inv_id fresh_value(inv_graph *g, const char *like)
{
    return inv_graph_value(g, inv_graph_fresh(g, like), INV_ROLE_NODE, INV_DT_NONE, NULL);
}

/* It gives way to the product of floating point that it stands for, with operands of its own. */
static inv_status plain_product(maker *x, const inv_shape *shape)
{
    inv_graph *g = x->g;
    const inv_head_site *s = &x->site;
    const inv_id old = s->node;
    const inv_node n = *inv_nod(g, old);
    const inv_shape classes = inv_shape_of(1, (int64_t[]){x->o->classes});
    const bool matmul = !strcmp(s->plain, "MatMul");
    const char *name = inv_node_called(g, &n);
    inv_id w, b = INV_NONE, in = s->x, node[3], y = n.out[0];
    size_t count = 0;
    INV_TRY(new_parameter(x, shape, s->dtype, head_name(x, "weight"), &w));
    if (s->bias && inv_dtype_is_float(inv_weight_type(g, n.in[s->bias]))) {
        b = n.in[s->bias]; /* begins anew as a bias of the model's does */
    } else if (s->bias) {
        INV_TRY(new_parameter(x, &classes, s->dtype, head_name(x, "bias"), &b));
        x->made->bias = b;
    }
    inv_val(g, y)->def = INV_NONE;
    if (s->scale != INV_NONE) {
        in = fresh_value(g, inv_val(g, s->x)->name);
        const inv_id operand[] = {s->x, s->scale, s->zero};
        node[count++] =
            inv_graph_node(g, "", "DequantizeLinear", "", s->zero == INV_NONE ? 2 : 3, operand, 1, &in, INV_NOATTR);
    }
    const inv_id sum = matmul && b != INV_NONE ? fresh_value(g, name) : y, operand[] = {in, w, b};
    const uint32_t nin = matmul || b == INV_NONE ? 2 : 3;
    node[count] =
        inv_graph_node(g, "", s->plain, name, nin, operand, 1, &sum, matmul ? 0 : n.nattr, matmul ? NULL : n.attr);
    x->site.node = node[count++];
    if (sum != y) node[count++] = inv_graph_node(g, "", "Add", "", INV_IN(sum, b), 1, &y, INV_NOATTR);
    INV_TRY(take_place(g, old, node, count));
    x->made->weight = w;
    x->site.bias = 0;
    return g->failed;
}

/* --- what follows --- */

/* The node that alone reads v; INV_NONE. */
static inv_status sole_reader(const maker *x, inv_id v, inv_id *node)
{
    const inv_graph *g = x->g;
    uint32_t *readers;
    *node = INV_NONE;
    INV_TRY(inv_added_readers(g, x->a, &readers));
    for (size_t i = 0; i < g->order.n && readers[v] == 1; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        if (inv_ids_have(n->in, n->nin, v)) *node = g->order.at[i];
    }
    return INV_OK;
}

/* The node goes, and what gave v, its operand, gives what it gave. */
static inv_status bypass(maker *x, inv_id node, inv_id *v)
{
    inv_graph *g = x->g;
    const inv_id y = inv_nod(g, node)->out[0], def = inv_val(g, *v)->def;
    inv_node *n = inv_nod(g, def);
    for (uint32_t k = 0; k < n->nout; k++)
        if (n->out[k] == *v) n->out[k] = y;
    inv_nod(g, node)->out[0] = INV_NONE;
    inv_val(g, *v)->def = INV_NONE;
    inv_val(g, y)->def = def;
    *v = y;
    return inv_added_remove(g, node);
}

/* An operator of quantized operands gives way to that of floating point; the other operand of a sum is the bias. */
static inv_status plain_twin(maker *x, inv_id *node, const inv_head_twin *twin, inv_id v)
{
    inv_graph *g = x->g;
    const inv_id old = *node;
    const inv_node n = *inv_nod(g, old);
    const inv_id y = n.out[0], other = n.in[n.in[0] == v ? twin->other : 0];
    const inv_data *d = twin->other && x->made->bias == INV_NONE ? inv_weight_data(g, other) : NULL;
    inv_id operand[] = {v, INV_NONE};
    INV_CHECK(
        !twin->other || (d && inv_shape_nelem(&d->shape) == x->before), g->ctx, INV_E_ARG,
        "{head}: node '%s' (%s) after the head '%s' does not add a bias of %lld classes. Quantize the model with QDQ "
        "(QuantizeLinear, DequantizeLinear), or replace the head before quantizing",
        inv_node_called(g, &n), n.op_type, inv_node_called(g, inv_nod(g, x->site.node)), (long long)x->before);
    if (d) {
        const inv_shape classes = inv_shape_of(1, (int64_t[]){x->o->classes});
        INV_TRY(new_parameter(x, &classes, x->site.dtype, head_name(x, "bias"), &operand[1]));
        x->made->bias = operand[1];
    }
    inv_attr *attr = INV_ARENA_NEW(&g->arena, inv_attr, n.nattr + 1);
    uint32_t nattr = 0;
    for (uint32_t i = 0; attr && i < n.nattr; i++)
        if (strcmp(n.attr[i].name, "opset") != 0 && strcmp(n.attr[i].name, "channels_last") != 0)
            attr[nattr++] = n.attr[i];
    inv_val(g, y)->def = INV_NONE;
    *node = inv_graph_node(g, "", twin->plain, inv_node_called(g, &n), d ? 2 : 1, operand, 1, &y, nattr, attr);
    return attr && *node != INV_NONE ? take_place(g, old, node, 1) : INV_E_NOMEM;
}

/* The nodes of which each alone reads what the one before gives, from v on; how many of them up to the last
 * DequantizeLinear. */
static inv_status count_quantized(const maker *x, inv_id v, size_t *count)
{
    inv_id next;
    *count = 0;
    for (size_t i = 1;; i++) {
        INV_TRY(sole_reader(x, v, &next));
        if (next == INV_NONE) return INV_OK;
        if (inv_node_is(inv_nod(x->g, next), "DequantizeLinear")) *count = i;
        v = inv_nod(x->g, next)->out[0];
    }
}

/* Behind sums of integers: the Cast and the Mul by the scales that make numbers of them. */
static inv_status drop_scales(maker *x, inv_id *v)
{
    static const char *const ops[] = {"Cast", "Mul"};
    for (int i = 0; i < 2; i++) {
        inv_id next;
        INV_TRY(sole_reader(x, *v, &next));
        INV_CHECK(next != INV_NONE && inv_node_is(inv_nod(x->g, next), ops[i]), x->g->ctx, INV_E_ARG,
                  "{head}: the integers of the head '%s' are not followed by just a Cast and a Mul with its scales",
                  inv_node_called(x->g, inv_nod(x->g, x->site.node)));
        INV_TRY(bypass(x, next, v));
    }
    return INV_OK;
}

/* What quantizes behind the head goes, whose ranges were those of the former classes. The bias is the sum behind a
 * product without one. */
static inv_status clear_way(maker *x)
{
    inv_graph *g = x->g;
    inv_id v = inv_nod(g, x->site.node)->out[0], next;
    bool bias = true;
    size_t quantized;
    if (x->site.bias) INV_TRY(new_bias(x, x->site.node, (uint32_t)x->site.bias));
    if (x->site.sums) INV_TRY(drop_scales(x, &v));
    INV_TRY(count_quantized(x, v, &quantized));
    INV_CHECK(!x->site.quantizes || quantized, g->ctx, INV_E_ARG,
              "{head}: the output of the head '%s' is quantized, but no DequantizeLinear follows as its only reader",
              inv_node_called(g, inv_nod(g, x->site.node)));
    for (;; quantized -= quantized > 0) {
        INV_TRY(sole_reader(x, v, &next));
        if (next == INV_NONE) return INV_OK;
        const inv_node *n = inv_nod(g, next);
        const inv_head_twin *twin = inv_head_twin_of(n);
        if (quantized && (inv_node_is(n, "QuantizeLinear") || inv_node_is(n, "DequantizeLinear"))) {
            INV_TRY(bypass(x, next, &v));
            continue;
        }
        INV_CHECK(
            !x->site.quantizes || !quantized || twin || strncmp(n->op_type, "QLinear", strlen("QLinear")) != 0, g->ctx,
            INV_E_ARG,
            "{head}: node '%s' (%s) after the head '%s' needs quantized tensors, which the new head does not give. "
            "Quantize with QDQ (QuantizeLinear, DequantizeLinear), or replace the head before quantizing",
            inv_node_called(g, n), n->op_type, inv_node_called(g, inv_nod(g, x->site.node)));
        if (quantized && twin) INV_TRY(plain_twin(x, &next, twin, v));
        else if (bias && x->made->bias == INV_NONE && inv_node_is(n, "Add"))
            INV_TRY(new_bias(x, next, n->in[0] == v ? 1 : 0));
        else bias = false;
        v = inv_nod(g, next)->out[0];
        if (quantized) inv_val(g, v)->dtype = INV_DT_NONE, inv_val(g, v)->restated = true;
    }
}

/* Name i of the head's weight without ".weight", "a.b"; NULL: it is called otherwise. */
static const char *module_name(const maker *x, uint32_t i)
{
    static const char end[] = ".weight";
    const inv_value *w = inv_val(x->g, x->made->weight);
    const char *name = i < w->nalso ? w->also[i] : w->name;
    const size_t n = strlen(name), module = n >= strlen(end) ? n - strlen(end) : 0;
    return module && !strcmp(name + module, end) ? inv_arena_strndup(x->a, name, module) : NULL;
}

/* The name of a bias beside the weight, if its module is known. *had: false, where the file lists all parameters, the
 * weight among them, and no such bias. */
static const char *bias_name(const maker *x, bool *had)
{
    const inv_graph *g = x->g;
    const uint32_t nlisted = g->exported ? g->exported->nparam : 0;
    const char *found = NULL;
    for (uint32_t i = 0; i <= inv_val(g, x->made->weight)->nalso; i++) {
        const char *module = module_name(x, i), *name = module ? inv_arena_printf(x->a, "%s.bias", module) : NULL;
        bool listed = false;
        for (uint32_t k = 0; name && k < nlisted && !listed; k++)
            listed = g->exported->kept[k] != INV_KEPT_NAMED && !strcmp(g->exported->param[k], name);
        if (name && (!found || listed)) found = name;
        if (listed) break;
        *had = *had && !(name && nlisted);
    }
    return found;
}

/* A head without a bias gets one, as layers have by default: exporters leave out what is zero. */
static inv_status add_bias(maker *x)
{
    inv_graph *g = x->g;
    const inv_id head = x->site.node;
    const inv_node n = *inv_nod(g, head);
    const bool plain = strcmp(n.op_type, "MatMul") == 0 || strcmp(n.op_type, "FusedMatMul") == 0;
    const uint32_t at = plain ? 0 : 2;
    const inv_shape classes = inv_shape_of(1, (int64_t[]){x->o->classes});
    inv_id in[3] = {n.in[0], n.in[1], INV_NONE}, y = n.out[0], made;
    bool had = true;
    const char *name = bias_name(x, &had);
    if (x->made->bias != INV_NONE || !had || (at && n.nin > at && n.in[at] != INV_NONE)) return INV_OK;
    if (!name) name = head_name(x, "bias");
    INV_TRY(new_parameter(x, &classes, x->site.dtype, name, &in[2]));
    x->made->bias = in[2];
    inv_val(g, y)->def = INV_NONE;
    if (at) {
        made = inv_graph_node(g, n.domain, n.op_type, n.name, 3, in, 1, &y, n.nattr, n.attr);
        if (made == INV_NONE) return g->failed;
        inv_nod(g, made)->op = n.op;
        x->site.node = made;
        return take_place(g, head, &made, 1);
    }
    const inv_id sum = fresh_value(g, inv_node_called(g, &n));
    if (sum == INV_NONE) return g->failed;
    inv_val(g, sum)->def = head;
    inv_nod(g, head)->out[0] = sum;
    made = inv_graph_node(g, "", "Add", "", INV_IN(sum, in[2]), 1, &y, INV_NOATTR);
    return made == INV_NONE ? g->failed : put_behind(g, head, made);
}

static inv_status patch_shapes(maker *x, inv_id node)
{
    const inv_node *n = inv_nod(x->g, node);
    static const char *const second[] = {"Reshape", "Expand", "OneHot", NULL};
    const uint32_t at = inv_node_is_any(n, second) ? 1 : inv_node_is(n, "Resize") ? 3 : 0;
    if (!at || n->nin <= at || n->in[at] == INV_NONE) return INV_OK;
    const inv_id def = inv_val(x->g, n->in[at])->def;
    if (def == INV_NONE || !inv_node_is(inv_nod(x->g, def), "Concat")) return patch_shape(x, node, at);
    for (uint32_t k = 0; k < inv_nod(x->g, def)->nin; k++) INV_TRY(patch_shape(x, def, k));
    return INV_OK;
}

/* What has an extent of the former number of classes would not fit. */
static inv_status check_operands(const maker *x, inv_id node)
{
    const inv_graph *g = x->g;
    const inv_node *n = inv_nod(g, node);
    char text[INV_SHAPE_TEXT];
    if (inv_node_is(n, "Resize")) return INV_OK; /* its scales are as many as there are axes */
    for (uint32_t k = 0; k < n->nin; k++) {
        if (n->in[k] == INV_NONE || !x->fixed[n->in[k]]) continue;
        const inv_origin o = inv_weight_origin(g, n->in[k]);
        bool any = false;
        for (int i = 0; o.weight != INV_NONE && inv_dtype_is_float(o.dtype) && i < o.shape.rank; i++)
            any = any || (o.shape.dim[i] == x->before && x->before > 1);
        INV_CHECK(!any || o.weight == x->made->bias, g->ctx, INV_E_ARG,
                  "{head}: node '%s' (%s) after the head '%s' computes with '%s' %s, made for the old %lld classes. "
                  "Name a later head (NODE=N), or remove that node from the model",
                  inv_node_called(g, n), n->op_type, inv_node_called(g, inv_nod(g, x->site.node)),
                  inv_val(g, o.weight)->name, inv_shape_text(&o.shape, text), (long long)x->before);
    }
    return INV_OK;
}

/* Whether a node gives classes their former names, by number: runtimes stop at a class that has none, or give it a
 * default. */
static bool names_classes(const maker *x, const inv_node *n)
{
    const bool ml = !strcmp(n->domain, "ai.onnx.ml");
    if (ml && (!strcmp(n->op_type, "ZipMap") || !strcmp(n->op_type, "LabelEncoder"))) return true;
    if (!inv_node_is(n, "Gather") && !inv_node_is(n, "GatherND") &&
        !(ml && !strcmp(n->op_type, "ArrayFeatureExtractor")))
        return false;
    if (n->nin < 2 || n->in[0] == INV_NONE || n->in[1] == INV_NONE || !x->fixed[n->in[0]]) return false;
    const inv_shape *s = &inv_val(x->g, n->in[0])->shape;
    bool any = false;
    for (int i = 0; x->below[n->in[1]] && i < s->rank; i++) any = any || s->dim[i] == x->before;
    return any;
}

/* The extent that the file states of the classes. */
static void restate(maker *x, inv_value *v)
{
    const bool conv = inv_node_is(inv_nod(x->g, x->site.node), "Conv");
    int at = -1;
    for (int i = 0; i < v->shape.rank; i++)
        if (v->shape.dim[i] == x->before && (at < 0 || !conv || at == 0)) at = i;
    if (at >= 0) v->shape.dim[at] = x->o->classes;
    v->restated = true;
}

static inv_status follow(maker *x)
{
    inv_graph *g = x->g;
    const inv_id head = x->site.node;
    x->below[inv_nod(g, head)->out[0]] = true;
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_id id = g->order.at[i];
        bool below = false;
        for (uint32_t k = 0; k < inv_nod(g, id)->nin; k++)
            below = below || (inv_nod(g, id)->in[k] != INV_NONE && x->below[inv_nod(g, id)->in[k]]);
        for (uint32_t k = 0; below && k < inv_nod(g, id)->nout; k++)
            if (inv_nod(g, id)->out[k] != INV_NONE) x->below[inv_nod(g, id)->out[k]] = true;
        if (!below || x->before == x->o->classes) continue;
        INV_TRY(check_operands(x, id));
        const inv_node *n = inv_nod(g, id);
        INV_CHECK(
            !names_classes(x, n), g->ctx, INV_E_ARG,
            "{head}: node '%s' (%s) after the head '%s' maps to the old %lld class names. Remove it and the outputs "
            "that depend on it, or replace the head before adding it",
            inv_node_called(g, n), n->op_type, inv_node_called(g, inv_nod(g, head)), (long long)x->before);
    }
    for (size_t i = 0; i < g->node.n && x->before != x->o->classes; i++) {
        const inv_node *n = inv_nod(g, (inv_id)i);
        if (!n->nin || n->in[0] == INV_NONE || !x->below[n->in[0]]) continue;
        if (inv_ids_have(g->order.at, g->order.n, (inv_id)i)) INV_TRY(patch_shapes(x, (inv_id)i));
    }
    for (size_t v = 0; v < x->room && v < g->value.n && x->before != x->o->classes; v++)
        if (x->below[v]) restate(x, inv_val(g, (inv_id)v));
    return INV_OK;
}

inv_status inv_head_set(inv_graph *g, const inv_head *o, inv_arena *a, inv_head_made *made)
{
    maker x = {.g = g, .o = o, .a = a, .made = made};
    *made = (inv_head_made){.weight = INV_NONE, .bias = INV_NONE, .classes = o->classes};
    INV_CHECK(o->classes >= 1, g->ctx, INV_E_ARG, "{classes} is %lld: must be at least 1", (long long)o->classes);
    INV_TRY(find_fixed(&x));
    INV_TRY(inv_head_find(g, o, x.fixed, a, &x.site));
    made->before = x.before = x.site.shape.dim[x.site.axis];
    INV_CHECK(x.before > 0, g->ctx, INV_E_ARG, "{head}: the weight of node '%s' has no classes",
              inv_node_called(g, inv_nod(g, x.site.node)));
    x.bound = 1 / sqrt((double)inv_shape_nelem(&x.site.shape) / (double)x.before);
    inv_shape shape = x.site.shape;
    shape.dim[x.site.axis] = o->classes;
    if (x.site.plain) INV_TRY(plain_product(&x, &shape));
    else INV_TRY(new_operand(&x, x.site.node, 1, shape, x.site.dtype, "weight", &made->weight));
    INV_TRY(clear_way(&x));
    INV_TRY(add_bias(&x));
    INV_TRY(follow(&x));
    made->node = x.site.node;
    return inv_graph_check(g, false);
}
