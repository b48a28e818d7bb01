/* SPDX-License-Identifier: Apache-2.0
 * Training steps on request, for compare.py, curve.py and others: a contestant that says what each step takes. Linux
 * only.
 *
 *     bench_step MODEL.onnx input=NAME:TYPE:DIMS:FILE target=TYPE:DIMS:FILE loss=KIND [output=NAME] [logdet=NAME]
 *                [axis=K] [memory=MODE] [budget=BYTES] [plan=FILE] [optimizer=KIND] [threads=N] [lr=X] [steps=N]
 *                [cost=time]
 *
 * TYPE: f32 or i64; DIMS as 64x3x32x32; FILE: the bare elements, or a plan that `plan` wrote; cost=time: planned by
 * measured rates, which steps of another session have corrected before, as a run of `train` does for the next one, else
 * by arithmetic. Prints a line of JSON when the first N steps are made (default: one), with their losses and the bytes
 * that were resident before the model was loaded; then answers each line read:
 *     mem N     bytes by which one step raised the resident memory
 *     time      wall and CPU seconds of a step, the share of a core that other programs took meanwhile, and the most
 *               memory that was resident so far
 *     report    the session's report
 *     correct   a session corrects the rates that this process has read first: seconds of its step by these alone
 *               (`rated`) and as it took (`timed`), as it has them; seconds of steps (CPU time on one thread) that two
 *               more make by turns, one with its plan (`first`), one planned by corrected rates (`again`); the last
 *               one's report
 *
 * Memory. All of a session's memory is there before its first step, so a peak would show nothing. N is the size of the
 * arena's part for a step (the report has it: planned peak less parameters and optimizer state); before the measured
 * step its pages are given back to the system. What the step touches of them, and whatever else it takes, is then seen
 * as VmHWM after it less VmRSS before it, as for any program that allocates when it needs. The first page holds the
 * allocator's own notes and stays; it is added. The gradients lie in that part, too: the reader subtracts them. */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "invonnx/invonnx.h"

enum { MAX_RANK = 8, WORD = 64, PAGE = 4096, LARGE = 1 << 16, HUGE = 4 << 20, HEADER = 128 };

/* --- allocator: large blocks are mapped, and known --- */

typedef struct block {
    struct block *next;
    char *at;
    size_t nbytes;
} block;

static void *give(void *opaque, size_t nbytes)
{
    block **list = opaque;
    if (nbytes < LARGE) return malloc(nbytes);
    block *b = malloc(sizeof *b);
    void *p = b ? mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : MAP_FAILED;
    if (p == MAP_FAILED) {
        free(b);
        return NULL;
    }
    if (nbytes >= HUGE) (void)madvise(p, nbytes, MADV_HUGEPAGE); /* the library's own arenas are */
    *b = (block){*list, p, nbytes};
    *list = b;
    return p;
}

static void take(void *opaque, void *p)
{
    for (block **at = opaque; *at; at = &(*at)->next) {
        block *b = *at;
        if (b->at != p) continue;
        *at = b->next;
        (void)munmap(b->at, b->nbytes);
        free(b);
        return;
    }
    free(p);
}

/* The only block made for `nbytes` bytes, which the library aligns with less than HEADER more. */
static block *block_of(block *list, size_t nbytes)
{
    block *found = NULL;
    for (block *b = list; b; b = b->next) {
        if (b->nbytes < nbytes || b->nbytes - nbytes >= HEADER) continue;
        if (found) return NULL;
        found = b;
    }
    return found;
}

/* --- the system's figures --- */

static size_t status_bytes(const char *key)
{
    char line[256];
    size_t kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0) kib = strtoull(line + strlen(key), NULL, 10);
    if (f) (void)fclose(f);
    return kib * 1024;
}

static int reset_peak(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "w");
    int ok = f && fputs("5", f) >= 0;
    if (f && fclose(f) != 0) ok = 0;
    return ok;
}

/* CPU seconds of all programs since the start of the machine. */
static double machine_busy(void)
{
    char line[512] = "", *p = line + 4;
    unsigned long long v[8] = {0};
    FILE *f = fopen("/proc/stat", "r");
    if (f && fgets(line, sizeof line, f))
        for (int i = 0; i < 8; i++) v[i] = strtoull(p, &p, 10);
    if (f) (void)fclose(f);
    return (double)(v[0] + v[1] + v[2] + v[5] + v[6] + v[7]) / (double)sysconf(_SC_CLK_TCK);
}

static double seconds(clockid_t clock)
{
    struct timespec t;
    (void)clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- the session --- */

typedef struct runner {
    block *blocks;
    inv_context *ctx;
    inv_model *model;
    inv_session *session;
    inv_array input, target;
    int64_t dims[2][MAX_RANK];
    char name[WORD];
    char *plan;
    inv_cost_table *rates, *corrected;
    double rated, timed; /* seconds of a step of the session that has corrected the rates: by these, and as it took */
    inv_session_options options;
    const char *output;
    int by_time;
    double lr;
    inv_result result;
    int refused; /* reconstructions that the guards have refused so far; each had the session planned again */
    int steps;   /* before it says that it is ready */
    int reps;
} runner;

static int complain(const runner *r, const char *what)
{
    fprintf(stderr, "%s: %s\n", what, r->ctx ? inv_context_message(r->ctx) : "no context");
    return 0;
}

/* TYPE:DIMS:FILE */
static int read_array(const char *text, inv_array *a, int64_t *dims)
{
    int is_float = strncmp(text, "f32:", 4) == 0;
    if (!is_float && strncmp(text, "i64:", 4) != 0) return 0;
    size_t nbytes = is_float ? sizeof(float) : sizeof(int64_t);
    char *p = (char *)(uintptr_t)(text + 3);
    *a = (inv_array){.dtype = is_float ? INV_F32 : INV_I64, .dims = dims};
    do {
        dims[a->rank] = strtoll(p + 1, &p, 10);
        nbytes *= (size_t)dims[a->rank++];
    } while (*p == 'x' && a->rank < MAX_RANK);
    if (*p != ':') return 0;
    FILE *f = fopen(p + 1, "rb");
    void *data = f ? malloc(nbytes) : NULL;
    int ok = data && fread(data, 1, nbytes, f) == nbytes;
    if (f) (void)fclose(f);
    if (ok) a->data = data;
    else free(data);
    return ok;
}

/* All of a text; NULL: there is none. */
static char *text_of(const char *path)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = fopen(path, "r");
    ssize_t got = f ? getdelim(&text, &n, 0, f) : -1;
    if (f) (void)fclose(f);
    return got > 0 ? text : NULL;
}

static int choose(const char *word, const char *const *words, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(word, words[i]) == 0) return i;
    return -1;
}

/* One KEY=VALUE; 0: not understood. */
static int set(runner *r, inv_session_options *o, const char *text)
{
    static const char *const losses[] = {"none", "cross_entropy", "mse", "bce", "nll", "output"};
    static const char *const memories[] = {"auto", "store", "recompute", "invert"};
    static const char *const optimizers[] = {"none", "sgd", "momentum", "adam", "adamw"};
    const char *value = strchr(text, '=');
    if (!value++) return 0;
    size_t key = (size_t)(value - text);
    if (strncmp(text, "input=", key) == 0) {
        const char *colon = strchr(value, ':');
        if (!colon || (size_t)(colon - value) >= WORD || !read_array(colon + 1, &r->input, r->dims[0])) return 0;
        memcpy(r->name, value, (size_t)(colon - value));
        r->input.name = r->name;
        return 1;
    }
    if (strncmp(text, "target=", key) == 0) return read_array(value, &r->target, r->dims[1]);
    if (strncmp(text, "output=", key) == 0) {
        r->output = value;
        o->loss_outputs = &r->output;
        o->nloss_outputs = 1;
        return 1;
    }
    if (strncmp(text, "logdet=", key) == 0) return (o->logdet = value) != NULL;
    if (strncmp(text, "plan=", key) == 0) return (o->plan = r->plan = text_of(value)) != NULL;
    if (strcmp(text, "cost=time") == 0) return r->by_time = 1;
    if (strncmp(text, "axis=", key) == 0) return (o->class_axis = atoi(value)) != 0;
    if (strncmp(text, "threads=", key) == 0) return (o->threads = atoi(value)) > 0;
    if (strncmp(text, "steps=", key) == 0) return (r->steps = atoi(value)) > 0;
    if (strncmp(text, "budget=", key) == 0) return (o->budget = strtoull(value, NULL, 10)) > 0;
    if (strncmp(text, "lr=", key) == 0) return (r->lr = strtod(value, NULL)) > 0;
    int loss = strncmp(text, "loss=", key) == 0 ? choose(value, losses, 6) : -1;
    int memory = strncmp(text, "memory=", key) == 0 ? choose(value, memories, 4) : -1;
    int optimizer = strncmp(text, "optimizer=", key) == 0 ? choose(value, optimizers, 5) : -1;
    if (loss >= 0) o->loss = (inv_loss)loss;
    if (memory >= 0) o->memory = (inv_memory)memory;
    if (optimizer >= 0) o->optimizer = (inv_optimizer)optimizer;
    return loss >= 0 || memory >= 0 || optimizer >= 0;
}

static int step_in(runner *r, inv_session *session)
{
    const inv_array *target = r->target.data ? &r->target : NULL;
    int ok = inv_session_step(session, &r->input, 1, target, r->lr, &r->result) == INV_OK || complain(r, "step");
    r->refused += r->result.fallbacks;
    return ok;
}

static int step(runner *r) { return step_in(r, r->session); }

static int open_session(runner *r)
{
    inv_session_destroy(r->session);
    r->session = NULL;
    return inv_session_create(r->model, &r->options, &r->session) == INV_OK || complain(r, "compile");
}

/* The machine's rates, with the corrections that sessions have left so far. */
static int read_rates(runner *r, inv_cost_table **to)
{
    const inv_calibrate_options c = {.size = sizeof c, .threads = r->options.threads};
    inv_free(r->ctx, *to);
    return inv_calibrate(r->ctx, &c, to) == INV_OK || complain(r, "rates");
}

/* The report's number of this name, in *out; 0: null. */
static int read_seconds(runner *r, const char *name, double *out)
{
    char *json;
    if (inv_session_report(r->session, &json) != INV_OK) return complain(r, "report");
    const char *at = strstr(json, name);
    *out = at ? strtod(at + strlen(name), NULL) : 0;
    inv_free(r->ctx, json);
    return 1;
}

/* The first steps of a session correct the rates that this process has read first, and so the plan of the next one,
 * which is the one that counts. */
static int correct_rates(runner *r)
{
    enum { MOST = 20 };
    inv_session_options *o = &r->options;
    int ok = r->rates || read_rates(r, &r->rates);
    o->costs = r->rates;
    o->improve = true;
    ok = ok && open_session(r);
    r->timed = 0;
    for (int i = 0; i < MOST && ok && !(r->timed > 0); i++)
        ok = step(r) && read_seconds(r, "\"timed_seconds\":", &r->timed);
    if (ok && !(r->timed > 0)) return (fprintf(stderr, "no steps were timed\n"), 0);
    ok = ok && read_seconds(r, "\"uncorrected_seconds\":", &r->rated) && read_rates(r, &r->corrected);
    o->costs = r->corrected;
    o->improve = false;
    r->refused = 0;
    return ok;
}

static int begin(runner *r, int argc, char **argv)
{
    inv_session_options *o = &r->options;
    *o = (inv_session_options){.size = sizeof *o,
                               .purpose = INV_FOR_TRAIN,
                               .optimizer = INV_OPT_SGD,
                               .momentum = 0.9,
                               .beta1 = 0.9,
                               .beta2 = 0.999,
                               .epsilon = 1e-8};
    const inv_allocator allocator = {give, take, &r->blocks};
    const inv_context_options context = {.size = sizeof context, .allocator = &allocator};
    for (int i = 2; i < argc; i++)
        if (!set(r, o, argv[i])) return (fprintf(stderr, "not understood: %s\n", argv[i]), 0);
    if (!r->input.data) return (fprintf(stderr, "input= is missing\n"), 0);
    o->inputs = &r->input;
    o->ninputs = 1;
    o->target = r->target.data ? &r->target : NULL;
    double start = seconds(CLOCK_MONOTONIC);
    const size_t idle = status_bytes("VmRSS:");
    if (inv_context_create(&context, &r->ctx) != INV_OK) return complain(r, "context");
    if (inv_model_load(r->ctx, argv[1], &r->model) != INV_OK) return complain(r, argv[1]);
    if ((r->by_time && !correct_rates(r)) || !open_session(r)) return 0;
    for (int i = 0; i < r->steps; i++) {
        if (!step(r)) return 0;
        if (i == 0)
            printf("{\"loss\": %.9g, \"first_call_s\": %.3f, \"losses\": [", r->result.loss,
                   seconds(CLOCK_MONOTONIC) - start);
        printf("%s%.9g", i ? ", " : "", r->result.loss);
    }
    printf("], \"idle\": %zu}\n", idle);
    return 1;
}

/* --- answers --- */

static int answer_mem(runner *r, size_t nbytes)
{
    block *b = block_of(r->blocks, nbytes);
    if (!b) return (fprintf(stderr, "no block of %zu bytes, or several\n", nbytes), 0);
    if (b->nbytes > PAGE && madvise(b->at + PAGE, b->nbytes - PAGE, MADV_DONTNEED) != 0) return 0;
    if (!reset_peak()) return (fprintf(stderr, "the peak cannot be reset\n"), 0);
    size_t before = status_bytes("VmRSS:");
    double start = seconds(CLOCK_MONOTONIC);
    if (!step(r)) return 0;
    double took = seconds(CLOCK_MONOTONIC) - start;
    printf("{\"growth\": %zu, \"s_trim\": %.6f, \"fallbacks\": %d, \"drift\": %.3g}\n",
           status_bytes("VmHWM:") - before + PAGE, took, r->result.fallbacks, r->result.drift);
    return 1;
}

static int answer_time(runner *r)
{
    if (r->reps == 0) { /* the usual thresholds of malloc come back before anything is timed, as with the others */
        (void)mallopt(M_MMAP_THRESHOLD, 32 << 20);
        (void)mallopt(M_TRIM_THRESHOLD, 64 << 20);
        if (!step(r)) return 0;
        double start = seconds(CLOCK_MONOTONIC);
        if (!step(r)) return 0;
        double one = seconds(CLOCK_MONOTONIC) - start;
        r->reps = one < 0.3 ? (int)(0.3 / one + 0.5) : 1;
    }
    double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID), busy = machine_busy(), wall = seconds(CLOCK_MONOTONIC);
    for (int i = 0; i < r->reps; i++)
        if (!step(r)) return 0;
    wall = seconds(CLOCK_MONOTONIC) - wall;
    cpu = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    double others = (machine_busy() - busy - cpu) / wall;
    printf("{\"s\": %.6f, \"cpu\": %.6f, \"others\": %.4f, \"refused\": %d, \"peak\": %zu}\n", wall / r->reps,
           cpu / r->reps, others > 0 ? others : 0, r->refused, status_bytes("VmHWM:"));
    return 1;
}

static int print_report(runner *r)
{
    char *json;
    if (inv_session_report(r->session, &json) != INV_OK) return complain(r, "report");
    for (char *p = json; *p; p++)
        if (*p == '\n') *p = ' ';
    printf("%s", json);
    inv_free(r->ctx, json);
    return 1;
}

static int timed_step(runner *r, inv_session *session, double *took)
{
    const clockid_t clock = r->options.threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
    const double began = seconds(clock);
    const int ok = step_in(r, session);
    *took = seconds(clock) - began;
    return ok;
}

static void print_list(const char *name, const double *x, int n)
{
    printf("\"%s\": [", name);
    for (int i = 0; i < n; i++) printf("%s%.6f", i ? ", " : "", x[i]);
    printf("], ");
}

/* Each makes as many steps as a session times of its own: from LEAST to MOST, until they take `enough` seconds in all.
 * The first of them touches what is new, and does not count. */
static int answer_correct(runner *r)
{
    enum { LEAST = 4, MOST = 16 };
    const double enough = 0.5;
    double first[MOST + 1], again[MOST + 1], sum = 0;
    int n = 0;
    if (!correct_rates(r)) return 0;
    r->options.costs = r->rates;
    if (!open_session(r)) return 0;
    inv_session *other = r->session;
    r->session = NULL;
    r->options.costs = r->corrected;
    int ok = open_session(r);
    for (; ok && (n <= LEAST || (n <= MOST && sum < enough)); n++) {
        ok = timed_step(r, other, &first[n]) && timed_step(r, r->session, &again[n]);
        sum += n ? again[n] : 0;
    }
    inv_session_destroy(other);
    if (!ok) return 0;
    printf("{\"rated\": %.9g, \"timed\": %.9g, ", r->rated, r->timed);
    print_list("first", first + 1, n - 1);
    print_list("again", again + 1, n - 1);
    printf("\"report\": ");
    return print_report(r) && printf("}\n") > 0;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL.onnx input=NAME:TYPE:DIMS:FILE ...; see the source\n", argv[0]);
        return 2;
    }
    runner r = {.lr = 1e-6, .steps = 1};
    char line[WORD];
    int ok = begin(&r, argc, argv);
    while (ok && fflush(stdout) == 0 && fgets(line, sizeof line, stdin)) {
        if (strncmp(line, "mem ", 4) == 0) ok = answer_mem(&r, strtoull(line + 4, NULL, 10));
        else if (strcmp(line, "time\n") == 0) ok = answer_time(&r);
        else if (strcmp(line, "report\n") == 0) ok = print_report(&r) && printf("\n") > 0;
        else if (strcmp(line, "correct\n") == 0) ok = answer_correct(&r);
        else ok = 0;
    }
    inv_session_destroy(r.session);
    inv_model_destroy(r.model);
    inv_free(r.ctx, r.rates);
    inv_free(r.ctx, r.corrected);
    inv_context_destroy(r.ctx);
    free((void *)(uintptr_t)r.input.data);
    free((void *)(uintptr_t)r.target.data);
    free(r.plan);
    return ok ? 0 : 1;
}
