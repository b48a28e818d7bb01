/* SPDX-License-Identifier: Apache-2.0
 * Tokens of the text form, and the numbers in them. A token is a word (name or number), a quoted string,
 * one punctuation character, or the arrow =>. Semicolons and line ends only separate. */
#include "core/graph/text.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool inv_is_word_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr("_./:|+-?@", c));
}

static inv_status put_token(inv_lexer *lx, int kind, const char *from, size_t n)
{
    lx->kind = kind;
    lx->text = inv_arena_strndup(lx->a, from, n);
    return lx->text ? INV_OK : INV_E_NOMEM;
}

static void skip_comment(inv_lexer *lx)
{
    static const char *const phases[] = {"forward", "backward", "commit"};
    const char *p = lx->p + 1;
    size_t n = strcspn(p, "\n");
    lx->p = p + n;
    while (n && *p == ' ') p++, n--;
    while (n && (p[n - 1] == ' ' || p[n - 1] == '\r')) n--;
    for (size_t i = 0; i < 3; i++)
        if (strlen(phases[i]) == n && memcmp(p, phases[i], n) == 0) lx->phase = (uint8_t)i;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static inv_status lex_string(inv_lexer *lx)
{
    const char *p = lx->p + 1;
    while (*p && *p != '"') p += p[0] == '\\' && p[1] ? 2 : 1;
    if (!*p) return inv_fail(lx->ctx, INV_E_PARSE, "line %d: string without end", lx->line);
    char *s = inv_arena_alloc(lx->a, (size_t)(p - lx->p));
    if (!s) return INV_E_NOMEM;
    size_t n = 0;
    for (const char *q = lx->p + 1; q < p; q++) {
        char c = *q;
        if (c == '\n') lx->line++;
        if (c == '\\') {
            c = *++q;
            if (c == 'n') c = '\n';
            else if (c == 'x' && q + 2 < p && hex(q[1]) >= 0 && hex(q[2]) >= 0) {
                c = (char)(hex(q[1]) * 16 + hex(q[2]));
                q += 2;
            }
        }
        if (c) s[n++] = c;
    }
    lx->p = p + 1;
    lx->kind = INV_TOK_STRING;
    lx->text = s;
    return INV_OK;
}

inv_status inv_lex_next(inv_lexer *lx)
{
    for (;; lx->p++) {
        if (*lx->p == '#') skip_comment(lx);
        if (*lx->p == '\n') lx->line++;
        if (!*lx->p || !strchr(" \t\r\n;", *lx->p)) break;
    }
    const char *p = lx->p;
    if (!*p) return put_token(lx, INV_TOK_END, "end of text", 11);
    if (*p == '"') return lex_string(lx);
    if (p[0] == '=' && p[1] == '>') {
        lx->p += 2;
        return put_token(lx, INV_TOK_ARROW, p, 2);
    }
    size_t n = 0;
    while (inv_is_word_char(p[n])) n++;
    lx->p += n ? n : 1;
    return n ? put_token(lx, INV_TOK_WORD, p, n) : put_token(lx, (unsigned char)*p, p, 1);
}

inv_status inv_lex_init(inv_lexer *lx, inv_context *ctx, inv_arena *a, const char *text)
{
    *lx = (inv_lexer){.ctx = ctx, .a = a, .p = text, .line = 1, .phase = INV_FORWARD};
    return inv_lex_next(lx);
}

inv_status inv_lex_wanted(inv_lexer *lx, const char *what)
{
    return inv_fail(lx->ctx, INV_E_PARSE, "line %d: %s expected, found '%.60s'", lx->line, what, lx->text);
}

inv_status inv_lex_expect(inv_lexer *lx, int kind)
{
    if (lx->kind != kind) {
        char what[] = {'\'', (char)kind, '\'', '\0'};
        return inv_lex_wanted(lx, kind == INV_TOK_ARROW ? "'=>'" : what);
    }
    return inv_lex_next(lx);
}

inv_status inv_lex_accept(inv_lexer *lx, int kind, bool *was)
{
    *was = lx->kind == kind;
    return *was ? inv_lex_next(lx) : INV_OK;
}

/* --- numbers --- */

bool inv_word_int(const char *w, int64_t *out)
{
    char *end;
    if (!strpbrk(w, "0123456789") || strlen(w) > 20) return false;
    for (const char *p = w; *p; p++)
        if (!((*p >= '0' && *p <= '9') || (p == w && (*p == '-' || *p == '+')))) return false;
    long long v = strtoll(w, &end, 10);
    if (strlen(w) >= 19 && (v == INT64_MAX || v == INT64_MIN)) { /* perhaps cut off there */
        const char *digits = *w == '-' || *w == '+' ? w + 1 : w;
        if (strcmp(digits, v < 0 ? "9223372036854775808" : "9223372036854775807") != 0) return false;
    }
    *out = v;
    return *end == '\0';
}

static bool plain_double(const char *w, double *out)
{
    static const struct {
        const char *text;
        double v;
    } named[] = {{"inf", (double)INFINITY},
                 {"+inf", (double)INFINITY},
                 {"-inf", -(double)INFINITY},
                 {"nan", (double)NAN},
                 {"-nan", (double)NAN},
                 {"true", 1.0},
                 {"false", 0.0}};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (strcmp(w, named[i].text) == 0) {
            *out = named[i].v;
            return true;
        }
    char buf[128];
    size_t n = strlen(w), k = 0;
    bool single = n > 1 && w[n - 1] == 'f';
    if (single) n--;
    if (n > 64 || n == 0 || strspn(w, "0123456789+-.eE") < n || !strpbrk(w, "0123456789")) return false;
    const char *point = localeconv()->decimal_point;
    if (strlen(point) > 4) point = ".";
    for (size_t i = 0; i < n && k + 8 < sizeof buf; i++) {
        if (w[i] == '.') {
            memcpy(buf + k, point, strlen(point));
            k += strlen(point);
        } else {
            buf[k++] = w[i];
        }
    }
    buf[k] = '\0';
    char *end;
    *out = strtod(buf, &end);
    if (single) *out = (double)(float)*out;
    return *end == '\0';
}

bool inv_word_double(const char *w, double *out)
{
    char over[72];
    double below;
    const char *slash = strchr(w, '/');
    if (!slash) return plain_double(w, out);
    const size_t n = (size_t)(slash - w);
    if (n >= sizeof over) return false;
    memcpy(over, w, n);
    over[n] = 0;
    if (!inv_word_number(over, out) || !inv_word_number(slash + 1, &below) || strchr(slash + 1, '/') || below == 0)
        return false;
    *out /= below;
    return true;
}

bool inv_word_number(const char *w, double *out)
{
    const char *digit = w + (*w == '-' || *w == '+');
    digit += *digit == '.';
    return *digit >= '0' && *digit <= '9' && inv_word_double(w, out);
}
