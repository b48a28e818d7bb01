/* SPDX-License-Identifier: Apache-2.0
 * ONNX's node tests. Each runs in a process of its own, so that a crash or a hang is one failure.
 *   conform_node                 compares what passes with docs/conformance.md, which is generated from it
 *   conform_node --write         writes that file
 *   conform_node FOLDER...       folders of tests, or tests: prints what does not pass, and how many do */
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "node_case.h"

enum { SECONDS = 30, MAX_JOBS = 8 }; /* of processor time */

typedef struct test {
    char *name, *folder;
    bool passes;
    char *why; /* else */
} test;

typedef struct test_set {
    const char *title, *path, *only; /* only: names that contain this; NULL: all */
    test *test;
    size_t n, cap, passed;
} test_set;

/* --- which tests there are --- */

static char *text_of(const char *fmt, const char *a, const char *b)
{
    size_t n = strlen(fmt) + strlen(a) + strlen(b) + 1;
    char *s = malloc(n);
    if (!s) exit(2);
    (void)snprintf(s, n, fmt, a, b);
    return s;
}

static void add_test(test_set *s, const char *name, char *folder)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? 2 * s->cap : 64;
        s->test = realloc(s->test, s->cap * sizeof *s->test);
        if (!s->test) exit(2);
    }
    s->test[s->n++] = (test){text_of("%s%s", name, ""), folder, false, NULL};
}

static bool has_model(const char *folder)
{
    char *path = text_of("%s/%s", folder, "model.onnx");
    struct stat st;
    bool there = stat(path, &st) == 0;
    free(path);
    return there;
}

static int by_name(const void *a, const void *b) { return strcmp(((const test *)a)->name, ((const test *)b)->name); }

static void find_tests(test_set *s)
{
    DIR *d = opendir(s->path);
    if (has_model(s->path)) {
        const char *slash = strrchr(s->path, '/');
        add_test(s, slash ? slash + 1 : s->path, text_of("%s%s", s->path, ""));
    } else {
        for (struct dirent *e; d && (e = readdir(d));) {
            char *folder = text_of("%s/%s", s->path, e->d_name);
            if (has_model(folder) && (!s->only || strstr(e->d_name, s->only))) add_test(s, e->d_name, folder);
            else free(folder);
        }
    }
    if (d) closedir(d);
    if (s->n) qsort(s->test, s->n, sizeof *s->test, by_name);
}

/* --- running them --- */

typedef struct job {
    pid_t pid;
    int from;
    test *t;
} job;

/* Why values differ where that is known: a file that contradicts the specification, or arithmetic that is not meant to
 * be the same. Names that contain the key. */
static const struct {
    const char *key, *why;
} known[] = {
    {"bernoulli", "random numbers differ between implementations"},
    {"bf16", "wants results rounded to bfloat16 between operators, but they are computed in float32"},
    {"test_adam_multiple", "the file lacks its epsilon, 0.01; the newer set has it"},
    {"test_cast_FLOAT_to_BFLOAT16", "wants truncation, but ONNX says the nearest"},
    {"test_resize_downsample_scales_cubic_align_corners", "wants an output length that is no whole number"},
    {"test_resize_downsample_scales_linear_align_corners", "wants an output length that is no whole number"},
};

static const char *reason(const test *t, const char *why)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(why, "values differ") == 0 && strstr(t->name, known[i].key)) return known[i].why;
    return *why ? why : "ended without a message";
}

/* Random masks cannot be those of another implementation. */
static bool is_random(const char *name)
{
    return strncmp(name, "test_training_dropout", 21) == 0 && !strstr(name, "zero_ratio");
}

static void child(const test *t, int to)
{
    node_case c = {.folder = t->folder, .random = is_random(t->name)};
    (void)setrlimit(RLIMIT_CPU, &(struct rlimit){SECONDS, SECONDS + 1});
    bool ok = run_case(&c);
    if (!ok && write(to, c.why, strlen(c.why)) < 0) _exit(2);
    _exit(ok ? 0 : 1);
}

static void start(test *t, job *j)
{
    int ends[2];
    if (pipe(ends) != 0) exit(2);
    j->t = t;
    j->from = ends[0];
    (void)fflush(NULL);
    j->pid = fork();
    if (j->pid < 0) exit(2);
    if (j->pid == 0) child(t, ends[1]);
    close(ends[1]);
}

static void finish(job *j, int status)
{
    char why[WHY + 1] = "";
    ssize_t n = read(j->from, why, WHY);
    why[n > 0 ? n : 0] = 0;
    close(j->from);
    j->t->passes = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (WIFSIGNALED(status))
        (void)snprintf(why, sizeof why, WTERMSIG(status) == SIGXCPU ? "takes too long" : "crash, signal %d",
                       WTERMSIG(status));
    if (!j->t->passes) j->t->why = text_of("%s%s", reason(j->t, why), "");
    j->pid = 0;
}

static void run_tests(test_set *s)
{
    job jobs[MAX_JOBS] = {0};
    long width = sysconf(_SC_NPROCESSORS_ONLN);
    size_t next = 0, running = 0;
    if (width < 1) width = 1;
    if (width > MAX_JOBS) width = MAX_JOBS;
    while (next < s->n || running) {
        for (int k = 0; k < width && next < s->n; k++) {
            if (jobs[k].pid) continue;
            start(&s->test[next++], &jobs[k]);
            running++;
        }
        int status;
        pid_t pid = wait(&status);
        if (pid < 0) exit(2);
        for (int k = 0; k < width; k++) {
            if (jobs[k].pid != pid) continue;
            finish(&jobs[k], status);
            running--;
        }
    }
    for (size_t i = 0; i < s->n; i++) s->passed += s->test[i].passes;
}

/* --- what came out --- */

static int by_reason(const void *a, const void *b)
{
    const test *x = a, *y = b;
    if (x->passes != y->passes) return x->passes - y->passes;
    int order = x->passes ? 0 : strcmp(x->why, y->why);
    return order ? order : strcmp(x->name, y->name);
}

static const char *short_name(const test *t) { return t->name + (strncmp(t->name, "test_", 5) ? 0 : 5); }

static void put_reasons(FILE *f, test_set *s)
{
    qsort(s->test, s->n, sizeof *s->test, by_reason);
    for (size_t i = 0, end; i < s->n && !s->test[i].passes; i = end) {
        for (end = i; end < s->n && !s->test[end].passes && strcmp(s->test[end].why, s->test[i].why) == 0;) end++;
        fprintf(f, "- %s (%zu):", s->test[i].why, end - i);
        for (size_t k = i; k < end; k++) fprintf(f, "%s %s", k > i ? "," : "", short_name(&s->test[k]));
        fputs("\n", f);
    }
}

static void put_document(FILE *f, test_set *set, size_t n)
{
    fputs("# Conformance\n\n"
          "This page says which of ONNX's node tests pass, and why the others do not.\n"
          "`conform_node --write` makes it; `./test` runs the same tests and fails if the page differs.\n\n"
          "The tests run as in `invonnx run`: in float32, or in float64 if inputs or outputs are double.\n"
          "Inputs that decide shapes are constants of the session.\n"
          "Every output must have the type and shape of the test.\n"
          "Floating-point values must be within rtol 1e-3 and atol 1e-5 (NaN equals NaN), others equal.\n"
          "float16 and bfloat16 are computed in float32.\n"
          "Dropout in training is checked by the statistics of its mask, because random numbers differ between\n"
          "implementations.\n\n"
          "| set | tests | pass |\n| --- | --- | --- |\n",
          f);
    for (size_t i = 0; i < n; i++) fprintf(f, "| %s | %zu | %zu |\n", set[i].title, set[i].n, set[i].passed);
    fputs("\nTests that do not pass, by reason; names without `test_`.\n", f);
    for (size_t i = 0; i < n; i++) {
        if (set[i].passed == set[i].n) continue;
        fprintf(f, "\n## %s\n\n", set[i].title);
        put_reasons(f, &set[i]);
    }
}

static char *line_at(char *text, char **rest)
{
    char *end = strchr(text, '\n');
    *rest = end ? end + 1 : text + strlen(text);
    if (end) *end = 0;
    return text;
}

/* Every line of `a` that is not in `b`. @return how many */
static int missing_lines(const char *a, const char *b, const char *sign)
{
    int n = 0;
    char *copy = text_of("%s%s", a, ""), *all = text_of("\n%s%s", b, "");
    for (char *rest = copy; *rest;) {
        char *line = line_at(rest, &rest), *whole = text_of("\n%s%s", line, "\n");
        if (!strstr(all, whole) && n++ < 40) printf("%s %s\n", sign, line);
        free(whole);
    }
    free(all);
    free(copy);
    return n;
}

static int hold_to(const char *path, const char *is)
{
    size_t n;
    uint8_t *bytes = read_file(path, &n);
    char *was = bytes ? (char *)bytes : NULL;
    if (!was) {
        printf("%s is not there\n", path);
        return 1;
    }
    was[n] = 0;
    int differ = missing_lines(was, is, "-") + missing_lines(is, was, "+");
    if (differ) printf("%s says otherwise (its lines with -, what is so with +); conform_node --write\n", path);
    free(was);
    return differ ? 1 : 0;
}

static void drop_tests(test_set *s)
{
    for (size_t i = 0; i < s->n; i++) {
        free(s->test[i].name);
        free(s->test[i].folder);
        free(s->test[i].why);
    }
    free(s->test);
}

/* The sets as documented. */
static int document(bool write_it)
{
    const char *path = INV_SOURCE_DIR "/docs/conformance.md";
    test_set set[] = {
        {.title = "of Debian 12 (ONNX 1.12)", .path = "/usr/share/libonnx-testdata/data/node"},
        {.title = "of the onnx package that `tests/requirements.txt` names", .path = INV_NODE_TESTS},
        {.title = "gradients as operators (ONNX 1.12)",
         .path = "/usr/share/libonnx-testdata/data/simple",
         .only = "test_gradient"},
    };
    const size_t n = sizeof set / sizeof *set;
    char *text = NULL;
    size_t length = 0;
    FILE *f = open_memstream(&text, &length);
    if (!f) return 2;
    for (size_t i = 0; i < n; i++) {
        find_tests(&set[i]);
        if (!set[i].n) {
            printf("no tests in %s: Debian's package libonnx-testdata, or tests/conform/generate.py\n", set[i].path);
            return 1;
        }
        run_tests(&set[i]);
        printf("%s: %zu of %zu pass\n", set[i].title, set[i].passed, set[i].n);
    }
    put_document(f, set, n);
    fclose(f);
    int status = 0;
    if (write_it) {
        f = fopen(path, "w");
        status = f && fputs(text, f) >= 0 && fclose(f) == 0 ? 0 : 2;
    } else {
        status = hold_to(path, text);
    }
    for (size_t i = 0; i < n; i++) drop_tests(&set[i]);
    free(text);
    return status;
}

int main(int argc, char **argv)
{
    if (argc == 1) return document(false);
    if (argc == 2 && strcmp(argv[1], "--write") == 0) return document(true);
    int failed = 0;
    for (int i = 1; i < argc; i++) {
        test_set s = {.title = argv[i], .path = argv[i]};
        find_tests(&s);
        run_tests(&s);
        put_reasons(stdout, &s);
        printf("%s: %zu of %zu pass\n", s.title, s.passed, s.n);
        failed += s.passed < s.n || s.n == 0;
        drop_tests(&s);
    }
    return failed ? 1 : 0;
}
