/* Implements nvme_blocks.h. */
#include "nvme_blocks.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum block_state { BLOCK_FREE, BLOCK_OPEN, BLOCK_CLOSED, BLOCK_RETIRED };

struct flash_block {
	uint32_t valid;
	uint32_t erases;
	uint64_t opened_ps;
	uint16_t state;
	uint16_t handle;
};

/* An open block and how many of its pages are written. */
struct block_front {
	uint32_t block, written;
};

struct block_plane {
	struct block_front host[OFS_NVME_HANDLES_MAX], collector[OFS_NVME_HANDLES_MAX];
	uint32_t free_count, lasting; /* the second: not retired */
	uint32_t victim, next;        /* OFS_NONE: it does not collect; the page to look at next */
	uint32_t erases_most;
	int levels; /* the victim was chosen by `level` */
};

struct ofs_nvme_blocks {
	struct ofs_nvme_params params;
	struct ofs_nvme_wear wear;
	struct block_plane *planes;
	struct flash_block *blocks;   /* [plane][block] */
	uint32_t *places;             /* [plane][page it keeps]: where it lies; OFS_NONE: not written */
	uint32_t *pages;              /* [plane][place]: which page lies there; OFS_NONE: void */
	uint32_t plane_count, needed; /* blocks without which a plane cannot collect */
	uint64_t kept, places_each;
	int read_only;
};

static struct flash_block *
block_of(struct ofs_nvme_blocks *b, uint32_t plane, uint32_t block)
{
	return &b->blocks[(uint64_t)plane * b->params.blocks_per_plane + block];
}

/* The first free block; where erases are levelled the least erased. */
static uint32_t
block_take(struct ofs_nvme_blocks *b, uint32_t plane)
{
	uint32_t found = OFS_NONE;

	for (uint32_t i = 0; i < b->params.blocks_per_plane; i++) {
		const struct flash_block *one = block_of(b, plane, i);

		if (one->state != BLOCK_FREE)
			continue;
		if (found == OFS_NONE || one->erases < block_of(b, plane, found)->erases)
			found = i;
		if (b->params.level_erases == 0)
			break;
	}
	assert(found != OFS_NONE); /* a collection begins before the last free block is taken */
	block_of(b, plane, found)->state = BLOCK_OPEN;
	b->planes[plane].free_count--;
	return found;
}

static void
page_void(struct ofs_nvme_blocks *b, uint32_t plane, uint32_t page)
{
	uint32_t *place = &b->places[plane * b->kept + page];

	if (*place == OFS_NONE)
		return;
	b->pages[plane * b->places_each + *place] = OFS_NONE;
	block_of(b, plane, *place / b->params.pages_per_block)->valid--;
	*place = OFS_NONE;
}

/* Puts the page on the next place of the handle's open block, and voids where it was. */
static void
page_place(struct ofs_nvme_blocks *b, uint32_t plane, struct block_front *fronts, uint32_t handle,
	uint32_t page, uint64_t now_ps)
{
	struct block_front *front = &fronts[handle];
	uint32_t each = b->params.pages_per_block, place;

	if (front->block == OFS_NONE || front->written == each) {
		if (front->block != OFS_NONE)
			block_of(b, plane, front->block)->state = BLOCK_CLOSED;
		*front = (struct block_front){block_take(b, plane), 0};
		block_of(b, plane, front->block)->handle = (uint16_t)handle;
		block_of(b, plane, front->block)->opened_ps = now_ps;
	}
	page_void(b, plane, page);
	place = front->block * each + front->written++;
	b->places[plane * b->kept + page] = place;
	b->pages[plane * b->places_each + place] = page;
	block_of(b, plane, front->block)->valid++;
}

/* Chooses a victim if there are too few free blocks. */
static int
collect(struct ofs_nvme_blocks *b, uint32_t plane)
{
	struct block_plane *one = &b->planes[plane];
	uint32_t fewest = b->params.pages_per_block;

	if (one->free_count >= b->params.collect_blocks)
		return 0;
	for (uint32_t i = 0; i < b->params.blocks_per_plane; i++) {
		const struct flash_block *block = block_of(b, plane, i);

		if (block->state == BLOCK_CLOSED && block->valid < fewest) {
			fewest = block->valid;
			one->victim = i;
		}
	}
	one->next = 0;
	return one->victim != OFS_NONE;
}

/* Chooses the oldest block, if it must be refreshed and no other is on its way. */
static int
refresh(struct ofs_nvme_blocks *b, uint32_t plane, uint64_t now_ps)
{
	struct block_plane *one = &b->planes[plane];
	uint64_t oldest_ps = now_ps - b->params.refresh_ps;

	if (b->params.refresh_ps == 0 || now_ps < b->params.refresh_ps
		|| one->free_count < b->params.collect_blocks)
		return 0;
	for (uint32_t i = 0; i < b->params.blocks_per_plane; i++) {
		const struct flash_block *block = block_of(b, plane, i);

		if (block->state != BLOCK_CLOSED || block->opened_ps > oldest_ps)
			continue;
		if (one->victim == OFS_NONE || block->opened_ps < oldest_ps) {
			oldest_ps = block->opened_ps;
			one->victim = i;
		}
	}
	one->next = 0;
	return one->victim != OFS_NONE;
}

/* Chooses the least erased block, if the plane has one that was erased so much more. */
static int
level(struct ofs_nvme_blocks *b, uint32_t plane)
{
	struct block_plane *one = &b->planes[plane];
	uint32_t fewest = one->erases_most - b->params.level_erases + 1;

	if (b->params.level_erases == 0 || one->erases_most < b->params.level_erases || b->read_only)
		return 0;
	for (uint32_t i = 0; i < b->params.blocks_per_plane; i++) {
		const struct flash_block *block = block_of(b, plane, i);

		if (block->state == BLOCK_CLOSED && block->erases < fewest) {
			fewest = block->erases;
			one->victim = i;
		}
	}
	one->next = 0;
	one->levels = one->victim != OFS_NONE;
	return one->levels;
}

/* Free blocks at their limit are never used again, but the last free one is once more. */
static void
retire(struct ofs_nvme_blocks *b, uint32_t plane)
{
	struct block_plane *one = &b->planes[plane];

	for (uint32_t i = 0; b->params.erase_limit > 0 && i < b->params.blocks_per_plane; i++) {
		struct flash_block *block = block_of(b, plane, i);

		if (block->state != BLOCK_FREE || block->erases < b->params.erase_limit)
			continue;
		b->read_only |= one->lasting == b->needed;
		if (b->read_only || one->free_count == 1)
			return;
		block->state = BLOCK_RETIRED;
		one->free_count--;
		one->lasting--;
		b->wear.retired_blocks++;
	}
}

int
ofs_nvme_blocks_write(struct ofs_nvme_blocks *b, uint32_t plane, uint64_t number, uint32_t handle,
	uint64_t now_ps)
{
	page_place(b, plane, b->planes[plane].host, handle, (uint32_t)(number % b->kept), now_ps);
	b->wear.written_pages++;
	return collect(b, plane) || refresh(b, plane, now_ps);
}

void
ofs_nvme_blocks_discard(struct ofs_nvme_blocks *b, uint32_t plane, uint64_t number)
{
	page_void(b, plane, (uint32_t)(number % b->kept));
}

int
ofs_nvme_blocks_left(struct ofs_nvme_blocks *b, uint32_t plane)
{
	struct block_plane *one = &b->planes[plane];
	const uint32_t *pages =
		&b->pages[plane * b->places_each + (uint64_t)one->victim * b->params.pages_per_block];

	while (one->next < b->params.pages_per_block && pages[one->next] == OFS_NONE)
		one->next++;
	return one->next < b->params.pages_per_block;
}

void
ofs_nvme_blocks_move(struct ofs_nvme_blocks *b, uint32_t plane, uint64_t now_ps)
{
	struct block_plane *one = &b->planes[plane];
	uint64_t place = (uint64_t)one->victim * b->params.pages_per_block + one->next;
	uint32_t page = b->pages[plane * b->places_each + place];

	if (page == OFS_NONE)
		return;
	page_place(b, plane, one->collector, block_of(b, plane, one->victim)->handle, page, now_ps);
	b->wear.moved_pages++;
}

int
ofs_nvme_blocks_erase(struct ofs_nvme_blocks *b, uint32_t plane)
{
	struct block_plane *one = &b->planes[plane];
	struct flash_block *block = block_of(b, plane, one->victim);
	int levelled = one->levels;

	one->victim = OFS_NONE;
	one->levels = 0;
	b->wear.erased_blocks++;
	if (++block->erases > one->erases_most)
		one->erases_most = block->erases;
	block->state = BLOCK_FREE;
	one->free_count++;
	retire(b, plane);
	return collect(b, plane) || (!levelled && level(b, plane));
}

int
ofs_nvme_blocks_read_only(const struct ofs_nvme_blocks *b)
{
	return b->read_only;
}

uint64_t
ofs_nvme_blocks_age_ps(const struct ofs_nvme_blocks *b, uint32_t plane, uint32_t number,
	uint64_t now_ps)
{
	uint32_t block = b->planes[plane].victim;

	if (number != OFS_NONE) {
		if (b->places[plane * b->kept + number] == OFS_NONE)
			return 0;
		block = b->places[plane * b->kept + number] / b->params.pages_per_block;
	}
	return now_ps - b->blocks[(uint64_t)plane * b->params.blocks_per_plane + block].opened_ps;
}

void
ofs_nvme_blocks_wear(const struct ofs_nvme_blocks *b, struct ofs_nvme_wear *wear)
{
	uint64_t counted = 0;

	*wear = b->wear;
	for (uint64_t i = 0; i < b->plane_count * b->kept; i++) {
		uint64_t plane = i / b->kept;

		if (b->places[i] == OFS_NONE)
			continue;
		assert(b->pages[plane * b->places_each + b->places[i]] == i % b->kept);
		wear->valid_pages++;
	}
	wear->erases_least = UINT64_MAX;
	for (uint64_t i = 0; i < (uint64_t)b->plane_count * b->params.blocks_per_plane; i++) {
		uint32_t erases = b->blocks[i].erases;

		counted += b->blocks[i].valid;
		wear->erases_least = erases < wear->erases_least ? erases : wear->erases_least;
		wear->erases_most = erases > wear->erases_most ? erases : wear->erases_most;
	}
	wear->read_only = (uint64_t)b->read_only;
	assert(counted == wear->valid_pages);
}

void
ofs_nvme_blocks_reset(struct ofs_nvme_blocks *b)
{
	memset(&b->wear, 0, sizeof(b->wear));
	memset(b->blocks, 0,
		(uint64_t)b->plane_count * b->params.blocks_per_plane * sizeof(*b->blocks));
	memset(b->places, 0xff, b->plane_count * b->kept * sizeof(*b->places));
	memset(b->pages, 0xff, b->plane_count * b->places_each * sizeof(*b->pages));
	memset(b->planes, 0xff, b->plane_count * sizeof(*b->planes)); /* no block is open */
	for (uint32_t i = 0; i < b->plane_count; i++) {
		struct block_plane *one = &b->planes[i];

		one->free_count = one->lasting = b->params.blocks_per_plane;
		one->erases_most = 0;
		one->levels = 0;
	}
	b->read_only = 0;
}

int
ofs_nvme_blocks_open(struct ofs_nvme_blocks **out, const struct ofs_nvme_params *params,
	uint32_t plane_count)
{
	struct ofs_nvme_blocks *b = calloc(1, sizeof(*b));

	*out = b;
	if (b == NULL)
		return -ENOMEM;
	b->params = *params;
	b->plane_count = plane_count;
	b->kept = ofs_nvme_blocks_kept(params);
	b->needed = ofs_nvme_blocks_needed(params);
	b->places_each = (uint64_t)params->blocks_per_plane * params->pages_per_block;
	b->planes = calloc(plane_count, sizeof(*b->planes));
	b->blocks = calloc((uint64_t)plane_count * params->blocks_per_plane, sizeof(*b->blocks));
	b->places = calloc(plane_count * b->kept, sizeof(*b->places));
	b->pages = calloc(plane_count * b->places_each, sizeof(*b->pages));
	if (!b->planes || !b->blocks || !b->places || !b->pages)
		return -ENOMEM;
	ofs_nvme_blocks_reset(b);
	return 0;
}

void
ofs_nvme_blocks_close(struct ofs_nvme_blocks *b)
{
	if (b == NULL)
		return;
	free(b->planes);
	free(b->blocks);
	free(b->places);
	free(b->pages);
	free(b);
}
