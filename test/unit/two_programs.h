// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Two programs under adverb in one process, each in a World of its own, with the whole of the
// library between their verbs and a provider that is a table of functions. No thread, no device, no
// socket; nothing happens but what the test runs.
#pragma once

#include "catch.h"
#include "fake_channel.h"
#include "fake_fabric.h"
#include "link/links.h"
#include "model/verbs.h"
#include "policy/policy.h"
#include "test_world.h"
#include "transfer/protocol.h"

#include <cstring>
#include <map>
#include <new>
#include <utility>
#include <vector>

namespace adverb::test {

// Joins the programs' links: a bind finds the queue pair its own is connected to, and the channel
// is two lists.
class Joint {
public:
  struct Pair {
    std::shared_ptr<FakeChannel> client;
    std::shared_ptr<FakeChannel> server;
    const class JoinedLinks* from = nullptr; // of programs: one for all queue pairs between them
    const class JoinedLinks* to = nullptr;
  };

  explicit Joint(uint8_t v = transfer::version_sharing)
      : version(v), message_max(v < transfer::version_views ? 4096 : 8192) {}

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
  bool out_of_threads = false; // links cannot be had
  bool out_of_memory = false;  // to look for a peer
  bool met = true;             // all paths
  unsigned binds = 0;          // that were asked for
  bool unproven = false;       // queue pairs have to be proven, and nobody answers a claim
  bool keys_are_real = false;  // but those of keys, which are the device's
  bool refuses_proof = false;  // and others, with a refusal
  const uint8_t version;       // of the protocol, at both ends
  const size_t message_max;    // bytes: of an answer with a view's pattern, too

private:
  static bool carry(FakeChannel& from, FakeChannel& to) {
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
  void withdraw(uint32_t, uint64_t handle) override {
    std::erase_if(joint_.published, [&](const auto& p) {
      return p.qp.handle == handle && p.links == this; // handles are of each program
    });
  }
  void bind(const link::LocalQp& qp, uint8_t, std::function<void(link::Bound)> done) override {
    if (joint_.out_of_memory)
      throw std::bad_alloc();
    ++joint_.binds;
    world_.service.run([this, qp, done = std::move(done)] {
      for (const auto& theirs : joint_.published) {
        if (theirs.qp.qpn != qp.dest_qpn)
          continue;
        for (const auto& pair : joint_.pairs)
          if (pair.from == this && pair.to == theirs.links) {
            bound(qp, theirs.qp, pair.server);
            return done(
                {link::Verdict::adverb, pair.client, theirs.qp.handle, {}, true, !joint_.unproven});
          }
        const auto size = FakeChannel::Size{
            .credits = 5, .message_max = joint_.message_max, .version = joint_.version};
        Joint::Pair pair{
            std::make_shared<FakeChannel>(*progress_, link::Channel::Role::client, size),
            std::make_shared<FakeChannel>(*theirs.links->progress_, link::Channel::Role::server,
                                          size),
            this, theirs.links};
        pair.client->open(*protocol_);
        pair.server->open(*theirs.links->protocol_);
        joint_.pairs.push_back(pair);
        bound(qp, theirs.qp, pair.server);
        done({link::Verdict::adverb, pair.client, theirs.qp.handle, {}, true, !joint_.unproven});
        return;
      }
      done({link::Verdict::stock, nullptr, 0, "nobody has it", false});
    });
  }
  void cancel_bind(uint64_t) override {}
  bool has_met(const link::LocalQp&, uint8_t) const override { return joint_.met; }
  // One that comes before the bind is answered, which says that all is proven; or never answered.
  void claim(uint64_t, uint32_t key, std::function<void(const link::Offer&)> offered) override {
    link::Offer offer;
    if (key != link::any_key && joint_.keys_are_real)
      offer.answer = link::wire::Answer::real_key;
    else if (!joint_.refuses_proof)
      return;
    world_.service.run([offered = std::move(offered), offer] { offered(offer); });
  }
  void prove(uint64_t, const link::wire::Share&, std::function<void(link::wire::Answer)>) override {
    std::abort(); // all are proven
  }
  void unbind(uint64_t handle) override {
    world_.service.run([this, handle] {
      for (const auto& [peers, server] : std::exchange(bound_[handle], {}))
        server->unbind(peers, handle);
    });
  }
  void probe(const link::LocalQp&, std::function<void(link::Bound)>) override {}
  std::shared_ptr<link::Progress> progress(ibv_device*) override {
    if (joint_.out_of_threads)
      throw std::bad_alloc();
    return progress_;
  }
  void await_probes() noexcept override {}

private:
  void bound(const link::LocalQp& mine, const link::LocalQp& theirs,
             const std::shared_ptr<FakeChannel>& server) {
    server->bind(theirs.handle, mine.handle, !joint_.unproven);
    bound_[mine.handle].emplace_back(theirs.handle, server);
  }

  World& world_;
  Joint& joint_;
  std::map<uint64_t, std::vector<std::pair<uint64_t, std::shared_ptr<FakeChannel>>>> bound_;
  std::shared_ptr<link::Protocol> protocol_;
  std::shared_ptr<FakeProgress> progress_ = std::make_shared<FakeProgress>();
};

// One program: a region, a completion queue and a queue pair, made by the managed verbs.
struct Program {
  struct Wanted {
    ibv_comp_channel* channel = nullptr;
    int cqe = 16;
    ibv_qp_cap cap{8, 8, 1, 1, 0};
    ibv_qp_type type = IBV_QPT_RC;
    unsigned access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ; // of the queue pair
  };
  Program(FakeFabric& fabric, Joint& joint, const policy::Policy& policy, const Wanted& wanted)
      : access(wanted.access), bench(&FakeFabric::real(), &policy) {
    auto links = std::make_shared<JoinedLinks>(bench.world, joint);
    links->serve(transfer::make_protocol(
        bench.world, std::make_shared<transfer::Handlers>(transfer::handler_list()),
        bench.world.targets()));
    bench.world.parts.links.put(std::move(links));
    context = verbs.open_device(fabric.device());
    pd = verbs.alloc_pd(context);
    mr = verbs.reg_mr(pd, memory.data(), memory.size(),
                      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                          IBV_ACCESS_REMOTE_ATOMIC);
    cq = verbs.create_cq(context, wanted.cqe, nullptr, wanted.channel, 0);
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = cq;
    init.qp_type = wanted.type;
    init.cap = wanted.cap;
    qp = verbs.create_qp(pd, &init);
  }
  ~Program() {
    if (qp != nullptr)
      verbs.destroy_qp(qp);
    verbs.destroy_cq(cq);
    verbs.dereg_mr(mr);
    verbs.dealloc_pd(pd);
    verbs.close_device(context);
  }

  void connect(const Program& to) {
    ibv_qp_attr attr{};
    attr.qp_access_flags = access;
    attr.qp_state = IBV_QPS_INIT;
    REQUIRE(verbs.modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS) == 0);
    attr.qp_state = IBV_QPS_RTR;
    attr.dest_qp_num = to.qp->qp_num;
    attr.max_dest_rd_atomic = 1;
    REQUIRE(verbs.modify_qp(qp, &attr,
                            IBV_QP_STATE | IBV_QP_DEST_QPN | IBV_QP_MAX_DEST_RD_ATOMIC) == 0);
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
  std::vector<ibv_wc> poll(int most = 16) {
    std::vector<ibv_wc> all(static_cast<size_t>(most));
    const int n = model::poll_cq(*verbs.managed(cq), most, all.data());
    REQUIRE(n >= 0);
    all.resize(static_cast<size_t>(n));
    return all;
  }
  uintptr_t address(size_t at) const { return reinterpret_cast<uintptr_t>(memory.data() + at); }
  uint64_t count(observe::Counter c) { return bench.world.counters.value(c); }

  unsigned access;
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
  // `policy`: a profile, or the text of a policy.
  explicit Two(Program::Wanted wanted = {}, const char* policy = "unpinned", int cqe_max = 1 << 20,
               uint8_t version = transfer::version_sharing, bool unproven = false)
      : loaded(*policy == '{' ? policy::load_text(policy, "test") : policy::load_profile(policy)),
        fabric(cqe_max), joint(version), a(fabric, joint, *loaded.policy, wanted),
        b(fabric, joint, *loaded.policy, wanted) {
    REQUIRE(loaded);
    joint.unproven = unproven;
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

  policy::Loaded loaded;
  FakeFabric fabric;
  Joint joint;
  Program a;
  Program b;
};

inline void fill(Program& p, unsigned seed) {
  for (size_t i = 0; i < p.memory.size(); ++i)
    p.memory[i] = static_cast<unsigned char>(i * 7 + seed);
}

// All that comes until nothing more does.
inline std::vector<ibv_wc> drain(Two& two, Program& p) {
  std::vector<ibv_wc> all;
  for (int quiet = 0; quiet < 8; ++quiet) {
    two.settle();
    for (const auto& wc : p.poll()) {
      all.push_back(wc);
      quiet = 0;
    }
  }
  return all;
}

} // namespace adverb::test
