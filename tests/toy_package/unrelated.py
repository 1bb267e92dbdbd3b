"""Nothing imports this module."""
