/* SPDX-License-Identifier: Apache-2.0
 * Where rows of data come from. A source is made from one argument of the command line (a file, several files of one
 * kind, a folder, a pipe); it has a number of rows, and of each row one array, or two: what the model is fed and the
 * target that goes with it. Rows lie in mapped memory or are filled into buffers, by several threads at once.
 * Nothing here prints: what is wrong is written to a FILE as text that names file and row. */
#ifndef INVONNX_DATA_SOURCE_H
#define INVONNX_DATA_SOURCE_H

#include <stdatomic.h>

#include "data/npy.h"
#include "data/row_order.h"

enum { DATA_INPUT, DATA_TARGET, DATA_FIELDS };

/** One array of a source, as a row of it: the axis that counts rows is not among `dims`. */
typedef struct data_field {
    inv_dtype dtype; /* INV_DT_NONE: the source has no such array */
    int rank;
    int64_t dims[NPY_MAX_RANK];
    size_t nbytes;    /* of a row */
    const void *base; /* all rows lie here one behind the other, aligned for their type; NULL: they are to be filled */
} data_field;

/** What a row that is drawn may depend on besides its number. */
typedef struct data_draw {
    uint64_t seed, epoch;
    const data_order *order; /* says which rows are held out; NULL: none */
    bool augment;            /* of rows to be trained on; those to be validated on are taken as they are */
} data_draw;

typedef struct data_source data_source;

/** What a kind of source does. All but `close` may be called by several threads at once, unless it is a stream. */
typedef struct data_calls {
    /** Writes row `row` to `out[DATA_INPUT]` and `out[DATA_TARGET]`, where these are not NULL. @param why on failure
     *  the reason with file and row, no newline. NULL: all fields have a base */
    bool (*fill)(const data_source *s, const data_draw *draw, int64_t row, void *const out[DATA_FIELDS], FILE *why);
    /** The file that a row is from, and its number in it. `unit`: what is counted, "row" or "line"; NULL: the file is
     *  the row. */
    const char *(*place)(const data_source *s, int64_t row, int64_t *number, const char **unit);
    /** Pages of mapped files that have been read go back to the system; NULL: nothing is mapped. */
    void (*give_back)(const data_source *s);
    void (*close)(data_source *s);
} data_calls;

struct data_source {
    const data_calls *calls; /* NULL: not open */
    void *state;
    int64_t nrows;
    data_field field[DATA_FIELDS];
    size_t mapped_nbytes; /* of files whose pages are read while rows are */
    bool single;          /* one array without an axis of rows, as if it were the only row */
    bool stream;          /* rows come once, in order; one thread at a time */
    atomic_bool stop;     /* of a stream: nobody wants further rows, and a row that is waited for fails */
    bool in_sequence;     /* neighbouring rows belong together: rows to validate on are a run */
    bool varies;          /* with `augment`, rows depend on the epoch */
    bool pictures, grey;  /* its rows are pictures that were fitted to the model, in which each pixel is one number */
    bool computes;        /* a row takes arithmetic, and more than one thread is worth it */
    int64_t nclasses;     /* names of the labels that the target holds; 0: they have none */
    char **classes;       /* the source's */
};

/** What is asked for, and what the model says of it. Text is borrowed until the source is closed. */
typedef struct data_request {
    const char *const *members; /* of .npz archives, the first that is there */
    size_t nmembers;
    bool target; /* the array is one of labels or values, not an input */
    /* The input as the model declares it: axis 0 is the batch. rank -1: it does not, dims -1: open */
    inv_dtype dtype;
    int rank;
    const int64_t *dims;
    bool labels;           /* the loss takes classes by their numbers */
    int64_t outputs;       /* classes of the output, -1: not known */
    bool column;           /* the loss compares [rows, 1], not [rows] */
    int tokens;            /* bytes of a token in raw files: 1, 2, 4; 0: the file is to say */
    int64_t window;        /* tokens of a row; 0: as the model declares it */
    bool sequential;       /* windows are taken as they lie, not at random places */
    int64_t resize;        /* short side of pictures; 0: so that the model's extents are just covered */
    const char *normalize; /* "none", "imagenet", "MEAN/STD" */
    bool augment_crop, augment_flip;
    bool skip_bad;              /* bad pictures or lines are left out, and said */
    const char *columns;        /* of tables: those that are fed, NULL: all others than the target's */
    const char *target_columns; /* ... and those of the target */
    char *const *classes;       /* names that labels count by; NULL: those found, sorted */
    int64_t nclasses;
    const char *classes_from; /* where they are from, if whole numbers are labels, too: ", of ..."; NULL: the caller */
    int threads;              /* for what is done at the start */
    void (*note)(const char *format, ...);         /* remarks; never NULL */
    void (*busy)(const char *stage, double share); /* work that takes longer than a second; never NULL */
} data_request;

/** Opens what `path` names: by what it is (a pipe, a folder), an option (tokens), its suffix. A path of which there is
 *  no file, with *, ? or [ in it, names all files that fit it, in the order of their names with numbers in them taken
 *  as numbers.
 *  @param why the reason on failure, no newline
 *  @return whether it is open; close it with data_source_close */
bool data_source_open(const data_request *q, const char *path, data_source *out, FILE *why);
void data_source_close(data_source *s);

/** What a path names. Files of several kinds that one pattern fits are of none. */
typedef enum data_kind { DATA_PIPE, DATA_PICTURES, DATA_TOKENS, DATA_TABLE, DATA_UNKNOWN, DATA_ARRAYS } data_kind;
/** By what it is, its suffix, and of the request whether it is a target and the type of tokens. */
data_kind data_kind_of(const data_request *q, const char *path);
/** Whether what `path` names has the arrays of `npy_open`, so that its shape tells what is a row. */
bool data_is_array(const data_request *q, const char *path);
/** Whether a pattern of file names fits something, though no file is called so. */
bool data_is_pattern(const char *path);

/** Numbers of --normalize for pictures of so many channels; `text` NULL: none. @return whether it has the form */
bool data_read_normalize(const char *text, int channels, float mean[3], float deviation[3]);
/** Compares names as people number files: x-2 comes before x-10. For qsort over strings. */
int data_by_name(const void *a, const void *b);

/** Sets `nbytes` of a field from its type and dims. */
void data_field_size(data_field *f);
/** A list of names, freed with its strings. */
void data_free_names(char **names, int64_t n);

/** "rows 3 and 5 to 9 of x.npy, row 2 of y.npy"; `rows` ascending. */
void data_put_places(FILE *f, const data_source *s, const int64_t *rows, int64_t n);
/** "rows 3, 5 to 9 and 12", or of another unit; ascending numbers. */
void data_put_rows(FILE *f, const char *unit, const int64_t *rows, int64_t n);

/* --- the kinds, one file each; `paths` are at least one --- */

bool data_open_arrays(const data_request *q, char *const *paths, size_t npaths, data_source *out, FILE *why);
bool data_open_tokens(const data_request *q, char *const *paths, size_t npaths, data_source *out, FILE *why);
bool data_open_images(const data_request *q, char *const *paths, size_t npaths, data_source *out, FILE *why);
bool data_open_table(const data_request *q, char *const *paths, size_t npaths, data_source *out, FILE *why);
bool data_open_pipe(const data_request *q, char *const *paths, size_t npaths, data_source *out, FILE *why);

#endif
