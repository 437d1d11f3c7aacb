// SPDX-License-Identifier: GPL-2.0
/*
 * Changes of what addresses mean, told to who watches them.
 *
 * A notifier of the whole address space looks into a tree of what is watched, when the kernel has taken pages away. A
 * call of the owner's own then waits until the owner's library has heard of it, for as long as the library allows: on its
 * way back to the program, when it holds no lock any more that the library could need. Nobody else waits.
 *
 * Only what changes by somebody's will is told: pages that move or are written out stay what they are.
 */
#include <linux/fs.h>
#include <linux/interval_tree.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/task_work.h>
#include <linux/uaccess.h>
#include <linux/wait.h>

#include "adverb.h"
#include "monitor.h"

#define CHANGES_AT_ONCE 16

/* Of a call that goes on when its change has been heard of. */
struct waiter {
	struct callback_head work;
	struct list_head node;
	struct task_struct *task;
	struct adverb_monitor *monitor;
	u64 number; /* of its last change */
};

/*
 * What is done to the range by somebody's will; 0: nothing. The kernel's own threads, and reclaim in whose ever call,
 * take pages away that come back as they were; so does NUMA balancing, which unlike mprotect() shares the mmap_lock.
 */
static u32 kind_of(const struct mmu_notifier_range *range)
{
	switch (range->event) {
	case MMU_NOTIFY_UNMAP:
		return ADVERB_CHANGE_UNMAPPED;
	case MMU_NOTIFY_CLEAR:
		/* Loop devices and completions of direct I/O cut files in work of the kernel's. */
		if ((current->flags & PF_MEMALLOC) || (current->flags & (PF_KTHREAD | PF_WQ_WORKER)) == PF_KTHREAD)
			return 0;
		return ADVERB_CHANGE_CLEARED;
	case MMU_NOTIFY_PROTECTION_VMA:
		if (mmap_read_trylock(range->mm)) {
			mmap_read_unlock(range->mm);
			return 0;
		}
		return ADVERB_CHANGE_PROTECTED;
	default:
		return 0;
	}
}

static bool is_watched(struct adverb_monitor *monitor, unsigned long start, unsigned long end)
{
	bool found;

	read_lock(&monitor->tree_lock);
	found = interval_tree_iter_first(&monitor->tree, start, end - 1);
	read_unlock(&monitor->tree_lock);
	return found;
}

/* Returns the change's number. */
static u64 tell(struct adverb_monitor *monitor, u64 start, u64 end, u32 kind)
{
	struct adverb_change *change;
	u64 number;

	spin_lock(&monitor->changes_lock);
	if (monitor->told - monitor->read == CHANGES) {
		change = &monitor->changes[(monitor->told - 1) % CHANGES];
		change->start = min(change->start, start);
		change->end = max(change->end, end);
		change->kind |= kind;
	} else {
		change = &monitor->changes[monitor->told++ % CHANGES];
		*change = (struct adverb_change){ .start = start, .end = end, .kind = kind };
	}
	number = change->number = monitor->told;
	spin_unlock(&monitor->changes_lock);
	wake_up_interruptible_poll(&monitor->readers, EPOLLIN | EPOLLRDNORM);
	return number;
}

static bool has_heard(struct adverb_monitor *monitor, u64 number)
{
	bool heard;

	spin_lock(&monitor->changes_lock);
	heard = monitor->heard >= number || monitor->closing;
	spin_unlock(&monitor->changes_lock);
	return heard;
}

/* Whoever calls for another address space, or dies, has nothing to wait for; nor may the one that is waited for. */
static bool may_wait(struct adverb_monitor *monitor, const struct mmu_notifier_range *range)
{
	return monitor->wait && mmu_notifier_range_blockable(range) && current->mm == range->mm &&
	       !(current->flags & (PF_KTHREAD | PF_USER_WORKER | PF_MEMALLOC | PF_EXITING)) &&
	       READ_ONCE(monitor->reader) != task_pid(current);
}

static void waiter_work(struct callback_head *work)
{
	struct waiter *waiter = container_of(work, struct waiter, work);
	struct adverb_monitor *monitor = waiter->monitor;
	struct file *filp = monitor->filp;

	spin_lock(&monitor->changes_lock);
	list_del(&waiter->node);
	spin_unlock(&monitor->changes_lock);
	/* As wait_event_killable_timeout(), but that it may be frozen: no lock is held here. */
	___wait_event(monitor->callers, ___wait_cond_timeout(has_heard(monitor, waiter->number)),
		      (TASK_KILLABLE | TASK_FREEZABLE), 0, monitor->wait, __ret = schedule_timeout(__ret));
	kfree(waiter);
	/* The last reference is dropped by work of the kernel's own, so the module stays until this has returned. */
	fput(filp);
}

/*
 * A thread waits once, whatever it changes in a call. Nothing may be waited for here, memory included: who finds none goes
 * on unheard.
 */
static void wait_on_the_way_back(struct adverb_monitor *monitor, u64 number)
{
	struct waiter *waiter;

	spin_lock(&monitor->changes_lock);
	list_for_each_entry(waiter, &monitor->waiters, node)
		if (waiter->task == current) {
			waiter->number = number;
			spin_unlock(&monitor->changes_lock);
			return;
		}
	spin_unlock(&monitor->changes_lock);
	waiter = kmalloc(sizeof(*waiter), GFP_ATOMIC | __GFP_NOWARN | __GFP_ACCOUNT);
	if (!waiter)
		return;
	if (!adverb_get_file(monitor->filp)) /* it is being released, and all go on */
		goto free;
	waiter->task = current;
	waiter->monitor = monitor;
	waiter->number = number;
	init_task_work(&waiter->work, waiter_work);
	if (task_work_add(current, &waiter->work, TWA_RESUME))
		goto put; /* it exits */
	/* It runs when this thread comes back, so not yet. */
	spin_lock(&monitor->changes_lock);
	list_add(&waiter->node, &monitor->waiters);
	spin_unlock(&monitor->changes_lock);
	return;
put:
	fput(monitor->filp);
free:
	kfree(waiter);
}

/* The entries are gone; the call is about to go on. */
static void monitor_range_end(struct mmu_notifier *notifier, const struct mmu_notifier_range *range)
{
	struct adverb_monitor *monitor = container_of(notifier, struct adverb_monitor, notifier);
	u32 kind = kind_of(range);
	u64 number;

	if (!kind || range->start >= range->end || !is_watched(monitor, range->start, range->end))
		return;
	number = tell(monitor, range->start, range->end, kind);
	if (may_wait(monitor, range))
		wait_on_the_way_back(monitor, number);
}

const struct mmu_notifier_ops adverb_monitor_ops = {
	.invalidate_range_end = monitor_range_end,
};

/* Nobody waits to be heard of any more. */
void adverb_let_all_go(struct adverb_monitor *monitor)
{
	spin_lock(&monitor->changes_lock);
	monitor->closing = true;
	spin_unlock(&monitor->changes_lock);
	wake_up_all(&monitor->callers);
}

/**
 * adverb_heard - let go on who waits for changes to be heard of
 * @file: that told of them
 * @number: of the last that was
 *
 * Any context that may take a spin lock.
 *
 * Return: 0; -EINVAL: none of this number was told; -ENXIO: the file tells of nothing; -EPERM: of another address space.
 */
int adverb_heard(struct adverb_file *file, u64 number)
{
	struct adverb_monitor *monitor = own_monitor(file);
	int error = 0;

	if (IS_ERR(monitor))
		return PTR_ERR(monitor);
	spin_lock(&monitor->changes_lock);
	if (number > monitor->told)
		error = -EINVAL;
	else
		monitor->heard = max(monitor->heard, number);
	spin_unlock(&monitor->changes_lock);
	wake_up_all(&monitor->callers);
	return error;
}

/* Takes some changes off; returns how many. */
static unsigned int take_changes(struct adverb_monitor *monitor, struct adverb_change *changes, size_t most)
{
	struct pid *reader = get_task_pid(current, PIDTYPE_PID);
	unsigned int n = 0;

	spin_lock(&monitor->changes_lock);
	swap(monitor->reader, reader);
	while (n < most && monitor->read != monitor->told)
		changes[n++] = monitor->changes[monitor->read++ % CHANGES];
	spin_unlock(&monitor->changes_lock);
	put_pid(reader);
	return n;
}

static bool has_changes(struct adverb_monitor *monitor)
{
	bool any;

	spin_lock(&monitor->changes_lock);
	any = monitor->read != monitor->told;
	spin_unlock(&monitor->changes_lock);
	return any;
}

/**
 * adverb_changes_read - read() of /dev/adverb: changes that were told, the oldest first
 * @filp: its private data is a struct adverb_file
 * @to: room for whole struct adverb_change
 * @size: bytes
 * @position: not used
 *
 * To read is not to have heard: adverb_heard() is. The thread that reads is not waited for by its own changes.
 *
 * Return: bytes; -EINVAL: room for none; -EAGAIN: none, and the file does not block; -ENXIO, -EPERM as adverb_heard();
 * -ERESTARTSYS; -EFAULT, and then all memory is told of.
 */
ssize_t adverb_changes_read(struct file *filp, char __user *to, size_t size, loff_t *position)
{
	struct adverb_monitor *monitor = own_monitor(filp->private_data);
	struct adverb_change changes[CHANGES_AT_ONCE];
	size_t most = min(size / sizeof(changes[0]), ARRAY_SIZE(changes));
	unsigned int n;

	if (IS_ERR(monitor))
		return PTR_ERR(monitor);
	if (!most)
		return -EINVAL;
	while (!(n = take_changes(monitor, changes, most))) {
		if (filp->f_flags & O_NONBLOCK)
			return -EAGAIN;
		if (wait_event_interruptible(monitor->readers, has_changes(monitor)))
			return -ERESTARTSYS;
	}
	if (copy_to_user(to, changes, n * sizeof(changes[0]))) {
		tell(monitor, 0, TASK_SIZE_MAX, ADVERB_CHANGE_UNMAPPED);
		return -EFAULT;
	}
	return n * sizeof(changes[0]);
}

/**
 * adverb_changes_poll - poll() of /dev/adverb
 * @filp: its private data is a struct adverb_file
 * @table: of who polls
 *
 * Return: EPOLLIN if there are changes to be read; EPOLLERR if the file tells of none.
 */
__poll_t adverb_changes_poll(struct file *filp, struct poll_table_struct *table)
{
	struct adverb_file *file = filp->private_data;
	struct adverb_monitor *monitor = smp_load_acquire(&file->monitor);

	if (!monitor)
		return EPOLLERR;
	poll_wait(filp, &monitor->readers, table);
	return has_changes(monitor) ? EPOLLIN | EPOLLRDNORM : 0;
}
