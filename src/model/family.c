#include "model/family.h"

#include "base/checked.h"

#include <string.h>
#include <strings.h>

static const struct family *const families[] = {
    &family_deepseek_v2, &family_llama,     &family_ministral, &family_mistral,   &family_mixtral,
    &family_qwen2,       &family_qwen2_moe, &family_qwen3,     &family_qwen3_moe,
};

const struct family *family_find(const char *name) {
    for (size_t i = 0; i < COUNT_OF(families); i++)
        if (strcasecmp(families[i]->architecture, name) == 0 ||
            strcmp(families[i]->name, name) == 0)
            return families[i];
    return NULL;
}

void family_list(struct strbuf *out) {
    for (size_t i = 0; i < COUNT_OF(families); i++)
        strbuf_printf(out, "%s%s", i > 0 ? ", " : "", families[i]->architecture);
}
