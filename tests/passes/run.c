/* SPDX-License-Identifier: Apache-2.0
 * Goldens of the passes: tests/passes/STAGE/NAME.txt has a graph, what it is compiled for, and the text after some of
 * the passes. The format is in tests/passes/README.md. A case fails where a text is another than the one in its file,
 * or where any text that a pass is told with does not read back as the same graph. UPDATE=1 writes the files anew. */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/graph/model.h"
#include "graph_text.h"

enum { MOST_CASES = 200, MOST_TEXT = 1 << 16, MOST_PASSES = 64 };

static const char folder[] = INV_SOURCE_DIR "/tests/passes";

typedef struct told {
    size_t n;
    char *pass[MOST_PASSES], *text[MOST_PASSES];
} told;

/* What a case is compiled for, with what the options point to. */
typedef struct request {
    inv_session_options options;
    inv_array input[8], target;
    int64_t target_dims[4];
    const char *keep[4];
} request;

static char *copy_of(const char *text, size_t n)
{
    char *copy = strndup(text, n);
    assert_non_null(copy);
    return copy;
}

/* The line without what is a comment of it. */
static void add_bare(inv_str *b, const char *line, size_t n)
{
    const size_t from = strspn(line, " ");
    const bool phase = from == 2 && line[2] == '#'; /* is read */
    if (*line == '#') return;
    for (size_t i = from; !phase && i + 2 < n; i++)
        if (strncmp(line + i, "  #", 3) == 0) n = i;
    inv_str_add(b, "%.*s\n", (int)n, line);
}

/* What is read from the text and printed is the text without its comments. */
static void check_reads_back(const char *pass, const char *text)
{
    inv_graph *g = NULL;
    inv_str bare, again;
    inv_str_init(&bare, ctx);
    inv_str_init(&again, ctx);
    for (const char *at = text, *end; (end = strchr(at, '\n')); at = end + 1) add_bare(&bare, at, (size_t)(end - at));
    if (inv_graph_parse(ctx, text, &g) != INV_OK) fail_msg("after %s: %s\n%s", pass, inv_context_message(ctx), text);
    assert_int_equal(inv_graph_print(g, &again), INV_OK);
    if (strcmp(bare.s, again.s) != 0) fail_msg("after %s, read back as another:\n%s\n%s", pass, bare.s, again.s);
    inv_graph_destroy(g);
    inv_str_fini(&bare);
    inv_str_fini(&again);
}

static bool note_pass(void *opaque, const char *plan, const char *pass, const char *text)
{
    told *t = opaque;
    assert_string_equal(plan, "main");
    assert_true(t->n < MOST_PASSES);
    t->pass[t->n] = copy_of(pass, strlen(pass));
    t->text[t->n++] = copy_of(text, strlen(text));
    return true;
}

static void forget(told *t)
{
    for (size_t i = 0; i < t->n; i++) {
        free(t->pass[i]);
        free(t->text[i]);
    }
}

/* --- what a case is compiled for --- */

#define WORDS(field, ...)                                             \
    {                                                                 \
#field, offsetof(inv_session_options, field), { __VA_ARGS__ } \
    }
static const struct {
    const char *name;
    size_t field; /* an enumeration of the options */
    struct {
        const char *word;
        int value;
    } is[6];
} choices[] = {
    WORDS(loss, {"mse", INV_LOSS_MSE}, {"cross_entropy", INV_LOSS_CROSS_ENTROPY}, {"output", INV_LOSS_OUTPUT}),
    WORDS(optimizer, {"sgd", INV_OPT_SGD}, {"momentum", INV_OPT_MOMENTUM}, {"adam", INV_OPT_ADAM}),
    WORDS(memory, {"store", INV_MEMORY_STORE}, {"recompute", INV_MEMORY_RECOMPUTE}, {"invert", INV_MEMORY_INVERT},
          {"auto", INV_MEMORY_AUTO}),
    WORDS(guard, {"on", INV_GUARD_ON}, {"off", INV_GUARD_OFF}),
};
static const struct {
    const char *name;
    size_t field;
} flags[] = {{"train_bn", offsetof(inv_session_options, train_bn)},
             {"float64", offsetof(inv_session_options, float64)},
             {"early_update", offsetof(inv_session_options, early_update)}};

static bool read_choice(inv_session_options *o, const char *name, const char *word)
{
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++)
        for (size_t k = 0; k < 6 && choices[i].is[k].word && strcmp(choices[i].name, name) == 0; k++)
            if (strcmp(choices[i].is[k].word, word) == 0) {
                *(int *)(void *)((char *)o + choices[i].field) = choices[i].is[k].value;
                return true;
            }
    return false;
}

/* One word: "train", "train_bn", "loss=mse", "keep=GLOB", "target=float[2,3]". */
static bool read_word(request *rq, char *word)
{
    inv_session_options *o = &rq->options;
    char *value = strchr(word, '='), *dims = value ? strchr(value, '[') : NULL;
    if (value) *value++ = 0;
    for (size_t i = 0; i < sizeof flags / sizeof *flags && !value; i++)
        if (strcmp(word, flags[i].name) == 0) return *(bool *)((char *)o + flags[i].field) = true;
    if (!value) {
        o->purpose = strcmp(word, "train") == 0  ? INV_FOR_TRAIN
                     : strcmp(word, "eval") == 0 ? INV_FOR_EVAL
                                                 : INV_FOR_RUN;
        return o->purpose != INV_FOR_RUN || strcmp(word, "run") == 0;
    }
    if (strcmp(word, "keep") == 0) {
        rq->keep[o->nkeep++] = value;
        return o->nkeep < sizeof rq->keep / sizeof *rq->keep;
    }
    if (strcmp(word, "target") != 0) return read_choice(o, word, value);
    if (!dims) return false;
    *dims++ = 0;
    rq->target = (inv_array){.name = "target", .dims = rq->target_dims};
    for (char *d = dims; *d && *d != ']' && rq->target.rank < 4; d += *d == ',')
        rq->target_dims[rq->target.rank++] = strtoll(d, &d, 10);
    o->target = &rq->target;
    return inv_dtype_parse(value, &rq->target.dtype);
}

static void read_request(request *rq, char *words, told *t)
{
    *rq = (request){.options = {.size = sizeof rq->options, .plan_only = true, .after_pass = note_pass}};
    inv_session_options *o = &rq->options;
    o->after_pass_opaque = t;
    o->keep = rq->keep;
    o->inputs = rq->input;
    o->beta1 = 0.9;
    o->beta2 = 0.999;
    o->epsilon = 1e-8;
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " "))
        if (!read_word(rq, word)) fail_msg("no such word: %s", word);
    if (o->optimizer != INV_OPT_SGD) o->momentum = 0.9;
}

/* --- a case --- */

/* Compiles what stands before the separator. */
static void compile(const char *graph, request *rq)
{
    inv_model model = {.ctx = ctx, .path = "text", .graph = parse(graph)};
    inv_session *s = NULL;
    const inv_graph *g = model.graph;
    for (size_t i = 0; i < g->inputs.n; i++) {
        const inv_value *v = inv_val(g, g->inputs.at[i]);
        assert_true(i < sizeof rq->input / sizeof *rq->input);
        rq->input[i] = (inv_array){.name = v->name, .dtype = v->dtype, .rank = v->shape.rank, .dims = v->shape.dim};
    }
    rq->options.ninputs = g->inputs.n;
    if (inv_session_create(&model, &rq->options, &s) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    inv_session_destroy(s);
    inv_graph_destroy(model.graph);
}

/* The text after the last pass of that name. */
static const char *text_after(const told *t, const char *pass)
{
    for (size_t i = t->n; i-- > 0;)
        if (strcmp(t->pass[i], pass) == 0) return t->text[i];
    fail_msg("there is no pass %s", pass);
    return "";
}

static void write_case(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, strlen(text), f), strlen(text));
    assert_int_equal(fclose(f), 0);
}

static char *read_case(const char *path)
{
    char *text = calloc(1, MOST_TEXT);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(text);
    assert_true(fread(text, 1, MOST_TEXT - 1, f) < MOST_TEXT - 1);
    fclose(f);
    return text;
}

/* The file as it would be by what the passes say now. */
static void run_case(void **state)
{
    static const char for_line[] = "\n--- for ", after_line[] = "\n--- after ";
    const char *path = *state;
    char *text = read_case(path), *end;
    told t = {0};
    request rq;
    inv_str now;
    inv_str_init(&now, ctx);
    char *wanted = strstr(text, for_line), *after = strstr(text, after_line);
    if (*text != '#' || !wanted || !after) fail_msg("%s: wants a comment, '--- for' and '--- after'", path);
    char *graph = copy_of(text, (size_t)(wanted - text) + 1);
    wanted += sizeof for_line - 1;
    char *words = copy_of(wanted, strcspn(wanted, "\n"));
    read_request(&rq, words, &t);
    compile(graph, &rq);
    for (size_t i = 0; i < t.n; i++) check_reads_back(t.pass[i], t.text[i]);
    inv_str_add(&now, "%.*s", (int)(after - text), text);
    for (; after; after = strstr(end, after_line)) {
        after += sizeof after_line - 1;
        end = after + strcspn(after, "\n");
        char *pass = copy_of(after, (size_t)(end - after));
        inv_str_add(&now, "%s%s\n%s", after_line, pass, text_after(&t, pass));
        free(pass);
        if (strstr(end, after_line)) now.s[--now.n] = 0; /* the separator begins with the line end */
    }
    if (getenv("UPDATE")) write_case(path, now.s);
    else if (strcmp(text, now.s) != 0) fail_msg("%s is now (UPDATE=1 accepts it):\n%s", path, now.s);
    forget(&t);
    free(words);
    free(graph);
    free(text);
    inv_str_fini(&now);
}

/* --- all of them --- */

static struct CMUnitTest cases[MOST_CASES];
static size_t ncases;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct CMUnitTest *)a)->name, ((const struct CMUnitTest *)b)->name);
}

static void find_cases(const char *in, int depth)
{
    DIR *dir = opendir(in);
    const struct dirent *e;
    while (dir && (e = readdir(dir))) {
        const size_t n = strlen(e->d_name);
        char path[1024];
        if (*e->d_name == '.') continue;
        snprintf(path, sizeof path, "%s/%s", in, e->d_name);
        if (depth == 0) find_cases(path, 1);
        if (depth == 0 || n < 4 || strcmp(e->d_name + n - 4, ".txt") != 0 || ncases == MOST_CASES) continue;
        char *name = strdup(path);
        if (name) cases[ncases++] = (struct CMUnitTest){name + sizeof folder, run_case, NULL, NULL, name};
    }
    if (dir) closedir(dir);
}

static bool refuse(void *opaque, const char *plan, const char *pass, const char *text)
{
    (void)opaque, (void)plan, (void)text;
    return strcmp(pass, "lower") != 0;
}

/* Who is told may end it. */
static void test_told_may_refuse(void **state)
{
    told t = {0};
    request rq;
    inv_session *s;
    char words[] = "run";
    (void)state;
    inv_model model = {.ctx = ctx, .path = "text", .graph = parse("g (float[2] x) => (y) { y = Tanh(x) }")};
    read_request(&rq, words, &t);
    const int64_t dims[] = {2};
    rq.input[0] = (inv_array){.name = "x", .dtype = INV_F32, .rank = 1, .dims = dims};
    rq.options.ninputs = 1;
    rq.options.after_pass = refuse;
    assert_int_equal(inv_session_create(&model, &rq.options, &s), INV_E_IO);
    assert_non_null(strstr(inv_context_message(ctx), "pass 'lower'"));
    inv_graph_destroy(model.graph);
}

/* Planning again tells what it makes, and no more. */
static void test_told_again(void **state)
{
    told t = {0};
    request rq;
    inv_session *s = NULL;
    char words[] = "train loss=mse target=float[2,4] memory=invert";
    const inv_memory store = INV_MEMORY_STORE;
    const inv_modes modes = {.size = sizeof modes, .memory = &store};
    const int64_t dims[] = {2, 4};
    (void)state;
    inv_model model = {.ctx = ctx,
                       .path = "text",
                       .graph = parse("g (float[2,4] x) => (y) { param float[4] w; p = Mul(x, w); y = Tanh(p) }")};
    read_request(&rq, words, &t);
    rq.input[0] = (inv_array){.name = "x", .dtype = INV_F32, .rank = 2, .dims = dims};
    rq.options.ninputs = 1;
    if (inv_session_create(&model, &rq.options, &s) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    const size_t first = t.n;
    assert_true(first > 2);
    if (inv_session_set_modes(s, &modes) != INV_OK) fail_msg("%s", inv_context_message(ctx));
    assert_int_equal(t.n, first + 3);
    assert_string_equal(t.pass[first], "recover");
    assert_string_equal(t.pass[first + 1], "fuse");
    assert_string_equal(t.pass[first + 2], "memplan");
    inv_session_destroy(s);
    inv_graph_destroy(model.graph);
    forget(&t);
}

int main(void)
{
    cases[ncases++] = (struct CMUnitTest){"told_again", test_told_again, NULL, NULL, NULL};
    cases[ncases++] = (struct CMUnitTest){"told_may_refuse", test_told_may_refuse, NULL, NULL, NULL};
    find_cases(folder, 0);
    qsort(cases + 2, ncases - 2, sizeof *cases, by_name);
    return ncases < 3 || _cmocka_run_group_tests("passes", cases, ncases, setup, teardown);
}
