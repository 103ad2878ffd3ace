/*
 * doca_compat.h: marks of visibility.
 *
 * These headers are Offstage's own, written from the public calls of NIXL's plug-in DOCA_MEMOS. A
 * program is compiled against them; that a binary built for NVIDIA's libdoca_kv runs with this
 * library, or the reverse, is neither known nor claimed.
 */
#ifndef DOCA_COMPAT_H
#define DOCA_COMPAT_H

#define DOCA_STABLE __attribute__((visibility("default")))
#define DOCA_EXPERIMENTAL DOCA_STABLE

#endif
