// In the place of MLX's file of this name, which wraps Apple's builtins: metal.h has these functions for bfloat already.
#pragma once
