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
  explicit Offload(WayContext& context) : context_(context) {}

  Lane& lane(const Request&) override { return context_.device; }
  Step issue(Request& r, int& why) override {
    return post_with_elements(context_, r, r.wr, *this, why);
  }
  void landed(Request& r) override { end_of_device_part(context_, r); }
  void returned(Request& r) override { context_.elements.release(r); }

private:
  WayContext& context_;
};

Fit fits(const Facts&) noexcept {
  return Fit::yes;
}

std::unique_ptr<Way> make(WayContext& context) {
  return std::make_unique<Offload>(context);
}

} // namespace

extern const WayFunctions offload_way;
const WayFunctions offload_way{fits, make};

} // namespace adverb::ways
