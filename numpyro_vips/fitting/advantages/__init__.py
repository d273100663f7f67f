"""In which models DPVI is predicted to be more accurate than VIPS."""
