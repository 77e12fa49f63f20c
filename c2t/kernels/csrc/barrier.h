/* Where the threads of a parallel region wait for one another: some 240 times in a forward of 30 layers, mostly for
   microseconds.

   OpenMP's own barrier spins for milliseconds until the others have come. If other work holds a core, so that two
   threads share one, the thread that waits keeps the other from coming, and a forward can take a second. This one
   yields its core to other work. Loops in such a region are `nowait`, and `barrier_wait` follows them.

   A compiler without OpenMP passes over the pragmas: one thread does all. */

#pragma once
#ifdef _OPENMP
#include <omp.h>
#else
static inline int omp_get_thread_num(void) { return 0; }
static inline int omp_get_num_threads(void) { return 1; }
#endif
#include <sched.h>

#define LOOKS 1000 /* before the core is offered: on recent x86 tens of microseconds, longer than most waits */

typedef struct {
    int arrived, turn;
} barrier;

static _Thread_local barrier *current;

/* Every thread of a region calls this first, with the same barrier, all zeros. */
static void join_barrier(barrier *here) { current = here; }

static inline void pause_briefly(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void barrier_wait(void) {
    int turn = __atomic_load_n(&current->turn, __ATOMIC_ACQUIRE);
    if (__atomic_add_fetch(&current->arrived, 1, __ATOMIC_ACQ_REL) == omp_get_num_threads()) {
        __atomic_store_n(&current->arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&current->turn, turn + 1, __ATOMIC_RELEASE);
        return;
    }
    for (long looks = 0; __atomic_load_n(&current->turn, __ATOMIC_ACQUIRE) == turn; looks++)
        looks < LOOKS ? pause_briefly() : (void)sched_yield();
}
