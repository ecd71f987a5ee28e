/* test_golden_plan.c - what the compiler chooses for the benchmarked shapes on an H100 and an H200,
 * against tests/golden/plan: by variant the operators of a layer, and for each how it is cut into
 * tasks and which form runs them. A change of policy shows here, in review.
 *
 * Made anew, where a change is meant: QN_TEST_WRITE=1 ctest -R golden_plan
 * QN_TEST_SHORT (any value) leaves out two models, unless files are made.
 *
 * An operator has a number in its file, and stands where it is first seen: its dot products'
 * length, its units and rows, its tasks (row tiles x unit tiles) and the forms that these run: how
 * many tasks each, with tile, group, columns, unit_blocks of struct cuda_task. A variant has a hash
 * of which worker has which task, and its operators, NUMBERxHOW MANY in the order of the first.
 */
#include "base/checked.h"
#include "codegen/cuda_tables.h"
#include "engine/compile.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail /* base/status.h has one */

enum { SMS = 132, POSITIONS = 4096, MAX_WALKS = 32, MAX_OPS = 512 };

static const struct {
    const char *name;
    double bytes_per_ns; /* what memory brings an SM, on paper */
} cards[] = {{"h100", 25.4}, {"h200", 37.3}};

/* Requests in flight. */
static const uint32_t requests[] = {64, 32, 16, 8, 1};

struct plan {
    struct prog_header *program;
    struct cuda_task *tasks;
};

static struct plan make_plan(const char *dir, size_t card, uint32_t n_slots) {
    struct diag d = {0};
    struct model *model;
    struct compile_options o;
    struct plan plan = {0};
    uint64_t bytes;
    compile_options_init(&o);
    const struct device device = device_cuda(90, SMS, cards[card].bytes_per_ns);
    compile_options_cuda(&o, &device);
    o.n_slots = n_slots;
    o.max_model_len = POSITIONS;
    assert_int_equal(model_open(&d, dir, &(struct model_options){.dummy = true}, &model), QN_OK);
    const int rc = compile_model(&d, model, &o, NULL, NULL, &plan.program);
    if (rc != QN_OK) print_message("%s: %s\n", dir, d.message);
    assert_int_equal(rc, QN_OK);
    const struct prog_header *p = plan.program;
    struct cuda_place *places = calloc(p->section[SECTION_WEIGHT].count, sizeof *places);
    plan.tasks = calloc(p->section[SECTION_TASK].count, sizeof *plan.tasks);
    assert_true(places != NULL && plan.tasks != NULL);
    assert_int_equal(cuda_tables_plan(&d, p, places, &bytes), QN_OK);
    const struct cuda_bases bases = {.cc = 90};
    assert_int_equal(cuda_tables_fill(&d, p, places, &bases, plan.tasks), QN_OK);
    free(places);
    model_free(model);
    return plan;
}

static void plan_free(struct plan *plan) {
    free(plan->program);
    free(plan->tasks);
}

/* ---- the text ---- */

/* How a task goes through what it has: the same words, the same walk. */
static void put_walk(const struct cuda_task *t, char *out, size_t size) {
    int n = snprintf(out, size, "%s", cuda_form_name(t->kind, t->form));
    if (cuda_has_pages(t->kind) || t->kind == OP_ATTENTION)
        snprintf(out + n, size - (size_t)n, " %u %u %u %u", t->tile, t->group, t->columns,
                 t->unit_blocks);
}

/* Whether put_walk writes the same of both. */
static bool same_walk(const struct cuda_task *a, const struct cuda_task *b) {
    return a->kind == b->kind && a->form == b->form && a->tile == b->tile && a->group == b->group &&
           a->columns == b->columns && a->unit_blocks == b->unit_blocks;
}

/* Tasks of a variant by operator: those of operator v->first_op + i are of[first[i]] and so on, up
 * to of[first[i + 1]], in their order. */
struct sorted {
    uint32_t *of, *first;
};

static struct sorted sort_tasks(const struct plan *plan, const struct prog_variant *v) {
    const struct prog_task *tasks = PROG(plan->program, TASK);
    struct sorted s = {calloc(v->n_tasks + 1, sizeof *s.of), calloc(v->n_ops + 2, sizeof *s.first)};
    assert_true(s.of != NULL && s.first != NULL);
    const uint32_t end = v->first_task + v->n_tasks;
    for (uint32_t t = v->first_task; t < end; t++)
        if (tasks[t].op != PROG_NONE) s.first[tasks[t].op - v->first_op + 2]++;
    for (uint32_t i = 2; i < v->n_ops + 2; i++) s.first[i] += s.first[i - 1];
    for (uint32_t t = v->first_task; t < end; t++)
        if (tasks[t].op != PROG_NONE) s.of[s.first[tasks[t].op - v->first_op + 1]++] = t;
    return s;
}

static void put_op(const struct plan *plan, const struct prog_variant *v, const struct sorted *s,
                   uint32_t op_idx, struct strbuf *out) {
    const struct prog_op *op = &PROG(plan->program, OP)[op_idx];
    char walk[MAX_WALKS][96], here[96];
    uint32_t count[MAX_WALKS], n = 0, n_tasks = 0, n_first_rows = 0, i = 0;
    const struct cuda_task *before = NULL;
    for (uint32_t at = s->first[op_idx - v->first_op]; at < s->first[op_idx - v->first_op + 1];
         at++) {
        const uint32_t t = s->of[at];
        const struct prog_task *task = &PROG(plan->program, TASK)[t];
        n_tasks++;
        n_first_rows += task->row0 == 0;
        if (before != NULL && same_walk(before, &plan->tasks[t])) {
            count[i]++;
            continue;
        }
        before = &plan->tasks[t];
        put_walk(before, here, sizeof here);
        i = 0;
        while (i < n && strcmp(walk[i], here) != 0) i++;
        assert_true(i < MAX_WALKS);
        if (i == n) {
            memcpy(walk[i], here, sizeof here);
            count[n++] = 0;
        }
        count[i]++;
    }
    strbuf_printf(out, "%s k %u units %u rows %u tasks %ux%u:", op_name(op->kind), op->k, op->units,
                  op->n_rows, n_tasks / MAX(n_first_rows, 1u), n_first_rows);
    for (i = 0; i < n; i++) strbuf_printf(out, "%s %u %s", i > 0 ? "," : "", count[i], walk[i]);
}

/* One form of each operator is taken, the one that its descriptors have, and lacks nothing. */
static void check_forms(const struct plan *plan, const struct prog_variant *v) {
    const struct cuda_form_host host = cuda_form_host_for(plan->program, 90);
    for (uint32_t t = v->first_task; t < v->first_task + v->n_tasks; t++) {
        /* The first of each operator. */
        const uint32_t op = PROG(plan->program, TASK)[t].op;
        if (t > v->first_task && PROG(plan->program, TASK)[t - 1].op == op) continue;
        struct cuda_form_row rows[CUDA_FORM_ROWS];
        const uint32_t n = cuda_form_list(&host, &PROG(plan->program, TASK)[t], v->context, rows);
        uint32_t n_taken = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (!rows[i].taken) continue;
            n_taken++;
            assert_null(rows[i].why_not);
            assert_int_equal(rows[i].entry, plan->tasks[t].form);
        }
        assert_int_equal(n_taken, n > 0);
    }
}

/* Which worker has which task. */
static uint32_t placement(const struct plan *plan, const struct prog_variant *v) {
    uint32_t hash = 2166136261u;
    for (uint32_t t = v->first_task; t < v->first_task + v->n_tasks; t++) {
        const struct prog_task *task = &PROG(plan->program, TASK)[t];
        const uint32_t words[] = {task->op == PROG_NONE ? PROG_NONE : task->op - v->first_op,
                                  task->worker,
                                  task->row0,
                                  task->row1,
                                  task->unit0,
                                  task->unit1};
        for (size_t i = 0; i < COUNT_OF(words); i++) hash = (hash ^ words[i]) * 16777619u;
    }
    return hash;
}

/* Operators that stand in the file already. */
struct seen {
    char *text[MAX_OPS];
    uint32_t n;
};

static uint32_t seen_at(struct seen *s, const char *text) {
    uint32_t i = 0;
    while (i < s->n && strcmp(s->text[i], text) != 0) i++;
    if (i < s->n) return i;
    assert_true(s->n < MAX_OPS);
    s->text[s->n] = strdup(text);
    assert_non_null(s->text[s->n]);
    return s->n++;
}

/* New operators to out, what the variant has of which to *line. */
static void put_ops(const struct plan *plan, const struct prog_variant *v, struct seen *seen,
                    struct strbuf *out, struct strbuf *line) {
    uint32_t count[MAX_OPS] = {0}, order[MAX_OPS], n = 0;
    const struct sorted s = sort_tasks(plan, v);
    for (uint32_t o = v->first_op; o < v->first_op + v->n_ops; o++) {
        struct strbuf text = {0};
        put_op(plan, v, &s, o, &text);
        assert_int_equal(strbuf_status(NULL, &text), QN_OK);
        const uint32_t n_before = seen->n, at = seen_at(seen, strbuf_text(&text));
        if (at == n_before) strbuf_printf(out, "  %u = %s\n", at, strbuf_text(&text));
        if (count[at]++ == 0) order[n++] = at;
        strbuf_fini(&text);
    }
    free(s.of);
    free(s.first);
    for (uint32_t i = 0; i < n; i++)
        strbuf_printf(line, count[order[i]] > 1 ? " %ux%u" : " %u", order[i], count[order[i]]);
}

static void put_plan(const struct plan *plan, struct seen *seen, struct strbuf *out) {
    const struct prog_header *p = plan->program;
    for (uint64_t i = 0; i < p->section[SECTION_VARIANT].count; i++) {
        const struct prog_variant *v = &PROG(p, VARIANT)[i];
        struct strbuf line = {0};
        check_forms(plan, v);
        put_ops(plan, v, seen, out, &line);
        assert_int_equal(strbuf_status(NULL, &line), QN_OK);
        strbuf_printf(out, "rows %u context %u%s placed %08x operators%s\n", v->n_rows, v->context,
                      v->decode_only ? " decode only" : "", placement(plan, v), strbuf_text(&line));
        strbuf_fini(&line);
    }
}

static void put_entries(const bool *used, struct strbuf *out) {
    for (uint32_t i = FORM_STOP + 1; i < FORM_DROP; i++)
        if (used[i]) strbuf_printf(out, " %s", cuda_entry_name(i));
    strbuf_printf(out, "\n");
}

/* The program's tasks may run these entries of form.def. The image has all of them. */
static void put_code(const struct plan *plan, struct strbuf *out) {
    struct diag d = {0};
    bool used[N_FORMS], all[N_FORMS];
    assert_int_equal(cuda_form_used(&d, plan->program, 90, used), QN_OK);
    cuda_form_all(plan->program, 90, all);
    for (uint32_t i = 0; i < N_FORMS; i++) assert_true(all[i] || !used[i]);
    put_entries(used, out);
}

/* What an image is compiled from besides the sources. */
static void put_image(const struct plan *plan, struct strbuf *out) {
    bool all[N_FORMS];
    cuda_form_all(plan->program, 90, all);
    emit_constants(plan->program, out);
    emit_forms(all, out);
    assert_int_equal(strbuf_status(NULL, out), QN_OK);
}

/* All programs of the model have the same image, whatever the card and the number of requests. */
static void put_plans(const char *dir, struct strbuf *out) {
    struct seen seen = {0};
    struct strbuf image = {0}, other = {0};
    for (size_t card = 0; card < COUNT_OF(cards); card++)
        for (size_t r = 0; r < COUNT_OF(requests); r++) {
            struct plan plan = make_plan(dir, card, requests[r]);
            if (image.n == 0) {
                bool all[N_FORMS];
                put_image(&plan, &image);
                cuda_form_all(plan.program, 90, all);
                strbuf_printf(out, "the image has");
                put_entries(all, out);
            }
            strbuf_clear(&other);
            put_image(&plan, &other);
            assert_string_equal(strbuf_text(&image), strbuf_text(&other));
            strbuf_printf(out, "%s, %u requests, the program uses", cards[card].name, requests[r]);
            put_code(&plan, out);
            put_plan(&plan, &seen, out);
            plan_free(&plan);
        }
    for (uint32_t i = 0; i < seen.n; i++) free(seen.text[i]);
    strbuf_fini(&image);
    strbuf_fini(&other);
}

/* ---- against the file ---- */

static char *read_file(const char *path) {
    FILE *f = fopen(path, "rb");
    if (f == NULL) return NULL;
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    const size_t n = fread(text, 1, (1 << 20) - 1, f);
    assert_true(n < (1 << 20) - 1);
    fclose(f);
    return text;
}

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fputs(text, f) >= 0, 1);
    assert_int_equal(fclose(f), 0);
}

/* The first line that differs. */
static void compare(const char *path, const char *want, const char *have) {
    uint32_t line = 1;
    const char *w = want, *h = have;
    for (size_t i = 0; want[i] != '\0' && want[i] == have[i]; i++)
        if (want[i] == '\n') {
            line++;
            w = want + i + 1;
            h = have + i + 1;
        }
    if (strcmp(want, have) == 0) return;
    print_message("%s:%u: want\n%.*s\nhave\n%.*s\n(a change that is meant: QN_TEST_WRITE=1)\n",
                  path, line, (int)strcspn(w, "\n"), w, (int)strcspn(h, "\n"), h);
    assert_string_equal("what was chosen", "another choice");
}

static void check_shape(const char *folder, const char *name) {
    char dir[256], path[256];
    struct strbuf text = {0};
    snprintf(dir, sizeof dir, "tests/gpu/%s/%s", folder, name);
    snprintf(path, sizeof path, "tests/golden/plan/%s.txt", name);
    put_plans(dir, &text);
    assert_int_equal(strbuf_status(NULL, &text), QN_OK);
    if (getenv("QN_TEST_WRITE") != NULL) write_file(path, strbuf_text(&text));
    char *want = read_file(path);
    if (want == NULL) print_message("%s: is not there\n", path);
    assert_non_null(want);
    compare(path, want, strbuf_text(&text));
    free(want);
    strbuf_fini(&text);
}

static void leave_out(void) {
    if (getenv("QN_TEST_SHORT") != NULL && getenv("QN_TEST_WRITE") == NULL) skip();
}

static void qwen3_8b(void **state) {
    (void)state;
    check_shape("configs", "qwen3-8b");
}
static void qwen3_1_7b(void **state) {
    (void)state;
    leave_out(); /* qwen3-0.6b is beside it */
    check_shape("configs", "qwen3-1.7b");
}
static void qwen3_0_6b(void **state) {
    (void)state;
    check_shape("configs", "qwen3-0.6b");
}
static void llama_1b(void **state) {
    (void)state;
    check_shape("configs", "llama-3.2-1b");
}
static void qwen3_14b(void **state) {
    (void)state;
    leave_out(); /* qwen3-8b is beside it */
    check_shape("shapes", "qwen3-14b");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen3_8b), cmocka_unit_test(qwen3_1_7b), cmocka_unit_test(qwen3_0_6b),
        cmocka_unit_test(llama_1b), cmocka_unit_test(qwen3_14b),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
