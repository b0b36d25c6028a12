"""Sessions and their branches."""
