/*
 * device/reactor.h: the loop that polls ports, store and core, and when it may sleep.
 *
 * Model: only the reactor's thread writes its times. Any thread sets `serving`, `serve_until_ns`
 * and `stopping`, which the reactor reads; `thread` and `threaded` belong to the thread that opens
 * and closes the device. A simulated device has no thread: its owner runs every turn.
 */
#ifndef OFS_DEVICE_REACTOR_H
#define OFS_DEVICE_REACTOR_H

#include "device.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#define OFS_DONE_BATCH 64
#define OFS_IO_SCAN_INTERVAL_NS 1000000ull

/* The high byte of a store I/O's user word names its table; the rest is an index in that table. */
enum ofs_io_kind {
	OFS_IO_READ = 1,
	OFS_IO_PUT = 2,
	OFS_IO_FLUSH = 3,
	OFS_IO_MOVE = 4,
	OFS_IO_ARCHIVE = 5
};

struct ofs_reactor {
	pthread_t thread;
	bool threaded;
	atomic_bool serving; /* started: hosts are served */
	atomic_bool stopping;
	_Atomic uint64_t serve_until_ns; /* see ofs_device_serve_until */
	uint64_t turn_ns;                /* when the turn began */
	uint64_t io_scan_ns;
	uint64_t store_tick_ns;
	uint64_t core_next_ns;
	bool core_had_event; /* since its last tick */
	uint64_t idle_since_ns;
	uint64_t io_seen; /* I/O begun and ended by the storage, at the last look */
};

/* reactor.c */
void *ofs_device_reactor(void *device);
bool ofs_device_turn(struct ofs_device *device);
/* When there will be something to do without a new request. */
uint64_t ofs_device_wake_at_ns(struct ofs_device *device, uint64_t now_ns);

/* figures.c: a turn, or the time until there is something to do; simulated clock only. */
void ofs_device_simulate(struct ofs_device *device);

/* fence.c: see ofs_device_serve_until */
bool ofs_device_is_fenced(struct ofs_device *device);

#endif
