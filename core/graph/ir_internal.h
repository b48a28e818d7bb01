/* SPDX-License-Identifier: Apache-2.0
 * What the files of core share and nobody else needs. */
#ifndef INV_CORE_IR_INTERNAL_H
#define INV_CORE_IR_INTERNAL_H

#include "core/graph/ir.h"
#include "core/graph/op.h"

/* What a plugin file has brought; lives as long as the registry. */
typedef struct inv_plugin {
    const char *path; /* as given */
    void *handle;     /* of a shared object; NULL */
    inv_model *model; /* of functions; NULL */
} inv_plugin;

typedef struct inv_op_entry {
    const inv_op_def *def;
    const inv_plugin *from; /* NULL: the library's own */
} inv_op_entry;

typedef struct inv_rule_entry {
    const inv_inverse_def *def;
    const inv_plugin *from;
    size_t nth; /* to be registered, among rules of one priority */
} inv_rule_entry;

struct inv_registry {
    inv_context *ctx;
    inv_arena arena;
    INV_VEC(inv_op_entry) op;        /* by name, domain, since */
    INV_VEC(inv_rule_entry) inverse; /* by falling priority; those of a plugin that is being loaded come last */
    const inv_inverse_def **named;   /* the same by name: open addressing */
    size_t named_cap;                /* a power of two, or 0 */
    INV_VEC(inv_plugin *) plugin;
    const inv_inverse_def *favoured; /* NULL */
    inv_pairs_fn pairs;
    inv_plugin *loading; /* what is added now belongs to it; NULL: to the library */
    const char *field;   /* of the rule that was refused last: what is wrong; NULL: the rule as a whole */
};

/* registry.c: whose it is, in messages */
const char *inv_owner(const inv_plugin *from);
/* rule.c: without the rules of this plugin */
void inv_rules_drop(inv_registry *r, const inv_plugin *from);
/* rule.c: takes what a plugin has brought in order; that every operator which the rules of a plugin name is there */
inv_status inv_rules_settle(inv_registry *r, const inv_plugin *from);
/* rule_text.c: the first byte that is not of UTF-8, or a control character, which reports must not get; or NULL */
const char *inv_not_text(const char *text);
/* Bytes of a mark of UTF-8 that some editors put before a text: 3 or 0. */
static inline size_t inv_text_mark(const unsigned char *text, size_t n)
{
    return n >= 3 && text[0] == 0xef && text[1] == 0xbb && text[2] == 0xbf ? 3 : 0;
}
/* rule_text.c: rules as text (docs/text-form.md) into the registry */
inv_status inv_rules_read(inv_registry *r, const char *text, size_t nbytes);

/* The first failure stays. */
void inv_graph_fail(inv_graph *g, inv_status code);
/* As inv_graph_find, but values that a pass renamed are not found; constant time. */
inv_id inv_graph_index_find(const inv_graph *g, const char *name);
/* Deep copy but for tensor bytes; never NULL but on no memory. */
inv_attr *inv_attrs_copy(inv_arena *a, size_t n, const inv_attr *attr);

#endif
