"""What the figures say, against what was planted in the training."""
