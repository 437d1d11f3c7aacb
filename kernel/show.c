// SPDX-License-Identifier: GPL-2.0
/*
 * What all ways in share, for fault-in (enter.c) and for what is in memory already (present.c): the walk over a range,
 * chunk by chunk, and the step that shows pages to devices.
 */
#include <linux/bitmap.h>
#include <linux/lockdep.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "adverb.h"
#include "trace.h"

/**
 * adverb_extent_next - get a reference to an extent
 * @region: the caller has a reference
 * @index: of the first that is wanted; set to that of the one that is returned
 * @last: index of the last that is wanted
 *
 * Any context. It stays until adverb_extent_put(); what it had belonged to may be given back at any time before.
 *
 * Return: the first extent from *index to last, or NULL.
 */
struct adverb_extent *adverb_extent_next(struct adverb_region *region, unsigned long *index,
					 unsigned long last)
{
	struct adverb_extent *extent;

	rcu_read_lock();
	extent = xa_find(&region->extents, index, last, XA_PRESENT);
	while (extent && !refcount_inc_not_zero(&extent->ref))
		extent = xa_find_after(&region->extents, index, last, XA_PRESENT);
	rcu_read_unlock();
	return extent;
}

/**
 * adverb_extent_put - drop a reference of adverb_extent_next()
 * @extent: the last reference to it is the region's
 */
void adverb_extent_put(struct adverb_extent *extent)
{
	refcount_dec(&extent->ref);
}

/**
 * adverb_chunk - the page of slots for an address, made and charged if need be
 * @extent: the caller has a reference
 * @address: in it
 *
 * May sleep.
 *
 * Return: the slots of all pages of the 2 MiB, which stay while the extent lives; ERR_PTR(-ENOMEM); or what
 * adverb_charge() returns.
 */
u64 *adverb_chunk(struct adverb_extent *extent, unsigned long address)
{
	u64 **entry = &extent->chunks[extent_chunk(extent, address)];
	u64 *chunk = READ_ONCE(*entry), *first;
	int error;

	if (chunk)
		return chunk;
	error = adverb_charge(extent->region, 1);
	if (error)
		return ERR_PTR(error);
	chunk = (u64 *)get_zeroed_page(GFP_KERNEL_ACCOUNT);
	first = chunk ? cmpxchg(entry, NULL, chunk) : ERR_PTR(-ENOMEM);
	if (!first)
		return chunk;
	/* Another thread's was there first, or there is none to be had. */
	free_page((unsigned long)chunk);
	adverb_uncharge(extent->region, 1);
	return first;
}

/* Points the entries of a page at it, in all mappings of these views. */
static void retarget_views(struct adverb_extent *extent, unsigned long address, u64 slot, unsigned int views)
{
	struct adverb_mapping *mapping;

	lockdep_assert_held_write(&extent->lock);
	list_for_each_entry(mapping, &extent->mappings, node)
		if ((views & BIT(mapping->view)) && !mapping->closing)
			adverb_retarget(mapping, address, slot & PAGE_MASK);
}

/**
 * adverb_show_pages - let devices reach pages
 * @extent: locked for writing, and the notifier's sequence was found unchanged under this lock
 * @chunk: of all the pages
 * @start: address of the first
 * @pages: NULL stands for one to leave out
 * @count: of pages
 * @views: bits of the views they come to; those that are not built are left out
 *
 * Sets slots and entries, syncs, then says so in the words.
 *
 * Return: how many came, over all views.
 */
unsigned int adverb_show_pages(struct adverb_extent *extent, u64 *chunk, unsigned long start,
			       struct page **pages, long count, unsigned int views)
{
	u16 masks[ADVERB_CHUNK_PAGES / ADVERB_GRANULE_PAGES + 1][ADVERB_VIEWS] = {};
	unsigned int first = extent_granule(extent, start), total = 0, new_views, granule;
	u16 mask, *granule_masks;
	u64 *slot;
	long i;
	int view;

	lockdep_assert_held_write(&extent->lock);
	for (view = 0; view < ADVERB_VIEWS; view++)
		if (!extent->views[view].built)
			views &= ~BIT(view);
	for (i = 0; i < count; i++) {
		unsigned long address = start + i * PAGE_SIZE;

		if (!pages[i])
			continue;
		slot = &chunk[chunk_slot(address)];
		/* Another page without an invalidation between would be the end of all this. */
		if (WARN_ON_ONCE(*slot && *slot >> PAGE_SHIFT != page_to_pfn(pages[i])))
			continue;
		new_views = views & ~(unsigned int)*slot;
		if (!new_views)
			continue;
		granule = extent_granule(extent, address);
		*slot = (u64)page_to_pfn(pages[i]) << PAGE_SHIFT | (*slot & ADVERB_SLOT_VIEWS) | new_views;
		__set_bit(granule, extent->summary);
		retarget_views(extent, address, *slot, new_views);
		granule_masks = masks[granule - first];
		for (view = 0; view < ADVERB_VIEWS; view++)
			if (new_views & BIT(view))
				granule_masks[view] |= BIT((address >> PAGE_SHIFT) % ADVERB_GRANULE_PAGES);
	}
	adverb_retarget_sync(extent);
	for (granule = first; granule <= extent_granule(extent, start + (count - 1) * PAGE_SIZE); granule++)
		for (view = 0; view < ADVERB_VIEWS; view++) {
			mask = masks[granule - first][view];
			if (!mask)
				continue;
			adverb_words_enter(extent, view, granule, mask);
			extent->views[view].resident += hweight16(mask);
			atomic64_add(hweight16(mask), &extent->region->resident[view]);
			total += hweight16(mask);
		}
	trace_adverb_enter(extent, start, count, views, total);
	return total;
}

/**
 * adverb_each_chunk - go through a range of a region
 * @region: the caller has a reference
 * @start: first byte, as is @length within the region
 * @length: bytes
 * @visit: gets a built extent and pages of it that lie in one chunk, from `start` up to `end`; returns how many bytes
 *	are done, from `start` on, or -errno. The rest comes with its next call.
 * @data: for @visit
 * @done: bytes that are done, from @start; also with an error
 *
 * May sleep.
 *
 * Return: 0; -ENXIO: no extent was built there; -EINTR: a signal ends the process; or what @visit said.
 */
int adverb_each_chunk(struct adverb_region *region, u64 start, u64 length, adverb_visit_chunk *visit, void *data,
		      u64 *done)
{
	unsigned long address = start & PAGE_MASK, end = PAGE_ALIGN(start + length), stop, index;
	struct adverb_extent *extent;
	long bytes = 0;

	while (bytes >= 0 && address < end) {
		index = address >> region->extent_shift;
		extent = adverb_extent_next(region, &index, index);
		if (!extent) {
			bytes = -ENXIO;
			break;
		}
		stop = min(min(end, extent->end), round_down(address, ADVERB_CHUNK_SIZE) + ADVERB_CHUNK_SIZE);
		bytes = visit(extent, address, stop, data);
		adverb_extent_put(extent);
		if (bytes > 0)
			address += bytes;
		if (bytes >= 0 && fatal_signal_pending(current))
			bytes = -EINTR;
		cond_resched();
	}
	*done = address > start ? min(address, (unsigned long)(start + length)) - start : 0;
	return min(bytes, 0L);
}
