// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The send queue by itself: a provider, a software lane and two ways of the test's own. Every row
// of its table is walked, and the table is the one that model/README.md shows.
#include "catch.h"
#include "model/queue.h"
#include "provider/real.h"
#include "steering/opcode.h"
#include "test_world.h"
#include "transfer/message_lane.h"

#include <cerrno>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <map>
#include <sstream>
#include <string>

using namespace adverb;
using namespace adverb::steering;
using model::QpLane;
using model::Queue;

namespace {

bool walked[stages][hands][events];

bool& walked_at(Stage stage, Hand hand, Event event) {
  return walked[static_cast<size_t>(stage)][static_cast<size_t>(hand)][static_cast<size_t>(event)];
}

// Registers staging, and nothing else is asked of it.
const provider::Real& real() {
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

// Allocations of this thread, counted by the operators below.
thread_local uint64_t allocations = 0;

} // namespace

void* operator new(size_t bytes) {
  ++allocations;
  return std::malloc(bytes);
}
void operator delete(void* what) noexcept {
  std::free(what);
}
void operator delete(void* what, size_t) noexcept {
  std::free(what);
}

namespace adverb::steering {
void watch_event(Stage stage, Hand hand, Event event) noexcept {
  walked_at(stage, hand, event) = true;
}
} // namespace adverb::steering

namespace {

// Takes what is posted, but for the request `refuse` and what follows it in its list.
struct Device final : QpLane::Device {
  int post_send_to_provider(ibv_send_wr* list, ibv_send_wr** bad) override {
    ++calls;
    for (; list != nullptr; list = list->next) {
      if (refuse && (list->wr_id & model::marker_bit) == 0 && list->wr_id == *refuse) {
        *bad = list;
        return ENOMEM;
      }
      if (keep)
        posted.push_back(*list);
    }
    return 0;
  }
  bool take_marker() override { return true; }
  void marker_landed() override {}
  void request_drain() override {}

  std::deque<ibv_send_wr> posted;
  std::optional<uint64_t> refuse;
  int calls = 0;
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
  Seat* seat = nullptr;
  SoftLane* lane = nullptr;
  int pieces = 1; // a request goes out in so many turns
  bool short_of_memory = false;
  int returned = 0;
  std::vector<uint64_t> landed;
};
Stand* stand = nullptr;

// Carries WRITE and READ by the software lane, a WRITE_WITH_IMM by half.
struct Soft final : Way {
  Lane& lane(const Request& r) override {
    return r.stage == Stage::half ? static_cast<Lane&>(stand->seat->device) : *stand->lane;
  }
  Step issue(Request& r, int&) override {
    if (r.stage == Stage::half) {
      stand->seat->device.post(r, r.wr, 0, *this);
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
  Lane& lane(const Request&) override { return stand->seat->device; }
  Step issue(Request& r, int&) override {
    stand->seat->device.post(r, r.wr, 0, *this);
    return Step::issued;
  }
  void landed(Request& r) override { stand->landed.push_back(r.seq); }
  void returned(Request&) override { ++stand->returned; }
};

const WayFunctions soft_functions{
    [](const Facts& f) noexcept { return is_one_sided(f.opcode) ? by_virtual_key(f) : Fit::no; },
    [](Seat& s) -> std::unique_ptr<Way> {
      stand->seat = &s;
      return std::make_unique<Soft>();
    }};
const WayFunctions hard_functions{[](const Facts&) noexcept { return Fit::yes; },
                                  [](Seat& s) -> std::unique_ptr<Way> {
                                    stand->seat = &s;
                                    return std::make_unique<Hard>();
                                  }};
constexpr WayRow soft_row{"soft", "requests of a test", observe::Counter::posts_queued,
                          soft_functions};
constexpr WayRow hard_row{"hard", "requests of a test", observe::Counter::posts_queued,
                          hard_functions};
constexpr const WayRow* rows[] = {&soft_row, &hard_row};

// A queue pair that knows nothing but its queue.
struct Bench final : model::QueueHost {
  explicit Bench(Order order = Order::strict)
      : stand_(),
        queue({world.world, *this, ring, elements, lane, {&soft}, messages, rows, order}) {
    ::stand = &stand_;
    stand_.lane = &soft;
    known.connected = true;
    known.peer = Peer::linked;
    known.key = {1, KeyVerdict::Kind::real};
  }

  Facts facts(const Request& r) override {
    Facts f = known;
    f.opcode = r.wr.opcode;
    f.length = r.length;
    return f;
  }
  bool is_real(uint32_t, steering::RealKey&) override { return known.key.kind == KeyVerdict::Kind::real; }
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
  void become_virtual() { known.key = {known.key.epoch + 1, KeyVerdict::Kind::virtual_key}; }
  void become_real() { known.key = {known.key.epoch + 1, KeyVerdict::Kind::real}; }
  std::vector<ibv_wc_status> statuses() const {
    std::vector<ibv_wc_status> all;
    for (const auto& wc : completions)
      all.push_back(wc.status);
    return all;
  }

  world_test::Bench world{&real()};
  Stand stand_;
  Facts known;
  int asked_peer = 0;
  int asked_key = 0;
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
  QpLane lane{device, ring};
  SoftLane soft{ring};
  transfer::MessageLane messages{world.world, ring};
  Queue queue;
};

constexpr auto success = IBV_WC_SUCCESS;
constexpr auto flushed = IBV_WC_WR_FLUSH_ERR;
using Statuses = std::vector<ibv_wc_status>;

// Every (stage, hand, event) that model/README.md has a row for, and what it makes of it.
std::map<std::string, std::string> rows_of_readme() {
  std::ifstream file(ADVERB_SOURCE "/preload/model/README.md");
  std::map<std::string, std::string> out;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::vector<std::string> cells;
    for (std::string cell; std::getline(words, cell, '|');) {
      const auto from = cell.find_first_not_of(' ');
      if (from != std::string::npos)
        cells.push_back(cell.substr(from, cell.find_last_not_of(' ') - from + 1));
    }
    const bool is_row = cells.size() == 6 && std::find(stage_names.begin(), stage_names.end(),
                                                       cells[0]) != stage_names.end();
    if (is_row)
      out[cells[0] + " " + cells[1] + " " + cells[2]] = cells[3] + " " + cells[4];
  }
  return out;
}

std::string name(Stage stage, Hand hand) {
  return std::string(stage_names[static_cast<size_t>(stage)]) + " " +
         std::string(hand_names[static_cast<size_t>(hand)]);
}
std::string name(Stage stage, Hand hand, Event event) {
  return name(stage, hand) + " " + std::string(event_names[static_cast<size_t>(event)]);
}

} // namespace

TEST_CASE("requests that go one way are posted by one call, and retire in order", "[queue]") {
  Bench b;
  CHECK(b.post_list({IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}).why == 0);
  CHECK(b.device.calls == 1);
  REQUIRE(b.device.posted.size() == 3);
  CHECK(b.queue.all_issued());
  b.land(2); // RC completes in order: the others are done, too
  CHECK(b.statuses() == Statuses{success, success, success});
  CHECK(b.completions[0].wr_id == 1000);
  CHECK(b.ring.empty());
}

TEST_CASE("another lane is taken only when the device's is empty, and a marker sees to that",
          "[queue]") {
  Bench b;
  b.post(IBV_WR_RDMA_WRITE, false);
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  CHECK_FALSE(b.soft.busy());
  REQUIRE(b.device.posted.size() == 2);
  CHECK(b.device.posted[1].wr_id == (model::marker_bit | 0));
  CHECK(b.queue.waits_for_device());
  b.land(model::marker_bit | 0);
  CHECK(b.soft.busy());
  CHECK(b.completions.empty()); // the first was unsignaled, the marker is nobody's
  b.answer(1);
  CHECK(b.statuses() == Statuses{success});
}

TEST_CASE("the device waits for a software lane, and relaxed WRITEs for nobody", "[queue]") {
  for (const Order order : {Order::strict, Order::relaxed}) {
    Bench b(order);
    b.become_virtual();
    b.post(IBV_WR_RDMA_WRITE);
    b.become_real();
    b.post(IBV_WR_RDMA_WRITE);
    CHECK(b.device.posted.size() == (order == Order::relaxed ? 1 : 0));
    b.post(IBV_WR_SEND);
    CHECK(b.device.posted.size() == (order == Order::relaxed ? 1 : 0));
    b.answer(0);
    CHECK(b.device.posted.size() == 2);
    b.land(2);
    CHECK(b.statuses() == Statuses{success, success, success});
  }
}

TEST_CASE("what overtook an unsignaled WRITE has the device say that that is done", "[queue]") {
  Bench b(Order::relaxed);
  b.post(IBV_WR_RDMA_WRITE, false);
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  REQUIRE(b.soft.busy());
  b.answer(1);
  CHECK(b.completions.empty());
  REQUIRE(b.device.posted.size() == 2);
  CHECK(b.device.posted[1].wr_id == (model::marker_bit | 0));
  CHECK(b.queue.waits_for_device());
  b.queue.turn(); // one is enough
  CHECK(b.device.posted.size() == 2);
  b.land(model::marker_bit | 0);
  CHECK(b.statuses() == Statuses{success});
  CHECK(b.ring.empty());
}

TEST_CASE("behind an error nothing succeeds, whatever it overtook", "[queue]") {
  Bench b(Order::relaxed);
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  b.become_real();
  b.post(IBV_WR_RDMA_WRITE);
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  REQUIRE(b.device.posted.size() == 1);
  SECTION("the device's") {
    b.land(1, IBV_WC_REM_ACCESS_ERR);
    REQUIRE(b.device.posted.size() == 2); // the last is flushed
    CHECK(b.device.posted[1].wr_id == 2);
    b.land(2, flushed);
    b.answer(0); // was before it
    CHECK(b.statuses() == Statuses{success, IBV_WC_REM_ACCESS_ERR, flushed});
  }
  SECTION("the peer's") {
    b.queue.replay(b.ring.at(0), Fault::peer);
    b.queue.turn();
    CHECK_FALSE(b.soft.busy());
    CHECK(b.device.posted.size() == 1); // completions come in the order of posting
    b.land(1);
    REQUIRE(b.device.posted.size() == 2);
    b.land(0, IBV_WC_REM_ACCESS_ERR);
    REQUIRE(b.device.posted.size() == 3);
    b.land(2, flushed);
    CHECK(b.statuses() == Statuses{IBV_WC_REM_ACCESS_ERR, flushed, flushed});
  }
}

TEST_CASE("a fenced request waits for what READs bring", "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_READ);
  const uint64_t from = b.ring.tail();
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_RDMA_WRITE;
  wr.send_flags = IBV_SEND_FENCE;
  REQUIRE(b.ring.append(wr) == 0);
  b.queue.turn(from);
  CHECK(b.ring.at(1).stage == Stage::queued);
  b.answer(0);
  CHECK(b.ring.at(1).stage == Stage::carried);
}

TEST_CASE("an answer to a release is nobody's, though request 0 is under way", "[queue]") {
  struct Owner final : LaneOwner {
    void landed(Request&) override {}
    void returned(Request&) override {}
    void answered(Request&, const transfer::ReplyHeader&, std::span<const std::byte>) override {
      ++answers;
    }
    int answers = 0;
  } owner;
  Bench b;
  b.known.peer = Peer::unknown;
  b.post(IBV_WR_RDMA_WRITE);
  Request& r = b.ring.at(0);
  transfer::ReplyHeader reply{};
  reply.run = r.run = b.messages.header(r, transfer::Kind::release).run;
  r.owner = &owner;
  r.asked = true;
  reply.kind = static_cast<uint8_t>(transfer::Kind::release);
  b.messages.on_reply(reply, {});
  CHECK(owner.answers == 0);
  reply.kind = static_cast<uint8_t>(transfer::Kind::grant); // this one is its
  b.messages.on_reply(reply, {});
  CHECK(owner.answers == 1);
  b.messages.on_reply(reply, {}); // and once
  CHECK(owner.answers == 1);
}

TEST_CASE("a flushed marker says that the queue pair is in error", "[queue]") {
  Bench b;
  b.post(IBV_WR_RDMA_WRITE, false);
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  REQUIRE(b.device.posted.size() == 2);
  CHECK(b.device.posted[1].wr_id == model::marker_bit);
  b.land(model::marker_bit, flushed);
  // No marker more; what waited for it goes the way of all that is posted now.
  REQUIRE(b.device.posted.size() == 3);
  CHECK(b.device.posted[2].wr_id == 1);
  b.land(1, flushed);
  CHECK(b.statuses() == Statuses{flushed});
  CHECK(b.ring.empty());
}

TEST_CASE("what has begun starts anew when its key ends before all of it is sent", "[queue]") {
  Bench b;
  b.stand_.pieces = 2;
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  REQUIRE(b.ring.at(0).stage == Stage::carried);
  const std::vector<uint32_t> other{5};
  const std::vector<uint32_t> its{0};
  b.queue.on_keys_ended(other);
  CHECK(b.ring.at(0).stage == Stage::carried);
  b.known.key = {b.known.key.epoch + 1, KeyVerdict::Kind::unknown};
  b.queue.on_keys_ended(its);
  CHECK(b.ring.at(0).stage == Stage::queued);
  CHECK(b.ring.at(0).parts == 0);
  CHECK(b.asked_key != 0);
}

TEST_CASE("where memory is short a post is refused, and leaves nothing behind", "[queue]") {
  Bench b;
  b.become_virtual();
  b.stand_.short_of_memory = true;
  const auto refused = b.post(IBV_WR_RDMA_WRITE);
  CHECK(refused.why == ENOMEM);
  CHECK(refused.seq == 0);
  CHECK(b.ring.empty());
  b.stand_.short_of_memory = false;
  CHECK(b.post(IBV_WR_RDMA_WRITE).why == 0);
  b.answer(0);
  CHECK(b.statuses() == Statuses{success});
}

TEST_CASE("a half by software, then the device", "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE_WITH_IMM);
  b.post(IBV_WR_SEND);
  CHECK(b.device.posted.empty());
  b.answer(0);
  CHECK(b.device.posted.size() == 2);
  b.land(1);
  CHECK(b.statuses() == Statuses{success, success});
}

TEST_CASE("what waits for peer or key is chosen when they are known", "[queue]") {
  Bench b;
  b.known.peer = Peer::unknown;
  b.post(IBV_WR_RDMA_WRITE);
  CHECK(b.asked_peer == 2); // and looked once more, as the answer may come at once
  b.known.peer = Peer::linked;
  b.known.key = {};
  b.queue.turn();
  CHECK(b.asked_key == 1);
  b.become_virtual();
  b.queue.turn();
  CHECK(b.soft.busy());
}

TEST_CASE("a way chosen by what is no longer so is chosen again", "[queue]") {
  Bench b;
  b.post(IBV_WR_RDMA_WRITE, false);
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE); // waits for the first
  b.become_real();
  b.queue.turn();
  CHECK(b.device.posted.back().wr_id == 1);
  CHECK(b.world.world.counters.value(observe::Counter::posts_chosen_again) == 1);
}

TEST_CASE("what the provider refuses while it is posted is given back to the program", "[queue]") {
  Bench b;
  b.device.refuse = 1;
  const auto refused = b.post_list({IBV_WR_SEND, IBV_WR_SEND, IBV_WR_SEND});
  CHECK(refused.why == ENOMEM);
  CHECK(refused.seq == 1);
  CHECK(b.ring.tail() == 1);
  CHECK(b.stand_.returned == 2);
  b.device.refuse.reset();
  CHECK(b.post(IBV_WR_SEND).why == 0);
  b.land(1);
  CHECK(b.statuses() == Statuses{success, success});
}

TEST_CASE("what the provider refuses later completes in error, and the rest is flushed",
          "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  b.become_real();
  b.post_list({IBV_WR_SEND, IBV_WR_SEND});
  b.device.refuse = 1;
  b.answer(0);
  CHECK(b.statuses() == Statuses{success, IBV_WC_LOC_QP_OP_ERR});
  CHECK(b.in_error);
  REQUIRE(b.device.posted.size() == 1);
  CHECK(b.device.posted[0].wr_id == 2);
  b.land(2, flushed);
  CHECK(b.completions.back().status == flushed);
}

TEST_CASE("what cannot be issued waits for its turn to take the queue pair to error", "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  b.become_real();
  b.post_list({IBV_WR_SEND, IBV_WR_SEND, IBV_WR_SEND});
  b.device.refuse = 2;
  b.answer(0);
  REQUIRE(b.device.posted.size() == 1); // the first SEND
  CHECK_FALSE(b.in_error);
  b.land(1);
  CHECK(b.in_error);
  CHECK(b.statuses() == Statuses{success, success, IBV_WC_LOC_QP_OP_ERR});
  REQUIRE(b.device.posted.size() == 2);
  b.land(3, flushed);
  CHECK(b.completions.back().status == flushed);
}

TEST_CASE("a flush that the provider refuses completes all the same", "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  b.become_real();
  b.post_list({IBV_WR_SEND, IBV_WR_SEND});
  b.device.refuse = 1;
  b.queue.fail();
  CHECK(b.completions.empty()); // not before the first
  b.land(0, flushed);
  b.land(2, flushed);
  CHECK(b.statuses() == Statuses{flushed, IBV_WC_LOC_QP_OP_ERR, flushed});
}

TEST_CASE("a replay stops the queue until it has landed", "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  b.post(IBV_WR_RDMA_WRITE);
  b.queue.replay(b.ring.at(0), Fault::peer);
  b.queue.turn();
  CHECK_FALSE(b.soft.busy()); // the second was cut
  REQUIRE(b.device.posted.size() == 1);
  CHECK(b.device.posted[0].num_sge == 1);
  CHECK(b.ring.at(1).stage == Stage::queued);
  b.land(0, IBV_WC_REM_ACCESS_ERR);
  REQUIRE(b.device.posted.size() == 2);
  b.land(1, flushed);
  CHECK(b.statuses() == Statuses{IBV_WC_REM_ACCESS_ERR, flushed});
}

TEST_CASE("a replay refused by the provider completes in error", "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  b.device.refuse = 0;
  b.queue.replay(b.ring.at(0), Fault::own_elements);
  b.queue.turn();
  CHECK(b.statuses() == Statuses{IBV_WC_LOC_QP_OP_ERR});
}

TEST_CASE("a READ whose own elements are at fault fails at home", "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_READ);
  b.queue.replay(b.ring.at(0), Fault::own_elements);
  b.queue.turn();
  CHECK(b.in_error);
  CHECK(b.device.posted.empty());
  CHECK(b.statuses() == Statuses{IBV_WC_LOC_PROT_ERR});
}

TEST_CASE("a lost link gives the device what it carried, once it may be asked", "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  b.post(IBV_WR_RDMA_WRITE);
  b.replays = false;
  b.known.peer = Peer::lost;
  b.queue.on_gone();
  b.queue.turn();
  CHECK(b.device.posted.empty());
  b.queue.on_gone(); // once more while it waits
  b.queue.turn();
  b.replays = true;
  SECTION("and the rest is decided anew") {
    b.queue.turn();
    REQUIRE(b.device.posted.size() == 1);
    b.known.peer = Peer::stock;
    b.land(0);
    REQUIRE(b.device.posted.size() == 2);
    b.land(1);
    CHECK(b.statuses() == Statuses{success, success});
  }
  SECTION("or flushed, when the queue pair fails meanwhile") {
    b.queue.fail();
    CHECK(b.device.posted.size() == 2);
    b.land(0, flushed);
    b.land(1, flushed);
    CHECK(b.statuses() == Statuses{flushed, flushed});
  }
}

TEST_CASE("the link goes while a request is half through and the queue is stopped", "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE_WITH_IMM);
  b.queue.stop();
  b.answer(0);
  CHECK(b.ring.at(0).stage == Stage::half);
  b.queue.on_gone();
  CHECK(b.ring.at(0).hand == Hand::replay);
  b.queue.resume();
  CHECK(b.device.posted.size() == 1);
}

TEST_CASE("a marker that the peer refuses fails the request that waits for it", "[queue]") {
  Bench b;
  b.post(IBV_WR_RDMA_WRITE, false);
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  SECTION("chosen") {}
  SECTION("or not yet again") {
    b.known.peer = Peer::lost;
    b.queue.on_gone();
    b.queue.turn();
  }
  b.land(model::marker_bit | 0, IBV_WC_REM_INV_REQ_ERR);
  b.land(0, flushed);
  CHECK(b.completions.back().status == IBV_WC_REM_INV_REQ_ERR);
}

TEST_CASE("what a marker is refused for is said by the first that is flushed", "[queue]") {
  Bench b;
  b.post(IBV_WR_RDMA_WRITE, false);
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  b.post(IBV_WR_RDMA_WRITE);
  SECTION("in error, as a receive that was flushed has told") {
    b.queue.fail();
  }
  SECTION("or when nothing is to be waited for any more") {
    b.become_real();
    b.queue.turn();
  }
  REQUIRE(b.device.posted.size() == 4);
  b.land(model::marker_bit | 0, IBV_WC_RETRY_EXC_ERR);
  b.land(1, flushed);
  b.land(2, flushed);
  CHECK(b.statuses() == Statuses{IBV_WC_RETRY_EXC_ERR, flushed});
}

TEST_CASE("SQD lets go on what has begun and begins nothing", "[queue]") {
  Bench b;
  b.become_virtual();
  b.stand_.pieces = 2;
  b.post(IBV_WR_RDMA_WRITE); // its second piece waits
  CHECK(b.queue.carrying());
  b.queue.pause(true);
  b.post(IBV_WR_RDMA_WRITE);
  CHECK(b.ring.at(0).sent == 2); // by the turn of the second's post
  CHECK(b.ring.at(1).stage == Stage::queued);
  b.queue.pause(false);
  b.queue.turn();
  CHECK(b.ring.at(1).stage == Stage::carried);
}

TEST_CASE("answers of a request that is chosen again do not count", "[queue]") {
  Bench b;
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  b.become_real();
  b.queue.again(b.ring.at(0));
  b.queue.turn();
  CHECK_FALSE(b.soft.busy());
  CHECK(b.device.posted.size() == 1);
}

TEST_CASE("RESET forgets everything and starts afresh", "[queue]") {
  Bench b;
  b.post(IBV_WR_SEND);
  b.become_virtual();
  b.post(IBV_WR_RDMA_WRITE);
  b.queue.clear();
  CHECK(b.ring.empty());
  CHECK_FALSE(b.lane.busy());
  CHECK_FALSE(b.soft.busy());
  b.land(0); // of before
  CHECK(b.completions.empty());
  b.post(IBV_WR_RDMA_WRITE);
  CHECK(b.soft.busy());
}

TEST_CASE("a post allocates nothing once its way exists", "[queue]") {
  Bench b;
  b.post(IBV_WR_SEND);
  b.land(0);
  b.device.keep = false;
  ibv_send_wr wr{};
  wr.opcode = IBV_WR_SEND;
  Completion c;
  c.wc.status = success;
  b.stand_.landed.reserve(1000);
  const uint64_t before = allocations;
  for (c.wc.wr_id = 1; c.wc.wr_id < 200; ++c.wc.wr_id) {
    b.ring.append(wr);
    b.queue.turn(c.wc.wr_id);
    b.queue.on_completion(c);
  }
  const uint64_t after = allocations;
  CHECK(b.ring.empty());
  CHECK(after == before);
}

TEST_CASE("the table of model/README.md is the code's, and every row has been walked", "[queue]") {
  const auto shown = rows_of_readme();
  std::map<std::string, std::string> coded;
  for (const Row& row : table) {
    coded[name(row.stage, row.hand, row.event)] = name(row.to_stage, row.to_hand);
    INFO(name(row.stage, row.hand, row.event));
    CHECK(walked_at(row.stage, row.hand, row.event));
  }
  CHECK(shown == coded);
}
