/* SPDX-License-Identifier: Apache-2.0
 * `plan --ranks`: what each of N processes would need that train together, by what they share. */
#include "cli/job/plan_ranks.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/job/session_options.h"
#include "pictures/report_text.h"

/* Up to three numbers with colons between. How many; -1: it is something else. */
static int numbers(const char *text, double x[3])
{
    char *end = NULL;
    for (int n = 0; n < 3; text = end + 1) {
        x[n++] = strtod(text, &end);
        if (end == text || (*end && *end != ':')) return -1;
        if (!*end) return n;
    }
    return -1;
}

int cli_imagine_ranks(cli_job *job)
{
    enum { LATENCY, RATE, BUSY };
    const cli_options *o = job->o;
    double x[] = {5e-5, 1.25e9, 0};
    if (o->ranks < 2) return CLI_OK;
    if (o->network && numbers(o->network, x) < 2)
        return cli_usage(o,
                         "--network %s: wants seconds and bytes a second, as 2e-5:1e9, and may say a share from 0 to 1",
                         o->network);
    const int ranks = o->ranks < INT_MAX ? (int)o->ranks : INT_MAX;
    const int on_host = o->ranks_per_host < ranks ? (int)o->ranks_per_host : ranks;
    const inv_status s = inv_world_imagine(job->ctx, ranks, on_host, x[LATENCY], x[RATE], x[BUSY], &job->world);
    if (s == INV_E_ARG) return cli_usage(o, "%s", inv_context_message(job->ctx));
    return s == INV_OK ? CLI_OK : cli_library_failed(job, s);
}

/* What is planned with one of what ranks may share. */
enum { CHOICES = INV_SHARD_GRADIENTS + 1 };
typedef struct choice {
    inv_session *session;
    json_t *report; /* NULL: it was refused */
    char *why;
} choice;

static double of_ranks(const choice *c, const char *key)
{
    const json_t *x = json_object_get(json_object_get(c->report, "ranks"), key);
    return json_is_number(x) ? json_number_value(x) : (double)NAN;
}

/* Where the time of nodes is not known, messages alone tell. */
static double seconds_of(const choice *c)
{
    const double whole = of_ranks(c, "step_seconds");
    return isnan(whole) ? of_ranks(c, "predicted_seconds") : whole;
}

/* Whether a takes fewer bytes than b, or as many and less time. */
static bool smaller(const choice *a, const choice *b)
{
    const double x = pic_number(a->report, "planned_peak_bytes"), y = pic_number(b->report, "planned_peak_bytes");
    return x < y || (x <= y && seconds_of(a) < seconds_of(b));
}

/* Of those within a twentieth of the quickest, the one of the fewest bytes. */
static int recommended(const choice *c, int n)
{
    double least = INFINITY;
    int best = -1;
    for (int i = 0; i < n; i++)
        if (c[i].report) least = fmin(least, seconds_of(&c[i]));
    for (int i = 0; i < n; i++) {
        if (!c[i].report || !(seconds_of(&c[i]) <= 1.05 * least)) continue;
        if (best < 0 || smaller(&c[i], &c[best])) best = i;
    }
    return best;
}

static json_t *row_of(const choice *c, const char *name)
{
    const json_t *ranks = json_object_get(c->report, "ranks"), *classes = json_object_get(c->report, "classes");
    if (!c->report) return json_pack("{s:s, s:s?}", "shard", name, "refused", c->why);
    return json_pack("{s:s, s:O, s:O, s:O, s:O, s:O, s:O, s:O}", "shard", name, "planned_peak_bytes",
                     json_object_get(c->report, "planned_peak_bytes"), "optimizer_bytes",
                     json_object_get(classes, "optimizer"), "gradient_bytes", json_object_get(classes, "gradients"),
                     "sent_bytes", json_object_get(ranks, "sent_bytes"), "predicted_seconds",
                     json_object_get(ranks, "predicted_seconds"), "exposed_seconds",
                     json_object_get(ranks, "exposed_seconds"), "step_seconds", json_object_get(ranks, "step_seconds"));
}

/* A step's time, of as many batches as --accumulate says. NULL: what was said. */
static json_t *report_of(cli_job *job)
{
    static const char *const times[][3] = {{"step_seconds", "batch_seconds", "update_seconds"},
                                           {"exposed_seconds", "batch_exposed_seconds", "update_exposed_seconds"}};
    json_t *report = cli_report(job), *ranks = json_object_get(report, "ranks");
    const json_t *parts = json_object_get(ranks, "accumulated");
    for (size_t i = 0; json_is_object(parts) && i < 2; i++) {
        const double batches = (double)job->o->accumulate * pic_number(parts, times[i][1]);
        (void)json_object_set_new(ranks, times[i][0], json_real(batches + pic_number(parts, times[i][2])));
    }
    return report;
}

/* What the library refuses is noted, not said. */
static int plan_one(cli_job *job, int shard, choice *c)
{
    inv_session_options so;
    cli_hold hold;
    job->shard = shard;
    int status = cli_session_options(job, INV_FOR_TRAIN, &so, &hold);
    if (status == CLI_OK) {
        so.plan_only = true;
        so.world = job->world;
        if (inv_session_create(job->model, &so, &job->session) != INV_OK)
            c->why = strdup(inv_context_message(job->ctx));
        else if (!(c->report = report_of(job))) status = CLI_FAILED;
        c->session = job->session;
        job->session = NULL;
    }
    cli_hold_fini(&hold);
    return status;
}

/* The recommended one becomes the job's. */
static int take_best(cli_job *job, const choice *all, int *best, json_t **report)
{
    json_t *list = json_array();
    for (int i = 0; i < CHOICES; i++) (void)json_array_append_new(list, row_of(&all[i], cli_shards[i].word));
    *best = recommended(all, CHOICES);
    if (*best < 0) {
        json_decref(list);
        return cli_fail("%s", all[0].why ? all[0].why : "out of memory");
    }
    job->shard = *best;
    job->session = all[*best].session;
    *report = json_incref(all[*best].report);
    return json_object_set_new(json_object_get(*report, "ranks"), "choices", list) == 0 ? CLI_OK
                                                                                        : cli_fail("out of memory");
}

int cli_plan_ranks(cli_job *job, json_t **report)
{
    choice all[CHOICES] = {{0}};
    int status = CLI_OK, best = -1;
    if (!job->world || job->o->shard != CLI_SHARD_OPEN) {
        status = cli_start(job, INV_FOR_TRAIN, true);
        return status == CLI_OK && !(*report = report_of(job)) ? CLI_FAILED : status;
    }
    for (int i = 0; i < CHOICES && status == CLI_OK; i++) status = plan_one(job, i, &all[i]);
    if (status == CLI_OK) status = take_best(job, all, &best, report);
    for (int i = 0; i < CHOICES; i++) {
        json_decref(all[i].report);
        free(all[i].why);
        if (i != best) inv_session_destroy(all[i].session);
    }
    return status;
}

static void show_choices(const json_t *list, const char *taken)
{
    const json_t *c;
    size_t i;
    printf("  %-12s %12s %12s %12s %12s %12s %12s\n", "--shard", "peak", "optimizer", "gradients", "sent", "waiting",
           "a step");
    json_array_foreach(list, i, c)
    {
        const char *name = json_string_value(json_object_get(c, "shard"));
        char step[32] = "?", waiting[32] = "?";
        if (json_object_get(c, "refused")) {
            printf("  %-12s %s\n", name, json_string_value(json_object_get(c, "refused")));
            continue;
        }
        if (json_is_number(json_object_get(c, "step_seconds"))) {
            snprintf(step, sizeof step, "%.3g s", pic_number(c, "step_seconds"));
            snprintf(waiting, sizeof waiting, "%.3g s", pic_number(c, "exposed_seconds"));
        }
        printf("  %-12s %12s", name, pic_bytes(pic_number(c, "planned_peak_bytes")));
        printf(" %12s", pic_bytes(pic_number(c, "optimizer_bytes")));
        printf(" %12s", pic_bytes(pic_number(c, "gradient_bytes")));
        printf(" %12s %12s %12s%s\n", pic_bytes(pic_number(c, "sent_bytes")), waiting, step,
               strcmp(name, taken) == 0 ? "   <- recommended, shown above" : "");
    }
}

void cli_show_ranks(const json_t *report)
{
    const json_t *r = json_object_get(report, "ranks"), *list = json_object_get(r, "choices");
    if (!json_is_object(r)) return;
    printf("%lld ranks, %lld on each machine\n", (long long)pic_number(r, "size"), (long long)pic_number(r, "on_host"));
    printf("  %-22s %12s   (in %lld bucket%s)\n", "gradients, of each", pic_bytes(pic_number(r, "gradient_bytes")),
           (long long)pic_number(r, "buckets"), pic_number(r, "buckets") > 1 ? "s" : "");
    printf("  %-22s %10.3g s   (without the part that backward hides)\n", "exchanging them",
           pic_number(r, "predicted_seconds"));
    if (json_is_number(json_object_get(r, "step_seconds")))
        printf("  %-22s %10.3g s   (%.3g s of it waiting for others)\n", "a step, predicted",
               pic_number(r, "step_seconds"), pic_number(r, "exposed_seconds"));
    if (list) show_choices(list, json_string_value(json_object_get(r, "shard")));
}
