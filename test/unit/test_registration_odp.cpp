// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Backend "odp": which regions a device is asked to page on demand, by what it says of itself, and
// what becomes of the others.
#include "region_fixture.h"

#include <cerrno>
#include <cstring>
#include <string>

using namespace adverb::registration;
using namespace region_test;

namespace {

constexpr uint32_t all_caps = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE |
                              IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC |
                              IBV_ODP_SUPPORT_SRQ_RECV;

// A device that pages for RC whatever it is asked, and nothing for other types.
struct Paging : Fixture {
  Paging() {
    strcpy(device.device.name, "odp0");
    device.odp.general_caps = IBV_ODP_SUPPORT;
    device.odp.per_transport_caps.rc_odp_caps = all_caps;
    chosen = "odp";
  }
  const Backend& odp() { return backend("odp"); }
  bool on_demand(const ibv_mr* mr) const {
    return (device.find(mr->lkey)->access & IBV_ACCESS_ON_DEMAND) != 0;
  }
  size_t said(const std::string& words) const {
    size_t count = 0;
    for (const auto& line : bench.lines.said)
      count += line.find(words) != std::string::npos ? 1 : 0;
    return count;
  }
};

} // namespace

TEST_CASE("a region on demand is the provider's own with one right more, which nobody else sees") {
  Paging f;
  ibv_mr* mr = f.add("odp");
  REQUIRE(f.device.find(mr->lkey) != nullptr);
  CHECK(f.device.find(mr->lkey)->access == (all_rights | IBV_ACCESS_ON_DEMAND));
  CHECK(f.bench.world.counters.value(adverb::observe::Counter::regions_on_demand) == 1);
  CHECK(f.bench.world.counters.value(adverb::observe::Counter::regions_pinned) == 0);
  CHECK_FALSE(f.regions.is_virtual(mr->lkey));
  Span span;
  CHECK(f.regions.local(&f.device.pd, f.element(mr, 5, 8), write_right, span) == 0);
  CHECK(f.regions.local(&f.device.pd, f.element(mr, 5, 8), IBV_ACCESS_ON_DEMAND, span) == EACCES);
  CHECK(f.regions.remove(mr).rc == 0);
  CHECK(f.device.regions.empty());
}

TEST_CASE("a region is on demand only where the device pages for all that its rights allow") {
  const auto needs = [](uint32_t cap, unsigned access) {
    switch (cap) {
    case IBV_ODP_SUPPORT_SEND: // from any region
    case IBV_ODP_SUPPORT_WRITE:
      return true;
    case IBV_ODP_SUPPORT_READ: // to it, or by a peer from it
      return (access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ)) != 0;
    case IBV_ODP_SUPPORT_ATOMIC:
      return (access & IBV_ACCESS_REMOTE_ATOMIC) != 0;
    default: // receives
      return (access & IBV_ACCESS_LOCAL_WRITE) != 0;
    }
  };
  for (uint32_t cap = 1; cap <= IBV_ODP_SUPPORT_SRQ_RECV; cap <<= 1)
    for (const unsigned access :
         {0U, unsigned{IBV_ACCESS_REMOTE_READ}, write_right, write_right | IBV_ACCESS_REMOTE_WRITE,
          write_right | IBV_ACCESS_REMOTE_READ, write_right | IBV_ACCESS_REMOTE_ATOMIC}) {
      INFO("without " << cap << ", rights " << access);
      Paging f;
      f.device.odp.per_transport_caps.rc_odp_caps = all_caps & ~cap;
      const Refusal refusal = f.odp().fits(f.wanted(access));
      CHECK(refusal.error == (needs(cap, access) ? EOPNOTSUPP : 0));
      CHECK(refusal.why.empty() == !needs(cap, access));
    }
}

TEST_CASE("why regions are pinned is said once for each reason, and the device is asked once") {
  Paging f;
  f.device.odp.per_transport_caps.rc_odp_caps = all_caps & ~IBV_ODP_SUPPORT_SRQ_RECV;
  for (int i = 0; i < 3; ++i) {
    CHECK(f.odp().fits(f.wanted()).error == EOPNOTSUPP);
    CHECK_FALSE(f.odp().fits(f.wanted(IBV_ACCESS_REMOTE_READ)));
  }
  CHECK(f.device.queries == 1);
  CHECK(f.said("odp0: regions that are to be registered \"odp\" are pinned: the device does not "
               "RECV to on-demand memory by SRQs") == 1);
  CHECK(f.bench.lines.said.size() == 1);
}

TEST_CASE("a device that has no on-demand paging, or cannot be asked, has all pinned") {
  Paging f;
  SECTION("it says so") {
    f.device.odp.general_caps = IBV_ODP_SUPPORT_IMPLICIT;
  }
  SECTION("its provider is older than the question") {
    f.device.extended.query_device_ex = nullptr;
  }
  SECTION("its provider is older than any") {
    f.device.context.abi_compat = nullptr;
  }
  CHECK(f.odp().fits(f.wanted(0)).error == EOPNOTSUPP);
  CHECK(f.said("the device has no on-demand paging") == 1);
}

TEST_CASE("a device that says it pages and misplaces bytes has all pinned") {
  Paging f;
  f.device.vendor = 0xffffff;
  CHECK(f.odp().fits(f.wanted()).error == EOPNOTSUPP);
  CHECK(f.said("soft-RoCE misplaces bytes of on-demand memory") == 1);
}

TEST_CASE("memory that stock would refuse at once, or that no device can page, is left to stock") {
  Paging f;
  CHECK_FALSE(f.odp().fits(f.wanted()));
  REQUIRE(mprotect(f.memory.memory, page, PROT_READ) == 0);
  CHECK_FALSE(f.odp().fits(f.wanted(IBV_ACCESS_REMOTE_READ)));
  CHECK(f.odp().fits(f.wanted(write_right)).error == EFAULT);
  REQUIRE(munmap(f.memory.memory + page, page) == 0);
  CHECK(f.odp().fits(f.wanted(IBV_ACCESS_REMOTE_READ)).error == EFAULT);
  CHECK(f.bench.lines.said.empty()); // a program's mistake, and no news of the device
}

TEST_CASE("what a device would page otherwise than it is meant is pinned") {
  Paging f;
  CHECK(f.odp().fits(f.wanted(write_right | IBV_ACCESS_HUGETLB)).error == EOPNOTSUPP);
  Wanted moved = f.wanted();
  moved.iova += page;
  CHECK(f.odp().fits(moved).error == EOPNOTSUPP);
  moved.iova -= page;
  CHECK_FALSE(f.odp().fits(moved));
  CHECK_FALSE(f.odp().fits(f.wanted(write_right | IBV_ACCESS_RELAXED_ORDERING)));
}

TEST_CASE("a device that refuses against its word is told of, and nothing is left there") {
  Paging f;
  f.device.refuse_on_demand = EOPNOTSUPP;
  ibv_mr* mr = nullptr;
  const Refusal refusal = f.regions.add(f.backend("odp"), f.wanted(), mr);
  CHECK(refusal.error == EOPNOTSUPP);
  CHECK(refusal.why == "on-demand paging was refused");
  CHECK(mr == nullptr);
  CHECK(f.device.regions.empty());
  REQUIRE_FALSE(f.regions.add(f.backend("pinned"), f.wanted(), mr));
  CHECK_FALSE(f.on_demand(mr));
}

TEST_CASE("a changed region is on demand as long as it may be") {
  Paging f;
  f.device.odp.per_transport_caps.rc_odp_caps = all_caps & ~IBV_ODP_SUPPORT_ATOMIC;
  ibv_mr* mr = f.add("odp");
  const auto rights = [](unsigned access) {
    return Change{.what = IBV_REREG_MR_CHANGE_ACCESS, .access = access};
  };
  CHECK(f.change(mr, rights(write_right)).rc == 0);
  CHECK(f.on_demand(mr));
  CHECK(f.change(mr, rights(write_right | IBV_ACCESS_REMOTE_ATOMIC)).rc == 0);
  CHECK_FALSE(f.on_demand(mr));
  CHECK(f.device.find(mr->lkey)->access == (write_right | IBV_ACCESS_REMOTE_ATOMIC));
  CHECK(f.change(mr, rights(all_rights)).rc == 0);
  CHECK(f.on_demand(mr));
  SECTION("another domain is nothing to it") {
    CHECK(f.change(mr, {.what = IBV_REREG_MR_CHANGE_PD, .pd = &f.device.other_pd}).rc == 0);
    CHECK(f.on_demand(mr));
    CHECK(f.device.find(mr->lkey)->access == (all_rights | IBV_ACCESS_ON_DEMAND));
  }
  SECTION("other memory") {
    const Mapped other(page);
    const auto to = [](std::byte* start, size_t length) {
      return Change{
          .what = IBV_REREG_MR_CHANGE_TRANSLATION, .pd = nullptr, .start = start, .length = length};
    };
    CHECK(f.change(mr, to(other.memory, page)).rc == 0);
    CHECK(f.on_demand(mr));
    Span span;
    CHECK(f.regions.local(&f.device.pd, {other.address(), 8, mr->lkey}, write_right, span) == 0);
    // That is for the device to refuse, as it does in stock.
    const Mapped unwritable(page, PROT_READ);
    CHECK(f.change(mr, to(unwritable.memory, page)).rc == 0);
    CHECK_FALSE(f.on_demand(mr));
    CHECK(f.device.find(mr->lkey)->access == all_rights);
  }
  CHECK(f.regions.remove(mr).rc == 0);
}

TEST_CASE("an unpinned region that is to be on demand from now on gets keys of the device") {
  Paging f;
  ibv_mr* mr = f.add("none");
  CHECK(f.change(mr, {.what = IBV_REREG_MR_CHANGE_ACCESS, .access = write_right}).rc == 0);
  CHECK_FALSE(f.regions.is_virtual(mr->lkey));
  CHECK(f.on_demand(mr));
  CHECK(f.regions.remove(mr).rc == 0);
}

TEST_CASE("with a queue pair of a type that the device does not page for, all later is pinned") {
  Paging f;
  auto& caps = f.device.odp.per_transport_caps;
  caps.ud_odp_caps = IBV_ODP_SUPPORT_SEND; // as mlx5
  f.regions.meet(&f.device.context, IBV_QPT_RC);
  CHECK_FALSE(f.odp().fits(f.wanted()));
  const auto closed_by = [&f](ibv_qp_type type, const std::string& words) {
    f.regions.meet(&f.device.context, type);
    CHECK(f.odp().fits(f.wanted(0)).error == EOPNOTSUPP);
    CHECK(f.said("pinned: the program has a " + words) == 1);
  };
  SECTION("UD") {
    closed_by(IBV_QPT_UD, "UD queue pair");
  }
  SECTION("UC") {
    closed_by(IBV_QPT_UC, "UC queue pair");
  }
  SECTION("others") {
    closed_by(IBV_QPT_XRC_SEND, "queue pair of another type");
  }
  SECTION("regions that stand are told of, once") {
    ibv_mr* mr = f.add("odp");
    f.regions.meet(&f.device.context, IBV_QPT_UD);
    f.regions.meet(&f.device.context, IBV_QPT_UD);
    CHECK(f.said("must not name the 1 regions that exist already") == 1);
    CHECK(f.regions.remove(mr).rc == 0);
    f.regions.meet(&f.device.context, IBV_QPT_UC);
    CHECK(f.said("must not name") == 1);
  }
}

TEST_CASE("a queue pair of a type that the device pages for changes nothing") {
  Paging f;
  auto& caps = f.device.odp.per_transport_caps;
  caps.ud_odp_caps = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
  caps.uc_odp_caps = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE;
  ibv_mr* mr = f.add("odp");
  f.regions.meet(&f.device.context, IBV_QPT_UD);
  f.regions.meet(&f.device.context, IBV_QPT_UC);
  CHECK_FALSE(f.odp().fits(f.wanted()));
  CHECK(f.bench.lines.said.empty());
  CHECK(f.regions.remove(mr).rc == 0);
}
