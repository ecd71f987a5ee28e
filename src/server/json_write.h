/* json_write.h - JSON text into a strbuf, value by value.
 *
 *     json_write_open(b, NULL, '{');
 *     json_write_text(b, "object", "list");
 *     json_write_open(b, "data", '[');   json_write_int(b, NULL, 7);   json_write_close(b, ']');
 *     json_write_close(b, '}');                                   {"object":"list","data":[7]}
 *
 * `key` is NULL in an array and at the top. A comma is written if the text before ends a value.
 */
#ifndef QN_SERVER_JSON_WRITE_H
#define QN_SERVER_JSON_WRITE_H

#include "base/strbuf.h"

#include <jansson.h>
#include <stdint.h>

void json_write_open(struct strbuf *b, const char *key, char bracket);
void json_write_close(struct strbuf *b, char bracket);
/* text NULL: null. Bytes that are not UTF-8 become U+FFFD. */
void json_write_text(struct strbuf *b, const char *key, const char *text);
void json_write_bytes(struct strbuf *b, const char *key, const char *text, size_t n);
void json_write_int(struct strbuf *b, const char *key, int64_t n);
/* With `digits` significant digits; null if x is not finite. */
void json_write_number(struct strbuf *b, const char *key, double x, int digits);
void json_write_bool(struct strbuf *b, const char *key, bool yes);
void json_write_null(struct strbuf *b, const char *key);
/* A value that is JSON already. */
void json_write_raw(struct strbuf *b, const char *key, const char *json);
void json_write_value(struct strbuf *b, const char *key, const json_t *value);

#endif
