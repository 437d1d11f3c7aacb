// SPDX-License-Identifier: GPL-2.0
/*
 * How pages come into an extent: by the fault-in ioctl, and by the worker that brings back what was
 * invalidated but is still there.
 *
 * Enter: remember the notifier's sequence, get the pages the ordinary way (GUP, which faults, knows secret
 * and device memory, checks rights and counts faults), then under the lock see whether anything of the
 * extent was invalidated since. If not, the page tables still say what GUP said, and the pages may be shown
 * to devices: IOMMU entries, sync, and last the residency bits. The references are dropped at once; what
 * keeps the pages is that they cannot go without Leave.
 */
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/swap.h>

#include "adverb.h"

#define ENTER_TRIES 16
#define REMAP_BUDGET 256 /* granules a run */
#define REMAP_PERIOD (HZ / 50)

/* The page of slots for an address, made if need be. Never taken away while the extent lives. */
static u64 *chunk_of(struct adverb_extent *extent, unsigned long address)
{
	u64 **place = &extent->chunks[extent_chunk(extent, address)];
	u64 *chunk = READ_ONCE(*place), *other;

	if (chunk)
		return chunk;
	chunk = (u64 *)get_zeroed_page(GFP_KERNEL_ACCOUNT);
	if (!chunk)
		return NULL;
	other = cmpxchg(place, NULL, chunk);
	if (!other)
		return chunk;
	free_page((unsigned long)chunk);
	return other;
}

/* Shows pages to the devices that have a mapping. Under the lock. */
static void open_the_way(struct adverb_extent *extent, unsigned long address, u64 slot, unsigned int views)
{
	struct adverb_mapping *mapping;

	list_for_each_entry(mapping, &extent->mappings, node)
		if ((views & BIT(mapping->view)) && !mapping->closing)
			adverb_retarget(mapping, address, slot & PAGE_MASK);
}

/*
 * Sets slots and entries of `count` pages from `start`, syncs, then says so in the words. Under the lock,
 * after the sequence was found unchanged. The pages lie in one chunk.
 */
static unsigned int install(struct adverb_extent *extent, u64 *chunk, unsigned long start,
			    struct page **pages, long count, unsigned int views)
{
	u16 came[ADVERB_CHUNK_PAGES / ADVERB_GRANULE_PAGES + 1][ADVERB_VIEWS] = {};
	unsigned int first = extent_granule(extent, start), total = 0, fresh, granule;
	u64 *slot;
	long i;
	int view;

	for (view = 0; view < ADVERB_VIEWS; view++)
		if (!extent->views[view].built)
			views &= ~BIT(view);
	for (i = 0; i < count; i++) {
		unsigned long address = start + i * PAGE_SIZE;

		slot = &chunk[chunk_slot(address)];
		/* Another page without an invalidation between would be the end of all this. */
		if (WARN_ON_ONCE(*slot && *slot >> PAGE_SHIFT != page_to_pfn(pages[i])))
			continue;
		fresh = views & ~(unsigned int)*slot;
		if (!fresh)
			continue;
		granule = extent_granule(extent, address);
		*slot = (u64)page_to_pfn(pages[i]) << PAGE_SHIFT | (*slot & ADVERB_SLOT_VIEWS) | fresh;
		__set_bit(granule, extent->summary);
		open_the_way(extent, address, *slot, fresh);
		for (view = 0; view < ADVERB_VIEWS; view++)
			if (fresh & BIT(view))
				came[granule - first][view] |= BIT((address >> PAGE_SHIFT) % ADVERB_GRANULE_PAGES);
	}
	if (!adverb_breaks(ADVERB_BROKEN_SYNC))
		adverb_count(extent->region, ADVERB_SYNCS, adverb_retarget_sync(extent));
	for (granule = first; granule <= extent_granule(extent, start + (count - 1) * PAGE_SIZE); granule++)
		for (view = 0; view < ADVERB_VIEWS; view++) {
			if (!came[granule - first][view])
				continue;
			adverb_words_enter(extent, view, granule, came[granule - first][view]);
			atomic64_add(hweight16(came[granule - first][view]), &extent->region->resident[view]);
			total += hweight16(came[granule - first][view]);
		}
	return total;
}

static void put_pages(struct page **pages, long count)
{
	while (count-- > 0)
		put_page(pages[count]);
}

/*
 * Pages from `start` on that are in all the asked views already. They are marked accessed, as a fault would:
 * to reclaim, memory that only devices use looks idle, and who serves them says by this what is in use. The
 * lock keeps the folios there.
 */
static long touch_resident(struct adverb_extent *extent, u64 *chunk, unsigned long start, unsigned long end,
			   unsigned int views)
{
	struct folio *folio, *last = NULL;
	unsigned long at;
	u64 slot;

	read_lock(&extent->lock);
	for (at = start; at < end; at += PAGE_SIZE) {
		slot = chunk[chunk_slot(at)];
		if ((slot & views) != views)
			break;
		folio = page_folio(pfn_to_page(slot >> PAGE_SHIFT));
		if (folio != last && !folio_test_hugetlb(folio))
			folio_mark_accessed(folio);
		last = folio;
	}
	read_unlock(&extent->lock);
	return (at - start) >> PAGE_SHIFT;
}

/**
 * adverb_enter - make pages of the caller's extent present and show them to devices
 * @extent: of a region of current->mm
 * @start: page aligned, as is @end, both in one 2 MiB chunk
 * @end: exclusive
 * @views: mask; with the write view the pages are made writable
 * @pages: room for a chunk
 *
 * Sleeps for as long as a page fault may. Returns the bytes that are in, from @start, or an error if not
 * even the first page came.
 */
long adverb_enter(struct adverb_extent *extent, unsigned long start, unsigned long end, unsigned int views,
		  struct page **pages)
{
	unsigned int flags = views & BIT(ADVERB_VIEW_WRITE) ? FOLL_WRITE : 0;
	u64 *chunk = chunk_of(extent, start);
	unsigned long sequence;
	unsigned int came;
	long count;
	int try, view;

	if (!chunk)
		return -ENOMEM;
	for (view = 0; view < ADVERB_VIEWS; view++)
		if (!READ_ONCE(extent->views[view].built))
			views &= ~BIT(view);
	count = touch_resident(extent, chunk, start, end, views);
	if (count)
		return count << PAGE_SHIFT;
	for (try = 0; try < ENTER_TRIES; try++) {
		if (fatal_signal_pending(current))
			return -EINTR;
		sequence = mmu_interval_read_begin(&extent->notifier);
		count = get_user_pages_fast(start, (end - start) >> PAGE_SHIFT, flags, pages);
		if (count <= 0)
			return count ? count : -EFAULT;
		write_lock(&extent->lock);
		if (extent->dead) {
			write_unlock(&extent->lock);
			put_pages(pages, count);
			return -ESHUTDOWN;
		}
		if (!mmu_interval_read_retry(&extent->notifier, sequence) ||
		    adverb_breaks(ADVERB_BROKEN_RETRY)) {
			came = install(extent, chunk, start, pages, count, views);
			write_unlock(&extent->lock);
			put_pages(pages, count);
			adverb_count(extent->region, ADVERB_ENTER, came);
			return count << PAGE_SHIFT;
		}
		write_unlock(&extent->lock);
		put_pages(pages, count);
		/* Ask for less: a long range is invalidated somewhere all the time under pressure. */
		if (try >= ENTER_TRIES / 2)
			end = start + PAGE_SIZE;
		cond_resched();
	}
	return -EAGAIN;
}

/* What is in place of a granule comes back, without a fault. mmap_lock is held for reading. */
static bool remap_granule(struct adverb_extent *extent, unsigned int view, unsigned int granule)
{
	unsigned long base = (extent->start & ~(ADVERB_GRANULE_SIZE - 1)) + granule * ADVERB_GRANULE_SIZE;
	unsigned long end = min(base + ADVERB_GRANULE_SIZE, extent->end), sequence;
	unsigned long at = max(base, extent->start);
	unsigned int flags = FOLL_NOFAULT | (view == ADVERB_VIEW_WRITE ? FOLL_WRITE : 0);
	struct page *pages[ADVERB_GRANULE_PAGES];
	u64 *chunk = READ_ONCE(extent->chunks[extent_chunk(extent, at)]);
	unsigned int came = 0;
	int locked = 1;
	long count;

	if (!chunk)
		return true;
	while (at < end) {
		/* Somebody has faulted it in meanwhile. */
		if (READ_ONCE(chunk[chunk_slot(at)]) & BIT(view)) {
			at += PAGE_SIZE;
			continue;
		}
		sequence = mmu_interval_read_begin(&extent->notifier);
		count = get_user_pages_remote(extent->region->mm, at, (end - at) >> PAGE_SHIFT, flags, pages,
					      &locked);
		if (count > 0) {
			write_lock(&extent->lock);
			/* Gone again: the invalidation has put it on the list once more. */
			if (!extent->dead && !mmu_interval_read_retry(&extent->notifier, sequence))
				came += install(extent, chunk, at, pages, count, BIT(view));
			write_unlock(&extent->lock);
			put_pages(pages, count);
			at += count * PAGE_SIZE;
		} else {
			at += PAGE_SIZE;
		}
		if (!locked)
			break;
	}
	adverb_count(extent->region, ADVERB_ENTER, came);
	adverb_count(extent->region, ADVERB_REMAPS, came);
	return locked;
}

/*
 * Migration, NUMA balancing, collapse into huge pages and fork invalidate pages that are in use. Without
 * this each would cost its next reader an unloaded redo.
 */
void adverb_remap_work(struct work_struct *work)
{
	struct adverb_region *region = container_of(to_delayed_work(work), struct adverb_region, remap);
	unsigned int budget = REMAP_BUDGET, granule;
	struct adverb_extent *extent;
	unsigned long index;
	bool locked = true;
	int view;

	if (READ_ONCE(region->dead) || !mmget_not_zero(region->mm))
		return;
	/* Its owner can hold the lock for as long as it likes, and has many regions. */
	if (!mmap_read_trylock(region->mm)) {
		budget = 0;
		goto out;
	}
	xa_for_each(&region->extents, index, extent)
		for (view = 0; view < ADVERB_VIEWS && locked && budget; view++)
			for (granule = 0; locked && budget; budget--) {
				write_lock(&extent->lock);
				granule = find_next_bit(extent->recent[view], extent_granules(extent), granule);
				if (granule < extent_granules(extent))
					__clear_bit(granule, extent->recent[view]);
				write_unlock(&extent->lock);
				if (granule >= extent_granules(extent))
					break;
				locked = remap_granule(extent, view, granule);
			}
	if (locked)
		mmap_read_unlock(region->mm);
out:
	/* Not the last user of an address space here: tearing it down can take long. */
	mmput_async(region->mm);
	if (!budget && !READ_ONCE(region->dead))
		queue_delayed_work(adverb_remap_queue, &region->remap, REMAP_PERIOD);
}
