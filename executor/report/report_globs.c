/* SPDX-License-Identifier: Apache-2.0
 * What globs of parameters do not mean though one may think so: other tensors of a module that they fit, tensors that
 * several modules share, and trained ones of which the file does not tell the module. */
#include <stdlib.h>
#include <string.h>

#include "core/weights/module_names.h"
#include "core/weights/trained.h"
#include "executor/report/report.h"

/* The module in a name. */
typedef struct part {
    const char *name;
    size_t length;
} part;

typedef struct looker {
    const inv_graph *g;
    inv_arena *a;
    INV_VEC(part) module; /* of what the glob at hand fits, sorted */
    bool failed;
} looker;

static int by_text(const void *a, const void *b)
{
    const part *x = a, *y = b;
    const int c = memcmp(x->name, y->name, x->length < y->length ? x->length : y->length);
    return c ? c : x->length < y->length ? -1 : x->length > y->length;
}

static const char *name_of(const inv_value *v, uint32_t i) { return i < v->nalso ? v->also[i] : v->name; }

static void note_modules(looker *l, const inv_value *v, const char *glob)
{
    for (uint32_t i = 0; i <= v->nalso; i++) {
        const part p = {name_of(v, i), inv_module_length(name_of(v, i))};
        if (p.length && inv_module_fits(glob, p.name) && !inv_vec_push(l->a, &l->module, p)) l->failed = true;
    }
}

static bool is_beside(const looker *l, const inv_value *v)
{
    for (uint32_t i = 0; i <= v->nalso; i++) {
        const part p = {name_of(v, i), inv_module_length(name_of(v, i))};
        if (p.length && l->module.n && bsearch(&p, l->module.at, l->module.n, sizeof p, by_text)) return true;
    }
    return false;
}

/* Whether some of the modules that read it are not meant. A name of the exporter's own is no module's. */
static bool is_of_others(const inv_value *v, const char *glob)
{
    for (uint32_t i = 0; i < v->nalso; i++)
        if (!inv_module_fits(glob, v->also[i])) return true;
    return !inv_name_is_generated(v->name) && !strstr(v->name, "_untied_") && inv_module_length(v->name) &&
           !inv_glob_fits(glob, v->name);
}

/* Whether the file does not tell the module: or a path that begins as no parameter's own name does, so that containers
 * in front of it are left out, as PyTorch's older exporter does. */
static bool is_nameless(const inv_graph *g, const inv_value *v)
{
    if (!inv_name_is_generated(v->name)) return false;
    for (uint32_t i = 0; i < v->nalso; i++) {
        const size_t n = strcspn(v->also[i], ".") + 1;
        bool any = false, dotted = false;
        for (size_t k = 0; k < g->inits.n && !any; k++) {
            const char *own = inv_val(g, g->inits.at[k])->name;
            if (inv_name_is_generated(own) || *own == '/' || !inv_module_length(own)) continue;
            dotted = true;
            any = !strncmp(own, v->also[i], n);
        }
        if (any || !dotted) return false;
    }
    return true;
}

typedef struct tally {
    size_t n;
    const char *first;
} tally;

static void count(tally *t, const inv_value *v)
{
    if (!t->n++) t->first = v->name;
}

static void say(inv_str *text, const tally *t, const char *one, const char *many)
{
    if (!t->n) return;
    inv_str_add(text, "%s%zu %s ('%s'%s)", text->n ? "; " : "", t->n, t->n == 1 ? one : many, t->first,
                t->n > 1 ? ", ..." : "");
}

/* One that ends in "*" means all that a module has. */
static void look(looker *l, const char *option, const char *glob, json_t *list)
{
    const inv_graph *g = l->g;
    const size_t n = strlen(glob);
    tally beside = {0}, shared = {0}, nameless = {0};
    inv_str text;
    l->module.n = 0;
    if (n < 2 || glob[n - 1] != '*') return;
    for (size_t i = 0; i < g->inits.n; i++) {
        const inv_value *v = inv_val(g, g->inits.at[i]);
        if (!inv_dtype_is_float(v->dtype) || !inv_param_fits(glob, v)) continue;
        note_modules(l, v, glob);
        if (is_of_others(v, glob) && !inv_said_none(v) && !inv_value_fixed(v)) count(&shared, v);
    }
    if (l->module.n) qsort(l->module.at, l->module.n, sizeof *l->module.at, by_text);
    for (size_t i = 0; i < g->inits.n && l->module.n; i++) {
        const inv_value *v = inv_val(g, g->inits.at[i]);
        if (!v->trainable || v->added || inv_param_fits(glob, v)) continue;
        if (is_beside(l, v)) count(&beside, v);
        else if (is_nameless(g, v)) count(&nameless, v);
    }
    inv_str_init(&text, g->ctx);
    say(&text, &beside, "tensor of the same modules is not matched", "tensors of the same modules are not matched");
    say(&text, &shared, "tensor that it matches is also read by other modules",
        "tensors that it matches are also read by other modules");
    say(&text, &nameless, "trained tensor is not matched, and the file does not name its module",
        "trained tensors are not matched, and the file does not name their modules");
    if (text.n)
        (void)json_array_append_new(
            list, json_pack("{s:s, s:s, s:s}", "option", inv_option(g->ctx, option), "glob", glob, "text", text.s));
    inv_str_fini(&text);
}

json_t *inv_report_globs(const inv_graph *g, const inv_session_options *o)
{
    json_t *list = json_array();
    inv_arena a;
    inv_arena_init(&a, g->ctx);
    looker l = {.g = g, .a = &a};
    for (size_t i = 0; i < o->ntrain_only; i++) look(&l, "train_only", o->train_only[i], list);
    for (size_t i = 0; i < o->nfreeze; i++) look(&l, "freeze", o->freeze[i], list);
    for (size_t i = 0; i < o->nstages; i++) look(&l, "stages", o->stages[i].glob, list);
    for (size_t i = 0; i < o->ngroups; i++) look(&l, "groups", o->groups[i].glob, list);
    inv_arena_fini(&a);
    return list;
}
