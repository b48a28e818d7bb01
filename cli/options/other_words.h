/* SPDX-License-Identifier: Apache-2.0
 * What other trainers call an option. */
#ifndef INVONNX_CLI_OTHER_WORDS_H
#define INVONNX_CLI_OTHER_WORDS_H

/** A row of other_words.inc. */
typedef struct cli_other_word {
    const char *theirs, *ours, *more; /* `ours`, `more`: NULL where there is nothing to say */
} cli_other_word;
/** NULL: nobody calls an option so. A '_' is as good as a '-'. */
const cli_other_word *cli_other_word_of(const char *word);

#endif
