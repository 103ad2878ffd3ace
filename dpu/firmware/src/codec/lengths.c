/*
 * Lengths of a prefix code with no code longer than OFS_CODE_BITS_MAX: the coin collector's method
 * (Larmore and Hirschberg 1990). Each level merges the symbols, lightest first, with pairs of the
 * level below; of equals the symbol comes first. The first 2n - 2 of the last level are taken, and
 * from each level below the members of their pairs. A symbol's length is the number of levels at
 * which it is taken. The order is part of the format: it makes two encoders write the same bytes.
 */
#include "codec/internal.h"

#include <string.h>

struct ofs_code_levels {
	uint32_t weights[OFS_SYMBOL_MAX]; /* of the symbols in use, lightest first */
	uint8_t symbols[OFS_SYMBOL_MAX];
	uint8_t lengths[OFS_SYMBOL_MAX];
	uint32_t count;
	uint8_t is_symbol[OFS_CODE_BITS_MAX][2 * OFS_SYMBOL_MAX];
};

/* Lightest first, of equals the smaller symbol. */
static void
sort_symbols(struct ofs_code_levels *levels, const uint32_t *weights)
{
	levels->count = 0;
	for (uint32_t symbol = 0; symbol < OFS_SYMBOL_MAX; symbol++) {
		uint32_t at = levels->count;

		if (weights[symbol] == 0)
			continue;
		for (; at > 0 && levels->weights[at - 1] > weights[symbol]; at--) {
			levels->weights[at] = levels->weights[at - 1];
			levels->symbols[at] = levels->symbols[at - 1];
		}
		levels->weights[at] = weights[symbol];
		levels->symbols[at] = (uint8_t)symbol;
		levels->lengths[levels->count++] = 0;
	}
}

static void
merge_levels(struct ofs_code_levels *levels)
{
	uint32_t merged[2 * OFS_SYMBOL_MAX];
	uint32_t pairs[OFS_SYMBOL_MAX];
	uint32_t pair_count = 0;

	for (uint32_t level = 0; level < OFS_CODE_BITS_MAX; level++) {
		uint32_t symbol = 0;
		uint32_t pair = 0;
		uint32_t count = 0;

		while (symbol < levels->count || pair < pair_count) {
			int first = pair == pair_count
				|| (symbol < levels->count && levels->weights[symbol] <= pairs[pair]);

			levels->is_symbol[level][count] = (uint8_t)first;
			merged[count++] = first ? levels->weights[symbol++] : pairs[pair++];
		}
		pair_count = count / 2;
		for (uint32_t i = 0; i < pair_count; i++)
			pairs[i] = merged[2 * i] + merged[2 * i + 1];
	}
}

static void
count_lengths(struct ofs_code_levels *levels)
{
	uint32_t taken = 2 * levels->count - 2;

	for (uint32_t level = OFS_CODE_BITS_MAX; level-- > 0;) {
		uint32_t symbols = 0;

		for (uint32_t i = 0; i < taken; i++)
			symbols += levels->is_symbol[level][i];
		for (uint32_t i = 0; i < symbols; i++)
			levels->lengths[i]++;
		taken = 2 * (taken - symbols);
	}
}

void
ofs_piece_lengths(struct ofs_piece_code *code, const uint32_t *weights)
{
	struct ofs_code_levels levels;
	uint8_t length_of[OFS_SYMBOL_MAX];
	uint32_t at[OFS_CODE_BITS_MAX + 1];

	sort_symbols(&levels, weights);
	if (levels.count > 1) {
		merge_levels(&levels);
		count_lengths(&levels);
	}
	memset(code->counts, 0, sizeof(code->counts));
	for (uint32_t i = 0; i < levels.count; i++) {
		length_of[levels.symbols[i]] = levels.lengths[i];
		code->counts[levels.lengths[i]]++;
	}
	for (uint32_t length = 0, next = 0; length <= OFS_CODE_BITS_MAX; length++) {
		at[length] = next;
		next += code->counts[length];
	}
	for (uint32_t symbol = 0; symbol < OFS_SYMBOL_MAX; symbol++)
		if (weights[symbol] > 0)
			code->symbols[at[length_of[symbol]]++] = (uint8_t)symbol;
	code->symbol_count = levels.count;
}
