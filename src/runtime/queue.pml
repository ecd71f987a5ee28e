/* queue.pml - a Spin model of rt_queue.h at the level of its loads, stores and compare-and-swaps:
 * two producers, two consumers, two cells. Positions count modulo 16 instead of 2^32, so that
 * wrapping is met.
 *
 * Checked: a cell's value is never written while it holds one or read while it is being written;
 * every value is popped exactly once; a producer's values come in its order; everybody ends.
 */
#define CAP       2
#define MOD       16
#define EACH      2 /* values per producer */
#define PRODUCERS 2
#define TOTAL     (PRODUCERS * EACH)

byte head = 14, tail = 14; /* wraps on the way */
byte seq[CAP], value[CAP];
byte n_popped;

/* ghosts */
byte writing[CAP], holds[CAP], reading[CAP], popped[TOTAL];

/* Signed difference modulo MOD: below zero when in the upper half. */
#define behind(a, b) (((a) + MOD - (b)) % MOD >= MOD / 2)
#define equal(a, b)  ((a) == (b))

proctype producer(byte id) {
    byte n = 0, p, s, c;
    do
    :: n < EACH ->
        p = tail;
again:
        c = p % CAP;
        s = seq[c];
        if
        :: behind(s, p) -> skip /* full: try the same value again */
        :: equal(s, p) ->
            if
            :: atomic { tail == p -> tail = (p + 1) % MOD }
                d_step { assert(!holds[c] && !writing[c] && !reading[c]); writing[c] = 1 };
                value[c] = id * EACH + n;
                d_step { writing[c] = 0; holds[c] = 1 };
                seq[c] = (p + 1) % MOD;
                n++;
                c = 0; p = 0; s = 0
            :: tail != p -> p = tail; goto again
            fi
        :: !behind(s, p) && !equal(s, p) -> p = tail; goto again
        fi
    :: n == EACH -> break
    od
}

proctype consumer(byte id) {
    byte p, s, c, v, last[PRODUCERS];
    do
    :: n_popped < TOTAL ->
        p = head;
again:
        c = p % CAP;
        s = seq[c];
        if
        :: behind(s, (p + 1) % MOD) -> skip /* empty */
        :: equal(s, (p + 1) % MOD) ->
            if
            :: atomic { head == p -> head = (p + 1) % MOD }
                d_step { assert(holds[c] && !writing[c] && !reading[c]); reading[c] = 1 };
                v = value[c];
                d_step {
                    reading[c] = 0; holds[c] = 0;
                    assert(!popped[v]); popped[v] = 1;
                    assert(v + 1 > last[v / EACH]); last[v / EACH] = v + 1
                };
                d_step { seq[c] = (p + CAP) % MOD; n_popped++ };
                c = 0; p = 0; s = 0; v = 0
            :: head != p -> p = head; goto again
            fi
        :: !behind(s, (p + 1) % MOD) && !equal(s, (p + 1) % MOD) -> p = head; goto again
        fi
    :: n_popped == TOTAL -> break
    od
}

init {
    seq[14 % CAP] = 14;
    seq[15 % CAP] = 15;
    run producer(0);
    run producer(1);
    run consumer(0);
    run consumer(1);
    _nr_pr == 1;
    assert(n_popped == TOTAL && head == tail)
}
