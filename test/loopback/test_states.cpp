// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// States and events.
#include "test_ends.h"

#include <fcntl.h>
#include <poll.h>

namespace {

bool readable(int fd, int patience_ms = 0) {
  pollfd entry = {fd, POLLIN, 0};
  return poll(&entry, 1, patience_ms) == 1;
}

// Keeps trying a peer that is not there for seconds, so that requests stay queued.
EndOptions patient() {
  EndOptions options;
  options.timeout = 20;
  return options;
}

} // namespace

TEST_CASE("a transition needs its attributes and takes no others") {
  End end, peer;
  CHECK(end.to_rts() == EINVAL); // from RESET
  ibv_qp_attr attr = {};
  attr.qp_state = IBV_QPS_INIT;
  attr.port_num = 1;
  CHECK(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE | IBV_QP_PORT) == EINVAL);
  CHECK(end.to_init() == 0);
  attr.qp_state = IBV_QPS_RTR;
  CHECK(ibv_modify_qp(end.qp, &attr, IBV_QP_STATE) == EINVAL);
  CHECK(end.to_rtr(peer.address()) == 0);
  CHECK(end.move(IBV_QPS_RTS, IBV_QP_TIMEOUT) == EINVAL);
  CHECK(end.to_rts() == 0);
  CHECK(end.move(IBV_QPS_INIT) == EINVAL);
  CHECK(end.move(IBV_QPS_ERR) == 0);
  CHECK(end.move(IBV_QPS_RESET) == 0);
  CHECK(end.to_init() == 0);
}

TEST_CASE("posting is refused where the state forbids it") {
  End end, peer;
  CHECK(end.receive(0, 8) == EINVAL); // RESET
  CHECK(end.post(IBV_WR_SEND, peer.address(), 0, 0, 8) == EINVAL);
  REQUIRE(end.to_init() == 0);
  CHECK(end.receive(0, 8) == 0);
  CHECK(end.post(IBV_WR_SEND, peer.address(), 0, 0, 8) == EINVAL);
}

TEST_CASE("SQD holds the send queue, RTS lets it go") {
  Pair p;
  REQUIRE(p.a.move(IBV_QPS_SQD, IBV_QP_EN_SQD_ASYNC_NOTIFY) == 0);
  CHECK(p.a.event().event_type == IBV_EVENT_SQ_DRAINED);
  REQUIRE(p.a.post(IBV_WR_RDMA_WRITE, p.b.address(), 0, 0, 8) == 0);
  CHECK(p.a.quiet());
  REQUIRE(p.b.post(IBV_WR_RDMA_WRITE, p.a.address(), 0, 0, 8) == 0); // it still answers
  CHECK(p.b.completion().status == IBV_WC_SUCCESS);
  REQUIRE(p.a.move(IBV_QPS_RTS) == 0);
  CHECK(p.a.completion().status == IBV_WC_SUCCESS);
}

TEST_CASE("RESET forgets both queues without completions") {
  End a(patient()), b;
  a.connect(b.address());
  REQUIRE(a.receive(0, 8) == 0);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, b.address(), 0, 0, 8) == 0);
  REQUIRE(a.move(IBV_QPS_RESET) == 0);
  CHECK(a.quiet());
  a.connect(b.address());
  b.connect(a.address());
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, b.address(), 0, 0, 8) == 0);
  CHECK(a.completion().status == IBV_WC_SUCCESS);
}

TEST_CASE("RESET and destroy clean the CQs, if so configured") {
  const bool destroy = GENERATE(false, true);
  End a(patient()), b(patient());
  a.connect(b.address());
  b.connect(a.address());
  REQUIRE(a.receive(0, 8, 5) == 0);
  REQUIRE(b.post(IBV_WR_SEND, a.address(), 0, 0, 8, IBV_SEND_SIGNALED, 6) == 0);
  CHECK(b.completion().wr_id == 6); // a's receive is in its CQ now
  if (destroy) {
    REQUIRE(ibv_destroy_qp(a.qp) == 0);
    a.qp = nullptr;
  } else {
    REQUIRE(a.move(IBV_QPS_RESET) == 0);
  }
  if (getenv("ADVERB_LOOPBACK_CLEAN") == nullptr)
    CHECK(a.completion().wr_id == 5);
  CHECK(a.quiet());
}

TEST_CASE("ERR flushes both queues in order") {
  End a(patient()), b;
  a.connect(b.address());
  for (uint64_t id = 0; id < 3; ++id)
    REQUIRE(a.post(IBV_WR_RDMA_WRITE, b.address(), 0, 0, 8, 0, id) == 0);
  REQUIRE(a.receive(0, 8, 10) == 0);
  REQUIRE(a.move(IBV_QPS_ERR) == 0);
  for (uint64_t id : {0, 1, 2, 10}) {
    const ibv_wc wc = a.completion();
    CHECK(wc.wr_id == id);
    CHECK(wc.status == IBV_WC_WR_FLUSH_ERR);
  }
  CHECK(a.quiet());
}

TEST_CASE("an armed CQ wakes its channel once") {
  EndOptions options;
  options.channel = true;
  Pair p({}, options);
  REQUIRE(p.b.receive(0, 8) == 0);
  REQUIRE(p.b.receive(0, 8) == 0);
  fcntl(p.b.channel->fd, F_SETFL, O_NONBLOCK);
  ibv_cq* cq = nullptr;
  void* cq_context = nullptr;
  CHECK(ibv_get_cq_event(p.b.channel, &cq, &cq_context) == -1);
  CHECK(errno == EAGAIN);
  SECTION("any completion") {
    REQUIRE(ibv_req_notify_cq(p.b.cq, 0) == 0);
    REQUIRE(p.a.post(IBV_WR_SEND, p.b.address(), 0, 0, 8) == 0);
    REQUIRE(p.a.post(IBV_WR_SEND, p.b.address(), 0, 0, 8) == 0);
    p.b.completion();
    p.b.completion();
    CHECK(readable(p.b.channel->fd, 10000));
    REQUIRE(ibv_get_cq_event(p.b.channel, &cq, &cq_context) == 0);
    CHECK(cq == p.b.cq);
    CHECK(!readable(p.b.channel->fd));
    ibv_ack_cq_events(cq, 1);
  }
  SECTION("solicited only") {
    REQUIRE(ibv_req_notify_cq(p.b.cq, 1) == 0);
    REQUIRE(p.a.post(IBV_WR_SEND, p.b.address(), 0, 0, 8) == 0);
    p.b.completion();
    CHECK(!readable(p.b.channel->fd));
    REQUIRE(p.a.post(IBV_WR_SEND, p.b.address(), 0, 0, 8, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED) ==
            0);
    CHECK(readable(p.b.channel->fd, 10000));
  } // the unread event goes with its CQ
}

TEST_CASE("an SRQ feeds its QPs and reports its limit") {
  EndOptions options;
  options.srq = true;
  Pair p({}, options);
  for (uint64_t id = 0; id < 3; ++id)
    REQUIRE(p.b.receive(100 * id, 100, id) == 0);
  ibv_srq_attr attr = {};
  attr.srq_limit = 2;
  REQUIRE(ibv_modify_srq(p.b.srq, &attr, IBV_SRQ_LIMIT) == 0);
  REQUIRE(p.a.post(IBV_WR_SEND, p.b.address(), 0, 0, 8) == 0);
  REQUIRE(p.a.post(IBV_WR_SEND, p.b.address(), 0, 0, 8) == 0);
  CHECK(p.b.completion().wr_id == 0);
  CHECK(p.b.completion().wr_id == 1);
  const ibv_async_event got = p.b.event();
  CHECK(got.event_type == IBV_EVENT_SRQ_LIMIT_REACHED);
  CHECK(got.element.srq == p.b.srq);
  REQUIRE(ibv_query_srq(p.b.srq, &attr) == 0);
  CHECK(attr.srq_limit == 0);
  REQUIRE(p.b.move(IBV_QPS_ERR) == 0);
  CHECK(p.b.event().event_type == IBV_EVENT_QP_LAST_WQE_REACHED);
  CHECK(p.b.quiet()); // the SRQ's receives are not flushed
}

TEST_CASE("a CQ overrun is reported") {
  EndOptions small;
  small.cqe = 2;
  Pair p(small, {});
  for (int i = 0; i < 3; ++i)
    REQUIRE(p.a.post(IBV_WR_RDMA_WRITE, p.b.address(), 0, 0, 8) == 0);
  const ibv_async_event got = p.a.event();
  CHECK(got.event_type == IBV_EVENT_CQ_ERR);
  CHECK(got.element.cq == p.a.cq);
}

TEST_CASE("a resized CQ keeps what it holds") {
  Pair p;
  for (uint64_t id = 0; id < 5; ++id)
    REQUIRE(p.a.post(IBV_WR_RDMA_WRITE, p.b.address(), 0, 0, 8, IBV_SEND_SIGNALED, id) == 0);
  REQUIRE(p.b.receive(0, 8) == 0);
  REQUIRE(p.a.post(IBV_WR_SEND, p.b.address(), 0, 0, 8, 0) == 0);
  p.b.completion(); // the five have completed before it
  CHECK(ibv_resize_cq(p.a.cq, 4) == EINVAL);
  CHECK(ibv_resize_cq(p.a.cq, 5) == 0);
  for (uint64_t id = 0; id < 5; ++id)
    CHECK(p.a.completion().wr_id == id);
}

TEST_CASE("the device describes itself") {
  End end;
  ibv_device_attr attr = {};
  REQUIRE(ibv_query_device(end.context, &attr) == 0);
  CHECK(attr.max_cqe == 32767);
  CHECK(ibv_create_cq(end.context, attr.max_cqe + 1, nullptr, nullptr, 0) == nullptr);
  ibv_cq* largest = ibv_create_cq(end.context, attr.max_cqe, nullptr, nullptr, 0);
  REQUIRE(largest != nullptr);
  CHECK(ibv_destroy_cq(largest) == 0);
  ibv_port_attr port = {};
  REQUIRE(ibv_query_port(end.context, 1, &port) == 0);
  CHECK(port.state == IBV_PORT_ACTIVE);
  CHECK(port.link_layer == IBV_LINK_LAYER_ETHERNET);
  ibv_gid_entry entries[4] = {};
  CHECK(ibv_query_gid_table(end.context, entries, 4, 0) == 2);
  CHECK(entries[1].gid_type == IBV_GID_TYPE_ROCE_V2);
  ibv_device_attr_ex extended = {};
  CHECK(ibv_query_device_ex(end.context, nullptr, &extended) == 0);
}
