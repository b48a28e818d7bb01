/* SPDX-License-Identifier: Apache-2.0
 * The registry: operator rows sorted for lookup, inverse rules by falling priority. */
#include <string.h>

#include "core/condition.h"
#include "core/ir_internal.h"

#define OWN_DOMAIN "ai.invonnx.ir"

struct inv_registry {
    inv_context *ctx;
    inv_arena arena;
    INV_VEC(const inv_op_def *) op; /* by name, domain, since */
    INV_VEC(const inv_inverse_def *) inverse;
};

inv_status inv_registry_create(inv_context *ctx, inv_registry **out)
{
    *out = NULL;
    inv_registry *r = inv__alloc(ctx, sizeof *r);
    if (!r) return INV_E_NOMEM;
    r->ctx = ctx;
    inv__arena_init(&r->arena, ctx);
    *out = r;
    return INV_OK;
}

void inv_registry_destroy(inv_registry *r)
{
    if (!r) return;
    inv__arena_fini(&r->arena);
    inv__free(r->ctx, r);
}

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
        int c = compare_key(r->op.at[mid], domain, name);
        if (c < 0 || (c == 0 && r->op.at[mid]->since < since))
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

inv_status inv_registry_add_op(inv_registry *r, const inv_op_def *def)
{
    INV_CHECK(def->size == sizeof *def, r->ctx, INV_E_ABI, "operator row of %zu bytes, wanted %zu", def->size,
              sizeof *def);
    INV_CHECK(def->name && *def->name && def->domain && def->in && def->out && def->since >= 1, r->ctx, INV_E_ARG,
              "operator row '%s': name, domain, in, out and since are required", def->name ? def->name : "?");
    INV_CHECK(def->infer, r->ctx, INV_E_ARG, "operator row '%s': infer is required", def->name);
    INV_CHECK(def->until == 0 || def->until >= def->since, r->ctx, INV_E_ARG,
              "operator row '%s': until %d before since %d", def->name, def->until, def->since);
    size_t at = lower_bound(r, def->domain, def->name, def->since);
    INV_CHECK(at == r->op.n || compare_key(r->op.at[at], def->domain, def->name) != 0 ||
                  r->op.at[at]->since != def->since,
              r->ctx, INV_E_EXISTS, "operator '%s' of domain '%s' since %d is already registered", def->name,
              def->domain, def->since);
    if (!inv_vec_push(&r->arena, &r->op, def)) return INV_E_NOMEM;
    memmove(r->op.at + at + 1, r->op.at + at, (r->op.n - 1 - at) * sizeof *r->op.at);
    r->op.at[at] = def;
    return INV_OK;
}

static const inv_op_def *find_op(const inv_registry *r, const char *domain, const char *name, int64_t opset)
{
    size_t i = lower_bound(r, domain, name, opset > 0 && opset < INT64_MAX ? opset + 1 : INT64_MAX);
    if (i == 0 || compare_key(r->op.at[i - 1], domain, name) != 0) return NULL;
    const inv_op_def *op = r->op.at[i - 1];
    return opset > 0 && op->until != 0 && op->until < opset ? NULL : op;
}

const inv_op_def *inv_registry_op(const inv_registry *r, const char *domain, const char *name, int64_t opset)
{
    if (!r) return NULL;
    if (strcmp(domain, "ai.onnx") == 0) domain = "";
    const inv_op_def *op = find_op(r, domain, name, opset);
    return op || *domain ? op : find_op(r, OWN_DOMAIN, name, 0);
}

size_t inv_registry_nops(const inv_registry *r)
{
    return r->op.n;
}

const inv_op_def *inv_registry_op_at(const inv_registry *r, size_t i)
{
    return i < r->op.n ? r->op.at[i] : NULL;
}

/* --- arity, from the name lists of a row --- */

bool inv__op_slot(const char *list, uint32_t i, bool *optional, bool *variadic)
{
    *optional = *variadic = false;
    for (uint32_t k = 0;; k++) {
        list += strspn(list, " ");
        size_t n = strcspn(list, " ");
        if (n == 0) return false;
        char mark = list[n - 1];
        if (mark == '*' || k == i) {
            *variadic = mark == '*';
            *optional = mark == '?' || (mark == '*' && i > 0);
            return true;
        }
        list += n;
    }
}

/* --- inverse rules --- */

static inv_status check_text(inv_registry *r, const char *rule, const char *what, const char *text)
{
    inv_arena scratch;
    inv_stmts stmts = {0};
    inv__arena_init(&scratch, r->ctx);
    inv_status s = inv_text_stmts(r->ctx, &scratch, text, &stmts);
    if (s == INV_OK && stmts.n == 0)
        s = inv__fail(r->ctx, INV_E_PARSE, "inverse rule '%s': %s is empty", rule, what);
    else if (s == INV_E_PARSE)
        s = inv__fail(r->ctx, s, "inverse rule '%s', %s: %s", rule, what, inv_context_message(r->ctx));
    inv__arena_fini(&scratch);
    return s;
}

static inv_status check_rule(inv_registry *r, const inv_inverse_def *d)
{
    INV_CHECK(d->name && *d->name, r->ctx, INV_E_ARG, "inverse rule without a name");
    INV_CHECK(d->match && *d->match, r->ctx, INV_E_ARG, "inverse rule '%s': match is required", d->name);
    INV_CHECK(!d->solve || (d->frees && *d->frees), r->ctx, INV_E_ARG,
              "inverse rule '%s': solve without frees (the value that it computes)", d->name);
    INV_CHECK(!d->saves || d->solve, r->ctx, INV_E_ARG, "inverse rule '%s': saves without solve", d->name);
    INV_CHECK(!d->solve || !d->refuse, r->ctx, INV_E_ARG, "inverse rule '%s': both solve and refuse", d->name);
    INV_CHECK(d->exactness == INV_BOUNDED || d->exactness == INV_EXACT, r->ctx, INV_E_ARG,
              "inverse rule '%s': exactness %d is not known", d->name, (int)d->exactness);
    for (size_t i = 0; i < r->inverse.n; i++)
        INV_CHECK(strcmp(r->inverse.at[i]->name, d->name) != 0, r->ctx, INV_E_EXISTS,
                  "inverse rule '%s' is already registered", d->name);
    INV_TRY(check_text(r, d->name, "match", d->match));
    if (d->solve) INV_TRY(check_text(r, d->name, "solve", d->solve));
    if (d->saves) INV_TRY(check_text(r, d->name, "saves", d->saves));
    return inv__condition_check(r->ctx, d);
}

/* A copy of our own: a plugin may have built its texts on the fly. */
static inv_inverse_def *keep_rule(inv_registry *r, const inv_inverse_def *d)
{
    inv_inverse_def *k = inv__arena_alloc(&r->arena, sizeof *k);
    if (!k) return NULL;
    *k = *d;
    const char **texts[] = {&k->name, &k->kind, &k->match,  &k->solve, &k->frees,
                            &k->when, &k->gain, &k->refuse, &k->doc, &k->saves};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (*texts[i] && !(*texts[i] = inv__arena_strdup(&r->arena, *texts[i]))) return NULL;
    if (!d->cases) return k;
    size_t n = 0;
    while (d->cases[n]) n++;
    const char **cases = INV_ARENA_NEW(&r->arena, const char *, n + 1);
    for (size_t i = 0; cases && i < n; i++)
        if (!(cases[i] = inv__arena_strdup(&r->arena, d->cases[i]))) return NULL;
    k->cases = cases;
    return cases ? k : NULL;
}

inv_status inv_registry_add_inverse(inv_registry *r, const inv_inverse_def *def)
{
    INV_CHECK(def->size >= offsetof(inv_inverse_def, when) && def->size <= sizeof *def, r->ctx, INV_E_ABI,
              "inverse rule of %zu bytes, this library knows %zu", def->size, sizeof *def);
    inv_inverse_def d = {0};
    memcpy(&d, def, def->size);
    d.size = sizeof d;
    INV_TRY(check_rule(r, &d));
    const inv_inverse_def *kept = keep_rule(r, &d);
    if (!kept || !inv_vec_push(&r->arena, &r->inverse, kept)) return INV_E_NOMEM;
    size_t at = r->inverse.n - 1;
    for (; at > 0 && r->inverse.at[at - 1]->priority < kept->priority; at--) r->inverse.at[at] = r->inverse.at[at - 1];
    r->inverse.at[at] = kept;
    return INV_OK;
}

size_t inv_registry_ninverses(const inv_registry *r)
{
    return r->inverse.n;
}

const inv_inverse_def *inv_registry_inverse_at(const inv_registry *r, size_t i)
{
    return i < r->inverse.n ? r->inverse.at[i] : NULL;
}
