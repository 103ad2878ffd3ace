/*
 * What does the verbs fabric refuse, and what ends it? The blobs of both ends, without a device;
 * and with one: a key of another tenant, a late answer, and either end killed.
 */
#include "port/verbs_blob.h"
#include "side.h"
#include "support_dpu.h"
#include "verbs.h"

#include <assert.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAYLOAD 1024
#define WAIT_NS 30000000000ull

static struct ofs_blob_verbs
good_blob(void)
{
	return (struct ofs_blob_verbs){
		.address = {.gid = {[15] = 1}, .queue_pair = 17, .mtu_bytes = 1024, .reads_max = 1},
		.region = {.address = 4096, .key = 1},
		.port = {.address = 8192, .key = 2},
		.region_header = {.size_bytes = 4096},
		.port_header = {.size_bytes = 4096}};
}

static int
check_blob(const struct ofs_blob_verbs *content, const char *fabric)
{
	struct ofs_attachment attachment = {0};
	struct ofs_blob_verbs found;
	char error[256] = "";
	int rc;

	ofs_blob_write(&attachment, fabric, content, sizeof(*content));
	rc = ofs_verbs_blob_check(&attachment, &found, error, sizeof(error));
	assert(rc == 0 ? memcmp(&found, content, sizeof(found)) == 0 : strchr(error, ';') != NULL);
	return rc;
}

static void
a_blob_that_cannot_be_is_refused(void)
{
	static const uint32_t mtus[] = {0, 128, 1000, 8192, UINT32_MAX};
	struct ofs_blob_verbs blob = good_blob();

	assert(check_blob(&blob, "verbs") == 0 && check_blob(&blob, "other") == -EINVAL);
	for (size_t i = 0; i < sizeof(mtus) / sizeof(mtus[0]); i++) {
		blob.address.mtu_bytes = mtus[i];
		assert(check_blob(&blob, "verbs") == -EINVAL);
	}
	blob = good_blob();
	blob.address.queue_pair = 1u << 24;
	assert(check_blob(&blob, "verbs") == -EINVAL);
	blob = good_blob();
	blob.address.gid[15] = 0;
	assert(check_blob(&blob, "verbs") == -EINVAL);
	blob = good_blob();
	blob.address.reads_max = 0;
	assert(check_blob(&blob, "verbs") == -EINVAL);
	blob = good_blob();
	blob.region.address = 0;
	assert(check_blob(&blob, "verbs") == -EINVAL);
	blob = good_blob();
	blob.port.address = UINT64_MAX - 4095; /* its end wraps */
	assert(check_blob(&blob, "verbs") == -EINVAL);
}

static int
check_answer(const struct ofs_blob_verbs_host *content, uint32_t size_bytes)
{
	struct ofs_attachment attachment = {0};
	struct ofs_blob_verbs_host found;

	ofs_blob_write(&attachment, "verbs", content, size_bytes);
	return ofs_verbs_answer_check(&attachment, &found);
}

static void
an_answer_that_cannot_be_is_refused(void)
{
	struct ofs_blob_verbs_host answer = {.address = good_blob().address,
		.port = {.address = 4096, .key = 3}};

	assert(check_answer(&answer, sizeof(answer)) == 0);
	assert(check_answer(&answer, sizeof(answer) - 8) == -EINVAL);
	answer.port.address = 0;
	assert(check_answer(&answer, sizeof(answer)) == -EINVAL);
	answer.port.address = 4096;
	answer.address.first_packet = 1u << 24;
	assert(check_answer(&answer, sizeof(answer)) == -EINVAL);
}

#ifdef OFS_HAVE_VERBS
/* A string that is no IP address is not resolved, and a malformed blob is not even read. */
static void
a_way_is_asked_for_an_address_only(void)
{
	struct ofs_attachment attachment = {0};
	struct ofs_blob_verbs content = good_blob();
	struct ofs_verbs_config config = {.gid_index = OFS_VERBS_GID_AUTO};
	const struct ofs_verbs_config before = config;
	int rc;

	content.address.gid[0] = 0xfe;
	content.address.gid[1] = 0x80;
	ofs_blob_write(&attachment, "verbs", &content, sizeof(content));
	rc = ofs_verbs_route(attachment.blob, attachment.blob_size_bytes, &config);
	assert(rc == -ENOENT || rc == -ENOSYS);
	assert(ofs_verbs_route(attachment.blob, sizeof(attachment.blob) + 1, &config) == -EPROTO);
	assert(ofs_verbs_route(attachment.blob, 8, &config) < 0);
	attachment.blob[0] ^= 1;
	assert(ofs_verbs_route(attachment.blob, attachment.blob_size_bytes, &config) == -EPROTO);
	assert(memcmp(&config, &before, sizeof(config)) == 0);
}
#endif

static void
open_dpu(struct support_dpu *dpu)
{
	struct support_config config = {.fabric = "verbs",
		.block_count = 4,
		.slot_count = 8,
		.payload_size_bytes = PAYLOAD,
		.entry_count = 4,
		.demand_max = 8,
		.score_max = 4,
		.put_slot_count = 2};

	support_open(dpu, &config);
}

static int
read_first_slot(struct ofs_fabric *fabric, uint8_t *target)
{
	struct ofs_span span = {target, PAYLOAD};
	int rc = fabric->ops->read(fabric, fabric->region.slots_offset, &span, 1);

	return rc != 0 ? rc : fabric->ops->flush(fabric, WAIT_NS);
}

/* Each share is a tenant's. A host that uses the other's key gets nothing and does no harm. */
static void
a_foreign_key_opens_nothing(void)
{
	static struct support_dpu mine;
	static struct support_dpu theirs;
	struct ofs_attachment attachment = {0};
	struct ofs_attachment other;
	struct ofs_blob_verbs *blob =
		(struct ofs_blob_verbs *)(attachment.blob + sizeof(struct ofs_blob_header));
	const struct ofs_blob_verbs *foreign =
		(const struct ofs_blob_verbs *)(other.blob + sizeof(struct ofs_blob_header));
	struct ofs_fabric *honest;
	struct ofs_fabric *thief;
	uint8_t target[PAYLOAD] = {0};
	char error[256];

	open_dpu(&mine);
	open_dpu(&theirs);
	support_fill(2, ofs_region_slot(theirs.region, 0), PAYLOAD);
	honest = support_fabric(&theirs);
	assert(ofs_port_export(mine.port, &attachment) == 0);
	assert(ofs_port_export(theirs.port, &other) == 0);
	blob->region = foreign->region;
	support_set_checksum(&attachment);
	assert(ofs_fabric_open(&thief, &attachment, error, sizeof(error)) == 0);
	thief->ops->export(thief, &attachment);
	assert(ofs_port_connect(mine.port, &attachment) == 0);
	assert(thief->ops->register_memory(thief, target, PAYLOAD) == 0);
	assert(read_first_slot(thief, target) == -EACCES);
	for (uint32_t i = 0; i < PAYLOAD; i++)
		assert(target[i] == 0);
	assert(thief->ops->wait(thief, WAIT_NS) == -EACCES);
	assert(thief->ops->submit(thief, &(struct ofs_sqe){.user = 1}) == -EACCES);
	thief->ops->close(thief);
	assert(honest->ops->register_memory(honest, target, PAYLOAD) == 0);
	assert(read_first_slot(honest, target) == 0 && support_matches(2, target, PAYLOAD));
	honest->ops->close(honest);
	support_close(&mine);
	support_close(&theirs);
}

/*
 * Each bit of the content flipped, under a matching checksum: refused in one line, or opened and
 * then ended by the adapter or by a record that does not match: no wrong byte, and no endless wait.
 * Only addresses and keys are used; an unknown GID costs a second of resolving each.
 */
static void
a_changed_bit_is_refused_or_harmless(void)
{
	static struct support_dpu dpu;
	struct ofs_attachment whole = {0};
	size_t first =
		sizeof(struct ofs_blob_header) + sizeof(((struct ofs_blob_verbs *)0)->address.gid);
	uint32_t refused_count = 0;
	uint32_t opened_count = 0;

	open_dpu(&dpu);
	assert(ofs_port_export(dpu.port, &whole) == 0);
	for (size_t bit = 8 * first; bit < 8 * (size_t)whole.blob_size_bytes; bit++) {
		struct ofs_attachment changed = whole;
		struct ofs_fabric *fabric;
		char error[256] = "";

		changed.blob[bit / 8] ^= (uint8_t)(1u << bit % 8);
		support_set_checksum(&changed);
		if (ofs_fabric_open(&fabric, &changed, error, sizeof(error)) != 0) {
			assert(strchr(error, ';') != NULL && strchr(error, '\n') == NULL);
			refused_count++;
			continue;
		}
		opened_count++;
		fabric->ops->close(fabric);
	}
	/* Headers have their own checksums: the accepted changes are an address, a key or a
	 * number. */
	assert(
		refused_count >= 8 * (sizeof(struct ofs_region_header) + sizeof(struct ofs_port_header)));
	assert(opened_count <= 8 * (offsetof(struct ofs_blob_verbs, region_header)));
	support_close(&dpu);
}

/* The DPU drops a connection once it owes no answer on it; then the port gets the next one. */
static void
a_lost_connection_is_made_again(void)
{
	static struct support_dpu dpu;
	struct ofs_attachment attachment = {0};
	struct ofs_fabric *fabric;
	struct ofs_cqe cqe;

	open_dpu(&dpu);
	fabric = support_fabric(&dpu);
	assert(fabric->ops->submit(fabric, &(struct ofs_sqe){.user = 1}) == 0);
	assert(support_take(&dpu) == 1);
	assert(dpu.port->ops->disconnect(dpu.port) == -EAGAIN); /* one is being worked on */
	assert(ofs_port_complete(dpu.port, &(struct ofs_cqe){.user = 1}, NULL) == 0);
	assert(dpu.port->ops->disconnect(dpu.port) == 0);
	assert(fabric->ops->wait(fabric, WAIT_NS) == -EHOSTUNREACH);
	fabric->ops->close(fabric);
	for (uint64_t user = 2; user < 5; user++) {
		fabric = support_fabric(&dpu);
		assert(fabric->ops->submit(fabric, &(struct ofs_sqe){.user = user}) == 0);
		assert(support_take(&dpu) == 1);
		assert(ofs_port_complete(dpu.port, &(struct ofs_cqe){.user = user}, NULL) == 0);
		assert(fabric->ops->wait(fabric, WAIT_NS) == 0);
		assert(fabric->ops->poll(fabric, &cqe, 1) == 1 && cqe.user == user);
		assert(dpu.port->ops->disconnect(dpu.port) == 0);
		fabric->ops->close(fabric);
	}
	assert(ofs_port_export(dpu.port, &attachment) == 0);
	support_close(&dpu);
}

static void
an_answer_that_comes_late_is_refused(void)
{
	static struct support_dpu dpu;
	struct ofs_attachment attachment = {0};
	struct ofs_attachment answer = {0};
	struct ofs_fabric *late;
	struct ofs_fabric *first;
	char error[256];

	open_dpu(&dpu);
	assert(ofs_port_export(dpu.port, &attachment) == 0);
	assert(ofs_fabric_open(&late, &attachment, error, sizeof(error)) == 0);
	late->ops->export(late, &answer);
	first = support_fabric(&dpu);
	assert(ofs_port_connect(dpu.port, &answer) == -EBUSY);
	first->ops->close(first);
	while (ofs_port_connect(dpu.port, &answer) == -EBUSY)
		assert(ofs_port_poll(dpu.port, &dpu.command) == 0);
	assert(ofs_port_connect(dpu.port, &answer) == -ESTALE);
	late->ops->close(late);
	support_close(&dpu);
}

static void
transfer(int from, int to, struct ofs_attachment *attachment)
{
	if (from >= 0)
		assert(read(from, attachment, sizeof(*attachment)) == sizeof(*attachment));
	else
		assert(write(to, attachment, sizeof(*attachment)) == sizeof(*attachment));
}

/* The other process: one end, until it is killed. Before any adapter is open in this one. */
static pid_t
fork_end(void (*run)(int in, int out), int *in, int *out)
{
	int there[2];
	int back[2];
	pid_t child;

	assert(pipe(there) == 0 && pipe(back) == 0);
	child = fork();
	assert(child >= 0);
	if (child == 0) {
		support_add_sides();
		if (ofs_port_find("verbs") != NULL)
			run(there[0], back[1]);
		for (;;)
			pause();
	}
	*in = back[0];
	*out = there[1];
	return child;
}

static void
run_dpu(int in, int out)
{
	static struct support_dpu dpu;
	struct ofs_attachment attachment = {0};

	open_dpu(&dpu);
	assert(ofs_port_export(dpu.port, &attachment) == 0);
	transfer(-1, out, &attachment);
	transfer(in, -1, &attachment);
	assert(ofs_port_connect(dpu.port, &attachment) == 0);
	transfer(-1, out, &attachment);
	for (;;)
		support_turn(&dpu);
}

/* A host's part of the hand-shake, to the end of it. */
static struct ofs_fabric *
attach(int in, int out)
{
	struct ofs_attachment attachment = {0};
	struct ofs_fabric *fabric;
	char error[256];

	transfer(in, -1, &attachment);
	assert(ofs_fabric_open(&fabric, &attachment, error, sizeof(error)) == 0);
	fabric->ops->export(fabric, &attachment);
	transfer(-1, out, &attachment);
	transfer(in, -1, &attachment);
	return fabric;
}

static void
run_host(int in, int out)
{
	struct ofs_fabric *fabric = attach(in, out);

	assert(fabric->ops->submit(fabric, &(struct ofs_sqe){.user = 1}) == 0);
}

static void
end(pid_t child)
{
	assert(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

static void
a_killed_dpu_is_seen(pid_t child, int in, int out)
{
	struct ofs_fabric *fabric = attach(in, out);
	struct ofs_cqe cqe;

	assert(fabric->ops->submit(fabric, &(struct ofs_sqe){.user = 7}) == 0);
	assert(fabric->ops->wait(fabric, WAIT_NS) == 0);
	assert(fabric->ops->poll(fabric, &cqe, 1) == 1 && cqe.user == 7);
	end(child);
	/* Nothing is asked of it: silence alone finds out. */
	assert(fabric->ops->wait(fabric, WAIT_NS) == -EHOSTUNREACH);
	assert(fabric->ops->submit(fabric, &(struct ofs_sqe){.user = 8}) == -EHOSTUNREACH);
	fabric->ops->close(fabric);
}

/* Its answer is lost; the port keeps working, and closes at once. */
static void
a_killed_host_is_seen(pid_t child, int in, int out)
{
	static struct support_dpu dpu;
	struct ofs_attachment attachment = {0};
	struct ofs_attachment answer = {0};

	open_dpu(&dpu);
	assert(ofs_port_export(dpu.port, &attachment) == 0);
	transfer(-1, out, &attachment);
	transfer(in, -1, &answer);
	assert(ofs_port_connect(dpu.port, &answer) == 0);
	transfer(-1, out, &attachment);
	assert(support_take(&dpu) == 1);
	end(child);
	assert(ofs_port_complete(dpu.port, &(struct ofs_cqe){.user = 1}, NULL) == 0);
	while (ofs_port_connect(dpu.port, &answer) == -EBUSY)
		assert(ofs_port_poll(dpu.port, &dpu.command) == 0);
	assert(ofs_port_connect(dpu.port, &answer) == -ESTALE);
	support_close(&dpu);
}

int
main(void)
{
	int in[2];
	int out[2];
	pid_t children[2] = {fork_end(run_dpu, &in[0], &out[0]), fork_end(run_host, &in[1], &out[1])};

	a_blob_that_cannot_be_is_refused();
	an_answer_that_cannot_be_is_refused();
#ifdef OFS_HAVE_VERBS
	a_way_is_asked_for_an_address_only();
#endif
	support_add_sides();
	if (ofs_port_find("verbs") != NULL) {
		a_killed_dpu_is_seen(children[0], in[0], out[0]);
		a_killed_host_is_seen(children[1], in[1], out[1]);
		a_foreign_key_opens_nothing();
		an_answer_that_comes_late_is_refused();
		a_lost_connection_is_made_again();
		a_changed_bit_is_refused_or_harmless();
		return 0;
	}
	end(children[0]);
	end(children[1]);
	return 0;
}
