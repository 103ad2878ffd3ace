/* The system calls that a store needs, all of them at open and close. */
#include "internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* The process with a flock on this inode, from /proc/locks; 0 if the kernel does not say. */
static long
holder_pid(int fd)
{
	FILE *locks = fopen("/proc/locks", "re");
	struct stat status;
	char line[256];
	long pid = 0;

	if (locks == NULL)
		return 0;
	if (fstat(fd, &status) == 0) {
		while (pid == 0 && fgets(line, sizeof(line), locks) != NULL) {
			unsigned long inode;
			long found;

			/* "1: FLOCK  ADVISORY  WRITE 1234 fe:00:5678 0 EOF" */
			if (sscanf(line, "%*d: FLOCK %*s %*s %ld %*x:%*x:%lu", &found, &inode) == 2
				&& inode == status.st_ino) {
				pid = found;
			}
		}
	}
	fclose(locks);
	return pid;
}

int
ofs_store_lock(const char *path, int *fd, char *error, size_t error_size_bytes)
{
	int rc;

	*fd = -1;
	if (path == NULL || path[0] == '\0')
		return 0;
	*fd = open(path, O_RDONLY | O_CLOEXEC);
	if (*fd < 0) {
		rc = -errno;
		return ofs_store_refuse(error, error_size_bytes, rc,
			"%s cannot be locked (%s); "
			"check its owner and mode",
			path, strerror(-rc));
	}
	/* Not an fcntl lock: those are released when anything in this process closes the file. */
	if (flock(*fd, LOCK_EX | LOCK_NB) == 0)
		return 0;
	rc = errno == EWOULDBLOCK ? -EBUSY : -errno;
	if (rc == -EBUSY) {
		(void)ofs_store_refuse(error, error_size_bytes, rc,
			"store %s is in use by pid %ld; "
			"stop it, or give another path",
			path, holder_pid(*fd));
	} else {
		(void)ofs_store_refuse(error, error_size_bytes, rc,
			"%s cannot be locked (%s); "
			"put the store on a local file system",
			path, strerror(-rc));
	}
	close(*fd);
	*fd = -1;
	return rc;
}

void
ofs_store_unlock(int fd)
{
	if (fd >= 0)
		close(fd);
}

void
ofs_store_uuid(struct ofs_key *uuid)
{
	if (getrandom(uuid, sizeof(*uuid), 0) != (ssize_t)sizeof(*uuid)) {
		/* A kernel without entropy: only the address of a local is left, and 0 is no id. */
		uuid->lo = (uint64_t)(uintptr_t)&uuid;
		uuid->hi = 0;
	}
	uuid->lo |= 1; /* never the zero of an unwritten trailer */
}
