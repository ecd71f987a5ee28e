/* op_case.h - one operator of a program, run and compared: fills the inputs of an iteration, runs
 * it on a device or on the CPU backend's kernels, and holds the memory to the plain interpreter.
 *
 * What is compared, for each iteration:
 *
 *   results    every number that the operator gives for a row that exists
 *   reads      all that the row of op.def does not say the operator reads is no number
 *   writes     all bytes that the row does not say it writes are as they were: the workspace, the
 *              other rows of the KV cache, the weights, and a guard behind each
 *   one task   the same with a single task of the operator: its own tile is read, and written
 */
#ifndef QN_TESTS_DEVICE_OP_CASE_H
#define QN_TESTS_DEVICE_OP_CASE_H

#include "device/device_rig.h"
#include "device/op_program.h"

/* A program of one-operator variants where it runs. */
struct op_rig {
    struct op_program program;
    struct test_device *device; /* NULL: on the CPU backend's kernels */
    struct device_program loaded;
    uint32_t n_kv_blocks;
    /* Memory for op_case_run; sizes with guards. */
    uint64_t workspace_bytes, kv_bytes, weight_bytes, state_bytes;
    struct device_memory before, after; /* of `before` workspace and kv */
    uint8_t *written;                   /* [workspace_bytes] 1: the operator may write the byte */
    uint8_t *ours;                      /* [kv_bytes] the same of the cache */
    uint64_t digest; /* of the results of the last op_case_run: the same bits, the same digest */
};

/* device NULL: the CPU. To be closed also after an error. */
int op_rig_open(struct diag *d, struct test_device *device, const struct model_spec *spec,
                const struct op_machine *machine, const struct op_variant *variants, uint32_t n,
                uint32_t n_kv_blocks, struct op_rig *out);
void op_rig_close(struct op_rig *r);

/* Runs it->variant with it->requests and compares. alone: also a single task. Errors: QN_EVERIFY
 * with the first difference. */
int op_case_run(struct diag *d, struct op_rig *r, struct iteration *it, bool alone);

#endif
