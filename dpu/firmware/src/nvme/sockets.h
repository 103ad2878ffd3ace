/* nvme/sockets.h: the target's sockets, under one epoll; see nvme/internal.h. */
#ifndef OFS_NVME_SOCKETS_H
#define OFS_NVME_SOCKETS_H

#include "nvme/internal.h"

/* Takes in one that waits at the listener, or has another yield to it first. */
void ofs_nvme_accept(struct ofs_nvme *nvme);
/* Reads and writes as far as it goes. Whether bytes moved. */
bool ofs_nvme_advance(struct ofs_nvme_connection *connection);
/* Closes socket and connection. */
void ofs_nvme_drop(struct ofs_nvme_connection *connection, int rc, bool said);

#endif
