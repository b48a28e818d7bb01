/* SPDX-License-Identifier: Apache-2.0
 * A run of `train`, shared by the files that are it: cmd_train.c opens and ends it, train_loop.c makes its steps,
 * checkpoints.c keeps it in a folder, train_options.c reads what it is told. */
#ifndef INVONNX_CLI_TRAIN_H
#define INVONNX_CLI_TRAIN_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "cli/log/run_log.h"
#include "cli/say/progress_bar.h"

/* What comes again: after so many steps, or after so many seconds; both 0: never. */
typedef struct cli_period {
    int64_t steps;
    double seconds;
} cli_period;

/* Where a run is, which is all that its next step follows from beside the session's state. */
typedef struct cli_place {
    int64_t done, samples;    /* steps and rows so far */
    int64_t epoch;            /* of the next batch, from 1 on */
    int64_t batch;            /* of that epoch, from 0 on */
    double sum, weight;       /* of the losses of this epoch */
    double seconds;           /* of the runs that this one goes on from */
    double best;              /* validation: the best so far; NaN: none */
    int64_t best_step, worse; /* step after which that was; validations since */
    int64_t validated;        /* step after which the newest validation was; 0: there was none */
} cli_place;

typedef struct cli_training {
    cli_job job;
    cli_data data, held_out;
    bool validates;
    int64_t batch;                 /* rows of a batch that a rank has */
    int64_t rest;                  /* rows of the last, smaller batch of an epoch, of all ranks; 0: there is none */
    int64_t held_batch, held_rest; /* likewise for validation */
    int64_t accumulate;            /* batches of a step */
    int64_t batches;               /* of an epoch */
    int64_t total, epochs;         /* steps, epochs */
    inv_stage *stages;             /* of --unfreeze-after */
    inv_schedule schedule;
    cli_place at;
    bool resumed;
    char *plan; /* of the checkpoint that the run goes on from; NULL */
    cli_period every;
    int64_t kept;          /* checkpoints that stay; 0: all */
    double time_limit;     /* seconds; 0: none */
    double lr_from, lr_to; /* --lr-find: the rates that are tried */
    const char *stopped;   /* why the run ended before its last step: an option; NULL */
    double last_saved;     /* when the newest checkpoint was written */
    int64_t saved_step;    /* step after which that was; -1: none */
    int64_t tried_step;    /* step after which one was tried last, well or not; -1: none was */
    bool unsaved;          /* the newest checkpoint could not be written */
    char *trouble;         /* of several ranks: what this one could not write, and why; NULL: nothing */
    bool failed;           /* the run ends by what some rank could not write, which has been said */
    double began, last_loss;
    double said;   /* when an epoch's line was last said; 0: none was */
    double mapped; /* bytes of constants that steps read from the model's file */
    double took;   /* bytes of private memory, the most that was seen between steps */
    cli_score score;
    json_t *best; /* what the validation of the best model found, as val_NAME; NULL: there is none */
    cli_progress progress;
    cli_log *log; /* NULL: none is written */
    char *out;    /* what is written: -o, or --lr-find, or what it links to; NULL: nothing */
    json_t *epoch_list, *step_list;
} cli_training;

/* --- train_options.c --- */

/** Rows of a batch of all ranks together. */
int64_t cli_train_rows(const cli_training *t);
/** Batches of an epoch. */
int64_t cli_train_batches(const cli_training *t);
/** The parts of the options that are texts of their own. @return CLI_OK, or what was said */
int cli_train_options(cli_training *t);
/** The stages of --unfreeze-after, by the steps that an epoch has now; t->stages has them.
 *  @return CLI_OK, or what was said */
int cli_train_stages(cli_training *t, inv_session_options *so);
/** The schedule, of so many steps. @return CLI_OK, or what was said */
int cli_schedule_options(const cli_options *o, int64_t total, inv_schedule *schedule);

/* --- train_loop.c --- */

/** The signal that ended the run; 0: none. */
int cli_train_signal(void);
/** All epochs from t->at on. @return CLI_OK, or what was said */
int cli_train_run(cli_training *t);
/** The next step of the epoch, of t->accumulate batches or what is left. *s: what the library says of it, and of what
 *  `result` is. @return CLI_OK, or what was said of the data */
int cli_train_step(cli_training *t, double lr, inv_result *result, inv_status *s);
/** Says why a step failed. @return CLI_FAILED */
int cli_step_failed(cli_training *t, inv_status s, const inv_result *result);
void cli_see_memory(cli_training *t);

/* --- lr_find.c --- */

/** The range of rates. @return CLI_OK, or what was said */
int cli_lr_find_options(cli_training *t);
/** Steps with growing rates; says what it found, and draws it. The weights are not kept. @return CLI_OK, or what was
 *  said */
int cli_lr_find(cli_training *t);

/* --- checkpoints.c --- */

/** The steps of the checkpoints in a folder, ascending; the caller frees them. @return their number; -1: it cannot be
 *  read, errno says why */
int64_t cli_checkpoint_steps(const char *dir, int64_t **steps);
/** Where that of a step is; the caller frees it. NULL: out of memory. */
char *cli_checkpoint_path(const char *dir, int64_t step);
/** The folder of --checkpoint: makes and locks it, and with --resume finds the newest checkpoint that is whole on all
 *  ranks, of which it reads place and plan. @return CLI_OK, or what was said */
int cli_checkpoint_open(cli_training *t);
/** Reads the state into the session that has been made for it. @return CLI_OK, or what was said */
int cli_checkpoint_load(cli_training *t);
/** Before the first step: the run's options go into its folder, as FOLDER/options, which --options reads. Not over a
 *  file that somebody else has written. @return CLI_OK, or what was said */
int cli_checkpoint_keep_options(const cli_training *t);
/** Writes one, if one is due or `now`. Where it cannot be written, cli_ranks_trouble has it. Ranks that share the
 * optimizer's states write it together. @return CLI_OK, or what was said of other ranks */
int cli_checkpoint_save(cli_training *t, bool now);

#endif
