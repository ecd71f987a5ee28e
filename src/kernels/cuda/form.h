/* form.h - the ids of form.def's entries: what a task descriptor's `form` says. For the host and
 * for device code. */
#ifndef QN_CUDA_FORM_H
#define QN_CUDA_FORM_H

enum cuda_form {
    FORM_STOP, /* no task's: the launch ends */
#define ENTRY(name, ...) FORM_##name,
#include "kernels/cuda/form.def"
    FORM_DROP, /* no task's: pages that were streamed for nothing */
    N_FORMS
};

#endif
