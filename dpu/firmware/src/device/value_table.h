/* device/value_table.h: the table of values.h; pointers into it hold until the next change. */
#ifndef OFS_DEVICE_VALUE_TABLE_H
#define OFS_DEVICE_VALUE_TABLE_H

#include "device/values.h"

/* Where the search for a key begins. */
uint32_t ofs_value_home(const struct ofs_values *values, uint32_t tenant,
	const struct ofs_key *key);
/* NULL: the tenant has no such value. */
struct ofs_value *ofs_value_find(const struct ofs_values *values, uint32_t tenant,
	const struct ofs_key *key);
/* Its key must not be there, and one entry must stay empty. */
struct ofs_value *ofs_value_insert(struct ofs_values *values, const struct ofs_value *value);
/* The entry goes to the end of the list, or into none. */
void ofs_value_enlist(struct ofs_values *values, struct ofs_value *entry, enum ofs_value_list list);
/* From its list too. */
void ofs_value_remove(struct ofs_values *values, struct ofs_value *entry);

#endif
