// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The way of READs, WRITEs, with an immediate or not, and atomics on what this process leases of
// its peer's memory: by the device, as on a pinned region, with the lease's real key in place of
// the virtual one.
#include "steering/elements.h"
#include "steering/opcode.h"
#include "steering/way.h"
#include "transfer/message_lane.h"
#include "ways/lease_uses.h"

#include <memory>

namespace adverb::ways {

using namespace steering;
using transfer::Lease;
using transfer::Leases;

namespace {

class Leased final : public Way {
public:
  explicit Leased(WayContext& context) : context_(context) {}

  Lane& lane(const Request&) override { return context_.device; }
  Step issue(Request& r, int& why) override;
  void landed(Request& r) override {
    end_of_device_part(context_, r);
    uses_.end(r);
  }
  void returned(Request& r) override {
    context_.elements.release(r);
    uses_.end(r);
  }
  void gone() override { uses_.end_all(); }

private:
  WayContext& context_;
  LeaseUses uses_;
};

Step Leased::issue(Request& r, int& why) {
  const std::shared_ptr<Leases> leases =
      context_.messages.joined() ? context_.messages.leases() : nullptr;
  uses_.make_room();
  Lease* const lease =
      leases ? leases->use(remote_key(r.wr), remote_address(r.wr),
                           remote_bytes(r.wr.opcode, r.length), remote_right(r.wr.opcode))
             : nullptr;
  if (lease == nullptr) { // it has been called back since it was chosen for
    context_.queue.again(r);
    return Step::changed;
  }
  uses_.add(r, *lease, leases);
  ibv_send_wr wr = r.wr;
  (is_atomic(wr.opcode) ? wr.wr.atomic.rkey : wr.wr.rdma.rkey) = lease->rkey;
  const Step step = post_with_elements(context_, r, wr, *this, why);
  if (step != Step::issued)
    uses_.end(r);
  return step;
}

// To change the lane is to have nothing under way for a round trip, and to change it back another:
// what is short goes along with what the peer's CPU has before it.
constexpr uint64_t along_max = 8 << 10; // bytes

Fit fits(const Facts& facts) noexcept {
  const bool along = facts.beside_unload && facts.length <= along_max;
  if (!can_be_leased(facts) || (is_atomic(facts.opcode) ? !is_sound_atomic(facts) : along))
    return Fit::no;
  return by_virtual_key(facts);
}

std::unique_ptr<Way> make(WayContext& context) {
  return std::make_unique<Leased>(context);
}

} // namespace

extern const WayFunctions leased_way;
const WayFunctions leased_way{fits, make};

} // namespace adverb::ways
