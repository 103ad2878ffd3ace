/* bound_next.c: the demands checked, when each block is needed next, and the endless buffer. */
#include <stdlib.h>
#include <string.h>

#include "ofs_bound.h"

static int
order_check(const struct ofs_bound_demands *demands)
{
	uint8_t *seen;
	int rc = 0;

	if (demands->order == NULL)
		return 0;
	seen = calloc((size_t)demands->row_count + 1, 1);
	if (seen == NULL)
		return -ENOMEM;
	for (uint32_t time = 0; time < demands->row_count && rc == 0; time++) {
		uint32_t row = demands->order[time];

		if (row >= demands->row_count || seen[row])
			rc = -EINVAL;
		else
			seen[row] = 1;
	}
	free(seen);
	return rc;
}

static int
offsets_check(const struct ofs_bound_demands *demands)
{
	for (uint32_t row = 0; row < demands->row_count; row++) {
		uint64_t first = demands->offsets[row], end = demands->offsets[row + 1];

		if (end < first || end - first > UINT16_MAX)
			return -EINVAL;
	}
	return 0;
}

/* One row; they come from the last to the first. `latest`: where a block was met, or row_count. */
static int
row_next(struct ofs_bound_demands *demands, uint32_t time, uint32_t *latest, uint8_t *written)
{
	uint32_t row = demands->order ? demands->order[time] : time;

	for (uint64_t i = demands->offsets[row]; i < demands->offsets[row + 1]; i++) {
		uint32_t block = demands->demands[i];
		uint8_t mark = demands->marks[i] & OFS_BOUND_WRITTEN;

		if (block >= demands->block_count || latest[block] == time)
			return -EINVAL;
		if (latest[block] == demands->row_count)
			written[block] = mark;
		else if (written[block] != mark)
			return -EINVAL;
		demands->next[i] = latest[block];
		latest[block] = time;
	}
	return 0;
}

int
ofs_bound_next(struct ofs_bound_demands *demands)
{
	size_t count = (size_t)demands->block_count + 1;
	uint32_t *latest;
	uint8_t *written;
	int rc;

	if (demands->row_count == OFS_NONE || demands->block_count == OFS_NONE)
		return -EINVAL;
	rc = offsets_check(demands);
	if (rc == 0)
		rc = order_check(demands);
	if (rc)
		return rc;
	latest = malloc(count * sizeof(*latest));
	written = malloc(count);
	if (latest == NULL || written == NULL)
		rc = -ENOMEM;
	for (size_t block = 0; block < count && rc == 0; block++)
		latest[block] = demands->row_count;
	for (uint32_t time = demands->row_count; time-- > 0 && rc == 0;)
		rc = row_next(demands, time, latest, written);
	free(latest);
	free(written);
	return rc;
}

int
ofs_bound_compulsory(const struct ofs_bound_demands *demands, struct ofs_bound_result *result)
{
	uint8_t *seen = calloc((size_t)demands->block_count + 1, 1);

	if (seen == NULL)
		return -ENOMEM;
	result->reads = result->prefetched = 0;
	for (uint32_t time = 0; time < demands->row_count; time++) {
		uint32_t row = demands->order ? demands->order[time] : time;
		uint32_t hits = 0, nontrivial_hits = 0;

		for (uint64_t i = demands->offsets[row]; i < demands->offsets[row + 1]; i++) {
			uint32_t block = demands->demands[i];
			uint32_t hit = seen[block] || (demands->marks[i] & OFS_BOUND_WRITTEN);

			seen[block] = 1;
			hits += hit;
			nontrivial_hits += hit & demands->marks[i] & OFS_BOUND_NONTRIVIAL;
			result->reads += !hit;
		}
		result->hits[row] = (uint16_t)hits;
		result->nontrivial_hits[row] = (uint16_t)nontrivial_hits;
	}
	free(seen);
	return 0;
}
