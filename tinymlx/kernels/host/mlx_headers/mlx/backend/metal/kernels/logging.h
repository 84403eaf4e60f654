// In the place of MLX's file of this name: a log that keeps nothing.
#pragma once
namespace mlx {
struct os_log {
  constexpr os_log(const char*, const char*) {}
  template <typename... Args>
  void log_debug(const char*, Args...) const {}
};
}  // namespace mlx
