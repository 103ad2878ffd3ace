/* Opens NIXL by path, and adds its sides to the tables of ports and fabrics; see nixl.h. */
#include "nixl/agent.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define CALL(name) {"nixl_capi_" #name, offsetof(struct ofs_nixl_api, name)}

static const struct {
	const char *symbol;
	size_t at;
} calls[] = {
	CALL(create_configured_agent),
	CALL(destroy_agent),
	CALL(get_plugin_params),
	CALL(destroy_mem_list),
	CALL(destroy_params),
	CALL(create_backend),
	CALL(destroy_backend),
	CALL(create_opt_args),
	CALL(destroy_opt_args),
	CALL(opt_args_add_backend),
	CALL(opt_args_set_notif_msg),
	CALL(opt_args_set_has_notif),
	CALL(create_reg_dlist),
	CALL(destroy_reg_dlist),
	CALL(reg_dlist_add_desc),
	CALL(register_mem),
	CALL(deregister_mem),
	CALL(get_local_md),
	CALL(load_remote_md),
	CALL(invalidate_remote_md),
	CALL(create_xfer_dlist),
	CALL(destroy_xfer_dlist),
	CALL(xfer_dlist_add_desc),
	CALL(xfer_dlist_clear),
	CALL(create_xfer_req),
	CALL(post_xfer_req),
	CALL(get_xfer_status),
	CALL(release_xfer_req),
	CALL(destroy_xfer_req),
	CALL(gen_notif),
	CALL(create_notif_map),
	CALL(destroy_notif_map),
	CALL(get_notifs),
	CALL(notif_map_size),
	CALL(notif_map_get_agent_at),
	CALL(notif_map_get_notifs_size),
	CALL(notif_map_get_notif),
	CALL(notif_map_clear),
};
_Static_assert(sizeof(calls) / sizeof(calls[0]) == sizeof(struct ofs_nixl_api) / sizeof(void *),
	"every function of the table has its symbol");

static const struct ofs_fabric_side side = {.version = OFS_SIDE_VERSION,
	.port = &ofs_port_ops_nixl,
	.open = ofs_fabric_nixl_open};
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct ofs_nixl_api api; /* written once, under mutex */

/* The library stays open: its threads and destructors outlive every agent. */
static int
resolve(void *library, char *error, size_t error_size_bytes)
{
	bool (*is_stub)(void) = NULL;
	void *symbol = dlsym(library, "nixl_capi_is_stub");

	memcpy(&is_stub, &symbol, sizeof(symbol));
	if (is_stub != NULL && is_stub()) {
		snprintf(error, error_size_bytes,
			"NIXL: this library is a stub; install the wheel nixl-cu12");
		return -ENOTSUP;
	}
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		symbol = dlsym(library, calls[i].symbol);
		if (symbol == NULL) {
			snprintf(error, error_size_bytes, "NIXL: its C interface has no %s; %s",
				calls[i].symbol, "install nixl-cu12 1.3 or newer");
			return -ENOTSUP;
		}
		memcpy((uint8_t *)&api + calls[i].at, &symbol, sizeof(symbol));
	}
	return 0;
}

int
ofs_nixl_load(const char *path, char *error, size_t error_size_bytes)
{
	void *library;
	int rc = 0;

	if (error_size_bytes > 0)
		error[0] = '\0';
	pthread_mutex_lock(&mutex);
	if (ofs_nixl_api() == NULL) {
		library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
		if (library == NULL) {
			snprintf(error, error_size_bytes, "NIXL: %s; %s", dlerror(),
				"install it with: pip install --no-deps nixl-cu12");
			rc = -ENOENT;
		} else {
			rc = resolve(library, error, error_size_bytes);
		}
		if (rc == 0)
			rc = ofs_fabric_add(&side);
		if (rc == 0)
			ofs_nixl_api_set(&api);
	}
	pthread_mutex_unlock(&mutex);
	return rc;
}
