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
#include <linux/lockdep.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/swap.h>

#include "adverb.h"

#define ENTER_TRIES 16
#define REMAP_BUDGET 256 /* granules each time the worker runs */
#define REMAP_DELAY (HZ / 50)
#define REMAP_WORKERS 4

/*
 * Of our own: what users make us do there must not keep the kernel's queues busy. Not the one on which
 * regions are freed: that one waits for owners.
 */
static struct workqueue_struct *remap_queue;

/* The page of slots for an address, made if need be. Never taken away while the extent lives. */
static u64 *chunk_of(struct adverb_extent *extent, unsigned long address)
{
	u64 **entry = &extent->chunks[extent_chunk(extent, address)];
	u64 *chunk = READ_ONCE(*entry), *first;

	if (chunk)
		return chunk;
	chunk = (u64 *)get_zeroed_page(GFP_KERNEL_ACCOUNT);
	if (!chunk)
		return NULL;
	first = cmpxchg(entry, NULL, chunk);
	if (!first)
		return chunk;
	/* Another thread's was there first. */
	free_page((unsigned long)chunk);
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

/*
 * Sets slots and entries of `count` pages from `start`, syncs, then says so in the words. After the
 * sequence was found unchanged, under the same lock. The pages lie in one chunk. Returns how many came,
 * over all views.
 */
static unsigned int show_pages(struct adverb_extent *extent, u64 *chunk, unsigned long start,
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
	if (!adverb_breaks(ADVERB_BROKEN_SYNC))
		adverb_retarget_sync(extent);
	for (granule = first; granule <= extent_granule(extent, start + (count - 1) * PAGE_SIZE); granule++)
		for (view = 0; view < ADVERB_VIEWS; view++) {
			mask = masks[granule - first][view];
			if (!mask)
				continue;
			adverb_words_enter(extent, view, granule, mask);
			atomic64_add(hweight16(mask), &extent->region->resident[view]);
			total += hweight16(mask);
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
	struct folio *folio, *marked = NULL;
	unsigned long address;
	u64 slot;

	read_lock(&extent->lock);
	for (address = start; address < end; address += PAGE_SIZE) {
		slot = chunk[chunk_slot(address)];
		if ((slot & views) != views)
			break;
		folio = page_folio(pfn_to_page(slot >> PAGE_SHIFT));
		if (folio != marked && !folio_test_hugetlb(folio))
			folio_mark_accessed(folio);
		marked = folio;
	}
	read_unlock(&extent->lock);
	return (address - start) >> PAGE_SHIFT;
}

/*
 * Makes pages of one chunk present and shows them to the devices of the views. With the write view they are
 * made writable. `pages` has room for a chunk. Sleeps for as long as a page fault may. Returns the bytes
 * that are in, from `start`, or an error if not even the first page came.
 */
static long enter(struct adverb_extent *extent, unsigned long start, unsigned long end, unsigned int views,
		  struct page **pages)
{
	unsigned int flags = views & BIT(ADVERB_VIEW_WRITE) ? FOLL_WRITE : 0;
	u64 *chunk = chunk_of(extent, start);
	unsigned long sequence;
	unsigned int shown;
	long count;
	int attempt, view;

	if (!chunk)
		return -ENOMEM;
	for (view = 0; view < ADVERB_VIEWS; view++)
		if (!READ_ONCE(extent->views[view].built))
			views &= ~BIT(view);
	count = touch_resident(extent, chunk, start, end, views);
	if (count)
		return count << PAGE_SHIFT;
	for (attempt = 0; attempt < ENTER_TRIES; attempt++) {
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
			shown = show_pages(extent, chunk, start, pages, count, views);
			write_unlock(&extent->lock);
			put_pages(pages, count);
			adverb_count(extent->region, ADVERB_ENTER, shown);
			return count << PAGE_SHIFT;
		}
		write_unlock(&extent->lock);
		put_pages(pages, count);
		/* Ask for less: a long range is invalidated somewhere all the time under pressure. */
		if (attempt >= ENTER_TRIES / 2)
			end = start + PAGE_SIZE;
		cond_resched();
	}
	return -EAGAIN;
}

/**
 * adverb_fault_in - make a range present and show it to devices
 * @region: of current->mm
 * @start: first byte, as is @length within the region
 * @length: bytes
 * @view: the read view alone, or with the write view both, and the pages become writable
 * @done: bytes that are in, from @start; also with an error
 *
 * Sleeps for as long as page faults may. Stops at the first page that cannot be had, and counts that as
 * refused.
 *
 * Return: 0; -EFAULT: nothing is mapped there, or not with these rights; -EAGAIN: the page leaves faster
 * than it can be brought in; -ENXIO: no such view was built there; -ESHUTDOWN: the region was killed;
 * -EINTR; -ENOMEM.
 */
int adverb_fault_in(struct adverb_region *region, u64 start, u64 length, unsigned int view, u64 *done)
{
	unsigned long major = current->maj_flt, minor = current->min_flt;
	unsigned long address = start & PAGE_MASK, end = PAGE_ALIGN(start + length), stop;
	struct adverb_extent *extent;
	struct page **pages;
	long bytes;
	int error = 0;

	if (WARN_ON_ONCE(region->mm != current->mm))
		return -EPERM;
	pages = kmalloc_array(ADVERB_CHUNK_PAGES, sizeof(*pages), GFP_KERNEL);
	if (!pages)
		return -ENOMEM;
	while (address < end) {
		extent = xa_load(&region->extents, address >> ADVERB_EXTENT_SHIFT);
		if (!extent || !READ_ONCE(extent->views[view].built)) {
			error = -ENXIO;
			break;
		}
		stop = min(min(end, extent->end), round_down(address, ADVERB_CHUNK_SIZE) + ADVERB_CHUNK_SIZE);
		bytes = enter(extent, address, stop, BIT(ADVERB_VIEW_READ) | BIT(view), pages);
		if (bytes < 0) {
			error = bytes;
			break;
		}
		address += bytes;
		if (fatal_signal_pending(current)) {
			error = -EINTR;
			break;
		}
		cond_resched();
	}
	kfree(pages);
	if (address > start)
		*done = min(address, (unsigned long)(start + length)) - start;
	adverb_count(region, ADVERB_MAJOR, current->maj_flt - major);
	adverb_count(region, ADVERB_MINOR, current->min_flt - minor);
	if (error)
		adverb_count(region, ADVERB_REFUSED, 1);
	return error;
}

/*
 * What is in place of a granule comes back, without a fault. mmap_lock is held for reading; false if it had
 * to be dropped.
 */
static bool remap_granule(struct adverb_extent *extent, unsigned int view, unsigned int granule)
{
	unsigned long base = (extent->start & ~(ADVERB_GRANULE_SIZE - 1)) + granule * ADVERB_GRANULE_SIZE;
	unsigned long end = min(base + ADVERB_GRANULE_SIZE, extent->end), sequence;
	unsigned long address = max(base, extent->start);
	unsigned int flags = FOLL_NOFAULT | (view == ADVERB_VIEW_WRITE ? FOLL_WRITE : 0);
	struct page *pages[ADVERB_GRANULE_PAGES];
	u64 *chunk = READ_ONCE(extent->chunks[extent_chunk(extent, address)]);
	unsigned int shown = 0;
	int locked = 1;
	long count;

	mmap_assert_locked(extent->region->mm);
	if (!chunk)
		return true;
	while (address < end) {
		/* Somebody has faulted it in meanwhile. */
		if (READ_ONCE(chunk[chunk_slot(address)]) & BIT(view)) {
			address += PAGE_SIZE;
			continue;
		}
		sequence = mmu_interval_read_begin(&extent->notifier);
		count = get_user_pages_remote(extent->region->mm, address, (end - address) >> PAGE_SHIFT,
					      flags, pages, &locked);
		if (count > 0) {
			write_lock(&extent->lock);
			/* Gone again: the invalidation has put it on the list once more. */
			if (!extent->dead && !mmu_interval_read_retry(&extent->notifier, sequence))
				shown += show_pages(extent, chunk, address, pages, count, BIT(view));
			write_unlock(&extent->lock);
			put_pages(pages, count);
			address += count * PAGE_SIZE;
		} else {
			address += PAGE_SIZE;
		}
		if (!locked)
			break;
	}
	adverb_count(extent->region, ADVERB_ENTER, shown);
	adverb_count(extent->region, ADVERB_REMAPS, shown);
	return locked;
}

/**
 * adverb_remap_work - bring back what has left but is still there, without a fault
 * @work: the region's remap_work
 *
 * Migration, NUMA balancing, collapse into huge pages and fork invalidate pages that are in use. Without
 * this each would cost its next reader an unloaded redo.
 */
void adverb_remap_work(struct work_struct *work)
{
	struct adverb_region *region = container_of(to_delayed_work(work), struct adverb_region, remap_work);
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
		goto put;
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
put:
	/* Not the last user of an address space here: tearing it down can take long. */
	mmput_async(region->mm);
	if (!budget && !READ_ONCE(region->dead))
		adverb_remap_soon(region);
}

/**
 * adverb_remap_soon - have the worker look at a region
 * @region: the granules are noted in the recent bitmaps of its extents
 *
 * Any context, any locks.
 */
void adverb_remap_soon(struct adverb_region *region)
{
	queue_delayed_work(remap_queue, &region->remap_work, REMAP_DELAY);
}

/**
 * adverb_enter_init - make the worker's queue
 *
 * Return: 0 or -ENOMEM.
 */
int __init adverb_enter_init(void)
{
	remap_queue = alloc_workqueue("adverb_remap", WQ_UNBOUND, REMAP_WORKERS);
	return remap_queue ? 0 : -ENOMEM;
}

/**
 * adverb_enter_exit - wait for the worker and take its queue away
 */
void adverb_enter_exit(void)
{
	destroy_workqueue(remap_queue);
}
