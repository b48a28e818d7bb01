/* SPDX-License-Identifier: Apache-2.0
 * The command line, read by popt from the rows of option_rows.inc. */
#include "cli/options/command_line.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <popt.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cli/files/write_files.h"
#include "cli/options/option_rows.h"
#include "cli/options/options_file.h"
#include "cli/options/other_words.h"
#include "data/source.h"

#define AT(field) offsetof(cli_options, field)

int cli_usage(const cli_options *o, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const bool said = cli_put_failure(format, args);
    va_end(args);
    if (!said) return CLI_USAGE;
    if (o) fprintf(stderr, "`invonnx %s --help` shows the options\n", cli_commands[o->command].name);
    else fputs("`invonnx --help` shows the commands\n", stderr);
    return CLI_USAGE;
}

/* Wrong usage, with the line of the file that it stands on. */
static int complain(const cli_options *o, const cli_given *g, const char *format, ...) CLI_PRINTF(3, 4);
static int complain(const cli_options *o, const cli_given *g, const char *format, ...)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    va_list args;
    if (!f) return cli_fail("out of memory");
    va_start(args, format);
    vfprintf(f, format, args);
    va_end(args);
    fclose(f);
    const char *what = text ? text : "";
    const int status = g->file ? cli_usage(o, "%s:%d: %s", g->file, g->line, what) : cli_usage(o, "%s", what);
    free(text);
    return status;
}

static int wrong_value(const cli_options *o, const cli_given *g, const char *wanted)
{
    return complain(o, g, "--%s %s: %s", cli_rows[g->row].name, g->text, wanted);
}

static int read_int(cli_options *o, const cli_row *r, const cli_given *g)
{
    const char *text = g->text;
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno) return wrong_value(o, g, "wants a whole number");
    if ((double)v < r->least) {
        char wanted[64];
        snprintf(wanted, sizeof wanted, "must be at least %.0f", r->least);
        return wrong_value(o, g, wanted);
    }
    *(int64_t *)(void *)((char *)o + r->offset) = v;
    return CLI_OK;
}

/* As GNU's tools: M and MiB are 2^20, MB is 10^6. 0: it is no unit. */
static double factor_of(const char *unit)
{
    static const char letters[] = "KMGT";
    unit += strspn(unit, " ");
    if (!*unit || strcasecmp(unit, "B") == 0) return 1;
    const char *at = strchr(letters, toupper((unsigned char)*unit));
    if (!at) return 0;
    const int power = (int)(at - letters) + 1;
    if (!unit[1] || strcasecmp(unit + 1, "iB") == 0) return ldexp(1, 10 * power);
    return strcasecmp(unit + 1, "B") == 0 ? pow(1000, power) : 0;
}

static int read_size(cli_options *o, const cli_row *r, const cli_given *g)
{
    const char *text = g->text;
    char *end;
    double v = strtod(text, &end), factor = factor_of(end);
    v *= factor;
    bool plain = end > text && strspn(text, "0123456789.") == (size_t)(end - text);
    bool whole = factor > 1 || v == floor(v);
    if (!plain || !whole || v < r->least || v > 0x1p62)
        return wrong_value(o, g, "wants a number of bytes, as 1500000, 512MiB (or 512M), 2GiB, 500MB (10^6 each)");
    *(int64_t *)(void *)((char *)o + r->offset) = (int64_t)v;
    return CLI_OK;
}

static int read_real(cli_options *o, const cli_row *r, const cli_given *g)
{
    const char *text = g->text;
    char *end;
    double v = strtod(text, &end);
    if (end == text || *end || !isfinite(v)) return wrong_value(o, g, "wants a number");
    if (v < r->least) return wrong_value(o, g, "must not be negative");
    *(double *)(void *)((char *)o + r->offset) = v;
    return CLI_OK;
}

static int read_choice(cli_options *o, const cli_row *r, const cli_given *g)
{
    const char *text = g->text;
    for (const cli_choice *c = r->choices; c->word; c++) {
        if (strcmp(c->word, text) != 0) continue;
        *(int *)(void *)((char *)o + r->offset) = c->value;
        return CLI_OK;
    }
    char wanted[160] = "";
    FILE *f = fmemopen(wanted, sizeof wanted, "w");
    if (f) {
        fputs("one of ", f);
        cli_row_argument(f, r);
        fclose(f);
    }
    return wrong_value(o, g, wanted);
}

/* Texts whose form does not hang on the model or the data. */
static bool is_normalize(const char *text)
{
    float mean[3], deviation[3];
    return data_read_normalize(text, 1, mean, deviation) || data_read_normalize(text, 3, mean, deviation);
}

static bool is_augment(const char *text)
{
    return !strcmp(text, "crop") || !strcmp(text, "flip") || !strcmp(text, "crop,flip") || !strcmp(text, "flip,crop");
}

static bool is_device(const char *text)
{
    if (strncmp(text, "cuda:", 5) == 0) return text[5] && !text[5 + strspn(text + 5, "0123456789")];
    return !strcmp(text, "cpu") || !strcmp(text, "cuda") || !strcmp(text, "checked") || !strcmp(text, "sim");
}

static bool is_above_0(const char *text)
{
    const double v = strtod(text, NULL);
    return isfinite(v) && v > 0;
}

static bool is_share(const char *text)
{
    const double v = strtod(text, NULL);
    return v >= 0 && v < 1;
}

static const struct {
    size_t at;
    bool (*is)(const char *text);
    const char *wanted;
} forms[] = {
    {AT(normalize), is_normalize,
     "wants none, imagenet, or MEAN/DEVIATION for bytes scaled to 0..1: one number each, or one for each of 3 "
     "channels, as 0.5/0.25"},
    {AT(augment), is_augment, "wants crop, flip or crop,flip"},
    {AT(device), is_device, "there are cpu, cuda, cuda:N, checked and sim"},
    {AT(val_split), is_share, "wants a share, 0 or more and below 1"},
    {AT(label_smoothing), is_share, "wants a share, 0 or more and below 1"},
    {AT(lora_dropout), is_share, "wants a share, 0 or more and below 1"},
    {AT(alpha), is_above_0, "wants a number above 0"},
    {AT(huber_delta), is_above_0, "wants a number above 0"},
    {AT(rank_timeout), is_above_0, "wants a number above 0"},
    /* the library takes 0 as "the default", which nobody who gives a number means */
    {AT(max_drift), is_above_0, "wants a number above 0 (default 2e-5, with --float64 1e-8)"},
};

static int append(cli_list *list, char *item)
{
    char **grown = realloc(list->item, (list->n + 1) * sizeof *grown);
    if (!grown) return cli_fail("out of memory");
    list->item = grown;
    list->item[list->n++] = item;
    return CLI_OK;
}

/* Into the field of its row. Texts stay where they are. */
static int apply_option(cli_options *o, const cli_given *g)
{
    const cli_row *r = &cli_rows[g->row];
    void *field = (char *)o + r->offset;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        if (r->argument && forms[i].at == r->offset && !forms[i].is(g->text)) return wrong_value(o, g, forms[i].wanted);
    if (r->argument && !*g->text) return complain(o, g, "--%s is given nothing: wants %s", r->name, r->argument);
    switch (r->kind) {
    case CLI_ROW_FLAG: *(bool *)field = true; return CLI_OK;
    case CLI_ROW_TEXT: *(char **)field = g->text; return CLI_OK;
    case CLI_ROW_LIST: return append(field, g->text);
    case CLI_ROW_INT: return read_int(o, r, g);
    case CLI_ROW_SIZE: return read_size(o, r, g);
    case CLI_ROW_REAL: return read_real(o, r, g);
    case CLI_ROW_CHOICE: return read_choice(o, r, g);
    default: return CLI_OK; /* a heading, which popt does not know */
    }
}

static size_t fill_table(int command, struct poptOption *table)
{
    size_t n = 0;
    for (int i = 0; i < CLI_NROWS; i++) {
        if (!(cli_rows[i].on >> command & 1u)) continue;
        bool takes = cli_rows[i].argument || cli_rows[i].choices;
        table[n++] = (struct poptOption){
            cli_rows[i].name, cli_rows[i].letter, takes ? POPT_ARG_STRING : POPT_ARG_NONE, NULL, i + 1, NULL, NULL};
    }
    table[n] = (struct poptOption)POPT_TABLEEND;
    return n;
}

static int named_for; /* the command of which option_at has the options */

static const char *option_at(size_t i) { return cli_rows[i].on >> named_for & 1u ? cli_rows[i].name : NULL; }

/* Of another trainer's option: what it is called here, whether this command has that, and what else there is to know.
 */
static int other_option(const cli_options *o, const cli_given *g, const char *option, const cli_other_word *w)
{
    const char *ours = w->ours ? w->ours : "";
    int i = 0;
    if (*option != '-') ours += strspn(ours, "-"); /* as files of options have them */
    const char *name = ours + strspn(ours, "-");
    const size_t n = strcspn(name, " ");
    while (i < CLI_NROWS && (!cli_rows[i].name || strncmp(cli_rows[i].name, name, n) != 0 || cli_rows[i].name[n])) i++;
    const bool elsewhere = w->ours && i < CLI_NROWS && !(cli_rows[i].on >> o->command & 1u);
    return complain(o, g, "unknown option %s%s%s%s%s%s%s%s%s", option, w->ours ? "; invonnx calls it " : "", ours,
                    elsewhere ? ", which does not apply to `" : "", elsewhere ? cli_commands[o->command].name : "",
                    elsewhere ? "`" : "", w->more ? w->ours ? " (" : "; " : "", w->more ? w->more : "",
                    w->more && w->ours ? ")" : "");
}

/* `option` as it was given, with or without dashes, is none of the command's. */
static int unknown_option(const cli_options *o, const cli_given *g, const char *option)
{
    const char *dashes = *option == '-' ? "--" : "", *word = option + strspn(option, "-");
    char *name = strndup(word, strcspn(word, "="));
    if (!name) return cli_fail("out of memory");
    int i = 0;
    while (i < CLI_NROWS && (!cli_rows[i].on || strcmp(cli_rows[i].name, name) != 0)) i++; /* groups have no name */
    named_for = o->command;
    const char *near = cli_nearest(name, CLI_NROWS, option_at);
    const cli_other_word *other = cli_other_word_of(name);
    free(name);
    if (i < CLI_NROWS) return complain(o, g, "%s does not apply to `%s`", option, cli_commands[o->command].name);
    if (other) return other_option(o, g, option, other);
    return complain(o, g, "unknown option %s%s%s%s%s", option, near ? "; did you mean " : "", near ? dashes : "",
                    near ? near : "", near ? "?" : "");
}

static int popt_complaint(const cli_options *o, poptContext context, int code)
{
    const char *option = poptBadOption(context, POPT_BADOPTION_NOALIAS);
    if (code == POPT_ERROR_BADOPT) return unknown_option(o, &(cli_given){0}, option);
    if (code == POPT_ERROR_NOARG) return cli_usage(o, "%s wants an argument", option);
    return cli_usage(o, "%s: %s", option, poptStrerror(code));
}

/* --- what was given, in files and behind the command --- */

/* Takes `text`. */
static int add_given(cli_options *o, int at, char *text, const char *file, int line)
{
    cli_given *grown = realloc(o->said, (o->nsaid + 1) * sizeof *grown);
    if (grown) o->said = grown;
    else free(text);
    if (!grown) return cli_fail("out of memory");
    o->said[o->nsaid++] = (cli_given){.row = at, .name = cli_rows[at].name, .text = text, .file = file, .line = line};
    return CLI_OK;
}

/* The row of a field; an option of the command. */
static int row_at(size_t offset)
{
    int i = 0;
    while (cli_rows[i].offset != offset) i++;
    return i;
}

/* A line of a file of options. */
static int take_setting(cli_options *o, const cli_setting *s, const char *file)
{
    const cli_given here = {.file = file, .line = s->line};
    const char *word = s->name + strspn(s->name, "-");
    const char letter = word[0] && !word[1] ? word[0] : ' ';
    int i = 0;
    while (i < CLI_NROWS && !(cli_rows[i].on >> o->command & 1u &&
                              (cli_rows[i].letter == letter || strcmp(cli_rows[i].name, word) == 0)))
        i++;
    if (i == CLI_NROWS) return unknown_option(o, &here, s->name);
    const bool takes = cli_rows[i].argument || cli_rows[i].choices;
    if (takes != (s->value != NULL))
        return complain(o, &here, takes ? "%s wants a value" : "%s takes no value", s->name);
    if (i == row_at(AT(options))) return complain(o, &here, "a file of options names no other");
    char *text = takes ? strdup(s->value) : NULL;
    return takes && !text ? cli_fail("out of memory") : add_given(o, i, text, file, s->line);
}

/* The options of a file; `*model`: the MODEL that it names, if it does, the caller frees it. */
static int take_file(cli_options *o, const char *file, char **model)
{
    const bool has_model = strncmp(cli_commands[o->command].args, "MODEL", 5) == 0;
    char *text = cli_text_of_file(file), *rest = text;
    cli_setting s = {0};
    const char *wrong;
    int status = text ? CLI_OK : CLI_USAGE;
    while (status == CLI_OK && cli_setting_next(&rest, &s, &wrong)) {
        if (wrong) {
            status = complain(o, &(cli_given){.file = file, .line = s.line}, "%s", wrong);
        } else if (has_model && s.value && strcmp(s.name, "model") == 0) {
            free(*model);
            *model = strdup(s.value);
            if (!*model) status = cli_fail("out of memory");
        } else {
            status = take_setting(o, &s, file);
        }
    }
    free(text);
    return status;
}

/* What files of options say goes before what the command line does, so that this wins. */
static int take_files(cli_options *o)
{
    cli_given *own = o->said;
    const size_t n = o->nsaid;
    char *model = NULL;
    int status = CLI_OK;
    o->said = NULL;
    o->nsaid = 0;
    for (size_t i = 0; i < n && status == CLI_OK; i++)
        if (own[i].row == row_at(AT(options))) status = take_file(o, own[i].text, &model);
    for (size_t i = 0; i < n; i++) {
        const int added = add_given(o, own[i].row, own[i].text, NULL, 0);
        if (status == CLI_OK) status = added;
    }
    free(own);
    if (status == CLI_OK && model && o->argument.n == 0) return append(&o->argument, model);
    free(model);
    return status;
}

static bool is_given(const cli_options *o, int at)
{
    for (size_t i = 0; i < o->nsaid; i++)
        if (o->said[i].row == at) return true;
    return false;
}

/* With --checkpoint a number given to --keep says how many checkpoints stay. */
static void name_numbers_of_checkpoints(cli_options *o)
{
    const int keep = row_at(AT(keep)), number = row_at(AT(keep_checkpoints));
    if (o->command != CLI_CMD_train || !is_given(o, row_at(AT(checkpoint)))) return;
    for (size_t i = 0; i < o->nsaid; i++) {
        cli_given *g = &o->said[i];
        if (g->row != keep || !*g->text || g->text[strspn(g->text, "0123456789")]) continue;
        g->row = number;
        g->name = cli_rows[number].name;
    }
}

/* Whether an option does not go with --lr-find: it is about a training, and that is a search. */
static bool lr_find_excludes(const char *option)
{
    static const char *const names[] = {"out",
                                        "layout",
                                        "keep-training-mode",
                                        "epochs",
                                        "val-data",
                                        "val-target",
                                        "val-split",
                                        "val-every",
                                        "val-epochs",
                                        "metric",
                                        "best",
                                        "patience",
                                        "average",
                                        "checkpoint",
                                        "every",
                                        "resume",
                                        "keep-checkpoints",
                                        "time-limit",
                                        "schedule",
                                        "warmup",
                                        "min-lr",
                                        "power",
                                        "step-every",
                                        "step-factor",
                                        "decay-steps",
                                        "log",
                                        "log-every",
                                        "tensorboard",
                                        "html"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], option) == 0) return true;
    return false;
}

/* With --lr-find no option that is about a training; one of a file, which is of the training that a rate is looked for,
 * is passed over. */
static int leave_out_training(cli_options *o)
{
    size_t n = 0;
    int status = CLI_OK;
    if (!is_given(o, row_at(AT(lr_find)))) return CLI_OK;
    for (size_t i = 0; i < o->nsaid; i++) {
        const cli_given g = o->said[i];
        const bool excluded = lr_find_excludes(g.name);
        if (excluded && !g.file && status == CLI_OK)
            status = cli_usage(
                o, "--%s has no effect with --lr-find, which searches for a learning rate and keeps no weights",
                g.name);
        if (excluded) free(g.text);
        else o->said[n++] = g;
    }
    o->nsaid = n;
    return status;
}

/* Options of several words, "E GLOB", as popt wants them: in one. *n: how many arguments there are then. The caller
 * frees what `joined` lists, which the list ends with. */
static char **join_words(int command, int *n, char **argv, char ***joined)
{
    char **out = calloc((size_t)*n + 1, sizeof *out);
    int made = 0, at = 0;
    *joined = calloc((size_t)*n + 1, sizeof **joined);
    for (int i = 0; out && *joined && i < *n; i++) {
        const cli_row *r = NULL;
        for (int k = 0; k < CLI_NROWS; k++)
            if (cli_rows[k].argument && strchr(cli_rows[k].argument, ' ') && cli_rows[k].on >> command & 1u &&
                !strncmp(argv[i], "--", 2) && !strcmp(argv[i] + 2, cli_rows[k].name))
                r = &cli_rows[k];
        out[at++] = argv[i];
        if (!r || i + 2 >= *n || strchr(argv[i + 1], ' ')) continue;
        char *text = malloc(strlen(argv[i + 1]) + strlen(argv[i + 2]) + 2);
        if (!text) continue;
        sprintf(text, "%s %s", argv[i + 1], argv[i + 2]);
        out[at++] = (*joined)[made++] = text;
        i += 2;
    }
    *n = at;
    return out;
}

int cli_options_read(cli_options *o, int command, int argc, char **argv)
{
    *o = (cli_options){.command = command};
    cli_set_defaults(o);
    struct poptOption table[CLI_NROWS + 1];
    fill_table(command, table);
    char **joined = NULL, **words = join_words(command, &argc, argv, &joined);
    poptContext context =
        words ? poptGetContext("invonnx", argc, (const char **)words, table, POPT_CONTEXT_KEEP_FIRST) : NULL;
    int status = context ? CLI_OK : cli_fail("out of memory"), code;
    while (status == CLI_OK && (code = poptGetNextOpt(context)) != -1) {
        if (code < -1) status = popt_complaint(o, context, code);
        else status = add_given(o, code - 1, poptGetOptArg(context), NULL, 0);
    }
    const char *word;
    while (status == CLI_OK && (word = poptGetArg(context))) {
        char *own = strdup(word);
        status = own ? append(&o->argument, own) : cli_fail("out of memory");
    }
    poptFreeContext(context);
    for (int i = 0; joined && joined[i]; i++) free(joined[i]);
    free(joined);
    free(words);
    if (status == CLI_OK) status = take_files(o);
    if (status == CLI_OK) name_numbers_of_checkpoints(o);
    if (status == CLI_OK) status = leave_out_training(o);
    for (size_t i = 0; i < o->nsaid && status == CLI_OK; i++) status = apply_option(o, &o->said[i]);
    return status;
}

int cli_options_check(const cli_options *o)
{
    int status = CLI_OK;
    for (size_t i = 0; i < o->nsaid && status == CLI_OK; i++) {
        const cli_given *g = &o->said[i];
        const char *missing = cli_need_missing(o, cli_rows[g->row].need, g->text);
        if (missing)
            status = complain(o, g, "--%s%s%s: has no effect here; it needs %s", g->name, g->text ? " " : "",
                              g->text ? g->text : "", missing);
    }
    return status;
}

void cli_options_put(const cli_options *o, FILE *f, const char *between)
{
    if (o->argument.n) cli_setting_put(f, "model", o->argument.item[0]);
    for (size_t i = 0; i < o->nsaid; i++) {
        const cli_given *g = &o->said[i];
        bool counts = g->row != row_at(AT(options));
        for (size_t k = i + 1; k < o->nsaid && cli_rows[g->row].kind != CLI_ROW_LIST; k++)
            counts = counts && o->said[k].row != g->row;
        if (!counts) continue;
        fputs(between, f);
        cli_setting_put(f, g->name, g->text);
    }
}

void cli_options_fini(cli_options *o)
{
    for (int i = 0; i < CLI_NROWS; i++)
        if (cli_rows[i].kind == CLI_ROW_LIST) free(((cli_list *)(void *)((char *)o + cli_rows[i].offset))->item);
    for (size_t i = 0; i < o->nsaid; i++) free(o->said[i].text);
    for (size_t i = 0; i < o->argument.n; i++) free(o->argument.item[i]);
    free(o->argument.item);
    free(o->said);
    *o = (cli_options){0};
}
