/* blocks.pml - a Spin model of who has which KV block (rt_block.h, rt_waiting.h): hits, blocks that
 * another request computes, blocks given ahead and taken back, eviction, requests that give way and
 * come back, cancels in every state.
 *
 *   spin -a blocks.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan          (tests/runtime/spin.sh)
 *
 * Three requests over blocks of one position. Two begin alike, and the third has the same tokens in
 * other places:
 *
 *   request 0   1 2 | 3 4 5      request 1   1 2 | 3 6 5      request 2   3 | 2 6 5      (prompt | output)
 *
 * One process plays host and boundary in turn, as the boundary is alone between two iterations. It
 * is free to let requests arrive and to cancel them at any boundary, to give blocks ahead, and to
 * give a request that could compute no row, as a budget does. So all schedules are looked at.
 *
 * Checked: every block is idle or has as many holders as it says; a request computes only with the
 * text before it in its blocks, and only into a block that is its own to write; the running request
 * that is first in order never gives way; some request can always go on; all end.
 */
#ifndef BLOCKS
#define BLOCKS 4 /* what the longest request needs alone */
#endif
#define REQUESTS 3
#define MOST     5 /* tokens of a request */
#define NONE     99
#define DONE     98 /* writer: it is computed */
#define ROOT     97

#define AWAY    0 /* states */
#define WAITING 1
#define RUNNING 2
#define ENDED   3

#define at(r, i) ((r) * MOST + (i))
byte text[REQUESTS * MOST] = { 1, 2, 3, 4, 5, 1, 2, 3, 6, 5, 3, 2, 6, 5, 0 };
byte length[REQUESTS] = { 5, 5, 4 };
byte prompt[REQUESTS] = { 2, 2, 1 };

/* requests; the order is that of their numbers */
byte state[REQUESTS], known[REQUESTS], computed[REQUESTS], held[REQUESTS], shared[REQUESTS];
byte registered[REQUESTS];
bool row[REQUESTS], canceled[REQUESTS];
byte table[REQUESTS * MOST];

/* blocks */
byte refs[BLOCKS], parent[BLOCKS], token[BLOCKS], writer[BLOCKS];
byte idle[BLOCKS], n_idle; /* front first: empty ones, then cached, least recently used first */

/* ghosts */
short path[BLOCKS];  /* what lies in the block: the text up to there, as one number */
bool filled[BLOCKS]; /* it was computed since */
byte first, steps, k, r, i, b, need, last, before;
bool moved;

#define path_of(q, n) (text[at(q, 0)] + (n > 0 -> text[at(q, 1)] * 8 : 0) + (n > 1 -> text[at(q, 2)] * 64 : 0) + (n > 2 -> text[at(q, 3)] * 512 : 0))
#define is_registered(x) (parent[x] != NONE)
#define wanted(q) (known[q] + 1 < length[q] - 1 -> known[q] + 1 : length[q] - 1)

/* ---- idle list ---- */

inline unlink(x) {
    k = 0;
    do
    :: idle[k] != x -> k++
    :: else -> break
    od;
    n_idle--;
    do
    :: k < n_idle -> idle[k] = idle[k + 1]; k++
    :: else -> break
    od
}

inline link(x) {
    if
    :: is_registered(x) -> idle[n_idle] = x
    :: else ->
        k = n_idle;
        do
        :: k > 0 -> idle[k] = idle[k - 1]; k--
        :: else -> break
        od;
        idle[0] = x
    fi;
    n_idle++
}

inline take(q) {
    b = idle[0];
    parent[b] = NONE;
    filled[b] = false;
    unlink(b);
    refs[b] = 1;
    table[at(q, held[q])] = b;
    held[q]++
}

inline give_back(q) { /* its last block */
    held[q]--;
    b = table[at(q, held[q])];
    if
    :: is_registered(b) && writer[b] == q -> writer[b] = NONE
    :: else
    fi;
    refs[b]--;
    if
    :: refs[b] == 0 ->
        if
        :: is_registered(b) && writer[b] != DONE -> parent[b] = NONE
        :: else
        fi;
        link(b)
    :: else
    fi
}

inline cut(q, n) {
    do
    :: held[q] > n -> give_back(q)
    :: else -> break
    od
}

/* ---- the tree ---- */

/* The registered block of position n of request q, in b; NONE: there is none. */
inline find(q, n) {
    before = (n == 0 -> ROOT : table[at(q, n - 1)]);
    b = 0;
    do
    :: b == BLOCKS -> b = NONE; break
    :: b < BLOCKS && parent[b] == before && token[b] == text[at(q, n)] -> break
    :: else -> b++
    od
}

inline enter(q, n, w) {
    b = table[at(q, n)];
    parent[b] = (n == 0 -> ROOT : table[at(q, n - 1)]);
    token[b] = text[at(q, n)];
    writer[b] = w;
    registered[q] = n + 1
}

/* rt_blocks_computed */
inline settle(q) {
    i = 0;
    do
    :: i < computed[q] && i < registered[q] -> writer[table[at(q, i)]] = DONE; i++
    :: i < computed[q] && i == registered[q] ->
        find(q, i);
        if
        :: b == NONE -> enter(q, i, DONE); i++
        :: b != NONE && writer[b] == DONE ->
            need = b;
            if
            :: refs[need] == 0 -> unlink(need)
            :: else
            fi;
            refs[need]++;
            b = table[at(q, i)];
            refs[b]--;
            assert(refs[b] == 0 && !is_registered(b));
            link(b);
            table[at(q, i)] = need;
            registered[q] = i + 1;
            i++
        :: else -> break
        fi
    :: else -> break
    od
}

/* rt_blocks_follow */
inline follow(q) {
    do
    :: computed[q] < shared[q] && writer[table[at(q, computed[q])]] == DONE -> computed[q]++
    :: else -> break
    od;
    i = computed[q];
    do
    :: i < shared[q] && writer[table[at(q, i)]] == NONE -> writer[table[at(q, i)]] = q; i++
    :: else -> break
    od
}

#define is_open(q) (computed[q] >= shared[q] || writer[table[at(q, computed[q])]] == q)

/* ---- admission and giving way ---- */

inline leave(q) {
    settle(q);
    cut(q, 0)
}

inline admit(q) {
    held[q] = 0;
    do
    :: held[q] < known[q] - 1 ->
        find(q, held[q]);
        if
        :: b != NONE -> table[at(q, held[q])] = b; held[q]++
        :: else -> break
        fi
    :: else -> break
    od;
    shared[q] = held[q];
    need = wanted(q) - held[q];
    i = 0;
    do
    :: i < held[q] -> need = need + (refs[table[at(q, i)]] == 0 -> 1 : 0); i++
    :: else -> break
    od;
    if
    :: need <= n_idle ->
        i = 0;
        do
        :: i < held[q] ->
            b = table[at(q, i)];
            if
            :: refs[b] == 0 -> unlink(b)
            :: else
            fi;
            refs[b]++;
            i++
        :: else -> break
        od;
        do
        :: held[q] < wanted(q) -> take(q)
        :: else -> break
        od;
        computed[q] = 0;
        registered[q] = shared[q];
        do
        :: registered[q] < known[q] && registered[q] < held[q] ->
            find(q, registered[q]);
            if
            :: b == NONE -> enter(q, registered[q], q)
            :: else -> break
            fi
        :: else -> break
        od;
        follow(q);
        state[q] = RUNNING
    :: else -> held[q] = 0
    fi
}

/* The last running request gives way. */
inline preempt() {
    last = REQUESTS - 1;
    do
    :: state[last] != RUNNING -> last--
    :: else -> break
    od;
    assert(last != first);
    leave(last);
    state[last] = WAITING
}

/* ---- checks ---- */

inline check() {
    k = 0;
    do
    :: k < BLOCKS ->
        i = 0;
        need = 0;
        do
        :: i < REQUESTS * MOST ->
            need = need + (state[i / MOST] == RUNNING && i % MOST < held[i / MOST] && table[i] == k -> 1 : 0);
            i++
        :: else -> break
        od;
        assert(refs[k] == need);
        i = 0;
        do
        :: i < n_idle -> need = need + (idle[i] == k -> 10 : 0); i++
        :: else -> break
        od;
        assert(need == 10 || (need < 10 && need > 0));
        assert(refs[k] > 0 || !is_registered(k) || writer[k] == DONE);
        k++
    :: else -> break
    od;
    i = 0
}

/* What a task of the iteration reads and writes. */
inline compute(q) {
    i = 0;
    do
    :: i < computed[q] ->
        b = table[at(q, i)];
        assert(filled[b] && path[b] == path_of(q, i));
        i++
    :: else -> break
    od;
    b = table[at(q, i)];
    assert(i < held[q] && i < known[q]);
    assert(is_registered(b) -> writer[b] == q : refs[b] == 1)
}

inline write(q) {
    b = table[at(q, computed[q])];
    path[b] = path_of(q, computed[q]);
    filled[b] = true
}

/* ---- a boundary ---- */

inline collect(q) {
    if
    :: row[q] -> row[q] = false; computed[q]++; known[q] = known[q] + (computed[q] == known[q] -> 1 : 0)
    :: else
    fi;
    settle(q);
    if
    :: canceled[q] || known[q] == length[q] -> leave(q); state[q] = ENDED
    :: else
    fi
}

inline supply(q) {
    if
    :: state[q] == RUNNING && held[q] < wanted(q) ->
        if
        :: n_idle == 0 -> /* what was given ahead is taken back */
            last = 0;
            do
            :: last < REQUESTS ->
                if
                :: state[last] == RUNNING && held[last] > wanted(last) -> need = wanted(last); cut(last, need)
                :: else
                fi;
                last++
            :: else -> break
            od
        :: else
        fi;
        do
        :: n_idle == 0 && state[q] == RUNNING -> preempt()
        :: else -> break
        od;
        if
        :: state[q] == RUNNING -> take(q)
        :: else
        fi
    :: else
    fi
}

#define each(what) r = 0; do :: r < REQUESTS -> what; r++ :: else -> break od

active proctype boundary() {
    atomic {
        b = 0;
        do
        :: b < BLOCKS -> parent[b] = NONE; idle[b] = b; b++
        :: else -> break
        od;
        n_idle = BLOCKS;
        each(known[r] = prompt[r])
    };
    do
    :: state[0] == ENDED && state[1] == ENDED && state[2] == ENDED -> break
    :: else ->
        /* the host, at any time */
        r = 0;
        do
        :: r == REQUESTS -> break
        :: r < REQUESTS && state[r] == AWAY -> state[r] = WAITING; r++
        :: r < REQUESTS && state[r] != ENDED && state[r] != AWAY -> canceled[r] = true; r++
        :: r < REQUESTS -> r++
        od;
        skip;
        d_step {
            each(if :: state[r] == RUNNING -> collect(r) :: else fi);
            each(if :: state[r] == WAITING && canceled[r] -> state[r] = ENDED :: else fi);
            first = 0;
            do
            :: first < REQUESTS && state[first] != RUNNING -> first++
            :: else -> break
            od;
            each(supply(r));
            r = 0; /* none is passed */
            do
            :: r < REQUESTS && state[r] == WAITING ->
                admit(r);
                if
                :: state[r] == WAITING -> break
                :: else -> r++
                fi
            :: r < REQUESTS && state[r] != WAITING -> r++
            :: else -> break
            od;
            each(if :: state[r] == RUNNING -> follow(r) :: else fi);
            check();
            moved = false
        };
        /* rows: of any that are open, at least one */
        r = 0;
        do
        :: r == REQUESTS -> break
        :: r < REQUESTS && state[r] == RUNNING && is_open(r) -> row[r] = true; moved = true; r++
        :: r < REQUESTS && state[r] == RUNNING && is_open(r) && moved -> r++
        :: r < REQUESTS && !(state[r] == RUNNING && is_open(r)) -> r++
        od;
        /* blocks given ahead, if they like */
        r = 0;
        do
        :: r == REQUESTS || n_idle == 0 -> break
        :: r < REQUESTS && n_idle > 0 && state[r] == RUNNING && held[r] < length[r] - 1 ->
            d_step { take(r) };
            r++
        :: r < REQUESTS && n_idle > 0 -> r++
        od;
        skip;
        d_step {
            each(if :: row[r] -> compute(r) :: else fi);
            each(if :: row[r] -> write(r) :: else fi);
            if
            :: state[0] != RUNNING && state[1] != RUNNING && state[2] != RUNNING ->
                assert(state[0] != WAITING && state[1] != WAITING && state[2] != WAITING)
            :: else -> assert(moved)
            fi;
            r = 0;
            b = 0;
            i = 0;
            k = 0;
            need = 0;
            last = 0;
            before = 0
        };
    od;
    assert(n_idle == BLOCKS)
}
