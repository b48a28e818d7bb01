/* SPDX-License-Identifier: Apache-2.0
 * What the program says: messages on stderr, what a run is for people, results on stdout. */
#ifndef INVONNX_CLI_MESSAGES_H
#define INVONNX_CLI_MESSAGES_H

#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "invonnx/invonnx.h"

/** Exit statuses, as the manual promises them. */
enum { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

#define CLI_PRINTF(text, first) __attribute__((format(printf, text, first)))

/** "invonnx: MESSAGE" on stderr. @return CLI_FAILED */
int cli_fail(const char *format, ...) CLI_PRINTF(1, 2);
/** Says a failure as cli_fail does. @return false: another rank has the word */
bool cli_put_failure(const char *format, va_list args);
/** A remark on stderr, not an error; not with -q. */
void cli_note(const char *format, ...) CLI_PRINTF(1, 2);
/** Something to be known whatever the options say, as where the weights of a run that failed are. */
void cli_warn(const char *format, ...) CLI_PRINTF(1, 2);
/** A line of what a run is for people: all of them go to one stream, stdout, or stderr where that is for --json.
 *  Nothing with -q. */
void cli_say(const char *format, ...) CLI_PRINTF(1, 2);
/** The descriptor of that stream. */
int cli_run_fd(void);
/** More for the JSON of the failure that has been said: the members of an object. */
void cli_fail_details(json_t *details);
/** What -q and --json change of all these. */
void cli_hush(bool quiet, bool json);
/** At the end of the program: what failed, for programs, which with --json find one object on stdout in any case. */
void cli_end_messages(int status);

/** Prints an object on stdout. */
int cli_print_json(const json_t *object);
int cli_print_text(const char *object);
/** Of name_at(0) to name_at(n - 1), NULL ones apart, that which is nearest to `word`; NULL if none is near. */
const char *cli_nearest(const char *word, size_t n, const char *(*name_at)(size_t i));
/** Seconds of a clock that only goes forward. */
double cli_now(void);
/** As it is, but without the sign that a NaN may have. */
double cli_unsigned_nan(double x);
/** A number, or null where JSON has none. */
json_t *cli_json_real(double x);
const char *cli_dtype_name(inv_dtype t);
/** INV_DT_NONE: there is no type of this name. */
inv_dtype cli_dtype_named(const char *name);

#endif
