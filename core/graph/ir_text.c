/* SPDX-License-Identifier: Apache-2.0
 * Printer of the text form (docs/text-form.md): what inv_graph_parse reads back to the same text. What a plan
 * adds (clones, offsets) stands in comments, which are not read. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/graph/ir_internal.h"
#include "core/graph/text.h"

#define OWN_DOMAIN "ai.invonnx.ir"
#define LITERAL_MAX 64 /* elements of a tensor that are written out */

static bool is_plain(const char *name)
{
    static const char *const reserved[] = {INV_TEXT_WORDS, INV_TEXT_FLAGS};
    inv_dtype t;
    size_t n = strlen(name);
    if (n == 0 || strchr("+-.:", *name) || inv_dtype_parse(name, &t)) return false;
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++)
        if (strcmp(name, reserved[i]) == 0) return false;
    for (size_t i = 0; i < n; i++)
        if (!inv_is_word_char(name[i]) || strchr("?@|", name[i])) return false;
    return n < 3 || strcmp(name + n - 3, "...") != 0;
}

static void print_quoted(inv_str *b, const char *s)
{
    inv_str_add(b, "\"");
    while (*s) {
        size_t n = 0;
        while (s[n] && s[n] != '"' && s[n] != '\\' && (unsigned char)s[n] >= 0x20 && s[n] != 0x7f) n++;
        if (n) inv_str_add(b, "%.*s", (int)n, s);
        s += n;
        if (!*s) break;
        if (*s == '"' || *s == '\\') inv_str_add(b, "\\%c", *s);
        else if (*s == '\n') inv_str_add(b, "\\n");
        else inv_str_add(b, "\\x%02x", (unsigned)(unsigned char)*s);
        s++;
    }
    inv_str_add(b, "\"");
}

void inv_print_name(inv_str *b, const char *name)
{
    if (is_plain(name)) inv_str_add(b, "%s", name);
    else print_quoted(b, name);
}

static void print_value_name(inv_str *b, const inv_graph *g, inv_id v)
{
    inv_print_name(b, v < g->value.n ? inv_val(g, v)->name : "");
}

/* Shortest text that gives back this float; buf as for inv_double_text. */
static const char *float_text(float f, char buf[INV_DOUBLE_TEXT])
{
    char *end;
    for (int digits = 1; digits <= 9 && isfinite(f); digits++) {
        snprintf(buf, INV_DOUBLE_TEXT, "%.*g", digits, (double)f);
        if (strtof(buf, &end) == f) { /* in the process's locale, as snprintf wrote it */
            for (char *p = buf; *p; p++)
                if (!((*p >= '0' && *p <= '9') || strchr("+-e", *p))) *p = '.';
            return buf;
        }
    }
    return inv_double_text((double)f, buf);
}

/* A number that reads back as a float attribute, never as an integer. */
static void print_float_attr(inv_str *b, double v)
{
    char exact[INV_DOUBLE_TEXT], shorter[INV_DOUBLE_TEXT];
    inv_double_text(v, exact);
    if (isnan(v)) snprintf(exact, sizeof exact, "nan");
    if (isfinite(v) && fabs(v) < 3e38 && (double)(float)v == v &&
        strlen(float_text((float)v, shorter)) + 1 < strlen(exact))
        inv_str_add(b, "%sf", shorter);
    else inv_str_add(b, "%s%s", exact, strpbrk(exact, ".en") ? "" : ".0");
}

static void print_literal(inv_str *b, const inv_data *d)
{
    size_t nbytes;
    bool fits = inv_shape_nbytes(&d->shape, d->dtype, &nbytes) && nbytes <= d->nbytes && inv_dtype_size(d->dtype) &&
                d->dtype != INV_C64 && d->dtype != INV_C128;
    if (!d->bytes || !fits || inv_shape_nelem(&d->shape) > LITERAL_MAX) {
        inv_str_add(b, "{...}");
        return;
    }
    inv_str_add(b, "{");
    for (size_t i = 0; i < (size_t)inv_shape_nelem(&d->shape); i++) {
        char text[INV_DOUBLE_TEXT];
        const char *sep = i ? ", " : "";
        double v = inv_elem_double(d->bytes, d->dtype, i);
        if (isnan(v)) inv_str_add(b, "%snan", sep);
        else if (d->dtype == INV_F64) inv_str_add(b, "%s%s", sep, inv_double_text(v, text));
        else if (inv_dtype_is_float(d->dtype)) inv_str_add(b, "%s%s", sep, float_text((float)v, text));
        else inv_str_add(b, "%s%lld", sep, (long long)inv_elem_int(d->bytes, d->dtype, i));
    }
    inv_str_add(b, "}");
}

static void print_type(inv_str *b, inv_dtype t, const inv_shape *s, const char *const *dim_param)
{
    inv_str_add(b, "%s[", inv_dtype_name(t));
    if (s->rank < 0) inv_str_add(b, "...");
    for (int i = 0; i < s->rank; i++) {
        if (i) inv_str_add(b, ",");
        int64_t number;
        if (s->dim[i] >= 0) inv_str_add(b, "%lld", (long long)s->dim[i]);
        else if (!dim_param || !dim_param[i] || !*dim_param[i]) inv_str_add(b, "?");
        else if (inv_word_int(dim_param[i], &number)) print_quoted(b, dim_param[i]);
        else inv_print_name(b, dim_param[i]);
    }
    inv_str_add(b, "]");
}

/* --- attributes --- */

static void print_list(inv_str *b, const inv_attr *a)
{
    inv_str_add(b, "[");
    for (size_t i = 0; i < a->n; i++) {
        if (i) inv_str_add(b, ", ");
        if (a->kind == INV_ATTR_INTS) inv_str_add(b, "%lld", (long long)a->ints[i]);
        else if (a->kind == INV_ATTR_FLOATS) print_float_attr(b, a->floats[i]);
        else print_quoted(b, a->strings[i]);
    }
    inv_str_add(b, "]");
}

static void print_attr(inv_str *b, const inv_attr *a)
{
    if (a->kind == INV_ATTR_OTHER && strcmp(a->name, "*") == 0) {
        inv_str_add(b, "*");
        return;
    }
    inv_print_name(b, a->name);
    inv_str_add(b, " = ");
    if (a->ref) {
        inv_str_add(b, "@%s:%s", inv_attr_kinds[a->kind], a->ref);
        return;
    }
    switch (a->kind) {
    case INV_ATTR_INT: inv_str_add(b, "%lld", (long long)a->i); break;
    case INV_ATTR_FLOAT: print_float_attr(b, a->f); break;
    case INV_ATTR_STRING: print_quoted(b, a->s); break;
    case INV_ATTR_INTS:
    case INV_ATTR_FLOATS:
    case INV_ATTR_STRINGS: print_list(b, a); break;
    case INV_ATTR_TENSOR:
        print_type(b, a->tensor.dtype, &a->tensor.shape, NULL);
        inv_str_add(b, " ");
        print_literal(b, &a->tensor);
        break;
    case INV_ATTR_GRAPH:
    case INV_ATTR_OTHER: inv_str_add(b, "%s", a->s && *a->s ? a->s : "?"); break;
    }
}

/* --- nodes --- */

/* Our own operators go unqualified unless ONNX has one of the same name. */
static bool needs_domain(const inv_graph *g, const inv_node *n)
{
    if (!*n->domain) return false;
    if (strcmp(n->domain, OWN_DOMAIN) != 0) return true;
    const inv_op_def *op = inv_registry_op(g->ctx->registry, "", n->op_type, inv_graph_opset(g, ""));
    return !op || strcmp(op->domain, OWN_DOMAIN) != 0;
}

/* The operator, and its attributes. */
void inv_print_op(inv_str *b, const inv_graph *g, const inv_node *n)
{
    inv_str name;
    inv_str_init(&name, g->ctx);
    inv_str_add(&name, "%s%s%s", needs_domain(g, n) ? n->domain : "", needs_domain(g, n) ? "." : "", n->op_type);
    b->failed |= name.failed;
    inv_print_name(b, name.s);
    inv_str_fini(&name);
    for (uint32_t i = 0; i < n->nattr; i++) {
        inv_str_add(b, "%s", i ? ", " : "<");
        print_attr(b, &n->attr[i]);
    }
    if (n->nattr) inv_str_add(b, ">");
}

static void print_notes(inv_str *b, const inv_graph *g, const inv_node *n)
{
    const struct {
        const char *what;
        inv_id node;
    } of[] = {{"clone of", n->clone_of}, {"solves", n->solves}};
    for (size_t i = 0; i < 2; i++) {
        if (of[i].node >= g->node.n) continue;
        const inv_node *o = inv_nod(g, of[i].node);
        inv_str_add(b, "  # %s ", of[i].what);
        if (*o->name) inv_print_name(b, o->name);
        else print_value_name(b, g, o->nout ? o->out[0] : INV_NONE);
    }
    if (g->arena_nbytes == 0 || n->nout == 0) return;
    inv_str_add(b, "  # at");
    for (uint32_t i = 0; i < n->nout; i++) {
        if (n->out[i] < g->value.n) inv_str_add(b, "%s %zu", i ? "," : "", inv_val(g, n->out[i])->offset);
        else inv_str_add(b, "%s -", i ? "," : "");
    }
}

void inv_print_node(inv_str *b, const inv_graph *g, const inv_node *n)
{
    inv_str_add(b, "  ");
    if (*n->name) {
        inv_str_add(b, "[");
        inv_print_name(b, n->name);
        inv_str_add(b, "] ");
    }
    for (uint32_t i = 0; i < n->nout; i++) {
        if (i) inv_str_add(b, ", ");
        const inv_value *v = n->out[i] < g->value.n ? inv_val(g, n->out[i]) : NULL;
        if (v && v->dtype != INV_DT_NONE) {
            print_type(b, v->dtype, &v->shape, NULL);
            inv_str_add(b, " ");
        }
        print_value_name(b, g, n->out[i]);
    }
    if (n->nout) inv_str_add(b, " = ");
    inv_print_op(b, g, n);
    inv_str_add(b, "(");
    for (uint32_t i = 0; i < n->nin; i++) {
        if (i) inv_str_add(b, ", ");
        print_value_name(b, g, n->in[i]);
    }
    inv_str_add(b, ")");
    print_notes(b, g, n);
    inv_str_add(b, "\n");
}

/* --- the graph --- */

static void print_declaration(inv_str *b, inv_id id, const inv_graph *g)
{
    static const char *const word[] = {
        [INV_ROLE_INPUT] = "input", [INV_ROLE_PARAM] = "param", [INV_ROLE_CONST] = "const", [INV_ROLE_OPTIM] = "optim"};
    const inv_value *v = inv_val(g, id);
    inv_str_add(b, "  %s %s%s%s", word[v->role], v->trainable ? "trainable " : "", v->state ? "state " : "",
                v->keep ? "keep " : "");
    if (v->dtype != INV_DT_NONE) {
        print_type(b, v->dtype, &v->shape, v->dim_param);
        inv_str_add(b, " ");
    }
    inv_print_name(b, v->name);
    /* weights are the file's; only what may decide shapes is written out */
    if (v->role == INV_ROLE_CONST || (v->role == INV_ROLE_PARAM && v->data.bytes && !inv_dtype_is_float(v->dtype))) {
        inv_str_add(b, " = ");
        print_literal(b, &v->data);
    }
    if (v->whole != INV_NONE) {
        inv_str_add(b, "  # of ");
        print_value_name(b, g, v->whole);
        inv_str_add(b, " from element %lld on", (long long)v->first);
    }
    inv_str_add(b, "\n");
}

static inv_status print_declarations(inv_str *b, const inv_graph *g)
{
    inv_arena scratch;
    inv_arena_init(&scratch, g->ctx);
    uint8_t *want = INV_ARENA_NEW(&scratch, uint8_t, g->value.n);
    if (!want) {
        inv_arena_fini(&scratch);
        return INV_E_NOMEM;
    }
    for (size_t i = 0; i < g->order.n; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        for (uint32_t k = 0; k < n->nin; k++)
            if (n->in[k] < g->value.n) want[n->in[k]] = 1;
    }
    for (size_t i = 0; i < g->outputs.n; i++)
        if (g->outputs.at[i] < g->value.n) want[g->outputs.at[i]] = 1;
    for (size_t i = 0; i < g->inputs.n; i++)
        if (g->inputs.at[i] < g->value.n) want[g->inputs.at[i]] = 0;
    for (size_t i = 0; i < g->inits.n; i++) {
        if (g->inits.at[i] >= g->value.n || inv_val(g, g->inits.at[i])->role == INV_ROLE_NODE) continue;
        print_declaration(b, g->inits.at[i], g);
        want[g->inits.at[i]] = 0;
    }
    for (int pass = 0; pass < 2; pass++) /* parameters first: reading back makes them initializers, in this order */
        for (inv_id v = 0; v < g->value.n; v++)
            if (want[v] && inv_val(g, v)->role != INV_ROLE_NODE &&
                (inv_val(g, v)->role == INV_ROLE_PARAM) == (pass == 0))
                print_declaration(b, v, g);
    inv_arena_fini(&scratch);
    return INV_OK;
}

static void print_head(inv_str *b, const inv_graph *g)
{
    for (size_t i = 0; i < g->opset.n; i++) {
        inv_str_add(b, "%s", i ? ", " : "<opset_import: [");
        print_quoted(b, g->opset.at[i].domain);
        inv_str_add(b, " : %lld%s", (long long)g->opset.at[i].version, i + 1 == g->opset.n ? "]>\n" : "");
    }
    inv_print_name(b, g->name);
    inv_str_add(b, " (");
    const char *between = "";
    for (size_t i = 0; i < g->inputs.n; i++) {
        if (g->inputs.at[i] >= g->value.n) continue;
        const inv_value *v = inv_val(g, g->inputs.at[i]);
        if (v->role == INV_ROLE_NODE) continue; /* a Feed gives it, which is printed */
        inv_str_add(b, "%s", between);
        between = ", ";
        if (v->dtype != INV_DT_NONE) {
            print_type(b, v->dtype, &v->shape, v->dim_param);
            inv_str_add(b, " ");
        }
        inv_print_name(b, v->name);
    }
    inv_str_add(b, ") => (");
    for (size_t i = 0; i < g->outputs.n; i++) {
        if (i) inv_str_add(b, ", ");
        print_value_name(b, g, g->outputs.at[i]);
    }
    inv_str_add(b, ") {\n");
}

inv_status inv_graph_print(const inv_graph *g, inv_str *out)
{
    static const char *const phases[] = {"forward", "backward", "commit"};
    uint8_t phase = INV_FORWARD;
    print_head(out, g);
    INV_TRY(print_declarations(out, g));
    for (size_t i = 0; i < g->order.n && !out->failed; i++) {
        const inv_node *n = inv_nod(g, g->order.at[i]);
        if (n->phase != phase && n->phase <= INV_COMMIT) inv_str_add(out, "  # %s\n", phases[n->phase]);
        phase = n->phase;
        inv_print_node(out, g, n);
    }
    inv_str_add(out, "}\n");
    return out->failed ? INV_E_NOMEM : INV_OK;
}
