// SPDX-License-Identifier: GPL-2.0
/*
 * State tables: what a peer (by RDMA) and the owner (by mmap) may know of residency without asking.
 * A word is only written under its extent's lock; readers take none, so each change is one store.
 */
#include <linux/mm.h>
#include <linux/vmalloc.h>

#include "adverb.h"

/*
 * Pages of the mask leave. Release: all that was said of the granule before stays before; the full barrier
 * in each retarget keeps the new word before the new IOMMU entry, so whoever still finds the old word knows
 * that nothing had left yet.
 */
void adverb_words_leave(struct adverb_extent *extent, unsigned int view, unsigned int granule, u16 mask)
{
	u64 *word = &extent->views[view].words[granule];

	smp_store_release(word, (*word + (1ULL << 16)) & ~(u64)mask);
}

/* Pages of the mask have come. Release: the device's way to them is open before the bit says so. */
void adverb_words_enter(struct adverb_extent *extent, unsigned int view, unsigned int granule, u16 mask)
{
	u64 *word = &extent->views[view].words[granule];

	smp_store_release(word, *word | mask);
}

/*
 * Read-only for good: a program that could write its own table could lie to its peers' checks only, but it
 * could also not be told apart from a bug. Not inherited over fork: a child's memory is not what the words
 * are about.
 */
int adverb_view_mmap(struct adverb_view *view, struct vm_area_struct *vma)
{
	if (!(vma->vm_flags & VM_SHARED) || (vma->vm_flags & (VM_WRITE | VM_EXEC)))
		return -EACCES;
	if (vma->vm_end - vma->vm_start > PAGE_ALIGN(view->words_size))
		return -EINVAL;
	vm_flags_mod(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP, VM_MAYWRITE | VM_MAYEXEC);
	return remap_vmalloc_range(vma, view->words, 0);
}
