// SPDX-License-Identifier: GPL-2.0
/* The module and /dev/adverb. */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "adverb.h"

static int file_open(struct inode *inode, struct file *filp)
{
	struct adverb_file *file = kzalloc(sizeof(*file), GFP_KERNEL_ACCOUNT);

	if (!file)
		return -ENOMEM;
	mutex_init(&file->lock);
	xa_init_flags(&file->regions, XA_FLAGS_ALLOC1);
	xa_init_flags(&file->tables, XA_FLAGS_ALLOC1);
	file->mm = current->mm;
	mmgrab(file->mm);
	filp->private_data = file;
	return 0;
}

static int file_release(struct inode *inode, struct file *filp)
{
	struct adverb_file *file = filp->private_data;

	adverb_monitor_end(file);
	adverb_regions_destroy(file);
	xa_destroy(&file->regions);
	xa_destroy(&file->tables);
	mmdrop(file->mm);
	kfree(file);
	return 0;
}

static int file_mmap(struct file *filp, struct vm_area_struct *vma)
{
	return adverb_table_mmap(filp->private_data, vma);
}

static const struct file_operations file_ops = {
	.owner = THIS_MODULE,
	.open = file_open,
	.release = file_release,
	.unlocked_ioctl = adverb_ioctl,
	.compat_ioctl = compat_ptr_ioctl, /* all structures are of fixed width */
	.mmap = file_mmap,
	.read = adverb_changes_read,
	.poll = adverb_changes_poll,
	.flush = adverb_monitor_flush,
};

static struct miscdevice adverb_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "adverb",
	.fops = &file_ops,
	.mode = 0660,
};

static int __init adverb_init(void)
{
	int error;

	error = adverb_present_init();
	if (error)
		return error;
	error = adverb_soft_init();
	if (error)
		goto exit_present;
	error = adverb_netlink_init();
	if (error)
		goto exit_soft;
	error = misc_register(&adverb_device);
	if (error)
		goto exit_netlink;
	return 0;

exit_netlink:
	adverb_netlink_exit();
exit_soft:
	adverb_soft_exit();
exit_present:
	adverb_present_exit();
	return error;
}

/* No file is open, no dma-buf is left and no table is mapped: all of them hold the module. */
static void __exit adverb_exit(void)
{
	adverb_present_exit();
	misc_deregister(&adverb_device);
	adverb_netlink_exit();
	adverb_soft_exit();
}

module_init(adverb_init);
module_exit(adverb_exit);
ADVERB_IMPORT_DMA_BUF();
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Lets RDMA devices reach memory that is not pinned");
MODULE_VERSION(__stringify(ADVERB_MODULE_VERSION));
