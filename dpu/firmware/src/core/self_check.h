/*
 * self_check.h: states a relation between two tables where it is checked.
 *
 * Model: for the verify functions of the core, which are for tests. The first relation that does
 * not hold is named on stderr with a number, and ends the function with -EFAULT.
 */
#ifndef OFS_CORE_SELF_CHECK_H
#define OFS_CORE_SELF_CHECK_H

#include <stdio.h>

#define CHECK(condition, number)                                                       \
	do {                                                                               \
		if (!(condition)) {                                                            \
			fprintf(stderr, "ofs_core_verify: %s does not hold at %llu\n", #condition, \
				(unsigned long long)(number));                                         \
			return -EFAULT;                                                            \
		}                                                                              \
	} while (0)

#endif
