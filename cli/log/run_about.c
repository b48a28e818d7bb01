/* SPDX-License-Identifier: Apache-2.0
 * What a run is, in words: for the head of its page. */
#include <stdarg.h>
#include <stdlib.h>
#include <time.h>

#include "cli/log/run_log.h"
#include "cli/pages/trained_line.h"
#include "pictures/report_text.h"

static void add(json_t *about, const char *name, const char *format, ...) CLI_PRINTF(3, 4);
static void add(json_t *about, const char *name, const char *format, ...)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    va_list args;
    if (!f) return;
    va_start(args, format);
    vfprintf(f, format, args);
    va_end(args);
    fclose(f);
    if (text) json_object_set_new(about, name, json_string(text));
    free(text);
}

/* As files of options have them, in one line. */
static void add_options(json_t *about, const cli_options *o)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (!f) return;
    cli_options_put(o, f, "; ");
    fclose(f);
    if (text) add(about, "options", "%s", text);
    free(text);
}

json_t *cli_run_about(const cli_job *job, const json_t *report, int64_t rows, int64_t held_out, int64_t batch)
{
    const cli_options *o = job->o;
    const double store = pic_number(report, "store_peak_bytes"), process = pic_number(report, "process_bytes");
    json_t *about = json_object();
    char *trained = cli_trained_text(report), when[64] = "";
    const time_t now = time(NULL);
    struct tm local;
    if (localtime_r(&now, &local)) (void)strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S %z", &local);
    add(about, "begun", "%s, by invonnx %s", when, inv_version());
    if (trained) add(about, "model", "%s", trained);
    add(about, "data", "%lld rows, %lld a step", (long long)rows, (long long)batch);
    if (held_out > 0) add(about, "held out", "%lld rows", (long long)held_out);
    add(about, "update", "%s, loss %s, seed %lld",
        cli_choice_word(cli_optimizers, o->optimizer == INV_OPT_NONE ? INV_OPT_SGD : o->optimizer),
        cli_choice_word(cli_losses, o->loss), (long long)o->seed);
    add(about, "memory", "%s planned for a step; all values stored: %s",
        pic_bytes(pic_number(report, "planned_peak_bytes")), pic_bytes(store));
    if (process > 0) add(about, "process", "about %s", pic_bytes(process));
    add_options(about, o);
    free(trained);
    return about;
}
