/* SPDX-License-Identifier: Apache-2.0
 * Inverse rules compiled for matching: parsed patterns, bindings, conditions and gains. Conditions on parameters are
 * judged on the values at hand; what changes during training is the guard's to watch. */
#include <math.h>
#include <string.h>

#include "core/condition.h"
#include "core/node.h"
#include "ops/linear/linear_solve.h"
#include "passes/match/match.h"

/* Names that statements may bind, some counted more than once. */
static uint32_t names_in(const inv_stmts *list)
{
    uint32_t n = 0;
    for (size_t i = 0; i < list->n; i++) n += list->at[i].nin + list->at[i].nout;
    return n;
}

inv_status inv_rules_compile(inv_context *ctx, inv_arena *a, inv_rule **rules, size_t *n, inv_rule_sizes *most)
{
    const inv_inverse_def *first = inv_registry_favoured(ctx->registry);
    *n = inv_registry_ninverses(ctx->registry);
    *rules = INV_ARENA_NEW(a, inv_rule, *n ? *n : 1);
    *most = (inv_rule_sizes){0};
    if (!*rules) return INV_E_NOMEM;
    for (size_t i = 0, at = first ? 1 : 0; i < *n; i++) {
        const inv_inverse_def *def = inv_registry_inverse_at(ctx->registry, i);
        inv_rule *r = &(*rules)[def == first ? 0 : at++];
        r->def = def;
        INV_TRY(inv_text_stmts(ctx, a, r->def->match, &r->match));
        if (r->def->solve) INV_TRY(inv_text_stmts(ctx, a, r->def->solve, &r->solve));
        if (r->def->saves) INV_TRY(inv_text_stmts(ctx, a, r->def->saves, &r->saves));
        INV_TRY(inv_stmts_sort(a, &r->solve));
        INV_TRY(inv_stmts_sort(a, &r->saves));
        const uint32_t names = names_in(&r->match) + names_in(&r->solve) + names_in(&r->saves);
        if (names > most->names) most->names = names;
        if (r->match.n > most->stmts) most->stmts = (uint32_t)r->match.n;
    }
    return INV_OK;
}

bool inv_binding_init(inv_binding *b, inv_arena *a, uint32_t room)
{
    *b = (inv_binding){INV_ARENA_NEW(a, const char *, room + 1), INV_ARENA_NEW(a, const inv_id *, room + 1),
                       INV_ARENA_NEW(a, uint32_t, room + 1), 0, room};
    return b->name && b->id && b->n_ids;
}

int inv_binding_find(const inv_binding *b, const char *name)
{
    for (uint32_t i = 0; i < b->n; i++)
        if (strcmp(b->name[i], name) == 0) return (int)i;
    return -1;
}

inv_id inv_binding_get(const inv_binding *b, const char *name)
{
    int i = inv_binding_find(b, name);
    return i >= 0 && b->n_ids[i] > 0 ? b->id[i][0] : INV_NONE;
}

bool inv_binding_set(inv_binding *b, const char *name, const inv_id *ids, uint32_t n)
{
    int i = inv_binding_find(b, name);
    if (i >= 0) return b->n_ids[i] == n && (n == 0 || memcmp(b->id[i], ids, n * sizeof *ids) == 0);
    if (b->n == b->room) return false;
    b->name[b->n] = name;
    b->id[b->n] = ids;
    b->n_ids[b->n++] = n;
    return true;
}

const inv_attr *inv_rule_attr(const inv_graph *g, const inv_binding *b, const inv_node *node, const char *name)
{
    const char *dot = strrchr(name, '.');
    if (!dot) return inv_attr_find(node, name);
    for (uint32_t i = 0; i < b->n; i++) {
        size_t n = strlen(b->name[i]);
        if (n != (size_t)(dot - name) || strncmp(b->name[i], name, n) != 0 || b->n_ids[i] == 0) continue;
        inv_id def = inv_val(g, b->id[i][0])->def;
        return def == INV_NONE ? NULL : inv_attr_find(inv_nod(g, def), dot + 1);
    }
    return NULL;
}

/* --- values of parameter expressions --- */

/* Of the expression, not of the way that led to it, so that the verdict does not depend on who asks first. */
enum { MAX_EVAL_HEIGHT = 64 };
/* Bytes of computed entries that are kept for the next question. */
enum { MAX_KEPT = 16 << 20 };

/* Room of so many bytes among the computed entries. */
static void *room(inv_matcher *m, size_t nbytes)
{
    void *bytes = inv__arena_alloc(&m->entries, nbytes + 64);
    if (bytes) m->nentries += nbytes;
    return bytes ? (void *)(((uintptr_t)bytes + 63) & ~(uintptr_t)63) : NULL;
}

/* Tensors of the node's values, `in` with their entries, `out` with room for them. */
static bool tensors_of(inv_matcher *m, const inv_node *n, inv_tensor *in, inv_tensor *out)
{
    for (uint32_t i = 0; i < n->nin; i++) {
        if (n->in[i] == INV_NONE) continue;
        const inv_value *a = inv_val(m->g, n->in[i]);
        const void *data = inv_known_bytes(m, n->in[i]);
        if (!data) return false;
        void *writable = NULL;
        memcpy(&writable, &data, sizeof data);
        in[i] = (inv_tensor){writable, a->dtype, a->shape, inv_shape_nelem(&a->shape)};
    }
    for (uint32_t k = 0; k < n->nout; k++) {
        if (n->out[k] == INV_NONE) continue;
        const inv_value *a = inv_val(m->g, n->out[k]);
        size_t nbytes = 0;
        if (!inv_shape_is_static(&a->shape) || !inv_shape_nbytes(&a->shape, a->dtype, &nbytes)) return false;
        out[k] = (inv_tensor){room(m, nbytes), a->dtype, a->shape, inv_shape_nelem(&a->shape)};
        if (!out[k].data) return false;
    }
    return true;
}

static void note_known(inv_matcher *m, inv_id v, const void *bytes)
{
    inv_known *k = &m->known[v];
    k->bytes = bytes;
    k->tried = inv_vec_push(&m->scratch, &m->tried, v);
}

/* All that the node gives becomes known at once: of a Split, each part. */
static bool run_node(inv_matcher *m, const inv_node *n)
{
    inv_tensor *t = INV_ARENA_NEW(&m->entries, inv_tensor, n->nin + n->nout + 1), *out = t + n->nin;
    if (!t || !tensors_of(m, n, t, out)) return false;
    if (n->op->flags & INV_OP_VIEW) {
        size_t nbytes = 0;
        if (!inv_shape_nbytes(&out[0].shape, out[0].dtype, &nbytes)) return false;
        memcpy(out[0].data, t[0].data, nbytes);
    } else {
        size_t ws = n->op->workspace ? n->op->workspace(m->g, n) : 0;
        inv_call call = {.node = n, .in = t, .out = out, .nin = n->nin, .nout = n->nout, .ws_nbytes = ws};
        call.ws = ws ? room(m, ws) : NULL;
        if ((ws && !call.ws) || !n->op->run || n->op->run(&call) != INV_OK) return false;
    }
    for (uint32_t k = 0; k < n->nout; k++)
        if (n->out[k] != INV_NONE && !m->known[n->out[k]].tried) note_known(m, n->out[k], out[k].data);
    return true;
}

static void compute(inv_matcher *m, inv_id v)
{
    const inv_value *val = inv_val(m->g, v);
    size_t nbytes = 0;
    if (m->height[v] > MAX_EVAL_HEIGHT || m->active[v]) return;
    if (val->role == INV_ROLE_NODE) {
        const inv_node *n = inv_nod(m->g, val->def);
        if (!(n->op->flags & (INV_OP_RANDOM | INV_OP_SOURCE))) (void)run_node(m, n);
        return;
    }
    if (val->role != INV_ROLE_PARAM && val->role != INV_ROLE_CONST) return;
    if (!val->data.bytes || !inv_shape_is_static(&val->shape) || !inv_shape_nbytes(&val->shape, val->dtype, &nbytes))
        return;
    void *bytes = room(m, nbytes);
    if (bytes && inv_convert(bytes, val->dtype, val->data.bytes, val->data.dtype, (size_t)inv_shape_nelem(&val->shape)))
        note_known(m, v, bytes);
}

/* Each is computed once, until it is forgotten: expressions may share operands, and one that cannot be had is asked for
 * again as well. */
const void *inv_known_bytes(inv_matcher *m, inv_id v)
{
    inv_known *k = &m->known[v];
    if (!k->tried) compute(m, v);
    if (!k->tried) note_known(m, v, NULL);
    return k->tried ? k->bytes : NULL;
}

void inv_known_forget(inv_matcher *m, size_t beyond)
{
    if (m->nentries <= beyond) return;
    m->scratch.failed = m->scratch.failed || m->entries.failed;
    inv__arena_fini(&m->entries);
    inv__arena_init(&m->entries, m->g->ctx);
    m->nentries = 0;
    for (size_t i = 0; i < m->tried.n; i++) {
        m->known[m->tried.at[i]].tried = false;
        m->known[m->tried.at[i]].bytes = NULL;
    }
    m->tried.n = 0;
}

bool inv_known_extremes(inv_matcher *m, inv_id s, inv_extremes *out)
{
    inv_known_forget(m, MAX_KEPT);
    const void *bytes = inv_known_bytes(m, s);
    if (!bytes) return false;
    const inv_value *val = inv_val(m->g, s);
    *out = (inv_extremes){INFINITY, INFINITY, -INFINITY, 0, 0};
    int64_t n = inv_shape_nelem(&val->shape);
    for (int64_t i = 0; i < n; i++) {
        double x = inv_elem_double(bytes, val->dtype, (size_t)i);
        if (!(x == x)) return false;
        if (fabs(x) < out->least_abs) {
            out->least_abs = fabs(x);
            out->at_abs = (size_t)i;
        }
        if (x < out->least) {
            out->least = x;
            out->at_least = (size_t)i;
        }
        out->most = fmax(out->most, x);
    }
    return true;
}

/* --- conditions --- */

/* Asked for by `when` and by `gain`, perhaps of several rules: computed once per value. Neither number depends on
 * which way the matrix is used. */
static inv_status condition_number(inv_matcher *m, inv_id w, const inv_node *node, double *cond, double *norm,
                                   bool *known)
{
    inv_matrix x;
    inv_known *k = &m->known[w];
    *known = inv_matrix_of(m, w, node, &x);
    if (*known && !k->measured) {
        inv_known_forget(m, MAX_KEPT);
        const inv_value *val = inv_val(m->g, w);
        bool stored = (val->role == INV_ROLE_PARAM || val->role == INV_ROLE_CONST) && val->data.bytes;
        x.block.bytes = stored ? val->data.bytes : inv_known_bytes(m, w);
        if (stored) x.block.dtype = val->data.dtype;
        *known = x.block.bytes != NULL;
    }
    if (!*known) return INV_OK;
    k->cond = k->measured ? k->cond : 1;
    for (int64_t g = 0; g < x.groups && !k->measured; g++) {
        double c, n;
        (void)inv_shape_nbytes(&x.block.shape, x.block.dtype, &x.block.nbytes);
        INV_TRY(inv__linear_condition(m->g->ctx, &x.block, x.trans, &c, &n));
        k->cond = fmax(k->cond, c);
        k->norm = fmax(k->norm, n);
        x.block.bytes = (const char *)x.block.bytes + x.block.nbytes;
    }
    k->measured = true;
    *cond = k->cond;
    *norm = k->norm;
    return INV_OK;
}

double inv_known_cond(const inv_matcher *m, const inv_binding *b)
{
    for (uint32_t i = 0; i < b->n; i++)
        if (b->n_ids[i] == 1 && b->id[i][0] < m->nvalue && m->known[b->id[i][0]].measured)
            return m->known[b->id[i][0]].cond;
    return 0;
}

/* Of what depends on inputs no entry is known, but perhaps bounds. */
static inv_status on_range(inv_matcher *m, const inv_condition *c, inv_id a, bool *holds, const char **reason)
{
    inv_range r = inv_value_range(m, a);
    if (strcmp(c->name, "odd") == 0) return INV_OK;
    bool positive = strcmp(c->name, "positive") == 0;
    *holds = positive ? r.lo > 0 || (r.lo == 0 && r.above) : r.lo > c->number || r.hi < -c->number;
    if (*holds) return INV_OK;
    const inv_value *val = inv_val(m->g, a);
    const char *by = val->def == INV_NONE ? "the caller" : inv_node_kind(inv_nod(m->g, val->def));
    inv_arena *to = &m->g->arena;
    if (!positive)
        *reason = inv__arena_printf(to, "'%s', given by %s, may come as near to zero as %.3g", val->name, by,
                                    fmax(0, fmax(r.lo, -r.hi)));
    else if (isinf(r.lo)) *reason = inv__arena_printf(to, "'%s', given by %s, may be zero or negative", val->name, by);
    else *reason = inv__arena_printf(to, "'%s', given by %s, may be as small as %.3g", val->name, by, r.lo);
    return *reason ? INV_OK : INV_E_NOMEM;
}

/* op(W)[i,j] of the right operand of a product, MatMulT or an outer one by Mul; NAN if not known. */
static double factor_at(inv_matcher *m, const inv_node *n, int64_t i, int64_t j)
{
    inv_id w = n->in[1];
    const inv_value *v = inv_val(m->g, w);
    if (inv_attr_int(n, "transB", 0)) {
        const int64_t t = i;
        i = j, j = t;
    }
    const void *bytes = inv_known_bytes(m, w);
    const int64_t width = v->shape.rank ? v->shape.dim[v->shape.rank - 1] : 1;
    return bytes ? inv_elem_double(bytes, v->dtype, (size_t)(i * width + j)) : (double)NAN;
}

/* d = x U, o = d V: whether x - o is a reflection at right angles, so that doing it twice gives x and magnifies
 * nothing: V U = 2, and U V is no larger than twice a projection. */
static inv_status reflects(inv_matcher *m, inv_id d, inv_id o, bool *holds, const char **reason)
{
    inv_graph *g = m->g;
    const inv_node *first = inv_nod(g, inv_val(g, d)->def), *then = inv_nod(g, inv_val(g, o)->def);
    const inv_shape *x = &inv_val(g, first->in[0])->shape, *k = &inv_val(g, d)->shape;
    const int64_t n = x->rank ? x->dim[x->rank - 1] : 0, inner = k->rank ? k->dim[k->rank - 1] : 0;
    const inv_shape *v = &inv_val(g, then->in[1])->shape;
    const bool outer = strcmp(then->op->name, "Mul") == 0; /* then V is a row, which d is spread along */
    double off = 0, size = 0;
    inv_known_forget(m, MAX_KEPT);
    *holds = false;
    if (inv_val(g, first->in[1])->shape.rank != 2 || inv_shape_nelem(v) != n * inner ||
        !inv_shape_equal(x, &inv_val(g, o)->shape) || (outer && (inner != 1 || v->dim[v->rank - 1] != n)))
        return INV_OK;
    for (int64_t r = 0; r < inner; r++)
        for (int64_t c = 0; c < inner; c++) {
            double vu = r == c ? -2 : 0, uu = 0, vv = 0;
            for (int64_t i = 0; i < n; i++) {
                vu += factor_at(m, then, r, i) * factor_at(m, first, i, c);
                uu += factor_at(m, first, i, r) * factor_at(m, first, i, c);
                vv += factor_at(m, then, r, i) * factor_at(m, then, c, i);
            }
            if (!(fabs(vu) <= off)) off = fabs(vu);
            size += uu * vv;
        }
    *holds = off < 1e-5 && size < 4 * (double)inner * (1 + 1e-5);
    if (!*holds)
        *reason = !(off < INFINITY) ? "its factors are not known before the run"
                  : off < 1e-5      ? "it is a reflection, but not at right angles"
                                    : "done twice, it does not give back what it was done to";
    return INV_OK;
}

/* Entry of v, which broadcasts against `like`, at element e of that. */
static double entry_at(const inv_value *v, const void *bytes, const inv_shape *like, int64_t e)
{
    return inv_elem_double(bytes, v->dtype, (size_t)inv_shape_element(&v->shape, like, e));
}

/* Masks: whether b is 0 or 1 everywhere, and c is what is missing to 1. */
static bool complementary(inv_matcher *m, inv_id b, inv_id c, const char **reason)
{
    const inv_value *vb = inv_val(m->g, b), *vc = inv_val(m->g, c);
    const inv_shape *s = inv_shape_nelem(&vb->shape) > inv_shape_nelem(&vc->shape) ? &vb->shape : &vc->shape;
    inv_known_forget(m, MAX_KEPT);
    const void *one = inv_known_bytes(m, b), *two = inv_known_bytes(m, c);
    bool holds = one && two && vb->shape.rank <= s->rank && vc->shape.rank <= s->rank;
    if (!one || !two) *reason = "its masks are not known before the run";
    for (int64_t e = 0; e < inv_shape_nelem(s) && holds; e++) {
        double x = entry_at(vb, one, s, e);
        holds = (x == 0 || x == 1) && entry_at(vc, two, s, e) == 1 - x;
    }
    return holds;
}

static inv_status on_values(inv_matcher *m, const inv_condition *c, const inv_binding *b, const inv_node *node,
                            bool *holds, const char **reason)
{
    inv_graph *g = m->g;
    inv_id a = inv_binding_get(b, c->arg[0]);
    *holds = false;
    if (a == INV_NONE) return INV_OK;
    double cond, norm;
    bool known;
    inv_extremes x;
    if (strcmp(c->name, "reflects") == 0) return reflects(m, a, inv_binding_get(b, c->arg[1]), holds, reason);
    if (strcmp(c->name, "complementary") == 0) {
        *holds = complementary(m, a, inv_binding_get(b, c->arg[1]), reason);
        return INV_OK;
    }
    if (strcmp(c->name, "cond") == 0) {
        INV_TRY(condition_number(m, a, node, &cond, &norm, &known));
        *holds = known && cond < c->bound;
        if (!*holds)
            *reason = known ? inv__arena_printf(&g->arena, "'%s' has condition number %.3g, the limit is %.3g",
                                                inv_val(g, a)->name, cond, c->bound)
                            : "its matrix is not known before the run";
        return *reason || *holds ? INV_OK : INV_E_NOMEM;
    }
    if (m->active[a]) return on_range(m, c, a, holds, reason);
    if (!inv_known_extremes(m, a, &x)) {
        *reason = "its factor is not known before the run";
        return INV_OK;
    }
    if (strcmp(c->name, "odd") == 0) {
        *holds = x.least == x.most && x.least > 0 && fmod(x.least, 2) == 1;
        return INV_OK;
    }
    bool positive = strcmp(c->name, "positive") == 0;
    *holds = positive ? x.least > 0 : x.least_abs > c->number;
    if (!*holds && positive)
        *reason = inv__arena_printf(&g->arena, "'%s' is %.3g in entry %zu, which is not above zero",
                                    inv_val(g, a)->name, x.least, x.at_least);
    else if (!*holds)
        *reason = inv__arena_printf(&g->arena, "'%s' comes as near to zero as %.3g, in entry %zu", inv_val(g, a)->name,
                                    x.least_abs, x.at_abs);
    return *reason || *holds ? INV_OK : INV_E_NOMEM;
}

inv_status inv_rule_when(inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_node *node,
                         inv_verdict *verdict, inv_why *why)
{
    const char *p = rule->def->when ? rule->def->when : "";
    inv_condition c;
    *verdict = INV_HOLDS;
    *why = (inv_why){0};
    /* All shapes that do not fit are named; values are looked at only where shapes do. */
    while (*verdict != INV_REFUSED && inv__condition_next(&p, INV_IN_WHEN, &c) > 0) {
        bool known;
        const char *reason = NULL;
        if (strcmp(c.name, "recoverable") == 0) continue; /* part of the region's search */
        bool holds = inv_condition_on_shapes(m, &c, b, node, &known);
        if (!known && *verdict == INV_UNFIT) continue;
        if (!known) INV_TRY(on_values(m, &c, b, node, &holds, &reason));
        if (holds) continue;
        *verdict = known || !reason ? INV_UNFIT : INV_REFUSED;
        INV_TRY(inv_excuse_condition(m, rule, &c, b, node, reason, why));
    }
    return INV_OK;
}

/* Of a factor that is computed from inputs only bounds are known, which no tensor reaches in all its entries, block
 * after block: the geometric mean of the gains at the two bounds is expected, and the guard measures. */
static double expected_gain(inv_range r, bool inverse)
{
    double most = fmax(fabs(r.lo), fabs(r.hi)), least = r.lo > 0 ? r.lo : r.hi < 0 ? -r.hi : 0;
    if (least > 0 && isfinite(most)) return inverse ? 1 / sqrt(least * most) : sqrt(least * most);
    return inverse ? 1 / least : most;
}

/* max sqrt(var + epsilon) / |s|, entry by entry: what undoing a normalization by known statistics magnifies. */
static double most_spread(inv_matcher *m, inv_id var, inv_id s, const inv_node *node)
{
    inv_known_forget(m, MAX_KEPT);
    const void *v = inv_known_bytes(m, var), *f = inv_known_bytes(m, s);
    int64_t n = inv_shape_nelem(&inv_val(m->g, s)->shape);
    double most = 0;
    if (!v || !f || inv_shape_nelem(&inv_val(m->g, var)->shape) != n) return INFINITY;
    for (int64_t i = 0; i < n; i++) {
        double spread = inv_elem_double(v, inv_val(m->g, var)->dtype, (size_t)i);
        spread += inv_attr_float(node, "epsilon", 1e-5);
        most = fmax(most, sqrt(spread) / fabs(inv_elem_double(f, inv_val(m->g, s)->dtype, (size_t)i)));
    }
    return most;
}

inv_status inv_rule_gain(inv_matcher *m, const inv_rule *rule, const inv_binding *b, const inv_node *node, double *gain,
                         double *bound)
{
    const char *p = rule->def->gain;
    inv_condition c;
    double cond, norm;
    bool known;
    inv_extremes x;
    *gain = *bound = 1;
    if (!p) return INV_OK;
    *gain = *bound = INFINITY;
    if (inv__condition_next(&p, INV_IN_GAIN, &c) <= 0 || strcmp(c.name, "unbounded") == 0) return INV_OK;
    if (strcmp(c.name, "inv_attr") == 0) {
        const inv_attr *at = inv_rule_attr(m->g, b, node, c.arg[0]);
        double a = fabs(at && at->kind == INV_ATTR_FLOAT ? at->f : c.number);
        *gain = *bound = a >= 1 ? 1 : 1 / a;
        return INV_OK;
    }
    if (strcmp(c.name, "times") == 0) {
        *gain = *bound = c.number;
        return INV_OK;
    }
    inv_id v = inv_binding_get(b, c.arg[0]);
    if (v == INV_NONE) return INV_OK;
    if (strcmp(c.name, "inv_norm") == 0 || strcmp(c.name, "norm") == 0) {
        INV_TRY(condition_number(m, v, node, &cond, &norm, &known));
        if (known) *gain = *bound = c.name[0] == 'i' ? norm : cond / norm;
        return INV_OK;
    }
    inv_range r = inv_value_range(m, v);
    bool inverse = strstr(c.name, "_inv") != NULL, given = !m->active[v] && inv_known_extremes(m, v, &x);
    if (given && inverse) *bound = 1 / x.least_abs;
    else if (!inverse) *bound = fmax(fabs(r.lo), fabs(r.hi));
    else if (r.lo > 0 || r.hi < 0) *bound = r.lo > 0 ? 1 / r.lo : -1 / r.hi;
    if (!given && strncmp(c.name, "expected", 8) == 0 && !(r.lo > 0 && r.hi < INFINITY)) r = inv_value_typical(m, v);
    *gain = given ? *bound : expected_gain(r, inverse);
    if (*gain < 1 && !inverse) *gain = 1; /* rounding stays */
    if (*bound < 1 && !inverse) *bound = 1;
    const inv_id var = inverse && c.nargs == 2 ? inv_binding_get(b, c.arg[1]) : INV_NONE;
    if (var != INV_NONE && !m->active[var]) *bound = most_spread(m, var, v, node);
    return INV_OK;
}
