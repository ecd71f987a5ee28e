#include "chat/reasoning.h"

#include "base/checked.h"

#include <string.h>

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

#define THINK      "<think>", "</think>", "\n</think>", "\n\n"

static const struct reasoning_form table[] = {
    {"qwen3", NAMES("glm45", "holo2", "hunyuan_a13b"), "</think>", THINK, false},
    {"deepseek_r1", NAMES("deepseek-r1", "qwq"), NULL, THINK, true},
    {"mistral", NAMES("magistral"), "[/THINK]", "[THINK]", "[/THINK]", "[/THINK]", "", false},
    {"seed_oss", NAMES("seed"), "</seed:think>", "<seed:think>", "</seed:think>", "</seed:think>",
     "", false},
};

const struct reasoning_form *reasoning_form_find(const char *name) {
    for (size_t i = 0; i < COUNT_OF(table); i++) {
        if (strcmp(table[i].name, name) == 0) return &table[i];
        for (const char *const *also = table[i].names; *also; also++)
            if (strcmp(*also, name) == 0) return &table[i];
    }
    return NULL;
}

const struct reasoning_form *reasoning_form_of(const char *chat_template) {
    for (size_t i = 0; i < COUNT_OF(table); i++)
        if (table[i].sign && strstr(chat_template, table[i].sign)) return &table[i];
    return NULL;
}

const char *reasoning_form_names(void) {
    return "qwen3, deepseek_r1, mistral, seed_oss";
}

static const char *last_of(const char *text, const char *mark) {
    const char *last = NULL;
    for (const char *at = strstr(text, mark); at; at = strstr(at + 1, mark)) last = at;
    return last;
}

/* Whether the text ends with the mark, white space aside. */
static bool ends_with(const char *text, const char *mark) {
    const char *last = last_of(text, mark);
    return last && last[strlen(mark) + strspn(last + strlen(mark), " \t\r\n")] == '\0';
}

bool reasoning_begins(const struct reasoning_form *form, const char *prompt) {
    if (!prompt) return form->begins_inside;
    return ends_with(prompt, form->open) ||
           (form->begins_inside && !ends_with(prompt, form->close));
}

bool reasoning_is_over(const struct reasoning_form *form, const char *prompt) {
    return prompt && ends_with(prompt, form->close);
}
