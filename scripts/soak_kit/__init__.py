"""The soak: many messages, and then whether anything is left of them."""
