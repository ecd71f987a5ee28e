#include "cli/chat_prompt.h"

#include <stdlib.h>
#include <string.h>

/* Reads --chat-template-kwargs and adds the switch for thinking. */
static int read_kwargs(const struct options *o, char **kwargs) {
    const char *text = options_text(o, OPT_CHAT_TEMPLATE_KWARGS, NULL);
    bool on = options_flag(o, OPT_ENABLE_THINKING), off = options_flag(o, OPT_NO_ENABLE_THINKING);
    json_error_t e;
    *kwargs = NULL;
    if (on && off) return cli_usage("--enable-thinking and --no-enable-thinking: give one of them");
    if (!text && !on && !off) return EXIT_OK;
    json_t *root = json_loads(text ? text : "{}", 0, &e);
    if (!json_is_object(root)) {
        int rc = root ? cli_usage("--chat-template-kwargs: want a JSON object")
                      : cli_usage("--chat-template-kwargs: column %d: %s", e.column, e.text);
        json_decref(root);
        return rc;
    }
    int rc = on || off ? json_object_set_new(root, "enable_thinking", json_boolean(on)) : 0;
    if (rc == 0) *kwargs = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    return *kwargs ? EXIT_OK : cli_error("out of memory");
}

int chat_prompt_open(const struct options *o, const char *dir, struct chat_prompt *p) {
    qn_error error;
    *p = (struct chat_prompt){0};
    int rc = read_kwargs(o, &p->kwargs);
    if (rc != EXIT_OK) return rc;
    const char *name = options_text(o, OPT_CHAT_TEMPLATE, NULL);
    if (qn_chat_template_open(dir, name, &p->chat_template, &error) == QN_OK) return EXIT_OK;
    chat_prompt_close(p);
    return cli_failed(&error);
}

void chat_prompt_close(struct chat_prompt *p) {
    qn_chat_template_close(p->chat_template);
    free(p->kwargs);
    *p = (struct chat_prompt){0};
}

int chat_prompt_render(const struct chat_prompt *p, const char *conversation, char **text,
                       size_t *n, qn_error *error) {
    qn_chat_params params;
    qn_chat_params_init(&params);
    params.kwargs_json = p->kwargs;
    return qn_chat_template_render(p->chat_template, conversation, &params, text, n, error);
}
