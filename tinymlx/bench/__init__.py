"""What this machine can do: memory bandwidth, matrix multiplication, Qwen3 under the roof that the two make, and where a decode step goes."""
