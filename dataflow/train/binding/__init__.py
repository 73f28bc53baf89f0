"""Programs of a training for the sizes of its batches."""
