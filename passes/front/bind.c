/* SPDX-License-Identifier: Apache-2.0
 * Binding: every input gets a static shape and a Feed node that copies it into the arena, or is a constant; all
 * floating-point arithmetic is put into one type. */
#include <string.h>

#include "core/program/options.h"
#include "passes/front/front.h"

static const inv_array *given_array(const inv_request *rq, const char *name)
{
    for (size_t i = 0; i < rq->options->ninputs; i++)
        if (strcmp(rq->options->inputs[i].name, name) == 0) return &rq->options->inputs[i];
    return NULL;
}

/* One symbol stands for one number in the whole model. `open`: some input's first extent is not declared. */
typedef struct symbols {
    INV_VEC(const char *) name;
    INV_VEC(int64_t) extent;
    bool open;
} symbols;

static bool symbol_bind(inv_graph *g, symbols *s, const char *name, int64_t extent, int64_t *bound)
{
    for (size_t i = 0; i < s->name.n; i++)
        if (strcmp(s->name.at[i], name) == 0) {
            *bound = s->extent.at[i];
            return true;
        }
    *bound = extent;
    return inv_vec_push(&g->arena, &s->name, name) && inv_vec_push(&g->arena, &s->extent, extent);
}

/* Adds what is wrong with one input to `wrong`. */
static void bind_input(inv_graph *g, const inv_request *rq, inv_id v, symbols *s, inv_str *wrong)
{
    inv_value *val = inv_val(g, v);
    const inv_array *a = given_array(rq, val->name);
    char want[INV_SHAPE_TEXT];
    inv_shape_text(&val->shape, want);
    if (!a) {
        if (!inv_shape_is_static(&val->shape))
            inv_str_add(wrong, "; input '%s' %s%s: no shape given for its open dimensions", val->name,
                        inv_dtype_name(val->dtype), want);
        else if (rq->batch > 0 && val->shape.rank > 0 && rq->rebatch) val->shape.dim[0] = rq->batch;
        return;
    }
    inv_shape got = inv_shape_of(a->rank, a->dims);
    /* An input of another first extent than the rows has none: it goes whole into every step. So does one that is as it
     * is declared, beside an open batch. */
    const int64_t rows = inv_arrays_rows(rq->options->inputs, rq->options->ninputs, rq->options->target, 0);
    const bool declared = s->open && val->shape.rank > 0 && got.rank > 0 && val->shape.dim[0] == got.dim[0];
    const bool whole = declared || inv_input_is_constant(rq->options, a);
    if (rq->batch > 0 && !whole && got.rank > 0 && got.dim[0] == rows) got.dim[0] = rq->batch;
    char seen[INV_SHAPE_TEXT];
    inv_shape_text(&got, seen);
    bool fits = val->shape.rank < 0 || val->shape.rank == got.rank;
    for (int d = 0; fits && d < val->shape.rank; d++) {
        int64_t wanted = val->shape.dim[d], bound = got.dim[d];
        const char *symbol = val->dim_param ? val->dim_param[d] : NULL;
        if (wanted >= 0) fits = wanted == got.dim[d] || (d == 0 && rq->rebatch && !whole);
        else if (symbol && *symbol && symbol_bind(g, s, symbol, got.dim[d], &bound) && bound != got.dim[d]) {
            inv_str_add(wrong, "; input '%s': dimension '%s' is %lld here and %lld elsewhere", val->name, symbol,
                        (long long)got.dim[d], (long long)bound);
        }
    }
    if (!fits) inv_str_add(wrong, "; input '%s' wants %s%s, got %s", val->name, inv_dtype_name(val->dtype), want, seen);
    if (!inv_dtype_is_float(inv_dtype_carrier(val->dtype, g->real)) && inv_dtype_is_float(a->dtype))
        inv_str_add(wrong, "; input '%s' wants elements of type %s, got %s", val->name, inv_dtype_name(val->dtype),
                    inv_dtype_name(a->dtype));
    val->shape = got;
}

inv_status inv_bind_varying(const inv_graph *g, const inv_session_options *given, inv_arena *a, inv_session_options *o,
                            bool *more)
{
    const size_t before = o->nconstant_inputs;
    inv_ids varying = {0};
    const char **names = INV_ARENA_NEW(a, const char *, before + o->ninputs + 1);
    if (!names) return INV_E_NOMEM;
    if (before) memcpy(names, o->constant_inputs, before * sizeof *names);
    o->constant_inputs = names;
    INV_TRY(inv_graph_varying(g, a, &varying));
    for (size_t j = 0; j < varying.n; j++)
        for (size_t i = 0; i < o->ninputs; i++) {
            const bool is = strcmp(o->inputs[i].name, inv_val(g, varying.at[j])->name) == 0;
            if (!is || !given->inputs[i].data || inv_input_is_constant(o, &given->inputs[i])) continue;
            names[o->nconstant_inputs++] = o->inputs[i].name;
        }
    *more = o->nconstant_inputs > before;
    return INV_OK;
}

/* The input's values are known from here on. */
static inv_status bind_constant_input(inv_graph *g, inv_id v, const inv_array *a)
{
    inv_value *val = inv_val(g, v);
    size_t n = (size_t)inv_shape_nelem(&val->shape), nbytes;
    void *bytes = NULL;
    if (!inv_shape_nbytes(&val->shape, val->dtype, &nbytes)) return INV_E_NOMEM;
    if (!(bytes = inv_arena_alloc(&g->arena, nbytes + 1))) return INV_E_NOMEM;
    if (!inv_convert(bytes, val->dtype, a->data, a->dtype, n))
        return inv_fail(g->ctx, INV_E_UNSUPPORTED_TYPE, "input '%s' of type %s cannot be a constant of the session",
                        val->name, inv_dtype_name(val->dtype));
    val->role = INV_ROLE_CONST;
    val->mem = INV_MEM_PARAM;
    val->data = (inv_data){val->dtype, val->shape, bytes, nbytes};
    return INV_OK;
}

static bool is_model_input(const inv_graph *g, const char *name)
{
    for (size_t i = 0; i < g->inputs.n; i++)
        if (strcmp(inv_val(g, g->inputs.at[i])->name, name) == 0) return true;
    return false;
}

/* The type in which the value is computed with. */
static void settle_type(const inv_graph *g, inv_value *v)
{
    if (inv_dtype_bits(v->dtype)) v->stated = v->dtype;
    v->dtype = inv_dtype_carrier(v->dtype, g->real);
}

inv_status inv_pass_bind(inv_graph *g, const inv_request *rq, inv_plan *plan)
{
    symbols s = {0};
    inv_str wrong;
    inv_str_init(&wrong, g->ctx);
    for (size_t i = 0; i < rq->options->ninputs; i++)
        if (!is_model_input(g, rq->options->inputs[i].name))
            inv_str_add(&wrong, "; the model has no input '%s'", rq->options->inputs[i].name);
    for (size_t i = 0; i < g->inputs.n; i++) {
        const inv_shape *shape = &inv_val(g, g->inputs.at[i])->shape;
        s.open = s.open || (shape->rank > 0 && shape->dim[0] < 0);
    }
    for (size_t i = 0; i < g->inputs.n; i++)
        if (!inv_value_carried(inv_val(g, g->inputs.at[i]))) bind_input(g, rq, g->inputs.at[i], &s, &wrong);
    inv_status st = INV_OK;
    if (wrong.failed) st = inv_fail(g->ctx, INV_E_NOMEM, "out of memory while binding inputs");
    else if (wrong.n) st = inv_fail(g->ctx, INV_E_SHAPE, "inputs do not fit the model: %s", wrong.s + 2);
    inv_str_fini(&wrong);
    INV_TRY(st);

    inv_ids later = g->order;
    memset(&g->order, 0, sizeof g->order);
    for (size_t i = 0; i < g->inputs.n; i++) {
        inv_value *val = inv_val(g, g->inputs.at[i]);
        if (inv_value_carried(val)) continue; /* whoever reads it is refused when lowered */
        settle_type(g, val);
        const inv_array *a = given_array(rq, val->name);
        if (inv_input_is_constant(rq->options, a)) INV_TRY(bind_constant_input(g, g->inputs.at[i], a));
        else if (inv_bind_feed(g, plan, g->inputs.at[i], false) == INV_NONE) return INV_E_NOMEM;
    }
    for (size_t i = 0; i < later.n; i++)
        if (!inv_vec_push(&g->arena, &g->order, later.at[i])) return INV_E_NOMEM;
    return INV_OK;
}

bool inv_real_tensor(inv_graph *g, inv_data *t)
{
    const inv_dtype carrier = inv_dtype_carrier(t->dtype, g->real);
    if (carrier == t->dtype) return true;
    size_t n = (size_t)inv_shape_nelem(&t->shape), nbytes = 0;
    if (!inv_shape_nbytes(&t->shape, carrier, &nbytes)) return false;
    void *bytes = inv_arena_alloc(&g->arena, nbytes ? nbytes : 1);
    if (!bytes || !inv_convert(bytes, carrier, t->bytes, t->dtype, n)) return false;
    *t = (inv_data){carrier, t->shape, bytes, nbytes};
    return true;
}

inv_status inv_real_nodes(inv_graph *g, const inv_ids *list)
{
    for (size_t i = 0; i < list->n; i++) {
        inv_node *n = inv_nod(g, list->at[i]);
        for (uint32_t a = 0; a < n->nattr; a++) {
            inv_attr *t = &n->attr[a];
            if (t->kind == INV_ATTR_TENSOR && !inv_dtype_bits(t->tensor.dtype) && !inv_real_tensor(g, &t->tensor))
                return INV_E_NOMEM;
            if (t->kind == INV_ATTR_INT && (strcmp(t->name, "to") == 0 || strcmp(t->name, "dtype") == 0) &&
                inv_dtype_is_float((inv_dtype)t->i))
                t->i = g->real;
        }
    }
    return INV_OK;
}

/* gives: every floating-point value, and every floating-point tensor in an attribute, in g->real. */
inv_status inv_pass_real(inv_graph *g)
{
    for (size_t v = 0; v < g->value.n; v++) {
        inv_value *val = &g->value.at[v];
        if (inv_dtype_bits(val->dtype) && val->role == INV_ROLE_PARAM) { /* not trained, and read where it is */
            val->role = INV_ROLE_CONST;
            val->of_model = true;
        }
        settle_type(g, val);
        if (val->role == INV_ROLE_CONST && !val->of_model && !inv_real_tensor(g, &val->data)) return INV_E_NOMEM;
    }
    return inv_real_nodes(g, &g->order);
}
