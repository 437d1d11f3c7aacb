// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// The functions of adverb.h, for programs that look them up: handles become endpoints and messages,
// and no exception passes.
#include "endpoint/endpoints.h"
#include "interpose/boundary.h"
#include "interpose/constructor.h"
#include "interpose/process_world.h"
#include "model/start.h"
#include "world/world.h"

#include <algorithm>
#include <cstring>

namespace adverb::interpose {
namespace {

using endpoint::End;
using endpoint::Endpoint;
using endpoint::MessageName;

// An option structure of the program's, which may be of an older or a newer header: a newer one may
// hold nothing but zeros where this library knows nothing.
template <typename Options> bool take(const Options* from, Options& into) noexcept {
  into = {};
  if (from == nullptr)
    return true;
  if (from->size < sizeof from->size)
    return false;
  const auto* const bytes = reinterpret_cast<const char*>(from);
  for (size_t i = sizeof into; i < from->size; ++i)
    if (bytes[i] != 0)
      return false;
  memcpy(&into, from, std::min(from->size, sizeof into));
  return true;
}

// A structure that the program reads: as much of it as its header knows.
template <typename State> int give(const State& from, State* into) noexcept {
  const size_t size = std::min(into->size, sizeof from);
  memcpy(into, &from, size);
  into->size = size;
  return 0;
}

template <typename Body> int call(Body&& body) noexcept {
  return uncancelled([] { return errno; }, [&] { return body(process_world().endpoints()); });
}

template <typename Body> int on_endpoint(adverb_endpoint handle, Body&& body) noexcept {
  return call([&](endpoint::Endpoints& all) {
    const auto found = all.find(handle);
    return found == nullptr ? EBADF : body(*found);
  });
}

enum class Side { either, sends, receives };

template <typename Body> int on_message(adverb_message handle, Side side, Body&& body) noexcept {
  return call([&](endpoint::Endpoints& all) {
    MessageName name;
    const auto found = all.find_message(handle, name);
    if (found == nullptr || (side != Side::either && name.sends != (side == Side::sends)))
      return EBADF;
    return body(*found, name);
  });
}

int endpoint_create(ibv_pd* pd, const adverb_endpoint_options* options, adverb_endpoint* out) {
  adverb_endpoint_options wanted;
  if (pd == nullptr || out == nullptr || !take(options, wanted))
    return EINVAL;
  return call([&](endpoint::Endpoints& all) {
    active(); // the log is open, forks are watched
    if (!process_world().page.started())
      model::started_on(process_world(), pd->context->device->name);
    int why = 0;
    *out = all.make(process_world(), pd, wanted, why);
    return why;
  });
}

int endpoint_address(adverb_endpoint handle, adverb_address* out) {
  if (out == nullptr)
    return EINVAL;
  return on_endpoint(handle, [&](Endpoint& e) {
    e.address(*out);
    return 0;
  });
}

int endpoint_connect(adverb_endpoint handle, const adverb_address* peer) {
  if (peer == nullptr)
    return EINVAL;
  return on_endpoint(handle, [&](Endpoint& e) { return e.connect(*peer); });
}

int endpoint_destroy(adverb_endpoint handle) {
  return call([&](endpoint::Endpoints& all) {
    const auto found = all.remove(handle);
    if (found == nullptr)
      return EBADF;
    found->close();
    return 0;
  });
}

int endpoint_fd(adverb_endpoint handle, int* out) {
  if (out == nullptr)
    return EINVAL;
  return on_endpoint(handle, [&](Endpoint& e) {
    *out = e.descriptor();
    return 0;
  });
}

int send(adverb_endpoint handle, const void* buffer, size_t bytes,
         const adverb_send_options* options, adverb_message* out) {
  adverb_send_options wanted;
  if (!take(options, wanted))
    return EINVAL;
  return on_endpoint(handle, [&](Endpoint& e) {
    uint64_t number = 0;
    const int rc = e.send(buffer, bytes, wanted, number);
    if (rc == 0 && out != nullptr)
      *out = endpoint::Endpoints::message(handle, {true, number});
    return rc;
  });
}

int send_ready(adverb_message handle, size_t offset, size_t bytes) {
  return on_message(handle, Side::sends, [&](Endpoint& e, MessageName name) {
    return e.send_ready(name.number, offset, bytes);
  });
}

int receive(adverb_endpoint handle, void* buffer, size_t bytes,
            const adverb_receive_options* options, adverb_message* out) {
  adverb_receive_options wanted;
  if (!take(options, wanted))
    return EINVAL;
  return on_endpoint(handle, [&](Endpoint& e) {
    uint64_t number = 0;
    const int rc = e.receive(buffer, bytes, wanted, number);
    if (rc == 0 && out != nullptr)
      *out = endpoint::Endpoints::message(handle, {false, number});
    return rc;
  });
}

int state(adverb_message handle, adverb_receive_state* out) {
  if (out == nullptr || out->size < sizeof out->size)
    return EINVAL;
  return on_message(handle, Side::receives, [&](Endpoint& e, MessageName name) {
    adverb_receive_state now;
    const int rc = e.query(name.number, now);
    return rc == 0 ? give(now, out) : rc;
  });
}

int packets(adverb_message handle, uint64_t* words, size_t count) {
  return on_message(handle, Side::receives, [&](Endpoint& e, MessageName name) {
    return e.packets(name.number, words, count);
  });
}

int wait_chunks(adverb_message handle, uint32_t chunks, int64_t timeout) {
  return on_message(handle, Side::receives, [&](Endpoint& e, MessageName name) {
    return e.wait_chunks(name.number, chunks, timeout);
  });
}

int wait_range(adverb_message handle, size_t offset, size_t bytes, int64_t timeout) {
  return on_message(handle, Side::receives, [&](Endpoint& e, MessageName name) {
    return e.wait_range(name.number, offset, bytes, timeout);
  });
}

int wait_end(adverb_message handle, int64_t timeout) {
  return on_message(handle, Side::either,
                    [&](Endpoint& e, MessageName name) { return e.wait_end(name, timeout); });
}

int notify(adverb_message handle, uint32_t chunks) {
  return on_message(handle, Side::receives,
                    [&](Endpoint& e, MessageName name) { return e.notify(name.number, chunks); });
}

int poll_event(adverb_endpoint handle, adverb_event* out) {
  if (out == nullptr)
    return EINVAL;
  return on_endpoint(handle, [&](Endpoint& e) {
    MessageName name;
    const int rc = e.poll_event(*out, name);
    if (rc == 0)
      out->message = endpoint::Endpoints::message(handle, name);
    return rc;
  });
}

int finish(adverb_message handle) {
  return on_message(handle, Side::receives, [&](Endpoint& e, MessageName name) {
    return e.finish(name.number, End::partial);
  });
}

int cancel(adverb_message handle) {
  return on_message(handle, Side::either,
                    [&](Endpoint& e, MessageName name) { return e.cancel(name); });
}

int release(adverb_message handle) {
  return on_message(handle, Side::either,
                    [&](Endpoint& e, MessageName name) { return e.release(name); });
}

int progress(adverb_endpoint handle) {
  return on_endpoint(handle, [&](Endpoint& e) { return e.progress(); });
}

int statistics(adverb_endpoint handle, adverb_statistics* out) {
  if (out == nullptr || out->size < sizeof out->size)
    return EINVAL;
  return on_endpoint(handle, [&](Endpoint& e) {
    adverb_statistics now;
    e.statistics(now);
    return give(now, out);
  });
}

constexpr adverb_functions functions{
    sizeof(adverb_functions),
    ADVERB_API_VERSION,
    endpoint_create,
    endpoint_address,
    endpoint_connect,
    endpoint_destroy,
    endpoint_fd,
    send,
    send_ready,
    receive,
    state,
    packets,
    wait_chunks,
    wait_range,
    wait_end,
    notify,
    poll_event,
    finish,
    cancel,
    release,
    progress,
    statistics,
};

} // namespace
} // namespace adverb::interpose

// Null: this library knows no such version; a program says so instead of going on.
extern "C" __attribute__((visibility("default"))) const adverb_functions*
adverb_api(uint32_t version) {
  return version >= 1 && version <= ADVERB_API_VERSION ? &adverb::interpose::functions : nullptr;
}
