#include "model/chat_template.h"
#include "base/checked.h"
#include "base/jsonio.h"
#include "base/mapfile.h"
#include "model/chat_template_jinja.h"
#include "model/tokenizer_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { MAX_PROGRAM = 1 << 20, MAX_CONFIG = 16 << 20 };

enum form { FORM_CHATML, FORM_LLAMA2, FORM_LLAMA3, FORM_MISTRAL };
static const char *const form_names[] = {"chatml", "llama2", "llama3", "mistral"};

/* What happens to <think> ... </think> in assistant turns. */
enum thoughts {
    THOUGHTS_KEPT,
    THOUGHTS_DROPPED, /* QwQ: always */
    THOUGHTS_RECENT,  /* Qwen3: kept behind the last question, dropped before */
};

struct chat_template {
    struct jinja j; /* everything below points into it */
    const char *where;
    enum form form;
    char *bos, *eos;                                 /* in j.arena; "" where unknown */
    bool bos_first;                                  /* the text begins with bos */
    const struct jinja_sum *turn, *user, *assistant; /* chatml and llama3: turn; else the others */
    const struct jinja_sum *user_system;             /* user's turn with the system message in it */
    bool system_last;                                /* mistral: in the last turn, not the first */
    bool fixed_roles;    /* only system, user and assistant have a rule */
    bool always_prompts; /* the program does not ask for add_generation_prompt */
    enum thoughts thoughts;
    const struct jinja_term *prompt;         /* the generation prompt; NULL: none */
    const struct jinja_term *no_thinking;    /* follows it with thinking off; NULL: nothing */
    const struct jinja_term *default_system; /* written where no system message comes first */
    const struct jinja_term *knowledge;      /* llama3: begins the system block; NULL: 3.0 */
    const struct jinja_sum *today;           /* llama3: the line with the date */
    const struct jinja_term *date;           /* llama3: the program's own date */
    bool date_is_today;
};

/* Recognition. */

static int unknown(struct diag *d, const char *where, const char *why) {
    return fail(d, QN_EUNSUPPORTED,
                "%s: the chat template is not one of the known forms (%s); choose one with "
                "--chat-template NAME, NAME being one of: %s",
                where, why, chat_template_names());
}

/* The first written text that begins and ends so; NULL: none. */
static const struct jinja_term *find_text(const struct jinja *j, const char *begin,
                                          const char *end) {
    size_t b = strlen(begin), e = strlen(end);
    for (size_t i = 0; i < j->sums.n; i++) {
        const struct jinja_sum *s = &j->sums.items[i];
        const struct jinja_term *t = &s->terms[0];
        if (s->target == NULL && s->n == 1 && t->kind == JINJA_TEXT && t->n >= b + e &&
            memcmp(t->text, begin, b) == 0 && memcmp(t->text + t->n - e, end, e) == 0)
            return t;
    }
    return NULL;
}

static bool text_is(const struct jinja_term *t, const char *text) {
    return t->n == strlen(text) && memcmp(t->text, text, t->n) == 0;
}

static int recognise_chatml(struct diag *d, struct chat_template *c) {
    const struct jinja *j = &c->j;
    c->turn = jinja_find(j, NULL, "TRTCT", "<|im_start|>");
    if (c->turn == NULL || !text_is(&c->turn->terms[0], "<|im_start|>") ||
        !text_is(&c->turn->terms[2], "\n"))
        return unknown(d, c->where, "<|im_start|>, but no turn of role and content");
    if (jinja_has(j, "system_message") || jinja_has(j, "macro") || jinja_has(j, "raise_exception"))
        return unknown(d, c->where, "<|im_start|> with rules of its own");
    c->default_system = find_text(j, "<|im_start|>system\n", "<|im_end|>\n");
    if (c->default_system != NULL && !jinja_has(j, "messages[0].role"))
        return unknown(d, c->where, "a system text without a condition");
    c->prompt = find_text(j, "<|im_start|>assistant\n", "");
    c->fixed_roles = jinja_has(j, "message.role==");
    if (jinja_has(j, "last_query_index"))
        c->thoughts = THOUGHTS_RECENT;
    else if (jinja_has(j, "split('</think>')"))
        c->thoughts = THOUGHTS_DROPPED;
    if (jinja_has(j, "enable_thinkingisfalse"))
        c->no_thinking = find_text(j, "<think>\n\n</think>\n\n", "");
    if (jinja_has(j, "enable_thinking") && c->no_thinking == NULL)
        return unknown(d, c->where, "another use of enable_thinking");
    return QN_OK;
}

static int recognise_llama3(struct diag *d, struct chat_template *c) {
    const struct jinja *j = &c->j;
    static const char begin[] = "<|start_header_id|>";
    c->turn = jinja_find(j, "content", "TRTCT", begin);
    if (c->turn == NULL) c->turn = jinja_find(j, NULL, "TRTCT", begin);
    if (c->turn == NULL || !text_is(&c->turn->terms[2], "<|end_header_id|>\n\n") ||
        !text_is(&c->turn->terms[4], "<|eot_id|>"))
        return unknown(d, c->where, "<|start_header_id|>, but no turn of role and content");
    c->prompt = find_text(j, "<|start_header_id|>assistant<|end_header_id|>\n\n", "");
    c->knowledge = find_text(j, "Cutting Knowledge Date: ", "\n");
    c->bos_first = true; /* 3.0 writes it with the first turn */
    if (c->knowledge == NULL) {
        if (jinja_has(j, "system_message") || jinja_has(j, "date_string"))
            return unknown(d, c->where, "<|start_header_id|> with rules of its own");
        return QN_OK;
    }
    const struct jinja_sum *date = jinja_find(j, "date_string", "T", "");
    c->today = jinja_find(j, NULL, "TDT", "");
    if (c->today == NULL || date == NULL || jinja_find(j, NULL, "S", "") == NULL)
        return unknown(d, c->where, "a knowledge date, but no date of today");
    c->date = &date->terms[0];
    c->date_is_today = jinja_has(j, "strftime_now('%d%b%Y')");
    return QN_OK;
}

static int recognise_llama2(struct diag *d, struct chat_template *c) {
    const struct jinja *j = &c->j;
    const struct jinja_sum *text = jinja_find(j, "system_message", "T", "");
    c->user = jinja_find(j, NULL, "BTCT", "[INST]");
    if (c->user == NULL) c->user = jinja_find(j, NULL, "TCT", "[INST]");
    c->assistant = jinja_find(j, NULL, "TCTE", "");
    c->user_system = jinja_find(j, "content", "TSTC", "<<SYS>>\n");
    if (c->user == NULL || c->assistant == NULL || c->user_system == NULL ||
        (text != NULL && text->terms[0].n > 0))
        return unknown(d, c->where, "<<SYS>> with rules of its own");
    return QN_OK;
}

static int recognise_mistral(struct diag *d, struct chat_template *c) {
    const struct jinja *j = &c->j;
    for (int i = 0; i < 2 && c->user == NULL; i++) {
        const char *begin = i == 0 ? "[INST]" : " [INST]";
        c->user = jinja_find(j, NULL, "TCT", begin);
        c->user_system = jinja_find(j, NULL, "TSTCT", begin);
    }
    c->assistant = jinja_find(j, NULL, "TCE", " ");
    if (c->assistant == NULL) c->assistant = jinja_find(j, NULL, "CE", "");
    if (c->assistant == NULL) c->assistant = jinja_find(j, NULL, "CET", " ");
    c->system_last = jinja_has(j, "loop.lastandsystem_message");
    if (c->user == NULL || c->assistant == NULL || jinja_has(j, "[SYSTEM_PROMPT]") ||
        (c->user_system != NULL && !c->system_last && !jinja_has(j, "loop.firstandsystem_message")))
        return unknown(d, c->where, "[INST] with rules of its own");
    return QN_OK;
}

static int recognise(struct diag *d, struct chat_template *c) {
    const struct jinja *j = &c->j;
    c->always_prompts = !jinja_has(j, "add_generation_prompt");
    c->bos_first = jinja_find(j, NULL, "B", "") != NULL;
    if (jinja_has(j, "<|im_start|>")) return c->form = FORM_CHATML, recognise_chatml(d, c);
    if (jinja_has(j, "<|start_header_id|>")) return c->form = FORM_LLAMA3, recognise_llama3(d, c);
    if (jinja_has(j, "<<SYS>>")) return c->form = FORM_LLAMA2, recognise_llama2(d, c);
    if (jinja_has(j, "[INST]")) return c->form = FORM_MISTRAL, recognise_mistral(d, c);
    return unknown(d, c->where, "none of <|im_start|>, <|start_header_id|>, <<SYS>>, [INST]");
}

int chat_template_parse(struct diag *d, const char *where, const char *program, size_t n,
                        const char *bos, const char *eos, struct chat_template **out) {
    struct chat_template *c = calloc(1, sizeof *c);
    char *name;
    *out = NULL;
    if (c == NULL) return fail_nomem(d, sizeof *c, "the chat template");
    int rc = n > MAX_PROGRAM ? fail(d, QN_ELIMIT, "%s: the chat template is too long", where)
                             : jinja_parse(d, where, program, n, &c->j);
    if (rc == QN_OK) rc = arena_strdup(d, &c->j.arena, bos == NULL ? "" : bos, &c->bos);
    if (rc == QN_OK) rc = arena_strdup(d, &c->j.arena, eos == NULL ? "" : eos, &c->eos);
    if (rc == QN_OK) rc = arena_strdup(d, &c->j.arena, where, &name);
    if (rc == QN_OK) c->where = name;
    if (rc == QN_OK) rc = recognise(d, c);
    if (rc != QN_OK) {
        chat_template_free(c);
        return rc;
    }
    *out = c;
    return QN_OK;
}

void chat_template_free(struct chat_template *c) {
    if (c == NULL) return;
    jinja_fini(&c->j);
    free(c);
}

const char *chat_template_form(const struct chat_template *c) {
    return form_names[c->form];
}

/* The named forms, written as the programs that recognition reads. */

#define CHATML_LOOP                                                                                \
    "{% for message in messages %}"                                                                \
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}"
#define CHATML_PROMPT "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
#define LLAMA3_LOOP                                                                                \
    "{{ '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim "  \
    "+ '<|eot_id|>' }}"
#define LLAMA3_PROMPT                                                                              \
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}"      \
    "{% endif %}"

static const struct named_form {
    const char *name, *bos, *eos, *program;
} named_forms[] = {
    {"chatml", "", "<|im_end|>", CHATML_LOOP CHATML_PROMPT},
    {"qwen2", "", "<|im_end|>",
     "{% if messages[0].role != 'system' %}"
     "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}" CHATML_LOOP
         CHATML_PROMPT},
    {"qwen3", "", "<|im_end|>",
     "{% set last_query_index = 0 %}" CHATML_LOOP CHATML_PROMPT
     "{% if enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}"},
    {"llama2", "<s>", "</s>",
     "{% set content = '<<SYS>>\n' + system_message + '\n<</SYS>>\n\n' + message.content %}"
     "{{ bos_token + '[INST] ' + content | trim + ' [/INST]' }}"
     "{{ ' ' + content | trim + ' ' + eos_token }}"},
    {"llama3", "<|begin_of_text|>", "<|eot_id|>", LLAMA3_LOOP LLAMA3_PROMPT},
    {"llama3.1", "<|begin_of_text|>", "<|eot_id|>",
     "{% set date_string = '26 Jul 2024' %}{{ 'Cutting Knowledge Date: December 2023\n' }}"
     "{{ 'Today Date: ' + date_string + '\n\n' }}{{ system_message }}" LLAMA3_LOOP LLAMA3_PROMPT},
    {"mistral", "<s>", "</s>",
     "{{ bos_token }}{% if loop.last and system_message %}"
     "{{ '[INST] ' + system_message + '\n\n' + message.content + '[/INST]' }}{% endif %}"
     "{{ '[INST] ' + message.content + '[/INST]' }}{{ ' ' + message.content | trim + eos_token }}"},
    {"mistral-v1", "<s>", "</s>",
     "{{ bos_token }}{% if loop.first and system_message %}"
     "{{ ' [INST] ' + system_message + '\n\n' + message.content + ' [/INST]' }}{% endif %}"
     "{{ ' [INST] ' + message.content + ' [/INST]' }}{{ ' ' + message.content + eos_token }}"},
    {"mistral-tekken", "<s>", "</s>",
     "{{ bos_token }}{% if loop.last and system_message %}"
     "{{ '[INST]' + system_message + '\n\n' + message.content + '[/INST]' }}{% endif %}"
     "{{ '[INST]' + message.content + '[/INST]' }}{{ message.content + eos_token }}"},
};

const char *chat_template_names(void) {
    return "chatml, qwen2, qwen3, llama2, llama3, llama3.1, mistral, mistral-v1, mistral-tekken";
}

int chat_template_named(struct diag *d, const char *name, const char *bos, const char *eos,
                        struct chat_template **out) {
    *out = NULL;
    for (size_t i = 0; i < COUNT_OF(named_forms); i++) {
        const struct named_form *f = &named_forms[i];
        if (strcmp(f->name, name) == 0)
            return chat_template_parse(d, name, f->program, strlen(f->program),
                                       bos == NULL ? f->bos : bos, eos == NULL ? f->eos : eos, out);
    }
    return fail(d, QN_EINVAL, "--chat-template: want one of %s, have '%.60s'",
                chat_template_names(), name);
}

/* Model directories. */

/* bos_token and its like: a text, or an object with `content`. */
static const char *token_text(const json_t *config, const char *key) {
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v)) v = json_object_get(v, "content");
    return json_string_value(v);
}

/* The program inside tokenizer_config.json; NULL: it has none. */
static int config_program(struct diag *d, const char *file, const json_t *config,
                          const json_t **program) {
    const json_t *v = json_object_get(config, "chat_template"), *item;
    size_t i;
    *program = NULL;
    if (v == NULL || json_is_null(v)) return QN_OK;
    if (json_is_string(v)) return *program = v, QN_OK;
    if (!json_is_array(v))
        return fail(d, QN_EFORMAT, "%s: chat_template: want a text or a list", file);
    json_array_foreach(v, i, item) {
        const char *name = json_string_value(json_object_get(item, "name"));
        const json_t *text = json_object_get(item, "template");
        if (name != NULL && strcmp(name, "default") == 0 && json_is_string(text))
            return *program = text, QN_OK;
    }
    return fail(d, QN_EFORMAT, "%s: chat_template: none of the list is named 'default'", file);
}

static bool is_file(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

static int open_with_config(struct diag *d, const char *dir, const char *name,
                            const char *config_file, const json_t *config,
                            struct chat_template **out) {
    const char *bos = token_text(config, "bos_token"), *eos = token_text(config, "eos_token");
    const json_t *program;
    if (name != NULL) return chat_template_named(d, name, bos, eos, out);
    struct strbuf file = {0};
    strbuf_printf(&file, "%s/chat_template.jinja", dir);
    int rc = strbuf_status(d, &file);
    if (rc == QN_OK && is_file(file.text)) {
        struct mapfile f;
        rc = mapfile_open(d, file.text, MAX_PROGRAM, &f);
        if (rc == QN_OK) {
            rc = chat_template_parse(d, file.text, (const char *)f.data, f.bytes, bos, eos, out);
            mapfile_close(&f);
        }
    } else if (rc == QN_OK) {
        rc = config_program(d, config_file, config, &program);
        if (rc == QN_OK && program == NULL)
            rc = fail(d, QN_ENOENT,
                      "%s: no chat template (neither chat_template.jinja nor chat_template in "
                      "tokenizer_config.json); choose one with --chat-template NAME: %s",
                      dir, chat_template_names());
        else if (rc == QN_OK)
            rc = chat_template_parse(d, config_file, json_string_value(program),
                                     json_string_length(program), bos, eos, out);
    }
    strbuf_fini(&file);
    return rc;
}

int chat_template_open(struct diag *d, const char *dir, const char *name,
                       struct chat_template **out) {
    struct strbuf file = {0};
    json_t *config = NULL;
    *out = NULL;
    strbuf_printf(&file, "%s/tokenizer_config.json", dir);
    int rc = strbuf_status(d, &file);
    if (rc == QN_OK && is_file(file.text)) rc = jsonio_load(d, file.text, MAX_CONFIG, &config);
    if (rc == QN_OK) rc = open_with_config(d, dir, name, file.text, config, out);
    json_decref(config);
    strbuf_fini(&file);
    return rc;
}

/* Rendering. */

/* A piece of text that is not owned. */
struct span {
    const char *p;
    size_t n;
};

static struct span span_of(const struct jinja_term *t) {
    return (struct span){t->text, t->n};
}

/* Python's str.isspace. */
static bool is_python_space(int32_t c) {
    return tokenizer_text_is_space(c) || (c >= 0x1C && c <= 0x1F);
}

static struct span strip(struct span s) {
    size_t start = 0;
    for (size_t i = 0; i < s.n; start = i)
        if (!is_python_space(tokenizer_text_next(s.p, &i))) break;
    size_t end = s.n;
    while (end > start && is_python_space(tokenizer_text_last(s.p, end))) do
            end--;
        while (((unsigned char)s.p[end] & 0xC0) == 0x80);
    return (struct span){s.p + start, end - start};
}

static struct span strip_newlines(struct span s, bool left, bool right) {
    while (left && s.n > 0 && s.p[0] == '\n') s.p++, s.n--;
    while (right && s.n > 0 && s.p[s.n - 1] == '\n') s.n--;
    return s;
}

/* Where `what` is first or last in s; NULL: nowhere. */
static const char *find(struct span s, const char *what, bool last) {
    size_t k = strlen(what);
    const char *hit = NULL, *p = s.p;
    while ((p = memmem(p, s.n - (size_t)(p - s.p), what, k)) != NULL) {
        hit = p++;
        if (!last) break;
    }
    return hit;
}

struct render {
    struct diag *d;
    const struct chat_template *c;
    const struct chat_message *messages; /* [n] */
    size_t n;
    const struct chat_options *options;
    struct strbuf *out;
    struct span date;
};

static void add(struct render *r, struct span s) {
    strbuf_add(r->out, s.p, s.n);
}

static void write_sum(struct render *r, const struct jinja_sum *s, const char *role,
                      struct span content, struct span system) {
    for (int i = 0; i < s->n; i++) {
        const struct jinja_term *t = &s->terms[i];
        struct span v = {"", 0};
        switch (t->kind) {
        case JINJA_TEXT: v = span_of(t); break;
        case JINJA_BOS: v = (struct span){r->c->bos, strlen(r->c->bos)}; break;
        case JINJA_EOS: v = (struct span){r->c->eos, strlen(r->c->eos)}; break;
        case JINJA_ROLE: v = (struct span){role, strlen(role)}; break;
        case JINJA_CONTENT: v = content; break;
        case JINJA_SYSTEM: v = system; break;
        case JINJA_DATE: v = r->date; break;
        }
        add(r, t->strip ? strip(v) : v);
    }
}

static struct span content_of(const struct chat_message *m) {
    return (struct span){m->content, m->n};
}

static bool has_role(const struct chat_message *m, const char *role) {
    return strcmp(m->role, role) == 0;
}

static int bad_role(const struct render *r, size_t idx, const char *want) {
    return fail(r->d, QN_EINVAL, "messages[%zu].role: the %s chat template wants %s, have '%.40s'",
                idx, form_names[r->c->form], want, r->messages[idx].role);
}

/* Qwen3: the last user turn that is a question, not a tool's answer. */
static size_t last_question(const struct render *r) {
    static const char begin[] = "<tool_response>", end[] = "</tool_response>";
    size_t b = sizeof begin - 1, e = sizeof end - 1;
    for (size_t i = r->n; i-- > 0;) {
        const struct chat_message *m = &r->messages[i];
        bool wrapped = m->n >= b && memcmp(m->content, begin, b) == 0 && m->n >= e &&
                       memcmp(m->content + m->n - e, end, e) == 0;
        if (has_role(m, "user") && !wrapped) return i;
    }
    return r->n - 1;
}

/* Parts `content` at its </think>: what was thought and what was said. */
static struct span split_thoughts(struct span *content) {
    static const char open[] = "<think>", close[] = "</think>";
    const char *first = find(*content, close, false), *last = find(*content, close, true);
    struct span thoughts = {"", 0};
    if (first == NULL || last == NULL) return thoughts;
    thoughts = (struct span){content->p, (size_t)(first - content->p)};
    thoughts = strip_newlines(thoughts, false, true);
    const char *start = find(thoughts, open, true);
    if (start != NULL) {
        start += sizeof open - 1;
        thoughts.n -= (size_t)(start - thoughts.p);
        thoughts.p = start;
    }
    thoughts = strip_newlines(thoughts, true, false);
    const char *end = content->p + content->n;
    last += sizeof close - 1;
    *content = strip_newlines((struct span){last, (size_t)(end - last)}, true, false);
    return thoughts;
}

static void chatml_assistant(struct render *r, size_t idx, size_t question) {
    struct span content = content_of(&r->messages[idx]), none = {"", 0};
    struct span thoughts = split_thoughts(&content);
    struct strbuf text = {0};
    bool shows =
        r->c->thoughts == THOUGHTS_RECENT && idx > question && (idx + 1 == r->n || thoughts.n > 0);
    if (shows) {
        thoughts = strip_newlines(thoughts, true, true);
        content = strip_newlines(content, true, false);
        strbuf_str(&text, "<think>\n");
        strbuf_add(&text, thoughts.p, thoughts.n);
        strbuf_str(&text, "\n</think>\n\n");
    }
    strbuf_add(&text, content.p, content.n);
    if (text.failed) r->out->failed = true;
    write_sum(r, r->c->turn, "assistant", (struct span){strbuf_text(&text), text.n}, none);
    strbuf_fini(&text);
}

static int render_chatml(struct render *r) {
    const struct chat_template *c = r->c;
    struct span none = {"", 0};
    size_t question = last_question(r);
    if (c->default_system != NULL && !has_role(&r->messages[0], "system"))
        add(r, span_of(c->default_system));
    for (size_t i = 0; i < r->n; i++) {
        const struct chat_message *m = &r->messages[i];
        bool assistant = has_role(m, "assistant");
        if (c->fixed_roles && !assistant && !has_role(m, "system") && !has_role(m, "user"))
            return bad_role(r, i, "'system', 'user' or 'assistant'");
        if (assistant && c->thoughts != THOUGHTS_KEPT)
            chatml_assistant(r, i, question);
        else
            write_sum(r, c->turn, m->role, content_of(m), none);
    }
    return QN_OK;
}

static int render_llama3(struct render *r) {
    const struct chat_template *c = r->c;
    struct span none = {"", 0};
    size_t first = 0;
    if (c->knowledge != NULL) {
        strbuf_str(r->out, "<|start_header_id|>system<|end_header_id|>\n\n");
        add(r, span_of(c->knowledge));
        write_sum(r, c->today, "system", none, none);
        if (has_role(&r->messages[0], "system")) {
            add(r, strip(content_of(&r->messages[0])));
            first = 1;
        }
        strbuf_str(r->out, "<|eot_id|>");
    }
    for (size_t i = first; i < r->n; i++) {
        const struct chat_message *m = &r->messages[i];
        if (c->knowledge != NULL && (has_role(m, "tool") || has_role(m, "ipython")))
            return bad_role(r, i, "'system', 'user' or 'assistant'");
        write_sum(r, c->turn, m->role, content_of(m), none);
    }
    return QN_OK;
}

/* Llama 2 and Mistral: an optional system message, then user and assistant in turn. */
static int render_inst(struct render *r) {
    const struct chat_template *c = r->c;
    struct span none = {"", 0}, system = none;
    bool has_system = has_role(&r->messages[0], "system");
    size_t first = has_system;
    if (has_system && c->user_system == NULL)
        return bad_role(r, 0, "'user' (it has no system turn)");
    if (has_system) system = content_of(&r->messages[0]);
    for (size_t i = first; i < r->n; i++) {
        const struct chat_message *m = &r->messages[i];
        bool user = (i - first) % 2 == 0;
        if (!has_role(m, user ? "user" : "assistant"))
            return bad_role(r, i,
                            user ? "'user' here: user and assistant take turns"
                                 : "'assistant' here: user and assistant take turns");
        bool here = has_system && (c->system_last ? i + 1 == r->n : i == first);
        if (!user) {
            write_sum(r, c->assistant, m->role, content_of(m), none);
        } else if (here && c->form == FORM_MISTRAL) {
            write_sum(r, c->user_system, m->role, content_of(m), system);
        } else if (here) { /* the system text becomes a part of the content, which is trimmed */
            struct strbuf text = {0};
            struct render part = *r;
            part.out = &text;
            write_sum(&part, c->user_system, m->role, content_of(m), system);
            if (text.failed) r->out->failed = true;
            write_sum(r, c->user, m->role, (struct span){strbuf_text(&text), text.n}, none);
            strbuf_fini(&text);
        } else {
            write_sum(r, c->user, m->role, content_of(m), none);
        }
    }
    return QN_OK;
}

/* "26 Jul 2024", the local day. */
static void write_today(char *text, size_t size) {
    static const char months[] = "JanFebMarAprMayJunJulAugSepOctNovDec";
    time_t now = time(NULL);
    struct tm day;
    text[0] = '\0';
    if (localtime_r(&now, &day) != NULL)
        snprintf(text, size, "%02d %.3s %d", day.tm_mday, months + 3 * day.tm_mon,
                 day.tm_year + 1900);
}

static int check_messages(struct diag *d, const struct chat_message *messages, size_t n) {
    if (n == 0) return fail(d, QN_EINVAL, "messages: want at least one");
    for (size_t i = 0; i < n; i++) {
        if (!tokenizer_text_valid(messages[i].content, messages[i].n))
            return fail(d, QN_EINVAL, "messages[%zu].content: not UTF-8", i);
        if (!tokenizer_text_valid(messages[i].role, strlen(messages[i].role)))
            return fail(d, QN_EINVAL, "messages[%zu].role: not UTF-8", i);
    }
    return QN_OK;
}

int chat_template_render(struct diag *d, const struct chat_template *c,
                         const struct chat_message *messages, size_t n,
                         const struct chat_options *options, struct strbuf *out) {
    static const struct chat_options defaults = {0};
    char today[40];
    struct render r = {d, c, messages, n, options == NULL ? &defaults : options, out, {"", 0}};
    size_t start = out->n;
    TRY(check_messages(d, messages, n));
    write_today(today, sizeof today);
    if (r.options->date != NULL)
        r.date = (struct span){r.options->date, strlen(r.options->date)};
    else if (c->date_is_today)
        r.date = (struct span){today, strlen(today)};
    else if (c->date != NULL)
        r.date = span_of(c->date);
    if (c->bos_first) strbuf_str(out, c->bos);
    int rc = c->form == FORM_CHATML   ? render_chatml(&r)
             : c->form == FORM_LLAMA3 ? render_llama3(&r)
                                      : render_inst(&r);
    if (rc != QN_OK) {
        if (out->text != NULL) out->n = start, out->text[start] = '\0';
        return rc;
    }
    if (c->prompt != NULL && (r.options->add_generation_prompt || c->always_prompts)) {
        add(&r, span_of(c->prompt));
        if (c->no_thinking != NULL && r.options->thinking == CHAT_THINKING_OFF)
            add(&r, span_of(c->no_thinking));
    }
    return strbuf_status(d, out);
}
