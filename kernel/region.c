// SPDX-License-Identifier: GPL-2.0
/*
 * Regions: created in constant time, killed when the program says so or its file goes, freed when the last
 * dma-buf (a device's memory region) and mapped table is gone too. A killed region answers every device with the parking
 * page: what it named may be other memory by then.
 */
#include <linux/lockdep.h>
#include <linux/pid.h>
#include <linux/random.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "adverb.h"

/* All that are charged for, also if killed. */
LIST_HEAD(adverb_regions);
DEFINE_MUTEX(adverb_regions_lock);

static void region_free(struct kref *ref)
{
	struct adverb_region *region = container_of(ref, struct adverb_region, ref);
	struct adverb_extent *extent;
	unsigned long index;
	int view;

	WARN_ON(atomic_read(&region->attachments));
	mutex_lock(&adverb_regions_lock);
	list_del(&region->node);
	mutex_unlock(&adverb_regions_lock);
	xa_for_each(&region->extents, index, extent) {
		adverb_extent_destroy(extent);
		cond_resched();
	}
	xa_destroy(&region->extents);
	for (view = 0; view < ADVERB_VIEWS; view++) {
		WARN_ON(atomic64_read(&region->resident[view]));
		if (region->parking[view])
			__free_page(region->parking[view]);
	}
	if (region->user) {
		if (region->parking_charged)
			adverb_uncharge(region, region->parking_charged);
		WARN_ON(atomic64_read(&region->charged));
		adverb_user_put(region->user);
	}
	mmdrop(region->mm);
	put_pid(region->pid);
	kfree_rcu(region, rcu); /* who looks for it sees that it has no reference left */
}

/**
 * adverb_region_put - drop a reference to a region
 * @region: freed with the last one
 *
 * May sleep, and wait for an invalidation of the owner's going on; takes no mmap_lock.
 */
void adverb_region_put(struct adverb_region *region)
{
	might_sleep();
	kref_put(&region->ref, region_free);
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

	rcu_read_lock();
	region = xa_load(&file->regions, number);
	if (region && region->mm != current->mm)
		region = ERR_PTR(-EPERM);
	else if (!region || !kref_get_unless_zero(&region->ref))
		region = ERR_PTR(-ENOENT);
	rcu_read_unlock();
	return region;
}

/*
 * The parking pages. What an absent page reads as is random, so that real data is equal to it only by an
 * accident that costs a redo; it differs per region, so that no owner learns of another. A write view's
 * lost writes go to a page of their own, or a write would destroy the pattern that reads rely on.
 */
static int make_parking(struct adverb_region *region)
{
	unsigned int pages = region->read_only ? 1 : ADVERB_VIEWS, view; /* the read view is the first */
	int error;

	for (view = 0; view < pages; view++) {
		region->parking[view] = alloc_page(GFP_KERNEL_ACCOUNT | __GFP_ZERO);
		if (!region->parking[view])
			return -ENOMEM;
	}
	get_random_bytes(page_address(region->parking[ADVERB_VIEW_READ]), PAGE_SIZE);
	error = adverb_charge(region, pages);
	if (!error)
		region->parking_charged = pages;
	return error;
}

/**
 * adverb_region_create - make a region of the caller's address space
 * @file: that numbers it
 * @start: its first byte
 * @length: bytes
 * @extent_shift: log2 of the bytes of its extents, from ADVERB_EXTENT_SHIFT_MIN to _MAX
 * @read_only: it has no write views
 *
 * Constant time whatever the length. May sleep. The region is the file's, and may be gone on return.
 *
 * Return: its number in the file, from 1 on; -EINVAL: no range that a program could have; -EDQUOT: the user's
 * limit; -ENOMEM: also RLIMIT_MEMLOCK; -EBUSY: the file has no number left.
 */
int adverb_region_create(struct adverb_file *file, u64 start, u64 length, unsigned int extent_shift,
			 bool read_only)
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
	region->file = file;
	region->extent_shift = extent_shift;
	region->read_only = read_only;
	region->start = start;
	region->length = length;
	region->first = start & PAGE_MASK;
	region->last = PAGE_ALIGN(start + length);
	region->pid = get_pid(task_tgid(current));
	region->memlock = adverb_memlock();
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
	unsigned long index = address >> region->extent_shift, start, end;
	struct adverb_extent *extent;
	int error;

	lockdep_assert_held(&region->lock);
	extent = xa_load(&region->extents, index);
	if (extent)
		return extent;
	start = max(region->first, index << region->extent_shift);
	end = min(region->last, (index + 1) << region->extent_shift);
	extent = adverb_extent_create(region, start, end);
	if (IS_ERR(extent))
		return extent;
	error = xa_err(xa_store(&region->extents, index, extent, GFP_KERNEL_ACCOUNT));
	if (error) {
		adverb_extent_destroy(extent);
		return ERR_PTR(error);
	}
	WRITE_ONCE(region->extent_count, region->extent_count + 1);
	return extent;
}

static bool has_view(const struct adverb_extent *extent)
{
	int view;

	for (view = 0; view < ADVERB_VIEWS; view++)
		if (extent->views[view].built)
			return true;
	return false;
}

/* Takes an extent out of the region for good. Nobody else has a reference, or can get one. */
static void remove_extent(struct adverb_region *region, struct adverb_extent *extent)
{
	lockdep_assert_held(&region->lock);
	xa_erase(&region->extents, extent->start >> region->extent_shift);
	WRITE_ONCE(region->extent_count, region->extent_count - 1);
	adverb_extent_kill(extent);
	adverb_extent_destroy(extent);
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
 * @fresh: out: whether this call has built the view; not written with an error
 *
 * May sleep, and takes the mmap_lock of the caller's address space.
 *
 * Return: the extent, whose view has one user more until that is counted down; ERR_PTR(-ERANGE): beside the region;
 * ERR_PTR(-EACCES): a write view of a region that has none;
 * ERR_PTR(-ESHUTDOWN): the region was killed; what adverb_charge() returns; ERR_PTR(-EBUSY): the file has no
 * number left for the table; or ERR_PTR(-ENOMEM).
 */
struct adverb_extent *adverb_region_build(struct adverb_region *region, unsigned long address,
					  unsigned int view, bool *fresh)
{
	struct adverb_extent *extent;
	int error = 0;
	bool built;

	if (address < region->first || address >= region->last)
		return ERR_PTR(-ERANGE);
	if (view == ADVERB_VIEW_WRITE && region->read_only)
		return ERR_PTR(-EACCES);
	mutex_lock(&region->lock);
	if (region->dead) {
		extent = ERR_PTR(-ESHUTDOWN);
		goto unlock;
	}
	extent = region_extent(region, address);
	if (IS_ERR(extent))
		goto unlock;
	built = extent->views[view].built;
	if (!built)
		error = adverb_extent_add_view(extent, view);
	if (!error)
		error = number_table(extent, view);
	if (!error) {
		*fresh = !built;
		atomic_inc(&extent->views[view].users);
		goto unlock;
	}
	if (!extent->views[view].table && extent->views[view].built)
		adverb_extent_drop_view(extent, view);
	/* Nobody has been told of a new one; one that is being used had a view before. */
	if (!has_view(extent) && refcount_dec_if_one(&extent->ref))
		remove_extent(region, extent);
	extent = ERR_PTR(error);
unlock:
	mutex_unlock(&region->lock);
	return extent;
}

/*
 * Takes the number of a view's table away if nobody uses the view, and with the last view the extent's reference
 * of the region. Who counts up a view's users has one of the two locks.
 */
static int retire_view(struct adverb_extent *extent, unsigned int view, bool last)
{
	struct adverb_file *file = extent->region->file;
	struct adverb_view *retired = &extent->views[view];
	int error = 0;

	lockdep_assert_held(&extent->region->lock);
	mutex_lock(&file->lock);
	if (atomic_read(&retired->users) || (last && !refcount_dec_if_one(&extent->ref))) {
		error = -EBUSY;
	} else {
		xa_erase(&file->tables, retired->table);
		retired->table = 0;
	}
	mutex_unlock(&file->lock);
	return error;
}

/**
 * adverb_region_give_back - take a view of an extent away, and with its last view the extent
 * @region: the caller has a reference
 * @address: in the region's pages
 * @view: which
 *
 * May sleep.
 *
 * Return: 0; -ERANGE: beside the region; -ESHUTDOWN: the region was killed; -ENXIO: no such view was built there;
 * -EBUSY: it is in use.
 */
int adverb_region_give_back(struct adverb_region *region, unsigned long address, unsigned int view)
{
	struct adverb_extent *extent;
	int error = -ENXIO;
	bool last;

	if (address < region->first || address >= region->last)
		return -ERANGE;
	mutex_lock(&region->lock);
	if (region->dead) {
		error = -ESHUTDOWN;
		goto unlock;
	}
	extent = xa_load(&region->extents, address >> region->extent_shift);
	if (!extent || !extent->views[view].built)
		goto unlock;
	last = !extent->views[!view].built;
	/* The worker has references for a moment; nobody shall hear of that. */
	cancel_delayed_work_sync(&region->remap_work);
	error = retire_view(extent, view, last);
	if (error)
		goto remap;
	adverb_extent_drop_view(extent, view);
	if (last)
		remove_extent(region, extent);
remap:
	adverb_remap_soon(region); /* whatever it has not come to */
unlock:
	mutex_unlock(&region->lock);
	return error;
}

/**
 * adverb_region_view - find an extent that has a view
 * @region: the caller has a reference
 * @address: in the region's pages
 * @view: which
 *
 * May sleep.
 *
 * Return: the extent, whose view has one user more until that is counted down; ERR_PTR(-ERANGE): beside the region;
 * ERR_PTR(-ESHUTDOWN): the region was killed; ERR_PTR(-ENXIO): no such view was built there.
 */
struct adverb_extent *adverb_region_view(struct adverb_region *region, unsigned long address, unsigned int view)
{
	struct adverb_extent *extent;

	if (address < region->first || address >= region->last)
		return ERR_PTR(-ERANGE);
	mutex_lock(&region->lock);
	extent = xa_load(&region->extents, address >> region->extent_shift);
	if (region->dead)
		extent = ERR_PTR(-ESHUTDOWN);
	else if (!extent || !extent->views[view].built)
		extent = ERR_PTR(-ENXIO);
	else
		atomic_inc(&extent->views[view].users);
	mutex_unlock(&region->lock);
	return extent;
}
