/* mask.pml - a Spin model of how masks come to SAMPLE (rt_mask.h, engine/mask_thread.c): the place
 * of a slot, the thread that writes it, and the session that gives the slot to the next request.
 *
 *   session ── first mask, command ──► rank 0, rank 1 ── n_out, finish ──► session
 *      └─ guide ──► mask thread ◄── n_out ───┘    ▲
 *                        └── mask, made ──────────┘
 *
 * Two guided requests have one slot, one after the other; beside them a free request runs in each
 * rank. Ranks go their own pace. The mask thread may stop for any time between two of its steps: Spin
 * looks at all of them. Each access to a shared word is one step, and a mask has two words.
 *
 * Checked: SAMPLE reads a mask that is whole, of its request, and of as many tokens as it has; a slot
 * is not given back while the thread writes it; each guide is freed once; everybody ends. With STOPS
 * the thread may stop for good: iterations, in each of which the free request has a token, go on.
 *
 * MUTANT, each of which must fail:
 *   1  `made` before the mask's words     2  the slot given back while the thread is at its guide
 *   3  tokens of rank 0 only              4  SAMPLE does not look at `made`
 *   5  a request that has no mask holds the iteration up
 */
#ifndef MUTANT
#define MUTANT 0
#endif
#ifndef STOPS
#define STOPS (MUTANT == 5)
#endif
#define RANKS    2
#define REQUESTS 2
#define LIMIT    2 /* tokens of a guided request */
#define FREE     3 /* iterations that the free request wants at least */

#define mask_after(request, n) (4 * (request) + (n)) /* what each of its words is */

#define GONE    0 /* turns; before a guide is added it is nobody's */
#define IDLE    1
#define BUSY    2
#define LEAVING 3

/* the mailbox of each rank: one slot */
byte word0[RANKS], word1[RANKS], made[RANKS], tail[RANKS], n_out[RANKS];
bool finish[RANKS];

/* guides */
byte turn[REQUESTS + 1];
bool added[REQUESTS + 1], freed[REQUESTS + 1];

bool over, writing; /* the session is done; the thread writes the place */

inline put_mask(r, request, n) {
    if
    :: MUTANT == 1 -> made[r] = n + 1; word0[r] = mask_after(request, n)
    :: else -> word0[r] = mask_after(request, n)
    fi;
    word1[r] = mask_after(request, n);
    made[r] = n + 1
}

proctype rank(byte r) {
    byte request = 0, n = 0, a = 0, free_tokens = 0;
    bool runs = false;
    do
    :: over && free_tokens >= FREE -> break
    :: else ->
        if /* the boundary: a command, the last iteration's token */
        :: !runs && tail[r] != request -> request = tail[r]; n = 0; runs = true
        :: else
        fi;
        if /* SAMPLE of the guided request */
        :: runs && (made[r] == n + 1 || MUTANT == 4) ->
            a = word0[r];
            assert(a == mask_after(request, n));
            a = word1[r];
            assert(a == mask_after(request, n));
            a = 0;
            n++
        :: runs && MUTANT == 5 && made[r] != n + 1 -> made[r] == n + 1
        :: else
        fi;
        if /* SAMPLE of the free one */
        :: free_tokens < FREE -> free_tokens++
        :: else
        fi;
        if /* news of this iteration */
        :: runs -> n_out[r] = n
        :: else
        fi;
        if
        :: runs && n == LIMIT -> runs = false; finish[r] = true
        :: else
        fi
    od
}

proctype mask_thread() {
    byte q = 1, n = 0, r = 0, read = 0;
    do
    :: q > REQUESTS -> break
    :: STOPS -> break
    :: q <= REQUESTS ->
        added[q];
        if
        :: atomic { turn[q] == IDLE -> turn[q] = BUSY };
            n = n_out[0];
            if
            :: MUTANT != 3 && n_out[1] < n -> n = n_out[1]
            :: else
            fi;
            if
            :: n > read && n < LIMIT ->
                writing = true;
                r = 0;
                do
                :: r < RANKS -> put_mask(r, q, n); r++
                :: else -> break
                od;
                writing = false;
                read = n
            :: else
            fi;
            n = 0;
            r = 0;
            if
            :: atomic { turn[q] == BUSY -> turn[q] = IDLE }
            :: atomic { turn[q] == LEAVING || turn[q] == GONE -> turn[q] = GONE };
                q++;
                read = 0
            fi
        :: turn[q] == GONE -> /* the session has let it go */
            assert(!freed[q]);
            freed[q] = true;
            q++;
            read = 0
        fi
    od
}

/* mask_thread_let_go, again and again */
inline let_go(q) {
    if
    :: atomic { turn[q] == IDLE -> turn[q] = GONE }
    :: atomic { turn[q] == BUSY -> turn[q] = (MUTANT == 2 -> GONE : LEAVING) };
        turn[q] == GONE;
        assert(!freed[q]);
        freed[q] = true
    fi
}

active proctype session() {
    byte q = 1, r = 0;
    run rank(0);
    run rank(1);
    run mask_thread();
    do
    :: q <= REQUESTS ->
        assert(!writing);
        r = 0;
        do
        :: r < RANKS ->
            put_mask(r, q, 0);
            n_out[r] = 0;
            finish[r] = false;
            tail[r] = q;
            r++
        :: else -> break
        od;
        turn[q] = IDLE;
        added[q] = true;
        finish[0] && finish[1];
        let_go(q);
        q++
    :: else -> break
    od;
    over = true;
    _nr_pr == 1;
    assert(STOPS || (freed[1] && freed[2]))
}
