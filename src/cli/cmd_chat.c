/* cmd_chat.c - quern chat: a conversation on the terminal, or line by line from a pipe. */
#include "cli/chat_prompt.h"
#include "cli/cli.h"
#include "cli/line_input.h"
#include "cli/sampling.h"
#include "cli/tally.h"

#include "base/checked.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Ctrl-C ends the answer, not the program. A signal handler can use only a variable like this; only
 * this command installs the handler. */
static volatile sig_atomic_t interrupted;

static void on_interrupt(int number) {
    (void)number;
    interrupted = 1;
}

struct chat {
    const struct options *o;
    qn_engine *engine;
    struct chat_prompt prompt;
    struct sampling sampling;
    json_t *messages; /* array of {"role", "content"} */
    struct line_input in;
    uint32_t max_model_len;
    bool over;   /* no further turn: /exit, or stdout is closed */
    bool failed; /* a question from a pipe has no answer */
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

static int ask_again(struct chat *c, qn_request **request);

/* Renders the conversation so far as a prompt, and submits the request for its answer. */
static int ask(struct chat *c, qn_request **request) {
    qn_error error;
    char *text;
    size_t n;
    char *messages = json_dumps(c->messages, JSON_COMPACT);
    if (!messages) return cli_error("out of memory");
    int rc = chat_prompt_render(&c->prompt, messages, &text, &n, &error);
    free(messages);
    if (rc != QN_OK) return cli_failed(&error);
    qn_prompt prompt = {.struct_size = sizeof prompt, .text = text, .n_text = n, .no_special = 1};
    rc = qn_request_submit(c->engine, &prompt, &c->sampling.params, request, &error);
    qn_free(text);
    if (rc == QN_ELIMIT && json_array_size(c->messages) > 2) return ask_again(c, request);
    return rc == QN_OK ? EXIT_OK : cli_failed(&error);
}

/* Asks the last message alone, because the conversation fills the context. On a terminal the user
 * decides instead; a pipe cannot, and its questions must be answered. */
static int ask_again(struct chat *c, qn_request **request) {
    if (c->in.terminal)
        return cli_error("the conversation fills the context of %u positions: /reset starts over; "
                         "--max-model-len makes it longer",
                         c->max_model_len);
    cli_note(c->o,
             "the conversation fills the context of %u positions: it starts over with this "
             "question, as after /reset",
             c->max_model_len);
    json_t *last = json_incref(json_array_get(c->messages, json_array_size(c->messages) - 1));
    int rc = reset(c);
    if (json_array_append_new(c->messages, last) != 0) rc = cli_error("out of memory");
    return rc == EXIT_OK ? ask(c, request) : rc;
}

/* Tells the user why the answer is incomplete. */
static void note_end(const struct chat *c, qn_request *request, const struct tally *t) {
    size_t n_prompt;
    qn_request_prompt_ids(request, &n_prompt);
    if (t->finish_reason == QN_FINISH_ABORT) {
        cli_note(c->o, "the answer was stopped");
    } else if (t->finish_reason == QN_FINISH_LENGTH && n_prompt + t->n >= c->max_model_len) {
        cli_note(c->o,
                 "the answer was cut: the context of %u positions is full; /reset starts over",
                 c->max_model_len);
    } else if (t->finish_reason == QN_FINISH_LENGTH) {
        cli_note(c->o, "the answer was cut after %zu tokens, as --max-tokens wants", t->n);
    }
}

/* Streams one answer to stdout. */
static int answer(struct chat *c, qn_request *request, struct tally *tally) {
    qn_output out = {.struct_size = sizeof out};
    qn_error error;
    do {
        if (interrupted) qn_request_cancel(request);
        int rc = qn_request_next(request, 100, &out, &error);
        if (rc == QN_EBUSY) continue;
        if (rc != QN_OK) return cli_failed(&error);
        if (tally_add(tally, &out) != QN_OK) return cli_error("out of memory");
        fwrite(out.text, 1, out.n_text, stdout);
        if (fflush(stdout) != 0) break;
    } while (qn_request_finish_reason(request) == QN_RUNNING);
    putchar('\n');
    c->over = fflush(stdout) != 0;
    if (c->over) return EXIT_FAILED; /* main prints why */
    note_end(c, request, tally);
    return EXIT_OK;
}

/* One turn; if it fails, the conversation is the same as before. */
static int turn(struct chat *c, const char *text, size_t n) {
    qn_request *request = NULL;
    struct tally tally;
    size_t before = json_array_size(c->messages);
    int rc = add_message(c, "user", text, n);
    interrupted = 0;
    tally_start(&tally);
    if (rc == EXIT_OK) rc = ask(c, &request);
    if (rc == EXIT_OK) rc = answer(c, request, &tally);
    if (rc == EXIT_OK) rc = add_message(c, "assistant", strbuf_text(&tally.text), tally.text.n);
    if (rc == EXIT_OK && c->in.terminal) {
        struct tally_sum sum = {0};
        tally_sum(&sum, &tally, request);
        tally_report(c->o, c->engine, &sum);
    }
    while (rc != EXIT_OK && json_array_size(c->messages) > before)
        json_array_remove(c->messages, json_array_size(c->messages) - 1);
    qn_request_free(request);
    tally_fini(&tally);
    return rc;
}

/* ---- commands ----------------------------------------------------------------------------- */

static int command_exit(struct chat *c) {
    c->over = true;
    return EXIT_OK;
}

static int command_help(struct chat *c);

static const struct chat_command {
    const char *name, *help;
    int (*run)(struct chat *c);
} commands[] = {
    {"/help", "this list", command_help},
    {"/reset", "forgets the conversation", reset},
    {"/exit", "leaves; so does Ctrl-D", command_exit},
};

static int command_help(struct chat *c) {
    (void)c;
    for (size_t i = 0; i < COUNT_OF(commands); i++)
        fprintf(stderr, "  %-8s %s\n", commands[i].name, commands[i].help);
    fputs("  \\        at the end of a line: the text goes on in the next\n"
          "  \"\"\"      begins a text of several lines, and ends it\n"
          "  //       begins a text with /\n"
          "  Ctrl-C   stops an answer, or drops what was typed\n",
          stderr);
    return EXIT_OK;
}

/* "/word" with nothing else on the line; "/etc/hosts is what?" is a question. */
static bool is_command(const char *text, size_t n) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz-_?";
    return text[0] == '/' && n > 1 && 1 + strspn(text + 1, letters) == n;
}

static int run_command(struct chat *c, const char *text) {
    for (size_t i = 0; i < COUNT_OF(commands); i++)
        if (strcmp(text, commands[i].name) == 0) return commands[i].run(c);
    return cli_error("unknown command %s; /help lists them, //%s asks it", text, text + 1);
}

static int say(struct chat *c, const char *text, size_t n) {
    if (is_command(text, n)) return run_command(c, text);
    const bool escaped = n > 1 && text[0] == '/' && text[1] == '/';
    return turn(c, text + escaped, n - escaped);
}

/* Runs until the input ends. A failed turn has printed its error; the next question is asked
 * anyway. */
static int converse(struct chat *c) {
    int rc = reset(c);
    while (rc == EXIT_OK && !c->over) {
        const char *text;
        size_t n;
        switch (line_input_next(&c->in, &text, &n)) {
        case LINE_TEXT: c->failed |= say(c, text, n) != EXIT_OK && !c->in.terminal; break;
        case LINE_INTERRUPTED: interrupted = 0; break;
        case LINE_END: c->over = true; break;
        case LINE_FAILED: rc = EXIT_FAILED; break;
        }
    }
    return c->failed ? EXIT_FAILED : rc;
}

/* Checks that the template accepts such a conversation, before the weights are loaded. */
static int try_template(struct chat *c, const char *dir) {
    qn_error error;
    char *text = NULL, *messages = NULL;
    size_t n;
    int rc = chat_prompt_open(c->o, dir, &c->prompt);
    if (rc == EXIT_OK) rc = reset(c);
    if (rc == EXIT_OK) rc = add_message(c, "user", "Hello", 5);
    if (rc == EXIT_OK && !(messages = json_dumps(c->messages, JSON_COMPACT)))
        rc = cli_error("out of memory");
    if (rc == EXIT_OK && chat_prompt_render(&c->prompt, messages, &text, &n, &error) != QN_OK)
        rc = cli_failed(&error);
    free(messages);
    qn_free(text);
    return rc;
}

int cmd_chat(const struct options *o) {
    struct chat c = {.o = o};
    qn_engine_info info = {.struct_size = sizeof info};
    qn_engine_params params;
    struct sigaction act = {.sa_handler = on_interrupt}; /* no SA_RESTART: getline returns */
    int rc = cli_engine_params(o, &params);
    if (rc == EXIT_OK) rc = sampling_from_options(o, NULL, 0, NULL, &c.sampling);
    sampling_fini(&c.sampling);
    if (rc == EXIT_OK) rc = line_input_open(&c.in);
    if (rc != EXIT_OK) return rc;
    if (params.max_num_seqs == 0) params.max_num_seqs = 1;
    if (!(c.messages = json_array())) return cli_error("out of memory");
    rc = try_template(&c, params.tokenizer ? params.tokenizer : params.model);
    if (rc == EXIT_OK) rc = cli_open_engine(o, &params, &c.engine);
    if (rc == EXIT_OK && !qn_engine_tokenizer(c.engine))
        rc = cli_error("%s: no tokenizer.json, and chat needs one", params.model);
    if (rc == EXIT_OK) rc = sampling_from_options(o, c.engine, 0, NULL, &c.sampling);
    if (rc == EXIT_OK) {
        qn_engine_get_info(c.engine, &info);
        c.max_model_len = info.max_model_len;
    }
    if (rc == EXIT_OK && c.in.terminal) {
        cli_note(o, "/help lists commands, Ctrl-C stops an answer, Ctrl-D leaves");
        sigaction(SIGINT, &act, NULL);
    }
    if (rc == EXIT_OK) rc = converse(&c);
    json_decref(c.messages);
    sampling_fini(&c.sampling);
    line_input_close(&c.in);
    chat_prompt_close(&c.prompt);
    qn_engine_close(c.engine);
    return rc;
}
