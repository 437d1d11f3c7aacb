// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "names.h"

#include <infiniband/verbs.h>

#include <cstring>

namespace verify {

std::string errno_name(int err) {
  if (err == 0)
    return "0";
  const char* name = strerrorname_np(err < 0 ? -err : err);
  std::string text = name ? name : std::to_string(err);
  return err < 0 ? "-" + text : text;
}

const char* status_name(int status) {
  static const char* const names[] = {
      "SUCCESS",          "LOC_LEN_ERR",       "LOC_QP_OP_ERR",     "LOC_EEC_OP_ERR",
      "LOC_PROT_ERR",     "WR_FLUSH_ERR",      "MW_BIND_ERR",       "BAD_RESP_ERR",
      "LOC_ACCESS_ERR",   "REM_INV_REQ_ERR",   "REM_ACCESS_ERR",    "REM_OP_ERR",
      "RETRY_EXC_ERR",    "RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR",  "REM_INV_RD_REQ_ERR",
      "REM_ABORT_ERR",    "INV_EECN_ERR",      "INV_EEC_STATE_ERR", "FATAL_ERR",
      "RESP_TIMEOUT_ERR", "GENERAL_ERR"};
  return status >= 0 && status < static_cast<int>(sizeof names / sizeof *names) ? names[status]
                                                                                : "?status";
}

const char* wc_opcode_name(int opcode) {
  switch (opcode) {
  case IBV_WC_SEND:
    return "SEND";
  case IBV_WC_RDMA_WRITE:
    return "RDMA_WRITE";
  case IBV_WC_RDMA_READ:
    return "RDMA_READ";
  case IBV_WC_COMP_SWAP:
    return "COMP_SWAP";
  case IBV_WC_FETCH_ADD:
    return "FETCH_ADD";
  case IBV_WC_RECV:
    return "RECV";
  case IBV_WC_RECV_RDMA_WITH_IMM:
    return "RECV_RDMA_WITH_IMM";
  default:
    return "?opcode";
  }
}

const char* wr_opcode_name(int opcode) {
  switch (opcode) {
  case IBV_WR_RDMA_WRITE:
    return "write";
  case IBV_WR_RDMA_WRITE_WITH_IMM:
    return "write_imm";
  case IBV_WR_RDMA_READ:
    return "read";
  case IBV_WR_SEND:
    return "send";
  case IBV_WR_SEND_WITH_IMM:
    return "send_imm";
  case IBV_WR_ATOMIC_CMP_AND_SWP:
    return "cmp_swap";
  case IBV_WR_ATOMIC_FETCH_AND_ADD:
    return "fetch_add";
  default:
    return "?opcode";
  }
}

const char* state_name(int state) {
  static const char* const names[] = {"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"};
  return state >= 0 && state < 7 ? names[state] : "?state";
}

const char* event_name(int type) {
  switch (type) {
  case IBV_EVENT_CQ_ERR:
    return "CQ_ERR";
  case IBV_EVENT_QP_FATAL:
    return "QP_FATAL";
  case IBV_EVENT_QP_REQ_ERR:
    return "QP_REQ_ERR";
  case IBV_EVENT_QP_ACCESS_ERR:
    return "QP_ACCESS_ERR";
  case IBV_EVENT_COMM_EST:
    return "COMM_EST";
  case IBV_EVENT_SQ_DRAINED:
    return "SQ_DRAINED";
  case IBV_EVENT_SRQ_ERR:
    return "SRQ_ERR";
  case IBV_EVENT_SRQ_LIMIT_REACHED:
    return "SRQ_LIMIT_REACHED";
  case IBV_EVENT_QP_LAST_WQE_REACHED:
    return "QP_LAST_WQE_REACHED";
  default:
    return "?event";
  }
}

} // namespace verify
