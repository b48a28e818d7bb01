/* SPDX-License-Identifier: Apache-2.0
 * Uses of initializers by which they are no weights: scales of quantization, masks (merge.h). */
#include <string.h>

#include "core/merge.h"
#include "core/node.h"

/* The node that computes an input, behind what only changes its type or shape; NULL. `out`: which of its results. */
static const inv_node *giver(const inv_graph *g, inv_id v, inv_id *out)
{
    static const char *const hands_on[] = {"Cast", "Identity", "Reshape", "Unsqueeze", "Squeeze"};
    enum { FAR = 8 };
    for (unsigned far = 0; v != INV_NONE && far < FAR; far++) {
        const inv_id def = inv_val(g, v)->def;
        if (def == INV_NONE) return NULL;
        const inv_node *n = inv_nod(g, def);
        bool through = false;
        for (size_t i = 0; i < sizeof hands_on / sizeof *hands_on; i++)
            through = through || inv_node_is(n, hands_on[i]);
        *out = v;
        if (!through) return n;
        v = n->in[0];
    }
    return NULL;
}

/* Integers of a quantized product, or the scale of numbers that were quantized during the run: what is multiplied with
 * one is a scale too. */
static bool is_quantized(const inv_graph *g, inv_id v)
{
    inv_id out = INV_NONE;
    const inv_node *n = giver(g, v, &out);
    if (!n) return false;
    if (inv_node_is(n, "MatMulInteger") || inv_node_is(n, "ConvInteger")) return true;
    return inv_node_is(n, "DynamicQuantizeLinear") && n->nout > 1 && n->out[1] == out;
}

bool inv_use_quantizes(const inv_graph *g, const inv_node *n, uint32_t slot)
{
    const char *op = n->op_type; /* of any domain: onnxruntime has such operators, too */
    if (!strcmp(op, "QuantizeLinear") || !strcmp(op, "DequantizeLinear")) return slot == 1 || slot == 2;
    if (!strncmp(op, "QLinear", 7)) return true; /* whatever is floating point there */
    if (!inv_node_is(n, "Mul") || n->nin != 2 || slot > 1) return false;
    return n->in[1 - slot] != INV_NONE && is_quantized(g, n->in[1 - slot]);
}

uint32_t inv_use_marks(const inv_node *n, uint32_t slot, const uint32_t *roles)
{
    static const char *const adds[] = {"Add", "Sub", "Max", "Min", "Sum"};
    const uint32_t scores = 1u << INV_USE_SCORES, factor = 1u << INV_USE_FACTOR;
    const bool where = inv_node_is(n, "Where");
    if (inv_node_is(n, "Softmax") || inv_node_is(n, "LogSoftmax")) return slot == 0 ? scores : 0;
    if (inv_node_is(n, "Attention")) return slot == 3 ? 1u << INV_USE_MASKS : 0;
    uint32_t bits = inv_node_is(n, "Mul") || (where && slot > 0) ? factor : 0;
    bool adding = where && slot > 0;
    for (size_t i = 0; i < sizeof adds / sizeof *adds && !adding; i++) adding = inv_node_is(n, adds[i]);
    if (adding && n->nout && n->out[0] != INV_NONE) bits |= roles[n->out[0]] & scores;
    return bits;
}
