// SPDX-License-Identifier: GPL-2.0
/*
 * A view as a dma-buf. Work is done in attach, where no dma_resv is held and the importer's device is known
 * (iova.c); map_dma_buf, called under dma_resv, only hands out the address range, which never changes. That
 * it never changes is also why there is nothing to notify importers of.
 *
 * Only importers that could be told to move are let in. The others expect pages with struct page and CPU
 * synchronisation, and would break on a range without pages.
 */
#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/file.h>
#include <linux/lockdep.h>
#include <linux/module.h>
#include <linux/scatterlist.h>
#include <linux/slab.h>

#include "adverb.h"
#include "adverb_soft.h"

struct adverb_export {
	struct adverb_extent *extent;
	unsigned int view;
};

static int export_attach(struct dma_buf *dmabuf, struct dma_buf_attachment *attachment)
{
	struct adverb_export *export = dmabuf->priv;
	struct adverb_mapping *mapping;

	lockdep_assert_not_held(&dmabuf->resv->lock.base);
	if (!attachment->importer_ops) {
		adverb_count(export->extent->region, ADVERB_REFUSED, 1);
		WRITE_ONCE(export->extent->region->refusal, "its driver cannot be told that a buffer moves");
		return -EOPNOTSUPP;
	}
	if (READ_ONCE(export->extent->region->dead))
		return -ESHUTDOWN;
	mapping = adverb_mapping_get(export->extent, export->view, attachment->dev);
	if (IS_ERR(mapping))
		return PTR_ERR(mapping);
	attachment->priv = mapping;
	atomic_inc(&export->extent->region->attachments);
	return 0;
}

static void export_detach(struct dma_buf *dmabuf, struct dma_buf_attachment *attachment)
{
	struct adverb_export *export = dmabuf->priv;

	lockdep_assert_not_held(&dmabuf->resv->lock.base);
	adverb_mapping_put(attachment->priv, attachment->dev);
	atomic_dec(&export->extent->region->attachments);
}

/* Nothing is pinned and nothing moves: the range stays, and so do the promises of a view. */
static int export_pin(struct dma_buf_attachment *attachment)
{
	return 0;
}

static void export_unpin(struct dma_buf_attachment *attachment)
{
}

static struct sg_table *export_map(struct dma_buf_attachment *attachment, enum dma_data_direction direction)
{
	struct adverb_export *export = attachment->dmabuf->priv;
	struct adverb_extent *extent = export->extent;
	struct adverb_mapping *mapping = attachment->priv;
	struct sg_table *table = kzalloc(sizeof(*table), GFP_KERNEL);

	if (!table)
		return ERR_PTR(-ENOMEM);
	/* At most a GiB, so one entry, whose length is 32 bits wide. It has no page: there is none to name. */
	if (sg_alloc_table(table, 1, GFP_KERNEL)) {
		kfree(table);
		return ERR_PTR(-ENOMEM);
	}
	sg_dma_address(table->sgl) = (mapping ? mapping->iova : ADVERB_CHUNK_SIZE) +
				     extent->start % ADVERB_CHUNK_SIZE;
	sg_dma_len(table->sgl) = extent->end - extent->start;
	return table;
}

static void export_unmap(struct dma_buf_attachment *attachment, struct sg_table *table,
			 enum dma_data_direction direction)
{
	sg_free_table(table);
	kfree(table);
}

static void export_release(struct dma_buf *dmabuf)
{
	struct adverb_export *export = dmabuf->priv;
	struct adverb_region *region = export->extent->region;

	atomic_dec(&export->extent->views[export->view].users); /* the extent may be gone now */
	adverb_region_put(region);
	kfree(export);
}

static const struct dma_buf_ops export_ops = {
	.attach = export_attach,
	.detach = export_detach,
	.pin = export_pin,
	.unpin = export_unpin,
	.map_dma_buf = export_map,
	.unmap_dma_buf = export_unmap,
	.release = export_release,
};

/* Described in adverb_soft.h. */
int adverb_soft_copy(struct dma_buf *dmabuf, u64 offset, void *buffer, size_t length, bool write)
{
	struct adverb_export *export = dmabuf->priv;

	if (dmabuf->ops != &export_ops)
		return -EINVAL;
	return adverb_soft_move(export->extent, export->view, offset, buffer, length, write);
}
EXPORT_SYMBOL_GPL(adverb_soft_copy);

/**
 * adverb_export - make a dma-buf of a view
 * @extent: of a region the caller has a reference to
 * @view: of adverb_region_build(), which counted a user for this
 *
 * The dma-buf is that user, and holds a reference to the region. Without one the user is counted down again.
 *
 * Return: a descriptor of it, or -errno.
 */
int adverb_export(struct adverb_extent *extent, unsigned int view)
{
	DEFINE_DMA_BUF_EXPORT_INFO(info);
	struct adverb_export *export = kzalloc(sizeof(*export), GFP_KERNEL_ACCOUNT);
	struct dma_buf *dmabuf;
	int fd;

	if (!export) {
		atomic_dec(&extent->views[view].users);
		return -ENOMEM;
	}
	export->extent = extent;
	export->view = view;
	info.ops = &export_ops;
	info.size = extent->end - extent->start;
	info.flags = O_RDWR | O_CLOEXEC;
	info.priv = export;
	dmabuf = dma_buf_export(&info);
	if (IS_ERR(dmabuf)) {
		atomic_dec(&extent->views[view].users);
		kfree(export);
		return PTR_ERR(dmabuf);
	}
	kref_get(&extent->region->ref);
	fd = dma_buf_fd(dmabuf, O_CLOEXEC);
	if (fd < 0)
		dma_buf_put(dmabuf);
	return fd;
}
