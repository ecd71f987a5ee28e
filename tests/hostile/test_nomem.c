/* test_nomem.c - the n-th allocation fails, for every n.
 *
 * The program is linked with --wrap for every function of libc that gives memory or threads (see
 * tests/CMakeLists.txt), so that the library's calls, and those of the archives linked into it,
 * come here. A scenario runs once to count its calls; then once for each n, with the n-th call
 * failing, and once more with all calls from the n-th on failing. Each time it must end with a
 * clean error and a message, or with the right result where the failure can be made up for; and
 * nothing may be left: blocks and maps are counted, AddressSanitizer builds look at them as well.
 *
 * jansson is left out: where one of its own allocations fails while it parses, version 2.14 reads
 * through a null pointer. Its memory comes from functions that do not fail here.
 */
#include "quern.h"

#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#define GOLDEN    "tests/golden/models/qwen3"
#define TOKENIZER "tests/golden/tokenizer/metaspace"
#define TINY      "models/tiny"

/* ---- the wrappers ------------------------------------------------------------------------- */

static atomic_long n_calls, fail_at, n_failed; /* fail_at 0: none */
static atomic_bool fail_on;                    /* all from fail_at on */
static atomic_long n_blocks, n_maps;           /* live */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t alignment, size_t n);
int __real_posix_memalign(void **p, size_t alignment, size_t n);
void __real_free(void *p);
void *__real_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
int __real_munmap(void *p, size_t n);
int __real_pthread_create(pthread_t *id, const pthread_attr_t *a, void *(*f)(void *), void *arg);

void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t alignment, size_t n);
int __wrap_posix_memalign(void **p, size_t alignment, size_t n);
char *__wrap_strdup(const char *text);
int __wrap_asprintf(char **text, const char *fmt, ...);
void __wrap_free(void *p);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
int __wrap_munmap(void *p, size_t n);
int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *a, void *(*f)(void *), void *arg);

static bool fails(void) {
    const long at = atomic_load(&fail_at), n = atomic_fetch_add(&n_calls, 1) + 1;
    if (at == 0 || (n != at && !(n > at && atomic_load(&fail_on)))) return false;
    atomic_fetch_add(&n_failed, 1);
    return true;
}

static void *counted(void *p) {
    if (p != NULL) atomic_fetch_add(&n_blocks, 1);
    return p;
}

/* For jansson: counted, never refused. */
static void *sure_malloc(size_t n) {
    return counted(__real_malloc(n));
}

void *__wrap_malloc(size_t n) {
    return fails() ? NULL : counted(__real_malloc(n));
}

void *__wrap_calloc(size_t n, size_t size) {
    return fails() ? NULL : counted(__real_calloc(n, size));
}

void *__wrap_realloc(void *p, size_t n) {
    if (fails()) return NULL;
    void *q = __real_realloc(p, n);
    if (p == NULL) counted(q);
    return q;
}

void *__wrap_aligned_alloc(size_t alignment, size_t n) {
    return fails() ? NULL : counted(__real_aligned_alloc(alignment, n));
}

int __wrap_posix_memalign(void **p, size_t alignment, size_t n) {
    if (fails()) return 12; /* ENOMEM */
    const int rc = __real_posix_memalign(p, alignment, n);
    if (rc == 0) counted(*p);
    return rc;
}

char *__wrap_strdup(const char *text) {
    const size_t n = strlen(text) + 1;
    char *copy = __wrap_malloc(n);
    return copy == NULL ? NULL : memcpy(copy, text, n);
}

int __wrap_asprintf(char **text, const char *fmt, ...) {
    char line[4096];
    va_list args;
    va_start(args, fmt);
    const int n = vsnprintf(line, sizeof line, fmt, args);
    va_end(args);
    *text = n < 0 || (size_t)n >= sizeof line ? NULL : __wrap_strdup(line);
    return *text == NULL ? -1 : n;
}

void __wrap_free(void *p) {
    if (p != NULL) atomic_fetch_sub(&n_blocks, 1);
    __real_free(p);
}

void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset) {
    if (fails()) return MAP_FAILED;
    void *p = __real_mmap(at, n, prot, flags, fd, offset);
    if (p != MAP_FAILED) atomic_fetch_add(&n_maps, 1);
    return p;
}

int __wrap_munmap(void *p, size_t n) {
    atomic_fetch_sub(&n_maps, 1);
    return __real_munmap(p, n);
}

int __wrap_pthread_create(pthread_t *id, const pthread_attr_t *a, void *(*f)(void *), void *arg) {
    return fails() ? 11 : __real_pthread_create(id, a, f, arg); /* EAGAIN */
}

/* ---- scenarios: each gives a code, and a number that says whether the result is right ------ */

struct outcome {
    int rc;
    qn_error error;
    uint64_t sum; /* of what came out */
};

static void add(struct outcome *o, const void *data, size_t n) {
    for (size_t i = 0; i < n; i++)
        o->sum = (o->sum ^ ((const unsigned char *)data)[i]) * 1099511628211u;
}

static qn_engine_params params_of(const char *model, const char *tokenizer) {
    qn_engine_params p;
    qn_engine_params_init(&p);
    p.model = model;
    p.tokenizer = tokenizer;
    p.backend = "cpu";
    p.threads = 2;
    p.max_num_seqs = 2;
    p.max_model_len = 32;
    p.max_num_batched_tokens = 2;
    return p;
}

static void take_tokens(qn_request *r, struct outcome *o) {
    qn_output out = {.struct_size = sizeof out};
    do {
        o->rc = qn_request_next(r, 20000, &out, &o->error);
        if (o->rc != QN_OK) return;
        add(o, &out.id, sizeof out.id);
        add(o, out.text, out.n_text);
    } while (out.finish_reason == QN_RUNNING);
}

static void generate_with(qn_engine *e, const char *stop, struct outcome *o) {
    static const int32_t ids[] = {1, 2, 3};
    const qn_prompt prompt = {.struct_size = sizeof prompt, .ids = ids, .n_ids = 3};
    qn_request *r[2] = {NULL, NULL};
    qn_sampling_params s;
    qn_sampling_params_init(&s, e);
    s.temperature = 0;
    s.max_tokens = 4;
    s.stop = &stop;
    s.n_stop = stop != NULL;
    for (int i = 0; i < 2 && o->rc == QN_OK; i++)
        o->rc = qn_request_submit(e, &prompt, &s, &r[i], &o->error);
    for (int i = 0; i < 2 && o->rc == QN_OK; i++) take_tokens(r[i], o);
    for (int i = 0; i < 2; i++) qn_request_free(r[i]);
}

static void open_and_generate(const char *model, const char *tokenizer, const char *program,
                              struct outcome *o) {
    qn_engine_params p = params_of(model, tokenizer);
    qn_engine *e = NULL;
    p.program = program;
    o->rc = qn_engine_open(&p, &e, &o->error);
    if (o->rc == QN_OK) generate_with(e, tokenizer != NULL ? "no such text" : NULL, o);
    qn_engine_close(e);
}

static void scenario_generate(struct outcome *o) {
    open_and_generate(GOLDEN, TOKENIZER, NULL, o);
}

static void scenario_tiny(struct outcome *o) {
    open_and_generate(TINY, NULL, NULL, o);
}

/* What compiles a request's grammar. */
static void scenario_structured(struct outcome *o) {
    static const char *const texts[] = {
        [QN_STRUCTURED_JSON_SCHEMA] = "{\"type\":\"object\",\"properties\":{\"a\":{\"allOf\":[{"
                                      "\"type\":\"integer\"},{\"minimum\":3}]"
                                      "},\"b\":{\"$ref\":\"#\"},\"c\":{\"enum\":[1,\"x\"]},\"d\":{"
                                      "\"type\":\"string\",\"pattern\":"
                                      "\"^[a-z]+$\"}},\"required\":[\"a\",\"z\"]}",
        [QN_STRUCTURED_REGEX] = "(a|b[^c]){2,5}",
        [QN_STRUCTURED_GRAMMAR] = "root ::= \"a\" b*\nb ::= [0-9]",
        [QN_STRUCTURED_CHOICE] = "[\"a\", \"b\"]",
    };
    qn_sampling_params s;
    qn_sampling_params_init(&s, NULL);
    o->rc = QN_OK;
    for (int kind = QN_STRUCTURED_JSON_SCHEMA; kind <= QN_STRUCTURED_CHOICE && o->rc == QN_OK;
         kind++) {
        s.structured_kind = kind;
        s.structured_text = texts[kind];
        o->rc = qn_sampling_params_check(&s, &o->error);
    }
}

static const char *program_path(void) {
    return "hostile_nomem.qnp";
}

static void scenario_compile(struct outcome *o) {
    const qn_engine_params p = params_of(GOLDEN, NULL);
    o->rc = qn_compile(&p, program_path(), &o->error);
}

static void scenario_program(struct outcome *o) {
    open_and_generate(GOLDEN, NULL, program_path(), o);
}

static void add_text(struct outcome *o, char *text) {
    if (o->rc == QN_OK) add(o, text, strlen(text));
    qn_free(text);
}

static void scenario_reports(struct outcome *o) {
    const qn_engine_params p = params_of(GOLDEN, NULL);
    char *text = NULL;
    o->rc = qn_graph_dump(&p, "place", 0, &text, &o->error);
    add_text(o, text);
    text = NULL;
    if (o->rc == QN_OK) o->rc = qn_inspect(&p, &text, &o->error); /* has times in it */
    qn_free(text);
    text = NULL;
    if (o->rc == QN_OK) o->rc = qn_verify(&p, &text, &o->error);
    qn_free(text);
#ifndef __SANITIZE_ADDRESS__ /* it loads NVRTC where there is one, which leaves memory behind */
    text = NULL;
    if (o->rc == QN_OK) o->rc = qn_environment(&text, &o->error);
    qn_free(text);
#endif
}

static void tokens_back(const qn_tokenizer *t, struct outcome *o) {
    static const char text[] = "The <s> mill's 12345 gr\xc3\xa9  \xff end";
    int32_t *ids = NULL;
    char *back = NULL;
    size_t n = 0, n_back = 0;
    o->rc = qn_tokenize(t, text, sizeof text - 1, 1, &ids, &n, &o->error);
    if (o->rc == QN_OK) {
        add(o, ids, n * sizeof *ids);
        o->rc = qn_detokenize(t, ids, n, 0, &back, &n_back, &o->error);
    }
    if (o->rc == QN_OK) add(o, back, n_back);
    qn_free(ids);
    qn_free(back);
}

static void scenario_tokenizer(struct outcome *o) {
    static const char messages[] = "[{\"role\":\"user\",\"content\":\"Hello\"}]";
    qn_tokenizer *t = NULL;
    qn_chat_params c;
    char *text = NULL;
    size_t n = 0;
    qn_chat_params_init(&c);
    c.chat_template = "qwen3";
    o->rc = qn_tokenizer_open(TOKENIZER, &t, &o->error);
    if (o->rc == QN_OK) tokens_back(t, o);
    if (o->rc == QN_OK) o->rc = qn_chat_render(t, messages, &c, &text, &n, &o->error);
    if (o->rc == QN_OK) add(o, text, n);
    qn_free(text);
    qn_tokenizer_close(t);
}

/* ---- the test ----------------------------------------------------------------------------- */

static long run(void (*scenario)(struct outcome *), long at, bool on, struct outcome *o) {
    *o = (struct outcome){.sum = 14695981039346656037u};
    atomic_store(&n_calls, 0);
    atomic_store(&n_failed, 0);
    atomic_store(&fail_on, on);
    atomic_store(&fail_at, at);
    scenario(o);
    atomic_store(&fail_at, 0);
    return atomic_load(&n_calls);
}

static void judge(const char *name, long at, const struct outcome *o, const struct outcome *good,
                  long blocks, long maps) {
    if (o->rc == QN_OK && o->sum != good->sum) fail_msg("%s %ld: another result", name, at);
    if (o->rc != QN_OK && (o->error.code != o->rc || o->error.message[0] == '\0'))
        fail_msg("%s %ld: code %d without its message", name, at, o->rc);
    if (o->rc == QN_EINTERNAL || o->rc == QN_ESTALL)
        fail_msg("%s %ld: %s", name, at, o->error.message);
    if (atomic_load(&n_blocks) != blocks || atomic_load(&n_maps) != maps)
        fail_msg("%s %ld: %ld blocks and %ld maps are left (%s)", name, at,
                 atomic_load(&n_blocks) - blocks, atomic_load(&n_maps) - maps, o->error.message);
}

/* Every n up to 1000, then one in `step` of the rest: a tokenizer makes thousands of like calls.
 * QN_TEST_SHORT (any value): every n up to 200, then one in 7 or more. */
static void every_call(const char *name, void (*scenario)(struct outcome *), long step) {
    const bool brief = getenv("QN_TEST_SHORT") != NULL;
    const long dense = brief ? 200 : 1000;
    if (brief && step < 7) step = 7;
    struct outcome good, o;
    long nomem = 0, other = 0, survived = 0;
    run(scenario, 0, false, &good); /* what is made once and kept: tables, thread stacks */
    const long blocks = atomic_load(&n_blocks), maps = atomic_load(&n_maps);
    const long n = run(scenario, 0, false, &good);
    if (good.rc != QN_OK) fail_msg("%s: %s", name, good.error.message);
    judge(name, 0, &good, &good, blocks, maps);
    for (long at = 1; at <= n; at += at < dense ? 1 : step)
        for (int on = 0; on < 2; on++) {
            run(scenario, at, on != 0, &o);
            judge(name, at, &o, &good, blocks, maps);
            if (atomic_load(&n_failed) == 0) continue; /* threads: not the same number each time */
            nomem += o.rc == QN_ENOMEM;
            survived += o.rc == QN_OK;
            other += o.rc != QN_OK && o.rc != QN_ENOMEM;
        }
    print_message("%s: %ld allocations; failing: %ld out of memory, %ld other errors, %ld made up "
                  "for\n",
                  name, n, nomem, other, survived);
    assert_true(nomem > 0);
}

static void generating(void **state) {
    (void)state;
    every_call("generate", scenario_generate, 1);
}
static void the_tiny_model(void **state) {
    (void)state;
    every_call("models/tiny", scenario_tiny, 97);
}
static void compiling(void **state) {
    (void)state;
    every_call("compile", scenario_compile, 1);
    every_call("a compiled program", scenario_program, 1);
    unlink(program_path());
}
static void structuring(void **state) {
    (void)state;
    every_call("structured outputs", scenario_structured, 1);
}
static void reporting(void **state) {
    (void)state;
    every_call("graph, inspect, verify, environment", scenario_reports, 1);
}
static void tokenizing(void **state) {
    (void)state;
    every_call("tokenizer and chat", scenario_tokenizer, 1);
}

int main(void) {
    json_set_alloc_funcs(sure_malloc, __wrap_free);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizing), cmocka_unit_test(compiling),
        cmocka_unit_test(generating), cmocka_unit_test(structuring),
        cmocka_unit_test(reporting),  cmocka_unit_test(the_tiny_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
