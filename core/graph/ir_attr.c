/* SPDX-License-Identifier: Apache-2.0
 * Attributes: making, copying, reading. */
#include <string.h>

#include "core/graph/ir_internal.h"
#include "core/graph/text.h"

inv_attr inv_attr_of_int(const char *name, int64_t v) { return (inv_attr){.name = name, .kind = INV_ATTR_INT, .i = v}; }

inv_attr inv_attr_of_float(const char *name, double v)
{
    return (inv_attr){.name = name, .kind = INV_ATTR_FLOAT, .f = v};
}

inv_attr inv_attr_of_string(const char *name, const char *v)
{
    return (inv_attr){.name = name, .kind = INV_ATTR_STRING, .s = v, .n = strlen(v)};
}

inv_attr inv_attr_of_ints(const char *name, size_t n, const int64_t *v)
{
    return (inv_attr){.name = name, .kind = INV_ATTR_INTS, .ints = v, .n = n};
}

const inv_attr *inv_attr_find(const inv_node *n, const char *name)
{
    for (uint32_t i = 0; i < n->nattr; i++)
        if (strcmp(n->attr[i].name, name) == 0) return &n->attr[i];
    return NULL;
}

const char *inv_attr_kind_name(inv_attr_kind k) { return k < INV_ATTR_OTHER ? inv_attr_kinds[k] : "another one"; }

/* The attribute, if it is of that kind; else that is noted for whoever lowers the node. */
static const inv_attr *find_kind(const inv_node *n, const char *name, inv_attr_kind kind, inv_attr_kind or_kind)
{
    for (uint32_t i = 0; i < n->nattr; i++) {
        inv_attr *a = &n->attr[i];
        if (strcmp(a->name, name) != 0) continue;
        if (a->kind == kind || a->kind == or_kind) return a;
        a->wanted = inv_attr_kind_name(kind);
        return NULL;
    }
    return NULL;
}

int64_t inv_attr_int(const inv_node *n, const char *name, int64_t dflt)
{
    const inv_attr *a = find_kind(n, name, INV_ATTR_INT, INV_ATTR_INT);
    return a ? a->i : dflt;
}

double inv_attr_float(const inv_node *n, const char *name, double dflt)
{
    const inv_attr *a = find_kind(n, name, INV_ATTR_FLOAT, INV_ATTR_INT);
    return !a ? dflt : a->kind == INV_ATTR_INT ? (double)a->i : a->f;
}

const char *inv_attr_string(const inv_node *n, const char *name, const char *dflt)
{
    const inv_attr *a = find_kind(n, name, INV_ATTR_STRING, INV_ATTR_STRING);
    return a && a->s ? a->s : dflt;
}

uint32_t inv_node_listed(const inv_node *n)
{
    for (uint32_t i = 0; i < n->nattr; i++)
        if (n->attr[i].kind == INV_ATTR_GRAPH) return n->attr[i].captured;
    return n->nin;
}

const int64_t *inv_attr_ints(const inv_node *n, const char *name, size_t *count)
{
    const inv_attr *a = find_kind(n, name, INV_ATTR_INTS, INV_ATTR_INT);
    *count = 0;
    if (!a) return NULL;
    if (a->kind == INV_ATTR_INT) {
        *count = 1;
        return &a->i;
    }
    *count = a->n;
    return a->ints;
}

/* Never NULL, so that an empty list is not an absent one. */
static void *copy_array(inv_arena *a, size_t n, size_t size, const void *from)
{
    void *p = inv_arena_array(a, n ? n : 1, size);
    if (p && n) memcpy(p, from, n * size);
    return p;
}

static bool attr_copy(inv_arena *a, const inv_attr *from, inv_attr *to)
{
    *to = *from;
    to->name = inv_arena_strdup(a, from->name);
    if (!to->name) return false;
    if (from->s && !(to->s = inv_arena_strdup(a, from->s))) return false;
    if (from->ref && !(to->ref = inv_arena_strdup(a, from->ref))) return false;
    if (from->kind == INV_ATTR_INTS && !(to->ints = copy_array(a, from->n, sizeof(int64_t), from->ints))) return false;
    if (from->kind == INV_ATTR_FLOATS && !(to->floats = copy_array(a, from->n, sizeof(double), from->floats)))
        return false;
    if (from->args && !(to->args = inv_attrs_copy(a, from->n, from->args))) return false;
    if (from->kind != INV_ATTR_STRINGS) return true;
    to->strings = INV_ARENA_NEW(a, const char *, from->n ? from->n : 1);
    for (size_t i = 0; to->strings && i < from->n; i++) {
        to->strings[i] = inv_arena_strdup(a, from->strings[i]);
        if (!to->strings[i]) return false;
    }
    return to->strings != NULL;
}

inv_attr *inv_attrs_copy(inv_arena *a, size_t n, const inv_attr *attr)
{
    inv_attr *copy = INV_ARENA_NEW(a, inv_attr, n ? n : 1);
    for (size_t i = 0; copy && i < n; i++)
        if (!attr_copy(a, &attr[i], &copy[i])) return NULL;
    return copy;
}

static bool same_bytes(const void *a, size_t na, const void *b, size_t nb)
{
    return na == nb && (na == 0 || memcmp(a, b, na) == 0);
}

bool inv_attr_same(const inv_attr *a, const inv_attr *b)
{
    if (strcmp(a->name, b->name) != 0 || a->kind != b->kind) return false;
    switch (a->kind) {
    case INV_ATTR_INT: return a->i == b->i;
    case INV_ATTR_FLOAT: return same_bytes(&a->f, sizeof a->f, &b->f, sizeof b->f);
    case INV_ATTR_STRING: return strcmp(a->s, b->s) == 0;
    case INV_ATTR_INTS: return same_bytes(a->ints, a->n * sizeof *a->ints, b->ints, b->n * sizeof *b->ints);
    case INV_ATTR_FLOATS: return same_bytes(a->floats, a->n * sizeof *a->floats, b->floats, b->n * sizeof *b->floats);
    case INV_ATTR_TENSOR:
        return a->tensor.dtype == b->tensor.dtype && inv_shape_equal(&a->tensor.shape, &b->tensor.shape) &&
               same_bytes(a->tensor.bytes, a->tensor.nbytes, b->tensor.bytes, b->tensor.nbytes);
    case INV_ATTR_STRINGS:
        if (a->n != b->n) return false;
        for (size_t i = 0; i < a->n; i++)
            if (strcmp(a->strings[i], b->strings[i]) != 0) return false;
        return true;
    default: return false;
    }
}
