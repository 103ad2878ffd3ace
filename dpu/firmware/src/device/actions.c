/* Carries out what the core decided: reads, directory changes, demands that end. */
#include "internal.h"

#define ACTION_BATCH 256

static void
complete_demand(struct ofs_device *device, const struct ofs_action *action)
{
	struct ofs_result result = {.slot = action->slot,
		.generation = action->generation,
		.rc = action->rc,
		.demand = (uint16_t)action->index};
	const struct ofs_waiter *waiter;

	if (action->waiter >= device->waiters.count)
		return;
	waiter = &device->waiters.entries[action->waiter];
	if (waiter->used && action->index < waiter->sqe.demand_count) /* or its host has left */
		ofs_device_land(device, action->waiter, &result);
}

static void
publish(struct ofs_device *device, const struct ofs_action *action)
{
	struct ofs_region *region = device->tenants[action->tenant].region;
	struct ofs_key key;

	assert(action->slot < device->tenants[action->tenant].slot_count);
	if (ofs_moments_on(&device->moments))
		device->reads.published_ns = ofs_device_now_ns(device);
	if (action->held != 0) {
		ofs_region_extend(region, action->slot, action->granules);
		return;
	}
	ofs_block_key(&action->key, action->layer, &key);
	if (ofs_region_publish(region, &key, action->slot, action->generation, action->cause,
			action->granules)
		< 0) {
		device->status.publish_overflow++;
	}
}

static void
retract(struct ofs_device *device, const struct ofs_action *action)
{
	struct ofs_key key;

	ofs_block_key(&action->key, action->layer, &key);
	ofs_region_retract(device->tenants[action->tenant].region, &key, action->slot);
}

static void
act(struct ofs_device *device, const struct ofs_action *action)
{
	switch (action->type) {
	case OFS_ACTION_READ:
		ofs_device_queue_read(device, action);
		break;
	case OFS_ACTION_PUBLISH:
		publish(device, action);
		break;
	case OFS_ACTION_RETRACT:
		retract(device, action);
		break;
	case OFS_ACTION_COMPLETE:
		complete_demand(device, action);
		break;
	default:
		assert(!"an action the reactor does not know");
	}
}

/*
 * Takes and carries out every action of the core. Nothing here gives the core an event, so the loop
 * ends: reads are only queued, and ofs_device_issue submits them.
 */
void
ofs_device_act(struct ofs_device *device)
{
	struct ofs_action actions[ACTION_BATCH];
	int count;

	device->reactor.core_had_event = true;
	while ((count = ofs_core_actions(device->core, actions, ACTION_BATCH)) > 0)
		for (int i = 0; i < count; i++)
			act(device, &actions[i]);
}

void
ofs_device_after_event(struct ofs_device *device, int rc)
{
	/* -EBUSY means actions that were not taken: a bug of ours, and a lost event. */
	assert(rc != -EBUSY);
	ofs_device_act(device);
}
