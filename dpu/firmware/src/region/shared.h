/*
 * region/shared.h: how both sides access memory that the other side writes.
 *
 * Model: words are read and written by atomic operations only. Bytes that may change during a read
 * are copied by ofs_copy_shared, and trusted only after a later check. Nothing can fail.
 */
#ifndef OFS_REGION_SHARED_H
#define OFS_REGION_SHARED_H

#include "ofs_base.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint32_t
ofs_word_load(const uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline void
ofs_word_store(uint32_t *word, uint32_t value)
{
	__atomic_store_n(word, value, __ATOMIC_RELEASE);
}

/* Ordered with every other of these two: tail against sleeping flag (Dekker's pattern). */
static inline uint32_t
ofs_word_load_ordered(const uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static inline void
ofs_word_store_ordered(uint32_t *word, uint32_t value)
{
	__atomic_store_n(word, value, __ATOMIC_SEQ_CST);
}

static inline void
ofs_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ __volatile__("yield" ::: "memory");
#endif
}

/* A hint: it reads nothing visible to the program, and orders nothing. */
#define OFS_PREFETCH(address) __builtin_prefetch(address)

#if defined(__SANITIZE_THREAD__)
/* A race by design: hidden from ThreadSanitizer, which does not model fences. */
__attribute__((no_sanitize("thread"), noinline, unused)) static void
ofs_copy_shared(void *target, const void *source, size_t size)
{
	volatile uint8_t *to = target;
	const volatile uint8_t *from = source;
	size_t i;

	for (i = 0; i < size; i++)
		to[i] = from[i];
}

static inline uint64_t
ofs_checksum_copy_shared(void *target, const void *source, size_t size)
{
	ofs_copy_shared(target, source, size);
	return ofs_checksum(target, size);
}

#define OFS_FENCE(order) __asm__ __volatile__("" ::: "memory")
#else
static inline void
ofs_copy_shared(void *target, const void *source, size_t size)
{
	memcpy(target, source, size);
}

/* The checksum is that of the copy, however the bytes change meanwhile. */
static inline uint64_t
ofs_checksum_copy_shared(void *target, const void *source, size_t size)
{
	return ofs_checksum_copy(target, source, size);
}

#define OFS_FENCE(order) __atomic_thread_fence(order)
#endif

/* Earlier loads stay before later loads; free on x86. */
#define OFS_FENCE_LOADS() OFS_FENCE(__ATOMIC_ACQUIRE)
/* Earlier stores are seen before anything later, a device's writes included. */
#define OFS_FENCE_ALL() OFS_FENCE(__ATOMIC_SEQ_CST)

#endif
