// SPDX-License-Identifier: GPL-2.0
/*
 * Who pays. Region memory itself is never pinned and so never charged; tables and IOMMU entries are, page
 * by page, twice: as locked memory of the user who created the region, where io_uring, perf and iommufd charge
 * theirs, against that process' RLIMIT_MEMLOCK of then; and against a cap on the user.
 *
 * Not to the address space, which would show them as VmLck: that takes the mmap_lock of the owner, who can hold
 * it for as long as it likes, and charges are given back by whoever lets go last.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/list.h>
#include <linux/lockdep.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>
#include <linux/slab.h>

#include "adverb.h"

struct adverb_user {
	struct list_head node;
	struct user_struct *user;
	unsigned int regions; /* under users_lock */
	atomic_long_t pages;
};

static LIST_HEAD(users);
static DEFINE_MUTEX(users_lock);

/*
 * Limits of each user, read and set without a lock: what is beyond a lower one already stays. That of regions bounds
 * what others wait for: whoever takes a page away, a stranger who cuts a file among them, calls the notifier of each
 * extent it is in. An administrator can raise it.
 */
u32 adverb_max_regions = 8192;
u64 adverb_max_pages = (4ULL << 30) >> PAGE_SHIFT; /* tables of about 1 TiB built for two devices */

/* The current user, made if it has no region yet. */
static struct adverb_user *current_user_locked(void)
{
	struct adverb_user *user;

	lockdep_assert_held(&users_lock);
	list_for_each_entry(user, &users, node)
		if (user->user == current_user())
			return user;
	user = kzalloc(sizeof(*user), GFP_KERNEL_ACCOUNT);
	if (!user)
		return ERR_PTR(-ENOMEM);
	user->user = get_uid(current_user());
	list_add(&user->node, &users);
	return user;
}

static void drop_if_unused_locked(struct adverb_user *user)
{
	lockdep_assert_held(&users_lock);
	if (user->regions)
		return;
	WARN_ON(atomic_long_read(&user->pages));
	list_del(&user->node);
	free_uid(user->user);
	kfree(user);
}

/**
 * adverb_user_get - count one region more for the current user
 *
 * May sleep.
 *
 * Return: the user, for adverb_user_put(); ERR_PTR(-EDQUOT): it has as many regions as one may
 * have; ERR_PTR(-ENOMEM).
 */
struct adverb_user *adverb_user_get(void)
{
	struct adverb_user *user;

	mutex_lock(&users_lock);
	user = current_user_locked();
	if (IS_ERR(user))
		goto unlock;
	if (user->regions >= READ_ONCE(adverb_max_regions)) {
		drop_if_unused_locked(user);
		user = ERR_PTR(-EDQUOT);
		goto unlock;
	}
	user->regions++;
unlock:
	mutex_unlock(&users_lock);
	return user;
}

/**
 * adverb_user_put - count one region less for a user
 * @user: of adverb_user_get(); what it was charged for this region is given back already
 *
 * May sleep.
 */
void adverb_user_put(struct adverb_user *user)
{
	mutex_lock(&users_lock);
	user->regions--;
	drop_if_unused_locked(user);
	mutex_unlock(&users_lock);
}

/**
 * adverb_user_uid - who a user is
 * @user: of adverb_user_get()
 *
 * Return: its uid, which never changes.
 */
kuid_t adverb_user_uid(const struct adverb_user *user)
{
	return user->user->uid;
}

/**
 * adverb_memlock - how much locked memory the current process may have its user charged for
 *
 * Return: pages.
 */
unsigned long adverb_memlock(void)
{
	return capable(CAP_IPC_LOCK) ? ULONG_MAX : rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT;
}

/* Adds to what is used, unless that would be beyond the limit. */
static bool take(atomic_long_t *used, unsigned long pages, unsigned long limit)
{
	long before = atomic_long_read(used);

	do {
		if (pages > limit || before > limit - pages)
			return false;
	} while (!atomic_long_try_cmpxchg(used, &before, before + pages));
	return true;
}

/**
 * adverb_charge - charge the creator of a region for pages of tables
 * @region: who pays
 * @pages: how many
 *
 * Any context, any locks.
 *
 * Return: 0; -EDQUOT: the user's cap; -ENOMEM: RLIMIT_MEMLOCK, as it was when the region was created.
 */
int adverb_charge(struct adverb_region *region, unsigned long pages)
{
	struct adverb_user *user = region->user;

	if (!take(&user->pages, pages, READ_ONCE(adverb_max_pages)))
		return -EDQUOT;
	if (!take(&user->user->locked_vm, pages, region->memlock)) {
		atomic_long_sub(pages, &user->pages);
		return -ENOMEM;
	}
	atomic64_add(pages, &region->charged);
	return 0;
}

/**
 * adverb_uncharge - give back what adverb_charge() took
 * @region: who paid
 * @pages: how many
 *
 * Any context, any locks.
 */
void adverb_uncharge(struct adverb_region *region, unsigned long pages)
{
	atomic64_sub(pages, &region->charged);
	atomic_long_sub(pages, &region->user->user->locked_vm);
	atomic_long_sub(pages, &region->user->pages);
}
