/*
 * Prints the hash of the event log of one fixed run, which must be equal on every machine. The run
 * uses all kinds of units, all queues, pieces and their joins, tag misses, drops, credits, draws by
 * load and a drive; the requests are drawn from a counter.
 */
#include <stdio.h>

#include "scenario.h"

int
main(void)
{
	static struct ofs_chip_request requests[SCENARIO_REQUESTS];
	struct ofs_chip_figures figures;
	struct ofs_chip *chip = scenario_open(1);

	scenario_requests(requests, 1);
	assert(ofs_chip_feed(chip, requests, SCENARIO_REQUESTS) == 0);
	assert(ofs_chip_run(chip, OFS_CHIP_NEVER) == 0);
	ofs_chip_figures(chip, &figures);
	assert(figures.ended == SCENARIO_REQUESTS);
	printf("%016llx\n", (unsigned long long)figures.hash);
	ofs_chip_close(chip);
	return 0;
}
