/* SPDX-License-Identifier: Apache-2.0
 * Which parameters are trained (trained.h). */
#include "core/weights/trained.h"

#include <fnmatch.h>
#include <math.h>
#include <string.h>

#include "core/graph/node.h"
#include "core/weights/exported.h"
#include "core/weights/module_names.h"
#include "core/weights/shared_weights.h"

/* exp of less is nothing beside exp(0): what is added so to scores takes a place out of the softmax. What is taken away
 * or multiplied may have the other sign. No training makes an element of a bias that is hopeless. */
static const double FAR = 30, HOPELESS = 1000;

/* What takes a reason back: nothing, train_only by the whole name, or by a pattern too. */
typedef enum override { NEVER, IN_FULL, NAMED } override;

/* clang-format off */
static const struct {
    override by;
    const char *key, *text, *one, *many;
} reasons[INV_UNTRAINED_REASONS] = {
    [INV_TRAINED] = {NAMED, "trained", "trained", "parameter", "parameters"},
    [INV_UNTRAINED_TYPE] = {NEVER, "type", "not of a floating-point type", "tensor of another type",
                            "tensors of other types"},
    [INV_UNTRAINED_SCALAR] = {IN_FULL, "scalar", "a single number of rank 0: part of a formula", "scalar", "scalars"},
    [INV_UNTRAINED_INVERSE] = {NEVER, "inverse", "inverse of another parameter, refreshed when the model is written",
                               "inverse of a parameter", "inverses of parameters"},
    [INV_UNTRAINED_STATISTIC] = {NEVER, "statistic", "a running statistic of batch normalization", "running statistic",
                                 "running statistics"},
    [INV_UNTRAINED_QUANTIZATION] = {IN_FULL, "quantization", "a scale or zero point of quantization",
                                    "scale of quantization", "scales of quantization"},
    [INV_UNTRAINED_BUFFER] = {NAMED, "buffer", "a buffer of the model, not a parameter", "buffer", "buffers"},
    [INV_UNTRAINED_CONSTANT] = {NAMED, "constant", "a constant: the file says which are parameters, and this is none",
                                "constant", "constants"},
    [INV_UNTRAINED_NUMBER] = {NAMED, "number", "a single number: part of a formula",
                              "single number", "single numbers"},
    [INV_UNTRAINED_STEERS] = {NEVER, "steers", "it decides shapes or branches, so no gradient reaches it",
                              "number that steers", "numbers that steer"},
    [INV_UNTRAINED_OPERAND] = {NAMED, "operand", "a constant, by the operand that it is", "constant operand",
                               "constant operands"},
    [INV_UNTRAINED_EXPORTER] = {NAMED, "exporter", "a constant, by the name that its exporter gave it",
                                "constant of the exporter", "constants of the exporter"},
    [INV_UNTRAINED_INPUT] = {NAMED, "input", "mean or deviation by which the model normalizes its input",
                             "number that normalizes the input", "numbers that normalize the input"},
    [INV_UNTRAINED_FILTER] = {NAMED, "filter", "a filter that no training made: the same for every channel",
                              "fixed filter", "fixed filters"},
    [INV_UNTRAINED_MASK] = {NAMED, "mask", "a mask, by its values", "mask", "masks"},
    [INV_UNTRAINED_ROTATION] = {NAMED, "rotation", "cosines or sines of rotary positions",
                                "table of rotations", "tables of rotations"},
    [INV_UNTRAINED_FOURIER] = {NAMED, "fourier", "cosines and sines of a Fourier transform, by their values",
                               "table of a Fourier transform", "tables of Fourier transforms"},
    [INV_UNTRAINED_POSITIONS] = {NAMED, "positions", "waves of positions, or their frequencies, by their values",
                                 "table of positions", "tables of positions"},
    [INV_UNTRAINED_HABIT] = {NAMED, "default", "all ones or all zeros, put there by the exporter",
                             "default of the exporter", "defaults of the exporter"},
    [INV_UNTRAINED_NONFINITE] = {NEVER, "not_finite", "holds numbers that are not finite",
                                 "tensor with infinities or NaN", "tensors with infinities or NaN"},
    [INV_UNTRAINED_TIED] = {NAMED, "tied",
                            "another parameter transposed: it follows that one and is written back with it",
                            "transposed copy", "transposed copies"},
    [INV_UNTRAINED_FROZEN] = {NEVER, "frozen", "frozen", "frozen one", "frozen ones"},
    [INV_UNTRAINED_LATER] = {NEVER, "later", "frozen at first: it is trained in a later stage", "trained later",
                             "trained later"},
    [INV_UNTRAINED_UNNAMED] = {NAMED, "not_named", "not among those that are named to be trained", "not named",
                               "not named"},
    [INV_UNTRAINED_UNREACHED] = {NEVER, "not_reached", "not on a differentiable path to the loss",
                                 "not reached by the loss", "not reached by the loss"},
};
/* clang-format on */

const char *inv_untrained_key(inv_untrained why) { return reasons[why].key; }
const char *inv_untrained_text(inv_untrained why) { return reasons[why].text; }
const char *inv_untrained_noun(inv_untrained why, bool plural) { return plural ? reasons[why].many : reasons[why].one; }

typedef struct finder {
    const inv_graph *g;
    const inv_session_options *o;
    inv_arena *a;
    const uint32_t *roles;
    const bool *number;
    size_t *pairs; /* of initializers that were compared */
} finder;

static uint32_t bit(inv_use_role role) { return 1u << role; }

/* --- names --- */

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

/* The initializer that is called like `name`, with `end` in place of its last `cut` letters; INV_NONE. */
static inv_id sibling(const finder *f, const char *name, size_t cut, const char *end)
{
    const size_t n = strlen(name);
    const char *other = n >= cut ? inv_arena_printf(f->a, "%.*s%s", (int)(n - cut), name, end) : NULL;
    inv_id v = other ? inv_graph_find(f->g, other) : INV_NONE;
    return v != INV_NONE && inv_val(f->g, v)->role == INV_ROLE_PARAM ? v : INV_NONE;
}

/* A batch normalization in arithmetic, beside whose variance all is buffers, too (torchvision's FrozenBatchNorm2d). */
static bool is_frozen_norm(const finder *f, const char *name, size_t cut)
{
    const uint32_t statistic = bit(INV_USE_MEAN) | bit(INV_USE_VARIANCE) | bit(INV_USE_FIXED);
    const inv_id v = sibling(f, name, cut, "running_var");
    return v != INV_NONE && f->roles[v] && !(f->roles[v] & statistic);
}

/* The vectors P_u and P_v of spectral normalization, beside the matrix P_orig or P.original that they are multiplied
 * with. Weight normalization, whose P_v is a parameter, has P_g. */
static bool is_spectral(const finder *f, const inv_value *x, uint32_t roles)
{
    static const struct {
        size_t cut;
        const char *end;
    } matrix[] = {{2, "_orig"}, {sizeof "0._u" - 1, "original"}, {2, ""}};
    if (!ends_with(x->name, "_u") && !ends_with(x->name, "_v")) return false;
    if (x->shape.rank != 1 || sibling(f, x->name, 2, "_g") != INV_NONE) return false;
    for (size_t i = 0; i < sizeof matrix / sizeof *matrix; i++) {
        const inv_id v = sibling(f, x->name, matrix[i].cut, matrix[i].end);
        if (v == INV_NONE || inv_val(f->g, v)->shape.rank < 2) continue;
        if (*matrix[i].end || roles & bit(INV_USE_WEIGHT)) return true;
    }
    return false;
}

/* What PyTorch calls its buffers, and what calls itself one. */
static bool is_buffer_by_name(const finder *f, const inv_value *x, uint32_t roles)
{
    static const char *const own[] = {"running_mean", "running_var", "num_batches_tracked", "_buffer"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (ends_with(x->name, own[i])) return true;
    if (ends_with(x->name, "weight") && is_frozen_norm(f, x->name, strlen("weight"))) return true;
    if (ends_with(x->name, "bias") && is_frozen_norm(f, x->name, strlen("bias"))) return true;
    return is_spectral(f, x, roles);
}

/* "Constant_3", "/blocks.0/Constant_output_0": the result of a Constant node that became an initializer. */
static bool is_of_constant(const char *name)
{
    const char *slash = strrchr(name, '/'), *p = slash ? slash + 1 : name;
    if (strncmp(p, "Constant", strlen("Constant")) != 0) return false;
    p += strlen("Constant");
    if (*p == '_' && strspn(p + 1, "0123456789")) p += 1 + strspn(p + 1, "0123456789");
    static const char out[] = "_output_";
    if (!strncmp(p, out, sizeof out - 1)) p += sizeof out - 1 + strspn(p + sizeof out - 1, "0123456789");
    return !*p;
}

bool inv_name_is_generated(const char *name)
{
    if (!strncmp(name, "onnx::", 6) || is_of_constant(name)) return true;
    const size_t first = *name == '_', own = !strncmp(name + first, "val_", 4) ? first + 4 : 3;
    if (own == 3 && strncmp(name, "_v_", 3) != 0) return false; /* "_v_12" is of onnxsim */
    return name[own] && !name[own + strspn(name + own, "0123456789_")];
}

/* --- values --- */

/* Numbers that take places out of a softmax, and zeros; or, of a bias that has a mask in it, hopeless ones. */
static bool is_additive_mask(const inv_data *d)
{
    bool out = false, else_zero = true, hopeless = false;
    for (size_t i = 0, n = inv_data_count(d); i < n && (else_zero || !hopeless); i++) {
        const double x = fabs(inv_elem_double(d->bytes, d->dtype, i));
        out |= x >= FAR;
        hopeless |= x >= HOPELESS && isfinite(x);
        else_zero &= x == 0 || x >= FAR;
    }
    return (out && else_zero) || hopeless;
}

static bool is_along_one_axis(const inv_shape *s)
{
    int axes = 0;
    for (int i = 0; i < s->rank; i++) axes += s->dim[i] != 1;
    return s->rank > 0 && axes <= 1;
}

/* Whether all are 0 or 1; *zero, *one: whether there is any. */
static bool is_zero_or_one(const inv_data *d, bool *zero, bool *one)
{
    *zero = *one = false;
    for (size_t i = 0, n = inv_data_count(d); i < n; i++) {
        const double x = inv_elem_double(d->bytes, d->dtype, i);
        if (x != 0 && x != 1) return false;
        *(x == 0 ? zero : one) = true;
    }
    return *zero || *one;
}

/* --- the decision --- */

/* By what the file says; INV_TRAINED: it does not say that it is none. */
static inv_untrained by_word(const finder *f, const inv_value *x, uint32_t roles)
{
    if (x->said == INV_SAID_BUFFER) return INV_UNTRAINED_BUFFER;
    if (!f->g->says || x->said == INV_SAID_PARAMETER || x->said == INV_SAID_OF_PARAMETERS) return INV_TRAINED;
    const uint32_t weight = bit(INV_USE_WEIGHT) | bit(INV_USE_BIAS) | bit(INV_USE_TABLE);
    const bool bias = roles & bit(INV_USE_ADDED) && is_along_one_axis(&x->shape);
    const bool stands_in = x->said == INV_SAID_NOTHING && inv_has_lost(f->g->exported) && (roles & weight || bias);
    return stands_in ? INV_TRAINED : INV_UNTRAINED_CONSTANT;
}

/* By its values, of what is computed with, or looked up for that. */
static bool is_mask(const inv_value *x, uint32_t roles)
{
    bool zero, one;
    if (roles & INV_USE_ROLES & ~(bit(INV_USE_OPERAND) | bit(INV_USE_TABLE) | INV_USE_NO_WEIGHT)) return false;
    if (roles & bit(INV_USE_SCORES) && is_additive_mask(&x->data)) return true;
    if (!(roles & (bit(INV_USE_FACTOR) | bit(INV_USE_SCALED)))) return false;
    return is_zero_or_one(&x->data, &zero, &one) && zero && one;
}

/* One element by which scores are changed for all data alike: of the formula of a mask. */
static bool is_number_of_mask(const inv_value *x, uint32_t roles)
{
    const uint32_t both = bit(INV_USE_SCORES) | bit(INV_USE_SCALED);
    return inv_shape_nelem(&x->shape) == 1 && (roles & both) == both && (roles & INV_USE_ROLES) == bit(INV_USE_OPERAND);
}

/* What is multiplied with, and differs within. */
static bool is_varied_factor(const finder *f, inv_id v)
{
    const inv_data *d = &inv_val(f->g, v)->data;
    const size_t size = inv_dtype_size(d->dtype);
    if ((f->roles[v] & INV_USE_ROLES) != bit(INV_USE_OPERAND) || !(f->roles[v] & bit(INV_USE_FACTOR))) return false;
    return d->bytes && d->nbytes > size && memcmp(d->bytes, (const char *)d->bytes + size, d->nbytes - size) != 0;
}

/* Two factors whose squares add up to one everywhere: cosines and sines of angles. No model has so many pairs of
 * factors that not all of them are looked at. */
static bool is_rotation(const finder *f, inv_id v)
{
    enum { MOST_PAIRS = 1 << 22 };
    if (!is_varied_factor(f, v)) return false;
    const inv_data *x = &inv_val(f->g, v)->data;
    const double off = inv_wave_rounding(x);
    for (size_t k = 0, n = inv_data_count(x); k < n; k++) {
        const double a = inv_elem_double(x->bytes, x->dtype, k);
        if (a * a > 1 + off) return false;
    }
    for (size_t i = 0; i < f->g->inits.n && *f->pairs < MOST_PAIRS; i++, ++*f->pairs) {
        const inv_id u = f->g->inits.at[i];
        const inv_data *y = &inv_val(f->g, u)->data;
        if (u == v || y->dtype != x->dtype || y->nbytes != x->nbytes || !is_varied_factor(f, u)) continue;
        bool one = true;
        for (size_t k = 0, n = inv_data_count(x); k < n && one; k++) {
            const double a = inv_elem_double(x->bytes, x->dtype, k), b = inv_elem_double(y->bytes, y->dtype, k);
            one = a * a + b * b > 1 - off && a * a + b * b < 1 + off;
        }
        if (one) return true;
    }
    return false;
}

/* All ones or all zeros, by a name that an exporter of PyTorch makes up. Zeros behind a product are a new bias, and
 * what is there for each channel was a new parameter before it was given more axes: of a group normalization, say. */
static bool is_habit(const finder *f, const inv_value *x, uint32_t roles)
{
    const uint32_t role = roles & INV_USE_ROLES;
    const uint32_t operand = bit(INV_USE_OPERAND) | bit(INV_USE_SCALE) | bit(INV_USE_SHIFT);
    bool zero, one;
    if (!f->g->from_torch || !role || role & ~operand || !inv_name_is_generated(x->name)) return false;
    if (roles & bit(INV_USE_ADDED)) return false;
    const bool per_channel = is_along_one_axis(&x->shape) && inv_shape_nelem(&x->shape) > 1;
    if (role == bit(INV_USE_OPERAND) && per_channel && !is_of_constant(x->name)) return false;
    return is_zero_or_one(&x->data, &zero, &one) && zero != one;
}

/* --- the table of evidence --- */

static const inv_value *value_of(const finder *f, inv_id v) { return inv_val(f->g, v); }
static bool has_role(const finder *f, inv_id v, uint32_t bits) { return f->roles[v] & bits; }
static bool only(const finder *f, inv_id v, uint32_t bits)
{
    const uint32_t roles = f->roles[v] & INV_USE_ROLES;
    return roles && !(roles & ~bits);
}

static bool of_type(const finder *f, inv_id v)
{
    return value_of(f, v)->type || !inv_dtype_is_float(value_of(f, v)->dtype);
}
static bool steers(const finder *f, inv_id v) { return value_of(f, v)->steers; }
static bool quantizes(const finder *f, inv_id v) { return has_role(f, v, bit(INV_USE_QUANTIZATION)); }
static bool whole_numbers(const finder *f, inv_id v)
{
    return only(f, v, bit(INV_USE_WEIGHT)) && inv_holds_whole_numbers(&value_of(f, v)->data);
}
static bool inverse(const finder *f, inv_id v) { return value_of(f, v)->inverse_of != NULL; }
static bool statistic(const finder *f, inv_id v)
{
    return has_role(f, v, bit(INV_USE_MEAN) | bit(INV_USE_VARIANCE) | bit(INV_USE_FIXED));
}
static bool said(const finder *f, inv_id v) { return value_of(f, v)->said == INV_SAID_PARAMETER; }
static bool said_buffer(const finder *f, inv_id v) { return value_of(f, v)->said == INV_SAID_BUFFER; }
static bool said_constant(const finder *f, inv_id v)
{
    const inv_value *x = value_of(f, v);
    return !inv_value_fixed(x) && by_word(f, x, f->roles[v]) == INV_UNTRAINED_CONSTANT;
}
static bool computed(const finder *f, inv_id v) { return value_of(f, v)->said == INV_SAID_OF_PARAMETERS; }
static bool stands_in(const finder *f, inv_id v) { return f->g->says && value_of(f, v)->said == INV_SAID_NOTHING; }
static bool variable(const finder *f, inv_id v)
{
    return !f->g->says && inv_name_meaning(f->g, value_of(f, v)->name) == INV_NAME_VARIABLE;
}
static bool slope(const finder *f, inv_id v)
{
    return !f->g->says && value_of(f, v)->shape.rank == 0 && only(f, v, bit(INV_USE_SCALE));
}
static bool lone_bias(const finder *f, inv_id v)
{
    return !f->g->says && has_role(f, v, bit(INV_USE_ALONE)) && inv_shape_nelem(&value_of(f, v)->shape) == 1;
}
static bool scalar(const finder *f, inv_id v) { return inv_value_fixed(value_of(f, v)); }
/* An exponent by a name of its own in files of PyTorch's older exporter, whose constants have none: of a generalized
 * mean (GeM), which is learned. */
static bool learned_exponent(const finder *f, inv_id v)
{
    bool any = false;
    if (!f->g->from_torch || f->g->says || inv_name_is_generated(value_of(f, v)->name)) return false;
    for (size_t i = 0; i < f->g->order.n && !any; i++) {
        const inv_node *n = inv_nod(f->g, f->g->order.at[i]);
        any = inv_node_is(n, "Pow") && n->nin == 2 && n->in[1] == v;
    }
    return any;
}
static bool constant_operand(const finder *f, inv_id v)
{
    return only(f, v, INV_USE_NO_WEIGHT) && !learned_exponent(f, v);
}
static bool state(const finder *f, inv_id v) { return only(f, v, bit(INV_USE_STATE)); }
static bool base(const finder *f, inv_id v)
{
    const inv_data *d = &value_of(f, v)->data;
    const size_t size = inv_dtype_size(d->dtype);
    return only(f, v, bit(INV_USE_BASE)) && d->bytes && d->nbytes >= size &&
           !memcmp(d->bytes, (const char *)d->bytes + size, d->nbytes - size);
}
/* Where PyTorch's files say no more, a layer's own weight is a parameter, however it begins (bilinear, Dirac). */
static bool filter(const finder *f, inv_id v)
{
    if (f->g->from_torch && ends_with(value_of(f, v)->name, ".weight")) return false;
    return only(f, v, bit(INV_USE_WEIGHT)) && inv_holds_filter(&value_of(f, v)->data);
}
static bool number(const finder *f, inv_id v) { return f->number[v] && value_of(f, v)->said != INV_SAID_NAMED; }
static bool named_constant(const finder *f, inv_id v)
{
    const uint32_t weight = bit(INV_USE_WEIGHT) | bit(INV_USE_TABLE) | bit(INV_USE_BIAS) | bit(INV_USE_ADDED);
    if (inv_name_meaning(f->g, value_of(f, v)->name) != INV_NAME_CONSTANT) return false;
    return !has_role(f, v, weight) || inv_shape_nelem(&value_of(f, v)->shape) == 1;
}
/* A number that TensorFlow's exporter has given the rank of what it is computed with as it moves transposes about; what
 * is added to a product is a bias. */
static bool folded_number(const finder *f, inv_id v)
{
    if (!only(f, v, bit(INV_USE_OPERAND)) || has_role(f, v, bit(INV_USE_ADDED))) return false;
    return inv_shape_nelem(&value_of(f, v)->shape) == 1 && strstr(value_of(f, v)->name, "const_fold_opt__");
}
static bool epsilon(const finder *f, inv_id v) { return only(f, v, bit(INV_USE_OPERAND)) && inv_is_epsilon(f->g, v); }
static bool buffer(const finder *f, inv_id v) { return is_buffer_by_name(f, value_of(f, v), f->roles[v]); }
static bool normalizes_input(const finder *f, inv_id v)
{
    static const char *const learned[] = {"weight", "bias", "scale", "shift", "gamma", "beta", "kernel", "loc"};
    const inv_value *x = value_of(f, v);
    bool zero, one;
    for (size_t i = 0; i < sizeof learned / sizeof *learned; i++)
        if (ends_with(x->name, learned[i])) return false;
    if (!has_role(f, v, bit(INV_USE_OF_INPUT)) || !only(f, v, bit(INV_USE_OPERAND))) return false;
    return is_along_one_axis(&x->shape) && !(is_zero_or_one(&x->data, &zero, &one) && zero != one);
}
static bool mask(const finder *f, inv_id v) { return is_mask(value_of(f, v), f->roles[v]); }
static bool mask_number(const finder *f, inv_id v) { return is_number_of_mask(value_of(f, v), f->roles[v]); }
static bool rotation(const finder *f, inv_id v) { return has_role(f, v, bit(INV_USE_ROTATION)) || is_rotation(f, v); }
static bool fourier(const finder *f, inv_id v) { return inv_holds_fourier(value_of(f, v), f->roles[v]); }
static bool positions(const finder *f, inv_id v) { return inv_holds_positions(value_of(f, v), f->roles[v]); }
static bool habit(const finder *f, inv_id v) { return is_habit(f, value_of(f, v), f->roles[v]); }
static bool weight(const finder *f, inv_id v)
{
    const uint32_t all = bit(INV_USE_WEIGHT) | bit(INV_USE_TABLE) | bit(INV_USE_BIAS) | bit(INV_USE_SCALE);
    return has_role(f, v, all | bit(INV_USE_SHIFT));
}
static bool added(const finder *f, inv_id v) { return has_role(f, v, bit(INV_USE_ADDED)); }
static bool named(const finder *f, inv_id v) { return value_of(f, v)->said == INV_SAID_NAMED; }
static bool any(const finder *f, inv_id v)
{
    (void)f;
    (void)v;
    return true;
}

/* A row a kind of evidence; the first that holds decides. What cannot be otherwise is first, then what the file says,
 * what the operand says, what the exporter's name says, what the values say, and last the shape. */
/* clang-format off */
static const struct {
    const char *key;
    inv_untrained verdict;
    bool (*holds)(const finder *f, inv_id v);
    const char *text; /* NULL: that of the verdict */
} evidence[] = {
    {"type", INV_UNTRAINED_TYPE, of_type, NULL},
    {"steers", INV_UNTRAINED_STEERS, steers, NULL},
    {"quantization", INV_UNTRAINED_QUANTIZATION, quantizes, NULL},
    {"inverse", INV_UNTRAINED_INVERSE, inverse, NULL},
    {"statistic", INV_UNTRAINED_STATISTIC, statistic, NULL},
    {"file_parameter", INV_TRAINED, said, "the file calls it a parameter"},
    {"file_buffer", INV_UNTRAINED_BUFFER, said_buffer, NULL},
    {"whole_numbers", INV_UNTRAINED_QUANTIZATION, whole_numbers,
     "whole numbers of 8 bits: a weight that was quantized"},
    {"file_constant", INV_UNTRAINED_CONSTANT, said_constant, NULL},
    {"computed", INV_TRAINED, computed, "the exporter computed it from parameters"},
    {"variable", INV_TRAINED, variable, "its exporter names variables so"},
    {"slope", INV_TRAINED, slope, "a slope of PRelu: one that is no weight is written as LeakyRelu"},
    {"lone_bias", INV_TRAINED, lone_bias, "added to a product that has one result: a bias"},
    {"scalar", INV_UNTRAINED_SCALAR, scalar, NULL},
    {"operand", INV_UNTRAINED_OPERAND, constant_operand,
     "an operand that no framework trains: an exponent, values of OneHot, a window, an operand of a comparison"},
    {"state", INV_UNTRAINED_OPERAND, state, "the state, row by row, that a recurrent layer begins with"},
    {"base", INV_UNTRAINED_OPERAND, base, "the start of a sum: a scatter or loop adds its values there"},
    {"number", INV_UNTRAINED_NUMBER, number, NULL},
    {"name", INV_UNTRAINED_EXPORTER, named_constant, NULL},
    {"buffer", INV_UNTRAINED_BUFFER, buffer, "a buffer of the model, by its name"},
    {"folded_number", INV_UNTRAINED_NUMBER, folded_number, NULL},
    {"epsilon", INV_UNTRAINED_NUMBER, epsilon, "a small number that keeps a root, logarithm or quotient finite"},
    {"filter", INV_UNTRAINED_FILTER, filter, NULL},
    {"mask", INV_UNTRAINED_MASK, mask, NULL},
    {"mask_number", INV_UNTRAINED_NUMBER, mask_number, "a single number, by which a mask is made"},
    {"rotation", INV_UNTRAINED_ROTATION, rotation, NULL},
    {"fourier", INV_UNTRAINED_FOURIER, fourier, NULL},
    {"positions", INV_UNTRAINED_POSITIONS, positions, NULL},
    {"input", INV_UNTRAINED_INPUT, normalizes_input, NULL},
    {"default", INV_UNTRAINED_HABIT, habit, NULL},
    {"stands_in", INV_TRAINED, stands_in, "a weight by its operand; the file lacks parameters by their names"},
    {"weight", INV_TRAINED, weight, "a weight, bias or table, by its operand"},
    {"bias", INV_TRAINED, added, "added to a product with a weight: a bias"},
    {"named", INV_TRAINED, named, "PyTorch's older exporter gives such names to parameters, and to buffers"},
    {"shape", INV_TRAINED, any, "nothing but its shape: a tensor of rank 1 or more that the model computes with"},
};
/* clang-format on */

const char *inv_evidence_key(uint8_t row) { return evidence[row].key; }
const char *inv_evidence_text(uint8_t row)
{
    return evidence[row].text ? evidence[row].text : reasons[evidence[row].verdict].text;
}

static uint8_t evidence_of(const finder *f, inv_id v)
{
    uint8_t row = 0;
    while (!evidence[row].holds(f, v)) row++; /* the last row always holds */
    return row;
}

static inv_untrained nature_of(const finder *f, inv_id v) { return evidence[evidence_of(f, v)].verdict; }

/* Whether a name is in the list, and to the letter. */
static bool is_named(const char *const *globs, size_t n, const inv_value *v, bool *exactly)
{
    bool any = false;
    *exactly = false;
    for (size_t i = 0; i < n; i++) {
        any = any || inv_param_fits(globs[i], v);
        *exactly = *exactly || inv_param_is_called(globs[i], v);
    }
    return any;
}

uint64_t inv_trained_from(const inv_session_options *o, const inv_value *v)
{
    uint64_t from = 0;
    bool any = false;
    for (size_t i = 0; i < o->nstages; i++) {
        const inv_stage *s = &o->stages[i];
        if (v->added ? !inv_param_is_called(s->glob, v) : !inv_param_fits(s->glob, v)) continue;
        from = any && from < s->from ? from : s->from;
        any = true;
    }
    return from;
}

static inv_status check_stages(const inv_graph *g, const inv_session_options *o)
{
    for (size_t k = 0; o && k < o->nstages; k++) {
        inv_near near = inv_near_to(o->stages[k].glob);
        bool any = false;
        for (size_t i = 0; i < g->inits.n && !any; i++) {
            any = inv_param_fits(o->stages[k].glob, inv_val(g, g->inits.at[i]));
            inv_param_look(&near, inv_val(g, g->inits.at[i]));
        }
        INV_CHECK(any, g->ctx, INV_E_ARG, "{stages}: '%s' fits no initializer" INV_NEAR_FORMAT, o->stages[k].glob,
                  INV_NEAR_ARGS(near));
    }
    return INV_OK;
}

static inv_status decide(const finder *f, inv_id v, inv_untrained *why)
{
    static const inv_session_options none = {0};
    const inv_session_options *o = f->o ? f->o : &none;
    const inv_value *x = inv_val(f->g, v);
    bool exactly, frozen_exactly;
    const bool named = is_named(o->train_only, o->ntrain_only, x, &exactly);
    *why = nature_of(f, v);
    if (reasons[*why].by == NEVER || (reasons[*why].by == IN_FULL && !exactly)) return INV_OK;
    if (is_named(o->freeze, o->nfreeze, x, &frozen_exactly)) *why = INV_UNTRAINED_FROZEN;
    else if (named) *why = INV_TRAINED;
    else if ((o->ntrain_only || f->g->adapted) && *why == INV_TRAINED && !x->added) *why = INV_UNTRAINED_UNNAMED;
    if (*why == INV_TRAINED && inv_trained_from(o, x) > o->first_step) *why = INV_UNTRAINED_LATER;
    if ((*why != INV_TRAINED && *why != INV_UNTRAINED_LATER) || inv_holds_finite(&x->data)) return INV_OK;
    *why = INV_UNTRAINED_NONFINITE;
    INV_CHECK(!exactly, f->g->ctx, INV_E_ARG,
              "'%s' cannot be trained: it holds non-finite numbers, as masks do, and would keep them. Leave it out",
              x->name);
    return INV_OK;
}

inv_status inv_trained_find(const inv_graph *g, const inv_session_options *o, inv_arena *a, uint8_t **out)
{
    uint32_t *roles;
    bool *number;
    INV_TRY(check_stages(g, o));
    INV_TRY(inv_param_roles(g, o && o->train_bn, a, &roles));
    INV_TRY(inv_param_numbers(g, a, &number));
    *out = INV_ARENA_NEW(a, uint8_t, g->value.n + 1);
    if (!*out) return INV_E_NOMEM;
    size_t pairs = 0;
    const finder f = {g, o, a, roles, number, &pairs};
    for (size_t i = 0; i < g->inits.n; i++) {
        inv_untrained why;
        INV_TRY(decide(&f, g->inits.at[i], &why));
        (*out)[g->inits.at[i]] = (uint8_t)why;
    }
    return a->failed ? INV_E_NOMEM : INV_OK;
}

inv_status inv_evidence_find(const inv_graph *g, inv_arena *a, uint8_t **out)
{
    uint32_t *roles;
    bool *number;
    size_t pairs = 0;
    INV_TRY(inv_param_roles(g, false, a, &roles));
    INV_TRY(inv_param_numbers(g, a, &number));
    *out = INV_ARENA_NEW(a, uint8_t, g->value.n + 1);
    if (!*out) return INV_E_NOMEM;
    const finder f = {g, NULL, a, roles, number, &pairs};
    for (size_t i = 0; i < g->inits.n; i++) (*out)[g->inits.at[i]] = evidence_of(&f, g->inits.at[i]);
    return a->failed ? INV_E_NOMEM : INV_OK;
}

/* Adds how many initializers of a compiled graph (inv_value.untrained) are left out, as ": 3 buffers ('a', ...), 1 mask
 * ('m')"; nothing, if none are but for their type. */
static void list_untrained(const inv_graph *g, inv_str *text)
{
    const char *gap = ": ";
    for (int why = INV_UNTRAINED_TYPE + 1; why < INV_UNTRAINED_REASONS; why++) {
        size_t n = 0;
        const char *first = NULL;
        for (size_t i = 0; i < g->inits.n; i++) {
            const inv_value *v = inv_val(g, g->inits.at[i]);
            if (v->untrained != why) continue;
            if (!n++) first = v->name;
        }
        if (!n || why == INV_UNTRAINED_SCALAR) continue;
        inv_str_add(text, "%s%zu %s ('%s'%s)", gap, n, inv_untrained_noun((inv_untrained)why, n > 1), first,
                    n > 1 ? ", ..." : "");
        gap = ", ";
    }
}

inv_status inv_untrained_all(const inv_graph *g)
{
    bool quantized = false;
    char remedy[256];
    inv_str left;
    inv_str_init(&left, g->ctx);
    list_untrained(g, &left);
    for (size_t i = 0; i < g->inits.n; i++)
        quantized = quantized || inv_val(g, g->inits.at[i])->untrained == INV_UNTRAINED_QUANTIZATION;
    inv_status s = inv_fail(
        g->ctx, INV_E_ARG,
        "nothing to train: no floating-point parameter is on a differentiable path to the loss%s%s. %s",
        left.n ? "; not trained" : "", left.n ? left.s : "",
        quantized
            ? "The weights of a quantized model are integer constants. Train the model before quantization, "
              "then quantize the trained one"
            : inv_spell(g->ctx, "`inspect` lists them with the reasons. Most are trained if {train_only} names them",
                        remedy, sizeof remedy));
    inv_str_fini(&left);
    return s;
}
