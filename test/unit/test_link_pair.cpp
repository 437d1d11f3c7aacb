// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Links between processes, end to end over a verbs device: who is found, who is not, and what is
// noticed when one goes away. TAP.
#include "link_cases.h"

#include <filesystem>
#include <thread>

namespace {

using namespace link_test;
using observe::Counter;

// A successor of a broker that was killed takes some instants; until then a host looks stock.
void ask_until_found() {
  install();
  const auto start = std::chrono::steady_clock::now();
  for (uint64_t handle = 1; bind(qp(here, handle, there)).verdict != Verdict::adverb; ++handle)
    CHECK_THAT(std::chrono::steady_clock::now() - start < hangs);
}

bool messages_arrive_both_ways_in_order_and_whole() {
  Place place;
  Node owner(place.policy(), own);
  if (!owner.hear('r'))
    return false;
  Node seeker(place.policy(), [](Node&) {
    const auto bound = ask();
    CHECK_THAT(bound.verdict == Verdict::adverb && bound.remote_handle == 2);
    CHECK_THAT(bound.channel->credits() >= 2 && bound.channel->message_max() >= 4096);
    asker->exchange(*bound.channel, 5000);
  });
  return seeker.ended_well();
}

bool queue_pairs_of_one_pair_of_processes_share_a_channel() {
  Place place;
  Node owner(place.policy(), [](Node& me) {
    install();
    for (uint32_t i = 0; i < 20; ++i) {
      links().publish(qp(there + i, 1000 + i));
      links().connected(qp(there + i, 1000 + i, here + i));
    }
    me.say('r');
    me.hear('q');
  });
  if (!owner.hear('r'))
    return false;
  Node seeker(place.policy(), [](Node&) {
    install();
    CHECK_THAT(!links().has_met(qp(here, 1, there), protocol));
    std::vector<std::future<link::Bound>> all;
    for (uint32_t i = 0; i < 20; ++i) {
      auto promise = std::make_shared<std::promise<link::Bound>>();
      all.push_back(promise->get_future());
      links().bind(qp(here + i, 1 + i, there + i), protocol,
                   [promise](link::Bound b) { promise->set_value(std::move(b)); });
    }
    std::shared_ptr<link::Channel> channel;
    for (uint32_t i = 0; i < 20; ++i) {
      CHECK_THAT(all[i].wait_for(hangs) == std::future_status::ready);
      const auto bound = all[i].get();
      CHECK_THAT(bound.verdict == Verdict::adverb && bound.remote_handle == 1000 + i);
      CHECK_THAT(!channel || channel == bound.channel);
      channel = bound.channel;
    }
    CHECK_THAT(value(Counter::companions) == 1);
    CHECK_THAT(links().has_met(qp(here + 30, 31, there + 30), protocol));
    CHECK_THAT(!links().has_met(qp(here + 30, 31, there + 30), protocol + 1));
  });
  return seeker.ended_well();
}

// Over a link that loses, doubles and reorders them. Each process opens the device for itself.
bool packets_carry_a_channel_whole_and_in_order() {
  Place place;
  setenv("ADVERB_LOOPBACK_LINK", "seed=5,loss=2e-2,burst=2,duplicate=1e-2,reorder=2e-2:8", 1);
  Node owner(place.far(), own);
  const bool ready = owner.hear('r');
  Node seeker(place.far(), [](Node&) {
    const auto bound = ask();
    CHECK_THAT(bound.verdict == Verdict::adverb);
    asker->exchange(*bound.channel, 3000);
    CHECK_THAT(value(Counter::companions) == 1);
    CHECK_THAT(value(Counter::endpoint_packets_again) > 0);
  });
  unsetenv("ADVERB_LOOPBACK_LINK");
  return seeker.ended_well() && ready;
}

// Until `done`, while a program posts, for which paths are measured.
void post_until(const std::function<bool()>& done) {
  const auto limit = std::chrono::steady_clock::now() + hangs;
  std::unique_lock hold(asker->lock);
  while (!done()) {
    CHECK_THAT(std::chrono::steady_clock::now() < limit);
    process().world.counters.count(Counter::posts_offload);
    asker->changed.wait_for(hold, std::chrono::milliseconds(20));
  }
}

// By packets without payload, while the channel has nothing to carry.
bool a_far_path_that_loses_is_found_to_be_worth_packets() {
  Place place;
  setenv("ADVERB_LOOPBACK_LINK", "seed=5,delay=5ms,loss=2e-2", 1);
  Node owner(place.far(), own);
  const bool ready = owner.hear('r');
  Node seeker(place.far(), [](Node&) {
    const auto bound = ask();
    CHECK_THAT(bound.verdict == Verdict::adverb && bound.channel->repairs());
    CHECK_THAT(!bound.channel->pays() && value(Counter::path_soundings) == 0);
    bound.channel->judge_path();
    bound.channel->judge_path(); // once is enough
    post_until([] { return asker->judgements != 0; });
    CHECK_THAT(bound.channel->pays());
    CHECK_THAT(value(Counter::path_changes) == 1 && value(Counter::path_soundings) >= 64);
    asker->exchange(*bound.channel, 100); // it carries messages all the same
    CHECK_THAT(bound.channel->pays());
  });
  unsetenv("ADVERB_LOOPBACK_LINK");
  return seeker.ended_well() && ready;
}

bool a_near_path_is_sounded_and_left_to_the_device() {
  Place place;
  Node owner(place.far(), own);
  if (!owner.hear('r'))
    return false;
  Node seeker(place.far(), [](Node&) {
    const auto bound = ask();
    bound.channel->judge_path();
    post_until([] { return value(Counter::path_soundings) >= 64 + 4 * 2; });
    asker->exchange(*bound.channel, 100);
    CHECK_THAT(!bound.channel->pays() && asker->judgements == 0);
    CHECK_THAT(value(Counter::path_changes) == 0);
  });
  return seeker.ended_well();
}

// The owner has no room, and says so.
bool without_room_for_packets_the_device_carries_the_channel() {
  Place place;
  Node owner(place.file("small.json", R"({"version": 1, "staging": "512KiB", "link": {"port": )" +
                                          std::to_string(place.port) + "}}\n"),
             own);
  if (!owner.hear('r'))
    return false;
  Node seeker(place.far(), [](Node&) {
    const auto bound = ask();
    CHECK_THAT(bound.verdict == Verdict::adverb);
    asker->exchange(*bound.channel, 100);
    CHECK_THAT(value(Counter::companions) == 2); // the one that it asked for in vain
    CHECK_THAT(value(Counter::endpoint_packets_sent) == 0);
  });
  return seeker.ended_well();
}

bool each_protocol_has_a_channel_of_its_own_with_messages_of_its_own_length() {
  Place place;
  static constexpr uint8_t other = 9;
  Node owner(place.policy(), [](Node& me) {
    install();
    links().serve(std::make_shared<EchoProtocol>(*asker, other, 512));
    own(me);
  });
  if (!owner.hear('r'))
    return false;
  Node seeker(place.policy(), [](Node&) {
    const auto first = ask();
    Asker second_asker;
    links().serve(std::make_shared<EchoProtocol>(second_asker, other, 512));
    const auto second = bind(qp(here, 1, there), other);
    CHECK_THAT(first.verdict == Verdict::adverb && second.verdict == Verdict::adverb);
    CHECK_THAT(first.channel != second.channel);
    CHECK_THAT(first.channel->message_max() == 8192 && second.channel->message_max() == 512);
    asker->exchange(*first.channel, 200);
    second_asker.exchange(*second.channel, 200);
    asker->exchange(*first.channel, 200);
  });
  return seeker.ended_well();
}

bool a_protocol_the_peer_does_not_serve_is_refused() {
  Place place;
  Node owner(place.policy(), own);
  if (!owner.hear('r'))
    return false;
  Node seeker(place.policy(), [](Node&) {
    install();
    links().serve(std::make_shared<EchoProtocol>(*asker, 9, 512));
    links().publish(qp(here, 1));
    const auto bound = bind(qp(here, 1, there), 9);
    CHECK_THAT(bound.verdict == Verdict::refused);
    CHECK_THAT(bound.reason.find("does not serve") != std::string::npos);
    const auto served = bind(qp(here, 1, there)); // the link goes on
    CHECK_THAT(served.verdict == Verdict::adverb);
    asker->exchange(*served.channel, 10);
  });
  return seeker.ended_well();
}

bool a_target_not_yet_connected_is_waited_for() {
  Place place;
  Node owner(place.policy(), [](Node& me) {
    install();
    links().publish(qp(there, 2));
    me.say('r');
    CHECK_THAT(me.hear('c'));
    links().connected(qp(there, 2, here));
    me.hear('q');
  });
  if (!owner.hear('r'))
    return false;
  Node seeker(place.policy(), [](Node& me) {
    install();
    std::promise<link::Bound> promise;
    auto bound = promise.get_future();
    links().bind(qp(here, 1, there), protocol,
                 [&](link::Bound b) { promise.set_value(std::move(b)); });
    CHECK_THAT(bound.wait_for(500ms) == std::future_status::timeout);
    me.say('w');
    CHECK_THAT(bound.wait_for(hangs) == std::future_status::ready);
    CHECK_THAT(bound.get().verdict == Verdict::adverb);
  });
  if (!seeker.hear('w'))
    return false;
  owner.say('c');
  return seeker.ended_well();
}

bool a_target_never_connected_is_waited_for_as_long_as_the_device_would_try() {
  Place place;
  Node owner(place.policy(), [](Node& me) {
    install();
    links().publish(qp(there, 2));
    me.say('r');
    me.hear('q');
  });
  if (!owner.hear('r'))
    return false;
  Node seeker(place.policy(), [](Node&) {
    install();
    link::LocalQp asking = qp(here, 1, there);
    asking.timeout = 12; // 4 * 8 * 17 ms
    asking.retry_cnt = 7;
    const auto start = std::chrono::steady_clock::now();
    CHECK_THAT(bind(asking).verdict == Verdict::stock);
    CHECK_THAT(std::chrono::steady_clock::now() - start >= 500ms);
  });
  return seeker.ended_well();
}

bool a_host_without_adverb_is_stock_at_once() {
  Place place;
  Node seeker(place.policy(), [](Node&) {
    install();
    CHECK_THAT(bind(qp(here, 1, there)).verdict == Verdict::stock);
    // Refused, and not waited for in vain.
    CHECK_THAT(value(Counter::hellos_stock) == 1 && value(Counter::hellos_timeouts) == 0);
  });
  return seeker.ended_well();
}

bool a_queue_pair_that_nobody_registered_is_stock() {
  Place place;
  Node owner(place.policy(), own);
  if (!owner.hear('r'))
    return false;
  Node seeker(place.policy(), [](Node&) {
    install();
    CHECK_THAT(bind(qp(here, 1, there + 7)).verdict == Verdict::stock);
  });
  return seeker.ended_well();
}

bool a_queue_pair_withdrawn_is_not_found_and_its_successor_is() {
  Place place;
  Node owner(place.policy(), [](Node& me) {
    install();
    links().publish(qp(there, 2));
    links().connected(qp(there, 2, here));
    links().withdraw(there, 2);
    me.say('r');
    CHECK_THAT(me.hear('c'));
    links().publish(qp(there, 3));
    links().connected(qp(there, 3, here));
    me.say('d');
    me.hear('q');
  });
  if (!owner.hear('r'))
    return false;
  Node seeker(place.policy(), [](Node& me) {
    CHECK_THAT(ask().verdict == Verdict::stock);
    me.say('s');
    CHECK_THAT(me.hear('c'));
    const auto bound = bind(qp(here, 5, there));
    CHECK_THAT(bound.verdict == Verdict::adverb && bound.remote_handle == 3);
  });
  if (!seeker.hear('s'))
    return false;
  owner.say('c');
  if (!owner.hear('d'))
    return false;
  seeker.say('c');
  return seeker.ended_well();
}

bool the_death_of_the_peer_is_told_once() {
  Place place;
  Node owner(place.policy(), own);
  if (!owner.hear('r'))
    return false;
  Node seeker(place.policy(), [](Node& me) {
    const auto bound = ask();
    CHECK_THAT(bound.verdict == Verdict::adverb);
    asker->exchange(*bound.channel, 100);
    me.say('u');
    asker->wait_down(1);
    CHECK_THAT(bound.channel->down() && bound.channel->acquire() == nullptr);
    CHECK_THAT(bind(qp(here, 9, there)).verdict == Verdict::stock);
    asker->wait_down(1);
  });
  if (!seeker.hear('u'))
    return false;
  owner.kill();
  return seeker.ended_well();
}

bool another_process_takes_over_the_broker() {
  Place place;
  Node first(place.policy(), [](Node& me) {
    install();
    links().publish(qp(5, 5));
    me.say('r');
    me.hear('q');
  });
  if (!first.hear('r'))
    return false;
  Node owner(place.policy(), own); // joins the first's broker
  if (!owner.hear('r'))
    return false;
  first.kill();
  Node seeker(place.policy(), [](Node&) { ask_until_found(); });
  return seeker.ended_well();
}

bool processes_of_one_key_link_and_others_are_refused() {
  Place place;
  const auto right = place.policy("0123456789abcdef-right");
  const auto wrong = place.policy("0123456789abcdef-wrong");
  const auto none = place.policy();
  Node owner(right, own);
  if (!owner.hear('r'))
    return false;
  Node good(right, [](Node&) { CHECK_THAT(ask().verdict == Verdict::adverb); });
  if (!good.ended_well())
    return false;
  for (const auto& policy : {wrong, none}) {
    Node bad(policy, [](Node&) {
      const auto bound = ask();
      CHECK_THAT(bound.verdict == Verdict::refused &&
                 bound.reason.find("key") != bound.reason.npos);
    });
    if (!bad.ended_well())
      return false;
  }
  return true;
}

// Each with a key or without; as who asks, and as whom is asked. The software device carries
// nothing between users, so they only ask.
bool another_user_of_this_host_and_who_has_a_key_have_to_prove_themselves() {
  Place place;
  const auto open = place.policy();
  const auto closed = place.policy("0123456789abcdef-both");
  const auto become = [](uid_t user) { // what it opens from here on is theirs
    install();
    qp(here, 1, there);
    CHECK_THAT(setresuid(user, user, user) == 0);
  };
  for (const auto& policy : {open, closed})
    for (const uid_t owner_is : {0, 65533})
      for (const uid_t seeker_is : {0, 65533, 65534}) {
        Node owner(policy, [&](Node& me) {
          become(owner_is);
          own(me);
        });
        if (!owner.hear('r'))
          return false;
        Node seeker(policy, [&](Node&) {
          become(seeker_is);
          const bool vouched = policy == open && seeker_is == owner_is;
          std::promise<link::Bound> promise;
          auto bound = promise.get_future();
          links().probe(qp(here, 1, there),
                        [&](link::Bound b) { promise.set_value(std::move(b)); });
          CHECK_THAT(bound.wait_for(hangs) == std::future_status::ready);
          const auto answer = bound.get();
          CHECK_THAT(answer.verdict == Verdict::adverb);
          CHECK_THAT(answer.proven == vouched);
        });
        if (!seeker.ended_well()) {
          printf("# owner %u, seeker %u\n", owner_is, seeker_is);
          return false;
        }
      }
  return true;
}

// As on a host with two adapters: the same number on lo0 and on lo1, in two processes.
bool equal_numbers_on_two_devices_are_told_apart() {
  Place place;
  const auto own_on = [](int which) {
    return [which](Node& me) {
      install();
      for (const bool connected : {false, true}) {
        const auto q = qp(there, 20 + static_cast<uint64_t>(which), connected ? here : 0, which);
        connected ? links().connected(q) : links().publish(q);
      }
      me.say('r');
      me.hear('q');
    };
  };
  Node looker(place.policy(), [](Node& me) { me.tell(device(0) != device(1) ? 2 : 1); });
  const uint32_t devices = looker.told();
  if (!looker.ended_well())
    return false;
  if (devices == 1) {
    skipped = "one device only, nothing to tell apart";
    return true;
  }
  Node first(place.policy(), own_on(0));
  if (!first.hear('r'))
    return false;
  Node second(place.policy(), own_on(1));
  if (!second.hear('r'))
    return false;
  Node seeker(place.policy(), [](Node&) {
    install();
    for (const int which : {0, 1, 0, 1}) {
      static uint64_t handle = 0;
      const auto bound = bind(qp(here, ++handle, there, which));
      CHECK_THAT(bound.verdict == Verdict::adverb);
      CHECK_THAT(bound.remote_handle == 20 + static_cast<uint64_t>(which));
    }
  });
  return seeker.ended_well();
}

bool a_link_over_which_nothing_is_bound_ends_and_another_is_made() {
  Place place;
  Node owner(place.policy(), [](Node& me) {
    install();
    for (uint64_t i = 0; i < 3; ++i) {
      const auto shift = static_cast<uint32_t>(i);
      links().publish(qp(there + shift, 1000 + i));
      links().connected(qp(there + shift, 1000 + i, here + shift));
    }
    me.say('r');
    me.hear('q');
  });
  if (!owner.hear('r'))
    return false;
  Node seeker(place.policy(), [](Node&) {
    install();
    const auto first = bind(qp(here, 1, there));
    CHECK_THAT(first.verdict == Verdict::adverb);
    links().unbind(1);
    const auto second = bind(qp(here + 1, 2, there + 1)); // in time
    CHECK_THAT(second.channel == first.channel);
    for (const auto start = std::chrono::steady_clock::now();
         std::chrono::steady_clock::now() - start < 6s;)
      asker->exchange(*second.channel, 100);
    const auto start = std::chrono::steady_clock::now();
    links().unbind(2);
    asker->wait_down(1);
    CHECK_THAT(std::chrono::steady_clock::now() - start > 4s);
    asker->sent = asker->received = asker->wanted = 0;
    const auto third = bind(qp(here + 2, 3, there + 2));
    CHECK_THAT(third.verdict == Verdict::adverb && third.channel != first.channel);
    asker->exchange(*third.channel, 100);
  });
  return seeker.ended_well();
}

bool a_process_links_to_itself() {
  Place place;
  Node both(place.policy(), [](Node&) {
    install();
    auto& mine = links();
    mine.publish(qp(here, 1));
    mine.publish(qp(there, 2));
    mine.connected(qp(here, 1, there));
    mine.connected(qp(there, 2, here));
    const auto bound = bind(qp(here, 1, there));
    CHECK_THAT(bound.verdict == Verdict::adverb && bound.remote_handle == 2);
    asker->exchange(*bound.channel, 500);
  });
  return both.ended_well();
}

size_t open_descriptors() {
  size_t n = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++n;
  return n;
}

bool a_fork_child_holds_nothing_of_the_link_and_starts_anew() {
  Place place;
  Node parent(place.policy(), [](Node& me) {
    device(); // its descriptors are the program's
    qp(here, 0, there);
    install();
    const size_t before = open_descriptors();
    links().publish(qp(there, 2));
    links().connected(qp(there, 2, here));
    CHECK_THAT(bind(qp(here, 1, there + 1)).verdict == Verdict::stock);
    CHECK_THAT(open_descriptors() > before);
    const pid_t child = fork();
    if (child == 0) {
      forget_links();
      CHECK_THAT(open_descriptors() == before);
      me.say('k');
      CHECK_THAT(me.hear('g')); // now the parent is gone, whose port we must not hold
      install();
      links().publish(qp(there, 3));
      links().connected(qp(there, 3, here));
      me.say('r');
      me.hear('q');
      _exit(0);
    }
    pause();
  });
  if (!parent.hear('k'))
    return false;
  parent.kill();
  parent.say('g');
  if (!parent.hear('r'))
    return false;
  Node seeker(place.policy(), [](Node&) { ask_until_found(); });
  const bool good = seeker.ended_well();
  parent.say('q');
  return good;
}

bool links_come_and_go_without_growing() {
  Place place;
  Node owner(place.policy(), own);
  if (!owner.hear('r'))
    return false;
  const auto visit = [](Node&) {
    const auto bound = ask();
    CHECK_THAT(bound.verdict == Verdict::adverb);
    asker->exchange(*bound.channel, 64);
  };
  const auto descriptors = [&] {
    size_t n = 0;
    const auto path = "/proc/" + std::to_string(owner.pid()) + "/fd";
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path))
      ++n;
    return n;
  };
  size_t settled = 0;
  for (int i = 0; i < 12; ++i) {
    Node seeker(place.policy(), visit);
    if (!seeker.ended_well())
      return false;
    if (i == 3)
      settled = descriptors();
  }
  // The last one's end is seen a little later.
  const auto start = std::chrono::steady_clock::now();
  while (descriptors() > settled && std::chrono::steady_clock::now() - start < hangs)
    std::this_thread::yield();
  return descriptors() <= settled;
}

constexpr Case cases[] = {
    CASE(messages_arrive_both_ways_in_order_and_whole),
    CASE(queue_pairs_of_one_pair_of_processes_share_a_channel),
    CASE(each_protocol_has_a_channel_of_its_own_with_messages_of_its_own_length),
    CASE(a_protocol_the_peer_does_not_serve_is_refused),
    CASE(a_target_not_yet_connected_is_waited_for),
    CASE(a_target_never_connected_is_waited_for_as_long_as_the_device_would_try),
    CASE(a_host_without_adverb_is_stock_at_once),
    CASE(a_queue_pair_that_nobody_registered_is_stock),
    CASE(a_queue_pair_withdrawn_is_not_found_and_its_successor_is),
    CASE(the_death_of_the_peer_is_told_once),
    CASE(another_process_takes_over_the_broker),
    CASE(processes_of_one_key_link_and_others_are_refused),
    CASE_AS_ROOT(another_user_of_this_host_and_who_has_a_key_have_to_prove_themselves),
    CASE(equal_numbers_on_two_devices_are_told_apart),
    CASE(a_link_over_which_nothing_is_bound_ends_and_another_is_made),
    CASE(a_process_links_to_itself),
    CASE(packets_carry_a_channel_whole_and_in_order),
    CASE(a_far_path_that_loses_is_found_to_be_worth_packets),
    CASE(a_near_path_is_sounded_and_left_to_the_device),
    CASE(without_room_for_packets_the_device_carries_the_channel),
    CASE(a_fork_child_holds_nothing_of_the_link_and_starts_anew),
    CASE(links_come_and_go_without_growing),
};

} // namespace

int main(int argc, char** argv) {
  return run(cases, argc, argv);
}
