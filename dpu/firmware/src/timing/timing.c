/* timing.c: which sides there are. */
#include <string.h>

#include "internal.h"

static const struct {
	const char *name;
	int (*open)(struct ofs_timing **out, const struct ofs_timing_config *config);
} sides[] = {
	{"nvme", ofs_timing_nvme_open},
	{"free", ofs_timing_free_open},
	{"skeleton", ofs_timing_skeleton_open},
};
#define SIDE_COUNT (sizeof(sides) / sizeof(sides[0]))
#define CONSTANT_MAX_PS 1000000000000000ull /* 1000 s: no sum of them wraps */

int
ofs_timing_open(struct ofs_timing **out, const struct ofs_timing_config *config)
{
	*out = NULL;
	if (config->read_ps > CONSTANT_MAX_PS || config->write_ps > CONSTANT_MAX_PS
		|| config->hit_ps > CONSTANT_MAX_PS || config->command_ps > CONSTANT_MAX_PS)
		return -EINVAL;
	for (size_t i = 0; i < SIDE_COUNT; i++)
		if (strncmp(config->side, sides[i].name, sizeof(config->side)) == 0)
			return sides[i].open(out, config);
	return -ENOENT;
}

const char *
ofs_timing_name(uint32_t index)
{
	return index < SIDE_COUNT ? sides[index].name : NULL;
}

int
ofs_timing_check(const struct ofs_timing *timing)
{
	if (timing == NULL)
		return -EINVAL;
	return timing->ops->version == OFS_TIMING_VERSION ? 0 : -EPROTO;
}
