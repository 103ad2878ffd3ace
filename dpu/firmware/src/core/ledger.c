/*
 * ledger.c: the end of every demand and of every prefetched block.
 *
 * Model: one set of counters per tenant, all 64-bit words, so that the sum over tenants is a sum of
 * words. Records are a ring that never overwrites: a record without room is counted as lost.
 */
#include "internal.h"

#define WORDS (sizeof(struct ofs_ledger) / sizeof(uint64_t))

uint32_t
ofs_log2(uint64_t value)
{
	return value ? 63u - (uint32_t)__builtin_clzll(value) : 0;
}

uint32_t
ofs_end_of_cause(uint32_t cause)
{
	static const uint8_t ends[OFS_CAUSE_COUNT] = {
		[OFS_CAUSE_NONE] = OFS_END_RETAINED,
		[OFS_CAUSE_DEMAND] = OFS_END_RETAINED,
		[OFS_CAUSE_WRITE] = OFS_END_RETAINED,
		[OFS_CAUSE_WINDOW] = OFS_END_WINDOW,
		[OFS_CAUSE_PATTERN] = OFS_END_PATTERN,
		[OFS_CAUSE_LOOKAHEAD] = OFS_END_LOOKAHEAD,
		[OFS_CAUSE_SHARED] = OFS_END_SHARED,
		[OFS_CAUSE_BASELINE] = OFS_END_PATTERN,
	};

	assert(cause < OFS_CAUSE_COUNT);
	return ends[cause];
}

void
ofs_fate_add(struct ofs_core *core, uint32_t tenant, uint32_t cause, uint32_t fate)
{
	assert(cause < OFS_CAUSE_COUNT && fate < OFS_FATE_COUNT);
	core->ledgers[tenant].fates[cause][fate]++;
}

/*
 * How the prefetch into the slot ended. The degree bounds neither the window, which is not a guess,
 * nor the host's guesses, so their ends do not affect it.
 */
void
ofs_slot_fate(struct ofs_core *core, uint32_t slot, uint32_t fate)
{
	const struct ofs_slot *s = &core->slots[slot];
	uint32_t tenant = core->chunks[s->chunk].tenant;

	ofs_fate_add(core, tenant, s->cause, fate);
	if (s->cause != OFS_CAUSE_WINDOW && !(s->flags & OFS_FLAG_HINTED))
		ofs_feedback_fate(core, tenant, fate);
}

void
ofs_record_add(struct ofs_core *core, uint32_t session, const struct ofs_step *step,
	const uint8_t *ends)
{
	const struct ofs_session *s = &core->sessions[session];
	uint32_t max = core->config.record_max;

	if (max == 0)
		return;
	for (uint32_t i = 0; i < step->demand_count; i++) {
		struct ofs_ledger_record *record;
		uint32_t position;

		if (core->record_count == max) {
			core->ledgers[s->config.tenant].records_lost += step->demand_count - i;
			return;
		}
		position = core->record_head + core->record_count++;
		record = &core->records[position >= max ? position - max : position];
		record->now_ns = core->now_ns;
		record->session = session;
		record->step = step->step;
		record->layer = (uint16_t)step->layer;
		record->end = ends[i];
		record->nontrivial = (uint8_t)ofs_is_nontrivial(s, step->demands[i]);
		record->ordinal = step->demands[i];
	}
}

int
ofs_core_records(struct ofs_core *core, struct ofs_ledger_record *records, int max)
{
	int count = 0;

	if (max < 0)
		return -EINVAL;
	while (count < max && core->record_count > 0) {
		records[count++] = core->records[core->record_head];
		core->record_count--;
		if (++core->record_head == core->config.record_max)
			core->record_head = 0;
	}
	return count;
}

static void
ledger_gauges(const struct ofs_core *core, uint32_t tenant, struct ofs_ledger *ledger)
{
	const struct ofs_tenant *t = &core->tenants[tenant];

	/* Over all tenants: the highest degree, the sum of the slots. */
	if (t->degree > ledger->degree_now)
		ledger->degree_now = t->degree;
	ledger->resident_slots += t->resident;
}

int
ofs_core_ledger(const struct ofs_core *core, uint32_t tenant, struct ofs_ledger *ledger)
{
	if (tenant != OFS_NONE) {
		if (tenant >= core->tenant_count)
			return -EINVAL;
		*ledger = core->ledgers[tenant];
		ledger_gauges(core, tenant, ledger);
		return 0;
	}
	memset(ledger, 0, sizeof(*ledger));
	for (tenant = 0; tenant < core->config.tenant_max; tenant++) {
		uint64_t sum[WORDS], part[WORDS];

		memcpy(sum, ledger, sizeof(sum));
		memcpy(part, &core->ledgers[tenant], sizeof(part));
		for (size_t i = 0; i < WORDS; i++)
			sum[i] += part[i];
		memcpy(ledger, sum, sizeof(sum));
	}
	for (tenant = 0; tenant < core->tenant_count; tenant++)
		ledger_gauges(core, tenant, ledger);
	return 0;
}

const struct ofs_ledger *
ofs_core_ledger_of(const struct ofs_core *core, uint32_t tenant)
{
	return &core->ledgers[tenant];
}
