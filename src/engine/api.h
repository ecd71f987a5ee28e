/* api.h - quern.h as the library's own files include it: error codes come from base/status.h, and
 * the helpers that every public function needs. */
#ifndef QN_ENGINE_API_H
#define QN_ENGINE_API_H

#include "base/status.h" /* before quern.h: its codes are the ones that count */

#include "quern.h"

#include <stdbool.h>
#include <string.h>

struct tokenizer;
struct chat_template;

/* A tokenizer with the chat templates of its directory. */
struct qn_tokenizer {
    struct tokenizer *tokens;
    char *dir;
    struct chat_template *chat; /* the directory's own; NULL: chat_error says why */
    struct diag chat_error;
};

/* A template that was opened by itself. */
struct qn_chat_template {
    char *dir; /* NULL: none */
    struct chat_template *chat;
};

/* Ends a public function: copies the diagnosis to the caller's error, returns rc. */
int api_return(int rc, const struct diag *d, qn_error *error);

/* Whether the caller has set struct_size, to a size that some version has, of at least `least`. */
bool api_struct_fits(const void *given, size_t least);
/* Fills *full from *given as far as the caller's struct_size reaches; the rest keeps what *full
 * had. Both begin with struct_size. False: the size is not plausible. */
bool api_struct_in(void *full, size_t full_size, const void *given);
/* The other direction: fills *given as far as its struct_size, which fits, reaches. */
void api_struct_out(void *given, const void *full, size_t full_size);

#endif
