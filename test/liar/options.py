# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Where the liar is and how long it goes on: as below where nobody says otherwise, else as liar.py is told."""

import os

device, gid = "lo0", 1  # and the index of its address
level = "host"  # what the victims demand: "user" takes the kernel's word for their own user, "key" a key of all
key = b""  # of level "key": the liar is one of those who have it
other = ""  # the address of a second host, where there is one: the victim that the liar is not beside is there
beside = ""  # whom of the victims the liar's host is: "owner" or "initiator"
slow = 5 if os.environ.get("ADVERB_SANITIZER") else 1  # what is waited for may take so many times as long
timeout = 10  # of the liar's queue pairs, as verbs count it
step = 256  # from one key of the device's to the next
rounds = 400  # by which the initiator is known when it is alone
gate = False  # only attacks whose verdict depends on no clock, and no verdict that does
hangs = 60  # seconds after which what has to come is said to hang
part = 1  # of floods, and of cases of a kind, one in so many


victims, liar = None, None  # users, where they are not who runs all this


def vouches():
    """Whether the kernel vouches for the victims to each other, as it does for users of its own host alone"""
    return level == "user" and not other


def some(cases):
    """Of these, each level others"""
    cases = list(cases)
    return cases[("host", "user", "key").index(level) % part::part] or cases[:1]
