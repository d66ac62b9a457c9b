"""What is said, and to Redis. Imports neither of the other two packages."""
