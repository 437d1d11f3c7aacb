// SPDX-License-Identifier: GPL-2.0
/*
 * Regions: created in constant time, killed when the program says so or its file goes, freed when the last
 * dma-buf (a device's memory region) is gone too. A killed region answers every device with the parking
 * page: what it named may be other memory by then.
 */
#include <linux/lockdep.h>
#include <linux/random.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "adverb.h"

/* All that are not killed. */
LIST_HEAD(adverb_regions);
DEFINE_MUTEX(adverb_regions_lock);

/*
 * Of our own: freeing waits for the mmap_lock of an owner, who can hold it for long. What goes on for
 * others on other queues must not wait behind it.
 */
static struct workqueue_struct *free_queue;

static void region_free(struct kref *ref)
{
	struct adverb_region *region = container_of(ref, struct adverb_region, ref);
	struct adverb_extent *extent;
	unsigned long index;
	int view;

	WARN_ON(!list_empty(&region->node) || region->tables_mapped || atomic_read(&region->attachments));
	xa_for_each(&region->extents, index, extent)
		adverb_extent_destroy(extent);
	xa_destroy(&region->extents);
	for (view = 0; view < ADVERB_VIEWS; view++) {
		WARN_ON(atomic64_read(&region->resident[view]));
		if (region->parking[view])
			__free_page(region->parking[view]);
	}
	if (region->user) {
		adverb_uncharge(region, atomic64_read(&region->charged));
		adverb_user_put(region->user);
	}
	mmdrop(region->mm);
	kfree(region);
}

/**
 * adverb_region_put - drop a reference to a region
 * @region: freed with the last one
 *
 * May sleep, take mmap_lock, and wait for an invalidation of the owner's going on.
 */
void adverb_region_put(struct adverb_region *region)
{
	might_sleep();
	kref_put(&region->ref, region_free);
}

static void region_put_work(struct work_struct *work)
{
	adverb_region_put(container_of(work, struct adverb_region, put_work));
}

/**
 * adverb_region_put_later - drop a reference where nothing may be waited for
 * @region: one such reference may be dropped at a time
 *
 * Any context, any locks. An owner that holds its mmap_lock for long, and has many regions to free, delays
 * the freeing for all others here.
 */
void adverb_region_put_later(struct adverb_region *region)
{
	queue_work(free_queue, &region->put_work);
}

/**
 * adverb_region_take_back - get a reference again after adverb_region_put_later()
 * @region: the caller knows it is there
 *
 * One that is still queued to be dropped is as good as a new one. Any context, any locks.
 */
void adverb_region_take_back(struct adverb_region *region)
{
	if (!cancel_work(&region->put_work))
		kref_get(&region->ref);
}

/**
 * adverb_region_get_own - get a reference to a region of the caller's own address space
 * @file: the open /dev/adverb
 * @number: the region's in this file
 *
 * Return: the region, for adverb_region_put(); ERR_PTR(-ENOENT): there is none; ERR_PTR(-EPERM): it is of
 * another address space.
 */
struct adverb_region *adverb_region_get_own(struct adverb_file *file, u32 number)
{
	struct adverb_region *region;

	mutex_lock(&file->lock);
	region = xa_load(&file->regions, number);
	if (!region)
		region = ERR_PTR(-ENOENT);
	else if (region->mm != current->mm)
		region = ERR_PTR(-EPERM);
	else
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

/**
 * adverb_region_create - make a region of the caller's address space
 * @file: that numbers it
 * @start: its first byte
 * @length: bytes
 *
 * Constant time whatever the length. May sleep. The region is the file's, and may be gone on return.
 *
 * Return: its number in the file, from 1 on; -EINVAL: no range that a program could have; -EDQUOT: the user's
 * limit; -ENOMEM: also RLIMIT_MEMLOCK; -EBUSY: the file has no number left.
 */
int adverb_region_create(struct adverb_file *file, u64 start, u64 length)
{
	struct adverb_region *region;
	u32 number;
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
	INIT_DELAYED_WORK(&region->remap_work, adverb_remap_work);
	INIT_WORK(&region->put_work, region_put_work);
	region->file = file;
	region->start = start;
	region->length = length;
	region->first = start & PAGE_MASK;
	region->last = PAGE_ALIGN(start + length);
	region->pid = task_tgid_nr(current);
	region->mm = current->mm;
	mmgrab(region->mm);
	region->user = adverb_user_get();
	if (IS_ERR(region->user)) {
		error = PTR_ERR(region->user);
		region->user = NULL;
		goto put;
	}
	error = make_parking(region);
	if (error)
		goto put;
	mutex_lock(&adverb_regions_lock);
	list_add_tail(&region->node, &adverb_regions);
	mutex_unlock(&adverb_regions_lock);
	mutex_lock(&file->lock);
	error = xa_alloc(&file->regions, &region->number, region, XA_LIMIT(1, INT_MAX), GFP_KERNEL_ACCOUNT);
	number = region->number;
	mutex_unlock(&file->lock);
	/* From here on another thread may destroy it. */
	if (!error)
		return number;
	mutex_lock(&adverb_regions_lock);
	list_del_init(&region->node);
	mutex_unlock(&adverb_regions_lock);
put:
	adverb_region_put(region);
	return error;
}

/* Nothing enters any more, and everything leaves. */
static void region_kill(struct adverb_region *region)
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
	cancel_delayed_work_sync(&region->remap_work);
}

/**
 * adverb_region_destroy - end a region, as its program says so
 * @region: the caller has a reference, and keeps it
 *
 * May sleep. What devices still have of it shows the parking page.
 *
 * Return: 0; -ENOENT: it was destroyed already.
 */
int adverb_region_destroy(struct adverb_region *region)
{
	struct adverb_file *file = region->file;

	mutex_lock(&file->lock);
	/* Of two threads that destroy it, one finds it. */
	if (xa_load(&file->regions, region->number) != region) {
		mutex_unlock(&file->lock);
		return -ENOENT;
	}
	xa_erase(&file->regions, region->number);
	mutex_unlock(&file->lock);
	region_kill(region);
	adverb_region_put(region); /* the file's */
	return 0;
}

/**
 * adverb_regions_destroy - end all regions of a file that goes
 * @file: nobody else uses it any more
 *
 * May sleep.
 */
void adverb_regions_destroy(struct adverb_file *file)
{
	struct adverb_region *region;
	unsigned long number;

	xa_for_each(&file->regions, number, region) {
		region_kill(region);
		adverb_region_put(region);
	}
}

/* The extent at an address, made if it is the first time. */
static struct adverb_extent *region_extent(struct adverb_region *region, unsigned long address)
{
	unsigned long index = address >> ADVERB_EXTENT_SHIFT, start, end;
	struct adverb_extent *extent;
	int error;

	lockdep_assert_held(&region->lock);
	extent = xa_load(&region->extents, index);
	if (extent)
		return extent;
	start = max(region->first, index << ADVERB_EXTENT_SHIFT);
	end = min(region->last, (index + 1) << ADVERB_EXTENT_SHIFT);
	error = adverb_charge(region, adverb_extent_charge(start, end));
	if (error)
		return ERR_PTR(error);
	extent = adverb_extent_create(region, start, end);
	if (IS_ERR(extent)) {
		error = PTR_ERR(extent);
		goto uncharge;
	}
	error = xa_err(xa_store(&region->extents, index, extent, GFP_KERNEL_ACCOUNT));
	if (error)
		goto destroy;
	return extent;

destroy:
	adverb_extent_destroy(extent);
uncharge:
	adverb_uncharge(region, adverb_extent_charge(start, end));
	return ERR_PTR(error);
}

/* Gives a view's state table a number, by which it can be mapped, if it has none yet. */
static int number_table(struct adverb_extent *extent, unsigned int view)
{
	struct adverb_file *file = extent->region->file;
	u32 table;
	int error;

	lockdep_assert_held(&extent->region->lock);
	if (extent->views[view].table)
		return 0;
	mutex_lock(&file->lock);
	error = xa_alloc(&file->tables, &table, extent, ADVERB_TABLE_NUMBERS, GFP_KERNEL_ACCOUNT);
	if (!error)
		extent->views[view].table = table;
	mutex_unlock(&file->lock);
	return error;
}

/**
 * adverb_region_build - find or make the extent at an address, and its view
 * @region: the caller has a reference
 * @address: in the region's pages
 * @view: which
 *
 * May sleep, and takes mmap_lock.
 *
 * Return: the extent, which lives as long as the region; ERR_PTR(-ERANGE): beside the region;
 * ERR_PTR(-ESHUTDOWN): the region was killed; what adverb_charge() returns; ERR_PTR(-EBUSY): the file has no
 * number left for the table; or ERR_PTR(-ENOMEM).
 */
struct adverb_extent *adverb_region_build(struct adverb_region *region, unsigned long address,
					  unsigned int view)
{
	struct adverb_extent *extent;
	int error = 0;

	if (address < region->first || address >= region->last)
		return ERR_PTR(-ERANGE);
	mutex_lock(&region->lock);
	if (region->dead) {
		extent = ERR_PTR(-ESHUTDOWN);
		goto unlock;
	}
	extent = region_extent(region, address);
	if (IS_ERR(extent))
		goto unlock;
	if (!extent->views[view].built)
		error = adverb_extent_add_view(extent, view);
	if (!error)
		error = number_table(extent, view);
	if (error)
		extent = ERR_PTR(error);
unlock:
	mutex_unlock(&region->lock);
	return extent;
}

/**
 * adverb_region_extents - how many extents of a region are built
 * @region: may be in use
 *
 * Any context.
 *
 * Return: as many as there were at some time during the call.
 */
u32 adverb_region_extents(struct adverb_region *region)
{
	struct adverb_extent *extent;
	unsigned long index;
	u32 extents = 0;

	xa_for_each(&region->extents, index, extent)
		extents++;
	return extents;
}

/**
 * adverb_regions_init - make the queue on which regions are freed
 *
 * Return: 0 or -ENOMEM.
 */
int __init adverb_regions_init(void)
{
	free_queue = alloc_workqueue("adverb_free", WQ_UNBOUND, 0);
	return free_queue ? 0 : -ENOMEM;
}

/**
 * adverb_regions_exit - wait for what is to be freed and take the queue away
 */
void adverb_regions_exit(void)
{
	destroy_workqueue(free_queue);
}
