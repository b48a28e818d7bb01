/* SPDX-License-Identifier: Apache-2.0
 * The registry: operator rows sorted for lookup. Inverse rules are in rule.c. */
#include <string.h>

#include "core/graph/ir_internal.h"

#define OWN_DOMAIN "ai.invonnx.ir"

inv_status inv_registry_create(inv_context *ctx, inv_registry **out)
{
    *out = NULL;
    inv_registry *r = inv_alloc(ctx, sizeof *r);
    if (!r) return INV_E_NOMEM;
    r->ctx = ctx;
    inv_arena_init(&r->arena, ctx);
    *out = r;
    return INV_OK;
}

/* Whose a name is, in messages. */
const char *inv_owner(const inv_plugin *from) { return from ? from->path : "the library"; }

/* --- operators --- */

static int compare_key(const inv_op_def *op, const char *domain, const char *name)
{
    int c = strcmp(op->name, name);
    return c ? c : strcmp(op->domain, domain);
}

/* First row that is not before (name, domain, since). */
static size_t lower_bound(const inv_registry *r, const char *domain, const char *name, int64_t since)
{
    size_t lo = 0, hi = r->op.n;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int c = compare_key(r->op.at[mid].def, domain, name);
        if (c < 0 || (c == 0 && r->op.at[mid].def->since < since)) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

inv_status inv_registry_add_op(inv_registry *r, const inv_op_def *def)
{
    INV_CHECK(def->size == sizeof *def, r->ctx, INV_E_ABI, "operator row of %zu bytes, wanted %zu", def->size,
              sizeof *def);
    INV_CHECK(def->name && *def->name && def->domain && def->in && def->out && def->since >= 1, r->ctx, INV_E_ARG,
              "operator row '%s': name, domain, in, out and since are required", def->name ? def->name : "?");
    INV_CHECK(def->infer || def->lower, r->ctx, INV_E_ARG, "operator row '%s': infer is required", def->name);
    INV_CHECK(def->until == 0 || def->until >= def->since, r->ctx, INV_E_ARG,
              "operator row '%s': until %d before since %d", def->name, def->until, def->since);
    size_t at = lower_bound(r, def->domain, def->name, def->since);
    INV_CHECK(at == r->op.n || compare_key(r->op.at[at].def, def->domain, def->name) != 0 ||
                  r->op.at[at].def->since != def->since,
              r->ctx, INV_E_EXISTS, "operator '%s' of domain '%s' since %d is already registered, by %s", def->name,
              def->domain, def->since, inv_owner(r->op.at[at].from));
    inv_op_entry e = {def, r->loading};
    if (!inv_vec_push(&r->arena, &r->op, e)) return INV_E_NOMEM;
    memmove(r->op.at + at + 1, r->op.at + at, (r->op.n - 1 - at) * sizeof *r->op.at);
    r->op.at[at] = e;
    return INV_OK;
}

static const inv_op_def *find_op(const inv_registry *r, const char *domain, const char *name, int64_t opset)
{
    size_t i = lower_bound(r, domain, name, opset > 0 && opset < INT64_MAX ? opset + 1 : INT64_MAX);
    if (i == 0 || compare_key(r->op.at[i - 1].def, domain, name) != 0) return NULL;
    const inv_op_def *op = r->op.at[i - 1].def;
    return opset > 0 && op->until != 0 && op->until < opset ? NULL : op;
}

const inv_op_def *inv_registry_op(const inv_registry *r, const char *domain, const char *name, int64_t opset)
{
    if (!r) return NULL;
    if (strcmp(domain, "ai.onnx") == 0) domain = "";
    const inv_op_def *op = find_op(r, domain, name, opset);
    return op || *domain ? op : find_op(r, OWN_DOMAIN, name, 0);
}

size_t inv_registry_nops(const inv_registry *r) { return r->op.n; }

const inv_op_def *inv_registry_op_at(const inv_registry *r, size_t i) { return i < r->op.n ? r->op.at[i].def : NULL; }

/* --- arity, from the name lists of a row --- */

bool inv_op_slot(const char *list, uint32_t i, bool *optional, bool *variadic)
{
    *optional = *variadic = false;
    for (uint32_t k = 0;; k++) {
        while (*list == ' ') list++;
        if (!*list) return false;
        while (*list && *list != ' ') list++;
        const char mark = list[-1];
        if (mark == '*' || k == i) {
            *variadic = mark == '*';
            *optional = mark == '?' || (mark == '*' && i > 0);
            return true;
        }
    }
}

/* --- what came from where --- */

const char *inv_registry_op_plugin(const inv_registry *r, size_t i)
{
    return i < r->op.n && r->op.at[i].from ? r->op.at[i].from->path : NULL;
}

const char *inv_registry_inverse_plugin(const inv_registry *r, size_t i)
{
    return i < r->inverse.n && r->inverse.at[i].from ? r->inverse.at[i].from->path : NULL;
}

bool inv_op_computes(const inv_op_def *op)
{
    return (op->run || op->flags & INV_OP_VIEW) && !op->writes &&
           !(op->flags & (INV_OP_SOURCE | INV_OP_STEP | INV_OP_RANDOM));
}

inv_context *inv_registry_context(const inv_registry *r) { return r->ctx; }

void inv_registry_favour(inv_registry *r, const inv_inverse_def *rule) { r->favoured = rule; }

const inv_inverse_def *inv_registry_favoured(const inv_registry *r) { return r->favoured; }

const char *inv_registry_loading(const inv_registry *r) { return r->loading ? r->loading->path : NULL; }

inv_arena *inv_registry_arena(inv_registry *r) { return &r->arena; }

const inv_op_def *inv_registry_named(const inv_registry *r, const inv_stmt *s)
{
    if (*s->domain) return inv_registry_op(r, s->domain, s->op, 0);
    const inv_op_def *op = inv_registry_op(r, OWN_DOMAIN, s->op, 0);
    return op ? op : inv_registry_op(r, "", s->op, 0);
}
