// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The way by the device: the request as it stands, only its local elements made usable. It fits
// everything, so it stands last in the table.
#include "steering/elements.h"
#include "steering/way.h"

namespace adverb::ways {

using namespace steering;

namespace {

class Offload final : public Way {
public:
  explicit Offload(Seat& seat) : seat_(seat) {}

  Lane& lane(const Request&) override { return seat_.device; }
  Step issue(Request& r, int& why) override {
    return post_with_elements(seat_, r, r.wr, *this, why);
  }
  void landed(Request& r) override { end_of_device_part(seat_, r); }
  void returned(Request& r) override { seat_.elements.release(r); }

private:
  Seat& seat_;
};

Fit fits(const Facts&) noexcept {
  return Fit::yes;
}

std::unique_ptr<Way> make(Seat& seat) {
  return std::make_unique<Offload>(seat);
}

} // namespace

extern const WayFunctions offload_way;
const WayFunctions offload_way{fits, make};

} // namespace adverb::ways
