# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""How often threads wake of processes that are linked and have nothing to do."""

import time

from programs import Programs, answers, threads, until

WINDOW = 5    # s, after as many without any: a link that was made to ask and binds nothing ends after that time
DUE = 40      # s until all is quiet
MOST = 1
DEVICES = "loopback"  # the loopback device's own thread looks around each second


def wakes(sides):
    """{side: how often its threads go to sleep, or are made to, while we wait}"""
    before = {side: threads(pid) for side, pid in sides.items()}
    time.sleep(WINDOW)
    return {side: sum(count - before[side].get(number, (name, 0))[1]
                      for number, (name, count) in threads(pid).items() if name != DEVICES)
            for side, pid in sides.items()}


def measure(build, scratch, _):
    with Programs(build, scratch, True) as programs:
        asker = programs.ask(4, "again")
        answers(asker, 4)
        sides = {"owner": programs.owner.pid, "initiator": asker.pid, "broker": programs.broker()}
        until(lambda: not any(wakes(sides).values()), DUE, 0)
        for side, count in wakes(sides).items():
            yield {"name": f"idle for {WINDOW} s: wake-ups of the {side}'s threads", "unit": "", "value": count,
                   "at_most": MOST}
