// SPDX-License-Identifier: GPL-2.0
/*
 * Enter: how pages come that somebody asks for.
 *
 * Remember the notifier's sequence, get the pages the ordinary way (GUP, which faults, knows secret and device memory,
 * checks rights and counts faults), then under the lock see whether anything of the extent was invalidated since. If
 * not, the page tables still say what GUP said, and the pages may be shown to devices: IOMMU entries, sync, and last the
 * residency bits. The references are dropped at once; what keeps the pages is that they cannot go without Leave.
 */
#include <linux/lockdep.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/swap.h>

#include "adverb.h"

#define ENTER_TRIES 16

struct entry {
	unsigned int view; /* the read view alone, or with the write view both */
	bool nowait;
	struct page **pages; /* as many as there are in a chunk, or in the range */
};

static void put_pages(struct page **pages, long count)
{
	while (count-- > 0)
		put_page(pages[count]);
}

/*
 * Pages from `start` on that are in all the asked views already; with `absent_too` all of them, those that are not being
 * passed over. They are marked accessed, as a fault would: to reclaim, memory that only devices use looks idle, and who
 * serves them says by this what is in use. The lock keeps the folios there.
 */
static long touch_resident(struct adverb_extent *extent, u64 *chunk, unsigned long start, unsigned long end,
			   unsigned int views, bool absent_too)
{
	struct folio *folio, *marked = NULL;
	unsigned long address;
	u64 slot;

	read_lock(&extent->lock);
	for (address = start; address < end; address += PAGE_SIZE) {
		slot = chunk[chunk_slot(address)];
		if ((slot & views) != views) {
			if (absent_too)
				continue;
			break;
		}
		folio = page_folio(pfn_to_page(slot >> PAGE_SHIFT));
		if (folio != marked && !folio_test_hugetlb(folio))
			folio_mark_accessed(folio);
		marked = folio;
	}
	read_unlock(&extent->lock);
	return (address - start) >> PAGE_SHIFT;
}

/* As get_user_pages(), where the caller must not wait for storage or for mmap_lock. */
static long get_pages_nowait(unsigned long start, long count, unsigned int flags, struct page **pages)
{
	long got = get_user_pages_fast_only(start, count, flags, pages); /* what is mapped, with no lock at all */

	if (got > 0)
		return got;
	if (!mmap_read_trylock(current->mm))
		return -EAGAIN;
	got = get_user_pages(start, count, flags | FOLL_NOWAIT, pages);
	mmap_read_unlock(current->mm);
	return got ? got : -EAGAIN;
}

static long get_pages(const struct entry *entry, unsigned long start, unsigned long end, unsigned int views)
{
	unsigned int flags = views & BIT(ADVERB_VIEW_WRITE) ? FOLL_WRITE : 0;
	long count = (end - start) >> PAGE_SHIFT;

	if (entry->nowait)
		return get_pages_nowait(start, count, flags, entry->pages);
	count = get_user_pages_fast(start, count, flags, entry->pages);
	return count ? count : -EFAULT;
}

/*
 * Makes pages of one chunk present and shows them to the devices of the views. With the write view they are
 * made writable. Returns the bytes that are in, from `start`, or an error if not even the first page came.
 */
static long enter_chunk(struct adverb_extent *extent, unsigned long start, unsigned long end, void *data)
{
	const struct entry *entry = data;
	unsigned int views = BIT(ADVERB_VIEW_READ) | BIT(entry->view);
	unsigned long sequence;
	unsigned int shown;
	int attempt, view;
	u64 *chunk;
	long count;

	if (!READ_ONCE(extent->views[entry->view].built))
		return -ENXIO;
	chunk = adverb_chunk(extent, start);
	if (IS_ERR(chunk))
		return PTR_ERR(chunk);
	for (view = 0; view < ADVERB_VIEWS; view++)
		if (!READ_ONCE(extent->views[view].built))
			views &= ~BIT(view);
	if (!(views & BIT(entry->view)))
		return -ENXIO; /* given back just now; slots in no view name no page */
	count = touch_resident(extent, chunk, start, end, views, false);
	if (count)
		return count << PAGE_SHIFT;
	for (attempt = 0; attempt < ENTER_TRIES; attempt++) {
		if (fatal_signal_pending(current))
			return -EINTR;
		sequence = mmu_interval_read_begin(&extent->notifier);
		count = get_pages(entry, start, end, views);
		if (count < 0)
			return count;
		write_lock(&extent->lock);
		if (extent->dead) {
			write_unlock(&extent->lock);
			put_pages(entry->pages, count);
			return -ESHUTDOWN;
		}
		if (!mmu_interval_read_retry(&extent->notifier, sequence)) {
			shown = adverb_show_pages(extent, chunk, start, entry->pages, count, views);
			write_unlock(&extent->lock);
			put_pages(entry->pages, count);
			adverb_count(extent->region, ADVERB_ENTER, shown);
			return count << PAGE_SHIFT;
		}
		write_unlock(&extent->lock);
		put_pages(entry->pages, count);
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
 * @nowait: do not wait for storage or for mmap_lock
 * @done: bytes that are in, from @start; also with an error
 *
 * Sleeps for as long as page faults may. Stops at the first page that cannot be had, and counts that as
 * refused.
 *
 * Return: 0; -EFAULT: nothing is mapped there, or not with these rights; -EAGAIN: the page leaves faster
 * than it can be brought in, or would have to be waited for; -ENXIO: no such view was built there; -ESHUTDOWN: the
 * region was killed; -EINTR; -ENOMEM; or what adverb_charge() returns.
 */
int adverb_fault_in(struct adverb_region *region, u64 start, u64 length, unsigned int view, bool nowait, u64 *done)
{
	unsigned long major = current->maj_flt, minor = current->min_flt;
	unsigned long room = min((offset_in_page(start) + length + PAGE_SIZE - 1) >> PAGE_SHIFT, ADVERB_CHUNK_PAGES);
	struct page *few[ADVERB_GRANULE_PAGES];
	struct entry entry = { .view = view, .nowait = nowait, .pages = few };
	int error;

	if (WARN_ON_ONCE(region->mm != current->mm))
		return -EPERM;
	if (room > ARRAY_SIZE(few))
		entry.pages = kmalloc_array(room, sizeof(*entry.pages), GFP_KERNEL);
	if (!entry.pages)
		return -ENOMEM;
	error = adverb_each_chunk(region, start, length, enter_chunk, &entry, done);
	if (entry.pages != few)
		kfree(entry.pages);
	adverb_count(region, ADVERB_MAJOR, current->maj_flt - major);
	adverb_count(region, ADVERB_MINOR, current->min_flt - minor);
	if (error)
		adverb_count(region, ADVERB_REFUSED, 1);
	return error;
}

static long mark_chunk(struct adverb_extent *extent, unsigned long start, unsigned long end, void *data)
{
	unsigned int view = *(const unsigned int *)data;
	u64 *chunk = READ_ONCE(extent->chunks[extent_chunk(extent, start)]);

	if (!READ_ONCE(extent->views[view].built))
		return -ENXIO;
	if (chunk) /* or no page of it has ever come */
		touch_resident(extent, chunk, start, end, BIT(view), true);
	return end - start;
}

/**
 * adverb_mark - tell reclaim that what a view shows of a range is in use
 * @region: the caller has a reference
 * @start: first byte, as is @length within the region
 * @length: bytes
 * @view: which
 * @done: bytes that were looked at, from @start; also with an error
 *
 * May sleep; takes no mmap_lock.
 *
 * Return: 0; -ENXIO: no such view was built there; -EINTR.
 */
int adverb_mark(struct adverb_region *region, u64 start, u64 length, unsigned int view, u64 *done)
{
	return adverb_each_chunk(region, start, length, mark_chunk, &view, done);
}
