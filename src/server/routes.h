/* routes.h - the functions that the rows of routes.def name, beside the formats. */
#ifndef QN_SERVER_ROUTES_H
#define QN_SERVER_ROUTES_H

#include "server/state.h"

/* info.c */
void info_health(struct call *c);
void info_version(struct call *c);
void info_load(struct call *c);
void info_server(struct call *c);
void info_metrics(struct call *c);
void info_models(struct call *c);
void info_model(struct call *c);
void info_tokenizer(struct call *c);
/* openapi.c */
void info_openapi(struct call *c);
/* page.c */
void info_page(struct call *c);
/* text.c */
int text_tokenize(struct call *c);
int text_detokenize(struct call *c);

/* The route of a method and path; *rest is the path's free part. NULL: *kind is PROBLEM_ROUTE or
 * PROBLEM_METHOD, and `allow` lists the methods of the path. */
const struct route *routes_find(enum http_method method, const char *path, const char **rest,
                                enum problem_kind *kind, char allow[64]);

#endif
