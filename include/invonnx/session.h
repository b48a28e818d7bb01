/* SPDX-License-Identifier: Apache-2.0
 * Sessions: what a model is run, evaluated and trained with. A part of invonnx.h, which includes it. */
#ifndef INVONNX_SESSION_H
#define INVONNX_SESSION_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum inv_purpose {
    INV_FOR_RUN,  /* forward only, as the file says (training-mode operators stay so) */
    INV_FOR_EVAL, /* forward and loss; dropout off, running statistics used */
    INV_FOR_TRAIN /* forward, loss, backward; commit if an optimizer is given */
} inv_purpose;

typedef enum inv_memory {
    INV_MEMORY_AUTO, /* on a device with memory of its own, copies in host memory may be among the means */
    INV_MEMORY_STORE,
    INV_MEMORY_RECOMPUTE,
    INV_MEMORY_INVERT,
    INV_MEMORY_OFFLOAD /* of single values only (inv_mode_rule), on such a device: copied to host memory and back */
} inv_memory;

typedef enum inv_loss {
    INV_LOSS_NONE,
    INV_LOSS_CROSS_ENTROPY, /* logits; int64 labels, or soft targets of the logits' shape; mean over rows, nats */
    INV_LOSS_MSE,           /* mean over all elements of (output - target)^2 */
    INV_LOSS_BCE,           /* logits; targets from 0 to 1; mean over all elements, nats */
    INV_LOSS_NLL,           /* flow: mean over batch of sum 0.5 z^2 + 0.5 D ln 2pi - logdet */
    INV_LOSS_OUTPUT,        /* a scalar output of the model */
    INV_LOSS_HUBER,         /* mean of d^2 / 2, and of delta (|d| - delta / 2) beyond delta; d = output - target */
    /* The caller's, of all floating-point outputs, or those of `loss_outputs`: inv_session_forward gives these,
     * inv_session_backward takes its gradients in them. No optimizer; on devices of the host. */
    INV_LOSS_OUTSIDE
} inv_loss;

typedef enum inv_optimizer {
    INV_OPT_NONE,
    INV_OPT_SGD,      /* with `momentum` above 0 as the next */
    INV_OPT_MOMENTUM, /* SGD with momentum; `nesterov`: the gradient is looked at one step ahead */
    INV_OPT_ADAM,
    INV_OPT_ADAMW,
    INV_OPT_LION,    /* Chen et al. 2023; beta1, beta2, decoupled weight decay */
    INV_OPT_RMSPROP, /* Tieleman, Hinton 2012; beta2 is the decay of the mean of squares */
    INV_OPT_LAMB,    /* You et al. 2020; beta1, beta2, epsilon, decoupled weight decay */
    /* Shazeer, Stern 2018: second moments by row and column of the last two axes, no first ones, steps relative to the
     * size of a parameter. What is new counts t^-beta2 in step t; a parameter's size counts as `epsilon` at least;
     * decoupled weight decay. Of more than 1 / sqrt(t), the learning rate counts as that. */
    INV_OPT_ADAFACTOR,
    /* Jordan 2024: the mean of gradients, with Nesterov's look ahead, made orthogonal; momentum, decoupled weight
     * decay. Filters of convolutions are matrices [outputs, rest]; vectors, and what a group says, are updated by adamw
     * with the same learning rate and beta1, beta2, epsilon. A matrix with more rows than columns takes larger steps,
     * by sqrt(rows / columns). */
    INV_OPT_MUON,
    /* adamw with moments of 8 bits, of blocks of 256 elements with a scale each (Dettmers et al. 2022, arXiv
     * 2110.02861), rounded up or down by chance, from the seed and the step; 2.03 bytes per element instead of 8.
     * Parameters of fewer than 4,096 elements are updated by adamw. */
    INV_OPT_ADAMW8
} inv_optimizer;

/** The numbers that an optimizer is used with when nobody says others: those of PyTorch where it has the optimizer,
 *  else those of its paper. */
typedef struct inv_optimizer_numbers {
    double momentum, beta1, beta2, epsilon, weight_decay;
} inv_optimizer_numbers;
INV_API inv_optimizer_numbers inv_optimizer_defaults(inv_optimizer optimizer);

/** Parameters that are updated in a way of their own. */
typedef struct inv_param_group {
    const char *glob;        /* as of train_only; one of them at least has to be trained */
    double lr;               /* what the learning rate of a step is multiplied by, at first */
    double weight_decay;     /* below 0: as the session has it */
    inv_optimizer optimizer; /* INV_OPT_NONE: the session's; another one is used with its inv_optimizer_defaults */
} inv_param_group;
#define INV_MOST_GROUPS 32 /* the parameters of no group counted as one */

/** Parameters that are trained from some step on. */
typedef struct inv_stage {
    const char *glob; /* as of train_only; what was added to the model (inv_model_set_head, inv_model_add_lora)
                         only fits its own name in full */
    uint64_t from;    /* number of the first step that trains them, from 0 on */
} inv_stage;

/** What products and convolutions of float32 are computed in on a GPU's matrix units: the factors are rounded to so
 * many bits, products are summed up in float32, and so is all else computed. */
typedef enum inv_precision {
    INV_PRECISION_FULL, /* factors as they are */
    INV_PRECISION_TF32, /* 11 bits, the range of float32 */
    INV_PRECISION_BF16  /* 8 bits, the range of float32; convolutions are in TF32 */
} inv_precision;

/** What ranks that train together share instead of each having all of it (ZeRO, arXiv 1910.02054): nothing; the states
 * of the optimizer; these and the gradients. */
typedef enum inv_shard { INV_SHARD_NONE, INV_SHARD_OPTIMIZER, INV_SHARD_GRADIENTS } inv_shard;

typedef enum inv_guard { INV_GUARD_ON, INV_GUARD_FULL, INV_GUARD_OFF } inv_guard;

/** A named host array. dims[0] is the batch. `data` may be NULL where only the shape matters. Numbers are converted to
 *  the type that the model declares, integers for a floating-point input too: images of bytes are 0 to 255 then. Not
 *  floating-point numbers for an input of integers. */
typedef struct inv_array {
    const char *name; /* of the model's input or output; targets: ignored */
    inv_dtype dtype;
    int rank;
    const int64_t *dims;
    const void *data;
    const int64_t *rows; /* NULL, or dims[0] row numbers: row r of the batch is row rows[r] of data */
} inv_array;

/** "GLOB=store|recompute|invert|offload" split in two. The glob is about forward values, by their own names or those of
 *  the nodes that give them; "block:GLOB" about blocks, by the name or the kind that `explain` gives them: what such a
 *  block takes and computes inside, for `invert` what it takes alone. `offload` wants a device with memory of its own
 *  (cuda; for tests sim), and is INV_E_ARG on others. Of several rules that fit a value the last one counts;
 *  INV_MEMORY_AUTO lifts those before it. */
typedef struct inv_mode_rule {
    const char *glob;
    inv_memory mode;
} inv_mode_rule;

#define INV_LOGDET_RULES "rules"

typedef struct inv_session_options {
    size_t size; /* sizeof(inv_session_options); zero is the default of every field */
    inv_purpose purpose;
    /* Shapes of the inputs (one per model input; dims[0] = batch) and of the target. */
    const inv_array *inputs;
    size_t ninputs;
    const inv_array *target;
    int64_t tail_batch;            /* rows of the last, smaller training batch; 0: none */
    int64_t eval_batch, eval_tail; /* purpose train: also plan evaluation at these sizes; 0: none */
    inv_loss loss;
    const char *const *loss_outputs; /* NULL: the only floating-point output; of `outside` all of them */
    size_t nloss_outputs;
    /* nll: the output with the log-determinants, [batch], or one number for all; NULL: they count as zero. "rules":
     * they are computed by what the rules say of the model's operators (docs/flows.md), from the weights as they are at
     * each step; INV_E_NOT_INVERTIBLE where these cannot tell. An output is compared with them once, when a session
     * with an optimizer or for evaluation is created whose `inputs` have data, on some rows of these: INV_E_ARG where
     * it is another number, or in training does not follow the weights, as where an exporter has folded it into
     * constants. */
    const char *logdet;
    /* Cross entropy: axis of the classes, from the end if negative. 0: the one that the target leaves for them; where
     * it leaves several (logits [N,T,V] with T = V, soft targets of rank 3 and more), it has to be said. */
    int class_axis;
    inv_memory memory;
    const char *const *keep; /* globs, as in inv_mode_rule, of what is stored whatever the mode */
    size_t nkeep;
    const inv_mode_rule *modes;
    size_t nmodes;
    /* Globs of initializers, by their names or what modules call them (docs/exporting.md, "Names"). What is trained
     * without them, and what train_only cannot change: the same, "What is trained". */
    const char *const *train_only, *const *freeze;
    size_t ntrain_only, nfreeze;
    bool input_grads; /* also gradients of floating-point inputs */
    bool float64;     /* compute everything in float64 */
    bool no_dropout;
    bool plan_only; /* compile and report; allocate nothing for steps */
    const char
        *device; /* "cpu" (default), "cuda", "cuda:1"; for tests "checked", "sim". Plans for any need no device */
    inv_guard guard;
    double max_drift; /* relative L2 error of a reconstructed value above which a step is not committed; 0: default */
    inv_optimizer optimizer;
    double momentum, beta1, beta2, epsilon, weight_decay; /* used as given when an optimizer is chosen: none below 0,
                                                             beta1 and beta2 below 1 */
    uint64_t seed;
    int threads;     /* 0: as many as the machine has */
    uint64_t budget; /* bytes for all of session and step, of a device's own memory where it has some: the plan of least
                        cost within it; 0: none */
    bool train_bn;   /* batch normalization that was exported in evaluation mode uses and updates batch statistics */
    bool untie;      /* initializers that an exporter merged get a copy for each of their uses, and one that it stored
                      * once more, transposed, is trained apart from that, unless the file or `tied` says that both are
                      * one (docs/exporting.md) */
    const char *const
        *tied; /* globs, as of train_only, of what is shared on purpose, though it looks merged; "GLOB=GLOB":
                * equal initializers that are one weight: the first of both is trained and written */
    size_t ntied;
    /* Globs of inputs whose values, which `inputs` gives then, are constants of the session: what follows from them is
     * computed once, when it is made. So they may decide shapes and control flow. A call gives the same values, or
     * none. */
    const char *const *constant_inputs;
    size_t nconstant_inputs;
    /* So is every other input on which a shape or a branch depends, where `inputs` has its values. */
    bool constants_as_needed;
    double huber_delta;          /* huber; 0 means the default, 1 */
    const double *class_weights; /* cross entropy: by what a class's terms are multiplied; with labels the mean is then
                                    over the sum of the rows' weights. NULL: 1 */
    size_t nclass_weights;
    /* Cross entropy: rows with the label `ignore_index` count neither in the loss nor in the metric. Mse, bce, huber:
     * so do entries of the target that are this or NaN. */
    bool ignores;
    int64_t ignore_index;
    bool profile; /* time every node; the report's timeline tells. On a GPU steps are then not recorded */
    /* Every weight is updated as soon as its gradient is complete, so that gradients need not live at once. A step
     * whose loss is not finite still changes nothing; where a gradient is not, weights whose gradients came before it
     * have been updated. Where guards check what is rebuilt, they do so before backward, once more, or updates wait for
     * them, whichever takes less (docs/numerics.md). A step that they refuse changes nothing. */
    bool early_update;
    /* `logdet`, or 0 where that is NULL, is meant as it is. Else it is compared, if the data of `inputs` are given: an
     * output with the rules, and, with "rules", what rules of plugins state with differences of the outputs. */
    bool trust_logdet;
    /* What the time of a step is predicted by, and plans are compared by, but for those of several ranks: rates of the
     * session's type of arithmetic, those of its device (inv_calibrate_options.device), copied. NULL: it is not
     * predicted. */
    const inv_cost_table *costs;
    /* A plan that inv_session_plan has given, as text: it is used and not searched for. The first of the session's
     * batches must be one that it was made for; others that it has none for are planned by search, and so is what
     * follows when a guard refuses or modes change. INV_E_ARG if it does not fit: another mode, other shapes, a node or
     * value that is not there, no such way to have a value; or if it is not what was saved, by its checksum. One that
     * was changed on purpose says "checksum": "edited". NULL: search. */
    const char *plan;
    /* Asked in every step when its data has been read and nothing is committed; false: the step is dropped, INV_E_ARG.
     * NULL: not asked. On the CPU all is computed by then, and with early updates some weights have been updated. */
    bool (*may_commit)(void *opaque);
    void *may_commit_opaque;
    /* Told after every pass of compiling, and again when the session plans again, what it has made: which of the
     * session's plans ("main", "tail", "eval", "eval_tail", "update", "inverse"), the pass by its name, and the graph
     * in text form (docs/text-form.md), with what was matched and where values lie in comments. The text is borrowed
     * for the call, which must not use the context. false ends compiling, INV_E_IO. NULL: no such text is made. */
    bool (*after_pass)(void *opaque, const char *plan, const char *pass, const char *text);
    void *after_pass_opaque;
    const inv_param_group *groups; /* the last whose glob fits a parameter's name counts */
    size_t ngroups;
    /* Decoupled weight decay is for matrices: adamw and lion leave vectors (biases, gains of norms) as they are, unless
     * a group says otherwise. true: it is for all. */
    bool decay_all;
    bool nesterov;     /* momentum, and sgd with momentum */
    double clip_norm;  /* the gradients of a step, all as one vector, are scaled down to this norm; 0: they are not */
    double clip_value; /* each entry of a gradient is brought into [-clip_value, clip_value]; 0: it is not */
    bool grad_norm;    /* inv_result.grad_norm is wanted, clipped by or not; not with early updates */
    /* Gradients persist, and the update is a call of its own: inv_session_accumulate, as often as wanted, then
     * inv_session_update. Takes the bytes of the gradients, beside what backward takes. With `early_update` each
     * gradient is added as soon as it is complete. */
    bool accumulate;
    bool average; /* averages of the weights are kept beside them (inv_session_use_average) */
    /* Of an exponential moving average; 0: the mean of the weights after every `average_every`th step (0: 1st). */
    double average_decay;
    uint64_t average_from, average_every; /* up to step `average_from` the average is the weights themselves */
    /* Cross entropy in training: this share of each target, labels or soft ones, goes to all classes alike, as PyTorch
     * has it; below 1. Evaluation leaves it out, so that its losses can be compared whatever was trained with. */
    double label_smoothing;
    /* how long plans are searched for, as a multiple of the usual, up to 1000; 0: 1 */
    int64_t effort;
    /* Gradients pass QuantizeLinear and the other quantizers as if these did not round (straight-through). False:
     * INV_E_UNSUPPORTED_OP where one would have to pass. */
    bool through_quantization;
    /* INV_BF16: weights of two axes or more and 4,096 elements or more are kept in bfloat16 while they are trained,
     * with no copy in float32, and updates round them up or down by chance. Others stay in float32. For training on the
     * CPU in float32, with updates of single elements: not lamb, adafactor and muon, not averages. INV_DT_NONE: all are
     * kept in the type that is computed with. */
    inv_dtype weights;
    /* Plans get better while steps are made; needs an optimizer, else nothing comes of it. With `costs` the first steps
     * are timed node by node, on the device cpu, which corrects the rates; where that changes much, it is planned again
     * by them. Then, if the session has several threads, one more goes on searching, coming last where processors are
     * shared out. Between two steps a plan is taken that is better by more than 1 %: within a budget the step takes
     * less time, in mode invert fewer bytes, else the product of both is less; a line of the log says so. Which step
     * that is hangs on the machine, and with inverses so do last digits. With several ranks steps are timed, and plans
     * stay. */
    bool improve;
    /* Folder where corrections are kept, beside the rates, as inv_calibrate_options.cache says. */
    const char *cost_cache;
    /* Training in stages: parameters that fit are frozen before step `from`. Till then they have no gradient and no
     * state, and no update moves them; of several that fit, the smallest `from` counts. When a stage begins, the step,
     * inv_session_save_state or inv_session_load_state plans anew and moves the session's memory, which may fail like
     * inv_session_create; that the last stage can be planned is looked at when the session is made. Bias corrections of
     * a parameter count its own steps. */
    const inv_stage *stages;
    size_t nstages;
    uint64_t first_step; /* number of the first step, of a session that is to go on from a state: for its stage it is
                            planned */
    /* The ranks that train with this one, each with a session of the same options; borrowed as long as the session
     * lives. NULL: it trains alone. With an optimizer: every step is of the rows of all ranks, gradients are means over
     * all rows, and parameters stay the same on all. What a rank feeds is its part of the batch, which may have fewer
     * rows than that of others, but at least one. Steps, planning again and
     * inv_session_load_state are calls of all ranks together. */
    inv_world *world;
    /* Other than INV_PRECISION_FULL on device cuda, and on sim, which rounds likewise; not with float64. What is
     * computed again has the same bits; maps that are solved for their input come back with the error of the rounding,
     * so that most of them are not inverted. */
    inv_precision precision;
    /* What the ranks of `world` share: each has 1/n of it. Saving a state is a call of all ranks together then. Not
     * with lamb, adafactor and muon, which compute with whole tensors. Without several ranks nothing comes of it. */
    inv_shard shard;
    /* With `world`: batch normalization that trains takes mean and variance of the rows of all ranks, and gradients go
     * through these. INV_E_ARG if nothing is normalized so. */
    bool sync_bn;
    /* Training on a device with memory of its own: a batch that inv_session_next names is sent there while the step
     * before computes, to bytes of its own. They are those of one batch, and part of the peak; there are none, and
     * batches are sent when their step begins, where `budget` has no room left, and in mode invert without a budget. */
    bool send_ahead;
    /* The output that the loss is of holds probabilities: INV_LOSS_CROSS_ENTROPY is of what the Softmax reads that
     * gives it, INV_LOSS_BCE of what the Sigmoid reads. INV_E_ARG where the output is not given so. False: it holds
     * logits. */
    bool probabilities;
    /* Axis 0 is not the batch, or rows act on each other, and it is meant so. False: where `inputs` has data, a session
     * with an optimizer or for evaluation, of a loss other than output and outside, is looked at when it is created:
     * with one of a few rows replaced, only that row of what the loss is of may change in evaluation mode, else
     * INV_E_ARG. It takes two forward passes of these rows. */
    bool rows_mix;
    /* Elements of trained parameters that stay as they are: those that are zero, of what these globs fit; rows along
     * axis 0, as "GLOB:ROW,ROW", from the end if negative. By itself such are held that the file shows: zeros of a
     * weight that the exporter has multiplied with a mask, the row of padding of a table (docs/exporting.md, "What is
     * held"); not of what no_hold fits. INV_E_ARG where a glob fits nothing that is trained. */
    const char *const *hold_zeros, *const *hold_rows, *const *no_hold;
    size_t nhold_zeros, nhold_rows, nno_hold;
} inv_session_options;

/** Looks at the options alone: sizes, numbers, enumerations, lists and arrays. Whatever takes options does so first.
 *  @return INV_OK; INV_E_ABI for a size, else INV_E_ARG, INV_E_SHAPE, INV_E_UNSUPPORTED_TYPE with the field's name */
INV_NODISCARD INV_API inv_status inv_session_options_check(inv_context *ctx, const inv_session_options *options);

/** Compiles the plans (train, last smaller batch, evaluation of both sizes) and allocates their one arena.
 *  All that is missing is named at once. @return INV_OK; INV_E_SHAPE, INV_E_UNSUPPORTED_OP, INV_E_ARG, ...;
 *  INV_E_NOT_CONSTANT if values of inputs decide shapes or control flow (see constant_inputs) */
INV_NODISCARD INV_API inv_status inv_session_create(inv_model *model, const inv_session_options *options,
                                                    inv_session **out);
/** Frees it, whatever of its model and its context has been destroyed before. Views of its memory end. Nothing on NULL.
 */
INV_API void inv_session_destroy(inv_session *session);

/** Sizes of the batches of a session. */
typedef struct inv_session_sizes {
    size_t size;             /* sizeof(inv_session_sizes) */
    const inv_array *inputs; /* shapes, and values of constants, as in inv_session_options; NULL: as they are */
    size_t ninputs;
    const inv_array *target; /* as there; counts with `inputs` only */
    int64_t tail_batch, eval_batch, eval_tail;
    const char *plan; /* as inv_session_options.plan; NULL: a batch that stays as it was keeps its plan */
} inv_session_sizes;

/** Plans a session for batches of other sizes, between any two calls: also in the middle of a step that accumulates,
 *  within scopes of modes, and while averages have the place of the weights. Whatever has been set or learnt stays:
 *  parameters, the state of the optimizer, running statistics, accumulated gradients, averages, modes, rates of groups,
 *  the stage, the number of the step and what guards have rejected. Outputs and gradients of the newest call cannot be
 *  read any more. With `world` it is a call of all ranks.
 *  @return INV_OK; INV_E_ARG, INV_E_SHAPE, INV_E_NOMEM, ... as inv_session_create: then the session is as it was. Only
 *          if there is not even the memory to go back, it ends, and says so from then on.
 *  Cost: a search for a plan, and the transient memory anew. What persists is copied only where it changes its place.
 */
INV_NODISCARD INV_API inv_status inv_session_resize(inv_session *session, const inv_session_sizes *sizes);

/** A change of the modes of a session. */
typedef struct inv_modes {
    size_t size;              /* sizeof(inv_modes) */
    const inv_memory *memory; /* mode of the session from now on; NULL: as it is */
    bool replace;             /* the rules and the `keep` of before are dropped; else these come behind them, so that
                                 they win over rules, but not over `keep` */
    const inv_mode_rule *rules;
    size_t nrules;
} inv_modes;

/** Changes the modes of a training session between two steps. Plans again from the graphs that the session has;
 *  parameters, optimizer state, running statistics, the number of the step and with it all random numbers stay as they
 *  are, bit for bit. Outputs and gradients of the newest call cannot be read any more.
 *  @return INV_OK; INV_E_ARG for a glob that fits nothing, INV_E_NOMEM, also if the budget cannot be met: then the
 *          session is as it was, and goes on. Only if there is not even the memory to go back, it ends, and says so
 *  from then on. Cost: a search for a plan, and the transient memory anew. */
INV_NODISCARD INV_API inv_status inv_session_set_modes(inv_session *session, const inv_modes *modes);
/** The same for a while: `pop` restores what held before the newest `push`, whatever was set since. Scopes nest. A
 *  `pop` that fails has restored nothing and may be tried again. */
INV_NODISCARD INV_API inv_status inv_session_push_modes(inv_session *session, const inv_modes *modes);
INV_NODISCARD INV_API inv_status inv_session_pop_modes(inv_session *session);

/** Tries every inverse that recovery could use on the data of `options->inputs`: error of its round trip in float32 and
 *  float64, stated and measured gain, condition numbers, what the drift limit refuses, and how errors grow from the
 *  model's end to its beginning in a training step (docs/numerics.md). With a loss also what inverting does to the
 *  gradient; without, half the sum of squares of the outputs stands in. Nothing is trained. Findings are no failure.
 *  @param options as of a training session, inputs with data. What they say of updates, other batches, ranks, `budget`
 *                 and `plan` counts for nothing here
 *  @param json    the report; free with inv_free
 *  @return INV_OK; what inv_session_create and inv_session_grad return */
INV_NODISCARD INV_API inv_status inv_model_check(inv_model *model, const struct inv_session_options *options,
                                                 char **json);

/** How the learning rate goes over the steps of a training: up during `warmup` steps, then as `kind` says. */
typedef enum inv_schedule_kind {
    INV_SCHEDULE_CONSTANT,
    INV_SCHEDULE_LINEAR,     /* down to min_lr at step `total` */
    INV_SCHEDULE_COSINE,     /* by half a cosine (Loshchilov, Hutter 2017) */
    INV_SCHEDULE_POLYNOMIAL, /* by the power `power` of what is left */
    INV_SCHEDULE_STEP,       /* times `factor` after every `every` steps, not below min_lr */
    INV_SCHEDULE_ONE_CYCLE,  /* Smith, Topin 2018, as PyTorch's OneCycleLR with its defaults: warm-up, where none is
                                given  three tenths of all steps, from lr / 25; then by half a cosine to lr / 250000 or
                                min_lr */
    INV_SCHEDULE_WSD         /* warm-up, stable, decay: lr until the last `decay` steps, then linear to min_lr */
} inv_schedule_kind;

typedef struct inv_schedule {
    size_t size; /* sizeof(inv_schedule) */
    inv_schedule_kind kind;
    double lr, min_lr;
    uint64_t warmup; /* steps: at step i < warmup the rate is lr (i + 1) / (warmup + 1) */
    uint64_t total;  /* steps of the training; behind it the rate stays as it was at step `total` */
    double power;    /* polynomial */
    uint64_t every;  /* step */
    double factor;   /* step */
    uint64_t decay;  /* wsd: steps, at most those behind the warm-up */
} inv_schedule;
/** The learning rate of step `step`, counted from 0. NaN: there is no such kind, or no schedule is given. */
INV_API double inv_lr_at(const inv_schedule *schedule, uint64_t step);

typedef struct inv_result {
    double loss;
    int64_t rows;    /* rows of logits that the metric counts */
    int64_t correct; /* evaluation with cross entropy and integer labels: rows whose largest logit is the label */
    double drift;    /* largest relative reconstruction error of this step */
    int fallbacks;   /* values that had to be kept after the guard refused, this step */
    double weight;   /* evaluation: of the loss in a mean over batches: rows, or, where labels are ignored or classes
                        weighted, what the labels of this batch count; 0: none of them does, and loss is NaN. Of
                        inv_session_accumulate likewise: by what this batch counts in the mean */
    const char *bad_node; /* loss not finite: first node, in execution order, with a non-finite output; else NULL */
    double grad_norm;     /* of all gradients together, before clipping; NaN: not measured */
    int bad_rank; /* with bad_node: the rank whose node that is, 0 of a session that trains alone; -1: of several ranks
                     none has found it again */
} inv_result;

/** One training step: forward, backward with reconstruction, guards, update.
 *  @param inputs one per model input, float or integer, host, borrowed for the call
 *  @param target NULL for losses without one
 *  @param lr     learning rate, finite and not negative
 *  @return INV_OK; INV_E_SHAPE if a shape was not planned for; INV_E_ARG if an input that is a constant of the session
 *          has other values; INV_E_NUMERIC if the loss or a gradient is not
 *          finite (nothing was committed; result->bad_node says where)
 *  With `world`, a rank that has no rows of a batch is fed arrays of 0 rows: it takes part, and nothing of it counts.
 *  Cost: no allocation, unless the guard refuses a reconstruction (then the step is planned and run again). */
INV_NODISCARD INV_API inv_status inv_session_step(inv_session *session, const inv_array *inputs, size_t ninputs,
                                                  const inv_array *target, double lr, inv_result *result);
/** With `send_ahead`: names the batch of the training call behind the next one, which is then sent to the device while
 *  the next one computes. It is an offer: where there are no bytes for that, or the call is fed other arrays (another
 *  `data` or `rows`), or has to be repeated, what it is fed is sent when it begins.
 *  @param inputs as for inv_session_step, but `data` and `rows` are borrowed, and stay as they are, until the call that
 *                is fed them has begun; NULL with ninputs 0: nothing is named, and nothing of what was is used any more
 *  @return INV_OK; what inv_session_step says of such arrays; it says it again, so nobody has to look */
INV_API inv_status inv_session_next(inv_session *session, const inv_array *inputs, size_t ninputs,
                                    const inv_array *target);
/** As inv_session_step, without the update: gradients are left to be read. It counts as a step, too, so that dropout
 *  draws other masks the next time (inv_session_set_step).
 *  For sessions of purpose INV_FOR_TRAIN without an optimizer, and of a loss other than INV_LOSS_OUTSIDE, where
 *  inv_session_forward and inv_session_backward do this. With an optimizer, gradients are those of
 *  inv_session_accumulate.
 *  @return as inv_session_step; INV_E_ARG in other sessions */
INV_NODISCARD INV_API inv_status inv_session_grad(inv_session *session, const inv_array *inputs, size_t ninputs,
                                                  const inv_array *target, inv_result *result);
/** A micro-batch of a step, in a session with `accumulate`: forward and backward; running statistics are updated, and
 *  the gradients become the mean over all rows since the last update, whatever the sizes of the micro-batches. A
 *  micro-batch that fails has changed nothing, unless updates are early and it has begun to compute: then the step
 *  begins anew.
 *  One of which no label counts (result->weight 0) changes nothing either, and is no failure.
 *  @return as inv_session_step */
INV_NODISCARD INV_API inv_status inv_session_accumulate(inv_session *session, const inv_array *inputs, size_t ninputs,
                                                        const inv_array *target, inv_result *result);
/** The update from what has been accumulated; before it, the gradients may be read (INV_GET_GRAD) and changed
 *  (inv_session_set). Outputs of the newest micro-batch are gone then.
 *  @param lr     as for inv_session_step, which is one micro-batch and this
 *  @param result of all micro-batches together: mean loss, weight, largest drift, fallbacks; and grad_norm
 *  @return INV_OK; INV_E_ARG if nothing has been accumulated; INV_E_NUMERIC if a gradient is not finite, or no label
 *          of the micro-batches counts (nothing was changed) */
INV_NODISCARD INV_API inv_status inv_session_update(inv_session *session, double lr, inv_result *result);
/** The forward part of a training step with INV_LOSS_OUTSIDE: outputs can be read then. What backward needs stays in
 * the session, as the plan has it.
 *  @param inputs as for inv_session_step, but borrowed until inv_session_backward has returned, or another call
 *  @return as inv_session_step; no number is looked at for being finite */
INV_NODISCARD INV_API inv_status inv_session_forward(inv_session *session, const inv_array *inputs, size_t ninputs,
                                                     inv_result *result);
/** The backward part of it, which follows with no call between that runs, plans again or sets anything, and with
 *  parameters as they were: gradients are left to be read, as by inv_session_grad, and the number of the step goes on.
 *  If a guard refuses a reconstruction, forward is run again with more kept.
 *  @param gradients of the loss in the outputs, by their names, floating-point; borrowed for the call
 *  @return INV_OK; INV_E_ARG without a forward to follow, or where an output's gradient is missing; INV_E_SHAPE */
INV_NODISCARD INV_API inv_status inv_session_backward(inv_session *session, const inv_array *gradients,
                                                      size_t ngradients, inv_result *result);
/** From now on the learning rate of group `group` (its place in `inv_session_options.groups`) is `factor` times that of
 *  the step. @return INV_OK, INV_E_ARG */
INV_NODISCARD INV_API inv_status inv_session_set_group_lr(inv_session *session, size_t group, double factor);
/** Lets the averages of the weights take their place (true), or gives the weights their place back (false): evaluation,
 *  inv_session_get, inv_model_save then see them. No step can be made meanwhile.
 *  @return INV_OK; INV_E_ARG in a session without `average` */
INV_NODISCARD INV_API inv_status inv_session_use_average(inv_session *session, bool average);
/** The number of the next step, from 0 on. Random numbers (dropout, noise) are a function of the seed, this number and
 *  `micro`: the same ones give the same masks, whatever came before, in every memory mode. Rows of a step are numbered
 *  through its batches, and draw by their numbers; behind a call with `micro` > 0 as if the batches before had had as
 *  many rows as this one. Each inv_session_step and inv_session_grad that succeeds goes on to the next number, with
 * micro 0; so calling this is needed to draw masks again (finite differences, comparisons), to go on with a training
 * where it was left, and for the second and further micro-batches of a step, (step, 1), (step, 2), ... Adam counts
 * updates by the number, too, and averages of weights begin at step 0. */
INV_API void inv_session_set_step(inv_session *session, uint64_t step, uint64_t micro);
/** Forward and, if a loss is set, loss. In a training session: with dropout off and running statistics. */
INV_NODISCARD INV_API inv_status inv_session_eval(inv_session *session, const inv_array *inputs, size_t ninputs,
                                                  const inv_array *target, inv_result *result);

typedef enum inv_what {
    INV_GET_OUTPUT, /* graph output of the newest call */
    INV_GET_PARAM,  /* initializer, present value */
    INV_GET_GRAD,   /* dLoss/dInitializer of the newest grad */
    INV_GET_INPUT_GRAD,
    INV_GET_STATE,      /* running statistic as a commit of the newest grad would leave it */
    INV_GET_HELD,       /* initializer that is computed with: in the session's memory, or, frozen, in the mapped file */
    INV_GET_OPTIM,      /* state of the optimizer, "NAME/velocity", "NAME/moment1", ...; averages, "NAME/average",
                           wherever inv_session_use_average has put it: the weight itself before anything is averaged
                         */
    INV_GET_LOSS_OUTPUT /* names alone: of the graph outputs that the loss is taken of */
} inv_what;

/** Names of what can be read, in the model's order; NULL past the end. Borrowed until the next call. Initializers: all
 *  of numbers. Gradients: those that the session keeps. Of a session for planning only: none. */
INV_API const char *inv_session_name(const inv_session *session, inv_what what, size_t i);
/** A tensor of the newest call, host memory, borrowed until the next call. `dims` has room for 8. An initializer that
 *  nothing reads at run time is as the model has it, floating-point numbers in the type that is computed with.
 *  @return INV_OK; INV_E_ARG if there is no such name, or nothing has been run yet; INV_E_UNSUPPORTED_TYPE of an
 *          initializer that holds no numbers */
INV_NODISCARD INV_API inv_status inv_session_get(inv_session *session, inv_what what, const char *name,
                                                 const void **data, inv_dtype *dtype, int *rank, int64_t *dims);
/** Where a tensor lies in the memory of a session on a device of the host. */
typedef struct inv_view {
    void *data;
    inv_dtype dtype;
    int rank;
    int64_t dims[8];
    bool persists; /* it is the session's state: to be written to between calls, it stays there from call to call. Else
                      it is the newest call's, or the model's, and to be read only */
} inv_view;
/** As inv_session_get, without a copy. Planning again may move what is there: that is so after
 *  inv_session_set_modes, push and pop, and calls that tell of fallbacks; look at views anew then. The memory itself is
 *  not freed before: of what persists as long as the session lives, of all else until inv_session_end_views.
 *  @return as inv_session_get; INV_E_ARG also on devices with memory of their own, and for what is not in the session's
 *          memory */
INV_NODISCARD INV_API inv_status inv_session_view(inv_session *session, inv_what what, const char *name,
                                                  inv_view *view);
/** No view of what does not persist is used any more. */
INV_API void inv_session_end_views(inv_session *session);
/** Overwrites an initializer's present value: float32 or float64, row-major, `n` elements.
 *  @return as inv_session_set; INV_E_ARG also for a frozen one that is read where the model's file is mapped */
INV_NODISCARD INV_API inv_status inv_session_set_param(inv_session *session, const char *name, inv_dtype dtype,
                                                       const void *data, size_t n);
/** The same for what else persists: INV_GET_PARAM, INV_GET_GRAD (accumulated gradients), INV_GET_OPTIM.
 *  @return INV_OK; INV_E_ARG if there is no such name, or it is not of what persists; INV_E_SHAPE */
INV_NODISCARD INV_API inv_status inv_session_set(inv_session *session, inv_what what, const char *name, inv_dtype dtype,
                                                 const void *data, size_t n);
/** Writes what a training has become, so that it can go on as if it had not stopped: trained parameters, others that
 *  are not as the model has them (that were set, or trained in another stage), running statistics, optimizer state,
 *  averages, the number of the step, rates of groups, what guards have rejected. A safetensors file with checksums of
 *  all that is in it, by a temporary file beside `path`, fsync and rename.
 *  @param note text of the caller's, kept in the file; NULL: none
 *  @return INV_OK, INV_E_IO, INV_E_NOMEM; INV_E_ARG in the middle of a step (accumulated and not updated) */
INV_NODISCARD INV_API inv_status inv_session_save_state(inv_session *session, const char *path, const char *note);
/** Goes on from there: a session of the same model with the same optimizer. All of it or, on failure, nothing: the file
 *  is held against its checksums before anything is used. What is frozen in the state's stage gets the values that it
 *  had there. Of several ranks all have a file that is whole, or none goes on.
 *  @param note NULL, or gets the caller's text, "" if there was none. Free with inv_free
 *  @return INV_OK; INV_E_IO; INV_E_PARSE: it is no state, or damaged, with what of it; INV_E_ARG, INV_E_SHAPE where the
 *          file is of another training, with what is missing or differs. Only if the disk fails between the two times
 *          that the file is read, the session ends, and says so from then on */
INV_NODISCARD INV_API inv_status inv_session_load_state(inv_session *session, const char *path, char **note);
/** What a session that is to go on wants to know before it is made: the caller's text, and the plan that the steps were
 *  made by (inv_session_options.plan). With it, steps go on with the bits of a training that did not stop. All of the
 *  file is read: where it is not whole, an older one can be looked for.
 *  @param note, plan NULL, or get a text, "" if there is none. Free with inv_free
 *  @return INV_OK, INV_E_IO, INV_E_NOMEM; INV_E_PARSE: it is no state, or damaged, with what of it */
INV_NODISCARD INV_API inv_status inv_state_read(inv_context *ctx, const char *path, char **note, char **plan);
/** Whether a state is whole, and what it is: `step`, the number of the next step, `tensors`, `bytes` of the file, and
 *  `checksums`, false of a file that an earlier version has written without, so that damage to tensors is not found. As
 *  JSON; free with inv_free.
 *  @return as inv_state_read */
INV_NODISCARD INV_API inv_status inv_state_inspect(inv_context *ctx, const char *path, char **json);
/** Number of the next step; it keys random numbers and bias correction. */
INV_API uint64_t inv_session_steps(const inv_session *session);
/** Plan, memory by class (at its peak) and over the step, blocks, refusals, drift, as JSON. Free with inv_free. */
INV_NODISCARD INV_API inv_status inv_session_report(inv_session *session, char **json);
/** Private memory that this process has at present, in bytes: all memory of sessions, heap, stacks, what libraries have
 *  for themselves, but no mapped files. The system's count, RssAnon of Linux; 0 where there is none.
 *  A report tells it as `beside_bytes`, without the session's own memory, when the session was made. */
INV_API uint64_t inv_process_bytes(void);
/** How backward gets what it reads, by names of values, nodes and rules, as JSON for `inv_session_options.plan` of a
 *  session of the same model, mode and batch. Free with inv_free.
 *  @return INV_OK; INV_E_ARG of a session that is not for training, INV_E_NOMEM */
INV_NODISCARD INV_API inv_status inv_session_plan(inv_session *session, char **json);

/** A plan that was only tried. */
typedef struct inv_trial {
    size_t size;            /* sizeof(inv_trial), set by the caller */
    uint64_t peak;          /* bytes of session and step: a session with them as its budget has this plan */
    double overhead, bound; /* cost over that of storing everything; that of any plan within the budget, at least */
} inv_trial;
/** What a training session would cost within so many bytes. The session stays as it is.
 *  @param budget as in inv_session_options; 0: the smallest peak that is found, whatever it costs
 *  @return INV_OK; INV_E_ARG of a session that is not for training, INV_E_NOMEM, also if the budget cannot be met.
 *  Cost: a few searches for a plan. */
INV_NODISCARD INV_API inv_status inv_session_try_budget(inv_session *session, uint64_t budget, inv_trial *trial);

/** Why: blocks; refusals, by which condition, on what, and what would help; how backward gets what it reads, and why
 *  what is stored is; inverses of single values; nodes and tensors of the forward graph. As JSON (docs/explain.md);
 *  free with inv_free. */
INV_NODISCARD INV_API inv_status inv_session_explain(inv_session *session, char **json);

#ifdef __cplusplus
}
#endif

#endif
