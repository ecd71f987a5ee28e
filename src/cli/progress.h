/* progress.h - reports on stderr how far opening an engine is: a bar on a terminal, lines
 * elsewhere, JSON events for programs.
 *
 *   auto   a bar on a terminal; else lines, or events with --format json, for stages that last
 *   bar    the bar, wherever stderr goes
 *   lines  a line per stage with its seconds and bytes, and one every two seconds
 *   json   {"event":"progress","stage":"weights","done":0,"total":0,"seconds":0.0}, likewise
 *   none   nothing
 */
#ifndef QN_CLI_PROGRESS_H
#define QN_CLI_PROGRESS_H

#include "cli/cli.h"

enum progress_form { PROGRESS_NONE, PROGRESS_BAR, PROGRESS_LINES, PROGRESS_JSON };

/* Lives while the engine opens; belongs to the caller that opens it. */
struct progress {
    enum progress_form form;
    bool all; /* also shows stages that end at once */
    char stage[32];
    uint64_t stage_start, last_shown; /* ns */
    uint64_t done, total;             /* bytes */
    bool shown;                       /* the stage has been shown, or a bar is on the line */
};

/* Chooses the form and makes params report to it. */
void progress_attach(struct progress *p, const struct options *o, qn_engine_params *params);
/* Ends the report, also after a failure: the cursor is on an empty line again. */
void progress_end(struct progress *p);

#endif
