#include "model/chat_template.h"
#include "base/array.h"
#include "base/checked.h"
#include "base/jsonio.h"
#include "base/mapfile.h"
#include "model/chat_named.h"
#include "model/jinja/jinja.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_CONFIG = 16 << 20, MAX_TEMPLATES = 64 };

/* The special tokens that a template sees as variables. */
static const char *const token_names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                          "pad_token", "cls_token", "mask_token"};
enum { TOKEN_BOS, TOKEN_EOS, N_TOKENS = COUNT_OF(token_names) };

struct chat_template {
    struct arena arena;
    const char *tokens[N_TOKENS];     /* NULL: the directory names none */
    struct jinja *plain, *with_tools; /* one may be NULL */
    struct diag no_tools;             /* why the one for tools could not be compiled */
    const char *program;              /* of with_tools, else of plain */
};

/* One of a directory's templates. */
struct source {
    const char *name, *where, *text;
    size_t n;
};

/* The content of a directory; the texts live in the arena of the template. */
struct folder {
    struct diag *d;
    const char *dir; /* NULL: none */
    struct arena *arena;
    ARRAY(struct source) sources;
};

static bool is_file(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* Special tokens. */

/* A text, or an object with `content`. */
static int take_tokens(struct folder *f, const json_t *config, const char **tokens) {
    for (size_t i = 0; i < N_TOKENS; i++) {
        const json_t *v = json_object_get(config, token_names[i]);
        if (json_is_object(v)) v = json_object_get(v, "content");
        if (!json_is_string(v)) continue;
        char *copy;
        TRY(arena_copy(f->d, f->arena, json_string_value(v), json_string_length(v), &copy));
        tokens[i] = copy;
    }
    return QN_OK;
}

/* special_tokens_map.json is read, and wins, if the config has no added_tokens_decoder. */
static int take_token_map(struct folder *f, const json_t *config, const char **tokens) {
    char *path;
    json_t *map = NULL;
    TRY(arena_printf(f->d, f->arena, &path, "%s/special_tokens_map.json", f->dir));
    if (json_object_get(config, "added_tokens_decoder") != NULL || !is_file(path)) return QN_OK;
    int rc = jsonio_load(f->d, path, MAX_CONFIG, &map);
    if (rc == QN_OK) rc = take_tokens(f, map, tokens);
    json_decref(map);
    return rc;
}

/* The directory's templates. */

static int add_source(struct folder *f, const char *name, const char *where, const char *text,
                      size_t n) {
    struct source s = {.n = n};
    char *copies[3];
    if (f->sources.n == MAX_TEMPLATES)
        return fail(f->d, QN_ELIMIT, "%s: more than %d chat templates", where, MAX_TEMPLATES);
    if (n > JINJA_MAX_PROGRAM)
        return fail(f->d, QN_ELIMIT, "%s: a chat template of more than %d bytes", where,
                    JINJA_MAX_PROGRAM);
    TRY(arena_strdup(f->d, f->arena, name, &copies[0]));
    TRY(arena_strdup(f->d, f->arena, where, &copies[1]));
    TRY(arena_copy(f->d, f->arena, text, n, &copies[2]));
    s.name = copies[0];
    s.where = copies[1];
    s.text = copies[2];
    return ARRAY_PUSH(f->d, &f->sources, s);
}

static int add_file(struct folder *f, const char *name, const char *path) {
    struct mapfile m;
    TRY(mapfile_open(f->d, path, JINJA_MAX_PROGRAM, &m));
    int rc = add_source(f, name, path, (const char *)m.data, m.bytes);
    mapfile_close(&m);
    return rc;
}

/* additional_chat_templates/NAME.jinja */
static int add_additional(struct folder *f) {
    char *folder, *path, *name;
    struct dirent *entry;
    int rc = QN_OK;
    TRY(arena_printf(f->d, f->arena, &folder, "%s/additional_chat_templates", f->dir));
    DIR *dir = opendir(folder);
    while (dir != NULL && rc == QN_OK && (entry = readdir(dir)) != NULL) {
        size_t n = strlen(entry->d_name);
        if (n < 6 || strcmp(entry->d_name + n - 6, ".jinja") != 0) continue;
        rc = arena_printf(f->d, f->arena, &path, "%s/%s", folder, entry->d_name);
        if (rc == QN_OK) rc = arena_copy(f->d, f->arena, entry->d_name, n - 6, &name);
        if (rc == QN_OK) rc = add_file(f, name, path);
    }
    if (dir != NULL) closedir(dir);
    return rc;
}

/* `chat_template` in tokenizer_config.json. */
static int add_config(struct folder *f, const char *file, const json_t *config) {
    const json_t *v = json_object_get(config, "chat_template"), *item;
    size_t i;
    if (v == NULL || json_is_null(v)) return QN_OK;
    if (json_is_string(v))
        return add_source(f, "default", file, json_string_value(v), json_string_length(v));
    if (!json_is_array(v))
        return fail(f->d, QN_EFORMAT, "%s: chat_template: want a text or a list", file);
    json_array_foreach(v, i, item) {
        const char *name = json_string_value(json_object_get(item, "name"));
        const json_t *text = json_object_get(item, "template");
        char *where;
        if (name == NULL || !json_is_string(text))
            return fail(f->d, QN_EFORMAT, "%s: chat_template[%zu]: want a name and a template",
                        file, i);
        TRY(arena_printf(f->d, f->arena, &where, "%s: chat_template '%s'", file, name));
        TRY(add_source(f, name, where, json_string_value(text), json_string_length(text)));
    }
    return QN_OK;
}

static int read_config(struct folder *f, const char *file, const json_t *config,
                       const char **tokens) {
    char *path;
    TRY(take_tokens(f, config, tokens));
    TRY(take_token_map(f, config, tokens));
    TRY(arena_printf(f->d, f->arena, &path, "%s/chat_template.jinja", f->dir));
    if (is_file(path)) TRY(add_file(f, "default", path));
    TRY(add_additional(f));
    return f->sources.n > 0 ? QN_OK : add_config(f, file, config);
}

static int read_folder(struct folder *f, const char **tokens) {
    char *file;
    json_t *config = NULL;
    if (f->dir == NULL) return QN_OK;
    TRY(arena_printf(f->d, f->arena, &file, "%s/tokenizer_config.json", f->dir));
    int rc = is_file(file) ? jsonio_load(f->d, file, MAX_CONFIG, &config) : QN_OK;
    if (rc == QN_OK) rc = read_config(f, file, config, tokens);
    json_decref(config);
    return rc;
}

/* Choosing one. */

static const struct source *find_source(const struct folder *f, const char *name) {
    for (size_t i = 0; i < f->sources.n; i++)
        if (strcmp(f->sources.items[i].name, name) == 0) return &f->sources.items[i];
    return NULL;
}

static int compile(struct folder *f, const struct source *s, struct jinja **out) {
    return s == NULL ? QN_OK : jinja_compile(f->d, s->where, s->text, s->n, out);
}

static const char *names_of(const struct folder *f, char *text, size_t size) {
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; i < f->sources.n && n < size; i++)
        n += (size_t)snprintf(text + n, size - n, "%s%s", i > 0 ? ", " : "",
                              f->sources.items[i].name);
    return text;
}

static int choose_default(struct folder *f, struct chat_template *c) {
    char names[300];
    const struct source *plain = find_source(f, "default"), *tools = find_source(f, "tool_use");
    if (plain == NULL && tools == NULL && f->sources.n > 0)
        return fail(f->d, QN_EINVAL,
                    "%s: no chat template is called 'default'; choose one with --chat-template "
                    "NAME: %s",
                    f->dir, names_of(f, names, sizeof names));
    if (plain == NULL && tools == NULL)
        return fail(f->d, QN_ENOENT,
                    "%s: no chat template (neither chat_template.jinja nor chat_template in "
                    "tokenizer_config.json); choose one with --chat-template FILE or one of: %s",
                    f->dir == NULL ? "chat template" : f->dir, chat_template_names());
    TRY(compile(f, plain, &c->plain));
    c->program = tools != NULL ? tools->text : plain->text;
    if (tools == NULL) return QN_OK;
    int rc = jinja_compile(&c->no_tools, tools->where, tools->text, tools->n, &c->with_tools);
    bool matters = plain == NULL || rc == QN_ENOMEM;
    return rc != QN_OK && matters ? fail(f->d, rc, "%s", c->no_tools.message) : QN_OK;
}

static int choose_named(struct folder *f, const char *name, struct chat_template *c) {
    const struct source *s = find_source(f, name);
    const struct chat_named *built_in = s == NULL ? chat_named_find(name) : NULL;
    char names[300];
    if (built_in != NULL) {
        if (c->tokens[TOKEN_BOS] == NULL) c->tokens[TOKEN_BOS] = built_in->bos;
        if (c->tokens[TOKEN_EOS] == NULL) c->tokens[TOKEN_EOS] = built_in->eos;
        c->program = built_in->program;
        return jinja_compile(f->d, name, built_in->program, strlen(built_in->program), &c->plain);
    }
    if (s == NULL && is_file(name)) {
        TRY(add_file(f, "", name));
        s = &f->sources.items[f->sources.n - 1];
    }
    if (s != NULL) {
        c->program = s->text;
        return compile(f, s, &c->plain);
    }
    return fail(f->d, QN_EINVAL,
                "--chat-template '%.200s': no file, and no template of that name; the directory "
                "has: %s; built in are: %s",
                name, f->sources.n > 0 ? names_of(f, names, sizeof names) : "none",
                chat_template_names());
}

int chat_template_open(struct diag *d, const char *dir, const char *name,
                       struct chat_template **out) {
    struct chat_template *c = calloc(1, sizeof *c);
    *out = NULL;
    if (c == NULL) return fail_nomem(d, sizeof *c, "the chat template");
    struct folder f = {.d = d, .dir = dir, .arena = &c->arena};
    int rc = read_folder(&f, c->tokens);
    if (rc == QN_OK) rc = name == NULL ? choose_default(&f, c) : choose_named(&f, name, c);
    ARRAY_FINI(&f.sources);
    if (rc == QN_OK)
        *out = c;
    else
        chat_template_free(c);
    return rc;
}

int chat_template_parse(struct diag *d, const char *where, const char *program, size_t n,
                        const char *bos, const char *eos, struct chat_template **out) {
    struct chat_template *c = calloc(1, sizeof *c);
    char *copies[2] = {NULL, NULL};
    *out = NULL;
    if (c == NULL) return fail_nomem(d, sizeof *c, "the chat template");
    char *copy = NULL;
    int rc = bos == NULL ? QN_OK : arena_strdup(d, &c->arena, bos, &copies[0]);
    if (rc == QN_OK && eos != NULL) rc = arena_strdup(d, &c->arena, eos, &copies[1]);
    if (rc == QN_OK) rc = arena_copy(d, &c->arena, program, n, &copy);
    c->program = copy;
    c->tokens[TOKEN_BOS] = copies[0];
    c->tokens[TOKEN_EOS] = copies[1];
    if (rc == QN_OK) rc = jinja_compile(d, where, program, n, &c->plain);
    if (rc == QN_OK)
        *out = c;
    else
        chat_template_free(c);
    return rc;
}

const char *chat_template_program(const struct chat_template *c) {
    return c->program;
}

void chat_template_free(struct chat_template *c) {
    if (c == NULL) return;
    jinja_free(c->plain);
    jinja_free(c->with_tools);
    arena_fini(&c->arena);
    free(c);
}

/* Rendering. */

/* The members of a conversation. */
struct conversation {
    struct value messages, tools, documents, prompt, kwargs;
};

static int put(struct run *r, struct value dict, const char *key, struct value v) {
    struct value name;
    TRY(value_borrow(r, key, strlen(key), &name));
    return value_put(r, dict.dict, name, v);
}

static int wrong(struct run *r, const char *field, const char *want, struct value have) {
    return fail(r->d, QN_EFORMAT, "%s: want %s, have a %s", field, want, value_type_name(have));
}

static int read_fields(struct run *r, const struct dict *d, struct conversation *c) {
    static const struct {
        const char *name;
        size_t at;
        uint8_t type;
        const char *want;
    } fields[] = {
        {"messages", offsetof(struct conversation, messages), VALUE_LIST, "a list"},
        {"tools", offsetof(struct conversation, tools), VALUE_LIST, "a list"},
        {"documents", offsetof(struct conversation, documents), VALUE_LIST, "a list"},
        {"add_generation_prompt", offsetof(struct conversation, prompt), VALUE_BOOL,
         "true or false"},
        {"chat_template_kwargs", offsetof(struct conversation, kwargs), VALUE_DICT, "an object"},
        {"kwargs", offsetof(struct conversation, kwargs), VALUE_DICT, "an object"},
    };
    for (size_t i = 0; i < d->n; i++) {
        size_t k = 0;
        while (k < COUNT_OF(fields) && !value_is_text(d->keys[i], fields[k].name)) k++;
        if (k == COUNT_OF(fields))
            return fail(r->d, QN_EFORMAT,
                        "%.*s: no field of a conversation (messages, tools, documents, "
                        "add_generation_prompt, chat_template_kwargs)",
                        (int)MIN(d->keys[i].text->n, 60u), d->keys[i].text->p);
        struct value v = d->values[i];
        if (v.type == VALUE_NONE) continue;
        if (v.type != fields[k].type) return wrong(r, fields[k].name, fields[k].want, v);
        memcpy((char *)c + fields[k].at, &v, sizeof v);
    }
    return QN_OK;
}

/* A message as transformers hands it to templates. */
static int normalize(struct run *r, const struct dict *from, struct value *to) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    const struct value *reasoning = NULL;
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const struct value *v = value_field(from, names[i]);
        if (reasoning == NULL && v != NULL && v->type != VALUE_NONE) reasoning = v;
    }
    TRY(value_dict(r, from->n + 2, to));
    if (reasoning != NULL) TRY(put(r, *to, "thinking", *reasoning));
    for (size_t i = 0; i < from->n; i++)
        if (from->values[i].type != VALUE_NONE)
            TRY(value_put(r, to->dict, from->keys[i], from->values[i]));
    return reasoning == NULL ? QN_OK : put(r, *to, "reasoning_content", *reasoning);
}

static int read_messages(struct run *r, struct value messages, struct value *out) {
    if (messages.type != VALUE_LIST) return wrong(r, "messages", "a list", messages);
    if (messages.list->n == 0) return fail(r->d, QN_EINVAL, "messages: want at least one");
    TRY(value_list(r, messages.list->n, out));
    for (size_t i = 0; i < messages.list->n; i++) {
        struct value m = messages.list->items[i], normal;
        if (m.type != VALUE_DICT)
            return fail(r->d, QN_EFORMAT, "messages[%zu]: want an object, have a %s", i,
                        value_type_name(m));
        TRY(normalize(r, m.dict, &normal));
        TRY(value_append(r, *out, normal));
    }
    return QN_OK;
}

static int each_object(struct run *r, const char *field, struct value list) {
    for (size_t i = 0; list.type == VALUE_LIST && i < list.list->n; i++)
        if (list.list->items[i].type != VALUE_DICT)
            return fail(r->d, QN_EFORMAT, "%s[%zu]: want an object, have a %s", field, i,
                        value_type_name(list.list->items[i]));
    return QN_OK;
}

static int read_conversation(struct run *r, const char *text, size_t n,
                             const struct chat_options *o, struct conversation *c) {
    struct value root, named = {.type = VALUE_MISSING};
    *c = (struct conversation){.tools = value_none(),
                               .documents = value_none(),
                               .prompt = value_bool(o->add_generation_prompt)};
    TRY(json_read(r, "messages", text, n, &root));
    if (root.type == VALUE_DICT)
        TRY(read_fields(r, root.dict, c));
    else
        c->messages = root;
    if (o->kwargs != NULL) {
        TRY(json_read(r, "chat_template_kwargs", o->kwargs, strlen(o->kwargs), &named));
        if (named.type != VALUE_DICT) return wrong(r, "chat_template_kwargs", "an object", named);
    }
    if (named.type == VALUE_MISSING) TRY(value_dict(r, 0, &named));
    for (size_t i = 0; c->kwargs.type == VALUE_DICT && i < c->kwargs.dict->n; i++)
        TRY(value_put(r, named.dict, c->kwargs.dict->keys[i], c->kwargs.dict->values[i]));
    c->kwargs = named;
    TRY(each_object(r, "tools", c->tools));
    TRY(each_object(r, "documents", c->documents));
    return read_messages(r, c->messages, &c->messages);
}

static int make_vars(struct run *r, const struct chat_template *t, const struct conversation *c,
                     struct value *vars) {
    static const char *const own[] = {"messages", "tools", "documents", "add_generation_prompt"};
    TRY(value_dict(r, N_TOKENS + 4 + c->kwargs.dict->n, vars));
    for (size_t i = 0; i < N_TOKENS; i++) {
        struct value token;
        if (t->tokens[i] == NULL) continue;
        TRY(value_borrow(r, t->tokens[i], strlen(t->tokens[i]), &token));
        TRY(put(r, *vars, token_names[i], token));
    }
    for (size_t i = 0; i < c->kwargs.dict->n; i++) {
        struct value key = c->kwargs.dict->keys[i];
        for (size_t k = 0; k < COUNT_OF(own); k++)
            if (value_is_text(key, own[k]))
                return fail(r->d, QN_EINVAL,
                            "chat_template_kwargs: '%s' is no further argument of a template",
                            own[k]);
        TRY(value_put(r, vars->dict, key, c->kwargs.dict->values[i]));
    }
    TRY(put(r, *vars, "messages", c->messages));
    TRY(put(r, *vars, "tools", c->tools));
    TRY(put(r, *vars, "documents", c->documents));
    return put(r, *vars, "add_generation_prompt", c->prompt);
}

int chat_template_render(struct diag *d, const struct chat_template *c, const char *conversation,
                         size_t n, const struct chat_options *options, struct strbuf *out) {
    static const struct chat_options defaults = {0};
    const struct jinja *any = c->plain != NULL ? c->plain : c->with_tools;
    struct conversation talk;
    struct value vars;
    struct run r;
    if (options == NULL) options = &defaults;
    jinja_begin(&r, d, any, options->now);
    int rc = read_conversation(&r, conversation, n, options, &talk);
    if (rc == QN_OK) rc = make_vars(&r, c, &talk, &vars);
    bool tools = rc == QN_OK && talk.tools.type != VALUE_NONE;
    const struct jinja *j = tools && c->with_tools != NULL ? c->with_tools : c->plain;
    if (tools && c->no_tools.code != QN_OK)
        rc = fail(d, c->no_tools.code, "%s", c->no_tools.message);
    if (rc == QN_OK && j == NULL)
        rc =
            fail(d, QN_EINVAL, "this model has a chat template for tools only, and there are none");
    if (rc == QN_OK) rc = jinja_render(&r, j, vars, out);
    jinja_end(&r);
    return rc;
}
