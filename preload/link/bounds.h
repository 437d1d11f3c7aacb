// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// How much of what a process keeps others can make grow. All bounds of links are here; what a
// bounded room does when it is full is said beside each.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include <sys/resource.h>

namespace adverb::link::bounds {

// One of several that share a room has at most as many as are free: alone it fills half of it, and
// n greedy ones leave an n-plus-first as much as each of them has (dynamic thresholds: Choudhury
// and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998).
constexpr bool has_room(size_t its, size_t all, size_t room) noexcept {
  return all < room && its < room - all;
}

// Descriptors are the program's, too: one part of `parts` of those that there may be.
inline size_t of_descriptors(size_t most, size_t parts) noexcept {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0)
    return most;
  return std::min<size_t>(most, std::max<rlim_t>(files.rlim_cur / parts, 16));
}

// An owner's links. Of those that have proven nothing, the host with most loses its oldest.
inline size_t links() noexcept {
  return of_descriptors(4096, 2);
}
inline constexpr size_t away = 64;             // links whose connections were lost; the oldest ends
inline constexpr size_t qps_of_link = 4096;    // bound, and waited for; more are refused
inline constexpr size_t channels_of_link = 64; // more are refused
inline constexpr size_t claims_of_link = 64;   // slots being proven; more wait
inline constexpr size_t waiting = 8192;        // binds, of all; the link with most loses its oldest
// Binds of links that have proven nothing, in all: with more, the link with most ends.
inline constexpr size_t qps_unproven = 65536;
// Companions by which nobody has shown anything yet, whether they are open or not. Of the host
// that has most, the link that has most loses its oldest. A receive pool holds some 450: those
// that are proven have room beside these.
inline constexpr size_t companions_unproven = 128;
// Of a queue pair of this process, by which the peer has proven itself or is vouched for: one for
// each protocol, and those that are going. Others count as unproven.
inline constexpr size_t companions_of_qp = 4;
// Frames of a link that has proven nothing: so many at once, and so many a second. One that comes
// to nothing, as it names what is not there, counts as so many.
inline constexpr uint64_t frames_at_once = 8192;
inline constexpr uint64_t frames_a_second = 256;
inline constexpr uint64_t frames_for_vain = 32;
// Bytes that a connection's peer has not taken: more are not read from it. And the most that there
// may be all the same, as an answer may bring others along: with more, it ends.
inline constexpr size_t unread = 4096;
inline constexpr size_t queued = 1 << 20;
// Bytes that the kernel keeps of a peer's connection, each way; it doubles what is set.
inline constexpr int socket_bytes = 64 << 10;
// Connections to a broker that have not said hello; others wait in the kernel's queue.
inline constexpr size_t strangers = 256;
// A broker's members: processes, each with a socket, and a descriptor that stands for the process
// if there are several users. A user has at most as many as are free.
inline constexpr size_t members_most = 4096;
constexpr size_t descriptors_of_member(bool for_all_users) noexcept {
  return for_all_users ? 8 : 2;
}
inline size_t members(bool for_all_users) noexcept {
  return of_descriptors(members_most, descriptors_of_member(for_all_users));
}
inline constexpr size_t accepts_in_a_turn = 1024; // of members; a listening queue holds as many
inline constexpr size_t registrations_of_member = 65536;
// Of all users; one has at most as many as are free.
inline constexpr size_t registrations = 262144;
// Of one queue pair number, of one user. Each device may have a queue pair of that number.
inline constexpr size_t registrations_of_number = 64;
inline constexpr uint32_t number_most = 0xFFFFFF; // as InfiniBand has them
// Descriptors that wait for members that read nothing, of all members; one user has at most as many
// as are free. In the kernel's queue the socket's buffer bounds them: some five of each member,
// which count against RLIMIT_NOFILE of this process once more.
inline constexpr int member_socket_bytes = 4608; // the least that the kernel takes
inline size_t handed() noexcept {
  return of_descriptors(1024, 4);
}

} // namespace adverb::link::bounds
