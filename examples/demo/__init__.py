"""The demo: a dozen customers' conversations, killed and restarted, and an account of every message."""
