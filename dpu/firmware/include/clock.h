/*
 * clock.h: seam 1, time.
 *
 * Model: a clock is a number of nanoseconds that never goes back. `os` reads CLOCK_MONOTONIC; `sim`
 * stands still until a simulator moves it. An OS clock may be dilated: it runs `dilation` times
 * slower than the machine's, so that software can keep pace with a model of faster hardware. Any
 * thread may read; only the simulator's thread moves it.
 * Nothing can fail, except that `ofs_clock_open` (a clock on the heap, for Python) says -ENOMEM.
 */
#ifndef OFS_CLOCK_H
#define OFS_CLOCK_H

#include "ofs_base.h"

#include <time.h>

/* cdef: order 1 */
/* cdef: begin */
#define OFS_DILATION_MAX 100000

struct ofs_clock;

/* `simulated` 0: the OS clock. 1: stands at now_ns until moved. */
int ofs_clock_open(struct ofs_clock **out, int simulated, uint64_t now_ns);
void ofs_clock_close(struct ofs_clock *clock);
uint64_t ofs_clock_read_ns(struct ofs_clock *clock);
/* Simulated side only; moving back is our own mistake (assert). */
void ofs_clock_advance_to(struct ofs_clock *clock, uint64_t now_ns);
/* cdef: end */

struct ofs_clock {
	uint64_t (*now_ns)(struct ofs_clock *clock);
	uint64_t sim_now_ns; /* used by the simulated side */
	uint32_t dilation;   /* os: the machine's nanoseconds in one of this clock's */
	uint64_t unix_ns;    /* os: Unix time when the machine's clock stood at 0 */
};

void ofs_clock_init_os(struct ofs_clock *clock);
/* An OS clock that goes `dilation` (at least 1) times slower than the machine. */
void ofs_clock_init_dilated(struct ofs_clock *clock, uint32_t dilation);
void ofs_clock_init_sim(struct ofs_clock *clock, uint64_t now_ns);

static inline uint64_t
ofs_clock_now_ns(struct ofs_clock *clock)
{
	return clock->now_ns(clock);
}

/* CLOCK_MONOTONIC, which is the OS clock when it is not dilated. */
static inline uint64_t
ofs_machine_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The processor time of the calling thread, in machine time; 0 on the simulated side. */
static inline uint64_t
ofs_clock_cpu_ns(const struct ofs_clock *clock)
{
	struct timespec spent = {0};

	if (clock->unix_ns != 0)
		clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
	return (uint64_t)spent.tv_sec * 1000000000u + (uint64_t)spent.tv_nsec;
}

/* CLOCK_BOOTTIME: as above, and it goes on while the machine is suspended. What a lease runs by. */
static inline uint64_t
ofs_machine_boot_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_BOOTTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* How long the machine takes for so much of this clock's time, or what its own clock will say. */
static inline uint64_t
ofs_clock_machine_ns(const struct ofs_clock *clock, uint64_t ns)
{
	return ns > UINT64_MAX / clock->dilation ? UINT64_MAX : ns * clock->dilation;
}

/* So much of the machine's time in this clock's: of what the machine itself takes, as to wake. */
static inline uint64_t
ofs_clock_own_ns(const struct ofs_clock *clock, uint64_t machine_ns)
{
	return machine_ns / clock->dilation;
}

#endif
