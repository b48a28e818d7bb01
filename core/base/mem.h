/* SPDX-License-Identifier: Apache-2.0
 * Memory: the allocator hook of a context, arenas, growable arrays and strings, the error record.
 * This is the only place that calls the allocator. */
#ifndef INV_CORE_MEM_H
#define INV_CORE_MEM_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "invonnx/invonnx.h"

#define INV_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

struct inv_registry;
struct inv_api;
struct inv_program;
struct inv_graph;

/* Compiles a graph for the options: passes/ gives it, executor/ calls it, api/context.c joins them. */
typedef inv_status (*inv_compile_fn)(const struct inv_model *model, const inv_session_options *options,
                                     const struct inv_program *former, struct inv_program **out);

/* What a row supports (core/graph/op.h): joined in the same way. */
struct inv_op_def;
struct inv_support;
struct inv_volumes;
typedef inv_status (*inv_volumes_fn)(inv_context *ctx, const struct inv_graph *source, const inv_session_options *o,
                                     bool compared, struct inv_volumes *out);
typedef inv_status (*inv_support_fn)(inv_context *ctx, const struct inv_op_def *row, struct inv_support *out);

/* Which extent it is that does not fit where a node fails: noted before inv_node_fail, for who looks for sizes that
 * do (passes/front/open_extents.c). `check`: which of the node's checks, in the order in which they are made; 0: none
 * is noted. */
typedef struct inv_misfit {
    int check;
    int64_t got, wanted;
    bool repeats;    /* it would fit by being repeated ... */
    uint32_t source; /* ... by a node that comes from this one of the file (inv_node.source) */
} inv_misfit;

/* Handle of a user: allocator, error record, registry. One thread at a time. */
struct inv_context {
    size_t held; /* by so many models and worlds; the caller holds it, too */
    inv_allocator allocator;
    inv_log_fn log;
    void *log_opaque;
    inv_progress_fn progress;
    void *progress_opaque;
    bool (*stopped)(void *opaque); /* asked within long work: it is to end, with INV_E_STOPPED; NULL: it never is */
    void *stopped_opaque;
    const char *stage;  /* of the progress; NULL: none is told */
    double from, width; /* what the work at hand is of the whole */
    char *details;      /* of the newest error, as JSON; owned; NULL: none */
    const char *(*option_name)(const char *field);
    inv_status code;       /* of the newest error */
    char *message;         /* of the newest error; owned; NULL: use `fallback` */
    char fallback[256];    /* when it is short, or there was no memory for the message */
    inv_misfit misfit;     /* the newest that was noted */
    uint32_t not_constant; /* what the newest INV_E_NOT_CONSTANT is about: a value of the graph */
    struct inv_registry *registry;
    inv_compile_fn compile;
    inv_volumes_fn volumes;
    inv_support_fn support;
    const struct inv_api *api; /* what plugins and built-in rule sets are given (ops/base/plugin_ops.c) */
};

/* The context without a registry; inv_context_create (api/context.c) fills that. */
inv_status inv_context_init(const inv_context_options *options, inv_context **out);
void inv_context_fini(inv_context *ctx); /* after the registry is gone; NULL is fine */
/* What is made from a context holds it, so that they may be destroyed in any order. The last that leaves frees it, with
 * its registry; NULL is fine. */
void inv_context_hold(inv_context *ctx);
void inv_context_leave(inv_context *ctx);
/* Counts who holds something beside the first one. In threads that know nothing of each other. */
static inline void inv_hold(size_t *held) { (void)__atomic_fetch_add(held, 1, __ATOMIC_RELAXED); }
/* Whether it was the last one that left. */
static inline bool inv_leave(size_t *held) { return __atomic_fetch_sub(held, 1, __ATOMIC_ACQ_REL) == 0; }

/* Zeroed bytes, 64-byte aligned; NULL (and the error recorded) when there are none. */
void *inv_alloc(inv_context *ctx, size_t nbytes);
void inv_dealloc(inv_context *ctx, void *p);
/* The same for tensors, which are read and written over and over: large blocks are in huge pages where the system gives
 * them for the asking, of which a processor finds far more without looking up where they are. An allocator of the
 * caller's gives them as all else. To be freed with the same number of bytes. */
void *inv_alloc_huge(inv_context *ctx, size_t nbytes);
void inv_free_huge(inv_context *ctx, void *p, size_t nbytes);

/* What messages call an option of a session. In formats of messages, logs and texts {field} is written for it. */
const char *inv_option(const inv_context *ctx, const char *field);
/* `text` with every {field} replaced; `out` has room for `room` bytes, and holds no more. */
const char *inv_spell(const inv_context *ctx, const char *text, char *out, size_t room);

/* Records an error (printf form) and returns `code`, so that `return inv_fail(...)` reads well. */
inv_status inv_fail(inv_context *ctx, inv_status code, const char *fmt, ...) INV_PRINTF(3, 4);
/* The same for a message of several lines. In others, line breaks and tabs come out as \u000a: they are of names, and a
 * file is not to add lines of its own. */
inv_status inv_fail_lines(inv_context *ctx, inv_status code, const char *fmt, ...) INV_PRINTF(3, 4);
void inv_log(inv_context *ctx, const char *fmt, ...) INV_PRINTF(2, 3);
/* Adds details to the error that was recorded last: a JSON object. */
void inv_fail_details(inv_context *ctx, const char *json);
/* The newest error, set aside while other work that may fail goes on, and put back. */
typedef struct inv_error {
    inv_status code;
    char *message, *details;
    char fallback[256];
} inv_error;
inv_error inv_error_take(inv_context *ctx);
void inv_error_put(inv_context *ctx, const inv_error *e);
void inv_error_drop(inv_context *ctx, const inv_error *e);

/* Progress (core/base/progress.c). What is told in a span, from 0 to 1, is a part of the span around it. */
typedef struct inv_span {
    double from, width;
    const char *stage;
} inv_span;
/* The part from `from` to `to`; `stage`: what it is called where nothing around it has a name. Gives what to leave it
 * by. */
inv_span inv_span_enter(inv_context *ctx, const char *stage, double from, double to);
void inv_span_leave(inv_context *ctx, inv_span around);
void inv_progress(inv_context *ctx, double share);
/* INV_E_STOPPED, if the caller wants the work at hand to end. */
inv_status inv_check_stop(inv_context *ctx);
/* INV_TRY of work that is such a part. */
#define INV_SPAN_TRY(ctx, from, to, call)                                 \
    do {                                                                  \
        const inv_span inv_around_ = inv_span_enter(ctx, NULL, from, to); \
        const inv_status inv_part_ = (call);                              \
        inv_span_leave(ctx, inv_around_);                                 \
        if (inv_part_ != INV_OK) return inv_part_;                        \
    } while (0)
/* "512 bytes", "12.3 MiB" */
const char *inv_bytes_text(size_t nbytes, char text[32]);

#define INV_TRY(call)                            \
    do {                                         \
        inv_status inv_try_ = (call);            \
        if (inv_try_ != INV_OK) return inv_try_; \
    } while (0)
#define INV_CHECK(cond, ctx, code, ...)                           \
    do {                                                          \
        if (!(cond)) return inv_fail((ctx), (code), __VA_ARGS__); \
    } while (0)

/* What n bytes take in an arena: buffers begin at multiples of 64. */
static inline size_t inv_round64(size_t n) { return (n + 63) / 64 * 64; }

/* What a caller has to give. Of a missing object there is no context that could keep a message. */
#define INV_OBJECT(p)               \
    do {                            \
        if (!(p)) return INV_E_ARG; \
    } while (0)
#define INV_GIVEN(ctx, p) INV_CHECK((p), (ctx), INV_E_ARG, "%s is NULL: it has to be given", #p)

/* a * b and a + b in size_t; false on overflow. */
bool inv_mul_size(size_t a, size_t b, size_t *out);
bool inv_add_size(size_t a, size_t b, size_t *out);

/* Arena: everything in it goes at once. Allocation is zeroed and 16-byte aligned. */
typedef struct inv_arena {
    inv_context *ctx;
    struct inv_arena_block *head;
    bool failed; /* an allocation has failed: for callers that can only say "no" and are asked once at the end */
} inv_arena;
void inv_arena_init(inv_arena *a, inv_context *ctx);
void inv_arena_fini(inv_arena *a);
void *inv_arena_alloc(inv_arena *a, size_t nbytes); /* NULL: error recorded */
/* Gives the allocation that has p in it back before the rest, if it is so large that it has a block of its own; else
 * false. */
bool inv_arena_drop(inv_arena *a, const void *p);
/* The same, but only when inv_arena_tidy is called: until then p may still be read. */
void inv_arena_leave(inv_arena *a, const void *p);
void inv_arena_tidy(inv_arena *a);
void *inv_arena_copy(inv_arena *a, const void *p, size_t nbytes);
char *inv_arena_strdup(inv_arena *a, const char *s);
char *inv_arena_strndup(inv_arena *a, const char *s, size_t n);
char *inv_arena_printf(inv_arena *a, const char *fmt, ...) INV_PRINTF(2, 3);
#define INV_ARENA_NEW(a, T, n) ((T *)inv_arena_array((a), (n), sizeof(T)))
void *inv_arena_array(inv_arena *a, size_t n, size_t size);

/* Growable array inside an arena: `INV_VEC(T) v;` zero-initialised; inv_vec_push returns false on
 * no memory. Old storage stays in the arena until it is finished. */
#define INV_VEC(T)     \
    struct {           \
        T *at;         \
        size_t n, cap; \
    }
bool inv_vec_grow(inv_arena *a, void **at, size_t *cap, size_t n, size_t size);
#define inv_vec_push(a, v, x)                                                                                    \
    (((v)->n < (v)->cap || inv_vec_grow((a), (void **)(void *)&(v)->at, &(v)->cap, (v)->n + 1, sizeof *(v)->at)) \
         ? ((v)->at[(v)->n++] = (x), true)                                                                       \
         : false)

/* Growable text on the context's allocator; sticky on no memory (`s` stays a valid string). */
typedef struct inv_str {
    inv_context *ctx;
    char *s; /* never NULL after init */
    size_t n, cap;
    bool failed;
} inv_str;
void inv_str_init(inv_str *b, inv_context *ctx);
void inv_str_fini(inv_str *b);
void inv_str_add(inv_str *b, const char *fmt, ...) INV_PRINTF(2, 3);
void inv_str_addv(inv_str *b, const char *fmt, va_list ap);
void inv_str_reserve(inv_str *b, size_t n);            /* room for so many bytes more at once */
void inv_str_put(inv_str *b, const char *s, size_t n); /* as it is */
void inv_str_add_line(inv_str *b, const char *s);      /* line breaks and tabs as \u000a */
/* Hands the text over (free with inv_dealloc) and empties `b`; INV_E_NOMEM and *out NULL if it had failed. */
inv_status inv_str_take(inv_str *b, char **out);

/* Shortest decimal that reads back as v, whatever the locale; "inf", "nan"; returns buf. */
#define INV_DOUBLE_TEXT 40
char *inv_double_text(double v, char buf[INV_DOUBLE_TEXT]);

uint64_t inv_hash(const void *data, size_t n, uint64_t seed); /* FNV-1a, 64 bit */

#endif
