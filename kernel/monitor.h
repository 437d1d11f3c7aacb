/* SPDX-License-Identifier: GPL-2.0 */
/* A monitor of an address space, between watch.c, which has them, and change.c, which has what they tell. */
#ifndef ADVERB_MONITOR_H
#define ADVERB_MONITOR_H

#include <linux/err.h>
#include <linux/fs.h>
#include <linux/interval_tree.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/wait.h>
#include <linux/xarray.h>

#include "adverb.h"

#define CHANGES 256 /* told and not read; the last takes in what there is no room for */

struct adverb_monitor {
	struct mmu_notifier notifier;
	struct hlist_node node; /* of monitors */
	struct file *filp; /* whose monitor it is; who waits has a reference */
	fl_owner_t owner; /* the descriptors of who began; compared only */
	unsigned int wait; /* jiffies */
	struct mutex lock; /* watches come and go */
	struct xarray numbers; /* number -> watch */
	rwlock_t tree_lock; /* taken below all that reclaim may hold */
	struct rb_root_cached tree;
	spinlock_t changes_lock; /* all below */
	struct adverb_change changes[CHANGES];
	u64 told; /* changes so far */
	u64 read;
	u64 heard;
	bool closing;
	struct pid *reader; /* the thread that read last: it waits for nobody */
	wait_queue_head_t readers;
	wait_queue_head_t callers;
	struct list_head waiters; /* who has yet to come back; under changes_lock */
};

/* The file's monitor, if it is of the caller's own address space. */
static inline struct adverb_monitor *own_monitor(struct adverb_file *file)
{
	struct adverb_monitor *monitor = smp_load_acquire(&file->monitor);

	if (!monitor)
		return ERR_PTR(-ENXIO);
	if (monitor->notifier.mm != current->mm)
		return ERR_PTR(-EPERM);
	return monitor;
}

/* change.c */
extern const struct mmu_notifier_ops adverb_monitor_ops;
void adverb_let_all_go(struct adverb_monitor *monitor);

#endif
