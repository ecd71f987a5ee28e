/* Block graphs: the text form reads back, each rule of block_verify is broken once, thread graphs,
 * placement of buffers. */
#include "base/checked.h"
#include "block/block.h"
#include "block/thread_graph.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail /* base/status.h has one */

/* RMSNorm folded into the linear after it: the norm's factor is applied to the sums. */
static const char rms_linear[] = "task rms_linear expr 00000000000000ab\n"
                                 "  dim t grid tile 1\n"
                                 "  dim i grid size 6144 tile 16\n"
                                 "  dim h loop size 4096 tile 256\n"
                                 "  loop h\n"
                                 "  in x[t,h] act : before scratch bf16\n"
                                 "  in g[h] vec : early global bf16\n"
                                 "  in w[i,h] weight : loop page bf16\n"
                                 "  %3[] = number 1/100000 : early reg f32\n"
                                 "  %4[] = size over h : early reg f32\n"
                                 "  %5[t,h] = square(x) : before reg f32\n"
                                 "  %6[t] = sum(%5) over h : before reg f32 tree\n"
                                 "  %7[t] = div(%6, %4) : before reg f32\n"
                                 "  %8[t] = add(%7, %3) : before reg f32\n"
                                 "  %9[t] = rsqrt(%8) : before reg f32\n"
                                 "  %10[t,h] = mul(x, g) : loop reg f32\n"
                                 "  %11[t,i] = mm(%10, w) over h : loop reg f32 tree\n"
                                 "  %12[t,i] = acc_sum(%11) over h : after reg f32 parts8\n"
                                 "  %13[t,i] = mul(%12, %9) : after reg f32\n"
                                 "  out y bf16 = %13\n"
                                 "end\n";

/* Two tasks: parts of a sum over h, handed over, added up. */
static const char split_sum[] = "task parts\n"
                                "  dim p grid size 4 tile 1 of h\n"
                                "  dim q whole size 64 tile 1 of h\n"
                                "  in x[p,q] act : before scratch f32\n"
                                "  %1[p] = sum(x) over q : before reg f32 tree\n"
                                "  out part f32 = %1\n"
                                "end\n"
                                "task merge\n"
                                "  dim p whole size 4 tile 1 of h\n"
                                "  in part[p] act : before reg f32\n"
                                "  %1[] = sum(part) over p : before reg f32 shares\n"
                                "  out y f32 = %1\n"
                                "end\n";

static int read_text(struct diag *d, const char *text, struct block_graph *g) {
    *d = (struct diag){0};
    return block_read(d, "test", text, strlen(text), g);
}

static int verify_text(struct diag *d, const char *text) {
    const struct block_limits limits = block_limits_default();
    struct block_graph g;
    const int rc = read_text(d, text, &g);
    return rc != QN_OK ? rc : block_graph_verify(d, &g, &limits);
}

/* The text with the only occurrence of `from` replaced; free() it. */
static char *replaced(const char *text, const char *from, const char *to) {
    const char *at = strstr(text, from);
    assert_non_null(at);
    assert_null(strstr(at + 1, from));
    struct strbuf b = {0};
    strbuf_add(&b, text, (size_t)(at - text));
    strbuf_str(&b, to);
    strbuf_str(&b, at + strlen(from));
    return b.text;
}

static void text_reads_back(void **state) {
    (void)state;
    const char *const texts[] = {rms_linear, split_sum};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct diag d;
        struct block_graph g;
        struct strbuf out = {0};
        assert_int_equal(read_text(&d, texts[i], &g), QN_OK);
        block_write(&g, &out);
        assert_string_equal(strbuf_text(&out), texts[i]);
        strbuf_fini(&out);
        const int rc = verify_text(&d, texts[i]);
        if (rc != QN_OK) print_error("%s\n", d.message);
        assert_int_equal(rc, QN_OK);
    }
}

struct broken {
    const char *text, *from, *to, *why;
};

static void check_broken(const struct broken *b, size_t n, int code) {
    for (size_t i = 0; i < n; i++) {
        struct diag d;
        char *text = replaced(b[i].text, b[i].from, b[i].to);
        const int rc = verify_text(&d, text);
        if (rc != code || strstr(d.message, b[i].why) == NULL)
            print_error("'%s' -> '%s': %s\n", b[i].from, b[i].to, d.message);
        assert_int_equal(rc, code);
        assert_non_null(strstr(d.message, b[i].why));
        free(text);
    }
}

static void each_rule_is_held(void **state) {
    (void)state;
    const char *const r = rms_linear, *const s = split_sum;
    const struct broken broken[] = {
        {r, "  out y bf16 = %13\n", "", "has no output"},
        {r, "  dim t grid tile 1\n", "  dim t grid tile 1\n  dim t grid tile 1\n",
         "two dims are named t"},
        {r, "dim h loop", "dim h whole", "want loop"},
        {r, "  loop h\n", "", "no loop goes through it"},
        {r, "tile 16\n", "tile 0\n", "out of range"},
        {r, "acc_sum(%11) over h : after", "acc_sum(%11) over h : loop",
         "an accumulator is read after its loop"},
        {r, "%9[t] = rsqrt(%8) : before", "%9[t] = rsqrt(%8) : early", "stage early after stage"},
        {r, "%10[t,h] = mul(x, g)", "%10[t] = mul(x, g)", "dims do not follow"},
        {r, "%5[t,h] = square(x)", "%5[t,h] = square(x) over h", "'over' without a reduction"},
        {r, "sum(%5) over h", "sum(%5) over i", "reduces a dim that its operand does not have"},
        {r, "%6[t] = sum(%5) over h", "%6[h] = sum(%5) over t", "a grid dim: no task sees"},
        {r, "%13[t,i] = mul(%12, %9)", "%13[t,h] = mul(%10, %9)", "without an accumulator"},
        {r, "%12[t,i] = acc_sum(%11)", "%12[t] = acc_sum(%5)", "accumulates what no loop makes"},
        {r, "%6[t] = sum(%5) over h : before reg f32 tree",
         "%6[t] = sum(%5) over h : before reg f32", "the order in which it adds is not known"},
        {r, "%9[t] = rsqrt(%8) : before reg f32", "%9[t] = rsqrt(%8) : before reg f32 tree",
         "nothing is added"},
        {r, "%9[t] = rsqrt(%8) : before reg", "%9[t] = rsqrt(%8) : before page",
         "pages bring inputs of a loop"},
        {r, "%9[t] = rsqrt(%8) : before reg", "%9[t] = rsqrt(%8) : before global",
         "only inputs are read in device memory"},
        {r, "dim h loop size 4096", "dim h loop", "its size is known at run time only"},
        {r, "out y bf16 = %13", "out y bf16 = %9", "lacks i, a grid dim"},
        {r, "out y bf16 = %13", "out y bf16 = %11", "is a partial sum over h"},
        {r, "out y bf16 = %13", "out y bf16 = %13\n  out y bf16 = %12", "two outputs are named y"},
        {r, "dim i grid size 6144 tile 16", "dim i grid size 6144 tile 512",
         "an iteration takes 32 pages"},
        {r, "dim t grid tile 1", "dim t grid tile 4", "bytes of scratch"},
        {r, "dim h loop size 4096 tile 256\n", "dim h loop size 400000 tile 256\n", "scratch"},
        {r, "4096 tile 256\n  loop h\n  in x[t,h] act : before scratch",
         "40000 tile 256\n  loop h\n  in x[t,h] act : before reg", "its values take 317 registers"},
        {s, "dim q whole size 64 tile 1 of h", "dim q whole size 64 tile 0 of h", "out of range"},
        {s,
         "task merge\n  dim p whole size 4 tile 1 of h\n"
         "  in part[p] act : before reg f32\n  %1[] = sum(part) over p",
         "task merge\n  dim q whole size 4 tile 1 of h\n"
         "  in part[q] act : before reg f32\n  %1[] = sum(part) over q",
         "other dims than task parts gives it"},
        {s, "in part[p] act : before", "in part[p] act : early", "is early, but task parts"},
    };
    check_broken(broken, COUNT_OF(broken), QN_EVERIFY);
}

/* What the text form cannot say. */
static void set_operator(struct block *b) {
    b->node[9].op = N_BLOCK_OPS;
}
static void set_later_operand(struct block *b) {
    b->node[9].a = 10;
}
static void set_stage(struct block *b) {
    b->node[9].stage = N_STAGES;
}
static void set_dim_it_lacks(struct block *b) {
    b->node[9].dims = 1 << 7;
}
static void set_input_late(struct block *b) {
    b->node[9].op = BLOCK_OP_INPUT;
}
static void set_operand_count(struct block *b) {
    b->node[9].b = 8;
}
static void set_same_name(struct block *b) {
    memcpy(b->in[1].name, b->in[0].name, BLOCK_NAME);
}
static void set_no_name(struct block *b) {
    b->in[1].name[0] = '7';
}
static void set_no_end(struct block *b) {
    memset(b->name, 'x', BLOCK_NAME);
}
static void set_number(struct block *b) {
    b->node[9].numerator = 1;
}
static void set_loop(struct block *b) {
    b->loop2 = BLOCK_DIMS;
}
static void set_count(struct block *b) {
    b->n_nodes = BLOCK_NODES + 1;
}
static void set_out(struct block *b) {
    b->out[0].node = b->n_nodes;
}

static void numbers_out_of_range_are_refused(void **state) {
    (void)state;
    static const struct {
        void (*set)(struct block *);
        const char *why;
    } cases[] = {{set_operator, "does not exist"},
                 {set_later_operand, "is not earlier"},
                 {set_stage, "out of range"},
                 {set_dim_it_lacks, "a dim that the task lacks"},
                 {set_input_late, "inputs are the first 3 nodes"},
                 {set_operand_count, "want 1 operands"},
                 {set_same_name, "two inputs are named x"},
                 {set_no_name, "input 1: name or kind"},
                 {set_no_end, "its name is no identifier"},
                 {set_number, "a number that is none"},
                 {set_loop, "a loop over a dim that is not there"},
                 {set_count, "than a task has room for"},
                 {set_out, "output 0: name, node"}};
    const struct block_limits limits = block_limits_default();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct diag d;
        struct block_graph g;
        assert_int_equal(read_text(&d, rms_linear, &g), QN_OK);
        cases[i].set(&g.task[0]);
        assert_int_equal(block_graph_verify(&d, &g, &limits), QN_EVERIFY);
        if (strstr(d.message, cases[i].why) == NULL) print_error("%s\n", d.message);
        assert_non_null(strstr(d.message, cases[i].why));
    }
}

/* What one iteration sums is a partial sum: only linear operators may take it to its accumulator.
 */
static void partial_sums_stay_linear(void **state) {
    (void)state;
    static const char text[] = "task parts\n"
                               "  dim t whole size 2 tile 1\n"
                               "  dim h loop size 64 tile 16\n"
                               "  loop h\n"
                               "  in c[] const : early reg f32\n"
                               "  in v[h] vec : early global f32\n"
                               "  in x[t,h] act : loop page bf16\n"
                               "  %3[t] = mm(x, v) over h : loop reg f32 tree\n"
                               "  %4[t] = mul(%3, c) : loop reg f32\n"
                               "  %5[t] = acc_sum(%4) over h : after reg f32 tree\n"
                               "  out y f32 = %5\n"
                               "end\n";
    const struct broken broken[] = {
        {text, "%4[t] = mul(%3, c)", "%4[t] = exp(%3)",
         "goes through an operator that is not linear"},
        {text, "%4[t] = mul(%3, c)", "%4[t] = div(c, %3)", "that is not linear"},
        {text, "%5[t] = acc_sum(%4) over h", "%5[] = acc_sum(%4) over t,h",
         "accumulates over another dim"},
        {text, "%4[t] = mul(%3, c)", "%4[t] = mul(%3, %3)", "a product of two partial sums"},
        {text, "%4[t] = mul(%3, c)", "%4[t] = add(%3, c)", "is added to what is none"},
        {text, "%4[t] = mul(%3, c)", "%4[t,h] = mul(%3, v)", "meets elements of h"},
        {text, "mm(x, v) over h : loop reg f32 tree", "max_over(x) over h : loop reg f32",
         "only sums are put together"},
        {text, "acc_sum(%4) over h : after reg f32 tree", "acc_max(%4) over h : after reg f32",
         "that is not linear"},
    };
    struct diag d;
    assert_int_equal(verify_text(&d, text), QN_OK);
    check_broken(broken, COUNT_OF(broken), QN_EVERIFY);
}

static void bad_text_says_where(void **state) {
    (void)state;
    const char *const r = rms_linear;
    const struct broken broken[] = {
        {r, "task rms_linear", "tusk rms_linear", "line 1: 'tusk' begins no statement"},
        {r, "end\n", "", "task rms_linear has no end"},
        {r, "dim t grid", "dim t grill", "line 2: 'grill' is no role of a dim"},
        {r, "expr 00000000000000ab", "expr ab", "line 1: want 16 hexadecimal digits"},
        {r, "tile 16\n", "tile 99999999999\n", "line 3: 99999999999 is more than"},
        {r, "  loop h", "  loop z", "line 5: 'z' is no dim of task rms_linear"},
        {r, "w[i,h] weight", "w[i,h] wait", "line 8: 'wait' is no kind of input"},
        {r, "number 1/100000", "number 1/0", "line 9: want a denominator"},
        {r, "%5[t,h] = square(x)", "%5[t,h] = squire(x)", "line 11: 'squire' is no operator"},
        {r, "rsqrt(%8)", "rsqrt(%9)", "line 15: %9 is not there yet"},
        {r, "rsqrt(%8)", "rsqrt(%8, x)", "line 15: want ')', have ','"},
        {r, "%9[t] =", "%8[t] =", "line 15: want %9, have %8"},
        {r, "out y bf16 = %13", "out y bf16 = %13 %13", "line 20: '%' after the end"},
        {r, "square(x) : before", "square(x) : sometimes", "'sometimes' is no stage"},
        {r, "out y bf16", "out y bf17", "'bf17' is no number format"},
    };
    check_broken(broken, COUNT_OF(broken), QN_EFORMAT);
}

/* A struct with any numbers in it is refused or is a graph that can be written and read back. */
static void any_numbers_are_held_to_the_rules(void **state) {
    (void)state;
    const struct block_limits limits = block_limits_default();
    struct block_graph good, g;
    struct diag d;
    uint64_t random = 88172645463325252u;
    uint32_t n_refused = 0;
    assert_int_equal(read_text(&d, rms_linear, &good), QN_OK);
    for (int i = 0; i < 20000; i++) {
        g = good;
        for (int k = 0; k <= i % 3; k++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            unsigned char *const bytes = (unsigned char *)&g;
            bytes[random % (sizeof g.n_tasks + sizeof g.task[0])] = (unsigned char)(random >> 40);
        }
        d = (struct diag){0};
        if (block_graph_verify(&d, &g, &limits) != QN_OK) {
            assert_true(d.message[0] != '\0');
            n_refused++;
            continue;
        }
        struct strbuf out = {0}, again = {0};
        struct block_graph read;
        block_write(&g, &out);
        assert_int_equal(read_text(&d, strbuf_text(&out), &read), QN_OK);
        block_write(&read, &again);
        assert_string_equal(strbuf_text(&out), strbuf_text(&again));
        strbuf_fini(&out);
        strbuf_fini(&again);
    }
    assert_true(n_refused > 2000);
}

static void thread_graphs_are_found(void **state) {
    (void)state;
    struct diag d;
    struct block_graph g;
    struct thread_graph graphs[BLOCK_NODES];
    struct strbuf out = {0};
    assert_int_equal(read_text(&d, rms_linear, &g), QN_OK);
    const uint32_t n = thread_graph_find(&g.task[0], graphs);
    for (uint32_t i = 0; i < n; i++) thread_graph_write(&g.task[0], &graphs[i], &out);
    assert_string_equal(strbuf_text(&out), "before [t,h] 1 registers\n"
                                           "  r0 = load %0\n"
                                           "  r0 = square r0  -> %5\n"
                                           "before [t] 2 registers\n"
                                           "  r0 = load %6\n"
                                           "  r1 = load %4\n"
                                           "  r0 = div r0 r1\n"
                                           "  r1 = load %3\n"
                                           "  r0 = add r0 r1\n"
                                           "  r0 = rsqrt r0  -> %9\n"
                                           "loop [t,h] 2 registers\n"
                                           "  r0 = load %0\n"
                                           "  r1 = load %1\n"
                                           "  r0 = mul r0 r1  -> %10\n"
                                           "after [t,i] 2 registers\n"
                                           "  r0 = load %12\n"
                                           "  r1 = load %9\n"
                                           "  r0 = mul r0 r1  -> %13\n");
    strbuf_fini(&out);
}

/* x * rsqrt(sum(x * x)) with x computed: its square and its product are two thread graphs. */
static void a_thread_graph_has_no_cycle(void **state) {
    (void)state;
    static const char text[] = "task norm\n"
                               "  dim h whole size 64 tile 1\n"
                               "  in a[h] act : before scratch f32\n"
                               "  in b[h] act : before scratch f32\n"
                               "  %2[h] = add(a, b) : before reg f32\n"
                               "  %3[h] = square(%2) : before reg f32\n"
                               "  %4[] = sum(%3) over h : before reg f32 tree\n"
                               "  %5[] = rsqrt(%4) : before reg f32\n"
                               "  %6[h] = mul(%2, %5) : before reg f32\n"
                               "  out y f32 = %6\n"
                               "end\n";
    struct diag d;
    struct block_graph g;
    struct thread_graph graphs[BLOCK_NODES];
    assert_int_equal(verify_text(&d, text), QN_OK);
    assert_int_equal(read_text(&d, text, &g), QN_OK);
    assert_int_equal(thread_graph_find(&g.task[0], graphs), 3);
    assert_int_equal(graphs[0].nodes, 1u << 2 | 1u << 3);
    assert_int_equal(graphs[0].stored, 1u << 2 | 1u << 3);
    assert_int_equal(graphs[1].nodes, 1u << 5);
    assert_int_equal(graphs[2].nodes, 1u << 6);
}

/* Three buffers of which two never live together: first fit in program order takes more. */
static void buffers_are_placed_well(void **state) {
    (void)state;
    static const char text[] = "task buffers\n"
                               "  dim a whole size 256 tile 1\n"
                               "  dim b whole size 1024 tile 1\n"
                               "  in x[a] act : before scratch f32\n"
                               "  in y[b] act : before global f32\n"
                               "  %2[] = sum(x) over a : before reg f32 tree\n"
                               "  %3[b] = mul(y, %2) : before scratch f32\n"
                               "  %4[] = sum(%3) over b : before reg f32 tree\n"
                               "  %5[b] = mul(y, %4) : before scratch f32\n"
                               "  %6[] = sum(%5) over b : before reg f32 tree\n"
                               "  out z f32 = %6\n"
                               "end\n";
    struct diag d;
    struct block_graph g;
    struct block_stats s;
    assert_int_equal(verify_text(&d, text), QN_OK);
    assert_int_equal(read_text(&d, text, &g), QN_OK);
    block_stats(&g.task[0], &s);
    assert_int_equal(s.scratch_bytes, 4096);
    assert_int_equal(s.n_reductions, 3);
    assert_int_equal(read_text(&d, rms_linear, &g), QN_OK);
    block_stats(&g.task[0], &s);
    assert_int_equal(s.scratch_bytes, 8192);
    assert_int_equal(s.page_bytes, 16 * 4096 * 2);
    assert_int_equal(s.n_accumulators, 1);
    assert_int_equal(s.per_stage[STAGE_LOOP], 3);
}

static void views_are_whole(void **state) {
    (void)state;
    struct diag d;
    struct block_graph g;
    struct strbuf dot = {0}, html = {0};
    assert_int_equal(read_text(&d, split_sum, &g), QN_OK);
    block_dot(&g, &dot);
    block_html(&g, &html);
    assert_non_null(strstr(strbuf_text(&dot), "n0_1 -> n1_0 [style=bold]"));
    assert_non_null(strstr(strbuf_text(&html), "</html>"));
    assert_null(strstr(strbuf_text(&html), "http"));
    strbuf_fini(&dot);
    strbuf_fini(&html);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_reads_back),
        cmocka_unit_test(each_rule_is_held),
        cmocka_unit_test(numbers_out_of_range_are_refused),
        cmocka_unit_test(partial_sums_stay_linear),
        cmocka_unit_test(bad_text_says_where),
        cmocka_unit_test(any_numbers_are_held_to_the_rules),
        cmocka_unit_test(thread_graphs_are_found),
        cmocka_unit_test(a_thread_graph_has_no_cycle),
        cmocka_unit_test(buffers_are_placed_well),
        cmocka_unit_test(views_are_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
