/* view_dump.c - QN_DUMP: see view.h. */
#include "engine/view.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* Whether `stage` is one of the words of a list. */
static bool listed(const char *list, const char *stage) {
    size_t n = strlen(stage);
    for (const char *word = list; *word;) {
        size_t length = strcspn(word, ",");
        if ((length == n && strncmp(word, stage, n) == 0) ||
            (length == 3 && strncmp(word, "all", 3) == 0))
            return true;
        word += length + (word[length] == ',');
    }
    return false;
}

static void write_stage(struct dump *dump, uint32_t n_rows, const char *stage, const char *text) {
    struct strbuf path = {0};
    if (!dump->dir) {
        fprintf(stderr, "---- %s, %u rows\n%s", stage, n_rows, text);
        return;
    }
    strbuf_printf(&path, "%s/%u-%s.txt", dump->dir, n_rows, stage);
    FILE *f = strbuf_status(NULL, &path) == QN_OK ? fopen(path.text, "w") : NULL;
    /* A dump that cannot be written must not end the compile: it is said where dumps go. */
    if (!f || fputs(text, f) < 0)
        fprintf(stderr, "QN_DUMP: %s: %s\n", strbuf_text(&path), strerror(errno));
    if (f) fclose(f);
    strbuf_fini(&path);
}

static void on_stage(void *user, uint32_t n_rows, const char *stage, const char *text) {
    struct dump *dump = user;
    if (listed(dump->stages, stage)) write_stage(dump, n_rows, stage, text);
    if (dump->next && dump->next->stage) dump->next->stage(dump->next->user, n_rows, stage, text);
}

static int on_kernel(void *user, struct diag *d, const struct kgraph *k) {
    const struct dump *dump = user;
    if (!dump->next || !dump->next->kernel) return QN_OK;
    return dump->next->kernel(dump->next->user, d, k);
}

static int on_tasks(void *user, struct diag *d, const struct tgraph *g, enum task_stage stage) {
    const struct dump *dump = user;
    if (!dump->next || !dump->next->tasks) return QN_OK;
    return dump->next->tasks(dump->next->user, d, g, stage);
}

const struct compile_hook *dump_hook(struct diag *d, struct dump *dump,
                                     const struct compile_hook *next) {
    const char *stages = getenv("QN_DUMP"), *dir = getenv("QN_DUMP_DIR");
    if (!stages || !stages[0]) return next;
    *dump = (struct dump){
        .hook = {.stage = on_stage, .kernel = on_kernel, .tasks = on_tasks, .user = dump},
        .next = next,
        .stages = stages,
        .dir = dir && dir[0] ? dir : NULL,
        .d = d};
    return &dump->hook;
}
