// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Regions that change or end while requests of them are under way.
#include "two_programs.h"

#include <sys/mman.h>

#include <utility>

using namespace adverb;
using namespace adverb::test;

namespace {

constexpr int local = IBV_ACCESS_LOCAL_WRITE;
constexpr int remote = local | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
constexpr int other_rights = IBV_REREG_MR_CHANGE_ACCESS;
constexpr int other_memory = IBV_REREG_MR_CHANGE_TRANSLATION;
constexpr int other_pd = IBV_REREG_MR_CHANGE_PD;

// What a rereg takes away from a request that was posted before.
enum class Taken { memory, domain, right };

void take(Program& p, Taken what, std::vector<unsigned char>& elsewhere, ibv_pd* pd) {
  switch (what) {
  case Taken::memory:
    REQUIRE(p.verbs.rereg_mr(p.mr, other_memory, nullptr, elsewhere.data(), elsewhere.size(), 0) ==
            0);
    break;
  case Taken::domain:
    REQUIRE(p.verbs.rereg_mr(p.mr, other_pd, pd, nullptr, 0, 0) == 0);
    break;
  case Taken::right:
    REQUIRE(p.verbs.rereg_mr(p.mr, other_rights, nullptr, nullptr, 0, IBV_ACCESS_REMOTE_READ) == 0);
    break;
  }
}

} // namespace

TEST_CASE("bytes that arrive after their region has changed land only where they may", "[rereg]") {
  const auto taken = GENERATE(Taken::memory, Taken::domain, Taken::right);
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  fill(a, 1);
  fill(b, 2);
  std::vector<unsigned char> elsewhere(4096);
  ibv_pd* pd = b.verbs.alloc_pd(b.context);
  const auto was = b.memory;
  const auto change = [&] { take(b, taken, elsewhere, pd); };

  SECTION("of a message in staging") {
    REQUIRE(b.receive(21, 5000, 64) == 0);
    REQUIRE(a.post(IBV_WR_SEND, 1, 100, 64, b, 0, 0) == 0);
    change();
    const auto done = b.poll();
    REQUIRE(done.size() == 1);
    CHECK(done[0].wr_id == 21);
    CHECK(done[0].status == IBV_WC_LOC_PROT_ERR);
  }
  SECTION("of a READ in staging") {
    ibv_mr* pinned = FakeFabric::real().ibv_reg_mr(a.pd, a.memory.data(), a.memory.size(),
                                                   IBV_ACCESS_REMOTE_READ);
    REQUIRE(b.post(IBV_WR_RDMA_READ, 2, 5000, 64, a, 100, pinned->rkey) == 0);
    two.settle();
    change();
    const auto done = b.poll();
    REQUIRE(done.size() == 1);
    CHECK(done[0].wr_id == 2);
    CHECK(done[0].status == IBV_WC_LOC_PROT_ERR);
    CHECK(b.qp->state == IBV_QPS_ERR);
    REQUIRE(b.post(IBV_WR_SEND, 3, 0, 64, a, 0, 0) == 0);
    const auto flushed = b.poll();
    REQUIRE(flushed.size() == 1);
    CHECK(flushed[0].status == IBV_WC_WR_FLUSH_ERR);
    FakeFabric::real().ibv_dereg_mr(pinned);
  }
  SECTION("of a message too large for staging") {
    REQUIRE(b.receive(21, 0, 60000) == 0);
    change();
    REQUIRE(a.post(IBV_WR_SEND, 1, 100, 60000, b, 0, 0) == 0);
    const auto done = b.poll();
    REQUIRE(done.size() == 1);
    CHECK(done[0].status != IBV_WC_SUCCESS);
  }
  CHECK((b.memory == was));
  CHECK((elsewhere == std::vector<unsigned char>(4096)));
  b.verbs.rereg_mr(b.mr, other_pd, b.pd, nullptr, 0, 0);
  b.verbs.dealloc_pd(pd);
}

TEST_CASE("what a changed region still allows goes on as it was posted", "[rereg]") {
  const auto bytes = GENERATE(64U, 60000U); // staged, and in a window
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  fill(a, 1);
  REQUIRE(b.receive(21, 1000, bytes) == 0);
  SECTION("with one right more") {
    REQUIRE(b.verbs.rereg_mr(b.mr, other_rights, nullptr, nullptr, 0,
                             remote | IBV_ACCESS_REMOTE_ATOMIC) == 0);
  }
  SECTION("with a few bytes less at the end") {
    REQUIRE(b.verbs.rereg_mr(b.mr, other_memory, nullptr, b.memory.data(), 61500, 0) == 0);
  }
  REQUIRE(a.post(IBV_WR_SEND, 1, 0, bytes, b, 0, 0) == 0);
  const auto done = b.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_SUCCESS);
  CHECK(memcmp(b.memory.data() + 1000, a.memory.data(), bytes) == 0);
}

TEST_CASE("a region that gains remote rights is pinned where the policy pins such", "[rereg]") {
  Two two({}, "default");
  Program& a = two.a;
  Program& b = two.b;
  fill(a, 1);
  REQUIRE(two.fabric.reaches(b.mr->rkey, b.memory.data())); // with remote rights from the beginning
  std::vector<unsigned char> buffer(60000);
  ibv_mr* mr = b.verbs.reg_mr(b.pd, buffer.data(), buffer.size(), local);
  CHECK_FALSE(two.fabric.reaches(mr->rkey, mr->addr));
  ibv_sge sge{reinterpret_cast<uintptr_t>(buffer.data()), 60000, mr->lkey};
  ibv_recv_wr receive{21, nullptr, &sge, 1};
  ibv_recv_wr* bad = nullptr;
  REQUIRE(model::post_recv(*b.verbs.managed(b.qp), &receive, &bad) == 0);

  REQUIRE(b.verbs.rereg_mr(mr, other_rights, nullptr, nullptr, 0, remote) == 0);
  CHECK(two.fabric.reaches(mr->rkey, mr->addr)); // a peer without adverb reaches it, too
  CHECK(mr->addr == buffer.data());
  CHECK(mr->length == buffer.size());
  CHECK(mr->pd == b.pd);
  // What was posted before is still good.
  REQUIRE(a.post(IBV_WR_SEND, 1, 0, 60000, b, 0, 0) == 0);
  auto done = b.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_SUCCESS);
  CHECK(memcmp(buffer.data(), a.memory.data(), buffer.size()) == 0);

  // It changes again, and ends, as any of the device's.
  const uint32_t before = mr->rkey;
  REQUIRE(b.verbs.rereg_mr(mr, other_memory, nullptr, buffer.data() + 100, 1000, 0) == 0);
  CHECK(mr->rkey != before);
  CHECK(two.fabric.reaches(mr->rkey, mr->addr));
  CHECK(mr->addr == buffer.data() + 100);
  const uint32_t last = mr->rkey;
  CHECK(b.verbs.dereg_mr(mr) == 0);
  CHECK_FALSE(two.fabric.reaches(last, buffer.data() + 100));
}

TEST_CASE("a region is moved only to memory that it could have been made of", "[rereg]") {
  Two two;
  Program& a = two.a;
  constexpr size_t page = 4096;
  const auto map = [](int rights, int flags, int fd) {
    void* at = mmap(nullptr, page, rights, flags, fd, 0);
    REQUIRE(at != MAP_FAILED);
    return at;
  };
  void* read_only = map(PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1);
  errno = 0;
  CHECK(a.verbs.rereg_mr(a.mr, other_memory, nullptr, read_only, page, 0) == IBV_REREG_MR_ERR_CMD);
  CHECK(errno == EFAULT);
  CHECK(a.verbs.rereg_mr(a.mr, other_memory | other_rights, nullptr, read_only, page,
                         IBV_ACCESS_REMOTE_READ) == 0);
  // A shared file is the device's to judge, which takes it.
  char name[] = "/var/tmp/adverb-test-XXXXXX";
  const int fd = mkstemp(name);
  REQUIRE(fd >= 0);
  unlink(name);
  REQUIRE(ftruncate(fd, page) == 0);
  void* shared = map(PROT_READ | PROT_WRITE, MAP_SHARED, fd);
  CHECK(a.verbs.rereg_mr(a.mr, other_memory, nullptr, shared, page, 0) == 0);
  CHECK(two.fabric.reaches(a.mr->lkey, shared));
  CHECK(a.verbs.dereg_mr(a.mr) == 0);
  a.mr = a.verbs.reg_mr(a.pd, a.memory.data(), a.memory.size(), remote);
  munmap(read_only, page);
  munmap(shared, page);
  close(fd);
}

TEST_CASE("a domain with a region in it is not deallocated", "[regions]") {
  Two two;
  Program& a = two.a;
  std::vector<unsigned char> buffer(4096);
  ibv_pd* pd = a.verbs.alloc_pd(a.context);
  ibv_mr* mr = a.verbs.reg_mr(pd, buffer.data(), buffer.size(), local);
  REQUIRE(mr != nullptr);
  CHECK(a.verbs.dealloc_pd(pd) == EBUSY);
  CHECK(a.verbs.dereg_mr(mr) == 0);
  CHECK(a.verbs.dealloc_pd(pd) == 0);
}

TEST_CASE("a queue that is not managed never meets a virtual key", "[regions]") {
  Two two;
  Program& a = two.a;
  ibv_qp_init_attr init{};
  init.send_cq = init.recv_cq = a.cq;
  init.cap = {8, 8, 1, 1, 0};
  ibv_srq tag_matching{};
  SECTION("XRC") {
    init.qp_type = IBV_QPT_XRC_SEND;
  }
  SECTION("over a receive queue of another kind") {
    init.qp_type = IBV_QPT_RC;
    init.srq = &tag_matching;
  }
  errno = 0;
  CHECK(a.verbs.create_qp(a.pd, &init) == nullptr);
  CHECK(errno == EOPNOTSUPP);
  REQUIRE_FALSE(a.bench.lines.said.empty());
  CHECK(a.bench.lines.said.back().find("\"register\"") != std::string::npos);

  REQUIRE(a.verbs.dereg_mr(a.mr) == 0);
  ibv_qp* qp = a.verbs.create_qp(a.pd, &init);
  REQUIRE(qp != nullptr);
  CHECK(a.verbs.managed(qp) == nullptr);
  a.mr = a.verbs.reg_mr(a.pd, a.memory.data(), a.memory.size(), remote);
  REQUIRE(a.mr != nullptr);
  CHECK(two.fabric.reaches(a.mr->lkey, a.memory.data()));
  CHECK(a.verbs.destroy_qp(qp) == 0);
}

// What is staged comes to its place at the poll, and the device knows nothing of that.
TEST_CASE("a message into memory that peers reach by the device does not land after what they do",
          "[overlap]") {
  Two two({}, "default");
  Program& a = two.a;
  Program& b = two.b;
  fill(a, 1);
  ibv_mr* const pinned = b.mr;
  const uint32_t rkey = pinned->rkey;
  REQUIRE(two.fabric.reaches(rkey, b.memory.data()));
  b.mr = b.verbs.reg_mr(b.pd, b.memory.data(), b.memory.size(), local);
  REQUIRE_FALSE(two.fabric.reaches(b.mr->lkey, b.memory.data()));
  bool overlaps = true;
  bool message_stays = false;
  SECTION("as it was registered") {}
  SECTION("as it is registered now") {
    REQUIRE(b.verbs.rereg_mr(pinned, other_memory, nullptr, b.memory.data() + 4096, 4096, 0) == 0);
    REQUIRE(b.receive(20, 0, 64) == 0); // known not to be reached
    REQUIRE(b.verbs.rereg_mr(pinned, other_memory, nullptr, b.memory.data() + 512, 4096, 0) == 0);
    REQUIRE(a.post(IBV_WR_SEND, 9, 0, 64, b, 0, 0) == 0);
    REQUIRE(b.poll().size() == 1);
    a.poll();
  }
  SECTION("not those bytes, but others of the region") {
    REQUIRE(b.verbs.rereg_mr(pinned, other_memory, nullptr, b.memory.data() + 1064, 64, 0) == 0);
    message_stays = true;
  }
  std::vector<std::byte> elsewhere(4096);
  SECTION("none of the region") {
    REQUIRE(b.verbs.rereg_mr(pinned, other_memory, nullptr, elsewhere.data(), 4096, 0) == 0);
    overlaps = false;
    message_stays = true;
  }
  const uint64_t staged = b.count(observe::Counter::staging_copies);
  REQUIRE(b.receive(21, 1000, 64) == 0);
  CHECK(b.count(observe::Counter::staging_copies) == staged + (overlaps ? 0 : 1));
  REQUIRE(a.post(IBV_WR_SEND, 1, 100, 64, b, 0, 0) == 0);
  if (!message_stays)
    REQUIRE(a.post(IBV_WR_RDMA_WRITE, 2, 300, 64, b, 1000, pinned->rkey) == 0);
  two.settle();
  CHECK(a.poll().back().status == IBV_WC_SUCCESS);
  const auto done = b.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].wr_id == 21);
  CHECK(memcmp(b.memory.data() + 1000, a.memory.data() + (message_stays ? 100 : 300), 64) == 0);
  b.verbs.dereg_mr(std::exchange(b.mr, pinned));
}

// A client of the kernel's peer-memory interface has it, for example, and the process no mapping.
TEST_CASE("memory that is not the process's is the provider's to judge", "[regions]") {
  Two two;
  Program& a = two.a;
  auto* const beyond = reinterpret_cast<void*>(uintptr_t{1} << 46);
  errno = 0;
  CHECK(a.verbs.reg_mr(a.pd, beyond, 4096, remote) == nullptr);
  CHECK(errno == EFAULT);
  two.fabric.knows_all_memory = true;
  ibv_mr* mr = a.verbs.reg_mr(a.pd, beyond, 4096, remote);
  REQUIRE(mr != nullptr);
  CHECK(two.fabric.reaches(mr->rkey, beyond));
  CHECK(a.verbs.dereg_mr(mr) == 0);
}

TEST_CASE("a region whose addresses lie otherwise in their pages is refused", "[regions]") {
  Two two;
  Program& a = two.a;
  errno = 0;
  CHECK(a.verbs.reg_mr_iova(a.pd, a.memory.data(), 4096, a.address(1), local) == nullptr);
  CHECK(errno == EINVAL);
  ibv_mr* mr = a.verbs.reg_mr_iova(a.pd, a.memory.data(), 4096, a.address(1 << 20), local);
  REQUIRE(mr != nullptr);
  CHECK_FALSE(two.fabric.reaches(mr->rkey, a.memory.data()));
  CHECK(a.verbs.dereg_mr(mr) == 0);
}

// Another process may ask the kernel for the region by its handle.
TEST_CASE("the handle of an unpinned region is no other region's", "[regions]") {
  Two two;
  CHECK(two.a.mr->handle == UINT32_MAX);
}

TEST_CASE("elements of a region whose addresses are offsets are carried like others", "[regions]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  fill(a, 1);
  fill(b, 2);
  ibv_mr* const whole = std::exchange(
      a.mr, a.verbs.reg_mr(a.pd, a.memory.data(), a.memory.size(), local | IBV_ACCESS_ZERO_BASED));
  REQUIRE(a.mr != nullptr);
  REQUIRE(two.fabric.reaches(a.mr->lkey, a.memory.data()));
  ibv_sge sge{100, 64, a.mr->lkey};
  ibv_send_wr wr{};
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.send_flags = IBV_SEND_SIGNALED;
  wr.wr.rdma = {b.address(2000), b.mr->rkey};
  ibv_send_wr* bad = nullptr;
  SECTION("out") {
    wr.opcode = IBV_WR_RDMA_WRITE;
  }
  SECTION("and in") {
    wr.opcode = IBV_WR_RDMA_READ;
  }
  REQUIRE(model::post_send(*a.verbs.managed(a.qp), &wr, &bad) == 0);
  const auto done = drain(two, a);
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_SUCCESS);
  CHECK(memcmp(a.memory.data() + 100, b.memory.data() + 2000, 64) == 0);
  a.verbs.dereg_mr(std::exchange(a.mr, whole));
}
