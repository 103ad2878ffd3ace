/*
 * clock_wait.h: the clock seam's second half: waiting, and the time of day.
 *
 * Model: the reactor's only way to sleep. `os` sleeps in ppoll until a descriptor is readable or
 * the time has come; `sim` never sleeps: its simulator moves time. Owned by the reactor's thread.
 */
#ifndef OFS_CLOCK_WAIT_H
#define OFS_CLOCK_WAIT_H

#include "clock.h"

#define OFS_WAIT_FDS_MAX 256

/* Sleep until one of `fds` (negative: skipped) is readable or until_ns. 1 readable, 0 time. */
int ofs_clock_wait(struct ofs_clock *clock, const int *fds, int count, uint64_t until_ns);
int ofs_clock_is_sim(const struct ofs_clock *clock);
/* Seconds since 1970: expiry must survive a restart, which a monotonic clock does not. */
uint64_t ofs_clock_unix_s(struct ofs_clock *clock);
/* Empty an eventfd or timerfd after a wait. */
void ofs_wait_fd_clear(int fd);

#endif
