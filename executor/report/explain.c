/* SPDX-License-Identifier: Apache-2.0
 * Why: which blocks were matched and what they free, why others were refused, why values are stored; and the graph that
 * all of this is about, with the operators as the model's file calls them. */
#include <math.h>
#include <string.h>

#include "core/graph/node.h"
#include "executor/report/report.h"

static const char *const choice_names[INV_CHOICES] = {"stored", "recomputed", "inverted", "offloaded"};

static json_t *origins(const inv_graph *g, const inv_id *node, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++) {
        const inv_node *x = inv_nod(g, node[i]);
        for (uint32_t k = 0; k < x->norigin; k++) {
            bool listed = false; /* one ONNX node may have become several */
            for (size_t j = 0; j < json_array_size(list) && !listed; j++)
                listed = strcmp(json_string_value(json_array_get(list, j)), x->origin[k]) == 0;
            if (!listed) (void)json_array_append_new(list, json_string(x->origin[k]));
        }
    }
    return list;
}

static json_t *value_names_json(const inv_graph *g, const inv_id *v, uint32_t n)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++)
        if (v[i] != INV_NONE) (void)json_array_append_new(list, json_string(inv_val(g, v[i])->name));
    return list;
}

/* --- operators as the file calls them --- */

/* By inv_node.source. */
typedef struct file_ops {
    inv_context *ctx;
    const char **op;
    size_t n;
} file_ops;

static void note_ops(file_ops *f, const inv_graph *g)
{
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        if (n->source != INV_NONE && n->source < f->n) f->op[n->source] = n->op_type;
    }
}

static size_t count_ops(const inv_graph *g)
{
    size_t n = g->order.n;
    for (size_t i = 0; i < g->function.n; i++) n += g->function.at[i].body->order.n;
    return n;
}

static bool open_ops(file_ops *f, const inv_program *pr)
{
    *f = (file_ops){.ctx = pr->ctx, .n = count_ops(pr->source)};
    f->op = inv_alloc(pr->ctx, (f->n + 1) * sizeof *f->op);
    if (!f->op) return false;
    note_ops(f, pr->source);
    for (size_t i = 0; i < pr->source->function.n; i++) note_ops(f, pr->source->function.at[i].body);
    return true;
}

static const char *op_of(const file_ops *f, const inv_node *n)
{
    const char *op = n->source != INV_NONE && n->source < f->n && n->norigin ? f->op[n->source] : NULL;
    return op ? op : n->op_type;
}

/* --- blocks --- */

json_t *inv_report_block(const inv_graph *g, const inv_block *b)
{
    return json_pack("{s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o}", "kind", b->kind, "name",
                     inv_node_label(inv_nod(g, b->root)), "rule", b->rule->name, "nodes", origins(g, b->node, b->nnode),
                     "inputs", value_names_json(g, b->in, b->nin), "outputs", value_names_json(g, b->out, b->nout),
                     "frees", value_names_json(g, b->in, b->nrule_in ? 1 : 0), "gain", inv_report_number(b->gain),
                     "bound", inv_report_number(b->bound));
}

/* The relative error that inverting the block adds before its gain magnifies it: that of the edge that does so. `head`,
 * `next`: the edges by the node that they invert, counted from 1. */
static double rounding(const inv_graph *g, const inv_block *b, const uint32_t *head, const uint32_t *next)
{
    for (uint32_t i = head[b->root]; i; i = next[i - 1])
        if (inv_edge_of_block(&g->matches->edge.at[i - 1], b)) return inv_edge_rounding(g, &g->matches->edge.at[i - 1]);
    return 0; /* there is no way, and no gain either */
}

void inv_report_blocks(inv_json *w, const inv_program *pr, const inv_graph *g)
{
    const size_t nedge = g->matches ? g->matches->edge.n : 0;
    uint32_t *head = inv_alloc(pr->ctx, (g->node.n + nedge + 1) * sizeof *head), *next = head ? head + g->node.n : NULL;
    for (size_t i = head ? nedge : 0; i-- > 0;) {
        uint32_t *first = &head[g->matches->edge.at[i].forward];
        next[i] = *first;
        *first = (uint32_t)i + 1;
    }
    if (!head) w->text.failed = true;
    inv_json_open(w, "blocks", '[');
    for (size_t i = 0; head && g->matches && i < g->matches->block.n; i++) {
        const inv_block *b = &g->matches->block.at[i];
        json_t *row = inv_report_block(g, b);
        if (!row) continue;
        (void)json_object_set_new(row, "usable", json_boolean(b->gain * rounding(g, b, head, next) <= pr->max_drift));
        inv_json_tree(w, NULL, row);
    }
    inv_json_close(w, ']');
    inv_dealloc(pr->ctx, head);
}

static json_t *refusal(const file_ops *ops, const inv_graph *g, const inv_refusal *r)
{
    const inv_node *n = inv_nod(g, r->node);
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:s, s:s?, s:s?, s:s?, s:s?}", "kind", r->kind, "rule", r->rule->name,
                     "node", inv_node_label(n), "op", op_of(ops, n), "nodes", origins(g, &r->node, 1), "reason",
                     r->why.reason, "value", r->value == INV_NONE ? NULL : inv_val(g, r->value)->name, "condition",
                     r->why.condition, "seen", r->why.seen, "remedy", r->why.remedy);
}

json_t *inv_report_refusals(const inv_program *pr, const inv_graph *g)
{
    file_ops ops;
    if (!open_ops(&ops, pr)) return NULL;
    json_t *list = json_array();
    for (size_t i = 0; g->matches && i < g->matches->refusal.n; i++)
        (void)json_array_append_new(list, refusal(&ops, g, &g->matches->refusal.at[i]));
    inv_dealloc(pr->ctx, ops.op);
    return list;
}

void inv_report_refused(inv_json *w, const inv_program *pr, const inv_graph *g)
{
    file_ops ops;
    if (!open_ops(&ops, pr)) w->text.failed = true;
    inv_json_open(w, "refusals", '[');
    for (size_t i = 0; ops.op && g->matches && i < g->matches->refusal.n; i++) {
        json_t *row = refusal(&ops, g, &g->matches->refusal.at[i]);
        if (row) inv_json_tree(w, NULL, row);
    }
    inv_json_close(w, ']');
    inv_dealloc(pr->ctx, ops.op);
}

/* --- choices --- */

/* clang-format off */
static const char *const stored_names[] = {
    [INV_STORED_NOT] = "",        [INV_STORED_ALL] = "all",     [INV_STORED_RESULT] = "result",
    [INV_STORED_ASKED] = "asked", [INV_STORED_GUARD] = "guard", [INV_STORED_PROOF] = "proof",
    [INV_STORED_ONCE] = "once",   [INV_STORED_INPUT] = "input", [INV_STORED_BASE] = "base",
    [INV_STORED_CHEAPER] = "cheaper"};
/* clang-format on */
static const char *const stored_texts[] = {
    [INV_STORED_NOT] = "",
    [INV_STORED_ALL] = "everything is stored",
    [INV_STORED_RESULT] = "the caller reads it, so it is there",
    [INV_STORED_ASKED] = "{keep}, {modes} or {memory} asks for it",
    [INV_STORED_GUARD] = "the guard has refused its reconstruction",
    [INV_STORED_PROOF] = "a plan without it was found to be wrong before it was used",
    [INV_STORED_ONCE] = "its operator is never run twice",
    [INV_STORED_INPUT] = "it is the caller's: not computed, so it would be copied again",
    [INV_STORED_BASE] = "others are rebuilt from it",
    [INV_STORED_CHEAPER] = "computing it again would take more arithmetic than storing it is worth"};
static const char *const way_names[] = {[INV_WAY_NONE] = "none",
                                        [INV_WAY_OFF] = "off",
                                        [INV_WAY_UNBOUNDED] = "unbounded",
                                        [INV_WAY_INEXACT] = "inexact",
                                        [INV_WAY_OPEN] = "open"};
static const char *const way_texts[] = {
    [INV_WAY_NONE] = "no inverse rule gives it back",
    [INV_WAY_OFF] = "this plan uses no inverses for it",
    [INV_WAY_UNBOUNDED] = "its inverse magnifies errors without bound",
    [INV_WAY_INEXACT] = "its inverse would be off by more than {max_drift} allows",
    [INV_WAY_OPEN] = "its inverse costs more than storing it saves, or needs values that are not available"};
_Static_assert(sizeof stored_texts / sizeof *stored_texts == INV_STORED_WHYS, "every reason has words");
_Static_assert(sizeof way_texts / sizeof *way_texts == INV_WAYS, "every way has words");

/* "its inverse (rule leaky_relu) ...; computing it again ..." */
static json_t *reason_of(const inv_plan *p, const inv_choice_row *c)
{
    const inv_context *ctx = p->g->ctx;
    if (c->stored == INV_STORED_ALL)
        return inv_report_words(ctx, p->memory == INV_MEMORY_STORE ? "everything is stored, as {memory} store says"
                                                                   : "everything is stored: no other plan needs less");
    if (c->stored != INV_STORED_CHEAPER && c->stored != INV_STORED_BASE)
        return inv_report_words(ctx, stored_texts[c->stored]);
    const char *rule = c->rule ? c->rule : "";
    char way[256];
    return json_sprintf("%s%s%s%s; %s", inv_spell(ctx, way_texts[c->way], way, sizeof way), *rule ? " (rule " : "",
                        rule, *rule ? ")" : "", stored_texts[c->stored]);
}

json_t *inv_report_counts(const inv_plan *p)
{
    json_t *counts = json_object();
    json_int_t n[INV_CHOICES] = {0};
    for (size_t i = 0; i < p->choice.n; i++) n[p->choice.at[i].choice]++;
    for (int k = 0; k < INV_CHOICES; k++) (void)json_object_set_new(counts, choice_names[k], json_integer(n[k]));
    return counts;
}

void inv_report_choices(inv_json *w, const inv_plan *p)
{
    inv_json_open(w, "choices", '[');
    for (size_t i = 0; i < p->choice.n; i++) {
        const inv_choice_row *c = &p->choice.at[i];
        const inv_value *v = inv_val(p->base, c->value);
        if (!inv_json_is_text(v->name) || !inv_json_is_text(c->by)) continue;
        inv_json_open(w, NULL, '{');
        inv_json_string(w, "value", v->name);
        inv_json_integer(w, "bytes", (int64_t)inv_value_nbytes(v));
        inv_json_string(w, "choice", choice_names[c->choice]);
        inv_json_string(w, "by", c->by);
        if (c->choice == INV_STORED) {
            inv_json_string(w, "why", stored_names[c->stored]);
            inv_json_string(w, "inverse", way_names[c->way]);
            inv_json_string(w, "rule", c->rule);
            inv_json_tree(w, "reason", reason_of(p, c));
        }
        inv_json_close(w, '}');
    }
    inv_json_close(w, ']');
}

/* --- the graph --- */

/* Into which blocks each node belongs, by their numbers in the list: "in" of every row. `row`: by node. */
static void add_blocks(const inv_graph *g, json_t *const *row)
{
    for (size_t i = 0; g->matches && i < g->matches->block.n; i++) {
        const inv_block *b = &g->matches->block.at[i];
        for (uint32_t k = 0; k < b->nnode; k++)
            (void)json_array_append_new(json_object_get(row[b->node[k]], "in"), json_integer((json_int_t)i));
    }
}

static json_t *node_list(const inv_program *pr, const inv_graph *g, size_t end)
{
    file_ops ops;
    json_t *list = json_array(), **row = inv_alloc(pr->ctx, (g->node.n + 1) * sizeof(json_t *));
    open_ops(&ops, pr);
    for (size_t i = 0; row && i < end; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        row[g->order.at[i]] = json_pack(
            "{s:s, s:s, s:s, s:o, s:o, s:[]}", "name", inv_node_label(n), "op", op_of(&ops, n), "computes", n->op->name,
            "inputs", value_names_json(g, n->in, n->nin), "outputs", value_names_json(g, n->out, n->nout), "in");
        (void)json_array_append_new(list, row[g->order.at[i]]);
    }
    if (row) add_blocks(g, row);
    inv_dealloc(pr->ctx, row);
    inv_dealloc(pr->ctx, ops.op);
    return list;
}

static json_t *value_list(const inv_graph *g, size_t end)
{
    json_t *list = json_array();
    for (size_t i = 0; i < end; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nout; k++) {
            if (n->out[k] == INV_NONE) continue;
            const inv_value *v = inv_val(g, n->out[k]);
            char shape[INV_SHAPE_TEXT];
            json_t *type = json_sprintf("%s%s", inv_dtype_name(v->dtype), inv_shape_text(&v->shape, shape));
            (void)json_array_append_new(list, json_pack("{s:s, s:o, s:I, s:b, s:b}", "name", v->name, "type", type,
                                                        "bytes", (json_int_t)inv_value_nbytes(v), "input",
                                                        (n->op->flags & INV_OP_SOURCE) != 0, "output", v->is_output));
        }
    }
    return list;
}

static json_t *inverse_list(const inv_graph *g)
{
    json_t *list = json_array();
    for (size_t i = 0; g->matches && i < g->matches->edge.n; i++) {
        const inv_edge *e = &g->matches->edge.at[i];
        (void)json_array_append_new(list,
                                    json_pack("{s:s, s:s, s:s, s:o, s:o}", "value", inv_val(g, e->frees)->name, "rule",
                                              e->rule->name, "node", inv_node_label(inv_nod(g, e->forward)), "gain",
                                              inv_report_number(e->gain), "bound", inv_report_number(e->bound)));
    }
    return list;
}

inv_status inv_session_explain(inv_session *s, char **json)
{
    INV_OBJECT(s);
    INV_GIVEN(s->ctx, json);
    *json = NULL;
    INV_TRY(inv_session_whole(s));
    const inv_program *pr = s->program;
    const inv_plan *p = &pr->plan[INV_PLAN_MAIN];
    const inv_graph *g = p->base;
    const size_t end = g->forward_end ? g->forward_end : g->order.n;
    inv_json w;
    inv_json_begin(&w, s->ctx);
    inv_json_open(&w, NULL, '{');
    inv_report_blocks(&w, pr, g);
    inv_report_refused(&w, pr, g);
    inv_report_choices(&w, p);
    inv_json_tree(&w, "values", inv_report_counts(p));
    inv_json_tree(&w, "inverses", inverse_list(g));
    inv_json_tree(&w, "nodes", node_list(pr, g, end));
    inv_json_tree(&w, "tensors", value_list(g, end));
    inv_json_close(&w, '}');
    return inv_json_take(&w, json);
}
