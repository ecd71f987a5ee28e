/* auth.c - see auth.h. */
#include "server/auth.h"

#include <string.h>
#include <strings.h>

enum { MAX_BASIC = 1024 };

/* Takes as long for a wrong key as for a right one: the time depends on what the client sent only.
 */
static bool same(const char *given, const char *key) {
    const size_t n = strlen(given), n_key = strlen(key);
    unsigned char differ = n != n_key;
    for (size_t i = 0; i < n; i++)
        differ |= (unsigned char)given[i] ^ (unsigned char)key[n_key ? i % n_key : 0];
    return differ == 0;
}

/* The index of the last key that is the same; compares all of them. */
static int which(const char *given, const char *const *keys, size_t n_keys) {
    int found = AUTH_REFUSED;
    for (size_t i = 0; i < n_keys; i++)
        if (same(given, keys[i])) found = (int)i;
    return found;
}

static int digit(char c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* Decodes base64; false if the text is not base64, or too long. */
static bool decode(const char *text, char out[MAX_BASIC]) {
    unsigned bits = 0, n_bits = 0;
    size_t n = 0;
    for (; *text && *text != '='; text++) {
        const int value = digit(*text);
        if (value < 0 || n + 1 >= MAX_BASIC) return false;
        bits = bits << 6 | (unsigned)value;
        n_bits += 6;
        if (n_bits < 8) continue;
        n_bits -= 8;
        out[n++] = (char)(bits >> n_bits & 0xff);
    }
    out[n] = '\0';
    return true;
}

/* What follows the scheme and its blanks; NULL: the header has another scheme. */
static const char *after(const char *said, const char *scheme) {
    const size_t n = strlen(scheme);
    if (strncasecmp(said, scheme, n) != 0 || said[n] != ' ') return NULL;
    return said + n + strspn(said + n, " ");
}

static int which_said(const char *said, const char *const *keys, size_t n_keys) {
    char pair[MAX_BASIC];
    const char *bearer = after(said, "Bearer"), *basic = after(said, "Basic");
    if (bearer) return which(bearer, keys, n_keys);
    if (!basic || !decode(basic, pair)) return AUTH_REFUSED;
    const char *colon = strchr(pair, ':');
    return colon ? which(colon + 1, keys, n_keys) : AUTH_REFUSED;
}

int auth_key(const struct http_exchange *x, const char *const *keys, size_t n_keys) {
    const char *own = http_header(x, "x-api-key"), *said = http_header(x, "Authorization");
    if (n_keys == 0) return AUTH_NO_KEYS;
    const int of_own = own && *own ? which(own, keys, n_keys) : AUTH_REFUSED;
    const int of_said = said ? which_said(said, keys, n_keys) : AUTH_REFUSED;
    return of_own != AUTH_REFUSED ? of_own : of_said;
}
