// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Links between processes whose connections are lost, or whose peers are stopped: nothing ends that
// need not. TAP.
#include "link_cases.h"

#include <optional>
#include <thread>

namespace {

using namespace link_test;
using observe::Counter;

void wait_until(const std::function<bool()>& good) {
  const auto start = std::chrono::steady_clock::now();
  while (!good()) {
    CHECK_THAT(std::chrono::steady_clock::now() - start < hangs);
    std::this_thread::yield();
  }
}

// Owns queue pairs, and cuts its connections at each word.
void own_and_cut(Node& me, uint16_t port) {
  install();
  for (uint32_t i = 0; i < 8; ++i) {
    links().publish(qp(there + i, 2 + i));
    links().connected(qp(there + i, 2 + i, here + i));
  }
  me.say('r');
  for (char word = 0; recv(me.fd(), &word, 1, 0) == 1 && word == 'c';) {
    CHECK_THAT(cut_connections(port) == 1);
    me.say('d');
  }
  CHECK_THAT(value(Counter::companions) == 1);
}

// Whoever is told first, and however often.
bool lose_connections(const std::string& key) {
  Place place;
  Node owner(place.policy(key), [&](Node& me) { own_and_cut(me, place.port); });
  if (!owner.hear('r'))
    return false;
  Node seeker(place.policy(key), [&](Node& me) {
    auto bound = ask();
    CHECK_THAT(bound.verdict == Verdict::adverb);
    const auto channel = bound.channel;
    for (uint64_t times = 1; times <= 12; ++times) {
      asker->exchange(*channel, 50);
      if (times % 2 == 0) {
        me.say('c');
        CHECK_THAT(me.hear('d'));
      } else {
        CHECK_THAT(cut_connections(place.port) == 1);
      }
      asker->exchange(*channel, 50);
      wait_until([&] { return value(Counter::links_resumed) == times; });
      // What is bound and unbound from here on is, over the same channel.
      const auto i = static_cast<uint32_t>(times % 8);
      bound = bind(qp(here + i, 10 * times, there + i));
      CHECK_THAT(bound.verdict == Verdict::adverb && bound.remote_handle == 2 + i);
      CHECK_THAT(bound.channel == channel);
      if (times % 3 == 0)
        links().unbind(10 * times);
    }
    CHECK_THAT(asker->downs == 0 && value(Counter::companions) == 1);
    CHECK_THAT(value(Counter::links_down) == 0);
  });
  // Words between the two go by way of the parent.
  for (char word = 0; recv(seeker.fd(), &word, 1, 0) == 1 && word == 'c';) {
    owner.say('c');
    if (!owner.hear('d'))
      return false;
    seeker.say('d');
  }
  if (!seeker.ended_well())
    return false;
  owner.say('q');
  return owner.ended_well();
}

bool a_channel_outlives_its_connection() {
  return lose_connections("");
}

bool a_channel_outlives_its_connection_also_with_a_key() {
  return lose_connections("a secret of more than sixteen bytes");
}

bool who_asks_while_the_connection_is_lost_is_answered() {
  Place place;
  Node owner(place.policy(), [&](Node& me) { own_and_cut(me, place.port); });
  if (!owner.hear('r'))
    return false;
  Node seeker(place.policy(), [&](Node&) {
    const auto first = ask();
    CHECK_THAT(first.verdict == Verdict::adverb);
    for (uint32_t i = 1; i < 8; ++i) {
      CHECK_THAT(cut_connections(place.port) >= 1);
      CHECK_THAT(bind(qp(here + i, 10 + i, there + i)).verdict == Verdict::adverb);
    }
    asker->exchange(*first.channel, 50);
    CHECK_THAT(asker->downs == 0);
  });
  return seeker.ended_well();
}

// Most of what is bound over a link may have been destroyed at the peer when its connection is
// lost.
bool a_lost_link_is_found_by_any_queue_pair_that_is_left() {
  Place place;
  Node owner(place.policy(), [&](Node& me) {
    install();
    for (uint32_t i = 0; i < 8; ++i) {
      links().publish(qp(there + i, 2 + i));
      links().connected(qp(there + i, 2 + i, here + i));
    }
    me.say('r');
    me.hear('w');
    for (uint32_t i = 0; i < 8; ++i)
      if (i != 5)
        links().withdraw(there + i, 2 + i);
    me.say('d');
    me.hear('q');
  });
  if (!owner.hear('r'))
    return false;
  Node seeker(place.policy(), [&](Node& me) {
    const auto first = ask();
    CHECK_THAT(first.verdict == Verdict::adverb);
    for (uint32_t i = 1; i < 8; ++i)
      CHECK_THAT(bind(qp(here + i, 10 + i, there + i)).verdict == Verdict::adverb);
    me.say('w');
    CHECK_THAT(me.hear('d'));
    CHECK_THAT(cut_connections(place.port) == 1);
    wait_until([&] { return value(Counter::links_resumed) == 1; });
    asker->exchange(*first.channel, 50);
    CHECK_THAT(asker->downs == 0 && value(Counter::links_down) == 0);
  });
  if (!seeker.hear('w'))
    return false;
  owner.say('w');
  if (!owner.hear('d'))
    return false;
  seeker.say('d');
  return seeker.ended_well();
}

// A host of two processes: the broker, known by a queue pair of its own, and the owner of `there`,
// which is stopped until goes_on().
struct HostWithStoppedOwner {
  explicit HostWithStoppedOwner(Place& place)
      : broker(place.policy(), [](Node& me) {
          install();
          links().publish(qp(there + 50, 9));
          links().connected(qp(there + 50, 9, here + 50));
          me.say('r');
          me.hear('q');
        }) {
    CHECK_THAT(broker.hear('r'));
    owner.emplace(place.policy(), own);
    CHECK_THAT(owner->hear('r'));
    kill(owner->pid(), SIGSTOP);
  }
  // When the seeker says so, which has to end well then.
  bool goes_on(Node& seeker) {
    if (!seeker.hear('w'))
      return false;
    kill(owner->pid(), SIGCONT);
    return seeker.ended_well();
  }
  Node broker;
  std::optional<Node> owner;
};

// A process may be stopped before a link to it is made: its device would serve its peers, and
// nobody takes it for one without adverb.
bool an_owner_that_is_stopped_is_waited_for() {
  Place place;
  HostWithStoppedOwner host(place);
  Node seeker(place.policy(), [](Node& me) {
    install();
    links().publish(qp(here, 1));
    std::promise<link::Bound> promise;
    links().bind(qp(here, 1, there), protocol,
                 [&](link::Bound b) { promise.set_value(std::move(b)); });
    auto bound = promise.get_future();
    // Beyond what a stranger is given, link.hello_timeout and three seconds.
    CHECK_THAT(bound.wait_for(7s) == std::future_status::timeout);
    me.say('w');
    CHECK_THAT(bound.wait_for(hangs) == std::future_status::ready);
    const auto got = bound.get();
    CHECK_THAT(got.verdict == Verdict::adverb);
    asker->exchange(*got.channel, 50);
  });
  return host.goes_on(seeker);
}

// Where adverb is known to be, what the network does to connections says nothing of who is there.
bool a_host_known_is_searched_for_as_long_as_connections_are_cut() {
  Place place;
  HostWithStoppedOwner host(place);
  Node seeker(place.policy(), [&](Node& me) {
    install();
    links().publish(qp(here, 1));
    CHECK_THAT(bind(qp(here + 50, 50, there + 50)).verdict == Verdict::adverb);
    std::promise<link::Bound> promise;
    const uint64_t before = value(Counter::hellos_sent);
    links().bind(qp(here, 1, there), protocol,
                 [&](link::Bound b) { promise.set_value(std::move(b)); });
    wait_until([&] { // none of them is answered, as the owner is stopped
      cut_connections(place.port);
      return value(Counter::hellos_sent) >= before + 8;
    });
    me.say('w');
    auto bound = promise.get_future();
    CHECK_THAT(bound.wait_for(hangs) == std::future_status::ready);
    const auto got = bound.get();
    CHECK_THAT(got.verdict == Verdict::adverb);
    asker->exchange(*got.channel, 50);
  });
  return host.goes_on(seeker);
}

bool a_channel_ends_when_its_connection_is_lost_and_the_peer_has_gone() {
  Place place;
  Node owner(place.policy(), [&](Node& me) {
    own(me);
    cut_connections(place.port);
    _exit(0);
  });
  if (!owner.hear('r'))
    return false;
  Node seeker(place.policy(), [&](Node& me) {
    const auto bound = ask();
    CHECK_THAT(bound.verdict == Verdict::adverb);
    asker->exchange(*bound.channel, 50);
    me.say('k');
    asker->wait_down(1);
  });
  if (!seeker.hear('k'))
    return false;
  owner.say('q');
  return seeker.ended_well();
}

constexpr Case cases[] = {
    CASE(a_channel_outlives_its_connection),
    CASE(a_channel_outlives_its_connection_also_with_a_key),
    CASE(who_asks_while_the_connection_is_lost_is_answered),
    CASE(a_lost_link_is_found_by_any_queue_pair_that_is_left),
    CASE(a_host_known_is_searched_for_as_long_as_connections_are_cut),
    CASE(an_owner_that_is_stopped_is_waited_for),
    CASE(a_channel_ends_when_its_connection_is_lost_and_the_peer_has_gone),
};

} // namespace

int main(int argc, char** argv) {
  return run(cases, argc, argv);
}
