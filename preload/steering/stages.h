// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Where a work request is and who carries it, and what each event makes of it: the table of the
// send queue. queue/README.md shows it row by row; a test walks every row and compares the two.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace adverb::steering {

enum class Stage : uint8_t {
  queued,  // accepted, not issued, or to be issued anew
  carried, // in a lane of its way, some of it unsent or unanswered
  half,    // its first half is through, the device's part is next
  posted,  // with the device
  done,    // its result is known; it leaves in posting order
};

enum class Hand : uint8_t {
  none,   // not chosen yet
  way,    // the way it was chosen for
  replay, // posted so that the device itself makes the error
  flush,  // posted to a queue pair in error, to be flushed
};

enum class Event : uint8_t {
  chosen,   // a way was chosen
  sent,     // all or some of it was handed to a software lane
  half,     // what was in the software lane is through, the device has the rest
  posted,   // it was handed to the device
  refused,  // the provider did not take it after all
  landed,   // the device has completed it, well or not
  finished, // its way has completed it without the device
  again,    // what it was chosen by no longer holds
  replay,   // the device shall refuse it
  fail,     // the queue pair is in error
  spoiled,  // it completes in error without having been executed
  missed,   // a part of what the device has brought is not what is there
};

inline constexpr size_t stages = 5;
inline constexpr size_t hands = 4;
inline constexpr size_t events = 12;

inline constexpr std::array<std::string_view, stages> stage_names{"queued", "carried", "half",
                                                                  "posted", "done"};
inline constexpr std::array<std::string_view, hands> hand_names{"none", "way", "replay", "flush"};
inline constexpr std::array<std::string_view, events> event_names{
    "chosen",   "sent",  "half",   "posted", "refused", "landed",
    "finished", "again", "replay", "fail",   "spoiled", "missed"};

struct alignas(4) Place {
  Stage stage{};
  Hand hand{};
  bool known = false;
  constexpr bool legal() const noexcept { return known; }
};

struct Row {
  Stage stage;
  Hand hand;
  Event event;
  Stage to_stage;
  Hand to_hand;
};

inline constexpr Row table[] = {
    {Stage::queued, Hand::none, Event::chosen, Stage::queued, Hand::way},
    {Stage::queued, Hand::none, Event::again, Stage::queued, Hand::none},
    {Stage::queued, Hand::none, Event::replay, Stage::queued, Hand::replay},
    {Stage::queued, Hand::none, Event::fail, Stage::queued, Hand::flush},
    {Stage::queued, Hand::none, Event::spoiled, Stage::done, Hand::none},

    {Stage::queued, Hand::way, Event::sent, Stage::carried, Hand::way},
    {Stage::queued, Hand::way, Event::posted, Stage::posted, Hand::way},
    {Stage::queued, Hand::way, Event::again, Stage::queued, Hand::none},
    {Stage::queued, Hand::way, Event::fail, Stage::queued, Hand::flush},
    {Stage::queued, Hand::way, Event::spoiled, Stage::done, Hand::way},

    {Stage::queued, Hand::replay, Event::posted, Stage::posted, Hand::replay},
    {Stage::queued, Hand::replay, Event::again, Stage::queued, Hand::replay},
    {Stage::queued, Hand::replay, Event::fail, Stage::queued, Hand::flush},
    {Stage::queued, Hand::replay, Event::spoiled, Stage::done, Hand::replay},

    {Stage::queued, Hand::flush, Event::posted, Stage::posted, Hand::flush},
    {Stage::queued, Hand::flush, Event::fail, Stage::queued, Hand::flush},
    {Stage::queued, Hand::flush, Event::spoiled, Stage::done, Hand::flush},

    {Stage::carried, Hand::way, Event::sent, Stage::carried, Hand::way},
    {Stage::carried, Hand::way, Event::half, Stage::half, Hand::way},
    {Stage::carried, Hand::way, Event::finished, Stage::done, Hand::way},
    {Stage::carried, Hand::way, Event::again, Stage::queued, Hand::none},

    {Stage::half, Hand::way, Event::posted, Stage::posted, Hand::way},
    {Stage::half, Hand::way, Event::again, Stage::queued, Hand::none},

    {Stage::posted, Hand::way, Event::refused, Stage::queued, Hand::way},
    {Stage::posted, Hand::way, Event::landed, Stage::done, Hand::way},
    {Stage::posted, Hand::replay, Event::refused, Stage::queued, Hand::replay},
    {Stage::posted, Hand::replay, Event::landed, Stage::done, Hand::replay},
    {Stage::posted, Hand::flush, Event::refused, Stage::queued, Hand::flush},
    {Stage::posted, Hand::flush, Event::landed, Stage::done, Hand::flush},

    {Stage::done, Hand::way, Event::missed, Stage::carried, Hand::way},
    {Stage::done, Hand::way, Event::again, Stage::queued, Hand::none},
};

namespace detail {
constexpr size_t index(Stage stage, Hand hand, Event event) noexcept {
  return (static_cast<size_t>(event) * stages + static_cast<size_t>(stage)) * hands +
         static_cast<size_t>(hand);
}
consteval auto index_table() {
  std::array<Place, stages * hands * events> all{};
  for (const Row& row : table)
    all[index(row.stage, row.hand, row.event)] = {row.to_stage, row.to_hand, true};
  return all;
}
inline constexpr auto places = index_table();
} // namespace detail

// What `event` makes of a request at (stage, hand); not legal() when the table has no such row.
constexpr Place next(Stage stage, Hand hand, Event event) noexcept {
  return detail::places[detail::index(stage, hand, event)];
}

} // namespace adverb::steering
