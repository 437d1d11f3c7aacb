// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Asks adverb.ko over generic netlink. One thread per Client; calls wait for the kernel's answer,
// which it gives at once, except next_event(), which waits for an event.
#pragma once

#include "module/message.h"

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

struct nl_sock;

namespace adverb::module {

struct Failure {
  enum class Why : unsigned char {
    absent,     // no such family: not loaded, or not visible in this network namespace
    permission, // the kernel allows this to administrators only
    version,    // module and adverb do not fit each other
    malformed,  // an answer that is not as the uapi header says
    other,
  };
  Why why;
  std::string text;   // what is wrong
  std::string remedy; // what to do
  std::string said() const { return text + "; " + remedy; }
};
template <typename T> using Result = std::variant<T, Failure>;

// Whether this adverb can work with a module; nothing if so. By the family's version, and by what
// ADVERB_IOC_VERSION answers.
std::optional<Failure> misfit(unsigned family_version);
std::optional<Failure> misfit(const adverb_version& version);

class Client {
public:
  static Result<Client> open();

  Result<std::vector<Region>> regions(); // of this user; of all with CAP_SYS_ADMIN
  Result<Counts> statistics();           // since the module was loaded
  Result<Limits> limits();

  // Events from now on; needs CAP_SYS_ADMIN. Then next_event() waits for one.
  std::optional<Failure> listen();
  Result<Event> next_event();

private:
  struct Close {
    void operator()(nl_sock* socket) const;
  };
  Client(nl_sock* socket, uint16_t family) : socket_(socket), family_(family) {}
  template <typename T> using Parse = Parsed<T> (*)(Bytes, uint16_t);
  template <typename T, typename Take>
  std::optional<Failure> ask(uint8_t command, int flags, Parse<T> parse, Take&& take);
  template <typename T> Result<T> ask_one(uint8_t command, Parse<T> parse);

  std::unique_ptr<nl_sock, Close> socket_;
  uint16_t family_;
  std::deque<Event> events_; // received and not yet returned
};

} // namespace adverb::module
