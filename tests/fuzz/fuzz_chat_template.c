/* Any bytes as a chat template, and what is behind a NUL in them as the conversation; without one a
 * conversation with everything in it.
 *
 *     clang -fsanitize=fuzzer,address,undefined ... tests/fuzz/fuzz_chat_template.c
 *     ./fuzz_chat_template tests/fuzz/corpus/chat_template
 */
#include "model/chat_template.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char talk[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"S \"}, {\"role\": \"user\", "
    "\"content\": "
    "[{\"type\": \"text\", \"text\": \"\\u00e9\"}]}, {\"role\": \"assistant\", \"content\": "
    "\"<think>a</think>\\nb\", \"reasoning\": \"r\", \"tool_calls\": [{\"id\": \"c\", "
    "\"function\": "
    "{\"name\": \"f\", \"arguments\": {\"x\": 1.5, \"y\": [true, null]}}}]}, {\"role\": \"tool\", "
    "\"content\": \"1\"}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", "
    "\"parameters\": {\"properties\": {\"x\": {\"type\": \"integer\"}}}}}], \"kwargs\": {\"d\": "
    "{\"a\": 1}, "
    "\"xs\": [3, 1, 2], \"s\": \"Some Text\", \"n\": 4}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    const struct chat_options options = {.add_generation_prompt = true, .now = 1721995200};
    const char *program = (const char *)data, *conversation = talk;
    const char *end = n == 0 ? NULL : memchr(program, '\0', n);
    size_t n_program = end == NULL ? n : (size_t)(end - program), n_talk = sizeof talk - 1;
    struct strbuf out = {0};
    struct chat_template *c;
    struct diag d = {0};
    if (end != NULL) {
        conversation = end + 1;
        n_talk = n - n_program - 1;
    }
    int rc = chat_template_parse(&d, "fuzz", program, n_program, "<s>", "</s>", &c);
    if (rc == QN_OK) rc = chat_template_render(&d, c, conversation, n_talk, &options, &out);
    if ((rc != QN_OK) != (d.message[0] != '\0')) abort(); /* a failure says why */
    chat_template_free(c);
    strbuf_fini(&out);
    return 0;
}
