// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The subcommands of `adverb`. Each gets the arguments from its own name on (argv[0] is "run") and
// returns the exit status; main.cpp finds them by name.
#pragma once

#include <span>
#include <string_view>

namespace adverb::tools {

// Exit statuses, the same in every subcommand; 126 and 127 are those of env(1) and the shells.
enum Status : int {
  status_ok = 0,
  status_failed = 1,    // the question was answered with no: a file has errors, a check failed
  status_usage = 2,     // adverb was called wrongly or cannot start: arguments, policy, library
  status_refused = 126, // the program cannot be run under adverb
  status_missing = 127, // there is no such program
};

struct Command {
  std::string_view name;
  std::string_view summary; // one line for `adverb help`
  int (*run)(int argc, char** argv);
};

int cmd_run(int argc, char** argv);
int cmd_policy(int argc, char** argv);
int cmd_stat(int argc, char** argv);
int cmd_trace(int argc, char** argv);
int cmd_doctor(int argc, char** argv);
int cmd_plan(int argc, char** argv);
int cmd_broker(int argc, char** argv);

// The command called `word`, or nullptr after saying on stderr what may have been meant. `context`
// is what comes before the word: "adverb" or "adverb policy".
const Command* find_command(std::span<const Command> commands, std::string_view word,
                            std::string_view context);

} // namespace adverb::tools
