// SPDX-License-Identifier: GPL-2.0
/*
 * The soft RNIC entry. A page is reached under the extent's lock as a reader, for one page at a time:
 * Leave takes it as the writer, so it waits for a copy going on just as the IOTLB sync waits for DMA in
 * flight, and no copy is ever made from or to a page that has left.
 */
#include <linux/highmem.h>
#include <linux/lockdep.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/string.h>

#include "adverb.h"
#include "adverb_soft.h"

static struct platform_device *soft_device;

/**
 * adverb_soft_init - make the device that NICs in software attach with
 *
 * Return: 0 or -errno.
 */
int __init adverb_soft_init(void)
{
	soft_device = platform_device_register_simple("adverb-soft", PLATFORM_DEVID_NONE, NULL, 0);
	return PTR_ERR_OR_ZERO(soft_device);
}

/**
 * adverb_soft_exit - take the device away
 */
void adverb_soft_exit(void)
{
	platform_device_unregister(soft_device);
}

/**
 * adverb_soft_is - whether a device is the one of NICs in software
 * @dev: of an importer
 *
 * Return: true if it needs no mapping.
 */
bool adverb_soft_is(struct device *dev)
{
	return dev == &soft_device->dev;
}

/* Described in adverb_soft.h. */
struct device *adverb_soft_device(void)
{
	return &soft_device->dev;
}
EXPORT_SYMBOL_GPL(adverb_soft_device);

/* The page an address of a view leads to now. */
static struct page *translate(struct adverb_extent *extent, unsigned int view, unsigned long address)
{
	u64 *chunk = extent->chunks[extent_chunk(extent, address)];
	u64 slot = chunk ? chunk[chunk_slot(address)] : 0;

	lockdep_assert_held_read(&extent->lock);
	return slot & BIT(view) ? pfn_to_page(slot >> PAGE_SHIFT) : extent->region->parking[view];
}

/**
 * adverb_soft_move - move bytes between a view and kernel memory
 * @extent: whose
 * @view: built
 * @offset: from the extent's start
 * @buffer: kernel memory
 * @length: bytes
 * @write: into the view
 *
 * Process context (it may also be atomic), not softirq.
 *
 * Return: 0; -EWOULDBLOCK: in softirq; -ERANGE; -EACCES: a write into a read view.
 */
int adverb_soft_move(struct adverb_extent *extent, unsigned int view, u64 offset, void *buffer,
		     size_t length, bool write)
{
	unsigned long size = extent->end - extent->start, address;
	struct page *page;
	char *mapped;
	size_t n;

	/* The lock is taken with softirqs enabled elsewhere: one that took it here could wait for itself. */
	if (WARN_ON_ONCE(in_serving_softirq() || in_hardirq()))
		return -EWOULDBLOCK;
	if (offset > size || length > size - offset)
		return -ERANGE;
	if (write && view != ADVERB_VIEW_WRITE)
		return -EACCES;
	for (address = extent->start + offset; length; address += n, buffer += n, length -= n) {
		n = min_t(size_t, length, PAGE_SIZE - offset_in_page(address));
		read_lock(&extent->lock);
		page = translate(extent, view, address);
		mapped = kmap_local_page(page);
		if (write)
			memcpy(mapped + offset_in_page(address), buffer, n);
		else
			memcpy(buffer, mapped + offset_in_page(address), n);
		kunmap_local(mapped);
		read_unlock(&extent->lock);
	}
	return 0;
}
