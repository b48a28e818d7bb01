/* SPDX-License-Identifier: Apache-2.0
 * Options by the names that other trainers have for them. */
#include "cli/options/other_words.h"

#include <string.h>

static const cli_other_word words[] = {
#define WORD(theirs, ours, more) {theirs, ours, more},
#include "other_words.inc"
#undef WORD
};

const cli_other_word *cli_other_word_of(const char *word)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const char *a = words[i].theirs, *b = word;
        while (*a && (*a == *b || (*a == '-' && *b == '_'))) a++, b++;
        if (!*a && !*b) return &words[i];
    }
    return NULL;
}
