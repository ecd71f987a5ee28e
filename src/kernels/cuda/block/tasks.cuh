/* tasks.cuh - which task of the iteration a block runs next. Control and the loader call these
 * functions. tasks_aot.cuh defines them for programs that have only AOT tasks, tasks_jit.cuh for
 * programs that have JIT tasks (QN_JIT: --compile-options launch=).
 */
#ifndef QN_CUDA_BLOCK_TASKS_CUH
#define QN_CUDA_BLOCK_TASKS_CUH

#include "kernels/cuda/block/block.cuh"

struct control;
struct loader;

/* Whether the loader reads control's messages, too, instead of the block's list. */
enum { LOADER_FOLLOWS = QN_JIT };

/* Whether a block guesses the next iteration. It does not if it might claim another task of this
 * one, nor if all messages must be done in between. */
enum { AHEAD = !QN_JIT && !QN_EACH_ARRIVES };

/* Runs the block's tasks of the iteration that control has entered: announces each to the compute
 * warps and says when its event is activated. Returns early if the launch ends. */
DEV void control_tasks(struct control *c);

/* Between two iterations: whether control has claimed a task. */
DEV bool control_claims(struct control *c);

/* Tells the loader that control has entered an iteration, after the one `before`. */
DEV void control_tell_loader(struct control *c, uint32_t before);

/* Waits until the loader no longer reads anything of the iteration before. All tasks of that
 * iteration are done, so nothing keeps the loader from the end of its list, or of its messages. */
DEV void control_wait_loader(struct control *c);

/* The loader's: streams the pages of task after task, until it is told to leave. */
DEV void loader_tasks(struct loader *l);

#endif
