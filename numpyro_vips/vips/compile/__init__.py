"""From a model graph to a certified conjugate program, or to the reasons why not."""
