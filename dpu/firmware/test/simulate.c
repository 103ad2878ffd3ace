/*
 * simulate: the whole firmware from one seed. `simulate --seed N --steps M [--runs R]` runs seeds
 * N .. N + R - 1 and prints one line for each; a failure prints the seed and aborts.
 */
#include "support_simulate.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char running[64];

/* An assertion inside the firmware knows nothing of seeds. */
static void
say_seed(int number)
{
	ssize_t said = write(STDERR_FILENO, running, strlen(running));

	(void)number;
	(void)said;
}

static uint64_t
number_of(int argc, char **argv, const char *name, uint64_t otherwise)
{
	for (int i = 1; i + 1 < argc; i += 2)
		if (strcmp(argv[i], name) == 0)
			return strtoull(argv[i + 1], NULL, 10);
	return otherwise;
}

int
main(int argc, char **argv)
{
	uint64_t seed = number_of(argc, argv, "--seed", 1);
	uint64_t runs = number_of(argc, argv, "--runs", 1);
	uint32_t steps = (uint32_t)number_of(argc, argv, "--steps", 400);

	signal(SIGABRT, say_seed);
	for (uint64_t i = 0; i < runs; i++) {
		struct simulate_result result;

		snprintf(running, sizeof(running), "simulate: in seed %" PRIu64 " --steps %u\n", seed + i,
			steps);
		simulate(seed + i, steps, &result);
		printf("seed %" PRIu64 " steps %u strict %u virtual_ms %" PRIu64 " puts %" PRIu64
			   " demands %" PRIu64 " together %" PRIu64 " served %" PRIu64 " lost %" PRIu64
			   " raw %" PRIu64 " cuts %" PRIu64 " discards %" PRIu64 " values %" PRIu64
			   " listed %" PRIu64 " faults %" PRIu64 " decisions %" PRIu64 " hash %016" PRIx64 "\n",
			seed + i, steps, result.strict, result.virtual_ns / 1000000, result.puts,
			result.demands, result.together, result.served, result.lost, result.raw, result.cuts,
			result.discards, result.values, result.listed, result.faults, result.agreed,
			result.hash);
	}
	return 0;
}
