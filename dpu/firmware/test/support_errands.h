/*
 * support_errands.h: hosts of one device in virtual time, each with tasks on values.
 *
 * The bytes of a value follow from a seed, and so does its length. An errand is a task with its
 * memory, which is registered with all hosts.
 */
#ifndef OFS_SUPPORT_ERRANDS_H
#define OFS_SUPPORT_ERRANDS_H

#include "support_device.h"
#include "value_io.h"

enum { PAYLOAD = 4096, LAYERS = 4, HOSTS = 3, KEYS = 6, TASKS = 12, ROUNDS = 60, LONG = 11 };
#define VALUE_MAX (10 * PAYLOAD) /* three chunks */

struct bed {
	struct world world;
	struct world_host hosts[HOSTS];
	struct ofs_value_io *ios[HOSTS];
	uint32_t sessions; /* of each io */
	uint64_t random;
};

/* A task with its memory, in up to three parts, and what it may say. */
struct errand {
	struct ofs_value_task task;
	struct iovec iovecs[3];
	uint8_t bytes[VALUE_MAX];
	uint32_t number;
	uint32_t seed; /* of a store */
};

extern struct errand errands[TASKS];

uint32_t errand_below(struct bed *bed, uint32_t limit);
struct ofs_key errand_key_of(uint32_t number);
uint64_t errand_length_of(uint32_t seed);
void errand_fill(uint32_t seed, uint8_t *bytes);
void bed_open_mode(struct bed *bed, uint64_t seed, uint32_t sessions, uint32_t write_mode);
void bed_open(struct bed *bed, uint64_t seed, uint32_t sessions);
void bed_close(struct bed *bed);
/* A host dies: what it has sent is carried out for a time, then its port is closed. */
void bed_kill(struct bed *bed, uint32_t io);
/* A host comes, in place of one that was killed. */
void bed_attach(struct bed *bed, uint32_t io);
/* A store of what follows from the seed, in up to three parts; and a retrieve of so many bytes. */
void errand_store(struct bed *bed, struct errand *errand, uint32_t number, uint32_t seed);
void errand_retrieve(struct bed *bed, struct errand *errand, uint32_t number, uint64_t length);
/* A task without memory. */
void errand_name(struct errand *errand, uint32_t verb, uint32_t number);
void errand_submit(struct bed *bed, uint32_t io, struct errand *errand);
/* Runs until every task has ended; alone: of the first host, and its rc. */
void errand_settle(struct bed *bed, uint32_t io);
int errand_alone(struct bed *bed, struct errand *errand);
/* The memory has the first bytes of the seed's value. */
void errand_check(const struct errand *errand, uint32_t seed);

#endif
