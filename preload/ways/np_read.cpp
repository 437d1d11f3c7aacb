// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The way of READs by views of the peer's memory, which nobody has pinned: by the device, with the
// view's key in the place of the virtual one. What it brings is looked at when it has landed, for a
// page that was away reads as the view's pattern (landing.h). Such pages are asked of the peer's
// CPU, which brings them, and nothing else of the READ is.
//
// Until then nothing may use what has landed, nor may another request come to it (Elements). A READ
// behind one that missed, which was executed by then, may have shown older bytes than the one
// before it will: it is executed again. What else is behind it may have passed it, as RC lets it.
#include "steering/elements.h"
#include "steering/opcode.h"
#include "steering/way.h"
#include "transfer/message_lane.h"
#include "ways/landing.h"
#include "ways/lease_uses.h"
#include "world/world.h"

#include <algorithm>
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
  explicit NpRead(Seat& seat) : seat_(seat) {}

  Lane& lane(const Request& r) override {
    return r.missed ? static_cast<Lane&>(seat_.messages) : seat_.device;
  }
  Step issue(Request& r, int& why) override;
  void landed(Request& r) override;
  void returned(Request& r) override {
    r.unverified = false;
    seat_.elements.release(r);
    uses_.end(r);
  }
  void answered(Request& r, const transfer::ReplyHeader& reply,
                std::span<const std::byte> payload) override;
  void cut(uint64_t from) override {
    std::erase_if(missing_, [from](const Missing& each) { return each.seq >= from; });
  }
  void gone() override {
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
  };
  std::vector<Part> look(const Request& r, const registration::Pattern& pattern);
  void missed(Request& r, std::vector<Part> parts);
  Step ask(Request& r);
  bool send_part(Request& r, Part& part, bool last);

  Seat& seat_;
  LeaseUses uses_;
  std::vector<Missing> missing_;
};

Step NpRead::issue(Request& r, int& why) {
  if (r.missed)
    return ask(r);
  const std::shared_ptr<Leases> leases =
      seat_.messages.joined() ? seat_.messages.leases() : nullptr;
  uses_.make_room();
  // What could not be looked at goes another way.
  r.no_view = !seat_.elements.writable(r);
  Lease* const view = leases && !r.no_view
                          ? leases->use_view(remote_key(r.wr), remote_address(r.wr), r.length,
                                             seat_.world.clock.now())
                          : nullptr;
  if (view == nullptr) {
    seat_.carrier.again(r);
    return Step::changed;
  }
  uses_.add(r, *view, leases);
  ibv_send_wr wr = r.wr;
  wr.wr.rdma.rkey = view->rkey;
  const Step step = post_with_elements(seat_, r, wr, *this, why);
  if (step == Step::issued)
    seat_.elements.await_verdict(r);
  else
    uses_.end(r);
  return step;
}

void NpRead::landed(Request& r) {
  const Lease* const view = uses_.lease_of(r);
  std::vector<Part> parts;
  if (r.result.wc.status == IBV_WC_SUCCESS && view != nullptr)
    parts = look(r, *view->pattern);
  if (view != nullptr)
    uses_.met(r, !parts.empty(), seat_.world.clock.now());
  end_of_device_part(seat_, r);
  uses_.end(r);
  if (parts.empty() || r.result.wc.status != IBV_WC_SUCCESS)
    r.unverified = false;
  else
    missed(r, std::move(parts));
}

// The parts of it that show the pattern.
std::vector<NpRead::Part> NpRead::look(const Request& r, const registration::Pattern& pattern) {
  std::vector<Part> parts;
  const uint64_t first = remote_address(r.wr);
  const auto suspect = [&](uint64_t page) {
    const uint64_t from = page > first ? page - first : 0;
    const uint64_t to = std::min(page + page_bytes - first, r.length);
    seat_.world.counters.count(Counter::read_pages_missed);
    if (!parts.empty() && parts.back().to == from)
      parts.back().to = to;
    else
      parts.push_back({from, to});
  };
  Landing landing(pattern, first);
  seat_.elements.look_at(r,
                         [&](std::span<const std::byte> bytes) { landing.came(bytes, suspect); });
  landing.end(suspect);
  return parts;
}

void NpRead::missed(Request& r, std::vector<Part> parts) {
  seat_.world.counters.count(Counter::reads_missed);
  std::ranges::reverse(parts);
  missing_.push_back({r.seq, std::move(parts)});
  seat_.carrier.missed(r);
}

// As much of what has missed as there are credits for.
Step NpRead::ask(Request& r) {
  const auto missing = std::ranges::find(missing_, r.seq, &Missing::seq);
  assert(missing != missing_.end());
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
  const size_t bytes = std::min<uint64_t>(part.to - part.from, seat_.messages.payload_max());
  auto h = seat_.messages.header(r, Kind::read);
  h.total_address = r.wr.wr.rdma.remote_addr;
  h.total = r.length;
  h.address = h.total_address + part.from;
  h.length = static_cast<uint32_t>(bytes);
  h.key = r.wr.wr.rdma.rkey;
  if (last && part.from + bytes == part.to)
    h.flags |= transfer::last_part;
  std::byte* const message = seat_.messages.begin(0, bytes);
  if (message == nullptr)
    return false;
  part.from += bytes;
  seat_.messages.send(r, *this, message, h);
  return true;
}

void NpRead::answered(Request& r, const transfer::ReplyHeader& reply,
                      std::span<const std::byte> payload) {
  const auto status = static_cast<Status>(reply.status);
  if (status == Status::not_virtual) {
    seat_.messages.learn(remote_key(r.wr), KeyVerdict::Kind::real);
    seat_.carrier.again(r);
  } else if (status != Status::ok) {
    transfer::log_refused(seat_.world, r, status == Status::halted ? Status::refused : status);
    seat_.carrier.replay(r, Fault::peer);
  } else if (!seat_.elements.scatter(r, reply.offset, payload)) {
    seat_.carrier.replay(r, Fault::own_elements);
  } else if (r.parts == 0 && r.sent == r.length) {
    r.unverified = false;
    r.result.wc.byte_len = static_cast<uint32_t>(r.length);
    seat_.carrier.done(r);
  }
}

Fit fits(const Facts& facts) noexcept {
  // As what is leased (leased.cpp).
  constexpr uint64_t along_max = 8 << 10; // bytes
  if (!facts.viewed || (facts.beside_unload && facts.length <= along_max))
    return Fit::no;
  return by_virtual_key(facts);
}

std::unique_ptr<Way> make(Seat& seat) {
  return std::make_unique<NpRead>(seat);
}

} // namespace

extern const WayFunctions np_read_way;
const WayFunctions np_read_way{fits, make};

} // namespace adverb::ways
