// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// adverb: one command with subcommands, each in a file of its own.
#include "policy/suggest.h"
#include "tools/commands.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <exception>
#include <vector>

namespace adverb::tools {
namespace {

constexpr Command commands[] = {
    {"run", "run a program with its RDMA verbs under a policy", cmd_run},
    {"policy", "check, explain, list and show policies", cmd_policy},
    {"stat", "show what adverb counts in running programs", cmd_stat},
    {"trace", "show what adverb has decided in a running program, and why", cmd_trace},
    {"doctor", "check devices, limits and peers on this host", cmd_doctor},
    {"plan", "say how long a message takes over a link that loses packets", cmd_plan},
    {"broker", "serve the link port for the programs of this host", cmd_broker},
};

void print_help(FILE* out) {
  fputs("usage: adverb COMMAND [ARGUMENT]...\n"
        "Changes how RDMA verbs work in unmodified programs.\n\n",
        out);
  for (const Command& command : commands)
    fprintf(out, "  %-8.*s %.*s\n", static_cast<int>(command.name.size()), command.name.data(),
            static_cast<int>(command.summary.size()), command.summary.data());
  fputs("\n  adverb COMMAND --help says more; so do adverb(1) and adverb-policy(5).\n", out);
}

int run_main(int argc, char** argv) {
  if (argc < 2) {
    print_help(stderr);
    return status_usage;
  }
  const std::string_view word = argv[1];
  if (word == "--version" || word == "version") {
    puts("adverb " ADVERB_VERSION);
    return status_ok;
  }
  if (word == "--help" || word == "-h" || word == "help") {
    if (word == "help" && argc > 2) {
      const Command* command = find_command(commands, argv[2], "adverb");
      char help[] = "--help";
      char* arguments[] = {argv[2], help, nullptr};
      return command == nullptr ? status_usage : command->run(2, arguments);
    }
    print_help(stdout);
    return status_ok;
  }
  const Command* command = find_command(commands, word, "adverb");
  return command == nullptr ? status_usage : command->run(argc - 1, argv + 1);
}

} // namespace

const Command* find_command(std::span<const Command> known, std::string_view word,
                            std::string_view context) {
  const auto found = std::ranges::find(known, word, &Command::name);
  if (found != known.end())
    return &*found;
  std::vector<std::string_view> names;
  for (const Command& command : known)
    names.push_back(command.name);
  const std::string what = word.starts_with('-') ? "option" : "command";
  fprintf(stderr, "%.*s: unknown %s %s; %s\n", static_cast<int>(context.size()), context.data(),
          what.c_str(), policy::in_quotes(word).c_str(),
          policy::did_you_mean(word, names, "the commands are").c_str());
  return nullptr;
}

} // namespace adverb::tools

int main(int argc, char** argv) {
  try {
    const int status = adverb::tools::run_main(argc, argv);
    // A full disk or closed pipe must not look like success.
    if (fflush(stdout) != 0 || ferror(stdout)) {
      fprintf(stderr, "adverb: cannot write the output: %s\n", strerror(errno));
      return status == 0 ? adverb::tools::status_failed : status;
    }
    return status;
  } catch (const std::exception& failure) {
    fprintf(stderr, "adverb: %s\n", failure.what());
    return adverb::tools::status_usage;
  }
}
