// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A program of adverb.h and, beside it, one of plain verbs: messages between two ends of this
// process in one thread, which makes progress at one end and at the other by turns.
//
//   bench_sdr send MESSAGES RATE       prints nanoseconds per KiB of payload; RATE in bytes a
//   second,
//                                      0: as the library finds out
//   bench_sdr raw MESSAGES             the same of SENDs of an MTU each on a UC queue pair
//   bench_sdr count left|right MESSAGES CODE   for callgrind, which counts what the sender (left)
//   or
//                                      the receiver executes in calls; prints the packets of data
//                                      and of parity. CODE: none or mds
#include "adverb.h"
#include "ends.h"

#include <chrono>
#include <cstring>
#include <string_view>

#if __has_include(<valgrind/callgrind.h>)
#include <valgrind/callgrind.h>
#else
#define CALLGRIND_TOGGLE_COLLECT
#endif

namespace {

using bench::Device;
using bench::must;

constexpr size_t message_bytes = 1 << 20;
constexpr unsigned outstanding = 4; // messages
constexpr unsigned warm_up = 8;
constexpr uint32_t receives = 4096;

double since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
}

// Calls of one end count, or of none.
struct Counted {
  explicit Counted(bool counts) : counts_(counts) {
    if (counts_)
      CALLGRIND_TOGGLE_COLLECT;
  }
  ~Counted() {
    if (counts_)
      CALLGRIND_TOGGLE_COLLECT;
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

private:
  bool counts_;
};

struct Endpoints {
  adverb_endpoint left = 0;
  adverb_endpoint right = 0;
  std::vector<unsigned char> source = std::vector<unsigned char>(message_bytes, 1);
  std::vector<unsigned char> target = std::vector<unsigned char>(message_bytes * outstanding);
  uint32_t repair = ADVERB_REPAIR_NACK;
  bool count_left = false;
  bool count_right = false;

  Endpoints(Device& device, uint64_t rate) {
    for (adverb_endpoint* end : {&left, &right}) {
      adverb_endpoint_options options{};
      options.size = sizeof options;
      options.flags = ADVERB_MANUAL_PROGRESS;
      options.transport = ADVERB_TRANSPORT_UC;
      options.receives = receives;
      options.rate = rate;
      must(adverb_endpoint_create(device.pd, &options, end) == 0, "adverb_endpoint_create");
    }
    adverb_address a{};
    adverb_address b{};
    must(adverb_endpoint_address(left, &a) == 0 && adverb_endpoint_address(right, &b) == 0 &&
             adverb_endpoint_connect(left, &b) == 0 && adverb_endpoint_connect(right, &a) == 0,
         "adverb_endpoint_connect");
  }
  ~Endpoints() {
    adverb_endpoint_destroy(left);
    adverb_endpoint_destroy(right);
  }
  Endpoints(const Endpoints&) = delete;
  Endpoints& operator=(const Endpoints&) = delete;

  void post(unsigned message) {
    adverb_message receive = 0;
    adverb_message send = 0;
    adverb_send_options options{};
    options.size = sizeof options;
    options.repair = repair;
    {
      const Counted counted(count_right);
      must(adverb_receive(right, &target[message % outstanding * message_bytes], message_bytes,
                          nullptr, &receive) == 0,
           "adverb_receive");
    }
    const Counted counted(count_left);
    must(adverb_send(left, source.data(), message_bytes, &options, &send) == 0, "adverb_send");
  }
  // Progress at one end, and its events; messages that have ended there.
  static unsigned turn(adverb_endpoint end, bool counts) {
    const Counted counted(counts);
    adverb_progress(end);
    unsigned ended = 0;
    adverb_event event;
    while (adverb_poll_event(end, &event) == 0) {
      must(event.status == ADVERB_COMPLETE, "a message");
      must(adverb_release(event.message) == 0, "adverb_release");
      ++ended;
    }
    return ended;
  }
  void run(unsigned messages) {
    unsigned posted = 0;
    unsigned sent = 0;
    unsigned received = 0;
    while (sent < messages || received < messages) {
      for (; posted < messages && posted - std::min(sent, received) < outstanding; ++posted)
        post(posted);
      sent += turn(left, count_left);
      received += turn(right, count_right);
    }
  }
  adverb_statistics statistics() const {
    adverb_statistics s{};
    s.size = sizeof s;
    must(adverb_query_statistics(left, &s) == 0, "adverb_query_statistics");
    return s;
  }
};

void send(unsigned messages, uint64_t rate) {
  Device device;
  Endpoints ends(device, rate);
  ends.run(warm_up);
  const auto start = std::chrono::steady_clock::now();
  ends.run(messages);
  printf("%f\n", since(start) / (messages * double{message_bytes} / 1024));
}

void count(bool left, unsigned messages, bool code) {
  Device device;
  Endpoints ends(device, UINT64_C(1) << 40);
  ends.repair = code ? ADVERB_REPAIR_MDS : ADVERB_REPAIR_NACK;
  ends.run(warm_up);
  ends.count_left = left;
  ends.count_right = !left;
  const adverb_statistics before = ends.statistics();
  ends.run(messages);
  const adverb_statistics after = ends.statistics();
  must(after.sent_again == before.sent_again, "a link that loses nothing");
  const uint64_t parity = after.sent_parity - before.sent_parity;
  printf("%lu %lu\n", after.sent - before.sent - parity, parity);
}

// UC queue pairs, each with buffers for what is under way, as an endpoint has them.
constexpr uint32_t packet = 4096;
constexpr uint32_t sends = 256;
constexpr unsigned batch = 16; // posted by one call; the last one completes

struct RawEnd {
  std::vector<char> memory = std::vector<char>(size_t{packet} * (receives + sends));
  ibv_mr* mr;
  ibv_cq* sent;
  ibv_cq* received;
  ibv_qp* qp;

  explicit RawEnd(Device& device) {
    mr = ibv_reg_mr(device.pd, memory.data(), memory.size(), bench::rights);
    sent = ibv_create_cq(device.context, sends, nullptr, nullptr, 0);
    received = ibv_create_cq(device.context, receives, nullptr, nullptr, 0);
    must(mr != nullptr && sent != nullptr && received != nullptr, "ibv_create_cq");
    ibv_qp_init_attr init{};
    init.send_cq = sent;
    init.recv_cq = received;
    init.qp_type = IBV_QPT_UC;
    init.cap = {sends, receives, 1, 1, 0};
    qp = ibv_create_qp(device.pd, &init);
    must(qp != nullptr, "ibv_create_qp");
  }
  void connect(Device& device, uint32_t peer) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    must(ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0,
         "INIT");
    for (uint32_t i = 0; i < receives; i += batch) {
      uint64_t slots[batch];
      for (unsigned j = 0; j < batch; ++j)
        slots[j] = i + j;
      receive(slots, batch);
    }
    attr.qp_state = IBV_QPS_RTR;
    attr.path_mtu = IBV_MTU_4096;
    attr.dest_qp_num = peer;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.sgid_index = 1;
    must(ibv_query_gid(device.context, 1, 1, &attr.ah_attr.grh.dgid) == 0, "ibv_query_gid");
    must(ibv_modify_qp(qp, &attr,
                       IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                           IBV_QP_RQ_PSN) == 0,
         "RTR");
    attr.qp_state = IBV_QPS_RTS;
    must(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0, "RTS");
  }
  void receive(const uint64_t* slots, unsigned count) {
    ibv_sge sges[2 * batch];
    ibv_recv_wr wrs[2 * batch];
    for (unsigned i = 0; i < count; ++i) {
      sges[i] = {reinterpret_cast<uintptr_t>(&memory[slots[i] * packet]), packet, mr->lkey};
      wrs[i] = {slots[i], i + 1 < count ? &wrs[i + 1] : nullptr, &sges[i], 1};
    }
    ibv_recv_wr* bad = nullptr;
    must(ibv_post_recv(qp, wrs, &bad) == 0, "ibv_post_recv");
  }
  void send(uint64_t first) {
    ibv_sge sges[batch];
    ibv_send_wr wrs[batch];
    for (unsigned i = 0; i < batch; ++i) {
      const uint64_t slot = receives + (first + i) % sends;
      sges[i] = {reinterpret_cast<uintptr_t>(&memory[slot * packet]), packet, mr->lkey};
      wrs[i] = {};
      wrs[i].next = i + 1 < batch ? &wrs[i + 1] : nullptr;
      wrs[i].sg_list = &sges[i];
      wrs[i].num_sge = 1;
      wrs[i].opcode = IBV_WR_SEND;
      wrs[i].send_flags = i + 1 < batch ? 0 : IBV_SEND_SIGNALED;
    }
    ibv_send_wr* bad = nullptr;
    must(ibv_post_send(qp, wrs, &bad) == 0, "ibv_post_send");
  }
};

void run_raw(RawEnd& left, RawEnd& right, uint64_t packets) {
  uint64_t posted = 0;
  uint64_t completed = 0;
  uint64_t arrived = 0;
  ibv_wc wc[2 * batch];
  while (arrived < packets) {
    for (unsigned i = 0; i < 128 / batch && posted < packets && posted - completed < sends; ++i) {
      left.send(posted);
      posted += batch;
    }
    completed += static_cast<unsigned>(ibv_poll_cq(left.sent, 2 * batch, wc)) * batch;
    for (;;) {
      const int count = ibv_poll_cq(right.received, 2 * batch, wc);
      if (count == 0)
        break;
      uint64_t slots[2 * batch];
      for (int i = 0; i < count; ++i) {
        must(wc[i].status == IBV_WC_SUCCESS && wc[i].byte_len == packet, "a packet");
        slots[i] = wc[i].wr_id;
      }
      right.receive(slots, static_cast<unsigned>(count));
      arrived += static_cast<unsigned>(count);
    }
  }
}

void raw(unsigned messages) {
  Device device;
  RawEnd left(device);
  RawEnd right(device);
  left.connect(device, right.qp->qp_num);
  right.connect(device, left.qp->qp_num);
  constexpr uint64_t packets = message_bytes / packet;
  run_raw(left, right, warm_up * packets);
  const auto start = std::chrono::steady_clock::now();
  run_raw(left, right, messages * packets);
  printf("%f\n", since(start) / (messages * double{message_bytes} / 1024));
}

} // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  if (mode == "send" && argc == 4)
    send(static_cast<unsigned>(atoi(argv[2])), strtoull(argv[3], nullptr, 10));
  else if (mode == "raw" && argc == 3)
    raw(static_cast<unsigned>(atoi(argv[2])));
  else if (mode == "count" && argc == 5)
    count(strcmp(argv[2], "left") == 0, static_cast<unsigned>(atoi(argv[3])),
          strcmp(argv[4], "mds") == 0);
  else
    must(false, "usage: bench_sdr send|raw|count ...");
  return 0;
}
