// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Joining and leaving the fabric, and the numbers everybody draws from it.
#include "wire.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace adverb::loopback {

namespace {

constexpr uint64_t kArenaBytes = 16ull << 30; // sparse

std::mutex current_mutex;
std::atomic<Process*> current_process{nullptr};
Fabric* mapped_fabric = nullptr;

void forget_in_child() {
  // The child has no progress thread: it joins anew when it uses verbs.
  current_process.store(nullptr, std::memory_order_relaxed);
}

std::string segment_path() {
  return "/dev/shm/" + fabric_name();
}

void init_fabric(Fabric& fabric) {
  init_robust(fabric.mutex);
  for (auto& mutex : fabric.atomics)
    init_robust(mutex);
  for (auto& mutex : fabric.receives)
    init_robust(mutex);
  for (auto& slot : fabric.process)
    init_robust(slot.life);
  fabric.next_key = 1;
  fabric.next_qp = 2;
  fabric.next_pd = 1;
  fabric.layout = kLayout;
  fabric.bytes = sizeof(Fabric);
  fabric.magic.store(kMagic);
}

// Maps the segment, making it when absent. The file lock covers creation only.
Fabric* map_fabric() {
  const std::string path = segment_path();
  for (int attempt = 0; attempt < 100; ++attempt) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
      return nullptr;
    flock(fd, LOCK_EX);
    struct stat st = {};
    fstat(fd, &st);
    if (st.st_nlink == 0) { // replaced while we waited
      close(fd);
      continue;
    }
    const bool fresh = st.st_size == 0;
    if (fresh && ftruncate(fd, sizeof(Fabric)) != 0) {
      close(fd);
      return nullptr;
    }
    void* memory = MAP_FAILED;
    if (fresh || st.st_size == static_cast<off_t>(sizeof(Fabric)))
      memory =
          mmap(nullptr, sizeof(Fabric), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    auto* fabric = static_cast<Fabric*>(memory);
    if (memory != MAP_FAILED && fresh)
      init_fabric(*fabric);
    if (memory == MAP_FAILED || fabric->magic.load() != kMagic || fabric->layout != kLayout) {
      // Left by another build of this device: start over under the same name.
      if (memory != MAP_FAILED)
        munmap(memory, sizeof(Fabric));
      unlink(path.c_str());
      flock(fd, LOCK_UN);
      close(fd);
      continue;
    }
    flock(fd, LOCK_UN); // a mapping keeps the open file, and with it the lock
    close(fd);
    return fabric;
  }
  errno = EIO;
  return nullptr;
}

} // namespace

std::string fabric_name() {
  if (const char* name = getenv("ADVERB_LOOPBACK_FABRIC"); name != nullptr && *name != '\0')
    return name;
  return "adverb-loopback." + std::to_string(getuid());
}

namespace {

bool switched_on(const char* name) {
  const char* value = getenv(name);
  return value != nullptr && *value == '1';
}

} // namespace

bool reuse_numbers() {
  static const bool reuse = switched_on("ADVERB_LOOPBACK_REUSE");
  return reuse;
}

bool clean_cqs() {
  static const bool clean = switched_on("ADVERB_LOOPBACK_CLEAN");
  return clean;
}

uint64_t inline_bytes() {
  static const uint64_t bytes = [] {
    const char* value = getenv("ADVERB_LOOPBACK_INLINE");
    return value != nullptr ? strtoull(value, nullptr, 0) : uint64_t{1} << 20;
  }();
  return bytes;
}

Process::Process() = default;

Process* Process::current() {
  if (Process* process = current_process.load(std::memory_order_acquire); process != nullptr)
    return process;
  std::lock_guard lock(current_mutex);
  if (Process* process = current_process.load(std::memory_order_acquire); process != nullptr)
    return process;
  static const int registered = pthread_atfork(nullptr, nullptr, forget_in_child);
  (void)registered;
  auto* process = new Process;
  if (!process->join())
    return nullptr; // leaked on purpose: its thread may have been started
  current_process.store(process, std::memory_order_release);
  return process;
}

bool Process::join() {
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY); // peers copy into and out of us
  if (mapped_fabric == nullptr)
    mapped_fabric = map_fabric();
  fabric_ = mapped_fabric;
  if (fabric_ == nullptr)
    return false;
  pid_ = getpid();
  const int fd = memfd_create("adverb-loopback-arena", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, kArenaBytes) != 0)
    return false;
  void* memory =
      mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED)
    return false;
  madvise(memory, kArenaBytes, MADV_DONTDUMP);
  arena_ = static_cast<char*>(memory);
  cqs_.resize(kMaxCqs);
  srqs_.resize(kMaxSrqs);
  qps_.resize(kMaxQps);
  wire_ = std::make_unique<Wire>(*this);

  RobustLock lock(fabric_->mutex);
  if (!claim_slot()) {
    errno = EAGAIN;
    return false;
  }
  slot_->pid.store(pid_);
  slot_->arena_fd.store(fd);
  peers_[index_].base.store(arena_);
  peers_[index_].incarnation.store(incarnation_);
  return start_thread();
}

// With the fabric's mutex held: takes a slot nobody alive owns, and clears what its last owner
// left in the tables.
bool Process::claim_slot() {
  for (uint32_t i = 0; i < kMaxProcesses; ++i) {
    ProcessSlot& slot = fabric_->process[i];
    if (slot.busy.load() != 0 && alive(i, slot.incarnation.load()))
      continue;
    slot.busy.store(0);
    slot_ = &slot;
    index_ = i;
    incarnation_ = slot.incarnation.load() + 1;
    sweep(i);
    for (auto& bits : slot.cq_bits)
      bits.store(0);
    for (auto& bits : slot.qp_bits)
      bits.store(0);
    for (auto& bits : slot.srq_bits)
      bits.store(0);
    for (auto& record : slot.exec)
      record.word.store(0);
    slot.attention.store(0);
    slot.asleep.store(0);
    slot.translation_hits.store(0);
    slot.translation_misses.store(0);
    slot.incarnation.store(incarnation_);
    return true;
  }
  return false;
}

void Process::sweep(uint32_t process) {
  for (auto& slot : fabric_->qp)
    if (slot.number.load() != 0 && slot.process.load() == process)
      slot.number.store(0);
  for (auto& slot : fabric_->key)
    if (slot.kind.load() != kFreeKey && slot.process == process) {
      slot.key.store(0);
      slot.kind.store(kFreeKey);
    }
}

bool Process::alive(uint32_t process, uint32_t incarnation) {
  ProcessSlot& slot = fabric_->process[process];
  if (slot.busy.load() == 0 || slot.incarnation.load() != incarnation)
    return false;
  const int locked = pthread_mutex_trylock(&slot.life);
  if (locked == EBUSY)
    return true;
  if (locked == EOWNERDEAD)
    pthread_mutex_consistent(&slot.life);
  if (locked == EOWNERDEAD || locked == 0) {
    if (slot.incarnation.load() == incarnation)
      slot.busy.store(0);
    pthread_mutex_unlock(&slot.life);
  }
  return false;
}

char* Process::arena_of(uint32_t process, uint32_t incarnation) {
  PeerArena& peer = peers_[process];
  if (peer.incarnation.load(std::memory_order_acquire) == incarnation)
    return peer.base.load(std::memory_order_acquire);
  std::lock_guard lock(peers_mutex_);
  if (peer.incarnation.load(std::memory_order_acquire) == incarnation)
    return peer.base.load(std::memory_order_acquire);
  ProcessSlot& slot = fabric_->process[process];
  const std::string path =
      "/proc/" + std::to_string(slot.pid.load()) + "/fd/" + std::to_string(slot.arena_fd.load());
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0)
    return nullptr;
  void* memory = MAP_FAILED;
  struct stat st = {};
  if (fstat(fd, &st) == 0 && st.st_size == static_cast<off_t>(kArenaBytes))
    memory = mmap(nullptr, kArenaBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  close(fd);
  if (memory == MAP_FAILED || slot.incarnation.load() != incarnation)
    return nullptr;
  madvise(memory, kArenaBytes, MADV_DONTDUMP);
  // A dead owner's arena may still be in a slower thread's hands: give back its pages only.
  if (char* old = peer.base.load(); old != nullptr)
    madvise(old, kArenaBytes, MADV_REMOVE);
  peer.base.store(static_cast<char*>(memory), std::memory_order_release);
  peer.incarnation.store(incarnation, std::memory_order_release);
  return static_cast<char*>(memory);
}

namespace {

constexpr uint32_t kSmallestClass = 8; // 256 bytes

uint32_t size_class(size_t bytes) {
  uint32_t log = kSmallestClass;
  while ((size_t{1} << log) < bytes)
    ++log;
  return log;
}

} // namespace

uint64_t Process::allocate(size_t bytes) {
  const uint32_t log = size_class(bytes);
  std::lock_guard lock(arena_mutex_);
  uint64_t offset = 0;
  if (!free_blocks_[log].empty()) {
    offset = free_blocks_[log].back();
    free_blocks_[log].pop_back();
    if (log < 16)
      memset(arena_ + offset, 0, size_t{1} << log);
    return offset;
  }
  const uint64_t align = uint64_t{1} << (log < 12 ? log : 12);
  offset = (arena_top_ + align - 1) & ~(align - 1);
  if (offset + (uint64_t{1} << log) > kArenaBytes)
    return 0;
  arena_top_ = offset + (uint64_t{1} << log);
  return offset;
}

void Process::release(uint64_t offset, size_t bytes) {
  const uint32_t log = size_class(bytes);
  std::lock_guard lock(arena_mutex_);
  if (log >= 16)
    madvise(arena_ + offset, size_t{1} << log, MADV_REMOVE); // reads as zero again
  free_blocks_[log].push_back(offset);
}

uint32_t Process::allocate_key(uint32_t kind, KeySlot** out) {
  RobustLock lock(fabric_->mutex);
  for (uint32_t step = 0; step < kMaxKeys; ++step) {
    const uint32_t index = (fabric_->next_key + step) % kMaxKeys;
    KeySlot& slot = fabric_->key[index];
    if (index == 0 || slot.kind.load() != kFreeKey)
      continue;
    fabric_->next_key = reuse_numbers() ? index : index + 1;
    if (!reuse_numbers())
      slot.generation = (slot.generation + 1) & 0xff;
    slot.process = index_;
    slot.incarnation = incarnation_;
    slot.window_qp = 0;
    slot.kind.store(kind);
    *out = &slot;
    return index << 8 | slot.generation;
  }
  return 0;
}

void Process::free_key(KeySlot& slot) {
  RobustLock lock(fabric_->mutex);
  slot.kind.store(kFreeKey);
  if (reuse_numbers())
    fabric_->next_key = static_cast<uint32_t>(&slot - fabric_->key);
}

uint32_t Process::allocate_qp(QpSlot** out) {
  RobustLock lock(fabric_->mutex);
  for (uint32_t step = 0; step < kMaxQps; ++step) {
    const uint32_t index = (fabric_->next_qp + step) % kMaxQps;
    QpSlot& slot = fabric_->qp[index];
    if (index < 2 || slot.number.load() != 0)
      continue;
    fabric_->next_qp = reuse_numbers() ? index : index + 1;
    if (!reuse_numbers())
      slot.generation = (slot.generation + 1) & 0x3ff;
    slot.process.store(index_);
    slot.incarnation.store(incarnation_);
    slot.state.store(IBV_QPS_RESET);
    slot.events.store(0);
    slot.receiving.store(0);
    slot.dest.store(0);
    slot.access.store(0);
    slot.number.store(slot.generation << 14 | index);
    *out = &slot;
    return slot.number.load();
  }
  return 0;
}

void Process::free_qp(QpSlot& slot) {
  RobustLock lock(fabric_->mutex);
  slot.number.store(0);
  if (reuse_numbers())
    fabric_->next_qp = static_cast<uint32_t>(&slot - fabric_->qp);
}

uint32_t Process::allocate_pd() {
  RobustLock lock(fabric_->mutex);
  return ++fabric_->next_pd;
}

} // namespace adverb::loopback
