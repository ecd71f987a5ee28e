/* gen.c - see gen.h. */
#include "server/gen.h"

#include "base/clock.h"
#include "base/checked.h"
#include "base/map.h"
#include "base/sampling.h"
#include "server/parts.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PING_SECONDS = 15, READY_AT_ONCE = 64 };

/* ---- made, on any thread -------------------------------------------------------------------- */

int gen_new(struct call *c, const struct format *format) {
    struct gen *g = calloc(1, sizeof *g);
    if (!g) return problem_set(&c->problem, PROBLEM_INTERNAL, NULL, "out of memory");
    *g = (struct gen){.call = c, .format = format, .n = 1, .sampling = c->server->defaults};
    c->gen = g;
    return QN_OK;
}

int gen_add_prompt(struct gen *g, const struct gen_prompt *prompt) {
    const size_t n_ids = prompt->n_ids;
    struct gen_prompt *more = realloc(g->prompts, (g->n_prompts + 1) * sizeof *more);
    const uint32_t most = g->call->server->info.max_model_len;
    if (more) {
        g->prompts = more;
        g->prompts[g->n_prompts++] = *prompt;
    } else {
        qn_free(prompt->ids);
        free(prompt->text);
        return problem_set(&g->call->problem, PROBLEM_INTERNAL, NULL, "out of memory");
    }
    g->n_prompt_tokens += n_ids;
    if (n_ids == 0)
        return problem_set(&g->call->problem, PROBLEM_VALUE, "prompt",
                           "prompt: has no tokens; a prompt needs one");
    if (n_ids >= most)
        return problem_set(&g->call->problem, PROBLEM_CONTEXT, "prompt",
                           "This model's maximum context length is %u tokens; the prompt has %zu "
                           "and needs room for one more",
                           most, n_ids);
    return QN_OK;
}

static void read_stops(struct gen *g, const json_t *v) {
    const size_t n = json_is_string(v) ? 1 : MIN(json_array_size(v), (size_t)QN_MAX_STOP);
    for (size_t i = 0; i < n; i++)
        g->stop[i] = json_string_value(json_is_string(v) ? v : json_array_get(v, i));
    g->sampling.stop = g->stop;
    g->sampling.n_stop = n;
}

static void read_stop_ids(struct gen *g, const json_t *v) {
    const size_t n = MIN(json_array_size(v), (size_t)QN_MAX_STOP_TOKEN_IDS);
    for (size_t i = 0; i < n; i++)
        g->stop_ids[i] = (int32_t)json_number_value(json_array_get(v, i));
    g->sampling.stop_token_ids = g->stop_ids;
    g->sampling.n_stop_token_ids = n;
}

static void read_biases(struct gen *g, const json_t *v) {
    const char *key;
    json_t *bias;
    size_t n = 0;
    json_object_foreach((json_t *)v, key, bias) if (n < QN_MAX_LOGIT_BIAS) g->bias[n++] =
        (qn_logit_bias){(int32_t)strtol(key, NULL, 10), (float)json_number_value(bias)};
    g->sampling.logit_bias = g->bias;
    g->sampling.n_logit_bias = n;
}

/* Checks the space in the context that each prompt needs beside max_tokens. */
static int check_room(struct gen *g, enum field max_tokens) {
    const char *name = field_table[max_tokens].name;
    const uint64_t most = g->call->server->info.max_model_len;
    for (size_t i = 0; i < g->n_prompts; i++)
        if (g->prompts[i].n_ids + g->sampling.max_tokens > most)
            return problem_set(&g->call->problem, PROBLEM_CONTEXT, name,
                               "This model's maximum context length is %llu tokens; the prompt "
                               "has %zu and %s asks for %u more",
                               (unsigned long long)most, g->prompts[i].n_ids, name,
                               g->sampling.max_tokens);
    return QN_OK;
}

/* The engine's own check names the field in front of a colon. */
static int check_sampling(struct gen *g) {
    qn_error error;
    char name[64];
    if (qn_sampling_params_check(&g->sampling, &error) == QN_OK) return QN_OK;
    snprintf(name, sizeof name, "%.*s", (int)MIN(strcspn(error.message, ":"), (size_t)63),
             error.message);
    return problem_set(&g->call->problem, PROBLEM_VALUE, name, "%s", error.message);
}

/* Requests with different keys or salts share no prefixes, so timing does not reveal them
 * either. */
static uint32_t cache_space(const struct call *c) {
    const char *salt = fields_text(&c->fields, F_CACHE_SALT, "");
    if (c->key < 0 && !*salt) return 0;
    const uint64_t seed = hash_bytes(&c->key, sizeof c->key, c->server->id_seed);
    return 1 + (uint32_t)(hash_bytes(salt, strlen(salt), seed) % (QN_MAX_CACHE_SPACE - 1u));
}

/* A positive number that underflows a float becomes the smallest positive one. */
static float above_zero(double x) {
    return x > 0 && x < (double)FLT_MIN ? FLT_MIN : (float)x;
}

int gen_set_structured(struct gen *g, const char *param, int kind, const char *text) {
    if (g->structured)
        return problem_set(&g->call->problem, PROBLEM_VALUE, param,
                           "%s: the output has a form already; give one", param);
    g->structured = text ? strdup(text) : NULL;
    if (!g->structured)
        return problem_set(&g->call->problem, PROBLEM_INTERNAL, NULL, "out of memory");
    g->sampling.structured_kind = kind;
    g->sampling.structured_text = g->structured;
    return QN_OK;
}

/* The same from a JSON value: a string is the text, anything else is serialized. */
static int set_structured(struct gen *g, const char *param, int kind, const json_t *v) {
    if (json_is_string(v) && strlen(json_string_value(v)) != json_string_length(v))
        return problem_set(&g->call->problem, PROBLEM_VALUE, param,
                           "%s: has a zero byte (U+0000); send it without", param);
    char *text = json_is_string(v) ? NULL : json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    const int rc = gen_set_structured(g, param, kind, text ? text : json_string_value(v));
    free(text);
    return rc;
}

static int any_object(struct gen *g, const char *param) {
    json_t *schema = json_pack("{s:s}", "type", "object");
    const int rc = set_structured(g, param, QN_STRUCTURED_JSON_SCHEMA, schema);
    json_decref(schema);
    return rc;
}

int gen_read_format(struct gen *g, const char *param, const json_t *v, const char *inside) {
    char at[96];
    const char *type = json_string_value(json_object_get(v, "type"));
    if (!v || json_is_null(v) || (type && strcmp(type, "text") == 0)) return QN_OK;
    if (type && strcmp(type, "json_object") == 0) return any_object(g, param);
    snprintf(at, sizeof at, "%s.type", param);
    if (!type || strcmp(type, "json_schema") != 0)
        return problem_set(&g->call->problem, PROBLEM_UNSUPPORTED, at,
                           "%s: want text, json_object or json_schema", at);
    const json_t *schema = json_object_get(inside ? json_object_get(v, inside) : v, "schema");
    snprintf(at, sizeof at, "%s%s%s.schema", param, inside ? "." : "", inside ? inside : "");
    if (!json_is_object(schema))
        return problem_set(&g->call->problem, PROBLEM_TYPE, at, "%s: want an object", at);
    return set_structured(g, param, QN_STRUCTURED_JSON_SCHEMA, schema);
}

static int read_structured(struct gen *g, const json_t *all) {
    static const struct {
        const char *name, *param;
        int kind;
        enum sampling_form wants;
    } table[] = {
#define SAMPLING(...)
#define SAMPLING_FORM(ID, name, wants, ...)                                                        \
    {name, "structured_outputs." name, QN_STRUCTURED_##ID, FORM_##wants},
#include "base/sampling.def"
    };
    size_t n_known = 0;
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        const json_t *v = json_object_get(all, table[i].name);
        n_known += v != NULL;
        if (!v || json_is_null(v)) continue;
        const bool is_text = table[i].wants == FORM_TEXT, is_array = table[i].wants == FORM_TEXTS;
        if ((is_text && !json_is_string(v)) || (is_array && !json_is_array(v)))
            return problem_set(&g->call->problem, PROBLEM_TYPE, table[i].param, "%s: want %s",
                               table[i].param, is_text ? "a string" : "an array");
        TRY(set_structured(g, table[i].param, table[i].kind, v));
    }
    if (json_object_size(all) == n_known) return QN_OK;
    return problem_set(&g->call->problem, PROBLEM_UNSUPPORTED, "structured_outputs",
                       "structured_outputs: want json, regex, choice or grammar only");
}

/* Reads a parameter that the body gives. */
static void read_param(struct gen *g, const struct sampling_row *row, enum field field, void *at) {
    const struct fields *f = &g->call->fields;
    const json_t *v = f->value[field];
    switch (row->kind) {
    case SAMPLING_NUMBER: sampling_set(row, at, json_number_value(v)); break;
    case SAMPLING_ABOVE: *(float *)at = above_zero(json_number_value(v)); break;
    case SAMPLING_INT:
    case SAMPLING_COUNT: sampling_set(row, at, (double)fields_int(f, field, 0)); break;
    case SAMPLING_FLAG: sampling_set(row, at, json_is_true(v)); break;
    case SAMPLING_TEXTS: read_stops(g, v); break;
    case SAMPLING_IDS: read_stop_ids(g, v); break;
    case SAMPLING_BIAS: read_biases(g, v); break;
    case SAMPLING_SEED:
        g->sampling.has_seed = 1;
        g->sampling.seed = (uint64_t)fields_int(f, field, 0);
        break;
    case SAMPLING_OPTIONAL: /* prompt_logprobs, which no API has under this name */
    case N_SAMPLING_KINDS: break;
    }
}

static void read_params(struct gen *g) {
    static const struct {
        enum field field;
        size_t at;
    } table[N_SAMPLING_PARAMS] = {
#define SAMPLING(ID, name, ...) {F_##ID, offsetof(qn_sampling_params, name)},
#include "base/sampling.def"
    };
    for (int i = 0; i < N_SAMPLING_PARAMS; i++)
        if (fields_has(&g->call->fields, table[i].field))
            read_param(g, &sampling_table[i], table[i].field, (char *)&g->sampling + table[i].at);
}

int gen_read_sampling(struct gen *g, enum field max_tokens, enum field stop) {
    const struct fields *f = &g->call->fields;
    qn_sampling_params *s = &g->sampling;
    read_params(g);
    s->max_tokens = (uint32_t)fields_int(f, max_tokens, s->max_tokens);
    if (fields_has(f, stop)) read_stops(g, f->value[stop]);
    TRY(gen_read_format(g, "response_format", f->value[F_RESPONSE_FORMAT], "json_schema"));
    TRY(read_structured(g, f->value[F_STRUCTURED]));
    g->n = (uint32_t)fields_int(f, F_N, 1);
    g->stream = fields_bool(f, F_STREAM, false);
    g->priority = (int32_t)fields_int(f, F_PRIORITY, 0);
    g->cache_space = cache_space(g->call);
    TRY(check_sampling(g));
    return check_room(g, max_tokens);
}

int gen_read_stream_options(struct gen *g) {
    const json_t *o = g->call->fields.value[F_STREAM_OPTIONS];
    if (o && !g->stream)
        return problem_set(&g->call->problem, PROBLEM_VALUE, "stream_options",
                           "stream_options: has no meaning without stream");
    g->include_usage = json_is_true(json_object_get(o, "include_usage"));
    g->continuous_usage =
        g->include_usage && json_is_true(json_object_get(o, "continuous_usage_stats"));
    return QN_OK;
}

static void choice_fini(struct choice *c) {
    qn_request_free(c->request);
    strbuf_fini(&c->text);
    ARRAY_FINI(&c->tokens);
    parts_fini(c);
    free(c->stop);
}

void gen_free(struct gen *g) {
    if (!g) return;
    for (size_t i = 0; i < g->n_choices; i++) choice_fini(&g->choices[i]);
    for (size_t i = 0; i < g->n_prompts; i++) {
        qn_free(g->prompts[i].ids);
        free(g->prompts[i].text);
    }
    parts_close(g);
    for (size_t i = 0; i < GEN_ECHOED; i++) free(g->echoed[i]);
    free(g->structured);
    free(g->choices);
    free(g->prompts);
    free(g);
}

/* ---- choices by request --------------------------------------------------------------------- */

static struct choice **bucket_of(struct server *s, const qn_request *r) {
    return &s->buckets[((uintptr_t)r >> 4) * 0x9e3779b97f4a7c15u >> 54];
}
_Static_assert(GEN_BUCKETS == 1 << 10, "bucket_of takes the ten highest bits");

static void add_choice(struct server *s, struct choice *c) {
    struct choice **bucket = bucket_of(s, c->request);
    c->chain = *bucket;
    *bucket = c;
    s->n_choices++;
    c->gen->n_running++;
}

/* The choice has ended: later outputs of its request are not read. */
static void remove_choice(struct server *s, struct choice *c) {
    struct choice **at = bucket_of(s, c->request);
    while (*at && *at != c) at = &(*at)->chain;
    if (!*at) return;
    *at = c->chain;
    s->n_choices--;
    c->gen->n_running--;
}

static struct choice *find_choice(struct server *s, const qn_request *r) {
    struct choice *c = *bucket_of(s, r);
    while (c && c->request != r) c = c->chain;
    return c;
}

/* ---- ends ----------------------------------------------------------------------------------- */

static void unlink_gen(struct server *s, struct gen *g) {
    if (g->next) g->next->before = g->before;
    *(g->before ? &g->before->next : &s->gens) = g->next;
    s->n_gens--;
}

/* Removes the generation from the server; its call stays. */
static void leave(struct gen *g) {
    struct server *s = g->call->server;
    for (size_t i = 0; i < g->n_choices; i++)
        if (g->choices[i].request) remove_choice(s, &g->choices[i]);
    unlink_gen(s, g);
}

static void write_out(struct gen *g) {
    struct call *c = g->call;
    if (c->out.n == 0) return;
    http_stream_write(c->x, c->out.text, c->out.n);
    strbuf_clear(&c->out);
    g->written_ns = clock_ns();
}

static void end_stream(struct gen *g) {
    struct call *c = g->call;
    write_out(g);
    http_stream_end(c->x);
    c->x = NULL;
    call_free(c);
}

static void end_with(struct gen *g, enum problem_kind kind, const char *message) {
    struct call *c = g->call;
    leave(g);
    metrics_add(&c->server->metrics, COUNTER_FAILED, g->n_choices);
    problem_set(&c->problem, kind, NULL, "%s", message);
    if (!g->streaming) {
        call_reply(c);
        return;
    }
    g->format->failed(g, &c->problem, &c->out);
    end_stream(g);
}

void gen_end_all(struct server *s, enum problem_kind kind, const char *message) {
    while (s->gens) end_with(s->gens, kind, message);
}

void gen_gone(struct gen *g) {
    struct call *c = g->call;
    leave(g);
    metrics_add(&c->server->metrics, COUNTER_ABORTED, g->n_choices);
    call_free(c);
}

/* ---- writing -------------------------------------------------------------------------------- */

/* Writes the choices' output as far as the client takes it; ends the stream after the last
 * choice. */
static void flush(struct gen *g) {
    if (http_stream_full(g->call->x)) return;
    for (size_t i = 0; i < g->n_choices; i++) {
        struct choice *c = &g->choices[i];
        const bool has_news = c->has_news || c->text.n > 0 || c->tokens.n > 0;
        if (c->told || (!has_news && c->finish == QN_RUNNING)) continue;
        g->format->delta(c, &g->call->out);
        strbuf_clear(&c->text);
        c->has_news = false;
        c->tokens.n = 0;
    }
    if (g->n_running > 0) {
        write_out(g);
        return;
    }
    leave(g);
    g->format->end(g, &g->call->out);
    end_stream(g);
}

void gen_room(struct gen *g) {
    flush(g);
}

static void finish_whole(struct gen *g) {
    struct call *c = g->call;
    leave(g);
    g->format->whole(g, &c->out);
    call_reply(c);
}

void gen_tick(struct server *s) {
    const uint64_t now = clock_ns();
    for (struct gen *g = s->gens; g; g = g->next) {
        if (!g->streaming || now - g->written_ns < PING_SECONDS * 1000000000ull) continue;
        if (http_stream_full(g->call->x)) continue;
        strbuf_str(&g->call->out, g->format->ping);
        write_out(g);
    }
}

static int submit(struct gen *g, struct choice *c);

/* ---- outputs -------------------------------------------------------------------------------- */

static void add_token(struct choice *c, int32_t id, float logprob, const qn_token_logprob *top,
                      size_t n_top) {
    if (ARRAY_PUSH(NULL, &c->tokens, (struct gen_token){id, logprob, top, n_top}) != QN_OK)
        c->text.failed = true; /* checked once, when the answer is written */
}

/* The prompt's part of an echo: its text, and its tokens' log-probabilities. */
static void add_echo(struct choice *c) {
    const struct gen *g = c->gen;
    const struct gen_prompt *p = &g->prompts[c->prompt];
    const float *logprobs;
    const qn_token_logprob *top;
    size_t n_top, n_text = 0;
    char *text = NULL;
    if (p->text) {
        strbuf_add(&c->text, p->text, p->n_text);
    } else if (qn_detokenize(g->call->server->tokenizer, p->ids, p->n_ids, 1, &text, &n_text,
                             NULL) == QN_OK) {
        strbuf_add(&c->text, text, n_text);
        qn_free(text);
    }
    if (!g->wants_logprobs ||
        qn_request_prompt_logprobs(c->request, &logprobs, &top, &n_top, NULL) != QN_OK)
        return;
    for (size_t i = 0; i < p->n_ids; i++)
        add_token(c, p->ids[i], logprobs[i], i && n_top ? top + i * n_top : NULL, i ? n_top : 0);
}

static void observe_token(struct choice *c, uint64_t time_ns) {
    struct metrics *m = &c->gen->call->server->metrics;
    const uint64_t before = c->n_tokens ? c->last_ns : c->gen->call->arrival_ns;
    const double gap = time_ns > before ? (double)(time_ns - before) * 1e-9 : 0;
    metrics_observe(m, c->n_tokens ? HISTOGRAM_ITL : HISTOGRAM_TTFT, gap);
    if (c->n_tokens == 0) {
        c->first_ns = time_ns;
        metrics_add(m, COUNTER_PROMPT_TOKENS, c->gen->prompts[c->prompt].n_ids);
    }
    c->last_ns = time_ns;
    metrics_add(m, COUNTER_OUTPUT_TOKENS, 1);
}

static void observe_end(const struct choice *c) {
    static const enum metric_counter ends[] = {[QN_FINISH_STOP] = COUNTER_STOPPED,
                                               [QN_FINISH_LENGTH] = COUNTER_LENGTH,
                                               [QN_FINISH_ABORT] = COUNTER_ABORTED,
                                               [QN_FINISH_ERROR] = COUNTER_FAILED};
    struct metrics *m = &c->gen->call->server->metrics;
    const double decode = (double)(c->last_ns - c->first_ns) * 1e-9;
    metrics_add(m, ends[c->finish], 1);
    metrics_observe(m, HISTOGRAM_PROMPT, (double)c->gen->prompts[c->prompt].n_ids);
    metrics_observe(m, HISTOGRAM_GENERATION, c->n_tokens);
    if (c->n_tokens == 0) return;
    metrics_observe(m, HISTOGRAM_E2E,
                    (double)(c->last_ns - MIN(c->last_ns, c->gen->call->arrival_ns)) * 1e-9);
    metrics_observe(m, HISTOGRAM_DECODE, decode);
    if (c->n_tokens > 1) metrics_observe(m, HISTOGRAM_TPOT, decode / (c->n_tokens - 1));
}

/* Counts prompt tokens found in the prefix cache. A call counts each prompt once for all its
 * choices.
 */
static void count_cached(struct choice *c) {
    struct gen *g = c->gen;
    qn_request_stats stats = {.struct_size = sizeof stats};
    if (c->goes_on || qn_request_get_stats(c->request, &stats) != QN_OK) return;
    metrics_add(&g->call->server->metrics, COUNTER_CACHED, stats.cached_tokens);
    if (c->index % g->n == 0) g->n_cached_tokens += stats.cached_tokens;
    c->goes_on = true; /* a second request finds its own tokens there */
}

/* One output of the engine into its choice. */
static void take(struct choice *c, const qn_output *out) {
    struct gen *g = c->gen;
    if (c->n_tokens == 0 && g->echo && out->id >= 0) add_echo(c);
    if (out->id >= 0) {
        observe_token(c, out->time_ns);
        c->n_tokens++;
        g->n_output_tokens += !g->drops_output;
        if (g->wants_logprobs && !g->drops_output)
            add_token(c, out->id, out->logprob, out->top, out->n_top);
    }
    if (c->answer)
        parts_take(c, out);
    else if (!g->drops_output)
        strbuf_add(&c->text, out->text, out->n_text);
    if (out->finish_reason == QN_RUNNING || c->again.ids) return;
    c->finish = out->finish_reason;
    count_cached(c);
    c->stop = out->stop ? strdup(out->stop) : NULL;
    c->stop_id = out->stop_token_id;
    observe_end(c);
    remove_choice(g->call->server, c);
}

/* The engine has failed: no request gets output any more. */
static void break_down(struct server *s, int code, const char *message) {
    snprintf(s->trouble, sizeof s->trouble, "%s", message);
    s->phase = PHASE_STALLED;
    s->result = code;
}

/* A second request replaces a choice's first one. If the context has no space for it, the answer
 * ends. */
static int go_on(struct gen *g, struct choice *c) {
    struct server *s = g->call->server;
    count_cached(c);
    remove_choice(s, c);
    qn_request_free(c->request);
    c->request = NULL;
    const bool has_room = c->again.n_ids < s->info.max_model_len;
    const int rc = has_room ? submit(g, c) : QN_OK;
    free(c->again.ids);
    c->again.ids = NULL;
    if (has_room) return rc;
    c->finish = QN_FINISH_LENGTH;
    observe_end(c);
    return QN_OK;
}

/* Reads the next output of a choice. */
static void advance(struct server *s, struct choice *c) {
    struct gen *g = c->gen;
    qn_output out = {.struct_size = sizeof out};
    qn_error error;
    const int rc = qn_request_next(c->request, 0, &out, &error);
    if (rc == QN_EBUSY) return;
    if (rc == QN_ESTALL || rc == QN_EDEVICE) {
        break_down(s, rc, error.message);
        return;
    }
    if (rc != QN_OK) {
        end_with(g, PROBLEM_INTERNAL, error.message);
        return;
    }
    take(c, &out);
    if (c->again.ids && go_on(g, c) != QN_OK) {
        end_with(g, PROBLEM_INTERNAL, "the answer cannot go on");
        return;
    }
    if (c->finish == QN_FINISH_ABORT)
        end_with(g, PROBLEM_INTERNAL, "the engine ended the request");
    else if (g->stream)
        flush(g);
    else if (g->n_running == 0)
        finish_whole(g);
}

/* Reads one output of each ready request; returns whether there was any. */
static bool poll_once(struct server *s) {
    qn_request *ready[READY_AT_ONCE];
    qn_error error;
    size_t n = 0, n_found = 0;
    const int rc = qn_engine_wait_any(s->engine, 0, ready, READY_AT_ONCE, &n, &error);
    if (rc != QN_OK && rc != QN_EBUSY) break_down(s, rc, error.message);
    /* An answer that ends frees all of its requests, so each is looked up just before its turn. */
    for (size_t i = 0; i < n && s->phase != PHASE_STALLED; i++) {
        struct choice *c = find_choice(s, ready[i]);
        n_found += c != NULL;
        if (c) advance(s, c);
    }
    return n_found > 0;
}

void gen_poll(struct server *s) {
    while (s->phase != PHASE_STALLED && poll_once(s)) continue;
    if (s->phase == PHASE_STALLED) gen_end_all(s, PROBLEM_STALLED, s->trouble);
}

/* ---- starting ------------------------------------------------------------------------------- */

static int make_choices(struct gen *g) {
    const size_t n = g->n_prompts * g->n;
    if (n > GEN_MAX_CHOICES)
        return problem_set(&g->call->problem, PROBLEM_VALUE, "n",
                           "n: prompts times n make %zu choices, want at most %d", n,
                           GEN_MAX_CHOICES);
    g->choices = calloc(n, sizeof *g->choices);
    if (!g->choices) return problem_set(&g->call->problem, PROBLEM_INTERNAL, NULL, "out of memory");
    g->n_choices = n;
    for (size_t i = 0; i < n; i++) {
        g->choices[i] = (struct choice){
            .gen = g, .index = (uint32_t)i, .prompt = (uint32_t)(i / g->n), .stop_id = -1};
        parts_begin(&g->choices[i]);
    }
    return QN_OK;
}

static int check_queue(struct gen *g) {
    struct server *s = g->call->server;
    const uint64_t most = (uint64_t)s->info.max_num_seqs + s->params->max_queue;
    if (s->n_choices + g->n_choices <= most) return QN_OK;
    metrics_add(&s->metrics, COUNTER_REJECTED, 1);
    return problem_set(&g->call->problem, PROBLEM_FULL, NULL,
                       "%u requests run or wait, and %llu may; try again", s->n_choices,
                       (unsigned long long)most);
}

static int submit(struct gen *g, struct choice *c) {
    const struct gen_prompt *p = c->again.ids ? &c->again : &g->prompts[c->prompt];
    qn_sampling_params sampling = g->sampling;
    qn_prompt prompt = {.struct_size = sizeof prompt,
                        .ids = p->ids,
                        .n_ids = p->n_ids,
                        .priority = g->priority,
                        .cache_space = g->cache_space};
    qn_error error;
    sampling.seed += c->index % g->n;
    if (c->answer) parts_sampling(c, &sampling);
    const int rc =
        qn_request_submit(g->call->server->engine, &prompt, &sampling, &c->request, &error);
    if (rc == QN_OK) {
        add_choice(g->call->server, c);
        return QN_OK;
    }
    if (rc == QN_EBUSY)
        return problem_set(&g->call->problem, PROBLEM_FULL, NULL, "%s", error.message);
    const bool user = rc == QN_EINVAL || rc == QN_ELIMIT || rc == QN_EUNSUPPORTED;
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)MIN(strcspn(error.message, ":"), (size_t)63),
             error.message);
    return problem_set(&g->call->problem, user ? PROBLEM_VALUE : PROBLEM_INTERNAL,
                       user ? name : NULL, "%s", error.message);
}

static void start_stream(struct gen *g) {
    struct call *c = g->call;
    call_add_headers(c);
    http_add_header(c->x, "Cache-Control", "no-cache");
    http_add_header(c->x, "X-Accel-Buffering", "no");
    http_stream_start(c->x, "text/event-stream; charset=utf-8");
    g->streaming = true;
    if (g->format->start) g->format->start(g, &c->out);
    write_out(g);
    g->written_ns = clock_ns();
}

static int submit_all(struct gen *g) {
    TRY(make_choices(g));
    TRY(check_queue(g));
    for (size_t i = 0; i < g->n_choices; i++) TRY(submit(g, &g->choices[i]));
    return QN_OK;
}

void gen_start(struct call *c) {
    struct server *s = c->server;
    struct gen *g = c->gen;
    g->created = s->created + (int64_t)((clock_ns() - s->started_ns) / 1000000000u);
    state_new_id(s, g->format->prefix, g->id);
    g->next = s->gens;
    if (g->next) g->next->before = g;
    s->gens = g;
    s->n_gens++;
    if (submit_all(g) != QN_OK) {
        leave(g);
        call_reply(c);
        return;
    }
    metrics_observe(&s->metrics, HISTOGRAM_PARAMS_N, g->n);
    if (g->sampling.max_tokens)
        metrics_observe(&s->metrics, HISTOGRAM_PARAMS_MAX, g->sampling.max_tokens);
    json_decref(c->root); /* the engine has copied what it needs */
    c->root = NULL;
    if (g->stream) start_stream(g);
}
