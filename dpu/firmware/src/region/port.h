/* region/port.h: what the files of the port's DPU side share; see region.h for the model. */
#ifndef OFS_REGION_PORT_H
#define OFS_REGION_PORT_H

#include "region.h"
#include "region/map.h"

struct ofs_port {
	struct ofs_port_header header; /* our own copy: the host can write the one in the mapping */
	struct ofs_map map;
	struct ofs_port_words *words;
	struct ofs_sqe *submissions;
	struct ofs_cqe *completions;
	uint8_t *payloads;
	uint8_t *puts;
	int dpu_end; /* of a socket pair; -1: deaf, the host shut it down */
	int host_end;
	uint32_t submission_head; /* our own words are never read back out of the mapping */
	uint32_t completion_tail;
	uint32_t outstanding_count; /* commands handed out by poll and not completed */
	uint64_t nonsense_count;
};

/* After a completion: wakes the host if it said that it sleeps. */
void ofs_port_ring_host(struct ofs_port *port);

#endif
