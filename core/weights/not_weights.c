/* SPDX-License-Identifier: Apache-2.0
 * Uses of initializers by which they are no weights: scales of quantization, masks (shared_weights.h). */
#include <string.h>

#include "core/graph/node.h"
#include "core/graph/op.h"
#include "core/weights/shared_weights.h"
#include "core/weights/trained.h"

/* How far is looked behind a value: nodes that hand it on, and computations. */
enum { FAR = 8, DEEP = 6 };

static const inv_node *def_of(const inv_graph *g, inv_id v)
{
    const inv_id def = v == INV_NONE ? INV_NONE : inv_val(g, v)->def;
    return def == INV_NONE ? NULL : inv_nod(g, def);
}

/* The node that computes an input, behind what hands it on; NULL: none. `at`: which of its results, or what it is. */
static const inv_node *giver(const inv_graph *g, inv_id v, inv_id *at)
{
    *at = v;
    for (unsigned far = 0; far < FAR; far++) {
        const inv_node *n = def_of(g, *at);
        if (!n || !n->nin || n->in[0] == INV_NONE || inv_node_hands(n) == INV_HANDS_NOTHING) return n;
        *at = n->in[0];
    }
    return NULL;
}

/* --- quantization --- */

/* Biases are quantized in 32 bits, what is exact in 16; weights of few bits are packed into 32. */
static bool is_integer_weight(int t)
{
    static const int types[] = {INV_I2, INV_U2, INV_I4, INV_U4, INV_I8, INV_U8, INV_I16, INV_U16, INV_I32, INV_U32};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (t == types[i]) return true;
    return false;
}

/* Integers that the file holds, of a type in which weights are quantized; of zeros and ones masks are made. */
static bool holds_integers(const inv_graph *g, inv_id v)
{
    const inv_value *x = inv_val(g, v);
    const inv_node *n = def_of(g, v);
    const inv_data *d = x->role == INV_ROLE_PARAM || x->role == INV_ROLE_CONST ? &x->data : NULL;
    if (n) {
        const bool tensor = inv_node_is(n, "Constant") && n->nattr == 1 && n->attr[0].kind == INV_ATTR_TENSOR;
        d = tensor && !n->attr[0].ref ? &n->attr[0].tensor : NULL;
    }
    if (d && inv_holds_whole_numbers(d)) return true;
    if (!d || !d->bytes || !is_integer_weight((int)d->dtype)) return false;
    const unsigned char *p = d->bytes;
    for (size_t i = 0; i < d->nbytes; i++)
        if (p[i] > 1) return true;
    return false;
}

/* Products with weights; 0: node n is none, else how many of its inputs are its factors. */
static uint32_t factors_of(const inv_node *n)
{
    if (!n->op || !(n->op->flags & INV_OP_PRODUCT)) return 0;
    return n->nin < 2 || strchr(n->op->in, '*') ? n->nin : 2;
}

static unsigned lacking(const inv_graph *g, inv_id v, unsigned deep);

/* The scale of a weight may be applied to what the product with it gives as well. */
static unsigned lacking_of_factors(const inv_graph *g, const inv_node *n, unsigned deep)
{
    unsigned sum = 0;
    for (uint32_t k = 0, most = factors_of(n); k < most; k++) sum += lacking(g, n->in[k], deep);
    return sum;
}

/* How many scales a value still lacks: the product of two quantized tensors two, integers of the file one. The scale of
 * what was quantized during the run lacks that of the weights. */
static unsigned lacking(const inv_graph *g, inv_id v, unsigned deep)
{
    static const char *const unpacking[] = {"BitShift", "BitwiseAnd", "BitwiseOr", "Mod", "Concat", NULL};
    inv_id at = INV_NONE;
    const inv_node *n = v == INV_NONE || !deep ? NULL : giver(g, v, &at);
    if (v == INV_NONE || !deep) return 0;
    if (!n || inv_node_is(n, "Constant")) return holds_integers(g, at) ? 1 : 0;
    if (inv_node_is(n, "MatMulInteger") || inv_node_is(n, "ConvInteger")) return 2;
    if (inv_node_is(n, "DynamicQuantizeLinear")) return n->nout > 1 && n->out[1] == at ? 1 : 0;
    if (inv_node_is_any(n, unpacking)) return n->nin ? lacking(g, n->in[0], deep - 1) : 0;
    if (factors_of(n)) return lacking_of_factors(g, n, deep - 1);
    if (n->nin != 2) return 0;
    if (inv_node_is(n, "Sub")) return lacking(g, n->in[0], deep - 1); /* the zero point */
    const bool product = inv_node_is(n, "Mul");
    if (!product && !inv_node_is(n, "Div")) return 0;
    const unsigned a = lacking(g, n->in[0], deep - 1), b = product ? lacking(g, n->in[1], deep - 1) : 0;
    const unsigned most = a > b ? a : b;
    return most ? most - 1 : 0;
}

bool inv_use_quantizes(const inv_graph *g, const inv_node *n, uint32_t slot)
{
    const char *op = n->op_type; /* of any domain: onnxruntime has such operators, too */
    if (!strcmp(op, "QuantizeLinear") || !strcmp(op, "DequantizeLinear")) return slot == 1 || slot == 2;
    if (!strncmp(op, "QLinear", 7)) return true; /* whatever is floating point there */
    if (n->nin != 2 || slot > 1) return false;
    const bool behind = slot == 1 && (inv_node_is(n, "Div") || inv_node_is(n, "Sub"));
    return (behind || inv_node_is(n, "Mul")) && lacking(g, n->in[1 - slot], DEEP) > 0;
}

/* --- masks --- */

static bool is_given(const inv_graph *g, inv_id v, unsigned deep)
{
    const inv_node *n = def_of(g, v);
    if (v == INV_NONE) return true;
    if (!n) return inv_val(g, v)->role == INV_ROLE_PARAM || inv_val(g, v)->role == INV_ROLE_CONST;
    if (inv_node_is(n, "Shape") || inv_node_is(n, "Size") || inv_node_is(n, "Constant")) return true;
    bool all = deep > 0 && n->nin > 0 && n->nin <= 2;
    for (uint32_t k = 0; k < n->nin && all; k++) all = is_given(g, n->in[k], deep - 1);
    return all;
}

bool inv_use_is_given(const inv_graph *g, inv_id v) { return is_given(g, v, DEEP); }

/* Exponents divided by their own sum. */
static bool is_normalized(const inv_graph *g, const inv_node *n)
{
    inv_id at = INV_NONE;
    const inv_node *sum = n->nin == 2 && n->in[1] != INV_NONE ? giver(g, n->in[1], &at) : NULL;
    return sum && inv_node_is(n, "Div") && inv_node_is(sum, "ReduceSum") && sum->nin && sum->in[0] == n->in[0];
}

/* The result of a product with a weight. */
static bool is_product(const inv_graph *g, inv_id v)
{
    inv_id at = INV_NONE;
    const inv_node *n = v == INV_NONE ? NULL : giver(g, v, &at);
    bool any = false;
    for (uint32_t k = 0; n && factors_of(n) && k < n->nin; k++)
        any = any || (n->in[k] != INV_NONE && is_given(g, n->in[k], DEEP));
    return any;
}

/* The columns of the weight of a product; 0: not known. */
static int64_t results_of(const inv_graph *g, const inv_node *n)
{
    const inv_value *w = n->nin > 1 && n->in[1] != INV_NONE ? inv_val(g, n->in[1]) : NULL;
    const inv_node *turn = w ? def_of(g, n->in[1]) : NULL;
    const bool turned = turn && inv_node_is(turn, "Transpose") && turn->in[0] != INV_NONE;
    if (turned) w = inv_val(g, turn->in[0]);
    if (!w || w->role != INV_ROLE_PARAM || w->shape.rank < 2) return 0;
    if (inv_node_is(n, "Conv") || (inv_node_is(n, "Gemm") && inv_attr_int(n, "transB", 0))) return w->shape.dim[0];
    return inv_node_is(n, "MatMul") || inv_node_is(n, "Gemm") ? w->shape.dim[turned ? 0 : w->shape.rank - 1] : 0;
}

/* Added to a product that has one result. */
static bool is_alone(const inv_graph *g, inv_id v)
{
    inv_id at = INV_NONE;
    const inv_node *n = v == INV_NONE ? NULL : giver(g, v, &at);
    return n && factors_of(n) && results_of(g, n) == 1;
}

/* --- the model's input --- */

/* A graph input, or one in other words: behind Cast, Transpose and arithmetic with one number. */
static bool is_input(const inv_graph *g, inv_id v)
{
    for (unsigned far = 0; far < FAR && v != INV_NONE; far++) {
        inv_id at = INV_NONE;
        const inv_node *n = giver(g, v, &at);
        if (!n) return inv_val(g, at)->role == INV_ROLE_INPUT;
        const bool two = n->nin == 2 && n->in[0] != INV_NONE && n->in[1] != INV_NONE;
        if (!two || !(inv_node_is(n, "Mul") || inv_node_is(n, "Div") || inv_node_is(n, "Sub"))) return false;
        if (!is_given(g, n->in[1], DEEP) || inv_shape_nelem(&inv_val(g, n->in[1])->shape) != 1) return false;
        v = n->in[0];
    }
    return false;
}

/* (x - mean) / deviation, or times its inverse, of the model's input x: marks of both, and of the difference. */
static uint32_t marks_of_input(const inv_graph *g, const inv_node *n, uint32_t slot, uint32_t of)
{
    const bool sub = inv_node_is(n, "Sub"), mul = inv_node_is(n, "Mul"), div = inv_node_is(n, "Div");
    inv_id at = INV_NONE;
    if (n->nin != 2 || !(sub || mul || div) || n->in[1 - slot] == INV_NONE) return 0;
    const bool second = slot == 1 || mul;
    if (sub) return second && of & 1u << INV_USE_RESCALED && is_input(g, n->in[0]) ? 1u << INV_USE_OF_INPUT : 0;
    if ((slot == 0 || mul) && is_given(g, n->in[1 - slot], DEEP)) return 1u << INV_USE_RESCALED;
    const inv_node *from = second ? giver(g, n->in[1 - slot], &at) : NULL;
    const bool difference = from && inv_node_is(from, "Sub") && from->nin == 2 && is_given(g, from->in[1], DEEP);
    return difference && is_input(g, from->in[0]) ? 1u << INV_USE_OF_INPUT : 0;
}

/* What onnxruntime's attentions add to the scores. */
static bool is_attention_bias(const inv_node *n, uint32_t slot)
{
    if (!strcmp(n->op_type, "GroupQueryAttention")) return slot == 10;
    return slot == 5 && (!strcmp(n->op_type, "Attention") || !strcmp(n->op_type, "MultiHeadAttention"));
}

uint32_t inv_use_marks(const inv_graph *g, const inv_node *n, uint32_t slot, const uint32_t *roles)
{
    static const char *const sums[] = {"Add", "Sub", "Sum", "Max", "Min", "Where", NULL};
    static const char *const factors[] = {"Mul", "Div", "MatMul", "Einsum", "Concat", NULL};
    const uint32_t scores = 1u << INV_USE_SCORES, factor = 1u << INV_USE_FACTOR, scaled = 1u << INV_USE_SCALED;
    const uint32_t of = n->nout && n->out[0] != INV_NONE ? roles[n->out[0]] : 0;
    const bool two = n->nin == 2 && slot < 2, product = inv_node_is(n, "Mul"), where = inv_node_is(n, "Where");
    uint32_t bits = inv_node_is_any(n, factors) ? of & (1u << INV_USE_SINE | 1u << INV_USE_COSINE) : 0;
    if (slot == 0 && (inv_node_is(n, "Softmax") || inv_node_is(n, "LogSoftmax"))) return scores;
    if (inv_node_is(n, "Exp")) return of & 1u << INV_USE_EXPONENTS ? scores : 0;
    if (slot == 0 && is_normalized(g, n)) return 1u << INV_USE_EXPONENTS;
    if (inv_node_is(n, "Sin")) return 1u << INV_USE_SINE;
    if (inv_node_is(n, "Cos")) return 1u << INV_USE_COSINE;
    if (inv_node_is(n, "Attention")) return slot == 3 ? scores : 0;
    if (!strcmp(n->domain, "com.microsoft")) return is_attention_bias(n, slot) ? scores : 0;
    if (where && !slot) return 0;
    if (product || where) bits |= factor;
    if (inv_node_is_any(n, sums)) bits |= of & (scores | scaled);
    if (where && n->nin == 3 && of & scores && is_given(g, n->in[3 - slot], DEEP)) bits |= scaled;
    if (!two) return bits;
    const bool given = of & (scores | factor) && is_given(g, n->in[1 - slot], DEEP);
    if (given && of & scores && (product || (slot == 0 && inv_node_is(n, "Div")))) bits |= scores | scaled;
    if (given && of & factor && (inv_node_is(n, "Sub") || inv_node_is(n, "Add"))) bits |= factor;
    bits |= marks_of_input(g, n, slot, of);
    if (!inv_node_is(n, "Add") || !is_product(g, n->in[1 - slot])) return bits;
    return bits | 1u << INV_USE_ADDED | (is_alone(g, n->in[1 - slot]) ? 1u << INV_USE_ALONE : 0);
}
