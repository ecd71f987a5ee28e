/* filter.h - the filters of filter_list.c, for the table in filter.c, and what methods share with
 * filters. */
#ifndef QN_MODEL_JINJA_FILTER_H
#define QN_MODEL_JINJA_FILTER_H

#include "model/jinja/call.h"
#include "model/jinja/node.h"
#include "model/jinja/text.h"

#define FILTER(name) int name(struct run *r, const struct call *c, struct value *out)

FILTER(filter_batch);
FILTER(filter_dictsort);
FILTER(filter_first);
FILTER(filter_items);
FILTER(filter_join);
FILTER(filter_last);
FILTER(filter_list);
FILTER(filter_map);
FILTER(filter_max);
FILTER(filter_min);
FILTER(filter_reject);
FILTER(filter_rejectattr);
FILTER(filter_reverse);
FILTER(filter_select);
FILTER(filter_selectattr);
FILTER(filter_slice);
FILTER(filter_sort);
FILTER(filter_sum);
FILTER(filter_unique);

/* The first character in one case, the rest in lower case. */
int filter_capital(struct out *o, enum text_case first, const char *p, size_t n);
int filter_replace_text(struct run *r, const struct text *t, const struct text *old,
                        const struct text *new, int64_t count, struct value *out);
/* t with so many characters; side: 0 in the middle, -1 on the left, 1 on the right. */
int filter_pad(struct run *r, const struct text *t, int64_t width, int side, int32_t fill,
               struct value *out);
/* The items of `list` joined by `between`, each of which has to be a text if `strict`. */
int filter_join_items(struct run *r, struct value list, const struct text *between, bool strict,
                      struct value *out);

#endif
