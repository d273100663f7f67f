"""Normal posteriors, from released scores and information or without noise."""
