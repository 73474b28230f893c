"""Models of images with a discrete latent."""
