/* format.c - "%s" % values and "{}".format(values). Numbers of digits, signs and widths as Python
 * has them; what is rarer is refused. */
#include "base/checked.h"
#include "model/jinja/call.h"
#include "model/jinja/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct spec {
    bool minus, plus, blank, zero, alternate;
    int64_t width, precision; /* -1: none */
    char conversion;
};

struct percent {
    struct run *r;
    const struct text *format;
    size_t i;
    struct value values;
    size_t used; /* of a tuple; or 1: the single value */
};

static int ends(struct run *r) {
    return run_fail(r, QN_EINVAL, "an incomplete format");
}

static int next_value(struct percent *p, struct value *v) {
    size_t n = p->values.type == VALUE_TUPLE ? p->values.list->n : 1;
    if (p->used >= n) return run_fail(p->r, QN_EINVAL, "not enough arguments for the format");
    *v = p->values.type == VALUE_TUPLE ? p->values.list->items[p->used] : p->values;
    p->used++;
    return QN_OK;
}

/* %(name)s */
static int keyed_value(struct percent *p, struct value *v) {
    const struct text *f = p->format;
    const char *end = memchr(f->p + p->i, ')', f->n - p->i);
    struct value key;
    if (end == NULL) return ends(p->r);
    if (p->values.type != VALUE_DICT) return run_fail(p->r, QN_EINVAL, "format wants a mapping");
    TRY(value_borrow(p->r, f->p + p->i + 1, (size_t)(end - f->p) - p->i - 1, &key));
    if (memchr(key.text->p, '(', key.text->n) != NULL)
        return run_fail(p->r, QN_EUNSUPPORTED, "brackets in the key of a format");
    TRY(value_find(p->r, p->values.dict, key, v));
    if (v->type == VALUE_MISSING)
        return run_fail(p->r, QN_EINVAL, "format: no key '%.*s'", (int)MIN(key.text->n, 60u),
                        key.text->p);
    p->i = (size_t)(end - f->p) + 1;
    p->used = 1;
    return QN_OK;
}

static int read_count(struct percent *p, int64_t *count) {
    const struct text *f = p->format;
    for (*count = 0; p->i < f->n && f->p[p->i] >= '0' && f->p[p->i] <= '9'; p->i++) {
        *count = *count * 10 + (f->p[p->i] - '0');
        if (*count > 1000) return run_fail(p->r, QN_ELIMIT, "a format wider than 1000");
    }
    return QN_OK;
}

static int read_spec(struct percent *p, struct spec *s) {
    const struct text *f = p->format;
    *s = (struct spec){.precision = -1};
    for (; p->i < f->n && strchr("-+ 0#", f->p[p->i]) != NULL; p->i++) {
        char c = f->p[p->i];
        s->minus = s->minus || c == '-';
        s->plus = s->plus || c == '+';
        s->blank = s->blank || c == ' ';
        s->zero = s->zero || c == '0';
        s->alternate = s->alternate || c == '#';
    }
    TRY(read_count(p, &s->width));
    if (p->i < f->n && f->p[p->i] == '.') {
        p->i++;
        TRY(read_count(p, &s->precision));
    }
    if (p->i == f->n) return ends(p->r);
    s->conversion = f->p[p->i++];
    return QN_OK;
}

/* body with its sign to the width of s; zeros go behind the sign. */
static void add_padded(struct out *o, const struct spec *s, const char *body, size_t n,
                       bool number) {
    int64_t missing = s->width - (int64_t)text_chars(body, n);
    size_t sign = number && n > 0 && strchr("+- ", body[0]) != NULL;
    bool zeros = s->zero && number && !s->minus;
    for (int64_t i = 0; !zeros && !s->minus && i < missing; i++) out_char(o, ' ');
    out_add(o, body, sign);
    for (int64_t i = 0; zeros && i < missing; i++) out_char(o, '0');
    out_add(o, body + sign, n - sign);
    for (int64_t i = 0; s->minus && i < missing; i++) out_char(o, ' ');
}

static int add_text(struct out *o, const struct spec *s, struct value v) {
    struct out text = {.r = o->r};
    struct value shown;
    TRY(s->conversion == 'r' ? show_repr(&text, v) : show_str(&text, v));
    TRY(out_value(&text, &shown));
    size_t n = s->precision < 0 ? shown.text->n : text_offset(shown.text, (size_t)s->precision);
    add_padded(o, s, shown.text->p, n, false);
    return QN_OK;
}

static const char *sign_of(const struct spec *s, bool negative) {
    return negative ? "-" : s->plus ? "+" : s->blank ? " " : "";
}

static int add_integer(struct out *o, const struct spec *s, struct value v) {
    char digits[32], body[40];
    if (v.type == VALUE_FLOAT && s->conversion == 'd' && isfinite(v.number) &&
        fabs(v.number) < 9e18)
        v = value_int((int64_t)v.number);
    int64_t i;
    TRY(value_integer(o->r, v, "format", &i));
    if (s->alternate || s->precision >= 0)
        return run_fail(o->r, QN_EUNSUPPORTED, "a format of an integer with # or .");
    uint64_t size = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    snprintf(digits, sizeof digits,
             s->conversion == 'x'   ? "%" PRIx64
             : s->conversion == 'X' ? "%" PRIX64
             : s->conversion == 'o' ? "%" PRIo64
                                    : "%" PRIu64,
             size);
    int n = snprintf(body, sizeof body, "%s%s", sign_of(s, i < 0), digits);
    add_padded(o, s, body, (size_t)n, true);
    return QN_OK;
}

static int add_float(struct out *o, const struct spec *s, struct value v) {
    char format[8] = "%.*", digits[1500], body[1500];
    if (!value_is_number(v))
        return run_fail(o->r, QN_EINVAL, "format of a %s as a number", value_type_name(v));
    double number = v.type == VALUE_FLOAT ? v.number
                    : v.type == VALUE_INT ? (double)v.integer
                                          : (double)v.truth;
    if (!isfinite(number) || s->alternate)
        return run_fail(o->r, QN_EUNSUPPORTED, "a format of infinity, or with #");
    format[3] = s->conversion;
    snprintf(digits, sizeof digits, format, s->precision < 0 ? 6 : (int)s->precision, fabs(number));
    for (char *p = digits; *p != '\0'; p++)
        if (*p == ',') *p = '.'; /* of a locale */
    int n = snprintf(body, sizeof body, "%s%s", sign_of(s, signbit(number)), digits);
    add_padded(o, s, body, MIN((size_t)n, sizeof body - 1), true);
    return QN_OK;
}

static int add_conversion(struct percent *p, struct out *o) {
    struct value v = {.type = VALUE_MISSING};
    struct spec s;
    if (p->i < p->format->n && p->format->p[p->i] == '(') TRY(keyed_value(p, &v));
    TRY(read_spec(p, &s));
    if (s.conversion == '%') return out_char(o, '%'), QN_OK;
    if (v.type == VALUE_MISSING) TRY(next_value(p, &v));
    if (s.conversion == 'i' || s.conversion == 'u') s.conversion = 'd';
    if (s.conversion == 's' || s.conversion == 'r') return add_text(o, &s, v);
    if (strchr("dxXo", s.conversion) != NULL) return add_integer(o, &s, v);
    if (strchr("fFeEgG", s.conversion) != NULL) return add_float(o, &s, v);
    return run_fail(p->r, QN_EUNSUPPORTED, "the format %%%c is not supported", s.conversion);
}

int format_percent(struct run *r, const struct text *format, struct value values,
                   struct value *out) {
    struct percent p = {.r = r, .format = format, .values = values};
    struct out o = {.r = r};
    while (p.i < format->n) {
        const char *sign = memchr(format->p + p.i, '%', format->n - p.i);
        size_t end = sign == NULL ? format->n : (size_t)(sign - format->p);
        out_add(&o, format->p + p.i, end - p.i);
        p.i = end + 1;
        if (sign == NULL) break;
        TRY(add_conversion(&p, &o));
    }
    bool mapping = values.type == VALUE_DICT || values.type == VALUE_LIST ||
                   values.type == VALUE_RANGE || values.type == VALUE_UNDEFINED;
    if (!mapping && p.used < (values.type == VALUE_TUPLE ? values.list->n : 1))
        return run_fail(r, QN_EINVAL, "not all arguments of a format were used");
    return out_value(&o, out);
}

/* {}, {0}, {name}, with !r or !s. *next: the number of the next {}. */
static int add_field(struct out *o, const char *p, size_t n, const struct args *args,
                     size_t *next) {
    const char *mark = memchr(p, '!', n);
    size_t name = mark == NULL ? n : (size_t)(mark - p);
    struct text t = {p, name, text_chars(p, name)};
    struct value v = {.type = VALUE_MISSING}, key = {.type = VALUE_TEXT, .text = &t};
    int64_t i = (int64_t)*next;
    bool big = false, repr = mark != NULL && n - name == 2 && mark[1] == 'r';
    if ((mark != NULL && !repr && !(n - name == 2 && mark[1] == 's')) ||
        memchr(p, ':', n) != NULL || memchr(p, '.', n) != NULL || memchr(p, '[', n) != NULL ||
        memchr(p, '{', n) != NULL)
        return run_fail(o->r, QN_EUNSUPPORTED, "a format field like {%.*s} is not supported",
                        (int)MIN(n, 60u), p);
    bool automatic = name == 0, number = automatic || (text_to_int(&t, 10, &i, &big) && !big);
    if (automatic ? *next == SIZE_MAX : number && *next != 0 && *next != SIZE_MAX)
        return run_fail(o->r, QN_EINVAL, "{} and {0} in one format");
    if (number) *next = automatic ? *next + 1 : SIZE_MAX;
    if (number && i >= 0 && (uint64_t)i < args->n) v = args->items[i];
    if (!number && args->named != NULL) TRY(value_find(o->r, args->named, key, &v));
    if (v.type == VALUE_MISSING)
        return run_fail(o->r, QN_EINVAL, "no argument for the format field {%.*s}",
                        (int)MIN(n, 60u), p);
    return repr ? show_repr(o, v) : show_str(o, v);
}

int format_braces(struct run *r, const struct text *format, const struct args *args,
                  struct value *out) {
    struct out o = {.r = r};
    size_t next = 0;
    for (size_t i = 0; i < format->n;) {
        char c = format->p[i];
        bool twice = i + 1 < format->n && format->p[i + 1] == c;
        if ((c != '{' && c != '}') || twice) {
            out_add(&o, format->p + i, 1);
            i += (c == '{' || c == '}') ? 2 : 1;
            continue;
        }
        const char *end = c == '{' ? memchr(format->p + i, '}', format->n - i) : NULL;
        if (end == NULL) return run_fail(r, QN_EINVAL, "a single brace in a format");
        TRY(add_field(&o, format->p + i + 1, (size_t)(end - format->p) - i - 1, args, &next));
        i = (size_t)(end - format->p) + 1;
    }
    return out_value(&o, out);
}
