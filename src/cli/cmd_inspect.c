/* cmd_inspect.c - quern inspect: the compiler's results for a model, as a table or as JSON. */
#include "cli/cli.h"

#include <stdio.h>

static double number(const json_t *o, const char *key) {
    return json_number_value(json_object_get(o, key));
}

static long long whole(const json_t *o, const char *key) {
    return (long long)json_integer_value(json_object_get(o, key));
}

static void print_stages(const json_t *variant) {
    size_t i;
    json_t *stage;
    json_array_foreach(json_object_get(variant, "stages"), i, stage)
        printf("  %-12s %9lld %9lld %9lld %9lld\n",
               json_string_value(json_object_get(stage, "stage")), whole(stage, "tasks"),
               whole(stage, "dummies"), whole(stage, "events"), whole(stage, "jit_tasks"));
}

static void print_rows(const json_t *variant) {
    printf("\n%lld token rows%s of up to %lld positions: ", whole(variant, "rows"),
           json_is_true(json_object_get(variant, "decode_only")) ? ", each of another request,"
                                                                 : "",
           whole(variant, "context"));
}

static void print_variant(const json_t *variant) {
    const json_t *normal = json_object_get(variant, "normalization");
    char weights[32], activations[32];
    print_rows(variant);
    printf("%lld operators, weights %s, activations %s\n", whole(variant, "operators"),
           cli_bytes((uint64_t)whole(variant, "weight_bytes"), weights),
           cli_bytes((uint64_t)whole(variant, "activation_bytes"), activations));
    printf("  %-12s %9s %9s %9s %9s\n", "stage", "tasks", "dummies", "events", "JIT");
    print_stages(variant);
    printf("  normalization adds %.2f %% tasks; %lld dependent pairs became %lld events\n",
           number(normal, "overhead_percent"), whole(variant, "pairs"), whole(variant, "events"));
}

/* One of several implementations: "* " if it was chosen, its cost, or what it lacks. */
static void print_way(const json_t *way, const char *name) {
    const char *why_not = json_string_value(json_object_get(way, "why_not"));
    printf("    %s %-44s ", json_is_true(json_object_get(way, "taken")) ? "*" : " ",
           json_string_value(json_object_get(way, name)));
    if (why_not != NULL)
        printf("not possible: %s\n", why_not);
    else if (json_is_null(json_object_get(way, "us")))
        puts("         ? us");
    else
        printf("%10.1f us\n", number(way, "us"));
    size_t i;
    json_t *other;
    json_array_foreach(json_object_get(way, "stand_ins"), i, other) if (why_not == NULL)
        printf("        %s may stand in\n", json_string_value(other));
}

static void print_why(const json_t *variant) {
    const char *why = json_string_value(json_object_get(variant, "why"));
    size_t i, k;
    json_t *item, *way;
    print_rows(variant);
    puts(why != NULL ? why : "its choices are not in the program's file");
    json_array_foreach(json_object_get(variant, "choices"), i, item) {
        printf("  %s: %s\n", json_string_value(json_object_get(item, "what")),
               json_string_value(json_object_get(item, "why")));
        json_array_foreach(json_object_get(item, "ways"), k, way) print_way(way, "operators");
    }
    json_array_foreach(json_object_get(variant, "forms"), i, item) {
        printf("  %s, %lld tasks", json_string_value(json_object_get(item, "operator")),
               whole(item, "tasks"));
        if (whole(item, "k") != 0) printf(", products of %lld", whole(item, "k"));
        puts("");
        json_array_foreach(json_object_get(item, "forms"), k, way) print_way(way, "code");
    }
}

static void print_head(const json_t *root) {
    const json_t *program = json_object_get(root, "program");
    const json_t *memory = json_object_get(root, "memory_plan");
    const json_t *time = json_object_get(root, "compile_time");
    char a[32], b[32], c[32], d[32];
    printf("%s for %s, %lld workers, %lld requests of %lld positions\n",
           json_string_value(json_object_get(root, "model")),
           json_string_value(json_object_get(root, "target")), whole(root, "n_workers"),
           whole(root, "max_num_seqs"), whole(root, "max_model_len"));
    printf("program     %s, %lld variants, %lld tasks, %lld events, %lld tensors\n",
           cli_bytes((uint64_t)whole(program, "bytes"), a), whole(program, "variants"),
           whole(program, "tasks"), whole(program, "events"), whole(program, "tensors"));
    printf("memory      %s: weights %s, KV cache %s, workspace %s\n",
           cli_bytes((uint64_t)whole(memory, "total_bytes"), a),
           cli_bytes((uint64_t)whole(memory, "weight_bytes"), b),
           cli_bytes((uint64_t)whole(memory, "kv_cache_bytes"), c),
           cli_bytes((uint64_t)whole(memory, "workspace_bytes"), d));
    if (json_is_object(time))
        printf("compiled in %.3f s, %.3f s of it for the proof\n", number(time, "total_s"),
               number(time, "verify_s"));
}

int cmd_inspect(const struct options *o) {
    qn_engine_params params;
    qn_error error;
    char *text;
    int rc = cli_engine_params(o, &params);
    if (rc != EXIT_OK) return rc;
    params.progress = NULL; /* the result appears at once */
    if (qn_inspect(&params, &text, &error) != QN_OK) return cli_failed(&error);
    json_t *root = json_loads(text, 0, NULL);
    qn_free(text);
    if (!root || cli_wants_json(o)) return cli_print_json(root);
    print_head(root);
    size_t i;
    json_t *variant;
    json_array_foreach(json_object_get(root, "variants"), i, variant) {
        if (options_flag(o, OPT_WHY))
            print_why(variant);
        else
            print_variant(variant);
    }
    json_decref(root);
    return EXIT_OK;
}
