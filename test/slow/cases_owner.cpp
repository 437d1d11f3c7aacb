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
constexpr unsigned calls_each = 10; // of a kind while a page is away

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
  if (options.strict && (with.median() > 1 || with.longest() > 10))
    complain("%s: median above 1 ms or longest above 10 ms", what);
}

void regions_initiator(End& end) {
  warm_up(end);
  for (unsigned i = 0; i < 2 * region_rounds; ++i) {
    const unsigned queue = usual_queues + i;
    end.post(queue, {IBV_WR_RDMA_WRITE, end.fast().memory, end.fast().mr->lkey, small,
                     end.peer_known(i).memory, end.peer_known(i).rkey});
    if (!end.wait(queue))
      complain("the first request of a region fails");
  }
  end.meet();
  end.meet(); // the owner's calls without slow pages
  for (unsigned i = 0; i < region_rounds; ++i) {
    end.post(slow_queue,
             slow_request(end, i % 2 == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, i, small));
    if (!end.wait(slow_queue))
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
    without.known(end, region_rounds + i);
    without.connected(end, region_rounds + i);
    for (unsigned n = 0; n < calls_each; ++n)
      without.once(end);
  }
  end.meet();
  for (unsigned i = 0; i < region_rounds; ++i) {
    must_not_hang(end.pages()->wait_asked(i + 1), "the slow page is not asked for");
    // Each returns before the page comes; WRITE and READ in turn.
    with.known(end, i);
    with.connected(end, i);
    for (unsigned n = 0; n < calls_each; ++n)
      with.once(end);
    end.pages()->come_now(i);
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
  for (unsigned n = 0; n < calls_each; ++n)
    without.once(end);
  for (size_t i = 0; i < send_bytes.size(); ++i) {
    std::thread poster([&] {
      end.post(slow_queue, {IBV_WR_SEND, end.slow_page(i) - lead(send_bytes[i]),
                            end.slow_region().mr->lkey, send_bytes[i]});
    });
    must_not_hang(end.pages()->wait_asked(i + 1), "the slow page is not asked for");
    for (unsigned n = 0; n < calls_each; ++n)
      with.once(end);
    end.pages()->come_now(i);
    poster.join();
    if (!end.wait(slow_queue))
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
constexpr size_t handler_rounds = 2; // a WRITE and a READ

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
  if (!end.wait(handler_queue))
    complain("a request of the fault's handler fails");
  note("the handler, before the page: polled after %.1f ms, registered %.1f, deregistered %.1f, "
       "posted %.1f, completed %.1f",
       polled, registered, ended, posted, ms(Clock::now() - from));
  ++finished;
}

void handler_owner(End& end, Habit habit) {
  std::atomic<unsigned> finished{0};
  // The owner's own requests, too, need a link that stands.
  end.post(handler_queue, {IBV_WR_RDMA_WRITE, end.fast().memory, end.fast().mr->lkey, small,
                           end.peer_fast().memory + scratch / 2, end.peer_fast().rkey});
  if (!end.wait(handler_queue))
    complain("the owner's first request fails");
  if (habit == Habit::polls)
    end.start_polling();
  end.pages()->before_each([&] { call_verbs(end, finished); });
  end.pages()->come_when_asked();
  end.meet();
  for (unsigned i = 0; i < handler_rounds; ++i) {
    must_not_hang(end.pages()->wait_asked(i + 1), "the slow page is not asked for");
    const auto until = Clock::now() + hangs;
    while (finished <= i) {
      must_not_hang(Clock::now() < until, "a verb of the fault's handler");
      std::this_thread::yield();
    }
    end.meet();
  }
}

void handler_initiator(End& end) {
  warm_up(end);
  end.meet();
  for (unsigned i = 0; i < handler_rounds; ++i) {
    const ibv_wr_opcode opcode = i % 2 == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
    end.post(slow_queue, slow_request(end, opcode, i, small));
    if (!end.wait(slow_queue))
      complain("the slow %s does not complete well", said(opcode));
    end.meet();
  }
}

// ---- many slow pages at once ----

constexpr unsigned own_queues = 200; // a page each, or few
constexpr unsigned few_queues = 8;   // many pages each, one behind the other
constexpr unsigned threads_more = 40;
constexpr size_t held =
    8; // pages that are away at once before any comes: a link has no more credits

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
  const auto post = [&](size_t i) {
    std::byte* at = local.memory + i * small;
    if (many_opcode(i, queues) == IBV_WR_RDMA_WRITE)
      fill(at, small, 0xC00 + i);
    end.post(usual_queues + static_cast<unsigned>(i % queues),
             {many_opcode(i, queues), at, local.mr->lkey, small, end.peer_slow_page(i),
              end.peer_slow().rkey});
  };
  size_t posted = 0, done = 0;
  const auto post_more = [&] {
    while (posted < options.many &&
           end.has_room(usual_queues + static_cast<unsigned>(posted % queues)))
      post(posted++);
  };
  post_more();
  while (!end.awaited())
    end.poll();
  end.heard();
  end.go_on();
  auto moved = Clock::now();
  while (done < options.many) {
    post_more();
    if (!end.poll())
      std::this_thread::yield();
    const size_t before = done;
    done = 0;
    for (unsigned i = 0; i < queues; ++i)
      done += end.queue(usual_queues + i).done;
    done -= warm_requests * queues;
    moved = done == before ? moved : Clock::now();
    must_not_hang(Clock::now() < moved + hangs, "slow requests though their pages come");
  }
  note("%zu slow requests of %u queue pairs: %.0f ms", options.many, queues,
       ms(Clock::now() - from));
  for (unsigned i = 0; i < queues; ++i)
    if (end.queue(usual_queues + i).status != 0)
      complain("a slow request fails: status %d", end.queue(usual_queues + i).status.load());
  for (size_t i = 0; i < options.many; ++i)
    if (many_opcode(i, queues) == IBV_WR_RDMA_READ &&
        !matches(local.memory + i * small, small, SlowPages::value(i)))
      complain("the READ of slow page %zu met other bytes", i);
  const Waits after = traffic(end, {1, 2, 3}, {0, 1}, options.requests);
  note("other traffic afterwards: longest of %llu requests %.1f ms",
       static_cast<unsigned long long>(after.requests), after.longest);
  end.end_region(local);
  end.meet();
}

void many_owner(End& end, unsigned queues, Habit habit) {
  const Options& options = end.options();
  if (habit == Habit::polls)
    end.start_polling();
  end.meet();
  const unsigned before = threads_now();
  std::atomic<unsigned> most{before};
  end.pages()->before_each([&] { most = std::max(most.load(), threads_now()); });
  end.meet();
  end.away(std::min(held, options.many));
  end.heard();
  most = std::max(most.load(), threads_now());
  end.pages()->come_when_asked();
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
