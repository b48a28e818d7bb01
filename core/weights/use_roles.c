/* SPDX-License-Identifier: Apache-2.0
 * What the inputs of operators are to them: weights, biases, tables, ... (shared_weights.h). */
#include <string.h>

#include "core/graph/node.h"
#include "core/graph/op.h"
#include "core/weights/shared_weights.h"

const char *inv_use_role_name(inv_use_role role)
{
    static const char *const name[] = {"nothing",
                                       "running mean",
                                       "running variance",
                                       "running statistic",
                                       "scale",
                                       "bias",
                                       "bias",
                                       "weight",
                                       "table",
                                       "quantization scale",
                                       "rotation",
                                       "size or choice",
                                       "constant",
                                       "base",
                                       "initial state",
                                       "operand"};
    return name[role];
}

/* Inputs by letters: w weight, b bias, s scale, h shift, t table, m running mean, q of quantization, r rotation, k what
 * must be known before the run, c a constant of every framework, z base of a scatter, i initial state; a point and all
 * behind: an operand. */
#define MS "com.microsoft"
static const struct {
    const char *domain, *op, *inputs;
} parts[] = {
    {"", "AffineGrid", ".k"},
    {"", "BatchNormalization", ".shm"},
    {"", "BlackmanWindow", "k"},
    {"", "CastLike", ".c"},
    {"", "CenterCropPad", ".k"},
    {"", "Clip", ".cc"},
    {"", "Col2Im", ".kk"},
    {"", "ConstantOfShape", "k"},
    {"", "Conv", ".wb"},
    {"", "ConvTranspose", ".wb"},
    {"", "CumSum", ".k"},
    {"", "DFT", ".kk"},
    {"", "DeformConv", ".w.b"},
    {"", "Dropout", ".kk"},
    {"", "Equal", "cc"},
    {"", "Expand", ".k"},
    {"", "EyeLike", "c"},
    {"", "GRU", ".wwb.i"},
    {"", "Gather", "t"},
    {"", "Gemm", "wwb"},
    {"", "Greater", "cc"},
    {"", "GreaterOrEqual", "cc"},
    {"", "GroupNormalization", ".sh"},
    {"", "HammingWindow", "k"},
    {"", "HannWindow", "k"},
    {"", "If", "k"},
    {"", "InstanceNormalization", ".sh"},
    {"", "IsInf", "c"},
    {"", "IsNaN", "c"},
    {"", "LSTM", ".wwb.iiw"},
    {"", "LayerNormalization", ".sh"},
    {"", "Less", "cc"},
    {"", "LessOrEqual", "cc"},
    {"", "Loop", "kk"},
    {"", "MatMul", "ww"},
    {"", "MaxUnpool", "..k"},
    {"", "MelWeightMatrix", "kkkkk"},
    {"", "Mod", ".c"},
    {"", "NegativeLogLikelihoodLoss", "..c"},
    {"", "NonMaxSuppression", "..kkk"},
    {"", "OneHot", ".kc"},
    {"", "PRelu", ".s"},
    {"", "Pad", ".kkk"},
    {"", "Pow", ".c"},
    {"", "RMSNormalization", ".s"},
    {"", "RNN", ".wwb.i"},
    {"", "Range", "kkk"},
    {"", "ReduceL1", ".k"},
    {"", "ReduceL2", ".k"},
    {"", "ReduceLogSum", ".k"},
    {"", "ReduceLogSumExp", ".k"},
    {"", "ReduceMax", ".k"},
    {"", "ReduceMean", ".k"},
    {"", "ReduceMin", ".k"},
    {"", "ReduceProd", ".k"},
    {"", "ReduceSum", ".k"},
    {"", "ReduceSumSquare", ".k"},
    {"", "Reshape", ".k"},
    {"", "Resize", ".kkk"},
    {"", "RotaryEmbedding", ".rr"},
    {"", "STFT", ".kck"},
    {"", "Scatter", "z"},
    {"", "ScatterElements", "z"},
    {"", "ScatterND", "z"},
    {"", "SimplifiedLayerNormalization", ".s"},
    {"", "Slice", ".kkkk"},
    {"", "SoftmaxCrossEntropyLoss", "..c"},
    {"", "Split", ".k"},
    {"", "SplitToSequence", ".k"},
    {"", "Squeeze", ".k"},
    {"", "TensorScatter", "z"},
    {"", "Tile", ".k"},
    {"", "TopK", ".k"},
    {"", "Trilu", ".k"},
    {"", "Unsqueeze", ".k"},
    {"", "Upsample", ".k"},
    {"", "Where", "c"},
    {MS, "Attention", ".wb"},
    {MS, "BiasGelu", ".b"},
    {MS, "BiasSplitGelu", ".b"},
    {MS, "DynamicQuantizeLSTM", "...b.iiwqqqq"},
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
    case 'c': return INV_USE_CONSTANT;
    case 'h': return INV_USE_SHIFT;
    case 'i': return INV_USE_STATE;
    case 'k': return INV_USE_STEERS;
    case 'm': return INV_USE_MEAN;
    case 'q': return INV_USE_QUANTIZATION;
    case 'r': return INV_USE_ROTATION;
    case 's': return INV_USE_SCALE;
    case 't': return INV_USE_TABLE;
    case 'w': return INV_USE_WEIGHT;
    case 'z': return INV_USE_BASE;
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
    if (slot >= 2 && inv_node_is(n, "Loop")) return INV_USE_BASE;
    if (inv_node_is(n, "Scan") && slot + inv_attr_int(n, "num_scan_inputs", n->nin) < n->nin) return INV_USE_BASE;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strcmp(n->op_type, parts[i].op) && !strcmp(n->domain, parts[i].domain))
            return slot < strlen(parts[i].inputs) ? role_of_letter(parts[i].inputs[slot]) : INV_USE_OPERAND;
    return INV_USE_OPERAND;
}
