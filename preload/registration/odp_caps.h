// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What a device says of on-demand paging (ibv_query_device_ex(3)), and what a region needs of it.
//
// Nobody knows at registration by which queue pairs a region will be used, so all that its rights
// allow has to be there, of RC: any region may be sent and written from; with LOCAL_WRITE receives,
// of shared receive queues too, and READs may bring bytes to it; each remote right is an operation
// of peers. Not asked for is ATOMIC where an atomic brings its eight bytes to: mlx5 does that and
// does not say so, and nearly all regions have LOCAL_WRITE. Other transports are asked about when
// the program makes a queue pair of one: mlx5 and rxe say that UC does nothing on demand, mlx5 that
// UD does not receive, and few programs have any.
#pragma once

#include <cstdint>
#include <string_view>

#include <infiniband/verbs.h>

namespace adverb::registration {

// The vendor of rxe. Seen with Linux 7.2, without adverb: each packet from or to on-demand memory
// starts at the first byte of its page, wherever in that it should, with success as status.
inline constexpr uint32_t soft_roce = 0xffffff;

// IBV_ODP_SUPPORT_* of RC that a region with these rights may be used for.
constexpr uint32_t odp_needs(unsigned access) noexcept {
  uint32_t needs = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_WRITE;
  if ((access & IBV_ACCESS_LOCAL_WRITE) != 0)
    needs |= IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV | IBV_ODP_SUPPORT_READ;
  if ((access & IBV_ACCESS_REMOTE_READ) != 0)
    needs |= IBV_ODP_SUPPORT_READ;
  if ((access & IBV_ACCESS_REMOTE_ATOMIC) != 0)
    needs |= IBV_ODP_SUPPORT_ATOMIC;
  return needs;
}

// Whether regions on demand may be used by queue pairs of a type that is not RC.
constexpr bool odp_serves(const ibv_odp_caps& caps, ibv_qp_type type) noexcept {
  constexpr uint32_t datagrams =
      IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
  constexpr uint32_t connected =
      IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE;
  if (type == IBV_QPT_UD)
    return (datagrams & ~caps.per_transport_caps.ud_odp_caps) == 0;
  return type == IBV_QPT_UC && (connected & ~caps.per_transport_caps.uc_odp_caps) == 0;
}

// Why a region with these rights cannot be registered on demand, for people; empty: it can.
constexpr std::string_view odp_lacks(const ibv_device_attr_ex& device, unsigned access) noexcept {
  const ibv_odp_caps& caps = device.odp_caps;
  if ((caps.general_caps & IBV_ODP_SUPPORT) == 0)
    return "the device has no on-demand paging";
  if (device.orig_attr.vendor_id == soft_roce)
    return "soft-RoCE misplaces bytes of on-demand memory";
  constexpr struct {
    uint32_t cap;
    std::string_view why;
  } all[] = {
      {IBV_ODP_SUPPORT_SEND, "the device does not SEND from on-demand memory by RC"},
      {IBV_ODP_SUPPORT_WRITE, "the device does not WRITE from and to on-demand memory by RC"},
      {IBV_ODP_SUPPORT_RECV, "the device does not RECV to on-demand memory by RC"},
      {IBV_ODP_SUPPORT_SRQ_RECV, "the device does not RECV to on-demand memory by SRQs"},
      {IBV_ODP_SUPPORT_READ, "the device does not READ from and to on-demand memory by RC"},
      {IBV_ODP_SUPPORT_ATOMIC, "the device does no ATOMIC on on-demand memory by RC"},
  };
  const uint32_t missing = odp_needs(access) & ~caps.per_transport_caps.rc_odp_caps;
  for (const auto& one : all)
    if ((missing & one.cap) != 0)
      return one.why;
  return {};
}

} // namespace adverb::registration
