"""What `scripts/chaos` does: a Redis, three workers and a load; faults at random; and an account kept outside Redis."""
