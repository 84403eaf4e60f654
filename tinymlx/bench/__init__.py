"""What this machine can do: memory bandwidth, matrix multiplication, and where Qwen3 lies under the roof the two make."""
