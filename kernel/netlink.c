// SPDX-License-Identifier: GPL-2.0
/* Generic netlink: who uses the module and how much, its limits, and an event when it refuses something. */
#include <linux/cred.h>
#include <linux/lockdep.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/user_namespace.h>
#include <net/genetlink.h>
#include <net/sock.h>

#include "adverb.h"

static struct genl_family family;

static const struct nla_policy limits_policy[ADVERB_ATTR_MAX + 1] = {
	[ADVERB_ATTR_MAX_REGIONS] = { .type = NLA_U32 },
	[ADVERB_ATTR_MAX_PAGES] = { .type = NLA_U64 },
};

static const int counter_attributes[ADVERB_COUNTER_COUNT] = {
#define ADVERB_COUNTER(name, field) [ADVERB_##name] = ADVERB_ATTR_##name,
	ADVERB_COUNTERS(ADVERB_COUNTER)
#undef ADVERB_COUNTER
};

static bool put_counts(struct sk_buff *skb, const atomic64_t *counts)
{
	int i;

	for (i = 0; i < ADVERB_COUNTER_COUNT; i++)
		if (nla_put_u64_64bit(skb, counter_attributes[i], atomic64_read(&counts[i]),
				      ADVERB_ATTR_PAD))
			return false;
	return true;
}

static bool put_region(struct sk_buff *skb, struct adverb_region *region, struct user_namespace *users)
{
	lockdep_assert_held(&adverb_regions_lock);
	return !nla_put_u32(skb, ADVERB_ATTR_PID, pid_nr_ns(region->pid, task_active_pid_ns(current))) &&
	       !nla_put_u32(skb, ADVERB_ATTR_UID, from_kuid_munged(users, adverb_user_uid(region->user))) &&
	       !nla_put_u32(skb, ADVERB_ATTR_REGION, region->number) &&
	       !nla_put_u64_64bit(skb, ADVERB_ATTR_START, region->start, ADVERB_ATTR_PAD) &&
	       !nla_put_u64_64bit(skb, ADVERB_ATTR_LENGTH, region->length, ADVERB_ATTR_PAD) &&
	       !nla_put_u32(skb, ADVERB_ATTR_EXTENTS, READ_ONCE(region->extent_count)) &&
	       !nla_put_u32(skb, ADVERB_ATTR_ATTACHMENTS, atomic_read(&region->attachments)) &&
	       !nla_put_u64_64bit(skb, ADVERB_ATTR_CHARGED_PAGES, atomic64_read(&region->charged),
				  ADVERB_ATTR_PAD) &&
	       !nla_put_u32(skb, ADVERB_ATTR_DESTROYED, READ_ONCE(region->dead)) &&
	       put_counts(skb, region->counts);
}

/* Goes on after the n-th region; regions that come and go between two parts may be missed or seen twice. */
static int dump_regions(struct sk_buff *skb, struct netlink_callback *callback)
{
	bool all = netlink_capable(callback->skb, CAP_SYS_ADMIN);
	kuid_t asker = NETLINK_CREDS(callback->skb)->uid;
	struct adverb_region *region;
	long n = 0;
	void *header;

	mutex_lock(&adverb_regions_lock);
	list_for_each_entry(region, &adverb_regions, node) {
		if (n++ < callback->args[0] || (!all && !uid_eq(asker, adverb_user_uid(region->user))))
			continue;
		header = genlmsg_put(skb, NETLINK_CB(callback->skb).portid, callback->nlh->nlmsg_seq, &family,
				     NLM_F_MULTI, ADVERB_CMD_REGIONS);
		if (!header || !put_region(skb, region, sk_user_ns(NETLINK_CB(callback->skb).sk))) {
			if (header)
				genlmsg_cancel(skb, header);
			n--;
			break;
		}
		genlmsg_end(skb, header);
	}
	mutex_unlock(&adverb_regions_lock);
	callback->args[0] = n;
	return skb->len;
}

static int reply(struct genl_info *info, u8 command, bool (*fill)(struct sk_buff *skb))
{
	struct sk_buff *skb = genlmsg_new(NLMSG_DEFAULT_SIZE, GFP_KERNEL);
	void *header;

	if (!skb)
		return -ENOMEM;
	header = genlmsg_put_reply(skb, info, &family, 0, command);
	if (!header || !fill(skb)) {
		nlmsg_free(skb);
		return -EMSGSIZE;
	}
	genlmsg_end(skb, header);
	return genlmsg_reply(skb, info);
}

static bool fill_statistics(struct sk_buff *skb)
{
	return put_counts(skb, adverb_totals);
}

static bool fill_limits(struct sk_buff *skb)
{
	return !nla_put_u32(skb, ADVERB_ATTR_MAX_REGIONS, READ_ONCE(adverb_max_regions)) &&
	       !nla_put_u64_64bit(skb, ADVERB_ATTR_MAX_PAGES, READ_ONCE(adverb_max_pages), ADVERB_ATTR_PAD);
}

static int get_statistics(struct sk_buff *skb, struct genl_info *info)
{
	return reply(info, ADVERB_CMD_STATISTICS, fill_statistics);
}

static int get_limits(struct sk_buff *skb, struct genl_info *info)
{
	return reply(info, ADVERB_CMD_LIMITS, fill_limits);
}

static int set_limits(struct sk_buff *skb, struct genl_info *info)
{
	if (!info->attrs[ADVERB_ATTR_MAX_REGIONS] && !info->attrs[ADVERB_ATTR_MAX_PAGES])
		return -EINVAL;
	if (info->attrs[ADVERB_ATTR_MAX_REGIONS])
		WRITE_ONCE(adverb_max_regions, nla_get_u32(info->attrs[ADVERB_ATTR_MAX_REGIONS]));
	if (info->attrs[ADVERB_ATTR_MAX_PAGES])
		WRITE_ONCE(adverb_max_pages, nla_get_u64(info->attrs[ADVERB_ATTR_MAX_PAGES]));
	return 0;
}

static const struct genl_ops operations[] = {
	{ .cmd = ADVERB_CMD_REGIONS, .dumpit = dump_regions },
	{ .cmd = ADVERB_CMD_STATISTICS, .doit = get_statistics },
	{ .cmd = ADVERB_CMD_LIMITS, .doit = get_limits },
	{ .cmd = ADVERB_CMD_SET_LIMITS, .doit = set_limits, .flags = GENL_ADMIN_PERM },
};

/* Refusals name devices and processes of all users, so who may list those may listen. */
static const struct genl_multicast_group groups[] = {
	{ .name = ADVERB_GENL_EVENTS, .flags = GENL_MCAST_CAP_SYS_ADMIN },
};

static struct genl_family family = {
	.name = ADVERB_GENL_NAME,
	.version = ADVERB_GENL_VERSION,
	.maxattr = ADVERB_ATTR_MAX,
	.policy = limits_policy,
	.module = THIS_MODULE,
	.ops = operations,
	.n_ops = ARRAY_SIZE(operations),
	.mcgrps = groups,
	.n_mcgrps = ARRAY_SIZE(groups),
	.resv_start_op = ADVERB_CMD_REGIONS,
};

/**
 * adverb_event - tell who listens that something was refused
 * @region: whose program it happened to
 * @reason: what happened, for a person
 *
 * Lost without a word when memory is short. May sleep.
 */
void adverb_event(struct adverb_region *region, const char *reason)
{
	struct sk_buff *skb = genlmsg_new(NLMSG_DEFAULT_SIZE, GFP_KERNEL);
	void *header;

	if (!skb)
		return;
	header = genlmsg_put(skb, 0, 0, &family, 0, ADVERB_CMD_EVENT);
	if (!header || nla_put_u32(skb, ADVERB_ATTR_PID, pid_nr(region->pid)) ||
	    nla_put_u32(skb, ADVERB_ATTR_REGION, region->number) ||
	    nla_put_string(skb, ADVERB_ATTR_REASON, reason)) {
		nlmsg_free(skb);
		return;
	}
	genlmsg_end(skb, header);
	genlmsg_multicast(&family, skb, 0, 0, GFP_KERNEL);
}

/**
 * adverb_netlink_init - register the family
 *
 * Return: 0 or -errno.
 */
int __init adverb_netlink_init(void)
{
	return genl_register_family(&family);
}

/**
 * adverb_netlink_exit - take the family away
 */
void adverb_netlink_exit(void)
{
	genl_unregister_family(&family);
}
