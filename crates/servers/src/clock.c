/*
 * A wall clock that a test can move, for one process: loaded before the C library (LD_PRELOAD), it
 * adds so many seconds to what the process is told. They stand in a file of eight bytes, named by
 * SERVERS_CLOCK and mapped once, so that a clock costs no more than before and moves at once.
 *
 * Only the wall clock moves, as it does when an administrator or a time server sets it; clocks that
 * count since the boot go on. In C, because it takes the place of C functions, and that cannot be
 * done in Rust without unsafe code.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t unmoved = 0;
static const volatile int64_t *seconds = &unmoved;

__attribute__((constructor)) static void find_file(void) {
    const char *path = getenv("SERVERS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof *seconds, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED)
        seconds = mapped;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += *seconds;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec precise;
    int failed = clock_gettime(CLOCK_REALTIME, &precise);
    if (!failed) {
        now->tv_sec = precise.tv_sec;
        now->tv_usec = precise.tv_nsec / 1000;
    }
    return failed;
}

time_t time(time_t *copy) {
    struct timespec precise;
    clock_gettime(CLOCK_REALTIME, &precise);
    if (copy)
        *copy = precise.tv_sec;
    return precise.tv_sec;
}
