/* operator.c - + - * / // % ** of values. */
#include "base/checked.h"
#include "model/jinja/call.h"
#include "model/jinja/node.h"

#include <math.h>
#include <string.h>

static const char *const signs[] = {
    [OP_ADD] = "+",           [OP_SUBTRACT] = "-", [OP_MULTIPLY] = "*", [OP_DIVIDE] = "/",
    [OP_FLOOR_DIVIDE] = "//", [OP_MODULO] = "%",   [OP_POWER] = "**",
};

static double as_double(struct value v) {
    return v.type == VALUE_FLOAT ? v.number : v.type == VALUE_INT ? (double)v.integer : v.truth;
}

static int64_t as_integer(struct value v) {
    return v.type == VALUE_INT ? v.integer : v.truth;
}

static int too_big(struct run *r) {
    return run_fail(r, QN_EUNSUPPORTED, "an integer beyond 64 bits");
}

static int by_zero(struct run *r) {
    return run_fail(r, QN_EINVAL, "division by zero");
}

static int floor_divide(struct run *r, int op, int64_t a, int64_t b, struct value *out) {
    if (b == 0) return by_zero(r);
    if (b == -1) {
        if (a == INT64_MIN) return too_big(r);
        *out = value_int(op == OP_MODULO ? 0 : -a);
        return QN_OK;
    }
    int64_t quotient = a / b, rest = a % b;
    bool down = rest != 0 && (rest < 0) != (b < 0);
    *out = value_int(op == OP_MODULO ? rest + (down ? b : 0) : quotient - down);
    return QN_OK;
}

static int power(struct run *r, int64_t a, int64_t n, struct value *out) {
    int64_t product = 1;
    if (n < 0 && a == 0) return by_zero(r);
    if (n < 0) return *out = value_float(pow((double)a, (double)n)), QN_OK;
    for (bool over = false; n > 0; n >>= 1) {
        if (n & 1) over = over || __builtin_mul_overflow(product, a, &product);
        if (over) return too_big(r);
        if (n > 1 && __builtin_mul_overflow(a, a, &a)) over = true;
    }
    *out = value_int(product);
    return QN_OK;
}

static int divide(struct run *r, int64_t a, int64_t b, struct value *out) {
    const int64_t exact = (int64_t)1 << 53;
    if (b == 0) return by_zero(r);
    if (a > exact || a < -exact || b > exact || b < -exact)
        return run_fail(r, QN_EUNSUPPORTED, "dividing integers beyond 53 bits");
    *out = value_float((double)a / (double)b);
    return QN_OK;
}

static int apply_integers(struct run *r, int op, int64_t a, int64_t b, struct value *out) {
    int64_t v = 0;
    bool over = false;
    switch (op) {
    case OP_ADD: over = __builtin_add_overflow(a, b, &v); break;
    case OP_SUBTRACT: over = __builtin_sub_overflow(a, b, &v); break;
    case OP_MULTIPLY: over = __builtin_mul_overflow(a, b, &v); break;
    case OP_DIVIDE: return divide(r, a, b, out);
    case OP_POWER: return power(r, a, b, out);
    default: return floor_divide(r, op, a, b, out);
    }
    *out = value_int(v);
    return over ? too_big(r) : QN_OK;
}

static double float_modulo(double a, double b) {
    double rest = fmod(a, b);
    if (rest == 0) return copysign(0, b);
    return (rest < 0) != (b < 0) ? rest + b : rest;
}

/* As Python's float_floor_div has it. */
static double float_floor(double a, double b) {
    double rest = fmod(a, b), quotient = (a - rest) / b;
    if (rest != 0 && (rest < 0) != (b < 0)) quotient -= 1;
    if (quotient == 0) return copysign(0, a / b);
    double whole = floor(quotient);
    return quotient - whole > 0.5 ? whole + 1 : whole;
}

static int apply_floats(struct run *r, int op, double a, double b, struct value *out) {
    double v = 0;
    if (b == 0 && (op == OP_DIVIDE || op == OP_FLOOR_DIVIDE || op == OP_MODULO)) return by_zero(r);
    if (op == OP_POWER && ((a == 0 && b < 0) || (a < 0 && b != floor(b))))
        return run_fail(r, QN_EINVAL, "a power that is no real number");
    switch (op) {
    case OP_ADD: v = a + b; break;
    case OP_SUBTRACT: v = a - b; break;
    case OP_MULTIPLY: v = a * b; break;
    case OP_DIVIDE: v = a / b; break;
    case OP_FLOOR_DIVIDE: v = float_floor(a, b); break;
    case OP_MODULO: v = float_modulo(a, b); break;
    default:
        v = pow(a, b);
        if (isinf(v) && isfinite(a) && isfinite(b))
            return run_fail(r, QN_EINVAL, "a power beyond the floats");
    }
    *out = value_float(v);
    return QN_OK;
}

static int repeat(struct run *r, struct value v, int64_t times, struct value *out) {
    struct out o = {.r = r};
    times = times < 0 ? 0 : times;
    if (v.type != VALUE_TEXT) {
        TRY(value_list(r, 8, out));
        out->type = v.type;
        for (int64_t i = 0; v.list->n > 0 && i < times; i++) {
            TRY(run_step(r, 1));
            for (size_t k = 0; k < v.list->n; k++) TRY(value_append(r, *out, v.list->items[k]));
        }
        return QN_OK;
    }
    for (int64_t i = 0; v.text->n > 0 && i < times && o.rc == QN_OK; i++)
        out_add(&o, v.text->p, v.text->n);
    TRY(out_value(&o, out));
    out->flag = v.flag;
    return QN_OK;
}

static bool repeats(struct value v) {
    return v.type == VALUE_TEXT || v.type == VALUE_LIST || v.type == VALUE_TUPLE;
}

static bool is_integer(struct value v) {
    return v.type == VALUE_INT || v.type == VALUE_BOOL;
}

/* Appends v; in markup, text that is none is escaped. */
static void add_escaped(struct out *o, struct value v, bool markup) {
    static const char *const forms[] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['"'] = "&#34;", ['\''] = "&#39;"};
    for (size_t i = 0; i < v.text->n; i++) {
        unsigned char c = (unsigned char)v.text->p[i];
        if (markup && !v.flag && c < COUNT_OF(forms) && forms[c] != NULL)
            out_str(o, forms[c]);
        else
            out_add(o, v.text->p + i, 1);
    }
}

int operator_add(struct run *r, struct value a, struct value b, struct value *out) {
    if (a.type == VALUE_TEXT && b.type == VALUE_TEXT) {
        bool markup = a.flag || b.flag;
        struct out o = {.r = r};
        if (markup) {
            add_escaped(&o, a, true);
            add_escaped(&o, b, true);
        } else {
            out_add(&o, a.text->p, a.text->n);
            out_add(&o, b.text->p, b.text->n);
        }
        TRY(out_value(&o, out));
        out->flag = markup;
        return QN_OK;
    }
    if (a.type == b.type && (a.type == VALUE_LIST || a.type == VALUE_TUPLE)) {
        TRY(value_list(r, a.list->n + b.list->n, out));
        out->type = a.type;
        for (size_t i = 0; i < a.list->n; i++) TRY(value_append(r, *out, a.list->items[i]));
        for (size_t i = 0; i < b.list->n; i++) TRY(value_append(r, *out, b.list->items[i]));
        return QN_OK;
    }
    return operator_apply(r, OP_ADD, a, b, out);
}

int operator_apply(struct run *r, int op, struct value a, struct value b, struct value *out) {
    bool texts = a.type == VALUE_TEXT && b.type == VALUE_TEXT;
    bool lists = a.type == b.type && (a.type == VALUE_LIST || a.type == VALUE_TUPLE);
    if (op == OP_ADD && (texts || lists)) return operator_add(r, a, b, out);
    if (op == OP_MODULO && a.type == VALUE_TEXT && !a.flag)
        return format_percent(r, a.text, b, out);
    if (op == OP_MULTIPLY && repeats(a) && is_integer(b)) return repeat(r, a, as_integer(b), out);
    if (op == OP_MULTIPLY && repeats(b) && is_integer(a)) return repeat(r, b, as_integer(a), out);
    if (is_integer(a) && is_integer(b))
        return apply_integers(r, op, as_integer(a), as_integer(b), out);
    if (value_is_number(a) && value_is_number(b))
        return apply_floats(r, op, as_double(a), as_double(b), out);
    if (a.type == VALUE_UNDEFINED || b.type == VALUE_UNDEFINED)
        return run_fail(r, QN_EINVAL, "%s", a.type == VALUE_UNDEFINED ? a.why : b.why);
    bool unknown = a.type == VALUE_BIG || b.type == VALUE_BIG || a.type == VALUE_VIEW || a.flag;
    return run_fail(r, unknown ? QN_EUNSUPPORTED : QN_EINVAL, "%s %s %s is not possible",
                    value_type_name(a), signs[op], value_type_name(b));
}

int operator_unary(struct run *r, int op, struct value a, struct value *out) {
    if (a.type == VALUE_FLOAT)
        return *out = value_float(op == OP_NEGATE ? -a.number : a.number), QN_OK;
    if (is_integer(a)) {
        *out = value_int(as_integer(a));
        if (op != OP_NEGATE) return QN_OK;
        return apply_integers(r, OP_SUBTRACT, 0, out->integer, out);
    }
    if (a.type == VALUE_UNDEFINED) return run_fail(r, QN_EINVAL, "%s", a.why);
    return run_fail(r, a.type == VALUE_BIG ? QN_EUNSUPPORTED : QN_EINVAL,
                    "%s of a %s is not possible", op == OP_NEGATE ? "-" : "+", value_type_name(a));
}
