// SPDX-License-Identifier: GPL-2.0
/*
 * The words of a state table: what a peer (by RDMA) and the owner (by mmap, table.c) may know of residency
 * without asking. A word is only written under its extent's lock; readers take none, so each change is one
 * store.
 */
#include <linux/lockdep.h>
#include <linux/vmalloc.h>

#include "adverb.h"

/**
 * adverb_words_alloc - memory for the words of a view
 * @size: bytes, a multiple of the page size
 *
 * May sleep.
 *
 * Return: zeroed pages of the caller's memory cgroup, for vfree(); NULL without memory.
 */
u64 *adverb_words_alloc(size_t size)
{
	return __vmalloc(size, GFP_KERNEL_ACCOUNT | __GFP_ZERO);
}

/**
 * adverb_words_leave - say that pages of a granule leave
 * @extent: locked for writing
 * @view: which of its views they leave
 * @granule: number within the extent
 * @mask: the pages
 *
 * Release: all that was said of the granule before stays before; the full barrier in each retarget keeps the
 * new word before the new IOMMU entry, so whoever still finds the old word knows that nothing had left yet.
 */
void adverb_words_leave(struct adverb_extent *extent, unsigned int view, unsigned int granule, u16 mask)
{
	u64 *word = &extent->views[view].words[granule];

	lockdep_assert_held_write(&extent->lock);
	smp_store_release(word, (*word + (1ULL << 16)) & ~(u64)mask);
}

/**
 * adverb_words_enter - say that pages of a granule have come
 * @extent: locked for writing
 * @view: which of its views they are in
 * @granule: number within the extent
 * @mask: the pages
 *
 * Release: the device's way to them is open before the bit says so.
 */
void adverb_words_enter(struct adverb_extent *extent, unsigned int view, unsigned int granule, u16 mask)
{
	u64 *word = &extent->views[view].words[granule];

	lockdep_assert_held_write(&extent->lock);
	smp_store_release(word, *word | mask);
}
