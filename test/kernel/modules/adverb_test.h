/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note OR BSD-2-Clause */
/* What the test drivers and the test programs agree on: one device file, one ioctl to import, two to move. */
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

#define ADVERB_TEST_IMPORT _IOWR('T', 1, struct adverb_test_import)
#define ADVERB_TEST_MOVE _IOW('T', 2, struct adverb_test_move)

#endif
