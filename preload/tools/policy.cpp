// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// adverb policy: check files, explain what a policy means for a program, list and show profiles.
#include "policy/policy.h"

#include "policy/embedded.h"
#include "policy/format.h"
#include "policy/suggest.h"
#include "tools/choice.h"
#include "tools/commands.h"
#include "tools/explain.h"
#include "tools/program.h"

#include <cstdio>
#include <getopt.h>
#include <optional>

namespace adverb::tools {
namespace {

constexpr const char* usage =
    "usage: adverb policy check FILE...\n"
    "       adverb policy explain [--profile NAME | --policy FILE] [--device NAME]\n"
    "                             [--] PROGRAM [ARGUMENT]...\n"
    "       adverb policy list\n"
    "       adverb policy show [NAME | default | schema]\n\n"
    "  check    report every error of the files; exit status 1 if there is one\n"
    "  explain  say which policy PROGRAM gets and what it means for its regions and queue pairs\n"
    "  list     the profiles that adverb brings along\n"
    "  show     the text of a profile, to start a policy of your own from\n";

bool asks_for_help(int argc, char** argv) {
  return argc > 1 && (std::string_view(argv[1]) == "--help" || std::string_view(argv[1]) == "-h");
}

int check(int argc, char** argv) {
  if (argc < 2) {
    fputs("adverb policy check: no file is given\n", stderr);
    return status_usage;
  }
  int status = status_ok;
  for (char** file = argv + 1; *file != nullptr; ++file) {
    const policy::Loaded loaded = policy::load_file(*file, "/");
    print_errors(loaded.errors);
    if (!loaded) {
      status = status_failed;
      continue;
    }
    printf("%s: ok\n", *file);
  }
  return status;
}

// Nothing: go on. Else the exit status.
std::optional<int> parse_explain(int argc, char** argv, PolicyChoice& choice, std::string& device) {
  static constexpr option known[] = {
      {"profile", required_argument, nullptr, 'p'},
      {"policy", required_argument, nullptr, 'f'},
      {"device", required_argument, nullptr, 'd'},
      {nullptr, 0, nullptr, 0},
  };
  constexpr const char* context = "adverb policy explain";
  opterr = 0;
  optind = 1;
  for (;;) {
    const int at = optind;
    switch (getopt_long(argc, argv, "+", known, nullptr)) {
    case -1:
      if (optind < argc)
        return std::nullopt;
      fprintf(stderr, "%s: no program is given\n", context);
      return status_usage;
    case 'p':
      if (!choose_profile(choice, optarg, context))
        return status_usage;
      break;
    case 'f':
      if (!choose_file(choice, optarg, context))
        return status_usage;
      break;
    case 'd':
      device = optarg;
      break;
    default:
      fprintf(stderr, "%s: bad option %s\n%s", context, policy::in_quotes(argv[at]).c_str(), usage);
      return status_usage;
    }
  }
}

int explain(int argc, char** argv) {
  PolicyChoice choice;
  std::string device;
  if (const auto status = parse_explain(argc, argv, choice, device))
    return *status;
  const Program program = find_program(argv[optind]);
  const policy::Loaded loaded =
      choice.load(program.executable.empty() ? argv[optind] : program.executable);
  if (!loaded) {
    print_errors(loaded.errors);
    return status_usage;
  }
  print_explanation(*loaded.policy, origin(choice, *loaded.policy), program, device);
  return program.status;
}

int list(int argc, char** argv) {
  if (argc > 1) {
    fprintf(stderr, "adverb policy list: unexpected argument %s\n",
            policy::in_quotes(argv[1]).c_str());
    return status_usage;
  }
  for (std::string_view name : policy::profile_names()) {
    const policy::Loaded loaded = policy::load_profile(name, "/");
    printf("%-12.*s %s\n", static_cast<int>(name.size()), name.data(),
           loaded ? loaded.policy->description().c_str() : "");
  }
  return status_ok;
}

int show(int argc, char** argv) {
  const std::string_view name = argc > 1 ? argv[1] : "default";
  std::vector<std::string_view> names = {"schema"};
  const auto print = [](std::string_view text) {
    fwrite(text.data(), 1, text.size(), stdout);
    return status_ok;
  };
  if (name == "schema")
    return print(policy::embedded_schema);
  for (const policy::EmbeddedProfile& profile : policy::embedded_profiles) {
    if (profile.name == name)
      return print(profile.text);
    names.push_back(profile.name);
  }
  fprintf(stderr, "adverb policy show: there is no profile %s; %s\n",
          policy::in_quotes(name).c_str(),
          policy::did_you_mean(name, names, "the names are").c_str());
  return status_usage;
}

constexpr Command subcommands[] = {
    {"check", "", check},
    {"explain", "", explain},
    {"list", "", list},
    {"show", "", show},
};

} // namespace

int cmd_policy(int argc, char** argv) {
  if (argc < 2) {
    fputs(usage, stderr);
    return status_usage;
  }
  if (asks_for_help(argc, argv) || (argc > 2 && asks_for_help(argc - 1, argv + 1))) {
    fputs(usage, stdout);
    return status_ok;
  }
  const Command* command = find_command(subcommands, argv[1], "adverb policy");
  return command == nullptr ? status_usage : command->run(argc - 1, argv + 1);
}

} // namespace adverb::tools
