/* SPDX-License-Identifier: Apache-2.0
 * Fields of the library's JSON reports, and text as people and XML want it. */
#include "pictures/report_text.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>

const char *pic_bytes(double nbytes)
{
    static char texts[8][32];
    static unsigned next;
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    char *text = texts[next++ % 8];
    size_t unit = 0;
    while (fabs(nbytes) >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        nbytes /= 1024;
        unit++;
    }
    snprintf(text, sizeof texts[0], "%.*f %s", unit == 0 ? 0 : nbytes < 10 ? 2 : 1, nbytes, units[unit]);
    return text;
}

double pic_number(const json_t *object, const char *key)
{
    const json_t *v = json_object_get(object, key);
    return json_is_number(v) ? json_number_value(v) : 0;
}

const char *pic_string(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : "";
}

void pic_put_xml(FILE *f, const char *text)
{
    for (const unsigned char *s = (const unsigned char *)text; *s; s++) {
        /* U+FFFE and U+FFFF are no characters of XML. */
        bool barred = s[0] == 0xef && s[1] == 0xbf && (s[2] == 0xbe || s[2] == 0xbf);
        switch (*s) {
        case '&': fputs("&amp;", f); break;
        case '<': fputs("&lt;", f); break;
        case '>': fputs("&gt;", f); break;
        case '"': fputs("&quot;", f); break;
        default: fputc(barred ? '?' : *s < 0x20 || *s == 0x7f ? ' ' : *s, f);
        }
        if (barred) s += 2;
    }
}

void pic_print_xml(FILE *f, const char *form, ...)
{
    va_list texts;
    va_start(texts, form);
    for (; *form; form++) {
        if (form[0] != '%') fputc(*form, f);
        else if (*++form == 's') pic_put_xml(f, va_arg(texts, const char *));
    }
    va_end(texts);
}
