// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What an owner keeps for peers of whom it knows nothing is bounded, and who comes next is not
// refused for it: of hosts, or of links, the one that has most of it loses its oldest. So a flood
// is its host's own. What counts is what is there: until a companion's queue pair and receives are
// gone it is one.
#include "link/bounds.h"
#include "link/companion.h"
#include "link/owner.h"
#include "link/owner_parts.h"
#include "observe/counters.h"
#include "world/world.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <iterator>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace adverb::link {

using wire::Answer;
using Number = Peer::Number;

namespace {

// Who looks for the greediest looks at all: so many of its go at once.
constexpr size_t at_once = 64;
// A companion costs the owner a queue pair and receives. Its peer has nothing to pay until its
// nonce has come, which takes a round trip; afterwards anybody could have made it who can use the
// device at the address it speaks for, until something is proven over it.
constexpr std::chrono::seconds opening_due{10};
constexpr std::chrono::milliseconds rest_first{10};
constexpr std::chrono::milliseconds rest_most{1000};

} // namespace

// Who knows the key, or is vouched for, has shown enough.
bool Owner::needs_no_proof(const Link& link) const {
  return link.vouched || (link.trusted && !world_.policy().link().key.empty());
}

bool Owner::is_unproven(const Link& link) const {
  return !needs_no_proof(link) && !link.proven;
}

// Which of them are of the host that has most; the oldest first.
std::vector<std::shared_ptr<owning::Link>>
Owner::of_greediest_host(const std::vector<std::shared_ptr<Link>>& all) const {
  std::unordered_map<std::string, size_t> count;
  for (const auto& link : all)
    ++count[link->who->address()];
  std::vector<std::shared_ptr<Link>> out;
  if (count.empty())
    return out;
  const auto& host =
      std::ranges::max_element(count, {}, [](const auto& entry) { return entry.second; })->first;
  std::ranges::copy_if(all, std::back_inserter(out),
                       [&](const auto& link) { return link->who->address() == host; });
  return out;
}

bool Owner::make_room_for_link() {
  const size_t room = bounds::links();
  if (links_.size() < room)
    return true;
  std::vector<std::shared_ptr<Link>> unproven;
  std::deque<std::weak_ptr<Link>> kept;
  for (const auto& weak : strangers_)
    if (const auto link = weak.lock(); link && links_.contains(link) && is_unproven(*link)) {
      unproven.push_back(link);
      kept.push_back(weak);
    }
  strangers_ = std::move(kept);
  const auto most = of_greediest_host(unproven);
  for (size_t i = 0; i < std::min(at_once, (most.size() + 1) / 2); ++i)
    end(most[i], "it has proven nothing, and others want its place");
  return links_.size() < room;
}

// Whether one more may be made now; else what its peer is told.
Answer Owner::make_room_for_companion(const std::shared_ptr<Link>& link, uint64_t qp) {
  size_t unproven = 0;
  size_t end = 0;
  companions_.for_each([&](CompanionCharges::Charge& charge) {
    const auto companion = charge.end.lock();
    charge.ends |= !companion || companion->down();
    if (const auto its = charge.link.lock(); its && charge.ends)
      std::erase_if(its->channels, [&](const auto& c) { return c.end == companion; });
    if (charge.qp == 0)
      ++(charge.ends ? end : unproven);
  });
  // By a queue pair that shows its peer there is room beside all that nobody has shown anything by.
  const bool shown = needs_no_proof(*link) || std::ranges::any_of(link->bound, [qp](const auto& e) {
                       return e.second.handle == qp && e.second.proven;
                     });
  if (shown && companions_.has_room(qp))
    return Answer::ok;
  if (end >= bounds::companions_unproven)
    return Answer::not_ready; // until these are gone
  if (unproven >= bounds::companions_unproven && !give_companion_up_for(link))
    return refuse_companion(link);
  return Answer::ok;
}

// Of a link that has proven nothing: it waits when it has sent too much. Each answer takes time
// from all other peers' requests.
void Owner::heard(const std::shared_ptr<Link>& link, uint64_t frames) {
  if (!is_unproven(*link))
    return;
  const auto now = world_.clock.now();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - link->frames_since);
  link->frames -=
      std::min(link->frames, static_cast<uint64_t>(seconds.count()) * bounds::frames_a_second);
  link->frames_since += seconds;
  link->frames += frames;
  if (link->frames < bounds::frames_at_once)
    return;
  link->who->count(Number::bound_frames);
  link->connection->rest(std::chrono::seconds(1));
}

// Some have come: what links that have proven nothing have bound, or wait for, is counted.
void Owner::look_at_binds() {
  size_t all = 0;
  for (const auto& link : links_)
    all += is_unproven(*link) ? link->bound.size() : 0;
  while (all > bounds::qps_unproven) {
    const auto greedy = *std::ranges::max_element(links_, {}, [this](const auto& link) {
      return is_unproven(*link) ? link->bound.size() : 0;
    });
    all -= greedy->bound.size();
    greedy->who->count(Number::bound_qps_bound);
    end(greedy, "it has bound more than others and proven nothing");
  }
}

// It comes again, and who comes again and again has to wait ever longer: each costs the same time
// that all others' requests wait for.
Answer Owner::refuse_companion(const std::shared_ptr<Link>& link) {
  link->who->count(Number::bound_companions);
  link->connection->rest(std::min(rest_first * (1U << std::min(link->refused++, 16U)), rest_most));
  return Answer::not_ready;
}

// `shown`: the queue pair of this process by which the peer need not show itself any more; 0: it
// has to.
void Owner::charge(const std::shared_ptr<Link>& link, const std::shared_ptr<Companion>& end,
                   uint64_t shown) {
  const uint64_t timer = world_.service.after(
      opening_due, [this, number = companions_.next()] { give_up_unopened(number); });
  companions_.add(link, end, timer, shown);
}

// False: none gives way.
bool Owner::give_companion_up_for(const std::shared_ptr<Link>& link) {
  const uint64_t number = companions_.giving_way_to(*link);
  if (number == 0)
    return false;
  companions_.find(number)->link.lock()->who->count(Number::bound_companions);
  close_companion(number);
  return true;
}

// One stands for a queue pair that has gone no longer, but for another of its link if there is one:
// who makes one queue pair after the other has no more than who has one.
void Owner::look_who_stands() {
  companions_.for_each([this](CompanionCharges::Charge& charge) {
    const auto link = charge.link.lock();
    if (charge.qp == 0 || charge.ends || !link)
      return;
    const auto stands = [&](const auto& entry) {
      const owning::Bound& bound = entry.second;
      return bound.handle != 0 && (bound.proven || needs_no_proof(*link));
    };
    if (std::ranges::any_of(link->bound, [&](const auto& entry) {
          return entry.second.handle == charge.qp && stands(entry);
        }))
      return;
    charge.qp = 0;
    for (const auto& entry : link->bound)
      if (charge.qp == 0 && stands(entry) && companions_.has_room(entry.second.handle))
        charge.qp = entry.second.handle;
  });
}

void Owner::give_up_unopened(uint64_t number) {
  if (auto* const charge = companions_.find(number)) {
    charge->timer = 0;
    close_companion(number);
  }
}

void Owner::close_companion(uint64_t number) {
  CompanionCharges::Charge& charge = *companions_.find(number);
  charge.ends = true;
  if (charge.timer != 0)
    world_.service.cancel(std::exchange(charge.timer, 0));
  const auto companion = charge.end.lock();
  if (!companion)
    return;
  companion->close();
  if (const auto link = charge.link.lock()) { // else its receives go when the next is asked for
    // Its peer may have been stopped, or this process, so that the nonce waits to be looked at. It
    // is told, and asks for another.
    for (const auto& c : link->channels)
      if (c.end == companion) {
        wire::CompanionAck ack{};
        ack.handle = c.asked.handle;
        ack.protocol = c.asked.protocol;
        ack.answer = static_cast<uint32_t>(Answer::not_ready);
        link->connection->send(wire::frame(ack));
      }
    std::erase_if(link->channels, [&](const auto& c) { return c.end == companion; });
  }
}

// Its nonce has come, or never will.
void Owner::is_open(uint64_t number, bool ok) {
  auto* const charge = companions_.find(number);
  if (charge == nullptr)
    return;
  if (charge->timer != 0)
    world_.service.cancel(std::exchange(charge->timer, 0));
  if (const auto link = charge->link.lock(); link && ok)
    link->opened = true;
}

// A queue pair was, over that companion.
void Owner::is_proven(const std::shared_ptr<Link>& link, const std::shared_ptr<Companion>& end,
                      uint64_t qp) {
  link->proven = true;
  link->refused = 0;
  auto* const charge = companions_.find(end);
  if (charge != nullptr && charge->qp == 0 && companions_.has_room(qp))
    charge->qp = qp;
}

// Who has most of what waits has its oldest end, as if they had waited for as long as they may.
bool Owner::make_room_to_wait(const std::shared_ptr<Link>& link) {
  if (waiting_.size() < bounds::waiting)
    return true;
  const auto greedy = *std::ranges::max_element(
      links_, {}, [](const std::shared_ptr<Link>& one) { return one->waits.size(); });
  if (greedy->waits.size() <= link->waits.size())
    return false;
  greedy->who->count(Number::bound_waiting_binds);
  for (size_t i = 0; i < at_once && !greedy->waits.empty(); ++i) {
    const uint64_t oldest = *greedy->waits.begin();
    const WaitingBinds::Bind over = *waiting_.find(oldest);
    wait_no_more(oldest);
    answer(greedy, over.bind, over.probe, Answer::not_ready, {});
  }
  return true;
}

} // namespace adverb::link
