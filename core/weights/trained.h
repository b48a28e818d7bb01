/* SPDX-License-Identifier: Apache-2.0
 * Which parameters are trained, and why the others are not: decided here and nowhere else. `inspect`, the report of a
 * session, what a refusal says and the passes that train all read this one decision (docs/exporting.md, "What is
 * trained").
 *
 * What the file says is believed (inv_said). Where it says of some initializers that they are parameters, all others
 * are constants, unless they were computed from parameters, or stand for such that are in the file nowhere else. Where
 * it says nothing, an initializer is trained unless it shows what it is: by a number that is not finite, by the pattern
 * of a mask, of rotations or other waves, by how its node uses it, or by the habits of PyTorch's exporters. Where
 * adapters were added (core/edits/lora.h), they are trained, and of all else what is named. */
#ifndef INV_CORE_TRAINED_H
#define INV_CORE_TRAINED_H

#include "core/weights/shared_weights.h"

typedef enum inv_untrained {
    INV_TRAINED,
    INV_UNTRAINED_TYPE,
    INV_UNTRAINED_SCALAR,
    INV_UNTRAINED_INVERSE,
    INV_UNTRAINED_STATISTIC,
    INV_UNTRAINED_QUANTIZATION,
    INV_UNTRAINED_BUFFER,
    INV_UNTRAINED_CONSTANT,
    INV_UNTRAINED_NUMBER,
    INV_UNTRAINED_STEERS, /* it must be known before the run (core/weights/steers.c) */
    INV_UNTRAINED_OPERAND,
    INV_UNTRAINED_EXPORTER,
    INV_UNTRAINED_INPUT,
    INV_UNTRAINED_FILTER,
    INV_UNTRAINED_MASK,
    INV_UNTRAINED_ROTATION,
    INV_UNTRAINED_FOURIER,
    INV_UNTRAINED_POSITIONS,
    INV_UNTRAINED_HABIT,
    INV_UNTRAINED_NONFINITE,
    INV_UNTRAINED_TIED,      /* it follows another parameter (passes/front/tied_weights.c) */
    INV_UNTRAINED_FROZEN,    /* by the caller's `freeze` */
    INV_UNTRAINED_LATER,     /* by the caller's `stages` */
    INV_UNTRAINED_UNNAMED,   /* not in the caller's `train_only` */
    INV_UNTRAINED_UNREACHED, /* passes/autodiff/grad.c: not on a differentiable path to the loss */
    INV_UNTRAINED_REASONS
} inv_untrained;

/* One word, as in JSON; a phrase, as in "'NAME' is not trained: PHRASE"; a noun, as in "3 buffers". */
const char *inv_untrained_key(inv_untrained why);
const char *inv_untrained_text(inv_untrained why);
const char *inv_untrained_noun(inv_untrained why, bool plural);

/* sinusoids.c, by the values of an initializer and its roles (inv_param_roles): the table of a Fourier transform, of
 * frequencies and samples in either order, which a product or a convolution with one channel takes for a weight; */
bool inv_holds_fourier(const inv_value *x, uint32_t roles);
/* sines and cosines of positions, by row, that are looked up or added, or the frequencies of both, which positions are
 * multiplied with. */
bool inv_holds_positions(const inv_value *x, uint32_t roles);

/* A filter over each channel by itself that is the same for all of them, or the mean or sum of what it covers. */
bool inv_holds_filter(const inv_data *d);

/* By how much a sine or cosine may be off that is kept in the type of the data. */
double inv_wave_rounding(const inv_data *d);

/* Whether a name is of those that PyTorch's exporters, or onnxsim, give to tensors that no module has. */
bool inv_name_is_generated(const char *name);
/* Whether it is one of these, or a number or path, as the older exporter calls what it has computed. */
bool inv_name_is_made(const char *name); /* exporter_names.c */

/* Why an initializer is taken for a weight, or for none: the first row of the table of evidence (trained.c) that holds.
 * One word, as in JSON, and a phrase. */
const char *inv_evidence_key(uint8_t row);
const char *inv_evidence_text(uint8_t row);
/* Per value of an imported graph: the row, for its initializers. */
inv_status inv_evidence_find(const inv_graph *g, inv_arena *a, uint8_t **out);

/* exporter_names.c: what an exporter means by the name of an initializer. */
typedef enum inv_name_means {
    INV_NAME_NOTHING,
    INV_NAME_VARIABLE, /* of what its framework trains */
    INV_NAME_CONSTANT  /* of a number or tensor of a formula */
} inv_name_means;
inv_name_means inv_name_meaning(const inv_graph *g, const char *name);

/* tensor_signs.c: whether elements are finite, as far as the beginning of a large tensor tells. */
bool inv_holds_finite(const inv_data *d);
/* Whether all elements are whole numbers of 8 bits, with several values: a weight that was quantized. */
bool inv_holds_whole_numbers(const inv_data *d);

/* Whether v has one element, small and positive, which is added to what a root, logarithm or quotient is then taken of,
 * or is the least that this may be. */
bool inv_is_epsilon(const inv_graph *g, inv_id v);

/* Per value of an imported graph: inv_untrained, for its initializers. `o`: whose train_only, freeze and train_bn
 * count; NULL: none. A parameter that holds numbers that are not finite and is in train_only by its whole name is
 * refused. */
inv_status inv_trained_find(const inv_graph *g, const inv_session_options *o, inv_arena *a, uint8_t **out);

/* Whether an initializer is no weight by what it is, whoever trains what: a number or table of a formula, a buffer. */
static inline bool inv_is_no_weight(inv_untrained why)
{
    return why >= INV_UNTRAINED_BUFFER && why <= INV_UNTRAINED_HABIT;
}

/* The number of the first step that trains a parameter, by the caller's `stages`; 0: it is in none. */
uint64_t inv_trained_from(const inv_session_options *o, const inv_value *v);

/* The failure that nothing is left to train, with these and what to do. */
inv_status inv_untrained_all(const inv_graph *g);

#endif
