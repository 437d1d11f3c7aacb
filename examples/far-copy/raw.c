// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The ceiling: SENDs of one MTU over UC or UD, as fast as they go, and nobody misses those that are
// lost. The sender counts what it sent, the receiver what arrived.
#include "adverb.h"
#include "copy.h"

#include <errno.h>
#include <stdlib.h>

enum { batch = 32, batches = 8, most_receives = 2048, largest = 40 + 4096, qkey = 0x11111111 };
enum { quiet_ms = 500 }; // after which nothing more is on its way

struct address {
  union ibv_gid gid;
  uint32_t qpn;
  uint16_t lid;
  uint8_t mtu, type; // an ibv_mtu, an ibv_qp_type
};

struct raw {
  struct ibv_comp_channel* channel;
  struct ibv_cq* cq;
  struct ibv_mr* mr;
  struct ibv_qp* qps[most_pairs];
  struct ibv_ah* ahs[most_pairs];
  uint32_t qpns[most_pairs]; // of the other end
  enum ibv_qp_type type;
  uint32_t bytes; // of a packet
  unsigned receives;
  char nowhere[largest]; // every packet is received there, a GRH before it
};

static struct ibv_qp* make(struct copy* c, struct raw* raw, enum ibv_qp_type type) {
  struct ibv_qp_init_attr init = {
      .send_cq = raw->cq,
      .recv_cq = raw->cq,
      .qp_type = type,
      .cap = {c->sends ? batch * batches : 1, c->sends ? 1 : raw->receives, 1, 1, 0}};
  return ibv_create_qp(c->device.pd, &init);
}

static void move(struct ibv_qp* qp, struct ibv_qp_attr attr, enum ibv_qp_state state, int mask) {
  attr.qp_state = state;
  const int error = ibv_modify_qp(qp, &attr, mask | IBV_QP_STATE);
  if (error)
    fail_for(error, "a queue pair cannot go to state %d", state);
}

static void connect_to(struct copy* c, struct raw* raw, uint32_t i, const struct address* theirs) {
  const enum ibv_mtu mtu = theirs->mtu < c->device.mtu ? theirs->mtu : c->device.mtu;
  struct ibv_ah_attr path = {
      .is_global = (uint8_t)c->device.ethernet,
      .dlid = theirs->lid,
      .port_num = (uint8_t)c->device.port,
      .grh = {.dgid = theirs->gid, .sgid_index = (uint8_t)c->device.gid_index, .hop_limit = 64}};
  struct ibv_qp_attr attr = {.port_num = (uint8_t)c->device.port,
                             .qkey = qkey,
                             .ah_attr = path,
                             .path_mtu = mtu,
                             .dest_qp_num = theirs->qpn};
  const int ud = raw->type == IBV_QPT_UD;
  move(raw->qps[i], attr, IBV_QPS_INIT,
       IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
  move(raw->qps[i], attr, IBV_QPS_RTR,
       ud ? 0 : IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
  move(raw->qps[i], attr, IBV_QPS_RTS, IBV_QP_SQ_PSN);
  raw->bytes = 128U << mtu;
  raw->qpns[i] = theirs->qpn;
  if (ud && !(raw->ahs[i] = ibv_create_ah(c->device.pd, &path)))
    fail_for(errno, "no address handle");
}

static void post_receive(struct raw* raw, uint64_t pair) {
  struct ibv_sge sge = {(uintptr_t)raw->nowhere, largest, raw->mr->lkey};
  struct ibv_recv_wr wr = {.wr_id = pair, .sg_list = &sge, .num_sge = 1}, *bad = NULL;
  const int error = ibv_post_recv(raw->qps[pair], &wr, &bad);
  if (error)
    fail_for(error, "a receive cannot be posted");
}

static void set_up(struct copy* c, struct raw* raw) {
  const unsigned most = 32767 / c->plan.pairs; // of a completion queue of soft-RoCE
  raw->receives = most < most_receives ? most : most_receives;
  const int entries = (int)(c->plan.pairs * (c->sends ? batch * batches : raw->receives));
  raw->channel = ibv_create_comp_channel(c->device.context);
  raw->cq = raw->channel ? ibv_create_cq(c->device.context, entries, NULL, raw->channel, 0) : NULL;
  if (!raw->cq)
    fail_for(errno, "no completion queue of %d entries", entries);
  raw->mr = register_memory(&c->device, c->sends ? c->buffer : raw->nowhere,
                            c->sends ? c->plan.bytes : largest,
                            c->sends ? 0 : IBV_ACCESS_LOCAL_WRITE, "the copy");
  raw->type = c->plan.transport == ADVERB_TRANSPORT_UD ? IBV_QPT_UD : IBV_QPT_UC;
  for (uint32_t i = 0; i < c->plan.pairs; i++) {
    struct address theirs;
    raw->qps[i] = make(c, raw, raw->type);
    if (!raw->qps[i] && i == 0 && c->plan.transport == ADVERB_TRANSPORT_AUTO)
      raw->qps[i] = make(c, raw, raw->type = IBV_QPT_UD); // few devices have UC
    if (!raw->qps[i])
      fail_for(errno, "no %s queue pair", raw->type == IBV_QPT_UD ? "UD" : "UC");
    const struct address mine = {.gid = c->device.gid,
                                 .qpn = raw->qps[i]->qp_num,
                                 .lid = c->device.lid,
                                 .mtu = (uint8_t)c->device.mtu,
                                 .type = (uint8_t)raw->type};
    tell(c->tcp, &mine, sizeof mine);
    if (!hear(c->tcp, &theirs, sizeof theirs))
      fail("the other end has gone before its queue pairs were connected");
    if (theirs.type != mine.type)
      fail("the ends have different devices: choose UD by --transport ud");
    connect_to(c, raw, i, &theirs);
    for (unsigned j = 0; j < raw->receives && !c->sends; j++)
      post_receive(raw, i);
  }
}

// Packets from `first` on, at most a batch; the last one has the completion. Returns how many.
static unsigned post_batch(struct copy* c, struct raw* raw, uint32_t pair, uint64_t first) {
  struct ibv_sge sges[batch];
  struct ibv_send_wr wrs[batch], *bad = NULL;
  unsigned n = 0;
  for (uint64_t at = first * raw->bytes; n < batch && at < c->plan.bytes; at += raw->bytes, n++) {
    const uint64_t left = c->plan.bytes - at;
    sges[n] = (struct ibv_sge){(uintptr_t)c->buffer + at,
                               left < raw->bytes ? (uint32_t)left : raw->bytes, raw->mr->lkey};
    wrs[n] = (struct ibv_send_wr){.wr_id = pair,
                                  .next = &wrs[n + 1],
                                  .sg_list = &sges[n],
                                  .num_sge = 1,
                                  .opcode = IBV_WR_SEND};
    if (raw->type == IBV_QPT_UD) {
      wrs[n].wr.ud.ah = raw->ahs[pair];
      wrs[n].wr.ud.remote_qpn = raw->qpns[pair];
      wrs[n].wr.ud.remote_qkey = qkey;
    }
  }
  wrs[n - 1].next = NULL;
  wrs[n - 1].send_flags = IBV_SEND_SIGNALED;
  const int error = ibv_post_send(raw->qps[pair], wrs, &bad);
  if (error)
    fail_for(error, "packets cannot be sent");
  return n;
}

static void send_all(struct copy* c, struct raw* raw) {
  const uint64_t packets = (c->plan.bytes + raw->bytes - 1) / raw->bytes;
  unsigned under_way[most_pairs] = {0}, all = 0; // batches
  uint64_t next = 0;
  struct ibv_wc wc;
  while (next < packets || all) {
    for (uint32_t i = 0; i < c->plan.pairs && next < packets; i++) {
      if (under_way[i] == batches)
        continue;
      next += post_batch(c, raw, i, next);
      under_way[i]++;
      all++;
    }
    while (take_completions(raw->cq, NULL, &wc, 1)) {
      if (wc.status != IBV_WC_SUCCESS) {
        give_up(c, "a packet has failed: %s", ibv_wc_status_str(wc.status));
        return;
      }
      under_way[wc.wr_id]--;
      all--;
    }
    c->ended = now_ns();
    if (c->ended >= c->until) {
      give_up(c, "%llu of %llu packets have gone within %u s", (unsigned long long)next,
              (unsigned long long)packets, c->plan.seconds);
      return;
    }
    c->bytes_done = next * raw->bytes;
    draw_progress(c);
  }
  c->outcome.packets = packets;
  c->outcome.good = 1;
}

static int take_packets(struct copy* c, struct raw* raw, const struct ibv_wc* wcs, int n) {
  for (int i = 0; i < n; i++) {
    if (wcs[i].status != IBV_WC_SUCCESS) {
      give_up(c, "a receive has failed: %s", ibv_wc_status_str(wcs[i].status));
      return 0;
    }
    post_receive(raw, wcs[i].wr_id);
  }
  c->outcome.packets += (uint64_t)n;
  c->bytes_done = c->outcome.packets * raw->bytes;
  return 1;
}

// Until the sender has said that it has sent all, and nothing more comes.
static void receive_all(struct copy* c, struct raw* raw) {
  struct ibv_wc wcs[batch];
  int n = 0;
  while ((n = await_completions(c, raw->cq, raw->channel, wcs, batch)) >= 0)
    if (!take_packets(c, raw, wcs, n))
      return;
  struct pollfd sender = {.fd = c->tcp, .events = POLLIN};
  if (poll(&sender, 1, 0) != 1)
    return; // given up for another reason
  c->outcome.why[0] = 0;
  for (uint64_t last = now_ns(); now_ns() - last < quiet_ms * UINT64_C(1000000);) {
    n = take_completions(raw->cq, NULL, wcs, batch);
    if (!take_packets(c, raw, wcs, n))
      return;
    if (n)
      last = now_ns();
    else
      poll(NULL, 0, 5);
  }
  c->outcome.good = 1;
}

void send_raw(struct copy* c) {
  struct raw* raw = calloc(1, sizeof *raw);
  if (!raw)
    fail("no memory for queue pairs");
  set_up(c, raw);
  meet_peer(c);
  start_clock(c);
  (c->sends ? send_all : receive_all)(c, raw);
  exchange_outcomes(c);
  for (uint32_t i = 0; i < c->plan.pairs; i++) {
    ibv_destroy_qp(raw->qps[i]);
    if (raw->ahs[i])
      ibv_destroy_ah(raw->ahs[i]);
  }
  ibv_destroy_cq(raw->cq);
  ibv_destroy_comp_channel(raw->channel);
  ibv_dereg_mr(raw->mr);
  free(raw);
}
