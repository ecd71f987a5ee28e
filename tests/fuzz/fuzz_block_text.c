/* Any bytes as the text of a block graph. What is read is held to the rules; what holds them is
 * drawn, measured, and reads back as it was written.
 *
 *     tools/fuzz.sh block_text
 */
#include "block/block.h"
#include "block/thread_graph.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void draw(const struct block_graph *g) {
    struct strbuf out = {0};
    struct block_stats s;
    struct thread_graph graphs[BLOCK_NODES];
    for (uint32_t t = 0; t < g->n_tasks; t++) {
        block_stats(&g->task[t], &s);
        if (thread_graph_find(&g->task[t], graphs) != s.n_thread_graphs) abort();
    }
    block_dot(g, &out);
    block_html(g, &out);
    strbuf_fini(&out);
}

static void read_back(const struct block_graph *g) {
    struct strbuf out = {0}, again = {0};
    struct block_graph read;
    block_write(g, &out);
    if (block_read(NULL, "again", strbuf_text(&out), out.n, &read) != QN_OK) abort();
    block_write(&read, &again);
    if (strcmp(strbuf_text(&out), strbuf_text(&again)) != 0) abort();
    strbuf_fini(&out);
    strbuf_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const struct block_limits limits = block_limits_default();
    struct block_graph g;
    struct diag d = {0};
    int rc = block_read(&d, "fuzz", (const char *)data, size, &g);
    if (rc == QN_OK) rc = block_graph_verify(&d, &g, &limits);
    if ((rc != QN_OK) != (d.message[0] != '\0')) abort(); /* a failure says why */
    if (rc != QN_OK) return 0;
    draw(&g);
    read_back(&g);
    return 0;
}
