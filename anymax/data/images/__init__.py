"""Sets of images, and batches of them."""
