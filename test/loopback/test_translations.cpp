// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The model of translation misses: which accesses miss, and whose device counts them. Each case
// opens its devices with a setting of its own, and so begins with an empty cache. Penalties are 0,
// but for the case of time.
#include "test_children.h"
#include "test_setting.h"

#include <array>
#include <dlfcn.h>
#include <optional>
#include <ostream>

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kPages = 32;
constexpr const char* kModel = "ADVERB_LOOPBACK_TRANSLATIONS";

struct Counts {
  uint64_t hits = 0, misses = 0;
  bool operator==(const Counts&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Counts& counts) {
  return out << counts.hits << " hits, " << counts.misses << " misses";
}

Counts counts_of(pid_t pid = 0) {
  using Read = int (*)(pid_t, uint64_t*, uint64_t*);
  static const auto read =
      reinterpret_cast<Read>(dlsym(RTLD_DEFAULT, "adverb_loopback_translations"));
  REQUIRE(read != nullptr);
  Counts counts;
  REQUIRE(read(pid, &counts.hits, &counts.misses) == 0);
  return counts;
}

// What a piece of work adds to the counts.
template <typename Work> Counts counted(Work work, pid_t pid = 0) {
  const Counts before = counts_of(pid);
  work();
  const Counts after = counts_of(pid);
  return {after.hits - before.hits, after.misses - before.misses};
}

EndOptions large() {
  EndOptions options;
  options.bytes = (kPages + 32) * kPage;
  return options;
}

// The offset of page `number` of a buffer, from its first multiple of 16 pages.
size_t page(const Address& there, size_t number) {
  constexpr size_t kAligned = 16 * kPage;
  return (kAligned - there.buffer % kAligned) % kAligned + number * kPage;
}

// Two ends of one process, and accesses of one of them to pages of the other.
struct Walker {
  explicit Walker(const std::string& setting) : model(kModel, setting), pair(large(), large()) {}

  void access(ibv_wr_opcode opcode, size_t offset, uint32_t length) {
    REQUIRE(pair.a.post(opcode, there, 0, offset, length) == 0);
    REQUIRE(pair.a.completion().status == IBV_WC_SUCCESS);
  }
  Counts write(std::initializer_list<size_t> pages) {
    return counted([&] {
      for (const size_t number : pages)
        access(IBV_WR_RDMA_WRITE, page(there, number), 8);
    });
  }
  Counts walk(size_t pages) {
    return counted([&] {
      for (size_t number = 0; number < pages; ++number)
        access(IBV_WR_RDMA_WRITE, page(there, number), 8);
    });
  }

  Setting model;
  Pair pair;
  const Address there = pair.b.address();
};

// A process with a device that the setting of its own describes. On a word it writes to its peer.
void be_target(int socket) {
  const Setting model(kModel, "entries=4,ways=4,penalty=0ns");
  End end(large());
  Address peer;
  meet(end, socket, peer);
  hear<char>(socket);
  REQUIRE(end.post(IBV_WR_RDMA_WRITE, peer, 0, 0, kPage) == 0);
  tell(socket, end.completion().status);
  hear<char>(socket);
}

} // namespace

TEST_CASE("without the setting nothing is counted") {
  const Counts nothing{0, 0};
  for (const char* setting : {static_cast<const char*>(nullptr), ""}) {
    std::optional<Setting> model;
    if (setting != nullptr)
      model.emplace(kModel, setting);
    Pair pair(large(), large());
    const Counts counts = counted([&] {
      REQUIRE(pair.a.post(IBV_WR_RDMA_WRITE, pair.b.address(), 0, 0, kPage) == 0);
      REQUIRE(pair.a.completion().status == IBV_WC_SUCCESS);
    });
    CHECK(counts == nothing);
  }
}

TEST_CASE("a working set that fits misses once per page") {
  for (const std::string setting :
       {"entries=16,ways=1,penalty=0ns", "entries=16,ways=4,penalty=0ns",
        "entries=16,ways=16,penalty=0ns"})
    for (const size_t pages : {size_t{1}, size_t{15}, size_t{16}}) {
      Walker walker(setting);
      CHECK(walker.walk(pages) == Counts{0, pages});
      CHECK(walker.walk(pages) == Counts{pages, 0});
      CHECK(walker.walk(pages) == Counts{pages, 0});
    }
}

TEST_CASE("a cyclic walk over more pages than a set keeps misses every time") {
  SECTION("of one set") {
    Walker walker("entries=8,ways=8,penalty=0ns");
    for (int round = 0; round < 3; ++round)
      CHECK(walker.walk(9) == Counts{0, 9});
  }
  SECTION("of several sets") {
    Walker walker("entries=8,ways=2,penalty=0ns"); // 12 pages are 3 for each of 4 sets
    for (int round = 0; round < 3; ++round)
      CHECK(walker.walk(12) == Counts{0, 12});
  }
}

TEST_CASE("a page competes with the pages of its set only") {
  Walker walker("entries=8,ways=2,penalty=0ns");
  CHECK(walker.walk(9) == Counts{0, 9}); // pages 0, 4 and 8 share two ways
  CHECK(walker.walk(9) == Counts{6, 3});
}

TEST_CASE("a set keeps the pages that were used last") {
  Walker walker("entries=8,ways=2,penalty=0ns");
  CHECK(walker.write({0, 4}) == Counts{0, 2});
  CHECK(walker.write({0}) == Counts{1, 0});
  CHECK(walker.write({8}) == Counts{0, 1}); // in place of page 4
  CHECK(walker.write({0}) == Counts{1, 0});
  CHECK(walker.write({4}) == Counts{0, 1}); // in place of page 8
  CHECK(walker.write({0, 4}) == Counts{2, 0});
  CHECK(walker.write({8}) == Counts{0, 1});
}

TEST_CASE("a request touches every page of its range") {
  Walker walker("entries=64,ways=4,penalty=0ns");
  const size_t begin = page(walker.there, 1);
  const auto access = [&](size_t offset, uint32_t length) {
    return counted([&] { walker.access(IBV_WR_RDMA_WRITE, offset, length); });
  };
  CHECK(access(begin, 3 * kPage) == Counts{0, 3});
  CHECK(access(begin, 3 * kPage) == Counts{3, 0});
  CHECK(access(begin + 3 * kPage - 1, 2) == Counts{1, 1});
  CHECK(access(begin, kPage) == Counts{1, 0}); // ends where the next page begins
  CHECK(access(begin, 0) == Counts{0, 0});
}

TEST_CASE("a translation covers the bytes of the setting") {
  Walker walker("entries=64,ways=4,page=16384,penalty=0ns");
  CHECK(walker.walk(16) == Counts{12, 4});
}

TEST_CASE("READs, atomics and receives touch pages as WRITEs do") {
  Walker walker("entries=64,ways=4,penalty=0ns");
  Pair& pair = walker.pair;
  const auto add = [&] {
    REQUIRE(pair.a.atomic(IBV_WR_ATOMIC_FETCH_AND_ADD, walker.there, page(walker.there, 1), 1) ==
            0);
    REQUIRE(pair.a.completion().status == IBV_WC_SUCCESS);
  };
  const auto message = [&](ibv_wr_opcode opcode) {
    REQUIRE(pair.b.receive(page(walker.there, 2), 2 * kPage) == 0);
    walker.access(opcode, page(walker.there, 6), kPage + 1);
    REQUIRE(pair.b.completion().status == IBV_WC_SUCCESS);
  };
  CHECK(counted([&] { walker.access(IBV_WR_RDMA_READ, page(walker.there, 0), 8); }) ==
        Counts{0, 1});
  CHECK(counted(add) == Counts{0, 1});
  CHECK(counted(add) == Counts{1, 0});
  CHECK(counted([&] { message(IBV_WR_SEND); }) == Counts{0, 2});
  CHECK(counted([&] { message(IBV_WR_SEND); }) == Counts{2, 0}); // a warm receive hits
  CHECK(counted([&] { message(IBV_WR_RDMA_WRITE_WITH_IMM); }) == Counts{0, 2});
}

TEST_CASE("a message touches the pages of every part of its receive") {
  Walker walker("entries=64,ways=4,penalty=0ns");
  End& receiver = walker.pair.b;
  std::array<ibv_sge, 3> parts = {receiver.sge(page(walker.there, 1), 8),
                                  receiver.sge(page(walker.there, 4), 8),
                                  receiver.sge(page(walker.there, 6), 8)};
  ibv_recv_wr wr = {}, *bad = nullptr;
  wr.sg_list = parts.data();
  wr.num_sge = static_cast<int>(parts.size());
  const auto fill_two_parts = [&] {
    REQUIRE(ibv_post_recv(receiver.qp, &wr, &bad) == 0);
    walker.access(IBV_WR_SEND, 0, 16);
    REQUIRE(receiver.completion().status == IBV_WC_SUCCESS);
  };
  CHECK(counted(fill_two_parts) == Counts{0, 2});
  CHECK(counted(fill_two_parts) == Counts{2, 0});
}

// A device that fetches the second READ early translates for it, too (meson.build).
TEST_CASE("each READ of a list touches its pages once") {
  Walker walker("entries=64,ways=4,penalty=0ns");
  End& reader = walker.pair.a;
  std::array<ibv_sge, 3> parts = {};
  std::array<ibv_send_wr, 3> list = {};
  for (size_t i = 0; i < list.size(); ++i) {
    parts[i] = reader.sge(i * 8, 8);
    list[i].next = i + 1 == list.size() ? nullptr : &list[i + 1];
    list[i].sg_list = &parts[i];
    list[i].num_sge = 1;
    list[i].opcode = IBV_WR_RDMA_READ;
    list[i].send_flags = IBV_SEND_SIGNALED;
    list[i].wr.rdma.remote_addr = walker.there.buffer + page(walker.there, i);
    list[i].wr.rdma.rkey = walker.there.rkey;
  }
  const auto read = [&] {
    ibv_send_wr* bad = nullptr;
    REQUIRE(ibv_post_send(reader.qp, list.data(), &bad) == 0);
    for (size_t i = 0; i < list.size(); ++i)
      REQUIRE(reader.completion().status == IBV_WC_SUCCESS);
  };
  CHECK(counted(read) == Counts{0, 3});
  CHECK(counted(read) == Counts{3, 0});
}

TEST_CASE("datagrams touch the pages of their receives") {
  const Setting model(kModel, "entries=64,ways=4,penalty=0ns");
  EndOptions options = large();
  options.type = IBV_QPT_UD;
  Pair pair(options, options);
  ibv_ah_attr route = {};
  pair.a.fill_route(route);
  ibv_ah* ah = ibv_create_ah(pair.a.pd, &route);
  REQUIRE(ah != nullptr);
  const auto send = [&] {
    REQUIRE(pair.b.receive(page(pair.b.address(), 0), kPage) == 0);
    ibv_sge part = pair.a.sge(0, 64);
    ibv_send_wr wr = {}, *bad = nullptr;
    wr.sg_list = &part;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.ud.ah = ah;
    wr.wr.ud.remote_qpn = pair.b.qp->qp_num;
    wr.wr.ud.remote_qkey = 0x1234;
    REQUIRE(ibv_post_send(pair.a.qp, &wr, &bad) == 0);
    REQUIRE(pair.a.completion().status == IBV_WC_SUCCESS);
    REQUIRE(pair.b.completion().status == IBV_WC_SUCCESS);
  };
  CHECK(counted(send) == Counts{0, 1});
  CHECK(counted(send) == Counts{1, 0});
  CHECK(ibv_destroy_ah(ah) == 0);
}

TEST_CASE("a request that is refused or not ready touches nothing") {
  Walker walker("entries=64,ways=4,penalty=0ns");
  Pair& pair = walker.pair;
  const auto late = [&] {
    REQUIRE(pair.a.post(IBV_WR_RDMA_WRITE_WITH_IMM, walker.there, 0, page(walker.there, 0), 8) ==
            0);
    for (int look = 0; look < 1000; ++look)
      REQUIRE(pair.a.quiet());
    REQUIRE(pair.b.receive(0, 64) == 0);
    REQUIRE(pair.a.completion().status == IBV_WC_SUCCESS);
  };
  CHECK(counted(late) == Counts{0, 1});
  Address wrong = walker.there;
  wrong.rkey ^= 0xff;
  const auto refused = [&] {
    REQUIRE(pair.a.post(IBV_WR_RDMA_WRITE, wrong, 0, 0, 8) == 0);
    REQUIRE(pair.a.completion().status == IBV_WC_REM_ACCESS_ERR);
  };
  CHECK(counted(refused) == Counts{0, 0});
}

TEST_CASE("the device of the target counts, by the setting of its process") {
  for (int round = 0; round < 2; ++round) { // the second has the place of the first on the fabric
    Child child(be_target);
    End end(large());
    Address peer;
    meet(end, child.socket, peer);
    const auto walk = [&] {
      for (const size_t number : {0, 1, 2, 0})
        REQUIRE((end.post(IBV_WR_RDMA_WRITE, peer, 0, page(peer, number), 8) == 0 &&
                 end.completion().status == IBV_WC_SUCCESS));
    };
    const auto answer = [&] {
      tell(child.socket, 'w');
      REQUIRE(hear<ibv_wc_status>(child.socket) == IBV_WC_SUCCESS);
    };
    const Counts own = counts_of();
    CHECK(counts_of(child.pid) == Counts{0, 0});
    CHECK(counted(walk, child.pid) == Counts{1, 3});
    CHECK(counted(answer, child.pid) == Counts{0, 0});
    CHECK(counts_of() == own);
    tell(child.socket, 'q');
  }
}

TEST_CASE("opening a device again shares its cache, and the last close empties it") {
  const std::string setting = "entries=64,ways=4,penalty=0ns";
  std::vector<char> bytes(3 * kPage);
  const auto write_first_page = [&](Walker& walker) {
    ibv_mr* mr = ibv_reg_mr(walker.pair.b.pd, bytes.data(), bytes.size(),
                            walker.pair.b.options.region_access);
    REQUIRE(mr != nullptr);
    Address there = walker.there;
    there.rkey = mr->rkey;
    there.buffer = reinterpret_cast<uint64_t>(bytes.data());
    const Counts counts = counted([&] {
      REQUIRE(walker.pair.a.post(IBV_WR_RDMA_WRITE, there, 0, 0, 1) == 0);
      REQUIRE(walker.pair.a.completion().status == IBV_WC_SUCCESS);
    });
    CHECK(ibv_dereg_mr(mr) == 0);
    return counts;
  };
  {
    Walker first(setting);
    CHECK(write_first_page(first) == Counts{0, 1});
    Walker second(setting);
    CHECK(write_first_page(second) == Counts{1, 0});
    Walker other("entries=32,ways=4,penalty=0ns");
    CHECK(write_first_page(other) == Counts{0, 1});
  }
  Walker third(setting);
  CHECK(write_first_page(third) == Counts{0, 1});
}

// A lower bound only: the machine may take any time, but the model may not take less.
TEST_CASE("a completion does not come before the stalls are over") {
  Walker walker("entries=64,ways=4,penalty=1ms");
  const auto begin = std::chrono::steady_clock::now();
  walker.access(IBV_WR_RDMA_WRITE, page(walker.there, 0), 8 * kPage);
  CHECK(std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(8));
}

TEST_CASE("nobody has the counts of a process that is not on the fabric") {
  End end;
  using Read = int (*)(pid_t, uint64_t*, uint64_t*);
  const auto read = reinterpret_cast<Read>(dlsym(RTLD_DEFAULT, "adverb_loopback_translations"));
  REQUIRE(read != nullptr);
  Counts counts;
  CHECK(read(getpid(), &counts.hits, &counts.misses) == 0);
  CHECK(read(-1, &counts.hits, &counts.misses) == ESRCH);
}

TEST_CASE("a setting that is wrong names its word and opens no device") {
  for (const std::string good :
       {"entries=4096,ways=8,page=4096,penalty=1us", "penalty=0ns", "entries=1,ways=1",
        "entries=24,ways=8", "page=1073741824", "penalty=1ms", ""})
    CHECK(complaint_of(kModel, good) == "opened");
  for (const std::string bad :
       {"entry=1",    "entries",          "entries=",     "entries=0",  "entries=1e3",
        "entries=-1", "entries=16777217", "ways=0",       "ways=1025",  "ways=x",
        "page=4095",  "page=2048",        "page=6144",    "page=4k",    "page=2147483648",
        "penalty=1",  "penalty=1m",       "penalty=-1us", "penalty=us", "penalty=2ms"})
    for (const std::string& text : {bad, "ways=8," + bad, bad + ",ways=8"}) {
      const std::string said = complaint_of(kModel, text);
      CHECK(said.find(std::string(kModel) + ": '" + bad + "': ") != std::string::npos);
    }
  CHECK(complaint_of(kModel, "ways=8,").find("'': ") != std::string::npos);
  CHECK(complaint_of(kModel, "entries=12,ways=8").find("'ways': ") != std::string::npos);
  CHECK(complaint_of(kModel, "entries=4").find("'ways': ") != std::string::npos);
}
