#include "base/utf8.h"

#include <stdint.h>

size_t utf8_end(const char *text, size_t n) {
    static const uint32_t lowest[] = {0, 0, 0x80, 0x800, 0x10000};
    for (size_t i = 0, k; i < n; i += k) {
        const unsigned char *p = (const unsigned char *)text + i;
        k = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;
        if (k == 0 || p[0] > 0xf4 || k > n - i) return i;
        uint32_t c = k == 1 ? p[0] : p[0] & (0xffu >> (k + 1));
        for (size_t j = 1; j < k; j++) {
            if ((p[j] & 0xc0) != 0x80) return i;
            c = c << 6 | (p[j] & 0x3f);
        }
        if (c < lowest[k] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return i;
    }
    return n;
}
