/* protocol.pml - a Spin model of the runtime's protocol (rt_worker.h, rt_sched.h, rt_boundary.h):
 * event counters, the scheduler role with its event queue, JIT queues with stealing, overflow lists,
 * the iteration boundary, idling on the doorbell, and the end.
 *
 *   spin -a protocol.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan        (tests/runtime/spin.sh)
 *
 * Two workers, one scheduler, queues of CAP_JIT and CAP_SCHED entries, and one of two programs:
 *
 *   GRAPH 1   E0 ─┬─ T0 AOT w0 ─┬─ E1 ─┬─ T2 JIT ── E2 ── T4 AOT w1 ─┬─ E3 ─┬─ T5 JIT ─┬─ E4 = end
 *   serves        └─ T1 JIT ────┘      └─ T3 JIT ────────────────────┘      └─ T6 JIT ─┘
 *
 *   GRAPH 2   E0 ─┬─ T0 AOT w0 ─ E1 ─ T3 JIT ─┐             (fills queues, overflow lists)
 *   until         ├─ T1 JIT ──── E2 ─ T4 JIT ─┼─ E4 ─ T6 AOT w1 ─ E5 = end
 *   idle          └─ T2 JIT ──── E3 ─ T5 JIT ─┘
 *
 * Each primitive of rt_sync.h is one step; a queue's push and pop are one step each (the queue itself
 * is modelled in queue.pml). A poller that finds nothing is blocked here until something that it
 * polls changes, so a lost task, a lost event, a lost wake-up or a deadlock is an invalid end state.
 * Memory is sequentially consistent in Spin: what the orders must be is argued in docs/runtime.md and
 * tested under ThreadSanitizer.
 *
 * Checked: every task runs exactly once per iteration, after its event is activated, in the
 * iteration that runs; one worker at the boundary at a time, with no task running and all queues
 * empty; every counter exact there; every request is served; everybody ends.
 */
#ifndef CAP_JIT
#define CAP_JIT 1
#endif
#ifndef CAP_SCHED
#define CAP_SCHED 1
#endif
#ifndef GRAPH
#define GRAPH 1
#endif
#define UNTIL_IDLE (GRAPH == 2)

#define REQUESTS 2 /* one iteration each; both may fall into one */
#define JIT      9
#define NONE     99

#define START 0 /* phases */
#define RUN   1
#define IDLE  2

#define N_TASKS 7
#if GRAPH == 1
#define N_EVENTS 5
#define END      4
byte wait[N_TASKS] = { 0, 0, 1, 1, 2, 3, 3 };
byte trig[N_TASKS] = { 1, 1, 2, 3, 3, 4, 4 };
byte place[N_TASKS] = { 0, JIT, JIT, JIT, 1, JIT, JIT };
byte n_trig[N_EVENTS] = { 1, 2, 1, 2, 2 };
byte first[N_EVENTS] = { 0, 2, 4, 5, 7 };
byte past[N_EVENTS] = { 2, 4, 5, 7, 7 };
byte n_jit[N_EVENTS] = { 1, 2, 0, 2, 0 };
byte aot[2] = { 0, 4 }; /* each worker's list: one task */
#else
#define N_EVENTS 6
#define END      5
byte wait[N_TASKS] = { 0, 0, 0, 1, 2, 3, 4 };
byte trig[N_TASKS] = { 1, 2, 3, 4, 4, 4, 5 };
byte place[N_TASKS] = { 0, JIT, JIT, JIT, JIT, JIT, 1 };
byte n_trig[N_EVENTS] = { 1, 1, 1, 1, 3, 1 };
byte first[N_EVENTS] = { 0, 3, 4, 5, 6, 7 };
byte past[N_EVENTS] = { 3, 4, 5, 6, 7, 7 };
byte n_jit[N_EVENTS] = { 2, 1, 1, 1, 0, 0 };
byte aot[2] = { 0, 6 };
#endif

/* shared state */
byte counter[N_EVENTS];
byte link_of[N_EVENTS];
byte published, phase = START, stop, tail, idle_bell;
chan evq = [CAP_SCHED] of { byte };
chan jit[2] = [CAP_JIT] of { byte };
bool lock, pending;
byte cnext, cend, to; /* the scheduler's cursor, under the lock */

/* the boundary's own */
byte taken, left, iteration, served;

/* ghosts: only assertions read them */
byte runs[N_TASKS], running, at_boundary;
bool ran; /* an iteration has run since the last boundary */

#define ready(e) (counter[e] >= n_trig[e] * iteration)

inline sched_step() {
    if
    :: pending || len(evq) > 0 ->
        if
        :: atomic { !lock -> lock = true }
            moved = true;
            if
            :: cnext >= cend ->
                if
                :: atomic { len(evq) > 0 -> evq?ev; cnext = first[ev]; cend = past[ev] }
                :: len(evq) == 0 -> moved = false
                fi
            :: else
            fi;
            do
            :: moved && cnext < cend && place[cnext] == JIT ->
                if
                :: atomic { len(jit[to]) < CAP_JIT -> jit[to]!cnext; to = 1 - to; cnext++ }
                :: atomic { len(jit[to]) == CAP_JIT -> to = 1 - to }
                    if
                    :: atomic { len(jit[to]) < CAP_JIT -> jit[to]!cnext; to = 1 - to; cnext++ }
                    :: len(jit[to]) == CAP_JIT -> break
                    fi
                fi
            :: moved && cnext < cend && place[cnext] != JIT -> cnext++
            :: !moved || cnext >= cend -> break
            od;
            pending = cnext < cend;
            lock = false
        :: lock -> skip
        fi
    :: else
    fi
}

inline offer(e) {
    if
    :: atomic { len(evq) < CAP_SCHED -> evq!e }
    :: atomic { len(evq) == CAP_SCHED -> link_of[e] = overflow; overflow = e }
    fi;
    sched_step()
}

/* The counter's step and the look at its old value are one fetch-and-add. */
inline trigger(e, goal) {
    atomic { counter[e]++; activated = (counter[e] == goal) };
    if
    :: activated && e == END -> boundary = true
    :: activated && e != END && n_jit[e] > 0 -> offer(e)
    :: else
    fi
}

inline check_iteration() {
    d_step {
        assert(running == 0 && len(evq) == 0 && len(jit[0]) == 0 && len(jit[1]) == 0 && cnext >= cend);
        i = 0;
        do
        :: i < N_TASKS -> assert(runs[i] == ran); runs[i] = 0; i++
        :: else -> break
        od;
        i = 0;
        do
        :: i < N_EVENTS -> assert(counter[i] == n_trig[i] * iteration); i++
        :: else -> break
        od;
        ran = false;
        i = 0
    }
}

inline run_boundary() {
    atomic { at_boundary++; assert(at_boundary == 1) };
    check_iteration();
    served = served + left;
    left = 0;
    bell = tail;
    left = bell - taken;
    taken = bell;
    if
    :: left > 0 ->
        iteration++;
        ran = true;
        goal = n_trig[0] * iteration;
        at_boundary--;
        published = iteration;
        trigger(0, goal)
    :: left == 0 && UNTIL_IDLE -> at_boundary--; stop = 1
    :: left == 0 && !UNTIL_IDLE ->
        idle_bell = bell;
        at_boundary--;
        phase = IDLE
    fi;
    bell = 0
}

inline run_task() {
    goal = n_trig[trig[task]] * iteration;
    d_step {
        running++;
        assert(phase == RUN && at_boundary == 0);
        assert(ready(wait[task]));
        assert(runs[task] == 0);
        runs[task]++
    };
    running--;
    trigger(trig[task], goal);
    task = NONE
}

proctype worker(byte id) {
    byte mine = 0, overflow = NONE, task = NONE, ev = 0, goal = 0, bell = 0, i = 0;
    bool todo = false, boundary = false, activated = false, moved = false;

    do
    :: stop -> break
    :: !stop ->
        if
        :: boundary -> boundary = false; run_boundary()
        :: else
        fi;
        if
        :: overflow != NONE ->
            ev = overflow;
            overflow = link_of[ev];
            offer(ev)
        :: else
        fi;
        /* Find: own JIT queue, own list, next iteration, scheduler role, another's JIT queue. */
        if
        :: atomic { len(jit[id]) > 0 -> jit[id]?task }
        :: len(jit[id]) == 0 ->
            if
            :: todo && ready(wait[aot[id]]) -> todo = false; task = aot[id]
            :: !todo && published != mine -> mine = published; todo = true
            :: (!todo && published == mine) || (todo && !ready(wait[aot[id]])) ->
                sched_step();
                if
                :: atomic { len(jit[1 - id]) > 0 -> jit[1 - id]?task }
                :: len(jit[1 - id]) == 0 -> skip
                fi
            fi
        fi;
        ev = 0;
        if
        :: task != NONE -> run_task()
        :: task == NONE && !boundary ->
            /* Nothing: wait until something that is polled changes. */
            if
            :: len(jit[id]) > 0
            :: len(jit[1 - id]) > 0
            :: todo && ready(wait[aot[id]])
            :: !todo && published != mine
            :: (pending || len(evq) > 0) && !lock && (len(jit[0]) < CAP_JIT || len(jit[1]) < CAP_JIT)
            :: overflow != NONE && len(evq) < CAP_SCHED
            :: atomic { phase == START -> phase = RUN; boundary = true }
            :: atomic { phase == IDLE && tail != idle_bell -> phase = RUN; boundary = true }
            :: stop
            fi
        :: task == NONE && boundary
        fi
    od;
    assert(overflow == NONE && !todo)
}

active proctype host() {
    byte i = 0;
    tail++; /* one request is there before the launch */
    run worker(0);
    run worker(1);
    if
    :: UNTIL_IDLE -> stop != 0
    :: !UNTIL_IDLE ->
        i = 1;
        do
        :: i < REQUESTS -> tail++; i++ /* at any moment */
        :: else -> break
        od;
        served == REQUESTS; /* an end state here would be a request that is never served */
        phase == IDLE;
        assert(iteration >= 1 && iteration <= REQUESTS);
        stop = 1;
        tail++ /* wakes the sleepers */
    fi;
    _nr_pr == 1;
    assert(served == (UNTIL_IDLE -> 1 : REQUESTS));
    assert(len(evq) == 0 && len(jit[0]) == 0 && len(jit[1]) == 0 && !lock)
}
