#include "model/model_dir.h"

#include "base/checked.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* A file that tells the kind of a folder. A name that begins with a point is an extension. */
struct sign {
    const char *file, *text;
};

static const struct sign not_models[] = {
    {"snapshots", "a download cache; want one of the folders in its snapshots"},
    {"adapter_config.json", "an adapter (LoRA); merge it into its base model and name that folder"},
    {"model_index.json", "a diffusion pipeline; want a language model"},
    {"params.json", "a checkpoint in its maker's own format; want the one for transformers"},
    {".gguf", "a GGUF model; want the one for transformers, with safetensors"},
};

static const struct sign not_safetensors[] = {
    {"pytorch_model.bin",
     "pickled weights, which quern never reads; convert them with transformers: "
     "save_pretrained writes safetensors"},
    {"pytorch_model.bin.index.json", "pickled weights, which quern never reads; convert them with "
                                     "transformers: save_pretrained writes safetensors"},
    {"adapter_model.safetensors", "an adapter (LoRA); merge it into its base model"},
    {".gguf", "a GGUF model; want the one for transformers, with safetensors"},
    {".safetensors", "safetensors of other names; want them renamed, or their index"},
    {".incomplete", "a download that has not ended"},
};

static const char MAKE_TOKENIZER[] =
    "; make tokenizer.json with transformers: AutoTokenizer.from_pretrained(folder)"
    ".save_pretrained(folder)";

static const struct sign not_tokenizers[] = {
    {"vocab.json", "vocab.json and merges.txt"},
    {"tokenizer.model", "tokenizer.model"},
    {"tekken.json", "tekken.json"},
    {"vocab.txt", "vocab.txt"},
};

static bool is_sign(const char *name, const char *sign) {
    const size_t n = strlen(name), k = strlen(sign);
    if (sign[0] != '.') return strcmp(name, sign) == 0;
    return n > k && strcmp(name + n - k, sign) == 0;
}

/* The first sign whose file is in `dir`; NULL: none. */
static const char *find_sign(const char *dir, const struct sign *signs, size_t n) {
    size_t best = n;
    DIR *list = opendir(dir);
    if (list == NULL) return NULL;
    for (const struct dirent *e; (e = readdir(list)) != NULL;)
        for (size_t i = 0; i < best; i++)
            if (is_sign(e->d_name, signs[i].file)) best = i;
    closedir(list);
    return best < n ? signs[best].text : NULL;
}

/* "owner/name", as hubs name models. */
static bool is_hub_name(const char *path) {
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.";
    const size_t owner = strspn(path, letters);
    if (owner == 0 || path[0] == '.' || path[owner] != '/') return false;
    const size_t name = strspn(path + owner + 1, letters);
    return name > 0 && path[owner + 1] != '.' && path[owner + 1 + name] == '\0';
}

int model_dir_missing(struct diag *d, const char *path) {
    struct stat s;
    char owner[256];
    const char *slash = strchr(path, '/');
    /* A mistyped models/tiny is no hub name: its first folder exists. */
    snprintf(owner, sizeof owner, "%.*s", slash != NULL ? (int)MIN(slash - path, 255) : 0, path);
    if (is_hub_name(path) && stat(owner, &s) != 0)
        return fail(d, QN_ENOENT,
                    "%s: no such folder; quern downloads nothing: get the model first (hf download "
                    "%s --local-dir FOLDER), then name the folder",
                    path, path);
    return fail(d, QN_ENOENT, "%s: %s", path, strerror(ENOENT));
}

int model_dir_check(struct diag *d, const char *path) {
    struct stat s;
    char config[4200];
    const int n = snprintf(config, sizeof config, "%s/config.json", path);
    if (n < 0 || (size_t)n >= sizeof config) return fail(d, QN_EINVAL, "model: path too long");
    if (stat(path, &s) != 0)
        return errno == ENOENT ? model_dir_missing(d, path)
                               : fail(d, QN_EIO, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(s.st_mode))
        return fail(d, QN_EINVAL, "%s: %swant a model directory (with config.json and safetensors)",
                    path, is_sign(path, ".gguf") ? "a GGUF file; " : "");
    if (stat(config, &s) == 0 || errno != ENOENT) return QN_OK;
    const char *found = find_sign(path, not_models, COUNT_OF(not_models));
    if (found != NULL) return fail(d, QN_EUNSUPPORTED, "%s: no config.json; %s", path, found);
    return fail(d, QN_ENOENT, "%s: %s", config, strerror(ENOENT));
}

int model_dir_no_weights(struct diag *d, const char *dir, const char *want) {
    const char *found = find_sign(dir, not_safetensors, COUNT_OF(not_safetensors));
    return fail(d, QN_ENOENT, "%s: want %s, have %s", dir, want, found != NULL ? found : "neither");
}

int model_dir_no_tokenizer(struct diag *d, const char *dir) {
    const char *found = find_sign(dir, not_tokenizers, COUNT_OF(not_tokenizers));
    return fail(d, QN_ENOENT, "%s: want tokenizer.json, have %s%s", dir,
                found != NULL ? found : "no tokenizer", found != NULL ? MAKE_TOKENIZER : "");
}
