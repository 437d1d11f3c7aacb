// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Links between the programs of a schedule: the channels that the real ones would make, each a list
// of messages under way in each direction. A message arrives when the schedule says so, taken by
// the receiver's service or by one of its polls.
#pragma once

#include "choices.h"
#include "link/links.h"
#include "step.h"
#include "wires.h"
#include "world/world.h"

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace sim {

class Channel;

// What the links of one schedule share.
class Net {
public:
  explicit Net(Choices& choices)
      : choices(choices), shared_(choices.once_in(2)), proves_(choices.once_in(3)) {
    if (choices.once_in(6))
      wires = std::make_unique<Wires>(choices);
  }
  // The links are the product's, and these their connections. Null: they are Links, here.
  std::unique_ptr<Wires> wires;
  void offer(Steps& steps);
  // The programs are at their end: a channel and who uses it hold each other until then.
  void close();
  // Every message has arrived.
  bool quiet() const;
  // All channels end, now or as soon as who has one comes to it, and there are no others. Or one
  // end of one sends what the protocol has no word for, and the other is to end it.
  void lose();
  bool lost() const { return lost_; }
  // All channels end, and what asks for one then gets another.
  void part();
  bool parted() const { return parted_; }
  // Of one path it is found that packets pay, or that they pay no more.
  void judge();
  // From now on those whose thread is `fibre` are liars, who never take note of keys that ended.
  void corrupt(uint32_t fibre);
  // One of them says something that every message must be, and that no honest peer says.
  void lie();
  bool lies() const { return liar_ != 0; }
  bool proves() const { return proves_; }
  // A queue pair has reached memory of its peer's. Into a slot, or out of one, it may only where it
  // was offered that, and is what it was then.
  void reached(uint32_t qpn, uint32_t key, uint64_t address);
  void named(uint32_t qpn, const adverb::link::Links* links, uint64_t handle) {
    names_[qpn] = {links, handle};
  }
  // A cell of a program's that peers may write to, as requests name it: address and key. Of that
  // which has the queue pair of this number; key 0: none has.
  using Cell = std::pair<uint64_t, uint32_t>;
  std::map<const adverb::link::Links*, std::function<Cell()>> reachable;
  Cell reachable_by(uint32_t qpn) const {
    const auto at = names_.find(qpn);
    return at == names_.end() ? Cell{} : reachable.at(at->second.first)();
  }
  void unnamed(uint32_t qpn) { names_.erase(qpn); }
  void offered(const adverb::link::Links* links, uint64_t handle, const adverb::link::Offer& offer);
  std::vector<std::string> misuse; // what nobody should have done
  // Queue pairs that have been proven over the product's links, and what they asked for then.
  struct Proven {
    adverb::link::LocalQp qp;
    uint64_t owner = 0; // the handle of the peer's
    uint32_t key = 0;
  };
  std::vector<Proven> proven;
  // How many pairs of queue pairs programs are connecting. That takes next to no time, however
  // often who does it is interrupted, and nobody gives up seeking meanwhile.
  uint32_t connecting = 0;

  Choices& choices;

private:
  friend class Links;
  struct Published {
    adverb::link::LocalQp qp;
    class Links* links;
  };
  std::vector<Published> published_;
  std::vector<std::shared_ptr<Channel>> channels_;
  std::map<std::pair<class Links*, class Links*>, std::shared_ptr<Channel>> clients_;
  const bool shared_; // by all queue pairs of two programs
  const bool proves_; // some queue pairs have to be proven to be their program's
  using Slot = std::pair<uint32_t, uint64_t>;                   // key and address
  using Name = std::pair<const adverb::link::Links*, uint64_t>; // of a queue pair: its handle there
  std::map<uint32_t, Name> names_;                              // by number
  std::map<Name, std::set<Slot>> offered_;
  // Whose names have been misused: nothing of them is ever proven, or what was forged might be
  // served as theirs, later.
  struct Pair {
    class Links* owner;
    uint64_t handle;
    uint64_t peers;
    auto operator<=>(const Pair&) const = default;
  };
  std::set<Pair> misused_;
  void forge();
  bool lost_ = false;
  bool parted_ = false;
  uint32_t liar_ = 0; // whose thread; 0: all are honest
};

// One end.
class Channel final : public adverb::link::Channel {
public:
  // `fibre`: that takes what comes, unless a poll does. `reported`: so many sends at a time.
  Channel(adverb::link::Progress& progress, Role role, uint32_t fibre, uint32_t credits,
          uint32_t reported, size_t message_max, uint8_t version);

  std::byte* acquire() noexcept override;
  void send(std::byte* message, size_t bytes) noexcept override;
  void abandon(std::byte* message) noexcept override;
  void close() noexcept override;
  bool pays() const noexcept override { return pays_; }

  void open(adverb::link::Protocol& protocol);
  // What is measured of its path says the opposite from now on, and its user hears of it.
  void judge();
  void end();
  // As if it had been sent from here, credits or not.
  void lie(Choices& choices);
  // The same, of what lies in the peer's memory at `address`: of a queue pair of the peer's that is
  // not bound to that of ours over this channel.
  void forge(uint64_t target, uint64_t source, uint64_t address, uint32_t key, uint64_t value);
  bool deaf = false; // never says that it has taken note
  // Takes the oldest message that is under way to this end. The progress lock is held.
  void take();
  bool coming() const { return !peer->sent_.empty(); }
  // Gives buffers that were sent back to their sender, who hears of some at a time, as of a
  // companion's: until then they are not to be had.
  bool unfinished() const { return sending_.size() >= reported_; }
  void finish_send();
  bool over() const { return closing_ && !ended_; }
  // Makes nonsense of the newest message that is under way from this end. False: there is none.
  bool garble(Choices& choices);
  size_t buffers_out() const { return received_.out; }

  Channel* peer = nullptr;
  class Links* of = nullptr;
  const uint32_t fibre;

private:
  struct Received final : adverb::link::RxBuffer::Pool {
    void take_back(uint32_t slot) noexcept override {
      --out;
      free.push_back(slot);
    }
    std::deque<std::vector<std::byte>> slots;
    std::vector<uint32_t> free;
    size_t out = 0;
  };
  void deny(Choices& choices);

  std::vector<std::unique_ptr<std::byte[]>> memory_;
  std::vector<std::byte*> free_;
  std::deque<std::byte*> sending_;
  const uint32_t reported_;
  std::deque<std::vector<std::byte>> sent_;
  bool lied_last_ = false; // the last of these is a lie
  Received received_;
  bool starved_ = false;
  bool closing_ = false;
  bool ended_ = false;
  adverb::Atomic<bool> pays_{false};
};

class Links final : public adverb::link::Links {
public:
  Links(adverb::World& world, uint32_t fibre, Net& net) : world_(world), fibre_(fibre), net_(net) {}

  void serve(std::shared_ptr<adverb::link::Protocol> protocol) override;
  void publish(const adverb::link::LocalQp& qp) override;
  void connected(const adverb::link::LocalQp& qp) override;
  void withdraw(uint32_t, uint64_t handle) override;
  void bind(const adverb::link::LocalQp& qp, uint8_t,
            std::function<void(adverb::link::Bound)> done) override;
  void cancel_bind(uint64_t handle) override { cancel(handle); }
  // Whatever they say, as another queue pair may have opened the path meanwhile.
  bool has_met(const adverb::link::LocalQp&, uint8_t) const override {
    return net_.choices.once_in(2);
  }
  void claim(uint64_t handle, uint32_t key,
             std::function<void(const adverb::link::Offer&)> offered) override;
  void prove(uint64_t handle, const adverb::link::wire::Share& read,
             std::function<void(adverb::link::wire::Answer)> done) override;
  void unbind(uint64_t handle) override;
  void probe(const adverb::link::LocalQp&, std::function<void(adverb::link::Bound)>) override {}
  std::shared_ptr<adverb::link::Progress> progress(ibv_device*) override { return progress_; }
  void await_probes() noexcept override {}

private:
  friend class Channel;
  friend class Net;
  // A poll of the program may take what has arrived.
  struct Polled final : adverb::link::Progress {
    explicit Polled(Links& links) : links(links) {}
    bool progress() override;
    Links& links;
  };

  struct Search {
    adverb::link::LocalQp qp;
    std::function<void(adverb::link::Bound)> done;
    bool over = false;
    std::function<void()> claim; // when it is bound
  };
  bool find(Search& search); // true: it is over
  void cancel(uint64_t handle);
  std::shared_ptr<Channel> open_to(Links& theirs);
  void seek(const std::shared_ptr<Search>& search, int attempt);

  adverb::World& world_;
  const uint32_t fibre_;
  Net& net_;
  std::shared_ptr<adverb::link::Protocol> protocol_;
  std::shared_ptr<Polled> progress_ = std::make_shared<Polled>(*this);
  std::vector<std::shared_ptr<Channel>> mine_;
  std::vector<std::shared_ptr<Search>> searches_;
  struct Bound { // a queue pair here to one of a peer's
    uint64_t handle;
    uint64_t theirs;
    std::shared_ptr<Channel> server;
    class Links* links; // the peer's
    bool proven;
  };
  std::vector<Bound> bound_;
  struct Claim { // what is to be found in a slot of the peer's, or to be read from it
    std::shared_ptr<adverb::link::Slots> slots;
    adverb::link::Slots::Slot slot;
    adverb::link::wire::Share share{};
  };
  std::map<uint64_t, Claim> claims_;
  // How often one was told to come later: more often would take time, which passes for those only
  // who wait for a peer that is lost.
  std::map<uint64_t, uint32_t> put_off_;
  bool puts_off(uint64_t handle) {
    return put_off_[handle] < 2 && net_.choices.once_in(4) && ++put_off_[handle] != 0;
  }
  void give_up(uint64_t handle);
  adverb::link::Offer make_claim(uint64_t handle, uint32_t key);
  void look(uint64_t handle, const adverb::link::wire::Share& read,
            const std::function<void(adverb::link::wire::Answer)>& done, int looks);
};

} // namespace sim
