// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What an owner keeps for peers of whom it knows nothing is bounded, and who comes next is not
// refused for it: of hosts, or of links, the one that has most of it loses its oldest. So a flood
// is its host's own.
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
#include <sys/resource.h>
#include <unordered_map>
#include <utility>
#include <vector>

namespace adverb::link {

using wire::Answer;
using Number = Peer::Number;

namespace {

constexpr size_t links_max = 4096; // and half as many as the process may have descriptors
// Who looks for the greediest looks at all: so many of its go at once.
constexpr size_t at_once = 64;
// A companion costs the owner a queue pair and receives. Its peer has nothing to pay until its
// nonce has come, which takes a round trip; afterwards anybody could have made it who can use the
// device at the address it speaks for, until something is proven over it.
constexpr std::chrono::seconds opening_due{10};
constexpr size_t opening_max = 512; // of all peers
constexpr size_t waiting_max = 65536;

size_t room_for_links() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0)
    return links_max;
  return std::min<size_t>(links_max, std::max<rlim_t>(files.rlim_cur / 2, 16));
}

} // namespace

// Who knows the key, or is vouched for, has shown enough.
bool Owner::is_unproven(const Link& link) const {
  const bool knows_key = link.trusted && !world_.policy().link().key.empty();
  return !link.vouched && !link.proven && !knows_key;
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
  const size_t room = room_for_links();
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

void Owner::await_opening(const std::shared_ptr<Link>& link,
                          const std::shared_ptr<Companion>& channel) {
  const uint64_t number = next_opening_++;
  const uint64_t timer =
      world_.service.after(opening_due, [this, number] { give_opening_up(number); });
  opening_.emplace(number, Opening{link, channel, timer});
  if (opening_.size() > opening_max)
    make_room_for_companion();
}

// False: nobody has one that could be given up.
bool Owner::make_room_for_companion() {
  std::erase_if(opening_, [&](const auto& entry) {
    const auto end = entry.second.end.lock();
    const bool gone = !end || end->down() || entry.second.link.expired();
    if (gone && entry.second.timer != 0)
      world_.service.cancel(entry.second.timer);
    return gone;
  });
  std::vector<std::shared_ptr<Link>> all; // one for each companion
  for (const auto& [number, opening] : opening_)
    all.push_back(opening.link.lock());
  const auto most = of_greediest_host(all);
  size_t left = std::min(at_once, (most.size() + 1) / 2);
  std::vector<uint64_t> these;
  for (const auto& [number, opening] : opening_)
    if (left != 0 && opening.link.lock()->who->address() == most.front()->who->address()) {
      these.push_back(number);
      --left;
    }
  for (const uint64_t number : these)
    give_opening_up(number);
  return !these.empty();
}

void Owner::give_opening_up(uint64_t number) {
  const auto at = opening_.find(number);
  if (at == opening_.end())
    return;
  const Opening late = at->second;
  opening_.erase(at);
  if (late.timer != 0)
    world_.service.cancel(late.timer);
  const auto channel = late.end.lock();
  if (!channel)
    return;
  channel->close();
  if (const auto link = late.link.lock()) { // else its receives go when the next is asked for
    if (opening_.size() >= opening_max)
      link->who->count(Number::bound_companions);
    // Its peer may have been stopped, or this process, so that the nonce waits to be looked at. It
    // is told, and asks for another.
    for (const auto& c : link->channels)
      if (c.end == channel) {
        wire::CompanionAck ack{};
        ack.handle = c.asked.handle;
        ack.protocol = c.asked.protocol;
        ack.answer = static_cast<uint32_t>(Answer::not_ready);
        link->connection->send(wire::frame(ack));
      }
    std::erase_if(link->channels, [&](const auto& c) { return c.end == channel; });
  }
}

// Its nonce has come, or never will.
void Owner::is_open(uint64_t number, bool ok) {
  const auto at = opening_.find(number);
  if (at == opening_.end())
    return;
  world_.service.cancel(std::exchange(at->second.timer, 0));
  const auto link = at->second.link.lock();
  if (link && ok)
    link->opened = true;
  if (!ok || !link || !is_unproven(*link))
    opening_.erase(at);
}

// Something was, over a link: its companions are as good as any.
void Owner::is_proven(const std::shared_ptr<Link>& link) {
  if (std::exchange(link->proven, true))
    return;
  std::erase_if(opening_, [&](const auto& entry) {
    return entry.second.timer == 0 && entry.second.link.lock() == link;
  });
}

// Who has most of what waits has its oldest end, as if they had waited for as long as they may.
bool Owner::make_room_to_wait(const std::shared_ptr<Link>& link) {
  if (waiting_.size() < waiting_max)
    return true;
  const auto greedy = *std::ranges::max_element(
      links_, {}, [](const std::shared_ptr<Link>& one) { return one->waits.size(); });
  if (greedy->waits.size() <= link->waits.size())
    return false;
  greedy->who->count(Number::bound_waiting_binds);
  for (size_t i = 0; i < at_once && !greedy->waits.empty(); ++i) {
    const uint64_t oldest = *greedy->waits.begin();
    const Waiting over = waiting_.at(oldest);
    wait_no_more(oldest);
    answer(greedy, over.bind, over.probe, Answer::not_ready, {});
  }
  return true;
}

} // namespace adverb::link
