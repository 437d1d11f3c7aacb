/* SPDX-License-Identifier: GPL-2.0 */
/* Importing a dma-buf as RDMA drivers do: dynamic attachment, pin, map. */
#ifndef ADVERB_TEST_IMPORTER_H
#define ADVERB_TEST_IMPORTER_H

#include <linux/dma-buf.h>
#include <linux/dma-resv.h>
#include <linux/scatterlist.h>
#include <linux/version.h>

struct imported {
	struct dma_buf *dmabuf;
	struct dma_buf_attachment *attachment;
	struct sg_table *table;
	dma_addr_t address;
};

/* It has another name in 7.2. */
#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 2, 0)
#define MOVE_NOTIFY move_notify
#else
#define MOVE_NOTIFY invalidate_mappings
#endif

static void importer_move_notify(struct dma_buf_attachment *attachment)
{
	WARN(1, "adverb never moves a buffer");
}

static const struct dma_buf_attach_ops importer_ops = {
	.allow_peer2peer = false,
	.MOVE_NOTIFY = importer_move_notify,
};

static inline void imported_release(struct imported *imported)
{
	if (!imported->dmabuf)
		return;
	if (imported->table) {
		dma_resv_lock(imported->dmabuf->resv, NULL);
		dma_buf_unmap_attachment(imported->attachment, imported->table, DMA_BIDIRECTIONAL);
		dma_buf_unpin(imported->attachment);
		dma_resv_unlock(imported->dmabuf->resv);
	}
	dma_buf_detach(imported->dmabuf, imported->attachment);
	dma_buf_put(imported->dmabuf);
	*imported = (struct imported){};
}

static inline int imported_take(struct imported *imported, int fd, struct device *dev)
{
	struct dma_buf *dmabuf = dma_buf_get(fd);
	int error;

	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	imported->attachment = dma_buf_dynamic_attach(dmabuf, dev, &importer_ops, NULL);
	if (IS_ERR(imported->attachment)) {
		error = PTR_ERR(imported->attachment);
		dma_buf_put(dmabuf);
		*imported = (struct imported){};
		return error;
	}
	imported->dmabuf = dmabuf;
	dma_resv_lock(dmabuf->resv, NULL);
	error = dma_buf_pin(imported->attachment);
	if (!error) {
		imported->table = dma_buf_map_attachment(imported->attachment, DMA_BIDIRECTIONAL);
		if (IS_ERR(imported->table)) {
			error = PTR_ERR(imported->table);
			imported->table = NULL;
			dma_buf_unpin(imported->attachment);
		}
	}
	dma_resv_unlock(dmabuf->resv);
	if (error) {
		imported_release(imported);
		return error;
	}
	imported->address = sg_dma_address(imported->table->sgl);
	return 0;
}

#endif
