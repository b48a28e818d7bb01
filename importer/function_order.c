/* SPDX-License-Identifier: Apache-2.0
 * The order in which a written file lists its functions: each behind those that it calls, since who builds them one by
 * one (ONNX's own evaluator) knows only those before. Else it is the one in which they are given. */
#include <stdlib.h>

#include "importer/writer.h"

typedef struct visit {
    uint32_t function, next; /* its next call that is to be looked at */
} visit;

static bool has_bytes(const inv_field *f, uint32_t id)
{
    return f->id == id && f->wire == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED;
}

/* "DOMAIN::NAME" */
static inv_status full_name(inv_writer *w, const char *domain, const char *name, const char **out)
{
    *out = inv_arena_printf(&w->l.scratch, "%s::%s", inv_domain(domain), name);
    return *out ? INV_OK : INV_E_NOMEM;
}

/* The newest text of a field; "" where there is none. */
static inv_status text_in(inv_writer *w, size_t begin, size_t end, uint32_t id, const char **text)
{
    inv_field f;
    *text = "";
    for (size_t pos = begin; pos < end; pos = f.end) {
        INV_TRY(inv_writer_field(w, pos, end, &f));
        if (!has_bytes(&f, id)) continue;
        *text = inv_arena_strndup(&w->l.scratch, (const char *)w->impl->file.base + f.body, f.end - f.body);
        if (!*text) return INV_E_NOMEM;
    }
    return INV_OK;
}

inv_status inv_functions_add(inv_functions *x, const char *domain, const char *name)
{
    const char *full;
    bool taken;
    INV_TRY(full_name(x->w, domain, name, &full));
    x->names.a = &x->w->l.scratch;
    return inv_names_put(&x->names, full, (uint32_t)x->n++, &taken);
}

inv_status inv_functions_begin(inv_functions *x, inv_writer *w, const inv_names *without)
{
    const size_t end = w->impl->file.nbytes;
    inv_field f;
    *x = (inv_functions){.w = w};
    for (size_t pos = 0; pos < end; pos = f.end) {
        const char *domain, *name, *full;
        INV_TRY(inv_writer_field(w, pos, end, &f));
        if (!has_bytes(&f, INV_PB_MODEL_FUNCTION)) continue;
        INV_TRY(text_in(w, f.body, f.end, INV_PB_FUNCTION_DOMAIN, &domain));
        INV_TRY(text_in(w, f.body, f.end, INV_PB_FUNCTION_NAME, &name));
        INV_TRY(full_name(w, domain, name, &full));
        if (without && inv_names_get(without, full) != INV_NONE) continue;
        if (!inv_vec_push(&w->l.scratch, &x->of_file, f)) return INV_E_NOMEM;
        INV_TRY(inv_functions_add(x, domain, name));
    }
    return INV_OK;
}

/* --- who calls whom --- */

inv_status inv_functions_call(inv_functions *x, uint32_t from, const char *domain, const char *name)
{
    const char *full;
    INV_TRY(full_name(x->w, domain, name, &full));
    const uint32_t to = inv_names_get(&x->names, full);
    if (to == INV_NONE) return INV_OK;
    return inv_vec_push(&x->w->l.scratch, &x->call, ((inv_function_call){from, to})) ? INV_OK : INV_E_NOMEM;
}

static inv_status calls_of_nodes(inv_functions *x, uint32_t from, uint32_t node, size_t begin, size_t end);

/* What the nodes of an attribute's graphs call. */
static inv_status calls_of_attribute(inv_functions *x, uint32_t from, const inv_field *in)
{
    inv_field f;
    for (size_t pos = in->body; pos < in->end; pos = f.end) {
        INV_TRY(inv_writer_field(x->w, pos, in->end, &f));
        if (has_bytes(&f, INV_PB_ATTR_G) || has_bytes(&f, INV_PB_ATTR_GRAPHS))
            INV_TRY(calls_of_nodes(x, from, INV_PB_GRAPH_NODE, f.body, f.end));
    }
    return INV_OK;
}

inv_status inv_functions_call_in(inv_functions *x, uint32_t from, size_t begin, size_t end)
{
    const char *domain, *name;
    inv_field f;
    INV_TRY(text_in(x->w, begin, end, INV_PB_NODE_DOMAIN, &domain));
    INV_TRY(text_in(x->w, begin, end, INV_PB_NODE_OP_TYPE, &name));
    for (size_t pos = begin; pos < end; pos = f.end) {
        INV_TRY(inv_writer_field(x->w, pos, end, &f));
        if (has_bytes(&f, INV_PB_NODE_ATTRIBUTE)) INV_TRY(calls_of_attribute(x, from, &f));
    }
    return inv_functions_call(x, from, domain, name);
}

/* As deep as messages may be nested (prescan.c). */
static inv_status calls_of_nodes(inv_functions *x, uint32_t from, uint32_t node, size_t begin, size_t end)
{
    inv_field f;
    for (size_t pos = begin; pos < end; pos = f.end) {
        INV_TRY(inv_writer_field(x->w, pos, end, &f));
        if (has_bytes(&f, node)) INV_TRY(inv_functions_call_in(x, from, f.body, f.end));
    }
    return INV_OK;
}

/* --- the order --- */

/* Puts a function behind all that it calls, as number n or a later one; gives the next number. Functions that call
 * each other in a circle, which ONNX does not allow, are put in some order. */
static uint32_t put_behind(inv_functions *x, const uint32_t *start, uint32_t root, bool *seen, visit *stack, uint32_t n)
{
    size_t depth = 0;
    seen[root] = true;
    stack[depth++] = (visit){root, start[root]};
    while (depth) {
        visit *v = &stack[depth - 1];
        if (v->next == start[v->function + 1]) {
            x->order[n++] = v->function;
            depth--;
            continue;
        }
        const uint32_t to = x->call.at[v->next++].to;
        if (seen[to]) continue;
        seen[to] = true;
        stack[depth++] = (visit){to, start[to]};
    }
    return n;
}

static int by_caller(const void *a, const void *b)
{
    const inv_function_call *x = a, *y = b;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    return (x->to > y->to) - (x->to < y->to);
}

inv_status inv_functions_sort(inv_functions *x)
{
    inv_arena *a = &x->w->l.scratch;
    uint32_t *start = INV_ARENA_NEW(a, uint32_t, x->n + 2);
    bool *seen = INV_ARENA_NEW(a, bool, x->n + 1);
    visit *stack = INV_ARENA_NEW(a, visit, x->n + 1);
    x->order = INV_ARENA_NEW(a, uint32_t, x->n + 1);
    if (!start || !seen || !stack || !x->order) return INV_E_NOMEM;
    for (uint32_t i = 0; i < x->of_file.n; i++)
        INV_TRY(calls_of_nodes(x, i, INV_PB_FUNCTION_NODE, x->of_file.at[i].body, x->of_file.at[i].end));
    if (x->call.n) qsort(x->call.at, x->call.n, sizeof *x->call.at, by_caller);
    for (size_t i = 0; i < x->call.n; i++) start[x->call.at[i].from + 1]++;
    for (size_t i = 0; i < x->n; i++) start[i + 1] += start[i];
    for (uint32_t i = 0, n = 0; i < x->n; i++)
        if (!seen[i]) n = put_behind(x, start, i, seen, stack, n);
    return INV_OK;
}
