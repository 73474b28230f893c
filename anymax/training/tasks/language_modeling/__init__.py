"""Language modelling: predict the next word of a text."""
