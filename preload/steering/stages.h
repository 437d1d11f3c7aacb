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

enum class Disposition : uint8_t {
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
inline constexpr size_t dispositions = 4;
inline constexpr size_t events = 12;

inline constexpr std::array<std::string_view, stages> stage_names{"queued", "carried", "half",
                                                                  "posted", "done"};
inline constexpr std::array<std::string_view, dispositions> disposition_names{"none", "way",
                                                                              "replay", "flush"};
inline constexpr std::array<std::string_view, events> event_names{
    "chosen",   "sent",  "half",   "posted", "refused", "landed",
    "finished", "again", "replay", "fail",   "spoiled", "missed"};

struct alignas(4) Place {
  Stage stage{};
  Disposition disposition{};
  bool known = false;
  constexpr bool legal() const noexcept { return known; }
};

struct Row {
  Stage stage;
  Disposition disposition;
  Event event;
  Stage to_stage;
  Disposition to_disposition;
};

inline constexpr Row table[] = {
    {Stage::queued, Disposition::none, Event::chosen, Stage::queued, Disposition::way},
    {Stage::queued, Disposition::none, Event::again, Stage::queued, Disposition::none},
    {Stage::queued, Disposition::none, Event::replay, Stage::queued, Disposition::replay},
    {Stage::queued, Disposition::none, Event::fail, Stage::queued, Disposition::flush},
    {Stage::queued, Disposition::none, Event::spoiled, Stage::done, Disposition::none},

    {Stage::queued, Disposition::way, Event::sent, Stage::carried, Disposition::way},
    {Stage::queued, Disposition::way, Event::posted, Stage::posted, Disposition::way},
    {Stage::queued, Disposition::way, Event::again, Stage::queued, Disposition::none},
    {Stage::queued, Disposition::way, Event::fail, Stage::queued, Disposition::flush},
    {Stage::queued, Disposition::way, Event::spoiled, Stage::done, Disposition::way},

    {Stage::queued, Disposition::replay, Event::posted, Stage::posted, Disposition::replay},
    {Stage::queued, Disposition::replay, Event::again, Stage::queued, Disposition::replay},
    {Stage::queued, Disposition::replay, Event::fail, Stage::queued, Disposition::flush},
    {Stage::queued, Disposition::replay, Event::spoiled, Stage::done, Disposition::replay},

    {Stage::queued, Disposition::flush, Event::posted, Stage::posted, Disposition::flush},
    {Stage::queued, Disposition::flush, Event::fail, Stage::queued, Disposition::flush},
    {Stage::queued, Disposition::flush, Event::spoiled, Stage::done, Disposition::flush},

    {Stage::carried, Disposition::way, Event::sent, Stage::carried, Disposition::way},
    {Stage::carried, Disposition::way, Event::half, Stage::half, Disposition::way},
    {Stage::carried, Disposition::way, Event::finished, Stage::done, Disposition::way},
    {Stage::carried, Disposition::way, Event::again, Stage::queued, Disposition::none},

    {Stage::half, Disposition::way, Event::posted, Stage::posted, Disposition::way},
    {Stage::half, Disposition::way, Event::again, Stage::queued, Disposition::none},

    {Stage::posted, Disposition::way, Event::refused, Stage::queued, Disposition::way},
    {Stage::posted, Disposition::way, Event::landed, Stage::done, Disposition::way},
    {Stage::posted, Disposition::replay, Event::refused, Stage::queued, Disposition::replay},
    {Stage::posted, Disposition::replay, Event::landed, Stage::done, Disposition::replay},
    {Stage::posted, Disposition::flush, Event::refused, Stage::queued, Disposition::flush},
    {Stage::posted, Disposition::flush, Event::landed, Stage::done, Disposition::flush},

    {Stage::done, Disposition::way, Event::missed, Stage::carried, Disposition::way},
    {Stage::done, Disposition::way, Event::again, Stage::queued, Disposition::none},
};

namespace detail {
constexpr size_t index(Stage stage, Disposition disposition, Event event) noexcept {
  return (static_cast<size_t>(event) * stages + static_cast<size_t>(stage)) * dispositions +
         static_cast<size_t>(disposition);
}
consteval auto index_table() {
  std::array<Place, stages * dispositions * events> all{};
  for (const Row& row : table)
    all[index(row.stage, row.disposition, row.event)] = {row.to_stage, row.to_disposition, true};
  return all;
}
inline constexpr auto places = index_table();
} // namespace detail

// What `event` makes of a request at (stage, disposition); not legal() when the table has no such
// row.
constexpr Place next(Stage stage, Disposition disposition, Event event) noexcept {
  return detail::places[detail::index(stage, disposition, event)];
}

} // namespace adverb::steering
