// SPDX-License-Identifier: GPL-2.0
/*
 * State tables: what a peer (by RDMA) and the owner (by mmap) may know of residency without asking.
 * A word is only written under its extent's lock; readers take none, so each change is one store.
 */
#include <linux/mm.h>
#include <linux/vmalloc.h>
#include <linux/workqueue.h>

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

/* Zeroed, and of the caller's memory cgroup. */
u64 *adverb_words_alloc(size_t size)
{
	return __vmalloc(size, GFP_KERNEL_ACCOUNT | __GFP_ZERO);
}

void adverb_unmapped_work(struct work_struct *work)
{
	adverb_region_put(container_of(work, struct adverb_region, unmapped));
}

/*
 * Pages of a table live as long as they are mapped, so their region must too, or nobody would be charged for
 * them. The last mapping cannot drop the reference itself: it goes under mmap_lock, which freeing a region
 * takes. An owner that holds that lock for long, and has unmapped many, delays the freeing for all others here.
 *
 * The lock makes a change of the count and what follows from it one step: with MADV_DOFORK, which 6.12 lets
 * them have, mappings can be in several address spaces.
 */
static DEFINE_SPINLOCK(mapped_lock);

static void table_get(struct adverb_region *region)
{
	spin_lock(&mapped_lock);
	/* A reference that is still queued to be dropped is as good as a new one. */
	if (!region->mapped++ && !cancel_work(&region->unmapped))
		kref_get(&region->ref);
	spin_unlock(&mapped_lock);
}

static void table_put(struct adverb_region *region)
{
	spin_lock(&mapped_lock);
	if (!--region->mapped)
		queue_work(adverb_free_queue, &region->unmapped);
	spin_unlock(&mapped_lock);
}

/* Of a part or a copy of a mapping there is. */
static void table_open(struct vm_area_struct *vma)
{
	table_get(vma->vm_private_data);
}

static void table_close(struct vm_area_struct *vma)
{
	table_put(vma->vm_private_data);
}

static const struct vm_operations_struct table_vm_ops = {
	.open = table_open,
	.close = table_close,
};

/*
 * Under the lock of the region's file, which keeps the region. Read-only for good: a program that could write
 * its own table could lie to its peers' checks only, but it could also not be told apart from a bug. Not
 * inherited over fork, unless the owner asks for it: a child's memory is not what the words are about.
 */
int adverb_view_mmap(struct adverb_region *region, struct adverb_view *view, struct vm_area_struct *vma)
{
	unsigned long length = vma->vm_end - vma->vm_start, at;
	int error;

	if (!(vma->vm_flags & VM_SHARED) || (vma->vm_flags & (VM_WRITE | VM_EXEC)))
		return -EACCES;
	if (length > view->words_size)
		return -EINVAL;
	vm_flags_mod(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP, VM_MAYWRITE | VM_MAYEXEC);
	for (at = 0; at < length; at += PAGE_SIZE) {
		error = vm_insert_page(vma, vma->vm_start + at, vmalloc_to_page((char *)view->words + at));
		if (error)
			return error;
	}
	table_get(region);
	vma->vm_private_data = region;
	vma->vm_ops = &table_vm_ops;
	return 0;
}
