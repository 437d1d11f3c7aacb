# SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
"""Line charts beside each other, their values on a logarithmic scale, as one SVG."""

import html
import math

WIDTH, HEIGHT = 460, 300                     # of a chart
LEFT, RIGHT, TOP, BOTTOM = 60, 15, 40, 40    # around what is plotted
HEAD, FOOT = 40, 30                          # above and below all charts
COLOURS = ("#0b62a4", "#d2691e", "#6b6b6b", "#b00020", "#2e7d32")


def text(x, y, words, anchor="middle", size=12):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{html.escape(words)}</text>'


def decades(charts):
    """The powers of ten around all values"""
    values = [v for c in charts for series in c["lines"].values() for v in series if v]
    return math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))


def chart(at, one, names, low, high):
    """{"title", "x": [label], "lines": {name: [value, None: there is none]}} at its place"""
    left, top = at[0] + LEFT, at[1] + TOP
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def x_of(i):
        return left + wide * (i + 0.5) / len(one["x"])

    def y_of(value):
        return top + tall * (high - math.log10(value)) / (high - low)

    yield text(left + wide / 2, top - 14, one["title"], size=13)
    for power in range(low, high + 1):
        y = y_of(10 ** power)
        yield f'<line x1="{left}" x2="{left + wide}" y1="{y:.1f}" y2="{y:.1f}" stroke="{"#888" if power == 0 else "#ddd"}"/>'
        yield text(left - 6, y + 4, f"{10 ** power:g}", "end", 11)
    for i, label in enumerate(one["x"]):
        yield text(x_of(i), top + tall + 18, label, size=11)
    for name, values in one["lines"].items():
        colour = COLOURS[names.index(name) % len(COLOURS)]
        # What lies under it is to be seen, too.
        dashes = ' stroke-dasharray="6 5"' if names.index(name) % 2 else ""
        points = [(x_of(i), y_of(v)) for i, v in enumerate(values) if v]
        yield (f'<polyline fill="none" stroke="{colour}" stroke-width="2"{dashes} points="'
               + " ".join(f"{x:.1f},{y:.1f}" for x, y in points) + '"/>')
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points)


def page(title, charts, columns=2):
    """All of it, with one scale and one legend"""
    low, high = decades(charts)
    names = list(dict.fromkeys(name for c in charts for name in c["lines"]))
    wide, tall = columns * WIDTH, HEAD + FOOT + math.ceil(len(charts) / columns) * HEIGHT
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{tall}" viewBox="0 0 {wide} {tall}" '
             'font-family="sans-serif">', f'<rect width="{wide}" height="{tall}" fill="white"/>',
             text(wide / 2, 25, title, size=16)]
    for i, one in enumerate(charts):
        parts += chart((i % columns * WIDTH, HEAD + i // columns * HEIGHT), one, names, low, high)
    for i, name in enumerate(names):
        x, y = LEFT + i * (wide - LEFT) / len(names), tall - FOOT / 2
        colour = COLOURS[i % len(COLOURS)]
        parts += [f'<line x1="{x:.1f}" x2="{x + 24:.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="3"/>',
                  text(x + 30, y + 4, name, "start")]
    return "\n".join([*parts, "</svg>", ""])
