/* SPDX-License-Identifier: Apache-2.0
 * Parser of graphs in text form (docs/text-form.md). Statements may stand in any order; types that are not
 * written stay unknown. */
#include <string.h>

#include "core/graph/ir_internal.h"
#include "core/graph/text.h"

typedef struct {
    inv_lexer lx;
    inv_graph *g;
    inv_arena scratch;
} parser;

static const char *const words[] = {INV_TEXT_WORDS};
static const inv_role word_roles[] = {INV_ROLE_INPUT, INV_ROLE_PARAM, INV_ROLE_CONST, INV_ROLE_OPTIM};

static inv_status keep_data(parser *p, inv_id v, const inv_data *d)
{
    inv_value *x = inv_val(p->g, v);
    x->data = *d;
    if (!d->bytes) return INV_OK;
    void *copy = inv_arena_alloc(&p->g->arena, d->nbytes);
    if (!copy) return INV_E_NOMEM;
    memcpy(copy, d->bytes, d->nbytes);
    x->data.bytes = copy;
    return INV_OK;
}

static inv_status keep_symbols(parser *p, inv_id v, const char *const *dim_param)
{
    inv_value *x = inv_val(p->g, v);
    bool any = false;
    for (int i = 0; i < x->shape.rank; i++) any |= dim_param[i] != NULL;
    if (!any) return INV_OK;
    const char **kept = INV_ARENA_NEW(&p->g->arena, const char *, (size_t)x->shape.rank);
    if (!kept) return INV_E_NOMEM;
    for (int i = 0; i < x->shape.rank; i++)
        if (dim_param[i] && !(kept[i] = inv_arena_strdup(&p->g->arena, dim_param[i]))) return INV_E_NOMEM;
    x->dim_param = kept;
    return INV_OK;
}

static inv_status declare(parser *p, inv_role role, inv_id *out)
{
    const char *name, *dim_param[INV_MAX_RANK] = {0};
    inv_data type = {.shape = inv_shape_unknown()};
    bool typed, literal = false;
    INV_TRY(inv_at_type(&p->lx, &typed));
    if (typed) INV_TRY(inv_parse_type(&p->lx, &type, dim_param));
    INV_TRY(inv_parse_name(&p->lx, "name of a value", &name));
    if (inv_graph_index_find(p->g, name) != INV_NONE)
        return inv_fail(p->lx.ctx, INV_E_PARSE, "line %d: '%s' is declared after its first use, or twice", p->lx.line,
                        name);
    *out = inv_graph_value(p->g, name, role, type.dtype, &type.shape);
    if (*out == INV_NONE) return p->g->failed;
    INV_TRY(keep_symbols(p, *out, dim_param));
    if (role != INV_ROLE_INPUT && role != INV_ROLE_NODE) INV_TRY(inv_lex_accept(&p->lx, '=', &literal));
    if (literal) INV_TRY(inv_parse_literal(&p->lx, &type));
    return role == INV_ROLE_INPUT || role == INV_ROLE_NODE ? INV_OK : keep_data(p, *out, &type);
}

static inv_status parse_declaration(parser *p, inv_role role)
{
    bool trainable = false, state = false, keep = false;
    inv_id v;
    for (; p->lx.kind == INV_TOK_WORD;) {
        bool *flag = strcmp(p->lx.text, "trainable") == 0 ? &trainable
                     : strcmp(p->lx.text, "state") == 0   ? &state
                     : strcmp(p->lx.text, "keep") == 0    ? &keep
                                                          : NULL;
        if (!flag) break;
        *flag = true;
        INV_TRY(inv_lex_next(&p->lx));
    }
    INV_TRY(declare(p, role, &v));
    inv_value *x = inv_val(p->g, v);
    x->trainable = trainable;
    x->state = state;
    x->keep = keep;
    if (role != INV_ROLE_PARAM) return INV_OK;
    x->init = (inv_id)p->g->inits.n;
    return inv_vec_push(&p->g->arena, &p->g->inits, v) ? INV_OK : INV_E_NOMEM;
}

/* A value by name; one that is not known yet is taken to be computed further down. */
static inv_status parse_operand(parser *p, const char *name, const inv_data *type, inv_id *out)
{
    *out = INV_NONE;
    if (!*name && !type->bytes) return INV_OK;
    *out = *name ? inv_graph_index_find(p->g, name) : INV_NONE;
    bool fresh = *out == INV_NONE;
    if (fresh) {
        if (!*name && !(name = inv_graph_fresh(p->g, "const"))) return p->g->failed;
        *out = inv_graph_value(p->g, name, type->bytes ? INV_ROLE_CONST : INV_ROLE_NODE, type->dtype, &type->shape);
        if (*out == INV_NONE) return p->g->failed;
    }
    inv_value *x = inv_val(p->g, *out);
    if (type->bytes && !fresh)
        return inv_fail(p->lx.ctx, INV_E_PARSE, "line %d: '%s' has numbers here, but is known already", p->lx.line,
                        name);
    if (type->bytes) return keep_data(p, *out, type);
    if (type->dtype != INV_DT_NONE && x->dtype == INV_DT_NONE) {
        x->dtype = type->dtype;
        x->shape = type->shape;
    }
    return INV_OK;
}

static inv_status parse_node(parser *p)
{
    inv_stmt s;
    p->g->phase = p->lx.phase;
    INV_TRY(inv_parse_stmt(&p->lx, &s));
    inv_id *in = INV_ARENA_NEW(&p->scratch, inv_id, s.nin), *out = INV_ARENA_NEW(&p->scratch, inv_id, s.nout);
    if (!in || !out) return INV_E_NOMEM;
    for (uint32_t i = 0; i < s.nin; i++) INV_TRY(parse_operand(p, s.in[i], &s.in_type[i], &in[i]));
    for (uint32_t i = 0; i < s.nout; i++) INV_TRY(parse_operand(p, s.out[i], &s.out_type[i], &out[i]));
    for (uint32_t i = 0; i < s.nattr; i++) {
        inv_attr *a = &s.attr[i];
        if (a->kind != INV_ATTR_TENSOR || !a->tensor.bytes) continue;
        void *copy = inv_arena_alloc(&p->g->arena, a->tensor.nbytes);
        if (!copy) return INV_E_NOMEM;
        memcpy(copy, a->tensor.bytes, a->tensor.nbytes);
        a->tensor.bytes = copy;
    }
    inv_id n = inv_graph_node(p->g, s.domain, s.op, s.name, s.nin, in, s.nout, out, s.nattr, s.attr);
    if (n == INV_NONE) return p->g->failed;
    return inv_vec_push(&p->g->arena, &p->g->order, n) ? INV_OK : INV_E_NOMEM;
}

static inv_status parse_item(parser *p)
{
    for (size_t k = 0; k < sizeof words / sizeof *words && p->lx.kind == INV_TOK_WORD; k++) {
        if (strcmp(p->lx.text, words[k]) != 0) continue;
        inv_lexer ahead = p->lx;
        INV_TRY(inv_lex_next(&ahead));
        if (ahead.kind != INV_TOK_WORD && ahead.kind != INV_TOK_STRING) break;
        p->lx = ahead;
        return parse_declaration(p, word_roles[k]);
    }
    return parse_node(p);
}

/* `<opset_import: ["" : 13, "custom" : 1]>` */
static inv_status parse_opsets(parser *p)
{
    inv_lexer *lx = &p->lx;
    bool more;
    INV_TRY(inv_lex_accept(lx, '<', &more));
    if (!more) return INV_OK;
    if (lx->kind != INV_TOK_WORD || strncmp(lx->text, "opset_import", 12) != 0)
        return inv_lex_wanted(lx, "opset_import");
    INV_TRY(inv_lex_next(lx));
    if (lx->kind == INV_TOK_WORD) INV_TRY(inv_lex_next(lx)); /* a colon that stands alone */
    INV_TRY(inv_lex_expect(lx, '['));
    while (more && lx->kind != ']') {
        inv_opset o = {0};
        INV_TRY(inv_parse_name(lx, "domain", &o.domain));
        if (lx->kind == INV_TOK_WORD && strcmp(lx->text, ":") == 0) INV_TRY(inv_lex_next(lx));
        const char *number = lx->text + (lx->text[0] == ':');
        if (lx->kind != INV_TOK_WORD || !inv_word_int(number, &o.version)) return inv_lex_wanted(lx, "version");
        INV_TRY(inv_lex_next(lx));
        o.domain = inv_arena_strdup(&p->g->arena, o.domain);
        if (!o.domain || !inv_vec_push(&p->g->arena, &p->g->opset, o)) return INV_E_NOMEM;
        INV_TRY(inv_lex_accept(lx, ',', &more));
    }
    INV_TRY(inv_lex_expect(lx, ']'));
    return inv_lex_expect(lx, '>');
}

static inv_status parse_inputs(parser *p)
{
    bool more = true;
    INV_TRY(inv_lex_expect(&p->lx, '('));
    while (more && p->lx.kind != ')') {
        inv_id v;
        INV_TRY(declare(p, INV_ROLE_INPUT, &v));
        if (!inv_vec_push(&p->g->arena, &p->g->inputs, v)) return INV_E_NOMEM;
        INV_TRY(inv_lex_accept(&p->lx, ',', &more));
    }
    return inv_lex_expect(&p->lx, ')');
}

typedef INV_VEC(const char *) names;

static inv_status parse_output_names(parser *p, names *out)
{
    bool more = true, typed;
    INV_TRY(inv_lex_expect(&p->lx, '('));
    while (more && p->lx.kind != ')') {
        const char *name;
        inv_data type;
        INV_TRY(inv_at_type(&p->lx, &typed));
        if (typed) INV_TRY(inv_parse_type(&p->lx, &type, NULL)); /* the statement's own type counts */
        INV_TRY(inv_parse_name(&p->lx, "name of an output", &name));
        if (!inv_vec_push(&p->scratch, out, name)) return INV_E_NOMEM;
        INV_TRY(inv_lex_accept(&p->lx, ',', &more));
    }
    return inv_lex_expect(&p->lx, ')');
}

static inv_status finish_parse(parser *p, const names *outputs)
{
    inv_graph *g = p->g;
    for (size_t i = 0; i < outputs->n; i++) {
        inv_id v = inv_graph_index_find(g, outputs->at[i]);
        if (v == INV_NONE)
            return inv_fail(p->lx.ctx, INV_E_PARSE, "output '%s' is computed by nothing", outputs->at[i]);
        inv_val(g, v)->is_output = true;
        if (!inv_vec_push(&g->arena, &g->outputs, v)) return INV_E_NOMEM;
    }
    for (size_t i = 0; i < g->value.n; i++)
        if (g->value.at[i].role == INV_ROLE_NODE && g->value.at[i].def == INV_NONE)
            return inv_fail(p->lx.ctx, INV_E_PARSE, "value '%s' is read, but nothing defines it", g->value.at[i].name);
    g->phase = INV_FORWARD;
    for (size_t i = g->order.n; i-- > 0;) {
        uint8_t phase = inv_nod(g, g->order.at[i])->phase;
        if (phase == INV_COMMIT) g->commit_begin = i;
        if (phase != INV_FORWARD) g->forward_end = i;
    }
    return INV_OK;
}

static inv_status parse_all(parser *p, const char *text)
{
    const char *name = "";
    names outputs = {0};
    INV_TRY(inv_graph_create(p->lx.ctx, "", &p->g));
    INV_TRY(inv_lex_init(&p->lx, p->lx.ctx, &p->scratch, text));
    INV_TRY(parse_opsets(p));
    if (p->lx.kind != '(') INV_TRY(inv_parse_name(&p->lx, "name of the graph", &name));
    if (!(p->g->name = inv_arena_strdup(&p->g->arena, name))) return INV_E_NOMEM;
    INV_TRY(parse_inputs(p));
    INV_TRY(inv_lex_expect(&p->lx, INV_TOK_ARROW));
    INV_TRY(parse_output_names(p, &outputs));
    INV_TRY(inv_lex_expect(&p->lx, '{'));
    while (p->lx.kind != '}') {
        if (p->lx.kind == INV_TOK_END) return inv_lex_wanted(&p->lx, "'}'");
        INV_TRY(parse_item(p));
    }
    INV_TRY(inv_lex_next(&p->lx));
    if (p->lx.kind != INV_TOK_END) return inv_lex_wanted(&p->lx, "end of the text");
    return finish_parse(p, &outputs);
}

inv_status inv_graph_parse(inv_context *ctx, const char *text, inv_graph **out)
{
    parser p = {.lx = {.ctx = ctx}};
    *out = NULL;
    inv_arena_init(&p.scratch, ctx);
    inv_status s = parse_all(&p, text);
    inv_arena_fini(&p.scratch);
    if (s == INV_OK) *out = p.g;
    else inv_graph_destroy(p.g);
    return s;
}
