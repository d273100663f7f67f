"""Facts about a model that its graph shows: public, and the same for both engines."""
