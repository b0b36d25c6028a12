"""Areas, lengths and conversions of simple shapes."""
