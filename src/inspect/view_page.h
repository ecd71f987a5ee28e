/* view_page.h - the HTML pages of tools/view inside the library, each one self-contained: style,
 * script and, where the page says @@DATA, its data.
 */
#ifndef QN_INSPECT_VIEW_PAGE_H
#define QN_INSPECT_VIEW_PAGE_H

#include "base/strbuf.h"

struct view_page {
    const char *name; /* "profile" */
    const unsigned char *text;
    size_t n;
};

/* In order of name; the last has name NULL. Made by tools/view/embed.cmake. */
extern const struct view_page view_pages[];

/* Appends the page with the JSON text at its @@DATA. Every '<' of the JSON text is spelled as
 * \u003c, so that no text can end the script. Errors: QN_EINTERNAL for an unknown page. */
int view_page_make(struct diag *d, const char *name, const char *json, struct strbuf *out);

#endif
