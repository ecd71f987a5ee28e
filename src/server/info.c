/* info.c - the routes that tell about the server. */
#include "server/json_write.h"
#include "server/routes.h"

#include "base/checked.h"

#include <string.h>

void info_health(struct call *c) {
    static const struct {
        enum problem_kind kind;
        const char *message;
    } phases[] = {
        [PHASE_LOADING] = {PROBLEM_LOADING, "the model is being loaded"},
        [PHASE_READY] = {PROBLEM_NONE, NULL},
        [PHASE_DRAINING] = {PROBLEM_DRAINING, "the server is shutting down"},
        [PHASE_STALLED] = {PROBLEM_STALLED, "the engine has stalled"},
    };
    const enum phase phase = c->server->phase;
    if (phases[phase].kind != PROBLEM_NONE)
        problem_set(&c->problem, phases[phase].kind, NULL, "%s", phases[phase].message);
    else
        strbuf_str(&c->out, "{\"status\":\"ok\"}");
    call_reply(c);
}

void info_version(struct call *c) {
    json_write_open(&c->out, NULL, '{');
    json_write_text(&c->out, "version", qn_version());
    json_write_close(&c->out, '}');
    call_reply(c);
}

static qn_engine_stats engine_stats(const struct server *s) {
    qn_engine_stats stats = {.struct_size = sizeof stats};
    (void)qn_engine_get_stats(s->engine, &stats);
    return stats;
}

void info_load(struct call *c) {
    const qn_engine_stats e = engine_stats(c->server);
    json_write_open(&c->out, NULL, '{');
    json_write_int(&c->out, "server_load", c->server->n_choices);
    json_write_int(&c->out, "num_requests_running", e.requests_running);
    json_write_int(&c->out, "num_requests_waiting", e.requests_waiting);
    json_write_close(&c->out, '}');
    call_reply(c);
}

void info_server(struct call *c) {
    const struct server *s = c->server;
    json_write_open(&c->out, NULL, '{');
    json_write_text(&c->out, "version", qn_version());
    json_write_text(&c->out, "model", state_model(s));
    json_write_text(&c->out, "backend", s->info.backend);
    json_write_text(&c->out, "device", s->info.device);
    json_write_text(&c->out, "dtype", s->info.dtype);
    json_write_text(&c->out, "system_fingerprint", s->fingerprint);
    json_write_int(&c->out, "max_model_len", s->info.max_model_len);
    json_write_int(&c->out, "max_num_seqs", s->info.max_num_seqs);
    json_write_int(&c->out, "max_queue", s->params->max_queue);
    json_write_int(&c->out, "max_connections", s->params->max_connections);
    json_write_close(&c->out, '}');
    call_reply(c);
}

/* Writes a label's value: characters that its syntax does not allow become '_'. */
static void add_label(struct strbuf *b, const char *text) {
    for (; *text; text++)
        strbuf_char(b, *text == '"' || *text == '\\' || *text == '\n' ? '_' : *text);
}

/* The engine's numbers; some under names that vLLM dropped and routers still read. */
static void print_engine(const struct server *s, const char *labels, struct strbuf *b) {
    static const char blocks[] = "KV blocks: of running requests, with known text that no running "
                                 "request holds, the others";
    static const char usage[] = "Share of the KV blocks that running requests hold, 0 to 1";
    static const char queries[] = "Prompt tokens that were looked for in the prefix cache";
    static const char hits[] = "Prompt tokens that were found there";
    const qn_engine_stats e = engine_stats(s);
    const double share = (double)e.kv_blocks_held / (double)MAX(s->info.kv_blocks, (uint64_t)1);
    const double n_queries = (double)e.prefix_cache_queries, n_hits = (double)e.prefix_cache_hits;
    const struct metric_value gauges[] = {
        {"vllm:num_requests_running", "Requests that hold KV blocks", e.requests_running},
        {"vllm:num_requests_waiting", "Requests that wait for a place or for KV blocks",
         e.requests_waiting},
        {"vllm:kv_cache_usage_perc", usage, share},
        {"vllm:gpu_cache_usage_perc", usage, share},
        {"quern_kv_blocks{state=\"held\"}", blocks, (double)e.kv_blocks_held},
        {"quern_kv_blocks{state=\"cached\"}", blocks, (double)e.kv_blocks_cached},
        {"quern_kv_blocks{state=\"free\"}", blocks, (double)e.kv_blocks_free},
        {"quern_http_connections", "Open connections", http_connections(s->http)},
    };
    const struct metric_value counters[] = {
        {"vllm:num_preemptions_total", "Times that a request gave its KV blocks to others",
         (double)e.preemptions},
        {"vllm:prefix_cache_queries_total", queries, n_queries},
        {"vllm:prefix_cache_hits_total", hits, n_hits},
        {"vllm:gpu_prefix_cache_queries_total", queries, n_queries},
        {"vllm:gpu_prefix_cache_hits_total", hits, n_hits},
    };
    metrics_print_values(gauges, COUNT_OF(gauges), "gauge", labels, b);
    metrics_print_values(counters, COUNT_OF(counters), "counter", labels, b);
}

void info_metrics(struct call *c) {
    const struct server *s = c->server;
    struct strbuf labels = {0};
    strbuf_str(&labels, "model_name=\"");
    add_label(&labels, state_model(s));
    strbuf_str(&labels, "\",engine=\"0\"");
    const char *l = strbuf_text(&labels);
    print_engine(s, l, &c->out);
    metrics_print(&s->metrics, l, &c->out);
    strbuf_printf(&c->out,
                  "# HELP vllm:cache_config_info The KV cache\n"
                  "# TYPE vllm:cache_config_info gauge\n"
                  "vllm:cache_config_info{block_size=\"%u\",num_gpu_blocks=\"%llu\",%s} 1\n",
                  s->info.kv_block, (unsigned long long)s->info.kv_blocks, l);
    strbuf_fini(&labels);
    call_reply_as(c, "text/plain; version=0.0.4; charset=utf-8");
}

static void write_model(const struct server *s, const char *name, struct strbuf *b) {
    json_write_open(b, NULL, '{');
    json_write_text(b, "id", name);
    json_write_text(b, "object", "model");
    json_write_int(b, "created", s->created);
    json_write_text(b, "owned_by", "quern");
    json_write_text(b, "root", s->info.model);
    json_write_null(b, "parent");
    json_write_int(b, "max_model_len", s->info.max_model_len);
    json_write_close(b, '}');
}

void info_models(struct call *c) {
    const struct server_params *p = c->server->params;
    json_write_open(&c->out, NULL, '{');
    json_write_text(&c->out, "object", "list");
    json_write_open(&c->out, "data", '[');
    for (size_t i = 0; i < p->n_served_names; i++)
        write_model(c->server, p->served_names[i], &c->out);
    if (p->n_served_names == 0) write_model(c->server, state_model(c->server), &c->out);
    json_write_close(&c->out, ']');
    json_write_close(&c->out, '}');
    call_reply(c);
}

static int hex(char c) {
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, c | 0x20) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* The path's free part without its escapes. */
static void unescape(const char *text, struct strbuf *b) {
    for (; *text; text++) {
        const int high = *text == '%' ? hex(text[1]) : -1, low = high >= 0 ? hex(text[2]) : -1;
        strbuf_char(b, low >= 0 ? (char)(high << 4 | low) : *text);
        if (low >= 0) text += 2;
    }
}

void info_model(struct call *c) {
    struct strbuf name = {0};
    unescape(c->rest, &name);
    if (state_is_model(c->server, strbuf_text(&name)))
        write_model(c->server, strbuf_text(&name), &c->out);
    else
        problem_set(&c->problem, PROBLEM_MODEL, "model", "The model '%.200s' does not exist",
                    strbuf_text(&name));
    strbuf_fini(&name);
    call_reply(c);
}

void info_tokenizer(struct call *c) {
    if (c->server->tokenizer_info)
        strbuf_str(&c->out, c->server->tokenizer_info);
    else
        problem_set(&c->problem, PROBLEM_ROUTE, NULL, "the model has no tokenizer_config.json");
    call_reply(c);
}
