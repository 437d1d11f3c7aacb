// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The stock rival: the same messages as RDMA WRITEs with immediate over ordinary RC queue pairs,
// which the device makes reliable. Timeout 14 and 7 retries, see connect_qp().
#include "copy.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

struct target { // of the WRITEs
  uint64_t address;
  uint32_t key;
};

struct rc {
  struct ibv_comp_channel* channel;
  struct ibv_cq* cq;
  struct ibv_mr* mr;
  struct ibv_qp* qps[most_pairs];
  struct target target;
};

// Messages are written in order; message i by queue pair i % pairs. Receives have no buffer.
static void post_receive(struct ibv_qp* qp, uint64_t number) {
  struct ibv_recv_wr wr = {.wr_id = number}, *bad = NULL;
  const int error = ibv_post_recv(qp, &wr, &bad);
  if (error)
    fail_for(error, "a receive cannot be posted");
}

static void set_up(struct copy* c, struct rc* rc) {
  const unsigned depth = c->plan.depth * 2; // the receiver is ahead of its sender
  rc->channel = ibv_create_comp_channel(c->device.context);
  rc->cq = rc->channel ? ibv_create_cq(c->device.context, (int)(depth * c->plan.pairs), NULL,
                                       rc->channel, 0)
                       : NULL;
  if (!rc->cq)
    fail_for(errno, "no completion queue of %u entries", depth * c->plan.pairs);
  rc->mr =
      register_memory(&c->device, c->buffer, c->plan.bytes,
                      c->sends ? 0 : IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, "the copy");
  for (uint32_t i = 0; i < c->plan.pairs; i++) {
    rc->qps[i] = make_qp(&c->device, rc->cq, c->sends ? depth : 1, c->sends ? 1 : depth,
                         IBV_ACCESS_REMOTE_WRITE);
    for (unsigned j = 0; j < depth && !c->sends; j++)
      post_receive(rc->qps[i], i);
    if (!connect_qp(&c->device, rc->qps[i], c->tcp))
      fail("the other end has gone before its queue pairs were connected");
  }
  const struct target mine = {(uintptr_t)c->buffer, rc->mr->rkey};
  tell(c->tcp, &mine, sizeof mine);
  if (!hear(c->tcp, &rc->target, sizeof rc->target))
    fail("the other end has gone before it told its memory");
}

static void post_write(struct copy* c, struct rc* rc, uint64_t message) {
  const uint64_t offset = message * c->plan.message;
  struct ibv_sge sge = {(uintptr_t)c->buffer + offset, (uint32_t)message_bytes(c, message),
                        rc->mr->lkey};
  struct ibv_send_wr wr = {.wr_id = message,
                           .sg_list = &sge,
                           .num_sge = 1,
                           .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                           .send_flags = IBV_SEND_SIGNALED,
                           .imm_data = htonl((uint32_t)message),
                           .wr.rdma = {rc->target.address + offset, rc->target.key}},
                     *bad = NULL;
  const int error = ibv_post_send(rc->qps[message % c->plan.pairs], &wr, &bad);
  if (error)
    fail_for(error, "a WRITE of %u bytes cannot be posted", sge.length);
}

// 0: it has failed.
static int take(struct copy* c, const struct rc* rc, const struct ibv_wc* wc) {
  if (wc->status != IBV_WC_SUCCESS) {
    give_up(c, "%s %llu has failed: %s", c->sends ? "message" : "a receive of queue pair",
            (unsigned long long)wc->wr_id, ibv_wc_status_str(wc->status));
    return 0;
  }
  if (!c->sends)
    post_receive(rc->qps[wc->wr_id], wc->wr_id);
  message_done(c, c->sends ? wc->wr_id : ntohl(wc->imm_data));
  return 1;
}

void copy_by_rc(struct copy* c) {
  enum { batch = 16 };
  struct ibv_wc wcs[batch];
  struct rc rc = {0};
  unsigned under_way[most_pairs] = {0};
  uint64_t next = 0;
  int going = 1;
  set_up(c, &rc);
  meet_peer(c);
  start_clock(c);
  while (going && c->messages_done < c->messages) {
    for (; c->sends && next < c->messages && under_way[next % c->plan.pairs] < c->plan.depth;
         next++) {
      under_way[next % c->plan.pairs]++;
      post_write(c, &rc, next);
    }
    const int n = await_completions(c, rc.cq, rc.channel, wcs, batch);
    going = n >= 0;
    for (int i = 0; i < n && going; i++) {
      if (c->sends)
        under_way[wcs[i].wr_id % c->plan.pairs]--;
      going = take(c, &rc, &wcs[i]);
    }
  }
  exchange_outcomes(c);
  for (uint32_t i = 0; i < c->plan.pairs; i++)
    ibv_destroy_qp(rc.qps[i]);
  ibv_destroy_cq(rc.cq);
  ibv_destroy_comp_channel(rc.channel);
  ibv_dereg_mr(rc.mr);
}
