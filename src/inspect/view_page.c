#include "inspect/view_page.h"

#include <string.h>

int view_page_make(struct diag *d, const char *name, const char *json, struct strbuf *out) {
    static const char mark[] = "@@DATA";
    const struct view_page *page = view_pages;
    while (page->name && strcmp(page->name, name) != 0) page++;
    const char *text = (const char *)page->text, *at = page->name ? strstr(text, mark) : NULL;
    if (!at) return fail(d, QN_EINTERNAL, "page %s: not there, or without its mark", name);
    strbuf_add(out, text, (size_t)(at - text));
    for (const char *c = json; *c; c++) /* in JSON a '<' stands inside a string only */
        if (*c == '<')
            strbuf_str(out, "\\u003c");
        else
            strbuf_char(out, *c);
    strbuf_str(out, at + sizeof mark - 1);
    return strbuf_status(d, out);
}
