/* SPDX-License-Identifier: Apache-2.0
 * What the inputs of operators are to them: weights, biases, tables, ... (merge.h). */
#include <string.h>

#include "core/merge.h"
#include "core/node.h"
#include "core/op.h"

const char *inv_use_role_name(inv_use_role role)
{
    static const char *const name[] = {
        "nothing", "running mean", "running variance",   "running statistic", "scale",  "bias", "bias",
        "weight",  "table",        "quantization scale", "rotation",          "operand"};
    return name[role];
}

/* Inputs by letters: w weight, b bias, s scale, h shift, t table, m running mean, q of quantization, r rotation; a
 * point and all behind: an operand. */
#define MS "com.microsoft"
static const struct {
    const char *domain, *op, *inputs;
} parts[] = {
    {"", "BatchNormalization", ".shm"},
    {"", "Conv", ".wb"},
    {"", "ConvTranspose", ".wb"},
    {"", "DeformConv", ".w.b"},
    {"", "GRU", ".wwb"},
    {"", "Gather", "t"},
    {"", "Gemm", "wwb"},
    {"", "GroupNormalization", ".sh"},
    {"", "InstanceNormalization", ".sh"},
    {"", "LSTM", ".wwb"},
    {"", "LayerNormalization", ".sh"},
    {"", "MatMul", "ww"},
    {"", "PRelu", ".s"},
    {"", "RMSNormalization", ".s"},
    {"", "RNN", ".wwb"},
    {"", "RotaryEmbedding", ".rr"},
    {"", "SimplifiedLayerNormalization", ".s"},
    {MS, "Attention", ".wb"},
    {MS, "BiasGelu", ".b"},
    {MS, "BiasSplitGelu", ".b"},
    {MS, "DynamicQuantizeLSTM", "...b....qqqq"},
    {MS, "DynamicQuantizeMatMul", "..qqb"},
    {MS, "EmbedLayerNormalization", "..tttsh"},
    {MS, "FastGelu", ".b"},
    {MS, "FusedConv", ".wb"},
    {MS, "FusedGemm", "wwb"},
    {MS, "FusedMatMul", "ww"},
    {MS, "GatherBlockQuantized", "..qq"},
    {MS, "GroupNorm", ".sh"},
    {MS, "GroupQueryAttention", ".......rr.....ss"},
    {MS, "MatMulIntegerToFloat", "..qqqqb"},
    {MS, "MatMulNBits", "..qq.b"},
    {MS, "MultiHeadAttention", "...b"},
    {MS, "NhwcConv", ".wb"},
    {MS, "QAttention", "..bqq.qq"},
    {MS, "QGemm", ".qq.qq.qq"},
    {MS, "RotaryEmbedding", "..rr"},
    {MS, "SkipGroupNorm", ".sh.b"},
    {MS, "SkipLayerNormalization", "..shb"},
    {MS, "SkipSimplifiedLayerNormalization", "..sb"},
};
#undef MS

static inv_use_role role_of_letter(char c)
{
    switch (c) {
    case 'b': return INV_USE_BIAS;
    case 'h': return INV_USE_SHIFT;
    case 'm': return INV_USE_MEAN;
    case 'q': return INV_USE_QUANTIZATION;
    case 'r': return INV_USE_ROTATION;
    case 's': return INV_USE_SCALE;
    case 't': return INV_USE_TABLE;
    case 'w': return INV_USE_WEIGHT;
    default: return INV_USE_OPERAND;
    }
}

inv_use_role inv_use_role_at(const inv_node *n, uint32_t slot, bool train_bn)
{
    if (inv_node_is(n, "BatchNormalization") && slot >= 3) {
        bool trains = n->op && n->op->since >= 14 ? inv_attr_int(n, "training_mode", 0) != 0 : n->nout > 1;
        if (!trains && !train_bn) return INV_USE_FIXED;
        return slot == 3 ? INV_USE_MEAN : INV_USE_VARIANCE;
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strcmp(n->op_type, parts[i].op) && !strcmp(n->domain, parts[i].domain))
            return slot < strlen(parts[i].inputs) ? role_of_letter(parts[i].inputs[slot]) : INV_USE_OPERAND;
    return INV_USE_OPERAND;
}
