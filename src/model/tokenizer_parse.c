/* tokenizer.json into struct tokenizer. The functions follow the file: one per component, each
 * taking the component's object and its path in the file ("pre_tokenizer.pretokenizers[1]") for
 * messages. A Sequence adds the steps of its members to one flat list. */
#include "base/jsonio.h"
#include "base/checked.h"
#include "model/component.h"
#include "model/model_dir.h"
#include "model/tokenizer_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum {
    MAX_FILE = 128 << 20,
    MAX_CONFIG = 16 << 20,
    MAX_STEPS = 64, /* of one kind */
};

static const char GPT2_PATTERN[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* {"Regex": ...} or {"String": ...}. Owned by the step that *p becomes a part of. */
static int parse_pattern(struct diag *d, const struct component *at, const json_t *o,
                         struct pattern *p) {
    const json_t *pattern = json_object_get(o, "pattern");
    struct component inner = *at;
    snprintf(inner.field, sizeof inner.field, "%.140s.pattern", at->field);
    *p = (struct pattern){0};
    if (json_is_string(json_object_get(pattern, "String")))
        return component_text(d, &inner, pattern, "String", NULL, &p->text, &p->n);
    const json_t *regex = json_object_get(pattern, "Regex");
    if (!json_is_string(regex))
        return fail(d, QN_EFORMAT, "%s: %s: want a Regex or a String", at->file, inner.field);
    if (json_string_length(regex) > COMPONENT_MAX_TEXT)
        return fail(d, QN_ELIMIT, "%s: %s: want at most %d bytes", at->file, inner.field,
                    COMPONENT_MAX_TEXT);
    char name[400];
    snprintf(name, sizeof name, "%.200s: %s", at->file, inner.field);
    return tokenizer_split_compile(d, name, json_string_value(regex), json_string_length(regex), p);
}

static int too_many(struct diag *d, const struct component *at) {
    return fail(d, QN_ELIMIT, "%s: %s: more than %d steps", at->file, at->field, MAX_STEPS);
}

/* normalizer */

static int add_norm(struct diag *d, const struct component *at, struct norm_step step) {
    int rc = at->t->norms.n >= MAX_STEPS ? too_many(d, at) : ARRAY_PUSH(d, &at->t->norms, step);
    if (rc != QN_OK) tokenizer_split_release(&step.pattern);
    return rc;
}

static int parse_normalizer(struct diag *d, const struct component *at, const json_t *o) {
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"}; /* enum text_form */
    struct norm_step step = {0};
    const char *type;
    TRY(component_type(d, at, o, &type));
    if (strcmp(type, "Sequence") == 0)
        return component_sequence(d, at, o, "normalizers", parse_normalizer);
    for (size_t i = 0; i < COUNT_OF(forms); i++)
        if (strcmp(type, forms[i]) == 0)
            return add_norm(d, at,
                            (struct norm_step){.kind = NORM_FORM, .form = (enum text_form)i});
    if (strcmp(type, "Prepend") == 0) {
        step.kind = NORM_PREPEND;
        TRY(component_text(d, at, o, "prepend", NULL, &step.text, &step.n));
    } else if (strcmp(type, "Replace") == 0) {
        step.kind = NORM_REPLACE;
        TRY(component_text(d, at, o, "content", NULL, &step.text, &step.n));
        TRY(parse_pattern(d, at, o, &step.pattern));
    } else if (strcmp(type, "Lowercase") == 0) {
        step.kind = NORM_LOWERCASE;
    } else if (strcmp(type, "Strip") == 0) {
        step.kind = NORM_STRIP;
        TRY(component_bool(d, at, o, "strip_left", true, &step.left));
        TRY(component_bool(d, at, o, "strip_right", true, &step.right));
    } else if (strcmp(type, "StripAccents") == 0) {
        step.kind = NORM_REPLACE;
        step.text = "";
        TRY(tokenizer_split_compile(d, at->field, "\\p{M}", 5, &step.pattern));
    } else if (strcmp(type, "ByteLevel") == 0) {
        step.kind = NORM_ALPHABET;
    } else {
        return component_unsupported(d, at, ".type", type);
    }
    return add_norm(d, at, step);
}

/* pre_tokenizer */

static int add_pre(struct diag *d, const struct component *at, struct pre_step step) {
    int rc = at->t->pres.n >= MAX_STEPS ? too_many(d, at) : ARRAY_PUSH(d, &at->t->pres, step);
    if (rc != QN_OK) tokenizer_split_release(&step.pattern);
    return rc;
}

static int add_class_split(struct diag *d, const struct component *at, bool (*is_in_class)(int32_t),
                           enum split_behavior behavior) {
    return add_pre(d, at,
                   (struct pre_step){.kind = PRE_SPLIT,
                                     .pattern = {.is_in_class = is_in_class},
                                     .behavior = behavior});
}

static int add_regex_split(struct diag *d, const struct component *at, const char *source,
                           enum split_behavior behavior, bool invert) {
    struct pre_step step = {.kind = PRE_SPLIT, .behavior = behavior, .invert = invert};
    TRY(tokenizer_split_compile(d, at->field, source, strlen(source), &step.pattern));
    return add_pre(d, at, step);
}

static int parse_behavior(struct diag *d, const struct component *at, const json_t *o,
                          const char *fallback, enum split_behavior *out) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"}; /* enum split_behavior */
    const char *name;
    TRY(jsonio_string(d, at->file, o, "behavior", fallback, &name));
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (name != NULL && strcmp(name, names[i]) == 0)
            return *out = (enum split_behavior)i, QN_OK;
    return component_unsupported(d, at, ".behavior", name == NULL ? "null" : name);
}

static int parse_split(struct diag *d, const struct component *at, const json_t *o) {
    struct pre_step step = {.kind = PRE_SPLIT};
    TRY(parse_behavior(d, at, o, NULL, &step.behavior));
    TRY(component_bool(d, at, o, "invert", false, &step.invert));
    TRY(parse_pattern(d, at, o, &step.pattern));
    return add_pre(d, at, step);
}

static int parse_byte_level(struct diag *d, const struct component *at, const json_t *o) {
    bool prefix, regex;
    TRY(component_bool(d, at, o, "add_prefix_space", true, &prefix));
    TRY(component_bool(d, at, o, "use_regex", true, &regex));
    if (prefix) TRY(add_pre(d, at, (struct pre_step){.kind = PRE_PREFIX_SPACE}));
    if (regex) TRY(add_regex_split(d, at, GPT2_PATTERN, SPLIT_ISOLATED, false));
    return add_pre(d, at, (struct pre_step){.kind = PRE_ALPHABET});
}

/* The replacement (one character) and the scheme, which older files spell add_prefix_space. */
static int parse_metaspace_fields(struct diag *d, const struct component *at, const json_t *o,
                                  const char **replacement, size_t *n,
                                  enum prepend_scheme *scheme) {
    static const char *const names[] = {"always", "first", "never"}; /* enum prepend_scheme */
    bool prefix;
    const char *name;
    size_t one = 0;
    TRY(component_text(d, at, o, "replacement", NULL, replacement, n));
    if (*n > 0) tokenizer_text_next(*replacement, &one);
    if (*n == 0 || one != *n || **replacement == '\0')
        return fail(d, QN_EFORMAT, "%s: %s.replacement: want one character", at->file, at->field);
    TRY(component_bool(d, at, o, "add_prefix_space", true, &prefix));
    TRY(jsonio_string(d, at->file, o, "prepend_scheme", prefix ? "always" : "never", &name));
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *scheme = (enum prepend_scheme)i;
        if (!prefix && *scheme != PREPEND_NEVER)
            return fail(d, QN_EFORMAT, "%s: %s: add_prefix_space false contradicts '%s'", at->file,
                        at->field, name);
        return QN_OK;
    }
    return component_unsupported(d, at, ".prepend_scheme", name);
}

static int parse_metaspace(struct diag *d, const struct component *at, const json_t *o) {
    struct pre_step replace = {.kind = PRE_METASPACE}, split = {.kind = PRE_SPLIT};
    bool wanted;
    TRY(parse_metaspace_fields(d, at, o, &split.pattern.text, &split.pattern.n, &replace.prepend));
    TRY(component_bool(d, at, o, "split", true, &wanted));
    replace.replacement = split.pattern.text;
    split.behavior = SPLIT_MERGED_WITH_NEXT;
    TRY(add_pre(d, at, replace));
    return wanted ? add_pre(d, at, split) : QN_OK;
}

/* Words and runs of other characters: the reference's pattern. It is for Rust's engine, whose \w
 * has the joiners but only decimal digits. */
static int parse_whitespace(struct diag *d, const struct component *at) {
    static const char pattern[] = "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}]+|"
                                  "[^\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}\\s]+";
    return add_regex_split(d, at, pattern, SPLIT_REMOVED, true);
}

static int parse_delimiter(struct diag *d, const struct component *at, const json_t *o) {
    struct pre_step step = {.kind = PRE_SPLIT, .behavior = SPLIT_REMOVED};
    TRY(component_text(d, at, o, "delimiter", NULL, &step.pattern.text, &step.pattern.n));
    return add_pre(d, at, step);
}

static int parse_pre_tokenizer(struct diag *d, const struct component *at, const json_t *o) {
    const char *type;
    bool individual;
    enum split_behavior behavior;
    TRY(component_type(d, at, o, &type));
    if (strcmp(type, "Sequence") == 0)
        return component_sequence(d, at, o, "pretokenizers", parse_pre_tokenizer);
    if (strcmp(type, "Split") == 0) return parse_split(d, at, o);
    if (strcmp(type, "ByteLevel") == 0) return parse_byte_level(d, at, o);
    if (strcmp(type, "Metaspace") == 0) return parse_metaspace(d, at, o);
    if (strcmp(type, "Digits") == 0) {
        TRY(component_bool(d, at, o, "individual_digits", false, &individual));
        return add_class_split(d, at, tokenizer_text_is_numeric,
                               individual ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS);
    }
    if (strcmp(type, "Punctuation") == 0) {
        TRY(parse_behavior(d, at, o, "Isolated", &behavior));
        return add_class_split(d, at, tokenizer_text_is_punctuation, behavior);
    }
    if (strcmp(type, "WhitespaceSplit") == 0)
        return add_class_split(d, at, tokenizer_text_is_space, SPLIT_REMOVED);
    if (strcmp(type, "Whitespace") == 0) return parse_whitespace(d, at);
    if (strcmp(type, "CharDelimiterSplit") == 0) return parse_delimiter(d, at, o);
    if (strcmp(type, "BertPreTokenizer") == 0) {
        TRY(add_class_split(d, at, tokenizer_text_is_space, SPLIT_REMOVED));
        return add_class_split(d, at, tokenizer_text_is_punctuation, SPLIT_ISOLATED);
    }
    return component_unsupported(d, at, ".type", type);
}

/* decoder */

static int add_decode(struct diag *d, const struct component *at, struct decode_step step) {
    struct tokenizer *t = at->t;
    if (t->decodes.n >= TOKENIZER_MAX_DECODERS)
        return fail(d, QN_ELIMIT, "%s: %s: more than %d steps", at->file, at->field,
                    TOKENIZER_MAX_DECODERS);
    if (t->decodes.n > 0) {
        const struct decode_step *before = &t->decodes.items[t->decodes.n - 1];
        step.fused = before->fused || before->kind == DECODE_FUSE ||
                     before->kind == DECODE_ALPHABET || before->kind == DECODE_JOIN;
    }
    /* Both need whole tokens, but after a Fuse there is only one token, of any length. */
    if (step.fused && (step.kind == DECODE_ALPHABET || step.kind == DECODE_BYTES))
        return component_unsupported(d, at, "", "this decoder behind Fuse or ByteLevel");
    return ARRAY_PUSH(d, &t->decodes, step);
}

static int parse_decode_replace(struct diag *d, const struct component *at, const json_t *o) {
    struct decode_step step = {.kind = DECODE_REPLACE};
    const json_t *pattern = json_object_get(o, "pattern");
    if (json_object_get(pattern, "Regex") != NULL)
        return component_unsupported(d, at, ".pattern", "Regex in a decoder");
    TRY(component_text(d, at, pattern, "String", NULL, &step.text, &step.text_n));
    TRY(component_text(d, at, o, "content", NULL, &step.with, &step.with_n));
    if (step.text_n == 0) return component_unsupported(d, at, ".pattern", "the empty text");
    return add_decode(d, at, step);
}

static int parse_decode_strip(struct diag *d, const struct component *at, const json_t *o) {
    struct decode_step step = {.kind = DECODE_STRIP};
    size_t one = 0;
    TRY(component_text(d, at, o, "content", NULL, &step.text, &step.text_n));
    if (step.text_n > 0) tokenizer_text_next(step.text, &one);
    if (step.text_n == 0 || one != step.text_n)
        return fail(d, QN_EFORMAT, "%s: %s.content: want one character", at->file, at->field);
    TRY(jsonio_int(d, at->file, o, "start", 0, 1 << 20, 0, &step.n_left));
    TRY(jsonio_int(d, at->file, o, "stop", 0, 1 << 20, 0, &step.n_right));
    return add_decode(d, at, step);
}

static int parse_decode_metaspace(struct diag *d, const struct component *at, const json_t *o) {
    struct decode_step step = {.kind = DECODE_METASPACE};
    enum prepend_scheme scheme = PREPEND_NEVER;
    TRY(parse_metaspace_fields(d, at, o, &step.text, &step.text_n, &scheme));
    step.drop_first = scheme != PREPEND_NEVER;
    return add_decode(d, at, step);
}

static int parse_decoder(struct diag *d, const struct component *at, const json_t *o) {
    const char *type;
    TRY(component_type(d, at, o, &type));
    if (strcmp(type, "Sequence") == 0)
        return component_sequence(d, at, o, "decoders", parse_decoder);
    if (strcmp(type, "ByteLevel") == 0)
        return add_decode(d, at, (struct decode_step){.kind = DECODE_ALPHABET});
    if (strcmp(type, "ByteFallback") == 0)
        return add_decode(d, at, (struct decode_step){.kind = DECODE_BYTES});
    if (strcmp(type, "Fuse") == 0)
        return add_decode(d, at, (struct decode_step){.kind = DECODE_FUSE});
    if (strcmp(type, "Replace") == 0) return parse_decode_replace(d, at, o);
    if (strcmp(type, "Strip") == 0) return parse_decode_strip(d, at, o);
    if (strcmp(type, "Metaspace") == 0) return parse_decode_metaspace(d, at, o);
    return component_unsupported(d, at, ".type", type);
}

/* model */

static int parse_vocab(struct diag *d, const struct component *at, const json_t *model) {
    json_t *vocab = json_object_get(model, "vocab"), *id;
    const char *token;
    if (!json_is_object(vocab))
        return fail(d, QN_EFORMAT, "%s: model.vocab: want an object", at->file);
    json_object_foreach(vocab, token, id) {
        if (!json_is_integer(id))
            return fail(d, QN_EFORMAT, "%s: model.vocab: '%.40s': want an integer", at->file,
                        token);
        TRY(tokenizer_bpe_add(d, &at->t->bpe, token, strlen(token), json_integer_value(id)));
    }
    return QN_OK;
}

/* One merge: "a b" or ["a", "b"]. */
static int parse_merge(struct diag *d, const struct component *at, const json_t *v, size_t i,
                       uint32_t *rank) {
    const json_t *l = json_array_get(v, 0), *r = json_array_get(v, 1);
    if (json_is_string(l) && json_is_string(r) && json_array_size(v) == 2)
        return tokenizer_bpe_merge(d, &at->t->bpe, json_string_value(l), json_string_length(l),
                                   json_string_value(r), json_string_length(r), (*rank)++);
    const char *text = json_string_value(v);
    const char *space = text == NULL ? NULL : strchr(text, ' ');
    if (text != NULL && strncmp(text, "#version", 8) == 0) return QN_OK;
    if (space == NULL || strchr(space + 1, ' ') != NULL)
        return fail(d, QN_EFORMAT, "%s: model.merges[%zu]: want two tokens", at->file, i);
    return tokenizer_bpe_merge(d, &at->t->bpe, text, (size_t)(space - text), space + 1,
                               strlen(space + 1), (*rank)++);
}

static int parse_merges(struct diag *d, const struct component *at, const json_t *model) {
    const json_t *merges = json_object_get(model, "merges"), *v;
    size_t i;
    uint32_t rank = 0;
    if (!json_is_array(merges))
        return fail(d, QN_EFORMAT, "%s: model.merges: want an array", at->file);
    TRY(tokenizer_bpe_reserve_merges(d, &at->t->bpe, json_array_size(merges)));
    json_array_foreach(merges, i, v) TRY(parse_merge(d, at, v, i, &rank));
    return QN_OK;
}

/* A field that must be absent, null, or empty text. */
static int refuse_text(struct diag *d, const struct component *at, const json_t *o,
                       const char *key) {
    const char *text;
    TRY(jsonio_string(d, at->file, o, key, "", &text));
    return *text == '\0' ? QN_OK
                         : fail(d, QN_EUNSUPPORTED, "%s: model.%s: '%.40s'", at->file, key, text);
}

static int parse_model(struct diag *d, const struct component *at, const json_t *o) {
    struct bpe *b = &at->t->bpe;
    const char *type;
    size_t n;
    char *file;
    if (!json_is_object(o)) return fail(d, QN_EFORMAT, "%s: model: want an object", at->file);
    TRY(arena_strdup(d, &at->t->arena, at->file, &file));
    b->file = file;
    TRY(jsonio_string(d, at->file, o, "type", "BPE", &type));
    if (strcmp(type, "BPE") != 0) return component_unsupported(d, at, ".type", type);
    TRY(refuse_text(d, at, o, "continuing_subword_prefix"));
    TRY(refuse_text(d, at, o, "end_of_word_suffix"));
    TRY(component_bool(d, at, o, "byte_fallback", false, &b->byte_fallback));
    TRY(component_bool(d, at, o, "fuse_unk", false, &b->fuse_unk));
    TRY(component_bool(d, at, o, "ignore_merges", false, &b->ignore_merges));
    const json_t *unk = json_object_get(o, "unk_token");
    b->has_unk = unk != NULL && !json_is_null(unk);
    if (b->has_unk) TRY(component_text(d, at, o, "unk_token", NULL, &b->unk_token, &n));
    TRY(parse_vocab(d, at, o));
    TRY(parse_merges(d, at, o));
    return tokenizer_bpe_finish(d, b);
}

/* added_tokens */

/* The id that a new token gets. The id in the file is ignored, as in the reference: a token of the
 * model keeps the model's id, other tokens get the next free ids. */
static int32_t next_added_id(const struct tokenizer *t) {
    int32_t most = t->bpe.n_vocab;
    for (size_t i = 0; i < t->added.n; i++) most = MAX(most, t->added.items[i].id + 1);
    return most;
}

int tokenizer_parse_add(struct diag *d, struct tokenizer *t, struct added_token a) {
    uint64_t idx;
    if (a.n == 0) return QN_OK;
    if (map_find(&t->added_ids, a.text, a.n, &idx)) {
        struct added_token *old = &t->added.items[idx];
        a.id = old->id;
        a.special |= old->special;
        *old = a;
        return QN_OK;
    }
    a.id = tokenizer_bpe_id(&t->bpe, a.text, a.n);
    if (a.id < 0) a.id = next_added_id(t);
    TRY(map_put(d, &t->added_ids, a.text, a.n, t->added.n, NULL));
    return ARRAY_PUSH(d, &t->added, a);
}

int tokenizer_parse_token(struct diag *d, const struct component *at, const json_t *o,
                          bool is_special, struct added_token *a) {
    size_t n;
    if (!json_is_object(o))
        return fail(d, QN_EFORMAT, "%s: %s: want an object", at->file, at->field);
    *a = (struct added_token){0};
    TRY(component_text(d, at, o, "content", NULL, &a->text, &n));
    a->n = (uint32_t)n;
    TRY(component_bool(d, at, o, "special", false, &a->special));
    a->special |= is_special;
    TRY(component_bool(d, at, o, "normalized", !a->special, &a->normalized));
    TRY(component_bool(d, at, o, "lstrip", false, &a->lstrip));
    TRY(component_bool(d, at, o, "rstrip", false, &a->rstrip));
    return component_bool(d, at, o, "single_word", false, &a->single_word);
}

static int parse_added(struct diag *d, const struct component *at, const json_t *root) {
    const json_t *list = json_object_get(root, "added_tokens"), *v;
    size_t i;
    if (list == NULL || json_is_null(list)) return QN_OK;
    if (!json_is_array(list) || json_array_size(list) > 1 << 16)
        return fail(d, QN_EFORMAT, "%s: added_tokens: want an array of at most 65536", at->file);
    json_array_foreach(list, i, v) {
        struct component m = *at;
        struct added_token a;
        snprintf(m.field, sizeof m.field, "added_tokens[%zu]", i);
        TRY(tokenizer_parse_token(d, &m, v, false, &a));
        TRY(tokenizer_parse_add(d, at->t, a));
    }
    return QN_OK;
}

/* Runs a normalized token through the normalizer, and adds the result to the finder. */
static int finish_normalized(struct diag *d, struct tokenizer *t, struct encode_scratch *s,
                             size_t idx) {
    struct added_token *a = &t->added.items[idx];
    struct strbuf *text;
    char *copy;
    uint64_t spelled;
    TRY(tokenizer_normalize(d, t, s, a->text, a->n, &text));
    TRY(arena_copy(d, &t->arena, strbuf_text(text), text->n, &copy));
    a->shown = copy;
    a->shown_n = text->n;
    a->skipped =
        map_find(&t->added_ids, a->shown, a->shown_n, &spelled) && t->added.items[spelled].special;
    return tokenizer_added_insert(d, &t->normalized, a->shown, a->shown_n, (int32_t)idx);
}

/* Fills the finders and the table by id, now that the normalizer is known. */
static int finish_added(struct diag *d, struct tokenizer *t) {
    struct encode_scratch s;
    t->n_vocab = MAX(t->bpe.n_ids, 1);
    for (size_t i = 0; i < t->added.n; i++) t->n_vocab = MAX(t->n_vocab, t->added.items[i].id + 1);
    TRY(ARENA_NEW(d, &t->arena, &t->added_of_id, (uint64_t)t->n_vocab));
    for (int32_t i = 0; i < t->n_vocab; i++) t->added_of_id[i] = -1;
    TRY(tokenizer_scratch_init(d, &s));
    int rc = QN_OK;
    for (size_t i = 0; i < t->added.n && rc == QN_OK; i++) {
        struct added_token *a = &t->added.items[i];
        t->added_of_id[a->id] = (int32_t)i;
        a->shown = a->text;
        a->shown_n = a->n;
        a->skipped = a->special;
        rc = a->normalized ? finish_normalized(d, t, &s, i)
                           : tokenizer_added_insert(d, &t->raw, a->text, a->n, (int32_t)i);
    }
    tokenizer_scratch_fini(&s);
    return rc;
}

/* The file as a whole. */

static int parse_component(struct diag *d, const struct component *at, const json_t *root,
                           const char *name,
                           int (*parse)(struct diag *, const struct component *, const json_t *)) {
    const json_t *o = json_object_get(root, name);
    struct component m = *at;
    snprintf(m.field, sizeof m.field, "%s", name);
    return o == NULL || json_is_null(o) ? QN_OK : parse(d, &m, o);
}

static int parse_root(struct diag *d, const struct component *at, const json_t *root) {
    const json_t *decoder = json_object_get(root, "decoder");
    if (!json_is_object(root)) return fail(d, QN_EFORMAT, "%s: want an object", at->file);
    TRY(parse_component(d, at, root, "normalizer", parse_normalizer));
    TRY(parse_component(d, at, root, "pre_tokenizer", parse_pre_tokenizer));
    TRY(parse_component(d, at, root, "post_processor", tokenizer_post_parse));
    TRY(parse_component(d, at, root, "decoder", parse_decoder));
    if (decoder == NULL || json_is_null(decoder))
        TRY(add_decode(d, at, (struct decode_step){.kind = DECODE_JOIN}));
    if (json_object_get(root, "model") == NULL)
        return fail(d, QN_EFORMAT, "%s: model: missing", at->file);
    TRY(parse_component(d, at, root, "model", parse_model));
    return parse_added(d, at, root);
}

static int make(struct diag *d, const char *file, const json_t *root,
                const struct tokenizer_side_files *side, struct tokenizer **out) {
    struct tokenizer *t = calloc(1, sizeof *t);
    if (t == NULL) return fail_nomem(d, sizeof *t, "the tokenizer");
    struct component at = {.t = t, .file = file};
    t->eos = -1;
    int rc = parse_root(d, &at, root);
    if (rc == QN_OK && t->bpe.n_ids == 0)
        rc = fail(d, QN_EFORMAT, "%s: model: no vocabulary", file);
    if (rc == QN_OK) rc = tokenizer_config_merge(d, t, side);
    if (rc == QN_OK) rc = finish_added(d, t);
    if (rc != QN_OK) {
        tokenizer_free(t);
        return rc;
    }
    *out = t;
    return QN_OK;
}

int tokenizer_parse(struct diag *d, const char *name, const char *json, size_t n,
                    const char *config, size_t config_n, struct tokenizer **out) {
    struct tokenizer_side_files side = {.config.name = "tokenizer_config.json"};
    json_t *root = NULL;
    *out = NULL;
    int rc = jsonio_parse(d, name, json, n, &root);
    if (rc == QN_OK && config != NULL)
        rc = jsonio_parse(d, side.config.name, config, config_n, &side.config.root);
    if (rc == QN_OK) rc = make(d, name, root, &side, out);
    json_decref(root);
    json_decref(side.config.root);
    return rc;
}

/* A file of the directory that may be missing. */
static int load_side(struct diag *d, const char *dir, const char *file, uint64_t most,
                     struct strbuf *path, struct side_file *out) {
    struct stat st;
    strbuf_printf(path, "%s/%s", dir, file);
    TRY(strbuf_status(d, path));
    out->name = path->text;
    if (stat(path->text, &st) != 0 && errno == ENOENT) return QN_OK;
    return jsonio_load(d, path->text, most, &out->root);
}

static int open_dir(struct diag *d, const char *dir, struct tokenizer **out) {
    struct tokenizer_side_files side = {0};
    struct side_file file = {0};
    const struct {
        const char *name;
        uint64_t most;
        struct side_file *to;
    } files[] = {
        {"tokenizer.json", MAX_FILE, &file},
        {"tokenizer_config.json", MAX_CONFIG, &side.config},
        {"special_tokens_map.json", MAX_CONFIG, &side.special_tokens_map},
        {"added_tokens.json", MAX_CONFIG, &side.added_tokens},
    };
    struct strbuf path[COUNT_OF(files)] = {{0}};
    int rc = QN_OK;
    for (size_t i = 0; i < COUNT_OF(files) && rc == QN_OK; i++) {
        rc = load_side(d, dir, files[i].name, files[i].most, &path[i], files[i].to);
        if (rc == QN_OK && file.root == NULL) rc = model_dir_no_tokenizer(d, dir);
    }
    if (rc == QN_OK) rc = make(d, file.name, file.root, &side, out);
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        json_decref(files[i].to->root);
        strbuf_fini(&path[i]);
    }
    return rc;
}

static int open_file(struct diag *d, const char *path, struct tokenizer **out) {
    const struct tokenizer_side_files none = {0};
    json_t *root;
    TRY(jsonio_load(d, path, MAX_FILE, &root));
    int rc = make(d, path, root, &none, out);
    json_decref(root);
    return rc;
}

int tokenizer_open(struct diag *d, const char *path, struct tokenizer **out) {
    struct stat st;
    *out = NULL;
    if (stat(path, &st) != 0)
        return errno == ENOENT ? model_dir_missing(d, path)
                               : fail(d, QN_EIO, "%s: %s", path, strerror(errno));
    return S_ISDIR(st.st_mode) ? open_dir(d, path, out) : open_file(d, path, out);
}
