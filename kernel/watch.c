// SPDX-License-Identifier: GPL-2.0
/*
 * Monitors: each watches parts of its owner's address space, for a library that has pages registered there, which are not
 * the program's any more once something else lies at the addresses. What they tell of is change.c's.
 */
#include <linux/fdtable.h>
#include <linux/fs.h>
#include <linux/hashtable.h>
#include <linux/interval_tree.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "adverb.h"
#include "monitor.h"

#define MONITORS_OF_MM 4
#define WATCHES XA_LIMIT(1, 1U << 20)

/* All there are, by the address space. */
static DEFINE_HASHTABLE(monitors, 10);
static DEFINE_MUTEX(monitors_lock);

struct watch {
	struct interval_tree_node node;
};

/* Each is asked about each invalidation of the address space, by whoever invalidates. */
static int count_in(struct adverb_monitor *monitor)
{
	struct adverb_monitor *other;
	unsigned int n = 0;

	monitor->notifier.mm = current->mm;
	mutex_lock(&monitors_lock);
	hash_for_each_possible(monitors, other, node, (unsigned long)current->mm)
		n += other->notifier.mm == current->mm;
	if (n < MONITORS_OF_MM)
		hash_add(monitors, &monitor->node, (unsigned long)current->mm);
	mutex_unlock(&monitors_lock);
	return n < MONITORS_OF_MM ? 0 : -EDQUOT;
}

static void count_out(struct adverb_monitor *monitor)
{
	mutex_lock(&monitors_lock);
	hash_del(&monitor->node);
	mutex_unlock(&monitors_lock);
}

/**
 * adverb_monitor_begin - let a file tell of changes of the caller's address space
 * @filp: that does not yet; its private data is a struct adverb_file
 * @wait_ms: how long a call that changes something watched waits at most until that was heard of
 *
 * May sleep, and takes mmap_lock.
 *
 * Return: 0; -EPERM: another process opened it; -EBUSY: it tells of some already; -EDQUOT: enough others do; -ENOMEM;
 * -EINTR.
 */
int adverb_monitor_begin(struct file *filp, unsigned int wait_ms)
{
	struct adverb_file *file = filp->private_data;
	struct adverb_monitor *monitor;
	int error;

	if (file->mm != current->mm)
		return -EPERM;
	monitor = kvzalloc(sizeof(*monitor), GFP_KERNEL_ACCOUNT);
	if (!monitor)
		return -ENOMEM;
	monitor->filp = filp;
	monitor->owner = current->files;
	monitor->notifier.ops = &adverb_monitor_ops;
	monitor->wait = msecs_to_jiffies(wait_ms);
	mutex_init(&monitor->lock);
	xa_init_flags(&monitor->numbers, XA_FLAGS_ALLOC1);
	rwlock_init(&monitor->tree_lock);
	monitor->tree = RB_ROOT_CACHED;
	spin_lock_init(&monitor->changes_lock);
	init_waitqueue_head(&monitor->readers);
	init_waitqueue_head(&monitor->callers);
	INIT_LIST_HEAD(&monitor->waiters);
	error = count_in(monitor);
	if (error)
		goto free;
	error = mmu_notifier_register(&monitor->notifier, current->mm);
	if (error)
		goto count_out;
	/* Whoever finds it finds all of it. */
	if (cmpxchg_release(&file->monitor, NULL, monitor)) {
		error = -EBUSY;
		goto unregister;
	}
	return 0;

unregister:
	mmu_notifier_unregister(&monitor->notifier, current->mm);
count_out:
	count_out(monitor);
free:
	kvfree(monitor);
	return error;
}

/* For iterate_fd(). */
static int is_file(const void *filp, struct file *one, unsigned int fd)
{
	return one == filp;
}

/**
 * adverb_monitor_flush - close() of a descriptor of a file
 * @filp: its private data is a struct adverb_file
 * @id: of whose descriptors it was one
 *
 * By the owner, who has no other: nobody waits any more to be heard of. A child that inherited the file may keep it open for long; what
 * that closes is its own, also if it has the owner's memory, as after vfork().
 *
 * Return: 0.
 */
int adverb_monitor_flush(struct file *filp, fl_owner_t id)
{
	struct adverb_file *file = filp->private_data;
	struct adverb_monitor *monitor = smp_load_acquire(&file->monitor);

	if (monitor && monitor->owner == id && !iterate_fd(id, 0, is_file, filp))
		adverb_let_all_go(monitor);
	return 0;
}

/**
 * adverb_monitor_end - end what adverb_monitor_begin() began
 * @file: nobody else uses it any more, so nobody waits
 *
 * May sleep; takes no mmap_lock.
 */
void adverb_monitor_end(struct adverb_file *file)
{
	struct adverb_monitor *monitor = file->monitor;
	unsigned long number;
	struct watch *watch;

	if (!monitor)
		return;
	WARN_ON(!list_empty(&monitor->waiters)); /* each has a reference to the file */
	count_out(monitor); /* while the address space cannot be another yet */
	mmu_notifier_unregister(&monitor->notifier, monitor->notifier.mm);
	xa_for_each(&monitor->numbers, number, watch) {
		kfree(watch);
		cond_resched();
	}
	xa_destroy(&monitor->numbers);
	put_pid(monitor->reader);
	kvfree(monitor);
}

/**
 * adverb_watch - tell of changes of a range
 * @file: that tells
 * @start: first byte
 * @length: bytes; whole pages are watched
 *
 * Whatever is mapped there, or will be. May sleep.
 *
 * Return: the watch's number, from 1 on; -EINVAL: no range that a program could have; -ENXIO: the file tells of
 * nothing; -EPERM: of another address space; -EBUSY: it has no number left; -ENOMEM.
 */
int adverb_watch(struct adverb_file *file, u64 start, u64 length)
{
	struct adverb_monitor *monitor = own_monitor(file);
	struct watch *watch;
	u32 number;
	int error;

	if (IS_ERR(monitor))
		return PTR_ERR(monitor);
	if (!length || start + length < start || start + length > TASK_SIZE_MAX ||
	    PAGE_ALIGN(start + length) > TASK_SIZE_MAX)
		return -EINVAL;
	watch = kzalloc(sizeof(*watch), GFP_KERNEL_ACCOUNT);
	if (!watch)
		return -ENOMEM;
	watch->node.start = start & PAGE_MASK;
	watch->node.last = PAGE_ALIGN(start + length) - 1;
	mutex_lock(&monitor->lock);
	error = xa_alloc(&monitor->numbers, &number, watch, WATCHES, GFP_KERNEL_ACCOUNT);
	if (!error) {
		write_lock(&monitor->tree_lock);
		interval_tree_insert(&watch->node, &monitor->tree);
		write_unlock(&monitor->tree_lock);
	}
	mutex_unlock(&monitor->lock);
	if (error) {
		kfree(watch);
		return error;
	}
	return number;
}

/**
 * adverb_unwatch - tell of them no more
 * @file: that tells
 * @number: of adverb_watch()
 *
 * May sleep. What was told is still to be read.
 *
 * Return: 0; -ENOENT: there is no such watch; -ENXIO: the file tells of nothing; -EPERM: of another address space.
 */
int adverb_unwatch(struct adverb_file *file, u32 number)
{
	struct adverb_monitor *monitor = own_monitor(file);
	struct watch *watch;

	if (IS_ERR(monitor))
		return PTR_ERR(monitor);
	mutex_lock(&monitor->lock);
	watch = xa_erase(&monitor->numbers, number);
	if (watch) {
		write_lock(&monitor->tree_lock);
		interval_tree_remove(&watch->node, &monitor->tree);
		write_unlock(&monitor->tree_lock);
	}
	mutex_unlock(&monitor->lock);
	kfree(watch);
	return watch ? 0 : -ENOENT;
}
