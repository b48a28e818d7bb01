/* SPDX-License-Identifier: Apache-2.0
 * Statements of the text form: types, literals, attributes, operands. Used for graphs and for rules. */
#include <string.h>

#include "core/graph/text.h"

const char *const inv_attr_kinds[] = {
    "int", "float", "string", "ints", "floats", "strings", "tensor", "graph", "other", NULL,
};

inv_status inv_parse_name(inv_lexer *lx, const char *what, const char **out)
{
    if (lx->kind != INV_TOK_WORD && lx->kind != INV_TOK_STRING) return inv_lex_wanted(lx, what);
    *out = lx->text;
    return inv_lex_next(lx);
}

inv_status inv_at_type(const inv_lexer *lx, bool *yes)
{
    inv_dtype t;
    *yes = false;
    if (lx->kind != INV_TOK_WORD || !inv_dtype_parse(lx->text, &t)) return INV_OK;
    inv_lexer ahead = *lx;
    INV_TRY(inv_lex_next(&ahead));
    *yes = ahead.kind == INV_TOK_WORD || ahead.kind == INV_TOK_STRING || ahead.kind == '[' || ahead.kind == '{';
    return INV_OK;
}

static inv_status parse_dim(inv_lexer *lx, inv_shape *s, const char **dim_param)
{
    if (s->rank == INV_MAX_RANK)
        return inv_fail(lx->ctx, INV_E_PARSE, "line %d: more than %d dimensions", lx->line, INV_MAX_RANK);
    int64_t v;
    bool symbol = !inv_word_int(lx->text, &v) || lx->kind == INV_TOK_STRING;
    if (!symbol && v < 0) return inv_lex_wanted(lx, "dimension of 0 or more");
    s->dim[s->rank] = symbol ? -1 : v;
    if (dim_param) dim_param[s->rank] = symbol && strcmp(lx->text, "?") != 0 ? lx->text : NULL;
    s->rank++;
    return inv_lex_next(lx);
}

inv_status inv_parse_type(inv_lexer *lx, inv_data *out, const char **dim_param)
{
    bool more;
    *out = (inv_data){.shape = inv_shape_scalar()};
    if (!inv_dtype_parse(lx->text, &out->dtype)) return inv_lex_wanted(lx, "element type");
    INV_TRY(inv_lex_next(lx));
    INV_TRY(inv_lex_accept(lx, '[', &more));
    if (!more) return INV_OK;
    while (lx->kind == INV_TOK_WORD || lx->kind == INV_TOK_STRING) {
        if (strcmp(lx->text, "...") == 0) {
            out->shape = inv_shape_unknown();
            INV_TRY(inv_lex_next(lx));
            break;
        }
        INV_TRY(parse_dim(lx, &out->shape, dim_param));
        INV_TRY(inv_lex_accept(lx, ',', &more));
        if (!more) break;
    }
    return inv_lex_expect(lx, ']');
}

static bool store_number(const char *word, inv_dtype t, unsigned char *dst)
{
    int64_t i;
    double d;
    if (inv_word_int(word, &i)) return inv_convert(dst, t, &i, INV_I64, 1);
    return inv_word_double(word, &d) && inv_convert(dst, t, &d, INV_F64, 1);
}

inv_status inv_parse_literal(inv_lexer *lx, inv_data *io)
{
    INV_VEC(unsigned char) bytes = {0};
    size_t size = inv_dtype_size(io->dtype), count = 0;
    bool more = true;
    INV_TRY(inv_lex_expect(lx, '{'));
    if (lx->kind == INV_TOK_WORD && strcmp(lx->text, "...") == 0) {
        INV_TRY(inv_lex_next(lx));
        return inv_lex_expect(lx, '}');
    }
    while (more && lx->kind != '}') {
        unsigned char element[16];
        if (lx->kind != INV_TOK_WORD || size == 0 || !store_number(lx->text, io->dtype, element))
            return inv_lex_wanted(lx, "number of this type");
        for (size_t k = 0; k < size; k++)
            if (!inv_vec_push(lx->a, &bytes, element[k])) return INV_E_NOMEM;
        count++;
        INV_TRY(inv_lex_next(lx));
        INV_TRY(inv_lex_accept(lx, ',', &more));
    }
    INV_TRY(inv_lex_expect(lx, '}'));
    char text[INV_SHAPE_TEXT];
    if (!inv_shape_is_static(&io->shape) || (size_t)inv_shape_nelem(&io->shape) != count)
        return inv_fail(lx->ctx, INV_E_PARSE, "line %d: %zu numbers given for %s%s", lx->line, count,
                        inv_dtype_name(io->dtype), inv_shape_text(&io->shape, text));
    io->nbytes = count * size;
    io->bytes = bytes.at ? bytes.at : inv_arena_alloc(lx->a, 1);
    return io->bytes ? INV_OK : INV_E_NOMEM;
}

/* --- attributes --- */

static inv_status list_item(inv_lexer *lx, inv_attr *a, size_t cap, int64_t *ints, double *floats, const char **strings)
{
    inv_attr_kind kind;
    int64_t i = 0;
    double d = 0;
    if (lx->kind == INV_TOK_STRING) kind = INV_ATTR_STRINGS;
    else if (lx->kind == INV_TOK_WORD && inv_word_int(lx->text, &i)) kind = INV_ATTR_INTS, d = (double)i;
    else if (lx->kind == INV_TOK_WORD && inv_word_double(lx->text, &d)) kind = INV_ATTR_FLOATS;
    else return inv_lex_wanted(lx, "number or string");
    bool numbers = kind != INV_ATTR_STRINGS && a->kind != INV_ATTR_STRINGS;
    if (a->n && a->kind != kind && !numbers) return inv_lex_wanted(lx, "list of one kind");
    if (a->n == 0 || kind == INV_ATTR_FLOATS) a->kind = kind; /* one float makes them floats */
    if (a->n >= cap) return INV_E_INTERNAL;
    ints[a->n] = i;
    floats[a->n] = d;
    strings[a->n++] = lx->text;
    return inv_lex_next(lx);
}

/* Commas up to the bracket, plus one: enough room for the list. */
static size_t list_room(const char *p)
{
    size_t n = 2;
    for (; *p && *p != ']'; p++) {
        if (*p == ',') n++;
        if (*p == '"')
            for (p++; *p && *p != '"'; p++)
                if (*p == '\\' && p[1]) p++;
        if (!*p) break;
    }
    return n;
}

static inv_status parse_list(inv_lexer *lx, inv_attr *a)
{
    size_t cap = list_room(lx->p);
    int64_t *ints = INV_ARENA_NEW(lx->a, int64_t, cap);
    double *floats = INV_ARENA_NEW(lx->a, double, cap);
    const char **strings = INV_ARENA_NEW(lx->a, const char *, cap);
    if (!ints || !floats || !strings) return INV_E_NOMEM;
    bool more = true;
    a->kind = INV_ATTR_INTS;
    INV_TRY(inv_lex_expect(lx, '['));
    while (more && lx->kind != ']') {
        if (a->n >= cap) return inv_lex_wanted(lx, "']'");
        INV_TRY(list_item(lx, a, cap, ints, floats, strings));
        INV_TRY(inv_lex_accept(lx, ',', &more));
    }
    if (a->kind == INV_ATTR_INTS) a->ints = ints;
    if (a->kind == INV_ATTR_FLOATS) a->floats = floats;
    if (a->kind == INV_ATTR_STRINGS) a->strings = strings;
    return inv_lex_expect(lx, ']');
}

enum { LONGEST_CALL = 256 }; /* it is copied for each of its tokens */

/* `sizes(xs)`: kept as text. */
static inv_status parse_call(inv_lexer *lx, inv_attr *a)
{
    a->kind = INV_ATTR_OTHER;
    a->s = lx->text;
    INV_TRY(inv_lex_next(lx));
    if (lx->kind != '(') return INV_OK;
    for (int depth = 0;;) {
        bool part = lx->kind == INV_TOK_WORD || lx->kind == '(' || lx->kind == ')' || lx->kind == ',';
        if (!part || strlen(a->s) > LONGEST_CALL) return inv_lex_wanted(lx, "')'");
        if (lx->kind == '(') depth++;
        if (lx->kind == ')') depth--;
        a->s = inv_arena_printf(lx->a, "%s%s", a->s, lx->text);
        if (!a->s) return INV_E_NOMEM;
        INV_TRY(inv_lex_next(lx));
        if (depth == 0) return INV_OK;
    }
}

/* `@float:alpha`: inside a function body, an attribute of the call. */
static inv_status parse_ref(inv_lexer *lx, inv_attr *a)
{
    const char *colon = strchr(lx->text, ':');
    for (int k = 0; colon && inv_attr_kinds[k]; k++)
        if (strlen(inv_attr_kinds[k]) == (size_t)(colon - lx->text - 1) &&
            memcmp(inv_attr_kinds[k], lx->text + 1, (size_t)(colon - lx->text - 1)) == 0) {
            a->kind = (inv_attr_kind)k;
            a->ref = colon + 1;
            return inv_lex_next(lx);
        }
    return inv_lex_wanted(lx, "@kind:name");
}

static inv_status parse_attr_value(inv_lexer *lx, inv_attr *a)
{
    bool type;
    if (lx->kind == INV_TOK_STRING) {
        a->kind = INV_ATTR_STRING;
        a->s = lx->text;
        a->n = strlen(a->s);
        return inv_lex_next(lx);
    }
    if (lx->kind == '[') return parse_list(lx, a);
    if (lx->kind != INV_TOK_WORD) return inv_lex_wanted(lx, "value of an attribute");
    if (lx->text[0] == '@') return parse_ref(lx, a);
    if (inv_word_int(lx->text, &a->i)) {
        a->kind = INV_ATTR_INT;
        return inv_lex_next(lx);
    }
    if (strcmp(lx->text, "true") != 0 && strcmp(lx->text, "false") != 0 && inv_word_double(lx->text, &a->f)) {
        a->kind = INV_ATTR_FLOAT;
        return inv_lex_next(lx);
    }
    INV_TRY(inv_at_type(lx, &type));
    if (!type) return parse_call(lx, a);
    a->kind = INV_ATTR_TENSOR;
    INV_TRY(inv_parse_type(lx, &a->tensor, NULL));
    return inv_parse_literal(lx, &a->tensor);
}

static inv_status parse_attrs(inv_lexer *lx, inv_stmt *out)
{
    INV_VEC(inv_attr) attrs = {0};
    bool more;
    INV_TRY(inv_lex_accept(lx, '<', &more));
    if (!more) return INV_OK;
    while (more && lx->kind != '>') {
        inv_attr a = {.kind = INV_ATTR_OTHER};
        if (lx->kind == '*') {
            a.name = a.s = lx->text;
            INV_TRY(inv_lex_next(lx));
        } else {
            INV_TRY(inv_parse_name(lx, "name of an attribute", &a.name));
            INV_TRY(inv_lex_expect(lx, '='));
            INV_TRY(parse_attr_value(lx, &a));
        }
        if (!inv_vec_push(lx->a, &attrs, a)) return INV_E_NOMEM;
        INV_TRY(inv_lex_accept(lx, ',', &more));
    }
    out->attr = attrs.at;
    out->nattr = (uint32_t)attrs.n;
    return inv_lex_expect(lx, '>');
}

/* --- operands --- */

typedef struct {
    INV_VEC(const char *) name;
    INV_VEC(inv_data) type;
} operands;

static inv_status parse_operand(inv_lexer *lx, bool input, operands *out)
{
    const char *name = "";
    inv_data type = {.shape = inv_shape_unknown()};
    bool typed, literal = false;
    INV_TRY(inv_at_type(lx, &typed));
    if (typed) INV_TRY(inv_parse_type(lx, &type, NULL));
    if (lx->kind == INV_TOK_WORD && input && !typed) {
        inv_attr call; /* `param(W)` of a rule, or a plain name */
        INV_TRY(parse_call(lx, &call));
        name = call.s;
    } else if (lx->kind == INV_TOK_WORD || lx->kind == INV_TOK_STRING) INV_TRY(inv_parse_name(lx, "name", &name));
    else if (!typed && lx->kind != ',' && lx->kind != ')') return inv_lex_wanted(lx, "name of a value");
    if (input && typed) {
        INV_TRY(inv_lex_accept(lx, '=', &literal));
        if (lx->any_real && inv_dtype_is_float(type.dtype)) type.dtype = INV_F64;
        if (literal || lx->kind == '{') INV_TRY(inv_parse_literal(lx, &type));
    }
    return inv_vec_push(lx->a, &out->name, name) && inv_vec_push(lx->a, &out->type, type) ? INV_OK : INV_E_NOMEM;
}

static inv_status parse_inputs(inv_lexer *lx, inv_stmt *out)
{
    operands in = {0};
    bool more = true;
    INV_TRY(inv_lex_expect(lx, '('));
    while (more && (lx->kind != ')' || in.name.n)) {
        INV_TRY(parse_operand(lx, true, &in));
        INV_TRY(inv_lex_accept(lx, ',', &more));
    }
    out->in = in.name.at;
    out->in_type = in.type.at;
    out->nin = (uint32_t)in.name.n;
    return inv_lex_expect(lx, ')');
}

static inv_status parse_outputs(inv_lexer *lx, inv_stmt *out)
{
    operands names = {0};
    bool more = true;
    inv_lexer ahead = *lx;
    INV_TRY(inv_lex_next(&ahead));
    if ((lx->kind == INV_TOK_WORD || lx->kind == INV_TOK_STRING) && (ahead.kind == '(' || ahead.kind == '<'))
        return INV_OK;
    while (more) {
        INV_TRY(parse_operand(lx, false, &names));
        INV_TRY(inv_lex_accept(lx, ',', &more));
    }
    out->out = names.name.at;
    out->out_type = names.type.at;
    out->nout = (uint32_t)names.name.n;
    return inv_lex_expect(lx, '=');
}

inv_status inv_parse_stmt(inv_lexer *lx, inv_stmt *out)
{
    bool label;
    *out = (inv_stmt){.name = "", .domain = ""};
    INV_TRY(inv_lex_accept(lx, '[', &label));
    if (label) {
        INV_TRY(inv_parse_name(lx, "name of a node", &out->name));
        INV_TRY(inv_lex_expect(lx, ']'));
    }
    INV_TRY(parse_outputs(lx, out));
    INV_TRY(inv_parse_name(lx, "operator", &out->op));
    const char *dot = strrchr(out->op, '.');
    if (dot && dot != out->op && dot[1]) {
        out->domain = inv_arena_strndup(lx->a, out->op, (size_t)(dot - out->op));
        if (!out->domain) return INV_E_NOMEM;
        out->op = dot + 1;
    }
    INV_TRY(parse_attrs(lx, out));
    return parse_inputs(lx, out);
}

static inv_status parse_stmts(inv_context *ctx, inv_arena *a, const char *text, bool any_real, inv_stmts *out)
{
    inv_lexer lx;
    *out = (inv_stmts){0};
    INV_TRY(inv_lex_init(&lx, ctx, a, text));
    lx.any_real = any_real;
    while (lx.kind != INV_TOK_END) {
        inv_stmt s;
        INV_TRY(inv_parse_stmt(&lx, &s));
        if (!inv_vec_push(a, out, s)) return INV_E_NOMEM;
    }
    return INV_OK;
}

inv_status inv_text_stmts(inv_context *ctx, inv_arena *a, const char *text, inv_stmts *out)
{
    return parse_stmts(ctx, a, text, false, out);
}

inv_status inv_text_formulas(inv_context *ctx, inv_arena *a, const char *text, inv_stmts *out)
{
    return parse_stmts(ctx, a, text, true, out);
}

/* The operand is that value, or a call whose first argument it is, as count(x). */
static bool operand_reads(const char *operand, const char *name)
{
    const char *open = strchr(operand, '(');
    const size_t n = strlen(name);
    if (!open) return *name && strcmp(operand, name) == 0;
    return n > 0 && strncmp(open + 1, name, n) == 0 && (open[n + 1] == ',' || open[n + 1] == ')');
}

static bool stmt_reads(const inv_stmt *s, const inv_stmt *giver)
{
    for (uint32_t k = 0; k < s->nin; k++)
        for (uint32_t o = 0; o < giver->nout; o++)
            if (operand_reads(s->in[k], giver->out[o])) return true;
    return false;
}

inv_status inv_stmts_sort(inv_arena *a, inv_stmts *io)
{
    inv_stmt *sorted = INV_ARENA_NEW(a, inv_stmt, io->n + 1);
    bool *taken = INV_ARENA_NEW(a, bool, io->n + 1);
    if (!sorted || !taken) return INV_E_NOMEM;
    for (size_t n = 0; n < io->n; n++) {
        size_t next = io->n, left = io->n;
        for (size_t i = 0; i < io->n && next == io->n; i++) {
            if (taken[i]) continue;
            if (left == io->n) left = i;
            bool waits = false;
            for (size_t k = 0; k < io->n && !waits; k++) waits = !taken[k] && stmt_reads(&io->at[i], &io->at[k]);
            if (!waits) next = i;
        }
        if (next == io->n) next = left;
        taken[next] = true;
        sorted[n] = io->at[next];
    }
    io->at = sorted;
    io->cap = io->n;
    return INV_OK;
}
