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

/* Raised when something is added; `minimum_library` of the version ioctl is the oldest that still works. */
#define ADVERB_MODULE_VERSION 1
#define ADVERB_MINIMUM_LIBRARY 1

/* An extent is what lies of a region in one aligned GiB of the address space; a granule is 16 pages. */
#define ADVERB_EXTENT_SHIFT 30
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

/* Constant time whatever the length; touches no page. EDQUOT: the user's limit; ENOMEM: RLIMIT_MEMLOCK. */
struct adverb_region_create {
	__u64 start;
	__u64 length;
	__u32 flags;
	__u32 region; /* out: names the region in this file */
};

struct adverb_region_destroy {
	__u32 region;
	__u32 flags;
};

/*
 * Builds one view of one extent and returns a dma-buf of it (close-on-exec), whose offset 0 is `start`.
 * Building again returns another descriptor of the same view. The table is mapped with
 * mmap(PROT_READ, MAP_SHARED) of the /dev/adverb descriptor at `table_offset`; while it is mapped the region
 * counts, and is charged for, also when it was destroyed. It is given back soon after the last munmap.
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
 * Makes pages present and lets the built views of their extents reach them. With ADVERB_FAULT_WRITE the
 * write view too (and the page becomes writable as by a store). Pages that are in already are marked
 * accessed, so that reclaim learns what only devices use. Stops at the first page that cannot be had;
 * `done` says how many bytes are in. EFAULT: nothing is mapped there or not with these rights (also secret
 * and device memory); EAGAIN: the page leaves faster than it can be brought in; ENXIO: no such view was
 * built there; EHWPOISON; EINTR.
 */
#define ADVERB_FAULT_WRITE 1
struct adverb_fault_in {
	__u64 start;
	__u64 length;
	__u32 region;
	__u32 flags;
	__u64 done; /* out, also with an error */
};

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
	__u64 charged_pages; /* out: table pages counted against RLIMIT_MEMLOCK */
};

#define ADVERB_IOC_VERSION _IOR('A', 0x80, struct adverb_version)
#define ADVERB_IOC_REGION_CREATE _IOWR('A', 0x81, struct adverb_region_create)
#define ADVERB_IOC_REGION_DESTROY _IOW('A', 0x82, struct adverb_region_destroy)
#define ADVERB_IOC_BUILD _IOWR('A', 0x83, struct adverb_build)
#define ADVERB_IOC_FAULT_IN _IOWR('A', 0x84, struct adverb_fault_in)
#define ADVERB_IOC_QUERY _IOWR('A', 0x85, struct adverb_query)

/* Generic netlink. */
#define ADVERB_GENL_NAME "adverb"
#define ADVERB_GENL_VERSION 1
#define ADVERB_GENL_EVENTS "events"

enum adverb_genl_command {
	ADVERB_CMD_UNSPEC,
	ADVERB_CMD_REGIONS,    /* dump: one message per region; others' only with CAP_SYS_ADMIN */
	ADVERB_CMD_STATISTICS, /* the module's counters since it was loaded */
	ADVERB_CMD_LIMITS,     /* get the limits */
	ADVERB_CMD_SET_LIMITS, /* CAP_NET_ADMIN */
	ADVERB_CMD_EVENT,      /* to the multicast group, for CAP_SYS_ADMIN */
};

enum adverb_genl_attribute {
	ADVERB_ATTR_UNSPEC,
	ADVERB_ATTR_PAD,
	ADVERB_ATTR_PID,	   /* u32: process that created it */
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
	__ADVERB_ATTR_COUNT,
};
#define ADVERB_ATTR_MAX (__ADVERB_ATTR_COUNT - 1)

#endif
