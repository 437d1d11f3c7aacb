// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/adverb_test_edu: QEMU's edu device, which copies between memory and a buffer of its own, behind the
 * emulated IOMMU. A tenth of a second for each copy, so for directed tests only.
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/fs.h>
#include <linux/io-64-nonatomic-lo-hi.h>
#include <linux/kref.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "adverb_test.h"
#include "compat.h"
#include "importer.h"

#define EDU_SOURCE 0x80
#define EDU_TARGET 0x88
#define EDU_COUNT 0x90
#define EDU_COMMAND 0x98
#define EDU_RUN 1
#define EDU_TO_MEMORY 2
#define EDU_BUFFER 0x40000

struct edu {
	struct kref ref; /* the driver's, and each open file's: those can stay open when the device is gone */
	struct pci_dev *pci;
	void __iomem *registers;
	void *bounce; /* a page of the driver's own */
	dma_addr_t bounce_address;
	struct mutex lock;
	bool gone;
	unsigned int openers; /* the last lets go of what was imported */
	struct imported imported[ADVERB_TEST_BUFFERS];
	struct miscdevice misc;
};

static int edu_copy(struct edu *edu, u64 source, u64 target, u64 count, u32 direction)
{
	int i;

	writeq(source, edu->registers + EDU_SOURCE);
	writeq(target, edu->registers + EDU_TARGET);
	writeq(count, edu->registers + EDU_COUNT);
	writeq(EDU_RUN | direction, edu->registers + EDU_COMMAND);
	for (i = 0; i < 5000; i++) {
		if (!(readl(edu->registers + EDU_COMMAND) & EDU_RUN))
			return 0;
		usleep_range(1000, 1500);
	}
	return -ETIMEDOUT;
}

static int edu_move(struct edu *edu, const struct adverb_test_move *move)
{
	u64 address;
	int error;

	if (move->slot >= ADVERB_TEST_BUFFERS || !move->length || move->length > PAGE_SIZE)
		return -EINVAL;
	if (!edu->imported[move->slot].table)
		return -ENODEV;
	address = edu->imported[move->slot].address + move->offset;
	/* A read that is aborted must not show what an earlier one left in the device. */
	memset(edu->bounce, 0, PAGE_SIZE);
	if (move->write && copy_from_user(edu->bounce, u64_to_user_ptr(move->data), move->length))
		return -EFAULT;
	error = edu_copy(edu, edu->bounce_address, EDU_BUFFER, move->length, 0);
	if (!error && !move->write)
		error = edu_copy(edu, address, EDU_BUFFER, move->length, 0);
	if (!error)
		error = edu_copy(edu, EDU_BUFFER, move->write ? address : edu->bounce_address, move->length,
				 EDU_TO_MEMORY);
	if (!error && !move->write && copy_to_user(u64_to_user_ptr(move->data), edu->bounce, move->length))
		error = -EFAULT;
	return error;
}

static int edu_import(struct edu *edu, struct adverb_test_import __user *argument)
{
	struct adverb_test_import import;
	int error;

	if (copy_from_user(&import, argument, sizeof(import)))
		return -EFAULT;
	if (import.slot >= ADVERB_TEST_BUFFERS)
		return -EINVAL;
	imported_release(&edu->imported[import.slot]);
	if (import.fd < 0)
		return 0;
	error = imported_take(&edu->imported[import.slot], import.fd, &edu->pci->dev);
	return error ?: put_user(edu->imported[import.slot].address, &argument->address);
}

static struct edu *edu_of(struct file *filp)
{
	return container_of(filp->private_data, struct edu, misc);
}

static long edu_ioctl(struct file *filp, unsigned int command, unsigned long argument)
{
	struct edu *edu = edu_of(filp);
	struct adverb_test_move move;
	long error = -ENOTTY;

	mutex_lock(&edu->lock);
	if (edu->gone)
		error = -ENODEV;
	else if (command == ADVERB_TEST_IMPORT)
		error = edu_import(edu, (void __user *)argument);
	else if (command == ADVERB_TEST_MOVE)
		error = copy_from_user(&move, (void __user *)argument, sizeof(move)) ? -EFAULT
										     : edu_move(edu, &move);
	mutex_unlock(&edu->lock);
	return error;
}

static void edu_free(struct kref *ref)
{
	kfree(container_of(ref, struct edu, ref));
}

static int edu_open(struct inode *inode, struct file *filp)
{
	struct edu *edu = edu_of(filp);

	kref_get(&edu->ref);
	mutex_lock(&edu->lock);
	edu->openers++;
	mutex_unlock(&edu->lock);
	return 0;
}

static int edu_release(struct inode *inode, struct file *filp)
{
	struct edu *edu = edu_of(filp);
	int i;

	mutex_lock(&edu->lock);
	edu->openers--;
	for (i = 0; !edu->openers && i < ADVERB_TEST_BUFFERS; i++)
		imported_release(&edu->imported[i]);
	mutex_unlock(&edu->lock);
	kref_put(&edu->ref, edu_free);
	return 0;
}

static const struct file_operations edu_fops = {
	.owner = THIS_MODULE,
	.open = edu_open,
	.unlocked_ioctl = edu_ioctl,
	.release = edu_release,
};

static int edu_set_up(struct edu *edu, struct pci_dev *pci)
{
	int error;

	edu->pci = pci;
	error = pcim_enable_device(pci);
	if (error)
		return error;
	pci_set_master(pci);
	edu->registers = pcim_iomap(pci, 0, 0);
	if (!edu->registers)
		return -ENODEV;
	error = dma_set_mask_and_coherent(&pci->dev, DMA_BIT_MASK(64));
	if (error)
		return error;
	edu->bounce = dmam_alloc_coherent(&pci->dev, PAGE_SIZE, &edu->bounce_address, GFP_KERNEL);
	if (!edu->bounce)
		return -ENOMEM;
	edu->misc = (struct miscdevice){ .minor = MISC_DYNAMIC_MINOR, .name = "adverb_test_edu", .fops = &edu_fops };
	pci_set_drvdata(pci, edu);
	return misc_register(&edu->misc);
}

static int edu_probe(struct pci_dev *pci, const struct pci_device_id *id)
{
	struct edu *edu = kzalloc(sizeof(*edu), GFP_KERNEL);
	int error;

	if (!edu)
		return -ENOMEM;
	kref_init(&edu->ref);
	mutex_init(&edu->lock);
	error = edu_set_up(edu, pci);
	if (error)
		kref_put(&edu->ref, edu_free);
	return error;
}

static void edu_remove(struct pci_dev *pci)
{
	struct edu *edu = pci_get_drvdata(pci);
	int i;

	misc_deregister(&edu->misc);
	mutex_lock(&edu->lock);
	edu->gone = true;
	for (i = 0; i < ADVERB_TEST_BUFFERS; i++)
		imported_release(&edu->imported[i]);
	mutex_unlock(&edu->lock);
	kref_put(&edu->ref, edu_free);
}

static const struct pci_device_id edu_ids[] = { { PCI_DEVICE(0x1234, 0x11e8) }, {} };

static struct pci_driver edu_driver = {
	.name = "adverb_test_edu",
	.id_table = edu_ids,
	.probe = edu_probe,
	.remove = edu_remove,
};

module_pci_driver(edu_driver);
ADVERB_IMPORT_DMA_BUF();
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Test driver for QEMU's edu device");
