/* Hosts with tasks on values; see support_errands.h. */
#include "support_errands.h"

#include <string.h>

struct errand errands[TASKS];

uint32_t
errand_below(struct bed *bed, uint32_t limit)
{
	return (uint32_t)(ofs_draw(&bed->random) % limit);
}

struct ofs_key
errand_key_of(uint32_t number)
{
	return (struct ofs_key){0x1234567800000000ull + number, number};
}

uint64_t
errand_length_of(uint32_t seed)
{
	return 1 + seed * 2654435761u % VALUE_MAX;
}

void
errand_fill(uint32_t seed, uint8_t *bytes)
{
	for (uint64_t i = 0; i < VALUE_MAX; i++)
		bytes[i] = (uint8_t)((i * 31 + (i >> 8) * 7 + seed * 131) ^ seed >> 3);
}

void
bed_attach(struct bed *bed, uint32_t io)
{
	/* Answers take their time, so that a task may be given up before it has one. */
	const struct ofs_fabric_sim_config slow = {.seed = bed->random,
		.step_ns = 500,
		.delay_ns_max = 9000};
	struct ofs_driver *driver;

	world_attach(&bed->world, &bed->hosts[io], 0, &slow);
	driver = bed->hosts[io].driver;
	assert(ofs_driver_register(driver, errands, sizeof(errands)) == 0);
	assert(ofs_value_io_open(&bed->ios[io], driver, bed->sessions, SECOND_NS) == 0);
}

void
bed_open_mode(struct bed *bed, uint64_t seed, uint32_t sessions, uint32_t write_mode)
{
	struct ofs_device_config config;

	*bed = (struct bed){.random = seed, .sessions = sessions};
	world_config(&config);
	/* In one layer the pieces of a value move in runs. */
	config.core.layer_count = config.store.layer_count = seed % 2 == 0 ? 1 : LAYERS;
	config.policy.prefetchers |= OFS_PREFETCH_SHARED;
	config.value_max = 16;
	config.write_mode = write_mode;
	world_open(&bed->world, &config);
	world_tenant(&bed->world, 16);
	for (uint32_t i = 0; i < HOSTS; i++)
		bed_attach(bed, i);
}

void
bed_open(struct bed *bed, uint64_t seed, uint32_t sessions)
{
	bed_open_mode(bed, seed, sessions, OFS_WRITE_THROUGH);
}

void
bed_kill(struct bed *bed, uint32_t io)
{
	ofs_value_io_close(bed->ios[io]);
	bed->ios[io] = NULL;
	world_pass(&bed->world, errand_below(bed, 100000));
	world_detach(&bed->hosts[io]);
}

void
bed_close(struct bed *bed)
{
	for (uint32_t i = 0; i < HOSTS; i++) {
		if (bed->ios[i] != NULL)
			ofs_value_io_close(bed->ios[i]);
		world_abandon(&bed->hosts[i]);
	}
	world_verify(&bed->world);
	world_close(&bed->world, 0);
}

static void
lay_out(struct bed *bed, struct errand *errand, uint64_t length)
{
	uint64_t cuts[4] = {0, errand_below(bed, (uint32_t)length + 1),
		errand_below(bed, (uint32_t)length + 1), length};

	if (cuts[1] > cuts[2]) {
		uint64_t first = cuts[2];

		cuts[2] = cuts[1];
		cuts[1] = first;
	}
	if (errand_below(bed, 2))
		cuts[1] = cuts[2] = length; /* in one part */
	for (uint32_t i = 0; i < 3; i++)
		errand->iovecs[i] =
			(struct iovec){errand->bytes + cuts[i], (size_t)(cuts[i + 1] - cuts[i])};
	errand->task.iovecs = errand->iovecs;
	errand->task.iovec_count = 3;
	errand->task.length = length;
}

void
errand_store(struct bed *bed, struct errand *errand, uint32_t number, uint32_t seed)
{
	*errand = (struct errand){.number = number, .seed = seed};
	errand->task.verb = OFS_VALUE_STORE;
	errand->task.key = errand_key_of(number);
	errand_fill(seed, errand->bytes);
	lay_out(bed, errand, errand_length_of(seed));
	errand->task.filled = errand->task.length;
	errand->task.committed = 1;
}

void
errand_retrieve(struct bed *bed, struct errand *errand, uint32_t number, uint64_t length)
{
	*errand = (struct errand){.number = number};
	errand->task.verb = OFS_VALUE_RETRIEVE;
	errand->task.key = errand_key_of(number);
	lay_out(bed, errand, length);
}

void
errand_name(struct errand *errand, uint32_t verb, uint32_t number)
{
	*errand = (struct errand){.number = number};
	errand->task.verb = verb;
	errand->task.key = errand_key_of(number);
}

void
errand_submit(struct bed *bed, uint32_t io, struct errand *errand)
{
	assert(ofs_value_io_submit(bed->ios[io], &errand->task) == 0);
}

/* Runs until every task has ended. */
void
errand_settle(struct bed *bed, uint32_t io)
{
	struct ofs_value_task *ended[TASKS];

	while (ofs_value_io_count(bed->ios[io]) > 0)
		assert(ofs_value_io_run(bed->ios[io], SECOND_NS, ended, TASKS) >= 0);
}

int
errand_alone(struct bed *bed, struct errand *errand)
{
	errand_submit(bed, 0, errand);
	errand_settle(bed, 0);
	return errand->task.rc;
}

/* The memory has the first bytes of the seed's value. */
void
errand_check(const struct errand *errand, uint32_t seed)
{
	static uint8_t expected[VALUE_MAX];
	uint64_t length = errand_length_of(seed);

	errand_fill(seed, expected);
	assert(errand->task.rc == 0 && errand->task.value_length == length);
	if (errand->task.length < length)
		length = errand->task.length;
	assert(errand->task.landed == length && memcmp(errand->bytes, expected, length) == 0);
}
