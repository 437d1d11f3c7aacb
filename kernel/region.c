// SPDX-License-Identifier: GPL-2.0
/*
 * Regions: created in constant time, killed when the program says so or its file goes, freed when the last
 * dma-buf (a device's memory region) is gone too. A killed region answers every device with the parking
 * page: what it named may be other memory by then.
 */
#include <linux/random.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "adverb.h"

LIST_HEAD(adverb_regions);
DEFINE_MUTEX(adverb_regions_lock);

static void region_free(struct kref *ref)
{
	struct adverb_region *region = container_of(ref, struct adverb_region, ref);
	struct adverb_extent *extent;
	unsigned long index;
	int view;

	xa_for_each(&region->extents, index, extent)
		adverb_extent_destroy(extent);
	xa_destroy(&region->extents);
	for (view = 0; view < ADVERB_VIEWS; view++)
		if (region->parking[view])
			__free_page(region->parking[view]);
	if (region->user) {
		adverb_uncharge(region, atomic64_read(&region->charged));
		adverb_user_put(region->user);
	}
	mmdrop(region->mm);
	kfree(region);
}

/* May sleep, and wait for an invalidation of the owner's going on. */
void adverb_region_put(struct adverb_region *region)
{
	kref_put(&region->ref, region_free);
}

struct adverb_region *adverb_region_get(struct adverb_file *file, u32 number)
{
	struct adverb_region *region;

	mutex_lock(&file->lock);
	region = xa_load(&file->regions, number);
	if (region)
		kref_get(&region->ref);
	mutex_unlock(&file->lock);
	return region;
}

/*
 * The parking pages. What an absent page reads as is random, so that real data is equal to it only by an
 * accident that costs a redo; it differs per region, so that no owner learns of another. A write view's
 * lost writes go to a page of their own, or a write would destroy the pattern that reads rely on.
 */
static int make_parking(struct adverb_region *region)
{
	int view;

	for (view = 0; view < ADVERB_VIEWS; view++) {
		region->parking[view] = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
		if (!region->parking[view])
			return -ENOMEM;
	}
	get_random_bytes(page_address(region->parking[ADVERB_VIEW_READ]), PAGE_SIZE);
	return adverb_charge(region, ADVERB_VIEWS);
}

int adverb_region_create(struct adverb_file *file, u64 start, u64 length, u32 *number)
{
	struct adverb_region *region;
	int error;

	if (!length || start + length < start || start + length > TASK_SIZE_MAX ||
	    PAGE_ALIGN(start + length) > TASK_SIZE_MAX)
		return -EINVAL;
	region = kzalloc(sizeof(*region), GFP_KERNEL_ACCOUNT);
	if (!region)
		return -ENOMEM;
	kref_init(&region->ref);
	mutex_init(&region->lock);
	xa_init(&region->extents);
	INIT_LIST_HEAD(&region->node);
	INIT_DELAYED_WORK(&region->remap, adverb_remap_work);
	INIT_WORK(&region->unmapped, adverb_unmapped_work);
	region->file = file;
	region->start = start;
	region->length = length;
	region->first = start & PAGE_MASK;
	region->last = PAGE_ALIGN(start + length);
	region->pid = task_tgid_nr(current);
	region->mm = current->mm;
	mmgrab(region->mm);
	region->user = adverb_user_get(&error);
	if (!region->user)
		goto put;
	error = make_parking(region);
	if (error)
		goto put;
	mutex_lock(&adverb_regions_lock);
	list_add_tail(&region->node, &adverb_regions);
	mutex_unlock(&adverb_regions_lock);
	mutex_lock(&file->lock);
	error = xa_alloc(&file->regions, &region->number, region, XA_LIMIT(1, INT_MAX), GFP_KERNEL_ACCOUNT);
	*number = region->number;
	mutex_unlock(&file->lock);
	if (!error)
		return 0;
	mutex_lock(&adverb_regions_lock);
	list_del_init(&region->node);
	mutex_unlock(&adverb_regions_lock);
put:
	adverb_region_put(region);
	return error;
}

/* Nothing enters any more, and everything leaves. The caller has taken it out of the file's numbers. */
void adverb_region_kill(struct adverb_region *region)
{
	struct adverb_extent *extent;
	unsigned long index;
	int view;

	mutex_lock(&adverb_regions_lock);
	list_del_init(&region->node);
	mutex_unlock(&adverb_regions_lock);
	mutex_lock(&region->lock);
	WRITE_ONCE(region->dead, true);
	xa_for_each(&region->extents, index, extent) {
		adverb_extent_kill(extent);
		mutex_lock(&region->file->lock);
		for (view = 0; view < ADVERB_VIEWS; view++)
			if (extent->views[view].table)
				xa_erase(&region->file->tables, extent->views[view].table);
		mutex_unlock(&region->file->lock);
	}
	mutex_unlock(&region->lock);
	/* Not queued again: extents queue it under their lock, and not when dead. */
	cancel_delayed_work_sync(&region->remap);
}

/* Finds or makes the extent at an address and its view. It lives as long as the caller's reference. */
struct adverb_extent *adverb_region_build(struct adverb_region *region, unsigned long address,
					  unsigned int view)
{
	unsigned long index = address >> ADVERB_EXTENT_SHIFT;
	struct adverb_extent *extent;
	unsigned long start, end;
	u32 table;
	int error;

	if (address < region->first || address >= region->last)
		return ERR_PTR(-ERANGE);
	mutex_lock(&region->lock);
	error = -ESHUTDOWN;
	if (region->dead)
		goto fail;
	extent = xa_load(&region->extents, index);
	if (!extent) {
		start = max(region->first, index << ADVERB_EXTENT_SHIFT);
		end = min(region->last, (index + 1) << ADVERB_EXTENT_SHIFT);
		error = adverb_charge(region, adverb_extent_charge(start, end));
		if (error)
			goto fail;
		extent = adverb_extent_create(region, start, end);
		if (IS_ERR(extent)) {
			error = PTR_ERR(extent);
			adverb_uncharge(region, adverb_extent_charge(start, end));
			goto fail;
		}
		error = xa_err(xa_store(&region->extents, index, extent, GFP_KERNEL_ACCOUNT));
		if (error) {
			adverb_extent_destroy(extent);
			adverb_uncharge(region, adverb_extent_charge(start, end));
			goto fail;
		}
	}
	if (!extent->views[view].built) {
		error = adverb_extent_add_view(extent, view);
		if (error)
			goto fail;
	}
	if (!extent->views[view].table) {
		mutex_lock(&region->file->lock);
		error = xa_alloc(&region->file->tables, &table, extent, ADVERB_TABLE_NUMBERS,
				 GFP_KERNEL_ACCOUNT);
		if (!error)
			extent->views[view].table = table;
		mutex_unlock(&region->file->lock);
		if (error)
			goto fail;
	}
	mutex_unlock(&region->lock);
	return extent;
fail:
	mutex_unlock(&region->lock);
	return ERR_PTR(error);
}
