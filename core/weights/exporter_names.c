/* SPDX-License-Identifier: Apache-2.0
 * What exporters mean by the names of initializers (trained.h): a row a convention. Names of modules, which PyTorch's
 * files have, mean nothing here: they are parameters or buffers. */
#include <string.h>

#include "core/weights/trained.h"

/* Where in a name the words have to be: '^' at its beginning, '$' at the end of it or before ":0", '*' anywhere, 'n' at
 * the beginning, with a number behind. */
/* clang-format off */
static const struct {
    char where;
    inv_name_means means;
    bool tensorflow; /* in files that have names of TensorFlow's variables only */
    const char *words;
} rows[] = {
    {'*', INV_NAME_VARIABLE, false, "/ReadVariableOp"}, /* tf2onnx: what a resource variable holds */
    {'*', INV_NAME_VARIABLE, false, "/resource"},
    {'n', INV_NAME_CONSTANT, false, "auto.cast."},       /* Paddle2ONNX: numbers beside a tensor */
    {'n', INV_NAME_CONSTANT, false, "helper.constant."}, /* ... attributes that became inputs */
    {'^', INV_NAME_CONSTANT, false, "p2o.pd_op.full."},  /* ... tensors that formulas fill */
    {'^', INV_NAME_CONSTANT, false, "p2o.helper.constant."},
    {'^', INV_NAME_CONSTANT, false, "p2o.pd_op.assign_value"},
    {'*', INV_NAME_CONSTANT, false, ".export_handler."}, /* Brevitas: scales, zero points, bounds */
    {'*', INV_NAME_CONSTANT, false, "lifted_tensor_"},   /* PyTorch: tensors that forward makes */
    {'^', INV_NAME_CONSTANT, false, "_tensor_constant"},
    {'^', INV_NAME_CONSTANT, false, "lift_fresh_copy"},
    {'^', INV_NAME_CONSTANT, false, "scalar_tensor_default"},
    {'$', INV_NAME_CONSTANT, true, "/x"},                /* TensorFlow: operands that are no variables */
    {'$', INV_NAME_CONSTANT, true, "/y"},
    {'$', INV_NAME_CONSTANT, true, "/Const"},
    {'$', INV_NAME_CONSTANT, true, "/Const_1"},
    {'$', INV_NAME_CONSTANT, true, "/Const_2"},
};
/* clang-format on */

static bool has_variables(const inv_graph *g)
{
    bool any = false;
    for (size_t i = 0; i < g->inits.n && !any; i++) any = strstr(inv_val(g, g->inits.at[i])->name, "/ReadVariableOp");
    return any;
}

/* TensorFlow numbers the results of a node: ":0". */
static size_t length_of(const char *name)
{
    const char *colon = strrchr(name, ':');
    return colon && colon[1] && !colon[1 + strspn(colon + 1, "0123456789")] ? (size_t)(colon - name) : strlen(name);
}

static bool fits(char where, const char *words, const char *name)
{
    const size_t n = strlen(words), all = length_of(name);
    if (where == '*') return strstr(name, words) != NULL;
    if (where == '$') return all >= n && !strncmp(name + all - n, words, n);
    if (strncmp(name, words, n) != 0) return false;
    return where == '^' || (name[n] >= '0' && name[n] <= '9');
}

inv_name_means inv_name_meaning(const inv_graph *g, const char *name)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (fits(rows[i].where, rows[i].words, name) && (!rows[i].tensorflow || has_variables(g))) return rows[i].means;
    return INV_NAME_NOTHING;
}

bool inv_name_is_made(const char *name)
{
    return *name == '/' || !name[strspn(name, "0123456789")] || inv_name_is_generated(name);
}
