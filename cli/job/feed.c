/* SPDX-License-Identifier: Apache-2.0
 * Arrays for the model's inputs and the target, from files or from the declared shapes. What is wrong is
 * collected and said at once. */
#include "cli/job/feed.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/job/labels.h"

/* Complaints are gathered here, one line each. */
typedef struct complaints {
    char *text;
    size_t length;
    FILE *f;
} complaints;

static bool complaints_open(complaints *c)
{
    *c = (complaints){0};
    c->f = open_memstream(&c->text, &c->length);
    return c->f != NULL;
}

/* Says what was gathered: wrong usage if `usage`. @return CLI_OK if nothing was */
static int complaints_close(complaints *c, const cli_options *usage)
{
    fclose(c->f);
    int status = CLI_OK;
    while (c->length && c->text[c->length - 1] == '\n') c->text[--c->length] = 0;
    if (c->length) status = usage ? cli_usage(usage, "%s", c->text) : cli_fail("%s", c->text);
    free(c->text);
    return status;
}

static const char *plural(size_t n) { return n == 1 ? "" : "s"; }

static void list_inputs(const cli_job *job, FILE *why)
{
    for (size_t i = 0; i < job->ninputs; i++) fprintf(why, "%s'%s'", i ? ", " : "", job->inputs[i].label);
}

bool cli_assign(const cli_job *job, const cli_list *list, const char *option, const char **file_of_input, FILE *why)
{
    bool ok = true;
    for (size_t k = 0; k < list->n; k++) {
        const char *text = list->item[k], *file = NULL;
        size_t which = 0, longest = 0;
        for (size_t i = 0; i < job->ninputs; i++) {
            size_t n = strlen(job->inputs[i].name);
            if (strncmp(text, job->inputs[i].name, n) != 0 || text[n] != '=' || (file && n < longest)) continue;
            which = i;
            longest = n;
            file = text + n + 1;
        }
        const char *equals = strchr(text, '=');
        if (!file && job->ninputs == 1 && (!equals || access(text, R_OK) == 0)) file = text;
        if (!file) {
            if (equals)
                fprintf(why, "--%s %s: the model has no input '%.*s' to feed (it has ", option, text,
                        (int)(equals - text), text);
            else fprintf(why, "--%s %s: with %zu inputs say NAME=FILE (inputs: ", option, text, job->ninputs);
            list_inputs(job, why);
            fputs(")\n", why);
            ok = false;
        } else if (file_of_input[which]) {
            fprintf(why, "--%s: input '%s' is given twice\n", option, job->inputs[which].label);
            ok = false;
        } else {
            file_of_input[which] = file;
        }
    }
    return ok;
}

static void print_shape(FILE *f, int rank, const int64_t *dims, const char *const *symbol)
{
    fputc('[', f);
    for (int i = 0; i < rank; i++) {
        fputs(i ? ", " : "", f);
        if (dims[i] >= 0) fprintf(f, "%lld", (long long)dims[i]);
        else fputs(symbol && symbol[i] ? symbol[i] : "?", f);
    }
    fputc(']', f);
}

static bool is_real(inv_dtype t) { return t == INV_F32 || t == INV_F64 || t == INV_F16 || t == INV_BF16; }

bool cli_fits(const cli_port *port, const npy_array *a, bool rows, FILE *why)
{
    bool fits = port->rank < 0 || port->rank == a->rank;
    for (int i = 0; i < a->rank && fits && port->rank >= 0; i++) {
        if (i == 0 && rows) continue;
        fits = port->dims[i] < 0 || port->dims[i] == a->dims[i];
    }
    if (rows && a->rank == 0) fits = false;
    if (!fits) {
        fprintf(why, "shape ");
        print_shape(why, a->rank, a->dims, NULL);
        fprintf(why, ", but the model wants ");
        cli_port wanted = *port;
        if (rows) {
            wanted.dims[0] = -1;
            wanted.symbol[0] = "rows";
        }
        print_shape(why, wanted.rank < 0 ? 0 : wanted.rank, wanted.dims, wanted.symbol);
        return false;
    }
    bool integers = !is_real(port->dtype) && port->dtype != INV_DT_NONE;
    if (integers && is_real(a->dtype)) {
        fprintf(why, "%s data, but the model wants %s", cli_dtype_name(a->dtype), cli_dtype_name(port->dtype));
        return false;
    }
    return true;
}

void cli_note_integers(const cli_port *port, const npy_array *a, const char *path)
{
    if (!is_real(port->dtype) || is_real(a->dtype)) return;
    cli_note("input '%s', %s: %s data for a %s input: numbers are taken as they are%s, not scaled", port->label, path,
             cli_dtype_name(a->dtype), cli_dtype_name(port->dtype), a->dtype == INV_U8 ? ", 0 to 255" : "");
}

inv_array cli_array_of(const char *name, const npy_array *a)
{
    return (inv_array){.name = name, .dtype = a->dtype, .rank = a->rank, .dims = a->dims, .data = a->data};
}

static void load_feed(cli_job *job, size_t i, const char *path, FILE *why)
{
    const cli_port *port = &job->inputs[i];
    const char *members[] = {port->name, "x"};
    char *reason = NULL;
    size_t length = 0;
    FILE *f = open_memstream(&reason, &length);
    if (!f) {
        fputs("out of memory\n", why);
        return;
    }
    bool ok = npy_open(path, members, 2, &job->feeds[i], f) && cli_fits(port, &job->feeds[i], false, f);
    if (ok && !npy_align(&job->feeds[i])) ok = (fprintf(f, "out of memory"), false);
    fclose(f);
    if (!ok) fprintf(why, "input '%s', %s: %s\n", port->label, path, reason);
    else job->arrays[i] = cli_array_of(port->name, &job->feeds[i]);
    if (ok) cli_note_integers(port, &job->feeds[i], path);
    free(reason);
}

static int feed_files(cli_job *job, bool all)
{
    complaints c;
    const char **files = calloc(job->ninputs + 1, sizeof *files);
    if (!files || !complaints_open(&c)) {
        free(files);
        return cli_fail("out of memory");
    }
    bool usage = !cli_assign(job, &job->o->feed, "feed", files, c.f);
    size_t missing = 0;
    for (size_t i = 0; i < job->ninputs; i++) missing += files[i] == NULL;
    if (all && missing) {
        usage = true;
        fprintf(c.f, "no --feed for input%s", plural(missing));
        for (size_t i = 0; i < job->ninputs; i++) {
            if (files[i]) continue;
            fprintf(c.f, " '%s' (%s ", job->inputs[i].label, cli_dtype_name(job->inputs[i].dtype));
            if (job->inputs[i].rank < 0) fputs("of any shape", c.f);
            else print_shape(c.f, job->inputs[i].rank, job->inputs[i].dims, job->inputs[i].symbol);
            fputc(')', c.f);
        }
        fputc('\n', c.f);
    }
    for (size_t i = 0; i < job->ninputs; i++) {
        if (files[i]) load_feed(job, i, files[i], c.f);
    }
    free(files);
    return complaints_close(&c, usage ? job->o : NULL);
}

int cli_feed(cli_job *job) { return feed_files(job, true); }

/* The number that --dim gives for a symbol, -1 if none, -2 if it is no number. */
static int64_t number_of(const cli_options *o, const char *symbol)
{
    size_t n = strlen(symbol);
    for (size_t i = 0; i < o->dim.n; i++) {
        const char *text = o->dim.item[i];
        if (strncmp(text, symbol, n) != 0 || text[n] != '=') continue;
        char *end;
        long long v = strtoll(text + n + 1, &end, 10);
        return end > text + n + 1 && !*end && v > 0 ? v : -2;
    }
    return -1;
}

/* What --batch and --dim say is of inputs that no file feeds. */
static int check_dims(const cli_job *job)
{
    bool fed = job->ninputs > 0;
    for (size_t i = 0; i < job->ninputs; i++) fed = fed && job->arrays[i].name;
    if (fed && (job->o->batch > 0 || job->o->dim.n))
        return cli_usage(job->o, "--%s: has no effect here; --feed gives all inputs, and their shapes",
                         job->o->batch > 0 ? "batch" : "dim");
    for (size_t k = 0; k < job->o->dim.n; k++) {
        const char *text = job->o->dim.item[k], *equals = strchr(text, '=');
        if (!equals) return cli_usage(job->o, "--dim %s: wants NAME=N", text);
        bool known = false, free = false;
        for (size_t i = 0; i < job->ninputs; i++) {
            for (int d = 0; d < job->inputs[i].rank; d++) {
                const char *symbol = job->inputs[i].symbol[d];
                if (!symbol || strlen(symbol) != (size_t)(equals - text) || memcmp(symbol, text, strlen(symbol)) != 0)
                    continue;
                known = true;
                free = free || d > 0 || job->o->batch <= 0;
            }
        }
        if (!known) return cli_usage(job->o, "--dim %s: no input has a dimension of that name", text);
        if (!free)
            return cli_usage(job->o, "--dim %s: has no effect here; --batch %lld gives that dimension", text,
                             (long long)job->o->batch);
    }
    return CLI_OK;
}

/* What is known of one input's dimensions, in place of the feed's; -1: open. `batch`: of first axes, or -1. */
static void resolve_shape(cli_job *job, size_t i, int64_t batch, FILE *why)
{
    const cli_port *port = &job->inputs[i];
    npy_array *shape = &job->feeds[i];
    int64_t fixed = cli_fixed_batch(job);
    if (port->rank < 0) {
        fprintf(why, "input '%s' has no declared shape; give --feed %s=FILE.npy\n", port->label, port->label);
        return;
    }
    shape->rank = port->rank;
    shape->dtype = port->dtype;
    for (int d = 0; d < port->rank; d++) {
        int64_t n = port->dims[d];
        if (d == 0 && job->o->batch > 0 && (n < 0 || n == fixed)) n = job->o->batch;
        if (n < 0 && port->symbol[d]) {
            int64_t given = number_of(job->o, port->symbol[d]);
            if (given == -2) fprintf(why, "--dim %s: wants a positive whole number\n", port->symbol[d]);
            if (given > 0) n = given;
        }
        if (n < 0 && d == 0) n = batch;
        for (size_t j = 0; n < 0 && port->symbol[d] && j < job->ninputs; j++) {
            const char *first = job->inputs[j].rank > 0 ? job->inputs[j].symbol[0] : NULL;
            if (first && strcmp(first, port->symbol[d]) == 0) n = batch;
        }
        shape->dims[d] = n;
    }
    job->arrays[i] = cli_array_of(port->name, shape);
}

/* Says which numbers were taken where the caller gave none; those of the batch only where it is not what was asked. */
static void note_extents(const cli_job *job, const bool (*open)[NPY_MAX_RANK], int64_t batch)
{
    for (size_t i = 0; i < job->ninputs; i++) {
        const cli_port *port = &job->inputs[i];
        const char *named = NULL;
        bool any = false;
        for (int d = 0; d < job->arrays[i].rank; d++) {
            if (!open[i][d] || (d == 0 && job->arrays[i].dims[d] == batch)) continue;
            any = true;
            if (!named) named = port->symbol[d];
        }
        if (!any) continue;
        char *text = NULL;
        size_t length = 0;
        FILE *f = open_memstream(&text, &length);
        if (!f) return;
        print_shape(f, job->arrays[i].rank, job->arrays[i].dims, NULL);
        fputs(" is taken for ", f);
        print_shape(f, port->rank, port->dims, port->symbol);
        fclose(f);
        cli_note("input '%s': %s, which the model accepts (--dim %s=N, or --feed, for another)", port->label, text,
                 named ? named : "NAME");
        free(text);
    }
}

/* Numbers for what is open yet, as the model takes them. */
static int find_extents(cli_job *job, int64_t batch)
{
    const inv_session_options so = {
        .size = sizeof so, .inputs = job->arrays, .ninputs = job->ninputs, .constants_as_needed = true};
    int64_t **dims = calloc(job->ninputs + 1, sizeof *dims);
    bool(*open)[NPY_MAX_RANK] = calloc(job->ninputs + 1, sizeof *open), any = false;
    int status = dims && open ? CLI_OK : cli_fail("out of memory");
    for (size_t i = 0; status == CLI_OK && i < job->ninputs; i++) {
        dims[i] = job->feeds[i].dims;
        for (int d = 0; d < job->arrays[i].rank; d++) any |= open[i][d] = dims[i][d] < 0;
    }
    if (status == CLI_OK && any) {
        const inv_status s = inv_model_find_extents(job->model, &so, batch, dims);
        if (s == INV_OK) note_extents(job, (const bool(*)[NPY_MAX_RANK])open, batch);
        else if (s != INV_E_NOT_CONSTANT) status = cli_library_failed(job, s); /* who needs to know will say so */
    }
    free(open);
    free(dims);
    return status;
}

int cli_shapes(cli_job *job)
{
    int status = feed_files(job, false);
    if (status == CLI_OK) status = check_dims(job);
    if (status != CLI_OK) return status;
    complaints c;
    if (!complaints_open(&c)) return cli_fail("out of memory");
    int64_t batch = job->o->batch > 0 ? job->o->batch : -1;
    for (size_t i = 0; i < job->ninputs && job->o->batch <= 0; i++) {
        if (job->arrays[i].rank > 0) batch = job->arrays[i].dims[0];
    }
    for (size_t i = 0; i < job->ninputs; i++) {
        if (!job->arrays[i].name) resolve_shape(job, i, batch, c.f);
    }
    status = complaints_close(&c, NULL);
    /* Written shapes must tell an open batch from other extents: an unlikely number does. */
    return status == CLI_OK ? find_extents(job, job->o->command == CLI_CMD_rewrite ? 7 : 1) : status;
}

bool cli_loss_takes_target(int loss)
{
    return loss == INV_LOSS_CROSS_ENTROPY || loss == INV_LOSS_MSE || loss == INV_LOSS_BCE || loss == INV_LOSS_HUBER;
}

int cli_target(cli_job *job, bool required)
{
    const cli_options *o = job->o;
    if (required && o->loss == INV_LOSS_NONE)
        return cli_usage(o, "`%s` wants --loss KIND", cli_commands[o->command].name);
    if (!cli_loss_takes_target(o->loss)) return CLI_OK;
    if (!o->target) {
        if (!required) return CLI_OK;
        return cli_usage(o, "--loss %s wants --target FILE", cli_choice_word(cli_losses, o->loss));
    }
    static const char *const members[] = {"y", "target"};
    complaints c;
    if (!complaints_open(&c)) return cli_fail("out of memory");
    if (!npy_open(o->target, members, 2, &job->target_file, c.f)) fprintf(c.f, " (target %s)\n", o->target);
    else if (!npy_align(&job->target_file)) fputs("out of memory\n", c.f);
    int status = complaints_close(&c, NULL);
    if (status != CLI_OK) return status;
    job->target = cli_array_of("target", &job->target_file);
    job->has_target = true;
    return cli_check_target(job, &job->target_file, o->target, NULL);
}
