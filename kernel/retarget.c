// SPDX-License-Identifier: GPL-2.0
/*
 * Changing where an IOVA leads, in place. The IOMMU API cannot: it wants an unmap first, and in the gap a
 * device's access is aborted, which costs it its queue pair. So the leaf entry is exchanged directly.
 *
 * The formats known: Intel second and first stage, and AMD's, all trees of 512 entries of 8 bytes with the
 * address in bits 51:12 of an entry. What else is in an entry is left as its driver made it (attributes;
 * AMD's encryption bit, which iommu_iova_to_phys hides), so no entry is ever built from zero.
 *
 * Kernels do not tell where a domain's table is. It is looked for in the memory around the domain, and
 * nothing found is believed: every leaf table is proven at attach by changing an entry that names a page
 * (the probe) which only this mapping names, and which no device uses yet, and asking the driver through its
 * own API whether it sees the change. Without proof the device is refused.
 */
#include <linux/cc_platform.h>
#include <linux/iommu.h>
#include <linux/lockdep.h>
#include <linux/uaccess.h>
#include <asm/cacheflush.h>

#include "adverb.h"
#include "trace.h"

#define ENTRY_ADDRESS GENMASK_ULL(51, 12)
#define ENTRY_PRESENT 3ULL /* readable or writable (Intel); present (AMD, first stage) */
#define ENTRY_LARGE BIT_ULL(7)
#define TABLE_BITS 9
#define MAX_LEVELS 6 /* AMD's grow to it when addresses below 4 GiB are used up; Intel has up to five */
#define SEARCH_BYTES 1024 /* to either side of the domain: within the driver's own structure around it */

/* The leaf table for an IOVA under a candidate root. Reads with care: the candidate may be anything. */
static u64 *find_leaf(u64 *table, int levels, dma_addr_t iova)
{
	u64 entry;
	int level;

	for (level = levels; level > 1; level--) {
		unsigned int shift = PAGE_SHIFT + TABLE_BITS * (level - 1);

		/* The address must fit under the root, or two IOVAs would lead to one entry. */
		if (level == levels && shift + TABLE_BITS < 64 && iova >> (shift + TABLE_BITS))
			return NULL;
		if (get_kernel_nofault(entry, &table[(iova >> shift) % PTRS_PER_PTE]))
			return NULL;
		if (!(entry & ENTRY_PRESENT) || (level <= 3 && (entry & ENTRY_LARGE)) ||
		    !(entry & ENTRY_ADDRESS) || !pfn_valid((entry & ENTRY_ADDRESS) >> PAGE_SHIFT))
			return NULL;
		table = phys_to_virt(entry & ENTRY_ADDRESS);
	}
	return table;
}

/* Whether the table's entry for this address names the page, and the driver says the same. */
static bool entry_names(const struct adverb_mapping *mapping, u64 *leaf, dma_addr_t iova, phys_addr_t page)
{
	u64 entry;

	if (get_kernel_nofault(entry, &leaf[(iova >> PAGE_SHIFT) % ADVERB_CHUNK_PAGES]))
		return false;
	return (entry & ENTRY_PRESENT) && (entry & ENTRY_ADDRESS) == page &&
	       iommu_iova_to_phys(mapping->domain, iova) == page;
}

static void exchange_target(const struct adverb_mapping *mapping, u64 *entry, phys_addr_t target)
{
	u64 before, after;

	/* The IOMMU may set accessed and dirty bits at the same time. */
	do {
		before = READ_ONCE(*entry);
		after = (before & ~ENTRY_ADDRESS) | target;
	} while (cmpxchg64(entry, before, after) != before);
	if (!mapping->walks_snoop)
		clflush_cache_range(entry, sizeof(*entry));
}

/*
 * Points the first entry of a leaf table from the probe to the parking page, and asks the driver whether it
 * is there now. Nothing is written but where the probe was found, which only this mapping names: a table of
 * another domain, of devices that work, can have the same shape and even the same parking page.
 */
static bool prove_leaf(const struct adverb_mapping *mapping, u64 *leaf, dma_addr_t iova)
{
	u64 *entry = &leaf[(iova >> PAGE_SHIFT) % ADVERB_CHUNK_PAGES];

	if (!entry_names(mapping, leaf, iova, mapping->probe) ||
	    !entry_names(mapping, leaf, iova + PAGE_SIZE, mapping->parking))
		return false;
	exchange_target(mapping, entry, mapping->parking);
	if (entry_names(mapping, leaf, iova, mapping->parking) &&
	    entry_names(mapping, leaf, iova + PAGE_SIZE, mapping->parking))
		return true;
	exchange_target(mapping, entry, mapping->probe);
	return false;
}

/* All leaf tables of the mapping under one root, each proven. */
static bool prove_root(struct adverb_mapping *mapping, u64 *root, int levels)
{
	unsigned int i;

	for (i = 0; i < mapping->size / ADVERB_CHUNK_SIZE; i++) {
		dma_addr_t iova = mapping->iova + i * ADVERB_CHUNK_SIZE;
		u64 *leaf = find_leaf(root, levels, iova);

		if (!leaf || !virt_addr_valid(leaf) || !prove_leaf(mapping, leaf, iova))
			return false;
		mapping->leaf[i] = leaf;
		cond_resched();
	}
	return true;
}

/* Cheap test of a candidate before anything is written below it: first, middle and last probe are there. */
static bool root_is_plausible(const struct adverb_mapping *mapping, u64 *root, int levels)
{
	size_t chunks = mapping->size / ADVERB_CHUNK_SIZE, samples[] = { 0, chunks / 2, chunks - 1 };
	int i;

	for (i = 0; i < ARRAY_SIZE(samples); i++) {
		dma_addr_t iova = mapping->iova + samples[i] * ADVERB_CHUNK_SIZE;
		u64 *leaf = find_leaf(root, levels, iova);

		if (!leaf || !entry_names(mapping, leaf, iova, mapping->probe))
			return false;
	}
	return true;
}

static bool find_tables(struct adverb_mapping *mapping)
{
	char *around = (char *)mapping->domain;
	unsigned long candidate;
	long offset;
	int levels;

	for (offset = -SEARCH_BYTES; offset < SEARCH_BYTES; offset += sizeof(long)) {
		if (get_kernel_nofault(candidate, (unsigned long *)(around + offset)))
			continue;
		candidate &= ~7UL; /* AMD keeps the depth there */
		if (!candidate || candidate % PAGE_SIZE || !virt_addr_valid((void *)candidate))
			continue;
		cond_resched();
		for (levels = 2; levels <= MAX_LEVELS; levels++)
			if (root_is_plausible(mapping, (u64 *)candidate, levels) &&
			    prove_root(mapping, (u64 *)candidate, levels))
				return true;
	}
	return false;
}

/*
 * Not every IOMMU looks into the CPU's caches when it walks, and which of Intel's do only their driver knows. AMD's do:
 * its driver flushes nothing either.
 */
static bool walks_snoop(struct device *dev)
{
	const struct dev_iommu *iommu = dev->iommu;

	return iommu && iommu->iommu_dev && iommu->iommu_dev->dev &&
	       !strncmp(dev_name(iommu->iommu_dev->dev), "ivhd", 4);
}

/**
 * adverb_retarget_prepare - find and prove the leaf tables of a fresh mapping
 * @mapping: its first entry of each 2 MiB names the probe, and no device uses it yet; its extent's
 *	attach_lock is held
 * @dev: of its domain
 *
 * Afterwards all entries name the parking page, and the IOMMU knows. May sleep.
 *
 * Return: NULL, or why its entries cannot be changed.
 */
const char *adverb_retarget_prepare(struct adverb_mapping *mapping, struct device *dev)
{
	bool found;

	lockdep_assert_held(&mapping->extent->attach_lock);
	if (cc_platform_has(CC_ATTR_MEM_ENCRYPT))
		return "memory is encrypted; entries cannot be checked";
	mapping->walks_snoop = walks_snoop(dev);
	found = find_tables(mapping);
	/* The IOMMU may have looked at any entry at any time; the probe will be freed. */
	iommu_flush_iotlb_all(mapping->domain);
	return found ? NULL : "its IOMMU's tables were not found or not proven to be changeable in place";
}

/**
 * adverb_retarget - point the entry of a page elsewhere
 * @mapping: prepared; its extent is locked for writing
 * @address: of the page, in the extent
 * @target: the page it names from now on
 *
 * The device may still use the old one until adverb_retarget_sync(). The exchange is a full barrier.
 */
void adverb_retarget(struct adverb_mapping *mapping, unsigned long address, phys_addr_t target)
{
	unsigned long offset = address - round_down(mapping->extent->start, ADVERB_CHUNK_SIZE);
	dma_addr_t iova = mapping->iova + offset;

	lockdep_assert_held_write(&mapping->extent->lock);
	exchange_target(mapping, &mapping->leaf[offset >> ADVERB_CHUNK_SHIFT][chunk_slot(address)], target);
	trace_adverb_retarget(mapping, address, iova, target == mapping->parking);
	iommu_iotlb_gather_add_range(&mapping->gather, iova, PAGE_SIZE);
	adverb_gather_leaf(&mapping->gather);
	mapping->needs_sync = true;
	mapping->extent->retargeted++; /* counted with the sync: atomics for each page would cost as much as the exchange */
}

/**
 * adverb_retarget_sync - make the IOMMUs forget what entries named before
 * @extent: locked for writing
 *
 * Once per batch and domain, and counted. When it returns, no device uses an entry that was changed before:
 * the IOMMU has also drained what was in flight.
 */
void adverb_retarget_sync(struct adverb_extent *extent)
{
	u64 begun = trace_adverb_sync_enabled() ? ktime_get_ns() : 0;
	struct adverb_mapping *mapping;
	unsigned int syncs = 0;

	lockdep_assert_held_write(&extent->lock);
	list_for_each_entry(mapping, &extent->mappings, node) {
		if (!mapping->needs_sync)
			continue;
		iommu_iotlb_sync(mapping->domain, &mapping->gather);
		iommu_iotlb_gather_init(&mapping->gather);
		mapping->needs_sync = false;
		syncs++;
	}
	if (begun && syncs)
		trace_adverb_sync(extent, extent->retargeted, syncs, ktime_get_ns() - begun);
	adverb_count(extent->region, ADVERB_SYNCS, syncs);
	adverb_count(extent->region, ADVERB_RETARGETS, extent->retargeted);
	extent->retargeted = 0;
}
