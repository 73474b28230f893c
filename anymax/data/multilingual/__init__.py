"""Several texts for one model, as of different languages, in word pieces learned from all of them."""
