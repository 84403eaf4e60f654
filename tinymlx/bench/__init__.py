"""What this machine can do: memory bandwidth, matrix multiplication, and Qwen3 under the roof that the two make."""
