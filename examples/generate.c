/* generate.c - the smallest useful program: continues a prompt, printing text as it comes.
 *
 *     cc generate.c $(pkg-config --cflags --libs quern) -o generate
 *     ./generate models/tiny "Once upon a time"
 */
#include <quern.h>
#include <stdio.h>

static int run(qn_engine *engine, const char *text, qn_error *error) {
    qn_sampling_params sampling;
    qn_sampling_params_init(&sampling, engine);
    sampling.max_tokens = 64;
    sampling.has_seed = 1;

    qn_prompt prompt = {.struct_size = sizeof prompt, .text = text};
    qn_request *request;
    if (qn_request_submit(engine, &prompt, &sampling, &request, error) != QN_OK) return 1;

    qn_output out = {.struct_size = sizeof out};
    int rc;
    do {
        rc = qn_request_next(request, -1, &out, error);
        if (rc != QN_OK) break;
        fwrite(out.text, 1, out.n_text, stdout);
        fflush(stdout);
    } while (out.finish_reason == QN_RUNNING);
    putchar('\n');
    qn_request_free(request);
    return rc != QN_OK;
}

int main(int argc, char **argv) {
    if (argc != 3) return fprintf(stderr, "usage: generate MODEL PROMPT\n"), 2;

    qn_engine_params params;
    qn_engine_params_init(&params);
    params.model = argv[1];

    qn_engine *engine;
    qn_error error;
    if (qn_engine_open(&params, &engine, &error) != QN_OK)
        return fprintf(stderr, "%s\n", error.message), 1;
    int rc = run(engine, argv[2], &error);
    if (rc != 0) fprintf(stderr, "%s\n", error.message);
    qn_engine_close(engine);
    return rc;
}
