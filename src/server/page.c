/* page.c - the page at "/". It loads nothing from anywhere else, and its headers say so. */
#include "server/page.h"
#include "server/routes.h"

void info_page(struct call *c) {
    strbuf_add(&c->out, (const char *)page_text, page_bytes);
    if (c->x) {
        http_add_header(c->x, "Content-Security-Policy",
                        "default-src 'none'; style-src 'unsafe-inline'; script-src "
                        "'unsafe-inline'; connect-src 'self'; img-src data:; base-uri 'none'; "
                        "form-action 'none'; frame-ancestors 'none'");
        http_add_header(c->x, "X-Content-Type-Options", "nosniff");
    }
    call_reply_as(c, "text/html; charset=utf-8");
}
