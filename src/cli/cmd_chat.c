/* cmd_chat.c - quern chat: a conversation on the terminal, or line by line from a pipe. */
#include "cli/cli.h"
#include "cli/sampling.h"
#include "cli/tally.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Ctrl-C ends the answer, not the program. A signal handler can reach nothing but a variable like
 * this; only this command installs it. */
static volatile sig_atomic_t interrupted;

static void on_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

struct chat {
    const struct options *o;
    qn_engine *engine;
    struct sampling sampling;
    json_t *messages; /* array of {"role", "content"} */
    bool terminal;    /* stdin is one */
};

static int add_message(struct chat *c, const char *role, const char *text, size_t n) {
    json_t *message = json_pack("{s:s, s:o}", "role", role, "content", json_stringn(text, n));
    if (message && json_array_append_new(c->messages, message) == 0) return EXIT_OK;
    return cli_error("this text is not UTF-8");
}

static int reset(struct chat *c) {
    const char *system = options_text(c->o, OPT_SYSTEM, NULL);
    json_array_clear(c->messages);
    return system ? add_message(c, "system", system, strlen(system)) : EXIT_OK;
}

/* The conversation so far as a prompt, and the request for its answer. */
static int ask(struct chat *c, qn_request **request) {
    qn_chat_params params;
    qn_error error;
    char *text;
    size_t n;
    qn_chat_params_init(&params);
    params.chat_template = options_text(c->o, OPT_CHAT_TEMPLATE, NULL);
    params.add_generation_prompt = 1;
    char *messages = json_dumps(c->messages, JSON_COMPACT);
    if (!messages) return cli_error("out of memory");
    int rc = qn_chat_render(qn_engine_tokenizer(c->engine), messages, &params, &text, &n, &error);
    free(messages);
    if (rc != QN_OK) return cli_failed(&error);
    qn_prompt prompt = {.struct_size = sizeof prompt, .text = text, .n_text = n, .no_special = 1};
    rc = qn_request_submit(c->engine, &prompt, &c->sampling.params, request, &error);
    qn_free(text);
    return rc == QN_OK ? EXIT_OK : cli_failed(&error);
}

/* Streams one answer to stdout. */
static int answer(qn_request *request, struct tally *tally) {
    qn_output out = {.struct_size = sizeof out};
    qn_error error;
    do {
        if (interrupted) qn_request_cancel(request);
        int rc = qn_request_next(request, 100, &out, &error);
        if (rc == QN_EBUSY) continue;
        if (rc != QN_OK) return cli_failed(&error);
        if (tally_add(tally, &out) != QN_OK) return cli_error("out of memory");
        fwrite(out.text, 1, out.n_text, stdout);
        if (fflush(stdout) != 0) return cli_finish();
    } while (qn_request_finish_reason(request) == QN_RUNNING);
    putchar('\n');
    return cli_finish();
}

/* One turn; when it fails the conversation is as it was before. */
static int turn(struct chat *c, const char *text, size_t n) {
    qn_request *request = NULL;
    struct tally tally;
    size_t before = json_array_size(c->messages);
    int rc = add_message(c, "user", text, n);
    interrupted = 0;
    tally_start(&tally);
    if (rc == EXIT_OK) rc = ask(c, &request);
    if (rc == EXIT_OK) rc = answer(request, &tally);
    if (rc == EXIT_OK) rc = add_message(c, "assistant", strbuf_text(&tally.text), tally.text.n);
    if (rc == EXIT_OK && c->terminal) {
        struct tally_sum sum = {0};
        tally_sum(&sum, &tally);
        tally_report(c->o, c->engine, &sum);
    }
    while (rc != EXIT_OK && json_array_size(c->messages) > before)
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
    qn_request_free(request);
    tally_fini(&tally);
    return rc;
}

static int converse(struct chat *c) {
    char *line = NULL;
    size_t capacity = 0;
    int rc = reset(c);
    while (rc == EXIT_OK) {
        if (c->terminal) fputs("> ", stderr);
        ssize_t n = getline(&line, &capacity, stdin);
        if (n < 0 && interrupted && errno == EINTR) { /* Ctrl-C at the prompt: a new one */
            clearerr(stdin);
            interrupted = 0;
            fputc('\n', stderr);
            continue;
        }
        if (n < 0) break;
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r')) line[--n] = '\0';
        if (n == 0) continue;
        if (strcmp(line, "/exit") == 0) break;
        if (strcmp(line, "/reset") == 0)
            rc = reset(c);
        else
            rc = turn(c, line, (size_t)n);
        if (c->terminal && rc == EXIT_FAILED) rc = EXIT_OK; /* said so; the user may go on */
    }
    free(line);
    return rc;
}

int cmd_chat(const struct options *o) {
    struct chat c = {.o = o, .terminal = isatty(STDIN_FILENO)};
    qn_engine_params params;
    struct sigaction act = {.sa_handler = on_interrupt}; /* no SA_RESTART: getline returns */
    int rc = cli_engine_params(o, &params);
    if (rc != EXIT_OK) return rc;
    if (params.max_num_seqs == 0) params.max_num_seqs = 1;
    rc = cli_open_engine(o, &params, &c.engine);
    if (rc == EXIT_OK && !qn_engine_tokenizer(c.engine))
        rc = cli_error("%s: no tokenizer.json, and chat needs one", params.model);
    if (rc == EXIT_OK) rc = sampling_from_options(o, c.engine, 0, &c.sampling);
    if (rc == EXIT_OK && !(c.messages = json_array())) rc = cli_error("out of memory");
    if (rc == EXIT_OK && c.terminal) {
        cli_note(o, "/exit ends, /reset starts over, Ctrl-C ends an answer");
        sigaction(SIGINT, &act, NULL);
    }
    if (rc == EXIT_OK) rc = converse(&c);
    json_decref(c.messages);
    sampling_fini(&c.sampling);
    qn_engine_close(c.engine);
    return rc;
}
