// SPDX-License-Identifier: GPL-2.0
/*
 * State tables in address spaces: the owner maps the words of a view, at the offset of /dev/adverb that
 * building the view told.
 *
 * Pages of a table live as long as they are mapped, so their region must too, or nobody would be charged for
 * them: each mapping holds a reference to it and counts as a user of the view, also each part and each copy in a
 * child (MADV_DOFORK, on kernels that let it).
 */
#include <linux/lockdep.h>
#include <linux/mm.h>
#include <linux/vmalloc.h>

#include "adverb.h"

/* Of a part or a copy of a mapping there is. */
static void table_open(struct vm_area_struct *vma)
{
	struct adverb_view *view = vma->vm_private_data;

	atomic_inc(&view->users);
	kref_get(&view->extent->region->ref);
}

static void table_close(struct vm_area_struct *vma)
{
	struct adverb_view *view = vma->vm_private_data;
	struct adverb_region *region = view->extent->region;

	atomic_dec(&view->users); /* the extent may be gone now */
	adverb_region_put(region);
}

static const struct vm_operations_struct table_vm_ops = {
	.open = table_open,
	.close = table_close,
};

/*
 * Read-only for good: a program that could write its own table could lie to its peers' checks only, but it
 * could also not be told apart from a bug. Not inherited over fork, unless the owner asks for it: a child's
 * memory is not what the words are about.
 */
static int map_words(struct adverb_view *view, struct vm_area_struct *vma)
{
	unsigned long length = vma->vm_end - vma->vm_start, offset;
	int error;

	lockdep_assert_held(&view->extent->region->file->lock); /* which keeps the view */
	if (!(vma->vm_flags & VM_SHARED) || (vma->vm_flags & (VM_WRITE | VM_EXEC)))
		return -EACCES;
	if (length > view->words_size)
		return -EINVAL;
	vm_flags_mod(vma, VM_DONTCOPY | VM_DONTEXPAND | VM_DONTDUMP, VM_MAYWRITE | VM_MAYEXEC);
	for (offset = 0; offset < length; offset += PAGE_SIZE) {
		error = vm_insert_page(vma, vma->vm_start + offset,
				       vmalloc_to_page((char *)view->words + offset));
		if (error)
			return error;
	}
	vma->vm_private_data = view;
	vma->vm_ops = &table_vm_ops;
	table_open(vma);
	return 0;
}

/**
 * adverb_table_mmap - map the table whose number the offset of a new mapping holds
 * @file: the open /dev/adverb
 * @vma: the mapping; its mmap_lock is held for writing
 *
 * While it is mapped the region stays, and is charged for.
 *
 * Return: 0; -EINVAL: not a whole number, or longer than the table; -ENXIO: no such table; -EPERM: another
 * address space's; -EACCES: private, writable or executable; or what vm_insert_page() says.
 */
int adverb_table_mmap(struct adverb_file *file, struct vm_area_struct *vma)
{
	unsigned long number = vma->vm_pgoff >> (ADVERB_TABLE_SHIFT - PAGE_SHIFT);
	struct adverb_extent *extent;
	int view, error = -ENXIO;

	mmap_assert_write_locked(vma->vm_mm);
	if (vma->vm_pgoff % (1UL << (ADVERB_TABLE_SHIFT - PAGE_SHIFT)))
		return -EINVAL;
	/*
	 * Killing a region, or giving a view back, takes this lock to take tables out of the numbers, so both are
	 * there as long as the lock is held.
	 */
	mutex_lock(&file->lock);
	extent = xa_load(&file->tables, number);
	if (extent && extent->region->mm != current->mm)
		error = -EPERM;
	else if (extent)
		for (view = 0; view < ADVERB_VIEWS; view++)
			if (extent->views[view].table == number)
				error = map_words(&extent->views[view], vma);
	mutex_unlock(&file->lock);
	return error;
}
