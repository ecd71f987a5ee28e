/* machine.c - see machine.h: fibers, their scheduler, and the synchronisation of a thread block. */
#include "machine.h"

#include "launch.h"

#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if defined(__SANITIZE_THREAD__)
#error "this file stands outside: it tells ThreadSanitizer what the machine orders"
#endif

/* ThreadSanitizer's interface, there when the process runs under it. */
#define TSAN __attribute__((weak))
TSAN void *__tsan_get_current_fiber(void);
TSAN void *__tsan_create_fiber(unsigned flags);
TSAN void __tsan_destroy_fiber(void *fiber);
TSAN void __tsan_switch_to_fiber(void *fiber, unsigned flags);
TSAN void __tsan_acquire(void *addr);
TSAN void __tsan_release(void *addr);
TSAN void __tsan_read_range(void *addr, unsigned long bytes);
TSAN void __tsan_write_range(void *addr, unsigned long bytes);
enum { TSAN_NO_ORDER = 1 }; /* a switch is not a hand-over */

static void tsan_acquire(void *p) {
    if (__tsan_acquire) __tsan_acquire(p);
}
static void tsan_release(void *p) {
    if (__tsan_release) __tsan_release(p);
}

enum {
    STACK_BYTES = 256 << 10,
    COLORS = 512,
    LINE_BYTES = 64,
    STACK_LINES = 4,
    WARP = 32,
    N_NAMED = 16,
    N_PARKS = 16,
    PART_WORDS = 10
};

/* ---- fibers ------------------------------------------------------------------------------- */

struct async { /* of cp.async, in order */
    enum { ASYNC_COPY, ASYNC_COMMIT, ASYNC_ARRIVE } kind;
    void *dst;
    const void *src;
    uint64_t *barrier;
    struct async *next;
};

struct product { /* of wgmma, not yet made: this thread's sums */
    float *d;
    uint32_t a[2][8]; /* rows g and g + 8 of A: pairs of k */
    struct emu_wgmma of;
    uint32_t group;
};
enum { MAX_PRODUCTS = 64 };

/* What a switch from one to the next reads is in two lines, and all threads' in the cache. */
struct thread {
    struct emu_self self;          /* first: emu_self points here */
    _Alignas(LINE_BYTES) void *sp; /* where it goes on; NULL: it has not begun */
    struct thread *next;           /* in the queue of those that can run, or of a barrier */
    struct block *block;
    struct warp *warp;
    struct machine *machine;
    uint32_t lane;
    struct async *async_first, **async_last;
    uint32_t n_commits;
    uint32_t n_products, n_groups; /* of products: not made; committed so far */
    struct product *products;      /* MAX_PRODUCTS of them, from the first one on */
    char *stack;                   /* NULL: it has not begun, or its stack is another's now */
    void *tsan;                    /* its fiber; NULL: the machine's */
};

struct queue {
    struct thread *first, *last;
};

/* The lanes of a warp meet: two exchanges alternate, since nobody comes to the one after the next
 * before all have read this one. */
struct warp {
    uint32_t arrived, meeting;
    uint32_t words[2][WARP];             /* of shuffles, votes */
    uint32_t parts[2][PART_WORDS][WARP]; /* of products */
    struct queue waiting;
    char order[2];
};

struct named {
    uint32_t arrived, meeting;
    struct queue waiting;
    char order[2];
};

struct bulk { /* a bulk copy under way */
    struct block *block;
    void *dst;
    const void *src;
    uint32_t bytes, delay;
    uint64_t *barrier;
    struct bulk *next;
};

struct block {
    struct machine *machine;
    struct warp *warps;
    struct named named[N_NAMED];
    struct queue parked[N_PARKS]; /* threads that found an mbarrier's phase incomplete */
    char *shared;
};

struct machine {
    const struct launch *launch;
    struct thread *threads;
    struct block *blocks;
    struct queue ready;
    struct bulk *bulk;
    uint32_t n_blocks, n_threads, n_alive;
    uint32_t n_async;       /* cp.async of all threads, with their groups and arrivals */
    uint32_t steps;         /* of this turn */
    struct bulk *free_bulk; /* nodes for another use: only the machine's threads may touch them */
    struct async *free_async;
    uint64_t progress; /* anything that a waiting thread could wait for */
    uint64_t seed;
    void *sp, *tsan; /* the scheduler's own */
};

static void thread_begin(struct thread *t);

__thread struct emu_self *emu_self __attribute__((tls_model("initial-exec")));

static struct thread *me(void) {
    return (struct thread *)emu_self;
}

/* Pushes the callee-saved registers, leaves the stack pointer in *save, goes on at `load`. */
void emu_switch(void **save, void *load);
#if defined(__x86_64__)
__asm__(".text\n.globl emu_switch\n.hidden emu_switch\n.type emu_switch,@function\nemu_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");
enum { SAVED_WORDS = 6 };
#elif defined(__aarch64__)
__asm__(".text\n.globl emu_switch\n.hidden emu_switch\n.type emu_switch,@function\nemu_switch:\n"
        "sub sp,sp,#160\nstp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\n"
        "stp x25,x26,[sp,#48]\nstp x27,x28,[sp,#64]\nstp x29,x30,[sp,#80]\n"
        "stp d8,d9,[sp,#96]\nstp d10,d11,[sp,#112]\nstp d12,d13,[sp,#128]\nstp d14,d15,[sp,#144]\n"
        "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
        "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\n"
        "ldp x25,x26,[sp,#48]\nldp x27,x28,[sp,#64]\nldp x29,x30,[sp,#80]\n"
        "ldp d8,d9,[sp,#96]\nldp d10,d11,[sp,#112]\nldp d12,d13,[sp,#128]\nldp d14,d15,[sp,#144]\n"
        "add sp,sp,#160\nret\n");
#else
#error "emu_switch is written for x86-64 and AArch64"
#endif

static void enqueue(struct queue *q, struct thread *t) {
    t->next = NULL;
    if (q->first)
        q->last->next = t;
    else
        q->first = t;
    q->last = t;
}

static uint32_t draw(struct machine *m) {
    m->seed ^= m->seed << 13;
    m->seed ^= m->seed >> 7;
    m->seed ^= m->seed << 17;
    return (uint32_t)(m->seed >> 32);
}

/* A thread can run: after the others, or with a seed sometimes before them. */
static void make_ready(struct machine *m, struct thread *t) {
    if (m->seed == 0 || draw(m) % 4 != 0 || m->ready.first == NULL) {
        enqueue(&m->ready, t);
        return;
    }
    t->next = m->ready.first;
    m->ready.first = t;
}

static void make_all_ready(struct machine *m, struct queue *q) {
    while (q->first) {
        struct thread *t = q->first;
        q->first = t->next;
        make_ready(m, t);
    }
}

/* The lanes of a warp have met: they go on together, before all others, while what they use is in
 * the cache; with a seed now and then as threads that have nothing in common. */
static void make_warp_ready(struct machine *m, struct queue *q) {
    if (q->first == NULL || (m->seed != 0 && draw(m) % 4 == 0)) {
        make_all_ready(m, q);
        return;
    }
    q->last->next = m->ready.first;
    if (m->ready.first == NULL) m->ready.last = q->last;
    m->ready.first = q->first;
    q->first = NULL;
}

/* The thread that comes next will have its stack in the cache, the one after it what says where:
 * the second line of its two. */
static void fetch_next(const struct thread *t) {
    if (t == NULL) return;
    for (uint32_t line = 0; line < STACK_LINES; line++)
        __builtin_prefetch((const char *)t->sp + line * LINE_BYTES);
    __builtin_prefetch(t);
    if (t->next) __builtin_prefetch(&t->next->sp);
}

/* Whoever ran goes on later, from *save on; the first that is ready goes on now. */
static void enter_next(struct machine *m, void **save) {
    struct thread *t = m->ready.first;
    m->ready.first = t->next;
    m->steps++;
    fetch_next(t->next);
    emu_self = &t->self;
    if (&t->sp == save) return;
    if (t->sp == NULL) thread_begin(t);
    if (t->tsan) __tsan_switch_to_fiber(t->tsan, TSAN_NO_ORDER);
    emu_switch(save, t->sp);
}

/* A turn is over: as many steps as there are threads, or none can run. */
static bool turn_is_over(const struct machine *m) {
    return m->steps >= m->n_alive || m->ready.first == NULL;
}

static void leave(void) {
    struct thread *t = me();
    struct machine *m = t->machine;
    if (!turn_is_over(m)) {
        enter_next(m, &t->sp);
        return;
    }
    if (t->tsan) __tsan_switch_to_fiber(m->tsan, TSAN_NO_ORDER);
    emu_switch(&t->sp, m->sp);
}

static void yield_now(void) {
    make_ready(me()->machine, me());
    leave();
}

void emu_wait(void) {
    struct machine *m = me()->machine;
    enqueue(&m->ready, me());
    leave();
}

void emu_point(void) {
    struct machine *m = me()->machine;
    m->progress++;
    if (m->seed != 0 && draw(m) % 8 == 0) yield_now();
}

static void wake_parked(struct block *b) {
    for (uint32_t i = 0; i < N_PARKS; i++) make_all_ready(b->machine, &b->parked[i]);
}

void emu_news(void) {
    wake_parked(me()->block);
    emu_point();
}

void emu_trap(const char *why) {
    const struct emu_self *s = emu_self;
    fprintf(stderr, "emulated GPU: block %u thread %u: %s\n", s->block_index.x, s->thread_index.x,
            why);
    abort();
}

/* ---- barriers ----------------------------------------------------------------------------- */

/* An mbarrier's word. A phase is complete when nobody is awaited and all expected bytes are here.
 */
struct barrier {
    int32_t bytes;
    uint16_t phase : 1, arrivals : 15;
    uint16_t awaited;
};
_Static_assert(sizeof(struct barrier) == 8, "an mbarrier is a 64-bit word");

static struct barrier *barrier_of(uint64_t *b) {
    return (struct barrier *)b;
}

/* What orders memory at a phase: one address per parity. */
static void *barrier_order(struct barrier *b, uint32_t parity) {
    return (char *)b + 4 * (parity & 1);
}

static struct queue *parked_at(struct block *block, const struct barrier *b) {
    return &block->parked[(uintptr_t)b / sizeof *b % N_PARKS];
}

static void barrier_check(struct block *block, struct barrier *b) {
    if (b->awaited != 0 || b->bytes != 0) return;
    b->phase ^= 1;
    b->awaited = b->arrivals;
    make_all_ready(block->machine, parked_at(block, b));
}

void emu_barrier_init(uint64_t *word, uint32_t arrivals) {
    *barrier_of(word) =
        (struct barrier){.arrivals = (uint16_t)arrivals, .awaited = (uint16_t)arrivals};
}

static void barrier_arrive(struct block *block, struct barrier *b) {
    if (b->awaited == 0) emu_trap("an arrival too many at an mbarrier");
    b->awaited--;
    barrier_check(block, b);
}

void emu_barrier_arrive(uint64_t *word) {
    struct barrier *b = barrier_of(word);
    tsan_release(barrier_order(b, b->phase));
    barrier_arrive(me()->block, b);
    emu_point();
}

static int barrier_look(struct barrier *b, uint32_t parity) {
    if (b->phase == (parity & 1)) return 0;
    tsan_acquire(barrier_order(b, parity));
    return 1;
}

int emu_barrier_test(uint64_t *word, uint32_t parity) {
    if (barrier_look(barrier_of(word), parity)) return 1;
    emu_wait();
    return 0;
}

int emu_barrier_try(uint64_t *word, uint32_t parity) {
    if (barrier_look(barrier_of(word), parity)) return 1;
    enqueue(parked_at(me()->block, barrier_of(word)), me());
    leave();
    return barrier_look(barrier_of(word), parity);
}

void emu_sync(uint32_t id, uint32_t threads) {
    struct thread *t = me();
    struct named *n = &t->block->named[id];
    char *order = &n->order[n->meeting++ / threads % 2];
    tsan_release(order);
    if (++n->arrived < threads) {
        enqueue(&n->waiting, t);
        leave();
    } else {
        n->arrived = 0;
        t->machine->progress++;
        make_all_ready(t->machine, &n->waiting);
    }
    tsan_acquire(order);
}

/* Returns once all lanes have come; which of the two exchanges they used. */
static uint32_t meet(struct thread *t, bool orders) {
    struct warp *w = t->warp;
    uint32_t which = w->meeting & 1;
    if (orders) tsan_release(&w->order[which]);
    if (++w->arrived < WARP) {
        enqueue(&w->waiting, t);
        leave();
    } else {
        w->arrived = 0;
        w->meeting++;
        make_warp_ready(t->machine, &w->waiting);
    }
    if (orders) tsan_acquire(&w->order[which]);
    return which;
}

void emu_sync_warp(void) {
    meet(me(), true);
}

const uint32_t *emu_exchange(uint32_t value) {
    struct thread *t = me();
    struct warp *w = t->warp;
    w->words[w->meeting & 1][t->lane] = value;
    return w->words[meet(t, false)];
}

/* ---- copies ------------------------------------------------------------------------------- */

/* Copies 16 bytes at a time, unseen by ThreadSanitizer: to it, whoever asked for a copy wrote. */
static void land(void *dst, const void *src, uint32_t bytes) {
    typedef uint64_t __attribute__((vector_size(16), may_alias)) words;
    for (uint32_t i = 0; i < bytes / 16; i++) {
        ((words *)dst)[i] = ((const words *)src)[i];
        __asm__ volatile("" ::: "memory"); /* not a call of memcpy, which would be seen */
    }
}

void emu_copy_bulk(void *dst, const void *src, uint32_t bytes, uint64_t *b) {
    struct machine *m = me()->machine;
    struct bulk *c = m->free_bulk ? m->free_bulk : malloc(sizeof *c);
    if (!c) emu_trap("out of memory");
    if (c == m->free_bulk) m->free_bulk = c->next;
    if (((uintptr_t)dst | (uintptr_t)src | bytes) % 16) emu_trap("a bulk copy that is not aligned");
    if (__tsan_read_range) __tsan_read_range((void *)src, bytes);
    if (__tsan_write_range) __tsan_write_range(dst, bytes);
    *c = (struct bulk){.block = me()->block,
                       .dst = dst,
                       .src = src,
                       .bytes = bytes,
                       .delay = m->seed ? draw(m) % 16 : 1,
                       .barrier = b,
                       .next = m->bulk};
    m->bulk = c;
    barrier_of(b)->bytes += (int32_t)bytes;
}

/* Called now and then: copies whose time has come land. */
static void bulk_step(struct machine *m) {
    for (struct bulk **at = &m->bulk; *at;) {
        struct bulk *c = *at;
        if (c->delay-- > 0) {
            at = &c->next;
            continue;
        }
        land(c->dst, c->src, c->bytes);
        barrier_of(c->barrier)->bytes -= (int32_t)c->bytes;
        barrier_check(c->block, barrier_of(c->barrier));
        *at = c->next;
        c->next = m->free_bulk;
        m->free_bulk = c;
        m->progress++;
    }
}

static void async_push(struct async a) {
    struct thread *t = me();
    struct machine *m = t->machine;
    struct async *copy = m->free_async ? m->free_async : malloc(sizeof *copy);
    if (!copy) emu_trap("out of memory");
    if (copy == m->free_async) m->free_async = copy->next;
    *copy = a;
    copy->next = NULL;
    if (!t->async_first) t->async_last = &t->async_first;
    *t->async_last = copy;
    t->async_last = &copy->next;
    m->n_async++;
}

void emu_copy16(void *dst, const void *src) {
    if (((uintptr_t)dst | (uintptr_t)src) % 16) emu_trap("a cp.async that is not aligned");
    if (__tsan_read_range) __tsan_read_range((void *)src, 16);
    if (__tsan_write_range) __tsan_write_range(dst, 16);
    async_push((struct async){.kind = ASYNC_COPY, .dst = dst, .src = src});
}

void emu_copy_commit(void) {
    async_push((struct async){.kind = ASYNC_COMMIT});
    me()->n_commits++;
}

static void async_pop(struct thread *t) {
    struct async *a = t->async_first;
    t->async_first = a->next;
    if (a->kind == ASYNC_COPY) land(a->dst, a->src, 16);
    if (a->kind == ASYNC_COMMIT) t->n_commits--;
    if (a->kind == ASYNC_ARRIVE) barrier_arrive(t->block, barrier_of(a->barrier));
    t->machine->n_async--;
    t->machine->progress++;
    a->next = t->machine->free_async;
    t->machine->free_async = a;
}

void emu_copy_wait(uint32_t groups_left) {
    struct thread *t = me();
    while (t->n_commits > groups_left) async_pop(t);
}

void emu_copy_arrive(uint64_t *word) {
    struct barrier *b = barrier_of(word);
    tsan_release(barrier_order(b, b->phase));
    async_push((struct async){.kind = ASYNC_ARRIVE, .barrier = word});
}

static void async_step(struct machine *m) {
    for (uint32_t i = 0; i < m->n_threads && m->n_async > 0; i++) {
        struct thread *t = &m->threads[i];
        while (t->async_first && (m->seed == 0 || draw(m) % 4 != 0)) async_pop(t);
    }
}

/* ---- arithmetic --------------------------------------------------------------------------- */

static float float_of(uint32_t bits) {
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* In integers and one product, which is exact: many machines have no instruction for it. */
float emu_half_to_float(uint16_t bits) {
    const uint32_t magnitude = (uint32_t)(bits & 0x7fff) << 13;
    const float v = magnitude < 0x7c00u << 13 ? float_of(magnitude) * 0x1p112f
                                              : float_of(magnitude | 0x7f800000);
    return bits >> 15 ? -v : v;
}

uint16_t emu_float_to_half(float v) {
    _Float16 h = (_Float16)v;
    uint16_t bits;
    memcpy(&bits, &h, sizeof bits);
    return bits;
}

static float element(uint32_t pair, uint32_t high, bool f16) {
    uint16_t bits = (uint16_t)(high ? pair >> 16 : pair);
    if (f16) return emu_half_to_float(bits);
    return float_of((uint32_t)bits << 16);
}

/* Compiled twice, where the compiler can: for what the machine has at run time. */
#if defined(__x86_64__) && !defined(__clang__)
#define FAST __attribute__((target_clones("avx2", "default")))
#else
#define FAST
#endif

/* Sixteen rows of A or eight of B in words as lanes bring them: number r of lane 4 g + j has
 * columns 2 j and 2 j + 1 of row g, of A or of B's transpose, and 8 more of each for r's bits. */
static inline __attribute__((always_inline)) void widen(double to[2 * WARP],
                                                        const uint32_t words[WARP], bool f16) {
    if (f16) {
        for (uint32_t i = 0; i < 2 * WARP; i++) to[i] = element(words[i / 2], i % 2, true);
        return;
    }
    uint32_t bits[2 * WARP];
    float v[2 * WARP];
    for (uint32_t i = 0; i < WARP; i++) {
        bits[2 * i] = words[i] << 16;
        bits[2 * i + 1] = words[i] & 0xffff0000;
    }
    memcpy(v, bits, sizeof v);
    for (uint32_t i = 0; i < 2 * WARP; i++) to[i] = v[i];
}

/* c[m][n] += the sum over k, in order, of a[m][k] b[k][n]. */
FAST static void multiply_warp(uint32_t (*words)[WARP], bool f16) {
    typedef double four __attribute__((vector_size(32)));
    double a[4][8][8], b[2][8][8]; /* [r][g][k], [r][n][k] */
    union {
        four v[2];
        double n[8];
    } turned[16], sum;
    for (uint32_t r = 0; r < 4; r++) widen(a[r][0], words[r], f16);
    for (uint32_t r = 0; r < 2; r++) widen(b[r][0], words[4 + r], f16);
    for (uint32_t k = 0; k < 16; k++)
        for (uint32_t n = 0; n < 8; n++) turned[k].n[n] = b[k / 8][n][k % 8];
    for (uint32_t m = 0; m < 16; m++) {
        four lo = {0}, hi = {0};
        for (uint32_t k = 0; k < 16; k++) {
            const double x = a[m / 8 + k / 8 * 2][m % 8][k % 8];
            lo += x * turned[k].v[0];
            hi += x * turned[k].v[1];
        }
        sum.v[0] = lo;
        sum.v[1] = hi;
        for (uint32_t n = 0; n < 8; n++) {
            uint32_t *word = &words[6 + m / 8 * 2 + n % 2][m % 8 * 4 + n / 2];
            float c;
            memcpy(&c, word, 4);
            c = (float)(c + sum.n[n]);
            memcpy(word, &c, 4);
        }
    }
}

/* Words of what a lane brings to a product or takes from it. */
static void put_words(uint32_t (*words)[WARP], uint32_t lane, const void *from, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) memcpy(&words[i][lane], (const char *)from + 4 * i, 4);
}

void emu_mma(float c[4], const uint32_t a[4], const uint32_t b[2], int f16) {
    struct thread *t = me();
    struct warp *w = t->warp;
    uint32_t(*words)[WARP] = w->parts[w->meeting & 1];
    put_words(words, t->lane, a, 4);
    put_words(words + 4, t->lane, b, 2);
    put_words(words + 6, t->lane, c, 4);
    if (w->arrived == WARP - 1) multiply_warp(words, f16 != 0);
    words = w->parts[meet(t, false)];
    for (uint32_t i = 0; i < 4; i++) memcpy(&c[i], &words[6 + i][t->lane], 4);
}

void emu_wgmma(float *d, const uint32_t a[4], const struct emu_wgmma *of) {
    struct thread *t = me();
    struct warp *w = t->warp;
    if (t->n_products == MAX_PRODUCTS) emu_trap("more products under way than there is room for");
    if (!t->products) t->products = calloc(MAX_PRODUCTS, sizeof *t->products);
    if (!t->products) emu_trap("out of memory");
    struct product *p = &t->products[t->n_products++];
    put_words(w->parts[w->meeting & 1], t->lane, a, 4);
    const uint32_t which = meet(t, false);
    *p = (struct product){.d = d, .of = *of, .group = t->n_groups};
    for (uint32_t r = 0; r < 4; r++) /* row g + 8 (r & 1), k 2 j + 8 (r >> 1) of lane 4 g + j */
        for (uint32_t j = 0; j < 4; j++)
            p->a[r & 1][j + 4 * (r >> 1)] = w->parts[which][r][t->lane / 4 * 4 + j];
}

void emu_wgmma_commit(void) {
    me()->n_groups++;
}

/* Where the element of B is, from the block's memory on. */
static inline uint32_t product_element(const struct emu_wgmma *of, uint32_t k, uint32_t n) {
    const uint32_t k_bytes = of->turned ? 16 : 2, n_bytes = of->turned ? 2 : 16;
    if (!of->lines)
        return of->b + n / 8 * of->n_step + n % 8 * n_bytes + k / 8 * of->k_step + k % 8 * k_bytes;
    const uint32_t line = of->turned ? k : n, in_line = of->turned ? n : k;
    const uint32_t at = of->b + line / 8 * of->n_step + line % 8 * 128 + in_line * 2;
    return at ^ (at >> 7 & 7) << 4;
}

/* Elements [k][n] and [k][n + 1] of B, for even n, as words. 16 bytes of its memory are eight k of
 * a column, or eight columns of a k. */
static inline __attribute__((always_inline)) void product_pairs(const struct emu_wgmma *of,
                                                                uint32_t n, uint32_t pairs[16]) {
    for (uint32_t k = 0; of->turned && k < 16; k++)
        memcpy(&pairs[k], of->shared + product_element(of, k, n), sizeof pairs[k]);
    for (uint32_t k = 0; !of->turned && k < 16; k += 8) {
        uint16_t lo[8], hi[8];
        memcpy(lo, of->shared + product_element(of, k, n), sizeof lo);
        memcpy(hi, of->shared + product_element(of, k, n + 1), sizeof hi);
        for (uint32_t i = 0; i < 8; i++) pairs[k + i] = (uint32_t)hi[i] << 16 | lo[i];
    }
}

/* Of each eight columns this thread has two, and of the rows g and g + 8: the sums over k, in
 * order, of row g, then of row g + 8. */
FAST static void product_make(const struct product *p, uint32_t lane) {
    typedef double four __attribute__((vector_size(32)));
    uint32_t words[WARP];
    double wide[2 * WARP];
    four a[16];
    memcpy(words, p->a, sizeof p->a);
    memset(words + 16, 0, sizeof words - sizeof p->a);
    widen(wide, words, p->of.f16);
    for (uint32_t k = 0; k < 16; k++) a[k] = (four){wide[k], wide[k], wide[16 + k], wide[16 + k]};
    for (uint32_t eight = 0; eight < p->of.n_eights; eight++) {
        float *d = p->d + eight * 4;
        four sum = {0};
        product_pairs(&p->of, eight * 8 + lane % 4 * 2, words);
        widen(wide, words, p->of.f16);
        for (uint32_t k = 0; k < 16; k++)
            sum += a[k] * (four){wide[2 * k], wide[2 * k + 1], wide[2 * k], wide[2 * k + 1]};
        for (uint32_t i = 0; i < 4; i++) d[i] = (float)((p->of.add ? d[i] : 0) + sum[i]);
    }
}

/* Tells ThreadSanitizer what a product reads; of lines a little more. */
static void product_reads(const struct emu_wgmma *of) {
    const uint32_t ks = of->lines && !of->turned ? 1 : 2;
    const uint32_t ns = of->lines && of->turned ? 1 : of->n_eights;
    for (uint32_t k = 0; k < ks; k++)
        for (uint32_t n = 0; n < ns; n++) {
            const uint32_t step =
                of->lines ? (k + n) * of->n_step : k * of->k_step + n * of->n_step;
            const uint32_t first = of->lines ? of->b / 1024 * 1024 : of->b;
            __tsan_read_range((void *)(of->shared + first + step), of->lines ? 1024 : 128);
        }
}

void emu_wgmma_wait(uint32_t groups_left) {
    struct thread *t = me();
    uint32_t made = 0;
    for (; made < t->n_products; made++) {
        const struct product *p = &t->products[made];
        if (p->group + groups_left >= t->n_groups) break;
        if (__tsan_read_range) product_reads(&p->of);
        product_make(p, t->lane);
    }
    t->n_products -= made;
    memmove(t->products, t->products + made, t->n_products * sizeof *t->products);
    emu_point();
}

uint64_t emu_now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

/* ---- launches ----------------------------------------------------------------------------- */

/* A thread that ends leaves its stack here, a thread that begins takes one: thousands of short
 * launches would map and unmap them each time. */
static pthread_mutex_t stacks_lock = PTHREAD_MUTEX_INITIALIZER;
static char **free_stacks; /* [most_stacks], of which n_free_stacks are there */
static uint32_t n_free_stacks, most_stacks;

static char *stack_take(void) {
    pthread_mutex_lock(&stacks_lock);
    char *stack = n_free_stacks > 0 ? free_stacks[--n_free_stacks] : NULL;
    pthread_mutex_unlock(&stacks_lock);
    if (stack != NULL) return stack;
    stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) emu_trap("out of memory");
    return stack;
}

static void stack_give(char *stack) {
    if (stack == NULL) return;
    pthread_mutex_lock(&stacks_lock);
    if (n_free_stacks == most_stacks) {
        most_stacks = 2 * most_stacks + 1024;
        free_stacks = realloc(free_stacks, most_stacks * sizeof *free_stacks);
        if (!free_stacks) emu_trap("out of memory");
    }
    free_stacks[n_free_stacks++] = stack;
    pthread_mutex_unlock(&stacks_lock);
}

static void thread_run(struct thread *t) {
    if (t->tsan) tsan_acquire(t->machine); /* what came before the launch */
    t->machine->launch->entry(t->machine->launch->arguments);
    while (t->async_first) async_pop(t);
    if (t->tsan) tsan_release(t->machine);
    t->machine->n_alive--;
    t->machine->progress++;
}

/* The next thread gets the stack of one that has ended, if it has not begun: those of a kernel that
 * waits for nothing all run on one stack, which stays in the cache. NULL: another has a stack, or
 * the stack is a fiber's. */
static struct thread *thread_follow(struct thread *t) {
    struct machine *m = t->machine;
    struct thread *next = m->ready.first;
    if (t->tsan || turn_is_over(m) || next->sp != NULL) return NULL;
    m->ready.first = next->next;
    m->steps++;
    next->stack = t->stack;
    t->stack = NULL;
    emu_self = &next->self;
    return next;
}

static void thread_main(void) {
    for (struct thread *t = me(); t != NULL; t = thread_follow(t)) thread_run(t);
    leave();
    abort();
}

/* Gives a thread a stack, on which it begins. */
static void thread_begin(struct thread *t) {
    t->stack = stack_take();
    /* Tops that are a power of two apart would all want the same few lines of the cache. */
    char *end = t->stack + STACK_BYTES - (size_t)(t - t->machine->threads) % COLORS * LINE_BYTES;
#if defined(__x86_64__)
    void **top = (void **)end - 2;
    *top = (void *)thread_main; /* the return address; above it: none, and the ABI's alignment */
    top[1] = NULL;
    t->sp = top - SAVED_WORDS;
#else
    void **top = (void **)(end - 160);
    top[11] = (void *)thread_main;
    t->sp = top;
#endif
}

static void thread_start(struct machine *m, struct thread *t, uint32_t block, uint32_t thread) {
    const struct launch *l = m->launch;
    t->self.thread_index = (struct emu_dim){thread, 0, 0};
    t->self.block_index = (struct emu_dim){block, 0, 0};
    t->self.block_dim = (struct emu_dim){l->block_threads, 1, 1};
    t->self.grid_dim = (struct emu_dim){l->grid, 1, 1};
    t->block = &m->blocks[l->together ? block : 0];
    t->self.shared = t->block->shared;
    t->warp = &t->block->warps[thread / WARP];
    t->lane = thread % WARP;
    t->machine = m;
    t->sp = NULL;
    stack_give(t->stack);
    t->stack = NULL;
    m->n_alive++;
    enqueue(&m->ready, t);
}

/* What happens by itself, as time passes. */
static void turn(struct machine *m, uint64_t *before) {
    async_step(m);
    bulk_step(m);
    if (m->progress == *before ||
        m->ready.first == NULL) { /* a parked thread's patience ends; the host gets its turn */
        for (uint32_t b = 0; b < m->n_blocks; b++) wake_parked(&m->blocks[b]);
        sched_yield();
    }
    *before = m->progress;
    if (m->ready.first == NULL && m->bulk == NULL)
        emu_trap("threads wait at a barrier or a warp's meeting for others that never come");
}

/* Runs what is ready until all are done. */
static void run_threads(struct machine *m) {
    uint64_t before = 0;
    for (; m->n_alive > 0; m->steps = 0) {
        turn(m, &before);
        if (!turn_is_over(m)) enter_next(m, &m->sp);
    }
    while (m->bulk) bulk_step(m);
}

static bool machine_init(struct machine *m, const struct launch *l) {
    uint32_t n_blocks = l->together ? l->grid : 1, n_warps = (l->block_threads + WARP - 1) / WARP;
    *m = (struct machine){.launch = l,
                          .n_blocks = n_blocks,
                          .n_threads = n_blocks * l->block_threads,
                          .seed = l->seed};
    m->threads = aligned_alloc(LINE_BYTES, m->n_threads * sizeof *m->threads);
    m->blocks = calloc(n_blocks, sizeof *m->blocks);
    if (!m->threads || !m->blocks) return false;
    memset(m->threads, 0, m->n_threads * sizeof *m->threads);
    for (uint32_t b = 0; b < n_blocks; b++) {
        m->blocks[b].warps = calloc(n_warps, sizeof *m->blocks[b].warps);
        m->blocks[b].shared = aligned_alloc(1024, (l->shared_bytes + 1023) / 1024 * 1024 + 1024);
        m->blocks[b].machine = m;
        if (!m->blocks[b].warps || !m->blocks[b].shared) return false;
    }
    /* A launch whose blocks run one after the other prepares weights. A fiber for each of its
     * threads would cost ThreadSanitizer minutes. */
    for (uint32_t i = 0; i < m->n_threads && l->together && __tsan_create_fiber; i++)
        m->threads[i].tsan = __tsan_create_fiber(0);
    if (__tsan_get_current_fiber) m->tsan = __tsan_get_current_fiber();
    return true;
}

static void machine_fini(struct machine *m) {
    for (struct bulk *b; (b = m->free_bulk) != NULL; free(b)) m->free_bulk = b->next;
    for (struct async *a; (a = m->free_async) != NULL; free(a)) m->free_async = a->next;
    for (uint32_t i = 0; i < m->n_threads; i++) {
        stack_give(m->threads[i].stack);
        free(m->threads[i].products);
        if (m->threads[i].tsan) __tsan_destroy_fiber(m->threads[i].tsan);
    }
    for (uint32_t b = 0; b < m->n_blocks; b++) {
        free(m->blocks[b].warps);
        free(m->blocks[b].shared);
    }
    free(m->blocks);
    free(m->threads);
}

bool launch_run(const struct launch *l) {
    struct machine m;
    if (!machine_init(&m, l)) return false;
    for (uint32_t first = 0; first < l->grid; first += l->together ? l->grid : 1) {
        uint32_t n = l->together ? l->grid : 1;
        for (uint32_t b = 0; b < n; b++) {
            memset(m.blocks[b].shared, 0xff, l->shared_bytes);
            for (uint32_t i = 0; i < l->block_threads; i++)
                thread_start(&m, &m.threads[b * l->block_threads + i], first + b, i);
        }
        tsan_release(&m);
        run_threads(&m);
    }
    tsan_acquire(&m);
    machine_fini(&m);
    return true;
}
