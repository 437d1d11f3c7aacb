// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Two Worlds in one process: two programs under adverb, each with unpinned regions, and the whole
// of the library between their verbs and a provider that is a table of functions. No thread, no
// device, no socket; nothing happens but what the test runs.
#include "catch.h"
#include "fake_channel.h"
#include "fake_fabric.h"
#include "link/links.h"
#include "model/verbs.h"
#include "policy/policy.h"
#include "test_world.h"
#include "transfer/protocol.h"

#include <array>
#include <cstring>
#include <vector>

using namespace adverb;
using observe::Counter;

namespace {

// Joins the programs' links: a bind finds the queue pair its own is connected to, and the channel
// is two lists.
class Joint {
public:
  struct Pair {
    std::shared_ptr<test::FakeChannel> client;
    std::shared_ptr<test::FakeChannel> server;
  };

  // Carries what has been sent, once around; true if there was anything.
  bool carry() {
    bool any = false;
    for (Pair& pair : pairs) {
      any |= carry(*pair.client, *pair.server);
      any |= carry(*pair.server, *pair.client);
    }
    return any;
  }

  struct Published {
    link::LocalQp qp;
    class JoinedLinks* links;
  };
  std::vector<Published> published;
  std::vector<Pair> pairs;

private:
  static bool carry(test::FakeChannel& from, test::FakeChannel& to) {
    bool any = false;
    while (from.sent() != 0) {
      to.receive(from.take());
      any = true;
    }
    return any;
  }
};

class JoinedLinks final : public link::Links {
public:
  JoinedLinks(World& world, Joint& joint) : world_(world), joint_(joint) {}

  void serve(std::shared_ptr<link::Protocol> protocol) override { protocol_ = std::move(protocol); }
  void publish(const link::LocalQp& qp) override { joint_.published.push_back({qp, this}); }
  void connected(const link::LocalQp&) override {}
  void withdraw(uint32_t, ibv_device*, uint64_t handle) override {
    std::erase_if(joint_.published, [&](const auto& p) { return p.qp.handle == handle; });
  }
  void bind(const link::LocalQp& qp, uint8_t, std::function<void(link::Bound)> done) override {
    world_.service.run([this, qp, done = std::move(done)] {
      for (const auto& theirs : joint_.published) {
        if (theirs.qp.qpn != qp.dest_qpn)
          continue;
        const auto size = test::FakeChannel::Size{.credits = 4, .message_max = 4096};
        Joint::Pair pair{
            std::make_shared<test::FakeChannel>(*progress_, link::Channel::Role::client, size),
            std::make_shared<test::FakeChannel>(*theirs.links->progress_,
                                                link::Channel::Role::server, size)};
        pair.client->open(*protocol_);
        pair.server->open(*theirs.links->protocol_);
        joint_.pairs.push_back(pair);
        done({link::Verdict::adverb, pair.client, theirs.qp.handle, {}, true});
        return;
      }
      done({link::Verdict::stock, nullptr, 0, "nobody has it", false});
    });
  }
  void cancel_bind(uint64_t) override {}
  void probe(const link::LocalQp&, std::function<void(link::Bound)>) override {}
  std::shared_ptr<link::Progress> progress(ibv_device*) override { return progress_; }
  void await_probes() noexcept override {}

private:
  World& world_;
  Joint& joint_;
  std::shared_ptr<link::Protocol> protocol_;
  std::shared_ptr<test::FakeProgress> progress_ = std::make_shared<test::FakeProgress>();
};

// One program: a region, a completion queue and a queue pair, made by the managed verbs.
struct Program {
  Program(test::FakeFabric& fabric, Joint& joint, const policy::Policy& policy)
      : bench(&test::FakeFabric::real(), &policy) {
    auto links = std::make_shared<JoinedLinks>(bench.world, joint);
    links->serve(transfer::make_protocol(
        bench.world, std::make_shared<transfer::Handlers>(transfer::handler_list()),
        bench.world.targets()));
    bench.world.parts.links.put(std::move(links));
    context = verbs.open_device(fabric.device());
    pd = verbs.alloc_pd(context);
    mr = verbs.reg_mr(pd, memory.data(), memory.size(),
                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
    cq = verbs.create_cq(context, 16, nullptr, nullptr, 0);
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {8, 8, 1, 1, 0};
    qp = verbs.create_qp(pd, &init);
  }
  ~Program() {
    verbs.destroy_qp(qp);
    verbs.destroy_cq(cq);
    verbs.dereg_mr(mr);
    verbs.dealloc_pd(pd);
    verbs.close_device(context);
  }

  void connect(const Program& to) {
    ibv_qp_attr attr{};
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    attr.qp_state = IBV_QPS_INIT;
    REQUIRE(verbs.modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS) == 0);
    attr.qp_state = IBV_QPS_RTR;
    attr.dest_qp_num = to.qp->qp_num;
    REQUIRE(verbs.modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_DEST_QPN) == 0);
    attr.qp_state = IBV_QPS_RTS;
    REQUIRE(verbs.modify_qp(qp, &attr, IBV_QP_STATE) == 0);
  }

  int post(ibv_wr_opcode opcode, uint64_t id, size_t at, uint32_t bytes, const Program& to,
           size_t there, uint32_t rkey, unsigned flags = IBV_SEND_SIGNALED) {
    ibv_sge sge{address(at), bytes, mr->lkey};
    ibv_send_wr wr{};
    wr.wr_id = id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = flags;
    wr.wr.rdma = {to.address(there), rkey};
    ibv_send_wr* bad = nullptr;
    return model::post_send(*verbs.managed(qp), &wr, &bad);
  }
  int receive(uint64_t id, size_t at, uint32_t bytes) {
    ibv_sge sge{address(at), bytes, mr->lkey};
    ibv_recv_wr wr{};
    wr.wr_id = id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    return model::post_recv(*verbs.managed(qp), &wr, &bad);
  }
  std::vector<ibv_wc> poll() {
    std::vector<ibv_wc> all(16);
    const int n = model::poll_cq(*verbs.managed(cq), 16, all.data());
    REQUIRE(n >= 0);
    all.resize(static_cast<size_t>(n));
    return all;
  }
  uintptr_t address(size_t at) const { return reinterpret_cast<uintptr_t>(memory.data() + at); }
  uint64_t count(Counter c) { return bench.world.counters.value(c); }

  world_test::Bench bench;
  model::Verbs verbs{bench.world};
  std::vector<unsigned char> memory = std::vector<unsigned char>(1 << 16);
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_mr* mr = nullptr;
  ibv_cq* cq = nullptr;
  ibv_qp* qp = nullptr;
};

struct Two {
  Two() {
    a.connect(b);
    b.connect(a);
    settle();
  }
  // Everything that can happen without a program or the clock has happened.
  void settle() {
    do {
      a.bench.service.run_tasks();
      b.bench.service.run_tasks();
    } while (joint.carry());
  }

  policy::Loaded loaded = policy::load_profile("unpinned");
  test::FakeFabric fabric;
  Joint joint;
  Program a{fabric, joint, *loaded.policy};
  Program b{fabric, joint, *loaded.policy};
};

void fill(Program& p, unsigned seed) {
  for (size_t i = 0; i < p.memory.size(); ++i)
    p.memory[i] = static_cast<unsigned char>(i * 7 + seed);
}

} // namespace

TEST_CASE("two Worlds exchange a WRITE, a READ and a SEND", "[worlds]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  fill(a, 1);
  fill(b, 2);
  CHECK(two.fabric.registered < 1 << 16); // neither region is
  const auto was = b.memory;

  // Larger than a message, smaller than four.
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 11, 100, 10000, b, 2000, b.mr->rkey) == 0);
  two.settle();
  auto done = a.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].wr_id == 11);
  CHECK(done[0].status == IBV_WC_SUCCESS);
  CHECK(done[0].opcode == IBV_WC_RDMA_WRITE);
  CHECK(done[0].qp_num == a.qp->qp_num);
  CHECK(memcmp(b.memory.data() + 2000, a.memory.data() + 100, 10000) == 0);
  CHECK(memcmp(b.memory.data(), was.data(), 2000) == 0);
  CHECK(memcmp(b.memory.data() + 12000, was.data() + 12000, b.memory.size() - 12000) == 0);

  REQUIRE(b.post(IBV_WR_RDMA_READ, 12, 30000, 5000, a, 40000, a.mr->rkey) == 0);
  two.settle();
  done = b.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].status == IBV_WC_SUCCESS);
  CHECK(done[0].opcode == IBV_WC_RDMA_READ);
  CHECK(memcmp(b.memory.data() + 30000, a.memory.data() + 40000, 5000) == 0);

  REQUIRE(b.receive(21, 50000, 2000) == 0);
  REQUIRE(a.post(IBV_WR_SEND, 13, 500, 1500, b, 0, 0) == 0);
  two.settle();
  done = b.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].wr_id == 21);
  CHECK(done[0].byte_len == 1500);
  CHECK(memcmp(b.memory.data() + 50000, a.memory.data() + 500, 1500) == 0);
  done = a.poll();
  REQUIRE(done.size() == 1);
  CHECK(done[0].wr_id == 13);

  // Each World has counted what it did, and only that.
  CHECK(a.count(Counter::posts_unload) == 1);
  CHECK(a.count(Counter::posts_offload) == 1);
  CHECK(a.count(Counter::responder_reads) == 1);
  CHECK(a.count(Counter::responder_writes) == 0);
  CHECK(b.count(Counter::posts_unload) == 1);
  CHECK(b.count(Counter::responder_writes) == 1);
  for (const auto& line : a.bench.lines.said)
    CHECK_FALSE((line.starts_with("warn") || line.starts_with("error")));
}

TEST_CASE("a wrong key earns the device's own error, and the rest is flushed", "[worlds]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  const auto was = b.memory;
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 1, 0, 64, b, 65500, b.mr->rkey) == 0); // beyond its end
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 2, 0, 64, b, 0, b.mr->rkey) == 0);
  two.settle();
  std::vector<ibv_wc> done;
  for (int i = 0; i < 4 && done.size() < 2; ++i) {
    const auto more = a.poll();
    done.insert(done.end(), more.begin(), more.end());
    two.settle();
  }
  REQUIRE(done.size() == 2);
  CHECK(done[0].status == IBV_WC_REM_ACCESS_ERR);
  CHECK(done[0].wr_id == 1);
  CHECK(done[1].status == IBV_WC_WR_FLUSH_ERR);
  CHECK(a.qp->state == IBV_QPS_ERR);
  CHECK(b.qp->state == IBV_QPS_ERR);
  CHECK(b.memory == was);
  CHECK(a.count(Counter::replays) == 1);
}

// Well-formed, of the right run, and naming a request that is there: but it has been answered.
TEST_CASE("an answer that nobody waits for is nobody's", "[worlds]") {
  const auto status = GENERATE(transfer::Status::ok, transfer::Status::refused);
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 1, 0, 64, b, 0, b.mr->rkey) == 0);
  two.settle();
  CHECK(a.poll().size() == 1);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 2, 0, 64, b, 0, b.mr->rkey) == 0);
  REQUIRE(a.post(IBV_WR_RDMA_WRITE, 3, 0, 64, b, 64, b.mr->rkey) == 0);
  auto& client = *two.joint.pairs.front().client;
  auto& server = *two.joint.pairs.front().server;
  REQUIRE(client.sent() == 2);
  const auto first = client.take();
  const auto second = client.take();
  transfer::RequestHeader asked{};
  memcpy(&asked, second.data(), sizeof asked);
  transfer::ReplyHeader reply{};
  reply.kind = asked.kind;
  reply.run = asked.run;
  reply.source = asked.source;
  reply.request = asked.request;
  const auto answer = [&](transfer::Status how) {
    reply.status = static_cast<uint8_t>(how);
    std::vector<std::byte> bytes(sizeof reply);
    memcpy(bytes.data(), &reply, sizeof reply);
    client.receive(bytes);
  };
  answer(transfer::Status::ok);
  answer(status); // request 3 is done, and waits for request 2
  server.receive(first);
  two.settle();
  const auto done = a.poll();
  REQUIRE(done.size() == 2);
  CHECK(done[0].wr_id == 2);
  CHECK(done[0].status == IBV_WC_SUCCESS);
  CHECK(done[1].wr_id == 3);
  CHECK(done[1].status == IBV_WC_SUCCESS);
}

TEST_CASE("a fenced payload is copied to staging only when earlier READs have brought it",
          "[worlds]") {
  Two two;
  Program& a = two.a;
  Program& b = two.b;
  fill(a, 1);
  fill(b, 2);
  // The device itself carries the READ: its key is a real one. Its landing is staged, too.
  ibv_mr* pinned = test::FakeFabric::real().ibv_reg_mr(b.pd, b.memory.data(), b.memory.size(),
                                                       IBV_ACCESS_REMOTE_READ);
  REQUIRE(b.receive(21, 50000, 64) == 0);
  REQUIRE(a.post(IBV_WR_RDMA_READ, 1, 0, 64, b, 4000, pinned->rkey) == 0);
  two.settle();
  const uint64_t posted = two.fabric.posted;
  REQUIRE(a.post(IBV_WR_SEND, 2, 0, 64, b, 0, 0, IBV_SEND_SIGNALED | IBV_SEND_FENCE) == 0);
  two.settle();
  CHECK(two.fabric.posted == posted);
  auto done = a.poll();
  two.settle();
  const auto more = a.poll();
  done.insert(done.end(), more.begin(), more.end());
  REQUIRE(done.size() == 2);
  CHECK(done[0].wr_id == 1);
  CHECK(done[1].wr_id == 2);
  REQUIRE(b.poll().size() == 1);
  CHECK(memcmp(b.memory.data() + 50000, b.memory.data() + 4000, 64) == 0);
  test::FakeFabric::real().ibv_dereg_mr(pinned);
}

TEST_CASE("a list of requests is one call of the provider", "[worlds]") {
  Two two;
  Program& a = two.a;
  for (uint64_t id = 0; id < 8; ++id)
    REQUIRE(two.b.receive(id, 64 * id, 64) == 0);
  std::array<ibv_send_wr, 8> list{};
  ibv_sge sge{a.address(0), 32, a.mr->lkey};
  for (size_t i = 0; i < list.size(); ++i) {
    list[i].next = i + 1 < list.size() ? &list[i + 1] : nullptr;
    list[i].sg_list = &sge;
    list[i].num_sge = 1;
    list[i].opcode = IBV_WR_SEND;
  }
  const uint64_t calls = two.fabric.post_calls;
  ibv_send_wr* bad = nullptr;
  REQUIRE(model::post_send(*a.verbs.managed(a.qp), list.data(), &bad) == 0);
  CHECK(two.fabric.post_calls == calls + 1);
  CHECK(two.b.poll().size() == 8);
}
