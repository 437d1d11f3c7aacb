// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a queue pair keeps for what it sends out of unpinned memory: slots that are copied to in
// turn, and a window that is sent from without asking. Neither may be another's too early, nor
// stand for a region that is not there any more.
#include "two_programs.h"

#include <cerrno>
#include <set>

using namespace adverb;
using namespace adverb::test;

namespace {

constexpr uint32_t few = 64;        // bytes: copied
constexpr uint32_t many = 20 << 10; // bytes: a window
constexpr uint32_t deep = 40;       // requests, more than there are slots

Program::Wanted wanted() {
  Program::Wanted w;
  w.cqe = 64;
  w.cap = {deep, deep, 1, 1, 0};
  return w;
}

int send_from(Two& two, const ibv_mr* mr, uint64_t id, uintptr_t address, uint32_t bytes) {
  ibv_sge sge{address, bytes, mr->lkey};
  ibv_send_wr wr{};
  wr.wr_id = id;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  return model::post_send(*two.a.verbs.managed(two.a.qp), &wr, &bad);
}
int send(Two& two, uint64_t id, size_t at, uint32_t bytes) {
  return send_from(two, two.a.mr, id, two.a.address(at), bytes);
}

// The first makes what the next ones find.
void warm(Two& two, uint32_t bytes) {
  for (int i = 0; i < 2; ++i) {
    REQUIRE(two.b.receive(0, 32 << 10, bytes) == 0);
    REQUIRE(send(two, 1, 0, bytes) == 0);
    REQUIRE(two.a.poll().size() == 1);
    REQUIRE(drain(two, two.b).size() == 1);
  }
}

void land(Program& p, uint64_t id, ibv_wc_status status = IBV_WC_SUCCESS) {
  ibv_wc wc{};
  wc.wr_id = id;
  wc.status = status;
  wc.qp_num = p.qp->qp_num;
  FakeFabric::complete(p.cq, wc);
}

const unsigned char* bytes_of(const ibv_sge& element) {
  return reinterpret_cast<const unsigned char*>(element.addr);
}

// The device has no room for a region: what nobody uses goes.
void press(Two& two) {
  two.a.bench.world.budgets().register_making_room([] {
    errno = ENOMEM;
    return static_cast<ibv_mr*>(nullptr);
  });
}

} // namespace

TEST_CASE("each small message under way has its bytes to itself", "[sources]") {
  Two two(wanted());
  warm(two, few);
  two.fabric.stalled = true;
  std::set<uint64_t> places;
  std::vector<ibv_sge> elements;
  uint64_t heard = 0;
  for (uint64_t id = 0; id < 3 * deep; ++id) {
    fill(two.a, static_cast<unsigned>(id));
    REQUIRE(send(two, id, 0, few) == 0);
    elements.push_back(two.fabric.last_element);
    CHECK(places.insert(two.fabric.last_element.addr).second);
    if (places.size() < deep)
      continue;
    const ibv_sge& first = elements[heard];
    for (uint32_t i = 0; i < few; ++i)
      REQUIRE(bytes_of(first)[i] == static_cast<unsigned char>(i * 7 + heard));
    places.erase(first.addr);
    land(two.a, heard++);
    CHECK(two.a.poll().size() == 1);
  }
}

TEST_CASE("slots are those of another run after a failure", "[sources]") {
  Two two(wanted());
  warm(two, few);
  for (int round = 0; round < 3; ++round) {
    two.fabric.stalled = true;
    std::set<uint64_t> places;
    for (uint64_t id = 0; id < deep; ++id) {
      REQUIRE(send(two, id, 0, few) == 0);
      CHECK(places.insert(two.fabric.last_element.addr).second);
    }
    land(two.a, 0);
    land(two.a, 1, IBV_WC_RETRY_EXC_ERR);
    for (uint64_t id = 2; id < deep; ++id)
      land(two.a, id, IBV_WC_WR_FLUSH_ERR);
    CHECK(drain(two, two.a).size() == deep);
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RESET;
    REQUIRE(two.a.verbs.modify_qp(two.a.qp, &attr, IBV_QP_STATE) == 0);
    two.a.connect(two.b);
    two.settle();
    two.fabric.stalled = false;
  }
}

TEST_CASE("nothing is sent of a region that has ended", "[sources]") {
  const uint32_t bytes = GENERATE(few, many);
  Two two(wanted());
  warm(two, bytes);
  const uint32_t lkey = two.a.mr->lkey;
  const ibv_mr old = *two.a.mr;
  REQUIRE(two.a.verbs.dereg_mr(two.a.mr) == 0);
  two.fabric.stalled = true;
  REQUIRE(send_from(two, &old, 7, two.a.address(0), bytes) == 0);
  CHECK(two.fabric.last_element.lkey == lkey); // as it stands, for the device to judge
  CHECK(two.fabric.last_element.addr == two.a.address(0));
  two.a.mr = two.a.verbs.reg_mr(two.a.pd, two.a.memory.data(), two.a.memory.size(),
                                IBV_ACCESS_LOCAL_WRITE);
}

TEST_CASE("a region that was changed is sent as it is now", "[sources]") {
  const uint32_t bytes = GENERATE(few, many);
  Two two(wanted());
  warm(two, bytes);
  fill(two.a, 3);
  REQUIRE(two.a.verbs.rereg_mr(two.a.mr, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr,
                               two.a.memory.data(), bytes / 2, 0) == 0);
  two.fabric.stalled = true;
  REQUIRE(send(two, 7, 0, bytes) == 0);
  CHECK(two.fabric.last_element.lkey == two.a.mr->lkey); // beyond its end
}

TEST_CASE("beyond the bytes that are kept in mind a request takes the long way", "[sources]") {
  const uint32_t bytes = GENERATE(few, many);
  Two two(wanted());
  warm(two, bytes);
  two.fabric.stalled = true;
  const size_t end = two.a.memory.size();
  for (const size_t at : {end - bytes + 1, end, end + 4096, size_t{0} - 1, size_t{0} - bytes}) {
    REQUIRE(send(two, 7, at, bytes) == 0);
    CHECK(two.fabric.last_element.lkey == two.a.mr->lkey);
    CHECK(two.fabric.last_element.addr == two.a.address(at));
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RESET;
    REQUIRE(two.a.verbs.modify_qp(two.a.qp, &attr, IBV_QP_STATE) == 0);
    two.a.connect(two.b);
    two.settle();
  }
}

TEST_CASE("a window is not evicted while a message is sent from it, and is afterwards",
          "[sources]") {
  Two two(wanted());
  warm(two, many);
  two.fabric.stalled = true;
  REQUIRE(send(two, 1, 0, many) == 0);
  const uint32_t lkey = two.fabric.last_element.lkey;
  CHECK(lkey != two.a.mr->lkey);
  press(two);
  CHECK(two.fabric.reaches(lkey, two.a.memory.data()));
  REQUIRE(send(two, 2, 0, many) == 0); // it may not be kept any more, but is there
  CHECK(two.fabric.last_element.lkey == lkey);
  land(two.a, 1);
  CHECK(two.a.poll().size() == 1);
  press(two);
  CHECK(two.fabric.reaches(lkey, two.a.memory.data()));
  land(two.a, 2);
  CHECK(two.a.poll().size() == 1);
  press(two);
  CHECK_FALSE(two.fabric.reaches(lkey, two.a.memory.data()));
  REQUIRE(send(two, 3, 0, many) == 0);
  CHECK(two.fabric.reaches(two.fabric.last_element.lkey, two.a.memory.data()));
  CHECK(two.fabric.last_element.lkey != two.a.mr->lkey);
}

TEST_CASE("a window ends with its region though a message is sent from it", "[sources]") {
  Two two(wanted());
  warm(two, many);
  two.fabric.stalled = true;
  REQUIRE(send(two, 1, 0, many) == 0);
  const uint32_t lkey = two.fabric.last_element.lkey;
  const bool ends = GENERATE(true, false); // else it is changed to what does not hold it
  if (ends)
    REQUIRE(two.a.verbs.dereg_mr(two.a.mr) == 0);
  else
    REQUIRE(two.a.verbs.rereg_mr(two.a.mr, IBV_REREG_MR_CHANGE_TRANSLATION, nullptr,
                                 two.a.memory.data(), few, 0) == 0);
  CHECK_FALSE(two.fabric.reaches(lkey, two.a.memory.data()));
  land(two.a, 1);
  CHECK(two.a.poll().size() == 1);
  if (ends)
    two.a.mr = two.a.verbs.reg_mr(two.a.pd, two.a.memory.data(), two.a.memory.size(),
                                  IBV_ACCESS_LOCAL_WRITE);
}

TEST_CASE("a window that is sent from lives on where its region may still be read", "[sources]") {
  Two two(wanted());
  warm(two, many);
  two.fabric.stalled = true;
  REQUIRE(send(two, 1, 0, many) == 0);
  const uint32_t lkey = two.fabric.last_element.lkey;
  REQUIRE(two.a.verbs.rereg_mr(two.a.mr, IBV_REREG_MR_CHANGE_ACCESS, nullptr, nullptr, 0,
                               IBV_ACCESS_LOCAL_WRITE) == 0);
  CHECK(two.fabric.reaches(lkey, two.a.memory.data()));
  land(two.a, 1);
  CHECK(two.a.poll().size() == 1);
  REQUIRE(send(two, 2, 0, many) == 0); // from another, and the first one ends
  CHECK(two.fabric.last_element.lkey != lkey);
  CHECK_FALSE(two.fabric.reaches(lkey, two.a.memory.data()));
}

TEST_CASE("what a queue pair keeps goes with it", "[sources]") {
  const uint32_t bytes = GENERATE(few, many);
  Two two(wanted());
  warm(two, bytes);
  const bool destroyed = GENERATE(true, false);
  if (destroyed) {
    REQUIRE(two.a.verbs.destroy_qp(two.a.qp) == 0);
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = two.a.cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = wanted().cap;
    two.a.qp = two.a.verbs.create_qp(two.a.pd, &init);
  } else {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RESET;
    REQUIRE(two.a.verbs.modify_qp(two.a.qp, &attr, IBV_QP_STATE) == 0);
  }
  const uint64_t registered = two.fabric.registered;
  press(two);
  CHECK(two.fabric.registered < registered);
}

TEST_CASE("a message that the provider refuses keeps nothing", "[sources]") {
  Two two(wanted());
  warm(two, many);
  const uint32_t lkey = two.fabric.last_element.lkey;
  two.fabric.refuse_post = 1;
  REQUIRE(send(two, 1, 0, many) == ENOMEM);
  press(two);
  CHECK_FALSE(two.fabric.reaches(lkey, two.a.memory.data()));
}

TEST_CASE("what is fenced is not copied before the READ that brings its bytes is done",
          "[sources]") {
  const bool known = GENERATE(true, false); // the region, from the sends before
  Two two(wanted(), "default");
  Program& a = two.a;
  ibv_mr* own = a.verbs.reg_mr(a.pd, a.memory.data(), a.memory.size(), IBV_ACCESS_LOCAL_WRITE);
  REQUIRE_FALSE(two.fabric.reaches(own->lkey, a.memory.data())); // unpinned
  REQUIRE(two.fabric.reaches(a.mr->lkey, a.memory.data()));      // and pinned
  REQUIRE(a.post(IBV_WR_RDMA_READ, 0, 0, few, two.b, 0, two.b.mr->rkey) == 0);
  REQUIRE(drain(two, a).size() == 1);
  for (int i = 0; known && i < 2; ++i) {
    REQUIRE(two.b.receive(0, 32 << 10, few) == 0);
    REQUIRE(send_from(two, own, 0, a.address(0), few) == 0);
    REQUIRE(a.poll().size() == 1);
  }
  two.fabric.stalled = true;
  REQUIRE(a.post(IBV_WR_RDMA_READ, 1, 0, few, two.b, 0, two.b.mr->rkey) == 0);
  ibv_sge sge{a.address(0), few, own->lkey};
  ibv_send_wr wr{};
  wr.wr_id = 2;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE;
  ibv_send_wr* bad = nullptr;
  const uint64_t read = two.fabric.last_send;
  REQUIRE(model::post_send(*a.verbs.managed(a.qp), &wr, &bad) == 0);
  fill(a, 77); // as the READ does
  land(a, read);
  CHECK(drain(two, a).size() == 1);
  REQUIRE(two.fabric.last_send != read);
  CHECK(std::equal(a.memory.begin(), a.memory.begin() + few, bytes_of(two.fabric.last_element)));
  land(a, two.fabric.last_send);
  CHECK(drain(two, a).size() == 1);
  CHECK(a.verbs.dereg_mr(own) == 0);
}
