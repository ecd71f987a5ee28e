/* quern.h - the public interface of libquern: run a large language model from a Hugging Face
 * directory. It is the only public header; everything that is not declared here is private.
 *
 *     qn_engine_params params;
 *     qn_engine_params_init(&params);
 *     params.model = "Qwen3-0.6B";
 *     qn_engine *engine;
 *     qn_error error;
 *     if (qn_engine_open(&params, &engine, &error) != QN_OK) { puts(error.message); ... }
 *
 *     qn_sampling_params sampling;
 *     qn_sampling_params_init(&sampling, engine);
 *     qn_prompt prompt = {.struct_size = sizeof prompt, .text = "Hello"};
 *     qn_request *request;
 *     qn_request_submit(engine, &prompt, &sampling, &request, &error);
 *     qn_output out = {.struct_size = sizeof out};
 *     do {
 *         qn_request_next(request, -1, &out, &error);
 *         printf("%s", out.text);
 *     } while (out.finish_reason == QN_RUNNING);
 *     qn_request_free(request);
 *     qn_engine_close(engine);
 *
 * Conventions
 *   errors    A function that can fail returns int: QN_OK (0) or a negative QN_E... code, and fills
 *             *error when that is not NULL. The library never prints and never ends the process.
 *   structs   Each struct begins with struct_size. The _init functions set it to the size at the
 *             caller's compile time, so a program and a newer library agree on which fields exist.
 *             New fields are only added at the end.
 *   ownership The library copies strings and arrays given to a function, or does not keep them. A
 *             result returned through `char **` or `int32_t **` belongs to the caller: qn_free(). A
 *             pointer inside a result struct has its lifetime stated beside the field.
 *   threads   Engines and tokenizers are independent of each other: there is no global state, two
 *             engines may live in one process. An engine may be used from several threads; one
 *             request from one thread at a time. A tokenizer is read-only and may be shared.
 *   fork      An engine and its requests belong to the process that opened it. In a child of fork,
 *             waiting or submitting fails with QN_EINVAL, and freeing or closing does nothing.
 *   text      UTF-8. Lengths are bytes and exclude the NUL that ends every returned string.
 */
#ifndef QUERN_H
#define QUERN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QN_API __attribute__((visibility("default")))

/* The same numbers as src/base/status.def, which engine/api_check.c holds to this list. (The
 * library's own files see them through base/status.h.) */
#ifndef QN_BASE_STATUS_H
enum {
    QN_OK = 0,
    QN_EINVAL = -1,       /* invalid argument */
    QN_ENOMEM = -2,       /* out of memory */
    QN_EIO = -3,          /* input/output error */
    QN_ENOENT = -4,       /* no such file or entry */
    QN_EFORMAT = -5,      /* malformed file */
    QN_EUNSUPPORTED = -6, /* not supported */
    QN_ESHAPE = -7,       /* shapes do not fit */
    QN_ELIMIT = -8,       /* limit exceeded */
    QN_EVERIFY = -9,      /* verification failed */
    QN_ESTALL = -10,      /* runtime stalled */
    QN_EBUSY = -11,       /* busy; nothing within the time given */
    QN_ECANCELED = -12,   /* canceled */
    QN_EDEVICE = -13,     /* device error */
    QN_EINTERNAL = -14,   /* internal error */
};
#endif

typedef struct qn_error {
    int32_t code;       /* QN_OK or QN_E... */
    char message[1000]; /* one line; names the file, field or argument at fault */
} qn_error;

/* "0.1.0". Static. */
QN_API const char *qn_version(void);
/* "out of memory" and so on; "unknown error" for a number that is no code. Static. */
QN_API const char *qn_status_text(int code);
/* Releases memory that the library returned; NULL is allowed. */
QN_API void qn_free(void *p);

/* ---- tokenizer ---------------------------------------------------------------------------- */

typedef struct qn_tokenizer qn_tokenizer;

/* Opens the tokenizer of a model directory (or a tokenizer.json). The caller closes it. */
QN_API int qn_tokenizer_open(const char *path, qn_tokenizer **tokenizer, qn_error *error);
QN_API void qn_tokenizer_close(qn_tokenizer *tokenizer);

/* One more than the largest token id. */
QN_API int32_t qn_tokenizer_n_vocab(const qn_tokenizer *tokenizer);

/* Token ids of text[0, n_text); add_special: with the tokens that the tokenizer itself puts around
 * a text (bos ...). *ids is the caller's: qn_free(). */
QN_API int qn_tokenize(const qn_tokenizer *tokenizer, const char *text, size_t n_text,
                       int add_special, int32_t **ids, size_t *n_ids, qn_error *error);
/* The text of ids[0, n_ids); skip_special leaves out special tokens. *text is the caller's:
 * qn_free(). Errors: QN_EINVAL for an id outside the vocabulary. */
QN_API int qn_detokenize(const qn_tokenizer *tokenizer, const int32_t *ids, size_t n_ids,
                         int skip_special, char **text, size_t *n_text, qn_error *error);

typedef struct qn_chat_params {
    size_t struct_size;
    const char *chat_template; /* a template's name in the directory, a built-in's name, or a file;
                                * NULL: the directory's own */
    const char *kwargs_json;   /* object of further template variables; NULL: none */
    int add_generation_prompt; /* 1: end with the opening of the assistant's turn */
} qn_chat_params;
QN_API void qn_chat_params_init(qn_chat_params *params);

/* The prompt text of a conversation. messages_json is an array of messages with any fields, or
 *     {"messages": [...], "tools": [...], "documents": [...], "add_generation_prompt": true,
 *      "chat_template_kwargs": {...}}
 * Everything except messages may be missing; members of the object win over params. The text equals
 * that of transformers' apply_chat_template and has its special tokens spelled out: tokenize it
 * with add_special 0. params may be NULL. *text is the caller's: qn_free(). Errors: QN_ENOENT (the
 * directory has no template), QN_EFORMAT, QN_EINVAL (the template raises an exception),
 * QN_EUNSUPPORTED (the template uses an unknown feature), QN_ELIMIT. */
QN_API int qn_chat_render(const qn_tokenizer *tokenizer, const char *messages_json,
                          const qn_chat_params *params, char **text, size_t *n_text,
                          qn_error *error);

/* A template without a tokenizer: compiled once, rendered from any number of threads. dir is a
 * model directory, or NULL where name is a built-in's or a file's; name as in qn_chat_params. */
typedef struct qn_chat_template qn_chat_template;
QN_API int qn_chat_template_open(const char *dir, const char *name,
                                 qn_chat_template **chat_template, qn_error *error);
QN_API void qn_chat_template_close(qn_chat_template *chat_template);
/* As qn_chat_render. */
QN_API int qn_chat_template_render(const qn_chat_template *chat_template, const char *messages_json,
                                   const qn_chat_params *params, char **text, size_t *n_text,
                                   qn_error *error);

/* ---- answers of a chat -------------------------------------------------------------------- */

/* How a model writes its thoughts and its calls of tools, and which tools it may call.
 * docs/tools.md lists the forms; their names are vLLM's. */
typedef struct qn_answer_params {
    size_t struct_size;
    const qn_chat_template *chat_template; /* its forms hold where a parser below is NULL; may be
                                            * NULL */
    const char *tool_parser;      /* "hermes" ...; "none": no text is a call; NULL: see above */
    const char *reasoning_parser; /* "qwen3" ...; "none": no text is a thought; NULL: see above */
    const char *tools_json;       /* array of tools as in /v1/chat/completions; NULL: none */
    const char *prompt; /* the answered prompt, which may have opened a thought; NULL: unknown */
    uint32_t max_calls; /* further calls are left out; 0: no bound */
} qn_answer_params;
QN_API void qn_answer_params_init(qn_answer_params *params);

typedef struct qn_answer_info {
    size_t struct_size;
    const char *tool_parser, *reasoning_parser; /* those in use; NULL: none. Static */
    int has_special_marks; /* 1: marks are special tokens: skip_special_tokens must be 0 */
    uint32_t id_length;    /* characters that ids of calls must have; 0: any number */
    const char *reasoning_end, *reasoning_gap; /* text that ends a thought which did not end by
                                                * itself, and text between the thought and the rest.
                                                * Static */
} qn_answer_info;
/* Fills *info up to its struct_size, which the caller has set; tokenizer may be NULL. Errors:
 * QN_EINVAL names the unknown parser and lists the known ones. */
QN_API int qn_answer_get_info(const qn_answer_params *params, const qn_tokenizer *tokenizer,
                              qn_answer_info *info, qn_error *error);

enum {
    QN_PIECE_REASONING = 1,
    QN_PIECE_TEXT = 2,
    QN_PIECE_CALL = 3,      /* begins a call: the tool's name */
    QN_PIECE_ARGUMENTS = 4, /* of the last call, JSON */
};

typedef struct qn_piece {
    int kind;
    const char *text; /* [n_text], no NUL; lives until the next qn_answer_read */
    size_t n_text;
} qn_piece;

/* Takes an answer apart while it arrives. The pieces do not depend on where the text is cut. Errors
 * of open: QN_EINVAL, QN_EFORMAT and QN_ELIMIT with the place in tools_json. The caller closes the
 * answer; NULL is allowed. */
typedef struct qn_answer qn_answer;
QN_API int qn_answer_open(const qn_answer_params *params, qn_answer **answer, qn_error *error);
QN_API void qn_answer_close(qn_answer *answer);
/* Reads the next part of the output and lists its pieces; last: no output follows. *pieces lives
 * until the next call. Errors: QN_ENOMEM. */
QN_API int qn_answer_read(qn_answer *answer, const char *text, size_t n_text, int last,
                          const qn_piece **pieces, size_t *n_pieces, qn_error *error);
/* The kind of the next text: QN_PIECE_REASONING, QN_PIECE_TEXT (or a call); 0 while it is unknown
 * whether the answer begins with a thought. */
QN_API int qn_answer_next(const qn_answer *answer);

/* Writes a grammar for QN_STRUCTURED_GRAMMAR that allows only calls, in the model's form and by the
 * tools' schemas. name: the tool that must be called, NULL: any; parallel 1: allows several calls.
 * *grammar is the caller's: qn_free(). Errors: as qn_answer_open; QN_EINVAL (no form, no such
 * tool), QN_EUNSUPPORTED. */
QN_API int qn_answer_grammar(const qn_answer_params *params, const qn_tokenizer *tokenizer,
                             const char *name, int parallel, char **grammar, qn_error *error);

/* ---- engine ------------------------------------------------------------------------------- */

typedef struct qn_engine qn_engine;

/* Called while an engine opens or a program is compiled, with the current stage and its progress
 * (done of total; total 0: unknown). Runs on the caller's thread; the strings live for the call. */
typedef void qn_progress_fn(void *user, const char *stage, uint64_t done, uint64_t total);

typedef struct qn_engine_info {
    size_t struct_size;
    /* Strings live as long as the engine. */
    const char *model, *served_model_name;
    const char *backend; /* "cpu" */
    const char *device;  /* "2 threads, avx512bf16" */
    const char *dtype, *kv_cache_dtype;
    uint32_t n_layers, hidden, intermediate, vocab, n_heads, n_kv_heads, head_dim;
    uint32_t max_model_len, max_num_seqs, max_num_batched_tokens, n_workers;
    uint32_t n_tasks, n_events; /* of the program, all variants */
    /* The memory plan, bytes. */
    uint64_t weight_bytes, kv_cache_bytes, workspace_bytes, other_bytes, total_bytes;
    uint64_t kv_bytes_per_token;
    uint64_t kv_blocks;       /* blocks in the cache */
    uint32_t kv_block;        /* positions per block */
    uint64_t bytes_per_token; /* weights read for one decoded token at batch 1 (the embedding's
                               * one row counted as such) */
    /* Seconds of start-up, by stage. */
    double seconds_model, seconds_compile, seconds_verify, seconds_memory, seconds_weights,
        seconds_tokenizer, seconds_total;
    /* Of models with experts; else 0. */
    uint64_t expert_bytes;      /* weights of one expert of a layer */
    uint32_t experts_per_token; /* of each such layer; bytes_per_token counts this many */
    uint32_t n_expert_layers;
    /* Sums over all iterations so far that only decode: experts whose weights a layer read, and
     * runs of layers with experts. Their quotient is the experts that one such layer reads in one
     * step. */
    uint64_t experts_read, expert_layers_run;
    /* Seconds of start-up: finding or compiling a GPU's kernels, and loading them. */
    double seconds_kernels;
} qn_engine_info;

/* Called once while an engine opens, after the memory plan is made and before any of that memory is
 * allocated (times of later stages are 0). A result other than 0 makes qn_engine_open fail with
 * QN_ECANCELED. */
typedef int qn_plan_fn(void *user, const qn_engine_info *info);

/* What to open. Everything but `model` has a default: 0 or NULL. */
typedef struct qn_engine_params {
    size_t struct_size;
    const char *model;       /* Hugging Face directory */
    const char *program;     /* file written by qn_compile; NULL: compile now */
    const char *tokenizer;   /* directory; NULL: the model's */
    const char *load_format; /* "auto" (safetensors) | "dummy" (config.json only, random weights) |
                              * "dummy-zipf" (whose routers prefer some experts; CPU only) */
    const char *backend;     /* "auto" | "cpu" | "cuda" */
    const char *isa;         /* CPU instruction set: "auto", "ref", "avx2" ... */
    const char *dtype;       /* of the weights: "auto" (the checkpoint's), "float32", "bfloat16",
                              * "float16" */
    const char *kv_cache_dtype;      /* "auto" (that of the weights), "float32", "bfloat16",
                                      * "float16" */
    const char *served_model_name;   /* NULL: `model` */
    uint32_t max_model_len;          /* positions per request, prompt and output; 0: the model's,
                                      * or as many as fit in memory */
    uint32_t max_num_seqs;           /* requests in flight; 0: 8 */
    uint32_t max_num_batched_tokens; /* token rows of one iteration, rounded up to a power of two;
                                      * 0: 128, on a GPU 2048, or max_num_seqs if that is more */
    uint32_t threads;                /* CPU workers; 0: one per core that this process may use */
    uint64_t kv_cache_memory_bytes;  /* 0: on a GPU all that gpu_memory_utilization leaves; on a CPU
                                      * the need of max_num_seqs requests of max_model_len, at most
                                      * 4 GiB, but at least the need of one such request. Requests
                                      * allocate KV blocks as they go, and wait for each other when
                                      * the cache is full */
    double gpu_memory_utilization;   /* share of the device's memory to use at most; 0: 0.9 */
    uint64_t seed;                   /* for requests without a seed of their own */
    qn_progress_fn *progress;        /* may be NULL */
    void *progress_user;
    qn_plan_fn *plan; /* may be NULL */
    void *plan_user;
    uint64_t trace_bytes; /* memory for rings that record, from the first iteration on, which worker
                           * does what and when; 0: no trace, and no cost */
    const char *compile_options; /* "launch=paper,qkv=split": choices about the compiler, for
                                  * experiments (quern compile --help lists them); NULL: none */
    uint32_t max_logprobs; /* most likely tokens that a request may list beside each token, up to
                            * QN_MAX_LOGPROBS: takes 8 bytes each for every position of every
                            * place; CPU only */
    int no_prefix_caching; /* 1: requests do not share KV blocks. The output has the same bits */
    double max_inter_token_latency_ms; /* while requests decode, an iteration takes only as many
                                        * prompt rows as are expected to keep this latency below
                                        * the bound, but for rare trials of more; 0: no bound */
    double linger_ms;   /* how long an idle GPU kernel waits for more requests before it ends, up to
                         * 1,000; 0: 5; below 0: not at all */
    uint32_t max_queue; /* requests that wait for a place; 0: 65536 */
    int enable_return_routed_experts; /* 1: keep the experts of each position for
                                       * qn_request_routed_experts. Takes n_layers *
                                       * experts_per_token * 2 bytes for every position of every
                                       * place, in the host's memory, and turns the prefix cache
                                       * off */
} qn_engine_params;
QN_API void qn_engine_params_init(qn_engine_params *params);

/* Opens an engine: compiles (or reads) the program, verifies it, allocates the memory and loads the
 * weights. After this a request takes memory for its own tokens, texts and form, and no more. The
 * caller closes it. Errors name the file or parameter and what is wrong with it; QN_ELIMIT when
 * memory does not suffice.
 */
QN_API int qn_engine_open(const qn_engine_params *params, qn_engine **engine, qn_error *error);
/* Ends the engine. The caller frees all requests of the engine first: qn_request_free cancels a
 * request that still runs. */
QN_API void qn_engine_close(qn_engine *engine);

/* The engine's tokenizer, owned by the engine; NULL when the directory has none. */
QN_API const qn_tokenizer *qn_engine_tokenizer(const qn_engine *engine);

/* Fills *info up to its struct_size, which the caller has set. Errors: QN_EINVAL (it is not). */
QN_API int qn_engine_get_info(const qn_engine *engine, qn_engine_info *info);

/* How full an engine is at the time of the call. */
typedef struct qn_engine_stats {
    size_t struct_size;
    uint32_t requests_running; /* hold KV blocks */
    uint32_t requests_waiting; /* for a place or for KV blocks */
    /* qn_engine_info.kv_blocks in three parts: blocks of running requests; other blocks whose text
     * a request may begin with (the prefix cache); the rest. */
    uint64_t kv_blocks_held, kv_blocks_cached, kv_blocks_free;
    /* Since the engine was opened. */
    uint64_t preemptions;          /* times that a request gave its KV blocks to others */
    uint64_t prefix_cache_queries; /* prompt tokens of requests that produced a token ... */
    uint64_t prefix_cache_hits;    /* ... and prompt tokens that the prefix cache held */
} qn_engine_stats;
/* Fills *stats up to its struct_size, which the caller has set. Errors: QN_EINVAL (it is not; a
 * child of fork). */
QN_API int qn_engine_get_stats(qn_engine *engine, qn_engine_stats *stats);

/* How fast this machine reads the engine's weights with nothing else to do, in bytes per second:
 * the floor under the time of one token. All workers read all weights, for at least `seconds`.
 * Errors: QN_EBUSY while requests are running. */
QN_API int qn_engine_measure_read(qn_engine *engine, double seconds, double *bytes_per_second,
                                  qn_error *error);

/* Stops or continues recording. May be called at any time. Errors: QN_EINVAL (opened without
 * trace_bytes). */
QN_API int qn_engine_trace_switch(qn_engine *engine, int on, qn_error *error);
/* Writes the contents of the rings as a Perfetto trace (open it in ui.perfetto.dev): a track per
 * worker, flows along events, counters. May be called at any time; on a GPU only while no requests
 * are running. Errors: QN_EINVAL, QN_EIO, QN_EBUSY. */
QN_API int qn_engine_trace_write(qn_engine *engine, const char *path, qn_error *error);

/* ---- requests ----------------------------------------------------------------------------- */

typedef struct qn_request qn_request;

enum {
    QN_RUNNING = 0,
    QN_FINISH_STOP = 1,   /* end-of-sequence token, stop token id or stop string */
    QN_FINISH_LENGTH = 2, /* max_tokens or max_model_len reached */
    QN_FINISH_ABORT = 3,  /* canceled */
    QN_FINISH_ERROR = 4,  /* qn_request_next has said what is wrong */
};

enum {
    QN_MAX_STOP = 16,
    QN_MAX_STOP_TOKEN_IDS = 8,
    QN_MAX_STOP_BYTES = 1024,
    QN_MAX_LOGPROBS = 100,
    QN_MAX_LOGIT_BIAS = 300,
    QN_MAX_CACHE_SPACE = 0x3ffffff0,
};

typedef struct qn_token_logprob {
    int32_t id;
    float logprob; /* natural log */
} qn_token_logprob;

typedef struct qn_logit_bias {
    int32_t id;
    float bias; /* [-100, 100] */
} qn_logit_bias;

/* Kinds of structured_text; docs/structured-outputs.md says what each supports. */
enum {
    QN_STRUCTURED_NONE = 0,
    QN_STRUCTURED_JSON_SCHEMA = 1, /* the output is JSON of this schema */
    QN_STRUCTURED_REGEX = 2,       /* the output matches this from end to end */
    QN_STRUCTURED_GRAMMAR = 3,     /* rules: root ::= "yes" | "no" */
    QN_STRUCTURED_CHOICE = 4,      /* a JSON array of strings: the output is one of them */
};

/* How tokens are chosen; names and order of the steps as in vLLM: structured output, logit_bias,
 * min_tokens, penalties, temperature, min-p, top-k, top-p, then the draw. */
typedef struct qn_sampling_params {
    size_t struct_size;
    float temperature;        /* [0, 100]; 0: greedy */
    float top_p;              /* (0, 1]; 1: off */
    float min_p;              /* [0, 1]; 0: off */
    int32_t top_k;            /* 0 or -1: off */
    float repetition_penalty; /* (0, 100]; 1: off */
    float presence_penalty;   /* [-2, 2]; 0: off */
    float frequency_penalty;  /* [-2, 2]; 0: off */
    uint32_t max_tokens;      /* 0: as many as max_model_len leaves */
    int ignore_eos;
    int has_seed; /* 1: `seed` counts; 0: the engine gives each request one of its own */
    uint64_t seed;
    int skip_special_tokens; /* in the text; 1 unless changed */
    const char *const *stop; /* [n_stop] UTF-8 strings that end the output; not part of the text */
    size_t n_stop;
    const int32_t *stop_token_ids; /* [n_stop_token_ids] */
    size_t n_stop_token_ids;
    uint32_t min_tokens; /* least output tokens: before so many, no stop id is chosen and no stop
                          * string is looked for */
    int include_stop_str_in_output; /* the stop string, or the stop token's text, ends the text */
    uint32_t logprobs; /* most likely tokens to list beside each output token, at most the engine's
                        * max_logprobs; CPU only */
    int has_prompt_logprobs;         /* 1: log-probabilities of the prompt's tokens, too */
    uint32_t prompt_logprobs;        /* ... and so many most likely tokens beside each; CPU only */
    const qn_logit_bias *logit_bias; /* [n_logit_bias] added to the logits of tokens; CPU only */
    size_t n_logit_bias;
    int structured_kind; /* QN_STRUCTURED_...: what the whole output must be. The output ends with
                          * an end-of-sequence token where it is complete, so this excludes
                          * ignore_eos and min_tokens */
    const char *structured_text; /* the schema, regex, grammar or array; NULL: none */
} qn_sampling_params;
/* The defaults of the model's generation_config.json; engine NULL: neutral values (temperature 1,
 * everything off). */
QN_API void qn_sampling_params_init(qn_sampling_params *params, const qn_engine *engine);
/* Whether all numbers are in their ranges, and structured_text can be compiled. Errors: QN_EINVAL
 * and QN_ELIMIT naming the field; of structured_text also QN_EFORMAT (no JSON) and QN_EUNSUPPORTED,
 * with the place in the text. */
QN_API int qn_sampling_params_check(const qn_sampling_params *params, qn_error *error);

/* A prompt: ids, or text (tokenized with the tokenizer's special tokens unless no_special). */
typedef struct qn_prompt {
    size_t struct_size; /* sizeof(qn_prompt) */
    const int32_t *ids; /* [n_ids]; NULL: text */
    size_t n_ids;
    const char *text;
    size_t n_text; /* 0: until the NUL */
    int no_special;
    int32_t priority;     /* the lower, the earlier, as in vLLM; among equal ones spaces take turns,
                           * and within a space the order is that of submission */
    uint32_t cache_space; /* requests share KV blocks only within one space (prefix cache), so their
                           * timing tells nothing about prompts in other spaces: give each user who
                           * must not learn of others a space. Up to QN_MAX_CACHE_SPACE */
} qn_prompt;

/* Queues a request. It starts when one of max_num_seqs places is free. The caller frees it. Errors:
 * QN_EINVAL (empty prompt, id out of range, a sampling parameter out of range, text without a
 * tokenizer), QN_ELIMIT (prompt longer than max_model_len - 1, or with max_tokens more than the KV
 * cache holds), QN_EBUSY (max_queue requests wait, or prompts of 64 Mi tokens). */
QN_API int qn_request_submit(qn_engine *engine, const qn_prompt *prompt,
                             const qn_sampling_params *sampling, qn_request **request,
                             qn_error *error);

/* One step of a request's output. */
typedef struct qn_output {
    size_t struct_size;
    int32_t id;       /* the token; -1: none, the request ended without another one */
    float logprob;    /* its natural log-probability */
    const char *text; /* the text that this token made certain, whole UTF-8 characters, "" if
                       * nothing yet; lives until the next call for this request */
    size_t n_text;
    int32_t finish_reason;       /* QN_RUNNING or, with the last token, QN_FINISH_... */
    const char *stop;            /* the stop string that was found, NULL: none; lives like text */
    uint64_t time_ns;            /* when the token was seen, CLOCK_MONOTONIC; tokens seen at once
                                  * are spread over the time since the one before */
    const qn_token_logprob *top; /* [n_top] the most likely tokens in this one's place, descending,
                                  * equal ones by id; lives as long as the request */
    size_t n_top;
    int32_t stop_token_id; /* which of stop_token_ids ended it; -1: none, and for the model's own
                            * end-of-sequence token */
} qn_output;

/* Waits for the next token: timeout_ms < 0 for as long as it takes, 0 not at all. The caller sets
 * out->struct_size. After the last token every call gives id -1 and the same finish_reason. Errors:
 * QN_EBUSY (no output yet), QN_EINVAL (struct_size is not set; a child of fork), QN_ESTALL and
 * QN_EDEVICE (the engine is broken), QN_EIO (a file of the model shrank), QN_EFORMAT (the model's
 * logits are not numbers) and the errors that end a queued request. All of these but the first two
 * end the request with QN_FINISH_ERROR, and every later call returns the same error. */
QN_API int qn_request_next(qn_request *request, int timeout_ms, qn_output *out, qn_error *error);

/* Ends a request early; its next output has finish_reason QN_FINISH_ABORT and no token, whatever
 * was pending. */
QN_API void qn_request_cancel(qn_request *request);

/* QN_RUNNING until qn_request_next has given the last token. */
QN_API int qn_request_finish_reason(const qn_request *request);
/* "stop", "length", "abort", "error"; NULL while running. Static. */
QN_API const char *qn_finish_reason_text(int finish_reason);

/* The prompt as ids; owned by the request. */
QN_API const int32_t *qn_request_prompt_ids(const qn_request *request, size_t *n);

/* The log-probabilities of the prompt's tokens, available with the first output token: logprobs[n],
 * top[n][n_top], with the n of qn_request_prompt_ids. The first token has none: NaN, ids -1. The
 * arrays live as long as the request. Errors: QN_EINVAL (not requested), QN_EBUSY (no output token
 * yet).
 */
QN_API int qn_request_prompt_logprobs(qn_request *request, const float **logprobs,
                                      const qn_token_logprob **top, size_t *n_top, qn_error *error);

enum { QN_NO_EXPERT = 0xffff };
/* The experts that the tokens of an ended request were sent to, as in vLLM and SGLang:
 * experts[n_positions][n_layers][experts_per_token], the ids of a layer ascending; a layer without
 * experts has QN_NO_EXPERT. One position for each token of prompt and output but the last one,
 * which no layer has seen; none if the request made no token. The array lives as long as the
 * request. Errors: QN_EINVAL (the engine was opened without enable_return_routed_experts), QN_EBUSY
 * (the request has not ended). */
QN_API int qn_request_routed_experts(qn_request *request, const uint16_t **experts,
                                     size_t *n_positions, qn_error *error);

/* Token counts of a request. */
typedef struct qn_request_stats {
    size_t struct_size;
    uint32_t prompt_tokens, output_tokens; /* output: returned by qn_request_next */
    uint32_t cached_tokens; /* prompt tokens found in the prefix cache; known with the first output
                             * token */
    uint32_t preemptions;   /* times that it gave its KV blocks to others and went on later */
} qn_request_stats;
/* Fills *stats up to its struct_size, which the caller has set. Errors: QN_EINVAL (it is not). */
QN_API int qn_request_get_stats(const qn_request *request, qn_request_stats *stats);

/* Frees a request in any state (cancels it first); NULL is allowed. */
QN_API void qn_request_free(qn_request *request);

/* For programs that serve many requests from one thread: waits until some request of the engine has
 * an output, an end or an error. Lists at most `capacity` such requests in ready[0, *n_ready), the
 * least recently read first; then call qn_request_next(.., 0, ..) for each. Returns at once while
 * there is such a request. The list may hold a request that another thread frees meanwhile. Errors:
 * as qn_request_next; *n_ready is 0 then. */
QN_API int qn_engine_wait_any(qn_engine *engine, int timeout_ms, qn_request **ready,
                              size_t capacity, size_t *n_ready, qn_error *error);
/* For event loops: a file descriptor (an eventfd) that is readable while qn_engine_wait_any would
 * return at once. The engine owns it: the caller must not read, write or close it. From the first
 * call on, a thread of the engine maintains it. Errors: a negative QN_E... code. */
QN_API int qn_engine_fd(qn_engine *engine, qn_error *error);

/* qn_engine_wait_any without the list. */
QN_API int qn_engine_wait(qn_engine *engine, int timeout_ms, qn_error *error);

/* ---- compiler ----------------------------------------------------------------------------- */

/* Compiles the model that params name and writes the program to `path`. A plain file is replaced
 * atomically and keeps its mode; a link, a device or a FIFO is written through and stays what it
 * is. */
QN_API int qn_compile(const qn_engine_params *params, const char *path, qn_error *error);

/* What the compiler did: a JSON object with operators, tasks and events after every stage of every
 * variant, normalization overhead, page use, memory plan and compile time. *json is the caller's:
 * qn_free(). With params->program the statistics are those of that file. */
QN_API int qn_inspect(const qn_engine_params *params, char **json, qn_error *error);

/* The text of one stage ("kernel", "decompose" ... "place", "program") of the variant with n_rows
 * token rows (0: the smallest). *text is the caller's: qn_free(). Errors: QN_EINVAL names the
 * stages that exist. */
QN_API int qn_graph_dump(const qn_engine_params *params, const char *stage, uint32_t n_rows,
                         char **text, qn_error *error);

typedef struct qn_graph_params {
    size_t struct_size;
    const char *stage;  /* "kernel" (NULL), "decompose" ... "transport"; "tasks", "events" and
                         * "program"  are the last one under the program's numbers */
    const char *format; /* "text" (NULL), "dot", "json", "html" */
    uint32_t n_rows;    /* variant; 0: the smallest */
    int32_t layer;      /* only this layer and what touches it; -1: all */
    int diff;           /* 1: what the stage changed against the stage before (text and json) */
} qn_graph_params;
QN_API void qn_graph_params_init(qn_graph_params *params);

/* Any stage of the compiler as nodes and edges, with regions and bytes. *text is the caller's:
 * qn_free(). With params->program (and no model, or the one it fits) the graph is that of the file,
 * which holds only "kernel" and the last stage. Errors: QN_EINVAL names the known stages, variants
 * or formats. */
QN_API int qn_graph(const qn_engine_params *params, const qn_graph_params *graph, char **text,
                    qn_error *error);

/* One object of the program, what = "task:17", "event:3" or "tensor:NAME": its origin, what it
 * waits for, and what waits for it. n_rows 0: the first variant that has it; format "text" or
 * "json". With params->program (and no model, or the one it fits) the object is that of the file.
 * *text is the caller's: qn_free(). Errors: QN_EINVAL. */
QN_API int qn_explain(const qn_engine_params *params, const char *what, uint32_t n_rows,
                      const char *format, char **text, qn_error *error);

typedef struct qn_profile_params {
    size_t struct_size;
    uint32_t batch_size, input_len, output_len; /* requests at once, tokens in and out of each */
    const char *trace;                          /* file for the trace; NULL: none */
} qn_profile_params;
QN_API void qn_profile_params_init(qn_profile_params *params);

/* Opens an engine, runs a batch with and without recording, and accounts for the time of a decode
 * iteration: per operator, waits, critical path, the largest losses. *json is the account, *html
 * (html may be NULL) a self-contained page; both are the caller's: qn_free(). profile may be NULL.
 * Errors: as qn_engine_open; QN_EUNSUPPORTED where the backend records nothing. */
QN_API int qn_profile(const qn_engine_params *params, const qn_profile_params *profile, char **json,
                      char **html, qn_error *error);

/* Proves that the program of params (params->program, else the model's, compiled now) is right:
 * QN_OK and a one-line summary, or QN_EVERIFY with the offending pair of tasks in error->message.
 * *summary (may be NULL) is the caller's: qn_free(). */
QN_API int qn_verify(const qn_engine_params *params, char **summary, qn_error *error);

/* Reads the text of an operator (docs/superoptimizer.md). *text lists its arguments, outputs, dims
 * and normal forms; it is the caller's: qn_free(). Errors: QN_EFORMAT and QN_ELIMIT with file, line
 * and column. */
QN_API int qn_op_check(const char *path, char **text, qn_error *error);

enum { QN_OP_EQUAL = 0, QN_OP_DIFFERENT = 1, QN_OP_UNDECIDED = 2 };

/* Whether two operator texts mean the same. Both need the same arguments and outputs by name. *text
 * is one line with the reason: where they differ, or what was not decided. *rounding (may be NULL):
 * for equal texts a line on their errors in float32 against double, else NULL. Both are the
 * caller's: qn_free(). Errors: as qn_op_check; QN_EINVAL where the arguments are not the same. */
QN_API int qn_op_prove(const char *path_a, const char *path_b, int *verdict, char **text,
                       char **rounding, qn_error *error);

typedef struct qn_op_search_params {
    size_t struct_size;
    uint32_t n_tasks;   /* tasks of a graph: 1 or 2 */
    uint32_t n_threads; /* of the search; its result does not depend on them */
    uint32_t n_graphs;  /* at most so many are returned */
    const char *sizes;  /* "h=4096,i=6144": sizes of dims for the cost model; NULL: by rule */
    const char *format; /* "text" (NULL), "json" */
} qn_op_search_params;
QN_API void qn_op_search_params_init(qn_op_search_params *params);

/* Block graphs for an operator text, cheapest first, each proved equal to it
 * (docs/superoptimizer.md). params may be NULL. *text is the caller's: qn_free(). Errors: as
 * qn_op_check; QN_EINVAL; QN_EUNSUPPORTED for operators that the search does not know. */
QN_API int qn_op_search(const char *path, const qn_op_search_params *params, char **text,
                        qn_error *error);

/* Draws a block graph: that of the file, or the cheapest one found for the file's operator. format:
 * "text" (NULL), "dot", "html" (a self-contained page). *text is the caller's: qn_free(). Errors:
 * as qn_op_search; QN_EVERIFY for a graph that breaks a rule. */
QN_API int qn_op_show(const char *path, const char *format, char **text, qn_error *error);

/* Versions, processor, memory and devices as a JSON object. *json is the caller's: qn_free(). */
QN_API int qn_environment(char **json, qn_error *error);

#ifdef __cplusplus
}
#endif
#endif
