#include "base/clock.h"
#include "cli/progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BAR_WIDTH = 30 };
static const uint64_t SLOW_NS = 1000000000u;     /* a stage that lasts longer gets a line */
static const uint64_t REPEAT_NS = 2000000000u;   /* and one more line this often */
static const uint64_t BAR_REPEAT_NS = 30000000u; /* a bar is redrawn this often at most */

/* ---- forms -------------------------------------------------------------------------------- */

/* "3.2 GB of 16 GB" */
static const char *amount(const struct progress *p, char text[72]) {
    char done[32], total[32];
    text[0] = '\0';
    if (p->total)
        snprintf(text, 72, "%s of %s", cli_bytes(p->done, done), cli_bytes(p->total, total));
    return text;
}

/* Why a stage takes longer than a second; empty if it needs no reason. */
static const char *reason(const struct progress *p, double seconds) {
    const bool kernels = strcmp(p->stage, "kernels") == 0;
    return kernels && seconds >= 1 ? ", compiling; kept for later starts" : "";
}

static void show_bar(struct progress *p, double seconds) {
    char bar[BAR_WIDTH + 1], text[72];
    if (p->total == 0) {
        fprintf(stderr, "\r\033[K%s%s ...", p->stage, reason(p, seconds));
        if (seconds >= 1) fprintf(stderr, " %.1f s", seconds);
        return;
    }
    double share = (double)p->done / (double)p->total;
    for (unsigned i = 0; i < BAR_WIDTH; i++) bar[i] = i < share * BAR_WIDTH ? '#' : '.';
    bar[BAR_WIDTH] = '\0';
    fprintf(stderr, "\r\033[K%-10s [%s] %3.0f %%  %s, %.1f s", p->stage, bar, 100 * share,
            amount(p, text), seconds);
}

static void show_line(struct progress *p, double seconds, bool over) {
    char text[72];
    fprintf(stderr, "quern: %s%s%s%s%s, %.3f s%s\n", p->stage, over ? "" : reason(p, seconds),
            p->total ? ": " : "", amount(p, text), over ? " done" : " ...", seconds,
            over ? "" : " so far");
}

static void show_json(const struct progress *p, double seconds, bool over) {
    fprintf(
        stderr,
        "{\"event\":\"progress\",\"stage\":\"%s\",\"done\":%llu,\"total\":%llu,\"seconds\":%.6f,"
        "\"finished\":%s}\n",
        p->stage, (unsigned long long)p->done, (unsigned long long)p->total, seconds,
        over ? "true" : "false");
}

static void show(struct progress *p, uint64_t now, bool over) {
    double seconds = (double)(now - p->stage_start) * 1e-9;
    if (p->form == PROGRESS_BAR)
        show_bar(p, seconds);
    else if (p->form == PROGRESS_LINES)
        show_line(p, seconds, over);
    else
        show_json(p, seconds, over);
    p->shown = true;
    p->last_shown = now;
}

/* ---- steps -------------------------------------------------------------------------------- */

/* Whether it is time to show the stage while it still runs. */
static bool due(const struct progress *p, uint64_t now) {
    if (p->form == PROGRESS_BAR) return !p->shown || now - p->last_shown >= BAR_REPEAT_NS;
    if (!p->shown) return now - p->stage_start >= SLOW_NS;
    return now - p->last_shown >= REPEAT_NS;
}

static void end_stage(struct progress *p, uint64_t now) {
    if (!p->stage[0] || p->form == PROGRESS_BAR) return;
    if (p->all || p->shown || now - p->stage_start >= SLOW_NS) show(p, now, true);
}

static void step(void *user, const char *stage, uint64_t done, uint64_t total) {
    struct progress *p = user;
    uint64_t now = clock_ns();
    if (strcmp(stage, p->stage) != 0) {
        end_stage(p, now);
        snprintf(p->stage, sizeof p->stage, "%s", stage);
        p->stage_start = p->last_shown = now;
        p->done = p->total = 0;
        p->shown = false;
    }
    p->done = done;
    p->total = total;
    if (strcmp(stage, "ready") == 0)
        progress_end(p);
    else if (due(p, now))
        show(p, now, false);
}

void progress_end(struct progress *p) {
    if (p->form == PROGRESS_BAR && p->stage[0]) fputs("\r\033[K", stderr);
    p->stage[0] = '\0';
}

void progress_attach(struct progress *p, const struct options *o, qn_engine_params *params) {
    const char *word = options_text(o, OPT_PROGRESS, "auto");
    *p = (struct progress){.all = strcmp(word, "auto") != 0};
    if (strcmp(word, "auto") == 0)
        p->form = isatty(STDERR_FILENO) ? PROGRESS_BAR
                  : cli_wants_json(o)   ? PROGRESS_JSON
                                        : PROGRESS_LINES;
    if (strcmp(word, "bar") == 0) p->form = PROGRESS_BAR;
    if (strcmp(word, "lines") == 0) p->form = PROGRESS_LINES;
    if (strcmp(word, "json") == 0) p->form = PROGRESS_JSON;
    if (options_flag(o, OPT_QUIET)) p->form = PROGRESS_NONE;
    if (p->form == PROGRESS_NONE) return;
    params->progress = step;
    params->progress_user = p;
}
