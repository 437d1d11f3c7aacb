// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include <stdbool.h>

#include "rc.h"

#include <errno.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include "np.h"

// A RoCE v2 address of IPv4, as the guests' network is.
static void choose_gid(struct rc_device* device) {
  static const unsigned char prefix[12] = {[10] = 0xff, [11] = 0xff};
  struct ibv_gid_entry entry;
  for (device->gid_index = 0; device->gid_index < 16; device->gid_index++) {
    if (ibv_query_gid_ex(device->context, 1, (uint32_t)device->gid_index, &entry, 0) == 0 &&
        entry.gid_type == IBV_GID_TYPE_ROCE_V2 &&
        memcmp(entry.gid.raw, prefix, sizeof prefix) == 0) {
      device->gid = entry.gid;
      return;
    }
  }
  fail("rxe0 has no IPv4 address");
}

void rc_open(struct rc_device* device) {
  struct ibv_device** list = ibv_get_device_list(NULL);
  expect(list, "no RDMA devices: %s", strerror(errno));
  for (struct ibv_device** one = list; *one; one++)
    if (strcmp(ibv_get_device_name(*one), "rxe0") == 0)
      device->context = ibv_open_device(*one);
  ibv_free_device_list(list);
  expect(device->context, "rxe0 cannot be opened");
  device->pd = ibv_alloc_pd(device->context);
  expect(device->pd, "no protection domain: %s", strerror(errno));
  choose_gid(device);
}

static struct ib_uverbs_attr attribute(unsigned id, size_t length, uint64_t data) {
  return (struct ib_uverbs_attr){.attr_id = (uint16_t)id,
                                 .len = (uint16_t)length,
                                 .flags = UVERBS_ATTR_F_MANDATORY,
                                 .data = data};
}

#define ATTRIBUTES 9

// What the kernel answers in the attributes is in them afterwards.
static int invoke_errno(struct rc_device* device, struct ib_uverbs_attr* attributes,
                        unsigned object, unsigned method, unsigned count) {
  const size_t bytes = count * sizeof *attributes;
  _Alignas(8) unsigned char
      command[sizeof(struct ib_uverbs_ioctl_hdr) + ATTRIBUTES * sizeof(struct ib_uverbs_attr)];
  struct ib_uverbs_ioctl_hdr* header = (struct ib_uverbs_ioctl_hdr*)command;
  *header = (struct ib_uverbs_ioctl_hdr){.length = (uint16_t)(sizeof *header + bytes),
                                         .object_id = (uint16_t)object,
                                         .method_id = (uint16_t)method,
                                         .num_attrs = (uint16_t)count,
                                         .driver_id = RDMA_DRIVER_RXE};
  memcpy(command + sizeof *header, attributes, bytes);
  int error = ioctl(device->context->cmd_fd, RDMA_VERBS_IOCTL, command) == 0 ? 0 : errno;
  memcpy(attributes, command + sizeof *header, bytes);
  return error;
}

int rc_register_errno(struct rc_device* device, int fd, size_t offset, size_t length, uint64_t iova,
                      int access, struct rc_region* region) {
  struct ib_uverbs_attr attributes[ATTRIBUTES] = {
      attribute(UVERBS_ATTR_REG_DMABUF_MR_HANDLE, 0, 0),
      attribute(UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, 0, device->pd->handle),
      attribute(UVERBS_ATTR_REG_DMABUF_MR_OFFSET, 8, offset),
      attribute(UVERBS_ATTR_REG_DMABUF_MR_LENGTH, 8, length),
      attribute(UVERBS_ATTR_REG_DMABUF_MR_IOVA, 8, iova),
      attribute(UVERBS_ATTR_REG_DMABUF_MR_FD, 4, (uint32_t)fd),
      attribute(UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, 4, (uint32_t)access),
      attribute(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, 4, (uintptr_t)&region->lkey),
      attribute(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, 4, (uintptr_t)&region->rkey)};
  int error = invoke_errno(device, attributes, UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR, 9);
  region->handle = (uint32_t)attributes[0].data;
  return error;
}

int rc_deregister_errno(struct rc_device* device, const struct rc_region* region) {
  struct ib_uverbs_attr attributes[ATTRIBUTES] = {
      attribute(UVERBS_ATTR_DESTROY_MR_HANDLE, 0, region->handle)};
  return invoke_errno(device, attributes, UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY, 1);
}

int rc_change_access_errno(struct rc_device* device, const struct rc_region* region, int access) {
  struct ib_uverbs_rereg_mr request = {.mr_handle = region->handle,
                                       .flags = IBV_REREG_MR_CHANGE_ACCESS,
                                       .access_flags = (uint32_t)access};
  struct ib_uverbs_rereg_mr_resp response;
  struct ib_uverbs_attr attributes[ATTRIBUTES] = {
      attribute(UVERBS_ATTR_CORE_IN, sizeof request, (uintptr_t)&request),
      attribute(UVERBS_ATTR_CORE_OUT, sizeof response, (uintptr_t)&response),
      attribute(UVERBS_ATTR_WRITE_CMD, 8, IB_USER_VERBS_CMD_REREG_MR)};
  return invoke_errno(device, attributes, UVERBS_OBJECT_DEVICE, UVERBS_METHOD_INVOKE_WRITE, 3);
}

static void to_init(struct ibv_qp* qp) {
  struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT,
                                   .port_num = 1,
                                   .qp_access_flags = IBV_ACCESS_REMOTE_READ |
                                                      IBV_ACCESS_REMOTE_WRITE |
                                                      IBV_ACCESS_REMOTE_ATOMIC};
  int error = ibv_modify_qp(qp, &attributes,
                            IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
  expect(error == 0, "to INIT: %s", strerror(error));
}

static void to_rtr(struct ibv_qp* qp, uint32_t peer, const struct rc_device* device,
                   enum ibv_mtu mtu) {
  struct ibv_qp_attr attributes = {
      .qp_state = IBV_QPS_RTR,
      .path_mtu = mtu,
      .dest_qp_num = peer,
      .max_dest_rd_atomic = RC_DEPTH,
      .min_rnr_timer = 12,
      .ah_attr = {
          .is_global = 1,
          .port_num = 1,
          .grh = {.dgid = device->gid, .sgid_index = (uint8_t)device->gid_index, .hop_limit = 1}}};
  int error = ibv_modify_qp(qp, &attributes,
                            IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
  expect(error == 0, "to RTR: %s", strerror(error));
}

// A busy machine is late, and loses nothing.
static void to_rts(struct ibv_qp* qp) {
  struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_RTS,
                                   .timeout = 21,
                                   .retry_cnt = 7,
                                   .rnr_retry = 7,
                                   .max_rd_atomic = RC_DEPTH};
  int error = ibv_modify_qp(qp, &attributes,
                            IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
  expect(error == 0, "to RTS: %s", strerror(error));
}

static struct ibv_qp* create_qp(struct rc* rc, struct rc_device* device, uint64_t operations) {
  struct ibv_qp_init_attr_ex attributes = {
      .send_cq = rc->cq,
      .recv_cq = rc->cq,
      .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = RC_DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
      .pd = device->pd,
      .comp_mask = IBV_QP_INIT_ATTR_PD | (operations ? IBV_QP_INIT_ATTR_SEND_OPS_FLAGS : 0),
      .send_ops_flags = operations};
  return ibv_create_qp_ex(device->context, &attributes);
}

void rc_connect(struct rc* rc, struct rc_device* device, enum ibv_mtu mtu, size_t length) {
  rc->cq = ibv_create_cq(device->context, RC_DEPTH, NULL, NULL, 0);
  expect(rc->cq, "no completion queue: %s", strerror(errno));
  // Not every librxe knows atomic writes.
  rc->qp = create_qp(rc, device, IBV_QP_EX_WITH_ATOMIC_WRITE);
  if (!rc->qp)
    rc->qp = create_qp(rc, device, 0);
  rc->peer = create_qp(rc, device, 0);
  expect(rc->qp && rc->peer, "no queue pair: %s", strerror(errno));
  rc->buffer =
      mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  expect(rc->buffer != MAP_FAILED, "no buffer: %s", strerror(errno));
  rc->mr = ibv_reg_mr(device->pd, rc->buffer, length, IBV_ACCESS_LOCAL_WRITE);
  expect(rc->mr, "registering the buffer: %s", strerror(errno));
  to_init(rc->qp);
  to_init(rc->peer);
  to_rtr(rc->qp, rc->peer->qp_num, device, mtu);
  to_rtr(rc->peer, rc->qp->qp_num, device, mtu);
  to_rts(rc->qp);
}

void rc_close(struct rc* rc) {
  ibv_destroy_qp(rc->qp);
  ibv_destroy_qp(rc->peer);
  ibv_destroy_cq(rc->cq);
  munmap(rc->buffer, rc->mr->length);
  ibv_dereg_mr(rc->mr);
}

void rc_post(struct rc* rc, enum ibv_wr_opcode opcode, size_t offset, size_t length,
             uint64_t address, uint32_t rkey) {
  struct ibv_sge sge = {
      .addr = (uintptr_t)rc->buffer + offset, .length = (uint32_t)length, .lkey = rc->mr->lkey};
  struct ibv_send_wr request = {
      .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED};
  struct ibv_send_wr* bad;
  if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    request.wr.atomic.remote_addr = address;
    request.wr.atomic.rkey = rkey;
    request.wr.atomic.compare_add = 1;
  } else {
    request.wr.rdma.remote_addr = address;
    request.wr.rdma.rkey = rkey;
  }
  int error = ibv_post_send(rc->qp, &request, &bad);
  expect(error == 0, "post: %s", strerror(error));
}

bool rc_post_atomic_write(struct rc* rc, uint64_t address, uint32_t rkey) {
  struct ibv_qp_ex* qp = ibv_qp_to_qp_ex(rc->qp);
  if (!qp || !qp->wr_atomic_write)
    return false;
  ibv_wr_start(qp);
  qp->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_atomic_write(qp, rkey, address, rc->buffer);
  int error = ibv_wr_complete(qp);
  expect(error == 0, "post: %s", strerror(error));
  return true;
}

enum ibv_wc_status rc_wait(struct rc* rc) {
  struct ibv_wc completion;
  int count;
  while ((count = ibv_poll_cq(rc->cq, 1, &completion)) == 0)
    sched_yield();
  expect(count == 1, "poll: %d", count);
  return completion.status;
}
