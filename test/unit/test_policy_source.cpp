// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Where a policy comes from, and which files are trusted.
#include "catch.h"
#include "skip.h"

#include "policy/policy.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sys/stat.h>
#include <unistd.h>

using namespace adverb::policy;
namespace fs = std::filesystem;

namespace {

// A directory of our own, and an environment in which nothing names a policy.
class Sandbox {
public:
  Sandbox() {
    char name[] = "/tmp/adverb-policy-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    directory_ = name;
    unsetenv("ADVERB_POLICY");
    setenv("XDG_CONFIG_HOME", path("config").c_str(), 1);
    setenv("HOME", path("home").c_str(), 1);
  }
  ~Sandbox() {
    fs::remove_all(directory_);
    unsetenv("ADVERB_POLICY");
    unsetenv("XDG_CONFIG_HOME");
  }
  Sandbox(const Sandbox&) = delete;
  Sandbox& operator=(const Sandbox&) = delete;

  std::string path(const std::string& name) const { return directory_ + "/" + name; }

  std::string write(const std::string& name, const std::string& text, mode_t mode = 0644) const {
    const std::string file = path(name);
    fs::create_directories(fs::path(file).parent_path());
    std::ofstream(file) << text;
    REQUIRE(chmod(file.c_str(), mode) == 0);
    return file;
  }

private:
  std::string directory_;
};

constexpr const char* good = R"({"version": 1, "description": "mine"})";

void check_refused(const std::string& path, const char* reason, const char* remedy = "") {
  const Loaded loaded = load_file(path);
  REQUIRE_FALSE(loaded);
  REQUIRE(loaded.errors.size() == 1);
  INFO(loaded.errors[0].text());
  CHECK(loaded.errors[0].file == path);
  CHECK(loaded.errors[0].reason.find(reason) != std::string::npos);
  CHECK(loaded.errors[0].remedy.find(remedy) != std::string::npos);
}

bool system_policy_exists() {
  return fs::exists("/etc/adverb/policy.json");
}

} // namespace

TEST_CASE("ADVERB_POLICY comes before the user's policy, and that before the built-in default") {
  const Sandbox box;
  if (!system_policy_exists())
    CHECK(load_for_this_process().policy->source() == "built-in default");

  const std::string at_home = box.write("home/.config/adverb/policy.json", good);
  unsetenv("XDG_CONFIG_HOME");
  CHECK(load_for_this_process().policy->source() == at_home);

  setenv("XDG_CONFIG_HOME", box.path("config").c_str(), 1);
  const std::string users = box.write("config/adverb/policy.json", good);
  CHECK(load_for_this_process().policy->source() == users);

  const std::string named = box.write("named.json", good);
  setenv("ADVERB_POLICY", named.c_str(), 1);
  CHECK(load_for_this_process().policy->source() == named);

  setenv("ADVERB_POLICY", "unpinned", 1);
  CHECK(load_for_this_process().policy->source() == "profile unpinned");

  setenv("ADVERB_POLICY", "", 1);
  CHECK(load_for_this_process().policy->source() == users);
}

TEST_CASE("a relative XDG_CONFIG_HOME is ignored") {
  const Sandbox box;
  setenv("XDG_CONFIG_HOME", "config", 1);
  const std::string at_home = box.write("home/.config/adverb/policy.json", good);
  CHECK(load_for_this_process().policy->source() == at_home);
}

TEST_CASE("a policy that is named but missing is an error, never the default") {
  const Sandbox box;
  setenv("ADVERB_POLICY", box.path("missing.json").c_str(), 1);
  CHECK_FALSE(load_for_this_process());
  setenv("ADVERB_POLICY", "unpined", 1);
  const Loaded loaded = load_for_this_process();
  REQUIRE(loaded.errors.size() == 1);
  CHECK(loaded.errors[0].remedy == "did you mean \"unpinned\"?");
}

TEST_CASE("a user's policy with errors is an error, never the default") {
  const Sandbox box;
  box.write("config/adverb/policy.json", "{");
  CHECK_FALSE(load_for_this_process());
}

TEST_CASE("a file that others can write is refused") {
  const Sandbox box;
  check_refused(box.write("group.json", good, 0664), "can be written by others (mode 0664)",
                "chmod go-w");
  check_refused(box.write("world.json", good, 0646), "can be written by others", "chmod go-w");
  CHECK(load_file(box.write("mine.json", good, 0600)));
  CHECK(load_file(box.write("shown.json", good, 0755)));
}

TEST_CASE("a file of another user is refused, one of root is not") {
  if (geteuid() != 0) {
    adverb::test::skip("needs root to give a file away");
    return;
  }
  const Sandbox box;
  const std::string file = box.write("theirs.json", good);
  CHECK(load_file(file)); // root's, and we are root
  REQUIRE(chown(file.c_str(), 12345, 12345) == 0);
  check_refused(file, "belongs to user 12345", "chown");
}

TEST_CASE("what is not a regular file is refused at once") {
  const Sandbox box;
  check_refused("/", "is a directory", "name a file");
  check_refused("/dev/null", "not a regular file");
  const std::string fifo = box.path("fifo.json");
  REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
  check_refused(fifo, "not a regular file"); // and does not wait for a writer
  check_refused(box.path("missing"), "there is no such file");
  check_refused(box.write("long.json", std::string((1u << 20) + 1, ' ')), "longer than");
}

TEST_CASE("a key is read from a secret file only") {
  const Sandbox box;
  const auto load_with_key = [&](const std::string& key, mode_t mode) {
    const std::string file = box.write("key", key, mode);
    return load_text(R"({"version": 1, "link": {"key_file": ")" + file + R"("}})", "FILE");
  };
  const std::string key = "0123456789abcdef";
  const Loaded loaded = load_with_key(key + "\n", 0600);
  REQUIRE(loaded);
  CHECK(std::string(loaded.policy->link().key.begin(), loaded.policy->link().key.end()) == key);

  for (const auto& [bytes, mode, reason] :
       std::vector<std::tuple<std::string, mode_t, const char*>>{
           {key, 0640, "can be read by others (mode 0640)"},
           {key, 0604, "can be read by others"},
           {"short", 0600, "holds 5 bytes, too few"},
           {"0123456789abcde\n", 0600, "holds 15 bytes, too few"},
           {std::string(5000, 'k'), 0600, "longer than 4096"},
       }) {
    const Loaded refused = load_with_key(bytes, mode);
    INFO(reason);
    REQUIRE(refused.errors.size() == 1);
    CHECK(refused.errors[0].pointer == "/link/key_file");
    CHECK(refused.errors[0].reason.find(reason) != std::string::npos);
  }
}
