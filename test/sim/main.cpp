// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Runs schedules until one breaks a rule; makes that one small, and says how to see it again.
#include "schedule.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <malloc.h>
#include <string>
#include <sys/personality.h>
#include <sys/prctl.h>

#include <unistd.h>

namespace {

using sim::Choices;
using sim::Outcome;

std::atomic<uint64_t> present = 0; // the seed whose schedule runs

// An assertion of the library's is a finding, too; there is no making it small.
void on_abort(int) {
  char text[64];
  const int n =
      snprintf(text, sizeof text, "# schedule of seed %" PRIu64 " ends at once\n", present.load());
  if (write(STDOUT_FILENO, text, static_cast<size_t>(n)) < 0)
    _exit(3);
}

// What is wrong, without saying with whom.
std::string sort_of(const std::string& finding) {
  std::string result;
  for (const char c : finding)
    if (isdigit(static_cast<unsigned char>(c)) == 0)
      result += c;
  return result;
}

// A schedule that still breaks the same rule, with as few and as small answers as can be found in
// the time given: stretches are left out, then answers made 0, then smaller.
std::vector<uint32_t> shrink(std::vector<uint32_t> record, const std::string& finding,
                             std::chrono::seconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  const auto on = [&] { return std::chrono::steady_clock::now() < end; };
  const auto breaks = [&](const std::vector<uint32_t>& candidate) {
    Choices choices(candidate);
    const auto findings = sim::run(choices, false).findings;
    return !findings.empty() && sort_of(findings.front()) == sort_of(finding);
  };
  for (size_t length = record.size() / 2; length >= 1; length /= 2)
    for (size_t at = 0; at + length <= record.size() && on();) {
      auto fewer = record;
      fewer.erase(fewer.begin() + static_cast<ptrdiff_t>(at),
                  fewer.begin() + static_cast<ptrdiff_t>(at + length));
      if (breaks(fewer))
        record = std::move(fewer);
      else
        at += length;
    }
  for (size_t at = 0; at < record.size() && on(); ++at)
    for (const uint32_t smaller : {0U, record[at] / 2, record[at] - 1}) {
      if (record[at] == 0 || smaller >= record[at] || !on())
        break;
      auto simpler = record;
      simpler[at] = smaller;
      if (breaks(simpler)) {
        record = std::move(simpler);
        break;
      }
    }
  return record;
}

int replay(const std::string& file) {
  std::ifstream in(file);
  std::vector<uint32_t> record;
  for (uint32_t one = 0; in >> one;)
    record.push_back(one);
  if (!in.eof() || record.empty()) {
    fprintf(stderr, "sim: %s: not a list of numbers as --replay takes it\n", file.c_str());
    return 2;
  }
  Choices choices(std::move(record));
  const Outcome outcome = sim::run(choices, true);
  for (const auto& finding : outcome.findings)
    printf("BROKEN: %s\n", finding.c_str());
  return outcome.findings.empty() ? 0 : 1;
}

size_t median(std::vector<size_t>& all) {
  if (all.empty())
    return 0;
  std::ranges::nth_element(all, all.begin() + static_cast<ptrdiff_t>(all.size() / 2));
  return all[all.size() / 2];
}

[[noreturn]] void usage(int status) {
  fputs("usage: sim [--schedules N] [--seconds N] [--seed N] [--save FILE] [--shrink SECONDS]\n"
        "       sim --replay FILE\n"
        "Runs random schedules, N at most and for so long at most, and stops at the first that\n"
        "breaks a rule of the verbs; it is made small, printed, and kept in FILE.\n",
        status == 0 ? stdout : stderr);
  exit(status);
}

} // namespace

int main(int argc, char** argv) {
  // What is leased depends on what pages are and where memory lies in them, and a schedule is to be
  // the same each time.
  prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  if (const int as = personality(0xFFFFFFFF); as >= 0 && (as & ADDR_NO_RANDOMIZE) == 0)
    if (personality(static_cast<unsigned>(as) | ADDR_NO_RANDOMIZE) >= 0)
      execv("/proc/self/exe", argv); // if it may not, seeds differ from run to run
  uint64_t schedules = 10'000;
  uint64_t seconds =
      UINT64_MAX; // none unless asked for: fewer schedules would pass for all of them
  uint64_t shrinking = 30;
  uint64_t seed = 1;
  std::string save = "sim.replay";
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--help")
      usage(0);
    if (i + 1 >= argc)
      usage(2);
    const char* value = argv[++i];
    char* end = nullptr;
    const uint64_t number = strtoull(value, &end, 10);
    if (option == "--replay")
      return replay(value);
    if (option == "--save") {
      save = value;
      continue;
    }
    if (*end != '\0' || end == value)
      usage(2);
    if (option == "--schedules")
      schedules = number;
    else if (option == "--seconds")
      seconds = number;
    else if (option == "--shrink")
      shrinking = number;
    else if (option == "--seed")
      seed = number;
    else
      usage(2);
  }
  setvbuf(stdout, nullptr, _IOLBF, 0);
  (void)signal(SIGABRT, on_abort);
  (void)signal(SIGSEGV, [](int) { abort(); });
  // What a schedule gives back the next one takes: a system call for each would cost more.
  mallopt(M_TRIM_THRESHOLD, 256 << 20);
  mallopt(M_MMAP_THRESHOLD, 64 << 20);
  const auto start = std::chrono::steady_clock::now();
  const auto spent = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  std::vector<size_t> requests;
  std::vector<size_t> queue_pairs;
  std::vector<size_t> steps;
  std::vector<size_t> switches; // of those that preempt
  uint64_t done = 0;
  for (; done < schedules && spent() < static_cast<double>(seconds); ++done) {
    present = seed + done;
    Choices choices(seed + done);
    const Outcome outcome = sim::run(choices, false);
    requests.push_back(outcome.requests);
    queue_pairs.push_back(outcome.queue_pairs);
    steps.push_back(outcome.steps);
    if (outcome.preempts)
      switches.push_back(outcome.switches);
    if (outcome.findings.empty())
      continue;
    printf("not ok - no schedule breaks a rule\n"
           "# schedule %" PRIu64 " of seed %" PRIu64 " (%.1f s): %s\n",
           done + 1, seed + done, spent(), outcome.findings.front().c_str());
    const auto small =
        shrink(choices.taken(), outcome.findings.front(), std::chrono::seconds(shrinking));
    std::ofstream out(save);
    for (const uint32_t one : small)
      out << one << ' ';
    out.close();
    printf("# made small, %zu of %zu answers; to see it again: sim --replay %s\n", small.size(),
           choices.taken().size(), save.c_str());
    replay(save);
    return 1;
  }
  printf("ok - no schedule breaks a rule\n");
  const double cpu = static_cast<double>(clock()) / CLOCKS_PER_SEC;
  printf("# %" PRIu64 " schedules in %.1f s, %.0f a second of CPU; median: %zu requests, %zu queue "
         "pairs, %zu steps\n",
         done, spent(), static_cast<double>(done) / cpu, median(requests), median(queue_pairs),
         median(steps));
  printf("# %zu of them switch threads, median: %zu times away from one that could have gone on\n",
         switches.size(), median(switches));
  return 0;
}
