/* SPDX-License-Identifier: GPL-2.0 */
/* Where kernels 6.12 and 7.2 differ. */
#ifndef ADVERB_COMPAT_H
#define ADVERB_COMPAT_H

#include <linux/fs.h>
#include <linux/iommu.h>
#include <linux/module.h>
#include <linux/version.h>

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 12, 0)
#error "adverb.ko needs Linux 6.12 or newer"
#endif

/* A run of IOVA can be had without mapping anything. */
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 16, 0)
#define ADVERB_DMA_IOVA 1
#else
#define ADVERB_DMA_IOVA 0
#endif

/* What was changed since the last sync are leaf entries of the lowest level, and no tables. */
static inline void adverb_gather_leaf(struct iommu_iotlb_gather *gather)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 2, 0)
	gather->pt.leaf_levels_bitmap |= BIT(0);
#endif
}

/* A reference to a file that may have none left. */
static inline bool adverb_get_file(struct file *file)
{
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)
	return atomic_long_inc_not_zero(&file->f_count);
#else
	return file_ref_get(&file->f_ref);
#endif
}

/* The argument became a string. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 13, 0)
#define ADVERB_IMPORT_DMA_BUF() MODULE_IMPORT_NS(DMA_BUF)
#else
#define ADVERB_IMPORT_DMA_BUF() MODULE_IMPORT_NS("DMA_BUF")
#endif

#endif
