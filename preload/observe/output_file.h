// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
// Opens the files that adverb writes for its user: logs and statistics. Their folders may be such
// as others can write, who may have put something there in the file's name.
#pragma once

#include <string>

namespace adverb::observe {

/// To append to; made with mode 0600 if there is none. Neither this nor writes to it wait: they
/// fail with EAGAIN when a FIFO's reader is slow. Refuses, with -1 and errno: a symbolic link
/// (ELOOP), but for those that name this process's own descriptors; a file or FIFO with a second
/// name (EMLINK); one that neither this user nor root owns, or a disk (EPERM); a FIFO that nobody
/// reads (ENXIO). The caller closes it.
int open_to_append(const std::string& path);

/// An empty file, mode 0644. What had its name is removed, not written to. -1 and errno. The caller
/// closes it.
int create_anew(const std::string& path);

} // namespace adverb::observe
