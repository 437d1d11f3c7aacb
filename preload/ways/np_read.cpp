// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The way of READs by views of the peer's memory, which nobody has pinned: by the device, with the
// view's key in the place of the virtual one. What it brings is looked at when it has landed, for a
// page that was away reads as the view's pattern (landing.h). Such pages are asked of the peer's
// CPU, which brings them, and nothing else of the READ is.
//
// It lands in staging, and comes to its elements whole and good: the program, whose other threads
// and peers may look there at any time, never sees the pattern, and a READ to where it comes from
// does not overwrite that by it. A READ behind one that missed, which was executed by then, may
// have shown older bytes than the one before it will: it is executed again. What else is behind it
// may have passed it, as RC lets it.
#include "steering/elements.h"
#include "steering/opcode.h"
#include "steering/way.h"
#include "transfer/message_lane.h"
#include "ways/landing.h"
#include "ways/lease_uses.h"
#include "world/world.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace adverb::ways {

using namespace steering;
using observe::Counter;
using transfer::Kind;
using transfer::Lease;
using transfer::Leases;
using transfer::Status;

namespace {

class NpRead final : public transfer::MessageWay {
public:
  explicit NpRead(WayContext& context) : context_(context) {}

  Lane& lane(const Request& r) override {
    return r.missed ? static_cast<Lane&>(context_.messages) : context_.device;
  }
  Step issue(Request& r, int& why) override;
  void landed(Request& r) override;
  void returned(Request& r) override {
    context_.elements.release(r);
    uses_.end(r);
  }
  void answered(Request& r, const transfer::ReplyHeader& reply,
                std::span<const std::byte> payload) override;
  void cut(uint64_t from) override;
  // What the device has is judged when it lands, by the pattern that came with the link.
  void gone() override {
    if (!context_.ring.empty())
      return;
    uses_.end_all();
    missing_.clear();
  }

private:
  // What of a READ has missed and is not asked for yet: bytes [from, to) of its payload.
  struct Part {
    uint64_t from;
    uint64_t to;
  };
  struct Missing {
    uint64_t seq;
    std::vector<Part> parts; // the next one last
    // What came with the link that its view is of. Over another one nobody knows that this is the
    // same memory still.
    std::shared_ptr<Leases> of;
  };
  std::vector<Part> look(const Request& r, const registration::Pattern& pattern);
  void missed(Request& r, std::vector<Part> parts, std::shared_ptr<Leases> of);
  bool deliver(Request& r);
  std::shared_ptr<Leases> leases_now() {
    return context_.messages.joined() ? context_.messages.leases() : nullptr;
  }
  Step ask(Request& r);
  bool send_part(Request& r, Part& part, bool last);

  WayContext& context_;
  LeaseUses uses_;
  std::vector<Missing> missing_;
};

Step NpRead::issue(Request& r, int& /*why*/) {
  if (r.missed)
    return ask(r);
  const std::shared_ptr<Leases> leases = leases_now();
  uses_.make_room();
  ibv_sge& landing = context_.device.room()[0];
  if (leases && context_.elements.writable(r) && !context_.elements.land_apart(r, landing)) {
    if (context_.elements.lands_apart()) { // those before it give theirs back
      context_.device.want_brought();
      return Step::wait;
    }
    r.no_view = true;
  }
  Lease* const view = r.apart ? leases->use_view(remote_key(r.wr), remote_address(r.wr), r.length,
                                                 context_.world.clock.now())
                              : nullptr;
  if (view == nullptr) {
    // A program's own elements at fault are the other ways' to find.
    r.no_view |= leases && !r.apart;
    context_.elements.release(r);
    context_.queue.again(r);
    return Step::changed;
  }
  uses_.add(r, *view, leases);
  ibv_send_wr wr = r.wr;
  wr.wr.rdma.rkey = view->rkey;
  context_.device.post(r, wr, 1, *this);
  return Step::issued;
}

void NpRead::landed(Request& r) {
  const std::shared_ptr<Leases> of = uses_.leases_of(r);
  Lease& view = *uses_.lease_of(r);
  const bool came = r.result.wc.status == IBV_WC_SUCCESS;
  bool good = false;
  try {
    std::vector<Part> parts;
    if (came) {
      parts = look(r, *view.pattern);
      of->met(view, !parts.empty(), context_.world.clock.now());
    } else if (r.result.wc.status == IBV_WC_REM_ACCESS_ERR) {
      of->distrust(view); // its region has ended, or is another domain's now
    }
    uses_.end(r);
    if (!parts.empty())
      return missed(r, std::move(parts), of);
    good = came && deliver(r);
  } catch (const std::bad_alloc&) { // what nobody has looked at is no result
    context_.world.counters.count(Counter::exceptions_caught);
    uses_.end(r);
  }
  if (came && !good)
    cannot_deliver(context_, r);
  context_.elements.release(r);
}

bool NpRead::deliver(Request& r) {
  return context_.elements.scatter(r, 0, context_.elements.landing(r));
}

void NpRead::cut(uint64_t from) {
  std::erase_if(missing_, [from](const Missing& each) { return each.seq >= from; });
  for (uint64_t seq = std::max(from, context_.ring.head()); seq < context_.ring.tail(); ++seq)
    if (Request& r = context_.ring.at(seq); r.missed && r.apart)
      context_.elements.release(r);
}

// The parts of it that show the pattern.
std::vector<NpRead::Part> NpRead::look(const Request& r, const registration::Pattern& pattern) {
  std::vector<Part> parts;
  const uint64_t first = remote_address(r.wr);
  const auto suspect = [&](uint64_t page) {
    const uint64_t from = page > first ? page - first : 0;
    const uint64_t to = std::min(page + page_bytes - first, r.length);
    context_.world.counters.count(Counter::read_pages_missed);
    if (!parts.empty() && parts.back().to == from)
      parts.back().to = to;
    else
      parts.push_back({from, to});
  };
  Landing landing(pattern, first);
  landing.came(context_.elements.landing(r), suspect);
  landing.end(suspect);
  return parts;
}

void NpRead::missed(Request& r, std::vector<Part> parts, std::shared_ptr<Leases> of) {
  context_.world.counters.count(Counter::reads_missed);
  std::ranges::reverse(parts);
  missing_.push_back({r.seq, std::move(parts), std::move(of)});
  context_.queue.missed(r); // nothing is thrown from here on
}

// As much of what has missed as there are credits for.
Step NpRead::ask(Request& r) {
  const auto missing = std::ranges::find(missing_, r.seq, &Missing::seq);
  assert(missing != missing_.end());
  if (missing->of != leases_now()) {
    r.result = {};
    context_.queue.again(r);
    return Step::changed;
  }
  auto& parts = missing->parts;
  while (!parts.empty()) {
    Part& part = parts.back();
    if (!send_part(r, part, parts.size() == 1))
      return Step::wait;
    if (part.from == part.to)
      parts.pop_back();
  }
  r.sent = r.length;
  missing_.erase(missing);
  return Step::issued;
}

bool NpRead::send_part(Request& r, Part& part, bool last) {
  const size_t bytes = std::min<uint64_t>(part.to - part.from, context_.messages.payload_max());
  auto h = context_.messages.header(r, Kind::read);
  h.total_address = r.wr.wr.rdma.remote_addr;
  h.total = r.length;
  h.address = h.total_address + part.from;
  h.length = static_cast<uint32_t>(bytes);
  h.key = r.wr.wr.rdma.rkey;
  if (last && part.from + bytes == part.to)
    h.flags |= transfer::last_part;
  std::byte* const message = context_.messages.begin(0, bytes);
  if (message == nullptr)
    return false;
  part.from += bytes;
  context_.messages.send(r, *this, message, h);
  return true;
}

// False: the peer brings what is not the READ's.
bool fill(std::span<std::byte> landing, uint64_t offset, std::span<const std::byte> bytes) {
  if (offset > landing.size() || bytes.size() > landing.size() - offset)
    return false;
  memcpy(landing.data() + offset, bytes.data(), bytes.size());
  return true;
}

void NpRead::answered(Request& r, const transfer::ReplyHeader& reply,
                      std::span<const std::byte> payload) {
  const auto status = static_cast<Status>(reply.status);
  if (status == Status::not_virtual) {
    context_.messages.learn(remote_key(r.wr), KeyVerdict::Kind::real);
    context_.queue.again(r);
  } else if (status != Status::ok) {
    transfer::log_refused(context_.world, r, status == Status::halted ? Status::refused : status);
    context_.queue.replay(r, Fault::peer);
  } else if (!fill(context_.elements.landing(r), reply.offset, payload)) {
    transfer::log_refused(context_.world, r, Status::refused);
    context_.queue.replay(r, Fault::peer);
  } else if (r.parts != 0 || r.sent != r.length) {
    return;
  } else if (!deliver(r)) {
    context_.queue.replay(r, Fault::own_elements);
  } else {
    context_.elements.release(r);
    r.result.wc.byte_len = static_cast<uint32_t>(r.length);
    context_.queue.done(r);
  }
}

Fit fits(const Facts& facts) noexcept {
  // As what is leased (leased.cpp).
  constexpr uint64_t along_max = 8 << 10; // bytes
  if (!facts.viewed || (facts.beside_unload && facts.length <= along_max))
    return Fit::no;
  return by_virtual_key(facts);
}

std::unique_ptr<Way> make(WayContext& context) {
  return std::make_unique<NpRead>(context);
}

} // namespace

extern const WayFunctions np_read_way;
const WayFunctions np_read_way{fits, make};

} // namespace adverb::ways
