// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "policy/current.h"

#include "policy/json.h"
#include "policy/rule.h"
#include "policy/schema.h"
#include "policy/source.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <utility>

namespace adverb::policy {
namespace {

// After this every question is answered as if adverb were not there.
std::unique_ptr<Policy> pass_through() {
  Document document;
  document.source = "none (the policy has errors; everything passes through)";
  document.settings.serve = false;
  Rule rule;
  rule.name = "pass-through";
  rule.backend = &stock_backend();
  rule.peers = Peers::none;
  document.rules.push_back(std::move(rule));
  return std::make_unique<Policy>(std::move(document));
}

// Keys of the file that another text gives another value, and that no running process can change.
std::vector<std::string> different_at_restart(std::string_view before, std::string_view now) {
  // Both have been read before; here the order of keys in an object means nothing.
  const nlohmann::json a = nlohmann::json::parse(before);
  const nlohmann::json b = nlohmann::json::parse(now);
  std::vector<std::string> different;
  for (const auto& member : schema()["properties"].items()) {
    const std::string& key = member.key();
    if (takes(member.value()) == Takes::restart &&
        a.value(key, nlohmann::json()) != b.value(key, nlohmann::json()))
      different.push_back(key);
  }
  return different;
}

} // namespace

const Policy& Current::load() {
  const std::lock_guard hold(loading_);
  if (const Policy* now = policy_.load(std::memory_order_relaxed))
    return *now;
  Loaded loaded = load_for_this_process();
  if (!loaded) {
    std::string message;
    for (const Error& error : loaded.errors)
      message += "adverb: " + error.text() + "\n";
    message += "adverb: no policy is in force; everything passes through unchanged\n";
    fputs(message.c_str(), stderr);
    problems_ = std::move(loaded.errors);
    loaded.policy = pass_through();
  } else if (!loaded.path.empty()) {
    std::error_code ignored; // the process may change its folder later
    file_ = std::filesystem::absolute(loaded.path, ignored).string();
  }
  prepare(*loaded.policy);
  kept_.push_back({std::move(loaded.text), std::move(loaded.policy)});
  policy_.store(kept_.front().policy.get(), std::memory_order_release);
  return *kept_.front().policy;
}

// A rule is known by its name; of those of one name the first is the first again.
void Current::prepare(Policy& policy) {
  std::vector<size_t> slots;
  for (const Rule& rule : policy.rules()) {
    size_t slot = 0;
    while (slot < slots_.size() &&
           (slots_[slot] != rule.name || std::ranges::find(slots, slot) != slots.end()))
      ++slot;
    if (slot == slots_.size())
      slots_.push_back(rule.name);
    slots.push_back(slot);
  }
  policy.tell_hits_to(hits_, std::move(slots));
}

std::vector<std::string> Current::slots() {
  get();
  const std::lock_guard hold(loading_);
  return slots_;
}

Current::Reread Current::reread() {
  Reread result;
  const Policy& now = get();
  const std::lock_guard hold(loading_);
  const auto refuse = [&](std::string reason, std::string remedy) {
    result.what = Reread::What::refused;
    result.errors.push_back({file_, "", std::move(reason), std::move(remedy)});
    return result;
  };
  if (file_.empty())
    return result;
  Refusal refusal;
  auto text = read_trusted(file_, Secrecy::readable, max_text, refusal);
  if (!text)
    return refuse(std::move(refusal.reason), std::move(refusal.remedy));
  auto kept = std::ranges::find(kept_, *text, &Kept::text);
  if (kept != kept_.end() && kept->policy.get() == &now)
    return result;
  if (kept == kept_.end()) {
    if (kept_.size() >= texts_max)
      return refuse("this process has taken " + std::to_string(texts_max) +
                        " different policies, and takes no more",
                    "start it anew");
    Loaded loaded = load_text(*text, file_);
    if (!loaded) {
      result.what = Reread::What::refused;
      result.errors = std::move(loaded.errors);
      return result;
    }
    loaded.policy->take_place_of(now);
    prepare(*loaded.policy);
    kept_.push_back({std::move(*text), std::move(loaded.policy)});
    kept = kept_.end() - 1;
  }
  result.later = different_at_restart(kept_.front().text, kept->text);
  result.what = Reread::What::taken;
  policy_.store(kept->policy.get(), std::memory_order_release);
  return result;
}

} // namespace adverb::policy
