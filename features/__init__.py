"""What a training run looks like as numbers, and where runs come from."""
