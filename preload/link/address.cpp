// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "link/address.h"

#include <arpa/inet.h>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <memory>
#include <net/if.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

namespace adverb::link {
namespace {

unsigned scope_of(const LocalQp& qp) {
  std::ifstream file(std::string("/sys/class/infiniband/") + qp.device->name + "/ports/" +
                     std::to_string(qp.ah.port_num) + "/gid_attrs/ndevs/" +
                     std::to_string(qp.ah.grh.sgid_index));
  std::string name;
  return file >> name ? if_nametoindex(name.c_str()) : 0;
}

sockaddr_in6 with(const in6_addr& address) {
  sockaddr_in6 out{};
  out.sin6_family = AF_INET6;
  out.sin6_addr = address;
  return out;
}

// A sockaddr of either family as IPv6.
bool widen(const sockaddr_storage& in, in6_addr& address, uint16_t& port) {
  if (in.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(in);
    address = v6.sin6_addr;
    port = ntohs(v6.sin6_port);
    return true;
  }
  if (in.ss_family != AF_INET)
    return false;
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(in);
  address = {};
  address.s6_addr[10] = address.s6_addr[11] = 0xFF;
  memcpy(&address.s6_addr[12], &v4.sin_addr, 4);
  port = ntohs(v4.sin_port);
  return true;
}

struct End {
  in6_addr address{};
  unsigned port = 0;
  bool operator==(const End& other) const {
    return port == other.port && memcmp(&address, &other.address, sizeof address) == 0;
  }
};

// An address of /proc/net/tcp or tcp6: 32-bit words in host order.
bool parse_address(const char* hex, bool v6, in6_addr& address) {
  address = {};
  for (int i = 0; i < (v6 ? 4 : 1); ++i) {
    uint32_t word = 0;
    if (sscanf(hex + 8 * i, "%8" SCNx32, &word) != 1)
      return false;
    memcpy(&address.s6_addr[v6 ? 4 * i : 12], &word, sizeof word);
  }
  if (!v6)
    address.s6_addr[10] = address.s6_addr[11] = 0xFF;
  return true;
}

// Of one that is connected.
bool parse_socket(const char* line, bool v6, End& local, End& remote, unsigned& uid) {
  char from[33] = {};
  char to[33] = {};
  unsigned state = 0;
  return sscanf(line, " %*u: %32[0-9A-F]:%x %32[0-9A-F]:%x %x %*x:%*x %*x:%*x %*x %u", from,
                &local.port, to, &remote.port, &state, &uid) == 6 &&
         state == TCP_ESTABLISHED && parse_address(from, v6, local.address) &&
         parse_address(to, v6, remote.address);
}

// What users of others a user namespace does not know are all called in it (user_namespaces(7)).
std::optional<uid_t> name_of_unknown() {
  uint64_t known = 0;
  std::ifstream map("/proc/self/uid_map");
  for (uint64_t here = 0, there = 0, users = 0; map >> here >> there >> users;)
    known += users;
  if (known >= UINT32_MAX)
    return std::nullopt;
  uid_t name = 65534;
  std::ifstream("/proc/sys/kernel/overflowuid") >> name;
  return name;
}

// In the lists of this namespace's sockets, of which there may be thousands.
std::optional<uid_t> search_lists(const End& theirs, const End& ours) {
  for (const bool v6 : {true, false}) {
    struct Close {
      void operator()(FILE* f) const { fclose(f); }
    };
    const std::unique_ptr<FILE, Close> file(fopen(v6 ? "/proc/net/tcp6" : "/proc/net/tcp", "re"));
    char line[512];
    while (file && fgets(line, sizeof line, file.get()) != nullptr) {
      End local;
      End remote;
      unsigned uid = 0;
      if (parse_socket(line, v6, local, remote, uid) && local == theirs && remote == ours)
        return uid;
    }
  }
  return std::nullopt;
}

// What the kernel answers to one question by netlink (7), in one message.
struct Answer {
  alignas(nlmsghdr) std::array<char, 3584> message;
  ssize_t bytes = -1;

  Answer(int protocol, const void* question, size_t size) {
    const int fd = socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, protocol);
    if (fd < 0)
      return;
    if (send(fd, question, size, 0) == static_cast<ssize_t>(size))
      bytes = recv(fd, message.data(), message.size(), MSG_DONTWAIT); // it has answered by then
    close(fd);
  }
  // Its body, if it is of that type.
  template <typename T> bool get(int type, T& body) const {
    nlmsghdr header;
    if (bytes < static_cast<ssize_t>(NLMSG_LENGTH(sizeof body)))
      return false;
    memcpy(&header, message.data(), sizeof header);
    memcpy(&body, NLMSG_DATA(message.data()), sizeof body);
    return header.nlmsg_type == type;
  }
};

// Asks for one connected TCP socket of this namespace (sock_diag(7)). Both of its ends must match:
// users may share a local port towards different destinations, and where there is none that is
// connected the kernel answers with one that listens on that port.
enum class Found : uint8_t { yes, no, unknown };
Found ask_for_socket(const End& local, const End& remote, uid_t& uid) {
  struct {
    nlmsghdr header;
    inet_diag_req_v2 request;
  } question{};
  question.header.nlmsg_len = sizeof question;
  question.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.header.nlmsg_flags = NLM_F_REQUEST;
  auto& request = question.request;
  request.sdiag_family = AF_INET6; // v4-mapped ones it looks for among those of IPv4
  request.sdiag_protocol = IPPROTO_TCP;
  request.idiag_states = ~0U;
  request.id.idiag_sport = htons(static_cast<uint16_t>(local.port));
  request.id.idiag_dport = htons(static_cast<uint16_t>(remote.port));
  memcpy(request.id.idiag_src, &local.address, sizeof local.address);
  memcpy(request.id.idiag_dst, &remote.address, sizeof remote.address);
  request.id.idiag_cookie[0] = request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  const Answer answer(NETLINK_SOCK_DIAG, &question, sizeof question);
  nlmsgerr error;
  if (answer.get(NLMSG_ERROR, error))
    return error.error == -ENOENT ? Found::no : Found::unknown;
  inet_diag_msg found;
  if (!answer.get(SOCK_DIAG_BY_FAMILY, found))
    return Found::unknown;
  // One that is being closed has lost its user, and is said to be root's.
  if (found.id.idiag_dport != request.id.idiag_dport || found.idiag_state != TCP_ESTABLISHED)
    return Found::no;
  uid = found.idiag_uid;
  return Found::yes;
}

} // namespace

std::optional<sockaddr_in6> peer_address(const policy::LinkSettings& settings, const LocalQp& qp) {
  if (qp.ah.is_global == 0) {
    if (const auto mapped = settings.mapped_lid(qp.ah.dlid))
      return with(*mapped);
    return std::nullopt;
  }
  std::array<uint8_t, 16> gid;
  memcpy(gid.data(), qp.ah.grh.dgid.raw, gid.size());
  if (const auto mapped = settings.mapped_peer(gid))
    return with(*mapped);
  in6_addr address;
  memcpy(&address, gid.data(), sizeof address);
  auto out = with(address);
  if (IN6_IS_ADDR_LINKLOCAL(&address)) {
    out.sin6_scope_id = scope_of(qp);
    if (out.sin6_scope_id == 0)
      return std::nullopt;
  }
  return out;
}

std::string to_text(const sockaddr_in6& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (IN6_IS_ADDR_V4MAPPED(&address.sin6_addr))
    inet_ntop(AF_INET, &address.sin6_addr.s6_addr[12], text, sizeof text);
  else
    inet_ntop(AF_INET6, &address.sin6_addr, text, sizeof text);
  return address.sin6_scope_id == 0 ? std::string(text)
                                    : text + ("%" + std::to_string(address.sin6_scope_id));
}

int remote_address(int fd, in6_addr& address) {
  sockaddr_storage peer{};
  socklen_t bytes = sizeof peer;
  uint16_t port = 0;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) != 0)
    return errno;
  return widen(peer, address, port) ? 0 : EAFNOSUPPORT;
}

// As the route to it says (rtnetlink(7)): what is sent there stays here.
bool is_own(const in6_addr& address) {
  const bool v4 = IN6_IS_ADDR_V4MAPPED(&address);
  struct {
    nlmsghdr header;
    rtmsg route;
    rtattr to;
    in6_addr address;
  } question{};
  const size_t bytes = v4 ? 4 : sizeof address;
  question.header.nlmsg_len = static_cast<uint32_t>(offsetof(decltype(question), address) + bytes);
  question.header.nlmsg_type = RTM_GETROUTE;
  question.header.nlmsg_flags = NLM_F_REQUEST;
  question.route.rtm_family = v4 ? AF_INET : AF_INET6;
  question.route.rtm_dst_len = static_cast<uint8_t>(8 * bytes);
  question.to.rta_type = RTA_DST;
  question.to.rta_len = static_cast<uint16_t>(RTA_LENGTH(bytes));
  memcpy(&question.address, v4 ? &address.s6_addr[12] : &address.s6_addr[0], bytes);
  const Answer answer(NETLINK_ROUTE, &question, question.header.nlmsg_len);
  rtmsg route;
  return answer.get(RTM_NEWROUTE, route) && route.rtm_type == RTN_LOCAL;
}

std::optional<uid_t> user_here(int fd) {
  End theirs;
  End ours;
  const auto end_of = [fd](auto name, End& end) {
    sockaddr_storage address{};
    socklen_t bytes = sizeof address;
    uint16_t port = 0;
    if (name(fd, reinterpret_cast<sockaddr*>(&address), &bytes) != 0 ||
        !widen(address, end.address, port))
      return false;
    end.port = port;
    return true;
  };
  if (!end_of(getpeername, theirs) || !end_of(getsockname, ours))
    return std::nullopt;
  uid_t uid = 0;
  switch (ask_for_socket(theirs, ours, uid)) {
  case Found::yes:
    return uid == name_of_unknown() ? unknown_user : uid;
  case Found::no:
    // It says the same where it cannot tell: then it does not know of our own socket either.
    if (ask_for_socket(ours, theirs, uid) == Found::yes)
      return std::nullopt;
    break;
  case Found::unknown:
    break;
  }
  const auto user = search_lists(theirs, ours);
  return user && user == name_of_unknown() ? unknown_user : user;
}

bool may_vouch(const policy::LinkSettings& settings) {
  return settings.key.empty() && settings.proof != policy::Proof::all;
}

bool is_vouched_for(const policy::LinkSettings& settings, int fd) {
  if (!may_vouch(settings))
    return false;
  const auto user = user_here(fd);
  return user && (*user == geteuid() || *user == 0);
}

} // namespace adverb::link
