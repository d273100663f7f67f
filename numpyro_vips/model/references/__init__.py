"""All that a model refers to: found arrays are public, and tell models apart."""
