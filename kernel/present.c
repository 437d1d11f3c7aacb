// SPDX-License-Identifier: GPL-2.0
/*
 * What is in memory already comes to devices without a fault: at once if its owner asks for that, and by the worker
 * where pages were invalidated that are still there.
 *
 * hmm_range_fault() says what is in place. GUP would touch the pages, and make them dirty to write to them, so that what
 * a program frees lazily stayed.
 */
#include <linux/bitmap.h>
#include <linux/fs.h>
#include <linux/hmm.h>
#include <linux/lockdep.h>
#include <linux/magic.h>
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "adverb.h"

#define REMAP_BUDGET 256 /* granules each time the worker runs */
#define REMAP_DELAY (HZ / 50)
#define REMAP_WORKERS 4

/* Of our own: what users make us do there must not keep the kernel's queues busy. */
static struct workqueue_struct *remap_queue;

/*
 * Whether pages of an area may be shown as GUP would show them, which fault-in asks and the worker does not: no
 * secret memory, and no shadow stack to write to. Something else may have come to an address since a page left it.
 */
static bool area_admits(const struct vm_area_struct *area, unsigned int view)
{
	if (!area || (area->vm_file && file_inode(area->vm_file)->i_sb->s_magic == SECRETMEM_MAGIC))
		return false;
	return view == ADVERB_VIEW_READ ||
	       ((area->vm_flags & VM_WRITE) && !(area->vm_flags & VM_SHADOW_STACK));
}

/*
 * The page that an answer of hmm_range_fault() names, if the view may show it; NULL if not. A page that was
 * freed lazily is not for the write view: Leave would have to call it dirty, and it would never be freed.
 */
static struct page *page_admitted(unsigned long answer, unsigned int view)
{
	struct folio *folio;
	struct page *page;

	if (!(answer & HMM_PFN_VALID) || (answer & HMM_PFN_ERROR))
		return NULL;
	page = hmm_pfn_to_page(answer);
	if (is_zone_device_page(page))
		return NULL;
	if (view == ADVERB_VIEW_READ)
		return page;
	folio = page_folio(page);
	if (!(answer & HMM_PFN_WRITE) || (folio_test_anon(folio) && !folio_test_swapbacked(folio)))
		return NULL;
	return page;
}

/* Strikes out the answers for pages of areas that do not admit them to the view. */
static void strike_out(struct mm_struct *mm, const struct hmm_range *range, unsigned int view)
{
	struct vm_area_struct *area = NULL;
	unsigned long address;

	mmap_assert_locked(mm);
	for (address = range->start; address < range->end; address += PAGE_SIZE) {
		if (!area || address >= area->vm_end)
			area = vma_lookup(mm, address);
		if (!area_admits(area, view))
			range->hmm_pfns[(address - range->start) >> PAGE_SHIFT] = 0;
	}
}

/* Has the worker look at the granules of a range later. The extent is locked for writing and not dead. */
static void look_again(struct adverb_extent *extent, unsigned int view, unsigned long start, unsigned long end)
{
	unsigned int first = extent_granule(extent, start);

	lockdep_assert_held_write(&extent->lock);
	bitmap_set(extent->recent[view], first, extent_granule(extent, end - 1) - first + 1);
	adverb_remap_soon(extent->region);
}

static bool any_answer(const unsigned long *answers, long count)
{
	while (count-- > 0)
		if (answers[count])
			return true;
	return false;
}

/*
 * What is in place from `start` on, in one chunk, comes into a view: no fault, no reference, and no page is touched
 * or made dirty. What changes just now is left to the worker. Both arrays have room for a page each; mmap_lock is
 * held for reading. Returns how many pages came, or -errno.
 */
static long show_present(struct adverb_extent *extent, unsigned int view, unsigned long start, unsigned long end,
			 unsigned long *answers, struct page **pages)
{
	struct hmm_range range = {
		.notifier = &extent->notifier,
		.start = start,
		.end = end,
		.hmm_pfns = answers,
		.dev_private_owner = remap_queue, /* nobody's: pages within devices are not shown */
	};
	long i, count = (end - start) >> PAGE_SHIFT, shown = 0;
	u64 *chunk;
	int error;

	memset(answers, 0, count * sizeof(*answers)); /* nothing is asked for: it says what there is */
	range.notifier_seq = mmu_interval_read_begin(&extent->notifier);
	error = hmm_range_fault(&range);
	if (!error) {
		strike_out(extent->region->mm, &range, view);
		if (!any_answer(answers, count))
			return 0;
	}
	chunk = adverb_chunk(extent, start);
	if (IS_ERR(chunk))
		return PTR_ERR(chunk);
	write_lock(&extent->lock);
	if (extent->dead)
		goto unlock;
	if (error || mmu_interval_read_retry(&extent->notifier, range.notifier_seq)) {
		/* Another error than this is of the range, and stays. */
		if (!error || error == -EBUSY)
			look_again(extent, view, start, end);
		goto unlock;
	}
	for (i = 0; i < count; i++)
		pages[i] = page_admitted(answers[i], view);
	shown = adverb_show_pages(extent, chunk, start, pages, count, BIT(view));
unlock:
	write_unlock(&extent->lock);
	adverb_count(extent->region, ADVERB_ENTER, shown);
	return shown;
}

static void remap_granule(struct adverb_extent *extent, unsigned int view, unsigned int granule)
{
	unsigned long base = (extent->start & ~(ADVERB_GRANULE_SIZE - 1)) + granule * ADVERB_GRANULE_SIZE;
	unsigned long answers[ADVERB_GRANULE_PAGES];
	struct page *pages[ADVERB_GRANULE_PAGES];
	long shown = show_present(extent, view, max(base, extent->start),
				  min(base + ADVERB_GRANULE_SIZE, extent->end), answers, pages);

	if (shown > 0)
		adverb_count(extent->region, ADVERB_REMAPS, shown);
}

/* Takes the next granule at or after `from` that pages have left, or returns the extent's number of granules. */
static unsigned int take_recent(struct adverb_extent *extent, unsigned int view, unsigned int from)
{
	unsigned int granules = extent_granules(extent), granule;

	write_lock(&extent->lock);
	granule = find_next_bit(extent->recent[view], granules, from);
	if (granule < granules)
		__clear_bit(granule, extent->recent[view]);
	write_unlock(&extent->lock);
	return granule;
}

/*
 * Goes through a view of an extent once. Returns what is left of the budget: nothing if somebody else wants the
 * mmap_lock, which is held for reading.
 */
static unsigned int remap_view(struct adverb_extent *extent, unsigned int view, unsigned int budget)
{
	unsigned int granule = 0;

	for (; budget; budget--) {
		if (mmap_lock_is_contended(extent->region->mm))
			return 0;
		granule = take_recent(extent, view, granule);
		if (granule >= extent_granules(extent))
			break;
		remap_granule(extent, view, granule++);
		cond_resched();
	}
	return budget;
}

/* Whether some granule is to be looked at. */
static bool anything_recent(struct adverb_region *region)
{
	struct adverb_extent *extent;
	unsigned long index;
	bool any = false;
	int view;

	for (index = 0; !any && (extent = adverb_extent_next(region, &index, ULONG_MAX)); index++) {
		read_lock(&extent->lock);
		for (view = 0; view < ADVERB_VIEWS; view++)
			any |= !bitmap_empty(extent->recent[view], extent_granules(extent));
		read_unlock(&extent->lock);
		adverb_extent_put(extent);
	}
	return any;
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
	unsigned int budget = REMAP_BUDGET;
	struct adverb_extent *extent;
	unsigned long index;
	int view;

	if (READ_ONCE(region->dead) || !mmget_not_zero(region->mm))
		return;
	/* Its owner can hold the lock for as long as it likes, and has many regions. */
	if (mmap_read_trylock(region->mm)) {
		for (index = 0; budget && (extent = adverb_extent_next(region, &index, ULONG_MAX)); index++) {
			for (view = 0; view < ADVERB_VIEWS && budget; view++)
				budget = remap_view(extent, view, budget);
			adverb_extent_put(extent);
		}
		mmap_read_unlock(region->mm);
	}
	/* Not the last user of an address space here: tearing it down can take long. */
	mmput_async(region->mm);
	if (!READ_ONCE(region->dead) && anything_recent(region))
		adverb_remap_soon(region);
}

struct present_look {
	unsigned int view;
	unsigned long *answers;
	struct page **pages;
};

/* What of a range in one chunk is in memory, in the read view and, if asked for, the write view. */
static long present_chunk(struct adverb_extent *extent, unsigned long start, unsigned long end, void *data)
{
	const struct present_look *look = data;
	long shown;

	if (!READ_ONCE(extent->views[look->view].built))
		return -ENXIO;
	if (mmap_read_lock_killable(current->mm))
		return -EINTR;
	shown = show_present(extent, look->view, start, end, look->answers, look->pages);
	if (shown >= 0 && look->view != ADVERB_VIEW_READ)
		shown = show_present(extent, ADVERB_VIEW_READ, start, end, look->answers, look->pages);
	mmap_read_unlock(current->mm);
	return shown < 0 ? shown : (long)(end - start);
}

/**
 * adverb_show_present - show devices what of a range is in memory, and bring in nothing
 * @region: of current->mm
 * @start: first byte, as is @length within the region
 * @length: bytes
 * @view: the read view alone, or with the write view both; the latter shows what is writable as it is
 * @done: bytes that were looked at, from @start; also with an error
 *
 * May sleep, and takes mmap_lock. What changes just now the worker looks at later.
 *
 * Return: 0; -ENXIO: no such view was built there; -EINTR; -ENOMEM; or what adverb_charge() returns.
 */
int adverb_show_present(struct adverb_region *region, u64 start, u64 length, unsigned int view, u64 *done)
{
	struct present_look look = { .view = view };
	int error = -ENOMEM;

	if (WARN_ON_ONCE(region->mm != current->mm))
		return -EPERM;
	look.answers = kmalloc_array(ADVERB_CHUNK_PAGES, sizeof(*look.answers), GFP_KERNEL);
	look.pages = kmalloc_array(ADVERB_CHUNK_PAGES, sizeof(*look.pages), GFP_KERNEL);
	if (look.answers && look.pages)
		error = adverb_each_chunk(region, start, length, present_chunk, &look, done);
	kfree(look.pages);
	kfree(look.answers);
	return error;
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
 * adverb_present_init - make the worker's queue
 *
 * Return: 0 or -ENOMEM.
 */
int __init adverb_present_init(void)
{
	remap_queue = alloc_workqueue("adverb_remap", WQ_UNBOUND, REMAP_WORKERS);
	return remap_queue ? 0 : -ENOMEM;
}

/**
 * adverb_present_exit - wait for the worker and take its queue away
 */
void adverb_present_exit(void)
{
	destroy_workqueue(remap_queue);
}
