// SPDX-License-Identifier: GPL-2.0
/*
 * Extents, and the half of their life in which pages leave. How pages come is in enter.c and present.c.
 *
 * Leave, in this order, all under the extent's lock:
 *   1. the state words: no peer may take a page for resident that is about to go
 *   2. the IOMMU entries, to the parking page
 *   3. one IOTLB sync per domain: until it is done a device may still use the old translation
 *   4. pages of the write view are marked dirty, now that the device can write them no more
 * invalidate() returns only then, since its caller frees or reuses the pages next. For the same reason the
 * lock is not dropped between 1 and 4: another invalidation of the same pages would find the slots empty,
 * return at once and let the pages be reused before this one's sync.
 *
 * The cost follows what is resident, not the length: empty granules are skipped by bitmap. The lock is held
 * for BATCH_GRANULES at most.
 */
#include <linux/lockdep.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "adverb.h"
#include "trace.h"

#define BATCH_GRANULES 128

/* Bits of the granule's pages that lie in [start, end). */
static u16 granule_mask(unsigned long granule_start, unsigned long start, unsigned long end)
{
	unsigned int first = start > granule_start ? (start - granule_start) >> PAGE_SHIFT : 0;
	unsigned int last = end < granule_start + ADVERB_GRANULE_SIZE ? (end - granule_start) >> PAGE_SHIFT
								       : ADVERB_GRANULE_PAGES;

	return GENMASK(last - 1, first);
}

/* What is resident of a granule, or of the part of it that was asked for. */
struct resident {
	unsigned long address; /* of the granule */
	u64 *slots; /* from its first page's on */
	unsigned int granule; /* number within the extent */
	u16 mask[ADVERB_VIEWS]; /* pages */
};

/* Looks up which pages of a granule in [start, end) are in which view. False if none is. */
static bool find_resident(struct adverb_extent *extent, unsigned int granule, unsigned long start,
			  unsigned long end, struct resident *resident)
{
	unsigned long base = extent->start & ~(ADVERB_GRANULE_SIZE - 1);
	unsigned long address = base + (unsigned long)granule * ADVERB_GRANULE_SIZE;
	u64 *chunk = extent->chunks[extent_chunk(extent, max(address, extent->start))];
	u16 mask = granule_mask(address, start, end);
	int i, view;

	lockdep_assert_held_write(&extent->lock);
	*resident = (struct resident){ .address = address, .granule = granule };
	if (!chunk)
		return false;
	resident->slots = chunk + chunk_slot(address);
	for (i = 0; i < ADVERB_GRANULE_PAGES; i++)
		for (view = 0; view < ADVERB_VIEWS; view++)
			if ((mask & BIT(i)) && (resident->slots[i] & BIT(view)))
				resident->mask[view] |= BIT(i);
	return resident->mask[ADVERB_VIEW_READ] || resident->mask[ADVERB_VIEW_WRITE];
}

static void leave_words(struct adverb_extent *extent, const struct resident *resident)
{
	int view;

	for (view = 0; view < ADVERB_VIEWS; view++)
		if (resident->mask[view])
			adverb_words_leave(extent, view, resident->granule, resident->mask[view]);
}

static void leave_entries(struct adverb_extent *extent, const struct resident *resident)
{
	struct adverb_mapping *mapping;
	int i;

	list_for_each_entry(mapping, &extent->mappings, node)
		for (i = 0; i < ADVERB_GRANULE_PAGES; i++)
			if (resident->mask[mapping->view] & BIT(i))
				adverb_retarget(mapping, resident->address + i * PAGE_SIZE, mapping->parking);
}

/*
 * The folio is there: it is still mapped, as the caller of invalidate() has yet to unmap it. A page that
 * could be written through the write view had a writable PTE; whoever cleans a page write-protects it
 * first, and so comes through here. For file pages that means the folio is dirty already and stays so;
 * anonymous ones can be clean with a writable PTE, and would be dropped by reclaim with the device's data.
 */
static unsigned int leave_pages(struct adverb_extent *extent, const struct resident *resident)
{
	struct adverb_region *region = extent->region;
	unsigned int pages_left = 0;
	bool others_stay = false;
	struct folio *folio;
	int i, view;

	for (i = 0; i < ADVERB_GRANULE_PAGES; i++) {
		if (resident->mask[ADVERB_VIEW_WRITE] & BIT(i)) {
			folio = page_folio(pfn_to_page(resident->slots[i] >> PAGE_SHIFT));
			if (!folio_test_dirty(folio))
				folio_mark_dirty(folio);
		}
		if ((resident->mask[ADVERB_VIEW_READ] | resident->mask[ADVERB_VIEW_WRITE]) & BIT(i))
			resident->slots[i] = 0; /* a page leaves all views at once */
		others_stay |= resident->slots[i] != 0;
	}
	for (view = 0; view < ADVERB_VIEWS; view++) {
		pages_left += hweight16(resident->mask[view]);
		extent->views[view].resident -= hweight16(resident->mask[view]);
		atomic64_sub(hweight16(resident->mask[view]), &region->resident[view]);
	}
	if (!others_stay)
		__clear_bit(resident->granule, extent->summary);
	return pages_left;
}

/*
 * Lets what is resident of [start, end) leave, one batch. Adds how many pages left, over all views. Returns the address
 * to go on from, `end` when done.
 */
static unsigned long leave_batch(struct adverb_extent *extent, unsigned long start, unsigned long end,
				 bool may_come_back, unsigned int *pages)
{
	unsigned int last = extent_granule(extent, end - 1), first, stop, granule, n, pages_left = 0;
	struct adverb_region *region = extent->region;
	struct resident resident;
	int view;

	lockdep_assert_held_write(&extent->lock);
	first = find_next_bit(extent->summary, last + 1, extent_granule(extent, start));
	for (n = 0, stop = first; n < BATCH_GRANULES && stop <= last; n++) {
		if (find_resident(extent, stop, start, end, &resident)) {
			/* All words before the first entry would need a list; per granule is order enough. */
			leave_words(extent, &resident);
			leave_entries(extent, &resident);
		}
		stop = find_next_bit(extent->summary, last + 1, stop + 1);
	}
	adverb_retarget_sync(extent);
	for (granule = first; granule < stop && granule <= last;
	     granule = find_next_bit(extent->summary, last + 1, granule + 1)) {
		if (!find_resident(extent, granule, start, end, &resident))
			continue;
		pages_left += leave_pages(extent, &resident);
		for (view = 0; may_come_back && view < ADVERB_VIEWS; view++)
			if (resident.mask[view])
				__set_bit(granule, extent->recent[view]);
	}
	adverb_count(region, ADVERB_LEAVE, pages_left);
	*pages += pages_left;
	if (pages_left && may_come_back && !extent->dead)
		adverb_remap_soon(region);
	if (stop > last)
		return end;
	return (extent->start & ~(ADVERB_GRANULE_SIZE - 1)) + stop * ADVERB_GRANULE_SIZE;
}

/* Returns how many pages left, over all views. */
static unsigned int leave(struct adverb_extent *extent, unsigned long start, unsigned long end, bool may_come_back,
			  bool may_sleep) __must_hold(&extent->lock)
{
	unsigned int pages = 0;

	for (;;) {
		start = leave_batch(extent, start, end, may_come_back, &pages);
		if (start >= end)
			return pages;
		write_unlock(&extent->lock);
		if (may_sleep)
			cond_resched();
		write_lock(&extent->lock);
	}
}

/*
 * Called before pages of the range are unmapped, moved, shared or write-protected, with any lock that
 * reclaim may hold. Always succeeds, also when it must not block: it never does, but between batches.
 */
static bool extent_invalidate(struct mmu_interval_notifier *notifier,
			      const struct mmu_notifier_range *range, unsigned long sequence)
{
	struct adverb_extent *extent = container_of(notifier, struct adverb_extent, notifier);
	unsigned long start = max(range->start, extent->start);
	unsigned long end = min(range->end, extent->end);
	/* Unmapped pages do not come back by themselves; of the others the worker may find some in place. */
	bool may_come_back = range->event != MMU_NOTIFY_UNMAP && range->event != MMU_NOTIFY_RELEASE;
	u64 begun = trace_adverb_leave_enabled() ? ktime_get_ns() : 0;
	unsigned int pages = 0;

	write_lock(&extent->lock);
	/* From here on whoever looked before must look again, also between batches. */
	mmu_interval_set_seq(notifier, sequence);
	if (start < end)
		pages = leave(extent, start, end, may_come_back, mmu_notifier_range_blockable(range));
	write_unlock(&extent->lock);
	if (begun)
		trace_adverb_leave(extent, start, end, range->event, pages, ktime_get_ns() - begun);
	return true;
}

static const struct mmu_interval_notifier_ops extent_notifier_ops = {
	.invalidate = extent_invalidate,
};

/* Pages for what an extent has before any page of it has come; tables of views and chunks are charged apart. */
static unsigned long extent_charge(const struct adverb_extent *extent)
{
	size_t bitmaps = (1 + ADVERB_VIEWS) * BITS_TO_LONGS(extent_granules(extent)) * sizeof(long);

	return DIV_ROUND_UP(sizeof(*extent) + extent_chunks(extent) * sizeof(*extent->chunks) + bitmaps, PAGE_SIZE);
}

/**
 * adverb_extent_create - make an extent, with no views yet
 * @region: it lies in; its lock is held
 * @start: page aligned, as is @end
 * @end: exclusive, in the same aligned 2^extent_shift bytes
 *
 * May sleep. From now on it is told when pages of the range leave.
 *
 * Return: the extent, for adverb_extent_destroy(); what adverb_charge() returns; or ERR_PTR().
 */
struct adverb_extent *adverb_extent_create(struct adverb_region *region, unsigned long start,
					   unsigned long end)
{
	struct adverb_extent *extent = kzalloc(sizeof(*extent), GFP_KERNEL_ACCOUNT);
	int view, error;

	lockdep_assert_held(&region->lock);
	if (!extent)
		return ERR_PTR(-ENOMEM);
	extent->region = region;
	refcount_set(&extent->ref, 1);
	extent->start = start;
	extent->end = end;
	mutex_init(&extent->attach_lock);
	rwlock_init(&extent->lock);
	INIT_LIST_HEAD(&extent->mappings);
	error = adverb_charge(region, extent_charge(extent));
	if (error)
		goto destroy;
	extent->charged = extent_charge(extent);
	error = -ENOMEM;
	extent->chunks = kvcalloc(extent_chunks(extent), sizeof(*extent->chunks), GFP_KERNEL_ACCOUNT);
	extent->summary = bitmap_zalloc(extent_granules(extent), GFP_KERNEL_ACCOUNT);
	if (!extent->chunks || !extent->summary)
		goto destroy;
	for (view = 0; view < ADVERB_VIEWS; view++) {
		extent->views[view].extent = extent;
		extent->recent[view] = bitmap_zalloc(extent_granules(extent), GFP_KERNEL_ACCOUNT);
		if (!extent->recent[view])
			goto destroy;
	}
	error = mmu_interval_notifier_insert(&extent->notifier, region->mm, start, end - start,
					     &extent_notifier_ops);
	if (error)
		goto destroy;
	return extent;

destroy:
	extent->notifier.mm = NULL;
	adverb_extent_destroy(extent);
	return ERR_PTR(error);
}

/**
 * adverb_extent_add_view - build a view of an extent
 * @extent: whose region's lock is held
 * @view: one it does not have yet
 *
 * The view shows what comes from now on; what is resident in the other one stays out of this one. May sleep.
 *
 * Return: 0; what adverb_charge() returns; or -ENOMEM.
 */
int adverb_extent_add_view(struct adverb_extent *extent, unsigned int view)
{
	size_t size = PAGE_ALIGN(extent_granules(extent) * sizeof(u64));
	u64 *words;
	int error;

	lockdep_assert_held(&extent->region->lock);
	if (WARN_ON(extent->views[view].built))
		return -EEXIST;
	error = adverb_charge(extent->region, size >> PAGE_SHIFT);
	if (error)
		return error;
	words = adverb_words_alloc(size);
	if (!words) {
		adverb_uncharge(extent->region, size >> PAGE_SHIFT);
		return -ENOMEM;
	}
	write_lock(&extent->lock);
	extent->views[view].words = words;
	extent->views[view].words_size = size;
	WRITE_ONCE(extent->views[view].built, true);
	write_unlock(&extent->lock);
	return 0;
}

/**
 * adverb_extent_drop_view - take a view of an extent away
 * @extent: whose region's lock is held
 * @view: one that nobody uses, and nobody can begin to use
 *
 * All pages leave, as one that the write view has shown is dirty; the worker brings back into the other view what
 * is still there. May sleep.
 */
void adverb_extent_drop_view(struct adverb_extent *extent, unsigned int view)
{
	struct adverb_view *dropped = &extent->views[view];
	size_t size = dropped->words_size;
	u64 *words = dropped->words;

	lockdep_assert_held(&extent->region->lock);
	WARN_ON(atomic_read(&dropped->users));
	write_lock(&extent->lock);
	WRITE_ONCE(dropped->built, false); /* nothing enters it from here on */
	leave(extent, extent->start, extent->end, true, true);
	bitmap_zero(extent->recent[view], extent_granules(extent));
	dropped->words = NULL;
	dropped->words_size = 0;
	write_unlock(&extent->lock);
	vfree(words);
	adverb_uncharge(extent->region, size >> PAGE_SHIFT);
}

/**
 * adverb_extent_kill - let everything leave, and nothing enter any more
 * @extent: whose region's lock is held
 *
 * May sleep. The notifier stays until adverb_extent_destroy().
 */
void adverb_extent_kill(struct adverb_extent *extent)
{
	lockdep_assert_held(&extent->region->lock);
	write_lock(&extent->lock);
	extent->dead = true;
	leave(extent, extent->start, extent->end, false, true);
	write_unlock(&extent->lock);
}

/**
 * adverb_extent_destroy - free an extent
 * @extent: no device has a mapping any more, as each holds a reference to the region
 *
 * May sleep, and wait for an invalidation going on.
 */
void adverb_extent_destroy(struct adverb_extent *extent)
{
	unsigned long pages = extent->charged;
	unsigned int i;
	int view;

	WARN_ON(!list_empty(&extent->mappings));
	/* Waits for an invalidation going on; none comes later. */
	if (extent->notifier.mm)
		mmu_interval_notifier_remove(&extent->notifier);
	for (i = 0; extent->chunks && i < extent_chunks(extent); i++) {
		pages += !!extent->chunks[i];
		free_page((unsigned long)extent->chunks[i]);
	}
	kvfree(extent->chunks);
	bitmap_free(extent->summary);
	for (view = 0; view < ADVERB_VIEWS; view++) {
		bitmap_free(extent->recent[view]);
		vfree(extent->views[view].words);
		pages += extent->views[view].words_size >> PAGE_SHIFT;
	}
	adverb_uncharge(extent->region, pages);
	kfree_rcu(extent, rcu); /* who looks for it sees that it has no reference left */
}

/**
 * adverb_extent_query - tell what there is of an extent
 * @extent: the caller has a reference
 * @query: what is an answer of it is filled in
 *
 * May sleep, as attaching and detaching a device of it is waited for.
 */
void adverb_extent_query(struct adverb_extent *extent, struct adverb_query_extent *query)
{
	struct adverb_mapping *mapping;
	unsigned int i;
	int view;

	query->start = extent->start;
	query->length = extent->end - extent->start;
	query->charged_pages = extent->charged;
	query->views = 0;
	query->mappings = 0;
	mutex_lock(&extent->attach_lock);
	list_for_each_entry(mapping, &extent->mappings, node) {
		query->charged_pages += mapping->charged;
		query->mappings++;
	}
	mutex_unlock(&extent->attach_lock);
	for (i = 0; i < extent_chunks(extent); i++)
		query->charged_pages += !!READ_ONCE(extent->chunks[i]);
	read_lock(&extent->lock);
	for (view = 0; view < ADVERB_VIEWS; view++) {
		query->resident[view] = extent->views[view].resident;
		query->charged_pages += extent->views[view].words_size >> PAGE_SHIFT;
		if (extent->views[view].built)
			query->views |= BIT(view);
	}
	read_unlock(&extent->lock);
}

/*
 * Points the mapping's entries of all resident pages at them, or at the parking page; batch by batch, so that
 * invalidations get in between: it drops the lock and takes it again.
 */
static void retarget_all(struct adverb_extent *extent, struct adverb_mapping *mapping, bool show)
	__must_hold(&extent->lock)
{
	unsigned int granule = 0, granules = extent_granules(extent), n;
	struct resident resident;
	int i;

	lockdep_assert_held_write(&extent->lock);
	while (granule < granules) {
		for (n = 0; n < BATCH_GRANULES; n++, granule++) {
			granule = find_next_bit(extent->summary, granules, granule);
			if (granule >= granules)
				break;
			if (!find_resident(extent, granule, extent->start, extent->end, &resident))
				continue;
			for (i = 0; i < ADVERB_GRANULE_PAGES; i++)
				if (resident.mask[mapping->view] & BIT(i))
					adverb_retarget(mapping, resident.address + i * PAGE_SIZE,
							show ? resident.slots[i] & PAGE_MASK
							     : mapping->parking);
		}
		adverb_retarget_sync(extent);
		write_unlock(&extent->lock);
		cond_resched();
		write_lock(&extent->lock);
	}
}

/**
 * adverb_extent_add_mapping - show an extent's pages to the devices of a mapping
 * @extent: whose attach_lock is held
 * @mapping: prepared, of this extent
 *
 * Pages that come or go while the mapping is being filled reach it like any other, as it is in the list from
 * the start; no device uses it before this returns. May sleep.
 *
 * Return: 0; -ESHUTDOWN: the extent was killed.
 */
int adverb_extent_add_mapping(struct adverb_extent *extent, struct adverb_mapping *mapping)
{
	lockdep_assert_held(&extent->attach_lock);
	write_lock(&extent->lock);
	if (extent->dead) {
		write_unlock(&extent->lock);
		return -ESHUTDOWN;
	}
	list_add_tail(&mapping->node, &extent->mappings);
	retarget_all(extent, mapping, true);
	write_unlock(&extent->lock);
	return 0;
}

/**
 * adverb_extent_remove_mapping - park all entries of a mapping
 * @extent: whose attach_lock is held
 * @mapping: no device uses it any more
 *
 * It stays in the list until no entry names a page any more and the IOMMU knows: a page that left after it
 * was out of the list, but before its addresses are unmapped, would still be within the device's reach.
 * Pages it may have written are marked dirty when they leave, as their slots remain. May sleep.
 */
void adverb_extent_remove_mapping(struct adverb_extent *extent, struct adverb_mapping *mapping)
{
	lockdep_assert_held(&extent->attach_lock);
	write_lock(&extent->lock);
	mapping->closing = true;
	retarget_all(extent, mapping, false);
	list_del(&mapping->node);
	write_unlock(&extent->lock);
}
