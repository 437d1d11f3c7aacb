// SPDX-License-Identifier: GPL-2.0
/* The module, /dev/adverb and its ioctls: arguments are checked here, once; the objects trust them. */
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "adverb.h"

atomic64_t adverb_totals[ADVERB_COUNTS];

/*
 * Of our own: what users make us do there must not keep the kernel's queues busy. And two: freeing waits for
 * the mmap_lock of an owner, who can hold it for long; what goes on for others must not wait behind it.
 */
struct workqueue_struct *adverb_remap_queue, *adverb_free_queue;
#define REMAP_WORKERS 4

static void drop_queues(void)
{
	if (adverb_remap_queue)
		destroy_workqueue(adverb_remap_queue);
	if (adverb_free_queue)
		destroy_workqueue(adverb_free_queue);
}

#ifdef ADVERB_BREAK
int adverb_broken;
module_param_named(broken, adverb_broken, int, 0600);
MODULE_PARM_DESC(broken, "the step to leave out (breakage.h)");
#endif

void adverb_count(struct adverb_region *region, enum adverb_count what, u64 n)
{
	if (!n)
		return;
	atomic64_add(n, &region->counts[what]);
	atomic64_add(n, &adverb_totals[what]);
}

static int adverb_open(struct inode *inode, struct file *filp)
{
	struct adverb_file *file = kzalloc(sizeof(*file), GFP_KERNEL_ACCOUNT);

	if (!file)
		return -ENOMEM;
	mutex_init(&file->lock);
	xa_init_flags(&file->regions, XA_FLAGS_ALLOC1);
	xa_init_flags(&file->tables, XA_FLAGS_ALLOC1);
	filp->private_data = file;
	return 0;
}

static int adverb_release(struct inode *inode, struct file *filp)
{
	struct adverb_file *file = filp->private_data;
	struct adverb_region *region;
	unsigned long number;

	xa_for_each(&file->regions, number, region) {
		adverb_region_kill(region);
		adverb_region_put(region);
	}
	xa_destroy(&file->regions);
	xa_destroy(&file->tables);
	kfree(file);
	return 0;
}

/* A reference to a region of the caller's own address space. */
static struct adverb_region *own_region(struct adverb_file *file, u32 number)
{
	struct adverb_region *region = adverb_region_get(file, number);

	if (!region)
		return ERR_PTR(-ENOENT);
	if (region->mm != current->mm) {
		adverb_region_put(region);
		return ERR_PTR(-EPERM);
	}
	return region;
}

static long ioctl_version(void __user *argument)
{
	struct adverb_version version = {
		.module = ADVERB_MODULE_VERSION,
		.minimum_library = ADVERB_MINIMUM_LIBRARY,
	};

	return copy_to_user(argument, &version, sizeof(version)) ? -EFAULT : 0;
}

static long ioctl_region_create(struct adverb_file *file, void __user *argument)
{
	struct adverb_region_create create;
	int error;

	if (copy_from_user(&create, argument, sizeof(create)))
		return -EFAULT;
	if (create.flags || create.region)
		return -EINVAL;
	error = adverb_region_create(file, create.start, create.length, &create.region);
	if (error)
		return error;
	/* The region stays if this fails: another thread may already use its number. */
	return copy_to_user(argument, &create, sizeof(create)) ? -EFAULT : 0;
}

static long ioctl_region_destroy(struct adverb_file *file, void __user *argument)
{
	struct adverb_region_destroy destroy;
	struct adverb_region *region;

	if (copy_from_user(&destroy, argument, sizeof(destroy)))
		return -EFAULT;
	if (destroy.flags)
		return -EINVAL;
	region = own_region(file, destroy.region);
	if (IS_ERR(region))
		return PTR_ERR(region);
	mutex_lock(&file->lock);
	/* Of two threads that destroy it, one finds it. */
	if (xa_load(&file->regions, destroy.region) != region) {
		mutex_unlock(&file->lock);
		adverb_region_put(region);
		return -ENOENT;
	}
	xa_erase(&file->regions, destroy.region);
	mutex_unlock(&file->lock);
	adverb_region_kill(region);
	adverb_region_put(region);
	adverb_region_put(region);
	return 0;
}

static long ioctl_build(struct adverb_file *file, void __user *argument)
{
	struct adverb_build build;
	struct adverb_region *region;
	struct adverb_extent *extent;
	long fd;

	if (copy_from_user(&build, argument, sizeof(build)))
		return -EFAULT;
	if (build.flags || build.view >= ADVERB_VIEWS)
		return -EINVAL;
	region = own_region(file, build.region);
	if (IS_ERR(region))
		return PTR_ERR(region);
	extent = adverb_region_build(region, build.address, build.view);
	if (IS_ERR(extent)) {
		fd = PTR_ERR(extent);
		goto out;
	}
	build.start = extent->start;
	build.length = extent->end - extent->start;
	build.table_offset = (u64)extent->views[build.view].table << ADVERB_TABLE_SHIFT;
	build.table_length = extent->views[build.view].words_size;
	build.fd = -1;
	/* Before a descriptor exists that the caller could not learn of. */
	if (copy_to_user(argument, &build, sizeof(build))) {
		fd = -EFAULT;
		goto out;
	}
	fd = adverb_export(extent, build.view);
	if (fd >= 0) {
		if (put_user((s32)fd, &((struct adverb_build __user *)argument)->fd))
			fd = -EFAULT; /* the page went in between; the descriptor is closed at exit */
		else
			fd = 0;
	}
out:
	adverb_region_put(region);
	return fd;
}

static long ioctl_fault_in(struct adverb_file *file, void __user *argument)
{
	struct adverb_fault_in in;
	struct adverb_region *region;
	struct adverb_extent *extent;
	struct page **pages;
	unsigned long at, end, stop, major, minor;
	unsigned int views;
	long error = 0;

	if (copy_from_user(&in, argument, sizeof(in)))
		return -EFAULT;
	if ((in.flags & ~ADVERB_FAULT_WRITE) || in.done || !in.length || in.start + in.length < in.start)
		return -EINVAL;
	region = own_region(file, in.region);
	if (IS_ERR(region))
		return PTR_ERR(region);
	pages = kmalloc_array(ADVERB_CHUNK_PAGES, sizeof(*pages), GFP_KERNEL);
	if (!pages) {
		error = -ENOMEM;
		goto out;
	}
	if (in.start < region->start || in.start + in.length > region->start + region->length) {
		error = -ERANGE;
		goto out;
	}
	views = in.flags & ADVERB_FAULT_WRITE ? BIT(ADVERB_VIEW_READ) | BIT(ADVERB_VIEW_WRITE)
					      : BIT(ADVERB_VIEW_READ);
	major = current->maj_flt;
	minor = current->min_flt;
	at = in.start & PAGE_MASK;
	end = PAGE_ALIGN(in.start + in.length);
	while (at < end) {
		extent = xa_load(&region->extents, at >> ADVERB_EXTENT_SHIFT);
		if (!extent ||
		    !READ_ONCE(extent->views[in.flags & ADVERB_FAULT_WRITE ? ADVERB_VIEW_WRITE
									   : ADVERB_VIEW_READ].built)) {
			error = -ENXIO;
			break;
		}
		stop = min(min(end, extent->end), (at & ~(ADVERB_CHUNK_SIZE - 1)) + ADVERB_CHUNK_SIZE);
		error = adverb_enter(extent, at, stop, views, pages);
		if (error < 0)
			break;
		at += error;
		error = 0;
		if (fatal_signal_pending(current)) {
			error = -EINTR;
			break;
		}
		cond_resched();
	}
	if (at > in.start)
		in.done = min(at, (unsigned long)(in.start + in.length)) - in.start;
	adverb_count(region, ADVERB_MAJOR, current->maj_flt - major);
	adverb_count(region, ADVERB_MINOR, current->min_flt - minor);
	if (error)
		adverb_count(region, ADVERB_REFUSED, 1);
	if (copy_to_user(argument, &in, sizeof(in)))
		error = -EFAULT;
out:
	kfree(pages);
	adverb_region_put(region);
	return error;
}

static long ioctl_query(struct adverb_file *file, void __user *argument)
{
	struct adverb_query query;
	struct adverb_region *region;
	unsigned long index;
	struct adverb_extent *extent;
	u64 pattern;
	long error = 0;
	int view;

	if (copy_from_user(&query, argument, sizeof(query)))
		return -EFAULT;
	if (query.flags)
		return -EINVAL;
	region = own_region(file, query.region);
	if (IS_ERR(region))
		return PTR_ERR(region);
	pattern = query.pattern;
	query = (struct adverb_query){
		.region = region->number,
		.start = region->start,
		.length = region->length,
		.pattern = pattern,
		.enter = atomic64_read(&region->counts[ADVERB_ENTER]),
		.leave = atomic64_read(&region->counts[ADVERB_LEAVE]),
		.minor = atomic64_read(&region->counts[ADVERB_MINOR]),
		.major = atomic64_read(&region->counts[ADVERB_MAJOR]),
		.remaps = atomic64_read(&region->counts[ADVERB_REMAPS]),
		.refused = atomic64_read(&region->counts[ADVERB_REFUSED]),
		.retargets = atomic64_read(&region->counts[ADVERB_RETARGETS]),
		.syncs = atomic64_read(&region->counts[ADVERB_SYNCS]),
		.attachments = atomic_read(&region->attachments),
		.charged_pages = atomic64_read(&region->charged),
	};
	for (view = 0; view < ADVERB_VIEWS; view++)
		query.resident[view] = atomic64_read(&region->resident[view]);
	xa_for_each(&region->extents, index, extent)
		query.extents++;
	if (pattern && copy_to_user(u64_to_user_ptr(pattern),
				    page_address(region->parking[ADVERB_VIEW_READ]), PAGE_SIZE))
		error = -EFAULT;
	if (copy_to_user(argument, &query, sizeof(query)))
		error = -EFAULT;
	adverb_region_put(region);
	return error;
}

static long adverb_ioctl(struct file *filp, unsigned int command, unsigned long argument)
{
	struct adverb_file *file = filp->private_data;
	void __user *pointer = (void __user *)argument;

	switch (command) {
	case ADVERB_IOC_VERSION:
		return ioctl_version(pointer);
	case ADVERB_IOC_REGION_CREATE:
		return ioctl_region_create(file, pointer);
	case ADVERB_IOC_REGION_DESTROY:
		return ioctl_region_destroy(file, pointer);
	case ADVERB_IOC_BUILD:
		return ioctl_build(file, pointer);
	case ADVERB_IOC_FAULT_IN:
		return ioctl_fault_in(file, pointer);
	case ADVERB_IOC_QUERY:
		return ioctl_query(file, pointer);
	default:
		return -ENOTTY;
	}
}

static int adverb_mmap(struct file *filp, struct vm_area_struct *vma)
{
	struct adverb_file *file = filp->private_data;
	unsigned long number = vma->vm_pgoff >> (ADVERB_TABLE_SHIFT - PAGE_SHIFT);
	struct adverb_extent *extent;
	int view, error = -ENXIO;

	if (vma->vm_pgoff % (1UL << (ADVERB_TABLE_SHIFT - PAGE_SHIFT)))
		return -EINVAL;
	/*
	 * Killing a region takes this lock to take its tables out of the numbers, so it is there as long as
	 * the lock is held.
	 */
	mutex_lock(&file->lock);
	extent = xa_load(&file->tables, number);
	if (extent && extent->region->mm != current->mm)
		error = -EPERM;
	else if (extent)
		for (view = 0; view < ADVERB_VIEWS; view++)
			if (extent->views[view].table == number)
				error = adverb_view_mmap(extent->region, &extent->views[view], vma);
	mutex_unlock(&file->lock);
	return error;
}

const struct file_operations adverb_fops = {
	.owner = THIS_MODULE,
	.open = adverb_open,
	.release = adverb_release,
	.unlocked_ioctl = adverb_ioctl,
	.compat_ioctl = compat_ptr_ioctl, /* all structures are of fixed width */
	.mmap = adverb_mmap,
};

static struct miscdevice adverb_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "adverb",
	.fops = &adverb_fops,
	.mode = 0660,
};

static int __init adverb_init(void)
{
	int error = -ENOMEM;

	adverb_remap_queue = alloc_workqueue("adverb_remap", WQ_UNBOUND, REMAP_WORKERS);
	adverb_free_queue = alloc_workqueue("adverb_free", WQ_UNBOUND, 0);
	if (!adverb_remap_queue || !adverb_free_queue)
		goto queues;
	error = adverb_soft_init();
	if (error)
		goto queues;
	error = adverb_netlink_init();
	if (error)
		goto soft;
	error = misc_register(&adverb_device);
	if (error)
		goto netlink;
	return 0;
netlink:
	adverb_netlink_exit();
soft:
	adverb_soft_exit();
queues:
	drop_queues();
	return error;
}

/* No file is open and no dma-buf is left: both hold the module. What tables held may still be queued. */
static void __exit adverb_exit(void)
{
	drop_queues();
	misc_deregister(&adverb_device);
	adverb_netlink_exit();
	adverb_soft_exit();
}

module_init(adverb_init);
module_exit(adverb_exit);
ADVERB_IMPORT_DMA_BUF();
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Lets RDMA devices reach memory that is not pinned");
MODULE_VERSION(__stringify(ADVERB_MODULE_VERSION));
