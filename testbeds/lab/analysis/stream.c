/* Implements ofs_stream.h. */
#include <assert.h>
#include <stdlib.h>

#include "heap.h"
#include "ofs_stream.h"
#include "qos.h"

enum {
	KV,
	STREAM,
	CLASSES,
	PIECES_WAITING = 1,
	KV_READS_MAX = 1 << 20,
	PIECE_BYTES_MAX = 1 << 24,
};

#define AHEAD_PS 2000000000ull /* as in a daemon: what is due later counts as due then */
#define BURST_PS 20000000000ull
#define TIME_MAX_PS (1ull << 60)
#define PS_PER_S 1000000000000ull
#define STREAM_AT_BYTES (1ull << 50) /* behind all KV */

/* A read of KV from when it is asked for until its end is handed out. */
struct kv_read {
	uint64_t tag;
	uint64_t offset_bytes;
	uint64_t end_ps;
	uint32_t size_bytes;
	uint32_t next; /* free, or ended */
};

/* At the drive, with a known end. */
struct flying {
	struct ofs_heap_key key; /* end, in order of submission */
	uint64_t tag;
};

struct stream {
	struct ofs_timing base;
	struct ofs_stream_config config;
	struct ofs_nvme_model *drive;
	struct ofs_qos *qos;
	struct kv_read *reads; /* [in_flight_max] */
	struct flying *flying; /* [queue_depth_max] a heap */
	uint64_t now_ps, sequence;
	uint64_t asked_bytes, begun_bytes;
	uint32_t at_drive[CLASSES], at_drive_max[CLASSES];
	uint32_t flying_count;
	uint32_t kv_count;                /* reads that are owed */
	uint32_t free, ended, ended_last; /* lists of reads */
	struct ofs_stream_stats stats;
};

#define PIECE (1ull << 63) /* a tag: a piece, and its size; else a read's number */

static uint64_t
least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint32_t
piece_next(const struct stream *s)
{
	return (uint32_t)least(s->config.piece_bytes, s->config.bytes - s->asked_bytes);
}

/* The drive has taken it, or given it back. */
static void
count(struct stream *s, uint32_t class, int more)
{
	s->at_drive[class] += (uint32_t)more;
	ofs_qos_hold(s->qos, s->now_ps, class, s->at_drive[class] >= s->at_drive_max[class]);
}

static void
begin(struct stream *s, const struct ofs_qos_item *item)
{
	uint64_t offset_bytes, end_ps, tag = item->tag;
	struct flying flying;

	if (tag & PIECE) {
		offset_bytes = STREAM_AT_BYTES + s->begun_bytes;
		s->begun_bytes += item->cost_bytes;
	} else {
		offset_bytes = s->reads[tag].offset_bytes;
	}
	end_ps = ofs_nvme_model_submit(s->drive, s->now_ps, 0, tag, offset_bytes, item->cost_bytes);
	count(s, item->tenant, 1);
	if (end_ps == OFS_NVME_LATER)
		return;
	flying = (struct flying){{end_ps, s->sequence++}, tag};
	ofs_heap_up(s->flying, sizeof(flying), s->flying_count++, &flying, NULL, NULL);
}

static int
has_room(const struct stream *s)
{
	return s->at_drive[KV] + s->at_drive[STREAM] < s->config.drive.queue_depth_max;
}

static int
is_streaming(const struct stream *s)
{
	return s->asked_bytes < s->config.bytes && s->now_ps >= s->config.begin_ps;
}

/* Whatever has its turn goes to the drive. */
static void
pump(struct stream *s)
{
	struct ofs_qos_item item = {.tenant = KV};

	do {
		struct ofs_qos_stats stats;

		ofs_qos_stats(s->qos, STREAM, &stats);
		if (is_streaming(s) && stats.waiting < PIECES_WAITING) {
			struct ofs_qos_item piece = {.tag = PIECE | piece_next(s),
				.tenant = STREAM,
				.session = OFS_QOS_NO_SESSION,
				.cost_bytes = piece_next(s)};
			int rc = ofs_qos_put(s->qos, s->now_ps, &piece);

			assert(rc == 0);
			s->asked_bytes += piece.cost_bytes;
		}
		if (!has_room(s) || ofs_qos_take(s->qos, s->now_ps, &item) != 1)
			return;
		begin(s, &item);
	} while (1);
}

static void
end(struct stream *s, uint64_t tag, uint64_t end_ps)
{
	struct kv_read *read;

	if (tag & PIECE) {
		s->stats.read_bytes += tag & ~PIECE;
		s->stats.end_ps = end_ps;
		count(s, STREAM, -1);
		return;
	}
	count(s, KV, -1);
	read = &s->reads[tag];
	read->end_ps = end_ps;
	read->next = OFS_NONE;
	if (s->ended == OFS_NONE)
		s->ended = (uint32_t)tag;
	else
		s->reads[s->ended_last].next = (uint32_t)tag;
	s->ended_last = (uint32_t)tag;
}

static uint64_t
event_next(const struct stream *s)
{
	uint64_t next_ps = ofs_nvme_model_next_ps(s->drive);

	if (s->flying_count > 0)
		next_ps = least(next_ps, s->flying[0].key.first);
	if (has_room(s))
		next_ps = least(next_ps, ofs_qos_next_ps(s->qos));
	if (s->asked_bytes == 0 && s->config.bytes > 0)
		next_ps = least(next_ps, s->config.begin_ps);
	return next_ps;
}

static void
ends_take(struct stream *s)
{
	struct ofs_nvme_end one;

	while (s->flying_count > 0 && s->flying[0].key.first <= s->now_ps) {
		struct flying first = s->flying[0], last = s->flying[--s->flying_count];

		ofs_heap_down(s->flying, sizeof(last), s->flying_count, 0, &last, NULL, NULL);
		end(s, first.tag, first.key.first);
	}
	while (ofs_nvme_model_poll(s->drive, s->now_ps, &one, 1) == 1)
		end(s, one.tag, one.end_ps);
}

/* All that happens up to then, in order. */
static void
advance(struct stream *s, uint64_t now_ps)
{
	uint64_t next_ps;

	while ((next_ps = event_next(s)) <= now_ps) {
		s->now_ps = next_ps > s->now_ps ? next_ps : s->now_ps;
		ends_take(s);
		pump(s);
	}
	s->now_ps = now_ps;
}

static uint64_t
stream_read(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	struct stream *s = (struct stream *)timing;
	uint32_t number;
	struct ofs_qos_item item = {.tenant = KV,
		.session = OFS_QOS_NO_SESSION,
		.deadline_ps = request->deadline_ps,
		.cost_bytes = request->size_bytes};
	int rc;

	advance(s, now_ps);
	number = s->free;
	assert(number != OFS_NONE && request->size_bytes <= s->config.piece_bytes);
	s->free = s->reads[number].next;
	s->reads[number] = (struct kv_read){.tag = request->tag,
		.offset_bytes = request->offset_bytes,
		.size_bytes = request->size_bytes};
	s->kv_count++;
	item.tag = number;
	rc = ofs_qos_put(s->qos, now_ps, &item);
	assert(rc == 0);
	pump(s);
	return OFS_TIMING_LATER;
}

static uint64_t
stream_write(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	(void)timing;
	(void)request;
	return now_ps;
}

static uint64_t
stream_hit(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	(void)request;
	return now_ps + ((struct stream *)timing)->config.hit_ps;
}

static uint64_t
stream_command(struct ofs_timing *timing, uint64_t now_ps, const struct ofs_timing_request *request)
{
	(void)request;
	return now_ps + ((struct stream *)timing)->config.command_ps;
}

static uint64_t
stream_next_ps(const struct ofs_timing *timing)
{
	const struct stream *s = (const struct stream *)timing;

	if (s->ended != OFS_NONE)
		return s->reads[s->ended].end_ps;
	return s->kv_count > 0 ? event_next(s) : OFS_TIMING_LATER;
}

static int
stream_poll(struct ofs_timing *timing, uint64_t now_ps, struct ofs_timing_end *ends, int max)
{
	struct stream *s = (struct stream *)timing;
	int found = 0;

	advance(s, now_ps);
	while (found < max && s->ended != OFS_NONE) {
		uint32_t number = s->ended;
		struct kv_read *read = &s->reads[number];

		ends[found++] = (struct ofs_timing_end){read->tag, read->end_ps};
		s->ended = read->next;
		read->next = s->free;
		s->free = number;
		s->kv_count--;
	}
	return found;
}

static void
stream_reset(struct ofs_timing *timing)
{
	struct stream *s = (struct stream *)timing;

	ofs_nvme_model_reset(s->drive);
	ofs_qos_reset(s->qos);
	s->now_ps = s->sequence = s->asked_bytes = s->begun_bytes = 0;
	s->flying_count = s->kv_count = s->free = 0;
	s->at_drive[KV] = s->at_drive[STREAM] = 0;
	s->ended = s->ended_last = OFS_NONE;
	for (uint32_t i = 0; i < s->config.in_flight_max; i++)
		s->reads[i].next = i + 1 < s->config.in_flight_max ? i + 1 : OFS_NONE;
	s->stats = (struct ofs_stream_stats){0};
}

void
ofs_stream_finish(struct ofs_timing *timing)
{
	struct stream *s = (struct stream *)timing;

	while (s->stats.read_bytes < s->config.bytes)
		advance(s, event_next(s));
}

void
ofs_stream_stats(const struct ofs_timing *timing, struct ofs_stream_stats *stats)
{
	const struct stream *s = (const struct stream *)timing;
	struct ofs_qos_stats taken;

	ofs_qos_stats(s->qos, STREAM, &taken);
	*stats = s->stats;
	stats->floor_bytes = taken.floor_bytes;
}

void
ofs_stream_close(struct ofs_timing *timing)
{
	struct stream *s = (struct stream *)timing;

	ofs_nvme_model_close(s->drive);
	if (s->qos != NULL)
		ofs_qos_close(s->qos);
	free(s->reads);
	free(s->flying);
	free(s);
}

static const struct ofs_timing_ops ops = {
	.name = "stream",
	.version = OFS_TIMING_VERSION,
	.read = stream_read,
	.write = stream_write,
	.hit = stream_hit,
	.command = stream_command,
	.next_ps = stream_next_ps,
	.poll = stream_poll,
	.reset = stream_reset,
	.close = ofs_stream_close,
};

static int
arbiter_open(struct stream *s)
{
	const struct ofs_stream_config *config = &s->config;
	struct ofs_qos_config qos = {.tenant_count = CLASSES,
		.session_count = 1,
		.queue_max = config->in_flight_max + PIECES_WAITING,
		.session_max = config->in_flight_max + PIECES_WAITING,
		.quantum_bytes = config->piece_bytes,
		.ahead_ps_max = AHEAD_PS};
	struct ofs_qos_tenant shares[CLASSES] = {
		[KV] = {.weight = config->kv_weight},
		[STREAM] = {.weight = 1,
			.rate_bytes_per_s = config->cap_bytes_per_s,
			.floor_bytes_per_s = config->floor_bytes_per_s},
	};
	uint64_t burst_bytes = config->cap_bytes_per_s / (PS_PER_S / BURST_PS);

	burst_bytes = burst_bytes < config->piece_bytes ? config->piece_bytes : burst_bytes;
	shares[STREAM].burst_bytes = least(burst_bytes, OFS_QOS_BYTES_MAX);
	return ofs_qos_open(&s->qos, &qos, shares);
}

int
ofs_stream_open(struct ofs_timing **out, const struct ofs_stream_config *config)
{
	uint64_t bound = config->piece_bytes ? config->in_flight_bytes / config->piece_bytes : 0;
	struct stream *s;
	int rc;

	*out = NULL;
	if (config->in_flight_max == 0 || config->in_flight_max > KV_READS_MAX || bound == 0
		|| bound > UINT16_MAX || config->piece_bytes > PIECE_BYTES_MAX || config->kv_weight == 0
		|| config->begin_ps > TIME_MAX_PS || config->hit_ps > TIME_MAX_PS
		|| config->command_ps > TIME_MAX_PS || config->bytes >= STREAM_AT_BYTES)
		return -EINVAL;
	s = calloc(1, sizeof(*s));
	if (s == NULL)
		return -ENOMEM;
	s->base = (struct ofs_timing){.ops = &ops, .in_flight_max = config->in_flight_max};
	s->config = *config;
	s->at_drive_max[STREAM] = (uint32_t)bound;
	s->at_drive_max[KV] = (uint32_t)least(bound * config->kv_weight, UINT32_MAX);
	s->reads = calloc(config->in_flight_max, sizeof(*s->reads));
	rc = ofs_nvme_model_open(&s->drive, &config->drive, config->seed);
	if (rc == 0) {
		s->flying = calloc(config->drive.queue_depth_max, sizeof(*s->flying));
		rc = s->flying == NULL || s->reads == NULL ? -ENOMEM : arbiter_open(s);
	}
	if (rc) {
		ofs_stream_close(&s->base);
		return rc;
	}
	stream_reset(&s->base);
	*out = &s->base;
	return 0;
}
