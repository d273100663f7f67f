"""What is known of a fit so far, and what its next step asks of the rows."""
