/* tally.c - see tally.h. */
#include "cli/tally.h"

#include "base/clock.h"
#include "base/array.h"
#include "base/checked.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void tally_start(struct tally *t) {
    *t = (struct tally){.start_ns = clock_ns(), .stop_token_id = -1};
}

int tally_add(struct tally *t, const qn_output *out) {
    if (out->id >= 0) {
        struct tally_token token = {out->id, out->logprob, out->time_ns, out->top, out->n_top};
        TRY(ARRAY_PUSH(NULL, t, token));
        t->end_ns = out->time_ns;
    }
    strbuf_add(&t->text, out->text, out->n_text);
    t->finish_reason = out->finish_reason;
    t->stop_token_id = out->stop_token_id;
    if (out->stop && !(t->stop = strdup(out->stop))) return QN_ENOMEM;
    return strbuf_status(NULL, &t->text);
}

void tally_fini(struct tally *t) {
    ARRAY_FINI(t);
    free(t->stop);
    strbuf_fini(&t->text);
}

static double seconds(uint64_t from, uint64_t to) {
    return to > from ? (double)(to - from) * 1e-9 : 0;
}

json_t *tally_json(const struct tally *t, const qn_request *request) {
    qn_request_stats stats = {.struct_size = sizeof stats};
    qn_request_get_stats(request, &stats);
    json_t *o = json_pack("{s:I, s:I, s:I, s:I}", "prompt_tokens", (json_int_t)stats.prompt_tokens,
                          "cached_tokens", (json_int_t)stats.cached_tokens, "output_tokens",
                          (json_int_t)t->n, "preemptions", (json_int_t)stats.preemptions);
    if (!o) return NULL;
    json_t *ttft = t->n ? json_real(seconds(t->start_ns, t->items[0].time_ns) * 1e3) : json_null();
    json_object_set_new(o, "ttft_ms", ttft);
    json_object_set_new(o, "total_s", json_real(seconds(t->start_ns, t->end_ns)));
    double decode = t->n > 1 ? seconds(t->items[0].time_ns, t->end_ns) : 0;
    json_object_set_new(o, "tokens_per_s",
                        decode > 0 ? json_real((double)(t->n - 1) / decode) : json_null());
    return o;
}

void tally_sum(struct tally_sum *sum, const struct tally *t, const qn_request *request) {
    qn_request_stats stats = {.struct_size = sizeof stats};
    qn_request_get_stats(request, &stats);
    sum->n_prompt += stats.prompt_tokens;
    sum->n_cached += stats.cached_tokens;
    sum->n_preempted += stats.preemptions;
    if (sum->n_requests == 0 || t->start_ns < sum->first_start_ns)
        sum->first_start_ns = t->start_ns;
    sum->n_requests++;
    sum->n_tokens += t->n;
    sum->last_end_ns = MAX(sum->last_end_ns, t->end_ns);
    if (t->n == 0) return;
    sum->longest_ttft_ns = MAX(sum->longest_ttft_ns, t->items[0].time_ns - t->start_ns);
    sum->decode_ns = t->end_ns - t->items[0].time_ns;
}

/* Compares decoding with the bound that memory sets. Only a request that runs alone reads all
 * weights for each of its tokens. */
static void memory_bound(const struct options *o, qn_engine *engine, const struct tally_sum *sum,
                         char *out, size_t n) {
    qn_engine_info info = {.struct_size = sizeof info};
    double floor_rate = 0;
    out[0] = '\0';
    (void)o;
    if (sum->n_requests != 1 || sum->n_tokens < 2 || sum->decode_ns == 0) return;
    qn_engine_get_info(engine, &info);
    if (qn_engine_measure_read(engine, 0.05, &floor_rate, NULL) != QN_OK) return;
    double rate = (double)info.bytes_per_token * (double)(sum->n_tokens - 1) /
                  ((double)sum->decode_ns * 1e-9);
    snprintf(out, n, ", %.3g GB/s (%.0f %% of the %.3g GB/s that this machine reads)", rate * 1e-9,
             100 * rate / floor_rate, floor_rate * 1e-9);
}

void tally_report(const struct options *o, qn_engine *engine, const struct tally_sum *sum) {
    char bound[120], cache[80] = "", waits[64] = "";
    double total = seconds(sum->first_start_ns, sum->last_end_ns);
    memory_bound(o, engine, sum, bound, sizeof bound);
    if (sum->n_cached > 0)
        snprintf(cache, sizeof cache, ", %llu of %llu prompt tokens cached",
                 (unsigned long long)sum->n_cached, (unsigned long long)sum->n_prompt);
    if (sum->n_preempted > 0)
        snprintf(waits, sizeof waits, ", %llu preemptions", (unsigned long long)sum->n_preempted);
    cli_note(o, "%zu tokens in %.3g s: %.4g tokens/s, first token after %.3g ms%s%s%s",
             sum->n_tokens, total, total > 0 ? (double)sum->n_tokens / total : 0,
             (double)sum->longest_ttft_ns * 1e-6, cache, waits, bound);
}
