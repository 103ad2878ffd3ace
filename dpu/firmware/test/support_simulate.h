/*
 * support_simulate.h: the whole firmware under every fault, from one seed.
 *
 * Model: a seed draws the configuration and the frequency of each event, then `steps` events on
 * hosts, sessions, policy and device, in virtual time on one thread. An oracle tracks the written
 * and acknowledged blocks. The invariants are checked during the run and at the end; a violation
 * prints the seed and the step and aborts the process. The same seed gives the same run.
 */
#ifndef OFS_SUPPORT_SIMULATE_H
#define OFS_SUPPORT_SIMULATE_H

#include <stdint.h>

struct simulate_result {
	uint64_t virtual_ns;
	uint64_t puts; /* acknowledged */
	uint64_t demands;
	uint64_t together; /* calls that were on their way with another of the same driver */
	uint64_t served;   /* demands that came with the right bytes */
	uint64_t lost;     /* acknowledged blocks reported lost after an injected fault */
	uint64_t raw;      /* commands no honest host sends */
	uint64_t faults;   /* I/Os that ended with an error or failed their check */
	uint64_t agreed;   /* decisions of the log that the replay made again */
	uint64_t cuts;     /* of the power, each with a start after it */
	uint64_t discards; /* of dead segments */
	uint64_t values;   /* stores of values that were committed */
	uint64_t listed;   /* names that lists told */
	uint64_t hash;     /* of all decisions, counters and answers */
	uint32_t strict;   /* nothing was injected: nothing may be lost */
};

void simulate(uint64_t seed, uint32_t steps, struct simulate_result *result);

#endif
