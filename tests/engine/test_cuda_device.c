/* On a real GPU: the CUDA backend against transformers' continuations, against itself in other
 * company, other chunks and other runs, and in trouble. Skips where there is no GPU; tests/gpu/run
 * runs it. QN_TEST_MODELS (folder names, separated by commas) picks golden models, QN_TEST a test,
 * QN_TEST_LIST lists the tests instead, QN_TEST_RUNS how often the same is asked for (20),
 * QN_TEST_OPTIONS adds compile options, QN_TEST_SHORT (any value) leaves out long prompts, most
 * tokens and some options; 2 leaves the golden models prompts of up to eight tokens and two tokens
 * of output. QN_TEST_CONTEXT is the length of a long context (1100, at most 40000). With
 * tests/emulator's libraries for the driver and NVRTC the same tests run on no GPU at all. */
#include "engine/cuda_rig.h"
#include "golden_experts.h"
#include "inspect/trace.h"
#include "runtime/rt_sync.h"

#include "base/jsonio.h"

#include <dirent.h>
#include <math.h>

#define GOLDEN "tests/golden/models"
#define ANY    GOLDEN "/qwen3-tied" /* supported by every backend */

enum { MAX_CASES = 16 };

static bool is_brief(void) {
    return getenv("QN_TEST_SHORT") != NULL;
}
static bool is_briefest(void) {
    return is_brief() && strcmp(getenv("QN_TEST_SHORT"), "2") == 0;
}

/* Matrices and activations are bf16 on the device, whatever the checkpoint has; the reference is
 * float32. The CPU backend with --dtype bfloat16 is up to 0.125 away in log-probability on these
 * models. Where the two best logits are nearer than MARGIN either may win, and nothing after that
 * can be compared. */
static const double MARGIN = 0.15, LOGPROB_ERROR = 0.15; /* as tests/engine/test_engine.c has */
static const double OTHER_EXPERTS = 0.05;                /* share of a model's sets */

/* ---- golden models ---- */

struct golden {
    struct request q;
    struct result want;
    double margins[MAX_OUT];
    json_t *experts; /* NULL: the model has none */
};

static uint32_t read_ints(const json_t *a, int32_t *out, uint32_t most) {
    uint32_t n = (uint32_t)json_array_size(a);
    assert_in_range(n, 1, most);
    for (uint32_t i = 0; i < n; i++) out[i] = (int32_t)json_integer_value(json_array_get(a, i));
    return n;
}

static size_t read_cases(const char *dir, struct golden *cases) {
    char path[400];
    json_t *root;
    struct diag d = {0};
    snprintf(path, sizeof path, "%s/cases.json", dir);
    if (jsonio_load(&d, path, 1 << 22, &root) != QN_OK) DIE("%s", d.message);
    const json_t *list = json_object_get(root, "cases");
    size_t n = json_array_size(list);
    assert_in_range(n, 1, MAX_CASES);
    for (size_t k = 0; k < n; k++) {
        const json_t *c = json_array_get(list, k);
        struct golden *g = &cases[k];
        memset(g, 0, sizeof *g);
        g->experts = json_incref(json_object_get(c, "experts"));
        g->q.n_prompt = read_ints(json_object_get(c, "prompt"), g->q.prompt, MAX_LEN - MAX_OUT);
        g->q.max_tokens = g->want.n = read_ints(json_object_get(c, "ids"), g->want.ids, MAX_OUT);
        for (uint32_t i = 0; i < g->want.n; i++) {
            const json_t *logprobs = json_object_get(c, "logprobs");
            g->want.logprobs[i] = (float)json_number_value(json_array_get(logprobs, i));
            g->margins[i] = json_number_value(json_array_get(json_object_get(c, "margins"), i));
        }
    }
    json_decref(root);
    return n;
}

/* Compares up to where rounding may have parted them; returns tokens compared, sets the worst
 * difference of log-probabilities. */
static uint32_t compare(const char *name, const struct golden *g, const struct result *have,
                        double *worst) {
    assert_int_equal(have->n, g->want.n);
    for (uint32_t i = 0; i < g->want.n; i++) {
        if (have->ids[i] != g->want.ids[i]) {
            if (g->margins[i] <= MARGIN) return i;
            DIE("%s: prompt of %u, token %u: %d (%g), want %d (%g), margin %g", name, g->q.n_prompt,
                i, have->ids[i], (double)have->logprobs[i], g->want.ids[i],
                (double)g->want.logprobs[i], g->margins[i]);
        }
        double error = fabs((double)have->logprobs[i] - (double)g->want.logprobs[i]);
        if (!(error <= LOGPROB_ERROR))
            DIE("%s: prompt of %u, token %u: log-probability %g, want %g", name, g->q.n_prompt, i,
                (double)have->logprobs[i], (double)g->want.logprobs[i]);
        if (error > *worst) *worst = error;
    }
    return g->want.n;
}

/* Compares the experts of a golden model's requests; they differ where rounding tipped the scales.
 */
static void check_experts(const struct model_spec *s, const struct golden *g,
                          const struct result *have, uint32_t n, struct golden_sets *sets) {
    if (s->experts.n == 0) {
        assert_true(have->n_routes == 0 && g->experts == NULL);
        return;
    }
    const size_t positions = g->q.n_prompt + n - (n > 0);
    assert_true(have->n_routes >= positions * s->n_layers * s->experts.top_k);
    assert_true(golden_compare_experts(g->experts, have->routes, positions, s->n_layers,
                                       s->experts.top_k, sets));
}

/* Whether the model can run there. */
static bool check_model(const struct backend *backend, const char *name) {
    static struct golden cases[MAX_CASES];
    char dir[300];
    struct rig r;
    struct diag d = {0};
    struct result have;
    const bool brief = is_brief();
    uint32_t compared = 0, total = 0;
    double worst = 0;
    struct golden_sets sets = {0};
    snprintf(dir, sizeof dir, "%s/%s", GOLDEN, name);
    int rc = rig_open(&d, backend, &(struct rig_options){.dir = dir}, &r);
    if (rc == QN_EUNSUPPORTED) {
        print_message("%-24s not supported: %s\n", name, d.message);
        rig_close(&r);
        return false;
    }
    if (rc != QN_OK) DIE("%s: %s", name, d.message);
    size_t n = read_cases(dir, cases);
    for (size_t k = 0; k < n; k++) {
        if (brief && cases[k].q.n_prompt > (is_briefest() ? 8 : 40)) continue;
        if (brief)
            cases[k].want.n = cases[k].q.max_tokens = MIN(cases[k].want.n, is_briefest() ? 2u : 6u);
        generate(&r, &cases[k].q, 1, &have);
        const uint32_t same = compare(name, &cases[k], &have, &worst);
        check_experts(&r.model->spec, &cases[k], &have, same, &sets);
        compared += same;
        total += cases[k].want.n;
    }
    for (size_t k = 0; k < n; k++) json_decref(cases[k].experts);
    rig_close(&r);
    print_message(
        "%-24s %u of %u tokens compared, log-probabilities within %.4f, %zu of %zu sets of "
        "experts differ\n",
        name, compared, total, worst, sets.n_other, sets.n);
    assert_true(total > 0 && 2 * compared > total);
    assert_true((double)sets.n_other <= OTHER_EXPERTS * (double)sets.n);
    return true;
}

static bool chosen(const char *name) {
    const char *list = getenv("QN_TEST_MODELS");
    size_t n = strlen(name);
    for (const char *p = list; p != NULL; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
        if (strncmp(p, name, n) == 0 && (p[n] == ',' || p[n] == '\0')) return true;
    return list == NULL;
}

static void need_gpu(void) {
    struct diag d = {0};
    if (backend_cuda.available(&d) == QN_OK) return;
    print_message("skipped: %s\n", d.message);
    skip();
}

static void test_golden(void **state) {
    (void)state;
    need_gpu();
    struct dirent **names;
    int n = scandir(GOLDEN, &names, NULL, alphasort), n_checked = 0, n_chosen = 0;
    assert_true(n > 2);
    for (int i = 0; i < n; i++) {
        if (names[i]->d_name[0] != '.' && chosen(names[i]->d_name)) {
            n_chosen++;
            n_checked += check_model(&backend_cuda, names[i]->d_name);
        }
        free(names[i]);
    }
    free(names);
    assert_true(2 * n_checked >= n_chosen && n_checked > 0);
}

/* ---- the same bits ---- */

enum { N_MIX = 6 };

static void mix(struct request q[N_MIX], uint32_t vocab) {
    const bool brief = is_brief();
    const uint32_t n_prompt[N_MIX] = {1, 5, 64, 17, brief ? 140 : 300, brief ? 33 : 130};
    for (uint32_t i = 0; i < N_MIX; i++)
        q[i] = made_up(i + 1, n_prompt[i], (40 - 3 * i) / (brief ? 6 : 1), vocab, i % 2 ? 0.8f : 0);
}

static void test_same_every_run(void **state) {
    (void)state;
    need_gpu();
    struct request q[N_MIX];
    static struct result first[N_MIX], again[N_MIX];
    struct rig r;
    open_well(&backend_cuda, &(struct rig_options){.dir = ANY}, &r);
    mix(q, r.model->spec.vocab);
    generate(&r, q, N_MIX, first);
    const char *runs = getenv("QN_TEST_RUNS");
    for (int run = 0; run < (runs ? atoi(runs) : 20); run++) {
        char what[40];
        snprintf(what, sizeof what, "run %d", run);
        generate(&r, q, N_MIX, again);
        for (int i = 0; i < N_MIX; i++) assert_same(&first[i], &again[i], what);
    }
    rig_close(&r);
}

/* An odd number of workers, fewer than the device has SMs. */
static uint32_t fewer_workers(void) {
    struct diag d = {0};
    struct backend_device device;
    struct backend_config config = {0};
    assert_int_equal(backend_cuda.device(&d, &config, &device), QN_OK);
    return device.compute.n_workers > 37 ? 37 : device.compute.n_workers - 1;
}

/* A model's requests alone, in a batch, and as each of the others says, which differ in what is not
 * to matter. */
static void compare_company(const char *dir, const struct rig_options *others, size_t n_others) {
    struct request q[N_MIX];
    static struct result alone[N_MIX], have[N_MIX];
    struct rig r;
    open_well(&backend_cuda, &(struct rig_options){.dir = dir}, &r);
    mix(q, r.model->spec.vocab);
    for (int i = 0; i < N_MIX; i++) generate(&r, &q[i], 1, &alone[i]);
    generate(&r, q, N_MIX, have);
    for (int i = 0; i < N_MIX; i++) assert_same(&alone[i], &have[i], "in a batch");
    rig_close(&r);
    for (size_t k = 0; k < n_others; k++) {
        struct rig_options o = others[k];
        char what[120];
        o.dir = dir;
        snprintf(what, sizeof what, "chunks of %u, %u workers, carry-bytes %u, JIT %d %d, %s",
                 o.max_batched, o.n_workers, (uint32_t)o.transport_bytes, o.hybrid, o.jit,
                 o.options != NULL ? o.options : "");
        open_well(&backend_cuda, &o, &r);
        generate(&r, q, N_MIX, have);
        for (int i = 0; i < N_MIX; i++) assert_same(&alone[i], &have[i], what);
        rig_close(&r);
    }
}

/* With prompts cut into other chunks, on fewer SMs, by flags instead of counters, handed out at run
 * time. */
static void test_same_in_any_company(void **state) {
    (void)state;
    need_gpu();
    const struct rig_options others[] = {{.max_batched = 8},
                                         {.n_workers = fewer_workers()},
                                         {.transport_bytes = 1 << 14, .coarse = true},
                                         {.hybrid = true, .coarse = true},
                                         {.jit = true},
                                         {.max_batched = 128},
                                         {.transport_bytes = 1 << 20},
                                         {.jit = true, .coarse = true}};
    compare_company(ANY, others, is_brief() ? 4 : COUNT_OF(others));
}

/* Blocks that another request has computed, and output that is computed again as a prompt, after a
 * request has given way: the same bits. */
static void test_same_from_shared_blocks(void **state) {
    (void)state;
    enum { N = 4 };
    need_gpu();
    struct request q[N];
    struct result alone[N], shared[N];
    uint32_t n_cached = 0, n_preempted = 0;
    struct rig_options o = {.dir = ANY, .n_slots = N, .max_len = 48, .options = "kv-block=16"};
    for (uint32_t i = 0; i < N; i++) {
        q[i] = made_up(1, 20, 15, 256, i % 2 ? 0.8f : 0); /* two blocks, then three */
        q[i].prompt[18] = (int32_t)i;
        q[i].seed = i;
    }
    struct rig r;
    open_well(&backend_cuda, &o, &r);
    generate(&r, q, N, alone);
    rig_close(&r);
    o.prefix_cache = true;
    o.n_kv_blocks = 4;
    open_well(&backend_cuda, &o, &r);
    generate(&r, q, N, shared);
    struct rt_counts counts;
    mailbox_counts(r.backend->mailbox(r.instance), &counts);
    rig_close(&r);
    assert_int_equal(counts.n_free, o.n_kv_blocks);
    assert_int_equal(counts.n_running + counts.n_waiting, 0);
    for (uint32_t i = 0; i < N; i++) {
        assert_same(&alone[i], &shared[i], "shared blocks");
        n_cached += shared[i].n_cached;
        n_preempted += shared[i].n_preempted;
    }
    assert_true(n_cached >= 16 * (N - 1) && n_preempted > 0);
    assert_int_equal(counts.n_preempted, n_preempted);
}

/* Bands of logit rows that the largest variant has. */
static uint32_t count_bands(const struct prog_header *p) {
    const struct prog_variant *v = PROG(p, VARIANT) + (p->section[SECTION_VARIANT].count - 1);
    uint32_t n = 0;
    for (uint32_t i = v->first_op; i < v->first_op + v->n_ops; i++)
        n += PROG(p, OP)[i].kind == OP_LM_HEAD;
    return n;
}

/* So many positions are scored in one iteration that its logit rows are two bands, the second one
 * filled in part; then none are, and the second band has no row: the bits of a single band. */
static void check_bands(const struct backend *backend) {
    enum { N = 2, N_SCORED = 390 };
    struct rig_options o = {.dir = ANY, .n_slots = N, .logit_rows = 30};
    static struct request q[N];
    static struct result single[N], bands[N];
    struct rig r;
    q[0] = made_up(1, N_SCORED + 10, 3, 256, 0.7f);
    q[1] = made_up(2, 20, 3, 256, 0);
    q[0].n_scored = N_SCORED;
    open_well(backend, &o, &r);
    assert_int_equal(count_bands(r.program), 1);
    generate(&r, q, N, single);
    rig_close(&r);
    o.max_batched = o.logit_rows = 520;
    open_well(backend, &o, &r);
    assert_int_equal(count_bands(r.program), 2);
    for (int scored = 1; scored >= 0; scored--) {
        if (!scored) q[0].n_scored = 0;
        generate(&r, q, N, bands);
        for (int i = 0; i < N; i++) assert_same(&single[i], &bands[i], "bands");
        if (scored)
            assert_memory_equal(bands[0].scores, single[0].scores, N_SCORED * sizeof(float));
    }
    rig_close(&r);
}

static void test_bands(void **state) {
    (void)state;
    need_gpu();
    check_bands(&backend_cuda);
    check_bands(&backend_cpu);
}

/* The log-probabilities of a prompt's tokens are those that they have as output, beside requests
 * that decode. */
static void test_prompt_is_scored(void **state) {
    (void)state;
    enum { N_PROMPT = 9, N_OUT = 11 };
    need_gpu();
    struct rig_options o = {.dir = ANY, .n_slots = 3, .max_len = 48, .options = "kv-block=16"};
    struct request q[2] = {made_up(5, N_PROMPT, N_OUT, 256, 0.7f), made_up(6, 3, 8, 256, 0)};
    struct result given, both[2];
    struct rig r;
    open_well(&backend_cuda, &o, &r);
    generate(&r, q, 1, &given);
    memcpy(q[0].prompt + N_PROMPT, given.ids, N_OUT * sizeof *given.ids);
    q[0].n_prompt = N_PROMPT + N_OUT;
    q[0].n_scored = N_OUT;
    q[0].max_tokens = 3;
    generate(&r, q, 2, both);
    rig_close(&r);
    assert_int_equal(both[0].n, 3);
    assert_memory_equal(both[0].scores, given.logprobs, N_OUT * sizeof *given.logprobs);
}

/* Nothing is a multiple of a tile: 360 rows of QKV, 264 and 328 columns, heads of 72 in a group of
 * three, a vocabulary of 331. */
#define ODD_SHAPE                                                                                  \
    "\"head_dim\": 72, \"intermediate_size\": 328, \"num_attention_heads\": 3, "                   \
    "\"num_key_value_heads\": 1, "
/* What attention and the gated MLP give is as wide as packed rows are, so that they pack. With a
 * vocabulary of 1,271 four workers have 20 row blocks of the LM head each, which no tile divides.
 */
#define EVEN_SHAPE                                                                                 \
    "\"head_dim\": 64, \"intermediate_size\": 512, \"num_attention_heads\": 4, "                   \
    "\"num_key_value_heads\": 2, "
/* An MLP, and an attention, too wide for a block's scratch: single rows are packed, too, and may
 * carry flags. */
#define WIDE_MLP                                                                                   \
    "\"head_dim\": 64, \"intermediate_size\": 15616, \"num_attention_heads\": 4, "                 \
    "\"num_key_value_heads\": 2, "
#define WIDE_ATTENTION                                                                             \
    "\"head_dim\": 64, \"intermediate_size\": 512, \"num_attention_heads\": 256, "                 \
    "\"num_key_value_heads\": 16, "
/* Nine k-tiles: partial sum 0 has two, the others one. Some workers' row blocks of LINEAR_SPLITK
 * are of two sums. */
#define PARTS_SHAPE                                                                                \
    "\"head_dim\": 64, \"intermediate_size\": 2304, \"num_attention_heads\": 8, "                  \
    "\"num_key_value_heads\": 4, "
/* LINEAR of three and of eleven k-tiles: trees with and without partial sums that have none. */
#define TREE_SHAPE                                                                                 \
    "\"head_dim\": 64, \"intermediate_size\": 2816, \"num_attention_heads\": 12, "                 \
    "\"num_key_value_heads\": 2, "
/* A residual stream that is packed by who writes it, for the norm that comes next. */
#define STREAM_SHAPE                                                                               \
    "\"head_dim\": 64, \"intermediate_size\": 512, \"num_attention_heads\": 4, "                   \
    "\"num_key_value_heads\": 2, "
/* What RESET_SENTINELS can be there for: all is packed by who writes it. */
#define SENTINEL_SHAPE                                                                             \
    "\"head_dim\": 128, \"intermediate_size\": 512, \"num_attention_heads\": 2, "                  \
    "\"num_key_value_heads\": 1, "
/* A hidden size of more k-tiles than a block has warps. */
#define WIDE_STREAM                                                                                \
    "\"head_dim\": 64, \"intermediate_size\": 256, \"num_attention_heads\": 8, "                   \
    "\"num_key_value_heads\": 2, "
#define WIDE_HEADS                                                                                 \
    "\"head_dim\": 128, \"intermediate_size\": 128, \"num_attention_heads\": 4, "                  \
    "\"num_key_value_heads\": 1, "
#define MANY_HEADS                                                                                 \
    "\"head_dim\": 64, \"intermediate_size\": 128, \"num_attention_heads\": 16, "                  \
    "\"num_key_value_heads\": 1, "
/* Keys and values have a page each, a KV head's queries are two steps. */
#define DEEP_HEADS                                                                                 \
    "\"head_dim\": 256, \"intermediate_size\": 64, \"num_attention_heads\": 16, "                  \
    "\"num_key_value_heads\": 1, "
/* What is left of 8 KV heads on each of two GPUs. */
#define FOUR_HEADS                                                                                 \
    "\"head_dim\": 32, \"intermediate_size\": 512, \"num_attention_heads\": 8, "                   \
    "\"num_key_value_heads\": 4, "
#define THIN_HEADS                                                                                 \
    "\"head_dim\": 32, \"intermediate_size\": 64, \"num_attention_heads\": 2, "                    \
    "\"num_key_value_heads\": 1, "
#define MADE_UP(hidden, vocab)                                                                     \
    "\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", "                       \
    "\"hidden_act\": \"silu\", \"hidden_size\": " hidden ", \"num_hidden_layers\": 1, "            \
    "\"vocab_size\": " vocab ", \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-06, "      \
    "\"rope_theta\": 10000, \"attention_bias\": false, \"torch_dtype\": \"bfloat16\", "            \
    "\"tie_word_embeddings\": false"

static void write_model(char *dir, const char *config) {
    char path[80];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(config, f) >= 0 && fclose(f) == 0);
}

static void drop_model(const char *dir) {
    char path[80];
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(unlink(path) | rmdir(dir), 0);
}

/* A made-up model row by row, of which none is packed, against as each of the others says: alone
 * and in a batch of N_MIX prompts of these lengths. */
static void compare_packed(const char *config, const uint32_t *lengths,
                           const struct rig_options *others, size_t n_others) {
    char dir[] = "/tmp/quern-odd-XXXXXX";
    static struct request q[N_MIX];
    static struct result plain[N_MIX], have[N_MIX];
    struct rig r;
    write_model(dir, config);
    const struct rig_options rows = {
        .dir = dir, .coarse = true, .max_batched = 1, .n_workers = 4, .dummy = true};
    open_well(&backend_cuda, &rows, &r);
    for (uint32_t i = 0; i < N_MIX; i++) q[i] = made_up(i + 1, lengths[i], 3, 331, 0);
    for (int i = 0; i < N_MIX; i++) generate(&r, &q[i], 1, &plain[i]);
    rig_close(&r);
    for (size_t k = 0; k < n_others; k++) {
        struct rig_options o = others[k];
        char what[60];
        o.dir = dir;
        o.dummy = true;
        open_well(&backend_cuda, &o, &r);
        snprintf(what, sizeof what, "chunks of %u, %u workers", o.max_batched,
                 r.program->n_workers);
        generate(&r, &q[4], 1, &have[4]);
        assert_same(&plain[4], &have[4], what);
        generate(&r, q, N_MIX, have);
        for (int i = 0; i < N_MIX; i++) assert_same(&plain[i], &have[i], what);
        print_message("%s: the same\n", what);
        rig_close(&r);
    }
    drop_model(dir);
}

/* Packed activations, and attention of many rows, against neither: in chunks of all sizes, in a
 * batch, with other tiles. */
static void test_same_packed(void **state) {
    (void)state;
    need_gpu();
    const struct rig_options odd[] = {{.coarse = true, .max_batched = 256},
                                      {.coarse = true, .max_batched = 8},
                                      {.coarse = true, .max_batched = 64, .n_workers = 1},
                                      {.max_batched = 52},
                                      {.coarse = true, .hybrid = true},
                                      {.coarse = true, .jit = true}};
    const struct rig_options even[] = {{.coarse = true, .max_batched = 256, .n_slots = 24},
                                       {.coarse = true, .max_batched = 16, .n_slots = 16}};
    const struct rig_options parts[] = {
        {.coarse = true, .max_batched = 64, .n_slots = 24, .options = "tile.linear_splitk=4x3"},
        {.coarse = true, .max_batched = 64, .n_slots = 24},
        {.coarse = true, .max_batched = 32, .n_slots = 24, .n_workers = 3}};
    /* Tiles of 128 tokens with an odd number of row blocks, too. */
    const struct rig_options stream[] = {
        {.coarse = true, .max_batched = 256, .options = "tile.linear=1x3,tile.qkv_linear=1x5"},
        {.coarse = true, .max_batched = 64, .n_slots = 24, .options = "linear=whole"},
        {.coarse = true, .max_batched = 256}};
    static const uint32_t all[N_MIX] = {1, 9, 64, 35, 150, 20},
                          brief[N_MIX] = {1, 9, 33, 20, 133, 12}, few[N_MIX] = {1, 9, 17, 3, 12, 2};
    const uint32_t *lengths = is_brief() ? brief : all;
    compare_packed("{" ODD_SHAPE MADE_UP("264", "331") "}", lengths, odd,
                   is_brief() ? 1 : COUNT_OF(odd));
    if (!is_brief())
        compare_packed("{" EVEN_SHAPE MADE_UP("272", "1271") "}", lengths, even, COUNT_OF(even));
    compare_packed("{" PARTS_SHAPE MADE_UP("512", "331") "}", few, parts,
                   is_brief() ? 1 : COUNT_OF(parts));
    compare_packed("{" STREAM_SHAPE MADE_UP("256", "331") "}", lengths, stream,
                   is_brief() ? 2 : COUNT_OF(stream));
}

/* Experts: of a width that no k-tile divides, chosen by few rows and by many, by tasks of ROUTER
 * that have one row of several, and placed where they would be if all were listed. */
#define EXPERTS(layers, hidden, experts, top_k, width)                                             \
    EXPERTS_OF("2", layers, hidden, experts, top_k, width)
#define EXPERTS_OF(kv_heads, layers, hidden, experts, top_k, width)                                \
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"model_type\": \"qwen3_moe\", "               \
    "\"hidden_act\": \"silu\", \"hidden_size\": " hidden ", \"intermediate_size\": 256, "          \
    "\"moe_intermediate_size\": " width ", \"num_experts\": " experts                              \
    ", \"num_experts_per_tok\": " top_k ", \"norm_topk_prob\": true, \"head_dim\": 64, "           \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": " kv_heads                               \
    ", \"num_hidden_layers\": " layers ", "                                                        \
    "\"vocab_size\": 331, \"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-06, "            \
    "\"rope_theta\": 10000, \"torch_dtype\": \"bfloat16\", \"tie_word_embeddings\": false}"
static void test_experts(void **state) {
    (void)state;
    need_gpu();
    static const uint32_t lengths[N_MIX] = {1, 9, 17, 3, 70, 2}, few[N_MIX] = {1, 9, 3, 2, 12, 1},
                          fewer[N_MIX] = {1, 2, 3, 1, 9, 1};
    const struct rig_options others[] = {
        {.max_batched = 256},
        {.coarse = true, .max_batched = 8, .n_workers = 3, .options = "tile.router=8x1"},
        {.max_batched = 32, .n_slots = 24, .options = "moe=static"},
        {.coarse = true, .jit = true},
        {.coarse = true, .hybrid = true, .max_batched = 16}};
    compare_packed(EXPERTS("2", "256", "12", "3", "328"), is_brief() ? few : lengths, others,
                   is_brief() ? 2 : COUNT_OF(others));
    if (is_brief())
        compare_packed(EXPERTS("1", "2304", "40", "1", "24"), fewer, others, 1);
    else
        compare_packed(EXPERTS("2", "2304", "40", "1", "40"), few, others, 2);
}

/* Experts with many slots, 17 to 101 of each: passes over one set, two and three, whose last sets
 * are full or not, and several passes. With an even and an odd number of row blocks, of one k-tile
 * and of several, which with 2,304 columns the ring has no room to keep; of more slots than a batch
 * of EXPERT_DOWN. */
static void test_expert_slots(void **state) {
    (void)state;
    need_gpu();
    static const uint32_t lengths[N_MIX] = {1, 33, 17, 48, 101, 2},
                          few[N_MIX] = {1, 3, 2, 1, 40, 1};
    const struct rig_options many[] = {{.max_batched = 256, .n_workers = 3},
                                       {.max_batched = 32},
                                       {.max_batched = 64, .n_workers = 1},
                                       {.max_batched = 64, .options = "moe=static"},
                                       {.coarse = true, .hybrid = true, .max_batched = 128}};
    compare_packed(EXPERTS("2", "512", "3", "2", "40"), lengths, many,
                   is_brief() ? 2 : COUNT_OF(many));
    compare_packed(EXPERTS("1", "72", "2", "2", "600"), few, many, is_brief() ? 1 : 3);
    if (!is_brief()) compare_packed(EXPERTS("1", "2304", "2", "2", "24"), few, many, 2);
}

/* Sums of LINEAR in all its forms: of one row, of a few, in tiles of 32, 64 and 128 rows, in parts.
 */
static void test_same_tree(void **state) {
    (void)state;
    need_gpu();
    static const uint32_t lengths[N_MIX] = {1, 2, 66, 1, 2, 1};
    const struct rig_options tree[] = {
        {.coarse = true, .max_batched = 128},
        {.coarse = true, .max_batched = 64, .options = "linear=whole"},
        {.coarse = true, .max_batched = 32, .options = "linear=whole"},
        {.coarse = true, .max_batched = 64, .n_slots = 24},
        {.coarse = true, .max_batched = 16, .n_slots = 16}};
    compare_packed("{" TREE_SHAPE MADE_UP("256", "331") "}", lengths, tree,
                   is_brief() ? 1 : COUNT_OF(tree));
}

/* Graphs of 32 rows whose weights stream: with 9 k-tiles, two and one; workers with one row block
 * and with several groups of them. */
static void test_wide_batches(void **state) {
    (void)state;
    need_gpu();
    static const uint32_t lengths[N_MIX] = {1, 9, 17, 3, 12, 2};
    const struct rig_options wide[] = {{.coarse = true, .max_batched = 32, .n_slots = 32},
                                       {.max_batched = 32, .n_slots = 24, .n_workers = 2}};
    compare_packed("{" WIDE_STREAM MADE_UP("2304", "331") "}", lengths, wide, COUNT_OF(wide));
}

/* More requests than ATTENTION_STEP takes decode together: each row is another request's, so that
 * ATTENTION_WHOLE does, in graphs of 32, 64 and 96 rows. Against the model row by row. Without
 * the first one all contexts are a piece each. */
static void check_many(const char *config) {
    enum { N_MANY = 66 };
    char dir[] = "/tmp/quern-many-XXXXXX";
    static struct request q[N_MANY];
    static struct result plain[N_MANY], have[N_MANY];
    const struct rig_options rows = {
        .dir = dir, .coarse = true, .max_batched = 1, .n_workers = 4, .dummy = true};
    const struct rig_options many[] = {{.max_batched = 64}, {.max_batched = 96, .n_workers = 3}};
    struct rig r;
    write_model(dir, config);
    open_well(&backend_cuda, &rows, &r);
    for (uint32_t i = 0; i < N_MANY; i++) {
        const uint32_t n_prompt = i == 0 ? 130 : i == 20 ? 33 : 1 + i % 3;
        q[i] = made_up(i + 1, n_prompt, 2 + i % (is_brief() ? 2 : 5), 331, 0);
        if (i > 0 || !is_brief()) generate(&r, &q[i], 1, &plain[i]);
    }
    rig_close(&r);
    for (size_t k = is_brief() ? 1 : 0; k < COUNT_OF(many); k++) {
        struct rig_options o = many[k];
        char what[20];
        uint32_t n_decode_only = 0;
        o.dir = dir;
        o.coarse = o.dummy = true;
        o.n_slots = N_MANY;
        o.options = "attention=batch";
        open_well(&backend_cuda, &o, &r);
        for (uint64_t i = 0; i < r.program->section[SECTION_VARIANT].count; i++)
            n_decode_only += PROG(r.program, VARIANT)[i].decode_only;
        assert_int_equal(n_decode_only, k + 2);
        snprintf(what, sizeof what, "%u rows", o.max_batched);
        for (int first = is_brief() ? 1 : 0; first < 2; first++) {
            generate(&r, q + first, N_MANY - first, have + first);
            for (int i = first; i < N_MANY; i++) assert_same(&plain[i], &have[i], what);
        }
        rig_close(&r);
    }
    drop_model(dir);
}

static void test_many(void **state) {
    (void)state;
    need_gpu();
    check_many("{" FOUR_HEADS MADE_UP("256", "331") "}");
}

/* Experts' pages are no multiple of eight, so warps have had different numbers of pages. */
static void test_many_experts(void **state) {
    (void)state;
    need_gpu();
    check_many(EXPERTS("2", "256", "12", "3", "328"));
}

/* Rows too long for a task to stage: what an MLP, or attention, makes of a single one is packed,
 * too. */
static void test_wide_rows(void **state) {
    (void)state;
    need_gpu();
    static const uint32_t lengths[N_MIX] = {1, 2, 17, 3, 2, 1}, brief[N_MIX] = {1, 2, 9, 3, 1, 1};
    const struct rig_options wide[] = {
        {.coarse = true, .max_batched = 1, .max_len = 512, .transport_bytes = 1 << 16},
        {.coarse = true, .max_batched = 256},
        {.coarse = true, .max_batched = 16}};
    compare_packed("{" WIDE_MLP MADE_UP("72", "331") "}", is_brief() ? brief : lengths, wide,
                   is_brief() ? 2 : COUNT_OF(wide));
    compare_packed("{" WIDE_ATTENTION MADE_UP("72", "331") "}", is_brief() ? brief : lengths,
                   &wide[1], 1);
}

/* Graphs whose activations are words. */
static uint32_t n_spaces(const struct prog_header *p) {
    uint32_t n = 0;
    for (uint64_t i = 0; i < p->section[SECTION_TENSOR].count; i++)
        n += PROG(p, TENSOR)[i].transport == TRANSPORT_SPACE;
    return n;
}

/* Activations of a few rows that are empty words until they are stored, in graphs of 8 and of 16
 * rows, whose rows come and go; against flags and counters, which those of the model row by row
 * are. */
static void check_sentinels(const char *config, const char *const *options, size_t n) {
    static const uint32_t lengths[N_MIX] = {1, 2, 12, 1, 15, 3}, few[N_MIX] = {1, 2, 3, 1, 9, 1};
    for (size_t k = 0; k < n; k++) {
        struct rig_options sentinels = {.coarse = true,
                                        .max_batched = 16,
                                        .n_workers = 17,
                                        .transport_bytes = 1 << 16,
                                        .options = options[k]};
        char dir[] = "/tmp/quern-sentinels-XXXXXX";
        struct rig r;
        write_model(dir, config);
        sentinels.dir = dir;
        sentinels.dummy = true;
        open_well(&backend_cuda, &sentinels, &r);
        assert_int_equal(n_spaces(r.program), 2); /* of 8 and of 16 rows */
        rig_close(&r);
        drop_model(dir);
        compare_packed(config, is_brief() ? few : lengths, &sentinels, 1);
    }
}

/* Dense layers; layers with experts, also with tasks of ROUTER that have some of the rows. */
static void test_sentinels(void **state) {
    (void)state;
    need_gpu();
    const char *const options[] = {"attention=whole", "attention=whole,tile.router=16x1"};
    check_sentinels("{" SENTINEL_SHAPE MADE_UP("256", "1271") "}", options, 1);
    check_sentinels(EXPERTS_OF("1", "2", "256", "12", "3", "328"), options, COUNT_OF(options));
}

/* A layer with experts, whose activations are words, for ThreadSanitizer: two requests, two tokens
 * each. */
static void test_few_words(void **state) {
    (void)state;
    need_gpu();
    struct request q[2];
    struct result alone[2], both[2];
    struct rig_options o = {.coarse = true,
                            .max_batched = 8,
                            .n_workers = 9,
                            .transport_bytes = 1 << 16,
                            .options = "attention=whole,tile.router=2x1"};
    char dir[] = "/tmp/quern-words-XXXXXX";
    struct rig r;
    write_model(dir, EXPERTS_OF("1", "1", "256", "4", "2", "256"));
    o.dir = dir;
    o.dummy = true;
    open_well(&backend_cuda, &o, &r);
    assert_int_equal(n_spaces(r.program), 1);
    for (uint32_t i = 0; i < 2; i++) {
        q[i] = made_up(i + 1, 1, 2, r.model->spec.vocab, 0);
        generate(&r, &q[i], 1, &alone[i]);
    }
    generate(&r, q, 2, both);
    for (int i = 0; i < 2; i++) assert_same(&alone[i], &both[i], "by words");
    rig_close(&r);
    drop_model(dir);
}

#define LATENTS(rank, of_kv)                                                                       \
    "{\"architectures\": [\"DeepseekV2ForCausalLM\"], \"model_type\": \"deepseek_v2\", "           \
    "\"hidden_act\": \"silu\", \"hidden_size\": 256, \"intermediate_size\": 128, "                 \
    "\"num_hidden_layers\": 1, \"first_k_dense_replace\": 1, \"num_attention_heads\": 18, "        \
    "\"num_key_value_heads\": 18, \"kv_lora_rank\": " of_kv ", \"qk_nope_head_dim\": 24, "         \
    "\"qk_rope_head_dim\": 16, \"v_head_dim\": 16, \"vocab_size\": 331, "                          \
    "\"max_position_embeddings\": 4096, \"rms_norm_eps\": 1e-06, \"rope_theta\": 10000, "          \
    "\"torch_dtype\": \"bfloat16\", \"tie_word_embeddings\": false, \"q_lora_rank\": " rank "}"

/* Latent attention: rows of one request and of several, contexts of one piece and of several;
 * pieces that their readers merge, that MERGE does, and whole contexts; items and quarters of
 * items; a single row that carries flags. Queries from the stream, or from a latent of their own.
 */
static void test_latents(void **state) {
    (void)state;
    need_gpu();
    static const uint32_t lengths[N_MIX] = {1, 2, 17, 1, 262, 3}, few[N_MIX] = {1, 2, 9, 1, 131, 2};
    const struct rig_options others[] = {
        {.coarse = true, .max_batched = 1, .n_workers = 9, .transport_bytes = 1 << 16},
        {.coarse = true, .max_batched = 8, .n_workers = 17, .transport_bytes = 1 << 16},
        {.coarse = true, .max_batched = 16, .n_workers = 40},
        {.coarse = true, .max_batched = 64}};
    const bool brief = is_brief();
    compare_packed(LATENTS("null", "512"), brief ? few : lengths, others + brief,
                   brief ? 1 : COUNT_OF(others));
    if (!brief) compare_packed(LATENTS("null", "112"), few, others, COUNT_OF(others));
    if (!brief) compare_packed(LATENTS("256", "112"), few, others + 2, 2);
}

/* Many workers for a small model, so that what attention stores of several rows of latents rides to
 * LATENT_VALUES: not in pairs, as a single row's. */
static void test_latent_rows(void **state) {
    (void)state;
    enum { N = 9 };
    need_gpu();
    struct request q[N];
    struct result alone[N], have[N];
    struct rig r;
    const struct rig_options o = {.dir = GOLDEN "/deepseek-v2-lite",
                                  .dummy = true,
                                  .n_slots = 16,
                                  .max_batched = 128,
                                  .coarse = true,
                                  .transport_bytes = 64 << 10};
    open_well(&backend_cuda, &o, &r);
    for (uint32_t i = 0; i < N; i++) q[i] = made_up(i + 1, 1, 3, r.model->spec.vocab, 0);
    for (uint32_t i = 0; i < N; i++) generate(&r, &q[i], 1, &alone[i]);
    generate(&r, q, N, have);
    for (uint32_t i = 0; i < N; i++) assert_same(&alone[i], &have[i], "nine rows");
    rig_close(&r);
}

/* A prompt of n as `dir`'s model continues it: alone, beside another request, and as each of the
 * others says. */
static void compare_long(const char *dir, bool dummy, uint32_t n, const struct rig_options *others,
                         size_t n_others) {
    static struct request q[2];
    static struct result split[2], have[2];
    struct rig r;
    struct rig_options o = {.dir = dir, .dummy = dummy, .max_len = n + 8};
    open_well(&backend_cuda, &o, &r);
    q[0] = made_up(1, n, 4, r.model->spec.vocab, 0);
    q[1] = made_up(2, 9, 8, r.model->spec.vocab, 0);
    generate(&r, &q[0], 1, &split[0]);
    generate(&r, &q[1], 1, &split[1]);
    generate(&r, q, 2, have);
    for (int i = 0; i < 2; i++) assert_same(&split[i], &have[i], "beside another");
    rig_close(&r);
    for (size_t i = 0; i < n_others; i++) {
        o = others[i];
        o.dir = dir;
        o.dummy = dummy;
        o.max_len = n + 8;
        open_well(&backend_cuda, &o, &r);
        generate(&r, &q[0], 1, &have[0]);
        assert_same(&split[0], &have[0], "other workers");
        rig_close(&r);
    }
}

#define WINDOWED(window, heads)                                                                    \
    "{\"architectures\": [\"MistralForCausalLM\"], \"model_type\": \"mistral\", "                  \
    "\"hidden_act\": \"silu\", \"hidden_size\": 96, \"intermediate_size\": 128, "                  \
    "\"num_hidden_layers\": 1, \"num_attention_heads\": " heads ", \"num_key_value_heads\": 1, "   \
    "\"head_dim\": 32, \"vocab_size\": 301, \"max_position_embeddings\": 4096, "                   \
    "\"sliding_window\": " window ", \"rms_norm_eps\": 1e-06, \"rope_theta\": 10000, "             \
    "\"torch_dtype\": \"bfloat16\", \"tie_word_embeddings\": false}"

/* A context whose pieces are many: in pieces spread over the device and merged afterwards, as one
 * worker goes through it (as many (row, KV head) items as workers: it is not cut), and with
 * ATTENTION_STEP, of which few workers have runs of pieces; parts that carry flags, many of them
 * and so few that ATTENTION_MERGE polls them. Then a window that begins within a piece, and more
 * heads than half a tensor core's rows. */
static void test_long_context(void **state) {
    (void)state;
    need_gpu();
    const char *length = getenv("QN_TEST_CONTEXT");
    const uint32_t n = length ? (uint32_t)atoi(length) : is_brief() ? 1040 : 1100;
    assert_in_range(n, 1, MAX_CONTEXT - 8);
    const struct rig_options others[] = {{.coarse = true, .transport_bytes = 1 << 16},
                                         {.coarse = true, .n_workers = 3, .options = "kv-block=16"},
                                         {.coarse = true, .n_workers = 3},
                                         {.coarse = true},
                                         {.n_workers = 1}};
    compare_long(ANY, false, n, others, is_brief() ? 1 : COUNT_OF(others));
    if (!is_brief()) compare_long(ANY, false, 300, others, 1);
    const struct rig_options two[] = {{.coarse = true, .n_workers = 2}};
    char dir[] = "/tmp/quern-window-XXXXXX";
    write_model(dir, is_brief() ? WINDOWED("400", "12") : WINDOWED("1000", "12"));
    compare_long(dir, true, is_brief() ? 440 : 1100, two, COUNT_OF(two));
    drop_model(dir);
    /* From 17 pieces on all warps merge a task's only head together, but two heads apart. */
    const struct rig_options one[] = {{.n_workers = 1}};
    char all[] = "/tmp/quern-window-XXXXXX";
    write_model(all, WINDOWED("null", "2"));
    compare_long(all, true, 2080, one, COUNT_OF(one));
    drop_model(all);
}

/* What the loaders record can be: no more on its way than allowed, no more pages free than there
 * are, and one record for each run of a task with weights. */
static void check_pages(const struct prog_header *p, const struct trace *t, uint32_t flight,
                        uint32_t n_ring) {
    const size_t n_tasks = p->section[SECTION_TASK].count;
    uint32_t *left = calloc(n_tasks, sizeof *left);
    uint64_t in_flight = 0;
    assert_non_null(left);
    for (size_t i = 0; i < t->runs.n; i++) left[t->runs.items[i].task]++;
    for (size_t i = 0; i < t->pages.n; i++) {
        const struct trace_pages *g = &t->pages.items[i];
        if (g->flying_bytes > flight * CUDA_PAGE_BYTES || g->n_free > n_ring || left[g->task] == 0)
            DIE("worker %u, task %u: %u bytes on their way, %u of %u pages free", g->worker,
                g->task, g->flying_bytes, g->n_free, n_ring);
        in_flight += g->flying_bytes;
        left[g->task]--;
    }
    for (size_t i = 0; i < n_tasks; i++)
        if (left[i] > 0 && cuda_has_pages(PROG(p, TASK)[i].kind))
            DIE("task %zu ran %u times more than its pages were asked for", i, left[i]);
    free(left);
    assert_true(in_flight > 0); /* something was: they are counted at all */
}

static void test_pages(void **state) {
    (void)state;
    need_gpu();
    const struct rig_options rigs[] = {{.dir = ANY, .coarse = true, .flight = 3},
                                       {.dir = ANY, .jit = true, .coarse = true, .flight = 2}};
    static struct result out;
    struct diag d = {0};
    struct backend_cuda_facts facts;
    assert_int_equal(backend_cuda_facts(&d, &facts), QN_OK);
    const uint32_t cc = (uint32_t)(facts.device.major * 10 + facts.device.minor);
    const uint32_t n_ring = (cuda_shared_bytes(cc) - CUDA_SCRATCH_BYTES) / CUDA_PAGE_BYTES / 8 * 8;
    for (size_t k = 0; k < COUNT_OF(rigs); k++) {
        struct rig r;
        struct trace trace;
        open_well(&backend_cuda, &rigs[k], &r);
        struct request q = made_up(1, 70, 12, r.model->spec.vocab, 0);
        generate(&r, &q, 1, &out);
        assert_int_equal(r.backend->trace_wait(&d, r.instance), QN_OK);
        assert_int_equal(trace_read(&d, r.trace, r.program, &trace), QN_OK);
        assert_int_equal(trace.n_dropped, 0);
        assert_in_range(trace.n_loaders, 1, r.program->n_workers); /* some may have no weights */
        check_pages(r.program, &trace, rigs[k].flight, n_ring);
        print_message("%zu records of %u loaders, ring of %u pages\n", trace.pages.n,
                      trace.n_loaders, n_ring);
        trace_fini(&trace);
        rig_close(&r);
    }
}

/* Weights made up on the device are those that the CPU makes up. */
static void test_same_dummy_weights(void **state) {
    (void)state;
    need_gpu();
    static struct result device, host;
    struct rig r;
    struct rig_options o = {.dir = ANY, .dummy = true};
    open_well(&backend_cuda, &o, &r);
    struct request q = made_up(5, 50, 40, r.model->spec.vocab, 0);
    generate(&r, &q, 1, &device);
    rig_close(&r);
    o.dummy_on_host = true;
    open_well(&backend_cuda, &o, &r);
    generate(&r, &q, 1, &host);
    rig_close(&r);
    assert_same(&host, &device, "dummy weights");
}

/* ---- against the CPU backend ---- */

/* The first token's log-probability for many prompts: rounding cannot pile up over tokens there. */
static void compare_cpu(const struct rig_options *o) {
    static struct result cpu, gpu;
    struct rig a, b;
    uint32_t same = 0, n = 0;
    open_well(&backend_cpu, o, &a);
    open_well(&backend_cuda, o, &b);
    for (uint32_t length = 1; length < MAX_LEN - 2; length = length * 5 / 4 + 1, n++) {
        struct request q = made_up(length, length, 1, a.model->spec.vocab, 0);
        generate(&a, &q, 1, &cpu);
        generate(&b, &q, 1, &gpu);
        double error = fabs((double)cpu.logprobs[0] - (double)gpu.logprobs[0]);
        if (!(error <= LOGPROB_ERROR))
            DIE("prompt of %u: %d (%g) on the CPU, %d (%g) on the GPU", length, cpu.ids[0],
                (double)cpu.logprobs[0], gpu.ids[0], (double)gpu.logprobs[0]);
        same += cpu.ids[0] == gpu.ids[0];
    }
    print_message("%u of %u first tokens the same\n", same, n);
    assert_true(10 * same >= 8 * n);
    rig_close(&a);
    rig_close(&b);
}

static void test_like_the_cpu(void **state) {
    (void)state;
    need_gpu();
    compare_cpu(&(struct rig_options){.dir = ANY});
}

/* Layers that see all of the context beside others that see a window, smaller and larger than a
 * piece: every form of attention, in any company; against the CPU with heads of wgmma's width; then
 * a window that ends within a run of pieces. */
#define MIXED_SHAPE(window, more)                                                                  \
    "{\"architectures\": [\"Qwen2ForCausalLM\"], \"model_type\": \"qwen2\", "                      \
    "\"hidden_act\": \"silu\", \"hidden_size\": 256, \"intermediate_size\": 128, "                 \
    "\"num_hidden_layers\": 3, \"vocab_size\": 301, \"max_position_embeddings\": 4096, "           \
    "\"use_sliding_window\": true, \"sliding_window\": " window ", " more                          \
    "\"rms_norm_eps\": 1e-06, \"rope_theta\": 10000, \"torch_dtype\": \"bfloat16\", "              \
    "\"layer_types\": [\"full_attention\", \"sliding_attention\", \"full_attention\"]}"
static void test_mixed_windows(void **state) {
    (void)state;
    need_gpu();
    const struct rig_options others[] = {
        {.max_batched = 8, .coarse = true, .options = "attention=whole"},
        {.coarse = true, .transport_bytes = 1 << 16},
        {.n_workers = fewer_workers(), .options = "qkv=split"},
        {.jit = true, .coarse = true},
        {.max_batched = 128}};
    compare_company(GOLDEN "/qwen3-mixed", others, is_brief() ? 2 : COUNT_OF(others));
    if (is_brief()) return;
    char heads[] = "/tmp/quern-mixed-XXXXXX", runs[] = "/tmp/quern-mixed-XXXXXX";
    write_model(heads, MIXED_SHAPE("30", "\"num_attention_heads\": 4, "
                                         "\"num_key_value_heads\": 2, "));
    compare_cpu(&(struct rig_options){.dir = heads, .dummy = true});
    drop_model(heads);
    const struct rig_options two[] = {{.coarse = true, .transport_bytes = 1 << 16, .n_workers = 3},
                                      {.coarse = true, .n_workers = 2}};
    write_model(runs, MIXED_SHAPE("700", "\"num_attention_heads\": 8, "
                                         "\"num_key_value_heads\": 1, "));
    compare_long(runs, true, 1100, two, COUNT_OF(two));
    drop_model(runs);
}

/* What an opening engine has said. */
struct heard {
    char stages[64]; /* in order, each once */
    uint64_t done, total;
    uint32_t kernels; /* calls */
    pthread_t thread;
};

static void hear(void *user, const char *stage, uint64_t done, uint64_t total) {
    struct heard *h = user;
    assert_true(pthread_equal(pthread_self(), h->thread));
    if (strcmp(stage, "kernels") == 0) h->kernels++;
    if (strstr(h->stages, stage) == NULL) {
        assert_true(strlen(h->stages) + strlen(stage) + 2 < sizeof h->stages);
        strcat(strcat(h->stages, stage), " ");
        h->done = 0;
    }
    assert_true(done >= h->done && done <= total);
    h->done = done;
    h->total = total;
}

/* The callback is called on the caller's thread, many times while kernels are compiled. The
 * progress of weights is in bytes. */
static void test_progress(void **state) {
    (void)state;
    need_gpu();
    struct rig r;
    struct heard h = {.thread = pthread_self()};
    const char *cache = getenv("QN_CACHE_DIR");
    char *old = cache != NULL ? strdup(cache) : NULL;
    setenv("QN_CACHE_DIR", "off", 1);
    open_well(
        &backend_cuda,
        &(struct rig_options){.dir = ANY, .dummy = true, .progress = hear, .progress_user = &h},
        &r);
    assert_string_equal(h.stages, "kernels memory weights ");
    assert_true(h.kernels > 2);
    assert_int_equal(h.done, h.total);
    assert_true(h.total >= 2ull * r.model->spec.vocab * r.model->spec.hidden);
    rig_close(&r);
    if (old != NULL)
        setenv("QN_CACHE_DIR", old, 1);
    else
        unsetenv("QN_CACHE_DIR");
    free(old);
}

/* A stop id is not chosen before min_tokens, and ends the request from there on. */
static void test_early_stops(void **state) {
    (void)state;
    need_gpu();
    enum { N = 8, MIN = 5 };
    static struct result plain, stopped, late;
    struct rig r;
    open_well(&backend_cuda, &(struct rig_options){.dir = ANY}, &r);
    for (int temperature = 0; temperature < 2; temperature++) {
        struct request q = made_up(6, 5, N, r.model->spec.vocab, (float)temperature);
        generate(&r, &q, 1, &plain);
        q.n_stop = 1;
        q.stop = plain.ids[2];
        generate(&r, &q, 1, &stopped);
        assert_in_range(stopped.n, 1, 3);
        assert_int_equal(stopped.ids[stopped.n - 1], q.stop);
        q.min_tokens = MIN;
        generate(&r, &q, 1, &late);
        assert_in_range(late.n, MIN, N);
        for (uint32_t i = 0; i < MIN; i++) assert_int_not_equal(late.ids[i], q.stop);
        for (uint32_t i = 0; i + 1 < stopped.n && temperature == 0; i++)
            assert_int_equal(late.ids[i], plain.ids[i]);
    }
    rig_close(&r);
}

/* Heads of whole lines of 128 bytes, as most models have them: the cache has their chunks swapped.
 * Against the CPU; then in all forms of attention, of which some write what others read. */
static void test_wide_heads(void **state) {
    (void)state;
    need_gpu();
    const struct rig_options others[] = {
        {.coarse = true, .n_workers = 3, .transport_bytes = 1 << 16},
        {.coarse = true, .max_batched = 16, .options = "kv-block=8"},
        {.n_workers = 1}};
    char dir[] = "/tmp/quern-wide-XXXXXX";
    write_model(dir, "{" WIDE_HEADS MADE_UP("64", "331") "}");
    compare_cpu(&(struct rig_options){.dir = dir, .dummy = true});
    compare_long(dir, true, 600, others, is_brief() ? 2 : COUNT_OF(others));
    compare_long(dir, true, 90, others, 1);
    drop_model(dir);
}

/* Heads of 256 columns, sixteen to a KV head: pieces that are merged, runs of them, and blocks of
 * the cache that hold less than a share; whole contexts of several rows. */
static void test_deep_heads(void **state) {
    (void)state;
    need_gpu();
    static const uint32_t lengths[N_MIX] = {1, 2, 3, 1, 131, 2};
    const struct rig_options others[] = {
        {.coarse = true, .n_workers = 2, .transport_bytes = 1 << 16},
        {.coarse = true, .max_batched = 16, .options = "kv-block=8"}};
    const struct rig_options whole[] = {
        {.coarse = true, .max_batched = 8, .options = "attention=whole"}};
    char dir[] = "/tmp/quern-deep-XXXXXX";
    write_model(dir, "{" DEEP_HEADS MADE_UP("64", "331") "}");
    compare_long(dir, true, is_brief() ? 270 : 530, others, is_brief() ? 1 : COUNT_OF(others));
    drop_model(dir);
    if (!is_brief()) compare_packed("{" DEEP_HEADS MADE_UP("64", "331") "}", lengths, whole, 1);
}

/* A residual stream of which a thread polls several words at once, and then more; of several rows,
 * whose squares are several for each lane. With two workers, tasks of so many pages that more are
 * under way in their midst. */
static void test_wide_stream(void **state) {
    (void)state;
    need_gpu();
    static const uint32_t lengths[N_MIX] = {1, 2, 1, 3, 2, 1};
    const struct rig_options others[] = {
        {.coarse = true, .max_batched = 1, .max_len = 64, .transport_bytes = 1 << 17},
        {.coarse = true, .max_batched = 8, .max_len = 64, .n_workers = 2},
        {.coarse = true, .max_batched = 8, .max_len = 64}};
    compare_packed("{" THIN_HEADS MADE_UP("4352", "331") "}", lengths, others,
                   is_brief() ? 2 : COUNT_OF(others));
}

/* Whole contexts by one task: of one piece, two and three, rows of one request and of several,
 * until one is too long and they come in pieces; several by a task; a single row that carries
 * flags. Heads of many columns, many heads, and a row that does not pack. */
static void test_whole_context(void **state) {
    (void)state;
    need_gpu();
    static const uint32_t lengths[N_MIX] = {1, 9, 17, 2, 262, 3},
                          shorter[N_MIX] = {1, 3, 17, 2, 140, 2},
                          brief[N_MIX] = {1, 2, 3, 1, 258, 2};
    const struct rig_options others[] = {
        {.coarse = true,
         .max_batched = 1,
         .n_workers = 5,
         .transport_bytes = 1 << 16,
         .options = "attention=whole"},
        {.coarse = true, .max_batched = 16, .n_workers = 17, .options = "attention=whole"},
        {.coarse = true,
         .max_batched = 8,
         .n_workers = 9,
         .options = "attention=batch,tile.attention_whole=0x3"}};
    compare_packed("{" WIDE_HEADS MADE_UP("64", "331") "}", is_brief() ? brief : lengths, others,
                   1);
    compare_packed("{" MANY_HEADS MADE_UP("64", "331") "}", shorter, others + 2, 1);
    if (is_brief()) return;
    compare_packed("{" WIDE_HEADS MADE_UP("64", "331") "}", shorter, others + 1, 1);
    compare_packed("{" ODD_SHAPE MADE_UP("264", "331") "}", shorter, others + 1, 1);
}

/* ---- launches and trouble ---- */

static void test_one_launch(void **state) {
    (void)state;
    need_gpu();
    static struct result out;
    struct backend_cuda_stats s;
    struct rig r;
    open_well(&backend_cuda, &(struct rig_options){.dir = ANY}, &r);
    for (uint32_t k = 1; k <= (is_brief() ? 3 : 5); k++) {
        struct request q = made_up(k, 100, is_brief() ? 20 : 60, r.model->spec.vocab, 0);
        generate(&r, &q, 1, &out);
        usleep(50000); /* the kernel ends, the watcher sees it */
        backend_cuda_stats(r.instance, &s);
        assert_int_equal(s.n_launches, k);
    }
    print_message("mega-kernel: %d registers, %d bytes of local memory\n", s.registers,
                  s.local_bytes);
    rig_close(&r);
}

/* A program with a trigger too few: the kernel stops itself and says who waited for what; the
 * device is usable afterwards. So it is when those behind poll for data that does not come. */
static void stalls(const struct rig_options *o) {
    static struct result out;
    struct rig r;
    struct diag d = {0};
    uint32_t slot;
    open_well(&backend_cuda, o, &r);
    struct request q = made_up(1, 1, 4, r.model->spec.vocab, 0);
    assert_int_equal(submit(&d, &r, &q, &slot), QN_OK);
    assert_int_equal(collect(&d, &r, slot, &out), QN_ESTALL);
    print_message("%s\n", d.message);
    assert_non_null(strstr(d.message, "event"));
    assert_non_null(strstr(d.message, "worker"));
    rig_close(&r);
    open_well(&backend_cuda, &(struct rig_options){.dir = ANY}, &r);
    generate(&r, &q, 1, &out);
    assert_int_equal(out.n, 4);
    rig_close(&r);
}

static void test_stall(void **state) {
    (void)state;
    need_gpu();
    struct rig_options o = {.dir = ANY, .break_event = true, .coarse = true};
    stalls(&o);
    o.transport_bytes = 1 << 20;
    stalls(&o);
    o.transport_bytes = 0;
    o.jit = true;
    stalls(&o);
}

/* Closing in the middle of a long request stops the kernel: one that does not stop is given up
 * after five seconds (GRACE_NS of cuda_run.c). */
static void test_close_busy(void **state) {
    (void)state;
    need_gpu();
    struct rig r;
    struct diag d = {0};
    uint32_t slot;
    for (unsigned k = 0; k < 4; k++) {
        open_well(&backend_cuda, &(struct rig_options){.dir = ANY, .jit = k == 3}, &r);
        struct request q = made_up(k, 1, is_brief() ? 64 : MAX_LEN - 1, r.model->spec.vocab, 0);
        assert_int_equal(submit(&d, &r, &q, &slot), QN_OK);
        usleep(k * 1500);
        const uint64_t start = rt_now_ns();
        rig_close(&r);
        assert_true(rt_now_ns() - start < 5000000000u);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_one_launch),
        cmocka_unit_test(test_same_every_run),
        cmocka_unit_test(test_same_in_any_company),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_same_dummy_weights),
        cmocka_unit_test(test_early_stops),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_wide_heads),
        cmocka_unit_test(test_deep_heads),
        cmocka_unit_test(test_wide_stream),
        cmocka_unit_test(test_like_the_cpu),
        cmocka_unit_test(test_stall),
        cmocka_unit_test(test_close_busy),
        cmocka_unit_test(test_long_context),
        cmocka_unit_test(test_same_packed),
        cmocka_unit_test(test_wide_rows),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_expert_slots),
        cmocka_unit_test(test_same_tree),
        cmocka_unit_test(test_wide_batches),
        cmocka_unit_test(test_whole_context),
        cmocka_unit_test(test_sentinels),
        cmocka_unit_test(test_few_words),
        cmocka_unit_test(test_latents),
        cmocka_unit_test(test_latent_rows),
        cmocka_unit_test(test_many),
        cmocka_unit_test(test_bands),
        cmocka_unit_test(test_many_experts),
        cmocka_unit_test(test_mixed_windows),
        cmocka_unit_test(test_same_from_shared_blocks),
        cmocka_unit_test(test_prompt_is_scored),
    };
    if (tests_listed(tests, COUNT_OF(tests))) return 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
