"""Supervised rooms."""
