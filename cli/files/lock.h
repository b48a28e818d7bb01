/* SPDX-License-Identifier: Apache-2.0
 * One run at a time writes an output. */
#ifndef INVONNX_CLI_LOCK_H
#define INVONNX_CLI_LOCK_H

/** Refuses if another run is going to write `path`, which `option` `given` names; from now on such runs are refused
 *  (lock.c). @return CLI_OK or CLI_FAILED */
int cli_lock(const char *option, const char *given, const char *path);

#endif
