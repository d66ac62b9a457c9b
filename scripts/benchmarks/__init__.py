"""What `scripts/bench` measures: throughput, its ceiling, how fast a signal acts, memory, and recovery."""
