/* Any bytes as rules (fuzz_grammar.h). */
#include "fuzz/fuzz_grammar.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    return fuzz_grammar(GRAMMAR_EBNF, data, n);
}
