// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A region or a queue pair ends while a request of a slow page is under way.
#include "cases.h"

#include <algorithm>

namespace slow {
namespace {

enum class Ends { region, queue, asking_queue };

constexpr std::byte fresh{0x5C};
void owner(End& end, Ends which, Habit habit) {
  if (habit == Habit::polls)
    end.start_polling();
  end.meet();
  end.away(1);
  if (which == Ends::asking_queue) {
    end.heard();
    end.pages()->come_now(0);
    end.meet();
    return;
  }
  // It may return at once, or when the page comes.
  std::atomic<bool> returned{false};
  std::thread caller([&] {
    if (which == Ends::region) {
      must(ibv_dereg_mr(end.slow_region().mr) == 0, "ibv_dereg_mr");
      end.slow_region().mr = nullptr;
    } else {
      end.destroy_queue(slow_queue);
    }
    returned = true;
  });
  end.heard(); // others have gone on
  std::byte* const at = end.slow_page(0) - lead(large);
  std::byte* const behind = end.slow_page(0) + page_bytes;
  const auto fill_others = [&] {
    std::fill(at, end.slow_page(0), fresh);
    std::fill(behind, at + large, fresh);
  };
  const auto fill_slow = [&] { std::fill(end.slow_page(0), behind, fresh); };
  const bool before = returned;
  note("it %s before the page", before ? "returned" : "has not returned");
  // Once it has returned the memory is the owner's alone. The slow page last: who fills it may have
  // to wait for it, and a copy that still waits, too, would go on behind it.
  if (before) {
    fill_others();
    std::thread filler(fill_slow);
    end.pages()->come_now(0);
    filler.join();
    caller.join();
  } else {
    end.pages()->come_now(0);
    caller.join();
    fill_others();
    fill_slow();
  }
  end.meet(); // it has returned
  end.meet(); // the request has completed
  const auto changed = std::count_if(at, at + large, [](std::byte b) { return b != fresh; });
  if (changed != 0)
    complain("%td bytes were written after the call had returned", changed);
  end.meet(); // and others have gone on
  if (std::any_of(at, at + large, [](std::byte b) { return b != fresh; }))
    complain("bytes were written later");
}

void initiator(End& end, ibv_wr_opcode opcode, Ends which) {
  const Options& options = end.options();
  warm_up(end);
  std::byte* local = end.fast().memory + scratch;
  if (opcode == IBV_WR_RDMA_WRITE)
    fill(local, large, 0xE00);
  end.meet();
  const auto others_go_on = [&](const std::function<bool()>& begun) {
    traffic(end, {1, 2, 3}, {0, 1}, options.requests, begun);
  };
  end.post(slow_queue, slow_request(end, opcode, 0, large));
  if (which == Ends::asking_queue) {
    others_go_on([&] { return end.awaited(); });
    end.heard();
    std::thread caller([&] { end.destroy_queue(slow_queue); });
    others_go_on([] { return true; });
    end.go_on();
    caller.join();
  } else {
    others_go_on([&] { return end.awaited(); }); // the owner's call is under way
    end.heard();
    end.go_on();
    end.meet(); // it has returned
    end.wait(slow_queue);
    const auto status = static_cast<ibv_wc_status>(end.queue(slow_queue).status.load());
    note("the slow request: %s", ibv_wc_status_str(status));
    if (status == IBV_WC_SUCCESS && opcode == IBV_WR_RDMA_READ &&
        !matches(local + lead(large), page_bytes, SlowPages::value(0)))
      complain("the READ succeeds with other bytes");
    end.meet();
  }
  others_go_on([] { return true; });
  end.meet();
}

} // namespace

void add_end_cases(const Options& options, std::vector<Case>& to) {
  (void)options;
  Setup setup;
  setup.slow_pages = 1;
  const auto add = [&](std::string name, std::string promise, Ends which, ibv_wr_opcode opcode,
                       Habit habit) {
    to.push_back({std::move(name) + "_" + word(opcode) + "_" + word(habit),
                  std::move(promise) + " a slow " + said(opcode) + "; " + said(habit), setup,
                  [=](End& end) { owner(end, which, habit); },
                  [=](End& end) { initiator(end, opcode, which); },
                  "stock pins: no page is away once it is registered"});
  };
  for (const Habit habit : {Habit::polls, Habit::sleeps})
    for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
      add("dereg", "a region ends, and nothing is written later, under", Ends::region, opcode,
          habit);
      add("destroy", "a queue pair ends, and nothing is written later, under", Ends::queue, opcode,
          habit);
    }
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ})
    add("destroy_asking", "the queue pair that asked ends under", Ends::asking_queue, opcode,
        Habit::sleeps);
}

} // namespace slow
