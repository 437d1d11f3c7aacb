// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A way of a test's own: WRITE and READ on virtual keys in pieces of 512 bytes, by messages of
// kinds that only this library knows (toy_handlers.cpp), two pieces of a request at a time.
#include "toy_kinds.h"

#include "steering/elements.h"
#include "steering/opcode.h"
#include "steering/way.h"
#include "transfer/message_lane.h"

#include <algorithm>

namespace adverb::ways {

using namespace steering;
using transfer::Status;

namespace {

constexpr uint64_t piece = 512;
constexpr uint32_t at_a_time = 2;

class Toy final : public transfer::MessageWay {
public:
  explicit Toy(WayContext& context) : context_(context) {}
  Lane& lane(const Request&) override { return context_.messages; }

  Step issue(Request& r, int&) override {
    const bool reading = r.wr.opcode == IBV_WR_RDMA_READ;
    if (r.sent == 0 && r.parts == 0 && reading && !context_.elements.writable(r)) {
      context_.queue.replay(r, Fault::own_elements);
      return Step::changed;
    }
    while (!r.flawed && r.sent < r.length && r.parts < at_a_time && send_piece(r, reading)) {
    }
    if (r.flawed && r.parts == 0) {
      context_.queue.replay(r, Fault::own_elements);
      return Step::changed;
    }
    return r.sent == r.length ? Step::issued : Step::wait;
  }

  void landed(Request&) override {}
  void returned(Request&) override {}

  void answered(Request& r, const transfer::ReplyHeader& reply,
                std::span<const std::byte> payload) override {
    const auto status = static_cast<Status>(reply.status);
    if (status == Status::not_virtual) {
      context_.messages.learn(remote_key(r.wr), KeyVerdict::Kind::real);
      context_.queue.again(r);
    } else if (status != Status::ok) {
      context_.queue.replay(r, Fault::peer);
    } else if (r.wr.opcode == IBV_WR_RDMA_READ &&
               !context_.elements.scatter(r, reply.offset, payload)) {
      context_.queue.replay(r, Fault::own_elements);
    } else if (r.parts == 0 && r.sent == r.length) {
      r.result = {};
      r.result.wc.opcode = completion_opcode(r.wr.opcode);
      r.result.wc.byte_len = static_cast<uint32_t>(r.length);
      context_.queue.done(r);
    }
  }

private:
  bool send_piece(Request& r, bool reading) {
    const size_t bytes =
        std::min({r.length - r.sent, piece, uint64_t{context_.messages.payload_max()}});
    std::byte* part =
        reading ? context_.messages.begin(0, bytes) : context_.messages.begin(bytes, 0);
    if (part == nullptr)
      return false;
    auto h = context_.messages.header(r, reading ? toy::read : toy::write);
    h.total_address = r.wr.wr.rdma.remote_addr;
    h.total = r.length;
    h.address = h.total_address + r.sent;
    h.length = static_cast<uint32_t>(bytes);
    h.key = r.wr.wr.rdma.rkey;
    if (r.sent + bytes == r.length)
      h.flags |= transfer::last_part;
    if (!reading && !context_.elements.gather(r, r.sent, part + sizeof h, bytes)) {
      r.flawed = true;
      return false;
    }
    r.sent += bytes;
    context_.messages.send(r, *this, part, h);
    return true;
  }

  WayContext& context_;
};

Fit fits(const Facts& facts) noexcept {
  const bool carried = facts.opcode == IBV_WR_RDMA_WRITE || facts.opcode == IBV_WR_RDMA_READ;
  return carried && facts.length != 0 ? by_virtual_key(facts) : Fit::no;
}

std::unique_ptr<Way> make(WayContext& context) {
  return std::make_unique<Toy>(context);
}

} // namespace

extern const WayFunctions toy_way;
const WayFunctions toy_way{fits, make};

} // namespace adverb::ways
