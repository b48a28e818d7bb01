/* SPDX-License-Identifier: Apache-2.0
 * The rows of option_rows.inc as data: their defaults, the words of closed lists, which of them a command has. */
#include "cli/options/option_rows.h"

#include <assert.h>
#include <math.h>
#include <string.h>

const cli_command cli_commands[CLI_NCOMMANDS] = {
#define COMMAND(name, args, line, about, first, example) {#name, args, line, about, first, example},
#include "commands.inc"
#undef COMMAND
};

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
const cli_choice cli_shards[] = {
    {"none", INV_SHARD_NONE}, {"optimizer", INV_SHARD_OPTIMIZER}, {"gradients", INV_SHARD_GRADIENTS}, {NULL, 0}};
const cli_choice cli_precisions[] = {
    {"full", INV_PRECISION_FULL}, {"tf32", INV_PRECISION_TF32}, {"bf16", INV_PRECISION_BF16}, {NULL, 0}};
const cli_choice cli_guards[] = {{"on", INV_GUARD_ON}, {"full", INV_GUARD_FULL}, {"off", INV_GUARD_OFF}, {NULL, 0}};

#define ON(command) (1u << CLI_CMD_##command)
#define ON_ALL ((1u << CLI_NCOMMANDS) - 1u)
#define ON_FEED (ON(explain) | ON(check) | ON(rewrite) | ON(run) | ON(grad) | ON(plan) | ON(compare))
/* Beside the commands, in the same column: what it needs to have an effect there. */
#define NEEDS(name) ((unsigned)CLI_NEED_##name << NEED_AT)
enum { NEED_AT = 16 };
_Static_assert((int)CLI_NCOMMANDS <= (int)NEED_AT, "commands and needs have bits of their own");
#define ON_DATA (ON(train) | ON(eval) | ON(compare))
#define ON_LOSS (ON(explain) | ON(check) | ON(grad) | ON(plan) | ON(train) | ON(eval) | ON(compare))
#define ON_SESSION (ON_LOSS | ON(run))
#define ON_TRAINING (ON(explain) | ON(check) | ON(grad) | ON(plan) | ON(train) | ON(compare))

/* Of ON_TRAINING those that take one memory mode; `check` looks at all, and guards all. */
#define ON_STEPS (ON_TRAINING & ~ON(check))
#define ON_PLANS (ON(plan) | ON(train) | ON(grad) | ON(compare))

#define AT(field) offsetof(cli_options, field)
#define USE(on) ((on)&ON_ALL), (cli_need)((on) >> NEED_AT)
#define GROUP(title) {CLI_ROW_GROUP, 0, "", 0, USE(0u), NULL, NULL, 0, title},
#define FLAG(field, name, letter, on, help) {CLI_ROW_FLAG, AT(field), name, letter, USE(on), NULL, NULL, 0, help},
#define TEXT(field, name, letter, on, arg, help) {CLI_ROW_TEXT, AT(field), name, letter, USE(on), arg, NULL, 0, help},
#define LIST(field, name, letter, on, arg, help) {CLI_ROW_LIST, AT(field), name, letter, USE(on), arg, NULL, 0, help},
#define INT(field, name, letter, on, arg, value, least, help) \
    {CLI_ROW_INT, AT(field), name, letter, USE(on), arg, NULL, (double)(least), help},
#define SIZE(field, name, letter, on, arg, help) {CLI_ROW_SIZE, AT(field), name, letter, USE(on), arg, NULL, 1, help},
#define REAL(field, name, letter, on, arg, value, least, help) \
    {CLI_ROW_REAL, AT(field), name, letter, USE(on), arg, NULL, (double)(least), help},
#define CHOICE(field, name, letter, on, words, value, help) \
    {CLI_ROW_CHOICE, AT(field), name, letter, USE(on), NULL, words, 0, help},
const cli_row cli_rows[CLI_NROWS] = {
#include "option_rows.inc"
};
void cli_set_defaults(cli_options *o)
{
#define GROUP(title)
#define FLAG(field, name, letter, on, help)
#define TEXT(field, name, letter, on, arg, help)
#define LIST(field, name, letter, on, arg, help)
#define INT(field, name, letter, on, arg, value, least, help) o->field = (value);
#define SIZE(field, name, letter, on, arg, help)
#define REAL(field, name, letter, on, arg, value, least, help) o->field = (value);
#define CHOICE(field, name, letter, on, words, value, help) o->field = (value);
#include "option_rows.inc"
}

const char *cli_choice_word(const cli_choice *choices, int value)
{
    for (; choices->word; choices++) {
        if (choices->value == value) return choices->word;
    }
    return "?";
}

static int named_for;

void cli_option_names_for(int command) { named_for = command; }

const char *cli_option_name(const char *field)
{
    static const struct {
        const char *field, *name, *of_train; /* the last for commands that have it not */
        unsigned on;
    } names[] = {
#define GROUP(title)
#define NAMED(field, name, on) {#field, "--" name, (on)&ON(train) ? "--" name " of `train`" : "--" name, on},
#define FLAG(field, name, letter, on, help) NAMED(field, name, on)
#define TEXT(field, name, letter, on, arg, help) NAMED(field, name, on)
#define LIST(field, name, letter, on, arg, help) NAMED(field, name, on)
#define INT(field, name, letter, on, arg, value, least, help) NAMED(field, name, on)
#define SIZE(field, name, letter, on, arg, help) NAMED(field, name, on)
#define REAL(field, name, letter, on, arg, value, least, help) NAMED(field, name, on)
#define CHOICE(field, name, letter, on, words, value, help) NAMED(field, name, on)
#include "option_rows.inc"
#undef NAMED
        /* fields that are called otherwise, or are made of several options */
        {"loss_outputs", "--loss-output", NULL, ON_ALL},
        {"modes", "--mode", NULL, ON_ALL},
        {"inputs", "--batch, --dim, --feed", NULL, ON_ALL},
        {"groups", "--group", NULL, ON_ALL},
        {"tail_batch", "--drop-last", "--drop-last of `train`", ON(train)},
        {"stages", "--unfreeze-after", NULL, ON_ALL},
        {"classes", "--head", NULL, ON_ALL},
        {"targets", "--lora", NULL, ON_ALL},
        {"size", "--ranks", NULL, ON_ALL}, /* of a world */
        {"on_host", "--ranks-per-host", NULL, ON_ALL},
        {"latency", "--network", NULL, ON_ALL},
        {"bytes_per_second", "--network", NULL, ON_ALL},
        {"busy", "--network", NULL, ON_ALL},
        {"constant_inputs", "--feed; of `train` and `eval` --data, a file that goes whole with every step", NULL,
         ON_ALL}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i].field, field) != 0) continue;
        const bool there = names[i].on >> named_for & 1u, steps = ON_LOSS >> named_for & 1u;
        return there || !steps ? names[i].name : names[i].of_train;
    }
    return NULL;
}

void cli_row_argument(FILE *f, const cli_row *r)
{
    for (const cli_choice *c = r->choices; c && c->word; c++) fprintf(f, "%s%s", c == r->choices ? "" : "|", c->word);
    if (r->argument) fputs(r->argument, f);
}

char *cli_row_argument_text(const cli_row *r)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f) return NULL;
    cli_row_argument(f, r);
    fclose(f);
    return text;
}

/* The row of an option by its name. */
static const cli_row *row_of(const char *name, size_t n)
{
    const cli_row *r = cli_rows;
    for (; strlen(r->name) != n || strncmp(r->name, name, n) != 0; r++) assert(r < cli_rows + CLI_NROWS - 1);
    return r;
}

size_t cli_rows_of(int command, const cli_row **out)
{
    static const cli_row most_used = {.kind = CLI_ROW_GROUP, .help = "Used most"};
    const char *first = cli_commands[command].first;
    const cli_row *group = NULL;
    size_t n = 0, nfirst;
    if (*first) out[n++] = &most_used;
    for (const char *word = first; *word; word += strspn(word, " ")) {
        const size_t length = strcspn(word, " ");
        out[n++] = row_of(word, length);
        word += length;
    }
    nfirst = n;
    for (int i = 0; i < CLI_NROWS; i++) {
        const cli_row *r = &cli_rows[i];
        if (r->kind == CLI_ROW_GROUP) group = r;
        if (!(r->on >> command & 1u)) continue;
        bool again = false;
        for (size_t k = 1; k < nfirst; k++) again = again || out[k] == r;
        if (again) continue;
        if (group) out[n++] = group;
        group = NULL;
        out[n++] = r;
    }
    return n;
}

char *cli_rows_remark(const cli_row *const *rows, size_t n)
{
    const char *between = "May be repeated: ";
    bool globs = false;
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f) return NULL;
    for (size_t i = 0; i < n; i++) globs = globs || (rows[i]->argument && strstr(rows[i]->argument, "GLOB"));
    if (globs) fputs("A GLOB that equals a name matches it, even with brackets in the name. ", f);
    for (size_t i = 0; i < n; i++) {
        if (rows[i]->kind != CLI_ROW_LIST) continue;
        fprintf(f, "%s--%s", between, rows[i]->name);
        between = ", ";
    }
    fputc('.', f);
    fclose(f);
    return text;
}
