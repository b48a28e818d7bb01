/* SPDX-License-Identifier: Apache-2.0
 * The command line, read by popt from the rows of option_rows.inc, and the help that is generated from the same rows.
 * */
#include "cli.h"
#include "options_file.h"

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

const cli_choice cli_losses[] = {{"cross_entropy", INV_LOSS_CROSS_ENTROPY},
                                 {"mse", INV_LOSS_MSE},
                                 {"bce", INV_LOSS_BCE},
                                 {"huber", INV_LOSS_HUBER},
                                 {"nll", INV_LOSS_NLL},
                                 {"output", INV_LOSS_OUTPUT},
                                 {NULL, 0}};
const cli_choice cli_optimizers[] = {{"sgd", INV_OPT_SGD},
                                     {"momentum", INV_OPT_MOMENTUM},
                                     {"adam", INV_OPT_ADAM},
                                     {"adamw", INV_OPT_ADAMW},
                                     {"lion", INV_OPT_LION},
                                     {"rmsprop", INV_OPT_RMSPROP},
                                     {"lamb", INV_OPT_LAMB},
                                     {"adafactor", INV_OPT_ADAFACTOR},
                                     {"muon", INV_OPT_MUON},
                                     {"adamw8", INV_OPT_ADAMW8},
                                     {NULL, 0}};
const cli_choice cli_weights[] = {{"f32", INV_DT_NONE}, {"bf16", INV_BF16}, {NULL, 0}};
const cli_choice cli_schedules[] = {{"constant", INV_SCHEDULE_CONSTANT}, {"linear", INV_SCHEDULE_LINEAR},
                                    {"cosine", INV_SCHEDULE_COSINE},     {"polynomial", INV_SCHEDULE_POLYNOMIAL},
                                    {"step", INV_SCHEDULE_STEP},         {"one-cycle", INV_SCHEDULE_ONE_CYCLE},
                                    {"wsd", INV_SCHEDULE_WSD},           {NULL, 0}};
const cli_choice cli_memories[] = {{"store", INV_MEMORY_STORE},
                                   {"recompute", INV_MEMORY_RECOMPUTE},
                                   {"invert", INV_MEMORY_INVERT},
                                   {"auto", INV_MEMORY_AUTO},
                                   {NULL, 0}};
const cli_choice cli_modes[] = {{"store", INV_MEMORY_STORE},
                                {"recompute", INV_MEMORY_RECOMPUTE},
                                {"invert", INV_MEMORY_INVERT},
                                {"offload", INV_MEMORY_OFFLOAD},
                                {NULL, 0}};
const cli_choice cli_layouts[] = {
    {"keep", INV_LAYOUT_KEEP}, {"inline", INV_LAYOUT_INLINE}, {"external", INV_LAYOUT_EXTERNAL}, {NULL, 0}};
const cli_choice cli_windows[] = {{"random", CLI_WINDOWS_RANDOM}, {"sequential", CLI_WINDOWS_SEQUENTIAL}, {NULL, 0}};
const cli_choice cli_tokens[] = {{"uint8", 1}, {"uint16", 2}, {"uint32", 4}, {NULL, 0}};
const cli_choice cli_costs[] = {{"time", CLI_COST_TIME}, {"flops", CLI_COST_FLOPS}, {NULL, 0}};
const cli_choice cli_guards[] = {{"on", INV_GUARD_ON}, {"full", INV_GUARD_FULL}, {"off", INV_GUARD_OFF}, {NULL, 0}};

enum { ROW_FLAG, ROW_TEXT, ROW_LIST, ROW_INT, ROW_SIZE, ROW_REAL, ROW_CHOICE, ROW_LATER };

typedef struct row {
    int kind;
    size_t offset;
    const char *name;
    char letter;
    unsigned on; /* bit per command */
    const char *argument;
    const cli_choice *choices;
    double least;
    const char *help;
} row;

#define ON(command) (1u << CLI_CMD_##command)
#define ON_ALL ((1u << CLI_NCOMMANDS) - 1u)
#define ON_FEED (ON(explain) | ON(check) | ON(rewrite) | ON(run) | ON(grad) | ON(plan) | ON(compare))
#define ON_DATA (ON(train) | ON(eval) | ON(compare))
#define ON_LOSS (ON(explain) | ON(check) | ON(grad) | ON(plan) | ON(train) | ON(eval) | ON(compare))
#define ON_SESSION (ON_LOSS | ON(run))
#define ON_TRAINING (ON(explain) | ON(check) | ON(grad) | ON(plan) | ON(train) | ON(compare))

#define ON_PLANS (ON(plan) | ON(train) | ON(grad) | ON(compare))

#define AT(field) offsetof(cli_options, field)
#define FLAG(field, name, letter, on, help) {ROW_FLAG, AT(field), name, letter, on, NULL, NULL, 0, help},
#define TEXT(field, name, letter, on, arg, help) {ROW_TEXT, AT(field), name, letter, on, arg, NULL, 0, help},
#define LIST(field, name, letter, on, arg, help) {ROW_LIST, AT(field), name, letter, on, arg, NULL, 0, help},
#define INT(field, name, letter, on, arg, value, least, help) \
    {ROW_INT, AT(field), name, letter, on, arg, NULL, (double)(least), help},
#define SIZE(field, name, letter, on, arg, help) {ROW_SIZE, AT(field), name, letter, on, arg, NULL, 1, help},
#define REAL(field, name, letter, on, arg, value, least, help) \
    {ROW_REAL, AT(field), name, letter, on, arg, NULL, (double)(least), help},
#define CHOICE(field, name, letter, on, words, value, help) \
    {ROW_CHOICE, AT(field), name, letter, on, NULL, words, 0, help},
#define LATER(name, takes) {ROW_LATER, 0, name, 0, ON_ALL, (takes) ? "X" : NULL, NULL, 0, NULL},
static const row rows[] = {
#include "option_rows.inc"
};
enum { NROWS = sizeof rows / sizeof *rows };

static void set_defaults(cli_options *o)
{
#define FLAG(field, name, letter, on, help)
#define TEXT(field, name, letter, on, arg, help)
#define LIST(field, name, letter, on, arg, help)
#define INT(field, name, letter, on, arg, value, least, help) o->field = (value);
#define SIZE(field, name, letter, on, arg, help)
#define REAL(field, name, letter, on, arg, value, least, help) o->field = (value);
#define CHOICE(field, name, letter, on, words, value, help) o->field = (value);
#define LATER(name, takes)
#include "option_rows.inc"
}

const char *cli_choice_word(const cli_choice *choices, int value)
{
    for (; choices->word; choices++) {
        if (choices->value == value) return choices->word;
    }
    return "?";
}

const char *cli_option_name(const char *field)
{
    static const struct {
        const char *field, *name;
    } names[] = {
#define NAMED(field, name) {#field, "--" name},
#define FLAG(field, name, letter, on, help) NAMED(field, name)
#define TEXT(field, name, letter, on, arg, help) NAMED(field, name)
#define LIST(field, name, letter, on, arg, help) NAMED(field, name)
#define INT(field, name, letter, on, arg, value, least, help) NAMED(field, name)
#define SIZE(field, name, letter, on, arg, help) NAMED(field, name)
#define REAL(field, name, letter, on, arg, value, least, help) NAMED(field, name)
#define CHOICE(field, name, letter, on, words, value, help) NAMED(field, name)
#define LATER(name, takes)
#include "option_rows.inc"
#undef NAMED
        /* fields that are called otherwise, or are made of several options */
        {"loss_outputs", "--loss-output"},
        {"modes", "--mode"},
        {"inputs", "--batch, --dim, --feed"},
        {"groups", "--group"},
        {"tail_batch", "--drop-last"},
        {"stages", "--unfreeze-after"},
        {"constant_inputs", "--feed; of `train` and `eval` --data, a file that goes whole with every step"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].field, field) == 0) return names[i].name;
    return NULL;
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
    return complain(o, g, "--%s %s: %s", rows[g->row].name, g->text, wanted);
}

static int read_int(cli_options *o, const row *r, const cli_given *g)
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

static int read_size(cli_options *o, const row *r, const cli_given *g)
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

static int read_real(cli_options *o, const row *r, const cli_given *g)
{
    const char *text = g->text;
    char *end;
    double v = strtod(text, &end);
    /* the library takes 0 as "the default", which nobody who gives a number means */
    bool drift = r->offset == offsetof(cli_options, max_drift);
    if (drift && (end == text || *end || !isfinite(v) || v <= 0))
        return wrong_value(o, g, "wants a number above 0 (default 2e-5, with --float64 1e-8)");
    if (end == text || *end || !isfinite(v)) return wrong_value(o, g, "wants a number");
    if (v < r->least) return wrong_value(o, g, "must not be negative");
    *(double *)(void *)((char *)o + r->offset) = v;
    return CLI_OK;
}

static void describe_choices(FILE *f, const cli_choice *choices)
{
    for (const cli_choice *c = choices; c->word; c++) fprintf(f, "%s%s", c == choices ? "" : "|", c->word);
}

static int read_choice(cli_options *o, const row *r, const cli_given *g)
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
        describe_choices(f, r->choices);
        fclose(f);
    }
    return wrong_value(o, g, wanted);
}

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
    const row *r = &rows[g->row];
    void *field = (char *)o + r->offset;
    switch (r->kind) {
    case ROW_FLAG: *(bool *)field = true; return CLI_OK;
    case ROW_TEXT: *(char **)field = g->text; return CLI_OK;
    case ROW_LIST: return append(field, g->text);
    case ROW_INT: return read_int(o, r, g);
    case ROW_SIZE: return read_size(o, r, g);
    case ROW_REAL: return read_real(o, r, g);
    case ROW_CHOICE: return read_choice(o, r, g);
    default: return complain(o, g, "--%s: not in this version", r->name);
    }
}

static size_t fill_table(int command, struct poptOption *table)
{
    size_t n = 0;
    for (int i = 0; i < NROWS; i++) {
        if (!(rows[i].on >> command & 1u)) continue;
        bool takes = rows[i].argument || rows[i].choices;
        table[n++] = (struct poptOption){
            rows[i].name, rows[i].letter, takes ? POPT_ARG_STRING : POPT_ARG_NONE, NULL, i + 1, NULL, NULL};
    }
    table[n] = (struct poptOption)POPT_TABLEEND;
    return n;
}

static int named_for; /* the command of which option_at has the options */

static const char *option_at(size_t i)
{
    return rows[i].kind != ROW_LATER && rows[i].on >> named_for & 1u ? rows[i].name : NULL;
}

/* `option` as it was given, with or without dashes, is none of the command's. */
static int unknown_option(const cli_options *o, const cli_given *g, const char *option)
{
    const char *dashes = *option == '-' ? "--" : "", *word = option + strspn(option, "-");
    char *name = strndup(word, strcspn(word, "="));
    if (!name) return cli_fail("out of memory");
    int i = 0;
    while (i < NROWS && strcmp(rows[i].name, name) != 0) i++;
    named_for = o->command;
    const char *near = cli_nearest(name, NROWS, option_at);
    free(name);
    if (i < NROWS) return complain(o, g, "%s does not apply to `%s`", option, cli_commands[o->command].name);
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
    o->said[o->nsaid++] = (cli_given){.row = at, .name = rows[at].name, .text = text, .file = file, .line = line};
    return CLI_OK;
}

/* The row of a field; an option of the command. */
static int row_at(size_t offset)
{
    int i = 0;
    while (rows[i].kind == ROW_LATER || rows[i].offset != offset) i++;
    return i;
}

/* A line of a file of options. */
static int take_setting(cli_options *o, const cli_setting *s, const char *file)
{
    const cli_given here = {.file = file, .line = s->line};
    const char *word = s->name + strspn(s->name, "-");
    const char letter = word[0] && !word[1] ? word[0] : ' ';
    int i = 0;
    while (i < NROWS &&
           !(rows[i].on >> o->command & 1u && (rows[i].letter == letter || strcmp(rows[i].name, word) == 0)))
        i++;
    if (i == NROWS) return unknown_option(o, &here, s->name);
    const bool takes = rows[i].argument || rows[i].choices;
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
        g->name = rows[number].name;
    }
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
        const bool excluded = cli_lr_find_excludes(g.name);
        if (excluded && !g.file && status == CLI_OK)
            status = cli_usage(
                o, "--%s does not go with --lr-find, which looks for a learning rate and keeps no weights", g.name);
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
        const row *r = NULL;
        for (int k = 0; k < NROWS; k++)
            if (rows[k].argument && strchr(rows[k].argument, ' ') && rows[k].on >> command & 1u &&
                !strncmp(argv[i], "--", 2) && !strcmp(argv[i] + 2, rows[k].name))
                r = &rows[k];
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
    set_defaults(o);
    struct poptOption table[NROWS + 1];
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

void cli_options_put(const cli_options *o, FILE *f, const char *between)
{
    if (o->argument.n) cli_setting_put(f, "model", o->argument.item[0]);
    for (size_t i = 0; i < o->nsaid; i++) {
        const cli_given *g = &o->said[i];
        bool counts = g->row != row_at(AT(options));
        for (size_t k = i + 1; k < o->nsaid && rows[g->row].kind != ROW_LIST; k++)
            counts = counts && o->said[k].row != g->row;
        if (!counts) continue;
        fputs(between, f);
        cli_setting_put(f, g->name, g->text);
    }
}

void cli_options_fini(cli_options *o)
{
    for (int i = 0; i < NROWS; i++)
        if (rows[i].kind == ROW_LIST) free(((cli_list *)(void *)((char *)o + rows[i].offset))->item);
    for (size_t i = 0; i < o->nsaid; i++) free(o->said[i].text);
    for (size_t i = 0; i < o->argument.n; i++) free(o->argument.item[i]);
    free(o->argument.item);
    free(o->said);
    *o = (cli_options){0};
}

static void print_option(const row *r)
{
    char left[128] = "";
    FILE *f = fmemopen(left, sizeof left, "w");
    if (!f) return;
    if (r->letter) fprintf(f, "-%c, ", r->letter);
    fprintf(f, "--%s", r->name);
    if (r->argument) fprintf(f, " %s", r->argument);
    if (r->choices) {
        fputc(' ', f);
        describe_choices(f, r->choices);
    }
    fclose(f);
    if (strlen(left) > 30) printf("  %s\n  %-30s  %s\n", left, "", r->help);
    else printf("  %-30s  %s\n", left, r->help);
}

void cli_help(int command)
{
    if (command < 0) {
        printf("invonnx %s: trains imported ONNX models in little memory\n\nusage: invonnx COMMAND ...\n\n",
               inv_version());
        for (int i = 0; i < CLI_NCOMMANDS; i++) printf("  %-10s%s\n", cli_commands[i].name, cli_commands[i].line);
        printf("\n`invonnx COMMAND --help` has the options; --json gives one JSON object on stdout.\n"
               "Exit status: 0 done, 1 the model or data cannot be served, 2 wrong usage.\n"
               "Pages that messages name (docs/...) are in the source tree, and in share/doc/invonnx of an install.\n");
        return;
    }
    const cli_command *c = &cli_commands[command];
    printf("usage: invonnx %s%s%s [options]\n\n%s\n\n", c->name, *c->args ? " " : "", c->args, c->line);
    for (int i = 0; i < NROWS; i++) {
        if (rows[i].kind != ROW_LATER && rows[i].on >> command & 1u) print_option(&rows[i]);
    }
    printf(
        "\nA GLOB that equals a name means that name; options with GLOB or NAME may be repeated.\n\nexample:\n  %s\n",
        c->example);
}
