/* SPDX-License-Identifier: Apache-2.0
 * Private to the text form (text_lex.c, ir_parse.c, ir_text.c) and to what adds comments to it (pass.c). */
#ifndef INV_CORE_TEXT_H
#define INV_CORE_TEXT_H

#include "core/graph/ir.h"

/* Kinds of tokens; punctuation is its own character. */
enum { INV_TOK_END = 256, INV_TOK_WORD, INV_TOK_STRING, INV_TOK_ARROW };

/* The lexer always holds one token. Copy the struct to look further ahead. */
typedef struct inv_lexer {
    inv_context *ctx;
    inv_arena *a;
    const char *p; /* rest of the text */
    int line;
    int kind;
    const char *text; /* of the token, unescaped; in the arena */
    uint8_t phase;    /* of the newest phase comment */
    bool any_real;    /* real numbers among inputs keep all digits (inv_text_formulas) */
} inv_lexer;

inv_status inv_lex_init(inv_lexer *lx, inv_context *ctx, inv_arena *a, const char *text);
inv_status inv_lex_next(inv_lexer *lx);
inv_status inv_lex_wanted(inv_lexer *lx, const char *what); /* records "line N: WHAT expected, found ..." */
inv_status inv_lex_expect(inv_lexer *lx, int kind);
inv_status inv_lex_accept(inv_lexer *lx, int kind, bool *was);
bool inv_is_word_char(char c);
bool inv_word_int(const char *w, int64_t *out);
bool inv_word_double(const char *w, double *out); /* also "inf", "0.1f" (rounded to float), "true", "1/3" */
bool inv_word_number(const char *w, double *out); /* one of them that begins with digits, so no name of a value */

/* A type: dtype and shape, the symbols of its dims; current token is the dtype's word. */
inv_status inv_parse_type(inv_lexer *lx, inv_data *out, const char **dim_param);
/* `{1, 2}` or `{...}` (known to be there, not written out: bytes stay NULL). */
inv_status inv_parse_literal(inv_lexer *lx, inv_data *io);
inv_status inv_parse_stmt(inv_lexer *lx, inv_stmt *out);
inv_status inv_parse_name(inv_lexer *lx, const char *what, const char **out);
/* The current word is a dtype that begins `float[2] x`, not a value called "float". */
inv_status inv_at_type(const inv_lexer *lx, bool *yes);

/* A name, quoted where it must be; a node as a line of its own, indented; of a node `Op<attributes>` alone. */
void inv_print_name(inv_str *b, const char *name);
void inv_print_node(inv_str *b, const inv_graph *g, const inv_node *n);
void inv_print_op(inv_str *b, const inv_graph *g, const inv_node *n);

extern const char *const inv_attr_kinds[];
#define INV_TEXT_WORDS "input", "param", "const", "optim" /* begin a declaration */
#define INV_TEXT_FLAGS "trainable", "state", "keep"       /* may follow such a word */

#endif
