/* The waiting half of the clock seam; see clock_wait.h. */
#include "clock_wait.h"

#include <assert.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

/* A simulated day begins long after zero, so that an expiry is never mistaken for "never". */
#define SIM_UNIX_S 1000000000ull

int
ofs_clock_is_sim(const struct ofs_clock *clock)
{
	struct ofs_clock sim;

	ofs_clock_init_sim(&sim, 0);
	return clock->now_ns == sim.now_ns;
}

int
ofs_clock_wait(struct ofs_clock *clock, const int *fds, int count, uint64_t until_ns)
{
	struct pollfd polls[OFS_WAIT_FDS_MAX];
	struct timespec left;
	uint64_t now_ns = ofs_clock_now_ns(clock);
	uint64_t left_ns = until_ns > now_ns ? until_ns - now_ns : 0;
	nfds_t poll_count = 0;

	assert(count <= OFS_WAIT_FDS_MAX);
	if (left_ns == 0 || ofs_clock_is_sim(clock))
		return 0;
	for (int i = 0; i < count; i++)
		if (fds[i] >= 0)
			polls[poll_count++] = (struct pollfd){.fd = fds[i], .events = POLLIN};
	left_ns = ofs_clock_machine_ns(clock, left_ns);
	left.tv_sec = (time_t)(left_ns / 1000000000ull);
	left.tv_nsec = (long)(left_ns % 1000000000ull);
	/* EINTR is a wake-up like any other: the reactor checks everything again. */
	return ppoll(polls, poll_count, &left, NULL) > 0;
}

uint64_t
ofs_clock_unix_s(struct ofs_clock *clock)
{
	if (ofs_clock_is_sim(clock))
		return SIM_UNIX_S + ofs_clock_now_ns(clock) / 1000000000ull;
	return (clock->unix_ns + ofs_machine_now_ns()) / 1000000000ull;
}

void
ofs_wait_fd_clear(int fd)
{
	uint64_t count;
	ssize_t got;

	if (fd < 0)
		return;
	got = read(fd, &count, sizeof(count));
	/* The descriptors are ours and non-blocking: EAGAIN means that there was nothing to read. */
	assert(got >= 0 || errno == EAGAIN || errno == EINTR);
}
