"""What keeps it running."""
