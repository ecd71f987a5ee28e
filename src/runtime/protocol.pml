/* protocol.pml - a Spin model of the runtime's protocol (rt_worker.h, rt_claim.h, rt_boundary.h):
 * event counters, JIT tasks claimed with a fetch-and-add, the iteration boundary with the doorbell
 * read early and the news posted late, idling on the doorbell, and the end.
 *
 *   spin -a protocol.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan        (tests/runtime/spin.sh)
 *
 * Two workers and one of three programs:
 *
 *   GRAPH 1   E0 ─┬─ T0 AOT w0 ─┬─ E1 ─┬─ T2 JIT ── E2 ── T4 AOT w1 ─┬─ E3 ─┬─ T5 JIT ─┬─ E4 = end
 *   serves        └─ T1 JIT ────┘      └─ T3 JIT ────────────────────┘      └─ T6 JIT ─┘
 *
 *   GRAPH 2   E0 ─┬─ T0 AOT w0 ─ E1 ─ T3 JIT ─┐             (many events at a time)
 *   until         ├─ T1 JIT ──── E2 ─ T4 JIT ─┼─ E4 ─ T6 AOT w1 ─ E5 = end
 *   idle          └─ T2 JIT ──── E3 ─ T5 JIT ─┘
 *
 *   GRAPH 3   as 1, T4 JIT: worker 1 has no list, may miss iterations and come late
 *
 * Each primitive of rt_sync.h is one step. A poller that finds nothing is blocked here until something
 * that it polls changes, so a lost task, a lost wake-up or a deadlock is an invalid end state. Memory
 * is sequentially consistent in Spin: what the orders must be is argued in docs/runtime.md and tested
 * under ThreadSanitizer.
 *
 * Checked: every task runs exactly once per iteration, after its event is activated, in the
 * iteration that runs; one worker at the boundary at a time, with no task running and all JIT tasks
 * claimed; every counter exact there; no news are written over before they are posted, and all are
 * posted before the runtime idles or ends; every request is served; everybody ends.
 */
#ifndef GRAPH
#define GRAPH 1
#endif
#define UNTIL_IDLE (GRAPH == 2)

#define REQUESTS 2 /* one iteration each; both may fall into one */
#define NONE     99

#define START 0 /* phases */
#define RUN   1
#define IDLE  2

#define N_TASKS 7
#if GRAPH == 2
#define N_EVENTS 6
#define END      5
#define LISTENER 6 /* the task whose worker reads the doorbell for all */
#define N_JIT    5
byte wait[N_TASKS] = { 0, 0, 0, 1, 2, 3, 4 };
byte trig[N_TASKS] = { 1, 2, 3, 4, 4, 4, 5 };
byte n_trig[N_EVENTS] = { 1, 1, 1, 1, 3, 1 };
byte jit[N_JIT] = { 1, 2, 3, 4, 5 };
byte aot[2] = { 0, 6 }; /* each worker's list: one task or none */
byte rank[2] = { 0, 5 }; /* JIT tasks before it */
#else
#define N_EVENTS 5
#define END      4
#define LISTENER 5
byte wait[N_TASKS] = { 0, 0, 1, 1, 2, 3, 3 };
byte trig[N_TASKS] = { 1, 1, 2, 3, 3, 4, 4 };
byte n_trig[N_EVENTS] = { 1, 2, 1, 2, 2 };
#if GRAPH == 1
#define N_JIT 5
byte jit[N_JIT] = { 1, 2, 3, 5, 6 };
byte aot[2] = { 0, 4 };
byte rank[2] = { 0, 3 };
#else
#define N_JIT 6
byte jit[N_JIT] = { 1, 2, 3, 4, 5, 6 };
byte aot[2] = { 0, NONE };
byte rank[2] = { 0, 0 };
#endif
#endif

/* shared state */
byte counter[N_EVENTS];
byte published, phase = START, stop, tail, idle_bell, posted;
byte heard, heard_of = NONE; /* the doorbell, during that iteration */
byte claim_of, claim_index = N_JIT; /* one word */

/* the boundary's own */
byte taken, left, iteration, served, news;

/* ghosts: only assertions and the host read them */
byte runs[N_TASKS], running, at_boundary, told;
bool ran; /* an iteration has run since the last boundary */

/* Beside a GPU, here in graph 3, a worker with a task knows that its iteration has begun. */
#define ready(e) (counter[e] >= n_trig[e] * iteration || (GRAPH == 3 && e == 0))
#define open     (claim_index < N_JIT && (!todo || (claim_of == mine && claim_index < rank[id])))
#define is_claim (claimed != NONE && (!todo || claimed < aot[id]))
#define is_aot   (todo && (claimed == NONE || aot[id] < claimed))

/* The counter's step and the look at its old value are one fetch-and-add. */
inline trigger(e, goal) {
    atomic { counter[e]++; boundary = boundary || (e == END && counter[e] == goal) }
}

inline check_iteration() {
    d_step {
        assert(running == 0 && claim_index >= N_JIT && posted == iteration);
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

/* rt_boundary_post */
inline post() {
    if
    :: owes ->
        if
        :: owes_start -> owes_start = false; goal = n_trig[0] * iteration; trigger(0, goal)
        :: else
        fi;
        owes = false;
        told = news;
        assert(told == mine_news);
        posted = iteration
    :: else
    fi
}

inline run_boundary() {
    atomic { at_boundary++; assert(at_boundary == 1) };
    check_iteration();
    served = served + left;
    news = served;
    mine_news = served;
    owes = true;
    if /* rt_boundary_bell */
    :: heard_of == iteration -> heard_of = NONE; bell = heard
    :: else -> bell = tail
    fi;
    assert(bell >= taken);
    left = bell - taken;
    taken = bell;
    if
    :: left == 0 -> bell = tail; left = bell - taken; taken = bell
    :: else
    fi;
    if
    :: left > 0 ->
        iteration++;
        ran = true;
        owes_start = true;
        at_boundary--;
        published = iteration;
        atomic { claim_of = iteration; claim_index = 0 }
    :: left == 0 && UNTIL_IDLE -> post(); at_boundary--; stop = 1
    :: left == 0 -> /* the same with time to linger, as in serving */
        idle_bell = bell;
        post();
        at_boundary--;
        phase = IDLE
    fi;
    bell = 0;
    asked = false
}

inline enter(it) {
    mine = it;
    todo = (aot[id] != NONE)
}

/* rt_worker_want */
inline want() {
    if
    :: claimed == NONE && open ->
        atomic {
            i = claim_index;
            it = claim_of;
            claim_index++;
            assert(claim_index <= N_JIT + 2)
        };
        if
        :: i < N_JIT ->
            assert(it == iteration); /* what is claimed is of the iteration that runs */
            if
            :: it != mine -> assert(!todo); enter(it)
            :: else
            fi;
            claimed = jit[i]
        :: else
        fi;
        i = 0;
        it = 0
    :: else
    fi
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
    if /* rt_boundary_ask, by one that may have to play the boundary */
    :: trig[task] == END && !asked && !owes && posted == iteration -> asked = true
    :: true
    fi;
    if /* rt_boundary_listen, once or again */
    :: task == LISTENER -> heard = tail; heard_of = iteration
    :: task == LISTENER -> heard = tail; heard_of = iteration; heard = tail; heard_of = iteration
    :: true
    fi;
    running--;
    trigger(trig[task], goal);
    task = NONE;
    if /* another worker played it */
    :: asked && !boundary -> asked = false
    :: else
    fi
}

proctype worker(byte id) {
    byte mine = 0, claimed = NONE, task = NONE, goal = 0, bell = 0, i = 0, it = 0, mine_news = 0;
    bool todo = false, boundary = false, owes = false, owes_start = false, asked = false;

    do
    :: stop -> break
    :: !stop ->
        if /* at any time after the iteration was published */
        :: owes -> post()
        :: true
        fi;
        if
        :: boundary && !asked ->
            post();
            if
            :: posted == iteration -> asked = true
            :: else
            fi
        :: else
        fi;
        if
        :: boundary && asked -> boundary = false; run_boundary()
        :: else
        fi;
        want();
        if
        :: is_claim && ready(wait[claimed]) -> task = claimed; claimed = NONE
        :: is_aot && ready(wait[aot[id]]) -> todo = false; task = aot[id]
        :: !todo && claimed == NONE && published != mine -> it = published; enter(it); it = 0
        :: else
        fi;
        if
        :: task != NONE -> run_task()
        :: else ->
            /* Nothing: wait until something that is polled changes. */
            if
            :: owes
            :: boundary && posted == iteration
            :: claimed == NONE && open
            :: is_claim && ready(wait[claimed])
            :: is_aot && ready(wait[aot[id]])
            :: !todo && claimed == NONE && published != mine
            :: atomic { phase == START -> phase = RUN; boundary = true }
            :: atomic { phase == IDLE && tail != idle_bell -> phase = RUN; boundary = true }
            :: atomic { UNTIL_IDLE && phase == IDLE -> phase = RUN } -> stop = 1 /* rt_worker_linger */
            :: stop
            fi
        fi
    od;
    assert(!owes && !todo && claimed == NONE)
}

active proctype host() {
    byte i = 0;
    tail++; /* one request is there before the launch */
    run worker(0);
    run worker(1);
    if
    :: UNTIL_IDLE -> stop != 0
    :: UNTIL_IDLE -> tail++; stop != 0 /* at any moment; one that comes too late is the next launch's */
    :: !UNTIL_IDLE ->
        i = 1;
        do
        :: i < REQUESTS -> tail++; i++ /* at any moment */
        :: else -> break
        od;
        told == REQUESTS; /* an end state here would be a request that is never served */
        phase == IDLE;
        assert(iteration >= 1 && iteration <= REQUESTS);
        stop = 1;
        tail++ /* wakes the sleepers */
    fi;
    _nr_pr == 1;
    assert(told == (UNTIL_IDLE -> taken : REQUESTS) && told >= 1);
    assert(claim_index >= N_JIT && posted == iteration)
}
