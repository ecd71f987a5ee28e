/* notifier.h - a file descriptor that is readable while some request of the engine has something to
 * give, for programs that wait for many things at once.
 *
 * It is an eventfd, whose number is 1 while the list of ready requests is not empty or the engine
 * is broken, else 0. The thread that changes the list keeps the number. For that, a thread moves
 * tokens out of the runtime's slots; it exists from the first qn_engine_fd on.
 */
#ifndef QN_ENGINE_NOTIFIER_H
#define QN_ENGINE_NOTIFIER_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct qn_engine;

struct notifier {
    int fd; /* valid while `running` */
    bool running;
    bool shown;       /* the number is 1 */
    bool broken;      /* it stays 1 */
    uint32_t closing; /* atomic */
    pthread_t thread;
};

/* With the engine's mutex held: shows whether a request is ready. */
void notifier_show(struct notifier *n, bool ready);
/* Ends the thread and closes the descriptor. Before the backend is closed. */
void notifier_close(struct notifier *n);

#endif
