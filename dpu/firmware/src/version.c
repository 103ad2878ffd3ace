/* version.c: the interface version that this library was built with. */
#include "ofs_base.h"

uint32_t
ofs_version(void)
{
	return OFS_ABI_VERSION;
}
