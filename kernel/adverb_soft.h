/* SPDX-License-Identifier: GPL-2.0 */
/* For kernel code that is a NIC in software: it reaches an extent as a device behind the IOMMU would. */
#ifndef ADVERB_SOFT_H
#define ADVERB_SOFT_H

#include <linux/dma-buf.h>
#include <linux/types.h>

/**
 * adverb_soft_device - the device to attach a dma-buf of adverb's with
 *
 * Return: a device whose addresses mean nothing, there as long as the module is; use the entry below.
 */
struct device *adverb_soft_device(void);

/**
 * adverb_soft_copy - move bytes between a view and kernel memory
 * @dmabuf: of adverb's; the caller has it attached with adverb_soft_device()
 * @offset: into the dma-buf
 * @buffer: kernel memory
 * @length: any
 * @write: into the view; a read view refuses it
 *
 * What is not resident reads as the region's pattern, and is written to nowhere, as it is for a device.
 * Process context (it may also be atomic), not softirq. Takes no fault, allocates
 * nothing and does not sleep.
 *
 * Return: 0; -EINVAL: not adverb's; -EWOULDBLOCK; -ERANGE; -EACCES.
 */
int adverb_soft_copy(struct dma_buf *dmabuf, u64 offset, void *buffer, size_t length, bool write);

#endif
