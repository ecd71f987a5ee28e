/* test_view.c - view_program: a program's graphs as the compiler's last stage had them, and
 * programs with wrong numbers in their tables, which may be shown or refused but must not be
 * believed.
 */
#include "inspect/view.h"

#include "inspect/graph_view.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail /* base/status.h has one */

static struct prog_header *compile(const struct compile_hook *hook) {
    struct diag d = {0};
    qn_engine_params params, p;
    const struct backend *backend;
    struct model *model;
    struct engine_plan plan;
    struct prog_header *program;
    qn_engine_params_init(&params);
    params.model = "models/tiny";
    params.backend = "cpu";
    params.threads = 2;
    params.max_num_seqs = 1;
    params.max_num_batched_tokens = 2;
    assert_int_equal(engine_params(&d, &params, &p), QN_OK);
    assert_int_equal(backend_find(&d, p.backend, &backend), QN_OK);
    assert_int_equal(engine_model(&d, &p, &model), QN_OK);
    assert_int_equal(engine_program(&d, &p, model, backend, hook, NULL, &plan, &program), QN_OK);
    model_free(model);
    return program;
}

/* Everything that the commands look at, as text. */
static int on_kernel(void *user, struct diag *d, const struct kgraph *k) {
    const struct view_scope scope = {.layer = VIEW_ALL_LAYERS};
    struct view v = {0};
    TRY(view_kernel(d, k, &scope, &v));
    view_text(&v, user);
    view_fini(&v);
    return QN_OK;
}

static int on_tasks(void *user, struct diag *d, const struct tgraph *g, enum task_stage stage) {
    const struct view_scope scope = {.layer = VIEW_ALL_LAYERS};
    struct view v = {0};
    if (stage != STAGE_TRANSPORT) return QN_OK;
    TRY(view_tasks(d, g, stage, &scope, &v));
    view_text(&v, user);
    view_fini(&v);
    TRY(view_events(d, g, &scope, &v));
    view_text(&v, user);
    view_fini(&v);
    return QN_OK;
}

static void same_as_compiled(void **state) {
    (void)state;
    struct diag d = {0};
    struct strbuf want = {0}, have = {0};
    struct compile_hook hook = {.kernel = on_kernel, .tasks = on_tasks, .user = &want};
    struct prog_header *program = compile(&hook);
    hook.user = &have;
    assert_int_equal(view_program(&d, program, &hook), QN_OK);
    assert_true(want.n > 10000);
    assert_string_equal(strbuf_text(&have), strbuf_text(&want));
    strbuf_fini(&want);
    strbuf_fini(&have);
    free(program);
}

static uint32_t next_random(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

/* One number of one table is another one. */
static void spoil(struct prog_header *p, uint32_t *seed) {
    static const struct {
        int section;
        uint64_t size;
    } tables[] = {{SECTION_VARIANT, sizeof(struct prog_variant)},
                  {SECTION_TENSOR, sizeof(struct prog_tensor)},
                  {SECTION_OP, sizeof(struct prog_op)},
                  {SECTION_TASK, sizeof(struct prog_task)},
                  {SECTION_EVENT, sizeof(struct prog_event)}};
    const uint32_t values[] = {0, 1, 2, 7, 64, 0xffff, 0x7fffffff, PROG_NONE, next_random(seed)};
    uint32_t t = next_random(seed) % 5;
    uint64_t bytes = p->section[tables[t].section].count * tables[t].size;
    char *at =
        (char *)p + p->section[tables[t].section].offset + next_random(seed) % (bytes / 2) * 2;
    uint32_t value = values[next_random(seed) % (sizeof values / sizeof *values)];
    memcpy(at, &value, next_random(seed) % 2 ? 2 : 1);
}

static void spoiled(void **state) {
    (void)state;
    enum { TRIES = 3000 };
    uint32_t seed = 1, n_checked = 0, n_shown = 0;
    struct strbuf text = {0};
    const struct compile_hook hook = {.kernel = on_kernel, .tasks = on_tasks, .user = &text};
    struct prog_header *program = compile(NULL), *copy = malloc(program->total_bytes);
    assert_non_null(copy);
    for (int i = 0; i < TRIES; i++) {
        struct diag d = {0};
        memcpy(copy, program, program->total_bytes);
        spoil(copy, &seed);
        if (program_check(NULL, "spoiled", copy, copy->total_bytes) != QN_OK) continue;
        n_checked++;
        strbuf_clear(&text);
        if (view_program(&d, copy, &hook) == QN_OK)
            n_shown++;
        else
            assert_true(strlen(d.message) > 10);
    }
    /* Both happen: what program_check lets pass is not all right. */
    assert_true(n_checked > 100 && n_shown > 10 && n_shown < n_checked);
    strbuf_fini(&text);
    free(copy);
    free(program);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_compiled),
        cmocka_unit_test(spoiled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
