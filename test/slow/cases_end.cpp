// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// A region or a queue pair ends while a request of a slow page is under way.
#include "cases.h"

#include <algorithm>

namespace slow {
namespace {

enum class Ends { region, queue, asking_queue };

constexpr std::byte fresh{0x5C};
constexpr Milliseconds late{1000}; // after the page came

// Waits for the end of a call, which may come at once or with the page, and not later.
void judge(const char* what, Clock::duration took, Clock::time_point returned,
           Clock::time_point came) {
  note("%s took %.1f ms", what, ms(took));
  if (came != Clock::time_point{} && returned > came + late)
    complain("%s returned %.0f ms after the page had come", what, ms(returned - came));
}

void owner(End& end, Ends which, Habit habit) {
  const Options& options = end.options();
  if (habit == Habit::polls)
    end.start_polling();
  end.meet();
  if (!end.pages()->wait_asked(1, patience(options)))
    complain("the slow page is not asked for");
  if (which == Ends::asking_queue) {
    end.meet(); // it is asked for
    end.meet();
    return;
  }
  const bool early = !end.pages()->has_come(0);
  const auto from = Clock::now();
  if (which == Ends::region) {
    must(ibv_dereg_mr(end.slow_region().mr) == 0, "ibv_dereg_mr");
    end.slow_region().mr = nullptr;
  } else {
    end.destroy_queue(slow_queue);
  }
  const auto returned = Clock::now();
  const bool before = !end.pages()->has_come(0);
  if (!early)
    complain("the page came before the owner could call anything");
  // From here on the memory is the owner's alone. The slow page last: who fills it may have to wait
  // for it, and a copy that still waits, too, would go on behind it.
  std::byte* const at = end.slow_page(0) - lead(large);
  std::byte* const behind = end.slow_page(0) + page_bytes;
  std::fill(at, end.slow_page(0), fresh);
  std::fill(behind, at + large, fresh);
  std::fill(end.slow_page(0), behind, fresh);
  judge(which == Ends::region ? "ibv_dereg_mr" : "ibv_destroy_qp", returned - from, returned,
        before ? Clock::time_point{} : end.pages()->last_came());
  note("it returned %s the page", before ? "before" : "after");
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
  end.post(slow_queue, slow_request(end, opcode, 0, large));
  end.meet(); // the owner's call has returned, or the page is asked for
  if (which == Ends::asking_queue) {
    const auto from = Clock::now();
    end.destroy_queue(slow_queue);
    const double took = ms(Clock::now() - from);
    note("ibv_destroy_qp of who asked took %.1f ms", took);
    if (took > ms(options.page) + ms(late))
      complain("ibv_destroy_qp took longer than the page: %.0f ms", took);
  } else {
    if (!end.wait(slow_queue, Milliseconds(30000)))
      complain("the slow request does not complete");
    const auto status = static_cast<ibv_wc_status>(end.queue(slow_queue).status.load());
    note("the slow request: %s", ibv_wc_status_str(status));
    if (status == IBV_WC_SUCCESS && opcode == IBV_WR_RDMA_READ &&
        !matches(local + lead(large), page_bytes, SlowPages::value(0)))
      complain("the READ succeeds with other bytes");
    end.meet();
  }
  const auto from = Clock::now();
  const Waits after =
      traffic(end, {1, 2, 3}, {0, 1}, [&] { return Clock::now() - from > Milliseconds(100); });
  if (after.requests < 3 || after.longest > 1000)
    complain("other queue pairs do not go on: %.0f ms", after.longest);
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
