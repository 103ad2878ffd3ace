/* Benches of the host's path, in C so that no Python runs in the loop; see driver.h. */
#include "clock.h"
#include "driver/internal.h"
#include "region/shared.h"

#include <pthread.h>
#include <string.h>

int
ofs_driver_bench_nop(struct ofs_driver *driver, uint32_t count, uint64_t *rtt_ns)
{
	for (uint32_t i = 0; i < count; i++) {
		uint64_t start_ns = ofs_driver_now_ns(driver);
		uint64_t deadline_ns = start_ns + OFS_COMMAND_TIMEOUT_NS;
		struct ofs_sqe sqe = {.op = OFS_OP_NOP};
		int rc = ofs_command_run(driver, &sqe, deadline_ns);

		if (rc != 0)
			return rc;
		rtt_ns[i] = ofs_driver_now_ns(driver) - start_ns;
	}
	return 0;
}

int
ofs_driver_bench_values(struct ofs_driver *driver, uint32_t count, const struct ofs_value_ask *asks,
	struct ofs_value_told *told, uint32_t round_count, uint64_t *round_ns)
{
	const struct ofs_asking asking = {.verb = OFS_VALUE_EXIST,
		.count = count,
		.asks = asks,
		.told = told,
		.timeout_ns = OFS_COMMAND_TIMEOUT_NS};

	for (uint32_t i = 0; i < round_count; i++) {
		uint64_t start_ns = ofs_driver_now_ns(driver);
		int rc = ofs_driver_values(driver, &asking);

		if (rc != 0)
			return rc;
		round_ns[i] = ofs_driver_now_ns(driver) - start_ns;
	}
	return 0;
}

int
ofs_driver_bench_fetch(struct ofs_driver *driver, struct ofs_fetch *fetch, uint32_t count,
	uint64_t *taken_ns)
{
	uint64_t start_ns = ofs_driver_now_ns(driver);
	int rc = 0;

	for (uint32_t i = 0; i < count && rc == 0; i++) {
		fetch->step++;
		rc = ofs_driver_fetch(driver, fetch);
	}
	*taken_ns = ofs_driver_now_ns(driver) - start_ns;
	return rc;
}

/* A batch of keys from `first` on, wrapping around. */
static void
prepare(struct ofs_driver *driver, uint32_t key_count, const struct ofs_key *keys, uint32_t first,
	uint8_t *target)
{
	const struct ofs_fabric *fabric = driver->fabric;
	uint64_t stride_bytes = fabric->ops->copy != NULL ? 0 : fabric->region.payload_size_bytes;

	for (uint32_t i = 0; i < OFS_BENCH_READ_BATCH; i++) {
		driver->reads[i].key = keys[(first + i) % key_count];
		driver->reads[i].target = target + i * stride_bytes;
		driver->reads[i].granules = 0; /* a fetch may have left its target there */
	}
}

static int
read_batch(struct ofs_driver *driver, bool checked, uint64_t *batch_ns)
{
	uint64_t start_ns = ofs_driver_now_ns(driver);
	int refused = 0;
	int rc = ofs_reads_lookup(driver, driver->reads, OFS_BENCH_READ_BATCH);

	if (rc == 0)
		rc = ofs_reads_run(driver, driver->reads, OFS_BENCH_READ_BATCH, checked);
	*batch_ns = ofs_driver_now_ns(driver) - start_ns;
	for (uint32_t i = 0; rc == 0 && i < OFS_BENCH_READ_BATCH; i++)
		refused += driver->reads[i].rc != 0;
	return rc != 0 ? rc : refused;
}

/* The slots are found before the clock starts: a memcpy is given its addresses too. */
static int
copy_batch(struct ofs_driver *driver, uint64_t *batch_ns)
{
	struct ofs_fabric *fabric = driver->fabric;
	uint64_t start_ns;
	int rc = ofs_reads_lookup(driver, driver->reads, OFS_BENCH_READ_BATCH);

	start_ns = ofs_driver_now_ns(driver);
	for (uint32_t i = 0; rc == 0 && i < OFS_BENCH_READ_BATCH; i++) {
		const struct ofs_block_read *read = &driver->reads[i];

		if (read->slot != OFS_NONE) {
			struct ofs_span span = {read->target, fabric->region.payload_size_bytes};

			rc = fabric->ops->read(fabric,
				fabric->region.slots_offset
					+ (uint64_t)read->slot * fabric->region.slot_stride_bytes,
				&span, 1);
		}
	}
	if (rc == 0)
		rc = fabric->ops->flush(fabric, OFS_COMMAND_TIMEOUT_NS);
	*batch_ns = ofs_driver_now_ns(driver) - start_ns;
	return rc;
}

int
ofs_driver_bench_read(struct ofs_driver *driver, uint32_t key_count, const struct ofs_key *keys,
	uint32_t batch_count, uint8_t *target, uint64_t *read_ns, uint64_t *memcpy_ns,
	uint64_t *unchecked_ns)
{
	uint32_t third = key_count / 3;
	int refused = 0;
	int rc = 0;

	if (key_count < 3 * OFS_BENCH_READ_BATCH
		|| driver->fabric->port.demand_max < OFS_BENCH_READ_BATCH) {
		return -EINVAL;
	}
	/* Three offsets a third apart: no way of reading profits from lines that another has just
	 * cached. */
	for (uint32_t i = 0; i < batch_count && rc >= 0; i++) {
		uint32_t first = i * OFS_BENCH_READ_BATCH;

		prepare(driver, key_count, keys, first, target);
		rc = read_batch(driver, true, &read_ns[i]);
		refused += rc > 0 ? rc : 0;
		if (rc >= 0) {
			prepare(driver, key_count, keys, first + third, target);
			rc = copy_batch(driver, &memcpy_ns[i]);
		}
		if (rc >= 0) {
			prepare(driver, key_count, keys, first + 2 * third, target);
			rc = read_batch(driver, false, &unchecked_ns[i]);
			refused += rc > 0 ? rc : 0;
		}
	}
	return rc < 0 ? rc : refused;
}

/* Slots far apart, so that reading one does not prefetch another. */
static uint32_t
slot_of(uint64_t number, uint32_t slot_count)
{
	return (uint32_t)(number * 2654435761u % slot_count);
}

int
ofs_driver_bench_link(struct ofs_driver *driver, uint32_t size_bytes, uint32_t batch,
	uint32_t round_count, uint8_t *target, uint64_t *round_ns)
{
	struct ofs_fabric *fabric = driver->fabric;
	const struct ofs_region_header *region = &fabric->region;
	uint64_t number = 0;
	int rc = 0;

	if (batch == 0 || batch > OFS_BENCH_LINK_BATCH_MAX || size_bytes > region->payload_size_bytes)
		return -EINVAL;
	for (uint32_t i = 0; i < round_count && rc == 0; i++) {
		uint64_t start_ns = ofs_driver_now_ns(driver);

		for (uint32_t j = 0; j < batch && rc == 0; j++) {
			struct ofs_span span = {target + (uint64_t)j * size_bytes, size_bytes};
			uint32_t slot = slot_of(number++, region->slot_count);

			rc = fabric->ops->read(fabric,
				region->slots_offset + (uint64_t)slot * region->slot_stride_bytes, &span, 1);
		}
		if (rc == 0)
			rc = fabric->ops->flush(fabric, OFS_COMMAND_TIMEOUT_NS);
		round_ns[i] = ofs_driver_now_ns(driver) - start_ns;
	}
	return rc;
}

struct spin_words {
	_Alignas(64) uint32_t ping;
	_Alignas(64) uint32_t pong;
	_Alignas(64) uint32_t stop;
};

static void *
answer(void *argument)
{
	struct spin_words *words = argument;
	uint32_t seen = 0;

	while (ofs_word_load(&words->stop) == 0) {
		uint32_t ping = ofs_word_load(&words->ping);

		if (ping != seen) {
			seen = ping;
			ofs_word_store(&words->pong, ping);
		} else {
			ofs_cpu_relax();
		}
	}
	return NULL;
}

int
ofs_bench_spin_rtt(uint32_t count, uint64_t *rtt_ns)
{
	struct spin_words words = {0};
	pthread_t thread;
	int rc = pthread_create(&thread, NULL, answer, &words);

	if (rc != 0)
		return -rc;
	for (uint32_t i = 0; i < count; i++) {
		uint64_t start_ns = ofs_machine_now_ns();

		ofs_word_store(&words.ping, i + 1);
		while (ofs_word_load(&words.pong) != i + 1)
			ofs_cpu_relax();
		rtt_ns[i] = ofs_machine_now_ns() - start_ns;
	}
	ofs_word_store(&words.stop, 1);
	pthread_join(thread, NULL);
	return 0;
}

void
ofs_bench_memcpy(const uint8_t *source, uint32_t slot_count, uint32_t size_bytes, uint32_t batch,
	uint32_t round_count, uint8_t *target, uint64_t *round_ns)
{
	uint64_t number = 0;

	for (uint32_t i = 0; i < round_count; i++) {
		uint64_t start_ns = ofs_machine_now_ns();

		for (uint32_t j = 0; j < batch; j++) {
			memcpy(target + (uint64_t)j * size_bytes,
				source + (uint64_t)slot_of(number++, slot_count) * size_bytes, size_bytes);
		}
		round_ns[i] = ofs_machine_now_ns() - start_ns;
	}
}
