"""How vectors and words are searched. Indexes are caches of a store and can always be rebuilt."""
