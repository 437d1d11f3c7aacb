// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "tools/qp_owner.h"

#include <netlink/attr.h>
#include <netlink/errno.h>
#include <netlink/handlers.h>
#include <netlink/msg.h>
#include <netlink/netlink.h>
#include <netlink/socket.h>
#include <optional>
#include <rdma/rdma_netlink.h>
#include <string>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>
#include <utility>

namespace adverb::tools {
namespace {

constexpr timeval longest{1, 0}; // the kernel answers at once

using Message = std::unique_ptr<nl_msg, void (*)(nl_msg*)>;

Message request(int command, int flags) {
  return {nlmsg_alloc_simple(RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, command), flags), nlmsg_free};
}

// Two u32 of each message that answers, where it has them.
struct Answer {
  int first_attribute;
  int second_attribute;
  std::vector<std::pair<std::optional<uint32_t>, std::optional<uint32_t>>> values;
};

int on_message(nl_msg* message, void* given) {
  auto& answer = *static_cast<Answer*>(given);
  const auto value = [&](int attribute) {
    const nlattr* const found = nlmsg_find_attr(nlmsg_hdr(message), 0, attribute);
    return found != nullptr && nla_len(found) >= 4 ? std::optional(nla_get_u32(found))
                                                   : std::nullopt;
  };
  answer.values.emplace_back(value(answer.first_attribute), value(answer.second_attribute));
  return NL_OK;
}

// libnl's error, 0 for good.
int ask(nl_sock* socket, const Message& message, Answer& answer) {
  if (!message)
    return -NLE_NOMEM;
  if (const int rc = nl_send_auto(socket, message.get()); rc < 0)
    return rc;
  const std::unique_ptr<nl_cb, void (*)(nl_cb*)> callbacks(nl_cb_alloc(NL_CB_DEFAULT), nl_cb_put);
  if (!callbacks)
    return -NLE_NOMEM;
  nl_cb_set(callbacks.get(), NL_CB_VALID, NL_CB_CUSTOM, on_message, &answer);
  return nl_recvmsgs(socket, callbacks.get());
}

} // namespace

QpOwners::QpOwners() : socket_(nl_socket_alloc(), nl_socket_free) {
  if (!socket_)
    return;
  nl_socket_disable_auto_ack(socket_.get());
  if (nl_connect(socket_.get(), NETLINK_RDMA) < 0) {
    socket_.reset();
    return;
  }
  setsockopt(nl_socket_get_fd(socket_.get()), SOL_SOCKET, SO_RCVTIMEO, &longest, sizeof longest);
}

QpOwners::~QpOwners() = default;

std::vector<QpOwners::Device> QpOwners::devices() {
  // Of devices it says how many ports there are by the attribute that is one's number elsewhere.
  Answer answer{RDMA_NLDEV_ATTR_DEV_INDEX, RDMA_NLDEV_ATTR_PORT_INDEX, {}};
  std::vector<Device> all;
  if (ask(socket_.get(), request(RDMA_NLDEV_CMD_GET, NLM_F_DUMP), answer) < 0)
    return all;
  for (const auto& [index, ports] : answer.values)
    if (index)
      all.push_back({*index, ports.value_or(1)});
  return all;
}

// It wants the port as well, which a queue pair has from INIT on; for another it says EAGAIN.
QpOwners::Made QpOwners::made(const Device& device, uint32_t qpn, pid_t process) {
  for (uint32_t port = 1; port <= device.ports; ++port) {
    const Message message = request(RDMA_NLDEV_CMD_RES_QP_GET, 0);
    if (message) {
      nla_put_u32(message.get(), RDMA_NLDEV_ATTR_DEV_INDEX, device.index);
      nla_put_u32(message.get(), RDMA_NLDEV_ATTR_PORT_INDEX, port);
      nla_put_u32(message.get(), RDMA_NLDEV_ATTR_RES_LQPN, qpn);
    }
    Answer answer{RDMA_NLDEV_ATTR_RES_PID, RDMA_NLDEV_ATTR_RES_LQPN, {}};
    const int rc = ask(socket_.get(), message, answer);
    if (rc == -NLE_OBJ_NOTFOUND)
      return Made::nowhere;
    if (rc == -NLE_AGAIN)
      continue;
    if (rc < 0 || answer.values.empty() || !answer.values.front().first)
      return Made::unknown;
    return made_by(*answer.values.front().first, process);
  }
  return Made::unknown;
}

QpOwners::Made QpOwners::made_by(uint32_t maker, pid_t process) {
  // The kernel names the thread that made it.
  const std::string thread = "/proc/" + std::to_string(process) + "/task/" + std::to_string(maker);
  if (access(thread.c_str(), F_OK) == 0)
    return Made::here;
  // Of somebody else, if such a thread is to be seen at all.
  const std::string anyone = "/proc/" + std::to_string(maker);
  return access(anyone.c_str(), F_OK) == 0 ? Made::elsewhere : Made::unknown;
}

bool QpOwners::may_own(pid_t process, uint32_t qpn) {
  if (!socket_ || process <= 0)
    return true;
  bool elsewhere = false;
  for (const Device& device : devices()) {
    const Made where = made(device, qpn, process);
    if (where == Made::here || where == Made::unknown)
      return true;
    elsewhere |= where == Made::elsewhere;
  }
  return !elsewhere;
}

} // namespace adverb::tools
