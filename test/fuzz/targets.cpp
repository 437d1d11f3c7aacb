// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "targets.h"

#include "link/wire.h"
#include "observe/layout.h"
#include "observe/page.h"
#include "observe/snapshot.h"
#include "observe/trace_log.h"
#include "reliability/wire.h"
#include "transfer/messages.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sys/mman.h>
#include <unistd.h>

namespace adverb::fuzz {
namespace {

void require(bool holds, const char* what) {
  if (holds)
    return;
  std::fprintf(stderr, "fuzz: broken: %s\n", what);
  std::abort();
}

bool lies_in(std::span<const std::byte> part, std::span<const std::byte> whole) {
  return part.empty() ||
         (part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size());
}

// A copy of its own size, so that a read behind its end is found.
struct Exact {
  explicit Exact(std::span<const std::byte> in)
      : memory(std::make_unique<std::byte[]>(in.size())), bytes(memory.get(), in.size()) {
    std::ranges::copy(in, memory.get());
  }
  std::unique_ptr<std::byte[]> memory;
  std::span<std::byte> bytes;
};

// As Connection::dispatch() takes frames from what has come.
void frames(std::span<const std::byte> input) {
  const Exact in(input);
  std::span<const std::byte> rest = in.bytes;
  for (;;) {
    link::wire::Frame frame{};
    const auto result = link::wire::parse(rest, frame);
    if (result != link::wire::Parse::complete)
      return;
    require(frame.bytes > frame.payload.size() && frame.bytes <= rest.size(), "a frame's size");
    require(lies_in(frame.payload, rest.first(frame.bytes)), "a frame's payload");
    // What is whole is whole also when more has come, and partial before its last byte.
    link::wire::Frame again{};
    require(link::wire::parse(rest.first(frame.bytes - 1), again) == link::wire::Parse::partial,
            "a frame without its end");
    rest = rest.subspan(frame.bytes);
  }
}

// Requests, as Responder takes them from a message; replies, as Initiator does; notices.
void messages(std::span<const std::byte> input) {
  const Exact in(input);
  const auto shape_of = [](const transfer::RequestHeader& h) {
    return static_cast<transfer::Shape>(h.kind % 4);
  };
  const auto take = [&](auto next) {
    std::span<const std::byte> rest = in.bytes;
    while (!rest.empty()) {
      const auto before = rest;
      const auto parsed = next(rest);
      if (!parsed)
        return;
      require(rest.size() < before.size() && lies_in(rest, before), "a message that moves on");
      require(lies_in(parsed->payload, before), "a message's payload");
    }
  };
  take([&](auto& rest) { return transfer::next_request(rest, shape_of); });
  take([](auto& rest) { return transfer::next_reply(rest); });
  if (const auto notice = transfer::parse_notice(in.bytes))
    require(lies_in(notice->payload, in.bytes) &&
                notice->payload.size() == 4U * notice->header.count,
            "a notice's payload");
}

// A packet's header names a scheme; a report is the payload of a feedback.
void packets(std::span<const std::byte> input) {
  namespace wire = reliability::wire;
  const Exact in(input);
  if (in.bytes.size() >= sizeof(wire::Header)) {
    wire::Header header;
    memcpy(static_cast<void*>(&header), in.bytes.data(), sizeof header);
    if (const auto scheme = wire::scheme_of(header.scheme, header.k, header.m))
      require(wire::scheme_byte(*scheme) == header.scheme && scheme->valid(), "a scheme");
  }
  const auto feedback = wire::read(in.bytes);
  if (!feedback)
    return;
  Bytes again(in.bytes.size());
  const size_t written = wire::write(*feedback, again);
  require(written == again.size() && std::ranges::equal(again, in.bytes),
          "a report, written again");
}

// The page that another user's process shows to `adverb stat`.
void page(std::span<const std::byte> input) {
  static const int fd = memfd_create("adverb-fuzz", 0);
  // Only what differs from a good page is in the input: places, of 3 bytes, and what is there.
  static const auto good = [] {
    auto made = std::make_unique<observe::Page>();
    made->header.magic = observe::kPageMagic;
    made->header.layout = observe::kLayout;
    return made;
  }();
  observe::Page now;
  memcpy(static_cast<void*>(&now), good.get(), sizeof now);
  auto* const bytes = reinterpret_cast<std::byte*>(&now);
  for (size_t at = 0; at + 4 <= input.size(); at += 4) {
    const size_t place = static_cast<size_t>(input[at]) << 16 |
                         static_cast<size_t>(input[at + 1]) << 8 |
                         static_cast<size_t>(input[at + 2]);
    bytes[place % sizeof now] = input[at + 3];
  }
  require(pwrite(fd, &now, sizeof now, 0) == static_cast<ssize_t>(sizeof now), "a page written");
  const auto snapshot = observe::read_snapshot(fd, "page");
  if (const auto* good_one = std::get_if<observe::Snapshot>(&snapshot))
    require(!observe::to_json(*good_one).empty(), "a page's JSON");
  const auto trace = observe::read_trace(fd, "page");
  require(trace.index() == snapshot.index(), "a page's trace");
}

template <typename T> Bytes bytes_of(const T& value) {
  const auto span = std::as_bytes(std::span(&value, 1));
  return {span.begin(), span.end()};
}

std::vector<Bytes> frames_to_begin_with() {
  namespace wire = link::wire;
  std::vector<Bytes> all{wire::frame(wire::Banner{}),
                         wire::frame(wire::Hello{}),
                         wire::frame(wire::HelloAck{}),
                         wire::frame(wire::Auth{}),
                         wire::frame(wire::Bind{}),
                         wire::frame(wire::BindAck{}),
                         wire::frame(wire::Unbind{}),
                         wire::frame(wire::Claim{}),
                         wire::frame(wire::Slot{}),
                         wire::frame(wire::Prove{}),
                         wire::frame(wire::ProveAck{}),
                         wire::frame(wire::Resume{}),
                         wire::frame(wire::ResumeAck{}),
                         wire::frame(wire::Companion{}),
                         wire::frame(wire::CompanionAck{}),
                         wire::frame(wire::PacketCompanion{}),
                         wire::frame(wire::PacketCompanionAck{}),
                         wire::frame(wire::Registration{}, wire::Type::add_qp)};
  Bytes two = all[1];
  two.insert(two.end(), all[4].begin(), all[4].end());
  all.push_back(two);
  return all;
}

std::vector<Bytes> messages_to_begin_with() {
  std::vector<Bytes> all;
  for (uint8_t kind = 1; kind < 12; ++kind) {
    transfer::RequestHeader request{};
    request.kind = kind;
    request.total = request.length = 8;
    all.push_back(bytes_of(request));
    all.back().resize(sizeof request + 8);
    transfer::ReplyHeader reply{};
    reply.kind = kind;
    all.push_back(bytes_of(reply));
  }
  transfer::NoticeHeader notice{};
  notice.kind = transfer::notice_kind;
  notice.count = 2;
  all.push_back(bytes_of(notice));
  all.back().resize(sizeof notice + 8);
  return all;
}

std::vector<Bytes> packets_to_begin_with() {
  reliability::Feedback feedback{};
  feedback.sections.resize(2);
  feedback.sections[0].packets = {1, 2, 3};
  Bytes report(512);
  report.resize(reliability::wire::write(feedback, report));
  return {report, bytes_of(reliability::wire::Header{})};
}

} // namespace

const std::vector<Target>& targets() {
  static const std::vector<Target> all{
      {"frames", frames, frames_to_begin_with()},
      {"messages", messages, messages_to_begin_with()},
      {"packets", packets, packets_to_begin_with()},
      {"page", page, {Bytes(30), Bytes(300, std::byte{0x41})}, 50},
  };
  return all;
}

} // namespace adverb::fuzz
