// SPDX-License-Identifier: GPL-2.0
/* /dev/adverb_test_soft: a NIC in software that does nothing but what a test tells it to. */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "adverb_soft.h"
#include "adverb_test.h"
#include "compat.h"
#include "importer.h"

struct soft_file {
	struct mutex lock;
	struct imported imported[ADVERB_TEST_BUFFERS];
	char page[PAGE_SIZE];
};

static long soft_attach_static(struct adverb_test_import __user *argument)
{
	struct adverb_test_import import;
	struct dma_buf_attachment *attachment;
	struct dma_buf *dmabuf;

	if (copy_from_user(&import, argument, sizeof(import)))
		return -EFAULT;
	dmabuf = dma_buf_get(import.fd);
	if (IS_ERR(dmabuf))
		return PTR_ERR(dmabuf);
	attachment = dma_buf_attach(dmabuf, adverb_soft_device());
	if (!IS_ERR(attachment))
		dma_buf_detach(dmabuf, attachment);
	dma_buf_put(dmabuf);
	return PTR_ERR_OR_ZERO(attachment);
}

static long soft_import(struct soft_file *file, struct adverb_test_import __user *argument)
{
	struct adverb_test_import import;
	int error;

	if (copy_from_user(&import, argument, sizeof(import)))
		return -EFAULT;
	if (import.slot >= ADVERB_TEST_BUFFERS)
		return -EINVAL;
	imported_release(&file->imported[import.slot]);
	if (import.fd < 0)
		return 0;
	error = imported_take(&file->imported[import.slot], import.fd, adverb_soft_device());
	if (error)
		return error;
	return put_user(file->imported[import.slot].address, &argument->address);
}

static long soft_move(struct soft_file *file, const struct adverb_test_move *move)
{
	struct dma_buf *dmabuf;
	long error;

	if (move->slot >= ADVERB_TEST_BUFFERS || move->length > PAGE_SIZE)
		return -EINVAL;
	dmabuf = file->imported[move->slot].dmabuf;
	if (!dmabuf)
		return -ENODEV;
	if (move->write && copy_from_user(file->page, u64_to_user_ptr(move->data), move->length))
		return -EFAULT;
	error = adverb_soft_copy(dmabuf, move->offset, file->page, move->length, move->write);
	if (!error && !move->write && copy_to_user(u64_to_user_ptr(move->data), file->page, move->length))
		return -EFAULT;
	return error;
}

static long soft_ioctl(struct file *filp, unsigned int command, unsigned long argument)
{
	struct soft_file *file = filp->private_data;
	struct adverb_test_move move;
	long error = -ENOTTY;

	mutex_lock(&file->lock);
	if (command == ADVERB_TEST_IMPORT)
		error = soft_import(file, (void __user *)argument);
	else if (command == ADVERB_TEST_ATTACH_STATIC)
		error = soft_attach_static((void __user *)argument);
	else if (command == ADVERB_TEST_MOVE)
		error = copy_from_user(&move, (void __user *)argument, sizeof(move)) ? -EFAULT
										     : soft_move(file, &move);
	mutex_unlock(&file->lock);
	return error;
}

static int soft_open(struct inode *inode, struct file *filp)
{
	struct soft_file *file = kzalloc(sizeof(*file), GFP_KERNEL);

	if (!file)
		return -ENOMEM;
	mutex_init(&file->lock);
	filp->private_data = file;
	return 0;
}

static int soft_release(struct inode *inode, struct file *filp)
{
	struct soft_file *file = filp->private_data;
	int i;

	for (i = 0; i < ADVERB_TEST_BUFFERS; i++)
		imported_release(&file->imported[i]);
	kfree(file);
	return 0;
}

static const struct file_operations soft_fops = {
	.owner = THIS_MODULE,
	.open = soft_open,
	.release = soft_release,
	.unlocked_ioctl = soft_ioctl,
};

static struct miscdevice soft_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "adverb_test_soft",
	.fops = &soft_fops,
};

module_misc_device(soft_device);
ADVERB_IMPORT_DMA_BUF();
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Test driver: a NIC in software");
