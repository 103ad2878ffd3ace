/* Begins reads and writes whose turn has come, as long as the store has room. See issue.c. */
#include "internal.h"

#define REFUSED_MAX 16 /* reads in one turn: the store may take nothing more */

/* 0: in flight; -EAGAIN: put back; any other: it has ended, or there was none. */
static int
begin(struct ofs_device *device, const struct ofs_qos_item *item, uint64_t now_s)
{
	struct ofs_device_tenant *tenant = &device->tenants[item->tenant];
	int rc;

	if (item->tag != OFS_TICKET)
		return ofs_device_begin_read(device, (uint32_t)item->tag, now_s);
	assert(tenant->tickets > 0);
	tenant->tickets--;
	if (tenant->writes.count == 0 || tenant->writes_tried)
		return -ENOENT;
	rc = ofs_device_begin_write(device, item->tenant, now_s);
	tenant->writes_tried = tenant->writes_refused = rc == -EAGAIN;
	return rc == -EAGAIN ? -ENOENT : rc;
}

bool
ofs_device_issue(struct ofs_device *device)
{
	struct ofs_qos_item item;
	uint64_t now_s;
	uint32_t refused = 0;
	bool busy = false;

	if (!ofs_device_issue_again(device))
		return false;
	for (uint32_t i = 0; i < device->tenant_count; i++)
		device->tenants[i].writes_tried = false;
	now_s = ofs_clock_unix_s(&device->clock);
	while (refused < REFUSED_MAX && ofs_device_issue_next(device, &item)) {
		int rc = begin(device, &item, now_s);

		if (rc == -EAGAIN)
			ofs_fifo_give(&device->issue.late, (uint32_t)item.tag);
		refused += rc == -EAGAIN;
		busy |= rc != -EAGAIN && rc != -ENOENT;
		if (rc == 0)
			ofs_device_issue_began(device, item.tenant);
	}
	return busy;
}
