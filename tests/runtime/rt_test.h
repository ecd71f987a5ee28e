/* rt_test.h - what the runtime's tests share. Include before anything else of the tests. */
#ifndef TESTS_RUNTIME_RT_TEST_H
#define TESTS_RUNTIME_RT_TEST_H

#include "runtime/cpu_backend.h"
#include "runtime/task_sim.h"

#include "runtime/graph_gen.h"
#include "runtime/watch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <cmocka.h>
#undef fail

/* The call must succeed; shows its message otherwise. */
#define EXPECT_OK(d, call)                                                                         \
    do {                                                                                           \
        int expect_rc_ = (call);                                                                   \
        if (expect_rc_ != QN_OK) print_error("%s\n", (d)->message);                                \
        assert_int_equal(expect_rc_, QN_OK);                                                       \
    } while (0)

/* The call must give the code, with a message that contains `text`. */
#define EXPECT_FAIL(d, code, text, call)                                                           \
    do {                                                                                           \
        diag_clear(d);                                                                             \
        assert_int_equal((call), (code));                                                          \
        if (strstr((d)->message, (text)) == NULL) print_error("message: %s\n", (d)->message);      \
        assert_non_null(strstr((d)->message, (text)));                                             \
        diag_clear(d);                                                                             \
    } while (0)

static inline struct rt_request make_request(uint32_t n_prompt, uint32_t max_tokens) {
    return (struct rt_request){.n_prompt = n_prompt,
                               .max_tokens = max_tokens,
                               .sampling = {.top_p = 1, .repetition_penalty = 1}};
}

/* The prompt of request number `request`: n tokens. */
static inline void fill_prompt(int32_t *prompt, uint32_t n, uint32_t request) {
    for (uint32_t i = 0; i < n; i++) prompt[i] = (int32_t)((request * 97 + i * 13) % 1000);
}

/* Whether the output is what watch_sample makes of that prompt. */
static inline bool tokens_follow(const struct mailbox_view *v, uint32_t n_prompt,
                                 uint32_t request) {
    int32_t prompt[256];
    fill_prompt(prompt, n_prompt, request);
    int32_t token = prompt[n_prompt - 1];
    for (uint32_t i = 0; i < v->n_out; i++) {
        token = watch_next_token(token, n_prompt + i);
        if (v->tokens[i] != token || v->logprobs[i] != -(float)token) return false;
    }
    return true;
}

static inline int submit(struct diag *d, struct mailbox *m, uint32_t request, uint32_t n_prompt,
                         uint32_t max_tokens, uint32_t *slot) {
    int32_t prompt[256];
    fill_prompt(prompt, n_prompt, request);
    struct rt_request q = make_request(n_prompt, max_tokens);
    return mailbox_submit(d, m, &q, prompt, slot);
}

#endif
