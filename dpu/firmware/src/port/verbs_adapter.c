/*
 * The process's RDMA adapter: which device, port and GID the configuration means; see verbs.h.
 *
 * One lock guards it. While a link uses it, it is not reopened.
 */
#include "port/verbs_link.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define GIDS_MAX 256
#define READS_IN_FLIGHT_MAX 16
#define NAMES_SIZE_BYTES 256

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct ofs_link_adapter adapter;     /* under mutex; .context NULL: not open */
static uint32_t user_count;                 /* under mutex */
static const struct ofs_services *services; /* under mutex, set once */

/* What is being opened, and where to write what is wrong with it. */
struct adapter_search {
	const struct ofs_verbs_config *config;
	struct ofs_link_adapter found;
	struct ibv_port_attr port;
	char *error;
	size_t error_size_bytes;
};

static int
refuse(struct adapter_search *search, int rc, const char *what, const char *fix)
{
	snprintf(search->error, search->error_size_bytes, "%s; %s", what, fix);
	return rc;
}

static int
open_device(struct adapter_search *search, struct ibv_device *const *devices, int count)
{
	const char *wanted = search->config->device;
	char names[NAMES_SIZE_BYTES] = "";
	char what[160];
	char fix[NAMES_SIZE_BYTES + 32];

	for (int i = 0; i < count; i++) {
		const char *name = ibv_get_device_name(devices[i]);
		size_t used = strlen(names);

		if (wanted[0] == '\0' || strcmp(name, wanted) == 0) {
			search->found.context = ibv_open_device(devices[i]);
			if (search->found.context == NULL) {
				int rc = -errno;

				snprintf(what, sizeof(what), "RDMA device %.64s cannot be opened (errno %d)", name,
					-rc);
				return refuse(search, rc, what, "see /dev/infiniband: its owner and mode");
			}
			snprintf(search->found.opened.device, sizeof(search->found.opened.device), "%s", name);
			return 0;
		}
		snprintf(names + used, sizeof(names) - used, "%s%s", used > 0 ? ", " : "", name);
	}
	if (count == 0) {
		return refuse(search, -ENODEV, "this machine has no RDMA device",
			"load its driver, or make a soft one: modprobe rdma_rxe && "
			"rdma link add rxe0 type rxe netdev eth0");
	}
	snprintf(what, sizeof(what), "there is no RDMA device %.64s", wanted);
	snprintf(fix, sizeof(fix), "choose one of %s", names);
	return refuse(search, -ENODEV, what, fix);
}

/* The requested port, or the first that is active. */
static int
find_port(struct adapter_search *search)
{
	struct ibv_device_attr device;
	uint32_t wanted = search->config->port;
	char what[160];

	if (ibv_query_device(search->found.context, &device) != 0)
		return refuse(search, -EIO, "the RDMA device does not answer", "see dmesg");
	search->found.send_depth_max = (uint32_t)device.max_qp_wr;
	search->found.serves_reads_max = (uint32_t)device.max_qp_rd_atom;
	search->found.asks_reads_max = (uint32_t)device.max_qp_init_rd_atom;
	if (search->found.serves_reads_max > READS_IN_FLIGHT_MAX)
		search->found.serves_reads_max = READS_IN_FLIGHT_MAX;
	if (search->found.asks_reads_max > READS_IN_FLIGHT_MAX)
		search->found.asks_reads_max = READS_IN_FLIGHT_MAX;
	for (uint32_t port = 1; port <= device.phys_port_cnt; port++) {
		if (wanted != 0 && port != wanted)
			continue;
		if (ibv_query_port(search->found.context, (uint8_t)port, &search->port) == 0
			&& search->port.state == IBV_PORT_ACTIVE) {
			search->found.opened.port = port;
			search->found.lid = search->port.lid;
			search->found.message_size_bytes_max = search->port.max_msg_sz;
			return 0;
		}
	}
	snprintf(what, sizeof(what), "no port of RDMA device %.64s is active",
		search->found.opened.device);
	if (wanted > device.phys_port_cnt)
		snprintf(what, sizeof(what), "RDMA device %.64s has no port %u",
			search->found.opened.device, wanted);
	return refuse(search, -ENETDOWN, what,
		"bring its network up: ip link set NETDEV up; rdma link");
}

/* Higher is better: RoCE v2 is routed, and IPv4 is what most host networks use. */
static int
worth(const struct ibv_gid_entry *entry)
{
	static const uint8_t ipv4[12] = {[10] = 0xff, [11] = 0xff};
	int is_ipv4 = memcmp(entry->gid.raw, ipv4, sizeof(ipv4)) == 0;

	if (entry->gid_type == IBV_GID_TYPE_ROCE_V2)
		return is_ipv4 ? 4 : 3;
	return entry->gid_type == IBV_GID_TYPE_IB ? 2 : 1;
}

static int
find_gid(struct adapter_search *search)
{
	static const union ibv_gid none;
	struct ibv_gid_entry entries[GIDS_MAX];
	const struct ibv_gid_entry *best = NULL;
	ssize_t count = ibv_query_gid_table(search->found.context, entries, GIDS_MAX, 0);
	int32_t wanted = search->config->gid_index;
	char names[NAMES_SIZE_BYTES] = "";
	char what[160];
	char fix[NAMES_SIZE_BYTES + 64];

	for (ssize_t i = 0; i < count; i++) {
		const struct ibv_gid_entry *entry = &entries[i];
		size_t used = strlen(names);

		if (entry->port_num != search->found.opened.port
			|| memcmp(&entry->gid, &none, sizeof(none)) == 0)
			continue;
		snprintf(names + used, sizeof(names) - used, "%s%u", used > 0 ? ", " : "",
			entry->gid_index);
		if (wanted >= 0 ? entry->gid_index == (uint32_t)wanted
						: best == NULL || worth(entry) > worth(best))
			best = entry;
	}
	if (best == NULL && wanted >= 0 && names[0] != '\0') {
		snprintf(what, sizeof(what), "port %u of %.64s has no GID %d", search->found.opened.port,
			search->found.opened.device, wanted);
		snprintf(fix, sizeof(fix), "choose gid_index from %s, or -1", names);
		return refuse(search, -EINVAL, what, fix);
	}
	if (best == NULL) {
		snprintf(what, sizeof(what), "port %u of %.64s has no GID", search->found.opened.port,
			search->found.opened.device);
		return refuse(search, -EINVAL, what, "give its network an address: ip addr add");
	}
	search->found.opened.gid_index = best->gid_index;
	memcpy(search->found.opened.gid, best->gid.raw, sizeof(search->found.opened.gid));
	return 0;
}

static int
choose_mtu(struct adapter_search *search)
{
	uint32_t carried = 128u << search->port.active_mtu;
	uint32_t wanted = search->config->mtu_bytes;
	char what[160];
	char fix[160];

	search->found.opened.mtu_bytes = wanted == 0 ? carried : wanted;
	if (wanted == 0 || (wanted >= 256 && wanted <= carried && (wanted & (wanted - 1)) == 0))
		return 0;
	snprintf(what, sizeof(what), "port %u of %.64s carries packets of %u B, not of %u",
		search->found.opened.port, search->found.opened.device, carried, wanted);
	snprintf(fix, sizeof(fix),
		"set mtu to 0 or %u, or raise the network's: "
		"ip link set NETDEV mtu 9000",
		carried);
	return refuse(search, -EINVAL, what, fix);
}

static int
search_adapter(struct adapter_search *search)
{
	int count = 0;
	struct ibv_device **devices = ibv_get_device_list(&count);
	int rc = open_device(search, devices, devices == NULL ? 0 : count);

	if (devices != NULL)
		ibv_free_device_list(devices);
	if (rc == 0)
		rc = find_port(search);
	if (rc == 0)
		rc = find_gid(search);
	if (rc == 0)
		rc = choose_mtu(search);
	if (rc != 0 && search->found.context != NULL)
		ibv_close_device(search->found.context);
	return rc;
}

/* Whether the open adapter is the requested one. A default matches anything. */
static int
serves(const struct ofs_verbs_config *config)
{
	const struct ofs_verbs_adapter *opened = &adapter.opened;

	return adapter.context != NULL
		&& (config->device[0] == '\0' || strcmp(config->device, opened->device) == 0)
		&& (config->port == 0 || config->port == opened->port)
		&& (config->gid_index < 0 || (uint32_t)config->gid_index == opened->gid_index)
		&& (config->mtu_bytes == 0 || config->mtu_bytes == opened->mtu_bytes);
}

int
ofs_verbs_open(const struct ofs_verbs_config *config, const void *given, char *error,
	size_t error_size_bytes)
{
	struct adapter_search search = {.config = config,
		.error = error,
		.error_size_bytes = error_size_bytes};
	int rc = 0;

	if (((const struct ofs_services *)given)->version != OFS_SIDE_VERSION)
		return refuse(&search, -EPROTO, "the verbs extension belongs to another release",
			"in a checkout run `make dev`, elsewhere reinstall offstage");
	pthread_mutex_lock(&mutex);
	services = given;
	if (!serves(config)) {
		if (user_count > 0)
			rc = refuse(&search, -EBUSY, "another RDMA device or port is in use in this process",
				"end its connections first");
		if (rc == 0)
			rc = search_adapter(&search);
		if (rc == 0) {
			if (adapter.context != NULL)
				ibv_close_device(adapter.context);
			adapter = search.found;
		}
	}
	pthread_mutex_unlock(&mutex);
	return rc;
}

uint32_t
ofs_verbs_version(void)
{
	return OFS_ABI_VERSION;
}

int
ofs_verbs_adapter_get(struct ofs_verbs_adapter *out)
{
	int rc;

	pthread_mutex_lock(&mutex);
	*out = adapter.opened;
	rc = adapter.context == NULL ? -ENODEV : 0;
	pthread_mutex_unlock(&mutex);
	return rc;
}

const struct ofs_link_adapter *
ofs_link_adapter_use(void)
{
	const struct ofs_link_adapter *found = NULL;

	pthread_mutex_lock(&mutex);
	if (adapter.context != NULL) {
		found = &adapter;
		user_count++;
	}
	pthread_mutex_unlock(&mutex);
	return found;
}

void
ofs_link_adapter_release(void)
{
	pthread_mutex_lock(&mutex);
	user_count--;
	pthread_mutex_unlock(&mutex);
}

const struct ofs_services *
ofs_link_services(void)
{
	return services; /* set before an adapter is opened */
}
