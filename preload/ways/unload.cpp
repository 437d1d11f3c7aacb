// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The way by the peer's CPU: a WRITE or READ is cut into parts that the peer's responder executes,
// each answered. A WRITE_WITH_IMM is its data first and then, on the program's own queue pair, a
// zero-length one that carries the immediate and takes the receive.
#include "steering/elements.h"
#include "steering/opcode.h"
#include "steering/way.h"
#include "transfer/message_lane.h"
#include "world/world.h"

#include <algorithm>

namespace adverb::ways {

using namespace steering;
using observe::Counter;
using transfer::Kind;
using transfer::Status;

namespace {

// A request of so few bytes is sent where it would have to be asked first what its key names: the
// answer is the same, and carries no more.
constexpr uint64_t unasked_max = 2048;

class Unload final : public transfer::MessageWay {
public:
  explicit Unload(WayContext& context) : context_(context) {}

  Lane& lane(const Request& r) override {
    return r.stage == Stage::half ? static_cast<Lane&>(context_.device) : context_.messages;
  }
  Step issue(Request& r, int& why) override;
  void landed(Request& r) override;
  void returned(Request&) override {}
  void answered(Request& r, const transfer::ReplyHeader& reply,
                std::span<const std::byte> payload) override;

private:
  bool send_part(Request& r);
  Step immediate(Request& r);
  void refused(Request& r, Status status);

  WayContext& context_;
};

Step Unload::issue(Request& r, int&) {
  if (r.stage == Stage::half)
    return immediate(r);
  // What a SEND brings is there before what is behind it.
  if (r.stage == Stage::queued && context_.messages.sends_ahead() != 0)
    return Step::wait;
  if (r.stage == Stage::queued) {
    r.unasked = r.epoch == 0 ? Unasked::sent : Unasked::no; // as it was chosen by
    const KeyVerdict verdict = context_.messages.verdict(remote_key(r.wr));
    r.served = verdict.is_served() ? verdict.served : 0;
    // A READ's elements are judged before the peer is asked: a NIC would not fetch for nothing.
    r.flawed = r.wr.opcode == IBV_WR_RDMA_READ && !context_.elements.writable(r);
  }
  while (!r.flawed && r.sent < r.length && send_part(r)) {
  }
  if (r.flawed) {
    if (r.parts != 0)
      return Step::wait; // what has gone out is executed first, as on the wire
    context_.queue.replay(r, Fault::own_elements);
    return Step::changed;
  }
  if (r.sent < r.length || r.wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
    return Step::wait; // for a credit; for the data to be placed
  return Step::issued;
}

// One part. False when it has to wait for a credit or the elements are flawed.
bool Unload::send_part(Request& r) {
  const bool reading = r.wr.opcode == IBV_WR_RDMA_READ;
  const size_t bytes = std::min<uint64_t>(r.length - r.sent, context_.messages.payload_max());
  auto h = context_.messages.header(r, reading ? Kind::read : Kind::write);
  h.total_address = r.wr.wr.rdma.remote_addr;
  h.total = r.length;
  h.address = h.total_address + r.sent;
  h.length = static_cast<uint32_t>(bytes);
  h.key = r.served != 0 ? r.served : r.wr.wr.rdma.rkey;
  if (r.sent + bytes == r.length)
    h.flags |= transfer::last_part;
  if (r.wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
    h.flags |= transfer::with_immediate;
    h.receive = context_.messages.receipt(r, context_.device.receives() + 1);
  }
  std::byte* part = reading ? context_.messages.begin(0, bytes) : context_.messages.begin(bytes, 0);
  if (part == nullptr)
    return false;
  if (!reading && !context_.elements.gather(r, r.sent, part + sizeof h, bytes)) {
    r.flawed = true;
    return false;
  }
  const bool first = r.sent == 0;
  r.sent += bytes;
  if (r.sent == r.length)
    context_.world.counters.count(Counter::posts_unload_bytes, r.length);
  context_.messages.send(r, *this, part, h);
  if (first && r.served != 0)
    context_.world.counters.count(Counter::posts_steered);
  else if (first && r.unasked == Unasked::no) // not each time that it waits for a credit
    context_.messages.touch(r);
  return true;
}

// The data is in place; what is left is the immediate and the receive it consumes.
Step Unload::immediate(Request& r) {
  ibv_send_wr wr = r.wr;
  wr.wr.rdma.rkey = 0;
  wr.wr.rdma.remote_addr = 0;
  wr.send_flags &= ~static_cast<unsigned>(IBV_SEND_INLINE);
  context_.device.post(r, wr, 0, *this);
  return Step::issued;
}

void Unload::landed(Request& r) {
  if (r.result.wc.status == IBV_WC_SUCCESS)
    r.result.wc.byte_len = static_cast<uint32_t>(r.length);
}

void Unload::refused(Request& r, Status status) {
  if (status == Status::not_virtual && r.served != 0) {
    context_.messages.forget_served(r.served);
    context_.queue.again(r);
    return;
  }
  if (status == Status::not_virtual) {
    context_.messages.learn(remote_key(r.wr), KeyVerdict::Kind::real);
    context_.queue.again(r);
    return;
  }
  if (r.served == 0) // otherwise the device judges all of it
    transfer::log_refused(context_.world, r, status);
  context_.queue.replay(r, Fault::peer);
}

void Unload::answered(Request& r, const transfer::ReplyHeader& reply,
                      std::span<const std::byte> payload) {
  if (const auto status = static_cast<Status>(reply.status); status != Status::ok) {
    // `halted` only follows the failure that caused it, whose requests no longer count.
    refused(r, status == Status::halted ? Status::refused : status);
    return;
  }
  // Served under it. Word of a key's end comes behind what was served before.
  if (const uint32_t key = remote_key(r.wr);
      r.served == 0 && !context_.messages.verdict(key).known()) [[unlikely]]
    context_.messages.learn(key, KeyVerdict::Kind::virtual_key);
  const bool reading = r.wr.opcode == IBV_WR_RDMA_READ;
  if (reading && r.served == 0)
    context_.messages.brought(r, (reply.flags & transfer::has_views) != 0);
  if (reading && !context_.elements.scatter(r, reply.offset, payload)) {
    context_.queue.replay(r, Fault::own_elements);
    return;
  }
  if (r.parts != 0 || r.sent != r.length)
    return;
  if (r.wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
    context_.queue.next(r);
    return;
  }
  r.result = {};
  r.result.wc.opcode = completion_opcode(r.wr.opcode);
  r.result.wc.byte_len = static_cast<uint32_t>(r.length);
  context_.queue.done(r);
}

Fit fits(const Facts& facts) noexcept {
  if (is_atomic(facts.opcode) || facts.length == 0)
    return Fit::no;
  if (facts.steered_away) // the queue pair has looked at the key
    return Fit::yes;
  const Fit fit = by_virtual_key(facts);
  return fit == Fit::ask_key && facts.key_likely_virtual && facts.length <= unasked_max ? Fit::yes
                                                                                        : fit;
}

std::unique_ptr<Way> make(WayContext& context) {
  return std::make_unique<Unload>(context);
}

} // namespace

extern const WayFunctions unload_way;
const WayFunctions unload_way{fits, make};

} // namespace adverb::ways
