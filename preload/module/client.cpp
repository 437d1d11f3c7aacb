// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "module/client.h"

#include <functional>

#include <fmt/format.h>
#include <netlink/errno.h>
#include <netlink/genl/ctrl.h>
#include <netlink/genl/family.h>
#include <netlink/genl/genl.h>
#include <netlink/netlink.h>

namespace adverb::module {
namespace {

using Why = Failure::Why;

constexpr const char* one_release = "install module and adverb from one release";

Failure failure(int error, const char* doing) {
  switch (-error) {
  case NLE_OBJ_NOTFOUND:
    return {Why::absent, "adverb.ko is not loaded", "`modprobe adverb`"};
  case NLE_PERM:
  case NLE_NOACCESS:
    return {Why::permission, fmt::format("{}: not permitted", doing), "ask as root"};
  default:
    return {Why::other, fmt::format("{}: {}", doing, nl_geterror(error)), "try again"};
  }
}

Failure misunderstood(const Malformed& malformed) {
  return {Why::malformed,
          fmt::format("a message of adverb.ko is not understood: {}", malformed.text), one_release};
}

// What libnl calls for each message, and what became of it.
struct Receiver {
  std::function<std::optional<Malformed>(Bytes)> take;
  std::optional<Malformed> malformed;
  bool done = false;

  static int on_message(nl_msg* message, void* argument) {
    auto* self = static_cast<Receiver*>(argument);
    // Others than the kernel may send to this socket if they have the capability.
    if (nlmsg_get_src(message)->nl_pid != 0 || self->malformed)
      return NL_SKIP;
    const nlmsghdr* header = nlmsg_hdr(message);
    self->malformed = self->take(
        std::as_bytes(std::span(reinterpret_cast<const char*>(header), header->nlmsg_len)));
    return NL_OK;
  }
  // Events are nobody's answer: their sequence number is 0.
  static int any_number(nl_msg* /*message*/, void* /*argument*/) { return NL_OK; }
  static int on_end(nl_msg* /*message*/, void* argument) {
    static_cast<Receiver*>(argument)->done = true;
    return NL_STOP;
  }
};

using Callbacks = std::unique_ptr<nl_cb, void (*)(nl_cb*)>;
Callbacks callbacks(Receiver& receiver) {
  Callbacks out(nl_cb_alloc(NL_CB_DEFAULT), nl_cb_put);
  if (!out)
    throw std::bad_alloc();
  nl_cb_set(out.get(), NL_CB_VALID, NL_CB_CUSTOM, Receiver::on_message, &receiver);
  nl_cb_set(out.get(), NL_CB_FINISH, NL_CB_CUSTOM, Receiver::on_end, &receiver);
  nl_cb_set(out.get(), NL_CB_ACK, NL_CB_CUSTOM, Receiver::on_end, &receiver);
  return out;
}

// Number and version of the family.
Result<std::pair<uint16_t, unsigned>> find_family(nl_sock* socket) {
  nl_cache* families = nullptr;
  if (const int error = genl_ctrl_alloc_cache(socket, &families); error < 0)
    return failure(error, "listing the generic netlink families");
  const std::unique_ptr<nl_cache, void (*)(nl_cache*)> freed(families, nl_cache_free);
  genl_family* family = genl_ctrl_search_by_name(families, ADVERB_GENL_NAME);
  if (family == nullptr)
    return failure(-NLE_OBJ_NOTFOUND, "");
  const auto id = static_cast<uint16_t>(genl_family_get_id(family));
  const unsigned version = genl_family_get_version(family);
  genl_family_put(family);
  return std::pair(id, version);
}

} // namespace

std::optional<Failure> misfit(unsigned family_version) {
  if (family_version == ADVERB_GENL_VERSION)
    return std::nullopt;
  return Failure{Why::version,
                 fmt::format("adverb.ko speaks version {} of its netlink family, this adverb "
                             "version {}",
                             family_version, ADVERB_GENL_VERSION),
                 one_release};
}

std::optional<Failure> misfit(const adverb_version& version) {
  if (version.minimum_library > ADVERB_MODULE_VERSION)
    return Failure{Why::version,
                   fmt::format("adverb.ko {} works with libraries from {} on, and this is {}",
                               version.module, version.minimum_library, ADVERB_MODULE_VERSION),
                   "install a newer adverb"};
  if (version.module < ADVERB_MODULE_VERSION)
    return Failure{Why::version,
                   fmt::format("adverb.ko {} is older than this adverb, made for {}",
                               version.module, ADVERB_MODULE_VERSION),
                   "load the module of the same release"};
  return std::nullopt;
}

void Client::Close::operator()(nl_sock* socket) const {
  nl_socket_free(socket);
}

Result<Client> Client::open() {
  std::unique_ptr<nl_sock, Close> socket(nl_socket_alloc());
  if (!socket)
    throw std::bad_alloc();
  if (const int error = genl_connect(socket.get()); error < 0)
    return failure(error, "opening a generic netlink socket");
  const auto found = find_family(socket.get());
  if (const auto* failed = std::get_if<Failure>(&found))
    return *failed;
  const auto [family, version] = std::get<0>(found);
  if (auto wrong = misfit(version))
    return *wrong;
  return Client(socket.release(), family);
}

// Sends one question and hands every answer, parsed, to `take`.
template <typename T, typename Take>
std::optional<Failure> Client::ask(uint8_t command, int flags, Parse<T> parse, Take&& take) {
  constexpr const char* doing = "asking adverb.ko";
  const std::unique_ptr<nl_msg, void (*)(nl_msg*)> message(nlmsg_alloc(), nlmsg_free);
  if (!message || genlmsg_put(message.get(), NL_AUTO_PORT, NL_AUTO_SEQ, family_, 0, flags, command,
                              ADVERB_GENL_VERSION) == nullptr)
    throw std::bad_alloc();
  if (const int error = nl_send_auto(socket_.get(), message.get()); error < 0)
    return failure(error, doing);
  Receiver receiver;
  receiver.take = [&](Bytes bytes) -> std::optional<Malformed> {
    auto parsed = parse(bytes, family_);
    if (auto* wrong = std::get_if<Malformed>(&parsed))
      return *wrong;
    take(std::move(std::get<T>(parsed)));
    return std::nullopt;
  };
  const Callbacks use = callbacks(receiver);
  while (!receiver.done)
    if (const int error = nl_recvmsgs(socket_.get(), use.get()); error < 0)
      return failure(error, doing);
  if (receiver.malformed)
    return misunderstood(*receiver.malformed);
  return std::nullopt;
}

Result<std::vector<Region>> Client::regions() {
  std::vector<Region> out;
  if (auto failed = ask<Region>(ADVERB_CMD_REGIONS, NLM_F_DUMP, parse_region,
                                [&](Region region) { out.push_back(region); }))
    return *failed;
  return out;
}

// The one answer to a question that has one.
template <typename T> Result<T> Client::ask_one(uint8_t command, Parse<T> parse) {
  std::optional<T> out;
  if (auto failed = ask<T>(command, 0, parse, [&](const T& answer) { out = answer; }))
    return *failed;
  if (!out)
    return misunderstood({"there is no answer in it"});
  return *out;
}

Result<Counts> Client::statistics() {
  return ask_one<Counts>(ADVERB_CMD_STATISTICS, parse_statistics);
}

Result<Limits> Client::limits() {
  return ask_one<Limits>(ADVERB_CMD_LIMITS, parse_limits);
}

std::optional<Failure> Client::listen() {
  constexpr const char* doing = "listening to adverb.ko's events";
  const int group = genl_ctrl_resolve_grp(socket_.get(), ADVERB_GENL_NAME, ADVERB_GENL_EVENTS);
  if (group < 0)
    return failure(group, doing);
  if (const int error = nl_socket_add_membership(socket_.get(), group); error < 0)
    return failure(error, doing);
  return std::nullopt;
}

Result<Event> Client::next_event() {
  Receiver receiver;
  receiver.take = [&](Bytes bytes) -> std::optional<Malformed> {
    auto parsed = parse_event(bytes, family_);
    if (auto* wrong = std::get_if<Malformed>(&parsed))
      return *wrong;
    events_.push_back(std::move(std::get<Event>(parsed)));
    return std::nullopt;
  };
  const Callbacks use = callbacks(receiver);
  // Of the callbacks in use: nl_socket_disable_seq_check() changes the socket's own only.
  nl_cb_set(use.get(), NL_CB_SEQ_CHECK, NL_CB_CUSTOM, Receiver::any_number, nullptr);
  while (events_.empty()) {
    if (const int error = nl_recvmsgs(socket_.get(), use.get()); error < 0)
      return failure(error, "listening to adverb.ko's events");
    if (receiver.malformed)
      return misunderstood(*receiver.malformed);
  }
  Event out = std::move(events_.front());
  events_.pop_front();
  return out;
}

} // namespace adverb::module
