"""What runs: rooms, cycles and the code of users."""
