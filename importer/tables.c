/* SPDX-License-Identifier: Apache-2.0
 * Two small tools of the importer: a table from names to ids, and a list of defects that becomes one message. */
#include <string.h>

#include "importer/importer.h"

static inv__name *slot_of(const inv__names *t, const char *key)
{
    size_t i = (size_t)inv__hash(key, strlen(key), 0) & (t->cap - 1);
    while (t->slot[i].key && strcmp(t->slot[i].key, key) != 0) i = (i + 1) & (t->cap - 1);
    return &t->slot[i];
}

uint32_t inv__names_get(const inv__names *t, const char *key)
{
    if (!t->cap) return INV_NONE;
    const inv__name *s = slot_of(t, key);
    return s->key ? s->id : INV_NONE;
}

static inv_status grow(inv__names *t)
{
    inv__names bigger = {.a = t->a, .n = t->n, .cap = t->cap ? t->cap * 2 : 64};
    bigger.slot = INV_ARENA_NEW(t->a, inv__name, bigger.cap);
    if (!bigger.slot) return INV_E_NOMEM;
    for (size_t i = 0; i < t->cap; i++)
        if (t->slot[i].key) *slot_of(&bigger, t->slot[i].key) = t->slot[i];
    *t = bigger;
    return INV_OK;
}

inv_status inv__names_put(inv__names *t, const char *key, uint32_t id, bool *taken)
{
    *taken = false;
    if (2 * (t->n + 1) > t->cap) INV_TRY(grow(t));
    inv__name *s = slot_of(t, key);
    if (s->key) {
        *taken = true;
        return INV_OK;
    }
    *s = (inv__name){key, id};
    t->n++;
    return INV_OK;
}

void inv__defects_init(inv__defects *d, inv_context *ctx)
{
    *d = (inv__defects){.code = INV_OK};
    inv__str_init(&d->text, ctx);
}

void inv__defects_fini(inv__defects *d) { inv__str_fini(&d->text); }

void inv__defect(inv__defects *d, inv_status code, const char *fmt, ...)
{
    enum { MOST_TOLD = 100, LONGEST = 20000 };
    inv_str line;
    va_list ap;
    if (!d->n) d->code = code;
    if (d->n++ >= MOST_TOLD || d->text.n > LONGEST) return;
    d->told++;
    inv__str_init(&line, d->text.ctx);
    va_start(ap, fmt);
    inv__str_addv(&line, fmt, ap);
    va_end(ap);
    inv__str_add(&d->text, "\n  ");
    if (line.failed) d->text.failed = true;
    else inv__str_add_line(&d->text, line.s);
    inv__str_fini(&line);
}

inv_status inv__defects_report(const inv__defects *d, const char *path)
{
    if (!d->n) return INV_OK;
    if (d->text.failed) return inv__fail(d->text.ctx, INV_E_NOMEM, "out of memory");
    if (d->n == 1) return inv__fail(d->text.ctx, d->code, "'%s': %s", path, d->text.s + 3);
    if (d->told < d->n)
        return inv__fail_lines(d->text.ctx, d->code, "'%s': %zu defects:%s\n  ... and %zu more", path, d->n, d->text.s,
                               d->n - d->told);
    return inv__fail_lines(d->text.ctx, d->code, "'%s': %zu defects:%s", path, d->n, d->text.s);
}
