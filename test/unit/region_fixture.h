// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A context with its regions, over a provider that writes down what it is asked.
#pragma once

#include "catch.h"
#include "fake_provider.h"
#include "policy/policy.h"
#include "registration/regions.h"
#include "test_world.h"

#include <cassert>
#include <memory>
#include <string>
#include <string_view>
#include <sys/mman.h>

namespace region_test {

using namespace adverb::registration;
namespace policy = adverb::policy;

inline constexpr size_t page = 4096;
inline constexpr unsigned write_right = IBV_ACCESS_LOCAL_WRITE;
inline constexpr unsigned all_rights =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
inline constexpr uint64_t copy_below = 1024;

struct Mapped {
  explicit Mapped(size_t bytes_, int prot = PROT_READ | PROT_WRITE)
      : bytes(bytes_), memory(static_cast<std::byte*>(
                           mmap(nullptr, bytes_, prot, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    REQUIRE(memory != MAP_FAILED);
  }
  ~Mapped() { munmap(memory, bytes); }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  uint64_t address() const { return reinterpret_cast<uintptr_t>(memory); }
  size_t bytes;
  std::byte* memory;
};

inline bool same(const ibv_sge& a, const ibv_sge& b) {
  return a.addr == b.addr && a.length == b.length && a.lkey == b.lkey;
}

inline std::unique_ptr<const policy::Policy> policy_of(const std::string& rest) {
  auto loaded = policy::load_text(R"({"version": 1, )" + rest + "}", "test", "/usr/bin/prog");
  for (const auto& error : loaded.errors)
    UNSCOPED_INFO(error.text());
  REQUIRE(loaded);
  return std::move(loaded.policy);
}

// A context with its regions, four pages of memory, and a staging.
struct Fixture {
  explicit Fixture(const std::string& policy = R"("staging": "1MiB", "pinned_budget": "8KiB")")
      : rules(policy_of(policy)) {}
  ~Fixture() { regions.close(); }
  Fixture(const Fixture&) = delete;
  Fixture& operator=(const Fixture&) = delete;

  Wanted wanted(unsigned access = all_rights) {
    return {&device.pd,       memory.memory, memory.bytes,
            memory.address(), access,        Wanted::Verb::reg_mr};
  }
  Backend& backend(std::string_view name) {
    const auto* row = policy::find_backend(name);
    REQUIRE(row != nullptr);
    return regions.backend(*row);
  }
  ibv_mr* add(std::string_view name, unsigned access = all_rights) {
    ibv_mr* mr = nullptr;
    CHECK_FALSE(regions.add(backend(name), wanted(access), mr));
    REQUIRE(mr != nullptr);
    return mr;
  }
  ibv_sge element(const ibv_mr* mr, uint64_t offset, uint32_t length) const {
    return {memory.address() + offset, length, mr->lkey};
  }
  int localize(ibv_sge& sge, Hold& hold, unsigned rights = 0, bool copy_in = true) {
    if (!copy_in) {
      assert(rights == write_right); // a receive
      return regions.localize_receive(&device.pd, staging, copy_below, Behind::ask, 1, sge, hold);
    }
    return regions.localize(&device.pd, staging, copy_below, rights, true, sge, hold);
  }

  // By a policy that wants `chosen`.
  Ended change(ibv_mr* mr, const Change& change) {
    return regions.change(mr, change, [this](const Wanted& wanted, Backend*& to) {
      to = &backend(chosen);
      const int why = to->fits(wanted).error;
      return why == EOPNOTSUPP ? (to = &backend("pinned"), 0) : why;
    });
  }

  // Null: nothing was lent.
  std::shared_ptr<Grant> grant(uint32_t key, uint64_t address, uint64_t length, unsigned access) {
    std::shared_ptr<Grant> lent;
    const int rc = regions.grant(key, address, length, access, lent);
    CHECK((rc == 0) == (lent != nullptr));
    return lent;
  }

  FakeProvider device;
  std::unique_ptr<const policy::Policy> rules;
  world_test::Bench bench{&FakeProvider::table(), rules.get()};
  Regions regions{bench.world, &device.context};
  Staging staging{bench.world, &device.pd};
  Mapped memory{4 * page};
  std::string_view chosen = "none";
};

} // namespace region_test
