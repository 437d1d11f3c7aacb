/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the files of the module share. Objects, from the outside in:
 *
 *   file     an open /dev/adverb, which numbers its regions         main.c, ioctl.c
 *   region   one range of one address space                         region.c
 *   extent   what lies of it in one aligned GiB; has the notifier   extent.c, enter.c
 *   view     a read or a write image of an extent: state table,     words.c, table.c,
 *            dma-bufs                                               exporter.c
 *   mapping  a view in one IOMMU domain: an IOVA range whose        iova.c, retarget.c
 *            entries name the resident pages, or the parking page
 *
 * Locks, outermost first:
 *   adverb_region.lock > adverb_extent.attach_lock (> scatterlist_lock of iova.c)
 *     > mmap_lock (faults, and charging RLIMIT_MEMLOCK; mmap and munmap of a table arrive with it)
 *       > adverb_file.lock, dma_resv > fs_reclaim > mmu notifier
 *         > adverb_extent.lock > page cache and IOMMU driver spin locks
 * mapped_lock of table.c is taken under mmap_lock and adverb_file.lock; nothing but queueing is done under it.
 * invalidate() runs below everything that reclaim may hold, so it takes nothing but the extent's lock,
 * and nothing that allocates or sleeps is done under that lock. It is never taken in softirq, so it need
 * not disable interrupts. dma_resv is held around map_dma_buf by importers, which is why all work that
 * could sleep or take mmap_lock is done in attach, where it is not.
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

/* An open /dev/adverb. */
struct adverb_file {
	struct mutex lock; /* of the numbering, not of the regions */
	struct xarray regions; /* number -> region */
	struct xarray tables; /* number -> extent of the view that has it, for mmap */
};

struct adverb_region {
	struct kref ref; /* its file, its dma-bufs, and ioctls while they use it */
	struct adverb_file *file;
	struct mm_struct *mm; /* mmgrab: it may be dead */
	struct adverb_user *user;
	struct list_head node; /* of all regions; empty once killed */
	unsigned long start;   /* as asked for */
	unsigned long length;
	unsigned long first; /* page aligned */
	unsigned long last;  /* exclusive */
	u32 number;
	pid_t pid;
	bool dead; /* killed: nothing is built, attached or brought back any more; each extent has its own */
	struct page *parking[ADVERB_VIEWS];
	struct mutex lock; /* building extents; dead */
	struct xarray extents; /* index -> extent; they stay until the region goes */
	atomic_t attachments;
	atomic64_t resident[ADVERB_VIEWS];
	atomic64_t charged; /* table pages */
	atomic64_t counts[ADVERB_COUNTER_COUNT];
	struct delayed_work remap_work;
	unsigned int tables_mapped; /* into address spaces (table.c); together they hold one reference */
	struct work_struct put_work; /* of adverb_region_put_later() */
};

struct adverb_view {
	bool built;	/* set under the extent's lock, for good */
	u32 table;	/* number in file->tables */
	u64 *words;	/* adverb_words_alloc() */
	size_t words_size;
};

/*
 * A slot says where a page is: page frame number << PAGE_SHIFT, and in the low bits the views it is in.
 * Both views of an extent see the same page, or none.
 */
#define ADVERB_SLOT_VIEWS 3ULL

struct adverb_extent {
	struct adverb_region *region;
	unsigned long start; /* page aligned, in one GiB */
	unsigned long end;
	struct mmu_interval_notifier notifier;
	struct mutex attach_lock; /* changes of mappings, which also take lock */
	rwlock_t lock;		  /* all below; readers change nothing of it */
	bool dead;
	u64 **chunks;		/* slots, a page for each 2 MiB, from the one that holds start */
	unsigned long *summary; /* granules with a slot in use */
	unsigned long *recent[ADVERB_VIEWS]; /* granules a page has left lately, for the worker */
	struct list_head mappings;
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
int adverb_charge(struct adverb_region *region, unsigned long pages);
void adverb_uncharge(struct adverb_region *region, unsigned long pages);

/* words.c */
u64 *adverb_words_alloc(size_t size);
void adverb_words_leave(struct adverb_extent *extent, unsigned int view, unsigned int granule, u16 mask);
void adverb_words_enter(struct adverb_extent *extent, unsigned int view, unsigned int granule, u16 mask);

/* retarget.c */
const char *adverb_retarget_prepare(struct adverb_mapping *mapping);
void adverb_retarget(struct adverb_mapping *mapping, unsigned long address, phys_addr_t target);
void adverb_retarget_sync(struct adverb_extent *extent);

/* enter.c */
int adverb_enter_init(void);
void adverb_enter_exit(void);
int adverb_fault_in(struct adverb_region *region, u64 start, u64 length, unsigned int view, u64 *done);
void adverb_remap_work(struct work_struct *work);
void adverb_remap_soon(struct adverb_region *region);

/* extent.c */
unsigned long adverb_extent_charge(unsigned long start, unsigned long end);
struct adverb_extent *adverb_extent_create(struct adverb_region *region, unsigned long start,
					   unsigned long end);
int adverb_extent_add_view(struct adverb_extent *extent, unsigned int view);
void adverb_extent_kill(struct adverb_extent *extent);
void adverb_extent_destroy(struct adverb_extent *extent);
int adverb_extent_add_mapping(struct adverb_extent *extent, struct adverb_mapping *mapping);
void adverb_extent_remove_mapping(struct adverb_extent *extent, struct adverb_mapping *mapping);

/* region.c */
extern struct list_head adverb_regions;
extern struct mutex adverb_regions_lock;
int adverb_regions_init(void);
void adverb_regions_exit(void);
int adverb_region_create(struct adverb_file *file, u64 start, u64 length);
struct adverb_region *adverb_region_get_own(struct adverb_file *file, u32 number);
void adverb_region_put(struct adverb_region *region);
void adverb_region_put_later(struct adverb_region *region);
void adverb_region_take_back(struct adverb_region *region);
int adverb_region_destroy(struct adverb_region *region);
void adverb_regions_destroy(struct adverb_file *file);
struct adverb_extent *adverb_region_build(struct adverb_region *region, unsigned long address,
					  unsigned int view);
u32 adverb_region_extents(struct adverb_region *region);

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

/* ioctl.c */
long adverb_ioctl(struct file *filp, unsigned int command, unsigned long argument);

/* breakage.h decides whether a step of the protocol is left out, in the build that tests the tests. */
#include "breakage.h"

#endif
