// SPDX-License-Identifier: GPL-2.0
/*
 * Extents, and the half of their life in which pages leave. How pages come is in enter.c.
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
#include <linux/delay.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "adverb.h"

#define BATCH_GRANULES 128
#define REMAP_DELAY (HZ / 50)

/* Bits of the granule's pages that lie in [start, end). */
static u16 granule_mask(unsigned long granule_start, unsigned long start, unsigned long end)
{
	unsigned int first = start > granule_start ? (start - granule_start) >> PAGE_SHIFT : 0;
	unsigned int last = end < granule_start + ADVERB_GRANULE_SIZE ? (end - granule_start) >> PAGE_SHIFT
								       : ADVERB_GRANULE_PAGES;

	return GENMASK(last - 1, first);
}

struct leaving {
	unsigned long address; /* of the granule */
	u64 *slots;	       /* of its first page */
	unsigned int granule;
	u16 mask[ADVERB_VIEWS];
};

/* Which pages of a granule leave which view. False if none does. */
static bool look_at_granule(struct adverb_extent *extent, unsigned int granule, unsigned long start,
			    unsigned long end, struct leaving *leaving)
{
	unsigned long base = extent->start & ~(ADVERB_GRANULE_SIZE - 1);
	unsigned long address = base + (unsigned long)granule * ADVERB_GRANULE_SIZE;
	u64 *chunk = extent->chunks[extent_chunk(extent, max(address, extent->start))];
	u16 mask = granule_mask(address, start, end);
	int i, view;

	*leaving = (struct leaving){ .address = address, .granule = granule };
	if (!chunk)
		return false;
	leaving->slots = chunk + chunk_slot(address);
	for (i = 0; i < ADVERB_GRANULE_PAGES; i++)
		for (view = 0; view < ADVERB_VIEWS; view++)
			if ((mask & BIT(i)) && (leaving->slots[i] & BIT(view)))
				leaving->mask[view] |= BIT(i);
	return leaving->mask[ADVERB_VIEW_READ] || leaving->mask[ADVERB_VIEW_WRITE];
}

static void leave_words(struct adverb_extent *extent, const struct leaving *leaving)
{
	int view;

	for (view = 0; view < ADVERB_VIEWS; view++)
		if (leaving->mask[view])
			adverb_words_leave(extent, view, leaving->granule, leaving->mask[view]);
}

static void leave_entries(struct adverb_extent *extent, const struct leaving *leaving)
{
	struct adverb_mapping *mapping;
	int i;

	list_for_each_entry(mapping, &extent->mappings, node)
		for (i = 0; i < ADVERB_GRANULE_PAGES; i++)
			if (leaving->mask[mapping->view] & BIT(i))
				adverb_retarget(mapping, leaving->address + i * PAGE_SIZE, mapping->parking);
}

/*
 * The folio is there: it is still mapped, as the caller of invalidate() has yet to unmap it. A page that
 * could be written through the write view had a writable PTE; whoever cleans a page write-protects it
 * first, and so comes through here. For file pages that means the folio is dirty already and stays so;
 * anonymous ones can be clean with a writable PTE, and would be dropped by reclaim with the device's data.
 */
static unsigned int leave_pages(struct adverb_extent *extent, const struct leaving *leaving)
{
	struct adverb_region *region = extent->region;
	unsigned int left = 0;
	bool any = false;
	struct folio *folio;
	int i, view;

	for (i = 0; i < ADVERB_GRANULE_PAGES; i++) {
		if ((leaving->mask[ADVERB_VIEW_WRITE] & BIT(i)) && !adverb_breaks(ADVERB_BROKEN_DIRTY)) {
			folio = page_folio(pfn_to_page(leaving->slots[i] >> PAGE_SHIFT));
			if (!folio_test_dirty(folio))
				folio_mark_dirty(folio);
		}
		if ((leaving->mask[ADVERB_VIEW_READ] | leaving->mask[ADVERB_VIEW_WRITE]) & BIT(i))
			leaving->slots[i] = 0; /* a page leaves all views at once */
		any |= leaving->slots[i] != 0;
	}
	for (view = 0; view < ADVERB_VIEWS; view++) {
		left += hweight16(leaving->mask[view]);
		atomic64_sub(hweight16(leaving->mask[view]), &region->resident[view]);
	}
	if (!any)
		__clear_bit(leaving->granule, extent->summary);
	return left;
}

/*
 * Lets what is resident of [start, end) leave, one batch, under the lock. Returns the address to go on
 * from, `end` when done.
 */
static unsigned long leave_batch(struct adverb_extent *extent, unsigned long start, unsigned long end,
				 bool remember)
{
	unsigned int granule = extent_granule(extent, start);
	unsigned int last = extent_granule(extent, end - 1), stop = granule, n, i, left = 0;
	struct adverb_region *region = extent->region;
	struct leaving leaving;
	int view;

	granule = find_next_bit(extent->summary, last + 1, granule);
	for (n = 0, stop = granule; n < BATCH_GRANULES && stop <= last; n++) {
		if (look_at_granule(extent, stop, start, end, &leaving)) {
			/* All words before the first entry would need a list; per granule is order enough. */
			if (!adverb_breaks(ADVERB_BROKEN_ORDER))
				leave_words(extent, &leaving);
			if (!adverb_breaks(ADVERB_BROKEN_PARK))
				leave_entries(extent, &leaving);
		}
		stop = find_next_bit(extent->summary, last + 1, stop + 1);
	}
	if (!adverb_breaks(ADVERB_BROKEN_SYNC))
		adverb_count(region, ADVERB_SYNCS, adverb_retarget_sync(extent));
	if (adverb_breaks(ADVERB_BROKEN_ORDER))
		mdelay(5);
	for (i = granule; i < stop && i <= last; i = find_next_bit(extent->summary, last + 1, i + 1)) {
		if (!look_at_granule(extent, i, start, end, &leaving))
			continue;
		if (adverb_breaks(ADVERB_BROKEN_ORDER))
			leave_words(extent, &leaving);
		left += leave_pages(extent, &leaving);
		for (view = 0; remember && view < ADVERB_VIEWS; view++)
			if (leaving.mask[view])
				__set_bit(i, extent->recent[view]);
	}
	adverb_count(region, ADVERB_LEAVE, left);
	if (left && remember && !extent->dead)
		queue_delayed_work(adverb_remap_queue, &region->remap, REMAP_DELAY);
	if (stop > last)
		return end;
	return (extent->start & ~(ADVERB_GRANULE_SIZE - 1)) + stop * ADVERB_GRANULE_SIZE;
}

static void leave(struct adverb_extent *extent, unsigned long start, unsigned long end, bool remember,
		  bool may_sleep) __must_hold(&extent->lock)
{
	for (;;) {
		start = leave_batch(extent, start, end, remember);
		if (start >= end)
			return;
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
	bool remember = range->event != MMU_NOTIFY_UNMAP && range->event != MMU_NOTIFY_RELEASE;

	if (adverb_breaks(ADVERB_BROKEN_NOWAIT) && !mmu_notifier_range_blockable(range))
		return false;
	write_lock(&extent->lock);
	if (adverb_breaks(ADVERB_BROKEN_ALLOCATE))
		kfree(kmalloc(PAGE_SIZE, GFP_KERNEL));
	/* From here on whoever looked before must look again, also between batches. */
	mmu_interval_set_seq(notifier, sequence);
	if (start < end)
		leave(extent, start, end, remember, mmu_notifier_range_blockable(range));
	write_unlock(&extent->lock);
	return true;
}

static const struct mmu_interval_notifier_ops extent_notifier_ops = {
	.invalidate = extent_invalidate,
};

/* Table pages of an extent with both views and all slots: what it may come to use, not what it uses yet. */
unsigned long adverb_extent_charge(unsigned long start, unsigned long end)
{
	unsigned long chunks = (PAGE_ALIGN(end) >> ADVERB_CHUNK_SHIFT) - (start >> ADVERB_CHUNK_SHIFT) + 1;
	unsigned long words = (end - start) / ADVERB_GRANULE_SIZE + 2;

	return chunks + ADVERB_VIEWS * DIV_ROUND_UP(words * sizeof(u64), PAGE_SIZE) + 2;
}

struct adverb_extent *adverb_extent_create(struct adverb_region *region, unsigned long start,
					   unsigned long end)
{
	struct adverb_extent *extent = kzalloc(sizeof(*extent), GFP_KERNEL_ACCOUNT);
	int view, error = -ENOMEM;

	if (!extent)
		return ERR_PTR(-ENOMEM);
	extent->region = region;
	extent->start = start;
	extent->end = end;
	mutex_init(&extent->attach_lock);
	rwlock_init(&extent->lock);
	INIT_LIST_HEAD(&extent->mappings);
	extent->chunks = kvcalloc(extent_chunks(extent), sizeof(*extent->chunks), GFP_KERNEL_ACCOUNT);
	extent->summary = bitmap_zalloc(extent_granules(extent), GFP_KERNEL_ACCOUNT);
	if (!extent->chunks || !extent->summary)
		goto fail;
	for (view = 0; view < ADVERB_VIEWS; view++) {
		extent->recent[view] = bitmap_zalloc(extent_granules(extent), GFP_KERNEL_ACCOUNT);
		if (!extent->recent[view])
			goto fail;
	}
	error = mmu_interval_notifier_insert(&extent->notifier, region->mm, start, end - start,
					     &extent_notifier_ops);
	if (error)
		goto fail;
	return extent;
fail:
	extent->notifier.mm = NULL;
	adverb_extent_destroy(extent);
	return ERR_PTR(error);
}

/* The view shows what comes from now on; what is resident in the other one stays out of this one. */
int adverb_extent_add_view(struct adverb_extent *extent, unsigned int view)
{
	size_t size = PAGE_ALIGN(extent_granules(extent) * sizeof(u64));
	u64 *words = adverb_words_alloc(size);

	if (!words)
		return -ENOMEM;
	write_lock(&extent->lock);
	extent->views[view].words = words;
	extent->views[view].words_size = size;
	WRITE_ONCE(extent->views[view].built, true);
	write_unlock(&extent->lock);
	return 0;
}

void adverb_extent_kill(struct adverb_extent *extent)
{
	write_lock(&extent->lock);
	extent->dead = true;
	leave(extent, extent->start, extent->end, false, true);
	write_unlock(&extent->lock);
}

/* No device has a mapping any more: each holds a reference to the region. */
void adverb_extent_destroy(struct adverb_extent *extent)
{
	unsigned int i;
	int view;

	WARN_ON(!list_empty(&extent->mappings));
	/* Waits for an invalidation going on; none comes later. */
	if (extent->notifier.mm)
		mmu_interval_notifier_remove(&extent->notifier);
	for (i = 0; extent->chunks && i < extent_chunks(extent); i++)
		free_page((unsigned long)extent->chunks[i]);
	kvfree(extent->chunks);
	bitmap_free(extent->summary);
	for (view = 0; view < ADVERB_VIEWS; view++) {
		if (!adverb_breaks(ADVERB_BROKEN_LEAK))
			bitmap_free(extent->recent[view]);
		vfree(extent->views[view].words);
	}
	kfree(extent);
	if (adverb_breaks(ADVERB_BROKEN_FREED))
		(void)READ_ONCE(extent->dead);
}

/*
 * Points the mapping's entries of all resident pages at them, or at the parking page; batch by batch, so that
 * invalidations get in between. Under the lock, which it drops.
 */
static void retarget_all(struct adverb_extent *extent, struct adverb_mapping *mapping, bool show)
	__must_hold(&extent->lock)
{
	unsigned int granule = 0, granules = extent_granules(extent), n;
	struct leaving found;
	int i;

	while (granule < granules) {
		for (n = 0; n < BATCH_GRANULES; n++, granule++) {
			granule = find_next_bit(extent->summary, granules, granule);
			if (granule >= granules)
				break;
			if (!look_at_granule(extent, granule, extent->start, extent->end, &found))
				continue;
			for (i = 0; i < ADVERB_GRANULE_PAGES; i++)
				if (found.mask[mapping->view] & BIT(i))
					adverb_retarget(mapping, found.address + i * PAGE_SIZE,
							show ? found.slots[i] & PAGE_MASK : mapping->parking);
		}
		adverb_count(extent->region, ADVERB_SYNCS, adverb_retarget_sync(extent));
		write_unlock(&extent->lock);
		cond_resched();
		write_lock(&extent->lock);
	}
}

/*
 * Pages that come or go while the mapping is being filled reach it like any other, as it is in the list from
 * the start; no device uses it before this returns.
 */
int adverb_extent_add_mapping(struct adverb_extent *extent, struct adverb_mapping *mapping)
{
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

/*
 * It stays in the list until no entry names a page any more and the IOMMU knows: a page that left after it
 * was out of the list, but before its addresses are unmapped, would still be within the device's reach.
 * Pages it may have written are marked dirty when they leave, as their slots remain.
 */
void adverb_extent_remove_mapping(struct adverb_extent *extent, struct adverb_mapping *mapping)
{
	write_lock(&extent->lock);
	mapping->closing = true;
	retarget_all(extent, mapping, false);
	list_del(&mapping->node);
	write_unlock(&extent->lock);
}
