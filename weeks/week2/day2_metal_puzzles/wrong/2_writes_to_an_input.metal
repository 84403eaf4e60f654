// Puts the product where a stands: inputs are const, and it does not compile.
//
// caught by: TestTask2Zip::test_two_inputs

inline void zip(const device float* a, const device float* b, device float* y, uint i) {
  a[i] = a[i] * b[i];
}
