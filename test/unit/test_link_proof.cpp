// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Who proves that a queue pair is its own, and who does not. The queue pairs are the device's here.
// TAP.
#include "link/proof.h"
#include "link/slots.h"
#include "link/wire.h"
#include "link_cases.h"

#include <array>
#include <optional>
#include <thread>

namespace {

using namespace link_test;
namespace wire = link::wire;
using link::SlotKind;
using wire::Answer;

constexpr uint32_t some_key = 4711;          // the only virtual one
constexpr uint32_t nobodys_key = 0x70000000; // that does not exist
constexpr unsigned writes = IBV_ACCESS_REMOTE_WRITE;
constexpr unsigned reads = IBV_ACCESS_REMOTE_READ;
constexpr unsigned atomics = IBV_ACCESS_REMOTE_ATOMIC;

struct Domain {
  Domain() { CHECK_THAT(context != nullptr && pd != nullptr && cq != nullptr); }
  ibv_context* const context = ibv_open_device(device());
  ibv_pd* const pd = ibv_alloc_pd(context);
  ibv_cq* const cq = ibv_create_cq(context, 16, nullptr, nullptr, 0);
  const std::shared_ptr<link::Slots> slots =
      std::make_shared<link::Slots>(process().world, pd, [](const auto& reg) { return reg(); });
};

struct QueuePair {
  QueuePair(Domain& domain, unsigned access) : domain(domain), access(access) {
    ibv_qp_init_attr init{};
    init.send_cq = init.recv_cq = domain.cq;
    init.qp_type = IBV_QPT_RC;
    init.cap = {4, 4, 1, 1, 0};
    qp = ibv_create_qp(domain.pd, &init);
    CHECK_THAT(qp != nullptr);
  }
  void connect(uint32_t to) {
    dest = to;
    const auto path = link_test::qp(qp->qp_num, 1, to).ah;
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_INIT;
    attr.port_num = 1;
    attr.qp_access_flags = access;
    CHECK_THAT(
        ibv_modify_qp(qp, &attr,
                      IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    attr.qp_state = IBV_QPS_RTR;
    attr.ah_attr = path;
    attr.path_mtu = IBV_MTU_1024;
    attr.dest_qp_num = to;
    attr.max_dest_rd_atomic = 1;
    CHECK_THAT(ibv_modify_qp(qp, &attr,
                             IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
                                 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                                 IBV_QP_MIN_RNR_TIMER) == 0);
    attr.qp_state = IBV_QPS_RTS;
    attr.timeout = 14;
    attr.retry_cnt = 7;
    attr.max_rd_atomic = 1;
    CHECK_THAT(ibv_modify_qp(qp, &attr,
                             IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                 IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
  }
  // As links know it, which may be told that it has another number.
  link::LocalQp local(uint64_t handle, uint32_t number = 0) const {
    link::LocalQp q = link_test::qp(number != 0 ? number : qp->qp_num, handle, dest);
    if (q.connected && elsewhere)
      q.ah.grh.dgid = *elsewhere;
    q.slots = domain.slots;
    q.access = access;
    q.responder_resources = 1;
    q.is_virtual = [](uint32_t key) { return key == some_key; };
    q.exists = [](uint32_t key) { return key != nobodys_key; };
    return q;
  }
  // Does with the slot what it is for; false: the device refuses.
  bool carry(const link::Offer& offer, wire::Share& read) {
    link::Slots::Slot mine;
    CHECK_THAT(domain.slots->take(SlotKind::local, mine) == 0);
    domain.slots->put(mine, offer.share);
    ibv_sge element{mine.address, sizeof offer.share, mine.lkey};
    ibv_send_wr wr{};
    wr.sg_list = &element;
    wr.num_sge = 1;
    wr.send_flags = IBV_SEND_SIGNALED;
    if (offer.kind == SlotKind::atomic) {
      element.length = link::slot_word_bytes;
      wr.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
      wr.wr.atomic.remote_addr = offer.address;
      wr.wr.atomic.rkey = offer.rkey;
    } else {
      wr.opcode = offer.kind == SlotKind::write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
      wr.wr.rdma.remote_addr = offer.address;
      wr.wr.rdma.rkey = offer.rkey;
    }
    ibv_send_wr* bad = nullptr;
    CHECK_THAT(ibv_post_send(qp, &wr, &bad) == 0);
    ibv_wc wc{};
    while (ibv_poll_cq(domain.cq, 1, &wc) == 0)
      std::this_thread::yield();
    read = domain.slots->look(mine);
    domain.slots->give(mine);
    return wc.status == IBV_WC_SUCCESS;
  }

  Domain& domain;
  const unsigned access;
  ibv_qp* qp = nullptr;
  uint32_t dest = 0;
  std::optional<ibv_gid> elsewhere; // the host of its peer, as links are told
};

// A host that is not this one, 127.0.0.2.
ibv_gid another_host() {
  ibv_gid gid{};
  gid.raw[10] = gid.raw[11] = 0xFF;
  gid.raw[12] = 127;
  gid.raw[15] = 2;
  return gid;
}

link::Offer claim(uint64_t handle, uint32_t key = some_key) {
  std::promise<link::Offer> promise;
  auto offer = promise.get_future();
  links().claim(handle, key, [&](const link::Offer& o) { promise.set_value(o); });
  CHECK_THAT(offer.wait_for(hangs) == std::future_status::ready);
  return offer.get();
}

Answer prove(uint64_t handle, const wire::Share& read = {}) {
  std::promise<Answer> promise;
  auto answer = promise.get_future();
  links().prove(handle, read, [&](Answer a) { promise.set_value(a); });
  CHECK_THAT(answer.wait_for(hangs) == std::future_status::ready);
  return answer.get();
}

// Until 'q', time is as it is told: 's' stops it, and of '1' and '9' it passes by so much.
void serve_clock(Node& me) {
  auto& clock = process().clock;
  for (char word = 0; recv(me.fd(), &word, 1, 0) == 1 && word != 'q'; me.say('d')) {
    CHECK_THAT(word == 's' || word == '1' || word == '9');
    if (word == 's')
      clock.stop();
    else
      clock.add(word == '9' ? 999ms : 1ms);
  }
}

// Owns as many queue pairs as it is told the peers of, all in one domain, and says at its end what
// it has counted. `far`: the peer of the first is on another host.
Node::Story owns(unsigned access, size_t count = 1, bool far = false) {
  return [access, count, far](Node& me) {
    install();
    Domain domain;
    std::vector<QueuePair> pairs;
    for (size_t i = 0; i < count; ++i)
      me.tell(pairs.emplace_back(domain, access).qp->qp_num);
    if (far)
      pairs.front().elsewhere = another_host();
    for (size_t i = 0; i < count; ++i) {
      pairs[i].connect(me.told());
      links().publish(pairs[i].local(100 + i));
      links().connected(pairs[i].local(100 + i));
    }
    me.say('r');
    serve_clock(me);
    me.tell(static_cast<uint32_t>(value(observe::Counter::qps_proven)));
    me.tell(static_cast<uint32_t>(value(observe::Counter::auth_failures)));
  };
}

// Has a queue pair of its own, tells its number, and connects it to `theirs` when it hears 'c'.
struct Initiator : Node {
  Initiator(const std::string& policy, uint32_t theirs,
            const std::function<void(Node&, QueuePair&)>& story)
      : Node(policy, [&](Node& me) {
          install();
          Domain domain;
          QueuePair pair(domain, 0);
          me.tell(pair.qp->qp_num);
          CHECK_THAT(me.hear('c'));
          pair.connect(theirs);
          story(me, pair);
        }) {}
};

struct Counted {
  uint32_t proven;
  uint32_t failures;
};
Counted count(Node& owner) {
  owner.say('q');
  const uint32_t proven = owner.told();
  return {proven, owner.told()};
}

// The honest initiator's way, from its bind on.
Answer prove_by_using(QueuePair& pair, uint64_t handle, SlotKind kind) {
  const auto bound = bind(pair.local(handle));
  CHECK_THAT(bound.verdict == Verdict::adverb && !bound.proven);
  const auto offer = claim(handle);
  CHECK_THAT(offer.answer == Answer::ok && offer.kind == kind);
  wire::Share read{};
  CHECK_THAT(pair.carry(offer, read));
  return prove(handle, read);
}

bool a_queue_pair_is_proven_by_using_it() {
  for (const auto& [access, kind] :
       {std::pair{writes, SlotKind::write}, std::pair{reads, SlotKind::read},
        std::pair{atomics, SlotKind::atomic}, std::pair{writes | reads, SlotKind::write}}) {
    Place place;
    Node owner(place.proving(place.port), owns(access));
    const uint32_t theirs = owner.told();
    Initiator seeker(place.proving(place.port), theirs, [&](Node&, QueuePair& pair) {
      CHECK_THAT(prove_by_using(pair, 1, kind) == Answer::ok);
      CHECK_THAT(prove_by_using(pair, 1, kind) == Answer::ok); // once more
    });
    owner.tell(seeker.told());
    if (!owner.hear('r'))
      return false;
    seeker.say('c');
    if (!seeker.ended_well())
      return false;
    const Counted counted = count(owner);
    if (counted.proven != 2 || counted.failures != 0)
      return false;
  }
  return true;
}

bool a_queue_pair_that_lets_its_peer_do_nothing_cannot_be_proven() {
  Place place;
  Node owner(place.proving(place.port), owns(0));
  const uint32_t theirs = owner.told();
  Initiator seeker(place.proving(place.port), theirs, [&](Node&, QueuePair& pair) {
    CHECK_THAT(bind(pair.local(1)).verdict == Verdict::adverb);
    CHECK_THAT(claim(1).answer == Answer::refused);
  });
  owner.tell(seeker.told());
  if (!owner.hear('r'))
    return false;
  seeker.say('c');
  return seeker.ended_well() && count(owner).proven == 0;
}

// It knows all numbers of the queue pair that it says is its own, and has another, of another
// domain of the owner's.
bool who_cannot_use_the_queue_pair_proves_nothing() {
  for (const unsigned access : {writes, reads, atomics}) {
    Place place;
    Node owner(place.proving(place.port), owns(access));
    const uint32_t theirs = owner.told();
    Node other(place.proving(place.port + 1), owns(access));
    const uint32_t others = other.told();
    constexpr uint32_t victims = 7777;
    Initiator liar(place.proving(place.port), others, [&](Node&, QueuePair& pair) {
      link::LocalQp lie = pair.local(1, victims);
      lie.dest_qpn = theirs;
      CHECK_THAT(bind(lie).verdict == Verdict::adverb);
      CHECK_THAT(prove(1) != Answer::ok); // before it has a slot
      CHECK_THAT(claim(1).answer == Answer::ok);
      CHECK_THAT(prove(1) != Answer::ok); // nothing has come
      const auto offer = claim(1);
      CHECK_THAT(offer.answer == Answer::ok);
      wire::Share read{};
      CHECK_THAT(!pair.carry(offer, read)); // its own queue pair is of another domain
      CHECK_THAT(prove(1, read) != Answer::ok);
      read.fill(9); // a guess, that has nothing in common with what is there
      CHECK_THAT(claim(1).answer == Answer::ok);
      CHECK_THAT(prove(1, read) != Answer::ok);
    });
    const uint32_t liars = liar.told();
    owner.tell(victims);
    other.tell(liars);
    if (!owner.hear('r') || !other.hear('r'))
      return false;
    liar.say('c');
    if (!liar.ended_well())
      return false;
    other.say('q');
    if (count(owner).proven != 0)
      return false;
  }
  return true;
}

// Who has a queue pair of its own in the same domain could use the slot of another's.
bool what_has_been_proven_nobody_else_proves_again() {
  Place place;
  Node owner(place.proving(place.port), owns(writes, 2));
  const uint32_t first = owner.told();
  const uint32_t second = owner.told();
  Initiator honest(place.proving(place.port), first, [&](Node& me, QueuePair& pair) {
    CHECK_THAT(prove_by_using(pair, 1, SlotKind::write) == Answer::ok);
    me.say('d');
    CHECK_THAT(me.hear('c'));
    CHECK_THAT(prove_by_using(pair, 1, SlotKind::write) == Answer::ok); // not displaced
  });
  const uint32_t honests = honest.told();
  Initiator liar(place.proving(place.port), second, [&](Node&, QueuePair& pair) {
    link::LocalQp lie = pair.local(1, honests);
    lie.dest_qpn = first;
    CHECK_THAT(bind(lie).verdict == Verdict::adverb);
    const auto offer = claim(1);
    wire::Share read{};
    CHECK_THAT(pair.carry(offer, read));
    CHECK_THAT(prove(1, read) == Answer::refused);
    CHECK_THAT(prove_by_using(pair, 2, SlotKind::write) == Answer::ok); // its own
  });
  owner.tell(honests);
  owner.tell(liar.told());
  if (!owner.hear('r'))
    return false;
  honest.say('c');
  if (!honest.hear('d'))
    return false;
  liar.say('c');
  if (!liar.ended_well())
    return false;
  honest.say('c');
  if (!honest.ended_well())
    return false;
  const Counted counted = count(owner);
  return counted.proven == 3 && counted.failures == 1;
}

// Nor does who is not on the host that the queue pair leads to, though nobody has proven it yet.
bool who_is_on_another_host_than_the_peer_proves_nothing() {
  Place place;
  Node owner(place.proving(place.port), owns(writes, 2, true));
  const uint32_t first = owner.told();
  const uint32_t second = owner.told();
  constexpr uint32_t victims = 7777;
  Initiator liar(place.proving(place.port), second, [&](Node&, QueuePair& pair) {
    CHECK_THAT(prove_by_using(pair, 1, SlotKind::write) == Answer::ok); // its own
    link::LocalQp lie = pair.local(2, victims);
    lie.dest_qpn = first;
    lie.sgid = another_host();
    CHECK_THAT(bind(lie).verdict == Verdict::adverb);
    const auto offer = claim(2);
    wire::Share read{};
    CHECK_THAT(offer.answer == Answer::ok && pair.carry(offer, read));
    CHECK_THAT(prove(2, read) == Answer::refused);
  });
  owner.tell(victims);
  owner.tell(liar.told());
  if (!owner.hear('r'))
    return false;
  liar.say('c');
  if (!liar.ended_well())
    return false;
  const Counted counted = count(owner);
  return counted.proven == 1 && counted.failures == 1;
}

// Somebody has the port, and says that the queue pair is its own.
bool who_has_not_the_queue_pair_is_not_taken_for_its_owner() {
  for (const unsigned access : {writes, reads}) {
    Place place;
    Node owner(place.proving(place.port + 1), owns(access)); // nobody asks there
    const uint32_t theirs = owner.told();
    Node rogue(place.proving(place.port), [&](Node& me) {
      install();
      Domain domain;
      QueuePair pair(domain, access);
      pair.dest = me.told();
      links().publish(pair.local(100, theirs));
      links().connected(pair.local(100, theirs));
      me.say('r');
      me.hear('q');
    });
    Initiator seeker(place.proving(place.port), theirs, [&](Node&, QueuePair& pair) {
      CHECK_THAT(bind(pair.local(1)).verdict == Verdict::adverb);
      const auto offer = claim(1);
      wire::Share read{};
      CHECK_THAT(offer.answer == Answer::ok && !pair.carry(offer, read));
      CHECK_THAT(prove(1, read) != Answer::ok);
    });
    const uint32_t seekers = seeker.told();
    owner.tell(seekers);
    rogue.tell(seekers);
    if (!owner.hear('r') || !rogue.hear('r'))
      return false;
    seeker.say('c');
    if (!seeker.ended_well())
      return false;
  }
  return true;
}

// A relay between two processes, each of which takes it for the other. It alters one byte of the
// first frame of a kind.
class Relay {
public:
  // `listener`: where the one connects to; it is the relay's.
  // `until`: nothing of the owner's passes before one of the seeker's of that type has.
  Relay(int listener, uint16_t to, wire::Type type, size_t offset,
        std::optional<wire::Type> until = std::nullopt)
      : listener_(listener), to_(at(to)), type_(type), offset_(offset), until_(until) {
    thread_ = std::thread([this] { run(); });
  }
  ~Relay() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;
  bool altered() const { return altered_; }

private:
  static sockaddr_in at(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  void run() {
    for (;;) {
      const int left = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (left < 0)
        return;
      const int right = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      if (connect(right, reinterpret_cast<const sockaddr*>(&to_), sizeof to_) == 0)
        carry(left, right);
      close(left);
      close(right);
    }
  }
  void carry(int left, int right) {
    std::array<std::vector<std::byte>, 2> unsent;
    const int ends[] = {left, right};
    for (;;) {
      pollfd ready[] = {{left, POLLIN, 0}, {right, POLLIN, 0}, {listener_, POLLHUP, 0}};
      poll(ready, 3, -1);
      if ((ready[2].revents & (POLLHUP | POLLERR)) != 0)
        return;
      for (size_t i = 0; i < 2; ++i) {
        if (ready[i].revents == 0)
          continue;
        std::array<std::byte, 4096> bytes;
        const ssize_t n = recv(ends[i], bytes.data(), bytes.size(), 0);
        if (n <= 0)
          return;
        unsent[i].insert(unsent[i].end(), bytes.begin(), bytes.begin() + n);
        pass(unsent[i], ends[1 - i], i == 0);
        pass(unsent[1], left, false); // what was held back
      }
    }
  }
  void pass(std::vector<std::byte>& bytes, int to, bool seekers) {
    wire::Frame frame{};
    while ((seekers || !held_back_) && wire::parse(bytes, frame) == wire::Parse::complete) {
      if (frame.type == until_)
        held_back_ = false;
      if (frame.type == type_ && !altered_.exchange(true))
        bytes[sizeof(wire::Header) + offset_] ^= std::byte{1};
      if (send(to, bytes.data(), frame.bytes, MSG_NOSIGNAL) < 0)
        return;
      bytes.erase(bytes.begin(), bytes.begin() + static_cast<long>(frame.bytes));
    }
  }

  const int listener_;
  const sockaddr_in to_;
  const wire::Type type_;
  const size_t offset_;
  const std::optional<wire::Type> until_;
  std::atomic<bool> altered_{false};
  bool held_back_ = until_.has_value();
  std::thread thread_;
};

// A port of this host that is listened on, for a relay.
int listen_somewhere(uint16_t& port) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof own;
  CHECK_THAT(::bind(listener, reinterpret_cast<const sockaddr*>(&own), bytes) == 0 &&
             listen(listener, 8) == 0 &&
             getsockname(listener, reinterpret_cast<sockaddr*>(&own), &bytes) == 0);
  port = ntohs(own.sin_port);
  return listener;
}

// Who has nothing to do with the device there cannot open a companion, and might offer a slot that
// is none: here its numbers are right, but what is to come over it is not.
bool no_slot_is_used_before_a_companion_is_open() {
  Place place;
  Node owner(place.proving(place.port), owns(writes));
  const uint32_t theirs = owner.told();
  uint16_t relayed = 0;
  const int listener = listen_somewhere(relayed);
  Initiator seeker(place.proving(relayed), theirs, [&](Node&, QueuePair& pair) {
    std::promise<link::Bound> bound;
    std::atomic<bool> offered{false};
    links().bind(pair.local(1), protocol, [&](const link::Bound& b) { bound.set_value(b); });
    links().claim(1, some_key, [&](const link::Offer&) { offered = true; });
    CHECK_THAT(bound.get_future().get().verdict != Verdict::adverb);
    CHECK_THAT(!offered);
  });
  owner.tell(seeker.told());
  if (!owner.hear('r'))
    return false;
  const Relay relay(listener, place.port, wire::Type::companion_ack,
                    offsetof(wire::CompanionAck, nonce));
  seeker.say('c');
  return seeker.ended_well() && relay.altered();
}

// However many are asked of, slots are left for who needs one.
bool for_a_key_of_the_device_no_slot_is_given() {
  Place place;
  Node owner(place.proving(place.port), owns(writes));
  const uint32_t theirs = owner.told();
  Initiator seeker(place.proving(place.port), theirs, [&](Node&, QueuePair& pair) {
    CHECK_THAT(bind(pair.local(1)).verdict == Verdict::adverb);
    for (uint32_t key = 1; key <= 2 * link::slots_of_a_kind; ++key)
      CHECK_THAT(claim(1, key).answer == Answer::real_key);
    CHECK_THAT(prove(1) == Answer::not_there); // nothing was offered
    const auto offer = claim(1);
    wire::Share read{};
    CHECK_THAT(offer.answer == Answer::ok && pair.carry(offer, read));
    CHECK_THAT(prove(1) == Answer::ok);
  });
  owner.tell(seeker.told());
  if (!owner.hear('r'))
    return false;
  seeker.say('c');
  return seeker.ended_well();
}

// The owner's clock stands: how many come in a second does not depend on this machine.
bool who_asks_of_ever_more_keys_that_do_not_exist_is_told_nothing_for_a_while() {
  Place place;
  // Its service would look for completions for ever.
  const std::string policy = place.proving(place.port, ", \"spin\": 0");
  Node owner(policy, owns(writes));
  const uint32_t theirs = owner.told();
  Initiator seeker(policy, theirs, [&](Node& me, QueuePair& pair) {
    const auto time = [&](char word) {
      me.say(word);
      CHECK_THAT(me.hear('d'));
    };
    CHECK_THAT(bind(pair.local(1)).verdict == Verdict::adverb);
    time('s');
    for (uint32_t key = 1; key <= 2 * link::Peer::misses_a_second; ++key)
      CHECK_THAT(claim(1, key).answer == Answer::real_key); // they exist
    for (uint32_t told = 0; told < link::Peer::misses_a_second; ++told)
      CHECK_THAT(claim(1, nobodys_key).answer == Answer::real_key);
    for (int again = 0; again < 10; ++again)
      CHECK_THAT(claim(1, nobodys_key).answer == Answer::not_there);
    CHECK_THAT(claim(1, 1).answer == Answer::not_there);
    time('9');
    CHECK_THAT(claim(1, nobodys_key).answer == Answer::not_there);
    time('1');
    CHECK_THAT(claim(1, nobodys_key).answer == Answer::real_key);
  });
  owner.tell(seeker.told());
  if (!owner.hear('r'))
    return false;
  seeker.say('c');
  for (char word = 0; recv(seeker.fd(), &word, 1, 0) == 1;) {
    owner.say(word);
    if (!owner.hear('d'))
      return false;
    seeker.say('d');
  }
  return seeker.ended_well();
}

bool who_claims_again_and_again_is_not_listened_to_for_the_rest_of_a_second() {
  Place place;
  Node owner(place.proving(place.port), owns(writes));
  const uint32_t theirs = owner.told();
  Initiator seeker(place.proving(place.port), theirs, [&](Node&, QueuePair& pair) {
    CHECK_THAT(bind(pair.local(1)).verdict == Verdict::adverb);
    while (claim(1).answer == Answer::ok) { // none of them is proven
    }
    uint32_t refused = 1;
    while (claim(1).answer == Answer::not_there)
      ++refused;
    CHECK_THAT(refused <= 64);
    CHECK_THAT(bind(pair.local(2)).verdict == Verdict::adverb);
  });
  owner.tell(seeker.told());
  if (!owner.hear('r'))
    return false;
  seeker.say('c');
  return seeker.ended_well();
}

bool a_claim_is_answered_when_its_queue_pair_is_there() {
  Place place;
  Node owner(place.proving(place.port), [](Node& me) {
    install();
    Domain domain;
    QueuePair pair(domain, writes);
    me.tell(pair.qp->qp_num);
    link::LocalQp early = pair.local(100);
    early.connected = false;
    links().publish(early);
    const uint32_t theirs = me.told();
    CHECK_THAT(me.hear('c'));
    pair.connect(theirs);
    links().connected(pair.local(100));
    CHECK_THAT(me.hear('q'));
  });
  const uint32_t theirs = owner.told();
  Node seeker(place.proving(place.port), [&](Node& me) {
    install();
    Domain domain;
    QueuePair pair(domain, 0);
    me.tell(pair.qp->qp_num);
    pair.connect(theirs);
    std::promise<link::Bound> bound;
    std::promise<link::Offer> offered;
    auto offer = offered.get_future();
    CHECK_THAT(me.hear('b'));
    links().bind(pair.local(1), protocol, [&](const link::Bound& b) { bound.set_value(b); });
    links().claim(1, some_key, [&](const link::Offer& o) { offered.set_value(o); });
    CHECK_THAT(offer.wait_for(300ms) == std::future_status::timeout);
    me.say('w');
    CHECK_THAT(offer.wait_for(hangs) == std::future_status::ready);
    CHECK_THAT(bound.get_future().get().verdict == Verdict::adverb);
    const auto first = offer.get();
    wire::Share read{};
    CHECK_THAT(first.answer == Answer::ok && pair.carry(first, read));
    CHECK_THAT(prove(1) == Answer::ok);
  });
  owner.tell(seeker.told());
  seeker.say('b');
  if (!seeker.hear('w'))
    return false;
  owner.say('c');
  const bool good = seeker.ended_well();
  owner.say('q');
  return good;
}

// So that over a long way the proof is the second flight.
bool all_that_is_asked_for_goes_with_the_hello() {
  Place place;
  Node owner(place.proving(place.port), owns(writes));
  const uint32_t theirs = owner.told();
  uint16_t relayed = 0;
  const int listener = listen_somewhere(relayed);
  Initiator seeker(place.proving(relayed), theirs, [&](Node&, QueuePair& pair) {
    std::promise<link::Bound> bound;
    links().bind(pair.local(1), protocol, [&](const link::Bound& b) { bound.set_value(b); });
    const auto offer = claim(1);
    wire::Share read{};
    CHECK_THAT(offer.answer == Answer::ok && pair.carry(offer, read));
    CHECK_THAT(prove(1) == Answer::ok);
    CHECK_THAT(bound.get_future().get().verdict == Verdict::adverb);
  });
  owner.tell(seeker.told());
  if (!owner.hear('r'))
    return false;
  // No answer comes before that of the slot is asked for.
  const Relay relay(listener, place.port, wire::Type::unbind, 0, wire::Type::claim);
  seeker.say('c');
  return seeker.ended_well();
}

// What one says of itself and the other hears is the same, or nothing is proven.
bool a_relay_that_alters_anything_is_found_out() {
  struct Alteration {
    wire::Type type;
    size_t offset;
    bool harmless = false;
  };
  using wire::Type;
  constexpr Alteration alterations[] = {
      {Type::unbind, 0, true}, // there is none
      {Type::hello, offsetof(wire::Hello, process)},
      {Type::hello, offsetof(wire::Hello, nonce)},
      {Type::hello_ack, offsetof(wire::HelloAck, process)},
      {Type::hello_ack, offsetof(wire::HelloAck, nonce)},
      {Type::bind, offsetof(wire::Bind, patience), true},
      {Type::bind_ack, offsetof(wire::BindAck, remote_handle)},
      {Type::companion, offsetof(wire::Companion, psn)},
      {Type::companion, offsetof(wire::Companion, credits)},
      {Type::companion, offsetof(wire::Companion, message_max) + 1},
      {Type::companion_ack, offsetof(wire::CompanionAck, credits)},
      {Type::companion_ack, offsetof(wire::CompanionAck, message_max) + 1},
      {Type::slot, offsetof(wire::Slot, index)},
      {Type::slot, offsetof(wire::Slot, share)},
      {Type::prove, offsetof(wire::Prove, companion_qpn)},
      {Type::prove, offsetof(wire::Prove, identity)},
      {Type::prove, offsetof(wire::Prove, mac)},
      {Type::prove_ack, offsetof(wire::ProveAck, mac)},
  };
  for (const Alteration& alteration : alterations) {
    Place place;
    Node owner(place.proving(place.port), owns(writes));
    const uint32_t theirs = owner.told();
    // Before others are forked that shall know its port.
    uint16_t relayed = 0;
    const int listener = listen_somewhere(relayed);
    Initiator seeker(place.proving(relayed), theirs, [&](Node&, QueuePair& pair) {
      bool proven = false;
      if (bind(pair.local(1)).verdict == Verdict::adverb)
        if (const auto offer = claim(1); offer.answer == Answer::ok) {
          wire::Share read{};
          proven = pair.carry(offer, read) && prove(1, read) == Answer::ok;
        }
      CHECK_THAT(proven == alteration.harmless);
    });
    owner.tell(seeker.told());
    if (!owner.hear('r'))
      return false;
    const Relay relay(listener, place.port, alteration.type, alteration.offset);
    seeker.say('c');
    const bool good = seeker.ended_well();
    if (!good || relay.altered() != (alteration.type != Type::unbind)) {
      printf("# frame %u, offset %zu: %s\n", static_cast<unsigned>(alteration.type),
             alteration.offset, good ? "not altered" : "proven");
      return false;
    }
  }
  return true;
}

constexpr Case cases[] = {
    CASE(a_queue_pair_is_proven_by_using_it),
    CASE(a_queue_pair_that_lets_its_peer_do_nothing_cannot_be_proven),
    CASE(who_cannot_use_the_queue_pair_proves_nothing),
    CASE(what_has_been_proven_nobody_else_proves_again),
    CASE(who_is_on_another_host_than_the_peer_proves_nothing),
    CASE(who_has_not_the_queue_pair_is_not_taken_for_its_owner),
    CASE(no_slot_is_used_before_a_companion_is_open),
    CASE(for_a_key_of_the_device_no_slot_is_given),
    CASE(who_asks_of_ever_more_keys_that_do_not_exist_is_told_nothing_for_a_while),
    CASE(who_claims_again_and_again_is_not_listened_to_for_the_rest_of_a_second),
    CASE(a_claim_is_answered_when_its_queue_pair_is_there),
    CASE(all_that_is_asked_for_goes_with_the_hello),
    CASE(a_relay_that_alters_anything_is_found_out),
};

} // namespace

int main(int argc, char** argv) {
  return run(cases, argc, argv);
}
