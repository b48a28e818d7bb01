/* SPDX-License-Identifier: Apache-2.0
 * Entries of the model's metadata_props: those of the file, and such as the caller has written models have. */
#include <string.h>

#include "importer/writer.h"

static inv_model_entry *entry_of(const inv_model *m, const char *key, size_t n)
{
    for (size_t i = 0; i < m->entry.n; i++)
        if (strlen(m->entry.at[i].key) == n && memcmp(m->entry.at[i].key, key, n) == 0) return &m->entry.at[i];
    return NULL;
}

const char *inv_model_metadata(inv_model *m, const char *key)
{
    if (!m || !key) return NULL;
    inv_impl *impl = m->impl;
    const inv_field all = {.end = impl->file.nbytes};
    const inv_model_entry *given = entry_of(m, key, strlen(key));
    if (given) return given->value;
    const inv_byte_span s = inv_entry(impl, &all, INV_PB_MODEL_METADATA, key);
    return s.text ? inv_arena_strndup(&impl->arena, s.text, s.n) : NULL;
}

inv_status inv_model_set_metadata(inv_model *m, const char *key, const char *value)
{
    INV_OBJECT(m);
    inv_arena *a = &((inv_impl *)m->impl)->arena;
    INV_CHECK(key && *key, m->ctx, INV_E_ARG, "no key is given of the metadata");
    inv_model_entry *e = entry_of(m, key, strlen(key));
    const char *own = value ? inv_arena_strdup(a, value) : NULL;
    if (value && !own) return INV_E_NOMEM;
    if (e) e->value = own;
    if (e) return INV_OK;
    const inv_model_entry more = {inv_arena_strdup(a, key), own};
    return more.key && inv_vec_push(a, &m->entry, more) ? INV_OK : INV_E_NOMEM;
}

inv_status inv_entry_stays(inv_writer *w, const inv_field *f, bool *stays)
{
    *stays = true;
    inv_field k;
    for (size_t pos = f->body; pos < f->end && w->m->entry.n; pos = k.end) {
        INV_TRY(inv_writer_field(w, pos, f->end, &k));
        if (k.id == INV_PB_ENTRY_KEY && entry_of(w->m, (const char *)w->impl->file.base + k.body, k.end - k.body))
            *stays = false;
    }
    return INV_OK;
}

inv_status inv_put_entries(inv_writer *w)
{
    for (size_t i = 0; i < w->m->entry.n; i++) {
        const inv_model_entry *e = &w->m->entry.at[i];
        if (e->value) INV_TRY(inv_put_pair(&w->model, INV_PB_MODEL_METADATA, e->key, e->value));
    }
    return INV_OK;
}
