/* openapi.c - /openapi.json, from routes.def and fields.def. */
#include "server/json_write.h"
#include "server/openapi_bodies.h"
#include "server/routes.h"

#include "base/checked.h"
#include "base/sampling.h"

#include <stdio.h>
#include <string.h>

/* ---- fields --------------------------------------------------------------------------------- */

static const char ids_of[] = "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0,"
                             "\"maximum\":%lld},\"minItems\":%d,\"maxItems\":%.0f}";

static void write_range(const struct field_row *row, double high, struct strbuf *b) {
    const bool whole = row->kind == FIELD_INT;
    json_write_text(b, "type", whole ? "integer" : "number");
    if (row->low > -9e18)
        json_write_number(b, row->kind == FIELD_ABOVE ? "exclusiveMinimum" : "minimum", row->low,
                          17);
    else
        json_write_raw(b, "minimum", "-9223372036854775808");
    if (high < 9e18)
        json_write_number(b, "maximum", high, 17);
    else
        json_write_raw(b, "maximum", "9223372036854775807");
}

static void write_prompt(const struct server *s, struct strbuf *b) {
    const long long last = (long long)s->info.vocab - 1;
    const int most = (int)s->info.max_model_len - 17;
    json_write_open(b, "oneOf", '[');
    json_write_raw(b, NULL, "{\"type\":\"string\",\"minLength\":1}");
    json_write_raw(b, NULL,
                   "{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"string\","
                   "\"minLength\":1}}");
    strbuf_char(b, ',');
    strbuf_printf(b, ids_of, last, 1, (double)most);
    strbuf_str(b, ",{\"type\":\"array\",\"minItems\":1,\"items\":");
    strbuf_printf(b, ids_of, last, 1, (double)most);
    strbuf_str(b, "}]");
}

/* A text, or text parts of one type. */
static void write_content(const char *part, struct strbuf *b) {
    strbuf_printf(b,
                  "\"oneOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"items\":{\"type\":"
                  "\"object\",\"required\":[\"type\",\"text\"],\"properties\":{\"type\":{"
                  "\"const\":\"%s\"},\"text\":{\"type\":\"string\"}}}}]",
                  part);
}

/* A schema of openapi_bodies.h without its outer braces; $text: a text, or parts of the type. */
static void write_texts(const char *json, const char *part, struct strbuf *b) {
    static const char mark[] = "$text";
    const char *at = json + 1;
    for (const char *end; (end = strstr(at, mark)); at = end + sizeof mark - 1) {
        strbuf_add(b, at, (size_t)(end - at));
        strbuf_char(b, '{');
        write_content(part, b);
        strbuf_char(b, '}');
    }
    strbuf_add(b, at, strlen(at) - 1);
}

static void write_tools(uint32_t api, const struct field_row *row, struct strbuf *b) {
    const bool blocks = api == MESSAGES || api == COUNT;
    const char *tool = api == RESPONSES ? item_tool : blocks ? block_tool : chat_tool;
    strbuf_printf(b, "\"type\":\"array\",\"maxItems\":%.0f,\"items\":%s", row->high, tool);
}

static void write_stops(const struct field_row *row, struct strbuf *b) {
    strbuf_printf(b,
                  "\"oneOf\":[{\"type\":\"string\",\"minLength\":1},{\"type\":\"array\","
                  "\"maxItems\":%.0f,\"items\":{\"type\":\"string\",\"minLength\":1}}]",
                  row->high);
}

static void write_bias(const struct server *s, const struct field_row *row, struct strbuf *b) {
    (void)s;
    strbuf_printf(b,
                  "\"type\":\"object\",\"maxProperties\":%.0f,\"propertyNames\":{\"pattern\":"
                  "\"^[0-9]{1,3}$\"},\"additionalProperties\":{\"type\":\"number\",\"minimum\":"
                  "-100,\"maximum\":100}",
                  row->high);
}

static const char response_formats[] =
    "[{\"required\":[\"type\"],\"properties\":{\"type\":{\"enum\":[\"text\",\"json_object\"]}}},{"
    "\"required\":[\"type\",\"json_schema\"],\"properties\":{\"type\":{\"const\":\"json_schema\"},"
    "\"json_schema\":{\"type\":\"object\",\"required\":[\"schema\"],\"properties\":{\"schema\":{"
    "\"type\":\"object\"}}}}}]";

static void write_structured(struct strbuf *b) {
    static const char *const schemas[] = {[FORM_JSON] = "{}",
                                          [FORM_TEXT] = "{\"type\":[\"string\",\"null\"]}",
                                          [FORM_TEXTS] = "{\"type\":[\"array\",\"null\"]}"};
    json_write_bool(b, "additionalProperties", false);
    json_write_open(b, "properties", '{');
#define SAMPLING(...)
#define SAMPLING_FORM(ID, name, wants, ...) json_write_raw(b, name, schemas[FORM_##wants]);
#include "base/sampling.def"
    json_write_close(b, '}');
}

static const char tool_choices[] = "\"type\":[\"string\",\"object\"]";

static double highest(const struct server *s, enum field field) {
    const bool listed = field == F_LOGPROBS || field == F_TOP_LOGPROBS;
    return listed ? MIN(field_table[field].high, (double)s->params->max_logprobs)
                  : field_table[field].high;
}

static void write_kind(const struct server *s, enum field field, uint32_t api, struct strbuf *b) {
    const struct field_row *row = &field_table[field];
    switch (row->kind) {
    case FIELD_BOOL: json_write_text(b, "type", "boolean"); break;
    case FIELD_INT:
    case FIELD_NUMBER:
    case FIELD_ABOVE: write_range(row, highest(s, field), b); break;
    case FIELD_TEXT:
        json_write_text(b, "type", "string");
        json_write_number(b, "maxLength", row->high, 17);
        break;
    case FIELD_STOPS: write_stops(row, b); break;
    case FIELD_IDS:
        json_write_text(b, "type", "array");
        json_write_number(b, "maxItems", row->high, 17);
        strbuf_printf(b, ",\"items\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":%lld}",
                      (long long)s->info.vocab - 1);
        break;
    case FIELD_BIAS: write_bias(s, row, b); break;
    case FIELD_PROMPT: write_prompt(s, b); break;
    case FIELD_CONTENT:
        if (field == F_INPUT)
            write_texts(input_items, "input_text", b);
        else
            write_content("text", b);
        break;
    case FIELD_ARRAY:
        write_texts(field == F_SAID ? block_messages : chat_messages, "text", b);
        break;
    case FIELD_OBJECT:
        json_write_text(b, "type", "object");
        if (field == F_RESPONSE_FORMAT) json_write_raw(b, "oneOf", response_formats);
        if (field == F_STRUCTURED) write_structured(b);
        break;
    case FIELD_OPTIONS:
        json_write_text(b, "type", "object");
        if (s->params->strict) json_write_bool(b, "additionalProperties", false);
        strbuf_str(b, ",\"properties\":{\"include_usage\":{\"type\":\"boolean\"},"
                      "\"continuous_usage_stats\":{\"type\":\"boolean\"}}");
        break;
    case FIELD_TOOLS: write_tools(api, row, b); break;
    case FIELD_CHOICE: strbuf_str(b, tool_choices); break;
    case FIELD_ANY:
        if (field == F_BEST_OF)
            strbuf_str(b, "\"type\":[\"integer\",\"null\"]");
        else
            strbuf_printf(b, "\"enum\":[null,%s", row->neutral + 1);
        break;
    }
}

static void write_field(const struct server *s, enum field field, uint32_t api, struct strbuf *b) {
    const struct field_row *row = &field_table[field];
    static const char *const uses[] = {"", "", "Accepted without effect: ", "Not supported"};
    char about[256];
    const bool one_of = row->use != USE_NEEDED && row->kind != FIELD_ANY;
    json_write_open(b, row->name, '{');
    snprintf(about, sizeof about, "%s%s", uses[row->use], row->about);
    json_write_text(b, "description", about);
    if (one_of) strbuf_str(b, ",\"anyOf\":[{\"type\":\"null\"},{ ");
    if (field == F_MODEL) {
        json_write_open(b, "enum", '[');
        json_write_text(b, NULL, "");
        for (size_t i = 0; i < s->params->n_served_names; i++)
            json_write_text(b, NULL, s->params->served_names[i]);
        if (s->params->n_served_names == 0) json_write_text(b, NULL, state_model(s));
        json_write_close(b, ']');
    } else if (row->kind == FIELD_ANY && strcmp(row->neutral, "[]") == 0) {
        json_write_text(b, "type", "null");
    } else {
        strbuf_str(b, one_of ? " " : ", ");
        write_kind(s, field, api, b);
    }
    strbuf_str(b, one_of ? "}]}" : "}");
}

/* /tokenize takes either a text or a conversation. */
static const char one_of_two[] =
    ",\"oneOf\":[{\"required\":[\"prompt\"],\"properties\":{\"prompt\":{\"type\":\"string\"},"
    "\"messages\":{\"type\":\"null\"}}},{\"required\":[\"messages\"],\"properties\":{\"messages\":{"
    "\"type\":\"array\"},\"prompt\":{\"type\":\"null\"}}}]";

static void write_body(const struct server *s, uint32_t api, struct strbuf *b) {
    json_write_open(b, "requestBody", '{');
    json_write_bool(b, "required", true);
    strbuf_str(
        b, ",\"content\":{\"application/json\":{\"schema\":{\"type\":\"object\",\"required\":[ ");
    for (int i = 0; i < N_FIELDS; i++)
        if (field_table[i].apis & api && field_table[i].use == USE_NEEDED)
            json_write_text(b, NULL, field_table[i].name);
    strbuf_str(b, "],\"properties\":{");
    for (int i = 0; i < N_FIELDS; i++)
        if (field_table[i].apis & api) write_field(s, (enum field)i, api, b);
    strbuf_printf(b, "}%s}}}}", api == TOKENIZE ? one_of_two : "");
}

/* ---- routes --------------------------------------------------------------------------------- */

static void write_answers(const struct route *r, struct strbuf *b) {
    static const int of_bodies[] = {400, 404, 413, 415, 429};
    const char *error = r->dialect == DIALECT_ANTHROPIC ? "AnthropicError" : "Error";
    const bool plain = strcmp(r->path, "/metrics") == 0, page = strcmp(r->path, "/") == 0;
    const bool streams = r->api && !strstr(r->path, "token");
    json_write_open(b, "responses", '{');
    strbuf_printf(b, "\"200\":{\"description\":\"Done\",\"content\":{\"%s\":{\"schema\":{}}%s}}",
                  plain  ? "text/plain"
                  : page ? "text/html"
                         : "application/json",
                  streams ? ",\"text/event-stream\":{\"schema\":{}}" : "");
    const int common[] = {r->is_public ? 503 : 401, 503, 500, strchr(r->path, '{') ? 404 : 0,
                          strcmp(r->path, "/tokenizer_info") == 0 ? 404 : 0};
    for (size_t i = r->is_public; i < COUNT_OF(common) + (r->api ? COUNT_OF(of_bodies) : 0); i++) {
        const int status = i < COUNT_OF(common) ? common[i] : of_bodies[i - COUNT_OF(common)];
        if (status)
            strbuf_printf(b,
                          ",\"%d\":{\"description\":\"Refused\",\"content\":{\"application/json\":"
                          "{\"schema\":{\"$ref\":\"#/components/schemas/%s\"}}}}",
                          status, error);
    }
    json_write_close(b, '}');
}

static void write_route(const struct server *s, const struct route *r, struct strbuf *b) {
    char id[96];
    size_t n = 0;
    json_write_open(b, r->path, '{');
    json_write_open(b, r->method == HTTP_GET ? "get" : "post", '{');
    for (const char *at = r->path; *at && n + 1 < sizeof id; at++)
        id[n++] = strchr("/.{}", *at) ? '_' : *at;
    id[n] = '\0';
    json_write_text(b, "operationId", id);
    json_write_text(b, "summary", r->about);
    if (strchr(r->path, '{'))
        strbuf_str(b, ",\"parameters\":[{\"name\":\"model\",\"in\":\"path\",\"required\":true,"
                      "\"schema\":{\"type\":\"string\"}}]");
    if (r->is_public) strbuf_str(b, ",\"security\":[]");
    if (r->api) write_body(s, r->api, b);
    write_answers(r, b);
    json_write_close(b, '}');
    json_write_close(b, '}');
}

static void write_components(struct strbuf *b) {
    strbuf_str(
        b,
        ",\"components\":{\"securitySchemes\":{\"key\":{\"type\":\"http\",\"scheme\":\"bearer\"}},"
        "\"schemas\":{\"Error\":{\"type\":\"object\",\"required\":[\"error\"],\"properties\":{"
        "\"error\":{\"type\":\"object\",\"required\":[\"message\",\"type\",\"param\",\"code\"],"
        "\"properties\":{\"message\":{\"type\":\"string\"},\"type\":{\"type\":\"string\"},"
        "\"param\":{\"type\":[\"string\",\"null\"]},\"code\":{\"type\":\"string\"}}}}},"
        "\"AnthropicError\":{\"type\":\"object\",\"required\":[\"type\",\"error\"],"
        "\"properties\":{\"type\":{\"const\":\"error\"},\"error\":{\"type\":\"object\","
        "\"required\":[\"type\",\"message\"],\"properties\":{\"type\":{\"type\":\"string\"},"
        "\"message\":{\"type\":\"string\"}}}}}}}");
}

void info_openapi(struct call *c) {
    const struct server *s = c->server;
    struct strbuf *b = &c->out;
    json_write_open(b, NULL, '{');
    json_write_text(b, "openapi", "3.1.0");
    json_write_open(b, "info", '{');
    json_write_text(b, "title", "quern");
    json_write_text(b, "version", qn_version());
    json_write_close(b, '}');
    if (s->params->root_path) {
        strbuf_str(b, ",\"servers\":[{");
        json_write_text(b, "url", s->params->root_path);
        strbuf_str(b, "}]");
    }
    if (s->params->n_api_keys) strbuf_str(b, ",\"security\":[{\"key\":[]}]");
    json_write_open(b, "paths", '{');
    for (size_t i = 0; i < route_count; i++) write_route(s, &route_table[i], b);
    json_write_close(b, '}');
    write_components(b);
    json_write_close(b, '}');
    call_reply(c);
}
