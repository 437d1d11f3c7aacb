// SPDX-License-Identifier: GPL-2.0
/*
 * Mappings: an IOVA range for a view in one IOMMU domain. It is mapped once, with every entry naming the
 * parking page, by the kernel's own DMA API; afterwards entries only change their target (retarget.c), so
 * that there is no moment at which a device finds nothing. Devices of one domain share the range.
 *
 * Made in attach and undone in detach, where no dma_resv is held: this allocates with GFP_KERNEL and
 * charges RLIMIT_MEMLOCK, which takes mmap_lock.
 */
#include <linux/dma-map-ops.h>
#include <linux/lockdep.h>
#include <linux/pci.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "adverb.h"

static enum dma_data_direction mapping_direction(const struct adverb_mapping *mapping)
{
	/* A read view's entries let nothing be written, whatever the memory region allows. */
	return mapping->view == ADVERB_VIEW_READ ? DMA_TO_DEVICE : DMA_BIDIRECTIONAL;
}

/* Tells who must know why. Returns what the importer gets. */
static struct adverb_mapping *refuse(struct adverb_extent *extent, struct device *dev, const char *reason)
{
	adverb_count(extent->region, ADVERB_REFUSED, 1);
	dev_warn_ratelimited(dev, "adverb: no unpinned memory for this device: %s\n", reason);
	adverb_event(extent->region, reason);
	return ERR_PTR(-EOPNOTSUPP);
}

/* Why a device is refused without a try; NULL if it is not. */
static const char *refusal(struct device *dev, struct iommu_domain *domain)
{
	if (!domain || domain->type == IOMMU_DOMAIN_IDENTITY)
		return "its addresses are not translated; boot with iommu.passthrough=0 (and intel_iommu=on)";
	if (!iommu_is_dma_domain(domain))
		return "its IOMMU domain is managed by another driver (VFIO?)";
	if (dev_is_pci(dev) && to_pci_dev(dev)->ats_enabled)
		return "it caches translations itself (ATS); boot with pci=noats";
	return NULL;
}

/*
 * The range of IOVA: its entries name the parking page, page by page, as a huge entry could not be changed
 * for one page. The first of each 2 MiB names the probe until adverb_retarget_prepare() has changed it.
 * Nothing is flushed from CPU caches: what devices are to see is neither of the two.
 */
static phys_addr_t first_target(const struct adverb_mapping *mapping, size_t offset)
{
	return offset % ADVERB_CHUNK_SIZE ? mapping->parking : mapping->probe;
}

#if ADVERB_DMA_IOVA
static int map_range(struct adverb_mapping *mapping, struct device *dev)
{
	size_t offset;
	int error = 0;

	if (!dma_iova_try_alloc(dev, &mapping->iova_state, mapping->parking, mapping->size))
		return -ENOSPC;
	mapping->iova = mapping->iova_state.addr;
	for (offset = 0; offset < mapping->size; offset += PAGE_SIZE) {
		error = dma_iova_link(dev, &mapping->iova_state, first_target(mapping, offset), offset,
				      PAGE_SIZE, mapping_direction(mapping), DMA_ATTR_SKIP_CPU_SYNC);
		if (error)
			break;
		if (offset % ADVERB_CHUNK_SIZE == 0)
			cond_resched();
	}
	if (!error)
		error = dma_iova_sync(dev, &mapping->iova_state, 0, mapping->size);
	if (error)
		dma_iova_destroy(dev, &mapping->iova_state, offset, mapping_direction(mapping),
				 DMA_ATTR_SKIP_CPU_SYNC);
	return error;
}

static void unmap_range(struct adverb_mapping *mapping, struct device *dev)
{
	dma_iova_destroy(dev, &mapping->iova_state, mapping->size, mapping_direction(mapping),
			 DMA_ATTR_SKIP_CPU_SYNC);
}
#else
/*
 * An entry per page is the only way to have the same page many times in a row; transient, 32 bytes a page,
 * which nobody is charged for, and so only once at a time.
 */
static DEFINE_MUTEX(scatterlist_lock);

static int map_range(struct adverb_mapping *mapping, struct device *dev)
{
	unsigned int i, pages = mapping->size >> PAGE_SHIFT;
	struct scatterlist *entry;
	struct sg_table table;
	dma_addr_t expected;
	int error;

	mutex_lock(&scatterlist_lock);
	error = sg_alloc_table(&table, pages, GFP_KERNEL);
	if (error)
		goto unlock;
	for_each_sgtable_sg(&table, entry, i)
		sg_set_page(entry, pfn_to_page(PHYS_PFN(first_target(mapping, (size_t)i << PAGE_SHIFT))),
			    PAGE_SIZE, 0);
	error = dma_map_sgtable(dev, &table, mapping_direction(mapping), DMA_ATTR_SKIP_CPU_SYNC);
	if (error)
		goto free;
	mapping->iova = sg_dma_address(table.sgl);
	expected = mapping->iova;
	for_each_sgtable_dma_sg(&table, entry, i) {
		if (sg_dma_address(entry) != expected)
			break;
		expected += sg_dma_len(entry);
	}
	if (expected != mapping->iova + mapping->size) {
		dma_unmap_sgtable(dev, &table, mapping_direction(mapping), DMA_ATTR_SKIP_CPU_SYNC);
		error = -EOPNOTSUPP;
	}
free:
	sg_free_table(&table);
unlock:
	mutex_unlock(&scatterlist_lock);
	return error;
}

static void unmap_range(struct adverb_mapping *mapping, struct device *dev)
{
	dma_unmap_page_attrs(dev, mapping->iova, mapping->size, mapping_direction(mapping),
			     DMA_ATTR_SKIP_CPU_SYNC);
}
#endif

static void unmap_parking(struct adverb_mapping *mapping, struct device *dev)
{
	unmap_range(mapping, dev);
	/*
	 * The kernel may put off the flush of an unmap for some milliseconds. The parking page and whatever
	 * an entry still named must not be freed before it.
	 */
	if (!adverb_breaks(ADVERB_BROKEN_FLUSH))
		iommu_flush_iotlb_all(mapping->domain);
}

static int map_parking(struct adverb_mapping *mapping, struct device *dev)
{
	int error = map_range(mapping, dev);

	if (error) {
		iommu_flush_iotlb_all(mapping->domain); /* as in unmap_parking() */
		return error;
	}
	/* Allocators of IOVA align to the size, so this is only what leaf tables rely on. */
	if (mapping->iova % ADVERB_CHUNK_SIZE == 0)
		return 0;
	unmap_parking(mapping, dev);
	return -EOPNOTSUPP;
}

static unsigned long mapping_charge(const struct adverb_mapping *mapping)
{
	/* A leaf table and its pointer for each 2 MiB, and a few tables above. */
	return mapping->size / ADVERB_CHUNK_SIZE + 4;
}

/*
 * A page for adverb_retarget_prepare(). Not beside the parking page: mapped one after the other the two could
 * be taken for a run of memory, and get an entry of a larger size.
 */
static struct page *make_probe(const struct adverb_mapping *mapping)
{
	unsigned long parking = PHYS_PFN(mapping->parking);
	struct page *pages[3], *probe = NULL;
	int i;

	for (i = 0; i < ARRAY_SIZE(pages); i++)
		pages[i] = alloc_page(GFP_KERNEL | __GFP_ZERO);
	for (i = 0; i < ARRAY_SIZE(pages); i++) {
		if (!pages[i])
			continue;
		if (!probe && abs_diff(page_to_pfn(pages[i]), parking) > 1)
			probe = pages[i];
		else
			__free_page(pages[i]);
	}
	return probe;
}

/* Why a device has no range, by the error; NULL if it may have one another time, as with memory. */
static const char *refusal_of(int error)
{
	switch (error) {
	case -EOPNOTSUPP:
		return "the DMA API gave it no contiguous run of addresses";
	case -ENOSPC:
		return "its addresses for DMA are used up";
	default:
		return NULL;
	}
}

static struct adverb_mapping *mapping_create(struct adverb_extent *extent, unsigned int view,
					     struct device *dev, struct iommu_domain *domain)
{
	unsigned long first = round_down(extent->start, ADVERB_CHUNK_SIZE);
	struct adverb_mapping *mapping = kzalloc(sizeof(*mapping), GFP_KERNEL_ACCOUNT);
	const char *reason = NULL;
	struct page *probe;
	int error;

	lockdep_assert_held(&extent->attach_lock);
	if (!mapping)
		return ERR_PTR(-ENOMEM);
	mapping->extent = extent;
	mapping->view = view;
	mapping->domain = domain;
	mapping->users = 1;
	mapping->parking = page_to_phys(extent->region->parking[view]);
	mapping->size = round_up(extent->end, ADVERB_CHUNK_SIZE) - first;
	iommu_iotlb_gather_init(&mapping->gather);
	error = -ENOMEM;
	mapping->leaf = kvcalloc(mapping->size / ADVERB_CHUNK_SIZE, sizeof(*mapping->leaf), GFP_KERNEL_ACCOUNT);
	if (!mapping->leaf)
		goto free;
	mapping->charged = mapping_charge(mapping);
	error = adverb_charge(extent->region, mapping->charged);
	if (error)
		goto free;
	error = -ENOMEM;
	probe = make_probe(mapping);
	if (!probe)
		goto uncharge;
	mapping->probe = page_to_phys(probe);
	error = map_parking(mapping, dev);
	if (error) {
		reason = refusal_of(error);
		goto free_probe;
	}
	error = -EOPNOTSUPP;
	reason = adverb_retarget_prepare(mapping);
	if (reason)
		goto unmap;
	error = adverb_extent_add_mapping(extent, mapping);
	if (error)
		goto unmap;
	__free_page(probe); /* the IOMMU has forgotten it */
	return mapping;

unmap:
	unmap_parking(mapping, dev);
free_probe:
	__free_page(probe);
uncharge:
	adverb_uncharge(extent->region, mapping->charged);
free:
	kvfree(mapping->leaf);
	kfree(mapping);
	if (reason)
		refuse(extent, dev, reason);
	return ERR_PTR(error);
}

static bool device_reaches(struct device *dev, const struct adverb_mapping *mapping)
{
	return mapping->iova + mapping->size - 1 <= min_not_zero(dma_get_mask(dev), dev->bus_dma_limit);
}

static struct adverb_mapping *find_mapping(struct adverb_extent *extent, unsigned int view,
					   struct iommu_domain *domain)
{
	struct adverb_mapping *mapping;

	lockdep_assert_held(&extent->attach_lock);
	list_for_each_entry(mapping, &extent->mappings, node)
		if (mapping->domain == domain && mapping->view == view)
			return mapping;
	return NULL;
}

/**
 * adverb_mapping_get - the mapping of a view for a device
 * @extent: whose
 * @view: built
 * @dev: of the importer
 *
 * Devices of one IOMMU domain share it. Why a device is refused is logged, counted and told by netlink. May
 * sleep, and takes mmap_lock; dma_resv is not held.
 *
 * Return: the mapping, for adverb_mapping_put(); NULL for the soft RNIC, which needs none;
 * ERR_PTR(-EOPNOTSUPP): the device is refused; ERR_PTR(-ENOSPC): and its addresses are used up; what
 * adverb_charge() and adverb_extent_add_mapping() return; or what the DMA API does.
 */
struct adverb_mapping *adverb_mapping_get(struct adverb_extent *extent, unsigned int view,
					  struct device *dev)
{
	struct adverb_mapping *mapping;
	struct iommu_domain *domain;
	const char *reason;

	if (adverb_soft_is(dev))
		return NULL;
	domain = iommu_get_domain_for_dev(dev);
	reason = refusal(dev, domain);
	if (reason)
		return refuse(extent, dev, reason);
	mutex_lock(&extent->attach_lock);
	mapping = find_mapping(extent, view, domain);
	if (!mapping)
		mapping = mapping_create(extent, view, dev, domain);
	else if (device_reaches(dev, mapping))
		mapping->users++;
	else
		mapping = refuse(extent, dev,
				 "a device of its IOMMU group has attached before, at addresses beyond its own");
	mutex_unlock(&extent->attach_lock);
	return mapping;
}

/**
 * adverb_mapping_put - a device lets go of a mapping
 * @mapping: of adverb_mapping_get(), or NULL
 * @dev: which uses it no more
 *
 * With its last user all entries are parked and synced, then unmapped, flushed, and only then freed. Unmapped
 * for the device that lets go now: of those that share the range, the one it was mapped for may be unplugged.
 * May sleep, and takes mmap_lock; dma_resv is not held.
 */
void adverb_mapping_put(struct adverb_mapping *mapping, struct device *dev)
{
	struct adverb_extent *extent;

	if (!mapping)
		return;
	extent = mapping->extent;
	mutex_lock(&extent->attach_lock);
	if (--mapping->users) {
		mutex_unlock(&extent->attach_lock);
		return;
	}
	adverb_extent_remove_mapping(extent, mapping);
	unmap_parking(mapping, dev);
	mutex_unlock(&extent->attach_lock);
	adverb_uncharge(extent->region, mapping->charged);
	kvfree(mapping->leaf);
	kfree(mapping);
}
