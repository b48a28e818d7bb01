/* SPDX-License-Identifier: Apache-2.0
 * Fields of the library's JSON reports, and text as people and XML want it. */
#ifndef INVONNX_PICTURES_REPORT_TEXT_H
#define INVONNX_PICTURES_REPORT_TEXT_H

#include <jansson.h>
#include <stdio.h>

/** "12.3 MiB"; the text lives in one of a few static buffers. */
const char *pic_bytes(double nbytes);
/** A field of an object; 0, or "": it is not there, or of another type. */
double pic_number(const json_t *object, const char *key);
const char *pic_string(const json_t *object, const char *key);
/** Text for HTML and SVG: what they mark is escaped, characters that they forbid are replaced. */
void pic_put_xml(FILE *f, const char *text);
/** Writes `form` as it is, but for each %s, which stands for such a text; it knows nothing else of printf. */
void pic_print_xml(FILE *f, const char *form, ...) __attribute__((format(printf, 2, 3)));

#endif
