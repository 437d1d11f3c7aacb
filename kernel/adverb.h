/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the files of the module share. Objects, from the outside in:
 *
 *   file     an open /dev/adverb, which numbers its regions         main.c, ioctl.c
 *   region   one range of one address space                         region.c
 *   extent   what lies of it in one aligned GiB, or less; has the   extent.c, enter.c,
 *            notifier                                               present.c, show.c
 *   view     a read or a write image of an extent: state table,     words.c, table.c,
 *            dma-bufs                                               exporter.c
 *   mapping  a view in one IOMMU domain: an IOVA range whose        iova.c, retarget.c
 *            entries name the resident pages, or the parking page
 *
 * Locks, outermost first:
 *   adverb_region.lock > adverb_extent.attach_lock
 *     > mmap_lock (faults; mmap and munmap of a table arrive with it)
 *       > adverb_file.lock, adverb_regions_lock, users_lock of account.c, dma_resv > fs_reclaim > mmu notifier
 *         > adverb_extent.lock > page cache and IOMMU driver spin locks
 * A region is freed by whoever lets go last: a file, a dma-buf of any process, or the munmap of a table, under
 * the mmap_lock it arrives with. An owner can hold its mmap_lock for as long as it likes (it has it while a fault
 * waits for a file system of its own), so nothing in freeing, attach or detach takes one.
 * invalidate() runs below everything that reclaim may hold, so it takes nothing but the extent's lock,
 * and nothing that allocates or sleeps is done under that lock. It is never taken in softirq, so it need
 * not disable interrupts. dma_resv is held around map_dma_buf by importers, which is why all work that
 * could sleep is done in attach, where it is not.
 */
#ifndef ADVERB_H
#define ADVERB_H

#include <linux/dma-buf.h>
#include <linux/dma-mapping.h>
#include <linux/iommu.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/refcount.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include "adverb_uapi.h"
#include "compat.h"

#define pr_adverb(level, fmt, ...) pr_##level("adverb: " fmt, ##__VA_ARGS__)

#define ADVERB_VIEWS 2
#define ADVERB_CHUNK_SHIFT 21 /* what one page of slots, and one IOMMU leaf table, covers */
#define ADVERB_CHUNK_SIZE (1UL << ADVERB_CHUNK_SHIFT)
#define ADVERB_CHUNK_PAGES (ADVERB_CHUNK_SIZE >> PAGE_SHIFT)
/* Offset of a table in the file: its number << this. 128 KiB is the longest; a 32-bit mmap has 44 bits. */
#define ADVERB_TABLE_SHIFT 18
#define ADVERB_TABLE_NUMBERS XA_LIMIT(1, (1U << (44 - ADVERB_TABLE_SHIFT)) - 1)
#define ADVERB_GRANULE_SIZE ((unsigned long)ADVERB_GRANULE_PAGES << PAGE_SHIFT)

/*
 * What is counted per region and for the module. A row makes ADVERB_<NAME>, for adverb_count(); the netlink
 * attribute ADVERB_ATTR_<NAME> and the field of struct adverb_query show it.
 */
#define ADVERB_COUNTERS(row)			\
	row(ENTER, enter)			\
	row(LEAVE, leave)			\
	row(MINOR, minor)			\
	row(MAJOR, major)			\
	row(RETARGETS, retargets)		\
	row(SYNCS, syncs)			\
	row(REMAPS, remaps)			\
	row(REFUSED, refused)

enum adverb_counter {
#define ADVERB_COUNTER(name, field) ADVERB_##name,
	ADVERB_COUNTERS(ADVERB_COUNTER)
#undef ADVERB_COUNTER
	ADVERB_COUNTER_COUNT
};

struct adverb_user; /* account.c */
struct adverb_monitor; /* monitor.h */

/* An open /dev/adverb. */
struct adverb_file {
	struct mutex lock; /* of the numbering, not of the regions */
	struct xarray regions; /* number -> region */
	struct xarray tables; /* number -> extent of the view that has it, for mmap */
	struct mm_struct *mm; /* mmgrab: of who opened it, whose changes it may tell of */
	struct adverb_monitor *monitor; /* or NULL; set once */
};

struct adverb_region {
	struct rcu_head rcu;
	struct kref ref; /* its file, its dma-bufs, its mapped tables, and ioctls while they use it */
	struct adverb_file *file;
	struct mm_struct *mm; /* mmgrab: it may be dead */
	struct adverb_user *user;
	unsigned long memlock; /* adverb_memlock() of its creator then */
	struct list_head node; /* of all regions */
	unsigned long start;   /* as asked for */
	unsigned long length;
	unsigned long first; /* page aligned */
	unsigned long last;  /* exclusive */
	u32 number;
	struct pid *pid; /* of its creator; each who asks has it told as in its own namespace */
	bool dead; /* killed: nothing is built, attached or brought back any more; each extent has its own */
	unsigned int extent_shift;
	bool read_only; /* has no write views, and no parking page for them */
	struct page *parking[ADVERB_VIEWS];
	unsigned int parking_charged; /* pages */
	struct mutex lock; /* building extents; dead */
	struct xarray extents; /* address >> extent_shift -> extent; they come and go under lock */
	unsigned int extent_count; /* changed under lock */
	atomic_t attachments;
	const char *refusal; /* why the last device was refused; a constant, or NULL */
	atomic64_t resident[ADVERB_VIEWS];
	atomic64_t charged; /* table pages in use */
	atomic64_t counts[ADVERB_COUNTER_COUNT];
	struct delayed_work remap_work;
};

struct adverb_view {
	bool built;	/* changed under the extent's lock */
	u32 table;	/* number in file->tables */
	u64 *words;	/* adverb_words_alloc() */
	size_t words_size;
	unsigned long resident; /* pages; under the extent's lock */
	atomic_t users; /* dma-bufs and mappings of the table, which have a reference to the region, too */
	struct adverb_extent *extent;
};

/*
 * A slot says where a page is: page frame number << PAGE_SHIFT, and in the low bits the views it is in.
 * Both views of an extent see the same page, or none.
 */
#define ADVERB_SLOT_VIEWS 3ULL

struct adverb_extent {
	struct adverb_region *region;
	refcount_t ref; /* the region's, which is the last, and who is bringing pages in */
	struct rcu_head rcu;
	unsigned long charged; /* pages, for what follows but chunks and tables */
	unsigned long start; /* page aligned, and within one aligned 2^extent_shift bytes */
	unsigned long end;
	struct mmu_interval_notifier notifier;
	struct mutex attach_lock; /* changes of mappings, which also take lock */
	rwlock_t lock;		  /* all below; readers change nothing of it */
	bool dead;
	u64 **chunks;		/* slots, a page for each 2 MiB, from the one that holds start */
	unsigned long *summary; /* granules with a slot in use */
	unsigned long *recent[ADVERB_VIEWS]; /* granules a page has left lately, for the worker */
	struct list_head mappings;
	unsigned int retargeted; /* entries, since the last sync */
	struct adverb_view views[ADVERB_VIEWS];
};

struct adverb_mapping {
	struct list_head node;
	struct adverb_extent *extent;
	unsigned int view;
	unsigned int users; /* attachments, under attach_lock */
	struct iommu_domain *domain;
	phys_addr_t parking;
	phys_addr_t probe; /* while it is made: what the first entry of each 2 MiB names, and no other anywhere */
#if ADVERB_DMA_IOVA
	struct dma_iova_state iova_state;
#endif
	dma_addr_t iova; /* of the 2 MiB that holds the extent's start; same remainder of 2 MiB as the VA */
	size_t size;	 /* multiple of 2 MiB */
	unsigned long charged;
	u64 **leaf;	 /* IOMMU leaf table of each 2 MiB */
	bool walks_snoop; /* the IOMMU looks into the CPU's caches for its tables */
	struct iommu_iotlb_gather gather; /* of the batch going on, under extent->lock */
	bool needs_sync; /* entries were changed since the last; under extent->lock */
	bool closing; /* nothing is shown to it any more; under extent->lock */
};

static inline unsigned int extent_chunk(const struct adverb_extent *extent, unsigned long address)
{
	return (address >> ADVERB_CHUNK_SHIFT) - (extent->start >> ADVERB_CHUNK_SHIFT);
}

static inline unsigned int extent_granule(const struct adverb_extent *extent, unsigned long address)
{
	return address / ADVERB_GRANULE_SIZE - extent->start / ADVERB_GRANULE_SIZE;
}

static inline unsigned int chunk_slot(unsigned long address)
{
	return (address >> PAGE_SHIFT) % ADVERB_CHUNK_PAGES;
}

static inline unsigned int extent_chunks(const struct adverb_extent *extent)
{
	return extent_chunk(extent, extent->end - 1) + 1;
}

static inline unsigned int extent_granules(const struct adverb_extent *extent)
{
	return extent_granule(extent, extent->end - 1) + 1;
}

/*
 * What each file offers, in the order of calls: a file calls what stands above it, and never below. Each
 * function is described where it is defined.
 *
 * What makes or finds an object returns it, or ERR_PTR(). What can be refused to a device returns the reason
 * in words, or NULL. All else that can fail returns 0, or a number where its description says so; or -errno.
 */

/* count.c */
extern atomic64_t adverb_totals[ADVERB_COUNTER_COUNT];
void adverb_count(struct adverb_region *region, enum adverb_counter counter, u64 n);

/* account.c */
extern u32 adverb_max_regions;
extern u64 adverb_max_pages;
struct adverb_user *adverb_user_get(void);
void adverb_user_put(struct adverb_user *user);
kuid_t adverb_user_uid(const struct adverb_user *user);
unsigned long adverb_memlock(void);
int adverb_charge(struct adverb_region *region, unsigned long pages);
void adverb_uncharge(struct adverb_region *region, unsigned long pages);

/* words.c */
u64 *adverb_words_alloc(size_t size);
void adverb_words_leave(struct adverb_extent *extent, unsigned int view, unsigned int granule, u16 mask);
void adverb_words_enter(struct adverb_extent *extent, unsigned int view, unsigned int granule, u16 mask);

/* retarget.c */
const char *adverb_retarget_prepare(struct adverb_mapping *mapping, struct device *dev);
void adverb_retarget(struct adverb_mapping *mapping, unsigned long address, phys_addr_t target);
void adverb_retarget_sync(struct adverb_extent *extent);

/* show.c */
typedef long adverb_visit_chunk(struct adverb_extent *extent, unsigned long start, unsigned long end, void *data);
struct adverb_extent *adverb_extent_next(struct adverb_region *region, unsigned long *index,
					 unsigned long last);
void adverb_extent_put(struct adverb_extent *extent);
u64 *adverb_chunk(struct adverb_extent *extent, unsigned long address);
unsigned int adverb_show_pages(struct adverb_extent *extent, u64 *chunk, unsigned long start,
			       struct page **pages, long count, unsigned int views);
int adverb_each_chunk(struct adverb_region *region, u64 start, u64 length, adverb_visit_chunk *visit, void *data,
		      u64 *done);

/* present.c */
int adverb_present_init(void);
void adverb_present_exit(void);
int adverb_show_present(struct adverb_region *region, u64 start, u64 length, unsigned int view, u64 *done);
void adverb_remap_work(struct work_struct *work);
void adverb_remap_soon(struct adverb_region *region);

/* enter.c */
int adverb_fault_in(struct adverb_region *region, u64 start, u64 length, unsigned int view, bool nowait, u64 *done);
int adverb_mark(struct adverb_region *region, u64 start, u64 length, unsigned int view, u64 *done);

/* extent.c */
struct adverb_extent *adverb_extent_create(struct adverb_region *region, unsigned long start,
					   unsigned long end);
int adverb_extent_add_view(struct adverb_extent *extent, unsigned int view);
void adverb_extent_drop_view(struct adverb_extent *extent, unsigned int view);
void adverb_extent_kill(struct adverb_extent *extent);
void adverb_extent_destroy(struct adverb_extent *extent);
void adverb_extent_query(struct adverb_extent *extent, struct adverb_query_extent *query);
int adverb_extent_add_mapping(struct adverb_extent *extent, struct adverb_mapping *mapping);
void adverb_extent_remove_mapping(struct adverb_extent *extent, struct adverb_mapping *mapping);

/* region.c */
extern struct list_head adverb_regions;
extern struct mutex adverb_regions_lock;
int adverb_region_create(struct adverb_file *file, u64 start, u64 length, unsigned int extent_shift,
			 bool read_only);
struct adverb_region *adverb_region_get_own(struct adverb_file *file, u32 number);
void adverb_region_put(struct adverb_region *region);
int adverb_region_destroy(struct adverb_region *region);
void adverb_regions_destroy(struct adverb_file *file);
struct adverb_extent *adverb_region_build(struct adverb_region *region, unsigned long address,
					  unsigned int view, bool *fresh);
int adverb_region_give_back(struct adverb_region *region, unsigned long address, unsigned int view);
struct adverb_extent *adverb_region_view(struct adverb_region *region, unsigned long address, unsigned int view);

/* table.c */
int adverb_table_mmap(struct adverb_file *file, struct vm_area_struct *vma);

/* netlink.c */
int adverb_netlink_init(void);
void adverb_netlink_exit(void);
void adverb_event(struct adverb_region *region, const char *reason);

/* soft.c; adverb_soft_device() is in adverb_soft.h */
int adverb_soft_init(void);
void adverb_soft_exit(void);
bool adverb_soft_is(struct device *dev);
int adverb_soft_move(struct adverb_extent *extent, unsigned int view, u64 offset, void *buffer,
		     size_t length, bool write);

/* iova.c */
struct adverb_mapping *adverb_mapping_get(struct adverb_extent *extent, unsigned int view,
					  struct device *dev);
void adverb_mapping_put(struct adverb_mapping *mapping, struct device *dev);

/* exporter.c; adverb_soft_copy() is in adverb_soft.h */
int adverb_export(struct adverb_extent *extent, unsigned int view);

/* check.c */
int adverb_device_check(struct adverb_extent *extent, unsigned int view, const char *name);

/* watch.c */
int adverb_monitor_begin(struct file *filp, unsigned int wait_ms);
void adverb_monitor_end(struct adverb_file *file);
int adverb_monitor_flush(struct file *filp, fl_owner_t id);
int adverb_watch(struct adverb_file *file, u64 start, u64 length);
int adverb_unwatch(struct adverb_file *file, u32 number);

/* change.c */
int adverb_heard(struct adverb_file *file, u64 number);
ssize_t adverb_changes_read(struct file *filp, char __user *to, size_t size, loff_t *position);
__poll_t adverb_changes_poll(struct file *filp, struct poll_table_struct *table);

/* ioctl.c */
long adverb_ioctl(struct file *filp, unsigned int command, unsigned long argument);

#endif
