"""What stands in place of an operation of JAX so that a row's result is its own."""
