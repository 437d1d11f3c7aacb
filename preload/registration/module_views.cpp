// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Views by adverb.ko (kernel/adverb_uapi.h), registered by the kernel's own REG_DMABUF_MR: not all
// providers have the verb for it, and none would add anything.
#include "memory/module_file.h"
#include "memory/own_fds.h"
#include "registration/view_source.h"
#include "world/sync.h"
#include "world/world.h"

#include "../../kernel/adverb_uapi.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <mutex>
#include <new>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

namespace adverb::registration {

namespace {

// Bytes that the kernel keeps this thread for at once, when it shows what is in memory.
constexpr uint64_t shown_at_once = 64U << 20;

ib_uverbs_attr attribute(unsigned id, size_t length, uint64_t data) noexcept {
  ib_uverbs_attr made{};
  made.attr_id = static_cast<uint16_t>(id);
  made.len = static_cast<uint16_t>(length);
  made.flags = UVERBS_ATTR_F_MANDATORY;
  made.data = data;
  return made;
}

// One call of the kernel's verbs; `handle`, if not null, gets the first attribute's. errno.
int call(const ibv_context* context, uint32_t driver, unsigned object, unsigned method,
         std::initializer_list<ib_uverbs_attr> list, uint32_t* handle) noexcept {
  constexpr size_t most = 9;
  alignas(ib_uverbs_ioctl_hdr)
      std::array<std::byte, sizeof(ib_uverbs_ioctl_hdr) + most * sizeof(ib_uverbs_attr)>
          command{};
  assert(list.size() <= most);
  auto* const header = new (command.data()) ib_uverbs_ioctl_hdr{};
  header->length = static_cast<uint16_t>(sizeof *header + list.size() * sizeof(ib_uverbs_attr));
  header->object_id = static_cast<uint16_t>(object);
  header->method_id = static_cast<uint16_t>(method);
  header->driver_id = driver;
  header->num_attrs = static_cast<uint16_t>(list.size());
  std::ranges::copy(list, header->attrs);
  if (ioctl(context->cmd_fd, RDMA_VERBS_IOCTL, header) != 0)
    return errno;
  if (handle != nullptr)
    *handle = static_cast<uint32_t>(header->attrs[0].data);
  return 0;
}

// The kernel wants its driver named in each call, and tells the name to providers alone. By another
// name nothing is valid; by the right one this is answered, or not supported.
uint32_t driver_of(const ibv_context* context) noexcept {
  constexpr uint32_t most = 64; // more than there are names for (rdma/ib_user_ioctl_verbs.h)
  for (uint32_t driver = 0; driver < most; ++driver)
    if (call(context, driver, UVERBS_OBJECT_DEVICE, UVERBS_METHOD_QUERY_CONTEXT, {}, nullptr) !=
        EINVAL)
      return driver;
  return 0;
}

int enroll(const ibv_pd* pd, int fd, uint64_t offset, uint64_t length, uint64_t iova,
           uint32_t& handle, uint32_t& rkey) noexcept {
  uint32_t lkey = 0;
  return call(
      pd->context, driver_of(pd->context), UVERBS_OBJECT_MR, UVERBS_METHOD_REG_DMABUF_MR,
      {attribute(UVERBS_ATTR_REG_DMABUF_MR_HANDLE, 0, 0),
       attribute(UVERBS_ATTR_REG_DMABUF_MR_PD_HANDLE, 0, pd->handle),
       attribute(UVERBS_ATTR_REG_DMABUF_MR_OFFSET, 8, offset),
       attribute(UVERBS_ATTR_REG_DMABUF_MR_LENGTH, 8, length),
       attribute(UVERBS_ATTR_REG_DMABUF_MR_IOVA, 8, iova),
       attribute(UVERBS_ATTR_REG_DMABUF_MR_FD, 4, static_cast<uint32_t>(fd)),
       attribute(UVERBS_ATTR_REG_DMABUF_MR_ACCESS_FLAGS, 4, IBV_ACCESS_REMOTE_READ),
       attribute(UVERBS_ATTR_REG_DMABUF_MR_RESP_LKEY, 4, reinterpret_cast<uintptr_t>(&lkey)),
       attribute(UVERBS_ATTR_REG_DMABUF_MR_RESP_RKEY, 4, reinterpret_cast<uintptr_t>(&rkey))},
      &handle);
}

// What the module says to a call that has failed: errno, and `why` where there is more to say.
int refused(std::string& why) {
  const int error = errno;
  if (error == EDQUOT)
    why = "this user has reached its limit of regions or tables of adverb.ko (see `adverb stat "
          "--all`)";
  else if (error == ENOMEM)
    why = "adverb.ko's tables are charged to RLIMIT_MEMLOCK, which is used up; raise it";
  return error;
}

// Why a device did not take a view of that region; the module knows why it could not attach.
std::string reason(int module, uint32_t region, int error) {
  adverb_query query{};
  query.region = region;
  if (ioctl(module, ADVERB_IOC_QUERY, &query) == 0 && query.reason[0] != '\0')
    return query.reason;
  return std::string("the device does not register a dma-buf: ") + strerror(error);
}

void deregister(const ibv_context* context, uint32_t handle) noexcept {
  call(context, driver_of(context), UVERBS_OBJECT_MR, UVERBS_METHOD_MR_DESTROY,
       {attribute(UVERBS_ATTR_DESTROY_MR_HANDLE, 0, handle)}, nullptr);
}

class ModuleViews final : public ViewSource {
public:
  explicit ModuleViews(World& world) : world_(world) {}
  ~ModuleViews() override { own_fds::shut(fd_); }

  int begin(Image& image, std::string& why) override {
    if (const int error = be_open(why); error != 0)
      return error;
    adverb_region_create create{};
    create.start = image.start;
    create.length = image.length;
    create.flags = ADVERB_REGION_READ_ONLY;
    if (ioctl(fd_, ADVERB_IOC_REGION_CREATE, &create) != 0)
      return refused(why);
    image.number = create.region;
    adverb_query query{};
    query.region = create.region;
    query.pattern = reinterpret_cast<uintptr_t>(image.pattern.data());
    if (ioctl(fd_, ADVERB_IOC_QUERY, &query) == 0)
      return 0;
    const int error = refused(why);
    end(image);
    return error;
  }

  int build(const Image& image, uintptr_t address, View& view, std::string& why) override {
    adverb_build build{};
    build.region = image.number;
    build.view = ADVERB_VIEW_READ;
    build.address = address;
    if (ioctl(fd_, ADVERB_IOC_BUILD, &build) != 0)
      return refused(why);
    world_.service.own_fd(build.fd);
    view.fd = build.fd;
    view.from = std::max<uintptr_t>(image.start, build.start);
    view.to = std::min<uintptr_t>(image.start + image.length, build.start + build.length);
    // Else all would be away, and brought by the CPU page by page.
    for (uintptr_t at = view.from; at < view.to; at += shown_at_once) {
      const Shown part{at, std::min<uintptr_t>(at + shown_at_once, view.to)};
      show(image, {&part, 1});
    }
    const int error = enroll(image.pd, view.fd, view.from - build.start, view.to - view.from,
                             view.from + image.shift, view.handle, view.rkey);
    if (error == 0)
      return 0;
    why = reason(fd_, image.number, error);
    world_.service.disown_fd(view.fd);
    close(view.fd);
    give_back_extent(image, address);
    return error;
  }

  void give_back(const Image& image, const View& view) noexcept override {
    deregister(image.pd->context, view.handle);
    world_.service.disown_fd(view.fd);
    close(view.fd);
    give_back_extent(image, view.from);
  }

  void show(const Image& image, std::span<const Shown> what) noexcept override {
    std::array<adverb_range, 64> ranges;
    while (!what.empty()) {
      const auto some = what.first(std::min(what.size(), ranges.size()));
      std::ranges::transform(some, ranges.begin(), [](const Shown& shown) {
        adverb_range range{};
        range.start = shown.from;
        range.length = shown.to - shown.from;
        return range;
      });
      adverb_fault_in fault{};
      fault.ranges = reinterpret_cast<uintptr_t>(ranges.data());
      fault.count = static_cast<uint32_t>(some.size());
      fault.region = image.number;
      fault.flags = ADVERB_FAULT_PRESENT;
      ioctl(fd_, ADVERB_IOC_FAULT_IN, &fault); // what cannot be shown is missed, which costs time
      what = what.subspan(some.size());
    }
  }

  void end(const Image& image) noexcept override {
    adverb_region_destroy destroy{};
    destroy.region = image.number;
    ioctl(fd_, ADVERB_IOC_REGION_DESTROY, &destroy);
  }

private:
  int be_open(std::string& why) {
    const std::lock_guard hold(lock_);
    if (fd_ >= 0)
      return 0;
    fd_ = memory::open_module(why);
    if (fd_ < 0)
      return ENODEV;
    world_.service.own_fd(fd_);
    return 0;
  }

  void give_back_extent(const Image& image, uintptr_t address) const noexcept {
    adverb_give_back back{};
    back.region = image.number;
    back.view = ADVERB_VIEW_READ;
    back.address = address;
    ioctl(fd_, ADVERB_IOC_GIVE_BACK, &back); // not there any more once the image has ended
  }

  World& world_;
  Mutex lock_;
  int fd_ = -1; // of /dev/adverb, once there is an image
};

// try_view() with the module open, and a page of nobody else's.
int try_page(int module, ibv_pd* pd, void* memory, uint64_t bytes, std::string& why) {
  adverb_region_create create{};
  create.start = reinterpret_cast<uintptr_t>(memory);
  create.length = bytes;
  create.flags = ADVERB_REGION_READ_ONLY;
  if (ioctl(module, ADVERB_IOC_REGION_CREATE, &create) != 0)
    return refused(why);
  adverb_build build{};
  build.region = create.region;
  build.view = ADVERB_VIEW_READ;
  build.address = create.start;
  int error = 0;
  if (ioctl(module, ADVERB_IOC_BUILD, &build) != 0) {
    error = refused(why);
  } else {
    uint32_t handle = 0, rkey = 0;
    error = enroll(pd, build.fd, create.start - build.start, bytes, create.start, handle, rkey);
    if (error != 0)
      why = reason(module, create.region, error);
    else
      deregister(pd->context, handle);
    close(build.fd);
  }
  adverb_region_destroy destroy{};
  destroy.region = create.region;
  ioctl(module, ADVERB_IOC_REGION_DESTROY, &destroy);
  return error;
}

} // namespace

int try_view(ibv_pd* pd, std::string& why) {
  const int module = memory::open_module(why);
  if (module < 0)
    return ENODEV;
  constexpr size_t bytes = pattern_bytes;
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  int error = errno;
  if (memory != MAP_FAILED) {
    error = try_page(module, pd, memory, bytes, why);
    munmap(memory, bytes);
  }
  if (error != 0 && why.empty())
    why = strerror(error);
  close(module);
  return error;
}

} // namespace adverb::registration

namespace adverb {

registration::ViewSource& World::view_source() {
  return parts.view_source.get(
      [this] { return std::make_shared<registration::ModuleViews>(*this); });
}

} // namespace adverb
