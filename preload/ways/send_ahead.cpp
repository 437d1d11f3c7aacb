// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The way of SENDs over a path that loses packets: the bytes go ahead, in messages to the peer's
// CPU, which keeps them; then, on the program's own queue pair, the SEND goes without any, and
// takes the receive. So receives, credits (RNR), limits of shared receive queues, immediates and
// solicited events are the device's, and what it has to bring over the path is one packet.
//
// What went ahead is seen by nobody until its SEND comes, so it waits for nothing that is before
// it. (A SEND at a fence, whose bytes a READ may have to bring first, is the device's.) The SEND
// itself goes when its bytes are known to be there, on the device's lane, in its place among all
// others.
//
// Nothing of it has been executed before, so it may be repeated: if the peer does not take the
// bytes, the device carries the SEND whole; if the link is lost, its way is chosen anew.
#include "steering/elements.h"
#include "steering/opcode.h"
#include "steering/way.h"
#include "transfer/message_lane.h"
#include "world/world.h"

#include <algorithm>
#include <deque>

namespace adverb::ways {

using namespace steering;
using transfer::Kind;
using transfer::Status;

namespace {

class SendAhead final : public transfer::MessageWay {
public:
  explicit SendAhead(WayContext& context) : context_(context) {}

  Lane& lane(const Request& r) override {
    return r.stage == Stage::half ? static_cast<Lane&>(context_.device) : context_.messages;
  }
  Step issue(Request& r, int& why) override;
  void landed(Request& r) override {
    if (r.result.wc.status == IBV_WC_SUCCESS)
      r.result.wc.byte_len = static_cast<uint32_t>(r.length);
  }
  void returned(Request&) override {}
  void answered(Request& r, const transfer::ReplyHeader& reply,
                std::span<const std::byte> payload) override;
  void cut(uint64_t from) override {
    std::erase_if(ahead_, [from](const Ahead& each) { return each.seq >= from; });
    context_.messages.set_sends_ahead(ahead_.size());
  }
  void gone() override {
    if (context_.ring.empty())
      cut(0);
  }

private:
  struct Ahead {
    uint64_t seq;
    uint64_t number; // among the messages of the connection that take a receive
  };

  bool send_part(Request& r);
  Step send(Request& r);
  void by_device(Request& r);

  WayContext& context_;
  std::deque<Ahead> ahead_; // begun, and not with the device yet
};

Step SendAhead::issue(Request& r, int&) {
  if (r.stage == Stage::half)
    return send(r);
  while (!r.flawed && (r.stage == Stage::queued || r.sent < r.length) && send_part(r)) {
  }
  if (r.flawed && r.parts == 0) {
    by_device(r);
    return Step::changed;
  }
  return r.flawed || r.stage == Stage::queued || r.sent < r.length ? Step::wait : Step::passed;
}

// False: it waits for a credit, or the CPU cannot read all of its elements.
bool SendAhead::send_part(Request& r) {
  const size_t bytes = std::min<uint64_t>(r.length - r.sent, context_.messages.payload_max());
  if (r.stage == Stage::queued && (ahead_.empty() || ahead_.back().seq != r.seq))
    ahead_.push_back({r.seq, context_.device.receives() + ahead_.size() + 1});
  auto h = context_.messages.header(r, Kind::send);
  h.receive = ahead_.back().number;
  h.address = r.sent;
  h.total = r.length;
  h.length = static_cast<uint32_t>(bytes);
  if (r.sent + bytes == r.length)
    h.flags |= transfer::last_part;
  std::byte* const part = context_.messages.begin(bytes, 0);
  context_.messages.set_sends_ahead(ahead_.size());
  if (part == nullptr)
    return false;
  if (!context_.elements.gather(r, r.sent, part + sizeof h, bytes)) {
    r.flawed = true;
    return false;
  }
  r.sent += bytes;
  context_.messages.send(r, *this, part, h);
  return true;
}

Step SendAhead::send(Request& r) {
  std::erase_if(ahead_, [&r](const Ahead& each) { return each.seq == r.seq; });
  context_.messages.set_sends_ahead(ahead_.size());
  ibv_send_wr wr = r.wr;
  wr.send_flags &= ~static_cast<unsigned>(IBV_SEND_INLINE);
  context_.device.post(r, wr, 0, *this);
  return Step::issued;
}

// It finds out what is wrong, if anything is.
void SendAhead::by_device(Request& r) {
  r.unasked = Unasked::device;
  context_.queue.again(r);
}

void SendAhead::answered(Request& r, const transfer::ReplyHeader& reply,
                         std::span<const std::byte>) {
  const auto status = static_cast<Status>(reply.status);
  if (status == Status::refused || status == Status::unsupported) {
    context_.messages.no_sends_ahead();
    if (context_.world.log.every("sends-refused", 60))
      context_.world.log.warn(
          "the peer took no bytes of a SEND ahead of it, so the NIC carries the "
          "SENDs of that queue pair: the peer's policy does not have losses "
          "made good in software, its receives lie in memory of a device, or "
          "its queue pair has ended, or was not reset when this one was");
  }
  if (status != Status::ok)
    by_device(r);
  else if (r.parts == 0 && r.sent == r.length)
    context_.queue.next(r);
}

Fit fits(const Facts& facts) noexcept {
  if (!facts.ahead)
    return Fit::no;
  switch (facts.peer) {
  case Peer::unknown:
    return Fit::ask_peer;
  case Peer::asking: // a proof is asked for meanwhile
    return Fit::ask_key;
  case Peer::linked:
    return facts.proven ? Fit::yes : Fit::ask_key;
  default:
    return Fit::no;
  }
}

std::unique_ptr<Way> make(WayContext& context) {
  return std::make_unique<SendAhead>(context);
}

} // namespace

extern const WayFunctions send_ahead_way;
const WayFunctions send_ahead_way{fits, make};

} // namespace adverb::ways
