/*
 * ranks.c: which blocks of a row are the best, and what of a step's demands is among them.
 *
 * Model: the score at a rank is found by two histograms of a byte each, as in the decision core.
 * Several ranks of one row share the first of them.
 */
#include <string.h>

#include "ofs_ranks.h"

#define BUCKETS 256

struct row {
	const uint16_t *values;
	uint32_t count;
	uint32_t high[BUCKETS]; /* values with each upper byte */
};

/* The score at a rank, and how many values of it are among the best `rank`. */
struct border {
	uint32_t value, equals;
};

/* Two tables: neighbours are often alike, and one would wait for its own writes. */
static void
row_count(struct row *row, const uint16_t *values, uint32_t count)
{
	uint32_t odd[BUCKETS] = {0}, i = 0;

	row->values = values;
	row->count = count;
	memset(row->high, 0, sizeof(row->high));
	for (; i + 2 <= count; i += 2) {
		row->high[values[i] >> 8]++;
		odd[values[i + 1] >> 8]++;
	}
	if (i < count)
		row->high[values[i] >> 8]++;
	for (uint32_t bucket = 0; bucket < BUCKETS; bucket++)
		row->high[bucket] += odd[bucket];
}

/* The bucket in which the count from the top reaches `rank`; what is over it is taken off. */
static uint32_t
bucket_at(const uint32_t *histogram, uint32_t *rank)
{
	uint32_t bucket = BUCKETS - 1;

	while (bucket > 0 && histogram[bucket] < *rank)
		*rank -= histogram[bucket--];
	return bucket;
}

/* 1 <= rank <= count. */
static struct border
cut_at(const struct row *row, uint32_t rank)
{
	uint32_t low[BUCKETS] = {0}, top = bucket_at(row->high, &rank), bottom;

	for (uint32_t i = 0; i < row->count; i++)
		if (row->values[i] >> 8 == top)
			low[row->values[i] & 255]++;
	bottom = bucket_at(low, &rank);
	return (struct border){top << 8 | bottom, rank};
}

void
ofs_ranks_best(const uint16_t *values, uint32_t rows, uint32_t blocks, uint32_t best,
	uint8_t *marks)
{
	for (uint32_t r = 0; r < rows; r++, values += blocks, marks += blocks) {
		struct border cut = {0, 0};
		struct row row;

		if (best == 0) {
			memset(marks, 0, blocks);
			continue;
		}
		if (best < blocks) {
			row_count(&row, values, blocks);
			cut = cut_at(&row, best);
		}
		for (uint32_t i = 0; i < blocks; i++)
			marks[i] = values[i] > cut.value;
		for (uint32_t i = 0; cut.value && cut.equals; i++)
			if (values[i] == cut.value) {
				marks[i] = 1;
				cut.equals--;
			}
	}
}

void
ofs_ranks_top(const uint16_t *scores, uint32_t rows, uint32_t stride, uint32_t begin, uint32_t end,
	uint32_t best, uint32_t *chosen, uint32_t chosen_stride)
{
	for (uint32_t r = 0; r < rows && best; r++, scores += stride, chosen += chosen_stride) {
		uint32_t count = 0;
		struct border cut;
		struct row row;

		row_count(&row, scores + begin, end - begin);
		cut = cut_at(&row, best);
		for (uint32_t i = begin; count < best; i++) {
			uint32_t equal = scores[i] == cut.value && cut.equals;

			if (scores[i] > cut.value || equal)
				chosen[count++] = i;
			cut.equals -= equal;
		}
	}
}

static uint64_t
key_of(uint32_t rank, uint32_t ordinal)
{
	return rank ? (uint64_t)rank << 32 | (UINT32_MAX - ordinal) : 0;
}

void
ofs_ranks_limits(const uint16_t *ranks, uint32_t rows, uint32_t blocks, const uint32_t *buffers,
	uint32_t buffer_count, uint64_t *limits)
{
	for (uint32_t r = 0; r < rows; r++, ranks += blocks, limits += buffer_count) {
		struct row row;

		row_count(&row, ranks, blocks);
		for (uint32_t at = 0; at < buffer_count; at++) {
			struct border cut = {0, 0};
			uint32_t i = 0;

			if (buffers[at] < blocks)
				cut = cut_at(&row, buffers[at]);
			for (; cut.value && cut.equals; i++)
				cut.equals -= ranks[i] == cut.value;
			limits[at] = cut.value ? key_of(cut.value, i - 1) : 1;
		}
	}
}

void
ofs_ranks_hits(const struct ofs_ranks_asked *asked, const uint16_t *ranks, const uint64_t *limits,
	uint16_t *hits, uint16_t *nontrivial_hits)
{
	uint32_t width = asked->width, buffers = asked->buffer_count;

	for (uint32_t layer = 0; layer < asked->layers; layer++) {
		const uint16_t *row = ranks + (uint64_t)layer * asked->blocks;

		for (uint32_t i = 0; i < width; i++) {
			uint64_t at = (uint64_t)layer * width + i, key;
			uint32_t ordinal = asked->selected[at], fresh;

			if (!asked->demanded[at])
				continue;
			key = key_of(row[ordinal], ordinal);
			fresh = asked->written[at] && ordinal >= asked->known;
			for (uint32_t buffer = 0; buffer < buffers; buffer++) {
				uint32_t hit = key >= limits[layer * buffers + buffer] || fresh;

				hits[layer * buffers + buffer] += (uint16_t)hit;
				nontrivial_hits[layer * buffers + buffer] +=
					(uint16_t)(hit & asked->nontrivial[at]);
			}
		}
	}
}
