/* SPDX-License-Identifier: Apache-2.0
 * invonnx: train imported ONNX models in little memory. The public C API.
 *
 * Threads: a context and everything made from it is used by one thread at a time; different contexts
 * are independent. The library runs worker threads (OpenMP) inside a call: as many as the session was made for
 * (inv_session_options.threads), and omp_set_num_threads has been called so for the calling thread then. Ownership:
 * what a `_create`/`_load` gives is the caller's until he gives it to its `_destroy`; other pointers are borrowed until
 * the object named is destroyed. A session holds its model, a model and a world hold their context: what is destroyed
 * lives on until nobody holds it, so the order does not matter. The library never prints, aborts or exits: failures are
 * statuses, with a complete message in the context. What is NULL and has to be given is INV_E_ARG, and the message
 * names it; where an object is NULL (context, model, session, but not world), there is no context that could have a
 * message. Such objects give NULL, 0 or "" where no status is returned. What may be NULL is said. After fork(), a child
 * may destroy what it has from its parent; what computes fails there with INV_E_ARG if the parent has worker threads.
 */
#ifndef INVONNX_INVONNX_H
#define INVONNX_INVONNX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "invonnx/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INV_VERSION_MAJOR 0
#define INV_VERSION_MINOR 1
#define INV_VERSION_PATCH 0
#define INV_API __attribute__((visibility("default")))
#define INV_NODISCARD __attribute__((warn_unused_result))

/** Element types, numbered as in ONNX TensorProto.DataType. */
typedef enum inv_dtype {
    INV_DT_NONE = 0,
    INV_F32 = 1,
    INV_U8 = 2,
    INV_I8 = 3,
    INV_U16 = 4,
    INV_I16 = 5,
    INV_I32 = 6,
    INV_I64 = 7,
    INV_STRING = 8,
    INV_BOOL = 9,
    INV_F16 = 10,
    INV_F64 = 11,
    INV_U32 = 12,
    INV_U64 = 13,
    INV_C64 = 14,
    INV_C128 = 15,
    INV_BF16 = 16
} inv_dtype;

typedef struct inv_context inv_context;
typedef struct inv_model inv_model;
typedef struct inv_session inv_session;

/* --- context --- */

/** Memory from the caller: `alloc` gives at least `nbytes` (alignment of malloc) or NULL. */
typedef struct inv_allocator {
    void *(*alloc)(void *opaque, size_t nbytes);
    void (*free)(void *opaque, void *p);
    void *opaque;
} inv_allocator;
typedef void (*inv_log_fn)(void *opaque, const char *line);
/** Called from within functions that may take long, some hundred times a second at most: `stage` says what is being
 *  done, `share`, from 0 to 1, how far it is; of searches that may end early it is what has been done of the most that
 *  there can be. The call must not use the context. */
typedef void (*inv_progress_fn)(void *opaque, const char *stage, double share);

typedef struct inv_context_options {
    size_t size;                    /* sizeof(inv_context_options) */
    const inv_allocator *allocator; /* NULL: malloc and free */
    inv_log_fn log;                 /* NULL: silent */
    void *log_opaque;
    bool no_rules;            /* operators only: inverse rules come from plugins */
    inv_progress_fn progress; /* NULL: nothing is told */
    void *progress_opaque;
    /* How messages call an option of a session, by the name of its field: a program whose users give options in other
     * words says these. NULL, or what gives NULL: by the field. */
    const char *(*option_name)(const char *field);
    /* Looked at all along compiling and the steps of sessions, as a signal handler may set it: when it is not 0, the
     * call ends with INV_E_STOPPED and has changed nothing. Updates that have begun are finished first, those of a step
     * with early updates with the step. NULL: nothing stops. */
    const volatile int *stop;
} inv_context_options;

/** The library's version, "MAJOR.MINOR.PATCH". */
INV_API const char *inv_version(void);
/** One line for a status code. */
INV_API const char *inv_status_text(inv_status s);
/** A context with the built-in operators and inverse rules. `options` may be NULL.
 *  @return INV_OK, INV_E_NOMEM */
INV_NODISCARD INV_API inv_status inv_context_create(const inv_context_options *options, inv_context **out);
/** The caller is done with it. Its options' `log`, `progress`, `option_name` and `stop` are not used any more. The
 *  allocator is, until the last model, session and world of this context is destroyed, in whatever thread that is. Free
 *  texts and tables that the library returned before. Nothing on NULL. */
INV_API void inv_context_destroy(inv_context *ctx);
/** Adds the inverse rules and operators of a plugin (docs/plugin-abi.md): a shared object, a text of rules, or
 *  an ONNX file whose local functions come in pairs.
 *  All of it or, on failure, nothing. Code of a shared object runs in this process, here and whenever its operators do;
 *  it stays loaded until the context goes. Load plugins before models: a model keeps the operators that were there when
 *  it was loaded.
 *  @return INV_OK; INV_E_IO, INV_E_PARSE, INV_E_ABI (not made for this library), INV_E_EXISTS (a name is taken), or
 *  what the plugin failed with */
INV_NODISCARD INV_API inv_status inv_context_load_plugin(inv_context *ctx, const char *path);
/** Message of the newest failure; "" if none. Borrowed until the next call with this context. */
INV_API const char *inv_context_message(const inv_context *ctx);
/** More about the newest failure than its message, as a JSON object; "" if there is nothing. Of a budget that cannot be
 *  met: `budget_bytes`, `needed_bytes` of the plan that the message names, `persistent_bytes`, and `remedies`, the best
 *  first: a session option and its value, or several as one text each, and the bytes that a step takes then at least.
 *  Borrowed until the next call with this context. */
INV_API const char *inv_context_details(const inv_context *ctx);
/** How far a name is from what a glob fits: changes of single characters, two in the wrong order being one. For "did
 *  you mean". SIZE_MAX: one of both is NULL, or too long. */
INV_API size_t inv_name_distance(const char *glob, const char *name);
/** Frees text that the library returned. */
INV_API void inv_free(inv_context *ctx, void *p);
/** What is registered, as JSON: `what` is "ops" or "rules". Free with inv_free. Of operators it says what compiling
 *  their test cases showed: gradient, inverse, element types per input, devices, what runs in their place. */
INV_NODISCARD INV_API inv_status inv_registry_report(inv_context *ctx, const char *what, char **json);

/** The conformance suite: every inverse rule and operator of one plugin, named as it was loaded (NULL: the library's
 *  own rules), from their cases: round trip, stated against measured gain, aliasing, extreme values, gradients against
 *  differences, each element type and device, and the same over the domain that a rule states: inputs of other sizes,
 *  other parameters. What was measured of each rule is in `results`, what fails in `failed` (a number) and `failures`,
 *  with what would help.
 *  @param json free with inv_free
 *  @return INV_OK if the suite ran, whatever came of it */
INV_NODISCARD INV_API inv_status inv_selftest(inv_context *ctx, const char *plugin, char **json);

/* --- model --- */

/** Maps and imports an ONNX file. Tensors stay in the mapping; the file must not change meanwhile. It may be removed,
 *  or another may take its place; one that was written over is noticed when a model is saved (INV_E_IO).
 *  @return INV_OK; INV_E_IO, INV_E_PARSE, INV_E_GRAPH, INV_E_UNSUPPORTED_TYPE with all that was found */
INV_NODISCARD INV_API inv_status inv_model_load(inv_context *ctx, const char *path, inv_model **out);
/** As inv_model_load, and the constants that are called so are parameters like initializers, whatever part they play:
 *  floating-point Constant nodes, and initializers of bodies, by the names that inv_model_inspect lists them with.
 *  Names of others count for nothing, and so do those of constants on which a shape depends.
 *  @param names copied */
INV_NODISCARD INV_API inv_status inv_model_load_with(inv_context *ctx, const char *path, const char *const *names,
                                                     size_t nnames, inv_model **out);
/** The caller is done with it. Sessions of it stay as they are. Nothing on NULL. */
INV_API void inv_model_destroy(inv_model *model);
/** The files that the model is read from, its own and those of external data, and where they are mapped. A program
 *  that lives on when one of them is cut short handles SIGBUS at these addresses.
 *  @param path, nbytes NULL, or get them. The path is borrowed; of external data as in the model, from its folder
 *  @return NULL past the end */
INV_API const void *inv_model_file(const inv_model *model, size_t i, const char **path, size_t *nbytes);
/** Inputs, outputs, opsets, initializers, operators and what each lacks, as JSON. Free with inv_free. */
INV_NODISCARD INV_API inv_status inv_model_inspect(inv_model *model, char **json);
/** Writes the model with the session's present weights and running statistics, after training in the form for inference
 *  (inv_model_set_form); everything else is as it was loaded. By a temporary file beside `path`, fsync and rename.
 *  `session` NULL: as loaded. */
INV_NODISCARD INV_API inv_status inv_model_save(inv_model *model, inv_session *session, const char *path);

/** The value of an entry of the model's `metadata_props`, as it would be written; NULL: there is none. Lives as long as
 *  the model. */
INV_API const char *inv_model_metadata(inv_model *model, const char *key);
/** All that inv_model_save writes of this model from now on has this entry, in place of one of that key; `value` NULL:
 *  has none. @return INV_OK; INV_E_ARG: no key is given; INV_E_NOMEM */
INV_NODISCARD INV_API inv_status inv_model_set_metadata(inv_model *model, const char *key, const char *value);

/** Low-rank adapters (LoRA, arXiv 2106.09685) beside weights, which stay as they are. */
typedef struct inv_lora {
    size_t size; /* sizeof(inv_lora) */
    /* Globs of weights, by their names, what modules call them, or the nodes that read them. */
    const char *const *targets;
    size_t ntargets;
    int64_t rank;   /* R, from 1 to the smaller extent of the weight as a matrix */
    double alpha;   /* finite, not zero: what the adapter gives is multiplied by alpha / R */
    double dropout; /* share of the adapter's input that is left out, in training only; below 1 */
    uint64_t seed;  /* of A */
} inv_lora;
/** Adds them to the model, before sessions are made of it: y = x W becomes y = x W + (alpha / R) (x A) B, for a weight
 *  of MatMul or Gemm; A is [in,R] and B [R,out], or, for a weight [out,in], [R,in] and [out,R]. So it is with
 *  convolutions, whose A is [groups R, in, kernel] and whose B is [out, R, 1...], and with tables of Gather, whose B is
 *  [rows,R] and whose A is [R,columns]. Weights may be quantized: behind DequantizeLinear, or of MatMulNBits or
 *  GatherBlockQuantized. A weight that several nodes read has one adapter. A is drawn evenly from [-1/sqrt(in),
 *  1/sqrt(in)], B is zero, so the model's outputs are what they were. Factors are initializers `W.lora_A` and
 *  `W.lora_B`, of the type of the product; `W.lora_scale` holds alpha / R. Sessions train them, and of the model's own
 *  parameters only those that `train_only` names. inv_model_save writes them as ordinary nodes, without the dropout.
 *  A glob with a wildcard passes over weights that are too narrow for the rank, and over what a product reads and is no
 *  weight: buffers, masks, tables of waves.
 *  @param json NULL, or gets weights, nodes and shapes, and what was passed over, `too_narrow` and `no_weights`, as
 *         JSON. Free with inv_free
 *  @return INV_OK; INV_E_ARG: a glob that fits no such weight, with those that there are, a rank that is too large,
 *          other numbers out of range, or a model that is an inverse direction; INV_E_EXISTS: a weight has an adapter.
 *          Then the model is as it was. INV_E_NOMEM: it is of no use any more */
INV_NODISCARD INV_API inv_status inv_model_add_lora(inv_model *model, const inv_lora *lora, char **json);

/** A new head: another number of classes. */
typedef struct inv_head {
    size_t size;      /* sizeof(inv_head) */
    int64_t classes;  /* at least 1 */
    const char *node; /* or its module; NULL: the last product with a weight before `output` */
    /* Output that the loss is taken of, with `node` NULL; NULL: the only floating-point output. */
    const char *output;
    uint64_t seed; /* of the new elements */
} inv_head;
/** Gives the model a new head, before sessions are made of it, and before adapters are added: the node's weight (Gemm,
 *  MatMul, Conv of one group, MatMulNBits) gets `classes` classes, and so do its bias, or the one that is added behind
 *  it, the shapes that follow, and what the model says of its outputs. Elements are drawn evenly from [-1/sqrt(fan in),
 *  1/sqrt(fan in)]. Weight and bias keep their names, unless they are quantized or something else reads them; then they
 *  are `NODE.weight` and `NODE.bias`, of floating point, and the quantizers behind the node go. They are trained beside
 *  adapters, too.
 *  @param json NULL, or gets node, weight, bias and shapes, as JSON. Free with inv_free
 *  @return INV_OK; INV_E_ARG: there is no such head, or what follows is made for the former classes, with the node.
 *          After a failure the model is of no use any more */
INV_NODISCARD INV_API inv_status inv_model_set_head(inv_model *model, const inv_head *head, char **json);

/** The adapters of a model: initializers `W.lora_A`, `W.lora_B` and `W.lora_scale` with the nodes that
 *  inv_model_add_lora has put beside W, of a loaded file or added since. As JSON: weight, nodes, rank, shapes, type,
 *  bytes. Free with inv_free. @return INV_OK; INV_E_ARG where nodes or shapes are not those of an adapter */
INV_NODISCARD INV_API inv_status inv_model_adapters(inv_model *model, char **json);
/** Merges them into the weights: W + scale A B, computed in float64, takes the place of W, and the adapters' nodes go;
 *  inv_model_save writes that.
 *  @return INV_OK; INV_E_ARG: there are none, a weight is quantized or something reads it that has no adapter, with
 *          weight and node. After a failure the model is of no use any more */
INV_NODISCARD INV_API inv_status inv_model_merge_adapters(inv_model *model, char **json);
/** Writes them into a file of their own, in onnxruntime's format (.onnx_adapter), with the session's present elements;
 *  `session` NULL: as loaded. By a temporary file beside `path`, fsync and rename. Parameters are called as the
 *  initializers; a scale is of shape [1]. @return INV_OK, INV_E_ARG: there are none, INV_E_IO, INV_E_NOMEM */
INV_NODISCARD INV_API inv_status inv_model_save_adapters(inv_model *model, inv_session *session, const char *path);
/** Makes the adapters optional inputs of the model, of any rank; what is there without them are zeros of rank 1, so the
 *  model computes what it did without adapters. Then inv_model_save writes the model that takes the parameters of
 *  inv_model_save_adapters. @return as inv_model_adapters, INV_E_ARG: there are none */
INV_NODISCARD INV_API inv_status inv_model_free_adapters(inv_model *model);
/** Puts the adapters of such a file on the model: in place of those that it has, else beside its weights by their
 *  names. @param json NULL, or gets what the file holds (inv_adapters_inspect) and `base`, docs/fine-tuning.md
 *  @return INV_OK; INV_E_IO, INV_E_PARSE; INV_E_ARG where a weight is missing or of another shape. After a failure the
 *          model is of no use any more */
INV_NODISCARD INV_API inv_status inv_model_load_adapters(inv_model *model, const char *path, char **json);
/** What a file of adapters holds: versions, parameters with type, shape and bytes, as JSON. Free with inv_free.
 *  @return INV_OK, INV_E_IO, INV_E_PARSE, INV_E_NOMEM */
INV_NODISCARD INV_API inv_status inv_adapters_inspect(inv_context *ctx, const char *path, char **json);

/** Where the elements of tensors go when a model is written. */
typedef enum inv_layout {
    INV_LAYOUT_KEEP,    /* where they were: in the model's file, or in one beside it */
    INV_LAYOUT_INLINE,  /* into the model's file, which must not have 2 GiB then */
    INV_LAYOUT_EXTERNAL /* initializers of 1024 bytes and more, and whatever was outside, into one file PATH.data */
} inv_layout;
/** Chooses it for all that is written of this model from now on. @return INV_OK, INV_E_ARG */
INV_NODISCARD INV_API inv_status inv_model_set_layout(inv_model *model, inv_layout layout);

/** Whether a written model is one to run or one to train. */
typedef enum inv_form {
    INV_FORM_DEFAULT, /* what inv_model_save writes with a session for training: INFERENCE; all else: AS_LOADED */
    /* Batch normalization goes by its running statistics and dropout is off, whatever runs the file, also where the
     * loaded file has them in training mode (as exports for training do). Outputs that are new running statistics are
     * left out. Trained again, such a file has no dropout, and batch normalization wants `train_bn`. */
    INV_FORM_INFERENCE,
    INV_FORM_AS_LOADED
} inv_form;
/** Chooses it for all that inv_model_save and inv_model_rewrite write of this model from now on.
 *  @return INV_OK, INV_E_ARG */
INV_NODISCARD INV_API inv_status inv_model_set_form(inv_model *model, inv_form form);

/** Writes the model with its matched blocks as model-local functions of domain ai.invonnx, and beside each the function
 *  that inverts it (docs/rewriting.md). Any runtime runs it as it runs the original; this library takes either. A
 *  rewritten model is opened up and rewritten anew. Where the batch is open, inverses hold for every batch; one that
 *  would not is left out, and the report says so.
 *  @param options shapes of the inputs, as for a session; NULL if the model fixes them all
 *  @param json    NULL, or gets what became of each block, as JSON. Free with inv_free
 *  @return INV_OK, also if nothing matched; what inv_session_create and inv_model_save return */
struct inv_session_options;
INV_NODISCARD INV_API inv_status inv_model_rewrite(inv_model *model, const struct inv_session_options *options,
                                                   const char *path, char **json);

/** The inverse direction of a model, from its outputs to its inputs: of a flow the generative one. Derived from the
 *  model's own nodes and the inverses of its operators; by running statistics and without dropout, as evaluation. */
typedef struct inv_reverse_options {
    size_t size;              /* sizeof(inv_reverse_options) */
    const char *const *given; /* inputs of the model that are inputs of the inverse, too: conditions */
    size_t ngiven;
    const char *logdet; /* output of the model, its log-determinant per sample, which the inverse does not start from */
    /* NULL, or the name of an output to add: log |det dx/dz| per sample. From `logdet`, else by the rules of the
     * operators, which must show that the map is a bijection. */
    const char *with_logdet;
} inv_reverse_options;
/** Writes the inverse direction as a plain ONNX model that any runtime runs. The inverses of linear maps are
 *  initializers `<W>_inv` in it, of the model's weights as they were loaded (docs/rewriting.md).
 *  @param shapes  shapes of the model's inputs, as for a session; NULL if the model fixes them all
 *  @param json    NULL, or gets inputs, outputs and inverses used, as JSON. Free with inv_free
 *  @return INV_OK; INV_E_NOT_INVERTIBLE where a value cannot be derived, with node and reason; what
 *          inv_session_create and inv_model_save return */
INV_NODISCARD INV_API inv_status inv_model_write_inverse(inv_model *model, const struct inv_session_options *shapes,
                                                         const inv_reverse_options *options, const char *path,
                                                         char **json);
/** The inverse direction in memory, a model to be trained like any other. Its parameters are the model's own, linear
 *  maps are solved with them. inv_model_save of it, with a session of it, writes the model in its own direction with
 *  the trained weights. It is independent of `model`; destroy it with inv_model_destroy.
 *  @return as inv_model_write_inverse */
INV_NODISCARD INV_API inv_status inv_model_reverse(inv_model *model, const struct inv_session_options *shapes,
                                                   const inv_reverse_options *options, inv_model **out);

/** Numbers for open dimensions that the model accepts, found by trying: for looking at a model without data, by
 *  `plan_only` sessions or inv_model_rewrite. Dimensions of one symbol get one number.
 *  @param options  of it `constants_as_needed`, and `inputs`, with shapes in which an extent below 0 is sought
 *  @param batch    what is tried first for open first axes
 *  @param dims     out: a list per input, with room for its rank
 *  @return INV_OK, also where something else than shapes is in the way, as a session will say; INV_E_NOT_CONSTANT where
 *          what the model accepts depends on values that are not given, with the numbers of the last try; INV_E_SHAPE
 *          where no numbers were found, with the try that got farthest, or a fault that no number mends; what
 *          inv_session_options_check returns; INV_E_NOMEM */
INV_NODISCARD INV_API inv_status inv_model_find_extents(inv_model *model, const struct inv_session_options *options,
                                                        int64_t batch, int64_t *const *dims);

/* --- what operators take --- */

/** How long operators take: on this machine's CPU by rates that were measured by running this library's own, on device
 *  cuda by general ones of a GPU, which are built in. */
typedef struct inv_cost_table inv_cost_table;

typedef struct inv_calibrate_options {
    size_t size;  /* sizeof(inv_calibrate_options); zero is the default of every field */
    int threads;  /* as in inv_session_options */
    bool float64; /* of arithmetic in float64 */
    bool again;   /* measure, though there is a table in the cache */
    /* Folder where tables are kept, made if it is not there; "": none is. NULL: invonnx in $XDG_CACHE_HOME or in
     * $HOME/.cache; without both, none. */
    const char *cache;
    /* "cpu" (NULL), "cuda": whose rates. Those of cuda are the same on every machine, with a GPU or without */
    const char *device;
    bool kept; /* nothing is measured: a table that is not in the cache is NULL */
} inv_calibrate_options;

/** The table for this machine: from the cache, if one was made there for the same processor, libraries, number of
 *  threads and type of arithmetic; else measured, in one or two seconds of computing, and put there. A table that
 *  cannot be read is measured anew, one that cannot be written is not kept; neither is a failure.
 *  @param options NULL: the defaults
 *  @param out     free with inv_free; sessions copy it
 *  @return INV_OK, INV_E_NOMEM, INV_E_ABI, INV_E_ARG: a number of threads that no session takes, or a device of which
 *          there are no rates */
INV_NODISCARD INV_API inv_status inv_calibrate(inv_context *ctx, const inv_calibrate_options *options,
                                               inv_cost_table **out);

#ifdef __cplusplus
}
#endif

#include "invonnx/world.h"

#include "invonnx/session.h"

#endif
