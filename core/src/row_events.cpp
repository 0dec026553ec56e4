#include "row_events.h"

namespace logitport {

std::string RowEvent::json() const {
  std::string text;
  for (std::size_t index = 0; index < values.size() && !kind->values[index].empty(); ++index) {
    text.append(index == 0 ? "{\"" : ",\"").append(kind->values[index]).append("\":");
    text.append(std::to_string(values[index]));
  }
  if (!text.empty()) {
    text.push_back('}');
  }
  return text;
}

}  // namespace logitport
