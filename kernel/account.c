// SPDX-License-Identifier: GPL-2.0
/*
 * Who pays. Region memory itself is never pinned and so never charged; tables and IOMMU entries are, page
 * by page, twice: against the owner's RLIMIT_MEMLOCK (they show as VmLck), and against a cap on the user,
 * because one user can have many processes.
 */
#include <linux/cred.h>
#include <linux/list.h>
#include <linux/lockdep.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/slab.h>

#include "adverb.h"

struct adverb_user {
	struct list_head node;
	kuid_t uid;
	unsigned int regions;
	u64 pages;
};

static LIST_HEAD(users);
static DEFINE_MUTEX(users_lock);

/* Limits of each user, read and set without a lock: what is beyond a lower one already stays. */
u32 adverb_max_regions = 65536;
u64 adverb_max_pages = (4ULL << 30) >> PAGE_SHIFT; /* tables of about 1 TiB built for two devices */

/* The current user, made if it has no region yet. */
static struct adverb_user *current_user_locked(void)
{
	struct adverb_user *user;

	lockdep_assert_held(&users_lock);
	list_for_each_entry(user, &users, node)
		if (uid_eq(user->uid, current_uid()))
			return user;
	user = kzalloc(sizeof(*user), GFP_KERNEL_ACCOUNT);
	if (!user)
		return ERR_PTR(-ENOMEM);
	user->uid = current_uid();
	list_add(&user->node, &users);
	return user;
}

static void drop_if_unused_locked(struct adverb_user *user)
{
	lockdep_assert_held(&users_lock);
	if (user->regions)
		return;
	WARN_ON(user->pages);
	list_del(&user->node);
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
	return user->uid;
}

/**
 * adverb_charge - charge the owner of a region for pages of tables
 * @region: who pays
 * @pages: how many
 *
 * Takes the mmap_lock of the region's address space.
 *
 * Return: 0; -EDQUOT: the user's cap; -ENOMEM: the owner's
 * RLIMIT_MEMLOCK.
 */
int adverb_charge(struct adverb_region *region, unsigned long pages)
{
	struct adverb_user *user = region->user;
	int error = 0;

	might_lock(&region->mm->mmap_lock);
	mutex_lock(&users_lock);
	if (user->pages + pages > READ_ONCE(adverb_max_pages))
		error = -EDQUOT;
	else
		user->pages += pages;
	mutex_unlock(&users_lock);
	if (error)
		return error;
	error = account_locked_vm(region->mm, pages, true);
	if (error) {
		mutex_lock(&users_lock);
		user->pages -= pages;
		mutex_unlock(&users_lock);
		return error;
	}
	atomic64_add(pages, &region->charged);
	return 0;
}

/**
 * adverb_uncharge - give back what adverb_charge() took
 * @region: who paid
 * @pages: how many; 0 takes no lock
 *
 * Takes the mmap_lock of the region's address space.
 */
void adverb_uncharge(struct adverb_region *region, unsigned long pages)
{
	if (!pages)
		return;
	atomic64_sub(pages, &region->charged);
	account_locked_vm(region->mm, pages, false);
	mutex_lock(&users_lock);
	region->user->pages -= pages;
	mutex_unlock(&users_lock);
}
