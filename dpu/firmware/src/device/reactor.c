/*
 * The reactor: one thread that polls ports, store and core in turn, and sleeps when there was
 * nothing to do for a while. Pollers say whether they were busy; that is all that the accounting of
 * utilisation needs.
 */
#include "internal.h"

#define STORE_TICK_INTERVAL_NS 20000000ull
/* Timer slack and the time to wake an idle core: a shorter sleep ends late. */
#define WAKE_NS 120000ull
#define SLEEP_NS_MAX 100000000ull

static bool
serve_store(struct ofs_device *device, struct ofs_store *store)
{
	struct ofs_store_done done[OFS_DONE_BATCH];
	int count = ofs_store_poll(store, done, OFS_DONE_BATCH);

	if (count > 0 && ofs_moments_on(&device->moments))
		device->moments.reaped_ns = ofs_device_now_ns(device);
	for (int i = 0; i < count; i++) {
		uint32_t index = (uint32_t)done[i].user;

		switch ((enum ofs_io_kind)(done[i].user >> 56)) {
		case OFS_IO_READ:
			ofs_device_read_done(device, index, done[i].rc);
			break;
		case OFS_IO_PUT:
		case OFS_IO_FLUSH:
			ofs_device_write_done(device, index, done[i].rc);
			break;
		case OFS_IO_MOVE:
			ofs_device_move_done(device, index, done[i].rc);
			break;
		case OFS_IO_ARCHIVE:
			ofs_archive_done(device, index, done[i].rc);
			break;
		default:
			assert(!"an I/O that nothing here began");
		}
	}
	return count > 0;
}

/* Expiry and cleaning: the core must not promise blocks that the store has dropped. */
static bool
tick_store(struct ofs_device *device, uint64_t now_ns)
{
	struct ofs_store_entry entries[OFS_DONE_BATCH];
	int count;

	if (now_ns < device->reactor.store_tick_ns)
		return false;
	device->reactor.store_tick_ns = now_ns + STORE_TICK_INTERVAL_NS;
	count =
		ofs_store_tick(device->store, ofs_clock_unix_s(&device->clock), entries, OFS_DONE_BATCH);
	for (int i = 0; i < count; i++) {
		/* The tenant does not exist yet, or the block is unknown: nothing to forget. */
		ofs_device_after_event(device,
			ofs_core_block_forget(device->core, now_ns, entries[i].tenant, &entries[i].store_key,
				entries[i].layer));
	}
	if (count == OFS_DONE_BATCH)
		device->reactor.store_tick_ns = now_ns; /* a whole batch expired: continue immediately */
	return count > 0;
}

/* Only if something happened: every tick is a record of the decision log. */
static void
tick_core(struct ofs_device *device, uint64_t now_ns)
{
	if (device->reactor.core_had_event || now_ns >= device->reactor.core_next_ns) {
		ofs_device_after_event(device,
			ofs_core_tick(device->core, now_ns, &device->reactor.core_next_ns));
		device->reactor.core_had_event = false;
	}
}

/*
 * Whether I/O began or ended since the last call. I/O of the cleaner and of segment headers has no
 * completion here, and a submitted I/O may start only at the next poll: do not sleep yet.
 */
static bool
io_moved(struct ofs_device *device)
{
	const struct ofs_storage_stats *stats = &device->storage->stats;
	uint64_t ended = stats->reads + stats->writes + stats->syncs + stats->discards + stats->errors;
	uint64_t seen = ended << 20 ^ stats->in_flight;
	bool moved = seen != device->reactor.io_seen;

	device->reactor.io_seen = seen;
	return moved;
}

/* The store polls for its own I/O only; a back end may have a connection to keep alive. */
static void
keep_storage(struct ofs_storage *storage, uint64_t now_ns)
{
	if (storage->stats.in_flight == 0 && storage->ops->due_ns(storage) <= now_ns)
		(void)ofs_storage_poll(storage, NULL, 0);
}

bool
ofs_device_turn(struct ofs_device *device)
{
	uint64_t now_ns = ofs_device_now_ns(device);
	bool busy, did;

	device->reactor.turn_ns = now_ns;
	ofs_device_turn_begins(device, now_ns);
	busy = ofs_device_serve_calls(device);
	ofs_device_phase_ends(device, OFS_PHASE_REST, busy);
	busy |= (did = serve_store(device, device->store));
	keep_storage(device->storage, now_ns);
	if (device->move.step != OFS_STEP_NONE) {
		keep_storage(device->move.storage, now_ns);
		busy |= ofs_device_move_turn(device, serve_store(device, device->move.store));
	}
	ofs_device_phase_ends(device, OFS_PHASE_REAP, did);
	did = atomic_load_explicit(&device->reactor.serving, memory_order_relaxed)
		&& ofs_device_serve_ports(device);
	if (device->paced.pace != NULL)
		did |= ofs_device_serve_pace(device);
	ofs_device_phase_ends(device, OFS_PHASE_COMMANDS, did);
	busy |= did;
	tick_core(device, now_ns);
	busy |= (did = ofs_device_issue(device));
	ofs_device_phase_ends(device, OFS_PHASE_ISSUE, did);
	busy |= device->archive.waiting > 0 && ofs_archive_turn(device);
	if (now_ns >= device->reactor.io_scan_ns) {
		device->reactor.io_scan_ns = now_ns + OFS_IO_SCAN_INTERVAL_NS;
		busy |= ofs_device_scan_reads(device, now_ns);
		busy |= ofs_device_scan_writes(device, now_ns);
	}
	busy |= tick_store(device, now_ns);
	ofs_device_tell_landed(device);
	busy |= io_moved(device);
	ofs_device_turn_ends(device, busy);
	device->status.loops++;
	device->status.busy_loops += busy;
	return busy;
}

uint64_t
ofs_device_wake_at_ns(struct ofs_device *device, uint64_t now_ns)
{
	uint64_t due_ns = device->storage->ops->due_ns(device->storage);
	uint64_t until_ns = now_ns + SLEEP_NS_MAX;

	until_ns = device->reactor.core_next_ns < until_ns ? device->reactor.core_next_ns : until_ns;
	until_ns = due_ns < until_ns ? due_ns : until_ns;
	due_ns = ofs_device_move_due_ns(device, now_ns);
	until_ns = due_ns < until_ns ? due_ns : until_ns;
	due_ns = ofs_device_issue_due_ns(device);
	if (due_ns > now_ns) /* else it waits for room, which a completion frees */
		until_ns = due_ns < until_ns ? due_ns : until_ns;
	if (ofs_store_in_flight(device->store) > 0 || device->reads.oldest != OFS_NONE
		|| device->writes.live > device->writes.parked || device->archive.waiting > 0) {
		uint64_t scan_ns = now_ns + OFS_IO_SCAN_INTERVAL_NS;

		until_ns = scan_ns < until_ns ? scan_ns : until_ns;
	}
	return until_ns;
}

/* Announces sleep to every host first: a host that submits after that wakes us. */
static void
sleep_until_woken(struct ofs_device *device, uint64_t now_ns)
{
	int fds[OFS_WAIT_FDS_MAX];
	int storage_fd = device->storage->ops->wait_fd(device->storage);
	bool work = false;
	int count = 0;

	if (storage_fd < 0 && ofs_store_in_flight(device->store) > 0)
		return; /* a device that can only be polled */
	if (device->storage->ops->due_ns(device->storage)
		< now_ns + ofs_clock_own_ns(&device->clock, WAKE_NS))
		return; /* an emulated drive that is due before a sleeper would wake up */
	if (device->move.step != OFS_STEP_NONE && device->move.step != OFS_STEP_CLOSE)
		return; /* its blocks are in flight: they are work like any other */
	fds[count++] = device->mailbox.wake_fd;
	fds[count++] = storage_fd;
	for (uint32_t i = 0; i < device->config.port_max; i++) {
		if (device->ports.entries[i].used) {
			work |= ofs_port_sleep(device->ports.entries[i].port) != 0
				&& !ofs_device_is_held_back(device, i);
			fds[count++] = ofs_port_wake_fd(device->ports.entries[i].port);
		}
	}
	if (!work && atomic_load(&device->mailbox.call_count) == 0
		&& !atomic_load(&device->reactor.stopping)) {
		device->status.sleeps++;
		(void)ofs_clock_wait(&device->clock, fds, count, ofs_device_wake_at_ns(device, now_ns));
	}
	ofs_wait_fd_clear(device->mailbox.wake_fd);
	/* Also clears the storage's signal: the store does not poll when it has nothing in flight, and
	 * a signal that came after its completion was taken would keep us awake. */
	ofs_wait_fd_clear(storage_fd);
	for (uint32_t i = 0; i < device->config.port_max; i++)
		if (device->ports.entries[i].used)
			ofs_port_wake(device->ports.entries[i].port);
}

/* A thread of the kernel's copies writes into the page cache: to look for their ends may take the
 * processor on which it does. */
static bool
waits_for_kernel(const struct ofs_device *device)
{
	return !device->storage->direct && device->writes.live > device->writes.parked
		&& device->reads.oldest == OFS_NONE;
}

int
ofs_device_poll(struct ofs_device *device)
{
	return device->config.sim_clock ? ofs_device_turn(device) : -EINVAL;
}

static void
run(struct ofs_device *device)
{
	uint64_t before_ns = ofs_device_now_ns(device);
	uint64_t spin_ns = ofs_clock_own_ns(&device->clock, device->config.spin_ns);

	device->reactor.idle_since_ns = before_ns;
	ofs_device_window_begins(device);
	while (!atomic_load_explicit(&device->reactor.stopping, memory_order_relaxed)) {
		bool busy = ofs_device_turn(device);
		uint64_t now_ns = ofs_device_now_ns(device);

		if (busy) {
			device->status.busy_ns += now_ns - before_ns;
			device->reactor.idle_since_ns = now_ns;
		} else {
			device->status.idle_ns += now_ns - before_ns;
			if (now_ns - device->reactor.idle_since_ns >= spin_ns || waits_for_kernel(device)) {
				before_ns = now_ns;
				ofs_device_window_ends(device);
				sleep_until_woken(device, now_ns);
				ofs_device_window_begins(device);
				now_ns = ofs_device_now_ns(device);
				device->status.sleep_ns += now_ns - before_ns;
			}
		}
		before_ns = now_ns;
	}
}

void *
ofs_device_reactor(void *argument)
{
	struct ofs_device *device = argument;
	int rc = ofs_device_open_parts(device, device->mailbox.open_error,
		device->mailbox.open_error_size_bytes);

	pthread_mutex_lock(&device->mailbox.mutex);
	device->mailbox.open_rc = rc;
	device->mailbox.opened = true;
	pthread_cond_broadcast(&device->mailbox.cond);
	pthread_mutex_unlock(&device->mailbox.mutex);
	if (rc == 0)
		run(device);
	ofs_device_refuse_calls(device);
	ofs_device_move_close(device);
	ofs_device_close_parts(device);
	return NULL;
}
