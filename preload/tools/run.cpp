// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// adverb run: everything that can go wrong is found and said before the program starts.
#include "policy/suggest.h"
#include "tools/choice.h"
#include "tools/commands.h"
#include "tools/explain.h"
#include "tools/library.h"
#include "tools/program.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <getopt.h>
#include <unistd.h>

namespace adverb::tools {
namespace {

constexpr const char* usage =
    "usage: adverb run [OPTION]... [--] PROGRAM [ARGUMENT]...\n"
    "Runs a program with libadverb.so preloaded.\n\n"
    "  --profile NAME  use this profile of adverb (adverb policy list)\n"
    "  --policy FILE   use this policy file\n"
    "  --log LEVEL     write messages of this level on: debug, info, warn, error; off: none\n"
    "  --no-children   leave the programs that PROGRAM starts alone\n"
    "  --dry-run       print what would be done, and do nothing\n"
    "  --quiet         print no note if there may be nothing to intercept\n"
    "  --help          this text\n\n"
    "Exit status: that of PROGRAM; 2 if adverb was called wrongly or its policy has errors,\n"
    "126 if PROGRAM cannot be run under adverb, 127 if it is not found.\n";

struct Options {
  PolicyChoice choice;
  std::string log;
  bool no_children = false;
  bool dry_run = false;
  bool quiet = false;
};

bool parse_log(Options& options, std::string_view level) {
  static constexpr std::string_view levels[] = {"debug", "info", "warn", "error", "off"};
  if (std::ranges::find(levels, level) == std::end(levels)) {
    fprintf(stderr, "adverb run: --log: unknown level %s; %s\n", policy::in_quotes(level).c_str(),
            policy::did_you_mean(level, levels, "the levels are").c_str());
    return false;
  }
  options.log = level;
  return true;
}

// What getopt_long did not understand, with the nearest option.
void report_option(const char* argument, std::span<const option> known) {
  const std::string_view word = argument;
  std::vector<std::string> names;
  for (const option& entry : known)
    if (entry.name != nullptr)
      names.push_back("--" + std::string(entry.name));
  const std::string_view head = word.substr(0, word.find('='));
  const std::vector<std::string_view> views(names.begin(), names.end());
  if (std::ranges::find(views, head) != views.end())
    fprintf(stderr, "adverb run: option %s needs a value or takes none; see --help\n",
            policy::in_quotes(head).c_str());
  else
    fprintf(stderr, "adverb run: unknown option %s; %s\n", policy::in_quotes(head).c_str(),
            policy::did_you_mean(head, views, "the options are").c_str());
}

// Nothing: go on, with optind at the program. Else the exit status.
std::optional<int> parse(int argc, char** argv, Options& options) {
  static constexpr option known[] = {
      {"profile", required_argument, nullptr, 'p'}, {"policy", required_argument, nullptr, 'f'},
      {"log", required_argument, nullptr, 'l'},     {"no-children", no_argument, nullptr, 'c'},
      {"dry-run", no_argument, nullptr, 'd'},       {"quiet", no_argument, nullptr, 'q'},
      {"help", no_argument, nullptr, 'h'},          {nullptr, 0, nullptr, 0},
  };
  opterr = 0;
  optind = 1;
  for (;;) {
    const int at = optind;
    const int letter = getopt_long(argc, argv, "+h", known, nullptr);
    bool good = true;
    switch (letter) {
    case -1:
      if (optind < argc)
        return std::nullopt;
      fprintf(stderr, "adverb run: no program is given\n%s", usage);
      return status_usage;
    case 'p':
      good = choose_profile(options.choice, optarg, "adverb run");
      break;
    case 'f':
      good = choose_file(options.choice, optarg, "adverb run");
      break;
    case 'l':
      good = parse_log(options, optarg);
      break;
    case 'c':
      options.no_children = true;
      break;
    case 'd':
      options.dry_run = true;
      break;
    case 'q':
      options.quiet = true;
      break;
    case 'h':
      fputs(usage, stdout);
      return status_ok;
    default:
      report_option(argv[at], known);
      good = false;
    }
    if (!good)
      return status_usage;
  }
}

struct Variable {
  const char* name;
  std::string value;
};

std::vector<Variable> environment(const Options& options, const Program& program,
                                  const std::string& library) {
  std::vector<Variable> result = {{"LD_PRELOAD", preload_with(library, program.sanitizer)}};
  if (options.choice.made())
    result.push_back({"ADVERB_POLICY", options.choice.environment()});
  if (!options.log.empty())
    result.push_back({"ADVERB_LOG", options.log});
  if (options.no_children)
    result.push_back({"ADVERB_NO_CHILDREN", "1"});
  return result;
}

// As a shell would read it back.
std::string shell_word(const std::string& word) {
  const bool plain = !word.empty() && std::ranges::all_of(word, [](char c) {
    return isalnum(static_cast<unsigned char>(c)) || strchr("_-+=:,./@%", c) != nullptr;
  });
  if (plain)
    return word;
  std::string result = "'";
  for (char c : word)
    result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

void print_plan(const Program& program, const policy::Policy& policy, const Options& options,
                const std::vector<Variable>& variables, char** command) {
  printf("library   adverb %s\n", ADVERB_VERSION);
  printf("policy    %s (%s)\n", policy.source().c_str(), origin(options.choice, policy).c_str());
  if (!policy.description().empty())
    printf("          %s\n", policy.description().c_str());
  if (policy.idle())
    puts("          changes nothing for this program");
  printf("program   %s\n", program.executable.c_str());
  for (const std::string& note : program.notes)
    printf("          note: %s\n", note.c_str());
  fputs("command   env", stdout);
  for (const Variable& variable : variables)
    printf(" %s=%s", variable.name, shell_word(variable.value).c_str());
  printf(" %s", shell_word(program.path).c_str());
  for (char** argument = command + 1; *argument != nullptr; ++argument)
    printf(" %s", shell_word(*argument).c_str());
  putchar('\n');
}

int execute(const Program& program, const std::vector<Variable>& variables, char** command) {
  for (const Variable& variable : variables)
    if (setenv(variable.name, variable.value.c_str(), 1) != 0) {
      fprintf(stderr, "adverb run: %s: %s\n", variable.name, strerror(errno));
      return status_usage;
    }
  fflush(nullptr);
  // The path that was checked; argv[0] stays as typed, which programs of many names rely on.
  execvp(program.path.c_str(), command);
  const int error = errno;
  fprintf(stderr, "adverb run: %s: %s\n", program.path.c_str(), strerror(error));
  return error == ENOENT ? status_missing : status_refused;
}

} // namespace

int cmd_run(int argc, char** argv) {
  Options options;
  if (const auto status = parse(argc, argv, options))
    return *status;
  char** command = argv + optind;

  const Program program = find_program(command[0]);
  if (program.status != status_ok) {
    fprintf(stderr, "adverb run: %s: %s%s%s\n", command[0], program.reason.c_str(),
            program.remedy.empty() ? "" : "; ", program.remedy.c_str());
    return program.status;
  }
  const policy::Loaded loaded = options.choice.load(program.executable);
  if (!loaded) {
    print_errors(loaded.errors);
    return status_usage;
  }
  std::string reason;
  const auto library = find_library(reason);
  if (!library) {
    fprintf(stderr, "adverb run: %s\n", reason.c_str());
    return status_usage;
  }
  if (!options.quiet)
    for (const std::string& warning : program.warnings)
      fprintf(stderr, "adverb run: note: %s\n", warning.c_str());
  if (loaded.policy->strands_remote())
    fprintf(stderr, "adverb run: note: %s\n", stranded_note);
  const std::vector<Variable> variables = environment(options, program, *library);
  if (options.dry_run) {
    print_plan(program, *loaded.policy, options, variables, command);
    return status_ok;
  }
  return execute(program, variables, command);
}

} // namespace adverb::tools
