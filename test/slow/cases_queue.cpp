// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// One slow page, and the other queue pairs of the process; and what is behind it on its own.
#include "cases.h"

#include <algorithm>
#include <csignal>
#include <cstring>

namespace slow {
namespace {

const std::vector<unsigned> others{1, 2, 3};
constexpr size_t flag_at = scratch - 64; // in the fast region

// Slow pages of a case that asks for so many at once.
size_t pages_for(const Options& options, unsigned at_once) {
  return std::max<size_t>(options.pages, at_once);
}

// Before which rounds there is one without a slow page, to compare with: before each where a
// millisecond is looked at. The longest of more requests is longer, whatever they wait for, and
// what else the machine does has to be the same.
bool has_one_without(const Options& options, size_t round) {
  return options.strict || round % 4 == 0;
}

void judge(const Options& options, const char* whose, const Waits& with, const Waits& without) {
  const auto count = [](uint64_t n) { return static_cast<unsigned long long>(n); };
  note("%s: longest of %llu requests %.2f ms, %llu longer than 1 ms; without slow pages of %llu "
       "%.2f ms, %llu",
       whose, count(with.requests), with.longest, count(with.late), count(without.requests),
       without.longest, count(without.late));
  if (options.strict && with.longest > without.longest + 1)
    complain("%s: a request waited more than 1 ms longer than without slow pages", whose);
}

// The queue pairs that ask for slow pages, each for one at the same time.
std::vector<unsigned> slow_queues(unsigned at_once) {
  std::vector<unsigned> queues{slow_queue};
  for (unsigned i = 1; i < at_once; ++i)
    queues.push_back(usual_queues + i - 1);
  return queues;
}

// A FETCH_ADD adds nothing.
size_t bytes_of(ibv_wr_opcode opcode) {
  return opcode == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : small;
}

// The pages of the peer: the slow queue pairs ask for one after the other, each with so many
// requests of ordinary memory behind it.
void others_initiator(End& end, ibv_wr_opcode opcode, unsigned at_once, unsigned behind) {
  const Options& options = end.options();
  warm_up(end);
  end.meet();
  Waits without, with;
  const std::vector<unsigned> askers = slow_queues(at_once);
  const auto local = [&](size_t k) { return end.fast().memory + scratch + k * small; };
  const auto round = [&](size_t first, bool slow) {
    std::vector<uint64_t> done;
    for (size_t k = 0; k < at_once; ++k) {
      if (opcode == IBV_WR_RDMA_WRITE)
        fill(local(k), small, 0xA00 + first + k);
      Request request = slow_request(end, opcode, first + k, bytes_of(opcode));
      if (!slow)
        request.remote = end.peer_slow().memory;
      request.local = local(k);
      done.push_back(end.queue(askers[k]).done);
      end.post(askers[k], request);
      for (unsigned n = 0; n < behind; ++n)
        end.post(askers[k], small_request(end, slow_queue, opcode == IBV_WR_RDMA_READ));
    }
    const Waits waits =
        traffic(end, others, {0, 1}, options.requests, [&] { return !slow || end.awaited(); });
    (slow ? with : without).add(waits);
    if (slow) {
      end.heard();
      for (size_t k = 0; k < at_once; ++k)
        if (!options.pinned && end.queue(askers[k]).done != done[k])
          complain("a slow request completed before its page came");
      end.go_on();
    }
    for (size_t k = 0; k < at_once; ++k) {
      if (!end.wait(askers[k]))
        complain("the request that met the slow page does not complete well");
      if (slow && opcode != IBV_WR_RDMA_WRITE &&
          !matches(local(k), bytes_of(opcode), SlowPages::value(first + k)))
        complain("the %s of a slow page met other bytes", said(opcode));
    }
    end.meet();
  };
  for (size_t i = 0; i < pages_for(options, at_once) / at_once; ++i) {
    if (has_one_without(options, i))
      round(i * at_once, false);
    round(i * at_once, true);
  }
  judge(options, "other queue pairs", with, without);
}

void others_owner(End& end, ibv_wr_opcode opcode, Habit habit, unsigned at_once) {
  const Options& options = end.options();
  if (habit == Habit::polls)
    end.start_polling();
  Waits own_without, own;
  const auto go_about_its_business = [&](Waits& waits) {
    if (habit == Habit::asks)
      waits.add(traffic(end, {2, 3}, {1}, options.requests));
    if (habit == Habit::polls)
      end.await_polls(options.requests);
  };
  if (habit == Habit::asks)
    warm_up(end);
  end.meet();
  const size_t pages = pages_for(options, at_once) / at_once * at_once;
  for (size_t first = 0; first < pages; first += at_once) {
    if (has_one_without(options, first / at_once)) {
      go_about_its_business(own_without);
      end.meet();
    }
    end.away(first + at_once);
    go_about_its_business(own);
    end.heard();
    for (size_t i = first; i < first + at_once; ++i)
      end.pages()->come_now(i);
    end.meet();
  }
  if (habit == Habit::asks)
    judge(options, "the owner's own requests", own, own_without);
  if (!options.pinned && end.pages()->asked() != pages)
    complain("%zu of %zu pages were asked for", end.pages()->asked(), pages);
  for (size_t i = 0; i < pages && opcode == IBV_WR_RDMA_WRITE; ++i)
    if (!matches(end.slow_page(i), small, 0xA00 + i))
      complain("the bytes of the WRITE to slow page %zu are not there", i);
}

// A request over several pages, one of which is slow; meanwhile another queue pair asks for one of
// them that is there.
void spanned_initiator(End& end, ibv_wr_opcode opcode) {
  const Options& options = end.options();
  warm_up(end);
  Waits with, without;
  for (size_t i = 0; i < options.pages; ++i)
    for (const bool slow : {false, true}) {
      Request request = slow_request(end, opcode, i, large);
      if (!slow)
        request.remote = end.peer_slow().memory;
      end.post(slow_queue, request);
      (slow ? with : without)
          .add(traffic(
              end, {2}, {0, 1}, options.requests, [&] { return !slow || end.awaited(); },
              [&](unsigned queue, bool) {
                Request other = small_request(end, queue, true);
                other.remote = request.remote;
                other.rkey = request.rkey;
                return other;
              }));
      if (slow) {
        end.heard();
        if (!options.pinned && end.idle(slow_queue))
          complain("a slow request completed before its page came");
        end.go_on();
      }
      if (!end.wait(slow_queue))
        complain("the slow request does not complete well");
    }
  judge(options, "another queue pair, at a page that is there", with, without);
  end.meet();
}

void spanned_owner(End& end) {
  for (size_t i = 0; i < end.options().pages; ++i) {
    end.away(i + 1);
    end.heard();
    end.pages()->come_now(i);
  }
  end.meet();
}

// A slow request on queue pair 0 and a flag behind it: the flag says that the bytes are there.
constexpr size_t order_rounds = 4;

void order_initiator(End& end, ibv_wr_opcode opcode) {
  warm_up(end);
  for (size_t i = 0; i < order_rounds; ++i) {
    std::byte* local = end.fast().memory + scratch;
    const size_t bytes = i % 2 == 0 ? small : large;
    if (opcode == IBV_WR_RDMA_WRITE)
      fill(local, bytes, 0xB00 + i);
    const uint64_t flag = i + 1;
    std::byte* flag_from = end.fast().memory + flag_at;
    memcpy(flag_from, &flag, sizeof flag);
    end.meet();
    const uint64_t done = end.queue(slow_queue).done;
    end.post(slow_queue, slow_request(end, opcode, i, bytes));
    // Behind a READ only a fence keeps a WRITE.
    end.post(slow_queue, {IBV_WR_RDMA_WRITE, flag_from, end.fast().mr->lkey, sizeof flag,
                          end.peer_fast().memory + flag_at, end.peer_fast().rkey,
                          opcode == IBV_WR_RDMA_READ ? static_cast<unsigned>(IBV_SEND_FENCE) : 0});
    // And a READ that must meet what was written.
    std::byte* again = local + scratch / 2;
    Request read = slow_request(end, IBV_WR_RDMA_READ, i, bytes);
    read.local = again;
    end.post(slow_queue, read);
    // While the page is away: what does not wait for it is there by then.
    traffic(end, others, {0, 1}, end.options().requests, [&] { return end.awaited(); });
    end.heard();
    if (!end.options().pinned && end.queue(slow_queue).done != done)
      complain("a slow request completed before its page came");
    end.go_on();
    if (!end.wait(slow_queue))
      complain("requests of the slow queue pair do not complete well: status %d",
               end.queue(slow_queue).status.load());
    const size_t at = lead(bytes); // of the slow page among the bytes
    const bool good =
        opcode == IBV_WR_RDMA_WRITE
            ? matches(again, bytes, 0xB00 + i)
            : matches(local + at, std::min(bytes - at, page_bytes), SlowPages::value(i));
    if (!good)
      complain("a READ of %zu bytes with a slow page met other bytes", bytes);
    end.meet();
  }
}

void order_owner(End& end, ibv_wr_opcode opcode, Habit habit) {
  if (habit == Habit::polls)
    end.start_polling();
  for (size_t i = 0; i < order_rounds; ++i) {
    const size_t bytes = i % 2 == 0 ? small : large;
    end.meet();
    const auto* flag = reinterpret_cast<uint64_t*>(end.fast().memory + flag_at);
    const auto flagged = [&] { return __atomic_load_n(flag, __ATOMIC_ACQUIRE) == i + 1; };
    end.away(i + 1);
    end.heard();
    if (!end.options().pinned && flagged())
      complain("the flag came before the slow page of the request before it");
    end.pages()->come_now(i);
    const auto until = Clock::now() + hangs;
    while (!flagged()) {
      must_not_hang(Clock::now() < until, "the flag behind the slow request does not come");
      std::this_thread::yield();
    }
    if (opcode == IBV_WR_RDMA_WRITE && !matches(end.slow_page(i) - lead(bytes), bytes, 0xB00 + i))
      complain("the flag came before the bytes of the slow request before it");
    end.meet();
  }
  if (!end.options().pinned && end.pages()->asked() != order_rounds)
    complain("%zu of %zu pages were asked for", end.pages()->asked(), order_rounds);
}

// The slow pages are the initiator's own: where a READ goes, or what a WRITE takes. A thread of its
// own posts there; another one has the completion queue of queue pair 0, and a third the other.
enum class Manner {
  plain,
  masked, // by a thread that blocks all signals
  inlined,
  polled // it is posted, and polled for into the slow page, which nobody has registered for that
};

void post_locally(End& end, const Request& request, Manner manner) {
  if (manner == Manner::masked) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
  }
  // Requests whose answers are still to come.
  for (int i = 0; i < 4 && manner != Manner::plain; ++i) {
    Request other = request;
    other.local = end.slow_region().memory;
    end.post(slow_queue, other);
  }
  if (manner == Manner::polled) {
    auto* into = reinterpret_cast<ibv_wc*>(const_cast<std::byte*>(request.local));
    while (!end.idle(slow_queue))
      end.poll(0, into, 1);
    return;
  }
  Request mine = request;
  mine.flags |= manner == Manner::inlined ? static_cast<unsigned>(IBV_SEND_INLINE) : 0;
  end.post(slow_queue, mine);
}

void local_initiator(End& end, ibv_wr_opcode opcode, size_t bytes, Manner manner) {
  const Options& options = end.options();
  warm_up(end);
  // The region is one that has been sent from.
  for (int i = 0; i < 4; ++i) {
    end.post(slow_queue, {opcode, end.slow_region().memory, end.slow_region().mr->lkey, bytes,
                          end.peer_slow().memory, end.peer_slow().rkey});
    must(end.wait(slow_queue), "a request of local memory");
  }
  const size_t rounds = std::max<size_t>(options.pages / 2, 1);
  Waits sharing, apart, sharing_without, apart_without;
  const auto round = [&](size_t i, bool with) {
    std::byte* local = with ? end.slow_page(i) - lead(bytes) : end.slow_region().memory;
    const bool away = with && !options.pinned;
    std::atomic<bool> posted{false};
    std::thread poster([&] {
      post_locally(end,
                   {opcode, local, end.slow_region().mr->lkey, bytes, end.peer_slow().memory,
                    end.peer_slow().rkey},
                   manner);
      posted = true;
    });
    const auto begun = [&] {
      return away ? end.pages()->asked() > i : posted && end.idle(slow_queue);
    };
    Waits second;
    std::thread other([&] { second = traffic(end, {2, 3}, {1}, options.requests, begun); });
    // Who polls into the slow page has that completion queue.
    const Waits first =
        manner == Manner::polled ? Waits{} : traffic(end, {1}, {0}, options.requests, begun);
    other.join();
    if (away) {
      if (end.idle(slow_queue))
        complain("the request of local slow memory completed before its page came");
      end.pages()->come_now(i);
    }
    poster.join();
    (with ? sharing : sharing_without).add(first);
    (with ? apart : apart_without).add(second);
    if (!end.wait(slow_queue)) {
      complain("the request of local slow memory does not complete well");
      return;
    }
    // The peer's page has zeros, or what was written last.
    if (manner == Manner::polled)
      return;
    if (with && opcode == IBV_WR_RDMA_READ &&
        !std::all_of(local, local + bytes, [](std::byte b) { return b == std::byte{0}; }))
      complain("the READ to a slow page left other bytes");
    if (with && opcode == IBV_WR_RDMA_WRITE) {
      std::byte* check = end.fast().memory + scratch;
      Request read = slow_request(end, IBV_WR_RDMA_READ, 0, small);
      read.local = check;
      read.remote = end.peer_slow().memory + lead(bytes);
      end.post(slow_queue, read);
      if (!end.wait(slow_queue) || !matches(check, small, SlowPages::value(i)))
        complain("the WRITE from a slow page brought other bytes");
    }
  };
  for (size_t i = 0; i < rounds && complaints() == 0; ++i) {
    if (has_one_without(options, i))
      round(i, false);
    round(i, true);
  }
  if (!options.pinned && end.pages()->asked() != rounds)
    complain("%zu of %zu pages were asked for", end.pages()->asked(), rounds);
  judge(options, "another completion queue", apart, apart_without);
  judge(options, "the same completion queue", sharing, sharing_without);
  end.meet();
}

} // namespace

void add_queue_cases(const Options& options, std::vector<Case>& to) {
  const auto add_others = [&](ibv_wr_opcode opcode, Habit habit, unsigned at_once,
                              unsigned behind = 0) {
    Setup setup;
    setup.slow_pages = pages_for(options, at_once);
    setup.extra_queues = at_once - 1;
    to.push_back({std::string("others_") + word(opcode) + "_" + word(habit) +
                      (at_once > 4   ? "_many"
                       : at_once > 1 ? "_several"
                                     : "") +
                      (behind != 0 ? "_followed" : ""),
                  (at_once > 1 ? std::to_string(at_once) + " slow pages at once, of " +
                                     said(opcode) + "s, delay no other queue pair; "
                               : std::string("a slow page of a ") + said(opcode) +
                                     " delays no other queue pair; ") +
                      (behind != 0 ? "as many behind it as may be; " : "") + said(habit),
                  setup, [=](End& end) { others_owner(end, opcode, habit, at_once); },
                  [=](End& end) { others_initiator(end, opcode, at_once, behind); }, ""});
  };
  for (const Habit habit : {Habit::polls, Habit::sleeps, Habit::asks})
    for (const ibv_wr_opcode opcode :
         {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD})
      add_others(opcode, habit, 1);
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ})
    add_others(opcode, opcode == IBV_WR_RDMA_READ ? Habit::sleeps : Habit::polls,
               static_cast<unsigned>(std::min<size_t>(options.pages, 4)));
  // As many as a link has credits, but one, which the others have.
  for (const ibv_wr_opcode opcode :
       {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD})
    add_others(opcode, Habit::sleeps, 7);
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    add_others(opcode, Habit::sleeps, 1, depth - 1);
    add_others(opcode, Habit::polls, static_cast<unsigned>(std::min<size_t>(options.pages, 4)),
               depth - 1);
  }
  for (const Habit habit : {Habit::polls, Habit::sleeps})
    for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
      Setup setup;
      setup.slow_pages = order_rounds;
      to.push_back({std::string("order_") + word(opcode) + "_" + word(habit),
                    std::string("a ") + said(opcode) +
                        " of a slow page is right, and what is behind it comes after; " +
                        said(habit),
                    setup, [=](End& end) { order_owner(end, opcode, habit); },
                    [=](End& end) { order_initiator(end, opcode); }, ""});
    }
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    Setup setup;
    setup.slow_pages = options.pages;
    to.push_back({std::string("spanned_") + word(opcode),
                  std::string("a slow page of a long ") + said(opcode) +
                      " delays no other queue pair at the pages beside it",
                  setup, spanned_owner, [=](End& end) { spanned_initiator(end, opcode); }, ""});
  }
  const auto add_local = [&](ibv_wr_opcode opcode, size_t bytes, Manner manner, const char* word_of,
                             const char* words) {
    Setup setup;
    setup.slow_at_owner = false;
    setup.slow_is_remote = false;
    setup.slow_pages = std::max<size_t>(options.pages / 2, 1);
    to.push_back(
        {std::string("local_") + word(opcode) + word_of,
         std::string(manner == Manner::polled ? "a slow page that completions are polled into"
                     : opcode == IBV_WR_RDMA_WRITE
                         ? "a slow page that a WRITE takes its bytes from"
                         : "a slow page that a READ brings its bytes to") +
             " delays no other queue pair" + words,
         setup, [](End& end) { end.meet(); },
         [=](End& end) { local_initiator(end, opcode, bytes, manner); }, ""});
  };
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
    add_local(opcode, small, Manner::plain, "", "");
    add_local(opcode, large, Manner::plain, "_large", "; over several pages");
    add_local(opcode, small, Manner::masked, "_masked", "; posted with all signals blocked");
  }
  add_local(IBV_WR_RDMA_WRITE, small, Manner::inlined, "_inline", "; inline");
  add_local(IBV_WR_RDMA_WRITE, small, Manner::polled, "_polled", "");
}

} // namespace slow
