/* recipe.h - a program's weights from a checkpoint: the parts that its blocks are made of. */
#ifndef QN_ENGINE_RECIPE_H
#define QN_ENGINE_RECIPE_H

#include "model/weights.h"
#include "task/program.h"

/* Loads every tensor of every part of every block. weights_at(*out, i) is the i-th tensor, counted
 * over SECTION_PART; without stacks i is the index there. For a CPU the parts of a block follow
 * each other in memory, so that the first part's address is the block's. The tensors of a stack lie
 * each by itself. A GPU's images are made of the tensors on the device. files NULL: dummy weights.
 * Errors: as weights_load's. */
int recipe_load(struct diag *d, const struct prog_header *program, const struct safetensors *files,
                const struct weights_options *options, struct weights **out);

/* Tensors of all parts. */
uint64_t recipe_tensors(const struct prog_header *program);

#endif
