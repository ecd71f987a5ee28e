/* page.h - the page at "/", which tools/page.cmake embeds in the program. */
#ifndef QN_SERVER_PAGE_H
#define QN_SERVER_PAGE_H

#include <stddef.h>

extern const unsigned char page_text[];
extern const size_t page_bytes;

#endif
