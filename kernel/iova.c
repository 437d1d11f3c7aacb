// SPDX-License-Identifier: GPL-2.0
/*
 * Mappings: an IOVA range for a view in one IOMMU domain. It is mapped once, with every entry naming the
 * parking page, by the kernel's own API; afterwards entries only change their target (retarget.c), so
 * that there is no moment at which a device finds nothing. Devices of one domain share the range.
 *
 * Made in attach and undone in detach, where no dma_resv is held: this allocates with GFP_KERNEL.
 */
#include <linux/dma-map-ops.h>
#include <linux/lockdep.h>
#include <linux/pci.h>
#include <linux/scatterlist.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <asm/processor.h>

#include "adverb.h"
#include "trace.h"

/* Tells who must know why. Returns what the importer gets. */
static struct adverb_mapping *refuse(struct adverb_extent *extent, struct device *dev, const char *reason)
{
	adverb_count(extent->region, ADVERB_REFUSED, 1);
	WRITE_ONCE(extent->region->refusal, reason);
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
 *
 * The DMA API gives the addresses, and the entries are made slice by slice of 2 MiB, so that others can run in
 * between, and with memory that may be waited for.
 */
#if ADVERB_DMA_IOVA
static int take_addresses(struct adverb_mapping *mapping, struct device *dev)
{
	if (!dma_iova_try_alloc(dev, &mapping->iova_state, mapping->parking, mapping->size))
		return -ENOSPC;
	mapping->iova = mapping->iova_state.addr;
	return 0;
}

static void give_addresses(struct adverb_mapping *mapping, struct device *dev, size_t mapped)
{
	dma_iova_destroy(dev, &mapping->iova_state, mapped,
			 mapping->view == ADVERB_VIEW_READ ? DMA_TO_DEVICE : DMA_BIDIRECTIONAL,
			 DMA_ATTR_SKIP_CPU_SYNC);
}
#else
/*
 * There is no way to be given addresses alone: the end of what the CPU can address, where no memory is, is mapped by
 * huge entries, to be read only, and unmapped at once. No device has been told of the addresses by then. It is not
 * aligned to more than 2 MiB, or an entry of a GiB could be used, and what is mapped must be unmapped in slices.
 */
static phys_addr_t nowhere(const struct adverb_mapping *mapping)
{
	phys_addr_t end = BIT_ULL(boot_cpu_data.x86_phys_bits);

	return round_down(end - mapping->size, SZ_1G) - ADVERB_CHUNK_SIZE;
}

static int take_addresses(struct adverb_mapping *mapping, struct device *dev)
{
	mapping->iova = dma_map_resource(dev, nowhere(mapping), mapping->size, DMA_TO_DEVICE, 0);
	if (dma_mapping_error(dev, mapping->iova))
		return -ENOSPC;
	WARN_ON(iommu_unmap(mapping->domain, mapping->iova, mapping->size) != mapping->size);
	return 0;
}

/* The DMA API unmaps what it has mapped, so all of it must be. */
static void give_addresses(struct adverb_mapping *mapping, struct device *dev, size_t mapped)
{
	size_t rest = mapping->size - mapped;

	if (rest && iommu_map(mapping->domain, mapping->iova + mapped, nowhere(mapping) + mapped, rest, IOMMU_READ,
			      GFP_KERNEL))
		dev_warn(dev, "adverb: %zu MiB of its addresses for DMA are lost: no memory\n",
			 mapping->size >> 20);
	else
		dma_unmap_resource(dev, mapping->iova, mapping->size, DMA_TO_DEVICE, 0);
}
#endif

/* The pages of a slice; the same ones for each. */
static int make_slice(const struct adverb_mapping *mapping, struct sg_table *slice)
{
	struct scatterlist *entry;
	unsigned int i;
	int error = sg_alloc_table(slice, ADVERB_CHUNK_PAGES, GFP_KERNEL);

	if (error)
		return error;
	for_each_sgtable_sg(slice, entry, i)
		sg_set_page(entry, pfn_to_page(PHYS_PFN(i ? mapping->parking : mapping->probe)), PAGE_SIZE, 0);
	return 0;
}

static int map_slices(struct adverb_mapping *mapping, struct device *dev, struct sg_table *slice, size_t *mapped)
{
	/* A read view's entries let nothing be written, whatever the memory region allows. */
	int rights = IOMMU_READ | (mapping->view == ADVERB_VIEW_WRITE ? IOMMU_WRITE : 0);
	ssize_t bytes;

	if (dev_is_dma_coherent(dev))
		rights |= IOMMU_CACHE;
	for (*mapped = 0; *mapped < mapping->size; *mapped += ADVERB_CHUNK_SIZE) {
		bytes = iommu_map_sg(mapping->domain, mapping->iova + *mapped, slice->sgl, slice->orig_nents, rights,
				     GFP_KERNEL);
		if (bytes < 0)
			return bytes;
		cond_resched();
	}
	return 0;
}

static int map_range(struct adverb_mapping *mapping, struct device *dev)
{
	struct sg_table slice;
	size_t mapped = 0;
	int error;

	error = make_slice(mapping, &slice);
	if (error)
		return error;
	error = take_addresses(mapping, dev);
	if (error)
		goto free;
	/* Allocators of IOVA align to the size, so this is only what leaf tables rely on. */
	error = mapping->iova % ADVERB_CHUNK_SIZE ? -EOPNOTSUPP : map_slices(mapping, dev, &slice, &mapped);
	if (error)
		give_addresses(mapping, dev, mapped);
free:
	sg_free_table(&slice);
	return error;
}

static void unmap_parking(struct adverb_mapping *mapping, struct device *dev)
{
	give_addresses(mapping, dev, mapping->size);
	/*
	 * The kernel may put off the flush of an unmap for some milliseconds. The parking page and whatever
	 * an entry still named must not be freed before it.
	 */
	iommu_flush_iotlb_all(mapping->domain);
}

static int map_parking(struct adverb_mapping *mapping, struct device *dev)
{
	int error = map_range(mapping, dev);

	if (error)
		iommu_flush_iotlb_all(mapping->domain); /* as in unmap_parking() */
	return error;
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
		return "the DMA API has no run of addresses for it; they are used up, or it has operations of its own";
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
	reason = adverb_retarget_prepare(mapping, dev);
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

static struct adverb_mapping *find_or_make(struct adverb_extent *extent, unsigned int view, struct device *dev)
{
	struct iommu_domain *domain = iommu_get_domain_for_dev(dev);
	const char *reason = refusal(dev, domain);
	struct adverb_mapping *mapping;

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
 * adverb_mapping_get - the mapping of a view for a device
 * @extent: whose
 * @view: built
 * @dev: of the importer
 *
 * Devices of one IOMMU domain share it. Why a device is refused is logged, counted and told by netlink. May
 * sleep; takes no mmap_lock; dma_resv is not held.
 *
 * Return: the mapping, for adverb_mapping_put(); NULL for the soft RNIC, which needs none;
 * ERR_PTR(-EOPNOTSUPP): the device is refused; ERR_PTR(-ENOSPC): and its addresses are used up; what
 * adverb_charge() and adverb_extent_add_mapping() return; or what the DMA API does.
 */
struct adverb_mapping *adverb_mapping_get(struct adverb_extent *extent, unsigned int view,
					  struct device *dev)
{
	u64 begun = trace_adverb_attach_enabled() ? ktime_get_ns() : 0;
	struct adverb_mapping *mapping;

	if (adverb_soft_is(dev))
		return NULL;
	mapping = find_or_make(extent, view, dev);
	if (begun)
		trace_adverb_attach(dev, extent, view, PTR_ERR_OR_ZERO(mapping), ktime_get_ns() - begun);
	return mapping;
}

/**
 * adverb_mapping_put - a device lets go of a mapping
 * @mapping: of adverb_mapping_get(), or NULL
 * @dev: which uses it no more
 *
 * With its last user all entries are parked and synced, then unmapped, flushed, and only then freed. Unmapped
 * for the device that lets go now: of those that share the range, the one it was mapped for may be unplugged.
 * May sleep; takes no mmap_lock; dma_resv is not held.
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
