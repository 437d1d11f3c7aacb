// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The RDMA devices this user can open, and what of them matters to adverb.
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "link/slots.h"
#include "observe/directory.h"
#include "registration/critical_size.h"
#include "registration/view_source.h"
#include "tools/doctor.h"
#include "tools/doctor_path.h"
#include "world/clock.h"

#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <memory>
#include <optional>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>
#include <infiniband/verbs.h>

namespace adverb::tools {
namespace {

// The kernel driver behind a device, or the netdev under a software one.
std::string driver_of(const ibv_device* device) {
  char target[PATH_MAX];
  const std::string sysfs = device->ibdev_path;
  const ssize_t size = readlink((sysfs + "/device/driver").c_str(), target, sizeof target);
  if (size > 0) {
    const std::string path(target, static_cast<size_t>(size));
    return "driver " + path.substr(path.rfind('/') + 1);
  }
  std::string parent;
  std::ifstream(sysfs + "/parent") >> parent;
  return parent.empty() ? "driver unknown" : "software device on " + parent;
}

std::string ports_of(ibv_context* context, int ports, bool& active, bool& iwarp) {
  std::string out;
  for (int port = 1; port <= ports; ++port) {
    ibv_port_attr attr{};
    if (ibv_query_port(context, static_cast<uint8_t>(port), &attr) != 0)
      continue;
    active = active || attr.state == IBV_PORT_ACTIVE;
    iwarp = context->device->transport_type == IBV_TRANSPORT_IWARP;
    const char* layer = iwarp                                        ? "iWARP"
                        : attr.link_layer == IBV_LINK_LAYER_ETHERNET ? "RoCE"
                                                                     : "InfiniBand";
    out += fmt::format("{}port {} {} {}, MTU {}", out.empty() ? "" : "; ", port, layer,
                       ibv_port_state_str(attr.state), 128 << attr.active_mtu);
  }
  return out;
}

std::string abilities_of(ibv_context* context, int& ports, std::string& on_demand) {
  ibv_device_attr_ex attr{};
  if (ibv_query_device_ex(context, nullptr, &attr) != 0) {
    ports = 0;
    return fmt::format("cannot be queried: {}", std::strerror(errno));
  }
  ports = attr.orig_attr.phys_port_cnt;
  on_demand = on_demand_by(attr);
  const unsigned flags = attr.orig_attr.device_cap_flags;
  const bool windows = (flags & (IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2A |
                                 IBV_DEVICE_MEM_WINDOW_TYPE_2B)) != 0 ||
                       attr.orig_attr.max_mw > 0;
  return fmt::format("memory windows {}, at most {} regions and {} CQEs",
                     windows ? "yes" : "no (keys are reserved by one-page regions)",
                     attr.orig_attr.max_mr, attr.orig_attr.max_cqe);
}

// Measured now, and kept for programs to come.
void check_critical_size(Report& report, const std::string& what, ibv_context* context) {
  const std::unique_ptr<ibv_pd, int (*)(ibv_pd*)> pd(ibv_alloc_pd(context), ibv_dealloc_pd);
  SteadyClock clock;
  constexpr int access = IBV_ACCESS_LOCAL_WRITE;
  std::optional<registration::CriticalSize> size;
  if (pd)
    size = registration::measure_critical_size(
        clock,
        {[&](void* start, size_t bytes) { return ibv_reg_mr(pd.get(), start, bytes, access); },
         [](ibv_mr* mr) { ibv_dereg_mr(mr); }});
  if (!size)
    return report.warn(what, "it takes no regions of 256 KiB",
                       "raise RLIMIT_MEMLOCK (`ulimit -l`)");
  registration::keep_critical_size(observe::own_directories(), ibv_get_device_name(context->device),
                                   *size);
  report.ok(what, fmt::format("registering memory takes as long as copying {} KiB that are in "
                              "memory, or {} KiB that are not; a rule's copy_below overrides that",
                              size->resident >> 10, size->absent >> 10));
}

// Whether it READs unpinned memory for peers: tried, as it shows in no other way.
void check_views(Report& report, const std::string& what, ibv_context* context) {
  const std::unique_ptr<ibv_pd, int (*)(ibv_pd*)> pd(ibv_alloc_pd(context), ibv_dealloc_pd);
  if (!pd)
    return;
  std::string why;
  if (registration::try_view(pd.get(), why) == 0)
    report.ok(what, "READs unpinned memory for peers through adverb.ko (backends np and auto)");
  else
    report.warn(what, "does not READ unpinned memory through adverb.ko: " + why,
                "backends np and auto lease it to peers instead");
}

void check_device(Report& report, ibv_device* device, const HostFiles& host) {
  const std::string what = std::string("device ") + ibv_get_device_name(device);
  const std::unique_ptr<ibv_context, int (*)(ibv_context*)> context(ibv_open_device(device),
                                                                    ibv_close_device);
  if (!context) {
    const std::string node = std::string("/dev/infiniband/") + device->dev_name;
    report.fail(
        what, fmt::format("cannot be opened: {}", std::strerror(errno)),
        fmt::format("check that {} exists and that this user may write it (group rdma)", node));
    return;
  }
  int ports = 0;
  std::string on_demand;
  const std::string abilities = abilities_of(context.get(), ports, on_demand);
  bool active = false, iwarp = false;
  const std::string where =
      driver_of(device) + ", " + ports_of(context.get(), ports, active, iwarp);
  if (iwarp)
    report.warn(what, where, "iWARP peers are treated as stock: only local regions are unpinned");
  else if (active)
    report.ok(what, where);
  else
    report.warn(what, where + ": no active port", "bring its link up");
  report.ok(what, abilities);
  if (!on_demand.empty())
    report.ok(what, on_demand);
  check_critical_size(report, what, context.get());
  if (module_loaded(host))
    check_views(report, what, context.get());
  for (const std::string& net_device : net_devices_elsewhere(host, ibv_get_device_name(device)))
    report.warn(what, elsewhere(net_device), elsewhere_remedy);
}

// As link/slots.cpp does it.
int register_slot(ibv_pd* pd, link::SlotKind kind, unsigned access) {
  void* const memory =
      mmap(nullptr, link::slot_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED)
    return errno;
  errno = 0;
  ibv_mr* const mr =
      ibv_reg_mr_iova(pd, memory, link::slot_page, link::slot_address(kind, 0), access);
  const int error = mr != nullptr ? 0 : errno != 0 ? errno : EIO;
  if (mr != nullptr)
    ibv_dereg_mr(mr);
  munmap(memory, link::slot_page);
  return error;
}

} // namespace

int register_slots(const std::string& device) {
  int error = ENODEV;
  ibv_device** const list = ibv_get_device_list(nullptr);
  for (ibv_device** one = list; one != nullptr && *one != nullptr; ++one) {
    if (device != ibv_get_device_name(*one))
      continue;
    const std::unique_ptr<ibv_context, int (*)(ibv_context*)> context(ibv_open_device(*one),
                                                                      ibv_close_device);
    if (!context) {
      error = errno;
      break;
    }
    ibv_pd* const pd = ibv_alloc_pd(context.get());
    if (pd == nullptr) {
      error = errno;
      break;
    }
    error =
        register_slot(pd, link::SlotKind::write, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (error == 0)
      error = register_slot(pd, link::SlotKind::read, IBV_ACCESS_REMOTE_READ);
    ibv_dealloc_pd(pd);
    break;
  }
  if (list != nullptr)
    ibv_free_device_list(list);
  return error;
}

void check_devices(Report& report, const HostFiles& host) {
  int count = 0;
  ibv_device** list = ibv_get_device_list(&count);
  if (list == nullptr || count == 0)
    report.fail("devices", "no RDMA device",
                "load the NIC's driver, or make a software one: `rdma link add rxe0 type rxe "
                "netdev NETDEV`");
  for (int i = 0; list != nullptr && i < count; ++i)
    check_device(report, list[i], host);
  if (list != nullptr)
    ibv_free_device_list(list);
}

} // namespace adverb::tools
