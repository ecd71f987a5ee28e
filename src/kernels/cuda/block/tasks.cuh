/* tasks.cuh - which task of the iteration a block runs next. Control and the loader ask here;
 * tasks_aot.cuh answers in images of programs whose tasks all have a worker, tasks_jit.cuh in those
 * of programs that hand some out at run time (QN_JIT: --compile-options launch=).
 */
#ifndef QN_CUDA_BLOCK_TASKS_CUH
#define QN_CUDA_BLOCK_TASKS_CUH

#include "kernels/cuda/block/block.cuh"

struct control;
struct loader;

/* Whether the loader reads control's messages, too, instead of the block's list. */
enum { LOADER_FOLLOWS = QN_JIT };

/* Whether a block guesses the next iteration: not if it might claim another task of this one, nor
 * if all messages must be done in between. */
enum { AHEAD = !QN_JIT && !QN_EACH_ARRIVES };

/* Runs the block's tasks of the iteration that control has entered: announces each to the compute
 * warps and says when its event is activated. Returns early if the launch ends. */
DEV void control_tasks(struct control *c);

/* Between two iterations: whether control has claimed a task. */
DEV bool control_claims(struct control *c);

/* Tells the loader that control has entered an iteration, after the one `before`. */
DEV void control_tell_loader(struct control *c, uint32_t before);

/* Waits until the loader reads nothing of the iteration before any more. All tasks of it are done,
 * so nothing keeps the loader from the end of its list, or of its messages. */
DEV void control_wait_loader(struct control *c);

/* The loader's: streams the pages of task after task, until it is told to leave. */
DEV void loader_tasks(struct loader *l);

#endif
