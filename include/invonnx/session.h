/* SPDX-License-Identifier: Apache-2.0
 * Sessions: they run, evaluate and train a model. invonnx.h includes this header.
 *
 * style: long: the options and the functions that take them are one reference.
 *
 * Calls that compile or compute may also return INV_E_NOMEM, INV_E_STOPPED, INV_E_DEVICE or INV_E_RANKS. After a
 * failure that ends a session, later calls that compute, save or report fail with INV_E_ARG. */
#ifndef INVONNX_SESSION_H
#define INVONNX_SESSION_H

#ifdef __cplusplus
extern "C" {
#endif

/** The use of a session. */
typedef enum inv_purpose {
    INV_FOR_RUN,  /* forward only, as the file says; operators in training mode stay in it */
    INV_FOR_EVAL, /* forward and loss; dropout is off, running statistics are used */
    INV_FOR_TRAIN /* forward, loss and backward; also the update if there is an optimizer */
} inv_purpose;

/** How backward gets the values that it reads: the mode of a session or of single values (inv_mode_rule). */
typedef enum inv_memory {
    INV_MEMORY_AUTO,      /* the planner chooses for each value, on a device with memory of its own also offloading */
    INV_MEMORY_STORE,     /* forward stores them */
    INV_MEMORY_RECOMPUTE, /* stored or computed again */
    INV_MEMORY_INVERT,    /* fewest bytes, mostly by inverses */
    /* Copied to host memory and back. For single values only, on a device with memory of its own. */
    INV_MEMORY_OFFLOAD
} inv_memory;

typedef enum inv_loss {
    INV_LOSS_NONE,
    /* Logits; labels of int64, or soft targets with the shape of the logits. Mean over rows, in nats. */
    INV_LOSS_CROSS_ENTROPY,
    INV_LOSS_MSE,    /* mean over all elements of (output - target)^2 */
    INV_LOSS_BCE,    /* logits; targets from 0 to 1; mean over all elements, in nats */
    INV_LOSS_NLL,    /* for flows: mean over the batch of sum 0.5 z^2 + 0.5 D ln 2pi - logdet */
    INV_LOSS_OUTPUT, /* a scalar output of the model */
    /* With d = output - target: mean of d^2 / 2, or of delta (|d| - delta / 2) where |d| is above delta. */
    INV_LOSS_HUBER,
    /* A loss that the caller computes, from all floating-point outputs or from `loss_outputs`. inv_session_forward
     * gives these outputs, and inv_session_backward takes the gradients of the loss with respect to them. No optimizer;
     * only on devices that compute in host memory (cpu, checked). */
    INV_LOSS_OUTSIDE
} inv_loss;

typedef enum inv_optimizer {
    INV_OPT_NONE,     /* no updates */
    INV_OPT_SGD,      /* if `momentum` is above 0, the same as INV_OPT_MOMENTUM */
    INV_OPT_MOMENTUM, /* SGD with momentum; with `nesterov`, Nesterov's momentum */
    INV_OPT_ADAM,
    INV_OPT_ADAMW,
    INV_OPT_LION,    /* Chen et al. 2023; beta1, beta2, decoupled weight decay */
    INV_OPT_RMSPROP, /* Tieleman, Hinton 2012; beta2 is the decay of the mean of squares */
    INV_OPT_LAMB,    /* You et al. 2020; beta1, beta2, epsilon, decoupled weight decay */
    /* Shazeer, Stern 2018. Second moments are stored by row and column of the last two axes; there are no first
     * moments. Steps are relative to the size of a parameter, which counts as at least `epsilon`. In step t, new
     * squares have weight t^-beta2. A learning rate above 1 / sqrt(t) counts as 1 / sqrt(t). Decoupled weight decay. */
    INV_OPT_ADAFACTOR,
    /* Jordan 2024. The mean of the gradients, with Nesterov's momentum, is made orthogonal. Momentum, decoupled weight
     * decay. Filters of convolutions are matrices [outputs, rest]. Vectors, and parameters with held elements, are
     * updated by adamw with the same learning rate, beta1, beta2 and epsilon. A group may name adamw for others. If a
     * matrix has more rows than columns, its steps are larger by sqrt(rows / columns). */
    INV_OPT_MUON,
    /* adamw with moments of 8 bits, in blocks of 256 elements with one scale each (Dettmers et al. 2022, arXiv
     * 2110.02861). Rounding is random, from the seed and the step. Moments take 2.03 bytes per element instead of 8.
     * Parameters of fewer than 4,096 elements are updated by adamw. */
    INV_OPT_ADAMW8
} inv_optimizer;

/** Numbers of an optimizer. The defaults are PyTorch's if PyTorch has the optimizer, else those in its paper. */
typedef struct inv_optimizer_numbers {
    double momentum, beta1, beta2, epsilon, weight_decay;
} inv_optimizer_numbers;
/** Returns the default numbers of an optimizer. */
INV_API inv_optimizer_numbers inv_optimizer_defaults(inv_optimizer optimizer);

/** Parameters with a learning rate, weight decay or optimizer of their own. */
typedef struct inv_param_group {
    const char *glob;        /* as in train_only; must match at least one trained parameter */
    double lr;               /* factor for the learning rate of a step; inv_session_set_group_lr changes it */
    double weight_decay;     /* below 0: the value of the session */
    inv_optimizer optimizer; /* INV_OPT_NONE: the session's; another one uses its inv_optimizer_defaults */
} inv_param_group;
#define INV_MOST_GROUPS 32 /* limit of groups, counting the parameters without a group as one */

/** Parameters that are trained from some step on. */
typedef struct inv_stage {
    /* As in train_only. A parameter that was added to the model (inv_model_set_head, inv_model_add_lora) matches only
     * its full name. */
    const char *glob;
    uint64_t from; /* number of the first step that trains them, from 0 on */
} inv_stage;

/** Precision of float32 products and convolutions on a GPU's matrix units. Their factors are rounded to this number of
 *  bits. Products are added in float32, and everything else is computed in float32. */
typedef enum inv_precision {
    INV_PRECISION_FULL, /* factors are not rounded */
    INV_PRECISION_TF32, /* 11 bits, the range of float32 */
    INV_PRECISION_BF16  /* 8 bits, the range of float32; convolutions use TF32 */
} inv_precision;

/** Data that the ranks of a world share, so that each has only a part (ZeRO, arXiv 1910.02054): nothing, the states of
 *  the optimizer, or these and the gradients. */
typedef enum inv_shard { INV_SHARD_NONE, INV_SHARD_OPTIMIZER, INV_SHARD_GRADIENTS } inv_shard;

/** Reconstructed values that guards compare with the originals (docs/numerics.md). ON: values from inverses that round.
 *  FULL: also recomputed values. OFF: none. */
typedef enum inv_guard { INV_GUARD_ON, INV_GUARD_FULL, INV_GUARD_OFF } inv_guard;

/** A named array in host memory. The library converts numbers to the type that the model declares. Integers may be
 *  given for a floating-point input: bytes of images are then 0 to 255. Floating-point numbers may not be given for an
 *  integer input. */
typedef struct inv_array {
    const char *name; /* name of the input or output; ignored for targets */
    inv_dtype dtype;
    int rank;            /* number of axes */
    const int64_t *dims; /* dims[0] is the batch */
    const void *data;    /* row-major; may be NULL where only the shape is used */
    const int64_t *rows; /* NULL, or dims[0] row numbers: row r of the batch is row rows[r] of data */
} inv_array;

/** A mode for single values or blocks, as "GLOB=store|recompute|invert|offload". If several rules match a value, the
 *  last one counts. INV_MEMORY_AUTO cancels the rules before it. `offload` needs a device with memory of its own (cuda;
 *  for tests sim); on other devices it is INV_E_ARG. */
typedef struct inv_mode_rule {
    /* Matches forward values, by their names or the names of the nodes that compute them. "block:GLOB" matches blocks,
     * by the name or the kind that `explain` prints. For a block, the rule is for its inputs and the values inside;
     * with `invert`, for its inputs only. */
    const char *glob;
    inv_memory mode;
} inv_mode_rule;

/** Value of inv_session_options.logdet: the rules compute the log-determinant. */
#define INV_LOGDET_RULES "rules"

typedef struct inv_session_options {
    size_t size; /* sizeof(inv_session_options); zero is the default of every other field */
    inv_purpose purpose;
    /* Shapes of the inputs (one array per model input; dims[0] = batch) and of the target. */
    const inv_array *inputs;
    size_t ninputs;
    const inv_array *target;       /* NULL for losses without a target */
    int64_t tail_batch;            /* rows of the last, smaller training batch; 0: none */
    int64_t eval_batch, eval_tail; /* purpose train: batch sizes for which evaluation is planned, too; 0: none */
    inv_loss loss;
    /* Outputs that the loss reads. NULL: the only floating-point output; for `outside` all of them. */
    const char *const *loss_outputs;
    size_t nloss_outputs;
    /* Loss nll: name of the output with the log-determinants, [batch], or one number for all rows. NULL: they count as
     * zero. "rules": the rules of the model's operators compute them (docs/flows.md), from the weights of each step.
     * INV_E_NOT_INVERTIBLE if the rules cannot.
     *
     * An output is compared with the rules once, when the session is created. This is done for a session with an
     * optimizer or for evaluation, on some rows of `inputs`, if they have data. INV_E_ARG if the output has other
     * values. INV_E_ARG also if, in training, it does not follow the weights, for example because an exporter folded it
     * into constants. */
    const char *logdet;
    /* Cross entropy: axis of the classes, from the end if negative. 0: the axis that the target does not have. Set it
     * if there are several such axes: logits [N,T,V] with T = V, soft targets of rank 3 or more. */
    int class_axis;
    inv_memory memory;       /* mode of the session; not INV_MEMORY_OFFLOAD */
    const char *const *keep; /* globs, as in inv_mode_rule, of values that are stored in every mode */
    size_t nkeep;
    const inv_mode_rule *modes; /* modes of single values and blocks */
    size_t nmodes;
    /* Globs of initializers, by name or by name of the module (docs/exporting.md, "Names"): `train_only` trains no
     * others, `freeze` does not train these. "What is trained" in the same document has the defaults, and the
     * initializers that train_only cannot change. */
    const char *const *train_only, *const *freeze;
    size_t ntrain_only, nfreeze;
    bool input_grads; /* also compute gradients of floating-point inputs */
    bool float64;     /* compute everything in float64 */
    bool no_dropout;  /* turn dropout off */
    bool plan_only;   /* compile and report only; no memory for steps is allocated */
    /* "cpu" (default), "cuda", "cuda:1"; for tests "checked", "sim". A session with `plan_only` does not need the
     * device. */
    const char *device;
    inv_guard guard;
    /* Largest relative L2 error of a reconstructed value with which a step is committed. 0: 2e-5 in float32, 1e-8 in
     * float64. */
    double max_drift;
    inv_optimizer optimizer;
    /* Numbers of the optimizer, used as given (inv_optimizer_defaults has the defaults). None may be below 0. beta1 and
     * beta2 must be below 1. */
    double momentum, beta1, beta2, epsilon, weight_decay;
    uint64_t seed; /* for random numbers (dropout, noise, rounding) */
    int threads;   /* 0: as many as the machine has; at most 4096 */
    /* Bytes that session and step may take together, of the device's own memory if it has one. The plan is the cheapest
     * within them. 0: no limit. */
    uint64_t budget;
    bool train_bn; /* batch normalization that was exported in evaluation mode uses and updates batch statistics */
    /* Give each use of an initializer that an exporter merged its own copy. Train an initializer apart from its
     * transposed copy, unless the file or `tied` says that both are one weight (docs/exporting.md). */
    bool untie;
    /* Globs, as in train_only, of initializers that look merged but are shared on purpose. "GLOB=GLOB": pairs of equal
     * initializers that are one weight; only the first of a pair is trained and written. */
    const char *const *tied;
    size_t ntied;
    /* Globs of inputs that are constants of the session. `inputs` must have their values. All that follows from them is
     * computed once, when the session is created. So they may decide shapes and control flow. A call gives the same
     * values, or none. */
    const char *const *constant_inputs;
    size_t nconstant_inputs;
    /* Treat every other input on which a shape or a branch depends as such a constant, if `inputs` has its values. */
    bool constants_as_needed;
    double huber_delta; /* delta of loss huber; 0: 1 */
    /* Cross entropy: factor for the terms of each class. With labels, the mean is then over the sum of the rows'
     * weights. NULL: 1 for all classes. */
    const double *class_weights;
    size_t nclass_weights;
    /* Use `ignore_index`. Cross entropy: rows with this label do not count, in the loss and in the metric. Mse, bce,
     * huber: entries of the target that are this number or NaN do not count. */
    bool ignores;
    int64_t ignore_index;
    bool profile; /* measure the time of each node, for the report's timeline; on a GPU, steps are then not recorded */
    /* Update each weight as soon as its gradient is complete, so that not all gradients exist at the same time. A step
     * whose loss is not finite still changes nothing. If a gradient is not finite, weights with earlier gradients have
     * already been updated. Guards must decide first: they check reconstructed values once more before backward, or
     * updates wait for them. The plan takes the cheaper way (docs/numerics.md). A step that guards refuse changes
     * nothing. */
    bool early_update;
    /* Do not check `logdet`, or its default of zero. False: it is checked if `inputs` have data. An output is compared
     * with the rules. With "rules", the log-determinants that rules of plugins state are compared with differences of
     * the outputs. */
    bool trust_logdet;
    /* Speeds to predict the time of a step (inv_calibrate); copied. Plans are compared by this time, except with
     * several ranks. The table must be for the session's type of arithmetic and its device
     * (inv_calibrate_options.device). NULL: no time is predicted. */
    const inv_cost_table *costs;
    /* A plan from inv_session_plan, as text, to use instead of a search. It must have been made for the first of the
     * session's batches. Batches that it does not have are planned by search. So are the plans that follow if a guard
     * refuses or modes change.
     *
     * INV_E_ARG if the plan does not fit: another mode, other shapes, a missing node or value, or no such way to get a
     * value. INV_E_ARG also if its checksum is wrong. A plan that you changed on purpose must have "checksum":
     * "edited". NULL: search. */
    const char *plan;
    /* Called in every step, when the data of the step have been read and nothing is committed. If it returns false, the
     * step is dropped with INV_E_ARG. On the CPU everything is computed by then, and with early updates some weights
     * have been updated. NULL: no call. */
    bool (*may_commit)(void *opaque);
    void *may_commit_opaque;
    /* Called after every pass of compiling, also when the session plans again. Argument `plan` names the session's
     * plan: "main", "tail", "eval", "eval_tail", "update" or "inverse". Argument `pass` is the name of the pass.
     * Argument `text` is the graph in text form (docs/text-form.md), with matches and places in memory as comments. It
     * is borrowed for the call. The function must not use the context. If it returns false, compiling ends with
     * INV_E_IO. NULL: no text is made. */
    bool (*after_pass)(void *opaque, const char *plan, const char *pass, const char *text);
    void *after_pass_opaque;
    const inv_param_group *groups; /* if several globs match a parameter, the last group counts */
    size_t ngroups;
    /* Apply decoupled weight decay to all parameters. False: it does not apply to vectors (biases, gains of norms),
     * unless a group says otherwise. */
    bool decay_all;
    bool nesterov; /* for momentum, and for sgd with momentum */
    /* Largest norm of a step's gradients, all as one vector; larger gradients are scaled down to it. 0: no limit. Not
     * with clip_value, and not with early_update unless gradients accumulate. */
    double clip_norm;
    double clip_value; /* each entry of a gradient is clipped to [-clip_value, clip_value]; 0: no limit */
    bool grad_norm;    /* compute inv_result.grad_norm also without clip_norm; not with early updates */
    /* Keep gradients between calls. A step is then several calls of inv_session_accumulate and one of
     * inv_session_update. This takes the bytes of all gradients, in addition to the bytes for backward. With
     * `early_update`, each gradient is added as soon as it is complete; `ignores` and `class_weights` are then not
     * possible. */
    bool accumulate;
    bool average; /* keep averages of the weights (inv_session_use_average) */
    /* Decay of an exponential moving average. 0: the average is the mean of the weights after every `average_every`th
     * step. */
    double average_decay;
    /* Up to step `average_from`, the average is the weights themselves. `average_every` 0: 1. */
    uint64_t average_from, average_every;
    /* Cross entropy in training: share of each target, labels or soft targets, that is spread equally over all classes,
     * as in PyTorch; below 1. Evaluation does not use it, so its losses are comparable between trainings. */
    double label_smoothing;
    int64_t effort; /* time to search for plans, as a multiple of the usual time, up to 1000; 0: 1 */
    /* Pass gradients through QuantizeLinear and the other quantizers as if they did not round (straight-through).
     * False: INV_E_UNSUPPORTED_OP if a gradient would have to pass one. */
    bool through_quantization;
    /* INV_BF16: weights with two or more axes and 4,096 or more elements are kept in bfloat16 during training, without
     * a copy in float32. Updates round them up or down at random. Other weights stay in float32. This needs training in
     * float32 on the CPU, with an optimizer that updates single elements (not lamb, adafactor, muon), without averages.
     * INV_DT_NONE: all weights have the type of the computation. */
    inv_dtype weights;
    /* Improve plans while steps are made. This has no effect without an optimizer. With `costs`, on the device cpu, the
     * first steps are timed node by node, which corrects the speeds. If they change much, the session plans again.
     * Then, if the session has several threads, one more thread goes on searching, with the lowest priority.
     *
     * Between two steps, the session takes a plan that is better by more than 1 %, and logs a line. Better means:
     * within a budget, less time for a step; in mode invert, fewer bytes; else a smaller product of both. The step at
     * which this happens depends on the machine. With inverses, the last digits of results then depend on it, too. With
     * several ranks, steps are timed, but plans stay the same. */
    bool improve;
    const char *cost_cache; /* folder of the corrected speeds, and of the tables; see inv_calibrate_options.cache */
    /* Training in stages: parameters that match are frozen before step `from`. Until then they have no gradient and no
     * optimizer state, and no update changes them. If several stages match a parameter, the smallest `from` counts.
     * Bias corrections count the steps of each parameter.
     *
     * When a stage begins, the session plans again and moves its memory. This happens in the step, in
     * inv_session_save_state or in inv_session_load_state, and may fail like inv_session_create. Creating the session
     * checks that the last stage can be planned. */
    const inv_stage *stages;
    size_t nstages;
    uint64_t first_step; /* number of the first step, for a session that continues from a state; decides its stage */
    /* The ranks that train with this one, each with a session of the same options. Borrowed as long as the session
     * lives. NULL: this process trains by itself. With an optimizer, each step takes the rows of all ranks, gradients
     * are means over all these rows, and parameters stay the same on all ranks. The arrays of a rank are its part of
     * the batch; parts may differ in size, and are planned with at least one row. All ranks together make steps, plan
     * again and call inv_session_load_state. */
    inv_world *world;
    /* Precision of products and convolutions. Other than INV_PRECISION_FULL only on device cuda, and on sim, which
     * rounds in the same way; not with float64. Recomputed values have the same bits. Maps that are solved for their
     * input come back with the error of the rounding, so most of them are not inverted. */
    inv_precision precision;
    /* Data that the ranks of `world` share: each rank has 1/n of them. Saving a state is then a call of all ranks. Not
     * on a GPU, and not with lamb, adafactor and muon, which need whole tensors. No effect without several ranks. */
    inv_shard shard;
    /* With `world`: batch normalization in training takes mean and variance over the rows of all ranks, and gradients
     * pass through these. INV_E_ARG if there is no such batch normalization. */
    bool sync_bn;
    /* Training on a device with memory of its own: send the batch that inv_session_next names while the step before it
     * computes. This takes the bytes of one batch, which are part of the peak. If `budget` has no room for them, or in
     * mode invert without a budget, batches are sent when their step begins. */
    bool send_ahead;
    /* The output that the loss reads holds probabilities. INV_LOSS_CROSS_ENTROPY then uses the input of the Softmax
     * that computes the output, INV_LOSS_BCE the input of the Sigmoid. INV_E_ARG if there is no such operator. False:
     * the output holds logits. */
    bool probabilities;
    /* Axis 0 is not the batch, or rows affect each other, and this is intended. False: this is tested once, when a
     * session with an optimizer or for evaluation is created, if `inputs` has data. The losses output and outside are
     * not tested. The test replaces one of a few rows, in evaluation mode: only this row may change in the tensor that
     * the loss reads, else INV_E_ARG. It takes two forward passes of these rows. */
    bool rows_mix;
    /* Elements of trained parameters that keep their values. `hold_zeros`: globs; their zeros stay zero. `hold_rows`:
     * "GLOB:ROW,ROW", rows along axis 0, from the end if negative.
     *
     * By default, elements are held that the file shows to be fixed (docs/exporting.md, "What is held"). These are
     * zeros of a weight that the exporter multiplied with a mask, and the padding row of a table. `no_hold`: globs of
     * parameters without this default. INV_E_ARG if a glob matches nothing that is trained. */
    const char *const *hold_zeros, *const *hold_rows, *const *no_hold;
    size_t nhold_zeros, nhold_rows, nno_hold;
} inv_session_options;

/** Checks the options alone: sizes, numbers, enumerations, lists and arrays. Every function that takes options does
 *  this first.
 *  @return INV_OK; INV_E_ABI for a wrong size; else INV_E_ARG, INV_E_SHAPE, INV_E_UNSUPPORTED_TYPE or
 *          INV_E_UNSUPPORTED_OP, with the name of the field in the message */
INV_NODISCARD INV_API inv_status inv_session_options_check(inv_context *ctx, const inv_session_options *options);

/** Creates a session: compiles its plans (training, last smaller batch, evaluation in both sizes) and allocates one
 *  arena for all of them. If something is missing in the model, the message lists everything that is missing.
 *  @param out free with inv_session_destroy
 *  @return INV_OK; INV_E_SHAPE, INV_E_UNSUPPORTED_OP, INV_E_ARG, ...; INV_E_NOT_CONSTANT if values of inputs decide
 *          shapes or control flow (see constant_inputs) */
INV_NODISCARD INV_API inv_status inv_session_create(inv_model *model, const inv_session_options *options,
                                                    inv_session **out);
/** Frees the session, even if its model and its context have been destroyed before. Views of its memory become invalid.
 *  Does nothing for NULL. */
INV_API void inv_session_destroy(inv_session *session);

/** Batch sizes of a session. */
typedef struct inv_session_sizes {
    size_t size;             /* sizeof(inv_session_sizes) */
    const inv_array *inputs; /* shapes, and values of constants, as in inv_session_options; NULL: no change */
    size_t ninputs;
    const inv_array *target; /* as in inv_session_options; used only with `inputs` */
    /* As in inv_session_options. */
    int64_t tail_batch, eval_batch, eval_tail;
    const char *plan; /* as inv_session_options.plan; NULL: a batch that does not change keeps its plan */
} inv_session_sizes;

/** Plans a session for other batch sizes. This is possible between any two calls: also in the middle of a step that
 *  accumulates, within scopes of modes, and while averages replace the weights. All that was set or learned stays:
 *  parameters, optimizer state, running statistics, accumulated gradients and averages. So do modes, rates of groups,
 *  the stage, the number of the step, and the values that guards rejected. Outputs and gradients of the newest call can
 *  no longer be read. With `world`, all ranks call this. It costs a search for a plan and a new allocation of the
 *  transient memory. Persistent data are copied only if they move.
 *  @return INV_OK; INV_E_ARG, INV_E_SHAPE, INV_E_NOMEM, ... as inv_session_create. After a failure the session is as
 *          before. Only if the memory does not suffice to go back, the session ends, and later calls say so */
INV_NODISCARD INV_API inv_status inv_session_resize(inv_session *session, const inv_session_sizes *sizes);

/** A change of the modes of a session. */
typedef struct inv_modes {
    size_t size;              /* sizeof(inv_modes) */
    const inv_memory *memory; /* new mode of the session; NULL: no change */
    /* Drop the rules and the `keep` globs of the session. False: the new rules are added after the old ones, so they
     * win over rules, but not over `keep`. */
    bool replace;
    const inv_mode_rule *rules;
    size_t nrules;
} inv_modes;

/** Changes the modes of a training session between two steps. It plans again from the graphs that the session has.
 *  Parameters, optimizer state, running statistics and the number of the step stay the same, and so do all random
 *  numbers, bit for bit. Outputs and gradients of the newest call can no longer be read. It costs a search for a plan
 *  and a new allocation of the transient memory.
 *  @return INV_OK; INV_E_ARG for a glob that matches nothing; INV_E_NOMEM, also if the budget cannot be met. After a
 *          failure the session is as before and can continue. Only if the memory does not suffice to go back, the
 *          session ends, and later calls say so */
INV_NODISCARD INV_API inv_status inv_session_set_modes(inv_session *session, const inv_modes *modes);
/** Changes the modes, as inv_session_set_modes does, until the matching inv_session_pop_modes. Scopes nest.
 *  @return as inv_session_set_modes */
INV_NODISCARD INV_API inv_status inv_session_push_modes(inv_session *session, const inv_modes *modes);
/** Restores the modes from before the newest inv_session_push_modes, whatever was set since. If it fails, it has
 *  restored nothing, and you may try again.
 *  @return as inv_session_set_modes; INV_E_ARG also if no scope is open */
INV_NODISCARD INV_API inv_status inv_session_pop_modes(inv_session *session);

/** Tries every inverse that recovery could use, on the data of `options->inputs`. It trains nothing. The report has
 *  these results (docs/numerics.md):
 *  - the error of each round trip in float32 and float64, the stated and the measured gain, condition numbers, and the
 *    inverses that the drift limit excludes
 *  - how errors grow in a training step, from the end of the model to its beginning
 *  - with a loss, how inverting changes the gradient. Without a loss, half the sum of squares of the outputs replaces
 *    it.
 *
 *  @param options options of a training session; inputs with data. Options about updates, other batches and ranks have
 *                 no effect, and neither have `budget` and `plan`
 *  @param json    the report; free with inv_free
 *  @return INV_OK, whatever was found; the statuses of inv_session_create and inv_session_grad */
INV_NODISCARD INV_API inv_status inv_model_check(inv_model *model, const struct inv_session_options *options,
                                                 char **json);

/** How the learning rate changes over the steps of a training: up during `warmup` steps, then by kind. */
typedef enum inv_schedule_kind {
    INV_SCHEDULE_CONSTANT,   /* stays at lr */
    INV_SCHEDULE_LINEAR,     /* a line down to min_lr at step `total` */
    INV_SCHEDULE_COSINE,     /* half a cosine down to min_lr at step `total` (Loshchilov, Hutter 2017) */
    INV_SCHEDULE_POLYNOMIAL, /* down to min_lr at step `total`, by (remaining share of steps)^power */
    INV_SCHEDULE_STEP,       /* multiplied by `factor` after every `every` steps, but not below min_lr */
    /* Smith, Topin 2018, as PyTorch's OneCycleLR with its defaults. The rate rises from lr / 25 during `warmup` steps,
     * or three tenths of all steps if `warmup` is 0. Then it falls by half a cosine to min_lr, or to lr / 250000 if
     * min_lr is 0. */
    INV_SCHEDULE_ONE_CYCLE,
    INV_SCHEDULE_WSD /* warm-up, stable, decay: lr until the last `decay` steps, then a line to min_lr */
} inv_schedule_kind;

typedef struct inv_schedule {
    size_t size; /* sizeof(inv_schedule) */
    inv_schedule_kind kind;
    double lr, min_lr; /* highest and lowest rate */
    uint64_t warmup;   /* steps of the warm-up; in step i < warmup the rate is lr (i + 1) / (warmup + 1) */
    uint64_t total;    /* steps of the training; later steps have the rate of step `total` */
    double power;      /* polynomial: the exponent */
    uint64_t every;    /* step: steps between two changes */
    double factor;     /* step: multiplies the rate at a change */
    uint64_t decay;    /* wsd: steps of the decay, at most the steps after the warm-up */
} inv_schedule;
/** Returns the learning rate of step `step`, counted from 0. NaN if the kind does not exist, or if `schedule` is
 *  NULL. */
INV_API double inv_lr_at(const inv_schedule *schedule, uint64_t step);

/** Results of a call that runs a session. */
typedef struct inv_result {
    double loss;
    int64_t rows;    /* rows of logits that the metric counts */
    int64_t correct; /* evaluation with cross entropy and integer labels: rows whose largest logit is the label */
    double drift;    /* largest relative error of a reconstructed value in this step */
    int fallbacks;   /* values that had to be stored in this step because a guard refused their reconstruction */
    /* Weight of the loss in a mean over batches: the number of rows. If labels are ignored or classes have weights, it
     * is the sum of what the labels of this batch count. 0: no label counts, and the loss is NaN. After
     * inv_session_accumulate it is the weight of this micro-batch in the mean. */
    double weight;
    const char *bad_node; /* loss not finite: first node, in execution order, with a non-finite output; else NULL */
    double grad_norm;     /* norm of all gradients together, before clipping; NaN: not measured */
    /* With bad_node: the rank of that node, 0 if the session trains by itself. -1: with several ranks, none found the
     * node when the step was repeated. */
    int bad_rank;
} inv_result;

/** Makes a training step: forward, backward with reconstruction, guards, update. With `world`, a rank that has no rows
 *  of a batch gives arrays of 0 rows. It takes part in the step, but contributes nothing. The step allocates no memory,
 *  unless a guard refuses a reconstruction; then the step is planned and run again.
 *  @param inputs one array per model input, floating-point or integer, in host memory; borrowed for the call
 *  @param target NULL for losses without a target
 *  @param lr     learning rate, finite and not negative
 *  @return INV_OK. INV_E_SHAPE if a shape was not planned. INV_E_ARG if an input that is a constant of the session has
 *          other values. INV_E_NUMERIC if the loss or a gradient is not finite: nothing was committed, and
 *          result->bad_node names the node */
INV_NODISCARD INV_API inv_status inv_session_step(inv_session *session, const inv_array *inputs, size_t ninputs,
                                                  const inv_array *target, double lr, inv_result *result);
/** Names the batch of the training call after the next one, with `send_ahead`. It is sent to the device while the next
 *  call computes. This is only an offer. The batch is sent when its own call begins if there is no memory for it, or if
 *  that call gets other arrays (other `data` or `rows`) or is repeated.
 *  @param inputs as for inv_session_step. `data` and `rows` are borrowed, and must not change, until the call that gets
 *                them has begun. NULL, with ninputs 0: names no batch, and the former arrays are no longer used
 *  @return INV_OK; the statuses of inv_session_step for such arrays, which returns them again. So you need not check */
INV_API inv_status inv_session_next(inv_session *session, const inv_array *inputs, size_t ninputs,
                                    const inv_array *target);
/** Makes a training step without the update; gradients can then be read. It counts as a step, so dropout uses other
 *  masks the next time (inv_session_set_step). It is for sessions of purpose INV_FOR_TRAIN without an optimizer. With
 *  an optimizer, use inv_session_accumulate to get gradients. With INV_LOSS_OUTSIDE, use inv_session_forward and
 *  inv_session_backward.
 *  @return as inv_session_step; INV_E_ARG in other sessions */
INV_NODISCARD INV_API inv_status inv_session_grad(inv_session *session, const inv_array *inputs, size_t ninputs,
                                                  const inv_array *target, inv_result *result);
/** Computes a micro-batch of a step, in a session with `accumulate`: forward and backward. Running statistics are
 *  updated. The gradients become the mean over all rows since the last update, whatever the sizes of the micro-batches.
 *  A micro-batch that fails has changed nothing. The exception is early updates: if it has begun to compute, the step
 *  starts again from its first micro-batch. If no label of a micro-batch counts (result->weight is 0), it changes
 *  nothing, and this is not a failure.
 *  @return as inv_session_step */
INV_NODISCARD INV_API inv_status inv_session_accumulate(inv_session *session, const inv_array *inputs, size_t ninputs,
                                                        const inv_array *target, inv_result *result);
/** Makes the update from the accumulated gradients. Before it, you may read the gradients (INV_GET_GRAD) and change
 *  them (inv_session_set). After it, outputs of the newest micro-batch can no longer be read.
 *  @param lr     as for inv_session_step, which is one micro-batch and an update
 *  @param result of all micro-batches together: mean loss, weight, largest drift, fallbacks; also grad_norm
 *  @return INV_OK. INV_E_ARG if nothing has been accumulated. INV_E_NUMERIC if a gradient is not finite, or if no label
 *          of the micro-batches counts; then nothing was changed */
INV_NODISCARD INV_API inv_status inv_session_update(inv_session *session, double lr, inv_result *result);
/** Computes the forward part of a training step with INV_LOSS_OUTSIDE; outputs can then be read. The session keeps the
 *  values that backward needs, as planned.
 *  @param inputs as for inv_session_step, but borrowed until inv_session_backward has returned, or another call
 *  @return as inv_session_step, but it does not check that numbers are finite */
INV_NODISCARD INV_API inv_status inv_session_forward(inv_session *session, const inv_array *inputs, size_t ninputs,
                                                     inv_result *result);
/** Computes the backward part of a step after inv_session_forward. Gradients can then be read, as after
 *  inv_session_grad, and the number of the step increases. No call in between may run, plan or set anything, and
 *  parameters must not change. If a guard refuses a reconstruction, forward runs again with more values stored.
 *  @param gradients gradients of the loss with respect to the outputs, by the names of these, floating-point; borrowed
 *                   for the call
 *  @return INV_OK; INV_E_ARG if there is no forward part before it, or the gradient of an output is missing;
 *          INV_E_SHAPE */
INV_NODISCARD INV_API inv_status inv_session_backward(inv_session *session, const inv_array *gradients,
                                                      size_t ngradients, inv_result *result);
/** Sets the learning rate of a group from now on, as a factor of the rate of the step.
 *  @param group  index in `inv_session_options.groups`
 *  @param factor finite and not negative
 *  @return INV_OK, INV_E_ARG */
INV_NODISCARD INV_API inv_status inv_session_set_group_lr(inv_session *session, size_t group, double factor);
/** Puts the averages of the weights in the place of the weights (true), or restores the weights (false). Evaluation,
 *  inv_session_get and inv_model_save then use the averages. No step is possible until the weights are restored.
 *  @return INV_OK; INV_E_ARG in a session without `average` */
INV_NODISCARD INV_API inv_status inv_session_use_average(inv_session *session, bool average);
/** Sets the number of the next step, from 0 on. Each step that succeeds sets the next number, with micro 0:
 *  inv_session_step, inv_session_update, inv_session_grad or inv_session_backward. So you need this call only in these
 *  cases:
 *  - to use the same random masks again (finite differences, comparisons)
 *  - to continue a training
 *  - for the second and further micro-batches of a step: (step, 1), (step, 2), ...
 *
 *  Random numbers (dropout, noise) depend only on the seed, this number and `micro`, in every memory mode. The rows of
 *  a step are numbered through its batches, and random numbers of a row depend on its number. After a call with `micro`
 *  above 0, the earlier batches count as having as many rows as this one. Adam also counts updates by this number, and
 *  averages of weights begin at step 0. */
INV_API void inv_session_set_step(inv_session *session, uint64_t step, uint64_t micro);
/** Computes forward and, if a loss is set, the loss. In a training session, dropout is off and running statistics are
 *  used; this needs `eval_batch`.
 *  @return as inv_session_step; INV_E_ARG also if no evaluation was planned */
INV_NODISCARD INV_API inv_status inv_session_eval(inv_session *session, const inv_array *inputs, size_t ninputs,
                                                  const inv_array *target, inv_result *result);

/** Kinds of tensors that can be read. */
typedef enum inv_what {
    INV_GET_OUTPUT,     /* graph output of the newest call */
    INV_GET_PARAM,      /* initializer, present value */
    INV_GET_GRAD,       /* dLoss/dInitializer of the newest grad */
    INV_GET_INPUT_GRAD, /* dLoss/dInput of the newest grad, with `input_grads` */
    INV_GET_STATE,      /* running statistic as a commit of the newest grad would leave it */
    INV_GET_HELD,       /* initializer that is computed with: in the session's memory, or, frozen, in the mapped file */
    /* State of the optimizer: "NAME/velocity", "NAME/moment1", ... Average of a weight: "NAME/average", also while
     * inv_session_use_average has moved it. Before anything is averaged, it is the weight itself. */
    INV_GET_OPTIM,
    INV_GET_LOSS_OUTPUT /* names only: graph outputs that the loss reads */
} inv_what;

/** Returns the name of tensor `i` of a kind, in the order of the model. Borrowed until the next call. Initializers are
 *  listed if they hold numbers, gradients if the session keeps them. A session for planning only lists nothing.
 *  @return NULL past the end */
INV_API const char *inv_session_name(const inv_session *session, inv_what what, size_t i);
/** Copies a tensor of the newest call to host memory. An initializer that nothing reads at run time is as in the model;
 *  if it is floating-point, it has the type of the computation.
 *  @param data borrowed until the next call
 *  @param dims room for 8 extents
 *  @return INV_OK; INV_E_ARG if the name does not exist, or nothing has been run yet; INV_E_UNSUPPORTED_TYPE for an
 *          initializer that holds no numbers */
INV_NODISCARD INV_API inv_status inv_session_get(inv_session *session, inv_what what, const char *name,
                                                 const void **data, inv_dtype *dtype, int *rank, int64_t *dims);
/** A tensor in the memory of a session, on a device that computes in host memory. */
typedef struct inv_view {
    void *data;
    inv_dtype dtype;
    int rank;
    int64_t dims[8];
    /* True: the tensor is state of the session. It stays at this address from call to call, and you may write to it
     * between calls. False: it belongs to the newest call, or to the model, and is read-only. */
    bool persists;
} inv_view;
/** Gives access to a tensor as inv_session_get does, but without a copy. Planning again may move tensors. This happens
 *  in inv_session_set_modes, push and pop, and in calls that report fallbacks; get views again after these. The memory
 *  of a view that persists is not freed before the session ends, other memory not before inv_session_end_views.
 *  @return as inv_session_get; INV_E_ARG also on devices with memory of their own, and for a tensor that is not in the
 *          session's memory */
INV_NODISCARD INV_API inv_status inv_session_view(inv_session *session, inv_what what, const char *name,
                                                  inv_view *view);
/** Ends all views of tensors that do not persist: the caller no longer uses them. */
INV_API void inv_session_end_views(inv_session *session);
/** Overwrites the present value of an initializer.
 *  @param dtype INV_F32 or INV_F64; the numbers are converted
 *  @param data  row-major
 *  @param n     number of elements
 *  @return as inv_session_set; INV_E_ARG also for a frozen initializer that is read from the mapped file */
INV_NODISCARD INV_API inv_status inv_session_set_param(inv_session *session, const char *name, inv_dtype dtype,
                                                       const void *data, size_t n);
/** Overwrites a persistent tensor, as inv_session_set_param does.
 *  @param what INV_GET_PARAM, INV_GET_GRAD (accumulated gradients) or INV_GET_OPTIM
 *  @return INV_OK; INV_E_ARG if the name does not exist, or the tensor does not persist; INV_E_SHAPE;
 *          INV_E_UNSUPPORTED_TYPE */
INV_NODISCARD INV_API inv_status inv_session_set(inv_session *session, inv_what what, const char *name, inv_dtype dtype,
                                                 const void *data, size_t n);
/** Saves the state of a training, so that it can continue as if it had not stopped. The state has:
 *  - trained parameters, and others that differ from the model because they were set, or trained in another stage
 *  - running statistics, optimizer state and averages
 *  - the number of the step, rates of groups, and the values that guards rejected
 *
 *  The file is a safetensors file, with checksums of everything in it. The function writes a temporary file in the
 *  folder of `path`, calls fsync and renames it.
 *  @param note text of the caller to keep in the file; NULL: none
 *  @return INV_OK, INV_E_IO, INV_E_NOMEM; INV_E_ARG in the middle of a step (accumulated and not updated) */
INV_NODISCARD INV_API inv_status inv_session_save_state(inv_session *session, const char *path, const char *note);
/** Loads the state of a training into a session of the same model with the same optimizer. If this fails, nothing is
 *  loaded: the file is compared with its checksums before anything is used. Parameters that were frozen in the stage of
 *  the state get the values that they had there. With several ranks, all ranks have an intact file, or none continues.
 *  @param note NULL, or gets the text of the caller, "" if there was none; free with inv_free
 *  @return INV_OK; INV_E_IO. INV_E_PARSE if the file is not a state, or is damaged; the message says where. INV_E_ARG
 *          or INV_E_SHAPE if the file is from another training; the message names the differences. The file is read
 *          twice. Only if the disk fails in between, the session ends, and later calls say so */
INV_NODISCARD INV_API inv_status inv_session_load_state(inv_session *session, const char *path, char **note);
/** Reads from a state the data that are needed to create a session that continues: the text of the caller, and the plan
 *  of the steps (inv_session_options.plan). With this plan, steps have the same bits as in a training that did not
 *  stop. The whole file is checked, so you can try an older one if it is damaged.
 *  @param note, plan NULL, or get a text, "" if there is none; free with inv_free
 *  @return INV_OK, INV_E_IO, INV_E_NOMEM; INV_E_PARSE if the file is not a state, or is damaged; the message says
 *          where */
INV_NODISCARD INV_API inv_status inv_state_read(inv_context *ctx, const char *path, char **note, char **plan);
/** Checks and describes a state as JSON: `step` (the number of the next step), `tensors`, `bytes` of the file, and
 *  `checksums`. The last is false if an earlier version wrote the file without checksums. Then damage to tensors is not
 *  detected.
 *  @param json free with inv_free
 *  @return as inv_state_read */
INV_NODISCARD INV_API inv_status inv_state_inspect(inv_context *ctx, const char *path, char **json);
/** Returns the number of the next step; random numbers and bias correction depend on it. 0 for NULL. */
INV_API uint64_t inv_session_steps(const inv_session *session);
/** Reports plan, memory by class (at its peak) and over the step, blocks, refusals and drift, as JSON.
 *  @param json free with inv_free
 *  @return INV_OK, INV_E_NOMEM */
INV_NODISCARD INV_API inv_status inv_session_report(inv_session *session, char **json);
/** Returns the private memory of this process in bytes: all memory of sessions, heap, stacks and libraries, but no
 *  mapped files. This is the count of the system, RssAnon on Linux; 0 if the system has none. A report has it as
 *  `beside_bytes`, at the time when the session was created, and without the session's own memory. */
INV_API uint64_t inv_process_bytes(void);
/** Returns how backward gets the values that it reads, by names of values, nodes and rules. The JSON is for
 *  `inv_session_options.plan` of a session of the same model, mode and batch.
 *  @param json free with inv_free
 *  @return INV_OK; INV_E_ARG for a session that is not for training; INV_E_NOMEM */
INV_NODISCARD INV_API inv_status inv_session_plan(inv_session *session, char **json);

/** The cost of a plan that was only tried. */
typedef struct inv_trial {
    size_t size;   /* sizeof(inv_trial), set by the caller */
    uint64_t peak; /* bytes of session and step: a session with this budget has this plan */
    /* Extra cost of the plan, as a share of the cost of storing everything, and a lower bound of it for any plan within
     * the budget. */
    double overhead, bound;
} inv_trial;
/** Computes the cost of a training session within a budget. The session does not change. This costs a few searches for
 *  a plan.
 *  @param budget as in inv_session_options; 0: the smallest peak that is found, at any cost
 *  @return INV_OK; INV_E_ARG for a session that is not for training; INV_E_NOMEM, also if the budget cannot be met;
 *          INV_E_ABI for another size of `trial` */
INV_NODISCARD INV_API inv_status inv_session_try_budget(inv_session *session, uint64_t budget, inv_trial *trial);

/** Explains the plan of a session as JSON (docs/explain.md):
 *  - blocks
 *  - refusals: the condition that failed, on which node or value, and a remedy
 *  - how backward gets each value that it reads, and why values are stored
 *  - inverses of single values
 *  - nodes and tensors of the forward graph
 *
 *  @param json free with inv_free
 *  @return INV_OK, INV_E_NOMEM */
INV_NODISCARD INV_API inv_status inv_session_explain(inv_session *session, char **json);

#ifdef __cplusplus
}
#endif

#endif
