// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Reliable connections over rxe0, as programs of this folder need them: a queue pair that is its
// own peer, with a buffer, and memory regions over dma-bufs. Calls end the program with their
// reason if they fail, unless the name ends in _errno: those return 0 or the errno.
#pragma once

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

struct rc_device {
  struct ibv_context* context;
  struct ibv_pd* pd;
  int gid_index;
  union ibv_gid gid;
};

struct rc_region {
  uint32_t handle;
  uint32_t lkey;
  uint32_t rkey;
};

struct rc {
  struct ibv_cq* cq;
  struct ibv_qp* qp;
  struct ibv_qp* peer; // asks for nothing itself
  char* buffer;
  struct ibv_mr* mr;
};

#define RC_DEPTH 16 // requests under way at most

void rc_open(struct rc_device* device);
// `length` bytes of the dma-buf from `offset` on; its first byte is `iova` to peers. Not by
// ibv_reg_dmabuf_mr, which librxe refuses without asking the kernel.
int rc_register_errno(struct rc_device* device, int fd, size_t offset, size_t length, uint64_t iova,
                      int access, struct rc_region* region);
int rc_deregister_errno(struct rc_device* device, const struct rc_region* region);
// ibv_rereg_mr to other rights, likewise.
int rc_change_access_errno(struct rc_device* device, const struct rc_region* region, int access);

// With a buffer of `length` bytes that is pinned.
void rc_connect(struct rc* rc, struct rc_device* device, enum ibv_mtu mtu, size_t length);
void rc_close(struct rc* rc);
// Reads into, or writes from, the buffer at `offset`.
void rc_post(struct rc* rc, enum ibv_wr_opcode opcode, size_t offset, size_t length,
             uint64_t address, uint32_t rkey);
// An atomic write of the buffer's first 8 bytes. False where this machine's library has none.
bool rc_post_atomic_write(struct rc* rc, uint64_t address, uint32_t rkey);
// Waits for the oldest.
enum ibv_wc_status rc_wait(struct rc* rc);
