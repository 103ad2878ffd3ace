/*
 * device/commands.h: commands of hosts, from their ports, and the core's decisions on them.
 *
 * Model: belongs to the reactor's thread. One command at a time is copied out of shared memory into
 * `command`, whose arrays have the size of the largest, and is checked before it is used.
 */
#ifndef OFS_DEVICE_COMMANDS_H
#define OFS_DEVICE_COMMANDS_H

#include "device.h"
#include "port.h"

#include <stdbool.h>

#define OFS_COMMAND_CREDIT 128 /* of one tenant in one turn, in units of its commands' work */

struct ofs_commands {
	struct ofs_command command;
	uint32_t port_turn; /* the port with which the round begins, so that none starves */
};

/* commands.c */
bool ofs_device_serve_ports(struct ofs_device *device);
/* Demands of the port's tenant fill its part of the core's tables: commands stay in the ring. */
bool ofs_device_is_held_back(const struct ofs_device *device, uint32_t port);
/* Steps and answers that waited for a modelled device. */
bool ofs_device_serve_pace(struct ofs_device *device);

/* actions.c: carries out what the core decided. */
void ofs_device_act(struct ofs_device *device);
/* Checks an event's result: the core may only refuse what is not true, never for lack of room. */
void ofs_device_after_event(struct ofs_device *device, int rc);

#endif
