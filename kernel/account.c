// SPDX-License-Identifier: GPL-2.0
/*
 * Who pays. Region memory itself is never pinned and so never charged; tables and IOMMU entries are, page
 * by page, twice: against the owner's RLIMIT_MEMLOCK (they show as VmLck), and against a cap on the user,
 * because one user can have many processes.
 */
#include <linux/cred.h>
#include <linux/list.h>
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

u32 adverb_max_regions = 65536;
u64 adverb_max_pages = (4ULL << 30) >> PAGE_SHIFT; /* tables of about 1 TiB built for two devices */

/* The current user, with one region more. */
struct adverb_user *adverb_user_get(int *error)
{
	struct adverb_user *user, *found = NULL;

	mutex_lock(&users_lock);
	list_for_each_entry(user, &users, node) {
		if (uid_eq(user->uid, current_uid())) {
			found = user;
			break;
		}
	}
	if (!found) {
		found = kzalloc(sizeof(*found), GFP_KERNEL_ACCOUNT);
		if (!found) {
			*error = -ENOMEM;
			goto out;
		}
		found->uid = current_uid();
		list_add(&found->node, &users);
	}
	if (found->regions >= READ_ONCE(adverb_max_regions)) {
		*error = -EDQUOT;
		if (!found->regions) {
			list_del(&found->node);
			kfree(found);
		}
		found = NULL;
		goto out;
	}
	found->regions++;
out:
	mutex_unlock(&users_lock);
	return found;
}

void adverb_user_put(struct adverb_user *user)
{
	mutex_lock(&users_lock);
	if (!--user->regions) {
		WARN_ON(user->pages);
		list_del(&user->node);
		kfree(user);
	}
	mutex_unlock(&users_lock);
}

kuid_t adverb_user_uid(const struct adverb_user *user)
{
	return user->uid;
}

/* EDQUOT: the user's cap; ENOMEM: the owner's RLIMIT_MEMLOCK. Takes mmap_lock. */
int adverb_charge(struct adverb_region *region, unsigned long pages)
{
	struct adverb_user *user = region->user;
	int error = 0;

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
