// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#define FMT_HEADER_ONLY // the code of fmt; elsewhere its declarations do

#include "tools/plan_svg.h"

#include "tools/quantity.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace adverb::tools {
namespace {

using namespace reliability;

// The picture and, in it, the plot; in pixels.
constexpr double width = 1000, height = 560;
constexpr double left = 90, right = 760, top = 70, bottom = 490;
constexpr double marker_radius = 4;

struct Style {
  std::string_view colour; // of Okabe and Ito, which colour-blind people tell apart
  std::string_view dashes;
};
constexpr Style styles[] = {
    {"#000000", "none"},         {"#d55e00", "8 4"},  {"#0072b2", "2 3"},
    {"#009e73", "12 3 2 3"},     {"#cc79a7", "none"}, {"#e69f00", "6 2 2 2"},
    {"#56b4e9", "10 3 2 3 2 3"},
};
constexpr size_t marker_kinds = 5;

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text)
    switch (c) {
    case '&':
      result += "&amp;";
      break;
    case '<':
      result += "&lt;";
      break;
    case '>':
      result += "&gt;";
      break;
    default:
      result += c;
    }
  return result;
}

// An axis of whole decades or of a range as it is.
struct Axis {
  double first, last;   // values
  double begin, finish; // pixels
  double at(double value) const {
    return begin + (finish - begin) * std::log(value / first) / std::log(last / first);
  }
};

// An axis of logarithms has no place for less.
double lowest_of(const Sampled& mean) {
  constexpr double least = 0.1;
  return mean.high ? std::max(mean.low, least * mean.value) : mean.value;
}

Axis time_axis(std::span<const SweepPoint> points) {
  double least = points[0].mean_ns[0], most = least;
  for (const SweepPoint& point : points)
    for (const double mean : point.mean_ns) {
      least = std::min(least, mean);
      most = std::max(most, mean);
    }
  for (const SweepPoint& point : points)
    for (const auto& figures : point.simulated)
      if (figures) {
        least = std::min(least, lowest_of(figures->mean_ns));
        most = std::max(most, figures->mean_ns.high.value_or(figures->mean_ns.value));
      }
  const double first = std::pow(10, std::floor(std::log10(least)));
  const double last = std::pow(10, std::ceil(std::log10(most)));
  return {first, std::max(last, 10 * first), bottom, top};
}

void add_text(std::string& svg, double x, double y, std::string_view anchor, std::string_view text,
              std::string_view more = "") {
  svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y,
                     anchor, more, escaped(text));
}

void add_line(std::string& svg, double x1, double y1, double x2, double y2, std::string_view more) {
  svg += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1,
                     x2, y2, more);
}

// Circle, square, diamond, triangle, cross: one for each scheme, in turn.
void add_marker(std::string& svg, size_t scheme, double x, double y) {
  const std::string_view colour = styles[scheme % std::size(styles)].colour;
  constexpr double r = marker_radius;
  switch (scheme % marker_kinds) {
  case 0:
    svg += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\"/>\n", x, y, r,
                       colour);
    break;
  case 1:
    svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n",
                       x - r, y - r, 2 * r, 2 * r, colour);
    break;
  case 2:
    svg += fmt::format("<path d=\"M{:.1f} {:.1f}l{} {}l{} {}l{} {}z\" fill=\"{}\"/>\n", x, y - r, r,
                       r, -r, r, -r, -r, colour);
    break;
  case 3:
    svg += fmt::format("<path d=\"M{:.1f} {:.1f}l{} {}h{}z\" fill=\"{}\"/>\n", x, y - r, r, 2 * r,
                       -2 * r, colour);
    break;
  default:
    svg +=
        fmt::format("<path d=\"M{:.1f} {:.1f}l{} {}m{} 0l{} {}\" stroke=\"{}\" fill=\"none\"/>\n",
                    x - r, y - r, 2 * r, 2 * r, -2 * r, 2 * r, -2 * r, colour);
  }
}

// A simulated mean: a ring, and a whisker with caps over its interval.
void add_sampled(std::string& svg, size_t scheme, double x, const Axis& y, const Sampled& mean) {
  const std::string_view colour = styles[scheme % std::size(styles)].colour;
  constexpr double ring = 1.8 * marker_radius, cap = 5;
  svg += fmt::format("<circle class=\"simulated\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" "
                     "stroke=\"{}\" fill=\"none\"/>\n",
                     x, y.at(mean.value), ring, colour);
  if (!mean.high)
    return;
  const double low = y.at(lowest_of(mean)), high = y.at(*mean.high);
  svg += fmt::format("<path class=\"whisker\" d=\"M{:.1f} {:.1f}h{}m{} 0V{:.1f}m{} 0h{}\" "
                     "stroke=\"{}\" fill=\"none\"/>\n",
                     x - cap, low, 2 * cap, -cap, high, -cap, 2 * cap, colour);
}

std::string stroke(size_t scheme) {
  const Style& style = styles[scheme % std::size(styles)];
  return fmt::format("stroke=\"{}\" stroke-width=\"2\" stroke-dasharray=\"{}\"", style.colour,
                     style.dashes);
}

void add_axes(std::string& svg, const Axis& x, const Axis& y, Sweep sweep,
              std::span<const SweepPoint> points) {
  constexpr std::string_view grid = "stroke=\"#dddddd\"";
  for (const SweepPoint& point : points) {
    if (!point.tick)
      continue;
    add_line(svg, x.at(point.value), top, x.at(point.value), bottom, grid);
    add_text(svg, x.at(point.value), bottom + 20, "middle", point.label);
  }
  constexpr double rounding = 1 + 1e-9;
  for (double value = y.first; value <= y.last * rounding; value *= 10) {
    add_line(svg, left, y.at(value), right, y.at(value), grid);
    add_text(svg, left - 8, y.at(value) + 4, "end", short_time_text(value * rounding));
  }
  svg += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" "
                     "stroke=\"#000000\"/>\n",
                     left, top, right - left, bottom - top);
  add_text(svg, (left + right) / 2, bottom + 48, "middle", sweep_title(sweep));
  const double middle = (top + bottom) / 2;
  add_text(svg, 20, middle, "middle", "mean completion time",
           fmt::format(" transform=\"rotate(-90 20 {})\"", middle));
}

std::string simulated_text(std::span<const SweepPoint> points) {
  for (const SweepPoint& point : points)
    for (const auto& figures : point.simulated)
      if (figures)
        return fmt::format("; rings: mean of {} simulated messages, with 95 % of it",
                           figures->messages);
  return {};
}

} // namespace

std::string sweep_svg(Sweep sweep, const Transfer& base, std::span<const std::string> names,
                      std::span<const SweepPoint> points) {
  const Axis x{points.front().value, points.back().value, left, right};
  const Axis y = time_axis(points);
  std::string svg =
      fmt::format("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
                  "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"13\">\n",
                  width, height);
  const std::string title = fmt::format("Mean completion time by {}", sweep_title(sweep));
  const std::string inputs = inputs_text(base, sweep) + simulated_text(points);
  svg += fmt::format("<title>{}; {}</title>\n", escaped(title), escaped(inputs));
  svg += fmt::format("<rect width=\"{}\" height=\"{}\" fill=\"#ffffff\"/>\n", width, height);
  add_text(svg, left, 30, "start", title, " font-size=\"17\"");
  add_text(svg, left, 52, "start", inputs);
  add_axes(svg, x, y, sweep, points);
  for (size_t scheme = 0; scheme < names.size(); ++scheme) {
    std::string corners;
    for (const SweepPoint& point : points)
      corners += fmt::format("{}{:.1f},{:.1f}", corners.empty() ? "" : " ", x.at(point.value),
                             y.at(point.mean_ns[scheme]));
    svg += fmt::format("<polyline points=\"{}\" fill=\"none\" {}/>\n", corners, stroke(scheme));
    for (const SweepPoint& point : points)
      add_marker(svg, scheme, x.at(point.value), y.at(point.mean_ns[scheme]));
    for (const SweepPoint& point : points)
      if (scheme < point.simulated.size() && point.simulated[scheme])
        add_sampled(svg, scheme, x.at(point.value), y, point.simulated[scheme]->mean_ns);
    constexpr double legend = right + 20, sample = 40, line_height = 24;
    const double line = top + 10 + line_height * static_cast<double>(scheme);
    add_line(svg, legend, line, legend + sample, line, stroke(scheme));
    add_marker(svg, scheme, legend + sample / 2, line);
    add_text(svg, legend + sample + 8, line + 4, "start", names[scheme]);
  }
  return svg + "</svg>\n";
}

} // namespace adverb::tools
