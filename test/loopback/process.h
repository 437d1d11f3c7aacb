// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// This process on the fabric: its slot, its arena, its view of the peers' arenas, its progress
// thread. One per process; a fork's child gets a new one at its first verb, objects made before
// the fork stay with the parent's. All methods may be called from any thread.
#pragma once
#include "shm.h"
#include "translations.h"

#include <array>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace adverb::loopback {

struct Qp;
struct Cq;
struct Srq;
class Wire;

uint64_t now_ns();

class Process {
public:
  // The process this thread runs in; joins the fabric when it has not yet. nullptr and errno on
  // failure. The returned object is never destroyed.
  static Process* current();

  Fabric& fabric() { return *fabric_; }
  ProcessSlot& slot() { return *slot_; }
  uint32_t index() const { return index_; }
  uint32_t incarnation() const { return incarnation_; }
  pid_t pid() const { return pid_; }

  // Zeroed shared memory of this process, as an offset peers can follow. 0 when out of memory.
  uint64_t allocate(size_t bytes);
  void release(uint64_t offset, size_t bytes);
  template <typename T> T* at(uint64_t offset) { return reinterpret_cast<T*>(arena_ + offset); }
  // The arena of a peer (or of this process); nullptr when it is gone.
  char* arena_of(uint32_t process, uint32_t incarnation);

  bool alive(uint32_t process, uint32_t incarnation);
  // Wakes the progress thread of `process` to look at something.
  void ring(uint32_t process, uint32_t attention);

  // Waits until no thread of any process that was in the engine with this process's objects in
  // its hands still is: what was unpublished before the call is then untouched by anyone.
  void synchronize();

  uint32_t allocate_key(uint32_t kind, KeySlot** slot); // published by the caller; 0 when full
  void free_key(KeySlot& slot);
  uint32_t allocate_qp(QpSlot** slot);
  void free_qp(QpSlot& slot);
  uint32_t allocate_pd();

  uint32_t add_cq(Cq* cq);         // number, or ~0u when full
  void remove_cq(uint32_t number); // behind synchronize(); from here the number is another's
  uint32_t add_srq(Srq* srq);
  void remove_srq(uint32_t number);
  void add_qp(uint32_t index, Qp* qp);
  void remove_qp(uint32_t index); // returns when the progress thread has let go of it

  void schedule(Qp& qp);          // have the progress thread run its send queue
  void raise_cq(uint32_t number); // completion event of an own CQ

  Wire& wire() { return *wire_; } // what is on a bad link
  TranslationCaches& translations() { return translations_; }

private:
  friend class CriticalSection;
  Process();
  bool join();
  bool claim_slot();
  bool start_thread();
  void progress();
  void dispatch(uint32_t attention);
  uint64_t run_list(); // deadline of the next thing to do, ns
  void sweep(uint32_t process);

  Fabric* fabric_ = nullptr;
  ProcessSlot* slot_ = nullptr;
  uint32_t index_ = 0;
  uint32_t incarnation_ = 0;
  pid_t pid_ = 0;
  char* arena_ = nullptr;

  std::mutex arena_mutex_;
  uint64_t arena_top_ = 4096;
  std::array<std::vector<uint64_t>, 48> free_blocks_;

  struct PeerArena {
    std::atomic<uint32_t> incarnation{0};
    std::atomic<char*> base{nullptr};
  };
  std::mutex peers_mutex_;
  std::array<PeerArena, kMaxProcesses> peers_;

  std::mutex objects_mutex_;
  std::vector<Cq*> cqs_;
  std::vector<Srq*> srqs_;
  std::vector<Qp*> qps_;

  std::mutex run_mutex_;
  std::condition_variable run_idle_;
  std::vector<Qp*> run_;
  Qp* running_ = nullptr;

  std::unique_ptr<Wire> wire_;
  TranslationCaches translations_;

  std::mutex start_mutex_;
  std::condition_variable started_cv_;
  bool started_ = false;
};

// Marks this thread as working in the engine with objects of `target` (and of its own process).
class CriticalSection {
public:
  CriticalSection(Process& process, uint32_t target);
  ~CriticalSection();
  CriticalSection(const CriticalSection&) = delete;
  CriticalSection& operator=(const CriticalSection&) = delete;

private:
  ExecRecord* record_;
  uint64_t word_;
};

bool reuse_numbers();      // ADVERB_LOOPBACK_REUSE
bool clean_cqs();          // ADVERB_LOOPBACK_CLEAN
std::string fabric_name(); // ADVERB_LOOPBACK_FABRIC
uint64_t inline_bytes();   // ADVERB_LOOPBACK_INLINE

} // namespace adverb::loopback
