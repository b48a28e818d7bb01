/* SPDX-License-Identifier: Apache-2.0
 * Reads the conditions, gains and log-determinants of inverse rules (inv_inverse_def's `when`, `gain` and `logdet`).
 * Each of the three texts is a list of forms `name(arguments) relation number`, and the forms are closed lists, so that
 * a rule cannot ask for what nobody judges. core/rules/condition.inc has the forms of `when` and `gain`, which
 * passes/match judges and measures; core/rules/condition.c has those of `logdet`, which passes/export/logdet.c emits.
 */
#ifndef INV_CORE_CONDITION_H
#define INV_CORE_CONDITION_H

#include "core/graph/ir.h"
#include "invonnx/plugin.h"

enum { INV_MAX_RULE_NAME = 128 }; /* bytes of a name in a rule, the ending zero among them */

/* The place of a form in its list: INV_WHEN_square, INV_GAIN_norm, ... */
enum {
#define CONDITION(name, ...) INV_WHEN_##name,
#include "core/rules/condition.inc"
};
enum {
#define GAIN(name, ...) INV_GAIN_##name,
#include "core/rules/condition.inc"
};

/* One form, as a rule has it. */
typedef struct inv_condition {
    int id;           /* place in its list */
    const char *name; /* static */
    char arg[2][INV_MAX_RULE_NAME];
    int nargs;
    double number; /* the second argument, where that is a number */
    char relation; /* '<', '>', '=' or 0 */
    double bound;  /* what the relation compares with */
} inv_condition;

/* The texts of a rule, each with a list of its own. */
typedef enum inv_language { INV_IN_WHEN, INV_IN_GAIN, INV_IN_LOGDET } inv_language;

/* Reads the form at *p and moves *p past its ';'. 1: *c is one; 0: the text is at its end; -1: not of the list. */
int inv_condition_next(const char **p, inv_language l, inv_condition *c);
/* INV_E_PARSE if this text of a rule is not of its list, or speaks of values that `match` does not name. */
inv_status inv_condition_check(inv_context *ctx, const inv_inverse_def *d, inv_language l);

#endif
