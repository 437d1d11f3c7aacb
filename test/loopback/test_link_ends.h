// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Two ends joined by a bad link, and numbered packets from one to the other.
#pragma once
#include "test_setting.h"

inline constexpr const char* kLink = "ADVERB_LOOPBACK_LINK";

enum class Kind { uc_send, uc_write, ud_send };

// A sender and a receiver. A packet carries its number in every word of its payload.
class Line {
public:
  static constexpr uint32_t kBatch = 500;     // packets sent before the receiver is polled
  static constexpr uint32_t kReceives = 2048; // posted at any time: enough for every duplicate
  static constexpr uint32_t kBytes = 64;      // of a payload
  static constexpr uint32_t kRoom = 128;      // of a receive, with the GRH of a datagram
  static constexpr uint32_t kGrh = 40;

  struct Arrival {
    uint32_t number;
    bool whole; // every word of the payload is the number
  };

  Line(Kind kind, const std::string& setting)
      : kind(kind), setting(kLink, setting), sender(options(kind)), receiver(options(kind)) {
    sender.connect(receiver.address());
    receiver.connect(sender.address());
    sender.fill_route(route);
    ah = ibv_create_ah(sender.pd, &route);
    REQUIRE(ah != nullptr);
  }
  ~Line() { CHECK(ibv_destroy_ah(ah) == 0); }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  void post_receives(uint32_t count = kReceives) {
    for (uint32_t i = 0; i < count; ++i)
      repost(i);
  }
  void repost(uint64_t slot) {
    if (receiver.receive(slot * kRoom, kRoom, slot) != 0)
      FAIL("no receive could be posted");
  }

  // Posts packet `number`, and waits for its completion.
  void send(uint32_t number) {
    fill(sender.buffer.data(), number);
    ibv_sge part = sender.sge(0, kBytes);
    ibv_send_wr wr = {}, *bad = nullptr;
    wr.sg_list = &part;
    wr.num_sge = 1;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.imm_data = number;
    wr.opcode = kind == Kind::uc_send    ? IBV_WR_SEND_WITH_IMM
                : kind == Kind::uc_write ? IBV_WR_RDMA_WRITE_WITH_IMM
                                         : IBV_WR_SEND;
    if (kind == Kind::ud_send) {
      wr.wr.ud.ah = ah;
      wr.wr.ud.remote_qpn = receiver.qp->qp_num;
      wr.wr.ud.remote_qkey = 0x1234;
    } else {
      wr.wr.rdma.remote_addr = receiver.address().buffer + written(number);
      wr.wr.rdma.rkey = receiver.mr->rkey;
    }
    if (ibv_post_send(sender.qp, &wr, &bad) != 0 || sender.completion().status != IBV_WC_SUCCESS)
      FAIL("packet " << number << " was not sent");
    fill(sender.buffer.data(), ~number); // a packet that is still on its way has its own bytes
  }

  // The next arrival, which posts its receive again.
  Arrival arrival() { return take(receiver.completion()); }

  // What has arrived so far.
  std::vector<Arrival> drain() {
    std::vector<Arrival> arrivals;
    ibv_wc wc = {};
    while (ibv_poll_cq(receiver.cq, 1, &wc) == 1)
      arrivals.push_back(take(wc));
    return arrivals;
  }

  // Sends packets from 0 on. A packet of a link that only loses or doubles has arrived, or never
  // will, when its sender's completion is there.
  std::vector<Arrival> run(uint32_t count) {
    std::vector<Arrival> arrivals;
    post_receives();
    for (uint32_t number = 0; number < count; ++number) {
      send(number);
      if (number % kBatch == kBatch - 1 || number == count - 1)
        for (const Arrival& each : drain())
          arrivals.push_back(each);
    }
    return arrivals;
  }

  static size_t written(uint32_t number) {
    return size_t{kReceives} * kRoom + size_t{number % kReceives} * kRoom;
  }

  const Kind kind;
  Setting setting;
  End sender, receiver;

private:
  static EndOptions options(Kind kind) {
    EndOptions made;
    made.type = kind == Kind::ud_send ? IBV_QPT_UD : IBV_QPT_UC;
    made.recv_wr = kReceives;
    made.cqe = 2 * kReceives;
    made.bytes = size_t{2} * kReceives * kRoom;
    return made;
  }

  static void fill(char* at, uint32_t number) {
    for (uint32_t i = 0; i < kBytes; i += sizeof(number))
      memcpy(at + i, &number, sizeof(number));
  }

  Arrival take(const ibv_wc& wc) {
    if (wc.status != IBV_WC_SUCCESS)
      FAIL("a receive failed with status " << wc.status);
    const char* at = receiver.buffer.data() + wc.wr_id * kRoom;
    uint32_t number = wc.imm_data;
    if (kind == Kind::ud_send) {
      at += kGrh;
      memcpy(&number, at, sizeof(number));
    }
    if (kind == Kind::uc_write)
      at = receiver.buffer.data() + written(number);
    std::array<char, kBytes> expected = {};
    fill(expected.data(), number);
    const bool whole = memcmp(at, expected.data(), kBytes) == 0;
    repost(wc.wr_id);
    return {number, whole};
  }

  ibv_ah_attr route = {};
  ibv_ah* ah = nullptr;
};
