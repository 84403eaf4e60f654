// In the place of MLX's file of this name, which specialises by address space; a CPU has but one.
#pragma once
#include <metal_stdlib>

namespace metal {
template <typename T>
constexpr bool is_empty_v = __is_empty(T);
template <typename T>
struct is_empty : bool_constant<is_empty_v<T>> {};
template <typename... Ts>
struct make_void {
  typedef void type;
};
template <typename... Ts>
using void_t = typename make_void<Ts...>::type;
template <class T>
struct is_static : bool_constant<is_empty_v<remove_cv_t<T>>> {};
template <typename T>
using pointer_element_t = remove_cv_t<remove_pointer_t<remove_cv_t<T>>>;
}  // namespace metal
