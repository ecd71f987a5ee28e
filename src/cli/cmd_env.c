/* cmd_env.c - quern env: facts about the machine for problem reports. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

static void print_words(const json_t *array) {
    size_t i;
    json_t *word;
    json_array_foreach((json_t *)(uintptr_t)array, i, word)
        printf("%s%s", i ? " " : "", json_string_value(word));
    putchar('\n');
}

static void print_value(const char *prefix, const char *key, const json_t *value) {
    if (json_is_object(value)) {
        const char *inner;
        json_t *v;
        json_object_foreach((json_t *)(uintptr_t)value, inner, v) print_value(key, inner, v);
        return;
    }
    char name[64];
    snprintf(name, sizeof name, "%s%s%s", prefix, prefix[0] ? " " : "", key);
    for (char *c = name; *c; c++)
        if (*c == '_') *c = ' ';
    printf("%-22s ", name);
    if (json_is_string(value))
        printf("%s\n", json_string_value(value));
    else if (json_is_integer(value))
        printf("%lld\n", (long long)json_integer_value(value));
    else if (json_is_array(value))
        print_words(value);
    else
        printf("%s\n", json_is_true(value) ? "yes" : json_is_false(value) ? "no" : "-");
}

int cmd_env(const struct options *o) {
    char *text;
    qn_error error;
    if (qn_environment(&text, &error) != QN_OK) return cli_failed(&error);
    json_t *root = json_loads(text, 0, NULL);
    qn_free(text);
    if (!root || cli_wants_json(o)) return cli_print_json(root);
    print_value("", "", root);
    json_decref(root);
    return EXIT_OK;
}
