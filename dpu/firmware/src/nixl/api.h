/*
 * nixl/api.h: the part of NIXL's C interface (libnixl_capi.so) that is used, as functions of a
 * table that ofs_nixl_load fills in. All return 0, 1 for "in progress", or a negative number.
 */
#ifndef OFS_NIXL_API_H
#define OFS_NIXL_API_H

#include "nixl.h"

#include <stdbool.h>

/* As nixl_capi_agent_config_t of NIXL 1.3 to 1.5. */
struct ofs_nixl_agent_config {
	bool progress_thread;
	bool listen_thread;
	int listen_port;
	int thread_sync; /* 1: strict */
	unsigned int worker_count;
	uint64_t progress_delay_us;
	uint64_t listen_delay_us;
	bool telemetry;
	uint8_t room[64]; /* for what later versions add: zero is their default */
};

enum ofs_nixl_memory { OFS_NIXL_DRAM = 0, OFS_NIXL_VRAM = 1 };
enum ofs_nixl_op { OFS_NIXL_READ = 0, OFS_NIXL_WRITE = 1 };
#define OFS_NIXL_IN_PROGRESS 1

struct ofs_nixl_api {
	int (*create_configured_agent)(const char *name, const struct ofs_nixl_agent_config *config,
		void **agent);
	int (*destroy_agent)(void *agent);
	int (*get_plugin_params)(void *agent, const char *plugin, void **memories, void **params);
	int (*destroy_mem_list)(void *memories);
	int (*destroy_params)(void *params);
	int (*create_backend)(void *agent, const char *plugin, void *params, void **backend);
	int (*destroy_backend)(void *backend);
	int (*create_opt_args)(void **args);
	int (*destroy_opt_args)(void *args);
	int (*opt_args_add_backend)(void *args, void *backend);
	int (*opt_args_set_notif_msg)(void *args, const void *data, size_t size_bytes);
	int (*opt_args_set_has_notif)(void *args, bool has_notif);
	int (*create_reg_dlist)(int memory, void **list);
	int (*destroy_reg_dlist)(void *list);
	int (*reg_dlist_add_desc)(void *list, uintptr_t address, size_t size_bytes, uint64_t device,
		const void *metadata, size_t metadata_size_bytes);
	int (*register_mem)(void *agent, void *list, void *args);
	int (*deregister_mem)(void *agent, void *list, void *args);
	int (*get_local_md)(void *agent, void **data, size_t *size_bytes);
	int (*load_remote_md)(void *agent, const void *data, size_t size_bytes, char **name);
	int (*invalidate_remote_md)(void *agent, const char *name);
	int (*create_xfer_dlist)(int memory, void **list);
	int (*destroy_xfer_dlist)(void *list);
	int (*xfer_dlist_add_desc)(void *list, uintptr_t address, size_t size_bytes, uint64_t device);
	int (*xfer_dlist_clear)(void *list);
	int (*create_xfer_req)(void *agent, int op, void *local, void *remote, const char *peer,
		void **request, void *args);
	int (*post_xfer_req)(void *agent, void *request, void *args);
	int (*get_xfer_status)(void *agent, void *request);
	int (*release_xfer_req)(void *agent, void *request);
	int (*destroy_xfer_req)(void *request);
	int (
		*gen_notif)(void *agent, const char *peer, const void *data, size_t size_bytes, void *args);
	int (*create_notif_map)(void **map);
	int (*destroy_notif_map)(void *map);
	int (*get_notifs)(void *agent, void *map, void *args);
	int (*notif_map_size)(void *map, size_t *count);
	int (*notif_map_get_agent_at)(void *map, size_t index, const char **name);
	int (*notif_map_get_notifs_size)(void *map, const char *name, size_t *count);
	int (*notif_map_get_notif)(void *map, const char *name, size_t index, const void **data,
		size_t *size_bytes);
	int (*notif_map_clear)(void *map);
};

/* NULL until it is loaded. */
const struct ofs_nixl_api *ofs_nixl_api(void);
void ofs_nixl_api_set(const struct ofs_nixl_api *api);

#endif
