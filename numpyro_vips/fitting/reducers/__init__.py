"""Where a batch is summed: in this process, in several, or by several parties."""
