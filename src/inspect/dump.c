/* dump.c - QN_DUMP: see engine/dump.h. */
#include "engine/dump.h"

#include "base/checked.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether the list's word of n bytes stands for the stage. */
static bool means(const char *word, size_t n, const char *stage) {
    return (n == strlen(stage) && strncmp(word, stage, n) == 0) ||
           (n == 3 && strncmp(word, "all", 3) == 0);
}

static bool listed(const char *list, const char *stage) {
    for (const char *word = list; *word;) {
        size_t n = strcspn(word, ",");
        if (means(word, n, stage)) return true;
        word += n + (word[n] == ',');
    }
    return false;
}

static bool known(const char *word, size_t n) {
    for (int s = 0; s < N_TASK_STAGES; s++)
        if (means(word, n, task_stage_name((enum task_stage)s))) return true;
    return means(word, n, "kernel") || means(word, n, "program");
}

/* A mistyped stage would leave its user waiting for a file that never comes. */
static int check_list(struct diag *d, const char *list) {
    for (const char *word = list; *word;) {
        size_t n = strcspn(word, ",");
        if (!known(word, n)) {
            struct strbuf names = {0};
            for (int s = 0; s < N_TASK_STAGES; s++)
                strbuf_printf(&names, ", %s", task_stage_name((enum task_stage)s));
            fail(d, QN_EINVAL, "QN_DUMP: no stage '%.*s'; there are all, kernel%s, program",
                 (int)MIN(n, (size_t)40), word, strbuf_text(&names));
            strbuf_fini(&names);
            return QN_EINVAL;
        }
        word += n + (word[n] == ',');
    }
    return QN_OK;
}

static int write_file(struct diag *d, const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    if (f == NULL) return fail(d, QN_EIO, "QN_DUMP: %s: %s", path, strerror(errno));
    bool written = fputs(text, f) >= 0;
    if (fclose(f) != 0 || !written)
        return fail(d, QN_EIO, "QN_DUMP: %s: %s", path, strerror(errno));
    return QN_OK;
}

static int write_stage(const struct dump *dump, struct compile_shown of, const char *stage,
                       const char *text) {
    struct strbuf path = {0};
    if (dump->dir) strbuf_printf(&path, "%s/", dump->dir);
    if (of.n_rows) strbuf_printf(&path, "%u-", of.n_rows); /* the program has all variants */
    if (of.context) strbuf_printf(&path, "to-%u-", of.context);
    if (of.decode_only) strbuf_str(&path, "decode-only-");
    strbuf_printf(&path, "%s.txt", stage);
    int rc = strbuf_status(dump->d, &path);
    if (rc == QN_OK) rc = write_file(dump->d, path.text, text);
    strbuf_fini(&path);
    return rc;
}

static void on_stage(void *user, struct compile_shown of, const char *stage, const char *text) {
    struct dump *dump = user;
    if (dump->rc == QN_OK && listed(dump->stages, stage))
        dump->rc = write_stage(dump, of, stage, text);
    if (dump->next && dump->next->stage) dump->next->stage(dump->next->user, of, stage, text);
}

static int on_kernel(void *user, struct diag *d, const struct kgraph *k) {
    const struct dump *dump = user;
    if (!dump->next || !dump->next->kernel) return QN_OK;
    return dump->next->kernel(dump->next->user, d, k);
}

static int on_tasks(void *user, struct diag *d, const struct tgraph *g, enum task_stage stage) {
    const struct dump *dump = user;
    if (dump->rc != QN_OK) return dump->rc; /* no use in going on */
    if (!dump->next || !dump->next->tasks) return QN_OK;
    return dump->next->tasks(dump->next->user, d, g, stage);
}

int dump_start(struct diag *d, struct dump *dump, const struct compile_hook *next,
               const struct compile_hook **hook) {
    const char *stages = getenv("QN_DUMP"), *dir = getenv("QN_DUMP_DIR");
    *dump = (struct dump){0};
    *hook = next;
    if (!stages || !stages[0]) return QN_OK;
    TRY(check_list(d, stages));
    *dump = (struct dump){
        .hook = {.stage = on_stage, .kernel = on_kernel, .tasks = on_tasks, .user = dump},
        .next = next,
        .stages = stages,
        .dir = dir && dir[0] ? dir : NULL,
        .d = d};
    *hook = &dump->hook;
    return QN_OK;
}

int dump_end(const struct dump *dump, int rc) {
    return rc == QN_OK ? dump->rc : rc;
}
