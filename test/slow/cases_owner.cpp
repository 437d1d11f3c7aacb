// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the process whose page is slow calls meanwhile: verbs of other objects, also from the thread
// that is to bring the page; and how many threads it comes to have.
#include "cases.h"

#include <algorithm>
#include <array>
#include <dirent.h>

namespace slow {
namespace {

constexpr const char* no_page_late = "stock pins: no page is away once it is registered";

// ---- regions and queue pairs come and go ----

constexpr unsigned region_rounds = 6;
constexpr Milliseconds idle_limit{30000};

struct Calls {
  Times reg, dereg, dereg_known, create, destroy, modify_connected, destroy_connected;

  void once(End& end) {
    Region region;
    region.bytes = 16 * page_bytes;
    // Its pages are its own affair.
    region.memory = new std::byte[region.bytes];
    reg.time([&] {
      region.mr = ibv_reg_mr(end.pd(), region.memory, region.bytes,
                             IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    });
    must(region.mr != nullptr, "ibv_reg_mr");
    dereg.time([&] { must(ibv_dereg_mr(region.mr) == 0, "ibv_dereg_mr"); });
    delete[] region.memory;
    ibv_qp* qp = nullptr;
    create.time([&] { qp = end.make_qp(1); });
    destroy.time([&] { must(ibv_destroy_qp(qp) == 0, "ibv_destroy_qp"); });
  }
  // What the peer has used.
  void known(End& end, unsigned which) {
    Region& region = end.known(which);
    dereg_known.time([&] { must(ibv_dereg_mr(region.mr) == 0, "ibv_dereg_mr"); });
    region.mr = nullptr;
  }
  void connected(End& end, unsigned which) {
    ibv_qp* qp = end.queue(usual_queues + which).qp;
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_ERR;
    modify_connected.time(
        [&] { must(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0, "ibv_modify_qp"); });
    destroy_connected.time([&] { end.destroy_queue(usual_queues + which); });
  }
};

void judge(const Options& options, const char* what, const Times& with, const Times& without) {
  note("%s: %zu calls, median %.3f ms, longest %.2f ms; without slow pages %.3f and %.2f ms", what,
       with.count(), with.median(), with.longest(), without.median(), without.longest());
  if (with.count() == 0)
    complain("%s: never called", what);
  if (with.longest() > noise(options, without.longest()))
    complain("%s waited for a slow page: %.0f ms", what, with.longest());
  if (options.strict && (with.median() > 1 || with.longest() > 10))
    complain("%s: median above 1 ms or longest above 10 ms", what);
}

void regions_initiator(End& end) {
  warm_up(end);
  for (unsigned i = 0; i < 2 * region_rounds; ++i) {
    const unsigned queue = usual_queues + i;
    end.post(queue, {IBV_WR_RDMA_WRITE, end.fast().memory, end.fast().mr->lkey, small,
                     end.peer_known(i).memory, end.peer_known(i).rkey});
    if (!end.wait(queue, idle_limit) || end.queue(queue).status != 0)
      complain("the first request of a region fails");
  }
  end.meet();
  end.meet(); // the owner's calls without slow pages
  for (unsigned i = 0; i < region_rounds; ++i) {
    end.post(slow_queue,
             slow_request(end, i % 2 == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, i, small));
    if (!end.wait(slow_queue, patience(end.options())) || end.queue(slow_queue).status != 0)
      complain("the slow request does not complete well");
    end.meet();
  }
}

void regions_owner(End& end, Habit habit) {
  const Options& options = end.options();
  if (habit == Habit::polls)
    end.start_polling();
  end.meet();
  Calls without, with;
  for (unsigned i = 0; i < region_rounds; ++i) {
    const auto until = Clock::now() + options.page / 4;
    without.known(end, region_rounds + i);
    without.connected(end, region_rounds + i);
    while (Clock::now() < until)
      without.once(end);
  }
  end.meet();
  for (unsigned i = 0; i < region_rounds; ++i) {
    if (!end.pages()->wait_asked(i + 1, patience(options)))
      complain("the slow page is not asked for");
    if (end.pages()->all_asked_have_come())
      complain("the page came before the owner could call anything");
    // One kind first in each round, for what waits takes the page's whole time; WRITE and READ in
    // turn.
    if (i % 3 == 0)
      with.once(end);
    else if (i % 3 == 1)
      with.known(end, i);
    else
      with.connected(end, i);
    while (!end.pages()->all_asked_have_come())
      with.once(end);
    end.meet();
  }
  judge(options, "ibv_reg_mr", with.reg, without.reg);
  judge(options, "ibv_dereg_mr", with.dereg, without.dereg);
  judge(options, "ibv_dereg_mr of a region the peer knows", with.dereg_known, without.dereg_known);
  judge(options, "ibv_create_qp", with.create, without.create);
  judge(options, "ibv_destroy_qp", with.destroy, without.destroy);
  judge(options, "ibv_modify_qp of a connected one", with.modify_connected,
        without.modify_connected);
  judge(options, "ibv_destroy_qp of a connected one", with.destroy_connected,
        without.destroy_connected);
}

// ---- the same where the slow page is its own, and a SEND takes its bytes from it ----

constexpr std::array send_bytes = {small, small, size_t{2048}, large, small};

void send_owner(End& end) {
  for (const size_t bytes : send_bytes) {
    ibv_sge sge{reinterpret_cast<uintptr_t>(end.fast().memory), static_cast<uint32_t>(bytes),
                end.fast().mr->lkey};
    ibv_recv_wr wr{};
    wr.sg_list = &sge;
    wr.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    must(ibv_post_recv(end.queue(slow_queue).qp, &wr, &bad) == 0, "ibv_post_recv");
  }
  end.meet();
  end.meet();
}

void send_initiator(End& end) {
  const Options& options = end.options();
  warm_up(end);
  end.meet();
  Calls without, with;
  const auto until = Clock::now() + options.page;
  while (Clock::now() < until)
    without.once(end);
  for (size_t i = 0; i < send_bytes.size(); ++i) {
    std::thread poster([&] {
      end.post(slow_queue, {IBV_WR_SEND, end.slow_page(i) - lead(send_bytes[i]),
                            end.slow_region().mr->lkey, send_bytes[i]});
    });
    if (!end.pages()->wait_asked(i + 1, patience(options)))
      complain("the slow page is not asked for");
    while (!end.pages()->all_asked_have_come())
      with.once(end);
    poster.join();
    if (!end.wait(slow_queue, patience(options)) || end.queue(slow_queue).status != 0)
      complain("the SEND from a slow page does not complete well");
  }
  judge(options, "ibv_reg_mr", with.reg, without.reg);
  judge(options, "ibv_dereg_mr", with.dereg, without.dereg);
  judge(options, "ibv_create_qp", with.create, without.create);
  judge(options, "ibv_destroy_qp", with.destroy, without.destroy);
  end.meet();
}

// ---- the thread that brings the page calls verbs before it does ----

constexpr unsigned handler_queue = 2;
constexpr size_t handler_rounds = 2;     // a WRITE and a READ
constexpr Milliseconds call_limit{1000}; // of one verb
constexpr Milliseconds handler_limit{3000};
constexpr Milliseconds guard_limit{6000};

// In the thread that brings the pages.
void call_verbs(End& end, std::atomic<unsigned>& finished) {
  const auto from = Clock::now();
  end.poll();
  const double polled = ms(Clock::now() - from);
  Region region = end.make_region(16 * page_bytes);
  const double registered = ms(Clock::now() - from);
  end.end_region(region);
  const double ended = ms(Clock::now() - from);
  end.post(handler_queue, {IBV_WR_RDMA_WRITE, end.fast().memory, end.fast().mr->lkey, small,
                           end.peer_fast().memory + scratch / 2, end.peer_fast().rkey});
  const double posted = ms(Clock::now() - from);
  const bool done = end.wait(handler_queue, handler_limit);
  note("the handler, before the page: polled after %.1f ms, registered %.1f, deregistered %.1f, "
       "posted %.1f, %s %.1f",
       polled, registered, ended, posted, done ? "completed" : "gave up", ms(Clock::now() - from));
  if (std::max({polled, registered - polled, ended - registered, posted - ended}) > ms(call_limit))
    complain("a call of the fault's handler waits for the page it is to bring");
  if (!done)
    complain("a request of the fault's handler does not complete while the page is away");
  ++finished;
}

void handler_owner(End& end, Habit habit) {
  // Not of this frame: the handler may be stuck for longer.
  const auto calls = std::make_shared<std::atomic<unsigned>>(0);
  std::atomic<unsigned>& finished = *calls;
  // The owner's own requests, too, need a link that stands.
  end.post(handler_queue, {IBV_WR_RDMA_WRITE, end.fast().memory, end.fast().mr->lkey, small,
                           end.peer_fast().memory + scratch / 2, end.peer_fast().rkey});
  if (!end.wait(handler_queue, idle_limit) || end.queue(handler_queue).status != 0)
    complain("the owner's first request fails");
  if (habit == Habit::polls)
    end.start_polling();
  end.pages()->before_each([&end, calls] { call_verbs(end, *calls); });
  end.pages()->take(Milliseconds(0));
  end.meet();
  for (unsigned i = 0; i < handler_rounds; ++i) {
    if (!end.pages()->wait_asked(i + 1, patience(end.options())))
      complain("the slow page is not asked for");
    const auto finishes = [&](Milliseconds limit) {
      const auto until = Clock::now() + limit;
      while (finished <= i && Clock::now() < until)
        std::this_thread::yield();
      return finished > i;
    };
    // Nothing hangs: what the handler could not do, and so the page, comes by this thread. And the
    // next one, too, where the handler waits for a copy that met it, and so nobody hears of it.
    if (!finishes(guard_limit)) {
      complain("the fault's handler is stuck in a verb");
      end.pages()->come_now(i);
      if (!finishes(guard_limit / 3))
        end.pages()->come_now();
    }
    end.meet();
  }
  const auto until = Clock::now() + guard_limit;
  while (finished < handler_rounds && Clock::now() < until)
    std::this_thread::yield();
}

void handler_initiator(End& end) {
  warm_up(end);
  end.meet();
  for (unsigned i = 0; i < handler_rounds; ++i) {
    const ibv_wr_opcode opcode = i % 2 == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
    end.post(slow_queue, slow_request(end, opcode, i, small));
    if (!end.wait(slow_queue, 4 * guard_limit) || end.queue(slow_queue).status != 0)
      complain("the slow %s does not complete well", said(opcode));
    end.meet();
  }
}

// ---- many slow pages at once ----

constexpr unsigned own_queues = 200; // a page each, or few
constexpr unsigned few_queues = 8;   // many pages each, one behind the other
constexpr unsigned threads_more = 40;

unsigned threads_now() {
  unsigned count = 0;
  DIR* tasks = opendir("/proc/self/task");
  must(tasks != nullptr, "/proc/self/task");
  while (const dirent* entry = readdir(tasks))
    count += entry->d_name[0] != '.' ? 1 : 0;
  closedir(tasks);
  return count;
}

unsigned many_queues(const Options& options, unsigned at_most) {
  return static_cast<unsigned>(std::min<size_t>(options.many, at_most));
}

// Each queue pair writes or reads.
ibv_wr_opcode many_opcode(size_t which, unsigned queues) {
  return which % queues % 2 == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
}

void many_initiator(End& end, unsigned queues) {
  const Options& options = end.options();
  warm_up(end);
  end.meet();
  end.meet(); // the owner has counted its threads
  Region local = end.make_region(options.many * small);
  const auto from = Clock::now();
  const auto until = from + options.page / 4 * static_cast<int>(options.many) + Milliseconds(30000);
  const auto post = [&](size_t i) {
    std::byte* at = local.memory + i * small;
    if (many_opcode(i, queues) == IBV_WR_RDMA_WRITE)
      fill(at, small, 0xC00 + i);
    end.post(usual_queues + static_cast<unsigned>(i % queues),
             {many_opcode(i, queues), at, local.mr->lkey, small, end.peer_slow_page(i),
              end.peer_slow().rkey});
  };
  size_t posted = 0;
  bool all = false;
  while (!all && Clock::now() < until) {
    while (posted < options.many &&
           end.has_room(usual_queues + static_cast<unsigned>(posted % queues)))
      post(posted++);
    if (!end.poll())
      std::this_thread::yield();
    all = posted == options.many;
    for (unsigned i = 0; i < queues; ++i)
      all = all && end.idle(usual_queues + i);
  }
  note("%zu slow requests of %u queue pairs: %.0f ms", options.many, queues,
       ms(Clock::now() - from));
  if (!all)
    complain("slow requests do not complete though their pages come");
  for (unsigned i = 0; i < queues; ++i)
    if (end.queue(usual_queues + i).status != 0)
      complain("a slow request fails: status %d", end.queue(usual_queues + i).status.load());
  for (size_t i = 0; i < options.many; ++i)
    if (many_opcode(i, queues) == IBV_WR_RDMA_READ &&
        !matches(local.memory + i * small, small, SlowPages::value(i)))
      complain("the READ of slow page %zu met other bytes", i);
  const auto again = Clock::now();
  const Waits after =
      traffic(end, {1, 2, 3}, {0, 1}, [&] { return Clock::now() - again > Milliseconds(100); });
  note("other traffic afterwards: %llu requests in 100 ms, longest %.1f ms",
       static_cast<unsigned long long>(after.requests), after.longest);
  if (after.requests < 3 || after.longest > 1000)
    complain("other traffic does not start again");
  end.end_region(local);
  end.meet();
}

void many_owner(End& end, unsigned queues, Habit habit) {
  const Options& options = end.options();
  if (habit == Habit::polls)
    end.start_polling();
  end.pages()->take(options.page / 4);
  end.meet();
  const unsigned before = threads_now();
  std::atomic<unsigned> most{before};
  end.pages()->before_each([&] { most = std::max(most.load(), threads_now()); });
  end.meet();
  end.meet(); // all is done
  note("threads: %u before, %u at most, %u after; %zu pages away at once", before, most.load(),
       threads_now(), end.pages()->most_at_once());
  if (most > before + threads_more)
    complain("the owner has %u threads more than before", most - before);
  if (end.pages()->asked() != options.many)
    complain("%zu of %zu pages were asked for", end.pages()->asked(), options.many);
  for (size_t i = 0; i < options.many; ++i)
    if (many_opcode(i, queues) == IBV_WR_RDMA_WRITE && end.pages()->has_come(i) &&
        !matches(end.slow_page(i), small, 0xC00 + i))
      complain("the bytes of the WRITE to slow page %zu are not there", i);
}

} // namespace

void add_owner_cases(const Options& options, std::vector<Case>& to) {
  const auto name = [](const char* what, Habit habit) {
    return std::string(what) + "_" + word(habit);
  };
  const auto promise = [](const char* what, Habit habit) {
    return std::string(what) + "; " + said(habit);
  };
  for (const Habit habit : {Habit::polls, Habit::sleeps}) {
    Setup setup;
    setup.slow_pages = region_rounds;
    setup.extra_queues = setup.known = 2 * region_rounds;
    to.push_back({name("regions", habit),
                  promise("regions and queue pairs come and go while a page is away", habit), setup,
                  [=](End& end) { regions_owner(end, habit); }, regions_initiator, no_page_late});
  }
  Setup local;
  local.slow_at_owner = false;
  local.slow_pages = send_bytes.size();
  to.push_back({"local_SEND", "regions and queue pairs come and go while a SEND's page is away",
                local, send_owner, send_initiator, no_page_late});
  for (const Habit habit : {Habit::polls, Habit::sleeps}) {
    Setup setup;
    setup.slow_pages = handler_rounds;
    to.push_back({name("handler", habit),
                  promise("who brings a page may call verbs before it comes", habit), setup,
                  [=](End& end) { handler_owner(end, habit); }, handler_initiator, no_page_late});
  }
  for (const unsigned at_most : {own_queues, few_queues})
    for (const Habit habit : {Habit::polls, Habit::sleeps}) {
      const unsigned queues = many_queues(options, at_most);
      Setup setup;
      setup.slow_pages = options.many;
      setup.extra_queues = queues;
      const bool few = at_most == few_queues;
      to.push_back(
          {name(few ? "many_of_few" : "many", habit),
           promise(few ? "many slow pages of few queue pairs take few threads, and all "
                         "requests complete"
                       : "many slow pages at once take few threads, and all requests complete",
                   habit),
           setup, [=](End& end) { many_owner(end, queues, habit); },
           [=](End& end) { many_initiator(end, queues); }, no_page_late});
    }
}

} // namespace slow
