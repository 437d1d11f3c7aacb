// SPDX-License-Identifier: GPL-2.0
/*
 * /dev/adverb_test_nic: an 82574 (QEMU's e1000e) in MAC loopback: what it sends it receives. Frames go from a
 * view into the driver's buffer and from there into a view, in turns, thousands a second, through the emulated
 * IOMMU.
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/fs.h>
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

#define NIC_CTRL 0x0000
#define CTRL_LINK_UP BIT(6)
#define CTRL_RESET BIT(26)
#define NIC_IMC 0x00d8
#define NIC_RCTL 0x0100
#define RCTL_ENABLE BIT(1)
#define RCTL_PROMISCUOUS (BIT(3) | BIT(4) | BIT(15)) /* unicast, multicast, broadcast */
#define RCTL_LOOPBACK BIT(6)
#define RCTL_STRIP_CRC BIT(26)
#define NIC_TCTL 0x0400
#define TCTL_ENABLE BIT(1)
#define NIC_RX 0x2800
#define NIC_TX 0x3800
#define RING_LOW 0x00
#define RING_HIGH 0x04
#define RING_LENGTH 0x08
#define RING_HEAD 0x10
#define RING_TAIL 0x18
#define RING_ENTRIES 256 /* more than the frames of a call, both ways */
#define TX_COMMAND (BIT(0) | BIT(1) | BIT(3)) /* end of packet, CRC, report status */
#define DONE BIT(0)

struct tx_entry {
	__le64 address;
	__le16 length;
	u8 checksum_offset;
	u8 command;
	u8 status;
	u8 checksum_start;
	__le16 special;
};

struct rx_entry {
	__le64 address;
	__le16 length;
	__le16 checksum;
	u8 status;
	u8 errors;
	__le16 special;
};

static unsigned int address_bits = 64;
module_param(address_bits, uint, 0400);
MODULE_PARM_DESC(address_bits, "of the addresses the device is said to be able to use");

struct nic {
	struct kref ref; /* the driver's, and each open file's: those can stay open when the device is gone */
	struct pci_dev *pci;
	void __iomem *registers;
	struct tx_entry *tx;
	struct rx_entry *rx;
	dma_addr_t tx_address, rx_address;
	char *frames; /* 2 KiB for each, as the device may write that much: those read, then those to write */
	dma_addr_t frames_address;
	unsigned int next; /* of both rings: they go in step */
	struct mutex lock;
	bool gone;
	unsigned int openers; /* the last lets go of what was imported */
	struct imported imported[ADVERB_TEST_BUFFERS];
	struct miscdevice misc;
};

static void ring_start(struct nic *nic, u32 base, dma_addr_t address)
{
	writel(lower_32_bits(address), nic->registers + base + RING_LOW);
	writel(upper_32_bits(address), nic->registers + base + RING_HIGH);
	writel(RING_ENTRIES * sizeof(struct tx_entry), nic->registers + base + RING_LENGTH);
	writel(0, nic->registers + base + RING_HEAD);
	writel(0, nic->registers + base + RING_TAIL);
}

static void nic_start(struct nic *nic)
{
	writel(CTRL_RESET, nic->registers + NIC_CTRL);
	usleep_range(2000, 3000);
	writel(~0, nic->registers + NIC_IMC);
	writel(CTRL_LINK_UP, nic->registers + NIC_CTRL);
	ring_start(nic, NIC_TX, nic->tx_address);
	ring_start(nic, NIC_RX, nic->rx_address);
	nic->next = 0;
	writel(RCTL_ENABLE | RCTL_PROMISCUOUS | RCTL_LOOPBACK | RCTL_STRIP_CRC, nic->registers + NIC_RCTL);
	writel(TCTL_ENABLE, nic->registers + NIC_TCTL);
}

static bool all_done(struct nic *nic, unsigned int first, unsigned int count)
{
	unsigned int i;

	for (i = 0; i < count; i++)
		if (!(READ_ONCE(nic->rx[(first + i) % RING_ENTRIES].status) & DONE))
			return false;
	return true;
}

static bool run_valid(const struct nic *nic, const struct adverb_test_run *run)
{
	return !run->count || (run->slot < ADVERB_TEST_BUFFERS && run->count <= ADVERB_TEST_FRAMES_MAX &&
			       nic->imported[run->slot].table);
}

/* Of its first page. */
static dma_addr_t in_view(const struct nic *nic, const struct adverb_test_run *run)
{
	return run->count ? nic->imported[run->slot].address + run->offset : 0;
}

static size_t own_offset(bool write, unsigned int i)
{
	return ((write ? ADVERB_TEST_FRAMES_MAX : 0) + i) * 2 * ADVERB_TEST_FRAME;
}

/* A frame to go from one address to another. */
static void post(struct nic *nic, dma_addr_t from, dma_addr_t to)
{
	nic->tx[nic->next] = (struct tx_entry){
		.address = cpu_to_le64(from),
		.length = cpu_to_le16(ADVERB_TEST_FRAME),
		.command = TX_COMMAND,
	};
	nic->rx[nic->next] = (struct rx_entry){ .address = cpu_to_le64(to) };
	nic->next = (nic->next + 1) % RING_ENTRIES;
}

static int nic_frames(struct nic *nic, struct adverb_test_frames *frames, bool let_go)
{
	const struct adverb_test_run *read = &frames->read, *write = &frames->write;
	unsigned int first = nic->next, count = read->count + write->count, i;
	dma_addr_t from, to;

	if (!run_valid(nic, read) || !run_valid(nic, write) || !count || (let_go && !read->count))
		return -EINVAL;
	for (i = 0; i < write->count; i++)
		if (copy_from_user(nic->frames + own_offset(true, i),
				   u64_to_user_ptr(write->data + i * ADVERB_TEST_FRAME), ADVERB_TEST_FRAME))
			return -EFAULT;
	from = in_view(nic, read);
	to = in_view(nic, write);
	if (let_go)
		imported_release(&nic->imported[read->slot]);
	for (i = 0; i < max(read->count, write->count); i++) {
		if (i < read->count)
			post(nic, from + i * PAGE_SIZE, nic->frames_address + own_offset(false, i));
		if (i < write->count)
			post(nic, nic->frames_address + own_offset(true, i), to + i * PAGE_SIZE);
	}
	dma_wmb();
	writel(nic->next, nic->registers + NIC_RX + RING_TAIL);
	writel(nic->next, nic->registers + NIC_TX + RING_TAIL);
	/* Long, as the machine that emulates the device may be busy. */
	for (i = 0; i < 2000 && !all_done(nic, first, count); i++)
		usleep_range(100, 200);
	frames->lost = 0;
	for (i = 0; i < count; i++)
		frames->lost += !(nic->rx[(first + i) % RING_ENTRIES].status & DONE);
	/* One that was never received leaves the rings out of step. */
	if (frames->lost)
		nic_start(nic);
	for (i = 0; i < read->count; i++)
		if (copy_to_user(u64_to_user_ptr(read->data + i * ADVERB_TEST_FRAME),
				 nic->frames + own_offset(false, i), ADVERB_TEST_FRAME))
			return -EFAULT;
	return 0;
}

static int nic_import(struct nic *nic, struct adverb_test_import __user *argument)
{
	struct adverb_test_import import;
	int error;

	if (copy_from_user(&import, argument, sizeof(import)))
		return -EFAULT;
	if (import.slot >= ADVERB_TEST_BUFFERS)
		return -EINVAL;
	imported_release(&nic->imported[import.slot]);
	if (import.fd < 0)
		return 0;
	error = imported_take(&nic->imported[import.slot], import.fd, &nic->pci->dev);
	return error ?: put_user(nic->imported[import.slot].address, &argument->address);
}

static struct nic *nic_of(struct file *filp)
{
	return container_of(filp->private_data, struct nic, misc);
}

static long nic_ioctl(struct file *filp, unsigned int command, unsigned long argument)
{
	void __user *pointer = (void __user *)argument;
	struct nic *nic = nic_of(filp);
	struct adverb_test_frames frames;
	long error = -ENOTTY;

	mutex_lock(&nic->lock);
	if (nic->gone) {
		error = -ENODEV;
	} else if (command == ADVERB_TEST_IMPORT) {
		error = nic_import(nic, pointer);
	} else if (command == ADVERB_TEST_FRAMES || command == ADVERB_TEST_LAST_FRAMES) {
		error = copy_from_user(&frames, pointer, sizeof(frames)) ? -EFAULT :
			nic_frames(nic, &frames, command == ADVERB_TEST_LAST_FRAMES);
		if (!error && copy_to_user(pointer, &frames, sizeof(frames)))
			error = -EFAULT;
	}
	mutex_unlock(&nic->lock);
	return error;
}

static void nic_free(struct kref *ref)
{
	kfree(container_of(ref, struct nic, ref));
}

static int nic_open(struct inode *inode, struct file *filp)
{
	struct nic *nic = nic_of(filp);

	kref_get(&nic->ref);
	mutex_lock(&nic->lock);
	nic->openers++;
	mutex_unlock(&nic->lock);
	return 0;
}

static int nic_release(struct inode *inode, struct file *filp)
{
	struct nic *nic = nic_of(filp);
	int i;

	mutex_lock(&nic->lock);
	nic->openers--;
	for (i = 0; !nic->openers && i < ADVERB_TEST_BUFFERS; i++)
		imported_release(&nic->imported[i]);
	mutex_unlock(&nic->lock);
	kref_put(&nic->ref, nic_free);
	return 0;
}

static const struct file_operations nic_fops = {
	.owner = THIS_MODULE,
	.open = nic_open,
	.unlocked_ioctl = nic_ioctl,
	.release = nic_release,
};

static int nic_set_up(struct nic *nic, struct pci_dev *pci)
{
	struct device *dev = &pci->dev;
	int error;

	nic->pci = pci;
	error = pcim_enable_device(pci);
	if (error)
		return error;
	pci_set_master(pci);
	nic->registers = pcim_iomap(pci, 0, 0);
	if (!nic->registers)
		return -ENODEV;
	error = dma_set_mask_and_coherent(dev, DMA_BIT_MASK(address_bits));
	if (error)
		return error;
	nic->tx = dmam_alloc_coherent(dev, RING_ENTRIES * sizeof(*nic->tx), &nic->tx_address, GFP_KERNEL);
	nic->rx = dmam_alloc_coherent(dev, RING_ENTRIES * sizeof(*nic->rx), &nic->rx_address, GFP_KERNEL);
	nic->frames = dmam_alloc_coherent(dev, own_offset(true, ADVERB_TEST_FRAMES_MAX), &nic->frames_address,
					  GFP_KERNEL);
	if (!nic->tx || !nic->rx || !nic->frames)
		return -ENOMEM;
	nic_start(nic);
	nic->misc = (struct miscdevice){ .minor = MISC_DYNAMIC_MINOR, .name = "adverb_test_nic", .fops = &nic_fops };
	pci_set_drvdata(pci, nic);
	return misc_register(&nic->misc);
}

static int nic_probe(struct pci_dev *pci, const struct pci_device_id *id)
{
	struct nic *nic = kzalloc(sizeof(*nic), GFP_KERNEL);
	int error;

	if (!nic)
		return -ENOMEM;
	kref_init(&nic->ref);
	mutex_init(&nic->lock);
	error = nic_set_up(nic, pci);
	if (error)
		kref_put(&nic->ref, nic_free);
	return error;
}

static void nic_remove(struct pci_dev *pci)
{
	struct nic *nic = pci_get_drvdata(pci);
	int i;

	misc_deregister(&nic->misc);
	writel(CTRL_RESET, nic->registers + NIC_CTRL);
	mutex_lock(&nic->lock);
	nic->gone = true;
	for (i = 0; i < ADVERB_TEST_BUFFERS; i++)
		imported_release(&nic->imported[i]);
	mutex_unlock(&nic->lock);
	kref_put(&nic->ref, nic_free);
}

/* No MODULE_DEVICE_TABLE: nothing loads this driver but a test. */
static const struct pci_device_id nic_ids[] = { { PCI_DEVICE(0x8086, 0x10d3) }, {} };

static struct pci_driver nic_driver = {
	.name = "adverb_test_nic",
	.id_table = nic_ids,
	.probe = nic_probe,
	.remove = nic_remove,
};

module_pci_driver(nic_driver);
ADVERB_IMPORT_DMA_BUF();
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Test driver for QEMU's e1000e in MAC loopback");
