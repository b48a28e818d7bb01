/* SPDX-License-Identifier: Apache-2.0
 * What `check` suggests. Nothing is suggested but where a number says so, and the number is told. */
#include <math.h>
#include <string.h>

#include "api/check.h"

/* Five of float32's bits: from there on an inverse is worth a word although it is within the limit. */
#define STEEP 32

static double rounding(int type) { return type ? 0x1p-52 : 0x1p-23; }

static bool begins(const char *text, const char *with) { return text && strncmp(text, with, strlen(with)) == 0; }

const char *inv_tried_refused(const inv_findings *f, const inv_tried *t)
{
    const inv_off *off = &t->off[f->trained];
    if (off->known && off->nonfinite > 0) return "the restored value is not finite";
    if (off->known && off->relative > f->limit[f->trained]) return "the error is over the limit";
    if (!(t->gain < 1e30)) return "its gain has no bound";
    if (!t->exact && t->gain * rounding(f->trained) > f->limit[f->trained])
        return "its gain alone takes one rounding over the limit";
    return NULL;
}

typedef struct advice {
    inv_context *ctx;
    json_t *list;
    bool failed; /* out of memory: one is missing */
} advice;

static void add_advice(advice *a, const char *value, inv_str *text)
{
    a->failed = a->failed || text->failed;
    (void)json_array_append_new(a->list, json_pack("{s:s, s:s}", "value", value, "text", text->s));
    inv_str_fini(text);
}

/* What would make the inverse better, by what its gain depends on. */
static void remedy(inv_str *s, const inv_tried *t)
{
    const char *gain = t->rule->gain;
    if (t->spread > 2)
        inv_str_add(s, "; its values are that many times larger than those it is reconstructed from: scale the data "
                       "to a spread near 1");
    else if (begins(gain, "inv_norm"))
        inv_str_add(s,
                    "; its matrix has condition number %.3g: orthogonal initialisation, or a lower learning rate, "
                    "keeps it away from singular",
                    t->cond);
    else if (begins(gain, "max_inv"))
        inv_str_add(s, "; it divides by a factor as small as %.3g: initialize it near 1 and keep weight decay off it",
                    t->spread / t->bound);
    else if (begins(gain, "inv_attr")) inv_str_add(s, "; its slope is %.3g: one nearer to 1 loses less", 1 / t->gain);
}

/* A rule without a bound on its gain, where the data show why. */
static bool saturates(const inv_findings *f, const inv_tried *t)
{
    const inv_off *off = &t->off[f->trained];
    return off->known && !(t->gain < 1e30) && (off->relative > f->limit[f->trained] || t->magnified >= STEEP);
}

/* Over the limit; each such value is spoken of. */
static void advise_over(advice *a, const inv_findings *f, const inv_tried *t)
{
    const int type = f->trained;
    const inv_off *off = &t->off[type], *wide = &t->off[1];
    inv_str s;
    inv_str_init(&s, a->ctx);
    inv_str_add(&s, "%s %s", t->op, t->node);
    if (off->nonfinite > 0)
        inv_str_add(&s, ": %.0f elements of '%s' come back as NaN or infinite", off->nonfinite, t->value);
    else
        inv_str_add(&s, ": '%s' comes back with an error of %.2g, the limit is %.2g", t->value, off->relative,
                    f->limit[type]);
    remedy(&s, t);
    if (type == 0 && wide->known && wide->relative <= f->limit[1])
        inv_str_add(&s, "; with {float64} the error is %.2g", wide->relative);
    inv_str_add(&s, "; {keep} '%s' stores it from the first step on", t->value);
    add_advice(a, t->value, &s);
}

static double gain_of(const inv_tried *t) { return t->magnified >= 0 ? t->magnified : t->gain; }

/* Within the limit, but not by much. */
static bool steep(const inv_findings *f, const inv_tried *t)
{
    const inv_off *off = &t->off[f->trained];
    return off->known && off->relative <= f->limit[f->trained] && t->gain < 1e30 && gain_of(t) >= STEEP;
}

/* All nodes of one rule and one stated gain at once. */
static void advise_steep(advice *a, const inv_findings *f, size_t at)
{
    const inv_tried *t = &f->tried.at[at];
    size_t more = 0;
    double most = gain_of(t);
    inv_str s;
    for (size_t i = 0; i < f->tried.n; i++) {
        const inv_tried *o = &f->tried.at[i];
        const bool same = o->rule == t->rule && o->gain <= t->gain && o->gain >= t->gain;
        if (i == at || !same || !steep(f, o)) continue;
        if (i < at) return;
        more++;
        most = fmax(most, gain_of(o));
    }
    inv_str_init(&s, a->ctx);
    inv_str_add(&s, "%s %s", t->op, t->node);
    if (more) inv_str_add(&s, " and %zu more", more);
    inv_str_add(&s, ": errors grow %.3g-fold on the way back to '%s'", most, t->value);
    remedy(&s, t);
    add_advice(a, t->value, &s);
}

/* All nodes of a rule without a bound in one. */
static void advise_saturated(advice *a, const inv_findings *f, size_t at)
{
    const inv_tried *t = &f->tried.at[at];
    size_t more = 0;
    double most = t->magnified, lost = t->off[f->trained].nonfinite;
    inv_str s;
    for (size_t i = 0; i < f->tried.n; i++) {
        const inv_tried *o = &f->tried.at[i];
        if (i == at || o->rule != t->rule || !saturates(f, o)) continue;
        if (i < at) return;
        more++;
        most = fmax(most, o->magnified);
        lost += o->off[f->trained].nonfinite;
    }
    inv_str_init(&s, a->ctx);
    inv_str_add(&s, "%s %s", t->op, t->node);
    if (more) inv_str_add(&s, " and %zu more", more);
    inv_str_add(&s, " saturate%s on this data", more ? "" : "s");
    if (most >= 0) inv_str_add(&s, ": errors grow up to %.3g-fold on the way back", most);
    if (lost > 0) inv_str_add(&s, ", %.0f elements come back as NaN or infinite", lost);
    inv_str_add(&s, "; such values are stored or recomputed, never inverted. If that costs too much, use an "
                    "activation with a minimum slope, as LeakyRelu, or smaller inputs");
    add_advice(a, t->value, &s);
}

double inv_depth_growth(const inv_findings *f, int type)
{
    double n = 0, x = 0, y = 0, xx = 0, xy = 0; /* a line through the logarithms, least squares */
    for (size_t i = 0; i < f->depth.n; i++) {
        const double d = f->depth.at[i].drift[type], at = (double)i;
        if (!(d > 0) || d > 1) continue; /* nothing is left of the value */
        n++;
        x += at;
        y += log(d);
        xx += at * at;
        xy += at * log(d);
    }
    return n < 4 ? -1 : exp((n * xy - x * y) / (n * xx - x * x));
}

/* Errors that no single inverse makes, but all of them together: the guard had to keep values. */
static void advise_depth(advice *a, const inv_findings *f)
{
    const int type = f->trained;
    const double growth = inv_depth_growth(f, type);
    double most = 0;
    inv_str s;
    if (f->kept.n == 0) return;
    for (size_t i = 0; i < f->depth.n; i++) most = fmax(most, f->depth.at[i].drift[1]);
    inv_str_init(&s, a->ctx);
    inv_str_add(&s,
                "accumulated errors exceed the limit %.2g: the guard repeats a step with %zu more value%s stored. "
                "To store them from the first step:",
                f->limit[type], f->kept.n, f->kept.n > 1 ? "s" : "");
    for (size_t i = 0; i < f->kept.n; i++) inv_str_add(&s, " {keep} '%s'", f->kept.at[i]);
    if (growth > 1.02)
        inv_str_add(&s,
                    "; errors grow %.3g-fold from one rebuilt value to the next: smaller weights in the branches "
                    "(initialization, weight decay, a lower learning rate) reduce that",
                    growth);
    if (type == 0 && most > 0 && most <= f->limit[1]) inv_str_add(&s, "; with {float64} none is over %.2g", most);
    add_advice(a, f->kept.at[0], &s);
}

inv_status inv_check_advice(inv_context *ctx, const inv_findings *f, json_t *list)
{
    advice a = {ctx, list, false};
    for (size_t i = 0; i < f->tried.n; i++) {
        const inv_tried *t = &f->tried.at[i];
        const inv_off *off = &t->off[f->trained];
        if (t->exact) continue;
        if (saturates(f, t)) advise_saturated(&a, f, i);
        else if (off->known && off->relative > f->limit[f->trained]) advise_over(&a, f, t);
        else if (steep(f, t)) advise_steep(&a, f, i);
    }
    advise_depth(&a, f);
    return a.failed ? INV_E_NOMEM : INV_OK;
}

inv_status inv_refusal_advice(const inv_graph *g, json_t *list)
{
    advice a = {g->ctx, list, false};
    for (size_t i = 0; g->matches && i < g->matches->refusal.n; i++) {
        const inv_refusal *r = &g->matches->refusal.at[i];
        const inv_node *n = inv_nod(g, r->node);
        const char *condition = r->why.condition ? r->why.condition : "";
        const bool numbers = strncmp(condition, "cond(", 5) == 0 || strncmp(condition, "away_from_zero(", 15) == 0;
        inv_str s;
        if (!numbers || !r->why.remedy) continue;
        inv_str_init(&s, a.ctx);
        inv_str_add(&s, "%s %s is not inverted: %s; remedy: %s", inv_node_kind(n), inv_node_label(n), r->why.reason,
                    r->why.remedy);
        add_advice(&a, inv_val(g, n->out[0])->name, &s);
    }
    return a.failed ? INV_E_NOMEM : INV_OK;
}
