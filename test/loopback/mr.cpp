// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Registration: regions and windows. Nothing is pinned; what a kernel would have pinned is
// counted, and limited when ADVERB_LOOPBACK_MEMLOCK says so.
#include "engine.h"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

namespace adverb::loopback {

namespace {

constexpr unsigned kKnownAccess = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                  IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
                                  IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB;

std::atomic<uint64_t> locked_bytes{0};

uint64_t locked_limit() {
  static const uint64_t limit = [] {
    const char* value = getenv("ADVERB_LOOPBACK_MEMLOCK");
    return value != nullptr ? strtoull(value, nullptr, 0) : UINT64_MAX;
  }();
  return limit;
}

bool valid_access(unsigned access) {
  const unsigned required = access & ~static_cast<unsigned>(IBV_ACCESS_OPTIONAL_RANGE);
  const bool paging = (odp_caps().general_caps & IBV_ODP_SUPPORT) != 0;
  if ((required & ~(kKnownAccess | (paging ? unsigned{IBV_ACCESS_ON_DEMAND} : 0))) != 0)
    return false;
  // A remote party may not write what the program itself may not.
  return (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC)) == 0 ||
         (access & IBV_ACCESS_LOCAL_WRITE) != 0;
}

// Of a byte past its file's end the kernel says EFAULT, as it does when it pins.
bool readable(uint64_t address) {
  char byte = 0;
  const iovec mine{&byte, 1};
  const iovec theirs{reinterpret_cast<void*>(address), 1};
  return process_vm_readv(getpid(), &mine, 1, &theirs, 1, 0) == 1;
}

// Whether [address, address + length) is mapped, and writable where it must be, told without
// touching more than the last byte of each file's part: /proc/self/maps knows mappings and rights.
bool mapped(uint64_t address, uint64_t length, bool writable) {
  if (length == 0)
    return true;
  FILE* maps = fopen("/proc/self/maps", "re");
  if (maps == nullptr)
    return true;
  uint64_t at = address;
  const uint64_t end = address + length;
  char line[512];
  while (at < end && fgets(line, sizeof(line), maps) != nullptr) {
    unsigned long from = 0, to = 0, inode = 0;
    char rights[5] = {};
    if (sscanf(line, "%lx-%lx %4s %*s %*s %lu", &from, &to, rights, &inode) != 4 || to <= at)
      continue;
    if (from > at || (writable ? rights[1] != 'w' : rights[0] != 'r'))
      break;
    if (inode != 0 && !readable(std::min(to, end) - 1))
      break;
    at = to;
  }
  fclose(maps);
  return at >= end;
}

bool on_demand(unsigned access) {
  return (access & IBV_ACCESS_ON_DEMAND) != 0;
}

uint64_t pages_of(uint64_t address, uint64_t length) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return length == 0 ? 0 : ((address + length + page - 1) & ~(page - 1)) - (address & ~(page - 1));
}

int check_range(void* address, size_t length, unsigned access) {
  if (!valid_access(access))
    return EINVAL;
  const auto start = reinterpret_cast<uint64_t>(address);
  if (start + length < start)
    return EINVAL;
  if (!on_demand(access) && !mapped(start, length,
                                    (access & (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                                               IBV_ACCESS_REMOTE_ATOMIC)) != 0))
    return EFAULT;
  return 0;
}

bool account(uint64_t bytes) {
  if (locked_bytes.fetch_add(bytes) + bytes <= locked_limit())
    return true;
  locked_bytes.fetch_sub(bytes);
  return false;
}

void publish(Mr& mr, uint32_t key, uint64_t iova, unsigned access) {
  KeySlot& slot = *mr.slot;
  slot.pd = as<Pd>(mr.mr.pd)->number;
  slot.access = access;
  slot.address = reinterpret_cast<uint64_t>(mr.mr.addr);
  slot.iova = (access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : iova;
  slot.length = mr.mr.length;
  slot.key.store(key, std::memory_order_seq_cst);
}

ibv_mr* register_region(ibv_pd* pd, void* address, size_t length, uint64_t iova, unsigned access) {
  Process& process = *context_of(pd->context)->process;
  if (const int error = check_range(address, length, access); error != 0) {
    errno = error;
    return nullptr;
  }
  const uint64_t locked =
      on_demand(access) ? 0 : pages_of(reinterpret_cast<uint64_t>(address), length);
  if (!account(locked)) {
    errno = ENOMEM;
    return nullptr;
  }
  auto* mr = new Mr{};
  const uint32_t key = process.allocate_key(kRegionKey, &mr->slot);
  if (key == 0) {
    locked_bytes.fetch_sub(locked);
    delete mr;
    errno = ENOMEM;
    return nullptr;
  }
  mr->mr = {pd->context, pd, address, length, key >> 8, key, key};
  mr->locked = locked;
  publish(*mr, key, iova, access);
  as<Pd>(pd)->users.fetch_add(1);
  return &mr->mr;
}

} // namespace

ibv_mw* alloc_mw(ibv_pd* pd, ibv_mw_type type) {
  if (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2) {
    errno = EINVAL;
    return nullptr;
  }
  auto* mw = new Mw{};
  const uint32_t key = context_of(pd->context)->process->allocate_key(kWindowKey, &mw->slot);
  if (key == 0) {
    delete mw;
    errno = ENOMEM;
    return nullptr;
  }
  mw->mw = {pd->context, pd, key, key >> 8, type};
  mw->slot->pd = as<Pd>(pd)->number;
  as<Pd>(pd)->users.fetch_add(1);
  return &mw->mw;
}

int dealloc_mw(ibv_mw* base) {
  auto* mw = as<Mw>(base);
  Process& process = *context_of(base->context)->process;
  mw->slot->key.store(0, std::memory_order_seq_cst);
  process.synchronize();
  process.free_key(*mw->slot);
  if (mw->region != nullptr)
    mw->region->windows.fetch_sub(1);
  as<Pd>(base->pd)->users.fetch_sub(1);
  delete mw;
  return 0;
}

// A hint to bring pages in, of regions on demand only; here none has to come.
int advise_mr(ibv_pd* pd, ibv_advise_mr_advice, uint32_t, ibv_sge* sges, uint32_t count) {
  if ((odp_caps().general_caps & IBV_ODP_SUPPORT) == 0)
    return EOPNOTSUPP;
  Process& process = *context_of(pd->context)->process;
  for (uint32_t i = 0; i < count; ++i) {
    uint64_t address = 0;
    if (check_key(process, process.index(), process.incarnation(), as<Pd>(pd)->number, sges[i].lkey,
                  sges[i].addr, sges[i].length, IBV_ACCESS_ON_DEMAND, {IBV_QPT_RC, 0}, 0,
                  &address) != Verdict::ok)
      return EFAULT;
  }
  return 0;
}

} // namespace adverb::loopback

using namespace adverb::loopback;

extern "C" {

#undef ibv_reg_mr
#undef ibv_reg_mr_iova
ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t length, int access) {
  return register_region(pd, address, length, reinterpret_cast<uint64_t>(address),
                         static_cast<unsigned>(access));
}

ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, size_t length, uint64_t iova, int access) {
  return register_region(pd, address, length, iova, static_cast<unsigned>(access));
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t length, uint64_t iova, unsigned access) {
  return register_region(pd, address, length, iova, access);
}

ibv_mr* ibv_reg_dmabuf_mr(ibv_pd*, uint64_t, size_t, uint64_t, int, int) {
  errno = EOPNOTSUPP;
  return nullptr;
}

int ibv_dereg_mr(ibv_mr* base) {
  auto* mr = as<Mr>(base);
  if (mr->windows.load() != 0)
    return EBUSY;
  Process& process = *context_of(base->context)->process;
  mr->slot->key.store(0, std::memory_order_seq_cst);
  process.synchronize();
  process.free_key(*mr->slot);
  locked_bytes.fetch_sub(mr->locked);
  as<Pd>(base->pd)->users.fetch_sub(1);
  delete mr;
  return 0;
}

int ibv_rereg_mr(ibv_mr* base, int flags, ibv_pd* pd, void* address, size_t length, int access) {
  auto* mr = as<Mr>(base);
  if ((flags & ~IBV_REREG_MR_FLAGS_SUPPORTED) != 0 || flags == 0) {
    errno = EINVAL;
    return IBV_REREG_MR_ERR_INPUT;
  }
  const bool move = (flags & IBV_REREG_MR_CHANGE_TRANSLATION) != 0;
  void* to = move ? address : base->addr;
  const size_t bytes = move ? length : base->length;
  const unsigned rights =
      (flags & IBV_REREG_MR_CHANGE_ACCESS) != 0 ? static_cast<unsigned>(access) : mr->slot->access;
  if (mr->windows.load() != 0) {
    errno = EBUSY;
    return IBV_REREG_MR_ERR_CMD;
  }
  if (const int error = check_range(to, bytes, rights); error != 0) {
    errno = error;
    return IBV_REREG_MR_ERR_CMD;
  }
  Process& process = *context_of(base->context)->process;
  const uint64_t locked = on_demand(rights) ? 0 : pages_of(reinterpret_cast<uint64_t>(to), bytes);
  if (!account(locked)) {
    errno = ENOMEM;
    return IBV_REREG_MR_ERR_CMD;
  }
  mr->slot->key.store(0, std::memory_order_seq_cst);
  process.synchronize();
  locked_bytes.fetch_sub(mr->locked);
  mr->locked = locked;
  if ((flags & IBV_REREG_MR_CHANGE_PD) != 0) {
    as<Pd>(base->pd)->users.fetch_sub(1);
    as<Pd>(pd)->users.fetch_add(1);
    base->pd = pd;
  }
  const uint64_t iova = move ? reinterpret_cast<uint64_t>(to) : mr->slot->iova;
  base->addr = to;
  base->length = bytes;
  publish(*mr, base->lkey, iova, rights);
  return 0;
}
}
