/* prove_texts.c - judges pairs of operator texts from stdin, for test_generated.py: two texts, each
 * ended by a line "%%". Prints a line for each pair:
 *
 *     FORMS FIELDS VERDICT
 *
 * FORMS e: the normal forms are equal, u: not decided. FIELDS s: the same in two tests over the
 * fields, and in all where the forms are not equal, d: different, o: open. VERDICT e, d, u: of the
 * whole proof; of equal forms, every CROSS_CHECKED-th pair is held to numbers, too. A pair that
 * cannot be read or compared: x and the message.
 */
#include "block/compare.h"
#include "block/field.h"
#include "block/op_text.h"
#include "block/prove.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CROSS_CHECKED = 16 };

/* The next text; false: stdin ends. */
static bool read_text(struct strbuf *out) {
    char line[4096];
    strbuf_clear(out);
    while (fgets(line, sizeof line, stdin) != NULL) {
        if (strcmp(line, "%%\n") == 0) return true;
        strbuf_str(out, line);
    }
    return false;
}

static int judge(struct diag *d, const struct expr *a, const struct expr *b, uint32_t number,
                 char answer[4]) {
    static const char fields[] = {[FIELD_SAME] = 's', [FIELD_DIFFERS] = 'd', [FIELD_OPEN] = 'o'};
    static const char verdicts[] = {
        [VERDICT_EQUAL] = 'e', [VERDICT_DIFFERENT] = 'd', [VERDICT_UNDECIDED] = 'u'};
    struct matching m;
    struct strbuf line = {0}, why = {0};
    enum field_answer field;
    enum verdict verdict = VERDICT_EQUAL;
    bool equal;
    int rc = prove_forms(d, a, b, &equal);
    if (rc == QN_OK) rc = matching_make(d, a, b, &m);
    const struct compare_case c = {&m, 0};
    if (rc == QN_OK) rc = compare_fields(d, &c, 2, &field, &line);
    if (rc == QN_OK && !equal && field == FIELD_SAME) /* two tests may have drawn the same masks */
        rc = compare_fields(d, &c, FIELD_TESTS, &field, &line);
    if (rc == QN_OK && (!equal || number % CROSS_CHECKED == 0)) rc = prove(d, a, b, &verdict, &why);
    if (rc == QN_OK) {
        answer[0] = equal ? 'e' : 'u';
        answer[1] = fields[field];
        answer[2] = verdicts[verdict];
    }
    strbuf_fini(&line);
    strbuf_fini(&why);
    return rc;
}

int main(void) {
    struct strbuf text[2] = {{0}, {0}};
    struct expr *x = calloc(2, sizeof *x);
    if (x == NULL) return 1;
    for (uint32_t n = 0; read_text(&text[0]) && read_text(&text[1]); n++) {
        struct diag d = {0};
        char answer[4] = "";
        int rc = QN_OK;
        for (int i = 0; i < 2 && rc == QN_OK; i++)
            rc = op_text_parse(&d, i == 0 ? "a" : "b", strbuf_text(&text[i]), text[i].n, &x[i]);
        if (rc == QN_OK) rc = judge(&d, &x[0], &x[1], n, answer);
        if (rc == QN_OK)
            printf("%c %c %c\n", answer[0], answer[1], answer[2]);
        else
            printf("x %s\n", d.message);
    }
    strbuf_fini(&text[0]);
    strbuf_fini(&text[1]);
    free(x);
    return 0;
}
