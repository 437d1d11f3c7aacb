// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How a kind of request is served: a row of the responder's table, and the token by which the row's
// function answers, at once or later.
#pragma once

#include "transfer/messages.h"
#include "transfer/target.h"

#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace adverb {
class World;
}

namespace adverb::transfer {

class Lessor;
class Responder;

// Requests of one domain are served one after another, in the order they came: those of a target
// queue pair, behind whose failure the same run is halted (messages.h); those of a channel; or each
// by itself.
enum class Order : uint8_t { queue_pair, channel, none };

enum class Key : uint8_t { named, free };

// One request. Header and payload are good until it is answered, the target only until run()
// returns: who finishes later finds it anew, under the progress lock.
struct Request {
  World& world;
  const RequestHeader& header;
  std::span<const std::byte> payload;
  // Null only if neither order nor right nor key asks for one: there is none, or the peer's queue
  // pair is not bound to it. With it goes what it keeps of that.
  Target* target;
  Binding* binding;
  bool brought;     // its bytes by ReplyToken::bring(), a moment ago
  Lessor& lessor;   // of this channel
  ToldKeys& told;   // to be asked before the peer is told of a key; those of the row's are
  link::Peer* peer; // null: nobody keeps what is known of it
};

// Bytes that go between a request's message and the program's memory.
struct Copy {
  enum class Way : uint8_t {
    out,      // of the program's memory, to the reply's room
    in,       // of the payload, in no order of bytes
    in_order, // the same, the last byte last (memory/copy.h)
    nowhere,  // they are only looked at
  };
  Way way;
  std::byte* program;
  uint32_t bytes; // of the payload, or of the room
  bool lands() const noexcept { return way == Way::in || way == Way::in_order; }
  // They are in place, and the request is about to be answered: under the progress lock.
  void (*copied)(World& world, Target& target, const RequestHeader& header);
};

// The right to answer one request, once. Moved to whoever will; from any thread. What was not
// answered when it goes is refused, and a fault of the handler's.
class ReplyToken {
public:
  ReplyToken(std::shared_ptr<Responder> responder, uint32_t slot) noexcept
      : responder_(std::move(responder)), slot_(slot) {}
  ReplyToken(ReplyToken&&) noexcept = default;
  ReplyToken& operator=(ReplyToken&&) = delete;
  ~ReplyToken();

  explicit operator bool() const noexcept { return responder_ != nullptr; } // not answered yet

  // To be filled before the answer: what the kind's reply says beside its status, and its payload.
  ReplyHeader& reply() const noexcept;
  std::span<std::byte> room() const noexcept;

  // `payload` bytes of room() go with it, none unless it is ok.
  void answer(Status status, size_t payload = 0) noexcept;

  // Has the bytes copied, without a lock and when there is a thread that may sleep, and answered:
  // ok, or `fault` where the program's memory is gone. Should the region or queue pair end before,
  // the request is judged and run anew.
  void copy(const Copy& copy);
  // Has the bytes looked at in the same way, so that their pages are there, and the request run
  // once more: for what registers them, which waits for pages that are not.
  void bring(std::span<std::byte> program) {
    copy({.way = Copy::Way::nowhere,
          .program = program.data(),
          .bytes = static_cast<uint32_t>(program.size()),
          .copied = nullptr});
  }

private:
  std::shared_ptr<Responder> responder_; // null: answered
  uint32_t slot_;
};

// What a peer is told of a key alone. Where that names nothing at all it is a miss: who has more of
// these in a second than link::Peer::misses allows hears all of this later, and others do not.
struct OfKey {
  Status status;
  bool missed;
};
void answer(World& world, link::Peer* peer, OfKey of, ReplyToken token);
// The same for a key that a request needs to be virtual.
void answer_not_virtual(World& world, link::Peer* peer, const Target& target, uint32_t key,
                        ReplyToken token);

// Runs under the progress lock and waits for nothing: the program's memory it leaves to
// ReplyToken::copy(). It may keep the token and answer later; what it touches then of targets it
// touches under the progress lock.
using Run = void (*)(const Request& request, ReplyToken token);

struct HandlerRow {
  uint8_t kind;
  const char* name;
  uint8_t version;
  Right right;
  Key key;
  Order order;
  Shape shape;
  Run run;
};

// The table, made of rows that live as long as it.
class Handlers {
public:
  explicit Handlers(std::span<const HandlerRow* const> rows) {
    for (const HandlerRow* row : rows)
      add(*row);
  }
  void add(const HandlerRow& row) {
    assert(row.kind < by_kind_.size() && by_kind_[row.kind] == nullptr);
    by_kind_[row.kind] = &row;
  }
  const HandlerRow* find(uint8_t kind) const noexcept {
    return kind < by_kind_.size() ? by_kind_[kind] : nullptr;
  }

private:
  std::array<const HandlerRow*, kinds_max> by_kind_{};
};

// The rows of handlers.def. Alone in its file, so that a program can be linked with a list of its
// own.
std::span<const HandlerRow* const> handler_list() noexcept;

} // namespace adverb::transfer
