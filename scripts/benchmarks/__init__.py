"""What `scripts/bench` measures: throughput, its ceiling, how fast a signal acts, and memory."""
