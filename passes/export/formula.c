/* SPDX-License-Identifier: Apache-2.0
 * Formulas as nodes of ONNX (formula.h). What is written keeps the precision of the kernels: where ONNX lacks a
 * function (log1p, expm1), a hyperbolic one that is as good near zero stands in. Nothing overflows or takes a negative
 * number's logarithm in a branch that is then not used. */
#include "passes/export/formula.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

enum { HAS_WHERE = 9, HAS_HYPERBOLIC = 9, MOST_OPERANDS = 3, MOST_NAMES = 8 };

/* What a part of a formula stands for: a value of the body, or a number that is not written yet. */
typedef struct term {
    const char *name; /* NULL: the number */
    double number;
} term;

typedef struct named {
    const char *name;
    size_t length;
    term is;
} named;

typedef struct formula {
    inv_onnx_body *r;
    const inv_node *n;
    const char *p; /* what is still to be read */
    named known[MOST_NAMES];
    size_t nknown;
    const char *out;
    bool failed;
} formula;

static const char *written(inv_onnx_body *r, term t) { return t.name ? t.name : inv_onnx_real(r, t.number); }

/* --- functions that ONNX does not have --- */

/* Runtimes have Atanh for float32 and less, operator sets from 9 on. */
static bool has_atanh(const inv_onnx_body *r) { return r->real != INV_F64 && r->opset >= HAS_HYPERBOLIC; }

/* ln((1 + t) / (1 - t)) = 2 atanh t. In float64 what the logarithm loses near zero is far below what is asked for. */
static const char *twice_atanh(inv_onnx_body *r, const char *t)
{
    if (has_atanh(r)) {
        const char *once = inv_onnx1(r, "Atanh", t);
        return inv_onnx2(r, "Add", once, once);
    }
    inv_onnx_body wide = *r;
    wide.real = INV_F64;
    const char *x = r->real != INV_F64 ? inv_onnx_cast(&wide, t, INV_F64) : t;
    const char *one = inv_onnx_real(&wide, 1), *above = inv_onnx2(&wide, "Add", one, x),
               *below = inv_onnx2(&wide, "Sub", one, x);
    const char *twice = inv_onnx1(&wide, "Log", inv_onnx2(&wide, "Div", above, below));
    r->fresh = wide.fresh;
    return r->real != INV_F64 ? inv_onnx_as_real(r, twice, t) : twice;
}

static const char *atanh_of(inv_onnx_body *r, const term *t, const char *out)
{
    if (has_atanh(r)) return inv_onnx_node(r, out ? out : inv_onnx_fresh(r), "Atanh", INV_NAMES(t->name), INV_NOATTR);
    const char *twice = twice_atanh(r, t->name), *half = inv_onnx_real(r, 0.5);
    return inv_onnx_node(r, out ? out : inv_onnx_fresh(r), "Mul", INV_NAMES(twice, half), INV_NOATTR);
}

/* ln(1 + u) = 2 atanh(u / (2 + u)) */
static const char *log1p_of(inv_onnx_body *r, const term *u, const char *out)
{
    (void)out;
    return twice_atanh(r, inv_onnx2(r, "Div", u->name, inv_onnx2(r, "Add", u->name, inv_onnx_real(r, 2))));
}

/* 1 where x < 0, else 0. */
static const char *below_of(inv_onnx_body *r, const term *x, const char *out)
{
    (void)out;
    return inv_onnx_as_real(r, inv_onnx2(r, "Less", x->name, inv_onnx_real(r, 0)), x->name);
}

/* ln k e^x where x < 0, else 0. */
static const char *exp_below_of(inv_onnx_body *r, const term *x, const char *out)
{
    const char *part = inv_onnx2(r, "Sub", x->name, inv_onnx1(r, "Relu", x->name));
    if (x[1].number == 1) return part;
    const char *mask = below_of(r, x, out), *more = inv_onnx2(r, "Mul", mask, inv_onnx_real(r, log(x[1].number)));
    return inv_onnx2(r, "Add", part, more);
}

/* y where y > 0, else y / k */
static const char *leaky_relu_inverse_of(inv_onnx_body *r, const term *y, const char *out)
{
    const double k = y[1].number;
    if (k == 0) {
        inv_onnx_refuse(r, "a slope of 0 has no inverse");
        return NULL;
    }
    if (out == NULL) out = inv_onnx_fresh(r);
    if (r->by_operator)
        return inv_onnx_node(r, out, "LeakyRelu", INV_NAMES(y->name), INV_ATTRS(inv_attr_of_float("alpha", 1 / k)));
    /* attributes of files are float32, which the slope is and its reciprocal is not */
    if (r->opset < HAS_WHERE) { /* a sum of two terms, one of which is 0 */
        const char *above = inv_onnx1(r, "Relu", y->name), *rest = inv_onnx2(r, "Sub", y->name, above);
        const char *steep = inv_onnx2(r, "Div", rest, inv_onnx_real(r, k));
        return inv_onnx_node(r, out, "Add", INV_NAMES(above, steep), INV_NOATTR);
    }
    const char *below = inv_onnx2(r, "Less", y->name, inv_onnx_real(r, 0)),
               *steep = inv_onnx2(r, "Div", y->name, inv_onnx_real(r, k));
    return inv_onnx_node(r, out, "Where", INV_NAMES(below, steep, y->name), INV_NOATTR);
}

static const struct {
    const char *name;
    const char *(*write)(inv_onnx_body *r, const term *operand, const char *out);
} functions[] = {{"Atanh", atanh_of},
                 {"Log1p", log1p_of},
                 {"Below", below_of},
                 {"ExpBelow", exp_below_of},
                 {"LeakyReluInverse", leaky_relu_inverse_of}};

/* --- reading --- */

static term failed(formula *f)
{
    f->failed = true;
    return (term){NULL, 0};
}

static size_t word(formula *f)
{
    size_t n = 0;
    while (*f->p == ' ') f->p++;
    while (isalnum((unsigned char)f->p[n]) || f->p[n] == '_') n++;
    return n;
}

static term call(formula *f, const char *name, const term *operand, uint32_t n, const char *out)
{
    const char *in[MOST_OPERANDS];
    term t = {NULL, 0};
    if (strcmp(name, "ln") == 0) return (term){NULL, log(operand[0].number)};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strcmp(functions[i].name, name) == 0) {
            t.name = functions[i].write(f->r, operand, out);
            return t.name ? t : failed(f);
        }
    if (n == 2 && !operand[1].name && operand[1].number == 1 && (strcmp(name, "Mul") == 0 || strcmp(name, "Div") == 0))
        return operand[0];
    for (uint32_t i = 0; i < n; i++) in[i] = written(f->r, operand[i]);
    t.name = inv_onnx_node(f->r, out ? out : inv_onnx_fresh(f->r), name, n, in, INV_NOATTR);
    return t.name ? t : failed(f);
}

/* `out`: what the result is to be called, if this is the last call of all; else NULL. */
static term expression(formula *f, const char *out)
{
    const size_t n = word(f);
    const char *at = f->p;
    char *end;
    if (isdigit((unsigned char)*at) || *at == '-') {
        const term number = {NULL, strtod(at, &end)};
        f->p = end;
        return number;
    }
    if (at[n] != '(') {
        for (size_t i = 0; i < f->nknown; i++)
            if (f->known[i].length == n && strncmp(f->known[i].name, at, n) == 0) {
                f->p += n;
                return f->known[i].is;
            }
        return failed(f);
    }
    f->p += n;
    term operand[MOST_OPERANDS] = {{NULL, 0}};
    uint32_t count = 0;
    do {
        f->p++;
        operand[count++] = expression(f, NULL);
    } while (!f->failed && *f->p == ',' && count < MOST_OPERANDS);
    if (f->failed || *f->p != ')') return failed(f);
    f->p++;
    const char *name = inv_arena_printf(f->r->a, "%.*s", (int)n, at);
    return name ? call(f, name, operand, count, out) : failed(f);
}

static void know(formula *f, const char *name, size_t length, term is)
{
    if (f->nknown == MOST_NAMES) f->failed = true;
    else f->known[f->nknown++] = (named){name, length, is};
}

/* Those that are called something. */
static void know_names(formula *f, const char *list, const char *const **value)
{
    for (const char *p = list; *p; p += strspn(p, " ?*")) {
        const size_t n = strcspn(p, " ?*");
        const char *called = *(*value)++;
        if (called) know(f, p, n, (term){called, 0});
        p += n;
    }
}

const char *inv_formula_write(inv_onnx_body *r, const inv_node *n, const char *text, const char *const *value,
                              const char *out)
{
    formula f = {.r = r, .n = n, .p = text};
    double number[2];
    term t = {NULL, 0};
    inv_op_reals(n, number);
    know_names(&f, n->op->in, &value);
    know_names(&f, n->op->out, &value);
    for (int i = 0; i < 2; i++)
        if (n->op->real.name[i]) know(&f, n->op->real.name[i], strlen(n->op->real.name[i]), (term){NULL, number[i]});
    while (!f.failed && *f.p) {
        const size_t length = word(&f);
        const char *name = f.p;
        const bool step = strncmp(name + length, " = ", 3) == 0;
        if (step) f.p += length + 3;
        t = expression(&f, step ? NULL : out);
        if (step) know(&f, name, length, t);
        if (!f.failed && *f.p == ';') f.p++;
        else if (*f.p) f.failed = true;
    }
    if (!f.failed) return written(r, t);
    const char *format = "the row of %s has a formula that cannot be read from '%s' on";
    if (!r->a->failed && !r->reason) inv_onnx_refuse(r, inv_arena_printf(r->a, format, n->op->name, f.p));
    return NULL;
}

bool inv_formula_raise(const inv_raising *b, const char *text)
{
    const char *value[MOST_NAMES] = {NULL};
    for (uint32_t i = 0; i < b->n->nin; i++) value[i] = b->in[i];
    return inv_formula_write(b->r, b->n, text, value, b->out[0]) != NULL;
}
