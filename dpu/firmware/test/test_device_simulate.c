/* Does the whole firmware survive a few seeds under the sanitizers? */
#include "support_simulate.h"

#include <assert.h>

int
main(void)
{
	for (uint64_t seed = 1; seed <= 25; seed++) {
		struct simulate_result first, again;

		simulate(seed, 300, &first);
		simulate(seed, 300, &again);
		assert(first.hash == again.hash); /* one seed, one run */
	}
	return 0;
}
