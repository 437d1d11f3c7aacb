// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A send queue by itself: a provider, a software lane and two ways of the test's own. One Bench at
// a time.
#pragma once

#include "catch.h"
#include "provider/real.h"
#include "queue/queue.h"
#include "steering/opcode.h"
#include "test_world.h"
#include "transfer/message_lane.h"

#include <cerrno>
#include <deque>

namespace adverb::test {

using namespace steering;
using queue::QpLane;
using queue::Queue;

// Registers staging, and nothing else is asked of it.
inline const provider::Real& real() {
  static const provider::Real table = [] {
    provider::Real r;
    r.ibv_reg_mr = [](ibv_pd*, void* start, size_t length, int) {
      auto* mr = new ibv_mr{};
      mr->addr = start;
      mr->length = length;
      mr->lkey = 7;
      return mr;
    };
    r.ibv_dereg_mr = [](ibv_mr* mr) {
      delete mr;
      return 0;
    };
    return r;
  }();
  return table;
}

// Takes what is posted, but for the request `refuse` and what follows it in its list.
struct Device final : QpLane::Device {
  int post_send_to_provider(ibv_send_wr* list, ibv_send_wr** bad) override {
    ++calls;
    for (; list != nullptr; list = list->next) {
      if (refuse && (list->wr_id & queue::marker_bit) == 0 && list->wr_id == *refuse) {
        *bad = list;
        return ENOMEM;
      }
      if (keep)
        posted.push_back(*list);
    }
    return 0;
  }
  // The provider's function, where a queue pair calls it for itself; qp_context is this.
  static int post_passthrough(ibv_qp* qp, ibv_send_wr* list, ibv_send_wr** bad) {
    return static_cast<Device*>(qp->qp_context)->post_send_to_provider(list, bad);
  }
  bool take_marker() override { return true; }
  void marker_landed() override {}
  void aside_landed(bool) override {}
  void executed_again() override { ++again; }
  void request_drain() override {}
  void request_drain_in_time() override {}

  std::deque<ibv_send_wr> posted;
  std::optional<uint64_t> refuse;
  int calls = 0;
  int again = 0; // requests that had landed already
  bool keep = true;
};

// The lane of the test's software way: one unit for each request.
struct SoftLane final : Lane {
  explicit SoftLane(Ring& r) : ring(r) {}
  bool can_be_cut() const noexcept override { return true; }
  void cut(uint64_t from) override {
    for (uint64_t s = std::max(from, ring.head()); s < ring.tail(); ++s)
      if (Request& r = ring.at(s); r.parts != 0) {
        gave(r.wr.opcode, r.parts);
        r.parts = 0;
      }
  }
  void put(Request& r) {
    r.become(Event::sent);
    ++r.parts;
    took(r.wr.opcode);
  }
  void take(Request& r) {
    --r.parts;
    gave(r.wr.opcode);
  }
  Ring& ring;
};

// What the two ways of the test share with it.
struct Stand {
  WayContext* context = nullptr;
  SoftLane* lane = nullptr;
  int pieces = 1; // a request goes out in so many turns
  bool short_of_memory = false;
  int returned = 0;
  int misses = 0; // so many landings, the next ones, are not what is there
  std::vector<uint64_t> landed;
};
inline Stand* stand = nullptr;

// Carries WRITE and READ by the software lane, a WRITE_WITH_IMM by half.
struct Soft final : Way {
  Lane& lane(const Request& r) override {
    return r.stage == Stage::half ? static_cast<Lane&>(stand->context->device) : *stand->lane;
  }
  Step issue(Request& r, int&) override {
    if (r.stage == Stage::half) {
      stand->context->device.post(r, r.wr, 0, *this);
      return Step::issued;
    }
    if (stand->short_of_memory)
      throw std::bad_alloc();
    const auto pieces = static_cast<uint64_t>(stand->pieces);
    if (r.sent < pieces) {
      stand->lane->put(r);
      ++r.sent;
    }
    const bool all = r.sent == pieces;
    return all && r.wr.opcode != IBV_WR_RDMA_WRITE_WITH_IMM ? Step::issued : Step::wait;
  }
  void landed(Request& r) override { stand->landed.push_back(r.seq); }
  void returned(Request&) override { ++stand->returned; }
};

struct Hard final : Way {
  Lane& lane(const Request& r) override {
    return r.missed ? static_cast<Lane&>(*stand->lane) : stand->context->device;
  }
  Step issue(Request& r, int&) override {
    if (r.missed)
      stand->lane->put(r);
    else
      stand->context->device.post(r, r.wr, 0, *this);
    return Step::issued;
  }
  void landed(Request& r) override {
    stand->landed.push_back(r.seq);
    if (stand->misses != 0) {
      --stand->misses;
      stand->context->queue.missed(r);
    }
  }
  void returned(Request&) override { ++stand->returned; }
};

// The lane is theirs: the queue hears of it when the first of them is made.
inline void open_lane(WayContext& context) {
  if (stand->context == nullptr)
    context.queue.open_lane(*stand->lane);
  stand->context = &context;
}

inline const WayFunctions soft_functions{
    [](const Facts& f) noexcept { return is_one_sided(f.opcode) ? by_virtual_key(f) : Fit::no; },
    [](WayContext& s) -> std::unique_ptr<Way> {
      open_lane(s);
      return std::make_unique<Soft>();
    }};
inline const WayFunctions hard_functions{[](const Facts&) noexcept { return Fit::yes; },
                                         [](WayContext& s) -> std::unique_ptr<Way> {
                                           open_lane(s);
                                           return std::make_unique<Hard>();
                                         }};
inline const WayRow soft_row{"soft", "requests of a test", observe::Counter::posts_queued,
                             soft_functions};
inline const WayRow hard_row{"hard", "requests of a test", observe::Counter::posts_queued,
                             hard_functions};
inline constexpr const WayRow* rows[] = {&soft_row, &hard_row};

// A queue pair that knows nothing but its queue.
struct Bench : queue::QueueHost {
  explicit Bench(Order order = Order::strict)
      : stand_(),
        queue({world.world, *this, ring, elements, lane, passthrough, {}, messages, rows, order}) {
    test::stand = &stand_;
    qp.qp_context = &device;
    stand_.lane = &soft;
    known.connected = true;
    known.peer = Peer::linked;
    known.key = {1, KeyVerdict::Kind::real};
  }

  Facts facts(const Request& r) override {
    if (r.seq == asks)
      lane.commit();
    Facts f = known;
    f.opcode = r.wr.opcode;
    f.length = r.length;
    return f;
  }
  const std::shared_ptr<transfer::Leases>* leases(uint64_t& longest) override {
    longest = UINT64_MAX;
    return leased ? &leased : nullptr;
  }
  std::shared_ptr<transfer::Leases> leased; // of the peer's memory
  bool is_real(uint32_t key, steering::KeyAnswer& answer) override {
    ++asked_real;
    if (known.key.known())
      answer = {key, changes, &changes};
    return known.key.kind == KeyVerdict::Kind::real;
  }
  void on_real(uint32_t) noexcept override {}
  void on_leased(const ibv_send_wr&, uint64_t) noexcept override {}
  void on_way_chosen(const Request&, size_t, steering::Reason) noexcept override {}
  uint32_t epoch(const Request&) const noexcept override { return known.key.epoch; }
  void ask_peer() override { ++asked_peer; }
  void ask_key(const Request&) override { ++asked_key; }
  bool may_replay() const noexcept override { return replays; }
  void complete(const Completion& c, bool) override { completions.push_back(c.wc); }
  void enter_error() override { in_error = true; }
  void later(std::chrono::nanoseconds, Way&) override {}

  Queue::Refused post(ibv_wr_opcode opcode, bool signaled = true) {
    return post_list({opcode}, signaled);
  }
  Queue::Refused post_list(std::initializer_list<ibv_wr_opcode> opcodes, bool signaled = true) {
    const uint64_t from = ring.tail();
    for (const auto opcode : opcodes) {
      ibv_send_wr wr{};
      wr.wr_id = 1000 + ring.tail();
      wr.opcode = opcode;
      wr.send_flags = signaled ? unsigned{IBV_SEND_SIGNALED} : 0U;
      REQUIRE(ring.append(wr) == 0);
    }
    return queue.turn(from);
  }
  void land(uint64_t wr_id, ibv_wc_status status = IBV_WC_SUCCESS) {
    Completion c;
    c.wc.wr_id = wr_id;
    c.wc.status = status;
    queue.on_completion(c);
  }
  // The software lane has an answer for `seq`.
  void answer(uint64_t seq) {
    Request& r = ring.at(seq);
    soft.take(r);
    if (r.wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
      queue.next(r);
    else
      queue.done(r);
    queue.turn();
  }
  void become_virtual() {
    ++changes, known.key = {known.key.epoch + 1, KeyVerdict::Kind::virtual_key};
  }
  void become_real() { ++changes, known.key = {known.key.epoch + 1, KeyVerdict::Kind::real}; }
  std::vector<ibv_wc_status> statuses() const {
    std::vector<ibv_wc_status> all;
    for (const auto& wc : completions)
      all.push_back(wc.status);
    return all;
  }

  world_test::Bench world{&real()};
  Stand stand_;
  Facts known;
  std::optional<uint64_t> asks; // something aside is posted to find out about this request
  int asked_peer = 0;
  int asked_key = 0;
  int asked_real = 0;
  Atomic<uint32_t> changes{0};
  bool replays = true;
  bool in_error = false;
  std::vector<ibv_wc> completions;
  Device device;
  ibv_qp_cap cap{.max_send_wr = 64,
                 .max_recv_wr = 0,
                 .max_send_sge = 2,
                 .max_recv_sge = 0,
                 .max_inline_data = 0};
  Ring ring{cap, false};
  ibv_pd pd{};
  registration::Regions regions{world.world, nullptr};
  registration::Staging staging{world.world, &pd};
  Elements elements{world.world, regions, staging, &pd, 0, ring};
  ibv_qp qp{};
  queue::PassthroughSends passthrough{{world.world, *this, regions, elements, staging, &pd, 0,
                                       Device::post_passthrough, &qp, 0,
                                       observe::Counter::posts_queued}};
  QpLane lane{device, ring, passthrough};
  SoftLane soft{ring};
  transfer::MessageLane messages{world.world, ring};
  Queue queue;
};

inline constexpr auto success = IBV_WC_SUCCESS;
inline constexpr auto flushed = IBV_WC_WR_FLUSH_ERR;
using Statuses = std::vector<ibv_wc_status>;

} // namespace adverb::test
