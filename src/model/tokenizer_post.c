/* The post-processor: special tokens around an encoding.
 *
 * It makes parts out of parts. At first the encoding is the only part. A template makes one part of
 * each of its items and reads the first two parts (with its `single` if there is one part, with its
 * `pair` if there are two, as `tokenizers` does). RobertaProcessing and BertProcessing make each
 * part longer. At the end the parts are joined. */
#include "base/checked.h"
#include "model/component.h"

#include <stdio.h>
#include <string.h>

enum {
    MAX_ITEMS = 64, /* of a template */
    MAX_IDS = 4096, /* of all parts */
};

static int push(struct diag *d, const struct component *at, struct post *p, int32_t id) {
    if (p->ids.n >= MAX_IDS)
        return fail(d, QN_ELIMIT, "%s: %s: makes more than %d tokens", at->file, at->field,
                    MAX_IDS);
    return ARRAY_PUSH(d, &p->ids, id);
}

static int end_part(struct diag *d, const struct component *at, struct post *p) {
    if (p->n_parts >= POST_MAX_PARTS)
        return fail(d, QN_ELIMIT, "%s: %s: makes more than %d parts", at->file, at->field,
                    POST_MAX_PARTS);
    p->ends[p->n_parts++] = p->ids.n;
    return QN_OK;
}

static int copy_part(struct diag *d, const struct component *at, const struct post *from, size_t k,
                     struct post *p) {
    for (size_t i = k > 0 ? from->ends[k - 1] : 0; i < from->ends[k]; i++)
        TRY(push(d, at, p, from->ids.items[i]));
    return QN_OK;
}

/* Begins with the encoding alone, if no component came before. */
static int begin(struct diag *d, const struct component *at, struct post *p) {
    if (p->n_parts > 0) return QN_OK;
    TRY(push(d, at, p, -1));
    return end_part(d, at, p);
}

/* ---- TemplateProcessing ---- */

static int add_special(struct diag *d, const struct component *at, const json_t *o,
                       const char *name, struct post *p) {
    const json_t *special = json_object_get(json_object_get(o, "special_tokens"), name);
    const json_t *list = json_object_get(special, "ids"), *v;
    size_t i;
    if (!json_is_array(list))
        return fail(d, QN_EFORMAT, "%s: %s.special_tokens: no ids for '%.60s'", at->file, at->field,
                    name);
    json_array_foreach(list, i, v) {
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= BPE_MAX_IDS)
            return fail(d, QN_EFORMAT, "%s: %s.special_tokens: '%.60s': not an id", at->file,
                        at->field, name);
        TRY(push(d, at, p, (int32_t)id));
    }
    return QN_OK;
}

static int add_item(struct diag *d, const struct component *at, const json_t *o, const char *key,
                    size_t i, const json_t *item, struct post *p) {
    const struct post *before = &at->t->post;
    const json_t *special = json_object_get(item, "SpecialToken");
    const json_t *sequence = json_object_get(item, "Sequence");
    const char *id = json_string_value(json_object_get(special ? special : sequence, "id"));
    if (id == NULL)
        return fail(d, QN_EFORMAT, "%s: %s.%s[%zu]: want a SpecialToken or Sequence", at->file,
                    at->field, key, i);
    const size_t part = strcmp(id, "A") == 0 ? 0 : strcmp(id, "B") == 0 ? 1 : SIZE_MAX;
    if (special != NULL)
        TRY(add_special(d, at, o, id, p));
    else if (part < before->n_parts)
        TRY(copy_part(d, at, before, part, p));
    else
        return fail(d, QN_EFORMAT, "%s: %s.%s[%zu]: the sequence '%.20s'", at->file, at->field, key,
                    i, id);
    return end_part(d, at, p);
}

static int parse_template(struct diag *d, const struct component *at, const json_t *o,
                          struct post *p) {
    const size_t n_parts = at->t->post.n_parts;
    const char *key = n_parts == 1 ? "single" : "pair";
    const json_t *items = json_object_get(o, key), *item;
    size_t i;
    if (n_parts > 2)
        return component_unsupported(d, at, "", "a template behind one of more than two items");
    if (!json_is_array(items) || json_array_size(items) > MAX_ITEMS)
        return fail(d, QN_EFORMAT, "%s: %s.%s: want an array of at most %d", at->file, at->field,
                    key, MAX_ITEMS);
    json_array_foreach(items, i, item) TRY(add_item(d, at, o, key, i, item, p));
    return QN_OK;
}

/* ---- RobertaProcessing, BertProcessing ---- */

/* ["</s>", 2] */
static int parse_pair(struct diag *d, const struct component *at, const json_t *o, const char *key,
                      int32_t *id) {
    const json_t *pair = json_object_get(o, key), *v = json_array_get(pair, 1);
    const json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || n < 0 || n >= BPE_MAX_IDS)
        return fail(d, QN_EFORMAT, "%s: %s.%s: want [token, id]", at->file, at->field, key);
    *id = (int32_t)n;
    return QN_OK;
}

/* Puts cls before the first part and sep after each; twice: also before each part but the first. */
static int parse_classify(struct diag *d, const struct component *at, const json_t *o, bool twice,
                          struct post *p) {
    const struct post *before = &at->t->post;
    int32_t cls, sep;
    TRY(parse_pair(d, at, o, "cls", &cls));
    TRY(parse_pair(d, at, o, "sep", &sep));
    for (size_t k = 0; k < before->n_parts; k++) {
        if (k == 0 || twice) TRY(push(d, at, p, k == 0 ? cls : sep));
        TRY(copy_part(d, at, before, k, p));
        TRY(push(d, at, p, sep));
        TRY(end_part(d, at, p));
    }
    return QN_OK;
}

int tokenizer_post_parse(struct diag *d, const struct component *at, const json_t *o) {
    struct post made = {0};
    const char *type;
    int rc;
    TRY(component_type(d, at, o, &type));
    if (strcmp(type, "Sequence") == 0)
        return component_sequence(d, at, o, "processors", tokenizer_post_parse);
    if (strcmp(type, "ByteLevel") == 0) return QN_OK; /* changes offsets only */
    TRY(begin(d, at, &at->t->post));
    if (strcmp(type, "TemplateProcessing") == 0)
        rc = parse_template(d, at, o, &made);
    else if (strcmp(type, "RobertaProcessing") == 0)
        rc = parse_classify(d, at, o, true, &made);
    else if (strcmp(type, "BertProcessing") == 0)
        rc = parse_classify(d, at, o, false, &made);
    else
        rc = component_unsupported(d, at, ".type", type);
    if (rc != QN_OK) {
        ARRAY_FINI(&made.ids);
        return rc;
    }
    ARRAY_FINI(&at->t->post.ids);
    at->t->post = made;
    return QN_OK;
}
