"""What the user wrote: arguments, traces, and what is refused.

Open `graph.py` first: it compares the traces of the model on one, two and three
rows and says what its sites are.
"""
