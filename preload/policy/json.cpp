// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
#include "policy/json.h"

#include "policy/suggest.h"

#include <algorithm>

namespace adverb::policy {
namespace {

// Builds the tree itself, because the library's own builder keeps the last of duplicate keys
// without a word.
class Builder : public nlohmann::json_sax<Json> {
public:
  Builder(std::string_view text, const std::string& file, std::vector<Error>& errors)
      : text_(text), file_(file), errors_(errors) {}

  Json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(int64_t value) override { return put(value); }
  bool number_unsigned(uint64_t value) override { return put(value); }
  bool number_float(double value, const std::string&) override { return put(value); }
  bool string(std::string& value) override { return put(std::move(value)); }
  bool binary(Json::binary_t&) override { return false; }

  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    Frame& top = open_.back();
    if (top.value->contains(name))
      errors_.push_back({file_, child_pointer(pointer(), name),
                         "key " + in_quotes(name) + " is given twice", "keep one of them"});
    top.key = std::move(name);
    return true;
  }

  bool parse_error(size_t position, const std::string& token,
                   const nlohmann::detail::exception& failure) override;

private:
  struct Frame {
    Json* value;
    std::string key; // of the member being read, for objects
  };

  // Where the open objects and arrays are.
  std::string pointer() const {
    std::string result;
    for (size_t i = 0; i + 1 < open_.size(); ++i)
      result = child_pointer(result, open_[i].value->is_object()
                                         ? open_[i].key
                                         : std::to_string(open_[i].value->size() - 1));
    return result;
  }

  Json* insert(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Frame& top = open_.back();
    if (top.value->is_object())
      return &((*top.value)[top.key] = std::move(value));
    top.value->push_back(std::move(value));
    return &top.value->back();
  }

  bool put(Json value) {
    insert(std::move(value));
    return true;
  }

  bool open(Json value) {
    if (open_.size() >= max_depth) {
      errors_.push_back(
          {file_, pointer(), "nested more than " + std::to_string(max_depth) + " levels deep", ""});
      return false;
    }
    open_.push_back({insert(std::move(value)), {}});
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view text_;
  const std::string& file_;
  std::vector<Error>& errors_;
  Json root_;
  std::vector<Frame> open_;
};

// "LINE:COLUMN" of a byte, both counted from 1.
std::string place(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = 1 + std::ranges::count(before, '\n');
  const size_t start = before.rfind('\n') + 1; // npos + 1 is 0
  return std::to_string(line) + ":" + std::to_string(before.size() - start + 1);
}

std::string syntax_remedy(std::string_view reason, char found, char previous) {
  if (found == '/' || found == '#')
    return "JSON has no comments; use a \"$comment\" key";
  if (found == '\'')
    return "put strings in double quotes";
  if (previous == ',' && (found == '}' || found == ']'))
    return "remove the comma before it";
  if (reason.find("expected ','") != std::string_view::npos)
    return "a comma may be missing before it";
  return {};
}

bool Builder::parse_error(size_t position, const std::string& token,
                          const nlohmann::detail::exception& failure) {
  // what() reads "[json.exception…] parse error at line 1, column 2: REASON; last read: 'TOKEN'…".
  std::string reason = failure.what();
  if (const size_t colon = reason.find(": "); reason.starts_with('[') && colon != reason.npos)
    reason.erase(0, colon + 2);
  else if (const size_t bracket = reason.find("] "); bracket != reason.npos)
    reason.erase(0, bracket + 2);
  if (const size_t last = reason.find("; last read"); last != reason.npos) {
    const size_t expected = reason.rfind("; expected");
    reason = reason.substr(0, last) +
             (expected != reason.npos && expected > last ? reason.substr(expected) : "");
  }
  std::replace_if(
      reason.begin(), reason.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; },
      ' ');

  // `position` is just behind the token; the end of the text counts as one more character. Only a
  // string's token is exact, others may start with what was read before.
  size_t at = position > 0 ? std::min(position - 1, text_.size()) : 0;
  const bool is_string = token.size() > 1 && token.front() == '"' && token.back() == '"';
  if (is_string && at + 1 >= token.size())
    at -= token.size() - 1;
  const char found = at < text_.size() ? text_[at] : '\0';
  const size_t before = at > 0 ? text_.find_last_not_of(" \t\r\n", at - 1) : text_.npos;
  const char previous = before != text_.npos ? text_[before] : '\0';
  const std::string remedy = syntax_remedy(reason, found, previous);
  errors_.push_back({file_, place(text_, at), std::move(reason), remedy});
  return false;
}

} // namespace

Json read_json(std::string_view text, const std::string& file, std::vector<Error>& errors) {
  if (text.size() > max_text) {
    errors.push_back({file, "", "longer than " + std::to_string(max_text) + " bytes", ""});
    return nullptr;
  }
  if (text.find_first_not_of(" \t\r\n") == text.npos) {
    errors.push_back({file, "", "the file is empty", "the smallest policy is {\"version\": 1}"});
    return nullptr;
  }
  // The parser takes a NUL for the end of the text and would not look at what follows.
  if (const size_t nul = text.find('\0'); nul != text.npos) {
    errors.push_back({file, place(text, nul), "a NUL byte", "save the file as UTF-8 text"});
    return nullptr;
  }
  Builder builder(text, file, errors);
  const size_t before = errors.size();
  const bool read = Json::sax_parse(text.begin(), text.end(), &builder);
  if (!read && errors.size() == before)
    errors.push_back({file, "", "not a JSON document", ""});
  return read ? builder.take() : Json(nullptr);
}

std::string child_pointer(const std::string& pointer, std::string_view token) {
  std::string result = pointer + '/';
  for (char c : token) {
    if (c == '~')
      result += "~0";
    else if (c == '/')
      result += "~1";
    else
      result += c;
  }
  return result;
}

} // namespace adverb::policy
