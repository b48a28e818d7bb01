/* SPDX-License-Identifier: Apache-2.0
 * The conditions and gains of inverse rules (inv_inverse_def's `when`, `gain` and `logdet`): closed lists, read in
 * one place. */
#ifndef INV_CORE_CONDITION_H
#define INV_CORE_CONDITION_H

#include "core/ir.h"
#include "invonnx/plugin.h"

enum { INV_MAX_RULE_NAME = 128 }; /* bytes of a name in a rule, the ending zero among them */

typedef struct inv_condition {
    char name[32];
    char arg[2][INV_MAX_RULE_NAME]; /* 0: it takes no such argument */
    int nargs;
    double number; /* the second argument, where that is one */
    char relation; /* '<', '>', '=' or 0 */
    double bound;
} inv_condition;

/* The texts of a rule, a closed list of forms for each. */
typedef enum inv_language { INV_IN_WHEN, INV_IN_GAIN, INV_IN_LOGDET } inv_language;

/* The next form of *p, past its ';'. 1: one; 0: there is no more; -1: not of the list. */
int inv__condition_next(const char **p, inv_language l, inv_condition *c);
/* What the user can do where a condition fails, with $1 and $2 for the names of its values, $c for itself, $x for what
 * would be freed. `computed`: the value is computed from inputs, so that only bounds of it are known. */
const char *inv__condition_remedy(const inv_condition *c, bool computed);
/* Whether what fails it is another thing than the rule is about, rather than one of these that cannot be inverted. */
bool inv__condition_defines(const inv_condition *c);
/* INV_E_PARSE if this text of a rule is not of the list or speaks of values that `match` does not name. */
inv_status inv__condition_check(inv_context *ctx, const inv_inverse_def *d, inv_language l);

#endif
