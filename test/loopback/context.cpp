// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Opening the device, what it says about itself, and asynchronous events.
#include "engine.h"
#include "events.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>

namespace adverb::loopback {

namespace {

void fill_device_attr(Context& context, ibv_device_attr& attr) {
  attr = {};
  strcpy(attr.fw_ver, "0.1.0");
  attr.node_guid = attr.sys_image_guid = ibv_get_device_guid(&context.device->device);
  attr.max_mr_size = ~uint64_t{0};
  attr.page_size_cap = 0xfffff000;
  attr.vendor_id = 0xadbe;
  attr.vendor_part_id = 1;
  attr.hw_ver = 1;
  attr.max_qp = kMaxQps - 2;
  attr.max_qp_wr = kMaxWr;
  attr.device_cap_flags = IBV_DEVICE_CURR_QP_STATE_MOD | IBV_DEVICE_RC_RNR_NAK_GEN |
                          IBV_DEVICE_SRQ_RESIZE | IBV_DEVICE_MEM_WINDOW |
                          IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS;
  attr.max_sge = kMaxSge;
  attr.max_sge_rd = kMaxSge;
  attr.max_cq = kMaxCqs;
  attr.max_cqe = kMaxCqe;
  attr.max_mr = kMaxKeys - 1;
  attr.max_pd = 1 << 20;
  attr.max_qp_rd_atom = attr.max_qp_init_rd_atom = kMaxRdAtomic;
  attr.max_res_rd_atom = kMaxRdAtomic * 1024;
  attr.atomic_cap = IBV_ATOMIC_HCA;
  attr.max_mw = kMaxKeys - 1;
  attr.max_ah = 1 << 20;
  attr.max_srq = kMaxSrqs;
  attr.max_srq_wr = kMaxWr;
  attr.max_srq_sge = kMaxSge;
  attr.max_pkeys = 1;
  attr.local_ca_ack_delay = 15;
  attr.phys_port_cnt = 1;
}

template <typename T> T no_pointer() {
  errno = EOPNOTSUPP;
  return nullptr;
}

} // namespace

int query_device_ex(ibv_context* context, const ibv_query_device_ex_input* input,
                    ibv_device_attr_ex* attr, size_t size) {
  if (input != nullptr && input->comp_mask != 0)
    return EINVAL;
  ibv_device_attr_ex full = {};
  fill_device_attr(*context_of(context), full.orig_attr);
  full.completion_timestamp_mask = ~uint64_t{0};
  full.hca_core_clock = 1000000; // kHz: time stamps are nanoseconds
  full.device_cap_flags_ex = full.orig_attr.device_cap_flags;
  full.phys_port_cnt_ex = 1;
  full.odp_caps = odp_caps();
  memset(attr, 0, size);
  memcpy(attr, &full, std::min(size, sizeof(full)));
  return 0;
}

namespace {

int query_rt_values(ibv_context*, ibv_values_ex* values) {
  const uint32_t wanted = values->comp_mask;
  values->comp_mask = 0;
  if ((wanted & IBV_VALUES_MASK_RAW_CLOCK) != 0) {
    const uint64_t now = now_ns();
    values->raw_clock.tv_sec = static_cast<time_t>(now / 1000000000u);
    values->raw_clock.tv_nsec = static_cast<long>(now % 1000000000u);
    values->comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
  }
  return 0;
}

void fill_context(Context& context) {
  verbs_context& verbs = context.verbs;
  verbs.sz = sizeof(verbs_context);
  verbs.query_port = query_port;
  verbs.advise_mr = advise_mr;
  verbs.modify_cq = modify_cq;
  verbs.query_rt_values = query_rt_values;
  verbs.create_cq_ex = create_cq_ex;
  verbs.query_device_ex = query_device_ex;
  verbs.create_qp_ex = create_qp_ex;
  verbs.create_srq_ex = create_srq_ex;
  verbs.get_srq_num = get_srq_num;
  ibv_context& base = verbs.context;
  base.device = &context.device->device;
  base.cmd_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  base.num_comp_vectors = 4;
  base.abi_compat = __VERBS_ABI_IS_EXTENDED;
  pthread_mutex_init(&base.mutex, nullptr);
  base.ops.alloc_mw = alloc_mw;
  base.ops.bind_mw = bind_mw;
  base.ops.dealloc_mw = dealloc_mw;
  base.ops.poll_cq = poll_cq;
  base.ops.req_notify_cq = req_notify_cq;
  base.ops.post_srq_recv = post_srq_recv;
  base.ops.post_send = post_send;
  base.ops.post_recv = post_recv;
}

// Reads a setting of the device to be opened, unless the variable is unset or empty. False and
// errno if the setting is wrong.
template <typename T, typename Keep>
bool read_setting(const char* variable, bool (*parse)(std::string_view, T&, std::string&),
                  const Keep& keep) {
  const char* text = getenv(variable);
  if (text == nullptr || *text == '\0')
    return true;
  T setting;
  std::string complaint;
  if (!parse(text, setting, complaint)) {
    fprintf(stderr, "adverb-loopback: %s: %s\n", variable, complaint.c_str());
    errno = EINVAL;
    return false;
  }
  keep(setting);
  return true;
}

bool read_settings(Context& context) {
  return read_setting<LinkSetting>("ADVERB_LOOPBACK_LINK", parse_link,
                                   [&](const LinkSetting& setting) {
                                     context.link = std::make_unique<const LinkSetting>(setting);
                                   }) &&
         read_setting<TranslationSetting>(
             "ADVERB_LOOPBACK_TRANSLATIONS", parse_translations,
             [&](const TranslationSetting& setting) { context.translation_setting = setting; });
}

// False and errno if the arena has no room.
bool open_translations(Context& context) {
  if (!context.translation_setting)
    return true;
  context.translations = context.process->translations().open(
      *context.process, context.device->number, *context.translation_setting);
  if (context.translations == 0)
    errno = ENOMEM;
  return context.translations != 0;
}

std::atomic<uint32_t>* delivered_counter(ibv_event_type type, ibv_async_event& event) {
  switch (type) {
  case IBV_EVENT_CQ_ERR:
    return &as<Cq>(event.element.cq)->async_events_delivered;
  case IBV_EVENT_SRQ_ERR:
  case IBV_EVENT_SRQ_LIMIT_REACHED:
    return &as<Srq>(event.element.srq)->events_delivered;
  case IBV_EVENT_QP_FATAL:
  case IBV_EVENT_QP_REQ_ERR:
  case IBV_EVENT_QP_ACCESS_ERR:
  case IBV_EVENT_COMM_EST:
  case IBV_EVENT_SQ_DRAINED:
  case IBV_EVENT_QP_LAST_WQE_REACHED:
    return &as<Qp>(event.element.qp)->events_delivered;
  default:
    return nullptr;
  }
}

} // namespace

void raise_async(ibv_context* context, ibv_event_type type, const void* element) {
  AsyncEvent entry = {};
  entry.event.event_type = type;
  entry.event.element.qp = static_cast<ibv_qp*>(const_cast<void*>(element));
  entry.element = element;
  context_of(context)->async.push(entry);
}

void purge_async(ibv_context* context, const void* element) {
  context_of(context)->async.purge(
      [&](const AsyncEvent& entry) { return entry.element == element; });
}

} // namespace adverb::loopback

using namespace adverb::loopback;

extern "C" {

ibv_context* ibv_open_device(ibv_device* device) {
  auto context = std::make_unique<Context>();
  if (!read_settings(*context))
    return nullptr;
  context->device = as<Device>(device);
  context->process = Process::current();
  if (context->process == nullptr || !open_translations(*context))
    return nullptr;
  fill_context(*context);
  return &context.release()->verbs.context;
}

int ibv_close_device(ibv_context* base) {
  Context* context = context_of(base);
  close(base->cmd_fd);
  // With objects left over the kernel would free them; here they stay, and so must the context.
  if (context->objects.load() != 0)
    return 0;
  if (context->translations != 0)
    context->process->translations().close(*context->process, context->translations);
  delete context;
  return 0;
}

int ibv_query_device(ibv_context* context, ibv_device_attr* attr) {
  fill_device_attr(*context_of(context), *attr);
  return 0;
}

int ibv_get_async_event(ibv_context* context, ibv_async_event* event) {
  AsyncEvent entry = {};
  if (!context_of(context)->async.pop_marked(entry, [](AsyncEvent& taken) {
        if (auto* counter = delivered_counter(taken.event.event_type, taken.event))
          counter->fetch_add(1);
      }))
    return -1;
  *event = entry.event;
  return 0;
}

void ibv_ack_async_event(ibv_async_event* event) {
  switch (event->event_type) {
  case IBV_EVENT_CQ_ERR:
    acknowledge(event->element.cq->mutex, event->element.cq->cond,
                event->element.cq->async_events_completed, 1);
    break;
  case IBV_EVENT_SRQ_ERR:
  case IBV_EVENT_SRQ_LIMIT_REACHED:
    acknowledge(event->element.srq->mutex, event->element.srq->cond,
                event->element.srq->events_completed, 1);
    break;
  case IBV_EVENT_QP_FATAL:
  case IBV_EVENT_QP_REQ_ERR:
  case IBV_EVENT_QP_ACCESS_ERR:
  case IBV_EVENT_COMM_EST:
  case IBV_EVENT_SQ_DRAINED:
  case IBV_EVENT_QP_LAST_WQE_REACHED:
    acknowledge(event->element.qp->mutex, event->element.qp->cond,
                event->element.qp->events_completed, 1);
    break;
  default:
    break;
  }
}

ibv_pd* ibv_alloc_pd(ibv_context* base) {
  Context* context = context_of(base);
  auto* pd = new Pd{};
  pd->pd.context = base;
  pd->number = context->process->allocate_pd();
  pd->pd.handle = pd->number;
  context->objects.fetch_add(1);
  return &pd->pd;
}

int ibv_dealloc_pd(ibv_pd* base) {
  auto* pd = as<Pd>(base);
  if (pd->users.load() != 0)
    return EBUSY;
  context_of(base->context)->objects.fetch_sub(1);
  delete pd;
  return 0;
}

ibv_ah* ibv_create_ah(ibv_pd* pd, ibv_ah_attr* attr) {
  if (attr->port_num != 1 || attr->is_global == 0 || attr->grh.sgid_index > 1) {
    errno = EINVAL;
    return nullptr;
  }
  auto* ah = new Ah{};
  ah->ah.context = pd->context;
  ah->ah.pd = pd;
  ah->attr = *attr;
  as<Pd>(pd)->users.fetch_add(1);
  return &ah->ah;
}

int ibv_destroy_ah(ibv_ah* ah) {
  as<Pd>(ah->pd)->users.fetch_sub(1);
  delete as<Ah>(ah);
  return 0;
}

int ibv_init_ah_from_wc(ibv_context*, uint8_t port, ibv_wc* wc, ibv_grh* grh, ibv_ah_attr* attr) {
  *attr = {};
  attr->port_num = port;
  attr->sl = wc->sl;
  if ((wc->wc_flags & IBV_WC_GRH) == 0)
    return 0;
  attr->is_global = 1;
  attr->grh.dgid = grh->sgid;
  attr->grh.hop_limit = 64;
  attr->grh.sgid_index = grh->dgid.raw[0] == 0xfe ? 0 : 1;
  return 0;
}

ibv_ah* ibv_create_ah_from_wc(ibv_pd* pd, ibv_wc* wc, ibv_grh* grh, uint8_t port) {
  ibv_ah_attr attr;
  ibv_init_ah_from_wc(pd->context, port, wc, grh, &attr);
  return ibv_create_ah(pd, &attr);
}

int ibv_fork_init(void) {
  return 0;
}
ibv_fork_status ibv_is_fork_initialized(void) {
  return IBV_FORK_UNNEEDED;
}
int ibv_dontfork_range(void*, size_t) {
  return 0;
}
int ibv_dofork_range(void*, size_t) {
  return 0;
}
}
