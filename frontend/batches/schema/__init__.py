"""The objects of files and batches, as their routes take and show them."""
