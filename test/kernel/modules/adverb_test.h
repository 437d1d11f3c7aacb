/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note OR BSD-2-Clause */
/* What the test drivers and the test programs agree on: one device file each, and ioctls to import and to move. */
#ifndef ADVERB_TEST_H
#define ADVERB_TEST_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define ADVERB_TEST_BUFFERS 2

struct adverb_test_import {
	__u32 slot; /* 0 to ADVERB_TEST_BUFFERS - 1 */
	__s32 fd;   /* -1 to let go */
	__u64 address; /* out: what the device uses for its first byte */
};

struct adverb_test_move {
	__u32 slot;
	__u32 write; /* device to memory */
	__u64 offset;
	__u64 length; /* of one page at most */
	__u64 data;   /* pointer */
};

/* Frames, one per page: byte 0 to ADVERB_TEST_FRAME - 1 of `count` pages from the one at `offset`. */
#define ADVERB_TEST_FRAME 1024
#define ADVERB_TEST_FRAMES_MAX 64

struct adverb_test_run {
	__u32 slot;
	__u32 count; /* 0: nothing goes this way */
	__u64 offset;
	__u64 data;  /* pointer to count frames */
};

struct adverb_test_frames {
	struct adverb_test_run read;  /* memory to device; the two ways take turns, frame by frame */
	struct adverb_test_run write; /* device to memory */
	__u64 lost; /* out: frames the device gave up on */
};

#define ADVERB_TEST_IMPORT _IOWR('T', 1, struct adverb_test_import)
#define ADVERB_TEST_MOVE _IOW('T', 2, struct adverb_test_move)
#define ADVERB_TEST_FRAMES _IOWR('T', 3, struct adverb_test_frames)
/* Lets go of the buffer that is read, and at once reads from where it was; the NIC only. */
#define ADVERB_TEST_LAST_FRAMES _IOWR('T', 5, struct adverb_test_frames)
/* Attaches as an importer that cannot be told of moves, and lets go again; the soft device only. */
#define ADVERB_TEST_ATTACH_STATIC _IOW('T', 4, struct adverb_test_import)

#endif
