/* why.c - see why.h. */
#include "inspect/why.h"
#include "base/checked.h"
#include "codegen/cuda_form.h"

static json_t *text_or_null(const char *text) {
    return text != NULL ? json_string(text) : json_null();
}

static json_t *us_of(double ns) {
    return ns < 0 ? json_null() : json_real(ns / 1000);
}

json_t *why_choices(const struct plan_variant *plan) {
    const struct plan_choice *choices[] = {&plan->attention, &plan->qkv, &plan->linear,
                                           &plan->experts};
    json_t *list = json_array();
    for (size_t i = 0; i < COUNT_OF(choices); i++) {
        const struct plan_choice *c = choices[i];
        if (c->n == 0) continue;
        json_t *ways = json_array();
        for (uint32_t w = 0; w < c->n; w++)
            json_array_append_new(ways, json_pack("{s:s, s:b, s:o, s:o}", "operators",
                                                  c->ways[w].operators, "taken",
                                                  (int)(w == c->taken), "us", us_of(c->ways[w].ns),
                                                  "why_not", text_or_null(c->ways[w].why_not)));
        json_array_append_new(
            list, json_pack("{s:s, s:s, s:o}", "what", c->what, "why", c->why, "ways", ways));
    }
    return list;
}

/* Whether the list already has an operator of this kind whose products are as long. */
static bool is_there(const json_t *list, const struct prog_op *op) {
    size_t i;
    json_t *o;
    json_array_foreach(list, i, o) {
        const char *name = json_string_value(json_object_get(o, "operator"));
        if (op_find(name) == (enum op_kind)op->kind &&
            json_integer_value(json_object_get(o, "k")) == (json_int_t)op->k)
            return true;
    }
    return false;
}

static json_t *stand_ins_of(const struct cuda_form_host *host, uint32_t entry) {
    const char *names[CUDA_FORM_ROWS];
    const uint32_t n = cuda_form_stand_ins(host, entry, names);
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++) json_array_append_new(list, json_string(names[i]));
    return list;
}

static json_t *forms_of(const struct cuda_form_host *host, const struct prog_task *task,
                        uint32_t context) {
    struct cuda_form_row rows[CUDA_FORM_ROWS];
    const uint32_t n = cuda_form_list(host, task, context, rows);
    json_t *list = json_array();
    for (uint32_t i = 0; i < n; i++) {
        const struct cuda_form_row *r = &rows[i];
        json_array_append_new(list,
                              json_pack("{s:s, s:s, s:b, s:o, s:o, s:o}", "form", r->name, "code",
                                        cuda_entry_name(r->entry), "taken", (int)r->taken, "us",
                                        us_of(r->ns), "why_not", text_or_null(r->why_not),
                                        "stand_ins", stand_ins_of(host, r->entry)));
    }
    return list;
}

static uint32_t tasks_of(const struct prog_header *p, const struct prog_variant *v, uint32_t op) {
    uint32_t n = 0;
    for (uint32_t t = v->first_task; t < v->first_task + v->n_tasks; t++)
        n += PROG(p, TASK)[t].op == op;
    return n;
}

json_t *why_forms(const struct prog_header *p, const struct prog_variant *v,
                  const struct device *device) {
    json_t *list = json_array();
    if (p->target != TARGET_CUDA || device->kind != DEVICE_CUDA) return list;
    const struct cuda_form_host host = cuda_form_host_of(p, device);
    for (uint32_t t = v->first_task; t < v->first_task + v->n_tasks; t++) {
        const struct prog_task *task = &PROG(p, TASK)[t];
        if (task->op == PROG_NONE) continue;
        const struct prog_op *op = &PROG(p, OP)[task->op];
        if (is_there(list, op)) continue;
        json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:o}", "operator", op_name(op->kind),
                                              "k", (json_int_t)op->k, "tasks",
                                              (json_int_t)tasks_of(p, v, task->op), "forms",
                                              forms_of(&host, task, v->context)));
    }
    return list;
}
