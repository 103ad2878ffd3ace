/* CRC32C (RFC 3720, B.4): the digests of NVMe/TCP. */
#include "nvme/internal.h"

#define POLYNOMIAL 0x82f63b78u
#define SLICES 8 /* bytes a step (Kounavis and Berry 2005) */

static uint32_t table[SLICES][256];

void
ofs_crc32c_prepare(void)
{
	for (uint32_t i = 0; i < 256; i++) {
		uint32_t crc = i;

		for (int bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
		table[0][i] = crc;
	}
	for (uint32_t slice = 1; slice < SLICES; slice++)
		for (uint32_t i = 0; i < 256; i++)
			table[slice][i] = table[slice - 1][i] >> 8 ^ table[0][table[slice - 1][i] & 0xff];
}

uint32_t
ofs_crc32c(uint32_t crc, const uint8_t *data, uint64_t length)
{
	crc = ~crc;
	for (; length >= SLICES; data += SLICES, length -= SLICES) {
		uint32_t low = crc ^ ofs_nvme_u32(data), high = ofs_nvme_u32(data + 4);

		crc = table[7][low & 0xff] ^ table[6][low >> 8 & 0xff] ^ table[5][low >> 16 & 0xff]
			^ table[4][low >> 24] ^ table[3][high & 0xff] ^ table[2][high >> 8 & 0xff]
			^ table[1][high >> 16 & 0xff] ^ table[0][high >> 24];
	}
	for (; length > 0; data++, length--)
		crc = crc >> 8 ^ table[0][(crc ^ *data) & 0xff];
	return ~crc;
}
