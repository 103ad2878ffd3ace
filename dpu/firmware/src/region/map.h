/* region/map.h: memory that the DPU makes and shares: a memfd, pre-faulted and sealed. */
#ifndef OFS_REGION_MAP_H
#define OFS_REGION_MAP_H

#include <stdint.h>

struct ofs_map {
	uint8_t *base;
	uint64_t size_bytes; /* whole pages */
	int fd;
};

/*
 * Opens `map`; `size_bytes` is rounded up to pages. 0, -ENOMEM, -EMFILE, -ENFILE. When
 * `readonly_outside`, no other writable mapping can ever be made of it, by nobody.
 */
int ofs_map_open(struct ofs_map *map, const char *name, uint64_t size_bytes, int readonly_outside);
void ofs_map_close(struct ofs_map *map);
/* A descriptor of the same memory that can only be read; -errno. The caller closes it. */
int ofs_map_readonly_fd(const struct ofs_map *map);

#endif
