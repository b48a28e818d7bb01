/* SPDX-License-Identifier: Apache-2.0
 * Whether an option that was given has an effect in this run: the rows of option_needs.inc. Looked at before anything
 * is read, said or written, so that no option is passed over. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/options/option_rows.h"
#include "cli/say/rank.h"
#include "data/source.h"

#define BIT(value) (1u << (value))

bool cli_on_host(const cli_options *o)
{
    return !o->device || strcmp(o->device, "cpu") == 0 || strcmp(o->device, "checked") == 0;
}

size_t cli_log_wanted(const cli_options *o) { return o->log.n + (o->tensorboard != NULL) + (o->html != NULL); }

/* --- data --- */

/* `compare` may have --feed in its place; the others want it, and say so. */
static bool has_data(const cli_options *o) { return o->command != CLI_CMD_compare || o->data.n > 0; }

static bool validates(const cli_options *o)
{
    return o->command != CLI_CMD_train || o->val_data.n > 0 || o->val_split > 0;
}

static bool is_there(const char *path)
{
    return access(path, F_OK) == 0 || strcmp(path, "-") == 0 || data_is_pattern(path);
}

/* The kind of one file, as a bit; all of them where it is of none, or not there: that is said when it is opened.
 * `text`: FILE or NAME=FILE, and either may hold '=' itself. */
static unsigned kind_of(const cli_options *o, const char *text, bool target)
{
    const data_request q = {.tokens = o->tokens, .target = target};
    const char *path = text;
    while (path && !is_there(path)) path = (path = strchr(path, '=')) ? path + 1 : NULL;
    const data_kind kind = path ? data_kind_of(&q, path) : DATA_UNKNOWN;
    return kind == DATA_UNKNOWN ? ~0u : BIT(kind);
}

/* The kinds of these files, as bits. */
static unsigned kinds_of(const cli_options *o, const cli_list *files, const char *target)
{
    unsigned kinds = target ? kind_of(o, target, true) : 0;
    for (size_t i = 0; i < files->n; i++) kinds |= kind_of(o, files->item[i], false);
    return kinds;
}

/* Whether one of these is a pipe, which is seen before it is opened. */
static bool has_pipe(const cli_options *o, const cli_list *files, const char *target)
{
    bool any = target && kind_of(o, target, true) == BIT(DATA_PIPE);
    for (size_t i = 0; i < files->n; i++) any = any || kind_of(o, files->item[i], false) == BIT(DATA_PIPE);
    return any;
}

/* Whether data to train on or to validate on are of this kind. What wants --data and has none says so. */
static bool reads(const cli_options *o, data_kind kind)
{
    const unsigned kinds = kinds_of(o, &o->data, o->target) | kinds_of(o, &o->val_data, o->val_target);
    return has_data(o) && (kinds == 0 || kinds & BIT(kind));
}

/* --- loss --- */

#define OF(loss) BIT(INV_LOSS_##loss)

/* Whether the command is refused without --loss. */
static bool wants_loss(const cli_options *o) { return o->command != CLI_CMD_explain && o->command != CLI_CMD_check; }

static bool is_loss(const cli_options *o, unsigned losses)
{
    return o->loss == INV_LOSS_NONE ? wants_loss(o) : (losses >> o->loss & 1u) != 0;
}

/* --- steps --- */

#define BY(optimizer) BIT(INV_OPT_##optimizer)
#define ADAMS (BY(ADAM) | BY(ADAMW) | BY(ADAMW8) | BY(LAMB) | BY(MUON))
enum {
    READS_MOMENTUM = BY(SGD) | BY(MOMENTUM) | BY(MUON),
    READS_BETA1 = ADAMS | BY(LION),
    READS_BETA2 = ADAMS | BY(LION) | BY(RMSPROP) | BY(ADAFACTOR),
    READS_EPSILON = ADAMS | BY(RMSPROP) | BY(ADAFACTOR),
    DECOUPLES = BY(ADAMW) | BY(ADAMW8) | BY(LION) | BY(LAMB) | BY(ADAFACTOR) | BY(MUON)
};

static bool updates_by(const cli_options *o, unsigned optimizers)
{
    return optimizers >> (o->optimizer == INV_OPT_NONE ? INV_OPT_SGD : o->optimizer) & 1u;
}

/* The same of some parameter: by the optimizer, or by one of a group. */
static bool updates_some_by(const cli_options *o, unsigned optimizers)
{
    bool any = updates_by(o, optimizers);
    for (size_t i = 0; i < o->group.n; i++)
        for (const cli_choice *c = cli_optimizers; c->word; c++) {
            const char *at = strstr(o->group.item[i], "optimizer=");
            any = any || (at && optimizers >> c->value & 1 && !strncmp(at + 10, c->word, strlen(c->word)));
        }
    return any;
}

static bool looks_ahead(const cli_options *o)
{
    return updates_some_by(o, BY(MOMENTUM)) || (updates_by(o, BY(SGD)) && o->momentum > 0);
}

/* --- how values are had --- */

static bool has_backward(const cli_options *o) { return o->command != CLI_CMD_explain || o->loss != INV_LOSS_NONE; }

/* Whether not everything is stored. `check` and `compare` go through modes themselves. */
static bool searches(const cli_options *o)
{
    return o->memory != INV_MEMORY_STORE || o->mode.n > 0 || o->command == CLI_CMD_compare ||
           o->command == CLI_CMD_check;
}

/* Of --mode GLOB=MODE. */
static bool is_mode(const char *text, const char *mode)
{
    const char *equals = strrchr(text, '=');
    return equals && strcmp(equals + 1, mode) == 0;
}

static bool inverts(const cli_options *o)
{
    bool any = o->memory == INV_MEMORY_AUTO || o->memory == INV_MEMORY_INVERT || o->command == CLI_CMD_check;
    for (size_t i = 0; i < o->mode.n; i++) any = any || is_mode(o->mode.item[i], "invert");
    return any;
}

/* --- several processes --- */

/* How many train together: those that are there, or that `plan` is asked about. */
static int64_t processes(const cli_options *o) { return o->command == CLI_CMD_plan ? o->ranks : cli_ranks(); }

/* --- what is written --- */

/* Of `adapter`: what is to be done. */
static bool is_word(const cli_options *o, const char *word)
{
    return o->argument.n > 0 && strcmp(o->argument.item[0], word) == 0;
}

const char *cli_need_missing(const cli_options *o, cli_need need, const char *value)
{
    switch (need) {
    case CLI_NEED_nothing: break;
#define NEED(name, met, text) \
    case CLI_NEED_##name:     \
        return (met) ? NULL : (text);
#include "option_needs.inc"
#undef NEED
    }
    return NULL;
}
