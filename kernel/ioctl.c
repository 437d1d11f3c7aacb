// SPDX-License-Identifier: GPL-2.0
/*
 * The ioctls of /dev/adverb: a row and a function each. Arguments are checked here, once; the objects trust
 * them.
 *
 * A structure may grow at its end. Its size is part of the command, so its command changes with it, and
 * min_size of its row stays: what an older caller's structure lacks reads as zero here, and is not written
 * back. A longer structure than ours is that of a newer module, and as unknown (-ENOTTY) as any other command
 * that has no row.
 */
#include <linux/build_bug.h>
#include <linux/fs.h>
#include <linux/nospec.h>
#include <linux/stddef.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include "adverb.h"

union ioctl_structure {
	struct adverb_version version;
	struct adverb_region_create create;
	struct adverb_region_destroy destroy;
	struct adverb_build build;
	struct adverb_fault_in fault_in;
	struct adverb_query query;
	struct adverb_give_back give_back;
	struct adverb_query_extent query_extent;
	struct adverb_device_check device_check;
	struct adverb_monitor_begin monitor;
	struct adverb_watch watch;
	struct adverb_unwatch unwatch;
	struct adverb_heard heard;
};

struct ioctl_call {
	struct file *filp;
	struct adverb_file *file; /* its own */
	void __user *argument;
	size_t size; /* of the structure there: between the sizes of the row */
	union ioctl_structure structure; /* ours, from the caller if the command has it that way */
};

/* Gives the structure back to the caller. */
static int reply(const struct ioctl_call *call)
{
	return copy_to_user(call->argument, &call->structure, call->size) ? -EFAULT : 0;
}

static int version(struct ioctl_call *call)
{
	call->structure.version = (struct adverb_version){
		.module = ADVERB_MODULE_VERSION,
		.minimum_library = ADVERB_MINIMUM_LIBRARY,
	};
	return reply(call);
}

static int region_create(struct ioctl_call *call)
{
	struct adverb_region_create *create = &call->structure.create;
	int number;

	if ((create->flags & ~ADVERB_REGION_READ_ONLY) || create->region || create->reserved)
		return -EINVAL;
	if (!create->extent_shift)
		create->extent_shift = ADVERB_EXTENT_SHIFT_MAX;
	if (create->extent_shift < ADVERB_EXTENT_SHIFT_MIN || create->extent_shift > ADVERB_EXTENT_SHIFT_MAX)
		return -EINVAL;
	number = adverb_region_create(call->file, create->start, create->length, create->extent_shift,
				      create->flags & ADVERB_REGION_READ_ONLY);
	if (number < 0)
		return number;
	create->region = number;
	/* The region stays if this fails: another thread may already use its number. */
	return reply(call);
}

static int region_destroy(struct ioctl_call *call)
{
	const struct adverb_region_destroy *destroy = &call->structure.destroy;
	struct adverb_region *region;
	int error;

	if (destroy->flags)
		return -EINVAL;
	region = adverb_region_get_own(call->file, destroy->region);
	if (IS_ERR(region))
		return PTR_ERR(region);
	error = adverb_region_destroy(region);
	adverb_region_put(region);
	return error;
}

static int build(struct ioctl_call *call)
{
	struct adverb_build __user *argument = call->argument;
	struct adverb_build *build = &call->structure.build;
	struct adverb_region *region;
	struct adverb_extent *extent;
	bool fresh = false;
	int error, fd;

	if (build->flags || build->view >= ADVERB_VIEWS)
		return -EINVAL;
	region = adverb_region_get_own(call->file, build->region);
	if (IS_ERR(region))
		return PTR_ERR(region);
	extent = adverb_region_build(region, build->address, build->view, &fresh);
	if (IS_ERR(extent)) {
		error = PTR_ERR(extent);
		goto put;
	}
	build->start = extent->start;
	build->length = extent->end - extent->start;
	build->table_offset = (u64)extent->views[build->view].table << ADVERB_TABLE_SHIFT;
	build->table_length = extent->views[build->view].words_size;
	build->fd = -1;
	/* Before a descriptor exists that the caller could not learn of. */
	error = reply(call);
	if (error) {
		atomic_dec(&extent->views[build->view].users);
		goto put;
	}
	fd = adverb_export(extent, build->view);
	if (fd < 0)
		error = fd;
	else
		/* If the page went in between, the descriptor is closed at exit. */
		error = put_user((s32)fd, &argument->fd);
put:
	/* What was made for nothing goes again, unless somebody has built it, too, and uses it. */
	if (error && fresh)
		adverb_region_give_back(region, build->address, build->view);
	adverb_region_put(region);
	return error;
}

static int give_back(struct ioctl_call *call)
{
	const struct adverb_give_back *give_back = &call->structure.give_back;
	struct adverb_region *region;
	int error;

	if (give_back->flags || give_back->view >= ADVERB_VIEWS)
		return -EINVAL;
	region = adverb_region_get_own(call->file, give_back->region);
	if (IS_ERR(region))
		return PTR_ERR(region);
	error = adverb_region_give_back(region, give_back->address,
					array_index_nospec(give_back->view, ADVERB_VIEWS));
	adverb_region_put(region);
	return error;
}

static int bring(struct adverb_region *region, struct adverb_range *range, u32 flags)
{
	unsigned int view = flags & ADVERB_FAULT_WRITE ? ADVERB_VIEW_WRITE : ADVERB_VIEW_READ;
	u64 end = range->start + range->length;

	if (!range->length || end < range->start)
		return -EINVAL;
	if (range->start < region->start || end > region->start + region->length)
		return -ERANGE;
	if (flags & ADVERB_FAULT_PRESENT)
		return adverb_show_present(region, range->start, range->length, view, &range->done);
	if (flags & ADVERB_FAULT_MARK)
		return adverb_mark(region, range->start, range->length, view, &range->done);
	return adverb_fault_in(region, range->start, range->length, view, flags & ADVERB_FAULT_NOWAIT, &range->done);
}

/* One after the other; returns the first error of one, or of what stopped all. */
static int bring_all(struct adverb_region *region, struct adverb_fault_in *fault_in)
{
	struct adverb_range __user *ranges = u64_to_user_ptr(fault_in->ranges);
	struct adverb_range range;
	int error = 0, first_error = 0;

	for (; fault_in->tried < fault_in->count && error != -EINTR; fault_in->tried++) {
		if (copy_from_user(&range, &ranges[fault_in->tried], sizeof(range)))
			return -EFAULT;
		range.done = 0;
		range.reserved = 0;
		error = bring(region, &range, fault_in->flags);
		range.error = error;
		if (!first_error)
			first_error = error;
		if (copy_to_user(&ranges[fault_in->tried], &range, sizeof(range)))
			return -EFAULT;
	}
	return first_error;
}

static int fault_in(struct ioctl_call *call)
{
	const u32 ways = ADVERB_FAULT_PRESENT | ADVERB_FAULT_NOWAIT | ADVERB_FAULT_MARK;
	struct adverb_fault_in *fault_in = &call->structure.fault_in;
	struct adverb_region *region;
	int error;

	if ((fault_in->flags & ~(ADVERB_FAULT_WRITE | ways)) || hweight32(fault_in->flags & ways) > 1 ||
	    fault_in->tried || !fault_in->count || fault_in->count > ADVERB_MAX_RANGES)
		return -EINVAL;
	region = adverb_region_get_own(call->file, fault_in->region);
	if (IS_ERR(region))
		return PTR_ERR(region);
	error = bring_all(region, fault_in);
	/* Also with an error. */
	if (reply(call))
		error = -EFAULT;
	adverb_region_put(region);
	return error;
}

static void tell_refusal(const struct adverb_region *region, char *reason)
{
	const char *refusal = READ_ONCE(region->refusal);

	strscpy(reason, refusal ? refusal : "", ADVERB_REASON_SIZE);
}

static int device_check(struct ioctl_call *call)
{
	struct adverb_device_check *check = &call->structure.device_check;
	struct adverb_region *region;
	struct adverb_extent *extent;
	int error;

	if (check->flags || check->reserved || check->view >= ADVERB_VIEWS ||
	    strnlen(check->device, ADVERB_DEVICE_SIZE) == ADVERB_DEVICE_SIZE)
		return -EINVAL;
	region = adverb_region_get_own(call->file, check->region);
	if (IS_ERR(region))
		return PTR_ERR(region);
	check->view = array_index_nospec(check->view, ADVERB_VIEWS);
	extent = adverb_region_view(region, check->address, check->view);
	if (IS_ERR(extent)) {
		error = PTR_ERR(extent);
		goto put;
	}
	error = adverb_device_check(extent, check->view, check->device);
	atomic_dec(&extent->views[check->view].users);
	check->reason[0] = 0;
	if (error == -EOPNOTSUPP)
		tell_refusal(region, check->reason);
	/* Also with an error. */
	if (reply(call))
		error = -EFAULT;
put:
	adverb_region_put(region);
	return error;
}

static int query_extent(struct ioctl_call *call)
{
	struct adverb_query_extent *query = &call->structure.query_extent;
	struct adverb_region *region;
	struct adverb_extent *extent;
	unsigned long index;
	int error;

	if (query->flags)
		return -EINVAL;
	region = adverb_region_get_own(call->file, query->region);
	if (IS_ERR(region))
		return PTR_ERR(region);
	index = query->address >> region->extent_shift;
	extent = adverb_extent_next(region, &index, ULONG_MAX);
	/* The region's last extent can end before the address, in the same aligned piece. */
	if (extent && extent->end <= query->address) {
		adverb_extent_put(extent);
		index++;
		extent = adverb_extent_next(region, &index, ULONG_MAX);
	}
	error = -ENOENT;
	if (extent) {
		adverb_extent_query(extent, query);
		adverb_extent_put(extent);
		error = reply(call);
	}
	adverb_region_put(region);
	return error;
}

static int query(struct ioctl_call *call)
{
	struct adverb_query *query = &call->structure.query;
	u64 pattern = query->pattern;
	struct adverb_region *region;
	int view, error = 0;

	if (query->flags)
		return -EINVAL;
	region = adverb_region_get_own(call->file, query->region);
	if (IS_ERR(region))
		return PTR_ERR(region);
	*query = (struct adverb_query){
		.region = region->number,
		.start = region->start,
		.length = region->length,
		.pattern = pattern,
		.extents = READ_ONCE(region->extent_count),
		.attachments = atomic_read(&region->attachments),
		.charged_pages = atomic64_read(&region->charged),
#define ADVERB_COUNTER(name, field) .field = atomic64_read(&region->counts[ADVERB_##name]),
		ADVERB_COUNTERS(ADVERB_COUNTER)
#undef ADVERB_COUNTER
	};
	for (view = 0; view < ADVERB_VIEWS; view++)
		query->resident[view] = atomic64_read(&region->resident[view]);
	if (pattern && copy_to_user(u64_to_user_ptr(pattern),
				    page_address(region->parking[ADVERB_VIEW_READ]), PAGE_SIZE))
		error = -EFAULT;
	tell_refusal(region, query->reason);
	if (reply(call))
		error = -EFAULT;
	adverb_region_put(region);
	return error;
}

static int monitor(struct ioctl_call *call)
{
	const struct adverb_monitor_begin *monitor = &call->structure.monitor;

	if (monitor->flags || monitor->wait_ms > ADVERB_MONITOR_WAIT_MAX)
		return -EINVAL;
	return adverb_monitor_begin(call->filp, monitor->wait_ms);
}

static int watch(struct ioctl_call *call)
{
	struct adverb_watch *watch = &call->structure.watch;
	int number, error;

	if (watch->flags || watch->watch)
		return -EINVAL;
	number = adverb_watch(call->file, watch->start, watch->length);
	if (number < 0)
		return number;
	watch->watch = number;
	error = reply(call);
	if (error) /* or nobody could end it */
		adverb_unwatch(call->file, number);
	return error;
}

static int unwatch(struct ioctl_call *call)
{
	const struct adverb_unwatch *unwatch = &call->structure.unwatch;

	return unwatch->flags ? -EINVAL : adverb_unwatch(call->file, unwatch->watch);
}

static int heard(struct ioctl_call *call)
{
	const struct adverb_heard *heard = &call->structure.heard;

	return heard->flags ? -EINVAL : adverb_heard(call->file, heard->number);
}

struct ioctl_row {
	unsigned int command; /* with the size of our structure */
	size_t min_size; /* of the structure as it was first */
	int (*function)(struct ioctl_call *call);
	const char *name;
};

#define FIRST_IOCTL _IOC_NR(ADVERB_IOC_VERSION)
#define IOCTL_ROW(_command, _function, _structure, _first_last_field)			\
	[_IOC_NR(_command) - FIRST_IOCTL] = {						\
		.command = (_command) +							\
			BUILD_BUG_ON_ZERO(_IOC_SIZE(_command) != sizeof(_structure)) +	\
			BUILD_BUG_ON_ZERO(sizeof(_structure) > sizeof(union ioctl_structure)), \
		.min_size = offsetofend(_structure, _first_last_field),			\
		.function = _function,							\
		.name = #_command,							\
	}

static const struct ioctl_row ioctl_rows[] = {
	IOCTL_ROW(ADVERB_IOC_VERSION, version, struct adverb_version, minimum_library),
	IOCTL_ROW(ADVERB_IOC_REGION_CREATE, region_create, struct adverb_region_create, reserved),
	IOCTL_ROW(ADVERB_IOC_REGION_DESTROY, region_destroy, struct adverb_region_destroy, flags),
	IOCTL_ROW(ADVERB_IOC_BUILD, build, struct adverb_build, table_length),
	IOCTL_ROW(ADVERB_IOC_FAULT_IN, fault_in, struct adverb_fault_in, tried),
	IOCTL_ROW(ADVERB_IOC_QUERY, query, struct adverb_query, reason),
	IOCTL_ROW(ADVERB_IOC_GIVE_BACK, give_back, struct adverb_give_back, flags),
	IOCTL_ROW(ADVERB_IOC_QUERY_EXTENT, query_extent, struct adverb_query_extent, mappings),
	IOCTL_ROW(ADVERB_IOC_DEVICE_CHECK, device_check, struct adverb_device_check, reason),
	IOCTL_ROW(ADVERB_IOC_MONITOR, monitor, struct adverb_monitor_begin, wait_ms),
	IOCTL_ROW(ADVERB_IOC_WATCH, watch, struct adverb_watch, watch),
	IOCTL_ROW(ADVERB_IOC_UNWATCH, unwatch, struct adverb_unwatch, flags),
	IOCTL_ROW(ADVERB_IOC_HEARD, heard, struct adverb_heard, flags),
};

static const struct ioctl_row *find_row(unsigned int command)
{
	unsigned int index = _IOC_NR(command) - FIRST_IOCTL; /* of those before the first: huge */
	const struct ioctl_row *row;

	if (index >= ARRAY_SIZE(ioctl_rows))
		return NULL;
	row = &ioctl_rows[array_index_nospec(index, ARRAY_SIZE(ioctl_rows))];
	if ((row->command & ~IOCSIZE_MASK) != (command & ~IOCSIZE_MASK) ||
	    _IOC_SIZE(command) < row->min_size || _IOC_SIZE(command) > _IOC_SIZE(row->command))
		return NULL;
	return row;
}

/**
 * adverb_ioctl - unlocked_ioctl of /dev/adverb
 * @filp: its private data is a struct adverb_file
 * @command: of adverb_uapi.h
 * @argument: the caller's address of the command's structure
 *
 * Return: 0; -ENOTTY: no such command; -EFAULT; or what the command's description says.
 */
long adverb_ioctl(struct file *filp, unsigned int command, unsigned long argument)
{
	const struct ioctl_row *row = find_row(command);
	struct ioctl_call call = {
		.filp = filp,
		.file = filp->private_data,
		.argument = (void __user *)argument,
		.size = _IOC_SIZE(command),
	};
	int error;

	if (!row)
		return -ENOTTY;
	if (_IOC_DIR(command) & _IOC_WRITE) {
		error = copy_struct_from_user(&call.structure, _IOC_SIZE(row->command), call.argument,
					      call.size);
		if (error)
			return error;
	}
	error = row->function(&call);
	if (error)
		pr_adverb(debug, "%s: %d\n", row->name, error);
	return error;
}
