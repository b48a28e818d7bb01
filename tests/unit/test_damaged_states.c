/* SPDX-License-Identifier: Apache-2.0
 * States of a training that have been damaged, cut, or are none; and saving that fails. Fails if a state is taken in
 * which any bit is another one, if a session that refuses one has changed, or if a failure leaves memory, a descriptor
 * or a file behind. */
#include "updates_run.h"

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "core/base/checksum.h"
#include "counting.h"

enum { FEW = 1 << 14, FLIPS = 1000 };

/* Some MB of state. */
static const char large_text[] = "g(float[4,6] x) => (y) {\nparam float[6,40000] w\nparam float[40000,6] v\n"
                                 "a = MatMul(x, w)\nd = Tanh(a)\ny = MatMul(d, v)\n}\n";

static const char *path_of_state(void)
{
    static char path[64];
    snprintf(path, sizeof path, "test_damaged.%ld.safetensors", (long)getpid());
    return path;
}

static size_t read_all(unsigned char *to, size_t room)
{
    FILE *f = fopen(path_of_state(), "rb");
    assert_non_null(f);
    const size_t n = fread(to, 1, room, f);
    assert_true(n < room);
    fclose(f);
    return n;
}

static void write_all(const unsigned char *bytes, size_t n)
{
    FILE *f = fopen(path_of_state(), "wb");
    assert_true(f && fwrite(bytes, 1, n, f) == n && fclose(f) == 0);
}

static size_t header_of(const unsigned char *bytes)
{
    size_t n = 0;
    for (int i = 8; i-- > 0;) n = n << 8 | bytes[i];
    return n;
}

/* No call takes it. */
static void refused(run *r, const char *what, size_t at)
{
    char *text_of_it = NULL;
    const inv_status st = inv_session_load_state(r->s, path_of_state(), NULL);
    if (st != INV_E_PARSE) fail_msg("%s, byte %zu: status %d", what, at, (int)st);
    assert_int_equal(inv_state_read(ctx, path_of_state(), NULL, NULL), INV_E_PARSE);
    assert_int_equal(inv_state_inspect(ctx, path_of_state(), &text_of_it), INV_E_PARSE);
    assert_null(text_of_it);
    assert_non_null(strstr(inv_context_message(ctx), path_of_state()));
}

/* The saved state of one training, and another one, which is to refuse what becomes of it. */
static run with_saved_state(unsigned char *bytes, size_t *n)
{
    run a = begin(of(INV_OPT_ADAM), ROWS, 0), b = begin(of(INV_OPT_ADAM), ROWS, 0);
    (void)step_once(&a, 0.01);
    need(inv_session_save_state(a.s, path_of_state(), "a note"));
    (void)step_once(&b, 0.01);
    (void)step_once(&b, 0.01);
    if (bytes) *n = read_all(bytes, FEW);
    end(&a);
    return b;
}

/* Vectors that XXH3 is published with: other programs find the same checksums. */
static void checksums(void **state)
{
    static unsigned char data[2000];
    char in_one[INV_CHECKSUM_DIGITS], in_pieces[INV_CHECKSUM_DIGITS];
    inv_checksum sum;
    (void)state;
    inv_checksum_begin(&sum);
    inv_checksum_end(&sum, in_one);
    assert_memory_equal(in_one, "2d06800538d394c2", sizeof in_one);
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 7);
    inv_checksum_begin(&sum);
    inv_checksum_add(&sum, data, sizeof data);
    inv_checksum_end(&sum, in_one);
    inv_checksum_begin(&sum);
    for (size_t i = 0; i < sizeof data; i += 80) inv_checksum_add(&sum, data + i, 80);
    inv_checksum_end(&sum, in_pieces);
    assert_memory_equal(in_one, in_pieces, sizeof in_one);
}

static void every_byte(void **state)
{
    static const unsigned char masks[] = {1, 2, 4, 8, 16, 32, 64, 128, 3, 255}; /* 3: a format's 2 becomes a 1 */
    static unsigned char bytes[FEW];
    float before[MOST], after[MOST];
    size_t n;
    (void)state;
    run r = with_saved_state(bytes, &n);
    const size_t count = weights(&r, before);
    const int fd = open(path_of_state(), O_WRONLY);
    assert_true(fd >= 0);
    for (size_t at = 0; at < n; at++)
        for (size_t m = 0; m < sizeof masks; m++) {
            const unsigned char other = bytes[at] ^ masks[m];
            assert_int_equal(pwrite(fd, &other, 1, (off_t)at), 1);
            refused(&r, "a byte", at);
            assert_int_equal(pwrite(fd, bytes + at, 1, (off_t)at), 1);
        }
    close(fd);
    assert_int_equal(inv_session_steps(r.s), 2);
    (void)weights(&r, after);
    assert_memory_equal(before, after, count * sizeof *before);
    need(inv_session_load_state(r.s, path_of_state(), NULL)); /* as it was */
    assert_int_equal(inv_session_steps(r.s), 1);
    end(&r);
    (void)unlink(path_of_state());
}

static void random_bits(void **state)
{
    struct stat st;
    uint64_t random = 88172645463325252u;
    (void)state;
    model_text = large_text;
    run r = with_saved_state(NULL, NULL);
    const int fd = open(path_of_state(), O_RDWR);
    assert_true(fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 5 << 20);
    for (int i = 0; i < FLIPS; i++) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        const size_t at = (size_t)(random % (uint64_t)st.st_size);
        unsigned char was, other;
        assert_int_equal(pread(fd, &was, 1, (off_t)at), 1);
        other = was ^ (unsigned char)(1u << (random >> 61));
        assert_int_equal(pwrite(fd, &other, 1, (off_t)at), 1);
        if (inv_session_load_state(r.s, path_of_state(), NULL) != INV_E_PARSE) fail_msg("byte %zu", at);
        assert_int_equal(pwrite(fd, &was, 1, (off_t)at), 1);
    }
    need(inv_session_load_state(r.s, path_of_state(), NULL));
    close(fd);
    end(&r);
    model_text = text;
    (void)unlink(path_of_state());
}

static void cut_and_moved(void **state)
{
    static unsigned char bytes[FEW], other[FEW];
    size_t n;
    (void)state;
    run r = with_saved_state(bytes, &n);
    for (size_t k = n; k-- > 0;) {
        assert_int_equal(truncate(path_of_state(), (off_t)k), 0);
        refused(&r, "cut", k);
    }
    bytes[n] = 0;
    write_all(bytes, n + 1);
    refused(&r, "longer", n);

    const size_t head = 8 + header_of(bytes), size = WIDTH * WIDTH * sizeof(float);
    memcpy(other, bytes, n);
    memcpy(other + head, bytes + n - size, size); /* the first and the last tensor change places */
    memcpy(other + n - size, bytes + head, size);
    assert_memory_not_equal(other, bytes, n);
    write_all(other, n);
    refused(&r, "swapped", head);

    memset(other + head, 0, size); /* as a disk that has lost a block gives it */
    write_all(other, n);
    refused(&r, "zeros", head);
    end(&r);
    (void)unlink(path_of_state());
}

/* The file again, with another header, of which `change` makes what it likes. The header's checksum is that of the new
 * one unless the text does not begin as it should. */
static void write_with_header(const unsigned char *bytes, size_t n, void (*change)(json_t *header))
{
    static unsigned char made[FEW];
    const size_t old = header_of(bytes), first = 8 + strlen("{\"__metadata__\":{\"checksums\":\"");
    json_t *header = json_loadb((const char *)bytes + 8, old, 0, NULL);
    assert_non_null(header);
    change(header);
    char *made_text = json_dumps(header, JSON_COMPACT);
    const size_t length = strlen(made_text);
    memset(made, 0, 8);
    for (int i = 0; i < 8; i++) made[i] = (unsigned char)(length >> 8 * i);
    memcpy(made + 8, made_text, length);
    memcpy(made + 8 + length, bytes + 8 + old, n - 8 - old);
    if (strstr(made_text, "checksums")) {
        inv_checksum sum;
        memset(made + first, '0', INV_CHECKSUM_DIGITS);
        inv_checksum_begin(&sum);
        inv_checksum_add(&sum, made, 8 + length);
        inv_checksum_end(&sum, (char *)made + first);
    }
    write_all(made, 8 + length + n - 8 - old);
    free(made_text);
    json_decref(header);
}

static json_t *place_of(json_t *header, const char *name)
{
    return json_object_get(json_object_get(header, name), "data_offsets");
}

static void leave(json_t *header) { (void)header; }
static void overlap(json_t *header)
{
    json_array_clear(place_of(header, "v"));
    json_array_extend(place_of(header, "v"), place_of(header, "w"));
}
static void drop_last(json_t *header)
{
    const char *name, *last = NULL;
    json_t *row;
    json_object_foreach(header, name, row) last = name;
    json_object_del(header, last);
}
static void drop_checksums(json_t *header) { json_object_del(json_object_get(header, "__metadata__"), "checksums"); }
static void set_format(json_t *header, const char *format)
{
    json_object_set_new(json_object_get(header, "__metadata__"), "format", json_string(format));
}
static void say_earlier(json_t *header) { set_format(header, "invonnx-state-1"); }
static void make_earlier(json_t *header)
{
    drop_checksums(header);
    say_earlier(header);
}
static void say_later(json_t *header) { set_format(header, "invonnx-state-3"); }

/* What no checksum tells, since somebody has made the header anew. */
static void other_headers(void **state)
{
    static void (*const wrong[])(json_t *) = {overlap, drop_last, drop_checksums, say_earlier, say_later};
    static unsigned char bytes[FEW];
    char *report = NULL;
    size_t n;
    (void)state;
    run r = with_saved_state(bytes, &n);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_with_header(bytes, n, wrong[i]);
        refused(&r, "another header", i);
    }
    write_with_header(bytes, n, leave);
    need(inv_state_inspect(ctx, path_of_state(), &report));
    assert_non_null(strstr(report, "\"checksums\": true"));
    inv_free(ctx, report);
    write_with_header(bytes, n, make_earlier); /* of a version that gave none */
    need(inv_state_inspect(ctx, path_of_state(), &report));
    assert_non_null(strstr(report, "\"checksums\": false"));
    inv_free(ctx, report);
    need(inv_session_load_state(r.s, path_of_state(), NULL));
    assert_int_equal(inv_session_steps(r.s), 1);
    end(&r);
    (void)unlink(path_of_state());
}

static void no_files(void **state)
{
    (void)state;
    run r = begin(of(INV_OPT_SGD), ROWS, 0);
    assert_int_equal(mkfifo(path_of_state(), 0600), 0); /* nobody writes to it */
    assert_int_equal(inv_session_load_state(r.s, path_of_state(), NULL), INV_E_IO);
    assert_int_equal(inv_state_read(ctx, path_of_state(), NULL, NULL), INV_E_IO);
    assert_int_equal(inv_session_save_state(r.s, path_of_state(), NULL), INV_E_IO);
    (void)unlink(path_of_state());
    assert_int_equal(inv_session_load_state(r.s, "/", NULL), INV_E_IO);
    assert_int_equal(inv_session_load_state(r.s, "/dev/zero", NULL), INV_E_IO);
    end(&r);
}

/* --- failures --- */

static int count_entries(const char *folder)
{
    DIR *d = opendir(folder);
    int n = 0;
    assert_non_null(d);
    while (readdir(d)) n++;
    closedir(d);
    return n;
}

/* What a call that fails may leave behind. */
typedef struct traces {
    size_t live;
    int open, files;
} traces;

static traces look(const failing_memory *memory)
{
    return (traces){memory->live, count_entries("/proc/self/fd"), count_entries(".")};
}

static void same_traces(traces a, traces b, const char *what)
{
    if (a.live != b.live || a.open != b.open || a.files != b.files)
        fail_msg("%s leaves %zd blocks, %d descriptors, %d files", what, (ssize_t)(b.live - a.live), b.open - a.open,
                 b.files - a.files);
}

static void failures(void **state)
{
    failing_memory memory = {0};
    const inv_allocator a = {counted_alloc, counted_free, &memory};
    const inv_context_options co = {.size = sizeof co, .allocator = &a};
    inv_context *usual = ctx;
    struct rlimit old, small;
    (void)state;
    assert_int_equal(inv_context_create(&co, &ctx), INV_OK);
    run r = begin(of(INV_OPT_ADAM), ROWS, 0);
    (void)step_once(&r, 0.01);
    need(inv_session_save_state(r.s, path_of_state(), NULL)); /* what is allocated once */
    need(inv_session_load_state(r.s, path_of_state(), NULL));
    struct stat st;
    assert_int_equal(stat(path_of_state(), &st), 0);
    (void)unlink(path_of_state());
    const struct {
        const char *path;
        rlim_t most; /* bytes of a file: a limit stands for a full disk */
    } bad[] = {{"missing/folder/state", RLIM_INFINITY},
               {"/proc/state", RLIM_INFINITY},
               {"/dev/null", RLIM_INFINITY},
               {path_of_state(), 0},
               {path_of_state(), 100},
               {path_of_state(), (rlim_t)st.st_size - 1}};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    traces before = look(&memory);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        small = old;
        small.rlim_cur = bad[i].most;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
        const inv_status failed = inv_session_save_state(r.s, bad[i].path, NULL);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(failed, INV_E_IO);
        same_traces(before, look(&memory), bad[i].path);
    }
    for (int what = 0; what < 3; what++) {
        inv_status got = INV_E_NOMEM;
        before = look(&memory);
        for (size_t k = 1; got == INV_E_NOMEM; k++) {
            memory.fail_at = memory.made + k;
            got = what == 0   ? inv_session_save_state(r.s, path_of_state(), "note")
                  : what == 1 ? inv_state_read(ctx, path_of_state(), NULL, NULL)
                              : inv_session_load_state(r.s, path_of_state(), NULL);
            memory.fail_at = 0;
            if (got == INV_E_NOMEM) same_traces(before, look(&memory), "a failed allocation");
            assert_true(got == INV_OK || got == INV_E_NOMEM);
        }
    }
    end(&r);
    inv_context_destroy(ctx);
    ctx = usual;
    assert_int_equal(memory.live, 0);
    (void)unlink(path_of_state());
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(checksums),     cmocka_unit_test(every_byte),
                                       cmocka_unit_test(random_bits),   cmocka_unit_test(cut_and_moved),
                                       cmocka_unit_test(other_headers), cmocka_unit_test(no_files),
                                       cmocka_unit_test(failures)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
