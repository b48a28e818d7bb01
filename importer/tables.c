/* SPDX-License-Identifier: Apache-2.0
 * Two small tools of the importer: a table from names to ids, and a list of defects that becomes one message. */
#include <string.h>

#include "importer/importer.h"

static inv_name *slot_of(const inv_names *t, const char *key)
{
    size_t i = (size_t)inv_hash(key, strlen(key), 0) & (t->cap - 1);
    while (t->slot[i].key && strcmp(t->slot[i].key, key) != 0) i = (i + 1) & (t->cap - 1);
    return &t->slot[i];
}

uint32_t inv_names_get(const inv_names *t, const char *key)
{
    if (!t->cap) return INV_NONE;
    const inv_name *s = slot_of(t, key);
    return s->key ? s->id : INV_NONE;
}

static inv_status grow(inv_names *t)
{
    inv_names bigger = {.a = t->a, .n = t->n, .cap = t->cap ? t->cap * 2 : 64};
    bigger.slot = INV_ARENA_NEW(t->a, inv_name, bigger.cap);
    if (!bigger.slot) return INV_E_NOMEM;
    for (size_t i = 0; i < t->cap; i++)
        if (t->slot[i].key) *slot_of(&bigger, t->slot[i].key) = t->slot[i];
    *t = bigger;
    return INV_OK;
}

inv_status inv_names_put(inv_names *t, const char *key, uint32_t id, bool *taken)
{
    *taken = false;
    if (2 * (t->n + 1) > t->cap) INV_TRY(grow(t));
    inv_name *s = slot_of(t, key);
    if (s->key) {
        *taken = true;
        return INV_OK;
    }
    *s = (inv_name){key, id};
    t->n++;
    return INV_OK;
}

void inv_defects_init(inv_defects *d, inv_context *ctx)
{
    *d = (inv_defects){.code = INV_OK};
    inv_str_init(&d->text, ctx);
}

void inv_defects_fini(inv_defects *d) { inv_str_fini(&d->text); }

void inv_defect(inv_defects *d, inv_status code, const char *fmt, ...)
{
    enum { MOST_TOLD = 100, LONGEST = 20000 };
    inv_str line;
    va_list ap;
    if (!d->n) d->code = code;
    if (d->n++ >= MOST_TOLD || d->text.n > LONGEST) return;
    d->told++;
    inv_str_init(&line, d->text.ctx);
    va_start(ap, fmt);
    inv_str_addv(&line, fmt, ap);
    va_end(ap);
    inv_str_add(&d->text, "\n  ");
    if (line.failed) d->text.failed = true;
    else inv_str_add_line(&d->text, line.s);
    inv_str_fini(&line);
}

inv_status inv_defects_report(const inv_defects *d, const char *path)
{
    if (!d->n) return INV_OK;
    if (d->text.failed) return inv_fail(d->text.ctx, INV_E_NOMEM, "out of memory");
    if (d->n == 1) return inv_fail(d->text.ctx, d->code, "'%s': %s", path, d->text.s + 3);
    if (d->told < d->n)
        return inv_fail_lines(d->text.ctx, d->code, "'%s': %zu defects:%s\n  ... and %zu more", path, d->n, d->text.s,
                              d->n - d->told);
    return inv_fail_lines(d->text.ctx, d->code, "'%s': %zu defects:%s", path, d->n, d->text.s);
}
