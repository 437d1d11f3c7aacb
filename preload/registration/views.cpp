// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "registration/views.h"
#include "registration/backend.h"
#include "registration/recalls.h"
#include "registration/staged_receives.h"
#include "world/world.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <iterator>
#include <new>
#include <utility>

namespace adverb::registration {

using observe::Counter;
using observe::Gauge;

namespace {
constexpr size_t tasks_max = 256; // what is to be shown beyond that is not: a READ finds out
constexpr uint64_t page = 4096;
constexpr size_t former_max = 64; // images of a region that peers read by, though it has changed
} // namespace

struct ViewOfImage {
  View view;
  uint32_t users = 0;
  std::chrono::nanoseconds unused_since{}; // with no user
};

struct ImageOfRegion {
  Image image;
  // Under the lock of Views:
  bool over = false;     // nothing new is made of it
  bool for_good = false; // and nobody reads by it, for the region has ended
  bool building = false; // it is among the tasks
  bool asked = false;    // by a rule that says so, and not only where they are possible
  std::vector<std::unique_ptr<ViewOfImage>> views;
  // Held while the source is at it; before the lock of Views.
  Mutex making;
  bool begun = false; // under `making`
};

class Views::Maker final : public service::Job {
public:
  explicit Maker(Views& views) : views_(views) {}
  void run() override { views_.work(); }

private:
  Views& views_;
};

Views::Views(World& world) : world_(world), maker_(std::make_unique<Maker>(*this)) {}
Views::~Views() = default;

int Views::lend(Region& region, uint64_t address, uint64_t length, std::shared_ptr<Grant>& grant) {
  if ((region.access & IBV_ACCESS_REMOTE_READ) == 0 || region.shift() % page != 0)
    return EOPNOTSUPP;
  const auto from = reinterpret_cast<uintptr_t>(region.at(address));
  Held held(lock_);
  if (refused_ || child_)
    return EOPNOTSUPP;
  if (region.image == nullptr) {
    auto made = std::make_shared<ImageOfRegion>();
    // One by one: all at once would be a page more of the program's stack.
    made->image.start = region.start;
    made->image.length = region.length;
    made->image.shift = region.shift();
    made->image.pd = region.pd;
    made->asked = region.backend->traits().views == policy::Views::asked;
    images_.push_back(made);
    // From here on no message for it is staged.
    world_.recalls().viewed().add(region.start, region.start + region.length);
    region.viewed.store(true);
    region.image = std::move(made);
  }
  ImageOfRegion& image = *region.image;
  for (const auto& each : image.views) {
    const View& view = each->view;
    if (from < view.from || from >= view.to)
      continue;
    if (length > view.to - from)
      return ERANGE;
    // What stands in staging is not there yet, and a view would show what was before.
    const StagedReceives* const staged = world_.parts.staged_receives.made();
    if (staged != nullptr && staged->meet(view.from, view.to - view.from))
      return EAGAIN;
    auto made = std::make_shared<Grant>();
    made->by = shared_from_this();
    made->key = region.key;
    made->image = region.image;
    made->pattern = {region.image, &image.image.pattern};
    made->from = view.from;
    made->rkey = view.rkey;
    made->start = view.from + image.image.shift;
    made->bytes = view.to - view.from;
    made->access = IBV_ACCESS_REMOTE_READ;
    ++each->users;
    grant = std::move(made);
    return 0;
  }
  if (image.building)
    return EAGAIN;
  if (world_.clock.now() < again_at_)
    return EOPNOTSUPP; // peers do without meanwhile
  tasks_.push_back({region.image, from, {}});
  image.building = true;
  post(held);
  return EAGAIN;
}

bool Views::is_good(const Grant& grant) noexcept {
  const Held held(lock_);
  return grant.image != nullptr && !grant.image->over;
}

bool Views::is_over(const Grant& grant) noexcept {
  const Held held(lock_);
  return grant.image == nullptr || grant.image->for_good;
}

void Views::take_back(const std::shared_ptr<Grant>& grant) noexcept {
  const Held held(lock_);
  const auto image = std::exchange(grant->image, nullptr);
  if (image == nullptr || image->for_good)
    return;
  for (const auto& each : image->views)
    if (each->view.from == grant->from && each->users != 0 && --each->users == 0) {
      each->unused_since = world_.clock.now();
      sweep_later(held);
    }
}

void Views::show(const Region& region, uint64_t address, uint64_t length) noexcept {
  if (!region.viewed.load(std::memory_order_relaxed))
    return;
  try {
    const Held held(lock_);
    if (region.image == nullptr || region.image->views.empty() || tasks_.size() >= tasks_max)
      return;
    const auto from = reinterpret_cast<uintptr_t>(region.at(address));
    tasks_.push_back({region.image, 0, {from, from + length}});
    post(held);
  } catch (const std::bad_alloc&) { // the next READ that comes there goes by the CPU, too
    world_.counters.count(Counter::exceptions_caught);
  }
}

void Views::post(const Held& /*held*/) {
  if (working_ != nullptr)
    return;
  working_ = shared_from_this();
  world_.service.post(*maker_);
}

// All there is to do, one after the other: the first extents of a program come one by one, and what
// is to be shown of one image goes in one call.
void Views::work() {
  std::shared_ptr<Views> keep;
  for (;;) {
    std::vector<Shown> shown;
    Task task;
    {
      const Held held(lock_);
      if (tasks_.empty()) {
        keep = std::exchange(working_, nullptr);
        return;
      }
      task = tasks_.front();
      const auto same = [&](const Task& other) {
        return other.address == 0 && other.image == task.image;
      };
      if (task.address == 0) {
        for (const Task& each : tasks_)
          if (same(each))
            shown.push_back(each.shown);
        std::erase_if(tasks_, same);
      } else {
        tasks_.erase(tasks_.begin());
      }
    }
    const std::lock_guard making(task.image->making);
    if (task.address != 0)
      build(*task.image, task.address);
    else if (task.image->begun)
      world_.view_source().show(task.image->image, shown);
  }
}

// `making` is held, so the region does not end meanwhile, or has before.
void Views::build(ImageOfRegion& image, uintptr_t address) {
  {
    const Held held(lock_);
    if (image.over || child_)
      return;
    image.views.reserve(image.views.size() + 1); // nothing is made that cannot be kept
  }
  ViewSource& source = world_.view_source();
  std::string why;
  auto made = std::make_unique<ViewOfImage>();
  int error = image.begun ? 0 : source.begin(image.image, why);
  image.begun = image.begun || error == 0;
  if (error == 0)
    error = source.build(image.image, address, made->view, why);
  Held held(lock_);
  image.building = false;
  if (error != 0)
    return failed(image, error, why);
  if (std::exchange(told_, false))
    world_.page.tell_no_views({});
  made->unused_since = world_.clock.now();
  world_.counters.count(Counter::views_built);
  count(made->view, 1);
  image.views.push_back(std::move(made));
  sweep_later(held);
}

void Views::count(const View& view, int64_t sign) noexcept {
  world_.counters.gauge_add(Gauge::viewed_bytes, sign * static_cast<int64_t>(view.to - view.from));
}

void Views::failed(ImageOfRegion& image, int error, const std::string& why) {
  again_at_ = world_.clock.now() + pause;
  refused_ = error == EOPNOTSUPP;
  const char* const device = image.image.pd->context->device->name;
  const std::string words = why.empty() ? strerror(error) : why;
  told_ = true;
  world_.page.tell_no_views(fmt::format("{}: {}", device, words));
  const bool say = image.asked && !refused_ ? world_.log.every("views", 60)
                                            : world_.log.once(std::string("views ") + device);
  if (!say)
    return;
  constexpr const char* text =
      "{}: the devices of peers cannot read unpinned memory through adverb.ko: {}; the memory is "
      "leased to peers, or this process carries their READs";
  if (image.asked)
    world_.log.warn(text, device, words);
  else
    world_.log.info(text, device, words);
}

// Takes the image from its region. Null: there was none, or it is another process's now.
std::shared_ptr<ImageOfRegion> Views::leave(Region& region, bool for_good) noexcept {
  const Held held(lock_);
  auto image = std::exchange(region.image, nullptr);
  if (image == nullptr)
    return nullptr;
  region.viewed.store(false);
  image->over = true;
  image->for_good = for_good;
  if (child_)
    return nullptr;
  world_.recalls().viewed().remove(image->image.start, image->image.start + image->image.length);
  return image;
}

// In this order: from then on what is left of them shows the pattern, and so never leads to what
// the program does with its memory next. `making` is held.
void Views::give_back_all(ImageOfRegion& image) noexcept {
  std::vector<std::unique_ptr<ViewOfImage>> views;
  {
    const Held held(lock_);
    if (child_)
      return;
    image.for_good = true;
    views.swap(image.views);
  }
  if (std::exchange(image.begun, false))
    world_.view_source().end(image.image);
  for (const auto& each : views) {
    count(each->view, -1);
    world_.view_source().give_back(image.image, each->view);
  }
}

void Views::drop(Region& region) noexcept {
  std::vector<std::shared_ptr<ImageOfRegion>> all;
  const auto image = leave(region, true);
  {
    const Held held(lock_);
    all.swap(region.former_images);
  }
  for (const auto& former : all) {
    const std::lock_guard making(former->making);
    give_back_all(*former);
  }
  if (image == nullptr)
    return;
  const std::lock_guard making(image->making);
  give_back_all(*image);
}

void Views::changed(Region& region) noexcept {
  auto image = leave(region, false);
  if (image == nullptr)
    return;
  const std::lock_guard making(image->making);
  if (std::exchange(image->begun, false))
    world_.view_source().end(image->image);
  std::vector<std::shared_ptr<ImageOfRegion>> over;
  try {
    const Held held(lock_);
    auto& all = region.former_images;
    all.reserve(all.size() + 1);
    over.reserve(all.size() + 1);
    all.push_back(image);
    for (auto each = all.begin(); each != all.end();) {
      const bool in_use =
          std::ranges::any_of((*each)->views, [](const auto& view) { return view->users != 0; });
      if (in_use && all.end() - each <= static_cast<std::ptrdiff_t>(former_max)) {
        ++each;
        continue;
      }
      over.push_back(std::move(*each));
      each = all.erase(each);
    }
    sweep_later(held);
  } catch (const std::bad_alloc&) { // peers that read by it meet an error
    world_.counters.count(Counter::exceptions_caught);
    give_back_all(*image);
  }
  for (const auto& each : over)
    if (each == image) {
      give_back_all(*each);
    } else {
      const std::lock_guard making_it(each->making);
      give_back_all(*each);
    }
  world_.recalls().views_changed();
}

void Views::ends(const ibv_pd* pd) noexcept {
  std::vector<std::shared_ptr<ImageOfRegion>> all;
  try {
    const Held held(lock_);
    for (const auto& weak : images_) {
      auto image = weak.lock();
      // The domain of one without views may have ended long ago.
      if (image != nullptr && image->over && !image->views.empty() && same_pd(image->image.pd, pd))
        all.push_back(std::move(image));
    }
  } catch (const std::bad_alloc&) { // the device says that the domain is in use
    world_.counters.count(Counter::exceptions_caught);
  }
  for (const auto& image : all) {
    const std::lock_guard making(image->making);
    give_back_all(*image);
  }
}

void Views::sweep_later(const Held& /*held*/) {
  if (std::exchange(sweeping_, true))
    return;
  world_.service.after(idle, [weak = weak_from_this()] {
    if (const auto self = weak.lock())
      self->sweep();
  });
}

void Views::sweep() {
  std::vector<std::shared_ptr<ImageOfRegion>> images;
  const auto is_old = [this, now = world_.clock.now()](const auto& each) {
    return each->users == 0 && now - each->unused_since >= idle;
  };
  {
    const Held held(lock_);
    sweeping_ = false;
    std::erase_if(images_, [](const auto& image) { return image.expired(); });
    bool any = false;
    for (const auto& weak : images_)
      if (const auto image = weak.lock(); image != nullptr && !image->views.empty()) {
        any = true;
        if (std::ranges::any_of(image->views, is_old))
          images.push_back(image);
      }
    if (any)
      sweep_later(held);
  }
  for (const auto& image : images) {
    const std::lock_guard making(image->making);
    std::vector<std::unique_ptr<ViewOfImage>> old;
    {
      const Held held(lock_);
      const auto rest = std::ranges::partition(image->views, std::not_fn(is_old));
      old.assign(std::move_iterator(rest.begin()), std::move_iterator(rest.end()));
      image->views.erase(rest.begin(), rest.end());
    }
    for (const auto& each : old) {
      count(each->view, -1);
      world_.view_source().give_back(image->image, each->view);
    }
  }
}

void Views::in_child() noexcept {
  renew(lock_);
  child_ = true;
  new (&working_) std::shared_ptr<Views>;
}

} // namespace adverb::registration
