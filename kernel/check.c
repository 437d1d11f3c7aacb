// SPDX-License-Identifier: GPL-2.0
/*
 * Whether a device could attach a view, for who wants to know before a queue pair depends on it. There is no list of
 * what would be refused, as the proof is made at attach (retarget.c): so what an attachment needs is made, and taken away.
 */
#include <linux/capability.h>
#include <linux/device.h>
#include <linux/lockdep.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/string.h>

#include "adverb.h"

/* Or those who ask would find each other's lock of the device, and take it for its driver's. */
static DEFINE_MUTEX(one_asks);

static int is_rdma(struct device *child, void *data)
{
	return child->class && !strcmp(child->class->name, "infiniband");
}

/* Entries made for a device of another kind, a disk's, would be a nuisance to whoever uses that. */
static bool may_ask(struct device *dev)
{
	return device_for_each_child(dev, NULL, is_rdma) || capable(CAP_SYS_ADMIN);
}

static int try_to_attach(struct adverb_extent *extent, unsigned int view, struct device *dev)
{
	struct adverb_mapping *mapping;

	device_lock_assert(dev);
	/* What addresses a device reaches its driver says. */
	if (!dev->driver)
		return -ENODEV;
	mapping = adverb_mapping_get(extent, view, dev);
	if (IS_ERR(mapping))
		return PTR_ERR(mapping);
	adverb_mapping_put(mapping, dev);
	return 0;
}

/**
 * adverb_device_check - see whether a device could attach a view
 * @extent: whose
 * @view: built, and in use by the caller
 * @name: of the device on the PCI bus
 *
 * May sleep; takes no mmap_lock. A refusal is counted, and told, as one of an attachment.
 *
 * Return: 0: it could; -ENODEV: there is no such device, or no driver has it; -EPERM: it is no RDMA device, and the
 * caller no administrator; -EBUSY: its driver is being changed; -EINTR; or what adverb_mapping_get() returns.
 */
int adverb_device_check(struct adverb_extent *extent, unsigned int view, const char *name)
{
	struct device *dev = bus_find_device_by_name(&pci_bus_type, NULL, name);
	int error;

	if (!dev)
		return -ENODEV;
	if (!may_ask(dev)) {
		error = -EPERM;
	} else if (mutex_lock_killable(&one_asks)) {
		error = -EINTR;
	} else if (!device_trylock(dev)) { /* a probe that hangs would be waited for */
		mutex_unlock(&one_asks);
		error = -EBUSY;
	} else {
		error = try_to_attach(extent, view, dev);
		device_unlock(dev);
		mutex_unlock(&one_asks);
	}
	put_device(dev);
	return error;
}
