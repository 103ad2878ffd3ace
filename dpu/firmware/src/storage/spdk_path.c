/*
 * Transport ids in storage.path, and the claim on each namespace.
 *
 * Model: ids are SPDK's own ("trtype:TCP adrfam:IPv4 traddr:... trsvcid:... subnqn:..."), plus
 * `ns:` (default: the first active one) and `hostnqn:`. Several ids, separated by commas, are
 * striped in that order. A claim is a socket with an abstract name: it ends with the process and,
 * like a file lock, keeps a second daemon on this machine off the namespace.
 */
#include "spdk_parts.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { PATH_BYTES = 512 };

/* Removes "name:value" from `text`. 1 if it was there and fitted. */
static int
take_word(char *text, const char *name, char *value, size_t size_bytes)
{
	size_t length = strlen(name);

	for (char *at = text; *at != '\0'; at++) {
		size_t size = 0;

		if ((at != text && !isspace((unsigned char)at[-1])) || strncasecmp(at, name, length) != 0
			|| (at[length] != ':' && at[length] != '='))
			continue;
		while (at[length + 1 + size] != '\0' && !isspace((unsigned char)at[length + 1 + size]))
			size++;
		if (size >= size_bytes)
			return 0;
		memcpy(value, at + length + 1, size);
		value[size] = '\0';
		memset(at, ' ', length + 1 + size);
		return 1;
	}
	return 0;
}

static int
refuse(char *why, int rc, const char *text, const char *what)
{
	snprintf(why, SPDK_WHY_BYTES, "%.240s: %s", text, what);
	return rc;
}

/* Each storage gets its own name and identifier: otherwise SPDK would share one controller among
 * them, and a failure of one would take the others along. */
static int
name_host(struct ofs_spdk_drive *drive)
{
	const uint8_t *id = drive->host_id;
	int at;

	if (getrandom(drive->host_id, sizeof(drive->host_id), 0) != sizeof(drive->host_id))
		return -EIO;
	at = snprintf(drive->host_nqn, sizeof(drive->host_nqn), "nqn.2014-08.org.nvmexpress:uuid:");
	for (int i = 0; i < 16; i++)
		at += snprintf(drive->host_nqn + at, sizeof(drive->host_nqn) - (size_t)at, "%s%02x",
			i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id[i]);
	return 0;
}

static int
parse_one(struct ofs_spdk_drive *drive, const char *text, char *why)
{
	char rest[PATH_BYTES];
	char number[16] = "";
	char *end = NULL;
	const char *type;

	snprintf(rest, sizeof(rest), "%s", text);
	drive->id.trtype = SPDK_NVME_TRANSPORT_PCIE;
	(void)take_word(rest, "hostnqn", drive->host_nqn, sizeof(drive->host_nqn));
	if (take_word(rest, "ns", number, sizeof(number))) {
		drive->nsid = (uint32_t)strtoul(number, &end, 10);
		if (drive->nsid == 0 || *end != '\0')
			return refuse(why, -EINVAL, text, "ns is not a number; namespaces count from 1");
	}
	for (size_t size = strlen(rest); size > 0 && isspace((unsigned char)rest[size - 1]); size--)
		rest[size - 1] = '\0'; /* which SPDK reads as a key */
	if (spdk_nvme_transport_id_parse(&drive->id, rest) != 0 || drive->id.traddr[0] == '\0')
		return refuse(why, -EINVAL, text,
			"this is not a transport id; write trtype:TCP adrfam:IPv4 traddr:127.0.0.1 "
			"trsvcid:4420 subnqn:NQN, or trtype:PCIe traddr:0000:01:00.0");
	type = spdk_nvme_transport_id_trtype_str(drive->id.trtype);
	if (type == NULL || !spdk_nvme_transport_available_by_name(type))
		return refuse(why, -EPROTONOSUPPORT, text,
			"this SPDK was built without the transport; configure it with it, or choose TCP");
	if (drive->id.trtype != SPDK_NVME_TRANSPORT_PCIE && drive->id.subnqn[0] == '\0')
		return refuse(why, -EINVAL, text, "subnqn is missing; name the subsystem of the target");
	if ((drive->id.trtype == SPDK_NVME_TRANSPORT_TCP
			|| drive->id.trtype == SPDK_NVME_TRANSPORT_RDMA)
		&& drive->id.trsvcid[0] == '\0')
		return refuse(why, -EINVAL, text, "trsvcid is missing; give the port, often 4420");
	return drive->host_nqn[0] != '\0' ? 0 : name_host(drive);
}

int
ofs_spdk_path_parse(struct ofs_spdk_link *link, const char *path, char *why)
{
	char copy[PATH_BYTES];
	char *rest = copy;
	char *one;

	snprintf(copy, sizeof(copy), "%s", path);
	ofs_spdk_log_begin();
	while ((one = strsep(&rest, ",")) != NULL) {
		int rc;

		while (isspace((unsigned char)*one))
			one++;
		if (link->drive_count == SPDK_DRIVES_MAX)
			return refuse(why, -EINVAL, path, "more than 8 drives; leave some out");
		rc = parse_one(&link->drives[link->drive_count], one, why);
		if (rc != 0)
			return rc;
		link->drives[link->drive_count++].lock_fd = -1;
	}
	return 0;
}

/* FNV-1a of the text that names a namespace. */
static uint64_t
hash_text(uint64_t hash, const char *text)
{
	for (; *text != '\0'; text++)
		hash = (hash ^ (uint8_t)*text) * 0x100000001b3ull;
	return hash;
}

int
ofs_spdk_path_claim(struct ofs_spdk_drive *drive, char *why)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	uint64_t hash = 0xcbf29ce484222325ull;

	hash = hash_text(hash, drive->id.trstring);
	hash = hash_text(hash, drive->id.traddr);
	hash = hash_text(hash, drive->id.trsvcid);
	hash = hash_text(hash, drive->id.subnqn) + drive->nsid;
	snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "offstage-spdk-%016llx",
		(unsigned long long)hash);
	drive->lock_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (drive->lock_fd < 0)
		return -errno;
	if (bind(drive->lock_fd, (struct sockaddr *)&name, sizeof(name)) == 0)
		return 0;
	snprintf(why, SPDK_WHY_BYTES,
		"namespace %u of %.180s is in use by a daemon on this machine; stop it, or give another",
		drive->nsid, drive->id.subnqn[0] != '\0' ? drive->id.subnqn : drive->id.traddr);
	return errno == EADDRINUSE ? -EBUSY : -errno;
}
