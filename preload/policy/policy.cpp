// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "policy/policy.h"

#include "policy/glob.h"
#include "policy/rule.h"

#include <algorithm>
#include <cstring>

namespace adverb::policy {
namespace {

constexpr unsigned access_remote_shift = 1; // IBV_ACCESS_REMOTE_{WRITE,READ,ATOMIC} are 2, 4, 8
constexpr unsigned rights_mask = 7;

bool matches_device(const Match& match, std::string_view device) noexcept {
  return match.devices.empty() || std::ranges::any_of(match.devices, [&](const std::string& glob) {
           return glob_matches(glob, device);
         });
}

bool matches_any_region(const Match& match) noexcept {
  return match.rights == any_rights && match.min_size == 0 && match.max_size == Match{}.max_size;
}

bool matches_any_device(const Match& match) noexcept {
  return match.devices.empty() || std::ranges::find(match.devices, "*") != match.devices.end();
}

bool matches_qp_type(const Match& match, int type) noexcept {
  if (match.qp_types == any_qp_type)
    return true;
  return type >= 0 && type < 32 && (match.qp_types >> type & 1) != 0;
}

bool contains(const std::vector<Cidr>& ranges, const in6_addr& address) noexcept {
  return std::ranges::any_of(ranges, [&](const Cidr& range) { return range.contains(address); });
}

bool unpins(const Rule& rule) noexcept {
  return rule.backend != nullptr && rule.backend->unpins;
}

// Registers regions otherwise than the device does by itself, with virtual keys or without.
bool changes(const Rule& rule) noexcept {
  return rule.backend != nullptr && rule.backend != &stock_backend();
}

// What the rule says of a queue pair's requests. Nothing: the rule does not match the queue pair.
std::optional<Steer> steer_of(const Rule& rule, const QpQuery& query) noexcept {
  const Match& match = rule.match;
  if (!rule.steer || !matches_qp_type(match, query.qp_type) || !matches_device(match, query.device))
    return std::nullopt;
  if (match.peers.empty())
    return rule.steer;
  if (query.peer == nullptr)
    return Steer::offload; // whoever the peer is, the NIC reaches its pinned regions
  return contains(match.peers, *query.peer) ? rule.steer : std::nullopt;
}

bool matches_any_request(const Match& match) noexcept {
  return match.requests == Requests{};
}

bool may_unpin_remote(const std::vector<Rule>& rules) noexcept {
  constexpr RightsSet local_only = 1; // the combination of no rights at all
  return std::ranges::any_of(rules, [](const Rule& rule) {
    return unpins(rule) && (rule.match.rights & ~local_only) != 0;
  });
}

bool may_ask_peers(const std::vector<Rule>& rules) noexcept {
  for (const Rule& rule : rules) {
    if (rule.peers == Peers::automatic)
      return true;
    if (rule.peers == Peers::none && rule.match.qp_types == any_qp_type &&
        rule.match.peers.empty() && matches_any_device(rule.match))
      return false;
  }
  return true;
}

} // namespace

bool Cidr::contains(const in6_addr& other) const noexcept {
  const unsigned whole = bits / 8;
  if (memcmp(address.s6_addr, other.s6_addr, whole) != 0)
    return false;
  const unsigned rest = bits % 8;
  return rest == 0 ||
         ((address.s6_addr[whole] ^ other.s6_addr[whole]) & (0xff00u >> rest) & 0xff) == 0;
}

bool Cidr::contains(const Cidr& other) const noexcept {
  return bits <= other.bits && contains(other.address);
}

bool Cidr::operator==(const Cidr& other) const noexcept {
  return bits == other.bits && memcmp(&address, &other.address, sizeof(address)) == 0;
}

bool LinkSettings::allowed(const in6_addr& address) const noexcept {
  return policy::contains(allow, address);
}

std::optional<in6_addr>
LinkSettings::mapped_peer(const std::array<uint8_t, 16>& gid) const noexcept {
  for (const Mapping& mapping : mapped) {
    if (mapping.by == Mapping::By::gid && mapping.key == gid)
      return mapping.address;
    // The lower half of a GID is the port's GUID.
    if (mapping.by == Mapping::By::guid && memcmp(mapping.key.data(), gid.data() + 8, 8) == 0)
      return mapping.address;
  }
  return std::nullopt;
}

std::optional<in6_addr> LinkSettings::mapped_lid(uint16_t lid) const noexcept {
  for (const Mapping& mapping : mapped)
    if (mapping.by == Mapping::By::lid && mapping.key[0] == lid >> 8 &&
        mapping.key[1] == (lid & 0xff))
      return mapping.address;
  return std::nullopt;
}

Policy::Policy(Document document)
    : rules_(std::move(document.rules)),
      hits_(std::make_unique<std::atomic<uint64_t>[]>(rules_.size())),
      settings_(std::move(document.settings)), source_(std::move(document.source)),
      description_(std::move(document.description)),
      idle_(std::ranges::none_of(rules_, changes) && !may_ask_peers(rules_)),
      strands_remote_(may_unpin_remote(rules_) && !may_ask_peers(rules_)) {}

Policy::~Policy() = default;

void Policy::count(const Rule& rule) const noexcept {
  const auto index = static_cast<size_t>(&rule - rules_.data());
  hits_[index].fetch_add(1, std::memory_order_relaxed);
  if (listener_ != nullptr)
    listener_->hit(slots_[index]);
}

void Policy::tell_hits_to(Hits* listener, std::vector<size_t> slots) {
  slots_ = std::move(slots);
  listener_ = slots_.size() == rules_.size() ? listener : nullptr;
}

void Policy::take_place_of(const Policy& running) {
  Settings settings = running.settings_;
  settings.recall_wait = settings_.recall_wait;
  settings.serve = settings_.serve;
  settings_ = std::move(settings);
}

const BackendTraits& Policy::region(const RegionQuery& query) const noexcept {
  const auto combination =
      static_cast<RightsSet>(1u << (query.access >> access_remote_shift & rights_mask));
  for (const Rule& rule : rules_) {
    const Match& match = rule.match;
    if (rule.backend != nullptr && (match.rights & combination) && query.length >= match.min_size &&
        query.length <= match.max_size && matches_device(match, query.device)) {
      count(rule);
      return *rule.backend;
    }
  }
  return stock_backend();
}

bool Policy::may_unpin(std::string_view device) const noexcept {
  for (const Rule& rule : rules_) {
    if (rule.backend == nullptr || !matches_device(rule.match, device))
      continue;
    if (changes(rule))
      return true;
    if (matches_any_region(rule.match))
      return false;
  }
  return false;
}

// The rule that decides; null: none does, or for want of the peer none can but the safe answer.
const Rule* Policy::rule_for(const QpQuery& query, Says sets, Says is_safe) const noexcept {
  for (const Rule& rule : rules_) {
    const Match& match = rule.match;
    if (!sets(rule) || !matches_qp_type(match, query.qp_type) ||
        !matches_device(match, query.device))
      continue;
    if (!match.peers.empty()) {
      if (query.peer == nullptr) {
        if (is_safe(rule))
          return nullptr; // some peers may get the answer that is safe for all
        continue;
      }
      if (!contains(match.peers, *query.peer))
        continue;
    }
    return &rule;
  }
  return nullptr;
}

// The rule that has adverb make losses good, now or at times; null: none has. Counts nothing.
const Rule* Policy::by_packets(const QpQuery& query) const noexcept {
  const Rule* const rule = rule_for(
      query, [](const Rule& each) { return each.reliability.has_value(); },
      [](const Rule& each) { return *each.reliability == Reliability::device; });
  return rule != nullptr && *rule->reliability != Reliability::device ? rule : nullptr;
}

std::vector<SteerRule> Policy::steering(const QpQuery& query,
                                        std::optional<bool> by_packets) const {
  std::vector<SteerRule> result;
  for (size_t i = 0; i < rules_.size(); ++i) {
    const auto steer = steer_of(rules_[i], query);
    if (!steer)
      continue;
    result.push_back({rules_[i].match.requests, *steer, i, this});
    if (matches_any_request(rules_[i].match))
      return result;
  }
  // Only what goes to the peer's CPU goes by packets. A queue pair may do so by a policy that this
  // one has replaced.
  const Rule* const rule = this->by_packets(query);
  if (by_packets.value_or(rule != nullptr))
    result.push_back({{},
                      Steer::unload,
                      rule != nullptr ? static_cast<size_t>(rule - rules_.data()) : 0,
                      rule != nullptr ? this : nullptr});
  return result;
}

bool Policy::steers(const QpQuery& query) const noexcept {
  for (const Rule& rule : rules_) {
    const auto steer = steer_of(rule, query);
    if (!steer)
      continue;
    if (*steer != Steer::offload)
      return true;
    if (matches_any_request(rule.match))
      return false;
  }
  return by_packets(query) != nullptr;
}

bool Policy::repairs(std::string_view device, int qp_type) const noexcept {
  return std::ranges::any_of(rules_, [&](const Rule& rule) {
    return rule.reliability.value_or(Reliability::device) != Reliability::device &&
           matches_qp_type(rule.match, qp_type) && matches_device(rule.match, device);
  });
}

// The queue pair may have it of a policy that another one has replaced.
void Policy::steered_by(const SteerRule& rule) const noexcept {
  if (rule.of == this)
    count(rules_[rule.rule]);
}

std::optional<uint64_t> Policy::copy_below(std::string_view device) const noexcept {
  for (const Rule& rule : rules_)
    if (rule.copy_below && matches_device(rule.match, device)) {
      count(rule);
      return rule.copy_below;
    }
  return std::nullopt;
}

std::span<const Rule> Policy::rules() const noexcept {
  return rules_;
}

std::vector<RuleHits> Policy::hits() const {
  std::vector<RuleHits> result;
  for (size_t i = 0; i < rules_.size(); ++i)
    result.push_back({rules_[i].index, rules_[i].name, hits_[i].load(std::memory_order_relaxed),
                      slots_.empty() ? i : slots_[i]});
  return result;
}

} // namespace adverb::policy
