/* The files beside tokenizer.json, merged as transformers merges them.
 *
 * Tokens are added in three steps, each token with its flags. A token that is added again gets the
 * flags of the later step:
 *   1. `added_tokens_decoder` of tokenizer_config.json, by number. Without that field: the tokens
 *      of added_tokens.json, by number, if their numbers are free.
 *   2. The named special tokens that were no added tokens after step 1: bos_token ... mask_token,
 *      then other fields called *_token, then those of an object `extra_special_tokens`.
 *   3. The tokens of a list `extra_special_tokens` (`additional_special_tokens`), likewise.
 * Without `added_tokens_decoder` a field of special_tokens_map.json wins over the same field of
 * tokenizer_config.json; with it special_tokens_map.json is not read. */
#include "base/checked.h"
#include "model/component.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_TOKENS = 1 << 16, /* of added_tokens_decoder, added_tokens.json */
    MAX_NAMED = 1 << 12,  /* fields of a file, tokens of a list: each token is looked up in them */
};

static const char *const standard[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};

struct merge {
    struct diag *d;
    struct tokenizer *t;
    struct side_file config, map; /* map.root NULL: not used */
    size_t n_before;              /* added tokens after the first step */
};

static struct component field_of(const struct merge *m, const struct side_file *file,
                                 const char *field, const char *key) {
    struct component at = {.t = m->t, .file = file->name};
    snprintf(at.field, sizeof at.field, "%.60s%s%.60s", field, key[0] != '\0' ? "." : "", key);
    return at;
}

/* ---- named special tokens ---- */

/* A field, from the file that wins; *file: that file. */
static const json_t *merged(const struct merge *m, const char *key, const struct side_file **file) {
    const json_t *v = jsonio_field(m->map.root, key);
    *file = v != NULL ? &m->map : &m->config;
    return v != NULL ? v : jsonio_field(m->config.root, key);
}

/* The text of a token: a string, or the `content` of an object; NULL: neither. */
static const char *text_of(const json_t *v) {
    return json_string_value(json_is_object(v) ? json_object_get(v, "content") : v);
}

static bool is_standard(const char *key) {
    for (size_t i = 0; i < COUNT_OF(standard); i++)
        if (strcmp(key, standard[i]) == 0) return true;
    return false;
}

/* A field that names a special token of this model only: "image_token". */
static bool is_own(const char *key, const json_t *v) {
    const size_t n = strlen(key), end = strlen("_token");
    return n > end && strcmp(key + n - end, "_token") == 0 && !is_standard(key) &&
           text_of(v) != NULL;
}

/* The place of special tokens beside the standard ones. */
struct extra {
    const struct side_file *file;
    const char *key;
    const json_t *list; /* tokens without names, or an object {name: token}; NULL: there is none */
};

/* The tokens of tokenizer_config.json under either spelling, then those of special_tokens_map.json,
 * where the older spelling counts only if nothing else has a list. */
static void find_extra(const struct merge *m, struct extra found[static 2]) {
    static const char newer[] = "extra_special_tokens", older[] = "additional_special_tokens";
    const json_t *a = jsonio_field(m->config.root, newer), *b = jsonio_field(m->config.root, older);
    const bool has_newer = json_array_size(a) + json_object_size(a) > 0;
    const bool has_list = json_is_array(a) || (a == NULL && b != NULL);
    found[0] = (struct extra){&m->config, has_newer ? newer : older, has_newer ? a : b};
    found[1] = (struct extra){&m->map, newer, jsonio_field(m->map.root, newer)};
    if (has_list || found[1].list != NULL) return;
    found[1] = (struct extra){&m->map, older, jsonio_field(m->map.root, older)};
    if (found[1].list == NULL) found[1] = (struct extra){&m->config, older, b};
}

/* Calls `visit` with every named special token, in the order in which they are added. */
static int each_named(struct merge *m, void *user,
                      int (*visit)(struct merge *, void *user, const struct component *,
                                   const json_t *)) {
    const struct side_file *const files[] = {&m->config, &m->map};
    struct extra extra[2];
    for (size_t i = 0; i < COUNT_OF(standard); i++) {
        const struct side_file *file;
        const json_t *v = merged(m, standard[i], &file);
        const struct component at = field_of(m, file, standard[i], "");
        if (v != NULL) TRY(visit(m, user, &at, v));
    }
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        const char *key;
        const json_t *v;
        json_object_foreach(files[i]->root, key, v) {
            const struct component at = field_of(m, files[i], key, "");
            if (is_own(key, v)) TRY(visit(m, user, &at, v));
        }
    }
    find_extra(m, extra);
    for (size_t i = 0; i < COUNT_OF(extra); i++) {
        const char *key;
        const json_t *v;
        const struct component at = field_of(m, extra[i].file, extra[i].key, "");
        json_object_foreach((json_t *)(uintptr_t)extra[i].list, key, v) TRY(visit(m, user, &at, v));
    }
    return QN_OK;
}

static bool was_added(const struct merge *m, const char *text) {
    uint64_t idx;
    return map_find(&m->t->added_ids, text, strlen(text), &idx) && idx < m->n_before;
}

/* Adds a special token, a text or an object, unless the first step has added it. user: not NULL if
 * the token has no name; then its object says whether it is special. */
static int add_special(struct merge *m, void *user, const struct component *at, const json_t *v) {
    const char *text = text_of(v);
    const bool is_named = user == NULL;
    struct added_token a = {.special = true};
    char *copy;
    if (text == NULL)
        return fail(m->d, QN_EFORMAT, "%s: %s: want a token, as text or as an object", at->file,
                    at->field);
    if (was_added(m, text)) return QN_OK;
    if (json_is_object(v)) {
        TRY(tokenizer_parse_token(m->d, at, v, is_named, &a));
        return tokenizer_parse_add(m->d, m->t, a);
    }
    const size_t n = json_string_length(v);
    if (n > COMPONENT_MAX_TEXT)
        return fail(m->d, QN_ELIMIT, "%s: %s: want at most %d bytes, have %zu", at->file, at->field,
                    COMPONENT_MAX_TEXT, n);
    TRY(arena_copy(m->d, &m->t->arena, text, n, &copy));
    a.text = copy;
    a.n = (uint32_t)n;
    return tokenizer_parse_add(m->d, m->t, a);
}

static int same_text(struct merge *m, void *user, const struct component *at, const json_t *v) {
    const char **wanted = user;
    (void)m, (void)at;
    if (*wanted != NULL && text_of(v) != NULL && strcmp(*wanted, text_of(v)) == 0) *wanted = NULL;
    return QN_OK;
}

/* ---- lists of tokens ---- */

/* A token of added_tokens_decoder or added_tokens.json. */
struct numbered {
    long long id;
    size_t place;    /* in the file */
    const char *key; /* the number as text, or the token */
    const json_t *v; /* an object, or the number */
};
struct numbered_list {
    struct numbered *items;
    size_t n, capacity;
};

static int by_id(const void *a, const void *b) {
    const struct numbered *x = a, *y = b;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    return x->place < y->place ? -1 : x->place > y->place;
}

/* Sorts by number; of several tokens with one number the last in the file counts. */
static void sort(struct numbered_list *list) {
    size_t n = 0;
    if (list->n > 0) qsort(list->items, list->n, sizeof *list->items, by_id);
    for (size_t i = 0; i < list->n; i++) {
        n -= n > 0 && list->items[n - 1].id == list->items[i].id;
        list->items[n++] = list->items[i];
    }
    list->n = n;
}

static bool is_named(struct merge *m, const char *text) {
    const char *wanted = text;
    each_named(m, &wanted, same_text);
    return wanted == NULL;
}

/* The entries {"<id>": {...}} in the order of their ids. */
static int list_decoder(struct merge *m, const json_t *o, struct numbered_list *list) {
    const char *key;
    const json_t *v;
    if (!json_is_object(o) || json_object_size(o) > MAX_TOKENS)
        return fail(m->d, QN_EFORMAT, "%s: added_tokens_decoder: want an object of at most %d",
                    m->config.name, MAX_TOKENS);
    json_object_foreach((json_t *)(uintptr_t)o, key, v) {
        char *end;
        const long long id = strtoll(key, &end, 10);
        const size_t place = list->n;
        if (key[0] == '\0' || *end != '\0')
            return fail(m->d, QN_EFORMAT, "%s: added_tokens_decoder.%.60s: want an id",
                        m->config.name, key);
        TRY(ARRAY_PUSH(m->d, list, ((struct numbered){id, place, key, v})));
    }
    sort(list);
    return QN_OK;
}

static int add_decoder(struct merge *m, const struct numbered_list *list) {
    for (size_t i = 0; i < list->n; i++) {
        const struct numbered *e = &list->items[i];
        const struct component at = field_of(m, &m->config, "added_tokens_decoder", e->key);
        const char *text = text_of(e->v);
        struct added_token a;
        TRY(tokenizer_parse_token(m->d, &at, e->v, text != NULL && is_named(m, text), &a));
        TRY(tokenizer_parse_add(m->d, m->t, a));
    }
    return QN_OK;
}

/* Lists the entries {"<token>": id}, except those whose id an added token of tokenizer.json has,
 * and those whose text an added token has with a larger id. */
static int list_legacy(struct merge *m, const struct side_file *file, struct numbered_list *list) {
    const char *key;
    const json_t *v;
    if (!json_is_object(file->root) || json_object_size(file->root) > MAX_TOKENS)
        return fail(m->d, QN_EFORMAT, "%s: want an object of at most %d", file->name, MAX_TOKENS);
    json_object_foreach(file->root, key, v) {
        const long long id = json_integer_value(v);
        const size_t place = list->n;
        bool taken = false;
        if (!json_is_integer(v))
            return fail(m->d, QN_EFORMAT, "%s: %.60s: want an id", file->name, key);
        for (size_t i = 0; i < m->t->added.n && !taken; i++) {
            const struct added_token *a = &m->t->added.items[i];
            taken = a->id == id || (a->id > id && strcmp(a->text, key) == 0);
        }
        if (!taken) TRY(ARRAY_PUSH(m->d, list, ((struct numbered){id, place, key, v})));
    }
    sort(list);
    return QN_OK;
}

/* Whether the files name `text` as a special token. The reference checks this before it turns the
 * objects of tokenizer_config.json into tokens, so those objects do not count. */
static bool is_legacy_special(const struct merge *m, const char *text) {
    const struct side_file *file;
    struct extra extra[2];
    const char *have;
    const json_t *v;
    find_extra(m, extra);
    for (size_t i = 0; i < json_array_size(extra[0].list); i++) {
        have = json_string_value(json_array_get(extra[0].list, i));
        if (have != NULL && strcmp(have, text) == 0) return true;
    }
    for (size_t i = 0; i < COUNT_OF(standard); i++) {
        v = merged(m, standard[i], &file);
        have = file == &m->map ? text_of(v) : json_string_value(v);
        if (have != NULL && strcmp(have, text) == 0) return true;
    }
    return false;
}

static int add_legacy(struct merge *m, const struct numbered_list *list) {
    for (size_t i = 0; i < list->n; i++) {
        const char *key = list->items[i].key;
        const bool special = is_legacy_special(m, key);
        struct added_token a = {
            .n = (uint32_t)strlen(key), .special = special, .normalized = !special};
        char *copy;
        if (a.n > COMPONENT_MAX_TEXT)
            return fail(m->d, QN_ELIMIT, "added_tokens.json: want tokens of at most %d bytes",
                        COMPONENT_MAX_TEXT);
        TRY(arena_strdup(m->d, &m->t->arena, key, &copy));
        a.text = copy;
        a.special |= is_named(m, key);
        TRY(tokenizer_parse_add(m->d, m->t, a));
    }
    return QN_OK;
}

static int add_numbered(struct merge *m, const struct side_file *legacy) {
    const json_t *decoder = jsonio_field(m->config.root, "added_tokens_decoder");
    struct numbered_list list = {0};
    int rc = QN_OK;
    if (decoder != NULL) {
        rc = list_decoder(m, decoder, &list);
        if (rc == QN_OK) rc = add_decoder(m, &list);
    } else {
        if (legacy->root != NULL) rc = list_legacy(m, legacy, &list);
        for (size_t i = 0; i < m->t->added.n; i++)
            m->t->added.items[i].special |= is_named(m, m->t->added.items[i].text);
        if (rc == QN_OK) rc = add_legacy(m, &list);
    }
    ARRAY_FINI(&list);
    return rc;
}

/* ---- special tokens without a name ---- */

static int add_extra(struct merge *m, const struct extra *extra) {
    const json_t *list = extra->list, *v;
    size_t i;
    const struct component at = field_of(m, extra->file, extra->key, "");
    json_array_foreach((json_t *)(uintptr_t)list, i, v) TRY(add_special(m, m, &at, v));
    return QN_OK;
}

/* Checks that the file is absent, or an object with few enough members to search them for every
 * token. */
static int check_file(struct diag *d, const struct side_file *file) {
    if (file->root == NULL) return QN_OK;
    if (!json_is_object(file->root)) return fail(d, QN_EFORMAT, "%s: want an object", file->name);
    if (json_object_size(file->root) > MAX_NAMED)
        return fail(d, QN_ELIMIT, "%s: more than %d fields", file->name, MAX_NAMED);
    return QN_OK;
}

static int check_extra(struct diag *d, const struct extra *extra) {
    if (json_array_size(extra->list) + json_object_size(extra->list) <= MAX_NAMED) return QN_OK;
    return fail(d, QN_ELIMIT, "%s: %s: more than %d tokens", extra->file->name, extra->key,
                MAX_NAMED);
}

int tokenizer_config_merge(struct diag *d, struct tokenizer *t,
                           const struct tokenizer_side_files *side) {
    struct merge m = {.d = d, .t = t, .config = side->config};
    struct extra extra[2];
    TRY(check_file(d, &side->config));
    TRY(check_file(d, &side->special_tokens_map));
    if (jsonio_field(m.config.root, "added_tokens_decoder") == NULL)
        m.map = side->special_tokens_map;
    find_extra(&m, extra);
    TRY(check_extra(d, &extra[0]));
    TRY(check_extra(d, &extra[1]));
    TRY(add_numbered(&m, &side->added_tokens));
    m.n_before = t->added.n;
    TRY(each_named(&m, NULL, add_special));
    TRY(add_extra(&m, &extra[0]));
    TRY(add_extra(&m, &extra[1]));
    const struct side_file *file;
    const char *eos = text_of(merged(&m, "eos_token", &file));
    if (eos != NULL) t->eos = tokenizer_id(t, eos);
    return QN_OK;
}
