// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Devices, ports and GIDs: lo0 .. loN-1, one active RoCE port each.
#include "objects.h"

#include <arpa/inet.h>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <net/if.h>

namespace adverb::loopback {

namespace {

constexpr int kGids = 2;

uint32_t device_count() {
  const char* value = getenv("ADVERB_LOOPBACK_DEVICES");
  const unsigned long count = value != nullptr ? strtoul(value, nullptr, 0) : 1;
  return count > 16 ? 16 : static_cast<uint32_t>(count);
}

Device* device(uint32_t number) {
  static std::mutex mutex;
  static Device* devices[16];
  static const void* no_driver = nullptr;
  std::lock_guard lock(mutex);
  if (devices[number] == nullptr) {
    auto* made = new Device{};
    made->device.node_type = IBV_NODE_CA;
    made->device.transport_type = IBV_TRANSPORT_IB;
    snprintf(made->device.name, sizeof(made->device.name), "lo%u", number);
    snprintf(made->device.dev_name, sizeof(made->device.dev_name), "uverbs%u", number);
    snprintf(made->device.dev_path, sizeof(made->device.dev_path),
             "/sys/class/infiniband_verbs/uverbs%u", number);
    snprintf(made->device.ibdev_path, sizeof(made->device.ibdev_path), "/sys/class/infiniband/lo%u",
             number);
    made->ops = &no_driver;
    made->number = number;
    devices[number] = made;
  }
  return devices[number];
}

uint32_t loopback_interface() {
  static const uint32_t index = if_nametoindex("lo");
  return index;
}

int fill_gid_entry(Context& context, uint32_t port, uint32_t index, ibv_gid_entry& entry) {
  if (port != 1)
    return EINVAL;
  if (index >= kGids)
    return EINVAL;
  entry.gid = gid_of(context.device->number, static_cast<int>(index));
  entry.gid_index = index;
  entry.port_num = port;
  entry.gid_type = IBV_GID_TYPE_ROCE_V2;
  entry.ndev_ifindex = loopback_interface();
  return 0;
}

} // namespace

// Index 0: link-local; index 1: 127.0.0.1 + device, mapped.
ibv_gid gid_of(uint32_t number, int index) {
  ibv_gid gid = {};
  if (index == 0) {
    gid.raw[0] = 0xfe;
    gid.raw[1] = 0x80;
    gid.raw[8] = 0x02;
    gid.raw[11] = 0xff;
    gid.raw[12] = 0xfe;
    gid.raw[15] = static_cast<uint8_t>(number + 1);
  } else {
    gid.raw[10] = gid.raw[11] = 0xff;
    gid.raw[12] = 127;
    gid.raw[15] = static_cast<uint8_t>(number + 1);
  }
  return gid;
}

bool gid_matches(uint32_t number, const ibv_gid& gid) {
  for (int index = 0; index < kGids; ++index) {
    const ibv_gid own = gid_of(number, index);
    if (memcmp(&own, &gid, sizeof(gid)) == 0)
      return true;
  }
  return false;
}

int query_port(ibv_context*, uint8_t port, ibv_port_attr* attr, size_t size) {
  if (port != 1)
    return EINVAL;
  ibv_port_attr full = {};
  full.state = IBV_PORT_ACTIVE;
  full.max_mtu = IBV_MTU_4096;
  full.active_mtu = IBV_MTU_4096;
  full.gid_tbl_len = kGids;
  full.port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS;
  full.max_msg_sz = kMaxMessage;
  full.pkey_tbl_len = 1;
  full.max_vl_num = 1;
  full.active_width = 2;  // 4x
  full.active_speed = 32; // EDR
  full.phys_state = 5;    // link up
  full.link_layer = IBV_LINK_LAYER_ETHERNET;
  full.flags = IBV_QPF_GRH_REQUIRED;
  memcpy(attr, &full, std::min(size, sizeof(full)));
  return 0;
}

} // namespace adverb::loopback

using namespace adverb::loopback;

extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  const uint32_t devices = device_count();
  auto** list = static_cast<ibv_device**>(calloc(devices + 1, sizeof(ibv_device*)));
  if (list == nullptr) {
    errno = ENOMEM;
    return nullptr;
  }
  for (uint32_t i = 0; i < devices; ++i)
    list[i] = &device(i)->device;
  if (count != nullptr)
    *count = static_cast<int>(devices);
  return list;
}

void ibv_free_device_list(ibv_device** list) {
  free(list);
}
const char* ibv_get_device_name(ibv_device* device) {
  return device->name;
}
__be64 ibv_get_device_guid(ibv_device* device) {
  return htobe64(0x020000fffe000000u | (as<Device>(device)->number + 1));
}
int ibv_get_device_index(ibv_device* device) {
  return static_cast<int>(as<Device>(device)->number);
}

#undef ibv_query_port
int ibv_query_port(ibv_context* context, uint8_t port, _compat_ibv_port_attr* attr) {
  // The part of ibv_port_attr before its `flags`, as programs built before it know it.
  return query_port(context, port, reinterpret_cast<ibv_port_attr*>(attr),
                    offsetof(ibv_port_attr, flags));
}

int ibv_query_gid(ibv_context* context, uint8_t port, int index, ibv_gid* gid) {
  ibv_gid_entry entry = {};
  if (fill_gid_entry(*context_of(context), port, static_cast<uint32_t>(index), entry) != 0) {
    errno = EINVAL;
    return -1;
  }
  *gid = entry.gid;
  return 0;
}

int _ibv_query_gid_ex(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry,
                      uint32_t flags, size_t size) {
  if (flags != 0)
    return EOPNOTSUPP;
  ibv_gid_entry full = {};
  if (const int error = fill_gid_entry(*context_of(context), port, index, full); error != 0)
    return error;
  memcpy(entry, &full, std::min(size, sizeof(full)));
  return 0;
}

ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, size_t max,
                             uint32_t flags, size_t size) {
  if (flags != 0 || size < sizeof(ibv_gid_entry))
    return -EOPNOTSUPP;
  if (max < kGids)
    return -EINVAL;
  for (uint32_t i = 0; i < kGids; ++i) {
    ibv_gid_entry full = {};
    fill_gid_entry(*context_of(context), 1, i, full);
    memcpy(reinterpret_cast<char*>(entries) + i * size, &full, sizeof(full));
  }
  return kGids;
}

// The provider-private form: 1 is RoCE v2 there (IBV_GID_TYPE_SYSFS_ROCE_V2).
int ibv_query_gid_type(ibv_context*, uint8_t port, unsigned index, uint32_t* type) {
  if (port != 1 || index >= kGids) {
    errno = EINVAL;
    return -1;
  }
  *type = 1;
  return 0;
}

int ibv_query_pkey(ibv_context*, uint8_t port, int index, __be16* pkey) {
  if (port != 1 || index != 0) {
    errno = EINVAL;
    return -1;
  }
  *pkey = 0xffff;
  return 0;
}

int ibv_get_pkey_index(ibv_context*, uint8_t port, __be16 pkey) {
  if (port == 1 && (pkey == 0xffff || pkey == htons(0x7fff)))
    return 0;
  errno = EINVAL;
  return -1;
}
}
