/* cmd_serve.c - quern serve: the server of src/server with parameters from options. */
#include "cli/cli.h"

#include "server/server.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_LOGPROBS = 20, MAX_ORIGINS = 64 };

/* What --allowed-origins has. */
struct origins {
    json_t *root;
    const char *texts[MAX_ORIGINS]; /* of root */
};

struct serve {
    const struct options *o;
    qn_engine_params engine;
};

static void say(void *user, const char *line) {
    const struct serve *s = user;
    cli_note(s->o, "%s", line);
}

static int open_engine(void *user, qn_engine **engine) {
    const struct serve *s = user;
    return cli_open_engine(s->o, &s->engine, engine) == EXIT_OK ? QN_OK : QN_EINVAL;
}

/* A GPU cannot list most likely tokens, so only a CPU engine is opened for them by default. */
static uint32_t default_logprobs(const struct options *o) {
    const char *backend = options_text(o, OPT_BACKEND, "auto");
    char *text = NULL;
    json_error_t e;
    if (strcmp(backend, "auto") != 0) return strcmp(backend, "cpu") == 0 ? MAX_LOGPROBS : 0;
    if (qn_environment(&text, NULL) != QN_OK) return 0;
    json_t *root = json_loads(text, 0, &e);
    const json_t *cuda = json_object_get(json_object_get(root, "backends"), "cuda");
    const char *says = json_string_value(cuda);
    const bool has_gpu = says && strcmp(says, "available") == 0;
    json_decref(root);
    qn_free(text);
    return has_gpu ? 0 : MAX_LOGPROBS;
}

/* Counts of the server itself, each within its bounds. */
static int read_counts(const struct options *o, struct server_params *p) {
    const struct {
        enum option option;
        int64_t low, high, fallback;
        uint32_t *out;
    } table[] = {
        {OPT_MAX_QUEUE, 0, 1 << 20, 1024, &p->max_queue},
        {OPT_MAX_CONNECTIONS, 1, 1 << 16, 1024, &p->max_connections},
        {OPT_SHUTDOWN_TIMEOUT, 0, 86400, 30, &p->shutdown_s},
        {OPT_MAX_LOGPROBS, 0, QN_MAX_LOGPROBS, default_logprobs(o), &p->max_logprobs},
    };
    const int64_t port = options_integer(o, OPT_PORT, 8000);
    if (port > UINT16_MAX) return cli_usage("--port: want 0 to %d", UINT16_MAX);
    p->port = (uint16_t)port;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        const int64_t n = options_integer(o, table[i].option, table[i].fallback);
        if (n < table[i].low || n > table[i].high)
            return cli_usage("--%s: want %lld to %lld", option_table[table[i].option].name,
                             (long long)table[i].low, (long long)table[i].high);
        *table[i].out = (uint32_t)n;
    }
    return EXIT_OK;
}

static int read_params(const struct options *o, struct server_params *p, const char **key) {
    const struct option_value *names = &o->values[OPT_SERVED_MODEL_NAMES];
    const struct option_value *keys = &o->values[OPT_API_KEY];
    *key = getenv("QUERN_API_KEY");
    p->host = options_text(o, OPT_HOST, "127.0.0.1");
    p->model = options_text(o, OPT_MODEL, NULL);
    p->served_names = names->texts;
    p->n_served_names = names->n;
    p->api_keys = keys->n ? keys->texts : key;
    p->n_api_keys = keys->n ? keys->n : *key && **key;
    p->root_path = options_text(o, OPT_ROOT_PATH, NULL);
    p->chat_template = options_text(o, OPT_CHAT_TEMPLATE, NULL);
    p->tool_parser = options_text(o, OPT_TOOL_CALL_PARSER, NULL);
    p->reasoning_parser = options_text(o, OPT_REASONING_PARSER, NULL);
    p->strict = options_flag(o, OPT_STRICT);
    for (size_t i = 0; i < keys->n; i++)
        if (!*keys->texts[i]) return cli_usage("--api-key: is empty");
    if (p->root_path && p->root_path[0] != '/')
        return cli_usage("--root-path: want a path that begins with /");
    return read_counts(o, p);
}

/* Reads "*" or a JSON array of origins, as vLLM's option has them; `list` keeps the texts. */
static int read_origins(const struct options *o, struct server_params *p, struct origins *list) {
    const char *text = options_text(o, OPT_ALLOWED_ORIGINS, NULL);
    if (!text) return EXIT_OK;
    list->root = strcmp(text, "*") == 0 ? json_pack("[s]", text) : json_loads(text, 0, NULL);
    const size_t n = json_array_size(list->root);
    for (size_t i = 0; i < n && i < MAX_ORIGINS; i++)
        list->texts[i] = json_string_value(json_array_get(list->root, i));
    for (size_t i = 0; i < n && i < MAX_ORIGINS; i++)
        if (!list->texts[i]) return cli_usage("--allowed-origins: want texts in the array");
    if (!json_is_array(list->root) || n > MAX_ORIGINS)
        return cli_usage("--allowed-origins: want '*' or an array of at most %d origins: "
                         "'[\"http://localhost:3000\"]'",
                         MAX_ORIGINS);
    p->origins = list->texts;
    p->n_origins = n;
    return EXIT_OK;
}

static int serve(struct serve *s, struct server_params *p) {
    struct diag d = {0};
    s->engine.max_logprobs = p->max_logprobs;
    const int rc = server_run(&d, p);
    if (rc == QN_OK) return EXIT_OK;
    return rc == QN_EINVAL ? EXIT_FAILED : cli_error("%s", d.message);
}

int cmd_serve(const struct options *o) {
    struct serve s = {.o = o};
    struct server_params p = {.open = open_engine, .say = say, .user = &s};
    struct origins list = {0};
    const char *key;
    int rc = cli_engine_params(o, &s.engine);
    if (rc == EXIT_OK) rc = read_params(o, &p, &key);
    if (rc == EXIT_OK) rc = read_origins(o, &p, &list);
    if (rc == EXIT_OK) rc = serve(&s, &p);
    json_decref(list.root);
    return rc;
}
