// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The fabric: what all processes on it share. One segment in /dev/shm holds the tables of
// processes, QPs and keys; each process adds one arena (a memfd, opened by peers through
// /proc/PID/fd) with its receive queues and completion queues. Offsets, never pointers, cross
// processes. Everything here is either atomic, or guarded by the robust mutex beside it, or
// written before its number is published and left alone until Process::synchronize().
#pragma once
#include <atomic>
#include <cstdint>
#include <infiniband/verbs.h>
#include <pthread.h>

namespace adverb::loopback {

constexpr uint32_t kMaxProcesses = 128;
constexpr uint32_t kMaxQps = 16384;
constexpr uint32_t kMaxKeys = 131072;
constexpr uint32_t kMaxCqs = 16384;
constexpr uint32_t kMaxSrqs = 4096;
constexpr uint32_t kMaxSge = 32;
constexpr uint32_t kMaxWr = 16384;
constexpr uint32_t kMaxCqe = 32767;
constexpr uint32_t kMaxInline = 1024;
constexpr uint32_t kMaxMessage = 1u << 31;
constexpr uint32_t kMaxRdAtomic = 128;
constexpr uint32_t kExecRecords = 64;
constexpr uint32_t kMagic = 0x61647662;
constexpr uint32_t kReceiveLocks = 256;
constexpr uint32_t kLayout = 5;

// Where a thread of some process is inside the engine, and whose objects it may touch:
// sequence << 16 | target process + 1; zero in the low half when idle.
struct alignas(16) ExecRecord {
  std::atomic<uint64_t> word;
};

// What a process's progress thread should look at (ProcessSlot::attention).
enum Attention : uint32_t { kLookAtCqs = 1, kLookAtQps = 2, kLookAtSrqs = 4, kLookAtRunList = 8 };

struct ProcessSlot {
  std::atomic<uint32_t> busy;
  std::atomic<uint32_t> incarnation;
  std::atomic<int32_t> pid;
  std::atomic<int32_t> arena_fd;
  pthread_mutex_t life; // held by the progress thread for as long as the process lives
  alignas(64) std::atomic<uint32_t> bell; // futex the progress thread sleeps on
  std::atomic<uint32_t> attention;
  std::atomic<uint32_t> asleep;
  std::atomic<uint64_t> cq_bits[kMaxCqs / 64];
  std::atomic<uint64_t> qp_bits[kMaxQps / 64];
  std::atomic<uint64_t> srq_bits[kMaxSrqs / 64];
  alignas(64) ExecRecord exec[kExecRecords];
  alignas(64) std::atomic<uint64_t> translation_hits; // of the devices that this process opened
  std::atomic<uint64_t> translation_misses;
};

struct RecvWqe {
  uint64_t wr_id;
  uint32_t num_sge;
  uint32_t reserved;
  ibv_sge sge[kMaxSge];
};

// A receive queue (of a QP or an SRQ), in its owner's arena.
struct RecvQueue {
  pthread_mutex_t consumer;
  std::atomic<uint64_t> head; // next to consume
  std::atomic<uint64_t> tail; // next to post
  uint32_t max_wr;
  uint32_t srq; // SRQ number + 1, 0 for a QP's own queue
  std::atomic<uint32_t> limit;
  uint64_t wqes; // arena offset of RecvWqe[max_wr]
};

struct Completion {
  uint64_t wr_id;
  uint32_t status;
  uint32_t opcode;
  uint32_t byte_len;
  uint32_t imm_data;
  uint32_t qp_num;
  uint32_t src_qp;
  uint32_t wc_flags;
  uint32_t solicited;
  uint64_t timestamp; // ns, CLOCK_MONOTONIC
};

// A completion queue, in its owner's arena.
struct CqShared {
  pthread_mutex_t producer;
  std::atomic<uint64_t> head;  // next to poll
  std::atomic<uint64_t> tail;  // next to fill
  std::atomic<uint32_t> armed; // 0 no, 1 solicited only, 2 any
  std::atomic<uint32_t> overrun;
  uint32_t number;
  uint32_t capacity; // guarded by producer
  uint64_t entries;  // arena offset of Completion[capacity], guarded by producer
};

// Pending asynchronous events of a QP (QpSlot::events), one bit per ibv_event_type, plus:
constexpr uint32_t kQpFlush = 1u << 31; // the queues must be flushed by the owner

struct alignas(64) QpSlot {
  std::atomic<uint32_t> number; // QPN, 0 when free
  std::atomic<uint32_t> state;  // ibv_qp_state
  std::atomic<uint32_t> process;
  std::atomic<uint32_t> incarnation;
  std::atomic<uint32_t> dest;
  std::atomic<uint32_t> access;
  std::atomic<uint32_t> qkey;
  std::atomic<uint32_t> expected_psn;
  std::atomic<uint32_t> min_rnr_timer;
  std::atomic<uint32_t> max_dest_rd_atomic;
  std::atomic<uint32_t> events;
  std::atomic<uint32_t> receiving; // `current` holds a consumed, not yet completed receive
  uint32_t type;
  uint32_t pd;
  uint32_t device;
  uint32_t generation;
  uint64_t recv_queue;   // arena offset
  uint64_t recv_cq;      // arena offset
  uint64_t translations; // arena offset of a TranslationCache, 0 without the model
  RecvWqe current;
};

enum KeyKind : uint32_t { kFreeKey = 0, kRegionKey = 1, kWindowKey = 2 };

struct alignas(64) KeySlot {
  std::atomic<uint32_t> key; // lkey == rkey, 0 when free or invalidated
  std::atomic<uint32_t> kind;
  uint32_t process;
  uint32_t incarnation;
  uint32_t pd;
  uint32_t access;
  uint32_t generation;
  uint32_t window_qp; // type 2 windows: the QP they are bound to
  uint64_t address;   // in the owner's address space
  uint64_t iova;
  uint64_t length;
};

struct Fabric {
  std::atomic<uint32_t> magic;
  uint32_t layout;
  uint64_t bytes;
  pthread_mutex_t mutex; // process slots, and who owns which number
  uint32_t next_key;
  uint32_t next_qp;
  uint32_t next_pd;
  uint32_t reserved;
  pthread_mutex_t atomics[64];
  pthread_mutex_t receives[kReceiveLocks]; // held while a receive of UC or UD is filled, by QP
  ProcessSlot process[kMaxProcesses];
  QpSlot qp[kMaxQps];
  KeySlot key[kMaxKeys];
};

// QPN = generation << 14 | index; index 0 and 1 are never used (QP0, QP1).
constexpr uint32_t qp_index(uint32_t qpn) {
  return qpn & (kMaxQps - 1);
}
// Key = index << 8 | generation: small, dense, and stale soon, as adapters make them.
constexpr uint32_t key_index(uint32_t key) {
  return key >> 8;
}

// Locks a robust process-shared mutex for a scope. What it guards is always written so that a
// half-done update is harmless, so an owner that died only needs to be forgotten.
class RobustLock {
public:
  explicit RobustLock(pthread_mutex_t& mutex) : mutex_(mutex) {
    if (pthread_mutex_lock(&mutex_) == EOWNERDEAD)
      pthread_mutex_consistent(&mutex_);
  }
  ~RobustLock() { pthread_mutex_unlock(&mutex_); }
  RobustLock(const RobustLock&) = delete;
  RobustLock& operator=(const RobustLock&) = delete;

private:
  pthread_mutex_t& mutex_;
};

inline void init_robust(pthread_mutex_t& mutex) {
  pthread_mutexattr_t attr;
  pthread_mutexattr_init(&attr);
  pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&mutex, &attr);
  pthread_mutexattr_destroy(&attr);
}

} // namespace adverb::loopback
