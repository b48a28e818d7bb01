/* SPDX-License-Identifier: Apache-2.0
 * Shared by the files of the program `invonnx`: options, the job that every command works on, messages, tables. */
#ifndef INVONNX_CLI_H
#define INVONNX_CLI_H

#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700
#endif

#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "data/loader.h"
#include "invonnx/invonnx.h"
#include "pictures/picture.h"
#include "pictures/report_text.h"

/** Exit statuses, as the manual promises them. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

#define CLI_PRINTF(text, first) __attribute__((format(printf, text, first)))

/* --- options --- */

enum {
#define COMMAND(name, args, line, about, first, example) CLI_CMD_##name,
#include "cli/options/commands.inc"
#undef COMMAND
    CLI_NCOMMANDS
};

typedef struct cli_list {
    char **item;
    size_t n;
} cli_list;

typedef struct cli_choice {
    const char *word; /* NULL ends the list */
    int value;
} cli_choice;

extern const cli_choice cli_losses[], cli_optimizers[], cli_schedules[], cli_weights[], cli_memories[], cli_modes[],
    cli_guards[], cli_precisions[], cli_shards[], cli_layouts[], cli_costs[], cli_windows[], cli_tokens[];
enum { CLI_WINDOWS_RANDOM, CLI_WINDOWS_SEQUENTIAL };
enum { CLI_COST_DEFAULT, CLI_COST_TIME, CLI_COST_FLOPS };
enum { CLI_SHARD_OPEN = -1 }; /* --shard was not given */

/** An option as it was given. */
typedef struct cli_given {
    int row;          /* of option_rows.inc */
    const char *name; /* without dashes */
    char *text;       /* NULL: it takes none */
    const char *file; /* file of options that has it; NULL: the command line */
    int line;         /* of that file */
} cli_given;

/** What the command line said. Fields named in option_rows.inc; `argument` are the words that are no options. */
typedef struct cli_options {
    int command;
    cli_list argument;
    cli_given *said; /* all of them in order, those of files first; their texts are those of the fields */
    size_t nsaid;
#define GROUP(title)
#define FLAG(field, name, letter, on, help) bool field;
#define TEXT(field, name, letter, on, arg, help) char *field;
#define LIST(field, name, letter, on, arg, help) cli_list field;
#define INT(field, name, letter, on, arg, value, least, help) int64_t field;
#define SIZE(field, name, letter, on, arg, help) int64_t field;
#define REAL(field, name, letter, on, arg, value, least, help) double field;
#define CHOICE(field, name, letter, on, words, value, help) int field;
#include "cli/options/option_rows.inc"
} cli_options;

typedef struct cli_command {
    const char *name, *args, *line;
    const char *about; /* a paragraph or two, for its page */
    const char *first; /* names of the options that are used most, ten at most */
    const char *example;
} cli_command;
extern const cli_command cli_commands[CLI_NCOMMANDS];

#define COMMAND(name, args, line, about, first, example) int cli_main_##name(const cli_options *o);
#include "cli/options/commands.inc"
#undef COMMAND

/** Reads `argv` (without program and command name), and the files of options that it names.
 *  @return CLI_OK, or what was said on stderr; cli_options_fini in any case */
int cli_options_read(cli_options *o, int command, int argc, char **argv);
/** Refuses what has no effect in this run (option_needs.inc). @return CLI_OK, or what was said */
int cli_options_check(const cli_options *o);
/** Writes MODEL and options as --options reads them, with `between` between them, "\n" in a file. */
void cli_options_put(const cli_options *o, FILE *f, const char *between);
void cli_options_fini(cli_options *o);
/** What `--help` shows; of all commands if `command` is -1 (help.c). */
void cli_help(int command);
/** Writes manual pages, completions of shells and the reference of the documents into a folder, all from the rows of
 *  commands and options (manual.c, completion.c). @return CLI_OK, or what was said */
int cli_write_pages(const char *folder);
const char *cli_choice_word(const cli_choice *choices, int value);
/** The option by which a field of the library's options is given, "--train-only"; NULL: by none. */
const char *cli_option_name(const char *field);
/** Whether --device is one of the host. */
bool cli_on_host(const cli_options *o);
/** How many files of a log options name. */
size_t cli_log_wanted(const cli_options *o);
/** Of the commands that take a step, these call an option of `train` that they have not "--drop-last of `train`". */
void cli_option_names_for(int command);

/* --- messages --- */

/** Text with control characters written as \u001b, and in lines that fit the terminal, if it is one; `column`: where
 * the text begins. Messages go through it, and after cli_plain_stdout all of stdout, in lines that fit if `wrapped`. */
void cli_put_plain(FILE *f, const char *text, size_t n, size_t column);
void cli_plain_stdout(bool wrapped);
/** How wide a terminal is; 0: it is none. */
size_t cli_columns(int fd);
/** Whether colours go to a descriptor: a terminal that is not dumb, and NO_COLOR is not set. */
bool cli_has_colours(int fd);
/** A line on stdout, bold where there are colours. */
void cli_heading(const char *text);

/** "invonnx: MESSAGE" on stderr. @return CLI_FAILED */
int cli_fail(const char *format, ...) CLI_PRINTF(1, 2);
/** Says a failure as cli_fail does. @return false: another rank has the word */
bool cli_put_failure(const char *format, va_list args);
/** The same with a hint to the help. @return CLI_USAGE */
int cli_usage(const cli_options *o, const char *format, ...) CLI_PRINTF(2, 3);
/** A remark on stderr, not an error; not with -q. */
void cli_note(const char *format, ...) CLI_PRINTF(1, 2);
/** Something to be known whatever the options say, as where the weights of a run that failed are. */
void cli_warn(const char *format, ...) CLI_PRINTF(1, 2);
/** A line of what a run is for people: all of them go to one stream, stdout, or stderr where that is for --json.
 *  Nothing with -q. */
void cli_say(const char *format, ...) CLI_PRINTF(1, 2);
/** The descriptor of that stream. */
int cli_run_fd(void);
/** Of name_at(0) to name_at(n - 1), NULL ones apart, that which is nearest to `word`; NULL if none is near. */
const char *cli_nearest(const char *word, size_t n, const char *(*name_at)(size_t i));
/** What other trainers call an option (other_words.inc). */
typedef struct cli_other_word {
    const char *theirs, *ours, *more; /* `ours`, `more`: NULL where there is nothing to say */
} cli_other_word;
/** NULL: nobody calls an option so. A '_' is as good as a '-'. */
const cli_other_word *cli_other_word_of(const char *word);
/** More for the JSON of the failure that has been said: the members of an object. */
void cli_fail_details(json_t *details);
/** What -q and --json change of all these. */
void cli_hush(bool quiet, bool json);
/** At the end of the program: what failed, for programs, which with --json find one object on stdout in any case. */
void cli_end_messages(int status);

/* --- the job of a command: model, session, and the arrays they are given --- */

/** An input or output of the model as the file declares it. */
typedef struct cli_port {
    const char *name, *label; /* owned by the job's inspection; label: for messages */
    inv_dtype dtype;
    int rank;                   /* -1: not declared */
    int64_t dims[NPY_MAX_RANK]; /* -1: symbolic or unknown */
    const char *symbol[NPY_MAX_RANK];
} cli_port;

typedef struct cli_metrics cli_metrics;

typedef struct cli_job {
    const cli_options *o;
    const char *path;
    inv_context *ctx;
    inv_model *model;
    inv_session *session;
    json_t *inspection, *shown; /* as it is, and for listings */
    json_t *head;               /* of --head: what has become of the head; NULL: it has been said, or there is none */
    cli_port *inputs, *outputs;
    size_t ninputs, noutputs;
    npy_array *feeds;  /* one per input */
    inv_array *arrays; /* one per input, what the library is given */
    npy_array target_file;
    inv_array target;
    bool has_target;
    bool missing;         /* entries of the target may be missing */
    inv_world *world;     /* ranks that train together; NULL: this process is alone */
    int shard;            /* what they share (inv_shard) */
    cli_metrics *metrics; /* what evaluation computes beside the loss; NULL: nothing (metrics.h) */
} cli_job;

/** A context with the plugins that options name; NULL after saying why not. */
inv_context *cli_context(const cli_options *o);
/** Context, model, and what the file declares. On failure everything is said; call cli_close all the same. */
int cli_open(cli_job *job, const cli_options *o);
void cli_close(cli_job *job);
/** Says what --head has done, once: when all options have been looked at, and are right. */
void cli_say_head(cli_job *job);
/** Says what the library complains of. @return CLI_FAILED */
int cli_library_failed(const cli_job *job, inv_status status);
/** Session options from the command line, `job->arrays` and `job->target`; the lists inside live in `hold`. */
typedef struct cli_hold {
    inv_mode_rule *modes;
    char **globs;
    double *weights;
    char *plan;
    inv_param_group *groups;
    char **group_texts; /* their globs; NULL behind them */
    inv_context *ctx;   /* of `costs` */
    inv_cost_table *costs;
} cli_hold;
int cli_session_options(const cli_job *job, inv_purpose purpose, inv_session_options *so, cli_hold *hold);
void cli_hold_fini(cli_hold *hold);
/** Whether --average is a mean of several weights after so many steps. */
bool cli_average_of_several(const cli_options *o, int64_t step);
/** Refuses --average where it is none at the end. @return CLI_OK, or what was said */
int cli_average_check(const cli_options *o, int64_t total);
/** The two in one, for commands that change nothing in between. */
int cli_start(cli_job *job, inv_purpose purpose, bool plan_only);
/** `--dump-passes`: makes its folder, and has what is compiled with these options written there (dump_passes.c). */
int cli_dump_passes(const cli_options *o, inv_session_options *so);
/** A report of the library as JSON; frees the text. NULL after saying why. */
json_t *cli_parse_report(const cli_job *job, char *text);
/** The session's report; NULL after saying why. Caller's reference. */
json_t *cli_report(const cli_job *job);
/** What the session can explain; likewise. */
json_t *cli_explanation(const cli_job *job);
/** Prints the session's report as it is: that of a large graph is not read and written again. */
int cli_print_report(const cli_job *job);
/** Prints an object on stdout. */
int cli_print_json(const json_t *object);
int cli_print_text(const char *object);
/** A number, or null where JSON has none. */
json_t *cli_json_real(double x);
const char *cli_dtype_name(inv_dtype t);
/** INV_DT_NONE: there is no type of this name. */
inv_dtype cli_dtype_named(const char *name);

/* --- arrays for the model --- */

/** `--feed` into job->feeds and job->arrays. Everything wrong is listed at once. */
int cli_feed(cli_job *job);
/** Shapes without data, from the model, `--batch` and `--dim`; from files where `--feed` gives some. */
int cli_shapes(cli_job *job);
/** `--target` into job->target, if the loss takes one. `required`: it has to be there. */
int cli_target(cli_job *job, bool required);
bool cli_loss_takes_target(int loss);
/** For the files of `list` (NAME=FILE or FILE): which input each belongs to. Complaints go to `why`. */
bool cli_assign(const cli_job *job, const cli_list *list, const char *option, const char **file_of_input, FILE *why);
/** True if the array can be the input; else complains. `rows`: dimension 0 counts rows and may be any number. */
bool cli_fits(const cli_port *port, const npy_array *a, bool rows, FILE *why);
/** Says that integers are fed to a floating-point input, and how they are taken. */
void cli_note_integers(const cli_port *port, const npy_array *a, const char *path);
inv_array cli_array_of(const char *name, const npy_array *a);

/* --- rows of data for train and eval (data.c) --- */

/** One argument of --data, or the target's. */
typedef struct cli_data_part {
    data_source source;
    const char *path;
    bool whole; /* not made of rows; every step gets all of it */
    void *copy; /* ... aligned, where the file has it otherwise */
    size_t fed; /* place among the sources that give rows */
} cli_data_part;

/** What the model's file says of the data that it was trained on (trained_on.c). */
typedef struct cli_trained_on {
    bool pictures;
    int64_t resize;        /* 0: what just covers the model's extents */
    const char *normalize; /* the model's */
    char **classes;        /* NULL: they have no names */
    int64_t nclasses;
} cli_trained_on;

typedef struct cli_data {
    cli_job *job;
    cli_trained_on trained;
    size_t ninputs;
    cli_data_part *input; /* per input, then the target's own, if it has one */
    size_t target_from;   /* the part that has the target */
    bool has_target;
    bool stacked;  /* rows are entries: what a step gets has all axes but the first */
    bool borrowed; /* the sources are another's, as of rows that were split off */
    int64_t nrows;
    const data_source *known; /* names of classes that labels are to count by; NULL: the data's own */
    bool told_missing;        /* it has been said that some of the target is missing */
    int64_t classes;          /* of the output that labels are of; -1: not known */
    bool augment;             /* rows are to be trained on */
    data_order order;         /* which row is where in an epoch */
    uint64_t epoch;
    data_loader *loader;
    data_source **fed;
    bool (*wanted)[DATA_FIELDS];
    size_t nfed;
    const data_batch *batch; /* the present batch, and what is given to the library of it */
    inv_array *arrays;
    inv_array target_array;
    int64_t (*dims)[NPY_MAX_RANK]; /* per input, then of the target: the batch's extents */
    bool ahead;                    /* cli_data_ahead is to find something */
    inv_array *next;               /* the same of the batch behind it: inputs, then the target */
    int64_t (*next_dims)[NPY_MAX_RANK];
} cli_data;

/** Opens what the options name. `like`: NULL, or data whose classes are known by name, which labels then count by.
 *  @return CLI_OK, or what was said; cli_data_close in any case */
int cli_data_open(cli_job *job, cli_data *data, const cli_list *files, const char *target, const char *what,
                  const cli_data *like);
/** Reads what the file says into data->trained, which belongs to data that is not borrowed. */
void cli_trained_on_read(cli_data *data);
void cli_trained_on_close(cli_data *data);
/** Says what of it is taken, and which options say otherwise. */
void cli_trained_on_tell(const cli_data *data);
/** Models that are written from now on say it of these data. @return CLI_OK, or what was said */
int cli_trained_on_write(const cli_data *data);
/** The names of the classes in the order of their labels, null for one that is not UTF-8; caller's reference. NULL:
 * they have none. */
json_t *cli_data_class_names(const cli_data *data);
/** Adds them to a report, if there are any. */
void cli_data_classes_json(json_t *report, const cli_data *data);
/** Refuses more epochs than rows come, and rows again that came before. @return CLI_OK, or what was said */
int cli_data_check_epochs(const cli_data *data, int64_t epochs, bool resumed);
/** An array of a source with the axis that counts rows, as a file would hold it. */
npy_array cli_source_shape(const data_source *s, int field);
/** Threads that the step has, which is what else is worth having for what computes. */
int cli_data_threads(const cli_options *o);
/** Splits a share of the rows off, by the seed: `held` has them from now on, as long as `data` is open. Before
 *  cli_data_reserve. @return CLI_OK, or what was said */
int cli_data_split(cli_data *data, double share, cli_data *held);
/** How long the steps have waited for data, and reading for the steps. */
void cli_data_say_waits(const cli_data *data);
/** Room for batches of at most `batch` rows, and the threads that prepare them. */
int cli_data_reserve(cli_data *data, int64_t batch);
void cli_data_close(cli_data *data);
/** From now on batches are of this epoch, from 1 on. Order and what is drawn are functions of seed, epoch and place. */
void cli_data_epoch(cli_data *data, uint64_t epoch);
/** Rows [start, start + n) of the epoch's order as arrays and target_array, valid until the next call; n 0: of a rank
 *  that has none. Any place may be asked for, so a run goes on at (epoch, start) without the rows before it.
 *  @return CLI_OK, or what was said */
int cli_data_batch(cli_data *data, int64_t start, int64_t n);
/** Of data with `ahead`: the arrays of what is to be asked for behind the present batch, inputs and then the target,
 * which stay where they are till then; NULL: they are not at hand. What is wrong with them cli_data_batch says. */
const inv_array *cli_data_ahead(cli_data *data, uint64_t epoch, int64_t start, int64_t n);
/** Creates the session. Inputs that go whole into every step may decide shapes and branches: where they do, they are
 *  constants of the session. */
inv_status cli_data_session(cli_job *job, const cli_data *data, inv_session_options *so);
/** Writes which rows of the files the present batch has, and which of them hold NaN or inf. @return whether any do */
bool cli_data_blame(const cli_data *data, FILE *f);
/** Compares int64_t, for qsort: the smaller comes first. */
int cli_by_number(const void *a, const void *b);
/** Rows of a batch: `--batch`, else as the model fixes it, else 32, never more than there are; of stacked files 1. */
int64_t cli_batch_rows(const cli_job *job, int64_t nrows);
/** Dimension 0 of the first input as the file fixes it; -1 if it does not. */
int64_t cli_fixed_batch(const cli_job *job);

/* --- labels (labels.c) --- */

/** The output that the loss is taken of, if it is clear from the declaration; else NULL. */
const cli_port *cli_loss_port(const cli_job *job);
/** Classes of that output, which `labels` with their axes are of, if its declaration and they tell; else -1. */
int64_t cli_classes(const cli_job *job, const npy_array *labels);
/** Whether an entry of the target does not count: --ignore-index, and of values NaN. */
bool cli_is_missing(const cli_options *o, double target);
/** Finds the first entry that the loss does not take: a label that is not in [0, classes), soft targets that are no
 *  shares, targets of bce outside of 0...1. @param why what it is, and why it is wrong */
bool cli_bad_target(const cli_job *job, const npy_array *t, int64_t classes, size_t *at, FILE *why);
/** Says if labels are the tokens at the same places, as where they are not shifted yet. */
void cli_tell_copied(const cli_data *data);
/** Entries of values that are missing. */
int64_t cli_count_missing(const cli_job *job, const npy_array *t);
/** Looks at all of a target; says how much of it is missing. @param from where it is mapped, NULL: in `t` itself.
 *  @return CLI_OK, or what was said */
int cli_check_target(cli_job *job, const npy_array *t, const char *path, const data_source *from);

/** A number by its name: what validation finds out beside the loss. */
typedef struct cli_metric {
    const char *name;
    double value; /* NaN: the rows do not tell */
    bool falls;   /* less of it is better */
} cli_metric;

typedef struct cli_score {
    double loss; /* mean over rows, or over the labels that count */
    int64_t rows, correct;
    int64_t samples;
    const cli_metric *metrics; /* borrowed from the job, until data are scored again */
    size_t nmetrics;
    const json_t *confusion;   /* rows of counts per class; NULL: not asked for */
    const json_t *class_names; /* of its rows, in front; NULL: they have none */
} cli_score;
/** Loss and correct rows over the first `nrows` rows of the order, `batch` at a time. `stop`: NULL, or ends it early.
 */
int cli_score_data(cli_job *job, cli_data *data, int64_t batch, int64_t nrows, bool (*stop)(void), cli_score *score);
/** Adds loss and metrics to a JSON object, with `prefix` before the names. */
void cli_score_json(json_t *object, const char *prefix, const cli_score *score);

/* --- nothing that is read is overwritten (files.c) --- */

/** `path`, which `option` `given` makes the command write, is none of the files that the command reads.
 *  @return CLI_OK, or what was said */
int cli_check_write(const cli_job *job, const char *option, const char *given, const char *path);
/** The same for all files that options name, and that they are different files. cli_open calls it; what --dump writes
 *  is known only with the session. */
int cli_check_writes(const cli_job *job);

/* --- the trained model's file (output_model.c) --- */

/** Whether `-o` can be written; `path`: what to write, caller frees.
 *  @return CLI_OK, or what was said */
int cli_out_check(const cli_options *o, char **path);
/* The same for a path that another option names. */
int cli_file_check(const cli_options *o, const char *option, const char *given, char **path);
/** Saves the session's weights to `path`; if that fails, once beside it or in TMPDIR. @return CLI_OK or CLI_FAILED */
int cli_out_save(const cli_job *job, const char *path);
/* The files that a written model is read from, its own first; says which of them belong to the model that was read. */
json_t *cli_out_files(const cli_job *job, const char *path);
/** Saves weights that are not to go to `path`, after what was said went wrong: beside it, else in TMPDIR; as a model,
 *  or where the one that was loaded is no longer there, as arrays. Says where; `which`: a clause about them. */
void cli_out_rescue(const cli_job *job, const char *path, const char *which);
/** Refuses if another run is going to write `path`, which `option` `given` names; from now on such runs are refused
 *  (lock.c). @return CLI_OK or CLI_FAILED */
int cli_lock(const char *option, const char *given, const char *path);

/* --- progress (progress_bar.c): on a terminal a line that is rewritten and erased, elsewhere plain lines, sparse ---
 * */

/** What -q changes, and whether stderr is a terminal, is found out once. */
void cli_progress_init(bool quiet);
/** Erases the line, so that others can be written. Messages do it by themselves. */
void cli_progress_clear(void);

/** Of training. */
typedef struct cli_progress {
    int64_t total, epochs;
    double started, last_bar, last_line, last_share;
} cli_progress;
void cli_progress_start(cli_progress *p, int64_t total, int64_t epochs);
/** After a step: `done` of `total` steps, `samples` rows since the start. */
void cli_progress_step(cli_progress *p, int64_t epoch, int64_t done, int64_t samples, double loss);

/** Of anything else that may take longer than a second; shown only once it does. `share`: from 0 to 1. */
void cli_busy(const char *stage, double share);
/** From now on cli_busy's shares are those of part `part` of `parts` of the work `stage`; parts 0: no longer. */
void cli_busy_part(const char *stage, int part, int parts);

/* --- results --- */

/** "out_" + name with every byte outside [A-Za-z0-9._-] as %XX + ".npy", in `dir`. What is too long for a file is cut,
 *  with a hash of the whole behind it, and *shortened set. Caller frees; NULL: no memory. */
char *cli_dump_path(const char *dir, const char *prefix, const char *name, bool *shortened);
/** Writes by a temporary file and rename. Floating-point data goes as <f8 if `wide`, else as <f4. */
int cli_write_npy(const char *path, const void *data, inv_dtype dtype, int rank, const int64_t *dims, bool wide);
/** Writes the weights that the session holds as an archive of arrays by their names, without those that it reads where
 *  the model's file is mapped, which may have changed there. @return false: it is not there */
bool cli_write_weights(inv_session *session, const char *path);
/** Makes the directory if needed. `made`: whether it was not there before. */
int cli_make_dir(const char *dir, bool *made);
/** A file to be written completely or not at all. */
typedef struct cli_file {
    char *path, *temporary;
    FILE *f;
} cli_file;
int cli_file_open(cli_file *file, const char *path);
/** Renames into place if `ok`, else drops it. */
int cli_file_close(cli_file *file, bool ok);
/** All of a file, ended by a zero. Caller frees; NULL after saying why. */
char *cli_text_of_file(const char *path);
size_t cli_nelem(int rank, const int64_t *dims);

/* --- tables (show.c) --- */

/** What is trained and what is not, with the reasons and an example of each, in one line (trained_line.c). */
void cli_say_trained(const json_t *report);
/** The line; the caller frees it. NULL: out of memory. */
char *cli_trained_text(const json_t *report);
const char *cli_overhead(const json_t *report); /* "plan +x %, bound +y %, gap z %"; valid until the next call */
void cli_show_peaks(const json_t *report);
/** One line if the mode saves nothing against storing all values. */
void cli_show_saving(const json_t *report);
void cli_show_choices(const json_t *report);
/** Largest drift and fallbacks; `each`: of every value too. */
void cli_show_drift(const json_t *report, bool each);
/** Counts per class, and what rows of it were taken for. */
void cli_show_confusion(const cli_score *score);
/* Which operators and which nodes take longest; nothing if nodes were not timed. */
void cli_show_profile(const json_t *report);
/** The names of an array, joined by ", ", at most `limit` of them. */
void cli_show_names(FILE *f, const json_t *names, size_t limit);

/* --- rules (cmd_rules_ops.c) --- */

/* `rules new NAME` (rules_new.c). */
int cli_rules_new(const cli_options *o);
/* `rules test FILE` (cmd_selftest.c). */
int cli_rules_test(const cli_options *o);

/* --- explanations (explain*.c) --- */

/** The page of `explain --html`: the graph drawn, and the same facts in tables. */
int cli_explain_page(const char *path, const char *heading, const json_t *explanation);
/** The drawing alone, an svg element; `kinds`: the number of each kind of block.
 *  @return CLI_OK, or what was said */
int cli_explain_draw(FILE *f, const json_t *explanation, const json_t *kinds);
enum { CLI_COLOURS = 8 /* css classes k0 to k7, by the number of the kind */ };

/** Boxes in layers: `layer`, `x` (the middle) and `width` of each, edges from lower to higher numbers. Dummies that
 *  long edges bend around are boxes behind the given ones. */
typedef struct cli_box {
    size_t layer;
    double x, width;
} cli_box;
typedef struct cli_line {
    size_t from, to;
    size_t first, bends; /* boxes that it runs through: dummies `first` and on */
} cli_line;
typedef struct cli_layout {
    cli_box *box;
    cli_line *line;
    size_t nbox, nline; /* as given; their widths too */
    size_t nall, nlayer;
    double width;
} cli_layout;
/** Fills in all but what is given. false: out of memory. box is reallocated */
bool cli_layout_find(cli_layout *l);

/** A picture of memory, in a file by its suffix .svg or .html. @return CLI_OK, or what was said */
int cli_picture(const char *path, const pic_memory *drawn);

/** As it is, but without the sign that a NaN may have. */
double cli_unsigned_nan(double x);

/** Seconds of a clock that only goes forward. */
double cli_now(void);

#endif
