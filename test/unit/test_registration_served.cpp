// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// gate: yes
// A pinned region has a second key, under which this process's CPU serves peers.
#include "region_fixture.h"

#include <cerrno>

using namespace region_test;

namespace {

struct Served : Fixture {
  int remote(uint32_t key, uint64_t offset, uint64_t length,
             unsigned right = IBV_ACCESS_REMOTE_WRITE) {
    return regions.remote(&device.pd, key, memory.address() + offset, length, right, data);
  }
  std::byte* data = nullptr;
};

} // namespace

TEST_CASE("a pinned region is served under a key of its own, by its bounds and rights") {
  Served f;
  ibv_mr* const mr = f.add("pinned", IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  const uint32_t key = f.regions.serve(&f.device.pd, mr->rkey);
  REQUIRE(key != 0);
  CHECK(key != mr->rkey);
  CHECK(f.regions.is_reserved(key));
  CHECK(f.regions.serve(&f.device.pd, mr->rkey) == key);
  CHECK(f.remote(key, 5, 8) == 0);
  CHECK(f.data == f.memory.memory + 5);
  CHECK(f.remote(key, f.memory.bytes - 7, 8) == ERANGE);
  CHECK(f.remote(key, 0, 8, IBV_ACCESS_REMOTE_READ) == EACCES);
  CHECK(f.remote(mr->rkey, 5, 8) == ENOENT);
  ibv_pd other = f.device.pd;
  other.handle = f.device.pd.handle + 1;
  CHECK(f.regions.remote(&other, key, f.memory.address(), 8, IBV_ACCESS_REMOTE_WRITE, f.data) ==
        ENOENT);
  CHECK(f.regions.is_virtual_to_peer(&f.device.pd, key));
  CHECK_FALSE(f.regions.is_virtual_to_peer(&other, key));
  // It is no key of the program's, nor are its elements the library's matter.
  CHECK_FALSE(f.regions.is_virtual(key));
  CHECK_FALSE(f.regions.may_be_virtual(key));
  CHECK_FALSE(f.regions.any_remote());
  CHECK(f.regions.remove(mr).key->value() == key);
  CHECK(f.remote(key, 5, 8) == ENOENT);
}

TEST_CASE("what lets no peer in, lives in another domain or is not pinned is not served so") {
  Served f;
  ibv_mr* const local = f.add("pinned", IBV_ACCESS_LOCAL_WRITE);
  CHECK(f.regions.serve(&f.device.pd, local->rkey) == 0);
  ibv_mr* const pinned = f.add("pinned");
  ibv_pd other = f.device.pd;
  other.handle = f.device.pd.handle + 1;
  CHECK(f.regions.serve(&other, pinned->rkey) == 0);
  ibv_mr* const unpinned = f.add("none");
  CHECK(f.regions.serve(&f.device.pd, unpinned->rkey) == 0);
  CHECK(f.regions.serve(&f.device.pd, 0x777777) == 0);
  for (ibv_mr* mr : {local, pinned, unpinned})
    f.regions.remove(mr);
}

TEST_CASE("a change of the region ends its second key, which nobody has again while it is held") {
  Served f;
  ibv_mr* const mr = f.add("pinned");
  const uint32_t key = f.regions.serve(&f.device.pd, mr->rkey);
  REQUIRE(key != 0);
  const auto held = f.regions.key_token(key);
  REQUIRE(held != nullptr);
  const auto changed = f.change(mr, {.what = IBV_REREG_MR_CHANGE_ACCESS, .access = write_right});
  CHECK(changed.rc == 0);
  REQUIRE(changed.key != nullptr);
  CHECK(changed.key->value() == key);
  CHECK(f.remote(key, 0, 8) == ENOENT);
  CHECK(f.regions.key_token(key) == nullptr);
  CHECK(f.regions.serve(&f.device.pd, mr->rkey) == 0); // it lets no peer in any more
  ibv_mr* const next = f.add("pinned");
  CHECK(f.regions.serve(&f.device.pd, next->rkey) != key);
  f.regions.remove(next);
  f.regions.remove(mr);
}
