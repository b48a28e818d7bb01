/* SPDX-License-Identifier: Apache-2.0
 * JPEG by libjpeg and PNG by libpng, each only where this was built with it. Both libraries report errors by a jump out
 * of the call; what is allocated lives in a struct that the place of return knows. */
#include <errno.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "data/image.h"

#ifdef INV_HAVE_JPEG
#include <jerror.h>
#include <jpeglib.h>
#endif
#ifdef INV_HAVE_PNG
#include <png.h>
#endif

/* No picture is larger: a claim of more is a damaged file. */
#define MOST_PIXELS ((int64_t)1 << 28)

bool image_has_suffix(const char *name)
{
    static const char *const suffixes[] = {".jpg", ".jpeg", ".png"};
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < sizeof suffixes / sizeof *suffixes; i++)
        if (strcasecmp(dot, suffixes[i]) == 0) return true;
    return false;
}

void image_fini(image *m)
{
    free(m->rgb);
    *m = (image){0};
}

typedef struct bytes {
    unsigned char *p;
    size_t n, at;
} bytes;

#if defined(INV_HAVE_JPEG) || defined(INV_HAVE_PNG)
static bool make_pixels(image *m, int64_t width, int64_t height)
{
    m->width = width;
    m->height = height;
    if (width < 1 || height < 1 || width > MOST_PIXELS / height) return false;
    m->rgb = malloc((size_t)(width * height) * 3);
    return m->rgb != NULL;
}

static const char too_large[] = "it claims to be larger than any picture, or there is no memory for it";
#endif

#ifdef INV_HAVE_JPEG
typedef struct jpeg_job {
    struct jpeg_decompress_struct c;
    struct jpeg_error_mgr errors;
    jmp_buf back;
    char text[JMSG_LENGTH_MAX];
} jpeg_job;

static void on_jpeg_error(j_common_ptr c)
{
    jpeg_job *job = c->client_data;
    c->err->format_message(c, job->text);
    longjmp(job->back, 1);
}

/* Warnings are about damaged data, which would be shown grey; but some bytes too many do no harm. */
static void on_jpeg_message(j_common_ptr c, int level)
{
    if (level >= 0 || c->err->msg_code == JWRN_EXTRANEOUS_DATA || c->err->msg_code == JWRN_ADOBE_XFORM) return;
    on_jpeg_error(c);
}

/* Of the segments that were kept the first that has EXIF counts. */
static int orientation_of(const struct jpeg_decompress_struct *c)
{
    for (jpeg_saved_marker_ptr m = c->marker_list; m; m = m->next)
        if (m->data_length > 5 && memcmp(m->data, "Exif", 5) == 0)
            return image_exif_orientation(m->data, m->data_length);
    return 1;
}

static bool read_jpeg(const bytes *file, image *out, FILE *why)
{
    jpeg_job *job = calloc(1, sizeof *job);
    if (!job) return fputs("out of memory", why), false;
    job->c.err = jpeg_std_error(&job->errors);
    job->errors.error_exit = on_jpeg_error;
    job->errors.emit_message = on_jpeg_message;
    job->c.client_data = job;
    bool ok = false;
    if (setjmp(job->back)) {
        fputs(job->text, why);
        goto done;
    }
    jpeg_create_decompress(&job->c);
    jpeg_mem_src(&job->c, file->p, (unsigned long)file->n);
    jpeg_save_markers(&job->c, JPEG_APP0 + 1, 0xffff);
    jpeg_read_header(&job->c, TRUE);
    if (job->c.num_components == 4) {
        fputs("its colours are CMYK; convert it to RGB", why);
        goto done;
    }
    job->c.out_color_space = JCS_RGB;
    jpeg_start_decompress(&job->c);
    if (!make_pixels(out, job->c.output_width, job->c.output_height)) {
        fputs(too_large, why);
        goto done;
    }
    while (job->c.output_scanline < job->c.output_height) {
        JSAMPROW row = out->rgb + (size_t)job->c.output_scanline * (size_t)out->width * 3;
        jpeg_read_scanlines(&job->c, &row, 1);
    }
    const int orientation = orientation_of(&job->c); /* of segments in front of the pixels */
    jpeg_finish_decompress(&job->c);
    ok = image_turn_upright(out, orientation);
    if (!ok) fputs(too_large, why);
done:
    jpeg_destroy_decompress(&job->c);
    free(job);
    return ok;
}
#else
static bool read_jpeg(const bytes *file, image *out, FILE *why)
{
    (void)file;
    (void)out;
    return fputs("it is JPEG, and this program was built without libjpeg: install it (Debian: libjpeg-dev) and build "
                 "again",
                 why),
           false;
}
#endif

#ifdef INV_HAVE_PNG
typedef struct png_job {
    png_structp png;
    png_infop info;
    png_bytep *rows;
    bytes file;
    char text[160];
} png_job;

static void on_png_error(png_structp png, png_const_charp text)
{
    png_job *job = png_get_error_ptr(png);
    snprintf(job->text, sizeof job->text, "%s", text);
    png_longjmp(png, 1);
}

static void on_png_warning(png_structp png, png_const_charp text)
{
    (void)png;
    (void)text;
}

static void give_png(png_structp png, png_bytep out, size_t n)
{
    bytes *file = png_get_io_ptr(png);
    if (n > file->n - file->at) png_error(png, "the file ends within the picture");
    memcpy(out, file->p + file->at, n);
    file->at += n;
}

/* 8-bit RGB, whatever the file has. */
static void choose_png_form(png_job *job)
{
    png_set_expand(job->png);
    png_set_scale_16(job->png);
    png_set_strip_alpha(job->png);
    png_set_gray_to_rgb(job->png);
    png_set_interlace_handling(job->png);
    png_read_update_info(job->png, job->info);
}

static bool read_png(const bytes *file, image *out, FILE *why)
{
    png_job *job = calloc(1, sizeof *job);
    if (!job) return fputs("out of memory", why), false;
    bool ok = false;
    job->file = *file;
    job->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, job, on_png_error, on_png_warning);
    job->info = job->png ? png_create_info_struct(job->png) : NULL;
    if (!job->info) {
        fputs("out of memory", why);
        goto done;
    }
    if (setjmp(png_jmpbuf(job->png))) {
        fputs(job->text, why);
        goto done;
    }
    png_set_read_fn(job->png, &job->file, give_png);
    png_read_info(job->png, job->info);
    choose_png_form(job);
    if (!make_pixels(out, png_get_image_width(job->png, job->info), png_get_image_height(job->png, job->info))) {
        fputs(too_large, why);
        goto done;
    }
    job->rows = malloc((size_t)out->height * sizeof *job->rows);
    if (!job->rows || png_get_rowbytes(job->png, job->info) != (size_t)out->width * 3) {
        fputs("out of memory", why);
        goto done;
    }
    for (int64_t y = 0; y < out->height; y++) job->rows[y] = out->rgb + (size_t)(y * out->width) * 3;
    png_read_image(job->png, job->rows);
    png_read_end(job->png, NULL);
    ok = true;
done:
    free(job->rows);
    png_destroy_read_struct(&job->png, &job->info, NULL);
    free(job);
    return ok;
}
#else
static bool read_png(const bytes *file, image *out, FILE *why)
{
    (void)file;
    (void)out;
    return fputs(
               "it is PNG, and this program was built without libpng: install it (Debian: libpng-dev) and build again",
               why),
           false;
}
#endif

static bool read_bytes(const char *path, bytes *out, FILE *why)
{
    struct stat st;
    FILE *f = fopen(path, "rb");
    *out = (bytes){0};
    bool ok = f && fstat(fileno(f), &st) == 0;
    if (!ok) fputs(strerror(errno), why);
    if (ok && !S_ISREG(st.st_mode)) ok = (fputs("not a regular file", why), false);
    if (ok && st.st_size == 0) ok = (fputs("the file is empty", why), false);
    if (ok) {
        out->n = (size_t)st.st_size;
        out->p = malloc(out->n);
        errno = 0;
        ok = out->p && fread(out->p, 1, out->n, f) == out->n;
        if (!ok && !out->p) fputs("out of memory", why);
        if (!ok && out->p)
            fprintf(why, "it cannot be read to its end: %s", errno ? strerror(errno) : "it was cut short");
    }
    if (f) fclose(f);
    return ok;
}

bool image_read(const char *path, image *out, FILE *why)
{
    bytes file;
    *out = (image){0};
    bool ok = read_bytes(path, &file, why);
    if (ok && file.n > 3 && memcmp(file.p, "\xff\xd8\xff", 3) == 0) ok = read_jpeg(&file, out, why);
    else if (ok && file.n > 8 && memcmp(file.p, "\x89PNG\r\n\x1a\n", 8) == 0) ok = read_png(&file, out, why);
    else if (ok) ok = (fputs("it is neither JPEG nor PNG", why), false);
    free(file.p);
    if (!ok) image_fini(out);
    return ok;
}
