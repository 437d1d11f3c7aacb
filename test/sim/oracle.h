// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// What the verbs allow. It is told what programs post, what they are told in return and what they
// see in memory, and knows nothing of any code between: neither of adverb's nor of a device's.
//
// Memory is cells of 64 bits, and every write puts a value of its own into each: so a value in a
// cell names the request that it came from, and half of one is nobody's. For two requests the
// oracle knows whether one is *before* the other:
//   - of one queue pair, in the order they were posted; but what is posted after a READ, and has no
//     fence, may pass it (IBTA, Volume 1, table of ordering rules);
//   - of any two, where the program had seen one complete when the other was posted.
// Of a queue pair whose service is not reliable (UC, UD) that a request completes says that it has
// gone out, and nothing of its having come; nobody refuses one, and what stands behind it goes on.
// A look at a cell, by a READ or by the program that owns it, may find what a write put there
// unless another write must lie between the two. That is a necessary condition, never a wrong
// alarm.
//
// A request is over when its completion, or that of a later one of its queue pair, was polled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace sim {

constexpr uint64_t never = UINT64_MAX;

enum class Kind : uint8_t { write, write_imm, send, read, fetch_add };
const char* to_text(Kind kind);

// Reliable; or what is sent may be lost, and comes in order; or in any.
enum class Transport : uint8_t { rc, uc, ud };

// A range of cells that peers of a program may reach; `there` is the program.
struct Target {
  uint32_t there = 0;
  uint32_t cell = 0;
  uint32_t count = 0;
};

// What the program asked for, and what it knows of it.
struct Operation {
  uint64_t id = 0; // its wr_id; unlike that of all others
  uint32_t qp = 0; // numbers of the schedule's own
  Kind kind = Kind::write;
  bool signaled = true;
  bool fenced = false;
  bool wrong = false;      // a key or range that the peer must refuse
  bool wrong_here = false; // wrong: for a key or range of its own elements
  bool with_imm = false;   // a SEND that carries an immediate
  bool compares = false;   // a FETCH_ADD that is a CMP_AND_SWP, of what is never there
  uint32_t key = 0;        // of the peer's, if any
  bool follows = false;    // by that key it reaches what is mapped there, or nothing
  Target target;           // writes, reads, atomics
  // What it carries, for writes and sends. Where that is an earlier READ's result, `from`.
  std::vector<uint64_t> values;
  uint64_t from = never;
};

enum class Status : uint8_t { success, remote_access, flushed, other };

struct Completion {
  uint64_t id = 0;
  uint32_t qp = 0;
  Status status = Status::success;
  std::string status_text;
  int opcode_right = -1; // 1, 0: whether it is the request's; -1: not to be judged
  uint32_t byte_len = 0;
  bool with_imm = false;
  uint32_t imm = 0;
};

class Oracle {
public:
  explicit Oracle(uint32_t programs, uint32_t cells) : cells_(cells), programs_(programs) {}

  // Queue pair `qp` of program `owner` is connected to `peer` of program `there`.
  // `relaxed`: its WRITEs may pass each other.
  void connected(uint32_t qp, uint32_t owner, uint32_t peer, uint32_t there, bool relaxed = false,
                 Transport transport = Transport::rc);

  // Its receives are those of `pool`, a number of the schedule's own; any of them may be the next.
  void shares(uint32_t qp, uint32_t pool);

  // The owner takes queue pair `qp` to RESET, or destroys it: what is outstanding there or at its
  // peer may fail. When that has been done, gone() is told.
  void going(uint32_t qp);
  // Nothing of this connection completes any more, and nothing lands at the owner.
  void gone(uint32_t qp, std::vector<uint64_t> cells);
  // The owner deregisters a key of its memory with requests under it outstanding, which may fail.
  void key_ends(uint32_t there, uint32_t key);
  // The owner takes away a range of its memory: what is outstanding there and follows addresses may
  // fail; what is posted there from here on must, atomics excepted: their pages may be kept. So may
  // all pages where peers that had leased them were waited for in vain (`late`): it may fail, too.
  void memory_goes(uint32_t there, uint32_t cell, uint32_t count, bool late = false);
  // It comes back, unless somebody has still to be refused for it.
  bool memory_returns(uint32_t there);
  // Whether a request that is not over names it.
  bool uses_key(uint32_t there, uint32_t key) const;
  // Numbers for the next connection's queue pairs: this one and the next, which nobody else gets.
  uint32_t fresh() { return std::exchange(next_queue_, next_queue_ + 2); }

  void posted(Operation operation);
  // `filler`: what lies in each cell of the buffer.
  void receive_posted(uint32_t qp, uint64_t id, uint32_t room, uint64_t filler = 0);
  void shared_receive_posted(uint32_t pool, uint64_t id, uint32_t room, uint64_t filler = 0);
  // The last that was posted was not taken: there was no memory for it.
  void refused(uint64_t id);
  void receive_refused(uint32_t qp, uint64_t id);
  void shared_receive_refused(uint32_t pool, uint64_t id) { pools_[pool].erase(id); }
  // There is no memory to register: whatever is outstanding may fail for it.
  void starved();
  // The programs have lost each other but for their queue pairs: so it is with all that is
  // outstanding, and all that comes.
  void parted() {
    parted_ = true;
    starved();
  }
  // From here on `program` says what is not so. What it denies to have carried out for a queue pair
  // that is not reliable, which goes on, it may be asked for once more: it has itself to thank.
  void lies(uint32_t program) {
    parted();
    liars_.insert(program);
  }
  // Who posted it neither polls nor sleeps, nobody does anything any more, and everybody else has
  // taken what came: all that is not to be refused has gone out.
  void rested(uint32_t program, const std::vector<std::vector<uint64_t>>& cells);
  // Before completed(), of a READ or atomic that is over by it: what lies in the program's buffer.
  void brought(uint64_t id, std::vector<uint64_t> result);
  void completed(const Completion& completion);
  // Completions of receives. `found`: what lies in the buffer now.
  void received(const Completion& completion, const std::vector<uint64_t>& found);
  // The program that owns it looked at a cell. `after`: id of a message it has just received, with
  // which all that its sender posted before must be there; or never.
  void looked(uint32_t program, uint32_t cell, uint64_t value, uint64_t after);
  // The owner looked at a cell, as it does with a mailbox, and emptied it: it is zero now, and what
  // was in it, of a WRITE of `flag_cells` at most, comes no second time.
  void emptied(uint32_t program, uint32_t cell, uint64_t value);
  static constexpr size_t flag_cells = 8; // longer ones may begin anew before they are over
  // The owner of queue pair `qp` has polled an error of it, or moved it there: it is in error, so
  // from here on nothing lands through it. `cells`: what the owner's memory holds at this moment.
  void broken(uint32_t qp, std::vector<uint64_t> cells);
  // Its requests had failed, it was not in error, and it takes requests again: SQE to RTS.
  void recovered(uint32_t qp) { queues_[qp].failed = false; }
  // The schedule is over: `cells` is what every program's memory holds.
  void ended(const std::vector<std::vector<uint64_t>>& cells);

  // Where a message's data went to, for looked().
  const Operation* operation(uint64_t id) const;
  // The message that a receive completion just reported; null: none is due.
  const Operation* last_received() const { return last_received_; }

  void found(const std::string& what); // breaks a rule
  const std::vector<std::string>& findings() const { return findings_; }
  size_t operations() const { return all_.size(); }

  bool loud = false; // prints what it is told

private:
  struct Receive {
    uint64_t id;
    uint32_t room;
    uint64_t filler;
  };
  struct Known : Operation {
    uint64_t place = 0; // among those of its queue pair
    uint64_t at = 0;    // moment it was posted
    uint64_t over = never;
    Status status = Status::success;
    std::vector<uint64_t> result;
    bool doomed = false; // its key ended before it was over
    bool torn = false;   // wrong, and its first or last bytes are not
    bool barred = false; // behind one that must be refused: it must have no effect
    bool came = false;   // a receive has it
  };
  struct Queue {
    uint32_t owner = 0;
    uint32_t peer = 0;
    uint32_t there = 0;
    bool relaxed = false;
    Transport transport = Transport::rc;
    std::vector<Known*> operations;
    size_t open = 0;     // the first that is not over
    bool failed = false; // a completion with error was polled
    const Known* first_failed = nullptr;
    bool wrong = false;       // a request that must be refused was posted
    std::vector<Known*> sent; // that take a receive of the peer's
    std::vector<Receive> receives;
    uint64_t pool = never; // of shared receives
    size_t receives_done = 0;
    size_t came = 0; // of what the peer has sent all before that has come, or will not: UC
    bool receives_flushed = false;
    bool going = false;
    bool starved = false;
    bool gone = false;
    uint64_t broken = never;             // the moment its owner saw that it is in error
    std::vector<uint64_t> broken_memory; // of the owner, then
  };
  // A READ, or a look by the owner.
  struct Look {
    uint32_t program, cell;
    uint64_t value;
    uint64_t from, until;  // moments
    const Known* read;     // null: the owner
    const Known* after;    // of whose queue pair all that came before is there
    uint64_t rest = never; // program all of whose requests of before are there
  };

  struct Emptied {
    uint64_t at;
    uint64_t value;
  };

  struct Arrival {
    const Known* message;
    uint64_t receive;
    uint64_t filler;
    uint32_t byte_len;
    std::vector<uint64_t> found;
  };

  bool before(const Known& a, const Known& b) const;
  bool in_order(const Known& a, const Known& b) const;
  bool before(const Known& write, const Look& look) const;
  bool after(const Known& write, const Look& look) const;
  bool is_lossy(const Known& operation) const {
    return queues_.at(operation.qp).transport != Transport::rc;
  }
  void finish(Known& operation, Status status);
  Known* message_of(Queue& queue, const Completion& completion, const std::vector<uint64_t>& got);
  const Receive* next_receive(Queue& queue, const Completion& completion);
  bool troubled(const Queue& queue) const;
  bool is_barred(const Known& operation) const;
  bool reaches_what_is_away(const Known& operation) const;
  void meet_what_is_away(Known& operation);
  bool came_too_late(const Known& operation) const;
  bool may_be_passed_by_a_failure(const Known& operation) const;
  void judge_barriers(const std::vector<std::vector<uint64_t>>& cells);
  void judge(const Look& look);
  bool comes_again(const Look& look, const Known& write) const;
  bool was_emptied(const Look& look) const;
  std::string against(const Look& look, const Known* source) const;
  void judge(const Arrival& arrival);
  std::vector<uint64_t> values_of(const Known& operation) const;
  std::string name(const Known& operation) const;

  uint32_t cells_;
  uint32_t programs_;
  bool parted_ = false;
  std::set<uint32_t> liars_;
  uint64_t now_ = 0;
  std::map<uint64_t, Known> all_;
  std::map<uint32_t, Queue> queues_;
  std::map<uint64_t, std::map<uint64_t, Receive>> pools_;
  Receive taken_{}; // from a pool, the last
  struct Away : Target {
    bool late = false;
  };
  std::map<uint32_t, Away> away_; // of each program's memory
  uint32_t next_queue_ = 0;
  std::vector<Look> looks_;
  std::map<std::pair<uint32_t, uint32_t>, std::vector<Emptied>> emptied_; // by program and cell
  std::vector<Arrival> arrivals_; // judged at the end: a READ's result may be known later
  std::map<std::pair<uint32_t, uint32_t>, std::vector<const Known*>> writers_; // made at the end
  const Known* last_received_ = nullptr;
  std::vector<std::string> findings_;
};

} // namespace sim
