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
#include <linux/uaccess.h>

#include "adverb.h"

union ioctl_structure {
	struct adverb_version version;
	struct adverb_region_create create;
	struct adverb_region_destroy destroy;
	struct adverb_build build;
	struct adverb_fault_in fault_in;
	struct adverb_query query;
};

struct ioctl_call {
	struct adverb_file *file;
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

	if (create->flags || create->region)
		return -EINVAL;
	number = adverb_region_create(call->file, create->start, create->length);
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
	int error, fd;

	if (build->flags || build->view >= ADVERB_VIEWS)
		return -EINVAL;
	region = adverb_region_get_own(call->file, build->region);
	if (IS_ERR(region))
		return PTR_ERR(region);
	extent = adverb_region_build(region, build->address, build->view);
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
	if (error)
		goto put;
	fd = adverb_export(extent, build->view);
	if (fd < 0)
		error = fd;
	else
		/* If the page went in between, the descriptor is closed at exit. */
		error = put_user((s32)fd, &argument->fd);
put:
	adverb_region_put(region);
	return error;
}

static int fault_in(struct ioctl_call *call)
{
	struct adverb_fault_in *fault_in = &call->structure.fault_in;
	u64 start = fault_in->start, end = start + fault_in->length;
	struct adverb_region *region;
	int error;

	if ((fault_in->flags & ~ADVERB_FAULT_WRITE) || fault_in->done || !fault_in->length || end < start)
		return -EINVAL;
	region = adverb_region_get_own(call->file, fault_in->region);
	if (IS_ERR(region))
		return PTR_ERR(region);
	if (start < region->start || end > region->start + region->length) {
		error = -ERANGE;
		goto put;
	}
	error = adverb_fault_in(region, start, fault_in->length,
				fault_in->flags & ADVERB_FAULT_WRITE ? ADVERB_VIEW_WRITE : ADVERB_VIEW_READ,
				&fault_in->done);
	/* Also with an error. */
	if (reply(call))
		error = -EFAULT;
put:
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
		.extents = adverb_region_extents(region),
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
	if (reply(call))
		error = -EFAULT;
	adverb_region_put(region);
	return error;
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
	IOCTL_ROW(ADVERB_IOC_REGION_CREATE, region_create, struct adverb_region_create, region),
	IOCTL_ROW(ADVERB_IOC_REGION_DESTROY, region_destroy, struct adverb_region_destroy, flags),
	IOCTL_ROW(ADVERB_IOC_BUILD, build, struct adverb_build, table_length),
	IOCTL_ROW(ADVERB_IOC_FAULT_IN, fault_in, struct adverb_fault_in, done),
	IOCTL_ROW(ADVERB_IOC_QUERY, query, struct adverb_query, charged_pages),
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
