#include "device/op_test.h"

const uint32_t one_row[] = {1, 0}, few_rows[] = {2, 8, 9, 16, 0}, many_rows[] = {64, 128, 0},
               tile_rows[] = {17, 32, 64, 96, 128, 0},
               any_rows[] = {1, 2, 8, 9, 16, 17, 32, 64, 128, 0},
               eights_and_odd[] = {2, 8, 9, 16, 17, 32, 64, 128, 0},
               up_to_16[] = {1, 2, 8, 9, 16, 0}, up_to_32[] = {2, 9, 17, 32, 0},
               up_to_128[] = {2, 17, 32, 100, 0}, nine_rows[] = {9, 0},
               decode_only_rows[] = {17, 64, 96, 0}, rows_of_bands[] = {17, 64, 0},
               tiles_of_128[] = {72, 128, 136, 200, 0}, grouped_rows[] = {1, 9, 40, 128, 200, 0},
               rows_of_stretches[] = {131, 250, 0};

#define OP(ID, name, ...) [OP_##ID] = &op_test_##name,
static const struct op_test *const tests[N_OP_KINDS] = {
#include "graph/op.def"
};
#undef OP

const struct op_test *op_test_of(enum op_kind kind) {
    return tests[kind];
}
