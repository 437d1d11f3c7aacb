/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note OR BSD-2-Clause */
/*
 * What adverb.ko and its users agree on: the ioctls of /dev/adverb, the words of a state table, and the
 * generic netlink family. The only file of kernel/ that the library includes.
 *
 * Rules for all ioctls: every field has a fixed width, `flags` must hold known bits only, lengths are bytes
 * unless the name says pages. A structure may grow at its end, and its command changes with it, as the size is
 * part of the number; the commands of its shorter forms stay. A region belongs to the address space that
 * created it; every ioctl on it from another one fails with EPERM.
 */
#ifndef ADVERB_UAPI_H
#define ADVERB_UAPI_H

#include <linux/ioctl.h>
#include <linux/types.h>

/*
 * Raised when something is added; `minimum_library` of the version ioctl is the oldest that still works. Both of
 * them stay as they are for good, so that each end can name both when they do not fit.
 */
#define ADVERB_MODULE_VERSION 2
#define ADVERB_MINIMUM_LIBRARY 2

/*
 * An extent is what lies of a region in one aligned GiB of the address space, or in less if the region's creator says
 * so; a granule is 16 pages.
 */
#define ADVERB_EXTENT_SHIFT_MIN 21
#define ADVERB_EXTENT_SHIFT_MAX 30
#define ADVERB_GRANULE_PAGES 16

/* The two images of an extent. Numbers, not bits: a build names one. */
#define ADVERB_VIEW_READ 0  /* device may only read; an absent page reads as the region's pattern */
#define ADVERB_VIEW_WRITE 1 /* device may write; writes to an absent page are lost in a private page */

/*
 * One word of a state table stands for a granule (the 16 pages from an address that is a multiple of
 * 16 pages; word 0 is the granule of the extent's first page). Low 16 bits: page i of the granule is
 * resident. High 48 bits: how often a page of it has left. Equal words with all bits set, read before
 * and after, prove that nothing left in between.
 */
#define ADVERB_WORD_RESIDENT(word) ((word) & 0xffff)
#define ADVERB_WORD_GENERATION(word) ((word) >> 16)

struct adverb_version {
	__u32 module;
	__u32 minimum_library;
};

/*
 * Constant time whatever the length; touches no page. Tables of the region are charged to the user of now, as
 * locked memory (not as VmLck), against the RLIMIT_MEMLOCK of now. EDQUOT: the user's limit; ENOMEM:
 * RLIMIT_MEMLOCK.
 *
 * An extent is what a device attaches at once, and what is charged and given back. Small ones are for drivers that
 * take small dma-bufs only, and for programs that use little of a large region; each costs some pages of tables.
 */
#define ADVERB_REGION_READ_ONLY 1 /* it has no write views: building one fails with EACCES */
struct adverb_region_create {
	__u64 start;
	__u64 length;
	__u32 flags;
	__u32 extent_shift; /* log2 of the bytes of an extent; 0: ADVERB_EXTENT_SHIFT_MAX */
	__u32 region;	    /* out: names the region in this file */
	__u32 reserved;	    /* 0 */
};

/*
 * What devices still have of the region shows the parking pages from then on. So a memory region over one of its
 * dma-bufs is deregistered after this: while it can be used it leads to the program's memory, or nowhere.
 */
struct adverb_region_destroy {
	__u32 region;
	__u32 flags;
};

/*
 * Builds one view of one extent and returns a dma-buf of it (close-on-exec), whose offset 0 is `start`.
 * Building again returns another descriptor of the same view. The table is mapped with
 * mmap(PROT_READ, MAP_SHARED) of the /dev/adverb descriptor at `table_offset`; while it is mapped the region
 * counts, and is charged for, also when it was destroyed.
 */
struct adverb_build {
	__u32 region;
	__u32 view;
	__u64 address; /* any address of the extent */
	__u32 flags;
	__s32 fd;	    /* out */
	__u64 start;	    /* out: page aligned */
	__u64 length;	    /* out */
	__u64 table_offset; /* out */
	__u64 table_length; /* out */
};

/*
 * Gives a view of an extent back: its table, what of it is resident, and what is charged for that. With its last
 * view the whole extent goes. It can be built again. EBUSY: a dma-buf of it is open, its table is mapped, or it
 * is the last view and a fault-in or query of the extent is under way; ENXIO: no such view was built there.
 */
struct adverb_give_back {
	__u32 region;
	__u32 view;
	__u64 address; /* any address of the extent */
	__u64 flags;
};

/*
 * Makes pages of ranges present and lets the built views of their extents reach them. With ADVERB_FAULT_WRITE the
 * write view too (and the page becomes writable as by a store). Pages that are in already are marked accessed, so that
 * reclaim learns what only devices use.
 *
 * Each range stands for itself, in the order given: of each, `done` says how many bytes are in, and `error` why it
 * stopped there, at the first page that cannot be had. The call fails with the first range's error that has one. EFAULT:
 * nothing is mapped there or not with these rights (also secret and device memory);
 * EAGAIN: the page leaves faster than it can be brought in; ENXIO: no such view was built there; ERANGE: not within
 * the region; EINVAL: empty, or it wraps; ENOMEM, EDQUOT: what there is to note of them cannot be charged. With EINTR,
 * which comes with a signal that ends the process only, the ranges behind were not tried.
 */
#define ADVERB_FAULT_WRITE 1
/*
 * One of these at most:
 * - shows what of a range is in memory already, faults nothing and touches nothing; `done` is all of it. After building
 *   all reads as absent, and a plain fault-in would bring in what nobody has ever used.
 * - waits neither for storage nor for who holds the lock of the address space: EAGAIN where it would; reading from
 *   storage has begun then. Memory to put a page in may be waited for, and a file system that wants to be asked before
 *   a page of a file is written to.
 * - marks accessed what the views show, and brings in nothing; `done` is all of it.
 */
#define ADVERB_FAULT_PRESENT 2
#define ADVERB_FAULT_NOWAIT 4
#define ADVERB_FAULT_MARK 8

#define ADVERB_MAX_RANGES 1024

struct adverb_range {
	__u64 start;
	__u64 length;
	__u64 done;	/* out */
	__s32 error;	/* out: 0, or an errno as a negative number */
	__u32 reserved; /* out: 0 */
};

struct adverb_fault_in {
	__u64 ranges; /* in: address of `count` struct adverb_range */
	__u32 count;  /* 1 to ADVERB_MAX_RANGES */
	__u32 region;
	__u32 flags;
	__u32 tried; /* out, also with an error: ranges whose `done` and `error` were written */
};

/* Words for a person, with a zero at their end. */
#define ADVERB_REASON_SIZE 128

struct adverb_query {
	__u32 region;
	__u32 flags;
	__u64 start;	     /* out: as given at creation */
	__u64 length;	     /* out */
	__u64 pattern;	     /* in: where to put the 4096 bytes an absent page reads as, or 0 */
	__u64 resident[2];   /* out: pages resident in the read and the write view */
	__u64 enter;	     /* out: pages that came, all views */
	__u64 leave;	     /* out: pages that left */
	__u64 minor;	     /* out: faults served from memory by fault-in */
	__u64 major;	     /* out: faults that waited for storage */
	__u64 remaps;	     /* out: pages brought back by the worker */
	__u64 refused;	     /* out: fault-ins and attachments refused */
	__u32 extents;	     /* out */
	__u32 attachments;   /* out: devices that reach it */
	__u64 retargets;     /* out: IOMMU entries rewritten */
	__u64 syncs;	     /* out: IOTLB flushes waited for */
	__u64 charged_pages; /* out: table pages charged to the user */
	char reason[ADVERB_REASON_SIZE]; /* out: why the last device was refused; empty if none was */
};

/* Tells of the first extent of which something is built that ends behind `address`. ENOENT: there is none. */
struct adverb_query_extent {
	__u64 address;
	__u32 region;
	__u32 flags;
	__u64 start;	     /* out: page aligned */
	__u64 length;	     /* out */
	__u64 resident[2];   /* out: pages resident in the read and the write view */
	__u64 charged_pages; /* out: of this extent, with what devices have of it */
	__u32 views;	     /* out: bits 1 << ADVERB_VIEW_...: what is built */
	__u32 mappings;	     /* out: ranges of device addresses it has, one per view and IOMMU domain */
};

/*
 * Whether a device could attach a view, by trying: what an attachment needs of the IOMMU is made and taken away
 * again, so a small extent is enough, and quick. EOPNOTSUPP: it would be refused, and `reason` says why; ENODEV: no such
 * device, or no driver has it; EPERM: it is no RDMA device, of which only CAP_SYS_ADMIN may ask; EBUSY: its driver is
 * being changed; ENXIO: no such view was built there; ERANGE, ESHUTDOWN: beside the region, or it is gone; EINTR; else what cannot be had now, as with an attachment. A refusal
 * counts, and is told, like that of an attachment.
 */
#define ADVERB_DEVICE_SIZE 32
struct adverb_device_check {
	__u64 address; /* any address of the extent */
	__u32 region;
	__u32 view;
	__u32 flags;
	__u32 reserved;			 /* 0 */
	char device[ADVERB_DEVICE_SIZE]; /* its name on the PCI bus, as "0000:01:00.0" */
	char reason[ADVERB_REASON_SIZE]; /* out, also with an error, once the view was found */
};

/*
 * Changes of what addresses of this process mean. ADVERB_IOC_MONITOR lets this descriptor tell of them, to be read() as
 * struct adverb_change and waited for by poll(); WATCH says of which range, whatever is or comes to be mapped there, and
 * UNWATCH takes that back. When a call of this process has changed something watched, it returns when ADVERB_IOC_HEARD
 * says that the change's number has been heard of, at the latest after `wait_ms`, or when this process closes the
 * last descriptor of it. It waits once, whatever it has changed, and holds no lock meanwhile. Not waited for are calls of
 * the thread that reads, of other processes and of the kernel (on a file that is mapped here), what io_uring's workers do
 * for a program, and, where no memory is to be had, any.
 *
 * Told are unmapping and what maps over or moves (mremap), clearing (MADV_DONTNEED, MADV_FREE, MADV_REMOVE, holes punched
 * into files and files cut, these before the file has changed), mprotect(), and that a page is copied to be written to,
 * as after fork(); not told is what the kernel does by itself, which changes no contents. Ranges are those of the calls, and may be larger than what is watched; where they
 * are not read in time several become one.
 *
 * MONITOR fails with EBUSY if the descriptor tells already, with EDQUOT if four others of this process do, and with EPERM in a process that did not open it; the others
 * with ENXIO if it does not tell, with EPERM in another process. UNWATCH: ENOENT; HEARD: EINVAL, no such number was told; WATCH: EINVAL, EBUSY, ENOMEM.
 */
struct adverb_monitor_begin {
	__u32 flags;
	__u32 wait_ms; /* at most ADVERB_MONITOR_WAIT_MAX */
};
#define ADVERB_MONITOR_WAIT_MAX 60000

struct adverb_watch {
	__u64 start;
	__u64 length;
	__u32 flags;
	__u32 watch; /* out */
};

struct adverb_unwatch {
	__u32 watch;
	__u32 flags;
};

struct adverb_heard {
	__u64 number; /* all changes up to this one */
	__u64 flags;
};

#define ADVERB_CHANGE_UNMAPPED 1
#define ADVERB_CHANGE_CLEARED 2
#define ADVERB_CHANGE_PROTECTED 4
struct adverb_change {
	__u64 start;
	__u64 end; /* behind the last byte */
	__u64 number;
	__u32 kind; /* ADVERB_CHANGE_..., more than one where several became one */
	__u32 reserved;
};

#define ADVERB_IOC_VERSION _IOR('A', 0x80, struct adverb_version)
#define ADVERB_IOC_REGION_CREATE _IOWR('A', 0x81, struct adverb_region_create)
#define ADVERB_IOC_REGION_DESTROY _IOW('A', 0x82, struct adverb_region_destroy)
#define ADVERB_IOC_BUILD _IOWR('A', 0x83, struct adverb_build)
#define ADVERB_IOC_FAULT_IN _IOWR('A', 0x84, struct adverb_fault_in)
#define ADVERB_IOC_QUERY _IOWR('A', 0x85, struct adverb_query)
#define ADVERB_IOC_GIVE_BACK _IOW('A', 0x86, struct adverb_give_back)
#define ADVERB_IOC_QUERY_EXTENT _IOWR('A', 0x87, struct adverb_query_extent)
#define ADVERB_IOC_DEVICE_CHECK _IOWR('A', 0x88, struct adverb_device_check)
#define ADVERB_IOC_MONITOR _IOW('A', 0x89, struct adverb_monitor_begin)
#define ADVERB_IOC_WATCH _IOWR('A', 0x8a, struct adverb_watch)
#define ADVERB_IOC_UNWATCH _IOW('A', 0x8b, struct adverb_unwatch)
#define ADVERB_IOC_HEARD _IOW('A', 0x8c, struct adverb_heard)

/* Generic netlink. */
#define ADVERB_GENL_NAME "adverb"
#define ADVERB_GENL_VERSION 2
#define ADVERB_GENL_EVENTS "events"

enum adverb_genl_command {
	ADVERB_CMD_UNSPEC,
	ADVERB_CMD_REGIONS,    /* dump: one message per region that is charged for; others' only with CAP_SYS_ADMIN */
	ADVERB_CMD_STATISTICS, /* the module's counters since it was loaded */
	ADVERB_CMD_LIMITS,     /* get the limits */
	ADVERB_CMD_SET_LIMITS, /* CAP_NET_ADMIN */
	ADVERB_CMD_EVENT,      /* to the multicast group, for CAP_SYS_ADMIN */
};

enum adverb_genl_attribute {
	ADVERB_ATTR_UNSPEC,
	ADVERB_ATTR_PAD,
	ADVERB_ATTR_PID,	   /* u32: process that created it, as in the asker's namespace; 0: not there */
	ADVERB_ATTR_UID,	   /* u32 */
	ADVERB_ATTR_REGION,	   /* u32: its number within the process' file */
	ADVERB_ATTR_START,	   /* u64 */
	ADVERB_ATTR_LENGTH,	   /* u64 */
	ADVERB_ATTR_EXTENTS,	   /* u32 */
	ADVERB_ATTR_ATTACHMENTS,   /* u32 */
	ADVERB_ATTR_ENTER,	   /* u64, these as in struct adverb_query */
	ADVERB_ATTR_LEAVE,	   /* u64 */
	ADVERB_ATTR_MINOR,	   /* u64 */
	ADVERB_ATTR_MAJOR,	   /* u64 */
	ADVERB_ATTR_RETARGETS,	   /* u64 */
	ADVERB_ATTR_SYNCS,	   /* u64 */
	ADVERB_ATTR_REMAPS,	   /* u64 */
	ADVERB_ATTR_REFUSED,	   /* u64 */
	ADVERB_ATTR_CHARGED_PAGES, /* u64 */
	ADVERB_ATTR_MAX_REGIONS,   /* u32: of one user */
	ADVERB_ATTR_MAX_PAGES,	   /* u64: of one user, table pages */
	ADVERB_ATTR_REASON,	   /* string: what happened, for a person */
	ADVERB_ATTR_DESTROYED,	   /* u32: 1 if only devices or mapped tables still hold it, which are charged for; else 0 */
	__ADVERB_ATTR_COUNT,
};
#define ADVERB_ATTR_MAX (__ADVERB_ATTR_COUNT - 1)

#endif
