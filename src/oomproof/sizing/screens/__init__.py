"""What sizing prints."""
