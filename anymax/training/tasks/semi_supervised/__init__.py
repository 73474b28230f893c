"""Semi-supervised autoencoder: the class of an image as a latent."""
