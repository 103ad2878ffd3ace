/*
 * core.c: open and close, policy and tenants, and the actions that go out.
 *
 * Model: every public event call checks its input, then enters (time advances, and there is room
 * for its actions), then decides, then is logged. A refused input changes nothing and is not
 * logged.
 */
#include <stdlib.h>

#include "internal.h"

int
ofs_event_enter(struct ofs_core *core, uint64_t now_ns, enum ofs_event_type type)
{
	if (core->action_max - core->action_tail < core->action_worst)
		return -EBUSY; /* the owner has not taken the actions of earlier events */
	if (now_ns > core->now_ns)
		core->now_ns = now_ns;
	core->event++;
	core->tally = &core->tallies[type];
	core->tally->work.events++;
	core->logged_actions = core->action_tail;
	return 0;
}

static struct ofs_action *
add_action(struct ofs_core *core, uint32_t type)
{
	struct ofs_action *action;

	assert(core->action_tail < core->action_max);
	action = &core->actions[core->action_tail++];
	memset(action, 0, sizeof(*action));
	action->type = type;
	action->session = OFS_NONE;
	return action;
}

void
ofs_action_slot(struct ofs_core *core, uint32_t type, uint32_t slot)
{
	const struct ofs_slot *s = &core->slots[slot];
	const struct ofs_chunk *chunk = &core->chunks[s->chunk];
	struct ofs_action *action = add_action(core, type);

	action->tenant = chunk->tenant;
	action->chunk = s->chunk;
	action->layer = s->layer;
	action->slot = slot - core->tenants[chunk->tenant].slot_base;
	action->generation = s->generation;
	action->cause = s->cause;
	action->granules = type == OFS_ACTION_PUBLISH ? ofs_part_valid(core, slot) : 0;
	action->key = chunk->key;
	action->store_key = core->chunks[chunk->home].key;
}

void
ofs_action_complete(struct ofs_core *core, uint32_t tenant, uint32_t waiter, uint32_t index, int rc,
	uint32_t slot)
{
	struct ofs_action *action;

	if (rc == 0) {
		ofs_action_slot(core, OFS_ACTION_COMPLETE, slot);
		action = &core->actions[core->action_tail - 1];
	} else {
		action = add_action(core, OFS_ACTION_COMPLETE);
		action->tenant = tenant;
	}
	action->waiter = waiter;
	action->index = index;
	action->rc = rc;
}

static int
check_policy(const struct ofs_policy *policy)
{
	if ((policy->prefetchers & ~(uint32_t)OFS_PREFETCH_ALL) || policy->eviction >= OFS_EVICT_COUNT
		|| policy->ema_shift > 15 || policy->admit_named_min > 255
		|| policy->residency_percent > 100000 || policy->accuracy_permille_min > 1000
		|| policy->lateness_permille_max > 1000 || policy->probability_permille_min > 1000
		|| policy->lease_ns > 1ull << 62
		|| (policy->hint_score_bits != 0 && policy->hint_score_bits != 8
			&& policy->hint_score_bits != 16))
		return -EINVAL;
	return 0;
}

int
ofs_session_check(const struct ofs_core *core, uint32_t session)
{
	return session < core->config.session_max && core->sessions[session].open ? 0 : -EINVAL;
}

int
ofs_block_check(const struct ofs_core *core, uint32_t chunk, uint32_t layer)
{
	if (chunk >= core->config.chunk_max || !core->chunks[chunk].used
		|| layer >= core->config.layer_count)
		return -EINVAL;
	return 0;
}

/* Free lists are stacks filled from the top, so that number 0 is handed out first. */
static void
stack_fill(uint32_t *stack, uint32_t *count, uint32_t size)
{
	for (uint32_t i = 0; i < size; i++)
		stack[i] = size - 1 - i;
	*count = size;
}

static void
policy_apply(struct ofs_core *core, const struct ofs_policy *policy)
{
	uint64_t rate = policy->prefetch_bytes_per_s_max;

	core->policy = *policy;
	core->evict = ofs_evict_of(policy->eviction);
	core->block_cost_ns =
		rate == 0 ? 0 : (core->config.block_size_bytes * 1000000000ull + rate - 1) / rate;
	for (uint32_t tenant = 0; tenant < core->tenant_count; tenant++)
		ofs_feedback_reset(core, tenant);
}

int
ofs_core_open(struct ofs_core **out, const struct ofs_core_config *config,
	const struct ofs_policy *policy)
{
	uint64_t size_bytes = ofs_core_size_bytes(config);
	struct ofs_core *core;

	if (size_bytes == 0 || check_policy(policy))
		return -EINVAL;
	core = aligned_alloc(64, size_bytes);
	if (core == NULL)
		return -ENOMEM;
	memset(core, 0, size_bytes); /* also touches every page, which would cost a page fault later */
	core->config = *config;
	ofs_core_layout(core, (unsigned char *)core);
	core->size_bytes = size_bytes;
	core->tally = &core->tallies[OFS_EVENT_OPEN];
	core->tally->work.events = 1;
	stack_fill(core->free_chunks, &core->free_chunk_count, config->chunk_max);
	stack_fill(core->free_ios, &core->free_io_count, config->io_max);
	stack_fill(core->free_waiters, &core->free_waiter_count,
		config->session_max * config->demand_max);
	stack_fill(core->free_sessions, &core->free_session_count, config->session_max);
	ofs_evict_open(core);
	core->pending_head = core->pending_tail = OFS_NONE;
	core->lease_head = core->lease_tail = OFS_NONE;
	policy_apply(core, policy);
	ofs_log_open(core);
	*out = core;
	return 0;
}

void
ofs_core_close(struct ofs_core *core)
{
	free(core);
}

int
ofs_core_describe(const struct ofs_core *core, struct ofs_core_config *config,
	struct ofs_policy *policy)
{
	*config = core->config;
	*policy = core->policy;
	return 0;
}

int
ofs_core_set_policy(struct ofs_core *core, uint64_t now_ns, const struct ofs_policy *policy)
{
	struct ofs_bytes in = {policy, sizeof(*policy)};
	int rc = check_policy(policy);

	if (rc || (rc = ofs_event_enter(core, now_ns, OFS_EVENT_POLICY)))
		return rc;
	policy_apply(core, policy);
	ofs_evict_rebuild(core);
	ofs_log_event(core, OFS_EVENT_POLICY, now_ns, 0, &in, 1, NULL, 0);
	return 0;
}

static void
tenant_init(struct ofs_core *core, uint32_t number, const struct ofs_tenant_config *config)
{
	struct ofs_tenant *tenant = &core->tenants[number];

	memset(tenant, 0, sizeof(*tenant));
	tenant->secret = config->secret;
	tenant->slot_base = core->slots_given;
	tenant->slot_count = config->slot_count;
	tenant->shadow_head = tenant->shadow_tail = OFS_NONE;
	ofs_ghost_open(core, number);
	tenant->stride = (1u << 20) / config->weight;
	tenant->used = 1;
	stack_fill(core->free_slots + tenant->slot_base, &tenant->free_count, tenant->slot_count);
	core->slots_given += config->slot_count;
	assert(core->slots_given <= core->config.slot_count);
}

int
ofs_core_tenant_add(struct ofs_core *core, uint64_t now_ns, const struct ofs_tenant_config *config,
	uint32_t *tenant)
{
	struct ofs_tenant_config logged = {.slot_count = config->slot_count, .weight = config->weight};
	struct ofs_bytes in = {&logged, sizeof(logged)}, out = {tenant, sizeof(*tenant)};
	int rc;

	if (config->slot_count == 0 || config->weight == 0 || config->weight > 1u << 20)
		return -EINVAL;
	if (core->tenant_count == core->config.tenant_max
		|| config->slot_count > core->config.slot_count - core->slots_given)
		return -ENOSPC;
	rc = ofs_event_enter(core, now_ns, OFS_EVENT_TENANT);
	if (rc)
		return rc;
	*tenant = core->tenant_count++;
	tenant_init(core, *tenant, config);
	ofs_feedback_reset(core, *tenant);
	ofs_log_event(core, OFS_EVENT_TENANT, now_ns, 0, &in, 1, &out, 1);
	return 0;
}

int
ofs_core_actions(struct ofs_core *core, struct ofs_action *actions, int max)
{
	uint32_t count = core->action_tail - core->action_head;

	if (max < 0)
		return -EINVAL;
	if (count > (uint32_t)max)
		count = (uint32_t)max;
	memcpy(actions, core->actions + core->action_head, count * sizeof(*actions));
	core->action_head += count;
	if (core->action_head == core->action_tail)
		core->action_head = core->action_tail = 0;
	return (int)count;
}
