/* SPDX-License-Identifier: Apache-2.0
 * invonnx trains imported ONNX models in little memory. This is the public C API.
 *
 * Threads: Use a context, and everything made from it, in one thread at a time. Different contexts are independent.
 * Inside a call, the library runs OpenMP worker threads, as many as inv_session_options.threads says. It calls
 * omp_set_num_threads for the calling thread, so this number stays set after the call.
 *
 * Ownership: An object from a `_create` or `_load` function belongs to the caller, who ends it with its `_destroy`
 * function. Other pointers are borrowed: they are valid until the named object is destroyed. A session holds its model,
 * and models and worlds hold their context. An object lives on while another object holds it, so you can destroy
 * objects in any order.
 *
 * Errors: The library never prints, aborts or exits. A failure is a status, and the context has a complete message. A
 * required argument that is NULL gives INV_E_ARG, and the message names it. There is no message if the object itself
 * (context, model or session) is NULL. Functions that return no status then return NULL, 0 or "". A world may be NULL:
 * it is a process that trains by itself. Comments say which arguments may be NULL.
 *
 * fork(): A child may destroy the objects of its parent. Calls that compute fail in the child with INV_E_ARG if the
 * parent has worker threads. */
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

/** Element types, with the numbers of ONNX TensorProto.DataType. */
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

typedef struct inv_context inv_context; /* operators, rules, allocator and messages */
typedef struct inv_model inv_model;     /* an imported ONNX file */
typedef struct inv_session inv_session; /* a model that is planned to run, evaluate or train (session.h) */

/* --- context --- */

/** The caller's functions for memory. */
typedef struct inv_allocator {
    void *(*alloc)(void *opaque, size_t nbytes); /* returns at least `nbytes`, aligned as by malloc, or NULL */
    void (*free)(void *opaque, void *p);
    void *opaque; /* first argument of both */
} inv_allocator;
/** Receives a line of the log. */
typedef void (*inv_log_fn)(void *opaque, const char *line);
/** Receives the progress of functions that may take long, at most some hundred times a second. The function must not
 *  use the context.
 *  @param stage the current work, in words
 *  @param share the finished part, from 0 to 1. For a search that may end early: the part of the most work possible */
typedef void (*inv_progress_fn)(void *opaque, const char *stage, double share);

typedef struct inv_context_options {
    size_t size;                    /* sizeof(inv_context_options) */
    const inv_allocator *allocator; /* NULL: malloc and free */
    inv_log_fn log;                 /* NULL: no log */
    void *log_opaque;
    bool no_rules;            /* load operators only; inverse rules then come from plugins */
    inv_progress_fn progress; /* NULL: no progress */
    void *progress_opaque;
    /* Returns the name that messages use for a session option, given the name of its field. It is for programs whose
     * users know options by other names. If it is NULL, or returns NULL, messages use the name of the field. */
    const char *(*option_name)(const char *field);
    /* Stops calls; a signal handler may set it. The library reads it throughout compiling and steps. If it is not 0,
     * the call ends with INV_E_STOPPED and has changed nothing. An update that has begun is finished first. With early
     * updates, the whole step is finished first. NULL: calls cannot be stopped. */
    const volatile int *stop;
} inv_context_options;

/** Returns the version of the library, "MAJOR.MINOR.PATCH". */
INV_API const char *inv_version(void);
/** Returns one line of text for a status code. */
INV_API const char *inv_status_text(inv_status s);
/** Creates a context with the built-in operators and inverse rules.
 *  @param options NULL: the defaults
 *  @return INV_OK; INV_E_NOMEM; INV_E_ABI for a wrong `size`; INV_E_ARG for an allocator without a function */
INV_NODISCARD INV_API inv_status inv_context_create(const inv_context_options *options, inv_context **out);
/** Ends the caller's use of the context. After this, the library no longer uses `log`, `progress`, `option_name` and
 *  `stop` of its options. It uses the allocator until the last model, session and world of the context is destroyed, in
 *  the thread that destroys it. Free texts and tables that the library returned before this call. Does nothing for
 *  NULL. */
INV_API void inv_context_destroy(inv_context *ctx);
/** Loads the inverse rules and operators of a plugin (docs/plugin-abi.md). A plugin is a shared object, a text of
 *  rules, or an ONNX file whose local functions come in pairs. If this fails, nothing of the plugin is loaded. The code
 *  of a shared object runs in this process, now and whenever its operators run. The object stays loaded as long as the
 *  context lives. Load plugins before models: a model keeps the operators that existed when it was loaded.
 *  @return INV_OK; INV_E_IO; INV_E_PARSE; INV_E_ABI if the plugin is not made for this library; INV_E_EXISTS if a name
 *          is already registered; or the status with which the plugin failed */
INV_NODISCARD INV_API inv_status inv_context_load_plugin(inv_context *ctx, const char *path);
/** Returns the message of the newest failure; "" if there is none. Borrowed until the next call with this context. */
INV_API const char *inv_context_message(const inv_context *ctx);
/** Returns details of the newest failure as a JSON object; "" if there are none. Borrowed until the next call with this
 *  context. If a budget cannot be met, the object has these members:
 *  - `budget_bytes`
 *  - `needed_bytes` of the plan that the message names
 *  - `persistent_bytes`
 *  - `remedies`, the best first, with `option` (a session option), `value`, and `least_bytes` that a step then takes at
 *    least. Several options are one text, and so are their values. The last remedy is only the option `batch`, for a
 *    smaller batch. */
INV_API const char *inv_context_details(const inv_context *ctx);
/** Returns how many changes of single characters a name needs to match a glob, for "did you mean". Two characters in
 *  the wrong order count as one change. SIZE_MAX if an argument is NULL or too long. */
INV_API size_t inv_name_distance(const char *glob, const char *name);
/** Frees text that the library returned. */
INV_API void inv_free(inv_context *ctx, void *p);
/** Lists the registered operators or rules as JSON. For operators, the list has the results of compiling their test
 *  cases: gradient, inverse, element types per input, devices, and the operators that run in their place.
 *  @param what "ops" or "rules"
 *  @param json free with inv_free
 *  @return INV_OK; INV_E_ARG if `what` is another word; INV_E_NOMEM */
INV_NODISCARD INV_API inv_status inv_registry_report(inv_context *ctx, const char *what, char **json);

/** Runs the conformance suite: it tests inverse rules and operators on their cases. Tests are the round trip, stated
 *  against measured gain, aliasing, extreme values, and gradients against finite differences. Every element type and
 *  device is tested. The suite repeats all this over the domain that a rule states: with inputs of other sizes and
 *  other parameters. The report has the measurements of each rule in `results`, the number of failures in `failed`, and
 *  the failures, with remedies, in `failures`.
 *  @param plugin the plugin to test, by the path that it was loaded with. NULL: the library's own rules
 *  @param json   the report; free with inv_free
 *  @return INV_OK if the suite ran, even if tests failed; INV_E_ARG if there is nothing to test */
INV_NODISCARD INV_API inv_status inv_selftest(inv_context *ctx, const char *plugin, char **json);

/* --- model --- */

/** Maps an ONNX file into memory and imports it. Tensors stay in the mapping, so the file must not change while the
 *  model lives. You may remove the file or put another one in its place. If the file was overwritten, saving the model
 *  fails with INV_E_IO.
 *  @return INV_OK; INV_E_IO, INV_E_PARSE, INV_E_GRAPH, INV_E_UNSUPPORTED_TYPE. The message has all defects that were
 *          found */
INV_NODISCARD INV_API inv_status inv_model_load(inv_context *ctx, const char *path, inv_model **out);
/** Loads a model as inv_model_load does, and makes the named constants parameters like initializers, whatever their
 *  use.
 *  @param names floating-point Constant nodes, and initializers of bodies, by the names that inv_model_inspect lists;
 *               copied. Names of other tensors, and of constants on which a shape depends, have no effect
 *  @return as inv_model_load; INV_E_ARG also if a name is NULL */
INV_NODISCARD INV_API inv_status inv_model_load_with(inv_context *ctx, const char *path, const char *const *names,
                                                     size_t nnames, inv_model **out);
/** Ends the caller's use of the model. Sessions of the model keep working. Does nothing for NULL. */
INV_API void inv_model_destroy(inv_model *model);
/** Returns the address where a file of the model is mapped: file 0 is its own, the next ones are external data. If such
 *  a file may be cut short while the program runs, handle SIGBUS at these addresses.
 *  @param path   NULL, or gets the path; borrowed. For external data it is as in the model, relative to its folder
 *  @param nbytes NULL, or gets the size
 *  @return NULL past the end */
INV_API const void *inv_model_file(const inv_model *model, size_t i, const char **path, size_t *nbytes);
/** Describes the model as JSON: inputs, outputs, opsets, initializers, operators, and the features that each operator
 *  lacks. Free with inv_free. */
INV_NODISCARD INV_API inv_status inv_model_inspect(inv_model *model, char **json);
/** Writes the model with the session's present weights and running statistics. After training, the model is written in
 *  the form for inference (inv_model_set_form). Everything else is as it was loaded. The function writes a temporary
 *  file in the folder of `path`, calls fsync and renames it.
 *  @param session NULL: weights as they were loaded
 *  @return INV_OK; INV_E_ARG; INV_E_IO, also if the loaded file was overwritten; INV_E_NOMEM */
INV_NODISCARD INV_API inv_status inv_model_save(inv_model *model, inv_session *session, const char *path);

/** Returns the value of a `metadata_props` entry of the model, as it would be written. NULL if there is none. Valid as
 *  long as the model lives. */
INV_API const char *inv_model_metadata(inv_model *model, const char *key);
/** Sets a `metadata_props` entry in every file that inv_model_save writes from now on.
 *  @param value replaces the value of that key. NULL: removes the entry
 *  @return INV_OK; INV_E_ARG if `key` is missing; INV_E_NOMEM */
INV_NODISCARD INV_API inv_status inv_model_set_metadata(inv_model *model, const char *key, const char *value);

/** Low-rank adapters (LoRA, arXiv 2106.09685) for weights, which are then frozen. */
typedef struct inv_lora {
    size_t size; /* sizeof(inv_lora) */
    /* Globs of weights. They match names of weights, names by module, or names of the nodes that read the weights. */
    const char *const *targets;
    size_t ntargets;
    int64_t rank;   /* R, from 1 to the smaller extent of the weight as a matrix */
    double alpha;   /* finite and not zero; the output of the adapter is multiplied by alpha / R */
    double dropout; /* share of the adapter's input that is dropped, in training only; below 1. 0: none */
    uint64_t seed;  /* for the initial values of A */
} inv_lora;
/** Adds adapters to the model. Call it before you make sessions of the model.
 *  - For a weight of MatMul or Gemm, y = x W becomes y = x W + (alpha / R) (x A) B. A is [in,R] and B is [R,out]. For a
 *    weight [out,in] they are [R,in] and [out,R].
 *  - For a convolution, A is [groups R, in, kernel] and B is [out, R, 1...].
 *  - For a table of Gather, B is [rows,R] and A is [R,columns].
 *  - Weights may be quantized: the input of DequantizeLinear, or the weight of MatMulNBits or GatherBlockQuantized.
 *  - A weight that several nodes read has one adapter.
 *
 *  A is uniform in [-1/sqrt(in), 1/sqrt(in)] and B is zero, so at first the model computes the same outputs. The
 *  factors are initializers `W.lora_A` and `W.lora_B`, of the type of the product. `W.lora_scale` holds alpha / R.
 *  Sessions train the factors. They train other parameters only if `train_only` names them. inv_model_save writes
 *  adapters as ordinary nodes, without the dropout.
 *
 *  A glob with a wildcard skips weights that are too narrow for the rank. It also skips operands of products that are
 *  not weights: buffers, masks, tables of sines and cosines.
 *  @param json NULL, or gets weights, nodes and shapes as JSON, and the skipped tensors as `too_narrow` and
 *              `no_weights`; free with inv_free
 *  @return INV_OK. INV_E_ARG if the rank is too large, another number is out of range, or the model is an inverse
 *          direction. INV_E_ARG also if a glob matches no such weight; the message lists the possible ones.
 *          INV_E_EXISTS if a weight already has an adapter. After these failures the model is unchanged. INV_E_NOMEM:
 *          the model can no longer be used */
INV_NODISCARD INV_API inv_status inv_model_add_lora(inv_model *model, const inv_lora *lora, char **json);

/** A new head, for another number of classes. */
typedef struct inv_head {
    size_t size;      /* sizeof(inv_head) */
    int64_t classes;  /* at least 1 */
    const char *node; /* the node of the head, or its module. NULL: the last product with a weight before `output` */
    /* The output that the loss reads; used if `node` is NULL. NULL: the only floating-point output. */
    const char *output;
    uint64_t seed; /* for the new elements */
} inv_head;
/** Gives the model a new head. Call it before you make sessions of the model, and before you add adapters. The weight
 *  of the node (Gemm, MatMul, Conv with one group, MatMulNBits) gets `classes` classes. So do its bias, or the bias
 *  that a following node adds, the shapes that follow, and the declared shapes of the model's outputs. New elements are
 *  uniform in [-1/sqrt(fan in), 1/sqrt(fan in)]. Weight and bias keep their names, unless they are quantized or
 *  something else reads them. Then they are new floating-point tensors, `NODE.weight` and `NODE.bias`, and the
 *  quantizers after the node are removed. They are trained even if the model has adapters.
 *  @param json NULL, or gets node, weight, bias and shapes as JSON; free with inv_free
 *  @return INV_OK. INV_E_ARG if there is no such head, or if a later node depends on the former classes; the message
 *          names the node. After a failure the model can no longer be used */
INV_NODISCARD INV_API inv_status inv_model_set_head(inv_model *model, const inv_head *head, char **json);

/** Lists the adapters of a model, from a loaded file or added later: initializers `W.lora_A`, `W.lora_B` and
 *  `W.lora_scale`, with the nodes that inv_model_add_lora makes.
 *  @param json gets weight, nodes, rank, shapes, type and bytes of each as JSON; free with inv_free
 *  @return INV_OK; INV_E_ARG if nodes or shapes do not fit an adapter */
INV_NODISCARD INV_API inv_status inv_model_adapters(inv_model *model, char **json);
/** Merges the adapters into the weights: W + scale A B, computed in float64, replaces W. The nodes of the adapters are
 *  removed. inv_model_save writes this model.
 *  @param json NULL, or gets the former adapters, as from inv_model_adapters; free with inv_free
 *  @return INV_OK. INV_E_ARG if there are no adapters, if a weight is quantized, or if a node without an adapter reads
 *          it; the message names weight and node. After a failure the model can no longer be used */
INV_NODISCARD INV_API inv_status inv_model_merge_adapters(inv_model *model, char **json);
/** Writes the adapters to a file of their own, in onnxruntime's format (.onnx_adapter). Parameters have the names of
 *  the initializers; a scale has shape [1]. The function writes a temporary file in the folder of `path`, calls fsync
 *  and renames it.
 *  @param session the session with the present elements. NULL: elements as they were loaded
 *  @return INV_OK; INV_E_ARG if there are no adapters; INV_E_IO; INV_E_NOMEM */
INV_NODISCARD INV_API inv_status inv_model_save_adapters(inv_model *model, inv_session *session, const char *path);
/** Makes the adapters optional inputs of the model, of any rank. Their defaults are zeros of rank 1. So without an
 *  adapter the model computes the same as its base. After that, inv_model_save writes a model that takes the parameters
 *  of an inv_model_save_adapters file.
 *  @return as inv_model_adapters; INV_E_ARG also if there are no adapters */
INV_NODISCARD INV_API inv_status inv_model_free_adapters(inv_model *model);
/** Loads the adapters of an inv_model_save_adapters file into the model. They replace the adapters of the model, or are
 *  added to the weights by name.
 *  @param json NULL, or gets the contents of the file (as from inv_adapters_inspect) and `base` (docs/fine-tuning.md);
 *              free with inv_free
 *  @return INV_OK; INV_E_IO; INV_E_PARSE; INV_E_ARG if a weight is missing or has another shape. After a failure the
 *          model can no longer be used */
INV_NODISCARD INV_API inv_status inv_model_load_adapters(inv_model *model, const char *path, char **json);
/** Describes a file of adapters as JSON: versions, and the parameters with type, shape and bytes. Free with inv_free.
 *  @return INV_OK, INV_E_IO, INV_E_PARSE, INV_E_NOMEM */
INV_NODISCARD INV_API inv_status inv_adapters_inspect(inv_context *ctx, const char *path, char **json);

/** Where a written model has the elements of its tensors. */
typedef enum inv_layout {
    INV_LAYOUT_KEEP,    /* where they were: in the model's file, or in a separate file */
    INV_LAYOUT_INLINE,  /* in the model's file, which then must stay below 2 GiB */
    INV_LAYOUT_EXTERNAL /* initializers of 1024 bytes or more, and all external data, in one file PATH.data */
} inv_layout;
/** Sets the layout for everything that is written of this model from now on.
 *  @return INV_OK; INV_E_ARG, also if INV_LAYOUT_INLINE would need 2 GiB or more */
INV_NODISCARD INV_API inv_status inv_model_set_layout(inv_model *model, inv_layout layout);

/** How a written model is to be used. */
typedef enum inv_form {
    INV_FORM_DEFAULT, /* INFERENCE for inv_model_save with a training session, else AS_LOADED */
    /* For inference: batch normalization uses its running statistics and dropout is off, in any runtime. This also
     * holds if the loaded file has them in training mode, as exports for training do. Outputs that are new running
     * statistics are removed. If you train such a file again, it has no dropout, and batch normalization needs
     * `train_bn`. */
    INV_FORM_INFERENCE,
    INV_FORM_AS_LOADED /* training mode as in the loaded file */
} inv_form;
/** Sets the form for everything that inv_model_save and inv_model_rewrite write of this model from now on.
 *  @return INV_OK, INV_E_ARG */
INV_NODISCARD INV_API inv_status inv_model_set_form(inv_model *model, inv_form form);

struct inv_session_options;
/** Writes the model with its matched blocks as model-local functions of domain ai.invonnx, each with a function that
 *  inverts it (docs/rewriting.md). Any runtime runs this model like the original, and this library takes both. A model
 *  that was rewritten before is first unpacked. If the batch size is open, inverses hold for every batch. An inverse
 *  that does not is left out, and the report says so.
 *  @param options shapes of the inputs, as for a session. NULL if the model fixes all of them
 *  @param json    NULL, or gets the result for each block as JSON; free with inv_free
 *  @return INV_OK, also if nothing matched; also the statuses of inv_session_create and inv_model_save */
INV_NODISCARD INV_API inv_status inv_model_rewrite(inv_model *model, const struct inv_session_options *options,
                                                   const char *path, char **json);

/** The inverse direction of a model, from its outputs to its inputs. For a flow, this is the generative direction. It
 *  is derived from the model's own nodes and the inverses of its operators. As in evaluation, it uses running
 *  statistics and no dropout. */
typedef struct inv_reverse_options {
    size_t size;              /* sizeof(inv_reverse_options) */
    const char *const *given; /* conditions: inputs of the model that are also inputs of the inverse */
    size_t ngiven;
    const char *logdet; /* output with the log-determinant per sample; the inverse does not start from it. NULL: none */
    /* Name of an output to add: log |det dx/dz| per sample. It is computed from `logdet`, else by the rules of the
     * operators, which must show that the map is a bijection. NULL: no such output. */
    const char *with_logdet;
} inv_reverse_options;
/** Writes the inverse direction as a plain ONNX model, for any runtime. Inverses of linear maps are initializers
 *  `<W>_inv`, computed from the weights as they were loaded (docs/rewriting.md).
 *  @param shapes  shapes of the model's inputs, as for a session. NULL if the model fixes all of them
 *  @param options NULL: the defaults
 *  @param json    NULL, or gets inputs, outputs and used inverses as JSON; free with inv_free
 *  @return INV_OK. INV_E_NOT_INVERTIBLE if a value cannot be derived; the message has node and reason. Also the
 *          statuses of inv_session_create and inv_model_save */
INV_NODISCARD INV_API inv_status inv_model_write_inverse(inv_model *model, const struct inv_session_options *shapes,
                                                         const inv_reverse_options *options, const char *path,
                                                         char **json);
/** Creates the inverse direction in memory, as a model that you can train like any other. Its parameters are the
 *  model's own, and linear maps are solved with them. If you save it with a session of it, inv_model_save writes the
 *  model in its own direction, with the trained weights.
 *  @param shapes, options as for inv_model_write_inverse
 *  @param out independent of `model`; free with inv_model_destroy
 *  @return as inv_model_write_inverse */
INV_NODISCARD INV_API inv_status inv_model_reverse(inv_model *model, const struct inv_session_options *shapes,
                                                   const inv_reverse_options *options, inv_model **out);

/** Finds, by trial, sizes for open dimensions that the model accepts. Use it to examine a model without data, with
 *  `plan_only` sessions or inv_model_rewrite. Dimensions with the same symbol get the same size.
 *  @param options only `inputs` and `constants_as_needed` are used. Extents below 0 in the shapes of `inputs` are open
 *  @param batch   first size to try for an open first axis
 *  @param dims    one list per input, with room for its rank; gets all its sizes
 *  @return INV_OK, also if a session will fail for a reason other than shapes. INV_E_NOT_CONSTANT if the accepted sizes
 *          depend on values that are not given; `dims` has the last try. INV_E_SHAPE if no sizes were found; the
 *          message has the best try, or a fault that no size removes. Statuses of inv_session_options_check.
 *          INV_E_NOMEM */
INV_NODISCARD INV_API inv_status inv_model_find_extents(inv_model *model, const struct inv_session_options *options,
                                                        int64_t batch, int64_t *const *dims);

/* --- speed of operators --- */

/** Speeds that predict how long operators take. For this machine's CPU they are measured with the library's own
 *  operators. For device cuda they are general speeds of a GPU, which are built in. */
typedef struct inv_cost_table inv_cost_table;

typedef struct inv_calibrate_options {
    size_t size;  /* sizeof(inv_calibrate_options); zero is the default of every field */
    int threads;  /* number of threads, as in inv_session_options */
    bool float64; /* speeds of arithmetic in float64 */
    bool again;   /* measure even if the cache has a table */
    /* Folder of the cache; created if it does not exist. "": no cache. NULL: folder invonnx in $XDG_CACHE_HOME, else in
     * $HOME/.cache; without both variables, no cache. */
    const char *cache;
    /* "cpu" (also NULL) or "cuda". The table for cuda is the same on every machine, with or without a GPU. */
    const char *device;
    bool kept; /* do not measure: the result is NULL if the cache has no table */
} inv_calibrate_options;

/** Returns the table for this machine, from the cache or by measuring. The cache has a table if one was measured for
 *  the same processor, libraries, number of threads and type of arithmetic. Measuring takes one or two seconds of
 *  computing, and stores the table in the cache. A table that cannot be read is measured again. A table that cannot be
 *  written is not kept. Neither case is a failure.
 *  @param options NULL: the defaults
 *  @param out     the table; free with inv_free. Sessions copy it
 *  @return INV_OK; INV_E_NOMEM; INV_E_ABI; INV_E_ARG for a number of threads that no session takes, or a device without
 *          speeds */
INV_NODISCARD INV_API inv_status inv_calibrate(inv_context *ctx, const inv_calibrate_options *options,
                                               inv_cost_table **out);

#ifdef __cplusplus
}
#endif

#include "invonnx/world.h"

#include "invonnx/session.h"

#endif
