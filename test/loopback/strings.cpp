// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Names and rates: the parts of libibverbs that touch no device.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <infiniband/verbs.h>

extern "C" {

const char* ibv_node_type_str(ibv_node_type type) {
  static const char* const names[] = {"unknown",           "InfiniBand channel adapter",
                                      "InfiniBand switch", "InfiniBand router",
                                      "iWARP NIC",         "usNIC",
                                      "usNIC UDP",         "unspecified"};
  return type < IBV_NODE_CA || type > IBV_NODE_UNSPECIFIED ? names[0] : names[type];
}

const char* ibv_port_state_str(ibv_port_state state) {
  static const char* const names[] = {"no state change (NOP)", "down", "init", "armed", "active",
                                      "active defer"};
  return state > IBV_PORT_ACTIVE_DEFER ? "invalid state" : names[state];
}

const char* ibv_event_type_str(ibv_event_type event) {
  static const char* const names[] = {"CQ error",
                                      "local work queue catastrophic error",
                                      "invalid request local work queue error",
                                      "local access violation work queue error",
                                      "communication established",
                                      "send queue drained",
                                      "path migrated",
                                      "path migration request error",
                                      "local catastrophic error",
                                      "port active",
                                      "port error",
                                      "LID change",
                                      "P_Key change",
                                      "SM change",
                                      "SRQ catastrophic error",
                                      "SRQ limit reached",
                                      "last WQE reached",
                                      "client reregistration",
                                      "GID table change",
                                      "WQ fatal"};
  return event > IBV_EVENT_WQ_FATAL ? "unknown" : names[event];
}

const char* ibv_wc_status_str(ibv_wc_status status) {
  static const char* const names[] = {"success",
                                      "local length error",
                                      "local QP operation error",
                                      "local EE context operation error",
                                      "local protection error",
                                      "Work Request Flushed Error",
                                      "memory management operation error",
                                      "bad response error",
                                      "local access error",
                                      "remote invalid request error",
                                      "remote access error",
                                      "remote operation error",
                                      "transport retry counter exceeded",
                                      "RNR retry counter exceeded",
                                      "local RDD violation error",
                                      "remote invalid RD request",
                                      "aborted error",
                                      "invalid EE context number",
                                      "invalid EE context state",
                                      "fatal error",
                                      "response timeout error",
                                      "general error",
                                      "TM error",
                                      "TM software rendezvous"};
  return status > IBV_WC_TM_RNDV_INCOMPLETE ? "unknown" : names[status];
}

struct Rate {
  ibv_rate rate;
  int mult, mbps;
};

static const Rate kRates[] = {{IBV_RATE_2_5_GBPS, 1, 2500},    {IBV_RATE_5_GBPS, 2, 5000},
                              {IBV_RATE_10_GBPS, 4, 10000},    {IBV_RATE_20_GBPS, 8, 20000},
                              {IBV_RATE_30_GBPS, 12, 30000},   {IBV_RATE_40_GBPS, 16, 40000},
                              {IBV_RATE_60_GBPS, 24, 60000},   {IBV_RATE_80_GBPS, 32, 80000},
                              {IBV_RATE_120_GBPS, 48, 120000}, {IBV_RATE_14_GBPS, 6, 14062},
                              {IBV_RATE_56_GBPS, 22, 56250},   {IBV_RATE_112_GBPS, 45, 112500},
                              {IBV_RATE_168_GBPS, 67, 168750}, {IBV_RATE_25_GBPS, 10, 25781},
                              {IBV_RATE_100_GBPS, 41, 103125}, {IBV_RATE_200_GBPS, 82, 206250},
                              {IBV_RATE_300_GBPS, 124, 309375}};

int ibv_rate_to_mult(ibv_rate rate) {
  for (const Rate& row : kRates)
    if (row.rate == rate)
      return row.mult;
  return -1;
}

ibv_rate mult_to_ibv_rate(int mult) {
  for (const Rate& row : kRates)
    if (row.mult == mult)
      return row.rate;
  return IBV_RATE_MAX;
}

int ibv_rate_to_mbps(ibv_rate rate) {
  for (const Rate& row : kRates)
    if (row.rate == rate)
      return row.mbps;
  return -1;
}

ibv_rate mbps_to_ibv_rate(int mbps) {
  for (const Rate& row : kRates)
    if (row.mbps == mbps)
      return row.rate;
  return IBV_RATE_MAX;
}

const char* ibv_get_sysfs_path(void) {
  return "/sys";
}

int ibv_read_sysfs_file(const char* dir, const char* file, char* buf, size_t size) {
  char path[512];
  snprintf(path, sizeof(path), "%s/%s", dir, file);
  FILE* stream = fopen(path, "re");
  if (stream == nullptr)
    return -1;
  const size_t length = fread(buf, 1, size == 0 ? 0 : size - 1, stream);
  fclose(stream);
  if (size == 0)
    return 0;
  buf[length] = '\0';
  if (length != 0 && buf[length - 1] == '\n')
    buf[length - 1] = '\0';
  return static_cast<int>(strlen(buf));
}

int ibv_resolve_eth_l2_from_gid(ibv_context*, ibv_ah_attr*, uint8_t mac[6], uint16_t* vid) {
  memset(mac, 0, 6);
  if (vid != nullptr)
    *vid = 0xffff;
  return 0;
}
}
