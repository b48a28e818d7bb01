/* SPDX-License-Identifier: Apache-2.0
 * Memory: allocator hook, growable text, the error record, hashing. Arenas are in arena.c. */
#define _DEFAULT_SOURCE /* madvise */
#include "core/base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ALIGNMENT 64u
#define HUGE_FROM ((size_t)4 << 20) /* bytes: two huge pages. Less stays in caches */

/* What an inv_str without storage points to; inv_dealloc ignores it. */
static char empty_text[1];

static void *default_alloc(void *opaque, size_t nbytes)
{
    (void)opaque;
    return calloc(1, nbytes);
}

static void default_free(void *opaque, void *p)
{
    (void)opaque;
    free(p);
}

bool inv_mul_size(size_t a, size_t b, size_t *out)
{
    *out = a * b;
    return b == 0 || a <= SIZE_MAX / b;
}

bool inv_add_size(size_t a, size_t b, size_t *out)
{
    *out = a + b;
    return a <= SIZE_MAX - b;
}

/* Records no error, so that the error record itself can use it. */
static void *raw_alloc(const inv_allocator *allocator, size_t nbytes)
{
    size_t total;
    if (!inv_add_size(nbytes ? nbytes : 1, ALIGNMENT + sizeof(void *), &total) || total > PTRDIFF_MAX) return NULL;
    char *base = allocator->alloc(allocator->opaque, total);
    if (!base) return NULL;
    size_t past = ((uintptr_t)base + sizeof(void *)) % ALIGNMENT;
    char *p = base + sizeof(void *) + (past ? ALIGNMENT - past : 0);
    /* calloc knows which pages the system hands out zeroed; large tensors need not be touched twice */
    if (allocator->alloc != default_alloc) memset(p, 0, nbytes);
    memcpy(p - sizeof(void *), &base, sizeof base);
    return p;
}

static void raw_free(const inv_allocator *allocator, void *p)
{
    if (!p || p == empty_text) return;
    void *base;
    memcpy(&base, (char *)p - sizeof(void *), sizeof base);
    allocator->free(allocator->opaque, base);
}

/* What was allocated; where nothing was, that is recorded. */
static void *or_fail(inv_context *ctx, void *p, size_t nbytes)
{
    if (!p) (void)inv_fail(ctx, INV_E_NOMEM, "out of memory: %zu bytes wanted", nbytes);
    return p;
}

void *inv_alloc(inv_context *ctx, size_t nbytes) { return or_fail(ctx, raw_alloc(&ctx->allocator, nbytes), nbytes); }

void inv_dealloc(inv_context *ctx, void *p) { raw_free(&ctx->allocator, p); }

/* Whether the block is a mapping of its own. In malloc's memory the advice would outlive the block, and make whole
 * pages resident of whatever comes there later. */
static bool is_mapped(const inv_context *ctx, size_t nbytes)
{
    return ctx->allocator.alloc == default_alloc && nbytes >= HUGE_FROM && nbytes <= PTRDIFF_MAX;
}

static void *map_huge(size_t nbytes)
{
    void *p = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return NULL;
#ifdef MADV_HUGEPAGE
    (void)madvise(p, nbytes, MADV_HUGEPAGE); /* whether the system can is its own affair */
#endif
    return p;
}

void *inv_alloc_huge(inv_context *ctx, size_t nbytes)
{
    return is_mapped(ctx, nbytes) ? or_fail(ctx, map_huge(nbytes), nbytes) : inv_alloc(ctx, nbytes);
}

void inv_free_huge(inv_context *ctx, void *p, size_t nbytes)
{
    if (p && is_mapped(ctx, nbytes)) (void)munmap(p, nbytes);
    else inv_dealloc(ctx, p);
}

/* Whether so many bytes of the options end with a field. */
static bool whole_fields(size_t size)
{
#define INV_END(field) (offsetof(inv_context_options, field) + sizeof(((inv_context_options *)0)->field))
    const size_t ends[] = {INV_END(size),       INV_END(allocator),       INV_END(log),
                           INV_END(log_opaque), INV_END(no_rules),        offsetof(inv_context_options, progress),
                           INV_END(progress),   INV_END(progress_opaque), INV_END(option_name),
                           INV_END(stop)};
#undef INV_END
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (size == ends[i]) return true;
    return false;
}

static bool is_set(void *opaque) { return *(const volatile int *)opaque != 0; }

inv_status inv_context_init(const inv_context_options *options, inv_context **out)
{
    *out = NULL;
    inv_context_options o = {0};
    if (options && !whole_fields(options->size)) return INV_E_ABI;
    if (options) memcpy(&o, options, options->size);
    inv_allocator allocator = {default_alloc, default_free, NULL};
    if (o.allocator) {
        if (!o.allocator->alloc || !o.allocator->free) return INV_E_ARG;
        allocator = *o.allocator;
    }
    inv_context *ctx = raw_alloc(&allocator, sizeof *ctx);
    if (!ctx) return INV_E_NOMEM;
    ctx->allocator = allocator;
    ctx->log = o.log;
    ctx->log_opaque = o.log_opaque;
    ctx->progress = o.progress;
    ctx->progress_opaque = o.progress_opaque;
    if (o.stop) {
        ctx->stopped = is_set;
        ctx->stopped_opaque = (void *)(uintptr_t)o.stop;
    }
    ctx->width = 1;
    ctx->option_name = o.option_name;
    *out = ctx;
    return INV_OK;
}

void inv_context_fini(inv_context *ctx)
{
    if (!ctx) return;
    inv_allocator allocator = ctx->allocator;
    raw_free(&allocator, ctx->message);
    raw_free(&allocator, ctx->details);
    raw_free(&allocator, ctx);
}

/* Names in a file may be as long as the file; what is wrong with them is said at the end. */
static void shorten(char *message, size_t n)
{
    enum { LONGEST = 32768 };
    static const char gap[] = " ... ";
    if (n <= LONGEST) return;
    memcpy(message + LONGEST / 2, gap, sizeof gap - 1);
    memmove(message + LONGEST / 2 + sizeof gap - 1, message + n - LONGEST / 2, LONGEST / 2 + 1);
}

/* --- words for options --- */

enum { FORMAT = 2048 }; /* longest format that has such words, with them */

const char *inv_option(const inv_context *ctx, const char *field)
{
    const char *name = ctx && ctx->option_name ? ctx->option_name(field) : NULL;
    return name ? name : field;
}

/* The length of "{field}" at s, or 0. */
static size_t field_length(const char *s)
{
    size_t n = *s == '{' ? strspn(s + 1, "abcdefghijklmnopqrstuvwxyz_0123456789") : 0;
    return n && s[n + 1] == '}' ? n + 2 : 0;
}

const char *inv_spell(const inv_context *ctx, const char *text, char *out, size_t room)
{
    const char *s = text;
    while (*s && !field_length(s)) s++;
    if (!*s) return text;
    size_t n = 0;
    for (s = text; *s;) {
        const size_t k = field_length(s);
        char field[64];
        if (k) snprintf(field, sizeof field, "%.*s", (int)(k - 2), s + 1);
        const char *piece = k ? inv_option(ctx, field) : s;
        const size_t length = k ? strlen(piece) : 1;
        if (n + length >= room) break;
        memcpy(out + n, piece, length);
        n += length;
        s += k ? k : 1;
    }
    out[n] = 0;
    return out;
}

static const char line_codes[] = "\n\r\t";

/* `s` has room for `codes` times five more. */
static void escape_lines(char *s, size_t codes)
{
    size_t n = strlen(s);
    for (s[n + 5 * codes] = 0; codes; n--) {
        char c = s[n - 1], *to = &s[n - 1 + 5 * codes];
        if (!strchr(line_codes, c)) {
            *to = c;
            continue;
        }
        codes--;
        snprintf(to - 5, 6, "\\u000");
        *to = c == '\n' ? 'a' : c == '\r' ? 'd' : '9';
    }
}

static size_t count_lines(const char *s)
{
    size_t n = 0;
    while (*(s += strcspn(s, line_codes))) n++, s++;
    return n;
}

/* The text of a message that does not fit into `fallback` as it is; NULL: it does, or there is no memory. */
static char *long_message(inv_context *ctx, size_t n, bool lines, const char *fmt, va_list ap)
{
    char *message = raw_alloc(&ctx->allocator, n + 1), *wide;
    if (!message) return NULL;
    vsnprintf(message, n + 1, fmt, ap);
    shorten(message, n);
    size_t codes = lines ? 0 : count_lines(message);
    if (!codes) return message;
    size_t now = strlen(message);
    wide = raw_alloc(&ctx->allocator, now + 5 * codes + 1);
    if (wide) {
        memcpy(wide, message, now + 1);
        escape_lines(wide, codes);
    }
    raw_free(&ctx->allocator, message);
    return wide;
}

static void vfail(inv_context *ctx, inv_status code, bool lines, const char *fmt, va_list ap)
{
    if (!ctx) return;
    char spelled[FORMAT];
    fmt = inv_spell(ctx, fmt, spelled, sizeof spelled);
    /* Arguments may point into the old message: it is replaced only after formatting. */
    char text[sizeof ctx->fallback];
    char *message = NULL;
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    if (n < 0) snprintf(text, sizeof text, "%s", inv_status_text(code));
    else if ((size_t)n >= sizeof text || (!lines && count_lines(text)))
        message = long_message(ctx, (size_t)n, lines, fmt, again);
    va_end(again);
    for (char *s = text; !lines && *(s += strcspn(s, line_codes)); s++) *s = ' ';
    raw_free(&ctx->allocator, ctx->message);
    ctx->message = message;
    raw_free(&ctx->allocator, ctx->details);
    ctx->details = NULL;
    memcpy(ctx->fallback, text, sizeof text);
    ctx->code = code;
}

void inv_fail_details(inv_context *ctx, const char *json)
{
    char *copy = raw_alloc(&ctx->allocator, strlen(json) + 1);
    if (!copy) return; /* the message is there */
    raw_free(&ctx->allocator, ctx->details);
    ctx->details = strcpy(copy, json);
}

inv_error inv_error_take(inv_context *ctx)
{
    inv_error e = {.code = ctx->code, .message = ctx->message, .details = ctx->details};
    _Static_assert(sizeof e.fallback == sizeof ctx->fallback, "all of it is kept");
    memcpy(e.fallback, ctx->fallback, sizeof e.fallback);
    ctx->message = ctx->details = NULL;
    return e;
}

void inv_error_put(inv_context *ctx, const inv_error *e)
{
    raw_free(&ctx->allocator, ctx->message);
    raw_free(&ctx->allocator, ctx->details);
    ctx->code = e->code;
    ctx->message = e->message;
    ctx->details = e->details;
    memcpy(ctx->fallback, e->fallback, sizeof e->fallback);
}

void inv_error_drop(inv_context *ctx, const inv_error *e)
{
    raw_free(&ctx->allocator, e->message);
    raw_free(&ctx->allocator, e->details);
}

const char *inv_context_details(const inv_context *ctx) { return ctx && ctx->details ? ctx->details : ""; }

inv_status inv_fail(inv_context *ctx, inv_status code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vfail(ctx, code, false, fmt, ap);
    va_end(ap);
    return code;
}

inv_status inv_fail_lines(inv_context *ctx, inv_status code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vfail(ctx, code, true, fmt, ap);
    va_end(ap);
    return code;
}

void inv_log(inv_context *ctx, const char *fmt, ...)
{
    if (!ctx->log) return;
    char line[1024], spelled[FORMAT];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, inv_spell(ctx, fmt, spelled, sizeof spelled), ap);
    va_end(ap);
    if (n < 0) return;
    for (char *s = line; *(s += strcspn(s, line_codes)); s++) *s = ' ';
    ctx->log(ctx->log_opaque, line);
}

/* --- text --- */

char *inv_arena_printf(inv_arena *a, const char *fmt, ...)
{
    char spelled[FORMAT], text[FORMAT];
    va_list ap;
    fmt = inv_spell(a->ctx, fmt, spelled, sizeof spelled);
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof text) return inv_arena_copy(a, text, (size_t)n + 1);
    char *p = inv_arena_alloc(a, n < 0 ? 1 : (size_t)n + 1);
    if (!p || n < 0) return p;
    va_start(ap, fmt);
    vsnprintf(p, (size_t)n + 1, fmt, ap);
    va_end(ap);
    return p;
}

void inv_str_init(inv_str *b, inv_context *ctx) { *b = (inv_str){.ctx = ctx, .s = empty_text}; }

void inv_str_fini(inv_str *b)
{
    if (b->cap) inv_dealloc(b->ctx, b->s);
    inv_str_init(b, b->ctx);
}

static bool str_reserve(inv_str *b, size_t more)
{
    size_t need;
    if (b->failed) return false;
    if (!inv_add_size(b->n, more, &need) || need == SIZE_MAX) {
        b->failed = true;
        (void)inv_fail(b->ctx, INV_E_NOMEM, "out of memory: text too long");
        return false;
    }
    if (need + 1 <= b->cap) return true;
    size_t cap = b->cap ? b->cap : 128;
    while (cap < need + 1) cap = cap > SIZE_MAX / 2 ? need + 1 : cap * 2;
    char *s = inv_alloc(b->ctx, cap);
    if (!s) {
        b->failed = true;
        return false;
    }
    memcpy(s, b->s, b->n + 1);
    if (b->cap) inv_dealloc(b->ctx, b->s);
    b->s = s;
    b->cap = cap;
    return true;
}

void inv_str_addv(inv_str *b, const char *fmt, va_list ap)
{
    char spelled[FORMAT];
    if (b->failed) return;
    fmt = inv_spell(b->ctx, fmt, spelled, sizeof spelled);
    va_list again;
    va_copy(again, ap);
    size_t room = b->cap ? b->cap - b->n : 0;
    int n = vsnprintf(room ? b->s + b->n : NULL, room, fmt, ap);
    const bool fits = n >= 0 && (size_t)n < room;
    if (!fits && room) b->s[b->n] = 0;
    if (!fits && n > 0 && str_reserve(b, (size_t)n)) vsnprintf(b->s + b->n, (size_t)n + 1, fmt, again);
    if (n > 0 && !b->failed) b->n += (size_t)n;
    va_end(again);
}

void inv_str_reserve(inv_str *b, size_t n) { (void)str_reserve(b, n); }

void inv_str_put(inv_str *b, const char *s, size_t n)
{
    if (!str_reserve(b, n)) return;
    memcpy(b->s + b->n, s, n);
    b->s[b->n += n] = 0;
}

void inv_str_add(inv_str *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    inv_str_addv(b, fmt, ap);
    va_end(ap);
}

void inv_str_add_line(inv_str *b, const char *s)
{
    for (;; s++) {
        size_t n = strcspn(s, line_codes);
        inv_str_add(b, "%.*s", (int)n, s);
        s += n;
        if (!*s) return;
        inv_str_add(b, "\\u%04x", (unsigned)*s);
    }
}

inv_status inv_str_take(inv_str *b, char **out)
{
    *out = NULL;
    if (!b->failed && str_reserve(b, 1)) {
        *out = b->s;
        inv_str_init(b, b->ctx);
        return INV_OK;
    }
    inv_str_fini(b);
    return INV_E_NOMEM;
}

/* The decimal point of the process's locale must not get into texts that are read back. */
static void plain_point(char *s)
{
    char *point = NULL;
    for (char *p = s; *p; p++) {
        bool plain = (*p >= '0' && *p <= '9') || (*p >= 'a' && *p <= 'z') || *p == '+' || *p == '-' || *p == '.';
        if (plain) continue;
        if (!point) {
            point = p;
            *point = '.';
        } else {
            memmove(p, p + 1, strlen(p)); /* a point of several bytes */
            p--;
        }
    }
}

char *inv_double_text(double v, char buf[INV_DOUBLE_TEXT])
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(buf, INV_DOUBLE_TEXT, "%.*g", digits, v);
        if (digits == 17 || strtod(buf, NULL) == v) break;
    }
    plain_point(buf);
    return buf;
}

uint64_t inv_hash(const void *data, size_t n, uint64_t seed)
{
    const unsigned char *p = data;
    uint64_t h = 0xcbf29ce484222325u ^ seed;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001b3u;
    return h;
}
