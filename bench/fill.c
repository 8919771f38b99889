// Fills memory at a known pace and leaves behind when each MiB was written.
// fill LOG RATE_MIB_PER_S TOTAL_MIB PREFILL_MIB PAUSE_MS THREADS
// RATE 0 is full speed, -1 full speed and then holding it; the prefill goes at 1000 MiB/s; THREADS -1 is one thread over
// huge pages. LOG: one double (CLOCK_BOOTTIME) per MiB, in a shared mapping, so it survives SIGKILL.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MIB (1L << 20)
static double *stamps;
static char *memory;
static long total, prefill, first;
static double rate, begun;
static atomic_long next_mib;

static double now(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void *fill(void *until) {
    long mine;
    while ((mine = atomic_fetch_add(&next_mib, 1)) < *(long *)until) {
        if (rate > 0) {
            double due = begun + (mine - first) / rate;
            struct timespec t = {(time_t)due, (long)((due - (time_t)due) * 1e9)};
            clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
        }
        memset(memory + mine * MIB, 1, MIB);
        stamps[mine] = now(CLOCK_BOOTTIME);
    }
    return NULL;
}

static void pause_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

int main(int argc, char **argv) {
    if (argc != 7)
        return 2;
    rate = atof(argv[2]), total = atol(argv[3]), prefill = atol(argv[4]);
    long pause = atol(argv[5]), threads = atol(argv[6]);
    int log = open(argv[1], O_RDWR | O_CREAT, 0666);
    if (log < 0 || ftruncate(log, total * sizeof(double)))
        return 3;
    stamps = mmap(NULL, total * sizeof(double), PROT_READ | PROT_WRITE, MAP_SHARED, log, 0);
    memory = mmap(NULL, total * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stamps == MAP_FAILED || memory == MAP_FAILED)
        return 4;
    memset(stamps, 0, total * sizeof(double)); // no first touch of the log while the clock runs
    if (threads < 0)
        madvise(memory, total * MIB, MADV_HUGEPAGE);
    double asked = rate;
    rate = 1000;
    pause_ms(pause);
    begun = now(CLOCK_MONOTONIC);
    fill(&prefill);
    atomic_store(&next_mib, prefill);
    rate = asked, first = prefill;
    if (prefill)
        pause_ms(pause);
    begun = now(CLOCK_MONOTONIC);
    pthread_t others[64];
    long extra = threads > 1 ? threads - 1 : 0;
    for (long i = 0; i < extra && i < 64; i++)
        pthread_create(&others[i], NULL, fill, &total);
    fill(&total);
    for (long i = 0; i < extra && i < 64; i++)
        pthread_join(others[i], NULL);
    while (rate < 0)
        sleep(1000);
    return 0; // nobody stopped us
}
