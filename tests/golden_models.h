/* golden_models.h - the folders of tests/golden/models. */
#ifndef QN_TESTS_GOLDEN_MODELS_H
#define QN_TESTS_GOLDEN_MODELS_H

static const char *const golden_models[] = {
    "deepseek-v2-dense",
    "deepseek-v2-f16",
    "deepseek-v2-lite",
    "deepseek-v2-yarn",
    "llama-linear",
    "llama-longrope",
    "llama-yarn",
    "llama2-mha",
    "llama3-rope-parameters",
    "llama3-rope-scaling",
    "mistral",
    "mistral-longrope",
    "mistral-mixed",
    "mistral-window",
    "mistral-yarn",
    "mixtral",
    "mixtral-window",
    "qwen2",
    "qwen2-dynamic",
    "qwen2-mixed",
    "qwen2-moe",
    "qwen2-moe-normed",
    "qwen2-window",
    "qwen3",
    "qwen3-mixed",
    "qwen3-moe",
    "qwen3-moe-all",
    "qwen3-moe-sparse",
    "qwen3-mqa",
    "qwen3-tied",
    "qwen3-yarn",
};

#endif
