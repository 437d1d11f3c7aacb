// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The way of atomics on unpinned regions: CPU and device do not exclude each other, so the owner
// lends a window of the region, and the device runs the atomic with the window's real key.
#include "steering/elements.h"
#include "steering/opcode.h"
#include "steering/way.h"
#include "transfer/message_lane.h"
#include "transfer/target.h"
#include "world/world.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace adverb::ways {

using namespace steering;
using transfer::Kind;
using transfer::Status;

namespace {

// Per queue pair; each is a page that the owner pins meanwhile. When all are in use, the atomic
// that was posted last reports itself, so that it is known when one is not. Of those that are not
// as many again are kept while there is no credit to give them back by.
constexpr size_t windows_max = 4;
constexpr size_t windows_most = 2 * windows_max;
static_assert(windows_most < transfer::Binding::grants_max);
constexpr std::chrono::milliseconds keep_idle{50};

class Grant final : public transfer::MessageWay {
public:
  explicit Grant(WayContext& context) : context_(context) { windows_.reserve(windows_max); }

  Lane& lane(const Request&) override { return context_.device; }
  Step issue(Request& r, int& why) override;
  void landed(Request& r) override {
    end_of_device_part(context_, r);
    left(r);
  }
  void returned(Request& r) override {
    context_.elements.release(r);
    left(r);
  }
  void answered(Request& r, const transfer::ReplyHeader& reply,
                std::span<const std::byte> payload) override;
  void idle() override;
  void due() override;
  void cut(uint64_t) override { asking_ = false; }
  void gone() override;

private:
  struct Window {
    uint32_t key; // the virtual one
    uint64_t start;
    uint64_t bytes;
    uint32_t rkey;
    uint64_t id;
    uint64_t only; // if it is `once`: the request that may use it
    bool once;
    uint32_t in_use = 0; // by atomics that the device has; Request::sent names it
    bool covers(const Request& r) const noexcept {
      const auto& op = r.wr.wr.atomic;
      return key == op.rkey && op.remote_addr >= start && op.remote_addr - start <= bytes - 8 &&
             (!once || only == r.seq);
    }
  };
  bool others_in_use(const Window& but) const;
  void left(Request& r);
  void ask(Request& r);
  bool give_one_back();
  void give_back();

  WayContext& context_;
  std::vector<Window> windows_;
  bool asking_ = false;
  bool timed_ = false;
};

bool Grant::others_in_use(const Window& but) const {
  return windows_.size() >= windows_max && std::ranges::all_of(windows_, [&](const Window& w) {
           return &w == &but || w.in_use != 0;
         });
}

Step Grant::issue(Request& r, int& why) {
  const auto window = std::ranges::find_if(windows_, [&](const Window& w) { return w.covers(r); });
  if (window == windows_.end()) {
    if (asking_)
      return Step::wait;
    if (windows_.size() < windows_max || give_one_back())
      ask(r);
    else
      context_.device.wish();
    return Step::wait;
  }
  const bool reports = !r.signaled && others_in_use(*window);
  if (reports && !context_.device.report(r))
    return Step::wait;
  ibv_send_wr wr = r.wr;
  wr.wr.atomic.rkey = window->rkey;
  wr.send_flags |= reports ? unsigned{IBV_SEND_SIGNALED} : 0U;
  r.sent = window->id;
  ++window->in_use;
  const Step step = post_with_elements(context_, r, wr, *this, why);
  if (step == Step::issued && r.signaled)
    context_.messages.touch(r);
  if (step != Step::issued) {
    left(r);
    if (reports)
      context_.device.unreport();
  }
  return step;
}

void Grant::left(Request& r) {
  const auto window = std::ranges::find(windows_, std::exchange(r.sent, 0), &Window::id);
  if (window != windows_.end())
    --window->in_use;
}

void Grant::ask(Request& r) {
  auto h = context_.messages.header(r, Kind::grant);
  h.total_address = h.address = r.wr.wr.atomic.remote_addr;
  h.total = 8;
  h.length = 8;
  h.key = r.wr.wr.atomic.rkey;
  std::byte* part = context_.messages.begin(0, 0);
  if (part == nullptr)
    return;
  asking_ = true;
  context_.messages.send_aside(r, *this, part, h);
}

void Grant::answered(Request& r, const transfer::ReplyHeader& reply, std::span<const std::byte>) {
  asking_ = false;
  const auto status = static_cast<Status>(reply.status);
  if (status == Status::ok) {
    windows_.push_back({.key = r.wr.wr.atomic.rkey,
                        .start = reply.grant_start,
                        .bytes = reply.grant_bytes,
                        .rkey = reply.rkey,
                        .id = reply.grant,
                        .only = r.seq,
                        .once = reply.offset != 0});
  } else if (status == Status::not_virtual) {
    context_.messages.learn(remote_key(r.wr), KeyVerdict::Kind::real);
    context_.queue.again(r);
  } else if (status != Status::halted) {
    transfer::log_refused(context_.world, r, status);
    context_.queue.replay(r, Fault::peer);
  }
}

void Grant::idle() {
  if (windows_.empty() || timed_)
    return;
  timed_ = true;
  context_.queue.later(keep_idle, *this);
}

void Grant::due() {
  timed_ = false;
  if (context_.ring.empty())
    give_back();
}

// One that no atomic uses, the oldest. False: there is none, or too many find no credit.
bool Grant::give_one_back() {
  const auto window = std::ranges::find(windows_, 0U, &Window::in_use);
  if (window == windows_.end())
    return false;
  if (context_.messages.tell(Kind::release, window->id)) {
    windows_.erase(window);
    return true;
  }
  return windows_.size() < windows_most;
}

// What finds no credit now is tried again when the queue is idle next.
void Grant::give_back() {
  while (!windows_.empty() && context_.messages.joined() &&
         context_.messages.tell(Kind::release, windows_.back().id))
    windows_.pop_back();
}

void Grant::gone() {
  asking_ = false;
  windows_.clear();
}

Fit fits(const Facts& facts) noexcept {
  return is_atomic(facts.opcode) && is_sound_atomic(facts) && !can_be_leased(facts)
             ? by_virtual_key(facts)
             : Fit::no;
}

std::unique_ptr<Way> make(WayContext& context) {
  return std::make_unique<Grant>(context);
}

} // namespace

extern const WayFunctions grant_way;
const WayFunctions grant_way{fits, make};

} // namespace adverb::ways
