/* SPDX-License-Identifier: Apache-2.0
 * The commands, and those of `rules` that are files of their own. */
#ifndef INVONNX_CLI_CMD_H
#define INVONNX_CLI_CMD_H

#include "cli/options/command_line.h"

#define COMMAND(name, args, line, about, first, example) int cli_main_##name(const cli_options *o);
#include "cli/options/commands.inc"
#undef COMMAND

/* `rules new NAME` (rules_new.c). */
int cli_rules_new(const cli_options *o);
/* `rules test FILE` (cmd_selftest.c). */
int cli_rules_test(const cli_options *o);

#endif
