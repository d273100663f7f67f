"""The posterior that is released, and what it says of rows that the caller may see."""
