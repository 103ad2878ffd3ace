/*
 * reuse.c: what a trace of requests reuses, whatever the cache.
 *
 * Model: the distance of a re-access is the number of other blocks touched since the block's last
 * use (Mattson, Gecsei, Slutz, Traiger, IBM Systems Journal 9(2), 1970). Every block has one mark,
 * at the position of its last use; a Fenwick tree counts the marks behind a position. Positions run
 * out after as many accesses as there are blocks, then the marks are moved together: the tree stays
 * small, and an access costs O(log blocks).
 */
#include <stdlib.h>
#include <string.h>

#include "ofs_prefix.h"

#define NEVER UINT32_MAX

struct marks {
	uint32_t *sums;     /* Fenwick tree over positions 1 .. size */
	uint32_t *block_at; /* [size + 1], NEVER where no block has its mark */
	uint32_t *position; /* [block_count], 0: not used yet */
	uint32_t size;
	uint32_t next;
	uint32_t live;
};

static int
trace_check(const struct ofs_prefix_trace *trace)
{
	if (trace->block_count > UINT32_MAX / 4)
		return -EINVAL;
	for (uint32_t r = 0; r < trace->request_count; r++) {
		if (trace->offsets[r + 1] < trace->offsets[r])
			return -EINVAL;
		for (uint64_t i = trace->offsets[r]; i < trace->offsets[r + 1]; i++)
			if ((uint64_t)trace->run_first[i] + trace->run_count[i] > trace->block_count)
				return -EINVAL;
	}
	return 0;
}

static void
marks_add(struct marks *m, uint32_t position, uint32_t amount)
{
	for (; position <= m->size; position += position & -position)
		m->sums[position] += amount; /* modulo 2^32: UINT32_MAX takes one away */
}

static uint32_t
marks_up_to(const struct marks *m, uint32_t position)
{
	uint32_t sum = 0;

	for (; position > 0; position &= position - 1)
		sum += m->sums[position];
	return sum;
}

/* Move the marks together, in order, and build the tree anew in one pass. */
static void
marks_compact(struct marks *m)
{
	uint32_t kept = 0;

	for (uint32_t i = 1; i < m->next; i++) {
		uint32_t block = m->block_at[i];

		if (block == NEVER)
			continue;
		m->block_at[++kept] = block;
		m->position[block] = kept;
	}
	memset(m->sums, 0, ((size_t)m->size + 1) * sizeof(*m->sums));
	for (uint32_t i = 1; i <= m->size; i++) {
		uint32_t parent = i + (i & -i);

		m->sums[i] += i <= kept;
		if (parent <= m->size)
			m->sums[parent] += m->sums[i];
	}
	for (uint32_t i = kept + 1; i < m->next; i++)
		m->block_at[i] = NEVER;
	m->next = kept + 1;
}

/* The distance of this access, NEVER for a first one. */
static uint32_t
marks_touch(struct marks *m, uint32_t block)
{
	uint32_t last, distance = NEVER;

	if (m->next > m->size)
		marks_compact(m);
	last = m->position[block];
	if (last) {
		distance = m->live - marks_up_to(m, last);
		marks_add(m, last, UINT32_MAX);
		m->block_at[last] = NEVER;
	} else {
		m->live++;
	}
	m->position[block] = m->next;
	m->block_at[m->next] = block;
	marks_add(m, m->next++, 1);
	return distance;
}

int
ofs_prefix_distances(const struct ofs_prefix_trace *trace, uint64_t *distances)
{
	struct marks m = {.size = 2 * trace->block_count + 64, .next = 1};
	int rc = trace_check(trace);

	if (rc)
		return rc;
	m.sums = calloc((size_t)m.size + 1, sizeof(*m.sums));
	m.block_at = malloc(((size_t)m.size + 1) * sizeof(*m.block_at));
	m.position = calloc((size_t)trace->block_count + 1, sizeof(*m.position));
	if (m.sums && m.block_at && m.position) {
		memset(m.block_at, 0xff, ((size_t)m.size + 1) * sizeof(*m.block_at));
		for (uint64_t i = 0; i < trace->offsets[trace->request_count]; i++) {
			for (uint32_t j = 0; j < trace->run_count[i]; j++) {
				uint32_t distance = marks_touch(&m, trace->run_first[i] + j);

				if (distance != NEVER)
					distances[distance]++;
			}
		}
	} else {
		rc = -ENOMEM;
	}
	free(m.sums);
	free(m.block_at);
	free(m.position);
	return rc;
}

struct ideal {
	uint32_t *last_request; /* [block_count], NEVER: not used yet */
	uint32_t *uses;
	struct ofs_prefix_reuse *reuses;
	uint64_t reuse_max;
	uint64_t reuse_count;
};

static void
ideal_reuse(struct ideal *ideal, uint32_t request, uint32_t previous, int again)
{
	if (!again) {
		if (ideal->reuse_count < ideal->reuse_max)
			ideal->reuses[ideal->reuse_count] = (struct ofs_prefix_reuse){request, previous, 0};
		ideal->reuse_count++;
	}
	if (ideal->reuse_count <= ideal->reuse_max)
		ideal->reuses[ideal->reuse_count - 1].count++;
}

static struct ofs_prefix_row
ideal_request(struct ideal *ideal, const struct ofs_prefix_trace *trace, uint32_t request)
{
	struct ofs_prefix_row row = {0, 0, 0};
	uint32_t before = NEVER;
	int unbroken = 1;

	for (uint64_t i = trace->offsets[request]; i < trace->offsets[request + 1]; i++) {
		for (uint32_t j = 0; j < trace->run_count[i]; j++) {
			uint32_t block = trace->run_first[i] + j;
			uint32_t previous = ideal->last_request[block];

			row.last = previous != NEVER;
			row.hits += row.last;
			unbroken = unbroken && row.last;
			row.prefix += (uint32_t)unbroken;
			if (row.last)
				ideal_reuse(ideal, request, previous, previous == before);
			before = previous;
			ideal->last_request[block] = request;
			if (ideal->uses)
				ideal->uses[block]++;
		}
	}
	return row;
}

int64_t
ofs_prefix_ideal(const struct ofs_prefix_trace *trace, struct ofs_prefix_row *rows, uint32_t *uses,
	struct ofs_prefix_reuse *reuses, uint64_t reuse_max)
{
	struct ideal ideal = {.uses = uses, .reuses = reuses, .reuse_max = reuse_max};
	int rc = trace_check(trace);

	if (rc)
		return rc;
	ideal.last_request = malloc(((size_t)trace->block_count + 1) * sizeof(uint32_t));
	if (ideal.last_request == NULL)
		return -ENOMEM;
	memset(ideal.last_request, 0xff, (size_t)trace->block_count * sizeof(uint32_t));
	for (uint32_t r = 0; r < trace->request_count; r++) {
		struct ofs_prefix_row row = ideal_request(&ideal, trace, r);

		if (rows)
			rows[r] = row;
	}
	free(ideal.last_request);
	return (int64_t)ideal.reuse_count;
}
